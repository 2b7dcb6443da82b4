"""Durations by bucket, for status and metrics. A thread only appends what it measures; buckets are filled in bulk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

FRESH_MAX = 1_024  # durations that wait for their buckets

# Upper bounds of buckets, in seconds.
COMMIT_BOUNDS = (
    *(0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25),
    *(0.5, 1.0, 2.5, 5.0, 10.0),
)
SYNC_BOUNDS = (*(0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5), 10.0)
LCP_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0)
LAG_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0)


class Histogram:
    """Durations in seconds, by buckets with fixed bounds. Threads may share it."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: the upper bounds of the buckets, ascending; one more bucket counts longer durations."""
        self.bounds = tuple(bounds)
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._sum = 0.0
        self._fresh: deque[float] = deque()  # append and popleft are atomic
        self._guard = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count one duration; leave it out if the process has no memory for it, since its operation has succeeded."""
        try:
            self._fresh.append(seconds)
            if len(self._fresh) >= FRESH_MAX:
                self._fold()
        except MemoryError:
            return

    def _fold(self) -> None:
        with self._guard:
            values = np.array([self._fresh.popleft() for _ in range(len(self._fresh))], dtype=np.float64)
            places = np.searchsorted(self.bounds, values)
            self._counts += np.bincount(places, minlength=self._counts.size)
            self._sum += float(values.sum())

    def to_dict(self) -> dict[str, Any]:
        """Return `count`, `sum_seconds` and `buckets`: [upper bound, number of durations up to it], ascending."""
        self._fold()
        with self._guard:
            up_to = np.cumsum(self._counts).tolist()
            total = self._sum
        buckets = [list(each) for each in zip(self.bounds, up_to, strict=False)]
        return {"count": up_to[-1], "sum_seconds": total, "buckets": buckets}
