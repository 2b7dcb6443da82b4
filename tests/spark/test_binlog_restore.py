"""A restore on executors that goes on with the binlog: fragments there, the binlog in the process that restores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
import tidemark.spark as ts

pytestmark = pytest.mark.spark
OPTIONS: dict[str, Any] = {"data_memory": "64 MiB", "background": False}


def test_restore_on_executors_goes_on_with_the_binlog(spark: Any, tmp_path: Path) -> None:
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)]
    with tm.open(tmp_path / "store", server_id=1, log_bin="binlog", **OPTIONS) as db:
        db.create_table("test.t", columns, "id", tm.HashPartition(4))
        db["test.t"].insert_many([(key, key) for key in range(1_000)])
        db.backup(tmp_path / "place")
        db["test.t"].delete_many(list(range(100)))
        db.sync()
        want = sorted(map(tuple, db["test.t"].scan()))
        report = ts.restore(spark, tmp_path / "place", tmp_path / "copy", binlog=tmp_path / "store", **OPTIONS)
    assert report["tasks"] > 0 and (report["later_epochs"], report["later_rows"]) == (1, 100)
    with tm.open(tmp_path / "copy", **OPTIONS) as copy:
        assert sorted(map(tuple, copy["test.t"].scan())) == want
