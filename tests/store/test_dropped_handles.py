"""A transaction that is dropped without an end is rolled back, and a store without close() is closed: by another thread
or call, which may take latches.
"""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import elsewhere
from tests.store.support import open_memory
from tests.store.trouble import promises
from tests.waiting import wait_until

NAME = "test.item"
DROPPED = "was dropped without commit"
pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


@pytest.fixture(autouse=True)
def no_garbage_of_other_tests() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


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
    with parts.latch, parts.schema.latch:
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
        db.parts.store.failure.latch(tm.StoreFailed("for the test"))
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


# --- stores ---------------------------------------------------------------------------------------
def on_disk(path: Path, is_new: bool = True, **options: Any) -> tm.Database:
    db = tm.open(path / "store", data_memory="16 MiB", redo_log="8 MiB", **options)
    if is_new:
        db.create_table(NAME, [tm.Column("id", tm.Int64), tm.Column("v", tm.Int64)], "id")
        db[NAME].insert_many([(number, 0) for number in range(10)])
    return db


def is_free(path: Path) -> bool:
    """Whether the store can be opened; its rows are there."""
    try:
        with on_disk(path, is_new=False) as db:
            assert len(db[NAME]) == 10
            return True
    except tm.Locked:
        return False


def test_store_with_threads_that_is_dropped_is_closed_by_them(tmp_path: Path) -> None:
    """Story: threads and control socket held the store. One that was dropped without close() kept its lock and its
    memory until the process ended.
    """
    before = threading.enumerate()
    db = on_disk(tmp_path)
    txn = db.transaction()
    txn.delete(NAME, 3)
    arena = weakref.ref(db.parts.store.mem)
    with pytest.warns(ResourceWarning) as caught:
        del txn, db
        gc.collect()
        wait_until(lambda: is_free(tmp_path))
    reported = [str(each.message) for each in caught]
    assert [text.split(" was dropped")[0] for text in reported][-1] == f"the store in {tmp_path / 'store'}"
    wait_until(lambda: threading.enumerate() == before)
    gc.collect()
    assert arena() is None


def test_store_without_threads_that_is_dropped_gives_its_lock_back(tmp_path: Path) -> None:
    db = on_disk(tmp_path, background=False)
    with pytest.warns(ResourceWarning, match=r"store was dropped without close\(\)"):
        del db
        gc.collect()
    assert is_free(tmp_path)


@pytest.mark.parametrize("background", [True, False])
def test_table_scan_or_transaction_in_use_keeps_its_store_open(tmp_path: Path, background: bool) -> None:
    table = on_disk(tmp_path, background=background)[NAME]
    gc.collect()
    table.update(1, {"v": 5})
    scan = table.scan()
    del table
    gc.collect()
    assert len(list(scan)) == 10 and not is_free(tmp_path)
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        del scan
        gc.collect()
        wait_until(lambda: is_free(tmp_path))


def test_store_that_was_closed_or_not_opened_warns_of_nothing(tmp_path: Path) -> None:
    on_disk(tmp_path).close()
    db = on_disk(tmp_path, is_new=False)
    with pytest.raises(tm.Locked):
        on_disk(tmp_path, is_new=False)
    with pytest.raises(tm.SchemaInvalid):
        on_disk(tmp_path / "other", data_memory_=1)
    db.close()
    del db
    gc.collect()
