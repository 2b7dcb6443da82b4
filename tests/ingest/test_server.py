"""A real MariaDB taken into a store: every type, every kind of change, crashes of either side. Skipped without
MariaDB.
"""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from typing import Any

import pytest

import tidemark as tm
from tests.ingest.rig import (
    TABLES,
    Source,
    assert_same,
    make_tables,
    rows_at,
    rows_in,
    take_in,
)
from tests.replication.support import every_type
from tests.replication.test_stock_tools import changed_rows, create_sql, insert_sql, literal, sql_rows
from tidemark.engine.types import ColumnType
from tidemark.replication.ingest import applier as applier_module
from tidemark.replication.ingest.ingest import CURRENT

FOREIGN = """
CREATE TABLE d.foreign_types (id MEDIUMINT PRIMARY KEY, mu MEDIUMINT UNSIGNED, y YEAR, bits BIT(13), s SET('a','b','c'),
    ts TIMESTAMP(3) NULL, dt DATETIME, t TIME, g POINT, tiny TINYTEXT, mid MEDIUMBLOB, three VARCHAR(9) CHARSET utf8mb3,
    fixed CHAR(5), ci VARCHAR(9) COLLATE utf8mb4_general_ci, j JSON, yes BOOL, f FLOAT, big DECIMAL(38,10),
    e ENUM('x','ü'));
INSERT INTO d.foreign_types VALUES
    (-8388608, 0, 1901, b'0', '', '1970-01-01 00:00:01.5', '1000-01-01', '00:00:00', POINT(1,2), '', '', '', '', '',
        '{"a": 1}', 0, 1e-38, -1, 'x'),
    (8388607, 16777215, 2155, b'1111111111111', 'a,b,c', '2038-01-19 03:14:07.999', '9999-12-31 23:59:59', '23:59:59',
        POINT(-1e300, 3), 'ü', x'00ff', 'äöü', 'a b', 'Äx', '[]', -128, 3.4028234e38, 0.0000000001, 'ü'),
    (0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
"""


def comparable(kind: ColumnType, value: Any) -> Any:
    """Return a value of the store as pymysql shows it."""
    if isinstance(value, datetime.time):
        return datetime.timedelta(
            hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
        )
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None)
    if isinstance(kind, tm.Binary) and value is not None:
        return value.ljust(kind.length, b"\0")
    return value


