"""One row at a time: insert, write, get, update, delete inside a transaction (D3).

Every function validates its input before it changes anything, then makes one kernel call, repeated if the kernel has to
stop (`statuses.py`). These are batches of one row; most calls of one row are made by kernels of `engine/point/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.batch_operations import put_each, read_keys, touch_keys
from tidemark.engine.access.computed_values import filled
from tidemark.engine.access.disk_reading import read_entry as read_disk_entry
from tidemark.engine.access.snapshot_reads import one_key
from tidemark.engine.access.statuses import awaited_lock, is_locked, missing, settle
from tidemark.engine.base.errors import SnapshotTooOld
from tidemark.engine.base.ids import LAST_EPOCH
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.table.table import TableAltered

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction


def insert(txn: Transaction, table: Table, row: Any) -> int | None:
    """Insert one row; return as `put`. Raises: DuplicateKey, and errors of validation."""
    return put(txn, table, row, a.MODE_INSERT)


def write(txn: Transaction, table: Table, row: Any) -> int | None:
    """Insert one row, or replace the row with its key; return as `put`."""
    return put(txn, table, row, a.MODE_WRITE)


def put(txn: Transaction, table: Table, row: Mapping[str, Any] | Any, mode: int) -> int | None:
    """Insert or write one row given as a mapping or a sequence in column order. Return its number in a table with an
    autoincrement column, else None.
    """
    txn.check(locks=True)
    while True:
        try:
            given, number = filled(txn, table, row) if table.format.computed else (row, None)
            put_image(txn, table, table.format.encode_row(given), mode)
            return number
        except TableAltered:
            if not isinstance(row, Mapping):
                row = dict(zip(table.format.names, row, strict=True))  # in the column order at the start of the call
            table = table.in_force(txn)


def put_image(txn: Transaction, table: Table, image: Words, mode: int) -> None:
    """Insert, write or update one row given as its image.

    Raises: CheckFailed, DuplicateKey, RowNotFound, NoPartition; TableAltered, which callers handle; and as `settle`.
    """
    table.check()
    put_each(txn, table, image, NOTHING, NOTHING, NOTHING, 1, mode, None)


def touch(txn: Transaction, table: Table, key: Any, mode: int, skip_locked: bool = False) -> bool:
    """Lock, find, delete, or begin the update of one row by key. False if no row has the key, or with `skip_locked` if
    another transaction has locked it.
    """
    table.check()
    row_format = table.format
    if row_format.single_int_key:
        words = np.array([row_format.encode_int_key(key)], dtype=np.int64)
    else:
        words = row_format.encode_key(key)
    return touch_keys(txn, table, one_key(words), mode, skip_locked=skip_locked, key=key) == 1


def locked_entry(txn: Transaction, table: Table, key: Any, with_disk: bool) -> Words:
    """Return the entry of a row, locked to the end of the transaction. Raises: RowNotFound."""
    entry = read_entry(txn, table, key, with_disk) if touch(txn, table, key, a.MODE_LOCK) else None
    if entry is None:
        raise missing(table, key)
    return entry


def update(txn: Transaction, table: Table, key: Any, changes: Mapping[str, Any]) -> None:
    """Change some columns of one row. Raises: RowNotFound, and errors of validation."""
    txn.check(locks=True)
    encoded = table.format.encode_changes(changes)
    is_whole = table.checks is not None  # they are asked about the image
    if is_whole or encoded.var or encoded.disk is not None or not table.unique_columns.isdisjoint(changes):
        with_disk = encoded.disk is not None
        mode = a.MODE_UPDATE_KEPT if table.format.has_disk and not with_disk else a.MODE_UPDATE
        try:
            entry = locked_entry(txn, table, key, with_disk)
            return put_image(txn, table, table.format.apply_changes(entry[a.ENTRY_WORDS :], encoded), mode)
        except (TableAltered, SnapshotTooOld) as error:
            return update(txn, table.in_force(txn, error), key, changes)
    if not touch(txn, table, key, a.MODE_UPDATE):
        raise missing(table, key)
    # The new record is at the end of the buffer and has the current fixed image: write the changes over it.
    encoded.pack_fixed(txn.buf_bytes, (int(txn.mem[txn.desc + a.X_USED]) - table.format.fixed_words) * 8)


def delete(txn: Transaction, table: Table, key: Any) -> None:
    """Delete one row. Raises: RowNotFound."""
    txn.check(locks=True)
    if not touch(txn, table, key, a.MODE_DELETE):
        raise missing(table, key)


def lock_shared(txn: Transaction, table: Table, key: Any, skip_locked: bool = False) -> bool:
    """Take a shared lock on one row; False if no row has the key, or with `skip_locked` if its lock is held."""
    locks = txn.store.locks
    deadline: float | None = None
    while touch(txn, table, key, a.MODE_FIND, skip_locked):
        place, lock = awaited_lock(txn)
        if lock and not lock & a.LOCK_SHARED:
            return True  # held exclusively by this transaction
        if locks.share(txn.place, place, lock):
            # With a view of its own it is refused a row that was changed just before it was locked.
            return txn.view is None or touch(txn, table, key, a.MODE_FIND)
        if not skip_locked:
            deadline = settle(txn, table, a.ST_BUSY, 0, deadline, key=key)
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
    return table.format.decode_row(entry.data.cast("B"), a.ENTRY_WORDS)


def get_entry(txn: Transaction, table: Table, key: Any, lock: str | None, skip_locked: bool = False) -> Words | None:
    """Return the entry of `get`, with its disk part."""
    txn.check(locks=lock is not None)
    if lock is not None:
        if lock == "exclusive":
            found = touch(txn, table, key, a.MODE_LOCK, skip_locked)
        else:
            found = lock_shared(txn, table, key, skip_locked)
        if not found:
            return None
    return read_entry(txn, table, key)


def read_entry(txn: Transaction | None, table: Table, key: Any, with_disk: bool = True) -> Words | None:
    """Return the entry of a row, or None: ROWID, epoch, author and place, then the image. The row is as the transaction
    sees it, or as committed without one. with_disk: with its disk part, if the table has any.
    """
    table.check()
    words = table.format.encode_key(key)
    with_disk = with_disk and table.format.has_disk
    if with_disk and (txn is None or txn.view is None):
        entry = read_disk_entry(table, words, table.views.now(txn))
        table.refuse_moved()
        return entry
    entries, _, count = read_keys(table, one_key(words), txn, with_disk)
    return entries if count else None


def get_committed(table: Table, key: Any) -> Any:
    """Return the committed row with this key, or None."""
    return get_with_epoch(table, key)[0]


def get_with_epoch(table: Table, key: Any) -> tuple[Any, int]:
    """Return the committed row with this key, or None, and the epoch of its last change; LAST_EPOCH for None."""
    entry = read_entry(None, table, key)
    if entry is None:
        return None, LAST_EPOCH
    words = entry.data
    return table.format.decode_row(words.cast("B"), a.ENTRY_WORDS), words[1]
