"""GCI and micro GCI: which epoch commits belong to, and closing it (D4).

Closing is taking the next number under the commit latch, without waiting for anything but a commit that is being
applied in slices. Epochs only count; time decides when, never what.

A member of a node group *follows*: its primary decides when an epoch closes, and here nobody takes a number. Who wants
one closed (a local checkpoint, a snapshot) waits for the next boundary in the stream, and has it to himself: nothing of
the next epoch is applied before he has let the latch go.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import InvariantBroken, LimitExceeded, NotPrimary
from tidemark.engine.base.ids import gci_of, make_epoch, micro_of
from tidemark.engine.base.limits import GCI_MAX

if TYPE_CHECKING:
    from tidemark.engine.base.failure import Failure
    from tidemark.engine.log.redo import RedoLog

# Who waits for a large commit looks this often whether the store has failed: a thread that died tells nobody.
HOLDERS_POLL_SECONDS = 0.1
WANTED_POLLS = 20
HELD_POLLS = 10  # of a boundary that somebody has yet to take: then the stream goes on all the same


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
        self.holders: set[object] = set()
        self.is_following = False
        # Asks the primary to close an epoch, without the latch; who wants one closed waits in any case.
        self.on_wanted: Callable[[], None] = lambda: None
        self.wanting: set[int] = set()  # threads that wait for a boundary
        self.is_boundary = False  # the stream stands at one that is nobody's yet
        # Whether the stream waits at a boundary for a local checkpoint, which could not begin before the next one.
        # Asked with the latch, as far as nobody hurries: a node that is to lead soon must have applied what it has.
        self.holds_stream: Callable[[], bool] = lambda: False
        self.is_hurried = False
        log.epoch = self.current

    def used(self) -> int:
        """The open epoch, which now has a commit."""
        self.has_commits = True
        return self.current

    def hold(self, holder: object) -> None:
        """`used`, and keep the epoch open until `unhold`: a large commit is applied in slices."""
        self.has_commits = True
        self.holders.add(holder)

    def unhold(self, holder: object) -> None:
        """Let the epoch close again; holding no more is allowed. Takes the latch itself."""
        with self._settled:
            self.holders.discard(holder)
            self._settled.notify_all()

    def close(self, next_gci: bool = False) -> tuple[int, int, int]:
        """Close the open epoch; returns (closed epoch, LSN and sequence where the next one begins).

        The latch is let go only while a large commit is being applied, and by one who follows until the stream comes to
        a boundary. Raises: StoreFailed if that will never end, NotPrimary if the stream has ended.
        """
        if self.is_following:
            self._await_boundary()
        if self.is_following:
            return self.standing()
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
        """Return when no large commit is being applied: rows are then what the log says. The latch is let go only while
        one is. Raises: StoreFailed if that will never end.
        """
        while self.holders:
            self._failure.check()
            self._settled.wait(HOLDERS_POLL_SECONDS)

    def resume(self, epoch: int) -> None:
        """Stand in an epoch that others give; nothing has been committed here yet."""
        self.current = epoch
        self._log.close_epoch(epoch)

    # --- following -------------------------------------------------------------------------------
    def standing(self) -> tuple[int, int, int]:
        """As `close` returns it, and nothing is closed: everything older than the LSN is in the log."""
        return self.newest_closed, self._log.head_lsn, self._log.sequence

    def follow(self, epoch: int) -> None:
        """From now on another node closes epochs; `epoch` is the open one there. Raises: InvariantBroken."""
        if epoch <= self.newest_closed:
            raise InvariantBroken(f"epoch {epoch} is closed here, {self.newest_closed} was the newest; copy the store")
        self.is_following = True
        self.current = epoch
        self._log.close_epoch(epoch)

    def advance(self, epoch: int) -> None:
        """The stream says that `epoch` is open now: let one who waits have the boundary, or who is to. The latch may be
        let go.

        Raises: StoreFailed.
        """
        self.newest_closed = self.current
        self.current = epoch
        self.has_commits = False
        self._log.close_epoch(epoch)
        self.is_boundary = True
        self._settled.notify_all()
        if threading.get_ident() in self.wanting:
            return  # it is his own question that brought the answer
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
        """Numbers are taken here again, one GCI behind. Who waits for a boundary has it."""
        self.is_following = False
        self.close(next_gci=True)
        self._settled.notify_all()

    def end_stream(self) -> None:
        """No boundary will come any more: who waits for one gives up."""
        self.wanting.clear()
        self._settled.notify_all()

    def _await_boundary(self) -> None:
        thread = threading.get_ident()
        self.wanting.add(thread)
        try:
            for poll in itertools.count():
                if poll % WANTED_POLLS == 0:  # again and again: a primary that begins to lead does not hear it
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
