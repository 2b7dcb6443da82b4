"""Kernels for insert, write, update, delete and lock; each call is one atomic change of shared state (D13).

They process a batch in order and stop at the first row that fails. Its position and evidence are then in the
transaction descriptor (X_ROW, X_FRAGMENT, X_ROWID, X_LOCK). The caller raises the error, or waits or grows the buffer
and continues with that row.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.objects_kernels import stack_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import is_evicted, lock_owner, newest_operation, own_kind
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.key_groups_kernels import AHEAD_ROWS, HINT_MASK, HINT_SHIFT, confirmed, look_ahead
from tidemark.engine.rows.primary_kernels import ask_for_buckets, entry_rowid, image_key, index_find, tag_of
from tidemark.engine.rows.rows_kernels import known_row_address, row_address
from tidemark.engine.rows.ticks_kernels import is_changed_since, is_unfinished, seen_absent
from tidemark.engine.schema.partitions_kernels import fragment_of
from tidemark.engine.txn.changes_kernels import (
    add_operation,
    busy,
    cancel_delete,
    change_row,
    check_row,
    conflict,
    reserve_row,
    set_lock,
    touch_delete,
    touch_lock,
    touch_update,
)
from tidemark.engine.txn.disk_changes_kernels import change_disk_row, delete_disk_row, reserve_disk_row
from tidemark.engine.txn.versions_kernels import is_gone_since

_hints = stack_words(AHEAD_ROWS)


@helper
def put_existing(mem, txn, buf, fragment, rowid, images, at, mode, disk):
    row = known_row_address(mem, fragment, rowid)
    flags = check_row(mem, txn, fragment, rowid, row, mode)
    if flags < 0:
        return flags
    head = mem[row]
    if flags == A.OP_REINSERT and is_evicted(mem, buf, newest_operation(head)):
        return A.ST_SPOOLED
    if disk is not None:
        status = change_disk_row(mem, txn, buf, fragment, rowid, row, images, at, flags, mode)
    else:
        status = change_row(mem, txn, buf, fragment, rowid, row, images, at, flags, 0, 0)
    if status == A.OK and flags == A.OP_REINSERT:
        cancel_delete(mem, buf, row, head)
    return status


@helper
def put_each(mem, table, txn, buf, images, offsets, order, hashes, start, stop, mode, disk):
    """Do `put_rows`, given the descriptor of the table; `disk`: None, or 1 for a table with disk columns."""
    if mode >> A.MODE_BITS != mem[table + A.T_FORMAT]:
        mem[txn + A.X_ROW] = start
        return A.ST_ALTERED
    mode &= A.MODE_MASK
    fixed = mem[table + A.T_FIXED_WORDS]
    held = mem[table + A.T_KEY_WORDS]
    fragments = mem[table + A.T_FRAGMENT_LIST]
    touched = start
    for position in range(start, stop):
        if position == touched and hashes.size:
            touched = min(position + AHEAD_ROWS, stop)
            look_ahead_of_put(mem, fragments, order, hashes, position, touched)
        i = order[position] if order.size else position
        at = offsets[i] if offsets.size else i * fixed
        first, words = image_key(images, at, fixed, held)
        if hashes.size:
            tag = hashes[i] & A.TAG_MASK
            fragment = mem[fragments + (hashes[i] >> A.TAG_BITS)]
        else:
            tag = tag_of(images, first, words, mem[table + A.T_SEED])
            fragment = 0
        if fragment == 0:  # not looked up yet, or dropped meanwhile
            fragment = fragment_of(mem, table, images, first, words)
            if fragment == 0:
                mem[txn + A.X_ROW] = position
                return A.ST_PARTITION if mode == A.MODE_INSERT or mode == A.MODE_WRITE else A.ST_MISSING
        blocks = mem[fragment + A.F_INDEX_BLOCKS]
        entry = index_find(mem, fragment, tag, images, first, words)
        if entry != 0:
            status = put_existing(mem, txn, buf, fragment, entry_rowid(mem, entry), images, at, mode, disk)
        elif seen_absent(mem) == A.ST_UNFINISHED:
            status = A.ST_UNFINISHED
        elif is_gone_since(mem, txn, fragment, tag, images, first, words):
            status = conflict(mem, txn, 0, 0)
        elif mode == A.MODE_UPDATE or mode == A.MODE_UPDATE_KEPT:
            status = A.ST_MISSING
        elif disk is not None:
            status = reserve_disk_row(mem, txn, buf, fragment, tag, images, at)
        else:
            status = reserve_row(mem, txn, buf, fragment, tag, images, at, 0)
        mem[txn + A.X_ROW] = position
        if status != A.OK:
            return status
        if mem[fragment + A.F_INDEX_BLOCKS] != blocks and position + 1 < stop:
            mem[txn + A.X_ROW] = position + 1
            return A.ST_MORE
    mem[txn + A.X_ROW] = stop
    return A.OK


@kernel(
    "int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64)"
)
def put_rows(mem, table, txn, buf, images, offsets, order, hashes, start, stop, mode):
    """Insert, write or update rows [start, stop) of a batch of images, in the given order.

    offsets: image offsets, or empty for images of equal size. order: positions sorted by fragment, or empty. hashes:
    fragment << 29 | tag per image, or empty to compute them here.

    Return OK or the status of row X_ROW; ST_MORE if a segment of the index was rebuilt, which is enough work for one
    call (X_ROW is the next row); ST_ALTERED if the images' version, in the upper bits of mode, is not the table's. Of a
    table with disk columns after ST_PAGE or ST_DAMAGED, X_PAGE is the page.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    if mem[table + A.T_HAS_DISK]:
        return put_each(mem, table, txn, buf, images, offsets, order, hashes, start, stop, mode, 1)
    return put_each(mem, table, txn, buf, images, offsets, order, hashes, start, stop, mode, None)


