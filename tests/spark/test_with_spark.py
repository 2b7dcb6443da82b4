"""Tests that need a running Spark: the data source by its name, types through its Java, tasks that are killed.

They are all in one file: files are distributed to processes, and each process would start a Java of its own.
"""

from __future__ import annotations

import gc
import io
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError

import tidemark as tm
import tidemark.spark
from tests.kills.spark.killer import Killer
from tests.places import test_object_stores as s3
from tests.spark.sinks import Sink, closed, rows_of_duckdb, rows_of_feed, run_query
from tests.spark.support import EVERY, SMALL, every_column, every_row, rows_of
from tidemark.cli.commands import commands
from tidemark.recovery.backup.restore_task import TaskReport
from tidemark.recovery.spark.jobs import mapped
from tidemark.recovery.spark.read import rows_of_backup

# pyspark leaves its sockets to the garbage collector.
LEFT = ["ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"]
pytestmark = [pytest.mark.spark, *map(pytest.mark.filterwarnings, LEFT)]
NUMBERS = [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(20)), tm.Column("k", tm.UInt64, nullable=True)]
WITH_HIDDEN = ["id", "n", "k", tm.ROWID, tm.EPOCH, tm.AUTHOR, tm.FRAGMENT]
KILLERS_MAX = 10
LONG = pytest.mark.timeout(1_200)  # if killers find no task in the first attempts


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "store", **SMALL) as opened:
        yield opened


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Garbage of a test is collected before the next test, which may be in another file."""
    yield
    gc.collect()


def sorted_rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in frame.toArrow().to_pylist()), key=lambda row: row[0])


def test_rows_of_every_type_reach_spark_as_they_are(spark: Any, every: tuple[Path, list[tuple[Any, ...]]]) -> None:
    frame = tidemark.spark.read(spark, every[0])
    assert dict(frame.dtypes)["uint64"] == "decimal(20,0)" and dict(frame.dtypes)["uint32"] == "bigint"
    assert sorted_rows(frame) == every[1]
    greatest = "count_if(uint64 = 18446744073709551615)"
    found = frame.selectExpr(greatest, "max(date)", "min(time)", "sum(int8)").collect()[0]
    assert found[0] == sum(row[8] == 2**64 - 1 for row in every[1]) and found[1] == EVERY["date"][1][1]


def test_columns_filters_and_splitting_are_sparks_own(spark: Any, db: tm.Database, tmp_path: Path) -> None:
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(4))
    db["numbers"].insert_many([(key, f"n{key}", key if key % 3 else None) for key in range(2_000)])
    place = tmp_path / "a place [with] {signs} * 100%"
    db.backup(place)
    frame = tidemark.spark.read(spark, place)
    found = frame.where("id >= 1990").select("k")
    said = io.StringIO()
    with redirect_stdout(said):
        found.explain("formatted")
    assert "PushedFilters: [IsNotNull(id), GreaterThanOrEqual(id,1990)]" in said.getvalue()
    assert "ReadSchema: struct<id:bigint,k:decimal(20,0)>" in said.getvalue()
    assert found.count() == 10 and frame.count() == 2_000
    assert frame.where("id = 7").union(frame.where("id = 8")).count() == 2


def test_chain_of_backups_is_read_without_its_dead_rows(spark: Any, db: tm.Database, tmp_path: Path) -> None:
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(4))
    db["numbers"].insert_many([(key, f"n{key}", key) for key in range(2_000)])
    db.backup(tmp_path / "place")
    first = rows_of(db, "numbers")
    db["numbers"].delete_many(range(0, 2_000, 40))
    db["numbers"].write_many([(key, "again", None) for key in range(0, 2_000, 80)])
    db.backup(tmp_path / "place", incremental=True)
    second = rows_of(db, "numbers")
    for key in (77, 80):  # of the first backup, and of the second, whose rows are at places of the first
        db["numbers"].update(key, {"n": "once more"})
    db.backup(tmp_path / "place", incremental=True)
    assert [rows_of_backup(tmp_path / "place", None, number).is_one_backup for number in (2, 3)] == [True, False]
    for number, want in ((1, first), (2, second), (3, rows_of(db, "numbers"))):
        assert sorted_rows(tidemark.spark.read(spark, tmp_path / "place", number=number)) == want
    hidden = tidemark.spark.read(spark, str(tmp_path / "place"), "numbers", hidden=True)
    assert hidden.columns == WITH_HIDDEN and sorted_rows(hidden) == rows_of(db, "numbers", WITH_HIDDEN)


@pytest.mark.parametrize("flips", [pytest.param(30, id="some"), pytest.param(300, id="many", marks=pytest.mark.soak)])
def test_flipped_bytes_of_any_part_of_a_file_never_give_other_rows(
    spark: Any, db: tm.Database, tmp_path: Path, flips: int
) -> None:
    """A flip is an error of the read, or of Spark, or is where nothing that is read depends on it."""
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(1))
    db["numbers"].insert_many([(key, f"n{key}", key) for key in range(2_000)])
    db.backup(tmp_path / "place")
    (path,) = (tmp_path / "place").glob("*-main.numbers/1/*.parquet")
    sound, want = path.read_bytes(), rows_of(db, "numbers", WITH_HIDDEN)
    rng = random.Random(12)
    refused = 0
    for at in sorted(rng.sample(range(len(sound)), flips)):
        spoiled = bytearray(sound)
        spoiled[at] ^= 1 << rng.randrange(8)
        path.write_bytes(spoiled)
        try:
            found = sorted_rows(tidemark.spark.read(spark, tmp_path / "place", hidden=True))
        except (tm.BackupDamaged, Py4JJavaError):
            refused += 1
            continue
        assert found == want, at
    assert refused > flips * 0.9


def test_damage_of_a_page_ends_the_query(spark: Any, db: tm.Database, tmp_path: Path) -> None:
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(2))
    db["numbers"].insert_many([(key, f"n{key}", None) for key in range(1_000)])
    db.backup(tmp_path / "place")
    frame = tidemark.spark.read(spark, tmp_path / "place")
    path = sorted((tmp_path / "place").glob("*-main.numbers/1/*.parquet"))[0]
    spoiled = bytearray(path.read_bytes())
    spoiled[300] ^= 4
    path.write_bytes(spoiled)
    with pytest.raises(Py4JJavaError):
        frame.toArrow()
    with pytest.raises(tm.NoSuchTable, match="known: main.numbers"):
        tidemark.spark.read(spark, tmp_path / "place", "nothing")
    with pytest.raises(tm.SchemaInvalid, match="row changes only"), tidemark.spark.typed_errors():
        spark.read.format("tidemark").option("table", "numbers").load(str(tmp_path / "place"))


# --- loads ----------------------------------------------------------------------------------------
def test_rows_of_every_type_are_loaded_as_they_are(
    spark: Any, every: tuple[Path, list[tuple[Any, ...]]], tmp_path: Path
) -> None:
    """From one store through Spark into another: equal in the end, from a DataFrame as from files that Spark wrote."""
    frame = tidemark.spark.read(spark, every[0])
    frame.repartition(3).write.parquet(str(tmp_path / "rows"))
    with tm.open(tmp_path / "other", **SMALL) as other:
        other.create_tablespace("main", size="1 MiB", page_size="32 KiB")
        for storage, source, directory in (("memory", frame, None), ("disk", tmp_path / "rows", tmp_path / "load")):
            other.create_table(storage, every_column(storage), "id", partition=tm.HashPartition(5))
            report = tidemark.spark.load(other, source, storage, directory=directory)
            assert report.rows == 100
            assert rows_of(other, storage) == every[1]
        assert other.check()["problems"] == [] and files_below(tmp_path / "load") == []
        other.create_table("empty", every_column(), "id")
        for none in (frame.where("id < 0"), frame.limit(0)):
            assert tidemark.spark.load(other, none, "empty").rows == 0


def test_bad_values_of_a_load_are_reported_and_nothing_stays(spark: Any, db: tm.Database, tmp_path: Path) -> None:
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(3))
    frame = spark.range(1_000).selectExpr("id", "if(id = 77, null, 'n') n", "cast(id - 1 as decimal(20,0)) k")
    with pytest.raises(tm.LoadRefused) as caught:
        tidemark.spark.load(db, frame, "numbers", directory=tmp_path / "load")
    assert caught.value.evidence["refused"] == 2 and caught.value.evidence["duplicates"] == 0
    assert {(each["column"], each["values"]["id"]) for each in caught.value.evidence["examples"]} == {
        ("n", "77"),
        ("k", "0"),
    }
    assert list((tmp_path / "load").iterdir()) == [] and len(db["numbers"]) == 0


def test_load_that_cannot_be_is_refused_before_any_task(spark: Any, db: tm.Database, tmp_path: Path) -> None:
    db.create_table("numbers", NUMBERS, "id")
    place = tmp_path / "load"
    refused = [
        (spark.range(3).withColumnRenamed("id", "m"), tm.NoSuchColumn, "no column 'm'"),
        (spark.range(3), tm.NotNullViolation, "has no default"),
        (spark.sql("select 1 id, 'n' n, 'x' k"), tm.TypeMismatch, "UInt64 and takes no"),
        (tmp_path / "nothing", tm.FileMissing, "nothing"),
        (7, tm.TypeMismatch, "got int"),
    ]
    for source, kind, said in refused:
        with pytest.raises(kind, match=said):
            tidemark.spark.load(db, source, "numbers", directory=place)
        assert list(place.iterdir()) == []
    with pytest.raises(tm.NoSuchTable):
        tidemark.spark.load(db, spark.range(3), "nothing")


def until_killed(killer_of: Callable[[], Killer], work: Callable[[int], Any]) -> Any:
    """Repeat the work, with the number of the attempt, until a process was killed in it; return the result of the last
    attempt. On a busy machine the killer may look only after the tasks have ended.
    """
    for attempt in range(KILLERS_MAX):
        with killer_of() as killer:
            found = work(attempt)
        if killer.killed:
            return found
    raise AssertionError(f"no task was met in {KILLERS_MAX} attempts")


def working_killed(most: int) -> Killer:
    """Tasks killed that have used some time of their own since they were forked."""
    return Killer(most, user_s_min=0.2)


@LONG
def test_tasks_killed_in_the_middle_of_a_load_leave_no_row_twice_and_no_file(
    spark: Any, db: tm.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the test had to see a kill in a load of twenty seconds, which a busy machine may not give."""
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(4))
    frame = spark.range(0, 400_000, 1, 6).selectExpr("id", "concat('n', id) n", "cast(id as decimal(20,0)) k")

    monkeypatch.setattr("tidemark.recovery.spark.load.TASK_BYTES", 1 << 20)

    def load(attempt: int) -> Any:
        db["numbers"].delete_many(db["numbers"].scan(columns=["id"]).to_arrow()["id"])
        return tidemark.spark.load(db, frame, "numbers", directory=tmp_path / "load")

    assert until_killed(lambda: working_killed(2), load).rows == 400_000
    assert len(db["numbers"]) == 400_000 and db["numbers"].scan().sum("k") == sum(range(400_000))
    assert list((tmp_path / "load").iterdir()) == []


