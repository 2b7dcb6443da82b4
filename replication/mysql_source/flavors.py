"""How a server of each kind greets: no greeting suits both. MariaDB's mysqlbinlog refuses version 8. MariaDB replicas
use GTIDs only with MariaDB and have no caching_sha2_password. MySQL 9 has the native login only as a loadable plugin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.replication.mysql_source import protocol_layout as p

_CAPABILITIES = (
    p.LONG_PASSWORD
    | p.FOUND_ROWS
    | p.LONG_FLAG
    | p.CONNECT_WITH_DB
    | p.PROTOCOL_41
    | p.TRANSACTIONS
    | p.SECURE_CONNECTION
    | p.PLUGIN_AUTH
    | p.CONNECT_ATTRIBUTES
    | p.PLUGIN_AUTH_LENGTHS
)


@dataclass(frozen=True)
class Flavor:
    """A kind of server: its version, and the plugin by which users prove themselves."""

    name: str
    version: str
    plugin: str

    def greeting(self, connection_id: int, nonce: bytes, has_tls: bool) -> bytes:
        """Return the first message of a connection."""
        offered = _CAPABILITIES | (p.SSL if has_tls else 0)
        return b"".join(
            (
                bytes((p.PROTOCOL_VERSION,)),
                self.version.encode() + b"\0",
                connection_id.to_bytes(4, "little"),
                nonce[:8] + b"\0",
                (offered & 0xFFFF).to_bytes(2, "little"),
                bytes((p.CHARSET_UTF8MB4,)),
                p.STATUS_AUTOCOMMIT.to_bytes(2, "little"),
                (offered >> 16).to_bytes(2, "little"),
                bytes((p.NONCE_BYTES + 1,)),
                bytes(10),
                nonce[8:] + b"\0",
                self.plugin.encode() + b"\0",
            )
        )


MYSQL: Final = Flavor("mysql", "8.0.36-tidemark", p.CACHING_SHA2)
MARIADB: Final = Flavor("mariadb", "10.11.6-MariaDB-tidemark", p.NATIVE)
FLAVORS: Final = {each.name: each for each in (MYSQL, MARIADB)}


def flavor_of(name: object) -> Flavor:
    """Return the flavor of this name. Raises: SchemaInvalid."""
    if not isinstance(name, str) or name not in FLAVORS:
        raise SchemaInvalid(f"the flavor must be {' or '.join(map(repr, FLAVORS))}, got {name!r}")
    return FLAVORS[name]
