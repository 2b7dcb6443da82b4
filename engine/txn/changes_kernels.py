"""Effects of operations on rows before commit: locks, reservations, records (D3).

A row's lock word points to its newest operation (an arena cell); the operation points to its record in the
transaction's buffer. Nothing here is visible to other transactions.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.changes_kernels import cancel_index_entries, place_of, reserve_index_entries
from tidemark.engine.index.unique_changes_kernels import point_taken_entries, remove_taken, take_entries, uniques_of
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import is_image_evicted, lock_owner, newest_operation, own_fixed, own_kind
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import handle_of
from tidemark.engine.memory.pool_kernels import take_cell
from tidemark.engine.rows.primary_kernels import index_insert, index_remove
from tidemark.engine.rows.rows_kernels import free_slot, known_row_address, take_slot
from tidemark.engine.rows.side_pages_kernels import is_empty_var, make_side, set_var, var_of, words_of_var
from tidemark.engine.rows.ticks_kernels import is_changed_since, is_unfinished
from tidemark.engine.rows.var_parts_kernels import free_var, take_var
from tidemark.engine.txn.before_images_kernels import log_before_image

INDEXED_RUN_MAX = 32  # rows of an insert record; a commit applies the record in one step, index entries included

_pack_kind = helper(L.pack_kind)
_pack_identity = helper(L.pack_identity)
_pack_rows = helper(L.pack_rows)

assert A.X_UPDATES == 1 << L.KIND_UPDATE and A.X_DELETES == 1 << L.KIND_DELETE


@helper
def set_lock(mem, row, operation):
    """Point a row's lock at an operation (0 frees it); the mark of a waiter stays while the row is locked."""
    head = mem[row]
    if operation == 0:
        mem[row] = head & ~A.LOCK_MASK
    else:
        mem[row] = (head & ~A.LOCK_OP_MASK & ~A.LOCK_SHARED) | operation >> 3


@helper
def add_operation(mem, txn, fragment, rowid, record, previous):
    """Append an operation to a transaction; return its address, 0 when memory is exhausted."""
    operation = take_cell(mem)
    if operation == 0:
        return 0
    mem[operation + A.O_NEXT] = 0
    mem[operation + A.O_BACK] = mem[txn + A.X_LAST]
    mem[operation + A.O_TXN] = txn
    mem[operation + A.O_FRAGMENT] = fragment
    mem[operation + A.O_ROWID] = rowid
    mem[operation + A.O_RECORD] = record | (A.OP_AUTHORED if mem[txn + A.X_TAIL_WORD] >> A.AUTHOR_SHIFT else 0)
    mem[operation + A.O_VAR] = 0
    mem[operation + A.O_PREVIOUS] = previous
    if mem[txn + A.X_LAST] != 0:
        mem[mem[txn + A.X_LAST] + A.O_NEXT] = operation
    else:
        mem[txn + A.X_FIRST] = operation
    mem[txn + A.X_LAST] = operation
    mem[txn + A.X_KINDS] |= 1 << (record & A.OP_KIND_MASK)
    mem[txn + A.X_OPS] += 1
    mem[txn + A.X_RUN] = 0
    return operation


@helper
def lead_operation(mem, txn, fragment, rowid, record, previous):
    """Like `add_operation`, for an existing row. A plain lock that no savepoint has followed is turned into the
    operation, in place, except in a table with unique indexes or disk columns, where the order of operations matters.
    """
    lock = mem[txn + A.X_SAVEPOINTS] << A.OP_RECORD_SHIFT | A.OP_LOCK
    is_lock = previous != 0 and mem[previous + A.O_RECORD] & ~A.OP_AUTHORED == lock
    if not is_lock or mem[fragment + A.F_HAS_DISK] != 0 or uniques_of(mem, fragment) != 0:
        return add_operation(mem, txn, fragment, rowid, record, previous)
    mem[previous + A.O_RECORD] = record | (A.OP_AUTHORED if mem[txn + A.X_TAIL_WORD] >> A.AUTHOR_SHIFT else 0)
    mem[txn + A.X_KINDS] |= 1 << (record & A.OP_KIND_MASK)
    mem[txn + A.X_RUN] = 0
    return previous


