"""Ctrl-C at any point of a call: done whole or not at all, locks and reservations free, the store continues (F117)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import tidemark as tm
from tests.shares import few, some
from tests.store.history import LEAST
from tests.store.interrupts import interrupt_at
from tests.store.support import ACCOUNT, open_memory, rows_of
from tests.store.trouble import promises
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.account"
# A signal on the way into these finds no frame that could still end the transaction: `with` has not begun or has ended,
# or an exception is under way already. The transaction stays open, as if its user had kept it, until it is ended or the
# store is closed.
UNREACHABLE = ("in __enter__", "in __exit__", "in rollback")
OPTIONS: dict[str, Any] = {"redo_log": "8 MiB", "undo_log": "16 MiB", "transaction_memory": "4 MiB", **LEAST}
POINTS = few(6, 0)  # per case; 0 is all


def contents(storage: str) -> dict[str, bytes]:
    """Files of a store with 40 rows, half of them in a local checkpoint; texts are on disk, or all is in memory."""
    files = MemoryFiles()
    db = open_memory(files, **OPTIONS)
    if storage == "disk":
        db.create_tablespace("main", "1 MiB", extent="256 KiB")
    columns = [replace(each, storage=storage) if each.name in ("owner", "note") else each for each in ACCOUNT]
    db.create_table(NAME, columns, primary_key="id", partition=tm.HashPartition(2))
    db[NAME].insert_many([(number, "old", 1.0, "n" * 50) for number in range(20)])
    db.checkpoint()
    db[NAME].insert_many([(number, "old", 1.0, None) for number in range(20, 40)])
    db.close()
    return files.snapshot()


def many(first: int, count: int) -> list[tuple[Any, ...]]:
    return [(number, "new", 2.0, "m" * 20) for number in range(first, first + count)]


def transaction(db: Any) -> None:
    with db.transaction() as txn:
        txn.insert(NAME, (100, "a", 1.0, None))
        txn.update(NAME, 1, {"balance": 9.0})
        txn.update(NAME, 2, {"note": "longer " * 20})
        txn.get(NAME, 3, lock="shared")
        txn.get(NAME, 4, lock="exclusive")
        txn.delete(NAME, 5)
        txn.insert(NAME, (5, "again", 1.0, None))
        try:
            with txn.savepoint():
                txn.delete(NAME, 6)
                txn.insert(NAME, (1, "taken", 1.0, None))
        except tm.DuplicateKey:
            txn.write(NAME, (7, "written", 1.0, None))


def large(db: Any) -> None:
    with db.transaction() as txn:
        txn.delete_many(NAME, range(30))
        txn.insert_many(NAME, pa.table([list(column) for column in zip(*many(100, 6_000), strict=True)], names=NAMES))


def undone(db: Any) -> None:
    with pytest.raises(ZeroDivisionError), db.transaction() as txn:
        txn.update(NAME, 1, {"balance": 9.0})
        txn.insert_many(NAME, many(100, 50))
        txn.get(NAME, 3, lock="shared")
        raise ZeroDivisionError


NAMES = [column.name for column in ACCOUNT]


class Case(NamedTuple):
    """A call that Ctrl-C may fall into, and whether it changes rows."""

    name: str
    work: Callable[[Any], Any]


CASES = [
    Case("insert", lambda db: db[NAME].insert((100, "a", 1.0, "text"))),
    Case("write", lambda db: db[NAME].write((1, "a", 1.0, "text"))),
    Case("update", lambda db: db[NAME].update(1, {"balance": 5.0})),
    Case("update of a var column", lambda db: db[NAME].update(1, {"note": "text"})),
    Case("delete", lambda db: db[NAME].delete(1)),
    Case("insert_many", lambda db: db[NAME].insert_many(many(100, 300))),
    Case("write_many", lambda db: db[NAME].write_many(many(10, 300))),
    Case("update_many", lambda db: db[NAME].update_many({"id": [1, 2, 3], "note": ["x" * 99, None, "y"]})),
    Case("delete_many", lambda db: db[NAME].delete_many([1, 2, 3])),
    Case("long text", lambda db: db[NAME].update(1, {"note": "chained " * 3_000})),
    Case("transaction", transaction),
    Case("large transaction", large),
    Case("transaction that is undone", undone),
    Case("refused batch", lambda db: pytest.raises(tm.DuplicateKey, db[NAME].insert_many, many(39, 3))),
    Case("get", lambda db: db[NAME].get(1)),
    Case("scan", lambda db: list(db[NAME].scan())),
    Case("to_arrow", lambda db: db[NAME].to_arrow()),
    Case("sync", lambda db: db.sync()),
    Case("local checkpoint", lambda db: db.checkpoint()),
    Case("create_table", lambda db: db.create_table("test.more", ACCOUNT, primary_key="id")),
    Case("drop_table", lambda db: db.drop_table("test.other")),
]


@pytest.fixture(scope="module", params=["memory", "disk"])
def start(request: Any) -> dict[str, bytes]:
    """What every run starts from."""
    return contents(request.param)


def state_of(db: Any) -> dict[str, Any]:
    return {name: rows_of(db, name) for name in db.tables()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_interrupt_at_any_point_leaves_all_or_nothing_and_a_store_that_continues(
    start: dict[str, bytes], case: Case
) -> None:
    def fresh() -> Any:
        db = open_memory(MemoryFiles.from_snapshot(start), **OPTIONS)
        db.create_table("test.other", [tm.Column("id", tm.Int64)], primary_key="id")
        return db

    db = fresh()
    before = state_of(db)
    points = interrupt_at(-1, lambda: case.work(db)).count
    after = state_of(db)
    assert points > 3
    most = POINTS // 4 if "double-write" in start else POINTS  # of the same room, with pages and slices
    for nth in range(1, points + 1, max(1, points // most) if most else 1):
        db = fresh()
        point = interrupt_at(nth, lambda db=db: case.work(db))
        place = f"point {nth}: {point.where}"
        if point.where.endswith(UNREACHABLE):
            db.parts.store.transactions.roll_back_all()
        if point.where.endswith("in release"):
            db = open_memory(db.parts.files.kill(), **OPTIONS)  # pages stay pinned until the store is opened again
        held = promises(db)
        assert set(held.values()) == {0}, f"{place} left {held}"
        now = state_of(db)
        assert now in (before, after), place
        crashed = open_memory(db.parts.files.kill(), **OPTIONS)
        assert state_of(crashed) in (before, now), place
        db[NAME].write_many([(number, "next", 0.0, None) for number in range(50)])  # would locks be left in the way?
        db[NAME].delete(40)
        db.sync()
        db.checkpoint()
        now = state_of(db)
        assert state_of(open_memory(db.parts.files.kill(), **OPTIONS)) == now, place


def test_interrupt_between_the_hold_of_an_epoch_and_the_log_lets_the_epoch_close(
    start: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a mutant rolled such a commit back and kept its epoch for ever, so that no local checkpoint could begin;
    no test saw it.
    """

    def interrupted(group: Any) -> None:
        raise KeyboardInterrupt

    db = open_memory(MemoryFiles.from_snapshot(start), **OPTIONS)
    before = state_of(db)
    with monkeypatch.context() as patch:
        patch.setattr(db.parts.store.log, "adopt", interrupted)
        with pytest.raises(KeyboardInterrupt):
            large(db)
    assert not db.parts.store.epochs.holders
    assert state_of(db) == before
    db.checkpoint()
    assert state_of(open_memory(db.parts.files.kill(), **OPTIONS)) == before


