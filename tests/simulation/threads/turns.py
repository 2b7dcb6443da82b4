"""The scheduler: threads that take part run one at a time, and a seed decides where another one continues.

Each thread has a gate at which it sleeps. The running thread reaches *points* (kernel calls, locks, words of the arena,
calls of the disk) and hands the turn over at some of them. A thread that must wait names what it waits for, and its
deadline. Time is virtual: every point takes a little, and when no thread can run it jumps to the next deadline. The
trace is a digest over all points: the same seed gives the same trace.

Each seed draws its own kind of run: how often turns change, how much slower some threads are than others, how often a
thread stops for long in the middle of its work.
"""

from __future__ import annotations

import gc
import hashlib
import random
import sys
import threading
import traceback
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

POINT_SECONDS = 0.000_005
POINTS_MAX = 1_000_000
SECONDS_MAX = 600.0
# Share of the changes of turns at which time jumps to the next deadline.
JUMP_SHARE = 0.01
PARKED_POINTS_MIN = 30
PARKED_POINTS_MAX = 12_000
COLLECT_POINTS = 20_000
_HARNESS = ("simulation/threads/", "/threading.py")


class Turn:
    """One thread that takes part."""

    __slots__ = ("deadline", "gate", "has_ended", "ident", "name", "parked_until", "resource", "waits_for", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.gate = allocate_lock()
        self.gate.acquire()
        self.ident = 0
        self.resource: object | None = None  # what it waits for; None if it can run
        self.waits_for = ""
        self.deadline: float | None = None
        self.parked_until = 0
        self.has_ended = False


class Turns:
    """The scheduler of one life. Only the running thread uses it."""

    def __init__(
        self,
        seed: int,
        fail: Callable[[str], NoReturn],
        read_rate: float = 0.02,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """fail: ends the life with what is wrong, from any thread. read_rate: share of reads of arena words that are
        points. say: called at every change of turns.
        """
        self.seed = seed
        self.now = 0.0
        self.points = 0
        self.switches = 0
        self.read_rate = read_rate
        self._fail = fail
        self._say = say
        self._rng = random.Random(f"turns {seed}")
        self.rate = self._rng.choice((0.02, 0.05, 0.1, 0.2, 0.4))
        self.park_rate = self._rng.choice((0.0, 0.001, 0.004, 0.015))  # of kernel calls and looks
        self.line_rate = self._rng.choice((0.0, 0.0, 0.002, 0.02))
        self.limit = POINTS_MAX  # number of points at which `on_limit` is called
        self.on_limit: Callable[[], None] = lambda: None
        self._lines_left = 0  # lines before the next one that is a point
        self._is_uneven = self._rng.random() < 0.5
        self._digest = hashlib.blake2b(digest_size=8)
        self._turns: list[Turn] = []
        self._names: dict[str, int] = {}
        self._running: Turn | None = None
        self._ident = 0  # of the running thread
        self._is_deciding = False

    # --- threads ---------------------------------------------------------------------------------
    def begin(self) -> None:
        """Let the calling thread take part, as the running one, from now on."""
        turn = self.add("main")
        turn.ident = self._ident = get_ident()
        self._running = turn

    def end(self) -> None:
        """End the part of the calling thread. All others have ended."""
        self._ident = 0
        self._running = None

    def add(self, name: str) -> Turn:
        """Add a thread that is about to be started; it waits at its gate."""
        number = self._names[name] = self._names.get(name, 0) + 1
        weight = self._rng.choice((0.05, 0.3, 1.0, 3.0)) if self._is_uneven else 1.0
        turn = Turn(name if number == 1 else f"{name}#{number}", weight)
        self._turns.append(turn)
        return turn

    def enter(self, turn: Turn) -> None:
        """Wait for the first turn, as the first thing in a new thread."""
        turn.gate.acquire()

    def leave(self, turn: Turn) -> None:
        """End the part of a thread, as its last action: threads that wait for its end can run."""
        turn.has_ended = True
        self._turns.remove(turn)
        self.wake(turn)
        self._note("end", turn.name)
        self._run(self._choose())

    def takes_part(self) -> bool:
        """Whether the calling thread is the running one. All other threads of the process are not scheduled."""
        return get_ident() == self._ident and not self._is_deciding

    def hurry(self) -> None:
        """Make all threads equally fast from now on, without long stops, so that the life ends soon."""
        self.park_rate, self._is_uneven = 0.0, False
        for turn in self._turns:
            turn.weight, turn.parked_until = 1.0, 0

    # --- points ----------------------------------------------------------------------------------
    def point(self, kind: str, may_park: bool = False) -> None:
        """Let another thread run here, perhaps. may_park: this one may be made to wait for long."""
        if get_ident() != self._ident or self._is_deciding:
            return
        running = self._running
        assert running is not None
        self._count()
        self._note(kind, running.name)
        if self.points % COLLECT_POINTS == 0:
            gc.collect()  # finalizers run wherever a thread may be
        if self.points >= self.limit:
            self.limit = POINTS_MAX
            self.on_limit()
        if may_park and self._rng.random() < self.park_rate:
            longer = self._rng.random()
            points = PARKED_POINTS_MIN * (PARKED_POINTS_MAX / PARKED_POINTS_MIN) ** longer
            running.parked_until = self.points + int(points)
            self._switch(running, kind)
        elif self._rng.random() < self.rate:
            self._switch(running, kind)

    def read(self) -> None:
        """Make a point, now and then, before Python reads or writes a word of the arena."""
        if get_ident() == self._ident and not self._is_deciding and self._rng.random() < self.read_rate:
            self.point("word", True)

    def line(self) -> None:
        """Make a point, now and then, before a line of the engine."""
        if get_ident() == self._ident and not self._is_deciding:
            self._lines_left -= 1
            if self._lines_left <= 0:
                self._lines_left = int(self._rng.expovariate(self.line_rate))
                self.point("line", True)

    def wait(self, resource: object, waits_for: str, deadline: float | None = None) -> None:
        """Let others run until `wake(resource)` or the deadline. Only the running thread calls this."""
        running = self._running
        assert running is not None
        self._count()  # threads that were stopped for some points must continue even if this one only waits
        running.resource, running.waits_for, running.deadline = resource, waits_for, deadline
        self._note(f"wait {waits_for}", running.name)
        self._switch(running, waits_for)
        running.resource, running.deadline = None, None

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        if self.takes_part():
            self.wait(object(), "time", self.now + max(0.0, seconds))

    def wake(self, resource: object) -> None:
        """Let threads that wait for a resource run."""
        for turn in self._turns:
            if turn.resource is resource:
                turn.resource = None

    # --- turns -----------------------------------------------------------------------------------
    def _note(self, kind: str, name: str) -> None:
        self._digest.update(f"{name} {kind};".encode())

    def _count(self) -> None:
        self.points += 1
        self.now += POINT_SECONDS
        if self.points > POINTS_MAX or self.now > SECONDS_MAX:
            self.stop(f"no end after {self.points} points and {self.now:.1f} s of virtual time")

    def _switch(self, running: Turn, kind: str) -> None:
        chosen = self._choose()
        if chosen is running:
            return
        self._note("to", chosen.name)
        if self._say is not None:
            self._say(f"{self.points} {self.now:.6f} {running.name} [{kind}] -> {chosen.name}")
        self._run(chosen)
        running.gate.acquire()

    def _run(self, chosen: Turn) -> None:
        self.switches += 1
        self._running = chosen
        self._ident = chosen.ident
        chosen.gate.release()

    def _choose(self) -> Turn:
        self._is_deciding = True
        try:
            return self._chosen()
        finally:
            self._is_deciding = False

    def _chosen(self) -> Turn:
        if self._rng.random() < JUMP_SHARE:
            self._to_next_deadline()
        while True:
            able = [each for each in self._turns if self._is_able(each)]
            awake = [each for each in able if each.parked_until <= self.points]
            if awake:
                return self._rng.choices(awake, [each.weight for each in awake])[0]
            if able:
                return min(able, key=lambda each: each.parked_until)
            if not self._to_next_deadline():
                self.stop("deadlock: no thread can run")

    def _is_able(self, turn: Turn) -> bool:
        return turn.resource is None or (turn.deadline is not None and turn.deadline <= self.now)

    def _to_next_deadline(self) -> bool:
        ahead = [each.deadline for each in self._turns if each.resource is not None and each.deadline is not None]
        if ahead:
            self.now = max(self.now, min(ahead))
        return bool(ahead)

    # --- the result ------------------------------------------------------------------------------
    @property
    def trace(self) -> str:
        """Digest over all points so far."""
        return self._digest.hexdigest()

    def stop(self, text: str) -> NoReturn:
        """End the life, because no thread can run, or nothing ends."""
        self._fail(f"{text}\n{self.stacks()}")

    def stacks(self) -> str:
        """Return what each thread waits for, and its stack."""
        frames = sys._current_frames()
        reported = []
        for turn in self._turns:
            waits = f"waits for {turn.waits_for}" if turn.resource is not None else "can run"
            reported.append(f"--- {turn.name} {waits}")
            frame = frames.get(turn.ident)
            if frame is not None:
                reported.extend(_places(frame))
        return "\n".join(reported)


def _places(frame: FrameType) -> list[str]:
    summary = traceback.extract_stack(frame)
    shown = [each for each in summary if not any(part in each.filename for part in _HARNESS)]
    return [f"    {each.filename}:{each.lineno} {each.name}: {each.line}" for each in shown[-12:]]


def thread_name(thread: threading.Thread) -> str:
    """Return the name of a thread, without the number that counts all threads of the process."""
    name = thread.name
    return name if not name.startswith("Thread-") else f"thread {name.partition('(')[2].rstrip(')')}"