@helper
def write_record(mem, txn, buf, fragment, kind, flags, words, rowid):
    """Append a record header to the transaction's buffer; return the record's offset."""
    at = mem[txn + A.X_USED]
    buf[at] = _pack_kind(kind, flags, words)
    buf[at + 1] = _pack_identity(
        mem[fragment + A.F_TABLE], mem[fragment + A.F_NUMBER], mem[fragment + A.F_SCHEMA_VERSION]
    )
    buf[at + 2] = _pack_rows(rowid, 1)
    buf[at + 3] = mem[txn + A.X_TAIL_WORD]
    mem[txn + A.X_USED] = at + words
    mem[txn + A.X_CHANGES] += 1
    return at


@helper
def image_words(images, at, fixed_words, has_var):
    """Return the words of a row image."""
    if has_var:
        return fixed_words + (images[at + fixed_words] & A.VAR_WORDS_MASK)
    return fixed_words


@helper
def reserve_copy(mem, txn, words):
    """Reserve room for a copy into a local checkpoint; OK or ST_COPIES. A transaction may exceed the limit if no other
    has reserved; a spooled transaction reserves slice by slice at commit.
    """
    if mem[txn + A.X_SPOOLED] != 0:
        return A.OK
    others = mem[A.S_COPY_RESERVED] - mem[txn + A.X_COPY_WORDS]
    if others > 0 and mem[A.S_COPY_RESERVED] + words > mem[A.S_COPY_LIMIT]:
        return A.ST_COPIES
    mem[A.S_COPY_RESERVED] += words
    mem[txn + A.X_COPY_WORDS] += words
    return A.OK


@helper
def extend_run(mem, txn, buf, fragment, rowid, words):
    """Add a row to the last insert record; return its operation, 0 if the row needs a new record."""
    operation = mem[txn + A.X_RUN]
    if operation == 0 or mem[operation + A.O_FRAGMENT] != fragment:
        return 0
    if mem[fragment + A.F_INDEXES] != 0 and mem[operation + A.O_ROWID] >> A.COUNT_SHIFT >= INDEXED_RUN_MAX:
        return 0
    made_by = buf[(mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT) + 1] >> L.SCHEMA_VERSION_SHIFT
    if made_by & L.SCHEMA_VERSION_MASK != mem[fragment + A.F_SCHEMA_VERSION]:
        return 0  # its images may have another layout
    first = mem[operation + A.O_ROWID] & A.ROWID_MASK
    count = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
    if count >= A.RUN_MAX or first + count != rowid or first >> 16 != rowid >> 16:
        return 0
    record = mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT
    if buf[record + 3] != mem[txn + A.X_TAIL_WORD]:
        return 0
    buf[record] += words << 16
    buf[record + 2] += 1 << A.COUNT_SHIFT
    mem[operation + A.O_ROWID] += 1 << A.COUNT_SHIFT
    mem[txn + A.X_USED] += words
    return operation


@helper
def reserve_row(mem, txn, buf, fragment, tag, images, at, disk):
    """Insert a row: reserve or take entries of the table's indexes, then `take_row`; OK or a status code."""
    if mem[fragment + A.F_INDEXES] != 0 and reserve_index_entries(mem, txn, fragment, 1) != A.OK:
        return A.ST_MEMORY
    indexes = uniques_of(mem, fragment)
    if indexes == 0:
        status = take_row(mem, txn, buf, fragment, tag, images, at, disk)
    else:
        status = take_entries(mem, txn, buf, indexes, fragment, images, at, 0)
        if status == A.OK:
            status = take_row(mem, txn, buf, fragment, tag, images, at, disk)
            if status == A.OK:
                point_taken_entries(mem, txn, indexes, fragment)
            else:
                remove_taken(mem, indexes, mem[indexes + X.XL_COUNT], 0)
    if status != A.OK:
        cancel_index_entries(mem, txn, fragment, 1)
    return status


@helper
def take_new(mem, fragment, tag, images, at, var_words):
    """Take slot, var part and index entry of a new row, whose var part of `var_words` words is at images[at:]. Return
    (its ROWID, reference of the var part), or (a status, 0) with nothing taken.
    """
    reference = 0
    if mem[fragment + A.F_HAS_VAR] and not is_empty_var(mem, fragment, var_words):
        reference = take_var(mem, fragment, images, at, var_words)
        if reference == 0:
            return A.ST_MEMORY, 0
    rowid = take_slot(mem, fragment)
    if rowid < 0:
        free_var(mem, fragment, reference)
        return rowid, 0
    status = A.OK if reference == 0 else make_side(mem, fragment, known_row_address(mem, fragment, rowid))
    if status == A.OK:
        status = index_insert(mem, fragment, tag, rowid)
    if status != A.OK:
        free_slot(mem, fragment, rowid)
        free_var(mem, fragment, reference)
        return status, 0
    return rowid, reference


