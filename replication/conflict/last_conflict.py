"""The last epoch with a conflict, and whether the peer has confirmed that it is realigned since.

While `max replicated epoch < last_conflict`, the realignment is not confirmed.
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
        """Note that an epoch transaction has committed in the local `epoch`. `conflicts`: its row conflicts;
        `reflected_applied`: reflected operations that it applied; `refreshed`: refresh operations that it received;
        `max_replicated_epoch`: the MRE after its commit.
        """
        if conflicts or reflected_applied or refreshed:
            self.last_conflict = epoch
        elif max_replicated_epoch >= self.last_conflict:
            self.last_stable = max_replicated_epoch
