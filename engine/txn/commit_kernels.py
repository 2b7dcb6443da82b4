"""The commit: a transaction's records into the log, its operations into rows, indexes and disk parts (D3, D6, D7).

Nothing here can fail for lack of space: the operations have reserved every slot, index entry, var part, page and copy.
Row, entries and disk part change in one kernel call, so a reader sees either all old or all new.

indexes, disk: 1 if operations may change indexes, or disk parts, else None. numba drops the branches on a None, so
this one source is compiled for rows in memory alone (slices only), with indexes, and with both.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.disk.cache_kernels import frame_of
from tidemark.engine.disk.page_kernels import page_piece_words
from tidemark.engine.disk.parts_kernels import (
    drop_chunks,
    drop_first_piece,
    is_in_memory,
    planned_page,
    replace_piece,
    write_chunks,
    write_first_piece,
)
from tidemark.engine.disk.undo_kernels import undo_has_room, undo_release
from tidemark.engine.index import index_layout as X
from tidemark.engine.index.changes_kernels import (
    add_entries,
    entries_of,
    release_index_entries,
    remove_changed,
    remove_entries,
)
from tidemark.engine.index.unique_changes_kernels import remove_of_row, remove_replaced
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import is_evicted, newest_operation
from tidemark.engine.log.records_kernels import record_has_var
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.pool_kernels import free_cell
from tidemark.engine.rows.lcp_kernels import write_lcp_entry
from tidemark.engine.rows.primary_kernels import index_remove, row_tag
from tidemark.engine.rows.rows_kernels import free_slot, known_row_address
from tidemark.engine.rows.side_pages_kernels import set_var, var_of, words_of_var
from tidemark.engine.rows.ticks_kernels import note_change, take_tick, tick_of_slice
from tidemark.engine.rows.var_parts_kernels import free_var
from tidemark.engine.txn.changes_kernels import image_words
from tidemark.engine.txn.commit_pages_kernels import are_in_memory, insert_image, list_pages
from tidemark.engine.txn.delete_log_kernels import note_delete
from tidemark.engine.txn.disk_changes_kernels import is_disk_kept, reference_at
from tidemark.engine.txn.versions_kernels import await_part, keep_version

_pack_kind = helper(L.pack_kind)

COMMIT_LOGGED = 1
COMMIT_WOKEN = 2
# A larger commit is applied in slices, so that no kernel call holds the GIL too long.
SMALL_OPERATIONS = 1_000
SMALL_ENTRIES = 160
SMALL_WORDS = 32_768  # a larger buffer becomes its own REDO group instead of being copied into the filling one
FILL_PAD_WORDS = 512  # a group ends on a multiple of 4 KiB
ENTRY_ROWS = 19  # an index entry, found and changed, counts as this many rows of a budget
WHOLE = 1 << 60  # a budget for all operations
# Bits of a shape: what the operations of a transaction may change besides rows in memory.
SHAPE_INDEXES = 1
SHAPE_DISK = 2


# --- rows -----------------------------------------------------------------------------------------
@helper
def author_of(mem, txn, word):
    """Return the author of the rows changed by an operation, given its word O_RECORD."""
    return mem[txn + A.X_AUTHOR] if word & A.OP_AUTHORED else 0


@helper
def not_passed(mem, fragment, rowid):
    """Whether a running local checkpoint has not reached this ROWID yet."""
    return (
        mem[fragment + A.F_LCP_ACTIVE] != 0
        and rowid >= mem[fragment + A.F_LCP_POSITION]
        and rowid >> 16 < mem[fragment + A.F_LCP_PAGES]
    )


@helper
def keep_old(mem, fragment, rowid, row, copies):
    """Copy a row about to change, if the running local checkpoint still needs it. OK or ST_INVARIANT."""
    if mem[row] & A.LCP_BIT or not not_passed(mem, fragment, rowid):
        return A.OK
    if mem[fragment + A.F_LCP_ACTIVE] == 1:
        need = A.ENTRY_WORDS + mem[fragment + A.F_FIXED_WORDS]
        if mem[fragment + A.F_LCP_HAS_VAR]:
            need += words_of_var(mem, var_of(mem, fragment, row))
        if copies[0] + need > copies.size:
            return A.ST_INVARIANT
        copies[0] += write_lcp_entry(mem, fragment, rowid, row, copies, copies[0])
        mem[fragment + A.F_LCP_COPIED] += 1
    mem[row] |= A.LCP_BIT
    return A.OK


@helper
def stamp(mem, row, state, epoch, tick, author):
    """Set state, instant and author of a changed row, keeping lock and checkpoint bit."""
    kept = mem[row] & (A.LOCK_MASK | A.LCP_BIT)
    mem[row] = kept | state << A.STATE_SHIFT | author << A.AUTHOR_SHIFT | tick << A.TICK_SHIFT
    mem[row + 1] = epoch


@helper
def release_row(mem, txn, row, operation):
    """Release a row's lock if this operation is the newest on it; count locks with waiters."""
    if newest_operation(mem[row]) == operation:
        if mem[row] & A.LOCK_WAITED:
            mem[txn + A.X_WOKEN] += 1
        mem[row] &= ~A.LOCK_MASK


