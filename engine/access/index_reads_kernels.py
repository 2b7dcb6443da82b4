"""Rows by an ordered index: one kernel call reads the tree and copies the rows, in key order.

So each row is as committed when the scan reaches it, and no other row can have taken its place. A transaction's own
changes are not part of the stream: rows it had changed when the scan began are skipped, and come from `own_rows`.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.access.disk_reads_kernels import disk_page_of, read_whole
from tidemark.engine.access.reads_kernels import visible
from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import encode_row, row_of_place, side_part
from tidemark.engine.index.tree_scans_kernels import entries_between
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log.own_images_kernels import (
    entry_words,
    is_image_evicted,
    lock_owner,
    newest_operation,
    write_entry,
)
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.rows_kernels import known_row_address


@helper
def set_cursor(mem, tree, place, cursor):
    value = side_part(mem, tree, X.SIDE_VALUE)
    cursor[X.TG_PLACE] = place
    cursor[X.TG_WORDS] = encode_row(mem, tree, place, mem, value, cursor, X.TG_KEY, mem[tree + X.I_KEY_WORDS])


@helper
def is_changed(mem, operation, until):
    """Whether a row's chain of own operations has a change whose record is before word `until` of the buffer."""
    while operation != 0:
        word = mem[operation + A.O_RECORD]
        if word & A.OP_KIND_MASK != A.OP_LOCK and word >> A.OP_RECORD_SHIFT < until:
            return True
        operation = mem[operation + A.O_PREVIOUS]
    return False


@helper
def is_skipped(mem, txn, until, wanted, fragment, row):
    """Whether a row found by an index is not part of the stream."""
    if mem[fragment + A.F_DROPPED]:
        return True
    if wanted.size:
        number = mem[fragment + A.F_NUMBER]
        if number >= wanted.size or wanted[number] == 0:
            return True
    if txn == 0 or mem[row] & A.LOCK_MASK == 0 or lock_owner(mem, mem[row]) != txn:
        return False
    return is_changed(mem, newest_operation(mem[row]), until)


@kernel(
    "int64(int64[::1], int64, int64, int64, int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1], "
    "int64[::1], int64[::1], int64[::1])"
)
def index_rows(mem, tree, txn, until, wanted, cursor, bound, reverse, limit, with_disk, places, out, offsets, state):
    """Copy the rows of the next entries between cursor and bound, examining at most `limit` of them.

    places: room for `limit` words. txn, until: rows this transaction had changed before word `until` of its buffer are
    skipped. wanted[number]: not 0 if rows of this fragment are requested; empty: all rows are. with_disk: copy disk
    parts too. state: [rows found, words used, -, page, incomplete entries]; offsets gets the image offset of each row.
    Return OK at the end, ST_MORE (the cursor says where to continue), ST_SPACE - words needed, ST_PAGE and ST_DAMAGED
    with the page in state[3], ST_DROPPED if the index was dropped.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    found, _, _ = entries_between(mem, tree, cursor, bound, reverse, limit, places, places[:0])
    status = A.ST_MORE if found == limit else A.OK
    done = 0
    while done < found:
        place = places[done]
        base = (place >> X.PLACE_SHIFT) << A.PAGE_SHIFT
        fragment = mem[base + A.PG_FRAGMENT]
        row = row_of_place(mem, place)
        if not is_skipped(mem, txn, until, wanted, fragment, row):
            if state[0] >= offsets.size:
                status = A.ST_MORE
                break
            rowid = mem[base + A.PG_LOGICAL] << 16 | place & X.PLACE_SLOT_MASK
            if with_disk:
                words = read_whole(mem, 0, mem, fragment, rowid, row, out, state[1], state)
                if words < 0:
                    status = words
                    break
            else:
                words = entry_words(mem, fragment, row, False)
                if state[1] + words > out.size:
                    status = A.ST_SPACE - words
                    break
                write_entry(mem, mem, fragment, rowid, row, False, out, state[1])
            offsets[state[0]] = state[1] + A.ENTRY_WORDS
            state[0] += 1
            state[1] += words
        done += 1
    if done > 0:
        set_cursor(mem, tree, places[done - 1], cursor)
    return status


@kernel(
    "int64(int64[::1], int64, int64, int64, int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])"
)
def index_pages(mem, tree, txn, until, wanted, cursor, bound, reverse, limit, places, pages):
    """List the pages that `index_rows` will need for the next `limit` entries, 0 for rows that need none. Return the
    number of entries, or ST_DROPPED if the index was dropped. The cursor is not moved.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    found, _, _ = entries_between(mem, tree, cursor, bound, reverse, limit, places, places[:0])
    for i in range(found):
        row = row_of_place(mem, places[i])
        fragment = mem[((places[i] >> X.PLACE_SHIFT) << A.PAGE_SHIFT) + A.PG_FRAGMENT]
        pages[i] = 0
        if not is_skipped(mem, txn, until, wanted, fragment, row):
            pages[i] = disk_page_of(mem, fragment, row, False)
    return found


