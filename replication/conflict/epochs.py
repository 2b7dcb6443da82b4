"""What an applier keeps from one epoch transaction to the next: their order, the max replicated epoch, the last
conflict, and the passes of transactional functions.

The max replicated epoch (MRE) is the highest own epoch known to be applied at the peer. An epoch transaction uses the
value from its beginning; only its commit raises the value. The value falls if the rows of `ndb_apply_status` are gone
when a channel starts: it is then unknown what the peer has applied. While it is less than the last epoch with a
conflict, the peer has not confirmed that it is realigned.

Transactional functions need several passes over an epoch transaction. NORMAL looks for a first conflict without
tracking. TRACK tracks every key and marks transactions; APPLY rejects marked transactions. A rolled-back pass leaves
only its marks, and another pass follows at once, which does not count as a retry. Marks only grow, so the passes end;
their number is limited because of invalid streams.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from tidemark.engine.base.errors import PeerError


@dataclass
class EpochVerifier:
    """Verifies the epochs of one source: each comes once, in order, but the first after a start may be one that was
    applied before. `highest` is the epoch that began last, initially the one in `ndb_apply_status`, 0 if there is none.
    """

    highest: int = 0
    allow_skip: bool = False
    _is_first: bool = True
    _is_committed: bool = True

    def begin(self, epoch: int) -> bool:
        """Begin an epoch transaction; return whether it follows what was applied. Raises: PeerError, which stops the
        applier.
        """
        follows = self._follows(epoch)
        self.highest = epoch  # it may fall: after a start that is too early, applied epochs come again
        self._is_first = False
        self._is_committed = False
        return follows

    def _follows(self, epoch: int) -> bool:
        if self._is_first:
            return epoch >= self.highest
        if self._is_committed:
            if epoch > self.highest:
                return True
            what = "was applied already" if epoch == self.highest else "is older than one applied before"
        elif epoch == self.highest:
            return True
        elif epoch > self.highest:
            if self.allow_skip:
                return False
            what = "came although the one before it was not committed"
        else:
            what = "is older than the one that was not committed"
        raise PeerError(
            f"epoch {epoch} {what} ({self.highest}); the applier stops, check the source and its position",
            epoch=epoch,
            highest=self.highest,
        )

    def commit(self) -> None:
        self._is_committed = True

    def roll_back(self) -> None:
        """Note that the epoch transaction was rolled back; the same epoch comes again."""
        self._is_committed = False


def starting_epoch(rows: Iterable[tuple[int, int]], own_id: int, ignored: Collection[int] = ()) -> int:
    """Return the MRE at the start of an applier, from the rows (server id, epoch) of `ndb_apply_status`: the highest
    epoch of the own id and of `ignored` ids, those of other servers of the same cluster; 0 without such rows.
    """
    return max((epoch for server_id, epoch in rows if server_id == own_id or server_id in ignored), default=0)


@dataclass
class MaxReplicatedEpoch:
    """The state of one site: the status variable shows `value`, an epoch transaction compares with `frozen`."""

    own_id: int
    ignored: frozenset[int] = frozenset()
    value: int = 0
    frozen: int = 0
    pending: int = 0

    def begin(self) -> int:
        """Begin an epoch transaction; return the epoch that its programs use."""
        self.frozen = self.value
        self.pending = 0
        return self.frozen

    def see(self, server_id: int, epoch: int) -> None:
        """Note that a row of `ndb_apply_status` was written; it counts if its epoch is one of this site."""
        if server_id == self.own_id or server_id in self.ignored:
            self.pending = max(self.pending, epoch)

    def commit(self) -> None:
        self.value = max(self.value, self.pending)
        self.pending = 0

    def roll_back(self) -> None:
        self.pending = 0

    def reset(self) -> None:
        """Reset at the start of a channel, which then takes the value from the rows of `ndb_apply_status`."""
        self.value = self.frozen = self.pending = 0


@dataclass
class LastConflict:
    """Two status variables; both are 0 when the server starts."""

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
