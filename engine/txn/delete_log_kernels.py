"""The delete log: deleted rows and their epochs, for nodes that rejoin (docs/internals/node-group.md).

Every commit that deletes a row calls `note_delete` in the same kernel call; `note_delete` cannot fail. A new entry
overwrites the oldest when the log is full.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.records_kernels import record_at
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.txn import delete_log_layout as Y


@kernel("int64(int64[::1], int64, int64)")
def setup_delete_log(mem, region, words):
    """Lay out the log in `words` zeroed words at `region`; OK, or ST_SPACE if they are too few."""
    capacity = (words - Y.DL_WORDS) // Y.DELETE_ENTRY_WORDS
    if capacity < 1:
        return A.ST_SPACE
    mem[region + Y.DL_CAPACITY] = capacity
    mem[region + Y.DL_NEXT] = region + Y.DL_WORDS
    mem[region + Y.DL_END] = region + Y.DL_WORDS + capacity * Y.DELETE_ENTRY_WORDS
    mem[region + Y.DL_LAST] = mem[region + Y.DL_END] - Y.DELETE_ENTRY_WORDS
    mem[A.S_DELETE_LOG] = region
    return A.OK


@helper
def append_delete(mem, log, place, rowid, epoch):
    """Note that the row at a ROWID of a fragment (`place`: DE_PLACE) was deleted; consecutive rows share an entry."""
    last = mem[log + Y.DL_LAST]
    rows = mem[last + Y.DE_ROWS]
    if mem[last + Y.DE_PLACE] == place and mem[last + Y.DE_EPOCH] == epoch:
        if (rows & A.ROWID_MASK) + (rows >> A.COUNT_SHIFT) == rowid and rows >> A.COUNT_SHIFT < A.RUN_MAX:
            mem[last + Y.DE_ROWS] = rows + (1 << A.COUNT_SHIFT)
            return
    at = mem[log + Y.DL_NEXT]
    if mem[log + Y.DL_HEAD] >= mem[log + Y.DL_CAPACITY]:
        mem[log + Y.DL_CUT] = max(mem[log + Y.DL_CUT], mem[at + Y.DE_EPOCH])
    mem[at + Y.DE_PLACE] = place
    mem[at + Y.DE_ROWS] = rowid | 1 << A.COUNT_SHIFT
    mem[at + Y.DE_EPOCH] = epoch
    mem[log + Y.DL_LAST] = at
    mem[log + Y.DL_HEAD] += 1
    after = at + Y.DELETE_ENTRY_WORDS
    mem[log + Y.DL_NEXT] = after if after < mem[log + Y.DL_END] else log + Y.DL_WORDS


@helper
def note_delete(mem, fragment, rowid, epoch):
    """Note the delete of a row of a fragment, in an epoch not before that of the last call."""
    log = mem[A.S_DELETE_LOG]
    if log != 0:
        append_delete(
            mem, log, mem[fragment + A.F_TABLE] | mem[fragment + A.F_NUMBER] << L.FRAGMENT_SHIFT, rowid, epoch
        )


@kernel("int64(int64[::1], int64[::1], int64, int64, int64)")
def note_deletes_of(mem, words, start, stop, epoch):
    """Note the deletes in the records words[start:stop] of a group of an epoch; OK, or ST_INVARIANT for an invalid
    record.
    """
    at = start
    while at < stop:
        kind, size = record_at(words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        if kind == L.KIND_DELETE:
            append_delete(mem, mem[A.S_DELETE_LOG], words[at + 1] & Y.PLACE_MASK, words[at + 2] & A.ROWID_MASK, epoch)
        at += size
    return A.OK
