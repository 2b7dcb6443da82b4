"""Rows in place copied into columns: a vector of rows at a time, found by a filter, one column after the other.

The output is one array, seen in elements of 8, 4, 2 and 1 bytes; so are the pages.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.index.key_words_kernels import is_chained
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.objects_kernels import copy_elements
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.programs import program_layout as P
from tidemark.engine.programs.vm_columns_kernels import IS_DAMAGED, var_value
from tidemark.engine.queries import program_scan_layout as Q
from tidemark.engine.queries.filter_scan_kernels import found_rows, has_own
from tidemark.engine.queries.program_scan_kernels import slots_ahead
from tidemark.engine.rows.side_pages_kernels import var_of
from tidemark.engine.rows.ticks_kernels import check_view
from tidemark.engine.rows.var_parts_kernels import chunk_address

# Planes of the rows that are being copied: where each text begins, and its bytes, -1 for NULL.
_START = P.R_VAR * P.VECTOR_ROWS
_SIZE = P.R_DISK * P.VECTOR_ROWS


@helper
def _copy_units(out, words, scale, plan, at, rows, count, first):
    """Copy a column of fixed size, in elements of one size; a word has `scale` of them."""
    units = plan[at + Q.CO_UNITS]
    source = plan[at + Q.CO_AT]
    target = np.uint64(plan[at + Q.CO_TARGET] + first * units)
    fixed = np.uint64(P.R_FIXED * P.VECTOR_ROWS)
    if units == 1:
        for i in range(count):
            step = np.uint64(i)
            out[target + step] = words[np.uint64(rows[fixed + step] * scale + source)]
        return
    for i in range(count):
        base = np.uint64(rows[fixed + np.uint64(i)] * scale + source)
        place = target + np.uint64(i * units)
        for j in range(units):
            out[place + np.uint64(j)] = words[base + np.uint64(j)]


@helper
def _put_validity(mem, out, plan, at, rows, count, first):
    """Write the validity of a column's values, 64 at a time; sizes below 0 are NULL if it is a text of a var part."""
    if plan[at + Q.CO_BITMAP] < 0:
        return
    is_var = plan[at + Q.CO_KIND] == Q.COLUMN_VAR
    null_word = plan[at + Q.CO_NULL_WORD]
    null_bit = plan[at + Q.CO_NULL_BIT]
    place = plan[at + Q.CO_BITMAP] + (first >> 6)
    bit = first & 63
    word = out[place] & ((1 << bit) - 1)
    nulls = 0
    for i in range(count):
        step = np.uint64(i)
        if is_var:
            valid = 1 if rows[np.uint64(_SIZE) + step] >= 0 else 0
        else:
            image = rows[np.uint64(P.R_FIXED * P.VECTOR_ROWS) + step]
            valid = 1 if mem[np.uint64(image + null_word)] & null_bit == 0 else 0
        nulls += 1 - valid
        word |= valid << bit
        bit += 1
        if bit == 64:
            out[place] = word
            place += 1
            word = 0
            bit = 0
    if bit:
        out[place] = word
    plan[at + Q.CO_MORE_NULLS] = nulls


@helper
def _measure_texts(mem, octets, fragment, plan, at, rows, count):
    """Find where the texts of a column begin and end. Return their bytes, or -1 if one is in several chunks or damaged:
    the general path copies or refuses it.
    """
    total = 0
    where = plan[at + Q.CO_AT]
    is_var = plan[at + Q.CO_KIND] == Q.COLUMN_VAR
    width = plan[at + Q.CO_UNITS]
    for i in range(count):
        image = rows[P.R_FIXED * P.VECTOR_ROWS + i]
        start = 0
        size = -1
        if is_var:
            reference = var_of(mem, fragment, image - A.ROW_HEADER_WORDS)
            if reference != 0:
                if is_chained(mem, reference):
                    return -1
                start, size = var_value(mem, chunk_address(mem, reference), where)
                if size == IS_DAMAGED:
                    return -1
                size = max(size, -1)
        else:
            start = (image << 3) + where
            size = width
            while size > 0 and octets[np.uint64(start + size - 1)] == 0:
                size -= 1
        rows[_START + i] = start
        rows[_SIZE + i] = size
        total += max(size, 0)
    return total


@helper
def _copy_texts(octets, out_octets, out, out_4, plan, at, rows, count, first):
    target = plan[at + Q.CO_BYTES]
    used = plan[at + Q.CO_USED]
    ends = plan[at + Q.CO_TARGET] + first + 1
    is_large = plan[at + Q.CO_UNIT] == 8
    for i in range(count):
        size = max(rows[_SIZE + i], 0)
        copy_elements(out_octets, target + used, octets, rows[_START + i], size)
        used += size
        if is_large:
            out[np.uint64(ends + i)] = used
        else:
            out_4[np.uint64(ends + i)] = used


