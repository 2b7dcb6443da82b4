"""Which work of a store lacks space on the disk, and for how long changes have been refused for that reason.

A store whose disk is full continues: the next local checkpoint is tried again, and the log takes changes until it is
full or has no file to grow into. A node of a group asks here whether another node should lead.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock

LOCAL_CHECKPOINTS, BINLOG, TABLESPACES, REDO_LOG = "local checkpoints", "the binlog", "tablespaces", "the REDO log"


class DiskShortage:
    """See the module. Any thread may call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._lacking: dict[str, str] = {}  # by work: what the disk said at its last try
        self._first: float | None = None  # when a change was refused first, while work lacked space
        self._last = 0.0

    def lacks(self, work: str, reason: str) -> None:
        """Note that work could not be done, because the disk is full."""
        with self._mutex:
            self._lacking[work] = reason

    def has_space(self, work: str) -> None:
        """Note that work was done."""
        if work in self._lacking:
            with self._mutex:
                self._lacking.pop(work, None)
                if not self._lacking:
                    self._first = None

    def refused(self) -> None:
        """Note that a change is refused, or waits. It counts only while work lacks space."""
        if self._lacking:
            with self._mutex:
                self._last = self._clock.monotonic()
                self._first = self._last if self._first is None else self._first

    @property
    def reason(self) -> str:
        """What lacks space, and what the disk said; "" if nothing does."""
        with self._mutex:
            found = next(iter(self._lacking.items()), None)
        return "" if found is None else f"the disk has no room for {found[0]} ({found[1].partition(';')[0]})"

    @property
    def refused_s(self) -> float:
        """For how many seconds changes have been refused: from the first refusal to the last."""
        with self._mutex:
            return 0.0 if self._first is None else self._last - self._first