@kernel("int64(int64[::1], int64, int64, int64[::1], int64, int64[::1], int64[::1], int64[::1])")
def own_rows(mem, table_id, txn, buf, budget, rowids, out, state):
    """Copy the rows of a table that a transaction has changed and not deleted, each once, as it sees them, without disk
    parts.

    Processes operations from state[0] on (0: the first), about `budget` rows per call. state: [next operation, rows
    found, words used]. rowids gets fragment number, ROWID and image offset of each. Return OK at the end, ST_MORE,
    ST_SPOOLED, ST_SPACE - words needed, or ST_SPACE if rowids is full.
    """
    operation = state[0] if state[0] != 0 else mem[txn + A.X_FIRST]
    looked = 0
    while operation != 0:
        state[0] = operation
        if looked >= budget:
            return A.ST_MORE
        fragment = mem[operation + A.O_FRAGMENT]
        count = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
        if mem[fragment + A.F_TABLE] == table_id and mem[fragment + A.F_DROPPED] == 0:
            if 3 * (state[1] + max(count, 1)) > rowids.size:
                return A.ST_SPACE
            words = own_words(mem, txn, buf, fragment, operation, rowids, out, state)
            if words > 0:
                return A.ST_SPACE - words
            if words < 0:
                return words
        looked += 1 + count
        operation = mem[operation + A.O_NEXT]
    state[0] = -1
    return A.OK


@helper
def own_words(mem, txn, buf, fragment, operation, rowids, out, state):
    """Copy the rows whose newest operation this is. Return 0; or, with nothing copied, the words needed for all, or
    ST_SPOOLED.
    """
    first = mem[operation + A.O_ROWID] & A.ROWID_MASK
    count = max(1, mem[operation + A.O_ROWID] >> A.COUNT_SHIFT)
    need = 0
    for rowid in range(first, first + count):
        row = known_row_address(mem, fragment, rowid)
        if stands_for(mem, txn, operation, row):
            if is_image_evicted(mem, buf, row):
                return A.ST_SPOOLED
            need += entry_words(mem, fragment, row, True)
    if state[2] + need > out.size:
        return need
    for rowid in range(first, first + count):
        row = known_row_address(mem, fragment, rowid)
        if stands_for(mem, txn, operation, row):
            at = 3 * state[1]
            rowids[at] = mem[fragment + A.F_NUMBER]
            rowids[at + 1] = rowid
            rowids[at + 2] = state[2] + A.ENTRY_WORDS
            state[2] += write_entry(mem, buf, fragment, rowid, row, True, out, state[2])
            state[1] += 1
    return 0


@helper
def stands_for(mem, txn, operation, row):
    """Whether an operation is the newest on a row that its transaction has changed and not deleted."""
    if newest_operation(mem[row]) != operation or lock_owner(mem, mem[row]) != txn:
        return False
    return is_changed(mem, operation, 1 << 62) and visible(mem, txn, row) == 2
