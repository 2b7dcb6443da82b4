"""Changes by kernels with `durability="commit"`: what has returned is on the disk, and what fails says so, as on the
general path.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import at_once
from tests.shares import some
from tests.store.interrupts import fail_at
from tests.store.support import open_memory, rows_of
from tests.waiting import wait_until
from tidemark.engine.point.changes import DONE, LEFT, CommittedChanges
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.t"
COLUMNS = [
    *(tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("text", tm.VarChar(20), nullable=True)),
    tm.Column("code", tm.Int64),
]
ROWS = 20
RAISED = -9
PATHS = [True, False]  # kernels make what they can, or nothing


def store() -> MemoryFiles:
    """The disk of a store with a few rows and a unique index, which was closed."""
    files = MemoryFiles()
    db = open_memory(files)
    table = db.create_table(NAME, COLUMNS, "id")
    db.create_index(NAME, "by_code", "code", unique=True)
    table.insert_many([(number, 0, "a", 100 + number) for number in range(ROWS)])
    db.close()
    return MemoryFiles(files.disk)


@contextmanager
def path(is_quick: bool) -> Iterator[list[int]]:
    """Let kernels make the changes, or the general path; the statuses of calls of kernels."""
    found: list[int] = []
    make = CommittedChanges.make

    def counted(*given: Any) -> int:
        status = RAISED if is_quick else LEFT
        try:
            if is_quick:
                status = make(*given)
        finally:
            found.append(status)
        return status

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommittedChanges, "make", counted)
        yield found


def both(scenario: Callable[[], Any]) -> Any:
    """What a scenario gives on both paths, which must be the same."""
    found = []
    for is_quick in PATHS:
        with path(is_quick) as statuses:
            found.append(scenario())
        assert any(status != LEFT for status in statuses) == is_quick
    assert found[0] == found[1]
    return found[0]


def ready(db: Any) -> Any:
    """The table of a store just opened, whose plan is made by a first read."""
    table = db[NAME]
    table.get(0)
    return table


def after_power_loss(files: MemoryFiles) -> Any:
    """The rows that are on the disk for certain."""
    return rows_of(open_memory(files.image(lambda piece: False)), NAME)


CALLS: list[Callable[[Any], Any]] = [
    lambda table: table.insert((50, 1, "new", 1)),
    lambda table: table.insert({"id": 51, "n": 2, "text": None, "code": 2}),
    lambda table: table.write((1, 3, "written", 3)),
    lambda table: table.update(2, {"n": 4}),
    lambda table: table.update(3, {"text": "longer"}),
    lambda table: table.update(104, {"n": 5}, index="by_code"),
    lambda table: table.update(5, {"n": tm.col("n") + 6}),
    lambda table: table.update(6, {"n": tm.col("n") + 7}, tm.col("n") == 0),
    lambda table: table.update(7, {"code": 8}),
    lambda table: table.delete(8),
    lambda table: table.delete(9, tm.col("n") == 0),
    lambda table: table.delete(110, index="by_code"),
]


def test_each_change_that_has_returned_is_on_the_disk() -> None:
    def scenario() -> Any:
        files = store()
        db = open_memory(files)
        table, seen = ready(db), []
        for call in CALLS:
            call(table)
            assert not db.parts.store.log.has_records()
            seen.append(after_power_loss(files))
            assert seen[-1] == rows_of(db, NAME)
        status = db.status()
        return seen, status["log"], status["transactions"]

    states, log, _ = both(scenario)
    assert all(before != after for before, after in zip(states, states[1:], strict=False))
    assert log["transactions_written"] >= len(CALLS)


@pytest.mark.parametrize("call", ["update", "delete"])
def test_what_refused_a_row_is_on_the_disk_once_the_call_has_returned(call: str) -> None:
    """The caller acts on a value that another transaction has made visible, but not durable yet."""

    def scenario() -> Any:
        files = store()
        db = open_memory(files)
        table, txn = ready(db), db.transaction()
        txn.update(NAME, 1, {"n": -1})
        txn.commit(wait=False)
        assert after_power_loss(files)[1][1] == 0
        where = tm.col("n") >= 0
        assert not (table.update(1, {"n": 5}, where) if call == "update" else table.delete(1, where))
        return after_power_loss(files)[1], db.status()["log"]["transactions_written"]

    assert both(scenario)[0] == (1, -1, "a", 101)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call raises."""
    try:
        return call()
    except (tm.Error, KeyboardInterrupt) as error:
        return type(error), str(error), getattr(error, "evidence", None)


