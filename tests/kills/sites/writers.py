"""Writers of a site that is killed meanwhile: tables, first rows, threads that transfer money.

A transaction moves money between two accounts, inserts its row of the journal under (site, writer, sequence), and
changes, inserts or deletes a row of a table of few keys (no deletes where the greatest stamp wins). Values of a unique
index change hands between the writer's own rows of another table. The sequence starts
with the number of the life, so that a row that a conflict removed is never inserted again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, Final

from tests.kills.sites.modes import ACCOUNT, JOURNAL, MARK, SCRATCH, SEAT, SiteRole
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import DuplicateKey, Error, IndexExists, Retryable, TableExists
from tidemark.engine.schema.column import Column
from tidemark.engine.types import Enum, Int32, Int64, UInt32, UInt64
from tidemark.replication.settings.system_tables import NDB_REPLICATION

ACCOUNTS: Final = 60
START_BALANCE: Final = 1_000
SCRATCH_ROWS: Final = 40
SEATS: Final = 4  # rows of each writer, and values of the unique index for them
# With more, a refused transaction takes all later ones of its writer with it, which need its rows.
SEATS_SHARE: Final = 0.2
RETRIES: Final = 100_000
LIFE_BITS: Final = 24
STAMP_BITS: Final = 2  # the low bits hold the site, so that no two stamps are equal
RETRY_SECONDS: Final = 0.02

_KEYS: Final = {
    ACCOUNT: ("id",),
    JOURNAL: ("site", "writer", "sequence"),
    SCRATCH: ("id",),
    SEAT: ("site", "writer", "number"),
    MARK: ("site", "number"),
}
_COLUMNS: Final = {
    ACCOUNT: [Column("id", Int32), Column("stamp", UInt64), Column("balance", Int64), Column("changes", Int64)],
    JOURNAL: [
        Column("site", Int32),
        Column("writer", Int32),
        Column("sequence", Int64),
        Column("source", Int32),
        Column("target", Int32),
        Column("amount", Int64),
    ],
    SCRATCH: [Column("id", Int32), Column("value", Int64)],
    SEAT: [
        Column("site", Int32),
        Column("writer", Int32),
        Column("number", Int32),
        Column("place", Int64, nullable=True),
    ],
    MARK: [Column("site", Int32), Column("number", Int64)],
}
_KINDS: Final = ("WRITE_ROW", "UPDATE_ROW", "DELETE_ROW", "REFRESH_ROW", "READ_ROW")
_CAUSES: Final = ("ROW_DOES_NOT_EXIST", "ROW_ALREADY_EXISTS", "DATA_IN_CONFLICT", "TRANS_IN_CONFLICT")
_EXCEPTIONS: Final = [
    Column("NDB$server_id", UInt32),
    Column("NDB$master_server_id", UInt32),
    Column("NDB$master_epoch", UInt64),
    Column("NDB$count", UInt32),
    Column("NDB$OP_TYPE", Enum(*_KINDS)),
    Column("NDB$CFT_CAUSE", Enum(*_CAUSES)),
    Column("NDB$ORIG_TRANSID", UInt64),
]
_INDEX_ATTEMPTS: Final = 60
_EXCEPTIONS_KEY: Final = tuple(each.name for each in _EXCEPTIONS[:4])


def _make(db: Any, name: str, columns: list[Column], key: tuple[str, ...]) -> None:
    if name in db:
        return
    try:
        db.create_table(name, columns, primary_key=key)
    except TableExists:
        pass  # the channel has just created it


def prepare(db: Any, role: SiteRole) -> None:
    """Make tables and first rows, whatever an earlier life completed."""
    if not role.makes_tables:
        return
    if role.functions and NDB_REPLICATION not in db:
        db.create_replication_table()
    for name, function in role.functions.items():
        database, _, plain = name.partition(".")
        db[NDB_REPLICATION].write((database.encode(), plain.encode(), role.server_id, 7, function.encode()))
    for name, columns in _COLUMNS.items():
        if name in role.functions:
            own = [each for each in columns if each.name in _KEYS[name]]
            _make(db, f"{name}$EX", [*_EXCEPTIONS, *own], _EXCEPTIONS_KEY)
        _make(db, name, columns, _KEYS[name])
    for left in reversed(range(_INDEX_ATTEMPTS)):
        try:
            db.create_index(SEAT, "by_place", ["place"], unique=True)
        except IndexExists:
            pass  # an earlier life or the channel has created it
        except Retryable:
            if not left:
                raise
            continue  # on a busy machine a transaction of the store's own threads may take its time
        break
    if role.fills_tables and not len(db[ACCOUNT]):
        db[ACCOUNT].insert_many([(each, 0, START_BALANCE, 0) for each in range(ACCOUNTS)])


class Writer(threading.Thread):
    """One thread of transfers; `stop` ends it after a commit. Every line it reports names what is durable."""

    def __init__(self, db: Any, site: int, number: int, life: int, is_by_stamp: bool, report: Callable[[str], None]):
        super().__init__(name=f"writer-{site}-{number}", daemon=True)
        self.db = db
        self.site = site
        self.number = number
        self.sequence = life << LIFE_BITS
        self.is_by_stamp = is_by_stamp
        self.report = report
        self.rng = random.Random(f"{site} {number} {life}")
        self.clock = SystemClock()
        self.stopped = threading.Event()
        self.failed: Error | None = None

    def run(self) -> None:
        try:
            while not self.stopped.is_set() and not self._is_filled():
                self.stopped.wait(RETRY_SECONDS)
            while not self.stopped.is_set():
                self.step()
        except Error as error:
            self.failed = error

    def stop(self) -> None:
        """End after the commit in flight."""
        self.stopped.set()
        self.join()

    def _is_filled(self) -> bool:
        return all(name in self.db for name in _COLUMNS) and len(self.db[ACCOUNT]) == ACCOUNTS

    def step(self) -> None:
        """Run one transaction, and report it when it is durable."""
        source, target = self.rng.sample(range(ACCOUNTS), 2)
        amount = self.rng.randrange(1, 50)
        other, draw = self.rng.randrange(SCRATCH_ROWS), self.rng.random()
        seats = self.rng.sample(range(SEATS), 2) if self.rng.random() < SEATS_SHARE else []
        stamps: dict[int, int] = {}

        def work(txn: Any) -> None:
            stamps.clear()
            self._transfer(txn, {source: -amount, target: amount}, stamps)
            if not self.is_by_stamp:
                self._scratch(txn, other, draw)
            if seats:
                self._change_seats(txn, seats)
            txn.insert(JOURNAL, (self.site, self.number, self.sequence, source, target, amount))

        while True:
            try:
                self.db.run(work, RETRIES)
                break
            except DuplicateKey:
                continue  # the applier inserted the scratch row meanwhile
        shown = " ".join(f"{account}:{stamp}" for account, stamp in stamps.items())
        self.report(f"{self.site} {self.number} {self.sequence} {shown}")
        self.sequence += 1

    def _transfer(self, txn: Any, moves: dict[int, int], stamps: dict[int, int]) -> None:
        """Change accounts in the order of their numbers, so that no two writers deadlock."""
        for account in sorted(moves):
            row = txn.get(ACCOUNT, account, lock="exclusive")
            time_us = max(self.clock.wall_us(), (row.stamp >> STAMP_BITS) + 1)
            stamps[account] = time_us << STAMP_BITS | self.site
            changes = {"stamp": stamps[account], "balance": row.balance + moves[account], "changes": row.changes + 1}
            txn.update(ACCOUNT, account, changes)

    def _change_seats(self, txn: Any, seats: list[int]) -> None:
        """Let two of the writer's rows exchange their values of the unique index, or move the value of one to the other
        one; a missing row takes a value that no row has.
        """
        keys = [(self.site, self.number, each) for each in range(SEATS)]
        rows = [txn.get(SEAT, key, lock="exclusive") for key in keys]
        first, second = seats
        one, other = rows[first], rows[second]
        if one is None:
            taken = {row.place for row in rows if row is not None}
            places = [(self.site << 8 | self.number) << 8 | each for each in range(SEATS)]
            free = next((place for place in places if place not in taken), None)
            txn.insert(SEAT, (*keys[first], free))
        elif other is None:
            txn.delete(SEAT, keys[first])
            txn.insert(SEAT, (*keys[second], one.place))
        else:
            txn.update(SEAT, keys[first], {"place": None})
            txn.update(SEAT, keys[second], {"place": one.place})
            txn.update(SEAT, keys[first], {"place": other.place})

    def _scratch(self, txn: Any, key: int, draw: float) -> None:
        row = txn.get(SCRATCH, key, lock="exclusive")
        if row is None:
            txn.insert(SCRATCH, (key, self.sequence))
        elif draw < 0.4:
            txn.delete(SCRATCH, key)
        else:
            txn.update(SCRATCH, key, {"value": row.value + 1})


def mark(db: Any, site: int, number: int) -> None:
    """Write a row; when another site has it, that site also has everything before it."""
    while True:
        try:
            db[MARK].write((site, number))
            return
        except Retryable:
            continue


def has_marks(db: Any, marks: list[tuple[int, int]]) -> bool:
    """Whether the store has all these marks."""
    return MARK in db and all(db[MARK].get(each) is not None for each in marks)
