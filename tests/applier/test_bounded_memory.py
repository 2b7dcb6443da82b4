"""Epochs with more rows than fit in memory: keys are tracked in parts, or the applier stops and leaves no trace."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tidemark as tm
import tidemark.replication.applier.applier as rooms
from tests.applier.logs import NAME, SOURCE, Log, applier_of, apply_all, make_store, positions_in, rows_in, status_of
from tidemark.engine.base.errors import TransactionTooLarge
from tidemark.replication.conflict.tracker import DependencyTracker

ROWS = 6_000
HELD_ROWS = 1_000
SEED = 20_261_122


@pytest.fixture
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "MEMORY_BYTES_MIN", 1 << 18)


def low(function: str | None, memory: str = "64 KiB") -> tm.Database:
    """A store with 64 KiB for changes of a transaction."""
    return make_store(function=function, transaction_memory=memory, data_memory="64 MiB", redo_log="32 MiB")


def roomy(function: str | None) -> tm.Database:
    return low(function, "16 MiB")


def in_conflict(db: Any, *keys: int) -> None:
    """Insert rows that only this site has and the source does not know of."""
    for key in keys:
        db[NAME].insert((key, "own", 0))
    db.sync()


def transactional_log(seed: int) -> Log:
    """Return a log with one epoch of transactions of 40 to 80 rows; some change a row of an earlier one."""
    r = random.Random(seed)
    log = Log()
    log.begin(5)
    keys = list(range(ROWS))
    r.shuffle(keys)
    done = 0
    while done < ROWS:
        some = keys[done : done + r.randint(40, 80)]
        again = [] if done == 0 or r.random() < 0.6 else [r.choice(keys[:done])]
        id_ = done + 1
        log.insert(*((key, f"v{key}", done) for key in some), transaction_ids=id_)
        if again:
            log.update(*(((key, "", 0), (key, f"w{key}", done)) for key in again), transaction_ids=id_)
        done += len(some)
    log.commit()
    return log


def outcome(db: Any, log: Log, conflicts: tuple[int, ...]) -> tuple[dict[Any, Any], dict[str, int]]:
    in_conflict(db, *conflicts)
    applier = applier_of(db)
    apply_all(applier, log)
    counted = {name: value for name, value in status_of(applier).items() if "epoch" not in name}
    return rows_in(db), counted


@pytest.mark.usefixtures("_little_memory")
def test_epoch_tracked_in_parts_ends_as_one_tracked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", SEED)
    parts: list[bool] = []
    begin_part = DependencyTracker.begin_part

    def seen(tracker: DependencyTracker) -> bool:
        parts.append(begin_part(tracker))
        return parts[-1]

    log = transactional_log(SEED)
    conflicts = (7, 300, 1_500)
    whole = outcome(roomy("NDB$EPOCH_TRANS()"), log, conflicts)
    monkeypatch.setattr(DependencyTracker, "begin_part", seen)
    assert outcome(low("NDB$EPOCH_TRANS()"), log, conflicts) == whole
    assert parts.count(True) >= 3 and parts.count(False) == 1
    assert 3 < whole[1]["trans_reject_count"] < 100


@pytest.mark.usefixtures("_little_memory")
def test_transactions_of_an_epoch_that_need_more_memory_stop_and_leave_nothing() -> None:
    log, db = Log(), low("NDB$EPOCH_TRANS()")
    in_conflict(db, 7)
    log.begin(5)
    log.insert(*((key, "v", 0) for key in range(ROWS)), transaction_ids=list(range(1, ROWS + 1)))
    log.commit()
    with pytest.raises(TransactionTooLarge, match="larger transaction_memory") as stopped:
        apply_all(applier_of(db), log)
    assert stopped.value.evidence["file"] == "binlog.000001"
    assert rows_in(db) == {7: (7, "own", 0)} and positions_in(db) == {}


@pytest.mark.usefixtures("_little_memory")
def test_rows_in_conflict_beyond_the_memory_for_their_keys_stop_and_leave_nothing() -> None:
    """All changes are of rows that the peer has not confirmed: each is refreshed, and its key kept."""
    log = Log()
    log.begin(5)
    log.update(*(((key, "own", 0), (key, "theirs", 1)) for key in range(ROWS)))
    log.commit()
    db = low("NDB$EPOCH()")
    in_conflict(db, *range(ROWS))
    rows = rows_in(db)
    with pytest.raises(TransactionTooLarge, match="in conflict"):
        apply_all(applier_of(db), log)
    assert rows_in(db) == rows and positions_in(db) == {}
    db = roomy("NDB$EPOCH()")
    in_conflict(db, *range(ROWS))
    applier = applier_of(db)
    apply_all(applier, log)
    assert status_of(applier)["conflict_fn_epoch"] == ROWS
    assert rows_in(db) == rows and positions_in(db) == {SOURCE: 5}


@pytest.mark.usefixtures("_little_memory")
def test_rows_that_wait_for_unique_keys_beyond_memory_stop_and_leave_nothing() -> None:
    """Every row takes the name of the next one, and waits until the next one has another."""
    log = Log()
    log.begin(5)
    log.insert(*((key, f"n{key}", 0) for key in range(HELD_ROWS)))
    log.commit()
    log.begin(6)
    log.update(*(((key, f"n{key}", 0), (key, f"n{key + 1}", 0)) for key in range(HELD_ROWS)))
    log.commit()
    for db, fits in ((low(None), False), (roomy(None), True)):
        db.create_index(NAME, "by_name", ["name"], unique=True)
        applier = applier_of(db)
        if fits:
            apply_all(applier, log)
            assert rows_in(db)[HELD_ROWS - 1] == (HELD_ROWS - 1, f"n{HELD_ROWS}", 0) and positions_in(db) == {SOURCE: 6}
            continue
        with pytest.raises(TransactionTooLarge, match="unique"):
            apply_all(applier, log)
        assert rows_in(db)[0] == (0, "n0", 0) and positions_in(db) == {SOURCE: 5}
