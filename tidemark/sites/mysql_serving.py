"""`tm.serve_mysql`: offer the binlog and the rows of an open store to replicas and tools of MySQL and MariaDB."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidemark.database import Database, check_open
from tidemark.engine.base.closable import Closable
from tidemark.replication.mysql_source.dump import Dump, DumpAsked, Dumps
from tidemark.replication.mysql_source.flavors import flavor_of
from tidemark.replication.mysql_source.port import MysqlPort
from tidemark.replication.mysql_source.served import Served
from tidemark.replication.mysql_source.users import MysqlUser
from tidemark.replication.wire.wire import TlsContext, parse_address

if TYPE_CHECKING:
    from tidemark.replication.channel.endpoint import Endpoint

# One server of a store makes what all of them share, while another one waits.
_MAKING = threading.Lock()


class MysqlServing(Closable):
    """A store that is served to MySQL's world. Use it with `with`, or close it; closing the store closes it too.

    `address` is where it listens, (host, port); `name` is the same as text. Its calls raise nothing.
    """

    def __init__(
        self,
        db: Database,
        address: tuple[str, int],
        users: Iterable[MysqlUser],
        flavor: str,
        tls: TlsContext | None,
        status_rows: bool,
    ) -> None:
        """See `serve_mysql`."""
        check_open(db)
        endpoint = db.endpoint
        served_as = flavor_of(flavor)
        endpoint.site.check()
        with _MAKING:
            served, self.dumps = _shared(endpoint) or (Served.of(endpoint), Dumps.of(endpoint))
            endpoint.log().check_whole()
            self.served = served

            def begin_dump(asked: DumpAsked, wait: Callable[[float | None], None], woken: Callable[[], None]) -> Dump:
                reader = endpoint.source_binlog(is_limited=True)
                return Dump(served, reader, asked, served_as, self.dumps, status_rows, wait, woken)

            self._port = MysqlPort(address, users, served_as, tls, endpoint.clock, served, begin_dump, status_rows)
            self.flavor = flavor
            self.address = self._port.address
            self.name = f"{self.address[0]}:{self.address[1]}"
            self._has_tls = tls is not None
            self._endpoint = endpoint
            self._log = endpoint.log()
            self._log.on_written.append(self._notify)
            self._is_closed = False
            endpoint.add_serving(self)
        self._port.start()

    def __repr__(self) -> str:
        return f"<tidemark store served at {self.name} as {self.flavor}>"

    def _notify(self) -> None:
        """Called when the binlog has grown."""
        self.dumps.notify()
        self.served.snapshots.close_expired()  # what an idle client keeps grows with the changes

    source_id = 0
    is_applying = False

    def close(self) -> None:
        """End all connections and stop listening. A second call does nothing.

        Examples:
            >>> user = tm.MysqlUser("repl", b"sixteen bytes or more")
            >>> serving = tm.serve_mysql(db, "127.0.0.1:0", users=[user])
            >>> serving.close()
        """
        if not self._is_closed:
            self._is_closed = True
            self._log.on_written.remove(self._notify)
            self._port.close()
            self._endpoint.remove(self)
            if _shared(self._endpoint) is None:
                self.served.close()

    def status(self) -> dict[str, Any]:
        """Return the address, the dumps that run with their positions, and counts of connections: served, not
        authenticated yet, failed and evicted since the start.

        Examples:
            >>> user = tm.MysqlUser("repl", b"sixteen bytes or more")
            >>> with tm.serve_mysql(db, "127.0.0.1:0", users=[user]) as serving:
            ...     serving.status()
            {'address': '127.0.0.1:...', 'flavor': 'mysql', 'tls': False, 'dumps': [], 'connections': {...}}
        """
        return {
            "address": self.name,
            "flavor": self.flavor,
            "tls": self._has_tls,
            "dumps": self._port.dumps(),
            "connections": self._port.status(),
        }


def _shared(endpoint: Endpoint) -> tuple[Served, Dumps] | None:
    """Return what the servers of a store share, from one of them: a replica is known to all."""
    found = (each for each in list(endpoint.servings) if isinstance(each, MysqlServing))
    return next(((each.served, each.dumps) for each in found), None)


def serve_mysql(
    db: Database,
    address: str | tuple[str, int],
    users: Iterable[MysqlUser],
    flavor: str = "mysql",
    tls: TlsContext | None = None,
    status_rows: bool = False,
) -> MysqlServing:
    """Offer an open store to replicas and tools of MySQL and MariaDB, until the result or the store is closed. They
    follow its binlog as that of a server; users who may read also read rows. Several servers may serve one store.

    Args:
        address: Where to listen, "host:port"; port 0 takes a free one, which `MysqlServing.address` has.
        users: The users that may log in.
        flavor: "mysql" greets as MySQL 8.0, "mariadb" as MariaDB 10.11, with what clients of each need.
        tls: A server's context, of TLS 1.2 or newer; needed at other addresses than this host's own. With it at such an
            address, a login without TLS is refused.
        status_rows: Send rows of the database `mysql` too. A server then needs the table `mysql.ndb_apply_status`.

    Raises:
        Rejected: The server id is 0, the store has no binlog, or updates of a table are logged as writes or in part.
        SchemaInvalid: An argument is invalid, or the address needs TLS.
        PeerError: The address is taken.
        StoreFailed: The store is closed or has failed.

    Examples:
        `db` has a server id and a binlog, and logs whole updates.

        >>> user = tm.MysqlUser("repl", b"sixteen bytes or more")
        >>> with tm.serve_mysql(db, "127.0.0.1:0", users=[user], flavor="mariadb") as serving:
        ...     serving
        <tidemark store served at 127.0.0.1:... as mariadb>
    """
    return MysqlServing(db, parse_address(address), users, flavor, tls, status_rows)
