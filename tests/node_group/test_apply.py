"""Groups of one store applied to another that is in use: both are equal after every one of them."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.pair import Pair, PairWorld
from tests.store.history import LEAST, PAGE_SIZES, History
from tests.store.support import ACCOUNT


def test_rows_come_with_slots_epochs_and_ids_and_the_member_refuses_writers() -> None:
    pair = Pair()
    pair.primary.create_table("test.account", ACCOUNT, "id")
    for key in range(5):
        pair.primary["test.account"].insert((key, "o", 1.0, None))
    pair.primary["test.account"].delete(3)
    with pair.primary.transaction() as txn:
        txn.insert("test.account", (10, "p", 2.0, "x" * 500))
        txn.update("test.account", 10, {"balance": 3.0})
        txn.delete("test.account", 1)
        txn.insert("test.account", (1, "again", 4.0, "y"))
    pair.verify()
    with pytest.raises(tm.NotPrimary, match="member"):
        pair.member["test.account"].insert((99, "o", 1.0, None))
    with pytest.raises(tm.NotPrimary):
        pair.member.create_table("test.u", ACCOUNT, "id")
    assert len(pair.member["test.account"]) == 5
    pair.close()


def run(history: History, world: PairWorld, steps: int, said: str) -> None:
    """Random calls at the primary; whatever it answers, the member is equal."""
    for number, step in enumerate(history.steps(steps)):
        world.answer(step)
        if number % 10 == 0 and world.txn is None:
            world.pair.verify(f"{said}, step {number}: {step.call}")
    world.answer(next(iter([type(step)("rollback")])))
    world.pair.verify(said)
    assert world.pair.applier.rows_applied > 0
    world.pair.close()


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_history_leaves_both_equal_slot_by_slot(storage: str, seed: int) -> None:
    history = History(seed)
    how: dict[str, Any] = {}
    columns = history.columns
    if storage == "disk":
        columns = history.placed()
        rng = random.Random(seed)
        how = {"page_size": rng.choice(PAGE_SIZES), "undo_filter": rng.random() < 0.7, **LEAST}
    run(history, PairWorld(columns, 3, **how), 120, f"seed {seed} {how}")
