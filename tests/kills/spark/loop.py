"""Rounds of kills: processes that load and restore by Spark are ended, and every promise is checked afterwards.

Kinds of rounds: `load` (Spark's Python tasks write a load), `restore` (they restore a backup), `processes` (worker
processes of a native restore). With `-executors` Spark's Java executors are killed, in loads, restores, verification
and streams; their Python tasks are sometimes held until after the job. With `-driver` the driver is killed, in loads
and restores. Each round kills some of them at random moments, often more than the job survives. Then either everything
is there, or nothing is and no file is left. An aborted job is done again without kills, and succeeds.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

import tidemark as tm
import tidemark.spark
from tests.kills.spark.killer import ExecutorKiller, Killer, is_restore_worker, is_spark_task
from tests.replication.site import WHOLE
from tests.spark.sinks import Sink, closed, rows_of_feed
from tidemark.recovery.crash_harness.program import Violation
from tidemark.recovery.verification.digest_tasks import diff_files

ROOM: dict[str, Any] = {"data_memory": "256 MiB", "redo_log": "32 MiB", "undo_log": "2 MiB", "background": False}
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(20)), tm.Column("k", tm.UInt64, nullable=True)]
FRAGMENTS = 4
ROWS = 60_000
ROWS_MAX = 600_000  # then the store begins anew
FAILED = (tm.Error, PySparkException, Py4JError)  # errors of a job whose tasks were killed
KINDS = ("load", "restore", "processes")
EXECUTOR = "-executors"
EXECUTOR_KINDS = ("load-executors", "restore-executors", "verify-executors", "stream-executors")
DRIVER = "-driver"
DRIVER_KINDS = ("load-driver", "restore-driver")
# What is in the directory of a load when a stage of it has begun.
STAGES = ("_temporary", ".load", ".manifest", ".published", ".adopting")
RESTORE_FILES_MAX = 16
DRIVER_PROGRAM = """
import sys
import tidemark as tm, tidemark.spark as ts
from tests.spark.conftest import SETTINGS
from tests.kills.spark.loop import ROOM
kind, source, target, begin, end = sys.argv[1:]
spark = ts.session("local[2]", settings=SETTINGS)
if kind == "restore-driver":
    ts.restore(spark, source, target, **ROOM)
else:
    frame = spark.range(int(begin), int(end), 1, 4).selectExpr("id", "concat('n', id) n", "cast(id as decimal(20,0)) k")
    with tm.open(source, **ROOM) as db:
        ts.load(db, frame, "test.numbers", directory=target)
