"""Growth of the primary index: a segment gets another block, or is split in two.

At most 4,096 entries are redistributed at a time, by the tag bits they carry; no row is read, and no call takes long.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.memory.pool_kernels import free_block, take_block
from tidemark.engine.rows.segments_kernels import place_or_overflow

# Fill limits in 1,024ths: a segment grows before it exceeds the first; after a split it does not exceed the second.
FULL_1024 = 968
ROOMY_1024 = 830
# Entries for which a segment is sized ahead of a bulk load. The margin for uneven hashing avoids a split soon after.
RESERVED_ENTRIES = 3_650


@helper
def add_block(mem, fragment, segment):
    """Give a segment one more (empty) block; OK or ST_MEMORY. The caller redistributes."""
    block = take_block(mem, mem[fragment + A.F_POOL])
    if block == 0:
        return A.ST_MEMORY
    mem[segment + A.SEG_BLOCK + mem[segment + A.SEG_BLOCKS]] = block
    mem[segment + A.SEG_BLOCKS] += 1
    mem[fragment + A.F_INDEX_BLOCKS] += 1
    return A.OK


@helper
def free_last_blocks(mem, fragment, segment, first, stop):
    """Release a segment's blocks [first, stop), its last ones; SEG_BLOCKS no longer counts them."""
    for number in range(first, stop):
        free_block(mem, mem[fragment + A.F_POOL], mem[segment + A.SEG_BLOCK + number])
        mem[segment + A.SEG_BLOCK + number] = 0
        mem[fragment + A.F_INDEX_BLOCKS] -= 1


@helper
def make_segment(mem, fragment, depth, blocks):
    """Create an empty segment; returns its address or 0. A failure leaves only the block of segment descriptors."""
    used = mem[fragment + A.F_SEGMENT_USED]
    if mem[fragment + A.F_SEGMENT_BLOCK] == 0 or used >= A.SEGS_PER_BLOCK:
        block = take_block(mem, mem[fragment + A.F_POOL])
        if block == 0:
            return 0
        mem[block] = mem[fragment + A.F_SEGMENT_BLOCK]
        mem[fragment + A.F_SEGMENT_BLOCK] = block
        used = 1
        mem[fragment + A.F_SEGMENT_USED] = used
    segment = mem[fragment + A.F_SEGMENT_BLOCK] + used * A.SEG_WORDS
    mem[segment + A.SEG_DEPTH] = depth
    while mem[segment + A.SEG_BLOCKS] < blocks:
        if add_block(mem, fragment, segment) != A.OK:
            made = mem[segment + A.SEG_BLOCKS]
            mem[segment + A.SEG_BLOCKS] = 0
            free_last_blocks(mem, fragment, segment, 0, made)
            return 0
    mem[fragment + A.F_SEGMENT_USED] = used + 1
    mem[fragment + A.F_SEGMENTS] += 1
    return segment


@helper
def unmake_segment(mem, fragment, segment):
    """Remove the segment that was created last, to which no directory entry refers yet."""
    blocks = mem[segment + A.SEG_BLOCKS]
    mem[segment + A.SEG_BLOCKS] = 0
    free_last_blocks(mem, fragment, segment, 0, blocks)
    change_overflow(mem, mem[fragment + A.F_POOL], segment, 0, 0)
    mem[segment + A.SEG_COUNT] = 0
    mem[fragment + A.F_SEGMENT_USED] -= 1
    mem[fragment + A.F_SEGMENTS] -= 1


@helper
def double_directory(mem, fragment):
    """Use one more tag bit in the directory; OK or ST_MEMORY."""
    depth = mem[fragment + A.F_INDEX_DEPTH]
    if depth >= A.INDEX_DEPTH_MAX:
        return A.ST_MEMORY
    size = 1 << depth
    last = (2 * size - 1) >> 9
    for leaf in range(last + 1):
        if mem[fragment + A.F_DIRECTORY + leaf] == 0:
            mem[fragment + A.F_DIRECTORY + leaf] = take_block(mem, mem[fragment + A.F_POOL])
            if mem[fragment + A.F_DIRECTORY + leaf] == 0:
                return A.ST_MEMORY
    for i in range(size):
        j = i + size
        mem[mem[fragment + A.F_DIRECTORY + (j >> 9)] + (j & 511)] = mem[
            mem[fragment + A.F_DIRECTORY + (i >> 9)] + (i & 511)
        ]
    mem[fragment + A.F_INDEX_DEPTH] = depth + 1
    return A.OK


@helper
def set_aside(mem, segment, blocks, target):
    """Move the content of a segment's first blocks to `target`, word for word."""
    for number in range(blocks):
        block = mem[segment + A.SEG_BLOCK + number]
        for i in range(A.BLOCK_WORDS):
            mem[target + number * A.BLOCK_WORDS + i] = mem[block + i]
            mem[block + i] = 0


@helper
def restore_blocks(mem, segment, blocks, source):
    for number in range(blocks):
        block = mem[segment + A.SEG_BLOCK + number]
        for i in range(A.BLOCK_WORDS):
            mem[block + i] = mem[source + number * A.BLOCK_WORDS + i]
    mem[segment + A.SEG_BLOCKS] = blocks


