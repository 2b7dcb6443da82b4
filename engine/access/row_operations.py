"""One row at a time: insert, write, get, update, delete inside a transaction (D3).

Every function validates its input before it changes anything, then makes one kernel call. If the kernel has to stop
(for a held lock, a full buffer, missing memory), `settle` removes the cause and the call is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.disk_reading import read_entry as read_disk_entry
from tidemark.engine.access.reads_kernels import read_int_key, read_row
from tidemark.engine.access.snapshot_index import released
from tidemark.engine.access.snapshot_reads import read_keys
from tidemark.engine.access.versions_reads_kernels import scan_rows
from tidemark.engine.base.errors import (
    CheckpointMemoryExhausted,
    DuplicateKey,
    InvariantBroken,
    NoPartition,
    Retryable,
    RowNotFound,
    StorageFull,
    TransactionTooLarge,
    WriteConflict,
)
from tidemark.engine.base.ids import LAST_EPOCH
from tidemark.engine.base.shortage import TABLESPACES
from tidemark.engine.index.unique_keys import keys_of_images
from tidemark.engine.memory.arena import NOTHING, Words
from tidemark.engine.memory.arena_layout import (
    ENTRY_WORDS,
    LOCK_SHARED,
    MODE_DELETE,
    MODE_FIND,
    MODE_INSERT,
    MODE_LOCK,
    MODE_UPDATE,
    MODE_UPDATE_KEPT,
    MODE_WRITE,
    OK,
    ST_ALTERED,
    ST_BUSY,
    ST_CONFLICT,
    ST_COPIES,
    ST_DAMAGED,
    ST_DROPPED,
    ST_DUPLICATE,
    ST_EXTENT,
    ST_MEMORY,
    ST_MISSING,
    ST_PAGE,
    ST_PAGES,
    ST_PARTITION,
    ST_SPACE,
    ST_SPOOLED,
    ST_UNDO,
    ST_UNFINISHED,
    ST_UNIQUE,
    X_FRAGMENT,
    X_LOCK,
    X_PAGE,
    X_ROWID,
    X_UNDO_WORDS,
    X_UNIQUE,
    X_USED,
)
from tidemark.engine.rows.column_buffers import NO_WORDS
from tidemark.engine.rows.columnar import EncodedKeys
from tidemark.engine.table.table import TableAltered
from tidemark.engine.txn.locks import LockedRow
from tidemark.engine.txn.operations_kernels import delete_disk_rows, put_disk_rows, put_rows, touch_int_key, touch_rows
from tidemark.engine.txn.transaction import SLICE_UNDO_WORDS

if TYPE_CHECKING:
    from tidemark.engine.index.stored import StoredUnique
    from tidemark.engine.index.unique_keys import Lookups
    from tidemark.engine.schema.index_definition import IndexDefinition
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction

OUT_WORDS = 1_024
COPIES_POLL_SECONDS = 0.002
LCP_POLL_SECONDS = 0.02
_FIRST: Words = np.zeros(1, dtype=np.int64)  # where the only image of a batch begins
_DISK_STATUSES = (ST_PAGE, ST_DAMAGED, ST_EXTENT, ST_UNDO)

# Private buffers for reading rows, with the views they are decoded from; pop and append are atomic.
_outs: list[tuple[Words, memoryview]] = []


def _new_out() -> tuple[Words, memoryview]:
    out = np.zeros(OUT_WORDS, dtype=np.int64)
    return out, out.data.cast("B")


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
        if status == ST_SPACE:
            txn.grow(words, ahead_words)
            return 0.0 if deadline is None else deadline
        if status == ST_SPOOLED:
            txn.load_spooled()
            return 0.0 if deadline is None else deadline
        deadline = txn.store.locks.deadline() if not deadline else deadline
        if status == ST_BUSY:
            txn.store.end_abandoned()  # one of them may have the lock
            place, lock = _busy(txn)
            row, watch = _locked_row(table, place, key), txn.store.watch
            with nullcontext() if watch is None else watch.timed("lock wait", table=table.name, txid=txn.txid):
                txn.store.locks.wait(txn.place, place, lock, deadline, row)
            txn.check()  # the store may have failed, or closed and rolled this transaction back
        elif status == ST_UNFINISHED:
            txn.store.views.wait()
        elif status in (ST_MEMORY, ST_PAGES):
            raise txn.store.arena.no_room(f"another row of {table.name}", table.name)
        elif status == ST_COPIES:
            _wait_for_copies(txn, deadline)
        elif status == ST_DROPPED:
            raise table.gone()
        elif status == ST_CONFLICT:
            raise conflict(txn, table, key)
        elif status in _DISK_STATUSES:
            settle_disk(txn, table, status, deadline)
        else:
            raise txn.store.fail(InvariantBroken(f"an operation met status {status}; reopen the store"))
    except (Retryable, TransactionTooLarge):
        txn.rollback()
        raise
    return deadline


def _busy(txn: Transaction) -> tuple[tuple[int, int], int]:
    """Return the row at which a kernel stopped, and the word of its lock."""
    mem, desc = txn.mem, txn.desc
    return (int(mem[desc + X_FRAGMENT]), int(mem[desc + X_ROWID])), int(mem[desc + X_LOCK])


def is_locked(txn: Transaction) -> bool:
    """Whether another transaction holds the lock at which a kernel stopped; if none does, repeat the call. If this
    transaction holds the only shared lock on the row, it becomes exclusive.

    Raises: MemoryExhausted, with the transaction rolled back.
    """
    txn.store.end_abandoned()
    try:
        return txn.store.locks.is_held(txn.place, *_busy(txn))
    except Retryable:
        txn.rollback()
        raise


def _locked_row(table: Table, place: tuple[int, int], key: Any) -> LockedRow:
    """Return a row for a message, with its key if it is committed, otherwise with `key`."""
    size = ENTRY_WORDS + table.format.fixed_words
    state = np.zeros(3, dtype=np.int64)
    while True:
        state[2] = place[1]
        out = np.empty(size, dtype=np.int64)
        status = scan_rows(table.mem, place[0], 0, 0, NOTHING, 1, 2, out, np.zeros(1, dtype=np.int64), state)
        if status > ST_SPACE:
            break
        size = ST_SPACE - status
    if state[0] and int(out[0]) == place[1]:
        key = table.format.decode_key(table.format.image_key(out[ENTRY_WORDS:]))
    if key is None:
        return LockedRow(table.name, None, f"a new row of {table.name}")
    return LockedRow(table.name, key, f"the row with key {table.format_key(key)} of {table.name}")


def conflict(txn: Transaction, table: Table, key: Any = None) -> WriteConflict:
    """Return the error for the row at which a kernel stopped with ST_CONFLICT. key: its key, if it is known."""
    mem, desc = txn.mem, txn.desc
    place = int(mem[desc + X_FRAGMENT]), int(mem[desc + X_ROWID])
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
    page = int(txn.mem[txn.desc + X_PAGE])
    if status == ST_PAGE:
        disk.ensure([page])
    elif status == ST_DAMAGED:
        raise disk.damaged(page, table.name)
    elif status == ST_EXTENT:
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
        if int(txn.mem[txn.desc + X_UNDO_WORDS]) + SLICE_UNDO_WORDS > disk.undo.room_words:
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
    store.on_redo_full()
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


def put(txn: Transaction, table: Table, row: Mapping[str, Any] | Any, mode: int) -> None:
    """Insert or write one row given as a mapping or a sequence in column order."""
    txn.check(locks=True)
    while True:
        try:
            return put_image(txn, table, table.format.encode_row(row), mode)
        except TableAltered:
            if not isinstance(row, Mapping):
                row = dict(zip(table.format.names, row, strict=True))  # in the column order at the start of the call
            table = table.newest


def put_image(txn: Transaction, table: Table, image: Words, mode: int) -> None:
    """Insert, write or update one row given as its image.

    Raises: DuplicateKey, RowNotFound, NoPartition; TableAltered, which callers handle; and as `settle`.
    """
    table.check()
    deadline: float | None = None
    put_kernel: Any = put_disk_rows if table.format.has_disk else put_rows
    while True:
        status = put_kernel(
            txn.mem, table.handle, txn.desc, txn.buf, image, NOTHING, NOTHING, NOTHING, 0, 1, mode | table.stamp
        )
        if status == OK:
            if txn.view is not None:
                check_released(txn, table, image, _FIRST)
            return
        if status == ST_ALTERED:
            raise TableAltered
        if status == ST_DUPLICATE:
            key = table.format.decode_key(table.format.image_key(image))
            raise DuplicateKey(
                f"{table.name} has a row with key {table.format_key(key)}; use write() to replace it",
                table=table.name,
                key=key,
            )
        if status == ST_MISSING:
            raise missing(table, table.format.decode_key(table.format.image_key(image)))
        if status == ST_PARTITION:
            raise no_partition(table, table.format.decode_key(table.format.image_key(image)))
        if status == ST_UNIQUE:
            raise refused(txn, table, image)
        # The row whose lock stops the call may have another primary key, and the same key in a unique index.
        key = None if table.uniques else table.format.decode_key(table.format.image_key(image))
        deadline = settle(txn, table, status, image.size + 16, deadline, key=key)


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
        txn.mem[txn.desc + X_FRAGMENT] = 0
        error = conflict(txn, table)
        txn.rollback()
        raise error


def missing(table: Table, key: Any) -> RowNotFound:
    """Return the error for a key no row has."""
    return RowNotFound(f"{table.name} has no row with key {table.format_key(key)}", table=table.name, key=key)


def is_new(mode: int) -> bool:
    """Whether a row put in this mode may be new."""
    return mode in (MODE_INSERT, MODE_WRITE)


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


def insert(txn: Transaction, table: Table, row: Any) -> None:
    """Insert one row. Raises: DuplicateKey, and errors of validation."""
    put(txn, table, row, MODE_INSERT)


def write(txn: Transaction, table: Table, row: Any) -> None:
    """Insert one row, or replace the row with its key."""
    put(txn, table, row, MODE_WRITE)


def touch(txn: Transaction, table: Table, key: Any, mode: int, skip_locked: bool = False) -> int:
    """Lock, find, delete, or begin the update of one row by key. Return the words of the buffer in use afterwards, 0 if
    no row has the key, or with `skip_locked` if another transaction has locked it.
    """
    table.check()
    row_format = table.format
    words: Words | None = None
    number = 0
    if row_format.single_int_key:
        number = row_format.encode_int_key(key)
    else:
        words = row_format.encode_key(key)
    deadline: float | None = None
    if table.format.has_disk and mode == MODE_DELETE and words is None:
        words = row_format.encode_key(key)
    while True:
        if words is None:
            status = touch_int_key(txn.mem, table.handle, txn.desc, txn.buf, number, mode)
        else:
            if table.format.has_disk and mode == MODE_DELETE:
                status = delete_disk_rows(txn.mem, table.handle, txn.desc, txn.buf, words, NOTHING, words.size, 0, 1)
            else:
                status = touch_rows(txn.mem, table.handle, txn.desc, txn.buf, words, NOTHING, words.size, 0, 1, mode)
            if status == OK:
                return int(txn.mem[txn.desc + X_USED])
        if status > 0:
            return int(status)
        if status == ST_MISSING:
            return 0
        if status == ST_BUSY and skip_locked:
            if is_locked(txn):
                return 0
            continue
        deadline = settle(txn, table, status, row_format.fixed_words + 16, deadline, key=key)


def update(txn: Transaction, table: Table, key: Any, changes: Mapping[str, Any]) -> None:
    """Change some columns of one row. Raises: RowNotFound, and errors of validation."""
    txn.check(locks=True)
    encoded = table.format.encode_changes(changes)
    if encoded.var or encoded.disk is not None or not table.unique_columns.isdisjoint(changes):
        if not touch(txn, table, key, MODE_LOCK):
            raise missing(table, key)
        with_disk = encoded.disk is not None
        image = read_image(txn, table, key, with_disk)
        if image is None:
            raise missing(table, key)
        mode = MODE_UPDATE_KEPT if table.format.has_disk and not with_disk else MODE_UPDATE
        try:
            return put_image(txn, table, table.format.apply_changes(image, encoded), mode)
        except TableAltered:
            return update(txn, table.newest, key, changes)
    used = touch(txn, table, key, MODE_UPDATE)
    if not used:
        raise missing(table, key)
    # The new record is at the end of the buffer and has the current fixed image: write the changes over it.
    encoded.pack_fixed(txn.buf_bytes, (used - table.format.fixed_words) * 8)


def delete(txn: Transaction, table: Table, key: Any) -> None:
    """Delete one row. Raises: RowNotFound."""
    txn.check(locks=True)
    if not touch(txn, table, key, MODE_DELETE):
        raise missing(table, key)


def lock_shared(txn: Transaction, table: Table, key: Any, skip_locked: bool = False) -> bool:
    """Take a shared lock on one row; False if no row has the key, or with `skip_locked` if its lock is held."""
    locks = txn.store.locks
    deadline: float | None = None
    while touch(txn, table, key, MODE_FIND, skip_locked):
        place, lock = _busy(txn)
        if lock and not lock & LOCK_SHARED:
            return True  # held exclusively by this transaction
        if locks.share(txn.place, place, lock):
            # With a view of its own it is refused a row that was changed just before it was locked.
            return txn.view is None or touch(txn, table, key, MODE_FIND) > 0
        if not skip_locked:
            deadline = settle(txn, table, ST_BUSY, 0, deadline, key=key)
        elif is_locked(txn):
            return False
    return False


def get(txn: Transaction, table: Table, key: Any, lock: str | None, skip_locked: bool = False) -> Any:
    """Return the row with this key, as this transaction sees it, or None.

    lock: None, "shared" or "exclusive"; the lock is held to the transaction's end. skip_locked: return None instead of
    waiting for the lock.
    """
    shown = txn.shown
    seen = shown[0]
    entry = get_entry(txn, table, key, lock, skip_locked)
    if entry is None:
        return None
    shown[0] = max(seen, entry[1])
    return table.format.decode_row(entry.data.cast("B"), ENTRY_WORDS)


def get_entry(txn: Transaction, table: Table, key: Any, lock: str | None, skip_locked: bool = False) -> Words | None:
    """Return the entry of `get`, with its disk part."""
    txn.check(locks=lock is not None)
    if lock is not None:
        if lock == "exclusive":
            found = touch(txn, table, key, MODE_LOCK, skip_locked) > 0
        else:
            found = lock_shared(txn, table, key, skip_locked)
        if not found:
            return None
    return read_entry(txn, table, key)


def read_image(txn: Transaction | None, table: Table, key: Any, with_disk: bool = True) -> Words | None:
    """Return a copy of a row's image, or None; as the transaction sees it, or as committed without a transaction.

    with_disk: with its disk part, if the table has any.
    """
    entry = read_entry(txn, table, key, with_disk)
    return None if entry is None else entry[ENTRY_WORDS:]


def read_entry(txn: Transaction | None, table: Table, key: Any, with_disk: bool = True) -> Words | None:
    """Return the image of `read_image` with the words before it: ROWID, epoch, author and place."""
    table.check()
    words = table.format.encode_key(key)
    with_disk = with_disk and table.format.has_disk
    if txn is not None and txn.view is not None:
        found = EncodedKeys(words, words.size, words.size, NO_WORDS, 1)
        entries, _, count = read_keys(txn.view.for_call(txn), table, found, with_disk)
        return entries if count else None
    view = table.views.now(txn)
    if with_disk:
        return read_disk_entry(table, words, view)
    out = np.empty(OUT_WORDS, dtype=np.int64)
    while True:
        done = view.settled(read_row(table.mem, table.handle, view.desc, view.buf, words, words.size, out))
        if done > 0:
            return out[:done]
        if done == ST_DROPPED:
            raise table.gone()
        if done == ST_MISSING:
            return None
        if done <= ST_SPACE:
            out = np.zeros(ST_SPACE - done, dtype=np.int64)


def get_committed(table: Table, key: Any) -> Any:
    """Return the committed row with this key, or None: the hot path without a transaction."""
    row_format = table.format
    table.check()
    if row_format.is_read_by_int and type(key) is int and -(1 << 63) <= key < 1 << 63:
        try:
            place = _outs.pop()
        except IndexError:
            place = _new_out()
        out, view = place
        done = read_int_key(table.mem, table.handle, key, out)
        if done > 0:
            row = row_format.decode_row(view, ENTRY_WORDS)
            _outs.append(place)
            return row
        _outs.append(place)
        if done == ST_DROPPED:
            raise table.gone()
        if done == ST_UNFINISHED:
            table.views.wait()
            return get_committed(table, key)
        if done > ST_SPACE:
            row_format.encode_int_key(key)
            return None
    image = read_image(None, table, key)
    return None if image is None else row_format.decode_row(image.data.cast("B"), 0)


def get_with_epoch(table: Table, key: Any) -> tuple[Any, int]:
    """Return the committed row with this key, or None, and the epoch of its last change; LAST_EPOCH for None."""
    entry = read_entry(None, table, key)
    if entry is None:
        return None, LAST_EPOCH
    words = entry.data
    return table.format.decode_row(words.cast("B"), ENTRY_WORDS), words[1]


def refused(txn: Transaction, table: Table, image: Words, row: int | None = None) -> DuplicateKey:
    """Return the error for an image whose key another row has in a unique index, the one in X_UNIQUE of the
    transaction. row: position in a batch.
    """
    handle = int(txn.mem[txn.desc + X_UNIQUE])
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
