"""The built-in program of one thread: every kind of change against a model, each state acknowledged by its digest.

Rows come and go in two tables, alone and in batches, with long texts, savepoints and rollbacks; tables are made and
dropped; local checkpoints run with commits between their fragments; the store is closed and opened.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable
from typing import Any, Literal, NoReturn

from tidemark.engine.base.errors import RedoOverloaded, RowNotFound
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.partition import HashPartition, Partition
from tidemark.engine.types import Float64, Int64, Text, VarChar
from tidemark.recovery.crash_harness.program import Ledger, OpenStore, Work, digest_of, state_of

COLUMNS = [
    Column("id", Int64),
    Column("owner", VarChar(40)),
    Column("balance", Float64),
    Column("note", Text, nullable=True),
]
MAIN = "test.account"
OTHER = "test.other"
KEYS = 30
LCP_EVERY = 9
REOPEN_EVERY = 23
DDL_EVERY = 7
SYNC_EVERY = 5
LAPS_STEPS = 600
ABANDONED_STEPS = 6

Row = tuple[Any, ...]
Model = dict[str, dict[int, Row]]


class History:
    """A run of the program; `model` is the state after the last acknowledged step.

    Local checkpoints run with a commit after every fragment: rows the scan has passed, and rows it has not.
    """

    columns = COLUMNS
    keys = KEYS

    def __init__(
        self,
        open_store: OpenStore,
        seed: int,
        ledger: Ledger,
        lcp_every: int = LCP_EVERY,
        durability: Literal["commit", "epoch"] = "commit",
    ) -> None:
        """lcp_every: steps from one local checkpoint to the next; 0: only when the log is full."""
        self.open_store = functools.partial(open_store, durability=durability)
        self.waits_for_disk = durability == "commit"
        self.committed: list[str] = []  # and not known to be durable yet
        self.lcp_every = lcp_every
        self.rng = random.Random(seed)
        self.ledger = ledger
        self.model: Model = {}
        self.db: Any = None
        self.is_beside = False  # in the middle of a local checkpoint

    def run(self, steps: int) -> None:
        """Open, work, close."""
        self.db = self.open_store()
        self.continue_from_store()
        for step in range(1, steps + 1):
            if step % DDL_EVERY == 0:
                self.ddl(OTHER)
            elif self.lcp_every and step % self.lcp_every == 0:
                self.db.checkpoint(lambda *_: self.commit_beside())
            elif step % REOPEN_EVERY == 0:
                self.db.close()
                self.promised()
                self.db = self.open_store()
            elif not self.waits_for_disk and step % SYNC_EVERY == 0:
                self.db.sync()
                self.promised()
            else:
                self.commit_or_make_room()
        self.db.close()
        self.promised()

    def continue_from_store(self) -> None:
        """Continue with the state that the store shows, which has been verified; a new store gets its table."""
        state = state_of(self.db)
        if MAIN in state:
            self.model = {name: {row[0]: row for row in rows} for name, rows in state.items()}
            self.ledger.under_way.clear()
            self.ledger.acknowledge(digest_of(state))
        else:
            self.ddl(MAIN)

    def ddl(self, name: str) -> None:
        """Make the table, or drop it if it is there."""
        after = dict(self.model)
        is_drop = after.pop(name, None) is not None
        if not is_drop:
            after[name] = {}
        line = self.begin(after)
        if is_drop:
            self.schema_change(lambda: self.db.drop_table(name))
        else:
            self.schema_change(lambda: self.create(name))
        self.done(after, line, True)

    def schema_change(self, change: Callable[[], object]) -> None:
        """A change of the schema; a log that is full is cut by a local checkpoint, and by a second one."""
        try:
            change()
        except RedoOverloaded:
            if self.is_beside:  # no local checkpoint can be made in the middle of one
                raise
            for _ in range(2):
                self.db.checkpoint()
            change()

    def create(self, name: str) -> None:
        """Make a table."""
        self.db.create_table(name, self.columns, primary_key="id", partition=self.partition(name))

    def partition(self, name: str) -> Partition:
        """How the rows of a new table are distributed."""
        return HashPartition(2)

    def begin(self, after: Model) -> str:
        """A change is under way."""
        line = digest_of({name: rows.values() for name, rows in after.items()})
        self.ledger.begin(line)
        return line

    def done(self, after: Model, line: str, is_durable: bool) -> None:
        """It has happened."""
        self.model = after
        self.committed.append(line)
        if is_durable:
            self.promised()

    def promised(self) -> None:
        """All that has happened is durable."""
        for line in self.committed:
            self.ledger.acknowledge(line)
        self.committed.clear()

    def commit_or_make_room(self) -> None:
        """One transaction; a log that is full is cut by a local checkpoint, and by a second one."""
        while True:
            try:
                self.commit()
                return
            except RedoOverloaded:
                self.db.checkpoint()

    def commit_beside(self) -> None:
        """One transaction while a local checkpoint is being made."""
        self.commit()

    def commit(self) -> None:
        """One transaction on one or both tables."""
        after = {name: dict(rows) for name, rows in self.model.items()}
        with self.db.transaction() as txn:
            for name, rows in after.items():
                for _ in range(self.rng.randrange(1, 5)):
                    self.change(txn, name, rows)
            line = self.begin(after)
        self.done(after, line, self.waits_for_disk)

    def row(self, key: int) -> Row:
        """A row with a text of any length, or none."""
        note = None if self.rng.random() < 0.6 else "n" * self.rng.randrange(6_000)
        return (key, "o" * self.rng.randrange(20), self.rng.random(), note)

    def change(self, txn: Any, name: str, rows: dict[int, Row]) -> None:
        """One call of any kind, made on the table and on the model."""
        key = self.rng.randrange(self.keys)
        draw = self.rng.random()
        if draw < 0.3:
            rows[key] = self.row(key)
            txn.write(name, rows[key])
        elif draw < 0.55 and key in rows:
            txn.delete(name, key)
            del rows[key]
        elif draw < 0.7 and key in rows:
            rows[key] = (*rows[key][:2], self.rng.random(), *rows[key][3:])
            txn.update(name, key, {"balance": rows[key][2]})
        elif draw < 0.8:
            fresh = {other: self.row(other) for other in self.rng.sample(range(self.keys), 4)}
            txn.write_many(name, list(fresh.values()))
            rows.update(fresh)
        elif draw < 0.9:
            self.undone(txn, name, key)
        elif key not in rows:
            rows[key] = self.row(key)
            txn.insert(name, rows[key])

    def undone(self, txn: Any, name: str, key: int) -> None:
        """Changes after a savepoint that is rolled back."""
        try:
            with txn.savepoint():
                txn.write(name, self.row(key))
                txn.write(name, self.row(self.keys + key))
                txn.delete(name, 2 * self.keys)
        except RowNotFound:
            return


def program(kind: Callable[..., Any], steps: int, **options: Any) -> Work:
    """A run of a history of this kind."""

    def work(open_store: OpenStore, seed: int, ledger: Ledger) -> None:
        kind(open_store, seed, ledger, **options).run(steps)

    return work


# The program, for crash states: 60 steps.
work = program(History, 60)
# The program with commits that do not wait for the disk: durable with their epoch, promised by `sync`.
epoch_work = program(History, 60, durability="epoch")


class _Single(History):
    """Each commit is a call of one row, which a kernel makes as a whole."""

    def commit(self) -> None:
        """One call of a handle."""
        after = {name: dict(rows) for name, rows in self.model.items()}
        name = self.rng.choice(list(after))
        rows, table = after[name], self.db[name]
        key = self.rng.randrange(self.keys)
        row, draw = self.row(key), self.rng.random()
        if key not in rows or draw < 0.3:
            call = functools.partial(table.write if key in rows or draw < 0.5 else table.insert, row)
            rows[key] = row
        elif draw < 0.7:
            rows[key] = (*rows[key][:2], row[2], *rows[key][3:])
            call = functools.partial(table.update, key, {"balance": row[2]})
        else:
            del rows[key]
            call = functools.partial(table.delete, key)
        line = self.begin(after)
        call()
        self.done(after, line, self.waits_for_disk)


# The program with calls of one row.
single_work = program(_Single, 90, durability="epoch")
durable_single_work = program(_Single, 90)


class _Abandoning(History):
    """Its first local checkpoint is ended by Ctrl-C, so the first complete one is not number 1."""

    def continue_from_store(self) -> None:
        """See `History`."""
        super().continue_from_store()
        self.commit()
        with contextlib.suppress(KeyboardInterrupt):
            self.db.checkpoint(_interrupt)


def _interrupt(*_: int) -> NoReturn:
    raise KeyboardInterrupt


# A program whose first local checkpoint is abandoned; then commits and a few local checkpoints.
abandoned_work = program(_Abandoning, ABANDONED_STEPS, lcp_every=3)
# The program until the log has wrapped several times, full at times.
long_work = program(History, LAPS_STEPS, lcp_every=0)
# The program, for anomaly loops: creation, commits, a local checkpoint, a table made and dropped, reopening.
short_work = program(History, 75)
# A program with many local checkpoints, each of which syncs its directory but a few times.
lcp_work = program(History, 90, lcp_every=2)