# --- object stores --------------------------------------------------------------------------------
endpoint = s3.endpoint


def test_jobs_in_an_object_store_show_no_secret_anywhere(
    spark: Any, db: tm.Database, endpoint: str, events: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="tidemark")  # that of py4j shows every call
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(2))
    jobs, place = s3.uri(endpoint, f"{s3.BUCKET}/jobs"), s3.uri(endpoint, f"{s3.BUCKET}/place")
    columns = ("id", "concat('n', id) n", "cast(id as decimal(20,0)) k")
    spark.range(1_000).selectExpr(*columns).write.parquet(str(tmp_path / "lake"))
    shown: list[Any] = [tidemark.spark.load(db, tmp_path / "lake", "numbers", directory=jobs)]
    assert len(db["numbers"]) == 1_000 and db.loads(jobs) == []
    spark.range(9).selectExpr("id", "repeat('n', 21) n").write.parquet(str(tmp_path / "bad"))
    refused = [
        (tmp_path / "bad", jobs, tm.LoadRefused, "9 rows refused"),
        (tmp_path / "lake", jobs, tm.LoadRefused, "has a key that exists|have a key that exists"),
        (s3.uri(endpoint, f"{s3.BUCKET}/nothing"), jobs, tm.FileMissing, "does not exist"),
        (tmp_path / "lake", s3.uri(endpoint, "nobucket/jobs"), tm.FileMissing, "nobucket"),
        (spark.range(9).selectExpr(*columns), jobs, tm.Rejected, "S3AFileSystem is missing"),
    ]
    for source, directory, kind, said in refused:
        with pytest.raises(kind, match=said) as caught:
            tidemark.spark.load(db, source, "numbers", directory=directory)
        shown += [caught.value, caught.value.evidence]
        assert db.loads(jobs) == []
    job = db.plan_load("numbers", jobs)
    shown += [job, job.to_json(), db.loads(jobs), CliRunner().invoke(commands, ["load", "store", "--sweep", jobs])]
    assert [each.name for each in db.sweep_loads(jobs)] == [job.name]
    db.backup(place)
    shown += [tidemark.spark.verify(spark, place), tidemark.spark.restore(spark, place, tmp_path / "copy", **SMALL)]
    db.checkpoint()
    shown += [tidemark.spark.diff(spark, place, tmp_path / "store")]
    assert shown[-3]["is_sound"] and shown[-2]["rows"] == 1_000 and shown[-1]["is_equal"]
    with pytest.raises(tm.Rejected, match="S3AFileSystem is missing") as caught:
        tidemark.spark.read(spark, place, "numbers")
    with pytest.raises(tm.FileMissing) as missing:
        tidemark.spark.verify(spark, s3.uri(endpoint, "nobucket/place"))
    shown += [caught.value, missing.value, missing.value.evidence, db.status(), caplog.text]
    texts = [str(each) for each in shown]
    files = [path for folder in (tmp_path, events) for path in folder.rglob("*") if path.is_file()]
    texts += [path.read_bytes().decode("latin-1") for path in files]
    assert any("SparkListenerTaskEnd" in text for text in texts) and any("…" in text for text in texts)
    assert [text[:200] for text in texts if any(secret in text for secret in s3.SHOWN)] == []


