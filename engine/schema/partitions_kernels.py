"""The partition of a canonical key (D14; docs/internals/access.md, section 10), and partition words in the arena.

Partition words are in the arena (for calls on a table) or in a private array (for batches without the GIL); the same
helpers read both. Bounds are stored as *ordered words*: comparing them as signed integers compares the values.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.pool_kernels import free_block, free_page, take_block, take_page
from tidemark.engine.schema import partitions_layout as H
from tidemark.engine.sealed.checksums_kernels import shift_right, xxh64_hash

PARTITION_SEED = 42
POSITIVE = (1 << 63) - 1
SIGN = -(1 << 63)
LOW32 = (1 << 32) - 1
BYTES_8 = 0x00FF00FF00FF00FF
BYTES_16 = 0x0000FFFF0000FFFF


# --- words of a key -------------------------------------------------------------------------------
@helper
def column_start(spec, at, keys, start, ordinal):
    """Return the offset of key column `ordinal` in the canonical key at keys[start]."""
    place = start
    for column in range(ordinal):
        width = spec[at + H.SP_WIDTHS + column]
        place += width if width else 1 + ((keys[place] + 7) >> 3)
    return place


@helper
def swapped(word):
    """Return a word with its bytes reversed."""
    word = (shift_right(word, 8) & BYTES_8) | ((word & BYTES_8) << 8)
    word = (shift_right(word, 16) & BYTES_16) | ((word & BYTES_16) << 16)
    return shift_right(word, 32) | (word << 32)


@helper
def ordered_word(keys, first, order, number):
    """Return ordered word `number` of a column whose words begin at keys[first]."""
    word = keys[first + number]
    if order == H.ORDER_SIGNED:
        return word
    if order == H.ORDER_UNSIGNED:
        return word ^ SIGN
    if order == H.ORDER_BYTES:
        return swapped(word) ^ SIGN
    if order == H.ORDER_WIDE:
        return keys[first + 1] if number == 0 else keys[first] ^ SIGN
    if order == H.ORDER_FLOAT32:
        word &= LOW32
        return word if word <= LOW32 >> 1 else ~word & LOW32 | SIGN
    return word if word >= 0 else word ^ POSITIVE


@helper
def compare_variable(spec, place, keys, first):
    """Compare a variable column of a key with an entry's; return a number < 0, 0 or > 0."""
    here = keys[first]
    there = spec[place]
    common = (min(here, there) + 7) >> 3
    for number in range(1, common + 1):
        word = ordered_word(keys, first, H.ORDER_BYTES, number)
        if word != spec[place + number]:
            return -1 if word < spec[place + number] else 1
    # The same bytes, zero padding included: the shorter value is smaller.
    return here - there


@helper
def compare_entry(spec, at, entry, keys, start):
    """Compare a canonical key with the bound or value at spec[entry]; return a number < 0, 0 or > 0."""
    place = entry + H.EN_HEADER_WORDS
    for column in range(spec[at + H.SP_COLUMNS]):
        if (spec[entry + H.EN_ABOVE] >> column) & 1:
            return -1
        ordinal = spec[at + H.SP_ORDINALS + column]
        first = column_start(spec, at, keys, start, ordinal)
        width = spec[at + H.SP_WIDTHS + ordinal]
        if width == 0:
            found = compare_variable(spec, place, keys, first)
            if found != 0:
                return found
        for number in range(width):
            word = ordered_word(keys, first, spec[at + H.SP_CLASSES + column], number)
            if word != spec[place + number]:
                return -1 if word < spec[place + number] else 1
        place += spec[at + H.SP_BOUND_WORDS + column]
    return 0


