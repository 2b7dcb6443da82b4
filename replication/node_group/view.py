"""The membership of a node group: views, the voters for the next view, and the record that a node keeps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tidemark.engine.base.errors import SchemaInvalid

ARBITRATOR = 0  # the node number of the arbitrator, a small process that only votes
NODE_NUMBER_MAX = 255
NUMBER_MAX = (1 << 63) - 1  # of views, ballots, epochs and groups
MEMBERS_MAX = 4
ADDRESS_BYTES_MAX = 64

# Clocks are never compared. The only assumption is that a clock is at most a quarter too fast or too slow.
CLOCK_ERROR_PERCENT = 25


class Member(NamedTuple):
    """A node of a group: its number in the site, and its address."""

    number: int
    address: str


class Ballot(NamedTuple):
    """An attempt to choose a view's successor; the higher ballot wins."""

    round: int
    node: int


NO_BALLOT = Ballot(0, 0)


@dataclass(frozen=True)
class View:
    """The members of the group, and the primary, which orders its commits. View 0, the start, has no members."""

    number: int
    members: tuple[Member, ...]
    primary: int
    arbitrator: str = ""  # address; "" if the group has no arbitrator

    @cached_property
    def numbers(self) -> frozenset[int]:
        return frozenset(member.number for member in self.members)

    @cached_property
    def voters(self) -> frozenset[int]:
        """The voters for this view's successor: its members, and the arbitrator if their number is even."""
        has_halves = len(self.members) % 2 == 0
        return self.numbers | {ARBITRATOR} if has_halves and self.arbitrator else self.numbers

    @cached_property
    def quorum(self) -> int:
        """The number of votes that decide the successor; any two quorums share a voter."""
        return len(self.voters) // 2 + 1

    @cached_property
    def readers(self) -> int:
        """The number of members, the reader included, that must have agreed to a read: every quorum contains one of
        them.
        """
        return len(self.voters) - self.quorum + 1


@dataclass(frozen=True)
class Record:
    """The durable memory of a node, or of the arbitrator; `view_file.py` stores it.

    view: the newest view it knows. is_member: the node is in that view, and its log has everything that a member must
    have; a node whose number is in the view may have lost its disk since. promised, accepted: its votes for the
    successor of that view. epoch, sequence: X, the newest epoch known to be complete at all members, and the last group
    of X. joins: the number of the view that a node outside `view` may become a member of, because its log has
    everything of `view`; otherwise 0.
    """

    store: bytes
    node: int
    view: View
    is_member: bool = False
    promised: Ballot = NO_BALLOT
    accepted_ballot: Ballot = NO_BALLOT
    accepted: View | None = None
    epoch: int = 0
    sequence: int = 0
    joins: int = 0


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times of a node group, in milliseconds of a node's own monotonic clock; equal at all nodes of a group.

    heartbeat_ms: between two heartbeats. suspicion_ms: silence after which a node is suspected. lease_ms: how long
    reads may be shown after a heartbeat to which others agreed was sent. gather_ms: how long a candidate waits for
    nodes that are not suspected. stagger_ms: between one candidate and the next, in their order. restart_ms: how long a
    node waits after its own start for all others of its view. stall_ms: how long the disk may owe an answer before the
    node falls silent.
    """

    heartbeat_ms: int = 100
    suspicion_ms: int = 400
    lease_ms: int = 300
    gather_ms: int = 150
    stagger_ms: int = 60
    restart_ms: int = 1_000
    stall_ms: int = 5_000

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ms < self.lease_ms or self.heartbeat_ms >= self.suspicion_ms:
            raise SchemaInvalid(
                f"heartbeats every {self.heartbeat_ms} ms keep neither a lease of {self.lease_ms} ms nor a node of"
                f" {self.suspicion_ms} ms alive; make them more frequent"
            )
        if min(self.gather_ms, self.stagger_ms, self.restart_ms) <= 0 or self.stall_ms <= self.suspicion_ms:
            raise SchemaInvalid("times of a node group must be positive, and stall_ms greater than suspicion_ms")

    @property
    def settle_ms(self) -> int:
        """How long another node must wait, by its own clock, after the last agreement to a lease, until the lease has
        ended by the reader's clock.

        A slow clock at the reader stretches the lease to 100 / 75; a fast clock at the waiting node shortens
        the wait to 100 / 125.
        """
        fast, slow = 100 + CLOCK_ERROR_PERCENT, 100 - CLOCK_ERROR_PERCENT
        return -(-self.lease_ms * fast // slow)


def first_view(arbitrator: str = "") -> View:
    """Return view 0, without members; the arbitrator, if there is one, votes for its successor."""
    return View(0, (), 0, arbitrator)


def check_member(member: Member) -> None:
    """Raise SchemaInvalid for an invalid member."""
    if not 0 < member.number <= NODE_NUMBER_MAX:
        raise SchemaInvalid(f"the number of a member must be 1 to {NODE_NUMBER_MAX}, got {member.number}")
    check_address(member.address)


def check_view(view: View) -> None:
    """Raise SchemaInvalid for a view that no group can have agreed on."""
    for member in view.members:
        check_member(member)
    if view.arbitrator:
        check_address(view.arbitrator)
    is_led = view.primary in view.numbers if view.members else not view.primary
    if len(view.members) > MEMBERS_MAX or len(view.numbers) != len(view.members) or not is_led:
        raise SchemaInvalid("a view must have at most four members, each once, one of which leads it")


def check_address(address: str) -> None:
    """Raise SchemaInvalid for an address that a view cannot hold."""
    if not address.isascii() or not address.isprintable() or not 0 < len(address) <= ADDRESS_BYTES_MAX:
        raise SchemaInvalid(f"an address must have 1 to {ADDRESS_BYTES_MAX} ASCII characters, got {address[:80]!r}")


def is_second(own: int, other: int, view: int) -> bool:
    """Return whether the group that node `own` founded, and is alone in, must end, because node `other` is in `view` of
    another group. Of two nodes that are each alone, the one with the lower number continues.
    """
    return other != ARBITRATOR and (view > 1 or (view == 1 and other < own))


def second_group(other: int, view: int) -> str:
    """Return the reason for which such a group ends."""
    return (
        f"node {other} is in view {view} of another group, and this node founded a second one, alone: it takes no more"
        f" commits; stop node {other} if its group is to be abandoned; otherwise set the directory of this node aside"
        " and start it with an empty one, which joins"
    )