# --- full disks -----------------------------------------------------------------------------------
def files_below(path: Path) -> list[str]:
    return [each.name for each in path.rglob("*") if each.is_file() and each.name != "LOCK"]


@pytest.fixture
def full_disk() -> Any:
    """The module of full disks, its functions travelling by value."""
    from pyspark import cloudpickle

    from tests.spark import full_disk as room

    cloudpickle.register_pickle_by_value(room)
    yield room
    cloudpickle.unregister_pickle_by_value(room)


# Calls that find the disk full; ordinary runs take a few of them, because each job is tried three times over.
CALLS = [pytest.param((2, 4, 99), id="some"), pytest.param(range(1, 30), id="all", marks=pytest.mark.soak)]


@pytest.mark.parametrize("calls", CALLS)
def test_disk_full_at_any_write_of_a_load_task_leaves_no_file_and_the_table_as_it_was(
    spark: Any, db: tm.Database, tmp_path: Path, full_disk: Any, calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(2))
    db["numbers"].insert((-1, "before", 1))
    columns = ("id", "concat('n', id) n", "cast(id as decimal(20,0)) k")
    for name, begin, rows in (("rows", 0, 20_000), ("more", 20_000, 100)):
        spark.range(begin, begin + rows, 1, 1).selectExpr(*columns).write.parquet(str(tmp_path / name))

    def load(name: str, how: Any) -> None:
        work = partial(full_disk.loaded, how)
        with monkeypatch.context() as patch:
            patch.setattr("tidemark.recovery.spark.load.mapped", lambda spark, _, tasks: mapped(spark, work, tasks))
            tidemark.spark.load(db, tmp_path / name, "numbers", directory=tmp_path / "load")

    refused = 0
    for how in [full_disk.Full(size_bytes=64 << 10), *map(full_disk.Full, calls)]:
        try:
            load("rows", how)
            break
        except tm.StorageFull as error:
            assert error.evidence["place"] == str(tmp_path / "load") and str(tmp_path / "load") in str(error)
            assert error.evidence["host"] in str(error)
        assert files_below(tmp_path / "load") == []
        refused += 1
        assert rows_of(db, "numbers") == [(-1, "before", 1)]
    assert refused >= (3 if len(calls) == 3 else 5)  # both files made, and written in one call each
    # Space is back before the next attempt: the caller does not notice.
    load("more", full_disk.Full(nth=2, attempts=1))
    assert files_below(tmp_path / "load") == []
    assert len(db["numbers"]) == 20_101 and db["numbers"].scan().sum("k") == sum(range(20_100)) + 1