# --- which partition ------------------------------------------------------------------------------
@helper
def searched(spec, at, keys, start):
    """Return the fragment number by range or list; -1 if no partition takes the key."""
    low = 0
    high = spec[at + H.SP_ENTRIES]
    per_unit = spec[at + H.SP_PER_UNIT]
    stride = spec[at + H.SP_STRIDE]
    is_range = spec[at + H.SP_KIND] == H.KIND_RANGE
    while low < high:
        middle = (low + high) // 2
        entry = spec[at + H.SP_UNITS + middle // per_unit] + middle % per_unit * stride
        found = compare_entry(spec, at, entry, keys, start)
        if found == 0 and not is_range:
            return spec[entry + H.EN_NUMBER]
        if found < 0:
            high = middle
        else:
            low = middle + 1
    if not is_range or low == spec[at + H.SP_ENTRIES]:
        return -1
    return spec[spec[at + H.SP_UNITS + low // per_unit] + low % per_unit * stride + H.EN_NUMBER]


@helper
def hashed_columns(spec, at, keys, start, scratch, scratch_at):
    """Hash the canonical words of the partition columns, in their order."""
    columns = spec[at + H.SP_COLUMNS]
    end = scratch_at
    for column in range(columns):
        ordinal = spec[at + H.SP_ORDINALS + column]
        first = column_start(spec, at, keys, start, ordinal)
        stop = column_start(spec, at, keys, start, ordinal + spec[at + H.SP_SPAN] + (spec[at + H.SP_SPAN] == 0))
        if spec[at + H.SP_SPAN]:
            return xxh64_hash(keys, first, stop - first, PARTITION_SEED)
        for place in range(first, stop):
            scratch[end] = keys[place]
            end += 1
    return xxh64_hash(scratch, scratch_at, end - scratch_at, PARTITION_SEED)


@helper
def partition_of(spec, at, keys, start, scratch, scratch_at):
    """Return the fragment number of a canonical key by the partition words at spec[at]; -1 if no partition takes it.

    scratch[scratch_at:] has room for a key.
    """
    kind = spec[at + H.SP_KIND]
    fragments = spec[at + H.SP_FRAGMENTS]
    if kind == H.KIND_HASH:
        value = hashed_columns(spec, at, keys, start, scratch, scratch_at) & POSITIVE
    elif kind == H.KIND_MODULO:
        ordinal = spec[at + H.SP_ORDINALS]
        value = keys[column_start(spec, at, keys, start, ordinal)]
        if spec[at + H.SP_LINEAR] == 0:
            if spec[at + H.SP_CLASSES] == H.ORDER_UNSIGNED and value < 0:
                return (shift_right(value, 1) % fragments * 2 + (value & 1)) % fragments
            rest = value % fragments
            return rest + fragments if rest < 0 else rest
    else:
        return searched(spec, at, keys, start)
    if spec[at + H.SP_LINEAR] == 0:
        return value % fragments
    mask = spec[at + H.SP_MASK]
    while value & mask >= fragments:
        mask >>= 1
    return value & mask


@helper
def fragment_number(mem, table, keys, start, words):
    """Return the fragment number of a canonical key; -1 if no partition takes it."""
    if mem[table + A.T_PARTITION] != 0:
        return partition_of(mem, mem[table + A.T_PARTITION], keys, start, mem, mem[A.S_POOL + A.P_SCRATCH])
    fragments = mem[table + A.T_FRAGMENTS]
    if fragments == 1:
        return 0
    return (xxh64_hash(keys, start, words, PARTITION_SEED) & POSITIVE) % fragments


@helper
def fragment_of(mem, table, keys, start, words):
    """Return the descriptor of a canonical key's fragment; 0 if no partition takes the key."""
    number = fragment_number(mem, table, keys, start, words)
    return mem[mem[table + A.T_FRAGMENT_LIST] + number] if number >= 0 else 0


@helper
def private_number(header, keys, start, words, scratch, scratch_at):
    """Return the fragment number as `fragment_number` does, from a table's private hash header."""
    if header[H.HH_PARTITION] != 0:
        return partition_of(header, header[H.HH_PARTITION], keys, start, scratch, scratch_at)
    if header[H.HH_FRAGMENTS] == 1:
        return 0
    return (xxh64_hash(keys, start, words, PARTITION_SEED) & POSITIVE) % header[H.HH_FRAGMENTS]


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64, int64[::1])", nogil=True)
def fragments_of_keys(header, keys, offsets, stride, count, numbers):
    """Write the fragment number of each canonical key, -1 if no partition takes it. header: the table's private hash
    header.

    offsets: count + 1 key offsets, or empty with `stride` words per key. numbers: count words, and room for a key.
    """
    for i in range(count):
        first = offsets[i] if offsets.size else i * stride
        words = offsets[i + 1] - first if offsets.size else stride
        numbers[i] = private_number(header, keys, first, words, numbers, count)
    return count


# --- partition words in the arena -----------------------------------------------------------------
@helper
def free_partition_words(mem, at):
    """Free partition words."""
    for number in range(mem[at + H.SP_UNIT_COUNT]):
        unit = mem[at + H.SP_UNITS + number]
        if mem[at + H.SP_UNIT_IS_PAGE]:
            free_page(mem, A.S_POOL, unit >> A.PAGE_SHIFT)
        else:
            free_block(mem, A.S_POOL, unit)
    free_block(mem, A.S_POOL, at)


@helper
def copy_partition_words(mem, words, start):
    """Copy private partition words at words[start] into the arena; return their address, 0 when memory is exhausted."""
    at = take_block(mem, A.S_POOL)
    if at == 0:
        return 0
    for i in range(H.SP_WORDS):
        mem[at + i] = words[start + i]
    count = words[start + H.SP_UNIT_COUNT]
    left = words[start + H.SP_ENTRIES] * words[start + H.SP_STRIDE]
    full = words[start + H.SP_PER_UNIT] * words[start + H.SP_STRIDE]
    for number in range(count):
        if words[start + H.SP_UNIT_IS_PAGE]:
            unit = take_page(mem, A.S_POOL) << A.PAGE_SHIFT
        else:
            unit = take_block(mem, A.S_POOL)
        if unit == 0:
            mem[at + H.SP_UNIT_COUNT] = number
            free_partition_words(mem, at)
            return 0
        mem[at + H.SP_UNITS + number] = unit
        source = words[start + H.SP_UNITS + number]
        for i in range(min(left, full)):
            mem[unit + i] = words[source + i]
        left -= full
    return at


@kernel("int64(int64[::1], int64[::1], int64, int64)")
def put_partition_words(mem, words, start, makes_room):
    """Copy private partition words at words[start] into the arena; returns their address, 0 when memory is exhausted.

    makes_room: not 0 when a partition is being dropped, which may take pages from the kept reserve.
    """
    kept = mem[A.S_POOL + A.P_KEPT]
    if makes_room:
        mem[A.S_POOL + A.P_KEPT] = 0
    at = copy_partition_words(mem, words, start)
    mem[A.S_POOL + A.P_KEPT] = kept
    return at


@kernel("int64(int64[::1], int64)")
def drop_partition_words(mem, at):
    """Free partition words that no table uses."""
    free_partition_words(mem, at)
    return A.OK


assert A.BLOCK_WORDS == H.SP_WORDS
