"""Loads as Spark carries them out, without Spark: tasks that run twice, too late, or after an error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemark as tm
from tests.spark.support import SMALL, rows_of
from tidemark.recovery.load import LoadJob, abort

load = pytest.importorskip("tidemark.recovery.spark.load", reason="Spark is not installed; pip install '.[spark]'")
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(20)), tm.Column("k", tm.UInt64, nullable=True)]
Work = Callable[[str], str]


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tm.Database]:
    """A store whose loads have tasks of one file."""
    pytest.importorskip("pyspark")
    monkeypatch.setattr("tidemark.recovery.load.parquet.PART_ROWS_MIN", 1)
    monkeypatch.setattr(load, "TASK_BYTES", 1)
    with tm.open(tmp_path / "store", **SMALL) as opened:
        opened.create_table("numbers", COLUMNS, "id", partition=tm.HashPartition(4))
        yield opened


@pytest.fixture
def job(db: tm.Database, tmp_path: Path) -> LoadJob:
    return db.plan_load("numbers", tmp_path / "load")


def write(tmp_path: Path, *counts: int, **columns: Any) -> str:
    """Files with so many rows each."""
    (tmp_path / "rows").mkdir(exist_ok=True)
    key = 0
    for number, count in enumerate(counts):
        keys = pa.array(range(key, key + count), pa.int64())
        table = {"id": keys, "n": pa.array(["n"] * count), "k": keys.cast(pa.decimal128(20, 0))}
        pq.write_table(pa.table({**table, **columns}), tmp_path / "rows" / f"{number}.parquet")
        key += count
    return str(tmp_path / "rows")


def run(monkeypatch: pytest.MonkeyPatch, job: LoadJob, place: str, work: Callable[[list[str], Work], Any]) -> None:
    """Load the files; `work` is given the tasks and what carries one out, in place of Spark."""
    monkeypatch.setattr(load, "mapped", lambda spark, function, tasks: work(tasks, function))
    load.load_places(None, [place], job)


def files_in(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "load").iterdir())


def test_reports_of_one_attempt_of_each_task_are_the_load(
    db: tm.Database, job: LoadJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(tasks: list[str], function: Work) -> list[str]:
        assert len(tasks) == 3
        return [(function(task), function(task))[0] for task in tasks]

    run(monkeypatch, job, write(tmp_path, 100, 200, 50), twice)
    assert len(files_in(tmp_path)) == 2 + 2 * 3 * 4
    db.adopt(job)
    assert rows_of(db, "numbers") == [(key, "n", key) for key in range(350)]
    assert files_in(tmp_path) == []


def test_refused_rows_are_numbered_over_the_whole_input(
    db: tm.Database, job: LoadJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole decimals are numbers of 64 unsigned bits, as Spark has them."""
    place = write(tmp_path, 5, 5, k=pa.array([0, 2**64 - 1, 2**64, -1, None], pa.decimal128(20, 0)))
    with pytest.raises(tm.LoadRefused) as caught:
        run(monkeypatch, job, place, lambda tasks, function: list(map(function, tasks)))
    assert [each["row"] for each in caught.value.evidence["examples"]] == [2, 3, 7, 8]
    assert json.dumps(caught.value.evidence) and abort(job) and files_in(tmp_path) == []


def test_straggler_after_an_abort_leaves_nothing(
    db: tm.Database, job: LoadJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(tasks: list[str], function: Work) -> list[str]:
        function(tasks[0])
        real = load.batches_in

        def batches(*arguments: Any) -> Iterator[pa.RecordBatch]:
            yield from real(*arguments)
            abort(job)

        monkeypatch.setattr(load, "batches_in", batches)
        return [function(task) for task in tasks[1:]]

    with pytest.raises(tm.LoadEnded):
        run(monkeypatch, job, write(tmp_path, 10, 10, 10), late)
    assert files_in(tmp_path) == []
    with pytest.raises(tm.LoadEnded):
        run(monkeypatch, job, str(tmp_path / "rows"), lambda tasks, function: list(map(function, tasks)))
    assert files_in(tmp_path) == []


def test_rows_that_an_executor_wrote_to_a_directory_of_its_own_are_missed(
    db: tm.Database, job: LoadJob, tmp_path: Path
) -> None:
    with pytest.raises(tm.IoFailed, match=r"wrote 31 rows, but there are 30 in .*load: an executor does not see it"):
        load.load_places(None, [write(tmp_path, 10, 20)], job, rows=31)


def test_task_that_does_not_see_its_files_names_them(
    db: tm.Database, job: LoadJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(tasks: list[str], function: Work) -> list[str]:
        (tmp_path / "rows" / "0.parquet").unlink()
        return list(map(function, tasks))

    with pytest.raises(tm.FileMissing, match=r"rows/0\.parquet does not exist"):
        run(monkeypatch, job, write(tmp_path, 10), gone)

    def hidden(tasks: list[str], function: Work) -> list[str]:
        (tmp_path / "load").rename(tmp_path / "elsewhere")
        return list(map(function, tasks))

    with pytest.raises(tm.FileMissing, match=r"there is no load in .*/load: the directory does not exist"):
        run(monkeypatch, job, write(tmp_path, 10), hidden)
