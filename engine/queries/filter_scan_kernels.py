"""Filters over rows in place: one pass over a page finds the rows that are accepted, then they are copied or added up.

`scan_filter` does what `scan_program` does, for programs that are filters (`engine/queries/filters.py`).
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.ahead_kernels import read_ahead
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log.own_images_kernels import lock_owner
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.programs import program_layout as P
from tidemark.engine.programs.vm_columns_kernels import read_fixed_numbers
from tidemark.engine.programs.vm_rows_kernels import add_up, add_wide
from tidemark.engine.programs.vm_words_kernels import below, bits_of, float_of, subtract_words
from tidemark.engine.queries import program_scan_layout as Q
from tidemark.engine.queries.program_scan_kernels import (
    READ_AHEAD_ROWS,
    SLOT_MASK,
    copy_accepted,
    gather_live,
    slots_ahead,
)
from tidemark.engine.rows.ticks_kernels import check_view


@helper
def _holds(mem, row, word, left, mask, least, span):
    value = (mem[np.uint64(row + word)] << left) & mask
    return 1 - below(span, subtract_words(value, least))


@helper
def _holds_folded(mem, row, word, left, mask, fold, least, span):
    """Do `_holds` for a number of any type."""
    value = (mem[np.uint64(row + word)] << left) & mask
    value ^= (value >> 63) & fold
    return 1 - below(span, subtract_words(value, least))


@helper
def _is_value(mem, row, word, bit):
    return 1 if mem[np.uint64(row + word)] & bit == 0 else 0


@helper
def _test_of(filter, number):
    at = Q.FT_TESTS + number * Q.TEST_WORDS
    return (
        filter[at + Q.TW_WORD],
        filter[at + Q.TW_LEFT],
        filter[at + Q.TW_MASK],
        filter[at + Q.TW_FOLD],
        filter[at + Q.TW_LEAST],
        filter[at + Q.TW_SPAN],
        filter[at + Q.TW_NULL_WORD],
        filter[at + Q.TW_NULL_BIT],
    )


@helper
def _find(mem, filter, row, row_words, slots, rowid, rows, folds, two, nulls):
    """Put the addresses of the accepted rows of some slots into the planes; return how many.

    folds, two, nulls: None if all tests are of integers; if there is one test; if there are at most two, of columns
    that are never NULL. So each form has a loop of its own, with what it needs and no more.
    """
    accepted = filter[Q.FT_ACCEPTED]
    word, left, mask, fold, least, span, null_word, null_bit = _test_of(filter, 0)
    word2, left2, mask2, fold2, least2, span2, null_word2, null_bit2 = _test_of(filter, 1)
    word3, left3, mask3, fold3, least3, span3, null_word3, null_bit3 = _test_of(filter, 2)
    fixed = np.uint64(P.R_FIXED * P.VECTOR_ROWS)
    rowids = np.uint64(P.R_ROWID * P.VECTOR_ROWS)
    count = 0
    ahead = READ_AHEAD_ROWS * row_words
    for i in range(slots):
        read_ahead(mem, row + ahead)
        live = 1 if (mem[np.uint64(row)] >> A.STATE_SHIFT) & A.STATE_MASK == A.LIVE else 0
        rows[fixed + np.uint64(count)] = row + A.ROW_HEADER_WORDS
        rows[rowids + np.uint64(count)] = rowid + i
        if folds is None:
            held = _holds(mem, row, word, left, mask, least, span)
        else:
            held = _holds_folded(mem, row, word, left, mask, fold, least, span)
        if nulls is not None:
            held &= _is_value(mem, row, null_word, null_bit)
        if two is not None:
            if folds is None:
                other = _holds(mem, row, word2, left2, mask2, least2, span2)
            else:
                other = _holds_folded(mem, row, word2, left2, mask2, fold2, least2, span2)
            if nulls is not None:
                other &= _is_value(mem, row, null_word2, null_bit2)
            held |= other << 1
        if nulls is not None:
            third = _holds_folded(mem, row, word3, left3, mask3, fold3, least3, span3)
            third &= _is_value(mem, row, null_word3, null_bit3)
            held |= third << 2
        count += (accepted >> held) & live
        row += row_words
    return count


@helper
def found_rows(mem, filter, row, row_words, slots, rowid, rows):
    """Do `_find` by the loop of the filter's form."""
    form = filter[Q.FT_FORM]
    if form == Q.FORM_INTEGER:
        return _find(mem, filter, row, row_words, slots, rowid, rows, None, None, None)
    if form == Q.FORM_NUMBER:
        return _find(mem, filter, row, row_words, slots, rowid, rows, 1, None, None)
    if form == Q.FORM_INTEGERS:
        return _find(mem, filter, row, row_words, slots, rowid, rows, None, 1, None)
    if form == Q.FORM_NUMBERS:
        return _find(mem, filter, row, row_words, slots, rowid, rows, 1, 1, None)
    if form == Q.FORM_ANY:
        return _find(mem, filter, row, row_words, slots, rowid, rows, 1, 1, 1)
    return gather_live(mem, row, row_words, (rowid & SLOT_MASK) + slots, rowid, rows, 0)


