"""Admission of connections to a port: one thread handles all that have not proved themselves, and each peer has a
thread.

A connection costs a descriptor and a few KiB until its other side has proved that it knows a secret. Only then does the
connection get one of the places reserved for peers, a thread and a `Wake`. How a side proves itself is a matter of the
port, which makes a subclass of `Connection`.

Invariants:

- (A1) The admission thread waits for no connection: bytes that one sends, drips or withholds cost the others nothing.
- (A2) At most UNPROVED_MAX connections are unproved, UNPROVED_OF_ADDRESS_MAX of them from one address. One more
  replaces the oldest that has not greeted, or else the oldest, so a peer gets through even if strangers stay connected.
  Each has HANDSHAKE_SECONDS in all, TLS included.
- (A3) The thread ends only with `close`. Out of descriptors or memory, or after a defect of its own, it drops an
  unproved connection and pauses, and peers wait in the system's backlog.
"""

from __future__ import annotations

import ipaddress
import logging
import selectors
import socket
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import PeerError, PeerTimeout
from tidemark.engine.base.limited_log import LimitedLog
from tidemark.replication.wire.wire import HANDSHAKE_SECONDS, SEND_SECONDS, Stream, TlsContext, Wake, readable

_log = logging.getLogger("tidemark.replication")

UNPROVED_MAX = 256
UNPROVED_OF_ADDRESS_MAX = 128
PAUSE_SECONDS = 1.0
# Limit of one turn, so that a flood of strangers does not delay handshakes.
ACCEPTED_IN_TURN_MAX = 16
BACKLOG = 1_024
READ_BYTES = 4_096


class Connection(ABC):
    """A connection to a port, from its acceptance to its end. The admission thread alone calls it until `serve`."""

    stream: Stream  # set by the subclass

    def __init__(self, connection: socket.socket, where: Any) -> None:
        """where: the address of the other side, as the system names it. Must not fail."""
        self.where = where
        self.address = _address(where)  # the key of its quota
        self.deadline = 0.0
        self.wake: Wake | None = None  # set once the connection is admitted
        self.is_secure = True  # False during the TLS handshake

    # --- what a port does itself ------------------------------------------------------------------
    @abstractmethod
    def begin(self, reserve: Callable[[], None]) -> None:
        """Begin the proof. reserve: to be called after a valid proof and before the answer to it; raises
        PeerError if there is no place. Raises: OSError, PeerError.
        """

    @property
    @abstractmethod
    def has_greeted(self) -> bool:
        """Whether the other side has sent a valid beginning of a proof."""

    @property
    def wanted(self) -> int:
        """How many bytes to read next."""
        return READ_BYTES

    @abstractmethod
    def take(self, data: bytes) -> bool:
        """Take bytes of the proof and answer them with `send_at_once`; return whether it is complete. Raises:
        PeerError.
        """

    def secured(self) -> None:
        """Called when the TLS handshake has ended."""
        return

    @abstractmethod
    def refusal(self, error: PeerError) -> bytes:
        """Return the last message to a connection that is refused, empty for none."""

    @abstractmethod
    def serve(self, wake: Wake) -> None:
        """Serve the other side in a thread of its own; return when it ends the connection or the port is closed, after
        which `wake` is called. Raises: PeerError, OSError.
        """

    # --- for the port -----------------------------------------------------------------------------
    def begin_tls(self, context: TlsContext) -> None:
        """Let the TLS handshake come next. Raises: OSError."""
        self.stream.connection = context.wrap_socket(
            self.stream.connection, server_side=True, do_handshake_on_connect=False
        )
        self.is_secure = False

    def send_at_once(self, data: bytes) -> None:
        """Send bytes that fit in the buffers of a new connection. Raises: PeerTimeout if they do not, OSError."""
        try:
            sent = self.stream.connection.send(data) if data else 0
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            sent = 0
        if sent < len(data):
            raise PeerTimeout("it receives nothing of what it is sent")

    def advance(self) -> bool:
        """Take the bytes that have arrived and answer them, without waiting. Return whether the proof is complete.

        Raises: PeerError, OSError; ssl.SSLWantWriteError if the connection must be writable first.
        """
        try:
            while True:
                if not self.is_secure:
                    self.stream.connection.do_handshake()  # type: ignore[attr-defined]  # of an SSLSocket
                    self.is_secure = True
                    self.secured()
                data = self.stream.connection.recv(self.wanted)
                if not data:
                    raise PeerError("it shut the link before it had proved that it knows the secret")
                if self.take(data):
                    return True
        except (BlockingIOError, ssl.SSLWantReadError):
            return False


