"""`tm.serve`: offer the binlog of an open store to replicas over the network, with threads of this process."""

from __future__ import annotations

import logging
import threading
from typing import Any

from tidemark.database import Database, check_open
from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import NotPrimary, Retryable, SchemaInvalid
from tidemark.replication.channel.receiver import Worker
from tidemark.replication.wire.link import LinkOptions, Listener
from tidemark.replication.wire.messages import HEARTBEAT_MS_MAX
from tidemark.replication.wire.wire import TlsContext, check_secret_at, parse_address

_log = logging.getLogger("tidemark.replication")


class Serving(Closable):
    """A store that is being served. Use it with `with`, or close it; closing the store closes it too.

    `address` is where it listens, (host, port); `name` is the same as text. Its calls raise nothing.
    """

    def __init__(
        self, db: Database, address: tuple[str, int], secret: bytes, tls: TlsContext | None, heartbeat_row_ms: int
    ) -> None:
        """See `serve`."""
        check_open(db)
        endpoint = db.endpoint
        self._endpoint = endpoint
        self._log = endpoint.log()
        link = LinkOptions(endpoint.site, secret, tls)
        self._listener = Listener(address, link, endpoint.source_binlog, endpoint.clock, endpoint.reach.note_report)
        self.address = self._listener.address
        self.name = f"{self.address[0]}:{self.address[1]}"
        self._has_tls = tls is not None
        self._log.on_written.append(self._listener.notify)
        endpoint.add_serving(self)
        self._pause_s = heartbeat_row_ms / 1_000
        self._heartbeat = Worker("tidemark-heartbeat", self._beat)
        if heartbeat_row_ms:
            self._heartbeat.start()

    def __repr__(self) -> str:
        return f"<tidemark binlog served at {self.name}>"

    def _beat(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            try:
                self._endpoint.beat()
            except NotPrimary:
                pass  # in a group, the primary writes it
            except Retryable as error:
                _log.warning("no heartbeat row: %s", error.message)
            stopped.wait(self._pause_s)

    source_id = 0
    is_applying = False

    def close(self) -> None:
        """Say goodbye to every replica and stop listening. A second call does nothing.

        Examples:
            >>> serving = tm.serve(db, "127.0.0.1:0", b"sixteen bytes or more")
            >>> serving.close()
        """
        self._heartbeat.stop()
        if self._listener.notify in self._log.on_written:
            self._log.on_written.remove(self._listener.notify)
            self._listener.close()
            self._endpoint.remove(self)

    def status(self) -> dict[str, Any]:
        """Return the address, the connected replicas, and counts of connections: served, not authenticated yet, failed
        and evicted since the start.

        Examples:
            >>> with tm.serve(db, "127.0.0.1:0", b"sixteen bytes or more") as serving:
            ...     serving.status()
            {'address': '127.0.0.1:...', 'tls': False, 'replicas': [], 'connections': {'served': 0, ...}}
        """
        return {
            "address": self.name,
            "tls": self._has_tls,
            "replicas": [each.status() for each in self._listener.sessions()],
            "connections": self._listener.connections(),
        }


def serve(
    db: Database,
    address: str | tuple[str, int],
    secret: bytes,
    tls: TlsContext | None = None,
    heartbeat_row_ms: int = 0,
) -> Serving:
    """Offer the binlog of an open store to replicas, until the result or the store is closed.

    Args:
        address: Where to listen, "host:port"; port 0 takes a free one, which `Serving.address` has.
        secret: 16 bytes or more, which replicas must know. It is not sent.
        tls: A server's context. Without TLS any host on the path can read the changes, though none can alter them.
        heartbeat_row_ms: How often to write a row of `tidemark.heartbeat`, which replicas get like any other; 0: never.
            At a replica its age is in `status()["replication"]["heartbeat_seconds"]`.

    Raises:
        Rejected: The server id is 0, or the store has no binlog.
        SchemaInvalid: An argument is invalid, or the secret is too weak for the address.
        PeerError: The address is taken.
        StoreFailed: The store is closed or has failed.

    Examples:
        `db` has a server id and a binlog, `replica` is an empty store with server id 2.

        >>> secret = b"sixteen bytes or more"
        >>> with (
        ...     tm.serve(db, "127.0.0.1:0", secret) as serving,
        ...     tm.Channel(serving.address, replica, secret=secret, skip_start=False),
        ... ):
        ...     db.wait_applied(db.sync(), timeout_ms=60_000, at=[2])
        ...     len(replica["item"])
        3
    """
    place = parse_address(address)
    check_secret_at(place, secret, tls)
    if not 0 <= heartbeat_row_ms <= HEARTBEAT_MS_MAX:
        raise SchemaInvalid(f"heartbeat_row_ms is {heartbeat_row_ms}; give 0 to {HEARTBEAT_MS_MAX:,}")
    return Serving(db, place, secret, tls, heartbeat_row_ms)
