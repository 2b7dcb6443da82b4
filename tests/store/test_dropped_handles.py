"""A transaction that is dropped without an end is rolled back, by a call that may take latches."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import elsewhere
from tests.store.support import open_memory
from tests.store.trouble import promises

NAME = "test.item"
DROPPED = "was dropped without commit"
pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


def store(**options: Any) -> tm.Database:
    db = open_memory(**options)
    db.create_table(NAME, [tm.Column("id", tm.Int64), tm.Column("v", tm.Int64)], "id")
    db[NAME].insert_many([(number, 0) for number in range(10)])
    return db


def drop(db: tm.Database) -> None:
    """Begin a transaction with locks of both kinds and a new row, and drop it."""
    txn = db.transaction()
    txn.update(NAME, 1, {"v": 5})
    txn.get(NAME, 2, lock="shared")
    txn.insert(NAME, (77, 7))
    with pytest.warns(ResourceWarning, match=f"transaction {txn.txid:#x} {DROPPED}"):
        del txn
        gc.collect()


def test_next_begin_rolls_it_back() -> None:
    """Story: the table of open transactions held each one. Rows of a dropped one stayed locked until the store was
    closed.
    """
    db = store()
    drop(db)
    assert db.status()["transactions"]["open"] == 1
    with db.transaction() as txn:
        txn.update(NAME, 1, {"v": 6})
        txn.delete(NAME, 2)
        txn.insert(NAME, (77, 8))
    assert db[NAME][1].v == 6 and db[NAME][77].v == 8
    assert set(promises(db).values()) == {0}
    db.close()


def test_thread_that_waits_for_its_lock_rolls_it_back() -> None:
    db = store(lock_timeout_ms=120_000)
    held, waits = threading.Event(), threading.Event()

    def hold() -> None:
        txn = db.transaction()
        txn.update(NAME, 1, {"v": 5})
        held.set()
        waits.wait()
        with pytest.warns(ResourceWarning, match=DROPPED):
            del txn

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    txn = db.transaction()
    waiter = threading.Thread(target=lambda: (waiting(db), waits.set()))
    waiter.start()
    txn.update(NAME, 1, {"v": 6})
    txn.commit(True)
    waiter.join()
    holder.join()
    assert db[NAME][1].v == 6
    db.close()


def waiting(db: tm.Database) -> None:
    while not db.parts.store.locks.counters()["waiting"]:
        pass


def test_scan_that_skips_locked_rows_rolls_it_back_first() -> None:
    db = store()
    with db.transaction() as txn:
        drop(db)
        assert len(list(txn.scan(NAME, lock="exclusive", skip_locked=True))) == 10
    db.close()


def test_it_may_be_collected_below_the_latches_that_its_rollback_takes() -> None:
    db = store()
    parts = db.parts.store
    with parts.latch, parts.schema_latch:
        drop(db)
    assert elsewhere(lambda: db[NAME].update(1, {"v": 6}))
    db.close()


def test_cycle_of_garbage_with_a_transaction_in_it() -> None:
    db = store()
    txn = db.transaction()
    txn.update(NAME, 1, {"v": 5})
    cycle: list[Any] = [txn]
    cycle.append(cycle)
    with pytest.warns(ResourceWarning, match=DROPPED):
        del txn, cycle
        gc.collect()
    db[NAME].update(1, {"v": 6})
    db.close()


@pytest.mark.parametrize("end", ["commit", "rollback", "close", "failed"])
def test_transaction_that_has_ended_warns_of_nothing(end: str) -> None:
    db = store()
    txn = db.transaction()
    txn.update(NAME, 1, {"v": 5})
    if end == "commit":
        txn.commit(True)
    elif end == "rollback":
        txn.rollback()
    elif end == "close":
        db.close()
    else:
        db.parts.store.fail(tm.StoreFailed("for the test"))
    del txn
    gc.collect()


def test_close_rolls_back_dropped_transactions_and_those_in_use() -> None:
    db = store()
    kept = db.transaction()
    kept.update(NAME, 3, {"v": 3})
    drop(db)
    files = db.parts.files
    db.close()
    with pytest.raises(tm.StoreClosed):
        kept.get(NAME, 3)
    again = open_memory(files.kill())
    assert [row.v for row in again[NAME].scan()] == [0] * 10
    again.close()


def test_index_is_built_although_an_older_transaction_was_dropped() -> None:
    db = store(lock_timeout_ms=0)
    drop(db)
    db.create_index(NAME, "by_v", "v")
    assert db.check()["problems"] == []
    db.close()


def test_outcome_of_a_dropped_transaction_is_unknown_until_it_is_rolled_back() -> None:
    db = store()
    txn = db.transaction()
    txn.update(NAME, 1, {"v": 5})
    txid = txn.txid
    with pytest.warns(ResourceWarning, match=DROPPED):
        del txn
    assert db.outcome(txid) == "unknown"
    db[NAME].update(1, {"v": 6})
    db.sync()
    assert db.outcome(txid) == "aborted"
    db.close()
