"""A call that meets an uncommitted change waits, and then does what it does after that commit or rollback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.isolation.faces import make_tables
from tests.isolation.levels import LEVELS, SNAPSHOT
from tests.isolation.stage import Face, row, staged
from tests.isolation.ways import NAMES, Lock
from tests.store.support import client_of

N = tm.col("n")
OLD, NEW = NAMES[1], "new"
OF_ROW_1 = row(1, 10)


@dataclass(frozen=True)
class Case:
    """What the first transaction does, and what the second one then gets: a value, or a class of errors."""

    name: str
    first: Callable[[Any], object]
    second: Callable[[Any], object]
    committed: object
    rolled_back: object


def upsert(txn: Any) -> bool:
    return bool(txn.upsert("t", row(3, 1), {"n": N + 1}))


def move(txn: Any) -> None:
    """Give a row another key of the unique index."""
    txn.update("t", 1, {"name": NEW})


def delete(txn: Any) -> None:
    txn.delete("t", 1)


def replace(txn: Any) -> None:
    """Delete a row and insert another one with its key."""
    txn.delete("t", 1)
    txn.insert("t", (1, NEW, 5, 5))


def insert(key: int, name: str) -> Callable[[Any], object]:
    return lambda txn: txn.insert("t", (key, name, 5, 5))


def update(key: Any, **more: Any) -> Callable[[Any], object]:
    return lambda txn: txn.update("t", key, {"n": 5}, **more)


def get(key: Any, lock: Lock, **more: Any) -> Callable[[Any], object]:
    return lambda txn: txn.get("t", key, lock=lock, **more)


BY_NAME = {"index": "by_name"}
CASES = [
    Case("write a new key", lambda txn: txn.write("t", row(3, 1)), lambda txn: txn.write("t", row(3, 2)), None, None),
    Case("insert a new key", insert(3, NEW), insert(3, OLD + " too"), tm.DuplicateKey, None),
    Case("upsert a new key", upsert, upsert, False, True),
    Case("get a new key", insert(3, NEW), get(3, "shared"), (3, NEW, 5, 5), None),
    Case("insert a unique key that is released", move, insert(3, OLD), None, tm.DuplicateKey),
    Case("insert a unique key that is taken", move, insert(3, NEW), tm.DuplicateKey, None),
    Case("update by a unique key that is released", move, update(OLD, **BY_NAME), tm.RowNotFound, True),
    Case("update by a unique key that is taken", move, update(NEW, **BY_NAME), True, tm.RowNotFound),
    Case("get by a unique key that is taken", move, get(NEW, "exclusive", **BY_NAME), (1, NEW, 10, 10), None),
    Case("get by a unique key that is released", move, get(OLD, "shared", **BY_NAME), None, OF_ROW_1),
    Case("insert the unique key of a deleted row", delete, insert(3, OLD), None, tm.DuplicateKey),
    Case("insert the key of a deleted row", delete, insert(1, NEW), None, tm.DuplicateKey),
    Case("update a deleted row", delete, update(1), tm.RowNotFound, True),
    Case("delete a deleted row", delete, lambda txn: txn.delete("t", 1), tm.RowNotFound, True),
    Case("update all rows", delete, lambda txn: txn.update_where("t", {"n": 5}), 1, 2),
    Case("get a deleted row", delete, get(1, "exclusive"), None, OF_ROW_1),
    Case("get a replaced row", replace, get(1, "exclusive"), (1, NEW, 5, 5), OF_ROW_1),
    Case("get a replaced row, shared", replace, get(1, "shared"), (1, NEW, 5, 5), OF_ROW_1),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_second_waits_for_the_end_of_the_first(face: Face, case: Case, level: str) -> None:
    for ends_by_commit, expected in ((True, case.committed), (False, case.rolled_back)):
        with staged(face, level) as stage:
            one, two = stage.begin(), stage.begin()
            one.do(case.first)
            step = two.do(case.second)
            assert step.has_waited
            one.commit() if ends_by_commit else one.rollback()
            two.commit()
        if ends_by_commit and level == SNAPSHOT:
            assert type(step.error).__name__ == "WriteConflict"
        else:
            assert (step.value if step.error is None else type(step.error)) == expected


@pytest.mark.parametrize("level", LEVELS)
def test_two_that_want_each_others_unique_keys_have_one_victim(face: Face, level: str) -> None:
    with staged(face, level) as stage:
        one, two = stage.begin(), stage.begin()
        steps = [one.do(insert(3, "a")), two.do(insert(4, "b")), two.do(insert(5, "a")), one.do(insert(6, "b"))]
        one.commit()
    assert [type(step.error) for step in steps] == [type(None), type(None), tm.Deadlock, type(None)]
    assert sorted(stage.face.rows()) == [1, 2, 3, 6]


@pytest.mark.parametrize("lock", ["shared", "exclusive"])
@pytest.mark.parametrize("level", LEVELS)
def test_lock_of_a_key_without_a_row_keeps_no_row_out(face: Face, level: str, lock: Lock) -> None:
    with staged(face, level) as stage:
        one, two = stage.begin(), stage.begin()
        steps = [one.do(get(3, lock)), two.insert(3, 30), two.commit()]
        again = one.do(get(3, lock))
        one.commit()
    assert steps[0].value is None and not any(step.has_waited or step.error for step in steps)
    if level == SNAPSHOT:
        assert type(again.error).__name__ == "WriteConflict"
    else:
        assert again.value == row(3, 30)


@pytest.mark.parametrize("lock", ["shared", "exclusive"])
@pytest.mark.parametrize("level", LEVELS)
def test_scan_that_locks_shows_each_row_as_it_is_under_its_lock(here: Face, level: str, lock: Lock) -> None:
    with staged(here, level) as stage:
        one, two = stage.begin(), stage.begin()
        scan = one.do(lambda txn: txn.scan("t", index="by_g", lock=lock)).value
        steps = [one.do(lambda txn: next(scan)), two.write(2, 21), two.commit(), one.do(lambda txn: next(scan))]
        one.commit()
    assert steps[0].value == OF_ROW_1 and not any(step.has_waited for step in steps)
    if level == SNAPSHOT:
        assert type(steps[3].error).__name__ == "WriteConflict"
    else:
        assert steps[3].value == row(2, 21)


def test_client_that_would_wait_for_itself_times_out(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", data_memory="32 MiB", redo_log="8 MiB", lock_timeout_ms=1) as db:
        make_tables(db)
        db["t"].insert(OF_ROW_1)
        with client_of(db) as remote:
            with remote.transaction() as txn:
                update(1)(txn)
                with pytest.raises(tm.LockTimeout) as late:
                    remote["t"].update(1, {"n": 6})
                assert (late.value.table, late.value.key, late.value.holder) == ("main.t", 1, txn.txid)
                other = remote.transaction()
                with pytest.raises(tm.LockTimeout):
                    update(1)(other)
                assert other.is_ended
        assert db["t"][1].n == 5
