"""A node of the simulation: a process with its machine and clock, over a disk that keeps what was synced."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tidemark.replication.node_group.arbitrator import Arbitrator
from tidemark.replication.node_group.messages import Action, Event, LogCut, LogGrew, Tick, Write, Written
from tidemark.replication.node_group.view import ARBITRATOR, Member, Record, Times, View, first_view
from tidemark.replication.node_group.views import Node

if TYPE_CHECKING:
    from tests.simulation.nodes.world import World

STORE = bytes(range(16))
GROUPS_AT_ONCE = 64
HAND_OVER_SECONDS = 0.3


class Entry(NamedTuple):
    """A group: its epoch, and a digest of the log up to it."""

    epoch: int
    chain: int


EMPTY = Entry(0, 0)


class SimulatedLog:
    """The log of one process. Each sync writes all groups there are, one sync at a time. A group is applied with its
    sync where commits wait for disks, otherwise at once.
    """

    def __init__(self, owner: SimulatedNode, entries: list[Entry]) -> None:
        self._owner = owner
        self.entries = entries
        self.synced = len(entries)
        self._life = 0
        self._is_syncing = False

    @property
    def last(self) -> int:
        """Sequence of the last group."""
        return len(self.entries)

    @property
    def applied(self) -> int:
        """Sequence up to which groups are applied."""
        return self.last if self._owner.world.plan.is_sharing else self.synced

    @property
    def due(self) -> int:
        """Sequence up to which a sync is wanted: all groups, at once."""
        return self.last

    @property
    def is_full(self) -> bool:
        """Whether its disk is full."""
        return self._owner.is_full

    @property
    def is_refusing(self) -> bool:
        """Whether commits have been refused for that for long enough."""
        since = self._owner.refused_since
        return self.is_full and since is not None and self._owner.world.timeline.now - since >= HAND_OVER_SECONDS

    @property
    def owed_since(self) -> float | None:
        """Nothing but groups and records is written."""
        return None

    @property
    def epoch(self) -> int:
        """The epoch of its last group."""
        return self.at(self.last).epoch

    def at(self, sequence: int) -> Entry:
        """The group of a sequence; before the first one, an empty one."""
        return self.entries[sequence - 1] if sequence else EMPTY

    def groups(self, first: int, last: int) -> tuple[Entry, ...]:
        """Return groups to send."""
        return tuple(self.entries[first - 1 : min(last, first - 1 + GROUPS_AT_ONCE)])

    def append(self, epoch: int, payload: int) -> None:
        """Append a commit of the primary."""
        self.entries.append(Entry(epoch, hash((self.at(self.last).chain, payload))))
        self._sync()

    def take(self, first: int, groups: tuple[Entry, ...]) -> None:
        """Append groups of another node."""
        assert first == self.last + 1
        self.entries += groups
        self._sync()
        if self._owner.world.plan.is_sharing:
            self._owner.later(LogGrew())

    def _sync(self) -> None:
        if self._is_syncing:
            return
        self._is_syncing = True
        life, end = self._life, self.last
        self._owner.synced(lambda: self._synced(life, end))

    def _synced(self, life: int, end: int) -> None:
        if life != self._life:
            return
        self._is_syncing = False
        self.synced = end
        if end < self.last:
            self._sync()
        self._owner.step(LogGrew())

    def roll_back_to(self, epoch: int, sequence: int) -> None:
        """Cut the log back to the end of an epoch."""
        self._life += 1
        self._is_syncing = False
        self._owner.synced(lambda: self._cut(epoch, sequence))

    def _cut(self, epoch: int, sequence: int) -> None:
        self._life += 1
        self._is_syncing = False
        kept = sum(entry.epoch <= epoch for entry in self.entries)
        if kept != sequence:
            self._owner.world.break_promise(f"group {sequence} ends X, epoch {epoch}, but group {kept} does here")
        del self.entries[kept:]
        self.synced = kept
        self._owner.step(LogCut())


class SimulatedNode:
    """A node across its lives; number 0 is the arbitrator."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.member = Member(number, f"node-{number}")
        self.incarnation = 0
        self.machine: Node | Arbitrator | None = None
        self.log = SimulatedLog(self, [])
        self.record: Record | None = None  # on disk
        self.durable: list[Entry] = []  # groups on disk, after a crash
        self.epoch = 1
        self.stalled_until = 0.0
        self.paused_until = 0.0
        self.full_until = 0.0
        self.refused_since: float | None = None
        self.rate = 1.0
        self._local = world.rng.uniform(0, 1_000)
        self._since = 0.0
        self._writing: Record | None = None
        self._tick_at = -1.0
        self._has_lost = False

    # --- its clock --------------------------------------------------------------------------------
    @property
    def now(self) -> float:
        """Its own monotonic clock."""
        return self._local + (self.world.timeline.now - self._since) * self.rate

    def set_rate(self, rate: float) -> None:
        """Run the clock at another rate from now on."""
        self._local, self._since, self.rate = self.now, self.world.timeline.now, rate

    # --- its disk's space ----------------------------------------------------------------------------
    @property
    def is_full(self) -> bool:
        """Whether its disk is full now."""
        return self.full_until > self.world.timeline.now

    def refuses(self) -> bool:
        """Return whether a commit is refused for lack of space."""
        if not self.is_full:
            self.refused_since = None
        elif self.refused_since is None:
            self.refused_since = self.world.timeline.now
        return self.is_full

    # --- its process ------------------------------------------------------------------------------
    @property
    def node(self) -> Node | None:
        """The machine, if this is a node and its process runs."""
        return self.machine if isinstance(self.machine, Node) else None

    def start(self) -> None:
        """Start a process with what is on disk."""
        if self.machine is not None:
            return
        self.incarnation += 1
        self._tick_at = -1.0
        world = self.world
        if self.number == ARBITRATOR:
            self.machine = Arbitrator(STORE, self.record)
        else:
            record = self.record or Record(STORE, self.number, first_view(world.arbitrator))
            self.log = SimulatedLog(self, list(self.durable))
            times = Times(stall_ms=world.plan.stall_ms)
            peers = frozenset(range(1, world.plan.nodes + 1))
            self.machine = Node(self.member, record, self.log, times, self.incarnation, peers, self.now)
        world.note("start", self.number)
        self.step(Tick())

    def begin(self, view: View) -> None:
        """Give the arbitrator its first view, as an operator does."""
        assert isinstance(self.machine, Arbitrator)
        self.do(self.machine.begin(view, self.now))

    def crash(self) -> None:
        """Kill the process; the disk keeps any part of what was not synced."""
        if self.machine is None:
            return
        r = self.world.rng
        if self._writing is not None and r.random() < 0.5:
            self.keep(self._writing)
        self._writing = None
        if self.number != ARBITRATOR:
            self.durable = self.log.entries[: r.randint(self.log.synced, self.log.last)]
            self.world.promises.forgotten(self)
        self.machine = None
        self.world.note("crash", self.number)

    def lose_disk(self) -> None:
        """Replace the disk of a dead process by an empty one."""
        self.record, self.durable = None, []
        self._has_lost = True

    def is_blank(self) -> bool:
        """Whether its disk was lost and it has not become a member since: nothing is expected of its log."""
        if self._has_lost and self.node is not None and self.node.is_member:
            self._has_lost = False
        return self._has_lost

    def keep(self, record: Record) -> None:
        """Put the record on disk."""
        self.record = record

    def entries(self) -> list[Entry]:
        """Groups that would certainly survive a crash now."""
        return self.durable if self.machine is None else self.log.entries[: self.log.synced]

    # --- its disk ---------------------------------------------------------------------------------
    def synced(self, call: Callable[[], None]) -> None:
        """Call after a sync, unless the process is dead by then."""
        world, life = self.world, self.incarnation
        wait = world.rng.uniform(*world.plan.sync) + max(0.0, self.stalled_until - world.timeline.now)

        def done() -> None:
            if self.incarnation != life or self.machine is None:
                return
            if self.stalled_until > world.timeline.now:
                world.timeline.after(self.stalled_until - world.timeline.now, done)
            else:
                call()

        world.timeline.after(wait, done)

    def later(self, event: Event) -> None:
        """Give the machine an event after the current step."""
        life = self.incarnation
        self.world.timeline.after(0.0, lambda: self.step(event) if self.incarnation == life else None)

    def _write(self, action: Write) -> None:
        self._writing = action.record
        self.world.promises.check_view(action.record.view)

        def done() -> None:
            self._writing = None
            self.keep(action.record)
            self.step(Written(action.version))

        self.synced(done)

    # --- its machine ------------------------------------------------------------------------------
    def step(self, event: Event) -> None:
        """Give the machine an event, once the process is not paused, and carry out its actions."""
        machine, world = self.machine, self.world
        if machine is None:
            return
        if self.paused_until > world.timeline.now:
            life = self.incarnation
            wait = self.paused_until - world.timeline.now
            world.timeline.after(wait, lambda: self.step(event) if self.incarnation == life else None)
            return
        self.do(machine.step(event, self.now))

    def do(self, actions: list[Action]) -> None:
        """Carry out actions."""
        for action in actions:
            if type(action) is Write:
                self._write(action)
            else:
                self.world.act(self, action)
        self._arm()

    def _arm(self) -> None:
        machine = self.machine
        if machine is None:
            return
        due = machine.due_at
        if due >= 1e17:
            return
        timeline = self.world.timeline
        at = timeline.now + max(0.0002, (due - self.now) / self.rate)
        if timeline.now < self._tick_at <= at:
            return
        self._tick_at = at
        life = self.incarnation

        def tick() -> None:
            if self.incarnation != life or self.machine is not machine or self._tick_at != at:
                return
            self._tick_at = -1.0
            if self.now >= machine.due_at:
                self.step(Tick())
            else:
                self._arm()

        timeline.after(at - timeline.now, tick)
