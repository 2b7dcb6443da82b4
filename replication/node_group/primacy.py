"""The primary's knowledge of its view: whether the view may open, and how far commits may be acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tidemark.replication.node_group.messages import Action, Adopted, Groups, Held, HeldWanted, Log, Send
from tidemark.replication.node_group.view import View


@dataclass
class Primacy:
    """The state of one view at its primary.

    settles_at: the time of the primary's clock at which all leases of excluded nodes have ended; final after all
    members have reported. acknowledged, shared: last group that every member has on disk, in memory.
    """

    view: View
    own: int
    settles_at: float
    is_open: bool = False
    acknowledged: int = 0
    shared: int = 0
    epoch: int = 0  # the highest epoch that is open at a member
    reported: set[int] = field(default_factory=set)
    applied: dict[int, int] = field(default_factory=dict)
    synced: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)  # last group sent, by member or joining node
    waiting: dict[int, HeldWanted] = field(default_factory=dict)  # by member: for which groups its readers wait
    epochs: list[tuple[int, int]] = field(default_factory=list)  # closed and not yet complete: epoch, its last group
    _before: dict[int, int] = field(default_factory=dict)  # last group each had applied at the previous heartbeat

    @cached_property
    def others(self) -> list[int]:
        return sorted(self.view.numbers - {self.own})

    def take_adopted(self, member: int, message: Adopted, log: Log) -> bool:
        """Note that a member has the view on disk; return False if its log is longer than the primary's."""
        self.reported.add(member)
        self.applied.setdefault(member, 0)
        self.synced.setdefault(member, 0)
        self.sent.setdefault(member, message.last)
        self.epoch = max(self.epoch, message.epoch)
        return message.last <= log.last

    def take_applied(self, member: int, sequence: int, synced: int) -> None:
        """Note up to which group a member has everything in memory, and on disk."""
        self.applied[member] = max(sequence, self.applied.get(member, 0))
        self.synced[member] = max(synced, self.synced.get(member, 0))

    def send_new(self, log: Log, joiners: Iterable[int]) -> list[Action]:
        """Send new groups to every member that has adopted the view, and to every joining node."""
        actions: list[Action] = []
        for node in (*self.others, *joiners):
            sent = self.sent.get(node)
            if sent is not None and sent < log.last:
                actions += self._send(node, sent + 1, log)
        return actions

    def send_again(self, log: Log, joining: Mapping[int, int]) -> list[Action]:
        """Send groups again, to nodes that have made no progress since the last call: the groups may be lost."""
        actions: list[Action] = []
        for node, applied in {**self.applied, **joining}.items():
            if applied < log.last and self._before.get(node) == applied:
                actions += self._send(node, applied + 1, log)
            self._before[node] = applied
        return actions

    def _send(self, node: int, first: int, log: Log) -> list[Action]:
        groups = log.groups(first, log.last)
        if not groups:
            return []
        self.sent[node] = first + len(groups) - 1
        return [Send(node, Groups(self.view.number, first, groups))]

    def through(self, log: Log) -> int:
        """Return the last group that every member has applied and synced (N1)."""
        return min([log.synced, *(self.synced.get(member, 0) for member in self.others)])

    def in_memory(self, log: Log) -> int:
        """Return the last group that every member has applied."""
        return min([log.applied, *(self.applied.get(member, 0) for member in self.others)])

    def is_equal(self, log: Log) -> bool:
        """Return whether every member has adopted the view, and has applied the whole log of the primary."""
        return self.reported.issuperset(self.others) and self.in_memory(log) >= log.last

    def acknowledge(self, log: Log) -> int | None:
        """Return how far commits may be acknowledged now; None if no further than before."""
        through = self.through(log)
        if through <= self.acknowledged:
            return None
        self.acknowledged = through
        return through

    def share(self, log: Log) -> int | None:
        """Return the last group that every member now has in memory; None if no further than before."""
        shared = self.in_memory(log)
        if shared <= self.shared:
            return None
        self.shared = shared
        return shared

    def answer_readers(self) -> list[Action]:
        """Answer the members whose readers wait for groups that every member has by now."""
        done = [
            member
            for member, wanted in self.waiting.items()
            if wanted.sequence <= self.shared and wanted.synced <= self.acknowledged
        ]
        for member in done:
            del self.waiting[member]
        return [Send(member, Held(self.view.number, self.shared, self.acknowledged)) for member in done]

    def complete_epoch(self) -> tuple[int, int] | None:
        """Return the newest epoch that has become complete, because its groups are acknowledged, and its last group.
        None if no epoch has.
        """
        done = [(epoch, last) for epoch, last in self.epochs if last <= self.acknowledged]
        del self.epochs[: len(done)]
        return done[-1] if done else None
