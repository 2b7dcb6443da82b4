"""Primary-key hash index: extendible directory, segments that grow by blocks, two buckets per key.

A probe reads at most two buckets of eight entries (and a short overflow list that is empty unless tags collide by the
dozen). Growing a segment redistributes at most 4,096 entries with the tag bits they carry; no row is read, no call
pauses.
"""

from __future__ import annotations

from engine.kernels import helper
from engine.kernels.checksums import xxh64_hash
from engine.kernels.pool import give_block, take_block
from engine.kernels.rows import compact_rowid, known_row_address, wide_rowid
from engine.kernels.varparts import chunk_address
from engine.layout.arena import (
    BLOCK_WORDS,
    BUCKET_WORDS,
    BUCKETS_PER_BLOCK,
    COMPACT_MASK,
    ENTRY_TAG_SHIFT,
    ENTRY_USED,
    F_DIRECTORY,
    F_INDEX_BLOCKS,
    F_INDEX_COUNT,
    F_INDEX_DEPTH,
    F_KEY_WORDS,
    F_POOL,
    F_ROW_WORDS,
    F_SEGMENT_BLOCK,
    F_SEGMENT_USED,
    F_SEGMENTS,
    INDEX_DEPTH_MAX,
    OK,
    P_SCRATCH,
    ROW_HEADER_WORDS,
    SEG_BLOCK,
    SEG_BLOCKS,
    SEG_BLOCKS_MAX,
    SEG_COUNT,
    SEG_DEPTH,
    SEG_OVERFLOW,
    SEG_OVERFLOW_COUNT,
    SEG_WORDS,
    SEGS_PER_BLOCK,
    ST_MEMORY,
    ST_MISSING,
    TAG_MASK,
    VAR_KEY_WORDS_MASK,
    VAR_KEY_WORDS_SHIFT,
)

# A segment is grown before it is fuller than this many of 1,024ths, and rebuilt to at most the second.
FULL_1024 = 968
ROOMY_1024 = 830


@helper
def tag_of(keys, start, words, seed):
    """29-bit tag of a canonical key."""
    return xxh64_hash(keys, start, words, seed) & TAG_MASK


@helper
def segment_of(mem, fragment, tag):
    """Address of the segment descriptor a tag belongs to."""
    index = tag & ((1 << mem[fragment + F_INDEX_DEPTH]) - 1)
    return mem[mem[fragment + F_DIRECTORY + (index >> 9)] + (index & 511)]


@helper
def bucket_address(mem, segment, bucket):
    """Address of a bucket by number."""
    return mem[segment + SEG_BLOCK + (bucket >> 6)] + (bucket & 63) * BUCKET_WORDS


@helper
def first_bucket(mem, segment, tag):
    """First of the two buckets of a tag."""
    mixed = ((tag * 0x9E3779B1) >> 12) & 0xFFFFF
    return (mixed * mem[segment + SEG_BLOCKS] * BUCKETS_PER_BLOCK) >> 20


@helper
def second_bucket(mem, segment, tag):
    """Second of the two buckets of a tag."""
    mixed = (((tag ^ (tag >> 15)) * 0x85EBCA77) >> 10) & 0xFFFFF
    return (mixed * mem[segment + SEG_BLOCKS] * BUCKETS_PER_BLOCK) >> 20


@helper
def key_equals(mem, fragment, row, keys, start, words):
    """Whether the row at address `row` has this canonical key."""
    held = mem[fragment + F_KEY_WORDS]
    if held > 0:
        at = row + ROW_HEADER_WORDS
        if held != words:
            return False
    else:
        at = chunk_address(mem, mem[row + mem[fragment + F_ROW_WORDS] - 1])
        if (mem[at] >> VAR_KEY_WORDS_SHIFT) & VAR_KEY_WORDS_MASK != words:
            return False
        at += 1
    for i in range(words):
        if mem[at + i] != keys[start + i]:
            return False
    return True


@helper
def search_bucket(mem, fragment, at, length, wanted, keys, start, words):
    """Address of the entry of a key among `length` entries at `at`, 0 if none."""
    for i in range(length):
        entry = mem[at + i]
        if entry >> ENTRY_TAG_SHIFT == wanted:
            row = known_row_address(mem, fragment, wide_rowid(entry & COMPACT_MASK))
            if key_equals(mem, fragment, row, keys, start, words):
                return at + i
    return 0


