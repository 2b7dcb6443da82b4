"""Resources shared by all transactions of a store: memory, latch, locks, log, epochs, tables, and places.

A transaction uses nothing else of its store. `transactions.py` begins and ends transactions.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import (
    CommitOnFailedStore,
    Damaged,
    InvariantBroken,
    IoFailed,
    LimitExceeded,
    Retryable,
    StorageFull,
    StoreFailed,
)
from tidemark.engine.base.histogram import COMMIT_BOUNDS, Histogram
from tidemark.engine.base.ids import LAST_EPOCH, TXID_COUNTER_BITS, first_txid, txids_from
from tidemark.engine.base.limits import TRANSACTIONS_OPEN_MAX
from tidemark.engine.base.shortage import DiskShortage
from tidemark.engine.base.watch import watch_of
from tidemark.engine.disk.columns import DiskColumns
from tidemark.engine.jit.entries import entry_of
from tidemark.engine.log.redo import RedoLog, commit_interrupted
from tidemark.engine.log.spool_files import SpoolFiles
from tidemark.engine.memory.arena_layout import S_INDEX_GENERATION, S_TXID, ST_REDO
from tidemark.engine.txn.begin_kernels import TXID_MASK, begin_transaction, next_txid
from tidemark.engine.txn.commit_kernels import commit_plain
from tidemark.engine.txn.copies import CopySink
from tidemark.engine.txn.delete_log import DeleteLog
from tidemark.engine.txn.epoch import EpochClock
from tidemark.engine.txn.locks import LockTable, Place
from tidemark.engine.txn.log_room import LogRoom
from tidemark.engine.txn.table_users import TableUsers
from tidemark.engine.txn.tables import Tables
from tidemark.engine.txn.views import Views

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.errors import Error
    from tidemark.engine.base.options import Options
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.log.group import Position
    from tidemark.engine.memory.arena import Arena, Words

assert TXID_MASK == (1 << TXID_COUNTER_BITS) - 1
BUFFER_WORDS = 4_096  # initial size of a transaction's buffer
SPARE_PLACES = 64
REDO_SHARE = 2  # one transaction reserves at most this part of the REDO log, and spools after that
COPIES_POLL_SECONDS = 0.002
COUNTS_POLL_SECONDS = 0.002
COUNTS_SECONDS = 1.0
# A slice that cannot get frames because the disk is full waits for space this many times.
SPACE_ATTEMPTS = 20
SPACE_PAUSE_SECONDS = 0.05


def first_txid_after(mem: Words) -> int:
    """Return the first transaction id that the memory of a store has not assigned yet."""
    return int(mem[S_TXID]) + 1


class Resources:
    """The resources of one store. It takes commits from `open` on; a view of a local checkpoint never does."""

    def __init__(
        self,
        arena: Arena,
        files: Files,
        options: Options,
        clock: Clock,
        identity: tuple[bytes, int],
        geometry: Geometry,
        seed: int,
        *,
        can_write: bool = True,
        is_view: bool = False,
    ) -> None:
        """identity: store UUID, and the incarnation of this opening. geometry: of the log. seed: of the hash over
        primary keys. can_write: False for a restart without writes. is_view: for a view of a local checkpoint, in which
        nothing changes.
        """
        self.is_view = is_view
        self.arena = arena
        self.mem = arena.mem
        self.options = options
        self.clock = clock
        self.failure = failure = files.failure
        self.latch = threading.Lock()
        self.kill_latch = threading.RLock()  # held while a killed transaction is rolled back
        self.commit_seconds = Histogram(COMMIT_BOUNDS)
        self.watch = watch_of(clock, options.slow_operation_ms, options.tracer)
        self.shortage = DiskShortage(clock)
        self.log = RedoLog(
            files, geometry, arena.mem, self.latch, clock, identity, partial(first_txid_after, arena.mem)
        )
        self.epochs = EpochClock(self.latch, self.log, failure)
        self.spools = SpoolFiles(files, identity)
        self.disk = DiskColumns(arena, files, clock, options, self.latch, identity, can_write)
        self.deletes = DeleteLog(arena, options) if options.delete_log_bytes and not is_view else None
        self.locks = LockTable(arena, clock, options.lock_timeout_ms, failure)
        self.views = Views(arena.mem, failure, self.latch, options.lock_timeout_ms)
        self.tables = Tables(arena, seed, None if is_view else self.disk, self.views)
        self.users = TableUsers(self.locks)
        self.transaction_words = options.transaction_memory_bytes // 8
        self.spool_words = options.transaction_limit_bytes // 8
        may_spool = self.spool_words > self.transaction_words
        self.room = LogRoom(self.log, arena.mem, clock, failure, self.locks, self.shortage, may_spool)
        self.waits_for_disk = options.durability == "commit"
        self.sink = CopySink(self.latch)
        self.sequences: Any = None  # of `engine/store/sequences.py`, once a store has them
        # Whether the log has a follower; then a schema change has its own epoch, and a load begins one.
        self.follows_log = False
        # Returns the error for a transaction or schema change at a node that takes none; None: this node takes them.
        self.refusal: Callable[[], Error] | None = None
        self.index_generation = 0  # raised after the kernel that announces an index
        self.txids = txids_from(1)
        self.begin_kernel: Callable[..., int] = begin_transaction
        self.commit_kernel: Callable[..., int] = commit_plain  # of rows in memory
        self.no_words: Words = np.zeros(0, dtype=np.int64)
        self.spare_shown: list[Words] = []  # for `Transaction.shown`
        self.spare_places: list[Place] = []
        self.place_of_calls: Place | None = None
        self._slots = itertools.count(1)
        self._spare_slots: list[int] = []

    def open(self, position: Position, gci: int, incarnation: int) -> None:
        """Open the log at a position, and the first epoch of a GCI; from here on the store can commit."""
        self.log.open(position)
        self.epochs.begin(gci)
        self.views.epochs = self.epochs
        self.begin_kernel, self.commit_kernel = entry_of(begin_transaction), entry_of(commit_plain)
        self.number_from(int(first_txid(incarnation)))
        if self.room.may_spool:
            # One transaction leaves room in the log for others, and for itself: it spools before it waits for room.
            share = self.log.geometry.capacity_bytes // 8 // REDO_SHARE
            self.transaction_words = min(self.transaction_words, share)

    # --- places ----------------------------------------------------------------------------------
    def new_place(self) -> Place:
        """Return a place for a transaction that begins, if there is no spare one. Raises: MemoryExhausted,
        LimitExceeded.
        """
        slot = next(self._slots) if not self._spare_slots else self._spare_slots.pop()
        try:
            if slot > TRANSACTIONS_OPEN_MAX:
                raise LimitExceeded(f"{TRANSACTIONS_OPEN_MAX} transactions are open; end some")
            buf = np.zeros(BUFFER_WORDS, dtype=np.int64)
            view = buf.data.cast("B")
            desc = self.arena.take_descriptor()
        except BaseException:
            self._spare_slots.append(slot)
            raise
        return Place(slot, desc, buf, view)

    def raise_generation(self) -> int:
        """Make kernels leave changes to the general path until plans are made anew; return the generation of
        transactions that begin from now on.
        """
        self.mem[S_INDEX_GENERATION] += 1
        self.index_generation += 1
        return int(self.mem[S_INDEX_GENERATION])

    def own_place(self) -> Place:
        """Return the place for transactions that begin and end in one kernel call. Call with the latch held."""
        if self.place_of_calls is None:
            self.place_of_calls = self.new_place()
        return self.place_of_calls

    def retire(self, txn: Any) -> None:
        """Free the resources of a transaction that ends, exactly once wherever a signal arrives."""
        place: Place = txn.place
        if txn.is_ended or self.locks.by_slot.get(place.slot) is not place:
            return
        del self.locks.by_slot[place.slot]
        txn.is_ended = True  # before another transaction can get its place
        place.owner = None
        self.spare_shown.append(txn.shown)
        if self.users.dropped:
            self.users.leave(txn.txid)
        if txn.buf is place.buf and len(self.spare_places) < SPARE_PLACES:
            self.spare_places.append(place)
        else:
            self.arena.free_descriptor(place.desc)
            self._spare_slots.append(place.slot)

    # --- ids -------------------------------------------------------------------------------------
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
        """Do `begin_transaction` as soon as the log has room. Raises: as `LogRoom.wait`."""
        txid = ST_REDO

        def has_begun() -> bool:
            nonlocal txid
            txid = int(begin_transaction(self.mem, desc, slot, tail_word, redo_words))
            return txid != ST_REDO

        self.room.wait(has_begun)
        return txid

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
            self.failure.latch(StoreFailed("the process ran out of memory in a commit; open the store again"))
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
                    raise self.failure.latch(IoFailed(text, **error.evidence)) from error
                self.clock.sleep(SPACE_PAUSE_SECONDS)
            except Retryable:
                self.failure.check()
                return False
            except Damaged as error:
                text = f"a commit cannot read a page it must change ({error.message}); reopen the store"
                raise self.failure.latch(InvariantBroken(text)) from error
        return False
