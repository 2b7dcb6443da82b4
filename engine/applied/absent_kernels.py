"""Locks on keys that have no row: until the transaction that holds one ends, no other transaction can insert the key.

The key is in a slot, like that of a row being inserted, so a transaction that wants to insert it waits, and deadlocks
are found as for rows. The lock has no record and no entry in another index; nothing of it outlives the transaction.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import lock_owner, own_kind
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.primary_kernels import entry_rowid, image_key, index_find, tag_of
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.rows.ticks_kernels import is_unfinished, seen_absent
from tidemark.engine.schema.partitions_kernels import fragment_of
from tidemark.engine.txn.changes_kernels import add_operation, busy, fill_reserved, give_back, image_words, take_new


@helper
def lock_absent_key(mem, txn, fragment, tag, images, at):
    """Store an image that has only a key, in a new slot that this transaction locks. Return OK, or a status code with
    nothing done.
    """
    fixed = mem[fragment + A.F_FIXED_WORDS]
    words = image_words(images, at, fixed, mem[fragment + A.F_HAS_VAR])
    rowid, reference = take_new(mem, fragment, tag, images, at + fixed, words - fixed)
    if rowid < 0:
        return rowid
    operation = add_operation(mem, txn, fragment, rowid, A.OP_ABSENT | A.OP_LOCK, 0)
    if operation == 0:
        return give_back(mem, fragment, tag, rowid, reference)
    fill_reserved(mem, fragment, known_row_address(mem, fragment, rowid), operation, images, at, reference)
    return A.OK


@helper
def check_absent(mem, txn, fragment, rowid):
    """Return whether the key of an index entry can be locked as absent: OK if this transaction has deleted the row or
    has locked the key already, ST_DUPLICATE if there is a row, ST_BUSY if another transaction holds the row, or
    ST_UNFINISHED.
    """
    if is_unfinished(mem, known_row_address(mem, fragment, rowid)):
        return A.ST_UNFINISHED
    head = mem[known_row_address(mem, fragment, rowid)]
    if head & A.LOCK_MASK == 0 or head & A.LOCK_SHARED:
        return A.ST_DUPLICATE
    if lock_owner(mem, head) != txn:
        return busy(mem, txn, fragment, rowid, head)
    return A.OK if own_kind(mem, known_row_address(mem, fragment, rowid)) == L.KIND_DELETE else A.ST_DUPLICATE


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64, int64, int64[::1])")
def lock_absent(mem, table, txn, images, offsets, start, stop, taken):
    """Lock the keys of images [start, stop) that have no row. offsets: of each image, and the end of the last.
    taken[i] becomes 1 + the key's fragment number if the lock is held, 0 if a row has the key by now, or -1 if no
    partition takes the key, so it never has a row.

    Return OK, or the status at key X_ROW that stopped the call: ST_BUSY, ST_UNFINISHED, ST_MEMORY, ST_PAGES. A
    transaction that holds such a lock sees no row with the key, and gets ST_DUPLICATE if it inserts one.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    fixed = mem[table + A.T_FIXED_WORDS]
    held = mem[table + A.T_KEY_WORDS]
    for i in range(start, stop):
        mem[txn + A.X_ROW] = i
        first, words = image_key(images, offsets[i], fixed, held)
        fragment = fragment_of(mem, table, images, first, words)
        if fragment == 0:
            taken[i] = -1
            continue
        taken[i] = 1 + mem[fragment + A.F_NUMBER]
        tag = tag_of(images, first, words, mem[table + A.T_SEED])
        entry = index_find(mem, fragment, tag, images, first, words)
        if entry == 0 and seen_absent(mem) == A.ST_UNFINISHED:
            status = A.ST_UNFINISHED
        elif entry == 0:
            status = lock_absent_key(mem, txn, fragment, tag, images, offsets[i])
        else:
            status = check_absent(mem, txn, fragment, entry_rowid(mem, entry))
            if status == A.ST_DUPLICATE:
                taken[i] = 0
                status = A.OK
        if status != A.OK:
            return status
    mem[txn + A.X_ROW] = stop
    return A.OK
