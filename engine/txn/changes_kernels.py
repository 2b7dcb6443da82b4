"""What operations do to rows before commit: locks, reservations, records (D3).

A row's lock word leads to its newest operation (an arena cell); the operation to its record in the transaction's
buffer. Nothing here changes what another transaction sees.
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.index.changes_kernels import promise_indexes, return_promises
from engine.index.index_layout import XL_COUNT
from engine.index.unique_changes_kernels import give_taken, lead_taken, row_place, take_entries, uniques_of
from engine.jit.kernel import helper
from engine.jit.words_kernels import move_words
from engine.log.own_images_kernels import is_image_away, newest_operation, own_fixed
from engine.log.redo_layout import (
    FLAG_DISK_KEPT,
    FLAG_VAR_KEPT,
    KIND_DELETE,
    KIND_INSERT,
    KIND_MASK,
    KIND_NOOP,
    KIND_UPDATE,
    OPERATION_WORDS,
    SCHEMA_VERSION_MASK,
    SCHEMA_VERSION_SHIFT,
    pack_identity,
    pack_kind,
    pack_rows,
)
from engine.memory.arena_layout import (
    AUTHOR_SHIFT,
    COUNT_SHIFT,
    ENTRY_WORDS,
    F_FIXED_WORDS,
    F_HAS_DISK,
    F_HAS_VAR,
    F_INDEXES,
    F_NUMBER,
    F_RESERVED_ROWS,
    F_SCHEMA_VERSION,
    F_TABLE,
    LCP_BIT,
    LOCK_MASK,
    LOCK_OP_MASK,
    LOCK_SHARED,
    O_BACK,
    O_FRAGMENT,
    O_NEXT,
    O_PREVIOUS,
    O_RECORD,
    O_ROWID,
    O_TXN,
    O_VAR,
    OK,
    OP_AUTHORED,
    OP_CANCELLED,
    OP_DISK_KEPT,
    OP_LOCK,
    OP_RECORD_SHIFT,
    RESERVED,
    ROW_HEADER_WORDS,
    ROWID_MASK,
    RUN_MAX,
    S_COPY_LIMIT,
    S_COPY_RESERVED,
    ST_COPIES,
    ST_MEMORY,
    ST_SPACE,
    ST_SPOOLED,
    STATE_MASK,
    STATE_SHIFT,
    VAR_WORDS_MASK,
    X_CHANGES,
    X_COPY_WORDS,
    X_FIRST,
    X_LAST,
    X_OPS,
    X_RUN,
    X_SAVEPOINTS,
    X_SPOOLED,
    X_TAIL_WORD,
    X_USED,
)
from engine.memory.pool_kernels import give_cell, take_cell
from engine.rows.primary_kernels import index_insert, index_remove
from engine.rows.rows_kernels import give_slot, known_row_address, take_slot
from engine.rows.side_pages_kernels import is_empty_var, make_side, set_var, var_of, words_of_var
from engine.rows.var_parts_kernels import give_var, take_var
from engine.txn.before_images_kernels import leave_before

INDEXED_RUN_MAX = 32  # rows of an insert record that a commit applies in one step, entries of indexes included

_pack_kind = helper(pack_kind)
_pack_identity = helper(pack_identity)
_pack_rows = helper(pack_rows)


@helper
def set_lock(mem, row, operation):
    """Point a row's lock at an operation (0 frees it); a mark that somebody waits stays while it is locked."""
    head = mem[row]
    if operation == 0:
        mem[row] = head & ~LOCK_MASK
    else:
        mem[row] = (head & ~LOCK_OP_MASK & ~LOCK_SHARED) | operation >> 3


