"""The built-in program whose commits share a sync: batches of many groups, across files and laps of the log.

As `history` (or `disk_history`), with batches made in two ways. Either each commit ends its group, as in a node group
whose commits do not wait for the disk, and one sync writes many groups; or several threads commit while one of them
waits for the disk, and share the next sync. Rows are long, so that batches span two files and the log wraps. Threads
commit in a fixed order, so that a seed gives the same work.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tests.crash.programs.disk_history import DiskHistory
from tests.crash.programs.history import MAIN, OTHER, History, Model, Row, program
from tidemark.engine.base.errors import Error, RedoOverloaded
from tidemark.recovery.crash_harness.program import Ledger, OpenStore

if TYPE_CHECKING:
    from tidemark.engine.log.group import Group

NOTE_BYTES = 7_500
BATCH_GROUPS = (2, 11)
THREADS = (3, 5)
TOGETHER_EVERY = 4
CLOSE_EVERY = 13
GCI_SHARE = 0.15
DDL_EVERY = 7
LCP_EVERY = 9
STEPS = 40
SHORT_STEPS = 5


class Turns:
    """The partner of the log (`engine/log/partner.py`): no other node has the groups, but each commit ends its own.

    While `is_held` is set, the thread that has written a batch stays at its place until it is cleared.
    """

    def __init__(self) -> None:
        self.is_held = False
        self.has_written = threading.Event()
        self.may_go_on = threading.Event()
        self.has_closed = threading.Event()

    def send(self, group: Group) -> None:
        """No other node wants the group."""

    def share(self, sequence: int) -> None:
        """No caller lacks it."""

    def wait(self, sequence: int) -> None:
        """The batch is on the disk, and not published yet."""
        if self.is_held:
            self.has_written.set()
            self.may_go_on.wait()

    def epoch_closed(self, epoch: int, sequence: int) -> None:
        """A thread has committed, and will wait for the epoch."""
        self.has_closed.set()


class BatchHistory(History):
    """A run of the program; commits are promised when a sync has returned."""

    def __init__(self, open_store: OpenStore, seed: int, ledger: Ledger) -> None:
        super().__init__(open_store, seed, ledger, LCP_EVERY, "epoch")
        self._open = self.open_store
        self.open_store = self._opened  # type: ignore[assignment]
        self.turns = Turns()
        self.failures: list[Error | AssertionError] = []

    def _opened(self) -> Any:
        db = self._open()
        db.parts.store.log.partner = self.turns
        return db

    def run(self, steps: int) -> None:
        """Open, work, close."""
        self.db = self.open_store()
        self.ddl(MAIN)
        for step in range(1, steps + 1):
            if step % CLOSE_EVERY == 0:
                self.db.close()
                self.promised()
                self.db = self.open_store()
            elif step % DDL_EVERY == 0:
                self.ddl(OTHER)
            elif step % LCP_EVERY == 0:
                self.db.checkpoint(lambda *_: self.commit_beside())
            elif step % TOGETHER_EVERY == 0:
                self.together()
            else:
                for _ in range(self.rng.randrange(*BATCH_GROUPS)):
                    self.commit_or_make_room()
                self.db.sync()
                self.promised()
        self.db.close()
        self.promised()

    def row(self, key: int) -> Row:
        """A row, with a long note as a rule."""
        row = super().row(key)
        note = None if self.rng.random() < 0.3 else "n" * self.rng.randrange(NOTE_BYTES)
        return (*row[:3], note, *row[4:])

    def together(self) -> None:
        """Several threads commit, each in an epoch of its own; all but the first are written by one sync."""
        self.make_room()
        turns = self.turns
        turns.has_written.clear()
        turns.may_go_on.clear()
        turns.is_held = True
        model = self.model
        threads = []
        try:
            for number in range(self.rng.randrange(*THREADS)):
                turns.has_closed.clear()
                after = {name: dict(rows) for name, rows in model.items()}
                threads.append(threading.Thread(target=self._in_thread, args=(after,)))
                threads[-1].start()
                (turns.has_written if number == 0 else turns.has_closed).wait()
                if self.failures:
                    break
                model = after
        finally:
            turns.is_held = False
            turns.may_go_on.set()
            for thread in threads:
                thread.join()
        if self.failures:
            raise self.failures[0]
        self.model = model
        self.promised()

    def _in_thread(self, after: Model) -> None:
        """One transaction, durable on return: a snapshot waits for the epoch that it closes."""
        try:
            with self.db.transaction() as txn:
                for name, rows in after.items():
                    self.change(txn, name, rows)
                line = self.begin(after)
            self.committed.append(line)
            self.db.snapshot().close()
        except (Error, AssertionError) as error:
            self.failures.append(error)
        finally:
            self.turns.has_written.set()
            self.turns.has_closed.set()

    def make_room(self) -> None:
        """Make local checkpoints until the log has space for the commits of threads."""
        for _ in range(2):
            log = self.db.status()["log"]
            if (log["head_lsn"] - log["tail_lsn"]) * 2 > log["capacity_bytes"]:
                self.db.checkpoint()

    def commit_beside(self) -> None:
        """One transaction while a local checkpoint is being made; none into a log that is full."""
        try:
            super().commit_beside()
        except RedoOverloaded:
            return


class DiskBatchHistory(BatchHistory, DiskHistory):
    """The same over tables with disk columns."""

    def row(self, key: int) -> Row:
        """A row with a text of up to four pages, or none."""
        return DiskHistory.row(self, key)

    def make_room(self) -> None:
        """Make local checkpoints until both logs have space for the commits of threads."""
        super().make_room()
        for _ in range(2):
            undo = self.db.status()["disk"]["undo"]
            if undo["free_words"] * 8 * 4 < undo["capacity_bytes"] * 3:
                self.db.checkpoint()

    def gci(self) -> None:
        """A GCI ends now and then: each makes durable what waits for a sync."""
        if self.rng.random() < GCI_SHARE:
            super().gci()


# The program, for crash states.
work = program(BatchHistory, STEPS)
# The program, for what must be seen soon: batches of one thread and of several, and a local checkpoint.
short_work = program(BatchHistory, SHORT_STEPS)
# The program over disk tables, for crash states.
disk_work = program(DiskBatchHistory, STEPS // 2)
