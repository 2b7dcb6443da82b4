"""Messages between nodes; events and actions of their state machines; and the log, as a machine uses it.

A message may be lost, duplicated, late or out of order. So each names its view, and an unanswered message is repeated
with every heartbeat.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from tidemark.replication.node_group.view import Ballot, Member, Record, View

Group = Any  # a group of the log; the machines only count groups


# --- messages ------------------------------------------------------------------------------------
class Ping(NamedTuple):
    """A heartbeat, and the state of its sender."""

    view: int
    serial: int
    is_member: bool
    is_open: bool
    is_frozen: bool
    is_full: bool = False  # the sender's disk is full


class Pong(NamedTuple):
    """The answer to `Ping`: the end of the sender's log, and whether it agrees to reads of the node that asked."""

    view: int
    serial: int
    is_granted: bool
    last: int


class ViewIs(NamedTuple):
    """A view that was decided."""

    view: View


class Prepare(NamedTuple):
    """A candidate for the successor of `base`: take no more groups of `base`, and report the end of the log."""

    base: View
    ballot: Ballot
    is_leaving: bool = False  # the candidate wants to be left out of the successor, and serves no more reads


class Promise(NamedTuple):
    """The answer to `Prepare`: the sender takes no more groups of `base`. It reports the end of its log, its vote in
    the highest ballot, and its present address, because its process may have been restarted elsewhere.
    """

    base: int
    ballot: Ballot
    last: int
    accepted_ballot: Ballot
    accepted: View | None
    address: str


class Outbid(NamedTuple):
    """The answer to a ballot that is lower than one already promised."""

    base: int
    ballot: Ballot


class Accept(NamedTuple):
    """A candidate asks for votes for this successor of `base`."""

    base: View
    ballot: Ballot
    view: View


class Accepted(NamedTuple):
    """The vote that answers `Accept`."""

    base: int
    ballot: Ballot


class Adopted(NamedTuple):
    """The view is on the sender's disk. The sender reports the end of its log, the epoch that is open there, and for
    each excluded node how many milliseconds ago it last agreed to reads of that node.
    """

    view: int
    last: int
    epoch: int
    grants_ms: tuple[tuple[int, int], ...]


class Groups(NamedTuple):
    """Groups of the primary's log, without a gap from `first` on."""

    view: int
    first: int
    groups: tuple[Group, ...]


class Applied(NamedTuple):
    """Groups up to this sequence are applied in memory at the sender; those up to `synced` are durable there, too."""

    view: int
    sequence: int
    synced: int


class Opened(NamedTuple):
    """All logs are equal: the view takes transactions and reads. epoch, sequence: as in `Completed`, 0 if no epoch is
    complete.
    """

    view: int
    epoch: int = 0
    sequence: int = 0


class Completed(NamedTuple):
    """Every member has all groups of the epochs up to this one on disk; `sequence` is the last group of this epoch."""

    view: int
    epoch: int
    sequence: int


class HeldWanted(NamedTuple):
    """From a member with waiting readers: requests `Held` when every member has groups up to `sequence` in memory, and
    those up to `synced` on disk.
    """

    view: int
    sequence: int
    synced: int


class Held(NamedTuple):
    """From the primary: every member has groups up to `sequence` in memory, and those up to `synced` on disk."""

    view: int
    sequence: int
    synced: int


class AskJoin(NamedTuple):
    """A node outside the view requests the groups of the view and, after it is ready, membership in the next one."""

    view: int
    member: Member
    synced: int
    is_ready: bool


class Refused(NamedTuple):
    """The request has no effect until an operator acts. view: the number of the newest view that the sender knows."""

    reason: str
    view: int = 0


Message = (
    Ping
    | Pong
    | ViewIs
    | Prepare
    | Promise
    | Outbid
    | Accept
    | Accepted
    | Adopted
    | Groups
    | Applied
    | Opened
    | Completed
    | HeldWanted
    | Held
    | AskJoin
    | Refused
)


# --- messages between nodes that are not for the machines ----------------------------------------
class EpochIs(NamedTuple):
    """From the primary: the epoch is open from the group of this sequence on. If this message is lost, the next one, or
    the header of the next group, implies it.
    """

    view: int
    epoch: int
    sequence: int


class EpochWanted(NamedTuple):
    """From a member: a thread there waits for the end of an epoch (a local checkpoint, a snapshot)."""

    view: int


class CopyWanted(NamedTuple):
    """Begins a conversation: the sender wants to catch up with the primary."""


class FileWanted(NamedTuple):
    """In a conversation: requests a file that a group of the log names."""

    name: str


class FilePart(NamedTuple):
    """The answer to `FileWanted`, in parts: bytes of the file from an offset on."""

    name: str
    offset: int
    size_bytes: int
    data: bytes
    is_last: bool


