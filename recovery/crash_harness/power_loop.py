"""Power losses under a program of several threads, on disks in memory: again and again on the same disk.

The n-th call that reaches the disk finds it without power, and so does every call after it, in whatever thread. When all
threads have ended, part of what no sync had covered is gone, and the store is opened and verified. What was acknowledged
has been durable by then, whoever did the writing. The order monitor watches all the while.

The same seed draws the same work and the same losses; which thread is first is not drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.clock import SystemClock
from engine.errors import Error
from engine.file_doubles.faults import FaultFiles, Plan, Rule
from engine.file_doubles.memory import MemoryFiles
from engine.file_doubles.order import OrderMonitor, OrderViolation
from engine.options import Options
from recovery.crash_harness.crash_states import POLICIES
from recovery.crash_harness.program import OPEN_FILES, Ledger, PowerOff, Verify, Violation, Work, power_off, resolve

CALLS_MAX = 3_000
# One loss in four falls into restart and first work.
EARLY_SHARE = 0.25
EARLY_CALLS_MAX = 150


@dataclass
class PowerReport:
    """What a loop saw."""

    seed: int
    losses: int = 0
    ended: int = 0
    acknowledged: int = 0
    seconds: float = 0.0


def power_loop(
    work: Work,
    verify: Verify,
    losses: int,
    seed: int,
    calls_max: int = CALLS_MAX,
    say: Callable[[str], None] | None = None,
) -> PowerReport:
    """Run `work` on a disk that loses power after up to `calls_max` calls, and verify what a restart makes of it.

    A program that comes to its end before is verified as it left the disk, and not counted as a loss. Raises: Violation,
    with the seed and the number of the loss.
    """
    clock = SystemClock()
    began = clock.monotonic()
    rng = random.Random(seed)
    report = PowerReport(seed)
    ledger = Ledger()
    disk = MemoryFiles()
    while report.losses < losses:
        is_early = rng.random() < EARLY_SHARE
        nth = rng.randrange(1, EARLY_CALLS_MAX if is_early else calls_max)
        where = f"power loop, seed {seed}, loss {report.losses + 1} at call {nth}"
        plan = Plan([Rule("*", nth=nth, once=False, stall=power_off)])
        try:
            work(_opener(MemoryFiles(disk.disk), plan), seed + report.losses + report.ended, ledger)
            report.ended += 1
        except PowerOff:
            report.losses += 1
        except (Error, OrderViolation, Violation) as error:
            if not plan.fired:
                raise Violation(f"{where}: {type(error).__name__}: {error}") from error
            report.losses += 1
        disk = disk.crash(rng, rng.choice(POLICIES))
        _prove(disk, verify, ledger, where)
        if say is not None:
            say(f"{where}: {len(ledger.acknowledged)} lines acknowledged, all as promised")
    report.acknowledged = len(ledger.acknowledged)
    report.seconds = clock.monotonic() - began
    return report


def _opener(files: MemoryFiles, plan: Plan) -> Callable[..., Any]:
    def open_store(**options: Any) -> Any:
        watched = OrderMonitor(FaultFiles(files, plan))
        parsed = Options.from_keywords({**options, "background": False})
        return resolve(OPEN_FILES)(watched, parsed, SystemClock(), None, None)

    return open_store


def _prove(disk: MemoryFiles, verify: Verify, ledger: Ledger, where: str) -> None:
    """Restart and verify. Raises: Violation."""
    try:
        db = _opener(MemoryFiles(disk.disk), Plan())(data_memory="64 MiB")
        try:
            found = verify(db, ledger)
        finally:
            db.close()
    except (Error, OrderViolation) as error:
        raise Violation(f"{where}: {type(error).__name__}: {error}") from error
    if found:
        raise Violation(f"{where}: {found[0]}")
