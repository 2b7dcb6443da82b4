"""The needs for the log, which alone decide how far it may be truncated (D14).

Each holder registers the LSN from which it needs the log, and updates it: local checkpoints (for a restart), the
binlog, the archive, and nodes that are being copied or were copied. The log is truncated to the lowest of these LSNs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock


# The holder that stands for a restart. The log cannot be that holder: it owns these needs, and the two would form a
# cycle (engine/base/owner.py).
RESTART = "restart"


@dataclass(frozen=True)
class Need:
    """The log is needed from an LSN on."""

    what: str
    lsn: int
    since_us: int  # wall clock when it reached this LSN

    def to_dict(self, head_lsn: int) -> dict[str, Any]:
        """Return the need as plain values, with the bytes of log that it keeps."""
        return {**asdict(self), "bytes": max(0, head_lsn - self.lsn)}


class TailNeeds:
    """The needs of one log, by holder: any object. Every caller holds the commit latch."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_holder: dict[object, Need] = {}

    def set(self, holder: object, what: str, lsn: int | None) -> None:
        """Record that the holder, which `what` names, needs the log from this LSN on; None: it no longer does."""
        if lsn is None:
            self._by_holder.pop(holder, None)
            return
        before = self._by_holder.get(holder)
        if before is None or (before.what, before.lsn) != (what, lsn):
            self._by_holder[holder] = Need(what, lsn, self._clock.wall_us())

    def all(self) -> list[Need]:
        """Return every need; the first one holds the tail."""
        return sorted(self._by_holder.values(), key=lambda need: (need.lsn, need.since_us))

    def allow(self, lsn: int) -> bool:
        """Whether the log may be truncated to this LSN: no holder needs anything before it."""
        return all(need.lsn >= lsn for need in self._by_holder.values())
