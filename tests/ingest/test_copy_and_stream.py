"""A copy and the stream make the same columns and the same values, for every type of MariaDB and of MySQL. Skipped
without these servers.
"""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import pytest

import tidemark as tm
from tests.ingest.rig import OPTIONS, AnySource, take_in
from tests.ingest.test_schema import described
from tests.shares import few
from tidemark.replication.ingest.address import Filter
from tidemark.replication.ingest.client import Client, TableChanged
from tidemark.replication.ingest.copy import tables_of
from tidemark.replication.ingest.source_tables import INGEST_TABLES
from tidemark.replication.sql.server_types import BYTES_MAX, INTEGER_BITS

START = "master.000001", 4
_WITHOUT_NUMBERS = {*INTEGER_BITS, *BYTES_MAX, "YEAR"}
MEMBERS = ",".join(f"'m{number}'" for number in range(64))
MANY = ",".join(f"'m{number}'" for number in range(300))
# Types of both servers, with values.
INTEGERS = {
    "TINYINT": "-128, 0, 127",
    "TINYINT(1)": "-128, 1, 127",
    "BOOL": "TRUE, FALSE, -5",
    "TINYINT UNSIGNED": "0, 255",
    "TINYINT(1) UNSIGNED": "0, 255",
    "SMALLINT": "-32768, 32767",
    "SMALLINT UNSIGNED": "0, 65535",
    "MEDIUMINT": "-8388608, 8388607",
    "MEDIUMINT UNSIGNED": "0, 16777215",
    "INT": "-2147483648, 2147483647",
    "INTEGER": "-1, 1",
    "INT(3) ZEROFILL": "0, 7, 4294967295",
    "INT UNSIGNED": "0, 4294967295",
    "BIGINT": "-9223372036854775808, 9223372036854775807",
    "BIGINT UNSIGNED": "0, 18446744073709551615",
    "SERIAL": "1, 18446744073709551614",
    "INT1": "-128, 127",
    "INT2": "-32768, 32767",
    "INT3": "-8388608, 8388607",
    "MIDDLEINT UNSIGNED": "0, 16777215",
    "INT4": "-2147483648, 2147483647",
    "INT8": "-9223372036854775808, 9223372036854775807",
}
NUMBERS = {
    "DECIMAL(4,2)": "-99.99, 0, 99.99",
    "DECIMAL(5)": "-99999, 99999",
    "DECIMAL(10,3) UNSIGNED": "0, 9999999.999",
    "DECIMAL": "-9999999999, 9999999999",
    "NUMERIC(6,3)": "-1.5, 999.999",
    "FIXED(6,3)": "-1.5, 999.999",
    "DEC(38,20)": "-999999999999999999.99999999999999999999, 0.00000000000000000001",
    "DECIMAL(38,0)": "-99999999999999999999999999999999999999, 99999999999999999999999999999999999999",
    "DECIMAL(6,3) ZEROFILL": "0, 1.5",
    "FLOAT": "-3.4028234e38, 1e-38, 0.1, 16777216",
    "FLOAT(5,2)": "-1.239, 999.99",
    "FLOAT(20)": "0.1",
    "FLOAT(30)": "0.1",
    "FLOAT UNSIGNED": "0, 0.1",
    "FLOAT4": "0.1",
    "FLOAT8": "0.1",
    "DOUBLE": "-1.7976931348623157e308, 5e-324, 0.1, 9007199254740993",
    "DOUBLE(6,2)": "-1.239, 9999.99",
    "DOUBLE PRECISION": "0.1, -1e300",
    "DOUBLE PRECISION(6,2)": "1.239",
    "REAL": "0.1, -1e300",
    "BIT": "b'0', b'1'",
    "BIT(13)": "b'0', b'1111111111111'",
    "BIT(64)": f"b'0', b'{'1' * 64}', b'1{'0' * 62}1'",
    "YEAR": "1901, 2155, 0",
}
TIMES = {
    "DATE": "'0001-01-01', '2024-02-29', '9999-12-31'",
    "TIME": "'00:00:00', '23:59:59'",
    "TIME(2)": "'00:00:00.01', '23:59:59.99'",
    "TIME(6)": "'00:00:00.000001', '23:59:59.999999'",
    "DATETIME": "'1000-01-01 00:00:00', '9999-12-31 23:59:59'",
    "DATETIME(3)": "'1000-01-01 00:00:00.001', '9999-12-31 23:59:59.999'",
    "DATETIME(6)": "'1000-01-01 00:00:00.000001', '9999-12-31 23:59:59.999999'",
    "TIMESTAMP NULL": "'1970-01-01 00:00:01', '2038-01-19 03:14:07'",
    "TIMESTAMP(3) NULL": "'1970-01-01 00:00:01.001', '2038-01-19 03:14:07.999'",
    "TIMESTAMP(6) NULL": "'1970-01-01 00:00:01.000001', '2038-01-19 03:14:07.999999'",
}
TEXTS = {
    "CHAR": "'', 'ü'",
    "CHAR(5)": "'', 'a', 'ab  ', 'üüüüü', '😀'",
    "CHAR(255)": "REPEAT('漢', 255), 'a'",
    "CHARACTER(3)": "'abc'",
    "NCHAR(5)": "'ü', ' a'",
    "NATIONAL CHAR(5)": "'ü'",
    "NATIONAL CHARACTER(5)": "'ü'",
    "CHAR(5) COLLATE utf8mb4_bin": "'ü', ''",
    "CHAR(5) BINARY": "'ü', ''",
    "CHAR(4) BYTE": "'a', x'00ff'",
    "VARCHAR(10)": "'', 'a ', ' ', 'üüüüüüüüüü', '漢😀', '\\\\''\\n\\0'",
    "VARCHAR(300)": "REPEAT('😀', 300)",
    "VARCHAR(9) CHARSET utf8mb3": "'漢', ''",
    "VARCHAR(9) CHARSET latin1": "'ü€', ''",
    "VARCHAR(9) CHARSET ascii": "'a', ''",
    "VARCHAR(9) ASCII": "'ü€', ''",
    "VARCHAR(9) COLLATE latin1_bin": "'ü€', ''",
    "CHAR VARYING(5)": "'ü '",
    "CHARACTER VARYING(5)": "'ü '",
    "VARCHARACTER(5)": "'ü '",
    "NVARCHAR(5)": "'ü '",
    "NATIONAL VARCHAR(5)": "'ü '",
    "NCHAR VARCHAR(5)": "'ü '",
    "NCHAR VARYING(5)": "'ü '",
    "NATIONAL CHAR VARYING(5)": "'ü '",
    "NATIONAL CHARACTER VARYING(5)": "'ü '",
    "TINYTEXT": "'', 'ü ', REPEAT('a', 255)",
    "TEXT": "'', 'ü ', REPEAT('ü', 32767)",
    "TEXT(300)": "'ü'",
    "TEXT CHARSET latin1": "'ü€'",
    "TEXT BINARY": "'ü'",
    "MEDIUMTEXT": "'', REPEAT('ü', 70000)",
    "LONGTEXT": "'', REPEAT('ü', 70000)",
    "LONG": "'ü'",
    "LONG VARCHAR": "'ü'",
    "ENUM('x','y','ü')": "'x', 'ü'",
    "ENUM('1','2 ')": "'1', '2'",
    f"ENUM({MANY})": "'m0', 'm255', 'm299'",
    "ENUM('x','ü') CHARSET latin1": "'x', 'ü'",
    "SET('a','b','ü')": "'', 'a', 'a,b,ü'",
    f"SET({MEMBERS})": "'', 'm0,m63', 'm0,m1,m52,m53,m54,m62'",
}
OCTETS = {
    "BINARY": "x'00', x'ff'",
    "BINARY(4)": "'', 'a', x'00ff', x'ffffffff', x'61000000'",
    "VARBINARY(6)": "'', 'a', x'00', x'ff0000'",
    "TINYBLOB": "'', x'00ff', REPEAT('a', 255)",
    "BLOB": "'', x'00ff', REPEAT('a', 65535)",
    "BLOB(300)": "x'00ff'",
    "MEDIUMBLOB": "'', REPEAT(x'00ff', 70000)",
    "LONGBLOB": "'', REPEAT(x'00ff', 70000)",
    "LONG VARBINARY": "x'00ff'",
    "GEOMETRY": "ST_GeomFromText('POINT(1 2)'), ST_GeomFromText('LINESTRING(0 0,1 1)', 0)",
    "POINT": "POINT(1, 2), POINT(-1e300, 3)",
    "LINESTRING": "ST_GeomFromText('LINESTRING(0 0,1 1,2 0)')",
    "POLYGON": "ST_GeomFromText('POLYGON((0 0,1 1,1 0,0 0))')",
    "MULTIPOINT": "ST_GeomFromText('MULTIPOINT(0 0,1 1)')",
    "MULTILINESTRING": "ST_GeomFromText('MULTILINESTRING((0 0,1 1),(2 2,3 3))')",
    "MULTIPOLYGON": "ST_GeomFromText('MULTIPOLYGON(((0 0,1 1,1 0,0 0)))')",
    "GEOMETRYCOLLECTION": "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(0 0),LINESTRING(0 0,1 1))')",
}
DEFAULTS = {
    "INT NOT NULL DEFAULT 5": "1",
    "TINYINT(1) NOT NULL DEFAULT 1": "0",
    "BIGINT UNSIGNED DEFAULT 18446744073709551615": "1",
    "DECIMAL(6,3) DEFAULT 1.5": "1",
    "FLOAT DEFAULT 0.1": "1",
    "FLOAT NOT NULL DEFAULT 1234567.5": "1",
    "DOUBLE DEFAULT 0.1": "1",
    "BIT(5) DEFAULT b'101'": "b'1'",
    "YEAR DEFAULT 2024": "2000",
    "DATE DEFAULT '2024-02-29'": "'2020-01-01'",
    "TIME(3) DEFAULT '10:11:12.5'": "'01:00:00'",
    "DATETIME(6) NOT NULL DEFAULT '2024-02-29 01:02:03.000001'": "'2020-01-01'",
    "TIMESTAMP NULL DEFAULT '2024-02-29 01:02:03'": "'2020-01-01'",
    "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP": "'2020-01-01'",
    "DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6)": "'2020-01-01'",
    "VARCHAR(20) NOT NULL DEFAULT 'it''s \\\\ ü'": "'a'",
    "CHAR(5) DEFAULT 'ab'": "'a'",
    "BINARY(4) DEFAULT 'ab'": "'a'",
    "VARBINARY(4) DEFAULT x'00ff'": "'a'",
    "ENUM('x','ü') NOT NULL DEFAULT 'ü'": "'x'",
    "SET('a','b','c') DEFAULT 'a,c'": "'b'",
    "INT NOT NULL DEFAULT 5 COMMENT 'c' UNIQUE": "1",
    "INT AS (id * 2) STORED": "",
    "INT DEFAULT 7 INVISIBLE": "1",
}
# Whole tables with columns `id` and `c`, and values of `c`.
TABLES = {
    "(c INT UNSIGNED PRIMARY KEY, id INT)": "0, 4294967295",
    "(c BIGINT PRIMARY KEY, id INT, KEY k (id), UNIQUE KEY u (id) USING BTREE)": "-9223372036854775808, 5",
    "(c VARCHAR(10), id INT, PRIMARY KEY (c, id), KEY k (id, c), UNIQUE KEY u (id, c))": "'', 'ü '",
    "(c CHAR(5) PRIMARY KEY, id INT)": "'', 'ü'",
    "(c BINARY(4) PRIMARY KEY, id INT)": "'', x'00ff'",
    "(c VARBINARY(6) PRIMARY KEY, id INT)": "'', x'00ff00'",
    "(c DECIMAL(20,5) PRIMARY KEY, id INT)": "-1.5, 0",
    "(c DATE PRIMARY KEY, id INT)": "'0001-01-01', '2024-02-29'",
    "(c DATETIME(3) PRIMARY KEY, id INT)": "'1000-01-01 00:00:00.001'",
    "(c TIME(6) PRIMARY KEY, id INT)": "'23:59:59.999999'",
    "(c ENUM('x','ü') PRIMARY KEY, id INT)": "'x', 'ü'",
    "(c TIMESTAMP(6) NOT NULL, id INT, PRIMARY KEY (id, c))": "'2038-01-19 03:14:07.999999'",
    "(id INT PRIMARY KEY, c INT) PARTITION BY HASH (id) PARTITIONS 4": "1, 2",
    "(id INT PRIMARY KEY, c INT) PARTITION BY LINEAR KEY (id) PARTITIONS 3": "1, 2",
    "(id INT PRIMARY KEY, c INT) PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (2), PARTITION b"
    " VALUES LESS THAN MAXVALUE)": "1, 2",
    "(id INT PRIMARY KEY, c INT) PARTITION BY LIST (id) (PARTITION a VALUES IN (1, 2), PARTITION b VALUES IN (0, 100,"
    " 1001, 1002))": "1, 2",
    "(id INT, c VARCHAR(9), PRIMARY KEY (id, c)) PARTITION BY RANGE COLUMNS (c, id) (PARTITION a VALUES LESS THAN"
    " ('m', 5), PARTITION b VALUES LESS THAN (MAXVALUE, MAXVALUE))": "'a', 'z'",
}
SAME = {**INTEGERS, **NUMBERS, **TIMES, **TEXTS, **OCTETS, **DEFAULTS}
DOCUMENTS = """'null', 'true', '"ü"', '""', '[]', '{}', '-0.0', '1.5e300', '1e16', '0.1', '-9223372036854775808',
    '18446744073709551615', '[1,2.5,"a",null,false,{"b":{"c":[]}}]', '{"b":1,"a":{"aa":2,"a":[1]},"":3}',
    JSON_QUOTE(REPEAT('ü', 70000)), CONCAT('[', REPEAT('"abc",', 20000), '1]'), '"\\\\u0000\\\\n😀"'"""