"""
KILLS_MAX = {False: 7, True: 5}  # in one round; fewer for executors, since Java takes seconds to start again
WAITS_S = {False: (0.05, 0.3, 0.8), True: (0.1, 0.5, 2.0)}
STREAM_EPOCHS = 40
DRIVER_END_S = 60
VERIFY_TURNS = 3  # otherwise a round is over before the first kill
ATTEMPTS_NATIVE = 3  # of a task of a native restore
CLUSTER_ATTEMPTS = 2  # of a task; there are two executors of one core
CLUSTER_SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.task.maxFailures": CLUSTER_ATTEMPTS,
    "spark.speculation": True,
}


@dataclass
class KillReport:
    """What the rounds of one kind saw."""

    kind: str
    seed: int
    rounds: int = 0
    kills: int = 0
    held: int = 0  # Python tasks that outlived their executor
    whole: int = 0
    repeated: int = 0  # and done again in peace
    refused: int = 0  # loads with a bad row
    swept: int = 0  # files of tasks that ended between a decision and their look at it
    seconds: float = 0.0


def files_below(path: Path) -> list[str]:
    """Names of files that are left in a directory and its folders."""
    return [each.name for each in path.rglob("*") if each.is_file() and each.name != "LOCK"] if path.exists() else []


class Loop:
    """The rounds of one directory."""

    def __init__(self, directory: Path, seed: int, spark: Callable[[], Any]) -> None:
        self._directory = directory
        self._seed = seed
        self._rng = random.Random(seed)
        self._spark = spark
        self._keys: list[range] = []
        self._source: Path | None = None
        self._expected: list[Any] = []
        self._changes: list[Any] = []

    def round(self, kind: str, report: KillReport) -> None:
        """One round. Raises: Violation."""
        began = time.monotonic()
        # The draws of one round, killers included, have no influence on the next.
        self._rng = random.Random(f"{self._seed} {kind} {report.rounds}")
        works = {"load": self._load, "verify": self._verify, "stream": self._stream}
        works |= {"load-driver": self._load_driver, "restore-driver": self._restore_driver}
        works.get(kind.removesuffix(EXECUTOR), self._restore)(kind, report)
        report.rounds += 1
        report.seconds += time.monotonic() - began

    def _killer(self, kind: str) -> Killer:
        is_of_executors = kind.endswith(EXECUTOR)
        most = self._rng.randint(int(is_of_executors), KILLS_MAX[is_of_executors])
        wait_s_max = self._rng.choice(WAITS_S[is_of_executors])
        if is_of_executors:
            return ExecutorKiller(most, self._rng, wait_s_max)
        return Killer(most, is_restore_worker if kind == "processes" else is_spark_task, self._rng, wait_s_max)

    def _under_kills(self, kind: str, report: KillReport, work: Callable[[], Any]) -> tuple[Any, Exception | None]:
        """The result of the work during kills, and its error if kills explain it."""
        killer = self._killer(kind)
        result = failed = None
        try:
            with killer:
                result = work()
        except tm.LoadRefused:
            raise
        except FAILED as error:
            least = ATTEMPTS_NATIVE if kind == "processes" else self._attempts()
            if killer.killed < least:
                raise Violation(f"{killer.killed} kills ended a job: {type(error).__name__}: {error}") from error
            failed = error
        finally:
            report.kills += killer.killed
            report.held += killer.held
        report.whole += failed is None
        report.repeated += failed is not None
        return result, failed

    def _attempts(self) -> int:
        """How often Spark tries a task."""
        context = self._spark().sparkContext
        in_master = context.master.rpartition(",")[2].rstrip("]") if context.master.startswith("local[") else "4"
        return int(context.getConf().get("spark.task.maxFailures", in_master))

    # --- loads -----------------------------------------------------------------------------------
    def _load(self, kind: str, report: KillReport) -> None:
        path = self._directory / "store"
        if sum(map(len, self._keys)) >= ROWS_MAX:
            shutil.rmtree(path)
            self._keys = []
        with tm.open(path, **ROOM) as db:
            if "test.numbers" not in db:
                db.create_table("test.numbers", COLUMNS, "id", partition=tm.HashPartition(FRAGMENTS))
            self._load_some(db, kind, report)
        with tm.open(path, create=False, **ROOM) as db:  # from the log and its load files
            self._proved(db)
            if db.check()["problems"]:
                raise Violation(f"the check of the store: {db.check()['problems'][0]}")
            for _ in range(3):
                db.checkpoint()  # the log is cut, and files that only it named are removed
            left = files_below(path / "load")
            if left:
                raise Violation(f"the store's folder of loads holds {left[:3]}")

    def _load_some(self, db: tm.Database, kind: str, report: KillReport) -> None:
        rng = self._rng
        begin = max((keys.stop for keys in self._keys), default=0)
        keys = range(begin, begin + ROWS * rng.choice((1, 3)))
        bad = rng.choice(keys) if rng.random() < 0.1 else -1
        elsewhere = rng.choice((None, self._directory / "loads"))
        is_written = rng.random() < 0.5
        frame = self._spark().range(keys.start, keys.stop, 1, rng.choice((2, 6)))
        frame = frame.selectExpr("id", f"if(id = {bad}, null, concat('n', id)) n", "cast(id as decimal(20,0)) k")

        source: Any = self._directory / "rows" if is_written else frame
        if is_written:
            frame.write.mode("overwrite").parquet(str(source))

        def load() -> None:
            tidemark.spark.load(db, source, "test.numbers", directory=elsewhere)
            if bad >= 0:
                raise Violation(f"a row without a value of n was loaded ({bad})")
            self._keys.append(keys)

        failed: Exception | None = None
        try:
            failed = self._under_kills(kind, report, load)[1]
            self._proved(db)
            self._swept(db, kind, report)
            if failed is not None:
                load()
        except tm.LoadRefused:
            if bad < 0:
                raise
            report.refused += failed is None  # not if only the second try, after an abort, is refused
        self._proved(db)
        self._swept(db, kind, report)

    def _proved(self, db: tm.Database) -> None:
        want = sum(map(len, self._keys)), sum(map(sum, self._keys))
        found = len(db["test.numbers"]), int(db["test.numbers"].scan().sum("k") or 0)
        if found != want:
            raise Violation(f"the table has {found} as count and sum, not {want}")

    def _swept(self, db: tm.Database, kind: str, report: KillReport) -> None:
        """No file is left in the directory of loads. Tasks that outlived their executor, and were ended after the job,
        may leave only files that a sweep removes (docs/load.md, section 3).
        """
        loads = self._directory / "loads"
        if kind.endswith(EXECUTOR) and loads.exists():
            left = db.sweep_loads(loads)
            if any(each.state != "ended" for each in left):
                raise Violation(f"the directory of loads holds {left[:3]}")
            report.swept += sum(each.files for each in left)
        if files_below(loads):
            raise Violation(f"the directory of loads holds {files_below(loads)[:3]}")

    # --- restores --------------------------------------------------------------------------------
    def _made_source(self) -> Path:
        """A closed store with a full backup, an incremental one and archived log."""
        if self._source is None:
            self._source = self._directory / "source"
            with tm.open(self._source, **ROOM) as db:
                db.create_table("test.numbers", COLUMNS, "id", partition=tm.HashPartition(FRAGMENTS))
                db.archive(self._directory / "place")
                db["test.numbers"].insert_many([(key, f"n{key}", key) for key in range(2 * ROWS)])
                db.backup(self._directory / "place")
                db["test.numbers"].delete_many(range(0, ROWS, 3))
                db.backup(self._directory / "place", incremental=True)
                db["test.numbers"].write_many([(key, "late", None) for key in range(0, 3 * ROWS, 5)])
                db.sync()
                db.archive()
                db.checkpoint()
        return self._source

    def _restore(self, kind: str, report: KillReport) -> None:
        source, copy = self._made_source(), self._directory / "copy"

        def restore() -> None:
            if kind == "processes":
                tm.restore(self._directory / "place", copy, processes=2, **ROOM)
            else:
                tidemark.spark.restore(self._spark(), self._directory / "place", copy, **ROOM)

        failed = self._under_kills(kind, report, restore)[1]
        if failed is not None:
            left = files_below(copy)
            if left:
                raise Violation(f"a restore that was abandoned left {left[:3]}") from failed
            restore()
        if any(name.count("-") > 2 for name in files_below(copy)):
            raise Violation(f"files of attempts are left: {files_below(copy)}")
        with tm.open(copy, create=False, **ROOM) as db:
            if db.check()["problems"]:
                raise Violation(f"the check of the restored store: {db.check()['problems'][0]}")
        if not tm.diff(source, copy)["is_equal"]:
            raise Violation("the restored store differs from its source")
        shutil.rmtree(copy)

    # --- verification and reading ----------------------------------------------------------------
    def _verify(self, kind: str, report: KillReport) -> None:
        """Verification, comparison and reading on executors, compared with the same by this process."""
        source, place, spark = self._made_source(), self._directory / "place", self._spark()

        def work() -> list[Any]:
            frame = tidemark.spark.read(spark, place, "test.numbers")
            read = tuple(frame.selectExpr("count(*)", "sum(id)").collect()[0])
            return [tidemark.spark.verify(spark, place), tidemark.spark.diff(spark, source, place), read]

        if not self._expected:
            kept = set(range(2 * ROWS)) - set(range(0, ROWS, 3))
            self._expected = [tm.backup.verify(place), diff_files(source, place), (len(kept), sum(kept))]

        found, failed = self._under_kills(kind, report, lambda: [work() for _ in range(VERIFY_TURNS)])
        for each in found if failed is None else [work()]:
            for reported, expected in zip(each, self._expected, strict=True):
                if reported != expected:
                    raise Violation(f"executors found {str(reported)[:300]}, not {str(expected)[:300]}")

    # --- streams ---------------------------------------------------------------------------------
    def _stream(self, kind: str, report: KillReport) -> None:
        """Row changes are given out once, whether or not the query is begun again."""
        place, spark = self._directory / "changed", self._spark()
        if not place.exists():
            with tm.open(place, **ROOM, **WHOLE, server_id=1, log_bin="binlog") as db:
                db.create_table("test.numbers", COLUMNS, "id", partition=tm.HashPartition(FRAGMENTS))
                for turn in range(STREAM_EPOCHS):
                    keys = range(turn * 1_000, (turn + 1) * 1_000)
                    db["test.numbers"].insert_many([(key, f"n{key}", key) for key in keys])
                    closed(db)
                self._changes = rows_of_feed(db, "test.numbers")
        sink = Sink(self._directory / f"query-{report.rounds}")

        def follow() -> None:
            sink.run(tidemark.spark.stream(spark, place, max_epochs=4, options={"taskBytes": 50_000}))

        if self._under_kills(kind, report, follow)[1] is not None:
            follow()
        if sink.rows != self._changes:
            raise Violation(f"the stream gave {len(sink.rows)} changes, not {len(self._changes)}")

    # --- drivers ---------------------------------------------------------------------------------
    def _killed_driver(self, report: KillReport, is_due: Callable[[], bool], *arguments: Any) -> None:
        """Run a driver until something is due, and kill it; all processes below it end then."""
        command = [sys.executable, "-c", DRIVER_PROGRAM, *map(str, arguments)]
        wait_s = self._rng.choice((0.0, 0.0, 0.002, 0.05))
        with (self._directory / "driver.log").open("wb") as log:
            driver = psutil.Popen(command, stdout=log, stderr=log)
            while driver.poll() is None and not is_due():
                threading.Event().wait(0.0002)
            below = driver.children(recursive=True) if driver.poll() is None else []
            threading.Event().wait(wait_s)
            if driver.poll() is None:
                driver.kill()
                report.kills += 1
            if driver.wait() > 0:
                raise Violation((self._directory / "driver.log").read_text()[-2_000:])
        if psutil.wait_procs(below, DRIVER_END_S)[1]:
            raise Violation("processes of Spark outlived their driver")

    def _load_driver(self, kind: str, report: KillReport) -> None:
        path, jobs, stage = self._directory / "by-driver", self._directory / "jobs", STAGES[report.rounds % len(STAGES)]
        with tm.open(path, **ROOM) as db:
            if "test.numbers" not in db:
                db.create_table("test.numbers", COLUMNS, "id", partition=tm.HashPartition(FRAGMENTS))
            before = len(db["test.numbers"])
        after = before + 3 * ROWS

        def is_due() -> bool:
            names = (name for _, folders, files in os.walk(jobs) for name in (*folders, *files))
            return any(stage in name for name in names)

        self._killed_driver(report, is_due, kind, path, jobs, before, after)
        with tm.open(path, create=False, **ROOM) as db:
            found = len(db["test.numbers"]), int(db["test.numbers"].scan().sum("k") or 0)
            if found not in ((before, sum(range(before))), (after, sum(range(after)))):
                raise Violation(f"killed at {stage!r}, the table has {found} as count and sum, from {before}")
            report.whole += found[0] == after
            report.repeated += found[0] == before
            report.swept += sum(each.files for each in db.loads(jobs))
            db.sweep_loads(jobs)
            if db.loads(jobs) or files_below(jobs) or any(jobs.iterdir()):
                raise Violation(f"killed at {stage!r}, a sweep left {list(jobs.iterdir())[:3]}")
            if db.check()["problems"]:
                raise Violation(f"the check of the store: {db.check()['problems'][0]}")
        if after > ROWS_MAX:
            shutil.rmtree(path)

    def _restore_driver(self, kind: str, report: KillReport) -> None:
        source, copy, count = self._made_source(), self._directory / "copy", self._rng.randint(1, RESTORE_FILES_MAX)
        self._killed_driver(
            report, lambda: len(files_below(copy)) >= count, kind, self._directory / "place", copy, 0, 0
        )
        try:
            tm.open(copy, create=False, **ROOM).close()
            report.whole += 1
        except tm.Error:
            tm.restore(self._directory / "place", copy, **ROOM)
            report.repeated += 1
        if not tm.diff(source, copy)["is_equal"]:
            raise Violation(f"killed at {count} files, a restore that was begun again differs from its source")
        shutil.rmtree(copy)


def kill_loop(
    directory: Path,
    kinds: Sequence[str],
    seed: int,
    spark: Callable[[], Any],
    seconds: float = 1e9,
    rounds: int = 1 << 60,
    say: Callable[[str], None] = lambda line: None,
) -> list[KillReport]:
    """Rounds of the kinds in turn, until so many of each are done or so many seconds over. Raises: Violation."""
    directory.mkdir(parents=True, exist_ok=True)
    loop = Loop(directory, seed, spark)
    reports = [KillReport(kind, seed) for kind in kinds]
    end = time.monotonic() + seconds
    for number in range(rounds):
        for report in reports:
            if time.monotonic() >= end:
                return reports
            try:
                loop.round(report.kind, report)
            except (Violation, *FAILED) as error:
                raise Violation(f"kill loop, seed {seed}, round {number + 1} ({report.kind}): {error}") from error
            say(str(report))
    return reports
