"""The status variables of one open store put together: each from where the table in `status.py` says it is counted.

Rooms that count or know something register it here; what nobody has registered is 0, as at a server that does not
replicate. Reading costs nobody a lock: values are of about the same instant.
"""

from __future__ import annotations

from collections.abc import Callable

from replication.status import BY_NAME, VARIABLES, Counters, find, shown_name


class ReplicationStatus:
    """`counters` are the applier's; everything else is a gauge, asked when status is."""

    def __init__(self) -> None:
        self.counters = Counters()
        self._gauges: dict[str, Callable[[], int]] = {}

    def gauge(self, name: str, value: Callable[[], int]) -> None:
        """Let a variable, by any of its names, be what `value` returns from now on.

        Raises: KeyError if there is none of this name.
        """
        self._gauges[BY_NAME[name].name] = value

    def value(self, name: str) -> int:
        """A variable by any of its names, with or without prefix. Raises: KeyError if there is none."""
        found = find(name)
        if found is None:
            raise KeyError(name)
        gauge = self._gauges.get(found.name)
        return gauge() if gauge is not None else self.counters.totals.get(found.name, 0)

    def variables(self) -> dict[str, int]:
        """Every variable by the name the server shows."""
        return {shown_name(each): self.value(each.name) for each in VARIABLES}
