"""Filters of DuckDB and polars pushed down into a scan, and the same queries over the whole table.

`python -m bench.pushdown [ROWS]`: rows of two Int64, a Float64, a Timestamp and a VarChar of about 10 bytes; a sum over
the 0.1 % of the rows that a filter keeps. Every figure is the median of nine runs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

import tidemark as tm

ROUNDS = 9
GROUPS = 1_000


def filled(folder: Path, count: int) -> tuple[tm.Database, tm.TableHandle]:
    """A store with the rows; every `GROUPS`th passes the filter."""
    db = tm.open(folder / "store", data_memory="1 GiB", redo_log="256 MiB", durability="epoch")
    kinds = {"id": tm.Int64, "g": tm.Int64, "v": tm.Float64, "at": tm.Timestamp, "note": tm.VarChar(40)}
    table = db.create_table("t", [tm.Column(name, kind) for name, kind in kinds.items()], "id")
    ids = np.arange(count)
    at = pa.array(ids.astype("datetime64[s]").astype("datetime64[us]"), pa.timestamp("us", "UTC"))
    columns = {"id": ids, "g": ids % GROUPS, "v": ids / 2, "at": at, "note": [f"note {each % 997}" for each in ids]}
    table.insert_many(pa.table(columns))
    return db, table


def timed(work: Callable[[], Any]) -> str:
    """Median, fastest and slowest milliseconds of a call."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1_000)
    return f"{median(found):.1f} ({min(found):.1f} … {max(found):.1f})"


def by_duckdb(rows: Any) -> Any:
    """DuckDB knows the argument by its name."""
    return duckdb.sql("select sum(v) from rows where g = 7").fetchall()


def by_polars(frame: pl.LazyFrame) -> Any:
    """The same in polars."""
    return frame.filter(pl.col("g") == 7).select(pl.col("v").sum()).collect().rows()


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        db, table = filled(Path(folder), count)
        with db:
            pushed, frame = table.dataset(), table.scan_polars()
            expected = by_duckdb(table)
            works: dict[str, Callable[[], Any]] = {
                "DuckDB, the table as a stream": lambda: by_duckdb(table),
                "DuckDB, dataset()": lambda: by_duckdb(pushed),
                "polars, to_polars()": lambda: by_polars(table.to_polars().lazy()),
                "polars, scan_polars()": lambda: by_polars(frame),
                "scan(where=).sum()": lambda: [(table.scan(where=tm.col("g") == 7).sum("v"),)],
            }
            for index in ("without an index", "with an index of g"):
                for name, work in works.items():
                    assert work() == expected
                    print(f"{name}, {index}: {timed(work)} ms", flush=True)
                if index == "without an index":
                    db.create_index("t", "by_g", "g")


if __name__ == "__main__":
    main()
