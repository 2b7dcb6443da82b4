"""Disk parts at restart: UNDO back to the local checkpoint, then REDO, which changes pages and logs UNDO as commits do.

One thread runs both kernels, on private memory. At a page that is not in the cache they stop (ST_PAGE, state[3]); the
caller reads it and calls again.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.disk.cache_kernels import cache_dirtied, frame_of
from tidemark.engine.disk.page_kernels import page_format, page_free, page_piece, page_piece_words, page_take_given
from tidemark.engine.disk.parts_kernels import (
    chunks_of,
    drop_chunks,
    drop_first_piece,
    is_in_memory,
    part_on_page,
    plan_part,
    planned_page,
    replace_piece,
    write_chunks,
    write_first_piece,
)
from tidemark.engine.disk.space_kernels import extent_of, space_is_fresh
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.records_kernels import (
    author_of,
    fragment_of,
    is_operation,
    record_at,
    record_flags,
    record_has_var,
    rows_of,
)
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.lcp_kernels import checked_disk_words, checked_image_words, place_row
from tidemark.engine.store import disk_replay_layout as W
from tidemark.engine.store.replay_kernels import live_row, replay_delete, replay_update
from tidemark.engine.txn.disk_changes_kernels import reference_at


# --- UNDO -----------------------------------------------------------------------------------------
@helper
def undo_fragment(mem, tables, owner):
    """Return the fragment of an UNDO record; 0 if its table is gone."""
    number = owner & D.OWNER_TABLE_MASK
    table = descriptor_of(mem, tables[number]) if number < tables.size else 0
    place = owner >> D.OWNER_FRAGMENT_SHIFT
    if table == 0 or place < 0 or place >= mem[table + A.T_FRAGMENTS]:
        return 0
    return mem[mem[table + A.T_FRAGMENT_LIST] + place]


@helper
def undo_one(mem, frame, page_words, words, at):
    """Undo one change of a page; OK, or ST_DAMAGED if the page does not match the record."""
    kind = words[at] & D.UNDO_KIND_MASK
    size = (words[at] >> D.UNDO_WORDS_SHIFT) - D.UNDO_RECORD_WORDS
    slot = words[at + 2] & C.SLOT_MASK
    if kind == D.UNDO_ALLOC:
        if page_piece(mem, frame, page_words, slot) == 0:
            return A.ST_DAMAGED
        page_free(mem, frame, page_words, slot)
        return A.OK
    if kind == D.UNDO_FREE:
        if page_take_given(mem, frame, page_words, slot, size) != A.OK:
            return A.ST_DAMAGED
    elif page_piece_words(mem, frame, page_words, slot) != size:
        return A.ST_DAMAGED
    move_words(words, at + D.UNDO_RECORD_WORDS, mem, page_piece(mem, frame, page_words, slot), size)
    return A.OK


@helper
def make_empty(mem, cache, frame, page, owner, lcp_lsn):
    """Reset a page to its state at the checkpoint: empty, with the LSN of the checkpoint's mark.

    The old content is ignored, since it need not match any record. If a restart freed an extent and the same fragment
    got it again before the checkpoint, the extent still has its content from before that restart, or arbitrary bytes if
    the power failed while the file grew.
    """
    if mem[frame + D.DP_LSN] != lcp_lsn or mem[frame + D.DP_OWNER] != owner:
        page_format(mem, frame, mem[cache + C.C_PAGE_WORDS], page, owner, lcp_lsn)
        # Dirty like any undone page: a restart from an older checkpoint undoes changes from before the mark.
        cache_dirtied(mem, cache, page, lcp_lsn)


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1])")
def undo_records(mem, tables, words, offsets, lcp_lsn, state):
    """Undo the changes of records offsets[state[0]], offsets[state[0] - 1], … of one group, newest first.

    tables: handle by table number, 0 for dropped tables. lcp_lsn: LSN of the checkpoint's mark, where UNDO ends. state:
    [record, applied, skipped, page]. OK when record is -1; ST_MORE at a mark; ST_PAGE (the caller then holds page
    state[3] with FRESH_PAGE: a wholly free page is formatted, not read); ST_DAMAGED (state[3] is the page).
    """
    while state[0] >= 0:
        at = offsets[state[0]]
        kind = words[at] & D.UNDO_KIND_MASK
        if kind != D.UNDO_ALLOC and kind != D.UNDO_FREE and kind != D.UNDO_UPDATE:
            return A.ST_MORE
        lsn = words[at + 1]
        page = words[at + 2] >> C.SLOT_BITS
        fragment = undo_fragment(mem, tables, words[at + 3])
        extent = extent_of(mem, page) if fragment != 0 else 0
        # An extent allocated after the checkpoint is free again, and the content of its pages is meaningless.
        if extent == 0 or mem[extent + C.EX_FRAGMENT] != fragment:
            state[2] += 1
            state[0] -= 1
            continue
        space = mem[fragment + A.F_TABLESPACE]
        cache = mem[space + C.TS_CACHE]
        frame = frame_of(mem, cache, page)
        state[3] = page
        if frame == 0:
            return A.ST_PAGE
        if space_is_fresh(mem, page) == 1:
            make_empty(mem, cache, frame, page, words[at + 3], lcp_lsn)
            state[1] += 1
        elif mem[frame + D.DP_OWNER] == words[at + 3] and lsn <= mem[frame + D.DP_LSN]:
            status = undo_one(mem, frame, mem[space + C.TS_PAGE_WORDS], words, at)
            if status != A.OK:
                return status
            # The LSN before the record's, so that a repetition after a crash changes nothing.
            cache_dirtied(mem, cache, page, lsn - 1)
            state[1] += 1
        else:
            state[2] += 1
        state[0] -= 1
    return A.OK


# --- REDO -----------------------------------------------------------------------------------------
@helper
def place_part(mem, txn, fragment, rowid, near, words, at, disk, epoch, state):
    """Write the disk part words[at : at + disk] of a row; return (OK, reference), or (status, 0)."""
    if not state[W.R_IS_PLANNED]:
        status, plan = plan_part(mem, fragment, disk, near)
        if status != A.OK:
            return status, 0
        state[W.R_PLAN] = plan
        state[W.R_IS_PLANNED] = 1
    plan = state[W.R_PLAN]
    if plan < 0:
        status = write_chunks(mem, txn, fragment, rowid, plan, words, at, disk, epoch)
        if status != A.OK:
            return status, 0
    status = is_in_memory(mem, txn, fragment, planned_page(mem, plan), 0)
    if status != A.OK:
        return status, 0
    reference = write_first_piece(mem, fragment, rowid, plan, words, at, disk, epoch)
    state[W.R_IS_PLANNED] = 0
    mem[txn + A.X_CHUNK] = 0
    return (A.OK if reference != 0 else A.ST_INVARIANT), reference


@helper
def replay_disk_insert(mem, txn, fragment, words, at, size, epoch, state):
    """Replay an INSERT run, row by row."""
    first, count = rows_of(words, at, L.KIND_INSERT)
    stop = at + size
    if count < 0:
        return A.ST_INVARIANT
    if state[W.R_ROW] == 0:
        state[W.R_IMAGE] = at + L.OPERATION_WORDS
    while state[W.R_ROW] < count:
        image = state[W.R_IMAGE]
        rowid = first + state[W.R_ROW]
        has_var = record_has_var(mem, fragment, words[at + 1])
        part = checked_image_words(mem[fragment + A.F_FIXED_WORDS], has_var, words, image, stop)
        if part < 0:
            return A.ST_INVARIANT
        disk = checked_disk_words(words, image + part, stop)
        if disk < 0:
            return A.ST_INVARIANT
        status, reference = place_part(mem, txn, fragment, rowid, 0, words, image + part, disk, epoch, state)
        if status != A.OK:
            return status
        status = place_row(mem, fragment, rowid, epoch, author_of(words, at), words, image, part)
        if status != A.OK:
            return status
        mem[reference_at(mem, fragment, live_row(mem, fragment, rowid))] = reference
        state[W.R_IMAGE] = image + part + disk
        state[W.R_ROW] += 1
    return A.OK if state[W.R_IMAGE] == stop else A.ST_INVARIANT


@helper
def replay_disk_update(mem, txn, fragment, words, at, size, epoch, state):
    """Replay the UPDATE of a row and its disk part."""
    rowid = words[at + 2] & A.ROWID_MASK
    row = live_row(mem, fragment, rowid)
    if row == 0:
        return A.ST_MISSING
    if record_flags(words, at) & L.FLAG_DISK_KEPT:
        return replay_update(mem, fragment, words, at, size, epoch)
    if mem[txn + A.X_FREEING]:
        return drop_chunks(mem, txn, fragment, epoch)
    space = mem[fragment + A.F_TABLESPACE]
    image = at + L.OPERATION_WORDS
    has_var = record_has_var(mem, fragment, words[at + 1])
    part = checked_image_words(mem[fragment + A.F_FIXED_WORDS], has_var, words, image, at + size)
    if part < 0:
        return A.ST_INVARIANT
    disk = checked_disk_words(words, image + part, at + size)
    if disk < 0 or L.OPERATION_WORDS + part + disk != size:
        return A.ST_INVARIANT
    where = reference_at(mem, fragment, row)
    old = mem[where]
    status = is_in_memory(mem, txn, fragment, old >> C.SLOT_BITS, 2 * D.UNDO_RECORD_WORDS + mem[space + C.TS_PAYLOAD])
    if status != A.OK:
        return status
    address, _, current, _, _ = part_on_page(mem, fragment, rowid, old)
    if address == 0:
        return A.ST_DAMAGED
    if current == disk and chunks_of(mem, space, disk) == 0:
        status = replay_update(mem, fragment, words, at, size - disk, epoch)
        return replace_piece(mem, fragment, old, words, image + part, disk, epoch) if status == A.OK else status
    status, reference = place_part(
        mem, txn, fragment, rowid, old >> C.SLOT_BITS, words, image + part, disk, epoch, state
    )
    if status == A.OK:
        status = replay_update(mem, fragment, words, at, size - disk, epoch)
    if status != A.OK:
        return status
    mem[where] = reference
    status = drop_first_piece(mem, txn, fragment, old, epoch)
    return drop_chunks(mem, txn, fragment, epoch) if status == A.OK else status


@helper
def replay_disk_delete(mem, txn, fragment, words, at, epoch):
    """Replay the DELETE of a row and its disk part."""
    if mem[txn + A.X_FREEING]:
        return drop_chunks(mem, txn, fragment, epoch)
    row = live_row(mem, fragment, words[at + 2] & A.ROWID_MASK)
    if row == 0:
        return A.ST_MISSING
    old = mem[reference_at(mem, fragment, row)]
    status = is_in_memory(mem, txn, fragment, old >> C.SLOT_BITS, mem[mem[fragment + A.F_TABLESPACE] + C.TS_PAYLOAD])
    if status == A.OK:
        status = replay_delete(mem, fragment, words, at, epoch)
    if status != A.OK:
        return status
    if drop_first_piece(mem, txn, fragment, old, epoch) != A.OK:
        return A.ST_DAMAGED
    return drop_chunks(mem, txn, fragment, epoch)


@helper
def replay_disk_record(mem, txn, tables, words, at, kind, size, epoch, state):
    """Replay one record if it is of a table with disk columns and newer than the loaded rows."""
    fragment = fragment_of(mem, tables, words[at + 1])
    if fragment < 0:
        return A.ST_INVARIANT
    if fragment == 0 or epoch <= mem[fragment + A.F_REPLAY_EPOCH]:
        return A.OK
    if kind == L.KIND_INSERT:
        status = replay_disk_insert(mem, txn, fragment, words, at, size, epoch, state)
    elif kind == L.KIND_UPDATE:
        status = replay_disk_update(mem, txn, fragment, words, at, size, epoch, state)
    else:
        status = replay_disk_delete(mem, txn, fragment, words, at, epoch)
    if status == A.OK:
        state[W.R_DONE] += 1
        state[W.R_ROW] = 0
    return status


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64, int64, int64, int64[::1])")
def replay_disk_group(mem, txn, tables, words, start, stop, epoch, state):
    """Replay the records words[start:stop] of tables with disk columns; the descriptor `txn` keeps the progress.

    OK, or the status of the record at state[R_OFFSET]. After ST_PAGE, ST_UNDO or ST_EXTENT, provide what is missing and
    call again: it continues there.
    """
    at = start
    while at < stop:
        state[W.R_OFFSET] = at
        kind, size = record_at(words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        if is_operation(kind):
            status = replay_disk_record(mem, txn, tables, words, at, kind, size, epoch, state)
            if status != A.OK:
                state[W.R_PAGE] = mem[txn + A.X_PAGE]
                return status
        at += size
    state[W.R_OFFSET] = stop
    return A.OK
