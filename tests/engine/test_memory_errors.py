"""MemoryError at any point of a call (F103): a typed error, nothing lost, and a store that goes on or says it failed.

Python raises MemoryError where it makes an object, so nearly everywhere. A profile function raises it at each call and
each return of a C function inside the packages, as tests of Ctrl-C do; a limit of the address space gives real ones.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tidemark as tm
from engine.file_doubles.memory import MemoryFiles
from tests.shares import few
from tests.store.interrupts import fail_at
from tests.store.support import open_memory
from tests.store.test_trouble_interrupts import CASES, NAME, OPTIONS, Case, contents, state_of
from tests.store.trouble import promises

# On the way into these nothing has begun yet, or an error is under way already, that the caller gets as it is.
ON_THE_WAY = ("in __enter__", "in __exit__", "in rollback", "in _alone")
POINTS = few(5, 0)  # per case; 0 is all


@pytest.fixture(scope="module", params=["memory", "disk"])
def start(request: Any) -> dict[str, bytes]:
    """What every run starts from."""
    return contents(request.param)


def fresh(start: dict[str, bytes]) -> Any:
    db: Any = open_memory(MemoryFiles.from_snapshot(start), **OPTIONS)
    db.create_table("test.other", [tm.Column("id", tm.Int64)], primary_key="id")
    return db


def chosen(points: int, most: int) -> range:
    return range(1, points + 1, max(1, points // most) if most else 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_memory_error_at_any_point_is_typed_and_leaves_all_or_nothing(start: dict[str, bytes], case: Case) -> None:
    """Story: a MemoryError came out of calls as it was. Behind the one step of a commit its user could only take the
    transaction for rolled back; in the middle of a rollback the rows stayed locked.
    """
    db = fresh(start)
    before = state_of(db)
    points = fail_at(-1, lambda: case.work(db), MemoryError).count
    after = state_of(db)
    seen: Counter[str] = Counter()
    for nth in chosen(points, POINTS // 4 if "double-write" in start else POINTS):
        db = fresh(start)
        point = fail_at(nth, lambda db=db: case.work(db), MemoryError)  # type: ignore[misc]
        place = f"point {nth}: {point.where}, and {point.error!r} came out"
        is_on_the_way = point.where.endswith(ON_THE_WAY)
        assert is_on_the_way or point.error is None or isinstance(point.error, tm.Error), place
        for txn in list(db.parts.store.locks.by_slot.values()) if is_on_the_way else ():
            txn.rollback()
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
            assert set(held.values()) == {0}, f"{place} left {held}"
            now = state_of(db)
            assert now in (before, after), place
            if isinstance(point.error, tm.OutcomeUnknown):
                seen["unknown"] += 1
            elif isinstance(point.error, tm.Retryable):
                assert now == before, f"{place}, and something was done"
        db[NAME].write_many([(number, "next", 0.0, None) for number in range(50)])  # whose locks would be in the way?
        db.sync()
        db.checkpoint()
        now = state_of(db)
        assert state_of(open_memory(db.parts.files.kill(), **OPTIONS)) == now, place
    assert seen["refused"], f"no call was refused: {seen}"
