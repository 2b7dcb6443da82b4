"""Statements at the MySQL port: what tools ask has an answer, answers are true, and nothing else is said to be done."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from tests.replication.mysql_statements import CLIENTS, REFUSED, Client
from tests.replication.site import WHOLE, open_site
from tests.replication.support import EXTREMES, every_type, extreme_rows
from tidemark.database import Database
from tidemark.engine import types as t
from tidemark.engine.base.errors import NoSuchTable
from tidemark.engine.schema.column import Column
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.answers import Done, Session, Shown, answer
from tidemark.replication.mysql_source.flavors import FLAVORS, MARIADB, MYSQL, Flavor
from tidemark.replication.mysql_source.packets import Fields, Refused, length_of, packets
from tidemark.replication.mysql_source.protocol_layout import ER_LIMIT
from tidemark.replication.mysql_source.reader import TOKENS_MAX
from tidemark.replication.mysql_source.row_texts import row_packets
from tidemark.replication.mysql_source.served import Served
from tidemark.replication.mysql_source.snapshot import SECONDS_MAX
from tidemark.replication.mysql_source.users import MysqlUser

SECRET = b"a secret of the tests"
SEED = 51_027
BOTH = pytest.mark.parametrize("flavor", FLAVORS.values(), ids=FLAVORS)
COLUMNS = [Column("id", t.Int64), Column("text", t.VarChar(20), nullable=True, default="it's \\")]


def session_of(db: Database, flavor: Flavor = MYSQL, *, may_read: bool = True, **given: Any) -> Session:
    served = Served.of(db.endpoint)
    user = MysqlUser("repl", SECRET, may_read)
    return Session(
        flavor=flavor,
        user=user,
        host="127.0.0.1",
        connection_id=7,
        served=served,
        kill=lambda number: number == 8,
        **given,
    )


@pytest.fixture(scope="module")
def site() -> Iterator[Database]:
    db = open_site(**WHOLE)
    table = db.create_table("d.t", COLUMNS, "id")
    table.insert((1, "one"))
    table.insert((2, None))
    db.create_index("d.t", "by_text", ["text"])
    db.create_table("d.u", [Column("n", t.UInt64), Column("e", t.Enum("A", "b"), default="A")], "n")
    db.sync()
    yield db
    db.close()


def rows(session: Session, statement: str) -> list[tuple[str | None, ...]]:
    """Return the rows of an answer as text."""
    found = answer(session, statement.encode())
    assert isinstance(found, Shown), statement
    assert len(found.names) == len(found.types) == len(list(found.definitions()))
    return [tuple(None if each is None else each.decode() for each in row) for row in found.rows]


def one(session: Session, statement: str) -> str | None:
    ((found,),) = rows(session, statement)
    return found


def refused(session: Session, statement: str | bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        answer(session, statement if isinstance(statement, bytes) else statement.encode())
    return caught.value


# --- what tools send -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("client", "flavor"),
    [(client, flavor) for client in CLIENTS for flavor in client.flavors],
    ids=[f"{client.name}, {flavor}" for client in CLIENTS for flavor in client.flavors],
)
def test_statements_of_tools_have_answers(site: Database, client: Client, flavor: str) -> None:
    session = session_of(site, FLAVORS[flavor], database="d")
    for statement in client.statements:
        if isinstance(statement, tuple):
            assert refused(session, statement[0]).code[0] == statement[1], statement
            continue
        found = answer(session, statement.encode())
        if isinstance(found, Shown):
            for row in found.rows:
                assert len(row) == len(found.names) and all(each is None or isinstance(each, bytes) for each in row)
        else:
            assert statement.split()[0].upper() in ("SET", "USE", "FLUSH", "START", "UNLOCK", "COMMIT", "ROLLBACK")
    session.close()
    assert not session.snapshot


@BOTH
def test_nothing_else_is_said_to_be_done(site: Database, flavor: Flavor) -> None:
    session = session_of(site, flavor, database="d")
    for statement in REFUSED:
        assert refused(session, statement).code[0] == 1235, statement
    assert site["d.t"].count() == 2 and site["d.u"].count() == 0


def test_refusal_has_the_first_words_and_no_secret(site: Database) -> None:
    session = session_of(site)
    assert refused(session, "SET PASSWORD = 'geheim'").message == "Unknown system variable 'PASSWORD'"
    text = "This version of MySQL doesn't yet support 'ALTER USER x IDENTIFIED'".replace("x", "X")
    assert refused(session, "ALTER USER x IDENTIFIED BY 'geheim'").message == text
    assert "geheim" not in refused(session, "CREATE USER x IDENTIFIED BY 'geheim'").message
    assert refused(session, "SELECT COUNT(*) FROM d.t").message.endswith("'SELECT COUNT' near '(*) FROM d.t'")


# --- what replicas ask -----------------------------------------------------------------------------
@BOTH
def test_end_of_the_binlog_is_its_synced_end(site: Database, flavor: Flavor) -> None:
    session = session_of(site, flavor)
    file, position = session.served.end()
    sets = [] if flavor is MARIADB else [""]
    for words in ("MASTER STATUS", "BINARY LOG STATUS", "BINLOG STATUS"):
        assert rows(session, f"SHOW {words}") == [(file, str(position), "", "", *sets)]
    files = rows(session, "SHOW BINARY LOGS")
    assert files[-1][:2] == (file, str(position)) and [each[:2] for each in files] == [
        (name, str(size)) for name, size in session.served.files()
    ]


def test_answers_tell_what_was_set(site: Database) -> None:
    session = session_of(site, MARIADB)
    assert answer(session, b"SET @master_binlog_checksum= @@global.binlog_checksum, @`X y`:=-3") == Done()
    assert session.variables == {"@master_binlog_checksum": "CRC32", "@x y": -3}
    assert one(session, "SELECT @MASTER_BINLOG_CHECKSUM") == "CRC32" and one(session, "SELECT @'x y'") == "-3"
    assert one(session, "SELECT @nothing") is None
    answer(session, b"SET SESSION net_write_timeout=77, sql_mode='ansi_quotes', @@session.autocommit=off")
    assert rows(session, "SHOW VARIABLES LIKE 'net\\_write%'") == [("net_write_timeout", "77")]
    assert rows(session, "SHOW GLOBAL VARIABLES LIKE 'net\\_write%'") == [("net_write_timeout", "60")]
    assert one(session, "SELECT @@autocommit") == "0" and one(session, "SELECT @@global.autocommit") == "1"
    assert one(session, "SELECT @@sql_mode") == "ANSI_QUOTES" and one(session, 'SELECT 1 AS "a b"') == "1"
    answer(session, b"SET autocommit=DEFAULT, sql_mode=''")
    assert one(session, "SELECT @@autocommit") == "1" and one(session, 'SELECT "a b"') == "a b"


def test_set_is_done_in_whole_or_not_at_all(site: Database) -> None:
    session = session_of(site)
    before = dict(session.variables)
    for statement, number in [
        ("SET @a=1, wait_timeout=5, nothing=1", 1193),
        ("SET @a=1, server_id=5", 1238),
        ("SET @a=1, GLOBAL wait_timeout=5", 1227),
        ("SET @@global.wait_timeout=5", 1227),
        ("SET NAMES ucs2", 1231),
        ("SET character_set_client=NULL", 1231),
        ("SET wait_timeout='x'", 1231),
        ("SET transaction_isolation='x'", 1231),
        ("SET time_zone='Europe/Berlin'", 1298),
        ("SET sql_quote_show_create=0", 1231),
        ("SET @a=1, @b", 1235),
        ("SET SESSION TRANSACTION READ WRITE", 1235),
    ]:
        assert refused(session, statement).code[0] == number, statement
        assert session.variables == before


def test_variables_of_one_kind_of_server_are_unknown_to_the_other(site: Database) -> None:
    for flavor, other in ((MYSQL, "gtid_domain_id"), (MARIADB, "server_uuid"), (MARIADB, "gtid_mode")):
        found = refused(session_of(site, flavor), f"SELECT @@GLOBAL.{other}")
        assert (found.code[0], found.message) == (1193, f"Unknown system variable '{other}'")
        assert rows(session_of(site, flavor), f"SHOW VARIABLES LIKE '{other}'") == []


@BOTH
def test_variables_are_chosen_by_like_equals_in_and_or(site: Database, flavor: Flavor) -> None:
    session = session_of(site, flavor)
    every = dict(rows(session, "SHOW VARIABLES"))
    assert every["server_id"] == "1" and every["log_bin"] == "ON" and every["version"] == flavor.version
    assert dict(rows(session, "show session variables like 'SERVER_ID'")) == {"server_id": "1"}
    wanted = {"server_id", "log_bin", "binlog_format"}
    where = "Variable_name IN ('SERVER_ID', 'log_bin') OR (variable_name = 'binlog_format' AND Value <> 'x')"
    assert dict(rows(session, f"SHOW VARIABLES WHERE {where}")) == {name: every[name] for name in wanted}
    assert rows(session, "SHOW VARIABLES WHERE Variable_name LIKE 'binlog\\_%' AND Variable_name NOT LIKE '%'") == []
    assert {name for name in every if name[:7] == "binlog_"} == {
        name for name, _ in rows(session, "SHOW VARIABLES LIKE 'BINLOG\\_%'")
    }
    assert refused(session, "SHOW VARIABLES WHERE x = 1").code[0] == 1054


@pytest.mark.parametrize(
    ("options", "image"), [(WHOLE, "FULL"), ({}, "MINIMAL"), ({"log_update_as_write": False}, "MINIMAL")]
)
def test_row_image_is_full_only_where_it_is(options: dict[str, Any], image: str) -> None:
    """Story: by default an update is logged as a write of the changed columns, and tools took it for an insert."""
    db = open_site(**options)
    db.create_table("d.t", COLUMNS, "id")
    assert one(session_of(db), "SELECT @@global.binlog_row_image") == image
    db.close()


# --- functions -------------------------------------------------------------------------------------
def test_functions_have_their_values(site: Database) -> None:
    session = session_of(site, database="d")
    seconds = int(one(session, "SELECT UNIX_TIMESTAMP()") or "")
    assert seconds == site.endpoint.clock.wall_us() // 1_000_000
    assert one(session, "SELECT UTC_TIMESTAMP()") == datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    answer(session, b"SET time_zone='-03:30'")
    assert one(session, "SELECT TIMEDIFF(NOW(), UTC_TIMESTAMP())") == "-03:30:00"
    assert one(session, "SELECT TIME_TO_SEC(TIMEDIFF(CURRENT_TIMESTAMP, UTC_TIMESTAMP))") == "-12600"
    assert one(session, "SELECT TIMEDIFF(NULL, NOW(6))") is None
    for call, value in {
        "VERSION()": MYSQL.version,
        "DATABASE()": "d",
        "CONNECTION_ID()": "7",
        "USER()": "repl@127.0.0.1",
        "CURRENT_USER": "repl@%",
        "CONCAT('a', 1, 'b')": "a1b",
        "-1.50": "-1.50",
        "NULL": None,
        "TRUE": "1",
    }.items():
        assert one(session, f"SELECT {call}") == value, call
    assert answer(session, b"SELECT VERSION() AS `a b`, VERSION( ) , @@server_id x").names == [
        "a b",
        b"VERSION( )",
        "x",
    ]


def test_functions_of_other_servers_and_other_arguments_are_refused(site: Database) -> None:
    session = session_of(site)
    for call in (
        "BINLOG_GTID_POS('x', 4)",
        "TIMEDIFF('1', '2')",
        "VERSION(1)",
        "GTID_SUBSET('')",
        "NOW(1, 2)",
        "1e999",
    ):
        assert refused(session, f"SELECT {call}").code[0] == 1235, call
    assert "of MariaDB doesn't" in refused(session_of(site, MARIADB), "SELECT VERSION(1)").message


def test_gtid_functions_are_whole(site: Database) -> None:
    """Story: a shortcut made a tool say that what it needs was purged."""
    session = session_of(site)
    a, b = "7f0b9a52-2f1b-11f0-9a52-7f0b9a522f1b", "8f0b9a52-2f1b-11f0-9a52-7f0b9a522f1b"
    assert one(session, f"SELECT GTID_SUBTRACT('{a}:1-10,{b}:1', '{a}:3-4:7,{b}:1-9')") == f"{a}:1-2:5-6:8-10"
    assert one(session, f"SELECT GTID_SUBSET('{a}:3', '{a}:1-2:4')") == "0"
    assert one(session, f"SELECT GTID_SUBSET('{a}:2', '{a}:1-2:4')") == "1"
    assert one(session, "SELECT GTID_SUBTRACT(@@global.gtid_executed, NULL)") is None
    found = refused(session, "SELECT GTID_SUBSET('x', '')")
    assert (found.code[0], found.message) == (1772, "Malformed GTID set specification 'x'.")


# --- tables ----------------------------------------------------------------------------------------
@BOTH
def test_tables_are_shown_as_they_are(site: Database, flavor: Flavor) -> None:
    session = session_of(site, flavor, database="d", may_read=False)
    assert rows(session, "SHOW DATABASES") == [("d",), ("information_schema",), ("main",)]
    assert rows(session, "SHOW TABLES") == [("t",), ("u",)]
    assert rows(session, "SHOW FULL TABLES IN `d` WHERE Table_Type = 'base table'") == [
        ("t", "BASE TABLE"),
        ("u", "BASE TABLE"),
    ]
    assert rows(session, "SHOW TABLES FROM d LIKE 'T'") == []
    assert answer(session, b"SHOW TABLES LIKE 't'").names == ["Tables_in_d (t)"]
    assert rows(session, "SHOW COLUMNS FROM t FROM d") == [
        ("id", "bigint", "NO", "PRI", None, ""),
        ("text", "varchar(20)", "YES", "MUL", "it's \\", ""),
    ]
    assert [row[2:5:2] for row in rows(session, "SHOW INDEX FROM d.t")] == [("PRIMARY", "id"), ("by_text", "text")]
    assert rows(session, "SHOW TABLE STATUS LIKE 't'")[0][4] == "2"
    assert one(session, "SHOW GRANTS") == "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `repl`@`%`"
    labels = answer(session, b"SELECT column_name c, Column_Type FROM information_schema.columns").names
    assert labels == ["c", "Column_Type" if flavor is MARIADB else "COLUMN_TYPE"]
    where = "table_schema IN ('d') AND table_name='u' ORDER BY ordinal_position DESC"
    assert rows(
        session, f"SELECT column_name, column_type, column_key FROM information_schema.columns WHERE {where}"
    ) == [
        ("e", "enum('A','b')", ""),
        ("n", "bigint unsigned", "PRI"),
    ]


def test_statement_of_show_create_table_makes_the_table() -> None:
    from tidemark.replication.sql.parse import parse

    db = open_site()
    table = every_type(name="d.every")
    db.create_table("d.every", table.columns, "id")
    db.create_index("d.every", "u", ["c0", "c5"], unique=True)
    db.create_index("d.every", "o", ["c1"])
    ((name, text),) = rows(session_of(db), "SHOW CREATE TABLE d.every")
    assert name == "every" and text is not None
    (made,) = parse(text, "d")
    shown = db["d.every"].definition
    assert [(each.name, each.nullable) for each in made.definition.columns] == [
        (each.name, each.nullable) for each in shown.columns
    ]
    assert {each.name: (each.columns, each.is_unique) for each in made.definition.indexes} == {
        each.name: (each.columns, each.is_unique) for each in shown.indexes
    }
    db.close()


def test_what_is_not_there_is_an_error(site: Database) -> None:
    session = session_of(site)
    for statement, number in [
        ("SHOW TABLES", 1046),
        ("SHOW TABLES FROM x", 1049),
        ("USE x", 1049),
        ("SHOW CREATE TABLE d.x", 1146),
        ("SHOW COLUMNS FROM d.x", 1146),
        ("SELECT * FROM mysql.ndb_apply_status", 1049),
        ("SELECT * FROM d.x", 1146),
        ("SELECT x FROM d.t", 1054),
        ("SELECT x FROM information_schema.tables", 1054),
        ("SELECT u.id FROM d.t", 1054),
        ("SELECT t.id FROM d.t u", 1054),
        ("SELECT * FROM information_schema.x", 1109),
        ("KILL 9", 1094),
    ]:
        assert refused(session, statement).code[0] == number, statement
        ((level, shown, message),) = rows(session, "SHOW WARNINGS")
        assert (level, shown) == ("Error", str(number)) and message
    assert answer(session, b"KILL 8") == Done() and rows(session, "SHOW WARNINGS") == []


@BOTH
def test_table_of_status_rows_is_told_of_where_dumps_have_them(site: Database, flavor: Flavor) -> None:
    """Story: with status rows a tool asked for the table of the events that it had got, and heard 1049."""
    session = session_of(site, flavor, shows_status=True)
    assert ("mysql",) in rows(session, "SHOW DATABASES") and ("mysql",) not in rows(session_of(site), "SHOW DATABASES")
    assert rows(session, "SHOW TABLES FROM mysql") == [("ndb_apply_status",)]
    ((_, text),) = rows(session, "SHOW CREATE TABLE mysql.ndb_apply_status")
    assert text is not None and "`log_name` VARCHAR(255) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL" in text
    found = rows(
        session,
        "SELECT column_name, data_type, character_set_name, column_key FROM information_schema.columns"
        " WHERE table_schema='mysql' ORDER BY ordinal_position",
    )
    assert found == [
        ("server_id", "int", None, "PRI"),
        ("epoch", "bigint", None, ""),
        ("log_name", "varchar", "latin1", ""),
        ("start_pos", "bigint", None, ""),
        ("end_pos", "bigint", None, ""),
    ]
    assert rows(session, "SELECT * FROM mysql.ndb_apply_status") == []
    assert refused(session, "SELECT * FROM mysql.ndb_binlog_index").code[0] == 1146


@BOTH
def test_times_to_wait_are_those_that_are_waited(site: Database, flavor: Flavor) -> None:
    """Story: `net_write_timeout` could be set, and 60 s counted all the same; wait_timeout=0 was 28,800 s."""
    session = session_of(site, flavor)
    for name, given, taken in (
        ("net_write_timeout", 600, 600),
        ("net_write_timeout", 7_200, 3_600),
        ("net_read_timeout", 0, 1),
        ("wait_timeout", 9_999_999, 9_999_999),
        ("wait_timeout", 10**30, 31_536_000),
    ):
        answer(session, f"SET {name}={given}".encode())
        warned = [("Warning", "1292", f"Truncated incorrect {name} value: '{given}'")] if given != taken else []
        assert rows(session, "SHOW WARNINGS") == warned and one(session, f"SELECT @@{name}") == str(taken)
    assert refused(session, "SET wait_timeout='long'").code[0] == 1231
    assert rows(session, "SHOW VARIABLES LIKE 'net\\_%'") == [("net_read_timeout", "1"), ("net_write_timeout", "3600")]


def test_rows_are_those_of_the_table(site: Database) -> None:
    session = session_of(site, database="d")
    assert sorted(rows(session, "SELECT * FROM t")) == [("1", "one"), ("2", None)]
    found = rows(session, "SELECT SQL_NO_CACHE `text`, ID, text FROM `d`.`t` a")
    assert set(found) == {("one", "1", "one"), (None, "2", None)}
    assert len(rows(session, "SELECT id FROM t LIMIT 1")) == 1 and rows(session, "SELECT id FROM t LIMIT 0") == []
    assert set(rows(session, "SELECT d.t.id, t.text FROM t")) == set(rows(session, "SELECT u.id, text FROM d.t AS u"))
    stranger = session_of(site, database="d", may_read=False)
    for statement, number in [
        ("SELECT * FROM t", 1142),
        ("FLUSH TABLES WITH READ LOCK", 1227),
        ("START TRANSACTION WITH CONSISTENT SNAPSHOT", 1227),
    ]:
        assert refused(stranger, statement).code[0] == number


def test_values_of_all_types_are_the_texts_of_a_server() -> None:
    db = open_site()
    table = db.create_table("d.every", every_type(name="d.every").columns, "id")
    for row in extreme_rows():
        table.insert(row)
    session = session_of(db)
    found = {row[0]: row[1:] for row in answer(session, b"SELECT * FROM d.every").rows}
    for key, *values in extreme_rows():
        for kind, value, text in zip(EXTREMES, values, found[str(key).encode()], strict=True):
            if isinstance(kind, t.Floating) and text is not None:
                # The shortest text from which a reader gets the same number.
                number = np.dtype(kind.numpy).type
                assert number(text) == number(value) and len(text) <= 25, (kind, value, text)
            else:
                assert text == expected(kind, value), (kind, value)
    db.close()


def test_packets_of_rows_are_those_of_their_texts() -> None:
    """Lengths of each form, NULL, repeated columns, several batches, and sequence numbers that begin again."""
    db = open_site(data_memory="64 MiB", redo_log="64 MiB", transaction_memory="48 MiB")
    table = db.create_table("d.t", [Column("id", t.Int64), Column("a", t.Text, nullable=True)], "id")
    sizes = [0, 1, 250, 251, 255, 256, 65_535, 65_536, 70_000, *([5] * 5_000)]
    for number, size in enumerate(sizes):
        table.insert((number, "x" * size))
    table.insert((-1, None))
    found = answer(session_of(db), b"SELECT a, id, id FROM d.t").rows
    texts, sequence, sent = list(found), 250, bytearray()
    for piece, following in found.packets(sequence):
        joined = b"".join(piece)
        sent += joined
        assert len(joined) < 1_000_000 and following == (sequence + count_of(joined)) & 0xFF
        sequence = following
    wanted = [packets(b"".join(map(text_in_packet, row)), 250 + place) for place, row in enumerate(texts)]
    assert bytes(sent) == b"".join(wanted) and len(texts) == len(sizes) + 1
    db.close()


def count_of(data: bytes) -> int:
    """Return the number of packets."""
    at = count = 0
    while at < len(data):
        at, count = at + 4 + int.from_bytes(data[at : at + 3], "little"), count + 1
    assert at == len(data)
    return count


def text_in_packet(text: bytes | None) -> bytes:
    return b"\xfb" if text is None else length_of(len(text)) + text


@pytest.mark.parametrize("size", [p.PACKET_BYTES_MAX - 5, p.PACKET_BYTES_MAX - 4, p.PACKET_BYTES_MAX + 10])
def test_row_of_several_packets(size: int) -> None:
    text = b"x" * size
    found, sequence = row_packets([pa.array([b"1", text], pa.large_binary())], 7)
    first, second = text_in_packet(b"1"), text_in_packet(text)
    assert b"".join(found) == packets(first, 7) + packets(second, 8)
    assert sequence == 9 + len(second) // p.PACKET_BYTES_MAX


def test_no_rows_have_no_packets() -> None:
    found, sequence = row_packets([pa.array([], pa.large_binary())], 7)
    assert b"".join(found) == b"" and sequence == 7


def expected(kind: Any, value: Any) -> bytes | None:
    """Return a value as MySQL's text, written again."""
    if value is None:
        return None
    if isinstance(kind, (t.Char, t.VarChar, t.LongText, t.Enum)):
        return str(value).encode()
    if isinstance(kind, t.Binary):
        return value.ljust(kind.length, b"\0")
    if isinstance(kind, (t.VarBinary, t.LongBinary)):
        return bytes(value)
    if isinstance(kind, t.Uuid):
        return value.bytes
    if isinstance(kind, t.Document):
        return kind.stored(value)
    if isinstance(kind, t.Boolean):
        return str(int(value)).encode()
    if isinstance(kind, t.Decimal):
        return f"{value:.{kind.scale}f}".encode()
    if isinstance(kind, t.TimeOfDay):
        return value.isoformat("microseconds").encode()
    if isinstance(kind, (t.LocalDateTime, t.Instant)):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds").encode()
    return str(value).encode()


