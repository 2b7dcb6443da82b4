"""MemoryError at any point of the applier (F103): an epoch is applied once or never, and the next try continues."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

import tidemark as tm
from tests.applier.logs import NAME, Log, applier_of, apply_all, make_store, rows_in
from tests.shares import few
from tests.store.interrupts import PACKAGES, ROOT, fail_at
from tests.store.trouble import promises

EVERYWHERE = (*PACKAGES, f"{ROOT}/tidemark/replication/")
POINTS = few(6, 60)


def log_of_two_epochs() -> Log:
    log = Log()
    for epoch in (5, 6):
        log.begin(epoch)
        log.insert(*((epoch * 100 + key, f"v{key}", key) for key in range(30)), transaction_ids=epoch)
        log.update(*(((key, "", 0), (key, "changed", epoch)) for key in range(5)), transaction_ids=epoch + 100)
        log.commit()
    return log


def stage(function: str | None, retries: int) -> tuple[Any, Any]:
    db: Any = make_store(function=function)
    db[NAME].insert_many([(key, "own", 0) for key in range(5)])
    db.sync()
    return db, applier_of(db, retries=retries)


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("function", [None, "NDB$EPOCH_TRANS(31)"])
def test_memory_error_at_any_point_of_an_epoch_applies_it_once_or_not_at_all(
    function: str | None, retries: int
) -> None:
    """Story: a MemoryError from the applier was neither retried nor turned into an error of ours."""
    log = log_of_two_epochs()
    db, applier = stage(function, retries)
    before = rows_in(db)
    points = fail_at(-1, lambda: apply_all(applier, log), MemoryError, EVERYWHERE).count
    after = rows_in(db)
    assert points > 500 and after != before
    seen: Counter[str] = Counter()
    for nth in range(1, points + 1, max(1, points // POINTS)):
        db, applier = stage(function, retries)
        point = fail_at(nth, partial(apply_all, applier, log), MemoryError, EVERYWHERE)
        place = f"point {nth}: {point.where}, and {point.error!r} came out"
        if retries and isinstance(point.error, MemoryError):
            is_of_log = any("applier/transactions.py" in each or "/binlog/" in each for each in point.files)
            assert is_of_log or point.is_entry, f"{place}: no other try"
        if db.parts.store.failure.first is not None:
            seen["the store failed"] += 1
            assert isinstance(point.error, (tm.StoreFailed, tm.OutcomeUnknown)), place
            db = make_store(db.parts.files.kill(), function=function)
        else:
            seen["refused" if point.error else "done"] += 1
            assert set(promises(db).values()) == {0}, f"{place} left {promises(db)}"
        apply_all(applier_of(db), log)  # from the beginning again: applied epochs are skipped
        assert rows_in(db) == after, place
    assert seen["done" if retries else "refused"] > 2, seen
