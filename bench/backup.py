"""Backup and restore in MB/s, beside `sqlite3 .backup` of the same rows and a plain copy of as many bytes.

`python -m bench.backup [ROWS]`: rows of 100 bytes in memory, and a tenth of them on disk columns. Every figure is the
median of three runs; all copies are synced. Chain and log: a full backup, an incremental of 5 % of the rows, and the
archived log of as many changes. Bytes are those of the rows files (SQLite: of its database).
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tidemark as tm
from tidemark.backup import verify

ROUNDS = 3
SEED = 14
CHANGED_SHARE = 20
DISK_SHARE = 10
OPTIONS: dict[str, Any] = {
    "data_memory": "2 GiB",
    "redo_log": "512 MiB",
    "undo_log": "256 MiB",
    "page_buffer": "64 MiB",
    "snapshot_memory": "256 MiB",
    "background": False,
}
# A restore first fills the logs of the new store with zeros; that cost is reported separately.
RESTORED = {**OPTIONS, "redo_log": "64 MiB", "undo_log": "64 MiB"}
COPY_BYTES = 1 << 20


def timed(work: Callable[[], Any], prepare: Callable[[], None] = lambda: None) -> float:
    """Median seconds of a call."""
    found = []
    for _ in range(ROUNDS):
        prepare()
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return median(found)


def copy_synced(source: Path, target: Path) -> None:
    """A plain copy of a folder's files, each synced."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for number, path in enumerate(source.rglob("*.parquet")):
        with path.open("rb", buffering=0) as file, (target / str(number)).open("wb", buffering=0) as out:
            while piece := file.read(COPY_BYTES):
                out.write(piece)
            os.fsync(out.fileno())


def rows_of(first: int, count: int) -> dict[str, Any]:
    """Columns of 100 bytes a row."""
    rng = np.random.default_rng(SEED + first)
    return {
        "id": np.arange(first, first + count),
        **{f"n{i}": rng.integers(0, 1 << 60, count) for i in range(8)},
        "name": rng.integers(0, 256, (count, 28), dtype=np.uint8).view("S28").reshape(-1),
    }


def columns(storage: str) -> list[tm.Column]:
    """The columns of `rows_of`."""
    numbers = [tm.Column(f"n{i}", tm.Int64, storage=storage) for i in range(8)]
    return [tm.Column("id", tm.Int64), *numbers, tm.Column("name", tm.Binary(28), storage=storage)]


def insert(table: Any, first: int, count: int) -> None:
    """Rows in pieces."""
    import pyarrow as pa

    for start in range(first, first + count, 100_000):
        piece = rows_of(start, min(100_000, first + count - start))
        name = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(28), len(piece["id"]), [None, pa.py_buffer(piece["name"])]
        )
        table.insert_many(pa.table({**{key: pa.array(piece[key]) for key in piece if key != "name"}, "name": name}))


def measure(folder: Path, rows: int, storage: str) -> dict[str, Any]:
    """Backup, incremental, verification, restore and plain copy of one table."""
    store, place = folder / "store", folder / "place"
    with tm.open(store, **OPTIONS) as db:
        db.create_table("test.t", columns(storage), "id", tm.HashPartition(4))
        insert(db["test.t"], 0, rows)
        db.backup(folder / "warm", verify=False)  # kernels are compiled
        size = sum(path.stat().st_size for path in (folder / "warm").rglob("*.parquet"))

        def clean() -> None:
            shutil.rmtree(place, ignore_errors=True)

        found: dict[str, Any] = {"rows": rows, "bytes": size}
        found["backup"] = timed(lambda: db.backup(place, verify=False), clean)
        found["backup and read back"] = timed(lambda: db.backup(place), clean)
        changed = list(range(0, rows, CHANGED_SHARE))
        keys = [{"id": key, "n0": 1} for key in changed]
        found["incremental of 5 %"] = timed(
            lambda: db.backup(place, incremental=True, verify=False), lambda: db["test.t"].update_many(keys)
        )
        clean()
        db.backup(place, verify=False)
        chain = folder / "chain"
        db.archive(chain)
        db.backup(chain, verify=False)
        db["test.t"].update_many(keys)
        db.backup(chain, incremental=True, verify=False)
        db["test.t"].update_many(keys)
        db.archive()
    found["verify"] = timed(lambda: verify(place))
    target = folder / "copy"

    def remove() -> None:
        shutil.rmtree(target, ignore_errors=True)

    def make_empty() -> None:
        with tm.open(target, **RESTORED) as db:
            if storage == "disk":
                db.create_tablespace("main", size="16 MiB")

    found["an empty store made"] = timed(make_empty, remove)
    for name, source, how in (
        ("restore", place, {"verify": False}),
        ("restore, two processes", place, {"verify": False, "processes": 2}),
        ("restore and compare", place, {}),
        ("restore of chain and log", chain, {"verify": False}),
        ("the same, two processes", chain, {"verify": False, "processes": 2}),
    ):
        found[name] = timed(lambda source=source, how=how: tm.restore(source, target, **how, **RESTORED), remove)
    found["plain copy of the rows files"] = timed(lambda: copy_synced(place, folder / "plain"))
    return found


def measure_sqlite(folder: Path, rows: int) -> dict[str, Any]:
    """`.backup` of the same rows."""
    base = sqlite3.connect(folder / "base.db")
    base.execute("pragma journal_mode=wal")
    names = ", ".join(column.name for column in columns("memory"))
    base.execute(f"create table t ({names.replace('id', 'id integer primary key', 1)})")
    for start in range(0, rows, 100_000):
        piece = rows_of(start, min(100_000, rows - start))
        base.executemany(
            f"insert into t values ({', '.join('?' * 10)})",
            zip(*(each.tolist() for each in piece.values()), strict=True),
        )
    base.commit()
    base.execute("pragma wal_checkpoint(truncate)")
    target = folder / "backup.db"

    def run() -> None:
        with sqlite3.connect(target) as copy:
            base.backup(copy)
        descriptor = os.open(target, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    size = (folder / "base.db").stat().st_size
    return {"rows": rows, "bytes": size, "backup": timed(run, lambda: target.unlink(missing_ok=True))}


def main(rows: int) -> None:
    """Print the figures, and as JSON."""
    results = {}
    with tempfile.TemporaryDirectory() as root:
        for name, count in (("memory", rows), ("disk", rows // DISK_SHARE)):
            folder = Path(root) / name
            folder.mkdir()
            results[name] = measure(folder, count, name)
            shutil.rmtree(folder)
        (Path(root) / "sqlite").mkdir()
        results["sqlite"] = measure_sqlite(Path(root) / "sqlite", rows)
    for name, found in results.items():
        sys.stdout.write(f"{name}: {found['rows']:,} rows, {found['bytes'] / 1e6:,.0f} MB\n")
        for what, seconds in found.items():
            if what not in ("rows", "bytes"):
                rate = found["bytes"] / 1e6 / seconds
                sys.stdout.write(
                    f"  {what:<32} {seconds:8.2f} s {rate:8,.0f} MB/s {found['rows'] / seconds:12,.0f} rows/s\n"
                )
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000)
