"""Transfers between accounts through a node group, what was acknowledged of them, and whether it is there.

A teller moves money between two accounts and writes a row of the journal under (teller, sequence), in one transaction.
So sums stay; and of each (teller, sequence) it is known whether it must be there, must not, or may.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import tidemark as tm
from engine.clock import SystemClock
from recovery.crash_harness.program import Violation

CLOCK = SystemClock()
ACCOUNTS = 30
START = 1_000
ACKNOWLEDGED, UNKNOWN = "acknowledged", "unknown"
PAUSE_SECONDS = 0.02
BREATH_SECONDS = 0.001  # who waits for the turn gets it


COLUMNS = {"bank.account": ["id", "balance"], "bank.journal": ["teller", "sequence", "source", "target", "amount"]}


def make_tables(db: Any) -> None:
    """The accounts and the journal; amounts lie on disk."""
    db.create_tablespace("far", "8 MiB")
    db.create_table("bank.account", [tm.Column("id", tm.Int32), tm.Column("balance", tm.Int64)], "id")
    db.create_table(
        "bank.journal",
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
    db.create_index("bank.journal", "by_source", "source")
    db.run(lambda txn: txn.insert_many("bank.account", [(number, START) for number in range(ACCOUNTS)]), 1_000)


class Teller(threading.Thread):
    """One client that writes. `outcomes`: what is known of each of its sequences; those not in it came to nothing."""

    def __init__(self, connect: Callable[[], Any], number: int, seed: int) -> None:
        super().__init__(name=f"teller-{number}", daemon=True)
        self._connect = connect
        self._rng = random.Random(seed)
        self.number = number
        self.sequence = 0
        self.acknowledged = 0  # the newest
        self.outcomes: dict[int, str] = {}
        self.turn = threading.Lock()  # held for a transfer: who holds it sees none under way
        self.is_over = threading.Event()
        self.failure: BaseException | None = None
        self.longest_s = 0.0
        self.errors: Counter[str] = Counter()

    def run(self) -> None:
        """Transfer until told to end."""
        try:
            db = self._connect()
            while not self.is_over.is_set():
                with self.turn:
                    self._transfer(db)
                CLOCK.sleep(BREATH_SECONDS)
            db.close()
        except (tm.Error, Violation) as error:
            self.failure = error

    def _transfer(self, db: Any) -> None:
        self.sequence += 1
        source, target = self._rng.sample(range(ACCOUNTS), 2)
        amount = self._rng.randrange(1, 50)
        began = CLOCK.monotonic()
        try:
            with db.transaction() as txn:
                for account, change in sorted([(source, -amount), (target, amount)]):
                    balance = txn.get("bank.account", account, lock="exclusive").balance
                    txn.update("bank.account", account, {"balance": balance + change})
                txn.insert("bank.journal", (self.number, self.sequence, source, target, amount))
        except tm.OutcomeUnknown as error:
            self.outcomes[self.sequence] = UNKNOWN
            self.errors[type(error).__name__] += 1
        except (tm.Retryable, tm.PeerError) as error:
            self.errors[type(error).__name__] += 1
            CLOCK.sleep(PAUSE_SECONDS)
        else:
            self.outcomes[self.sequence] = ACKNOWLEDGED
            self.acknowledged = self.sequence
        self.longest_s = max(self.longest_s, CLOCK.monotonic() - began)


class Reader(threading.Thread):
    """One client that reads at one node: what was acknowledged before a read shows (N4)."""

    def __init__(self, connect: Callable[[], Any], tellers: list[Teller], seed: int) -> None:
        super().__init__(name="reader", daemon=True)
        self._connect = connect
        self._tellers = tellers
        self._rng = random.Random(seed)
        self.is_over = threading.Event()
        self.failure: BaseException | None = None
        self.reads = 0
        self.refused = 0

    def run(self) -> None:
        """Read until told to end; whoever cannot be reached is tried again."""
        db: Any = None
        while not self.is_over.is_set():
            try:
                if db is None:
                    db = self._connect()
                self._read(db)
            except tm.Error:
                self.refused += 1
                if db is not None:
                    db.close()
                    db = None
                CLOCK.sleep(PAUSE_SECONDS)
            except Violation as error:
                self.failure = error
                return
        if db is not None:
            db.close()

    def _read(self, db: Any) -> None:
        teller = self._rng.choice(self._tellers)
        sequence = teller.acknowledged
        if sequence == 0:
            CLOCK.sleep(PAUSE_SECONDS)
            return
        if db["bank.journal"].get((teller.number, sequence)) is None:
            raise Violation(f"teller {teller.number}, {sequence} was acknowledged, and a read behind that misses it")
        self.reads += 1


def contents(db: Any) -> dict[str, list[Any]]:
    """Every row of both tables with its place, epoch and author, as one node shows them."""
    found = {}
    for name, columns in COLUMNS.items():
        places = [tm.FRAGMENT, tm.ROWID, tm.EPOCH, tm.AUTHOR]
        table = db[name].scan([*places, *columns]).to_arrow()
        found[name] = sorted(tuple(row.values()) for row in table.to_pylist())
    return found


def judge(rows: dict[str, list[Any]], tellers: list[Teller]) -> None:
    """What must be so of one node's rows. Raises: Violation."""
    balances = {row[4]: row[5] for row in rows["bank.account"]}
    expected = dict.fromkeys(range(ACCOUNTS), START)
    there: dict[int, set[int]] = {teller.number: set() for teller in tellers}
    for row in rows["bank.journal"]:
        teller, sequence, source, target, amount = row[4:]
        there[teller].add(sequence)
        expected[source] -= amount
        expected[target] += amount
    if sum(balances.values()) != ACCOUNTS * START:
        raise Violation(f"the sum is {sum(balances.values())}, not {ACCOUNTS * START}")
    if balances != expected:
        raise Violation("balances are not what the journal says")
    for teller in tellers:
        outcomes = dict(teller.outcomes)
        acknowledged = {each for each, outcome in outcomes.items() if outcome == ACKNOWLEDGED}
        if lost := acknowledged - there[teller.number]:
            raise Violation(f"teller {teller.number}: {len(lost)} acknowledged transfers are lost: {sorted(lost)[:5]}")
        if made := there[teller.number] - outcomes.keys():
            raise Violation(f"teller {teller.number}: transfers that were refused are there: {sorted(made)[:5]}")
