"""One attempt at the successor of a view: ask which nodes are alive and where their logs end, propose, count votes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemark.replication.node_group.messages import Accept, Action, Prepare, Promise, Send
from tidemark.replication.node_group.view import Ballot, Member, View


class Candidacy:
    """The attempt of one node, in one ballot. deadline: until then the candidate waits for nodes that may answer."""

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
    def propose(self, joining: Mapping[int, Member], given_up: set[int], own: Member) -> View:
        """Return the view to propose.

        A view that a voter has voted for may be chosen already, so only that view may be proposed. Otherwise the
        members are the nodes whose logs are known, and the primary is the node with the longest log, so that no
        member's log has to be cut. `joining`: nodes outside the view that have everything that was acknowledged.
        """
        told = [each for node, each in self.promises.items() if node in self.base.voters]
        best = max(told, key=lambda each: each.accepted_ballot)
        if best.accepted is not None:
            self.proposed = best.accepted
            return best.accepted
        base = self.base
        gone = given_up | ({own.number} if self.is_leaving else set())
        there = [
            Member(number, self.promises[number].address) for number in sorted(base.numbers & self.promises.keys())
        ] or [own]
        # A node that wants to leave stays if no other node has answered: the last member cannot leave.
        members = [member for member in there if member.number not in gone] or there
        primary = max(members, key=lambda each: (self._last(each), each.number == base.primary, -each.number))
        members += [member for number, member in sorted(joining.items()) if number in self.promises]
        self.proposed = View(base.number + 1, tuple(sorted(members)), primary.number, base.arbitrator)
        return self.proposed

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
