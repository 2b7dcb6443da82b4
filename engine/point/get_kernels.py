"""One row by its key: the key is read, the row is found and made, in one kernel call.

Each kernel returns the row, None, or ... for a call that is left to the general path: a key that the plan does not
know, another version of the table, an unfinished large commit (ADR 0030), an image in the spool file, a chained var
part, a value that cannot be made.

shown: a word with the newest epoch that the transaction was shown; the number of its view, if it has one.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.access.reads_kernels import visible
from tidemark.engine.access.unique_reads_kernels import NO_PLACE, place_of_key
from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import LOWEST, is_chained, row_of_place
from tidemark.engine.index.unique_entries_kernels import fragment_of_place
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import (
    clear_error,
    finished,
    is_null,
    is_tuple,
    left,
    object_kernel,
    tuple_item,
    tuple_size,
)
from tidemark.engine.log.own_images_kernels import is_image_evicted, own_fixed, own_var
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.point import plan_layout as U
from tidemark.engine.point.keys_kernels import NOT_READ, key_words, put_index_piece, put_key
from tidemark.engine.point.values_kernels import fill_row, leave, no_row, row_of_plan
from tidemark.engine.rows import columns_layout as K
from tidemark.engine.rows.primary_kernels import entry_rowid, index_find, tag_of
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.rows.side_pages_kernels import var_of
from tidemark.engine.rows.ticks_kernels import is_row_after, is_unfinished, seen_absent, seen_unfinished, view_of
from tidemark.engine.rows.var_parts_kernels import chunk_address
from tidemark.engine.schema.partitions_kernels import fragment_of

FOUND = 1


@helper
def table_of(mem, plan):
    """Return the descriptor of the plan's table, 0 if it was dropped or has another version now."""
    table = descriptor_of(mem, plan[U.U_HANDLE])
    if table != 0 and mem[table + A.T_SCHEMA_VERSION] != plan[U.U_VERSION]:
        return 0
    return table


@helper
def find_rowid(mem, table, keys, words):
    """Return (FOUND, ST_MISSING or ST_UNFINISHED; fragment; ROWID) of a primary key."""
    fragment = fragment_of(mem, table, keys, 0, words)
    if fragment == 0:
        return A.ST_MISSING, 0, 0
    entry = index_find(mem, fragment, tag_of(keys, 0, words, mem[table + A.T_SEED]), keys, 0, words)
    if entry == 0:
        return seen_absent(mem), 0, 0
    return FOUND, fragment, entry_rowid(mem, entry)


@helper
def find_row(mem, table, keys, words):
    """Return (FOUND, ST_MISSING or ST_UNFINISHED; fragment; row) of a primary key."""
    status, fragment, rowid = find_rowid(mem, table, keys, words)
    if status != FOUND:
        return status, 0, 0
    return FOUND, fragment, known_row_address(mem, fragment, rowid)


@helper
def place_seen(mem, plan, txn, buf, fragment, row):
    """Find the image of a row as a transaction sees it: (FOUND, ST_MISSING, or ST_UNFINISHED for the general path;
    whether its fixed part is in the buffer; where the fixed part is; where the var part is in memory, -1 for none).
    """
    seen = visible(mem, txn, row)
    if seen == 0:
        return A.ST_MISSING, 0, 0, -1
    if seen == 1 and is_unfinished(mem, row):
        return seen_unfinished(mem), 0, 0, -1
    reference = 0
    in_buffer = 0
    at = row + A.ROW_HEADER_WORDS
    if seen == 2:
        if is_image_evicted(mem, buf, row):
            return A.ST_UNFINISHED, 0, 0, -1
        in_buffer, at = own_fixed(mem, buf, row)
        if plan[U.U_HAS_VAR]:
            reference = own_var(mem, fragment, row)
    elif plan[U.U_HAS_VAR]:
        reference = var_of(mem, fragment, row)
    if reference == 0:
        return FOUND, in_buffer, at, -1
    if is_chained(mem, reference):
        return A.ST_UNFINISHED, 0, 0, -1
    return FOUND, in_buffer, at, chunk_address(mem, reference)


@helper
def fill_seen(made, mem, plan, txn, buf, fragment, row):
    """Give a new row the values of a row as a transaction sees it. Return FOUND, ST_MISSING, or ST_UNFINISHED for the
    general path.
    """
    status, in_buffer, at, var_at = place_seen(mem, plan, txn, buf, fragment, row)
    if status != FOUND:
        return status
    if in_buffer:
        done = fill_row(made, plan, buf, at, mem, var_at)
    else:
        done = fill_row(made, plan, mem, at, mem, var_at)
    return FOUND if done else A.ST_UNFINISHED


