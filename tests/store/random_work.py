"""Random transactions on one table, and a dict that says what must be in it."""

from __future__ import annotations

import contextlib
import random
from abc import ABC, abstractmethod
from typing import Any

import tidemark as tm
from tests.store.support import open_memory
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles

ROOM: dict[str, Any] = {
    "data_memory": "32 MiB",
    "redo_log": "16 MiB",
    "undo_log": "16 MiB",
    "transaction_memory": "4 MiB",
    "page_buffer": "64 KiB",
}
Row = tuple[Any, ...]
Rows = dict[int, Row]


class RandomWork(ABC):
    """Random work on one table; `rows` is the committed content, by primary key. Subclasses draw values and changes."""

    # The most changes of a transaction and of a savepoint, and how many of each are undone.
    changes_max, inner_max = 8, 4
    undone, inner_undone = 0.2, 0.5

    def __init__(self, name: str, columns: list[tm.Column], seed: int, partition: Any, **options: Any) -> None:
        self.rng = random.Random(seed)
        self.files = MemoryFiles()
        self.options = {**ROOM, **options}
        self.db: Any = open_memory(self.files, **self.options)
        self.name, self.columns = name, columns
        self.names = [column.name for column in columns]
        self.db.create_table(name, columns, "id", partition or tm.HashPartition(2))
        self.rows: Rows = {}

    @property
    def table(self) -> Any:
        return self.db[self.name]

    # --- drawn by a subclass --------------------------------------------------------------------
    @abstractmethod
    def value(self, name: str) -> Any:
        """A value of a column."""

    @abstractmethod
    def change(self, txn: Any, rows: Rows) -> None:
        """One call of any kind, made on the table and on `rows`."""

    def look(self, txn: Any, rows: Rows) -> None:
        """Compare what a transaction reads with `rows`."""
        found = {row[0]: repr(tuple(row)) for row in txn.scan(self.name)}
        assert found == {key: repr(row) for key, row in rows.items()}

    # --- rows and transactions ------------------------------------------------------------------
    def row(self, key: int) -> Row:
        return (key, *[self.value(name) for name in self.names[1:]])

    def changed(self, row: Row, changes: dict[str, Any]) -> Row:
        return tuple(changes.get(name, value) for name, value in zip(self.names, row, strict=True))

    def in_savepoint(self, txn: Any, rows: Rows) -> None:
        """Changes in a savepoint, which is rolled back or not."""
        inner = dict(rows)
        with contextlib.suppress(ZeroDivisionError), txn.savepoint():
            for _ in range(self.rng.randint(1, self.inner_max)):
                self.change(txn, inner)
            if self.rng.random() < self.inner_undone:
                raise ZeroDivisionError
            rows.clear()
            rows.update(inner)

    def transaction(self, looks: bool = False) -> None:
        """One transaction, committed or rolled back. looks: it reads before it ends."""
        after = dict(self.rows)
        with contextlib.suppress(ZeroDivisionError):
            with self.db.transaction() as txn:
                for _ in range(self.rng.randint(1, self.changes_max)):
                    self.change(txn, after)
                if looks:
                    self.look(txn, after)
                if self.rng.random() < self.undone:
                    raise ZeroDivisionError
            self.rows = after

    # --- life -----------------------------------------------------------------------------------
    def reopen(self, crash: str | None = None) -> None:
        if crash is None:
            self.db.close()
        self.files = self.files.crash(random.Random(self.rng.randrange(1 << 30)), crash or CRASH_POLICIES[0])
        self.db = open_memory(self.files, **self.options)

    def crash(self) -> None:
        self.reopen(self.rng.choice(CRASH_POLICIES))