def txid_of(found: Any) -> int:
    """The transaction that an error names."""
    assert isinstance(found, tuple) and found[2], f"no error names a transaction: {found}"
    return int(found[2]["txid"])


FAULTS = [("fdatasync", errno.EIO), ("pwrite", errno.EIO), ("pwrite", errno.ENOSPC)]


@pytest.mark.parametrize(("operation", "number"), FAULTS)
@pytest.mark.parametrize("at", ["first", "second"])
def test_change_whose_write_or_sync_fails_is_not_acknowledged(operation: str, number: int, at: str) -> None:
    def scenario() -> Any:
        memory = store()
        files: Any = FaultFiles(memory)
        db = open_memory(files)
        table = ready(db)
        if at == "second":
            table.update(1, {"n": 1})
        files.faults.add(Rule(operation, "redo/*", error=number))
        found = outcome(lambda: table.update(2, {"n": 2}))
        later = [outcome(lambda: table.update(1, {"n": 9})), outcome(lambda: table.get(1))]
        assert all(issubclass(each[0], tm.StoreFailed) for each in later)
        state = db.status()["store"]["state"]
        kept, killed = after_power_loss(memory), open_memory(memory.kill())
        shown = killed.outcome(txid_of(found))
        assert shown == ("committed" if killed[NAME].get(2).n == 2 else "aborted")
        return found, later, state, kept, shown

    (kind, text, evidence), _, state, kept, _ = both(scenario)
    assert kind is tm.CommitOnFailedStore and "before the commit was durable" in text and evidence["txid"] > 0
    assert state == "failed"
    assert kept[2][1] == 0 and kept[1][1] == (at == "second")


def interrupt() -> None:
    raise KeyboardInterrupt


def test_change_that_ctrl_c_interrupts_at_the_disk_names_its_transaction() -> None:
    def scenario() -> Any:
        files: Any = FaultFiles(store())
        db = open_memory(files)
        table = ready(db)
        files.faults.add(Rule("fdatasync", "redo/*", stall=interrupt))
        found = outcome(lambda: table.update(1, {"n": 1}))
        shown = db.outcome(txid_of(found)), table.get(1).n
        assert table.update(2, {"n": 2})
        return found, shown

    (kind, _, _), shown = both(scenario)
    assert kind is tm.CommitInterrupted and shown == ("committed", 1)


def test_change_that_finds_the_log_full_is_refused_and_the_store_continues() -> None:
    def scenario() -> Any:
        db = open_memory(store())
        table, made, found = ready(db), 0, True
        while found is True:
            made += 1
            found = outcome(lambda made=made: table.update(1, {"n": made}))  # type: ignore[misc]
        made -= 1
        assert table.get(1).n == made
        db.checkpoint()
        db.checkpoint()
        assert table.update(1, {"n": -1})
        return made, found

    made, found = both(scenario)
    assert made > 100 and found[0] is tm.RedoOverloaded


def test_change_in_a_store_that_was_closed_is_refused() -> None:
    def scenario() -> Any:
        db = open_memory(store())
        table = ready(db)
        table.update(1, {"n": 1})
        db.close()
        return [outcome(lambda call=call: call(table)) for call in CALLS]  # type: ignore[misc]

    assert {each[0] for each in both(scenario)} == {tm.StoreClosed}


@pytest.mark.parametrize("is_quick", PATHS)
def test_change_under_way_is_durable_before_the_store_closes(is_quick: bool) -> None:
    memory = store()
    at_disk, resume = threading.Event(), threading.Event()

    def stall() -> None:
        at_disk.set()
        assert resume.wait(60)

    files: Any = FaultFiles(memory)
    db = open_memory(files)
    table = ready(db)
    found: list[bool] = []
    files.faults.add(Rule("fdatasync", "redo/*", stall=stall))
    with path(is_quick):
        threads = [threading.Thread(target=lambda: found.append(table.update(1, {"n": 1})))]
        threads[0].start()
        assert at_disk.wait(60)
        threads.append(threading.Thread(target=db.close))
        threads[1].start()
        wait_until(lambda: db.parts.store.log.writing.followers == 1)
        resume.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert found == [True] and after_power_loss(memory)[1][1] == 1


