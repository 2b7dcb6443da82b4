"""How a node stands as a candidate for the successor of its view, and how it answers other candidates."""

from __future__ import annotations

from tidemark.replication.node_group import messages as m
from tidemark.replication.node_group.machine import Machine
from tidemark.replication.node_group.view import ARBITRATOR, NO_BALLOT, Ballot, View
from tidemark.replication.node_group.votes import Candidacy


class Election(Machine):
    """Steps 1 and 2 of a takeover: nodes take no more groups of the old view, and one successor is chosen."""

    # --- as a candidate -----------------------------------------------------------------------------
    def _start_election(self, now: float) -> list[m.Action]:
        self._round = max(self._round, self.voter.promised.round) + 1
        deadline = now + self.times.gather_ms / 1_000
        if not self.is_adopted:
            # The whole site may be starting: each member that this node waits for need not join later.
            deadline = max(deadline, self._began + self.times.restart_ms / 1_000)
        actions = self._shut(now)
        self.candidacy = Candidacy(self.view, Ballot(self._round, self.number), deadline, self._is_leaving)
        return actions + self.candidacy.ask(self.joining())

    def _propose(self, now: float) -> list[m.Action]:
        """Propose a view, once the nodes that may answer have answered."""
        candidacy = self.candidacy
        if candidacy is None or candidacy.proposed is not None or not candidacy.is_promised():
            return []
        awaited = set(candidacy.base.numbers) | {number for number, each in self.joiners.items() if each.is_ready}
        if self.is_adopted:
            awaited -= self.detector.suspected(now) | self._lacking
        # Nothing more is acknowledged, so a joining node that lacks a few groups soon has everything: wait for it.
        is_coming = now < candidacy.deadline and bool(self.joining().keys() - self.joined().keys())
        if is_coming or candidacy.waits_for(awaited, now):
            return []
        candidacy.propose(self.joined(), self._leaving, self.own)
        return candidacy.ask(())

    def _promise(self, sender: int, message: m.Promise, now: float) -> list[m.Action]:
        own = self.candidacy
        if own is None or (message.base, message.ballot) != (own.base.number, own.ballot) or own.proposed is not None:
            return []
        own.promises[sender] = message
        return self._propose(now)

    def _outbid(self, _sender: int, message: m.Outbid, now: float) -> list[m.Action]:
        own = self.candidacy
        if own is None or message.base != own.base.number or message.ballot <= own.ballot:
            return []
        self._round = max(self._round, message.ballot.round)
        self.candidacy = None
        self._frozen_at = now  # this node stands again later
        return []

    def _accepted(self, sender: int, message: m.Accepted, now: float) -> list[m.Action]:
        own = self.candidacy
        if own is None or (message.base, message.ballot) != (own.base.number, own.ballot) or own.proposed is None:
            return []
        own.votes.add(sender)
        return self.learn(own.proposed, now) if own.is_decided() else []

    # --- as a voter ---------------------------------------------------------------------------------
    def _prepare(self, sender: int, asked: m.Prepare, now: float) -> list[m.Action]:
        found = self._place(sender, asked.base, now)
        if found is not None:
            return found
        if not self.is_member and sender != self.number:
            return self._promise_outside(sender, asked)
        if sender != self.number:
            if self._is_sticky(sender, now):
                return []
            if asked.is_leaving:
                self._leaving.add(sender)
            if self.is_primary:
                return self._answer_candidate(sender, asked, now)
            if asked.ballot >= self.voter.promised:
                self.candidacy = None
        actions = self._shut(now) if asked.ballot >= self.voter.promised else []
        return actions + self.voter.promise(sender, asked, self.log.last, now, self.own.address)

    def _promise_outside(self, sender: int, asked: m.Prepare) -> list[m.Action]:
        """Answer as a joining node: it has no vote, but must answer and report its log to become a member."""
        if not self.is_ready or sender != self.view.primary:
            return []
        message = m.Promise(asked.base.number, asked.ballot, self.log.synced, NO_BALLOT, None, self.own.address)
        return self.journal.defer(m.Send(sender, message))

    def _answer_candidate(self, sender: int, asked: m.Prepare, now: float) -> list[m.Action]:
        """Answer another candidate, as the primary: stand with a higher ballot. A member with a bad link must not move
        the primary, because all its transactions would be lost.
        """
        own = self.candidacy
        if own is not None and own.ballot > asked.ballot:
            return [m.Send(sender, m.Outbid(asked.base.number, own.ballot))]
        self._round = max(self._round, asked.ballot.round)
        return self._start_election(now)

    def _is_sticky(self, sender: int, now: float) -> bool:
        """Whether to ignore a candidate that is not the primary, because this node still hears its primary."""
        primary = self.view.primary
        if self.is_frozen or not self.is_adopted or primary in (self.number, sender):
            return False
        return not self._suspects(primary, now)

    def _accept(self, sender: int, asked: m.Accept, now: float) -> list[m.Action]:
        found = self._place(sender, asked.base, now)
        if found is not None:
            return found
        if not self.is_member and sender != self.number:
            return []
        actions: list[m.Action] = []
        if asked.ballot >= self.voter.promised:
            actions = self._shut(now)
            if sender != self.number:
                self.candidacy = None
        return actions + self.voter.accept(sender, asked, now)

    def _place(self, sender: int, base: View, now: float) -> list[m.Action] | None:
        """Return the answer to a candidate whose base differs from this node's view, or that is not a member of it;
        None if the candidate must be answered in this view.
        """
        view = self.view
        if base.number > view.number:
            return self.learn(base, now)
        if base.number < view.number:
            return self.journal.defer(m.Send(sender, m.ViewIs(view)))
        if base != view:
            return [m.Fail(f"two views have number {base.number}; compare the members' files")]
        return None if sender in base.numbers or sender == self.number else []

    def _shut(self, now: float) -> list[m.Action]:
        """Freeze, and close the store to users."""
        actions: list[m.Action] = [m.Shut()] if self.is_open and not self.is_frozen else []
        self._freeze(now)
        return actions

    def _voters_to_inform(self, prior: View, view: View) -> list[int]:
        found = prior.numbers | view.numbers | self._peers
        if view.arbitrator:
            found |= {ARBITRATOR}
        return sorted(found - {self.number})
