"""What nodes of a group tell each other about views, and what goes into and comes out of their state machines.

Messages may be lost, doubled, late or out of order: each says for which view it is, and what is waited for is asked for
again with every heartbeat.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tidemark.replication.node_group.view import Ballot, Member, Record, View

Group = Any  # a group of the log; views only count them


# --- messages -----------------------------------------------------------------------------------
class Ping(NamedTuple):
    """A heartbeat, and what its sender is."""

    view: int
    serial: int
    is_member: bool
    is_open: bool
    is_frozen: bool


class Pong(NamedTuple):
    """The answer: that the sender is there, how far its log is, and whether it agrees to reads of the one who asked."""

    view: int
    serial: int
    is_granted: bool
    last: int


class ViewIs(NamedTuple):
    """A view that was decided."""

    view: View


class Prepare(NamedTuple):
    """A candidate for the successor of `base`: stop taking groups of it, and tell how far you are."""

    base: View
    ballot: Ballot
    is_leaving: bool = False  # the candidate wants to be no member of it, and reads no more


class Promise(NamedTuple):
    """The answer: no group of `base` is taken any more; end of the log; what was voted for in the highest ballot; where
    the sender is met now, for its process may have begun anew elsewhere.
    """

    base: int
    ballot: Ballot
    last: int
    accepted_ballot: Ballot
    accepted: View | None
    address: str


class Outbid(NamedTuple):
    """The answer to a ballot lower than one promised already."""

    base: int
    ballot: Ballot


class Accept(NamedTuple):
    """Vote for this successor of `base`."""

    base: View
    ballot: Ballot
    view: View


class Accepted(NamedTuple):
    """The vote."""

    base: int
    ballot: Ballot


class Adopted(NamedTuple):
    """The view is on disk here; end of the log, and the epoch that is open here; for each node, how long ago this one
    has last agreed to its reads.
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
    """Every group up to this sequence is applied at the sender, in memory; those up to `synced` are durable too."""

    view: int
    sequence: int
    synced: int


class Opened(NamedTuple):
    """All logs are equal: the view takes transactions and reads. epoch, sequence: as of `Completed`; 0 if none is."""

    view: int
    epoch: int = 0
    sequence: int = 0


class Completed(NamedTuple):
    """Every member has all groups of epochs up to this one, whose last one is given."""

    view: int
    epoch: int
    sequence: int


class AskJoin(NamedTuple):
    """A node outside the view wants its groups; and, when it is ready, to be a member of the next."""

    view: int
    member: Member
    synced: int
    is_ready: bool


class Refused(NamedTuple):
    """Nothing will come of it before somebody has done something."""

    reason: str


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
    | AskJoin
    | Refused
)


# --- events: what a machine is told --------------------------------------------------------------
class Received(NamedTuple):
    """A message came from a node of a store."""

    sender: int
    store: bytes
    message: Message


class Tick(NamedTuple):
    """Time has come to `due_at`."""


class Written(NamedTuple):
    """The record of this version is durable."""

    version: int


class LogGrew(NamedTuple):
    """The log here has more groups, or more of them are durable and applied."""


class LogCut(NamedTuple):
    """The log was cut behind X, durably."""


class EpochClosed(NamedTuple):
    """The primary has closed an epoch, whose last group is this one.

    Only of an epoch that has groups: who has them all knows then that its number is used, whatever else it missed. An
    epoch without any could be X at one node, and be given to other groups by the next primary.
    """

    epoch: int
    sequence: int


class Gone(NamedTuple):
    """The connection to a node has broken, and the node's machine refuses another: its process is dead."""

    node: int


class Ready(NamedTuple):
    """This node, which joins, has copied everything of this view, and made its local checkpoint behind that (N5)."""

    view: int


class Leave(NamedTuple):
    """This node shall leave the group in order."""


Event = Received | Tick | Written | LogGrew | LogCut | EpochClosed | Gone | Ready | Leave


# --- actions: what a machine wants done ----------------------------------------------------------
class Send(NamedTuple):
    """Send a message to a node."""

    to: int
    message: Message


class Write(NamedTuple):
    """Write and sync the record, then say `Written(version)`."""

    version: int
    record: Record


class Acknowledge(NamedTuple):
    """Every member has groups up to this sequence on disk: commits may be told to who waits for that."""

    sequence: int


class Shared(NamedTuple):
    """Every member has groups up to this sequence in memory: commits may be told to who waits for that alone."""

    sequence: int


class Open(NamedTuple):
    """The view takes transactions (at its primary) and reads."""

    view: View


class Shut(NamedTuple):
    """No transaction begins and no read is served until the next `Open`."""


class Lost(NamedTuple):
    """The group has gone on without this node: end the store, and join anew."""

    view: View


class Left(NamedTuple):
    """The group has let this node go."""

    view: View


class Fail(NamedTuple):
    """What must not be: end the store, tell the operator."""

    reason: str


Action = Send | Write | Acknowledge | Shared | Open | Shut | Lost | Left | Fail
