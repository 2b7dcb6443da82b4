"""Texts: SQL of servers and of other stores, addresses, groups, patterns, options, conflict functions."""

from __future__ import annotations

from functools import cache

from tests.fuzz.harness import Reader
from tests.fuzz.mutations import json_tree, octets, words
from tests.replication.support import every_type
from tidemark.engine.base.errors import Rejected, SchemaInvalid, Unsupported, VersionTooOld
from tidemark.engine.base.options import Options
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.applier.filters import Filter
from tidemark.replication.binlog.position import Position
from tidemark.replication.ingest import address as mysql
from tidemark.replication.ingest.schema import steps_of, table_of_text
from tidemark.replication.node_group.configuration import GroupConfiguration
from tidemark.replication.settings.conflict_function import parse as parse_function
from tidemark.replication.settings.match import matches
from tidemark.replication.sql.emit import emit
from tidemark.replication.sql.parse import parse
from tidemark.replication.sql.statements import CreateTable
from tidemark.replication.wire.wire import parse_address

_STATEMENTS = (
    "CREATE TABLE u (id INT PRIMARY KEY, a VARCHAR(10), b INT NOT NULL, KEY k (b), UNIQUE KEY q (a))",
    "CREATE TABLE IF NOT EXISTS `d`.`t` (`id` bigint(20) unsigned NOT NULL AUTO_INCREMENT, `e` enum('a','b''c')"
    " DEFAULT 'a', `s` decimal(10,2) DEFAULT -1.50, `d` datetime(6) DEFAULT '2020-01-02 03:04:05',"
    " `x` varbinary(9) DEFAULT x'00ff',"
    " PRIMARY KEY (`id`,`e`) USING BTREE, CONSTRAINT `f` FOREIGN KEY (`s`) REFERENCES `o` (`id`) ON DELETE RESTRICT)"
    " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='it''s'",
    "CREATE TABLE r (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1"
    " VALUES LESS THAN MAXVALUE)",
    "CREATE TABLE l (id INT, c DATE, PRIMARY KEY (id, c)) PARTITION BY LIST COLUMNS (id, c) (PARTITION p0 VALUES IN"
    " ((1, '2020-01-01'), (2, '2021-01-01')))",
    "CREATE TABLE k (id INT PRIMARY KEY, b BIT(3) DEFAULT B'101', f DOUBLE PRECISION DEFAULT 1e10, g INT GENERATED"
    " ALWAYS AS (id + 1) STORED) PARTITION BY LINEAR KEY ALGORITHM=2 (id) PARTITIONS 7",
    "ALTER TABLE t ADD COLUMN n INT NOT NULL DEFAULT 5 AFTER id, ALGORITHM=INPLACE, LOCK=NONE",
    "ALTER TABLE d.t DROP COLUMN a, RENAME COLUMN b TO c, MODIFY e VARCHAR(200) NOT NULL, ALTER f SET DEFAULT TRUE",
    "ALTER TABLE t ADD PARTITION (PARTITION p9 VALUES LESS THAN (20)), DROP PARTITION p0, RENAME TO u",
    "RENAME TABLE a.t TO b.t, c TO d",
    "DROP TABLE IF EXISTS `a`, b.c CASCADE",
    "CREATE UNIQUE INDEX i USING BTREE ON t (a DESC, b(10)) COMMENT 'x' ALGORITHM DEFAULT",
    "CREATE TABLE x LIKE y",
    "/*!40000 DROP INDEX `i` ON `t` */ -- end\n",
    "CREATE DATABASE d CHARACTER SET utf8mb4",
    "TRUNCATE TABLE `d`.`t`",
    "DROP DATABASE IF EXISTS `d`",
    "GRANT ALL ON *.* TO 'u'@'%'",
    "CREATE OR REPLACE DEFINER=`root`@`%` SQL SECURITY DEFINER VIEW v AS SELECT 1",
)
_WORDS = (
    *(
        "CREATE",
        "TABLE",
        "ALTER",
        "DROP",
        "INDEX",
        "PRIMARY",
        "KEY",
        "UNIQUE",
        "CONSTRAINT",
        "CHECK",
        "FOREIGN",
        "REFERENCES",
    ),
    *(
        "PARTITION",
        "BY",
        "RANGE",
        "LIST",
        "HASH",
        "LINEAR",
        "PARTITIONS",
        "VALUES",
        "LESS",
        "THAN",
        "IN",
        "MAXVALUE",
        "DEFAULT",
    ),
    *(
        "NULL",
        "NOT",
        "TRUE",
        "B'102'",
        "x'abc'",
        "0xff",
        "INT",
        "BIGINT",
        "CHAR(300)",
        "DECIMAL(65,30)",
        "ENUM('a')",
        "JSON",
    ),
    *(
        "GENERATED",
        "ALWAYS",
        "AS",
        "STORED",
        "LIKE",
        "RENAME",
        "COLUMN",
        "TO",
        "MODIFY",
        "CHANGE",
        "ADD",
        "SET",
        "COLLATE",
    ),
    *(
        "utf8mb4",
        "latin1",
        "COMMENT",
        "ON",
        "DELETE",
        "CASCADE",
        "NOW()",
        "CURRENT_TIMESTAMP(6)",
        "/*",
        "*/",
        "/*!50003",
        "--",
    ),
    *(
        "(",
        ")",
        ",",
        ";",
        "=",
        "'",
        '"',
        "`",
        "\\",
        ".",
        "-",
        "IF",
        "EXISTS",
        "WITH",
        "SYSTEM",
        "VERSIONING",
        "USING",
        "T",
    ),
)
_WANTED = mysql.Filter()


