"""The only sockets between stores: TCP, with TLS if asked for, under the frames of `replication/protocol`.

Who calls connects and greets; who is called is a `Server`, which serves each caller in a thread of its own. Nothing a
peer sends or leaves unsent can make the store fail or its commits wait (F97).
"""

from __future__ import annotations

import logging
import math
import select
import socket
import ssl
import threading
from collections.abc import Callable

from engine.clock import Clock
from engine.errors import PeerError, PeerTimeout, SchemaInvalid
from replication.protocol.frames import Frame, FrameReader, FrameWriter
from replication.protocol.handshake import CalledHandshake, CallerHandshake, Handshake, Party

TlsContext = ssl.SSLContext

_log = logging.getLogger("tidemark.replication")

READ_BYTES = 256 << 10
HANDSHAKE_SECONDS = 10.0
SEND_SECONDS = 30.0
FINISH_SECONDS = 1.0
UNSENT_BYTES = 128 << 10
CALLERS_MAX = 64
ACCEPT_PAUSE_SECONDS = 1.0
# A machine that has gone is noticed within some four seconds though nobody says anything.
KEEP_ALIVE = (
    (socket.TCP_KEEPIDLE, 1),
    (socket.TCP_KEEPINTVL, 1),
    (socket.TCP_KEEPCNT, 3),
)
UNTAKEN_MS = 4_000


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


def _readable(seconds: float | None, *sockets: socket.socket) -> set[int]:
    """Descriptors of those that have something, or have come to an end, waiting so long for the first; None: for ever.

    A poll, for `select` knows no descriptor above 1,023.
    """
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(None if seconds is None else max(0, math.ceil(1_000 * seconds)))}


class Wake:
    """Wakes a loop that waits in a poll, from any thread; any number of calls wake it once."""

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

    def wait(self, seconds: float) -> None:
        """Wait to be woken, or so long."""
        if _readable(seconds, self.receiver):
            self.clear()

    def close(self) -> None:
        """Close both ends."""
        self.receiver.close()
        self._sender.close()


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


def _greet(wire: Wire, handshake: CallerHandshake | CalledHandshake, clock: Clock, patience_s: float) -> list[Frame]:
    """Run a handshake to its end; frames that came behind it already. Raises: PeerError."""
    deadline = clock.monotonic() + patience_s  # for all of it: who drips bytes is shut out too
    try:
        while not handshake.is_done:
            rest_s = deadline - clock.monotonic()
            if rest_s <= 0:
                raise PeerTimeout(f"the handshake took more than {patience_s:.0f} s; connect again")
            wire.connection.settimeout(rest_s)
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


def tell(wire: Wire, data: bytes) -> None:
    """Send a last word; nobody may be there to hear it."""
    try:
        wire.send(data)
    except PeerError as error:
        _log.debug("last word not heard: %s", error.message)


def is_readable(wire: Wire) -> bool:
    """Whether the other side has said something: it is heard before more is sent."""
    return wire.has_more() or bool(_readable(0, wire.connection))


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
    ready = _readable(seconds, wire.connection, wake.receiver)
    if wake.receiver.fileno() in ready:
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
    """Connect to who listens there, and find out who that is. Close the wire. patience_s: for each of both.

    Raises: PeerError in all its leaves.
    """
    wire = Wire(_connect(address, tls, patience_s))
    try:
        handshake = CallerHandshake(own, secret, clock.random_bytes(32), wire.reader, wire.writer)
        wire.send(handshake.begin())
        return Met(wire, handshake, _greet(wire, handshake, clock, patience_s))
    except BaseException:
        wire.close()
        raise


def is_refusal_of_machine(error: PeerError) -> bool:
    """Whether a call came to nothing because nobody listens there: the machine is there, and no such process."""
    return isinstance(error.__cause__, ConnectionRefusedError)


def _connect(address: tuple[str, int], tls: TlsContext | None, patience_s: float) -> socket.socket:
    host, port = address
    try:
        connection = socket.create_connection((host, port), timeout=patience_s)
        if tls is not None:
            return tls.wrap_socket(connection, server_hostname=host)
        return connection
    except OSError as error:
        raise PeerError(f"no link to {host}:{port}: {error}") from error


class Server:
    """Listens, and serves every caller that knows the secret in a thread of its own, until `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        own: Party,
        secret: bytes,
        tls: TlsContext | None,
        clock: Clock,
        serve: Callable[[Met, Wake], None],
        callers_max: int = CALLERS_MAX,
    ) -> None:
        """Take the address; nobody is served before `start`. serve: converses with one caller; it returns when that one
        or `is_closed` ends it, for which its `Wake` is called. Raises: PeerError if the address is taken.
        """
        self.own = own  # who is met from now on
        self._secret = secret
        self._tls = tls
        self._clock = clock
        self._serve = serve
        self._callers_max = callers_max
        self._mutex = threading.Lock()
        self.is_closed = False
        self._served: dict[Wire, tuple[threading.Thread, Wake]] = {}
        try:
            self._socket = socket.create_server(address, backlog=callers_max)
        except OSError as error:
            raise PeerError(f"cannot listen at {address[0]}:{address[1]}: {error}; choose another port") from error
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name=f"tidemark-{own.called}", daemon=True)

    def start(self) -> None:
        """Serve who calls from now on."""
        self._thread.start()

    def wake(self) -> None:
        """Wake all who serve."""
        with self._mutex:
            wakes = [wake for _, wake in self._served.values()]
        for wake in wakes:
            wake()

    def cut(self) -> None:
        """End all links that are served now; who calls again is served again."""
        with self._mutex:
            wires = list(self._served)
        for wire in wires:
            wire.cut()

    def close(self) -> None:
        """Let all who serve come to an end, and stop listening."""
        with self._mutex:
            self.is_closed = True
            served = list(self._served.values())
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("listener was shut already: %s", error)
        self._socket.close()
        for _, wake in served:
            wake()
        if self._thread.ident is not None:
            self._thread.join()
        for thread, _ in served:
            thread.join()

    def _accept(self) -> None:
        while not self.is_closed:
            try:
                connection, where = self._socket.accept()
            except OSError:
                if not self.is_closed:
                    self._clock.sleep(ACCEPT_PAUSE_SECONDS)  # out of descriptors: not in a busy loop
                continue
            wire, wake = Wire(connection), Wake()
            name = f"tidemark-{self.own.caller}"
            thread = threading.Thread(target=self._guarded, args=(wire, wake, where), name=name, daemon=True)
            with self._mutex:
                if self.is_closed or len(self._served) >= self._callers_max:
                    wire.close()
                    wake.close()
                    continue
                self._served[wire] = (thread, wake)
            thread.start()

    def _guarded(self, wire: Wire, wake: Wake, where: object) -> None:
        try:
            if self._tls is not None:
                wire.connection.settimeout(HANDSHAKE_SECONDS)
                wire.connection = self._tls.wrap_socket(wire.connection, server_side=True)
            nonce = self._clock.random_bytes(32)
            handshake = CalledHandshake(self.own, self._secret, nonce, wire.reader, wire.writer)
            self._serve(Met(wire, handshake, _greet(wire, handshake, self._clock, HANDSHAKE_SECONDS)), wake)
        except PeerError as error:
            _log.warning("%s at %s: %s", self.own.caller, where, error.message)
        except OSError as error:
            _log.warning("%s at %s: no TLS with it: %s", self.own.caller, where, error)
        finally:
            with self._mutex:
                self._served.pop(wire, None)
            wire.close()
            wake.close()
