"""Tables of a backup as DataFrames: Spark reads the Parquet files itself (docs/spark.md, section 3).

Page checksums are checked by Spark. They do not cover footer and page index, so the tails of the files are read here
against their digests before Spark reads any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np

from tidemark.engine.access.scan_batch import AUTHOR, EPOCH
from tidemark.engine.base.errors import Rejected
from tidemark.recovery.backup.chain import Chain
from tidemark.recovery.backup.plan import chosen_backup
from tidemark.recovery.backup.rows_file import FRAGMENT_SHIFT, PLACE, ROWID_MASK, hidden_columns
from tidemark.recovery.places.names import canonical_place, shown_place
from tidemark.recovery.places.storage import at_place
from tidemark.recovery.spark.options import find_table
from tidemark.recovery.spark.types import kept_schema, shown_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition

CHECKED = {"parquet.page.verify-checksum.enabled": "true"}

GONE, GONE_EPOCH = "$GONE", "$GONE_EPOCH"
_PATTERN = re.compile(r"[\[\]{}*?\\]")  # Spark takes these for patterns


@dataclass(frozen=True)
class BackupRows:
    """What a read of a table needs to know of a backup."""

    definition: TableDefinition
    place: str  # canonical
    whole: list[str]  # names of rows files of which all rows are taken
    others: list[str]  # of those with rows that are gone
    dead: Words  # places of these rows, and an epoch before that of any later row there; shape (places, 2)
    is_one_backup: bool  # that all of `others` are of: there each place occurs once

    @property
    def names(self) -> list[str]:
        """Names of all rows files."""
        return [*self.whole, *self.others]


def rows_of_backup(place: Any, table: str | None, number: int | None) -> BackupRows:
    """Return the files of a table in a backup, whose tails and level files are read and checked.

    Raises: FileMissing, NoSuchTable, SchemaInvalid, Rejected, Damaged.
    """
    if isinstance(place, tuple):
        raise Rejected("Spark reads a place by its path or URI; give that instead of a file system of this process")
    place = canonical_place(place)
    with at_place(place, what="backup") as files:
        manifest = chosen_backup(files, number)
        definition = find_table(manifest.tables, table)
        whole: list[str] = []
        others: dict[str, int] = {}
        dead: list[Words] = [np.zeros((0, 2), dtype=np.int64)]
        for (table_id, _), levels in sorted(manifest.levels.items()):
            if table_id != definition.table_id:
                continue
            chain = Chain(files, manifest.store, definition, levels)
            for content in chain.contents:
                level, places = content.level, chain.dead_places(content)
                if places.size:
                    others[level.name] = level.backup
                    dead.append(np.stack([places, np.full_like(places, level.epoch)], axis=1))
                else:
                    whole.append(level.name)
    gone = _last_of_each(np.concatenate(dead))
    return BackupRows(definition, place, whole, list(others), gone, len(set(others.values())) == 1)


def _last_of_each(dead: Words) -> Words:
    """Return each place once, with the greatest epoch."""
    dead = dead[np.lexsort((dead[:, 1], dead[:, 0]))]
    is_last = np.ones(len(dead), dtype=np.bool_)
    is_last[:-1] = dead[1:, 0] != dead[:-1, 0]
    return dead[is_last]


def spark_place(spark: SparkSession, place: str) -> str:
    """Return a canonical place as Spark names it, without secrets: they become settings of the session. Spark shows
    paths in plans and logs; of settings it hides values.

    Raises: Rejected for secrets that have no setting here.
    """
    if place.startswith("/"):
        return f"file:{place}"
    parts = urlsplit(place)
    query = dict(parse_qsl(parts.query))
    user, _, host = parts.netloc.rpartition("@")
    if parts.scheme == "s3":
        prefix = f"fs.s3a.bucket.{host}"
        key, _, secret = user.partition(":")
        found = {
            "access.key": unquote(key),
            "secret.key": unquote(secret),
            "endpoint": query.get("endpoint_override", ""),
            "endpoint.region": query.get("region", ""),
            "path.style.access": "true" if "endpoint_override" in query else "",
            "connection.ssl.enabled": "false" if query.get("scheme") == "http" else "",
        }
        for name, value in found.items():
            if value:
                spark.conf.set(f"{prefix}.{name}", value)
        return f"s3a://{host}{parts.path}"
    if ":" in user or parts.query:
        raise Rejected(
            f"Spark would show the secrets of {shown_place(place)}; leave them out of the place, and set"
            f" spark.hadoop.fs.{parts.scheme}… for them in ts.session(settings=)",
            place=shown_place(place),
        )
    return place


def frame_of(spark: SparkSession, rows: BackupRows, hidden: bool) -> DataFrame:
    """Return the rows as a DataFrame. hidden: with `$ROWID`, `$EPOCH`, `$AUTHOR` and `$FRAGMENT` after the columns."""
    import pyarrow as pa
    from pyspark.sql.functions import broadcast, col, expr, shiftright

    columns = rows.definition.columns
    schema = kept_schema(columns, hidden_columns(rows.definition))
    root = spark_place(spark, rows.place)

    def scan(names: list[str]) -> DataFrame:
        paths = [_PATTERN.sub(r"\\\g<0>", f"{root}/{name}") for name in names]
        return spark.read.schema(schema).options(**CHECKED).parquet(*paths)

    frame = scan(rows.others or rows.whole)
    if rows.others:
        gone = spark.createDataFrame(pa.table({GONE: rows.dead[:, 0], GONE_EPOCH: rows.dead[:, 1]}))
        # One key of eight bytes is what Spark looks up fastest.
        is_gone = col(_quoted(PLACE)) == col(_quoted(GONE))
        if not rows.is_one_backup:
            is_gone &= col(_quoted(EPOCH)) <= col(_quoted(GONE_EPOCH))
        frame = frame.join(broadcast(gone), is_gone, "left_anti")
        if rows.whole:
            frame = frame.union(scan(rows.whole))
    wanted = [expr(shown_column(column, _quoted(column.name))).alias(column.name) for column in columns]
    if hidden:
        place = col(_quoted(PLACE))
        wanted.append(place.bitwiseAND(ROWID_MASK).alias("$ROWID"))
        wanted += [col(_quoted(EPOCH)), col(_quoted(AUTHOR))]
        wanted.append(shiftright(place, FRAGMENT_SHIFT).alias("$FRAGMENT"))
    return frame.select(*wanted)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
