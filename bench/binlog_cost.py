"""`python -m bench.binlog_cost [--quick] [--out DIR]`: what a binlog costs a store that updates rows.

The same updates at random keys run on stores that differ in nothing but their binlog: none, one with the default
images (binlog_type 2), one with whole images (7). Single updates are transactions of their own, of one thread or of
four, durable with their epoch or each before its commit returns; batches are `update_many` of 10,000 rows. Counted:
rows per second until the last call returns, time and processor time (all threads) per row until the binlog has all of
it, bytes of REDO log and of binlog for each row. Rounds are interleaved; medians are shown.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.context import QUICK, Context, Scale, together, warm_memory
from bench.report import RESULTS, keep
from bench.rows import COLUMNS
from tidemark.engine.jit.registry import compile_declared

SEED = 40_404
THREADS = 4
# Name, rows as a share of the scale's points, threads, whether each commit waits for the disk.
SINGLE, BATCH = "single", "batch"
WORKS = (
    ("updates, 1 thread", SINGLE, 1, False),
    ("updates, 4 threads", SINGLE, THREADS, False),
    ("durable updates, 1 thread", SINGLE, 1, True),
    ("durable updates, 4 threads", SINGLE, THREADS, True),
    ("batches of 10,000", BATCH, 1, False),
)
BATCH_ROWS = 10_000
POLL_SECONDS = 0.002
NONE, CHANGED, WHOLE = "no binlog", "changed columns (2)", "whole images (7)"
OPTIONS: dict[str, dict[str, Any]] = {
    NONE: {},
    CHANGED: {"server_id": 1, "log_bin": "binlog"},
    WHOLE: {"server_id": 1, "log_bin": "binlog", "log_updated_only": False, "log_update_as_write": False},
}


@dataclass
class Figure:
    """One round of one store."""

    store: str
    work: str
    rows: int
    rows_per_second: float
    us_per_row_logged: float  # until the binlog has the row
    cpu_us_per_row: float  # of all threads, until the binlog has the row
    redo_bytes: float
    binlog_bytes: float


class Site:
    """A loaded store with or without binlog."""

    def __init__(self, context: Context, name: str, number: int) -> None:
        self.name = name
        options = {"durability": "epoch", "max_binlog_size": "1 GiB", **OPTIONS[name]}
        if name == NONE:
            del options["max_binlog_size"]
        self.db = context.open(f"binlog-{number}", redo_log="1 GiB", **options)
        self.table: Any = self.db.create_table("t", COLUMNS, "id")
        self.table.insert_many(context.table)
        self.settle()

    def settle(self) -> None:
        """Wait until the binlog has everything."""
        epoch = self.db.sync()
        pause = threading.Event()
        while self.name != NONE and self.db.status()["binlog"]["latest_handled_binlog_epoch"] < epoch:
            pause.wait(POLL_SECONDS)

    def sizes(self) -> tuple[int, int]:
        """(bytes of REDO log written, bytes of binlog)."""
        status = self.db.status()
        written = 0
        if self.name != NONE:
            folder = Path(self.db.locator.directory) / "binlog"
            written = sum(each.stat().st_size for each in folder.iterdir())
        return status["log"]["bytes_written"], written


def update_all(site: Site, keys: list[int], value: float, is_durable: bool) -> None:
    """Each update a transaction of its own."""
    if not is_durable:
        update = site.table.update
        for number, key in enumerate(keys):
            update(key, {"b": value + number})
        return
    for number, key in enumerate(keys):
        txn = site.db.transaction()
        txn.update("t", key, {"b": value + number})
        txn.commit(True)


def measure(site: Site, work: tuple[str, str, int, bool], keys: np.ndarray, value: float) -> Figure:
    """One round."""
    name, kind, threads, is_durable = work
    site.settle()
    redo, binlog = site.sizes()
    began, began_cpu = time.perf_counter(), time.process_time()
    if kind == SINGLE:
        # No two threads share a key: waits for locks are not measured here.
        shares = [keys[keys % threads == number].tolist() for number in range(threads)]
        together(threads, lambda number: update_all(site, shares[number], value, is_durable))
    else:
        for at in range(0, len(keys), BATCH_ROWS):
            some = np.unique(keys[at : at + BATCH_ROWS])
            site.table.update_many(pa.table({"id": some, "b": np.arange(len(some)) + value}))
    returned = time.perf_counter() - began
    site.settle()
    logged, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    redo_after, binlog_after = site.sizes()
    count = len(keys)
    return Figure(
        site.name,
        name,
        count,
        count / returned,
        logged / count * 1e6,
        cpu / count * 1e6,
        (redo_after - redo) / count,
        (binlog_after - binlog) / count,
    )


def run(folder: Path, scale: Scale, rounds: int) -> list[Figure]:
    """All rounds of all stores; the first of each is not counted."""
    context = Context(folder, scale)
    sites = [Site(context, name, number) for number, name in enumerate(OPTIONS)]
    rng = np.random.default_rng(SEED)
    found = []
    try:
        for number in range(rounds + 1):
            for work in WORKS:
                count = scale.durable_points * work[2] if work[3] else scale.points * (10 if work[1] == BATCH else 1)
                keys = rng.integers(0, scale.rows, count)
                for place in range(len(sites)):
                    figure = measure(sites[(place + number) % len(sites)], work, keys, 1e6 * (number + 1))
                    if number:
                        found.append(figure)
    finally:
        for site in sites:
            site.db.close()
    return found


def table_of(figures: list[Figure]) -> str:
    """Medians as a table in Markdown."""
    lines = [
        "| updates | binlog | rows/s | µs a row until the binlog has it | of processor time | REDO bytes a row |"
        " binlog bytes a row |",
        "|---|---|---|---|---|---|---|",
    ]
    for work in (each[0] for each in WORKS):
        for name in OPTIONS:
            some = [each for each in figures if (each.store, each.work) == (name, work)]

            def median(field: str, some: list[Figure] = some) -> float:
                return statistics.median(getattr(each, field) for each in some)

            lines.append(
                f"| {work} | {name} | {median('rows_per_second'):,.0f} | {median('us_per_row_logged'):.2f} |"
                f" {median('cpu_us_per_row'):.2f} |"
                f" {median('redo_bytes'):.0f} | {median('binlog_bytes'):.0f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, keep the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.binlog_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows and rounds: to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file (default: bench/results)")
    arguments = parser.parse_args()
    scale, rounds = (QUICK, 1) if arguments.quick else (Scale(), 3)
    compile_declared()
    warm_memory()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        figures = run(Path(folder), scale, rounds)
    print(table_of(figures))
    settings = {"rows": scale.rows, "rounds": rounds, "seed": SEED, "rows_measured": [asdict(each) for each in figures]}
    name = "binlog-cost" + ("-quick" if arguments.quick else "")
    print(f"kept in {keep([], settings, arguments.out, name).name}")


if __name__ == "__main__":
    main()
