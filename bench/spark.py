"""P14: TPC-H `lineitem` into a table, out of a backup, verified and restored by Spark, beside Spark's own Parquet.

`python -m bench.spark [--scale 1] [--cores 2] [--rounds 3] [--storage memory|disk|both]`. Rows and fragments are the
same everywhere; what we write is synced, what Spark writes is not. Storage "disk" has the comment of each row on disk
pages, as `make run` and `bench.load` do. Every figure is the median of the rounds, one round of all after the other,
after one that is not counted. Needs Spark and Java (docs/spark.md).
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import tidemark as tm
import tidemark.backup
import tidemark.spark as ts
from bench.report import OURS, Line, keep
from tidemark.demo.data import LINEITEM, generate
from tidemark.recovery.spark.load import load_frame, load_places

FRAGMENTS = 16
KEY = ["l_orderkey", "l_linenumber"]
COMMENT = "l_comment"
STORAGES = {"memory": ("memory",), "disk": ("disk",), "both": ("memory", "disk")}
OPTIONS: dict[str, Any] = {
    "data_memory": "6 GiB",
    "redo_log": "256 MiB",
    "undo_log": "64 MiB",
    "background": False,
    "durability": "epoch",
}
PAGE_BUFFER = "64 MiB"  # of disk columns, as in `bench.load`
UNDO_LOG_MIB = 1024  # for each unit of scale: a load is one transaction, which reserves its space in the UNDO log


class Bench:
    """One store after the other, in a scratch directory."""

    def __init__(self, spark: Any, root: Path, source: Path, scale: float) -> None:
        self.spark = spark
        self.scale = scale
        self.root = root
        self.source = str(source)
        self.rows = spark.read.parquet(self.source).count()
        self.storage = "memory"
        self.seconds: dict[str, list[float]] = {}
        self._numbers = 0

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        """Run the work and record how long it took."""
        if self.storage == "disk":
            name = f"disk columns, {name}"
        began = time.perf_counter()
        result = work()
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)
        return result

    def fresh(self) -> Path:
        """Return a directory that does not exist yet."""
        self._numbers += 1
        return self.root / f"d{self._numbers}"

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of a store with tables of this storage."""
        if self.storage == "memory":
            return OPTIONS
        return {**OPTIONS, "undo_log": f"{max(64, int(UNDO_LOG_MIB * self.scale))} MiB", "page_buffer": PAGE_BUFFER}

    def opened(self) -> tuple[tm.Database, Path]:
        """A new store with the table."""
        path = self.fresh()
        db = tm.open(path, **self.options)
        columns = [replace(column, storage=self.storage if column.name == COMMENT else "memory") for column in LINEITEM]
        db.create_table("lineitem", columns, KEY, partition=tm.HashPartition(FRAGMENTS))
        return db, path

    def parquet(self) -> None:
        """Write Parquet with Spark: as Spark partitions it, and in as many files as there are fragments."""
        for name, is_partitioned in [("Parquet: write", False), ("Parquet: shuffle, write", True)]:
            frame = self.spark.read.parquet(self.source)
            if is_partitioned:
                frame = frame.repartition(FRAGMENTS, *KEY)
            target = self.fresh()
            self.timed(name, lambda frame=frame, target=target: frame.write.parquet(str(target)))
            if is_partitioned:
                read = self.spark.read.parquet(str(target))
                self.timed("Parquet: read", lambda read=read: read.write.format("noop").mode("overwrite").save())
                self.timed("Parquet: aggregate", lambda read=read: read.agg(*AGGREGATES).collect())
            shutil.rmtree(target)

    def loads(self) -> None:
        """Load the same rows into a table: files and a DataFrame by Spark, and natively; the last store is then backed
        up.
        """
        frame = self.spark.read.parquet(self.source)
        for name, write in [
            ("load", lambda job: load_places(self.spark, [self.source], job)),
            ("load of a DataFrame", lambda job: load_frame(frame, job)),
        ]:
            db, path = self.opened()
            job = db.plan_load("lineitem", self.fresh())
            self.timed(f"{name}: files", lambda write=write, job=job: write(job))
            self.timed(f"{name}: adopt", lambda db=db, job=job: db.adopt(job))
            assert len(db["lineitem"]) == self.rows
            db.close()
            shutil.rmtree(path)
        db, path = self.opened()
        self.timed("native load", lambda: db.load("lineitem", parquet_batches(self.source)))
        assert len(db["lineitem"]) == self.rows
        self.backups(db)
        db.close()
        shutil.rmtree(path)

    def backups(self, db: tm.Database) -> None:
        """Make a backup; read, verify and restore it."""
        place = self.fresh()
        self.timed("native backup", lambda: db.backup(place, verify=False))
        frame = ts.read(self.spark, place, "lineitem")
        assert frame.count() == self.rows
        self.timed("backup: read", lambda: frame.write.format("noop").mode("overwrite").save())
        self.timed("backup: aggregate", lambda: frame.agg(*AGGREGATES).collect())
        assert self.timed("backup: verify", lambda: ts.verify(self.spark, place))["is_sound"]
        assert self.timed("native verify", lambda: tidemark.backup.verify(place))["is_sound"]
        for name, work in [
            ("backup: restore", lambda target: ts.restore(self.spark, place, target, verify=False, **self.options)),
            ("native restore", lambda target: tidemark.backup.restore(place, target, verify=False, **self.options)),
        ]:
            target = self.fresh()
            report = self.timed(name, lambda work=work, target=target: work(target))
            assert report["rows"] == self.rows
            shutil.rmtree(target)
        shutil.rmtree(place)


AGGREGATES: list[Any] = []


def parquet_batches(path: str) -> Any:
    """The file as a stream of batches."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(65_536))


def main() -> None:
    """Print a table and keep it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of TPC-H; 1 is 6,001,215 rows")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--storage", choices=STORAGES, default="both", help="of the comment")
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="tidemark-bench-"))
    began = os.getloadavg()
    try:
        data = root / "data"
        data.mkdir()
        source = generate(data, asked.scale)[1]
        settings = {"spark.driver.memory": "3g", "spark.log.level": "ERROR", "spark.local.dir": str(root / "local")}
        spark = ts.session(f"local[{asked.cores}]", "bench", settings)
        from pyspark.sql import functions as f

        AGGREGATES[:] = [f.sum("l_quantity"), f.sum("l_extendedprice"), f.max("l_shipdate")]
        bench = Bench(spark, root, source, asked.scale)
        for turn in range(asked.rounds + 1):
            if turn == 1:
                bench.seconds.clear()
            bench.storage = "memory"
            bench.parquet()
            for bench.storage in STORAGES[asked.storage]:
                bench.loads()
        lines = [
            Line("P14", name, "s", {OURS: median(found)}, rounds={OURS: found}) for name, found in bench.seconds.items()
        ]
        for line in lines:
            seconds = line.figures[OURS]
            print(f"{line.what:50} {seconds:8.2f} s {bench.rows / seconds / 1e6:8.2f} M rows/s")
        run_settings = {**vars(asked), "rows": bench.rows, "load_average": [began, os.getloadavg()]}
        name = f"spark-{asked.cores}-core{'s' * (asked.cores > 1)}-scale-{asked.scale:g}"
        print(keep(lines, run_settings, name=name).name)
        spark.stop()
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
