"""A store with one table on disk and 25 frames, and a dict that says what must be in it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import tidemark as tm
from tests.store.history import LEAST
from tests.store.support import open_memory
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles

NAME, OTHER = "test.t", "test.other"
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("n", tm.Int32),
    tm.Column("note", tm.VarChar(60), nullable=True),
    tm.Column("cold", tm.VarBinary(3_000), storage="disk"),
]
DISK: dict[str, Any] = {"redo_log": "8 MiB", "undo_log": "8 MiB", "transaction_memory": "2 MiB", **LEAST}
PAGE_BYTES = 4_096


class DiskStore:
    """The store and what must be in its table: `rows` by key, kept by the calls below."""

    def __init__(self, files: Any = None, size: str = "1 MiB", autoextend: bool = True, **options: Any) -> None:
        self.files = MemoryFiles() if files is None else files
        self.options = {**DISK, **options}
        self.db: Any = open_memory(self.files, **self.options)
        self.db.create_tablespace("main", size, page_size="4 KiB", extent="64 KiB", autoextend=autoextend)
        self.rows: dict[int, tuple[Any, ...]] = {}
        self.create()

    def create(self) -> None:
        self.db.create_table(NAME, COLUMNS, "id", tm.HashPartition(2))
        self.rows = {}

    def recreate(self) -> None:
        self.db.drop_table(NAME)
        self.create()

    @property
    def table(self) -> Any:
        return self.db[NAME]

    def load(self, keys: Iterable[int], n: int = 0, size: int = 500) -> None:
        """Write rows of about `size` bytes."""
        rows = [
            (key, n, f"note {key}" if key % 3 else None, (bytes([n % 256]) * (size + key % 7))[:3_000]) for key in keys
        ]
        self.table.write_many(rows)
        self.rows.update({row[0]: row for row in rows})

    def delete(self, keys: Iterable[int]) -> None:
        keys = list(keys)
        self.table.delete_many(keys)
        for key in keys:
            del self.rows[key]

    def found(self) -> dict[int, tuple[Any, ...]]:
        return {row[0]: tuple(row) for row in self.table.scan()}

    def evict(self) -> None:
        """Read another table of twice as many pages as there are frames."""
        if OTHER not in self.db:
            columns = [tm.Column("id", tm.Int64), tm.Column("c", tm.VarBinary(2_500), storage="disk")]
            self.db.create_table(OTHER, columns, "id")
            self.db[OTHER].insert_many([(key, b"o" * 2_500) for key in range(50)])
        assert sum(1 for _ in self.db[OTHER].scan()) == 50

    def flush(self) -> None:
        """All dirty pages to disk, as a local checkpoint does before it is complete."""
        self.db.parts.store.disk.flush()

    def verify(self, said: str = "") -> None:
        assert self.found() == self.rows, said
        assert self.db.check()["problems"] == [], said

    def crash(self, rng: random.Random | None = None, **options: Any) -> None:
        """Power loss, or without `rng` the end of the process; afterwards the rows must be what they were."""
        self.files = self.files.kill() if rng is None else self.files.crash(rng, rng.choice(CRASH_POLICIES))
        self.db.close()  # on the same disk: memory and threads are gone, lost data stays lost
        self.db = open_memory(self.files, **{**self.options, **options})
        self.verify("after a crash")

    def lcp_with(self, *works: Any) -> None:
        """A local checkpoint during which the works are done, one at each report of progress."""
        left = list(works)
        self.db.checkpoint(lambda done, total, unit: left.pop(0)() if left else None)
        for work in left:
            work()
