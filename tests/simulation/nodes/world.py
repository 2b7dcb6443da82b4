"""One run: clients at all nodes, faults, the end of the faults, and the checks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from tests.simulation.nodes.node import STORE, SimulatedNode
from tests.simulation.nodes.plan import Faults, Plan, plan_of
from tests.simulation.nodes.promises import Promises
from tests.simulation.sites.timeline import Timeline
from tidemark.replication.node_group.messages import (
    Acknowledge,
    Action,
    Conflict,
    EpochClosed,
    Fail,
    Gone,
    Leave,
    Left,
    LogGrew,
    Lost,
    Message,
    Open,
    ReadWaits,
    Ready,
    Received,
    Send,
    Shared,
)
from tidemark.replication.node_group.view import ARBITRATOR, View, first_view

LIVE_SECONDS = 12.0  # true time from the end of all faults until the group must be whole and take commits
TAKEOVER_SECONDS = 3.0  # the same from the death of a node
SLOW_SECONDS = 0.8  # longest delay of a late message
PEACE_SECONDS = 0.6
READ_POLL_SECONDS = 0.02
TRACE_LINES = 2_000


class BrokenPromise(AssertionError):
    """A promise was broken; the message names seed and moment, `trace` has what came before."""

    def __init__(self, text: str, trace: list[str]) -> None:
        super().__init__(text)
        self.trace = trace


@dataclass(frozen=True)
class Report:
    """Result of a seed; two runs of it are equal if their digests are."""

    seed: int
    digest: str
    seconds: float
    events: int
    counts: dict[str, int]


class World:
    """Nodes, links and clients of one site."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(f"world of views {plan.seed}")
        self.timeline = Timeline()
        self.arbitrator = "arbitrator" if plan.has_arbitrator else ""
        self.faults = Faults()
        self.trace: list[str] = []
        self.counts: dict[str, int] = {}
        self.events = 0
        self.promises = Promises(self)
        numbers = [*([ARBITRATOR] if plan.has_arbitrator else []), *range(1, plan.nodes + 1)]
        self.sites = {number: SimulatedNode(self, number) for number in numbers}
        self.nodes = {number: each for number, each in self.sites.items() if number != ARBITRATOR}
        self.cut: dict[tuple[int, int], float] = {}
        self._payload = 0
        self._digest = hashlib.blake2b(digest_size=8)
        self.is_working = False
        self._has_lost_disk = False
        self.kept_down: set[int] = set()

    # --- trace ------------------------------------------------------------------------------------
    def note(self, what: str, node: int, more: object = "") -> None:
        """Add an event to counts, trace and digest."""
        line = f"{self.timeline.now:.4f} {node} {what} {more}"
        self.counts[what] = self.counts.get(what, 0) + 1
        self.trace.append(line)
        if len(self.trace) > TRACE_LINES:
            del self.trace[: TRACE_LINES // 2]
        self._digest.update(line.encode())

    def break_promise(self, text: str) -> NoReturn:
        """Raises: BrokenPromise."""
        plan = self.plan
        where = f"seed {plan.seed} ({plan.nodes} nodes{', arbitrator' * plan.has_arbitrator})"
        raise BrokenPromise(f"{where} at {self.timeline.now:.3f} s: {text}", self.trace)

    # --- the run ----------------------------------------------------------------------------------
    def run(self) -> Report:
        """Run it all. Raises: BrokenPromise."""
        plan, timeline = self.plan, self.timeline
        if plan.has_arbitrator:
            arbitrator = self.sites[ARBITRATOR]
            arbitrator.start()
            arbitrator.begin(first_view(self.arbitrator))
        for each in self.nodes.values():
            each.set_rate(self.rng.uniform(*plan.rates))
            each.start()
        for each in list(self.nodes.values())[: plan.firsts]:
            each.do(each.node.make_group(each.now))  # type: ignore[union-attr]
        self._schedule()
        self.run_until(timeline.now + PEACE_SECONDS)  # without faults, so that most runs begin with a whole group
        self.is_working, self.faults = True, plan.faults
        self.run_until(timeline.now + plan.work_seconds)
        self.is_working, self.faults = False, Faults()
        self._heal()
        self._check_alive(LIVE_SECONDS)
        if self.rng.random() < 0.3:
            self.lose_one()
        return Report(plan.seed, self._digest.hexdigest(), timeline.now, self.events, dict(sorted(self.counts.items())))

    def run_until(self, moment: float) -> None:
        while self.timeline.step(moment):
            pass

    def _schedule(self) -> None:
        faults = self.plan.faults
        calls: list[tuple[float, Callable[[], None], bool]] = [
            (self.plan.commit_every, self.commit, False),
            (self.plan.read_every, self._read, False),
            (self.plan.epoch_every, self._close_epochs, False),
            (0.03, self._joiners, False),
            (faults.crash_every, self._crash_one, True),
            (faults.site_every, self.crash_all, True),
            (faults.arbitrator_every, self._crash_arbitrator, True),
            (faults.split_every, self._split, True),
            (faults.flap_every, self._flap, True),
            (faults.stall_every, self._stall, True),
            (faults.pause_every, self._pause, True),
            (faults.leave_every, self._leave, True),
            (faults.full_every, self._fill, True),
            (0.5 if self.plan.rates[0] < 1 else 0.0, self._change_rates, False),
        ]
        for mean, call, is_fault in calls:
            if mean:
                self._often(mean, call, is_fault)

    def _often(self, mean: float, call: Callable[[], None], is_fault: bool) -> None:
        def due() -> None:
            if self.is_working or not is_fault:
                call()
            self.timeline.after(mean * self.rng.uniform(0.3, 1.7), due)

        self.timeline.after(mean * self.rng.uniform(0.3, 1.7), due)

    # --- links ------------------------------------------------------------------------------------
    def act(self, node: SimulatedNode, action: Action) -> None:
        """Carry out an action of a machine."""
        kind = type(action)
        if kind is Send:
            self._send(node.number, action.to, action.message)  # type: ignore[union-attr]
        elif kind is Acknowledge:
            self.promises.check_acknowledged(node, action.sequence)  # type: ignore[union-attr]
        elif kind is Shared:
            if self.plan.is_sharing:
                self.promises.check_shared(node, action.sequence)  # type: ignore[union-attr]
        elif isinstance(action, Open):
            self._opened(node, action.view)
        elif isinstance(action, (Lost, Left)):
            self.note(kind.__name__, node.number, action.view.number)
            self._again(node)
        elif isinstance(action, (Fail, Conflict)):
            self.break_promise(f"node {node.number} fails: {action.reason}")

    def _again(self, node: SimulatedNode) -> None:
        """End the process, and start another one later."""
        life = node.incarnation

        def end() -> None:
            if node.incarnation == life:
                node.crash()
                self.timeline.after(self.rng.uniform(0.02, 0.3), lambda: self._start(node))

        self.timeline.after(0.0, end)

    def _start(self, node: SimulatedNode) -> None:
        if node.number not in self.kept_down:
            node.start()

    def _send(self, sender: int, to: int, message: Message) -> None:
        r, faults = self.rng, self.faults
        if to not in self.sites or self.cut.get((sender, to), 0.0) > self.timeline.now:
            return
        draw = r.random()
        if draw < faults.lost:
            return
        low, high = self.plan.delay
        delay = low + (high - low) * r.random()
        if faults.late and r.random() < faults.late:
            delay += r.choice((0.05, 0.5, SLOW_SECONDS)) * r.random()
        self._arrive(delay, sender, to, message)
        if draw > 1 - faults.doubled:
            self._arrive(delay + r.choice((0.0, 0.02, 0.6)) * r.random(), sender, to, message)

    def _arrive(self, delay: float, sender: int, to: int, message: Message) -> None:
        def arrive() -> None:
            self.events += 1
            target = self.sites[to]
            if target.machine is not None:
                target.step(Received(sender, STORE, message))

        self.timeline.after(delay, arrive)

    # --- clients ----------------------------------------------------------------------------------
    def commit(self) -> None:
        at = self.rng.choice(list(self.nodes.values()))
        if at.node is None:
            return
        primary = self.nodes.get(at.node.view.primary)
        if primary is None or primary.node is None or not primary.node.may_commit():
            return
        if primary is not at and self.cut.get((at.number, primary.number), 0.0) > self.timeline.now:
            return
        if primary.refuses():
            return
        self._payload += 1
        primary.log.append(primary.epoch, self._payload)
        primary.step(LogGrew())  # groups are sent while the primary's own sync runs

    def _read(self) -> None:
        """Read the rows now; show them when every member has them, if the lease, asked for after that, holds."""
        at = self.rng.choice(list(self.nodes.values()))
        if at.node is None:
            return
        sequence, chain = self.promises.end
        view = at.node.reads_in()
        if not view:
            return
        applied, life = at.log.entries[: at.log.applied], at.incarnation
        if at.number == at.node.view.primary:
            applied = list(at.log.entries)  # a commit is visible at its node before it is sent
        awaited = len(applied), 0 if self.plan.is_sharing else len(applied)

        def shown() -> None:
            if at.paused_until > self.timeline.now:
                self.timeline.after(at.paused_until - self.timeline.now, shown)
            elif at.incarnation != life or at.node is None or at.node.reads_in() != view:
                return
            elif not at.node.is_held(*awaited):
                at.step(ReadWaits(*awaited))
                self.timeline.after(READ_POLL_SECONDS, shown)
            elif at.incarnation == life and at.node is not None and at.node.may_show(view, at.now):
                self.counts["reads"] = self.counts.get("reads", 0) + 1
                self.promises.check_read(at, sequence, chain, applied)

        self.timeline.after(self.rng.choice((0.0, 0.001, 0.05)), shown)

    def _opened(self, node: SimulatedNode, view: View) -> None:
        if node.number == view.primary:
            self.promises.check_open(node, view)
            self.note("open", node.number, (view.number, sorted(view.numbers)))
            node.epoch = node.log.at(node.log.last).epoch + 1

    def _close_epochs(self) -> None:
        for each in self.nodes.values():
            if each.node is not None and each.node.may_commit() and each.log.at(each.log.last).epoch == each.epoch:
                each.epoch += 1
                each.step(EpochClosed(each.epoch - 1, each.log.last))

    def _joiners(self) -> None:
        for each in self.nodes.values():
            node = each.node
            if node is not None and node.has_caught_up() and not node.is_ready:
                self._local_checkpoint(each, node.view.number)

    def _local_checkpoint(self, at: SimulatedNode, view: int) -> None:
        life = at.incarnation

        def done() -> None:
            if at.incarnation == life and at.is_full:
                self.timeline.after(0.1, done)
            elif at.incarnation == life:
                at.step(Ready(view))

        self.timeline.after(self.rng.uniform(0.005, 0.05), done)

    # --- faults -----------------------------------------------------------------------------------
    def _any(self) -> SimulatedNode:
        return self.rng.choice(list(self.nodes.values()))

    def crash(self, node: SimulatedNode, is_heard: bool) -> None:
        if node.machine is None:
            return
        node.crash()
        self.timeline.after(self.rng.choice((0.02, 0.2, 1.5)) * self.rng.uniform(0.5, 1.5), lambda: self._start(node))
        if is_heard:
            self.timeline.after(self.plan.delay[1], lambda: self._refuse(node))

    def _refuse(self, node: SimulatedNode) -> None:
        if node.machine is None:
            for each in self.nodes.values():
                if each is not node and self.cut.get((node.number, each.number), 0.0) <= self.timeline.now:
                    each.step(Gone(node.number))

    def _crash_one(self) -> None:
        node = self._any()
        self.crash(node, self.rng.random() < self.faults.refused)
        view = self.promises.newest
        if self.faults.disk_lost and not self._has_lost_disk and node.machine is None and view is not None:
            # One copy less: the others have everything, and are enough for a quorum.
            if self._can_go_on(view, node.number):
                self._has_lost_disk = True
                node.lose_disk()
                self.note("disk lost", node.number)

    def _can_go_on(self, view: View, without: int) -> bool:
        """Whether voters with the newest view on disk are enough for the next one, and include a member."""
        there = {
            number
            for number in view.voters - {without}
            if (record := self.sites[number].record) is not None
            and (number == ARBITRATOR or (record.is_member and record.view == view))
        }
        return len(there) >= view.quorum and bool(there & view.numbers)

    def crash_all(self) -> None:
        for each in self.sites.values():
            self.crash(each, False)

    def _crash_arbitrator(self) -> None:
        if not self.plan.has_arbitrator:
            return
        arbitrator = self.sites[ARBITRATOR]
        self.crash(arbitrator, False)
        if self.faults.arbitrator_disk_lost and self.rng.random() < 0.5:
            arbitrator.lose_disk()
            self.note("disk lost", ARBITRATOR)

    def _split(self) -> None:
        """Cut the links between two parts of the group, in both directions or in one."""
        numbers = list(self.sites)
        self.rng.shuffle(numbers)
        size = self.rng.randint(1, len(numbers) - 1)
        until = self.timeline.now + self.rng.choice((0.1, 0.6, 1.5)) * self.rng.uniform(0.5, 1.5)
        ways = self.rng.choice(((0,), (0, 1), (0, 1)))
        for one in numbers[:size]:
            for other in numbers[size:]:
                for way in ways:
                    self.cut[(one, other) if way == 0 else (other, one)] = until
        self.note("split", 0, (numbers[:size], ways))

    def _flap(self) -> None:
        one, other = self.rng.sample(list(self.sites), 2)
        self.cut[one, other] = self.cut[other, one] = self.timeline.now + self.rng.uniform(0.02, 1.0)
        self.note("flap", one, other)

    def _stall(self) -> None:
        node = self.rng.choice(list(self.sites.values()))
        node.stalled_until = self.timeline.now + self.rng.choice((0.1, 0.5, 2.0))
        self.note("stall", node.number)

    def _pause(self) -> None:
        node = self._any()
        node.paused_until = self.timeline.now + self.rng.choice((0.05, 0.3, 1.0))
        self.note("pause", node.number)

    def _fill(self) -> None:
        node = self._any()
        node.full_until = self.timeline.now + self.rng.choice((0.2, 1.0, 3.0))
        self.note("full", node.number)

    def _leave(self) -> None:
        node = self._any()
        if node.node is not None and node.node.is_member and len(node.node.view.members) > 1:
            self.note("leave", node.number)
            node.step(Leave())

    def _change_rates(self) -> None:
        node = self._any()
        node.set_rate(self.rng.uniform(*self.plan.rates))

    # --- the end ----------------------------------------------------------------------------------
    def _heal(self) -> None:
        """End all faults, and start every process."""
        self.cut.clear()
        for each in self.sites.values():
            each.stalled_until = each.paused_until = each.full_until = self.timeline.now
        self.run_until(self.timeline.now + SLOW_SECONDS)
        for each in self.sites.values():
            each.start()
        arbitrator = self.sites.get(ARBITRATOR)
        view = self.promises.newest
        if arbitrator is not None and arbitrator.record is None and view is not None:
            # The operator has checked that no other side lives.
            arbitrator.begin(view)

    def lose_one(self) -> None:
        """Let a node of a whole group die for good: the others, if they are enough, must continue soon."""
        dead, view = self._any(), self.promises.newest
        if view is not None and self._can_go_on(view, dead.number):
            self.kept_down.add(dead.number)
            dead.crash()
            self._check_alive(TAKEOVER_SECONDS)

    def _check_alive(self, seconds: float) -> None:
        """Check that within this time all running nodes are members of one open view, and that it takes commits."""
        began = self.timeline.now
        acknowledged = self.promises.end[0]
        while self.timeline.now < began + seconds:
            self.run_until(self.timeline.now + 0.1)
            if self._is_whole() and self.promises.end[0] > acknowledged:
                self.note("whole", 0, round(self.timeline.now - began, 3))
                return
        view = self.promises.newest
        if self._has_lost_disk and (view is None or not self._can_go_on(view, -1)):
            # The lost disk had a vote on a view decided just then: the site stops, but breaks no promise.
            self.note("stopped", 0)
            return
        reported = [
            (each.number, each.node.view.number, sorted(each.node.view.numbers), each.node.is_open, each.node.is_frozen)
            for each in self.nodes.values()
            if each.node is not None
        ]
        self.break_promise(f"no whole group {seconds:.0f} s after all faults: {reported}")

    def _is_whole(self) -> bool:
        nodes = [each.node for each in self.nodes.values() if each.number not in self.kept_down]
        views = {
            node.view
            for node in nodes
            if node is not None and node.is_open and node.may_show(node.view.number, node.now)
        }
        return (
            None not in nodes
            and len(views) == 1
            and len(next(iter(views)).members) == len(nodes)
            and all(node is not None and node.is_open for node in nodes)
        )


def run_seed(seed: int, **changed: Any) -> Report:
    """Run a seed; `changed` are fields of its plan. Raises: BrokenPromise."""
    return World(plan_of(seed, **changed)).run()
