"""Rows of load files put into a fragment by the transaction that adopts them: as inserts, but at their places.

Records stand in the transaction's buffer already, and rows go to pages of their own, in order. A page that is being
filled has no free slot for anybody else: it counts as fully used up, and is in no list, until `close_page`.
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.disk.parts_kernels import plan_part, planned_page, promise_undo_of, restore_promise, unplan_part
from engine.index.changes_kernels import promise_indexes, return_promises
from engine.index.index_layout import XL_COUNT
from engine.index.unique_changes_kernels import give_taken, lead_taken, take_entries, uniques_of
from engine.jit.kernel import helper, kernel
from engine.jit.words_kernels import move_words
from engine.log.load_arena_layout import (
    LP_COUNT,
    LP_FIRST,
    LP_FORMAT,
    LP_FRAGMENT,
    LP_NUMBER,
    LP_OPEN,
    LP_PROBES,
    LR_AT,
    LR_RECORD,
    LR_ROWID,
    LR_TAG,
    LR_WORDS,
)
from engine.log.redo_layout import KIND_INSERT
from engine.memory.arena_layout import (
    COUNT_SHIFT,
    F_FIXED_WORDS,
    F_HAS_DISK,
    F_HAS_VAR,
    F_INDEX_BLOCKS,
    F_INDEXES,
    F_KEY_WORDS,
    F_PAGES,
    F_RELEASED,
    F_RELEASED_HINT,
    F_RESERVED_ROWS,
    F_ROW_WORDS,
    F_SLOTS,
    F_TABLESPACE,
    FREE,
    LCP_BIT,
    MAP_ROOTS,
    MODE_INSERT,
    O_FRAGMENT,
    O_RECORD,
    O_ROWID,
    OK,
    OP_RECORD_SHIFT,
    PAGE_HEADER_WORDS,
    PAGE_SHIFT,
    PG_FREE,
    PG_FRESH,
    PG_LOGICAL,
    PG_USED,
    RESERVED,
    ROW_HEADER_WORDS,
    ROWID_MASK,
    S_TOUCHED,
    ST_ALTERED,
    ST_DROPPED,
    ST_DUPLICATE,
    ST_MEMORY,
    ST_MORE,
    ST_PAGES,
    ST_PARTITION,
    STATE_MASK,
    STATE_SHIFT,
    T_FORMAT,
    T_FRAGMENT_LIST,
    VAR_WORDS_MASK,
    X_CHANGES,
    X_DISK,
    X_ROW,
    X_RUN,
    X_UNDO_WORDS,
)
from engine.memory.handles_kernels import descriptor_of
from engine.rows.primary_kernels import (
    AHEAD_ROWS,
    entry_rowid,
    image_key,
    index_find,
    index_insert,
    index_remove,
    touch_buckets,
)
from engine.rows.rows_kernels import (
    chain_slot,
    known_row_address,
    list_append,
    list_remove,
    make_page,
    map_get,
    map_leaf,
)
from engine.rows.side_pages_kernels import is_empty_var, make_side, set_var
from engine.rows.var_parts_kernels import give_var, take_var
from engine.txn.changes_kernels import add_operation, image_words
from engine.txn.disk_changes_kernels import reference_at
from engine.txn.operations_kernels import meet_row


@kernel("int64(int64[::1], int64, int64)")
def reserve_pages(mem, fragment, pages):
    """Take logical page numbers behind those a fragment has; the first, or ST_PAGES. No memory is taken."""
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return ST_DROPPED
    first = mem[fragment + F_PAGES]
    if pages < 0 or pages > (MAP_ROOTS << 18) - first:
        return ST_PAGES
    mem[fragment + F_PAGES] = first + pages
    return first


@kernel("int64(int64[::1], int64, int64, int64)")
def release_pages(mem, fragment, first, pages):
    """Let those of the logical pages that were never made be taken by others. Done again it changes nothing.

    A page without memory for its place in the map stays without use until the next restart.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return ST_DROPPED
    for logical in range(first, first + pages):
        if map_get(mem, fragment, logical) == 0:
            leaf = map_leaf(mem, fragment, logical)
            if leaf != 0:
                mem[leaf + (logical & 511)] = -1
                mem[fragment + F_RELEASED] += 1
                mem[fragment + F_RELEASED_HINT] = min(mem[fragment + F_RELEASED_HINT], logical)
    return OK


@helper
def open_page(mem, fragment, logical):
    """Make a page all of whose slots are the caller's; its arena page, or a status code."""
    page = make_page(mem, fragment, logical)
    if page < 0:
        return page
    list_remove(mem, fragment, page)
    base = page << PAGE_SHIFT
    words = mem[fragment + F_ROW_WORDS]
    for slot in range(mem[fragment + F_SLOTS]):
        at = base + PAGE_HEADER_WORDS + slot * words
        mem[at] = 0
        mem[at + 1] = 0
    mem[base + PG_FRESH] = mem[fragment + F_SLOTS]
    return page


