"""What the errors about locks say: the row, the holder and for how long it has held; and a lock of the thread's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import OWN_LOCK, elsewhere
from tests.engine.stage import NAME, Stage
from tests.store.support import SMALL
from tidemark.database import Database
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles


class Timed:
    """A store whose waits end at once and whose clock the test sets."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        options = Options.from_keywords({**SMALL, "lock_timeout_ms": 0})
        self.db = Database(MemoryFiles(), options, self.clock)
        columns = [tm.Column("a", tm.Int64), tm.Column("b", tm.Char(10)), tm.Column("mail", tm.VarChar(20))]
        self.table = self.db.create_table("test.person", columns, primary_key=["a", "b"])
        self.table.insert_many([(1, "x", "x@x"), (2, "y", "y@y")])

    def refused(self, call: Any) -> Any:
        """The error of a call of another thread that meets a lock."""
        with pytest.raises(tm.LockTimeout) as caught:
            elsewhere(call)
        return caught.value


@pytest.fixture
def timed() -> Iterator[Timed]:
    made = Timed()
    yield made
    made.db.close()


def test_timeout_names_row_and_holder_and_how_long_it_has_held_locks(timed: Timed) -> None:
    with timed.db.transaction() as txn:
        assert txn.get("test.person", (1, "x")).mail == "x@x"
        timed.clock.advance(60)  # reads without a lock do not count
        txn.update("test.person", (1, "x"), {"mail": "z@z"})
        timed.clock.advance(3.2)
        txn.update("test.person", (2, "y"), {"mail": "w@w"})
        error = timed.refused(lambda: timed.table.update((2, "y"), {"mail": "q@q"}))
    assert (error.table, error.key, error.holder, error.held_ms) == ("test.person", (2, "y"), txn.txid, 3_200)
    assert str(error) == (
        f"the lock on the row with key (2, 'y') of test.person was not granted within 0 ms: transaction"
        f" {txn.txid:#x} has held locks for 3,200 ms; this one was rolled back, run it again"
    )


KEY = (2, "y")
WAITING: dict[str, Callable[[Any], object]] = {
    "insert": lambda txn: txn.insert("test.person", (*KEY, "n")),
    "write": lambda txn: txn.write("test.person", (*KEY, "n")),
    "get": lambda txn: txn.get("test.person", KEY, lock="exclusive"),
    "shared": lambda txn: list(txn.scan("test.person", lock="shared")),
    "insert_many": lambda txn: txn.insert_many("test.person", [(7, "z", "n"), (*KEY, "n")]),
    "delete_many": lambda txn: txn.delete_many("test.person", [(1, "x"), KEY]),
    "update_where": lambda txn: txn.update_where("test.person", {"mail": "n"}),
}


@pytest.mark.parametrize("how", WAITING)
def test_every_call_that_waits_names_the_row(timed: Timed, how: str) -> None:
    with timed.db.transaction() as txn:
        txn.delete("test.person", KEY)
        error = timed.refused(lambda: timed.db.run(WAITING[how], retries=0))
        assert (error.key, error.holder) == (KEY, txn.txid)
        txn.rollback()


def test_row_that_is_not_committed_is_named_by_the_key_of_the_call_or_as_new(timed: Timed) -> None:
    with timed.db.transaction() as txn:
        txn.insert("test.person", (9, "z", "m"))
        assert timed.refused(lambda: timed.table.insert((9, "z", "other"))).key == (9, "z")
        assert timed.refused(lambda: timed.table.delete((9, "z"))).key == (9, "z")
        error = timed.refused(lambda: timed.table.insert_many([(9, "z", "other")]))
        assert error.key is None and str(error).startswith("the lock on a new row of test.person was not granted")
        txn.rollback()


def test_row_that_conflicts_with_a_unique_key_is_named_by_its_own_primary_key(timed: Timed) -> None:
    timed.db.create_index("test.person", "by_mail", ["mail"], unique=True)
    with timed.db.transaction() as txn:
        txn.delete("test.person", (2, "y"))
        assert timed.refused(lambda: timed.table.insert((5, "v", "y@y"))).key == (2, "y")
        assert timed.refused(lambda: timed.table.delete("y@y", index="by_mail")).key == (2, "y")
        txn.insert("test.person", (6, "u", "u@u"))
        assert timed.refused(lambda: timed.table.insert((5, "v", "u@u"))).key is None


def test_of_several_that_share_a_row_the_one_with_the_oldest_lock_is_named(timed: Timed) -> None:
    holders = [timed.db.transaction() for _ in range(3)]
    for holder in (holders[1], holders[2], holders[0]):
        holder.get("test.person", (1, "x"), lock="shared")
        timed.clock.advance(1)
    error = timed.refused(lambda: timed.table.delete((1, "x")))
    assert (error.holder, error.held_ms) == (holders[1].txid, 3_000)
    for holder in holders:
        holder.rollback()


@pytest.mark.parametrize("last", ["victim", "survivor"])
def test_victim_of_a_deadlock_reads_the_same_whichever_thread_finds_it(stage: Stage, last: str) -> None:
    """Story: the victim had one text if its own wait closed the circle and another if that of the survivor did. The
    page of errors is made from such a race, and differed from run to run.
    """
    old, young = stage.actors_in_order(2)
    old.change(1, 1)
    young.change(2, 1)

    def wait(actor: Any, key: int) -> Any:
        return actor.start(lambda txn: txn.update(NAME, key, {"value": 2}))

    first, second = ((old, 2), (young, 1)) if last == "victim" else ((young, 1), (old, 2))
    futures = {first[0]: wait(*first)}
    stage.until_waiting(1)
    futures[second[0]] = wait(*second)
    with pytest.raises(tm.Deadlock) as caught:
        futures[young].result(timeout=100)
    futures[old].result(timeout=100)
    error = caught.value
    assert (error.table, error.key, error.holder) == (NAME, 1, old.txn.txid) and error.held_ms >= 0
    assert str(error) == (
        f"deadlock: this transaction waits for the row with key 1 of {NAME}, which transaction"
        f" {old.txn.txid:#x} holds; this transaction was rolled back, run it again"
    )
    old.commit()


@pytest.mark.parametrize("how", ["shared", "exclusive"])
def test_thread_that_would_wait_for_itself_is_refused_at_once_and_its_transactions_continue(
    stage: Stage, how: str
) -> None:
    """Story: a thread that met a lock of another transaction of its own waited for the whole timeout, and the error
    did not say that no other thread was concerned.
    """
    with stage.db.transaction() as first, stage.db.transaction() as second:
        first.get(NAME, 1, lock=how)
        second.update(NAME, 2, {"value": 5})
        with pytest.raises(tm.Rejected, match=f"^the row with key 1 of {NAME}: {OWN_LOCK[:-2]}") as caught:
            second.update_many(NAME, {"id": [3, 1], "value": [7, 7]})
        assert caught.value.holder == first.txid and caught.value.key == 1
        with pytest.raises(tm.Rejected, match="; commit or roll it back first$"):
            stage.table.delete(1)
        assert second.get(NAME, 2).value == 5 and second.get(NAME, 3).value == 0
        first.rollback()
        second.update(NAME, 1, {"value": 6})
    assert [stage.table[key].value for key in (1, 2, 3)] == [6, 5, 0]
    assert stage.db.parts.store.locks.counters()["waits"] == 0
