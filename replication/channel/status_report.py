"""The status variables of one open store: each from the place where the table in `status.py` says it is counted.

Rooms that count or know a variable register it here. A variable that no room has registered is 0, as at a server that
does not replicate. Reading takes no lock: values are of about the same instant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark.replication.channel.lag import EpochTrail
from tidemark.replication.settings.status import BY_NAME, VARIABLES, Counters, find, shown_name


class ReplicationStatus:
    """`counters` are those of appliers, and their sums are shown; everything else is a gauge, read when status is.
    `trails` have the epochs on their way, by the name of their follower: a channel, or the binlog.
    """

    def __init__(self) -> None:
        self.counters: list[Counters] = []
        self.trails: dict[str, EpochTrail] = {}
        self._gauges: dict[str, Callable[[], int]] = {}

    def gauge(self, name: str, value: Callable[[], int]) -> None:
        """Let a variable, by any of its names, be the result of `value` from now on.

        Raises: KeyError if there is none of this name.
        """
        self._gauges[BY_NAME[name].name] = value

    def new_counters(self) -> Counters:
        """Return the counters of one more applier; they stay in the sums after it is gone."""
        made = Counters()
        self.counters.append(made)
        return made

    def value(self, name: str) -> int:
        """A variable by any of its names, with or without prefix. Raises: KeyError if there is none."""
        found = find(name)
        if found is None:
            raise KeyError(name)
        gauge = self._gauges.get(found.name)
        return gauge() if gauge is not None else sum(each.totals.get(found.name, 0) for each in self.counters)

    def variables(self) -> dict[str, int]:
        """Every variable by the name that the server shows."""
        return {shown_name(each): self.value(each.name) for each in VARIABLES}

    def to_dict(self, now_us: int) -> dict[str, Any]:
        """Every variable, and the lag of every trail."""
        return {
            "variables": self.variables(),
            "lag": {name: trail.to_dict(now_us) for name, trail in list(self.trails.items())},
        }
