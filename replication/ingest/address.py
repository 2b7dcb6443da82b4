"""The address of a MySQL server, its TLS, and the filter for its tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.replication.settings.match import matches

SCHEME = "mysql"
PORT = 3306
# Where replication begins the first time: at the end of the binlog, or with a copy of the tables.
CURRENT, COPY = "current", "copy"
# A server's own databases, some of them virtual.
SERVER_DATABASES = frozenset(("mysql", "sys", "information_schema", "performance_schema"))


@dataclass(frozen=True)
class Tls:
    """TLS of the connection: PEM files of the authority, of the client's certificate and of its key, "" for none.

    With an authority the server's certificate is verified; with `verifies_name`, also that it belongs to the host.
    """

    authority: str = ""
    certificate: str = ""
    key: str = ""
    verifies_name: bool = True


@dataclass(frozen=True)
class Address:
    """A server: its host and port, or the `socket` file of a server on this machine. No TLS if `tls` is None."""

    host: str
    port: int = PORT
    user: str = "root"
    password: str = field(default="", repr=False)
    socket: str = ""
    tls: Tls | None = None

    @property
    def shown(self) -> str:
        """The address in messages, and the default name of a source."""
        return self.socket or f"{self.host}:{self.port}"


def parse_address(url: str, password: str = "", tls: Tls | None = None) -> Address:
    """Parse `mysql://user@host:port/` or `mysql://user@localhost/?socket=/path/of/socket`.

    Raises: SchemaInvalid; also for a password in the URL, because any user of the machine can see command lines.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or PORT
    except ValueError as error:
        raise SchemaInvalid(f"{error}; give mysql://user@host:port/") from None
    if parts.scheme != SCHEME or not parts.hostname:
        raise SchemaInvalid("the address of a MySQL server is mysql://user@host:port/")
    if parts.password is not None:
        raise SchemaInvalid("other users can see a password in a URL; give it in a file or in TIDEMARK_MYSQL_PASSWORD")
    if parts.path not in ("", "/"):
        raise SchemaInvalid(f"{parts.path!r} in the address has no meaning; choose databases with filters")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    socket = options.pop("socket", "")
    if options or parts.fragment:
        raise SchemaInvalid(f"{next(iter(options), parts.fragment)!r} in the address is unknown; only socket= is")
    return Address(parts.hostname, port, unquote(parts.username or "root"), password, socket, tls)


@dataclass(frozen=True)
class Filter:
    """The wanted tables: those that a pattern of `tables` matches (all if there is none) and none of `ignored`.

    Patterns are `database.table` with MySQL's wildcards `%` and `_`; letter case is ignored. A server's own
    databases are never wanted.
    """

    tables: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for pattern in (*self.tables, *self.ignored):
            database, dot, table = pattern.partition(".")
            if not (database and dot and table):
                raise SchemaInvalid(f"a filter is database.table with wildcards % and _, got {pattern!r}")

    def wants(self, table: str) -> bool:
        """Whether `database.table` is wanted."""
        if table.partition(".")[0].casefold() in SERVER_DATABASES:
            return False
        if self.tables and not _any(self.tables, table):
            return False
        return not _any(self.ignored, table)

    def may_want_from(self, database: str) -> bool:
        """Whether a table of a database may be wanted, judged by the name of the database alone."""
        if database.casefold() in SERVER_DATABASES:
            return False
        if any(matches(pattern.partition(".")[0], database) and pattern.endswith(".%") for pattern in self.ignored):
            return False
        return not self.tables or any(matches(pattern.partition(".")[0], database) for pattern in self.tables)


def _any(patterns: tuple[str, ...], table: str) -> bool:
    database, _, name = table.partition(".")
    return any(matches(each.partition(".")[0], database) and matches(each.partition(".")[2], name) for each in patterns)
