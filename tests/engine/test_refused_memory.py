"""An allocation of the arena that fails (F103): each take of a page, a block or a cell by a call, one at a time.

`Arena.refuse` lets one take find nothing, wherever a kernel is. A counting run says how many takes a call makes; each
of them is refused in a run of its own. Then every word of the arena is walked, for a page that is lost is found nowhere
else, and the store is crashed and opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.engine.pool_words import refuse, requests
from tests.shares import few
from tests.store.support import ACCOUNT, open_memory
from tests.store.trouble import promises
from tidemark.engine.memory.arena import Arena
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.account"
OPTIONS: dict[str, Any] = {"redo_log": "8 MiB", "undo_log": "16 MiB", "transaction_memory": "4 MiB"}
POINTS = few(2, 60)  # per case
NAMES = [column.name for column in ACCOUNT]


def contents(storage: str) -> dict[str, bytes]:
    """Files of a store with 300 rows, most of them in a local checkpoint, and indexes of both kinds."""
    files = MemoryFiles()
    db: Any = open_memory(files, **OPTIONS)
    if storage == "disk":
        db.create_tablespace("main", "1 MiB", extent="256 KiB")
    columns = [replace(each, storage=storage) if each.name == "note" else each for each in ACCOUNT]
    db.create_table(
        NAME, columns, primary_key="id", partition=tm.RangePartition("id", {"low": 150, "high": tm.MAXVALUE})
    )
    db.create_index(NAME, "by_balance", ["balance"])
    db.create_index(NAME, "one_owner", ["owner"], unique=True)
    db[NAME].insert_many([(number, f"o{number}", number / 2, "n" * 50) for number in range(200)])
    db.create_table("test.other", [tm.Column("id", tm.Int64)], primary_key="id")
    db.checkpoint()
    db[NAME].insert_many([(number, f"o{number}", number / 2, None) for number in range(200, 300)])
    db.close()
    return files.snapshot()


def many(first: int, count: int) -> list[tuple[Any, ...]]:
    return [(number, f"m{number}", 2.0, "m" * (number % 300)) for number in range(first, first + count)]


def arrow(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.table([list(column) for column in zip(*rows, strict=True)], names=NAMES)


def in_steps(db: Any) -> None:
    with db.transaction() as txn:
        txn.insert(NAME, (1_000, "a", 1.0, None))
        txn.update(NAME, 1, {"note": "longer " * 900})
        txn.get(NAME, 2, lock="shared")
        txn.delete_many(NAME, range(100, 160))
        with pytest.raises(ZeroDivisionError), txn.savepoint():
            txn.insert_many(NAME, many(2_000, 40))
            raise ZeroDivisionError
        txn.upsert(NAME, {"id": 3, "owner": "o3", "balance": 9.0, "note": "x" * 3_000})


class Case(NamedTuple):
    """A call, and how often it must at least ask for memory."""

    name: str
    work: Callable[[Any], Any]
    least: int


CASES = [
    Case("insert", lambda db: db[NAME].insert((1_000, "a", 1.0, "text")), 1),
    Case("insert of a long text", lambda db: db[NAME].insert((1_000, "a", 1.0, "chained " * 30_000)), 8),
    Case("insert_many", lambda db: db[NAME].insert_many(many(1_000, 300)), 3),
    Case("insert_many that grows everything", lambda db: db[NAME].insert_many(arrow(many(1_000, 9_000))), 60),
    Case("update", lambda db: db[NAME].update(1, {"note": "longer " * 900}), 1),
    Case("update_where", lambda db: db[NAME].update_where({"balance": tm.col("balance") + 1}), 100),
    Case("delete_many", lambda db: db[NAME].delete_many(range(250)), 1),
    Case("upsert_many", lambda db: db[NAME].upsert_many(many(290, 30)), 1),
    Case("transaction in steps", in_steps, 8),
    Case("create_table", lambda db: db.create_table("test.more", ACCOUNT, "id", tm.HashPartition(3)), 5),
    Case("create_index", lambda db: db.create_index(NAME, "by_note", ["id", "owner"]), 2),
    Case("create_index, unique", lambda db: db.create_index(NAME, "one_id", ["id", "owner"], unique=True), 2),
    Case("add_partition", lambda db: db.add_partition("test.parts", "more", 300), 2),
    Case("add_column", lambda db: db.add_column(NAME, tm.Column("more", tm.VarChar(9), default="d")), 0),
    Case("drop_table", lambda db: db.drop_table("test.other"), 0),
    Case("drop_partition", lambda db: db.drop_partition("test.parts", "low"), 0),
    Case("snapshot", lambda db: db.snapshot().close(), 0),
    Case("local checkpoint", lambda db: db.checkpoint(), 0),
    Case("scan", lambda db: list(db[NAME].scan(where=tm.col("balance") > 1)), 0),
]


@pytest.fixture(scope="module", params=["memory", "disk"])
def start(request: Any) -> dict[str, bytes]:
    """What every run starts from."""
    return contents(request.param)


def opened(start: dict[str, bytes]) -> Any:
    db: Any = open_memory(MemoryFiles.from_snapshot(start), **OPTIONS)
    partition = tm.RangePartition("id", {"low": 100, "high": 200})
    db.create_table("test.parts", [tm.Column("id", tm.Int64)], "id", partition)
    db["test.parts"].insert_many([(number,) for number in range(200)])
    return db


def rows_now(db: Any) -> dict[str, list[Any]]:
    return {name: sorted(map(tuple, db[name].scan()), key=repr) for name in db.tables()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_refused_take_of_a_call_is_a_typed_error_and_nothing_is_lost(start: dict[str, bytes], case: Case) -> None:
    db = opened(start)
    before = rows_now(db)
    first = requests(db.parts.store.arena)
    case.work(db)
    takes = requests(db.parts.store.arena) - first
    after = rows_now(db)
    assert takes >= case.least, f"{case.name} asked for memory {takes} times"
    seen: Counter[str] = Counter()
    for nth in range(1, takes + 1, max(1, takes // POINTS)):
        db = opened(start)
        arena = db.parts.store.arena
        place, refused_at = f"take {nth} of {takes}", requests(arena) + nth
        refuse(arena, refused_at)
        try:
            case.work(db)
            seen["done without it"] += 1
        except tm.MemoryExhausted:
            seen["refused"] += 1
            assert rows_now(db) == before, place
            is_refused = True
        else:
            is_refused = False
        assert requests(arena) >= refused_at, f"{place} was not reached"
        refuse(arena, 0)
        assert set(promises(db).values()) == {0}, f"{place} left {promises(db)}"
        check_arena(db)
        if is_refused:
            case.work(db)
        assert rows_now(db) == after, place
        again = open_memory(db.parts.files.kill(), **OPTIONS)
        assert rows_now(again) == after, place
    assert not case.least or seen["refused"], f"no take of {case.name} was ever refused"


def takes_of_an_opening(start: dict[str, bytes]) -> int:
    return requests(open_memory(MemoryFiles.from_snapshot(start), **OPTIONS).parts.store.arena)


def test_each_refused_take_of_an_opening_is_an_error_that_changes_nothing(
    start: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = takes_of_an_opening(start)
    assert takes > 30
    seen: Counter[str] = Counter()
    for nth in range(1, takes + 1, max(1, takes // few(12, 100))):
        files = MemoryFiles.from_snapshot(start)
        monkeypatch.setattr(Arena, "refused_take", nth)
        try:
            db = open_memory(files, **OPTIONS)
            seen["done without it"] += 1
        except tm.LimitExceeded:
            seen["refused"] += 1
            files = files.kill()
            assert files.snapshot() == start, f"take {nth} of {takes}: an opening that failed has changed the store"
            monkeypatch.setattr(Arena, "refused_take", 0)
            db = open_memory(files, **OPTIONS)
        assert requests(db.parts.store.arena) >= nth or seen["refused"], f"take {nth} was not reached"
        check_arena(db)
        assert len(rows_now(db)[NAME]) == 300
    assert seen["refused"] > seen["done without it"], seen
