"""Rows that changes of another site meet: found and locked in batches, a missing one being no error."""

from __future__ import annotations

from engine.kernels import kernel
from engine.kernels.operations import touch_row
from engine.kernels.partitions import fragment_of
from engine.kernels.primary import entry_rowid, index_find, tag_of
from engine.layout.arena import MODE_LOCK, OK, ST_MISSING, T_SEED, X_ROW


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1])")
def lock_found(mem, table, txn, buf, keys, offsets, stride, start, stop, found):
    """Lock the rows that keys [start, stop) have; found[i] is 1 if there is one, else 0.

    offsets: n + 1 key offsets, or empty with `stride` words per key. Returns OK, or the status of row X_ROW that
    stopped it: ST_BUSY, ST_MEMORY.
    """
    seed = mem[table + T_SEED]
    for i in range(start, stop):
        first = offsets[i] if offsets.size else i * stride
        words = offsets[i + 1] - first if offsets.size else stride
        fragment = fragment_of(mem, table, keys, first, words)
        entry = 0
        if fragment != 0:
            entry = index_find(mem, fragment, tag_of(keys, first, words, seed), keys, first, words)
        status = ST_MISSING
        if entry != 0:
            status = touch_row(mem, txn, buf, fragment, entry_rowid(mem, entry), MODE_LOCK)
        mem[txn + X_ROW] = i
        if status != OK and status != ST_MISSING:
            return status
        found[i] = 1 if status == OK else 0
    mem[txn + X_ROW] = stop
    return OK
