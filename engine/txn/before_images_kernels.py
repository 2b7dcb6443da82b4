"""Before-images: records of a logged table with rows as last committed (docs/internals/replication.md, *Capture*).

The first change of a row by a transaction is preceded by a record with the before-image; later changes carry FLAG_AGAIN
instead. The row is locked by then, so its slot has the committed image.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk.cache_kernels import frame_of
from tidemark.engine.disk.parts_kernels import part_on_page, read_chain
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import newest_operation
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.side_pages_kernels import put_var, var_of, words_of_var

# 256 KiB. A larger disk part is left out, as MySQL may leave out BLOBs, so that few pages must be in memory at once.
DISK_WORDS_MAX = 32_768
ANY_WORD = 1 << 62  # past every record

_pack_kind = helper(L.pack_kind)
_pack_identity = helper(L.pack_identity)
_pack_rows = helper(L.pack_rows)


@kernel("int64(int64[::1], int64, int64)")
def set_capture(mem, table, capture):
    """Set which before-images a table's operations log, a CAPTURE_ value; return the previous one, or ST_DROPPED."""
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    before = mem[table + A.T_CAPTURE]
    mem[table + A.T_CAPTURE] = capture
    for number in range(mem[table + A.T_FRAGMENTS]):
        fragment = mem[mem[table + A.T_FRAGMENT_LIST] + number]
        if fragment != 0:
            mem[fragment + A.F_CAPTURE] = capture
    return before


@helper
def has_change(mem, operation, until):
    """Whether a chain of operations on a row has a change whose record is before word `until` of the buffer."""
    while operation != 0:
        word = mem[operation + A.O_RECORD]
        if word & A.OP_KIND_MASK != A.OP_LOCK and word >> A.OP_RECORD_SHIFT < until:
            return True
        operation = mem[operation + A.O_PREVIOUS]
    return False


