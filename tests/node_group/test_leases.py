"""A lease never lasts longer than the nodes that granted it wait, for any links, and clocks that are off by a
quarter.
"""

from __future__ import annotations

import pytest

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.replication.node_group.liveness import Leases
from tidemark.replication.node_group.machine import Joiner
from tidemark.replication.node_group.messages import (
    Adopted,
    Open,
    Ping,
    Pong,
    Received,
    Send,
    Tick,
    ViewIs,
    Write,
    Written,
)
from tidemark.replication.node_group.primacy import Primacy
from tidemark.replication.node_group.view import Member, Record, Times, View
from tidemark.replication.node_group.views import Node

STORE = bytes(range(16))
TIMES = Times()


def members(*numbers: int) -> tuple[Member, ...]:
    return tuple(Member(number, f"node-{number}") for number in numbers)


@pytest.mark.parametrize("reader", [0.75, 1.0, 1.25])
@pytest.mark.parametrize("other", [0.75, 1.0, 1.25])
@pytest.mark.parametrize("opener", [0.75, 1.0, 1.25])
@pytest.mark.parametrize("delay", [0.0, 0.05, 5.0])
def test_lease_has_run_out_when_it_counts_as_settled(reader, other, opener, delay):
    """True seconds: asked at 0, granted at `delay`, reported 0.1 s later; the report takes another `delay`."""
    view = View(2, members(1, 2, 3), 1)
    lease = Leases(TIMES, 0.0)
    lease.asked(1, 0.0)
    lease.agreed(2, 1)
    ends = TIMES.lease_ms / 1_000 / reader
    assert lease.holds(view, ends * reader - 1e-6) and not lease.holds(view, ends * reader + 1e-6)
    grants = Leases(TIMES, -100.0)
    grants.agree(1, delay * other)
    reported = delay + 0.1
    ((_, age_ms),) = grants.ages_ms(frozenset({1}), reported * other)
    came = reported + delay
    settled = Leases(TIMES, 0.0).settled_at(age_ms, came * opener) / opener
    assert settled > ends - 1e-9
    assert Leases(TIMES, 0.0).all_settled_at(delay * opener) / opener >= ends - 1e-9


def test_400_ms_would_not_do_for_leases_of_300():
    """The first design waited 400 ms. A reader a quarter slow holds a lease of 300 ms for 400; a waiter a quarter fast
    has waited its 400 after 320.
    """
    assert 400 / 1.25 < 300 / 0.75 <= TIMES.settle_ms / 1.25


def test_answer_counts_from_the_sending_of_what_it_answers():
    view = View(2, members(1, 2, 3), 1)
    lease = Leases(TIMES, 0.0)
    lease.asked(1, 0.0)
    lease.asked(2, 0.1)
    lease.agreed(2, 1)
    assert lease.holds(view, 0.29) and not lease.holds(view, 0.31)
    lease.agreed(2, 2)
    lease.agreed(2, 1)  # a late duplicate
    assert lease.holds(view, 0.39) and not lease.holds(view, 0.41)
    lease.agreed(3, 77)  # from an earlier process
    assert not lease.holds(view, 0.41)


QUORUMS = [(1, "a", 0), (2, "a", 1), (2, "", 0), (3, "a", 1), (3, "", 1), (4, "", 1), (4, "a", 2)]


@pytest.mark.parametrize(("count", "arbitrator", "wanted"), QUORUMS)
def test_every_lease_shares_a_node_with_every_quorum(count, arbitrator, wanted):
    view = View(2, members(*range(1, count + 1)), 1, arbitrator)
    assert view.readers - 1 == wanted
    assert len(view.voters) - view.readers < view.quorum, "voters that know nothing of the lease are no quorum"


class NoLog:
    last = applied = synced = due = epoch = 0
    owed_since = None
    is_full = is_refusing = False

    def groups(self, first, last):
        return ()

    def take(self, first, groups):
        raise AssertionError

    def roll_back_to(self, epoch, sequence):
        raise AssertionError