@helper
def answer(made, status):
    """Return what a kernel returns for a status of `fill_seen`."""
    if status == FOUND:
        return finished(made)
    if status == A.ST_MISSING:
        return no_row(made)
    return leave(made)


@helper
def note_shown(mem, shown, status, row):
    """Note what a call shows its transaction: the epoch of a row; all of the past, if there is none."""
    if status == FOUND:
        shown[0] = max(shown[0], mem[row + 1])
    elif status == A.ST_MISSING:
        shown[0] = U.EPOCH_LAST


@helper
def is_left(mem, shown, status, row):
    """Whether the general path must answer: the transaction has a view, and it may show something else."""
    if shown.size == 1:
        return False
    view = view_of(mem, shown[1])
    return status != FOUND or view == 0 or is_row_after(mem, view, row)


@helper
def index_words(mem, index, plan, key, octets, words):
    """Write the key words of a key of the plan's unique index; return their number, 0 if the key was not read."""
    first = plan[U.U_KEY]
    columns = plan[first + U.UK_COLUMNS]
    if columns > 1 and (is_tuple(key) == 0 or tuple_size(key) != columns):
        return 0
    most = (U.STACK_WORDS - 2) << 6
    bit = 0
    for i in range(columns):
        piece = tuple_item(key, i) if columns > 1 else key
        if bit + 65 > most:
            return 0
        column = index + X.I_COLUMNS + i * K.COLUMN_WORDS
        nullable = (mem[index + X.I_NULLABLE] >> i) & 1
        at = first + U.UK_FIRST + i * U.KEY_WORDS
        bit = put_index_piece(mem, column, nullable, plan, at, piece, octets, words, bit, most)
        if bit == NOT_READ:
            return 0
    count = (bit + 63) >> 6
    for i in range(count):
        words[i] ^= LOWEST
    while count < mem[index + X.I_WORDS]:
        words[count] = LOWEST
        count += 1
    return count


@helper
def find_place(mem, plan, key, octets, words, txn, buf, waits):
    """Return (FOUND, ST_MISSING, or ST_UNFINISHED for the general path; place) of a key of the plan's unique index.
    waits: leave also a row that another transaction holds, and that may have the key or get it.
    """
    index = descriptor_of(mem, plan[plan[U.U_KEY] + U.UK_HANDLE])
    if index == 0 or table_of(mem, plan) == 0:
        return A.ST_UNFINISHED, 0
    count = index_words(mem, index, plan, key, octets, words)
    if count == 0:
        return A.ST_UNFINISHED, 0
    place = place_of_key(mem, txn, buf, index, words, 0, count, waits)
    if place >= 0:
        return FOUND, place
    return A.ST_MISSING if place == NO_PLACE else A.ST_UNFINISHED, 0


@helper
def find_by_key(mem, plan, key, words, txn, buf):
    """Return (as `find_place`; fragment; row) of a key of the plan: a primary key, or one of its unique index."""
    if plan[plan[U.U_KEY] + U.UK_HANDLE] != 0:
        octets = key_words()
        status, place = find_place(mem, plan, key, octets, words, txn, buf, False)
        if status != FOUND:
            return status, 0, 0
        return FOUND, fragment_of_place(mem, place), row_of_place(mem, place)
    count = put_key(plan, plan[U.U_KEY], key, words)
    table = table_of(mem, plan)
    if count == 0 or table == 0:
        return A.ST_UNFINISHED, 0, 0
    return find_row(mem, table, words, count)


@object_kernel("object_(int64[::1], int64[::1], object_)")
def get_row(mem, plan, key):
    """Return the committed row with a key of the plan."""
    made = row_of_plan(plan)
    if is_null(made):
        clear_error()
        return left()
    words = key_words()
    status, fragment, row = find_by_key(mem, plan, key, words, 0, mem)
    if status == FOUND:
        status = fill_seen(made, mem, plan, 0, mem, fragment, row)
    return answer(made, status)


@object_kernel("object_(int64[::1], int64[::1], int64, int64[::1], int64[::1], object_)")
def get_seen(mem, plan, txn, buf, shown, key):
    """Return the row with a key of the plan as a transaction sees it. txn: its descriptor, 0 for committed rows."""
    made = row_of_plan(plan)
    if is_null(made):
        clear_error()
        return left()
    words = key_words()
    status, fragment, row = find_by_key(mem, plan, key, words, txn, buf)
    if is_left(mem, shown, status, row):
        return leave(made)
    if status == FOUND:
        status = fill_seen(made, mem, plan, txn, buf, fragment, row)
    note_shown(mem, shown, status, row)
    return answer(made, status)
