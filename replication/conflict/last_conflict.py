"""Which epoch was the last to meet a conflict, and up to which own epoch the peer is known to be realigned.

While `max replicated epoch < last_conflict` the realignment has not been confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LastConflict:
    """Two status variables; both begin at 0 with the server."""

    last_conflict: int = 0
    last_stable: int = 0

    def commit(
        self, epoch: int, max_replicated_epoch: int, conflicts: int, reflected_applied: int, refreshed: int
    ) -> None:
        """Note that an epoch transaction has committed in the local `epoch`, with so many row conflicts, reflected
        operations applied and refresh operations received; `max_replicated_epoch` is the MRE after its commit.
        """
        if conflicts or reflected_applied or refreshed:
            self.last_conflict = epoch
        elif max_replicated_epoch >= self.last_conflict:
            self.last_stable = max_replicated_epoch

    def is_realigned(self, max_replicated_epoch: int) -> bool:
        """Whether the peer has confirmed the last conflict's epoch."""
        return max_replicated_epoch >= self.last_conflict
