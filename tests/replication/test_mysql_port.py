"""The MySQL port from outside: what logged-in clients may say, and what strangers and hostile clients cannot do."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.replication.mysql_port_rig import (
    HOST,
    SECRET,
    USERS,
    Client,
    dump_command,
    error_of,
    served_end,
    store,
)
from tests.replication.mysql_talks import login_message
from tests.waiting import wait_until
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.conversation import STATEMENT_BYTES_MAX
from tidemark.replication.mysql_source.flavors import MYSQL
from tidemark.replication.mysql_source.login import LOGIN_BYTES_MAX
from tidemark.replication.mysql_source.packets import packets
from tidemark.replication.wire.admission import UNPROVED_OF_ADDRESS_MAX

CHECKSUM = "SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'"
MEMORY_BYTES_MAX = 64 << 20


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tm.Database]:
    with store(tmp_path_factory.mktemp("served")) as db:
        db["shop.item"].insert_many([{"id": number, "v": f"value {number}"} for number in range(1_000)])
        db.sync()
        yield db


@pytest.fixture
def serving(db: tm.Database) -> Iterator[Any]:
    with tm.serve_mysql(db, f"{HOST}:0", USERS) as serving:
        yield serving


@pytest.fixture
def client(serving: Any) -> Iterator[Client]:
    with closing(Client(serving.address)) as client:
        assert client.log_in()[0] == p.OK
        yield client


# --- commands -------------------------------------------------------------------------------------
def test_commands_have_their_answers(client: Client) -> None:
    client.command(p.COM_PING)
    assert client.message()[0] == p.OK
    client.command(p.COM_INIT_DB, b"shop")
    assert client.message()[0] == p.OK
    client.command(p.COM_INIT_DB, b"nowhere")
    assert error_of(client.message()) == 1049
    for code in sorted(p.COM_STATEMENTS):
        client.command(code, b"SELECT 1")
        assert error_of(client.message()) == 1295
    known = {p.COM_QUIT, p.COM_INIT_DB, p.COM_QUERY, p.COM_PING, p.COM_BINLOG_DUMP, p.COM_REGISTER_SLAVE}
    for code in set(range(256)) - known - {p.COM_BINLOG_DUMP_GTID} - p.COM_STATEMENTS:
        client.command(code, b"x")
        assert error_of(client.message()) == 1047
    assert client.query("SELECT @@server_id") == b"\1"
    while client.message()[0] != p.END:  # the columns
        pass
    assert client.message() == b"\1" + b"1" and client.message()[0] == p.END
    client.command(p.COM_QUIT)
    assert client.is_shut()


def test_error_of_a_statement_leaves_the_connection(client: Client) -> None:
    for text, code in (("SELEC 1", None), ("SELECT @@nothing", 1193), ("DELETE FROM shop.item", 1235), ("", None)):
        number = error_of(client.query(text))
        assert code in (None, number), text
    client.command(p.COM_PING)
    assert client.message()[0] == p.OK


def test_user_that_may_not_read_gets_no_row(serving: Any, client: Client) -> None:
    assert error_of(client.query("SELECT * FROM shop.item")) == 1142
    with closing(Client(serving.address, "reader")) as reader:
        assert reader.log_in()[0] == p.OK
        assert reader.query("SELECT * FROM shop.item") == b"\2"
        count = -4  # two columns, and an end after them and after the rows
        while (message := reader.message())[0] != p.END or count < 0:
            count += 1
        assert count == 1_000 - 1 and message[0] == p.END


def test_kill_ends_connections_of_the_same_user_alone(serving: Any, client: Client) -> None:
    with closing(Client(serving.address)) as own, closing(Client(serving.address, "reader")) as other:
        own.log_in()
        other.log_in()
        assert error_of(client.query(f"KILL {other.number}")) == 1094
        assert error_of(client.query("KILL 4000000000")) == 1094
        assert client.query(f"KILL {own.number}")[0] == p.OK and own.is_shut()
        other.command(p.COM_PING)
        assert other.message()[0] == p.OK


@pytest.mark.parametrize("said, server_id, errno", [("", 0, 1236), ("SET @master_binlog_checksum = 'MD5'", 7, 1236)])
def test_dump_without_a_known_checksum_is_refused(client: Client, said: str, server_id: int, errno: int) -> None:
    if said:
        assert client.query(said)[0] == p.OK
    client.command(p.COM_BINLOG_DUMP, dump_command(server_id=server_id))
    assert error_of(client.message()) == errno
    assert client.is_shut()


def test_replica_whose_settings_are_gone_is_told_to_begin_anew(client: Client) -> None:
    """Story: a link was cut while a MariaDB set its variables. Its client connected again by itself, without a word to
    the replica, and the new connection asked for a dump without any of them. It was refused with 1236, at which a
    replica stops for good. At other errors it connects again and sets all.
    """
    client.command(p.COM_BINLOG_DUMP, dump_command(server_id=7))
    message = client.message()
    assert error_of(message) == 1105 and b"checksum" in message
    assert client.is_shut()


def test_dump_that_does_not_wait_ends_with_the_binlog(db: tm.Database, client: Client) -> None:
    served_end(db)
    assert client.query(CHECKSUM)[0] == p.OK
    client.command(p.COM_BINLOG_DUMP, dump_command(flags=p.DUMP_NON_BLOCK))
    count = 0
    while (message := client.message())[0] == p.OK:
        count += 1
    assert count > 5 and message[0] == p.END and client.is_shut()


@pytest.mark.parametrize(
    "statement", ["set wait_timeout=9999999", "SET @@session.wait_timeout = 31536000", f"SET wait_timeout={'9' * 65}"]
)
def test_client_that_may_be_silent_for_months_is_answered(client: Client, statement: str) -> None:
    """Story: canal sets wait_timeout to 9,999,999 s, more milliseconds than a poll takes. The thread that waited for
    the next statement ended with an OverflowError, and the client with it.
    """
    assert client.query(statement)[0] == p.OK
    client.command(p.COM_PING)
    assert client.message()[0] == p.OK
    assert client.query("SELECT @@server_id") == b"\1"


def test_longest_heartbeat_period_of_a_replica_is_taken(db: tm.Database, client: Client) -> None:
    """Story: SOURCE_HEARTBEAT_PERIOD = 4294967, the greatest of MySQL, ended the dump when it waited for commits, and
    the replica connected again and again.
    """
    for statement in (CHECKSUM, "SET @master_heartbeat_period = 4294967000000000"):
        assert client.query(statement)[0] == p.OK
    client.command(p.COM_BINLOG_DUMP, dump_command(*served_end(db)))
    assert client.message()[5] == 4 and client.message()[5] == 15  # ROTATE, FORMAT_DESCRIPTION
    for number in range(2):
        db["shop.item"].update(2, {"v": f"seen {number}"})
        served_end(db)
        while f"seen {number}".encode() not in client.message():
            pass


def test_dump_follows_commits_and_a_second_one_of_the_server_ends_it(db: tm.Database, serving: Any) -> None:
    with closing(Client(serving.address)) as first, closing(Client(serving.address)) as second:
        for each in (first, second):
            each.log_in()
            assert each.query(CHECKSUM)[0] == p.OK
        file, position = served_end(db)
        first.command(p.COM_BINLOG_DUMP, dump_command(file, position))
        assert first.message()[5] == 4 and first.message()[5] == 15  # ROTATE, FORMAT_DESCRIPTION
        db["shop.item"].update(1, {"v": "seen"})
        served_end(db)
        while b"seen" not in first.message():
            pass
        (dump,) = serving.status()["dumps"]
        assert dump["user"] == "repl" and dump["server_id"] == 7
        second.command(p.COM_BINLOG_DUMP, dump_command(file, position))
        while (message := first.message())[0] == p.OK:
            pass
        assert error_of(message) == 1236 and b"same server_uuid/server_id" in message
        assert first.is_shut()


@pytest.mark.parametrize(
    "position, file, said",
    [
        (4, "nowhere.000001", b"Could not find first log file name"),
        (3, "", b"position < 4"),
        (1 << 30, "", b"file size"),
    ],
)
def test_position_that_is_none_is_refused_in_the_words_of_mysql(
    client: Client, position: int, file: str, said: bytes
) -> None:
    assert client.query(CHECKSUM)[0] == p.OK
    client.command(p.COM_BINLOG_DUMP, dump_command(file, position))
    while (message := client.message())[0] == p.OK:
        pass
    assert error_of(message) == 1236 and said in message and client.is_shut()


def test_own_server_id_is_refused(client: Client) -> None:
    assert client.query(CHECKSUM)[0] == p.OK
    client.command(p.COM_BINLOG_DUMP, dump_command(server_id=1))
    assert error_of(client.message()) == 1236


# --- character sets ---------------------------------------------------------------------------------
def rows_of(client: Client, text: str) -> list[bytes] | int:
    """Return the rows of an answer, or the number of the error that it begins or ends with."""
    message = client.query(text)
    if message[0] == p.ERROR:
        return error_of(message)
    found, ends = [], 0
    while ends < 2:
        message = client.message()
        if message[0] == p.ERROR:
            return error_of(message)
        ends += message[0] == p.END
        found += [message] if ends and message[0] != p.END else []
    return found


@pytest.mark.parametrize("is_named_by_the_login", [False, True])
def test_session_of_latin1_reads_ascii_and_no_other_text(
    serving: Any, db: tm.Database, is_named_by_the_login: bool
) -> None:
    """Story: a client of latin1 that named it at its login, as MariaDB's do in a C locale, took UTF-8 for other
    characters; one that named it by SET NAMES could read no rows at all, numbers neither.
    """
    db.create_table("shop.word", [tm.Column("id", tm.Int64), tm.Column("v", tm.VarChar(9))], "id")
    try:
        with closing(Client(serving.address, "reader")) as client:
            if is_named_by_the_login:
                login = bytearray(login_message(MYSQL, client.nonce))
                login[4 + 8] = 8  # latin1_swedish_ci
                client.send(bytes(login))
                client.expect_login()
            else:
                client.log_in()
                assert client.query("SET NAMES latin1")[0] == p.OK
            assert rows_of(client, "SELECT @@character_set_results") == [b"\x06latin1"]
            db["shop.word"].insert((1, "plain"))
            assert rows_of(client, "SELECT * FROM shop.word") == [b"\x011\x05plain"]
            db["shop.word"].insert((2, "é"))
            assert rows_of(client, "SELECT v FROM shop.word") == 1235
            assert sorted(rows_of(client, "SELECT id FROM shop.word")) == [b"\x011", b"\x012"]  # type: ignore[arg-type]
            message = client.query("SELECT 'é'")
            assert error_of(message) == 1235 and b"SET NAMES utf8mb4" in message
            assert client.query("SET NAMES utf8mb4")[0] == p.OK
            assert len(rows_of(client, "SELECT v FROM shop.word")) == 2  # type: ignore[arg-type]
    finally:
        db.drop_table("shop.word")


# --- the start ------------------------------------------------------------------------------------
def test_store_that_logs_updates_as_writes_is_refused_by_name(tmp_path: Path) -> None:
    """Story: with the default options a peer takes each update for an insert of a row with NULLs."""
    with store(tmp_path, log_update_as_write=True) as db:
        with pytest.raises(tm.Rejected, match=r"table shop\.item.*log_update_as_write=False"):
            tm.serve_mysql(db, f"{HOST}:0", USERS)


def test_other_addresses_need_tls_and_users_are_checked(db: tm.Database) -> None:
    with pytest.raises(tm.SchemaInvalid, match="needs tls"):
        tm.serve_mysql(db, "0.0.0.0:0", USERS)
    with pytest.raises(tm.SchemaInvalid, match="needs a user"):
        tm.serve_mysql(db, f"{HOST}:0", [])
    with pytest.raises(tm.SchemaInvalid, match="'mysql' or 'mariadb'"):
        tm.serve_mysql(db, f"{HOST}:0", USERS, flavor="oracle")


def test_database_named_at_the_login_must_exist(serving: Any) -> None:
    import pymysql

    for name in ("shop", "nowhere"):
        given: dict[str, Any] = {"host": HOST, "port": serving.address[1], "user": "repl", "password": SECRET}
        if name == "shop":
            pymysql.connect(**given, database=name, ssl_disabled=True).close()
        else:
            with pytest.raises(pymysql.err.OperationalError, match="1049"):
                pymysql.connect(**given, database=name, ssl_disabled=True)


# --- strangers and hostile clients ----------------------------------------------------------------
def test_wrong_password_then_a_statement_is_answered_by_nothing(serving: Any) -> None:
    with closing(Client(serving.address, secret=b"another secret of the tests")) as client:
        assert error_of(client.log_in()) == 1045
        with suppress(ConnectionError):
            client.send(packets(b"\3SELECT 1", 0))
        assert client.is_shut()


def test_secrets_and_packets_of_registration_are_in_no_log(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Some tools send their password when they register as a replica."""
    caplog.set_level("DEBUG")
    with closing(Client(serving.address)) as client:
        client.log_in()
        fields = b"".join(bytes((len(each),)) + each for each in (b"host", b"repl", SECRET))
        client.command(p.COM_REGISTER_SLAVE, (7).to_bytes(4, "little") + fields + bytes(10))
        assert client.message()[0] == p.OK
        client.command(p.COM_BINLOG_DUMP, dump_command())
        assert error_of(client.message()) == 1105
    serving.close()
    assert SECRET.decode() not in caplog.text and repr(SECRET) not in caplog.text


