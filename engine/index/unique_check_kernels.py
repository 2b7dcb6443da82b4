"""Verification of unique indexes in slices: every row has its entry, every entry its row, and no key occurs twice."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import row_of_place, side_part
from tidemark.engine.index.tree_build_kernels import next_live
from tidemark.engine.index.tree_check_kernels import fault
from tidemark.engine.index.unique_entries_kernels import fragment_of_place
from tidemark.engine.index.unique_keys_kernels import are_words, slot_key_words, slot_tag, tag_in
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.primary_kernels import candidate
from tidemark.engine.rows.segments_kernels import TAG_PARTS, segment_of, tag_part


@helper
def is_held(mem, row):
    """Whether a transaction holds a row exclusively: it may have entries for other images than the slot's."""
    return mem[row] & A.LOCK_MASK != 0 and mem[row] & A.LOCK_SHARED == 0


@helper
def is_key_twice(mem, index, place, other, words):
    """Whether a committed row at place `other`, not held exclusively, also has the key of SIDE_TARGET."""
    row = row_of_place(mem, other)
    if other == place or is_held(mem, row):
        return False
    if mem[fragment_of_place(mem, other) + A.F_DROPPED] or (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK != A.LIVE:
        return False
    if slot_key_words(mem, index, other, X.SIDE_OTHER) != words:
        return False
    target = side_part(mem, index, X.SIDE_TARGET)
    return are_words(mem, side_part(mem, index, X.SIDE_OTHER), mem, target, words)


@helper
def count_entries(mem, index, tag, place, words):
    """Count the entries of a row with the key of SIDE_TARGET, plus 1,000 for each other row with that key."""
    hash = mem[index + X.I_UNIQUE]
    if mem[hash + A.F_SEGMENTS] == 0:
        return 0
    segment = segment_of(mem, hash, tag)
    found = candidate(mem, segment, tag)
    if found != -1 and mem[segment + A.SEG_OVERFLOW_COUNT] == 0:
        return 1 if found != 0 and mem[found] & A.COMPACT_MASK == place else 0
    wanted = A.ENTRY_USED | tag
    count = 0
    for part in range(TAG_PARTS):
        at, length = tag_part(mem, segment, tag, part)
        for i in range(at, at + length):
            if mem[i] >> A.ENTRY_TAG_SHIFT == wanted:
                if mem[i] & A.COMPACT_MASK == place:
                    count += 1
                elif is_key_twice(mem, index, place, mem[i] & A.COMPACT_MASK, words):
                    count += 1_000
    return count


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1])")
def check_unique_rows(mem, index, fragment, position, state):
    """Check that a fragment's LIVE rows, unless held exclusively, have one entry each and distinct keys.

    position: [next ROWID, slots to visit, rows seen so far]. OK at the end, ST_MORE, or ST_INVARIANT.
    """
    index = descriptor_of(mem, index)
    fragment = descriptor_of(mem, fragment)
    if index == 0 or fragment == 0:
        return A.ST_DROPPED
    while True:
        place = next_live(mem, fragment, position[0], position)
        if place < 0:
            return A.OK if place == -1 else A.ST_MORE
        if is_held(mem, row_of_place(mem, place)):
            continue
        words = slot_key_words(mem, index, place, X.SIDE_TARGET)
        if words == 0:
            continue
        position[2] += 1
        count = count_entries(mem, index, tag_in(mem, index, X.SIDE_TARGET, words), place, words)
        if count == 0:
            return fault(state, X.FAULT_MISSING, place)
        if count > 1:
            return fault(state, X.FAULT_TWICE, place)


@helper
def check_among(mem, index, at, length, state):
    """Check entries among `length` words at `at`: OK or ST_INVARIANT."""
    for i in range(length):
        entry = mem[at + i]
        if entry == 0:
            continue
        state[X.CU_ENTRIES] += 1
        place = entry & A.COMPACT_MASK
        row = row_of_place(mem, place)
        if is_held(mem, row):
            continue
        if (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK != A.LIVE:
            return fault(state, X.FAULT_ROW, place)
        if slot_tag(mem, index, place) != (entry >> A.ENTRY_TAG_SHIFT) & A.TAG_MASK:
            return fault(state, X.FAULT_KEY, place)
    return A.OK


@kernel("int64(int64[::1], int64, int64[::1])")
def check_unique_entries(mem, index, state):
    """Check the entries of the next block: the row of each, unless held exclusively, is LIVE and has the entry's tag.

    state: CU_ words; entries that move between slices may be seen twice or not at all. OK at the end, ST_MORE, or
    ST_INVARIANT.
    """
    index = descriptor_of(mem, index)
    if index == 0:
        return A.ST_DROPPED
    hash = mem[index + X.I_UNIQUE]
    if mem[hash + A.F_SEGMENTS] == 0 or state[X.CU_DIRECTORY] >= 1 << mem[hash + A.F_INDEX_DEPTH]:
        return A.OK
    at = state[X.CU_DIRECTORY]
    segment = mem[mem[hash + A.F_DIRECTORY + (at >> 9)] + (at & 511)]
    is_first = at < 1 << mem[segment + A.SEG_DEPTH]  # the first of the positions that share this segment
    part = state[X.CU_PART]
    if is_first and part < mem[segment + A.SEG_BLOCKS]:
        state[X.CU_PART] = part + 1
        status = check_among(mem, index, mem[segment + A.SEG_BLOCK + part], A.BLOCK_WORDS, state)
    else:
        state[X.CU_PART] = 0
        state[X.CU_DIRECTORY] = at + 1
        count = mem[segment + A.SEG_OVERFLOW_COUNT] if is_first else 0
        status = check_among(mem, index, mem[segment + A.SEG_OVERFLOW], count, state)
    return A.ST_MORE if status == A.OK else status


@kernel("int64(int64[::1], int64, int64[::1])")
def unique_counters(mem, index, out):
    """Write [version, entries, segments, blocks] of an index, as of one instant, to out; OK or ST_DROPPED."""
    index = descriptor_of(mem, index)
    if index == 0:
        return A.ST_DROPPED
    hash = mem[index + X.I_UNIQUE]
    out[0] = mem[index + X.U_VERSION]
    out[1] = mem[hash + A.F_INDEX_COUNT]
    out[2] = mem[hash + A.F_SEGMENTS]
    out[3] = mem[hash + A.F_INDEX_BLOCKS]
    return A.OK
