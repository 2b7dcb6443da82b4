"""Random transactions on tables with indexes: whatever happens, a scan by an index is the sorted dict."""

from __future__ import annotations

import gc

import pytest

import tidemark as tm
from tests.index.stored import INDEXES, NAME, Indexed

SHAPES = {
    "memory": (False, tm.HashPartition(2)),
    "disk": (True, tm.HashPartition(2)),
    "ranges": (False, tm.RangePartition("id", [("low", 70), ("middle", 140), ("rest", tm.MAXVALUE)])),
}


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(2, 12))
def test_more_random_transactions_leave_index_scans_equal_to_the_sorted_dict(shape: str, seed: int) -> None:
    test_random_transactions_leave_index_scans_equal_to_the_sorted_dict(shape, seed, 120)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [1])
def test_random_transactions_leave_index_scans_equal_to_the_sorted_dict(shape: str, seed: int, steps: int = 50) -> None:
    print(f"seed {seed}")
    gc.collect()
    store = Indexed(seed, *SHAPES[shape])
    store.index("by_owner", "by_text")
    for step in range(1, steps + 1):
        store.transaction(looks=step % 5 == 0)
        if step % 25 == 0:
            store.verify()
        if step == 10:
            store.index("by_n", "by_flag")
        if step == 25:
            store.db.checkpoint(lambda *_: store.transaction())
        if step == 30:
            store.db.drop_index(NAME, "by_owner")
        if step == 35:
            store.reopen()
            assert [each["name"] for each in store.db.indexes(NAME)] == ["by_text", "by_n", "by_flag"]
        if step == 40:
            store.index("by_owner")
        if step == 45:
            store.crash()
            assert {each["name"] for each in store.db.indexes(NAME)} == set(INDEXES)
    store.verify()
    store.db.close()


@pytest.mark.parametrize("on_disk", [False, True])
def test_large_commits_in_slices_maintain_every_index(on_disk: bool) -> None:
    store = Indexed(7, on_disk)
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
    store.db.checkpoint()  # the UNDO log is small
    with pytest.raises(ZeroDivisionError), store.db.transaction() as txn:
        txn.delete_many(NAME, list(range(100, 900)))
        txn.write_many(NAME, [store.row(key) for key in range(500)])
        raise ZeroDivisionError
    store.verify()
    store.db.close()
