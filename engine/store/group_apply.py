"""Apply groups of the primary's log to the store of a member while it is in use (docs/internals/node-group.md).

Order for each group: read the files that it names completely; change rows, indexes and schema; then queue the group in
the member's log, with the primary's sequence, epoch, time, transaction ids and records. After a crash in between, the
restart ends at the previous group: a local checkpoint begins only at the end of an epoch, and epochs end between
groups. An error in the middle of a group fails the store: some of its rows may be changed and cannot be undone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.statuses import settle_disk
from tidemark.engine.base.errors import InvariantBroken, NotPrimary, RedoDamaged, Rejected, Retryable, StoreFailed
from tidemark.engine.base.ids import TXID_COUNTER_BITS, first_txid, next_incarnation
from tidemark.engine.log.group import Group
from tidemark.engine.log.group_layout import GROUP_ALIGN_WORDS
from tidemark.engine.log.reader import GroupRead, described
from tidemark.engine.log.records import InvalidRecord, schema_of
from tidemark.engine.log.redo_layout import GROUP_WORDS, KIND_MASK, TABLE_MASK, TRANSACTION_WORDS
from tidemark.engine.log.spool_files import Kept
from tidemark.engine.log.spool_reader import SpoolReader, referred
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import memory_full
from tidemark.engine.rows.ticks_kernels import begin_large, finish_large
from tidemark.engine.sealed.sealed_layout import KIND_GROUP, is_sealed, store_of
from tidemark.engine.sealed.version import check_version
from tidemark.engine.store import group_apply_layout as g
from tidemark.engine.store.applied_schema import apply_change
from tidemark.engine.store.group_apply_kernels import apply_records
from tidemark.engine.txn.commit_kernels import WHOLE
from tidemark.engine.txn.transaction import COMMITTING, PAD_WORDS, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store

SLICE_ROWS = 400  # of one kernel call: 50 to 200 µs
_DISK_NEEDS = (a.ST_PAGE, a.ST_EXTENT, a.ST_UNDO)


class AppliedTransaction(Transaction):
    """A transaction that the primary has committed, while a member applies it to its rows."""

    __slots__ = ()

    def apply_prepared(self, group: Group, words: Words) -> None:
        """Apply the operations that a kernel has prepared from the records in `words`, disk parts included: in one step
        if their pages and UNDO log fit into one, else in slices. Raises: StoreFailed.
        """
        self.buf = words
        self.group = group
        try:
            if not self._apply_at_once(group):
                self.mem[self.desc + a.X_CURSOR] = self.mem[self.desc + a.X_FIRST]
                self.mem[self.desc + a.X_STATE] = COMMITTING
                is_part = int(self.mem[a.S_UNFINISHED]) != 0  # of a transaction that is applied in several steps anyway
                if not is_part:
                    begin_large(self.mem, group.epoch, a.X_UPDATES | a.X_DELETES)
                self.apply_slices(group)
                if not is_part:
                    finish_large(self.mem)
        finally:
            self.group = None
            self.buf = self.store.no_words

    def _apply_at_once(self, group: Group) -> bool:
        store = self.store
        disk = store.disk
        undo_words = int(self.mem[self.desc + a.X_UNDO_WORDS])
        pages, is_all = self.pages_of_commit()
        if not is_all or not disk.undo.fits(undo_words):
            return False
        if not store.hold_for_slice(pages):
            return False
        try:
            disk.undo.make_room(undo_words)
            with store.latch:
                if not disk.undo.has_room(undo_words):
                    return False  # a local checkpoint began and wrote its mark: there is room for slices
                self.mem[self.desc + a.X_CURSOR] = self.mem[self.desc + a.X_FIRST]
                self.mem[self.desc + a.X_STATE] = COMMITTING
                status = self._apply_some(group, WHOLE)
        finally:
            disk.release(pages)
        if status != a.OK:
            raise store.failure.latch(
                InvariantBroken(f"a group met a broken invariant (status {status}); reopen the store")
            )
        return True


class GroupApplier:
    """Applies the groups of a primary to one store that is a member. One thread at a time calls it."""

    def __init__(self, store: Store) -> None:
        """Make a store a member: from now on it refuses transactions and schema changes from all other callers.

        Raises: Rejected while transactions are open.
        """
        self.store = store
        self._identity = store.spools.identity[0]
        text = "this node is not the primary of its group and takes no transactions; call the primary"
        store.resources.refusal = lambda: NotPrimary(text)
        if store.locks.by_slot:
            store.resources.refusal = None
            raise Rejected("transactions are open; end them before the store becomes a member of a node group")
        with store.latch:
            store.epochs.follow(store.epochs.current)

    # --- epochs ----------------------------------------------------------------------------------
    def start_at(self, epoch: int) -> None:
        """Follow the epoch that is open at the primary where this member's stream begins. Raises: InvariantBroken."""
        with self.store.latch:
            self.store.epochs.follow(epoch)

    def close_epoch(self, epoch: int, sequence: int) -> None:
        """Open `epoch`, which begins with the group of this sequence; earlier groups must have been applied. A repeated
        or late call does nothing. Raises: InvariantBroken if groups are missing; StoreFailed.
        """
        store = self.store
        store.failure.check()
        if sequence > store.log.sequence:
            raise store.failure.latch(self._gap(sequence))
        with store.latch:
            if epoch > store.epochs.current:
                store.epochs.advance(epoch)

    # --- groups ----------------------------------------------------------------------------------
    def apply(self, words: Words) -> int:
        """Apply a sealed group; return its sequence. The array belongs to the applier from now on. A group that was
        applied before changes nothing. Durable on return: the files that it names, and data files; not the group
        itself (see `RedoLog.wait`).

        Raises: RedoDamaged or RedoOverloaded, with nothing changed; InvariantBroken if it does not fit this store; any
        other StoreFailed.
        """
        store = self.store
        store.failure.check()
        group = self._received(words)
        if group.sequence < store.log.sequence:
            return group.sequence
        if group.sequence > store.log.sequence:
            raise store.failure.latch(self._gap(group.sequence))
        if group.epoch < store.epochs.current:
            text = f"group {group.sequence} is of epoch {group.epoch}, which is closed here; copy the store anew"
            raise store.failure.latch(InvariantBroken(text, epoch=group.epoch))
        if not self._has_room(words):  # a member's own local checkpoints make room
            store.room.wait(lambda: self._has_room(words))
        try:
            self._apply(group)
        except BaseException as error:
            if store.failure.first is None:
                raise store.failure.latch(_interrupted(group.sequence, error)) from error
            raise
        return group.sequence

    def _received(self, words: Words) -> GroupRead:
        size = int(words.size)
        is_whole = size >= GROUP_ALIGN_WORDS and size % GROUP_ALIGN_WORDS == 0 and is_sealed(words, KIND_GROUP, size)
        if not is_whole or store_of(words) != self._identity:
            raise RedoDamaged(
                "a group of the log that was received does not belong to this store; ask the primary for it again"
            )
        check_version(words, "a group of the primary")
        group = described(words)
        if group.records_words > size - GROUP_WORDS:
            raise RedoDamaged(f"group {group.sequence} has an impossible size; ask the primary for it again")
        return group

    def _gap(self, sequence: int) -> InvariantBroken:
        return InvariantBroken(
            f"group {sequence} came instead of group {self.store.log.sequence}; the groups between are missing",
            sequence=sequence,
        )

    def may_wait(self, words: Words) -> bool:
        """Whether `apply` may wait for a local checkpoint: to make room in the log, or to begin at an epoch's end."""
        return not self._has_room(words) or described(words).epoch > self.store.epochs.current

    def _has_room(self, words: Words) -> bool:
        return self.store.room.has_words(int(words.size) + PAD_WORDS)

    def _apply(self, group: GroupRead) -> None:
        store = self.store
        what = referred(group)
        reader = None
        if what is not None:
            reader = SpoolReader(store.spools.files, self._identity, what)
            reader.verify()
        own = store.log.copy_of(group)  # a copy from before plans are written into its records
        own.epoch = group.epoch
        with store.latch:
            if group.epoch > store.epochs.current:
                store.epochs.advance(group.epoch)
            store.epochs.used()
        GroupRun(store, group, own, reader).all()
        with store.latch:
            store.log.append(own)
        if what is not None:
            store.spools.keep(what.txid, Kept(own.lsn, what.size_bytes, what.names))
        if group.next_txid > store.resources.txid_limit():
            store.resources.number_from(group.next_txid)

    # --- the end ---------------------------------------------------------------------------------
    def lead(self, keep: Callable[[int], None]) -> None:
        """Allow transactions in the store: the node is primary from now on. Epochs continue with the next GCI,
        transaction ids after all ids that any primary has assigned. keep: writes the incarnation of the new ids to the
        sysfile, durably, before the first transaction begins; otherwise a restart would assign ids again.
        """
        store = self.store
        store.failure.check()
        incarnation = next_incarnation(max(store.resources.txid_limit() >> TXID_COUNTER_BITS, store.spools.identity[1]))
        keep(incarnation)
        with store.latch:
            store.epochs.lead()
        store.resources.number_from(int(first_txid(incarnation)))
        store.sequences.forget()
        store.resources.refusal = None

    def end_stream(self) -> None:
        """End the stream: threads that wait for the end of an epoch stop waiting. The store stays a member."""
        with self.store.latch:
            self.store.epochs.end_stream()