@helper
def make_live(mem, txn, fragment, rowid, row, operation, epoch, tick, author):
    """Make a reserved row live; its image is in place, and so is its disk part."""
    stamp(mem, row, A.LIVE, epoch, tick, author)
    if not_passed(mem, fragment, rowid):
        mem[row] |= A.LCP_BIT
    release_row(mem, txn, row, operation)


@helper
def free_reserved(mem, txn, fragment, rowid, operation):
    """Free the slot of a row that never became live, its var part, index entry and lock; OK or ST_INVARIANT. The key is
    read from the slot, since the record may be evicted.
    """
    row = known_row_address(mem, fragment, rowid)
    status = index_remove(mem, fragment, row_tag(mem, fragment, row, mem[fragment + A.F_INDEX_SEED]), rowid)
    if mem[fragment + A.F_HAS_VAR]:
        free_var(mem, fragment, set_var(mem, fragment, row, 0))
    release_row(mem, txn, row, operation)
    mem[row] = mem[row] & A.KEPT_BITS
    free_slot(mem, fragment, rowid)
    mem[fragment + A.F_RESERVED_ROWS] -= 1
    return A.OK if status == A.OK else A.ST_INVARIANT


@helper
def release_lock(mem, txn, operation):
    """End an operation that is only a lock; for the lock of an absent row, also free the slot with the key. OK or
    ST_INVARIANT.
    """
    fragment = mem[operation + A.O_FRAGMENT]
    rowid = mem[operation + A.O_ROWID] & A.ROWID_MASK
    if not mem[operation + A.O_RECORD] & A.OP_ABSENT:
        release_row(mem, txn, known_row_address(mem, fragment, rowid), operation)
        return A.OK
    return free_reserved(mem, txn, fragment, rowid, operation)


# --- disk parts -----------------------------------------------------------------------------------
@helper
def insert_part(mem, txn, buf, fragment, rowid, row, epoch):
    """Write the disk part of a reserved row; OK, or the status to resolve first. X_CHUNK counts the chunks written."""
    where = reference_at(mem, fragment, row)
    at = mem[where]
    plan = buf[insert_image(mem, fragment, row) + mem[fragment + A.F_FIXED_WORDS] - 1]
    words = buf[at] & A.VAR_WORDS_MASK
    if plan < 0:
        status = write_chunks(mem, txn, fragment, rowid, plan, buf, at, words, epoch)
        if status != A.OK:
            return status
    status = is_in_memory(mem, txn, fragment, planned_page(mem, plan), 0)
    if status != A.OK:
        return status
    reference = write_first_piece(mem, fragment, rowid, plan, buf, at, words, epoch)
    if reference == 0:
        return A.ST_INVARIANT
    mem[where] = reference
    mem[txn + A.X_CHUNK] = 0
    return A.OK


