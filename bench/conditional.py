"""`python -m bench.conditional [--rows N]`: `update_where` and `delete_where` beside two ordered indexes, and SQLite.

Both have the same rows of four numbers and a text of 100 different values, and indexes over one number and the text.
SQLite has a WAL and FULL, Tidemark `durability="commit"`. Each work is run once, on a new store. Processor time of the
process, and elapsed time in parentheses.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidemark as tm

COLUMNS = [*(tm.Column(name, tm.Int64) for name in ("id", "a", "b", "c")), tm.Column("state", tm.VarChar(30))]
INDEXED = ("a", "state")
# By name: the column that is changed (None: rows are deleted), and the column by which half of the rows are found.
WORKS: dict[str, tuple[str | None, str | None]] = {
    "all rows, indexed number": ("a", None),
    "all rows, indexed text": ("state", None),
    "all rows, column without index": ("b", None),
    "half the rows by its index, indexed number": ("a", "a"),
    "half the rows by a scan, indexed text": ("state", "c"),
    "delete half the rows, by an index": (None, "a"),
    "delete half the rows, by a scan": (None, "c"),
}


def rows(count: int) -> pa.Table:
    """Return the rows: keys in order, all else shuffled."""
    random = np.random.default_rng(7)
    texts = pa.array([f"waiting for worker {number:04}" for number in range(100)])
    state = texts.take(pa.array(random.integers(0, len(texts), count)))
    return pa.table({"id": np.arange(count), **{name: random.permutation(count) for name in "abc"}, "state": state})


def timed(work: Callable[[], object]) -> str:
    """Run once; return processor and elapsed seconds as text."""
    began, processor = time.perf_counter(), time.process_time()
    work()
    return f"{time.process_time() - processor:.2f} s ({time.perf_counter() - began:.2f})"


def tidemark(place: Path, table: pa.Table, changed: str | None, by: str | None) -> str:
    """Run one work in a new store."""
    with tm.open(place, data_memory="1 GiB", redo_log="512 MiB") as db:
        handle = db.create_table("t", COLUMNS, "id")
        for name in INDEXED:
            db.create_index("t", name, [name])
        handle.insert_many(table)
        where = None if by is None else tm.col(by) < table.num_rows // 2
        if changed is None:
            assert where is not None
            return timed(lambda: handle.delete_where(where))
        value: Any = "done" if changed == "state" else tm.col(changed) + 1
        return timed(lambda: handle.update_where({changed: value}, where=where))


def sqlite(place: Path, table: pa.Table, changed: str | None, by: str | None) -> str:
    """Run the same in SQLite."""
    db = sqlite3.connect(place)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b INTEGER, c INTEGER, state TEXT)")
    for name in INDEXED:
        db.execute(f"CREATE INDEX {name} ON t ({name})")
    values = zip(*(each.to_pylist() for each in table.columns), strict=True)
    db.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", values)
    db.commit()
    where = "" if by is None else f" WHERE {by} < {table.num_rows // 2}"
    value = "'done'" if changed == "state" else f"{changed} + 1"
    statement = f"DELETE FROM t{where}" if changed is None else f"UPDATE t SET {changed} = {value}{where}"

    def work() -> None:
        db.execute(statement)
        db.commit()

    found = timed(work)
    db.close()
    return found


def main() -> None:
    """Run all works and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    table = rows(parser.parse_args().rows)
    sys.stdout.write("| work | Tidemark | SQLite |\n|---|---:|---:|\n")
    for name, (changed, by) in WORKS.items():
        with tempfile.TemporaryDirectory(dir=".") as folder:
            tidemark(Path(folder) / "warm", table.slice(0, 1_000), changed, by)  # kernels and code
            figures = [run(Path(folder) / run.__name__, table, changed, by) for run in (tidemark, sqlite)]
        sys.stdout.write(f"| {name} | {' | '.join(figures)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
