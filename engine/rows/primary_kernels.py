"""Primary-key hash index: extendible directory, segments that grow by blocks, two buckets per key (ADR 0003).

A probe reads at most two buckets of eight entries (and an overflow list, which is nearly always empty).
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.ahead_kernels import read_ahead
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.words_kernels import word_at
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.growth_kernels import FULL_1024, begin_index, grow_segment
from tidemark.engine.rows.rows_kernels import compact_rowid, known_row_address, wide_rowid
from tidemark.engine.rows.segments_kernels import (
    append_unordered,
    bucket_address,
    collect,
    first_bucket,
    place,
    place_or_overflow,
    second_bucket,
    segment_of,
)
from tidemark.engine.rows.var_parts_kernels import chunk_address
from tidemark.engine.sealed.keyed_hash_kernels import keyed_hash


@helper
def tag_of(keys, start, words, seed):
    """Return the 29-bit tag of a canonical key."""
    return keyed_hash(keys, start, words, seed) & A.TAG_MASK


@helper
def key_equals(mem, fragment, row, keys, start, words):
    """Whether the row at address `row` has this canonical key."""
    held = mem[fragment + A.F_KEY_WORDS]
    if held > 0:
        at = row + A.ROW_HEADER_WORDS
        if held != words:
            return False
    else:
        at = chunk_address(mem, mem[row + mem[fragment + A.F_ROW_WORDS] - 1])
        if (mem[at] >> A.VAR_KEY_WORDS_SHIFT) & A.VAR_KEY_WORDS_MASK != words:
            return False
        at += 1
    for i in range(words):
        if mem[at + i] != keys[start + i]:
            return False
    return True


@helper
def row_key(mem, fragment, row):
    """Return the address and length of the canonical key of a stored row."""
    held = mem[fragment + A.F_KEY_WORDS]
    if held > 0:
        return row + A.ROW_HEADER_WORDS, held
    at = chunk_address(mem, mem[row + mem[fragment + A.F_ROW_WORDS] - 1])
    return at + 1, (mem[at] >> A.VAR_KEY_WORDS_SHIFT) & A.VAR_KEY_WORDS_MASK


@helper
def row_tag(mem, fragment, row, seed):
    first, words = row_key(mem, fragment, row)
    return tag_of(mem, first, words, seed)


@helper
def search_bucket(mem, fragment, at, length, wanted, keys, start, words):
    """Return the address of the entry of a key among `length` entries at `at`, 0 if there is none."""
    for i in range(length):
        entry = mem[at + i]
        if entry >> A.ENTRY_TAG_SHIFT == wanted:
            row = known_row_address(mem, fragment, wide_rowid(entry & A.COMPACT_MASK))
            if key_equals(mem, fragment, row, keys, start, words):
                return at + i
    return 0


@helper
def candidate(mem, segment, tag):
    """Return the address of the only entry with this tag in its two buckets; 0 if there is none, -1 if several.

    Looks at all sixteen entries without a branch, as no processor can predict the bucket and place of an entry. Each
    hit counts 16 plus its place, so that one sum gives both number and place.
    """
    wanted = A.ENTRY_USED | tag
    first = bucket_address(mem, segment, first_bucket(mem, segment, tag))
    second = bucket_address(mem, segment, second_bucket(mem, segment, tag))
    here = np.uint64(first)  # as in engine/jit/words_kernels.py, whose helpers would prevent vectorization here
    there = np.uint64(second)
    hits = 0
    others = 0
    for i in range(A.BUCKET_WORDS):
        hits += 16 + i if mem[here + np.uint64(i)] >> A.ENTRY_TAG_SHIFT == wanted else 0
    for i in range(A.BUCKET_WORDS):
        others += 16 + i if mem[there + np.uint64(i)] >> A.ENTRY_TAG_SHIFT == wanted else 0
    if hits + others >= 32:
        return -1
    if hits + others == 0:
        return 0
    return (first + hits if others == 0 else second + others) - 16


@helper
def index_find(mem, fragment, tag, keys, start, words):
    """Return the address of the index entry of a key; 0 when no row has it."""
    if mem[fragment + A.F_INDEX_COUNT] == 0:
        return 0
    segment = segment_of(mem, fragment, tag)
    found = candidate(mem, segment, tag)
    if found > 0:
        row = known_row_address(mem, fragment, wide_rowid(mem[found] & A.COMPACT_MASK))
        if key_equals(mem, fragment, row, keys, start, words):
            return found
    if found != -1 and mem[segment + A.SEG_OVERFLOW_COUNT] == 0:
        return 0
    return find_among_many(mem, fragment, segment, tag, keys, start, words)


@helper
def find_among_many(mem, fragment, segment, tag, keys, start, words):
    """Find a key as `index_find` does, in a segment where several entries share a tag or the overflow list is used."""
    wanted = A.ENTRY_USED | tag
    at = bucket_address(mem, segment, first_bucket(mem, segment, tag))
    found = search_bucket(mem, fragment, at, A.BUCKET_WORDS, wanted, keys, start, words)
    if found == 0:
        at = bucket_address(mem, segment, second_bucket(mem, segment, tag))
        found = search_bucket(mem, fragment, at, A.BUCKET_WORDS, wanted, keys, start, words)
        if found == 0 and mem[segment + A.SEG_OVERFLOW_COUNT] > 0:
            at = mem[segment + A.SEG_OVERFLOW]
            found = search_bucket(mem, fragment, at, mem[segment + A.SEG_OVERFLOW_COUNT], wanted, keys, start, words)
    return found


@helper
def ask_for_buckets(mem, fragment, tag):
    """Ask for both buckets of a tag, so that a later probe finds them in the cache.

    A batch first asks for the buckets of a group of its keys, so that the cache misses overlap.
    """
    if mem[fragment + A.F_SEGMENTS] == 0:
        return
    segment = segment_of(mem, fragment, tag)
    read_ahead(mem, bucket_address(mem, segment, first_bucket(mem, segment, tag)))
    read_ahead(mem, bucket_address(mem, segment, second_bucket(mem, segment, tag)))


@helper
def entry_rowid(mem, entry):
    return wide_rowid(mem[entry] & A.COMPACT_MASK)


@helper
def index_insert(mem, fragment, tag, rowid):
    """Add the entry of a new key; OK or ST_MEMORY."""
    if mem[fragment + A.F_SEGMENTS] == 0 and begin_index(mem, fragment) != A.OK:
        return A.ST_MEMORY
    entry = (A.ENTRY_USED | tag) << A.ENTRY_TAG_SHIFT | compact_rowid(rowid)
    segment = segment_of(mem, fragment, tag)
    capacity = mem[segment + A.SEG_BLOCKS] * A.BLOCK_WORDS
    if mem[segment + A.SEG_COUNT] * 1024 >= capacity * FULL_1024:
        if grow_segment(mem, fragment, segment, tag) != A.OK:
            return A.ST_MEMORY
        segment = segment_of(mem, fragment, tag)
    if place(mem, segment, entry) != A.OK:
        grow_segment(mem, fragment, segment, tag)
        segment = segment_of(mem, fragment, tag)
        if place_or_overflow(mem, segment, entry, mem[fragment + A.F_POOL]) != A.OK:
            return A.ST_MEMORY
    mem[fragment + A.F_INDEX_COUNT] += 1
    return A.OK


@helper
def index_append_unordered(mem, fragment, tag, rowid):
    """Add the entry of a key to the pile of its segment while a restart loads; `order_index` puts the piles in order.

    OK or a status code. Keys cannot be looked up before `order_index`. Duplicate keys are detected when a pile is put
    in order.
    """
    if mem[fragment + A.F_SEGMENTS] == 0 and begin_index(mem, fragment) != A.OK:
        return A.ST_MEMORY
    entry = (A.ENTRY_USED | tag) << A.ENTRY_TAG_SHIFT | compact_rowid(rowid)
    segment = segment_of(mem, fragment, tag)
    if append_unordered(mem, segment, entry, word_at(mem, segment + A.SEG_BLOCKS) * A.BLOCK_WORDS * FULL_1024 >> 10):
        mem[fragment + A.F_INDEX_COUNT] += 1
        return A.OK
    status = order_segment(mem, fragment, segment)
    if status != A.OK:
        return status
    # The segment is full; the two into which it is split are not piles.
    segment = segment_of(mem, fragment, tag)
    if candidate(mem, segment, tag) != 0 or mem[segment + A.SEG_OVERFLOW_COUNT] > 0:
        first, words = row_key(mem, fragment, known_row_address(mem, fragment, rowid))
        if index_find(mem, fragment, tag, mem, first, words) != 0:
            return A.ST_DUPLICATE
    return index_insert(mem, fragment, tag, rowid)


@helper
def order_segment(mem, fragment, segment):
    """Put the entries of a pile into their buckets; OK, ST_DUPLICATE if two rows have the same key, or ST_MEMORY."""
    if mem[segment + A.SEG_IS_UNORDERED] == 0:
        return A.OK
    pool = mem[fragment + A.F_POOL]
    scratch = mem[pool + A.P_SCRATCH]
    count = collect(mem, segment, scratch)
    mem[segment + A.SEG_IS_UNORDERED] = 0
    mem[segment + A.SEG_COUNT] = 0
    tag = 0
    for i in range(count):
        entry = mem[scratch + i]
        tag = (entry >> A.ENTRY_TAG_SHIFT) & A.TAG_MASK
        if candidate(mem, segment, tag) != 0 or mem[segment + A.SEG_OVERFLOW_COUNT] > 0:
            first, words = row_key(mem, fragment, known_row_address(mem, fragment, wide_rowid(entry & A.COMPACT_MASK)))
            if find_among_many(mem, fragment, segment, tag, mem, first, words) != 0:
                return A.ST_DUPLICATE
        if place_or_overflow(mem, segment, entry, pool) != A.OK:
            return A.ST_MEMORY
    if mem[segment + A.SEG_OVERFLOW_COUNT] > 0:
        grow_segment(mem, fragment, segment, tag)
    return A.OK


@helper
def order_index(mem, fragment):
    """Put all piles in order; OK or a status code of `order_segment`."""
    if mem[fragment + A.F_SEGMENTS] == 0:
        return A.OK
    at = 0
    while at < 1 << mem[fragment + A.F_INDEX_DEPTH]:
        segment = mem[mem[fragment + A.F_DIRECTORY + (at >> 9)] + (at & 511)]
        status = order_segment(mem, fragment, segment)
        if status != A.OK:
            return status
        at += 1
    return A.OK


@helper
def index_remove(mem, fragment, tag, rowid):
    """Remove the entry of a key by tag and ROWID; OK, or ST_MISSING if there is none."""
    segment = segment_of(mem, fragment, tag)
    entry = (A.ENTRY_USED | tag) << A.ENTRY_TAG_SHIFT | compact_rowid(rowid)
    for choice in range(2):
        bucket = first_bucket(mem, segment, tag) if choice == 0 else second_bucket(mem, segment, tag)
        at = bucket_address(mem, segment, bucket)
        for i in range(A.BUCKET_WORDS):
            if mem[at + i] == entry:
                mem[at + i] = 0
                mem[segment + A.SEG_COUNT] -= 1
                mem[fragment + A.F_INDEX_COUNT] -= 1
                return A.OK
    count = mem[segment + A.SEG_OVERFLOW_COUNT]
    for i in range(count):
        at = mem[segment + A.SEG_OVERFLOW]
        if mem[at + i] == entry:
            mem[at + i] = mem[at + count - 1]
            mem[at + count - 1] = 0
            mem[segment + A.SEG_OVERFLOW_COUNT] = count - 1
            mem[segment + A.SEG_COUNT] -= 1
            mem[fragment + A.F_INDEX_COUNT] -= 1
            return A.OK
    return A.ST_MISSING


@helper
def image_key(images, at, fixed_words, key_words):
    """Return start and length of the canonical key in a row image."""
    if key_words > 0:
        return at, key_words
    return at + fixed_words + 1, (images[at + fixed_words] >> A.VAR_KEY_WORDS_SHIFT) & A.VAR_KEY_WORDS_MASK
