"""What operations do to rows with a disk part before commit: as `operations.py`, and pages and UNDO log promised (D3).

The plan of where a disk part will go stands in the last fixed word of the record's image, the place of the disk
reference: 0 in place, positive a page, negative a plan cell. A RESERVED row keeps there the offset of its disk part in
the buffer.
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.disk.cache_kernels import frame_of
from engine.disk.cache_layout import SLOT_BITS, TS_CACHE
from engine.disk.disk_layout import PIECE_HEADER_WORDS, UNDO_RECORD_WORDS
from engine.disk.parts_kernels import (
    chunks_of,
    part_on_page,
    plan_part,
    planned_page,
    promise_undo_of,
    restore_promise,
    unplan_part,
)
from engine.disk.undo_kernels import undo_promise
from engine.jit.kernel import helper, kernel
from engine.log.own_images_kernels import is_away, lock_owner, newest_operation, own_kind
from engine.log.records_kernels import record_has_var
from engine.log.redo_layout import (
    FLAG_DISK_KEPT,
    KIND_DELETE,
    KIND_INSERT,
    KIND_UPDATE,
    OPERATION_WORDS,
)
from engine.memory.arena_layout import (
    COUNT_SHIFT,
    F_DISK_WORDS,
    F_FIXED_WORDS,
    F_HAS_DISK,
    F_HAS_VAR,
    F_INDEX_BLOCKS,
    F_TABLESPACE,
    LOCK_MASK,
    MODE_BITS,
    MODE_MASK,
    MODE_UPDATE,
    MODE_UPDATE_KEPT,
    O_BACK,
    O_FRAGMENT,
    O_PREVIOUS,
    O_RECORD,
    O_ROWID,
    OK,
    OP_DISK_KEPT,
    OP_KIND_MASK,
    OP_RECORD_SHIFT,
    OP_REINSERT,
    ROW_HEADER_WORDS,
    ST_ALTERED,
    ST_DAMAGED,
    ST_DROPPED,
    ST_MISSING,
    ST_MORE,
    ST_PAGE,
    ST_SPACE,
    ST_SPOOLED,
    T_FIXED_WORDS,
    T_FORMAT,
    T_FRAGMENT_LIST,
    T_KEY_WORDS,
    T_SEED,
    TAG_BITS,
    TAG_MASK,
    VAR_WORDS_MASK,
    X_CURSOR,
    X_DISK,
    X_LAST,
    X_PAGE,
    X_ROW,
    X_UNDO_WORDS,
    X_USED,
)
from engine.memory.handles_kernels import descriptor_of
from engine.rows.primary_kernels import entry_rowid, image_key, index_find, tag_of
from engine.rows.rows_kernels import known_row_address
from engine.schema.partitions_kernels import fragment_of
from engine.txn.changes_kernels import (
    change_row,
    image_words,
    reserve_row,
    touch_delete,
)
from engine.txn.operations_kernels import busy, cancel_delete, meet_row, refused_status


@helper
def reference_at(mem, fragment, row):
    """Address of a row's disk reference: the last word of its fixed image."""
    return row + ROW_HEADER_WORDS + mem[fragment + F_FIXED_WORDS] - 1


@helper
def is_disk_kept(word):
    """Whether an operation's record, whose word O_RECORD this is, carries no disk part."""
    return word & OP_DISK_KEPT


@helper
def disk_operation(mem, row):
    """Its lock holder's newest operation on a row that has a disk part; 0 if there is none."""
    operation = newest_operation(mem[row])
    while operation != 0:
        word = mem[operation + O_RECORD]
        kind = word & OP_KIND_MASK
        if kind == KIND_INSERT or (kind == KIND_UPDATE and not is_disk_kept(word)):
            return operation
        operation = mem[operation + O_PREVIOUS]
    return 0


