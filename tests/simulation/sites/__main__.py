"""`python -m tests.simulation.sites`: runs of seeds, a line for each batch; exit code 1 at a broken promise.

A line says how many runs of each function kept every promise, with a digest over their digests: the same command prints
the same lines. A violation is reported with its seed; `--seeds SEED:SEED+1 --trace` shows what led to it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from tests.seeds import seed_range
from tests.simulation.sites.plan import BY_NAME
from tests.simulation.sites.world import Report, run_seed
from tidemark.engine.base.clock import SystemClock
from tidemark.recovery.crash_harness.program import Violation

BATCH_SEEDS = 50
TRACE_LINES = 60


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.sites", description=__doc__)
    parser.add_argument("--seeds", type=seed_range, default=range(1, 201), metavar="FROM:TO", help="TO excluded")
    parser.add_argument("--function", action="append", choices=sorted(BY_NAME), help="only this one; may be repeated")
    parser.add_argument("--batch", type=int, default=BATCH_SEEDS, help="seeds of a line")
    parser.add_argument("--keep-going", action="store_true", help="continue after a violation")
    parser.add_argument("--trace", action="store_true", help="the last things that happened before a violation")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each seed, with all counts")
    return parser


def _line(seeds: range, reports: list[Report], seconds: float) -> str:
    digest = hashlib.blake2b("".join(each.digest for each in reports).encode(), digest_size=8).hexdigest()
    functions = Counter(each.function for each in reports)
    counts: Counter[str] = Counter()
    for each in reports:
        counts.update(each.counts)
    reported = ("transactions", "epochs applied", "conflicts", "power losses", "kills", "connections")
    shown = ", ".join(f"{counts[name]} {name}" for name in reported)
    by_function = ", ".join(f"{name} {count}" for name, count in sorted(functions.items()))
    return f"seeds {seeds.start}:{seeds.stop} {digest} in {seconds:.0f} s: {shown} ({by_function})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds."""
    asked = _parser().parse_args(arguments)
    clock = SystemClock()
    names = asked.function or []
    broken = 0
    for first in range(asked.seeds.start, asked.seeds.stop, asked.batch):
        batch = range(first, min(first + asked.batch, asked.seeds.stop))
        reports: list[Report] = []
        began = clock.monotonic()
        for seed in batch:
            try:
                reports.append(run_seed(seed, names))
            except Violation as violation:
                broken += 1
                sys.stdout.write(f"BROKEN {violation}\n")
                if asked.trace:
                    sys.stdout.write("\n".join(violation.args[1][-TRACE_LINES:]) + "\n")
                if not asked.keep_going:
                    return 1
                continue
            if asked.json:
                sys.stdout.write(json.dumps(asdict(reports[-1])) + "\n")
        sys.stdout.write(_line(batch, reports, clock.monotonic() - began) + "\n")
        sys.stdout.flush()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