@pytest.mark.parametrize("rows", [1, 6_000])
def test_outcome_shows_the_end_of_an_interrupted_commit(start: dict[str, bytes], rows: int) -> None:
    def begun() -> tuple[Any, Any]:
        db = open_memory(MemoryFiles.from_snapshot(start), **OPTIONS)
        txn = db.transaction()
        txn.insert_many(NAME, many(100, rows))
        return db, txn

    _, txn = begun()
    points = interrupt_at(-1, lambda: txn.commit(True)).count
    seen = set()
    # Slice after slice of a large commit is alike: every point of the first ones, then each tenth.
    chosen = [
        *range(1, min(points, 60)),
        *range(60, points - 20, 1 + points // 60),
        *range(max(60, points - 20), points + 1),
    ]
    for nth in some(chosen, 0.3):
        db, txn = begun()
        point = interrupt_at(nth, lambda txn=txn: txn.commit(True))
        txn.rollback()
        db.sync()
        outcome = "committed" if 100 in db[NAME] else "aborted"
        assert len(db[NAME]) == 40 + (rows if outcome == "committed" else 0), point.where
        assert db.outcome(txn.txid) == outcome, point.where
        again = open_memory(db.parts.files.kill(), **OPTIONS)
        assert (again.outcome(txn.txid), 100 in again[NAME]) == (outcome, outcome == "committed"), point.where
        seen.add(outcome)
    assert seen == {"committed", "aborted"}