@helper
def give_back(mem, fragment, tag, rowid, reference):
    """Undo `take_new`; return ST_MEMORY, which is why."""
    index_remove(mem, fragment, tag, rowid)
    free_slot(mem, fragment, rowid)
    free_var(mem, fragment, reference)
    return A.ST_MEMORY


@helper
def fill_reserved(mem, fragment, row, operation, images, at, reference):
    """Put the image of a new row into its slot at once: a RESERVED row is invisible, and the index compares keys in
    rows.
    """
    mem[row] = (mem[row] & A.KEPT_BITS) | A.RESERVED << A.STATE_SHIFT | operation >> 3
    move_words(images, at, mem, row + A.ROW_HEADER_WORDS, mem[fragment + A.F_FIXED_WORDS])
    if mem[fragment + A.F_HAS_VAR]:
        set_var(mem, fragment, row, reference)
    mem[fragment + A.F_RESERVED_ROWS] += 1


@helper
def take_row(mem, txn, buf, fragment, tag, images, at, disk):
    """Take slot, var part and index entry of a new row, and write its record; OK or a status code.

    disk: words of the disk part after the image; the record includes it.
    """
    fixed = mem[fragment + A.F_FIXED_WORDS]
    has_var = mem[fragment + A.F_HAS_VAR]
    words = image_words(images, at, fixed, has_var) + disk
    if mem[txn + A.X_USED] + L.OPERATION_WORDS + words > buf.size:
        return A.ST_SPACE
    rowid, reference = take_new(mem, fragment, tag, images, at + fixed, words - disk - fixed)
    if rowid < 0:
        return rowid
    operation = extend_run(mem, txn, buf, fragment, rowid, words)
    if operation == 0:
        record = mem[txn + A.X_USED]
        operation = add_operation(
            mem, txn, fragment, rowid | 1 << A.COUNT_SHIFT, record << A.OP_RECORD_SHIFT | L.KIND_INSERT, 0
        )
        if operation == 0:
            return give_back(mem, fragment, tag, rowid, reference)
        write_record(mem, txn, buf, fragment, L.KIND_INSERT, 0, L.OPERATION_WORDS + words, rowid)
        mem[txn + A.X_RUN] = operation
    image = mem[txn + A.X_USED] - words
    move_words(images, at, buf, image, words)
    fill_reserved(mem, fragment, known_row_address(mem, fragment, rowid), operation, images, at, reference)
    return A.OK


@helper
def change_row(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, record_flags):
    """Update a row with an image, after the before-image if the table logs it; OK or a status code."""
    used = mem[txn + A.X_USED]
    again = log_before_image(mem, txn, buf, fragment, rowid, row, record_flags & L.FLAG_DISK_KEPT)
    if again < 0:
        return again
    status = put_indexed(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, record_flags | again)
    if status != A.OK:
        mem[txn + A.X_USED] = used
    return status


@helper
def put_indexed(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, record_flags):
    """Update a row with an image: reserve or take index entries, then `put_image`; OK or a status code."""
    if mem[fragment + A.F_INDEXES] != 0 and reserve_index_entries(mem, txn, fragment, 1) != A.OK:
        return A.ST_MEMORY
    indexes = uniques_of(mem, fragment)
    if indexes == 0:
        status = put_image(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, record_flags)
    else:
        place = place_of(mem, fragment, rowid)
        status = take_entries(mem, txn, buf, indexes, fragment, images, at, place)
        if status == A.OK:
            status = put_image(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, record_flags)
            if status != A.OK:
                remove_taken(mem, indexes, mem[indexes + X.XL_COUNT], place)
    if status != A.OK:
        cancel_index_entries(mem, txn, fragment, 1)
    return status


