"""Verification of incoming epochs of one source: each once, in order; a restart may begin with one already applied."""

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
    """`highest` is the epoch that began last, at first the one in `ndb_apply_status`, 0 if there is none."""

    highest: int = 0
    allow_skip: bool = False
    _is_first: bool = True
    _is_committed: bool = True

    def begin(self, epoch: int) -> Verdict:
        """An epoch transaction begins. Raises: PeerError, and the applier stops."""
        verdict = self._verdict(epoch)
        self.highest = epoch  # a start too early goes once more through what was applied
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
            what = "comes though the one before it was not committed"
        else:
            what = "is older than the one that was not committed"
        raise PeerError(
            f"epoch {epoch} {what} ({self.highest}); the applier stops, check the source and its position",
            epoch=epoch,
            highest=self.highest,
        )

    def commit(self) -> None:
        """The epoch transaction has committed."""
        self._is_committed = True

    def roll_back(self) -> None:
        """It has not; the same epoch comes again."""
        self._is_committed = False
