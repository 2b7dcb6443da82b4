"""Effects of operations on rows with a disk part before commit: as `changes_kernels.py`, plus reservations of pages and
UNDO log (D3).

The plan for a disk part is in the last fixed word of the record's image, where the row has its disk reference. 0: write
in place; positive: a page; negative: a plan cell. In a RESERVED row this word has the offset of its disk part in the
buffer.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.disk.cache_kernels import frame_of
from tidemark.engine.disk.parts_kernels import (
    chunks_of,
    part_on_page,
    plan_part,
    planned_page,
    reserve_undo_of,
    restore_reserved,
    unplan_part,
)
from tidemark.engine.disk.undo_kernels import undo_reserve
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import is_evicted, newest_operation
from tidemark.engine.log.records_kernels import record_has_var
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.txn.changes_kernels import (
    change_row,
    image_words,
    reserve_row,
    touch_delete,
)


@helper
def reference_at(mem, fragment, row):
    """Return the address of a row's disk reference: the last word of its fixed image."""
    return row + A.ROW_HEADER_WORDS + mem[fragment + A.F_FIXED_WORDS] - 1


@helper
def is_disk_kept(word):
    """Whether an operation's record has no disk part, given the word O_RECORD."""
    return word & A.OP_DISK_KEPT


@helper
def disk_operation(mem, row):
    """Return the newest operation with a disk part among those of a row's lock holder; 0 if there is none."""
    operation = newest_operation(mem[row])
    while operation != 0:
        word = mem[operation + A.O_RECORD]
        kind = word & A.OP_KIND_MASK
        if kind == L.KIND_INSERT or (kind == L.KIND_UPDATE and not is_disk_kept(word)):
            return operation
        operation = mem[operation + A.O_PREVIOUS]
    return 0


@helper
def own_disk(mem, buf, fragment, row):
    """Return the offset of a row's newest disk part in its lock holder's buffer; -1 if it is on disk, or ST_SPOOLED."""
    operation = disk_operation(mem, row)
    if operation == 0:
        return -1
    if is_evicted(mem, buf, operation):
        return A.ST_SPOOLED
    word = mem[operation + A.O_RECORD]
    if word & A.OP_KIND_MASK == L.KIND_INSERT:
        return mem[reference_at(mem, fragment, row)]
    image = (word >> A.OP_RECORD_SHIFT) + L.OPERATION_WORDS
    return image + image_words(
        buf, image, mem[fragment + A.F_FIXED_WORDS], record_has_var(mem, fragment, buf[image - L.OPERATION_WORDS + 1])
    )


@helper
def current_part(mem, txn, buf, fragment, rowid, row):
    """Return the disk part of a row as its lock holder sees it, or as committed if the row is not locked: (OK, its
    words, its page or 0), or (status, 0, 0).

    ST_PAGE and ST_DAMAGED store the page in X_PAGE.
    """
    own = own_disk(mem, buf, fragment, row) if mem[row] & A.LOCK_MASK else -1
    if own >= 0:
        return A.OK, buf[own] & A.VAR_WORDS_MASK, 0
    if own == A.ST_SPOOLED:
        return A.ST_SPOOLED, 0, 0
    reference = mem[reference_at(mem, fragment, row)]
    page = reference >> C.SLOT_BITS
    if mem[fragment + A.F_DISK_WORDS] > 0:
        return A.OK, mem[fragment + A.F_DISK_WORDS] - D.PIECE_HEADER_WORDS, page
    mem[txn + A.X_PAGE] = page
    if frame_of(mem, mem[mem[fragment + A.F_TABLESPACE] + C.TS_CACHE], page) == 0:
        return A.ST_PAGE, 0, 0
    address, _, words, _, _ = part_on_page(mem, fragment, rowid, reference)
    if address == 0:
        return A.ST_DAMAGED, 0, 0
    return A.OK, words, page


@helper
def plan_new(mem, txn, fragment, disk):
    """Reserve pages and UNDO log for a new disk part; return (OK, plan), or a status with nothing reserved."""
    status, plan = plan_part(mem, fragment, disk, 0)
    if status != A.OK:
        return status, 0
    before = mem[txn + A.X_UNDO_WORDS]
    status = reserve_undo_of(mem, txn, mem[fragment + A.F_TABLESPACE], disk, planned_page(mem, plan), False)
    if status != A.OK:
        restore_reserved(mem, txn, before)
        unplan_part(mem, fragment, disk, plan)
    return status, plan


@helper
def plan_changed(mem, txn, buf, fragment, rowid, row, disk):
    """Reserve space to replace the disk part of a row; return (OK, plan), or a status with nothing reserved."""
    space = mem[fragment + A.F_TABLESPACE]
    status, current, page = current_part(mem, txn, buf, fragment, rowid, row)
    if status != A.OK:
        return status, 0
    before = mem[txn + A.X_UNDO_WORDS]
    plan = 0
    if current == disk and chunks_of(mem, space, disk) == 0:
        status = undo_reserve(mem, txn, D.UNDO_RECORD_WORDS + D.PIECE_HEADER_WORDS + disk, page)
    else:
        status, plan = plan_part(mem, fragment, disk, page)
        if status != A.OK:
            return status, 0
        status = reserve_undo_of(mem, txn, space, disk, planned_page(mem, plan), False)
        if status == A.OK:
            status = reserve_undo_of(mem, txn, space, current, page, True)
    if status != A.OK:
        restore_reserved(mem, txn, before)
        unplan_part(mem, fragment, disk, plan)
    return status, plan


