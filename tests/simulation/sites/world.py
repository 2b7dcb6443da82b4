"""One run: sites work under faults, the faults end, everything in flight arrives, and the promises are checked.

Everything is drawn from one `random.Random` in the order of virtual time, so a seed repeats a run. The digest covers
everything that happened and everything that is left.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from tests.simulation.sites.plan import Faults, Plan, Tally, plan_of
from tests.simulation.sites.promises import check_promises, left_of
from tests.simulation.sites.site import SimulatedSite
from tests.simulation.sites.timeline import Timeline
from tests.simulation.sites.wires import Link
from tests.simulation.sites.work import Work
from tidemark.engine.base.errors import PeerTimeout, Retryable
from tidemark.recovery.crash_harness.program import Violation

EPOCH_OF_CLOCKS = 1_700_000_000.0
QUIET_ROUNDS_MAX = 60
QUIET_SECONDS = 0.25


def _always() -> bool:
    return True


class BrokenPromise(Violation):
    """A violation; its second argument is the trace, line by line."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass
class Report:
    """Figures of a run that kept every promise."""

    seed: int
    function: str
    topology: str
    digest: str
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)


class World:
    """Sites, links and time."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(f"run {plan.seed}")
        self.timeline = Timeline()
        self.epoch_of_clocks = EPOCH_OF_CLOCKS
        self.tally = Tally()
        self.faults = Faults()
        self.has_faults = False
        self.is_working = False
        self.trace: list[str] = []
        self._moment = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self.sites = [SimulatedSite(self, number) for number in range(len(plan.sites))]
        for site in self.sites:
            site.work = Work(self, site)
        self.links = [Link(self, self.sites[source], self.sites[replica]) for source, replica in plan.channels]

    # --- trace ------------------------------------------------------------------------------------
    def note(self, text: str) -> None:
        """Add an event to trace and digest."""
        line = f"{self.timeline.now:.4f} {text}"
        self.trace.append(line)
        self._digest.update(line.encode())

    def next_moment(self) -> int:
        """Return a number greater than all before in this run."""
        self._moment += 1
        return self._moment

    def break_promise(self, text: str) -> NoReturn:
        """Raise Violation, with what repeats it."""
        plan = self.plan
        where = f"seed {plan.seed} ({plan.case.name}, {plan.topology}) at {self.timeline.now:.3f} s"
        raise BrokenPromise(f"{where}: {text}", self.trace)

    # --- the run ----------------------------------------------------------------------------------
    def run(self) -> Report:
        """Run it all. Raises: Violation."""
        for site in self.sites:
            site.first_open()
        for link in self.links:
            link.tick()
        self.begin()
        self.is_working = True
        self.has_faults, self.faults = True, self.plan.faults
        self.run_until(self.timeline.now + self.plan.work_seconds)
        self.is_working = self.has_faults = False
        self.faults = Faults()
        for link in self.links:
            link.is_cut = False
        for site in self.sites:
            site.heal()
        self.settle()
        self._await_reach()
        check_promises(self)
        return self._report()

    def run_until(self, moment: float) -> None:
        while self.timeline.step(moment):
            pass

    def begin(self) -> None:
        plan = self.plan
        for site in self.sites:
            calls: list[tuple[float, Callable[[], None], Callable[[], bool]]] = [
                (plan.commit_every, partial(site.act, site.work.commit), lambda: self.is_working),
                (plan.epoch_every, partial(self._close_epoch, site, False), _always),
                (plan.gcp_every, partial(self._close_epoch, site, True), _always),
                (plan.lcp_every, partial(site.act, partial(self._local_checkpoint, site)), _always),
                (plan.faults.crash_every, site.crash, lambda: self.has_faults),
                (plan.faults.disk_every, partial(self._disk_fault, site), lambda: self.has_faults),
            ]
            for mean, call, wanted in calls:
                self._often(mean, call, wanted)
        for link in self.links:
            self._often(plan.faults.cut_every, partial(self.cut, link), lambda: self.has_faults)
            self._often(plan.faults.reset_every, link.drop, lambda: self.has_faults)
            self._often(plan.faults.channel_reset_every, link.reset_channel, lambda: self.has_faults)

    def _often(self, mean: float, call: Callable[[], None], wanted: Callable[[], bool]) -> None:
        """Call again and again, at this mean interval in seconds; never for 0."""
        if not mean:
            return

        def due() -> None:
            if wanted():
                call()
            again()

        def again() -> None:
            self.timeline.after(mean * self.rng.uniform(0.3, 1.7), due)

        again()

    def _close_epoch(self, site: SimulatedSite, is_gci: bool) -> None:
        if site.db is not None:
            clockwork = site.db.parts.clockwork
            site.act(lambda: self._durably(site, clockwork.advance_gci if is_gci else clockwork.advance_epoch))

    def _local_checkpoint(self, site: SimulatedSite) -> None:
        self._durably(site, site.db.checkpoint)

    def _durably(self, site: SimulatedSite, work: Callable[[], Any]) -> None:
        """Run work that makes everything committed durable, even if the rest of the work fails."""
        try:
            work()
        except Retryable as error:
            self.tally.add(f"work of stores put off by {type(error).__name__}")
            site.db.parts.store.log.flush()
        site.is_durable_now()

    def _disk_fault(self, site: SimulatedSite) -> None:
        if site.is_up:
            site.disk_fault()

    def cut(self, link: Link) -> None:
        """Let the link carry nothing for a while; neither side is informed."""
        if link.is_cut:
            return
        link.is_cut = True
        self.note(f"{link.name} cut")
        self.tally.add("cuts")
        self.timeline.after(self.rng.uniform(0.05, 0.6), lambda: setattr(link, "is_cut", False))

    # --- the end ----------------------------------------------------------------------------------
    def settle(self) -> None:
        """Wait until nothing changes any more."""
        still: Any = None
        for _ in range(QUIET_ROUNDS_MAX):
            for site in self.sites:
                self._close_epoch(site, False)
            self.run_until(self.timeline.now + QUIET_SECONDS + self.plan.delay[1])
            now = [self._standing(site) for site in self.sites]
            if None not in now and now == still and all(map(self._is_applied, self.links)):
                self.note("quiet")
                return
            still = now
        self.break_promise(f"no quiet after {QUIET_ROUNDS_MAX * QUIET_SECONDS:.0f} s: {still}, {self.trace[-6:]}")

    def _await_reach(self) -> None:
        """Every site must learn that what it logged is applied at all sites it reaches, without waiting for others."""
        late = ""
        for _ in range(QUIET_ROUNDS_MAX):
            try:
                for site in self.sites:
                    others = [other + 1 for other in self.plan.reached(site.number) - {site.number}]
                    for at in (sorted(others), None) if others else ():
                        site.db.wait_applied(site.db.binlog.newest_epoch, 0, at)
                    known = set(site.db.endpoint.reach.heard)
                    if known != set(others):
                        self.break_promise(f"{site.name} has heard of servers {known}, {others} hear of it")
                return
            except PeerTimeout as error:
                late = error.message
            self.run_until(self.timeline.now + QUIET_SECONDS + self.plan.delay[1])
        self.break_promise(f"not reported: {late}")

    def _standing(self, site: SimulatedSite) -> Any:
        """Return the end of a site's binlog and the applied epochs, None while it is down or has more to log."""
        if site.db is None or site.db.parts.store.epochs.has_commits:
            return None
        return site.db.binlog.writer.end, [site.seen(source) for source in site.channels]

    def _is_applied(self, link: Link) -> bool:
        channel = link.replica.channels.get(link.source.number)
        if channel is None or link.source.db is None:
            return False
        seen, relay = link.replica.seen(link.source.number), channel.replica.relay
        # After a reset that kept the position, the relay log stays empty until the source has more.
        applied = next((row.end for row in channel.positions.rows() if row.server_id == link.source.server_id), None)
        end = relay.durable or applied
        is_received = end is not None and tuple(end) == tuple(link.source.db.binlog.writer.end)
        return is_received and seen > 0 and relay.epoch <= seen

    def _report(self) -> Report:
        for site in self.sites:
            self._digest.update(repr(left_of(site)).encode())
        return Report(
            self.plan.seed,
            self.plan.case.name,
            self.plan.topology,
            self._digest.hexdigest(),
            self.timeline.now,
            dict(sorted(self.tally.counts.items())),
        )


def run_seed(seed: int, names: Sequence[str] = (), **changed: Any) -> Report:
    """Run a seed. names: functions to choose from. changed: fields of its plan. Raises: Violation."""
    world = World(plan_of(seed, names, **changed))
    logger = logging.getLogger("tidemark")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # crashing sites log errors
    try:
        return world.run()
    finally:
        logger.setLevel(level)