def assert_every_type_same(db: tm.Database, source: Source, table: str, rows: list[tuple[Any, ...]]) -> None:
    """Check that the store has exactly these rows, which the server was given."""
    columns = db[table].definition.columns
    document = next(column.name for column in every_type().columns if column.type == tm.JSON)
    found = rows_in(db, table, [column.name for column in columns])
    assert len(found) == len(rows)
    for mine, given in zip(found, sorted(rows, key=lambda row: row[0]), strict=True):
        for column, value, other in zip(columns, mine, given, strict=True):
            if isinstance(other, uuid.UUID):
                other = other.bytes
            if column.name == document and other is not None:
                other = json.dumps(other, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
            if isinstance(other, float) and repr(column.type) == "Float32":
                import numpy as np

                other = float(np.float32(other))
            if isinstance(other, bytes):
                value, other = value.rstrip(b"\0"), other.rstrip(b"\0")
            if isinstance(other, bool):
                other = int(other)
            if isinstance(other, datetime.datetime):
                value, other = value.replace(tzinfo=None), other.replace(tzinfo=None)
            assert value == other, (column.name, column.type)


@pytest.mark.parametrize("is_copied", [True, False])
def test_every_type_at_its_extremes_arrives_exactly(db: tm.Database, source: Source, is_copied: bool) -> None:
    definition = every_type(name="d.every")
    rows = sql_rows()
    if not is_copied:
        take_in(db, source)
    source.sql(create_sql(definition) + "".join(insert_sql(definition, row) for row in rows))
    take_in(db, source)
    assert_every_type_same(db, source, "d.every", rows)
    after = changed_rows(rows)
    names = [column.name for column in definition.columns]
    statements = []
    for row in after:
        sets = ", ".join(
            f"{name}={literal(column.type, value)}"
            for name, column, value in zip(names[1:], definition.columns[1:], row[1:], strict=True)
        )
        statements.append(f"UPDATE d.every SET {sets} WHERE id={row[0]};")
    source.sql("".join(statements))
    take_in(db, source)
    assert_every_type_same(db, source, "d.every", after)


@pytest.mark.parametrize("is_copied", [True, False])
def test_types_the_store_has_no_twin_of_arrive_as_their_values(
    db: tm.Database, source: Source, is_copied: bool
) -> None:
    if not is_copied:
        take_in(db, source)
    source.sql(FOREIGN)
    take_in(db, source)
    columns = db["d.foreign_types"].definition.columns
    names = [column.name for column in columns]
    served = [{"bits": "bits+0", "s": "s+0", "f": "f*1e0"}.get(name, f"`{name}`") + f" AS `{name}`" for name in names]
    source.sql(f"CREATE VIEW d.shown AS SELECT {', '.join(served)} FROM d.foreign_types")
    found = [
        tuple(comparable(column.type, value) for column, value in zip(columns, row, strict=True))
        for row in rows_in(db, "d.foreign_types", names)
    ]
    assert found == [tuple(int(v) if isinstance(v, decimal.Decimal) and n in ("bits", "s") else v
                           for n, v in zip(names, row, strict=True))
                     for row in rows_at(source, "d.shown", names)]  # fmt: skip


def test_changes_of_several_tables_and_a_rollback_end_equal(db: tm.Database, source: Source) -> None:
    make_tables(source, 1_000)
    take_in(db, source)
    source.sql(
        "BEGIN; INSERT INTO d.b VALUES ('x', 1, 1.5), ('y', 1, 2.5); UPDATE d.a SET n = n + 1 WHERE id % 3 = 0;"
        "DELETE FROM d.a WHERE id > 900; INSERT INTO e.c (j) VALUES ('one'), (NULL), (REPEAT('long', 50000)); COMMIT;"
        "BEGIN; DELETE FROM d.a; INSERT INTO e.c (j) VALUES ('never'); ROLLBACK;"
        "UPDATE d.a SET id = id + 1 ORDER BY id DESC; UPDATE d.b SET k = UPPER(k), p = p + 1 WHERE v < 2;"
        "REPLACE INTO d.a VALUES (5, 5, 'five'); INSERT INTO d.a VALUES (5, 6, 'six') ON DUPLICATE KEY UPDATE n = 99;"
        "UPDATE d.b SET v = CASE v WHEN 1.5 THEN 9 ELSE v END;"
        "BEGIN; SAVEPOINT s; INSERT INTO e.c (j) VALUES ('gone'); ROLLBACK TO s; UPDATE d.a SET t = 'ü'; COMMIT;"
    )
    running = take_in(db, source)
    assert_same(db, source, *TABLES)
    assert running.status()["changed_rows"] > 1_000


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_row_images_of_few_columns_end_equal(db: tm.Database, source: Source, image: str) -> None:
    make_tables(source, 100)
    take_in(db, source)
    source.sql(
        f"SET GLOBAL binlog_row_image={image}; SET SESSION binlog_row_image={image};"
        "INSERT INTO d.a (id) VALUES (1000); UPDATE d.a SET t = 'only' WHERE id < 50; UPDATE d.a SET id = id + 5000"
        " WHERE id % 2; DELETE FROM d.a WHERE id < 20; INSERT INTO e.c (j) VALUES ('x'); UPDATE e.c SET j = 'y';"
    )
    take_in(db, source)
    assert_same(db, source, *TABLES)


def test_large_transaction_passes_in_pieces(db: tm.Database, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier_module, "WAITING_BYTES_MAX", 64 << 10)
    make_tables(source)
    take_in(db, source)
    source.sql(
        "BEGIN; INSERT INTO d.a SELECT seq, seq, CONCAT('row ', seq) FROM seq_1_to_15000; UPDATE d.a SET n = -n;"
        " DELETE FROM d.a WHERE id % 7 = 0; COMMIT;"
    )
    running = take_in(db, source)
    assert_same(db, source, *TABLES)
    assert running.status()["transactions"] == 1


def test_schema_changes_between_rows_end_equal(db: tm.Database, source: Source) -> None:
    make_tables(source, 50)
    take_in(db, source)
    source.sql(
        "ALTER TABLE d.a ADD COLUMN x INT NOT NULL AFTER id, ADD COLUMN s VARCHAR(10) DEFAULT 'd';"
        "INSERT INTO d.a VALUES (500, 7, 1, 't', 'w'); ALTER TABLE d.a DROP KEY n, DROP COLUMN n; UPDATE d.a SET x=id;"
        "ALTER TABLE d.a MODIFY s VARCHAR(100) DEFAULT 'd', RENAME COLUMN t TO text;"
        "INSERT INTO d.a (id, x, text) VALUES (501, 1, 'z'); RENAME TABLE d.a TO e.a;"
        "CREATE TABLE d.n (PRIMARY KEY (id)) SELECT id, x FROM e.a; TRUNCATE e.c; INSERT INTO e.c (j) VALUES ('after');"
        "CREATE DATABASE f; CREATE TABLE f.t (id INT PRIMARY KEY); DROP DATABASE f; CREATE USER u;"
        "GRANT ALL ON d.* TO u;"
        "DROP USER u; DROP TABLE d.b;"
    )
    take_in(db, source)
    assert db.tables() == ["d.n", "e.a", "e.c"]
    assert_same(db, source, "d.n", "e.a", "e.c")


CONDITIONS = (
    "DROP COLUMN IF EXISTS n, ADD COLUMN IF NOT EXISTS n BIGINT",
    "ADD COLUMN IF NOT EXISTS g INT NOT NULL, MODIFY COLUMN IF EXISTS g VARCHAR(9) DEFAULT 'x'",
    "DROP INDEX IF EXISTS by_t, ADD INDEX IF NOT EXISTS by_t (id)",
    "RENAME COLUMN IF EXISTS t TO u, ADD COLUMN IF NOT EXISTS t INT, DROP COLUMN IF EXISTS nothing",
    "CHANGE COLUMN IF EXISTS nothing g INT, CHANGE COLUMN IF EXISTS u t VARCHAR(60), DROP FOREIGN KEY IF EXISTS f",
    "RENAME INDEX IF EXISTS nothing TO g, ADD UNIQUE IF NOT EXISTS u (id), ALTER COLUMN IF EXISTS g SET DEFAULT 4",
)


def test_conditions_ask_the_table_before_the_statement(db: tm.Database, source: Source) -> None:
    """Story: ALTER TABLE … IF EXISTS stopped the ingest. The server asks each condition before the first clause: a
    column that the statement drops is not added again by ADD COLUMN IF NOT EXISTS.
    """
    source.sql(
        "CREATE TABLE d.a (id INT PRIMARY KEY, n INT, t VARCHAR(40), KEY by_t (t)); INSERT INTO d.a VALUES (1, 2, 'x');"
    )
    take_in(db, source)
    for number, clauses in enumerate(CONDITIONS, 2):
        source.sql(f"ALTER TABLE IF EXISTS d.a {clauses}; INSERT INTO d.a (id) VALUES ({number});")
        take_in(db, source)
        served = source.sql("SELECT column_name FROM information_schema.columns WHERE table_name = 'a';").split()
        assert sorted(column.name for column in db["d.a"].definition.columns) == sorted(served)
        assert_same(db, source, "d.a")
    assert [index.name for index in db["d.a"].definition.indexes] == ["u"]


def test_partitions_added_dropped_and_emptied_together_end_equal(db: tm.Database, source: Source) -> None:
    """Story: a statement with two partitions stopped the ingest, and TRUNCATE PARTITION did."""
    source.sql(
        "CREATE TABLE d.r (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id)"
        " (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20));"
        "CREATE TABLE d.h (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 3;"
        "INSERT INTO d.r SELECT seq, seq FROM seq_0_to_19; INSERT INTO d.h SELECT seq, seq FROM seq_0_to_19;"
    )
    take_in(db, source)
    source.sql(
        "ALTER TABLE d.r ADD PARTITION (PARTITION p2 VALUES LESS THAN (30), PARTITION p3 VALUES LESS THAN (40),"
        " PARTITION p4 VALUES LESS THAN (50)); INSERT INTO d.r SELECT seq, seq FROM seq_20_to_49;"
        "ALTER TABLE d.r TRUNCATE PARTITION p1, p4; ALTER TABLE d.r DROP PARTITION p0, p3;"
        "INSERT INTO d.r VALUES (5, 5); INSERT INTO d.h VALUES (20, 20);"
        "ALTER TABLE d.h ADD PARTITION PARTITIONS 2; ALTER TABLE d.h COALESCE PARTITION 3;"
        "ALTER TABLE d.h REBUILD PARTITION ALL; ALTER TABLE d.h REMOVE PARTITIONING; INSERT INTO d.h VALUES (21, 21);"
        "ALTER TABLE d.h PARTITION BY KEY (id) PARTITIONS 2; ALTER TABLE d.h REORGANIZE PARTITION;"
    )
    take_in(db, source)
    assert db["d.r"].definition.partition.names == ("p1", "p2", "p4")
    assert_same(db, source, "d.r", "d.h")
    source.sql("ALTER TABLE d.r TRUNCATE PARTITION ALL;")
    take_in(db, source)
    assert rows_in(db, "d.r", ["id"]) == []


def test_columns_that_get_wider_keep_their_values(db: tm.Database, source: Source) -> None:
    """Story: INT to BIGINT and NOT NULL to NULL stopped the ingest: nothing changed the bytes of rows here."""
    source.sql(
        "CREATE TABLE d.w (id INT PRIMARY KEY, n INT NOT NULL, u INT UNSIGNED, f FLOAT, d DECIMAL(10,2), c CHAR(5),"
        " v CHAR(5), b VARCHAR(9) NOT NULL, KEY of_n (n), UNIQUE KEY of_u (u, id), KEY of_df (d, f),"
        " UNIQUE KEY of_v (v, id) USING BTREE, KEY of_b (b));"
        "INSERT INTO d.w SELECT seq, -seq, 4294967295 - seq, seq / 8, seq / 100, CONCAT('c', seq), 'ü', 'x'"
        " FROM seq_1_to_500;"
    )
    take_in(db, source)
    changes = (
        "MODIFY n BIGINT NOT NULL",
        "MODIFY u BIGINT, MODIFY f DOUBLE",
        "MODIFY d DECIMAL(20,4), CHANGE c cc CHAR(20)",
        "MODIFY v VARCHAR(20) NOT NULL DEFAULT 'v', MODIFY id BIGINT",
        "MODIFY b VARCHAR(9) DEFAULT 'y', MODIFY cc TEXT",
        "CHANGE n m BIGINT DEFAULT NULL",
    )
    for number, clauses in enumerate(changes):
        source.sql(
            f"ALTER TABLE d.w {clauses}; UPDATE d.w SET d = d + 1 WHERE id % 7 = {number};"
            f"INSERT INTO d.w SELECT {1_000 + number}, 1, 2, 0.5, 4.25, 'abcde', 'e', 'f';"
        )
    source.sql(
        "INSERT INTO d.w VALUES (1 << 40, NULL, -1, 1e300, 1234567890123456.7891, REPEAT('t', 999), 'abcdefgh', NULL);"
    )
    take_in(db, source)
    assert_same(db, source, "d.w")
    assert {each["name"] for each in db["d.w"].indexes()} == {"of_n", "of_u", "of_df", "of_v", "of_b"}
    assert [row.m for row in db["d.w"].scan(index="of_df", lower=decimal.Decimal("1234567890123456"))] == [None]
    assert db["d.w"].get((-1, 1 << 40), index="of_u").v == "abcdefgh" and db.check()["is_sound"]
    kinds = [column.type for column in db["d.w"].definition.columns]
    assert kinds[:5] == [tm.Int64, tm.Int64, tm.Int64, tm.Float64, tm.Decimal(20, 4)]


def test_sequences_are_skipped_with_one_line_each(
    db: tm.Database, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """Story: CREATE SEQUENCE stopped the ingest, and so did the row event of NEXTVAL."""
    make_tables(source, 2)
    take_in(db, source)
    source.sql(
        "CREATE SEQUENCE d.numbers; CREATE TABLE d.n (id INT PRIMARY KEY DEFAULT NEXTVAL(d.numbers), v INT);"
        "INSERT INTO d.n (v) VALUES (7); INSERT INTO d.n (v) VALUES (8); SELECT SETVAL(d.numbers, 5000);"
        "INSERT INTO d.n (v) VALUES (9); ALTER SEQUENCE d.numbers RESTART 9000; INSERT INTO d.n (v) VALUES (10);"
        "DROP TABLE d.n; DROP SEQUENCE d.numbers; INSERT INTO d.a VALUES (3, 3, 'c');"
    )
    take_in(db, source)
    assert_same(db, source, "d.a")
    lines = [record.getMessage() for record in caplog.records if record.name == "tidemark.ingest"]
    assert sum("state of sequence d.numbers" in line for line in lines) == 1, lines
    assert sum("the statement" in line and "SEQUENCE" in line for line in lines) == 3, lines


def test_row_event_of_a_compressed_column_is_no_damage(db: tm.Database, source: Source) -> None:
    """Story: a server names the character sets of COMPRESSED columns too, so the ingest took their event for a damaged
    file and told to restore a backup.
    """
    source.sql(
        "CREATE TABLE d.z (id INT PRIMARY KEY, v TEXT COMPRESSED, w VARCHAR(1000) CHARSET latin1 COMPRESSED,"
        " b VARBINARY(900) COMPRESSED, z VARCHAR(9));"
    )
    take_in(db, source, start=CURRENT)
    columns = [tm.Column(name, tm.Text, nullable=True) for name in "vwbz"]
    db.create_table("d.z", [tm.Column("id", tm.Int32), *columns], "id")
    source.sql("INSERT INTO d.z VALUES (1, REPEAT('x', 5000), 'a', 'b', 'c');")
    with pytest.raises(tm.Unsupported, match=r"d\.z\.v: a COMPRESSED column"):
        take_in(db, source)


def test_old_forms_of_times_are_refused_before_they_are_copied(db: tm.Database, source: Source) -> None:
    """Story: a column made with mysql56_temporal_format=OFF was copied, and its first row event stopped the stream."""
    columns = "id INT PRIMARY KEY, t TIME(3), e ENUM('/* mariadb-5.3 */')"
    source.sql(
        f"SET GLOBAL mysql56_temporal_format=OFF; CREATE TABLE d.o ({columns}); INSERT INTO d.o (id) VALUES (1);"
    )
    source.sql(f"SET GLOBAL mysql56_temporal_format=ON; CREATE TABLE d.n ({columns}); INSERT INTO d.n (id) VALUES (1);")
    with pytest.raises(tm.Unsupported, match=r"d\.o\.t of the source .* MariaDB 5\.3"):
        take_in(db, source)
    source.sql("ALTER TABLE d.o FORCE; UPDATE d.o SET t = '01:02:03.5';")
    take_in(db, source)
    source.sql("UPDATE d.o SET t = '04:05:06.25', e = 1; UPDATE d.n SET t = '04:05:06.25';")
    take_in(db, source)
    assert [str(db[table][1].t) for table in ("d.o", "d.n")] == ["04:05:06.250000"] * 2


def test_statement_that_cannot_be_followed_stops_and_is_skipped_when_asked(db: tm.Database, source: Source) -> None:
    make_tables(source, 5)
    take_in(db, source)
    source.sql("ALTER TABLE d.a MODIFY n SMALLINT; INSERT INTO d.a VALUES (6, 6, 'x');")
    with pytest.raises(tm.Unsupported, match="--skip") as caught:
        take_in(db, source)
    assert "MODIFY n SMALLINT" in caught.value.statement
    take_in(db, source, skipped=frozenset({(caught.value.file, caught.value.position)}))
    assert_same(db, source, "d.a")


def test_statements_instead_of_rows_stop(db: tm.Database, source: Source) -> None:
    make_tables(source, 5)
    take_in(db, source)
    source.sql("SET SESSION binlog_format=STATEMENT; UPDATE d.a SET n = 1;")
    with pytest.raises(tm.Unsupported, match="binlog_format=ROW"):
        take_in(db, source)


@pytest.mark.parametrize("setting", ["binlog_format=MIXED", "binlog_row_metadata=MINIMAL"])
def test_server_that_is_not_set_up_is_refused(db: tm.Database, source: Source, setting: str) -> None:
    source.sql(f"SET GLOBAL {setting};")
    with pytest.raises(tm.PeerRefused, match=setting.partition("=")[0]):
        take_in(db, source)


def test_start_needs_a_place_and_filters_choose_tables(db: tm.Database, source: Source) -> None:
    make_tables(source, 10)
    source.sql("CREATE TABLE d.keyless (a INT);")
    with pytest.raises(tm.Unsupported, match="d.keyless"):
        take_in(db, source)
    with pytest.raises(tm.SchemaInvalid, match="where to begin"):
        take_in(db, source, start=None, tables=["d.a"])
    take_in(db, source, tables=["d.a"])
    source.sql("INSERT INTO d.keyless VALUES (1); INSERT INTO d.b VALUES ('x', 1, 1); UPDATE d.a SET n = 0;")
    take_in(db, source, tables=["d.a"])
    assert db.tables() == ["d.a"]
    assert_same(db, source, "d.a")


def test_latin1_text_arrives_as_its_characters(db: tm.Database, source: Source) -> None:
    """Every byte of the character set, in each kind of column: copied, in row events, and in images that change it."""
    table = (
        " (id INT PRIMARY KEY, v VARCHAR(300), c CHAR(4), t TEXT, l LONGTEXT, e ENUM('ä', 'b\u20ac'), w VARCHAR(75)"
        " CHARSET utf8mb4) CHARSET latin1;"
    )
    octets = "".join(f"{byte:02x}" for byte in range(1, 256))
    rows = (
        f"VALUES (1, x'{octets}', 'äÿ', x'{octets}', x'80ff', 'ä', 'ä\u0416'), (2, 'abc', '', NULL, '', 'b\u20ac', '');"
    )
    source.sql(f"CREATE TABLE d.one {table} INSERT INTO d.one {rows}")
    take_in(db, source)
    source.sql(
        f"CREATE TABLE d.two {table} INSERT INTO d.two {rows} UPDATE d.one SET v = CONCAT('ß', v), e = 'b\u20ac';"
    )
    take_in(db, source)
    assert_same(db, source, "d.one", "d.two")
    assert "\u20ac" in rows_in(db, "d.two", ["id", "v"])[0][1]


def test_generated_hidden_and_constrained_columns_arrive_with_their_values(db: tm.Database, source: Source) -> None:
    source.sql(
        "CREATE TABLE d.p (id INT PRIMARY KEY);"
        "CREATE TABLE d.g (id INT PRIMARY KEY, y YEAR, s TINYINT, u INT UNSIGNED, two INT AS (s * 2) STORED, p INT,"
        " hidden INT INVISIBLE DEFAULT 3, at TIMESTAMP DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,"
        " name VARCHAR(40) DEFAULT UUID(), zero DATETIME NOT NULL DEFAULT '0000-00-00', bit1 BIT(1) DEFAULT b'1',"
        " body TEXT, CHECK (s < 100), FOREIGN KEY (p) REFERENCES d.p (id), KEY part (body(10)), FULLTEXT KEY f (body));"
    )
    take_in(db, source)
    for image in ("FULL", "MINIMAL", "NOBLOB"):
        first = {"FULL": 0, "MINIMAL": 10, "NOBLOB": 20}[image]
        source.sql(
            f"SET SESSION binlog_row_image={image}; INSERT INTO d.p VALUES ({first});"
            f"INSERT INTO d.g (id, y, s, u, p, zero) VALUES ({first}, 2000, -1, 4000000000, {first}, NOW()),"
            f" ({first + 1}, 1901, -128, 0, NULL, NOW()); UPDATE d.g SET s = 9 WHERE id = {first};"
            f" DELETE FROM d.g WHERE id = {first + 1};"
        )
    source.sql("ALTER TABLE d.g DROP KEY part, DROP FOREIGN KEY g_ibfk_1, ENGINE=InnoDB;")
    take_in(db, source)
    assert_same(db, source, "d.p", "d.g")
    assert len(rows_in(db, "d.g", ["id"])) == 3


REFUSED = (
    ("(id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES d.parent (id) ON DELETE CASCADE)", "ON DELETE CASCADE"),
    ("(id INT PRIMARY KEY, v INT AS (id + 1) VIRTUAL)", "VIRTUAL"),
    ("(id INT PRIMARY KEY) WITH SYSTEM VERSIONING", "SYSTEM VERSIONING"),
    ("(id INT PRIMARY KEY) ENGINE=MyISAM", "without transactions"),
    ("(id INT)", "without primary key"),
)


def test_tables_whose_changes_would_be_lost_are_refused_by_name(db: tm.Database, source: Source) -> None:
    source.sql("CREATE TABLE d.parent (id INT PRIMARY KEY);")
    for table, reason in REFUSED:
        source.sql(f"CREATE OR REPLACE TABLE d.bad {table};")
        with pytest.raises(tm.Unsupported, match=reason) as caught:
            take_in(db, source)
        assert "d.bad" in caught.value.message and "\n" not in caught.value.message
    take_in(db, source, tables=["d.parent"])


def test_table_without_transactions_is_followed(db: tm.Database, source: Source) -> None:
    """Its rows stay when a transaction is rolled back, or a statement ends half-way."""
    take_in(db, source)
    source.sql("CREATE TABLE d.m (id INT PRIMARY KEY) ENGINE=MyISAM; CREATE TABLE d.i (id INT PRIMARY KEY);")
    source.sql(
        "BEGIN; INSERT INTO d.i VALUES (1); INSERT INTO d.m VALUES (1); ROLLBACK;"
        "BEGIN; INSERT INTO d.m VALUES (2); INSERT INTO d.i VALUES (2); COMMIT; INSERT INTO d.m VALUES (7), (8);"
    )
    with pytest.raises(AssertionError, match="Duplicate"):
        source.sql("INSERT INTO d.m VALUES (5), (6), (2), (9);")
    take_in(db, source)
    assert rows_in(db, "d.m", ["id"]) == [(1,), (2,), (5,), (6,), (7,), (8,)]
    assert_same(db, source, "d.m", "d.i")


def test_keys_that_are_enums_or_text_change(db: tm.Database, source: Source) -> None:
    source.sql("CREATE TABLE d.k (e ENUM('a','b','c'), t VARCHAR(9), n INT, PRIMARY KEY (e, t));")
    source.sql("INSERT INTO d.k VALUES ('a', 'x', 1), ('b', 'y', 2);")
    take_in(db, source)
    source.sql("UPDATE d.k SET e = 'c' WHERE e = 'a'; UPDATE d.k SET t = UPPER(t); UPDATE d.k SET n = n + 1;")
    take_in(db, source)
    assert sorted(rows_in(db, "d.k", ["e", "t", "n"])) == [("b", "Y", 3), ("c", "X", 2)]