@helper
def is_changed(mem, row):
    """Whether the lock holder of a row has already changed it."""
    if (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK == A.RESERVED:
        return True
    return has_change(mem, newest_operation(mem[row]), ANY_WORD)


@helper
def lacks_disk_part(mem, fragment, row):
    """Whether all changes of a row by its lock holder kept the disk part, so that no before-image has it."""
    is_row = (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK != A.RESERVED
    if mem[fragment + A.F_HAS_DISK] == 0 or mem[fragment + A.F_CAPTURE] == A.CAPTURE_WHOLE or not is_row:
        return False
    operation = newest_operation(mem[row])
    while operation != 0:
        word = mem[operation + A.O_RECORD]
        if word & A.OP_KIND_MASK != A.OP_LOCK and not word & A.OP_DISK_KEPT:
            return False
        operation = mem[operation + A.O_PREVIOUS]
    return True


@helper
def log_before_image(mem, txn, buf, fragment, rowid, row, is_disk_kept):
    """Append the before-image of a row about to change, if its table logs them. Return flags for the record of the
    change, or, with nothing done, ST_SPACE, ST_PAGE or ST_DAMAGED (X_PAGE is the page).

    is_disk_kept: whether the change keeps the disk part. The first change that replaces it has a before-image with the
    disk part, even after other changes.
    """
    if mem[fragment + A.F_CAPTURE] == A.CAPTURE_NONE:
        return 0
    again = 0
    if is_changed(mem, row):
        if is_disk_kept or not lacks_disk_part(mem, fragment, row):
            return L.FLAG_AGAIN
        again = L.FLAG_AGAIN
    begin = mem[txn + A.X_USED]
    fixed = mem[fragment + A.F_FIXED_WORDS]
    reference = var_of(mem, fragment, row) if mem[fragment + A.F_HAS_VAR] else 0
    words = fixed + (words_of_var(mem, reference) if mem[fragment + A.F_HAS_VAR] else 0)
    image = begin + L.OPERATION_WORDS
    if image + words > buf.size:
        return A.ST_SPACE
    move_words(mem, row + A.ROW_HEADER_WORDS, buf, image, fixed)
    if mem[fragment + A.F_HAS_VAR]:
        put_var(mem, reference, buf, image + fixed)
    flags = 0
    if mem[fragment + A.F_HAS_DISK]:
        flags = L.FLAG_DISK_KEPT
        if not is_disk_kept or mem[fragment + A.F_CAPTURE] == A.CAPTURE_WHOLE:
            found = put_part(mem, txn, buf, fragment, rowid, row, image + words)
            if found < 0:
                return found
            if found > 0:
                words += found
                flags = 0
    buf[begin] = _pack_kind(L.KIND_BEFORE, flags, L.OPERATION_WORDS + words)
    head_record(mem, txn, buf, fragment, begin, rowid)
    mem[txn + A.X_USED] = image + words
    return again


@helper
def head_record(mem, txn, buf, fragment, at, rowid):
    """Write words 1 to 3 of a record about one row."""
    buf[at + 1] = _pack_identity(
        mem[fragment + A.F_TABLE], mem[fragment + A.F_NUMBER], mem[fragment + A.F_SCHEMA_VERSION]
    )
    buf[at + 2] = _pack_rows(rowid, 1)
    buf[at + 3] = mem[txn + A.X_TAIL_WORD]


@helper
def put_part(mem, txn, buf, fragment, rowid, row, at):
    """Copy a row's committed disk part to buf[at:]; return its words, 0 if it is too large, or a status code."""
    reference = mem[row + A.ROW_HEADER_WORDS + mem[fragment + A.F_FIXED_WORDS] - 1]
    space = mem[fragment + A.F_TABLESPACE]
    mem[txn + A.X_PAGE] = reference >> C.SLOT_BITS
    if frame_of(mem, mem[space + C.TS_CACHE], reference >> C.SLOT_BITS) == 0:
        return A.ST_PAGE
    address, here, words, link, stamp = part_on_page(mem, fragment, rowid, reference)
    if address == 0:
        return A.ST_DAMAGED
    if words > DISK_WORDS_MAX and here < words:
        return 0
    if at + words > buf.size:
        return A.ST_SPACE
    move_words(mem, address, buf, at, here)
    status, link, _ = read_chain(mem, fragment, rowid, link, stamp, buf, at + here, at + words, True)
    if status != A.OK:
        mem[txn + A.X_PAGE] = link >> C.SLOT_BITS
        return status
    return words


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64, int64)")
def note_rows(mem, fragment, txn, buf, images, offsets, chosen, start, stop, kind, flags):
    """Append a record of `kind`, which changes no row, for each image i of [start, stop) whose chosen[i] is not 0. OK,
    ST_SPACE or ST_DROPPED; X_ROW is the next row. offsets: one more than images.

    chosen[i] > 0: the record names fragment chosen[i] - 1 and is dropped with it. -1: it names `fragment`, which may
    be any of the table's.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    for i in range(start, stop):
        mem[txn + A.X_ROW] = i
        if chosen[i] == 0:
            continue
        at = mem[txn + A.X_USED]
        words = offsets[i + 1] - offsets[i]
        if at + L.OPERATION_WORDS + words > buf.size:
            return A.ST_SPACE
        buf[at] = _pack_kind(kind, flags, L.OPERATION_WORDS + words)
        head_record(mem, txn, buf, fragment, at, 0)
        if chosen[i] > 0:
            buf[at + 1] = _pack_identity(mem[fragment + A.F_TABLE], chosen[i] - 1, mem[fragment + A.F_SCHEMA_VERSION])
        move_words(images, offsets[i], buf, at + L.OPERATION_WORDS, words)
        mem[txn + A.X_USED] = at + L.OPERATION_WORDS + words
        mem[txn + A.X_CHANGES] += 1
        mem[txn + A.X_RUN] = 0
    mem[txn + A.X_ROW] = stop
    return A.OK
