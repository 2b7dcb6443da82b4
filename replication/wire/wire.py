"""The only sockets between stores: TCP, with TLS if asked for, under the frames of `frames.py`.

One side calls: it connects and says hello. The called side is a `Server` (`server.py`). Nothing a peer sends or leaves
unsent can make the store fail or its commits wait (F97).
"""

from __future__ import annotations

import ipaddress
import logging
import math
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import PeerError, PeerTimeout, SchemaInvalid
from tidemark.replication.wire.frames import Frame, FrameReader, FrameWriter
from tidemark.replication.wire.handshake import CallerHandshake, Handshake, Party, check_secret

TlsContext = ssl.SSLContext

_log = logging.getLogger("tidemark.replication")

READ_BYTES = 256 << 10
HANDSHAKE_SECONDS = 10.0
SEND_SECONDS = 30.0
FINISH_SECONDS = 1.0
UNSENT_BYTES = 128 << 10
# A machine that has gone is noticed within some four seconds though nobody says anything.
KEEP_ALIVE = (
    (socket.TCP_KEEPIDLE, 1),
    (socket.TCP_KEEPINTVL, 1),
    (socket.TCP_KEEPCNT, 3),
)
UNTAKEN_MS = 4_000


def server_tls(certificate: str, key: str, authority: str | None = None) -> ssl.SSLContext:
    """TLS 1.3 for a source: its certificate and key (files in PEM form); with `authority` replicas need certificates
    too. What was recorded of a link stays secret when key and secret become known later.

    Raises: OSError, ssl.SSLError if a file cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    if authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(authority: str | None = None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """TLS 1.3 for a replica: the authority of the source's certificate (a file in PEM form, the system's if None), and
    a certificate of its own if the source asks for one. Raises: OSError, ssl.SSLError if a file cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


PORT_DIGITS_MAX = 5  # Python refuses to read numbers of thousands of digits


def parse_address(text: str | tuple[str, int]) -> tuple[str, int]:
    """(host, port) out of "host:port" or "[::1]:port". Raises: SchemaInvalid."""
    host, port = text if isinstance(text, tuple) else text.rpartition(":")[::2]
    is_number = isinstance(port, str) and port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX
    number = int(port) if isinstance(port, int) or is_number else -1
    host = host.removeprefix("[").removesuffix("]") if isinstance(host, str) else ""
    if not host or not 0 <= number < 1 << 16:
        raise SchemaInvalid(f"an address is host:port, got {text!r}")
    return host, number


