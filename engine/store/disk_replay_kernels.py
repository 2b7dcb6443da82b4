"""Disk parts at restart: UNDO back to the local checkpoint, then REDO through pages and UNDO log as in a commit.

One thread, private memory. Both kernels stop at a page that is not in the cache (ST_PAGE, state[3]), to be called
again.
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.disk.cache_kernels import cache_dirtied, frame_of
from engine.disk.cache_layout import (
    C_PAGE_WORDS,
    EX_FRAGMENT,
    SLOT_BITS,
    SLOT_MASK,
    TS_CACHE,
    TS_PAGE_WORDS,
    TS_PAYLOAD,
)
from engine.disk.disk_layout import (
    DP_LSN,
    DP_OWNER,
    OWNER_FRAGMENT_SHIFT,
    OWNER_TABLE_MASK,
    UNDO_ALLOC,
    UNDO_FREE,
    UNDO_KIND_MASK,
    UNDO_RECORD_WORDS,
    UNDO_UPDATE,
    UNDO_WORDS_SHIFT,
)
from engine.disk.page_kernels import page_format, page_give, page_piece, page_piece_words, page_take_given
from engine.disk.parts_kernels import (
    chunks_of,
    drop_chunks,
    drop_first_piece,
    is_at_hand,
    part_on_page,
    plan_part,
    planned_page,
    replace_piece,
    write_chunks,
    write_first_piece,
)
from engine.disk.space_kernels import extent_of, space_is_fresh
from engine.jit.kernel import helper, kernel
from engine.jit.words_kernels import move_words
from engine.log.records_kernels import record_has_var
from engine.log.redo_layout import (
    AUTHOR_SHIFT,
    FLAG_DISK_KEPT,
    FLAGS_SHIFT,
    FRAGMENT_MASK,
    FRAGMENT_SHIFT,
    KIND_DELETE,
    KIND_INSERT,
    KIND_MASK,
    KIND_TRANSACTION,
    KIND_UPDATE,
    OPERATION_WORDS,
    TABLE_MASK,
    TRANSACTION_WORDS,
    WORDS_SHIFT,
)
from engine.memory.arena_layout import (
    COUNT_SHIFT,
    F_FIXED_WORDS,
    F_REPLAY_EPOCH,
    F_TABLESPACE,
    OK,
    ROWID_MASK,
    ST_DAMAGED,
    ST_INVARIANT,
    ST_MISSING,
    ST_MORE,
    ST_PAGE,
    T_FRAGMENT_LIST,
    T_FRAGMENTS,
    VAR_WORDS_MASK,
    X_CHUNK,
    X_FREEING,
    X_PAGE,
)
from engine.memory.handles_kernels import descriptor_of
from engine.rows.lcp_kernels import checked_image_words, place_row
from engine.store.replay_kernels import live_row, replay_delete, replay_update
from engine.txn.disk_changes_kernels import reference_at

# Words of the state of `replay_disk_group`.
R_OFFSET = 0
R_DONE = 1
R_ROW = 2  # rows done of the insert run at R_OFFSET
R_PAGE = 3
R_IMAGE = 4  # offset of the image of that row
R_IS_PLANNED = 5  # its disk part is planned: R_PLAN
R_PLAN = 6
REPLAY_STATE_WORDS = 8


# --- UNDO -----------------------------------------------------------------------------------------
@helper
def undo_fragment(mem, tables, owner):
    """Fragment an UNDO record belongs to; 0 if its table is gone."""
    number = owner & OWNER_TABLE_MASK
    table = descriptor_of(mem, tables[number]) if number < tables.size else 0
    place = owner >> OWNER_FRAGMENT_SHIFT
    if table == 0 or place < 0 or place >= mem[table + T_FRAGMENTS]:
        return 0
    return mem[mem[table + T_FRAGMENT_LIST] + place]


@helper
def undo_one(mem, frame, page_words, words, at):
    """Take one change of a page back; OK, or ST_DAMAGED if the page does not look as it would have to."""
    kind = words[at] & UNDO_KIND_MASK
    size = (words[at] >> UNDO_WORDS_SHIFT) - UNDO_RECORD_WORDS
    slot = words[at + 2] & SLOT_MASK
    if kind == UNDO_ALLOC:
        if page_piece(mem, frame, page_words, slot) == 0:
            return ST_DAMAGED
        page_give(mem, frame, page_words, slot)
        return OK
    if kind == UNDO_FREE:
        if page_take_given(mem, frame, page_words, slot, size) != OK:
            return ST_DAMAGED
    elif page_piece_words(mem, frame, page_words, slot) != size:
        return ST_DAMAGED
    move_words(words, at + UNDO_RECORD_WORDS, mem, page_piece(mem, frame, page_words, slot), size)
    return OK


@helper
def make_empty(mem, cache, frame, page, owner, lcp_lsn):
    """Make a page what it was at the checkpoint, wholly free, with the LSN of the checkpoint's mark.

    What stands in its place is not asked: it need not be what any record says. An extent that a restart has made free,
    and that the same fragment was given again before the checkpoint, still has on it what the lost run left there, or
    what a disk shows in a file that grew as the power failed.
    """
    if mem[frame + DP_LSN] != lcp_lsn or mem[frame + DP_OWNER] != owner:
        page_format(mem, frame, mem[cache + C_PAGE_WORDS], page, owner, lcp_lsn)
        # Written like any page that was undone: a restart from an older checkpoint undoes what is older than the mark.
        cache_dirtied(mem, cache, page, lcp_lsn)


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1])")
def undo_records(mem, tables, words, offsets, lcp_lsn, state):
    """Take back the changes of records offsets[state[0]], offsets[state[0] - 1], … of one group, newest first.

    tables: handle by table number, 0 for tables that are gone. lcp_lsn: of the checkpoint's mark, where this ends.
    state: [record, applied, passed over, page]. OK when record is -1, ST_MORE at a mark, ST_PAGE (hold it as a fresh
    one), ST_DAMAGED (state[3] is the page).
    """
    while state[0] >= 0:
        at = offsets[state[0]]
        kind = words[at] & UNDO_KIND_MASK
        if kind != UNDO_ALLOC and kind != UNDO_FREE and kind != UNDO_UPDATE:
            return ST_MORE
        lsn = words[at + 1]
        page = words[at + 2] >> SLOT_BITS
        fragment = undo_fragment(mem, tables, words[at + 3])
        extent = extent_of(mem, page) if fragment != 0 else 0
        # An extent handed out behind the checkpoint is free again: what its pages hold is of no meaning.
        if extent == 0 or mem[extent + EX_FRAGMENT] != fragment:
            state[2] += 1
            state[0] -= 1
            continue
        space = mem[fragment + F_TABLESPACE]
        cache = mem[space + TS_CACHE]
        frame = frame_of(mem, cache, page)
        state[3] = page
        if frame == 0:
            return ST_PAGE
        if space_is_fresh(mem, page) == 1:
            make_empty(mem, cache, frame, page, words[at + 3], lcp_lsn)
            state[1] += 1
        elif mem[frame + DP_OWNER] == words[at + 3] and lsn <= mem[frame + DP_LSN]:
            status = undo_one(mem, frame, mem[space + TS_PAGE_WORDS], words, at)
            if status != OK:
                return status
            # One below, so that doing it again after a crash changes nothing.
            cache_dirtied(mem, cache, page, lsn - 1)
            state[1] += 1
        else:
            state[2] += 1
        state[0] -= 1
    return OK


# --- REDO -----------------------------------------------------------------------------------------
@helper
def checked_disk_words(words, at, stop):
    """Words of the disk part at words[at:stop], or -1 if it cannot be one."""
    if at >= stop:
        return -1
    disk = words[at] & VAR_WORDS_MASK
    return disk if 1 <= disk <= stop - at else -1


@helper
def place_part(mem, txn, fragment, rowid, near, words, at, disk, epoch, state):
    """Write the disk part words[at : at + disk] of a row; (OK, reference), or why it stopped and 0."""
    if not state[R_IS_PLANNED]:
        status, plan = plan_part(mem, fragment, disk, near)
        if status != OK:
            return status, 0
        state[R_PLAN] = plan
        state[R_IS_PLANNED] = 1
    plan = state[R_PLAN]
    if plan < 0:
        status = write_chunks(mem, txn, fragment, rowid, plan, words, at, disk, epoch)
        if status != OK:
            return status, 0
    status = is_at_hand(mem, txn, fragment, planned_page(mem, plan), 0)
    if status != OK:
        return status, 0
    reference = write_first_piece(mem, fragment, rowid, plan, words, at, disk, epoch)
    state[R_IS_PLANNED] = 0
    mem[txn + X_CHUNK] = 0
    return (OK if reference != 0 else ST_INVARIANT), reference


@helper
def replay_disk_insert(mem, txn, fragment, words, at, size, epoch, state):
    """INSERT run, row by row."""
    first = words[at + 2] & ROWID_MASK
    count = words[at + 2] >> COUNT_SHIFT
    stop = at + size
    if state[R_ROW] == 0:
        state[R_IMAGE] = at + OPERATION_WORDS
    while state[R_ROW] < count:
        image = state[R_IMAGE]
        rowid = first + state[R_ROW]
        has_var = record_has_var(mem, fragment, words[at + 1])
        part = checked_image_words(mem[fragment + F_FIXED_WORDS], has_var, words, image, stop)
        if part < 0:
            return ST_INVARIANT
        disk = checked_disk_words(words, image + part, stop)
        if disk < 0:
            return ST_INVARIANT
        status, reference = place_part(mem, txn, fragment, rowid, 0, words, image + part, disk, epoch, state)
        if status != OK:
            return status
        status = place_row(mem, fragment, rowid, epoch, words[at + 3] >> AUTHOR_SHIFT, words, image, part)
        if status != OK:
            return status
        mem[reference_at(mem, fragment, live_row(mem, fragment, rowid))] = reference
        state[R_IMAGE] = image + part + disk
        state[R_ROW] += 1
    return OK if state[R_IMAGE] == stop else ST_INVARIANT


@helper
def replay_disk_update(mem, txn, fragment, words, at, size, epoch, state):
    """UPDATE of a row and its disk part."""
    rowid = words[at + 2] & ROWID_MASK
    row = live_row(mem, fragment, rowid)
    if row == 0:
        return ST_MISSING
    if (words[at] >> FLAGS_SHIFT) & FLAG_DISK_KEPT:
        return replay_update(mem, fragment, words, at, size, epoch)
    if mem[txn + X_FREEING]:
        return drop_chunks(mem, txn, fragment, epoch)
    space = mem[fragment + F_TABLESPACE]
    image = at + OPERATION_WORDS
    has_var = record_has_var(mem, fragment, words[at + 1])
    part = checked_image_words(mem[fragment + F_FIXED_WORDS], has_var, words, image, at + size)
    if part < 0:
        return ST_INVARIANT
    disk = checked_disk_words(words, image + part, at + size)
    if disk < 0 or OPERATION_WORDS + part + disk != size:
        return ST_INVARIANT
    where = reference_at(mem, fragment, row)
    old = mem[where]
    status = is_at_hand(mem, txn, fragment, old >> SLOT_BITS, 2 * UNDO_RECORD_WORDS + mem[space + TS_PAYLOAD])
    if status != OK:
        return status
    address, _, current, _, _ = part_on_page(mem, fragment, rowid, old)
    if address == 0:
        return ST_DAMAGED
    if current == disk and chunks_of(mem, space, disk) == 0:
        status = replay_update(mem, fragment, words, at, size - disk, epoch)
        return replace_piece(mem, fragment, old, words, image + part, disk, epoch) if status == OK else status
    status, reference = place_part(mem, txn, fragment, rowid, old >> SLOT_BITS, words, image + part, disk, epoch, state)
    if status == OK:
        status = replay_update(mem, fragment, words, at, size - disk, epoch)
    if status != OK:
        return status
    mem[where] = reference
    status = drop_first_piece(mem, txn, fragment, old, epoch)
    return drop_chunks(mem, txn, fragment, epoch) if status == OK else status


@helper
def replay_disk_delete(mem, txn, fragment, words, at, epoch):
    """DELETE of a row and its disk part."""
    if mem[txn + X_FREEING]:
        return drop_chunks(mem, txn, fragment, epoch)
    row = live_row(mem, fragment, words[at + 2] & ROWID_MASK)
    if row == 0:
        return ST_MISSING
    old = mem[reference_at(mem, fragment, row)]
    status = is_at_hand(mem, txn, fragment, old >> SLOT_BITS, mem[mem[fragment + F_TABLESPACE] + TS_PAYLOAD])
    if status == OK:
        status = replay_delete(mem, fragment, words, at, epoch)
    if status != OK:
        return status
    if drop_first_piece(mem, txn, fragment, old, epoch) != OK:
        return ST_DAMAGED
    return drop_chunks(mem, txn, fragment, epoch)


@helper
def replay_disk_record(mem, txn, tables, words, at, size, epoch, state):
    """Replay one record if it is of a table with disk columns and newer than what was loaded."""
    number = words[at + 1] & TABLE_MASK
    table = descriptor_of(mem, tables[number]) if number < tables.size else 0
    place = (words[at + 1] >> FRAGMENT_SHIFT) & FRAGMENT_MASK
    if table == 0:
        return OK
    if place >= mem[table + T_FRAGMENTS]:
        return ST_INVARIANT
    fragment = mem[mem[table + T_FRAGMENT_LIST] + place]
    if fragment == 0 or epoch <= mem[fragment + F_REPLAY_EPOCH]:
        return OK
    kind = words[at] & KIND_MASK
    if kind == KIND_INSERT:
        status = replay_disk_insert(mem, txn, fragment, words, at, size, epoch, state)
    elif kind == KIND_UPDATE:
        status = replay_disk_update(mem, txn, fragment, words, at, size, epoch, state)
    else:
        status = replay_disk_delete(mem, txn, fragment, words, at, epoch)
    if status == OK:
        state[R_DONE] += 1
        state[R_ROW] = 0
    return status


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64, int64, int64, int64[::1])")
def replay_disk_group(mem, txn, tables, words, start, stop, epoch, state):
    """Replay the records words[start:stop] of tables with disk columns; `txn` is a descriptor to keep the place in.

    OK, or the status of the record at state[R_OFFSET], where it goes on when called again from there after ST_PAGE,
    ST_UNDO or ST_EXTENT were settled.
    """
    at = start
    while at < stop:
        state[R_OFFSET] = at
        kind = words[at] & KIND_MASK
        size = words[at] >> WORDS_SHIFT
        if kind == KIND_TRANSACTION:
            size = TRANSACTION_WORDS
        if size < 2 or at + size > stop:
            return ST_INVARIANT
        if kind == KIND_INSERT or kind == KIND_UPDATE or kind == KIND_DELETE:
            if size < OPERATION_WORDS:
                return ST_INVARIANT
            status = replay_disk_record(mem, txn, tables, words, at, size, epoch, state)
            if status != OK:
                state[R_PAGE] = mem[txn + X_PAGE]
                return status
        at += size
    state[R_OFFSET] = stop
    return OK
