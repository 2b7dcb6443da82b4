"""`python -m bench.large_epoch [--rows N ...] [--quick] [--out DIR]`: what memory the binlog takes for a large epoch.

One transaction inserts N rows, spooled, and another updates them all; the binlog has whole images. What is looked at is
the step after the commit, when the epoch is read back from log and spool file and written into the binlog: resident
memory before it, the highest there was during it (VmHWM, reset before), and how long it takes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidemark as tm
from bench.report import RESULTS, keep
from bench.rows import COLUMNS, make_table

SLICE_ROWS = 250_000
_SELF = Path("/proc/self")


@dataclass
class Figure:
    """One epoch in the binlog."""

    rows: int
    work: str
    seconds: float
    resident_mib: float  # before
    more_mib: float  # at most, above that
    binlog_mib: float


def _status_mib(name: str) -> float:
    line = next(each for each in (_SELF / "status").read_text().splitlines() if each.startswith(name))
    return int(line.split()[1]) / 1_024


def logged(db: Any, rows: int, work: str, folder: Path) -> Figure:
    """Close the epoch and measure until the binlog has it."""
    before = sum(each.stat().st_size for each in (folder / "binlog").iterdir())
    (_SELF / "clear_refs").write_text("5")
    resident = _status_mib("VmRSS")
    began = time.perf_counter()
    db.sync()
    seconds = time.perf_counter() - began
    more = _status_mib("VmHWM") - resident
    written = sum(each.stat().st_size for each in (folder / "binlog").iterdir()) - before
    return Figure(rows, work, seconds, resident, more, written / (1 << 20))


def run(folder: Path, rows: int) -> list[Figure]:
    """Insert the rows in one transaction and update them in another."""
    options = {"log_bin": "binlog", "server_id": 1, "log_updated_only": False, "log_update_as_write": False}
    memory_mib = 64 + rows * 288 // (1 << 20)
    found = []
    with tm.open(
        folder,
        background=False,
        data_memory=f"{memory_mib} MiB",
        redo_log="256 MiB",
        transaction_memory="16 MiB",
        transaction_limit="16 GiB",
        durability="epoch",
        **options,  # type: ignore[arg-type]  # a dict of them has one type
    ) as db:
        db.create_table("t", COLUMNS, "id")
        db.sync()
        with db.transaction() as txn:
            for first in range(0, rows, SLICE_ROWS):
                txn.insert_many("t", make_table(first, min(SLICE_ROWS, rows - first)))
        found.append(logged(db, rows, "insert", folder))
        with db.transaction() as txn:
            for first in range(0, rows, SLICE_ROWS):
                some = make_table(first, min(SLICE_ROWS, rows - first), seed=1)
                txn.update_many("t", pa.table({"id": some["id"], "b": some["b"]}))
        found.append(logged(db, rows, "update", folder))
    return found


def main() -> None:
    """Run each size in its own process, so that no size starts with memory that another has touched."""
    parser = argparse.ArgumentParser(prog="python -m bench.large_epoch", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--quick", action="store_true", help="few rows: to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file (default: bench/results)")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = [50_000, 300_000] if arguments.quick else arguments.rows
    if arguments.one is not None:
        for figure in run(arguments.one, sizes[0]):
            print(*asdict(figure).values(), sep="\t")
        return
    figures = []
    for rows in sizes:
        with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
            command = [sys.executable, "-m", "bench.large_epoch", "--rows", str(rows), "--one", f"{folder}/store"]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for line in said.splitlines():
            count, work, *numbers = line.split("\t")
            figures.append(Figure(int(count), work, *map(float, numbers)))
    print("| rows | epoch of | seconds | resident before, MiB | more while it is written, MiB | binlog, MiB |")
    print("|---|---|---|---|---|---|")
    for each in figures:
        print(
            f"| {each.rows:,} | {each.work} | {each.seconds:.1f} | {each.resident_mib:,.0f} | {each.more_mib:.0f} |"
            f" {each.binlog_mib:,.0f} |"
        )
    name = "large-epoch" + ("-quick" if arguments.quick else "")
    print(f"kept in {keep([], {'rows_measured': [asdict(each) for each in figures]}, arguments.out, name).name}")


if __name__ == "__main__":
    main()
