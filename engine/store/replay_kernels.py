"""Strict replay of REDO groups (D6, D8): every operation must fit the state it meets, or the log is damaged.

Runs on private memory at restart, each thread taking the fragments whose number modulo `parts` is its own.
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.jit.kernel import helper, kernel
from engine.jit.words_kernels import move_words, word_at
from engine.log.records_kernels import record_has_var
from engine.log.redo_layout import (
    FLAG_VAR_KEPT,
    FLAGS_MASK,
    FLAGS_SHIFT,
    FRAGMENT_MASK,
    FRAGMENT_SHIFT,
    KIND_DELETE,
    KIND_INSERT,
    KIND_MASK,
    KIND_TRANSACTION,
    KIND_UPDATE,
    OPERATION_WORDS,
    TABLE_MASK,
    TRANSACTION_WORDS,
    WORDS_SHIFT,
)
from engine.memory.arena_layout import (
    AUTHOR_SHIFT,
    COUNT_SHIFT,
    F_FIXED_WORDS,
    F_HAS_DISK,
    F_HAS_VAR,
    F_INDEX_SEED,
    F_KEY_WORDS,
    F_REPLAY_EPOCH,
    F_ROW_WORDS,
    F_ROWS,
    FREE,
    LIVE,
    OK,
    ROW_HEADER_WORDS,
    ROWID_MASK,
    ST_INVARIANT,
    ST_MEMORY,
    ST_MISSING,
    STATE_MASK,
    STATE_SHIFT,
    T_FRAGMENT_LIST,
    T_FRAGMENTS,
)
from engine.memory.handles_kernels import descriptor_of
from engine.rows.lcp_kernels import checked_image_words, place_row
from engine.rows.primary_kernels import AHEAD_ROWS, image_key, index_remove, key_equals, row_tag
from engine.rows.rows_kernels import give_slot, row_address
from engine.rows.side_pages_kernels import is_empty_var, make_side, set_var
from engine.rows.var_parts_kernels import give_var, take_var


@helper
def replay_insert(mem, fragment, words, at, size, epoch):
    """INSERT run at its ROWIDs."""
    rowid = words[at + 2] & ROWID_MASK
    count = words[at + 2] >> COUNT_SHIFT
    author = words[at + 3] >> AUTHOR_SHIFT
    image = at + OPERATION_WORDS
    fixed = mem[fragment + F_FIXED_WORDS]
    has_var = record_has_var(mem, fragment, words[at + 1])
    for number in range(count):
        image_size = checked_image_words(fixed, has_var, words, image, at + size)
        if image_size < 0:
            return ST_INVARIANT
        status = place_row(mem, fragment, rowid + number, epoch, author, words, image, image_size)
        if status != OK:
            return status
        image += image_size
    return OK if image == at + size else ST_INVARIANT


@helper
def live_row(mem, fragment, rowid):
    """Address of a live row, or 0."""
    row = row_address(mem, fragment, rowid)
    if row != 0 and (mem[row] >> STATE_SHIFT) & STATE_MASK == LIVE:
        return row
    return 0


@helper
def replay_update(mem, fragment, words, at, size, epoch):
    """UPDATE of a live row with the same key."""
    row = live_row(mem, fragment, words[at + 2] & ROWID_MASK)
    if row == 0:
        return ST_MISSING
    fixed = mem[fragment + F_FIXED_WORDS]
    image = at + OPERATION_WORDS
    has_var = record_has_var(mem, fragment, words[at + 1])
    kept = (words[at] >> FLAGS_SHIFT) & FLAGS_MASK & FLAG_VAR_KEPT
    if kept:
        if size != OPERATION_WORDS + fixed:
            return ST_INVARIANT
    elif checked_image_words(fixed, has_var, words, image, at + size) != size - OPERATION_WORDS:
        return ST_INVARIANT
    if not kept or mem[fragment + F_KEY_WORDS] > 0:
        first, key_words = image_key(words, image, fixed, mem[fragment + F_KEY_WORDS])
        if first + key_words > at + size or not key_equals(mem, fragment, row, words, first, key_words):
            return ST_INVARIANT
    if has_var and not kept:
        reference = 0
        if not is_empty_var(mem, fragment, size - OPERATION_WORDS - fixed):
            if make_side(mem, fragment, row) != OK:
                return ST_MEMORY
            reference = take_var(mem, fragment, words, image + fixed, size - OPERATION_WORDS - fixed)
            if reference == 0:
                return ST_MEMORY
        give_var(mem, fragment, set_var(mem, fragment, row, reference))
    # Its disk reference, the last word, stays.
    move_words(words, image, mem, row + ROW_HEADER_WORDS, fixed - mem[fragment + F_HAS_DISK])
    mem[row] = LIVE << STATE_SHIFT | (words[at + 3] >> AUTHOR_SHIFT) << AUTHOR_SHIFT
    mem[row + 1] = epoch
    return OK


@helper
def replay_delete(mem, fragment, words, at, epoch):
    """DELETE of a live row."""
    rowid = words[at + 2] & ROWID_MASK
    row = live_row(mem, fragment, rowid)
    if row == 0:
        return ST_MISSING
    tag = row_tag(mem, fragment, row, mem[fragment + F_INDEX_SEED])
    if index_remove(mem, fragment, tag, rowid) != OK:
        return ST_INVARIANT
    if mem[fragment + F_HAS_VAR]:
        give_var(mem, fragment, set_var(mem, fragment, row, 0))
    mem[row] = FREE << STATE_SHIFT | (words[at + 3] >> AUTHOR_SHIFT) << AUTHOR_SHIFT
    mem[row + 1] = epoch
    give_slot(mem, fragment, rowid, row)
    mem[fragment + F_ROWS] -= 1
    return OK


@helper
def look_ahead_of_replay(mem, tables, words, at, stop, part, parts, state):
    """Touch the rows the next records change, so that the misses overlap; where that ends. It trusts no record."""
    touched = 0
    for _ in range(AHEAD_ROWS):
        if at + OPERATION_WORDS > stop:
            break
        kind = words[at] & KIND_MASK
        size = TRANSACTION_WORDS if kind == KIND_TRANSACTION else words[at] >> WORDS_SHIFT
        if size < 2:
            break
        if kind == KIND_UPDATE or kind == KIND_DELETE:
            number = words[at + 1] & TABLE_MASK
            table = descriptor_of(mem, tables[number]) if number < tables.size else 0
            place = (words[at + 1] >> FRAGMENT_SHIFT) & FRAGMENT_MASK
            if table != 0 and place < mem[table + T_FRAGMENTS] and place % parts == part:
                fragment = mem[mem[table + T_FRAGMENT_LIST] + place]
                row = 0
                if fragment != 0:
                    row = row_address(mem, fragment, words[at + 2] & ROWID_MASK)
                if row != 0:
                    touched += word_at(mem, row) + word_at(mem, row + word_at(mem, fragment + F_ROW_WORDS) - 1)
        at += size
    state[2] = touched
    return at


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64, int64, int64, int64, int64[::1])", nogil=True)
def replay_group(mem, tables, words, start, stop, epoch, part, parts, state):
    """Replay the records words[start:stop] of one group.

    tables: handle of the table by its number, 0 for tables dropped later. state: [offset reached, operations
    replayed, of no meaning]. Returns OK or the status of the record at state[0]; what it had begun is then half done.
    """
    at = start
    touched = start
    while at < stop:
        if at >= touched:
            touched = look_ahead_of_replay(mem, tables, words, at, stop, part, parts, state)
        state[0] = at
        kind = words[at] & KIND_MASK
        size = words[at] >> WORDS_SHIFT
        if kind == KIND_TRANSACTION:
            size = TRANSACTION_WORDS
        if size < 2 or at + size > stop:
            return ST_INVARIANT
        if kind == KIND_INSERT or kind == KIND_UPDATE or kind == KIND_DELETE:
            if size < OPERATION_WORDS:
                return ST_INVARIANT
            number = words[at + 1] & TABLE_MASK
            table = descriptor_of(mem, tables[number]) if number < tables.size else 0
            place = (words[at + 1] >> FRAGMENT_SHIFT) & FRAGMENT_MASK
            if table != 0 and place >= mem[table + T_FRAGMENTS]:
                return ST_INVARIANT
            if table != 0 and place % parts == part:
                fragment = mem[mem[table + T_FRAGMENT_LIST] + place]
                status = OK
                # 0: its partition is dropped further down.
                if fragment != 0 and epoch > mem[fragment + F_REPLAY_EPOCH]:
                    if kind == KIND_INSERT:
                        status = replay_insert(mem, fragment, words, at, size, epoch)
                    elif kind == KIND_UPDATE:
                        status = replay_update(mem, fragment, words, at, size, epoch)
                    else:
                        status = replay_delete(mem, fragment, words, at, epoch)
                    state[1] += 1
                if status != OK:
                    return status
        at += size
    state[0] = stop
    return OK
