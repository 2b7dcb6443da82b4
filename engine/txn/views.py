"""Views: what is committed at one instant, while others commit (docs/internals/access.md, section 11).

A call that reads in several steps opens a view and reads all of it at that instant: rows that have changed since come
from the version store. Nothing waits for a view, and opening one closes no epoch.

A read that meets a row of a large commit that is being applied waits for its end, unless that commit only adds rows:
then they are not there yet.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import LimitExceeded, LockTimeout, Rejected, SnapshotTooOld
from tidemark.engine.base.limits import VIEWS_OPEN_MAX
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import (
    OK,
    S_TICK_EPOCH,
    S_UNFINISHED,
    S_VERSION_HEAD,
    S_VERSION_TAIL,
    ST_DROPPED,
    ST_MORE,
    ST_SPACE,
    ST_SPOOLED,
    ST_TOO_OLD,
    ST_UNFINISHED,
    X_CHANGES,
)
from tidemark.engine.txn.versions_kernels import advance_view, close_view, cut_versions, find_view, open_view

if TYPE_CHECKING:
    from tidemark.engine.base.failure import Failure
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.txn.epoch import EpochClock

V = TypeVar("V", bound="View")
CUT_ENTRIES = 2_000  # per kernel call: each is a cache line
_NOT_OPEN = np.zeros(2, dtype=np.int64)
UNFINISHED_POLL_SECONDS = 0.000_5


def release(mem: Words, view: int) -> None:
    """Close a view and drop the versions that were kept for it. Repeating the call changes nothing."""
    if sys.is_finalizing():
        return  # a scan that was left open: no kernel can be loaded any more, and the memory ends with the process
    if close_view(mem, view) == OK and int(mem[S_VERSION_HEAD]) != int(mem[S_VERSION_TAIL]):
        while cut_versions(mem, CUT_ENTRIES) == ST_MORE:
            pass


class View(Closable):
    """How one call sees rows: what is committed at an instant, and the changes of its transaction. Use it in a `with`
    block, or call `close`.

    One that is not open sees each row as it is when a kernel reads it: for calls that read by one kernel call.
    """

    __slots__ = ("_is_shared", "_owner", "_table", "_views", "mem", "txn", "words")

    def __init__(
        self, views: Views, txn: Any = None, words: Words | None = None, owner: Any = None, table: Any = None
    ) -> None:
        """txn: the transaction that reads. words: of a view that is open already, and stays open. owner: the
        transaction that ends if the view is lost. table: the version of the table that is read by it.
        """
        self._table = table
        self.mem = views.mem
        self.txn = txn
        self._owner = owner
        self._views = views
        self._is_shared = words is not None
        # The kernel that opens the view writes its number here, so that no signal can come in between.
        self.words: Words = np.zeros(2, dtype=np.int64) if words is None else words

    def advance(self, number: int, rowid: int) -> None:
        """Note that a scan has read all rows before this place, by number of fragment and ROWID, and no other call
        will read them.
        """
        if self.words[0] and not self._is_shared:
            advance_view(self.mem, int(self.words[0]), number, rowid)

    @property
    def view(self) -> int:
        """Its number for kernels; 0: every row is read as it is."""
        return int(self.words[0])

    @property
    def head(self) -> int:
        """Versions from this position of the ring on may belong to it."""
        return int(self.words[1])

    @property
    def desc(self) -> int:
        """The descriptor of the transaction that reads, 0 for none."""
        return 0 if self.txn is None else self.txn.desc

    @property
    def buf(self) -> Words:
        """The buffer of the transaction that reads."""
        return NOTHING if self.txn is None else self.txn.buf

    def committed(self) -> View:
        """Return the same view without a transaction: what is committed."""
        return self if self.txn is None else View(self._views, None, self.words, self._owner)

    def check(self) -> None:
        """Check that the transaction may read now. Raises: TransactionEnded, WrongThread, StoreFailed; SnapshotTooOld
        if its own changes may be of a newer version of the table than its view.
        """
        if self.txn is not None:
            self.txn.check()
            if self._table is not None and self.txn.desc and int(self.mem[self.txn.desc + X_CHANGES]):
                self._table.refuse_moved()

    def settled(self, status: int) -> int:
        """Return the status of a kernel that read for this view; ST_MORE if what stopped it has been removed: call it
        again.

        Raises: SnapshotTooOld, with a transaction that has a view of its own rolled back; as `Views.wait` and
        `Transaction.load_spooled`.
        """
        if status == ST_SPOOLED and self.txn is not None:
            self.txn.load_spooled()
            return ST_MORE
        if status == ST_UNFINISHED:
            self._views.wait()
            return ST_MORE
        if status == ST_TOO_OLD:
            raise self.too_old()
        return int(status)

    def too_old(self) -> SnapshotTooOld:
        """Return the error of a call that cannot read by it any more."""
        lost = "a large value that was changed meanwhile was not in memory"
        if find_view(self.mem, self.view) != OK:
            lost = "the rows changed since it began do not fit into snapshot_memory"
        what = "the call cannot show one state of the table any more"
        if self._owner is not None:
            what = "the transaction, which was rolled back, cannot show the state at its begin any more"
            self._owner.rollback()
        return SnapshotTooOld(
            f"{what}: {lost}; run it again, read less in one call, or open the store with a larger snapshot_memory"
        )

    def close(self) -> None:
        """Close the view. Closing again does nothing."""
        if self.words[0] and not self._is_shared:
            release(self.mem, int(self.words[0]))
            self.words[0] = 0


class KeptView(View):
    """A view for all calls of a transaction, which closes it when it ends. It does not know the transaction, so that
    one that is dropped closes it at once.
    """

    __slots__ = ("__weakref__",)

    def for_call(self, txn: Any) -> View:
        """Return it as the view of one call."""
        return View(self._views, txn, self.words, txn)

    def __del__(self) -> None:
        self.close()


class Views:
    """Opens the views of one store."""

    def __init__(self, mem: Words, failure: Failure, latch: threading.Lock, timeout_ms: int) -> None:
        """timeout_ms: how long a read waits for the end of a large commit."""
        self.mem = mem
        self._failure = failure
        self._latch = latch
        self._timeout_ms = timeout_ms
        self._kept: weakref.WeakSet[KeptView] = weakref.WeakSet()
        self.epochs: EpochClock | None = None  # None: nothing commits here, and every row is read as it is

    def now(self, txn: Any = None) -> View:
        """Return a view for a call that reads by one kernel call: it is not open."""
        return View(self, txn, _NOT_OPEN)

    def open(self, table: int, txn: Any = None, version: Any = None) -> View:
        """Return a view of what is committed now in a table, given by its handle. Waits for the end of a large commit
        that changes or removes rows. If the table was dropped, kernels say so. version: of the table, that reads.

        Raises: LockTimeout, LimitExceeded, StoreFailed.
        """
        return self._opened(View(self, txn, table=version), table)

    def keep(self) -> KeptView:
        """Return a view of what is committed now in all tables, for a transaction. Raises: as `open`."""
        view = self._opened(KeptView(self), 0)
        self._kept.add(view)
        return view

    def kept_now(self) -> list[KeptView]:
        """Return the open views of transactions."""
        while True:
            try:
                return [view for view in self._kept if view.words[0]]
            except RuntimeError:  # another thread has opened or closed one
                continue

    def _opened(self, view: V, table: int) -> V:
        if self.epochs is None:
            return view
        while (status := open_view(self.mem, table, self.epochs.current, view.words)) not in (OK, ST_DROPPED):
            if status == ST_UNFINISHED:
                self.wait()
            elif status == ST_MORE:
                with self._latch:
                    self.epochs.close()
            elif status == ST_SPACE:
                raise LimitExceeded(
                    f"{VIEWS_OPEN_MAX} snapshots and scans are open; close snapshots, and read scans to their end"
                )
        return view

    def wait(self) -> None:
        """Wait while the large commit that a read has met is being applied.

        Raises: LockTimeout, StoreFailed; Rejected in the thread of that commit, which a signal has interrupted.
        """
        mem, epochs = self.mem, self.epochs
        tick, epoch = int(mem[S_UNFINISHED]), int(mem[S_TICK_EPOCH])
        if epochs is not None and any(
            getattr(each, "thread", 0) == threading.get_ident() for each in list(epochs.holders)
        ):
            raise Rejected("the commit of this thread is being applied; read after it has returned")
        gate = threading.Lock()
        gate.acquire()
        left = self._timeout_ms / 1_000
        while tick and int(mem[S_UNFINISHED]) == tick and int(mem[S_TICK_EPOCH]) == epoch:
            self._failure.check()
            if left <= 0:
                raise LockTimeout(
                    f"a large commit has been applied for more than {self._timeout_ms:,} ms, and a row that it changes"
                    " is wanted; run it again"
                )
            gate.acquire(timeout=UNFINISHED_POLL_SECONDS)
            left -= UNFINISHED_POLL_SECONDS
