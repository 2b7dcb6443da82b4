"""Columns of a row as the program machine reads them: numbers into planes of registers, bytes in place.

The machine has checked that fixed words and the fixed words of a disk part are in the array; every other length is
checked here. Nothing is read outside the arrays, whatever an image says.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper
from tidemark.engine.programs import program_layout as P
from tidemark.engine.programs.vm_words_kernels import bits_of, single_of
from tidemark.engine.rows import columns_layout as K
from tidemark.engine.schema import row_layout as R

# Returned instead of a length.
IS_NULL = -1
IS_ABSENT = -2
IS_DAMAGED = -3


@helper
def column_at(number):
    return P.PROGRAM_HEADER_WORDS + number * K.COLUMN_WORDS


@helper
def constants_at(program):
    return (
        P.PROGRAM_HEADER_WORDS + program[P.H_COLUMNS] * K.COLUMN_WORDS + program[P.H_INSTRUCTIONS] * P.INSTRUCTION_WORDS
    )


@helper
def byte_at(words, at):
    return (words[np.uint64(at >> 3)] >> ((at & 7) << 3)) & 0xFF


@helper
def var_part_words(data, part):
    """Return the words of the var part at a word address; 0 if it is invalid."""
    if part <= 0 or part >= data.size:
        return 0
    head = data[np.uint64(part)]
    words = head & R.VAR_WORDS_MASK
    return words if head >= 0 and part + words <= data.size else 0


@helper
def _end_at(data, ends, ordinal):
    return (data[np.uint64(ends + (ordinal >> 1))] >> ((ordinal & 1) << 5)) & 0xFFFFFFFF


@helper
def var_value(data, part, ordinal):
    """Return (byte address, length) of a var column; the length may be IS_NULL, IS_ABSENT or IS_DAMAGED."""
    words = var_part_words(data, part)
    if words == 0:
        return 0, IS_DAMAGED
    head = data[np.uint64(part)]
    count = (head >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK
    ends = part + 1 + ((head >> R.VAR_KEY_WORDS_SHIFT) & R.VAR_KEY_WORDS_MASK)
    start = ends + ((count + 1) >> 1)
    if start > part + words:
        return 0, IS_DAMAGED
    if ordinal >= count:
        return 0, IS_ABSENT
    begin = _end_at(data, ends, ordinal - 1) & R.VAR_END_MASK if ordinal > 0 else 0
    word = _end_at(data, ends, ordinal)
    end = word & R.VAR_END_MASK
    if begin > end or end > (part + words - start) << 3:
        return 0, IS_DAMAGED
    if word & R.VAR_NULL_BIT:
        return 0, IS_NULL
    return (start << 3) + begin, end - begin


@helper
def key_piece(data, program, part, column):
    """Return (byte address, length) of a piece of the key in a var part; the length may be IS_DAMAGED."""
    words = var_part_words(data, part)
    if words == 0:
        return 0, IS_DAMAGED
    at = part + 1
    end = at + ((data[part] >> R.VAR_KEY_WORDS_SHIFT) & R.VAR_KEY_WORDS_MASK)
    if end > part + words:
        return 0, IS_DAMAGED
    path = constants_at(program) + (program[column + K.CW_MISSING] >> 3)
    last = path + (program[column + K.CW_MISSING_BYTES] >> 3) - 1
    for piece in range(path, last + 1):
        size = program[piece]
        length = program[column + K.CW_BYTES]
        first = at
        if size < 0:
            if at >= end:
                return 0, IS_DAMAGED
            length = data[at]
            if length < 0 or length > (end - at) << 3:
                return 0, IS_DAMAGED
            first = at + 1
            size = 1 + ((length + 7) >> 3)
        at += size
        if at > end:
            return 0, IS_DAMAGED
        if piece == last:
            return first << 3, length
    return 0, IS_DAMAGED


@helper
def is_fixed_null(data, base, program, column):
    place = program[column + K.CW_NULL_BYTE]
    return place >= 0 and byte_at(data, (base << 3) + place) & program[column + K.CW_NULL_MASK] != 0


@helper
def is_fixed_key_piece(program, column):
    """Whether a piece of the key, of bytes, has a fixed size."""
    path_bytes = program[column + K.CW_MISSING] + program[column + K.CW_MISSING_BYTES]
    return program[constants_at(program) + (path_bytes >> 3) - 1] >= 0


@helper
def padded_bytes(program, column):
    """Return the number of bytes that each value of a column of bytes has, -1 if they have different numbers."""
    part = program[column + K.CW_PART]
    if part == K.PART_KEY:
        is_padded = is_fixed_key_piece(program, column)
    elif part == K.PART_FIXED or part == K.PART_DISK:
        is_padded = True
    else:
        is_padded = program[column + K.CW_NULL_MASK] & K.VAR_PADDED != 0
    return program[column + K.CW_BYTES] if is_padded else -1


@helper
def pad_bytes(text, at, length, width, target, word):
    """Copy bytes to word `word` of target, and append zero bytes up to `width`; return their byte address."""
    for i in range(word, word + ((width + 7) >> 3)):
        target[i] = 0
    for i in range(length):
        target[word + (i >> 3)] |= byte_at(text, at + i) << ((i & 7) << 3)
    return word << 3


@helper
def _stored_bytes(data, rows, program, column, row):
    """Return (byte address, length) of a column of bytes; the length may be IS_NULL, IS_ABSENT or IS_DAMAGED. Values of
    a fixed size have all their bytes.
    """
    part = program[column + K.CW_PART]
    if part == K.PART_FIXED or part == K.PART_DISK:
        base = rows[(P.R_FIXED if part == K.PART_FIXED else P.R_DISK) * P.VECTOR_ROWS + row]
        if is_fixed_null(data, base, program, column):
            return 0, IS_NULL
        return (base << 3) + program[column + K.CW_AT], program[column + K.CW_BYTES]
    if part == K.PART_KEY:
        return key_piece(data, program, rows[P.R_VAR * P.VECTOR_ROWS + row], column)
    var = rows[P.R_VAR * P.VECTOR_ROWS + row]
    if part == K.PART_DISK_VAR:
        var = rows[P.R_DISK * P.VECTOR_ROWS + row] + program[P.H_DISK_FIXED_WORDS]
    return var_value(data, var, program[column + K.CW_AT])


@helper
def _bytes_value(data, rows, program, column, row):
    """Do `_stored_bytes` without the zero bytes at the end of values of a fixed size."""
    at, length = _stored_bytes(data, rows, program, column, row)
    part = program[column + K.CW_PART]
    is_cut = part == K.PART_FIXED or part == K.PART_DISK
    if part == K.PART_KEY:
        is_cut = is_fixed_key_piece(program, column)
    while is_cut and length > 0 and byte_at(data, at + length - 1) == 0:
        length -= 1
    return at, length


@helper
def _or_default(program, column, at, length):
    """Return (whether the value is in the program, byte address, length): absent columns have their default there."""
    if length != IS_ABSENT:
        return False, at, length
    if program[column + K.CW_MISSING] < 0:
        return False, 0, IS_NULL
    return True, (constants_at(program) << 3) + program[column + K.CW_MISSING], program[column + K.CW_MISSING_BYTES]


@helper
def read_bytes(data, rows, program, column, row):
    """Return (whether the value is in the program, byte address, length; see `_bytes_value`)."""
    at, length = _bytes_value(data, rows, program, column, row)
    return _or_default(program, column, at, length)


@helper
def read_whole_bytes(data, rows, program, column, row):
    """Do `read_bytes` with all bytes of a value of a fixed size."""
    at, length = _stored_bytes(data, rows, program, column, row)
    return _or_default(program, column, at, length)


@helper
def compare_bytes(one, at, length, other, other_at, other_length):
    """Return (-1, 0, 1: how two strings of bytes compare; how many bytes decided it)."""
    for i in range(min(length, other_length)):
        gap = byte_at(one, at + i) - byte_at(other, other_at + i)
        if gap != 0:
            return (1 if gap > 0 else -1), i
    return (1 if length > other_length else 0) - (1 if length < other_length else 0), min(length, other_length)


@helper
def octets_at(words, at, left):
    """Return the next bytes at a byte address, at most eight of `left`, as a word."""
    index = at >> 3
    shift = (at & 7) << 3
    low = words[np.uint64(index)]
    if shift:
        low = (low >> shift) & ((1 << (64 - shift)) - 1)
        if shift + (min(left, 8) << 3) > 64:
            low |= words[np.uint64(index + 1)] << (64 - shift)
    if left < 8:
        low &= (1 << (left << 3)) - 1
    return low


@helper
def number_anywhere(words, at, kind, size):
    """Return (low, high) of a number of a class, which may begin at any byte, as in added columns."""
    index = at >> 3
    shift = (at & 7) << 3
    low = octets_at(words, at, size)
    high = 0
    if kind == K.CLASS_WIDE:
        high = words[np.uint64(index + 1)]
        if shift:
            high = (high >> shift) & ((1 << (64 - shift)) - 1) | words[np.uint64(index + 2)] << (64 - shift)
    elif kind == K.CLASS_FLOAT32:
        low = bits_of(single_of(low))
    elif size < 8:
        left = 64 - (size << 3)
        low = (low << left) >> left
        if kind != K.CLASS_SIGNED:
            low &= (1 << (size << 3)) - 1
    return low, high


@helper
def read_var_numbers(data, rows, program, work, column, target, k, begin, end):
    """Read a number in the var part, of an added column or of the key, into a register of the due rows. Return the
    number of damaged rows, which are marked in the null plane by 2.
    """
    damaged = 0
    seen = 0
    size = program[column + K.CW_BYTES]
    kind = program[column + K.CW_CLASS]
    for row in range(begin, end):
        work[P.W_NULL + target * P.VECTOR_ROWS + row] = 0
        if work[P.W_RESUME + row] > k:
            continue
        in_program, at, length = read_whole_bytes(data, rows, program, column, row)
        if length == IS_NULL:
            work[P.W_NULL + target * P.VECTOR_ROWS + row] = 1
            seen = 1
            continue
        if length != size:
            work[P.W_NULL + target * P.VECTOR_ROWS + row] = 2
            damaged += 1
            continue
        low, high = number_anywhere(program, at, kind, size) if in_program else number_anywhere(data, at, kind, size)
        work[P.W_LOW + target * P.VECTOR_ROWS + row] = low
        work[P.W_HIGH + target * P.VECTOR_ROWS + row] = high
    work[P.W_NULLS_SEEN + target] = seen
    return damaged


@helper
def _read_narrow(data, rows, work, plane, word, left, right, target, begin, end):
    """Read columns of up to 64 bits, sign-extended: shifted left to the top, then right."""
    first = np.uint64(P.W_LOW + target * P.VECTOR_ROWS + begin)
    place = np.uint64(plane * P.VECTOR_ROWS + begin)
    for i in range(end - begin):
        step = np.uint64(i)
        work[first + step] = (data[np.uint64(rows[place + step] + word)] << left) >> right


@helper
def read_fixed_numbers(data, rows, program, work, column, plane, target, begin, end):
    """Read a fixed-size number of every row into a register; rows that are not due get a value too."""
    at = program[column + K.CW_AT]
    size = program[column + K.CW_BYTES]
    kind = program[column + K.CW_CLASS]
    word = at >> 3
    shift = (at & 7) << 3
    first = np.uint64(P.W_LOW + target * P.VECTOR_ROWS + begin)
    count = end - begin
    if kind == K.CLASS_WIDE or kind == K.CLASS_WIDE_UNSIGNED:
        high = np.uint64(P.W_HIGH + target * P.VECTOR_ROWS + begin)
        for i in range(count):
            base = rows[plane * P.VECTOR_ROWS + begin + i] + word
            work[first + np.uint64(i)] = data[np.uint64(base)]
            work[high + np.uint64(i)] = data[np.uint64(base + 1)] if kind == K.CLASS_WIDE else 0
    elif size == 8:
        _read_narrow(data, rows, work, plane, word, 0, 0, target, begin, end)
    else:
        _read_narrow(data, rows, work, plane, word, 64 - shift - (size << 3), 64 - (size << 3), target, begin, end)
        if kind == K.CLASS_FLOAT32:
            for i in range(count):
                work[first + np.uint64(i)] = bits_of(single_of(work[first + np.uint64(i)]))
        elif kind != K.CLASS_SIGNED:
            mask = (1 << (size << 3)) - 1
            for i in range(count):
                work[first + np.uint64(i)] &= mask
    seen = 0
    if program[column + K.CW_NULL_BYTE] >= 0:
        bit = program[column + K.CW_NULL_MASK] << ((program[column + K.CW_NULL_BYTE] & 7) << 3)
        null_word = program[column + K.CW_NULL_BYTE] >> 3
        nulls = np.uint64(P.W_NULL + target * P.VECTOR_ROWS + begin)
        place = np.uint64(plane * P.VECTOR_ROWS + begin)
        for i in range(count):
            step = np.uint64(i)
            is_null = 1 if data[np.uint64(rows[place + step] + null_word)] & bit else 0
            work[nulls + step] = is_null
            seen |= is_null
    work[P.W_NULLS_SEEN + target] = seen
