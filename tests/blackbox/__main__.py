"""`python -m tests.blackbox programs --seed S --steps N`: programs until so many steps are done, all right.

`programs --seed S --length L --keep 0,7,9` runs one program with the given steps alone. The exit code is 1 if the store
and the model disagree; the program is minimised and printed, to be run by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

from tests.blackbox import judge, programs
from tests.blackbox.minimise import minimised
from tidemark.engine.base.clock import SystemClock

LENGTH = 150


def script(steps: list[Any], options: dict[str, Any]) -> str:
    """Return a program that runs the steps."""
    lines = [
        "import datetime",
        "from decimal import Decimal",
        "from tests.blackbox.expressions import Sum",
        "from tests.blackbox.judge import run",
        "from tests.blackbox.kinds import Kind",
        "from tests.blackbox.model import Col",
        "from tests.blackbox.odd import Odd",
        "inf, nan = float('inf'), float('nan')",
        "fault = run([",
        *(f"    {step!r}," for step in steps),
        f"], {options!r})",
        "raise SystemExit(fault and str(fault))",
    ]
    return "\n".join(lines)


def run_programs(given: argparse.Namespace) -> int:
    """Run programs; return the exit code."""
    clock = SystemClock()
    began, done, number, counts = clock.monotonic(), 0, given.seed, Counter[str]()
    while done < given.steps:
        steps, options = programs.make(number, given.length)
        if given.keep:
            steps = [steps[int(place)] for place in given.keep.split(",")]
        print(f"seed {number}", flush=True) if given.verbose else None
        fault = judge.run(steps, options, counts)
        if fault is not None:
            report(number, given, steps, options, fault)
            return 1
        done += len(steps)
        number += 1
        if given.keep:
            break
    seconds = clock.monotonic() - began
    kinds = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    print(f"seeds {given.seed} to {number - 1}: {number - given.seed} programs, {done} steps, nothing wrong")
    print(f"{done / seconds:.0f} steps a second; {kinds}")
    return 0


def report(seed: int, given: argparse.Namespace, steps: list[Any], options: dict[str, Any], fault: judge.Fault) -> None:
    """Print a fault with the fewest steps that show it."""
    print(f"seed {seed}, step {fault.step}: {fault}\n    {steps[fault.step]!r}"[:3_000], flush=True)
    if given.keep or given.whole:
        return

    def label(some: list[Any]) -> str | None:
        found = judge.run(some, options)
        return None if found is None else found.label

    kept = minimised(steps[: fault.step + 1], fault.label, label)
    numbers = ",".join(str(place) for place, _ in kept)
    print(f"python -m tests.blackbox programs --seed {seed} --length {given.length} --steps 1 --keep {numbers}")
    print(script([step for _, step in kept], options))


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.blackbox", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    made = kinds.add_parser("programs")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--steps", type=int, default=10_000)
    made.add_argument("--length", type=int, default=LENGTH, help="steps of one program")
    made.add_argument("--keep", default="", help="numbers of the steps that are run")
    made.add_argument("--whole", action="store_true", help="do not minimise")
    made.add_argument("--verbose", action="store_true")
    given = parser.parse_args(arguments)
    return run_programs(given)


if __name__ == "__main__":
    sys.exit(main())
