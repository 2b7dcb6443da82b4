"""The few rows with some primary keys, or a key of an ordered index, found and made in one kernel call.

A key of an index is values of its leading columns; a range of the next column may follow. Nothing is read in two steps,
so the rows are those of one instant, and no view is opened.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.access.reads_kernels import visible
from tidemark.engine.index import index_layout as X
from tidemark.engine.index.changes_kernels import place_of
from tidemark.engine.index.key_words_kernels import LOWEST, row_of_place
from tidemark.engine.index.tree_scans_kernels import entries_between
from tidemark.engine.index.unique_entries_kernels import fragment_of_place
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import (
    clear_error,
    drop,
    finished,
    is_null,
    left,
    new_rows,
    object_kernel,
    set_row,
    start_collector,
    stop_collector,
    tuple_item,
    tuple_size,
)
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.point import plan_layout as U
from tidemark.engine.point.get_kernels import FOUND, fill_seen, find_rowid, table_of
from tidemark.engine.point.keys_kernels import NOT_READ, key_words, put_index_piece, put_key
from tidemark.engine.point.values_kernels import row_of_plan
from tidemark.engine.rows import columns_layout as K

MOST_BITS = (U.STACK_WORDS - X.TG_KEY - 2) << 6


@helper
def put_bound(mem, index, plan, key, count, octets, words, bound, place):
    """Write the bound below or above all keys that begin with the first `count` values of a tuple. Return whether they
    were read.

    words: room for the key's words.
    """
    bit = 0
    for i in range(count):
        if bit + 65 > MOST_BITS:
            return 0
        column = index + X.I_COLUMNS + i * K.COLUMN_WORDS
        nullable = (mem[index + X.I_NULLABLE] >> i) & 1
        at = U.UK_FIRST + i * U.KEY_WORDS
        bit = put_index_piece(mem, column, nullable, plan, at, tuple_item(key, i), octets, words, bit, MOST_BITS)
        if bit == NOT_READ:
            return 0
    filled = (bit + 63) >> 6
    if filled > mem[index + X.I_KEY_WORDS]:
        return 0
    rest = (filled << 6) - bit
    filling = LOWEST if place == X.PLACE_BELOW else ~LOWEST
    for i in range(filled):
        bound[X.TG_KEY + i] = words[i] ^ LOWEST
    if rest > 0 and place == X.PLACE_ABOVE:
        bound[X.TG_KEY + filled - 1] |= (1 << rest) - 1
    while filled < mem[index + X.I_WORDS]:
        bound[X.TG_KEY + filled] = filling
        filled += 1
    bound[X.TG_PLACE] = place
    bound[X.TG_WORDS] = filled
    return 1


@helper
def add_place(places, count, place):
    """Add a fragment number and ROWID to sorted ones, if it is not there yet; return their number."""
    at = count
    while at > 0 and places[at - 1] > place:
        at -= 1
    if at > 0 and places[at - 1] == place:
        return count
    for i in range(count, at, -1):
        places[i] = places[i - 1]
    places[at] = place
    return count + 1


@helper
def keep_shown(mem, places, count):
    """Keep the places of rows that exist, in their order; return their number."""
    kept = 0
    for i in range(count):
        if visible(mem, 0, row_of_place(mem, places[i])):
            places[kept] = places[i]
            kept += 1
    return kept


@helper
def fill_rows(rows, mem, plan, places, count):
    """Make the rows at places; return whether all were made."""
    for i in range(count):
        made = row_of_plan(plan)
        if is_null(made):
            clear_error()
            return 0
        place = places[i]
        if fill_seen(made, mem, plan, 0, mem, fragment_of_place(mem, place), row_of_place(mem, place)) != FOUND:
            drop(made)
            return 0
        set_row(rows, i, finished(made))
    return 1


@helper
def rows_at(mem, plan, places, count):
    """Return a list of the rows at places, or `...`."""
    was_on = stop_collector()
    rows = new_rows(count)
    is_whole = 0
    if is_null(rows):
        clear_error()
    else:
        is_whole = fill_rows(rows, mem, plan, places, count)
    if was_on:
        start_collector()
    if is_whole:
        return rows
    if is_null(rows) == 0:
        drop(rows)
    return left()


@object_kernel("object_(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, object_, object_)")
def select_rows(mem, table_plan, plan, index_plan, most, flags, low, high):
    """Return a list of the committed rows between two bounds of an ordered index: the first `most`, if it is positive,
    else all, if they are at most -most. `...` for the general path.

    plan: of the columns that the rows have. low, high: tuples of values of leading columns; flags say on which side of
    the keys that begin with them the bounds are, and whether the order is the reverse one.
    """
    tree = descriptor_of(mem, index_plan[U.UK_HANDLE])
    if tree == 0 or table_of(mem, table_plan) == 0 or mem[A.S_UNFINISHED] != 0:
        return left()
    octets = key_words()
    words = key_words()
    begin = key_words()
    end = key_words()
    place = X.PLACE_ABOVE if flags & U.LOW_ABOVE else X.PLACE_BELOW
    if put_bound(mem, tree, index_plan, low, tuple_size(low), octets, words, begin, place) == 0:
        return left()
    place = X.PLACE_BELOW if flags & U.HIGH_BELOW else X.PLACE_ABOVE
    if put_bound(mem, tree, index_plan, high, tuple_size(high), octets, words, end, place) == 0:
        return left()
    places = key_words()
    limit = most if most > 0 else 1 - most
    if limit > places.size:
        return left()
    if flags & U.REVERSE:
        count, _, _ = entries_between(mem, tree, end, begin, True, limit, places, places[:0])
    else:
        count, _, _ = entries_between(mem, tree, begin, end, False, limit, places, places[:0])
    if count == limit and most <= 0:
        return left()
    shown = keep_shown(mem, places, count)
    if shown < count and count == limit:
        return left()
    return rows_at(mem, plan, places, shown)


@object_kernel("object_(int64[::1], int64[::1], int64[::1], object_)")
def select_keys(mem, table_plan, plan, given):
    """Return a list of the committed rows with the primary keys of a tuple, each once, in the order of a full scan: by
    fragment, then by ROWID. `...` for the general path.

    plan: of the columns that the rows have.
    """
    table = table_of(mem, table_plan)
    places = key_words()
    keys = key_words()
    if table == 0 or mem[A.S_UNFINISHED] != 0 or tuple_size(given) > places.size:
        return left()
    count = 0
    for i in range(tuple_size(given)):
        words = put_key(table_plan, table_plan[U.U_KEY], tuple_item(given, i), keys)
        if words == 0:
            return left()
        status, fragment, rowid = find_rowid(mem, table, keys, words)
        if status == A.ST_UNFINISHED:
            return left()
        if status == FOUND:
            count = add_place(places, count, mem[fragment + A.F_NUMBER] << A.COUNT_SHIFT | rowid)
    for i in range(count):
        fragment = mem[mem[table + A.T_FRAGMENT_LIST] + (places[i] >> A.COUNT_SHIFT)]
        places[i] = place_of(mem, fragment, places[i] & A.ROWID_MASK)
    return rows_at(mem, plan, places, keep_shown(mem, places, count))
