"""Any sequence of calls against a dict: two open transactions, their locks, local checkpoints, crashes, reopenings."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import tidemark as tm
from tests.elsewhere import OWN_LOCK
from tidemark.engine.base.options import parse_size
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor
from tidemark.recovery.crash_harness.program import SIMULATED, open_simulated

pytestmark = pytest.mark.usefixtures("storage")

TABLE = "test.account"
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("owner", tm.VarChar(40)),
    tm.Column("balance", tm.Float64),
    tm.Column("note", tm.Text, nullable=True),
]
TRANSACTION_BYTES = parse_size("transaction_limit", SIMULATED["transaction_limit"])
Row = tuple[Any, ...]


def size_of(rows: list[Row]) -> int:
    """Bytes of the texts."""
    return sum(len(row[3] or "") for row in rows)


KEYS = 6
keys = st.integers(0, KEYS - 1)
numbers = st.integers(0, 1)  # which of the two transactions
rows = st.builds(
    lambda key, owner, balance, note: (key, "o" * owner, float(balance), None if note < 0 else "n" * note),
    keys,
    st.integers(0, 40),
    st.integers(-5, 5),
    st.sampled_from([-1, -1, 0, 3, 700, 5_000, 40_000]),
)


class Session:
    """One open transaction and what it must see."""

    def __init__(self, txn: Any, committed: dict[int, Row]) -> None:
        self.txn = txn
        self.committed = committed
        self.changes: dict[int, Row | None] = {}
        self.size = 0  # bytes of texts it wrote
        self.exclusive: set[int] = set()
        self.shared: set[int] = set()

    def is_full(self, batch: list[Row]) -> bool:
        """Whether the batch might be too large for the transaction."""
        return self.size + size_of(batch) > TRANSACTION_BYTES // 2

    def seen(self, key: int) -> Row | None:
        return self.changes[key] if key in self.changes else self.committed.get(key)

    def put(self, key: int, row: Row | None) -> None:
        self.changes[key] = row
        self.exclusive.add(key)

    def everything(self) -> dict[int, Row]:
        merged = {**self.committed, **self.changes}
        return {key: row for key, row in merged.items() if row is not None}


class Store(RuleBasedStateMachine):
    """The store on a disk in memory, and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.committed: dict[int, Row] = {}
        self.sessions: list[Session | None] = [None, None]
        self.memory = MemoryFiles()

    @initialize(fragments=st.integers(1, 3))
    def create(self, fragments: int) -> None:
        self.db = open_simulated(OrderMonitor(self.memory), undo_log="8 MiB")
        self.db.create_table(TABLE, COLUMNS, primary_key="id", partition=tm.HashPartition(fragments))
        self.committed.update({key: (key, "first", 1.0, None) for key in range(0, KEYS, 2)})
        self.db[TABLE].insert_many(list(self.committed.values()))

    # --- the model -------------------------------------------------------------------------------
    def session(self, number: int) -> Session:
        found = self.sessions[number]
        if found is None:
            found = self.sessions[number] = Session(self.db.transaction(), self.committed)
        return found

    def is_locked(self, number: int, key: int, is_shared: bool = False) -> bool:
        """Whether another transaction's lock is in the way."""
        other = self.sessions[1 - number]
        return other is not None and (key in other.exclusive or (not is_shared and key in other.shared))

    def attempt(
        self, number: int, touched: list[int], call: Callable[[Any], Any], is_shared: bool = False, size: int = 0
    ) -> bool:
        """Call. A lock in the way must refuse the call, `size` bytes that exceed the transaction's limit must end the
        transaction, and nothing else may.

        True if the call went through.
        """
        session = self.session(number)
        in_the_way = any(self.is_locked(number, key, is_shared) for key in touched)
        session.size += size
        try:
            call(session.txn)
        except tm.TransactionTooLarge:
            assert session.size > TRANSACTION_BYTES // 2, f"{session.size} bytes are not too large"
            self.sessions[number] = None
            return False
        except tm.Rejected as error:
            if OWN_LOCK not in str(error):
                raise
            assert in_the_way, f"keys {touched} were free"
            return False
        assert not in_the_way, f"keys {touched} were locked by the other transaction"
        return True

    # --- one row ---------------------------------------------------------------------------------
    @rule(number=numbers, row=rows)
    def write(self, number: int, row: Row) -> None:
        if self.attempt(number, [row[0]], lambda txn: txn.write(TABLE, row), size=size_of([row])):
            self.session(number).put(row[0], row)

    @rule(number=numbers, row=rows)
    def insert(self, number: int, row: Row) -> None:
        session = self.session(number)
        # A row that others only share exists for certain: its duplicate need not wait.
        if session.seen(row[0]) is None or self.is_locked(number, row[0], is_shared=True):
            if self.attempt(number, [row[0]], lambda txn: txn.insert(TABLE, row), size=size_of([row])):
                session.put(row[0], row)
            return
        with pytest.raises(tm.DuplicateKey):
            session.txn.insert(TABLE, row)

    @rule(number=numbers, key=keys, balance=st.integers(0, 9), note=st.sampled_from([None, "", "m" * 900]))
    def update(self, number: int, key: int, balance: int, note: str | None) -> None:
        session = self.session(number)
        old = session.seen(key)
        changes: dict[str, Any] = {"balance": float(balance)} | ({} if note == "" else {"note": note})
        if old is None and not self.is_locked(number, key):
            with pytest.raises(tm.RowNotFound):
                session.txn.update(TABLE, key, changes)
        elif self.attempt(number, [key], lambda txn: txn.update(TABLE, key, changes)) and old is not None:
            session.put(key, (key, old[1], float(balance), changes.get("note", old[3])))

    @rule(number=numbers, key=keys)
    def delete(self, number: int, key: int) -> None:
        session = self.session(number)
        if session.seen(key) is None and not self.is_locked(number, key):
            with pytest.raises(tm.RowNotFound):
                session.txn.delete(TABLE, key)
        elif self.attempt(number, [key], lambda txn: txn.delete(TABLE, key)):
            session.put(key, None)

    @rule(number=numbers, key=keys, lock=st.sampled_from([None, "shared", "shared", "exclusive"]))
    def get(self, number: int, key: int, lock: Any) -> None:
        session = self.session(number)
        expected = session.seen(key)
        if lock is None or (expected is None and not self.is_locked(number, key)):
            assert session.txn.get(TABLE, key, lock=lock) == expected
            return
        got: list[Any] = []
        if self.attempt(number, [key], lambda txn: got.append(txn.get(TABLE, key, lock=lock)), lock == "shared"):
            assert got == [expected]
            (session.shared if lock == "shared" else session.exclusive).add(key)

    # --- many rows -------------------------------------------------------------------------------
    @rule(number=numbers, batch=st.lists(rows, max_size=6, unique_by=lambda row: row[0]))
    def write_many(self, number: int, batch: list[Row]) -> None:
        touched = [row[0] for row in batch]
        if self.attempt(number, touched, lambda txn: txn.write_many(TABLE, batch), size=size_of(batch)):
            for row in batch:
                self.session(number).put(row[0], row)

    @rule(number=numbers, batch=st.lists(rows, max_size=6, unique_by=lambda row: row[0]))
    def insert_many(self, number: int, batch: list[Row]) -> None:
        session = self.session(number)
        taken = [key for key, *_ in batch if session.seen(key) is not None]
        if (
            taken
            and not any(self.is_locked(number, row[0], is_shared=True) for row in batch)
            and not session.is_full(batch)
        ):
            with pytest.raises(tm.DuplicateKey):
                session.txn.insert_many(TABLE, batch)
        elif not taken and self.attempt(
            number, [row[0] for row in batch], lambda txn: txn.insert_many(TABLE, batch), size=size_of(batch)
        ):
            for row in batch:
                session.put(row[0], row)

    @rule(number=numbers, some=st.sets(keys, max_size=5))
    def delete_many(self, number: int, some: set[int]) -> None:
        session = self.session(number)
        gone = [key for key in some if session.seen(key) is None]
        if gone and not any(self.is_locked(number, key) for key in some):
            with pytest.raises(tm.RowNotFound):
                session.txn.delete_many(TABLE, sorted(some))
        elif not gone and self.attempt(number, sorted(some), lambda txn: txn.delete_many(TABLE, sorted(some))):
            for key in some:
                session.put(key, None)

    @rule(number=numbers)
    def scan(self, number: int) -> None:
        session = self.session(number)
        assert {row[0]: tuple(row) for row in session.txn.scan(TABLE)} == session.everything()

    # --- transactions ----------------------------------------------------------------------------
    @rule(number=numbers, batch=st.lists(rows, min_size=1, max_size=4), some=st.sets(keys, max_size=2))
    def savepoint_rolled_back(self, number: int, batch: list[Row], some: set[int]) -> None:
        session = self.session(number)
        if any(self.is_locked(number, key) for key in [*(row[0] for row in batch), *some]) or session.is_full(batch):
            return
        with pytest.raises(ZeroDivisionError), session.txn.savepoint():
            for row in batch:
                session.txn.write(TABLE, row)
            for key in some:
                if session.txn.get(TABLE, key) is not None:
                    session.txn.delete(TABLE, key)
            raise ZeroDivisionError

    @precondition(lambda self: any(self.sessions))
    @rule(number=numbers)
    def commit(self, number: int) -> None:
        session = self.session(number)
        with session.txn:
            pass
        self.sessions[number] = None
        for key, row in session.changes.items():
            if row is None:
                self.committed.pop(key, None)
            else:
                self.committed[key] = row

    @precondition(lambda self: any(self.sessions))
    @rule(number=numbers)
    def rollback(self, number: int) -> None:
        self.session(number).txn.rollback()
        self.sessions[number] = None

    @rule(row=rows)
    def write_at_once(self, row: Row) -> None:
        if any(other and row[0] in other.exclusive | other.shared for other in self.sessions):
            with pytest.raises(tm.Rejected, match=OWN_LOCK):
                self.db[TABLE].write(row)
        else:
            self.db[TABLE].write(row)
            self.committed[row[0]] = row

    # --- the store -------------------------------------------------------------------------------
    @rule(seed=st.integers(0, 1_000), event=st.sampled_from(["checkpoint", "sync", "reopen", "kill", *CRASH_POLICIES]))
    def store(self, seed: int, event: Any) -> None:
        """One rule for all of these: each ends or outlives the transactions, and not too often."""
        if event == "checkpoint":
            self.db.checkpoint()
        elif event == "sync":
            self.db.sync()
        elif event == "reopen":
            self.db.close()
            self.restart(MemoryFiles(self.memory.disk))
        elif event == "kill":
            self.restart(self.memory.kill())
        else:
            self.restart(self.memory.crash(random.Random(seed), event))

    def restart(self, memory: MemoryFiles) -> None:
        self.memory = memory
        self.sessions = [None, None]
        self.db = open_simulated(OrderMonitor(memory))

    @invariant()
    def compare(self) -> None:
        table = self.db[TABLE]
        assert {row[0]: tuple(row) for row in table.scan()} == self.committed
        assert len(table) == len(self.committed)
        assert [table.get(key) for key in range(KEYS)] == [self.committed.get(key) for key in range(KEYS)]


def run(examples: int, steps: int, **more: Any) -> None:
    run_state_machine_as_test(
        Store, settings=settings(max_examples=examples, stateful_step_count=steps, database=None, **more)
    )


def test_any_sequence_of_calls_agrees_with_a_dict() -> None:
    run(20, 30)


@pytest.mark.soak
def test_two_hundred_sequences_of_fifty_calls_agree_with_a_dict() -> None:
    run(200, 50)