@cache
def _statement_members() -> tuple[bytes, ...]:
    made = [each.encode() for each in _STATEMENTS]
    definition = every_type()
    few = TableDefinition(7, 1, "d.few", definition.columns[:9], ("id",))
    return (*made, emit(CreateTable(few)).encode())


def _read_statement(data: bytes) -> object:
    text = data.decode("utf-8", "surrogateescape")
    return parse(text, "d"), Filter.of(do=("d.%",)).is_open


def _read_ingested(data: bytes) -> object:
    text = data.decode("utf-8", "surrogateescape")
    steps = steps_of(text, "d", _WANTED, Position("master.000001", 4))
    return (
        steps
        if not text.startswith("CREATE TABLE")
        else (steps, None if "LIKE" in text else table_of_text(text, "d", True))
    )


# --- small texts ------------------------------------------------------------------------------------------
_SMALL = (
    b"address 127.0.0.1:4321",
    b"address [::1]:80",
    b"mysql mysql://root@localhost:3306/?socket=/tmp/x.sock",
    b"mysql mysql://u%40x@[::1]:99/",
    b"group 1=a:1,2=b:2,arbitrator=c:3",
    b"function NDB$MAX_DELETE_WIN( col )",
    b"function  NDB$EPOCH2_TRANS(0x1f)",
    b"pattern a%b_c\\%d aXbYc%d",
    b"size 16 MiB",
    b"filter a.%,b.c",
)


def _read_small(data: bytes) -> object:
    kind, _, rest = data.decode("utf-8", "surrogateescape").partition(" ")
    if kind == "address":
        return parse_address(rest)
    if kind == "mysql":
        return mysql.parse_address(rest)
    if kind == "group":
        return str(GroupConfiguration.parse(rest))
    if kind == "function":
        return parse_function(rest)
    if kind == "pattern":
        pattern, _, name = rest.partition(" ")
        return matches(pattern, name)
    if kind == "filter":
        both = Filter.of(do=rest.split(",")), mysql.Filter(tuple(rest.split(",")))
        return both[0].takes_table("a.b"), both[1].wants("a.b")
    return Options.from_keywords({"data_memory": rest})


# --- definitions ----------------------------------------------------------------------------------------------
@cache
def _definition_members() -> tuple[bytes, ...]:
    texts = [each for each in _STATEMENTS if each.startswith("CREATE TABLE") and "LIKE" not in each]
    found = []
    for text in texts:
        (made,) = parse(text, "d")
        assert isinstance(made, CreateTable)
        found.append(made.definition.to_json())
    return (*found, every_type("disk").to_json())


_TEXT = words(_WORDS, r"'(?:[^']|'')*'|`[^`]*`|[A-Za-z_]\w*|\d+|\s+|.")
READERS = (
    Reader(
        "SQL of stores",
        lambda: [each for each in _statement_members() if not each.startswith((b"TRUNCATE", b"GRANT", b"CREATE OR"))],
        _read_statement,
        (Unsupported,),
        (_TEXT, _TEXT, _TEXT, octets()),
        (
            "accepted",
            "SQL that is not understood",
            "a schema change that is not replicated",
            "no primary key",
            "is not a value of",
        ),
        cost=2,
    ),
    Reader(
        "SQL of servers",
        _statement_members,
        _read_ingested,
        (Unsupported,),
        (_TEXT, _TEXT, _TEXT, octets()),
        ("accepted", "make it here by hand", "SQL that is not understood"),
        cost=5,
    ),
    Reader(
        "small texts",
        lambda: list(_SMALL),
        _read_small,
        (Rejected,),
        (
            words(
                (
                    "mysql://",
                    "@",
                    ":",
                    "1=",
                    "arbitrator=",
                    "%",
                    "_",
                    "\\",
                    "NDB$MAX",
                    "(",
                    ")",
                    "GiB",
                    "KiB",
                    "[",
                    "]",
                    "?",
                )
            ),
        ),
        ("accepted", "SchemaInvalid"),
    ),
    Reader(
        "definitions",
        _definition_members,
        TableDefinition.from_json,
        (SchemaInvalid, Rejected, VersionTooOld),
        (json_tree,),
        ("accepted", "not a table definition", "not a column", "not a column type", "not a partition", "column"),
        cost=2,
    ),
)
