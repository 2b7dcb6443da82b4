"""The only sockets between stores: TCP, optionally with TLS, under the frames of `frames.py`.

The calling side connects and says hello (`call`). The called side is a `Server` (`server.py`, `admission.py`). Nothing
that a peer sends or withholds can make the store fail or its commits wait (F97).
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
# A lost machine is detected within about four seconds, even on an idle link.
KEEP_ALIVE = (
    (socket.TCP_KEEPIDLE, 1),
    (socket.TCP_KEEPINTVL, 1),
    (socket.TCP_KEEPCNT, 3),
)
UNTAKEN_MS = 4_000
_POLL_MS_MAX = (1 << 31) - 1  # what the system takes: 24 days


TLS_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def _with_files(
    context: ssl.SSLContext, certificate: str | None, key: str | None, version_min: str = "1.3"
) -> ssl.SSLContext:
    """Return the context with this version of TLS or newer and a certificate."""
    if version_min not in TLS_VERSIONS:
        raise SchemaInvalid(f"version_min is {version_min!r}; give {' or '.join(map(repr, TLS_VERSIONS))}")
    context.minimum_version = TLS_VERSIONS[version_min]
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


@contextmanager
def _tls_files() -> Iterator[None]:
    """Raise an error of the files of a TLS context as SchemaInvalid."""
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        raise SchemaInvalid(
            f"TLS cannot use these files: {error}; give paths of PEM files that belong together"
        ) from error


def server_tls(
    certificate: str | os.PathLike[str],
    key: str | os.PathLike[str],
    authority: str | os.PathLike[str] | None = None,
    version_min: str = "1.3",
) -> ssl.SSLContext:
    """Return a TLS 1.3 context for the side that listens: `tls=` of `serve`, `serve_calls`, `serve_mysql`, and the
    first of the two of `NodeGroup` and `Arbitrator`.

    Links have forward secrecy: a recorded link stays secret if key and secret become known later.

    Args:
        certificate: Its own certificate, a PEM file.
        key: The private key of the certificate, a PEM file.
        authority: A PEM file; if given, the other side needs a certificate of this authority.
        version_min: "1.2" also takes TLS 1.2, which older clients of MySQL need.

    Raises: SchemaInvalid if a file is missing or invalid, if key and certificate do not belong together, or for another
        version.

    Examples:
        >>> tm.server_tls("no.pem", "no.key")
        Traceback (most recent call last):
        ...
        tidemark.errors.SchemaInvalid: TLS cannot use these files: ...
    """
    with _tls_files():
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=_text(authority))
        if authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return _with_files(context, os.fspath(certificate), os.fspath(key), version_min)


def client_tls(
    authority: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> ssl.SSLContext:
    """Return a TLS 1.3 context for the side that connects: `tls=` of `Channel` and `connect`, and the second of the two
    of `NodeGroup` and `Arbitrator`.

    Args:
        authority: A PEM file with the authority of the other side's certificate; None: the authorities of the system.
        certificate: This side's own, a PEM file, if the other side requires one.
        key: The private key of the certificate, a PEM file; None: it is in the certificate's file.

    Raises: SchemaInvalid if a file is missing or invalid, or if key and certificate do not belong together.

    Examples:
        >>> tm.client_tls().minimum_version.name
        'TLSv1_3'
    """
    with _tls_files():
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=_text(authority))
        return _with_files(context, _text(certificate), _text(key))


def has_sound_tls(context: ssl.SSLContext) -> bool:
    """Whether a context takes TLS 1.2 and newer alone."""
    return context.minimum_version >= ssl.TLSVersion.TLSv1_2


PORT_DIGITS_MAX = 5  # Python refuses to read numbers of thousands of digits


def parse_address(text: str | tuple[str, int]) -> tuple[str, int]:
    """Return (host, port) of "host:port" or "[::1]:port". Raises: SchemaInvalid."""
    if not isinstance(text, str) and not (isinstance(text, tuple) and len(text) == 2):
        raise SchemaInvalid(f"an address must be host:port, got {text!r}")
    host, port = text if isinstance(text, tuple) else text.rpartition(":")[::2]
    is_number = isinstance(port, str) and port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX
    number = int(port) if isinstance(port, int) or is_number else -1
    host = host.removeprefix("[").removesuffix("]") if isinstance(host, str) else ""
    if not host or not 0 <= number < 1 << 16:
        raise SchemaInvalid(f"an address must be host:port, got {text!r}")
    return host, number


def is_this_host(host: str) -> bool:
    """Return whether links to `host` cannot leave this host: it is a loopback address, or localhost."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_secret_at(address: tuple[str, int], secret: bytes, tls: TlsContext | None) -> None:
    """Refuse a secret that is too weak for links at this address, with or without TLS. Raises: SchemaInvalid."""
    check_secret(secret, is_exposed=tls is None and not is_this_host(address[0]))


