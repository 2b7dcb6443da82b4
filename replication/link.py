"""The only sockets of replication: TCP, with TLS if asked for, under the protocol of `replication/protocol`.

A source listens and serves each replica in a thread of its own; a replica calls, in the thread of its receiver. Both
loops wait for bytes of the other side, for a wake-up of their own, or for the next heartbeat, and hold no more than a
chunk and a frame. Nothing a peer sends or leaves unsent can make the store fail or its commits wait (F97).
"""

from __future__ import annotations

import functools
import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.clock import Clock
from engine.errors import PeerError, PeerTimeout
from replication.first_copy import Copied
from replication.protocol.copying import CopySession
from replication.protocol.frames import Frame, FrameReader, FrameWriter
from replication.protocol.handshake import ReplicaHandshake, Site, SourceHandshake
from replication.protocol.messages import Start
from replication.protocol.sessions import Binlog, Relay, ReplicaSession, SourceSession, Step

TlsContext = ssl.SSLContext

_log = logging.getLogger("tidemark.replication")

READ_BYTES = 256 << 10
HANDSHAKE_SECONDS = 10.0
SEND_SECONDS = 30.0
REPLICAS_MAX = 64
ACCEPT_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class LinkOptions:
    """What both ends of a link need: who this site is, the shared secret, and TLS or None for a plain socket."""

    site: Site
    secret: bytes
    tls: TlsContext | None = None