def _interrupted(sequence: int, error: BaseException) -> StoreFailed:
    """Return the failure of a store that has part of a group in its rows and nothing of it in its log. Its evidence has
    `is_short` if the store only lacked room for the group.
    """
    if isinstance(error, Retryable):
        text = f"group {sequence} of the primary has no room here ({error.message}); open the store again"
        return StoreFailed(text, sequence=sequence, is_short=True)
    text = f"group {sequence} was not applied to its end ({error!r}); reopen the store, or copy it anew"
    return InvariantBroken(text, sequence=sequence)


class GroupRun:
    """One group while it is applied to a store."""

    def __init__(self, store: Store, group: GroupRead, own: Group, reader: SpoolReader | None) -> None:
        self.store = store
        self._group = group
        self._own = own
        self._reader = reader
        self._state: Words = np.zeros(g.GA_WORDS, dtype=np.int64)
        self._tables = store.tables.directory()
        self._txn: AppliedTransaction = store.transactions.begin_applied(AppliedTransaction)

    def all(self) -> None:
        """Apply every transaction. Raises: StoreFailed, and other errors that must fail the store."""
        stop = GROUP_WORDS + self._group.records_words
        self._state[g.GA_AT] = self._state[g.GA_TXN_STOP] = GROUP_WORDS
        self.apply_part(self._group.words, stop)
        self._txn.rollback()  # its operations are applied; frees its slot

    def apply_part(self, words: Words, stop: int) -> None:
        store, state = self.store, self._state
        need = 0
        while True:
            store.resources.wait_for_copies()
            with store.latch:
                copies = store.resources.sink.room(need)
                status = apply_records(
                    store.mem, self._tables, self._txn.desc, words, copies, stop, self._own.epoch, SLICE_ROWS, state
                )
            need = 0
            if status == a.OK:
                return
            if status == a.ST_COPIES:
                need = int(store.mem[self._txn.desc + a.X_COPY_WORDS])
            elif status == g.GA_DISK:
                self._txn.apply_prepared(self._own, words)
                state[g.GA_IS_READY] = 0
            elif status == g.GA_SCHEMA:
                self._change_schema(words)
            elif status == g.GA_FILES:
                self._take_files(words)
            elif status != a.ST_MORE:
                self._settle(status, words)

    def _settle(self, status: int, words: Words) -> None:
        """Provide the page, extent or UNDO room that a record needs before it can be prepared. Raises: InvariantBroken,
        and errors of reads and allocations.
        """
        at = int(self._state[g.GA_AT])
        if status in _DISK_NEEDS:
            table = self.store.tables.by_id[int(words[at + 1]) & TABLE_MASK]
            settle_disk(self._txn, table, status, self.store.locks.deadline())
            return
        raise self.store.failure.latch(self._misfit(status, words, at))

    def _misfit(self, status: int, words: Words, at: int) -> InvariantBroken:
        mem, desc = self.store.mem, self._txn.desc
        table = self.store.tables.by_id.get(int(words[at + 1]) & TABLE_MASK)
        name = "a table that does not exist here" if table is None else table.name
        if status in (a.ST_MEMORY, a.ST_PAGES):
            text = memory_full(mem, f"a row of {name} that the primary has committed").message
        elif status == a.ST_DAMAGED:
            text = f"a page with disk columns of {name} is damaged; copy the store from the primary"
        else:
            rowid = int(mem[desc + a.X_ROWID])
            text = (
                f"the record of kind {int(words[at]) & KIND_MASK} at word {at} of group {self._group.sequence} does not"
                f" fit {name} at ROWID {rowid} (status {status}); copy the store from the primary"
            )
        return InvariantBroken(text, sequence=self._group.sequence, word=at, status=int(status))

    def _change_schema(self, words: Words) -> None:
        """Apply the next schema transaction. First end this run's transaction: an index build waits for older ones."""
        at, stop = int(self._state[g.GA_AT]) + TRANSACTION_WORDS, int(self._state[g.GA_TXN_STOP])
        try:
            change = schema_of(words, at, stop)
        except InvalidRecord as error:
            raise self._invalid("schema record") from error
        self._txn.rollback()
        apply_change(self.store, change)
        self._tables = self.store.tables.directory()
        self._txn = self.store.transactions.begin_applied(AppliedTransaction)
        self._continue_at(stop, stop)

    def _take_files(self, words: Words) -> None:
        """Apply the records of the next transaction from the files that it names, some rows at a time."""
        if self._reader is None:
            raise self._invalid("record of files")
        state = self._state
        stop = int(state[g.GA_TXN_STOP])
        begin_large(self.store.mem, self._own.epoch, a.X_UPDATES | a.X_DELETES)
        for block in self._reader.blocks():
            self._continue_at(block.start, block.stop)
            state[g.GA_IS_LARGE] = g.LARGE_OF_FILES
            self.apply_part(block.words, block.stop)
        finish_large(self.store.mem)
        self._continue_at(stop, stop)

    def _invalid(self, what: str) -> RedoDamaged:
        return RedoDamaged(f"group {self._group.sequence} has an invalid {what}; copy the store from the primary")

    def _continue_at(self, at: int, txn_stop: int) -> None:
        """Continue at a word of other records, with nothing prepared."""
        self._state[:] = 0
        self._state[g.GA_AT], self._state[g.GA_TXN_STOP] = at, txn_stop