def test_sixteen_threads_lose_no_change_that_has_returned() -> None:
    """Images of the disk are taken at any moment of the load: they have at least what had returned before."""
    files = store()
    db = open_memory(files, redo_log="8 MiB")
    table, steps = ready(db), 12
    returned = [0] * ROWS
    images: list[tuple[list[int], MemoryFiles]] = []

    def work(number: int) -> None:
        for step in range(1, steps + 1):
            assert table.update(number, {"n": step})
            returned[number] = step
            if step % 4 == number % 4 and number < 4:
                images.append((list(returned), files.image(lambda piece: False)))

    with path(True) as statuses:
        at_once(work, range(16))
    assert statuses.count(DONE) == 16 * steps
    assert db.parts.store.log.writing.followers == 0
    log = db.status()["log"]
    assert log["groups_written"] <= 16 * steps + 10 and db.status()["transactions"]["commit_seconds"]["count"] >= 192
    images.append((list(returned), files.image(lambda piece: False)))
    assert len(images) == 13
    for before, image in images:
        again = open_memory(image, redo_log="8 MiB")
        assert all(again[NAME].get(number).n >= before[number] for number in range(16))


def test_leader_that_ctrl_c_ends_leaves_no_other_change_waiting() -> None:
    memory = store()
    files: Any = FaultFiles(memory)
    db = open_memory(files)
    table = ready(db)
    found: list[bool] = []

    def change(number: int) -> None:
        found.append(table.update(number, {"n": number}))

    followers = [threading.Thread(target=change, args=(number,)) for number in (2, 3, 4)]

    def stall() -> None:
        for each in followers:
            each.start()
        wait_until(lambda: db.parts.store.log.writing.followers == 3)
        raise KeyboardInterrupt

    files.faults.add(Rule("fdatasync", "redo/*", stall=stall))
    with path(True), pytest.raises(tm.CommitInterrupted):
        table.update(1, {"n": 1})
    for each in followers:
        each.join(60)
        assert not each.is_alive()
    assert found == [True] * 3 and db.parts.store.log.writing.followers == 0
    assert [after_power_loss(memory)[number][1] for number in (1, 2, 3, 4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("is_known", [True, False])
def test_memory_error_at_any_point_changes_nothing_or_fails_the_store(is_known: bool) -> None:
    """An error that says that nothing was changed would let the caller make the change twice."""
    contents = store().snapshot()

    def fresh() -> Any:
        db = open_memory(MemoryFiles.from_snapshot(contents))
        ready(db)
        assert db[NAME].update(0, {"n": tm.col("n") + 1} if is_known else {"n": 1}, tm.col("n") == 0)
        return db, db[NAME]

    def work(table: Any) -> None:
        table.update(1, {"n": tm.col("n") + 1}, tm.col("n") == 0)

    db, table = fresh()
    with path(True) as statuses:
        work(table)
        work(table)
    assert statuses == [1, 2] if is_known else [0, 1, 2]
    db, table = fresh()
    points = fail_at(-1, lambda: work(table), MemoryError).count
    seen: set[Any] = set()
    # Each third: three points lie between the change in memory and the log that waits for the disk.
    for nth in some(range(1, points + 1), 0.34):
        db, table = fresh()
        point = fail_at(nth, lambda table=table: work(table), MemoryError)  # type: ignore[misc]
        place = f"{point.where}: {point.error!r}"
        kept = after_power_loss(db.parts.files)[1][1]
        if isinstance(point.error, tm.CommitOnFailedStore):
            assert db.parts.store.failure.first is not None, place
            again, txid = open_memory(db.parts.files.kill()), point.error.evidence["txid"]
            assert isinstance(txid, int) and again.outcome(txid) == ("committed" if again[NAME].get(1).n else "aborted")
        elif point.error is None:
            assert kept == 1, place
        else:
            assert db.parts.store.failure.first is None and table.get(1).n == kept == 0, place
        seen.add(type(point.error))
    assert tm.CommitOnFailedStore in seen and (is_known or tm.MemoryExhausted in seen)
