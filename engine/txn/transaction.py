"""A transaction: its buffer, its lifecycle, and the one commit function (D3, D5).

A transaction larger than `transaction_memory` spools: its records are in a synced file, and the log gets one record
that names the file. Order of writes: blocks, sync of the file, sync of the names; then the referring group, durable;
then the rows. After a crash before the group is durable, the file is swept when the store is opened; after a later
crash, replay reads the file.

States of a transaction in memory: open, ended. The state that kernels use (operations, bytes, reservations) is in its
descriptor in the arena, so that a signal between two Python statements never leaves it inconsistent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

import numpy as np

from tidemark.engine.base.errors import (
    CommitOnFailedStore,
    Damaged,
    Error,
    InvariantBroken,
    IoFailed,
    OutcomeUnknown,
    Retryable,
    StorageFull,
    StoreFailed,
    TransactionEnded,
    TransactionKilled,
    WrongThread,
)
from tidemark.engine.base.ids import LAST_EPOCH, NO_EPOCH
from tidemark.engine.base.out_of_memory import memory_error
from tidemark.engine.disk.cache_layout import FRESH_PAGE
from tidemark.engine.disk.columns import COMMIT_PAGES
from tidemark.engine.log.group import Group
from tidemark.engine.log.group_layout import GROUP_ALIGN_WORDS
from tidemark.engine.log.redo import commit_interrupted
from tidemark.engine.log.spool_files import Kept
from tidemark.engine.memory.arena_layout import (
    OK,
    PAGE_WORDS,
    S_INDEX_GENERATION,
    S_VIEW_EPOCH,
    ST_COPIES,
    ST_INVARIANT,
    ST_MORE,
    ST_PAGE,
    ST_REDO,
    ST_SHAPE,
    ST_SPACE,
    ST_SPOOLED,
    ST_UNDO,
    X_CHANGES,
    X_COPY_WORDS,
    X_CURSOR,
    X_DISK,
    X_GENERATION,
    X_INDEXED,
    X_KINDS,
    X_LAST,
    X_SPOOLED,
    X_STATE,
    X_UNDO_WORDS,
    X_USED,
    X_WOKEN,
)
from tidemark.engine.rows.ticks_kernels import begin_large, finish_large
from tidemark.engine.txn.abort_kernels import abort_step, abort_to_savepoint_step, end_run
from tidemark.engine.txn.adopted_records import AdoptedRecords
from tidemark.engine.txn.commit_kernels import (
    APPLY_SLICE,
    COMMIT_AT_ONCE,
    COMMIT_LOGGED,
    COMMIT_WOKEN,
    SHAPE_DISK,
    SHAPE_INDEXES,
    commit_begin,
    commit_plain,
)
from tidemark.engine.txn.commit_pages_kernels import commit_pages
from tidemark.engine.txn.disk_changes_kernels import unplan_step
from tidemark.engine.txn.resources import BUFFER_WORDS, Resources
from tidemark.engine.txn.spool import Spool, too_large
from tidemark.engine.txn.spool_kernels import begin_spool, commit_spooled, slice_copy_words

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.txn.locks import Place
    from tidemark.engine.txn.spool import Reference
    from tidemark.engine.txn.views import KeptView

get_ident = threading.get_ident

KILLED = 0  # `Transaction.thread` of one that was killed; no thread has this number
SLICE_ROWS = 1_500  # of one kernel call, or about 80 index entries: 50 to 200 µs if key comparisons read few rows
SLICE_KEEPING_ROWS = 600  # while a snapshot is open and old rows must be kept
# UNDO buffer for a slice with disk parts: more than one step needs with the largest pages.
SLICE_UNDO_WORDS = PAGE_WORDS + 64
PAD_WORDS = 512  # a group ends on a multiple of 4 KiB
REDO_WORDS = BUFFER_WORDS + PAD_WORDS  # of log, reserved at the begin
SPOOL_WORDS_MIN = 8_192  # a smaller transaction waits for room in the log instead of making a file
# Log reserved by a transaction that spools: the group that refers to its file, and padding of the group before.
REFERENCE_WORDS = 2 * GROUP_ALIGN_WORDS
_STOPPED = "commit met a broken invariant (status {}); reopen the store"
_NOT_YET = (ST_MORE, ST_PAGE, ST_UNDO)  # the one call did nothing
_GOES_ON = (ST_MORE, ST_PAGE, ST_UNDO, ST_SPOOLED)
APPLIED = 2  # X_STATE after every operation is applied to the rows
COMMITTING = 3  # X_STATE of a commit in slices before that


class Transaction:
    """An open transaction, of the thread that made it. It begins at its first change or lock, or when its id is asked
    for (rule 5 of ADR 0031). Until then it has no place: `desc` is 0, which means no transaction to kernels that read.
    """

    __slots__ = (
        "__weakref__",
        "_txid",
        "buf",
        "buf_bytes",
        "desc",
        "group",
        "is_ended",
        "is_logged",
        "killed",
        "mem",
        "place",
        "reference",
        "shown",
        "spool",
        "store",
        "thread",
    )

    view: KeptView | None = None  # None: each call reads what is committed when it begins
    is_decided = False  # True: the source of its rows has decided about them, so checks are not asked

    # From its begin on:
    mem: Words
    place: Place
    buf_bytes: memoryview
    is_logged: bool  # the log has its records, or may have them
    group: Group | None
    spool: Spool | AdoptedRecords | None
    reference: Reference | None

    def __init__(self, store: Resources) -> None:
        self.store = store
        self.desc = 0
        self.buf = store.no_words
        self.thread = get_ident()
        self.is_ended = False
        # One word: the newest epoch that it was shown. Only calls of one row know better than LAST_EPOCH.
        try:
            self.shown = shown = store.spare_shown.pop()
        except IndexError:
            self.shown = shown = np.zeros(1, dtype=np.int64)
        shown[0] = NO_EPOCH

    @classmethod
    def of_dropped(cls, store: Resources, place: Place) -> Transaction:
        """Return the transaction in the place of one that was dropped without an end, to roll it back."""
        txn = cls(store)
        txn.mem, txn.place, txn.desc = store.mem, place, place.desc
        txn.buf = place.buf if place.grown is None else place.grown
        txn.buf_bytes = txn.buf.data.cast("B")
        txn.thread, txn._txid = place.thread, place.txid
        txn.is_logged = False
        txn.shown[0] = LAST_EPOCH
        txn.group, txn.spool, txn.reference = None, place.spool, None
        return txn

    def begin(self, tail_word: int = 0, redo_words: int = REDO_WORDS, is_applied: bool = False) -> None:
        """Begin in shared memory, for a change or a lock. tail_word, redo_words: as for `begin_transaction`.
        is_applied: for commits of another node, regardless of `refusal`.

        Raises: StoreFailed, RedoOverloaded, BinlogOverloaded, MemoryExhausted, LimitExceeded; the error of `refusal`.
        After a Retryable error the transaction has ended.
        """
        store = self.store
        try:
            if store.refusal is not None and not is_applied:
                raise store.refusal()
            if store.failure.first is not None:
                store.failure.check()
            locks = store.locks
            if locks.abandoned:
                end_abandoned(store)
            try:
                place = store.spare_places.pop()
            except IndexError:
                place = store.new_place()
            slot, desc = place.slot, place.desc
            generation = store.index_generation
            try:
                txid = store.begin_kernel(store.mem, desc, slot, tail_word, redo_words)
                if txid == ST_REDO:
                    txid = store.begin_with_room(desc, slot, tail_word, redo_words)
                self._txid = place.txid = txid if txid < store.txids.stop else store.checked_txid(txid)
                self.mem = store.mem
                self.place = place
                self.buf = place.buf
                self.buf_bytes = place.buf_bytes
                self.is_logged = False
                self.group = self.spool = self.reference = None
                place.thread = self.thread
                place.locked_at = None
                # Not `__del__`, in which Ctrl-C would be lost: nothing is called for a transaction that has ended.
                place.owner = ref(self, locks.dropped)
                self.desc = desc
                locks.by_slot[slot] = place
                if store.index_generation != generation:
                    # An index was announced, and its builder may have missed this transaction among those to wait for.
                    self.mem[desc + X_GENERATION] = self.mem[S_INDEX_GENERATION]
            except BaseException:
                # After Ctrl-C, for example, no caller ends this transaction, so its reservations are returned here
                # (F117).
                self.desc = 0
                self.buf = store.no_words
                place.owner = None
                locks.by_slot.pop(slot, None)
                abort_step(store.mem, desc, store.no_words, 1)
                store.spare_places.append(place)
                raise
        except Retryable:
            self.rollback()
            raise
        except MemoryError as error:
            raise self.out_of_memory(error) from error

    @property
    def txid(self) -> int:
        """The id, for `Database.outcome` and `Database.kill`. A transaction that has none yet begins now.

        Raises: as the first change.
        """
        if not self.desc:
            if self.is_ended:  # it has changed nothing
                if not hasattr(self, "_txid"):
                    self._txid = self.store.next_txid()
                return self._txid
            seen = self.seen
            self.check()
            self.seen = seen  # this reads nothing
            self.begin()
        return self._txid

    # --- usability -------------------------------------------------------------------------------
    def check(self, locks: bool = False) -> None:
        """Check that this thread may use the transaction now, and lock rows with `locks`.

        Raises: TransactionEnded, WrongThread, StoreFailed.
        """
        if self.store.failure.first is not None:
            self.store.failure.check()
        if self.is_ended or self.thread != get_ident():
            raise self._refusal()
        if locks:
            if not self.desc:
                self.begin()
            if self.place.locked_at is None:
                self.place.locked_at = self.store.clock.monotonic()
        self.shown[0] = LAST_EPOCH

    @property
    def seen(self) -> int:
        """Nothing that it has read is of a later epoch."""
        return int(self.shown[0])

    @seen.setter
    def seen(self, epoch: int) -> None:
        if not self.is_ended:  # the word may be another transaction's since
            self.shown[0] = epoch

    def _refusal(self) -> Error:
        """Return the error of a call that this thread may not make. A killed transaction is rolled back first."""
        if self.thread == KILLED:
            self.end_killed()
            return TransactionKilled(
                f"transaction {self.txid:#x} was rolled back: {self.killed}; run it again", txid=self.txid
            )
        if self.is_ended:
            return TransactionEnded("the transaction has ended; begin another one")
        return WrongThread("a transaction belongs to the thread that began it; begin one in this thread")

    def kill(self, why: str) -> None:
        """Let this transaction's thread make no further call; the caller rolls it back once no call is under way. why:
        what its error says.
        """
        self.killed = why
        self.thread = KILLED  # after the reason: `check` sees this word alone

    @property
    def is_killed(self) -> bool:
        """Whether `kill` was called."""
        return self.thread == KILLED

    def grow(self, words: int, ahead_words: int = 0) -> None:
        """Make room for `words` more words in the buffer, and for `ahead_words` after them if the limit allows.

        A transaction that spools may get less room; a caller that needs more calls again. Raises: TransactionTooLarge
        past `transaction_limit`, StorageFull, MemoryExhausted; the caller must then end the transaction.
        """
        used = int(self.mem[self.desc + X_USED])
        need = used + words + PAD_WORDS
        limit = self.store.transaction_words
        if self.spool is not None or need > limit or self.buf.size >= limit:
            self._room_in_spool(used)
            return
        # The buffer grows by each call: a before-image may need more words than the caller knows.
        need = max(need, min(self.buf.size + words, limit))
        size = min(max(2 * self.buf.size, need, used + ahead_words + PAD_WORDS), limit)
        room, more = self.store.room, size - self.buf.size
        if not room.is_reserved(self.desc, more) and not room.has_grown_for(self.desc, more):
            # The log has no room for these words now: a large enough transaction makes a spool file instead of waiting.
            if need >= SPOOL_WORDS_MIN and self.store.spool_words > limit:
                self._room_in_spool(used)
                return
            size = need
            room.reserve(self.desc, size - self.buf.size)
        grown = np.zeros(size, dtype=np.int64)
        grown[:used] = self.buf[:used]
        view = grown.data.cast("B")
        self.place.grown = grown
        self.buf = grown
        self.buf_bytes = view

    def load_spooled(self) -> None:
        """Read the evicted record at which a kernel stopped with ST_SPOOLED. Raises: SpoolDamaged or StorageFull, with
        the transaction rolled back; IoFailed.
        """
        try:
            self._load_spooled()
        except (Damaged, Retryable):
            self.rollback()
            raise

    def _load_spooled(self) -> None:
        if self.spool is not None:
            self.spool.load(int(self.mem[self.desc + X_SPOOLED]))

    def load_spooled_or_fail(self) -> None:
        """Like `load_spooled`, for a commit or a rollback in progress: a failure fails the store, since only a restart
        can continue.
        """
        try:
            self._load_spooled()
        except (Damaged, StorageFull) as error:
            text = f"{error.message}; the transaction can neither continue nor be rolled back; open the store again"
            raise self.store.failure.latch(IoFailed(text, **error.evidence)) from error

    # --- spool -----------------------------------------------------------------------------------
    def _room_in_spool(self, used: int) -> None:
        """Grow past `transaction_memory`: records in memory go to the spool file, oldest first.

        Raises: TransactionTooLarge, StorageFull, MemoryExhausted, TooManyFiles, IoFailed.
        """
        store = self.store
        spool = self.spool
        if not isinstance(spool, Spool):  # a transaction that adopts load files has no other operations
            if not store.room.may_spool:
                raise too_large(store.spool_words)
            spool = Spool(
                store.spools, self.txid, store.transaction_words, store.spool_words, store.tables.with_unique_index
            )
            spool.words[:used] = self.buf[:used]
            self._use(spool, spool.words[:used])
        if not self.mem[self.desc + X_SPOOLED]:
            begin_spool(self.mem, self.desc, REFERENCE_WORDS)
        end_run(self.mem, self.desc, 0)  # a record in the file cannot take more rows
        self._use(spool, spool.room(used))

    def _use(self, spool: Spool | AdoptedRecords, buf: Words) -> None:
        view = buf.data.cast("B")
        self.place.grown, self.place.spool = buf, spool
        # No call follows, so a KeyboardInterrupt cannot split the switch to the spool's buffer.
        self.buf = buf
        self.buf_bytes = view
        self.spool = spool

    def _truncate_spool(self, used: int) -> None:
        """Drop records from word `used` on after a rollback to a savepoint. Raises: IoFailed, with the store failed."""
        try:
            if isinstance(self.spool, Spool):
                self._use(self.spool, self.spool.truncate(used))
        except (Damaged, StorageFull) as error:
            raise self.store.failure.latch(
                IoFailed(f"{error.message}; open the store again", **error.evidence)
            ) from error

    def begin_to_adopt(self, records: AdoptedRecords) -> None:
        """Use the records of load files as the buffer of a transaction without operations. Raises: RedoOverloaded."""
        self.store.room.reserve(self.desc, records.record_words + REFERENCE_WORDS)
        begin_spool(self.mem, self.desc, records.record_words + REFERENCE_WORDS)
        self._use(records, records.words)

    def _leave_spool(self, spool: Spool | AdoptedRecords) -> None:
        """Close the spool of an ended transaction: files that the log refers to stay, others are removed."""
        is_committed = self.group is not None and self.group.sequence > 0
        if self.group is not None and self.reference is not None and is_committed:
            self.store.spools.keep(self.txid, Kept(self.group.lsn, self.reference.size_bytes, self.reference.names))
        spool.close(is_committed)
        self.buf = self.store.no_words
        self.spool = None

    # --- end -------------------------------------------------------------------------------------
    def commit(self, wait: bool | None = None) -> None:
        """Make the changes visible, and durable before returning if `wait`; None: with `durability="commit"`. Of a
        transaction that has changed nothing: make durable what it has read.

        Order: records to the filling REDO group and changes to the rows (one atomic call), then the wait for that
        group's write and sync. A crash before the sync ends leaves the transaction whole or absent; with
        `wait`, it is acknowledged only after the sync.

        Durable on return: everything, also what it has read, if `wait`. Otherwise it becomes durable with its epoch at
        the latest; in a node group all members have it in memory.

        Raises:
            CommitOnFailedStore: The store failed, and the outcome is unknown; the error has the `txid`.
            CommitInterrupted: Ctrl-C came, and the outcome is unknown; the error has the `txid`.
            StoreFailed: Nothing of the transaction was or will be written.
            MemoryExhausted: The transaction was rolled back.
            TransactionEnded: It has committed or rolled back already.
            WrongThread: Another thread began it.

        Examples:
            >>> txn = db.transaction()
            >>> txn.insert("item", (4, "ink", 7))
            >>> txn.commit()
            >>> db.outcome(txn.txid)
            'committed'
        """
        store = self.store
        if wait is None:
            wait = store.waits_for_disk
        if not self.desc:
            return self._commit_reads(wait)
        try:
            status = self._commit_small(wait)
        except MemoryError as error:
            raise self.out_of_memory(error) from error
        if status is None or status < OK:
            self._commit_any(status, wait)
        return None

    def _commit_any(self, known: int | None, wait: bool) -> None:
        """Commit a transaction that `_commit_small` has left, which returned `known`."""
        store = self.store
        # Timed only if it waits or is watched: timing a commit in memory takes a twentieth of its own time.
        began = store.clock.monotonic() if wait or store.watch is not None else 0.0
        secures = wait or store.log.partner is not None
        seen = self.seen if secures else NO_EPOCH
        try:
            self.check()
            if self.spool is not None:
                self._commit_by_reference(self.spool)
            else:
                log = store.log
                # Records to the filling group and changes to the rows, in memory, by one kernel call under the latch.
                status, ticket = self._commit_at_once(known)
                if status < OK:  # nothing is done
                    if status != ST_MORE:  # pages must be read and pinned, or UNDO must be flushed
                        status, ticket = self._commit_on_held_pages()
                    if status == ST_MORE:  # it is too large: its buffer goes to the log, then the rows change in slices
                        status, ticket = self._commit_in_slices()
                self.is_logged = status & COMMIT_LOGGED != 0
                self.ended(status & COMMIT_WOKEN)  # visible, locks free, not acknowledged: a crash here loses all of it
                if status & COMMIT_LOGGED and (wait or log.partner is not None):
                    (log.wait if wait else log.share)(ticket, self.txid)  # after `wait` the group, with it, is durable
            if not self.is_logged and seen and self.group is None:
                store.log.secure(seen, wait)
        except MemoryError as error:
            raise self.out_of_memory(error) from error
        if began and (self.is_logged or self.group is not None):
            store.note_commit(began, self.txid, wait)

    def _commit_small(self, wait: bool) -> int | None:
        """Commit a small transaction of rows in memory, see `commit`, in a store that is no node of a group. Return the
        status of `commit_plain`, below OK if nothing is done; None if it was not called.
        """
        store = self.store
        log = store.log
        if log.partner is not None or store.watch is not None or self.spool is not None:
            return None
        if self.is_ended or store.failure.first is not None or self.thread != get_ident():
            return None
        if wait:
            began, seen = store.clock.monotonic(), self.seen
        with store.latch:  # a crash in here leaves nothing of it on disk
            epochs = store.epochs
            status: int = store.commit_kernel(
                self.mem, self.desc, self.buf, log.fill, store.sink.current, epochs.current, self._txid
            )
            if status > OK:
                epochs.has_commits = True
            elif status == ST_INVARIANT:
                self._check_undone(status)
            ticket = log.sequence
        if status < OK:
            return status
        self.is_logged = is_logged = status & COMMIT_LOGGED != 0
        if self.place.shared or status & COMMIT_WOKEN:
            self.ended(status & COMMIT_WOKEN)
        else:
            store.retire(self)
        if wait:  # visible, locks free, not acknowledged: a crash here loses all of it
            if is_logged:
                log.wait(ticket, self._txid)
                store.note_commit(began, self._txid, True)
            elif seen:
                log.secure(seen, True)
        return status

    def _commit_reads(self, wait: bool) -> None:
        """End a transaction that has not begun, and make durable what it has read, see `commit`."""
        store = self.store
        if store.failure.first is not None or self.is_ended or self.thread != get_ident():
            self.check()
        seen = self.seen if wait or store.log.partner is not None else NO_EPOCH
        self.is_ended = True
        store.spare_shown.append(self.shown)
        if seen:
            try:
                store.log.secure(seen, wait)
            except MemoryError as error:
                raise self.out_of_memory(error) from error

    def out_of_memory(self, error: MemoryError) -> Error:
        """Return the error to raise for a MemoryError in a call of this transaction. The transaction is rolled back.
        If the log may have it, the store fails instead, and only a restart shows the outcome.
        """
        is_reader = not self.desc
        is_applied = not is_reader and not self.is_ended and int(self.mem[self.desc + X_STATE]) == APPLIED
        if is_reader or not (self.is_logged or is_applied or (self.group is not None and self.group.sequence)):
            self.rollback()
            return memory_error(error, "the transaction was rolled back")
        failed = self.store.commit_out_of_memory(error, self.txid)
        self.rollback()
        return failed

    def _commit_at_once(self, known: int | None = None, has_pages: bool = False) -> tuple[int, int]:
        """Commit in one kernel call; return (status, group). status: what was done; or ST_PAGE, ST_UNDO or
        ST_MORE if nothing was, see `commit_at_once` in commit_kernels. known: as `_commit_small` returned. has_pages:
        the pages of disk parts are pinned.
        """
        store = self.store
        log = store.log
        with store.latch:  # a crash in here leaves nothing of it on disk
            status = known
            if status is None:
                status = commit_plain(
                    self.mem, self.desc, self.buf, log.fill, store.sink.current, store.epochs.current, self.txid
                )
            if status < OK:
                status = self._commit_with_room(status, has_pages)
            if status > OK:
                store.epochs.has_commits = True
            else:
                self._check_undone(status)
            return status, log.sequence

    def _commit_with_room(self, status: int, has_pages: bool) -> int:
        """Commit by the kernel of the transaction's shape, with the room that it needs in copies and in the filling
        group. status: of the kernel for rows in memory. Call with the latch held.
        """
        store, log = self.store, self.store.log
        mem, desc, buf, epoch, txid = self.mem, self.desc, self.buf, store.epochs.current, self.txid
        pages = store.no_words if has_pages else store.disk.pages_in_memory
        shape = self._shape()
        commit = COMMIT_AT_ONCE[shape]
        if status == ST_SHAPE:
            status = commit(mem, desc, buf, log.fill, store.sink.current, epoch, txid, pages)
        if status == ST_SPACE or status == ST_COPIES:
            copies = store.sink.room(int(mem[desc + X_COPY_WORDS]))
            fill = log.room(int(mem[desc + X_USED]))
            rest = (pages,) if shape & SHAPE_DISK else ()  # `commit_plain` takes no pages
            status = commit(mem, desc, buf, fill, copies, epoch, txid, *rest)
        return status

    def _shape(self) -> int:
        indexes = SHAPE_INDEXES if self.mem[self.desc + X_INDEXED] else 0
        return indexes | SHAPE_DISK if self.mem[self.desc + X_DISK] else indexes

    def _check_undone(self, status: int) -> None:
        """Check the status of a one-call commit that did nothing. Call with the latch held: a store that fails
        now writes no more groups, and the filling one may have the records. Raises: InvariantBroken.
        """
        if status not in (OK, *_NOT_YET):
            raise self.store.failure.latch(InvariantBroken(_STOPPED.format(status)))

    def _commit_on_held_pages(self) -> tuple[int, int]:
        """Load and pin the pages of disk parts, then commit at once.

        Return (status, group); ST_MORE, with nothing done, if it needs more pages or UNDO buffer than one call may
        have, or slices. Raises: PageDamaged, IoFailed; MemoryExhausted, with the transaction rolled back.
        """
        disk = self.store.disk
        undo_words = int(self.mem[self.desc + X_UNDO_WORDS])
        pages, is_all = self.pages_of_commit()
        if not is_all or not disk.undo.fits(undo_words):
            return ST_MORE, 0
        try:
            disk.hold(pages, is_reference=False)
        except Retryable:
            self.rollback()
            raise
        try:
            status = ST_UNDO
            while status == ST_UNDO:
                disk.undo.make_room(undo_words)
                status, ticket = self._commit_at_once(has_pages=True)
        finally:
            disk.release(pages)
        return status, ticket

    def pages_of_commit(self) -> tuple[list[int], bool]:
        """Return the pages of disk columns that the next slice of a commit must hold, and whether these are all."""
        out = np.zeros(1 + self.store.disk.pages_per_hold(COMMIT_PAGES), dtype=np.int64)
        while (status := commit_pages(self.mem, self.desc, self.buf, out)) == ST_SPOOLED:
            self.load_spooled_or_fail()
        return (out[1 : 1 + int(out[0])] | FRESH_PAGE).tolist(), bool(status == OK)

    def _commit_in_slices(self) -> tuple[int, int]:
        """Commit in slices, with the buffer itself as a REDO group; return (status, group).

        Other transactions may commit between slices; no epoch closes, so no local checkpoint starts.
        """
        store = self.store
        used = int(commit_begin(self.mem, self.desc, self.buf, self.txid))
        group = Group(self.buf, used, 1)
        self.group = group
        with store.latch:
            self._hold_epoch()
            store.log.adopt(group)  # committed from here on; a crash before its sync ends loses all of it
        self.apply_logged(group)
        self.buf = store.no_words  # the buffer belongs to the log until it is written
        return COMMIT_LOGGED | COMMIT_WOKEN, group.sequence

    def _commit_by_reference(self, spool: Spool | AdoptedRecords) -> None:
        """Commit a transaction that spools. Durable on return: everything, in both modes of durability.

        Raises: StorageFull, with the transaction rolled back; SyncFailed, IoFailed; CommitInterrupted and
        CommitOnFailedStore, with the `txid`.
        """
        store, mem, desc = self.store, self.mem, self.desc
        if not mem[desc + X_CHANGES]:
            self.rollback()  # it has only locks
            return
        try:
            reference = spool.finish(int(mem[desc + X_USED]))  # after a crash up to here the file is swept
        except Retryable:
            self.rollback()
            raise
        words = np.zeros(reference.record.size + 2 * GROUP_ALIGN_WORDS, dtype=np.int64)
        used = commit_spooled(mem, desc, words, self.txid, reference.record)
        group = Group(words, int(used), 1, reference.names)
        self.group = group
        self.reference = reference
        with store.latch:
            if store.follows_log and isinstance(spool, AdoptedRecords):
                store.epochs.close()  # a load is the first commit of its epoch, so that a mark may represent it
            self._hold_epoch()
            store.log.adopt(group)  # committed from here on; a crash before its sync ends loses all of it
        spool.seal()
        interrupt: KeyboardInterrupt | None = None
        try:
            store.log.wait(group.sequence)
        except KeyboardInterrupt as error:
            interrupt = error  # it is in the log, before transactions that may commit now: the rows must follow
        except CommitOnFailedStore as error:
            error.evidence["txid"] = self.txid
            raise
        except BaseException:
            self.fail_in_commit()
            raise
        self.apply_logged(group)
        self.ended(1)
        if interrupt is not None:
            raise commit_interrupted(self.txid) from interrupt

    def apply_logged(self, group: Group) -> None:
        """Call `apply_slices` for a group that a leader may make durable even if this fails. Raises: OutcomeUnknown."""
        try:
            self.apply_slices(group)
        except OutcomeUnknown:
            raise
        except Error as error:
            text = (
                f"the store failed while a commit was applied ({error.message}); open it again and ask"
                f" outcome({self.txid})"
            )
            raise CommitOnFailedStore(text, **{**error.evidence, "txid": self.txid}) from error

    def apply_slices(self, group: Group) -> None:
        """Apply a large commit to the rows. A KeyboardInterrupt is raised after the last slice, since all is logged."""
        store = self.store
        interrupt: KeyboardInterrupt | None = None
        status = ST_MORE
        while status in _GOES_ON:
            try:
                status = self.apply_slice(group)
                if status == ST_SPOOLED:
                    self.load_spooled_or_fail()
            except KeyboardInterrupt as error:
                # The kernel keeps its position in the descriptor, so continuing is right wherever the signal arrived.
                interrupt = error
                status = OK if int(self.mem[self.desc + X_STATE]) == APPLIED else ST_MORE
            except BaseException:
                self.fail_in_commit()
                raise
        if status != OK:
            raise store.failure.latch(InvariantBroken(_STOPPED.format(status)))
        self._release_epoch()
        if interrupt is not None:
            raise commit_interrupted(self.txid) from interrupt

    def _hold_epoch(self) -> None:
        """Keep the epoch open, and show none of this commit before all of it is applied. Call with the latch held."""
        store, mem = self.store, self.mem
        store.epochs.hold(self)
        while begin_large(mem, store.epochs.current, int(mem[self.desc + X_KINDS])) == ST_MORE:
            store.epochs.holders.discard(self)
            store.epochs.close()
            store.epochs.hold(self)

    def _release_epoch(self) -> None:
        """Show the commit, if it has begun, and allow the epoch to close."""
        if self in self.store.epochs.holders:
            finish_large(self.mem)
        self.store.epochs.unhold(self)

    def fail_in_commit(self) -> None:
        """Fail the store, since a commit that holds its epoch cannot finish. Waiters stop, and only a restart can
        continue.
        """
        if self.store.failure.first is None:
            self.store.failure.latch(
                InvariantBroken(f"the commit of transaction {self.txid} ended in the middle; reopen the store")
            )

    def _copies(self) -> Words:
        """Return room for the copies that the next slice makes for a running local checkpoint. Call with the latch
        held.
        """
        sink = self.store.sink
        if self.spool is None or not sink.current.size:
            return sink.room(int(self.mem[self.desc + X_COPY_WORDS]))
        return sink.room(int(slice_copy_words(self.mem, self.desc, SLICE_ROWS)))

    def apply_slice(self, group: Group) -> int:
        """Apply a slice of a logged commit, with the pages of its disk parts pinned. If such a page is unreadable, fail
        the store, which must be opened again.
        """
        store = self.store
        if self.spool is not None:
            store.wait_for_copies()
        shape = self._shape()
        if not shape & SHAPE_DISK:
            with store.latch:
                is_keeping = not shape and int(self.mem[S_VIEW_EPOCH])
                return self._apply_some(group, SLICE_KEEPING_ROWS if is_keeping else SLICE_ROWS)
        pages, _ = self.pages_of_commit()
        if not store.hold_for_slice(pages):
            return ST_MORE
        try:
            store.disk.undo.make_room(SLICE_UNDO_WORDS)
            with store.latch:
                return self._apply_some(group, SLICE_ROWS)
        finally:
            store.disk.release(pages)

    def _apply_some(self, group: Group, budget: int) -> int:
        """Apply the next operations of a logged commit, for about `budget` rows. Call with the latch held and the pages
        of disk parts pinned.
        """
        return int(APPLY_SLICE[self._shape()](self.mem, self.desc, self.buf, self._copies(), group.epoch, budget))

    def rollback(self) -> None:
        """Undo everything; nothing of it reaches the disk. Does nothing if the transaction has ended.

        Raises:
            KeyboardInterrupt: Ctrl-C came, and is raised after the rollback is complete: if it stopped halfway, rows
                would stay locked until the store is closed (F117).
            StoreFailed: Memory was exhausted twice; the store has failed.

        Examples:
            >>> txn = db.transaction()
            >>> txn.insert("item", (4, "ink", 7))
            >>> txn.rollback()
            >>> 4 in db["item"]
            False
        """
        if self.thread == KILLED:
            self.end_killed()
            self.thread = get_ident()  # its thread ends it itself, so there is no error to raise
        else:
            self._roll_back_whole()

    def end_killed(self) -> None:
        """Roll back a killed transaction, in its thread or in the one that killed it."""
        with self.store.kill_latch:  # both may come here
            self._roll_back_whole()

    def _roll_back_whole(self) -> None:
        interrupt: KeyboardInterrupt | None = None
        has_failed = False
        while not self.is_ended:
            try:
                self._roll_back()
            except KeyboardInterrupt as error:
                interrupt = error  # every step is idempotent
            except MemoryError as error:
                if has_failed:
                    text = f"a transaction could not be rolled back ({error!r}); open the store again"
                    raise self.store.failure.latch(StoreFailed(text)) from error
                has_failed = True
        if interrupt is not None:
            raise interrupt

    def _roll_back(self) -> None:
        if self.desc and self.store.failure.first is None:
            if self.group is not None and self.group.sequence:
                # A signal arrived after the hand-over to the log: it is committed, so the rows must follow.
                if int(self.mem[self.desc + X_STATE]) != APPLIED:
                    self.apply_slices(self.group)
                self._release_epoch()
            elif int(self.mem[self.desc + X_STATE]) == APPLIED:
                self.store.epochs.has_commits = True  # a signal arrived right after the commit's one step
            else:
                self._release_epoch()
                if int(self.mem[self.desc + X_STATE]) == COMMITTING:  # a signal arrived right before the hand-over
                    self.mem[self.desc + X_CURSOR] = 0
                    self.mem[self.desc + X_STATE] = 1
                if isinstance(self.spool, AdoptedRecords):
                    self.spool.abandon(self.mem)  # release the places of rows
                self._unplan(0)
                self._undo(lambda: int(abort_step(self.mem, self.desc, self.buf, SLICE_ROWS)))
            self.ended(1)
        if not self.is_ended:  # it holds no place
            self.is_ended = True
            self.store.spare_shown.append(self.shown)

    def _unplan(self, until: int) -> None:
        if int(self.mem[self.desc + X_DISK]):
            self._undo(lambda: int(unplan_step(self.mem, self.desc, self.buf, until, SLICE_ROWS)))

    def _undo(self, step: Callable[[], int]) -> None:
        """Call `step` until it is done. A KeyboardInterrupt is raised at the end: otherwise rows would stay locked."""
        status = ST_MORE
        interrupt: KeyboardInterrupt | None = None
        while status in (ST_MORE, ST_SPOOLED):
            try:
                status = step()
                if status == ST_SPOOLED:
                    self.load_spooled_or_fail()
            except KeyboardInterrupt as error:
                interrupt = error  # the kernel may have finished already; repeating it changes nothing
                status = ST_MORE
        if interrupt is not None:
            raise interrupt
        if status != OK:
            text = f"rollback met a broken invariant (status {status}); reopen the store"
            raise self.store.failure.latch(InvariantBroken(text))
        if self.mem[self.desc + X_WOKEN]:
            self.mem[self.desc + X_WOKEN] = 0
            self.store.locks.wake(self.place)

    def ended(self, has_waiters: int) -> None:
        """Finish a transaction whose locks are free: wake waiters, return its resources."""
        if self.is_ended:
            return
        if self.spool is not None:
            self._leave_spool(self.spool)
        if self.place.shared:
            self.store.locks.release_shared(self.place)
        elif has_waiters:
            self.store.locks.wake(self.place)
        self.store.retire(self)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the operations of the block, and release the locks that it has taken, if it raises; the transaction
        continues. It begins here, if it has not.

        Raises:
            RedoOverloaded: The log has no room. The transaction was rolled back.
            MemoryExhausted: The transaction was rolled back.
            TransactionEnded: It has committed or rolled back already.
            WrongThread: Another thread began it.
            StoreFailed: The store is closed or has failed.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.insert("item", (4, "ink", 7))
            ...     try:
            ...         with txn.savepoint():
            ...             txn.insert("item", (5, "box", 2))
            ...             txn.insert("item", (1, "pen", 1))
            ...     except tm.DuplicateKey:
            ...         txn.insert("item", (6, "jar", 1))
            >>> sorted(row.id for row in db["item"])
            [1, 2, 3, 4, 6]
        """
        try:
            self.check()
            if not self.desc:
                self.begin()
            until = int(end_run(self.mem, self.desc, 1))
            used = int(self.mem[self.desc + X_USED])
            changes = int(self.mem[self.desc + X_CHANGES])
            shared = len(self.place.shared)
        except MemoryError as error:
            raise self.out_of_memory(error) from error
        try:
            yield
        except BaseException:
            if not self.is_ended and self.thread != KILLED and self.store.failure.first is None:
                try:
                    if int(self.mem[self.desc + X_LAST]) != until:
                        self._unplan(until)
                        self._undo(lambda: self._undo_savepoint(until, used, changes))
                    if len(self.place.shared) > shared:
                        self.store.locks.release_shared(self.place, shared)
                except MemoryError as error:
                    raise self.out_of_memory(error) from error
            raise

    def _undo_savepoint(self, until: int, used: int, changes: int) -> int:
        mem, desc, buf = self.mem, self.desc, self.buf
        status = int(abort_to_savepoint_step(mem, desc, buf, until, used, changes, SLICE_ROWS))
        if status == OK and self.spool is not None:
            self._truncate_spool(used)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None:
            self.rollback()
        elif not self.desc and not self.is_ended:
            self._commit_reads(self.store.waits_for_disk)
        elif not self.is_ended or self.thread == KILLED:
            try:
                if not self.desc:
                    return self.commit()
                wait = self.store.waits_for_disk
                status = self._commit_small(wait)
                if status is None or status < OK:
                    self._commit_any(status, wait)
            except MemoryError as failed:  # raised before the commit began
                raise self.out_of_memory(failed) from failed
            except BaseException:
                # Before the hand-over to the log it is rolled back; after it, it is committed: see outcome(txid).
                self.rollback()
                raise


class DecidedTransaction(Transaction):
    """A transaction of rows about which their source has decided: another site, or a backup."""

    __slots__ = ()
    is_decided = True


def end_abandoned(store: Resources) -> None:
    """Roll back the transactions that were dropped without an end. Raises: as `Transaction.rollback`."""
    abandoned = store.locks.abandoned
    while abandoned:
        try:
            place = abandoned.popleft()
        except IndexError:  # another thread has taken the last one
            return
        Transaction.of_dropped(store, place).rollback()
