"""Decide when a channel must move to another source, by the heartbeat row of the site whose changes it brings.

The row is replicated like any other, through every site in between, so a change of it proves that the whole path works.
The time in the row is not used. The replica measures the time without a change by its own monotonic clock.
"""

from __future__ import annotations

FAILOVER_MS_MAX = 86_400_000
ROUNDS_MAX = 5  # failed rounds through all sources that double the time for each source


class HeartbeatWatch:
    """Watches the heartbeat row for a channel with several sources. Times are in seconds, by one monotonic clock. One
    thread at a time may call it.
    """

    def __init__(self, after_s: float, sources: int, now: float) -> None:
        self.moves = 0
        self._after_s = after_s
        self._sources = sources
        self._in_vain = 0  # moves since the last change of the row
        self._value: int | None = None
        self._since = now

    def saw(self, value: int | None, now: float) -> None:
        """Record the value of the row as it is now, None without a row."""
        if value is not None and value != self._value:
            self._value = value
            self._in_vain = 0
            self._since = now

    def begin(self, now: float) -> None:
        """Begin to watch: the time before `now` does not count."""
        self._since = now

    def silent_s(self, now: float) -> float:
        """Return for how long the row has not changed, or the present source has been in use, whichever is shorter."""
        return max(0.0, now - self._since)

    def is_due(self, now: float) -> bool:
        """Whether the present source has used up its time. All sources get the same time. If none brings a newer row,
        the site that writes the row is down, not the sources, so each round takes twice as long as the one before.
        """
        rounds = min(self._in_vain // self._sources, ROUNDS_MAX)
        return now - self._since >= self._after_s * (1 << rounds)

    def moved(self, now: float) -> None:
        """Record that the channel has moved to its next source."""
        self.moves += 1
        self._in_vain += 1
        self._since = now
