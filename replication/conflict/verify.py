"""Verification of the incoming epochs of one source: each comes once, in order, but the first after a start may be one
that was applied before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemark.engine.base.errors import PeerError


class Verdict(Enum):
    """What to do with an epoch."""

    OK = "ok"
    WARN = "go on, and say so"


@dataclass
class EpochVerifier:
    """`highest` is the epoch that began last, initially the one in `ndb_apply_status`, 0 if there is none."""

    highest: int = 0
    allow_skip: bool = False
    _is_first: bool = True
    _is_committed: bool = True

    def begin(self, epoch: int) -> Verdict:
        """Begin an epoch transaction. Raises: PeerError, which stops the applier."""
        verdict = self._verdict(epoch)
        self.highest = epoch  # it may fall: after a start that is too early, applied epochs come again
        self._is_first = False
        self._is_committed = False
        return verdict

    def _verdict(self, epoch: int) -> Verdict:
        if self._is_first:
            return Verdict.WARN if epoch < self.highest else Verdict.OK
        if self._is_committed:
            if epoch > self.highest:
                return Verdict.OK
            what = "was applied already" if epoch == self.highest else "is older than one applied before"
        elif epoch == self.highest:
            return Verdict.OK
        elif epoch > self.highest:
            if self.allow_skip:
                return Verdict.WARN
            what = "came although the one before it was not committed"
        else:
            what = "is older than the one that was not committed"
        raise PeerError(
            f"epoch {epoch} {what} ({self.highest}); the applier stops, check the source and its position",
            epoch=epoch,
            highest=self.highest,
        )

    def commit(self) -> None:
        """Note that the epoch transaction has committed."""
        self._is_committed = True

    def roll_back(self) -> None:
        """Note that the epoch transaction was rolled back; the same epoch comes again."""
        self._is_committed = False