def test_numbers_that_a_server_does_not_have_are_words() -> None:
    db = open_site()
    table = db.create_table("d.f", [Column("id", t.Int64), Column("a", t.Float32), Column("b", t.Float64)], "id")
    for number, value in enumerate((float("nan"), float("inf"), float("-inf"), 0.1)):
        table.insert((number, value, value))
    found = rows(session_of(db), "SELECT a, b FROM d.f")
    assert set(found) == {(each, each) for each in ("NaN", "Infinity", "-Infinity", "0.1")}
    db.close()


def test_types_of_columns_say_what_their_texts_are() -> None:
    db = open_site()
    db.create_table("d.every", every_type(name="d.every").columns, "id")
    types = answer(session_of(db), b"SELECT * FROM d.every").types[1:]
    for kind, found in zip(EXTREMES, types, strict=True):
        assert (found.collation != 63) == (kind.is_text or isinstance(kind, t.Enum)), kind
        is_unsigned = isinstance(kind, t.Integer) and not kind.signed
        assert bool(found.flags & 32) == is_unsigned and not found.flags & 3, kind
        assert found.code not in (15, 17, 18, 19), "a type that only binlogs have"
    db.close()


# --- snapshots -------------------------------------------------------------------------------------
def test_snapshot_and_its_position_are_one_thing() -> None:
    """Story: rows and position that differ by an epoch lose or double rows at the seam."""
    db = open_site(**WHOLE, log_gtids=True)
    table = db.create_table("d.t", COLUMNS, "id")
    table.insert((1, "one"))
    session, later = session_of(db, database="d"), session_of(db, MARIADB, database="d")
    for begin, end in [
        (("FLUSH TABLES WITH READ LOCK",), "UNLOCK TABLES"),
        (("START TRANSACTION WITH CONSISTENT SNAPSHOT",), "COMMIT"),
        (("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",), "ROLLBACK"),
        (("FLUSH TABLES WITH READ LOCK", "START TRANSACTION WITH CONSISTENT SNAPSHOT", "UNLOCK TABLES"), "COMMIT"),
    ]:
        for each in begin:
            assert answer(session, each.encode()) == Done()
        before, position = len(rows(session, "SELECT * FROM t")), rows(session, "SHOW MASTER STATUS")
        table.insert((before + 1, "more"))
        db.create_table("d.x", COLUMNS, "id")
        db.sync()
        assert len(rows(session, "SELECT * FROM t")) == before and rows(session, "SHOW TABLES") == [("t",)]
        assert rows(session, "SHOW MASTER STATUS") == position
        assert one(session, "SELECT @@global.gtid_executed") == position[0][4] != ""
        assert one(session, "SELECT GTID_SUBSET(@@gtid_executed, '')") == "0"
        assert rows(later, "SHOW MASTER STATUS")[0][:2] != position[0][:2]
        answer(session, end.encode())
        assert len(rows(session, "SELECT * FROM t")) == before + 1 and session.snapshot is None
        db.drop_table("d.x")
    answer(later, b"START TRANSACTION WITH CONSISTENT SNAPSHOT")
    file, position = [value for _, value in rows(later, "SHOW STATUS LIKE 'binlog_snapshot_%'")]
    assert (file, position) == rows(later, "SHOW MASTER STATUS")[0][:2]
    later.close()
    later.close()
    assert db.status()["snapshots"]["open"] == 0
    db.close()


