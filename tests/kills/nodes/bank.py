"""Transfers between accounts through a node group, and checks that everything acknowledged is there.

A teller moves money between two accounts and inserts a journal row (teller, sequence), in one transaction. So sums
stay, and for each (teller, sequence) it is known whether the row must exist, must not, or may. The clerk rewrites all
rows of the statement, in one transaction that is too large for memory: all rows always have one number.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

import tidemark as tm
from tidemark.engine.base.clock import SystemClock
from tidemark.recovery.crash_harness.program import Violation

CLOCK = SystemClock()
ACCOUNTS = 30
START = 1_000
ACKNOWLEDGED, UNKNOWN = "acknowledged", "unknown"
PAUSE_SECONDS = 0.02
YIELD_SECONDS = 0.001  # lets a thread that waits for the turn get it
STATEMENT_ROWS = 3_000
STATEMENT_SECONDS = 4.0
KEPT = 50  # newest journal rows of a teller, kept for readers when the others are cut

ACCOUNT, JOURNAL, STATEMENT, MARK = "bank.account", "bank.journal", "bank.statement", "bank.mark"
NOTES, NOTES_ROWS = "bank.notes", 100


def make_tables(db: Any) -> None:
    """Make accounts with unique numbers, a journal by source with amounts on disk, the statement, the notes, a mark."""
    db.create_tablespace("far", "8 MiB")
    columns = [tm.Column("id", tm.Int32), tm.Column("balance", tm.Int64), tm.Column("number", tm.Int64)]
    db.create_table(ACCOUNT, columns, "id")
    db.create_index(ACCOUNT, "by_number", "number", unique=True)
    db.create_table(
        JOURNAL,
        [
            tm.Column("teller", tm.Int32),
            tm.Column("sequence", tm.Int64),
            tm.Column("source", tm.Int32),
            tm.Column("target", tm.Int32),
            tm.Column("amount", tm.Int64, storage="disk"),
        ],
        ("teller", "sequence"),
        tablespace="far",
    )
    db.create_index(JOURNAL, "by_source", "source")
    statement = [tm.Column("id", tm.Int32), tm.Column("batch", tm.Int64), tm.Column("mark", tm.Int64)]
    db.create_table(STATEMENT, [*statement, tm.Column("text", tm.Text)], "id")
    db.create_index(STATEMENT, "by_mark", "mark", unique=True)
    db.create_table(NOTES, [tm.Column("id", tm.Int32), tm.Column("n", tm.Int64)], "id")
    db.create_table(MARK, [tm.Column("id", tm.Int32), tm.Column("n", tm.Int64)], "id")
    numbers = [(number, START, 10_000 - number) for number in range(ACCOUNTS)]
    db.run(lambda txn: txn.insert_many(ACCOUNT, numbers), 1_000)
    db.run(lambda txn: txn.insert(MARK, (0, 0)), 1_000)


def end(thread: Client | Reader) -> None:
    """End the thread's loop, and a call of it under way: a thread left at its socket would fail a later test."""
    thread.is_over.set()
    if isinstance(thread, Client):
        thread.wanted.set()
    if thread.db is not None:
        thread.db.close()


