"""Programs over rows where they lie: a scan that copies only what its condition accepts, or adds rows up.

Programs come here that need nothing but fixed columns of memory, run as a vector and are short, so that a call ends in
time. Rows this transaction has changed lie in its buffer: each is copied behind what was found and judged by itself.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from engine.access.program_scan_layout import (
    PS_CODE,
    PS_END,
    PS_LOOKED,
    PS_OWN,
    PS_POSITION,
    PS_ROWS,
    PS_STATUS,
    PS_WORDS,
)
from engine.access.reads_kernels import visible
from engine.jit.kernel import helper, kernel
from engine.log.own_images_kernels import entry_words, is_image_away, write_entry
from engine.memory.arena_layout import (
    AUTHOR_MASK,
    AUTHOR_SHIFT,
    ENTRY_WORDS,
    F_NUMBER,
    F_PAGES,
    F_ROW_WORDS,
    LIVE,
    LOCK_MASK,
    OK,
    PAGE_HEADER_WORDS,
    PAGE_SHIFT,
    PG_FRESH,
    ROW_HEADER_WORDS,
    ST_DROPPED,
    ST_INVARIANT,
    ST_MORE,
    ST_SPACE,
    ST_SPOOLED,
    STATE_MASK,
    STATE_SHIFT,
)
from engine.memory.handles_kernels import descriptor_of
from engine.programs import program_layout as p
from engine.programs.vm_rows_kernels import add_wide
from engine.programs.vm_run_kernels import run_rows
from engine.programs.vm_words_kernels import bits_of, float_of
from engine.rows.rows_kernels import known_row_address, map_get

SLOT_BITS = 16
SLOT_MASK = 0xFFFF


@helper
def _gather_live(mem, row, row_words, stop, rowid, rows, count):
    """Put the addresses of LIVE rows of slots [rowid's, stop) into the planes; returns how many there are then."""
    fixed = np.uint64(p.R_FIXED * p.VECTOR_ROWS)
    rowids = np.uint64(p.R_ROWID * p.VECTOR_ROWS)
    for i in range(stop - (rowid & SLOT_MASK)):
        head = mem[np.uint64(row)]
        rows[fixed + np.uint64(count)] = row + ROW_HEADER_WORDS
        rows[rowids + np.uint64(count)] = rowid + i
        count += 1 if (head >> STATE_SHIFT) & STATE_MASK == LIVE else 0
        row += row_words
    return count


@helper
def _gather_seen(mem, txn, row, row_words, stop, rowid, rows, count):
    """`_gather_live` as a transaction sees it; returns (how many, slot of a row it holds, or stop)."""
    for slot in range(rowid & SLOT_MASK, stop):
        head = mem[row]
        seen = 1 if (head >> STATE_SHIFT) & STATE_MASK == LIVE else 0
        if head & LOCK_MASK:
            seen = visible(mem, txn, row)
            if seen == 2:
                return count, slot
        if seen:
            rows[p.R_FIXED * p.VECTOR_ROWS + count] = row + ROW_HEADER_WORDS
            rows[p.R_ROWID * p.VECTOR_ROWS + count] = (rowid & ~SLOT_MASK) | slot
            count += 1
        row += row_words
    return count, stop


@helper
def _gather(mem, fragment, txn, limit, rows, state):
    """Addresses of the next visible rows, at most a vector of them; state[PS_OWN]: the next row is an own one, which
    is left for a vector of its own.
    """
    count = 0
    row_words = mem[fragment + F_ROW_WORDS]
    state[PS_OWN] = 0
    while count < p.VECTOR_ROWS and state[PS_LOOKED] < limit:
        position = state[PS_POSITION]
        logical = position >> SLOT_BITS
        if logical >= mem[fragment + F_PAGES]:
            state[PS_END] = 1
            break
        page = map_get(mem, fragment, logical)
        slot = position & SLOT_MASK
        base = (page << PAGE_SHIFT) if page > 0 else 0
        fresh = mem[base + PG_FRESH] if page > 0 else 0
        if slot >= fresh:
            state[PS_POSITION] = (logical + 1) << SLOT_BITS
            state[PS_LOOKED] += 1
            continue
        stop = min(fresh, slot + p.VECTOR_ROWS - count, slot + limit - state[PS_LOOKED])
        row = base + PAGE_HEADER_WORDS + slot * row_words
        end = stop
        if txn == 0:
            count = _gather_live(mem, row, row_words, stop, position, rows, count)
        else:
            count, end = _gather_seen(mem, txn, row, row_words, stop, position, rows, count)
        state[PS_LOOKED] += end - slot
        state[PS_POSITION] = (logical << SLOT_BITS) | end
        if end < stop:
            state[PS_OWN] = 1
            break
    return count


@helper
def _fill_headers(mem, data, fragment, program, rows, count, is_own):
    """The planes of pseudo-columns, as far as the program needs them."""
    needs = program[p.H_NEEDS]
    if needs & (p.NEED_EPOCH | p.NEED_AUTHOR):
        for i in range(count):
            image = rows[p.R_FIXED * p.VECTOR_ROWS + i]
            if is_own:
                rows[p.R_EPOCH * p.VECTOR_ROWS + i] = data[image - 2]
                rows[p.R_AUTHOR * p.VECTOR_ROWS + i] = data[image - 1] & AUTHOR_MASK
            else:
                rows[p.R_EPOCH * p.VECTOR_ROWS + i] = mem[image - 1]
                rows[p.R_AUTHOR * p.VECTOR_ROWS + i] = (mem[image - 2] >> AUTHOR_SHIFT) & AUTHOR_MASK
    if needs & p.NEED_FRAGMENT:
        for i in range(count):
            rows[p.R_FRAGMENT * p.VECTOR_ROWS + i] = mem[fragment + F_NUMBER]


@helper
def _copy_accepted(mem, buf, fragment, rows, count, is_own, work, is_copied, out, offsets, state):
    """Entries of accepted rows to out, in order; OK, or ST_SPACE - words needed with the position at the row that is
    without room. A row with an error is copied too, so that it can be named.
    """
    for i in range(count):
        verdict = work[np.uint64(p.W_VERDICT) + np.uint64(i)]
        if verdict == p.VERDICT_REFUSED or (verdict == p.VERDICT_OK and not is_copied):
            continue
        if verdict == p.VERDICT_NONE:
            break
        rowid = rows[p.R_ROWID * p.VECTOR_ROWS + i]
        is_error = verdict == p.VERDICT_ERROR
        if is_copied or is_error:
            row = known_row_address(mem, fragment, rowid)
            need = entry_words(mem, fragment, row, is_own)
            if state[PS_WORDS] + need > out.size:
                state[PS_POSITION] = rowid
                return ST_SPACE - need
            if not is_own:
                write_entry(mem, buf, fragment, rowid, row, False, out, state[PS_WORDS])
            if is_error:
                state[PS_STATUS] = p.RUN_ERROR
                state[PS_CODE] = work[p.W_CODE + i]
                return OK
            offsets[state[PS_ROWS]] = state[PS_WORDS] + ENTRY_WORDS
            state[PS_ROWS] += 1
            state[PS_WORDS] += need
        if verdict == p.VERDICT_LAST:
            state[PS_STATUS] = p.RUN_LAST
            state[PS_POSITION] = rowid + 1
            return OK
        if is_copied and state[PS_ROWS] >= offsets.size:
            state[PS_POSITION] = rowid + 1
            return ST_SPACE
    return OK


@kernel(
    "int64(int64[::1], int64, int64, int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], "
    "int64[::1], int64[::1])"
)
def scan_program(mem, fragment, txn, buf, limit, is_copied, program, rows, work, out, offsets, state):
    """Run a program over visible rows from state[PS_POSITION] on, looking at no more than `limit` slots, and copy the
    entries of those it accepts into out unless is_copied is 0.

    state: words PS_… of `engine/access/program_scan_layout.py`. Returns OK at the fragment's end, behind a last row, or
    at a row with an error, whose entry lies at out[state[PS_WORDS]:]; ST_MORE; ST_SPOOLED; or ST_SPACE - words needed.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return ST_DROPPED
    state[PS_LOOKED] = 0
    state[PS_END] = 0
    state[PS_STATUS] = p.RUN_OK
    if is_copied != 0 and state[PS_ROWS] >= offsets.size:
        return ST_SPACE
    while state[PS_END] == 0 and state[PS_LOOKED] < limit:
        count = _gather(mem, fragment, txn, limit, rows, state)
        is_own = count == 0 and state[PS_OWN] != 0
        data = mem
        if is_own:
            rowid = state[PS_POSITION]
            row = known_row_address(mem, fragment, rowid)
            if is_image_away(mem, buf, row):
                return ST_SPOOLED
            need = entry_words(mem, fragment, row, True)
            if state[PS_WORDS] + need > out.size:
                return ST_SPACE - need
            write_entry(mem, buf, fragment, rowid, row, True, out, state[PS_WORDS])
            rows[p.R_FIXED * p.VECTOR_ROWS] = state[PS_WORDS] + ENTRY_WORDS
            rows[p.R_ROWID * p.VECTOR_ROWS] = rowid
            state[PS_POSITION] = rowid + 1
            state[PS_LOOKED] += 1
            data = out
            count = 1
        if count == 0:
            continue
        _fill_headers(mem, data, fragment, program, rows, count, is_own)
        status = run_rows(data, rows, count, program, work)
        if status == p.RUN_BROKEN:
            return ST_INVARIANT
        if is_copied == 0 and status == p.RUN_OK:
            continue
        done = _copy_accepted(mem, buf, fragment, rows, count, is_own, work, is_copied != 0, out, offsets, state)
        if done != OK or state[PS_STATUS] != p.RUN_OK:
            return done
    return OK if state[PS_END] != 0 else ST_MORE


@helper
def _sum_integer_slots(mem, row, row_words, slots, word, null_word, null_bit, work):
    """Integers of a page's LIVE rows, as halves that cannot overflow; other slots add 0."""
    lows = 0
    highs = 0
    count = 0
    for _ in range(slots):
        due = 1 if (mem[np.uint64(row)] >> STATE_SHIFT) & STATE_MASK == LIVE else 0
        due &= 1 if mem[np.uint64(row + null_word)] & null_bit == 0 else 0
        value = mem[np.uint64(row + word)] & -due
        lows += value & 0xFFFFFFFF
        highs += value >> 32
        count += due
        row += row_words
    add_wide(work, p.W_ACCUMULATORS, lows, 0)
    add_wide(work, p.W_ACCUMULATORS, highs << 32, highs >> 32)
    work[p.W_ACCUMULATORS + p.ACC_COUNT] += count


@helper
def _sum_float_slots(mem, row, row_words, slots, word, null_word, null_bit, work):
    """Floats of a page's LIVE rows, by Neumaier's sum as programs have it; other slots add 0."""
    total = float_of(work[p.W_ACCUMULATORS + p.ACC_LOW])
    rest = float_of(work[p.W_ACCUMULATORS + p.ACC_HIGH])
    count = 0
    for _ in range(slots):
        due = 1 if (mem[np.uint64(row)] >> STATE_SHIFT) & STATE_MASK == LIVE else 0
        due &= 1 if mem[np.uint64(row + null_word)] & null_bit == 0 else 0
        value = float_of(mem[np.uint64(row + word)] & -due)
        whole = total + value
        lost_of_value = (total - whole) + value
        lost_of_total = (value - whole) + total
        lost = lost_of_value if abs(total) >= abs(value) else lost_of_total
        rest += lost if lost == lost else 0.0
        total = whole
        count += due
        row += row_words
    work[p.W_ACCUMULATORS + p.ACC_LOW] = bits_of(total)
    work[p.W_ACCUMULATORS + p.ACC_HIGH] = bits_of(rest)
    work[p.W_ACCUMULATORS + p.ACC_COUNT] += count


@kernel("int64(int64[::1], int64, int64, int64, int64, int64, int64, int64[::1], int64[::1])")
def sum_column(mem, fragment, limit, is_float, word, null_word, null_bit, work, state):
    """What `scan_program` does with a program of nothing but the sum of a column of eight bytes, over committed rows:
    page by page from state[PS_POSITION] on, until `limit` slots were looked at. Words of the image are counted from
    the row's header; null_bit is 0 for columns without NULLs. Returns OK at the fragment's end, or ST_MORE.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return ST_DROPPED
    state[PS_LOOKED] = 0
    state[PS_STATUS] = p.RUN_OK
    row_words = mem[fragment + F_ROW_WORDS]
    if not 0 <= word < row_words or not 0 <= null_word < row_words:
        return ST_INVARIANT
    while state[PS_LOOKED] < limit:
        logical = state[PS_POSITION] >> SLOT_BITS
        if logical >= mem[fragment + F_PAGES]:
            return OK
        page = map_get(mem, fragment, logical)
        if page > 0:
            base = page << PAGE_SHIFT
            row = base + PAGE_HEADER_WORDS
            slots = mem[base + PG_FRESH]
            if is_float:
                _sum_float_slots(mem, row, row_words, slots, word, null_word, null_bit, work)
            else:
                _sum_integer_slots(mem, row, row_words, slots, word, null_word, null_bit, work)
            state[PS_LOOKED] += slots
        state[PS_POSITION] = (logical + 1) << SLOT_BITS
        state[PS_LOOKED] += 1
    return ST_MORE
