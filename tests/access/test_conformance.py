"""The same questions to Tidemark, SQLite and DuckDB, over the same rows, in memory and on disk."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.access.queries import COLUMNS, FOR_SQLITE, KIND, Maker, SqliteMaker, for_sqlite, row_of
from tests.shares import few
from tests.store.support import open_memory
from tidemark.engine.rows.column_output import arrow_schema

duckdb = pytest.importorskip("duckdb")
pytestmark = pytest.mark.usefixtures("storage")

ROWS = 700  # more than a vector has
QUERIES = few(300, 700)  # of each database on each storage
DUCKDB_NAMES = list(KIND)


class Stage:
    """One table, and the database it is compared with."""

    def __init__(self) -> None:
        self.r = random.Random(4)
        self.rows = [row_of(self.r, key) for key in range(ROWS)]
        self.db = open_memory(page_buffer="1 MiB")
        self.table = self.db.create_table("test.t", COLUMNS, "id", partition=tm.HashPartition(4))
        self.table.insert_many(self.rows)
        self.order = [row[0] for row in self.table.scan(["id"])]


@pytest.fixture(scope="module")
def stage(storage: str) -> Iterator[Stage]:
    found = Stage()
    yield found
    found.db.close()


def check(stage: Stage, expression: Any, expected: set[int], sql: str) -> None:
    wanted = [key for key in stage.order if key in expected]
    assert [row[0] for row in stage.table.scan(["id"], where=expression)] == wanted, sql
    shape = stage.r.randint(0, 9)
    if shape == 0:
        limit = stage.r.randint(0, len(wanted) + 1)
        found = stage.table.scan(limit=limit, where=expression)
        assert [tuple(row) for row in found] == [stage.rows[key] for key in wanted[:limit]], sql
    elif shape == 1:
        assert stage.table.scan(["id"], where=expression).to_arrow().column(0).to_pylist() == wanted, sql
    elif shape == 2:
        with stage.db.transaction() as txn:
            assert [row[0] for row in txn.scan("test.t", ["id"], where=expression)] == wanted, sql
    elif shape == 3:
        assert stage.table.scan(where=expression).count() == len(wanted), sql


def check_sums(stage: Stage, expression: Any, chosen: tuple[Any, ...], names: list[str], sql: str) -> None:
    functions: dict[str, Any] = {"rows": ("count",)}
    for name in names:
        functions |= {f"{function}_{name}": (function, name) for function in ("count", "sum", "min", "max")}
    found = tuple(stage.table.scan(where=expression).aggregate(**functions))
    for mine, other in zip(found, chosen, strict=True):
        assert mine == other or mine == pytest.approx(other, rel=1e-12), sql


SUMS = "count({0}), sum({0}), min({0}), max({0})"


def test_generated_queries_give_the_rows_duckdb_gives(stage: Stage) -> None:
    import pyarrow as pa

    connection = duckdb.connect()
    dicts = [dict(zip(KIND, row, strict=True)) for row in stage.rows]
    loaded = pa.Table.from_pylist(dicts, arrow_schema(stage.table.definition))
    connection.register("loaded", loaded)
    connection.execute("create table t as select * from loaded")
    maker = Maker(stage.r, stage.rows, DUCKDB_NAMES)
    for number in range(QUERIES):
        expression, (sql, values) = maker.condition()
        expected = {key for (key,) in connection.execute(f"select id from t where {sql}", values).fetchall()}
        check(stage, expression, expected, f"{sql} {values}")
        if number % 5 == 0:
            names = ["i16", "i64", "u64", "small"]
            query = ", ".join(SUMS.format(name) for name in names)
            sums = connection.execute(f"select count(*), {query} from t where {sql}", values).fetchall()[0]
            check_sums(stage, expression, sums, names, f"{sql} {values}")
    connection.close()


def test_generated_queries_give_the_rows_sqlite_gives(stage: Stage) -> None:
    connection = sqlite3.connect(":memory:")
    names = [name for name in KIND if name in FOR_SQLITE]
    connection.execute("pragma case_sensitive_like = 1")
    connection.execute(f"create table t ({', '.join(names)}, primary key (id))")
    marks = ", ".join("?" * len(names))
    connection.executemany(f"insert into t values ({marks})", [for_sqlite(row) for row in stage.rows])
    maker = SqliteMaker(stage.r, stage.rows, names)
    for number in range(QUERIES):
        expression, (sql, values) = maker.condition()
        expected = {key for (key,) in connection.execute(f"select id from t where {sql}", values)}
        check(stage, expression, expected, f"{sql} {values}")
        if number % 5 == 0:
            query = ", ".join(SUMS.format(name) for name in ("i16", "u32"))
            sums = connection.execute(f"select count(*), {query} from t where {sql}", values).fetchall()[0]
            check_sums(stage, expression, sums, ["i16", "u32"], f"{sql} {values}")
    connection.close()
