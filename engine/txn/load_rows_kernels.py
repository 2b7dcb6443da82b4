"""Rows of load files, placed in a fragment by the transaction that adopts them: inserts at given ROWIDs.

The records are already in the transaction's buffer, and rows go to new pages, in order. A page being filled has no free
slot for other transactions: it counts as full, and is in no list, until `close_page`.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk.parts_kernels import restore_reserved, unplan_part
from tidemark.engine.index import index_layout as X
from tidemark.engine.index.changes_kernels import cancel_index_entries, reserve_index_entries
from tidemark.engine.index.unique_changes_kernels import point_taken_entries, remove_taken, take_entries, uniques_of
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import load_arena_layout as N
from tidemark.engine.log import redo_layout as L
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.key_groups_kernels import AHEAD_ROWS
from tidemark.engine.rows.primary_kernels import (
    ask_for_buckets,
    entry_rowid,
    image_key,
    index_find,
    index_insert,
    index_remove,
)
from tidemark.engine.rows.rows_kernels import (
    chain_slot,
    known_row_address,
    list_append,
    list_remove,
    make_page,
    map_get,
    map_leaf,
)
from tidemark.engine.rows.side_pages_kernels import take_var_part
from tidemark.engine.rows.ticks_kernels import seen_absent
from tidemark.engine.rows.var_parts_kernels import free_var
from tidemark.engine.txn.changes_kernels import add_operation, check_row, fill_reserved, image_words
from tidemark.engine.txn.disk_changes_kernels import plan_new, reference_at


@kernel("int64(int64[::1], int64, int64)")
def reserve_pages(mem, fragment, pages):
    """Reserve logical page numbers after a fragment's last one; return the first, ST_PAGES or ST_DROPPED. Allocates no
    memory.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    first = mem[fragment + A.F_PAGES]
    if pages < 0 or pages > (A.MAP_ROOTS << 18) - first:
        return A.ST_PAGES
    mem[fragment + A.F_PAGES] = first + pages
    return first


