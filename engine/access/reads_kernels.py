"""Kernels of get, which copy row images from the arena into private buffers.

An entry is ROWID, epoch, author with table and fragment, then the row image, as in local-checkpoint files.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import (
    entry_words,
    is_image_evicted,
    lock_owner,
    own_kind,
    write_entry,
)
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.key_groups_kernels import AHEAD_ROWS, HINT_MASK, HINT_SHIFT, confirmed, look_ahead
from tidemark.engine.rows.primary_kernels import entry_rowid
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.rows.ticks_kernels import check_view, is_unfinished, seen_absent, seen_unfinished


@helper
def visible(mem, txn, row):
    """Return 0 if the row does not exist for this reader, 1 for the committed row, 2 for the row this transaction has
    changed.
    """
    head = mem[row]
    state = (head >> A.STATE_SHIFT) & A.STATE_MASK
    if txn != 0 and head & A.LOCK_MASK and lock_owner(mem, head) == txn:
        return 0 if own_kind(mem, row) == L.KIND_DELETE else 2
    return 1 if state == A.LIVE else 0


@helper
def copy_row(mem, buf, fragment, rowid, row, mine, out, at):
    """Copy the entry of a row to out[at:] without its disk part, as its lock holder sees it if `mine`; return its
    words, ST_SPOOLED, or ST_SPACE - words needed.
    """
    if mine and is_image_evicted(mem, buf, row):
        return A.ST_SPOOLED
    words = entry_words(mem, fragment, row, mine)
    if at + words > out.size:
        return A.ST_SPACE - words
    return write_entry(mem, buf, fragment, rowid, row, mine, out, at)


@helper
def read_entry(mem, txn, buf, fragment, entry, out, at):
    """Read the row of an index entry into out[at:]; return entry words, ST_MISSING, ST_UNFINISHED, ST_SPOOLED, or
    ST_SPACE - words needed.
    """
    if entry == 0:
        return seen_absent(mem)
    rowid = entry_rowid(mem, entry)
    row = known_row_address(mem, fragment, rowid)
    seen = visible(mem, txn, row)
    if seen == 0:
        return A.ST_MISSING
    if seen == 1 and is_unfinished(mem, row):
        return seen_unfinished(mem)
    return copy_row(mem, buf, fragment, rowid, row, seen == 2, out, at)


@kernel(
    "int64(int64[::1], int64, int64, int64, int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1], "
    "int64[::1], int64[::1])"
)
def read_rows(mem, table, view, txn, buf, keys, key_offsets, stride, start, stop, out, offsets, state):
    """Read rows [start, stop) by key into out; offsets gets the image offset of each row found. view: 0 for one call
    that reads all rows.

    state: [rows found, words used, next key]. Return OK; ST_UNFINISHED, ST_SPOOLED, or ST_SPACE - words needed if out
    is full, with state saying where to continue; ST_CHANGED with nothing done if the table has changed since the view
    was opened, or ST_TOO_OLD.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    status = check_view(mem, view, table)
    if status != A.OK:
        return status
    fragments = mem[table + A.T_FRAGMENT_LIST]
    for begin in range(start, stop, AHEAD_ROWS):
        end = min(begin + AHEAD_ROWS, stop)
        look_ahead(mem, table, keys, key_offsets, stride, begin, end, offsets, 0)  # hints, in offsets not assigned yet
        for i in range(begin, end):
            first = key_offsets[i] if key_offsets.size else i * stride
            words = key_offsets[i + 1] - first if key_offsets.size else stride
            done = A.ST_MISSING
            if offsets[i] >= 0:
                fragment = mem[fragments + (offsets[i] >> HINT_SHIFT)]
                entry = confirmed(mem, table, fragment, offsets[i] & HINT_MASK, keys, first, words)
                done = read_entry(mem, txn, buf, fragment, entry, out, state[1])
            state[2] = i
            if done <= A.ST_SPACE or done == A.ST_SPOOLED or done == A.ST_UNFINISHED:
                return done
            if done > 0:
                offsets[state[0]] = state[1] + A.ENTRY_WORDS
                state[0] += 1
                state[1] += done
    state[2] = stop
    return A.OK
