"""Pairs of stores, and the result of a naive comparison of them."""

from __future__ import annotations

from typing import Any

import tidemark as tm
from tests.store.support import open_memory
from tidemark.recovery.backup.plan import make_plan
from tidemark.recovery.verification.sides import BackupSide

LARGE: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "32 MiB", "transaction_memory": "32 MiB"}
ON_FILES: dict[str, Any] = {"background": False, "data_memory": "64 MiB", "redo_log": "8 MiB"}
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("name", tm.VarChar(20), nullable=True),
    tm.Column("number", tm.Int32),
    tm.Column("price", tm.Decimal(12, 2), nullable=True),
]
ON_DISK = [*COLUMNS[:3], tm.Column("far", tm.VarChar(60), nullable=True, storage="disk")]


def row_of(key: int, shift: int = 0) -> tuple[Any, ...]:
    """A row that follows from its key."""
    return (key, None if key % 5 == 0 else f"n{key + shift}", (key + shift) % 1000, None)


def store(rows: Any = (), fragments: int = 4, columns: Any = COLUMNS, name: str = "d.t", **options: Any) -> tm.Database:
    """A store in memory with one table."""
    db = open_memory(**{**LARGE, **options})
    if columns is ON_DISK:
        db.create_tablespace("pages", page_size="4 KiB", extent="64 KiB", size="8 MiB")
    db.create_table(name, columns, "id", tm.HashPartition(fragments))
    db[name].insert_many(rows)
    return db


def backup_side(place: Any, number: int | None = None) -> BackupSide:
    """A backup in memory, to be compared."""
    return BackupSide(place, make_plan(place, number=number).manifest)


def rows_in(db: Any, name: str = "d.t") -> dict[Any, dict[str, Any]]:
    """All rows by key."""
    return {row.id: row._asdict() for row in db[name].scan()}


def naive(a: dict[Any, Any], b: dict[Any, Any]) -> set[tuple[Any, ...]]:
    """(key, column, a, b) of what differs; the column is None for a row that one side lacks."""
    found: set[tuple[Any, ...]] = set()
    for key in {*a, *b}:
        if key not in a or key not in b:
            found.add((key, None, key in a, key in b))
            continue
        for column in a[key]:
            if repr(a[key][column]) != repr(b[key][column]):
                found.add((key, column, repr(a[key][column]), repr(b[key][column])))
    return found


def found(report: dict[str, Any]) -> set[tuple[Any, ...]]:
    """The same of a report."""
    return {
        (each["key"], None, each["a"] is not None, each["b"] is not None)
        if each["column"] is None
        else (each["key"], each["column"], repr(each["a"]), repr(each["b"]))
        for each in report["differences"]
    }