def other(session: Session, **given: Any) -> Session:
    """Return another connection to the same port."""
    own = {"variables": {}, "snapshot": None, "warnings": [], "holders": set(), "connection_id": 8}
    return replace(session, **{**own, **given})


def test_connections_of_a_user_read_the_moment_of_its_lock() -> None:
    """Story: SET autocommit=0 and REPEATABLE READ were said to be done, and each read was of another moment. A program
    that reads tables with two connections has one state by them, and by the lock that the first one holds while the
    second begins. At the port it got rows in its copy and again as inserts of the binlog.
    """
    db = open_site(**WHOLE)
    table = db.create_table("d.t", COLUMNS, "id")
    table.insert((1, "one"))
    first = session_of(db, database="d")
    second, third = other(first), other(first, user=MysqlUser("another", SECRET, True))
    for statement in ("SET autocommit=0", "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"):
        assert {answer(each, statement.encode()) for each in (first, second, third)} == {Done()}
    answer(first, b"FLUSH TABLES WITH READ LOCK")
    answer(first, b"START TRANSACTION WITH CONSISTENT SNAPSHOT")
    place = rows(first, "SHOW MASTER STATUS")
    table.insert((2, "two"))
    db.sync()
    assert rows(second, "SHOW MASTER STATUS") != place  # no transaction has begun
    assert rows(second, "SELECT id FROM t LIMIT 1") == [("1",)]
    answer(first, b"UNLOCK TABLES")
    table.insert((3, "three"))
    assert len(rows(third, "SELECT id FROM t")) == 3
    for each in (first, second):
        assert rows(each, "SELECT id FROM t") == [("1",)] and rows(each, "SHOW MASTER STATUS") == place
    answer(first, b"COMMIT")
    assert rows(second, "SELECT id FROM t") == [("1",)]
    assert len(rows(first, "SELECT id FROM t")) == 3
    for end in (b"ROLLBACK", b"SET autocommit=1"):
        answer(second, end)
        assert second.snapshot is None
        assert len(rows(second, "SELECT id FROM t")) == 3
    assert second.snapshot is None and first.snapshot is not None
    for each in (first, second, third):
        each.close()
    assert db.status()["snapshots"]["open"] == 0
    db.close()