@helper
def has_own(mem, txn, row, row_words, slots):
    """Whether the transaction has locked or changed one of these rows."""
    for _ in range(slots):
        head = mem[np.uint64(row)]
        if head & A.LOCK_MASK and lock_owner(mem, head) == txn:
            return True
        row += row_words
    return False


@helper
def _sum_column(mem, filter, at, rows, count, work, into, floats):
    """Do what the machine does for the sum of a column of eight bytes: in halves that cannot overflow, or, if floats is
    not None, by Neumaier's sum. NULL adds 0.
    """
    word = filter[at + Q.AG_WORD]
    null_word = filter[at + Q.AG_NULL_WORD]
    null_bit = filter[at + Q.AG_NULL_BIT]
    fixed = np.uint64(P.R_FIXED * P.VECTOR_ROWS)
    values = 0
    if floats is None:
        lows = 0
        highs = 0
        for i in range(count):
            image = rows[fixed + np.uint64(i)]
            due = 1 if mem[np.uint64(image + null_word)] & null_bit == 0 else 0
            value = mem[np.uint64(image + word)] & -due
            lows += value & 0xFFFFFFFF
            highs += value >> 32
            values += due
        add_wide(work, into, lows, 0)
        add_wide(work, into, highs << 32, highs >> 32)
    else:
        total = float_of(work[into + P.ACC_LOW])
        rest = float_of(work[into + P.ACC_HIGH])
        for i in range(count):
            image = rows[fixed + np.uint64(i)]
            due = 1 if mem[np.uint64(image + null_word)] & null_bit == 0 else 0
            value = float_of(mem[np.uint64(image + word)] & -due)
            whole = total + value
            lost_of_value = (total - whole) + value
            lost_of_total = (value - whole) + total
            lost = lost_of_value if abs(total) >= abs(value) else lost_of_total
            rest += lost if lost == lost else 0.0  # infinities lose nothing
            total = whole
            values += due
        work[into + P.ACC_LOW] = bits_of(total)
        work[into + P.ACC_HIGH] = bits_of(rest)
    work[into + P.ACC_COUNT] += values


@helper
def _aggregate(mem, filter, rows, count, work):
    """Add up the rows in the planes: sums of words directly, the rest with what the machine adds up registers with."""
    for number in range(filter[Q.FT_AGGREGATES]):
        at = Q.FT_ADDED + number * Q.AGGREGATE_WORDS
        into = P.W_ACCUMULATORS + number * P.ACCUMULATOR_WORDS
        way = filter[at + Q.AG_WAY]
        if way == Q.WAY_ROWS:
            work[into + P.ACC_COUNT] += count
            continue
        if way == Q.WAY_INTEGERS:
            _sum_column(mem, filter, at, rows, count, work, into, None)
            continue
        if way == Q.WAY_FLOATS:
            _sum_column(mem, filter, at, rows, count, work, into, 1)
            continue
        if filter[at + Q.AG_READ]:
            read_fixed_numbers(mem, rows, filter, work, at, P.R_FIXED, 0, 0, count)
        add_up(work, filter[at + Q.AG_OPCODE], 0, number, filter[at + Q.AG_TYPE], 0, 0, count)


@kernel(
    "int64(int64[::1], int64, int64, int64, int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], "
    "int64[::1], int64[::1])"
)
def scan_filter(mem, fragment, view, txn, buf, limit, is_copied, filter, rows, work, out, offsets, state):
    """Copy the entries of visible rows that a filter accepts, or, if is_copied is 0, add them up, from
    state[PS_POSITION] on, examining at most `limit` slots and a vector more.

    Return as `scan_program`. ST_MORE with state[PS_OWN] set: the transaction has changed one of the next rows, which
    only `scan_program` reads.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    status = check_view(mem, view, mem[fragment + A.F_OWNER])
    if status != A.OK:
        return status
    state[Q.PS_LOOKED] = 0
    state[Q.PS_STATUS] = P.RUN_OK
    state[Q.PS_OWN] = 0
    if is_copied != 0 and state[Q.PS_ROWS] >= offsets.size:
        return A.ST_SPACE
    row_words = mem[fragment + A.F_ROW_WORDS]
    for i in range(P.VECTOR_ROWS):
        step = np.uint64(i)
        work[np.uint64(P.W_RESUME) + step] = 0
        work[np.uint64(P.W_VERDICT) + step] = P.VERDICT_OK
    while state[Q.PS_LOOKED] < limit:
        slots, row = slots_ahead(mem, fragment, state)
        if slots < 0:
            return A.OK
        if slots == 0:
            continue
        slots = min(slots, P.VECTOR_ROWS)
        if txn != 0 and has_own(mem, txn, row, row_words, slots):
            state[Q.PS_OWN] = 1
            return A.ST_MORE
        count = found_rows(mem, filter, row, row_words, slots, state[Q.PS_POSITION], rows)
        state[Q.PS_LOOKED] += slots
        state[Q.PS_POSITION] += slots
        if is_copied == 0:
            _aggregate(mem, filter, rows, count, work)
            continue
        done = copy_accepted(mem, buf, fragment, rows, count, False, work, True, out, offsets, state)
        if done != A.OK:
            return done
    return A.ST_MORE
