"""Faults of a node group by name, each with its outcome (docs/internals/node-group.md, *Faults by name*)."""

from __future__ import annotations

import pytest

from tests.simulation.nodes.node import STORE
from tests.simulation.nodes.plan import Faults, plan_of
from tests.simulation.nodes.world import World
from tidemark.replication.node_group.arbitrator import NO_RECORD, Arbitrator
from tidemark.replication.node_group.messages import (
    Conflict,
    Gone,
    Leave,
    Ping,
    Pong,
    Received,
    Refused,
    Send,
    Tick,
)
from tidemark.replication.node_group.view import ARBITRATOR, first_view

SEED = 20_261_122
FOREVER = 1e9


def whole(nodes: int, has_arbitrator: bool = True, **changed) -> World:
    """Return a whole group with clients and without faults; every promise stays checked."""
    drawn = {"faults": Faults(), "rates": (1.0, 1.0), "delay": (0.0002, 0.001), "sync": (0.0002, 0.001), "firsts": 1}
    world = World(plan_of(SEED, nodes=nodes, has_arbitrator=has_arbitrator, **{**drawn, **changed}))
    world.lose_one = lambda: None
    world.run()
    return world


def cut(world: World, one: int, other: int, both: bool = True) -> None:
    world.cut[one, other] = FOREVER
    if both:
        world.cut[other, one] = FOREVER


def acknowledged_in(world: World, seconds: float) -> int:
    before = world.promises.end[0]
    world.run_until(world.timeline.now + seconds)
    return world.promises.end[0] - before


def living(world: World) -> list[int]:
    return [number for number, each in world.nodes.items() if each.node is not None and each.node.may_commit()]


def test_split_brain_leaves_one_living_side_and_the_other_ends_its_store():
    world = whole(2)
    old = world.promises.newest.primary
    other = 3 - old
    cut(world, 1, 2)
    cut(world, old, ARBITRATOR)
    assert acknowledged_in(world, 3.0) > 5
    assert living(world) == [other] and world.promises.newest.numbers == {other}
    node = world.nodes[old].node
    assert not node.may_show(node.view.number, node.now) and not node.may_commit()
    world.cut.clear()
    assert acknowledged_in(world, 3.0) > 5
    assert world.counts["Lost"] == 1 and world.promises.newest.numbers == {1, 2}


def test_link_between_two_breaks_and_the_primary_continues():
    world = whole(2)
    primary = world.promises.newest.primary
    cut(world, 1, 2)
    assert acknowledged_in(world, 2.0) > 5
    assert living(world) == [primary]


def test_two_halves_of_four_without_an_arbitrator_stop_and_continue_together():
    world = whole(4, has_arbitrator=False)
    for one in (1, 3):
        for other in (2, 4):
            cut(world, one, other)
    world.run_until(world.timeline.now + 1.0)
    assert acknowledged_in(world, 3.0) == 0 and living(world) == []
    world.cut.clear()
    assert acknowledged_in(world, 4.0) > 5 and world.promises.newest.numbers == {1, 2, 3, 4}


def test_half_of_four_that_hears_the_arbitrator_lives():
    world = whole(4)
    for one in (1, 3, ARBITRATOR):
        for other in (2, 4):
            cut(world, one, other)
    assert acknowledged_in(world, 3.0) > 5
    assert world.promises.newest.numbers == {1, 3} and len(living(world)) == 1


def test_flapping_link_costs_views_but_no_commit_and_ends_when_it_ends():
    world = whole(3)
    one, other = 1, 2
    before = world.promises.newest.number
    for _ in range(20):
        cut(world, one, other)
        world.run_until(world.timeline.now + 0.05)
        world.cut.clear()
        world.run_until(world.timeline.now + 0.15)
    assert world.promises.newest.number == before, "shorter than a suspicion: nothing happens"
    for _ in range(4):
        cut(world, one, other)
        world.run_until(world.timeline.now + 0.6)
        world.cut.clear()
        world.run_until(world.timeline.now + 0.6)
    assert world.promises.newest.number > before
    assert acknowledged_in(world, 4.0) > 5 and world.promises.newest.numbers == {1, 2, 3}


def test_nodes_that_make_the_group_at_once_make_one():
    world = whole(3, firsts=3)
    assert world.promises.newest.numbers == {1, 2, 3} and len(world.promises.views[1].members) == 1


def test_nodes_that_make_the_group_without_an_arbitrator_refuse_each_other():
    with pytest.raises(AssertionError, match="two views have number 1|N2: two views 1"):
        whole(2, has_arbitrator=False, firsts=2)


def test_arbitrator_dead_is_not_missed_until_a_node_dies():
    world = whole(2)
    world.kept_down.add(ARBITRATOR)
    world.sites[ARBITRATOR].crash()
    assert acknowledged_in(world, 2.0) > 5


def test_arbitrator_dead_two_that_hear_each_other_continue():
    """The arbitrator is one vote of three, not a master: both members are a quorum without it."""
    world = whole(2)
    world.kept_down.add(ARBITRATOR)
    world.sites[ARBITRATOR].crash()
    world.crash(world.sites[2], True)
    world.run_until(world.timeline.now + 6.0)
    assert acknowledged_in(world, 1.0) > 3 and world.promises.newest.numbers == {1, 2}


