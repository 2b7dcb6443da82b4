"""Rows of backups read as Parquet by other programs, without Spark."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow.parquet as pq
import pytest

import tidemark as tm
from tests.spark.support import SMALL, every_column, every_row, rows_in, rows_of
from tidemark.engine.base.errors import Damaged
from tidemark.recovery.spark.read import rows_of_backup

NUMBERS = [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(20)), tm.Column("k", tm.Int64, nullable=True)]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "store", **SMALL) as opened:
        yield opened


def filled(db: tm.Database, count: int = 5_000) -> None:
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(4))
    db["numbers"].insert_many([(key, f"n{key}", key % 7 or None) for key in range(count)])


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_folder_of_a_table_in_a_full_backup_is_read_by_any_reader_of_parquet(
    db: tm.Database, tmp_path: Path, storage: str
) -> None:
    if storage == "disk":
        db.create_tablespace("main", size="1 MiB", page_size="32 KiB")
    db.create_table("every", every_column(storage), "id", partition=tm.HashPartition(3))
    db["every"].insert_many(every_row(200))
    db.backup(tmp_path / "place")
    want = rows_of(db, "every")
    assert rows_in(tmp_path / "place") == want
    (folder,) = (tmp_path / "place").glob("*-main.every/1")
    names = [column.name for column in db["every"].definition.columns]
    plain = pq.read_table(folder).select(names).sort_by("id").to_pylist()
    for row in plain:
        row["uuid"] = row["uuid"] and str(uuid.UUID(bytes=row["uuid"]))
    assert [tuple(row.values()) for row in plain] == want
    places = f'SELECT id, "$PLACE" & {(1 << 48) - 1}, "$PLACE" >> 48, "$EPOCH", "$AUTHOR"'
    hidden = duckdb.sql(f"{places} FROM '{folder}/*.parquet' ORDER BY id").fetchall()
    assert hidden == rows_of(db, "every", ["id", tm.ROWID, tm.FRAGMENT, tm.EPOCH, tm.AUTHOR])
    scanned = polars.scan_parquet(folder).select("id", "text", "uint64", "long_decimal").sort("id").collect().rows()
    places_of = [names.index(name) for name in ("id", "text", "uint64", "long_decimal")]
    assert scanned == [tuple(row[at] for at in places_of) for row in want]


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_rows_older_than_the_var_part_of_their_table_have_the_defaults(
    db: tm.Database, tmp_path: Path, storage: str
) -> None:
    db.create_tablespace("main", size="256 KiB", page_size="4 KiB", extent="64 KiB")
    columns = [tm.Column("id", tm.Int64), tm.Column("v", tm.Int64), tm.Column("t", tm.Text, storage=storage)]
    columns = columns if storage == "disk" else columns[:2]
    db.create_table("old", columns, "id", partition=tm.HashPartition(1))
    db["old"].insert_many([(key, key, f"text {key}")[: len(columns)] for key in range(50)])
    db.backup(tmp_path / "place")
    db.add_column("old", tm.Column("late", tm.Int32, default=7))
    db["old"].update(3, {"late": 8})
    db["old"].delete(4)
    db.backup(tmp_path / "place", incremental=True)
    assert rows_in(tmp_path / "place") == rows_of(db, "old")


def test_every_flipped_byte_of_tails_and_level_files_is_found_before_spark_reads(
    db: tm.Database, tmp_path: Path
) -> None:
    """Pages have checksums that Spark verifies; page index and footer have none."""
    rng = random.Random(11)
    filled(db, 2_000)
    db.backup(tmp_path / "place")
    db["numbers"].delete_many(range(0, 2_000, 90))
    db.backup(tmp_path / "place", incremental=True)
    rows_of_backup(tmp_path / "place", None, None)
    for path in [path for path in (tmp_path / "place").rglob("*") if path.suffix in (".parquet", ".level")]:
        sound = path.read_bytes()
        start = 0
        if path.suffix == ".parquet":
            about = pq.read_metadata(path)
            groups = [about.row_group(number) for number in range(about.num_row_groups)]
            start = 4 + sum(column["total_compressed_size"] for each in groups for column in each.to_dict()["columns"])
        for at in rng.sample(range(start, len(sound)), 25):
            spoiled = bytearray(sound)
            spoiled[at] ^= 1 << rng.randrange(8)
            path.write_bytes(spoiled)
            with pytest.raises(Damaged):
                rows_of_backup(tmp_path / "place", None, None)
        path.write_bytes(sound[: len(sound) // 2])
        with pytest.raises(Damaged):
            rows_of_backup(tmp_path / "place", None, None)
        path.write_bytes(sound)
    rows_of_backup(tmp_path / "place", None, None)


REFUSED: list[tuple[dict[str, Any], type[tm.Error], str]] = [
    ({"table": "nothing"}, tm.NoSuchTable, "known: main.numbers, main.other"),
    ({}, tm.SchemaInvalid, "say which table"),
    ({"table": "numbers", "number": 9}, tm.FileMissing, "no backup 9"),
    ({"place": "store", "table": "numbers"}, tm.FileMissing, "no sysfile or finished backup"),
    ({"place": "nowhere"}, tm.FileMissing, "nowhere"),
    ({"place": "empty"}, tm.FileMissing, "no store or backup"),
]


@pytest.mark.parametrize(("asked", "kind", "text"), REFUSED)
def test_reads_that_cannot_be_are_refused(
    db: tm.Database, tmp_path: Path, asked: dict[str, Any], kind: type[tm.Error], text: str
) -> None:
    (tmp_path / "empty").mkdir()
    filled(db, 10)
    db.create_table("other", NUMBERS, "id")
    db.backup(tmp_path / "place")
    asked = {"place": "place", "table": None, "number": None, **asked}
    with pytest.raises(kind, match=text):
        rows_of_backup(tmp_path / asked["place"], asked["table"], asked["number"])
