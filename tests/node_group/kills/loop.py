"""The loop: nodes and an arbitrator as processes, killed by signal or at a named point, started again, and judged."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tidemark as tm
from engine.clock import SystemClock
from recovery.crash_harness.program import Violation
from tests.node_group.kills.bank import Reader, Teller, contents, judge, make_tables
from tests.node_group.kills.node import SECRET
from tests.node_group.kills.points import OF_PRIMARY, POINTS, RECURRING

CLOCK = SystemClock()
ROOT = Path(__file__).resolve().parents[3]
PATIENCE_SECONDS = 90.0
POLL_SECONDS = 0.02
ATTEMPTS = 10
POINT_SHARE, PAUSE_SHARE = 0.4, 0.06  # of all kills
POINT_SECONDS = 2.0
ARBITRATOR = 0


def free_port() -> int:
    """A port nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Process:
    """A node, or the arbitrator (number 0), over its lives."""

    def __init__(self, directory: Path, number: int, command: Sequence[str], log: Path) -> None:
        self.directory = directory
        self.number = number
        self._command = command
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.state: dict[str, Any] = {"state": "dead"}

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, point: str = "") -> None:
        """Start it. point: where it is to die by itself."""
        if self._process is not None:
            self._forget(self._process)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if point:
            environment["TIDEMARK_KILL_AT"] = point
        self.state = {"state": "starting"}
        with self._log.open("a") as log:
            log.write(f"--- start {point}\n")
            log.flush()
            self._process = subprocess.Popen(
                self._command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                if process is self._process and line.startswith("{"):
                    self.state = json.loads(line)

    def kill(self) -> None:
        """SIGKILL, if it lives."""
        if self._process is not None:
            self._process.kill()
            self._forget(self._process)
            self.state = {"state": "dead"}

    def _forget(self, process: subprocess.Popen[str], seconds: float | None = None) -> None:
        """Its end is waited for, our end of its input closed."""
        assert process.stdin is not None
        process.stdin.close()
        process.wait(seconds)

    def pause(self, is_paused: bool) -> None:
        """Stand still, or go on."""
        if self._process is not None and self.is_alive:
            self._process.send_signal(signal.SIGSTOP if is_paused else signal.SIGCONT)

    def end(self) -> None:
        """In order."""
        if self._process is not None:
            if self.number == ARBITRATOR:
                self._process.terminate()  # it reads nothing
            self._forget(self._process, PATIENCE_SECONDS)


class Site:
    """The processes of one group."""

    def __init__(self, directory: Path, nodes: int, with_arbitrator: bool) -> None:
        numbers = range(1, nodes + 1)
        group = [f"{number}=127.0.0.1:{free_port()}" for number in numbers]
        self.arbitrator: Process | None = None
        if with_arbitrator:
            group.append(f"arbitrator=127.0.0.1:{free_port()}")
        text = ",".join(group)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "secret").write_bytes(SECRET)
        self.calls = {number: f"127.0.0.1:{free_port()}" for number in numbers}
        self.nodes = {
            number: Process(
                directory / f"node-{number}",
                number,
                [
                    sys.executable,
                    "-m",
                    "tests.node_group.kills.node",
                    str(directory / f"node-{number}"),
                    str(number),
                    text,
                    self.calls[number],
                ],
                directory / f"node-{number}.log",
            )
            for number in numbers
        }
        if with_arbitrator:
            command = [
                sys.executable,
                "-c",
                "from tidemark.cli import main; main()",
                "arbitrator",
                str(directory / "arbitrator"),
            ]
            command += ["--group", text, "--secret-file", str(directory / "secret"), "--new-group"]
            self.arbitrator = Process(directory / "arbitrator", ARBITRATOR, command, directory / "arbitrator.log")

    @property
    def processes(self) -> list[Process]:
        """All of them."""
        return [*self.nodes.values(), *([self.arbitrator] if self.arbitrator else [])]

    def connect(self, *numbers: int) -> Any:
        """A client; numbers: nodes it knows of, all if none."""
        return tm.connect([self.calls[number] for number in numbers or self.nodes], SECRET, timeout_ms=60_000)

    def wait_whole(self) -> None:
        """Until all nodes are members of one open view. Raises: Violation if that never comes."""
        self.wait_whole_or(lambda: False)

    def wait_whole_or(self, is_enough: Callable[[], bool]) -> None:
        """`wait_whole`, or until something else has happened; then nobody is started any more."""
        deadline = CLOCK.monotonic() + PATIENCE_SECONDS
        while not is_enough():
            for process in self.processes:
                if not process.is_alive:
                    process.start()
                if process.state["state"] == "ended":
                    raise Violation(f"node {process.number} cannot go on: {process.state['error']}")
            states = [node.state for node in self.nodes.values()]
            if all(each["state"] == "open" and len(each["members"]) == len(states) for each in states):
                if len({each["view"] for each in states}) == 1:
                    return
            if CLOCK.monotonic() > deadline:
                raise Violation(f"the group is not whole after {PATIENCE_SECONDS:g} s: {states}")
            CLOCK.sleep(POLL_SECONDS)

    def roles(self) -> dict[str, list[Process]]:
        """Who is what now."""
        found: dict[str, list[Process]] = {"primary": [], "backup": [], "joiner": [], "arbitrator": []}
        for number, node in self.nodes.items():
            state = node.state
            if node.is_alive and state["state"] == "open":
                found["primary" if state["primary"] == number else "backup"].append(node)
            elif node.is_alive:
                found["joiner"].append(node)
        if self.arbitrator is not None and self.arbitrator.is_alive:
            found["arbitrator"].append(self.arbitrator)
        return found

    def end(self) -> None:
        """End all, in order as far as they do."""
        for process in self.processes:
            process.pause(False)
            try:
                process.end()
            except subprocess.TimeoutExpired:
                process.kill()