def server_tls(certificate: str, key: str, authority: str | None = None) -> ssl.SSLContext:
    """TLS for a source: its certificate and key (files in PEM form); with `authority` replicas need certificates too.

    Raises: OSError, ssl.SSLError if a file cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    if authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(authority: str | None = None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """TLS for a replica: who may vouch for the source (a file in PEM form, the system's if None), and its own
    certificate if the source asks for one. Raises: OSError, ssl.SSLError if a file cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


class Wake:
    """Wakes a loop that waits in `select`, from any thread; any number of calls wake it once."""

    def __init__(self) -> None:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)

    def __call__(self) -> None:
        """Wake it."""
        try:
            self._sender.send(b"\0")
        except (BlockingIOError, OSError):
            pass  # it will wake anyhow, or is closed

    def clear(self) -> None:
        """It is awake."""
        try:
            while self.receiver.recv(4_096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close both ends."""
        self.receiver.close()
        self._sender.close()


class Session(Protocol):
    """What the loop drives."""

    @property
    def due_at(self) -> float:
        """When `pump` must be called though nothing happened."""
        ...

    def receive(self, frame: Frame, now: float) -> Step:
        """Take a frame."""
        ...

    def farewell(self, error: PeerError | None = None) -> bytes:
        """The last frame."""
        ...


class Wire:
    """One connected socket with both directions' frames."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.reader = FrameReader()
        self.writer = FrameWriter()
        connection.settimeout(SEND_SECONDS)

    def send(self, data: bytes) -> None:
        """Send all of it. Raises: PeerTimeout, PeerError."""
        try:
            self.connection.sendall(data)
        except TimeoutError:
            raise PeerTimeout(
                f"the other side has taken nothing for {SEND_SECONDS:.0f} s; it may connect again"
            ) from None
        except OSError as error:
            raise PeerError(f"the link broke ({error}); connect again") from error

    def receive(self) -> bytes:
        """What has come. Raises: PeerError at the end of the stream."""
        try:
            data = self.connection.recv(READ_BYTES)
        except TimeoutError:
            raise PeerTimeout("the other side stopped in the middle of a frame; connect again") from None
        except OSError as error:
            raise PeerError(f"the link broke ({error}); connect again") from error
        if not data:
            raise PeerError("the other side shut the link; connect again")
        return data

    def has_more(self) -> bool:
        """Whether bytes have come that `select` on the socket does not show: TLS has taken them in already."""
        return isinstance(self.connection, ssl.SSLSocket) and self.connection.pending() > 0

    def close(self) -> None:
        """Shut it."""
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("link was shut already: %s", error)
        self.connection.close()


def _greet(wire: Wire, handshake: ReplicaHandshake | SourceHandshake, clock: Clock) -> list[Frame]:
    """Run a handshake to its end; frames that came behind it already. Raises: PeerError."""
    deadline = clock.monotonic() + HANDSHAKE_SECONDS  # for all of it: who drips bytes is shut out too
    try:
        while not handshake.is_done:
            rest_s = deadline - clock.monotonic()
            if rest_s <= 0:
                raise PeerTimeout(f"the handshake took more than {HANDSHAKE_SECONDS:.0f} s; connect again")
            wire.connection.settimeout(rest_s)
            frames = wire.reader.feed(wire.receive())
            for frame in frames:
                wire.send(handshake.receive(frame))
                if handshake.is_done:
                    return list(frames)
    except PeerTimeout:
        raise
    except PeerError as error:
        _tell(wire, handshake.refusal(error))
        raise
    finally:
        wire.connection.settimeout(SEND_SECONDS)
    return []


def _tell(wire: Wire, data: bytes) -> None:
    """Send a last word; nobody may be there to hear it."""
    try:
        wire.send(data)
    except PeerError as error:
        _log.debug("last word not heard: %s", error.message)


def _converse(
    wire: Wire, session: Session, pump: Callable[[], bool], clock: Clock, wake: Wake, early: list[Frame]
) -> None:
    """Drive a session until the other side says goodbye or `pump` says no. Raises: PeerError, StoreFailed."""
    try:
        if not all(_take(wire, session, frame, clock) for frame in early):
            return
        while pump():
            wait_s = 0.0 if wire.has_more() else max(0.0, session.due_at - clock.monotonic())
            ready, _, _ = select.select([wire.connection, wake.receiver], [], [], wait_s)
            if wake.receiver in ready:
                wake.clear()
            if wire.connection in ready or wire.has_more():
                for frame in wire.reader.feed(wire.receive()):
                    if not _take(wire, session, frame, clock):
                        return
        _tell(wire, session.farewell())
    except PeerError as error:
        _tell(wire, session.farewell(error))
        raise


def _take(wire: Wire, session: Session, frame: Frame, clock: Clock) -> bool:
    step = session.receive(frame, clock.monotonic())
    for data in step.frames:
        wire.send(data)
    return step.goes_on


class Caller:
    """The replica's end: `run` connects and receives until it is stopped or the link ends."""

    def __init__(self, address: tuple[str, int], options: LinkOptions, clock: Clock) -> None:
        self._address = address
        self._options = options
        self._clock = clock
        self._wake = Wake()
        self._is_stopped = False
        self.peer: Site | None = None  # who the source is, once both know each other

    def run(self, relay: Relay, begin: Callable[[Site], Start]) -> None:
        """Connect, say where to go on, and feed the relay until `stop`, or until the source says goodbye.

        begin: where to go on with this source, asked when it is known who that is.

        Raises: PeerError in all its leaves, StoreFailed of the relay.
        """
        wire = Wire(self._connect())
        try:
            handshake = self._handshake(wire)
            early = _greet(wire, handshake, self._clock)
            assert handshake.peer is not None
            self.peer = handshake.peer
            start = begin(handshake.peer)
            session = ReplicaSession(relay, wire.writer, start, self._clock.monotonic())
            wire.send(session.begin())

            def pump() -> bool:
                has_more = _is_readable(wire)
                if has_more:
                    session.heard(self._clock.monotonic())
                if self._is_stopped or session.must_acknowledge or not has_more:
                    for data in session.pump(self._clock.monotonic()).frames:
                        wire.send(data)
                return not self._is_stopped

            _converse(wire, session, pump, self._clock, self._wake, early)
        finally:
            wire.close()

    def copy(self, request: bytes, begin: Callable[[Site], Callable[[Copied], None] | None]) -> bool:
        """Connect, and have a first copy sent; False if `begin`, asked when it is known who the source is, says None,
        or if it was stopped. `begin` gives what takes the items.

        Raises: PeerError in all its leaves, and what taking raises.
        """
        wire = Wire(self._connect())
        try:
            handshake = self._handshake(wire)
            early = _greet(wire, handshake, self._clock)
            assert handshake.peer is not None
            self.peer = handshake.peer
            take = begin(handshake.peer)
            if take is None:
                return False
            session = CopySession(wire.writer, request, take, self._clock.monotonic())
            wire.send(session.begin())

            def pump() -> bool:
                session.pump(self._clock.monotonic())
                return not self._is_stopped

            _converse(wire, session, pump, self._clock, self._wake, early)
            return session.is_whole
        finally:
            wire.close()

    def _handshake(self, wire: Wire) -> ReplicaHandshake:
        nonce = self._clock.random_bytes(32)
        handshake = ReplicaHandshake(self._options.site, self._options.secret, nonce, wire.reader, wire.writer)
        wire.send(handshake.begin())
        return handshake

    def _connect(self) -> socket.socket:
        host, port = self._address
        try:
            connection = socket.create_connection((host, port), timeout=HANDSHAKE_SECONDS)
            if self._options.tls is not None:
                return self._options.tls.wrap_socket(connection, server_hostname=host)
            return connection
        except OSError as error:
            raise PeerError(f"no link to {host}:{port}: {error}") from error

    def notify(self) -> None:
        """More was applied: the source is told."""
        self._wake()

    def stop(self) -> None:
        """Let `run` return, from any thread."""
        self._is_stopped = True
        self._wake()

    def close(self) -> None:
        """Behind the end of `run`."""
        self._wake.close()


class Listener:
    """The source's end: listens, and serves every replica that knows the secret, until `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        options: LinkOptions,
        binlog: Callable[[], Binlog],
        clock: Clock,
        told: Callable[[int, int, int], None] = lambda *_: None,
    ) -> None:
        """Listen. binlog: makes a reader of the binlog for each replica. told: called with server id, epoch received
        and epoch applied, whenever a replica tells. Raises: PeerError if the address is taken.
        """
        self._options = options
        self._binlog = binlog
        self._clock = clock
        self._told = told
        self._mutex = threading.Lock()
        self._is_closed = False
        self._served: dict[Wire, tuple[threading.Thread, Wake, list[SourceSession]]] = {}
        try:
            self._socket = socket.create_server(address, backlog=REPLICAS_MAX)
        except OSError as error:
            raise PeerError(f"cannot listen at {address[0]}:{address[1]}: {error}; choose another port") from error
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name="tidemark-source", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """The binlog has grown."""
        with self._mutex:
            wakes = [wake for _, wake, _ in self._served.values()]
        for wake in wakes:
            wake()

    def sessions(self) -> list[SourceSession]:
        """The sessions under way."""
        with self._mutex:
            return [session for _, _, sessions in self._served.values() for session in sessions]

    def close(self) -> None:
        """Say goodbye to every replica and stop listening."""
        with self._mutex:
            self._is_closed = True
            served = list(self._served.values())
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("listener was shut already: %s", error)
        self._socket.close()
        for _, wake, _ in served:
            wake()
        self._thread.join()
        for thread, _, _ in served:
            thread.join()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, where = self._socket.accept()
            except OSError:
                if not self._is_closed:
                    self._clock.sleep(ACCEPT_PAUSE_SECONDS)  # out of descriptors: not in a busy loop
                continue
            wire, wake = Wire(connection), Wake()
            thread = threading.Thread(
                target=self._serve, args=(wire, wake, where), name="tidemark-replica", daemon=True
            )
            with self._mutex:
                if self._is_closed or len(self._served) >= REPLICAS_MAX:
                    wire.close()
                    wake.close()
                    continue
                self._served[wire] = (thread, wake, [])
            thread.start()

    def _serve(self, wire: Wire, wake: Wake, where: object) -> None:
        served = wire
        try:
            if self._options.tls is not None:
                wire.connection.settimeout(HANDSHAKE_SECONDS)
                wire.connection = self._options.tls.wrap_socket(wire.connection, server_side=True)
            self._speak(wire, wake)
        except PeerError as error:
            _log.warning("replica at %s: %s", where, error.message)
        except OSError as error:
            _log.warning("replica at %s: no TLS with it: %s", where, error)
        finally:
            with self._mutex:
                self._served.pop(served, None)
            wire.close()
            wake.close()

    def _speak(self, wire: Wire, wake: Wake) -> None:
        options, clock = self._options, self._clock
        handshake = SourceHandshake(options.site, options.secret, clock.random_bytes(32), wire.reader, wire.writer)
        early = _greet(wire, handshake, clock)
        binlog = self._binlog()
        assert handshake.peer is not None
        told = functools.partial(self._told, handshake.peer.server_id)
        session = SourceSession(binlog, wire.writer, clock.monotonic(), told)
        with self._mutex:
            self._served[wire][2].append(session)

        def pump() -> bool:
            while not self._is_closed:
                if _is_readable(wire):
                    session.heard(clock.monotonic())  # it took long here, not there: to find a place, for one
                step = session.pump(clock.monotonic(), clock.wall_us())
                for data in step.frames:
                    wire.send(data)
                if not step.frames or _is_readable(wire):
                    break
            return not self._is_closed

        try:
            _converse(wire, session, pump, clock, wake, early)
        finally:
            binlog.close()


def _is_readable(wire: Wire) -> bool:
    """Whether the other side has said something: it is heard before more is sent."""
    return wire.has_more() or bool(select.select([wire.connection], [], [], 0)[0])
