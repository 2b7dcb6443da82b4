"""`python -m tidemark.recovery.crash_harness`: the parts of the harness on a program of your own.

A program is two functions, named "module:function"; see `tidemark.recovery.crash_harness.program`. Exit code 1 at the
first broken promise, with the seed and the place that show it again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from tidemark.recovery.crash_harness.anomaly_loop import ANOMALIES, anomaly_loop
from tidemark.recovery.crash_harness.crash_states import STATES_PER_POINT, many_crash_states
from tidemark.recovery.crash_harness.kill_loop import LIFE_MS_MAX, kill_loop
from tidemark.recovery.crash_harness.pieces import run_pieces
from tidemark.recovery.crash_harness.power_loop import CALLS_MAX, power_loop
from tidemark.recovery.crash_harness.program import Violation, resolve

WHOLE_STATE = "tidemark.recovery.crash_harness.program:whole_state"


def _share(text: str) -> float:
    """Parse a share above 0 and at most 1: with no crash point no state would ever be judged."""
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is invalid; give more than 0 and at most 1")
    return share


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tidemark.recovery.crash_harness", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    states = parts.add_parser("states", help="what power losses may leave of recorded runs")
    states.add_argument("--distinct", type=int, default=2_000, help="different states to judge")
    states.add_argument("--jobs", type=int, default=0, help="processes, each with its own seeds; 0: this one")
    states.add_argument("--seed-step", type=int, default=1, help="step from one seed to the next")
    states.add_argument(
        "--piece", action="store_true", help="continue after a violation; print the whole report as JSON"
    )
    states.add_argument(
        "--per-point", type=int, default=STATES_PER_POINT, help="at most this many states of one crash point"
    )
    states.add_argument("--share", type=_share, default=1.0, help="share of the crash points, drawn by the seed")
    anomalies = parts.add_parser("anomalies", help="the n-th call of the disk goes wrong, for every n")
    anomalies.add_argument("--only", choices=sorted(ANOMALIES), action="append", help="this kind; may be repeated")
    anomalies.add_argument("--step", type=int, default=1, help="leave points out")
    kills = parts.add_parser("kills", help="SIGKILL at random moments on a real directory")
    kills.add_argument("directory", help="directory of the store; an existing one is continued")
    kills.add_argument("--kills", type=int, default=50)
    kills.add_argument("--life-ms-max", type=int, default=LIFE_MS_MAX)
    losses = parts.add_parser("losses", help="repeated power losses on one disk, with which the next life continues")
    losses.add_argument("--losses", type=int, default=50)
    losses.add_argument("--calls-max", type=int, default=CALLS_MAX, help="calls of the disk before a loss, at most")
    for part in (states, anomalies, kills, losses):
        part.add_argument("--work", required=True, help="program, as module:function")
        part.add_argument("--verify", default=WHOLE_STATE, help="its verification, as module:function")
        part.add_argument("--seed", type=int, default=1)
        part.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def _in_pieces(asked: argparse.Namespace) -> None:
    """Enumerate in processes and print a summary, one line of JSON. Raises: Violation if a process found one."""
    figures = run_pieces(asked.work, asked.verify, asked.seed, asked.distinct, asked.per_point, asked.share, asked.jobs)
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
    if figures["violations"]:
        raise Violation(figures["first_violation"])


def _run(asked: argparse.Namespace) -> list[dict[str, Any]]:
    def print_line(line: str) -> None:
        if not asked.json or asked.part == "states":
            sys.stderr.write(line + "\n")

    if asked.part == "kills":
        report = kill_loop(
            asked.work, asked.verify, asked.directory, asked.kills, asked.seed, asked.life_ms_max, print_line
        )
        return [report.__dict__]
    if asked.part == "states" and asked.jobs:
        _in_pieces(asked)
        return []
    work, verify = resolve(asked.work), resolve(asked.verify)
    if asked.part == "losses":
        return [power_loop(work, verify, asked.losses, asked.seed, asked.calls_max, print_line).__dict__]
    if asked.part == "states":
        states = many_crash_states(
            work,
            verify,
            asked.seed,
            asked.distinct,
            print_line,
            asked.per_point,
            asked.share,
            asked.seed_step,
            asked.piece,
        )
        found = states.to_dict()
        if not asked.piece:
            del found["digests"]
        return [found]
    names = asked.only or list(ANOMALIES)
    return [anomaly_loop(work, verify, name, asked.seed, asked.step).__dict__ for name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part and print its figures; return the exit code."""
    asked = command_line().parse_args(arguments)
    try:
        figures = _run(asked)
    except Violation as violation:
        sys.stderr.write(f"{violation}\n")
        return 1
    for each in figures:
        line = (
            json.dumps(each)
            if asked.json or getattr(asked, "piece", False)
            else ", ".join(f"{name} {value}" for name, value in each.items())
        )
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
