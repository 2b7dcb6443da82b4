"""Who waits for a group: one thread does the work for all, the others sleep until theirs is done, or lead next.

The log has no thread: whoever comes first and finds nobody leading leads, and hands over to one who still waits.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.base.failure import Failure

# A follower looks for itself this often whether somebody leads: a second signal may cut the leader's handing over.
FOLLOWER_POLL_SECONDS = 0.1


class Leaders:
    """One kind of work done group after group, for threads that each wait until it has come to theirs."""

    def __init__(self, failure: Failure) -> None:
        self._failure = failure
        self._guard = threading.Lock()
        self._leader: object | None = None
        self.followers: deque[tuple[int, threading.Lock]] = deque()

    def wait(self, sequence: int, reached: Callable[[], int], lead: Callable[[int], None]) -> None:
        """Return when the work has come to a group, leading if nobody does. Raises: StoreFailed, and what leading
        raises.

        reached: how far it has come. lead: go on with it up to a sequence, or as far as there is anything to do, and
        call `let_go` behind each step. Neither is kept, or a closed store would be one with itself in a cycle.
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
                    self._leader = None  # no call before it, so no signal can leave all with a leader who has gone
                    self._hand_over()
                elif gate is not None:
                    self._leave(sequence, gate)

    def let_go(self, reached: int) -> None:
        """Wake those whose group has been reached."""
        with self._guard:
            for _ in range(len(self.followers)):
                wanted, gate = self.followers.popleft()
                if wanted <= reached:
                    gate.release()
                else:
                    self.followers.append((wanted, gate))

    def _hand_over(self) -> None:
        """The leader has gone; the first who still waits takes over, or on failure all go and see it."""
        with self._guard:
            if self._failure.first is not None:
                while self.followers:
                    self.followers.popleft()[1].release()
            elif self.followers:
                self.followers.popleft()[1].release()

    def _leave(self, sequence: int, gate: threading.Lock) -> None:
        """A follower goes on or gives up: if it was called to lead and will not, somebody else must be."""
        with self._guard:
            if (sequence, gate) in self.followers:
                self.followers.remove((sequence, gate))
            elif self._leader is None and self.followers:
                self.followers.popleft()[1].release()
