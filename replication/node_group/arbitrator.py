"""The arbitrator: a voter without rows, for views that can split into two halves.

It votes as members do (`votes.py`). Without a record it must not vote: a lost disk looks like an empty one, and an
arbitrator that forgot its vote could vote twice, for two living sides. So it refuses until an operator says how to
begin: with `first_view` for a new group, or with the view of the living side, if the operator has made sure that no
other side is alive.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemark.replication.node_group import messages as m
from tidemark.replication.node_group.view import ARBITRATOR, Record, View
from tidemark.replication.node_group.votes import Journal, Voter

NO_RECORD = (
    "this arbitrator has no record; start it with --living and the number of a living node if its disk was lost, or"
    " with --new-group for a new group"
)


class Arbitrator:
    """The state machine of the arbitrator; `record` is the content of its files, None if they are empty."""

    due_at = float("inf")  # it never starts an exchange

    def __init__(self, store: bytes, record: Record | None) -> None:
        self._store = store
        self._voter = None if record is None else Voter(Journal(record))

    @property
    def record(self) -> Record | None:
        """The record in memory; a write may be under way."""
        return None if self._voter is None else self._voter.journal.record

    def begin(self, view: View, now: float) -> list[m.Action]:
        """Begin with this view, on an operator's order; return the write that makes the record durable.

        An arbitrator that has a record keeps it, and returns nothing.
        """
        if self._voter is not None:
            return []
        journal = Journal(Record(self._store, ARBITRATOR, view))
        self._voter = Voter(journal)
        return journal.change(now)

    def step(self, event: m.Event, now: float) -> list[m.Action]:
        """Take an event; return the actions."""
        if isinstance(event, m.Written):
            return [] if self._voter is None else self._voter.journal.written(event.version, now)
        if not isinstance(event, m.Received):
            return []
        if event.store != self._store:
            return [m.Send(event.sender, m.Refused("this arbitrator belongs to another store"))]
        if self._voter is None:
            return [m.Send(event.sender, m.Refused(NO_RECORD))]
        return self._receive(self._voter, event, now)

    def _receive(self, voter: Voter, event: m.Received, now: float) -> list[m.Action]:
        sender, message, view = event.sender, event.message, voter.journal.record.view
        if isinstance(message, m.Ping):
            return [m.Send(sender, m.Pong(view.number, message.serial, False, 0))]
        if isinstance(message, m.ViewIs):
            return voter.adopt(message.view, now) if message.view.number > view.number else []
        if isinstance(message, m.Prepare):
            return self._vote(voter, sender, message.base, now, lambda: voter.promise(sender, message, 0, now, ""))
        if isinstance(message, m.Accept):
            if message.view.number != message.base.number + 1:
                return [m.Send(sender, m.Refused("views follow each other by one"))]
            return self._vote(voter, sender, message.base, now, lambda: voter.accept(sender, message, now))
        return []

    def _vote(
        self, voter: Voter, sender: int, base: View, now: float, vote: Callable[[], list[m.Action]]
    ) -> list[m.Action]:
        """Vote for a successor of `base`, if it is the newest view, for a candidate that is one of its members."""
        view = voter.journal.record.view
        if base.number < view.number:
            return voter.journal.defer(m.Send(sender, m.ViewIs(view)))
        if base.number == view.number and base != view:
            return [m.Send(sender, m.Refused(f"two views have number {base.number}; compare the members' files"))]
        if base.members and sender not in base.numbers:
            return [m.Send(sender, m.Refused(f"only members of view {base.number} ask for its successor"))]
        if ARBITRATOR not in base.voters:
            return []
        # The arbitrator hears nothing of views that have no vote for it; `base` tells it of them.
        actions = voter.adopt(base, now) if base.number > view.number else []
        return actions + vote()
