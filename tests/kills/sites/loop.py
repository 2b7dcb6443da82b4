"""SIGKILL of one or several sites at random moments, restart, rest, check; again and again on the same stores.

A round: all sites write and replicate. Some are killed, and in one case of four once more in the first moments of the
next life, while restarting and catching up. Then the writers rest, marks go round until everything has reached every
site, and the state is checked (`judge.py`). What writers acknowledged is in a pipe that outlives them.
"""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import combinations
from multiprocessing import connection
from typing import Any

from tests.kills.sites.judge import Judge, Ledger
from tests.kills.sites.modes import MODES, Mode
from tests.kills.sites.site import get_ready, run_site
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import FileMissing, Rejected
from tidemark.engine.files.directory import PosixFiles
from tidemark.recovery.crash_harness.program import Violation

LIFE_MS_MAX = 400
EARLY_SHARE = 0.25
EARLY_MS_MAX = 150
PAID_MIN = 12  # acknowledged transactions of each site in a round before a kill, on the slowest machine
# A site says itself when it waits no longer. This is for one that hangs: next to processes of a higher priority a sound
# one has answered after minutes.
ANSWER_SECONDS = 900.0
# A new interpreter would take seconds to load compiled code; this process has no threads, and no store open.
_FORK = multiprocessing.get_context("fork")


@dataclass
class KillReport:
    """Results of a loop. `killed`: how often which sites were killed at once."""

    mode: str
    seed: int
    kills: int = 0
    rounds: int = 0
    early: int = 0
    killed: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    rolled_back_count: int = 0
    epochs: int = 0
    epochs_applied: int = 0
    seconds: float = 0.0


class Life:
    """One process of one site, forked from this process, in which imports and compiled code are ready."""

    def __init__(self, server_id: int, ledger: Ledger, run: Callable[..., None], *given: object) -> None:
        """run: called in the process with `given` and its ends of the pipes: commands, lines."""
        self.server_id = server_id
        self._ledger = ledger
        self._answers: list[dict[str, Any]] = []
        self.is_over = False
        self.paid = 0
        self.failed = "it says nothing"
        commands, self._commands = _FORK.Pipe(duplex=False)
        self.lines, lines = _FORK.Pipe(duplex=False)
        self.process = _FORK.Process(target=run, args=(*given, commands, lines), daemon=True)
        self.process.start()
        commands.close()
        lines.close()

    def hear(self) -> None:
        """Take one line. At the end of the lines the process is dead or has ended."""
        try:
            word, _, rest = self.lines.recv_bytes().decode().partition(" ")
        except (EOFError, OSError):
            self.is_over = True
            return
        if word == "paid":
            self._ledger.take(rest)
            self.paid += 1
        elif word == "done":
            self._answers.append(json.loads(rest))
        else:
            self.failed = rest

    def send(self, word: str, value: object = None) -> None:
        """Send one line. Raises: Violation if the process has gone."""
        try:
            self._commands.send_bytes((word if value is None else f"{word} {json.dumps(value)}").encode())
        except BrokenPipeError:
            raise self.ended() from None

    @property
    def has_answer(self) -> bool:
        """Whether `answer` returns without a wait."""
        return bool(self._answers) or self.is_over

    def answer(self) -> dict[str, Any]:
        """Return the oldest answer. Raises: Violation if there is none."""
        if not self._answers:
            raise self.ended()
        return self._answers.pop(0)

    def ended(self) -> Violation:
        """Return the violation of a process that should not have ended."""
        return Violation(f"site {self.server_id} does not answer: {self.failed}")

    def kill(self) -> None:
        """Send SIGKILL and take the lines that are left. Raises: Violation if the process had ended by itself."""
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        while not self.is_over:
            self.hear()
        self.lines.close()
        self._commands.close()
        if code is not None:
            raise Violation(f"site {self.server_id} ended by itself with code {code}: {self.failed}")


def hear(lives: Collection[Life], seconds: float, is_enough: Callable[[], bool] = lambda: False) -> bool:
    """Take lines from processes for this long, or until it is enough; return whether it was."""
    clock = SystemClock()
    until = clock.monotonic() + seconds
    while not is_enough():
        left = until - clock.monotonic()
        heard = {life.lines: life for life in lives if not life.is_over}
        if left <= 0 or not heard:
            return False
        for each in connection.wait(list(heard), left):
            heard[each].hear()  # type: ignore[index]
    return True


def refuse_existing(directory: str) -> None:
    """Refuse a directory that exists: what its writers acknowledged is not known any more. Raises: Rejected."""
    try:
        PosixFiles(directory).close_all()
    except FileMissing:
        return
    raise Rejected(f"{directory} is there already; give another directory, or remove it")


