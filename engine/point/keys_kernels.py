"""Keys read from their Python objects: words of a primary key, and key words of a unique index.

A key that the plan does not know (another Python type, out of its column's range, too long) has no words: the general
path reads it, or refuses it.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index.key_words_kernels import LOWEST, put_bits, put_bytes, put_words
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import (
    bytes_size,
    clear_error,
    copy_bytes,
    copy_text,
    float_bits,
    int_of,
    is_bool,
    is_bytes,
    is_float,
    is_int,
    is_text,
    is_tuple,
    load_8,
    stack_words,
    text_length,
    text_size,
    tuple_item,
    tuple_size,
)
from tidemark.engine.point import plan_layout as U
from tidemark.engine.rows import columns_layout as K

NOT_READ = -1
INFINITY = 0x7FF << 52
MAGNITUDE = (1 << 63) - 1

key_words = stack_words(U.STACK_WORDS)


@helper
def number_of(plan, at, key):
    """Return (whether a number of a key was read, its word)."""
    kind = plan[at + U.KC_KIND]
    if kind == U.KEY_INT:
        if is_int(key) == 0:
            return 0, 0
        word, overflow = int_of(key)
        if overflow or word < plan[at + U.KC_LEAST] or word > plan[at + U.KC_GREATEST]:
            return 0, 0
        return 1, word
    if kind == U.KEY_FLOAT:
        if is_float(key) == 0:
            return 0, 0
        word = float_bits(key)
        if word & MAGNITUDE > INFINITY:  # NaN
            return 0, 0
        return 1, (0 if word == LOWEST else word)
    if is_bool(key) == 0:
        return 0, 0
    word, _ = int_of(key)
    return 1, word


@helper
def is_number(kind):
    return kind <= U.KEY_BOOL


@helper
def octets_of(plan, at, key, words, start):
    """Copy the bytes of a text or of bytes to words[start:], with zeros up to a whole word. Return their number, or
    NOT_READ.
    """
    kind = plan[at + U.KC_KIND]
    if kind == U.KEY_PADDED_TEXT or kind == U.KEY_TEXT:
        if is_text(key) == 0 or text_length(key) > plan[at + U.KC_LEAST]:
            return NOT_READ
        size = text_size(key)
        if size < 0:
            clear_error()
            return NOT_READ
    else:
        if is_bytes(key) == 0:
            return NOT_READ
        size = bytes_size(key)
        if size > plan[at + U.KC_LEAST]:
            return NOT_READ
    whole = (size + 7) >> 3
    if start + whole > U.STACK_WORDS:
        return NOT_READ
    if whole > 0:
        words[start + whole - 1] = 0
    if kind == U.KEY_PADDED_TEXT or kind == U.KEY_TEXT:
        copy_text(key, size, words, start << 3)
        if kind == U.KEY_PADDED_TEXT and size > 0 and load_8(words, (start << 3) + size - 1) == 0:
            return NOT_READ
    else:
        copy_bytes(key, size, words, start << 3)
    return size


@helper
def put_piece(plan, at, key, words, start):
    """Write the canonical words of a column of the primary key to words[start:]; return their number, 0 if the key was
    not read.
    """
    kind = plan[at + U.KC_KIND]
    if is_number(kind):
        if start >= U.STACK_WORDS:
            return 0
        is_read, word = number_of(plan, at, key)
        words[start] = word
        return is_read
    if kind == U.KEY_TEXT or kind == U.KEY_BYTES:
        if start >= U.STACK_WORDS:
            return 0
        size = octets_of(plan, at, key, words, start + 1)
        if size == NOT_READ:
            return 0
        words[start] = size
        return 1 + ((size + 7) >> 3)
    width = (plan[at + U.KC_BYTES] + 7) >> 3
    if start + width > U.STACK_WORDS:
        return 0
    size = octets_of(plan, at, key, words, start)
    if size == NOT_READ:
        return 0
    for i in range((size + 7) >> 3, width):
        words[start + i] = 0
    return width


@helper
def put_key(plan, at, key, words):
    """Write the canonical words of a primary key; return their number, 0 if it was not read. at: of the plan of the
    key.
    """
    columns = plan[at + U.UK_COLUMNS]
    if columns == 1:
        return put_piece(plan, at + U.UK_FIRST, key, words, 0)
    if is_tuple(key) == 0 or tuple_size(key) != columns:
        return 0
    count = 0
    for i in range(columns):
        more = put_piece(plan, at + U.UK_FIRST + i * U.KEY_WORDS, tuple_item(key, i), words, count)
        if more == 0:
            return 0
        count += more
    return count


@helper
def put_index_piece(mem, column, nullable, plan, at, key, octets, words, bit, most):
    """Append a column of the key of an index after `bit` bits; return the new number of bits, NOT_READ."""
    kind = plan[at + U.KC_KIND]
    if is_number(kind):
        is_read, word = number_of(plan, at, key)
        if is_read == 0:
            return NOT_READ
        if nullable:
            bit = put_bits(words, 0, bit, 1, 1)
        return put_words(word, 0, mem[column + K.CW_CLASS], mem[column + K.CW_BYTES], words, 0, bit)
    size = octets_of(plan, at, key, octets, 0)
    if size == NOT_READ or bit + 16 * (size + 2) > most:
        return NOT_READ
    if kind == U.KEY_PADDED_BYTES:
        while size > 0 and load_8(octets, size - 1) == 0:
            size -= 1
    if nullable:
        bit = put_bits(words, 0, bit, 1, 1)
    return put_bytes(octets, 0, size, words, 0, bit, most)
