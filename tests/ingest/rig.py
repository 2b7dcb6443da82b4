"""A MariaDB server that can be killed and restarted, a MySQL server, and comparisons of their contents with those of a
store.
"""

from __future__ import annotations

import operator
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import tidemark as tm
from tests.ports import free_port
from tests.replication.mariadb_rig import Server, need_mariadb
from tests.replication.mysql_rig import MySqlServer, running_mysql
from tidemark.engine.types import ColumnType
from tidemark.replication.ingest.address import Address, Filter, Tls
from tidemark.replication.ingest.ingest import COPY, Ingest, IngestOptions
from tidemark.sites.mysql_ingest import ingest

_LIMIT_S = 60
# Privileges that a user of the server needs, as in docs/ingest.md.
USER, PASSWORD = "reader", "geheimnis"
PRIVILEGES = "SELECT, RELOAD, SHOW DATABASES, REPLICATION SLAVE, BINLOG MONITOR"
_SEQUENCE = re.compile(r"\bseq_(\d+)_to_(\d+)")
OPTIONS: dict[str, Any] = {"data_memory": "128 MiB", "redo_log": "32 MiB", "background": False, "durability": "epoch"}


class Source(Server):
    """The server of a test, with users, TLS and a port of its own; what it has committed survives `kill`."""

    def __init__(self, root: Path, folder: Path) -> None:
        import trustme

        super().__init__(root, folder)
        self.authority = folder / "ca.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.authority))
        certificate = authority.issue_cert("localhost")
        certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
        certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
        self.port = free_port()  # it is stopped and restarted: no other process may get the port meanwhile
        self.options = (
            *("--skip-grant-tables=0", "--skip-networking=0", "--bind-address=127.0.0.1", f"--port={self.port}"),
            *(f"--ssl-ca={self.authority}", f"--ssl-cert={folder}/cert.pem", f"--ssl-key={folder}/key.pem"),
            "--innodb-flush-log-at-trx-commit=1",
        )
        self.has_database = False

    @property
    def address(self) -> Address:
        return Address("localhost", socket=self.socket)

    def over_network(self, password: str = PASSWORD, tls: Tls | None = None) -> Address:
        return Address("localhost", self.port, USER, password, tls=tls)

    def pause(self, is_paused: bool) -> None:
        """Stop answering, like a network that drops packets; or continue."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if is_paused else signal.SIGCONT)

    def sql(self, text: str) -> str:
        """Run statements, in database `d` if it exists: sequences need one."""
        return super().sql(("USE d;\n" if self.has_database else "") + text)

    def reset(self, *databases: str) -> None:
        """Make the databases anew, reset settings, and start a new binlog."""
        self.has_database = False
        self.sql(
            "".join(f"DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name} CHARSET utf8mb4;\n" for name in databases)
            + f"CREATE OR REPLACE USER {USER}@localhost IDENTIFIED BY '{PASSWORD}'; GRANT {PRIVILEGES} ON *.* TO"
            f" {USER}@localhost;\n"
            + "SET GLOBAL binlog_row_image=FULL; SET GLOBAL binlog_row_metadata=FULL; SET GLOBAL binlog_format=ROW;\n"
            + "RESET MASTER;\n"
        )
        self.has_database = True


@contextmanager
def running_source() -> Iterator[Source]:
    """Run a server for a block; skip the test without MariaDB."""
    root = need_mariadb()
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as folder:
        source = Source(root, Path(folder))
        try:
            source.start()
            yield source
        finally:
            source.stop()


class MySqlSource(MySqlServer):
    """The MySQL server of a test, with MariaDB's tables of numbers."""

    options = ("--cte-max-recursion-depth=100000",)

    @property
    def address(self) -> Address:
        return Address("localhost", socket=self.socket)

    def sql(self, text: str) -> str:
        numbers = (
            r"(WITH RECURSIVE n(seq) AS (SELECT \1 UNION ALL SELECT seq + 1 FROM n WHERE seq < \2) SELECT * FROM n) n"
        )
        return super().sql(_SEQUENCE.sub(numbers, text))

    def reset(self, *databases: str) -> None:
        """Make the databases anew, reset settings, and start a new binlog."""
        self.sql(
            "".join(f"DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name} CHARSET utf8mb4;" for name in databases)
            + "SET GLOBAL binlog_row_image=FULL; RESET BINARY LOGS AND GTIDS;"
        )


