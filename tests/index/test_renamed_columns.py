"""Columns whose names move to others: every version of a table finds its own columns in the indexes.

A program renamed a to c, and b to a. `where=col("a") == -7` was answered by the index of the old a, and found no row.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tidemark as tm
from tests.store.support import open_memory

NAME = "test.t"
ROWS = 5_000


@pytest.fixture
def db() -> Iterator[tm.Database]:
    found = open_memory(data_memory="32 MiB", redo_log="32 MiB")
    columns = [tm.Column(name, tm.Int64) for name in ("id", "a", "b")]
    table = found.create_table(NAME, columns, "id")
    table.insert_many([(key, key, -key) for key in range(ROWS)])
    found.create_index(NAME, "by_a", "a")
    yield found
    found.close()


def swap(db: tm.Database) -> None:
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        db.rename_column(NAME, old, new)


def test_conditions_find_the_rows_of_the_column_that_has_the_name_now(db: tm.Database) -> None:
    swap(db)
    table = db[NAME]
    assert [tuple(row) for row in table.scan(where=tm.col("a") == -7)] == [(7, 7, -7)]
    assert table.explain(where=tm.col("a") == -7)["index"] is None
    assert table.explain(where=tm.col("b") == 7)["index"] == "by_a"
    assert table.scan(where=tm.col("b") == 7).count() == 1
    assert table.update_where({"a": 0}, tm.col("b").between(5, 9)) == 5
    assert table.scan(where=tm.col("a") == 0).sum("id") == 5 + 6 + 7 + 8 + 9


def test_an_index_answers_alone_by_the_names_of_now(db: tm.Database) -> None:
    swap(db)
    table = db[NAME]
    assert table.explain("a", index="by_a", lower=3, upper=5)["access"] == "index"
    assert [row.a for row in table.scan("a", index="by_a", lower=3, upper=5)] == [-3, -4]
    assert table.explain("b", index="by_a", lower=3, upper=5)["access"] == "index only"
    assert [row.b for row in table.scan("b", index="by_a", lower=3, upper=5)] == [3, 4]
    with db.transaction() as txn:
        assert [row.b for row in txn.scan(NAME, index="by_a", lower=3, upper=5, lock="exclusive")] == [3, 4]


def test_a_snapshot_keeps_the_names_of_its_epoch(db: tm.Database) -> None:
    with db.snapshot() as snapshot:
        before = db[NAME].scan(where=tm.col("a") == 7)
        swap(db)
        shown = snapshot[NAME]
        assert shown.explain(where=tm.col("a") == 7)["index"] == "by_a"
        assert [tuple(row) for row in shown.scan(where=tm.col("a") == 7)] == [(7, 7, -7)]
        assert [tuple(row) for row in shown.scan(where=tm.col("b") == -7)] == [(7, 7, -7)]
        assert [tuple(row) for row in before] == [(7, 7, -7)]