@helper
def change_overflow(mem, pool, segment, overflow, count):
    """Set a segment's overflow list after a failed rebuild, and release the list that the rebuild created."""
    made = mem[segment + A.SEG_OVERFLOW]
    if made != 0 and made != overflow:
        free_block(mem, pool, made)
    mem[segment + A.SEG_OVERFLOW] = overflow
    mem[segment + A.SEG_OVERFLOW_COUNT] = count


@helper
def divide_entries(mem, pool, segment, twin, depth, blocks, overflow, overflow_count):
    """Distribute the entries set aside, and those of an overflow list, to both halves of a segment; OK, or ST_MEMORY
    midway.
    """
    scratch = mem[pool + A.P_SCRATCH]
    for i in range(blocks * A.BLOCK_WORDS + overflow_count):
        entry = mem[scratch + i] if i < blocks * A.BLOCK_WORDS else mem[overflow + i - blocks * A.BLOCK_WORDS]
        if entry != 0:
            target = twin if (entry >> (A.ENTRY_TAG_SHIFT + depth)) & 1 else segment
            if place_or_overflow(mem, target, entry, pool) != A.OK:
                return A.ST_MEMORY
    return A.OK


@helper
def entries_with_bit(mem, segment, depth):
    """Return how many entries of a segment have this bit of the tag set."""
    count = 0
    for number in range(mem[segment + A.SEG_BLOCKS]):
        block = mem[segment + A.SEG_BLOCK + number]
        for i in range(A.BLOCK_WORDS):
            count += (mem[block + i] >> (A.ENTRY_TAG_SHIFT + depth)) & 1
    for i in range(mem[segment + A.SEG_OVERFLOW_COUNT]):
        count += (mem[mem[segment + A.SEG_OVERFLOW] + i] >> (A.ENTRY_TAG_SHIFT + depth)) & 1
    return count


