"""Key words of an ordered index: a row's key columns as bits whose order is the order of keys.

See docs/internals/access.md, section 4.
One encoder serves rows in the arena, after-images in private buffers and anything else in the form of a row image;
`engine/index/key_values.py` makes the same bits from Python values. The output needs two words more than the limit: a
value is written in pieces of up to 16 bytes before the limit is checked.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words, word_at
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows import columns_layout as K
from tidemark.engine.rows.side_pages_kernels import var_of
from tidemark.engine.rows.var_parts_kernels import chunk_address
from tidemark.engine.schema import row_layout as R
from tidemark.engine.schema.partitions_kernels import swapped
from tidemark.engine.sealed.checksums_kernels import shift_right

LOWEST = -(1 << 63)
INFINITY64 = 0x7FF << 52
INFINITY32 = 0xFF << 23
ONES = 0x0101010101010101
HIGHS = 0x8080808080808080 - (1 << 64)
NO_VAR_PART = -1  # in place of an address: every column is absent. 0 is valid: an image may have no fixed words


@helper
def put_bits(out, base, bit, value, count):
    """Append the low `count` bits (1 to 64) of a value after `bit` bits; return the new number of bits."""
    at = base + (bit >> 6)
    room = 64 - (bit & 63)
    if room == 64:
        out[at] = value << (64 - count)
        return bit + count
    if count < 64:
        value &= (1 << count) - 1
    if count <= room:
        out[at] |= value << (room - count)
    else:
        out[at] |= shift_right(value, count - room)
        out[at + 1] = value << (64 - count + room)
    return bit + count


@helper
def bytes_at(words, byte, count):
    """Return 1 to 8 bytes from byte offset `byte` of an array of words, the first byte most significant."""
    at = byte >> 3
    shift = (byte & 7) << 3
    word = word_at(words, at)
    if shift:
        word = shift_right(word, shift)
        if shift + (count << 3) > 64:
            word |= word_at(words, at + 1) << (64 - shift)
    word = swapped(word)
    return word if count == 8 else shift_right(word, 64 - (count << 3))


@helper
def put_bytes(words, byte, count, out, base, bit, limit):
    """Append bytes with 00 escaped as 00 FF, then the end mark 00 00; stop when `limit` bits are reached."""
    done = 0
    while done < count and bit < limit:
        step = min(8, count - done)
        piece = bytes_at(words, byte + done, step)
        probe = piece if step == 8 else piece << (64 - (step << 3)) | shift_right(-1, step << 3)
        if (probe - ONES) & ~probe & HIGHS == 0:
            bit = put_bits(out, base, bit, piece, step << 3)
        else:
            for i in range(step - 1, -1, -1):
                each = (piece >> (i << 3)) & 0xFF
                bit = put_bits(out, base, bit, each, 8) if each else put_bits(out, base, bit, 0xFF, 16)
        done += step
    return put_bits(out, base, bit, 0, 16) if bit < limit else bit


@helper
def without_padding(words, byte, count):
    while count >= 8 and bytes_at(words, byte + count - 8, 8) == 0:
        count -= 8
    while count > 0 and bytes_at(words, byte + count - 1, 1) == 0:
        count -= 1
    return count


@helper
def ordered_float(value, bits, infinity):
    """Map the bits of a float to an unsigned integer of the same order: NaN above everything, -0.0 as 0.0."""
    sign = 1 << (bits - 1)
    whole = -1 if bits == 64 else (1 << bits) - 1
    if value & ~sign & whole > infinity:
        return whole
    if value & sign == 0:
        return value | sign
    return ~value & whole if value & ~sign & whole else sign


@helper
def put_number(words, byte, kind, width, out, base, bit):
    """Append a value of fixed size: 16 bytes that begin at a word, or up to 8 bytes within one word."""
    at = byte >> 3
    if kind == K.CLASS_WIDE:
        return put_words(word_at(words, at), word_at(words, at + 1), kind, width, out, base, bit)
    return put_words(word_at(words, at) >> ((byte & 7) << 3), 0, kind, width, out, base, bit)


@helper
def put_words(low, high, kind, width, out, base, bit):
    """Append a number in its own width, big-endian: a signed one with its sign bit flipped, a float as by
    `ordered_float`.
    """
    if kind == K.CLASS_WIDE:
        bit = put_bits(out, base, bit, high ^ LOWEST, 64)
        return put_bits(out, base, bit, low, 64)
    bits = width << 3
    value = low
    if bits < 64:
        value &= (1 << bits) - 1
    if kind == K.CLASS_FLOAT64:
        value = ordered_float(value, 64, INFINITY64)
    elif kind == K.CLASS_FLOAT32:
        value = ordered_float(value, 32, INFINITY32)
    elif kind == K.CLASS_SIGNED:
        value ^= 1 << (bits - 1)
    return put_bits(out, base, bit, value, bits)


@helper
def copy_chained(mem, reference, first, count, target, at):
    """Copy words [first, first + count) of a chained var part to target[at:]."""
    position = 0
    while reference != 0 and count > 0:
        base = (reference >> 16) << A.PAGE_SHIFT
        word = mem[base + A.PAGE_WORDS - 1 - (reference & 0xFFFF)]
        start = base + (word & 0xFFFF)
        chained = 1 if word & A.VAR_CHAINED else 0
        words = ((word >> 16) & 0xFFFF) - chained
        if first < position + words:
            here = min(count, position + words - first)
            move_words(mem, start + chained + first - position, target, at, here)
            first += here
            at += here
            count -= here
        position += words
        reference = mem[start] if chained else 0


@helper
def put_var(mem, tree, column, nullable, parts, var_at, reference, side, side_at, out, base, bit, limit):
    """Append a var column, NULL bit included. parts[var_at:] is the var part, or the first chunk of a chained one."""
    header = parts[var_at] if var_at != NO_VAR_PART else 0
    ends = var_at + 1 + ((header >> R.VAR_KEY_WORDS_SHIFT) & R.VAR_KEY_WORDS_MASK)
    columns = (header >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK
    ordinal = mem[column + K.CW_AT]
    if ordinal >= columns:
        if mem[column + K.CW_MISSING] < 0:
            return put_bits(out, base, bit, 0, 1 if nullable else 16)
        if nullable:
            bit = put_bits(out, base, bit, 1, 1)
        constants = mem[tree + X.I_SIDE] + X.SIDE_CONSTANTS * mem[tree + X.I_SIDE_STRIDE]
        byte = (constants << 3) + mem[column + K.CW_MISSING]
        return put_var_value(mem, column, mem, byte, mem[column + K.CW_MISSING_BYTES], out, base, bit, limit)
    end = parts[ends + (ordinal >> 1)] >> ((ordinal & 1) << 5)
    if end & R.VAR_NULL_BIT:  # also of a column that is not nullable and gets its values just now
        return put_bits(out, base, bit, 0, 1 if nullable else 16)
    if nullable:
        bit = put_bits(out, base, bit, 1, 1)
    begin = 0
    if ordinal > 0:
        begin = (parts[ends + ((ordinal - 1) >> 1)] >> (((ordinal - 1) & 1) << 5)) & R.VAR_END_MASK
    count = (end & R.VAR_END_MASK) - begin
    byte = ((ends - var_at + ((columns + 1) >> 1)) << 3) + begin
    if reference == 0:
        return put_var_value(mem, column, parts, (var_at << 3) + byte, count, out, base, bit, limit)
    if count > 0:
        copy_chained(mem, reference, byte >> 3, ((byte & 7) + count + 7) >> 3, side, side_at)
    return put_var_value(mem, column, side, (side_at << 3) + (byte & 7), count, out, base, bit, limit)


@helper
def put_var_value(mem, column, parts, byte, count, out, base, bit, limit):
    """Append the value at a byte address of a var part: bytes, or a number of a column added later, which is
    unaligned.
    """
    kind = mem[column + K.CW_CLASS]
    if kind == K.CLASS_BYTES:
        return put_bytes(parts, byte, count, out, base, bit, limit)
    width = mem[column + K.CW_BYTES]
    size = min(width, 8)
    low = shift_right(swapped(bytes_at(parts, byte, size)), 64 - (size << 3))
    high = swapped(bytes_at(parts, byte + 8, 8)) if width > 8 else 0
    return put_words(low, high, kind, width, out, base, bit)


@helper
def put_piece(mem, tree, column, parts, var_at, out, base, bit, limit):
    """Append a column of a primary key in the var part; such a key is completely in the first chunk."""
    at = var_at + 1
    wanted = mem[column + K.CW_AT]
    for i in range(wanted):
        words = mem[tree + X.I_PIECE_WORDS + i]
        at += words if words >= 0 else 1 + ((parts[at] + 7) >> 3)
    if mem[column + K.CW_CLASS] != K.CLASS_BYTES:
        return put_number(parts, at << 3, mem[column + K.CW_CLASS], mem[column + K.CW_BYTES], out, base, bit)
    if mem[tree + X.I_PIECE_WORDS + wanted] < 0:
        return put_bytes(parts, (at + 1) << 3, parts[at], out, base, bit, limit)
    return put_bytes(parts, at << 3, without_padding(parts, at << 3, mem[column + K.CW_BYTES]), out, base, bit, limit)


@helper
def encode_key(mem, tree, fixed, at, parts, var_at, reference, side, side_at, out, base, limit):
    """Encode the key words of a row with fixed image fixed[at:] and var part parts[var_at:] to out[base:].

    reference: that of the var part if it is chained, else 0. side[side_at:]: room for one value. Write at most `limit`
    words; return their number. A key shorter than the index's I_WORDS is padded to that.
    """
    bit = 0
    most = limit << 6
    for i in range(mem[tree + X.I_COLUMN_COUNT]):
        if bit >= most:
            break
        column = tree + X.I_COLUMNS + i * K.COLUMN_WORDS
        nullable = (mem[tree + X.I_NULLABLE] >> i) & 1
        part = mem[column + K.CW_PART]
        if part == K.PART_VAR:
            bit = put_var(mem, tree, column, nullable, parts, var_at, reference, side, side_at, out, base, bit, most)
        elif part != K.PART_FIXED:
            bit = put_piece(mem, tree, column, parts, var_at, out, base, bit, most)
        else:
            if nullable:
                null_at = mem[column + K.CW_NULL_BYTE]
                is_null = (fixed[at + (null_at >> 3)] >> ((null_at & 7) << 3)) & mem[column + K.CW_NULL_MASK]
                bit = put_bits(out, base, bit, 0 if is_null else 1, 1)
                if is_null:
                    continue
            byte = (at << 3) + mem[column + K.CW_AT]
            width = mem[column + K.CW_BYTES]
            if mem[column + K.CW_CLASS] == K.CLASS_BYTES:
                bit = put_bytes(fixed, byte, without_padding(fixed, byte, width), out, base, bit, most)
            else:
                bit = put_number(fixed, byte, mem[column + K.CW_CLASS], width, out, base, bit)
    words = min((bit + 63) >> 6, limit)
    for i in range(words):
        out[base + i] ^= LOWEST
    while words < mem[tree + X.I_WORDS]:
        out[base + words] = LOWEST
        words += 1
    return words


@helper
def row_of_place(mem, place):
    page = (place >> X.PLACE_SHIFT) << A.PAGE_SHIFT
    fragment = word_at(mem, page + A.PG_FRAGMENT)
    return page + A.PAGE_HEADER_WORDS + (place & X.PLACE_SLOT_MASK) * word_at(mem, fragment + A.F_ROW_WORDS)


@helper
def var_of_place(mem, place):
    """Return the var reference of the row at a place; 0 if it has no var part."""
    fragment = mem[((place >> X.PLACE_SHIFT) << A.PAGE_SHIFT) + A.PG_FRAGMENT]
    if mem[fragment + A.F_HAS_VAR] == 0:
        return 0
    return var_of(mem, fragment, row_of_place(mem, place))


@helper
def is_chained(mem, reference):
    word = mem[((reference >> 16) << A.PAGE_SHIFT) + A.PAGE_WORDS - 1 - (reference & 0xFFFF)]
    return word & A.VAR_CHAINED != 0


@helper
def encode_row(mem, tree, place, side, side_at, out, base, limit):
    """Like `encode_key`, for the row at a place."""
    reference = var_of_place(mem, place)
    var_at = chunk_address(mem, reference) if reference else NO_VAR_PART
    if reference and not is_chained(mem, reference):
        reference = 0
    at = row_of_place(mem, place) + A.ROW_HEADER_WORDS
    return encode_key(mem, tree, mem, at, mem, var_at, reference, side, side_at, out, base, limit)


@helper
def side_part(mem, tree, number):
    """Return the address of one of the four scratch parts."""
    return mem[tree + X.I_SIDE] + number * mem[tree + X.I_SIDE_STRIDE]


@helper
def encode_here(mem, tree, place, number, limit):
    """Encode the key words of the row at a place into a scratch part; return their number."""
    out = side_part(mem, tree, number)
    return encode_row(mem, tree, place, mem, side_part(mem, tree, X.SIDE_VALUE), mem, out, limit)


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1], int64[::1])", nogil=True)
def encode_images(descriptor, images, offsets, fixed_words, count, limit, out, lengths):
    """Encode the key words of row images at word offsets into `out`, `limit` + 2 words apart; write to lengths[i] how
    many image i has. descriptor: a private copy (`KeyShape.descriptor`). Return `count`.
    """
    for i in range(count):
        at = offsets[i]
        to = i * (limit + 2)
        lengths[i] = encode_key(descriptor, 0, images, at, images, at + fixed_words, 0, out, 0, out, to, limit)
    return count
