"""Rows of a snapshot by the keys of a unique index: those that had the keys at its epoch."""

from __future__ import annotations

from typing import Any

import pytest

import tidemark as tm
from tests.store.support import open_memory

NAME = "test.u"
ROWS: list[tuple[Any, ...]] = [(1, 0.1, "a"), (2, 0.25, "b"), (3, None, "c"), (11, 7.5, "d")]


@pytest.fixture(params=["memory", "disk"])
def db(request: pytest.FixtureRequest) -> tm.Database:
    db = open_memory()
    note = tm.Column("note", tm.Text, storage=request.param)
    columns = [tm.Column("id", tm.Int64), tm.Column("x", tm.Float32, nullable=True), note]
    db.create_table(NAME, columns, "id", tm.RangePartition("id", [("low", 10), ("high", 20)]))
    db.create_index(NAME, "by_x", "x", unique=True)
    db[NAME].insert_many(ROWS)
    return db


def found(table: Any) -> list[Any]:
    """The ids of the rows with some keys, one by one, together and by conditions."""
    keys = [7.5, 0.1, 9.0, 0.25]
    alone = [None if row is None else row.id for row in (table.get(key, index="by_x") for key in keys)]
    together = table.get_many(keys, ["id", "note"], index="by_x").to_pydict()
    assert together["id"] == [each for each in alone if each is not None]
    assert together["note"] == [{1: "a", 2: "b", 11: "d"}[each] for each in together["id"]]
    assert table.get(None, index="by_x") is None
    for key, each in zip(keys, alone, strict=True):
        if key != 0.1:  # which no Float32 is
            assert [row.id for row in table.scan(where=tm.col("x") == key)] == ([] if each is None else [each])
    assert sorted(row.id for row in table.scan(where=tm.col("id").isin([1, 2, 11]))) == [1, 2, 11]
    return alone


def test_keys_are_those_of_the_epoch_whatever_rows_have_them_now(db: tm.Database) -> None:
    with db.snapshot() as snapshot:
        assert found(snapshot[NAME]) == found(db[NAME]) == [11, 1, None, 2]
        db[NAME].update(1, {"x": 9.0})
        db[NAME].update(2, {"x": 0.1, "note": "b"})
        db[NAME].delete(11)
        db[NAME].insert((5, 0.25, "new"))
        assert found(snapshot[NAME]) == [11, 1, None, 2]
        assert [db[NAME].get(key, index="by_x").id for key in (0.1, 9.0, 0.25)] == [2, 1, 5]


def test_a_partition_or_the_table_that_is_dropped_since_is_still_shown(db: tm.Database) -> None:
    with db.snapshot() as snapshot:
        db.drop_partition(NAME, "high")
        assert found(snapshot[NAME]) == [11, 1, None, 2]
        db.drop_table(NAME)
        assert found(snapshot[NAME]) == [11, 1, None, 2]