class Client(threading.Thread, ABC):
    """Thread that writes. `outcomes`: by sequence, what is known of a transaction; one without entry is rolled back."""

    pause_seconds = YIELD_SECONDS

    def __init__(self, connect: Callable[[], Any], name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._connect = connect
        self.rng = random.Random(seed)
        self.sequence = 0
        self.acknowledged = 0  # newest sequence
        self.outcomes: dict[int, str] = {}
        self.total: Counter[str] = Counter()  # of outcomes, with those removed after a check
        self.turn = threading.Lock()  # held during a transaction; a thread that takes it sees none in flight
        self.is_over = threading.Event()
        self.db: Any = None  # this thread's connection
        self.wanted = threading.Event()  # set: start the next transaction at once
        self.failure: BaseException | None = None
        self.longest_s = 0.0
        self.errors: Counter[str] = Counter()

    def run(self) -> None:
        """Run one transaction after the other until the end."""
        try:
            with self._connect() as self.db:
                while not self.is_over.is_set():
                    with self.turn:
                        self._one(self.db)
                    self.wanted.wait(self.pause_seconds)
                    self.wanted.clear()
        except (tm.Error, Violation) as error:
            self.failure = error

    def _one(self, db: Any) -> None:
        self.sequence += 1
        began = CLOCK.monotonic()
        try:
            self.work(db)
        except tm.OutcomeUnknown as error:
            self._note(UNKNOWN)
            self.errors[type(error).__name__] += 1
        except (tm.Retryable, tm.PeerError) as error:
            self.errors[type(error).__name__] += 1
            CLOCK.sleep(PAUSE_SECONDS)
        else:
            self._note(ACKNOWLEDGED)
            self.acknowledged = self.sequence
        self.longest_s = max(self.longest_s, CLOCK.monotonic() - began)

    def _note(self, outcome: str) -> None:
        self.outcomes[self.sequence] = outcome
        self.total[outcome] += 1

    @abstractmethod
    def work(self, db: Any) -> None:
        """Run one transaction."""


class Teller(Client):
    """Client that transfers money."""

    def __init__(self, connect: Callable[[], Any], number: int, seed: int) -> None:
        super().__init__(connect, f"teller-{number}", seed)
        self.number = number
        self.judged = 0  # journal rows up to this sequence may have been cut
        self.shown = 0  # newest sequence that a reader was shown, acknowledged or not

    def work(self, db: Any) -> None:
        """See `Client`."""
        source, target = self.rng.sample(range(ACCOUNTS), 2)
        amount = self.rng.randrange(1, 50)
        with db.transaction() as txn:
            for account, change in sorted([(source, -amount), (target, amount)]):
                balance = txn.get(ACCOUNT, account, lock="exclusive").balance
                txn.update(ACCOUNT, account, {"balance": balance + change})
            txn.insert(JOURNAL, (self.number, self.sequence, source, target, amount))


class Clerk(Client):
    """Client with large transactions. Every second one replaces all rows, so that slots are reused, and removes the
    notes of the one before.
    """

    pause_seconds = STATEMENT_SECONDS

    def work(self, db: Any) -> None:
        """See `Client`."""
        batch = self.sequence
        text = self.rng.choice("abcdefgh") * self.rng.randrange(100, 130)
        rows = [(number, batch, batch * STATEMENT_ROWS + number, text) for number in range(STATEMENT_ROWS)]
        with db.transaction() as txn:
            if batch % 2:
                txn.delete_where(STATEMENT, tm.col("id") >= 0)
                txn.insert_many(STATEMENT, rows)
                txn.delete_where(NOTES, tm.col("id") >= 0)
            else:
                txn.upsert_many(STATEMENT, rows)
                txn.upsert_many(NOTES, [(number, batch) for number in range(NOTES_ROWS)])


class Changer(Client):
    """Client that changes the schema of a table of its own. After an interrupted change it looks whether it was
    done.
    """

    pause_seconds = 1.5
    table = "bank.passing"

    def work(self, db: Any) -> None:
        """See `Client`."""
        if self.table not in db:
            db.create_table(self.table, [tm.Column("id", tm.Int32), tm.Column("n", tm.Int64)], "id")
            return
        table = db[self.table]
        names = [column.name for column in table.definition.columns]
        indexes = [index.name for index in table.definition.indexes]
        choice = self.rng.random()
        if choice < 0.2:
            db.drop_table(self.table)
        elif choice < 0.4 and len(names) < 6:
            column = tm.Column(f"c{self.sequence}", tm.Int64, nullable=True)
            db.add_column(self.table, column)
        elif choice < 0.5 and len(names) > 2 and not indexes:
            db.drop_column(self.table, names[-1])
        elif choice < 0.6 and not indexes:
            db.create_index(self.table, "by_n", "n", unique=self.rng.random() < 0.5)
        elif choice < 0.7 and indexes:
            db.drop_index(self.table, indexes[0])
        else:
            rows = [{"id": number, "n": number + self.sequence * 1_000} for number in range(200)]
            with db.transaction() as txn:
                txn.delete_where(self.table, tm.col("id") >= 0)
                txn.insert_many(self.table, rows)

    def _one(self, db: Any) -> None:
        try:
            super()._one(db)
        except (tm.StoreFailed, tm.StoreClosed, tm.SchemaInvalid, tm.Rejected) as error:
            # A change is made once: if its primary dies it is done or not, and the next look shows which.
            self.errors[type(error).__name__] += 1


class Reader(threading.Thread):
    """Client that reads at one node: everything acknowledged before a read must show (N4), and everything that another
    reader was shown before (N7).
    """

    def __init__(self, connect: Callable[[], Any], tellers: list[Teller], seed: int) -> None:
        super().__init__(name="reader", daemon=True)
        self._connect = connect
        self._tellers = tellers
        self._rng = random.Random(seed)
        self.is_over = threading.Event()
        self.db: Any = None  # this thread's connection
        self.failure: BaseException | None = None
        self.reads = 0
        self.refused = 0

    def run(self) -> None:
        """Read until the end; connect again after an error."""
        while not self.is_over.is_set():
            try:
                with self._connect() as self.db:
                    while not self.is_over.is_set():
                        self.read(self.db)
            except tm.Error:
                self.refused += 1
                CLOCK.sleep(PAUSE_SECONDS)
            except Violation as error:
                self.failure = error
                return

    def read(self, db: Any) -> None:
        """Read one row that must exist, then the row of a transaction under way. Raises: Violation."""
        teller = self._rng.choice(self._tellers)
        sequence = max(teller.acknowledged, teller.shown)
        if sequence == 0:
            CLOCK.sleep(PAUSE_SECONDS)
            return
        if db[JOURNAL].get((teller.number, sequence)) is None and sequence > teller.judged:
            raise Violation(f"teller {teller.number}, {sequence} was acknowledged or shown, and a later read misses it")
        newest = teller.sequence
        if db[JOURNAL].get((teller.number, newest)) is not None:
            teller.shown = max(teller.shown, newest)
        self.reads += 1


Row = tuple[Any, ...]


class Ledger:
    """Balances according to the journal, whose checked rows are cut."""

    def __init__(self, tellers: list[Teller], clerk: Clerk) -> None:
        self._tellers = tellers
        self._clerk = clerk
        self._base = dict.fromkeys(range(ACCOUNTS), START)

    def judge(self, rows: dict[str, list[Row]]) -> None:
        """Check the rows of one node, which come without places. Raises: Violation."""
        balances = {row[0]: row[1] for row in rows[ACCOUNT]}
        expected = dict(self._base)
        there: dict[int, set[int]] = {teller.number: set() for teller in self._tellers}
        for teller, sequence, source, target, amount in rows[JOURNAL]:
            there[teller].add(sequence)
            expected[source] -= amount
            expected[target] += amount
        if sum(balances.values()) != ACCOUNTS * START:
            raise Violation(f"the sum is {sum(balances.values())}, not {ACCOUNTS * START}")
        for each in self._tellers:
            acknowledged = {place for place, outcome in each.outcomes.items() if outcome == ACKNOWLEDGED}
            if lost := acknowledged - there[each.number]:
                raise Violation(
                    f"teller {each.number}: {len(lost)} acknowledged transfers are lost: {sorted(lost)[:5]}"
                )
            if each.shown > each.judged and each.shown not in there[each.number]:
                raise Violation(f"teller {each.number}: transfer {each.shown} was shown to a reader, and is lost")
            if made := there[each.number] - each.outcomes.keys():
                raise Violation(f"teller {each.number}: transfers that were refused are there: {sorted(made)[:5]}")
        if balances != expected:
            raise Violation("balances are not what the journal says")
        self._judge_statement(rows[STATEMENT], rows[NOTES])

    def _judge_statement(self, rows: list[Row], notes: list[Row]) -> None:
        clerk = self._clerk
        found = {row[1] for row in rows}
        if len(found) > 1 or len(rows) not in (0, STATEMENT_ROWS):
            raise Violation(f"the statement has {len(rows)} rows of {sorted(found)}: half a transaction")
        batch = found.pop() if found else 0
        if batch < clerk.acknowledged or (batch and batch not in clerk.outcomes):
            raise Violation(f"the statement is number {batch}; {clerk.acknowledged} was acknowledged last")
        if len(notes) != (0 if batch % 2 or not batch else NOTES_ROWS) or any(note[1] != batch for note in notes):
            raise Violation(f"{len(notes)} notes stand beside statement {batch}")

    def cut(self, db: Any, rows: list[Row]) -> None:
        """Delete checked journal rows except the newest. No other client writes meanwhile."""
        for teller in self._tellers:
            teller.judged = max(teller.judged, teller.acknowledged - KEPT)
        gone = [row for row in rows if row[1] <= self._tellers[row[0]].judged]
        for teller, sequence, source, target, amount in gone:
            self._base[source] -= amount
            self._base[target] += amount
            self._tellers[teller].outcomes.pop(sequence)
        for each in self._tellers:
            old = (tm.col("teller") == each.number) & (tm.col("sequence") <= each.judged)
            surely(db, lambda txn, old=old: txn.delete_where(JOURNAL, old))


def surely(db: Any, work: Callable[[Any], Any]) -> None:
    """Run work that may be done twice until it is done, whichever process dies meanwhile."""
    while True:
        try:
            db.run(work, 50)
            return
        except (tm.Retryable, tm.PeerError, tm.OutcomeUnknown):
            CLOCK.sleep(PAUSE_SECONDS)
