"""`python -m bench [--rows N]`: P1–P6 (one thread), P9 (loading a local checkpoint) and P16 beside SQLite and LMDB.

Prints ours, the peer's, the ratio and the goal; keeps the same as JSON in bench/results/. Medians of three runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

import tidemark as tm
from bench.rows import COLUMNS, PACK, ROW_BYTES, make_rows
from engine.kernels import warm

RESULTS = Path(__file__).parent / "results"
POINTS = 20_000
BATCH = 10_000
REPEATS = 3


def median_seconds(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Median wall time of a few runs."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


class Bench:
    """One run over one folder."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        self.count = rows
        self.table, self.tuples = make_rows(rows)
        self.keys = [int(key) for key in np.random.default_rng(1).integers(0, rows, POINTS)]
        self.results: list[dict[str, Any]] = []

    def report(self, goal: str, what: str, ours: float, peers: dict[str, float], wanted: str) -> None:
        """Keep and print one line; figures are seconds per operation (smaller is better)."""
        ratios = {name: value / ours for name, value in peers.items()}
        self.results.append(
            {"goal": goal, "what": what, "ours_s": ours, "peers_s": peers, "ratios": ratios, "wanted": wanted}
        )
        shown = ", ".join(f"{name} {peers[name] * 1e6:.2f} µs = {ratio:.2f}×" for name, ratio in ratios.items())
        print(f"{goal:<4} {what:<44} {ours * 1e6:9.3f} µs | {shown} | wanted {wanted}", flush=True)

    # --- stores ----------------------------------------------------------------------------------
    def open(self, name: str, **options: Any) -> tm.Database:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return tm.open(self.folder / name, data_memory="1 GiB", redo_log="512 MiB", **options)

    def sqlite(self, name: str, synchronous: str) -> sqlite3.Connection:
        path = self.folder / name
        path.unlink(missing_ok=True)
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("pragma journal_mode=wal")
        connection.execute(f"pragma synchronous={synchronous}")
        connection.execute("create table t (id integer primary key, b real, ts integer, name blob, flags integer)")
        return connection

    def lmdb(self, name: str, sync: bool = True) -> lmdb.Environment:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return lmdb.open(str(self.folder / name), map_size=1 << 30, sync=sync)

    # --- goals -----------------------------------------------------------------------------------
    def bulk(self) -> None:
        """P1, P2, P16."""
        ours, ours_tuples = [], []
        for source, times in ((self.table, ours), (self.tuples, ours_tuples)):
            for _ in range(REPEATS):
                with self.open("bulk") as db:
                    table = db.create_table("t", COLUMNS, "id")
                    table.insert_many(self.table.slice(0, 1))
                    table.delete_many([self.table.column("id")[0].as_py()])
                    began = time.perf_counter()
                    table.insert_many(source)
                    times.append((time.perf_counter() - began) / self.count)
                    used = db.status()["memory"]["used_bytes"]
        encoded = sorted((key.to_bytes(8, "big"), PACK.pack(key, *rest)) for key, *rest in self.tuples)

        def put() -> None:
            with self.lmdb("bulk.lmdb") as environment, environment.begin(write=True) as txn:
                txn.cursor().putmulti(encoded)

        def insert() -> None:
            connection = self.sqlite("bulk.sqlite", "full")
            connection.execute("begin")
            connection.executemany("insert into t values (?,?,?,?,?)", self.tuples)
            connection.execute("commit")
            connection.close()

        lmdb_s, sqlite_s = median_seconds(put) / self.count, median_seconds(insert) / self.count
        peers = {"LMDB putmulti (presorted, encoded)": lmdb_s, "SQLite executemany": sqlite_s}
        self.report(
            "P1", "insert_many from Arrow, durable, per row", statistics.median(ours), peers, "≥ 5× LMDB, ≥ 10× SQLite"
        )
        sqlite_only = {"SQLite executemany": sqlite_s}
        self.report(
            "P2", "insert_many from tuples, durable, per row", statistics.median(ours_tuples), sqlite_only, "≥ 3×"
        )
        ratio = used / self.count / ROW_BYTES
        self.results.append({"goal": "P16", "what": "memory per byte of value", "ours": ratio, "wanted": "≤ 1.55"})
        print(f"P16  memory per byte of value {ratio:.3f} | wanted ≤ 1.55", flush=True)

    def points(self) -> None:
        """P3, P4, P5."""
        db = self.open("points", durability="epoch")
        table = db.create_table("t", COLUMNS, "id")
        table.insert_many(self.table)
        environment = self.lmdb("points.lmdb")
        with environment.begin(write=True) as txn:
            txn.cursor().putmulti(sorted((key.to_bytes(8, "big"), PACK.pack(key, *rest)) for key, *rest in self.tuples))
        connection = self.sqlite("points.sqlite", "normal")
        connection.execute("begin")
        connection.executemany("insert into t values (?,?,?,?,?)", self.tuples)
        connection.execute("commit")

        def get_ours() -> None:
            get = table.get
            for key in self.keys:
                get(key)

        def get_lmdb() -> None:
            for key in self.keys:
                with environment.begin() as txn:
                    PACK.unpack(txn.get(key.to_bytes(8, "big")))

        def get_sqlite() -> None:
            for key in self.keys:
                connection.execute("select * from t where id=?", (key,)).fetchone()

        def getmulti() -> None:
            with environment.begin() as txn:
                found = txn.cursor().getmulti([key.to_bytes(8, "big") for key in batch])
                [PACK.unpack(value) for _, value in found]

        def update_ours() -> None:
            for key in self.keys:
                table.update(key, {"b": next(values)})

        def update_sqlite() -> None:
            for key in self.keys:
                connection.execute("update t set b=? where id=?", (next(values), key))

        # SQLite skips the write of a row that does not change, so every update brings a new value.
        values = map(float, itertools.count())
        batch = self.keys[:BATCH]
        array = np.array(batch)
        for first in (get_ours, update_ours, lambda: table.get_many(array)):
            first()
        peers = {"LMDB": median_seconds(get_lmdb) / POINTS, "SQLite": median_seconds(get_sqlite) / POINTS}
        self.report("P3", "get(key) → named tuple", median_seconds(get_ours) / POINTS, peers, "≥ 1× LMDB, ≥ 3× SQLite")
        ours = median_seconds(lambda: table.get_many(array)) / BATCH
        self.report(
            "P4",
            f"get_many of {BATCH:,} → Arrow, per key",
            ours,
            {"LMDB getmulti": median_seconds(getmulti) / BATCH},
            "≥ 10×",
        )
        peers = {"SQLite NORMAL": median_seconds(update_sqlite) / POINTS}
        self.report("P5", "one-row update, durability=epoch", median_seconds(update_ours) / POINTS, peers, "≥ 4×")
        db.checkpoint()
        db.close()
        began = time.perf_counter()
        db = tm.open(self.folder / "points", data_memory="1 GiB")
        seconds = time.perf_counter() - began
        self.results.append(
            {"goal": "P9", "what": "reopen from a local checkpoint", "seconds": seconds, "report": db.restart_report}
        )
        print(
            f"P9   reopen of {self.count:,} rows from a local checkpoint: {seconds:.3f} s (Redis not measured)",
            flush=True,
        )
        db.close()

    def durable(self) -> None:
        """P6, one thread: beside one durable write of 4 KiB into a zero-filled file."""
        count = 500
        db = self.open("durable")
        table = db.create_table("t", COLUMNS, "id")
        table.insert_many(self.table.slice(0, 1_000))
        keys = self.table.column("id").slice(0, 1_000).to_pylist()
        path = self.folder / "raw"
        path.write_bytes(bytes(16 << 20))
        descriptor = os.open(path, os.O_RDWR)
        os.fsync(descriptor)
        page = bytes(4_096)
        values = map(float, itertools.count())
        connection = self.sqlite("durable.sqlite", "full")
        connection.executemany("insert into t values (?,?,?,?,?)", self.tuples[:1_000])

        def raw() -> None:
            for place in range(count):
                os.pwrite(descriptor, page, place * 4_096)
                os.fdatasync(descriptor)

        def ours() -> None:
            for place in range(count):
                table.update(keys[place], {"b": next(values)})

        def full() -> None:
            for place in range(count):
                connection.execute("update t set b=? where id=?", (next(values), keys[place]))

        ours()
        peers = {"one durable write": median_seconds(raw) / count, "SQLite FULL": median_seconds(full) / count}
        self.report(
            "P6", "one-row update, durability=commit, 1 thread", median_seconds(ours) / count, peers, "≥ 0.87× a write"
        )
        os.close(descriptor)
        db.close()


def main() -> None:
    """Run everything, keep the results."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    warm()  # compiled kernels are not what is measured
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        bench = Bench(Path(folder), rows)
        bench.bulk()
        bench.points()
        bench.durable()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "machine": platform.machine()}
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{time.strftime('%Y-%m-%d')}-{commit or 'unknown'}.json"
    target.write_text(
        json.dumps({"commit": commit, "machine": machine, "rows": rows, "results": bench.results}, indent=1)
    )
    print(f"kept in {target}")


if __name__ == "__main__":
    main()
