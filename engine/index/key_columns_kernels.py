"""Column values decoded from the key words of an exact index, without reading the rows."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import LOWEST
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.rows import columns_layout as K
from tidemark.engine.sealed.checksums_kernels import shift_right


@helper
def take_bits(keys, base, bit, count):
    """Return `count` bits (1 to 64) of key words from bit `bit` on; bits past the last word are zeros."""
    at = base + (bit >> 6)
    used = bit & 63
    word = (keys[at] ^ LOWEST) << used
    if used + count > 64:
        word |= shift_right(keys[at + 1] ^ LOWEST, 64 - used)
    return word if count == 64 else shift_right(word, 64 - count)


@helper
def take_bytes(keys, base, bit, out, at):
    """Copy bytes up to their end mark, eight to a word of out[at:], zero-padded. Returns the bits consumed, mark
    included, << 8 | the number of bytes.
    """
    begin = bit
    count = 0
    while count < (X.DECODED_WORDS - 1) * 8:
        each = take_bits(keys, base, bit, 8)
        bit += 8
        if each == 0:
            bit += 8
            if take_bits(keys, base, bit - 8, 8) == 0:
                break
        if count & 7 == 0:
            out[at + (count >> 3)] = 0
        out[at + (count >> 3)] |= each << ((count & 7) << 3)
        count += 1
    return (bit - begin) << 8 | count


@helper
def take_value(keys, base, bit, kind, width, out, at):
    """Decode one value to out[at:], its size in bytes first; returns the bits consumed."""
    if kind == K.CLASS_BYTES:
        taken = take_bytes(keys, base, bit, out, at + 1)
        out[at] = taken & 0xFF
        return taken >> 8
    out[at] = width
    if kind == K.CLASS_WIDE:
        out[at + 2] = take_bits(keys, base, bit, 64) ^ LOWEST
        out[at + 1] = take_bits(keys, base, bit + 64, 64)
        return 128
    bits = width << 3
    value = take_bits(keys, base, bit, bits)
    if kind == K.CLASS_SIGNED:
        value = (value ^ 1 << (bits - 1)) << (64 - bits) >> (64 - bits)
    elif kind in (K.CLASS_FLOAT32, K.CLASS_FLOAT64):
        sign = 1 << (bits - 1)
        value = value ^ sign if value & sign else ~value
        if bits < 64:
            value &= (1 << bits) - 1
    out[at + 1] = value
    return bits


@kernel("int64(int64[::1], int64[::1], int64, int64, int64[::1])")
def decode_keys(descriptor, keys, count, column, out):
    """Decode the values of key column `column` from key words of an exact index, W words for each entry in keys.
    descriptor: a private copy (`KeyShape.descriptor`).

    out gets DECODED_WORDS words for each: the value's size in bytes (-1: NULL), then the value as stored. Integers are
    extended to a word, 128-bit integers are low word first. Bytes are zero-padded; their size does not count the
    padding.
    """
    words = descriptor[X.I_WORDS]
    for i in range(count):
        bit = 0
        at = i * X.DECODED_WORDS
        for j in range(column + 1):
            each = X.I_COLUMNS + j * K.COLUMN_WORDS
            for k in range(X.DECODED_WORDS):
                out[at + k] = 0
            if (descriptor[X.I_NULLABLE] >> j) & 1:
                bit += 1
                if take_bits(keys, i * words, bit - 1, 1) == 0:
                    out[at] = -1
                    continue
            bit += take_value(
                keys, i * words, bit, descriptor[each + K.CW_CLASS], descriptor[each + K.CW_BYTES], out, at
            )
    return count