@pytest.mark.parametrize("calls", CALLS)
def test_disk_full_at_any_write_of_a_restore_task_leaves_no_file(
    spark: Any, db: tm.Database, tmp_path: Path, full_disk: Any, calls: Any
) -> None:
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(2))
    db.archive(tmp_path / "place")
    db["numbers"].insert_many([(key, f"n{key}", key) for key in range(10_000)])
    db.backup(tmp_path / "place")
    db["numbers"].delete_many(range(100))
    db.sync()
    db.archive()
    tried: set[str] = set()
    refused = 0
    for how in [full_disk.Full(size_bytes=4 << 10), *map(full_disk.Full, calls)]:

        def runner(tasks: Any, how: Any = how) -> Any:
            tried.update(task.kind for task in tasks)
            texts = mapped(spark, partial(full_disk.restored, how), [task.to_json() for task in tasks])
            return map(TaskReport.from_json, texts)

        try:
            report = tm.restore(tmp_path / "place", tmp_path / "copy", runner=runner, processes=2, **SMALL)
            break
        except tm.StorageFull as error:
            assert error.evidence["place"] == str(tmp_path / "copy") and str(tmp_path / "copy") in str(error)
        refused += 1
        assert files_below(tmp_path / "copy") == []
    assert refused >= (2 if len(calls) == 3 else 3) and tried == {"split", "fragments"} and report["rows"] == 9_900
    with tm.open(tmp_path / "copy", create=False, **SMALL) as copy:
        assert rows_of(copy, "numbers") == rows_of(db, "numbers")


