"""Every value by every door into every type: stored as `insert` of the Python value stores it, or refused by an error
that names the column. The tables are `values.py`, `doors.py` and `rules.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import tidemark as tm
from tests.doors.doors import DOORS, LIBRARY_ERRORS, Door
from tests.doors.rules import REFUSED, TYPES, expected, same
from tests.doors.values import VALUES
from tests.shares import some
from tests.store.support import client_of, open_memory


def table_name(kind: str) -> str:
    return f"test.t{list(TYPES).index(kind)}"


def created() -> Any:
    db: Any = open_memory(data_memory="64 MiB", transaction_memory="4 MiB", redo_log="64 MiB")
    for kind, (declared, _) in TYPES.items():
        columns = [tm.Column("id", tm.Int64), tm.Column("v", declared, nullable=True)]
        db.create_table(table_name(kind), columns, "id", tm.HashPartition(1))
    return db


@pytest.fixture(scope="module")
def db() -> Iterator[Any]:
    made = created()
    yield made
    made.close()


def judged(table: Any, put: Any, names: str) -> Any:
    """What a call leaves in row 1: its value, REFUSED, or what is wrong with the error."""
    try:
        put(table)
    except tm.Error as error:
        is_wrong = isinstance(error, (tm.Retryable, tm.PeerTimeout)) or names not in str(error)
        return f"{type(error).__name__} without its place: {error}" if is_wrong else REFUSED
    except LIBRARY_ERRORS as error:
        return f"{type(error).__module__}.{type(error).__name__}: {error}"
    found = table[1].v
    table.delete(1)
    return found


def offered(door: Door, value: Any) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return door(value)
    except LIBRARY_ERRORS:
        return None


def problems(tables: Any, door: Door, values: list[Any], with_place: bool = True) -> list[str]:
    found = []
    for value in values:
        for kind in TYPES:
            offer = offered(door, value)
            if offer is None:
                break
            table = tables[table_name(kind)]
            right = expected(kind, offer.value)
            got = judged(table, offer.put, f"{table_name(kind)}.v" if with_place else "")
            if not (got is REFUSED and right is REFUSED or same(got, right)):
                found.append(f"{value!r:.60} ({offer.value!r:.40}) into {kind}: {got!r:.150}, right: {right!r:.60}")
    return found


@pytest.mark.parametrize("name", DOORS)
def test_value_by_a_door_is_what_insert_makes_of_it(db: Any, name: str) -> None:
    """Story: `np.timedelta64(5, "M")` became the integer 5, a `datetime64[ns]` a key of 1,704,067,200,000,000,000, and
    a day of 2³² the first of January 1970; columns of pandas and Arrow were refused by errors of those libraries.
    """
    values = VALUES if name == "insert" else some(VALUES, 0.2)
    assert not (found := problems(db, DOORS[name], values)), "\n".join(found[:20])


@pytest.mark.parametrize("name", ["insert", "rows", "array", "pandas object", "arrow", "polars"])
def test_value_by_a_client_is_what_insert_makes_of_it(name: str) -> None:
    """Story: `pd.NaT` of a client ended the link, and the error said "run it again"."""
    with created() as db, client_of(db) as remote:
        tables = {table_name(kind): remote[table_name(kind)] for kind in TYPES}
        found = problems(tables, DOORS[name], some(VALUES, 0.12), with_place=False)
        assert not found, "\n".join(found[:20])


def test_value_of_a_parquet_file_is_what_insert_makes_of_it(db: Any, tmp_path: Any) -> None:
    path = tmp_path / "rows.parquet"
    found = []
    for value in some(VALUES, 0.5):
        try:
            array = pa.array([value])
            array[0].as_py()
            parquet.write_table(pa.table({"id": [1], "v": array}), path)
        except LIBRARY_ERRORS:
            continue
        held = parquet.read_table(path).column("v").combine_chunks()
        if isinstance(held.type, pa.BaseExtensionType) or pa.types.is_decimal(held.type) and held.type.scale == 0:
            continue  # taken for integers
        for kind in TYPES:
            right = expected(kind, held[0].as_py())
            got = judged(db[table_name(kind)], lambda table: db.load(table.name, path), f"{table_name(kind)}.v")
            if not (got is REFUSED and right is REFUSED or same(got, right)):
                found.append(f"{value!r:.60} into {kind}: {got!r:.150}, right: {right!r:.60}")
    assert not found


@pytest.mark.parametrize("kind", TYPES)
def test_condition_with_any_value_is_answered_or_refused(db: Any, kind: str) -> None:
    table = db[table_name(kind)]
    for value in VALUES:
        for condition in (lambda v: tm.col("v") == v, lambda v: tm.col("v").isin([v]), lambda v: tm.col("v") < v):
            try:
                assert table.scan(where=condition(value)).count() == 0
            except tm.Error:
                pass
