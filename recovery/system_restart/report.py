"""The report of a restart, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Phase:
    """One step of a restart."""

    name: str
    ms: float
    rows: int = 0
    bytes: int = 0


@dataclass
class RestartReport:
    """The findings and steps of a restart, phase by phase."""

    phases: list[Phase] = field(default_factory=list)
    is_new: bool = False
    lcp_id: int = 0
    lcp_epoch: int = 0
    fallbacks: int = 0
    groups: int = 0
    end_lsn: int = 0
    epoch: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {**self.__dict__, "phases": [dict(phase.__dict__) for phase in self.phases]}
