"""The delete log: which rows were deleted, and when, for nodes that come back (docs/node-group.md, section 4).

Every commit that deletes a row calls `note_delete` in the same kernel call; it cannot fail. The oldest entry makes room
for the newest.
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.jit.kernel import helper, kernel
from engine.log.records_kernels import record_words
from engine.log.redo_layout import FRAGMENT_SHIFT, KIND_DELETE, KIND_MASK
from engine.memory.arena_layout import (
    COUNT_SHIFT,
    F_NUMBER,
    F_TABLE,
    OK,
    ROWID_MASK,
    RUN_MAX,
    S_DELETE_LOG,
    ST_INVARIANT,
    ST_SPACE,
)
from engine.txn.delete_log_layout import (
    DE_EPOCH,
    DE_PLACE,
    DE_ROWS,
    DELETE_ENTRY_WORDS,
    DL_CAPACITY,
    DL_CUT,
    DL_END,
    DL_HEAD,
    DL_LAST,
    DL_NEXT,
    DL_WORDS,
    PLACE_MASK,
)


@kernel("int64(int64[::1], int64, int64)")
def setup_delete_log(mem, region, words):
    """Lay the log out in `words` zeroed words at `region`; OK, or ST_SPACE if they are too few."""
    capacity = (words - DL_WORDS) // DELETE_ENTRY_WORDS
    if capacity < 1:
        return ST_SPACE
    mem[region + DL_CAPACITY] = capacity
    mem[region + DL_NEXT] = region + DL_WORDS
    mem[region + DL_END] = region + DL_WORDS + capacity * DELETE_ENTRY_WORDS
    mem[region + DL_LAST] = mem[region + DL_END] - DELETE_ENTRY_WORDS
    mem[S_DELETE_LOG] = region
    return OK


@helper
def append_delete(mem, log, place, rowid, epoch):
    """Note that the row of a place (DE_PLACE) at a ROWID was deleted; a run of such rows is one entry."""
    last = mem[log + DL_LAST]
    rows = mem[last + DE_ROWS]
    if mem[last + DE_PLACE] == place and mem[last + DE_EPOCH] == epoch:
        if (rows & ROWID_MASK) + (rows >> COUNT_SHIFT) == rowid and rows >> COUNT_SHIFT < RUN_MAX:
            mem[last + DE_ROWS] = rows + (1 << COUNT_SHIFT)
            return
    at = mem[log + DL_NEXT]
    if mem[log + DL_HEAD] >= mem[log + DL_CAPACITY]:
        mem[log + DL_CUT] = max(mem[log + DL_CUT], mem[at + DE_EPOCH])
    mem[at + DE_PLACE] = place
    mem[at + DE_ROWS] = rowid | 1 << COUNT_SHIFT
    mem[at + DE_EPOCH] = epoch
    mem[log + DL_LAST] = at
    mem[log + DL_HEAD] += 1
    after = at + DELETE_ENTRY_WORDS
    mem[log + DL_NEXT] = after if after < mem[log + DL_END] else log + DL_WORDS


@helper
def note_delete(mem, fragment, rowid, epoch):
    """A row of a fragment is being deleted, in an epoch that is not before that of the last call."""
    log = mem[S_DELETE_LOG]
    if log != 0:
        append_delete(mem, log, mem[fragment + F_TABLE] | mem[fragment + F_NUMBER] << FRAGMENT_SHIFT, rowid, epoch)


@kernel("int64(int64[::1], int64[::1], int64, int64, int64)")
def note_deletes_of(mem, words, start, stop, epoch):
    """Note the deletes among the records words[start:stop] of a group of an epoch; OK, or ST_INVARIANT for what is no
    record.
    """
    at = start
    while at < stop:
        size, _ = record_words(words, at, stop)
        if size < 0:
            return ST_INVARIANT
        if words[at] & KIND_MASK == KIND_DELETE:
            append_delete(mem, mem[S_DELETE_LOG], words[at + 1] & PLACE_MASK, words[at + 2] & ROWID_MASK, epoch)
        at += size
    return OK
