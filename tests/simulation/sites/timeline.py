"""Virtual time: calls in the order of their due times, and equal due times in the order of the requests."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timeline:
    """Seconds since the simulation began; they pass only by `step`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call after so many seconds."""
        self._asked += 1
        heapq.heappush(self._due, (self.now + seconds, self._asked, call))

    def step(self, until: float) -> bool:
        """Make the next call that is due until a moment; if there is none, advance to that moment and return False."""
        if not self._due or self._due[0][0] > until:
            self.now = max(self.now, until)
            return False
        at, _, call = heapq.heappop(self._due)
        self.now = max(self.now, at)
        call()
        return True
