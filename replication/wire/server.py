"""The called end of links: `Admission` for sides that prove with frames that they know the secret."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import PeerError
from tidemark.replication.wire.admission import Admission, Connection
from tidemark.replication.wire.frames import Frame
from tidemark.replication.wire.handshake import CalledHandshake, Party
from tidemark.replication.wire.wire import OpenLink, TlsContext, Wake, Wire, check_secret_at

CALLERS_MAX = 64


class _CalledLink(Connection):
    """A connection whose other side says hello and proves itself with frames."""

    handshake: CalledHandshake

    def __init__(self, server: Server, connection: socket.socket, where: Any) -> None:
        super().__init__(connection, where)
        self._server = server
        self.stream = self.wire = Wire(connection)
        self._welcome = b""
        self._early: list[Frame] = []  # frames that arrived after the proof

    def begin(self, reserve: Callable[[], None]) -> None:
        server = self._server
        if server.tls is not None:
            self.begin_tls(server.tls)
        self.handshake = CalledHandshake(
            server.own, server.secret, server.clock.random_bytes(32), self.wire.reader, self.wire.writer, reserve
        )

    @property
    def has_greeted(self) -> bool:
        return self.handshake.is_begun

    def take(self, data: bytes) -> bool:
        frames = self.wire.reader.feed(data)
        for frame in frames:
            answer = self.handshake.receive(frame)
            if self.handshake.is_done:
                self._welcome, self._early = answer, list(frames)
                return True
            self.send_at_once(answer)
        return False

    def refusal(self, error: PeerError) -> bytes:
        return self.handshake.refusal(error)

    def serve(self, wake: Wake) -> None:
        opened = OpenLink(self.wire, self.handshake, self._early)
        self.wire.send(self._welcome)
        self._server.serve(opened, wake)


class Server(Admission):
    """Listens, and serves every caller that knows the secret in a thread of its own, until `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        own: Party,
        secret: bytes,
        tls: TlsContext | None,
        clock: Clock,
        serve: Callable[[OpenLink, Wake], None],
        callers_max: int = CALLERS_MAX,
    ) -> None:
        """Bind the address; connections wait in the backlog until `start`. serve: serves one caller; returns when the
        caller ends the link or `is_closed` is set, after which its `Wake` is called. Raises: PeerError if the address
        is taken, SchemaInvalid for a weak secret.
        """
        check_secret_at(address, secret, tls)
        self.own = own  # the owner may replace it; later callers then get the new one
        self.secret = secret
        self.tls = tls
        self.clock = clock
        self.serve = serve
        super().__init__(
            address,
            own.caller,
            own.called,
            clock,
            lambda connection, where: _CalledLink(self, connection, where),
            callers_max,
        )
