"""Stores on disk with every type of column, for Spark to read and write."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tidemark as tm
from tests.replication.site import WHOLE
from tidemark.recovery.backup.rows_file import EPOCH, PLACE
from tidemark.recovery.spark.read import rows_of_backup
from tidemark.recovery.spark.types import arrow_schema

SMALL: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "8 MiB", "undo_log": "2 MiB", "background": False}
LOGGED: dict[str, Any] = {**SMALL, **WHOLE, "server_id": 1, "log_bin": "binlog"}
NUMBERS = [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(20), nullable=True)]

# Every type, with the smallest and the greatest value Spark and the store both have.
EVERY: dict[str, tuple[Any, list[Any]]] = {
    "int8": (tm.Int8, [-128, 127]),
    "int16": (tm.Int16, [-(2**15), 2**15 - 1]),
    "int32": (tm.Int32, [-(2**31), 2**31 - 1]),
    "int64": (tm.Int64, [-(2**63), 2**63 - 1]),
    "uint8": (tm.UInt8, [0, 255]),
    "uint16": (tm.UInt16, [0, 2**16 - 1]),
    "uint32": (tm.UInt32, [0, 2**32 - 1]),
    "uint64": (tm.UInt64, [0, 2**64 - 1]),
    "float32": (tm.Float32, [-1.5, 3.0]),
    "float64": (tm.Float64, [-1e300, 5e-324]),
    "short_decimal": (tm.Decimal(9, 2), [Decimal("-9999999.99"), Decimal("0.01")]),
    "long_decimal": (tm.Decimal(38, 10), [Decimal("-" + "9" * 28 + ".1234567891"), Decimal("1.0000000001")]),
    "bool": (tm.Bool, [False, True]),
    "char": (tm.Char(4), ["", "äöü€"]),
    "varchar": (tm.VarChar(20), ["", "zwölf Boxkämpfer 🥊"]),
    "text": (tm.Text, ["", "long " * 5_000]),
    "binary": (tm.Binary(3), [b"\x00\x00\x00", b"\xff\x00a"]),
    "varbinary": (tm.VarBinary(20), [b"", b"\x00\xff"]),
    "blob": (tm.Blob, [b"", bytes(range(256)) * 40]),
    "date": (tm.Date, [date(1, 1, 1), date(9999, 12, 31)]),
    "time": (tm.Time, [time(0), time(23, 59, 59, 999_999)]),
    "datetime": (tm.DateTime, [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]),
    "timestamp": (
        tm.Timestamp,
        [datetime(1900, 1, 1, tzinfo=UTC), datetime(2400, 2, 29, 1, 2, 3, 4, tzinfo=UTC)],
    ),
    "enum": (tm.Enum("red", "green"), ["red", "green"]),
    "uuid": (tm.UUID, [uuid.UUID(int=0), uuid.UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")]),
    "json": (tm.JSON, [{"a": [1, 2.5, None]}, ["äöü€"]]),
}


def every_column(storage: str = "memory") -> list[tm.Column]:
    """A key, and a column of every type."""
    return [
        tm.Column("id", tm.Int64),
        *(tm.Column(name, kind, nullable=True, storage=storage) for name, (kind, _) in EVERY.items()),
    ]


def every_row(count: int) -> list[tuple[Any, ...]]:
    """Rows with each value, and with NULL everywhere."""
    rng = random.Random(5)
    rows = []
    for key in range(count):
        if key % 5 == 4:
            rows.append((key, *[None] * len(EVERY)))
        else:
            rows.append((key, *(values[(key + rng.randrange(2)) % 2] for _, values in EVERY.values())))
    return rows


def as_text(value: Any) -> Any:
    """A value as Spark has it: UUIDs and documents are text."""
    if isinstance(value, uuid.UUID):
        return str(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if isinstance(value, (dict, list)) else value


def as_rows(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows as Spark has them, by their first value."""
    return sorted((tuple(map(as_text, row)) for row in rows), key=lambda row: row[0])


def rows_in(place: Path | str, table: str | None = None, number: int | None = None) -> list[tuple[Any, ...]]:
    """The rows of a backup by plain pyarrow, sorted, of exactly the types that Spark has."""
    found = rows_of_backup(place, table, number)
    pieces = []
    for name in found.names:
        held = pq.read_table(Path(place) / name, page_checksum_verification=True)
        dead = dict(found.dead.tolist())
        places = zip(held[PLACE].to_pylist(), held[EPOCH].to_pylist(), strict=True)
        alive = pa.array([epoch > dead.get(place, -1) for place, epoch in places], pa.bool_())
        columns = [column.name for column in found.definition.columns]
        some = held.filter(alive).select(columns)
        for place_in_row, column in enumerate(found.definition.columns):
            if column.type == tm.UUID:
                texts = [each and str(uuid.UUID(bytes=each)) for each in some[column.name].to_pylist()]
                some = some.set_column(place_in_row, column.name, pa.array(texts, pa.string()))
        pieces.append(some.cast(arrow_schema(found.definition.columns)))
    whole = pa.concat_tables(pieces)
    return sorted(zip(*(column.to_pylist() for column in whole.columns), strict=True), key=lambda row: row[0])


def rows_of(db: tm.Database, table: str, columns: Any = None) -> list[tuple[Any, ...]]:
    """The same from an open store."""
    return as_rows(db[table].scan(columns=columns))


def place_of(db: tm.Database) -> Path:
    return Path(db.parts.files.directory)


def logged(db: tm.Database) -> int:
    """The newest epoch, written to the binlog."""
    epoch = db.sync()
    db.binlog.write_closed_epochs()
    return epoch
