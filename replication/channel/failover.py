"""Whether a channel must go on with another source: watches the heartbeat row of the site whose changes it brings.

The row travels as any other, through every site between. That it changes says that the whole way works; nothing is
read out of the time in it, and how long it has not changed is measured by the monotonic clock of who waits.
"""

from __future__ import annotations

FAILOVER_MS_MAX = 86_400_000
ROUNDS_MAX = 5  # rounds through all sources in vain that double the patience


class HeartbeatWatch:
    """Of a channel with so many sources. Times are seconds of one monotonic clock. One thread at a time calls it."""

    def __init__(self, after_s: float, sources: int, now: float) -> None:
        self.moves = 0
        self._after_s = after_s
        self._sources = sources
        self._in_vain = 0  # moves since the row has changed
        self._value: int | None = None
        self._since = now

    def saw(self, value: int | None, now: float) -> None:
        """What the row says now, None without one."""
        if value is not None and value != self._value:
            self._value = value
            self._in_vain = 0
            self._since = now

    def begin(self, now: float) -> None:
        """The time before counts for nothing: nobody applied."""
        self._since = now

    def silent_s(self, now: float) -> float:
        """How long the row has not changed, or the source has had."""
        return max(0.0, now - self._since)

    def is_due(self, now: float) -> bool:
        """Whether this source has had its time. Each has as long; if none brings a newer row, the site that writes it
        is gone, not its sources, and each round takes twice the time of the one before.
        """
        rounds = min(self._in_vain // self._sources, ROUNDS_MAX)
        return now - self._since >= self._after_s * (1 << rounds)

    def moved(self, now: float) -> None:
        """The next source has its turn."""
        self.moves += 1
        self._in_vain += 1
        self._since = now