def test_arbitrator_and_a_node_dead_the_site_stops_and_acknowledges_nothing_false():
    world = whole(2)
    for number in (ARBITRATOR, 2):
        world.kept_down.add(number)
        world.sites[number].crash()
    world.run_until(world.timeline.now + 1.0)
    assert acknowledged_in(world, 3.0) == 0
    node = world.nodes[1].node
    assert not node.may_show(node.view.number, node.now)
    world.kept_down.clear()
    world.sites[ARBITRATOR].start()
    assert acknowledged_in(world, 3.0) > 5 and living(world) == [1]


def test_arbitrator_without_its_disk_refuses_until_an_operator_says_so():
    world = whole(2)
    arbitrator = world.sites[ARBITRATOR]
    arbitrator.crash()
    arbitrator.lose_disk()
    arbitrator.start()
    world.kept_down.add(2)
    world.sites[2].crash()
    world.run_until(world.timeline.now + 1.0)
    assert acknowledged_in(world, 2.0) == 0 and world.nodes[1].node.refusal == NO_RECORD
    assert isinstance(arbitrator.machine, Arbitrator) and arbitrator.machine.record is None
    arbitrator.do(arbitrator.machine.begin(world.promises.newest, arbitrator.now))
    assert acknowledged_in(world, 2.0) > 5 and living(world) == [1]
    assert arbitrator.machine.begin(first_view("a"), 0.0) == [], "a word said twice changes nothing"


def test_old_primary_that_comes_back_goes_back_to_x_and_joins():
    world = whole(3)
    old = world.promises.newest.primary
    cut(world, old, ARBITRATOR)
    for other in {1, 2, 3} - {old}:
        cut(world, old, other)
    world.commit()
    assert acknowledged_in(world, 3.0) > 5
    world.cut.clear()
    world.run_until(world.timeline.now + 3.0)
    assert world.counts["Lost"] == 1 and world.promises.newest.numbers == {1, 2, 3}
    assert world.promises.newest.primary != old


def test_link_that_carries_one_direction_is_no_link():
    world = whole(2)
    primary = world.promises.newest.primary
    cut(world, 3 - primary, primary, both=False)
    assert acknowledged_in(world, 2.0) > 5
    assert len(living(world)) == 1 and len(world.promises.newest.members) == 1
    world.cut.clear()
    assert acknowledged_in(world, 3.0) > 5 and world.promises.newest.numbers == {1, 2}


def test_node_whose_disk_stalls_falls_silent_and_is_left_out():
    world = whole(3, stall_ms=600)
    slow = world.promises.newest.primary
    world.sites[slow].stalled_until = world.timeline.now + 4.0
    world.run_until(world.timeline.now + 2.5)
    assert acknowledged_in(world, 1.0) > 3 and slow not in world.promises.newest.numbers
    world.run_until(world.timeline.now + 4.0)
    assert world.promises.newest.numbers == {1, 2, 3}


def test_disk_that_stalls_for_less_only_makes_commits_wait():
    world = whole(3, stall_ms=5_000)
    before = world.promises.newest.number
    world.sites[2].stalled_until = world.timeline.now + 2.0
    world.run_until(world.timeline.now + 0.1)
    assert acknowledged_in(world, 1.5) == 0
    assert acknowledged_in(world, 2.0) > 5 and world.promises.newest.number == before


def test_member_and_primary_leave_in_order_without_a_wait_for_their_leases():
    world = whole(3)
    member, primary = next(n for n in (1, 2, 3) if n != world.promises.newest.primary), world.promises.newest.primary
    world.kept_down |= {member, primary}
    for number in (member, primary):
        opened = world.promises.opened
        world.sites[number].step(Leave())
        at = world.timeline.now
        while world.promises.opened == opened and world.timeline.now < at + 2:
            world.run_until(world.timeline.now + 0.005)
        assert world.timeline.now - at < 0.15 and number not in world.promises.newest.numbers
    assert acknowledged_in(world, 1.0) > 0 and world.counts["Left"] == 2


def test_primary_whose_disk_is_full_hands_over_and_joins_again_when_it_has_room():
    """Story: it led for as long as its disk was full, and refused every commit, while its peers had room."""
    world = whole(3, has_arbitrator=False)
    old = world.promises.newest.primary
    world.nodes[old].full_until = FOREVER
    assert acknowledged_in(world, 2.0) > 5
    assert world.counts["Left"] == 1 and old not in world.promises.newest.numbers
    assert world.nodes[old].node is not None and not world.nodes[old].node.is_member, "it has no room for a checkpoint"
    primary = world.promises.newest.primary
    world.nodes[old].full_until = 0.0
    assert acknowledged_in(world, 2.0) > 5
    assert len(world.promises.newest.numbers) == 3 and world.promises.newest.primary == primary