def readable(seconds: float | None, *descriptors: int) -> set[int]:
    """Return the descriptors that have bytes or are at their end; wait up to `seconds` for the first (None: no limit).

    Uses poll, because `select` accepts no descriptor above 1,023.
    """
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(_poll_ms(seconds))}


def _poll_ms(seconds: float | None) -> int | None:
    """Return how long a poll waits: None for any time. A longer wait than the system takes ends early."""
    return None if seconds is None else max(0, math.ceil(min(1_000 * seconds, _POLL_MS_MAX)))


class Wake:
    """Wakes a loop that waits in a poll, from any thread; any number of calls wake it once. Uses one descriptor."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._mutex = threading.Lock()  # a closed descriptor number may be reused at once: no write after the close
        self._is_closed = False

    def __call__(self) -> None:
        with self._mutex:
            if not self._is_closed:
                os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Reset the wake-up; the loop is awake."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            pass

    def wait(self, seconds: float) -> None:
        if readable(seconds, self.descriptor):
            self.clear()

    def close(self) -> None:
        """Close the descriptor, after the loop has ended; later calls do nothing."""
        with self._mutex:
            if not self._is_closed:
                self._is_closed = True
                os.close(self.descriptor)


class Stream:
    """One connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(SEND_SECONDS)

    def send(self, data: bytes) -> None:
        """Send all bytes. Raises: PeerTimeout, PeerError."""
        try:
            self.connection.sendall(data)
        except TimeoutError:
            raise PeerTimeout("the other side has received nothing for too long; it may connect again") from None
        except OSError as error:
            raise PeerError(f"the link broke ({error}); connect again") from error

    def receive(self) -> bytes:
        """Wait for bytes, and return them. Raises: PeerTimeout; PeerError at the end of the stream."""
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
        """Return the bytes that have arrived, without waiting. Raises: PeerError at the end of the stream."""
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

    def send_ready(self, data: bytes | memoryview) -> int:
        """Send what fits into the buffers without waiting, of a connection without a timeout (0.0); return how many
        bytes that is. Raises: PeerError.
        """
        try:
            return self.connection.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise PeerError(f"the link broke ({error}); connect again") from error

    def send_and_take(self, data: bytes, take: Callable[[], bool], wants: Callable[[], bool]) -> None:
        """Send all bytes. While the send buffer is full, take arriving bytes: if both sides only sent, each would wait
        for the other. take: calls `receive_ready`; returns whether bytes had arrived. wants: returns whether more may
        be taken. Raises: PeerError.
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
        """From now on, send small frames without delay, and queue few bytes ahead of an urgent one."""
        self._set(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._set(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def wait_long(self, untaken_ms: int = UNTAKEN_MS) -> None:
        """From now on, wait without limit while the other side's machine answers, because its work may take long.

        untaken_ms: how long TCP waits for the acknowledgement of sent bytes before the link breaks.
        """
        self.connection.settimeout(None)
        for option, value in KEEP_ALIVE:
            self._set(socket.IPPROTO_TCP, option, value)
        self.wait_untaken(untaken_ms)
        self._set(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def wait_untaken(self, untaken_ms: int) -> None:
        """From now on, break the link when sent bytes were not acknowledged for so long."""
        self._set(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, untaken_ms)

    def _set(self, level: int, option: int, value: int) -> None:
        try:
            self.connection.setsockopt(level, option, value)
        except OSError as error:  # the link may have ended already
            raise PeerError(f"the link broke ({error}); connect again") from error

    def peer_address(self) -> str:
        """Return the address of the other side, "host:port". Raises: PeerError if the link has ended."""
        try:
            return "{}:{}".format(*self.connection.getpeername()[:2])
        except OSError as error:
            raise PeerError(f"the link broke ({error}); connect again") from error

    def tls(self) -> tuple[str, str]:
        """Return the version of TLS and the cipher, empty in clear."""
        connection = self.connection
        if not isinstance(connection, ssl.SSLSocket):
            return "", ""
        return connection.version() or "", (connection.cipher() or ("",))[0]

    def has_more(self) -> bool:
        """Return whether bytes have arrived that a poll of the socket does not show, because TLS has read them."""
        return isinstance(self.connection, ssl.SSLSocket) and self.connection.pending() > 0

    def cut(self) -> None:
        """Shut the link that another thread uses; that thread gets a PeerError and closes the link."""
        try:
            # Not the method of an SSLSocket: after it, that thread would continue without TLS.
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("link was shut already: %s", error)

    def finish(self, clock: Clock) -> None:
        """Close the link after the other side has received the sent bytes, or after a second. Closing at once, with
        unread bytes here, would reset the connection and discard sent bytes still in flight.
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
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("link was shut already: %s", error)
        self.connection.close()


