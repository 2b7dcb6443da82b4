"""Enumerations in pieces: several processes at a time, each with its own seeds; their figures are added up.

A piece is `python -m tidemark.recovery.crash_harness states --piece`: it continues after a seed with a violation, and
ends by printing its whole report as JSON. States are distinguished by content, also across pieces.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tidemark.engine.base.clock import SystemClock
from tidemark.recovery.crash_harness.crash_states import StatesReport

NUMBERS = ("points", "judged", "kills", "failed_syncs", "restarts", "second_restarts", "interrupted", "checks")


def piece_command(
    program: str, verify: str, seeds: tuple[int, int], distinct: int, per_point: int, share: float
) -> list[str]:
    """Return the command of one piece. seeds: the first one, and the step to the next."""
    named = {
        "--work": program,
        "--verify": verify,
        "--seed": seeds[0],
        "--seed-step": seeds[1],
        "--distinct": distinct,
        "--per-point": per_point,
        "--share": share,
    }
    given = [str(part) for pair in named.items() for part in pair]
    return [sys.executable, "-m", "tidemark.recovery.crash_harness", "states", "--piece", *given]


def merge(reports: Sequence[dict[str, Any]]) -> StatesReport:
    whole = StatesReport()
    for each in reports:
        whole.seeds += each["seeds"]
        whole.violations += each["violations"]
        whole.digests |= set(each["digests"])
        for name in NUMBERS:
            setattr(whole, name, getattr(whole, name) + each[name])
        whole.places.update(each["places"])
        for name, value in each["figures"].items():
            whole.figures[name] = whole.figures.get(name, 0) + value
    whole.seeds.sort()
    return whole


def summary(program: str, report: StatesReport) -> dict[str, Any]:
    order = sum("OrderViolation" in violation for violation in report.violations)
    return {
        "program": program,
        "seeds": report.seeds,
        "states": report.distinct,
        **{name: getattr(report, name) for name in NUMBERS},
        "violations": len(report.violations),
        "order_violations": order,
        "first_violation": report.violations[0] if report.violations else None,
        **report.figures,
        "seconds": round(report.seconds, 1),
        "states_per_second": round(report.distinct / max(report.seconds, 1e-9), 1),
    }


def run_pieces(
    program: str, verify: str, seed: int, distinct: int, per_point: int, share: float, jobs: int
) -> dict[str, Any]:
    """Enumerate one program in `jobs` processes, each until it has judged its part of the states; return the summary.

    Raises: CalledProcessError if a piece ended without its report.
    """
    clock = SystemClock()
    began = clock.monotonic()
    each = -(-distinct // jobs)
    commands = [piece_command(program, verify, (seed + job, jobs), each, per_point, share) for job in range(jobs)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    reports = []
    try:
        for process, command in zip(running, commands, strict=True):
            output, _ = process.communicate()
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, command)
            reports.append(json.loads(output))
    finally:
        for process in running:
            process.kill()
            process.wait()
    report = merge(reports)
    report.seconds = clock.monotonic() - began
    return summary(program, report)