def test_nothing_changes_while_all_disks_are_full():
    """No other node would do better, and each change costs a member."""
    world = whole(3)
    view = world.promises.newest
    for each in world.nodes.values():
        each.full_until = FOREVER
    assert acknowledged_in(world, 5.0) == 0 and world.promises.newest == view
    other = min(view.numbers - {view.primary})
    world.nodes[other].full_until = 0.0
    assert acknowledged_in(world, 2.0) > 5
    assert world.promises.newest.primary == other and view.primary not in world.promises.newest.numbers
    for each in world.nodes.values():
        each.full_until = 0.0
    assert acknowledged_in(world, 2.0) > 5 and len(world.promises.newest.numbers) == 3


def test_member_whose_disk_is_full_changes_nothing():
    world = whole(3)
    view = world.promises.newest
    world.nodes[min(view.numbers - {view.primary})].full_until = FOREVER
    assert acknowledged_in(world, 3.0) > 5 and world.promises.newest == view


def test_last_member_whose_disk_is_full_stays():
    world = whole(2)
    primary = world.promises.newest.primary
    world.kept_down.add(3 - primary)
    world.nodes[3 - primary].crash()
    world.run_until(world.timeline.now + 2.0)
    view = world.promises.newest
    world.nodes[primary].full_until = FOREVER
    assert view.numbers == {primary} and acknowledged_in(world, 2.0) == 0 and world.promises.newest == view
    world.nodes[primary].full_until = 0.0
    assert acknowledged_in(world, 2.0) > 5


def test_last_member_does_not_leave():
    world = whole(2)
    world.kept_down.add(2)
    world.sites[2].step(Leave())
    world.run_until(world.timeline.now + 1.0)
    world.sites[1].step(Leave())
    assert acknowledged_in(world, 1.0) > 0 and "last member" in world.nodes[1].node.refusal


def test_node_of_another_store_is_refused():
    world = whole(2)
    node = world.nodes[1]
    foreign = Received(2, bytes(16), Ping(99, 1, True, True, False))
    refused = Refused("this node belongs to another store", node.node.view.number)
    assert node.node.view.number > 1 and node.node.step(foreign, node.now) == [Send(2, refused)]
    answer = Received(2, bytes(16), Refused("x"))
    assert node.node.step(answer, node.now) == [], "a refusal is not answered"
    arbitrator = world.sites[ARBITRATOR]
    assert arbitrator.machine.step(foreign, 0.0) == [Send(2, Refused("this arbitrator belongs to another store"))]


@pytest.mark.parametrize(
    ("store", "message", "is_second"),
    [
        (bytes(16), Refused("x", 7), True),
        (bytes(16), Ping(1, 1, True, True, False), True),  # of node 1: of two groups of one node its group continues
        (bytes(16), Ping(0, 1, False, False, True), False),  # in no view yet
        (STORE, Ping(5, 1, True, True, False), True),  # a copy of the group's store has founded this group
        (STORE, Pong(5, 1, False, 0), True),
        (STORE, Ping(1, 1, True, True, False), True),
        (STORE, Ping(1, 1, False, False, True), False),  # it joins
        (STORE, Pong(1, 1, False, 0), False),
    ],
)
def test_group_of_one_founder_ends_when_another_group_is_heard(store, message, is_second):
    """Story: it went on for good, and acknowledged commits of the same clients."""
    world = World(plan_of(SEED, nodes=2, has_arbitrator=False, faults=Faults(), rates=(1.0, 1.0), firsts=1))
    founder = world.nodes[2]
    founder.start()
    founder.do(founder.node.make_group(founder.now))
    world.run_until(0.5)
    assert founder.node.may_commit() and founder.node.view.numbers == {2}
    actions = founder.node.step(Received(1, store, message), founder.now)
    assert any(isinstance(each, Conflict) for each in actions) is is_second
    assert founder.node.is_over is is_second


def test_founder_without_others_asks_all_of_them_until_one_has_joined():
    """Otherwise it would never hear of another group: the members of that ask their own members alone."""
    world = World(plan_of(SEED, nodes=3, has_arbitrator=False, faults=Faults(), rates=(1.0, 1.0), firsts=1))
    founder = world.nodes[1]
    founder.start()
    founder.do(founder.node.make_group(founder.now))
    world.run_until(0.5)
    asked = {each.to for each in founder.node.step(Tick(), founder.now + 1.0) if isinstance(each, Send)}
    assert asked == {2, 3}


def test_site_without_power_comes_back_with_everything_acknowledged():
    for nodes, has_arbitrator in ((2, True), (2, False), (3, False), (4, True)):
        world = whole(nodes, has_arbitrator)
        before = world.promises.end[0]
        world.crash_all()
        world.run_until(world.timeline.now + 6.0)
        assert world.promises.end[0] > before and len(world.promises.newest.members) == nodes


def test_node_said_to_be_gone_that_is_there_costs_a_view_only():
    world = whole(3)
    view = world.promises.newest
    world.nodes[view.primary].step(Gone(next(iter(view.numbers - {view.primary}))))
    assert acknowledged_in(world, 2.0) > 5
    assert world.promises.newest.numbers == {1, 2, 3} and world.promises.newest.primary == view.primary
