"""Images before: what a logged table's records say of rows as they were committed (docs/replication.md, section 2).

The first change a transaction makes to a row is preceded by a record with the image before; a further one carries
FLAG_AGAIN instead. The row is locked by then, so what stands in it is what is committed.
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.disk.cache_kernels import frame_of
from engine.disk.cache_layout import SLOT_BITS, SLOT_MASK, TS_CACHE, TS_PAGE_WORDS
from engine.disk.disk_layout import PIECE_CHUNK, PIECE_ROWID_MASK
from engine.disk.page_kernels import page_piece, page_piece_words
from engine.disk.parts_kernels import LINKED_WORDS, chunk_words, part_on_page
from engine.jit.kernel import helper, kernel
from engine.jit.words_kernels import move_words
from engine.log.own_images_kernels import newest_operation
from engine.log.redo_layout import (
    FLAG_AGAIN,
    FLAG_DISK_KEPT,
    KIND_BEFORE,
    OPERATION_WORDS,
    pack_identity,
    pack_kind,
    pack_rows,
)
from engine.memory.arena_layout import (
    CAPTURE_NONE,
    CAPTURE_WHOLE,
    F_CAPTURE,
    F_FIXED_WORDS,
    F_HAS_DISK,
    F_HAS_VAR,
    F_NUMBER,
    F_SCHEMA_VERSION,
    F_TABLE,
    F_TABLESPACE,
    O_PREVIOUS,
    O_RECORD,
    OK,
    OP_DISK_KEPT,
    OP_KIND_MASK,
    OP_LOCK,
    RESERVED,
    ROW_HEADER_WORDS,
    ST_DAMAGED,
    ST_DROPPED,
    ST_PAGE,
    ST_SPACE,
    STATE_MASK,
    STATE_SHIFT,
    T_CAPTURE,
    T_FRAGMENT_LIST,
    T_FRAGMENTS,
    X_CHANGES,
    X_PAGE,
    X_ROW,
    X_RUN,
    X_TAIL_WORD,
    X_USED,
)
from engine.memory.handles_kernels import descriptor_of
from engine.rows.side_pages_kernels import put_var, var_of, words_of_var

# A larger disk part before is left out, as a server leaves out BLOBs: 256 KiB, few pages to have in memory at once.
DISK_WORDS_MAX = 32_768

_pack_kind = helper(pack_kind)
_pack_identity = helper(pack_identity)
_pack_rows = helper(pack_rows)


@kernel("int64(int64[::1], int64, int64)")
def set_capture(mem, table, capture):
    """Have a table's operations leave images before, or not: one of CAPTURE_. Returns what went before."""
    table = descriptor_of(mem, table)
    if table == 0:
        return ST_DROPPED
    before = mem[table + T_CAPTURE]
    mem[table + T_CAPTURE] = capture
    for number in range(mem[table + T_FRAGMENTS]):
        fragment = mem[mem[table + T_FRAGMENT_LIST] + number]
        if fragment != 0:
            mem[fragment + F_CAPTURE] = capture
    return before


@helper
def is_changed(mem, row):
    """Whether the lock holder of a row has changed it already."""
    if (mem[row] >> STATE_SHIFT) & STATE_MASK == RESERVED:
        return True
    operation = newest_operation(mem[row])
    while operation != 0:
        if mem[operation + O_RECORD] & OP_KIND_MASK != OP_LOCK:
            return True
        operation = mem[operation + O_PREVIOUS]
    return False


@helper
def lacks_disk_part(mem, fragment, row):
    """Whether all its lock holder has done to a row left the disk part alone, so that no image before has it."""
    is_row = (mem[row] >> STATE_SHIFT) & STATE_MASK != RESERVED
    if mem[fragment + F_HAS_DISK] == 0 or mem[fragment + F_CAPTURE] == CAPTURE_WHOLE or not is_row:
        return False
    operation = newest_operation(mem[row])
    while operation != 0:
        word = mem[operation + O_RECORD]
        if word & OP_KIND_MASK != OP_LOCK and not word & OP_DISK_KEPT:
            return False
        operation = mem[operation + O_PREVIOUS]
    return True


