"""GCI and micro GCI: the epoch of commits, and closing it (D4).

Closing an epoch takes the next number under the commit latch. It waits only for a commit that is being applied in
slices. Time decides when an epoch closes, never its content.

A member of a node group *follows*: its primary decides when an epoch closes, and no number is taken here. A thread that
needs a closed epoch (for a local checkpoint or a snapshot) waits for the next boundary in the stream of groups, and
owns it: nothing of the next epoch is applied before the thread releases the latch.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import InvariantBroken, LimitExceeded, NotPrimary
from tidemark.engine.base.ids import NO_EPOCH, gci_of, make_epoch, micro_of
from tidemark.engine.base.limits import GCI_MAX

if TYPE_CHECKING:
    from tidemark.engine.base.failure import Failure
    from tidemark.engine.log.redo import RedoLog

# Interval at which a waiter for a large commit checks whether the store has failed: a dead thread wakes no waiter.
HOLDERS_POLL_SECONDS = 0.1
WANTED_POLLS = 20
HELD_POLLS = 10  # after this many polls without a thread that takes the boundary, the stream continues


class EpochClock:
    """The open epoch of a store, from `begin` on. Every method except `unhold` is called with the commit latch held."""

    def __init__(self, latch: threading.Lock, log: RedoLog, failure: Failure) -> None:
        self._settled = threading.Condition(latch)
        self._failure = failure
        self._log = log
        self.current = NO_EPOCH
        self.newest_closed = 0
        self.has_commits = False
        self.holders: set[object] = set()
        self.is_following = False
        # Asks the primary to close an epoch; called without the latch. The thread waits whatever the call does.
        self.on_wanted: Callable[[], None] = lambda: None
        self.wanting: set[int] = set()  # idents of threads that wait for a boundary
        self.is_boundary = False  # the stream is at a boundary that no thread has taken
        # Whether the stream must wait at a boundary for a local checkpoint, which could otherwise begin only at the
        # next one. Called with the latch held; not if `is_hurried`: a node about to lead must apply the groups it has.
        self.holds_stream: Callable[[], bool] = lambda: False
        self.is_hurried = False

    def begin(self, gci: int) -> None:
        """Open the first epoch of a GCI, in a store that no other thread uses yet."""
        self.current = self._log.epoch = int(make_epoch(gci, 0))

    def used(self) -> int:
        """Return the open epoch, and note that it has a commit."""
        self.has_commits = True
        return self.current

    def hold(self, holder: object) -> None:
        """Keep the epoch open until `unhold`, while a large commit is applied in slices, one at a time. Waits, with the
        latch released, for the one before. Raises: StoreFailed.
        """
        self.settle()
        self.has_commits = True
        self.holders.add(holder)

    def unhold(self, holder: object) -> None:
        """Allow the epoch to close again; ignore a holder already removed. Takes the latch itself."""
        with self._settled:
            self.holders.discard(holder)
            self._settled.notify_all()

    def close(self, next_gci: bool = False) -> tuple[int, int, int]:
        """Close the open epoch; return (closed epoch, LSN and sequence where the next one begins).

        The latch is released only while a large commit is being applied and, in a store that follows, until the stream
        reaches a boundary. next_gci: the next epoch begins a GCI. Raises: StoreFailed if the store fails meanwhile,
        NotPrimary if the stream has ended.
        """
        if self.is_following:
            self._await_boundary()
        if self.is_following:
            return self.newest_boundary()
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

    def settle(self) -> None:
        """Wait until no large commit is being applied, so that the rows match the log. The latch is released while
        waiting. Raises: StoreFailed if the store fails meanwhile.
        """
        while self.holders:
            self._failure.check()
            self._settled.wait(HOLDERS_POLL_SECONDS)

    def resume(self, epoch: int) -> None:
        """Set the open epoch, and end the groups of the one before."""
        self.current = epoch
        self._log.close_epoch(epoch)

    # --- following -------------------------------------------------------------------------------
    def newest_boundary(self) -> tuple[int, int, int]:
        """Return what `close` returns for the newest closed epoch. Everything before the LSN is in the log."""
        return self.newest_closed, self._log.head_lsn, self._log.sequence

    def follow(self, epoch: int) -> None:
        """Follow another node, which closes epochs from now on; `epoch` is open there. Raises: InvariantBroken."""
        if epoch <= self.newest_closed:
            raise InvariantBroken(
                f"epoch {epoch} is closed here, {self.newest_closed} was the newest; copy the store from the primary"
            )
        self.is_following = True
        self.resume(epoch)

    def advance(self, epoch: int) -> None:
        """Open the next epoch of the stream. If a thread or a local checkpoint waits for the boundary, wait until it
        has been used. The latch may be released meanwhile.

        Raises: StoreFailed.
        """
        self.newest_closed = self.current
        self.has_commits = False
        self.resume(epoch)
        self.is_boundary = True
        self._settled.notify_all()
        if threading.get_ident() in self.wanting:
            return  # this thread is itself waiting for the boundary
        polls = 0
        while True:
            if polls < HELD_POLLS and not self.is_hurried and self.holds_stream():
                self.is_boundary = True
            elif not (self.is_boundary and self.wanting):
                break
            self._failure.check()
            if not self._settled.wait(HOLDERS_POLL_SECONDS):
                polls += 1
        self.is_boundary = False

    def lead(self) -> None:
        """Number epochs here again, from the next GCI on. A thread that waits for a boundary gets it."""
        self.is_following = False
        self.close(next_gci=True)
        self._settled.notify_all()

    def end_stream(self) -> None:
        """End the stream: threads that wait for a boundary stop waiting."""
        self.wanting.clear()
        self._settled.notify_all()

    def _await_boundary(self) -> None:
        thread = threading.get_ident()
        self.wanting.add(thread)
        try:
            for poll in itertools.count():
                if poll % WANTED_POLLS == 0:  # repeated: a primary that is just beginning to lead may miss it
                    self._settled.release()
                    try:
                        self.on_wanted()
                    finally:
                        self._settled.acquire()
                if self.is_boundary or not self.is_following:
                    break
                if thread not in self.wanting:
                    raise NotPrimary("the stream of the primary has ended, so no epoch is closed here; try again later")
                self._failure.check()
                self._settled.wait(HOLDERS_POLL_SECONDS)
            self.is_boundary = False
        finally:
            self.wanting.discard(thread)
            self._settled.notify_all()

    def continue_after(self, epoch: int) -> None:
        """Open the GCI after an epoch that must not be reused; there are no commits yet.

        Raises: LimitExceeded.
        """
        self.resume(_first_of(int(gci_of(epoch)) + 1))


def _first_of(gci: int) -> int:
    if gci > GCI_MAX:
        raise LimitExceeded(f"GCI {gci} is over {GCI_MAX}; copy the tables into a new store")
    return int(make_epoch(gci, 0))
