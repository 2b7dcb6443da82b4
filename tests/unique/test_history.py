"""Random transactions on tables with unique indexes: what is accepted, refused and found is what dicts say."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import tidemark as tm
from tests.index.stored import SEEDS, live
from tests.unique.stored import Uniques

SHAPES: dict[str, Any] = {
    "memory": (False, tm.HashPartition(2)),
    "disk": (True, tm.HashPartition(2)),
    "ranges": (False, tm.RangePartition("id", [("low", 20), ("middle", 40), ("rest", tm.MAXVALUE)])),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_transactions_leave_rows_and_entries_as_the_model(shape: str, seed: int) -> None:
    print(f"seed {seed}")
    gc.collect()
    store = Uniques(seed, *SHAPES[shape])
    live(store, 60 if seed == 1 else 150, ("by_email",), ("by_pair", "by_float"), "by_pair")
    assert store.refused > 20
