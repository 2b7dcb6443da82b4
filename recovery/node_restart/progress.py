"""The progress of a copy, on either side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock


@dataclass
class Progress:
    """Counters of one node restart. Progress is measured in pages of slots: pages left to scan show the time left."""

    clock: Clock
    began: float  # seconds of the monotonic clock
    variant: str = ""
    why: str = ""
    fragments: int = 0
    fragments_done: int = 0
    pages: int = 0
    pages_done: int = 0
    slots: int = 0  # looked at by the live node's scan
    deletes: int = 0  # items of the delete log
    rows: int = 0
    bytes: int = 0
    groups: int = 0
    is_done: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the counters as plain values, with rates per second and the seconds left (None: unknown)."""
        seconds = max(self.clock.monotonic() - self.began, 1e-9)
        left: float | None = None
        if self.is_done:
            left = 0.0
        elif self.pages_done:
            left = seconds * max(0, self.pages - self.pages_done) / self.pages_done
        counters = {name: value for name, value in self.__dict__.items() if name not in ("clock", "began")}
        return {
            **counters,
            "seconds": seconds,
            "rows_per_second": self.rows / seconds,
            "bytes_per_second": self.bytes / seconds,
            "seconds_left": left,
        }
