"""A node comes back by ROWID synchronisation while the others keep writing."""

from __future__ import annotations

from typing import Any

import pytest

from engine.file_doubles.memory import MemoryFiles
from tests.node_group.support import Wire, away, joined_and_reopened, restarted
from tests.seeds import fresh_seeds


@pytest.mark.parametrize("seed", [1, 2, 3, *fresh_seeds(2)])
def test_node_that_was_away_equals_the_live_one_whatever_was_written_meanwhile(seed: int) -> None:
    db, files, writers, node, through, rng = away(seed)
    wire = Wire(
        db, files, rng, writers.step, slice_slots=rng.choice([1, 7, 100, 5_000]), slice_words=rng.choice([40, 4_000])
    )
    opened = restarted(node, wire, through)
    joined_and_reopened(db, node, opened, f"seed {seed}")
    db.close()


@pytest.mark.parametrize("seed", [11, *fresh_seeds(1)])
def test_empty_directory_becomes_a_copy(seed: int) -> None:
    db, files, writers, _, _, rng = away(seed, stray=0)
    node = MemoryFiles()
    wire = Wire(db, files, rng, writers.step)
    opened: Any = restarted(node, wire, 0)
    assert wire.source.progress.why.startswith("full copy")
    joined_and_reopened(db, node, opened, f"seed {seed}")
    db.close()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_many_histories(seed: int) -> None:
    test_node_that_was_away_equals_the_live_one_whatever_was_written_meanwhile(seed + 1_000)
