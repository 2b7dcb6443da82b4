"""Programs over rows in place: a scan that copies only rows its condition accepts, or aggregates rows.

Only short programs that read nothing but columns in memory and run as a vector are run here, so that a call is short.
Rows this transaction has changed are in its buffer: each is copied to the output first, and judged there alone. So is a
row whose var part is missing or in several chunks, if the program reads var parts.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.access.reads_kernels import copy_row, visible
from tidemark.engine.jit.ahead_kernels import read_ahead
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log.own_images_kernels import entry_words, write_entry
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.programs import program_layout as P
from tidemark.engine.programs.vm_run_kernels import run_rows
from tidemark.engine.queries import program_scan_layout as Q
from tidemark.engine.rows.rows_kernels import known_row_address, map_get
from tidemark.engine.rows.side_pages_kernels import var_of
from tidemark.engine.rows.ticks_kernels import check_view

READ_AHEAD_ROWS = 64
SLOT_BITS = 16
FEW_ROWS = 8
COPIED_WORDS_SHIFT = 6  # so many words are copied in the time of a slot
SLOT_MASK = 0xFFFF


@helper
def slots_ahead(mem, fragment, state):
    """Return (how many slots have had rows in the page of state[PS_POSITION], from there on; address of the first one).
    -1 at the fragment's end. If there are none, the position is moved to the next page, which counts as one slot.
    """
    logical = state[Q.PS_POSITION] >> SLOT_BITS
    if logical >= mem[fragment + A.F_PAGES]:
        return -1, 0
    slot = state[Q.PS_POSITION] & SLOT_MASK
    page = map_get(mem, fragment, logical)
    base = page << A.PAGE_SHIFT
    fresh = mem[base + A.PG_FRESH] if page > 0 else 0
    if slot >= fresh:
        state[Q.PS_POSITION] = (logical + 1) << SLOT_BITS
        state[Q.PS_LOOKED] += 1
        return 0, 0
    return fresh - slot, base + A.PAGE_HEADER_WORDS + slot * mem[fragment + A.F_ROW_WORDS]


@helper
def gather_live(mem, row, row_words, stop, rowid, rows, count):
    """Append the addresses of LIVE rows in slots from that of `rowid` to `stop` (exclusive) to the planes; return the
    new number of rows.
    """
    fixed = np.uint64(P.R_FIXED * P.VECTOR_ROWS)
    rowids = np.uint64(P.R_ROWID * P.VECTOR_ROWS)
    ahead = READ_AHEAD_ROWS * row_words
    for i in range(stop - (rowid & SLOT_MASK)):
        read_ahead(mem, row + ahead)
        head = mem[np.uint64(row)]
        rows[fixed + np.uint64(count)] = row + A.ROW_HEADER_WORDS
        rows[rowids + np.uint64(count)] = rowid + i
        count += 1 if (head >> A.STATE_SHIFT) & A.STATE_MASK == A.LIVE else 0
        row += row_words
    return count


@helper
def _gather_seen(mem, txn, row, row_words, stop, rowid, rows, count):
    """Do `gather_live` as a transaction sees the rows; return (number of rows, slot of the first row it has changed,
    or stop).
    """
    for slot in range(rowid & SLOT_MASK, stop):
        head = mem[row]
        seen = 1 if (head >> A.STATE_SHIFT) & A.STATE_MASK == A.LIVE else 0
        if head & A.LOCK_MASK:
            seen = visible(mem, txn, row)
            if seen == 2:
                return count, slot
        if seen:
            rows[P.R_FIXED * P.VECTOR_ROWS + count] = row + A.ROW_HEADER_WORDS
            rows[P.R_ROWID * P.VECTOR_ROWS + count] = (rowid & ~SLOT_MASK) | slot
            count += 1
        row += row_words
    return count, stop


@helper
def _gather(mem, fragment, txn, limit, most, rows, state):
    """Gather the addresses of the next visible rows, at most `most`. state[PS_OWN]: the transaction has changed the
    next row, which gets its own vector.
    """
    count = 0
    row_words = mem[fragment + A.F_ROW_WORDS]
    state[Q.PS_OWN] = 0
    while count < most and state[Q.PS_LOOKED] < limit:
        position = state[Q.PS_POSITION]
        slots, row = slots_ahead(mem, fragment, state)
        if slots < 0:
            state[Q.PS_END] = 1
            break
        if slots == 0:
            continue
        slot = position & SLOT_MASK
        stop = slot + min(slots, most - count, limit - state[Q.PS_LOOKED])
        end = stop
        if txn == 0:
            count = gather_live(mem, row, row_words, stop, position, rows, count)
        else:
            count, end = _gather_seen(mem, txn, row, row_words, stop, position, rows, count)
        state[Q.PS_LOOKED] += end - slot
        state[Q.PS_POSITION] += end - slot
        if end < stop:
            state[Q.PS_OWN] = Q.OWN
            break
    return count


@helper
def _find_vars(mem, fragment, rows, count, state):
    """Find the var parts of the gathered rows, up to the first one that is not one chunk; the next vector begins there.
    Return the number of rows before it; if there is none, state[PS_OWN] says that this row is copied.
    """
    is_beside = mem[fragment + A.F_VAR_SINCE] != 0  # references are in side pages
    place = mem[fragment + A.F_ROW_WORDS] - A.ROW_HEADER_WORDS - 1
    for i in range(count):
        step = np.uint64(i)
        image = rows[np.uint64(P.R_FIXED * P.VECTOR_ROWS) + step]
        if is_beside:
            reference = var_of(mem, fragment, image - A.ROW_HEADER_WORDS)
        else:
            reference = mem[np.uint64(image + place)]
        base = (reference >> 16) << A.PAGE_SHIFT
        word = mem[np.uint64(base + A.PAGE_WORDS - 1 - (reference & 0xFFFF))]
        if reference == 0 or word & A.VAR_CHAINED:
            state[Q.PS_POSITION] = rows[P.R_ROWID * P.VECTOR_ROWS + i]
            state[Q.PS_END] = 0
            state[Q.PS_OWN] = Q.OWN_NOT if i == 0 else 0
            return i
        rows[np.uint64(P.R_VAR * P.VECTOR_ROWS) + step] = base + (word & 0xFFFF)
    return count


@helper
def _fill_headers(mem, data, fragment, program, rows, count, is_own):
    """Fill the planes of pseudo-columns, as far as the program needs them; of a copied row the var part too."""
    needs = program[P.H_NEEDS]
    if needs & (P.NEED_EPOCH | P.NEED_AUTHOR):
        for i in range(count):
            image = rows[P.R_FIXED * P.VECTOR_ROWS + i]
            if is_own:
                rows[P.R_EPOCH * P.VECTOR_ROWS + i] = data[image - 2]
                rows[P.R_AUTHOR * P.VECTOR_ROWS + i] = data[image - 1] & A.AUTHOR_MASK
            else:
                rows[P.R_EPOCH * P.VECTOR_ROWS + i] = mem[image - 1]
                rows[P.R_AUTHOR * P.VECTOR_ROWS + i] = (mem[image - 2] >> A.AUTHOR_SHIFT) & A.AUTHOR_MASK
    if is_own:
        rows[P.R_VAR * P.VECTOR_ROWS] = rows[P.R_FIXED * P.VECTOR_ROWS] + program[P.H_FIXED_WORDS]
    if needs & P.NEED_FRAGMENT:
        for i in range(count):
            rows[P.R_FRAGMENT * P.VECTOR_ROWS + i] = mem[fragment + A.F_NUMBER]


@helper
def copy_accepted(mem, buf, fragment, rows, count, is_own, work, is_copied, out, offsets, state):
    """Copy entries of accepted rows to out, in order. Return OK, or ST_SPACE - words needed with the position at the
    row that does not fit. A row with an error is copied too, so that the error can name it.
    """
    for i in range(count):
        verdict = work[np.uint64(P.W_VERDICT) + np.uint64(i)]
        if verdict == P.VERDICT_REFUSED or (verdict == P.VERDICT_OK and not is_copied):
            continue
        if verdict == P.VERDICT_NONE:
            break
        rowid = rows[P.R_ROWID * P.VECTOR_ROWS + i]
        is_error = verdict == P.VERDICT_ERROR
        if is_copied or is_error:
            row = known_row_address(mem, fragment, rowid)
            need = entry_words(mem, fragment, row, is_own and state[Q.PS_OWN] == Q.OWN)
            if state[Q.PS_WORDS] + need > out.size:
                state[Q.PS_POSITION] = rowid
                return A.ST_SPACE - need
            if not is_own:
                write_entry(mem, buf, fragment, rowid, row, False, out, state[Q.PS_WORDS])
            if is_error:
                state[Q.PS_STATUS] = P.RUN_ERROR
                state[Q.PS_CODE] = work[P.W_CODE + i]
                return A.OK
            offsets[state[Q.PS_ROWS]] = state[Q.PS_WORDS] + A.ENTRY_WORDS
            state[Q.PS_ROWS] += 1
            state[Q.PS_WORDS] += need
        if verdict == P.VERDICT_LAST:
            state[Q.PS_STATUS] = P.RUN_LAST
            state[Q.PS_POSITION] = rowid + 1
            return A.OK
        if is_copied and state[Q.PS_ROWS] >= offsets.size:
            state[Q.PS_POSITION] = rowid + 1
            return A.ST_SPACE
    return A.OK


@kernel(
    "int64(int64[::1], int64, int64, int64, int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], "
    "int64[::1], int64[::1])"
)
def scan_program(mem, fragment, view, txn, buf, limit, is_copied, program, rows, work, out, offsets, state):
    """Run a program over visible rows from state[PS_POSITION] on, examining at most `limit` slots, and copy the entries
    of accepted rows into out unless is_copied is 0.

    state: words PS_… of `program_scan_layout.py`. Return OK at the fragment's end, after the row at which the program
    ends the scan (RUN_LAST), or at a row with an error, with its entry at out[state[PS_WORDS]:]; ST_MORE,
    with RUN_FULL in state[PS_STATUS] if groups need more memory before it is called again;
    ST_SPOOLED; ST_SPACE - words needed, or ST_SPACE if offsets is full; ST_INVARIANT for RUN_BROKEN; or, with nothing
    done, ST_CHANGED if the table has changed since the view was opened, or ST_TOO_OLD.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    status = check_view(mem, view, mem[fragment + A.F_OWNER])
    if status != A.OK:
        return status
    state[Q.PS_LOOKED] = 0
    state[Q.PS_END] = 0
    state[Q.PS_STATUS] = P.RUN_OK
    needs_var = program[P.H_NEEDS] & P.NEED_VAR != 0
    most = P.VECTOR_ROWS
    if is_copied != 0 and state[Q.PS_ROWS] >= offsets.size:
        return A.ST_SPACE
    while state[Q.PS_END] == 0 and state[Q.PS_LOOKED] < limit:
        first = state[Q.PS_POSITION]
        count = _gather(mem, fragment, txn, limit, most, rows, state)
        if count != 0 and needs_var:
            found = _find_vars(mem, fragment, rows, count, state)
            if found < count:  # the next rows may be like this one
                state[Q.PS_LOOKED] -= count - found
                most = FEW_ROWS
            else:
                most = min(most * 2, P.VECTOR_ROWS)
            count = found
        is_own = count == 0 and state[Q.PS_OWN] != 0
        data = mem
        if is_own:
            rowid = state[Q.PS_POSITION]
            row = known_row_address(mem, fragment, rowid)
            need = copy_row(mem, buf, fragment, rowid, row, state[Q.PS_OWN] == Q.OWN, out, state[Q.PS_WORDS])
            if need < 0:
                return need
            rows[P.R_FIXED * P.VECTOR_ROWS] = state[Q.PS_WORDS] + A.ENTRY_WORDS
            rows[P.R_ROWID * P.VECTOR_ROWS] = rowid
            state[Q.PS_POSITION] = rowid + 1
            state[Q.PS_LOOKED] += 1 + (need >> COPIED_WORDS_SHIFT)
            data = out
            count = 1
        if count == 0:
            continue
        _fill_headers(mem, data, fragment, program, rows, count, is_own)
        status = run_rows(data, rows, count, program, work)
        if status == P.RUN_BROKEN:
            return A.ST_INVARIANT
        if status == P.RUN_FULL:
            state[Q.PS_POSITION] = first
            state[Q.PS_STATUS] = status
            return A.ST_MORE
        if is_copied == 0 and status == P.RUN_OK:
            continue
        done = copy_accepted(mem, buf, fragment, rows, count, is_own, work, is_copied != 0, out, offsets, state)
        if done != A.OK or state[Q.PS_STATUS] != P.RUN_OK:
            return done
    return A.OK if state[Q.PS_END] != 0 else A.ST_MORE


@kernel("int64(int64[::1], int64[::1])")
def rows_of_fragments(mem, fragments):
    """Return the number of committed rows of fragments, given by their handles; dropped ones have none. ST_UNFINISHED
    if a large commit is being applied, which the fragments count row by row.
    """
    if mem[A.S_UNFINISHED] != 0:
        return A.ST_UNFINISHED
    rows = 0
    for i in range(fragments.size):
        fragment = descriptor_of(mem, fragments[i])
        if fragment != 0:
            rows += mem[fragment + A.F_ROWS]
    return rows