@helper
def look_ahead_of_put(mem, fragments, order, hashes, begin, end):
    """Ask for the index buckets of the next rows, so that their cache misses overlap."""
    for position in range(begin, end):
        i = order[position] if order.size else position
        fragment = mem[fragments + (hashes[i] >> A.TAG_BITS)]
        if fragment != 0:
            ask_for_buckets(mem, fragment, hashes[i] & A.TAG_MASK)


@helper
def touch_row(mem, txn, buf, fragment, rowid, mode, disk):
    """Update (fixed columns), delete, lock or find a row that has an index entry. MODE_FIND stores its place and lock
    as `busy` does.
    """
    row = known_row_address(mem, fragment, rowid)
    if is_unfinished(mem, row):
        return A.ST_UNFINISHED
    head = mem[row]
    is_shared = mode == A.MODE_FIND and head & A.LOCK_SHARED
    if head & A.LOCK_MASK and not is_shared:
        if lock_owner(mem, head) != txn:
            return busy(mem, txn, fragment, rowid, head)
        if own_kind(mem, row) == L.KIND_DELETE:
            return A.ST_MISSING
    elif is_changed_since(mem, txn, row):
        return conflict(mem, txn, fragment, rowid)
    if mode == A.MODE_FIND:
        busy(mem, txn, fragment, rowid, head)
        return A.OK
    if mode == A.MODE_UPDATE:
        return touch_update(mem, txn, buf, fragment, rowid, row)
    if mode == A.MODE_DELETE:
        if disk is not None:
            return delete_disk_row(mem, txn, buf, fragment, rowid, row)
        return touch_delete(mem, txn, buf, fragment, rowid, row)
    return touch_lock(mem, txn, fragment, rowid, row)


@helper
def absent(mem, table, txn, keys, first, words):
    """Return the status of a key that no row has: ST_MISSING, ST_UNFINISHED or ST_CONFLICT."""
    if mem[txn + A.X_VIEW] != 0:
        fragment = fragment_of(mem, table, keys, first, words)
        tag = tag_of(keys, first, words, mem[table + A.T_SEED])
        if fragment != 0 and is_gone_since(mem, txn, fragment, tag, keys, first, words):
            return conflict(mem, txn, 0, 0)
    return seen_absent(mem)


