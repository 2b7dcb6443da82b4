"""Rows whose lock is held are left out with `skip_locked`, and never waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import elsewhere
from tests.store.support import open_memory

LONG_MS = 120_000  # a wait fails the test by its time limit
NAME = "test.job"


@pytest.fixture(params=["memory", "disk"])
def db(request: pytest.FixtureRequest) -> Iterator[tm.Database]:
    made = open_memory(lock_timeout_ms=LONG_MS)
    columns = [
        tm.Column("id", tm.Int64),
        tm.Column("rank", tm.Int32),
        tm.Column("name", tm.VarChar(20)),
        tm.Column("body", tm.VarChar(200), storage=request.param),
    ]
    table = made.create_table(NAME, columns, "id", partition=tm.HashPartition(1))
    made.create_index(NAME, "by_rank", "rank")
    made.create_index(NAME, "by_name", "name", unique=True)
    table.insert_many([(number, -number, f"n{number}", "b" * 50) for number in range(10)])
    yield made
    made.close()


def ids(txn: Any, **how: Any) -> list[int]:
    return [row.id for row in txn.scan(NAME, lock="exclusive", skip_locked=True, **how)]


def ids_elsewhere(db: tm.Database, **how: Any) -> list[int]:
    """The rows that another thread gets, whose transaction then ends."""

    def scan() -> list[int]:
        with db.transaction() as txn:
            return ids(txn, **how)

    return elsewhere(scan)


def test_scan_leaves_out_what_another_transaction_has_locked_changed_or_deleted(db: tm.Database) -> None:
    with db.transaction() as holder:
        holder.get(NAME, 1, lock="exclusive")
        holder.get(NAME, 2, lock="shared")
        holder.update(NAME, 3, {"rank": 0})
        holder.update(NAME, 4, {"body": "c" * 60})
        holder.delete(NAME, 5)
        holder.insert(NAME, (20, 0, "n20", "b"))
        assert ids_elsewhere(db) == [0, 6, 7, 8, 9]
        assert sorted(ids_elsewhere(db, columns=["id"], where=tm.col("rank") < -5)) == [6, 7, 8, 9]
        assert ids_elsewhere(db, index="by_rank") == [9, 8, 7, 6, 0]
        assert ids_elsewhere(db, index="by_rank", reverse=True, where=tm.col("id") != 8) == [0, 6, 7, 9]
        holder.rollback()
    assert ids_elsewhere(db) == list(range(10))


def test_limit_counts_the_rows_that_the_scan_has_locked(db: tm.Database) -> None:
    with db.transaction() as first:
        assert ids(first, limit=1) == [0]
        with pytest.raises(tm.Rejected, match="this thread holds"):
            db[NAME].delete(0)
        assert ids_elsewhere(db, limit=1) == [1]
        assert ids_elsewhere(db, limit=3, index="by_rank", reverse=True) == [1, 2, 3]
        assert ids(first, limit=2) == [0, 1], "its own locks are no obstacle"
        assert ids_elsewhere(db, limit=1, where=tm.col("id") < 2) == []


def test_transaction_with_the_only_shared_lock_gets_the_exclusive_one(db: tm.Database) -> None:
    with db.transaction() as txn:
        txn.get(NAME, 4, lock="shared")
        assert txn.get(NAME, 4, lock="exclusive", skip_locked=True).id == 4
        assert 4 not in ids_elsewhere(db)


def test_get_returns_none_for_a_row_that_is_locked(db: tm.Database) -> None:
    def found(key: Any, lock: Any, **how: Any) -> Any:
        def get() -> Any:
            with db.transaction() as txn:
                row = txn.get(NAME, key, lock, skip_locked=True, **how)
                return row and row.id

        return elsewhere(get)

    with db.transaction() as holder:
        holder.get(NAME, 1, lock="exclusive")
        holder.get(NAME, 2, lock="shared")
        holder.insert(NAME, (20, 0, "n20", "b"))
        for lock, shared in (("exclusive", None), ("shared", 2)):
            assert found(1, lock) is None and found("n1", lock, index="by_name") is None
            assert found(2, lock) == found("n2", lock, index="by_name") == shared
            assert found(20, lock) is None and found("n20", lock, index="by_name") is None
            assert found(3, lock) == found("n3", lock, index="by_name") == 3
            assert found(77, lock) is None and found("n77", lock, index="by_name") is None
        assert holder.get(NAME, 1, "exclusive", skip_locked=True).id == 1
        holder.rollback()


def test_waiter_for_a_shared_row_comes_before_a_scan_that_skips(db: tm.Database) -> None:
    with db.transaction() as txn:
        assert len(txn.scan(NAME, lock="shared", skip_locked=True).to_arrow()) == 10
        assert elsewhere(lambda: shared_elsewhere(db)) == 10


def shared_elsewhere(db: tm.Database) -> int:
    with db.transaction() as txn:
        return sum(batch.num_rows for batch in txn.scan(NAME, lock="shared", skip_locked=True).batches())


def test_rows_are_back_when_the_transaction_that_took_them_is_rolled_back(db: tm.Database) -> None:
    with db.transaction() as txn:
        for row in txn.scan(NAME, limit=3, lock="exclusive", skip_locked=True):
            txn.delete(NAME, row.id)
        assert ids_elsewhere(db) == list(range(3, 10))
        txn.rollback()
    assert ids_elsewhere(db) == list(range(10))