@helper
def leave_before(mem, txn, buf, fragment, rowid, row, is_disk_kept):
    """Before a row changes: append its image before, if its table logs them. Flags of the record to come, or, nothing
    done, ST_SPACE, ST_PAGE or ST_DAMAGED (X_PAGE is the page).

    is_disk_kept: the change leaves the disk part alone. The first that does not has an image before too, though others
    went before it: it is the one with the disk part.
    """
    if mem[fragment + F_CAPTURE] == CAPTURE_NONE:
        return 0
    again = 0
    if is_changed(mem, row):
        if is_disk_kept or not lacks_disk_part(mem, fragment, row):
            return FLAG_AGAIN
        again = FLAG_AGAIN
    begin = mem[txn + X_USED]
    fixed = mem[fragment + F_FIXED_WORDS]
    reference = var_of(mem, fragment, row) if mem[fragment + F_HAS_VAR] else 0
    words = fixed + (words_of_var(mem, reference) if mem[fragment + F_HAS_VAR] else 0)
    image = begin + OPERATION_WORDS
    if image + words > buf.size:
        return ST_SPACE
    move_words(mem, row + ROW_HEADER_WORDS, buf, image, fixed)
    if mem[fragment + F_HAS_VAR]:
        put_var(mem, reference, buf, image + fixed)
    flags = 0
    if mem[fragment + F_HAS_DISK]:
        flags = FLAG_DISK_KEPT
        if not is_disk_kept or mem[fragment + F_CAPTURE] == CAPTURE_WHOLE:
            found = put_part(mem, txn, buf, fragment, rowid, row, image + words)
            if found < 0:
                return found
            if found > 0:
                words += found
                flags = 0
    buf[begin] = _pack_kind(KIND_BEFORE, flags, OPERATION_WORDS + words)
    head_record(mem, txn, buf, fragment, begin, rowid)
    mem[txn + X_USED] = image + words
    return again


@helper
def head_record(mem, txn, buf, fragment, at, rowid):
    """Words 1 to 3 of a record about one row."""
    buf[at + 1] = _pack_identity(mem[fragment + F_TABLE], mem[fragment + F_NUMBER], mem[fragment + F_SCHEMA_VERSION])
    buf[at + 2] = _pack_rows(rowid, 1)
    buf[at + 3] = mem[txn + X_TAIL_WORD]


@helper
def put_part(mem, txn, buf, fragment, rowid, row, at):
    """Copy a row's committed disk part to buf[at:]: its words, 0 if it is too large to keep, or a status code."""
    reference = mem[row + ROW_HEADER_WORDS + mem[fragment + F_FIXED_WORDS] - 1]
    space = mem[fragment + F_TABLESPACE]
    mem[txn + X_PAGE] = reference >> SLOT_BITS
    if frame_of(mem, mem[space + TS_CACHE], reference >> SLOT_BITS) == 0:
        return ST_PAGE
    address, here, words, link, stamp = part_on_page(mem, fragment, rowid, reference)
    if address == 0:
        return ST_DAMAGED
    if words > DISK_WORDS_MAX and here < words:
        return 0
    if at + words > buf.size:
        return ST_SPACE
    move_words(mem, address, buf, at, here)
    status = put_chunks(mem, txn, buf, fragment, rowid, link, stamp, at + here, at + words)
    return words if status == OK else status


@helper
def put_chunks(mem, txn, buf, fragment, rowid, link, stamp, at, stop):
    """Copy the chunks that `link` leads to into buf[at:stop]; OK, ST_PAGE or ST_DAMAGED (X_PAGE is the page)."""
    space = mem[fragment + F_TABLESPACE]
    size = chunk_words(mem, space)
    while at < stop:
        if link == 0 or at + size > stop:
            return ST_DAMAGED
        mem[txn + X_PAGE] = link >> SLOT_BITS
        frame = frame_of(mem, mem[space + TS_CACHE], link >> SLOT_BITS)
        if frame == 0:
            return ST_PAGE
        piece = page_piece(mem, frame, mem[space + TS_PAGE_WORDS], link & SLOT_MASK)
        if piece == 0 or mem[piece] & PIECE_CHUNK == 0:
            return ST_DAMAGED
        found = page_piece_words(mem, frame, mem[space + TS_PAGE_WORDS], link & SLOT_MASK)
        if found != LINKED_WORDS + size or mem[piece] & PIECE_ROWID_MASK != rowid or mem[piece + 2] != stamp:
            return ST_DAMAGED
        move_words(mem, piece + LINKED_WORDS, buf, at, size)
        at += size
        link = mem[piece + 1]
    return OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64, int64)")
def note_rows(mem, fragment, txn, buf, images, offsets, chosen, start, stop, kind, flags):
    """Append a record that changes no row, KIND_REFRESH, for each of the images [start, stop) that chosen[] is not 0
    for; `offsets` has one more. OK, or ST_SPACE; X_ROW is the next row.

    It names the fragment chosen[] is one more than, whose drop it goes with; `fragment`, any of the table, for -1.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return ST_DROPPED
    for i in range(start, stop):
        mem[txn + X_ROW] = i
        if chosen[i] == 0:
            continue
        at = mem[txn + X_USED]
        words = offsets[i + 1] - offsets[i]
        if at + OPERATION_WORDS + words > buf.size:
            return ST_SPACE
        buf[at] = _pack_kind(kind, flags, OPERATION_WORDS + words)
        head_record(mem, txn, buf, fragment, at, 0)
        if chosen[i] > 0:
            buf[at + 1] = _pack_identity(mem[fragment + F_TABLE], chosen[i] - 1, mem[fragment + F_SCHEMA_VERSION])
        move_words(images, offsets[i], buf, at + OPERATION_WORDS, words)
        mem[txn + X_USED] = at + OPERATION_WORDS + words
        mem[txn + X_CHANGES] += 1
        mem[txn + X_RUN] = 0
    mem[txn + X_ROW] = stop
    return OK
