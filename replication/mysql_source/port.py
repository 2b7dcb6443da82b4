"""The MySQL port: listens, lets clients log in, and serves each in a thread of its own.

Invariants: (O1) A client that has not proved to be a user costs what a stranger costs at any port
(`wire/admission.py`). (O2) A client that takes nothing for `net_write_timeout`, or stops in the middle of a message for
`net_read_timeout`, is cut. (O3) Nothing that a client does or leaves undone reaches the store's commits, and after
`close` its thread ends at its next wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import PeerError, PeerTimeout, SchemaInvalid
from tidemark.replication.binlog.charsets import LATIN1, is_latin1
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.conversation import Conversation
from tidemark.replication.mysql_source.login import Login, State
from tidemark.replication.mysql_source.login import Port as Logins
from tidemark.replication.mysql_source.packets import Buffer, Refused, printable
from tidemark.replication.mysql_source.session import Session
from tidemark.replication.mysql_source.users import MysqlUser, by_name, nonce_of
from tidemark.replication.wire.admission import Admission, Connection
from tidemark.replication.wire.wire import (
    Stream,
    TlsContext,
    Wake,
    has_sound_tls,
    is_this_host,
    wait_ready,
)

if TYPE_CHECKING:
    import socket

    from tidemark.replication.mysql_source.dump import Dump, DumpAsked
    from tidemark.replication.mysql_source.flavors import Flavor
    from tidemark.replication.mysql_source.served import Served

_log = logging.getLogger("tidemark.replication")

CLIENTS_MAX = 64
SENT_AT_ONCE_BYTES = 64 << 10
_STRANGER_BYTES = 32
_NUMBER_MAX = (1 << 32) - 1


class _Client(Connection):
    """One client: its login in the admission thread, then its conversation in a thread of its own."""

    login: Login

    def __init__(self, port: MysqlPort, connection: socket.socket, where: Any) -> None:
        super().__init__(connection, where)
        self._port = port
        self.stream = Stream(connection)
        self.number = 0
        self.talk: Conversation | None = None  # set once the client is admitted
        self._untaken_s = 0.0  # what the system was told of it
        self._welcome = b""
        self._is_over = False
        self._broken: PeerError | None = None  # what has ended a dump while it waited

    # --- the login --------------------------------------------------------------------------------
    def begin(self, reserve: Callable[[], None]) -> None:
        port = self._port
        self.number = port.next_number()

        def admit(user: MysqlUser, database: bytes) -> None:
            session = self._session(user)
            if is_latin1(self.login.collation):
                session.name_charset(LATIN1)
            if database:
                session.use(database.decode("utf-8", "replace"))
            try:
                reserve()
            except PeerError as error:
                raise Refused(p.ER_TOO_MANY_CONNECTIONS, f"Too many connections: {error.message}") from error
            self.talk = Conversation(session, self._begin_dump)

        nonce = nonce_of(port.clock.random_bytes(p.NONCE_BYTES))
        self.login = Login(port.logins, self.number, nonce, self.where[0], admit)
        self.send_at_once(self.login.greeting)

    def _session(self, user: MysqlUser) -> Session:
        return Session(
            flavor=self._port.logins.flavor,
            user=user,
            host=self.where[0],
            connection_id=self.number,
            served=self._port.served_store,
            kill=lambda number: self._port.kill(user, number),
            tls=self.stream.tls(),
            shows_status=self._port.shows_status,
        )

    def _begin_dump(self, asked: DumpAsked) -> Dump:
        assert self.wake is not None
        return self._port.begin_dump(asked, self._wait_in_dump, self.wake)

    @property
    def has_greeted(self) -> bool:
        return self.login.state is not State.GREETED

    @property
    def wanted(self) -> int:
        return self.login.reader.wanted

    def take(self, data: bytes) -> bool:
        answer = self.login.receive(data)
        if self.login.state is State.TLS:
            assert self._port.tls is not None
            self.begin_tls(self._port.tls)
        elif self.login.is_done:
            self._welcome = answer
        else:
            self.send_at_once(answer)
        return self.login.is_done

    def secured(self) -> None:
        self.login.secured()

    def refusal(self, error: PeerError) -> bytes:
        return self.login.refusal(error) if isinstance(error, Refused) else b""

    # --- the conversation -------------------------------------------------------------------------
    def cut(self) -> None:
        """End the connection, from any thread."""
        self._is_over = True
        self.stream.cut()

    def serve(self, wake: Wake) -> None:
        talk = self.talk
        assert talk is not None
        self.stream.wait_long()
        self.stream.send_at_once()
        self.stream.connection.settimeout(0.0)
        try:
            self._send(self._welcome)
            while not talk.is_over:
                for piece in talk.receive(self._received(talk)):
                    self._send(piece)
            if talk.dump is not None:
                self._serve_dump(talk, talk.dump)
        except _Gone as gone:
            _log.debug("MySQL client %d at %s: %s", self.number, self.where, gone.message)
            return
        finally:
            talk.close()
        self.stream.finish(self._port.clock)

    def _check(self) -> None:
        """Raises: _Gone if this side ends the connection."""
        if self._is_over or self._port.is_closed:
            raise _Gone("the connection was ended here")

    def _received(self, talk: Conversation) -> bytes:
        """Wait for bytes of a command, and return them. Raises: PeerError."""
        name = "net_read_timeout" if talk.is_in_message else "wait_timeout"
        until = self._port.clock.monotonic() + talk.seconds(name)
        while True:
            self._check()
            if data := self._read(talk):
                return data
            self._wait(until, "sent", reads=True)

    def _read(self, talk: Conversation) -> bytes:
        """Return the bytes that have arrived. Raises: PeerError."""
        try:
            return self.stream.receive_ready()
        except PeerError as error:
            if talk.is_in_message:
                raise
            raise _Gone("it has left") from error

    def _send(self, data: Buffer) -> None:
        """Send all bytes; during a dump, take what the client says meanwhile. Raises: PeerError."""
        rest, clock, talk = memoryview(data), self._port.clock, self.talk
        assert talk is not None
        untaken_s = talk.seconds("net_write_timeout")
        if untaken_s != self._untaken_s:
            self._untaken_s = untaken_s
            self.stream.wait_untaken(int(1_000 * untaken_s))
        until = clock.monotonic() + untaken_s
        while len(rest):
            self._check()
            if sent := self.stream.send_ready(rest[:SENT_AT_ONCE_BYTES]):
                rest, until = rest[sent:], clock.monotonic() + untaken_s
            else:
                self._wait(until, "took", reads=talk.dump is not None, writes=True)
                self._hear(talk)

    def _wait(self, until: float, what: str, reads: bool = False, writes: bool = False) -> None:
        """Wait until bytes have arrived or can be sent, or for a wake-up. Raises: PeerTimeout after `until`."""
        rest_s = until - self._port.clock.monotonic()
        if rest_s <= 0:
            raise PeerTimeout(f"a MySQL client {what} nothing for too long; it may connect again")
        assert self.wake is not None
        wait_ready(self.stream, self.wake, rest_s, reads, writes)

    # --- a dump -----------------------------------------------------------------------------------
    def _serve_dump(self, talk: Conversation, dump: Dump) -> None:
        """Send a dump until it ends. Raises: PeerError."""
        try:
            for piece in talk.pieces(dump.messages()):
                self._send(piece)
                self._hear(talk)
            if self._broken is not None:
                raise self._broken
        except Refused as refused:  # replicas and tools read why
            self._send(talk.rest() + talk.refusal(refused))
            _log.warning(
                "the dump of MySQL client %d at %s:%d ended: %s",
                self.number,
                *self.where[:2],
                printable(refused.message),
            )
        else:
            self._send(talk.rest() + talk.end_of_dump())

    def _wait_in_dump(self, seconds: float | None) -> None:
        """Wait, in the middle of a dump's messages, until the client says something, for a wake-up, or for `seconds`.
        What breaks is raised after them.
        """
        talk = self.talk
        assert talk is not None and talk.dump is not None and self.wake is not None
        try:
            self._send(talk.rest())
            self._check()
            self._hear(talk)
            if wait_ready(self.stream, self.wake, seconds, reads=True, writes=False):
                self._check()
                self._hear(talk)
        except PeerError as error:
            self._broken = error
            talk.dump.stop()

    def _hear(self, talk: Conversation) -> None:
        """Take what the client has said during its dump. Raises: PeerError."""
        while talk.dump is not None and (data := self._read(talk)):
            for message in talk.heard(data):
                if message == bytes((p.COM_QUIT,)):
                    raise _Gone("it has quit")
                talk.dump.acknowledge(message)


class _Gone(PeerError):
    """The client has left between two commands, or the port ends the connection: nothing to report."""


class MysqlPort(Admission):
    """Listens, and serves every client that proves to be a user, until `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        users: Iterable[MysqlUser],
        flavor: Flavor,
        tls: TlsContext | None,
        clock: Clock,
        served: Served,
        begin_dump: Callable[[DumpAsked, Callable[[float | None], None], Callable[[], None]], Dump],
        shows_status: bool = False,
    ) -> None:
        """Bind the address; connections wait in the backlog until `start`. begin_dump: makes a `Dump`, from what is
        asked and its `wait` and `woken`. shows_status: see `Session`. Raises: PeerError if the address is taken,
        SchemaInvalid.
        """
        needs_tls = not is_this_host(address[0])
        if needs_tls and tls is None:
            raise SchemaInvalid(
                f"a MySQL port at {address[0]} needs tls: without it every host on the path reads all rows; give"
                ' tls=tm.server_tls(certificate, key, version_min="1.2"), or listen at 127.0.0.1'
            )
        if tls is not None and not has_sound_tls(tls):
            raise SchemaInvalid("the TLS context of a MySQL port allows versions before 1.2; raise its minimum_version")
        self.logins = Logins(
            flavor, by_name(users), clock.random_bytes(_STRANGER_BYTES), has_tls=tls is not None, needs_tls=needs_tls
        )
        self.tls = tls
        self.clock = clock
        self.served_store = served
        self.begin_dump = begin_dump
        self.shows_status = shows_status
        self._number = 0  # of the newest connection; used by the admission thread alone
        super().__init__(
            address,
            "MySQL client",
            f"MySQL port of flavor {flavor.name}",
            clock,
            lambda connection, where: _Client(self, connection, where),
            CLIENTS_MAX,
        )

    def next_number(self) -> int:
        """Return the number of a new connection."""
        self._number = self._number % _NUMBER_MAX + 1
        return self._number

    def clients(self) -> list[_Client]:
        """Return the clients that are served now."""
        return [each for each in self.served() if isinstance(each, _Client)]

    def dumps(self) -> list[dict[str, Any]]:
        """Return what is known of the clients that follow the binlog."""
        found = []
        for each in self.clients():
            dump = None if each.talk is None else each.talk.dump
            if dump is not None and each.talk is not None:
                found.append(
                    {
                        "address": "{}:{}".format(*each.where[:2]),
                        "user": each.talk.session.user.name,
                        "server_id": dump.asked.server_id,
                        "file": dump.at.file,
                        "position": dump.at.position,
                        "semi_sync": dump.asked.is_semi_sync,
                    }
                )
        return found

    def kill(self, user: MysqlUser, number: int) -> bool:
        """End the connection of this number if it is one of the user; return whether it is."""
        for each in self.clients():
            if each.number == number and each.login.user is not None and each.login.user.name == user.name:
                each.cut()
                return True
        return False
