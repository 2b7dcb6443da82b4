"""Links of replication: a source serves its binlog to the replicas that connect, with the protocol of `sessions.py`.

A source serves each replica in a thread of its own; a replica calls in the thread of its receiver. Both loops wait for
bytes from the other side, a wake-up or the next heartbeat, and hold at most a chunk and a frame.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import PeerError
from tidemark.replication.channel.first_copy import Copied
from tidemark.replication.wire.copying import CopySession
from tidemark.replication.wire.frames import Frame
from tidemark.replication.wire.handshake import Site
from tidemark.replication.wire.messages import Start
from tidemark.replication.wire.server import Server
from tidemark.replication.wire.sessions import Binlog, Relay, ReplicaSession, SourceSession, farewell
from tidemark.replication.wire.wire import (
    OpenLink,
    TlsContext,
    Wake,
    Wire,
    call,
    is_readable,
    send_last_frame,
    wait_readable,
)


@dataclass(frozen=True)
class LinkOptions:
    """Options of either end of a link: this site, the shared secret, and TLS or None for a plain socket."""

    site: Site
    secret: bytes
    tls: TlsContext | None = None


Session = SourceSession | ReplicaSession | CopySession


def _converse(
    wire: Wire, session: Session, pump: Callable[[], bool], clock: Clock, wake: Wake, early: list[Frame]
) -> None:
    """Drive a session until the other side says goodbye or `pump` returns False. Raises: PeerError, StoreFailed."""
    try:
        if not all(_take(wire, session, frame, clock) for frame in early):
            return
        while pump():
            if wait_readable(wire, wake, session.due_at - clock.monotonic()):
                for frame in wire.reader.feed(wire.receive()):
                    if not _take(wire, session, frame, clock):
                        return
        send_last_frame(wire, farewell(wire.writer))
    except PeerError as error:
        send_last_frame(wire, farewell(wire.writer, error))
        raise


def _take(wire: Wire, session: Session, frame: Frame, clock: Clock) -> bool:
    step = session.receive(frame, clock.monotonic())
    for data in step.frames:
        wire.send(data)
    return step.continues


class Caller(Closable):
    """The replica's end: `run` connects and receives until it is stopped or the link ends."""

    def __init__(self, address: tuple[str, int], options: LinkOptions, clock: Clock) -> None:
        self._address = address
        self._options = options
        self._clock = clock
        self._wake = Wake()
        self._is_stopped = False
        self.peer: Site | None = None  # the source, after the handshake

    def run(self, relay: Relay, begin: Callable[[Site], Start]) -> None:
        """Connect, send the start, and feed the relay until `stop`, or until the source says goodbye.

        begin: called with the source after the handshake; returns where to continue.

        Raises: PeerError or a subclass, StoreFailed of the relay.
        """
        opened = self._call()
        with closing(opened.wire) as wire:
            start = begin(opened.peer)
            session = ReplicaSession(relay, wire.writer, start, self._clock.monotonic())
            wire.send(session.begin())

            def pump() -> bool:
                has_more = is_readable(wire)
                if has_more:
                    session.heard(self._clock.monotonic())
                if self._is_stopped or session.must_acknowledge or not has_more:
                    for data in session.pump(self._clock.monotonic()).frames:
                        wire.send(data)
                return not self._is_stopped

            _converse(wire, session, pump, self._clock, self._wake, opened.early)

    def copy(self, request: bytes, begin: Callable[[Site], Callable[[Copied], None] | None]) -> bool:
        """Connect and receive a first copy; return False if `begin` returns None, or after `stop`.

        begin: called with the source after the handshake; returns the function that takes the items, or None.

        Raises: PeerError or a subclass; errors of that function.
        """
        opened = self._call()
        with closing(opened.wire) as wire:
            take = begin(opened.peer)
            if take is None:
                return False
            session = CopySession(wire.writer, request, take, self._clock.monotonic())
            wire.send(session.begin())

            def pump() -> bool:
                session.pump(self._clock.monotonic())
                return not self._is_stopped

            _converse(wire, session, pump, self._clock, self._wake, opened.early)
            return session.is_whole

    def _call(self) -> OpenLink:
        options = self._options
        opened = call(self._address, options.site, options.secret, options.tls, self._clock)
        self.peer = opened.peer
        return opened

    def notify(self) -> None:
        """Wake the loop to report newly applied epochs to the source."""
        self._wake()

    def stop(self) -> None:
        """Make `run` or `copy` return, from any thread."""
        self._is_stopped = True
        self._wake()

    def close(self) -> None:
        """Release the wake-up, after `run` and `copy` have returned."""
        self._wake.close()


class Listener:
    """The source's end: listens, and serves every replica that knows the secret, until `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        options: LinkOptions,
        binlog: Callable[[], Binlog],
        clock: Clock,
        on_acknowledge: Callable[[int, int, int, tuple[tuple[int, int], ...]], None] = lambda *_: None,
    ) -> None:
        """Listen. binlog: opens a reader of the binlog for each replica. on_acknowledge: called at each acknowledgement
        of a replica, with its server id, received epoch, applied epoch and `Acknowledge.forwarded_epochs`. Raises:
        PeerError if the address is taken.
        """
        self._binlog = binlog
        self._clock = clock
        self._on_acknowledge = on_acknowledge
        self._mutex = threading.Lock()
        self._sessions: list[SourceSession] = []
        self._server = Server(address, options.site, options.secret, options.tls, clock, self._serve)
        self.address = self._server.address
        self._server.start()

    def notify(self) -> None:
        """Wake all sessions, after the binlog has grown."""
        self._server.wake()

    def sessions(self) -> list[SourceSession]:
        with self._mutex:
            return list(self._sessions)

    def connections(self) -> dict[str, int]:
        """Return the numbers of connections, as `Server.status`."""
        return self._server.status()

    def close(self) -> None:
        """Say goodbye to every replica and stop listening."""
        self._server.close()

    def _serve(self, opened: OpenLink, wake: Wake) -> None:
        clock, wire = self._clock, opened.wire
        binlog = self._binlog()
        session = SourceSession(
            binlog, wire.writer, clock.monotonic(), functools.partial(self._on_acknowledge, opened.peer.server_id)
        )
        with self._mutex:
            self._sessions.append(session)

        def pump() -> bool:
            while not self._server.is_closed:
                if is_readable(wire):
                    session.heard(clock.monotonic())  # this side was busy, for example with locating the start
                step = session.pump(clock.monotonic(), clock.wall_us())
                for data in step.frames:
                    wire.send(data)
                if not step.frames or is_readable(wire):
                    break
            return not self._server.is_closed

        try:
            _converse(wire, session, pump, clock, wake, opened.early)
        finally:
            with self._mutex:
                self._sessions.remove(session)
            binlog.close()
