"""How listings show rows from before a change, and how side pages are allocated and freed."""

from __future__ import annotations

from typing import Any

import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.store.support import open_memory
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.verification.log_listing import StoreListing

PLAIN = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32, nullable=True)]


def side_pages(db: Any) -> int:
    mem, table = db.parts.store.mem, db.parts.store.tables.named("t")
    found = 0
    for fragment in table.fragments:
        page = int(mem[address_of(fragment) + a.F_FREE_HEAD])
        while page:
            base = page << a.PAGE_SHIFT
            found += int(mem[base + a.PG_USED]) >> a.SIDE_SHIFT != 0
            page = int(mem[base + a.PG_NEXT])
    return found


def test_side_pages_are_made_by_the_first_row_that_needs_one_and_go_with_the_table() -> None:
    db = open_memory()
    table = db.create_table("t", PLAIN, "id", partition=tm.HashPartition(1))
    table.insert_many([{"id": number} for number in range(900)])
    db.add_column("t", tm.Column("a", tm.Int64, default=5))
    table.update_many([{"id": number, "n": number} for number in range(0)] or [{"id": 3, "n": 4}])
    assert side_pages(db) == 1, "a batch encodes whole rows"
    check_arena(db)
    table.delete_many(list(range(900)))
    check_arena(db)
    table.insert_many([{"id": number, "a": number} for number in range(900)])
    txn = db.transaction()
    txn.update("t", 5, {"a": 6})
    db.drop_table("t")
    txn.rollback()
    check_arena(db)


def test_change_of_an_old_column_alone_needs_no_side_page() -> None:
    db = open_memory()
    table = db.create_table("t", PLAIN, "id", partition=tm.HashPartition(1))
    table.insert_many([{"id": number} for number in range(90)])
    db.add_column("t", tm.Column("a", tm.Int64, default=5))
    table.update(3, {"n": 4})
    table.delete(5)
    assert side_pages(db) == 0 and table[3] == (3, 4, 5)
    check_arena(db)


def test_update_without_memory_for_a_side_page_is_refused_and_changes_nothing() -> None:
    db = open_memory(data_memory="2 MiB", redo_log="16 MiB")
    table = db.create_table("t", PLAIN, "id", partition=tm.HashPartition(1))
    number = 0
    with pytest.raises(tm.MemoryExhausted):
        while True:
            table.insert_many([{"id": number + each} for each in range(50)])
            number += 50
    db.add_column("t", tm.Column("a", tm.Int64, default=5))
    with pytest.raises(tm.MemoryExhausted):
        for key in range(0, number, 50):
            table.update(key, {"a": 7})
    assert {row.a for row in table} <= {5, 7} and len(table) == number
    check_arena(db)


def test_log_and_local_checkpoints_are_listed_across_a_change() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    table = db.create_table("t", PLAIN, "id")
    table.insert({"id": 1, "n": 7})
    db.checkpoint()
    txn = db.transaction()
    txn.insert("t", {"id": 2})
    db.add_column("t", tm.Column("a", tm.VarChar(5), default="abc"))
    txn.update("t", 1, {"n": 8})
    txn.insert("t", {"id": 3, "a": "x"})
    txn.commit(True)
    db.checkpoint()
    db.close()
    listing = StoreListing(MemoryFiles(files.disk))
    values = [entry["values"] for entry in listing.redo() if entry["kind"] in ("insert", "update")]
    assert values == [{"id": 2, "n": None}, {"id": 1, "n": 8}, {"id": 3, "n": None, "a": "x"}]
    rows = [entry["values"] for entry in listing.local_checkpoints() if entry["kind"] == "row"]
    assert sorted(map(str, rows)) == sorted(
        map(
            str,
            [
                {"id": 1, "n": 7},
                {"id": 1, "n": 8, "a": "abc"},
                {"id": 2, "n": None, "a": "abc"},
                {"id": 3, "n": None, "a": "x"},
            ],
        )
    )


def test_drop_that_is_repeated_frees_nothing_twice() -> None:
    """Story: a drop was interrupted, and repeated. A check that took the stale handle for a defect failed the store."""
    with open_memory() as db:
        db.create_table("kept", PLAIN, "id").insert_many([{"id": number} for number in range(900)])
        db.create_table("t", PLAIN, "id").insert_many([{"id": number} for number in range(900)])
        table = db.parts.store.tables.named("t")
        db.drop_table("t")
        used = db.status()["memory"]
        table.drop()
        assert db.status()["memory"] == used
        check_arena(db)
        assert len(db["kept"]) == 900 and db.check()["problems"] == []