@helper
def put_image(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, record_flags):
    """Lock a row, store its new var part separately, and write its record; OK or a status code.

    flags: of the operation. disk: words of the disk part after the image; the record includes it.
    """
    fixed = mem[fragment + A.F_FIXED_WORDS]
    has_var = mem[fragment + A.F_HAS_VAR]
    words = image_words(images, at, fixed, has_var) + disk
    if mem[txn + A.X_USED] + L.OPERATION_WORDS + words > buf.size:
        return A.ST_SPACE
    status = reserve_copy(mem, txn, copy_words(mem, fragment, row))
    if status != A.OK:
        return status
    reference = 0
    if has_var and not is_empty_var(mem, fragment, words - disk - fixed):
        if make_side(mem, fragment, row) != A.OK:
            return A.ST_MEMORY
        reference = take_var(mem, fragment, images, at + fixed, words - disk - fixed)
        if reference == 0:
            return A.ST_MEMORY
    previous = newest_operation(mem[row])
    record = mem[txn + A.X_USED] << A.OP_RECORD_SHIFT | flags | L.KIND_UPDATE
    if record_flags & L.FLAG_DISK_KEPT:
        record |= A.OP_DISK_KEPT
    operation = lead_operation(mem, txn, fragment, rowid, record, previous)
    if operation == 0:
        free_var(mem, fragment, reference)
        return A.ST_MEMORY
    mem[operation + A.O_VAR] = reference
    record = write_record(mem, txn, buf, fragment, L.KIND_UPDATE, record_flags, L.OPERATION_WORDS + words, rowid)
    move_words(images, at, buf, record + L.OPERATION_WORDS, words)
    set_lock(mem, row, operation)
    return A.OK