@helper
def _copy_column(mem, mem_4, mem_2, mem_1, fragment, plan, at, rows, count, first, out, out_4, out_2, out_1):
    """Copy the values of one column. Return OK, ST_MORE for the general path, or ST_SPACE - bytes of texts."""
    plan[at + Q.CO_MORE_NULLS] = 0
    plan[at + Q.CO_MORE_USED] = 0
    if plan[at + Q.CO_KIND] == Q.COLUMN_ROWID:
        move_words(rows, P.R_ROWID * P.VECTOR_ROWS, out, plan[at + Q.CO_TARGET] + first, count)
        return A.OK
    if plan[at + Q.CO_KIND] != Q.COLUMN_FIXED:
        total = _measure_texts(mem, mem_1, fragment, plan, at, rows, count)
        if total < 0:
            return A.ST_MORE
        if plan[at + Q.CO_USED] + total > plan[at + Q.CO_ROOM]:
            return A.ST_SPACE - total
        _copy_texts(mem_1, out_1, out, out_4, plan, at, rows, count, first)
        plan[at + Q.CO_MORE_USED] = total
    elif plan[at + Q.CO_UNIT] == 8:
        _copy_units(out, mem, 1, plan, at, rows, count, first)
    elif plan[at + Q.CO_UNIT] == 4:
        _copy_units(out_4, mem_4, 2, plan, at, rows, count, first)
    elif plan[at + Q.CO_UNIT] == 2:
        _copy_units(out_2, mem_2, 4, plan, at, rows, count, first)
    else:
        _copy_units(out_1, mem_1, 8, plan, at, rows, count, first)
    _put_validity(mem, out, plan, at, rows, count, first)
    return A.OK


@helper
def copy_columns(mem, mem_4, mem_2, mem_1, fragment, plan, rows, count, first, out, out_4, out_2, out_1):
    """Copy the rows in the plane into all columns, after `first` others; all of them, or none: then return as
    `_copy_column`.
    """
    columns = plan[Q.CO_COLUMNS] if count else 0
    for number in range(columns):
        at = Q.CO_FIRST + number * Q.CO_WORDS
        done = _copy_column(mem, mem_4, mem_2, mem_1, fragment, plan, at, rows, count, first, out, out_4, out_2, out_1)
        if done != A.OK:
            return done
    for number in range(columns):
        at = Q.CO_FIRST + number * Q.CO_WORDS
        plan[at + Q.CO_NULLS] += plan[at + Q.CO_MORE_NULLS]
        plan[at + Q.CO_USED] += plan[at + Q.CO_MORE_USED]
    return A.OK


@kernel(
    "int64(int64[::1], int32[::1], int16[::1], uint8[::1], int64, int64, int64, int64, int64[::1], int64[::1], "
    "int64[::1], int64[::1], int32[::1], int16[::1], uint8[::1], int64[::1])"
)
def scan_columns(
    mem, mem_4, mem_2, mem_1, fragment, view, txn, limit, filter, plan, rows, out, out_4, out_2, out_1, state
):
    """Copy visible rows that a filter accepts into columns, from state[PS_POSITION] on, examining at most `limit` slots
    and a vector more. state[PS_ROWS]: the rows in the columns.

    Return OK at the fragment's end; ST_MORE, with state[PS_OWN] set if the general path must read the next rows;
    ST_SPACE if the columns are full, or ST_SPACE - bytes of the next texts of one column; ST_DROPPED; or, with nothing
    done, ST_CHANGED if the table has changed since the view was opened, or ST_TOO_OLD.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    status = check_view(mem, view, mem[fragment + A.F_OWNER])
    if status != A.OK:
        return status
    row_words = mem[fragment + A.F_ROW_WORDS]
    state[Q.PS_LOOKED] = 0
    while state[Q.PS_LOOKED] < limit:
        slots, row = slots_ahead(mem, fragment, state)
        if slots < 0:
            return A.OK
        if slots == 0:
            continue
        first = state[Q.PS_ROWS]
        slots = min(slots, P.VECTOR_ROWS, plan[Q.CO_CAPACITY] - first)
        if slots <= 0:
            return A.ST_SPACE
        if txn != 0 and has_own(mem, txn, row, row_words, slots):
            state[Q.PS_OWN] = 1
            return A.ST_MORE
        count = found_rows(mem, filter, row, row_words, slots, state[Q.PS_POSITION], rows)
        done = copy_columns(mem, mem_4, mem_2, mem_1, fragment, plan, rows, count, first, out, out_4, out_2, out_1)
        if done != A.OK:
            state[Q.PS_OWN] = 1 if done == A.ST_MORE else 0
            return done
        state[Q.PS_ROWS] += count
        state[Q.PS_POSITION] += slots
        state[Q.PS_LOOKED] += slots
    return A.ST_MORE
