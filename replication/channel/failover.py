"""Decides when a channel must move to another source, from the heartbeat row of the site whose changes it brings.

The row is replicated like any other, through every site in between. That it changes proves that the whole way works.
Its time is not used; the time without a change is measured by the monotonic clock of the replica.
"""

from __future__ import annotations

FAILOVER_MS_MAX = 86_400_000
ROUNDS_MAX = 5  # how many rounds through all sources without success double the patience


class HeartbeatWatch:
    """The watch of a channel with several sources. Times are seconds of one monotonic clock. One thread at a time calls
    it.
    """

    def __init__(self, after_s: float, sources: int, now: float) -> None:
        self.moves = 0
        self._after_s = after_s
        self._sources = sources
        self._in_vain = 0  # moves since the row has changed
        self._value: int | None = None
        self._since = now

    def saw(self, value: int | None, now: float) -> None:
        """The row as it is now, None without one."""
        if value is not None and value != self._value:
            self._value = value
            self._in_vain = 0
            self._since = now

    def begin(self, now: float) -> None:
        """Begin to watch: the time before counts for nothing."""
        self._since = now

    def silent_s(self, now: float) -> float:
        """How long the row has not changed, or the present source has been in use."""
        return max(0.0, now - self._since)

    def is_due(self, now: float) -> bool:
        """Whether this source has had its time. Each source has the same. If none brings a newer row, the site that
        writes it is down and not its sources, so each round takes twice the time of the one before.
        """
        rounds = min(self._in_vain // self._sources, ROUNDS_MAX)
        return now - self._since >= self._after_s * (1 << rounds)

    def moved(self, now: float) -> None:
        """The next source has its turn."""
        self.moves += 1
        self._in_vain += 1
        self._since = now