@helper
def roomy_blocks(entries, least):
    """Return the number of blocks for a segment of `entries` entries after a split; at least `least`."""
    return min(max(entries * 1024 // (ROOMY_1024 * A.BUCKETS_PER_BLOCK * A.BUCKET_WORDS) + 1, least), A.SEG_BLOCKS_MAX)


@helper
def split_segment(mem, fragment, segment, tag, blocks):
    """Split a segment in two by its next tag bit, the new one with at least `blocks` blocks; OK or ST_MEMORY (nothing
    changed).
    """
    depth = mem[segment + A.SEG_DEPTH]
    if depth == mem[fragment + A.F_INDEX_DEPTH] and double_directory(mem, fragment) != A.OK:
        return A.ST_MEMORY
    pool = mem[fragment + A.F_POOL]
    before = mem[segment + A.SEG_BLOCKS]
    entries = mem[segment + A.SEG_COUNT]
    moving = entries_with_bit(mem, segment, depth)
    twin = make_segment(mem, fragment, depth + 1, roomy_blocks(moving, blocks))
    if twin == 0:
        return A.ST_MEMORY
    after = min(before, roomy_blocks(entries - moving, blocks))
    overflow = mem[segment + A.SEG_OVERFLOW]
    overflow_count = mem[segment + A.SEG_OVERFLOW_COUNT]
    set_aside(mem, segment, before, mem[pool + A.P_SCRATCH])
    mem[segment + A.SEG_BLOCKS] = after
    mem[segment + A.SEG_OVERFLOW] = 0
    mem[segment + A.SEG_OVERFLOW_COUNT] = 0
    mem[segment + A.SEG_COUNT] = 0
    if divide_entries(mem, pool, segment, twin, depth, before, overflow, overflow_count) != A.OK:
        restore_blocks(mem, segment, before, mem[pool + A.P_SCRATCH])
        change_overflow(mem, pool, segment, overflow, overflow_count)
        mem[segment + A.SEG_COUNT] = entries
        unmake_segment(mem, fragment, twin)
        return A.ST_MEMORY
    mem[segment + A.SEG_DEPTH] = depth + 1
    index = tag & ((1 << depth) - 1) | 1 << depth
    while index < 1 << mem[fragment + A.F_INDEX_DEPTH]:
        mem[mem[fragment + A.F_DIRECTORY + (index >> 9)] + (index & 511)] = twin
        index += 1 << (depth + 1)
    free_last_blocks(mem, fragment, segment, after, before)
    if overflow != 0:
        free_block(mem, pool, overflow)
    return A.OK


@helper
def enlarge_segment(mem, fragment, segment, blocks):
    """Enlarge a segment to up to `blocks` blocks and redistribute its entries; OK or ST_MEMORY (nothing changed)."""
    pool = mem[fragment + A.F_POOL]
    scratch = mem[pool + A.P_SCRATCH]
    before = mem[segment + A.SEG_BLOCKS]
    entries = mem[segment + A.SEG_COUNT]
    overflow = mem[segment + A.SEG_OVERFLOW]
    overflow_count = mem[segment + A.SEG_OVERFLOW_COUNT]
    status = A.OK
    while mem[segment + A.SEG_BLOCKS] < blocks and status == A.OK:
        status = add_block(mem, fragment, segment)
    after = mem[segment + A.SEG_BLOCKS]
    if after == before:
        return A.ST_MEMORY
    set_aside(mem, segment, before, scratch)
    mem[segment + A.SEG_COUNT] = overflow_count
    for i in range(before * A.BLOCK_WORDS):
        entry = mem[scratch + i]
        if entry != 0 and place_or_overflow(mem, segment, entry, pool) != A.OK:
            restore_blocks(mem, segment, before, scratch)
            free_last_blocks(mem, fragment, segment, before, after)
            change_overflow(mem, pool, segment, overflow, overflow_count)
            mem[segment + A.SEG_COUNT] = entries
            return A.ST_MEMORY
    return A.OK


@helper
def grow_segment(mem, fragment, segment, tag):
    """Give a segment more room by a block or a split; OK or ST_MEMORY."""
    if mem[segment + A.SEG_BLOCKS] == A.SEG_BLOCKS_MAX:
        return split_segment(mem, fragment, segment, tag, 1)
    return enlarge_segment(mem, fragment, segment, mem[segment + A.SEG_BLOCKS] + 1)


@helper
def begin_index(mem, fragment):
    """Create the first segment of an empty index; OK or ST_MEMORY."""
    if mem[fragment + A.F_DIRECTORY] == 0:
        mem[fragment + A.F_DIRECTORY] = take_block(mem, mem[fragment + A.F_POOL])
        if mem[fragment + A.F_DIRECTORY] == 0:
            return A.ST_MEMORY
    segment = make_segment(mem, fragment, 0, 1)
    if segment == 0:
        return A.ST_MEMORY
    mem[mem[fragment + A.F_DIRECTORY]] = segment
    return A.OK


@helper
def reserve_step(mem, fragment, expected, at):
    """Do one step of sizing an index for `expected` entries: rebuild at most one segment.

    at: directory position where the search begins. Returns the position where to continue, or -1 when all is done or
    memory is short (then the index grows on demand, as far as it can).
    """
    if mem[fragment + A.F_SEGMENTS] == 0 and begin_index(mem, fragment) != A.OK:
        return -1
    depth = 0
    while expected >> depth > RESERVED_ENTRIES and depth < A.INDEX_DEPTH_MAX:
        depth += 1
    blocks = max(1, min(A.SEG_BLOCKS_MAX, (expected >> depth) * 1024 // (FULL_1024 * A.BLOCK_WORDS)))
    while at < 1 << mem[fragment + A.F_INDEX_DEPTH]:
        segment = mem[mem[fragment + A.F_DIRECTORY + (at >> 9)] + (at & 511)]
        if mem[segment + A.SEG_DEPTH] < depth:
            final = blocks if mem[segment + A.SEG_DEPTH] + 1 == depth else 1
            return at if split_segment(mem, fragment, segment, at, final) == A.OK else -1
        if mem[segment + A.SEG_DEPTH] == depth and mem[segment + A.SEG_BLOCKS] < blocks:
            return at + 1 if enlarge_segment(mem, fragment, segment, blocks) == A.OK else -1
        at += 1
    return -1


@kernel("int64(int64[::1], int64, int64, int64)")
def reserve_index(mem, fragment, expected, at):
    """Run one `reserve_step` for a live fragment; the caller repeats it from the returned position until that is
    negative. ST_DROPPED if the fragment is gone.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    return reserve_step(mem, fragment, expected, at)


@helper
def drop_index(mem, fragment):
    pool = mem[fragment + A.F_POOL]
    block = mem[fragment + A.F_SEGMENT_BLOCK]
    used = mem[fragment + A.F_SEGMENT_USED]
    while block != 0:
        for number in range(1, used):
            segment = block + number * A.SEG_WORDS
            for i in range(mem[segment + A.SEG_BLOCKS]):
                free_block(mem, pool, mem[segment + A.SEG_BLOCK + i])
            if mem[segment + A.SEG_OVERFLOW] != 0:
                free_block(mem, pool, mem[segment + A.SEG_OVERFLOW])
        before = mem[block]
        free_block(mem, pool, block)
        block = before
        used = A.BLOCK_WORDS // A.SEG_WORDS
    for leaf in range(A.DIRECTORY_LEAVES):
        if mem[fragment + A.F_DIRECTORY + leaf] != 0:
            free_block(mem, pool, mem[fragment + A.F_DIRECTORY + leaf])
            mem[fragment + A.F_DIRECTORY + leaf] = 0
    mem[fragment + A.F_SEGMENT_BLOCK] = 0
    mem[fragment + A.F_SEGMENT_USED] = 0
    mem[fragment + A.F_SEGMENTS] = 0
    mem[fragment + A.F_INDEX_DEPTH] = 0
    mem[fragment + A.F_INDEX_COUNT] = 0
    mem[fragment + A.F_INDEX_BLOCKS] = 0
