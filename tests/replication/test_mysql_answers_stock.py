"""Answers about tables next to those of real servers, which make the table by the statement that is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.replication.mariadb_rig import Server
from tests.replication.mysql_rig import SERVERS
from tests.replication.site import open_site
from tests.replication.support import EXTREMES, every_type, extreme_rows
from tests.replication.test_mysql_answers import rows, session_of
from tidemark.engine import types as t
from tidemark.engine.schema.column import Column
from tidemark.engine.types import ColumnType
from tidemark.replication.mysql_source.answers import Shown, answer
from tidemark.replication.mysql_source.flavors import MARIADB, MYSQL
from tidemark.replication.mysql_source.session import Session

_COLUMNS = (
    "column_name, ordinal_position, is_nullable, data_type, character_maximum_length, character_octet_length,"
    " numeric_precision, numeric_scale, datetime_precision, character_set_name, collation_name, column_type, column_key"
)
_STATISTICS = "index_name, non_unique, seq_in_index, column_name, nullable"
_KEYS = "constraint_name, table_name, column_name, ordinal_position"


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with SERVERS[request.param]() as running:
        yield running


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    """A store with tables, each made at the server by the statement that SHOW CREATE TABLE gives."""
    db = open_site()
    db.create_table("d.every", every_type(name="d.every").columns, "id").insert_many(extreme_rows())
    columns = [
        Column("a", t.Int32, default=5),
        Column("b", t.UInt8, nullable=True),
        Column("c", t.VarChar(10), default="it's \\"),
        Column("d", t.Decimal(8, 3), nullable=True),
        Column("e", t.Enum("x", "Y'z"), default="x"),
        Column("f", t.Date),
    ]
    db.create_table("d.keys", columns, ["a", "c"])
    db.create_index("d.keys", "u", ["d"], unique=True)
    db.create_index("d.keys", "w", ["b", "f"], unique=True, ordered=True)
    db.create_index("d.keys", "k", ["f"])
    session = session_of(db, MYSQL if "MySql" in type(server).__name__ else MARIADB)
    server.sql("DROP DATABASE IF EXISTS d; CREATE DATABASE d CHARACTER SET utf8mb4;")
    for name in ("every", "keys"):
        ((_, text),) = rows(session, f"SHOW CREATE TABLE d.{name}")
        server.sql(f"USE d; {text};")
    yield session
    db.close()


def both(server: Server, session: Session, statement: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows of the real server, and ours."""
    # The client doubles backslashes.
    real = [line.replace("\\\\", "\\").split("\t") for line in server.sql(statement + ";").splitlines()]
    return real, [["NULL" if each is None else each for each in row] for row in rows(session, statement)]


def without_widths(rows: list[list[str]]) -> list[list[str]]:
    """Leave out the display widths of integers, which MySQL no longer has, except of Bool."""
    return [[re.sub(r"^((?:tiny|small|big)?int)\((?!1\))\d+\)", r"\1", each) for each in row] for row in rows]


@pytest.mark.parametrize(
    ("columns", "table", "order"),
    [
        (_COLUMNS, "columns", "table_name, ordinal_position"),
        (_STATISTICS, "statistics", "table_name, index_name, seq_in_index"),
        (_KEYS, "key_column_usage", "table_name, constraint_name, ordinal_position"),
    ],
)
def test_information_schema_is_that_of_a_real_server(
    server: Server, session: Session, columns: str, table: str, order: str
) -> None:
    statement = f"SELECT {columns} FROM information_schema.{table} WHERE table_schema = 'd' ORDER BY {order}"
    real, ours = both(server, session, statement)
    assert without_widths(real) == ours


@pytest.mark.parametrize(
    "statement",
    [
        "SHOW TABLES FROM d",
        "SHOW FULL TABLES FROM d",
        "SHOW TABLES FROM d LIKE 'k%'",
        "SHOW COLUMNS FROM d.keys",
        "SHOW FIELDS FROM `every` IN d LIKE 'c1_'",
        "SELECT schema_name, default_character_set_name FROM information_schema.schemata WHERE schema_name IN ('d')",
        "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema='d' ORDER BY table_name DESC",
        "SELECT 1, 'x', NULL, -2.50, TRUE, CONCAT('a', 1)",
        "SELECT GTID_SUBTRACT('7f0b9a52-2f1b-11f0-9a52-7f0b9a522f1b:1-10', '7f0b9a52-2f1b-11f0-9a52-7f0b9a522f1b:3')",
    ],
)
def test_answer_is_that_of_a_real_server(server: Server, session: Session, statement: str) -> None:
    if "GTID_" in statement and session.flavor is MARIADB:
        pytest.skip("MariaDB has no such function")
    real, ours = both(server, session, statement)
    assert without_widths(real) == ours


def test_texts_of_values_are_those_of_a_real_server(server: Server, session: Session) -> None:
    """Floats are left out: a server shows six digits of a FLOAT, and another exponent."""
    shown = {kind: f"c{place}" for place, kind in enumerate(EXTREMES) if not isinstance(kind, t.Floating)}
    ours = answer(session, f"SELECT id, {', '.join(shown.values())} FROM d.`every`".encode())
    assert isinstance(ours, Shown)
    texts = sorted([None if each is None else bytes(each) for each in row] for row in ours.rows)
    names = ", ".join(["id", *shown.values()])
    for row in texts:
        values = ", ".join(
            "NULL" if each is None else _literal(each, kind) for each, kind in zip(row, [None, *shown], strict=True)
        )
        server.sql(f"INSERT INTO d.`every` ({names}) VALUES ({values});")
    hexadecimal = ", ".join(f"HEX(CONCAT({name}))" for name in shown.values())
    found = [
        line.split("\t") for line in server.sql(f"SELECT id, {hexadecimal} FROM d.`every` ORDER BY id;").splitlines()
    ]
    assert len(found) == len(texts)
    by_id = {str(row[0], "ascii"): row[1:] for row in texts if row[0] is not None}
    for key, *values in found:
        for kind, text, value in zip(shown, by_id[key], values, strict=True):
            assert value == ("NULL" if text is None else text.hex().upper()), (kind, key)


def _literal(text: bytes | None, kind: ColumnType | None) -> str:
    if text is None:
        return "NULL"
    is_octets = isinstance(kind, (t.Binary, t.VarBinary, t.LongBinary, t.Uuid))
    return f"x'{text.hex()}'" if is_octets else f"CONVERT(x'{text.hex()}' USING utf8mb4)"
