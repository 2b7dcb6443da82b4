"""`python -m tests.simulation.nodes`: runs of seeds, a line for each batch; exit code 1 at a broken promise.

A line has counts and a digest over those of its runs: the same command prints the same lines. A violation is reported
with its seed; `--seeds SEED --trace` shows what led to it.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Sequence

from tests.seeds import seed_range
from tests.simulation.nodes.world import BrokenPromise, Report, run_seed
from tidemark.engine.base.clock import SystemClock

BATCH_SEEDS = 500
TRACE_LINES = 80
REPORTED = ("open", "reads", "crash", "split", "flap", "stall", "pause", "Lost", "Left", "disk lost", "shared lost")


def _line(seeds: range, reports: list[Report], seconds: float) -> str:
    digest = hashlib.blake2b("".join(each.digest for each in reports).encode(), digest_size=8).hexdigest()
    counts: Counter[str] = Counter()
    for each in reports:
        counts.update(each.counts)
    shown = ", ".join(f"{counts[name]} {name}" for name in REPORTED)
    virtual = sum(each.seconds for each in reports)
    return f"seeds {seeds.start}:{seeds.stop} {digest} in {seconds:.1f} s ({virtual:.0f} s of theirs): {shown}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.nodes", description=__doc__)
    parser.add_argument("--seeds", type=seed_range, default=range(1, 1_001), metavar="FROM:TO", help="TO excluded")
    parser.add_argument("--batch", type=int, default=BATCH_SEEDS, help="seeds of a line")
    parser.add_argument("--keep-going", action="store_true", help="continue after a violation")
    parser.add_argument("--trace", action="store_true", help="what happened before a violation")
    asked = parser.parse_args(arguments)
    clock = SystemClock()
    broken = 0
    for first in range(asked.seeds.start, asked.seeds.stop, asked.batch):
        batch = range(first, min(first + asked.batch, asked.seeds.stop))
        reports: list[Report] = []
        began = clock.monotonic()
        for seed in batch:
            try:
                reports.append(run_seed(seed))
            except BrokenPromise as violation:
                broken += 1
                sys.stdout.write(f"BROKEN {violation}\n")
                if asked.trace:
                    sys.stdout.write("\n".join(violation.trace[-TRACE_LINES:]) + "\n")
                if not asked.keep_going:
                    return 1
        sys.stdout.write(_line(batch, reports, clock.monotonic() - began) + "\n")
        sys.stdout.flush()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
