"""Statements in the sessions that wrote them: status blocks, character sets, sql_mode; defaults by a server's type."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidemark as tm
from tests.ingest import test_applier
from tests.ingest.recorded import Stream
from tests.ingest.test_applier import apply, rows, source_position_of
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.charsets import CHARACTER_BYTES, charset_of
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.table_map import MapColumn, TableMap
from tidemark.replication.binlog.types import MySqlType, character_bytes
from tidemark.replication.ingest import schema
from tidemark.replication.sql.session import Session, session_of

db = test_applier.db
DAY_ZERO = 0x8000000000 + ((2024 * 13 << 5 | 10) << 17)
ORIGIN = Position("master.000001", 400)
# Numbers of collations, as in status blocks.
IDS = {"utf8mb4": 45, "latin1": 8, "gbk": 28, "sjis": 13, "cp1251": 51, "tis620": 18}


def status(sql_mode: int = 0, zone: str = "+00:00", charset: str = "utf8mb4", connection: str = "") -> bytes:
    """Return a status block as MariaDB writes it."""
    client, connected = IDS[charset], IDS[connection or charset]
    return (
        (b"\0\0\0\0\1" + b"\1" + sql_mode.to_bytes(8, "little") + b"\6\3std")
        + (b"\4" + b"".join(number.to_bytes(2, "little") for number in (client, connected, 8)))
        + (b"\5" + bytes((len(zone),)) + zone.encode() + b"\x81" + bytes(8))
    )


def query(octets: bytes, **session: Any) -> e.Query:
    return e.Query(octets.decode("utf-8", "surrogateescape"), "d", status(**session))


def added(db: tm.Database, octets: bytes, **session: Any) -> Any:
    """Return the value that the row 1 of `d.t` gets in a new column."""
    stream = Stream().begin().insert((1, "a", 1)).commit()
    apply(db, stream.mariadb(b.MARIADB_STANDALONE).add(query(octets, **session)))
    (row,) = rows(db)
    return row[-1]


NOON = datetime(2024, 2, 29, 12)
NO_BACKSLASH, ANSI_QUOTES, ROUND, EMPTY_NULL, ORACLE, REAL = 1 << 20, 1 << 2, 1 << 34, 1 << 32, 1 << 9, 1


@pytest.mark.parametrize(
    ("definition", "session", "value"),
    [
        ("TIMESTAMP NULL DEFAULT '2024-02-29 12:00:00'", {"zone": "+05:00"}, NOON.replace(hour=7, tzinfo=UTC)),
        (
            "TIMESTAMP NULL DEFAULT '2024-02-29 12:00:00'",
            {"zone": "-03:30"},
            NOON.replace(hour=15, minute=30, tzinfo=UTC),
        ),
        ("DATETIME DEFAULT '2024-02-29 12:00:00.9'", {"zone": "+05:00"}, NOON),
        ("VARCHAR(9) DEFAULT 'a\\nb'", {}, "a\nb"),
        ("VARCHAR(9) DEFAULT 'a\\nb'", {"sql_mode": NO_BACKSLASH}, "a\\nb"),
        ("VARCHAR(9) DEFAULT 'a\\%b'", {}, "a\\%b"),
        ('VARCHAR(9) DEFAULT "it\'s"', {}, "it's"),
        ("VARCHAR(9) DEFAULT 'ü'", {}, "ü"),
        ("VARCHAR(9) DEFAULT 'ü'", {"charset": "latin1"}, "Ã¼"),
        ("BINARY(3) DEFAULT 'ü'", {}, b"\xc3\xbc\0"),
        ("BINARY(3) DEFAULT 'ü'", {"connection": "latin1"}, b"\xfc\0\0"),
        ("REAL DEFAULT 0.1", {"sql_mode": REAL}, pytest.approx(0.1, abs=1e-7)),
        ("TINYINT(1) NOT NULL DEFAULT 2", {}, 2),
        ("YEAR DEFAULT 2024", {}, 2024),
        ("FLOAT(5,2) DEFAULT 1.239", {}, pytest.approx(1.24, abs=1e-6)),
        ("DOUBLE(6,2) DEFAULT 1.239", {}, 1.24),
        ("DECIMAL(4,2) DEFAULT 1.239", {}, Decimal("1.24")),
        ("VARCHAR(9) DEFAULT 007", {}, "7"),
        ("VARCHAR(9) DEFAULT .5", {}, "0.5"),
        ("CHAR(5) DEFAULT 'a '", {}, "a"),
        ("VARCHAR(20) DEFAULT '0000-00-00'", {}, "0000-00-00"),
        ("TIME DEFAULT '10:11:12.9'", {}, time(10, 11, 12)),
        ("SET('a','b','c') DEFAULT 'c,a'", {}, 5),
        ("BIT(5) DEFAULT b'101'", {}, 5),
        ("DATE NULL", {}, None),
        ("TIMESTAMP NULL", {}, None),
        ("TIME NOT NULL", {}, time(0)),
        ("ENUM('x ','y') NOT NULL", {}, "x"),
        ("DATE DEFAULT '2024-2-9'", {}, date(2024, 2, 9)),
    ],
)
def test_added_column_has_the_value_of_the_server(
    db: tm.Database, definition: str, session: dict[str, Any], value: Any
) -> None:
    """Story: a server added columns with defaults, and rows that were there got other values than it gave them."""
    assert added(db, f"ALTER TABLE t ADD COLUMN c {definition}".encode(), **session) == value


@pytest.mark.parametrize(
    ("definition", "session"),
    [
        ("TIMESTAMP NULL DEFAULT '2024-02-29 12:00:00'", {"zone": "SYSTEM"}),
        ("TIMESTAMP NULL DEFAULT '2024-02-29 12:00:00'", {"zone": "Europe/Berlin"}),
        ("TIMESTAMP NULL DEFAULT '2038-01-19 12:00:00'", {}),
        ("DATETIME DEFAULT '2024-02-29 12:00:00.9'", {"sql_mode": ROUND}),
        ("VARCHAR(9) DEFAULT ''", {"sql_mode": EMPTY_NULL}),
        ("DATE DEFAULT '2024-02-29'", {"sql_mode": ORACLE}),
        ("DATE DEFAULT '0000-00-00'", {}),
        ("DATE NOT NULL", {}),
        ("DATETIME DEFAULT 0", {}),
        ("TIME DEFAULT '12'", {}),
        ("YEAR DEFAULT 24", {}),
        ("INT DEFAULT 1.5", {}),
        ("VARCHAR(9) DEFAULT 1e2", {}),
        ("ENUM('x') DEFAULT 'X'", {}),
        ("BIT(8) DEFAULT '5'", {}),
        ("VARCHAR(9) DEFAULT 'ж'", {"connection": "latin1"}),
        ("VARCHAR(9) CHARACTER SET cp1251 DEFAULT 'a'", {}),
        ("INT AUTO_INCREMENT, ADD KEY (c)", {}),
        ("DATETIME DEFAULT CURRENT_TIMESTAMP", {}),
        ("TEXT COMPRESSED", {}),
    ],
)
def test_added_column_whose_values_are_not_known_stops_and_names_it(
    db: tm.Database, definition: str, session: dict[str, Any]
) -> None:
    with pytest.raises(tm.Unsupported) as caught:
        added(db, f"ALTER TABLE t ADD COLUMN n2 INT, ADD COLUMN c {definition}".encode(), **session)
    said = str(caught.value)
    assert "d.t." in said and "master.000001 at " in said and "--skip master.000001:" in said
    assert [column.name for column in db["d.t"].definition.columns] == ["id", "a", "n"], "nothing was begun"


def test_statement_in_characters_that_are_not_read_stops_only_where_they_count(db: tm.Database) -> None:
    r"""A character of GBK or SJIS may end with the byte of a backslash, which escapes nothing."""
    for charset, octets in (("gbk", b"\xd5\x5c"), ("sjis", b"\x95\x5c")):
        with pytest.raises(tm.Unsupported, match=charset):
            added(db, b"ALTER TABLE t ADD COLUMN c VARCHAR(9) DEFAULT '" + octets + b"'", charset=charset)
    assert added(db, b"ALTER TABLE t ADD COLUMN c INT DEFAULT 4 COMMENT '\xd5\x5c'", charset="gbk") == 4


@pytest.mark.parametrize(
    ("octets", "session"),
    [
        (b"ALTER TABLE t ADD COLUMN c VARCHAR(9) DEFAULT '\xff'", {}),
        (b"ALTER TABLE t ADD COLUMN c VARCHAR(9) DEFAULT '\xc1'", {"charset": "tis620"}),
        (b"ALTER TABLE t ADD COLUMN `\xff` INT", {}),
    ],
)
def test_bytes_of_no_known_character_stop(db: tm.Database, octets: bytes, session: dict[str, Any]) -> None:
    with pytest.raises(tm.Unsupported, match="character set"):
        added(db, octets, **session)


def test_names_in_double_quotes_are_names_in_ansi_mode(db: tm.Database) -> None:
    """Story: DROP DATABASE of a name in double quotes was taken for one of those statements that change nothing."""
    assert added(db, b'ALTER TABLE "t" ADD COLUMN "c" VARCHAR(9) DEFAULT \'x"\'', sql_mode=ANSI_QUOTES) == 'x"'
    apply(db, Stream(position=source_position_of(db).position).add(query(b'DROP DATABASE "d"', sql_mode=ANSI_QUOTES)))
    assert db.tables() == []


def test_database_is_dropped_whatever_comment_follows(db: tm.Database) -> None:
    apply(db, Stream().add(query(b"DROP SCHEMA IF EXISTS d /* the end */")))
    assert db.tables() == []


def test_session_is_read_from_the_status_block() -> None:
    found = session_of(status(1 << 20 | 1 << 22, "-03:30", "gbk", "latin1"), ORIGIN)
    assert found == Session(1 << 20 | 1 << 22, "-03:30", "gbk", "latin1", True, "latin1")
    assert found.is_strict and not found.has_backslashes
    assert session_of(b"", ORIGIN) == Session(has_explicit_timestamp=False)


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_status_block_is_read_or_refused(octets: bytes) -> None:
    try:
        session_of(octets, ORIGIN)
    except tm.BinlogDamaged:
        pass


# All collations of MariaDB 10.11 whose text row events bring.
_COLLATIONS = {
    "latin1": "5,8,15,31,47,48,49,94,1032,1071",
    "ascii": "11,65,1035,1089",
    "utf8mb3": "33,83,192,215,223,576,577,578,1057,1107,1216,1238,2048",
    "utf8mb4": "45,46,224,247,608,609,610,1069,1070,1248,1270,2304",
    "binary": "63",
}


@pytest.mark.parametrize("charset", sorted(_COLLATIONS))
def test_collation_is_known_by_its_number(charset: str) -> None:
    for number in map(int, _COLLATIONS[charset].split(",")):
        assert (charset_of(number), character_bytes(number)) == (charset, CHARACTER_BYTES[charset])
    with pytest.raises(tm.Unsupported, match="cp1251"):
        character_bytes(51)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("`a` varchar(20) CHARACTER SET cp1251 COLLATE cp1251_general_ci DEFAULT NULL", "cp1251"),
        ("`a` text /*M!100301 COMPRESSED*/ DEFAULT NULL", "COMPRESSED"),
        ("`a` year(2) DEFAULT NULL", "YEAR"),
        ("`a` enum('ü') CHARACTER SET latin2 DEFAULT NULL", "latin2"),
    ],
)
def test_copy_refuses_a_table_that_row_events_do_not_bring(column: str, says: str) -> None:
    """Story: a table was copied, and its first change stopped the ingest, after which no start got further."""
    text = f"CREATE TABLE `t` (`id` int(11) NOT NULL, {column}, PRIMARY KEY (`id`)) DEFAULT CHARSET=utf8mb4"
    with pytest.raises(tm.Unsupported, match=says) as caught:
        schema.table_of_text(text, "d", True)
    assert "d.t.a" in str(caught.value)
    text = "CREATE TABLE `t` (`id` int(11) NOT NULL, `a` text, PRIMARY KEY (`id`)) ENGINE=InnoDB DEFAULT CHARSET=ucs2"
    with pytest.raises(tm.Unsupported, match="ucs2"):
        schema.table_of_text(text, "d", True)


def row_event(mysql: MySqlType, octets: bytes) -> Stream:
    """Return a stream that inserts the row 1 with the bytes of a value in column `a`."""
    key = MapColumn(MySqlType(b.TYPE_LONG, is_unsigned=False), False, "id")
    described = TableMap(30, "d", "t", (key, MapColumn(mysql, True, "a")), (0,))
    body = b"\xfc" + (1).to_bytes(4, "little") + octets
    return Stream().begin().add(described, e.Rows(e.WRITE, 30, 2, None, b"\3", body, b.ROWS_STATEMENT_END)).commit()


@pytest.mark.parametrize(
    ("kind", "mysql", "octets", "shown"),
    [
        (tm.Date, MySqlType(b.TYPE_DATE), b"\0\0\0", "0000-00-00"),
        (tm.Time, MySqlType(b.TYPE_TIME, b"\0"), (0x800000 - 1).to_bytes(3, "big"), "-00:00:01"),
        (tm.Time, MySqlType(b.TYPE_TIME, b"\3"), (0x8000000000 - 15_000).to_bytes(5, "big"), "-00:00:00.500"),
        (tm.DateTime, MySqlType(b.TYPE_DATETIME, b"\0"), DAY_ZERO.to_bytes(5, "big"), "2024-00-10 00:00:00"),
        (tm.Timestamp, MySqlType(b.TYPE_TIMESTAMP, b"\0"), bytes(4), "0000-00-00 00:00:00"),
        (tm.Enum("x"), MySqlType(b.TYPE_STRING, bytes((b.TYPE_ENUM, 1)), collation=46, members=("x",)), b"\0", "''"),
        (tm.VarChar(9), MySqlType(b.TYPE_VARCHAR, b"\x09\0", collation=11), b"\2a\xfc", r"'a\xfc'"),
    ],
)  # fmt: skip
def test_value_that_the_store_does_not_have_is_named_with_its_column(
    db: tm.Database, kind: Any, mysql: MySqlType, octets: bytes, shown: str
) -> None:
    """Story: a row with the date 0000-00-00 stopped the ingest with "column 1 of row 0 has a value that Date does not
    hold", which of a hundred tables it was was for the user to find.
    """
    db.drop_table("d.t")
    db.create_table("d.t", [tm.Column("id", tm.Int32), tm.Column("a", kind, nullable=True)], "id")
    with pytest.raises(tm.ValueOutOfRange) as caught:
        apply(db, row_event(mysql, octets))
    said = str(caught.value)
    assert all(each in said for each in ("d.t.a", shown, "master.000001 at ", "filter")), said


@pytest.mark.parametrize(
    ("mysql", "octets", "says"),
    [
        (MySqlType(b.TYPE_BLOB_COMPRESSED, b"\2"), b"\1\0x", "COMPRESSED"),
        (MySqlType(b.TYPE_VARCHAR_COMPRESSED, b"\x64\0"), b"\1x", "COMPRESSED"),
        (MySqlType(b.TYPE_VECTOR, b"\4"), bytes(4), "type 242"),
        (MySqlType(b.TYPE_VARCHAR, b"\x09\0", collation=51), b"\1a", "cp1251"),
        (MySqlType(30), b"", "type 30"),
    ],
)
def test_type_that_is_not_read_is_no_damage(db: tm.Database, mysql: MySqlType, octets: bytes, says: str) -> None:
    """Story: a TEXT COMPRESSED stopped the ingest with "the file is damaged; copy it from a backup"."""
    with pytest.raises(tm.Unsupported, match=says) as caught:
        apply(db, row_event(mysql, octets))
    assert "d.t" in str(caught.value) and "master.000001 at " in str(caught.value)


def test_unwanted_table_may_have_any_type_of_known_size(db: tm.Database) -> None:
    from tidemark.replication.ingest.address import Filter

    stream = row_event(MySqlType(b.TYPE_BLOB_COMPRESSED, b"\2"), b"\1\0x")
    apply(db, stream, wanted=Filter((), ("d.t",)))
    assert source_position_of(db).position == stream.position


def test_row_that_leaves_out_a_column_of_unknown_default_stops(db: tm.Database) -> None:
    """Story: `DATE DEFAULT '0000-00-00'` became NULL here in rows of a session with binlog_row_image=MINIMAL."""
    apply(db, Stream().statement("CREATE TABLE z (id INT PRIMARY KEY, a DATE DEFAULT '0000-00-00')"))
    described = db["d.z"].definition
    stream = Stream(position=source_position_of(db).position).begin()
    with pytest.raises(tm.Unsupported, match=r"d\.z leaves a out.*binlog_row_image=FULL"):
        apply(db, stream.insert((1, None), columns=((), ("id",)), definition=described).commit())


def test_fraction_of_a_second_is_rounded_by_mysql(db: tm.Database) -> None:
    """MariaDB truncates it; the bit by which MySQL does so means another thing there."""
    text = b"ALTER TABLE t ADD COLUMN c DATETIME DEFAULT '2024-02-29 12:00:00.9'"
    for sql_mode in (0, 1 << 32):
        stream = Stream(position=source_position_of(db).position, server=b"8.0.36")
        stream.mariadb(b.MARIADB_STANDALONE).add(query(text, sql_mode=sql_mode))
        if sql_mode:
            apply(db, stream)
        else:
            with pytest.raises(tm.Unsupported, match=r"d\.t\.c"):
                apply(db, stream)
    assert db["d.t"].definition.columns[-1].default == NOON
