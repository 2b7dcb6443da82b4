"""Rows as the calls of a store, of a snapshot, of a binlog and of a remote store return them: all of one class."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import client_of

HERE: tuple[Any, ...] = (1, "first", 3, None)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    columns = [tm.Column("id", tm.Int64), tm.Column("class", tm.Text), tm.Column("count", tm.Int32)]
    columns.append(tm.Column("_at", tm.Date, nullable=True))
    with tm.open(tmp_path / "store", redo_log="16 MiB", background=False, server_id=1, log_bin="binlog") as db:
        db.create_table("t", columns, "id").insert(HERE)
        yield db


def rows_of_every_call(db: tm.Database) -> dict[str, Any]:
    """By the name of the call, the row that it returns."""
    with db.transaction() as txn:
        found = {
            "get of a transaction": txn.get("t", 1),
            "scan of a transaction": next(txn.scan("t")),
            "scan that locks": next(txn.scan("t", lock="exclusive")),
            "scan that locks and judges": next(txn.scan("t", lock="shared", where=tm.col("class") == "first")),
        }
    with db.snapshot() as snapshot:
        found |= {"get of a snapshot": snapshot["t"].get(1), "scan of a snapshot": next(snapshot["t"].scan())}
    with db.changes(0, ["t"]) as changes:
        found["changes"] = next(change.after for epoch in changes for change in epoch)
    with client_of(db) as remote:
        found |= {"remote get": remote["t"].get(1), "remote scan": next(remote["t"].scan())}
    return found | {"get": db["t"].get(1), "scan": next(db["t"].scan())}


def test_every_call_returns_rows_of_one_class(db: tm.Database) -> None:
    for call, row in rows_of_every_call(db).items():
        assert isinstance(row, tm.Row) and row == HERE, call
        assert type(row) is type(db["t"][1]) and (row["class"], row.count, row["_at"]) == HERE[1:], call
        assert pickle.loads(pickle.dumps(row)) == row, call


def test_hidden_columns_and_aggregates_are_found_by_name(db: tm.Database) -> None:
    row = next(db["t"].scan(["class", tm.ROWID, tm.FRAGMENT]))
    assert row["class"] == "first" and row[tm.FRAGMENT] == row[2] and row[tm.ROWID] == row[1]
    sums = db["t"].scan().aggregate(**{"class": ("count",), "total": ("sum", "count")})
    assert (sums["class"], sums.total, repr(sums)) == (1, 3, "Row(total=3, **{'class': 1})")


def test_a_row_is_written_again_as_it_was_read(db: tm.Database) -> None:
    table = db["t"]
    table.write(table[1]._replace(count=4))
    table.insert(table[1]._replace(id=2)._asdict())
    table.insert_many([row._replace(id=row.id + 10) for row in table])
    assert sorted(tuple(row) for row in table)[2:] == [(11, "first", 4, None), (12, "first", 4, None)]


@pytest.mark.parametrize("kind", [tm.Int8, tm.Int16, tm.Int32, tm.UInt8, tm.UInt16, tm.UInt32], ids=repr)
@pytest.mark.parametrize("call", ["insert", "write"])
def test_a_key_that_its_column_does_not_hold_is_refused(tmp_path: Path, kind: Any, call: str) -> None:
    """A user inserted 32,768 with a key of Int16, in a table of numbers alone. The row was taken, and read back with
    that key. Right is ValueOutOfRange, as for every other column.
    """
    with tm.open(tmp_path / "store", redo_log="16 MiB", background=False) as db:
        columns = [tm.Column("n", tm.Float64), tm.Column("k", kind), tm.Column("of", tm.Int64)]
        tables = [db.create_table("one", columns, "k"), db.create_table("two", columns, ["of", "k"])]
        bits = int(repr(kind).lstrip("UInt"))
        least, most = (0, 2**bits - 1) if repr(kind)[0] == "U" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        for table in tables:
            for wrong in (least - 1, most + 1, 10**12):
                for row in ((0.5, wrong, 1), {"k": wrong, "n": 0.5, "of": 1}):
                    with pytest.raises(tm.ValueOutOfRange):
                        getattr(table, call)(row)
            for right in (least, most):
                getattr(table, call)((0.5, right, 1))
            assert sorted(row.k for row in table) == [least, most]
