"""Records of another node's log applied to tables in use: prepared as operations, then committed.

The records are the transaction's buffer: an operation's cell points to its record in place. This module prepares a
record as `engine/txn/changes_kernels.py` prepares a caller's change, with the slot, order and before-images that the
primary chose. There are no other writers and so no lock conflicts. If a record does not fit its row, the copies have
diverged.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk.parts_kernels import reserve_undo_of, restore_reserved
from tidemark.engine.index.changes_kernels import place_of, reserve_index_entries
from tidemark.engine.index.unique_changes_kernels import copy_entries, uniques_of
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import lock_owner, newest_operation, own_kind
from tidemark.engine.log.records_kernels import (
    author_of,
    fragment_of,
    is_operation,
    record_at,
    record_flags,
    record_has_var,
    rows_of,
    transaction_at,
)
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import handle_of
from tidemark.engine.rows.lcp_kernels import checked_disk_words, checked_image_words
from tidemark.engine.rows.primary_kernels import image_key, index_find, index_insert, key_equals, tag_of
from tidemark.engine.rows.rows_kernels import known_row_address, row_address, take_given_slot
from tidemark.engine.rows.side_pages_kernels import take_var_part
from tidemark.engine.rows.ticks_kernels import begin_unfinished, end_unfinished, tick_of_slice
from tidemark.engine.store import group_apply_layout as O
from tidemark.engine.store.replay_kernels import look_ahead_of_replay
from tidemark.engine.txn.changes_kernels import add_operation, copy_words, fill_reserved, reserve_copy, set_lock
from tidemark.engine.txn.commit_kernels import SMALL_OPERATIONS, SMALL_WORDS, WHOLE, apply_operations
from tidemark.engine.txn.disk_changes_kernels import current_part, plan_changed, plan_new, reference_at


# --- one row --------------------------------------------------------------------------------------
@helper
def lead_insert(mem, txn, fragment, rowid, at):
    """Add a row to the operation that this unit has for the insert record, or to a new one. Return the operation; 0 if
    memory is exhausted.
    """
    operation = mem[txn + A.X_LAST]
    if operation != 0 and mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT == at:
        mem[operation + A.O_ROWID] += 1 << A.COUNT_SHIFT
        return operation
    return add_operation(mem, txn, fragment, rowid | 1 << A.COUNT_SHIFT, at << A.OP_RECORD_SHIFT | L.KIND_INSERT, 0)


@helper
def prepare_inserted(mem, txn, words, fragment, rowid, at, image, stop):
    """Prepare one row of the insert record words[at:], with its image at `image`; return (OK, words of image and disk
    part), or (status, 0). A status for a lack of disk pages or UNDO log leaves nothing changed: the caller provides
    them and repeats the call.
    """
    fixed = mem[fragment + A.F_FIXED_WORDS]
    size = checked_image_words(fixed, record_has_var(mem, fragment, words[at + 1]), words, image, stop)
    if size < 0:
        return A.ST_INVARIANT, 0
    disk = checked_disk_words(words, image + size, stop) if mem[fragment + A.F_HAS_DISK] else 0
    first, key_words = image_key(words, image, fixed, mem[fragment + A.F_KEY_WORDS])
    if disk < 0 or first + key_words > image + size:
        return A.ST_INVARIANT, 0
    tag = tag_of(words, first, key_words, mem[fragment + A.F_INDEX_SEED])
    if index_find(mem, fragment, tag, words, first, key_words) != 0:
        return A.ST_DUPLICATE, 0
    plan = 0
    if disk > 0:
        status, plan = plan_new(mem, txn, fragment, disk)
        if status != A.OK:
            return status, 0
    status = take_given_slot(mem, fragment, rowid)
    if status != A.OK:
        return status, 0
    row = known_row_address(mem, fragment, rowid)
    status, reference = take_var_part(mem, fragment, row, words, image + fixed, size - fixed)
    if status == A.OK:
        status = index_insert(mem, fragment, tag, rowid)
    if status == A.OK and mem[fragment + A.F_INDEXES] != 0:
        status = reserve_index_entries(mem, txn, fragment, 1)
    indexes = uniques_of(mem, fragment)
    if status == A.OK and indexes != 0:
        status = copy_entries(mem, txn, indexes, fragment, words, image, place_of(mem, fragment, rowid))
    operation = lead_insert(mem, txn, fragment, rowid, at) if status == A.OK else 0
    if operation == 0:
        return (A.ST_MEMORY if status == A.OK else status), 0
    fill_reserved(mem, fragment, row, operation, words, image, reference)
    if disk > 0:
        words[image + fixed - 1] = plan
        mem[reference_at(mem, fragment, row)] = image + size
        mem[txn + A.X_DISK] += 1
    return A.OK, size + disk


@helper
def row_to_change(mem, txn, fragment, rowid):
    """Return (OK, address of the row that a record changes), or (status, row). The row must be committed, or this
    transaction must have changed it.
    """
    row = row_address(mem, fragment, rowid)
    if row == 0:
        return A.ST_MISSING, 0
    head = mem[row]
    state = (head >> A.STATE_SHIFT) & A.STATE_MASK
    if head & A.LOCK_MASK == 0:
        return (A.OK if state == A.LIVE else A.ST_MISSING), row
    if lock_owner(mem, head) != txn:
        return A.ST_BUSY, row
    return (A.ST_MISSING if own_kind(mem, row) == L.KIND_DELETE else A.OK), row


@helper
def prepare_updated(mem, txn, words, fragment, at, size):
    """Prepare an UPDATE record: lock the row and copy its new var part; OK or a status, as `prepare_inserted`."""
    rowid = words[at + 2] & A.ROWID_MASK
    status, row = row_to_change(mem, txn, fragment, rowid)
    if status != A.OK:
        return status
    fixed = mem[fragment + A.F_FIXED_WORDS]
    flags = record_flags(words, at)
    kept = flags & L.FLAG_VAR_KEPT
    image = at + L.OPERATION_WORDS
    has_var = record_has_var(mem, fragment, words[at + 1]) and not kept
    own = checked_image_words(fixed, has_var, words, image, at + size)
    if own < 0:
        return A.ST_INVARIANT
    has_part = mem[fragment + A.F_HAS_DISK] and not flags & L.FLAG_DISK_KEPT
    disk = checked_disk_words(words, image + own, at + size) if has_part else 0
    if disk < 0 or L.OPERATION_WORDS + own + disk != size:
        return A.ST_INVARIANT
    if not kept or mem[fragment + A.F_KEY_WORDS] > 0:
        first, key_words = image_key(words, image, fixed, mem[fragment + A.F_KEY_WORDS])
        if first + key_words > image + own or not key_equals(mem, fragment, row, words, first, key_words):
            return A.ST_INVARIANT
    plan = 0
    if has_part:
        status, plan = plan_changed(mem, txn, words, fragment, rowid, row, disk)
        if status != A.OK:
            return status
    if mem[fragment + A.F_INDEXES] != 0:
        status = reserve_index_entries(mem, txn, fragment, 1)
    indexes = uniques_of(mem, fragment)
    if status == A.OK and indexes != 0 and not kept:
        status = copy_entries(mem, txn, indexes, fragment, words, image, place_of(mem, fragment, rowid))
    if status == A.OK:
        status = reserve_copy(mem, txn, copy_words(mem, fragment, row))
    if status != A.OK:
        return status
    status, reference = take_var_part(mem, fragment, row, words, image + fixed, own - fixed)
    if status != A.OK:
        return status
    record = at << A.OP_RECORD_SHIFT | L.KIND_UPDATE | (A.OP_DISK_KEPT if flags & L.FLAG_DISK_KEPT else 0)
    operation = add_operation(mem, txn, fragment, rowid, record, newest_operation(mem[row]))
    if operation == 0:
        return A.ST_MEMORY
    mem[operation + A.O_VAR] = reference
    set_lock(mem, row, operation)
    if mem[fragment + A.F_HAS_DISK]:
        words[image + fixed - 1] = plan
        mem[txn + A.X_DISK] += 1 if has_part else 0
    return A.OK


@helper
def prepare_deleted(mem, txn, words, fragment, at):
    """Prepare a DELETE record: lock the row; OK or a status, as `prepare_inserted`."""
    rowid = words[at + 2] & A.ROWID_MASK
    status, row = row_to_change(mem, txn, fragment, rowid)
    if status == A.OK and mem[fragment + A.F_HAS_DISK]:
        status, current, page = current_part(mem, txn, words, fragment, rowid, row)
        if status == A.OK:
            before = mem[txn + A.X_UNDO_WORDS]
            status = reserve_undo_of(mem, txn, mem[fragment + A.F_TABLESPACE], current, page, True)
            if status != A.OK:
                restore_reserved(mem, txn, before)
    if status == A.OK:
        status = reserve_copy(mem, txn, copy_words(mem, fragment, row))
    if status != A.OK:
        return status
    record = at << A.OP_RECORD_SHIFT | L.KIND_DELETE
    operation = add_operation(mem, txn, fragment, rowid, record, newest_operation(mem[row]))
    if operation == 0:
        return A.ST_MEMORY
    set_lock(mem, row, operation)
    if mem[fragment + A.F_HAS_DISK]:
        mem[txn + A.X_DISK] += 1
    if mem[fragment + A.F_INDEXES] != 0:
        reserve_index_entries(mem, txn, fragment, 0)
    return A.OK


# --- records --------------------------------------------------------------------------------------
@helper
def prepare_run(mem, txn, words, fragment, at, size, state):
    """Prepare an INSERT record from row state[GA_ROW] on; ST_MORE if it has more rows than this call may prepare."""
    rowid, count = rows_of(words, at, L.KIND_INSERT)
    if count < 0:
        return A.ST_INVARIANT
    if state[O.GA_ROW] == 0:
        state[O.GA_IMAGE] = at + L.OPERATION_WORDS
    blocks = mem[fragment + A.F_INDEX_BLOCKS]
    while state[O.GA_ROW] < count:
        if state[O.GA_LEFT] <= 0:
            return A.ST_MORE
        image = state[O.GA_IMAGE]
        mem[txn + A.X_ROWID] = rowid + state[O.GA_ROW]
        status, used = prepare_inserted(mem, txn, words, fragment, rowid + state[O.GA_ROW], at, image, at + size)
        if status != A.OK:
            return status
        state[O.GA_IMAGE] = image + used
        state[O.GA_ROW] += 1
        state[O.GA_LEFT] -= 1
        if mem[fragment + A.F_INDEX_BLOCKS] != blocks:
            state[O.GA_LEFT] = 0  # a segment of the index was rebuilt, which is enough work for one call
    return A.OK if state[O.GA_IMAGE] == at + size else A.ST_INVARIANT


@helper
def prepare_record(mem, tables, txn, words, at, kind, size, state):
    """Prepare one record that changes rows; OK or a status. Skips records of tables and partitions dropped since."""
    fragment = fragment_of(mem, tables, words[at + 1])
    if fragment < 0:
        return A.ST_INVARIANT
    if fragment == 0:
        return A.OK
    mem[txn + A.X_TAIL_WORD] = words[at + 3]
    if words[at + 3] >> L.AUTHOR_SHIFT:
        mem[txn + A.X_AUTHOR] = author_of(words, at)
    mem[txn + A.X_FRAGMENT] = handle_of(mem, fragment)
    mem[txn + A.X_ROWID] = words[at + 2] & A.ROWID_MASK
    if kind == L.KIND_INSERT:
        return prepare_run(mem, txn, words, fragment, at, size, state)
    if kind == L.KIND_UPDATE:
        status = prepare_updated(mem, txn, words, fragment, at, size)
    else:
        status = prepare_deleted(mem, txn, words, fragment, at)
    if status == A.OK:
        state[O.GA_LEFT] -= 1
    return status


@helper
def begin_next(mem, words, stop, epoch, state):
    """Read the header record of a transaction, and begin it if it is large: OK if its records are next, GA_SCHEMA or
    GA_FILES if the caller must handle the whole transaction, up to state[GA_TXN_STOP], or ST_INVARIANT.
    """
    at = state[O.GA_AT]
    end, kind = transaction_at(words, at, stop)
    if end < 0:
        return A.ST_INVARIANT
    state[O.GA_TXN_STOP] = end
    if kind == L.KIND_SCHEMA:
        return O.GA_SCHEMA
    if kind == L.KIND_FILES:
        return O.GA_FILES
    state[O.GA_IS_LARGE] = 0
    if end - at > SMALL_WORDS or words[at + 2] > SMALL_OPERATIONS:
        state[O.GA_IS_LARGE] = O.LARGE
        begin_unfinished(mem, epoch, A.X_UPDATES | A.X_DELETES)
    state[O.GA_AT] = at + L.TRANSACTION_WORDS
    return A.OK


@helper
def end_if_large(mem, txn, state):
    """End a large transaction of which everything is applied."""
    if state[O.GA_IS_LARGE] == O.LARGE and state[O.GA_AT] == state[O.GA_TXN_STOP] and mem[txn + A.X_OPS] == 0:
        end_unfinished(mem)
        state[O.GA_IS_LARGE] = 0


@helper
def prepare_unit(mem, tables, txn, words, stop, epoch, state):
    """Prepare the operations of one step: a transaction, or some records of a large one. OK when it is prepared."""
    while state[O.GA_AT] < stop:
        at = state[O.GA_AT]
        if at == state[O.GA_TXN_STOP]:
            if mem[txn + A.X_OPS] > 0:
                return A.OK
            end_if_large(mem, txn, state)
            status = begin_next(mem, words, stop, epoch, state)
            if status != A.OK:
                return status
            continue
        if state[O.GA_LEFT] <= 0 and mem[txn + A.X_OPS] > 0:
            return A.OK if state[O.GA_IS_LARGE] else A.ST_MORE
        if at >= state[O.GA_AHEAD]:
            state[O.GA_AHEAD] = look_ahead_of_replay(mem, tables, words, at, stop, 0, 1)
        kind, size = record_at(words, at, state[O.GA_TXN_STOP])
        if size < 0 or kind == L.KIND_TRANSACTION:
            return A.ST_INVARIANT
        if is_operation(kind):
            status = prepare_record(mem, tables, txn, words, at, kind, size, state)
            if status == A.ST_MORE and state[O.GA_IS_LARGE]:
                return A.OK
            if status != A.OK:
                return status
        state[O.GA_AT] = at + size
        state[O.GA_ROW] = 0
    return A.OK


@helper
def begin_unit(mem, txn):
    """Clear the author and the end state of the previous unit."""
    mem[txn + A.X_STATE] = 1
    mem[txn + A.X_AUTHOR] = 0
    mem[txn + A.X_GENERATION] = mem[A.S_INDEX_GENERATION]


@kernel("int64(int64[::1], int64[::1], int64, int64[::1], int64[::1], int64, int64, int64, int64[::1])")
def apply_records(mem, tables, txn, words, copies, stop, epoch, budget, state):
    """Apply records words[state[GA_AT]:stop], of transactions, or of a single one if state[GA_TXN_STOP] is `stop`.

    tables: handle by table number, 0 for dropped tables. copies: as in `commit_at_once`. A call prepares about `budget`
    rows; a small transaction is applied in one step. OK when all is done; ST_MORE; ST_COPIES, with the room needed in
    X_COPY_WORDS; GA_DISK, GA_SCHEMA, GA_FILES; or the status of the record at state[GA_AT], with its fragment and row
    in X_FRAGMENT and X_ROWID.
    """
    state[O.GA_LEFT] = budget
    while True:
        if state[O.GA_IS_READY] == 0:
            if mem[txn + A.X_STATE] != 1:
                begin_unit(mem, txn)
            status = prepare_unit(mem, tables, txn, words, stop, epoch, state)
            if status != A.OK:
                return status
            state[O.GA_IS_READY] = 1
        if mem[txn + A.X_DISK] > 0:
            return O.GA_DISK
        if copies.size > 0 and copies[0] + mem[txn + A.X_COPY_WORDS] > copies.size:
            return A.ST_COPIES
        mem[txn + A.X_CURSOR] = mem[txn + A.X_FIRST]
        tick = tick_of_slice(mem, epoch)
        if mem[txn + A.X_INDEXED] > 0:
            status = apply_operations(mem, txn, words, copies, epoch, tick, WHOLE, 1, None)
        else:
            status = apply_operations(mem, txn, words, copies, epoch, tick, WHOLE, None, None)
        if status != A.OK:
            return A.ST_INVARIANT
        state[O.GA_IS_READY] = 0
        end_if_large(mem, txn, state)
        if state[O.GA_AT] >= stop:
            return A.OK
        if state[O.GA_LEFT] <= 0:
            return A.ST_MORE
