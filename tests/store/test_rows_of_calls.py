"""Rows as the calls of a store, of a snapshot, of a binlog and of a remote store return them: all of one class."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm

SECRET = b"sixteen bytes or more"
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
    with tm.serve_calls(db, "127.0.0.1:0", SECRET) as serving, tm.connect([serving.address], SECRET) as remote:
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
