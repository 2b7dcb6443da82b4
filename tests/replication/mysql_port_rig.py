"""A store served as a MySQL server, clients of it, and real servers that follow it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.replication.mariadb_rig import Server
from tests.replication.test_mysql_login import proof_of, response
from tests.waiting import wait_until
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.packets import Fields, PacketReader, packets

HOST = "127.0.0.1"
SECRET = b"sixteen bytes or more"
USERS = [tm.MysqlUser("repl", SECRET), tm.MysqlUser("reader", SECRET, may_read=True)]
OPTIONS: dict[str, Any] = {
    "data_memory": "64 MiB",
    "redo_log": "16 MiB",
    "undo_log": "2 MiB",
    "server_id": 1,
    "log_bin": "binlog",
    "log_update_as_write": False,
    "log_updated_only": False,
}
ITEM = [tm.Column("id", tm.Int64), tm.Column("v", tm.VarChar(50), nullable=True)]
PATIENCE_S = 60


@contextmanager
def store(folder: Path, **options: Any) -> Iterator[tm.Database]:
    """Open a store that logs whole updates, with the table `shop.item`."""
    with tm.open(folder / "store", **{**OPTIONS, **options}) as db:
        if "shop.item" not in db:
            db.create_table("shop.item", ITEM, "id")
        yield db


def served_end(db: tm.Database) -> tuple[str, int]:
    """Make all commits part of the binlog; return its end."""
    assert db.binlog is not None
    db.binlog.reach(db.sync())
    end = db.binlog.durable_end()
    return end.file, end.position


class Client:
    """A client in clear that says what a test wants."""

    def __init__(
        self, address: tuple[str, int], name: str = "repl", secret: bytes = SECRET, source: str = HOST
    ) -> None:
        self.socket = socket.create_connection(address, PATIENCE_S, (source, 0))
        self._reader = PacketReader(1 << 30)
        greeting = Fields(self.message())
        greeting.integer(1)
        self.version = greeting.terminated().decode()
        self.number = greeting.integer(4)
        self.nonce = greeting.take(8)
        greeting.take(1 + 2 + 1 + 2 + 2 + 1 + 10)
        self.nonce += greeting.terminated()
        self.plugin = greeting.terminated().decode()
        self._name, self._secret = name, secret

    def log_in(self) -> bytes:
        """Return the last message of the login."""
        self.send(packets(response(self._name, proof_of(self.plugin, self._secret, self.nonce), self.plugin), 1))
        return self.expect_login()

    def expect_login(self) -> bytes:
        """Return the last message of a login whose answer was sent."""
        self._reader.sequence = 2
        answer = self.message()
        return self.message() if answer == bytes((p.AUTH_MORE, p.FAST_AUTH_DONE)) else answer

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def expect(self) -> None:
        """Expect the answer to a command."""
        self._reader.sequence = 1

    def command(self, code: int, rest: bytes = b"") -> None:
        self.expect()
        self.send(packets(bytes((code,)) + rest, 0))

    def query(self, text: str | bytes) -> bytes:
        """Send a statement; return the first message of the answer."""
        self.command(p.COM_QUERY, text.encode() if isinstance(text, str) else text)
        return self.message()

    def message(self) -> bytes:
        """Return the next message. Raises: ConnectionError at the end."""
        while (found := self._reader.next()) is None:
            data = self.socket.recv(65_536)
            if not data:
                raise ConnectionError("shut")
            self._reader.feed(data)
        return found

    def is_shut(self) -> bool:
        """Whether the server ends the connection, after whatever it has sent."""
        try:
            while self.socket.recv(65_536):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()


def error_of(message: bytes) -> int:
    """Return the number of the error in a message."""
    assert message[0] == p.ERROR, message
    return int.from_bytes(message[1:3], "little")


def dump_command(file: str = "", position: int = 4, server_id: int = 7, flags: int = 0) -> bytes:
    return b"".join(
        (position.to_bytes(4, "little"), flags.to_bytes(2, "little"), server_id.to_bytes(4, "little"), file.encode())
    )


# --- real servers ----------------------------------------------------------------------------------
def follow(server: Server, address: tuple[str, int], **given: str) -> None:
    """Let a MySQL or a MariaDB follow a served store, by position unless `given` says otherwise."""
    is_mariadb = server.client == "mariadb"
    word = "MASTER" if is_mariadb else "SOURCE"
    asked = {
        "HOST": f"'{HOST}'",
        "PORT": str(address[1]),
        "USER": "'repl'",
        "PASSWORD": f"'{SECRET.decode()}'",
        "CONNECT_RETRY": "1",
        **({"USE_GTID": "no"} if is_mariadb else {"SSL": "0"}),
        **given,
    }
    change = "CHANGE MASTER TO" if is_mariadb else "CHANGE REPLICATION SOURCE TO"
    server.sql(f"{change} {', '.join(f'{word}_{name}={value}' for name, value in asked.items())}")
    server.sql("START SLAVE" if is_mariadb else "START REPLICA")


def remote(server: Server, address: tuple[str, int]) -> list[str]:
    """Return the options by which a server's mysqlbinlog reads from a served store."""
    return [
        *("--read-from-remote-server", f"--host={HOST}", f"--port={address[1]}", "--user=repl"),
        *(f"--password={SECRET.decode()}", *([] if server.client == "mariadb" else ["--ssl-mode=DISABLED"])),
    ]


def library_reader(address: tuple[str, int], **given: Any) -> Any:
    """Return a reader of python-mysql-replication; skip the test without it."""
    library = pytest.importorskip("pymysqlreplication", reason="mysql-replication is not installed")
    login = {"host": HOST, "port": address[1], "user": "repl", "password": SECRET.decode(), "ssl_disabled": True}
    return library.BinLogStreamReader(connection_settings=login, server_id=99, **given)


def replica_status(server: Server) -> dict[str, str]:
    """Return the row of SHOW REPLICA STATUS, with MySQL's names."""
    return with_mysqls_names(server.row("SHOW SLAVE STATUS" if server.client == "mariadb" else "SHOW REPLICA STATUS"))


def with_mysqls_names(status: dict[str, Any]) -> dict[str, Any]:
    """Return a row of SHOW REPLICA STATUS of either server, with MySQL's names."""
    return {name.replace("Master", "Source").replace("Slave", "Replica"): value for name, value in status.items()}


def catch_up(server: Server, db: tm.Database) -> tuple[str, int]:
    """Wait until a server has applied all; return the end of the binlog."""
    file, position = served_end(db)
    word = "MASTER" if server.client == "mariadb" else "SOURCE"
    waited = server.sql(f"SELECT {word}_POS_WAIT('{file}', {position}, {PATIENCE_S})").strip()
    assert waited not in ("NULL", "-1"), replica_status(server)
    return file, position


def wait_equal(server: Server, db: tm.Database, table: str = "shop.item") -> None:
    """Wait until a server has applied all; compare the rows of a table."""
    catch_up(server, db)
    theirs = server.sql(f"SELECT * FROM {table} ORDER BY 1").splitlines()
    ours = sorted(tuple(row) for row in db[table])
    assert theirs == ["\t".join("NULL" if value is None else str(value) for value in row) for row in ours]


def wait_refused(server: Server) -> str:
    """Wait until the thread that reads has stopped with an error; return it."""
    wait_until(lambda: replica_status(server)["Last_IO_Error"] != "")
    return replica_status(server)["Last_IO_Error"]
