"""The writer of loads as Spark calls it, without Spark: in other processes, twice, too late, after an error."""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.spark.support import SMALL, rows_of
from tidemark.recovery.load import LoadJob
from tidemark.recovery.spark.failures import error_in

load = pytest.importorskip(
    "tidemark.recovery.spark.load", reason="Spark is not installed; pip install 'tidemark[spark]'"
)
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(20)), tm.Column("k", tm.UInt64, nullable=True)]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "store", **SMALL) as opened:
        opened.create_table("numbers", COLUMNS, "id", partition=tm.HashPartition(4))
        yield opened


@pytest.fixture
def job(db: tm.Database, tmp_path: Path) -> LoadJob:
    return db.plan_load("numbers", tmp_path / "load")


def batch(first: int, count: int, name: str | None = "n") -> pa.RecordBatch:
    keys = list(range(first, first + count))
    numbers = pa.array(keys).cast(pa.decimal128(20, 0))
    return pa.record_batch({"id": pa.array(keys), "n": pa.array([name] * count, pa.string()), "k": numbers})


def sent(value: Any) -> Any:
    """The writer as it arrives in another process."""
    return pickle.loads(pickle.dumps(value))


def files_in(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "load").iterdir())


def test_messages_that_are_committed_are_the_load(db: tm.Database, job: LoadJob, tmp_path: Path) -> None:
    writer = sent(load.LoadWriter(job))
    messages = [sent(writer.write(iter([batch(start, 50), batch(start + 50, 50)]))) for start in (0, 100, 200)]
    writer.write(iter([batch(100, 100)]))  # a speculative twin whose message is lost
    sent(writer).commit([*messages, None])
    sent(writer).commit(messages)
    sent(writer).abort(messages)  # by a committer that never received its success
    db.adopt(job)
    assert rows_of(db, "numbers") == [(key, "n", key) for key in range(300)]
    assert files_in(tmp_path) == []


def test_commit_that_raises_and_the_abort_after_it_leave_nothing(db: tm.Database, job: LoadJob, tmp_path: Path) -> None:
    writer = load.LoadWriter(job)
    messages = [writer.write(iter([batch(0, 10)])), writer.write(iter([batch(10, 3), batch(13, 1, None)]))]
    with pytest.raises(tm.LoadRefused, match="1 row refused") as caught:
        writer.commit(messages)
    writer.abort(messages)
    assert files_in(tmp_path) == []
    # From the text of a traceback, which is all that Spark passes on.
    found = error_in("".join(traceback.format_exception(caught.value)))
    assert isinstance(found, tm.LoadRefused) and found.evidence["refused"] == 1
    (example,) = found.evidence["examples"]
    assert (example["row"], example["column"], example["values"]["id"]) == (3, "n", "13")
    assert json.dumps(found.evidence)


def test_straggler_after_an_abort_leaves_nothing(db: tm.Database, job: LoadJob, tmp_path: Path) -> None:
    writer = load.LoadWriter(job)

    def late() -> Iterator[pa.RecordBatch]:
        yield batch(0, 10)
        writer.abort([None])
        yield batch(10, 10)

    with pytest.raises(tm.LoadEnded):
        writer.write(late())
    assert files_in(tmp_path) == []
    with pytest.raises(tm.LoadEnded):
        writer.write(iter([batch(20, 10)]))
    with pytest.raises(tm.LoadEnded):
        writer.commit([])
    assert files_in(tmp_path) == []


def test_whole_decimals_are_numbers_of_64_unsigned_bits(db: tm.Database, job: LoadJob) -> None:
    """Spark has no other types; single values that do not fit are refused, the rest of their batch is not."""
    writer = load.LoadWriter(job)
    numbers = pa.array([0, 2**64 - 1, 2**64, -1, None], pa.decimal128(20, 0))
    given = pa.record_batch({"id": pa.array(range(5)), "n": pa.array(["n"] * 5), "k": numbers})
    with pytest.raises(tm.LoadRefused) as caught:
        writer.commit([writer.write(iter([given]))])
    assert [each["row"] for each in caught.value.evidence["examples"]] == [2, 3]
    db["numbers"].insert_many(pa.Table.from_batches([given]).take([0, 1, 4]))
    assert [row[2] for row in rows_of(db, "numbers")] == [0, 2**64 - 1, None]
    with pytest.raises(
        tm.ValueOutOfRange, match="k in row 2 holds 0 to 18446744073709551615, got int 1844674407370955"
    ):
        db["numbers"].write_many(pa.Table.from_batches([given]))