@helper
def image_part(mem, fragment, buf, image):
    """Return the offset of the disk part after an UPDATE's image."""
    has_var = record_has_var(mem, fragment, buf[image - L.OPERATION_WORDS + 1])
    return image + image_words(buf, image, mem[fragment + A.F_FIXED_WORDS], has_var)


@helper
def old_piece(mem, txn, fragment, reference):
    """Return (status, words of a row's first piece): OK if its page is in memory and the UNDO buffer has room for it.

    Not more room: the transaction has reserved this much, and a commit in one call must not stop here.
    """
    status = is_in_memory(mem, txn, fragment, reference >> C.SLOT_BITS, 0)
    if status != A.OK:
        return status, 0
    space = mem[fragment + A.F_TABLESPACE]
    frame = frame_of(mem, mem[space + C.TS_CACHE], reference >> C.SLOT_BITS)
    words = page_piece_words(mem, frame, mem[space + C.TS_PAGE_WORDS], reference & C.SLOT_MASK)
    return (A.OK if undo_has_room(mem, D.UNDO_RECORD_WORDS + words) else A.ST_UNDO), words


@helper
def prepare_part(mem, txn, buf, fragment, rowid, row, image, epoch):
    """Prepare to replace the disk part of a row: write new chunks, check pages, UNDO room and snapshots. OK, or the
    status to resolve first.
    """
    old = mem[reference_at(mem, fragment, row)]
    plan = buf[image + mem[fragment + A.F_FIXED_WORDS] - 1]
    if plan < 0:
        at = image_part(mem, fragment, buf, image)
        status = write_chunks(mem, txn, fragment, rowid, plan, buf, at, buf[at] & A.VAR_WORDS_MASK, epoch)
        if status != A.OK:
            return status
    status, words = old_piece(mem, txn, fragment, old)
    if status == A.OK and plan != 0:
        status = is_in_memory(mem, txn, fragment, planned_page(mem, plan), 0)
        if status == A.OK and not undo_has_room(mem, 2 * D.UNDO_RECORD_WORDS + words):
            status = A.ST_UNDO
    if status == A.OK:
        status = await_part(mem, txn, fragment, rowid, row)
    return status


@helper
def replace_part(mem, txn, buf, fragment, rowid, row, image, epoch):
    """Replace the prepared disk part of a row. Old chunks are freed later: X_FREEING says whether there may be any. OK
    or ST_INVARIANT.
    """
    where = reference_at(mem, fragment, row)
    old = mem[where]
    at = image_part(mem, fragment, buf, image)
    words = buf[at] & A.VAR_WORDS_MASK
    plan = buf[image + mem[fragment + A.F_FIXED_WORDS] - 1]
    mem[txn + A.X_CHUNK] = 0
    if plan == 0:
        return replace_piece(mem, fragment, old, buf, at, words, epoch)
    mem[where] = write_first_piece(mem, fragment, rowid, plan, buf, at, words, epoch)
    return drop_first_piece(mem, txn, fragment, old, epoch) if mem[where] != 0 else A.ST_INVARIANT


