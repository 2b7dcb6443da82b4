"""The built-in program with transactions larger than memory: they commit by reference to a spool file.

As `history` (or `disk_history`), and about every third transaction has long rows. They are written again and again,
deleted, taken back, and rolled back to savepoints, until the records of the transaction are several times
`transaction_memory`. Some of these transactions are rolled back. Their files stay through local checkpoints and
restarts as long as the log refers to them.
"""

from __future__ import annotations

import functools
from typing import Any

from tests.crash.programs.disk_history import DiskHistory
from tests.crash.programs.history import History, Model, Row, program
from tidemark.engine.base.errors import RowNotFound
from tidemark.recovery.crash_harness.program import OpenStore

MEMORY = "64 KiB"
LIMIT = "1 MiB"
# Long notes on pages: the changes of a few large transactions between two local checkpoints must fit in it.
UNDO_LOG = "4 MiB"
NOTE_BYTES = 5_000
CHANGES = (20, 45)  # calls of a large transaction
UNDONE_ROWS = 20


class SpoolHistory(History):
    """A run of the program; `spooled` counts transactions that had a file: committed, rolled back."""

    def __init__(self, open_store: OpenStore, *arguments: Any, **options: Any) -> None:
        opened = functools.partial(open_store, transaction_memory=MEMORY, transaction_limit=LIMIT)
        super().__init__(opened, *arguments, **options)
        self.is_large = False
        self.spooled = [0, 0]

    def row(self, key: int) -> Row:
        """A row, with a long note in large transactions."""
        row = super().row(key)
        if not self.is_large:
            return row
        return (*row[:3], chr(97 + self.rng.randrange(26)) * self.rng.randrange(NOTE_BYTES), *row[4:])

    def commit(self) -> None:
        """One transaction, a large one at times."""
        self.is_large = self.rng.random() < 0.35
        try:
            if self.is_large:
                self.commit_large()
            else:
                super().commit()
        finally:
            self.is_large = False

    def commit_large(self) -> None:
        """One transaction that spools, as a rule; committed or rolled back."""
        after: Model = {name: dict(rows) for name, rows in self.model.items()}
        is_kept = self.rng.random() < 0.8
        txn = self.db.transaction()
        line = ""
        try:
            for name, rows in after.items():
                for _ in range(self.rng.randrange(*CHANGES)):
                    self.change(txn, name, rows)
            self.spooled[0 if is_kept else 1] += txn.spool is not None
            if is_kept:
                line = self.begin(after)
                txn.commit(self.waits_for_disk)
        finally:
            txn.rollback()
        if is_kept:
            self.done(after, line, self.waits_for_disk)

    def undone(self, txn: Any, name: str, key: int) -> None:
        """Changes after a savepoint that is rolled back, large enough that some of their blocks are in the file."""
        if not self.is_large:
            super().undone(txn, name, key)
            return
        try:
            with txn.savepoint():
                for _ in range(UNDONE_ROWS):
                    txn.write(name, self.row(self.rng.randrange(2 * self.keys)))
                txn.delete(name, 3 * self.keys)
        except RowNotFound:
            return


class DiskSpoolHistory(SpoolHistory, DiskHistory):
    """The same over disk columns."""

    def __init__(self, open_store: OpenStore, *arguments: Any, **options: Any) -> None:
        super().__init__(functools.partial(open_store, undo_log=UNDO_LOG), *arguments, **options)


# The program, for crash states: 40 steps.
work = program(SpoolHistory, 40)
# The program with commits that do not wait for the disk: durable with their epoch, promised by `sync`.
epoch_work = program(SpoolHistory, 40, durability="epoch")
# The program over disk columns, for crash states: 30 steps.
disk_work = program(DiskSpoolHistory, 30)
# The program, for a look at every point in seconds: 12 steps, two of them local checkpoints.
tiny_work = program(SpoolHistory, 12, lcp_every=5)
# The program over disk columns, for a look at every point in seconds: 12 steps, two of them local checkpoints.
tiny_disk_work = program(DiskSpoolHistory, 12, lcp_every=5)
