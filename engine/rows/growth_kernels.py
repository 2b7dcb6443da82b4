"""Growth of the primary index: a segment is given a block, or split in two.

At most 4,096 entries are redistributed at a time, with the tag bits they carry; no row is read, no call pauses.
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.jit.kernel import helper, kernel
from engine.memory.arena_layout import (
    BLOCK_WORDS,
    BUCKET_WORDS,
    BUCKETS_PER_BLOCK,
    DIRECTORY_LEAVES,
    ENTRY_TAG_SHIFT,
    F_DIRECTORY,
    F_INDEX_BLOCKS,
    F_INDEX_COUNT,
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
from engine.memory.handles_kernels import descriptor_of
from engine.memory.pool_kernels import give_block, take_block
from engine.rows.segments_kernels import place_anyhow

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
def give_blocks(mem, fragment, segment, first, stop):
    """Give a segment's blocks [first, stop), its last ones, back; it has none of them already."""
    for number in range(first, stop):
        give_block(mem, mem[fragment + F_POOL], mem[segment + SEG_BLOCK + number])
        mem[segment + SEG_BLOCK + number] = 0
        mem[fragment + F_INDEX_BLOCKS] -= 1


@helper
def make_segment(mem, fragment, depth, blocks):
    """Make an empty segment; its address or 0. Nothing is kept on failure but the block of segment descriptors."""
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
            made = mem[segment + SEG_BLOCKS]
            mem[segment + SEG_BLOCKS] = 0
            give_blocks(mem, fragment, segment, 0, made)
            return 0
    mem[fragment + F_SEGMENT_USED] = used + 1
    mem[fragment + F_SEGMENTS] += 1
    return segment


@helper
def unmake_segment(mem, fragment, segment):
    """Take back the segment that was made last; no directory leads to it."""
    blocks = mem[segment + SEG_BLOCKS]
    mem[segment + SEG_BLOCKS] = 0
    give_blocks(mem, fragment, segment, 0, blocks)
    change_overflow(mem, mem[fragment + F_POOL], segment, 0, 0)
    mem[segment + SEG_COUNT] = 0
    mem[fragment + F_SEGMENT_USED] -= 1
    mem[fragment + F_SEGMENTS] -= 1


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
def set_aside(mem, segment, blocks, target):
    """Move the content of a segment's first blocks to `target`, each word at its place."""
    for number in range(blocks):
        block = mem[segment + SEG_BLOCK + number]
        for i in range(BLOCK_WORDS):
            mem[target + number * BLOCK_WORDS + i] = mem[block + i]
            mem[block + i] = 0


@helper
def put_back(mem, segment, blocks, source):
    """Undo `set_aside`."""
    for number in range(blocks):
        block = mem[segment + SEG_BLOCK + number]
        for i in range(BLOCK_WORDS):
            mem[block + i] = mem[source + number * BLOCK_WORDS + i]
    mem[segment + SEG_BLOCKS] = blocks


@helper
def change_overflow(mem, pool, segment, overflow, count):
    """Give a segment this overflow list instead of the one it has got while it was rebuilt."""
    made = mem[segment + SEG_OVERFLOW]
    if made != 0 and made != overflow:
        give_block(mem, pool, made)
    mem[segment + SEG_OVERFLOW] = overflow
    mem[segment + SEG_OVERFLOW_COUNT] = count


@helper
def divide_entries(mem, pool, segment, twin, depth, blocks, overflow, overflow_count):
    """Place what was set aside, and an overflow list, into both halves of a segment; OK or ST_MEMORY in between."""
    scratch = mem[pool + P_SCRATCH]
    for i in range(blocks * BLOCK_WORDS + overflow_count):
        entry = mem[scratch + i] if i < blocks * BLOCK_WORDS else mem[overflow + i - blocks * BLOCK_WORDS]
        if entry != 0:
            target = twin if (entry >> (ENTRY_TAG_SHIFT + depth)) & 1 else segment
            if place_anyhow(mem, target, entry, pool) != OK:
                return ST_MEMORY
    return OK


@helper
def entries_with_bit(mem, segment, depth):
    """How many entries of a segment have this bit of the tag set."""
    count = 0
    for number in range(mem[segment + SEG_BLOCKS]):
        block = mem[segment + SEG_BLOCK + number]
        for i in range(BLOCK_WORDS):
            count += (mem[block + i] >> (ENTRY_TAG_SHIFT + depth)) & 1
    for i in range(mem[segment + SEG_OVERFLOW_COUNT]):
        count += (mem[mem[segment + SEG_OVERFLOW] + i] >> (ENTRY_TAG_SHIFT + depth)) & 1
    return count