@pytest.mark.parametrize("variables", [("autocommit=1", "REPEATABLE READ"), ("autocommit=0", "READ COMMITTED")])
def test_reads_without_a_transaction_are_of_the_present_moment(variables: tuple[str, str]) -> None:
    db = open_site(**WHOLE)
    table = db.create_table("d.t", COLUMNS, "id")
    session = session_of(db, database="d")
    answer(session, f"SET {variables[0]}".encode())
    answer(session, f"SET SESSION TRANSACTION ISOLATION LEVEL {variables[1]}".encode())
    for number in (1, 2):
        table.insert((number, "one"))
        assert len(rows(session, "SELECT id FROM t")) == number
    assert session.snapshot is None
    db.close()


def test_snapshot_ends_after_its_time() -> None:
    db = open_site(**WHOLE)
    db.create_table("d.t", COLUMNS, "id").insert((1, "one"))
    session = session_of(db, database="d")
    answer(session, b"FLUSH TABLES WITH READ LOCK")
    begun = answer(session, b"SELECT * FROM t")
    db.endpoint.clock.advance(SECONDS_MAX + 1)
    for statement in ("SHOW MASTER STATUS", "SELECT @@gtid_executed"):
        assert refused(session, statement).code == ER_LIMIT
    for found in (begun, answer(session, b"SELECT * FROM t")):
        with pytest.raises(Refused) as caught:
            list(found.rows)
        assert caught.value.code == ER_LIMIT
    answer(session, b"UNLOCK TABLES")
    assert rows(session, "SELECT * FROM t") == [("1", "one")]
    db.close()


