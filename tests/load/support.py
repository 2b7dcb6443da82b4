"""Loads into stores in memory: planned, written and published in the store's own folder."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

import tidemark as tm
from tests.store.support import open_memory
from tidemark.engine.log.load_files import FOLDER
from tidemark.engine.rows.column_values import from_python
from tidemark.recovery import load
from tidemark.recovery.load.directory import Directory
from tidemark.recovery.load.job import FragmentReport, LoadJob

NAME = "test.t"
ROOM: dict[str, Any] = {
    "data_memory": "32 MiB",
    "redo_log": "16 MiB",
    "undo_log": "16 MiB",
    "page_buffer": "1 MiB",
}
Row = tuple[Any, ...]


def columns(on_disk: bool = False) -> list[tm.Column]:
    storage = "disk" if on_disk else "memory"
    return [
        tm.Column("id", tm.Int64),
        tm.Column("email", tm.VarChar(60), nullable=True),
        tm.Column("n", tm.Int32),
        tm.Column("text", tm.VarChar(3_000), nullable=True),
        tm.Column("cold", tm.VarBinary(3_000), nullable=True, storage=storage),
    ]


def row(key: int, salt: str = "") -> Row:
    """One row, of a size that follows from its key."""
    rng = random.Random(f"{key}{salt}")
    email = None if key % 7 == 0 else f"{key}{salt}@example.com"
    text = None if key % 5 == 0 else "t" * (rng.randrange(30) if key % 11 else rng.randrange(2_000))
    cold = None if key % 3 == 0 else bytes([key % 251]) * (rng.randrange(50) if key % 13 else rng.randrange(2_500))
    return (key, email, key % 100, text, cold)


def rows(first: int, count: int, salt: str = "") -> list[Row]:
    return [row(key, salt) for key in range(first, first + count)]


def batch(made: list[Row], on_disk: bool = False) -> pa.RecordBatch:
    """Rows as tasks get them."""
    own = columns(on_disk)
    arrays = [
        from_python([each[place] for each in made], column, NAME, 0, column.name == "id").cast(column.type.input_type())
        for place, column in enumerate(own)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in own])


def new_store(files: Any = None, on_disk: bool = False, partition: Any = None, **options: Any) -> Any:
    db = open_memory(files, **{**ROOM, **options})
    db.create_table(NAME, columns(on_disk), "id", partition or tm.HashPartition(2))
    return db


def own_place(db: Any) -> Directory:
    return Directory(db.parts.files, FOLDER)


def written(db: Any, job: LoadJob, made: list[Row], attempt: int = 0, part: int = 0) -> list[FragmentReport]:
    """What one task writes."""
    return load.write_parts(job, attempt, [batch(made)], part, own_place(db))


def published(db: Any, made: list[Row], parts: int = 1) -> LoadJob:
    """A load of some rows, ready to be adopted."""
    job = db.plan_load(NAME)
    reports = [
        report for part in range(parts) for report in written(db, job, made[part::parts], attempt=part, part=part)
    ]
    load.publish(job, reports, own_place(db))
    return job


def found(db: Any) -> dict[int, Row]:
    """The rows of the table, by key."""
    return {each[0]: tuple(each) for each in db[NAME].scan()}


def by_key(made: list[Row]) -> dict[int, Row]:
    return {each[0]: each for each in made}


def leaves(db: Any) -> list[str]:
    """Names of files in the store's folder of loads."""
    return list(db.parts.files.list(FOLDER)) if db.parts.files.exists(FOLDER) else []
