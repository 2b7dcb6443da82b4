"""Full stores: each is filled to its refusal, then the advice of the message is followed as a user would, and then rows
can be inserted again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import open_memory
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME, OTHER = "test.full", "test.other"
SMALL: dict[str, Any] = {
    "data_memory": "2 MiB",
    "redo_log": "32 MiB",
    "undo_log": "32 MiB",
    "transaction_memory": "2 MiB",
}
KINDS = ("plain", "text", "indexed", "unique", "disk", "partitioned")


def row(key: int, kind: str, more: int = 0) -> tuple[Any, ...]:
    last: Any = {"text": "t" * (20 + key % 50), "disk": bytes([key % 256]) * 40}.get(kind, key * 7 + more)
    return (key, key % 1_000, last)


def create(db: Any, kind: str, name: str = NAME) -> None:
    last = {"text": tm.Column("last", tm.VarChar(80)), "disk": tm.Column("last", tm.VarBinary(50), storage="disk")}
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), last.get(kind, tm.Column("last", tm.Int64))]
    if kind == "disk" and "main" not in db.tablespaces():
        db.create_tablespace("main", "16 MiB", page_size="4 KiB", extent="64 KiB")
    split = tm.RangePartition("id", [("low", 2_000), ("high", tm.MAXVALUE)]) if kind == "partitioned" else None
    db.create_table(name, columns, "id", *([] if split is None else [split]))
    if kind == "indexed":
        db.create_index(name, "by_n", ["n"])
    if kind == "unique":
        db.create_index(name, "by_last", ["last"], unique=True)


def fill(db: Any, kind: str, name: str = NAME, first: int = 0) -> tuple[int, str]:
    """Insert until no row fits any more, at last row by row; (rows that are in, the refusal)."""
    key, refusal = first, ""
    for size in (500, 20, 1):
        while True:
            try:
                db[name].insert_many([row(each, kind) for each in range(key, key + size)])
            except tm.MemoryExhausted as error:
                refusal = error.message
                break
            key += size
            if key % 5_000 == 0:
                db.checkpoint()
    db.checkpoint()
    return key - first, refusal


def check_continues(db: Any, kind: str, keys: list[int], name: str = NAME) -> None:
    """Rows can be inserted again, and the store is sound."""
    if kind == "indexed":  # one by one: blocks of an index are reserved for the worst case
        for key in keys:
            db[name].insert(row(key, kind))
    else:
        db[name].insert_many([row(key, kind) for key in keys])
    assert db.check()["problems"] == []


FREES: dict[str, Callable[[Any, int], None]] = {
    "delete": lambda db, rows: [db[NAME].delete(key) for key in range(200)][0],
    "delete_many": lambda db, rows: db[NAME].delete_many(list(range(200))),
    "delete_where": lambda db, rows: db[NAME].delete_where(tm.col("id") < 200),
    "delete_where of all rows": lambda db, rows: db[NAME].delete_where(tm.col("id") >= 0),
}


@pytest.mark.parametrize("how", FREES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_can_be_deleted_from_full_memory_and_inserted_again(kind: str, how: str) -> None:
    """Story: with `data_memory` full, one delete went through, but `delete_many` of a hundred rows was refused with the
    advice to delete rows.
    """
    db = open_memory(**SMALL)
    create(db, kind)
    rows, refusal = fill(db, kind)
    assert "delete rows" in refusal and rows > 2_000
    gone = rows if "all rows" in how else 200
    FREES[how](db, rows)
    assert len(list(db[NAME].scan(["id"]))) == rows - gone
    check_continues(db, kind, list(range(150)))
    db.close()


@pytest.mark.parametrize("kind", ["plain", "unique"])
def test_changes_of_full_memory_are_made_and_undone_again_and_again(kind: str) -> None:
    """Deletes and updates that need no new row go through for ever; a call that needs one is refused whole."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    db = open_memory(**SMALL)
    create(db, kind)
    rows, _ = fill(db, kind)
    for number in range(8):
        txn = db.transaction()
        txn.delete_many(NAME, rng.sample(range(rows), 2_000))
        txn.rollback()
        assert db[NAME].update_where({"n": tm.col("n") + 1}) == rows
        with pytest.raises(tm.MemoryExhausted):
            db[NAME].insert_many([row(each, kind, 1) for each in range(rows, rows + 3_000)])
        assert len(list(db[NAME].scan(["id"]))) == rows
        db.checkpoint()
        assert db.check()["problems"] == [] or number
    with db.transaction() as txn:
        assert txn.delete_many(NAME, list(range(2_000))) == 2_000
    assert len(list(db[NAME].scan(["id"]))) == rows - 2_000
    check_continues(db, kind, list(range(1_500)))
    db.close()


def test_more_operations_than_there_is_memory_for_are_refused_and_all_of_them_go() -> None:
    """Each savepoint makes another operation of the same row: they use up the space for operations."""
    db = open_memory(**{**SMALL, "transaction_limit": "64 MiB"})
    create(db, "plain")
    db[NAME].insert_many([row(key, "plain") for key in range(5_000)])
    txn = db.transaction()
    with pytest.raises(tm.MemoryExhausted, match="end others, make smaller ones"):
        for number in range(1_000):
            with txn.savepoint():
                txn.update_where(NAME, {"n": number})
    assert {each.n for each in db[NAME].scan()} == set(range(1_000)), "all or none"
    others = [db.transaction() for _ in range(100)]
    for number, other in enumerate(others):
        other.delete(NAME, number)
    for other in others:
        other.commit(True)
    assert db[NAME].delete_where(tm.col("id") >= 0) == 4_900
    check_continues(db, "plain", list(range(1_000)))
    db.close()


def test_transactions_begin_and_end_in_full_memory() -> None:
    """Descriptors of transactions are in data_memory, too."""
    db = open_memory(**SMALL)
    create(db, "plain")
    rows, _ = fill(db, "plain")
    open_ones = [db.transaction() for _ in range(100)]
    for number, txn in enumerate(open_ones):
        txn.delete_many(NAME, list(range(number * 10, number * 10 + 10)))
    for number, txn in enumerate(open_ones):
        txn.rollback() if number % 2 else txn.commit(True)
    assert len(list(db[NAME].scan(["id"]))) == rows - 500
    check_continues(db, "plain", list(range(10)))
    db.close()


@pytest.mark.parametrize("how", ["drop_table", "drop_partition", "drop_index", "reopen"])
def test_drops_make_room_in_full_memory(how: str) -> None:
    files = MemoryFiles()
    db = open_memory(files, **SMALL)
    kind = {"drop_partition": "partitioned", "drop_index": "indexed"}.get(how, "plain")
    create(db, "plain", OTHER)
    db[OTHER].insert_many([row(key, "plain") for key in range(5_000)])
    create(db, kind)
    rows, refusal = fill(db, kind)
    assert "open the store with a larger data_memory" in refusal
    if how == "drop_table":
        db.drop_table(OTHER)
    elif how == "drop_partition":
        db.drop_partition(NAME, "low")
    elif how == "drop_index":
        used = db.status()["memory"]["used_bytes"]
        db.drop_index(NAME, "by_n")
        assert db.status()["memory"]["used_bytes"] < used, "no page is free, though all blocks of some are"
    else:
        db.close()
        files = files.kill()
        db = open_memory(files, **{**SMALL, "data_memory": "6 MiB"})
    check_continues(db, kind, list(range(rows, rows + 500)))
    db.close()
