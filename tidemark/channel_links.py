"""What a channel is given as its source: an open store, or an address with what it takes to be let in."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import SchemaInvalid
from replication.endpoint import Endpoint, check_source
from replication.protocol.handshake import check_secret
from replication.wire import TlsContext
from tidemark.database import Database

Source = Database | str | tuple[str, int]


def parse_address(text: str | tuple[str, int]) -> tuple[str, int]:
    """(host, port) out of "host:port" or "[::1]:port". Raises: SchemaInvalid."""
    host, port = text if isinstance(text, tuple) else text.rpartition(":")[::2]
    number = int(port) if isinstance(port, int) or (isinstance(port, str) and port.isascii() and port.isdigit()) else -1
    host = host.removeprefix("[").removesuffix("]") if isinstance(host, str) else ""
    if not host or not 0 <= number < 1 << 16:
        raise SchemaInvalid(f"an address is host:port, got {text!r}")
    return host, number


@dataclass(frozen=True)
class Link:
    """Where a source is: an open store, or an address with what it takes to be let in."""

    store: Endpoint | None
    address: tuple[str, int] | None
    secret: bytes = b""
    tls: TlsContext | None = None

    @property
    def shown(self) -> str:
        """For people."""
        return "this process" if self.address is None else f"{self.address[0]}:{self.address[1]}"


def link_to(own: Endpoint, source: Source, secret: bytes | None, tls: TlsContext | None) -> Link:
    """Raises: SchemaInvalid for what is no source, Rejected, PeerRefused for one in this process that cannot be."""
    if isinstance(source, Database):
        if secret is not None or tls is not None:
            raise SchemaInvalid("a source in the same process needs neither secret nor tls; leave them out")
        source.check_usable()
        check_source(own, source.endpoint)
        return Link(source.endpoint, None)
    if not isinstance(source, (str, tuple)):
        raise SchemaInvalid(f"a source is a Database or an address like host:port, got {type(source).__name__}")
    if secret is None:
        raise SchemaInvalid("a source at an address needs the secret it is served with; give secret=")
    check_secret(secret)
    return Link(None, parse_address(source), secret, tls)