def is_this_host(host: str) -> bool:
    """Whether only processes of this host can be at both ends: a loopback address, or its name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_secret_at(address: tuple[str, int], secret: bytes, tls: TlsContext | None) -> None:
    """Refuse a secret that is too weak for links at this address, over a TLS context or none. Raises: SchemaInvalid."""
    check_secret(secret, is_exposed=tls is None and not is_this_host(address[0]))


def readable(seconds: float | None, *descriptors: int) -> set[int]:
    """Those of these descriptors that have something, or have ended, waiting so long for the first; None: for ever.

    A poll, for `select` knows no descriptor above 1,023.
    """
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(None if seconds is None else max(0, math.ceil(1_000 * seconds)))}


class Wake:
    """Wakes a loop that waits in a poll, from any thread; any number of calls wake it once. One descriptor."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._mutex = threading.Lock()  # a descriptor that is closed may be another file's at once
        self._is_closed = False

    def __call__(self) -> None:
        """Wake it."""
        with self._mutex:
            if not self._is_closed:
                os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """It is awake."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            pass

    def wait(self, seconds: float) -> None:
        """Wait to be woken, or so long."""
        if readable(seconds, self.descriptor):
            self.clear()

    def close(self) -> None:
        """Close it, after the loop has ended; calls do nothing then."""
        with self._mutex:
            if not self._is_closed:
                self._is_closed = True
                os.close(self.descriptor)


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
            raise PeerTimeout("the other side has taken nothing for too long; it may connect again") from None
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

    def receive_ready(self) -> bytes:
        """What has come by now, nothing if nothing has. Raises: PeerError at the end of the stream."""
        before = self.connection.gettimeout()
        self.connection.settimeout(0.0)
        try:
            data = self.connection.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        except OSError as error:
            raise PeerError(f"the link broke ({error}); connect again") from error
        finally:
            self.connection.settimeout(before)
        if not data:
            raise PeerError("the other side shut the link; connect again")
        return data

    def send_and_take(self, data: bytes, take: Callable[[], bool], wants: Callable[[], bool]) -> None:
        """Send all of it; while there is no room, take what comes: the other side may be doing the same, and then each
        would wait for the other. take: calls `receive_ready`, and says whether anything had come. wants: whether more
        may be taken. Raises: PeerError.
        """
        rest = memoryview(data)
        before = self.connection.gettimeout()
        self.connection.settimeout(0.0)
        try:
            while len(rest):
                try:
                    rest = rest[self.connection.send(rest) :]
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    if not (wants() and take()):
                        poll = select.poll()
                        poll.register(self.connection, select.POLLOUT | (select.POLLIN if wants() else 0))
                        poll.poll()
        except OSError as error:
            raise PeerError(f"the link broke ({error}); connect again") from error
        finally:
            self.connection.settimeout(before)

    def send_at_once(self) -> None:
        """From now on small frames do not wait for each other, and few bytes lie before one that is urgent."""
        self._set(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._set(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def wait_long(self, untaken_ms: int = UNTAKEN_MS) -> None:
        """From now on the other side may be silent as long as its machine answers: what it does may take long.

        untaken_ms: so long it may leave lie what was sent, and its machine may be away.
        """
        self.connection.settimeout(None)
        for option, value in (*KEEP_ALIVE, (socket.TCP_USER_TIMEOUT, untaken_ms)):
            self._set(socket.IPPROTO_TCP, option, value)
        self._set(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _set(self, level: int, option: int, value: int) -> None:
        try:
            self.connection.setsockopt(level, option, value)
        except OSError as error:  # it may be over already
            raise PeerError(f"the link broke ({error}); connect again") from error

    def has_more(self) -> bool:
        """Whether bytes have come that `select` on the socket does not show: TLS has taken them in already."""
        return isinstance(self.connection, ssl.SSLSocket) and self.connection.pending() > 0

    def cut(self) -> None:
        """End what another thread does with it: that one meets a PeerError, and closes it."""
        try:
            # Not the method of an SSLSocket, behind which that thread would go on without TLS.
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("link was shut already: %s", error)

    def finish(self, clock: Clock) -> None:
        """Close it once the other side has what was sent: with bytes unread here, closing at once would take those
        back that are still on their way. Waits no longer than a second.
        """
        deadline = clock.monotonic() + FINISH_SECONDS
        try:
            socket.socket.shutdown(self.connection, socket.SHUT_WR)
            while (rest_s := deadline - clock.monotonic()) > 0:
                self.connection.settimeout(rest_s)
                if not socket.socket.recv(self.connection, READ_BYTES):
                    break
        except OSError as error:
            _log.debug("link has ended: %s", error)
        self.close()

    def close(self) -> None:
        """Shut it."""
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("link was shut already: %s", error)
        self.connection.close()


def _greet(wire: Wire, handshake: CallerHandshake, clock: Clock, deadline: float) -> list[Frame]:
    """Run a handshake to its end; the frames that came after it already. Raises: PeerError."""
    try:
        wire.send(handshake.begin())
        while not handshake.is_done:
            wire.connection.settimeout(_rest_s(clock, deadline))
            frames = wire.reader.feed(wire.receive())
            for frame in frames:
                wire.send(handshake.receive(frame))
                if handshake.is_done:
                    return list(frames)
    except PeerTimeout:
        raise
    except PeerError as error:
        tell(wire, handshake.refusal(error))
        raise
    finally:
        wire.connection.settimeout(SEND_SECONDS)
    return []


def _rest_s(clock: Clock, deadline: float) -> float:
    """Seconds until then. Raises: PeerTimeout if there are none: a peer that drips bytes is left too."""
    rest_s = deadline - clock.monotonic()
    if rest_s <= 0:
        raise PeerTimeout("the other side did not end the handshake in time; connect again")
    return rest_s


def tell(wire: Wire, data: bytes) -> None:
    """Send a last word; nobody may be there to hear it."""
    try:
        wire.send(data)
    except PeerError as error:
        _log.debug("last word not heard: %s", error.message)


def is_readable(wire: Wire) -> bool:
    """Whether the other side has said something: it is heard before more is sent."""
    return wire.has_more() or bool(readable(0, wire.connection.fileno()))


class Met:
    """A link both sides of which know each other: the wire, who the other one is, and frames that came already."""

    def __init__(self, wire: Wire, handshake: Handshake, early: list[Frame]) -> None:
        self.wire = wire
        self.peer = handshake.peer
        self.early = early


def wait_readable(wire: Wire, wake: Wake, seconds: float | None = None) -> bool:
    """Wait until the other side has said something, or somebody wakes this one, or so long: whether it has."""
    if wire.has_more():
        return True
    ready = readable(seconds, wire.connection.fileno(), wake.descriptor)
    if wake.descriptor in ready:
        wake.clear()
    return wire.connection.fileno() in ready


def call(
    address: tuple[str, int],
    own: Party,
    secret: bytes,
    tls: TlsContext | None,
    clock: Clock,
    patience_s: float = HANDSHAKE_SECONDS,
) -> Met:
    """Connect to the process that listens there, and find out which peer it is. Close the wire. patience_s: for all of
    it, TLS and handshake included; names are looked up before.

    Raises: PeerError in all its leaves, SchemaInvalid for a weak secret.
    """
    check_secret_at(address, secret, tls)
    host, port = address
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise PeerError(f"no link to {host}:{port}: {error}") from error
    deadline = clock.monotonic() + patience_s
    wire = Wire(_connect(places, address, clock, deadline))
    try:
        if tls is not None:
            wire.connection = _shake_hands(wire.connection, tls, address, clock, deadline)
        handshake = CallerHandshake(own, secret, clock.random_bytes(32), wire.reader, wire.writer)
        return Met(wire, handshake, _greet(wire, handshake, clock, deadline))
    except BaseException:
        wire.close()
        raise


def is_refusal_of_machine(error: PeerError) -> bool:
    """Whether a call came to nothing because nobody listens there: the machine is there, and no such process."""
    return isinstance(error.__cause__, ConnectionRefusedError)


def _connect(places: list[Any], address: tuple[str, int], clock: Clock, deadline: float) -> socket.socket:
    """A connection to the first of the places that takes one. Raises: PeerError."""
    host, port = address
    last: OSError | None = None
    for family, kind, protocol, _, where in places:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_rest_s(clock, deadline))
            connection.connect(where)
            return connection
        except OSError as error:
            connection.close()
            last = error
        except BaseException:
            connection.close()
            raise
    raise PeerError(f"no link to {host}:{port}: {last}") from last


def _shake_hands(
    connection: socket.socket, tls: TlsContext, address: tuple[str, int], clock: Clock, deadline: float
) -> ssl.SSLSocket:
    """The connection under TLS; the deadline holds for all of its handshake. Raises: PeerError."""
    try:
        secure = tls.wrap_socket(connection, server_hostname=address[0], do_handshake_on_connect=False)
    except OSError as error:
        raise PeerError(f"no TLS with {address[0]}:{address[1]}: {error}") from error
    try:
        secure.settimeout(0.0)
        while True:
            poll = select.poll()
            try:
                secure.do_handshake()
                return secure
            except ssl.SSLWantReadError:
                poll.register(secure, select.POLLIN)
            except ssl.SSLWantWriteError:
                poll.register(secure, select.POLLOUT)
            poll.poll(math.ceil(1_000 * _rest_s(clock, deadline)))
    except OSError as error:
        secure.close()
        raise PeerError(f"no TLS with {address[0]}:{address[1]}: {error}") from error
    except BaseException:
        secure.close()
        raise