def test_silent_strangers_make_room_and_keep_no_client_out(serving: Any) -> None:
    with ExitStack() as stack:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit[1], 8_192), limit[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        for _ in range(2_000):
            stack.enter_context(socket.create_connection(serving.address, 60))
        wait_until(lambda: serving.status()["connections"]["evicted"] >= 2_000 - UNPROVED_OF_ADDRESS_MAX)
        with closing(Client(serving.address)) as client:
            assert client.log_in()[0] == p.OK
            assert serving.status()["connections"]["unproved"] <= UNPROVED_OF_ADDRESS_MAX


@pytest.mark.parametrize("size", [LOGIN_BYTES_MAX + 1, (1 << 24) - 1])
def test_long_packet_before_the_login_is_refused_at_its_header(serving: Any, size: int) -> None:
    with closing(Client(serving.address)) as client:
        client.send(size.to_bytes(3, "little") + b"\1")
        assert error_of(client.message()) == 1153 and client.is_shut()


def test_statement_above_the_limit_is_refused_at_its_header(client: Client) -> None:
    client.expect()
    client.send((STATEMENT_BYTES_MAX + 2).to_bytes(3, "little") + b"\0")
    assert error_of(client.message()) == 1153 and client.is_shut()


@pytest.mark.parametrize("piece", ["'", "''", "(", "SELECT ", "`", "@@x,", "/*", "1,"])
def test_longest_statement_is_an_error_that_takes_little_memory(client: Client, piece: str) -> None:
    before = memory_bytes()
    text = ("SELECT " + piece * STATEMENT_BYTES_MAX)[:STATEMENT_BYTES_MAX]
    assert client.query(text)[0] == p.ERROR
    assert memory_bytes() - before < MEMORY_BYTES_MAX
    client.command(p.COM_PING)
    assert client.message()[0] == p.OK


def memory_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) << 10


