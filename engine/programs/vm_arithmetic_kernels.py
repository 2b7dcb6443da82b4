"""Arithmetic of the program machine over the planes of registers.

Loops run over all rows and do not test which rows are due. Rows with a wrong result are marked in the plane of
comparisons, and the caller ends those of them that are due.
"""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np

from tidemark.engine.jit.kernel import helper
from tidemark.engine.programs import program_layout as P
from tidemark.engine.programs.vm_words_kernels import (
    LONG_MAX,
    LONG_MIN,
    add_words,
    below,
    bits_of,
    float_of,
    multiply_high,
    multiply_words,
    subtract_words,
    wide_to_float,
)

_FLOAT_LIMIT = 9223372036854775808.0


@helper
def _word_result(opcode, x, y):
    """Return the result of an instruction that cannot fail, on two integers."""
    if opcode == P.OP_SUB:
        return subtract_words(x, y)
    if opcode == P.OP_MUL:
        return multiply_words(x, y)
    if opcode == P.OP_AND:
        return x & y
    if opcode == P.OP_OR:
        return x | y
    if opcode == P.OP_XOR:
        return x ^ y
    if opcode == P.OP_NOT:
        return ~x
    if opcode == P.OP_SHIFT_LEFT:
        return x << (y & 63)
    if opcode == P.OP_SHIFT_RIGHT:
        return x >> (y & 63)
    shift = y & 63
    return x if shift == 0 else (x >> shift) & (LONG_MAX >> (shift - 1))


@helper
def _add_words(work, opcode, target, one, other, count):
    """Compute wrapping sums and differences."""
    if opcode == P.OP_ADD:
        for i in range(count):
            step = np.uint64(i)
            work[target + step] = add_words(work[one + step], work[other + step])
    else:
        for i in range(count):
            step = np.uint64(i)
            work[target + step] = subtract_words(work[one + step], work[other + step])


@helper
def _add_exact(work, opcode, target, one, other, begin, count):
    """Compute sums and differences; rows that overflow are marked. Return the OR of all marks."""
    wrong = 0
    turn = -1 if opcode == P.OP_SUB_EXACT else 0  # x - y is x + ~y + 1
    marks = np.uint64(P.W_COMPARED + begin)
    for i in range(count):
        step = np.uint64(i)
        x = work[one + step]
        y = work[other + step] ^ turn
        result = subtract_words(add_words(x, y), turn)
        mark = (((x ^ result) & (y ^ result)) >> 63) & P.PE_OVERFLOW
        work[marks + step] = mark
        work[target + step] = result
        wrong |= mark
    return wrong


@helper
def _divide_words(work, opcode, flags, target, one, other, begin, end):
    """Compute quotients and remainders; divisions by zero and overflows are marked. Return the OR of all marks."""
    wrong = 0
    seen = 0
    for row in range(begin, end):
        x = work[P.W_LOW + one * P.VECTOR_ROWS + row]
        y = work[P.W_LOW + other * P.VECTOR_ROWS + row]
        mark = 0
        result = 0
        is_null = 0
        if y == 0:
            is_null = flags & P.FL_ZERO_NULL
            mark = 0 if is_null else P.PE_DIVISION
        elif y == -1:
            result = -x if opcode == P.OP_FLOORDIV else 0
            mark = P.PE_OVERFLOW if x == LONG_MIN and opcode == P.OP_FLOORDIV else 0
        else:
            quotient = x // y
            result = quotient if opcode == P.OP_FLOORDIV else x - quotient * y
        work[P.W_LOW + target * P.VECTOR_ROWS + row] = result
        work[P.W_NULL + target * P.VECTOR_ROWS + row] = is_null
        work[P.W_COMPARED + row] = mark
        wrong |= mark
        seen |= is_null
    work[P.W_NULLS_SEEN + target] = seen
    return wrong


@helper
def _divide_floats(work, opcode, flags, target, one, other, begin, end):
    """Compute quotients and remainders of floats; only divisions by zero are marked. Return the OR of all marks."""
    wrong = 0
    seen = 0
    for row in range(begin, end):
        x = float_of(work[P.W_LOW + one * P.VECTOR_ROWS + row])
        y = float_of(work[P.W_LOW + other * P.VECTOR_ROWS + row])
        mark = 0
        result = 0.0
        is_null = 0
        if y == 0.0:
            is_null = flags & P.FL_ZERO_NULL
            mark = 0 if is_null else P.PE_DIVISION
        elif opcode == P.OP_FLOAT_DIV:
            result = x / y
        elif opcode == P.OP_FLOAT_MOD:
            result = x % y
        else:
            result = x // y
        work[P.W_LOW + target * P.VECTOR_ROWS + row] = bits_of(result)
        work[P.W_NULL + target * P.VECTOR_ROWS + row] = is_null
        work[P.W_COMPARED + row] = mark
        wrong |= mark
        seen |= is_null
    work[P.W_NULLS_SEEN + target] = seen
    return wrong


@helper
def _multiply_words(work, target, one, other, begin, count):
    wrong = 0
    for i in range(count):
        step = np.uint64(i)
        x = work[one + step]
        y = work[other + step]
        result = multiply_words(x, y)
        mark = P.PE_OVERFLOW if multiply_high(x, y) != result >> 63 else 0
        work[target + step] = result
        work[P.W_COMPARED + begin + i] = mark
        wrong |= mark
    return wrong