# --- events: the input of a machine --------------------------------------------------------------
class Received(NamedTuple):
    """A message has arrived from a node of a store."""

    sender: int
    store: bytes
    message: Message


class Tick(NamedTuple):
    """The time `due_at` has come."""


class Written(NamedTuple):
    """The record of this version is durable."""

    version: int


class LogGrew(NamedTuple):
    """The log here has more groups, or more of them are durable and applied."""


class LogCut(NamedTuple):
    """The log was cut after X, durably."""


class EpochClosed(NamedTuple):
    """The primary has closed an epoch, whose last group is this one.

    Only for an epoch that has groups: a node that has all of them knows that the number is used, whatever else it
    missed. If an empty epoch became X at one node, the next primary could give its number to other groups.
    """

    epoch: int
    sequence: int


class Gone(NamedTuple):
    """The connection to a node has broken, and the node's host refuses a new one: its process is dead."""

    node: int


class Ready(NamedTuple):
    """This node, which joins, has copied everything of this view, and then made its local checkpoint (N5)."""

    view: int


class ReadWaits(NamedTuple):
    """A read of this node may be shown when every member has groups up to `sequence` in memory, and those up to
    `synced` on disk.
    """

    sequence: int
    synced: int


class Leave(NamedTuple):
    """An operator wants this node to leave the group cleanly."""


Event = Received | Tick | Written | LogGrew | LogCut | EpochClosed | Gone | Ready | ReadWaits | Leave


# --- actions: the output of a machine ------------------------------------------------------------
class Send(NamedTuple):
    """Send a message to a node."""

    to: int
    message: Message


class Write(NamedTuple):
    """Write and sync the record, then return `Written(version)`."""

    version: int
    record: Record


class Acknowledge(NamedTuple):
    """Every member has groups up to this sequence on disk: commits that wait for the disks may be acknowledged, and
    reads may show them.
    """

    sequence: int


class Shared(NamedTuple):
    """Every member has groups up to this sequence in memory: commits that wait for memory alone may be acknowledged,
    and reads may show them.
    """

    sequence: int


class Open(NamedTuple):
    """The view is open: its primary takes transactions, and this node serves reads."""

    view: View


class Shut(NamedTuple):
    """No transaction begins and no read is served until the next `Open`."""


class Lost(NamedTuple):
    """The group continues without this node: end the store, and join again."""

    view: View


class Left(NamedTuple):
    """The group continues without this node, which asked to leave."""

    view: View


class Fail(NamedTuple):
    """An impossible state: end the store, and report it to the operator."""

    reason: str


class Conflict(NamedTuple):
    """Another group exists, and this node founded a second one, alone: end the store, and report it to the operator."""

    reason: str


Action = Send | Write | Acknowledge | Shared | Open | Shut | Lost | Left | Fail | Conflict


# --- the log of a node, as its machine uses it ---------------------------------------------------
class Log(Protocol):
    """REDO groups by sequence: 1, 2, 3 … without a gap. Calls only begin a change; an event reports its end."""

    @property
    def last(self) -> int:
        """The sequence of the last group, durable or not."""
        ...

    @property
    def applied(self) -> int:
        """The sequence up to which groups are applied, in memory."""
        ...

    @property
    def synced(self) -> int:
        """The sequence up to which groups are applied and durable."""
        ...

    @property
    def due(self) -> int:
        """The sequence up to which the disk was asked to sync groups. If they stay unsynced for long, the disk
        counts as stalled.
        """
        ...

    @property
    def owed_since(self) -> float | None:
        """Since when the disk owes an answer to another write of the store, by the machine's clock; None if it owes
        none. So a disk that hangs is noticed without commits.
        """
        ...

    @property
    def is_full(self) -> bool:
        """Whether the disk has no space for what this node must write. Such a node should not lead."""
        ...

    @property
    def is_refusing(self) -> bool:
        """Whether transactions have been refused for lack of space on the disk for as long as a primary may do that."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch that is open here. A new primary leads in an epoch after the newest that is open at any member."""
        ...

    def groups(self, first: int, last: int) -> tuple[Group, ...]:
        """Return groups from `first` on, as many as may be sent at once; none if the log begins after `first`."""
        ...

    def take(self, first: int, groups: tuple[Group, ...]) -> None:
        """Append, apply and sync groups of the primary, from `last` + 1 on; `LogGrew` reports progress. Groups that
        cannot be applied yet are left out; the primary sends them again.
        """
        ...

    def roll_back_to(self, epoch: int, sequence: int) -> None:
        """Roll back to the end of `epoch`, which is complete at all members and whose last REDO group is `sequence`;
        `LogCut` reports that this is done.
        """
        ...