@helper
def add_operation(mem, txn, fragment, rowid, record, previous):
    """Append an operation to a transaction; its address, 0 when memory is exhausted."""
    operation = take_cell(mem)
    if operation == 0:
        return 0
    mem[operation + O_NEXT] = 0
    mem[operation + O_BACK] = mem[txn + X_LAST]
    mem[operation + O_TXN] = txn
    mem[operation + O_FRAGMENT] = fragment
    mem[operation + O_ROWID] = rowid
    mem[operation + O_RECORD] = record | (OP_AUTHORED if mem[txn + X_TAIL_WORD] >> AUTHOR_SHIFT else 0)
    mem[operation + O_VAR] = 0
    mem[operation + O_PREVIOUS] = previous
    if mem[txn + X_LAST] != 0:
        mem[mem[txn + X_LAST] + O_NEXT] = operation
    else:
        mem[txn + X_FIRST] = operation
    mem[txn + X_LAST] = operation
    mem[txn + X_OPS] += 1
    mem[txn + X_RUN] = 0
    return operation


@helper
def lead_operation(mem, txn, fragment, rowid, record, previous):
    """`add_operation` for a row that is there; a mere lock becomes the operation, in its place, if no savepoint has
    begun since. Not where the order of operations on different rows counts: unique indexes, promises of UNDO.
    """
    lock = mem[txn + X_SAVEPOINTS] << OP_RECORD_SHIFT | OP_LOCK
    is_lock = previous != 0 and mem[previous + O_RECORD] & ~OP_AUTHORED == lock
    if not is_lock or mem[fragment + F_HAS_DISK] != 0 or uniques_of(mem, fragment) != 0:
        return add_operation(mem, txn, fragment, rowid, record, previous)
    mem[previous + O_RECORD] = record | (OP_AUTHORED if mem[txn + X_TAIL_WORD] >> AUTHOR_SHIFT else 0)
    mem[txn + X_RUN] = 0
    return previous


@helper
def write_record(mem, txn, buf, fragment, kind, flags, words, rowid, count):
    """Append a record header to the transaction's buffer; returns the record's offset."""
    at = mem[txn + X_USED]
    buf[at] = _pack_kind(kind, flags, words)
    buf[at + 1] = _pack_identity(mem[fragment + F_TABLE], mem[fragment + F_NUMBER], mem[fragment + F_SCHEMA_VERSION])
    buf[at + 2] = _pack_rows(rowid, count)
    buf[at + 3] = mem[txn + X_TAIL_WORD]
    mem[txn + X_USED] = at + words
    mem[txn + X_CHANGES] += 1
    return at


@helper
def image_words(images, at, fixed_words, has_var):
    """Words of a row image."""
    if has_var:
        return fixed_words + (images[at + fixed_words] & VAR_WORDS_MASK)
    return fixed_words


@helper
def promise_copy(mem, txn, words):
    """Promise room for a copy into a local checkpoint; OK or ST_COPIES. A lone transaction may exceed the limit; one
    that spools asks for copies slice by slice when it commits.
    """
    if mem[txn + X_SPOOLED] != 0:
        return OK
    others = mem[S_COPY_RESERVED] - mem[txn + X_COPY_WORDS]
    if others > 0 and mem[S_COPY_RESERVED] + words > mem[S_COPY_LIMIT]:
        return ST_COPIES
    mem[S_COPY_RESERVED] += words
    mem[txn + X_COPY_WORDS] += words
    return OK


@helper
def extend_run(mem, txn, buf, fragment, rowid, words):
    """Let the last insert record take one more row; returns its operation, 0 if it cannot."""
    operation = mem[txn + X_RUN]
    if operation == 0 or mem[operation + O_FRAGMENT] != fragment:
        return 0
    if mem[fragment + F_INDEXES] != 0 and mem[operation + O_ROWID] >> COUNT_SHIFT >= INDEXED_RUN_MAX:
        return 0
    made_by = buf[(mem[operation + O_RECORD] >> OP_RECORD_SHIFT) + 1] >> SCHEMA_VERSION_SHIFT
    if made_by & SCHEMA_VERSION_MASK != mem[fragment + F_SCHEMA_VERSION]:
        return 0  # its images may have another form
    first = mem[operation + O_ROWID] & ROWID_MASK
    count = mem[operation + O_ROWID] >> COUNT_SHIFT
    if count >= RUN_MAX or first + count != rowid or first >> 16 != rowid >> 16:
        return 0
    record = mem[operation + O_RECORD] >> OP_RECORD_SHIFT
    if buf[record + 3] != mem[txn + X_TAIL_WORD]:
        return 0
    buf[record] += words << 16
    buf[record + 2] += 1 << COUNT_SHIFT
    mem[operation + O_ROWID] += 1 << COUNT_SHIFT
    mem[txn + X_USED] += words
    return operation


