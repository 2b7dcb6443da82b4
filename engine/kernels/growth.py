"""Growth of the primary index: a segment is given a block, or split in two.

At most 4,096 entries are redistributed at a time, with the tag bits they carry; no row is read, no call pauses.
"""

from __future__ import annotations

from engine.kernels import helper, kernel
from engine.kernels.handles import descriptor_of
from engine.kernels.pool import give_block, take_block
from engine.kernels.segments import collect, place_anyhow
from engine.layout.arena import (
    BLOCK_WORDS,
    BUCKET_WORDS,
    BUCKETS_PER_BLOCK,
    ENTRY_TAG_SHIFT,
    F_DIRECTORY,
    F_INDEX_BLOCKS,
    F_INDEX_DEPTH,
    F_POOL,
    F_SEGMENT_BLOCK,
    F_SEGMENT_USED,
    F_SEGMENTS,
    INDEX_DEPTH_MAX,
    OK,
    P_SCRATCH,
    SEG_BLOCK,
    SEG_BLOCKS,
    SEG_BLOCKS_MAX,
    SEG_COUNT,
    SEG_DEPTH,
    SEG_OVERFLOW,
    SEG_OVERFLOW_COUNT,
    SEG_WORDS,
    SEGS_PER_BLOCK,
    ST_DROPPED,
    ST_MEMORY,
)

# A segment is grown before it is fuller than this many of 1,024ths, and rebuilt to at most the second.
FULL_1024 = 968
ROOMY_1024 = 830
# Entries a segment is given ahead of a bulk load, chance included, so that it need not be split right after.
RESERVED_ENTRIES = 3_650


@helper
def add_block(mem, fragment, segment):
    """Give a segment one more (empty) block; OK or ST_MEMORY. The caller redistributes."""
    block = take_block(mem, mem[fragment + F_POOL])
    if block == 0:
        return ST_MEMORY
    mem[segment + SEG_BLOCK + mem[segment + SEG_BLOCKS]] = block
    mem[segment + SEG_BLOCKS] += 1
    mem[fragment + F_INDEX_BLOCKS] += 1
    return OK


@helper
def make_segment(mem, fragment, depth, blocks):
    """Make an empty segment; its address or 0. Nothing is kept on failure but blocks the segment list owns."""
    used = mem[fragment + F_SEGMENT_USED]
    if mem[fragment + F_SEGMENT_BLOCK] == 0 or used >= SEGS_PER_BLOCK:
        block = take_block(mem, mem[fragment + F_POOL])
        if block == 0:
            return 0
        mem[block] = mem[fragment + F_SEGMENT_BLOCK]
        mem[fragment + F_SEGMENT_BLOCK] = block
        used = 1
        mem[fragment + F_SEGMENT_USED] = used
    segment = mem[fragment + F_SEGMENT_BLOCK] + used * SEG_WORDS
    mem[segment + SEG_DEPTH] = depth
    while mem[segment + SEG_BLOCKS] < blocks:
        if add_block(mem, fragment, segment) != OK:
            return 0
    mem[fragment + F_SEGMENT_USED] = used + 1
    mem[fragment + F_SEGMENTS] += 1
    return segment


@helper
def double_directory(mem, fragment):
    """Use one more tag bit in the directory; OK or ST_MEMORY."""
    depth = mem[fragment + F_INDEX_DEPTH]
    if depth >= INDEX_DEPTH_MAX:
        return ST_MEMORY
    size = 1 << depth
    last = (2 * size - 1) >> 9
    for leaf in range(last + 1):
        if mem[fragment + F_DIRECTORY + leaf] == 0:
            mem[fragment + F_DIRECTORY + leaf] = take_block(mem, mem[fragment + F_POOL])
            if mem[fragment + F_DIRECTORY + leaf] == 0:
                return ST_MEMORY
    for i in range(size):
        j = i + size
        mem[mem[fragment + F_DIRECTORY + (j >> 9)] + (j & 511)] = mem[
            mem[fragment + F_DIRECTORY + (i >> 9)] + (i & 511)
        ]
    mem[fragment + F_INDEX_DEPTH] = depth + 1
    return OK


