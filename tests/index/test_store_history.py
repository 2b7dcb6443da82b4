"""Random transactions on tables with indexes: whatever happens, a scan by an index is the sorted dict."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.index.stored import NAME, SEEDS, Indexed, live
from tests.store.random_work import ROOM
from tests.store.support import open_memory

SHAPES = {
    "memory": (False, tm.HashPartition(2)),
    "disk": (True, tm.HashPartition(2)),
    "ranges": (False, tm.RangePartition("id", [("low", 70), ("middle", 140), ("rest", tm.MAXVALUE)])),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_transactions_leave_index_scans_equal_to_the_sorted_dict(shape: str, seed: int) -> None:
    print(f"seed {seed}")
    gc.collect()
    store = Indexed(seed, *SHAPES[shape])
    live(store, 50 if seed == 1 else 120, ("by_owner", "by_text"), ("by_n", "by_flag"), "by_owner")


@pytest.mark.parametrize("on_disk", [False, True])
def test_large_commits_in_slices_maintain_every_index(on_disk: bool) -> None:
    store = Indexed(7, on_disk, undo_log="128 MiB")
    store.index()
    rows = {key: store.row(key) for key in range(600)}
    store.table.insert_many(list(rows.values()))
    store.rows = rows
    store.verify()
    fresh = {key: store.row(key) for key in range(300, 900)}
    with store.db.transaction() as txn:
        txn.write_many(NAME, list(fresh.values()))
        txn.delete_many(NAME, list(range(100)))
        store.rows = {key: row for key, row in {**rows, **fresh}.items() if key >= 100}
        store.verify_order(store.rows, txn)
    store.verify()
    with pytest.raises(ZeroDivisionError), store.db.transaction() as txn:
        txn.delete_many(NAME, list(range(100, 900)))
        txn.write_many(NAME, [store.row(key) for key in range(500)])
        raise ZeroDivisionError
    store.verify()


def test_keys_in_chained_var_parts_that_updates_keep_stay_in_order() -> None:
    """The primary key and a text are in a var part of several chunks, which updates of fixed columns leave alone."""
    rng = random.Random(9)
    gc.collect()
    db = open_memory(**ROOM)
    columns = [
        tm.Column("name", tm.VarChar(20)),
        tm.Column("n", tm.Int32),
        tm.Column("note", tm.Text),
        tm.Column("owner", tm.VarChar(300), nullable=True),
    ]
    db.create_table(NAME, columns, "name", tm.HashPartition(2))
    rows: dict[str, tuple[Any, ...]] = {}
    for number in range(40):
        name = f"name {number % 7} {number}"
        rows[name] = (name, number % 5, "n" * rng.choice([3, 40_000, 90_000]), rng.choice([None, "o" * 250 + "x", "a"]))
    db[NAME].insert_many(list(rows.values()))
    db.create_index(NAME, "by_n", ["n", "name"])
    db.create_index(NAME, "by_owner", ["owner", "n"])
    db.create_index(NAME, "by_name", "name")
    for step in range(150):
        name = rng.choice(sorted(rows))
        before = rows[name]
        with db.transaction() as txn:
            if step % 3:
                txn.update(NAME, name, {"n": rng.randrange(5)})
            if step % 2:
                txn.update(NAME, name, {"owner": rng.choice([None, "b", "o" * 250 + "z"])})
            if step % 7 == 0:
                txn.update(NAME, name, {"note": "m" * rng.choice([0, 70_000])})
            if step % 5 == 0:
                txn.delete(NAME, name)
                txn.insert(NAME, (name, 3, before[2], "again"))
            rows[name] = tuple(txn.get(NAME, name))
            merged = [(row.n, row.name) for row in txn.scan(NAME, index="by_n")]
            assert merged == sorted((row[1], row[0]) for row in rows.values())
    for name, key in (("by_n", (1, 0)), ("by_name", (0,))):
        found = [tuple(row) for row in db[NAME].scan(index=name)]
        assert found == sorted(rows.values(), key=lambda row: tuple(row[each] for each in key))
    found = [(row.owner is not None, row.owner or "", row.n) for row in db[NAME].scan(index="by_owner")]
    assert found == sorted((row[3] is not None, row[3] or "", row[1]) for row in rows.values())
    assert db.check()["problems"] == []
    check_arena(db)