class Circuit:
    """The processes of all sites of a mode, each replaced by the next one after a kill."""

    def __init__(self, mode: Mode, folder: str, seed: int) -> None:
        self.mode = mode
        self.directories = {each.server_id: f"{folder}-site{each.server_id}" for each in mode.sites}
        for directory in self.directories.values():
            refuse_existing(directory)
        self.ledger = Ledger()
        self.judge = Judge(mode, self.directories)
        self.ports: dict[str, int] = {}
        self._numbers = dict.fromkeys(self.directories, seed % 997)
        self.lives: dict[int, Life] = {}
        self._marks = 0

    def begin(self) -> None:
        """Start all sites, serving and following."""
        for site in self.directories:
            self.restart(site)
            self.opened(site)
        for life in self.lives.values():
            self.ask(life, "follow", self.ports)

    def restart(self, site: int) -> None:
        """Start the next life of a site, which begins to open its store."""
        self._numbers[site] += 1
        given = (self.mode.name, site, self.directories[site], self._numbers[site])
        self.lives[site] = Life(site, self.ledger, run_site, *given)
        self.lives[site].send("open", self.ports)

    # --- hearing ----------------------------------------------------------------------------------
    def hear(self, seconds: float, is_enough: Callable[[], bool] = lambda: False) -> bool:
        """Take lines from the sites for this long, or until it is enough; return whether it was."""
        return hear(self.lives.values(), seconds, is_enough)

    def answer(self, life: Life) -> dict[str, Any]:
        """Return the answer to the oldest line without one. Raises: Violation if none comes."""
        self.hear(ANSWER_SECONDS, lambda: life.has_answer)
        return life.answer()

    def ask(self, life: Life, word: str, value: object = None) -> dict[str, Any]:
        """Send a line and wait for its answer."""
        life.send(word, value)
        return self.answer(life)

    def opened(self, site: int) -> None:
        """Wait until a site has restarted. Raises: Violation if positions went back."""
        shown = self.answer(self.lives[site])
        self.ports[str(site)] = shown["port"]
        self.complain(self.judge.positions(site, shown["applied"]))

    def complain(self, problems: list[str]) -> None:
        """Raise Violation if there are problems."""
        if problems:
            raise Violation("; ".join(problems[:5]))

    def settle(self) -> None:
        """Stop the writers and wait until every change is at every site. Two rounds: the first makes more to send."""
        for life in self.lives.values():
            self.ask(life, "rest")
        for _ in range(2):
            self._marks += 1
            for life in self.lives.values():
                self.ask(life, "mark", self._marks)
                wanted = self._reaches(life.server_id)
                for other in wanted:
                    self.lives[other].send("wait", [[life.server_id, self._marks]])
                for other in wanted:
                    lacks = self.answer(self.lives[other]).get("lacks")
                    if lacks:
                        raise Violation(f"site {other} does not catch up with site {life.server_id}: {lacks}")

    def _reaches(self, site: int) -> list[int]:
        """The sites that a change of this one reaches, itself included."""
        found = [site]
        for at in found:
            found += [each.server_id for each in self.mode.sites if at in each.sources and each.server_id not in found]
        return found

    def prove(self) -> None:
        """Check the sites, which are at rest. Raises: Violation if something does not hold."""
        states = {site: self.ask(life, "state") for site, life in self.lives.items()}
        self.complain(self.judge.judge(states, self.ledger))

    def end(self) -> None:
        """Kill all processes."""
        for life in self.lives.values():
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
    """Kill sites of a mode, with stores at `folder`-siteN, at least `kills` times, and check after each round.

    Raises: Violation, with mode, seed and round; the stores are left as they are for study.
    """
    mode, clock = MODES[mode_name], SystemClock()
    began, rng = clock.monotonic(), random.Random(f"{mode_name} {seed}")
    report = KillReport(mode_name, seed)
    get_ready()
    circuit = Circuit(mode, folder, seed)
    sites = [each.server_id for each in mode.sites]
    choices = [each for count in range(1, len(sites) + 1) for each in combinations(sites, count)]
    try:
        circuit.begin()
        while report.kills < kills:
            report.rounds += 1
            _round(circuit, report, rng, rng.choice(choices), life_ms_max)
            if say is not None:
                say(f"{mode_name}: kill {report.kills}, {len(circuit.ledger.paid)} acknowledged, all there")
    except Violation as error:
        raise Violation(f"{mode_name}, seed {seed}, round {report.rounds}: {error}; see {folder}-site*") from error
    finally:
        circuit.end()
    report.acknowledged = len(circuit.ledger.paid)
    report.rolled_back_count = circuit.judge.rolled_back_count
    report.epochs, report.epochs_applied = circuit.judge.epochs, circuit.judge.applied
    report.seconds = clock.monotonic() - began
    return report


def _round(
    circuit: Circuit,
    report: KillReport,
    rng: random.Random,
    victims: tuple[int, ...],
    life_ms_max: int,
) -> None:
    """Work, kills, restarts, rest, proof."""
    for life in circuit.lives.values():
        life.paid = 0
        circuit.ask(life, "write")
    writers = [each for each in circuit.lives.values() if circuit.mode.site(each.server_id).writes]
    circuit.hear(ANSWER_SECONDS, lambda: all(each.paid >= PAID_MIN or each.is_over for each in writers))
    circuit.hear(rng.uniform(0, life_ms_max) / 1_000)
    name = "+".join(map(str, victims))
    report.killed[name] = report.killed.get(name, 0) + 1
    for site in victims:
        circuit.lives[site].kill()
        report.kills += 1
    if rng.random() < 0.5:
        circuit.hear(rng.uniform(0, life_ms_max) / 1_000)  # the others run on without them
    for site in victims:
        circuit.restart(site)
    if rng.random() < EARLY_SHARE:
        site = rng.choice(victims)
        circuit.hear(rng.uniform(0, EARLY_MS_MAX) / 1_000)
        circuit.lives[site].kill()
        report.kills += 1
        report.early += 1
        circuit.restart(site)
    for site in victims:
        circuit.opened(site)
        circuit.ask(circuit.lives[site], "write")
    circuit.hear(rng.uniform(0, life_ms_max) / 2_000)
    circuit.settle()
    circuit.prove()