@helper
def split_segment(mem, fragment, segment, tag, blocks):
    """Split a segment by its next tag bit into two of at least `blocks` blocks; OK or ST_MEMORY (nothing changed)."""
    depth = mem[segment + SEG_DEPTH]
    if depth == mem[fragment + F_INDEX_DEPTH] and double_directory(mem, fragment) != OK:
        return ST_MEMORY
    pool = mem[fragment + F_POOL]
    wanted = (mem[segment + SEG_COUNT] // 2) * 1024 // (ROOMY_1024 * BUCKETS_PER_BLOCK * BUCKET_WORDS) + 1
    twin = make_segment(mem, fragment, depth + 1, min(max(wanted, blocks), SEG_BLOCKS_MAX))
    if twin == 0:
        return ST_MEMORY
    scratch = mem[pool + P_SCRATCH]
    count = collect(mem, segment, scratch)
    while mem[segment + SEG_BLOCKS] > mem[twin + SEG_BLOCKS]:
        mem[segment + SEG_BLOCKS] -= 1
        block = mem[segment + SEG_BLOCK + mem[segment + SEG_BLOCKS]]
        mem[segment + SEG_BLOCK + mem[segment + SEG_BLOCKS]] = 0
        give_block(mem, pool, block)
        mem[fragment + F_INDEX_BLOCKS] -= 1
    overflow = mem[segment + SEG_OVERFLOW]
    overflow_count = mem[segment + SEG_OVERFLOW_COUNT]
    mem[segment + SEG_OVERFLOW] = 0
    mem[segment + SEG_OVERFLOW_COUNT] = 0
    mem[segment + SEG_COUNT] = 0
    mem[segment + SEG_DEPTH] = depth + 1
    low = tag & ((1 << depth) - 1)
    index = low | 1 << depth
    while index < 1 << mem[fragment + F_INDEX_DEPTH]:
        mem[mem[fragment + F_DIRECTORY + (index >> 9)] + (index & 511)] = twin
        index += 1 << (depth + 1)
    for i in range(count + overflow_count):
        entry = mem[scratch + i] if i < count else mem[overflow + i - count]
        target = twin if (entry >> (ENTRY_TAG_SHIFT + depth)) & 1 else segment
        if place_anyhow(mem, target, entry, pool) != OK:
            return ST_MEMORY
    if overflow != 0:
        give_block(mem, pool, overflow)
    return OK


@helper
def enlarge_segment(mem, fragment, segment, blocks):
    """Give a segment `blocks` blocks and redistribute its entries; OK or ST_MEMORY."""
    pool = mem[fragment + F_POOL]
    scratch = mem[pool + P_SCRATCH]
    before = mem[segment + SEG_BLOCKS]
    status = OK
    while mem[segment + SEG_BLOCKS] < blocks and status == OK:
        status = add_block(mem, fragment, segment)
    if mem[segment + SEG_BLOCKS] == before:
        return ST_MEMORY
    # The new blocks are empty, so collecting before or after adding them makes no difference to what is found.
    count = collect(mem, segment, scratch)
    mem[segment + SEG_COUNT] = mem[segment + SEG_OVERFLOW_COUNT]
    for i in range(count):
        if place_anyhow(mem, segment, mem[scratch + i], pool) != OK:
            return ST_MEMORY
    return OK


@helper
def grow_segment(mem, fragment, segment, tag):
    """Give a segment more room: a block, or a split; OK or ST_MEMORY."""
    if mem[segment + SEG_BLOCKS] == SEG_BLOCKS_MAX:
        return split_segment(mem, fragment, segment, tag, 1)
    return enlarge_segment(mem, fragment, segment, mem[segment + SEG_BLOCKS] + 1)


@helper
def begin_index(mem, fragment):
    """Make the first segment of an empty index; OK or ST_MEMORY."""
    mem[fragment + F_DIRECTORY] = take_block(mem, mem[fragment + F_POOL])
    if mem[fragment + F_DIRECTORY] == 0:
        return ST_MEMORY
    segment = make_segment(mem, fragment, 0, 1)
    if segment == 0:
        return ST_MEMORY
    mem[mem[fragment + F_DIRECTORY]] = segment
    return OK


@helper
def reserve_step(mem, fragment, expected, at):
    """One step of giving an index the size it will need for `expected` entries: at most one segment is rebuilt.

    at: directory position the search begins at. Returns the position to go on at, or -1 when all is done or memory is
    short (then the index grows on its own, as far as it can).
    """
    if mem[fragment + F_SEGMENTS] == 0 and begin_index(mem, fragment) != OK:
        return -1
    depth = 0
    while expected >> depth > RESERVED_ENTRIES and depth < INDEX_DEPTH_MAX:
        depth += 1
    blocks = max(1, min(SEG_BLOCKS_MAX, (expected >> depth) * 1024 // (FULL_1024 * BLOCK_WORDS)))
    while at < 1 << mem[fragment + F_INDEX_DEPTH]:
        segment = mem[mem[fragment + F_DIRECTORY + (at >> 9)] + (at & 511)]
        if mem[segment + SEG_DEPTH] < depth:
            final = blocks if mem[segment + SEG_DEPTH] + 1 == depth else 1
            return at if split_segment(mem, fragment, segment, at, final) == OK else -1
        if mem[segment + SEG_DEPTH] == depth and mem[segment + SEG_BLOCKS] < blocks:
            return at + 1 if enlarge_segment(mem, fragment, segment, blocks) == OK else -1
        at += 1
    return -1


@kernel("int64(int64[::1], int64, int64, int64)")
def reserve_index(mem, fragment, expected, at):
    """`reserve_step` for a live fragment: call it with the position it returns until that is -1."""
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return ST_DROPPED
    return reserve_step(mem, fragment, expected, at)