OWN = {
    "MariaDB": {"JSON": "'[1]', '{\"b\": 1, \"a\": [1.50, null]}', '\"ü\"'"},
    "MySQL": {
        "JSON": DOCUMENTS,
        "JSON NOT NULL": """JSON_OBJECT('d', CAST('2024-02-29' AS DATE), 't', CAST('-10:11:12.5' AS TIME(6)), 'm',
            CAST('2024-02-29 01:02:03.25' AS DATETIME(6)), 'n', CAST(-1.50 AS DECIMAL(10,2)), 'w',
            CAST(99999999999999999999 AS DECIMAL(20,0)), 'y', CAST(2024 AS UNSIGNED)),
            JSON_OBJECT('o', CAST(x'00ff' AS JSON)), JSON_ARRAY(TRUE, NULL, 1.0, 1e0)""",
        "JSON DEFAULT (JSON_ARRAY(1, 2))": "'[3]'",
        "POINT NOT NULL SRID 0": "POINT(1, 2)",
        "POINT SRID 4326": "ST_GeomFromText('POINT(1 2)', 4326)",
        "GEOMCOLLECTION": "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(0 0))')",
        "VARCHAR(40) DEFAULT (UUID())": "'a'",
    },
}
# Types that neither takes, with the word that both messages have.
REFUSED = {
    "DECIMAL(39,0)": "38",
    "CHAR(0)": "length",
    "VARCHAR(0)": "length",
    "VARCHAR(9) CHARSET ucs2": "ucs2",
    "TEXT CHARSET utf16": "utf16",
    "CHAR(9) UNICODE": "ucs2",
    "CHAR(9) CHARSET cp1251": "cp1251",
    "ENUM('ü') CHARSET latin2": "latin2",
    "INT AS (id * 2) VIRTUAL": "VIRTUAL",
}
OWN_REFUSED = {
    "MariaDB": {
        "UUID": "UUID",
        "INET4": "INET4",
        "INET6": "INET6",
        "YEAR(2)": "YEAR",
        "TEXT COMPRESSED": "COMPRESSED",
        "VARBINARY(9) COMPRESSED": "COMPRESSED",
    },
    "MySQL": {"VECTOR(3)": "VECTOR"},
}


