"""Digests in rows/s: a comparison of two copies, beside hash sums of the same rows in DuckDB and SQLite.

`python -m bench.digest [ROWS]`: rows of eight integers, a float, a VarChar of about 20 bytes and a Binary(16). Every
figure is the median of three runs. DuckDB hashes all columns of a row and sums the hashes (its `hash`, 64 bits), on as
many threads as Tidemark uses; SQLite has no hash, so it sums a product of the columns and lengths, which detects much
less.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import tidemark as tm
from tidemark.recovery.verification.digest_tasks import diff_files

ROUNDS = 3
SEED = 21
OPTIONS: dict[str, Any] = {
    "data_memory": "2 GiB",
    "redo_log": "256 MiB",
    "undo_log": "256 MiB",
    "page_buffer": "64 MiB",
    "background": False,
}
NUMBERS = [f"n{i}" for i in range(8)]


def rows_of(count: int) -> pa.Table:
    """The rows."""
    rng = np.random.default_rng(SEED)
    return pa.table(
        {
            "id": np.arange(count),
            **{name: rng.integers(0, 1 << 60, count) for name in NUMBERS},
            "x": rng.normal(size=count),
            "name": pa.array([f"name of row {each}" for each in rng.integers(0, 1 << 30, count)]),
            "raw": pa.array(rng.integers(0, 256, (count, 16), dtype=np.uint8).view("S16").reshape(-1), pa.binary(16)),
        }
    )


def columns(storage: str) -> list[tm.Column]:
    """The columns of `rows_of`."""
    rest = [
        *((name, tm.Int64) for name in NUMBERS),
        ("x", tm.Float64),
        ("name", tm.VarChar(40)),
        ("raw", tm.Binary(16)),
    ]
    return [tm.Column("id", tm.Int64), *(tm.Column(name, kind, storage=storage) for name, kind in rest)]


def timed(work: Callable[[], Any]) -> float:
    """Median seconds of a call."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return median(found)


def in_duckdb(rows: pa.Table) -> float | None:
    """Return the seconds of a hash sum over a DuckDB table of all rows; None if DuckDB is not installed."""
    try:
        import duckdb
    except ModuleNotFoundError:
        return None
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        connection.execute("CREATE TABLE t AS SELECT * FROM rows")
        names = ", ".join(rows.schema.names)
        return timed(lambda: connection.execute(f"SELECT count(*), sum(hash({names})) FROM t").fetchall())


def in_sqlite(rows: pa.Table, path: Path) -> float:
    """Seconds of a sum over all columns."""
    connection = sqlite3.connect(path)
    names = rows.schema.names
    connection.execute(f"CREATE TABLE t ({', '.join(names)}, PRIMARY KEY (id)) WITHOUT ROWID")
    connection.executemany(
        f"INSERT INTO t VALUES ({', '.join('?' * len(names))})",
        zip(*(column.to_pylist() for column in rows.columns), strict=True),
    )
    connection.commit()
    terms = " + ".join(f"({name} & 1048575) * {2 * place + 3}" for place, name in enumerate(["id", *NUMBERS]))
    statement = f"SELECT count(*), total({terms} + x + length(name) + length(raw)) FROM t"
    seconds = timed(lambda: connection.execute(statement).fetchall())
    connection.close()
    return seconds


def measure(folder: Path, storage: str, rows: pa.Table) -> dict[str, Any]:
    """Rows/s read on both sides, of comparisons of one store with its backup and with another store."""
    count = rows.num_rows
    with tm.open(folder / f"{storage}-a", **OPTIONS) as a, tm.open(folder / f"{storage}-b", **OPTIONS) as b:
        for db in (a, b):
            if storage == "disk":
                db.create_tablespace("pages", size="64 MiB")
            db.create_table("t", columns(storage), "id")
            db["t"].insert_many(rows)
        a.backup(folder / f"{storage}-backups", verify=False)
        if storage == "memory":
            a.checkpoint()
        assert tm.diff(a, b)["is_equal"]
        found = {
            "store against store": 2 * count / timed(lambda: tm.diff(a, b)),
            "store against its backup": 2 * count / timed(lambda: tm.diff(a, folder / f"{storage}-backups")),
        }
        with b.transaction() as txn:
            for key in range(0, count, count // 100):
                txn.update("t", key, {"n3": 0})
        report = tm.diff(a, b)
        assert report["tables"][0]["changed"] == 100
        found["100 rows differ, seconds"] = timed(lambda: tm.diff(a, b))
        if storage == "memory":
            done = lambda: diff_files(folder / "memory-a", folder / "memory-backups")  # noqa: E731
            found["files against files, one task after the other"] = 2 * count / timed(done)
    return found


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    rows = rows_of(count)
    result: dict[str, Any] = {"rows": count}
    with tempfile.TemporaryDirectory() as folder:
        result["memory"] = measure(Path(folder), "memory", rows)
        result["disk"] = measure(Path(folder), "disk", rows.slice(0, count // 5))
        seconds = in_duckdb(rows)
        result["duckdb rows/s"] = None if seconds is None else count / seconds
        result["sqlite rows/s"] = count / in_sqlite(rows, Path(folder) / "rows.sqlite")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