@kernel("int64(int64[::1], int64[::1])")
def close_page(mem, place):
    """Give the slots that the open page has left to everybody. Done again it changes nothing."""
    if place[LP_OPEN] != 0:
        close_open(mem, place)
    return OK


@helper
def close_open(mem, place):
    """See `close_page`; there is one."""
    fragment = descriptor_of(mem, place[LP_FRAGMENT])
    page = place[LP_OPEN]
    place[LP_OPEN] = 0
    if fragment == 0:
        return
    base = page << PAGE_SHIFT
    words = mem[fragment + F_ROW_WORDS]
    fresh = mem[fragment + F_SLOTS]
    while fresh > 0 and (mem[base + PAGE_HEADER_WORDS + (fresh - 1) * words] >> STATE_SHIFT) & STATE_MASK == FREE:
        fresh -= 1
    mem[base + PG_FRESH] = fresh
    for slot in range(fresh):
        if (mem[base + PAGE_HEADER_WORDS + slot * words] >> STATE_SHIFT) & STATE_MASK == FREE:
            chain_slot(mem, base, words, slot)
    if mem[base + PG_FREE] != 0 or fresh < mem[fragment + F_SLOTS]:
        list_append(mem, fragment, page)


@helper
def place_slot(mem, place, rowid):
    """Address of the row of a ROWID of the file, its page made if it is the next one; or a status code."""
    fragment = descriptor_of(mem, place[LP_FRAGMENT])
    logical = place[LP_FIRST] + (rowid >> 16)
    if place[LP_OPEN] == 0 or mem[(place[LP_OPEN] << PAGE_SHIFT) + PG_LOGICAL] != logical:
        if place[LP_OPEN] != 0:
            close_open(mem, place)
        page = open_page(mem, fragment, logical)
        if page < 0:
            return page
        place[LP_OPEN] = page
    base = place[LP_OPEN] << PAGE_SHIFT
    return base + PAGE_HEADER_WORDS + (rowid & 0xFFFF) * mem[fragment + F_ROW_WORDS]


@helper
def join_run(mem, txn, fragment, record, rowid):
    """The operation that a row of a record belongs to, made if it is the first; 0 when memory is exhausted."""
    operation = mem[txn + X_RUN]
    if operation != 0 and mem[operation + O_FRAGMENT] == fragment:
        first = mem[operation + O_ROWID] & ROWID_MASK
        count = mem[operation + O_ROWID] >> COUNT_SHIFT
        if mem[operation + O_RECORD] >> OP_RECORD_SHIFT == record and first + count == rowid:
            mem[operation + O_ROWID] += 1 << COUNT_SHIFT
            return operation
    operation = add_operation(mem, txn, fragment, rowid | 1 << COUNT_SHIFT, record << OP_RECORD_SHIFT | KIND_INSERT, 0)
    if operation != 0:
        mem[txn + X_RUN] = operation
        mem[txn + X_CHANGES] += 1
    return operation


@helper
def put_placed(mem, txn, buf, fragment, tag, rowid, row, at, record):
    """Var part, index entry and operation of a row whose slot is its own; OK or ST_MEMORY and nothing is taken."""
    fixed = mem[fragment + F_FIXED_WORDS]
    has_var = mem[fragment + F_HAS_VAR]
    reference = 0
    if has_var:
        words = image_words(buf, at, fixed, has_var) - fixed
        if not is_empty_var(mem, fragment, words):
            if make_side(mem, fragment, row) != OK:
                return ST_MEMORY
            reference = take_var(mem, fragment, buf, at + fixed, words)
            if reference == 0:
                return ST_MEMORY
    if index_insert(mem, fragment, tag, rowid) != OK:
        give_var(mem, fragment, reference)
        return ST_MEMORY
    operation = join_run(mem, txn, fragment, record, rowid)
    if operation == 0:
        index_remove(mem, fragment, tag, rowid)
        give_var(mem, fragment, reference)
        return ST_MEMORY
    mem[row] = (mem[row] & LCP_BIT) | RESERVED << STATE_SHIFT | operation >> 3
    move_words(buf, at, mem, row + ROW_HEADER_WORDS, fixed)
    if has_var:
        set_var(mem, fragment, row, reference)
    base = (row >> PAGE_SHIFT) << PAGE_SHIFT
    mem[base + PG_USED] += 1
    mem[fragment + F_RESERVED_ROWS] += 1
    return OK


