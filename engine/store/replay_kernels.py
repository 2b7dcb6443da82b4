"""Strict replay of REDO groups (D6, D8): every operation must fit the current state, or the log is damaged.

The kernels run on private memory at restart; each thread takes the fragments whose number modulo `parts` equals its
`part`.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.ahead_kernels import read_ahead
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.records_kernels import (
    author_of,
    is_operation,
    place_of,
    record_at,
    record_flags,
    record_has_var,
    rows_of,
    table_of,
)
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.key_groups_kernels import AHEAD_ROWS
from tidemark.engine.rows.lcp_kernels import checked_image_words, place_row
from tidemark.engine.rows.primary_kernels import image_key, index_remove, key_equals, row_tag
from tidemark.engine.rows.rows_kernels import free_slot, row_address
from tidemark.engine.rows.side_pages_kernels import set_var, take_var_part
from tidemark.engine.rows.var_parts_kernels import free_var


@helper
def replay_insert(mem, fragment, words, at, size, epoch):
    """Replay an INSERT run at its ROWIDs."""
    rowid, count = rows_of(words, at, L.KIND_INSERT)
    if count < 0:
        return A.ST_INVARIANT
    author = author_of(words, at)
    image = at + L.OPERATION_WORDS
    fixed = mem[fragment + A.F_FIXED_WORDS]
    has_var = record_has_var(mem, fragment, words[at + 1])
    for number in range(count):
        image_size = checked_image_words(fixed, has_var, words, image, at + size)
        if image_size < 0:
            return A.ST_INVARIANT
        status = place_row(mem, fragment, rowid + number, epoch, author, words, image, image_size)
        if status != A.OK:
            return status
        image += image_size
    return A.OK if image == at + size else A.ST_INVARIANT


@helper
def live_row(mem, fragment, rowid):
    """Return the address of a live row, or 0."""
    row = row_address(mem, fragment, rowid)
    if row != 0 and (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK == A.LIVE:
        return row
    return 0


@helper
def replay_update(mem, fragment, words, at, size, epoch):
    """Replay the UPDATE of a live row with the same key."""
    row = live_row(mem, fragment, words[at + 2] & A.ROWID_MASK)
    if row == 0:
        return A.ST_MISSING
    fixed = mem[fragment + A.F_FIXED_WORDS]
    image = at + L.OPERATION_WORDS
    has_var = record_has_var(mem, fragment, words[at + 1])
    kept = record_flags(words, at) & L.FLAG_VAR_KEPT
    if kept:
        if size != L.OPERATION_WORDS + fixed:
            return A.ST_INVARIANT
    elif checked_image_words(fixed, has_var, words, image, at + size) != size - L.OPERATION_WORDS:
        return A.ST_INVARIANT
    if not kept or mem[fragment + A.F_KEY_WORDS] > 0:
        first, key_words = image_key(words, image, fixed, mem[fragment + A.F_KEY_WORDS])
        if first + key_words > at + size or not key_equals(mem, fragment, row, words, first, key_words):
            return A.ST_INVARIANT
    if has_var and not kept:
        var_size = size - L.OPERATION_WORDS - fixed
        status, reference = take_var_part(mem, fragment, row, words, image + fixed, var_size)
        if status != A.OK:
            return status
        free_var(mem, fragment, set_var(mem, fragment, row, reference))
    # The last word, the disk reference, stays.
    move_words(words, image, mem, row + A.ROW_HEADER_WORDS, fixed - mem[fragment + A.F_HAS_DISK])
    mem[row] = A.LIVE << A.STATE_SHIFT | author_of(words, at) << A.AUTHOR_SHIFT
    mem[row + 1] = epoch
    return A.OK


@helper
def replay_delete(mem, fragment, words, at, epoch):
    """Replay the DELETE of a live row."""
    rowid = words[at + 2] & A.ROWID_MASK
    row = live_row(mem, fragment, rowid)
    if row == 0:
        return A.ST_MISSING
    tag = row_tag(mem, fragment, row, mem[fragment + A.F_INDEX_SEED])
    if index_remove(mem, fragment, tag, rowid) != A.OK:
        return A.ST_INVARIANT
    if mem[fragment + A.F_HAS_VAR]:
        free_var(mem, fragment, set_var(mem, fragment, row, 0))
    mem[row] = A.FREE << A.STATE_SHIFT | author_of(words, at) << A.AUTHOR_SHIFT
    mem[row + 1] = epoch
    free_slot(mem, fragment, rowid)
    mem[fragment + A.F_ROWS] -= 1
    return A.OK


@helper
def look_ahead_of_replay(mem, tables, words, at, stop, part, parts):
    """Ask for the rows that the next records change, so that cache misses overlap; return where the next group begins.
    Records need not be valid.
    """
    for _ in range(AHEAD_ROWS):
        if at >= stop:
            break
        kind, size = record_at(words, at, stop)
        if size < 0:
            break
        if kind == L.KIND_UPDATE or kind == L.KIND_DELETE:
            number, place = place_of(words[at + 1])
            table = table_of(mem, tables, number)
            if table > 0 and place < mem[table + A.T_FRAGMENTS] and place % parts == part:
                fragment = mem[mem[table + A.T_FRAGMENT_LIST] + place]
                row = 0
                if fragment != 0:
                    row = row_address(mem, fragment, words[at + 2] & A.ROWID_MASK)
                if row != 0:
                    read_ahead(mem, row)
                    read_ahead(mem, row + mem[fragment + A.F_ROW_WORDS] - 1)
        at += size
    return at


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64, int64, int64, int64, int64[::1])", nogil=True)
def replay_group(mem, tables, words, start, stop, epoch, part, parts, state):
    """Replay the records words[start:stop] of one group.

    tables: handle by table number, 0 for tables dropped later. state: [offset reached, operations replayed].
    Return OK or the status of the record at state[0], which may then be partly applied.
    """
    at = start
    touched = start
    while at < stop:
        if at >= touched:
            touched = look_ahead_of_replay(mem, tables, words, at, stop, part, parts)
        state[0] = at
        kind, size = record_at(words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        if is_operation(kind):
            number, place = place_of(words[at + 1])
            table = table_of(mem, tables, number)
            if table < 0 or (table > 0 and place >= mem[table + A.T_FRAGMENTS]):
                return A.ST_INVARIANT
            if table > 0 and place % parts == part:
                fragment = mem[mem[table + A.T_FRAGMENT_LIST] + place]
                status = A.OK
                # 0: its partition is dropped later in the log.
                if fragment != 0 and epoch > mem[fragment + A.F_REPLAY_EPOCH]:
                    if kind == L.KIND_INSERT:
                        status = replay_insert(mem, fragment, words, at, size, epoch)
                    elif kind == L.KIND_UPDATE:
                        status = replay_update(mem, fragment, words, at, size, epoch)
                    else:
                        status = replay_delete(mem, fragment, words, at, epoch)
                    state[1] += 1
                if status != A.OK:
                    return status
        at += size
    state[0] = stop
    return A.OK
