"""The passes over one epoch transaction that transactional functions need: NORMAL, TRACK, APPLY.

NORMAL looks for a first conflict without tracking. TRACK tracks every key and marks transactions; APPLY rejects marked
transactions. A rolled-back pass leaves only its marks, and another pass follows at once, which does not count as a
retry. Marks only grow, so the passes end; their number is limited because of invalid streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemark.engine.base.errors import PeerError

PASSES_MAX = 100


class Pass(Enum):
    """The kind of the current pass."""

    NORMAL = "normal"
    TRACK = "track"
    APPLY = "apply"


class Ending(Enum):
    """The step after a pass: to commit, or to roll back and keep or drop the counters of the pass."""

    COMMIT = "commit"
    AGAIN_KEEP_COUNTERS = "roll back, keep counters"
    AGAIN_DROP_COUNTERS = "roll back, drop counters"


@dataclass
class Passes:
    """The state that outlives epoch transactions: after one with a conflict, the next begins in TRACK."""

    state: Pass = Pass.NORMAL
    detect_iterations: int = 0  # changes from TRACK to APPLY in the current epoch transaction
    conflict_commits: int = 0
    _in_a_row: int = 0

    def begin(self) -> None:
        """Begin an epoch transaction, before its first pass."""
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
