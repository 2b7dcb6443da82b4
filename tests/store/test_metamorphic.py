"""One history, two stores that keep the same table in different ways: every answer must be the same.

One table has all its columns in memory and three fragments. The other has one fragment and, where "disk" stands in
STORAGES, random columns on disk, with a page buffer of 25 frames or a larger one, on pages of any size.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

import tidemark as tm
from tests.store.history import KEYS, LEAST, PAGE_SIZES, History, World

STORAGES = ["memory", "disk"]
STEPS = 150


def compare(history: History, steps: int, one: World, other: World, said: str) -> None:
    """Both must answer every step alike, and be sound at the end."""
    for number, step in enumerate(history.steps(steps)):
        wanted, found = one.answer(step), other.answer(step)
        assert found == wanted, f"{said}, step {number}: {step.call} {step.data!r:.500}"
    for world in (one, other):
        assert world.db.check()["problems"] == []
        world.close()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("seed", range(6))
def test_same_history_gives_same_answers_however_the_table_is_kept(storage: str, seed: int) -> None:
    history = History(seed)
    how: dict[str, Any] = {}
    other_columns = history.columns
    if storage == "disk":
        other_columns = history.placed()
        rng = random.Random(seed)
        how = {"page_size": rng.choice(PAGE_SIZES), "undo_filter": rng.random() < 0.7}
        how |= LEAST if rng.random() < 0.7 else {"page_buffer": "2 MiB"}
    one, other = World(history.columns, 3), World(other_columns, 1, **how)
    compare(history, STEPS, one, other, f"seed {seed} {how}")


@pytest.mark.parametrize(
    "partition",
    [
        tm.HashPartition(5, modulo="id"),
        tm.LinearHash(7),
        tm.RangePartition("id", [("low", 9), ("middle", 30), ("rest", tm.MAXVALUE)]),
        tm.ListPartition(
            "id", {"some": range(0, 2 * KEYS, 3), "others": set(range(2 * KEYS)) - set(range(0, 2 * KEYS, 3))}
        ),
    ],
    ids=["modulo", "linear", "ranges", "lists"],
)
@pytest.mark.parametrize("storage", STORAGES)
def test_same_history_gives_same_answers_however_rows_are_spread(storage: str, partition: tm.Partition) -> None:
    history = History(77)
    columns, how = (history.placed(), {"page_size": "4 KiB", **LEAST}) if storage == "disk" else (history.columns, {})
    compare(history, STEPS, World(history.columns, 3), World(columns, partition, **how), f"{partition}")


@pytest.mark.parametrize("seed", range(2))
def test_same_history_gives_same_answers_with_a_table_ten_times_the_page_buffer(seed: int) -> None:
    """Batches of hundreds of rows commit in slices of a few pages each; nearly every read brings its page in."""
    history = History(1_000 + seed, keys=600, has_filler=True)
    room = {"data_memory": "64 MiB", "redo_log": "64 MiB", "undo_log": "32 MiB", "transaction_memory": "32 MiB"}
    one = World(history.columns, 3, **room)
    other = World(history.placed(), 2, page_size="4 KiB", **room, **LEAST)
    compare(history, 40, one, other, f"seed {seed}")