@helper
def index_find(mem, fragment, tag, keys, start, words):
    """Address of the index entry of a key; 0 when no row has it."""
    if mem[fragment + F_INDEX_COUNT] == 0:
        return 0
    segment = segment_of(mem, fragment, tag)
    wanted = ENTRY_USED | tag
    at = bucket_address(mem, segment, first_bucket(mem, segment, tag))
    found = search_bucket(mem, fragment, at, BUCKET_WORDS, wanted, keys, start, words)
    if found == 0:
        at = bucket_address(mem, segment, second_bucket(mem, segment, tag))
        found = search_bucket(mem, fragment, at, BUCKET_WORDS, wanted, keys, start, words)
        if found == 0 and mem[segment + SEG_OVERFLOW_COUNT] > 0:
            at = mem[segment + SEG_OVERFLOW]
            found = search_bucket(mem, fragment, at, mem[segment + SEG_OVERFLOW_COUNT], wanted, keys, start, words)
    return found


@helper
def entry_rowid(mem, entry):
    """ROWID an index entry (by address) points to."""
    return wide_rowid(mem[entry] & COMPACT_MASK)


@helper
def bucket_room(mem, at):
    """Free entries of a bucket and the address of one of them."""
    room = 0
    where = 0
    for i in range(BUCKET_WORDS):
        if mem[at + i] == 0:
            room += 1
            where = at + i
    return room, where


@helper
def make_room(mem, segment, at):
    """Move one entry of a full bucket to its other bucket; address of the freed entry, 0 if none can move."""
    for i in range(BUCKET_WORDS):
        entry = mem[at + i]
        tag = (entry >> ENTRY_TAG_SHIFT) & TAG_MASK
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
    """Put an entry into its segment; OK, or ST_MISSING when neither bucket can take it."""
    tag = (entry >> ENTRY_TAG_SHIFT) & TAG_MASK
    first = bucket_address(mem, segment, first_bucket(mem, segment, tag))
    second = bucket_address(mem, segment, second_bucket(mem, segment, tag))
    room, where = bucket_room(mem, first)
    if room < BUCKET_WORDS - 1:
        room_second, where_second = bucket_room(mem, second)
        if room_second > room:
            room = room_second
            where = where_second
    if room == 0:
        where = make_room(mem, segment, first)
        if where == 0:
            where = make_room(mem, segment, second)
            if where == 0:
                return ST_MISSING
    mem[where] = entry
    mem[segment + SEG_COUNT] += 1
    return OK


@helper
def place_anyhow(mem, segment, entry, pool):
    """Put an entry into its segment, at worst into the overflow list; OK or ST_MEMORY."""
    if place(mem, segment, entry) == OK:
        return OK
    if mem[segment + SEG_OVERFLOW] == 0:
        mem[segment + SEG_OVERFLOW] = take_block(mem, pool)
        if mem[segment + SEG_OVERFLOW] == 0:
            return ST_MEMORY
    count = mem[segment + SEG_OVERFLOW_COUNT]
    if count >= BLOCK_WORDS:
        return ST_MEMORY
    mem[mem[segment + SEG_OVERFLOW] + count] = entry
    mem[segment + SEG_OVERFLOW_COUNT] = count + 1
    mem[segment + SEG_COUNT] += 1
    return OK


