"""The built-in program of one thread over tables with disk columns, by a cache of 25 pages (docs/internals/disk.md).

As `history`, with texts of up to four pages, values that keep their length and values that do not, and transactions
that touch more pages than a slice of a commit pins. Tablespaces of two page sizes are made and get data files during
the run; one of them is dropped and made again. Fragments grow by extents. GCIs end in between, some right after commits
that keep every length, so that the filter of the UNDO log has something to leave out.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from tests.crash.programs.history import LAPS_STEPS, MAIN, History, Row, program
from tidemark.engine.base.errors import RedoOverloaded, StorageFull
from tidemark.engine.schema.column import Column
from tidemark.engine.types import Float64, Int32, Int64, Text, VarChar
from tidemark.recovery.crash_harness.program import SIMULATED, Ledger, OpenStore, whole_state

DISK_COLUMNS = [
    Column("id", Int64),
    Column("owner", VarChar(40)),
    Column("balance", Float64, storage="disk"),
    Column("note", Text, nullable=True, storage="disk"),
    Column("label", VarChar(90), storage="disk"),
    Column("turns", Int32, storage="disk"),
]
NOTE_MAX = 14_000
GCI_EVERY = 2
DATAFILE_EVERY = 26
LCP_EVERY = 6
# Transactions that keep every length, and how many rows of a table they change.
QUIET_SHARE = 0.4
QUIET_ROWS = 5
DROP_SPACE_SHARE = 0.5
ATTEMPTS = 4
LIVES_LCP_EVERY = 5
LIVES_STEPS = 40
# Small pages, few of them in an extent: many pages, files that grow often.
SPACES = {
    "main": {"size": "64 KiB", "page_size": "4 KiB", "extent": "32 KiB"},
    "side": {"size": "64 KiB", "page_size": "8 KiB", "extent": "64 KiB"},
}
LIMIT = "2 MiB"


class DiskHistory(History):
    """A run of the program; values of a row that are not in memory lie on pages of one of two tablespaces."""

    columns = DISK_COLUMNS
    keys = 60
    steps = 0

    def create(self, name: str) -> None:
        """Make a table, and its tablespace if it is not there."""
        space = "main" if name == MAIN else "side"
        if space not in self.db.tablespaces():
            self.db.create_tablespace(space, **SPACES[space], limit=LIMIT)
        self.db.create_table(name, self.columns, primary_key="id", partition=self.partition(name), tablespace=space)

    def ddl(self, name: str) -> None:
        """Make the table, or drop it if it is there, and now and then its tablespace with it."""
        super().ddl(name)
        if name not in self.model and self.rng.random() < DROP_SPACE_SHARE:
            self.schema_change(lambda: self.db.drop_tablespace("side"))

    def commit(self) -> None:
        """One transaction of any kind, or one that a filtered UNDO log may leave out."""
        if self.rng.random() >= QUIET_SHARE:
            super().commit()
            return
        after = {name: dict(rows) for name, rows in self.model.items()}
        with self.db.transaction() as txn:
            for name, rows in after.items():
                for key in self.rng.sample(sorted(rows), min(len(rows), QUIET_ROWS)):
                    self.keep_length(txn, name, rows, key)
            line = self.begin(after)
        self.done(after, line, self.waits_for_disk)
        if self.rng.random() < 0.5:
            self.gci()

    def commit_or_make_room(self) -> None:
        """One transaction; a log that is full is cut by a local checkpoint, and by a second one. GCIs, data files."""
        self.steps += 1
        if self.steps % GCI_EVERY == 0:
            self.gci()
        if self.steps % DATAFILE_EVERY == 0:
            self.schema_change(lambda: self.db.add_datafile("main", "64 KiB"))
        for _ in range(ATTEMPTS - 1):
            try:
                self.commit()
                return
            except (RedoOverloaded, StorageFull):
                self.db.checkpoint()
        self.commit()  # a disk that is full stays full

    def commit_beside(self) -> None:
        """One transaction while a local checkpoint is being made, which alone can free a full UNDO log."""
        with contextlib.suppress(StorageFull):
            self.commit()
        if self.rng.random() < 0.3:
            self.gci()

    def gci(self) -> None:
        """Do the work of timers: the epochs of all commits so far become restorable, and their UNDO
        records needless.
        """
        self.db.parts.clockwork.advance_gci()
        self.promised()

    def row(self, key: int) -> Row:
        """A row with a text of up to four pages, or none."""
        draw = self.rng.random()
        note = None if draw < 0.5 else "n" * self.rng.randrange(300 if draw < 0.7 else NOTE_MAX)
        label = chr(97 + self.rng.randrange(26)) * self.rng.randrange(90)
        return (key, "o" * self.rng.randrange(20), self.rng.random(), note, label, self.rng.randrange(1 << 20))

    def change(self, txn: Any, name: str, rows: dict[int, Row]) -> None:
        """One call of any kind, made on the table and on the model."""
        key = self.rng.randrange(self.keys)
        draw = self.rng.random()
        if draw < 0.3 and key in rows:
            self.update(txn, name, rows, key)
        elif draw < 0.35:
            picked = self.rng.sample(range(self.keys), 12)
            fresh = {other: self.row(other) for other in picked}
            txn.write_many(name, list(fresh.values()))
            rows.update(fresh)
        else:
            super().change(txn, name, rows)

    def keep_length(self, txn: Any, name: str, rows: dict[int, Row], key: int) -> None:
        """Other values, each as long as the one before."""
        row = list(rows[key])
        row[5] = self.rng.randrange(1 << 20)
        row[4] = chr(97 + self.rng.randrange(26)) * len(row[4])
        txn.update(name, key, {"turns": row[5], "label": row[4]})
        rows[key] = tuple(row)

    def update(self, txn: Any, name: str, rows: dict[int, Row], key: int) -> None:
        """Values that keep their length, values that do not, and values in memory alone."""
        row = list(rows[key])
        draw = self.rng.random()
        if draw < 0.4:
            row[5] = self.rng.randrange(1 << 20)
            txn.update(name, key, {"turns": row[5]})
        elif draw < 0.55:
            row[4] = "b" * len(row[4])
            txn.update(name, key, {"label": row[4]})
        elif draw < 0.75:
            row[4] = "g" * self.rng.randrange(90)
            txn.update(name, key, {"label": row[4]})
        elif draw < 0.85:
            row[1] = "m" * self.rng.randrange(20)
            txn.update(name, key, {"owner": row[1]})
        else:
            row[3] = None if row[3] else "t" * self.rng.randrange(NOTE_MAX)
            txn.update(name, key, {"note": row[3], "balance": 0.5})
            row[2] = 0.5
        rows[key] = tuple(row)


# The program, for crash states: 40 steps.
work = program(DiskHistory, 40, lcp_every=LCP_EVERY)
# The program with commits that do not wait for the disk: records filtered too early would be lost.
epoch_work = program(DiskHistory, 40, lcp_every=LCP_EVERY, durability="epoch")


def unfiltered_work(open_store: OpenStore, seed: int, ledger: Ledger) -> None:
    """The program without the filter of the UNDO log."""
    DiskHistory(functools.partial(open_store, undo_filter=False), seed, ledger, LCP_EVERY).run(40)


# The program until the UNDO log has wrapped, full at times.
long_work = program(DiskHistory, LAPS_STEPS, lcp_every=0)
# The program, for anomaly loops: 24 steps, local checkpoints, a table made and dropped, reopening.
short_work = program(DiskHistory, 24)
# The program, for a look at every point in seconds: 8 steps, two of them local checkpoints.
tiny_work = program(DiskHistory, 8, lcp_every=4)


def lives_work(open_store: OpenStore, seed: int, ledger: Ledger) -> None:
    """The program for power loops: it continues with the store that the previous loss has left. Commits do not wait for
    the disk: the disk has pages of lost commits, where rows of the next life are to lie.
    """
    open_small = functools.partial(open_store, **SIMULATED)
    DiskHistory(open_small, seed, ledger, LIVES_LCP_EVERY, "epoch").run(LIVES_STEPS)


def lives_verify(db: Any, ledger: Ledger) -> list[str]:
    """`whole_state`, and the result of `check`: a piece of a disk row that no row leads to shows in no scan."""
    found: list[str] = whole_state(db, ledger) or db.check()["problems"]
    return found
