"""A store in which transactions spool soon, and large ones."""

from __future__ import annotations

from typing import Any

import tidemark as tm
from tests.store.support import ACCOUNT, open_memory
from tidemark.engine.log.spool_files import FOLDER
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.account"
LOW: dict[str, Any] = {"transaction_memory": "64 KiB", "data_memory": "32 MiB"}
ROWS = 900
Row = tuple[Any, ...]


def open_low(files: Any = None, through: int | None = None, **options: Any) -> Any:
    """A store with 64 KiB of transaction memory."""
    return open_memory(files, through, **{**LOW, **options})


def low_store(files: Any = None, **options: Any) -> Any:
    """A new one, with a table."""
    db = open_low(files, **options)
    db.create_table(NAME, ACCOUNT, "id", tm.HashPartition(2))
    return db


def rows(first: int = 0, count: int = ROWS, note: str = "n") -> list[Row]:
    """About 250 bytes each."""
    return [(key, "o" * (key % 30), key / 2, note * 200) for key in range(first, first + count)]


def insert_spooled(db: Any, first: int = 0, count: int = ROWS, note: str = "n") -> dict[int, Row]:
    """One transaction of some rows, which spools; the rows by key."""
    made = rows(first, count, note)
    before = db.status()["spool"]["committed"]
    with db.transaction() as txn:
        txn.insert_many(NAME, made)
        assert txn.spool is not None
    assert db.status()["spool"]["committed"] == before + 1
    return {row[0]: row for row in made}


def found(db: Any) -> dict[int, Row]:
    return {row[0]: tuple(row) for row in db[NAME].scan()}


def spool_names(files: MemoryFiles) -> tuple[str, ...]:
    return files.list(FOLDER) if files.exists(FOLDER) else ()