# --- operations -----------------------------------------------------------------------------------
# Steps of each: check that record, pages and UNDO room are there; remove index entries; keep the old row for
# checkpoint and snapshots; change row, disk part and var part; add index entries; release the lock; free old chunks.
# A slice may end before the first change, after a row of an insert, and after any chunk.
@helper
def apply_insert(mem, txn, buf, operation, epoch, tick, author, indexes, disk):
    """Make the reserved rows of an insert run live; their images are in place. OK or the status that stopped it.

    X_PIECE counts the rows that earlier slices have finished, if they have disk parts.
    """
    fragment = mem[operation + A.O_FRAGMENT]
    first = mem[operation + A.O_ROWID] & A.ROWID_MASK
    count = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
    words = mem[fragment + A.F_ROW_WORDS]
    status = A.OK
    if disk is not None and mem[fragment + A.F_HAS_DISK]:
        if is_evicted(mem, buf, operation):
            return A.ST_SPOOLED
        first += mem[txn + A.X_PIECE]
        count -= mem[txn + A.X_PIECE]
    row = known_row_address(mem, fragment, first)
    made = 0
    while made < count:
        if disk is not None and mem[fragment + A.F_HAS_DISK]:
            status = insert_part(mem, txn, buf, fragment, first + made, row, epoch)
            if status != A.OK:
                break
        make_live(mem, txn, fragment, first + made, row, operation, epoch, tick, author)
        row += words
        made += 1
    note_change(mem, fragment, epoch, tick)
    mem[fragment + A.F_ROWS] += made
    mem[fragment + A.F_RESERVED_ROWS] -= made
    if disk is not None:
        mem[txn + A.X_PIECE] = 0 if status == A.OK else mem[txn + A.X_PIECE] + made
    if indexes is not None and mem[fragment + A.F_INDEXES] != 0:
        if add_entries(mem, txn, fragment, first, made, -1) != A.OK:
            return A.ST_INVARIANT
        release_index_entries(mem, txn, fragment, made)
    return status


@helper
def apply_update(mem, txn, buf, operation, epoch, tick, author, copies, indexes, disk):
    """Replace a row by its after-image; OK, ST_INVARIANT, or the status to resolve first, with the row unchanged."""
    if is_evicted(mem, buf, operation):
        return A.ST_SPOOLED
    fragment = mem[operation + A.O_FRAGMENT]
    rowid = mem[operation + A.O_ROWID] & A.ROWID_MASK
    row = known_row_address(mem, fragment, rowid)
    record = mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT
    image = record + L.OPERATION_WORDS
    has_disk = mem[fragment + A.F_HAS_DISK]
    has_part = has_disk != 0 and not is_disk_kept(mem[operation + A.O_RECORD])
    changed = 0
    if disk is not None and has_part:
        status = prepare_part(mem, txn, buf, fragment, rowid, row, image, epoch)
        if status != A.OK:
            return status
    if indexes is not None and mem[fragment + A.F_INDEXES] != 0:
        remove_replaced(mem, txn, buf, operation, fragment, rowid, row)
        changed = remove_changed(mem, txn, fragment, rowid, row, buf, image, mem[operation + A.O_VAR] != 0)
        if changed < 0:
            return A.ST_INVARIANT
    status = keep_old(mem, fragment, rowid, row, copies)
    if status != A.OK:
        return status
    note_change(mem, fragment, epoch, tick)
    if mem[A.S_VIEW_EPOCH] != 0:
        keep_version(mem, fragment, rowid, row, epoch, tick, (buf[record] >> L.FLAGS_SHIFT) & L.FLAG_DISK_KEPT != 0)
    # The last word, the disk reference, stays.
    move_words(buf, image, mem, row + A.ROW_HEADER_WORDS, mem[fragment + A.F_FIXED_WORDS] - has_disk)
    if disk is not None and has_part and replace_part(mem, txn, buf, fragment, rowid, row, image, epoch) != A.OK:
        return A.ST_INVARIANT
    if mem[operation + A.O_VAR] != 0:
        free_var(mem, fragment, set_var(mem, fragment, row, mem[operation + A.O_VAR]))
    stamp(mem, row, A.LIVE, epoch, tick, author)
    if indexes is not None and mem[fragment + A.F_INDEXES] != 0:
        if add_entries(mem, txn, fragment, rowid, 1, changed) != A.OK:
            return A.ST_INVARIANT
        release_index_entries(mem, txn, fragment, 1)
    release_row(mem, txn, row, operation)
    return A.OK


