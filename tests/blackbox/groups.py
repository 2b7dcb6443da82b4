"""The command line of a node group under what happens to machines: kills, stopped processes, lost directories, disks
that hang, and clients that hang in a transaction, in random order, while other clients write.

Acknowledged writes must stay, whatever group acknowledged them: the end is read at one group. Each client that the
group can serve gets an answer in time.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import tidemark as tm
from tests.blackbox.anomalies import Anomaly
from tests.blackbox.histories import (
    CLOCK,
    LISTS,
    Appender,
    Client,
    Reader,
    Recorder,
    Registrar,
    Teller,
    Watcher,
    clients,
    ended,
    judged,
)
from tests.blackbox.nodes import SECRET, Group, group
from tidemark.recovery.crash_harness.forks import FORKS

# How often each comes.
EVENTS: dict[str, int] = {"kill": 3, "stop": 2, "lose": 2, "lose the founder": 1, "hang": 2, "hung client": 2}
KINDS: Counter[type[Client]] = Counter({Appender: 2, Reader: 1, Teller: 1, Registrar: 1, Watcher: 1})
PAUSE_SECONDS = 0.01
# A view without the node takes some six seconds; an idle transaction of a client ends after its limit.
AWAY_SECONDS = 9.0
ANSWER_SECONDS = 60.0
HANGS_MS = 120_000
HUNG_KEY = 1_000_003  # a list that no other client uses


class Timed:
    """The longest time that each client waited for one turn."""

    def __init__(self) -> None:
        self.since: dict[int, float] = {}

    def late(self) -> list[int]:
        now = CLOCK.monotonic()
        return [number for number, begin in list(self.since.items()) if now - begin > ANSWER_SECONDS]


def _timed(kind: type[Client], timed: Timed) -> type[Client]:
    """Return a kind of client that waits a little after each turn, and whose turns are timed."""

    class Made(kind):  # type: ignore[misc, valid-type]
        def turn(self) -> None:
            timed.since[self.number] = CLOCK.monotonic()
            try:
                super().turn()
            finally:
                del timed.since[self.number]
            self.recorder.stop.wait(PAUSE_SECONDS)

    Made.__name__ = kind.__name__
    return Made


def _hang(addresses: list[tuple[str, int]], pipe: Any) -> None:
    """A client that holds a lock and goes on no more."""
    db = tm.connect(addresses, SECRET)
    txn = db.transaction()
    txn.get(LISTS, HUNG_KEY, lock="exclusive")
    pipe.send("holds")
    pipe.recv()


class Trouble:
    """Makes things happen to a group."""

    def __init__(self, nodes: Group, recorder: Recorder, events: dict[str, int]) -> None:
        self.nodes = nodes
        self.events = events
        self.recorder = recorder
        self.rng = random.Random(recorder.seed)
        self.happened: list[str] = []

    def one(self) -> None:
        """Let one thing happen, and wait until the group is whole again."""
        event = self.rng.choices(list(self.events), list(self.events.values()))[0]
        primary = self.nodes.wait(self.nodes.numbers)
        number = primary if self.rng.random() < 0.6 else self.rng.choice(self.nodes.numbers)
        self.happened.append(f"{event} {number}{' (primary)' if number == primary else ''}")
        self.recorder.counts[event] += 1
        getattr(self, "_" + event.replace(" ", "_"))(number)
        self.nodes.wait(self.nodes.numbers)

    def _others(self, number: int) -> list[int]:
        return [each for each in self.nodes.numbers if each != number]

    def _kill(self, number: int) -> None:
        self.nodes.kill(number)
        if self.rng.random() < 0.5:
            self.nodes.wait(self._others(number))
        self.nodes.start(number)

    def _stop(self, number: int) -> None:
        self.nodes.signal(number, signal.SIGSTOP)
        self.recorder.stop.wait(self.rng.choice((0.3, 2.0, AWAY_SECONDS)))
        self.nodes.signal(number, signal.SIGCONT)

    def _lose(self, number: int) -> None:
        self.nodes.lose(number)
        self.nodes.wait(self._others(number))
        self.nodes.start(number)

    def _lose_the_founder(self, _: int) -> None:
        """Node 1 lost its directory and is started by the command line that founded the group."""
        self.nodes.lose(1)
        if self.rng.random() < 0.5:
            self.nodes.wait(self._others(1))
        self.nodes.start(1, "--found")

    def _hang(self, number: int) -> None:
        self.nodes.hang(number, HANGS_MS)
        self.nodes.wait(self._others(number))
        self.recorder.stop.wait(AWAY_SECONDS)
        self.nodes.hang(number, 0)

    def _hung_client(self, _: int) -> None:
        """Another client must get the lock within its patience."""
        pipe, theirs = FORKS.Pipe()
        process = FORKS.Process(target=_hang, args=(list(self.nodes.calls.values()), theirs), daemon=True)
        process.start()
        try:
            assert pipe.poll(ANSWER_SECONDS) and pipe.recv() == "holds"
            pid = process.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            end = CLOCK.monotonic() + ANSWER_SECONDS
            with self.nodes.connect() as db:
                while CLOCK.monotonic() < end:
                    try:
                        with db.transaction() as txn:
                            txn.get(LISTS, HUNG_KEY, lock="exclusive")
                        return
                    except tm.Retryable:
                        continue
            self.recorder.see("hung client", f"its lock is held after {ANSWER_SECONDS:.0f} s")
        finally:
            process.kill()
            process.join()


def run(
    folder: str, seed: int, events: int, is_shimmed: bool, only: str | None = None
) -> tuple[list[Anomaly], Recorder, list[str]]:
    """Let so many things happen to a group. Returns anomalies, the record, and what happened."""
    able = dict(EVENTS)
    if not is_shimmed:
        able.pop("hang", None)
    able = {name: weight for name, weight in able.items() if only in (None, name)}
    recorder, timed = Recorder(seed), Timed()
    with group(Path(folder) / "group") as nodes:
        with nodes.connect() as db:
            db[LISTS].insert((HUNG_KEY, ""))
        trouble = Trouble(nodes, recorder, able)
        kinds = Counter({_timed(kind, timed): count for kind, count in KINDS.items()})
        addresses = list(nodes.calls.values())
        turn = iter(range(1_000_000))

        def connect() -> Any:
            first = next(turn) % len(addresses)
            return tm.connect([*addresses[first:], *addresses[:first]], SECRET, timeout_ms=20_000)

        threads = clients(recorder, connect, kinds)
        with ended(threads, recorder):
            for _ in range(events):
                try:
                    trouble.one()
                except AssertionError as error:
                    # Its end cannot be read: there may be two groups.
                    recorder.see("not whole", f"after {trouble.happened[-1]}: {error}")
                    return recorder.found, recorder, trouble.happened
                if recorder.stop.is_set():
                    break
                late = timed.late()
                if late:
                    recorder.see(
                        "no answer", f"clients {late} wait for over {ANSWER_SECONDS:.0f} s after {trouble.happened[-1]}"
                    )
        nodes.wait(nodes.numbers)
        with nodes.connect() as db:
            return judged(recorder, db), recorder, trouble.happened
