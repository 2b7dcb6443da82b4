"""What a channel is given as its source: an open store, or an address with what it takes to be let in."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import SchemaInvalid
from replication.endpoint import Endpoint, check_source
from replication.protocol.handshake import check_secret
from replication.wire import TlsContext, parse_address
from tidemark.database import Database

Source = Database | str | tuple[str, int]


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
