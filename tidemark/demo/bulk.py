"""The second half of `make run`: TPC-H in bulk by Spark, a backup, changes, SIGKILL, and back to a point in time.

Proof: the backup before the changes and the archived log are restored to an epoch, and the result is compared row by
row with a backup made at that epoch. Where Spark finds no Java, the native loader and restore do the same work.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tidemark as tm
from tidemark.demo import data
from tidemark.demo.run import DemoFailed
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import Unsupported
from tidemark.engine.files.directory import standard_error_in
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.partition import HashPartition
from tidemark.engine.types import Int32, Int64
from tidemark.recovery.spark.java import java_variables
from tidemark.recovery.spark.session import check_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PrintLine = Callable[[str], None]
FRAGMENTS = 4
BATCHES_AFTER = 10  # batches of changes between the point in time and the kill
BATCHES = [Column("number", Int64), Column("lines", Int32)]


def why_no_spark() -> str:
    """Return what Spark lacks here and how to install it; an empty text if it lacks nothing."""
    try:
        check_installed()
        java_variables()
    except Unsupported as error:
        return error.message
    return ""


class Bulk:
    """One run in a folder of its own."""

    def __init__(self, folder: Path, scale: float, seed: int, print_line: PrintLine) -> None:
        self.folder = folder
        self.scale = scale
        self.seed = seed
        self.print_line = print_line
        self.clock = SystemClock()
        self.figures: dict[str, Any] = {"scale": scale}
        self.store = str(folder / "store")
        self.place = str(folder / "backups")
        self.expected = str(folder / "expected")
        self.copy = str(folder / "restored")
        self.spark: SparkSession | None = None

    def run(self) -> dict[str, Any]:
        """Run it; return the figures. Raises: DemoFailed if the restored store differs."""
        self._clear()
        self.folder.mkdir(parents=True, exist_ok=True)
        files = data.generate(self.folder, self.scale)
        self.print_line(f"in bulk: TPC-H at scale {self.scale:g}")
        self._begin_session()
        try:
            self._load(*files)
            epoch, batches, after = self._change_and_kill()
            self._restart(batches)
            self._restore(epoch)
            self._compare(after)
            self._clear()  # removes gigabytes; after a failed run the files stay for analysis
        finally:
            if self.spark is not None:
                self.spark.stop()
        return self.figures

    def _open(self) -> tm.Database:
        # Archive from each opening on: a local checkpoint must not cut log that is not archived.
        return tm.open(self.store, data_memory=data.DATA_MEMORY, archive=self.place)

    def _clear(self) -> None:
        for each in (self.store, self.place, self.expected, self.copy):
            shutil.rmtree(each, ignore_errors=True)

    def _begin_session(self) -> None:
        import tidemark.spark as ts

        began = self.clock.monotonic()
        if why_no_spark():
            return
        log = self.folder / "spark.log"
        with standard_error_in(str(log)):
            self.spark = ts.session("local[2]", "tidemark demo")
        self.print_line(f"    what Spark and its Java say goes to {log}")
        self._print_timing("Spark", "session", began)

    def _print_timing(self, what: str, name: str, began: float, rows: int = 0) -> None:
        seconds = self.clock.monotonic() - began
        self.figures[name] = {"seconds": seconds, "rows": rows} if rows else {"seconds": seconds}
        rate = f", {rows / seconds / 1e6:.2f} M rows/s" if rows else ""
        self.print_line(f"    {what}: {seconds:.1f} s{rate}")

    def _load(self, orders: Path, lines: Path) -> None:
        import tidemark.spark as ts

        with self._open() as db:
            partition = HashPartition(FRAGMENTS)
            tables = (("bulk.orders", data.ORDERS, "o_orderkey"), ("bulk.lineitem", data.LINEITEM, data.LINE_KEY))
            for name, columns, key in tables:
                db.create_table(name, [replace(column, storage="memory") for column in columns], key, partition)
            db.create_table("bulk.batches", BATCHES, "number")
            for name, path in (("bulk.orders", orders), ("bulk.lineitem", lines)):
                began = self.clock.monotonic()
                if self.spark is not None:
                    rows = ts.load(db, path, name).rows
                else:
                    rows = db.load(name, str(path))
                self._print_timing(f"{name}, {rows:,} rows loaded", f"load {name}", began, rows)
            began = self.clock.monotonic()
            report = db.backup(self.place)
            self._print_timing(f"backup of {report['rows']:,} rows, read back", "backup", began, report["rows"])

    def _change_and_kill(self) -> tuple[int, int, int]:
        """Return (epoch of the backup with the expected rows, batches acknowledged, and how many of them after it)."""
        command = [sys.executable, "-m", "tidemark.demo.changes", self.store, self.place, self.expected, str(self.seed)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        epoch = batches = after = 0
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            epoch = said.get("expected", epoch)
            batches = said.get("batch", batches)
            after += bool(epoch and "batch" in said)
            if after == BATCHES_AFTER:
                process.kill()  # what it had said before that is read to the end
        process.wait()
        process.stdout.close()
        if after < BATCHES_AFTER:
            raise DemoFailed("the process that changes rows ended by itself; see its message above")
        self.print_line(
            f"    {batches} batches of changes acknowledged, {after} of them after the point in time; killed"
        )
        return epoch, batches, after

    def _restart(self, batches: int) -> None:
        began = self.clock.monotonic()
        with self._open() as db:
            rows = len(db["bulk.lineitem"])
            self._print_timing(f"restart, {rows:,} lines there", "restart", began)
            held = len(db["bulk.batches"])
            if not batches <= held <= batches + 1:
                raise DemoFailed(f"{batches} batches were acknowledged and {held} are there; keep {self.store}")
            db.archive()

    def _restore(self, epoch: int) -> None:
        import tidemark.spark as ts

        began = self.clock.monotonic()
        options: Any = {"data_memory": data.DATA_MEMORY}
        if self.spark is not None:
            report = ts.restore(self.spark, self.place, self.copy, epoch, **options)
        else:
            report = tm.restore(self.place, self.copy, epoch, **options)
        what = (
            f"restored to epoch {report['epoch']}: {report['rows']:,} rows, {report['operations']:,} changes replayed"
        )
        self._print_timing(what, "restore", began, report["rows"])

    def _compare(self, after: int) -> None:
        import tidemark.spark as ts

        began = self.clock.monotonic()
        if self.spark is not None:
            report = ts.diff(self.spark, self.copy, self.expected)
        else:
            report = tm.diff(self.copy, self.expected, data_memory=data.DATA_MEMORY)
        if not report["is_equal"]:
            raise DemoFailed(f"the restored store is not what was backed up at its epoch: {report}")
        self._print_timing("restored and expected are equal, row by row", "diff", began)
        with self._open() as now:
            later = tm.diff(now, self.copy, ["bulk.batches"], data_memory=data.DATA_MEMORY)
        found = sum(each["differing"] for each in later["tables"])
        if not after <= found <= after + 1:
            raise DemoFailed(f"{found} batches are after the point in time, {after} were acknowledged")
        self.print_line(f"    the store itself is {found} batches further")
