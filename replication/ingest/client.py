"""The server as a client sees it: queries, and its binlog as bytes of events. All use of pymysql and mysql-replication
is here.

mysql-replication makes the connection, agrees on checksums and asks for the binlog. Its decoding is not used, because
it takes a Python call for each value: events are taken as raw bytes, and `replication/binlog/` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import (
    Error,
    PeerError,
    PeerRefused,
    PeerTimeout,
    PeerUnauthenticated,
    PositionLost,
    Unsupported,
)
from tidemark.engine.base.extras import needed
from tidemark.replication.ingest import result_rows_layout as r
from tidemark.replication.ingest.address import Address

CONNECT_TIMEOUT_S = 10
QUERY_TIMEOUT_S = 3_600
READ_BYTES = 256 << 10
HEARTBEAT_S = 5
SILENCES_MAX = 4  # missing heartbeats allowed
POSITION_MAX = (1 << 32) - 1  # the most that a server accepts
# Connections lost, refused temporarily (1040, 1203), ended (1053, 1317, 1927, 3169); lock timeouts and deadlocks (1205,
# 1213).
_LOST = (2002, 2003, 2006, 2013, 2014, 1053, 1927, 1040, 1203, 1317, 3169, 1205, 1213)
_REFUSED_LOGIN = (1044, 1045, 1251, 1698, 2059)
_NO_POSITION = (1236, 1220)
_NO_TLS = 2026
_TABLE_CHANGED = (1412, 1146)
_BOTH_WAYS = 2  # SHUT_RDWR

Row = tuple[Any, ...]


class TableChanged(PeerError):
    """A table was altered since the snapshot was taken; the copy begins again."""


def libraries() -> tuple[Any, Any]:
    """Return (pymysql, pymysqlreplication). Raises: Unsupported without them."""
    with needed("a MySQL server is read through the package mysql-replication", "mysql"):
        import pymysql
        import pymysqlreplication
    return pymysql, pymysqlreplication


def peer_error(address: Address, error: Exception) -> Error:
    """Return the Tidemark error for an error of the server or of the connection."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = " ".join(str(error.args[-1] if error.args else error).split())
    where = address.shown
    if code in _REFUSED_LOGIN:
        return PeerUnauthenticated(f"{where} refuses {address.user!r}: {text}; give the user's password", code=code)
    if code in _NO_POSITION and "same server_" in text:
        return PeerRefused(f"another replica of {where} has this server id; give one of them another", code=code)
    if code in _NO_POSITION and "max_allowed_packet" in text:
        return PeerRefused(f"{where}: {text}; SET GLOBAL max_allowed_packet=1073741824 there", code=code)
    if code in _NO_POSITION:
        return PositionLost(f"{where} has no binlog from the position asked for: {text}; copy anew", code=code)
    if code == _NO_TLS or "[SSL:" in text:
        return PeerUnauthenticated(f"no TLS with {where}: {text}; see its certificate and --tls-ca", code=code)
    if code in _LOST or isinstance(error, OSError):
        return PeerTimeout(f"the connection to {where} is lost: {text}; see that the server runs", code=code)
    if code in _TABLE_CHANGED:
        return TableChanged(f"{where}: {text}; the copy begins anew", code=code)
    if isinstance(error, RuntimeError) and "cryptography" in text:
        return Unsupported(f"{where} wants a password enciphered with RSA; use TLS, or install cryptography")
    return PeerRefused(f"{where} refuses: {text}; see the privileges of {address.user!r}", code=code)


def _settings(address: Address, read_timeout_s: float) -> dict[str, Any]:
    made: dict[str, Any] = {
        "user": address.user,
        "password": address.password.encode(),
        "charset": "utf8mb4",
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": read_timeout_s,
        "write_timeout": CONNECT_TIMEOUT_S,
        "autocommit": True,
    }
    if address.socket:
        made["unix_socket"] = address.socket
    else:
        made |= {"host": address.host, "port": address.port}
    tls = address.tls
    if tls is not None:
        verifies = bool(tls.authority)
        asked: dict[str, Any] = {"verify_mode": verifies, "check_hostname": verifies and tls.verifies_name}
        if verifies:
            asked["ca"] = tls.authority
        if tls.certificate:
            asked |= {"cert": tls.certificate, "key": tls.key or None}
        made["ssl"] = asked
    elif address.socket:
        made["ssl_disabled"] = True
    return made


class Client(Closable):
    """A connection for queries."""

    def __init__(self, address: Address) -> None:
        """Connect. Raises: Unsupported, PeerTimeout, PeerUnauthenticated, PeerRefused."""
        self._address = address
        pymysql, _ = libraries()
        self._errors = (pymysql.MySQLError, OSError, RuntimeError)
        try:
            self.connection = pymysql.connect(**_settings(address, QUERY_TIMEOUT_S))
        except self._errors as error:
            raise peer_error(address, error) from error

    def rows(self, sql: str, *parameters: Any) -> list[Row]:
        """Return all rows of a query. Raises: PeerError."""
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(sql, parameters or None)
                return list(cursor.fetchall())
        except self._errors as error:
            raise peer_error(self._address, error) from error

    def row(self, sql: str, *parameters: Any) -> Row | None:
        """Return the first row of a query, None if there is none. Raises: PeerError."""
        return next(iter(self.rows(sql, *parameters)), None)

    def octets(self, sql: str) -> list[Row]:
        """Return all rows of a query with text as bytes: a server shows defaults of bytes as they are. Raises:
        PeerError.
        """
        self.connection.use_unicode = False
        try:
            return self.rows(sql)
        finally:
            self.connection.use_unicode = True

    def variables(self) -> dict[str, str]:
        """Return the server's variables, with names in lower case. Raises: PeerError."""
        return {str(name).lower(): str(value) for name, value in self.rows("SHOW GLOBAL VARIABLES")}

    def select(self, sql: str) -> Result:
        """Run a query whose rows are read as raw bytes. Raises: PeerError."""
        return Result(self, sql, self._address, self._errors)

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        with suppress(*self._errors):
            self.connection.close()


