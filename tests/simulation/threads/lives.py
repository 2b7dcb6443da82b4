"""`python -m tests.simulation.threads`: lives of threads that take turns by a seed, one life for each seed.

Each life runs in a process forked for it from one that has loaded every kernel's code. So all lives begin alike, and
nothing of a life outlasts it. `start` runs that parent process with the kernel door open and with fixed hash seeds.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from tests.seeds import seed_range
from tests.simulation.threads.actors import ALL
from tests.simulation.threads.life import Found, Life, Plan
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.jit import registry
from tidemark.recovery.crash_harness.program import OPEN_FILES, resolve

MODULE = "tests.simulation.threads.lives"
REPORT_EVERY_LIVES = 50  # lives between two progress lines
LIVES_SHOWN_MAX = 10  # with no more seeds than this, each life has a line of its own
NO_WORD = "the process of this life ended without a word; see what it wrote"
HANG_SECONDS = 1_200  # real time: the thread that has the turn waits for a lock that is no point


@dataclass
class ScheduleReport:
    """Results of several lives."""

    lives: int = 0
    findings: list[str] = field(default_factory=list)
    points: int = 0
    switches: int = 0
    acknowledged: int = 0
    seconds: float = 0.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run."""
    parser.add_argument("--seeds", default="0:100", help="A:B, from A up to but without B")
    parser.add_argument(
        "--rate", type=float, default=0.02, help="share of Python's looks at arena words that are points"
    )
    parser.add_argument(
        "--line-rate", type=float, help="share of lines, in modules that follow what others drop; drawn by the seed"
    )
    parser.add_argument("--actors", default=",".join(sorted(ALL)), help="threads beside the writers, by name")
    storage = parser.add_mutually_exclusive_group()
    storage.add_argument("--memory", dest="storage", action="store_const", const="memory", help="no disk columns")
    storage.add_argument("--disk", dest="storage", action="store_const", const="disk", help="some columns on pages")
    parser.add_argument("--trace", action="store_true", help="print each change of turns")
    parser.add_argument("--jobs", type=int, default=1, help="lives at a time")
    parser.add_argument("--first", action="store_true", help="end at the first finding")


def start(arguments: Sequence[str]) -> int:
    """Run this module in a process of its own with these arguments; return its exit code."""
    environment = {**os.environ, "TIDEMARK_KERNEL_DOOR": "1", "PYTHONHASHSEED": "0"}
    return subprocess.call([sys.executable, "-m", MODULE, *arguments], env=environment)


def run_lives(
    seeds: Sequence[int], plan: Plan, jobs: int, on_result: Callable[[Found], bool], say: Callable[[str], None]
) -> None:
    """Run a life for each seed, `jobs` at a time; `on_result` gets each result and returns whether to continue."""
    context = multiprocessing.get_context("fork")
    ahead = iter(seeds)
    running: dict[Any, tuple[int, Any]] = {}
    is_over = False
    while True:
        while len(running) < jobs and not is_over:
            seed = next(ahead, None)
            if seed is None:
                break
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_live, args=(seed, plan, there, say))
            process.start()
            there.close()
            running[here] = (seed, process)
        if not running:
            return
        for ready in wait(list(running)):
            seed, process = running.pop(ready)
            found = _received(ready, seed)
            process.join()
            is_over = not on_result(found) or is_over


def _received(connection: Any, seed: int) -> Found:
    try:
        found: Found = connection.recv()
    except EOFError:
        return Found(seed, NO_WORD)
    return found


def _live(seed: int, plan: Plan, on_result: Connection, say: Callable[[str], None]) -> None:
    """Run one life, in its process."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=2)

    def end(found: Found) -> NoReturn:
        on_result.send(found)
        os._exit(1)

    on_result.send(Life(seed, plan, end, say).run())


def _load_everything() -> None:
    """Load and compile what lives would load and compile one by one."""
    resolve(OPEN_FILES)
    registry.import_all()
    registry.compile_declared()
    Life.warm()
    gc.collect()
    gc.freeze()  # collections in lives need not look at it


def _summary(found: Found) -> str:
    return f"seed {found.seed}: {found.points} points, {found.switches} turns, trace {found.trace}"


def _repeating(seed: int, asked: argparse.Namespace) -> str:
    options = [f"--seeds {seed}:{seed + 1}"]
    if asked.rate != 0.02:
        options.append(f"--rate {asked.rate}")
    if asked.line_rate is not None:
        options.append(f"--line-rate {asked.line_rate}")
    if set(asked.actors.split(",")) != ALL:
        options.append(f"--actors {asked.actors}")
    if asked.storage:
        options.append(f"--{asked.storage}")
    return f"python -m tests.simulation.threads {' '.join(options)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run lives; prints each finding and the figures. The exit code is 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.threads", description=__doc__)
    add_options(parser)
    asked = parser.parse_args(arguments)
    actors = frozenset(filter(None, asked.actors.split(",")))
    if actors - ALL:
        parser.error(f"no such actors: {', '.join(sorted(actors - ALL))}; there are {', '.join(sorted(ALL))}")
    plan = Plan(actors, asked.storage, asked.rate, asked.line_rate, asked.trace)
    seeds, report, clock = seed_range(asked.seeds), ScheduleReport(), SystemClock()
    began = clock.monotonic()

    def say(line: str) -> None:
        sys.stderr.write(line + "\n")

    def on_result(found: Found) -> bool:
        report.lives += 1
        report.points += found.points
        report.switches += found.switches
        report.acknowledged += found.acknowledged
        if found.error:
            report.findings.append(found.error)
            say(f"{_summary(found)}\n{found.error}\nagain: {_repeating(found.seed, asked)}")
        elif report.lives % REPORT_EVERY_LIVES == 0:
            say(f"{report.lives} lives, {len(report.findings)} findings")
        elif len(seeds) <= LIVES_SHOWN_MAX or asked.trace:
            say(f"{_summary(found)}, no finding")
        return not (found.error and asked.first)

    _load_everything()
    run_lives(seeds, plan, asked.jobs, on_result, say)
    report.seconds = round(clock.monotonic() - began, 1)
    figures = {**report.__dict__, "findings": len(report.findings)}
    sys.stdout.write(", ".join(f"{name} {value}" for name, value in figures.items()) + "\n")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
