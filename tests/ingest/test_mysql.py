"""A real MySQL taken into a store: the tests of MariaDB that both servers can run, and what MySQL alone has. Skipped
without MySQL.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tidemark as tm
from tests.ingest import test_server
from tests.ingest.rig import MySqlSource, assert_same, rows_in, running_mysql_source, take_in
from tidemark.replication.ingest.ingest import CURRENT

test_every_type_at_its_extremes_arrives_exactly = test_server.test_every_type_at_its_extremes_arrives_exactly
test_changes_of_several_tables_and_a_rollback_end_equal = (
    test_server.test_changes_of_several_tables_and_a_rollback_end_equal
)
test_row_images_of_few_columns_end_equal = test_server.test_row_images_of_few_columns_end_equal
test_large_transaction_passes_in_pieces = test_server.test_large_transaction_passes_in_pieces


@pytest.fixture(scope="module")
def server() -> Iterator[MySqlSource]:
    with running_mysql_source() as running:
        yield running


@pytest.fixture
def source(server: MySqlSource) -> MySqlSource:
    server.reset("d", "e")
    return server


FOREIGN = """
CREATE TABLE d.t (id MEDIUMINT PRIMARY KEY, mu MEDIUMINT UNSIGNED, y YEAR, bits BIT(13), s SET('a','b','c'),
    ts TIMESTAMP(3) NULL, g POINT, three VARCHAR(9) CHARSET utf8mb3, old VARCHAR(9) CHARSET latin1, j JSON,
    e ENUM('x','ü'));
INSERT INTO d.t VALUES (-8388608, 0, 1901, b'0', '', '1970-01-01 00:00:01.5', POINT(1,2), 'ä', 'ü',
    '{"a": [1, null, "ü"]}', 'ü'), (0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
"""


@pytest.mark.parametrize("is_copied", [True, False])
def test_types_of_mysql_arrive_as_their_values(db: tm.Database, source: MySqlSource, is_copied: bool) -> None:
    """Story: a POINT next to texts of several character sets stopped the stream with BinlogDamaged."""
    if not is_copied:
        take_in(db, source)
    source.sql(FOREIGN)
    take_in(db, source)
    names = ["id", "mu", "y", "bits", "s", "three", "old", "e"]
    assert rows_in(db, "d.t", names) == [(-8388608, 0, 1901, 0, 0, "ä", "ü", "ü"), (0, *[None] * 7)]
    assert db["d.t"][-8388608].j == {"a": [1, None, "ü"]}


def test_schema_changes_between_rows_end_equal(db: tm.Database, source: MySqlSource) -> None:
    source.sql("CREATE TABLE d.a (id INT PRIMARY KEY, n INT, t VARCHAR(40), KEY n (n))")
    source.sql("INSERT INTO d.a VALUES (1, 2, 'x')")
    take_in(db, source)
    source.sql(
        "ALTER TABLE d.a ADD COLUMN x INT NOT NULL AFTER id, ADD COLUMN s VARCHAR(10) DEFAULT 'd';"
        "INSERT INTO d.a VALUES (500, 7, 1, 't', 'w'); ALTER TABLE d.a DROP KEY n, DROP COLUMN n; UPDATE d.a SET x=id;"
        "ALTER TABLE d.a MODIFY s VARCHAR(100) DEFAULT 'd', RENAME COLUMN t TO text;"
        "INSERT INTO d.a (id, x, text) VALUES (501, 1, 'z'); RENAME TABLE d.a TO e.a;"
        "CREATE TABLE e.c (id INT PRIMARY KEY); TRUNCATE e.c; CREATE DATABASE f;"
        "CREATE TABLE f.t (id INT PRIMARY KEY); DROP DATABASE f; CREATE USER u;"
        "GRANT ALL ON d.* TO u; DROP USER u;"
    )
    take_in(db, source)
    assert db.tables() == ["e.a", "e.c"]
    assert_same(db, source, "e.a", "e.c")


def test_row_event_of_a_vector_is_no_damage(db: tm.Database, source: MySqlSource) -> None:
    source.sql("CREATE TABLE d.v (id INT PRIMARY KEY, v VECTOR(3))")
    take_in(db, source, start=CURRENT)
    db.create_table("d.v", [tm.Column("id", tm.Int32), tm.Column("v", tm.Blob, nullable=True)], "id")
    source.sql("INSERT INTO d.v VALUES (1, STRING_TO_VECTOR('[1,2,3]'))")
    with pytest.raises(tm.Unsupported, match=r"d\.v\.v: MySQL type 242"):
        take_in(db, source)
