"""P14, the native half: TPC-H lineitem loaded, in rows/s, by `load` and `insert_many`, beside SQLite and DuckDB.

`python -m bench.load [SCALE]`: lineitem of `tpchgen-cli` at a scale (0.1: 600,000 rows), read into memory as Arrow
before the clock starts. Every figure is the median of three runs into a new table, durable at its end; CPU seconds are
those of the whole process, memory is the peak of a process of its own above what it had before the load.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import tidemark as tm
from tidemark.demo.data import LINEITEM, generate, read
from tidemark.recovery import load

ROUNDS = 3
KEY = ["l_orderkey", "l_linenumber"]
OPTIONS: dict[str, Any] = {
    "data_memory": "2 GiB",
    "redo_log": "1 GiB",
    "undo_log": "1 GiB",
    "page_buffer": "64 MiB",
    "background": False,
}
WARM_ROWS = 60_000


def columns(storage: str) -> list[tm.Column]:
    """Return the columns of lineitem; "disk" puts the comment on disk pages."""
    return [
        tm.Column(each.name, each.type, storage=storage if each.name == "l_comment" else "memory") for each in LINEITEM
    ]


def new_store(folder: Path, storage: str, rows: Any) -> Any:
    """A store whose kernels are compiled."""
    db = tm.open(folder / "store", **OPTIONS)
    db.create_table("warm", columns(storage), KEY, tm.HashPartition(4))
    db.load("warm", rows.slice(0, WARM_ROWS))
    db["warm"].insert_many(rows.slice(WARM_ROWS, 1_000))
    db.create_table("t", columns(storage), KEY, tm.HashPartition(4))
    return db


def run_tidemark(folder: Path, storage: str, rows: Any, how: str) -> dict[str, float]:
    """Measure one load; for `load` its parts too."""
    with new_store(folder, storage, rows) as db:
        parts: dict[str, float] = {}
        before = resource.getrusage(resource.RUSAGE_SELF)
        began, cpu = time.perf_counter(), time.process_time()
        if how == "insert_many":
            with db.transaction() as txn:
                txn.insert_many("t", rows)
        elif how == "one task":
            job = db.plan_load("t")
            reports = load.write_parts(job, 0, rows.to_batches())
            load.publish(job, reports)
            parts["write"] = time.perf_counter() - began
            db.adopt(job)
            parts["adopt"] = time.perf_counter() - began - parts["write"]
            parts["bytes"] = sum(report.file.size_bytes for report in reports if report.file is not None)
        else:
            db.load("t", rows, workers=int(how))
        parts["seconds"] = time.perf_counter() - began
        parts["cpu"] = time.process_time() - cpu
        after = resource.getrusage(resource.RUSAGE_SELF)
        parts["peak_mb"] = (after.ru_maxrss - before.ru_maxrss) / 1024
        assert len(db["t"]) == rows.num_rows
        return parts


def run_sqlite(folder: Path, rows: Any) -> dict[str, float]:
    """`executemany` of tuples made before, WAL and full sync, one transaction."""
    base = sqlite3.connect(folder / "base.db")
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=full")
    names = ", ".join(column.name for column in LINEITEM)
    base.execute(f"create table t ({names}, primary key ({', '.join(KEY)})) without rowid")
    plain = [
        [float(x) if type(x).__name__ == "Decimal" else str(x) if hasattr(x, "year") else x for x in column]
        for column in (rows.column(name).to_pylist() for name in rows.schema.names)
    ]
    tuples = list(zip(*plain, strict=True))
    began, cpu = time.perf_counter(), time.process_time()
    with base:
        base.executemany(f"insert into t values ({', '.join('?' * len(LINEITEM))})", tuples)
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def run_duckdb(folder: Path, rows: Any, with_key: bool) -> dict[str, float]:
    """`insert into … select` of the Arrow table, one transaction, checkpointed."""
    import duckdb

    base = duckdb.connect(str(folder / "base.duckdb"))
    base.register("source", rows)
    base.execute("create table t as select * from source limit 0")
    if with_key:
        base.execute(f"alter table t add primary key ({', '.join(KEY)})")
    began, cpu = time.perf_counter(), time.process_time()
    base.execute("insert into t select * from source")
    base.execute("checkpoint")
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def one(path: Path, root: str, what: str) -> dict[str, float]:
    """One run in this process."""
    rows = read(path, LINEITEM)
    folder = Path(tempfile.mkdtemp(dir=root))
    try:
        kind, _, how = what.partition(" ")
        if kind == "sqlite":
            return run_sqlite(folder, rows)
        if kind == "duckdb":
            return run_duckdb(folder, rows, how == "key")
        return run_tidemark(folder, kind, rows, how)
    finally:
        shutil.rmtree(folder)


RUNS = [
    *[f"{storage} {how}" for storage in ("memory", "disk") for how in ("insert_many", "1", "2", "one task")],
    "sqlite",
    "duckdb key",
    "duckdb",
]


def main(scale: float) -> None:
    """Print the figures, and as JSON."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        _, path = generate(Path(root), scale)
        count = read(path, LINEITEM[:1]).num_rows
        for what in RUNS:
            command = [sys.executable, "-m", "bench.load", "--one", str(path), root, what]
            found = [
                json.loads(subprocess.run(command, check=True, capture_output=True, env=os.environ).stdout)
                for _ in range(ROUNDS)
            ]
            result = {name: median(each[name] for each in found) for name in found[0]}
            results[what] = result
            rest = ", ".join(f"{name} {value:,.2f}" for name, value in result.items() if name != "seconds")
            sys.stdout.write(
                f"{what:<20} {count / result['seconds']:12,.0f} rows/s {result['seconds']:7.2f} s, {rest}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(json.dumps({"rows": count, **results}) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        sys.stdout.write(json.dumps(one(Path(sys.argv[2]), sys.argv[3], " ".join(sys.argv[4:]))))
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.1)
