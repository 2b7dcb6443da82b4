"""Keys read from their Python objects: words of a primary key, and key words of a unique index.

A key that the plan does not know (another Python type, out of its column's range, too long) has no words: the general
path reads it, or refuses it.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index.key_words_kernels import LOWEST, put_bits, put_bytes, put_words
from tidemark.engine.jit.calendar_kernels import date_parts, datetime_parts, has_zone, time_parts, zone_of
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import (
    bytes_size,
    clear_error,
    copy_bytes,
    copy_text,
    dict_item,
    float_bits,
    int_of,
    is_bool,
    is_bytes,
    is_float,
    is_int,
    is_of_class,
    is_text,
    is_tuple,
    load_8,
    object_of,
    single_bits,
    stack_words,
    text_length,
    text_size,
    tuple_item,
    tuple_size,
    unsigned_of,
)
from tidemark.engine.jit.uuid_kernels import words_of_uuid
from tidemark.engine.point import plan_layout as U
from tidemark.engine.point.decimals_kernels import number_of_decimal
from tidemark.engine.rows import columns_layout as K
from tidemark.engine.schema.partitions_kernels import swapped

NOT_READ = -1
INFINITY = 0x7FF << 52
MAGNITUDE = (1 << 63) - 1
INFINITY_32 = 0xFF << 23
MAGNITUDE_32 = (1 << 31) - 1
LOWEST_32 = 1 << 31  # -0.0

key_words = stack_words(U.STACK_WORDS)


@helper
def days_of(year, month, day):
    """Return the days since 1970 of a date, by eras of 400 years that begin in March; see `calendar`."""
    if month <= 2:
        year -= 1
        month += 12
    era = year // 400
    year -= era * 400
    day += (153 * (month - 3) + 2) // 5 - 1
    return era * 146_097 + year * 365 + year // 4 - year // 100 + day - U.DAYS_BEFORE_1970


@helper
def integer_number(plan, at, kind, value):
    """Return (whether it was read, its word) of an int."""
    if is_int(value) == 0:
        return 0, 0
    word, overflow = int_of(value)
    if kind == U.KEY_UNSIGNED and overflow > 0:
        return unsigned_of(value)
    is_there = overflow == 0 and plan[at + U.KC_LEAST] <= word and word <= plan[at + U.KC_GREATEST]
    return (1 if is_there else 0), word


@helper
def float_number(plan, at, kind, value):
    """Return (whether it was read, its word) of a float of a column or a key, or of an int that is one."""
    if is_float(value) == 0:
        is_read, _ = integer_number(plan, at, kind, value)
        if is_read == 0:
            return 0, 0
    word = float_bits(value)
    if kind == U.VALUE_FLOAT:
        return 1, word
    if word & MAGNITUDE > INFINITY:  # NaN
        return 0, 0
    if kind == U.KEY_FLOAT:
        return 1, (0 if word == LOWEST else word)
    is_infinite = word & MAGNITUDE == INFINITY
    word = single_bits(value)
    if word & MAGNITUDE_32 == INFINITY_32 and not is_infinite:
        return 0, 0
    return 1, (0 if word == LOWEST_32 and kind == U.KEY_SINGLE else word)


@helper
def calendar_number(plan, at, kind, value):
    """Return (whether it was read, its word) of a date, a time, or a moment."""
    if is_of_class(value, plan[at + U.KC_CLASS]) == 0:
        return 0, 0
    if kind == U.KEY_DATE:
        year, month, day = date_parts(value)
        return 1, days_of(year, month, day)
    zoned = has_zone(value)
    if kind == U.KEY_TIME:
        hour, minute, second, microsecond = time_parts(value)
        if zoned:
            return 0, 0
        return 1, ((hour * 60 + minute) * 60 + second) * 1_000_000 + microsecond
    if kind == U.KEY_DATETIME and zoned:
        return 0, 0
    if kind == U.KEY_TIMESTAMP and (zoned == 0 or zone_of(value) != plan[at + U.KC_LEAST]):
        return 0, 0
    year, month, day = date_parts(value)
    hour, minute, second, microsecond = datetime_parts(value)
    time = ((hour * 60 + minute) * 60 + second) * 1_000_000 + microsecond
    return 1, days_of(year, month, day) * U.DAY_MICROSECONDS + time


@helper
def place_of_member(places, value):
    """Return (whether it was read, its place) of a member of an Enum."""
    if is_text(value) == 0:
        return 0, 0
    found = dict_item(places, value)
    if is_int(found) == 0:
        return 0, 0
    place, _ = int_of(found)
    return 1, place


@helper
def number_of(plan, at, value):
    """Return (whether a number was read, its low word, its high one) of a value of a column or a key. at: of the words
    of the column.
    """
    kind = plan[at + U.KC_KIND]
    high = 0
    if kind == U.KEY_INT or kind == U.KEY_UNSIGNED:
        is_read, word = integer_number(plan, at, kind, value)
    elif kind == U.KEY_FLOAT or kind == U.VALUE_FLOAT or kind == U.KEY_SINGLE or kind == U.VALUE_SINGLE:
        is_read, word = float_number(plan, at, kind, value)
    elif kind == U.KEY_DECIMAL or kind == U.KEY_WIDE_DECIMAL:
        least, most = plan[at + U.KC_LEAST], plan[at + U.KC_GREATEST]
        is_read, word, high = number_of_decimal(plan[at + U.KC_CLASS], least, most, value)
    elif kind == U.KEY_BOOL:
        is_read = is_bool(value)
        word = 0
        if is_read:
            word, _ = int_of(value)
    elif kind == U.KEY_ENUM:
        is_read, word = place_of_member(object_of(plan[at + U.KC_CLASS]), value)
    elif kind == U.KEY_UUID:
        is_read, first, last = words_of_uuid(object_of(plan[at + U.KC_CLASS]), value)
        word, high = swapped(first), swapped(last)
    else:
        is_read, word = calendar_number(plan, at, kind, value)
    return is_read, word, high


@helper
def is_number(kind):
    return kind <= U.LAST_NUMBER


@helper
def octets_of(plan, at, key, words, start):
    """Copy the bytes of a text or of bytes to words[start:], with zeros up to a whole word. Return their number, or
    NOT_READ.
    """
    kind = plan[at + U.KC_KIND]
    if kind == U.KEY_UNREAD:
        return NOT_READ
    if kind == U.KEY_UUID:
        is_read, words[start], words[start + 1] = number_of(plan, at, key)
        return U.UUID_BYTES if is_read else NOT_READ
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
        if start + 1 >= U.STACK_WORDS:
            return 0
        is_read, word, high = number_of(plan, at, key)
        if is_read == 0:
            return 0
        words[start] = word
        if kind != U.KEY_WIDE_DECIMAL and kind != U.KEY_UUID:
            return 1
        words[start + 1] = high
        return 2
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
    if is_number(kind) and kind != U.KEY_UUID:
        is_read, word, high = number_of(plan, at, key)
        if is_read == 0:
            return NOT_READ
        if nullable:
            bit = put_bits(words, 0, bit, 1, 1)
        return put_words(word, high, mem[column + K.CW_CLASS], mem[column + K.CW_BYTES], words, 0, bit)
    size = octets_of(plan, at, key, octets, 0)
    if size == NOT_READ or bit + 16 * (size + 2) > most:
        return NOT_READ
    if kind == U.KEY_PADDED_BYTES or kind == U.KEY_UUID:
        while size > 0 and load_8(octets, size - 1) == 0:
            size -= 1
    if nullable:
        bit = put_bits(words, 0, bit, 1, 1)
    return put_bytes(octets, 0, size, words, 0, bit, most)
