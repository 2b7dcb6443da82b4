"""A standalone cluster of two workers on this machine: the tutorial, and Java processes of executors that are killed.

The driver runs in a process of its own, because a process has only one Spark. It has a test file of its own for the
same reason.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tidemark.recovery.spark.java import java_variables

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]


def kills_of(tmp_path: Path, seed: int, rounds: int, *kinds: str) -> dict[str, dict[str, Any]]:
    """What the rounds of each kind saw."""
    try:
        java_variables()
    except tm.Unsupported as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "tests.kills.spark", str(tmp_path / "kills"), "--seconds", "1e9"]
    command += ["--seed", str(seed), "--rounds", str(rounds)]
    command += [word for kind in kinds for word in ("--kind", kind)]
    print(*command)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5_000:]
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {report["kind"]: report for report in reports}


# After the blocks of the tutorial.
MORE = """
import os, platform
assert ts.verify(spark, "spark-backups")["is_sound"]
report = ts.restore(spark, "spark-backups", "again", data_memory="128 MiB", redo_log="32 MiB")
assert report["rows"] == 200_000 and spark.conf.get("spark.sql.shuffle.partitions") == "2"
with tm.open("again", data_memory="128 MiB", redo_log="32 MiB") as again:
    orders.selectExpr("id + 1000000 id", "customer", "cents").write.parquet("file:$HERE/lake")
    assert ts.load(again, "lake", "shop.order", directory="jobs").rows == 200_000
    assert len(again["shop.order"]) == 400_000 and again.loads("jobs") == []
    # A path that is another directory in each process: executors do not see what this one sees.
    def own(name):
        return f"/proc/self/cwd/{name}"
    os.makedirs("own")
    calls = [
        lambda: ts.load(again, "lake", "shop.order", directory=own("own")),
        lambda: ts.load(again, own("lake"), "shop.order", directory="jobs"),
        lambda: ts.verify(spark, own("spark-backups")),
        lambda: ts.diff(spark, own("spark-backups"), own("spark-backups")),
        lambda: ts.restore(spark, own("spark-backups"), "third", data_memory="128 MiB", redo_log="32 MiB"),
    ]
    for call in calls:
        try:
            call()
        except tm.FileMissing as missing:
            said = str(missing)
            assert "/proc/self/cwd/" in said and said.endswith(f" (on {platform.node()})") and chr(10) not in said, said
        else:
            raise AssertionError("executors see the path")
    try:
        ts.load(again, orders, "shop.order", directory=own("own"))
    except tm.IoFailed as missing:
        assert "Spark wrote 200000 rows, but there are 0 in /proc/self/cwd/own" in str(missing), missing
    assert os.listdir("own") == os.listdir("jobs") == [] and len(again["shop.order"]) == 400_000
with tm.open("logged", data_memory="128 MiB", redo_log="32 MiB", server_id=1, log_bin="binlog") as logged:
    logged.create_table("t", [tm.Column("id", tm.Int64)], "id")
    logged["t"].insert_many([(key,) for key in range(1_000)])
    logged.sync()
    seen = []
    query = ts.stream(spark, "logged", "t").writeStream.foreachBatch(lambda batch, _: seen.append(batch.count()))
    query = query.option("checkpointLocation", "file:$HERE/query").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(seen) == 1_000
"""


def test_tutorial_runs_on_a_cluster(tmp_path: Path) -> None:
    cluster = pytest.importorskip("tests.spark.cluster")
    try:
        java_variables()
    except tm.Unsupported as error:
        pytest.skip(str(error))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tutorials/spark.md").read_text(), re.DOTALL)
    program = "\n".join(blocks)
    assert program.count('"local[2]"') == program.count("spark.stop()") == 1
    program = program.replace("spark.stop()", MORE.replace("$HERE", str(tmp_path)) + "spark.stop()")
    with cluster.standalone(tmp_path / "cluster") as master:
        program = program.replace('"local[2]"', repr(master))
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5_000:]


@pytest.mark.soak  # two minutes: on a busy machine Java takes half a minute to come back
def test_executor_killed_in_the_middle_of_a_load_and_of_a_restore_leaves_everything_or_nothing(tmp_path: Path) -> None:
    reports = kills_of(tmp_path, 2797, 1, "load-executors", "restore-executors")
    assert all(each["rounds"] == each["whole"] + each["repeated"] == 1 for each in reports.values())
    assert sum(each["kills"] for each in reports.values()) >= 1


@pytest.mark.soak  # two minutes
def test_driver_killed_at_each_stage_of_a_load_and_in_a_restore_leaves_what_can_be_removed(tmp_path: Path) -> None:
    reports = kills_of(tmp_path, 4, 5, "load-driver", "restore-driver")
    assert all(each["rounds"] == each["whole"] + each["repeated"] == 5 for each in reports.values())
    assert sum(each["kills"] for each in reports.values()) >= 8
