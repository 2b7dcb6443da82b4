"""Kernels that write row images as MySQL's row bodies, and that find the columns in which two images differ.

Images are found by word position; every length in them is checked before it is followed. Plans are those of
`replication/binlog/rows_layout.py`. Kernels touch private memory only, so they run without the GIL. Callers bound the
rows of a call.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.programs import program_layout as P
from tidemark.engine.programs.vm_columns_kernels import (
    IS_ABSENT,
    IS_DAMAGED,
    IS_NULL,
    byte_at,
    column_at,
    constants_at,
    is_fixed_null,
    key_piece,
    var_part_words,
    var_value,
)
from tidemark.engine.rows import columns_layout as K
from tidemark.replication.binlog import rows_layout as B
from tidemark.replication.binlog.values_kernels import (
    decimal_bytes,
    extend_sign,
    load_bytes,
    put_date,
    put_datetime,
    put_decimal,
    put_time,
    store_little,
)

_CALENDAR_BYTES = 8
_DAMAGED = -2
_FULL = -1


@helper
def _row_code(plan, number):
    """Return the offset of the four words that say how MySQL writes a column."""
    return P.PROGRAM_HEADER_WORDS + plan[P.H_COLUMNS] * K.COLUMN_WORDS + number * B.ROW_CODE_WORDS


@helper
def _disk_part(words, plan, start):
    """Return the start of the disk part of the image at a word address, 0 if the plan needs none, -1 if the image
    contradicts itself.
    """
    fixed_words = plan[P.H_FIXED_WORDS]
    if start < 0 or start + fixed_words > words.size:
        return -1
    disk_words = plan[P.H_DISK_FIXED_WORDS]
    if disk_words == 0:
        return 0
    at = start + fixed_words
    if plan[P.H_HAS_VAR]:
        var_words = var_part_words(words, at)
        if var_words == 0:
            return -1
        at += var_words
    return at if at + disk_words <= words.size else -1


@helper
def _value(words, plan, column, start, disk):
    """Return (byte address, length) of a column in an image; the length may be IS_NULL, IS_ABSENT or IS_DAMAGED."""
    part = plan[column + K.CW_PART]
    if part == K.PART_FIXED or part == K.PART_DISK:
        base = start if part == K.PART_FIXED else disk
        if is_fixed_null(words, base, plan, column):
            return 0, IS_NULL
        return (base << 3) + plan[column + K.CW_AT], plan[column + K.CW_BYTES]
    if part == K.PART_KEY:
        return key_piece(words, plan, start + plan[P.H_FIXED_WORDS], column)
    if part == K.PART_VAR:
        return var_value(words, start + plan[P.H_FIXED_WORDS], plan[column + K.CW_AT])
    return var_value(words, disk + plan[P.H_DISK_FIXED_WORDS], plan[column + K.CW_AT])


@helper
def _put_number(out, to, words, at, plan, code):
    """Write a value that is not a string; return its size in bytes."""
    kind = plan[code + B.RW_CODE]
    size = plan[code + B.RW_SIZE]
    width = plan[code + B.RW_WIDTH]
    if kind == B.ROW_DECIMAL:
        low = load_bytes(words, at, 8)
        high = low >> 63
        if width > 8:
            high = load_bytes(words, at + 8, 8)
        return put_decimal(out, to, low, high, size, plan[code + B.RW_SCALE])
    value = load_bytes(words, at, width)
    if kind == B.ROW_DATE:
        put_date(out, to, extend_sign(value, width))
        return 3
    if kind == B.ROW_TIME:
        put_time(out, to, value)
        return 6
    if kind == B.ROW_DATETIME:
        put_datetime(out, to, value)
        return 8
    if kind == B.ROW_ENUM:
        value += 1
    store_little(out, to, value, size)
    return size


@helper
def _number_bytes(plan, code):
    """Return the size in bytes of a value that is not a string, an upper bound for calendar values."""
    kind = plan[code + B.RW_CODE]
    if kind == B.ROW_DECIMAL:
        return decimal_bytes(plan[code + B.RW_SIZE], plan[code + B.RW_SCALE])
    if kind == B.ROW_DATE or kind == B.ROW_TIME or kind == B.ROW_DATETIME:
        return _CALENDAR_BYTES
    return plan[code + B.RW_SIZE]


@helper
def _put_image(out, to, words, octets, start, plan, constant_octets):
    """Write NULL bitmap and values of one image; return their end, _FULL or _DAMAGED."""
    count = plan[P.H_COLUMNS]
    nulls = to
    bitmap_bytes = (count + 7) >> 3
    to += bitmap_bytes
    if to > out.size:
        return _FULL
    for i in range(bitmap_bytes):
        out[np.uint64(nulls + i)] = 0
    if count & 7:
        # MySQL sets the bits past the last column.
        out[np.uint64(to - 1)] = (0xFF << (count & 7)) & 0xFF
    disk = _disk_part(words, plan, start)
    if disk < 0:
        return _DAMAGED
    for number in range(count):
        column = column_at(number)
        code = _row_code(plan, number)
        at, length = _value(words, plan, column, start, disk)
        source = words
        source_octets = octets
        if length == IS_ABSENT:
            length = IS_NULL
            if plan[column + K.CW_MISSING] >= 0:
                source = plan
                source_octets = constant_octets
                at = (constants_at(plan) << 3) + plan[column + K.CW_MISSING]
                length = plan[column + K.CW_MISSING_BYTES]
        if length == IS_DAMAGED:
            return _DAMAGED
        if length == IS_NULL:
            out[np.uint64(nulls + (number >> 3))] |= 1 << (number & 7)
            continue
        if plan[code + B.RW_CODE] != B.ROW_STRING:
            if length < plan[code + B.RW_WIDTH]:
                return _DAMAGED
            if to + _number_bytes(plan, code) > out.size:
                return _FULL
            to += _put_number(out, to, source, at, plan, code)
            continue
        if plan[code + B.RW_WIDTH] > 0:
            while length > 0 and byte_at(source, at + length - 1) == 0:
                length -= 1
        size = plan[code + B.RW_SIZE]
        if size < 4 and length >> (size << 3) != 0:
            return _DAMAGED
        if to + size + length > out.size:
            return _FULL
        store_little(out, to, length, size)
        to += size
        first = np.uint64(at)
        target = np.uint64(to)
        for i in range(length):
            out[target + np.uint64(i)] = source_octets[first + np.uint64(i)]
        to += length
    return to


@kernel(
    "int64(uint8[::1], int64[::1], int64[::1], uint8[::1], int64[::1], int64[::1], int64[::1], uint8[::1], int64[::1],"
    " uint8[::1], int64, int64)",
    nogil=True,
)
def encode_images(
    out, ends, words, octets, before, after, before_plan, before_octets, after_plan, after_octets, first, count
):
    """Write `count` rows from `first` on, each as the image at word before[row], then the image at word after[row].

    An empty plan omits its image. ends[i] gets the end of row first + i in `out`. Returns the number of rows that
    fit, or -1 - row (counted from `first`) of the first image that contradicts itself. `octets` are the bytes of
    `words`, `before_octets` and `after_octets` those of their plans.
    """
    has_before = before_plan.size > 0
    has_after = after_plan.size > 0
    if first < 0 or count > ends.size or (has_before and first + count > before.size):
        return -1
    if has_after and first + count > after.size:
        return -1
    to = 0
    for row in range(count):
        end = to
        if has_before:
            end = _put_image(out, end, words, octets, before[first + row], before_plan, before_octets)
        if end >= 0 and has_after:
            end = _put_image(out, end, words, octets, after[first + row], after_plan, after_octets)
        if end == _DAMAGED:
            return -1 - row
        if end == _FULL:
            return row
        ends[row] = end
        to = end
    return count


@helper
def _same(words, at, length, other, other_length):
    """Whether two values are the same, NULLs and absent ones included."""
    if length != other_length:
        return False
    i = 0
    while i + 8 <= length:
        if load_bytes(words, at + i, 8) != load_bytes(words, other + i, 8):
            return False
        i += 8
    return i >= length or load_bytes(words, at + i, length - i) == load_bytes(words, other + i, length - i)


@helper
def _same_as_default(words, plan, column, at, length):
    """Whether a value equals the default that stands for an absent value of its column."""
    if plan[column + K.CW_MISSING] < 0:
        return length == IS_NULL
    if length != plan[column + K.CW_MISSING_BYTES]:
        return False
    default = (constants_at(plan) << 3) + plan[column + K.CW_MISSING]
    for i in range(length):
        if byte_at(words, at + i) != byte_at(plan, default + i):
            return False
    return True


@kernel("int64(uint8[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64)", nogil=True)
def changed_columns(masks, words, before, after, plan, first, count):
    """Set bit c of the bitmap of row first + i, (columns + 7) // 8 bytes of `masks`, if column c of the plan differs.

    Returns count, or -1 - row (counted from `first`) of the first image that contradicts itself.
    """
    columns = plan[P.H_COLUMNS]
    mask_bytes = (columns + 7) >> 3
    if first < 0 or first + count > min(before.size, after.size) or count * mask_bytes > masks.size:
        return -1
    for i in range(count * mask_bytes):
        masks[i] = 0
    for row in range(count):
        old = before[first + row]
        new = after[first + row]
        old_disk = _disk_part(words, plan, old)
        new_disk = _disk_part(words, plan, new)
        if old_disk < 0 or new_disk < 0:
            return -1 - row
        for number in range(columns):
            column = column_at(number)
            at, length = _value(words, plan, column, old, old_disk)
            other, other_length = _value(words, plan, column, new, new_disk)
            if length == IS_DAMAGED or other_length == IS_DAMAGED:
                return -1 - row
            if length == IS_ABSENT and other_length != IS_ABSENT:
                same = _same_as_default(words, plan, column, other, other_length)
            elif other_length == IS_ABSENT and length != IS_ABSENT:
                same = _same_as_default(words, plan, column, at, length)
            else:
                same = _same(words, at, length, other, other_length)
            if not same:
                masks[row * mask_bytes + (number >> 3)] |= 1 << (number & 7)
    return count


@kernel("int64(int64[::1], uint8[::1], int64[::1], int64, int64, int64)", nogil=True)
def find_runs(ends, masks, marks, mask_bytes, mark_words, count):
    """Find the ends of runs of rows with the same bitmap and the same marks (`mark_words` words a row). Return the
    number of runs, at most ends.size, or -1 if an array is too short; the next call continues after the last run.
    """
    if count * mask_bytes > masks.size or count * mark_words > marks.size:
        return -1
    runs = 0
    for row in range(1, count + 1):
        same = row < count
        if same:
            for i in range(mark_words):
                if marks[row * mark_words + i] != marks[(row - 1) * mark_words + i]:
                    same = False
            for i in range(mask_bytes):
                if masks[row * mask_bytes + i] != masks[(row - 1) * mask_bytes + i]:
                    same = False
        if not same:
            if runs == ends.size:
                break
            ends[runs] = row
            runs += 1
    return runs
