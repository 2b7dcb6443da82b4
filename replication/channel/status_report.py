"""The status variables of one open store, each read where `replication/settings/status.py` says that it is counted.

Rooms that count or know a variable register it here. A variable that no room has registered is 0, as at a server that
does not replicate. Reading takes no lock, so values are of about the same instant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark.replication.channel.lag import EpochTrail
from tidemark.replication.settings.status import BY_NAME, VARIABLES, Counters, find, shown_name


class ReplicationStatus:
    """Status variables are the sums of `counters`, which belong to appliers, or gauges, which are read on request.
    `trails` have the epochs in flight, by name of their target, for instance "to server 2".
    """

    def __init__(self) -> None:
        self.counters: list[Counters] = []
        self.trails: dict[str, EpochTrail] = {}
        self._gauges: dict[str, Callable[[], int]] = {}

    def gauge(self, name: str, value: Callable[[], int]) -> None:
        """Show the result of `value` as a variable, given by any of its names, from now on.

        Raises: KeyError if there is no such variable.
        """
        self._gauges[BY_NAME[name].name] = value

    def new_counters(self) -> Counters:
        """Return the counters of one more applier; they stay in the sums after the applier has ended."""
        made = Counters()
        self.counters.append(made)
        return made

    def value(self, name: str) -> int:
        """Return a variable by any of its names, with or without prefix. Raises: KeyError if there is none."""
        found = find(name)
        if found is None:
            raise KeyError(name)
        gauge = self._gauges.get(found.name)
        return gauge() if gauge is not None else sum(each.totals.get(found.name, 0) for each in self.counters)

    def variables(self) -> dict[str, int]:
        """Return every variable by the name that the server shows."""
        return {shown_name(each): self.value(each.name) for each in VARIABLES}

    def to_dict(self, now_us: int) -> dict[str, Any]:
        """Return every variable, and the lag of every trail."""
        return {
            "variables": self.variables(),
            "lag": {name: trail.to_dict(now_us) for name, trail in list(self.trails.items())},
        }