@helper
def own_disk(mem, buf, fragment, row):
    """Offset in its lock holder's buffer of a row's newest disk part; -1 if that lies on disk, or ST_SPOOLED."""
    operation = disk_operation(mem, row)
    if operation == 0:
        return -1
    if is_away(mem, buf, operation):
        return ST_SPOOLED
    word = mem[operation + O_RECORD]
    if word & OP_KIND_MASK == KIND_INSERT:
        return mem[reference_at(mem, fragment, row)]
    image = (word >> OP_RECORD_SHIFT) + OPERATION_WORDS
    return image + image_words(
        buf, image, mem[fragment + F_FIXED_WORDS], record_has_var(mem, fragment, buf[image - OPERATION_WORDS + 1])
    )


@helper
def current_part(mem, txn, buf, fragment, rowid, row):
    """A row's disk part as its lock holder, or everybody, sees it: (OK, its words, its page or 0), or (status, 0, 0).

    ST_PAGE and ST_DAMAGED leave the page in X_PAGE.
    """
    own = own_disk(mem, buf, fragment, row) if mem[row] & LOCK_MASK else -1
    if own >= 0:
        return OK, buf[own] & VAR_WORDS_MASK, 0
    if own == ST_SPOOLED:
        return ST_SPOOLED, 0, 0
    reference = mem[reference_at(mem, fragment, row)]
    page = reference >> SLOT_BITS
    if mem[fragment + F_DISK_WORDS] > 0:
        return OK, mem[fragment + F_DISK_WORDS] - PIECE_HEADER_WORDS, page
    mem[txn + X_PAGE] = page
    if frame_of(mem, mem[mem[fragment + F_TABLESPACE] + TS_CACHE], page) == 0:
        return ST_PAGE, 0, 0
    address, _, words, _, _ = part_on_page(mem, fragment, rowid, reference)
    if address == 0:
        return ST_DAMAGED, 0, 0
    return OK, words, page


@helper
def reserve_disk_row(mem, txn, buf, fragment, tag, images, at):
    """INSERT of a row with a disk part; OK or a status code."""
    fixed = mem[fragment + F_FIXED_WORDS]
    part = image_words(images, at, fixed, mem[fragment + F_HAS_VAR])
    disk = images[at + part] & VAR_WORDS_MASK
    if mem[txn + X_USED] + OPERATION_WORDS + part + disk > buf.size:
        return ST_SPACE
    status, plan = plan_part(mem, fragment, disk, 0)
    if status != OK:
        return status
    before = mem[txn + X_UNDO_WORDS]
    status = promise_undo_of(mem, txn, mem[fragment + F_TABLESPACE], disk, planned_page(mem, plan), False)
    if status == OK:
        status = reserve_row(mem, txn, buf, fragment, tag, images, at, disk)
    if status != OK:
        restore_promise(mem, txn, before)
        unplan_part(mem, fragment, disk, plan)
        return status
    image = mem[txn + X_USED] - part - disk
    buf[image + fixed - 1] = plan
    operation = mem[txn + X_LAST]
    rowid = (mem[operation + O_ROWID] & ((1 << COUNT_SHIFT) - 1)) + (mem[operation + O_ROWID] >> COUNT_SHIFT) - 1
    mem[reference_at(mem, fragment, known_row_address(mem, fragment, rowid))] = image + part
    mem[txn + X_DISK] += 1
    return OK


