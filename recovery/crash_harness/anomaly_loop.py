"""The n-th call fails, for every n: the program runs again and again on a disk in memory, until a run meets no fault.

After each run these conditions must hold. The error is of a class that the fault may cause. The store is latched (every
call fails in the same way) or intact (its rows are right, and it accepts a commit). A restart in the same operating
system, one after a power loss, and one more after each show exactly the acknowledged state, plus at most the commits
under way.
"""

from __future__ import annotations

import errno
import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import Damaged, Error, InvariantBroken, OutcomeUnknown, StorageFull, StoreFailed
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import CrashPolicy, MemoryFiles, Personality
from tidemark.recovery.crash_harness.disks.order import OrderMonitor
from tidemark.recovery.crash_harness.program import (
    Ledger,
    PowerOff,
    Verify,
    Violation,
    Work,
    judge,
    judging,
    open_simulated,
    power_off,
    probe,
    probed,
)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


FAILED: tuple[type[BaseException], ...] = (StoreFailed, OutcomeUnknown)


@dataclass(frozen=True)
class Anomaly:
    """A kind of fault: the rule for its n-th point, and the errors a program may see from it."""

    name: str
    rule: Callable[[int], Rule]
    errors: tuple[type[BaseException], ...]
    personality: Personality = "clean"


ANOMALIES: dict[str, Anomaly] = {
    each.name: each
    for each in (
        Anomaly("write-error", lambda n: Rule("pwrite", nth=n, error=errno.EIO), FAILED),
        Anomaly("sync-error", lambda n: Rule("fdatasync", nth=n, error=errno.EIO), FAILED),
        Anomaly("lcp-directory-sync-error", lambda n: Rule("sync_directory", "lcp", nth=n, error=errno.EIO), FAILED),
        Anomaly("sync-error-reverting", lambda n: Rule("sync", nth=n, error=errno.EIO), FAILED, "reverted"),
        Anomaly("disk-full", lambda n: Rule("space", nth=n, error=errno.ENOSPC), (*FAILED, StorageFull)),
        Anomaly(
            "disk-full-for-good",
            lambda n: Rule("space", nth=n, once=False, error=errno.ENOSPC),
            (*FAILED, StorageFull),
        ),
        Anomaly("short-write", lambda n: Rule("pwrite", nth=n, short=100), ()),
        Anomaly("short-read", lambda n: Rule("pread", nth=n, short=8), ()),
        Anomaly("read-error", lambda n: Rule("pread", nth=n, error=errno.EIO), (*FAILED, Damaged)),
        Anomaly("interrupt", lambda n: Rule("*", nth=n, stall=_interrupt), (*FAILED, KeyboardInterrupt)),
        Anomaly("power-off", lambda n: Rule("*", nth=n, once=False, stall=power_off), (PowerOff,)),
    )
}
POLICIES: tuple[CrashPolicy, ...] = ("drop", "sectors", "torn", "keep", "growth")


@dataclass
class LoopReport:
    """Result of one loop: points are runs that met the fault."""

    anomaly: str
    seed: int
    points: int = 0
    restarts: int = 0
    seconds: float = 0.0


class _Run:
    """One run of the program with one plan, over all its reopenings."""

    def __init__(self, anomaly: Anomaly, seed: int, number: int) -> None:
        self.memory = MemoryFiles(personality=anomaly.personality)
        self.plan = Plan([anomaly.rule(number)])
        self.ledger = Ledger()
        self.stores: list[Any] = []
        self.number = number
        self._seed = seed

    def open_store(self, **options: Any) -> Any:
        files = MemoryFiles(self.memory.disk, self.memory.personality)
        db = open_simulated(OrderMonitor(FaultFiles(files, self.plan)), **options)
        self.stores.append(db)
        return db

    def go(self, work: Work) -> BaseException | None:
        """Run the program; return its error, if any."""
        try:
            work(self.open_store, self._seed, self.ledger)
        except (Error, KeyboardInterrupt, PowerOff) as error:
            return error
        return None


