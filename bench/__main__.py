"""`python -m bench [P1 P4 ...] [--quick] [--out DIR]`: the goals of docs/findings/goals.md beside their peers.

Every goal runs side by side with SQLite, LMDB, RocksDB and Redis, rounds interleaved; medians, ratios and the goal are
printed and kept as JSON. Timings judge nothing: a goal that is missed is printed as missed, and the run ends well.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from bench import peers
from bench.context import MEMORY_WARM_BYTES, QUICK, Context, Scale, warm_memory
from bench.goals import GOALS
from bench.report import RESULTS, Line, keep, show
from tidemark.engine.jit.registry import compile_declared


def main() -> None:
    """Run the named goals; print and save their results."""
    known = sorted({name for names in GOALS for name in names}, key=lambda name: int(name[1:]))
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("goals", nargs="*", metavar="P", help=f"which goals; all of {' '.join(known)} if none is named")
    parser.add_argument("--quick", action="store_true", help="few rows and rounds: to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file (default: bench/results)")
    parser.add_argument("--rows", type=int, help="rows of P1 to P6 and P16 (default: 1,000,000)")
    arguments = parser.parse_args()
    wanted = {name.upper() for name in arguments.goals} or set(known)
    if not wanted <= set(known):
        parser.error(f"no such goal: {' '.join(sorted(wanted - set(known)))}; there are {' '.join(known)}")
    scale = QUICK if arguments.quick else Scale()
    if arguments.rows:
        scale.rows = arguments.rows
    for message in peers.missing_peers():
        print(message)
    began = time.monotonic()
    lines = run(wanted, scale)
    name = "goals" if wanted == set(known) else "-".join(sorted(wanted))
    settings = {
        **asdict(scale),
        "seconds": round(time.monotonic() - began),
        "missing": peers.missing_peers(),
        "warm_up": f"kernels compiled; {MEMORY_WARM_BYTES >> 20} MiB of memory touched and given back before anything"
        " was measured, because a virtual machine's host backs memory at its first touch; one untimed round each",
    }
    target = keep(lines, settings, arguments.out, name + ("-quick" if arguments.quick else ""))
    met = sum(goal.met for line in lines for goal in line.goals)
    print(
        f"{met} of {sum(len(line.goals) for line in lines)} goals met; {settings['seconds']} s; kept in {target.name}"
    )


def run(wanted: set[str], scale: Scale) -> list[Line]:
    """Return the lines of the named goals."""
    lines: list[Line] = []
    compile_declared()  # compiled kernels are not what is measured
    warm_memory()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        context = Context(Path(folder), scale)
        try:
            for names, measure in GOALS.items():
                if wanted & set(names):
                    if "P6" in names:
                        context.close()
                    found = [line for line in measure(context) if line.goal in wanted]
                    for line in found:
                        show(line)
                    lines += found
                    gc.collect()  # closed stores release their memory before the next goal
        finally:
            context.close()
    return lines


if __name__ == "__main__":
    main()