@helper
def copy_words(mem, fragment, row):
    """Return the words of a committed row's copy in a local checkpoint; 0 for a row that was never committed."""
    if (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK == A.RESERVED:
        return 0
    words = A.ENTRY_WORDS + mem[fragment + A.F_FIXED_WORDS]
    if mem[fragment + A.F_HAS_VAR]:
        return words + words_of_var(mem, var_of(mem, fragment, row))
    return words + 1  # a header, in case a local checkpoint begins after the change that adds var parts


@helper
def touch_update(mem, txn, buf, fragment, rowid, row):
    """Update fixed columns, none of a unique index: before-image, reservation of index entries, `put_current`; OK or a
    status code.
    """
    used = mem[txn + A.X_USED]
    again = log_before_image(mem, txn, buf, fragment, rowid, row, True)
    if again < 0:
        return again
    if mem[fragment + A.F_INDEXES] != 0 and reserve_index_entries(mem, txn, fragment, 1) != A.OK:
        mem[txn + A.X_USED] = used
        return A.ST_MEMORY
    status = put_current(mem, txn, buf, fragment, rowid, row, again)
    if status != A.OK:
        cancel_index_entries(mem, txn, fragment, 1)
        mem[txn + A.X_USED] = used
    return status


@helper
def put_current(mem, txn, buf, fragment, rowid, row, flags):
    """Lock a row and write a record with its current image, which the caller patches; OK or a status code. flags: of
    the record.
    """
    fixed = mem[fragment + A.F_FIXED_WORDS]
    if mem[txn + A.X_USED] + L.OPERATION_WORDS + fixed > buf.size:
        return A.ST_SPACE
    if is_image_evicted(mem, buf, row):
        return A.ST_SPOOLED
    status = reserve_copy(mem, txn, copy_words(mem, fragment, row))
    if status != A.OK:
        return status
    in_buffer, source = own_fixed(mem, buf, row)
    previous = newest_operation(mem[row])
    operation = lead_operation(
        mem, txn, fragment, rowid, mem[txn + A.X_USED] << A.OP_RECORD_SHIFT | L.KIND_UPDATE, previous
    )
    if operation == 0:
        return A.ST_MEMORY
    if mem[fragment + A.F_HAS_VAR]:
        flags |= L.FLAG_VAR_KEPT
    if mem[fragment + A.F_HAS_DISK]:
        flags |= L.FLAG_DISK_KEPT
        mem[operation + A.O_RECORD] |= A.OP_DISK_KEPT
    record = write_record(mem, txn, buf, fragment, L.KIND_UPDATE, flags, L.OPERATION_WORDS + fixed, rowid)
    if in_buffer:
        move_words(buf, source, buf, record + L.OPERATION_WORDS, fixed)
    else:
        move_words(mem, source, buf, record + L.OPERATION_WORDS, fixed)
    if mem[fragment + A.F_HAS_DISK]:
        buf[record + L.OPERATION_WORDS + fixed - 1] = 0  # no plan for its disk part
    set_lock(mem, row, operation)
    return A.OK


@helper
def touch_delete(mem, txn, buf, fragment, rowid, row):
    """Delete a row: before-image, lock and record; OK or a status code."""
    used = mem[txn + A.X_USED]
    again = log_before_image(mem, txn, buf, fragment, rowid, row, False)
    if again < 0:
        return again
    status = put_delete(mem, txn, buf, fragment, rowid, row, again)
    if status != A.OK:
        mem[txn + A.X_USED] = used
    return status


@helper
def put_delete(mem, txn, buf, fragment, rowid, row, flags):
    """Lock a row and write the record of its DELETE; OK or a status code."""
    if mem[txn + A.X_USED] + L.OPERATION_WORDS > buf.size:
        return A.ST_SPACE
    status = reserve_copy(mem, txn, copy_words(mem, fragment, row))
    if status != A.OK:
        return status
    previous = newest_operation(mem[row])
    operation = lead_operation(
        mem, txn, fragment, rowid, mem[txn + A.X_USED] << A.OP_RECORD_SHIFT | L.KIND_DELETE, previous
    )
    if operation == 0:
        return A.ST_MEMORY
    write_record(mem, txn, buf, fragment, L.KIND_DELETE, flags, L.OPERATION_WORDS, rowid)
    set_lock(mem, row, operation)
    if mem[fragment + A.F_INDEXES] != 0:
        reserve_index_entries(mem, txn, fragment, 0)
    return A.OK


@helper
def touch_lock(mem, txn, fragment, rowid, row):
    """Lock a row without changing it; OK or ST_MEMORY."""
    if mem[row] & A.LOCK_OP_MASK:
        return A.OK
    operation = add_operation(mem, txn, fragment, rowid, mem[txn + A.X_SAVEPOINTS] << A.OP_RECORD_SHIFT | A.OP_LOCK, 0)
    if operation == 0:
        return A.ST_MEMORY
    set_lock(mem, row, operation)
    return A.OK


@helper
def cancel_delete_of_key(mem, buf, row):
    """Cancel a DELETE when its transaction inserts the key again: the insert becomes an UPDATE of the row."""
    operation = newest_operation(mem[row])
    record = mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT
    mem[operation + A.O_RECORD] |= A.OP_CANCELLED
    buf[record] = (buf[record] & ~L.KIND_MASK) | L.KIND_NOOP


@helper
def restore_delete(mem, buf, operation):
    """Undo `cancel_delete_of_key` on the DELETE operation."""
    record = mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT
    mem[operation + A.O_RECORD] &= ~A.OP_CANCELLED
    buf[record] = (buf[record] & ~L.KIND_MASK) | L.KIND_DELETE


@helper
def busy(mem, txn, fragment, rowid, head):
    """Store in the transaction descriptor the row whose lock the caller must wait for; return ST_BUSY."""
    mem[txn + A.X_FRAGMENT] = handle_of(mem, fragment)
    mem[txn + A.X_ROWID] = rowid
    mem[txn + A.X_LOCK] = head & A.LOCK_MASK
    return A.ST_BUSY


@helper
def conflict(mem, txn, fragment, rowid):
    """Store in the transaction descriptor the row that another transaction has changed, fragment 0 if it is gone;
    return ST_CONFLICT.
    """
    mem[txn + A.X_FRAGMENT] = handle_of(mem, fragment) if fragment != 0 else 0
    mem[txn + A.X_ROWID] = rowid
    return A.ST_CONFLICT


@helper
def check_row(mem, txn, fragment, rowid, row, mode):
    """Check whether INSERT, WRITE or UPDATE may change a row that has an index entry: OK, or OP_REINSERT if this
    transaction has deleted it, or a status code.
    """
    head = mem[row]
    if is_unfinished(mem, row):
        return A.ST_UNFINISHED
    if (head & A.LOCK_MASK == 0 or head & A.LOCK_SHARED) and is_changed_since(mem, txn, row):
        return conflict(mem, txn, fragment, rowid)
    if head & A.LOCK_MASK == 0:
        return A.ST_DUPLICATE if mode == A.MODE_INSERT else A.OK
    if mode == A.MODE_INSERT and head & A.LOCK_SHARED:
        return A.ST_DUPLICATE  # no transaction holds the row exclusively, so no wait is needed
    if lock_owner(mem, head) != txn:
        return busy(mem, txn, fragment, rowid, head)
    if own_kind(mem, row) == L.KIND_DELETE:
        if mem[newest_operation(head) + A.O_RECORD] & A.OP_ABSENT:
            return (
                A.ST_MISSING if mode == A.MODE_UPDATE else A.ST_DUPLICATE
            )  # the transaction has reported the key as absent, see `lock_absent`
        return A.OP_REINSERT if mode == A.MODE_INSERT or mode == A.MODE_WRITE else A.ST_MISSING
    return A.ST_DUPLICATE if mode == A.MODE_INSERT else A.OK


@helper
def cancel_delete(mem, buf, row, head):
    """Cancel the DELETE that `head` points to, after the update that replaces it was added."""
    after = mem[row]
    mem[row] = head
    cancel_delete_of_key(mem, buf, row)
    mem[row] = after
