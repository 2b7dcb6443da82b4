"""SIGKILL of the processes of a node group under a bank (`tests/node_group/kills`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node_group.kills.loop import Loop
from tests.seeds import fresh_seeds


def run(root: Path, seed: int, kills: int, nodes: int, with_arbitrator: bool) -> Loop:
    """So many kills, judged."""
    loop = Loop(root, nodes, with_arbitrator, seed)
    loop.run(kills, judged_every=min(kills, 10))
    assert all(teller.acknowledged for teller in loop.tellers) and all(reader.reads for reader in loop.readers)
    return loop


@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_kills_of_a_group_lose_nothing(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    run(tmp_path, seed, 3, 3, False)


@pytest.mark.soak
@pytest.mark.parametrize(("nodes", "with_arbitrator"), [(3, False), (2, True), (4, True)])
def test_many_kills_of_a_group_lose_nothing(tmp_path: Path, nodes: int, with_arbitrator: bool) -> None:
    run(tmp_path, 20261122, 250, nodes, with_arbitrator)
