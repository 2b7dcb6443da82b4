"""A transaction begins at its first change or lock (rule 5 of ADR 0031); one that only reads is in no table."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import elsewhere
from tests.engine.arena_check import check_arena
from tests.store.support import open_memory
from tidemark.engine.base.errors import NotPrimary
from tidemark.engine.memory.arena_layout import S_REDO_RESERVED, S_TXID

NAME = "test.t"


@pytest.fixture
def db() -> Iterator[Any]:
    db = open_memory(redo_log="1 MiB")
    table = db.create_table(NAME, [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    db.create_index(NAME, "by_n", "n")
    db.create_index(NAME, "u", "n", unique=True)
    for number in range(5):
        table.insert((number, 10 * number))
    yield db
    db.close()


def shared(db: Any) -> tuple[int, ...]:
    store = db.parts.store
    return len(store.locks.by_slot), int(store.mem[S_REDO_RESERVED]), int(store.mem[S_TXID])


def test_reads_touch_no_shared_memory(db: Any) -> None:
    before = shared(db)
    with db.transaction() as txn:
        assert txn.get(NAME, 1) == (1, 10) and txn.get(NAME, 9) is None and txn.get(NAME, 20, index="u") == (2, 20)
        assert txn.get_many(NAME, [1, 2]).num_rows == 2 and len(list(txn.scan(NAME))) == 5
        assert txn.scan(NAME, index="by_n", lower=20).count() == 3
        assert [row.n for row in txn.scan(NAME, where=tm.col("n") > 25)] == [30, 40]
        assert shared(db) == before and db.status()["transactions"]["open"] == 0
    assert txn.is_ended and shared(db) == before
    with pytest.raises(tm.TransactionEnded):
        txn.get(NAME, 1)
    with pytest.raises(tm.TransactionEnded):
        txn.commit()
    txn.rollback()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "insert": lambda txn: txn.insert(NAME, (7, 7)),
    "write": lambda txn: txn.write(NAME, {"id": 1, "n": 7}),
    "update": lambda txn: txn.update(NAME, 1, {"n": 7}),
    "update of no row": lambda txn: txn.update(NAME, 99, {"n": 7}),
    "expression": lambda txn: txn.update(NAME, 1, {"n": tm.col("n") + 1}),
    "upsert": lambda txn: txn.upsert(NAME, (1, 7)),
    "delete": lambda txn: txn.delete(NAME, 1),
    "insert_many": lambda txn: txn.insert_many(NAME, [(7, 7)]),
    "update_where": lambda txn: txn.update_where(NAME, {"n": 7}, where=tm.col("id") == 1),
    "delete_where": lambda txn: txn.delete_where(NAME, tm.col("id") == 1),
    "exclusive": lambda txn: txn.get(NAME, 1, lock="exclusive"),
    "shared": lambda txn: txn.get(NAME, 1, lock="shared"),
    "shared by index": lambda txn: txn.get(NAME, 10, lock="shared", index="u"),
    "get_many": lambda txn: txn.get_many(NAME, [1], lock="shared"),
    "scan": lambda txn: list(txn.scan(NAME, lock="exclusive")),
    "savepoint": lambda txn: txn.savepoint().__enter__(),
    "txid": lambda txn: txn.txid,
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("is_known", [False, True], ids=["first call", "later"])
def test_first_change_or_lock_begins(db: Any, what: str, is_known: bool) -> None:
    if is_known:
        db[NAME].update(1, {"n": 10})
    before = shared(db)
    txn = db.transaction()
    assert txn.get(NAME, 1) == (1, 10) and shared(db) == before
    try:
        CHANGES[what](txn)
    except tm.RowNotFound:
        pass
    open_now, reserved, txid = shared(db)
    assert (open_now, txid) == (1, before[2] + 1) and reserved > before[1] and txn.txid == txid
    txn.rollback()
    assert shared(db)[:2] == before[:2] and sorted(map(tuple, db[NAME])) == [(n, 10 * n) for n in range(5)]
    check_arena(db)


def test_id_of_a_transaction_that_has_only_read(db: Any) -> None:
    with db.transaction() as txn:
        txn.get(NAME, 1)
    assert txn.txid == txn.txid and db.outcome(txn.txid) == "aborted"
    with db.transaction() as txn:
        assert db.outcome(txn.txid) == "unknown"
        txn.update(NAME, 1, {"n": 11})
    assert db.outcome(txn.txid) == "committed"


def test_id_is_assigned_by_the_thread_of_the_transaction(db: Any) -> None:
    txn = db.transaction()
    with pytest.raises(tm.WrongThread):
        elsewhere(lambda: txn.txid)
    txid = txn.txid
    assert elsewhere(lambda: txn.txid) == txid
    txn.rollback()


def fill_log(db: Any) -> list[Any]:
    """Transactions that have reserved all of the log."""
    held = []
    while True:
        txn = db.transaction()
        try:
            txn.begin()
        except tm.RedoOverloaded:
            assert txn.is_ended
            return held
        held.append(txn)


def test_reads_need_no_room_in_the_log_and_the_first_change_does(db: Any) -> None:
    held = fill_log(db)
    with db.transaction() as txn:
        assert txn.get(NAME, 1) == (1, 10)
    for what in ("update", "exclusive", "txid", "savepoint", "insert_many"):
        txn = db.transaction()
        assert txn.get(NAME, 1) == (1, 10)
        with pytest.raises(tm.RedoOverloaded):
            CHANGES[what](txn)
        assert txn.is_ended
        with pytest.raises(tm.TransactionEnded):
            txn.get(NAME, 1)
    with pytest.raises(tm.RedoOverloaded):
        db[NAME].update(1, {"n": 3})
    for txn in held:
        txn.rollback()
    assert db[NAME].update(1, {"n": 3})
    check_arena(db)


def test_schema_changes_and_index_builds_do_not_wait_for_readers(db: Any) -> None:
    txn = db.transaction()
    assert txn.get(NAME, 1) == (1, 10)
    db.create_index(NAME, "again", ["n", "id"])
    db.add_column(NAME, tm.Column("more", tm.Int32, default=4))
    assert txn.get(NAME, 1) == (1, 10, 4)
    db.drop_table(NAME)
    with pytest.raises(tm.NoSuchTable):
        txn.get(NAME, 1)
    txn.commit()
    assert db.parts.store.users.dropped == []


def test_changes_made_while_a_scan_by_an_index_is_open_are_not_seen_by_it(db: Any) -> None:
    with db.transaction() as txn:
        rows = iter(txn.scan(NAME, index="by_n"))
        first = next(rows)
        txn.update(NAME, first.id, {"n": 35})
        txn.insert(NAME, (9, 36))
        assert [first.n, *(row.n for row in rows)] == [0, 10, 20, 30, 40]
        assert [row.n for row in txn.scan(NAME, index="by_n")] == [10, 20, 30, 35, 36, 40]
        txn.rollback()


def test_dropped_transactions_are_warned_about_if_they_have_begun(db: Any) -> None:
    for what, count in (("get", 0), ("update", 1)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            txn = db.transaction()
            txn.get(NAME, 1) if what == "get" else CHANGES[what](txn)
            del txn
            gc.collect()
        assert len([each for each in caught if each.category is ResourceWarning]) == count
    assert db[NAME].update(1, {"n": 8})
    assert db.status()["transactions"]["open"] == 0


def test_node_that_takes_no_transactions_any_more_refuses_the_first_change(db: Any) -> None:
    store = db.parts.store
    txn = db.transaction()
    assert txn.get(NAME, 1) == (1, 10)
    before = shared(db)
    store.resources.refusal = lambda: NotPrimary("not now")
    try:
        for call in (lambda: txn.update(NAME, 1, {"n": 7}), lambda: db[NAME].update(1, {"n": 7}), db.transaction):
            with pytest.raises(NotPrimary):
                call()
        assert txn.is_ended and shared(db) == before
    finally:
        store.resources.refusal = None


def test_victim_of_a_deadlock_is_the_one_that_began_last() -> None:
    """The transaction that was made first takes its lock last."""
    db: Any = open_memory(lock_timeout_ms=60_000)
    table = db.create_table(NAME, [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    table.insert_many([(1, 10), (2, 20)])
    ready, done = threading.Barrier(2, timeout=60), threading.Event()
    found: list[str] = []
    first = db.transaction()
    assert first.get(NAME, 1) is not None

    def other() -> None:
        second = db.transaction()
        second.get(NAME, 2, lock="exclusive")
        ready.wait()
        ready.wait()
        try:
            second.get(NAME, 1, lock="exclusive")
            found.append("second")
        except tm.Retryable as error:
            found.append(type(error).__name__)
        second.rollback()
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    first.get(NAME, 1, lock="exclusive")
    ready.wait()
    with pytest.raises(tm.Deadlock):
        first.get(NAME, 2, lock="exclusive")
    assert done.wait(60)
    thread.join()
    assert found == ["second"]
    db.close()