@helper
def reserve_placed(mem, txn, buf, fragment, tag, rowid, row, at, record):
    """`put_placed`, and entries of the table's indexes promised or taken; OK or a status code."""
    if mem[fragment + F_INDEXES] != 0 and promise_indexes(mem, txn, fragment, 1) != OK:
        return ST_MEMORY
    indexes = uniques_of(mem, fragment)
    if indexes == 0:
        status = put_placed(mem, txn, buf, fragment, tag, rowid, row, at, record)
    else:
        status = take_entries(mem, txn, buf, indexes, fragment, buf, at, 0)
        if status == OK:
            status = put_placed(mem, txn, buf, fragment, tag, rowid, row, at, record)
            if status == OK:
                lead_taken(mem, txn, indexes, fragment)
            else:
                give_taken(mem, indexes, mem[indexes + XL_COUNT], 0)
    if status != OK:
        return_promises(mem, txn, fragment, 1)
    return status


@helper
def reserve_placed_disk(mem, txn, buf, fragment, tag, rowid, row, at, record):
    """`reserve_placed` of a row with a disk part; OK or a status code."""
    fixed = mem[fragment + F_FIXED_WORDS]
    part = image_words(buf, at, fixed, mem[fragment + F_HAS_VAR])
    disk = buf[at + part] & VAR_WORDS_MASK
    status, plan = plan_part(mem, fragment, disk, 0)
    if status != OK:
        return status
    before = mem[txn + X_UNDO_WORDS]
    status = promise_undo_of(mem, txn, mem[fragment + F_TABLESPACE], disk, planned_page(mem, plan), False)
    if status == OK:
        status = reserve_placed(mem, txn, buf, fragment, tag, rowid, row, at, record)
    if status != OK:
        restore_promise(mem, txn, before)
        unplan_part(mem, fragment, disk, plan)
        return status
    buf[at + fixed - 1] = plan
    mem[reference_at(mem, fragment, row)] = at + part
    mem[txn + X_DISK] += 1
    return OK


@helper
def place_one(mem, txn, buf, place, tag, rowid, at, record):
    """Place one row whose key nobody has; OK or a status code."""
    row = place_slot(mem, place, rowid)
    if row < 0:
        return row
    fragment = descriptor_of(mem, place[LP_FRAGMENT])
    own = rowid + (place[LP_FIRST] << 16)
    if mem[fragment + F_HAS_DISK]:
        return reserve_placed_disk(mem, txn, buf, fragment, tag, own, row, at, record)
    return reserve_placed(mem, txn, buf, fragment, tag, own, row, at, record)


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64, int64, int64[::1])")
def place_rows(mem, table, txn, buf, rows, start, stop, place):
    """Put rows [start, stop) of a block, whose records stand in the buffer, at their places.

    rows: LR_WORDS for each row. place: LP_ words. Returns OK or the status of row X_ROW: ST_DUPLICATE, ST_UNIQUE,
    ST_BUSY and what a lack of memory, pages or UNDO log says; ST_MORE: that was enough for one call; ST_ALTERED,
    ST_PARTITION: the table, or its partition, is not that of the load any more.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return ST_DROPPED
    fragment = descriptor_of(mem, place[LP_FRAGMENT])
    mem[txn + X_ROW] = start
    if fragment == 0:
        return ST_PARTITION
    if mem[table + T_FORMAT] != place[LP_FORMAT]:
        return ST_ALTERED
    if mem[mem[table + T_FRAGMENT_LIST] + place[LP_NUMBER]] != fragment:
        return ST_PARTITION
    fixed = mem[fragment + F_FIXED_WORDS]
    held = mem[fragment + F_KEY_WORDS]
    touched = start
    for position in range(start, stop):
        if position == touched:
            touched = min(position + AHEAD_ROWS, stop)
            total = 0
            for ahead in range(position, touched):
                total += touch_buckets(mem, fragment, rows[ahead * LR_WORDS + LR_TAG])
            mem[S_TOUCHED] = total
        each = position * LR_WORDS
        at = rows[each + LR_AT]
        tag = rows[each + LR_TAG]
        first, words = image_key(buf, at, fixed, held)
        blocks = mem[fragment + F_INDEX_BLOCKS]
        entry = index_find(mem, fragment, tag, buf, first, words)
        status = OK
        if entry != 0:
            rowid = entry_rowid(mem, entry)
            status = meet_row(mem, txn, fragment, rowid, known_row_address(mem, fragment, rowid), MODE_INSERT)
            if place[LP_PROBES]:
                place[LP_COUNT] += 1 if status == ST_DUPLICATE else 0
                status = OK
        elif place[LP_PROBES] == 0:
            status = place_one(mem, txn, buf, place, tag, rows[each + LR_ROWID], at, rows[each + LR_RECORD])
        mem[txn + X_ROW] = position
        if status != OK:
            return status
        if mem[fragment + F_INDEX_BLOCKS] != blocks and position + 1 < stop:
            mem[txn + X_ROW] = position + 1
            return ST_MORE
    mem[txn + X_ROW] = stop
    return OK
