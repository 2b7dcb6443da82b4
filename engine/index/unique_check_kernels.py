"""Verification of unique indexes in slices: every row has its entry, every entry its row, no key is there twice."""

# mypy: ignore-errors

from __future__ import annotations

from engine.index.index_layout import (
    FAULT_KEY,
    FAULT_MISSING,
    FAULT_ROW,
    FAULT_TWICE,
    I_UNIQUE,
    SIDE_OTHER,
    SIDE_TARGET,
)
from engine.index.key_words_kernels import row_of_place, side_part
from engine.index.tree_build_kernels import next_live
from engine.index.tree_check_kernels import fault
from engine.index.unique_entries_kernels import fragment_of_place
from engine.index.unique_keys_kernels import are_words, slot_key_words, slot_tag, tag_in
from engine.index.unique_layout import CU_DIRECTORY, CU_ENTRIES, CU_PART, U_VERSION
from engine.jit.kernel import helper, kernel
from engine.memory.arena_layout import (
    BLOCK_WORDS,
    BUCKET_WORDS,
    COMPACT_MASK,
    ENTRY_TAG_SHIFT,
    ENTRY_USED,
    F_DIRECTORY,
    F_DROPPED,
    F_INDEX_BLOCKS,
    F_INDEX_COUNT,
    F_INDEX_DEPTH,
    F_SEGMENTS,
    LIVE,
    LOCK_MASK,
    LOCK_SHARED,
    OK,
    SEG_BLOCK,
    SEG_BLOCKS,
    SEG_DEPTH,
    SEG_OVERFLOW,
    SEG_OVERFLOW_COUNT,
    ST_DROPPED,
    ST_MORE,
    STATE_MASK,
    STATE_SHIFT,
    TAG_MASK,
)
from engine.memory.handles_kernels import descriptor_of
from engine.rows.primary_kernels import candidate
from engine.rows.segments_kernels import bucket_address, first_bucket, second_bucket, segment_of


@helper
def is_held(mem, row):
    """Whether a transaction holds a row exclusively: its entries are those of more images than the slot's."""
    return mem[row] & LOCK_MASK != 0 and mem[row] & LOCK_SHARED == 0


@helper
def is_key_twice(mem, index, place, other, words):
    """Whether a committed row at place `other` that nobody holds has the key of SIDE_TARGET, too."""
    row = row_of_place(mem, other)
    if other == place or is_held(mem, row):
        return False
    if mem[fragment_of_place(mem, other) + F_DROPPED] or (mem[row] >> STATE_SHIFT) & STATE_MASK != LIVE:
        return False
    if slot_key_words(mem, index, other, SIDE_OTHER) != words:
        return False
    target = side_part(mem, index, SIDE_TARGET)
    return are_words(mem, side_part(mem, index, SIDE_OTHER), mem, target, words)


@helper
def count_among(mem, index, at, length, wanted, place, words):
    """Entries of a row among `length` at `at`, and 1,000 for each other row with its key."""
    found = 0
    for i in range(length):
        entry = mem[at + i]
        if entry >> ENTRY_TAG_SHIFT == wanted:
            if entry & COMPACT_MASK == place:
                found += 1
            elif is_key_twice(mem, index, place, entry & COMPACT_MASK, words):
                found += 1_000
    return found


