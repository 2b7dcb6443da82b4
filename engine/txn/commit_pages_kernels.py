"""The pages of disk columns that a commit needs, listed so that the caller can load and pin them (D3, D7)."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.disk.cache_kernels import cache_of, frame_of, owner_of
from tidemark.engine.disk.page_kernels import page_piece
from tidemark.engine.disk.parts_kernels import planned_page
from tidemark.engine.disk.space_kernels import space_is_fresh, space_word
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import is_evicted
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.rows.side_pages_kernels import var_of
from tidemark.engine.rows.var_parts_kernels import var_words
from tidemark.engine.txn.disk_changes_kernels import is_disk_kept, reference_at


@helper
def add_page(out, page):
    """Add a page to the list unless it was the last one added; 1 if there is no room."""
    count = out[0]
    if count > 0 and out[count] == page:
        return 0
    if count + 1 >= out.size:
        return 1
    out[count + 1] = page
    out[0] = count + 1
    return 0


@helper
def add_planned(mem, txn, plan, is_begun, out):
    """Add the target pages of a planned disk part; 1 if there is no room for all."""
    if plan < 0:
        chunk = mem[C.PL_CHUNK - plan]
        if is_begun and mem[txn + A.X_CHUNK] > 0:
            chunk = mem[txn + A.X_LINK]
        while chunk != 0:
            if add_page(out, chunk):
                return 1
            chunk = mem[C.OP_CHAIN - mem[space_word(mem, chunk)]]
    return add_page(out, planned_page(mem, plan))


@helper
def add_chunks(mem, fragment, link, out):
    """Add the pages of old chunks, up to the first that is not in memory or does not fit; 1 if there are more."""
    space = mem[fragment + A.F_TABLESPACE]
    while link != 0:
        if add_page(out, link >> C.SLOT_BITS):
            return 1
        frame = frame_of(mem, mem[space + C.TS_CACHE], link >> C.SLOT_BITS)
        if frame == 0:
            return 1
        piece = page_piece(mem, frame, mem[space + C.TS_PAGE_WORDS], link & C.SLOT_MASK)
        link = mem[piece + 1] if piece != 0 else 0
    return 0


@helper
def add_old(mem, fragment, reference, out):
    """Add the pages of a disk part that will be freed; 1 if there are more."""
    space = mem[fragment + A.F_TABLESPACE]
    if add_page(out, reference >> C.SLOT_BITS):
        return 1
    if mem[fragment + A.F_DISK_WORDS] >= 0:
        return 0  # no part of this table is chained
    frame = frame_of(mem, mem[space + C.TS_CACHE], reference >> C.SLOT_BITS)
    if frame == 0:
        return 1
    piece = page_piece(mem, frame, mem[space + C.TS_PAGE_WORDS], reference & C.SLOT_MASK)
    if piece == 0 or not mem[piece] & D.PIECE_CHAINED:
        return 0
    return add_chunks(mem, fragment, mem[piece + 1], out)


@helper
def add_inserted(mem, txn, buf, operation, begun, out):
    """Add the pages of an insert run from row `begun` on; 1 if there is no room for all."""
    fragment = mem[operation + A.O_FRAGMENT]
    fixed = mem[fragment + A.F_FIXED_WORDS]
    count = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
    row = known_row_address(mem, fragment, (mem[operation + A.O_ROWID] & A.ROWID_MASK) + begun)
    for number in range(begun, count):
        image = insert_image(mem, fragment, row)
        if add_planned(mem, txn, buf[image + fixed - 1], number == begun and begun == mem[txn + A.X_PIECE], out):
            return 1
        row += mem[fragment + A.F_ROW_WORDS]
    return 0


@helper
def insert_image(mem, fragment, row):
    """Return the offset in the buffer of the image of a RESERVED row, whose reference word points to its disk part."""
    part = mem[reference_at(mem, fragment, row)]
    reference = var_of(mem, fragment, row) if mem[fragment + A.F_HAS_VAR] else 0
    if reference != 0:
        part -= var_words(mem, reference)
    return part - mem[fragment + A.F_FIXED_WORDS]


@helper
def list_pages(mem, txn, buf, out):
    """List the pages that the commit needs next in out[1 : 1 + out[0]]. OK if these are all, ST_MORE if more will be
    needed, ST_SPOOLED if an evicted record must be read first.
    """
    out[0] = 0
    is_begun = mem[txn + A.X_STATE] == 3
    operation = mem[txn + A.X_CURSOR] if is_begun else mem[txn + A.X_FIRST]
    is_first = is_begun
    while operation != 0:
        fragment = mem[operation + A.O_FRAGMENT]
        word = mem[operation + A.O_RECORD]
        kind = word & A.OP_KIND_MASK
        record = word >> A.OP_RECORD_SHIFT
        more = 0
        if mem[fragment + A.F_HAS_DISK]:
            has_part = kind == L.KIND_INSERT or (kind == L.KIND_UPDATE and not is_disk_kept(word))
            if has_part and is_evicted(mem, buf, operation):
                # Only the first operation may request its record: reading a later one could evict the first again.
                return A.ST_SPOOLED if operation == mem[txn + A.X_CURSOR] else A.ST_MORE
            if is_first and mem[txn + A.X_FREEING]:
                more = add_chunks(mem, fragment, mem[txn + A.X_LINK], out)
            elif kind == L.KIND_INSERT:
                more = add_inserted(mem, txn, buf, operation, mem[txn + A.X_PIECE] if is_first else 0, out)
            elif (kind == L.KIND_UPDATE and not is_disk_kept(word)) or (
                kind == L.KIND_DELETE and not word & A.OP_CANCELLED
            ):
                row = known_row_address(mem, fragment, mem[operation + A.O_ROWID] & A.ROWID_MASK)
                reference = mem[reference_at(mem, fragment, row)]
                plan = 0
                if kind == L.KIND_UPDATE:
                    plan = buf[record + L.OPERATION_WORDS + mem[fragment + A.F_FIXED_WORDS] - 1]
                    if plan != 0:
                        more = add_planned(mem, txn, plan, is_first, out)
                if more == 0 and is_placed(mem, row):
                    more = (
                        add_old(mem, fragment, reference, out)
                        if plan or kind == L.KIND_DELETE
                        else add_page(out, reference >> C.SLOT_BITS)
                    )
        if more:
            return A.ST_MORE
        is_first = False
        operation = mem[operation + A.O_NEXT]
    return A.OK


@kernel("int64(int64[::1], int64, int64[::1], int64[::1])")
def commit_pages(mem, txn, buf, out):
    """List the pages that the commit needs next, see `list_pages`."""
    return list_pages(mem, txn, buf, out)


@helper
def are_in_memory(mem, out):
    """Return 1 if all pages of out[1 : 1 + out[0]] are in memory and none would have to be formatted."""
    for i in range(1, 1 + out[0]):
        frame = frame_of(mem, cache_of(mem, out[i]), out[i])
        if frame == 0 or (space_is_fresh(mem, out[i]) and mem[frame + D.DP_OWNER] != owner_of(mem, out[i])):
            return 0
    return 1


@helper
def is_placed(mem, row):
    """Whether a row has a valid disk reference: a row inserted by this transaction has none until its insert is
    applied.
    """
    return (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK == A.LIVE
