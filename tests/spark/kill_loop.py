"""`python -m tests.spark.kill_loop DIRECTORY`: SIGKILL of processes that load and restore, by seed and count.

Kinds of rounds: `load` (Spark's Python tasks write a load), `restore` (they restore a backup), `processes` (worker
processes of a native restore). Each round kills some of them at random moments, often more than the job survives. Then
either everything is there, or nothing is and no file is left. Exit code 1 at the first broken promise, with its round.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

import tidemark as tm
import tidemark.spark
from recovery.crash_harness.program import Violation
from tests.spark.killer import Killer, is_restore_worker, is_spark_task

ROOM: dict[str, Any] = {"data_memory": "256 MiB", "redo_log": "32 MiB", "undo_log": "2 MiB", "background": False}
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(20)), tm.Column("k", tm.UInt64, nullable=True)]
FRAGMENTS = 4
ROWS = 60_000
ROWS_MAX = 600_000  # then the store begins anew
FAILED = (tm.Error, PySparkException, Py4JError)  # what a job ends with whose tasks were killed
KILLS_MAX = 7  # of one round; a task of Spark is tried four times, one of a native restore three times


@dataclass
class KillReport:
    """What the rounds of one kind saw."""

    kind: str
    seed: int
    rounds: int = 0
    kills: int = 0
    whole: int = 0
    given_up: int = 0
    refused: int = 0  # loads with a bad row
    seconds: float = 0.0


def files_below(path: Path) -> list[str]:
    """Names of files that are left in a directory and its folders."""
    return [each.name for each in path.rglob("*") if each.is_file() and each.name != "LOCK"] if path.exists() else []


class Loop:
    """The rounds of one directory."""

    def __init__(self, directory: Path, seed: int, spark: Callable[[], Any]) -> None:
        self._directory = directory
        self._rng = random.Random(seed)
        self._spark = spark
        self._keys: list[range] = []
        self._source: Path | None = None

    def round(self, kind: str, report: KillReport) -> None:
        """One round. Raises: Violation."""
        began = time.monotonic()
        (self._load if kind == "load" else self._restore)(kind, report)
        report.rounds += 1
        report.seconds += time.monotonic() - began

    def _killer(self, kind: str) -> Killer:
        victim = is_restore_worker if kind == "processes" else is_spark_task
        return Killer(self._rng.randrange(KILLS_MAX + 1), victim, self._rng, self._rng.choice((0.05, 0.3, 0.8)))

    # --- loads -----------------------------------------------------------------------------------
    def _load(self, kind: str, report: KillReport) -> None:
        path = self._directory / "store"
        if sum(map(len, self._keys)) >= ROWS_MAX:
            shutil.rmtree(path)
            self._keys = []
        rng = self._rng
        begin = max((keys.stop for keys in self._keys), default=0)
        keys = range(begin, begin + ROWS)
        bad = begin + rng.randrange(ROWS) if rng.random() < 0.1 else -1
        elsewhere = rng.choice((None, self._directory / "loads"))
        with tm.open(path, **ROOM) as db:
            if "test.numbers" not in db:
                db.create_table("test.numbers", COLUMNS, "id", partition=tm.HashPartition(FRAGMENTS))
            frame = self._spark().range(keys.start, keys.stop, 1, rng.choice((2, 6)))
            frame = frame.selectExpr("id", f"if(id = {bad}, null, concat('n', id)) n", "cast(id as decimal(20,0)) k")
            killer = self._killer(kind)
            try:
                with killer:
                    tidemark.spark.load(db, frame, "test.numbers", directory=elsewhere, by_fragment=rng.random() < 0.3)
                if bad >= 0:
                    raise Violation(f"a row without a value of n was loaded ({bad})")
                self._keys.append(keys)
                report.whole += 1
            except tm.LoadRefused:
                if bad < 0:
                    raise
                report.refused += 1
            except FAILED as error:
                self._is_of_kills(error, killer)
                report.given_up += 1
            report.kills += killer.killed
            self._proved(db)
        left = files_below(self._directory / "loads")
        if left:
            raise Violation(f"the directory of loads holds {left[:3]}")
        with tm.open(path, create=False, **ROOM) as db:  # from the log and its load files
            self._proved(db)
            if db.check()["problems"]:
                raise Violation(f"the check of the store: {db.check()['problems'][0]}")
            for _ in range(3):
                db.checkpoint()  # the log is cut, and files that only it named go
            left = files_below(path / "load")
            if left:
                raise Violation(f"the store's folder of loads holds {left[:3]}")

    def _proved(self, db: tm.Database) -> None:
        want = sum(map(len, self._keys)), sum(map(sum, self._keys))
        found = len(db["test.numbers"]), int(db["test.numbers"].scan().sum("k") or 0)
        if found != want:
            raise Violation(f"the table has {found} as count and sum, not {want}")

    @staticmethod
    def _is_of_kills(error: Exception, killer: Killer) -> None:
        """Only a job whose tasks were killed too often may end with an error."""
        if killer.killed < 3:
            raise Violation(f"{killer.killed} kills ended a job: {type(error).__name__}: {error}") from error

    # --- restores --------------------------------------------------------------------------------
    def _made_source(self) -> Path:
        """A store that was closed behind a full backup, an incremental one and archived log."""
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
        killer = self._killer(kind)
        try:
            with killer:
                if kind == "restore":
                    tidemark.spark.restore(self._spark(), self._directory / "place", copy, **ROOM)
                else:
                    tm.restore(self._directory / "place", copy, processes=2, **ROOM)
            report.whole += 1
        except FAILED as error:
            self._is_of_kills(error, killer)
            report.given_up += 1
            left = files_below(copy)
            if left:
                raise Violation(f"a restore that was given up left {left[:3]}") from error
            copy = None
        report.kills += killer.killed
        if copy is None:
            return
        with tm.open(copy, create=False, **ROOM) as db:
            if db.check()["problems"]:
                raise Violation(f"the check of the restored store: {db.check()['problems'][0]}")
        if not tm.diff(source, copy)["is_equal"]:
            raise Violation("the restored store differs from its source")
        if any(name.count("-") > 2 for name in files_below(copy)):
            raise Violation(f"files of attempts are left: {files_below(copy)}")
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
            except (Violation, tm.Error) as error:
                raise Violation(f"kill loop, seed {seed}, round {number + 1} ({report.kind}): {error}") from error
            say(str(report))
    return reports


KINDS = ("load", "restore", "processes")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kill_loop", description=__doc__)
    parser.add_argument("directory", type=Path, help="where stores are made; it must be missing or empty")
    parser.add_argument("--kind", choices=KINDS, action="append", help="this one; may be repeated")
    parser.add_argument("--rounds", type=int, default=1 << 60, help="of each kind")
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    if asked.directory.exists() and any(asked.directory.iterdir()):
        parser.error(f"{asked.directory} is not empty")
    made: list[Any] = []

    def say(line: str) -> None:
        sys.stderr.write(line + "\n")

    def spark() -> Any:
        if not made:
            from tests.spark.conftest import SETTINGS

            made.append(tidemark.spark.session("local[2,4]", "kill loop", SETTINGS))
        return made[0]

    try:
        kinds = asked.kind or KINDS
        reports = kill_loop(asked.directory, kinds, asked.seed, spark, asked.seconds, asked.rounds, say)
    except Violation as violation:
        sys.stderr.write(f"{violation}\n")
        return 1
    finally:
        for session in made:
            session.stop()
    for report in reports:
        sys.stdout.write(f"{report}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
