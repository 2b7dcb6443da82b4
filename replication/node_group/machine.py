"""The state of a node's machine, and the questions that other threads ask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tidemark.replication.node_group.liveness import NEVER, Detector, Leases
from tidemark.replication.node_group.messages import Action, Held, HeldWanted, Left, Log, Lost, Ping
from tidemark.replication.node_group.primacy import Primacy
from tidemark.replication.node_group.view import Member, Record, Times, View
from tidemark.replication.node_group.votes import Candidacy, Journal, Voter, order_of

UNHEARD = -1  # the end of the log of a primary that has not answered yet
SERIAL_BITS = (
    32  # bits of a heartbeat's number; above them the incarnation, so that no answer to an earlier process counts
)


@dataclass
class Joiner:
    """A node outside the view that takes the groups of the view."""

    member: Member
    synced: int
    is_ready: bool
    asked_at: float


class Machine(ABC):
    """The state of one process of a node. Times are seconds of its own clock.

    peers: numbers of all configured nodes. A node that is frozen, or not in its view, sends its heartbeats to all.
    """

    def __init__(
        self, own: Member, record: Record, log: Log, times: Times, incarnation: int, peers: frozenset[int], now: float
    ) -> None:
        self.own = own
        self.number = own.number
        self.log = log
        self.times = times
        self.journal = Journal(record)
        self.voter = Voter(self.journal)
        self.leases = Leases(times, now)
        self.detector = Detector(times)
        self.primacy: Primacy | None = None
        self.candidacy: Candidacy | None = None
        self.joiners: dict[int, Joiner] = {}
        self.is_adopted = False  # this process acts in the view, because the view is on disk
        self.is_open = False
        # A new process takes no groups of the view in its record: the previous process may have promised not to.
        self.is_frozen = True
        self.is_joining = False
        self.is_over = False
        self._ending: Left | Lost | None = None
        self.refusal = ""  # why another node refuses this one; shown by `status`
        self._peers = peers - {own.number}
        self.serial = incarnation << SERIAL_BITS
        self.now = now
        self._began = now
        self._beat_at = now
        self._frozen_at = now
        self._decided_at = now
        self._log_owed_since: float | None = None
        self._synced_seen = log.synced
        self._round = record.promised.round
        self._is_first = False
        self._is_leaving = False
        self._leaving: set[int] = set()  # members that leave: they have reported that they read no more in this view
        self._lacking: set[int] = set()  # members that have lost their disk
        self._states: dict[int, Ping] = {}
        self._prior: View = record.view
        self._was_open = False
        self._left_out: frozenset[int] = frozenset()
        self._wants_cut = not record.is_member and not self.is_ready
        self._cuts = 0
        # Epochs that this node closed as primary, in any view, and that are not complete yet; each with its last group.
        self._closed: list[tuple[int, int]] = []
        self._primary_last = UNHEARD
        self._held = Held(0, 0, 0)  # at a member, as far as the primary of this view has reported
        self._wanted = HeldWanted(0, 0, 0)  # at a member: the furthest that its readers wait for
        self.detector.begin(self.view.numbers - {own.number}, now)

    # --- questions of other threads -------------------------------------------------------------
    @property
    def view(self) -> View:
        """The newest view this node knows."""
        return self.journal.record.view

    @property
    def is_member(self) -> bool:
        """Whether this node is in `view`, by its record."""
        return self.journal.record.is_member

    @property
    def is_primary(self) -> bool:
        """Whether this node orders the commits of `view`."""
        return self.is_member and self.view.primary == self.number

    @property
    def accepts_groups(self) -> bool:
        """Whether this node takes the groups of the view's primary and acknowledges them: never after a promise."""
        return self.is_joining or (self.is_adopted and not self.is_frozen)

    @property
    def is_ready(self) -> bool:
        """Whether this node, which joins, may be a member of the next view."""
        return self.journal.record.joins == self.view.number + 1

    def may_commit(self) -> bool:
        """Return whether transactions may run here: the view is open, and this node is its primary."""
        return self.is_open and not self.is_frozen and self.primacy is not None

    def reads_in(self) -> int:
        """Return the view in which a read begins; ask before its rows are read. 0 if no read may begin."""
        return self.view.number if self.is_open and not self.is_frozen else 0

    def may_show(self, view: int, now: float) -> bool:
        """Return whether rows of a read that began in this view may be shown. Ask after the read: otherwise a process
        that was stopped in between would show stale rows.
        """
        return view == self.reads_in() != 0 and self.leases.holds(self.view, now)

    def is_held(self, sequence: int, synced: int) -> bool:
        """Return whether this node knows that every member has groups up to `sequence` in memory, and those up to
        `synced` on disk. A read that saw later groups may not be shown yet.
        """
        if self.primacy is not None:
            return sequence <= self.primacy.shared and synced <= self.primacy.acknowledged
        return sequence <= self._held.sequence and synced <= self._held.synced

    def has_caught_up(self) -> bool:
        """Return whether this node, which joins, has every group that its primary last reported."""
        return self.is_joining and self.log.synced >= self._primary_last != UNHEARD

    def lags(self) -> dict[int, int]:
        """Return by node how many groups it has yet to apply, as far as is known here: at the primary for the other
        members and joining nodes, elsewhere for this node only.
        """
        if self.primacy is not None:
            applied = {**self.primacy.applied, **{number: each.synced for number, each in self.joiners.items()}}
            return {number: max(0, self.log.last - each) for number, each in sorted(applied.items())}
        if self._primary_last == UNHEARD:
            return {}
        return {self.number: max(0, self._primary_last - self.log.applied)}

    def is_stalled(self, now: float) -> bool:
        """Return whether the disk has owed an answer for too long. Such a node falls silent, and others suspect it."""
        owed = (self.journal.owed_since, self._log_owed_since, self.log.owed_since)
        return any(since is not None and now - since > self.times.stall_ms / 1_000 for since in owed)

    def has_view(self, now: float) -> bool:
        """Return whether this node may serve in its view: the view is open, its lease holds, and its own disk answers.
        While the disk of the only member does not answer, no other node can answer either, so that does not count.
        """
        is_alone = self.view.numbers == {self.number}
        return self.may_show(self.reads_in(), now) and (is_alone or not self.is_stalled(now))

    @property
    def due_at(self) -> float:
        """When the next `Tick` must come if no other event does."""
        if self.is_over:
            return NEVER
        due = self._beat_at
        if self.candidacy is not None:
            due = self._sooner(due, self.candidacy.deadline)
        elif self.is_member:
            due = self._sooner(due, self._candidate_at() if self.is_frozen else self.detector.next_at())
        if self.primacy is not None and not self.primacy.is_open:
            due = self._sooner(due, self.primacy.settles_at)
        return due

    def _sooner(self, due: float, at: float) -> float:
        """Return the earlier of two times. If `at` has passed, it was handled then: return `due`."""
        return at if self.now < at < due else due

    def _candidate_at(self) -> float:
        """When this node stands as a candidate if no view follows the freeze. The primary stands first, because only
        its transactions can survive.
        """
        wait_ms = order_of(self.view, self.number) * self.times.stagger_ms
        if self.voter.promised.node not in (0, self.number):
            wait_ms += 2 * self.times.gather_ms  # another candidate is at work
        return self._frozen_at + wait_ms / 1_000

    # --- shared by the parts of the machine ---------------------------------------------------------
    @abstractmethod
    def learn(self, view: View, now: float) -> list[Action]:
        """Take a view that was decided."""

    def _suspects(self, member: int, now: float) -> bool:
        """Whether a member is dead as far as this node knows, or has lost its disk."""
        return member in self._lacking or self.detector.suspects(member, now)

    def joining(self) -> dict[int, Member]:
        """Return the joining nodes that are ready and have on disk every group that all members have on disk; they
        are a reason for the next view.
        """
        return {} if self.primacy is None else self._ready_through(self.primacy.acknowledged)

    def joined(self) -> dict[int, Member]:
        """Return the joining nodes that may become members: they also have on disk every group that all members have in
        memory.
        """
        return {} if self.primacy is None else self._ready_through(self.primacy.shared)

    def _ready_through(self, sequence: int) -> dict[int, Member]:
        """Return the joining nodes that are ready, were heard lately, and have groups up to this one on disk."""
        if self.primacy is None or not self.primacy.is_open:
            return {}
        since = self.now - self.times.suspicion_ms / 1_000
        ready = {number: each for number, each in self.joiners.items() if each.is_ready and each.asked_at > since}
        return {number: each.member for number, each in ready.items() if each.synced >= sequence}

    def _freeze(self, now: float) -> None:
        """Take no more groups of this view, agree to no reads and serve none. There is no way back into the view."""
        self.is_frozen = True
        self._frozen_at = now
