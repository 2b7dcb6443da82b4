"""A real MySQL taken into a store: the tests of MariaDB that both servers can run, and what MySQL alone has. Skipped
without MySQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

import tidemark as tm
from tests.ingest import test_server
from tests.ingest.rig import assert_same, rows_in, take_in
from tests.replication.mysql_rig import MySqlServer, running_mysql
from tidemark.replication.ingest.address import Address

_SEQUENCE = re.compile(r"\bseq_1_to_(\d+)")

test_every_type_at_its_extremes_arrives_exactly = test_server.test_every_type_at_its_extremes_arrives_exactly
test_changes_of_several_tables_and_a_rollback_end_equal = (
    test_server.test_changes_of_several_tables_and_a_rollback_end_equal
)
test_row_images_of_few_columns_end_equal = test_server.test_row_images_of_few_columns_end_equal
test_large_transaction_passes_in_pieces = test_server.test_large_transaction_passes_in_pieces


class Source(MySqlServer):
    """The server of these tests, with MariaDB's tables of numbers."""

    options = ("--cte-max-recursion-depth=100000",)

    @property
    def address(self) -> Address:
        return Address("localhost", socket=str(self._socket))

    def sql(self, text: str) -> str:
        counted = r"WITH RECURSIVE n(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM n WHERE seq < \1) SELECT * FROM n"
        return super().sql(_SEQUENCE.sub(f"({counted}) n", text))


@pytest.fixture(scope="module")
def server() -> Iterator[MySqlServer]:
    with running_mysql(Source) as running:
        yield running


@pytest.fixture
def source(server: Source) -> Source:
    names = ("d", "e")
    server.sql("".join(f"DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name} CHARSET utf8mb4;" for name in names))
    server.sql("SET GLOBAL binlog_row_image=FULL; RESET BINARY LOGS AND GTIDS;")
    return server


FOREIGN = """
CREATE TABLE d.t (id MEDIUMINT PRIMARY KEY, mu MEDIUMINT UNSIGNED, y YEAR, bits BIT(13), s SET('a','b','c'),
    ts TIMESTAMP(3) NULL, g POINT, three VARCHAR(9) CHARSET utf8mb3, old VARCHAR(9) CHARSET latin1, j JSON,
    e ENUM('x','ü'));
INSERT INTO d.t VALUES (-8388608, 0, 1901, b'0', '', '1970-01-01 00:00:01.5', POINT(1,2), 'ä', 'ü',
    '{"a": [1, null, "ü"]}', 'ü'), (0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
"""


@pytest.mark.parametrize("is_copied", [True, False])
def test_types_of_mysql_arrive_as_their_values(db: tm.Database, source: Source, is_copied: bool) -> None:
    """Story: a POINT next to texts of several character sets stopped the stream with BinlogDamaged."""
    if not is_copied:
        take_in(db, source)  # type: ignore[arg-type]
    source.sql(FOREIGN)
    take_in(db, source)  # type: ignore[arg-type]
    names = ["id", "mu", "y", "bits", "s", "three", "old", "e"]
    assert rows_in(db, "d.t", names) == [(-8388608, 0, 1901, 0, 0, "ä", "ü", "ü"), (0, *[None] * 7)]
    found = db["d.t"][-8388608].j
    assert (json.loads(found) if isinstance(found, str) else found) == {"a": [1, None, "ü"]}


def test_schema_changes_between_rows_end_equal(db: tm.Database, source: Source) -> None:
    source.sql("CREATE TABLE d.a (id INT PRIMARY KEY, n INT, t VARCHAR(40), KEY n (n))")
    source.sql("INSERT INTO d.a VALUES (1, 2, 'x')")
    take_in(db, source)  # type: ignore[arg-type]
    source.sql(
        "ALTER TABLE d.a ADD COLUMN x INT NOT NULL AFTER id, ADD COLUMN s VARCHAR(10) DEFAULT 'd';"
        "INSERT INTO d.a VALUES (500, 7, 1, 't', 'w'); ALTER TABLE d.a DROP KEY n, DROP COLUMN n; UPDATE d.a SET x=id;"
        "ALTER TABLE d.a MODIFY s VARCHAR(100) DEFAULT 'd', RENAME COLUMN t TO text;"
        "INSERT INTO d.a (id, x, text) VALUES (501, 1, 'z'); RENAME TABLE d.a TO e.a;"
        "CREATE TABLE e.c (id INT PRIMARY KEY); TRUNCATE e.c; CREATE DATABASE f;"
        "CREATE TABLE f.t (id INT PRIMARY KEY); DROP DATABASE f; CREATE USER u;"
        "GRANT ALL ON d.* TO u; DROP USER u;"
    )
    take_in(db, source)  # type: ignore[arg-type]
    assert db.tables() == ["e.a", "e.c"]
    assert_same(db, source, "e.a", "e.c")  # type: ignore[arg-type]