AnySource = Source | MySqlSource


def running_mysql_source() -> AbstractContextManager[MySqlSource]:
    """Run a server for a block; skip the test without MySQL."""
    return running_mysql(MySqlSource)  # type: ignore[return-value]


# The servers that tests of the ingest run with.
SOURCES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "MariaDB": running_source,
    "MySQL": running_mysql_source,
}


def options_of(**given: Any) -> IngestOptions:
    """Return the options of a test: begin with a copy, end at the end of the binlog."""
    given.setdefault("server_id", 4_711)
    given.setdefault("source", "main")
    given.setdefault("start", COPY)
    given.setdefault("once", True)
    tables = given.pop("tables", ())
    return IngestOptions(wanted=Filter(tuple(tables)), **given)


def take_in(db: tm.Database, source: AnySource, address: Address | None = None, **given: Any) -> Ingest:
    """Ingest from the server to the end of its binlog; fail with the reason if it only retries."""
    running = ingest(db, address or source.address, options_of(**given))
    impatience = threading.Timer(_LIMIT_S, running.stop)
    impatience.start()
    try:
        running.run()
    finally:
        impatience.cancel()
    assert not running.is_stopped, f"not taken in after {_LIMIT_S} s: {running.status()}"
    return running


@contextmanager
def following(db: tm.Database, source: Source, **given: Any) -> Iterator[Ingest]:
    """Run an ingest in a thread of its own; its error is raised at the end of the block."""
    # By the port: pymysql forgets to close the socket of a refused connection to a socket file.
    running = ingest(db, source.over_network(), options_of(once=False, **given))
    errors: list[BaseException] = []

    def run() -> None:
        try:
            running.run()
        except tm.Error as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield running
    finally:
        running.stop()
        thread.join()
        if errors:
            raise errors[0]


def rows_at(source: Server, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
    """Return all rows of a server's table as Python values, ordered by the first column."""
    import pymysql

    connection = pymysql.connect(unix_socket=source.socket, user="root", charset="utf8mb4")
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET time_zone='+00:00'")
            chosen = ", ".join(f"`{column}`" for column in columns)
            cursor.execute(f"SELECT {chosen} FROM {table} ORDER BY `{columns[0]}`")
            return [tuple(row) for row in cursor.fetchall()]
    finally:
        connection.close()


def rows_in(db: tm.Database, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
    """Return all rows of a store's table, ordered by the first column."""
    found = db[table].to_arrow(columns).to_pydict()
    return sorted(zip(*(found[column] for column in columns), strict=True), key=lambda row: row[0])


def _plain(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return values of a store as pymysql shows them: no time zone, and no bytes of a BIT."""
    return tuple(value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in values)


def _unpacked(row: tuple[Any, ...], kinds: list[ColumnType]) -> tuple[Any, ...]:
    return tuple(
        int.from_bytes(value, "big") if isinstance(value, bytes) and kind == tm.UInt64 else value
        for value, kind in zip(row, kinds, strict=True)
    )


def assert_same(db: tm.Database, source: Server, *tables: str) -> None:
    """Check that every row of these tables is equal on both sides, and their columns too."""
    for table in tables:
        definition = db[table].definition
        columns = [column.name for column in definition.columns]
        kinds = [column.type for column in definition.columns]
        by_key = operator.itemgetter(*definition.key_positions)
        here = sorted((_plain(row) for row in rows_in(db, table, columns)), key=by_key)
        there = sorted((_unpacked(row, kinds) for row in rows_at(source, table, columns)), key=by_key)
        wrong = [pair for pair in zip(here, there, strict=False) if pair[0] != pair[1]]
        assert here == there, (table, columns, len(here), len(there), wrong[:3])


TABLES = ("d.a", "d.b", "e.c")


def make_tables(source: Source, rows: int = 0) -> None:
    source.sql(
        "CREATE TABLE d.a (id INT PRIMARY KEY, n INT, t VARCHAR(40), KEY n (n));"
        "CREATE TABLE d.b (k VARCHAR(20), p INT, v DOUBLE, PRIMARY KEY (k, p), UNIQUE KEY u (v));"
        "CREATE TABLE e.c (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, j TEXT);"
    )
    if rows:
        source.sql(f"INSERT INTO d.a SELECT seq, seq * 7, CONCAT('r', seq) FROM seq_1_to_{rows};")
