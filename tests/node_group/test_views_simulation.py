"""Simulated nodes keep N1 to N4 and N7, with one living side, whatever links, disks, clocks and processes do."""

from __future__ import annotations

import pytest

from tests.crash.test_planted_defects import look
from tests.crash.view_defects import VIEW_DEFECTS
from tests.simulation.nodes.__main__ import main
from tests.simulation.nodes.plan import Faults, plan_of
from tests.simulation.nodes.world import BrokenPromise, World, run_seed

SEEDS = range(1, 301)
PLANNED_SEEDS = range(10_001, 12_001)
QUICK_SEEDS = 60  # a defect found within so many seeds is tested in each run


def test_hundreds_of_seeds_keep_every_promise():
    counts: dict[str, int] = {}
    for seed in SEEDS:
        for name, count in run_seed(seed).counts.items():
            counts[name] = counts.get(name, 0) + count
    print(f"seeds {SEEDS}: {counts}")
    for name in ("crash", "split", "flap", "stall", "pause", "leave", "disk lost", "Lost", "Left"):
        assert counts[name] > 5, name
    assert counts["open"] > 3 * len(SEEDS) and counts["reads"] > 30 * len(SEEDS)
    assert counts.get("stopped", 0) < len(SEEDS) / 50, "what cannot continue is rare, or liveness is not looked at"


def test_same_seed_gives_the_same_run():
    one, other = run_seed(7), run_seed(7)
    assert one == other and run_seed(8).digest != one.digest


def test_plans_have_every_size_and_kind_of_fault():
    plans = [plan_of(seed) for seed in PLANNED_SEEDS]
    assert {(plan.nodes, plan.has_arbitrator) for plan in plans} == {(n, a) for n in (2, 3, 4) for a in (False, True)}
    assert {plan.rates for plan in plans} == {(1.0, 1.0), (0.75, 1.25)}
    for name in Faults().__dict__:
        assert 0 < sum(bool(getattr(plan.faults, name)) for plan in plans) < len(plans), name


def test_group_without_faults_is_made_takes_commits_and_never_changes_its_view_again():
    for nodes in (2, 3, 4):
        world = World(plan_of(5, nodes=nodes, has_arbitrator=True, faults=Faults(), rates=(1.0, 1.0), firsts=1))
        world.lose_one = lambda: None
        world.run()
        assert max(world.promises.views) <= nodes, "one view for each node that joined, at most"
        assert len(world.promises.acknowledged) > 20


@pytest.mark.parametrize(("refused", "bound"), [(1.0, 0.75), (0.0, 1.0)])
def test_killed_primary_is_followed_within_a_second(refused, bound):
    """With refused connections, and with silence alone; clocks are right, links and disks fast."""
    for nodes in (2, 3, 4):
        plan = plan_of(
            5, nodes=nodes, has_arbitrator=True, faults=Faults(), rates=(1.0, 1.0), delay=(0.0002, 0.001),
            sync=(0.0002, 0.002), firsts=1,
        )  # fmt: skip
        world = World(plan)
        world.lose_one = lambda: None
        world.run()
        before = world.promises.newest
        world.kept_down.add(before.primary)
        killed = world.timeline.now
        world.crash(world.sites[before.primary], refused == 1.0)
        while world.promises.opened == before.number and world.timeline.now < killed + 5:
            world.run_until(world.timeline.now + 0.005)
        assert world.promises.opened == before.number + 1
        assert world.timeline.now - killed < bound


def test_nodes_that_never_agree_are_seen_as_not_alive(monkeypatch):
    monkeypatch.setattr("tidemark.replication.node_group.votes.Candidacy.is_decided", lambda candidacy: False)
    with pytest.raises(BrokenPromise, match="no whole group"):
        run_seed(1)


def test_command_prints_a_line_for_each_batch_and_the_seed_of_a_violation(capsys, monkeypatch):
    assert main(["--seeds", "1:5", "--batch", "2"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["1:3", "3:5"]
    monkeypatch.setattr("tidemark.replication.node_group.primacy.Primacy.is_equal", lambda primacy, log: True)
    assert main(["--seeds", "1:40", "--trace"]) == 1
    assert "BROKEN seed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "defect",
    [
        pytest.param(each, id=each.name, marks=() if int(each.part.split()[1]) <= QUICK_SEEDS else pytest.mark.soak)
        for each in VIEW_DEFECTS
    ],
)
def test_planted_defect_is_seen_within_its_seeds(defect):
    look(defect)


def test_enough_defects_are_planted():
    assert len(VIEW_DEFECTS) >= 20 and len({each.name for each in VIEW_DEFECTS}) == len(VIEW_DEFECTS)
