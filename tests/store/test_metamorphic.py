"""One history, two stores that keep the same table in different ways: every answer must be the same.

One table has all its columns in memory and three fragments. The other has one fragment and, where "disk" stands in
STORAGES, random columns on disk.
"""

from __future__ import annotations

import pytest

from tests.store.history import History, World

STORAGES = ["memory"]
STEPS = 150


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("seed", range(6))
def test_same_history_gives_same_answers_however_the_table_is_kept(storage: str, seed: int) -> None:
    history = History(seed)
    other_columns = history.placed() if storage == "disk" else history.columns
    one, other = World(history.columns, 3), World(other_columns, 1)
    for number, step in enumerate(history.steps(STEPS)):
        wanted, found = one.answer(step), other.answer(step)
        assert found == wanted, f"seed {seed}, step {number}: {step.call} {step.data!r:.500}"
    for world in (one, other):
        assert world.db.check()["problems"] == []
        world.close()
