"""SIGKILL of the processes of a node group under a bank (`tests/kills/nodes`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kills.nodes.judged import BinlogEpoch, Binlogs, different
from tests.kills.nodes.loop import Loop
from tests.kills.nodes.points import POINTS, points_of
from tests.kills.nodes.site import Mode
from tests.seeds import fresh_seeds
from tidemark.recovery.crash_harness.program import Violation
from tidemark.recovery.node_restart.messages import DELETE_LOG

SEED = 20261122


def run(root: Path, seed: int, kills: int, mode: Mode) -> Loop:
    """Kill this many times, and check the group in between."""
    loop = Loop(root, mode, seed)
    loop.run(kills, judged_every=min(kills, 10))
    assert all(teller.acknowledged for teller in loop.tellers) and all(reader.reads for reader in loop.readers)
    return loop


@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_kills_of_a_group_lose_nothing(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    run(tmp_path, seed, 2, Mode())


@pytest.mark.soak
@pytest.mark.parametrize(
    ("defect", "kills"), [("commit-without-waiting", 10), ("slice-skipped", 40), ("lease-not-asked", 120)]
)
def test_loop_sees_a_defect_within_so_many_kills(tmp_path: Path, defect: str, kills: int) -> None:
    with pytest.raises(Violation) as caught:
        run(tmp_path, SEED, kills, Mode(defect=defect))
    print(caught.value)


def test_points_are_where_they_were() -> None:
    """Otherwise a name that is gone from the program is noticed only when it is armed, in one run of many."""
    for point in POINTS.values():
        assert callable(getattr(point.owner, point.attribute))
    found = {*points_of({DELETE_LOG}, True, True), *points_of({DELETE_LOG}, False, True, True)}
    assert found == POINTS.keys()


def test_rows_and_binlogs_that_differ_are_seen() -> None:
    one = {"t": ("t(a)", [(0, 1, 5, 0, "x")])}
    assert different(one, one) == ""
    assert "definition of t" in different(one, {"t": ("t(b)", one["t"][1])})
    assert "(0, 1, 6, 0, 'x')" in different(one, {"t": ("t(a)", [(0, 1, 6, 0, "x")])})
    assert "tables" in different(one, {})
    a, b, gap = BinlogEpoch(1, "a", False), BinlogEpoch(2, "b", False), BinlogEpoch(2, "", True)
    binlogs = Binlogs()
    binlogs.take({1: ([a, b], None), 2: ([gap], None)})
    binlogs.take({1: ([BinlogEpoch(3, "c", False)], None), 2: ([BinlogEpoch(3, "c", False)], None)})
    for said, text in [
        ({1: ([BinlogEpoch(4, "d", False)], None), 2: ([], None)}, "node 2 lacks epoch 4"),
        ({1: ([BinlogEpoch(3, "c", False)], None)}, "says epoch 3 after 3"),
        (
            {1: ([BinlogEpoch(6, "e", False)], None), 2: ([BinlogEpoch(6, "f", False)], None)},
            "something else of epoch 6",
        ),
    ]:
        fresh = Binlogs()
        fresh.take({1: ([a, b, BinlogEpoch(3, "c", False)], None), 2: ([gap, BinlogEpoch(3, "c", False)], None)})
        with pytest.raises(Violation, match=text):
            fresh.take(said)