def values_of(text: str) -> str:
    """Return rows with ids for a list of values: those of a function have commas, too."""
    values, depth, start, quote = [], 0, 0, ""
    for at, each in enumerate(text + ","):
        if quote:
            quote = "" if each == quote and text[at - 1] != "\\" else quote
        elif each in "'\"":
            quote = each
        elif each == "," and not depth:
            values.append(text[start:at].strip())
            start = at + 1
        depth += (each == "(") - (each == ")") if not quote else 0
    return ", ".join(f"({number}, {value})" for number, value in enumerate(values, 1))


def shown(value: Any) -> Any:
    """Return a value that differs from every other one: the sign of a zero counts."""
    return f"-0.0 {math.copysign(1, value)}" if isinstance(value, float) and not value else value


def known_types(db: tm.Database) -> dict[str, Any]:
    """Return what the store knows of the types at the source. Widths of integers mean nothing, and a length of a TEXT
    chooses one of its sizes.
    """
    found = {}
    for row in db[INGEST_TABLES]:
        types = json.loads(row.types)
        found[row.name] = (
            row.charset,
            [
                (column, word, [] if word in _WITHOUT_NUMBERS else numbers, members, is_unsigned, charset)
                for column, word, numbers, members, is_unsigned, charset in types
            ],
        )
    return found


