"""Row locks: which transactions share, wait, are woken or give way (F98, F99)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import OWN_LOCK
from tests.engine.stage import LONG_MS, NAME, Stage
from tests.store.trouble import promises
from tidemark.engine.memory.arena_layout import X_OPS

TAKES: dict[str, Callable[[Any], object]] = {
    "shared": lambda txn: txn.get(NAME, 1, lock="shared"),
    "exclusive": lambda txn: txn.get(NAME, 1, lock="exclusive"),
    "update": lambda txn: txn.update(NAME, 1, {"value": 5}),
    "delete": lambda txn: txn.delete(NAME, 1),
    "write": lambda txn: txn.write(NAME, (1, 5)),
    "insert": lambda txn: txn.insert(NAME, (1, 5)),
    "scan shared": lambda txn: list(txn.scan(NAME, lock="shared")),
    "scan exclusive": lambda txn: list(txn.scan(NAME, lock="exclusive")),
    "update_many": lambda txn: txn.update_many(NAME, {"id": [0, 1], "value": [5, 5]}),
    "delete_many": lambda txn: txn.delete_many(NAME, [0, 1]),
    "write_many": lambda txn: txn.write_many(NAME, [(0, 5), (1, 5)]),
}
EXCLUSIVE = ["exclusive", "update", "delete", "write", "scan exclusive", "update_many", "delete_many", "write_many"]
SHARED = ["shared", "scan shared"]


@pytest.mark.parametrize("first", EXCLUSIVE + SHARED)
@pytest.mark.parametrize("second", [*EXCLUSIVE, *SHARED, "insert"])
def test_two_transactions_on_one_row_agree_only_if_both_share(impatient: Stage, first: str, second: str) -> None:
    """Story: the search for the row to share took a shared lock of another transaction for an exclusive one, so that
    the second reader waited for the first. Found by the stateful test.
    """
    holder, other = impatient.actors_in_order(2)
    holder.do(TAKES[first])
    assert other.read(1).value == 0, "a read without a lock does not wait and sees what is committed"
    if first in SHARED and second in SHARED:
        other.do(TAKES[second])
        other.rollback()
    elif first in SHARED and second == "insert":
        with pytest.raises((tm.DuplicateKey, tm.LockTimeout)):
            other.do(TAKES[second])
        other.rollback()
    else:
        with pytest.raises(tm.LockTimeout):
            other.do(TAKES[second])
        with pytest.raises(tm.TransactionEnded):
            other.read(1)
    holder.rollback()
    assert set(promises(impatient.db).values()) == {0}
    with impatient.db.transaction() as txn:
        TAKES["update"](txn)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("how", EXCLUSIVE + SHARED)
def test_lock_ends_with_its_transaction_and_the_waiter_continues(stage: Stage, how: str, end: str) -> None:
    holder, waiter = stage.actors_in_order(2)
    holder.do(TAKES[how])
    waiting = waiter.start(lambda txn: txn.write(NAME, (1, 77)))
    stage.until_waiting(1)
    assert not waiting.done()
    (holder.commit if end == "commit" else holder.rollback)()
    waiting.result(timeout=100)
    waiter.commit()
    assert stage.table[1].value == 77
    assert set(promises(stage.db).values()) == {0}


def test_many_waiters_of_one_row_all_get_it_one_after_the_other(stage: Stage) -> None:
    holder, *waiters = stage.actors_in_order(7)
    holder.change(1, 1)

    def add(txn: Any) -> None:
        row = txn.get(NAME, 1, lock="exclusive")
        txn.update(NAME, 1, {"value": row.value + 1})
        txn.commit(True)

    futures = [waiter.start(add) for waiter in waiters]
    stage.until_waiting(len(waiters))
    holder.commit()
    for future in futures:
        future.result(timeout=100)
    assert stage.table[1].value == 1 + len(waiters)


def test_waiter_for_an_exclusive_lock_waits_for_all_sharers(stage: Stage) -> None:
    sharers = stage.actors_in_order(3)
    for sharer in sharers:
        sharer.read(1, "shared")
    writer = stage.actor()
    waiting = writer.start(lambda txn: txn.update(NAME, 1, {"value": 9}))
    stage.until_waiting(1)
    for sharer in sharers:
        assert not waiting.done()
        sharer.commit()
    waiting.result(timeout=100)
    writer.commit()
    assert stage.table[1].value == 9


def test_later_sharers_do_not_starve_a_waiting_writer(stage: Stage) -> None:
    first, writer, late = stage.actors_in_order(3)
    first.read(1, "shared")
    writing = writer.start(lambda txn: (txn.update(NAME, 1, {"value": 9}), txn.commit(True)))
    stage.until_waiting(1)
    reading = late.start(lambda txn: txn.get(NAME, 1, lock="shared"))
    stage.until_waiting(2)
    first.commit()
    assert reading.result(timeout=100).value in (0, 9)
    late.commit()
    writing.result(timeout=100)
    assert stage.table[1].value == 9


def test_writer_that_timed_out_no_longer_blocks_sharers(impatient: Stage) -> None:
    """Story: the mark that a transaction waits outlived the waiter's timeout. Every later shared lock on the row was
    refused, although all its holders shared it and no transaction waited.
    """
    first, writer, late = impatient.actors_in_order(3)
    first.read(1, "shared")
    with pytest.raises(tm.LockTimeout):
        writer.change(1, 9)
    assert late.read(1, "shared").value == 0


def test_upgrade_of_a_lone_shared_lock_is_granted_at_once_and_held(impatient: Stage) -> None:
    first, second = impatient.actors_in_order(2)
    first.read(1, "shared")
    first.change(1, 5)
    for how in ("shared", "exclusive"):
        with pytest.raises(tm.LockTimeout):
            impatient.actor().read(1, how)
    first.commit()
    assert second.read(1, "exclusive").value == 5


def test_waiter_is_woken_when_its_holder_had_upgraded_meanwhile(stage: Stage) -> None:
    """Story: an upgrade took the shared mark off the row, and with it the mark that a transaction waits. The commit
    then woke no waiter, and the waiter slept to its timeout next to a free row.
    """
    holder, waiter = stage.actors_in_order(2)
    holder.read(1, "shared")
    waiting = waiter.start(lambda txn: txn.update(NAME, 1, {"value": 9}))
    stage.until_waiting(1)
    holder.change(1, 5)
    assert not waiting.done()
    holder.commit()
    waiting.result(timeout=LONG_MS / 2_000)
    waiter.commit()
    assert stage.table[1].value == 9


def test_savepoint_that_is_undone_frees_its_own_exclusive_locks(impatient: Stage) -> None:
    first = impatient.actor()
    first.change(1, 1)

    def block(txn: Any) -> None:
        with pytest.raises(ZeroDivisionError), txn.savepoint():
            txn.update(NAME, 1, {"value": 2})
            txn.update(NAME, 2, {"value": 2})
            txn.insert(NAME, (50, 2))
            raise ZeroDivisionError

    first.do(block)
    other = impatient.actor()
    other.change(2, 7)
    other.do(lambda txn: txn.insert(NAME, (50, 7)))
    other.commit()
    with pytest.raises(tm.LockTimeout):
        impatient.actor().change(1, 7)
    first.commit()
    assert [impatient.table[key].value for key in (1, 2, 50)] == [1, 7, 7]


@pytest.mark.parametrize(
    "take",
    [lambda txn: txn.update(NAME, 2, {"value": 2}), lambda txn: txn.get(NAME, 2, lock="shared")],
    ids=["exclusive", "shared"],
)
def test_savepoint_that_is_undone_wakes_the_waiters_for_its_locks(stage: Stage, take: Callable[[Any], Any]) -> None:
    first, waiter = stage.actors_in_order(2)
    locked, gate = threading.Event(), threading.Event()

    def block(txn: Any) -> None:
        with pytest.raises(ZeroDivisionError), txn.savepoint():
            take(txn)
            locked.set()
            gate.wait()
            raise ZeroDivisionError

    undone = first.start(block)
    locked.wait()
    waiting = waiter.start(lambda txn: txn.update(NAME, 2, {"value": 7}))
    stage.until_waiting(1)
    gate.set()
    undone.result(timeout=100)
    waiting.result(timeout=100)
    waiter.commit()
    first.commit()
    assert stage.table[2].value == 7


@pytest.mark.parametrize("how", ["update", "delete"])
def test_shared_lock_upgraded_inside_an_undone_savepoint_is_still_held(impatient: Stage, how: str) -> None:
    """Story: the upgrade replaced the shared lock by the exclusive one, and undoing the savepoint freed that: the row
    was open to writers although its reader had not ended. The same by a delete was found by the stateful test.
    """
    reader = impatient.actor()
    reader.read(1, "shared")

    def block(txn: Any) -> None:
        with pytest.raises(ZeroDivisionError), txn.savepoint():
            TAKES[how](txn)
            raise ZeroDivisionError

    reader.do(block)
    with pytest.raises(tm.LockTimeout):
        impatient.actor().change(1, 9)
    other = impatient.actor()
    assert other.read(1, "shared").value == reader.read(1, "shared").value == 0
    other.commit()
    reader.do(TAKES[how])
    reader.rollback()
    impatient.actor().change(1, 9)
    assert impatient.db.status()["locks"]["shared"] == 0


def test_savepoint_that_is_undone_frees_its_own_shared_locks(impatient: Stage) -> None:
    """Story: it freed its exclusive locks alone, so rows that only the block had read stayed closed to writers."""
    first, second = impatient.actor(), impatient.actor()
    first.read(1, "shared")
    second.read(2, "shared")

    def block(txn: Any) -> None:
        with pytest.raises(ZeroDivisionError), txn.savepoint():
            for key in (1, 2, 3, 4):
                txn.get(NAME, key, lock="shared")
            txn.update(NAME, 3, {"value": 2})
            txn.get(NAME, 4, lock="exclusive")
            raise ZeroDivisionError

    first.do(block)
    for held in (1, 2):
        with pytest.raises(tm.LockTimeout):
            impatient.actor().change(held, 9)
    for freed in (3, 4):
        impatient.actor().change(freed, 9)
    second.change(2, 9)  # the only holder again
    first.commit()
    impatient.actor().change(1, 9)


def test_lock_becomes_the_change_that_follows_it_without_another_operation(stage: Stage) -> None:
    """An operation takes 64 bytes of data memory until the end: an applied epoch had two of them for each row."""
    with stage.db.transaction() as txn:
        assert txn.get(NAME, 1, lock="exclusive") is not None and txn.get(NAME, 2, lock="exclusive") is not None
        txn.update(NAME, 1, {"value": 7})
        txn.delete(NAME, 2)
        assert int(txn.mem[txn.desc + X_OPS]) == 2
        txn.update(NAME, 1, {"value": 8})
        assert int(txn.mem[txn.desc + X_OPS]) == 3
        with pytest.raises(ZeroDivisionError), txn.savepoint():
            txn.update(NAME, 1, {"value": 9})
            raise ZeroDivisionError
        assert txn.get(NAME, 1).value == 8
    assert stage.table[1].value == 8 and stage.table.get(2) is None
    assert stage.db.check()["problems"] == []


def test_lock_taken_before_a_savepoint_outlives_the_change_undone_with_it(impatient: Stage) -> None:
    first = impatient.actor()
    first.read(1, "exclusive")

    def block(txn: Any) -> None:
        with pytest.raises(ZeroDivisionError), txn.savepoint():
            txn.get(NAME, 2, lock="exclusive")
            txn.update(NAME, 1, {"value": 2})
            txn.update(NAME, 2, {"value": 2})
            raise ZeroDivisionError
        assert int(txn.mem[txn.desc + X_OPS]) == 1 and txn.get(NAME, 1).value == 0

    first.do(block)
    with pytest.raises(tm.LockTimeout):
        impatient.actor().change(1, 9)
    other = impatient.actor()
    other.change(2, 7)
    other.commit()
    first.change(1, 3)
    first.commit()
    assert [impatient.table[key].value for key in (1, 2)] == [3, 7]
    assert impatient.db.check()["problems"] == []


def test_a_refusal_names_the_first_of_a_threads_transactions_that_share_the_lock(stage: Stage) -> None:
    """It named any of them: which one depended on the addresses of objects."""
    sharing = [stage.db.transaction() for _ in range(12)]
    for txn in sharing:
        txn.get(NAME, 1, lock="shared")
    while sharing:
        with pytest.raises(tm.Rejected, match=f"{OWN_LOCK[:-2]}{sharing[0].txid:#x};"):
            stage.table.update(1, {"value": 1})
        sharing.pop(0).rollback()
