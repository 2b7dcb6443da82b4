"""A predicate that is pushed down finds the rows that it finds in a plain Arrow table with the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.pushdown.predicates import Stage, for_arrow, for_polars, sql
from tests.seeds import fresh_seeds

pytestmark = pytest.mark.usefixtures("storage")
PREDICATES = 150


@pytest.fixture(params=[1, *fresh_seeds(1)])
def stage(request: pytest.FixtureRequest, storage: str) -> Iterator[Stage]:
    made = Stage(request.param, storage)
    yield made
    made.db.close()


def found(table: Any, predicate: Any) -> list[Any] | str:
    """What pyarrow finds, or its error: one that it has over both tables."""
    try:
        return sorted(table.to_table(columns=["id"], filter=predicate)["id"].to_pylist())
    except (pa.ArrowException, TypeError, OverflowError) as error:
        return type(error).__name__


def check_scans(stage: Stage, judged: int, all_rows: int) -> None:
    """Most predicates reached the table as conditions and kept rows away from the other engine."""
    scans = stage.scans()
    with_condition = [scan for scan in scans if scan["has_condition"]]
    assert len(with_condition) > judged // 4
    assert sum(scan["rows"] for scan in with_condition) < all_rows * len(with_condition) * 0.8
    assert stage.db.status()["snapshots"]["open"] == 0


def test_duckdb(stage: Stage) -> None:
    duckdb = pytest.importorskip("duckdb")
    table, plain = stage.table.dataset(), stage.arrow
    connection = duckdb.connect()
    connection.register("plain", plain)
    connection.register("pushed", table)
    connection.execute("set timezone = 'UTC'")

    def ask(name: str, where: str) -> list[Any] | str:
        try:
            return sorted(connection.execute(f"select id from {name} where {where}").fetchall())
        except duckdb.Error as error:
            return type(error).__name__

    stage.scans()
    for _ in range(PREDICATES):
        where = sql(stage.tree())
        assert ask("pushed", where) == ask("plain", where), where
    check_scans(stage, PREDICATES, plain.num_rows)


def test_polars(stage: Stage) -> None:
    pl = pytest.importorskip("polars")
    table, plain = stage.table.scan_polars(), pl.from_arrow(stage.arrow).lazy()

    def ask(frame: Any, tree: Any, engine: str) -> list[Any] | str:
        try:
            return sorted(frame.filter(for_polars(tree)).select("id").collect(engine=engine)["id"].to_list())
        except (pl.exceptions.PolarsError, TypeError, OverflowError):
            return "error"  # its class can be another one in a source

    stage.scans()
    for number in range(PREDICATES):
        tree, engine = stage.tree(), "streaming" if number % 2 else "in-memory"
        assert ask(table, tree, engine) == ask(plain, tree, engine), tree
    check_scans(stage, PREDICATES, stage.arrow.num_rows)


def test_pyarrow(stage: Stage) -> None:
    table, plain = stage.table.dataset(), ds.dataset(stage.arrow)
    stage.scans()
    for _ in range(PREDICATES):
        tree = stage.tree()
        try:
            predicate = for_arrow(tree)
        except (pa.ArrowException, OverflowError, TypeError):
            continue  # a value that is none of the column's type
        assert found(table, predicate) == found(plain, predicate), tree
    check_scans(stage, PREDICATES // 2, stage.arrow.num_rows)