def assert_alike(copied: tm.Database, streamed: tm.Database, labels: dict[str, str]) -> None:
    """Check that two stores have the same tables and rows. labels: what is in each table."""
    columns, others = described(copied), described(streamed)
    assert sorted(columns) == sorted(others)
    known, knows = known_types(copied), known_types(streamed)
    wrong = []
    for table in labels:
        if columns[table] != others[table]:
            wrong.append((labels[table], columns[table], others[table]))
        rows, ones = ([[shown(value) for value in row] for row in sorted(db[table], key=lambda row: row.id)]
                      for db in (copied, streamed))  # fmt: skip
        if rows != ones:
            wrong.append((labels[table], rows, ones))
        if known[table] != knows[table]:
            wrong.append((labels[table], known[table], knows[table]))
    assert not wrong, [str(each)[:600] for each in wrong]


def test_copy_and_stream_make_the_same_of_every_type(server_name: str, either_source: AnySource, tmp_path: Any) -> None:
    """Story: the copy of MySQL's JSON made Text and the stream made JSON: the copy read a table as one of MariaDB. It
    stopped at a SET of 64 members and at a default of bytes, the stream at INT8, NCHAR, LONG VARCHAR and SERIAL.
    """
    either_source.reset("d", "x")
    labels, statements = {}, ["DROP DATABASE x; CREATE DATABASE x CHARSET utf8mb4;"]
    for number, (kind, values) in enumerate({**SAME, **OWN[server_name], **TABLES}.items()):
        labels[f"x.t{number}"] = kind
        columns = kind if kind in TABLES else f"(id INT PRIMARY KEY, c {kind})"
        statements.append(f"CREATE TABLE x.t{number} {columns};")
        if kind not in TABLES and "NOT NULL" not in kind and kind != "SERIAL":
            statements.append(f"INSERT INTO x.t{number} (id, c) VALUES (0, {'DEFAULT' if ' AS ' in kind else 'NULL'});")
        if values:
            statements.append(f"INSERT INTO x.t{number} (id, c) VALUES {values_of(values)};")
        if "DEFAULT" in kind:
            statements.append(f"INSERT INTO x.t{number} (id) VALUES (100);")
    either_source.sql("\n".join(statements))
    with tm.open(tmp_path / "copied", **OPTIONS) as copied, tm.open(tmp_path / "streamed", **OPTIONS) as streamed:
        assert isinstance(copied, tm.Database) and isinstance(streamed, tm.Database)
        take_in(copied, either_source)
        take_in(streamed, either_source, start=START)
        assert_alike(copied, streamed, labels)
        either_source.sql(
            "".join(f"UPDATE {table} SET id = id + 1000; DELETE FROM {table} WHERE id = 1001;" for table in labels)
        )
        either_source.sql(
            "".join(f"INSERT INTO {table} (id) VALUES (7);" for table, kind in labels.items() if kind == "JSON")
        )
        take_in(copied, either_source)
        take_in(streamed, either_source, start=START)
        assert_alike(copied, streamed, labels)


