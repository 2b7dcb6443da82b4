"""P14: TPC-H `lineitem` into a table, out of a backup, verified and restored by Spark, beside Spark's own Parquet.

`python -m bench.spark [SCALE] [CORES] [ROUNDS]` (1, 2, 3). Rows and fragments are the same everywhere; what we write is
synced, what Spark writes is not. Every figure is the median of the rounds, one round of all after the other, after one
that is not counted. Needs Spark and Java (docs/spark.md).
"""

from __future__ import annotations

import json
import shutil
import sys
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
from recovery.spark.load import write_load
from tidemark.demo.data import LINEITEM, generate

FRAGMENTS = 16
KEY = ["l_orderkey", "l_linenumber"]
OPTIONS: dict[str, Any] = {
    "data_memory": "6 GiB",
    "redo_log": "256 MiB",
    "undo_log": "64 MiB",
    "background": False,
    "durability": "epoch",
}


class Bench:
    """One store after the other, in a scratch directory."""

    def __init__(self, spark: Any, root: Path, source: Path) -> None:
        self.spark = spark
        self.root = root
        self.source = str(source)
        self.rows = spark.read.parquet(self.source).count()
        self.seconds: dict[str, list[float]] = {}
        self._numbers = 0

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        """Do it, and keep how long it took."""
        began = time.perf_counter()
        result = work()
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)
        return result

    def fresh(self) -> Path:
        """A directory that is not there yet."""
        self._numbers += 1
        return self.root / f"d{self._numbers}"

    def opened(self) -> tuple[tm.Database, Path]:
        """A new store with the table."""
        path = self.fresh()
        db = tm.open(path, **OPTIONS)
        columns = [replace(column, storage="memory") for column in LINEITEM]
        db.create_table("lineitem", columns, KEY, partition=tm.HashPartition(FRAGMENTS))
        return db, path

    def parquet(self) -> None:
        """Spark's own: as it comes, and in as many files as there are fragments."""
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
        """The same rows into a table, by Spark and natively; the last store goes on to a backup."""
        for name, by_fragment in [("load", False), ("load, shuffle", True)]:
            db, path = self.opened()
            frame = self.spark.read.parquet(self.source)
            job = db.plan_load("lineitem", self.fresh())
            self.timed(f"{name}: files", lambda frame=frame, job=job, by=by_fragment: write_load(frame, job, by))
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
        """A backup, read, verified and restored."""
        place = self.fresh()
        self.timed("native backup", lambda: db.backup(place, verify=False))
        frame = ts.read(self.spark, place, "lineitem")
        self.timed("backup: read", lambda: frame.write.format("noop").mode("overwrite").save())
        self.timed("backup: aggregate", lambda: frame.agg(*AGGREGATES).collect())
        columns = ["l_quantity", "l_extendedprice", "l_shipdate"]
        some = ts.read(self.spark, place, "lineitem", columns=columns)
        self.timed("backup: aggregate, columns named", lambda: some.agg(*AGGREGATES).collect())
        self.timed("backup: verify", lambda: ts.verify(self.spark, place))
        self.timed("native verify", lambda: tidemark.backup.verify(place))
        for name, work in [
            ("backup: restore", lambda target: ts.restore(self.spark, place, target, verify=False, **OPTIONS)),
            ("native restore", lambda target: tidemark.backup.restore(place, target, verify=False, **OPTIONS)),
        ]:
            target = self.fresh()
            self.timed(name, lambda work=work, target=target: work(target))
            shutil.rmtree(target)
        shutil.rmtree(place)


AGGREGATES: list[Any] = []


def parquet_batches(path: str) -> Any:
    """The file as a stream of batches."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(65_536))


def main(scale: float, cores: int, rounds: int) -> None:
    """Print a table and keep it as JSON."""
    root = Path(tempfile.mkdtemp(prefix="tidemark-bench-"))
    try:
        data = root / "data"
        data.mkdir()
        source = generate(data, scale)[1]
        settings = {"spark.driver.memory": "3g", "spark.log.level": "ERROR", "spark.local.dir": str(root / "local")}
        spark = ts.session(f"local[{cores}]", "bench", settings)
        from pyspark.sql import functions as f

        AGGREGATES[:] = [f.sum("l_quantity"), f.sum("l_extendedprice"), f.max("l_shipdate")]
        bench = Bench(spark, root, source)
        for turn in range(rounds + 1):
            if turn == 1:
                bench.seconds.clear()
            bench.parquet()
            bench.loads()
        medians = {name: median(found) for name, found in bench.seconds.items()}
        for name, seconds in medians.items():
            print(f"{name:36} {seconds:8.2f} s {bench.rows / seconds / 1e6:8.2f} M rows/s")
        folder = Path(__file__).parent / "results"
        folder.mkdir(exist_ok=True)
        made = {"rows": bench.rows, "cores": cores, "rounds": rounds, "seconds": medians}
        (folder / f"spark-{cores}.json").write_text(json.dumps(made, indent=1) + "\n")
        spark.stop()
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(float(given[0]) if given else 1.0, int(given[1]) if given[1:] else 2, int(given[2]) if given[2:] else 3)
