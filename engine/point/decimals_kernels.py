"""Decimals of columns: made of stored numbers, and read as them.

A coefficient is two words of 19 digits, the low one first, as in `engine/jit/decimals_kernels.py`.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.decimals_kernels import (
    BASE_WORD,
    WORD_DIGITS,
    coefficient_of,
    decimal_parts,
    negated,
    new_decimal,
    unsigned_divided,
    wide_of,
)
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import int_of, is_int, is_of_class, no_object
from tidemark.engine.programs.vm_words_kernels import LONG_MIN, add_words, multiply_words

POWERS = np.array([10**digits for digits in range(WORD_DIGITS)], dtype=np.int64)


@helper
def digits_of(word):
    """Return the number of digits of a word without sign, below 10**19; at least 1."""
    if word < 0:
        return WORD_DIGITS
    digits = 0
    step = 16
    while step > 0:
        if digits + step < WORD_DIGITS and word >= POWERS[digits + step]:
            digits += step
        step >>= 1
    return digits + 1


# --- made -----------------------------------------------------------------------------------------
@helper
def decimal_of(kind, scale, word):
    """Return the Decimal of a stored word, or no object if it is none of a column. kind: address of its class; scale:
    digits after the point.
    """
    if word == LONG_MIN:
        return no_object()
    return new_decimal(kind, 1 if word < 0 else 0, -scale, digits_of(abs(word)), abs(word), 0)


@helper
def wide_decimal_of(kind, scale, low, high):
    """Do `decimal_of` for a stored number of 128 bits, low word first."""
    negative = 1 if high < 0 else 0
    if negative:
        low, high = negated(low, high)
    if high < 0:
        return no_object()
    low, high = coefficient_of(low, high)
    more, _ = unsigned_divided(high, BASE_WORD)
    if more:
        return no_object()
    digits = WORD_DIGITS + digits_of(high) if high != 0 else digits_of(low)
    return new_decimal(kind, negative, -scale, digits, low, high)


# --- read -----------------------------------------------------------------------------------------
@helper
def shifted_up(low, high, digits):
    """Return (whether it has at most 38 digits, low, high) of a coefficient, not 0, times 10**digits."""
    if digits >= WORD_DIGITS:
        if high != 0 or digits >= 2 * WORD_DIGITS:
            return 0, 0, 0
        low, high = 0, low
        digits -= WORD_DIGITS
    if digits == 0:
        return 1, low, high
    over, high = unsigned_divided(high, POWERS[WORD_DIGITS - digits])
    carried, low = unsigned_divided(low, POWERS[WORD_DIGITS - digits])
    high = add_words(multiply_words(high, POWERS[digits]), carried)
    return (1 if over == 0 else 0), multiply_words(low, POWERS[digits]), high


@helper
def shifted_down(low, high, digits):
    """Return (whether it is a whole number, low, high) of a coefficient, not 0, divided by 10**digits."""
    if digits >= WORD_DIGITS:
        if low != 0:
            return 0, 0, 0
        low, high = high, 0
        digits -= WORD_DIGITS
        if digits >= WORD_DIGITS:
            return 0, 0, 0
    if digits == 0:
        return 1, low, high
    high, carried = unsigned_divided(high, POWERS[digits])
    low, rest = unsigned_divided(low, POWERS[digits])
    low = add_words(multiply_words(carried, POWERS[WORD_DIGITS - digits]), low)
    return (1 if rest == 0 else 0), low, high


@helper
def number_of_decimal(kind, scale, precision, held):
    """Return (whether a number was read, its low word, its high one) of a Decimal or an int that a column holds
    exactly.
    """
    if is_int(held):
        low, overflow = int_of(held)
        if overflow or low == LONG_MIN:
            return 0, 0, 0
        negative = low < 0
        low = abs(low)
        high = 0
        digits = scale
    elif is_of_class(held, kind):
        words, negative, exponent, low, high = decimal_parts(held)
        if words > 2:
            return 0, 0, 0
        digits = exponent + scale
    else:
        return 0, 0, 0
    if low == 0 and high == 0:
        return 1, 0, 0
    if digits < 0:
        is_read, low, high = shifted_down(low, high, -digits)
    else:
        is_read, low, high = shifted_up(low, high, digits)
    if is_read == 0:
        return 0, 0, 0
    if (WORD_DIGITS + digits_of(high) if high != 0 else digits_of(low)) > precision:
        return 0, 0, 0
    low, high = wide_of(low, high)
    if negative:
        low, high = negated(low, high)
    return 1, low, high
