"""SIGKILL of one site or several at random moments, restart, rest, proof; again and again on the same stores.

A round: all sites write and replicate; some are killed, within the first moments of a life in one case of four, and so
while they restart and catch up; the processes that take their places are ready already. Then the writers rest, marks
go round until everything has come everywhere, and what must hold is judged (`judge.py`). What writers acknowledged
stands in a pipe that outlives them.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from engine.clock import SystemClock
from recovery.crash_harness.program import Violation
from replication.kill_loop.judge import Judge, Ledger
from replication.kill_loop.modes import MODES, Mode

LIFE_MS_MAX = 400
EARLY_SHARE = 0.25
EARLY_MS_MAX = 150
ANSWER_SECONDS = 120.0


@dataclass
class KillReport:
    """What a loop saw. `killed`: how often which sites were killed at once."""

    mode: str
    seed: int
    kills: int = 0
    rounds: int = 0
    early: int = 0
    killed: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    taken_back: int = 0
    epochs: int = 0
    epochs_applied: int = 0
    seconds: float = 0.0


class Life:
    """One process of one site, and the thread that listens to it."""

    def __init__(self, mode: str, server_id: int, directory: str, number: int, ledger: Ledger) -> None:
        self.server_id = server_id
        self._ledger = ledger
        self._answers: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._is_over = False
        self.paid = 0
        self.failed = ""
        command = [sys.executable, "-m", "replication.kill_loop.site", mode, str(server_id), directory, str(number)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._listener = threading.Thread(target=self._listen, name=f"listener-{server_id}", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for raw in self.process.stdout or ():
            line = raw.decode()
            if not line.endswith("\n"):
                break
            word, _, rest = line.strip().partition(" ")
            with self._changed:
                if word == "paid":
                    self._ledger.take(rest)
                    self.paid += 1
                elif word == "done":
                    self._answers.append(json.loads(rest))
                elif word == "failed":
                    self.failed = rest
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def send(self, word: str, value: object = None) -> None:
        """One line. Raises: Violation if nobody hears it any more."""
        text = word if value is None else f"{word} {json.dumps(value)}"
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Violation(f"site {self.server_id} ended by itself: {self.failed or 'it says nothing'}") from None

    def answer(self) -> dict[str, Any]:
        """The answer to the oldest line that has none yet. Raises: Violation if it never comes."""
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self._is_over, ANSWER_SECONDS)
            if not self._answers:
                raise Violation(f"site {self.server_id} does not answer: {self.failed or 'it says nothing'}")
            return self._answers.pop(0)

    def ask(self, word: str, value: object = None) -> dict[str, Any]:
        """Send a line and wait for its answer."""
        self.send(word, value)
        return self.answer()

    def wait_paid(self) -> None:
        """Return when a transaction was acknowledged, or none ever will be."""
        with self._changed:
            self._changed.wait_for(lambda: self.paid > 0 or self._is_over, ANSWER_SECONDS)

    def kill(self) -> None:
        """SIGKILL, and hear it out. Raises: Violation if it had ended by itself."""
        code = self.process.poll()
        self.process.kill()
        self.process.wait()
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if code is not None:
            raise Violation(f"site {self.server_id} ended by itself with code {code}: {self.failed}")


class Circuit:
    """The processes of all sites of a mode, and those that wait to take their places."""

    def __init__(self, mode: Mode, folder: str, seed: int) -> None:
        self.mode = mode
        self.directories = {each.server_id: f"{folder}/site{each.server_id}" for each in mode.sites}
        self.ledger = Ledger()
        self.judge = Judge(mode, self.directories)
        self.ports: dict[str, int] = {}
        self._numbers = dict.fromkeys(self.directories, seed % 997)
        self.lives: dict[int, Life] = {}
        self._waiting: dict[int, Life] = {}
        self._marks = 0

    def _spawn(self, site: int) -> Life:
        self._numbers[site] += 1
        return Life(self.mode.name, site, self.directories[site], self._numbers[site], self.ledger)

    def begin(self) -> None:
        """All sites, serving and following."""
        for site in self.directories:
            self.lives[site] = self._spawn(site)
        for site, life in self.lives.items():
            life.send("open", self.ports)
            self.opened(site)
        for life in self.lives.values():
            life.ask("follow", self.ports)
        for site in self.directories:
            self._waiting[site] = self._spawn(site)

    def opened(self, site: int) -> None:
        """A site has restarted. Raises: Violation if positions went back."""
        shown = self.lives[site].answer()
        self.ports[str(site)] = shown["port"]
        self.complain(self.judge.positions(site, shown["applied"]))

    def complain(self, problems: list[str]) -> None:
        """Raises: Violation."""
        if problems:
            raise Violation("; ".join(problems[:5]))

    def replace(self, site: int) -> None:
        """The next life of a site begins to open its store."""
        self.lives[site] = self._waiting[site]
        self.lives[site].send("open", self.ports)
        self._waiting[site] = self._spawn(site)

    def settle(self) -> None:
        """Rest, and let everything come everywhere. Twice round: what the first round brought makes more to send."""
        for life in self.lives.values():
            life.ask("rest")
        for _ in range(2):
            self._marks += 1
            for life in self.lives.values():
                life.ask("mark", self._marks)
                wanted = self._reaches(life.server_id)
                for other in wanted:
                    self.lives[other].send("wait", [[life.server_id, self._marks]])
                for other in wanted:
                    lacks = self.lives[other].answer().get("lacks")
                    if lacks:
                        raise Violation(f"site {other} does not catch up with site {life.server_id}: {lacks}")

    def _reaches(self, site: int) -> list[int]:
        """The sites a change of this one gets to, itself included."""
        found = [site]
        for at in found:
            found += [each.server_id for each in self.mode.sites if at in each.sources and each.server_id not in found]
        return found

    def prove(self) -> None:
        """Raises: Violation if something does not hold. The sites are at rest."""
        states = {site: life.ask("state") for site, life in self.lives.items()}
        self.complain(self.judge.judge(states, self.ledger))

    def end(self) -> None:
        """Kill all of them."""
        for life in [*self.lives.values(), *self._waiting.values()]:
            try:
                life.kill()
            except Violation:
                continue


def kill_loop(
    mode_name: str,
    folder: str,
    kills: int,
    seed: int,
    life_ms_max: int = LIFE_MS_MAX,
    say: Callable[[str], None] | None = None,
) -> KillReport:
    """Kill sites of a mode, with stores below `folder`, at least `kills` times, and prove after each round.

    Raises: Violation, with mode, seed and round; the stores are left as they are for study.
    """
    mode, clock = MODES[mode_name], SystemClock()
    began, rng = clock.monotonic(), random.Random(f"{mode_name} {seed}")
    report = KillReport(mode_name, seed)
    circuit = Circuit(mode, folder, seed)
    sites = [each.server_id for each in mode.sites]
    choices = [each for count in range(1, len(sites) + 1) for each in combinations(sites, count)]
    try:
        circuit.begin()
        while report.kills < kills:
            report.rounds += 1
            _round(circuit, report, rng, rng.choice(choices), life_ms_max, clock)
            if say is not None:
                say(f"{mode_name}: kill {report.kills}, {len(circuit.ledger.paid)} acknowledged, all there")
    except Violation as error:
        raise Violation(f"{mode_name}, seed {seed}, round {report.rounds}: {error}; see {folder}") from error
    finally:
        circuit.end()
    report.acknowledged = len(circuit.ledger.paid)
    report.taken_back = circuit.judge.taken_back
    report.epochs, report.epochs_applied = circuit.judge.epochs, circuit.judge.applied
    report.seconds = clock.monotonic() - began
    return report


def _round(
    circuit: Circuit,
    report: KillReport,
    rng: random.Random,
    victims: tuple[int, ...],
    life_ms_max: int,
    clock: SystemClock,
) -> None:
    """Work, kills, restarts, rest, proof."""
    for life in circuit.lives.values():
        life.paid = 0
        life.ask("write")
    for life in circuit.lives.values():
        if circuit.mode.site(life.server_id).writes:
            life.wait_paid()
    clock.sleep(rng.uniform(0, life_ms_max) / 1_000)
    name = "+".join(map(str, victims))
    report.killed[name] = report.killed.get(name, 0) + 1
    for site in victims:
        circuit.lives[site].kill()
        report.kills += 1
    if rng.random() < 0.5:
        clock.sleep(rng.uniform(0, life_ms_max) / 1_000)  # the others go on without them
    for site in victims:
        circuit.replace(site)
    if rng.random() < EARLY_SHARE:
        site = rng.choice(victims)
        clock.sleep(rng.uniform(0, EARLY_MS_MAX) / 1_000)
        circuit.lives[site].kill()
        report.kills += 1
        report.early += 1
        circuit.replace(site)
    for site in victims:
        circuit.opened(site)
        circuit.lives[site].ask("write")
    clock.sleep(rng.uniform(0, life_ms_max) / 2_000)
    circuit.settle()
    circuit.prove()