@helper
def change_disk_row(mem, txn, buf, fragment, rowid, row, images, at, flags, mode):
    """UPDATE of a row with a disk part; OK or a status code. MODE_UPDATE_KEPT: the image has none, it stays."""
    fixed = mem[fragment + F_FIXED_WORDS]
    space = mem[fragment + F_TABLESPACE]
    if mode == MODE_UPDATE_KEPT:
        status = change_row(mem, txn, buf, fragment, rowid, row, images, at, flags, 0, FLAG_DISK_KEPT)
        if status == OK:
            buf[newest_image(mem, row) + fixed - 1] = 0
        return status
    part = image_words(images, at, fixed, mem[fragment + F_HAS_VAR])
    disk = images[at + part] & VAR_WORDS_MASK
    if mem[txn + X_USED] + OPERATION_WORDS + part + disk > buf.size:
        return ST_SPACE
    status, current, page = current_part(mem, txn, buf, fragment, rowid, row)
    if status != OK:
        return status
    before = mem[txn + X_UNDO_WORDS]
    plan = 0
    if current == disk and chunks_of(mem, space, disk) == 0:
        status = undo_promise(mem, txn, UNDO_RECORD_WORDS + PIECE_HEADER_WORDS + disk, page)
    else:
        status, plan = plan_part(mem, fragment, disk, page)
        if status != OK:
            return status
        status = promise_undo_of(mem, txn, space, disk, planned_page(mem, plan), False)
        if status == OK:
            status = promise_undo_of(mem, txn, space, current, page, True)
    if status == OK:
        status = change_row(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, 0)
    if status != OK:
        restore_promise(mem, txn, before)
        unplan_part(mem, fragment, disk, plan)
        return status
    buf[newest_image(mem, row) + fixed - 1] = plan
    mem[txn + X_DISK] += 1
    return OK


@helper
def newest_image(mem, row):
    """Offset in its lock holder's buffer of the image of a row's newest operation."""
    return (mem[newest_operation(mem[row]) + O_RECORD] >> OP_RECORD_SHIFT) + OPERATION_WORDS


@helper
def put_disk_existing(mem, txn, buf, fragment, rowid, images, at, mode):
    """INSERT, WRITE or UPDATE of a key that has an index entry."""
    row = known_row_address(mem, fragment, rowid)
    flags = meet_row(mem, txn, fragment, rowid, row, mode)
    if flags < 0:
        return flags
    head = mem[row]
    if flags == OP_REINSERT and is_away(mem, buf, newest_operation(head)):
        return ST_SPOOLED
    status = change_disk_row(mem, txn, buf, fragment, rowid, row, images, at, flags, mode)
    if status == OK and flags == OP_REINSERT:
        cancel_delete(mem, buf, row, head)
    return status


@kernel(
    "int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64)"
)
def put_disk_rows(mem, table, txn, buf, images, offsets, order, hashes, start, stop, mode):
    """`put_rows` for a table with disk columns; `offsets` is never empty. X_PAGE is the page of ST_PAGE, ST_DAMAGED."""
    table = descriptor_of(mem, table)
    if table == 0:
        return ST_DROPPED
    if mode >> MODE_BITS != mem[table + T_FORMAT]:
        mem[txn + X_ROW] = start
        return ST_ALTERED
    mode &= MODE_MASK
    fixed = mem[table + T_FIXED_WORDS]
    held = mem[table + T_KEY_WORDS]
    fragments = mem[table + T_FRAGMENT_LIST]
    for position in range(start, stop):
        i = order[position] if order.size else position
        at = offsets[i]
        first, words = image_key(images, at, fixed, held)
        if hashes.size:
            tag = hashes[i] & TAG_MASK
            fragment = mem[fragments + (hashes[i] >> TAG_BITS)]
        else:
            tag = tag_of(images, first, words, mem[table + T_SEED])
            fragment = 0
        if fragment == 0:  # not looked for yet, or dropped since
            fragment = fragment_of(mem, table, images, first, words)
            if fragment == 0:
                mem[txn + X_ROW] = position
                return refused_status(mode)
        blocks = mem[fragment + F_INDEX_BLOCKS]
        entry = index_find(mem, fragment, tag, images, first, words)
        if entry != 0:
            status = put_disk_existing(mem, txn, buf, fragment, entry_rowid(mem, entry), images, at, mode)
        elif mode == MODE_UPDATE or mode == MODE_UPDATE_KEPT:
            status = ST_MISSING
        else:
            status = reserve_disk_row(mem, txn, buf, fragment, tag, images, at)
        mem[txn + X_ROW] = position
        if status != OK:
            return status
        if mem[fragment + F_INDEX_BLOCKS] != blocks and position + 1 < stop:
            mem[txn + X_ROW] = position + 1
            return ST_MORE
    mem[txn + X_ROW] = stop
    return OK


