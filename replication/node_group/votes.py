"""Votes for the successor of a view: one ballot decides it, and every vote is on disk before it is sent.

This is Paxos for one value in each view: a majority of the voters of view n chooses view n+1. A voter that has promised
a ballot votes in no lower one. With the promise it reports its last vote, and the candidate must propose the reported
view of the highest ballot, if there is one. So at most one successor is ever chosen, even if votes are split and
candidates die in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tidemark.replication.node_group.messages import Accept, Accepted, Action, Outbid, Prepare, Promise, Send, Write
from tidemark.replication.node_group.view import NO_BALLOT, Ballot, Member, Record, View


class Journal:
    """The record in memory, its writes under way, and the messages that wait for them.

    One write is under way at a time; changes made in the meantime go into the next.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.owed_since: float | None = None
        self._version = 0
        self._writing = 0
        self._written = 0
        self._waiting: list[tuple[int, Action]] = []

    @property
    def is_written(self) -> bool:
        """Whether the record on disk equals the one in memory."""
        return self._written == self._version

    def change(self, now: float, **changes: Any) -> list[Action]:
        """Change the record; return the write that makes it durable, unless one is under way."""
        self.record = replace(self.record, **changes)
        self._version += 1
        if self._writing > self._written:
            return []
        return self._write(now)

    def defer(self, *actions: Action) -> list[Action]:
        """Queue actions until the present record is durable; if it is already, return them instead."""
        if self.is_written:
            return list(actions)
        self._waiting += [(self._version, action) for action in actions]
        return []

    def written(self, version: int, now: float) -> list[Action]:
        """Note that a version is durable; return the actions that waited for it, and the next write if one is due."""
        self._written = max(self._written, version)
        self.owed_since = None
        found = [action for wanted, action in self._waiting if wanted <= self._written]
        self._waiting = [each for each in self._waiting if each[0] > self._written]
        return found if self.is_written else found + self._write(now)

    def forget(self) -> None:
        """Drop queued messages: they are about a view that is over."""
        self._waiting.clear()

    def _write(self, now: float) -> list[Action]:
        self._writing = self._version
        self.owed_since = now
        return [Write(self._version, self.record)]


class Voter:
    """The votes of a node or of the arbitrator."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    @property
    def promised(self) -> Ballot:
        """The highest ballot promised: no lower one gets a vote."""
        return self.journal.record.promised

    def adopt(self, view: View, now: float, **changes: Any) -> list[Action]:
        """Change to a view that was decided; for its successor there are no votes yet."""
        self.journal.forget()
        return self.journal.change(
            now, view=view, promised=NO_BALLOT, accepted_ballot=NO_BALLOT, accepted=None, **changes
        )

    def promise(self, sender: int, asked: Prepare, last: int, now: float, address: str) -> list[Action]:
        """Answer a candidate for the successor of the record's view. last: the end of the log here."""
        journal, ballot = self.journal, asked.ballot
        if ballot < self.promised:
            return [Send(sender, Outbid(asked.base.number, self.promised))]
        actions = journal.change(now, promised=ballot) if ballot > self.promised else []
        record = journal.record
        message = Promise(asked.base.number, ballot, last, record.accepted_ballot, record.accepted, address)
        return actions + journal.defer(Send(sender, message))

    def accept(self, sender: int, asked: Accept, now: float) -> list[Action]:
        """Vote for the proposed view, unless a higher ballot was promised."""
        journal, ballot = self.journal, asked.ballot
        if ballot < self.promised:
            return [Send(sender, Outbid(asked.base.number, self.promised))]
        actions = []
        if journal.record.accepted_ballot != ballot:
            actions = journal.change(now, promised=ballot, accepted_ballot=ballot, accepted=asked.view)
        return actions + journal.defer(Send(sender, Accepted(asked.base.number, ballot)))


class Candidacy:
    """The attempt of one node, in one ballot, to have a view's successor chosen: it asks which nodes are alive and
    where their logs end, proposes, and counts votes. deadline: until then the candidate waits for nodes that may
    answer.
    """

    def __init__(self, base: View, ballot: Ballot, deadline: float, is_leaving: bool) -> None:
        self.base = base
        self.ballot = ballot
        self.deadline = deadline
        self.is_leaving = is_leaving
        self.promises: dict[int, Promise] = {}
        self.votes: set[int] = set()
        self.proposed: View | None = None

    # --- asking -----------------------------------------------------------------------------------
    def ask(self, joiners: Iterable[int]) -> list[Action]:
        """Ask the nodes that have not answered, for the first time or again. Joining nodes have no vote, but must
        answer, too.
        """
        base, ballot = self.base, self.ballot
        if self.proposed is None:
            wanted = sorted((base.numbers | base.voters | set(joiners) | {ballot.node}) - self.promises.keys())
            return [Send(each, Prepare(base, ballot, self.is_leaving)) for each in wanted]
        wanted = sorted(base.voters - self.votes)
        return [Send(each, Accept(base, ballot, self.proposed)) for each in wanted]

    def is_promised(self) -> bool:
        """Whether a quorum of the voters has promised, and the candidate itself."""
        return self.ballot.node in self.promises and len(self.base.voters & self.promises.keys()) >= self.base.quorum

    def waits_for(self, nodes: Iterable[int], now: float) -> bool:
        """Whether one of these nodes may still answer in time."""
        return now < self.deadline and any(node not in self.promises for node in nodes)

    # --- proposing --------------------------------------------------------------------------------
    def propose(self, joining: Mapping[int, Member], leaving: set[int], own: Member) -> None:
        """Set the view to propose.

        A view that a voter has voted for may be chosen already, so only that view may be proposed. Otherwise the
        members are the nodes whose logs are known, and the primary is the node with the longest log, so that no
        member's log has to be cut. `joining`: nodes outside the view that have everything that was acknowledged.
        """
        promised = [each for node, each in self.promises.items() if node in self.base.voters]
        best = max(promised, key=lambda each: each.accepted_ballot)
        if best.accepted is not None:
            self.proposed = best.accepted
            return
        base = self.base
        gone = leaving | ({own.number} if self.is_leaving else set())
        there = [
            Member(number, self.promises[number].address) for number in sorted(base.numbers & self.promises.keys())
        ] or [own]
        # A node that wants to leave stays if no other node has answered: the last member cannot leave.
        members = [member for member in there if member.number not in gone] or there
        primary = max(members, key=lambda each: (self._last(each), each.number == base.primary, -each.number))
        members += [member for number, member in sorted(joining.items()) if number in self.promises]
        self.proposed = View(base.number + 1, tuple(sorted(members)), primary.number, base.arbitrator)

    def _last(self, member: Member) -> int:
        return self.promises[member.number].last

    # --- counting ---------------------------------------------------------------------------------
    def is_decided(self) -> bool:
        """Whether a quorum has voted for the proposal."""
        return self.proposed is not None and len(self.votes & self.base.voters) >= self.base.quorum


def order_of(view: View, number: int) -> int:
    """Return the position of a node among the candidates for a view's successor: its primary is 0, then by number."""
    others = sorted(view.numbers - {view.primary})
    return 0 if number == view.primary else 1 + others.index(number) if number in others else len(others) + 1