class Loop:
    """Kills by seed."""

    def __init__(self, directory: Path, nodes: int, with_arbitrator: bool, seed: int, tellers: int = 3) -> None:
        self.site = Site(directory, nodes, with_arbitrator)
        self._rng = random.Random(seed)
        self.seed = seed
        self.kills: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()  # points
        self._points: list[str] = []
        self.tellers = [Teller(self.site.connect, number, seed + number) for number in range(tellers)]
        numbers = self.site.nodes
        self.readers = [
            Reader(lambda number=number: self.site.connect(number), self.tellers, seed + 100 + number)
            for number in numbers
        ]
        self.judged = 0

    def run(self, kills: int, judged_every: int = 10) -> None:
        """So many kills, all judged. Raises: Violation."""
        site = self.site
        try:
            for process in site.processes:
                process.start()
            site.wait_whole()
            with site.connect() as db:
                make_tables(db)
            for thread in (*self.tellers, *self.readers):
                thread.start()
            while sum(self.kills.values()) < kills:
                for _ in range(judged_every):
                    self._kill()
                    self._look()
                self.judge()
            for thread in (*self.tellers, *self.readers):
                thread.is_over.set()
            for thread in (*self.tellers, *self.readers):
                thread.join(PATIENCE_SECONDS)
            self.judge()
        finally:
            site.end()

    def _look(self) -> None:
        for thread in (*self.tellers, *self.readers):
            if thread.failure is not None:
                raise Violation(f"{thread.name}: {thread.failure!r}") from thread.failure

    def _kill(self) -> None:
        """One kill, or several that belong together: of somebody who lives now, or at a point that comes."""
        rng, site = self._rng, self.site
        roles = {role: found for role, found in site.roles().items() if found}
        if not roles:
            site.wait_whole()
            return
        role = rng.choice(sorted(roles))
        victim = rng.choice(roles[role])
        chance = rng.random()
        if role != "arbitrator" and chance < POINT_SHARE:
            self._kill_at_point(role, victim)
        elif chance > 1 - PAUSE_SHARE:
            victim.pause(True)
            CLOCK.sleep(rng.choice((0.2, 0.6, 1.5)))
            victim.pause(False)
            self.kills["pause"] += 1
        else:
            self._kill_now(role, victim)
        CLOCK.sleep(rng.choice((0.0, 0.1, 0.5, 1.5)))
        for process in site.processes:
            if not process.is_alive and rng.random() < 0.7:
                process.start()
        if rng.random() < 0.3:
            site.wait_whole()

    def _kill_now(self, role: str, victim: Process) -> None:
        victim.kill()
        self.kills[role] += 1

    def _kill_at_point(self, role: str, victim: Process) -> None:
        """Have a node die at the next point in turn; where only a primary comes by, let it lead, and copy another."""
        rng, site = self._rng, self.site
        if not self._points:
            self._points = rng.sample(sorted(POINTS), len(POINTS))
        point = self._points.pop()
        self._kill_now(role, victim)
        victim.start(f"{point}:{rng.choice((1, 1, 2, 5)) if point in RECURRING else 1}")
        for _ in range(3 if point in OF_PRIMARY else 1):
            site.wait_whole_or(lambda: not victim.is_alive)
            for primary in site.roles()["primary"] if point in OF_PRIMARY and victim.is_alive else ():
                if primary is not victim or point.endswith("-at-source"):
                    other = primary if primary is not victim else rng.choice(site.roles()["backup"] or [primary])
                    if other is not victim:
                        self._kill_now("primary" if other is primary else "backup", other)
                        other.start()
        deadline = CLOCK.monotonic() + POINT_SECONDS
        while victim.is_alive and CLOCK.monotonic() < deadline:
            CLOCK.sleep(POLL_SECONDS)
        self.reached[point] += not victim.is_alive
        self.kills["at a point"] += not victim.is_alive

    def judge(self) -> None:
        """All nodes whole and equal, and what was acknowledged is there. Raises: Violation."""
        self.site.wait_whole()  # else no transfer comes to its end
        with ExitStack() as stack:
            for teller in self.tellers:
                stack.enter_context(teller.turn)
            self._look()
            found = self._contents()
            first, *others = found
            for other in others:
                if found[other] != found[first]:
                    raise Violation(f"nodes {first} and {other} differ: {different(found[first], found[other])}")
            judge(found[first], self.tellers)
        self.judged += 1

    def _contents(self) -> dict[int, dict[str, list[Any]]]:
        """What each node shows; again if one dies meanwhile, at a point it was told."""
        for _ in range(ATTEMPTS):
            self.site.wait_whole()
            try:
                return {number: self._contents_of(number) for number in self.site.nodes}
            except (tm.Retryable, tm.PeerError):
                continue
        raise Violation(f"nodes cannot be read in {ATTEMPTS} attempts")

    def _contents_of(self, number: int) -> dict[str, list[Any]]:
        with self.site.connect(number) as db:
            return contents(db)


def different(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> str:
    """Where they differ first."""
    for name, rows in one.items():
        both = set(rows) ^ set(other[name])
        if both:
            return f"{name}: {sorted(both)[:4]}"
    return "nowhere"