@helper
def delete_disk_row(mem, txn, buf, fragment, rowid):
    """DELETE of a row with a disk part; OK or a status code."""
    row = known_row_address(mem, fragment, rowid)
    head = mem[row]
    if head & LOCK_MASK:
        if lock_owner(mem, head) != txn:
            return busy(mem, txn, fragment, rowid, head)
        if own_kind(mem, row) == KIND_DELETE:
            return ST_MISSING
    status, current, page = current_part(mem, txn, buf, fragment, rowid, row)
    if status != OK:
        return status
    before = mem[txn + X_UNDO_WORDS]
    status = promise_undo_of(mem, txn, mem[fragment + F_TABLESPACE], current, page, True)
    if status == OK:
        status = touch_delete(mem, txn, buf, fragment, rowid, row)
    if status != OK:
        restore_promise(mem, txn, before)
        return status
    mem[txn + X_DISK] += 1
    return OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64, int64, int64)")
def delete_disk_rows(mem, table, txn, buf, keys, offsets, stride, start, stop):
    """`touch_rows` with MODE_DELETE for a table with disk columns."""
    table = descriptor_of(mem, table)
    if table == 0:
        return ST_DROPPED
    seed = mem[table + T_SEED]
    for i in range(start, stop):
        first = offsets[i] if offsets.size else i * stride
        words = offsets[i + 1] - first if offsets.size else stride
        fragment = fragment_of(mem, table, keys, first, words)
        entry = 0
        if fragment != 0:
            entry = index_find(mem, fragment, tag_of(keys, first, words, seed), keys, first, words)
        status = ST_MISSING
        if entry != 0:
            status = delete_disk_row(mem, txn, buf, fragment, entry_rowid(mem, entry))
        mem[txn + X_ROW] = i
        if status != OK:
            return status
    mem[txn + X_ROW] = stop
    return OK


@helper
def unplan_operation(mem, buf, operation):
    """Take back what one operation planned for disk parts; doing it again changes nothing. Rows it stood for, or
    ST_SPOOLED.
    """
    fragment = mem[operation + O_FRAGMENT]
    word = mem[operation + O_RECORD]
    kind = word & OP_KIND_MASK
    record = word >> OP_RECORD_SHIFT
    if mem[fragment + F_HAS_DISK] == 0 or (kind != KIND_INSERT and kind != KIND_UPDATE) or is_disk_kept(word):
        return 1
    if is_away(mem, buf, operation):
        return ST_SPOOLED
    fixed = mem[fragment + F_FIXED_WORDS]
    count = mem[operation + O_ROWID] >> COUNT_SHIFT if kind == KIND_INSERT else 1
    image = record + OPERATION_WORDS
    for _ in range(count):
        part = image + image_words(buf, image, fixed, record_has_var(mem, fragment, buf[record + 1]))
        disk = buf[part] & VAR_WORDS_MASK
        plan = buf[image + fixed - 1]
        buf[image + fixed - 1] = 0
        unplan_part(mem, fragment, disk, plan)
        image = part + disk
    return count


@kernel("int64(int64[::1], int64, int64[::1], int64, int64)")
def unplan_step(mem, txn, buf, until, budget):
    """Before a rollback: take back what operations newer than `until` (0: all) planned, about `budget` rows a call.

    OK when done, else ST_MORE or ST_SPOOLED; X_CURSOR keeps the place.
    """
    operation = mem[txn + X_CURSOR]
    if operation == 0:
        operation = mem[txn + X_LAST]
    done = 0
    while operation != 0 and operation != until:
        if done >= budget:
            mem[txn + X_CURSOR] = operation
            return ST_MORE
        rows = unplan_operation(mem, buf, operation)
        if rows == ST_SPOOLED:
            mem[txn + X_CURSOR] = operation
            return ST_SPOOLED
        done += rows
        operation = mem[operation + O_BACK]
    mem[txn + X_CURSOR] = 0
    return OK
