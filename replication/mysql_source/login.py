"""The login of one connection as a state machine: greeted, (TLS), proof asked, in. An error ends it in every state.

Invariants: (L1) Nothing but `is_done` lets a statement in, and only a proof sets it. (L2) A client that must use TLS
and does not is refused before its proof is looked at. (L3) Known and unknown names get the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.flavors import Flavor
from tidemark.replication.mysql_source.packets import Fields, PacketReader, Refused, error, ok, packets, printable
from tidemark.replication.mysql_source.users import MysqlUser, is_proved

LOGIN_BYTES_MAX = 4 << 10  # of all messages together
_TLS_REQUEST_BYTES = 32


class State(Enum):
    """Where a login is."""

    GREETED = "greeted"
    TLS = "the TLS handshake comes next"
    SECURE = "TLS is up"
    PROOF = "a proof was asked for"
    DONE = "in"
    REFUSED = "refused"


@dataclass(frozen=True)
class Port:
    """What the logins of one port share. stranger: random bytes, which stand for the secret of an unknown name."""

    flavor: Flavor
    users: Mapping[bytes, MysqlUser]
    stranger: bytes
    has_tls: bool
    needs_tls: bool


class Login:
    """The login of one connection. One thread at a time may call it."""

    def __init__(
        self,
        port: Port,
        connection_id: int,
        nonce: bytes,
        host: str,
        admit: Callable[[MysqlUser, bytes], None] = lambda user, database: None,
    ) -> None:
        """host: of the client, for the text of a refusal. admit: called after a valid proof and before the answer to
        it, with the user and the database that the client wants, empty for none; raises Refused.
        """
        self._port = port
        self._nonce = nonce
        self._host = host
        self._admit = admit
        self._taken = 0
        self._name = b""
        self.state = State.GREETED
        self.user: MysqlUser | None = None  # set by the proof
        self.database = b""
        self.collation = 0  # of the client, whose character set it names; the low byte of its id
        self.reader = PacketReader(LOGIN_BYTES_MAX)
        self.greeting = self._send(port.flavor.greeting(connection_id, nonce, port.has_tls))

    @property
    def is_done(self) -> bool:
        return self.state is State.DONE

    def _send(self, message: bytes) -> bytes:
        sent = packets(message, self.reader.sequence)
        self.reader.sequence = self.reader.sequence + 1 & 0xFF
        return sent

    def receive(self, data: bytes) -> bytes:
        """Take bytes, at most `reader.wanted` of them; return the answer, empty if there is none yet. After a request
        for TLS (`State.TLS`) the caller makes the connection secure and calls `secured`. A client sends its first bytes
        of TLS right after the request, so none of them may be taken here.

        Raises: Refused; the caller sends `refusal` and ends the connection.
        """
        if self.state in (State.DONE, State.REFUSED, State.TLS):
            raise self._refused(p.ER_HANDSHAKE, "Bad handshake")
        try:
            self._taken += len(data)
            if self._taken > LOGIN_BYTES_MAX:
                raise Refused(p.ER_PACKET_TOO_LARGE, "Got a packet bigger than 'max_allowed_packet' bytes")
            self.reader.feed(data)
            message = self.reader.next()
            if message is None:
                return b""
            answer = self._answer(message)
            if self.state is not State.PROOF and not self.reader.is_empty:
                # After a request for TLS: what was sent in clear must not count as sent in TLS. Otherwise a client
                # that does not wait to be let in.
                raise Refused(p.ER_HANDSHAKE, "Bad handshake")
            return answer
        except Refused as refused:
            raise self._refused(refused.code, refused.message) from None

    def secured(self) -> None:
        """Note that the TLS handshake has ended."""
        self.state = State.SECURE

    def refusal(self, refused: Refused) -> bytes:
        """Return the last message of a connection."""
        return self._send(error(refused.code, refused.message))

    def _refused(self, code: tuple[int, str], text: str) -> Refused:
        self.state, self.user = State.REFUSED, None
        return Refused(code, text)

    # --- messages ---------------------------------------------------------------------------------
    def _answer(self, message: bytes) -> bytes:
        if self.state is State.PROOF:
            return self._judged(message)
        fields = Fields(message)
        offered = fields.integer(4)
        if not offered & p.PROTOCOL_41 or not offered & p.SECURE_CONNECTION:
            raise Refused(p.ER_HANDSHAKE, "Bad handshake")
        if self.state is State.GREETED and offered & p.SSL and len(message) == _TLS_REQUEST_BYTES:
            if not self._port.has_tls:
                raise Refused(p.ER_HANDSHAKE, "Bad handshake")
            self.state = State.TLS
            return b""
        if self.state is State.GREETED and self._port.needs_tls:
            raise Refused(
                p.ER_SECURE_TRANSPORT_REQUIRED,
                "Connections using insecure transport are prohibited while --require_secure_transport=ON.",
            )
        fields.take(4)  # the largest packet
        self.collation = fields.integer(1)
        fields.take(23)  # nothing
        self._name = fields.terminated()
        proof = fields.counted() if offered & p.PLUGIN_AUTH_LENGTHS else fields.take(fields.integer(1))
        if offered & p.CONNECT_WITH_DB:
            self.database = fields.terminated()
        plugin = fields.terminated() if offered & p.PLUGIN_AUTH and fields.left else b""
        own = self._port.flavor.plugin
        if plugin == own.encode() and proof:
            return self._judged(proof)
        self.state = State.PROOF
        return self._send(bytes((p.AUTH_SWITCH,)) + own.encode() + b"\0" + self._nonce + b"\0")

    def _judged(self, proof: bytes) -> bytes:
        port = self._port
        user = port.users.get(self._name)
        if not is_proved(port.flavor.plugin, user, port.stranger, self._nonce, proof):
            name = printable(self._name[:80].decode("utf-8", "replace"))
            used = "YES" if proof else "NO"
            raise Refused(
                p.ER_ACCESS_DENIED, f"Access denied for user '{name}'@'{self._host}' (using password: {used})"
            )
        assert user is not None
        self._admit(user, self.database)
        self.user, self.state = user, State.DONE
        fast = self._send(bytes((p.AUTH_MORE, p.FAST_AUTH_DONE))) if port.flavor.plugin == p.CACHING_SHA2 else b""
        return fast + self._send(ok())