@helper
def collect(mem, segment, target):
    """Copy all entries of a segment to `target`, empty its buckets; returns their number."""
    count = 0
    for number in range(mem[segment + SEG_BLOCKS]):
        block = mem[segment + SEG_BLOCK + number]
        for i in range(BLOCK_WORDS):
            entry = mem[block + i]
            if entry != 0:
                mem[target + count] = entry
                count += 1
                mem[block + i] = 0
    return count


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
def split_segment(mem, fragment, segment, tag):
    """Split a segment by its next tag bit; OK or ST_MEMORY (then nothing has changed)."""
    depth = mem[segment + SEG_DEPTH]
    if depth == mem[fragment + F_INDEX_DEPTH] and double_directory(mem, fragment) != OK:
        return ST_MEMORY
    pool = mem[fragment + F_POOL]
    wanted = (mem[segment + SEG_COUNT] // 2) * 1024 // (ROOMY_1024 * BUCKETS_PER_BLOCK * BUCKET_WORDS) + 1
    twin = make_segment(mem, fragment, depth + 1, min(wanted, SEG_BLOCKS_MAX))
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
def grow_segment(mem, fragment, segment, tag):
    """Give a segment more room: a block, or a split; OK or ST_MEMORY."""
    if mem[segment + SEG_BLOCKS] == SEG_BLOCKS_MAX:
        return split_segment(mem, fragment, segment, tag)
    pool = mem[fragment + F_POOL]
    scratch = mem[pool + P_SCRATCH]
    if add_block(mem, fragment, segment) != OK:
        return ST_MEMORY
    # The new block is empty, so collecting first or last makes no difference to what is found.
    count = collect(mem, segment, scratch)
    mem[segment + SEG_COUNT] = mem[segment + SEG_OVERFLOW_COUNT]
    for i in range(count):
        if place_anyhow(mem, segment, mem[scratch + i], pool) != OK:
            return ST_MEMORY
    return OK


@helper
def index_insert(mem, fragment, tag, rowid):
    """Add the entry of a new key; OK or ST_MEMORY."""
    if mem[fragment + F_SEGMENTS] == 0:
        mem[fragment + F_DIRECTORY] = take_block(mem, mem[fragment + F_POOL])
        if mem[fragment + F_DIRECTORY] == 0:
            return ST_MEMORY
        segment = make_segment(mem, fragment, 0, 1)
        if segment == 0:
            return ST_MEMORY
        mem[mem[fragment + F_DIRECTORY]] = segment
    entry = (ENTRY_USED | tag) << ENTRY_TAG_SHIFT | compact_rowid(rowid)
    segment = segment_of(mem, fragment, tag)
    capacity = mem[segment + SEG_BLOCKS] * BLOCK_WORDS
    if mem[segment + SEG_COUNT] * 1024 >= capacity * FULL_1024:
        if grow_segment(mem, fragment, segment, tag) != OK:
            return ST_MEMORY
        segment = segment_of(mem, fragment, tag)
    if place(mem, segment, entry) != OK:
        grow_segment(mem, fragment, segment, tag)
        segment = segment_of(mem, fragment, tag)
        if place_anyhow(mem, segment, entry, mem[fragment + F_POOL]) != OK:
            return ST_MEMORY
    mem[fragment + F_INDEX_COUNT] += 1
    return OK


@helper
def index_remove(mem, fragment, tag, rowid):
    """Remove the entry of a key by tag and ROWID; OK, or ST_MISSING when it is not there."""
    segment = segment_of(mem, fragment, tag)
    entry = (ENTRY_USED | tag) << ENTRY_TAG_SHIFT | compact_rowid(rowid)
    for choice in range(2):
        bucket = first_bucket(mem, segment, tag) if choice == 0 else second_bucket(mem, segment, tag)
        at = bucket_address(mem, segment, bucket)
        for i in range(BUCKET_WORDS):
            if mem[at + i] == entry:
                mem[at + i] = 0
                mem[segment + SEG_COUNT] -= 1
                mem[fragment + F_INDEX_COUNT] -= 1
                return OK
    count = mem[segment + SEG_OVERFLOW_COUNT]
    for i in range(count):
        at = mem[segment + SEG_OVERFLOW]
        if mem[at + i] == entry:
            mem[at + i] = mem[at + count - 1]
            mem[at + count - 1] = 0
            mem[segment + SEG_OVERFLOW_COUNT] = count - 1
            mem[segment + SEG_COUNT] -= 1
            mem[fragment + F_INDEX_COUNT] -= 1
            return OK
    return ST_MISSING


@helper
def row_tag(mem, fragment, row, seed):
    """Tag of the key of a stored row."""
    held = mem[fragment + F_KEY_WORDS]
    if held > 0:
        return tag_of(mem, row + ROW_HEADER_WORDS, held, seed)
    at = chunk_address(mem, mem[row + mem[fragment + F_ROW_WORDS] - 1])
    return tag_of(mem, at + 1, (mem[at] >> VAR_KEY_WORDS_SHIFT) & VAR_KEY_WORDS_MASK, seed)


@helper
def image_key(images, at, fixed_words, key_words):
    """Start and length of the canonical key in a row image."""
    if key_words > 0:
        return at, key_words
    return at + fixed_words + 1, (images[at + fixed_words] >> VAR_KEY_WORDS_SHIFT) & VAR_KEY_WORDS_MASK