@helper
def apply_delete(mem, txn, operation, epoch, tick, author, copies, indexes, disk):
    """Remove a row: index entries, disk part, primary entry, var part, slot. The slot keeps the epoch. OK,
    ST_INVARIANT, or the status to resolve first, with the row unchanged.
    """
    fragment = mem[operation + A.O_FRAGMENT]
    rowid = mem[operation + A.O_ROWID] & A.ROWID_MASK
    row = known_row_address(mem, fragment, rowid)
    if disk is not None and mem[fragment + A.F_HAS_DISK]:
        status, _ = old_piece(mem, txn, fragment, mem[reference_at(mem, fragment, row)])
        if status == A.OK:
            status = await_part(mem, txn, fragment, rowid, row)
        if status != A.OK:
            return status
    if indexes is not None and mem[fragment + A.F_INDEXES] != 0:
        remove_of_row(mem, txn, fragment, rowid, X.I_BIRTH)
        if remove_entries(mem, txn, fragment, rowid) != A.OK:
            return A.ST_INVARIANT
    status = keep_old(mem, fragment, rowid, row, copies)
    if status != A.OK:
        return status
    note_change(mem, fragment, epoch, tick)
    if mem[A.S_VIEW_EPOCH] != 0:
        keep_version(mem, fragment, rowid, row, epoch, tick, False)
    if disk is not None and mem[fragment + A.F_HAS_DISK]:
        old = mem[reference_at(mem, fragment, row)]
        if drop_first_piece(mem, txn, fragment, old, epoch) != A.OK:
            return A.ST_INVARIANT
    tag = row_tag(mem, fragment, row, mem[fragment + A.F_INDEX_SEED])
    if index_remove(mem, fragment, tag, rowid) != A.OK:
        return A.ST_INVARIANT
    if mem[fragment + A.F_HAS_VAR]:
        free_var(mem, fragment, set_var(mem, fragment, row, 0))
    release_row(mem, txn, row, operation)
    stamp(mem, row, A.FREE, epoch, tick, author)
    free_slot(mem, fragment, rowid)
    note_delete(mem, fragment, rowid, epoch)
    mem[fragment + A.F_ROWS] -= 1
    return A.OK


@helper
def cost_of(mem, operation, indexes, disk):
    """Return the cost of an operation as a number of rows: 1, plus its rows unless they have disk parts (the pages that
    a commit may hold limit such a slice), plus, if its table has indexes, ENTRY_ROWS for itself and for each index
    entry.
    """
    fragment = mem[operation + A.O_FRAGMENT]
    count = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
    cost = 1 + count
    if disk is not None and mem[fragment + A.F_HAS_DISK]:
        cost = 1
    if indexes is not None and mem[fragment + A.F_INDEXES] != 0:
        cost += ENTRY_ROWS * (1 + max(1, count) * entries_of(mem, fragment))
    return cost


@helper
def apply_one(mem, txn, buf, operation, epoch, tick, copies, indexes, disk):
    """Apply an operation, or the rest of one; OK or the status that stopped it."""
    word = mem[operation + A.O_RECORD]
    kind = word & A.OP_KIND_MASK
    if disk is not None and mem[txn + A.X_FREEING]:
        return drop_chunks(mem, txn, mem[operation + A.O_FRAGMENT], epoch)
    author = author_of(mem, txn, word)
    status = A.OK
    if kind == L.KIND_INSERT:
        status = apply_insert(mem, txn, buf, operation, epoch, tick, author, indexes, disk)
    elif kind == L.KIND_UPDATE:
        status = apply_update(mem, txn, buf, operation, epoch, tick, author, copies, indexes, disk)
    elif kind == L.KIND_DELETE:
        if not word & A.OP_CANCELLED:
            status = apply_delete(mem, txn, operation, epoch, tick, author, copies, indexes, disk)
    else:
        status = release_lock(mem, txn, operation)
    if disk is not None and status == A.OK and mem[txn + A.X_FREEING]:
        status = drop_chunks(mem, txn, mem[operation + A.O_FRAGMENT], epoch)
    return status