# --- jobs -----------------------------------------------------------------------------------------
def test_backup_is_verified_on_executors_as_natively(spark: Any, db: tm.Database, tmp_path: Path) -> None:
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(4))
    db.archive(tmp_path / "place")
    db["numbers"].insert_many([(key, f"n{key}", key) for key in range(2_000)])
    db.backup(tmp_path / "place")
    db["numbers"].delete_many(range(100))
    db.backup(tmp_path / "place", incremental=True)
    db.sync()
    db.archive()
    found = tidemark.spark.verify(spark, tmp_path / "place")
    assert found == tm.backup.verify(tmp_path / "place") and found["is_sound"] and found["segments"]
    for path in [
        *sorted((tmp_path / "place").glob("*-main.numbers/2/*"))[:1],
        *(tmp_path / "place" / "archive").iterdir(),
    ]:
        spoiled = bytearray(path.read_bytes())
        spoiled[len(spoiled) // 2] ^= 1
        path.write_bytes(spoiled)
    found = tidemark.spark.verify(spark, tmp_path / "place")
    assert found == tm.backup.verify(tmp_path / "place") and len(found["problems"]) >= 2


def test_backup_is_restored_on_executors_that_are_killed_and_equal_to_its_source(
    spark: Any, db: tm.Database, tmp_path: Path
) -> None:
    db.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(4))
    db.create_index("numbers", "by_n", ["n"])
    db.archive(tmp_path / "place")
    db["numbers"].insert_many([(key, f"n{key}", key) for key in range(50_000)])
    db.backup(tmp_path / "place")
    db["numbers"].delete_many(range(100))
    db["numbers"].write_many([(key, "late", None) for key in range(1_000, 2_000)])
    epoch = db.sync()
    db["numbers"].delete_many(range(5_000, 6_000))
    db.sync()
    db.archive()
    with working_killed(2):
        report = tidemark.spark.restore(spark, tmp_path / "place", tmp_path / "copy", until=epoch, **SMALL)
    assert report["epoch"] == epoch and report["rows"] == 49_900
    with tm.open(tmp_path / "copy", **SMALL) as copy:
        assert copy.check()["problems"] == []
        assert len(copy["numbers"]) == 49_900 and len(list(copy["numbers"].scan(where=tm.col("n") == "late"))) == 1_000
        copy["numbers"].delete_many(range(5_000, 6_000))
        copy.checkpoint()
    db.checkpoint()
    assert tidemark.spark.diff(spark, tmp_path / "store", tmp_path / "copy")["is_equal"]
    with tm.open(tmp_path / "copy", **SMALL) as copy:
        copy["numbers"].update(7_777, {"k": 1})
        copy.checkpoint()
    found = tidemark.spark.diff(spark, tmp_path / "store", tmp_path / "copy")
    assert not found["is_equal"] and "7777" in str(found)


