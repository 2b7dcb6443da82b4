"""Transactions in threads of their own, driven step by step, on one store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tidemark as tm
from tests.store.support import SMALL
from tidemark.database import Database
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.options import Options
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.pair"
LONG_MS = 120_000  # a wait that nothing ends fails the test by its time limit, not by luck


class Actor:
    """A transaction of a thread of its own, driven step by step."""

    def __init__(self, db: Any) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._db = db
        self.txn: Any = self._pool.submit(db.transaction).result()

    def start(self, call: Callable[[Any], Any]) -> Any:
        """Begin a call that may block; a future."""
        return self._pool.submit(call, self.txn)

    def do(self, call: Callable[[Any], Any]) -> Any:
        return self.start(call).result(timeout=100)

    def read(self, key: int, lock: str | None = None) -> Any:
        return self.do(lambda txn: txn.get(NAME, key, lock=lock))

    def change(self, key: int, value: int) -> None:
        self.do(lambda txn: txn.update(NAME, key, {"value": value}))

    def commit(self) -> None:
        self.do(lambda txn: txn.commit(True))

    def rollback(self) -> None:
        self.do(lambda txn: txn.rollback())

    def close(self) -> None:
        self._pool.shutdown()


class Stage:
    """A store and its actors."""

    def __init__(self, timeout_ms: int) -> None:
        options = Options.from_keywords({**SMALL, "lock_timeout_ms": timeout_ms})
        self.db = Database(MemoryFiles(), options, SystemClock())
        columns = [tm.Column("id", tm.Int64), tm.Column("value", tm.Int64)]
        self.table = self.db.create_table(NAME, columns, primary_key="id")
        self.table.insert_many([(key, 0) for key in range(10)])
        self.actors: list[Actor] = []

    def actor(self) -> Actor:
        self.actors.append(Actor(self.db))
        return self.actors[-1]

    def actors_in_order(self, count: int) -> list[Actor]:
        """Return actors in order of age: the transaction of the first one is the oldest."""
        return [self.actor() for _ in range(count)]

    def until_waiting(self, count: int) -> None:
        """Return when `count` transactions wait for a lock; a busy loop, so that nothing depends on time."""
        while self.db.parts.store.locks.counters()["waiting"] != count:
            pass

    def close(self) -> None:
        for actor in self.actors:
            actor.close()
