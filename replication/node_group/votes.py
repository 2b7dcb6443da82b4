"""Votes for the successor of a view: one ballot decides it, and every vote is on disk before it is sent.

This is Paxos for one value in each view: a majority of the voters of view n chooses view n+1. A voter that has promised
a ballot votes in no lower one. With the promise it reports what it has voted for, and the candidate must then propose
that. So at most one successor is ever chosen, even if votes are split and candidates die in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemark.replication.node_group.messages import Accept, Accepted, Action, Outbid, Prepare, Promise, Send, Write
from tidemark.replication.node_group.view import NO_BALLOT, Ballot, Record, View


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
        self._behind: list[tuple[int, Action]] = []

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

    def behind(self, *actions: Action) -> list[Action]:
        """Queue actions until the present record is durable; if it is already, return them instead."""
        if self.is_written:
            return list(actions)
        self._behind += [(self._version, action) for action in actions]
        return []

    def written(self, version: int, now: float) -> list[Action]:
        """Note that a version is durable; return the actions that waited for it, and the next write if one is due."""
        self._written = max(self._written, version)
        self.owed_since = None
        found = [action for wanted, action in self._behind if wanted <= self._written]
        self._behind = [each for each in self._behind if each[0] > self._written]
        return found if self.is_written else found + self._write(now)

    def forget(self) -> None:
        """Drop queued messages: they are about a view that is over."""
        self._behind.clear()

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
        told = Promise(asked.base.number, ballot, last, record.accepted_ballot, record.accepted, address)
        return actions + journal.behind(Send(sender, told))

    def accept(self, sender: int, asked: Accept, now: float) -> list[Action]:
        """Vote for the proposed view, unless a higher ballot was promised."""
        journal, ballot = self.journal, asked.ballot
        if ballot < self.promised:
            return [Send(sender, Outbid(asked.base.number, self.promised))]
        actions = []
        if journal.record.accepted_ballot != ballot:
            actions = journal.change(now, promised=ballot, accepted_ballot=ballot, accepted=asked.view)
        return actions + journal.behind(Send(sender, Accepted(asked.base.number, ballot)))
