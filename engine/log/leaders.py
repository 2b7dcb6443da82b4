"""Waiting for a group: one thread does the work for all, the others sleep until their group is done, or lead next.

The log has no thread of its own: the first thread that finds no leader leads, and then hands over to a waiter.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.base.failure import Failure

# Interval at which a follower checks whether there is a leader: a second signal may interrupt the leader's handover.
FOLLOWER_POLL_SECONDS = 0.1


class Leaders:
    """One kind of work done group after group, for threads that each wait until it has reached their group."""

    def __init__(self, failure: Failure) -> None:
        self._failure = failure
        self._guard = threading.Lock()
        self._leader: object | None = None
        self.followers: deque[tuple[int, threading.Lock]] = deque()

    def wait(self, sequence: int, reached: Callable[[], int], lead: Callable[[int], None]) -> None:
        """Return when the work has reached a group; lead it if no other thread does. Raises: StoreFailed, and any
        exception of `lead`.

        reached: returns the sequence that the work has reached. lead: continues it up to a sequence, or as far as there
        is work, and calls `wake_followers` after each step. Neither is stored, since a reference cycle would keep a
        closed store alive.
        """
        while reached() < sequence:
            token = object()
            gate: threading.Lock | None = None
            try:
                with self._guard:
                    if self._leader is None:
                        self._leader = token
                    elif reached() < sequence:
                        gate = threading.Lock()
                        gate.acquire()
                        self.followers.append((sequence, gate))
                if gate is None:
                    if self._leader is token:
                        lead(sequence)
                else:
                    gate.acquire(timeout=FOLLOWER_POLL_SECONDS)
                    if reached() < sequence and self._failure.first is not None:
                        self._failure.check()
            finally:
                if self._leader is token:
                    self._leader = None  # no call precedes it, so no signal can leave a stale leader
                    self._hand_over()
                elif gate is not None:
                    self._leave(sequence, gate)

    def wake_followers(self, reached: int) -> None:
        """Wake the followers up to this sequence."""
        with self._guard:
            for _ in range(len(self.followers)):
                wanted, gate = self.followers.popleft()
                if wanted <= reached:
                    gate.release()
                else:
                    self.followers.append((wanted, gate))

    def _hand_over(self) -> None:
        """Wake the first follower, which then leads; after a failure wake all followers, which then raise it."""
        with self._guard:
            if self._failure.first is not None:
                while self.followers:
                    self.followers.popleft()[1].release()
            elif self.followers:
                self.followers.popleft()[1].release()

    def _leave(self, sequence: int, gate: threading.Lock) -> None:
        """Remove a follower that continues or stops waiting. If it was woken to lead and does not, wake another one."""
        with self._guard:
            if (sequence, gate) in self.followers:
                self.followers.remove((sequence, gate))
            elif self._leader is None and self.followers:
                self.followers.popleft()[1].release()