@helper
def count_entries(mem, index, tag, place, words):
    """Entries of a row with the key of SIDE_TARGET, and 1,000 for each other row with that key."""
    hash = mem[index + I_UNIQUE]
    if mem[hash + F_SEGMENTS] == 0:
        return 0
    segment = segment_of(mem, hash, tag)
    over = mem[segment + SEG_OVERFLOW_COUNT]
    found = candidate(mem, segment, tag)
    if found != -1 and over == 0:
        return 1 if found != 0 and mem[found] & COMPACT_MASK == place else 0
    wanted = ENTRY_USED | tag
    first = bucket_address(mem, segment, first_bucket(mem, segment, tag))
    second = bucket_address(mem, segment, second_bucket(mem, segment, tag))
    count = count_among(mem, index, first, BUCKET_WORDS, wanted, place, words)
    if second != first:
        count += count_among(mem, index, second, BUCKET_WORDS, wanted, place, words)
    return count + count_among(mem, index, mem[segment + SEG_OVERFLOW], over, wanted, place, words)


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1])")
def check_unique_rows(mem, index, fragment, position, state):
    """Check that a fragment's LIVE rows that nobody holds have one entry each, and keys of their own.

    position: [ROWID to go on at, slots to look at, rows seen so far]. OK at the end, ST_MORE, or ST_INVARIANT.
    """
    index = descriptor_of(mem, index)
    fragment = descriptor_of(mem, fragment)
    if index == 0 or fragment == 0:
        return ST_DROPPED
    while True:
        place = next_live(mem, fragment, position[0], position)
        if place < 0:
            return OK if place == -1 else ST_MORE
        if is_held(mem, row_of_place(mem, place)):
            continue
        words = slot_key_words(mem, index, place, SIDE_TARGET)
        if words == 0:
            continue
        position[2] += 1
        count = count_entries(mem, index, tag_in(mem, index, SIDE_TARGET, words), place, words)
        if count == 0:
            return fault(state, FAULT_MISSING, place)
        if count > 1:
            return fault(state, FAULT_TWICE, place)


@helper
def check_among(mem, index, at, length, state):
    """Check entries among `length` words at `at`: OK or ST_INVARIANT."""
    for i in range(length):
        entry = mem[at + i]
        if entry == 0:
            continue
        state[CU_ENTRIES] += 1
        place = entry & COMPACT_MASK
        row = row_of_place(mem, place)
        if is_held(mem, row):
            continue
        if (mem[row] >> STATE_SHIFT) & STATE_MASK != LIVE:
            return fault(state, FAULT_ROW, place)
        if slot_tag(mem, index, place) != (entry >> ENTRY_TAG_SHIFT) & TAG_MASK:
            return fault(state, FAULT_KEY, place)
    return OK


@kernel("int64(int64[::1], int64, int64[::1])")
def check_unique_entries(mem, index, state):
    """Check the entries of the next block: each leads to a row with its tag. OK at the end, ST_MORE, ST_INVARIANT.

    state: CU_ words; entries that move meanwhile may be seen twice or not at all.
    """
    index = descriptor_of(mem, index)
    if index == 0:
        return ST_DROPPED
    hash = mem[index + I_UNIQUE]
    if mem[hash + F_SEGMENTS] == 0 or state[CU_DIRECTORY] >= 1 << mem[hash + F_INDEX_DEPTH]:
        return OK
    at = state[CU_DIRECTORY]
    segment = mem[mem[hash + F_DIRECTORY + (at >> 9)] + (at & 511)]
    is_first = at < 1 << mem[segment + SEG_DEPTH]  # it stands in the directory at every position with these bits
    part = state[CU_PART]
    if is_first and part < mem[segment + SEG_BLOCKS]:
        state[CU_PART] = part + 1
        status = check_among(mem, index, mem[segment + SEG_BLOCK + part], BLOCK_WORDS, state)
    else:
        state[CU_PART] = 0
        state[CU_DIRECTORY] = at + 1
        count = mem[segment + SEG_OVERFLOW_COUNT] if is_first else 0
        status = check_among(mem, index, mem[segment + SEG_OVERFLOW], count, state)
    return ST_MORE if status == OK else status


@kernel("int64(int64[::1], int64, int64[::1])")
def unique_counters(mem, index, out):
    """[version, entries, segments, blocks] of an index into out, as of one instant: OK or ST_DROPPED."""
    index = descriptor_of(mem, index)
    if index == 0:
        return ST_DROPPED
    hash = mem[index + I_UNIQUE]
    out[0] = mem[index + U_VERSION]
    out[1] = mem[hash + F_INDEX_COUNT]
    out[2] = mem[hash + F_SEGMENTS]
    out[3] = mem[hash + F_INDEX_BLOCKS]
    return OK
