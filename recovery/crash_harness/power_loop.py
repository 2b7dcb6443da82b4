"""Power losses under a program of several threads, again and again on the same disk in memory.

The n-th call that reaches the disk finds it without power, and so does every later call, in any thread. After all
threads have ended, part of the unsynced data is dropped, and the store is opened and verified. Everything that was
acknowledged must be there, whichever thread wrote it. The order monitor checks all calls.

The calls of a life may be counted only after it has acknowledged a number of lines, so that it does some work on any
machine.

The same seed gives the same work and the same losses, but not the same order of threads.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import Error
from tidemark.engine.base.options import Options
from tidemark.recovery.crash_harness.crash_states import POLICIES
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryDisk, MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor, OrderViolation
from tidemark.recovery.crash_harness.program import (
    OPEN_FILES,
    Ledger,
    PowerOff,
    Verify,
    Violation,
    Work,
    judge,
    power_off,
    resolve,
)

CALLS_MAX = 3_000
# One loss in four comes during restart and first work.
EARLY_SHARE = 0.25
EARLY_CALLS_MAX = 150


@dataclass
class PowerReport:
    """Result of a loop."""

    seed: int
    losses: int = 0
    ended: int = 0
    awaited: int = 0  # lines that had to be acknowledged before the calls to a loss were counted
    acknowledged: int = 0
    seconds: float = 0.0


class _Awaiting(Ledger):
    """The ledger of one life; it calls `then` after `lines` more lines have been acknowledged."""

    def __init__(self, ledger: Ledger, lines: int, then: Callable[[], object]) -> None:
        super().__init__()
        self.acknowledged = ledger.acknowledged
        self.under_way = ledger.under_way
        self._enough = len(ledger.acknowledged) + lines
        self._then = then
        self._is_enough = False
        self._turn = threading.Lock()
        self._look()

    def acknowledge(self, text: str) -> None:
        super().acknowledge(text)
        self._look()

    def _look(self) -> None:
        with self._turn:
            is_first = not self._is_enough and len(self.acknowledged) >= self._enough
            self._is_enough = self._is_enough or is_first
        if is_first:
            self._then()


def power_loop(
    work: Work,
    verify: Verify,
    losses: int,
    seed: int,
    calls_max: int = CALLS_MAX,
    print_line: Callable[[str], None] | None = None,
    lines_max: int = 0,
) -> PowerReport:
    """Run `work` on a disk that loses power after up to `calls_max` calls, and verify the restart after it.

    lines_max: calls of a life are counted after it has acknowledged up to this many lines, except for losses that are
    planned for restart and first work.

    If a program ends before the loss, its disk is verified after a power loss at its end, but not counted as a loss.
    Raises: Violation, with the seed and the number of the loss.
    """
    clock = SystemClock()
    began = clock.monotonic()
    rng = random.Random(seed)
    report = PowerReport(seed)
    ledger = Ledger()
    disk = MemoryFiles()
    excepthook = threading.excepthook
    # The loss also ends the store's own threads; do not report that.
    threading.excepthook = lambda thread: None if isinstance(thread.exc_value, PowerOff) else excepthook(thread)
    try:
        while report.losses < losses:
            disk = _lose(work, verify, disk, ledger, rng, report, (calls_max, lines_max))
            if print_line is not None:
                print_line(f"loss {report.losses}: {len(ledger.acknowledged)} lines acknowledged, all as promised")
    finally:
        threading.excepthook = excepthook
    report.acknowledged = len(ledger.acknowledged)
    report.seconds = clock.monotonic() - began
    return report


def _lose(
    work: Work,
    verify: Verify,
    disk: MemoryFiles,
    ledger: Ledger,
    rng: random.Random,
    report: PowerReport,
    most: tuple[int, int],
) -> MemoryFiles:
    """Run one life, verify the disk that it leaves, and return it. most: maximum numbers of calls and lines. Raises:
    Violation.
    """
    calls_max, lines_max = most
    is_early = rng.random() < EARLY_SHARE
    nth = rng.randrange(1, EARLY_CALLS_MAX if is_early else calls_max)
    lines = rng.randrange(lines_max) if lines_max and not is_early else 0
    where = f"power loop, seed {report.seed}, loss {report.losses + 1} at call {nth} after {lines} lines"
    plan = Plan()
    report.awaited += lines
    life = _Awaiting(ledger, lines, lambda: plan.add(Rule("*", nth=nth, once=False, stall=power_off)))
    try:
        work(_opener(disk.disk, plan), report.seed + report.losses + report.ended, life)
        report.ended += 1
    except PowerOff:
        report.losses += 1
    except (Error, OrderViolation, Violation) as error:
        # After the loss a thread may meet errors that the end of another thread has caused.
        if not plan.fired or isinstance(error, OrderViolation | Violation):
            raise Violation(f"{where}: {type(error).__name__}: {error}") from error
        report.losses += 1
    left = disk.crash(rng, rng.choice(POLICIES))
    judge(functools.partial(_opener(left.disk, Plan()), data_memory="64 MiB"), verify, ledger, where, closes=True)
    return left


def _opener(disk: MemoryDisk, plan: Plan) -> Callable[..., Any]:
    def open_store(**options: Any) -> Any:
        watched = OrderMonitor(FaultFiles(MemoryFiles(disk), plan))
        parsed = Options.from_keywords({**options, "background": False})
        return resolve(OPEN_FILES)(watched, parsed, SystemClock(), None, None)

    return open_store
