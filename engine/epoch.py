"""GCI and micro GCI: which epoch commits belong to, and closing it (D4).

Closing is taking the next number under the commit latch, without waiting for anything but a commit that is being
applied in slices. Epochs only count; time decides when, never what.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from engine.errors import LimitExceeded
from engine.ids import gci_of, make_epoch, micro_of
from engine.limits import GCI_MAX

if TYPE_CHECKING:
    from engine.failure import Failure
    from engine.log.redo import RedoLog

# Who waits for a large commit looks this often whether the store has failed: a thread that died tells nobody.
HOLDERS_POLL_SECONDS = 0.1


class EpochClock:
    """The open epoch of a store. Every method but the properties is called with the commit latch held, `close`
    included.
    """

    def __init__(self, latch: threading.Lock, log: RedoLog, gci: int, failure: Failure) -> None:
        self._settled = threading.Condition(latch)
        self._failure = failure
        self._log = log
        self.current = int(make_epoch(gci, 0))
        self.newest_closed = 0
        self.has_commits = False
        self._holders: set[object] = set()
        log.epoch = self.current

    def used(self) -> int:
        """The open epoch, which now has a commit."""
        self.has_commits = True
        return self.current

    def hold(self, holder: object) -> None:
        """`used`, and keep the epoch open until `unhold`: a large commit is applied in slices."""
        self.has_commits = True
        self._holders.add(holder)

    def unhold(self, holder: object) -> None:
        """Let the epoch close again; holding no more is allowed. Takes the latch itself."""
        with self._settled:
            self._holders.discard(holder)
            self._settled.notify_all()

    def close(self, next_gci: bool = False) -> tuple[int, int, int]:
        """Close the open epoch; returns (closed epoch, LSN and sequence where the next one begins).

        The latch is let go only while a large commit is being applied. Raises: StoreFailed if that will never end.
        """
        self.settle()
        closed = self.current
        gci = int(gci_of(closed))
        if next_gci:
            self.current = _first_of(gci + 1)
        else:
            self.current = int(make_epoch(gci, micro_of(closed) + 1))
        self.has_commits = False
        self.newest_closed = closed
        lsn, sequence = self._log.close_epoch(self.current)
        return closed, lsn, sequence

    def resume(self, epoch: int) -> None:
        """Stand in an epoch that others give; nothing has been committed here yet."""
        self.current = epoch
        self._log.close_epoch(epoch)

    def settle(self) -> None:
        """Return when no large commit is being applied: rows are then what the log says. The latch is let go only while
        one is. Raises: StoreFailed if that will never end.
        """
        while self._holders:
            self._failure.check()
            self._settled.wait(HOLDERS_POLL_SECONDS)

    def pass_over(self, epoch: int) -> None:
        """Open the GCI behind an epoch that is not to be given again; nothing has been committed yet.

        Raises: LimitExceeded.
        """
        self.current = _first_of(int(gci_of(epoch)) + 1)
        self._log.close_epoch(self.current)


def _first_of(gci: int) -> int:
    if gci > GCI_MAX:
        raise LimitExceeded(f"GCI {gci} is over {GCI_MAX}; dump the store and load it into a new one")
    return int(make_epoch(gci, 0))