@helper
def apply_operations(mem, txn, buf, copies, epoch, tick, budget, indexes, disk):
    """Apply operations from X_CURSOR on, for a cost of about `budget` rows; OK when all are applied, ST_MORE, or the
    status that stopped it: ST_PAGE, ST_UNDO, ST_SPOOLED or ST_INVARIANT. X_CURSOR is where to continue.
    """
    done = 0
    operation = mem[txn + A.X_CURSOR]
    while operation != 0:
        status = A.ST_MORE
        if done < budget:
            status = apply_one(mem, txn, buf, operation, epoch, tick, copies, indexes, disk)
        if status != A.OK:
            mem[txn + A.X_CURSOR] = operation
            return status
        done += cost_of(mem, operation, indexes, disk)
        after = mem[operation + A.O_NEXT]
        free_cell(mem, operation)
        operation = after
    finish(mem, txn)
    return A.OK


@helper
def finish(mem, txn):
    mem[A.S_COPY_RESERVED] -= mem[txn + A.X_COPY_WORDS]
    mem[txn + A.X_COPY_WORDS] = 0
    mem[A.S_REDO_RESERVED] -= mem[txn + A.X_REDO_WORDS]
    mem[txn + A.X_REDO_WORDS] = 0
    undo_release(mem, txn)
    mem[txn + A.X_DISK] = 0
    mem[txn + A.X_INDEXED] = 0
    mem[txn + A.X_FIRST] = 0
    mem[txn + A.X_LAST] = 0
    mem[txn + A.X_CURSOR] = 0
    mem[txn + A.X_OPS] = 0
    mem[txn + A.X_STATE] = 2


@helper
def write_transaction_record(mem, txn, buf, txid):
    buf[L.GROUP_WORDS] = _pack_kind(L.KIND_TRANSACTION, 0, mem[txn + A.X_USED] - L.GROUP_WORDS)
    buf[L.GROUP_WORDS + 1] = txid
    buf[L.GROUP_WORDS + 2] = mem[txn + A.X_CHANGES]
    buf[L.GROUP_WORDS + 3] = 0


# --- in one call ----------------------------------------------------------------------------------
@helper
def need_of(mem, txn, buf, fill, copies, pages, indexes, disk):
    """Return OK if a commit can be made in one call; else why not, see `commit_at_once`."""
    if indexes is None and mem[txn + A.X_INDEXED] > 0:
        return A.ST_SHAPE
    if disk is None and mem[txn + A.X_DISK] > 0:
        return A.ST_SHAPE
    if disk is not None:
        if pages.size > 0:
            if mem[txn + A.X_OPS] >= pages.size or list_pages(mem, txn, buf, pages) != A.OK:
                return A.ST_PAGE
            if are_in_memory(mem, pages) == 0:
                return A.ST_PAGE
        if not undo_has_room(mem, mem[txn + A.X_UNDO_WORDS]):
            return A.ST_UNDO
    if indexes is not None and mem[txn + A.X_INDEXED] > SMALL_ENTRIES:
        return A.ST_MORE
    words = mem[txn + A.X_USED] - L.GROUP_WORDS
    if mem[txn + A.X_OPS] > SMALL_OPERATIONS or words > SMALL_WORDS:
        return A.ST_MORE
    if copies.size > 0 and copies[0] + mem[txn + A.X_COPY_WORDS] > copies.size:
        return A.ST_COPIES
    if mem[txn + A.X_CHANGES] != 0 and fill[0] + words + FILL_PAD_WORDS > fill.size:
        return A.ST_SPACE
    return A.OK


