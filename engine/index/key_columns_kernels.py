"""Column values out of the key words of an exact index: answers without a look at the rows."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import LOWEST
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.rows import columns_layout as K
from tidemark.engine.sealed.checksums_kernels import shift_right


@helper
def take_bits(keys, base, bit, count):
    """`count` bits (1 to 64) behind `bit` bits of key words; bits behind the last word are zeros."""
    at = base + (bit >> 6)
    used = bit & 63
    word = (keys[at] ^ LOWEST) << used
    if used + count > 64:
        word |= shift_right(keys[at + 1] ^ LOWEST, 64 - used)
    return word if count == 64 else shift_right(word, 64 - count)


@helper
def take_bytes(keys, base, bit, out, at):
    """Bytes up to their end mark, eight to a word of out[at:], zero-padded; returns the bits they took, mark included,
    with how many bytes there are in the lowest eight bits.
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
    """One value to out[at:], bytes first; returns the bits it took."""
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
    """Values of key column `column` out of key words of an exact index, W words an entry in keys. descriptor: a private
    copy (`KeyShape.descriptor`).

    DECODED_WORDS words each in out: bytes of the value (-1: NULL), then the value as it is stored, integers extended to
    a word, 128-bit ones low word first, bytes zero-padded and without padding counted.
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
