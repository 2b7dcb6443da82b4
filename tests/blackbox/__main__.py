"""`python -m tests.blackbox programs --seed S --steps N`: programs until so many steps are done, all right.

`histories --seed S --transactions N --kills K` records and checks histories until so many transactions are done, in
threads, at a process that is killed and at a group. `groups --seed S --events N` lets so many things happen to a group.
`programs --seed S --length L --keep 0,7,9` runs one program with the given steps alone. The exit code is 3 if the store
and the model disagree; the program is minimised and printed, to be run by hand.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.blackbox import calls, groups, histories, judge, nodes, programs
from tests.blackbox import killed as killed_histories
from tests.blackbox.anomalies import Anomaly
from tests.blackbox.histories import Recorder
from tests.blackbox.minimise import minimised
from tidemark.engine.base.clock import SystemClock

LENGTH = 150
# The exit code of a finding; an error of this program has another.
FOUND = 3


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
    while number - given.seed < given.programs if given.programs else done < given.steps:
        steps, options = programs.make(number, given.length)
        if given.keep:
            steps = [steps[int(place)] for place in given.keep.split(",")]
        print(f"seed {number}", flush=True) if given.verbose else None
        fault = judge.run(steps, options, counts)
        if fault is not None:
            report(number, given, steps, options, fault)
            return FOUND
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


@contextmanager
def folder_on_disk() -> Iterator[str]:
    """A folder on a real disk, where a sync takes time."""
    with tempfile.TemporaryDirectory(prefix="tidemark-blackbox-", ignore_cleanup_errors=True) as folder:
        yield folder


def said(anomalies: list[Anomaly], what: str, recorder: Recorder, seconds: float) -> int:
    """Print how a history ended; return the exit code."""
    counts = ", ".join(f"{count} {name}" for name, count in recorder.counts.most_common())
    transactions = len(recorder.history)
    for name, count in Counter(each.name for each in anomalies).items():
        text = next(each.text for each in anomalies if each.name == name)
        print(f"WRONG: {count} {name}: {text}")
    verdict = f"{len(anomalies)} anomalies" if anomalies else "nothing wrong"
    print(
        f"seed {recorder.seed}, {what}: {transactions} transactions in {seconds:.0f} s; {counts}: {verdict}", flush=True
    )
    return FOUND if anomalies else 0


def run_histories(given: argparse.Namespace) -> int:
    """Record and check histories; return the exit code."""
    code, done, kills, number, clock = 0, 0, 0, given.seed, SystemClock()
    while done < given.transactions and not code:
        places = ("threads", "server", "group") if given.place == "all" else (given.place,)
        for place in places:
            count, killed = given.history, max(1, given.history * given.kills // given.transactions)
            began = clock.monotonic()
            with folder_on_disk() as folder:
                if place == "threads":
                    anomalies, recorder = histories.in_threads(folder, number, count)
                else:
                    run = killed_histories.of_server if place == "server" else killed_histories.of_group
                    anomalies, recorder = run(folder, number, count, killed)
            code |= said(anomalies, place, recorder, clock.monotonic() - began)
            done += len(recorder.history)
            kills += recorder.counts["kills"]
            number += 1
            if code or done >= given.transactions:
                break
    print(f"{done} transactions, {kills} kills, {'SOMETHING IS WRONG' if code else 'nothing wrong'}")
    return code


def run_groups(given: argparse.Namespace) -> int:
    """Let things happen to a group; return the exit code."""
    if "LD_PRELOAD" not in os.environ:
        # The library must be there when the server starts from which nodes are forked.
        folder = tempfile.mkdtemp(prefix="tidemark-blackbox-")
        library = nodes.preloaded(Path(folder))
        environment = {**os.environ, "LD_PRELOAD": library or ""}
        planted = os.environ.get("TIDEMARK_BLACKBOX_DEFECT")  # see `planted`
        module = ["tests.blackbox"] if planted is None else ["tests.blackbox.planted", planted]
        ended = subprocess.run([sys.executable, "-m", *module, *given.arguments], env=environment)
        shutil.rmtree(folder)
        return ended.returncode
    clock = SystemClock()
    began = clock.monotonic()
    with folder_on_disk() as folder:
        is_shimmed = bool(os.environ["LD_PRELOAD"])
        anomalies, recorder, happened = groups.run(folder, given.seed, given.events, is_shimmed, given.only)
        print("; ".join(happened))
        return said(anomalies, "group", recorder, clock.monotonic() - began)


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.blackbox", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    made = kinds.add_parser("programs")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--steps", type=int, default=10_000)
    made.add_argument("--programs", type=int, help="how many, in place of --steps")
    made.add_argument("--length", type=int, default=LENGTH, help="steps of one program")
    made.add_argument("--keep", default="", help="numbers of the steps that are run")
    made.add_argument("--whole", action="store_true", help="do not minimise")
    made.add_argument("--verbose", action="store_true")
    made = kinds.add_parser("histories")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--transactions", type=int, default=10_000, help="in all")
    made.add_argument("--kills", type=int, default=20, help="for so many transactions")
    made.add_argument("--history", type=int, default=3_000, help="transactions of one history")
    made.add_argument("--place", choices=("all", "threads", "server", "group"), default="all")
    made = kinds.add_parser("groups")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--events", type=int, default=6)
    made.add_argument("--only", choices=sorted(groups.EVENTS), help="nothing else happens")
    kinds.add_parser("calls")
    given = parser.parse_args(arguments)
    given.arguments = sys.argv[1:] if arguments is None else arguments
    if given.kind == "calls":
        print(calls.report())
        return 0
    return {"programs": run_programs, "histories": run_histories, "groups": run_groups}[given.kind](given)


if __name__ == "__main__":
    sys.exit(main())
