"""Every call for files over Spark Connect, which has no `sparkContext`. It runs in a process of its own, because a
process has either a session of Connect or a classic one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidemark as tm
from tidemark.recovery.spark.java import java_variables

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import pathlib, pytest, pyspark.sql
import tidemark as tm, tidemark.spark as ts
from pyspark.errors import PySparkException
from tests.spark.conftest import SETTINGS, logged
from tests.spark.support import SMALL, every_column, every_row, rows_of
from tests.spark.test_with_spark import sorted_rows
from tidemark.recovery.places.names import canonical_place
from tidemark.recovery.spark.jobs import mapped, to_text
from tidemark.recovery.spark.options import option_map

builder = pyspark.sql.SparkSession.builder.remote("local[2]")
events = pathlib.Path("events").absolute()
events.mkdir()
for name, value in option_map({**SETTINGS, **logged(events), "spark.sql.timeType.enabled": True}).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
assert not hasattr(spark, "_jsparkSession")
with tm.open("store", **SMALL) as db:
    for table in ("every", "again", "files"):
        db.create_table(table, every_column(), "id", tm.HashPartition(3))
    db["every"].insert_many(every_row(100))
    db.backup("place")
    db["every"].delete_many(range(10))
    db.backup("place", incremental=True)
    want = rows_of(db, "every")
    frame = ts.read(spark, "place", "every")
    assert sorted_rows(frame) == want and frame.where("id >= 95").count() == 5
    assert ts.load(db, frame, "again", directory="jobs").rows == 90
    frame.write.parquet("file:LAKE")
    assert ts.load(db, "lake", "files", directory="jobs").rows == 90
    assert rows_of(db, "again") == rows_of(db, "files") == want and db.loads("jobs") == []
    with pytest.raises(tm.LoadRefused, match="1 row refused"):
        ts.load(db, spark.sql("select 1000 id, 1000 int8"), "again", directory="jobs")
    with pytest.raises(tm.NoSuchColumn, match="no column 'x'"):
        ts.load(db, spark.sql("select 1 id, 2 x"), "again", directory="jobs")
    assert db.loads("jobs") == []
assert ts.verify(spark, "place") == tm.backup.verify("place")
ts.restore(spark, "place", "copy", **SMALL)
with tm.open("copy", **SMALL) as copy:
    assert rows_of(copy, "every") == want
    copy.checkpoint()
assert ts.diff(spark, "place", "copy")["is_equal"]
with pytest.raises(tm.Rejected, match="is not a place.* [(]on .*[)]$"):
    mapped(spark, canonical_place, ["nothing:x"])
# Settings of a file system reach it, and the texts of tasks reach no event log.
for said in ("No FileSystem for scheme", "Wrong FS"):
    with pytest.raises(PySparkException, match=said):
        spark.read.parquet("other://place/x").columns
    spark.conf.set("fs.other.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
spark.conf.set("fs.s3a.bucket.shop.secret.key", "TOPSECRET")
assert mapped(spark, to_text, ["TOPSECRET", "b"]) == ['"TOPSECRET"', '"b"']
spark.stop()
texts = [path.read_text() for path in events.rglob("*") if path.is_file()]
assert any("SparkListenerTaskEnd" in each for each in texts) and not any("TOPSECRET" in each for each in texts)
"""


def test_every_call_for_files_runs_over_connect(tmp_path: Path, python: Path) -> None:
    for module in ("grpc", "grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(module, reason="Spark Connect is not installed; pip install 'pyspark[connect]'")
    try:
        variables = java_variables()
    except tm.Unsupported as error:
        pytest.skip(str(error))
    program = PROGRAM.replace("LAKE", str(tmp_path / "lake"))
    variables |= {"PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