@helper
def touch_each(mem, table, txn, buf, keys, offsets, stride, start, stop, mode, found, disk):
    """Do `touch_rows`, given the descriptor of the table; `disk`: None, or 1 for a table with disk columns."""
    fragments = mem[table + A.T_FRAGMENT_LIST]
    hints = _hints()
    group = start
    for i in range(start, stop):
        if i - group == AHEAD_ROWS or i == start:
            group = i
            look_ahead(mem, table, keys, offsets, stride, group, min(group + AHEAD_ROWS, stop), hints, group)
        first = offsets[i] if offsets.size else i * stride
        words = offsets[i + 1] - first if offsets.size else stride
        hint = hints[i - group]
        entry = 0
        if hint >= 0:
            fragment = mem[fragments + (hint >> HINT_SHIFT)]
            entry = confirmed(mem, table, fragment, hint & HINT_MASK, keys, first, words)
        if entry != 0:
            status = touch_row(mem, txn, buf, fragment, entry_rowid(mem, entry), mode, disk)
        else:
            status = absent(mem, table, txn, keys, first, words)
        if found.size and (status == A.OK or status == A.ST_MISSING):
            found[i] = 1 if status == A.OK else 0
            continue
        mem[txn + A.X_ROW] = i
        if status != A.OK:
            return status
    mem[txn + A.X_ROW] = stop
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64, int64, int64, int64, int64[::1])")
def touch_rows(mem, table, txn, buf, keys, offsets, stride, start, stop, mode, found):
    """Update (writing a record for the caller to patch), delete, lock or find rows [start, stop) by canonical key.

    offsets: n + 1 key offsets, or empty with `stride` words per key. found: empty, or keys without a row are skipped,
    and found[i] is 1 if key i has a row, else 0. Return OK or the status of row X_ROW.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    if mem[table + A.T_HAS_DISK]:
        return touch_each(mem, table, txn, buf, keys, offsets, stride, start, stop, mode, found, 1)
    return touch_each(mem, table, txn, buf, keys, offsets, stride, start, stop, mode, found, None)


@kernel("int64(int64[::1], int64, int64, int64)")
def mark_waited(mem, fragment, rowid, lock):
    """Mark a row's lock as having waiters; 0 if the lock has changed meanwhile (retry instead of waiting)."""
    fragment = descriptor_of(mem, fragment)
    row = 0 if fragment == 0 else row_address(mem, fragment, rowid)
    if row == 0 or mem[row] & A.LOCK_MASK & ~A.LOCK_WAITED != lock & ~A.LOCK_WAITED:
        return 0
    mem[row] |= A.LOCK_WAITED
    return 1


@kernel("int64(int64[::1], int64, int64, int64)")
def upgrade_lock(mem, txn, fragment, rowid):
    """Upgrade a transaction's shared lock, the only one on the row, to exclusive; OK, ST_MISSING if row or lock
    has changed, ST_MEMORY or ST_DROPPED.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    row = row_address(mem, fragment, rowid)
    if row == 0 or (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK != A.LIVE:
        return A.ST_MISSING
    if mem[row] & A.LOCK_MASK & ~A.LOCK_WAITED != A.LOCK_SHARED:
        return A.ST_MISSING
    operation = add_operation(mem, txn, fragment, rowid, A.OP_WAS_SHARED, 0)
    if operation == 0:
        return A.ST_MEMORY
    set_lock(mem, row, operation)
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64, int64)")
def exchange_lock(mem, fragment, rowid, expected, lock):
    """Replace a live row's lock word if it is still `expected`, ignoring the mark of waiters; 1 if done, 0 if it has
    changed. The mark stays unless the lock is freed.
    """
    fragment = descriptor_of(mem, fragment)
    row = 0 if fragment == 0 else row_address(mem, fragment, rowid)
    if row == 0 or (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK != A.LIVE:
        return 0
    before = mem[row] & A.LOCK_MASK
    if before & ~A.LOCK_WAITED != expected & ~A.LOCK_WAITED:
        return 0
    mem[row] = (mem[row] & ~A.LOCK_MASK) | lock | (before & A.LOCK_WAITED if lock else 0)
    return 1