def test_reader_that_takes_nothing_is_cut_and_holds_up_no_commit(db: tm.Database, serving: Any) -> None:
    with closing(Client(serving.address)) as client:
        client.log_in()
        assert client.query("SET net_write_timeout = 1")[0] == p.OK
        assert client.query(CHECKSUM)[0] == p.OK
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.command(p.COM_BINLOG_DUMP, dump_command())
        first = 100_000
        while serving.status()["connections"]["served"]:
            rows = [{"id": first + number, "v": "x" * 50} for number in range(2_000)]
            db["shop.item"].insert_many(rows)
            db["shop.item"].delete_many([row["id"] for row in rows])
            served_end(db)
        assert len(db["shop.item"]) == 1_000


def test_port_ends_with_the_store_while_clients_wait(tmp_path: Path) -> None:
    with store(tmp_path) as db:
        serving = tm.serve_mysql(db, f"{HOST}:0", USERS)
        idle, dumping = Client(serving.address), Client(serving.address)
        for each in (idle, dumping):
            each.log_in()
        assert dumping.query(CHECKSUM)[0] == p.OK
        dumping.command(p.COM_BINLOG_DUMP, dump_command())
        assert dumping.message()[0] == p.OK
    assert idle.is_shut() and dumping.is_shut()
    assert not [each for each in threading.enumerate() if "MySQL" in each.name and serving.name in each.name]
    serving.close()
    idle.close()
    dumping.close()