# --- changes --------------------------------------------------------------------------------------
LOGGED: dict[str, Any] = {**SMALL, "server_id": 1, "log_bin": "binlog", "log_updated_only": False}
LOGGED["log_update_as_write"] = False


@pytest.fixture
def source(tmp_path: Path) -> Iterator[tm.Database]:
    """A store that keeps its changes."""
    with tm.open(tmp_path / "source", **LOGGED) as opened:
        opened.create_table("numbers", NUMBERS, "id", partition=tm.HashPartition(2))
        yield opened


def test_stream_gives_each_change_once_over_restarts_and_failures_of_the_query(
    spark: Any, source: tm.Database, tmp_path: Path
) -> None:
    def change(turn: int) -> int:
        source["numbers"].insert_many([(key, f"n{key}", key) for key in range(turn * 100, turn * 100 + 100)])
        closed(source)
        source["numbers"].update(turn * 100, {"n": "changed"})
        source["numbers"].delete(turn * 100 + 1)
        return closed(source)

    sink = Sink(tmp_path / "query")

    def run(most: int | None = None) -> None:
        sink.run(tidemark.spark.stream(spark, tmp_path / "source", max_epochs=most, options={"taskBytes": 500}))

    change(0)
    run(most=1)
    assert len(sink.batches) > 1 and sink.rows == rows_of_feed(source, "numbers")
    change(1)
    # The batch was given out, and the query ends before it has recorded that.
    sink.fails_in = len(sink.batches)
    with pytest.raises(Exception, match="the sink failed"):
        run()
    sink.fails_in = None
    source.checkpoint()
    last = change(2)
    run()
    expected = rows_of_feed(source, "numbers")
    assert sink.rows == expected and len(expected) == 3 * 102 and expected[-1][0] == last
    assert {row[1] for row in expected} == {"write", "update", "delete"}
    # A batch of epochs has them too.
    middle = expected[len(expected) // 2][0]
    frame = tidemark.spark.changes(spark, tmp_path / "source", "numbers", middle, last - 1)
    found = [tuple(row.values()) for row in frame.toArrow().to_pylist()]
    assert found == [row for row in expected if middle < row[0] < last] != []
    assert frame.where("after.k = 201").count() == frame.where("after.n = 'n201'").count()


def test_changes_of_every_type_reach_spark_as_they_are(spark: Any, source: tm.Database, tmp_path: Path) -> None:
    source.create_table("every", every_column(), "id", partition=tm.HashPartition(2))
    source["every"].insert_many(every_row(30))
    closed(source)
    frame = tidemark.spark.changes(spark, tmp_path / "source", "every")
    assert frame.schema["after"].dataType["uint64"].dataType.simpleString() == "decimal(20,0)"
    assert sorted_rows(frame.select("after.*")) == rows_of(source, "every")
    assert frame.select("before").distinct().collect() == [(None,)]


@LONG
def test_tasks_killed_in_the_middle_of_a_stream_are_done_again_while_its_store_is_written(
    spark: Any, source: tm.Database, tmp_path: Path
) -> None:
    """Story: as for the load, a short stream may end before one of its tasks is killed."""
    with source.transaction() as txn:
        txn.insert_many("numbers", [(key, f"n{key}", key) for key in range(100_000)])
    epoch = closed(source)

    def follow(attempt: int) -> list[int]:
        seen: list[int] = []

        def take(frame: Any, number: int) -> None:
            source["numbers"].insert((1_000_000 * (attempt + 1) + number, "meanwhile", None))
            closed(source)
            row = frame.selectExpr("count(*)", "sum(after.id)", "max(epoch)").collect()[0]
            seen.extend(row)

        stream = tidemark.spark.stream(spark, tmp_path / "source", max_epochs=1, options={"taskBytes": 500_000})
        place = str(tmp_path / f"query{attempt}")
        run_query(stream.writeStream.foreachBatch(take).option("checkpointLocation", place))
        return seen

    seen = until_killed(lambda: Killer(2), follow)
    assert seen[seen.index(100_000) :][:3] == [100_000, sum(range(100_000)), epoch]
    assert 1_000_000 not in seen


def test_what_a_stream_cannot_have_ends_it_with_its_own_error(spark: Any, source: tm.Database, tmp_path: Path) -> None:
    epochs = []
    for key in range(3):
        source["numbers"].insert((key, "n", None))
        epochs.append(closed(source))
        source.binlog.rotate()
    source.binlog.purge(to=source.binlog.writer.end.file)
    with pytest.raises(tm.PositionLost, match="no longer in the binlog"):
        Sink(tmp_path / "lost").run(tidemark.spark.stream(spark, tmp_path / "source"))
    source["numbers"].insert((9, "n", None))
    closed(source)
    sink = Sink(tmp_path / "damaged")
    begin = tidemark.spark.stream(spark, tmp_path / "source", None, epochs[2])
    sink.run(begin)
    assert [row[3]["id"] for row in sink.rows] == [9]
    source["numbers"].insert((10, "n", None))
    closed(source)
    path = sorted((tmp_path / "source" / "binlog").glob("binlog.*[0-9]"))[-1]
    spoiled = bytearray(path.read_bytes())
    spoiled[-60] ^= 4
    path.write_bytes(spoiled)
    with pytest.raises(tm.BinlogDamaged, match=r"^binlog\.0"):
        sink.run(begin)
    assert len(sink.rows) == 1
    source.checkpoint()
    with pytest.raises(tm.SchemaInvalid, match="changes"), tidemark.spark.typed_errors():
        Sink(tmp_path / "rows").run(spark.readStream.format("tidemark").load(str(tmp_path / "source")))


def test_what_spark_loaded_is_to_duckdb_what_it_was_made_of(spark: Any, db: tm.Database, tmp_path: Path) -> None:
    """An oracle without knowledge of stores reads both Parquet files, the source of the load and the export of the
    table, by this process and by Spark.
    """
    from tidemark.cli.user_files import write_rows
    from tidemark.demo import data

    orders, lines = data.generate(tmp_path, 0.002)
    for name, columns, key, source in (
        ("orders", data.ORDERS, "o_orderkey", orders),
        ("lineitem", data.LINEITEM, data.LINE_KEY, lines),
    ):
        db.create_table(name, columns, key, tm.HashPartition(3))
        tidemark.spark.load(db, source, name)
        whole = db[name].scan()
        write_rows(tmp_path / f"{name}-out.parquet", db[name].definition, whole, lambda count: None)
        expected = rows_of_duckdb(source)
        assert expected[columns[0].name][0] > 1_000
        assert rows_of_duckdb(tmp_path / f"{name}-out.parquet") == expected
    db.backup(tmp_path / "place")
    frame = tidemark.spark.read(spark, tmp_path / "place", "lineitem")
    frame.coalesce(1).write.parquet(str(tmp_path / "by-spark"))
    (written,) = (tmp_path / "by-spark").glob("*.parquet")
    assert rows_of_duckdb(written) == expected


def kills_of(spark: Any, tmp_path: Path, rounds: int, seed: int) -> list[Any]:
    from tests.kills.spark.loop import KINDS, kill_loop

    print("seed", seed)
    return kill_loop(tmp_path / "kills", KINDS, seed, lambda: spark, rounds=rounds, say=print)


@LONG
def test_kills_of_loads_and_restores_leave_everything_or_nothing(spark: Any, tmp_path: Path) -> None:
    """Story: one round of each kind had to see two kills, but a killer on a busy machine may see none. Now rounds
    continue until it has.
    """
    kills = 0
    for attempt in range(KILLERS_MAX):
        reports = kills_of(spark, tmp_path / str(attempt), 1, 3 + attempt)
        assert all(report.rounds == report.whole + report.repeated + report.refused == 1 for report in reports)
        kills += sum(report.kills for report in reports)
        if kills >= 2:
            return
    raise AssertionError(f"{kills} kills in {KILLERS_MAX} rounds of each kind")


def test_running_session_is_not_taken_for_one_with_other_settings(spark: Any) -> None:
    has = spark.conf.get("spark.sql.shuffle.partitions")
    assert tidemark.spark.session("local[7]", settings={"spark.sql.shuffle.partitions": int(has)}) is spark
    with pytest.raises(tm.Rejected, match=f"shuffle.partitions is {has}, not 99"):
        tidemark.spark.session(settings={"spark.sql.shuffle.partitions": 99})


def test_moments_that_spark_writes_are_loaded_natively(spark: Any, db: tm.Database, tmp_path: Path) -> None:
    """Story: Spark writes TIMESTAMP as INT96. pyarrow made nanoseconds of it, which no column takes."""
    moments = [
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        datetime(9999, 12, 30, tzinfo=UTC),
    ]
    text = " union all ".join(
        f"select {at} id, timestamp'{each:%Y-%m-%d %H:%M:%S.%f} UTC' t" for at, each in enumerate(moments)
    )
    spark.sql(text.replace("'1-", "'0001-")).coalesce(1).write.parquet(str(tmp_path / "moments"))
    db.create_table("m", [tm.Column("id", tm.Int32), tm.Column("t", tm.Timestamp)], "id")
    assert db.load("m", [str(each) for each in (tmp_path / "moments").glob("*.parquet")]) == 3
    assert [row.t for row in sorted(db["m"].scan(), key=lambda row: row.id)] == moments


def test_session_starts_processes_by_the_command_of_the_tests(spark: Any, python: Path):
    def place(_: Any) -> str:
        import pyspark

        return str(pyspark.__file__)

    assert spark.sparkContext.pythonExec == str(python)
    assert spark.sparkContext.parallelize([0], 1).map(place).collect() == [pyspark.__file__]


def test_rows_that_have_expired_come_by_a_load_and_are_deleted(spark: Any, tmp_path: Path) -> None:
    """Every door takes a row whose moment has passed; the next run deletes it, and no other."""
    moments = [(1, datetime(1980, 1, 1)), (2, None), (3, datetime(2999, 1, 1))]
    frame = spark.createDataFrame(moments, "id long, seen timestamp")
    with tm.open(tmp_path / "s", redo_log="16 MiB", expiry_interval_ms=0) as store:
        columns = [tm.Column("id", tm.Int64), tm.Column("seen", tm.Timestamp, nullable=True)]
        table = store.create_table("t", columns, "id", expires="seen + 30 min")
        assert tidemark.spark.load(store, frame, "t").rows == 3
        assert (store.expire(), sorted(row.id for row in table)) == (1, [2, 3])
