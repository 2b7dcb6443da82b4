"""Stores in memory for tests: fast, deterministic, with power loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tidemark as tm
from tidemark.database import Database
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

SECRET = b"a secret of clients"
SMALL: dict[str, Any] = {
    "data_memory": "16 MiB",
    "redo_log": "2 MiB",
    "undo_log": "2 MiB",
    "page_buffer": "64 KiB",  # 25 frames, the fewest there may be
    "transaction_memory": "1 MiB",
    "background": False,
    "lock_timeout_ms": 0,
}

ACCOUNT = [
    tm.Column("id", tm.Int64),
    tm.Column("owner", tm.VarChar(40)),
    tm.Column("balance", tm.Float64),
    tm.Column("note", tm.Text, nullable=True),
]


def open_memory(
    files: MemoryFiles | None = None, through: int | None = None, clock: ManualClock | None = None, **options: Any
) -> Database:
    """A database on simulated files, driven by hand. clock: its seed gives a new store its identity."""
    parsed = Options.from_keywords({**SMALL, **options})
    return Database(files or MemoryFiles(), parsed, clock or ManualClock(), None, through)


def open_faulty(memory: MemoryFiles, *rules: Rule, **options: Any) -> tuple[Any, Plan]:
    """A store on a disk that fails by these rules as soon as `plan.is_over` is False; it is opened undisturbed."""
    plan = Plan(list(rules))
    plan.is_over = True
    files: Any = FaultFiles(memory, plan)
    return open_memory(files, **options), plan


def rows_of(db: Database, name: str = "test.account") -> dict[Any, Any]:
    """All committed rows by key."""
    return {row[0]: tuple(row) for row in db[name].scan()}


def let_read_ahead_end(store: Any) -> None:
    """Until the next scan no other thread of a store driven by hand changes frames, reservations and open pages."""
    if store.disk is not None:
        for cache in store.disk.caches.values():
            cache.ahead.drain()


@contextmanager
def client_of(db: Any, timeout_ms: int = 60_000) -> Iterator[tm.RemoteDatabase]:
    """A client of a store, over TCP."""
    with tm.serve_calls(db, "127.0.0.1:0", SECRET) as serving:
        with tm.connect([serving.address], SECRET, timeout_ms=timeout_ms) as remote:
            yield remote