@helper
def roomy_blocks(entries, least):
    """Blocks of a segment of so many entries that was just split; at least `least`."""
    return min(max(entries * 1024 // (ROOMY_1024 * BUCKETS_PER_BLOCK * BUCKET_WORDS) + 1, least), SEG_BLOCKS_MAX)


@helper
def split_segment(mem, fragment, segment, tag, blocks):
    """Split a segment by its next tag bit into two, the new one of at least `blocks` blocks; OK or ST_MEMORY (nothing
    changed).
    """
    depth = mem[segment + SEG_DEPTH]
    if depth == mem[fragment + F_INDEX_DEPTH] and double_directory(mem, fragment) != OK:
        return ST_MEMORY
    pool = mem[fragment + F_POOL]
    before = mem[segment + SEG_BLOCKS]
    entries = mem[segment + SEG_COUNT]
    moving = entries_with_bit(mem, segment, depth)
    twin = make_segment(mem, fragment, depth + 1, roomy_blocks(moving, blocks))
    if twin == 0:
        return ST_MEMORY
    after = min(before, roomy_blocks(entries - moving, blocks))
    overflow = mem[segment + SEG_OVERFLOW]
    overflow_count = mem[segment + SEG_OVERFLOW_COUNT]
    set_aside(mem, segment, before, mem[pool + P_SCRATCH])
    mem[segment + SEG_BLOCKS] = after
    mem[segment + SEG_OVERFLOW] = 0
    mem[segment + SEG_OVERFLOW_COUNT] = 0
    mem[segment + SEG_COUNT] = 0
    if divide_entries(mem, pool, segment, twin, depth, before, overflow, overflow_count) != OK:
        put_back(mem, segment, before, mem[pool + P_SCRATCH])
        change_overflow(mem, pool, segment, overflow, overflow_count)
        mem[segment + SEG_COUNT] = entries
        unmake_segment(mem, fragment, twin)
        return ST_MEMORY
    mem[segment + SEG_DEPTH] = depth + 1
    index = tag & ((1 << depth) - 1) | 1 << depth
    while index < 1 << mem[fragment + F_INDEX_DEPTH]:
        mem[mem[fragment + F_DIRECTORY + (index >> 9)] + (index & 511)] = twin
        index += 1 << (depth + 1)
    give_blocks(mem, fragment, segment, after, before)
    if overflow != 0:
        give_block(mem, pool, overflow)
    return OK


@helper
def enlarge_segment(mem, fragment, segment, blocks):
    """Give a segment up to `blocks` blocks and redistribute its entries; OK or ST_MEMORY (nothing changed)."""
    pool = mem[fragment + F_POOL]
    scratch = mem[pool + P_SCRATCH]
    before = mem[segment + SEG_BLOCKS]
    entries = mem[segment + SEG_COUNT]
    overflow = mem[segment + SEG_OVERFLOW]
    overflow_count = mem[segment + SEG_OVERFLOW_COUNT]
    status = OK
    while mem[segment + SEG_BLOCKS] < blocks and status == OK:
        status = add_block(mem, fragment, segment)
    after = mem[segment + SEG_BLOCKS]
    if after == before:
        return ST_MEMORY
    set_aside(mem, segment, before, scratch)
    mem[segment + SEG_COUNT] = overflow_count
    for i in range(before * BLOCK_WORDS):
        entry = mem[scratch + i]
        if entry != 0 and place_anyhow(mem, segment, entry, pool) != OK:
            put_back(mem, segment, before, scratch)
            give_blocks(mem, fragment, segment, before, after)
            change_overflow(mem, pool, segment, overflow, overflow_count)
            mem[segment + SEG_COUNT] = entries
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
    if mem[fragment + F_DIRECTORY] == 0:
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


@helper
def drop_index(mem, fragment):
    """Give back all memory of a fragment's primary index."""
    pool = mem[fragment + F_POOL]
    block = mem[fragment + F_SEGMENT_BLOCK]
    used = mem[fragment + F_SEGMENT_USED]
    while block != 0:
        for number in range(1, used):
            segment = block + number * SEG_WORDS
            for i in range(mem[segment + SEG_BLOCKS]):
                give_block(mem, pool, mem[segment + SEG_BLOCK + i])
            if mem[segment + SEG_OVERFLOW] != 0:
                give_block(mem, pool, mem[segment + SEG_OVERFLOW])
        before = mem[block]
        give_block(mem, pool, block)
        block = before
        used = BLOCK_WORDS // SEG_WORDS
    for leaf in range(DIRECTORY_LEAVES):
        if mem[fragment + F_DIRECTORY + leaf] != 0:
            give_block(mem, pool, mem[fragment + F_DIRECTORY + leaf])
            mem[fragment + F_DIRECTORY + leaf] = 0
    mem[fragment + F_SEGMENT_BLOCK] = 0
    mem[fragment + F_SEGMENT_USED] = 0
    mem[fragment + F_SEGMENTS] = 0
    mem[fragment + F_INDEX_DEPTH] = 0
    mem[fragment + F_INDEX_COUNT] = 0
    mem[fragment + F_INDEX_BLOCKS] = 0
