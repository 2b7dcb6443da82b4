"""Links between two sites: sealed frames of the real protocol over wires that lose, double, reorder, alter and cut.

A link belongs to one channel. It connects when both sites are up, speaks the handshake and a session, and connects
again after either ended. An error that a new connection cannot cure is a broken promise: no test asks for a position
that the source lacks, and both sides have the same secret.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.sites.joints import ChunkedBinlog
from tidemark.engine.base.errors import PeerError, Retryable
from tidemark.replication.channel.receiver import is_transient
from tidemark.replication.wire.frames import Frame, FrameReader, FrameWriter
from tidemark.replication.wire.handshake import CalledHandshake, CallerHandshake, Handshake
from tidemark.replication.wire.sessions import SILENT_HEARTBEATS, ReplicaSession, SourceSession, farewell

if TYPE_CHECKING:
    from tests.simulation.sites.site import Channel, SimulatedSite
    from tests.simulation.sites.world import World

SECRET = b"a secret of simulated links"
EXCHANGED_SECONDS = 0.05
TICK_SECONDS = 0.03
RECONNECT_SECONDS = 0.08
CHUNKS_AT_ONCE = 8
HANDSHAKE_SECONDS = 0.5


class Wire:
    """One direction of one connection. Data that arrives after its end is dropped. Frames are altered only once they
    are sealed: handshake frames identify the peer, and an altered peer may be refused for good.
    """

    def __init__(self, link: Link, deliver: Callable[[bytes], None]) -> None:
        self._link = link
        self._deliver = deliver
        self._last = 0.0
        self.is_sealed = False

    def send(self, data: bytes) -> None:
        """Send a frame, which a fault may lose, double, reorder or alter."""
        link = self._link
        world, faults = link.world, link.world.faults
        if not data or link.is_cut:
            return
        r, time = world.rng, world.timeline
        draw = r.random()
        if draw < faults.lost:
            world.tally.add("frames lost")
            return
        arrival = max(self._last, time.now + r.uniform(*world.plan.delay))
        draw -= faults.lost
        if 0 <= draw < faults.exchanged:
            # Later frames may pass it.
            arrival += EXCHANGED_SECONDS
            world.tally.add("frames exchanged")
        else:
            self._last = arrival
        draw -= faults.exchanged
        if 0 <= draw < faults.doubled:
            world.tally.add("frames doubled")
            time.after(arrival - time.now, lambda: self._arrive(data))
        draw -= faults.doubled
        if 0 <= draw < faults.altered and self.is_sealed:
            world.tally.add("frames altered")
            changed = bytearray(data)
            changed[r.randrange(len(data))] ^= 1 << r.randrange(8)
            data = bytes(changed)
        time.after(arrival - time.now, lambda: self._arrive(data))

    def _arrive(self, data: bytes) -> None:
        if not self._link.is_cut:
            self._deliver(data)


class End(ABC):
    """One side of a connection, in the process of its site."""

    def __init__(self, link: Link, site: SimulatedSite) -> None:
        self.link = link
        self.site = site
        self.other: End
        self.wire: Wire
        self.is_open = True
        self.reader = FrameReader()
        self.writer = FrameWriter()
        self.handshake: Handshake
        self.session: SourceSession | ReplicaSession | None = None

    # --- input -------------------------------------------------------------------------------------
    def arrive(self, data: bytes) -> None:
        """Take bytes from the other side."""
        if self.is_open and self.site.is_up:
            self.site.act(lambda: self._guard(lambda: self._feed(data)))

    def _feed(self, data: bytes) -> None:
        now = self.site.clock.monotonic()
        for frame in self.reader.feed(data):
            if self.session is None:
                self.greet(frame)
                continue
            step = self.session.receive(frame, now)
            for each in step.frames:
                self.wire.send(each)
            if not step.continues:
                self.shut()
                return
        self.pump()

    @abstractmethod
    def greet(self, frame: Frame) -> None:
        """Take a frame of the handshake."""

    @abstractmethod
    def pump(self) -> None:
        """Send what is ready to be sent."""

    def tick(self) -> None:
        """Let time pass."""
        if self.is_open and self.site.is_up:
            self.site.act(lambda: self._guard(self.pump))

    # --- its end -----------------------------------------------------------------------------------
    def _guard(self, work: Callable[[], None]) -> None:
        """Run work; on an error send a farewell and shut the link."""
        try:
            work()
        except (PeerError, Retryable) as error:
            world = self.link.world
            world.note(f"{self.link.name}: {type(error).__name__} at {self.site.name}")
            world.tally.add(f"links ended by {type(error).__name__}")
            if not is_transient(error):
                world.break_promise(f"{self.link.name} ended at {self.site.name}: {type(error).__name__}: {error}")
            if isinstance(error, PeerError):
                last = self.handshake.refusal(error) if self.session is None else farewell(self.writer, error)
                self.wire.send(last)
            self.shut()

    def shut(self) -> None:
        """Close this end; the other end notices it, unless the link is cut."""
        if not self.is_open:
            return
        self.close()
        link = self.link
        link.world.timeline.after(link.world.plan.delay[1], lambda: None if link.is_cut else self.other.close())

    def close(self) -> None:
        """Close this end only."""
        self.is_open = False


class SourceEnd(End):
    """The side that accepts the call."""

    def __init__(self, link: Link, site: SimulatedSite) -> None:
        super().__init__(link, site)
        self.binlog: ChunkedBinlog | None = None
        self.handshake: CalledHandshake = CalledHandshake(
            site.identity, SECRET, site.clock.random_bytes(32), self.reader, self.writer
        )

    def greet(self, frame: Frame) -> None:
        self.wire.send(self.handshake.receive(frame))
        if self.handshake.is_done:
            self.binlog = ChunkedBinlog(self.site.db.endpoint.source_binlog(), self.link.world.plan.chunk_bytes)
            on_acknowledge = partial(self.site.db.endpoint.reach.note_report, self.link.replica.server_id)
            self.session = SourceSession(self.binlog, self.writer, self.site.clock.monotonic(), on_acknowledge)

    def pump(self) -> None:
        if not isinstance(self.session, SourceSession):
            return
        clock = self.site.clock
        for _ in range(CHUNKS_AT_ONCE):
            step = self.session.pump(clock.monotonic(), clock.wall_us())
            self.wire.is_sealed = True
            for each in step.frames:
                self.wire.send(each)
            if not step.frames:
                break

    def close(self) -> None:
        super().close()
        if self.binlog is not None and self.site.is_up:
            self.site.act(self.binlog.close)
        self.binlog = None


class ReplicaEnd(End):
    """The side that calls."""

    def __init__(self, link: Link, site: SimulatedSite, channel: Channel) -> None:
        super().__init__(link, site)
        self.channel = channel
        self.handshake: CallerHandshake = CallerHandshake(
            site.identity, SECRET, site.clock.random_bytes(32), self.reader, self.writer
        )

    def call(self) -> None:
        """Send the first frame."""
        self.wire.send(self.handshake.begin())

    def greet(self, frame: Frame) -> None:
        self.wire.send(self.handshake.receive(frame))
        if self.handshake.is_done:
            assert self.handshake.peer is not None
            start = self.channel.replica.begin(self.handshake.peer)
            silent_s = SILENT_HEARTBEATS * start.heartbeat_ms / 1_000  # so small a store finds a position at once
            now = self.site.clock.monotonic()
            self.session = ReplicaSession(self.channel.replica, self.writer, start, now, silent_s)
            self.wire.send(self.session.begin())

    def pump(self) -> None:
        if isinstance(self.session, ReplicaSession):
            self.wire.is_sealed = True
            for each in self.session.pump(self.site.clock.monotonic()).frames:
                self.wire.send(each)
            self.channel.wake()


class Link:
    """The link of one channel during a whole run."""

    def __init__(self, world: World, source: SimulatedSite, replica: SimulatedSite) -> None:
        self.world = world
        self.source = source
        self.replica = replica
        self.name = f"{source.name}>{replica.name}"
        self.is_cut = False
        self._ends: tuple[SourceEnd, ReplicaEnd] | None = None
        self._began = 0.0
        self._idle_until = 0.0

    def tick(self) -> None:
        """Let time pass: connect, or let both sides send."""
        timeline = self.world.timeline
        ends = self._ends
        if ends is not None and not any(end.is_open for end in ends):
            self._ends = ends = None
            self._idle_until = timeline.now + RECONNECT_SECONDS
        if ends is None:
            if timeline.now >= self._idle_until:
                self._connect()
        else:
            for end in ends:
                end.tick()
            is_late = timeline.now - self._began > HANDSHAKE_SECONDS + 8 * self.world.plan.delay[1]
            if is_late and any(end.is_open and end.session is None for end in ends):
                self.drop()  # a handshake that takes longer is ended by the clock of either side
        timeline.after(TICK_SECONDS, self.tick)

    def _connect(self) -> None:
        channel = self.replica.channels.get(self.source.number)
        if self.is_cut or not self.source.is_up or not self.replica.is_up or channel is None:
            return
        source = SourceEnd(self, self.source)
        replica = ReplicaEnd(self, self.replica, channel)
        source.other, replica.other = replica, source
        source.wire, replica.wire = Wire(self, replica.arrive), Wire(self, source.arrive)
        self._ends = source, replica
        self._began = self.world.timeline.now
        self.world.tally.add("connections")
        replica.call()

    def gone(self, site: SimulatedSite) -> None:
        """Drop the end of a site that has died; the other end is closed too, or notices nothing."""
        if self._ends is None:
            return
        for end in self._ends:
            if end.site is site:
                end.is_open = False
                if self.world.rng.random() < 0.5:
                    end.other.close()

    def reset_channel(self) -> None:
        """Reset the channel at the replica, which first ends the connection."""
        channel = self.replica.channels.get(self.source.number)
        if channel is not None and self.replica.is_up:
            self.drop()
            self.replica.act(lambda: self._reset(channel))

    def _reset(self, channel: Channel) -> None:
        try:
            channel.reset()
        except Retryable as error:
            self.world.tally.add(f"resets put off by {type(error).__name__}")

    def drop(self) -> None:
        """Reset the connection: both sides notice it."""
        for end in self._ends or ():
            if end.is_open:
                end.close()