@kernel("int64(int64[::1], int64, int64, int64)")
def release_pages(mem, fragment, first, pages):
    """Release logical pages that were not created, for use by other transactions. Idempotent.

    If there is no memory for the map leaf of a page number, the number stays unused until the next restart.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    for logical in range(first, first + pages):
        if map_get(mem, fragment, logical) == 0:
            leaf = map_leaf(mem, fragment, logical)
            if leaf != 0:
                mem[leaf + (logical & 511)] = -1
                mem[fragment + A.F_RELEASED] += 1
                mem[fragment + A.F_RELEASED_HINT] = min(mem[fragment + A.F_RELEASED_HINT], logical)
    return A.OK


@helper
def open_page(mem, fragment, logical):
    """Create a page with all slots reserved for the caller; return its arena page, or a status code."""
    page = make_page(mem, fragment, logical)
    if page < 0:
        return page
    list_remove(mem, fragment, page)
    base = page << A.PAGE_SHIFT
    words = mem[fragment + A.F_ROW_WORDS]
    for slot in range(mem[fragment + A.F_SLOTS]):
        at = base + A.PAGE_HEADER_WORDS + slot * words
        mem[at] = 0
        mem[at + 1] = 0
    mem[base + A.PG_FRESH] = mem[fragment + A.F_SLOTS]
    return page


@kernel("int64(int64[::1], int64[::1])")
def close_page(mem, place):
    """Release the remaining slots of the open page to all transactions. Idempotent."""
    if place[N.LP_OPEN] != 0:
        close_open(mem, place)
    return A.OK


@helper
def close_open(mem, place):
    """Close the open page, which must exist; see `close_page`."""
    fragment = descriptor_of(mem, place[N.LP_FRAGMENT])
    page = place[N.LP_OPEN]
    place[N.LP_OPEN] = 0
    if fragment == 0:
        return
    base = page << A.PAGE_SHIFT
    words = mem[fragment + A.F_ROW_WORDS]
    fresh = mem[fragment + A.F_SLOTS]
    while (
        fresh > 0 and (mem[base + A.PAGE_HEADER_WORDS + (fresh - 1) * words] >> A.STATE_SHIFT) & A.STATE_MASK == A.FREE
    ):
        fresh -= 1
    mem[base + A.PG_FRESH] = fresh
    for slot in range(fresh):
        if (mem[base + A.PAGE_HEADER_WORDS + slot * words] >> A.STATE_SHIFT) & A.STATE_MASK == A.FREE:
            chain_slot(mem, base, words, slot)
    if mem[base + A.PG_FREE] != 0 or fresh < mem[fragment + A.F_SLOTS]:
        list_append(mem, fragment, page)


@helper
def place_slot(mem, place, rowid):
    """Return the address of the slot for a ROWID of the file, or a status code. If its page is not open, create it."""
    fragment = descriptor_of(mem, place[N.LP_FRAGMENT])
    logical = place[N.LP_FIRST] + (rowid >> 16)
    if place[N.LP_OPEN] == 0 or mem[(place[N.LP_OPEN] << A.PAGE_SHIFT) + A.PG_LOGICAL] != logical:
        if place[N.LP_OPEN] != 0:
            close_open(mem, place)
        page = open_page(mem, fragment, logical)
        if page < 0:
            return page
        place[N.LP_OPEN] = page
    base = place[N.LP_OPEN] << A.PAGE_SHIFT
    return base + A.PAGE_HEADER_WORDS + (rowid & 0xFFFF) * mem[fragment + A.F_ROW_WORDS]


@helper
def join_run(mem, txn, fragment, record, rowid):
    """Return the operation for a row of a record; consecutive ROWIDs share one. 0 when memory is exhausted."""
    operation = mem[txn + A.X_RUN]
    if operation != 0 and mem[operation + A.O_FRAGMENT] == fragment:
        first = mem[operation + A.O_ROWID] & A.ROWID_MASK
        count = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
        if mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT == record and first + count == rowid:
            mem[operation + A.O_ROWID] += 1 << A.COUNT_SHIFT
            return operation
    operation = add_operation(
        mem, txn, fragment, rowid | 1 << A.COUNT_SHIFT, record << A.OP_RECORD_SHIFT | L.KIND_INSERT, 0
    )
    if operation != 0:
        mem[txn + A.X_RUN] = operation
        mem[txn + A.X_CHANGES] += 1
    return operation


@helper
def put_placed(mem, txn, buf, fragment, tag, rowid, row, at, record):
    """Allocate var part, index entry and operation of a row in its slot; OK, or ST_MEMORY with nothing allocated."""
    fixed = mem[fragment + A.F_FIXED_WORDS]
    words = image_words(buf, at, fixed, mem[fragment + A.F_HAS_VAR]) - fixed
    status, reference = take_var_part(mem, fragment, row, buf, at + fixed, words)
    if status != A.OK:
        return status
    if index_insert(mem, fragment, tag, rowid) != A.OK:
        free_var(mem, fragment, reference)
        return A.ST_MEMORY
    operation = join_run(mem, txn, fragment, record, rowid)
    if operation == 0:
        index_remove(mem, fragment, tag, rowid)
        free_var(mem, fragment, reference)
        return A.ST_MEMORY
    fill_reserved(mem, fragment, row, operation, buf, at, reference)
    base = (row >> A.PAGE_SHIFT) << A.PAGE_SHIFT
    mem[base + A.PG_USED] += 1
    return A.OK


@helper
def reserve_placed(mem, txn, buf, fragment, tag, rowid, row, at, record):
    """Reserve or take entries of the table's indexes, then `put_placed`; OK or a status code."""
    if mem[fragment + A.F_INDEXES] != 0 and reserve_index_entries(mem, txn, fragment, 1) != A.OK:
        return A.ST_MEMORY
    indexes = uniques_of(mem, fragment)
    if indexes == 0:
        status = put_placed(mem, txn, buf, fragment, tag, rowid, row, at, record)
    else:
        status = take_entries(mem, txn, buf, indexes, fragment, buf, at, 0)
        if status == A.OK:
            status = put_placed(mem, txn, buf, fragment, tag, rowid, row, at, record)
            if status == A.OK:
                point_taken_entries(mem, txn, indexes, fragment)
            else:
                remove_taken(mem, indexes, mem[indexes + X.XL_COUNT], 0)
    if status != A.OK:
        cancel_index_entries(mem, txn, fragment, 1)
    return status


