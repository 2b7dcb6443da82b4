"""Random transactions on tables with unique indexes: what is accepted, refused and found is what dicts say."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import tidemark as tm
from tests.unique.stored import NAME, UNIQUE, Uniques

SHAPES: dict[str, Any] = {
    "memory": (False, tm.HashPartition(2)),
    "disk": (True, tm.HashPartition(2)),
    "ranges": (False, tm.RangePartition("id", [("low", 20), ("middle", 40), ("rest", tm.MAXVALUE)])),
}


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(2, 12))
def test_more_random_transactions_leave_rows_and_entries_as_the_model(shape: str, seed: int) -> None:
    test_random_transactions_leave_rows_and_entries_as_the_model(shape, seed, 150)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [1])
def test_random_transactions_leave_rows_and_entries_as_the_model(shape: str, seed: int, steps: int = 60) -> None:
    print(f"seed {seed}")
    gc.collect()
    store = Uniques(seed, *SHAPES[shape])
    store.index("by_email")
    for step in range(1, steps + 1):
        store.transaction()
        if step % 10 == 0:
            store.verify()
        if step == 10:
            store.index("by_pair", "by_float")
        if step == 25:
            store.db.checkpoint(lambda *_: store.transaction())
        if step == 30:
            store.db.drop_index(NAME, "by_pair")
        if step == 35:
            store.reopen()
            assert store.unique == ["by_email", "by_float"]
        if step == 40:
            store.index("by_pair")
        if step == 45:
            store.crash()
            assert set(store.unique) == set(UNIQUE)
    store.verify()
    assert store.refused > 20
    store.db.close()
