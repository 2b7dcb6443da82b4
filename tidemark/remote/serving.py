"""`tm.serve_calls`: offer an open store to clients of other processes, with threads of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.database import check_open
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.closable import Closable
from tidemark.remote.executor import Executor
from tidemark.replication.calls.conversation import CallServer
from tidemark.replication.wire.wire import TlsContext, check_secret_at, parse_address

if TYPE_CHECKING:
    from tidemark.database import Database
    from tidemark.engine.base.errors import Error


class Alone:
    """The gate of a store outside a group: every call is allowed."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.address: tuple[str, int] = ("", 0)

    def database(self) -> Database:
        return self._db

    def reading(self) -> int:
        """Every read is allowed."""
        return 0

    def shown(self, token: int, epoch: int) -> None:
        """Every row may be shown when it is as durable as its commit promises."""
        self._db.parts.store.resources.secure_reads(epoch)

    def writing(self) -> None:
        """Every change is allowed."""

    def failed(self, error: Error) -> None:
        """Do nothing: no other process knows the outcome."""

    def where(self) -> dict[str, Any]:
        """Return one node, which is the primary."""
        return {"view": 0, "primary": self.address, "members": [self.address]}


class CallServing(Closable):
    """A store that is offered to clients. Use it with `with`, or close it before the store.

    `address` is where it listens, (host, port); `name` is the same as text. Its calls raise nothing.
    """

    def __init__(self, db: Database, address: tuple[str, int], secret: bytes, tls: TlsContext | None) -> None:
        check_open(db)
        gate = Alone(db)
        uuid = db.status()["store"]["uuid"]
        self._server = CallServer(
            address, uuid, secret, tls, SystemClock(), lambda: Executor(gate), lambda name: db[name].definition
        )
        self.address = gate.address = self._server.address
        self.name = f"{self.address[0]}:{self.address[1]}"

    def __repr__(self) -> str:
        return f"<tidemark calls served at {self.name}>"

    def status(self) -> dict[str, Any]:
        """Return the address, and counts of connections: served, not authenticated yet, failed and evicted since the
        start.

        Examples:
            >>> with tm.serve_calls(db, "127.0.0.1:0", b"sixteen bytes or more") as serving:
            ...     serving.status()
            {'address': '127.0.0.1:...', 'connections': {'served': 0, 'unproved': 0, 'failed': 0, 'evicted': 0}}
        """
        return {"address": self.name, "connections": self._server.connections()}

    def close(self) -> None:
        """End all links: calls under way complete, open transactions are rolled back. A second call does nothing.

        Examples:
            >>> serving = tm.serve_calls(db, "127.0.0.1:0", b"sixteen bytes or more")
            >>> serving.close()
        """
        self._server.close()


def serve_calls(
    db: Database, address: str | tuple[str, int], secret: bytes, tls: TlsContext | None = None
) -> CallServing:
    """Offer an open store to clients of other processes (`tm.connect`), until the result is closed.

    Args:
        address: Where to listen, "host:port"; port 0 takes a free one, which `address` of the result has.
        secret: 16 bytes or more, which clients must know. It is not sent.
        tls: A server's context. Without TLS any host on the path can read the calls, though none can alter them.

    Raises:
        PeerError: The address is taken.
        SchemaInvalid: `db` is not an open store, the address is invalid, or the secret is too weak for it.
        StoreFailed: The store is closed or has failed.

    Examples:
        >>> secret = b"sixteen bytes or more"
        >>> with tm.serve_calls(db, "127.0.0.1:0", secret) as serving, tm.connect([serving.address], secret) as remote:
        ...     remote["item"][2]
        Row(id=2, name='cup', stock=5)
    """
    place = parse_address(address)
    check_secret_at(place, secret, tls)
    return CallServing(db, place, secret, tls)
