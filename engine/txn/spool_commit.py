"""How a transaction begins to spool, and commits by reference: its records lie in a synced spool file, the log gets one
record that names it (D3).

Order of writes: blocks, sync of the file, sync of the names; then the referring group, durable; then the rows. A crash
before the group is durable: the file is swept when the store is opened. Behind it: replay reads the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.base.errors import CommitOnFailedStore, Damaged, IoFailed, Retryable, StorageFull, TransactionTooLarge
from engine.log.group import Group
from engine.log.group_layout import GROUP_ALIGN_WORDS
from engine.log.spool_files import Kept
from engine.memory.arena_layout import X_CHANGES, X_SPOOLED, X_USED
from engine.txn.adopted_records import AdoptedRecords
from engine.txn.commit_kernels import end_run
from engine.txn.spool import Spool
from engine.txn.spool_kernels import begin_spool, commit_spooled

if TYPE_CHECKING:
    from engine.memory.arena import Words
    from engine.store.store import Store
    from engine.txn.transaction import Transaction

COPIES_POLL_SECONDS = 0.002
REDO_WORDS = 2 * GROUP_ALIGN_WORDS  # promised of the log: the group that refers to the file, padding of the one before


def room_in_spool(txn: Transaction, used: int) -> None:
    """`Transaction.grow` past `transaction_memory`: what is in memory goes to the spool file, oldest records first.

    Raises: TransactionTooLarge, StorageFull, MemoryExhausted, TooManyFiles, IoFailed.
    """
    store = txn.store
    spool = txn.spool
    if not isinstance(spool, Spool):  # who adopts load files has no other operations
        if store.spool_words <= store.transaction_words:
            raise TransactionTooLarge(
                f"the transaction needs more than transaction_limit ({store.spool_words * 8} bytes);"
                " split it or open the store with a larger transaction_limit"
            )
        unique_tables = store.unique_tables
        spool = Spool(store.spools, txn.txid, store.transaction_words, store.spool_words, unique_tables)
        spool.take_over(txn.buf, used)
        _use(txn, spool, spool.words[:used])
    if not txn.mem[txn.desc + X_SPOOLED]:
        begin_spool(txn.mem, txn.desc, REDO_WORDS)
    end_run(txn.mem, txn.desc, 0)  # a record that goes to the file takes no more rows
    _use(txn, spool, spool.room(used))


def _use(txn: Transaction, spool: Spool, buf: Words) -> None:
    view = buf.data.cast("B")
    # No call from here on, so no KeyboardInterrupt: the buffer is the spool's, or it is not.
    txn.buf = buf
    txn.buf_bytes = view
    txn.spool = spool


def truncate_spool(txn: Transaction, used: int) -> None:
    """Records from word `used` on were taken back by a savepoint. Raises: IoFailed, and the store is dead."""
    try:
        if isinstance(txn.spool, Spool):
            _use(txn, txn.spool, txn.spool.truncate(used))
    except (Damaged, StorageFull) as error:
        raise txn.store.fail(IoFailed(f"{error.message}; open the store again", **error.evidence)) from error


def commit_by_reference(txn: Transaction, spool: Spool | AdoptedRecords) -> None:
    """Commit a transaction that spools. Durable on return: everything, in both modes of durability.

    Raises: StorageFull, and it was rolled back; SyncFailed, IoFailed; CommitInterrupted and CommitOnFailedStore, which
    tell the `txid`.
    """
    store, mem, desc = txn.store, txn.mem, txn.desc
    if not mem[desc + X_CHANGES]:
        txn.rollback()  # locks are all there is to it
        return
    try:
        reference = spool.finish(int(mem[desc + X_USED]))  # a crash up to here: the file is swept
    except Retryable:
        txn.rollback()
        raise
    partner = store.log.partner
    if partner is not None:
        partner.offer(txn.txid, reference.names)
    words = np.zeros(reference.record.size + 2 * GROUP_ALIGN_WORDS, dtype=np.int64)
    used = commit_spooled(mem, desc, words, txn.txid, reference.record)
    group = Group(words, int(used), 1, reference.names)
    txn.group = group
    txn.reference = reference
    with store.latch:
        if store.follows_log and isinstance(spool, AdoptedRecords):
            store.epochs.close()  # nothing stands before a load in its epoch: a mark may stand for it
        store.epochs.hold(txn)
        store.log.adopt(group)  # from here on it is committed; a crash before its sync ends loses it whole
    spool.seal()
    interrupt: KeyboardInterrupt | None = None
    try:
        store.log.wait(group.sequence)
    except KeyboardInterrupt as error:
        interrupt = error  # it has its place in the log, before others that may commit now: the rows must follow
    except CommitOnFailedStore as error:
        error.evidence["txid"] = txn.txid
        raise
    except BaseException:
        txn.broke_off()
        raise
    txn.apply_logged(group)
    txn.ended(1)
    if interrupt is not None:
        raise txn.interrupted() from interrupt


def begin_to_adopt(txn: Transaction, records: AdoptedRecords) -> None:
    """Let a transaction without operations have the records of load files. Raises: RedoOverloaded."""
    txn.store.promise_redo(txn.desc, records.record_words + REDO_WORDS)
    begin_spool(txn.mem, txn.desc, records.record_words + REDO_WORDS)
    view = records.words.data.cast("B")
    txn.buf = records.words
    txn.buf_bytes = view
    txn.spool = records


def abandon_places(txn: Transaction) -> None:
    """Before a rollback: places of rows that were adopted go back."""
    if isinstance(txn.spool, AdoptedRecords):
        txn.spool.abandon(txn.mem)


def leave_spool(txn: Transaction, spool: Spool | AdoptedRecords) -> None:
    """The transaction has ended: files the log refers to stay, others go with its memory."""
    is_committed = txn.group is not None and txn.group.sequence > 0
    if txn.group is not None and txn.reference is not None and is_committed:
        txn.store.spools.keep(txn.txid, Kept(txn.group.lsn, txn.reference.size_bytes, txn.reference.names))
    spool.close(is_committed)
    txn.buf = txn.store.no_words
    txn.spool = None


def wait_for_copies(store: Store) -> None:
    """Before a slice: let a running local checkpoint take the copies of slices before it, if they are many.

    Not for ever, for it may wait for the same thread: copies are then kept in memory, however many.
    """
    limit_words = store.options.checkpoint_memory_bytes // 8
    deadline = store.locks.deadline()
    while store.sink.waiting_words() > limit_words and store.clock.monotonic() < deadline:
        store.clock.sleep(COPIES_POLL_SECONDS)
        store.failure.check()
