"""What stops a kernel that changes rows: each status of a kernel is waited for, provided, or raised.

`settle` removes what stopped a call, so that it can be repeated. `row_refused` is the error of a row that must not be
changed so.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from tidemark.engine.access.snapshot_reads import committed_row, released
from tidemark.engine.base.errors import (
    CheckpointMemoryExhausted,
    DuplicateKey,
    InvariantBroken,
    NoPartition,
    Rejected,
    Retryable,
    RowNotFound,
    StorageFull,
    TransactionTooLarge,
    WriteConflict,
)
from tidemark.engine.base.shortage import TABLESPACES
from tidemark.engine.index.unique_keys import keys_of_images
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.txn.locks import LockedRow
from tidemark.engine.txn.transaction import SLICE_UNDO_WORDS, end_abandoned

if TYPE_CHECKING:
    from tidemark.engine.index.stored import StoredUnique
    from tidemark.engine.index.unique_keys import Lookups
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.index_definition import IndexDefinition
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction

COPIES_POLL_SECONDS = 0.002
LCP_POLL_SECONDS = 0.02
REFUSALS = (a.ST_DUPLICATE, a.ST_MISSING, a.ST_PARTITION, a.ST_UNIQUE)
_DISK_STATUSES = (a.ST_PAGE, a.ST_DAMAGED, a.ST_EXTENT, a.ST_UNDO)


# --- removed, so that the call can be repeated ----------------------------------------------------
def settle(
    txn: Transaction,
    table: Table,
    status: int,
    words: int,
    deadline: float | None,
    ahead_words: int = 0,
    key: Any = None,
) -> float:
    """Remove the reason why a kernel call stopped, so that it can be repeated; return the deadline of the whole wait.

    key: reported if the row whose lock stopped the call is not committed yet. Raises: the error of a status that cannot
    be settled; if that is Retryable or TransactionTooLarge, the transaction is rolled back first.
    """
    try:
        if status == a.ST_SPACE:
            txn.grow(words, ahead_words)
            return 0.0 if deadline is None else deadline
        if status == a.ST_SPOOLED:
            txn.load_spooled()
            return 0.0 if deadline is None else deadline
        deadline = txn.store.locks.deadline() if not deadline else deadline
        if status == a.ST_BUSY:
            end_abandoned(txn.store)  # one of them may have the lock
            place, lock = awaited_lock(txn)
            row, watch = _locked_row(table, place, key), txn.store.watch
            with nullcontext() if watch is None else watch.timed("lock wait", table=table.name, txid=txn.txid):
                txn.store.locks.wait(txn.place, place, lock, deadline, row)
            txn.check()  # the store may have failed, or closed and rolled this transaction back
        elif status == a.ST_UNFINISHED:
            txn.store.views.wait()
        elif status in (a.ST_MEMORY, a.ST_PAGES):
            raise txn.store.arena.no_room(f"another row of {table.name}", table.name)
        elif status == a.ST_COPIES:
            _wait_for_copies(txn, deadline)
        elif status == a.ST_DROPPED:
            raise table.gone()
        elif status == a.ST_CONFLICT:
            raise conflict(txn, table, key)
        elif status in _DISK_STATUSES:
            settle_disk(txn, table, status, deadline)
        else:
            raise txn.store.failure.latch(InvariantBroken(f"an operation met status {status}; reopen the store"))
    except (Retryable, TransactionTooLarge):
        txn.rollback()
        raise
    return deadline


def awaited_lock(txn: Transaction) -> tuple[tuple[int, int], int]:
    """Return the row at which a kernel stopped, and the word of its lock."""
    mem, desc = txn.mem, txn.desc
    return (int(mem[desc + a.X_FRAGMENT]), int(mem[desc + a.X_ROWID])), int(mem[desc + a.X_LOCK])


def is_locked(txn: Transaction) -> bool:
    """Whether another transaction holds the lock at which a kernel stopped; if none does, repeat the call. If this
    transaction holds the only shared lock on the row, it becomes exclusive.

    Raises: MemoryExhausted, with the transaction rolled back.
    """
    end_abandoned(txn.store)
    try:
        return txn.store.locks.is_held(txn.place, *awaited_lock(txn))
    except Retryable:
        txn.rollback()
        raise


def _locked_row(table: Table, place: tuple[int, int], key: Any) -> LockedRow:
    """Return a row for a message, with its key if it is committed, otherwise with `key`."""
    image = committed_row(table, *place)
    if image is not None:
        key = table.format.decode_key(table.format.image_key(image))
    if key is None:
        return LockedRow(table.name, None, f"a new row of {table.name}")
    return LockedRow(table.name, key, f"the row with key {table.format_key(key)} of {table.name}")


def conflict(txn: Transaction, table: Table, key: Any = None) -> WriteConflict:
    """Return the error for the row at which a kernel stopped with ST_CONFLICT. key: its key, if it is known."""
    place, _ = awaited_lock(txn)
    if place[0]:
        row = _locked_row(table, place, key)
        key, text = row.key, row.text
    else:
        text = f"a row of {table.name}" if key is None else f"the row with key {table.format_key(key)} of {table.name}"
    return WriteConflict(
        f"another transaction has changed {text} since this one began; this one was rolled back, run it again",
        table=table.name,
        key=key,
    )


def settle_disk(txn: Transaction, table: Table, status: int, deadline: float) -> None:
    """Provide what a change of a disk part needs: a page, extents, UNDO log.

    Raises: PageDamaged, StorageFull, TransactionTooLarge, and errors of loading the page.
    """
    disk = txn.store.disk
    page = int(txn.mem[txn.desc + a.X_PAGE])
    if status == a.ST_PAGE:
        disk.ensure([page])
    elif status == a.ST_DAMAGED:
        raise disk.damaged(page, table.name)
    elif status == a.ST_EXTENT:
        try:
            disk.extend(table.fragments[0])
            txn.store.shortage.has_space(TABLESPACES)
        except StorageFull as full:
            if isinstance(full.__cause__, StorageFull):  # of the disk, not the limit of the tablespace
                txn.store.shortage.lacks(TABLESPACES, full.__cause__.message)
                txn.store.shortage.refused()
            if not disk.has_dropped(table.fragments[0]):
                raise
            late = (
                f"{full.message}; the space of dropped tables is free after two local checkpoints, which did not end"
                " in time; call checkpoint() twice and run the transaction again"
            )
            _wait_for_local_checkpoint(txn, deadline, StorageFull(late, **full.evidence))
    else:
        if int(txn.mem[txn.desc + a.X_UNDO_WORDS]) + SLICE_UNDO_WORDS > disk.undo.room_words:
            # Not even an empty log has room for more.
            text = (
                f"the transaction needs more room than the UNDO log ({disk.undo.geometry.capacity_bytes} bytes) has;"
                " split it, or make the store with a larger undo_log"
            )
            raise TransactionTooLarge(text)
        late = (
            f"the UNDO log ({disk.undo.geometry.capacity_bytes} bytes) is full and no local checkpoint freed it in"
            " time; the transaction was rolled back; call checkpoint() twice and run it again, in smaller"
            " transactions if it is full again, or make the store with a larger undo_log"
        )
        _wait_for_local_checkpoint(txn, deadline, StorageFull(late))


def _wait_for_local_checkpoint(txn: Transaction, deadline: float, late: StorageFull) -> None:
    """Request a local checkpoint, which frees both logs and the extents of dropped tables, and wait. Raises: `late`,
    past the deadline.
    """
    store = txn.store
    store.room.on_full()
    store.shortage.refused()
    if store.clock.monotonic() >= deadline:
        if store.shortage.reason:
            what, _, _ = late.message.partition(";")
            raise StorageFull(
                f"{what}: {store.shortage.reason}; free space on the disk of the store, then run the transaction again",
                **late.evidence,
            )
        raise late
    store.clock.sleep(LCP_POLL_SECONDS)
    store.failure.check()


def _wait_for_copies(txn: Transaction, deadline: float) -> None:
    store = txn.store
    if store.clock.monotonic() >= deadline:
        raise CheckpointMemoryExhausted(
            "checkpoint_memory is reserved for other transactions; this one was rolled back, run it again"
        )
    store.clock.sleep(COPIES_POLL_SECONDS)
    store.failure.check()


# --- refused --------------------------------------------------------------------------------------
def row_refused(txn: Transaction, table: Table, status: int, image: Words, row: int | None) -> Rejected:
    """Return the error for an image that was not put: one of REFUSALS. row: its position in a batch, None for a call of
    one row.
    """
    if status == a.ST_UNIQUE:
        return refused(txn, table, image, row)
    key = table.format.decode_key(table.format.image_key(image))
    if status == a.ST_PARTITION:
        return no_partition(table, key, row)
    if status == a.ST_MISSING:
        return missing(table, key, row)
    if row is None:
        text = f"{table.name} has a row with key {table.format_key(key)}; use write() to replace it"
        return DuplicateKey(text, table=table.name, key=key)
    text = f"{table.name}: row {row} has key {table.format_key(key)}, which exists or appears twice in the batch"
    return DuplicateKey(f"{text}; nothing was inserted", table=table.name, key=key, row=row)


def check_released(txn: Transaction, table: Table, images: Words, offsets: Words) -> None:
    """Check, for a transaction with a view of its own, that no image it has put has a unique key that the view shows in
    a row changed since. Raises: WriteConflict, with the transaction rolled back.
    """
    fixed_words = table.format.fixed_words
    for index in table.uniques.values():
        lookups = keys_of_images(index.tree.shape, images, offsets, fixed_words)
        refuse_released(txn, table, index, lookups)


def refuse_released(txn: Transaction, table: Table, index: StoredUnique, lookups: Lookups) -> None:
    """Do `check_released` for keys of a unique index."""
    assert txn.view is not None
    if released(txn.view, table, index, lookups)[1].size:
        txn.mem[txn.desc + a.X_FRAGMENT] = 0
        error = conflict(txn, table)
        txn.rollback()
        raise error


def missing(table: Table, key: Any, row: int | None = None) -> RowNotFound:
    """Return the error for a key no row has. row: its position in a batch."""
    if row is None:
        return RowNotFound(f"{table.name} has no row with key {table.format_key(key)}", table=table.name, key=key)
    text = f"{table.name}: row {row}: no row has key {table.format_key(key)}; nothing was changed"
    return RowNotFound(text, table=table.name, key=key, row=row)


def no_partition(table: Table, key: Any, row: int | None = None) -> NoPartition:
    """Return the error for a row that no range or list takes. row: its position in a batch."""
    names = table.definition.primary_key
    pieces = dict(zip(names, key if len(names) > 1 else (key,), strict=True))
    values = {name: pieces[name] for name in getattr(table.definition.partition, "columns", None) or names}
    shown = ", ".join(f"{name}={table.format_key(value)}" for name, value in values.items())
    where = "" if row is None else f" of row {row}; nothing was inserted"
    return NoPartition(
        f"{table.name}: no partition takes {shown}{where}; see partitions(), add one with add_partition()",
        table=table.name,
        key=key,
        values=values,
        row=row,
    )


def refused(txn: Transaction, table: Table, image: Words, row: int | None = None) -> DuplicateKey:
    """Return the error for an image whose key another row has in a unique index, the one in X_UNIQUE of the
    transaction. row: position in a batch.
    """
    handle = int(txn.mem[txn.desc + a.X_UNIQUE])
    known = [*table.uniques.values(), *table.building]
    definition = next((each.definition for each in known if each.tree.handle == handle), None)
    if definition is None:
        text = f"{table.name}: a unique index that has since been dropped had the key; run it again"
        return DuplicateKey(text, table=table.name, row=row)
    values = table.format.decode_columns(image.data.cast("B"), 0, definition.columns)
    return duplicate(table, definition, values, row)


def duplicate(table: Table, definition: IndexDefinition, values: Sequence[Any], row: int | None = None) -> DuplicateKey:
    """Return the error for a key that two rows would have in a unique index."""
    key = values[0] if len(values) == 1 else tuple(values)
    shown = table.format_key(key)
    if row is None:
        text = f"index {definition.name} of {table.name} has a row with key {shown}; change that row, or use upsert()"
    else:
        text = f"{table.name}: row {row} has key {shown} in index {definition.name}, which another row has"
        text += "; nothing was changed"
    return DuplicateKey(text, table=table.name, index=definition.name, key=key, row=row)