@helper
def reserve_disk_row(mem, txn, buf, fragment, tag, images, at):
    """Insert a row with a disk part; OK or a status code."""
    fixed = mem[fragment + A.F_FIXED_WORDS]
    part = image_words(images, at, fixed, mem[fragment + A.F_HAS_VAR])
    disk = images[at + part] & A.VAR_WORDS_MASK
    if mem[txn + A.X_USED] + L.OPERATION_WORDS + part + disk > buf.size:
        return A.ST_SPACE
    before = mem[txn + A.X_UNDO_WORDS]
    status, plan = plan_new(mem, txn, fragment, disk)
    if status != A.OK:
        return status
    status = reserve_row(mem, txn, buf, fragment, tag, images, at, disk)
    if status != A.OK:
        restore_reserved(mem, txn, before)
        unplan_part(mem, fragment, disk, plan)
        return status
    image = mem[txn + A.X_USED] - part - disk
    buf[image + fixed - 1] = plan
    operation = mem[txn + A.X_LAST]
    rowid = (
        (mem[operation + A.O_ROWID] & ((1 << A.COUNT_SHIFT) - 1)) + (mem[operation + A.O_ROWID] >> A.COUNT_SHIFT) - 1
    )
    mem[reference_at(mem, fragment, known_row_address(mem, fragment, rowid))] = image + part
    mem[txn + A.X_DISK] += 1
    return A.OK


@helper
def change_disk_row(mem, txn, buf, fragment, rowid, row, images, at, flags, mode):
    """Update a row with a disk part; OK or a status code. MODE_UPDATE_KEPT: the image has no disk part, and the old one
    stays.
    """
    fixed = mem[fragment + A.F_FIXED_WORDS]
    if mode == A.MODE_UPDATE_KEPT:
        status = change_row(mem, txn, buf, fragment, rowid, row, images, at, flags, 0, L.FLAG_DISK_KEPT)
        if status == A.OK:
            buf[newest_image(mem, row) + fixed - 1] = 0
        return status
    part = image_words(images, at, fixed, mem[fragment + A.F_HAS_VAR])
    disk = images[at + part] & A.VAR_WORDS_MASK
    if mem[txn + A.X_USED] + L.OPERATION_WORDS + part + disk > buf.size:
        return A.ST_SPACE
    before = mem[txn + A.X_UNDO_WORDS]
    status, plan = plan_changed(mem, txn, buf, fragment, rowid, row, disk)
    if status != A.OK:
        return status
    status = change_row(mem, txn, buf, fragment, rowid, row, images, at, flags, disk, 0)
    if status != A.OK:
        restore_reserved(mem, txn, before)
        unplan_part(mem, fragment, disk, plan)
        return status
    buf[newest_image(mem, row) + fixed - 1] = plan
    mem[txn + A.X_DISK] += 1
    return A.OK


@helper
def newest_image(mem, row):
    """Return the offset of the image of a row's newest operation in its lock holder's buffer."""
    return (mem[newest_operation(mem[row]) + A.O_RECORD] >> A.OP_RECORD_SHIFT) + L.OPERATION_WORDS


@helper
def delete_disk_row(mem, txn, buf, fragment, rowid, row):
    """Delete a row with a disk part, locked by no other transaction; OK or a status code."""
    status, current, page = current_part(mem, txn, buf, fragment, rowid, row)
    if status != A.OK:
        return status
    before = mem[txn + A.X_UNDO_WORDS]
    status = reserve_undo_of(mem, txn, mem[fragment + A.F_TABLESPACE], current, page, True)
    if status == A.OK:
        status = touch_delete(mem, txn, buf, fragment, rowid, row)
    if status != A.OK:
        restore_reserved(mem, txn, before)
        return status
    mem[txn + A.X_DISK] += 1
    return A.OK


@helper
def unplan_operation(mem, buf, operation):
    """Cancel one operation's plans for disk parts; return the number of its rows, or ST_SPOOLED. Idempotent."""
    fragment = mem[operation + A.O_FRAGMENT]
    word = mem[operation + A.O_RECORD]
    kind = word & A.OP_KIND_MASK
    record = word >> A.OP_RECORD_SHIFT
    if mem[fragment + A.F_HAS_DISK] == 0 or (kind != L.KIND_INSERT and kind != L.KIND_UPDATE) or is_disk_kept(word):
        return 1
    if is_evicted(mem, buf, operation):
        return A.ST_SPOOLED
    fixed = mem[fragment + A.F_FIXED_WORDS]
    count = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT if kind == L.KIND_INSERT else 1
    image = record + L.OPERATION_WORDS
    for _ in range(count):
        part = image + image_words(buf, image, fixed, record_has_var(mem, fragment, buf[record + 1]))
        disk = buf[part] & A.VAR_WORDS_MASK
        plan = buf[image + fixed - 1]
        buf[image + fixed - 1] = 0
        unplan_part(mem, fragment, disk, plan)
        image = part + disk
    return count


@kernel("int64(int64[::1], int64, int64[::1], int64, int64)")
def unplan_step(mem, txn, buf, until, budget):
    """Cancel, before a rollback, the plans of operations newer than `until` (0: all), about `budget` rows a call.

    OK when done, else ST_MORE or ST_SPOOLED; X_CURSOR keeps the position.
    """
    operation = mem[txn + A.X_CURSOR]
    if operation == 0:
        operation = mem[txn + A.X_LAST]
    done = 0
    while operation != 0 and operation != until:
        if done >= budget:
            mem[txn + A.X_CURSOR] = operation
            return A.ST_MORE
        rows = unplan_operation(mem, buf, operation)
        if rows == A.ST_SPOOLED:
            mem[txn + A.X_CURSOR] = operation
            return A.ST_SPOOLED
        done += rows
        operation = mem[operation + A.O_BACK]
    mem[txn + A.X_CURSOR] = 0
    return A.OK
