"""The loop: nodes and an arbitrator as processes, killed at random or at a named point, restarted, and checked."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tidemark as tm
from tests.kills.nodes.bank import (
    JOURNAL,
    MARK,
    Changer,
    Clerk,
    Client,
    Ledger,
    Reader,
    Teller,
    end,
    make_tables,
    surely,
)
from tests.kills.nodes.judged import Binlogs, different
from tests.kills.nodes.points import points_of
from tests.kills.nodes.scenes import Scenes
from tests.kills.nodes.site import PATIENCE_SECONDS, POLL_SECONDS, Mode, Process, Site
from tidemark.engine.base.clock import SystemClock
from tidemark.recovery.crash_harness.program import Violation

CLOCK = SystemClock()
ATTEMPTS = 10
ANSWER_SECONDS = 60.0
POINT_SHARE, STORM_SHARE, PAUSE_SHARE, ALL_SHARE = 0.6, 0.1, 0.06, 0.03  # of all kills
BURST = 4
PLACE_COLUMNS = 4


class Loop:
    """Kills by seed."""

    def __init__(self, directory: Path, mode: Mode, seed: int, tellers: int = 3) -> None:
        self.site = Site(directory, mode)
        self.mode = mode
        self._rng = random.Random(seed)
        self.seed = seed
        connect = self.site.connect
        self.tellers = [Teller(connect, number, seed + number) for number in range(tellers)]
        self.clerk = Clerk(connect, "clerk", seed + 50)
        self.changer = Changer(connect, "changer", seed + 51)
        numbers = self.site.nodes
        self.readers = [
            Reader(lambda number=number: connect(number), self.tellers, seed + 100 + number) for number in numbers
        ]
        self.scenes = Scenes(self.site, self._rng, self.clerk, self.changer)
        self.kills: Counter[str] = self.scenes.kills
        self.binlogs = Binlogs()
        self.scenes.lost_disk = self.binlogs.forget
        self._ledger = Ledger(self.tellers, self.clerk)
        variants = {mode.variant_of(number) for number in numbers}
        self.points = points_of(variants, mode.with_arbitrator, mode.with_binlog, mode.is_sharing)
        self._points: list[str] = []
        self.judged = 0
        self.pruned = 0

    @property
    def clients(self) -> list[Client]:
        """All clients that write."""
        return [*self.tellers, self.clerk, *([self.changer] if self.mode.with_changes else [])]

    @property
    def killed(self) -> int:
        """Number of kills, without pauses."""
        return sum(count for role, count in self.kills.items() if role != "paused")

    def run(self, kills: int, judged_every: int = 10, seconds: float = float("inf")) -> None:
        """Kill this many times, or for this long, with checks in between. Raises: Violation."""
        site = self.site
        deadline = CLOCK.monotonic() + seconds
        try:
            site.found()
            with site.connect() as db:
                make_tables(db)
            for thread in (*self.clients, *self.readers):
                thread.start()
            while self.killed < kills and CLOCK.monotonic() < deadline:
                until = min(kills, self.killed + judged_every)
                while self.killed < until and CLOCK.monotonic() < deadline:
                    self._kill()
                    self._look()
                self.judge()
            site.wait_for(self._have_all_worked, PATIENCE_SECONDS)
            for thread in (*self.clients, *self.readers):
                thread.is_over.set()
            for client in self.clients:
                client.wanted.set()
            for thread in (*self.clients, *self.readers):
                thread.join(PATIENCE_SECONDS)
            self.judge()
        finally:
            alive = [thread for thread in (*self.clients, *self.readers) if thread.is_alive()]
            for thread in alive:
                end(thread)
            for thread in alive:
                thread.join(PATIENCE_SECONDS)
            site.end()

    def _have_all_worked(self) -> bool:
        """Whether each thread has completed something; on a busy machine one may begin only after the last kill."""
        self._look()
        return all(teller.acknowledged for teller in self.tellers) and all(reader.reads for reader in self.readers)

    def _look(self) -> None:
        self.site.look()
        for thread in (*self.clients, *self.readers):
            if thread.failure is not None:
                raise Violation(f"{thread.name}: {thread.failure!r}") from thread.failure

    def _kill(self) -> None:
        """Kill once, or several times that belong together: a running process now, or one at a point it will reach."""
        rng, site = self._rng, self.site
        chance = rng.random()
        if self.mode.is_sharing:
            site.wait_whole()  # data that is in memory alone outlives one death at a time
            chance *= POINT_SHARE + PAUSE_SHARE
            if chance > POINT_SHARE:
                chance = 1.0
        if chance < POINT_SHARE:
            self.scenes.at_point(self._next_point())
        elif (chance := chance - POINT_SHARE) < STORM_SHARE:
            self.scenes.storm()
        elif (chance := chance - STORM_SHARE) < PAUSE_SHARE:
            self._pause()
        elif chance - PAUSE_SHARE < ALL_SHARE:
            self.scenes.kill_all()
        else:
            roles = {role: found for role, found in site.roles().items() if found}
            role = rng.choice(sorted(roles or ["none"]))
            if roles:
                self.scenes.kill(rng.choice(roles[role]))
        CLOCK.sleep(rng.choice((0.0, 0.1, 0.5, 1.0)))
        site.kept_dead = frozenset(each.number for each in site.processes if not each.is_alive and rng.random() < 0.3)
        site.look()
        site.kept_dead = frozenset()
        if rng.random() < 0.3:
            site.wait_whole()

    def _next_point(self) -> str:
        if not self._points:
            self._points = self._rng.sample(self.points, len(self.points))
        return self._points.pop()

    def _pause(self) -> None:
        """Stop a node while the others continue; once it runs again, read from it what they have done meanwhile."""
        site, rng = self.site, self._rng
        site.wait_whole()
        victim = rng.choice(list(site.nodes.values()))
        found: list[Violation] = []
        bursts = [self._burst(victim, found, number) for number in range(BURST)]
        victim.pause(True)
        CLOCK.sleep(rng.choice((0.2, 0.6, 1.5, 2.5)))
        for burst in bursts:
            burst.start()
        CLOCK.sleep(POLL_SECONDS)
        victim.pause(False)
        for burst in bursts:
            burst.join(PATIENCE_SECONDS)
        self.kills["paused"] += 1
        if found:
            raise found[0]

    def _burst(self, victim: Process, found: list[Violation], number: int) -> threading.Thread:
        reader = Reader(lambda: self.site.connect(victim.number), self.tellers, self.seed + 1_000 + number)
        db = self.site.connect(victim.number)

        def read() -> None:
            try:
                with db:
                    for _ in range(10):
                        reader.read(db)
            except Violation as error:
                found.append(error)
            except tm.Error:
                pass  # refused, which is no violation

        return threading.Thread(target=read, daemon=True)

    # --- judging -----------------------------------------------------------------------------------
    def judge(self) -> None:
        """Check that all nodes are whole, sound and equal, and have everything acknowledged. Raises: Violation."""
        self.site.wait_whole()  # otherwise no transaction ends
        with ExitStack() as stack:
            for client in self.clients:
                stack.enter_context(client.turn)
            self._look()
            found = self._contents()
            first, *others = found
            for number, each in found.items():
                if each["problems"]:
                    raise Violation(f"node {number} is not sound: {each['problems'][:3]}")
            for other in others:
                if where := different(found[first]["rows"], found[other]["rows"]):
                    raise Violation(f"nodes {first} and {other} differ: {where}")
            rows = {
                name: [row[PLACE_COLUMNS:] for row in of_table] for name, (_, of_table) in found[first]["rows"].items()
            }
            self._ledger.judge(rows)
            if self.mode.with_binlog:
                self.binlogs.take({number: (each["said"], each["place"]) for number, each in found.items()})
            with self.site.connect() as db:
                self._ledger.cut(db, rows[JOURNAL])
            self.pruned += len(rows[JOURNAL])
        self.judged += 1

    def _contents(self) -> dict[int, dict[str, Any]]:
        """Return the contents of each node; retry if one dies meanwhile at an armed point."""
        for _ in range(ATTEMPTS):
            self.site.wait_whole()
            try:
                with self.site.connect() as db:
                    surely(db, lambda txn: txn.update(MARK, 0, {"n": self._rng.getrandbits(30)}))
                    epoch = db.sync()
            except (tm.Retryable, tm.PeerError):
                continue
            nodes = self.site.nodes
            asked = {number: node.ask(epoch, self.binlogs.places.get(number)) for number, node in nodes.items()}
            found: dict[int, Any] = {}

            def has_come(asked: dict[int, int] = asked, found: dict[int, Any] = found) -> bool:
                for number, place in asked.items():
                    answer = self.site.nodes[number].answer(place)
                    if answer is not None:
                        found[number] = answer
                is_over = not all(node.is_alive for node in self.site.nodes.values())
                return len(found) == len(asked) or is_over

            self.site.wait_for(has_come, ANSWER_SECONDS)
            for number, answer in found.items():
                if "broken" in answer:
                    raise Violation(f"node {number} cannot be read: {answer['broken']}")
            if len(found) == len(asked) and not any("again" in answer for answer in found.values()):
                return found
        raise Violation(f"nodes cannot be read in {ATTEMPTS} attempts")