class Wire(Stream):
    """One connected socket, with the frames of both directions."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.reader = FrameReader()
        self.writer = FrameWriter()


def _greet(wire: Wire, handshake: CallerHandshake, clock: Clock, deadline: float) -> list[Frame]:
    """Run a handshake to its end; return the frames that have already arrived after it. Raises: PeerError."""
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
        send_last_frame(wire, handshake.refusal(error))
        raise
    finally:
        wire.connection.settimeout(SEND_SECONDS)
    return []


def _rest_s(clock: Clock, deadline: float) -> float:
    """Return the seconds until `deadline`. Raises: PeerTimeout if none are left, even for a peer that drips bytes."""
    rest_s = deadline - clock.monotonic()
    if rest_s <= 0:
        raise PeerTimeout("the other side did not end the handshake in time; connect again")
    return rest_s


def send_last_frame(wire: Wire, data: bytes) -> None:
    """Send a last frame; ignore errors, because the peer may be gone."""
    try:
        wire.send(data)
    except PeerError as error:
        _log.debug("last word not heard: %s", error.message)


def is_readable(wire: Stream) -> bool:
    """Return whether bytes from the other side can be read without waiting."""
    return wire.has_more() or bool(readable(0, wire.connection.fileno()))


class OpenLink:
    """A link after the handshake: the wire, the peer, and frames that have already arrived."""

    def __init__(self, wire: Wire, handshake: Handshake, early: list[Frame]) -> None:
        self.wire = wire
        self.peer = handshake.peer
        self.early = early


def wait_readable(wire: Stream, wake: Wake, seconds: float | None = None) -> bool:
    """Wait for bytes from the other side, for `wake`, or for `seconds`; return whether bytes can be read."""
    if wire.has_more():
        return True
    ready = readable(seconds, wire.connection.fileno(), wake.descriptor)
    if wake.descriptor in ready:
        wake.clear()
    return wire.connection.fileno() in ready


def wait_ready(wire: Stream, wake: Wake, seconds: float | None, reads: bool, writes: bool) -> bool:
    """Wait until bytes have arrived (`reads`) or can be sent (`writes`), for `wake`, or for `seconds`; return whether
    one of them happened. Bytes that TLS has read already are not seen.
    """
    poll = select.poll()
    poll.register(wire.connection, (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0))
    poll.register(wake.descriptor, select.POLLIN)
    found = {each for each, _ in poll.poll(_poll_ms(seconds))}
    if wake.descriptor in found:
        wake.clear()
    return bool(found)


def call(
    address: tuple[str, int],
    own: Party,
    secret: bytes,
    tls: TlsContext | None,
    clock: Clock,
    patience_s: float = HANDSHAKE_SECONDS,
) -> OpenLink:
    """Connect to the process that listens at `address`, and run the handshake. The caller closes the wire. patience_s:
    limit for connection, TLS and handshake together, without the name lookup.

    Raises: PeerError or a subclass, SchemaInvalid for a weak secret.
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
        return OpenLink(wire, handshake, _greet(wire, handshake, clock, deadline))
    except BaseException:
        wire.close()
        raise


def is_connection_refused(error: PeerError) -> bool:
    """Return whether a call failed because the machine answers, but no process listens at the address."""
    return isinstance(error.__cause__, ConnectionRefusedError)


def _connect(places: list[Any], address: tuple[str, int], clock: Clock, deadline: float) -> socket.socket:
    """Connect to the first of the addresses that accepts. Raises: PeerError."""
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
    """Return the connection under TLS; the deadline covers the whole handshake. Raises: PeerError."""
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
