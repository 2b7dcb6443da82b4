"""Unique indexes online, in dropped partitions, damaged, and with several threads."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import at_once
from tests.engine.arena_check import check_arena
from tests.store.support import open_memory
from tests.waiting import wait_until
from tidemark.engine.index import index_layout as ix
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.u"
DAY_MS = 24 * 3_600 * 1_000
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("email", tm.VarChar(30), nullable=True),
    tm.Column("n", tm.Int32),
]


def made(files: MemoryFiles | None = None, partition: Any = None, **options: Any) -> Any:
    db: Any = open_memory(files, **{"redo_log": "8 MiB", **options})
    db.create_table(NAME, COLUMNS, "id", partition or tm.HashPartition(2))
    return db


def filled(count: int = 100, **options: Any) -> Any:
    db = made(**options)
    db[NAME].insert_many([(number, f"e{number}", number) for number in range(count)])
    db.create_index(NAME, "by_email", "email", unique=True)
    return db


def test_operations_that_are_refused_or_undone_do_not_count_as_entries_to_change() -> None:
    """They stayed counted in X_INDEXED, so after some eighty of them a transaction of a few changes was committed in
    slices. A quick call that is refused and made again by the general path counted twice: the same calls made other
    REDO groups.
    """
    db = filled()
    db.create_index(NAME, "emails", ["email"], unique=True, ordered=True)
    db.create_index(NAME, "numbers", ["n"])
    with db.transaction() as txn:
        for _ in range(3):
            for refused in (lambda: txn.insert(NAME, (200, "e1", 1)), lambda: txn.update(NAME, 7, {"email": "e1"})):
                with pytest.raises(tm.DuplicateKey):
                    refused()
            with pytest.raises(ZeroDivisionError), txn.savepoint():
                txn.insert_many(NAME, [(number, f"e{number}", number) for number in range(200, 210)])
                txn.update(NAME, 7, {"n": 1})
                txn.delete(NAME, 8)
                txn.delete(NAME, 9)
                txn.upsert(NAME, (8, None, 8))
                check_arena(db)
                raise ZeroDivisionError
            check_arena(db)
        txn.delete(NAME, 9)
        check_arena(db)
    check_arena(db)
    db.close()


def end(txn: Any, ends_well: bool) -> None:
    if ends_well:
        txn.commit(True)
    else:
        txn.rollback()


def test_violation_names_index_and_key_and_leaves_no_trace() -> None:
    db = filled()
    used = db.status()["memory"]["used_bytes"]
    with db.transaction() as txn:
        for call in (
            lambda: txn.insert(NAME, (500, "e7", 0)),
            lambda: txn.update(NAME, 8, {"email": "e7"}),
            lambda: txn.write(NAME, (8, "e7", 0)),
            lambda: txn.insert_many(NAME, [(500, "new", 0), (501, "new", 0)]),
            lambda: txn.update_many(NAME, [{"id": 8, "email": "x"}, {"id": 9, "email": "e7"}]),
            lambda: txn.update_where(NAME, {"email": "same"}, tm.col("n") < 3),
        ):
            with pytest.raises(tm.DuplicateKey) as caught:
                call()
            assert caught.value.index == "by_email" and caught.value.key in ("e7", "new", "same")
    assert {tuple(row) for row in db[NAME].scan()} == {(number, f"e{number}", number) for number in range(100)}
    assert db.status()["memory"]["used_bytes"] == used and db.check()["problems"] == []
    check_arena(db)


def test_keys_move_within_one_transaction_by_way_of_a_third_value() -> None:
    db = filled()
    with db.transaction() as txn:
        with pytest.raises(tm.DuplicateKey):
            txn.update(NAME, 1, {"email": "e2"})
        txn.update(NAME, 1, {"email": "aside"})
        txn.update(NAME, 2, {"email": "e1"})
        txn.update(NAME, 1, {"email": "e2"})
        txn.delete(NAME, 3)
        txn.insert(NAME, (300, "e3", 0))
        txn.delete(NAME, 4)
        txn.insert(NAME, (4, "e4", 1))
        txn.insert(NAME, (301, "aside", 0))
        assert txn.get(NAME, "e2", index="by_email").id == 1
    assert [db[NAME].get(f"e{number}", index="by_email").id for number in (1, 2, 3, 4)] == [2, 1, 300, 4]
    assert db.indexes(NAME)[0]["entries"] == 101
    assert db.check()["problems"] == []
    check_arena(db)


def test_one_row_that_flips_between_two_keys_a_thousand_times_keeps_both_until_it_ends() -> None:
    for ends_well in (True, False):
        db = filled(3)
        txn = db.transaction()
        for number in range(1_001):
            txn.update(NAME, 1, {"email": "a" if number % 2 else "b"})
        assert db.indexes(NAME)[0]["entries"] == 5
        end(txn, ends_well)
        assert db.indexes(NAME)[0]["entries"] == 3
        assert (db[NAME].get("b", index="by_email") is not None) is ends_well
        assert db.check()["problems"] == []


def test_large_transaction_is_committed_and_rolled_back_in_slices() -> None:
    db = filled(3_000, data_memory="32 MiB", transaction_memory="4 MiB")
    for ends_well in (False, True):
        txn = db.transaction()
        txn.update_where(NAME, {"email": None}, tm.col("n") < 1_000)
        txn.update_many(NAME, [{"id": number, "email": f"m{number}"} for number in range(1_000, 3_000)])
        txn.insert_many(NAME, [(number, f"e{number - 4_000}", 0) for number in range(4_000, 6_000)])
        end(txn, ends_well)
        assert db.indexes(NAME)[0]["entries"] == (4_000 if ends_well else 3_000)
        assert db.check()["problems"] == []
        check_arena(db)


@pytest.mark.parametrize("seed", range(4))
def test_writers_between_the_slices_of_a_build_are_not_refused_and_the_outcome_is_what_rows_say(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    db = made(transaction_memory="2 MiB", data_memory="32 MiB")
    db[NAME].insert_many([(number, f"e{number}", number) for number in range(2_000)])
    breaks = seed % 2 == 1
    calls = 0

    def beside(*_: Any) -> None:
        nonlocal calls
        calls += 1
        fresh = 10_000 + calls
        with db.transaction() as txn:
            txn.insert(NAME, (fresh, f"e{fresh}", 0))
            txn.delete(NAME, calls)
            txn.insert(NAME, (fresh + 5_000, f"e{calls}", 0))
            txn.update(NAME, 1_900 - calls, {"email": f"moved{calls}"})
        if calls < 10:
            txn = db.transaction()  # meets an existing key, and is discarded
            txn.insert(NAME, (77_777, f"e{rng.randrange(1_000, 1_800)}", 0))
            txn.rollback()
        if breaks and calls == 3:
            db[NAME].insert((88_888, "e1000", 0))

    if breaks:
        with pytest.raises(tm.DuplicateKey) as caught:
            db.create_index(NAME, "by_email", "email", unique=True, progress=beside)
        assert caught.value.key == "e1000" and db.indexes(NAME) == []
    else:
        db.create_index(NAME, "by_email", "email", unique=True, progress=beside)
        assert db.indexes(NAME)[0]["entries"] == len(db[NAME])
    assert calls > 5 and db.check()["problems"] == []
    check_arena(db)


def test_transactions_from_before_the_build_leave_no_entry() -> None:
    """A row changed by a transaction that takes entries, then by one from before the second announcement that does not:
    its commit must remove the entry of the image it replaces, or it would lead to a row with another key.

    Story of the test: each look of the build at the open transactions takes a millisecond of the clock driven by hand,
    and none of a real one. 20,000 of them were over before this thread ran again on a busy machine. In a process of its
    own, a transaction began while the build was loading the kernel that announces an index: it was one from before.
    """
    db: Any = open_memory(redo_log="8 MiB", lock_timeout_ms=DAY_MS)
    db.create_table(NAME, COLUMNS, "id")
    db[NAME].insert_many([(number, f"e{number}", number) for number in range(50)])
    old = db.transaction()
    old.begin()
    building = threading.Thread(target=lambda: db.create_index(NAME, "by_email", "email", unique=True))
    building.start()
    store = db.parts.store
    table = store.tables.named(NAME)
    wait_until(lambda: int(store.resources.index_generation) == 1)
    between = db.transaction()
    between.begin()
    old.update(NAME, 1, {"email": "old"})
    old.commit(True)
    tree = table.building[0].tree
    wait_until(lambda: int(store.mem[address_of(tree.handle) + ix.I_STATE]) != ix.INDEX_ANNOUNCED)
    wait_until(lambda: int(store.resources.index_generation) == 2 or not building.is_alive())
    second = store.clock.monotonic()
    # A build that waits looks again.
    wait_until(lambda: store.clock.monotonic() > second + 1 or not building.is_alive())
    assert building.is_alive(), "the build did not wait for transactions from before its second announcement"
    db[NAME].update(2, {"email": "new"})
    between.update(NAME, 2, {"email": "between"})
    between.commit(True)
    building.join()
    assert db.check()["problems"] == [] and db.indexes(NAME)[0]["entries"] == 50
    assert db[NAME].get("between", index="by_email").id == 2
    check_arena(db)


def test_dropped_partition_frees_its_keys_at_once_and_its_entries_with_its_memory() -> None:
    db = made(partition=tm.RangePartition("id", [("low", 50), ("high", tm.MAXVALUE)]))
    db.create_index(NAME, "by_email", "email", unique=True)
    db[NAME].insert_many([(number, f"e{number}", number) for number in range(100)])
    holder = db.transaction()
    holder.update(NAME, 3, {"email": "held"})
    db.drop_partition(NAME, "low")
    db[NAME].insert_many([(number + 500, f"e{number}", 0) for number in range(50)])
    assert db[NAME].get("e7", index="by_email").id == 507
    db[NAME].insert((600, "held", 0))
    holder.commit(True)
    assert db.indexes(NAME)[0]["entries"] == len(db[NAME]) == 101
    assert db.check()["problems"] == []
    check_arena(db)


@pytest.mark.parametrize("index", [None, "by_email"])
@pytest.mark.parametrize("many", [False, True])
def test_threads_that_upsert_the_same_new_keys_lose_no_count(index: str | None, many: bool) -> None:
    db: Any = open_memory(redo_log="32 MiB", lock_timeout_ms=200_000)
    db.create_table(NAME, COLUMNS, "id")
    db.create_index(NAME, "by_email", "email", unique=True)
    inserted: list[int] = []
    start = threading.Barrier(3)

    def count(worker: int) -> None:
        start.wait()
        for number in range(30):
            key = number if index is None else 1_000 * worker + number
            row = {"id": key, "email": f"e{number}", "n": 1}
            changes = {"n": tm.col("n") + 1}
            if many:
                inserted.append(db[NAME].upsert_many([row, row], changes, index))
            else:
                inserted.append(db[NAME].upsert(row, changes, index))
                inserted.append(db[NAME].upsert(row, changes, index))

    at_once(count, range(3))
    assert sum(inserted) == 30
    assert sorted((row.email, row.n) for row in db[NAME].scan()) == sorted((f"e{each}", 6) for each in range(30))
    assert db.check()["problems"] == []


@pytest.mark.parametrize("damage", ["missing", "stale", "twice"])
def test_damage_of_a_unique_index_is_found(damage: str) -> None:
    db = filled()
    tree = db.parts.store.tables.named(NAME).uniques["by_email"].tree
    mem = db.parts.store.mem
    segment = int(mem[int(mem[int(mem[address_of(tree.handle) + ix.I_UNIQUE]) + a.F_DIRECTORY])])
    block = int(mem[segment + a.SEG_BLOCK])
    at = next(block + place for place in range(a.BLOCK_WORDS) if mem[block + place])
    if damage == "missing":
        mem[at] = 0
    elif damage == "stale":
        mem[at] ^= 1 << a.ENTRY_TAG_SHIFT
    else:
        free = next(at - at % 8 + place for place in range(8) if not mem[at - at % 8 + place])
        mem[free] = mem[at]
    problems = db.check()["problems"]
    assert len(problems) == 1 and "by_email" in problems[0], problems


@pytest.mark.parametrize("many", [False, True], ids=["one by one", "at once"])
@pytest.mark.parametrize("nullable", [False, True], ids=["not null", "nullable"])
def test_a_table_without_fixed_columns_keeps_its_unique_index(nullable: bool, many: bool) -> None:
    """A row with neither fixed columns nor NULL bits has its var part at address 0 of the images. That was the sign for
    "no var part", so the index took every value for empty: both rows went in, and `get(index=)` found none.
    """
    db = open_memory(MemoryFiles())
    columns = [tm.Column("b", tm.VarChar(20)), tm.Column("m", tm.VarChar(20), nullable=nullable)]
    table = db.create_table("test.p", columns, "b")
    db.create_index("test.p", "by_m", "m", unique=True)
    db.create_index("test.p", "in_order", "m")
    table.insert_many([("a", "x"), ("c", "y")])
    with pytest.raises(tm.DuplicateKey):
        table.insert_many([("b", "x")]) if many else table.insert(("b", "x"))
    with pytest.raises(tm.DuplicateKey):
        table.update("c", {"m": "x"})
    table.update("c", {"m": "z"})
    assert table.get("x", index="by_m") == ("a", "x") and table.get("z", index="by_m") == ("c", "z")
    assert [row.m for row in table.scan(index="in_order", lower="x")] == ["x", "z"]
    assert db.check()["problems"] == []
    table.delete("a")
    table.insert(("b", "x"))
    db.close()