@helper
def _float_words(work, opcode, target, one, other, count):
    if opcode == P.OP_FLOAT_ADD:
        for i in range(count):
            step = np.uint64(i)
            work[target + step] = bits_of(float_of(work[one + step]) + float_of(work[other + step]))
    elif opcode == P.OP_FLOAT_SUB:
        for i in range(count):
            step = np.uint64(i)
            work[target + step] = bits_of(float_of(work[one + step]) - float_of(work[other + step]))
    else:
        for i in range(count):
            step = np.uint64(i)
            work[target + step] = bits_of(float_of(work[one + step]) * float_of(work[other + step]))


@helper
def _wide_words(work, opcode, target, one, other, begin, end):
    """Compute sums and differences of wide integers; rows that overflow are marked. Return the OR of all marks."""
    wrong = 0
    for row in range(begin, end):
        low = work[P.W_LOW + one * P.VECTOR_ROWS + row]
        high = work[P.W_HIGH + one * P.VECTOR_ROWS + row]
        other_low = work[P.W_LOW + other * P.VECTOR_ROWS + row]
        other_high = work[P.W_HIGH + other * P.VECTOR_ROWS + row]
        if opcode == P.OP_WIDE_ADD_EXACT:
            result = add_words(low, other_low)
            top = add_words(add_words(high, other_high), below(result, low))
            over = (high ^ top) & (other_high ^ top)
        else:
            result = subtract_words(low, other_low)
            top = subtract_words(subtract_words(high, other_high), below(low, other_low))
            over = (high ^ other_high) & (high ^ top)
        mark = (over >> 63) & P.PE_OVERFLOW
        work[P.W_LOW + target * P.VECTOR_ROWS + row] = result
        work[P.W_HIGH + target * P.VECTOR_ROWS + row] = top
        work[P.W_COMPARED + row] = mark
        wrong |= mark
    return wrong


@helper
def convert(work, opcode, target, source, begin, end):
    """Convert one register; rows with a value that does not fit are marked. Return the OR of all marks."""
    wrong = 0
    for row in range(begin, end):
        low = work[P.W_LOW + source * P.VECTOR_ROWS + row]
        high = work[P.W_HIGH + source * P.VECTOR_ROWS + row]
        mark = 0
        result = low
        top = low >> 63
        if opcode == P.OP_INTEGER_TO_FLOAT:
            result = bits_of(float(low))
        elif opcode == P.OP_WIDE_TO_FLOAT:
            result = bits_of(wide_to_float(low, high))
        elif opcode == P.OP_WIDE_TO_INTEGER:
            mark = P.PE_OVERFLOW if high != low >> 63 else 0
        elif opcode == P.OP_FLOAT_TO_INTEGER:
            value = float_of(low)
            mark = 0 if -_FLOAT_LIMIT <= value < _FLOAT_LIMIT else P.PE_OVERFLOW
            result = int(math.trunc(value if mark == 0 else 0.0))
        work[P.W_LOW + target * P.VECTOR_ROWS + row] = result
        if opcode == P.OP_INTEGER_TO_WIDE:
            work[P.W_HIGH + target * P.VECTOR_ROWS + row] = top
        work[P.W_COMPARED + row] = mark
        wrong |= mark
    work[P.W_NULLS_SEEN + target] = 0
    return wrong


@helper
def calculate(work, opcode, flags, target, one, other, begin, end):
    """Compute target ← one opcode other for all rows; return 0 if no row is marked with an error."""
    first = np.uint64(P.W_LOW + one * P.VECTOR_ROWS + begin)
    second = np.uint64(P.W_LOW + other * P.VECTOR_ROWS + begin)
    place = np.uint64(P.W_LOW + target * P.VECTOR_ROWS + begin)
    count = end - begin
    if opcode == P.OP_FLOORDIV or opcode == P.OP_MOD:
        return _divide_words(work, opcode, flags, target, one, other, begin, end)
    if opcode == P.OP_FLOAT_DIV or opcode == P.OP_FLOAT_FLOORDIV or opcode == P.OP_FLOAT_MOD:
        return _divide_floats(work, opcode, flags, target, one, other, begin, end)
    work[P.W_NULLS_SEEN + target] = 0
    if opcode == P.OP_ADD or opcode == P.OP_SUB:
        _add_words(work, opcode, place, first, second, count)
        return 0
    if opcode == P.OP_ADD_EXACT or opcode == P.OP_SUB_EXACT:
        return _add_exact(work, opcode, place, first, second, begin, count)
    if opcode == P.OP_MUL_EXACT:
        return _multiply_words(work, place, first, second, begin, count)
    if opcode == P.OP_WIDE_ADD_EXACT or opcode == P.OP_WIDE_SUB_EXACT:
        return _wide_words(work, opcode, target, one, other, begin, end)
    if opcode == P.OP_FLOAT_ADD or opcode == P.OP_FLOAT_SUB or opcode == P.OP_FLOAT_MUL:
        _float_words(work, opcode, place, first, second, count)
        return 0
    for i in range(count):
        step = np.uint64(i)
        work[place + step] = _word_result(opcode, work[first + step], work[second + step])
    return 0
