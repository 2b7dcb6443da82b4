"""Arithmetic of the program machine: floats as bit patterns, their total order, 128-bit integers in two words.

A register word is an int64 whatever its type; LLVM's bitcast costs nothing and keeps loops vectorised.
"""

# mypy: ignore-errors

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from tidemark.engine.jit.kernel import helper

LONG_MIN = -(1 << 63)
LONG_MAX = (1 << 63) - 1


def _cast_of(source, target, through=None):
    """Return an intrinsic that reinterprets the bits of a word as another type, or the reverse."""

    def typed(context, value):
        def code(context, builder, signature, args):
            bits = args[0]
            if through is not None:
                bits = builder.trunc(bits, ir.IntType(32))
                return builder.fpext(builder.bitcast(bits, ir.FloatType()), ir.DoubleType())
            return builder.bitcast(bits, ir.IntType(64) if target is types.int64 else ir.DoubleType())

        return target(source), code

    return intrinsic(typed)


def _words_of(operation):
    """Return an intrinsic on two words that may overflow; numba's own operations promise LLVM that they do not."""

    def typed(context, one, other):
        def code(context, builder, signature, args):
            return operation(builder, args[0], args[1])

        return types.int64(types.int64, types.int64), code

    return intrinsic(typed)


def _high_product(builder, one, other):
    long = ir.IntType(128)
    product = builder.mul(builder.sext(one, long), builder.sext(other, long))
    return builder.trunc(builder.ashr(product, ir.Constant(long, 64)), ir.IntType(64))


if numba.config.DISABLE_JIT:

    def _wrapped(number):
        return (int(number) + (1 << 63)) % (1 << 64) - (1 << 63)

    def add_words(one, other):
        """Return one + other, wrapping."""
        return _wrapped(int(one) + int(other))

    def subtract_words(one, other):
        """Return one - other, wrapping."""
        return _wrapped(int(one) - int(other))

    def multiply_words(one, other):
        """Return one * other, wrapping."""
        return _wrapped(int(one) * int(other))

    def multiply_high(one, other):
        """Return the high word of one * other."""
        return int(one) * int(other) >> 64

    def float_of(bits):
        """Return the float with the bits of a word."""
        return float(np.int64(bits).view(np.float64))

    def bits_of(value):
        """Return the bits of a float."""
        return int(np.float64(value).view(np.int64))

    def single_of(bits):
        """Return the float with the low 32 bits of a word."""
        return float(np.int64(bits).astype(np.int32).view(np.float32))

else:
    add_words = _words_of(lambda builder, one, other: builder.add(one, other))
    subtract_words = _words_of(lambda builder, one, other: builder.sub(one, other))
    multiply_words = _words_of(lambda builder, one, other: builder.mul(one, other))
    multiply_high = _words_of(_high_product)
    float_of = _cast_of(types.int64, types.float64)
    bits_of = _cast_of(types.float64, types.int64)
    single_of = _cast_of(types.int64, types.float64, through=types.float32)


@helper
def float_key(bits):
    """Return a word that sorts as the float with these bits: NaN above everything and equal to itself, -0.0 equal to
    0.0.
    """
    value = float_of(bits)
    plain = bits_of(value + 0.0)
    key = plain ^ ((plain >> 63) & LONG_MAX)
    return LONG_MAX if value != value else key


@helper
def below(one, other):
    """Return 1 if one < other as unsigned words, else 0."""
    return 1 if (one ^ LONG_MIN) < (other ^ LONG_MIN) else 0


@helper
def wide_order(low, high, other_low, other_high):
    """Compare two 128-bit integers; return -1, 0 or 1."""
    if high != other_high:
        return 1 if high > other_high else -1
    return below(other_low, low) - below(low, other_low)


@helper
def wide_to_float(low, high):
    """Return the nearest float of a 128-bit integer, ties to even."""
    if high == low >> 63:
        return float(low)
    is_negative = high < 0
    if is_negative:
        low = subtract_words(0, low)
        high = add_words(~high, 1 if low == 0 else 0)
    if high == 0:
        number = float(np.uint64(low))
        return -number if is_negative else number
    # Rounding needs only the 64 highest bits and whether any lower bit is set. -(1 << 127) is its own negation; the
    # code below reads it as unsigned.
    shift = 0
    top = high
    while top != 0:
        top = (top >> 1) & LONG_MAX
        shift += 1
    kept = low
    rest = 0
    if shift == 64:
        kept = high
        rest = low
    else:
        kept = ((low >> shift) & ((1 << (64 - shift)) - 1)) | (high << (64 - shift))
        rest = low & ((1 << shift) - 1)
    if rest != 0:
        kept |= 1
    number = float(np.uint64(kept)) * float_of((1023 + shift) << 52)
    return -number if is_negative else number