class _Check:
    """The conditions that must hold after a run."""

    def __init__(self, anomaly: Anomaly, verify: Verify, run: _Run, rng: random.Random) -> None:
        self._anomaly = anomaly
        self._verify = verify
        self._run = run
        self._rng = rng
        self.restarts = 0

    def _where(self, what: str) -> str:
        return f"anomaly {self._anomaly.name}, point {self._run.number}: {what}"

    def _fail(self, what: str) -> NoReturn:
        raise Violation(self._where(what))

    def all(self, error: BaseException | None) -> None:
        """Check all conditions. Raises: Violation."""
        self._error(error)
        run = self._run
        run.plan.is_over = True
        if error is None or not isinstance(error, PowerOff):
            self._store()
        self.restart(run.memory.kill(), "restart")
        for policy in (POLICIES[run.number % len(POLICIES)], "sectors"):
            self.restart(run.memory.crash(self._rng, policy), f"restart after a power loss ({policy})")

    def _error(self, error: BaseException | None) -> None:
        if error is None:
            return
        if isinstance(error, InvariantBroken) or not isinstance(error, self._anomaly.errors):
            self._fail(f"the program saw {type(error).__name__}: {error}")

    def _store(self) -> None:
        """Check that the store is latched or intact. Raises: Violation."""
        if not self._run.stores:
            return
        db = self._run.stores[-1]
        try:
            db.check_usable()
        except StoreFailed as first:
            self._latched(db, first)
            return
        found = self._verify(db, self._run.ledger)
        if found:
            self._fail(f"the store lives on and shows: {found[0]}")
        probe(db, self._run.number)
        if self._run.number not in probed(db):
            self._fail("the store lives on and does not show its commit")
        db.checkpoint()
        db.close()

    def _latched(self, db: Any, first: StoreFailed) -> None:
        for call in (db.tables, db.transaction, db.sync, db.checkpoint):
            try:
                call()
            except StoreFailed as again:
                if type(again) is not type(first):
                    self._fail(f"{type(first).__name__} first, then {type(again).__name__}")
            else:
                self._fail(f"{type(first).__name__}, and yet {call.__name__}() succeeds")
        try:
            db.close()
        except StoreFailed:
            return

    def restart(self, disk: MemoryFiles, what: str) -> None:
        """Check for the right state after a restart, and again after one more power loss. Raises: Violation."""
        self.restarts += 2
        db = self._restart(disk, what)
        with judging(self._where(f"{what}, a commit after it")):
            probe(db, -self._run.number)
        after = self._restart(disk.crash(self._rng, "drop"), f"{what}, a commit, power loss and restart")
        if -self._run.number not in probed(after):
            self._fail(f"{what}: a commit after it is lost at the next one")

    def _restart(self, disk: MemoryFiles, what: str) -> Any:
        opened = functools.partial(open_simulated, OrderMonitor(disk))
        return judge(opened, self._verify, self._run.ledger, self._where(what))


def anomaly_loop(work: Work, verify: Verify, anomaly: str | Anomaly, seed: int, step: int = 1) -> LoopReport:
    """Run the program with its 1st, 2nd, ... call of the kind failing, until a run meets no fault. step: from one tried
    call to the next.

    Raises: Violation at the first point with a wrong outcome.
    """
    kind = ANOMALIES[anomaly] if isinstance(anomaly, str) else anomaly
    clock = SystemClock()
    began = clock.monotonic()
    report = LoopReport(kind.name, seed)
    rng = random.Random(seed)
    for number in itertools.count(1, step):
        run = _Run(kind, seed, number)
        error = run.go(work)
        check = _Check(kind, verify, run, rng)
        check.all(error)
        report.restarts += check.restarts
        if not run.plan.fired:
            break
        report.points += 1
    report.seconds = clock.monotonic() - began
    return report