@helper
def reserve_row(mem, txn, buf, fragment, tag, images, at, disk):
    """INSERT: `take_row`, and entries of the table's indexes promised or taken; OK or a status code."""
    if mem[fragment + F_INDEXES] != 0 and promise_indexes(mem, txn, fragment, 1) != OK:
        return ST_MEMORY
    indexes = uniques_of(mem, fragment)
    if indexes == 0:
        status = take_row(mem, txn, buf, fragment, tag, images, at, disk)
    else:
        status = take_entries(mem, txn, buf, indexes, fragment, images, at, 0)
        if status == OK:
            status = take_row(mem, txn, buf, fragment, tag, images, at, disk)
            if status == OK:
                lead_taken(mem, txn, indexes, fragment)
            else:
                give_taken(mem, indexes, mem[indexes + XL_COUNT], 0)
    if status != OK:
        return_promises(mem, txn, fragment, 1)
    return status


@helper
def take_row(mem, txn, buf, fragment, tag, images, at, disk):
    """Take slot, var part and index entry of a new row, write its record; OK or a status code.

    disk: words of the disk part behind the image, which the record carries too.
    """
    fixed = mem[fragment + F_FIXED_WORDS]
    has_var = mem[fragment + F_HAS_VAR]
    words = image_words(images, at, fixed, has_var) + disk
    if mem[txn + X_USED] + OPERATION_WORDS + words > buf.size:
        return ST_SPACE
    reference = 0
    if has_var and not is_empty_var(mem, fragment, words - disk - fixed):
        reference = take_var(mem, fragment, images, at + fixed, words - disk - fixed)
        if reference == 0:
            return ST_MEMORY
    rowid = take_slot(mem, fragment)
    if rowid < 0:
        give_var(mem, fragment, reference)
        return rowid
    row = known_row_address(mem, fragment, rowid)
    status = OK if reference == 0 else make_side(mem, fragment, row)
    if status == OK:
        status = index_insert(mem, fragment, tag, rowid)
    if status != OK:
        give_slot(mem, fragment, rowid, row)
        give_var(mem, fragment, reference)
        return status
    operation = extend_run(mem, txn, buf, fragment, rowid, words)
    if operation == 0:
        record = mem[txn + X_USED]
        operation = add_operation(
            mem, txn, fragment, rowid | 1 << COUNT_SHIFT, record << OP_RECORD_SHIFT | KIND_INSERT, 0
        )
        if operation == 0:
            index_remove(mem, fragment, tag, rowid)
            give_slot(mem, fragment, rowid, row)
            give_var(mem, fragment, reference)
            return ST_MEMORY
        write_record(mem, txn, buf, fragment, KIND_INSERT, 0, OPERATION_WORDS + words, rowid, 1)
        mem[txn + X_RUN] = operation
    image = mem[txn + X_USED] - words
    move_words(images, at, buf, image, words)
    mem[row] = (mem[row] & LCP_BIT) | RESERVED << STATE_SHIFT | operation >> 3
    # The image goes into the slot at once: nobody sees a RESERVED row, and the index compares keys in rows.
    move_words(images, at, mem, row + ROW_HEADER_WORDS, fixed)
    if has_var:
        set_var(mem, fragment, row, reference)
    mem[fragment + F_RESERVED_ROWS] += 1
    return OK


@helper
def change_row(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, record_flags):
    """UPDATE with an image, the image before in front of it if the table logs it; OK or a status code."""
    used = mem[txn + X_USED]
    again = leave_before(mem, txn, buf, fragment, rowid, row, record_flags & FLAG_DISK_KEPT)
    if again < 0:
        return again
    status = put_indexed(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, record_flags | again)
    if status != OK:
        mem[txn + X_USED] = used
    return status