def seconds_to_open(is_open: bool, left_out: set[int], now: float) -> float:
    """Return when node 1, which granted reads to all others 0.2 s ago, opens the view without some of them."""
    view = View(2, members(1, 2, 3, 4), 1, "a")
    machine = Node(view.members[0], Record(STORE, 1, view, True), NoLog(), TIMES, 1, frozenset({2, 3, 4}), 0.0)
    machine.is_adopted = machine.is_open = is_open
    machine.is_frozen = not is_open
    for other in (2, 3, 4):
        machine.step(Received(other, STORE, Ping(2, 1, True, True, False)), now - 0.2)
    rest = tuple(member for member in view.members if member.number not in left_out)
    actions = machine.step(Received(2, STORE, ViewIs(View(3, rest, 1, "a"))), now)
    machine.step(Written(next(each for each in actions if isinstance(each, Write)).version), now)
    for member in rest[1:]:
        reported = Adopted(3, 0, 0, tuple((each, 200) for each in left_out))
        if any(isinstance(each, Open) for each in machine.step(Received(member.number, STORE, reported), now)):
            return 0.0
    at = now
    while at < now + 2:
        if any(isinstance(each, Open) for each in machine.step(Tick(), at)):
            return at - now
        for member in rest[1:]:
            machine.step(Received(member.number, STORE, Pong(3, machine.serial, False, 0)), at)
        at += 0.01
    raise AssertionError("never opened")


def test_view_without_one_member_opens_when_the_last_agreement_is_old_enough():
    wait = seconds_to_open(True, {4}, 10.0)
    assert 0.3 <= wait < 0.32


def test_view_without_two_members_waits_from_its_decision_for_they_may_have_agreed_to_each_other():
    assert 0.5 <= seconds_to_open(True, {3, 4}, 10.0) < 0.52


def test_view_after_one_that_never_opened_here_waits_from_its_decision():
    assert 0.5 <= seconds_to_open(False, {4}, 10.0) < 0.52


def test_view_without_a_node_left_out_opens_at_once():
    assert seconds_to_open(True, set(), 10.0) == 0


def test_frozen_node_agrees_to_nothing():
    view = View(2, members(1, 2), 1, "a")
    machine = Node(view.members[0], Record(STORE, 1, view, True), NoLog(), TIMES, 1, frozenset({2}), 0.0)
    (pong,) = [
        each.message
        for each in machine.step(Received(2, STORE, Ping(2, 9, True, True, False)), 0.01)
        if isinstance(each, Send) and isinstance(each.message, Pong)
    ]
    assert pong == Pong(2, 9, False, 0)


@pytest.mark.parametrize("bad", [{"heartbeat_ms": 300}, {"heartbeat_ms": 0}, {"stall_ms": 100}, {"gather_ms": 0}])
def test_times_that_cannot_be_are_refused(bad):
    with pytest.raises(SchemaInvalid):
        Times(**bad)


def test_node_rejoins_only_with_what_is_acknowledged_for_being_in_memory():
    """A node that has what members have on disk is worth the next view. It becomes a member, and has a vote, only with
    all that is shared: that must not be lost with the nodes that hold it in memory.
    """
    view = View(3, members(1), 1)
    node = Node(members(1)[0], Record(STORE, 1, view, is_member=True), NoLog(), TIMES, 1, frozenset({1, 2}), 0.0)
    node.primacy = Primacy(view, 1, 0.0, is_open=True, acknowledged=3, shared=5)
    found = []
    for synced in range(2, 7):
        node.joiners = {2: Joiner(members(1, 2)[1], synced, True, 0.0)}
        found.append((sorted(node.joining()), sorted(node.joined())))
    assert found == [([], []), ([2], []), ([2], []), ([2], [2]), ([2], [2])]
