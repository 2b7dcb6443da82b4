"""Commit of transactions that change disk parts: as `commit_kernels.py`, on pages that the caller has pinned (D3, D7).

Row and page change in one kernel call, so a reader sees either both old or both new. A slice may end after any row and
after any chunk; X_PIECE, X_CHUNK, X_LINK and X_FREEING keep the position between calls.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.disk.cache_kernels import cache_of, frame_of, owner_of
from tidemark.engine.disk.page_kernels import page_piece
from tidemark.engine.disk.parts_kernels import (
    drop_chunks,
    drop_first_piece,
    is_at_hand,
    planned_page,
    replace_piece,
    write_chunks,
    write_first_piece,
)
from tidemark.engine.disk.space_kernels import space_is_fresh, space_word
from tidemark.engine.disk.undo_kernels import undo_has_room
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import is_away
from tidemark.engine.log.records_kernels import record_has_var
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.rows.side_pages_kernels import var_of
from tidemark.engine.rows.var_parts_kernels import var_words
from tidemark.engine.txn.changes_kernels import drop_operation, image_words
from tidemark.engine.txn.commit_kernels import (
    COMMIT_WOKEN,
    apply_delete,
    apply_insert,
    apply_update,
    author_of,
    finish,
    log_records,
    not_passed,
    release_lock,
    release_row,
    stamp,
)
from tidemark.engine.txn.disk_changes_kernels import is_disk_kept, reference_at
from tidemark.engine.txn.versions_kernels import await_part


# --- which pages ----------------------------------------------------------------------------------
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
    """Add the pages of old chunks as far as they can be followed; 1 if there are more."""
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
    needed, ST_SPOOLED if a record must be brought back first.
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
            if has_part and is_away(mem, buf, operation):
                # Only the first operation may request its record: bringing a later one could evict the first again.
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
def are_at_hand(mem, out):
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


# --- applying -------------------------------------------------------------------------------------
@helper
def apply_disk_insert(mem, txn, buf, operation, epoch, author):
    """Write the disk parts of an insert run and make its rows live, one by one; OK or the status that stopped it."""
    if is_away(mem, buf, operation):
        return A.ST_SPOOLED
    fragment = mem[operation + A.O_FRAGMENT]
    fixed = mem[fragment + A.F_FIXED_WORDS]
    count = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
    while mem[txn + A.X_PIECE] < count:
        rowid = (mem[operation + A.O_ROWID] & A.ROWID_MASK) + mem[txn + A.X_PIECE]
        row = known_row_address(mem, fragment, rowid)
        where = reference_at(mem, fragment, row)
        at = mem[where]
        plan = buf[insert_image(mem, fragment, row) + fixed - 1]
        words = buf[at] & A.VAR_WORDS_MASK
        if plan < 0:
            status = write_chunks(mem, txn, fragment, rowid, plan, buf, at, words, epoch)
            if status != A.OK:
                return status
        status = is_at_hand(mem, txn, fragment, planned_page(mem, plan), 0)
        if status != A.OK:
            return status
        reference = write_first_piece(mem, fragment, rowid, plan, buf, at, words, epoch)
        if reference == 0:
            return A.ST_INVARIANT
        mem[where] = reference
        stamp(mem, txn, row, A.LIVE, epoch, author)
        if not_passed(mem, fragment, rowid):
            mem[row] |= A.LCP_BIT
        release_row(mem, txn, row, operation)
        mem[fragment + A.F_ROWS] += 1
        mem[fragment + A.F_RESERVED_ROWS] -= 1
        mem[txn + A.X_CHUNK] = 0
        mem[txn + A.X_PIECE] += 1
    mem[txn + A.X_PIECE] = 0
    return A.OK


@helper
def prepare_disk_update(mem, txn, buf, operation, epoch):
    """Prepare to replace a row and its disk part: write new chunks, check pages, UNDO room and snapshots. OK, or the
    status to settle first.
    """
    record = mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT
    fragment = mem[operation + A.O_FRAGMENT]
    space = mem[fragment + A.F_TABLESPACE]
    fixed = mem[fragment + A.F_FIXED_WORDS]
    rowid = mem[operation + A.O_ROWID] & A.ROWID_MASK
    old = mem[reference_at(mem, fragment, known_row_address(mem, fragment, rowid))]
    image = record + L.OPERATION_WORDS
    plan = buf[image + fixed - 1]
    if plan < 0:
        at = image + image_words(buf, image, fixed, record_has_var(mem, fragment, buf[record + 1]))
        status = write_chunks(mem, txn, fragment, rowid, plan, buf, at, buf[at] & A.VAR_WORDS_MASK, epoch)
        if status != A.OK:
            return status
    status = is_at_hand(mem, txn, fragment, old >> C.SLOT_BITS, mem[space + C.TS_PAYLOAD])
    if status == A.OK and plan != 0:
        status = is_at_hand(mem, txn, fragment, planned_page(mem, plan), 0)
        if status == A.OK and not undo_has_room(mem, 2 * D.UNDO_RECORD_WORDS + mem[space + C.TS_PAYLOAD]):
            status = A.ST_UNDO
    if status == A.OK:
        status = await_part(mem, txn, fragment, rowid, known_row_address(mem, fragment, rowid))
    return status


@helper
def finish_disk_update(mem, txn, buf, operation, epoch):
    """Replace the disk part of a row that has its after-image and still the old reference; OK or the status that
    stopped it.
    """
    fragment = mem[operation + A.O_FRAGMENT]
    fixed = mem[fragment + A.F_FIXED_WORDS]
    rowid = mem[operation + A.O_ROWID] & A.ROWID_MASK
    where = reference_at(mem, fragment, known_row_address(mem, fragment, rowid))
    old = mem[where]
    image = (mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT) + L.OPERATION_WORDS
    has_var = record_has_var(mem, fragment, buf[image - L.OPERATION_WORDS + 1])
    at = image + image_words(buf, image, fixed, has_var)
    words = buf[at] & A.VAR_WORDS_MASK
    plan = buf[image + fixed - 1]
    mem[txn + A.X_CHUNK] = 0
    if plan == 0:
        return replace_piece(mem, fragment, old, buf, at, words, epoch)
    mem[where] = write_first_piece(mem, fragment, rowid, plan, buf, at, words, epoch)
    if mem[where] == 0 or drop_first_piece(mem, txn, fragment, old, epoch) != A.OK:
        return A.ST_INVARIANT
    return drop_chunks(mem, txn, fragment, epoch)


@helper
def apply_disk_update(mem, txn, buf, operation, epoch, author, copies):
    """Replace a row and its disk part; OK or the status that stopped it."""
    if is_disk_kept(mem[operation + A.O_RECORD]):
        return apply_update(mem, txn, buf, operation, epoch, author, copies)
    if mem[txn + A.X_FREEING]:
        return drop_chunks(mem, txn, mem[operation + A.O_FRAGMENT], epoch)
    if is_away(mem, buf, operation):
        return A.ST_SPOOLED
    status = prepare_disk_update(mem, txn, buf, operation, epoch)
    if status == A.OK:
        status = apply_update(mem, txn, buf, operation, epoch, author, copies)
    if status != A.OK:
        return status
    return finish_disk_update(mem, txn, buf, operation, epoch)


@helper
def prepare_disk_delete(mem, txn, operation):
    """Prepare to remove a row and its disk part; returns (OK or the status to settle first, the disk reference)."""
    fragment = mem[operation + A.O_FRAGMENT]
    rowid = mem[operation + A.O_ROWID] & A.ROWID_MASK
    row = known_row_address(mem, fragment, rowid)
    old = mem[reference_at(mem, fragment, row)]
    status = is_at_hand(mem, txn, fragment, old >> C.SLOT_BITS, mem[mem[fragment + A.F_TABLESPACE] + C.TS_PAYLOAD])
    if status == A.OK:
        status = await_part(mem, txn, fragment, rowid, row)
    return status, old


@helper
def finish_disk_delete(mem, txn, fragment, old, epoch):
    """Remove the disk part at `old` of a row already removed; OK or the status that stopped it."""
    if drop_first_piece(mem, txn, fragment, old, epoch) != A.OK:
        return A.ST_INVARIANT
    return drop_chunks(mem, txn, fragment, epoch)


@helper
def apply_disk_delete(mem, txn, operation, epoch, author, copies):
    """Remove a row and its disk part; OK or the status that stopped it."""
    fragment = mem[operation + A.O_FRAGMENT]
    if mem[txn + A.X_FREEING]:
        return drop_chunks(mem, txn, fragment, epoch)
    status, old = prepare_disk_delete(mem, txn, operation)
    if status == A.OK:
        status = apply_delete(mem, txn, operation, epoch, author, copies)
    if status != A.OK:
        return status
    return finish_disk_delete(mem, txn, fragment, old, epoch)


@helper
def apply_one(mem, txn, buf, operation, epoch, author, copies):
    """Apply one operation of a transaction that changes disk parts; OK or the status that stopped it."""
    word = mem[operation + A.O_RECORD]
    kind = word & A.OP_KIND_MASK
    fragment = mem[operation + A.O_FRAGMENT]
    has_disk = mem[fragment + A.F_HAS_DISK]
    if kind == L.KIND_INSERT:
        if has_disk:
            return apply_disk_insert(mem, txn, buf, operation, epoch, author)
        apply_insert(mem, txn, operation, epoch, author)
        return A.OK
    if kind == L.KIND_UPDATE:
        if has_disk:
            return apply_disk_update(mem, txn, buf, operation, epoch, author, copies)
        return apply_update(mem, txn, buf, operation, epoch, author, copies)
    if kind == L.KIND_DELETE:
        if word & A.OP_CANCELLED:
            return A.OK
        if has_disk:
            return apply_disk_delete(mem, txn, operation, epoch, author, copies)
        return apply_delete(mem, txn, operation, epoch, author, copies)
    return release_lock(mem, txn, operation)


@helper
def apply_disk_operations(mem, txn, buf, copies, epoch, budget):
    """Apply operations from X_CURSOR on: OK when all are applied, ST_MORE after `budget` of them, or another status."""
    operation = mem[txn + A.X_CURSOR]
    done = 0
    while operation != 0:
        if done >= budget:
            return A.ST_MORE
        author = author_of(mem, txn, mem[operation + A.O_RECORD])
        status = apply_one(mem, txn, buf, operation, epoch, author, copies)
        if status != A.OK:
            return status
        after = mem[operation + A.O_NEXT]
        drop_operation(mem, operation)
        operation = after
        mem[txn + A.X_CURSOR] = operation
        done += 1
    finish(mem, txn)
    return A.OK


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64, int64)")
def commit_disk(mem, txn, buf, fill, copies, epoch, txid):
    """Like `commit_small`, for a transaction whose pages, all listed by `commit_pages`, are pinned.

    Also ST_UNDO, with nothing done: the UNDO buffer must be flushed first.
    """
    return commit_on_pages(mem, txn, buf, fill, copies, epoch, txid)


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64, int64, int64[::1])")
def commit_at_hand(mem, txn, buf, fill, copies, epoch, txid, out):
    """Like `commit_disk`, if all pages are in memory; without pins, since no other thread runs until the call ends.
    ST_PAGE, with nothing done, if a page is missing, if pages or operations exceed the room of `out` after its first
    word, or if there is no other room.
    """
    if mem[txn + A.X_OPS] >= out.size or list_pages(mem, txn, buf, out) != A.OK or are_at_hand(mem, out) == 0:
        return A.ST_PAGE
    status = commit_on_pages(mem, txn, buf, fill, copies, epoch, txid)
    return status if status >= 0 or status == A.ST_INVARIANT else A.ST_PAGE


@helper
def commit_on_pages(mem, txn, buf, fill, copies, epoch, txid):
    """Commit on pages that cannot be evicted; see `commit_disk`."""
    if not undo_has_room(mem, mem[txn + A.X_UNDO_WORDS]):
        return A.ST_UNDO
    logged = log_records(mem, txn, buf, fill, copies, txid)
    if logged < 0:
        return logged
    mem[txn + A.X_CURSOR] = mem[txn + A.X_FIRST]
    if apply_disk_operations(mem, txn, buf, copies, epoch, 1 << 60) != A.OK:
        return A.ST_INVARIANT
    return logged + (COMMIT_WOKEN if mem[txn + A.X_WOKEN] > 0 else 0)


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64, int64)")
def commit_disk_step(mem, txn, buf, copies, epoch, budget):
    """Apply one slice of a large commit with disk parts; OK when done, ST_MORE, ST_PAGE, ST_UNDO, ST_SPOOLED, or
    ST_INVARIANT.
    """
    return apply_disk_operations(mem, txn, buf, copies, epoch, budget)
