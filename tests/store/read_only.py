"""Views of stores in memory, through disks on which every call that would change them fails."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.recovery.support import History, changes_during, make_history, put
from tests.store.support import ACCOUNT, open_memory
from tests.store.trouble import dump
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.account"
WRITES = ("create", "pwrite", "truncate", "sync", "make_directory", "rename", "unlink", "lock")


def attach(files: Any, **options: Any) -> tm.ReadOnlyDatabase:
    """A view through a disk on which every call that would change it fails."""
    guarded = FaultFiles(files, [Rule(operation, once=False, error=errno.EROFS) for operation in WRITES])
    parsed = Options.from_keywords({"data_memory": "16 MiB", **options})
    return tm.ReadOnlyDatabase(guarded, parsed, ManualClock())


def attach_to(contents: Any, **options: Any) -> tm.ReadOnlyDatabase:
    return attach(MemoryFiles.from_snapshot(contents), **options)


def second(files: MemoryFiles) -> MemoryFiles:
    """The same disk as another process has it."""
    return MemoryFiles(files.disk)


def one_checkpoint(seed: int = 0) -> MemoryFiles:
    files = MemoryFiles()
    db = open_memory(files, clock=ManualClock(seed=seed))
    db.create_table(NAME, ACCOUNT, "id")
    db.checkpoint()
    db.close()
    return files


@pytest.fixture(scope="module")
def history() -> History:
    return make_history()


def create_tables(db: Any) -> None:
    """What `changes_during` changes."""
    db.create_table(NAME, ACCOUNT, "id")
    db.create_table("test.old", [tm.Column("id", tm.Int64), tm.Column("value", tm.Int64)], "id")
    db["test.old"].insert_many([(key, 0) for key in range(100)])
    put(db, 0, 200, 0.0)


@pytest.fixture(scope="module")
def states() -> tuple[dict[str, bytes], dict[int, Any]]:
    """The files of a store, and what each of its local checkpoints must show."""
    files = MemoryFiles()
    db = open_memory(files)
    create_tables(db)
    expected = {}
    for number in (1, 2, 3):
        before = dump(db)
        report = db.checkpoint(changes_during(db, number))
        expected[report["lcp_id"]] = before
        db[NAME].delete(number + 100)
        assert dump(db) != before
    db.close()
    return files.snapshot(), expected


@pytest.fixture
def writer() -> Iterator[Any]:
    """A store with 100 rows in its local checkpoint and more after it."""
    db = open_memory()
    db.create_table(NAME, ACCOUNT, "id")
    put(db, 0, 100, 0.0)
    db.checkpoint()
    put(db, 50, 100, 1_000.0)
    yield db
    db.close()
