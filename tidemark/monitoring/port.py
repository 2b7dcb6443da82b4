"""`tm.serve_metrics`: metrics over HTTP, for Prometheus.

One request per connection, `GET /metrics`, or `GET /` for a link to it; nothing can be changed through it.
`request_port.py` limits what clients may do. It asks for no secret: docs/security.md says what a stranger learns.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any

from tidemark.database import check_open
from tidemark.engine.base.clock import Clock
from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import Error, PeerError
from tidemark.monitoring.metrics import HasStatus, library, metrics
from tidemark.replication.wire.wire import is_this_host, parse_address
from tidemark.request_port import RequestPort

if TYPE_CHECKING:
    from tidemark.database import Database

_log = logging.getLogger("tidemark")

PATH = b"/metrics"
HOME = b"/"
LINK = '<!DOCTYPE html><html lang="en"><title>Tidemark</title><a href="/metrics">Metrics of this store</a></html>\n'
ANSWERS_MAX = 2  # at once: each reads the whole status


class MetricsServing(RequestPort, Closable):
    """Metrics that are being served. Use it with `with`, or close it, before the store is closed.

    `address` is where it listens, (host, port); `name` is the same as text.
    """

    what = "metrics"
    unit = "request"
    answers_max = ANSWERS_MAX

    def __init__(self, db: HasStatus, address: tuple[str, int], clock: Clock) -> None:
        """See `serve_metrics`."""
        self._content_type = library().CONTENT_TYPE_LATEST
        self._db = db

        def listen(listener: socket.socket) -> None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
            host, port = listener.getsockname()[:2]
            self.address: tuple[str, int] = (host, port)
            self.name = f"{host}:{port}"

        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            super().__init__(socket.socket(family), listen, clock)
        except OSError as error:
            raise PeerError(f"cannot listen at {address[0]}:{address[1]}: {error}; choose another port") from error
        if not is_this_host(address[0]):
            _log.warning("metrics at %s: every host that reaches this port reads names of tables and counts", self.name)

    def __repr__(self) -> str:
        return f"<tidemark metrics at {self.name}>"

    def _take(self, received: bytearray) -> bytes | None:
        head, end, _ = bytes(received).partition(b"\r\n\r\n")
        return head if end else None

    def _may_ask_again(self) -> bool:
        return False

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
        target, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return _response("400 Bad Request", "this port speaks HTTP/1.1\n")
        path = target.partition(b"?")[0]
        if path not in (PATH, HOME):
            return _response("404 Not Found", "there is only /metrics here\n")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "only GET is allowed here\n", more="Allow: GET, HEAD\r\n")
        if path == HOME:
            return _response("200 OK", LINK, "text/html; charset=utf-8", has_body=method == b"GET")
        try:
            text = metrics(self._db)
        except Error as error:
            return _response("503 Service Unavailable", f"{type(error).__name__}: {error.message}\n")
        return _response("200 OK", text, self._content_type, has_body=method == b"GET")

    def _refusal(self, text: str) -> bytes:
        return _response("503 Service Unavailable", text + "\n", more="Retry-After: 1\r\n")


class _Counts:
    """The status of a store for other processes."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def status(self) -> dict[str, Any]:
        found = self._db.status()
        self._db.parts.store.resources.secure_counts()
        return found


def _response(
    status: str, body: str, content_type: str = "text/plain; charset=utf-8", more: str = "", has_body: bool = True
) -> bytes:
    content = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(content)}\r\n{more}"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (content if has_body else b"")


def serve_metrics(db: Database, address: str | tuple[str, int]) -> MetricsServing:
    """Serve the metrics of an open store over HTTP, at `/metrics`, until the result is closed.

    Args:
        address: Where to listen, "host:port"; port 0 takes a free one, which `address` of the result has. Every host
            that reaches it reads names of tables and counts; there is no secret.

    Raises:
        Unsupported: prometheus-client is not installed.
        SchemaInvalid: `db` is not an open store, or the address is invalid.
        PeerError: The address is taken.
        StoreFailed: The store is closed or has failed.

    Examples:
        >>> from urllib.request import urlopen
        >>> with tm.serve_metrics(db, "127.0.0.1:0") as serving:
        ...     text = urlopen(f"http://{serving.name}/metrics").read().decode()
        >>> "tidemark_open 1.0" in text
        True
    """
    check_open(db)
    return MetricsServing(_Counts(db), parse_address(address), db.parts.store.clock)
