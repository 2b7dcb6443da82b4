"""Finds and locks, in batches, the rows that another site has changed; a missing row is not an error."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.access.reads_kernels import HINT_MASK, HINT_SHIFT, confirmed, look_ahead
from tidemark.engine.jit.kernel import kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.primary_kernels import AHEAD_ROWS, entry_rowid
from tidemark.engine.txn.operations_kernels import touch_row


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1])")
def lock_found(mem, table, txn, buf, keys, offsets, stride, start, stop, found):
    """Lock the rows with keys [start, stop); found[i] is 1 if key i has a row, else 0.

    offsets: n + 1 key offsets, or empty with `stride` words per key. Return OK, or the status at key X_ROW that stopped
    the call: ST_BUSY, ST_MEMORY; `found` is undefined past that key.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    fragments = mem[table + A.T_FRAGMENT_LIST]
    for begin in range(start, stop, AHEAD_ROWS):
        end = min(begin + AHEAD_ROWS, stop)
        look_ahead(mem, table, keys, offsets, stride, begin, end, found)  # hints, in words without a result yet
        for i in range(begin, end):
            first = offsets[i] if offsets.size else i * stride
            words = offsets[i + 1] - first if offsets.size else stride
            status = A.ST_MISSING
            if found[i] >= 0:
                fragment = mem[fragments + (found[i] >> HINT_SHIFT)]
                entry = confirmed(mem, table, fragment, found[i] & HINT_MASK, keys, first, words)
                if entry != 0:
                    status = touch_row(mem, txn, buf, fragment, entry_rowid(mem, entry), A.MODE_LOCK)
            mem[txn + A.X_ROW] = i
            if status != A.OK and status != A.ST_MISSING:
                return status
            found[i] = 1 if status == A.OK else 0
    mem[txn + A.X_ROW] = stop
    return A.OK
