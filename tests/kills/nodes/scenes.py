"""How processes of a group are brought to the points where they are to die, and killed there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from tests.kills.nodes.bank import Client
from tests.kills.nodes.points import POINTS, Scene, points_of
from tests.kills.nodes.site import Process, Site
from tidemark.engine.base.clock import SystemClock
from tidemark.recovery.node_restart.messages import DELETE_LOG, REPLAY_LOG

CLOCK = SystemClock()
WITHOUT_SECONDS = 20.0
REACH_SECONDS = 15.0
LEAD_ATTEMPTS = 6
COMPLETED_SECONDS = 3.0
WIPED_SHARE = 0.15


class Scenes:
    """See the module. Counts kills by the role of the victim, and points tried and reached."""

    def __init__(self, site: Site, rng: random.Random, clerk: Client, changer: Client) -> None:
        self._site = site
        self._rng = rng
        self._clerk = clerk
        self._changer = changer
        self.lost_disk: Callable[[int], None] = lambda number: None  # called with the number of a node without disk
        self.kills: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self._scenes: dict[Scene, Callable[[str], None]] = {
            Scene.BACKUP: lambda point: self._living(point, self._backup()),
            Scene.PRIMARY: lambda point: self._living(point, self._leader()),
            Scene.ANY: self._any,
            Scene.VIEW: self._view,
            Scene.CANDIDATE: self._candidate,
            Scene.LEAD: self._lead,
            Scene.SOURCE: self._source,
            Scene.JOINER: lambda point: self._joiner(point, rng.random() < WIPED_SHARE),
            Scene.WIPED: lambda point: self._joiner(point, True),
            Scene.FILES: lambda point: self._living(point, self._backup(), self._clerk),
            Scene.FILES_SOURCE: lambda point: self._living(point, self._leader(), self._clerk),
            Scene.SCHEMA: lambda point: self._living(point, self._backup(), self._changer),
            Scene.ARBITRATOR: self._arbitrator,
        }
        wanted = points_of({site.mode.variant_of(number) for number in site.nodes}, False, site.mode.with_binlog)
        self._of_joiners = [name for name in wanted if POINTS[name].scene is Scene.JOINER]
        self._of_sources = [name for name in wanted if POINTS[name].scene is Scene.SOURCE]

    # --- kills -----------------------------------------------------------------------------------------
    def kill(self, victim: Process) -> None:
        """Kill a running process now."""
        self.kills[self._site.role_of(victim)] += 1
        victim.kill()

    def kill_all(self) -> None:
        """Kill the whole site at once."""
        for role, found in self._site.roles().items():
            for victim in found:
                self.kills[role] += 1
                victim.kill()

    def at_point(self, point: str) -> None:
        """Let a process die at a point."""
        self._site.wait_whole()
        self._scenes[POINTS[point].scene](point)

    def _armed(self, point: str) -> str:
        return f"{point}:{self._rng.randint(1, POINTS[point].calls_max)}"

    def _reach(self, victim: Process, point: str, role: str, prompt: Client | None = None) -> bool:
        """Wait until the victim has died at the point; otherwise kill it where it is. Return whether it got there."""

        def is_dead() -> bool:
            if prompt is not None:
                prompt.wanted.set()
            return not victim.is_alive

        self._site.kept_dead |= {victim.number}
        is_reached = self._site.wait_for(is_dead, REACH_SECONDS)
        self.tried[point] += 1
        self.reached[point] += is_reached
        self.kills[role] += 1
        victim.kill()
        self._site.kept_dead -= {victim.number}
        return is_reached

    # --- roles -----------------------------------------------------------------------------------------
    def _leader(self) -> Process:
        while (found := self._site.primary) is None:
            self._site.wait_whole()
        return found

    def _backup(self) -> Process:
        primary = self._leader()
        return self._rng.choice([node for node in self._site.nodes.values() if node is not primary])

    def _others(self, victim: Process) -> list[Process]:
        return [node for node in self._site.nodes.values() if node is not victim]

    # --- members ---------------------------------------------------------------------------------------
    def _living(self, point: str, victim: Process, prompt: Client | None = None) -> None:
        """Arm a member that reaches the point while it runs, or as soon as it is restarted."""
        role = self._site.role_of(victim)
        if role == "backup" and prompt is None and self._rng.random() < 0.3:
            self.kill(victim)
            victim.start(self._armed(point))
        else:
            victim.arm(self._armed(point))
        self._reach(victim, point, role, prompt)

    def _any(self, point: str) -> None:
        self._living(point, self._rng.choice(list(self._site.nodes.values())))

    def _view(self, point: str) -> None:
        """Arm a member and kill another one, which may be the primary."""
        victim = self._rng.choice(list(self._site.nodes.values()))
        role = self._site.role_of(victim)
        victim.arm(self._armed(point))
        self.kill(self._rng.choice(self._others(victim)))
        self._reach(victim, point, role)

    def _candidate(self, point: str) -> None:
        victim = self._leader()
        victim.arm(self._armed(point))
        self.kill(self._backup())
        self._reach(victim, point, "primary")

    def _lead(self, point: str) -> None:
        """Arm a member, and kill other primaries until it leads."""
        victim = min(
            (node for node in self._site.nodes.values() if node is not self._leader()), key=lambda each: each.number
        )
        victim.arm(self._armed(point))
        for _ in range(LEAD_ATTEMPTS):
            if not victim.is_alive:
                break
            primary = self._leader()
            if primary is not victim:
                self.kill(primary)
                self._site.kept_dead = frozenset({victim.number, primary.number})
                gone = primary.number
                self._site.wait_for(lambda gone=gone: not victim.is_alive or self._leads(gone), REACH_SECONDS)
            self._site.kept_dead = frozenset({victim.number})
        self._reach(victim, point, "backup")

    def _leads(self, gone: int) -> bool:
        """Whether another process leads now."""
        primary = self._site.primary
        return primary is not None and primary.number != gone

    # --- copies ----------------------------------------------------------------------------------------
    def _leave_out(self, *victims: Process, wiped: bool = False) -> bool:
        """Kill these, and keep them dead until the others continue without them; then often run a large transaction."""
        numbers = {victim.number for victim in victims}
        for victim in victims:
            self.kill(victim)
        is_so = self._site.wait_without(numbers, WITHOUT_SECONDS)
        if is_so and self._rng.random() < 0.6:
            before = self._clerk.acknowledged
            self._clerk.wanted.set()
            self._site.wait_for(lambda: self._clerk.acknowledged > before, WITHOUT_SECONDS)
        if wiped and is_so:
            for victim in victims:
                victim.lose_disk()
                self.lost_disk(victim.number)
        return is_so

    def _fits(self, point: str, node: Process) -> bool:
        """Whether a node reaches a point with its variant."""
        variant = self._site.mode.variant_of(node.number)
        return variant == DELETE_LOG if point == "deletes-copied" else point != "slice-copied" or variant != REPLAY_LOG

    def _joiner(self, point: str, wiped: bool) -> None:
        """Let a node come back and die there; often once more at the next point, before it is a member again."""
        victim = self._rng.choice([node for node in self._site.nodes.values() if self._fits(point, node)])
        if point == "deletes-copied":
            wiped = False
            CLOCK.sleep(COMPLETED_SECONDS)  # the delete log of a source begins only when the source has joined itself
        self._leave_out(victim, wiped=wiped)
        if point == "deletes-copied":
            before = self._clerk.acknowledged
            self._site.wait_for(lambda: self._prompted(self._clerk) > before + 1, WITHOUT_SECONDS)
        while True:
            victim.start(self._armed(point))
            self._reach(victim, point, "joiner")
            if self._rng.random() < 0.5:
                return
            point = self._rng.choice([name for name in self._of_joiners if self._fits(name, victim)])
            if point == "deletes-copied":
                return
            self._site.kept_dead |= {victim.number}
            self._site.wait_without({victim.number}, WITHOUT_SECONDS)

    @staticmethod
    def _prompted(client: Client) -> int:
        client.wanted.set()
        return client.acknowledged

    def _source(self, point: str) -> None:
        """Leave out a node, restart it, and let the primary die while it copies to it."""
        primary = self._leader()
        joiner = self._rng.choice(self._others(primary))
        self._leave_out(joiner, wiped=self._rng.random() < WIPED_SHARE)
        source = self._leader() if self._site.primary is None else self._site.primary
        source.arm(self._armed(point))
        self._site.kept_dead = frozenset()
        joiner.start()
        self._reach(source, point, "primary")

    def storm(self) -> None:
        """Let joiners and their source die during copies, again and again; with four nodes often two joiners at
        once.
        """
        site, rng = self._site, self._rng
        site.wait_whole()
        primary = self._leader()
        count = 2 if len(site.nodes) > 3 and rng.random() < 0.7 else 1
        joiners = rng.sample(self._others(primary), count)
        if not self._leave_out(*joiners, wiped=rng.random() < WIPED_SHARE):
            return
        for _ in range(rng.randint(2, 4)):
            armed: list[tuple[Process, str, str]] = []
            source = site.primary
            if source is not None and source not in joiners and rng.random() < 0.5:
                armed.append((source, rng.choice(self._of_sources), "primary"))
                source.arm(self._armed(armed[-1][1]))
            for joiner in joiners:
                if not joiner.is_alive:
                    fitting = [name for name in self._of_joiners if self._fits(name, joiner)]
                    armed.append((joiner, rng.choice(fitting), "joiner"))
                    joiner.start(self._armed(armed[-1][1]))
            site.kept_dead = frozenset(each[0].number for each in armed)
            site.wait_for(lambda armed=armed: not all(each[0].is_alive for each in armed), REACH_SECONDS / 3)
            CLOCK.sleep(rng.choice((0.0, 0.1, 0.3)))
            for victim, _, role in armed:
                if not victim.is_alive or rng.random() < 0.7:
                    self.kills[role] += 1
                    victim.kill()
            site.kept_dead = frozenset(joiner.number for joiner in joiners)
            site.look()  # a source that died is restarted, and may not lead any more
        site.kept_dead = frozenset()

    # --- the arbitrator ----------------------------------------------------------------------------------
    def _arbitrator(self, point: str) -> None:
        """Let the arbitrator die when it is asked after a member's death."""
        arbitrator = self._site.arbitrator
        assert arbitrator is not None
        arbitrator.arm(self._armed(point))
        self.kill(self._rng.choice(list(self._site.nodes.values())))
        self._reach(arbitrator, point, "arbitrator")