class Admission:
    """Listens, and serves every connection that proves itself in a thread of its own, until `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        caller: str,
        called: str,
        clock: Clock,
        meet: Callable[[socket.socket, Any], Connection],
        served_max: int,
    ) -> None:
        """Bind the address; connections wait in the backlog until `start`.

        caller, called: names of both sides, for messages and threads. meet: makes the `Connection` of a socket and the
        address of its other side. served_max: how many connections are served at a time.

        Raises: PeerError if the address is taken.
        """
        self._caller = caller
        self._called = called
        self._clock = clock
        self._meet = meet
        self._served_max = served_max
        self._mutex = threading.Lock()
        self.is_closed = False
        self._served: dict[Connection, tuple[threading.Thread, Wake]] = {}
        self._limited = LimitedLog(_log, clock)
        # By descriptor, the oldest first; used by the admission thread alone.
        self._unproved: dict[int, Connection] = {}
        self._accepts_at: float | None = None  # when the pause ends; None while connections are accepted
        self._counts = {"failed": 0, "evicted": 0}
        try:
            self._socket = socket.create_server(address, backlog=BACKLOG)
        except OSError as error:
            raise PeerError(f"cannot listen at {address[0]}:{address[1]}: {error}; choose another port") from error
        try:
            self._socket.setblocking(False)
            self._selector = selectors.DefaultSelector()
            self._wake = Wake()
            self._selector.register(self._socket, selectors.EVENT_READ)
            self._selector.register(self._wake.descriptor, selectors.EVENT_READ)
        except OSError as error:
            self._socket.close()
            raise PeerError(f"cannot listen at {address[0]}:{address[1]}: {error}") from error
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._admit, name=f"tidemark-{called}", daemon=True)

    def start(self) -> None:
        """Serve callers from now on."""
        self._thread.start()

    def status(self) -> dict[str, int]:
        """Return the numbers of connections: served, and unproved; since the start, those that failed to prove
        themselves, and those evicted to make room for newer ones.
        """
        return {"served": len(self._served), "unproved": len(self._unproved), **self._counts}

    def served(self) -> list[Connection]:
        """Return the connections that are served now."""
        with self._mutex:
            return list(self._served)

    def wake(self) -> None:
        with self._mutex:
            wakes = [wake for _, wake in self._served.values()]
        for wake in wakes:
            wake()

    def cut(self) -> None:
        """End all connections that are served now. A peer that connects again is served again."""
        for each in self.served():
            each.stream.cut()

    def close(self) -> None:
        """Stop listening, and wait until all serving threads have ended."""
        with self._mutex:
            self.is_closed = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        self._selector.close()
        self._wake.close()
        self._socket.close()
        with self._mutex:
            served = list(self._served.values())
        for _, wake in served:
            wake()
        for thread, _ in served:
            thread.join()

    # --- in the admission thread ------------------------------------------------------------------
    def _admit(self) -> None:
        try:
            while not self.is_closed:
                try:
                    self._turn()
                except Exception as error:  # of the system, or a defect of this server, not of one connection
                    is_ours = not isinstance(error, (OSError, MemoryError))
                    self._limited.warning(f"{self._called}: {error!r}; continuing", error if is_ours else None)
                    self._make_room(PAUSE_SECONDS)
        finally:
            for each in list(self._unproved.values()):
                self._leave(each)
                each.stream.close()
            self._limited.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._rest_s()):
            if key.fileobj is self._socket:
                self._accept()
            elif key.fd == self._wake.descriptor:
                self._wake.clear()
            elif key.fd in self._unproved:  # it may have been evicted in this turn
                self._advance(self._unproved[key.fd])
        now = self._clock.monotonic()
        while (oldest := next(iter(self._unproved.values()), None)) is not None and oldest.deadline <= now:
            self._drop(oldest, PeerTimeout(f"the handshake took more than {HANDSHAKE_SECONDS:.0f} s; connect again"))
        if self._accepts_at is not None and now >= self._accepts_at:
            self._accepts_at = None
            self._selector.register(self._socket, selectors.EVENT_READ)

    def _rest_s(self) -> float | None:
        """Return the seconds until the next deadline, None without one."""
        oldest = next(iter(self._unproved.values()), None)
        due = [each for each in (None if oldest is None else oldest.deadline, self._accepts_at) if each is not None]
        return max(0.0, min(due) - self._clock.monotonic()) if due else None

    def _accept(self) -> None:
        for _ in range(ACCEPTED_IN_TURN_MAX):
            try:
                connection, where = self._socket.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # the connection was aborted in the backlog
            except OSError as error:
                if not readable(0, self._socket.fileno()):
                    return  # no connection waits: without a free descriptor, accept fails before it looks for one
                self._limited.warning(f"{self._called} cannot take a connection: {error}")
                if not self._make_room():
                    self._pause()
                return
            self._receive(connection, where)

    def _receive(self, connection: socket.socket, where: Any) -> None:
        """Give a new connection a place among the unproved ones."""
        address = _address(where)
        of_address = [each for each in self._unproved.values() if each.address == address]
        if len(of_address) >= UNPROVED_OF_ADDRESS_MAX:
            self._evict(_connection_to_evict(of_address))
        elif len(self._unproved) >= UNPROVED_MAX:
            self._make_room()
        new = None
        is_in = False
        try:
            new = self._meet(connection, where)
            new.deadline = self._clock.monotonic() + HANDSHAKE_SECONDS
            connection.setblocking(False)  # a Stream sets a timeout
            new.begin(self._reservation(new))
            self._unproved[new.stream.connection.fileno()] = new
            # Register last: a connection closed while registered would block its descriptor number for later ones.
            self._selector.register(new.stream.connection, selectors.EVENT_READ, new)
            is_in = True
        except (PeerError, OSError, MemoryError) as error:
            self._limited.warning(f"{self._caller} at {where}: {error!r}")
        finally:
            if not is_in:
                refused = connection if new is None else new.stream.connection
                self._unproved.pop(refused.fileno(), None)
                refused.close()

    def _advance(self, one: Connection) -> None:
        events = selectors.EVENT_READ
        try:
            is_done = one.advance()
        except ssl.SSLWantWriteError:
            is_done, events = False, selectors.EVENT_WRITE
        except PeerError as error:
            self._drop(one, error)
            return
        except Exception as error:  # whatever a stranger sent, the port stays open
            self._drop(one, PeerError(f"the link broke ({error!r})"))
            return
        if is_done:
            self._hand_over(one)
        elif self._selector.get_key(one.stream.connection).events != events:
            self._selector.modify(one.stream.connection, events, one)

    def _reservation(self, one: Connection) -> Callable[[], None]:
        return lambda: self._reserve(one)

    def _reserve(self, one: Connection) -> None:
        """Reserve a place for a connection that has proved itself. Raises: PeerError if there is none."""
        with self._mutex:
            if len(self._served) >= self._served_max:
                raise PeerError(f"{self._served_max} {self._caller}s are served already; connect again later")
        try:
            one.wake = self._wake_of(one)
        except OSError as error:
            raise PeerError(f"the {self._called} is out of descriptors ({error}); connect again later") from error

    def _wake_of(self, one: Connection) -> Wake:
        """Create the `Wake` of a peer; evict an unproved connection if no descriptor is free. Raises: OSError."""
        try:
            return Wake()
        except OSError:
            other = next((each for each in self._unproved.values() if each is not one), None)
            if other is None:
                raise
            self._evict(other)
            return Wake()

    def _hand_over(self, one: Connection) -> None:
        """Start the thread that serves a connection after its handshake."""
        assert one.wake is not None
        self._leave(one)
        one.stream.connection.settimeout(SEND_SECONDS)
        thread = threading.Thread(
            target=self._guarded, args=(one, one.wake), name=f"tidemark-{self._caller}", daemon=True
        )
        with self._mutex:
            self._served[one] = (thread, one.wake)
        try:
            thread.start()
        except RuntimeError as error:  # the system is out of threads
            with self._mutex:
                del self._served[one]
            self._limited.warning(f"{self._caller} at {one.where} cannot be served: {error}")
            one.stream.close()
            one.wake.close()

    def _drop(self, one: Connection, error: PeerError) -> None:
        """Send the error, if that is possible without waiting, and close the connection."""
        self._leave(one)
        self._counts["failed"] += 1
        self._limited.warning(f"{self._caller} at {one.where}: {error.message}")
        try:
            if one.is_secure:
                one.send_at_once(one.refusal(error))
        except (PeerError, OSError) as silent:
            _log.debug("last word not heard: %s", silent)
        if one.wake is not None:
            one.wake.close()
        one.stream.close()

    def _evict(self, one: Connection) -> None:
        self._leave(one)
        self._counts["evicted"] += 1
        self._limited.warning(
            f"{self._caller} at {one.where}: disconnected before it proved that it knows the secret, to make room for"
            " others"
        )
        one.stream.close()

    def _make_room(self, pause_s: float = 0.0) -> bool:
        """Evict an unproved connection of the address that has the most; return False if there is none."""
        addresses: dict[str, list[Connection]] = {}
        for each in self._unproved.values():
            addresses.setdefault(each.address, []).append(each)
        if addresses:
            self._evict(_connection_to_evict(max(addresses.values(), key=len)))
        if pause_s:
            self._pause()
        return bool(addresses)

    def _pause(self) -> None:
        """Leave new connections in the backlog for a while."""
        if self._accepts_at is None:
            self._selector.unregister(self._socket)
            self._accepts_at = self._clock.monotonic() + PAUSE_SECONDS

    def _leave(self, one: Connection) -> None:
        descriptor = one.stream.connection.fileno()
        self._selector.unregister(one.stream.connection)
        del self._unproved[descriptor]

    # --- in the thread of a peer ------------------------------------------------------------------
    def _guarded(self, one: Connection, wake: Wake) -> None:
        try:
            one.serve(wake)
        except PeerError as error:
            said, _, _ = error.message.partition(";")  # the rest is advice for the other side
            _log.warning("%s at %s:%d: %s", self._caller, *one.where[:2], said)
        except OSError as error:  # of a file that `serve` reads for the peer
            _log.warning("%s at %s:%d: %r", self._caller, *one.where[:2], error)
        finally:
            with self._mutex:
                self._served.pop(one, None)
            one.stream.close()
            wake.close()


def _connection_to_evict(connections: list[Connection]) -> Connection:
    """Return the connection to evict: one that has not greeted, as a peer does with its first bytes, or else the
    oldest. connections: oldest first.
    """
    return next((each for each in connections if not each.has_greeted), connections[0])


def _address(where: Any) -> str:
    """Return the key of a quota: an IPv4 address, or the /64 network of an IPv6 address, which one host may own."""
    address = ipaddress.ip_address(where[0].partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)
