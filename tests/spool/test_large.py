"""A transaction of 300,000 rows with 1 MiB of transaction memory, on a real disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidemark as tm

ROWS = 300_000
OPTIONS: Any = {"data_memory": "128 MiB", "redo_log": "4 MiB", "transaction_memory": "1 MiB", "background": False}


def test_transaction_far_larger_than_memory_and_log_commits_and_comes_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    db = tm.open(store, **OPTIONS)
    columns = [tm.Column("id", tm.Int64), tm.Column("a", tm.Int64), tm.Column("b", tm.Float64)]
    db.create_table("t", columns, "id", tm.HashPartition(4))
    ids = np.random.default_rng(3).permutation(ROWS)
    with db.transaction() as txn:
        txn.insert_many("t", pa.table({"id": ids, "a": ids * 2, "b": ids / 2}))
        assert txn.update_where("t", {"a": tm.col("a") + 1}, where=tm.col("id") % 3 == 0) == ROWS // 3
        txn.delete_many("t", np.arange(0, ROWS, 10))
        assert txn.get("t", 9).a == 19
    spool = db.status()["spool"]
    assert spool["kept_bytes"] > 10 << 20 and db.status()["log"]["head_lsn"] < 1 << 20
    for _ in range(2):
        table = db["t"].to_arrow().sort_by("id")
        expected = np.delete(np.arange(ROWS), np.arange(0, ROWS, 10))
        assert np.array_equal(table["id"].to_numpy(), expected)
        assert np.array_equal(table["a"].to_numpy(), expected * 2 + (expected % 3 == 0))
        assert np.array_equal(table["b"].to_numpy(), expected / 2)
        db.close()
        db = tm.open(store, **OPTIONS)
    db.checkpoint()
    db.checkpoint()
    assert list((store / "spool").iterdir()) == []
    db.close()
