"""MemoryError at any point of a call (F103): a typed error, nothing lost, and a store that continues or says it failed.

Python raises MemoryError wherever it makes an object, so nearly everywhere. A profile function raises it at each call
and each return of a C function inside the packages, as tests of Ctrl-C do; a limit of the address space gives real
ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from tests.elsewhere import in_child
from tests.engine.arena_check import check_arena
from tests.shares import few
from tests.store.interrupts import Point, fail_at
from tests.store.support import ACCOUNT, open_memory
from tests.store.test_surroundings import address_space_bytes, leave_address_space, take_free_memory
from tests.store.test_trouble_interrupts import CASES, NAME, OPTIONS, Case, contents, state_of
from tests.store.trouble import promises
from tidemark.engine.txn import resources, transaction
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

# On the way into these, no work has begun yet, or an error is under way already, which the caller gets unchanged.
ON_THE_WAY = ("in __enter__", "in __exit__", "in rollback", "in _in_own_transaction")
# On the way into this pages stay pinned.
LETTING_GO = "in release"
POINTS = few(5, 80)  # per case


def is_the_callers(point: Point) -> bool:
    """Whether a MemoryError at a point comes out as it is: also where a caller makes a condition, before the call."""
    where = point.where
    return point.is_entry or where.endswith(ON_THE_WAY) or where.startswith("tidemark/engine/programs/expressions.py")


@pytest.fixture(scope="module", params=["memory", "disk"])
def start(request: Any) -> dict[str, bytes]:
    """What every run starts from."""
    return contents(request.param)


def fresh(start: dict[str, bytes]) -> Any:
    db: Any = open_memory(MemoryFiles.from_snapshot(start), **OPTIONS)
    db.create_table("test.other", [tm.Column("id", tm.Int64)], primary_key="id")
    return db


def chosen(points: int, most: int) -> range:
    return range(1, points + 1, max(1, points // most))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_memory_error_at_any_point_is_typed_and_leaves_all_or_nothing(start: dict[str, bytes], case: Case) -> None:
    """Story: a MemoryError left calls unchanged. After the decisive step of a commit, its caller could only take the
    transaction for rolled back. In the middle of a rollback the rows stayed locked.
    """
    db = fresh(start)
    before = state_of(db)
    points = fail_at(-1, lambda: case.work(db), MemoryError).count
    after = state_of(db)
    seen: Counter[str] = Counter()
    for nth in chosen(points, POINTS // 2 if "double-write" in start else POINTS):
        db = fresh(start)
        point = fail_at(nth, lambda db=db: case.work(db), MemoryError)  # type: ignore[misc]
        place = f"point {nth}: {point.where}, and {point.error!r} came out"
        is_on_the_way = is_the_callers(point)
        assert is_on_the_way or point.error is None or isinstance(point.error, tm.Error), place
        if is_on_the_way:
            db.parts.store.transactions.roll_back_all()
        failed = db.parts.store.failure.first is not None
        if failed:
            seen["the store failed"] += 1
            assert isinstance(point.error, (tm.StoreFailed, tm.OutcomeUnknown)), place
            with pytest.raises(tm.StoreFailed):
                db[NAME].get(1)
            db = open_memory(db.parts.files.kill(), **OPTIONS)
            assert state_of(db) in (before, after), place
        else:
            seen["refused" if point.error is not None else "done"] += 1
            held = promises(db)
            assert set(held.values()) == {0} or point.where.endswith(LETTING_GO), f"{place} left {held}"
            now = state_of(db)
            assert now in (before, after), place
            if isinstance(point.error, tm.OutcomeUnknown):
                seen["unknown"] += 1
            elif isinstance(point.error, tm.Retryable):
                assert now == before, f"{place}, and something was done"
        db[NAME].write_many([(number, "next", 0.0, None) for number in range(50)])  # would locks be left in the way?
        db.sync()
        db.checkpoint()
        now = state_of(db)
        assert state_of(open_memory(db.parts.files.kill(), **OPTIONS)) == now, place
    assert seen["refused"], f"no call was refused: {seen}"


def calls_with(table: Any, long: str) -> dict[str, Callable[[], Any]]:
    """Calls on a table that need memory for 64 texts."""
    rows = [(number, "new", 2.0, long) for number in range(1_000, 1_000 + 64)]
    data = pa.table([list(column) for column in zip(*rows, strict=True)], names=[column.name for column in ACCOUNT])
    return {
        "insert_many of rows": lambda: table.insert_many(rows),
        "insert_many of a table": lambda: table.insert_many(data),
        "update_where": lambda: table.update_where({"note": long}, where=tm.col("id") >= 0),
        "to_arrow": table.to_arrow,
        "get_many": lambda: table.get_many(range(64)),
        "list": lambda: list(table.scan()),
    }


def use_everything(directory: Path) -> None:
    """The same calls before there is a limit: LLVM ends a process that has no space for code it loads."""
    with tm.open(directory, data_memory="16 MiB", redo_log="16 MiB", background=False) as db:
        db.create_table(NAME, ACCOUNT, primary_key="id").write((0, "old", 1.0, "short"))
        for call in calls_with(db[NAME], "short").values():
            with suppress(tm.Error):
                call()


def limited(directory: Path, room_bytes: int) -> list[dict[str, Any]]:
    """Calls that need more than the room there is left, one after the other, each followed by a look at the store."""
    options = {"data_memory": "192 MiB", "redo_log": "256 MiB", "transaction_memory": "8 MiB", "background": False}
    long = "x" * (1 << 20)
    use_everything(directory / "used")
    found = []
    with tm.open(directory, **options) as db:
        table = db[NAME]
        table.to_arrow()
        calls = calls_with(table, long)
        calls["opening of another store"] = lambda: tm.open(directory / "more", data_memory="256 MiB")
        take_free_memory()
        most_bytes = address_space_bytes() + room_bytes
        for name, call in calls.items():
            end = leave_address_space(most_bytes - address_space_bytes())
            error: BaseException | None = None
            try:
                call()
            except tm.Error as caught:
                error = caught
            end()
            cause = None if error is None else type(error.__cause__).__name__
            found.append({"call": name, "error": type(error).__name__, "cause": cause, "rows": len(table)})
            del error
            table.write((0, name, 1.0, long))  # the store continues
    return found


def test_process_without_address_space_gets_typed_errors_and_loses_nothing(tmp_path: Path) -> None:
    """Story: the collector freed a store of the parent in the middle, and the calls that need 48 MiB found them."""
    cycle: list[Any] = [np.zeros(1 << 26, np.uint8)]
    cycle.append(cycle)
    blocks = [bytearray(100_000) for _ in range(1_000)]
    del cycle, blocks[1::2], blocks[::4]  # and holes in the heap
    store = tmp_path / "store"
    with tm.open(store, data_memory="192 MiB", redo_log="256 MiB", background=False) as db:
        db.create_table(NAME, ACCOUNT, primary_key="id")
        for number in range(48):
            db[NAME].insert((number, "old", 1.0, "y" * (1 << 20)))
    found = in_child(lambda: limited(store, 12 << 20))
    assert len(found) == 7
    opening = found[-1]
    assert opening["error"] in ("LimitExceeded", "MemoryExhausted", "NoneType"), found
    refused = [each for each in found if each["error"] in ("LimitExceeded", "MemoryExhausted")]
    assert {each["error"] for each in found[:-1]} <= {"MemoryExhausted", "NoneType"}, found
    assert {each["rows"] for each in found} == {48}, f"what was refused left rows: {found}"
    assert len(refused) >= 5, f"there was room for most calls: {found}"
    assert any(each["cause"] and each["cause"].endswith("MemoryError") for each in refused), found
    with tm.open(store, data_memory="192 MiB", background=False) as db:
        rows = {row.id: (row.owner, row.note) for row in db[NAME].scan()}
        assert len(rows) == 48 and rows[0] == (found[-1]["call"], "x" * (1 << 20))
        assert all(rows[number] == ("old", "y" * (1 << 20)) for number in range(1, 48))


def test_memory_error_at_any_point_of_an_opening_is_typed_and_changes_nothing_that_counts(
    start: dict[str, bytes],
) -> None:
    """Until its first write, a failing restart has changed no byte; after it, only the record of the opening has
    changed.
    """
    expected = state_of(open_memory(MemoryFiles.from_snapshot(start), **OPTIONS))
    opened = MemoryFiles.from_snapshot(start)
    points = fail_at(-1, lambda: open_memory(opened, **OPTIONS), MemoryError).count
    assert points > 1_000
    seen: Counter[str] = Counter()
    has_begun = False  # the lock is taken then
    for nth in (*chosen(points, 2 * POINTS), points - 1):  # the last one comes after the first write
        files = MemoryFiles.from_snapshot(start)
        point = fail_at(nth, lambda files=files: open_memory(files, **OPTIONS), MemoryError)  # type: ignore[misc]
        place = f"point {nth}: {point.where}, and {point.error!r} came out"
        is_before = point.is_entry or point.where.startswith("tidemark/engine/base/options.py")
        known = (tm.LimitExceeded, tm.MemoryExhausted, tm.StoreFailed, type(None))
        assert is_before or isinstance(point.error, known), place
        has_begun |= any("/recovery/" in each for each in point.files)
        after = files.kill()  # which a file that is still open, or the lock, would not keep from being opened
        seen["same bytes" if after.snapshot() == start else "written"] += 1
        assert state_of(open_memory(after, **OPTIONS)) == expected, place
        assert point.error is None or not files.disk.is_locked, place
        if point.error is not None and has_begun:
            with pytest.raises(tm.StoreClosed):
                files.lock()  # closed with everything in it, so nothing is held
    assert has_begun and seen["same bytes"] and seen["written"], seen


def snapshot_reads(db: Any) -> None:
    with db.snapshot() as snapshot:
        table = snapshot[NAME]
        assert table.get(1) is not None and len(table) == 40
        assert table.to_arrow().num_rows == 40 and table.get_many([1, 2]).num_rows == 2
        assert len(list(table.scan(where=tm.col("id") < 5))) == 5


def test_memory_error_at_any_point_of_a_snapshot_leaves_none_open(start: dict[str, bytes]) -> None:
    db = fresh(start)
    before = state_of(db)
    points = fail_at(-1, lambda: snapshot_reads(db), MemoryError).count
    refused = 0
    for nth in chosen(points, 4 * POINTS):
        point = fail_at(nth, lambda db=db: snapshot_reads(db), MemoryError)  # type: ignore[misc]
        place = f"point {nth}: {point.where}, and {point.error!r} came out"
        is_refused = isinstance(point.error, tm.MemoryExhausted)
        refused += is_refused
        if isinstance(point.error, tm.StoreFailed):
            assert db.parts.store.failure.first is not None, place
            db = open_memory(db.parts.files.kill(), **OPTIONS)
            assert state_of(db) == before, place
            continue
        assert is_refused or is_the_callers(point) or point.error is None, place
        db.parts.store.snapshots.close_all()
        snapshot_reads(db)
        assert not db.parts.store.users.pins, place
    assert refused > POINTS


def refusals(work: Callable[[str], object], most: int) -> Iterator[tuple[Point, str, str]]:
    """Run `work` with a MemoryError at up to `most` of its points, each time with a new name; yield point, name, and a
    description. Every error that comes out is typed, and at least one does.
    """
    points = fail_at(-1, lambda: work("first"), MemoryError).count
    refused = 0
    for nth in chosen(points, most):
        point = fail_at(nth, partial(work, str(nth)), MemoryError)
        said = f"point {nth}: {point.where}, and {point.error!r} came out"
        refused += point.error is not None
        assert point.error is None or isinstance(point.error, tm.Error) or point.is_entry, said
        yield point, str(nth), said
    assert refused


def test_memory_error_at_any_point_of_a_backup_is_typed_and_the_next_one_is_whole(tmp_path: Path) -> None:
    db = fresh(contents("memory"))
    for _, name, said in refusals(lambda name: db.backup(tmp_path / name), POINTS // 2):
        assert set(promises(db).values()) == {0}, said
        db.backup(tmp_path / name)
        tm.restore(tmp_path / name, tmp_path / f"restored {name}")
        with tm.open(tmp_path / f"restored {name}", data_memory="16 MiB", background=False) as restored:
            assert state_of(restored)[NAME] == state_of(db)[NAME], said


def test_memory_error_at_any_point_of_a_restore_is_typed_and_leaves_no_store_or_the_whole_one(tmp_path: Path) -> None:
    db = fresh(contents("memory"))
    place = tmp_path / "place"
    db.backup(place)

    def restore(name: str) -> None:
        tm.restore(place, tmp_path / name, redo_log="8 MiB", data_memory="16 MiB")

    for point, name, said in refusals(restore, POINTS // 2):
        if point.error is not None:
            with suppress(tm.Rejected):  # the whole one is there
                restore(name)
        with tm.open(tmp_path / name, data_memory="16 MiB", background=False) as restored:
            assert state_of(restored)[NAME] == state_of(db)[NAME], said


def test_memory_error_at_any_point_of_a_comparison_is_typed_and_nothing_stays_open(tmp_path: Path) -> None:
    db = fresh(contents("memory"))
    place = tmp_path / "place"
    db.backup(place)

    def compare(_: str = "") -> None:
        assert tm.diff(db, place)["is_equal"]

    for point, _, said in refusals(compare, 2 * POINTS):
        if isinstance(point.error, tm.StoreFailed):  # in the write of the log, for the snapshot
            assert db.parts.store.failure.first is not None, said
            db = open_memory(db.parts.files.kill(), **OPTIONS)
        assert not db.parts.store.users.pins, said
        compare()


class Short:
    """A function that has no memory for its first calls."""

    def __init__(self, work: Callable[..., Any], times: int) -> None:
        self._work = work
        self.times = times

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise MemoryError
        return self._work(*arguments, **options)


@pytest.mark.parametrize("call", ["insert", "sync", "snapshot"])
def test_memory_error_in_the_write_of_the_log_is_a_failed_store(
    start: dict[str, bytes], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = fresh(start)
    before = state_of(db)
    log = db.parts.store.log
    with db.transaction() as txn:
        txn.delete(NAME, 7)
        txn.commit(False)
    monkeypatch.setattr(log, "write", Short(log.write, 1))
    # Story: a sync or a snapshot advised its caller to ask for the outcome of a transaction that did not exist.
    with pytest.raises(tm.CommitOnFailedStore if call == "insert" else tm.StoreFailed) as caught:
        {"insert": lambda: db[NAME].insert((100, "a", 1.0, None)), "sync": db.sync, "snapshot": db.snapshot}[call]()
    assert call != "insert" or caught.value.evidence["txid"] > 0
    with pytest.raises(tm.StoreFailed):
        db[NAME].get(1)
    again = state_of(open_memory(db.parts.files.kill(), **OPTIONS))
    assert again == before, "nothing had been written yet"


@pytest.mark.parametrize("times", [1, 2])
def test_memory_error_in_a_rollback_is_tried_again_once(
    start: dict[str, bytes], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a transaction met a MemoryError in the middle of its rollback, and its rows stayed locked."""
    db = fresh(start)
    before = state_of(db)
    txn = db.transaction()
    txn.write_many(NAME, [(number, "new", 0.0, None) for number in range(40)])
    monkeypatch.setattr(transaction, "abort_step", Short(transaction.abort_step, times))
    if times == 1:
        txn.rollback()
        assert set(promises(db).values()) == {0} and state_of(db) == before
        db[NAME].write_many([(number, "next", 0.0, None) for number in range(40)])
    else:
        with pytest.raises(tm.StoreFailed):
            txn.rollback()
        with pytest.raises(tm.StoreFailed):
            db[NAME].get(1)
        assert state_of(open_memory(db.parts.files.kill(), **OPTIONS)) == before


def test_memory_error_at_the_beginning_of_a_transaction_loses_no_descriptor(
    start: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the descriptor was taken before the buffer. When there was no memory for the buffer, it was
    not returned.
    """
    db = fresh(start)
    held = [db.transaction() for _ in range(5)]
    for txn in held:
        txn.begin()
    check_arena(db)
    with monkeypatch.context() as patch:
        patch.setattr(resources, "np", SimpleNamespace(zeros=Short(np.zeros, 3), int64=np.int64))
        for _ in range(3):
            txn = db.transaction()
            with pytest.raises(tm.MemoryExhausted):
                txn.begin()
            assert txn.is_ended
    check_arena(db)
    for txn in held:
        txn.rollback()
    check_arena(db)