@helper
def log_records(mem, txn, buf, fill, txid):
    """Copy a transaction's records into the filling REDO group, which has room; COMMIT_LOGGED, or 0 if it changed
    nothing.
    """
    if mem[txn + A.X_CHANGES] == 0:
        return 0
    words = mem[txn + A.X_USED] - L.GROUP_WORDS
    write_transaction_record(mem, txn, buf, txid)
    move_words(buf, L.GROUP_WORDS, fill, fill[0], words)
    fill[0] += words
    fill[1] += 1
    mem[A.S_REDO_FREE] -= words
    return COMMIT_LOGGED


@helper
def commit_at_once(mem, txn, buf, fill, copies, epoch, txid, pages, indexes, disk):
    """Commit in one call: copy the records into the filling REDO group and apply the operations. No thread and no
    signal can interrupt it.

    fill[0] counts words, fill[1] transactions; copies is empty while no local checkpoint runs. pages: where to list the
    pages of disk parts, which then need no pins; empty if the caller has pinned all that `commit_pages` lists.

    Return COMMIT_LOGGED or 0 (nothing to log), plus COMMIT_WOKEN if a released lock has waiters; or ST_INVARIANT. Any
    other status says what is needed, with nothing done: ST_SHAPE, the kernel of another shape; ST_PAGE, a page in
    memory, or room in `pages` for all pages and operations; ST_UNDO, room in the UNDO buffer; ST_MORE, slices;
    ST_COPIES, room in `copies`; ST_SPACE, room in `fill`.
    """
    status = need_of(mem, txn, buf, fill, copies, pages, indexes, disk)
    if status != A.OK:
        return status
    logged = log_records(mem, txn, buf, fill, txid)
    mem[txn + A.X_CURSOR] = mem[txn + A.X_FIRST]
    tick = take_tick(mem, epoch)
    if apply_operations(mem, txn, buf, copies, epoch, tick, WHOLE, indexes, disk) != A.OK:
        return A.ST_INVARIANT
    return logged + (COMMIT_WOKEN if mem[txn + A.X_WOKEN] > 0 else 0)


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64, int64)")
def commit_plain(mem, txn, buf, fill, copies, epoch, txid):
    """Commit rows in memory, with or without indexes, at once, see `commit_at_once`."""
    return commit_at_once(mem, txn, buf, fill, copies, epoch, txid, None, 1, None)


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64, int64, int64[::1])")
def commit_disk(mem, txn, buf, fill, copies, epoch, txid, pages):
    """Commit rows with disk parts, with or without indexes, at once, see `commit_at_once`."""
    return commit_at_once(mem, txn, buf, fill, copies, epoch, txid, pages, 1, 1)


# --- in slices ------------------------------------------------------------------------------------
@kernel("int64(int64[::1], int64, int64[::1], int64)")
def commit_begin(mem, txn, buf, txid):
    """Begin a large commit: complete the buffer, which itself becomes a REDO group; return the words used."""
    write_transaction_record(mem, txn, buf, txid)
    mem[txn + A.X_CURSOR] = mem[txn + A.X_FIRST]
    mem[txn + A.X_STATE] = 3
    return mem[txn + A.X_USED]


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64, int64)")
def slice_plain(mem, txn, buf, copies, epoch, budget):
    """Apply a slice of a logged commit of rows in memory, see `apply_operations`."""
    return apply_operations(mem, txn, buf, copies, epoch, tick_of_slice(mem, epoch), budget, None, None)


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64, int64)")
def slice_any(mem, txn, buf, copies, epoch, budget):
    """Apply a slice of any logged commit, the pages of disk parts being pinned, see `apply_operations`."""
    return apply_operations(mem, txn, buf, copies, epoch, tick_of_slice(mem, epoch), budget, 1, 1)


# By shape.
COMMIT_AT_ONCE: tuple[Callable[..., int], ...] = (commit_plain, commit_plain, commit_disk, commit_disk)
APPLY_SLICE: tuple[Callable[..., int], ...] = (slice_plain, slice_any, slice_any, slice_any)