class Result:
    """The unread rows of a query, as raw packets."""

    def __init__(self, client: Client, sql: str, address: Address, errors: tuple[type[Exception], ...]) -> None:
        pymysql, _ = libraries()
        self._address, self._errors = address, errors
        self._connection = client.connection
        try:
            self._connection._execute_command(pymysql.constants.COMMAND.COM_QUERY, sql)
            self._result = pymysql.connections.MySQLResult(self._connection)
            self._result.init_unbuffered_query()
        except errors as error:
            raise peer_error(address, error) from error
        # Rows are read from the socket here, so the library must not read the rest when its object is deleted.
        self._result.unbuffered_active = False

    @property
    def columns(self) -> int:
        return int(self._result.field_count)

    def is_over(self, packet: Any) -> bool:
        """Whether a packet ends the rows; False while its bytes are incomplete. Raises: PeerError if it is an error."""
        if len(packet) <= r.PACKET_HEADER_BYTES:
            return False
        size, first = int.from_bytes(bytes(packet[:3]), "little"), int(packet[r.PACKET_HEADER_BYTES])
        if len(packet) < r.PACKET_HEADER_BYTES + size:
            return False
        if first == r.PACKET_ERROR:
            payload = bytes(packet[r.PACKET_HEADER_BYTES : r.PACKET_HEADER_BYTES + size])
            code, text = int.from_bytes(payload[1:3], "little"), payload[3:].decode(errors="replace")
            raise peer_error(self._address, RuntimeError(code, text))
        return first == r.PACKET_END and size < r.PACKET_END_BYTES_MAX

    def read_into(self, room: memoryview) -> int:
        """Wait for bytes and read them; return their number. Raises: PeerTimeout if none arrive."""
        try:
            # Returns at once with bytes that the library has read ahead; `readinto1` would wait for more.
            piece = self._connection._rfile.read1(min(len(room), READ_BYTES))
        except self._errors as error:
            raise peer_error(self._address, error) from error
        if not piece:
            raise peer_error(self._address, OSError("the server has closed the connection"))
        room[: len(piece)] = piece
        return len(piece)


class BinlogStream:
    """The events of a server's binlog from a position on, as bytes."""

    def __init__(self, address: Address, server_id: int, file: str, position: int, once: bool) -> None:
        """Connect and request the binlog. once: up to its present end; otherwise without end.

        Raises: Unsupported, PeerTimeout, PeerUnauthenticated, PeerRefused, PositionLost.
        """
        pymysql, library = libraries()
        from pymysqlreplication.event import RotateEvent

        if position > POSITION_MAX:
            raise PositionLost(
                f"{file} is longer than a server can be asked for ({position}); flush its logs and copy anew",
                file=file,
                position=position,
            )
        self._address = address
        self._errors = (pymysql.MySQLError, OSError, RuntimeError, ValueError, AttributeError)
        self._connections: list[Any] = []
        self._reader = library.BinLogStreamReader(
            connection_settings=_settings(address, HEARTBEAT_S * SILENCES_MAX),
            server_id=server_id,
            blocking=not once,
            resume_stream=True,
            log_file=file,
            log_pos=position,
            only_events=[RotateEvent],
            slave_heartbeat=None if once else HEARTBEAT_S,
            pymysql_wrapper=self._connect,
            enable_logging=False,
        )
        self._packets: Any = None
        try:
            # The first event of a stream is a ROTATE that names the file. `events` reads everything after it.
            if self._reader.fetchone() is None:
                raise PositionLost(f"{address.shown} sends nothing from {file} at {position}; copy anew", file=file)
        except PeerError:
            self.close()
            raise
        except self._errors as error:
            self.close()
            raise peer_error(address, error) from error
        self._packets = self._connections[0]

    def _connect(self, **settings: Any) -> Any:
        """Connect for mysql-replication. With a connection of its own, it would hide a lost connection, and continue in
        the middle of a transaction.
        """
        pymysql, _ = libraries()
        address = self._address

        class Connection(pymysql.connections.Connection):  # type: ignore[misc,name-defined]
            def _read_packet(self, *arguments: Any) -> Any:
                try:
                    return super()._read_packet(*arguments)
                except pymysql.OperationalError as error:
                    raise peer_error(address, error) from error

        if "db" in settings:
            settings["database"] = settings.pop("db")  # the current name
        connection = Connection(**settings)
        self._connections.append(connection)
        return connection

    @property
    def file(self) -> str:
        """The first file of the stream."""
        return str(self._reader.log_file)

    def events(self) -> Iterator[bytes]:
        """Yield the bytes of each event; with `once`, up to the end of the binlog. Raises: PeerError."""
        read = self._packets._read_packet
        while True:
            try:
                data = read().get_all_data()
            except self._errors as error:
                raise peer_error(self._address, error) from error
            if data[0] == r.PACKET_END and len(data) < r.PACKET_END_BYTES_MAX:
                return
            yield data[1:]

    def close(self) -> None:
        """Close the connections. Any thread may call it; a thread that is reading gets a PeerTimeout. A second call
        does nothing.
        """
        for connection in self._connections:
            with suppress(*self._errors):
                # Shut down first: a thread that waits in a read would not notice the close.
                connection._sock.shutdown(_BOTH_WAYS)
            with suppress(*self._errors):
                connection._force_close()
        with suppress(*self._errors):
            self._reader.close()
