"""Rows found by their keys, copied into columns: a vector of keys is found first, then one column after the other."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.access.reads_kernels import visible
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.programs import program_layout as P
from tidemark.engine.queries import program_scan_layout as Q
from tidemark.engine.queries.column_scan_kernels import copy_columns
from tidemark.engine.rows.key_groups_kernels import AHEAD_ROWS, HINT_MASK, HINT_SHIFT, confirmed, look_ahead
from tidemark.engine.rows.primary_kernels import entry_rowid
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.rows.ticks_kernels import check_view, is_unfinished, seen_absent, seen_unfinished


@helper
def _find_rows(mem, table, txn, keys, key_offsets, stride, begin, end, hints, rows, count):
    """Append the addresses of the rows with keys [begin, end) to the plane. Return (OK, their number, a fragment of the
    table), or the status of a key that the general path must read.
    """
    fragments = mem[table + A.T_FRAGMENT_LIST]
    some = 0
    look_ahead(mem, table, keys, key_offsets, stride, begin, end, hints, 0)
    for i in range(begin, end):
        if hints[i] < 0:
            continue
        first = key_offsets[i] if key_offsets.size else i * stride
        words = key_offsets[i + 1] - first if key_offsets.size else stride
        fragment = mem[fragments + (hints[i] >> HINT_SHIFT)]
        entry = confirmed(mem, table, fragment, hints[i] & HINT_MASK, keys, first, words)
        if entry == 0:
            if seen_absent(mem) != A.ST_MISSING:
                return A.ST_UNFINISHED, count, some
            continue
        row = known_row_address(mem, fragment, entry_rowid(mem, entry))
        seen = visible(mem, txn, row)
        if seen == 0:
            continue
        if seen == 2:
            return A.ST_MORE, count, some
        if is_unfinished(mem, row):
            if seen_unfinished(mem) != A.ST_MISSING:
                return A.ST_UNFINISHED, count, some
            continue
        rows[np.uint64(P.R_FIXED * P.VECTOR_ROWS + count)] = row + A.ROW_HEADER_WORDS
        some = fragment
        count += 1
    return A.OK, count, some


@kernel(
    "int64(int64[::1], int32[::1], int16[::1], uint8[::1], int64, int64, int64, int64[::1], int64[::1], int64, int64, "
    "int64, int64[::1], int64[::1], int64[::1], int64[::1], int32[::1], int16[::1], uint8[::1], int64[::1])"
)
def read_columns(
    mem,
    mem_4,
    mem_2,
    mem_1,
    table,
    view,
    txn,
    keys,
    key_offsets,
    stride,
    start,
    stop,
    hints,
    plan,
    rows,
    out,
    out_4,
    out_2,
    out_1,
    state,
):
    """Copy the rows with keys [start, stop) into columns, in the order of the keys; state[PS_ROWS]: the rows in them.

    hints: memory, a word for each key. Return OK; ST_SPACE - bytes of texts that there is no room for; any other status
    if the general path must read all keys.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    status = check_view(mem, view, table)
    if status != A.OK:
        return status
    for first in range(start, stop, P.VECTOR_ROWS):
        last = min(first + P.VECTOR_ROWS, stop)
        count = 0
        fragment = 0
        for begin in range(first, last, AHEAD_ROWS):
            end = min(begin + AHEAD_ROWS, last)
            status, count, some = _find_rows(mem, table, txn, keys, key_offsets, stride, begin, end, hints, rows, count)
            if status != A.OK:
                return status
            if some != 0:
                fragment = some
        if state[Q.PS_ROWS] + count > plan[Q.CO_CAPACITY]:
            return A.ST_INVARIANT
        # Rows of all fragments of a table are alike.
        status = copy_columns(
            mem, mem_4, mem_2, mem_1, fragment, plan, rows, count, state[Q.PS_ROWS], out, out_4, out_2, out_1
        )
        if status != A.OK:
            return status
        state[Q.PS_ROWS] += count
    return A.OK