@helper
def reserve_placed_disk(mem, txn, buf, fragment, tag, rowid, row, at, record):
    """Like `reserve_placed`, for a row with a disk part; OK or a status code."""
    fixed = mem[fragment + A.F_FIXED_WORDS]
    part = image_words(buf, at, fixed, mem[fragment + A.F_HAS_VAR])
    disk = buf[at + part] & A.VAR_WORDS_MASK
    before = mem[txn + A.X_UNDO_WORDS]
    status, plan = plan_new(mem, txn, fragment, disk)
    if status != A.OK:
        return status
    status = reserve_placed(mem, txn, buf, fragment, tag, rowid, row, at, record)
    if status != A.OK:
        restore_reserved(mem, txn, before)
        unplan_part(mem, fragment, disk, plan)
        return status
    buf[at + fixed - 1] = plan
    mem[reference_at(mem, fragment, row)] = at + part
    mem[txn + A.X_DISK] += 1
    return A.OK


@helper
def place_one(mem, txn, buf, place, tag, rowid, at, record):
    """Place one row whose key does not exist; OK or a status code."""
    row = place_slot(mem, place, rowid)
    if row < 0:
        return row
    fragment = descriptor_of(mem, place[N.LP_FRAGMENT])
    own = rowid + (place[N.LP_FIRST] << 16)
    if mem[fragment + A.F_HAS_DISK]:
        return reserve_placed_disk(mem, txn, buf, fragment, tag, own, row, at, record)
    return reserve_placed(mem, txn, buf, fragment, tag, own, row, at, record)


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64, int64, int64[::1])")
def place_rows(mem, table, txn, buf, rows, start, stop, place):
    """Put rows [start, stop) of a block at their places; their records are in the buffer.

    rows: LR_WORDS for each row. place: LP_ words. Return OK or the status of row X_ROW: ST_DUPLICATE, ST_UNIQUE,
    ST_BUSY, ST_UNFINISHED and statuses for a lack of memory, pages or UNDO log; ST_MORE if a segment of the index was
    rebuilt, which is enough work for one call (X_ROW is the next row); ST_DROPPED, ST_ALTERED or ST_PARTITION if the
    table or its partition was dropped or changed after the load.

    If LP_PROBES is set, no row is placed: keys are only looked up, and LP_COUNT counts the duplicates.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    fragment = descriptor_of(mem, place[N.LP_FRAGMENT])
    mem[txn + A.X_ROW] = start
    if fragment == 0:
        return A.ST_PARTITION
    if mem[table + A.T_FORMAT] != place[N.LP_FORMAT]:
        return A.ST_ALTERED
    if mem[mem[table + A.T_FRAGMENT_LIST] + place[N.LP_NUMBER]] != fragment:
        return A.ST_PARTITION
    fixed = mem[fragment + A.F_FIXED_WORDS]
    held = mem[fragment + A.F_KEY_WORDS]
    touched = start
    for position in range(start, stop):
        if position == touched:
            touched = min(position + AHEAD_ROWS, stop)
            for ahead in range(position, touched):
                ask_for_buckets(mem, fragment, rows[ahead * N.LR_WORDS + N.LR_TAG])
        each = position * N.LR_WORDS
        at = rows[each + N.LR_AT]
        tag = rows[each + N.LR_TAG]
        first, words = image_key(buf, at, fixed, held)
        blocks = mem[fragment + A.F_INDEX_BLOCKS]
        entry = index_find(mem, fragment, tag, buf, first, words)
        status = A.OK
        if entry != 0:
            rowid = entry_rowid(mem, entry)
            status = check_row(mem, txn, fragment, rowid, known_row_address(mem, fragment, rowid), A.MODE_INSERT)
            if place[N.LP_PROBES]:
                place[N.LP_COUNT] += 1 if status == A.ST_DUPLICATE else 0
                status = A.OK
        elif place[N.LP_PROBES] == 0:
            status = seen_absent(mem)
            if status == A.ST_MISSING:
                status = place_one(mem, txn, buf, place, tag, rows[each + N.LR_ROWID], at, rows[each + N.LR_RECORD])
        mem[txn + A.X_ROW] = position
        if status != A.OK:
            return status
        if mem[fragment + A.F_INDEX_BLOCKS] != blocks and position + 1 < stop:
            mem[txn + A.X_ROW] = position + 1
            return A.ST_MORE
    mem[txn + A.X_ROW] = stop
    return A.OK
