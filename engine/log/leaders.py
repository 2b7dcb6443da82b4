"""Waiting for a group: one thread does the work for all, the others sleep until their group is done, or lead next.

The log has no thread of its own: the first thread that finds no leader leads, and then hands over to a waiter.

The followers of a group wait at one gate, a lock that they pass one after another. The leader opens it once; each
follower that passes opens it for the next one. So the leader wakes one thread, however many wait, and few threads
contend for the GIL at any time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.base.failure import Failure

# Interval at which a follower checks whether there is a leader: a second signal may interrupt the leader's handover, or
# a follower between passing the gate and opening it.
FOLLOWER_POLL_SECONDS = 0.1


class Gate:
    """Where the followers of one group wait."""

    __slots__ = ("followers", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        # A token for each. To add and to discard one is a single step, and may be repeated: so the number is right with
        # threads that leave at once, and after a signal at any point.
        self.followers: set[object] = set()

    def open(self) -> None:
        """Let one follower pass: one that waits, or the next that comes."""
        try:
            self.lock.release()
        except RuntimeError:  # it is open
            return


class Leaders:
    """One kind of work done group after group, for threads that each wait until it has reached their group."""

    def __init__(self, failure: Failure, reached: int) -> None:
        """reached: the last group that is done."""
        self._failure = failure
        self._guard = threading.Lock()
        self._leader: object | None = None
        self._gates: dict[int, Gate] = {}
        self.reached = reached

    @property
    def followers(self) -> int:
        """How many threads wait for another one's work."""
        with self._guard:
            return sum(len(gate.followers) for gate in self._gates.values())

    def wait(self, sequence: int, lead: Callable[[int], None]) -> None:
        """Return when the work has reached a group; lead it if no other thread does. Raises: StoreFailed, and any
        exception of `lead`.

        lead: continues the work up to a sequence, or as far as there is work; it sets `reached` and calls
        `wake_followers` after each step. It is not stored: a reference cycle would keep a closed store alive.
        """
        while self.reached < sequence:
            token = object()
            gate: Gate | None = None
            try:
                with self._guard:
                    if self._leader is None:
                        self._leader = token
                    elif self.reached < sequence:
                        gate = self._gates.get(sequence)
                        if gate is None:
                            gate = self._gates[sequence] = Gate()
                        gate.followers.add(token)
                if gate is None:
                    if self._leader is token:
                        lead(sequence)
                else:
                    self._follow(sequence, gate)
            finally:
                if gate is not None:
                    gate.followers.discard(token)
                if self._leader is token:
                    self._leader = None  # no call precedes it, so no signal can leave a stale leader
                    self._hand_over()

    def _follow(self, sequence: int, gate: Gate) -> None:
        """Pass the gate, and open it for the next follower, unless this one was woken to lead."""
        passed = False
        try:
            passed = gate.lock.acquire(timeout=FOLLOWER_POLL_SECONDS)
            if self.reached < sequence:
                self._failure.check()
                passed = False  # it leads, or waits again
        finally:
            if passed:
                gate.open()

    def wake_followers(self) -> None:
        """Wake the followers of all groups that are done. Those missed here are woken when the leader hands over."""
        if self._gates:
            with self._guard:
                self._open_reached()

    def _open_reached(self) -> None:
        for sequence in [each for each in self._gates if each <= self.reached]:
            self._gates.pop(sequence).open()

    def _hand_over(self) -> None:
        """Wake a follower of the first group that is not done, which then leads; after a failure wake all followers,
        which then raise it.
        """
        with self._guard:
            if self._gates:
                self._open_reached()
                waiting = [each for each in sorted(self._gates) if self._gates[each].followers]
                for sequence in waiting if self._failure.first is not None else waiting[:1]:
                    self._gates[sequence].open()