def test_copy_and_stream_refuse_the_same_types(server_name: str, either_source: AnySource, tmp_path: Any) -> None:
    either_source.reset("d", "x")
    refused = {**REFUSED, **OWN_REFUSED[server_name]}
    either_source.sql(
        "".join(f"CREATE TABLE x.t{at} (id INT PRIMARY KEY, c {kind});" for at, kind in enumerate(refused))
    )
    with tm.open(tmp_path / "s", **OPTIONS) as db:
        assert isinstance(db, tm.Database)
        # A source that has streamed is not copied any more.
        for start in ("copy", START):
            for at, (kind, word) in enumerate(refused.items()):
                with pytest.raises(tm.Unsupported, match=word) as caught:
                    take_in(db, either_source, start=start, tables=[f"x.t{at}"])
                assert f"x.t{at}" in str(caught.value), kind
        assert not [table for table in db.tables() if table.startswith("x.")]


BESIDE = {
    "rename": ("RENAME TABLE d.t5 TO d.x5", "RENAME TABLE d.x5 TO d.t5"),
    "select": ("CREATE TABLE d.q (PRIMARY KEY (id)) SELECT * FROM d.t1", "DROP TABLE d.q"),
}


@pytest.mark.parametrize("what", sorted(BESIDE))
def test_listing_beside_changes_shows_the_key_of_every_table(either_source: AnySource, what: str) -> None:
    """Story: a copy named tables "without primary key" that had one, for a server reads its list of tables and that of
    their keys one after the other.
    """
    import pymysql

    either_source.reset("d")
    either_source.sql("".join(f"CREATE TABLE d.t{number} (id INT PRIMARY KEY, v INT);" for number in range(30)))
    either_source.sql("INSERT INTO d.t1 VALUES (1, 1);")
    stop = threading.Event()

    def change() -> None:
        connection = pymysql.connect(unix_socket=either_source.address.socket, user="root", autocommit=True)
        try:
            while not stop.is_set():
                for statement in BESIDE[what]:
                    connection.query(statement)
        finally:
            connection.close()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with Client(either_source.address) as client:
            for _ in range(few(1, 60)):
                try:
                    found = tables_of(client, Filter(("d.%",)))
                except TableChanged:
                    continue  # the copy begins again
                assert len(found) >= 29 and all(has_key for _, has_key in found), found
    finally:
        stop.set()
        thread.join()
