"""Lag: the epochs in flight, how far they are, and since when.

Epochs are not consecutive numbers, so they are counted, not subtracted. A trail keeps the epochs that have set out and
the stations that they have passed. Epochs of a site set out when they are in its binlog, and return around the circle
as the max replicated epoch. Memory is bounded: a trail that grows too long drops its oldest epochs, and its counts are
then lower bounds.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

EPOCHS_MAX = 1 << 16


class EpochTrail:
    """The epochs that have set out and not passed the last station. Epochs pass `stations` in this order.

    Any thread may call it.
    """

    def __init__(self, stations: Sequence[str], epochs_max: int = EPOCHS_MAX) -> None:
        self.stations = tuple(stations)
        self.newest = 0
        self._epochs_max = epochs_max
        self._passed = dict.fromkeys(self.stations, 0)
        self._epochs: list[int] = []
        self._times_us: list[int] = []
        self._forgotten = 0
        self._mutex = threading.Lock()

    def set_out(self, epoch: int, wall_us: int) -> None:
        """Add an epoch that sets out at `wall_us`, µs since 1970. An epoch that is not newer than all others is
        ignored, because after a restart epochs may be reported again.
        """
        with self._mutex:
            if epoch <= self.newest:
                return
            self.newest = epoch
            self._epochs.append(epoch)
            self._times_us.append(wall_us)
            self._forget()

    def passed(self, station: str, epoch: int) -> None:
        """Record that all epochs up to this one have passed a station. An older epoch changes nothing. Raises: KeyError
        for an unknown station.
        """
        with self._mutex:
            self._passed[station] = max(self._passed[station], epoch)
            self._forget()

    def _forget(self) -> None:
        done = bisect_right(self._epochs, self._passed[self.stations[-1]])
        if done:
            self._forgotten = 0
        surplus = len(self._epochs) - done - self._epochs_max
        if surplus > 0:
            self._forgotten += surplus
            done += surplus
        if done:
            del self._epochs[:done], self._times_us[:done]

    def to_dict(self, now_us: int) -> dict[str, Any]:
        """Return the lag in epochs and in seconds (age of the oldest epoch that has not passed the last station), and
        for each station the newest epoch that has passed it, and the number of epochs on their way to it: those that
        have passed the previous station.
        """
        with self._mutex:
            stations, newest = {}, len(self._epochs)
            for station, passed in self._passed.items():
                oldest = min(bisect_right(self._epochs, passed), newest)
                stations[station] = {"passed_epoch": passed, "epochs_on_the_way": newest - oldest}
                newest = oldest
            seconds = max(0.0, (now_us - self._times_us[0]) / 1e6) if self._times_us else 0.0
            return {
                "newest_epoch": self.newest,
                "lag_epochs": len(self._epochs) + self._forgotten,
                "lag_seconds": seconds,
                "stations": stations,
            }