def test_table_that_goes_before_its_rows_are_read_is_an_error() -> None:
    db = open_site()
    table = db.create_table("d.t", COLUMNS, "id")
    table.insert_many([(number, "x" * 20) for number in range(5_000)])
    session = session_of(db)
    before, begun = answer(session, b"SELECT * FROM d.t"), iter(answer(session, b"SELECT * FROM d.t").rows)
    next(begun)
    db.drop_table("d.t")
    for found in (before.rows, begun):
        with pytest.raises(NoSuchTable):
            list(found)
    db.close()


# --- hostile statements ----------------------------------------------------------------------------
def test_long_and_deep_statements_are_refused_without_much_memory(site: Database) -> None:
    session = session_of(site)
    size = 1 << 20
    for statement in (
        b"'" * size,
        b"(" * size,
        b"SELECT " + b"(" * size,
        b"SELECT " + b"1," * (size // 2),
        b"SHOW VARIABLES WHERE " + b"(" * size,
        b"SHOW VARIABLES LIKE '" + b"%_" * (size // 2 - 12) + b"x'",
        b"/*" * (size // 2),
        b"SELECT " + b"9" * (size - 8),
        b"\xff" * size,
        b"@" * (2 * TOKENS_MAX),
    ):
        try:
            answer(session, statement)
        except Refused as refused:
            code, size_of_message = refused.code[0], len(refused.message.encode())
            assert (code, size_of_message < 1_000) == (1235, True), statement[:30]


def test_values_that_a_client_sets_are_bounded(site: Database) -> None:
    session = session_of(site)
    answer(session, b"SET @a='" + b"x" * 1_000_000 + b"'")
    for statement in ("SET @b=@a", f"SELECT {','.join(['@a'] * 100)}"):
        assert refused(session, statement).code[0] == 1041
    assert refused(session, f"SELECT {', '.join(['CONCAT(@a, @a)'] * 10)}").code[0] == 1041
    condition = " OR ".join(["Value = 1"] * 300)
    assert refused(session, f"SHOW VARIABLES WHERE {condition}").code[0] == 1235
    assert list(session.variables) == ["@a"] and one(session, "SELECT CONCAT(@a, @a)") is None


def test_random_statements_raise_nothing_but_refusals(site: Database) -> None:
    print("seed", SEED)
    r = random.Random(SEED)
    known = [each if isinstance(each, str) else each[0] for client in CLIENTS for each in client.statements] + REFUSED
    session = session_of(site, database="d")
    for _ in range(3_000):
        statement = bytearray(r.choice(known).encode())
        for _ in range(r.randrange(1, 5)):
            place = r.randrange(len(statement) + 1)
            other = r.choice(known).encode()
            piece = r.choice([b"", r.randbytes(1), other[r.randrange(len(other) + 1) :][:8], b"'", b"("])
            statement[place : place + r.randrange(3)] = piece
        try:
            found = answer(session, bytes(statement))
        except Refused:
            continue
        if isinstance(found, Shown):
            list(found.definitions())
            assert all(len(row) == len(found.names) for row in found.rows)
    session.close()


def test_packets_of_columns_can_be_read_back(site: Database) -> None:
    found = answer(session_of(site), b"SELECT id AS `a` FROM d.t")
    assert isinstance(found, Shown)
    (packet,) = found.definitions()
    fields = Fields(b"".join(packet))
    assert [fields.counted() for _ in range(6)] == [b"def", b"", b"", b"", b"a", b""]
    assert fields.integer(1) == 12 and fields.integer(2) == 63 and fields.integer(4) == 20
    assert (fields.integer(1), fields.integer(2), fields.integer(3), fields.left) == (8, 128 | 3, 0, 0)


# --- GTIDs -----------------------------------------------------------------------------------------
def test_gtids_are_those_of_the_history() -> None:
    db = open_site(**WHOLE, log_gtids=True)
    table = db.create_table("d.t", COLUMNS, "id")
    session, other = session_of(db), session_of(db, MARIADB)
    for number in range(3):
        table.insert((number, None))
        db.sync()
    own = one(session, "SELECT @@global.server_uuid")
    assert one(session, "SELECT @@global.gtid_mode") == "ON" == one(session, "SELECT @@enforce_gtid_consistency")
    executed = one(session, "SELECT @@global.gtid_executed")
    assert executed is not None and executed == rows(session, "SHOW MASTER STATUS")[0][4]
    last = executed.removeprefix(f"{own}:1-")
    assert int(last) >= 4
    assert one(session, "SELECT @@gtid_purged") == ""
    file, position = session.served.end()
    assert one(other, "SELECT @@gtid_current_pos") == f"0-1-{last}"
    assert one(other, f"SELECT BINLOG_GTID_POS('{file}', {position})") == f"0-1-{last}"
    assert one(other, f"SELECT binlog_gtid_pos('{file}', 4)") == ""
    for place in (f"'{file}', {position + 1}", "'x', 4", "NULL, 4", f"'{file}', 'x'"):
        assert one(other, f"SELECT binlog_gtid_pos({place})") is None
    db.binlog.set_option("log_gtids", False)
    assert one(session, "SELECT @@global.gtid_mode") == "OFF" and one(session, "SELECT @@global.gtid_executed") == ""
    assert one(session, "SELECT @@global.server_uuid") != own
    db.close()


def test_variables_follow_the_options_of_the_store() -> None:
    db = open_site(**WHOLE)
    session = session_of(db)
    assert one(session, "SELECT @@sync_binlog") == "1" and one(session, "SELECT @@max_binlog_size") == str(1 << 30)
    db.binlog.set_option("sync_binlog", 7)
    db.binlog.set_option("max_binlog_size", "64 KiB")
    assert rows(session, "SHOW VARIABLES WHERE Variable_name IN ('sync_binlog', 'max_binlog_size')") == [
        ("max_binlog_size", str(64 << 10)),
        ("sync_binlog", "7"),
    ]
    db.close()


# --- a real client ---------------------------------------------------------------------------------
@BOTH
def test_real_client_asks_and_reads_rows(flavor: Flavor, tmp_path: Path) -> None:
    pymysql = pytest.importorskip("pymysql")
    user = tm.MysqlUser("repl", SECRET, may_read=True)
    with (
        tm.open(tmp_path / "shop", server_id=5, log_bin="binlog", log_gtids=True, **WHOLE) as db,
        tm.serve_mysql(db, "127.0.0.1:0", [user], flavor.name) as serving,
    ):
        table = db.create_table("d.every", every_type(name="d.every").columns, "id")
        table.insert_many([list(row) for row in extreme_rows()])
        few = db.create_table("d.many", COLUMNS, "id")
        few.insert_many({"id": range(20_000), "text": ["x"] * 20_000})
        client = pymysql.connect(host="127.0.0.1", port=serving.address[1], user="repl", password=SECRET.decode())
        with client, client.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute("SHOW MASTER STATUS")
            file, position = cursor.fetchone()[:2]
            assert (file, position) == tuple(serving.served.end())
            few.insert((-1, "later"))
            cursor.execute("SELECT text, id FROM d.many")
            assert sorted(cursor.fetchall()) == sorted(("x", number) for number in range(20_000))
            cursor.execute("SELECT * FROM d.every")
            kinds = list(EXTREMES)
            for key, *values in cursor.fetchall():
                wanted = next(row[1:] for row in extreme_rows() if row[0] == key)
                for kind, value, found in zip(kinds, wanted, values, strict=True):
                    if isinstance(kind, (t.Integer, t.Boolean, t.Decimal, t.VarChar, t.CalendarDate, t.LongBinary)):
                        assert found == value and (value is None or isinstance(found, kind.python | int)), kind
            cursor.execute("COMMIT")
            assert cursor.execute("SELECT id FROM d.many") == 20_001
            with pytest.raises(pymysql.err.OperationalError, match="1193"):
                cursor.execute("SELECT @@nothing")
            cursor.execute("SHOW WARNINGS")
            assert cursor.fetchall() == (("Error", 1193, "Unknown system variable 'nothing'"),)
            cursor.execute("SELECT @@server_id")
            assert cursor.fetchone() == (5,)
