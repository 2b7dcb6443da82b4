"""`python -m bench.compare [--quick] [--rows N] [--operations N] [--workload NAME] [--out DIR]`: YCSB and TATP against
the peers.

Each workload runs at two durabilities against Tidemark, SQLite, LMDB, RocksDB and Redis. Every store is first compared
with plain dictionaries; one that disagrees ends the program. `--page FILE.json` measures nothing: it writes the table
and the picture of docs/findings/compare.md from a kept run.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path

from bench import peers
from bench.compare import page
from bench.compare.check import check, try_comparison
from bench.compare.competitors import competitors, workloads
from bench.compare.measure import WARM_ROUNDS, measure
from bench.compare.orders import SEED as ORDERS_SEED
from bench.compare.records import SEED as RECORDS_SEED
from bench.compare.stores import DURABILITIES
from bench.compare.subscribers import SEED as SUBSCRIBERS_SEED
from bench.context import warm_memory
from bench.report import RESULTS, Line, keep, show
from tidemark.engine.jit.registry import compile_declared

ROWS, OPERATIONS, ROUNDS = 100_000, 50_000, 5
QUICK_ROWS, QUICK_OPERATIONS, QUICK_ROUNDS = 2_000, 500, 1
CHECK_ROWS, CHECK_OPERATIONS = 150, 600


def check_all(folder: Path) -> str:
    """Try the comparison, then compare every store at each workload and durability; what was done."""
    small, stores, faults = workloads(CHECK_ROWS, CHECK_OPERATIONS), competitors(), 0
    for workload in small:
        faults += try_comparison(workload)
        for durability in DURABILITIES:
            for store in [each for each in stores if each.has(workload)]:
                check(store, workload, durability, folder)
    return (
        f"{len(stores)} stores agree with dictionaries at {len(small)} workloads of {CHECK_OPERATIONS:,} operations"
        f" and {len(DURABILITIES)} durabilities; {faults} of {faults} planted faults were found"
    )


def measure_all(folder: Path, rows: int, operations: int, rounds: int, names: list[str] | None) -> list[Line]:
    """Every workload, or those of these names, at each durability, printed as it comes."""
    lines: list[Line] = []
    stores = competitors()
    wanted = [each for each in workloads(rows, operations) if names is None or each.name in names]
    for workload in wanted:  # what is loaded is made before anything is timed, and is no garbage
        assert workload.data.pairs
    gc.collect()
    gc.freeze()
    for durability in DURABILITIES:
        for workload in wanted:
            found = measure([each for each in stores if each.has(workload)], workload, durability, folder, rounds)
            for line in found:
                show(line)
            lines += found
    return lines


def main() -> None:
    """Check, measure, print and keep; or write the page of a kept run."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows and one round: to see that it works")
    parser.add_argument("--rows", type=int, help=f"records, and subscribers (default: {ROWS:,})")
    parser.add_argument("--operations", type=int, help=f"of each workload and round (default: {OPERATIONS:,})")
    parser.add_argument(
        "--workload", action="append", metavar="NAME", help="only this one, such as 'YCSB E'; repeatable"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file (default: bench/results)")
    parser.add_argument("--page", type=Path, metavar="FILE.json", help="write the page from this file, and end")
    arguments = parser.parse_args()
    if arguments.page:
        page.write(json.loads(arguments.page.read_text(encoding="utf-8")), arguments.page.name)
        return
    is_quick = arguments.quick
    rows = arguments.rows or (QUICK_ROWS if is_quick else ROWS)
    operations = arguments.operations or (QUICK_OPERATIONS if is_quick else OPERATIONS)
    rounds = QUICK_ROUNDS if is_quick else ROUNDS
    for message in peers.missing_peers():
        print(message)
    began = time.monotonic()
    compile_declared()  # compiled kernels are not what is measured
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        checked = check_all(Path(folder))
        print(checked, flush=True)
        if not is_quick:
            warm_memory()
        lines = measure_all(Path(folder), rows, operations, rounds, arguments.workload)
    settings = {
        "rows": rows,
        "operations": operations,
        "rounds": rounds,
        "warm_rounds": WARM_ROUNDS,
        "seeds": [RECORDS_SEED, SUBSCRIBERS_SEED, ORDERS_SEED],
        "is_quick": is_quick,
        "check": checked,
        "missing": peers.missing_peers(),
        "seconds": round(time.monotonic() - began),
    }
    kind = "compare" + ("-part" if arguments.workload else "") + ("-quick" if is_quick else "")
    target = keep(lines, settings, arguments.out, kind)
    print(f"{settings['seconds']} s; kept in {target.name}")


if __name__ == "__main__":
    main()
