"""Rows by the key of a unique index: found and copied, or found and locked, in one kernel call.

*Evidence* is the lock to wait for: X_FRAGMENT, X_ROWID and X_LOCK of the transaction. See docs/internals/access.md,
section 6.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.access.reads_kernels import copy_row, visible
from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import row_of_place, side_part
from tidemark.engine.index.unique_entries_kernels import fragment_of_place, rowid_of_place
from tidemark.engine.index.unique_keys_kernels import are_words, own_key_words, slot_key_words
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log.own_images_kernels import lock_owner
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.primary_kernels import ask_for_buckets, row_key, tag_of
from tidemark.engine.rows.segments_kernels import bucket_address, first_bucket, second_bucket, segment_of
from tidemark.engine.rows.ticks_kernels import adds_only, is_changed_since, is_unfinished
from tidemark.engine.txn.changes_kernels import busy, conflict, touch_lock

AHEAD_KEYS = 32
# What is copied of a row.
KEYS = 0
LOCKED = 1
ENTRIES = 2
NO_PLACE = -1
BUSY_PLACE = -2
UNFINISHED_PLACE = -3


@helper
def has_key(mem, txn, buf, index, place, keys, start, words):
    fragment = fragment_of_place(mem, place)
    row = row_of_place(mem, place)
    seen = visible(mem, txn, row)
    if seen == 0 or mem[fragment + A.F_DROPPED] or (seen == 1 and is_unfinished(mem, row)):
        return False
    if seen == 2:
        held = own_key_words(mem, buf, index, fragment, row, X.SIDE_OTHER)
    else:
        held = slot_key_words(mem, index, place, X.SIDE_OTHER)
    return held == words and are_words(mem, side_part(mem, index, X.SIDE_OTHER), keys, start, words)


@helper
def is_others(mem, txn, place):
    """Whether another transaction holds the row at a place; leaves evidence if so."""
    head = mem[row_of_place(mem, place)]
    if head & A.LOCK_MASK == 0 or head & A.LOCK_SHARED or lock_owner(mem, head) == txn:
        return False
    fragment = fragment_of_place(mem, place)
    if mem[fragment + A.F_DROPPED]:
        return False
    return busy(mem, txn, fragment, rowid_of_place(mem, place), head) == A.ST_BUSY


@helper
def place_among(mem, txn, buf, index, at, length, wanted, keys, start, words, waits):
    """Return the place of the row with a key among the entries at `at`, NO_PLACE, or BUSY_PLACE."""
    place = NO_PLACE
    for i in range(length):
        entry = mem[at + i]
        if entry >> A.ENTRY_TAG_SHIFT != wanted:
            continue
        if waits and is_others(mem, txn, entry & A.COMPACT_MASK):
            place = BUSY_PLACE
        elif has_key(mem, txn, buf, index, entry & A.COMPACT_MASK, keys, start, words):
            return entry & A.COMPACT_MASK
    return place


@helper
def place_of_key(mem, txn, buf, index, keys, start, words, waits):
    """Return the place of the row with a key, as the reader sees it, or NO_PLACE; UNFINISHED_PLACE if the large commit
    that is being applied may have taken the key from a row.

    waits: whether to return BUSY_PLACE, with evidence, if no row has the key and another transaction holds a row with
    the key's tag, which may get the key.
    """
    hash = mem[index + X.I_UNIQUE]
    if words == 0:
        return NO_PLACE
    if mem[hash + A.F_INDEX_COUNT] == 0:
        return NO_PLACE if adds_only(mem) else UNFINISHED_PLACE
    tag = tag_of(keys, start, words, mem[index + X.U_SEED])
    wanted = A.ENTRY_USED | tag
    segment = segment_of(mem, hash, tag)
    place = NO_PLACE
    for part in range(3):
        length = A.BUCKET_WORDS
        if part == 0:
            at = bucket_address(mem, segment, first_bucket(mem, segment, tag))
        elif part == 1:
            at = bucket_address(mem, segment, second_bucket(mem, segment, tag))
        else:
            at = mem[segment + A.SEG_OVERFLOW]
            length = mem[segment + A.SEG_OVERFLOW_COUNT]
        found = place_among(mem, txn, buf, index, at, length, wanted, keys, start, words, waits)
        if found >= 0:
            return found
        if found == BUSY_PLACE:
            place = BUSY_PLACE
    return place if adds_only(mem) else UNFINISHED_PLACE


@helper
def touch_keys(mem, index, keys, lengths, stride, begin, end):
    for i in range(begin, end):
        if lengths[i] > 0:
            tag = tag_of(keys, i * stride, lengths[i], mem[index + X.U_SEED])
            ask_for_buckets(mem, mem[index + X.I_UNIQUE], tag)


@helper
def hold_place(mem, txn, place):
    """Lock the row at a place. Return OK, ST_BUSY with evidence, ST_CONFLICT, or ST_MEMORY."""
    row = row_of_place(mem, place)
    fragment, rowid = fragment_of_place(mem, place), rowid_of_place(mem, place)
    if mem[row] & A.LOCK_SHARED:
        return busy(mem, txn, fragment, rowid, mem[row])
    if mem[row] & A.LOCK_MASK == 0 and is_changed_since(mem, txn, row):
        return conflict(mem, txn, fragment, rowid)
    return touch_lock(mem, txn, fragment, rowid, row)


@helper
def copy_key(mem, place, out, at):
    """Copy the canonical primary key of the row at a place to out[at:]; return words, or ST_SPACE - words needed."""
    first, words = row_key(mem, fragment_of_place(mem, place), row_of_place(mem, place))
    if at + words > out.size:
        return A.ST_SPACE - words
    move_words(mem, first, out, at, words)
    return words


@kernel(
    "int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1], int64[::1], "
    "int64[::1])"
)
def find_by_unique(mem, index, txn, buf, keys, lengths, stride, stop, way, out, offsets, state):
    """Copy the rows with keys [state[2], stop) to out: ENTRIES without disk parts, or their canonical primary KEYS, or
    these of rows that are LOCKED first.

    keys: key words, `stride` words each; lengths: the number of words, 0 for a key no row has. offsets: n + 1 positions
    in out; a key without a row has no words there. state: [rows found, words used, next key]. Return OK; ST_BUSY with
    evidence, ST_UNFINISHED, ST_MEMORY or ST_SPACE - words needed if the call stopped at key state[2] (of LOCKED also in
    X_ROW); or ST_DROPPED if the index was dropped.
    """
    index = descriptor_of(mem, index)
    if index == 0:
        return A.ST_DROPPED
    ahead = state[2]
    for i in range(state[2], stop):
        if i == ahead:
            ahead = min(i + AHEAD_KEYS, stop)
            touch_keys(mem, index, keys, lengths, stride, i, ahead)
        state[2] = i
        offsets[i] = state[1]
        place = place_of_key(mem, txn, buf, index, keys, i * stride, lengths[i], way == LOCKED)
        if place == UNFINISHED_PLACE:
            return A.ST_UNFINISHED
        if way == LOCKED:
            mem[txn + A.X_ROW] = i
            if place == BUSY_PLACE:
                return A.ST_BUSY
        if place < 0:
            continue
        if way == ENTRIES:
            row = row_of_place(mem, place)
            fragment, rowid = fragment_of_place(mem, place), rowid_of_place(mem, place)
            words = copy_row(mem, buf, fragment, rowid, row, visible(mem, txn, row) == 2, out, state[1])
        else:
            words = copy_key(mem, place, out, state[1])
        if words < 0:
            return words
        if way == LOCKED:
            status = hold_place(mem, txn, place)
            if status != A.OK:
                return status
        state[1] += words
        state[0] += 1
    offsets[stop] = state[1]
    state[2] = stop
    return A.OK
