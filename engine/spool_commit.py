"""Commit by reference: the records lie in a synced spool file, the log gets one record that names it (D3).

Order of writes: blocks, sync of the file, sync of the names; then the referring group, durable; then the rows. A crash
before the group is durable: the file is swept when the store is opened. Behind it: replay reads the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.errors import CommitOnFailedStore, Retryable
from engine.kernels.spool import commit_spooled
from engine.layout.arena import X_CHANGES, X_USED
from engine.layout.log import GROUP_ALIGN_WORDS
from engine.log.redo import Group

if TYPE_CHECKING:
    from engine.spool import Spool
    from engine.store import Store
    from engine.transaction import Transaction

COPIES_POLL_SECONDS = 0.002


def commit_by_reference(txn: Transaction, spool: Spool) -> None:
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
    words = np.zeros(2 * GROUP_ALIGN_WORDS, dtype=np.int64)
    used = commit_spooled(
        mem,
        desc,
        words,
        txn.txid,
        reference.blocks,
        reference.records_words,
        reference.size_bytes,
        reference.digest,
    )
    group = Group(words, int(used), 1)
    txn.group = group
    with store.latch:
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
    txn.apply_slices(group)
    txn.ended(1)
    if interrupt is not None:
        raise txn.interrupted() from interrupt


def wait_for_copies(store: Store) -> None:
    """Before a slice: let a running local checkpoint take the copies of slices before it, if they are many.

    Not for ever, for it may wait for the same thread: copies are then kept in memory, however many.
    """
    limit_words = store.options.checkpoint_memory_bytes // 8
    deadline = store.locks.deadline()
    while store.sink.waiting_words() > limit_words and store.clock.monotonic() < deadline:
        store.clock.sleep(COPIES_POLL_SECONDS)
        store.failure.check()
