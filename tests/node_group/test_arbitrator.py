"""The arbitrator votes once for each number, after the vote is on disk, for members of the newest view it knows."""

from __future__ import annotations

from tidemark.replication.node_group.arbitrator import NO_RECORD, Arbitrator
from tidemark.replication.node_group.messages import (
    Accept,
    Accepted,
    Outbid,
    Prepare,
    Promise,
    Received,
    Refused,
    Send,
    Tick,
    ViewIs,
    Write,
    Written,
)
from tidemark.replication.node_group.view import NO_BALLOT, Ballot, Member, Record, View, first_view

STORE = bytes(range(16))
A, B, C = (Member(number, f"node-{number}") for number in (1, 2, 3))
BOTH = View(4, (A, B), 1, "arbitrator")
ONLY_A, ONLY_B = View(5, (A,), 1, "arbitrator"), View(5, (B,), 2, "arbitrator")


def reported(machine: Arbitrator, sender: int, message, store: bytes = STORE):
    """Return its answers and the number of writes that were carried out before them."""
    actions = machine.step(Received(sender, store, message), 0.0)
    writes = 0
    while any(isinstance(each, Write) for each in actions):
        done = next(each for each in actions if isinstance(each, Write))
        assert not any(isinstance(each, Send) for each in actions), "an answer before its disk"
        actions = machine.step(Written(done.version), 0.0)
        writes += 1
    return [each.message for each in actions if isinstance(each, Send)], writes


def knowing(view: View) -> Arbitrator:
    return Arbitrator(STORE, Record(STORE, 0, view))


def test_one_successor_whichever_node_asks_and_however_often():
    machine = knowing(BOTH)
    assert reported(machine, 1, Prepare(BOTH, Ballot(1, 1))) == ([Promise(4, Ballot(1, 1), 0, NO_BALLOT, None, "")], 1)
    assert reported(machine, 1, Accept(BOTH, Ballot(1, 1), ONLY_A)) == ([Accepted(4, Ballot(1, 1))], 1)
    assert reported(machine, 1, Accept(BOTH, Ballot(1, 1), ONLY_A)) == ([Accepted(4, Ballot(1, 1))], 0), "repeated"
    promised = Promise(4, Ballot(1, 2), 0, Ballot(1, 1), ONLY_A, "")
    assert reported(machine, 2, Prepare(BOTH, Ballot(1, 2))) == ([promised], 1), "the other one hears of the vote"
    assert reported(machine, 1, Prepare(BOTH, Ballot(1, 1))) == ([Outbid(4, Ballot(1, 2))], 0)
    assert reported(machine, 1, Accept(BOTH, Ballot(1, 1), ONLY_B)) == ([Outbid(4, Ballot(1, 2))], 0)


def test_vote_outlives_a_crash_only_if_it_was_sent():
    machine = knowing(BOTH)
    before = machine.record
    actions = machine.step(Received(1, STORE, Accept(BOTH, Ballot(1, 1), ONLY_A)), 0.0)
    assert [type(each) for each in actions] == [Write]
    again = Arbitrator(STORE, before)
    assert reported(again, 2, Prepare(BOTH, Ballot(1, 2)))[0] == [Promise(4, Ballot(1, 2), 0, NO_BALLOT, None, "")]
    kept = Arbitrator(STORE, actions[0].record)
    assert reported(kept, 2, Prepare(BOTH, Ballot(1, 2)))[0] == [Promise(4, Ballot(1, 2), 0, Ballot(1, 1), ONLY_A, "")]


def test_requests_of_old_views_strangers_and_other_stores_get_no_vote():
    machine = knowing(ONLY_A)
    assert reported(machine, 2, Prepare(BOTH, Ballot(9, 2))) == ([ViewIs(ONLY_A)], 0)
    assert reported(machine, 2, Accept(BOTH, Ballot(9, 2), ONLY_B)) == ([ViewIs(ONLY_A)], 0)
    machine = knowing(BOTH)
    for sender, message, store in (
        (3, Prepare(BOTH, Ballot(1, 3)), STORE),
        (1, Prepare(View(4, (A, C), 1, "arbitrator"), Ballot(1, 1)), STORE),
        (1, Prepare(BOTH, Ballot(1, 1)), bytes(16)),
        (1, Accept(BOTH, Ballot(1, 1), View(6, (A,), 1, "arbitrator")), STORE),
    ):
        answers, writes = reported(machine, sender, message, store)
        assert [type(each) for each in answers] == [Refused] and writes == 0
    assert machine.record == Record(STORE, 0, BOTH)
    three = View(9, (A, B, C), 1, "arbitrator")
    assert reported(machine, 1, Prepare(three, Ballot(1, 1))) == ([], 0), "three need no arbitrator"


def test_views_it_has_no_vote_on_pass_it_by():
    machine = knowing(BOTH)
    later = View(11, (B, C), 2, "arbitrator")
    assert reported(machine, 2, Prepare(later, Ballot(3, 2)))[0] == [Promise(11, Ballot(3, 2), 0, NO_BALLOT, None, "")]
    assert machine.record.view == later
    assert reported(machine, 1, Prepare(BOTH, Ballot(8, 1)))[0] == [ViewIs(later)]


def test_without_a_record_it_refuses_until_an_operator_has_spoken():
    machine = Arbitrator(STORE, None)
    assert reported(machine, 1, Prepare(first_view("arbitrator"), Ballot(1, 1))) == ([Refused(NO_RECORD)], 0)
    assert machine.step(Tick(), 0.0) == [] and machine.record is None
    (write,) = machine.begin(BOTH, 0.0)
    machine.step(Written(write.version), 0.0)
    assert reported(machine, 1, Prepare(BOTH, Ballot(1, 1)))[0] == [Promise(4, Ballot(1, 1), 0, NO_BALLOT, None, "")]
    assert machine.begin(first_view("arbitrator"), 0.0) == []