@helper
def put_indexed(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, record_flags):
    """UPDATE with an image: `put_image`, and entries of the table's indexes promised or taken; OK or a status code."""
    if mem[fragment + F_INDEXES] != 0 and promise_indexes(mem, txn, fragment, 1) != OK:
        return ST_MEMORY
    indexes = uniques_of(mem, fragment)
    if indexes == 0:
        status = put_image(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, record_flags)
    else:
        place = row_place(mem, fragment, rowid)
        status = take_entries(mem, txn, buf, indexes, fragment, images, at, place)
        if status == OK:
            status = put_image(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, record_flags)
            if status != OK:
                give_taken(mem, indexes, mem[indexes + XL_COUNT], place)
    if status != OK:
        return_promises(mem, txn, fragment, 1)
    return status


@helper
def put_image(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, record_flags):
    """Lock a row, write its new var part aside and its record; OK or a status code.

    flags: of the operation. disk: words of the disk part behind the image, which the record carries too.
    """
    fixed = mem[fragment + F_FIXED_WORDS]
    has_var = mem[fragment + F_HAS_VAR]
    words = image_words(images, at, fixed, has_var) + disk
    if mem[txn + X_USED] + OPERATION_WORDS + words > buf.size:
        return ST_SPACE
    status = promise_copy(mem, txn, copy_words(mem, fragment, row))
    if status != OK:
        return status
    reference = 0
    if has_var and not is_empty_var(mem, fragment, words - disk - fixed):
        if make_side(mem, fragment, row) != OK:
            return ST_MEMORY
        reference = take_var(mem, fragment, images, at + fixed, words - disk - fixed)
        if reference == 0:
            return ST_MEMORY
    previous = newest_operation(mem[row])
    record = mem[txn + X_USED] << OP_RECORD_SHIFT | flags | KIND_UPDATE
    if record_flags & FLAG_DISK_KEPT:
        record |= OP_DISK_KEPT
    operation = lead_operation(mem, txn, fragment, rowid, record, previous)
    if operation == 0:
        give_var(mem, fragment, reference)
        return ST_MEMORY
    mem[operation + O_VAR] = reference
    record = write_record(mem, txn, buf, fragment, KIND_UPDATE, record_flags, OPERATION_WORDS + words, rowid, 1)
    move_words(images, at, buf, record + OPERATION_WORDS, words)
    set_lock(mem, row, operation)
    return OK


@helper
def copy_words(mem, fragment, row):
    """Words a copy of a committed row takes in a local checkpoint; 0 for a row nobody else has seen."""
    if (mem[row] >> STATE_SHIFT) & STATE_MASK == RESERVED:
        return 0
    words = ENTRY_WORDS + mem[fragment + F_FIXED_WORDS]
    if mem[fragment + F_HAS_VAR]:
        return words + words_of_var(mem, var_of(mem, fragment, row))
    return words + 1  # a header, should a local checkpoint begin behind the change that gives the table var parts


@helper
def touch_update(mem, txn, buf, fragment, rowid, row):
    """UPDATE of fixed columns, none of a unique index: image before, `put_current`, entries of indexes promised; OK or
    a status code.
    """
    used = mem[txn + X_USED]
    again = leave_before(mem, txn, buf, fragment, rowid, row, True)
    if again < 0:
        return again
    if mem[fragment + F_INDEXES] != 0 and promise_indexes(mem, txn, fragment, 1) != OK:
        mem[txn + X_USED] = used
        return ST_MEMORY
    status = put_current(mem, txn, buf, fragment, rowid, row, again)
    if status != OK:
        return_promises(mem, txn, fragment, 1)
        mem[txn + X_USED] = used
    return status


