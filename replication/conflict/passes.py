"""The passes over one epoch transaction that transactional functions need: NORMAL, TRACK, APPLY.

NORMAL looks for a first conflict without tracking. TRACK follows every key and marks transactions; APPLY refuses marked
transactions. A rolled-back pass leaves only its marks: the epoch transaction is run again, without sleep and without
counting as a retry. Marks only grow, so this ends; the bound is for invalid streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemark.engine.base.errors import PeerError

PASSES_MAX = 100


class Pass(Enum):
    """How the epoch transaction is being run."""

    NORMAL = "normal"
    TRACK = "track"
    APPLY = "apply"


class Ending(Enum):
    """What follows a pass; counters of the pass are kept or dropped with its rollback."""

    COMMIT = "commit"
    AGAIN_KEEP_COUNTERS = "roll back, keep counters"
    AGAIN_DROP_COUNTERS = "roll back, drop counters"


@dataclass
class Passes:
    """State over epoch transactions: while conflicts keep coming, each begins in TRACK."""

    state: Pass = Pass.NORMAL
    detect_iterations: int = 0  # TRACK to APPLY, of the running epoch transaction
    conflict_commits: int = 0
    _in_a_row: int = 0

    def begin(self) -> None:
        """Begin an epoch transaction, not one of its passes."""
        self.detect_iterations = self.conflict_commits = self._in_a_row = 0

    def end(self, has_new_conflict: bool) -> Ending:
        """End a pass; `has_new_conflict`: a transactional function met a conflict. Raises: PeerError after too many
        passes.
        """
        if not has_new_conflict:
            if self.state is Pass.APPLY:
                self.conflict_commits += 1
                self.state = Pass.TRACK
            else:
                self.state = Pass.NORMAL
            return Ending.COMMIT
        self._in_a_row += 1
        if self._in_a_row > PASSES_MAX:
            raise PeerError(
                f"an epoch transaction still met new conflicts after {PASSES_MAX} passes; the applier stops"
            )
        if self.state is Pass.TRACK:
            self.detect_iterations += 1
            self.state = Pass.APPLY
            return Ending.AGAIN_KEEP_COUNTERS
        self.state = Pass.TRACK
        return Ending.AGAIN_DROP_COUNTERS
