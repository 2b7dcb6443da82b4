"""The built-in program of writers and a changer: rows change while indexes, partitions and tables come and go.

Every writer owns the keys that leave its number when divided by THREADS, so that it knows what its rows must be, and
counts its transactions in a row of its own. There are small transactions, batches, commits in slices, savepoints and
transactions that are rolled back; one thread does what `stress_actions` lists.

Ledger lines, each with all that `stress_verify` must know about it: "shown STATE", "rows CHANGE", "shape CHANGE". A
dropped range takes its rows with it. Lines of rows therefore say how many drops had ended before the transaction began,
and lines of drops say which transactions had ended before the drop began. Between the two, a row may have been written
to either range.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tests.crash.programs.stress_actions import Changer
from tests.crash.programs.stress_rows import (
    INDEX_KEYS,
    MAIN,
    PROGRESS,
    STAMPS_ATTEMPT,
    STAMPS_EACH,
    THREADS,
    WIDTH,
    Held,
    columns_of,
    first_half,
    is_whole,
    order_of,
    row_of,
    second_half,
    stamps_of,
)
from tests.crash.programs.stress_threads import Worker
from tests.crash.programs.stress_verify import index_problems, leftovers, shape_of, shown_line
from tidemark.engine.base.errors import NoPartition, NoSuchIndex, Retryable, RowNotFound
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.partition import RangePartition
from tidemark.engine.types import Int32, Int64
from tidemark.recovery.crash_harness.program import Ledger, OpenStore, PowerOff, Violation

OPTIONS: dict[str, Any] = {
    "data_memory": "32 MiB",
    "redo_log": "4 MiB",
    "transaction_memory": "64 KiB",  # batches of some hundred rows spool
    "transaction_limit": "16 MiB",
    "lock_timeout_ms": 1_000,
    "epoch_interval_ms": 5,
    "gcp_interval_ms": 20,
    "checkpoint_interval_ms": 150,
}
DISK_OPTIONS: dict[str, Any] = {**OPTIONS, "page_buffer": "256 KiB", "undo_log": "4 MiB", "page_flush_rate": 0}
DISK_SPACE = {"size": "128 KiB", "page_size": "4 KiB", "extent": "32 KiB"}
FIRST_RANGES = 4
# Threads switch often, so that kernels of one run between those of another.
SWITCH_SECONDS = 0.000_05
# Some transactions stay open for a while between their changes, so that ranges are dropped while they read them.
PAUSE_SHARE = 0.05
PAUSE_SECONDS = 0.02


class _RolledBack(Exception):
    """Raised by a writer to roll its own transaction back."""


class Writer(Worker):
    """One thread of transactions on its own keys."""

    def __init__(self, stress: Stress, number: int) -> None:
        super().__init__(f"writer-{number}", stress.seed, stress.is_over)
        self.stress = stress
        self.number = number
        self.held: Held = {}
        self.read_again()
        self.acknowledged = stress.db[PROGRESS].get(number).sequence
        self.done = 0
        self.stamp = 0

    def read_again(self) -> None:
        """This thread's rows: at the start, and after a dropped range has taken some."""
        self.drops_known = self.stress.changer.drops_done  # rows of a range being dropped may still be visible
        own = [row for row in self.stress.db[MAIN].scan() if row.id % THREADS == self.number]
        self.held = {row.id: stamps_of(row) for row in own}

    def step(self) -> None:
        """One transaction. Only a dropped range may leave rows missing that this thread has written."""
        try:
            self.transaction()
        except _RolledBack:
            pass
        except Retryable:
            self.stress.retried += 1
        except (RowNotFound, NoPartition):
            if self.stress.changer.drops_begun == self.drops_known:
                raise
            self.read_again()
        self.done += 1
        if self.stress.is_enough():
            self.is_over.set()

    def transaction(self) -> None:
        """Changes of one kind or another, and the count of transactions with them."""
        sequence = self.acknowledged + 1
        # A stamp is never used twice: otherwise rows left by an attempt that was rolled back would go unnoticed.
        self.stamp = sequence * STAMPS_EACH + self.done % (STAMPS_EACH // STAMPS_ATTEMPT) * STAMPS_ATTEMPT
        held = dict(self.held)
        drops = self.stress.changer.drops_done  # before the first change
        draw = self.rng.random()
        with self.stress.db.transaction() as txn:
            if draw < 0.1:
                self.batch(txn, held, self.rng.randrange(100, 400))
            elif draw < 0.3:
                self.batch(txn, held, self.rng.randrange(2, 50))
            else:
                for _ in range(self.rng.randrange(1, 6)):
                    self.change(txn, held)
            if self.rng.random() < PAUSE_SHARE:
                self.is_over.wait(PAUSE_SECONDS)
            if self.rng.random() < 0.08:
                raise _RolledBack
            txn.update(PROGRESS, self.number, {"sequence": sequence})
            line = self.line(sequence, drops, held)
            self.stress.ledger.begin(line)
        # Tell the changer first: whatever it begins now comes after this transaction.
        self.acknowledged = sequence
        self.stress.ledger.acknowledge(line)
        self.held = held

    def line(self, sequence: int, drops: int, held: Held) -> str:
        """What the transaction leaves of the rows it changes."""
        before = self.held
        changes = {key: held.get(key) for key in {*held, *before} if held.get(key) != before.get(key)}
        return f"rows {json.dumps([self.number, sequence, drops, sorted(changes.items())])}"

    def key(self) -> int:
        """A key of this thread's, in any range."""
        return self.rng.randrange(self.stress.changer.low, self.stress.changer.high) // THREADS * THREADS + self.number

    def next_stamp(self) -> int:
        """A key that no row of this thread has had."""
        self.stamp += 1
        return self.stamp

    def change(self, txn: Any, held: Held) -> None:
        """One call for one row, or several in a savepoint that is rolled back."""
        key, draw = self.key(), self.rng.random()
        if draw < 0.15:
            self.undone(txn, dict(held))
        elif key not in held:
            held[key] = (self.next_stamp(), self.next_stamp())
            txn.insert(MAIN, row_of(key, held[key]))
        elif draw < 0.4:
            held[key] = (self.next_stamp(), held[key][1])
            txn.update(MAIN, key, first_half(key, held[key][0]))
        elif draw < 0.65:
            held[key] = (held[key][0], self.next_stamp())
            txn.update(MAIN, key, second_half(key, held[key][1]))
        elif draw < 0.8:
            held[key] = (self.next_stamp(), self.next_stamp())
            txn.write(MAIN, row_of(key, held[key]))
        else:
            del held[key]
            txn.delete(MAIN, key)

    def undone(self, txn: Any, held: Held) -> None:
        """Changes after a savepoint that is rolled back."""
        try:
            with txn.savepoint():
                for _ in range(self.rng.randrange(1, 4)):
                    self.change(txn, held)
                raise _RolledBack
        except _RolledBack:
            return

    def batch(self, txn: Any, held: Held, count: int) -> None:
        """One call for many rows; past a few dozen rows the commit goes in slices."""
        draw = self.rng.random()
        keys = sorted({self.key() for _ in range(count)})
        present = [key for key in keys if key in held]
        if draw < 0.55 or not present:
            rows = {key: (self.next_stamp(), self.next_stamp()) for key in keys}
            held.update(rows)
            txn.write_many(MAIN, [row_of(key, stamps) for key, stamps in rows.items()])
        elif draw < 0.85:
            for key in present:
                held[key] = (self.next_stamp(), held[key][1])
            halves = [{"id": key, **first_half(key, held[key][0])} for key in present]
            txn.update_many(MAIN, {name: [half[name] for half in halves] for name in halves[0]})
        else:
            for key in present:
                del held[key]
            txn.delete_many(MAIN, present)


class Reader(Worker):
    """A thread that reads: every row is whole, whatever other threads do, and an index gives its rows in order."""

    pause_seconds = 0.005

    def __init__(self, stress: Stress) -> None:
        super().__init__("reader", stress.seed, stress.is_over)
        self.stress = stress

    def step(self) -> None:
        """One scan, of the whole table or by an index, forward or backward, to its end or not."""
        index = self.rng.choice([None, *INDEX_KEYS])
        is_reverse = index is not None and self.rng.random() < 0.5
        limit = self.rng.choice([None, 50])
        before: Any = None
        try:
            for row in self.stress.db[MAIN].scan(index=index, reverse=is_reverse, limit=limit):
                if not is_whole(row):
                    raise Violation(f"{self.name}: row {row.id} is not what its stamps say (index {index})")
                if index is not None:
                    key = order_of([getattr(row, name) for name in INDEX_KEYS[index]])
                    if before is not None and (key > before if is_reverse else key < before):
                        raise Violation(f"{self.name}: index {index} gives {key} after {before}")
                    before = key
        except NoSuchIndex:
            return


class Keeper(Worker):
    """A thread that makes local checkpoints, during writes and changes of the schema, also to keep space in the log."""

    pause_seconds = 0.1

    def __init__(self, stress: Stress) -> None:
        super().__init__("keeper", stress.seed, stress.is_over)
        self.stress = stress

    def step(self) -> None:
        """One local checkpoint."""
        self.stress.db.checkpoint()


Others = Callable[["Stress"], Sequence[Worker]]


def reader_and_keeper(stress: Stress) -> Sequence[Worker]:
    """The default threads besides writers and the changer."""
    return Reader(stress), Keeper(stress)


class Stress:
    """One life of the program."""

    def __init__(
        self, db: Any, seed: int, ledger: Ledger, transactions: int, others: Others = reader_and_keeper
    ) -> None:
        self.db = db
        self.seed = seed
        self.ledger = ledger
        self.transactions = transactions
        self.retried = 0
        self.is_over = threading.Event()
        self.changer = Changer(db, seed, ledger, shape_of(db), self.is_over)
        self.writers = [Writer(self, number) for number in range(THREADS)]
        self.changer.writers = self.writers
        self.others = others

    def is_enough(self) -> bool:
        """Whether a writer has done its share."""
        return any(writer.done >= self.transactions for writer in self.writers)

    def run(self) -> None:
        """Until that is enough. Raises: what ended a thread before."""
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        threads: list[Worker] = [*self.writers, self.changer, *self.others(self)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self.is_over.set()
            sys.setswitchinterval(interval)
        failed = [each.failed for each in threads if each.failed is not None]
        for error in sorted(failed, key=lambda error: not isinstance(error, PowerOff)):
            raise error
        found = index_problems(self.db, MAIN) or self.db.check()["problems"] or leftovers(self.db)
        if found:
            raise Violation(f"stress, seed {self.seed}, after the last transaction: {found[0]}")


def prepare(
    db: Any, storage: Literal["memory", "disk"], ledger: Ledger, fill: Callable[[Any], None] = lambda db: None
) -> None:
    """Make the tables that an earlier attempt has not made; their content counts as shown from now on. fill: adds the
    rows that a caller wants at the start.
    """
    if storage == "disk" and "main" not in db.tablespaces():
        db.create_tablespace("main", **DISK_SPACE)
    if MAIN not in db:
        ranges = [(f"r{number}", WIDTH * (number + 1)) for number in range(FIRST_RANGES)]
        db.create_table(MAIN, columns_of(storage), primary_key="id", partition=RangePartition("id", ranges))
    if PROGRESS not in db:
        db.create_table(PROGRESS, [Column("thread", Int32), Column("sequence", Int64)], primary_key="thread")
    if len(db[PROGRESS]) == 0:
        # Two local checkpoints first: with them, a damaged one is never the store's fault.
        for _ in range(2):
            db.checkpoint()
        fill(db)
        db[PROGRESS].insert_many([(number, 0) for number in range(THREADS)])
        ledger.acknowledge(shown_line(db))


def work(open_store: OpenStore, seed: int, ledger: Ledger, transactions: int = 1 << 40) -> None:
    """The program: until it is killed, or a writer has begun so many transactions."""
    db = open_store(**OPTIONS)
    prepare(db, "memory", ledger)
    Stress(db, seed, ledger, transactions).run()
    db.close()


def disk_work(open_store: OpenStore, seed: int, ledger: Ledger, transactions: int = 1 << 40) -> None:
    """The program with disk columns, with a cache of a hundred pages."""
    db = open_store(**DISK_OPTIONS)
    prepare(db, "disk", ledger)
    Stress(db, seed, ledger, transactions).run()
    db.close()
