"""Resources shared by all transactions of an open store: memory, latch, locks, log, epochs, and reservations of log.

A transaction uses nothing else of its store. `transactions.py` begins and ends transactions.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tidemark.engine.base.errors import (
    BinlogOverloaded,
    CommitOnFailedStore,
    Damaged,
    Error,
    InvariantBroken,
    IoFailed,
    LimitExceeded,
    RedoOverloaded,
    Retryable,
    StorageFull,
    StoreFailed,
    TransactionTooLarge,
)
from tidemark.engine.base.histogram import COMMIT_BOUNDS, Histogram
from tidemark.engine.base.ids import LAST_EPOCH, TXID_COUNTER_BITS, first_txid, txids_from
from tidemark.engine.base.shortage import DiskShortage
from tidemark.engine.base.watch import watch_of
from tidemark.engine.jit.entries import entry_of
from tidemark.engine.log.redo import commit_interrupted
from tidemark.engine.memory.arena_layout import OK, S_TXID, ST_REDO, X_REDO_WORDS
from tidemark.engine.txn.begin_kernels import TXID_MASK, begin_transaction, next_txid, reserve_redo
from tidemark.engine.txn.commit_kernels import commit_plain
from tidemark.engine.txn.locks import LockTable
from tidemark.engine.txn.views import Views

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.failure import Failure
    from tidemark.engine.base.options import Options
    from tidemark.engine.disk.columns import DiskColumns
    from tidemark.engine.disk.space import Space
    from tidemark.engine.log.redo import RedoLog
    from tidemark.engine.log.spool_files import SpoolFiles
    from tidemark.engine.memory.arena import Arena, Words
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.delete_log import DeleteLog
    from tidemark.engine.txn.epoch import EpochClock
    from tidemark.engine.txn.locks import Place

assert TXID_MASK == (1 << TXID_COUNTER_BITS) - 1
REDO_POLL_SECONDS = 0.05
REDO_SHARE = 2  # one transaction reserves at most this part of the REDO log, and spools after that
COPIES_POLL_SECONDS = 0.002
COUNTS_POLL_SECONDS = 0.002
COUNTS_SECONDS = 1.0
# A slice that cannot get frames because the disk is full waits for space this many times.
SPACE_ATTEMPTS = 20
SPACE_PAUSE_SECONDS = 0.05


_TO_A_FILE = "with a transaction_limit above transaction_memory, past which changes go to a file"


def first_txid_after(mem: Words) -> int:
    """Return the first transaction id that the memory of a store has not assigned yet."""
    return int(mem[S_TXID]) + 1


class BeforeImages(Protocol):
    """The hook for before-images: where commits copy old rows for a running local checkpoint."""

    current: Words  # empty while no local checkpoint runs; word 0 counts the words used

    def room(self, words: int) -> Words:
        """Return `current` with room for `words` more words; the caller holds the commit latch."""
        ...

    def waiting_words(self) -> int:
        """Return the words of full buffers that the local checkpoint has not taken yet."""
        ...


class NoBeforeImages:
    """The hook while no local checkpoint runs."""

    def __init__(self) -> None:
        self.current: Words = np.zeros(0, dtype=np.int64)

    def room(self, words: int) -> Words:
        """Return an empty array."""
        return self.current

    def waiting_words(self) -> int:
        """Return 0."""
        return 0


class Resources(ABC):
    """The resources of one store. `attach` adds log and epochs after the restart has found them."""

    log: RedoLog
    epochs: EpochClock
    disk: DiskColumns = None  # type: ignore[assignment]  # stays None in a view of a local checkpoint
    deletes: DeleteLog | None = None
    begin_kernel: Callable[..., int]
    commit_kernel: Callable[..., int]  # of rows in memory
    # Returns the error for a transaction or schema change at a node that takes none; None: this node takes them.
    refusal: Callable[[], Error] | None
    spare_places: list[Place]
    index_generation: int  # changes after a kernel has announced an index
    tables: dict[str, Table]  # by qualified name
    qualified: dict[str, str]  # qualified names, by names that callers have used
    spools: SpoolFiles = None  # type: ignore[assignment]  # as `log`

    def __init__(self, arena: Arena, options: Options, clock: Clock, failure: Failure, seed: int) -> None:
        """Set up the resources, without log and epochs. seed: of the hash over primary keys."""
        self.arena = arena
        self.mem = arena.mem
        self.options = options
        self.clock = clock
        self.failure = failure
        self.seed = seed
        self.latch = threading.Lock()
        self.kill_latch = threading.RLock()  # held while a killed transaction is rolled back
        self.commit_seconds = Histogram(COMMIT_BOUNDS)
        self.watch = watch_of(clock, options.slow_operation_ms, options.tracer)
        self.shortage = DiskShortage(clock)
        self.locks = LockTable(arena, clock, options.lock_timeout_ms, failure)
        self.views = Views(arena.mem, failure, self.latch, options.lock_timeout_ms)
        self.no_words: Words = np.zeros(0, dtype=np.int64)
        self.spare_shown: list[Words] = []  # for `Transaction.shown`
        self.transaction_words = options.transaction_memory_bytes // 8
        self.spool_words = options.transaction_limit_bytes // 8
        self.waits_for_disk = options.durability == "commit"
        self.sink: BeforeImages = NoBeforeImages()
        self.on_redo_full: Callable[[], None] = lambda: None
        # Whether the binlog prevents the truncation of the log; then the error for a full log says so.
        self.follower_holds_log: Callable[[], bool] = lambda: False
        # The name (in `FOLLOWERS`) of the follower for which the newest local checkpoint waits, or waited in vain.
        self.awaited: str | None = None
        # Whether the log has a follower; then a schema change has its own epoch, and a load begins one.
        self.follows_log = False
        self.txids = txids_from(1)

    @abstractmethod
    def end_abandoned(self) -> None:
        """Roll back the transactions that were dropped without an end. Raises: as `Transaction.rollback`."""

    @abstractmethod
    def new_place(self) -> Place:
        """Return a place for a transaction that begins, if there is no spare one. Raises: MemoryExhausted,
        LimitExceeded.
        """

    @abstractmethod
    def own_place(self) -> Place:
        """Return the place for transactions that begin and end in one kernel call. Call with the latch held."""

    @abstractmethod
    def retire(self, txn: Any) -> None:
        """Free the resources of a transaction that ends, exactly once wherever a signal arrives."""

    @abstractmethod
    def table(self, name: str) -> Table:
        """Return the table of this name. Raises: NoSuchTable."""

    @abstractmethod
    def unique_tables(self) -> Words:
        """Return the ids of the tables that have a unique index, built or being built."""

    def attach(self, log: RedoLog, epochs: EpochClock, incarnation: int) -> None:
        """Set the log and the epoch clock; from here on the store can commit."""
        self.log = log
        self.epochs = self.views.epochs = epochs
        self.begin_kernel, self.commit_kernel = entry_of(begin_transaction), entry_of(commit_plain)
        self.number_from(int(first_txid(incarnation)))
        if self.may_spool:
            # One transaction leaves room in the log for others, and for itself: it spools before it waits for room.
            share = log.geometry.capacity_bytes // 8 // REDO_SHARE
            self.transaction_words = min(self.transaction_words, share)

    @property
    def may_spool(self) -> bool:
        """Whether changes of a transaction past its memory go to a file."""
        return self.spool_words > self.transaction_words

    @property
    def space(self) -> Space:
        """The tablespaces."""
        return self.disk.space

    def next_txid(self) -> int:
        """Return a new transaction id. Raises: LimitExceeded if the ids of this opening of the store are used up."""
        return self.checked_txid(int(next_txid(self.mem)))

    def checked_txid(self, txid: int) -> int:
        """Return a transaction id taken by a kernel. Raises: LimitExceeded if it is past those of this opening."""
        if txid >= self.txids.stop:
            raise LimitExceeded(
                f"transaction {self.txids.stop - 1} had the last id of this opening; close the store and open it again"
            )
        return txid

    def txid_limit(self) -> int:
        """Return the first transaction id not assigned yet."""
        return first_txid_after(self.mem)

    def number_from(self, txid: int) -> None:
        """Assign transaction ids from `txid` on: smaller ones were assigned, here or at another node."""
        self.txids = txids_from(txid)
        self.mem[S_TXID] = txid - 1

    def begin_with_room(self, desc: int, slot: int, tail_word: int, redo_words: int) -> int:
        """Do `begin_transaction` as soon as the log has room. Raises: as `wait_for_redo`."""
        txid = ST_REDO

        def has_begun() -> bool:
            nonlocal txid
            txid = int(begin_transaction(self.mem, desc, slot, tail_word, redo_words))
            return txid != ST_REDO

        self.wait_for_redo(has_begun)
        return txid

    # --- reservations ----------------------------------------------------------------------------
    def has_redo(self, desc: int, words: int) -> bool:
        """Reserve more room in the log for an open transaction, if there is room now; return whether there was."""
        return bool(reserve_redo(self.mem, desc, words) == OK)

    def reserve_redo(self, desc: int, words: int) -> None:
        """Reserve more room in the log for an open transaction, waiting for a local checkpoint if needed.

        Raises: TransactionTooLarge if the whole log is too small, RedoOverloaded, BinlogOverloaded.
        """
        if self.has_redo(desc, words):
            return
        needed_bytes = (int(self.mem[desc + X_REDO_WORDS]) + words) * 8
        if needed_bytes > self.log.room_bytes:  # of an empty log: no wait and no other attempt helps
            raise TransactionTooLarge(
                f"the transaction needs {needed_bytes} bytes of the REDO log, which has room for"
                f" {self.log.room_bytes}; split it, or make the store with a larger redo_log, or open it"
                f" {_TO_A_FILE}"
            )
        self.wait_for_redo(lambda: self.has_redo(desc, words))

    def wait_for_redo(self, is_reserved: Callable[[], bool]) -> None:
        """Request a local checkpoint and wait until `is_reserved` makes the reservation and returns True.

        Raises: RedoOverloaded after `lock_timeout_ms`, or BinlogOverloaded if the binlog is holding the log.
        """
        deadline = self.locks.deadline()
        while True:
            self.on_redo_full()
            if is_reserved():
                return
            self.failure.check()
            self.shortage.refused()
            if self.clock.monotonic() >= deadline:
                raise self._redo_overloaded()
            self.clock.sleep(REDO_POLL_SECONDS)

    def _redo_overloaded(self) -> RedoOverloaded | BinlogOverloaded:
        if self.awaited == "archive":
            return RedoOverloaded(
                f"the REDO log ({self.log.geometry.capacity_bytes} bytes) is full of epochs that are not in the archive"
                " yet; status()['archive'] says why: free space for its place or make it reachable, then run the"
                " transaction again, or make the store with a larger redo_log"
            )
        if self.follower_holds_log():
            return BinlogOverloaded(
                f"the REDO log ({self.log.geometry.capacity_bytes} bytes) is full of epochs that are not in the binlog"
                " yet; free space in its folder, then run the transaction again, or make the store with a larger"
                " redo_log"
            )
        if self.shortage.reason:
            return RedoOverloaded(
                f"the REDO log ({self.log.geometry.capacity_bytes} bytes) is full, and no local checkpoint can free it:"
                f" {self.shortage.reason}; free space on the disk of the store, then run the transaction again"
            )
        return RedoOverloaded(
            f"the REDO log ({self.log.geometry.capacity_bytes} bytes) is full and no local checkpoint freed it in time;"
            " call checkpoint() twice, then run the transaction again; if the log fills up again, split the transaction"
            " or make the store with a larger redo_log" + ("" if self.may_spool else f", or open it {_TO_A_FILE}")
        )

    # --- what readers have seen ------------------------------------------------------------------
    def secure_reads(self, epoch: int = LAST_EPOCH) -> None:
        """Return when no crash takes back what was visible by now of commits up to `epoch`: when it is as safe as these
        commits are on return. With `durability="epoch"` outside a node group that is at once. Raises: StoreFailed.
        """
        self.log.secure(epoch, self.waits_for_disk)

    def secure_counts(self) -> None:
        """As `secure_reads`, for counts that another process asks for: wait while other threads write the log, but not
        past COUNTS_SECONDS, since an operator needs them most while a disk hangs.
        """
        last = self.log.last_visible(LAST_EPOCH) if self.waits_for_disk else 0
        deadline = self.clock.monotonic() + COUNTS_SECONDS
        while self.log.durable_sequence < last and self.failure.first is None and self.clock.monotonic() < deadline:
            self.clock.sleep(COUNTS_POLL_SECONDS)

    # --- commits that the log has -----------------------------------------------------------------
    def note_commit(self, began: float, txid: int, is_durable: bool) -> None:
        """Count the time of a commit, which began then, for `status()` and a watch. Raises: CommitInterrupted."""
        try:
            seconds = self.clock.monotonic() - began
            if is_durable:
                self.commit_seconds.observe(seconds)
            if self.watch is not None:
                self.watch.note("commit", seconds, txid=txid, is_durable=is_durable)
        except KeyboardInterrupt as error:
            raise commit_interrupted(txid) from error

    def commit_out_of_memory(self, error: MemoryError, txid: int) -> CommitOnFailedStore:
        """Fail the store for a MemoryError in a commit that the log may have: only a restart shows the outcome. Return
        the error.
        """
        if self.failure.first is None:
            self.fail(StoreFailed("the process ran out of memory in a commit; open the store again"))
        return CommitOnFailedStore(
            f"the process had no memory left while the commit was on its way to the disk ({error!r}); open the store"
            f" again and ask outcome({txid})",
            txid=txid,
        )

    # --- slices of a logged commit ---------------------------------------------------------------
    def wait_for_copies(self) -> None:
        """Wait, before a slice, until a running local checkpoint has taken enough copies of earlier slices.

        The wait has a deadline, since the local checkpoint may wait for this thread. After it, more copies stay in
        memory.
        """
        limit_words = self.options.checkpoint_memory_bytes // 8
        deadline = self.locks.deadline()
        while self.sink.waiting_words() > limit_words and self.clock.monotonic() < deadline:
            self.clock.sleep(COPIES_POLL_SECONDS)
            self.failure.check()

    def hold_for_slice(self, pages: list[int]) -> bool:
        """Hold the pages of a slice; False if other threads have pinned the frames, so that the slice must retry later.

        Any other error fails the store, since the log has the commit. Raises: IoFailed, InvariantBroken or another
        StoreFailed.
        """
        for attempt in range(SPACE_ATTEMPTS):
            try:
                self.disk.hold(pages, is_reference=False)
                return True
            except StorageFull as error:
                # Pages have allocated space, so this happens only on a copy-on-write file system (F44).
                if attempt + 1 == SPACE_ATTEMPTS:
                    text = f"{error.message}; a commit cannot write pages to make room for others; open the store again"
                    raise self.fail(IoFailed(text, **error.evidence)) from error
                self.clock.sleep(SPACE_PAUSE_SECONDS)
            except Retryable:
                self.failure.check()
                return False
            except Damaged as error:
                text = f"a commit cannot read a page it must change ({error.message}); reopen the store"
                raise self.fail(InvariantBroken(text)) from error
        return False

    def fail(self, error: StoreFailed) -> StoreFailed:
        """Fail the store; return the error to raise."""
        self.failure.latch(error)
        return error
