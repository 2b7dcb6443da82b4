"""One segment of the primary index: its buckets and the placement of entries.

An entry is in one of two buckets of eight, both given by its tag. If both are full and no neighbour can move to its
other bucket, it goes to the segment's overflow list, which is empty unless dozens of tags collide.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.words_kernels import word_at
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.pool_kernels import take_block

TAG_PARTS = 3


@helper
def segment_of(mem, fragment, tag):
    index = tag & ((1 << word_at(mem, fragment + A.F_INDEX_DEPTH)) - 1)
    return word_at(mem, word_at(mem, fragment + A.F_DIRECTORY + (index >> 9)) + (index & 511))


@helper
def bucket_address(mem, segment, bucket):
    return word_at(mem, segment + A.SEG_BLOCK + (bucket >> 6)) + (bucket & 63) * A.BUCKET_WORDS


@helper
def first_bucket(mem, segment, tag):
    mixed = ((tag * 0x9E3779B1) >> 12) & 0xFFFFF
    return (mixed * word_at(mem, segment + A.SEG_BLOCKS) * A.BUCKETS_PER_BLOCK) >> 20


@helper
def second_bucket(mem, segment, tag):
    mixed = (((tag ^ (tag >> 15)) * 0x85EBCA77) >> 10) & 0xFFFFF
    return (mixed * word_at(mem, segment + A.SEG_BLOCKS) * A.BUCKETS_PER_BLOCK) >> 20


@helper
def tag_part(mem, segment, tag, part):
    """Return (address, words) of one of the TAG_PARTS of a segment that may have entries of a tag: its two buckets and
    the overflow list. The second one has 0 words if it is the first.
    """
    if part == TAG_PARTS - 1:
        return mem[segment + A.SEG_OVERFLOW], mem[segment + A.SEG_OVERFLOW_COUNT]
    first = bucket_address(mem, segment, first_bucket(mem, segment, tag))
    if part == 0:
        return first, A.BUCKET_WORDS
    second = bucket_address(mem, segment, second_bucket(mem, segment, tag))
    return second, 0 if second == first else A.BUCKET_WORDS


@helper
def bucket_room(mem, at):
    """Return the number of free entries of a bucket and, if there is one, the address of the last. No branch, as no
    processor can predict which entries are free.
    """
    here = np.uint64(at)
    room = 0
    last = 0
    for i in range(A.BUCKET_WORDS):
        is_free = 1 if mem[here + np.uint64(i)] == 0 else 0
        room += is_free
        last = max(last, is_free * i)
    return room, at + last


@helper
def make_room(mem, segment, at):
    """Move one entry of a full bucket to its other bucket; returns the freed address, 0 if none can move."""
    for i in range(A.BUCKET_WORDS):
        entry = mem[at + i]
        tag = (entry >> A.ENTRY_TAG_SHIFT) & A.TAG_MASK
        other = bucket_address(mem, segment, first_bucket(mem, segment, tag))
        if other == at:
            other = bucket_address(mem, segment, second_bucket(mem, segment, tag))
        room, where = bucket_room(mem, other)
        if room > 0:
            mem[where] = entry
            mem[at + i] = 0
            return at + i
    return 0


@helper
def place(mem, segment, entry):
    """Put an entry into its segment; OK, or ST_MISSING if neither bucket has or gets room."""
    tag = (entry >> A.ENTRY_TAG_SHIFT) & A.TAG_MASK
    first = bucket_address(mem, segment, first_bucket(mem, segment, tag))
    second = bucket_address(mem, segment, second_bucket(mem, segment, tag))
    room, where = bucket_room(mem, first)
    room_second, where_second = bucket_room(mem, second)
    where = where_second if room_second > room else where
    if room == 0 and room_second == 0:
        where = make_room(mem, segment, first)
        if where == 0:
            where = make_room(mem, segment, second)
            if where == 0:
                return A.ST_MISSING
    mem[where] = entry
    mem[segment + A.SEG_COUNT] += 1
    return A.OK


@helper
def place_or_overflow(mem, segment, entry, pool):
    """Put an entry into its segment, if need be into the overflow list; OK or ST_MEMORY."""
    if place(mem, segment, entry) == A.OK:
        return A.OK
    if mem[segment + A.SEG_OVERFLOW] == 0:
        mem[segment + A.SEG_OVERFLOW] = take_block(mem, pool)
        if mem[segment + A.SEG_OVERFLOW] == 0:
            return A.ST_MEMORY
    count = mem[segment + A.SEG_OVERFLOW_COUNT]
    if count >= A.BLOCK_WORDS:
        return A.ST_MEMORY
    mem[mem[segment + A.SEG_OVERFLOW] + count] = entry
    mem[segment + A.SEG_OVERFLOW_COUNT] = count + 1
    mem[segment + A.SEG_COUNT] += 1
    return A.OK


@helper
def collect(mem, segment, target):
    """Copy all entries in a segment's buckets to `target` and empty the buckets; returns their number."""
    count = 0
    for number in range(mem[segment + A.SEG_BLOCKS]):
        block = mem[segment + A.SEG_BLOCK + number]
        for i in range(A.BLOCK_WORDS):
            entry = mem[block + i]
            if entry != 0:
                mem[target + count] = entry
                count += 1
                mem[block + i] = 0
    return count


@helper
def append_unordered(mem, segment, entry, most):
    """Add an entry to a segment that is a pile of fewer than `most` entries (an empty segment becomes a pile); returns
    False if it is not.

    Random buckets are cache misses; the ends of a thousand piles stay in the cache.
    """
    count = word_at(mem, segment + A.SEG_COUNT)
    if count == 0:
        mem[segment + A.SEG_IS_UNORDERED] = 1
    elif word_at(mem, segment + A.SEG_IS_UNORDERED) == 0:
        return False
    if count >= most:
        return False
    mem[np.uint64(word_at(mem, segment + A.SEG_BLOCK + (count >> 9)) + (count & 511))] = entry
    mem[segment + A.SEG_COUNT] = count + 1
    return True