@helper
def put_current(mem, txn, buf, fragment, rowid, row, flags):
    """Lock a row, write a record with its current image, to be patched by the caller; OK or a status code. flags: of
    the record.
    """
    fixed = mem[fragment + F_FIXED_WORDS]
    if mem[txn + X_USED] + OPERATION_WORDS + fixed > buf.size:
        return ST_SPACE
    if is_image_away(mem, buf, row):
        return ST_SPOOLED
    status = promise_copy(mem, txn, copy_words(mem, fragment, row))
    if status != OK:
        return status
    in_buffer, source = own_fixed(mem, buf, row)
    previous = newest_operation(mem[row])
    operation = lead_operation(mem, txn, fragment, rowid, mem[txn + X_USED] << OP_RECORD_SHIFT | KIND_UPDATE, previous)
    if operation == 0:
        return ST_MEMORY
    if mem[fragment + F_HAS_VAR]:
        flags |= FLAG_VAR_KEPT
    if mem[fragment + F_HAS_DISK]:
        flags |= FLAG_DISK_KEPT
        mem[operation + O_RECORD] |= OP_DISK_KEPT
    record = write_record(mem, txn, buf, fragment, KIND_UPDATE, flags, OPERATION_WORDS + fixed, rowid, 1)
    if in_buffer:
        move_words(buf, source, buf, record + OPERATION_WORDS, fixed)
    else:
        move_words(mem, source, buf, record + OPERATION_WORDS, fixed)
    if mem[fragment + F_HAS_DISK]:
        buf[record + OPERATION_WORDS + fixed - 1] = 0  # nothing is planned for its disk part
    set_lock(mem, row, operation)
    return OK


@helper
def touch_delete(mem, txn, buf, fragment, rowid, row):
    """DELETE: image before, lock and record; OK or a status code."""
    used = mem[txn + X_USED]
    again = leave_before(mem, txn, buf, fragment, rowid, row, False)
    if again < 0:
        return again
    status = put_delete(mem, txn, buf, fragment, rowid, row, again)
    if status != OK:
        mem[txn + X_USED] = used
    return status


@helper
def put_delete(mem, txn, buf, fragment, rowid, row, flags):
    """Lock a row and write the record of its DELETE; OK or a status code."""
    if mem[txn + X_USED] + OPERATION_WORDS > buf.size:
        return ST_SPACE
    status = promise_copy(mem, txn, copy_words(mem, fragment, row))
    if status != OK:
        return status
    previous = newest_operation(mem[row])
    operation = lead_operation(mem, txn, fragment, rowid, mem[txn + X_USED] << OP_RECORD_SHIFT | KIND_DELETE, previous)
    if operation == 0:
        return ST_MEMORY
    write_record(mem, txn, buf, fragment, KIND_DELETE, flags, OPERATION_WORDS, rowid, 1)
    set_lock(mem, row, operation)
    if mem[fragment + F_INDEXES] != 0:
        promise_indexes(mem, txn, fragment, 0)
    return OK


@helper
def touch_lock(mem, txn, fragment, rowid, row):
    """Only lock a row; OK or ST_MEMORY."""
    if mem[row] & LOCK_OP_MASK:
        return OK
    operation = add_operation(mem, txn, fragment, rowid, mem[txn + X_SAVEPOINTS] << OP_RECORD_SHIFT | OP_LOCK, 0)
    if operation == 0:
        return ST_MEMORY
    set_lock(mem, row, operation)
    return OK


@helper
def take_back_delete(mem, buf, row):
    """An insert of a key this transaction deleted: the delete becomes nothing, the insert an update of its ROWID."""
    operation = newest_operation(mem[row])
    record = mem[operation + O_RECORD] >> OP_RECORD_SHIFT
    mem[operation + O_RECORD] |= OP_CANCELLED
    buf[record] = (buf[record] & ~KIND_MASK) | KIND_NOOP


@helper
def restore_delete(mem, buf, operation):
    """Undo `take_back_delete` on the DELETE operation."""
    record = mem[operation + O_RECORD] >> OP_RECORD_SHIFT
    mem[operation + O_RECORD] &= ~OP_CANCELLED
    buf[record] = (buf[record] & ~KIND_MASK) | KIND_DELETE


@helper
def drop_operation(mem, operation):
    """Give an operation's cell back."""
    give_cell(mem, operation)
