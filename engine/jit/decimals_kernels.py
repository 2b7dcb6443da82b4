"""Decimals in kernels: made and read where `decimal.Decimal` keeps its digits, without a call of Python code.

No function of the C API makes a Decimal of a number. So its memory is written and read here; `IS_KNOWN` says whether
this Python has it as it is known here. A coefficient is one word of 19 digits, or two, the low one first; each is below
10**19, which needs all bits of a word.
"""

# mypy: ignore-errors

from __future__ import annotations

import ctypes
import decimal

from llvmlite import ir
from numba import types

from tidemark.engine.jit.objects_kernels import (
    _POINTER,
    _WORD,
    OBJECT,
    Held,
    _function,
    _object_at,
    emitted,
)

WORD_DIGITS = 19
BASE = 10**WORD_DIGITS  # of the words of a coefficient
_LONG = ir.IntType(128)
_RECIPROCAL = ((1 << 128) - 1) // BASE - (1 << 64)
# Words of the object, after its count of references and its type.
_HASH = 2  # -1: not computed yet
_FLAGS = 3  # in the lowest byte
_EXPONENT = 4
_DIGITS = 5
_WORDS_USED = 6
_WORDS_ALLOCATED = 7
_DATA = 8  # address of its coefficient
_COEFFICIENT = 9
_SIZE = 13 * 8
_WORDS_HELD = 4
_NEGATIVE = 1
_SPECIAL = 2 | 4 | 8  # infinities and NaNs
_OWN_MEMORY = 16 | 32  # neither the number nor its coefficient is memory of its own
_FLAGS_MASK = 0xFF
BASE_WORD = BASE - (1 << 64)  # as a word with sign
TOO_LONG = 3  # words of a coefficient that is not read


def _is_known():
    """Whether Decimals are in memory as is assumed here."""
    if decimal.Decimal.__basicsize__ != _SIZE or decimal.Decimal.__itemsize__:
        return False
    for number, exponent in ((0, 0), (15, -1), (-123, 2), (BASE, -20), (-(10**38) + 1, -38), (BASE - 1, 0)):
        coefficient = abs(number)
        found = decimal.Decimal((int(number < 0), tuple(map(int, str(coefficient))), exponent))
        words = (ctypes.c_int64 * (_SIZE // 8)).from_address(id(found))
        wanted = {
            _HASH: -1,
            _EXPONENT: exponent,
            _DIGITS: len(str(coefficient)),
            _WORDS_USED: 1 + (coefficient >= BASE),
            _WORDS_ALLOCATED: _WORDS_HELD,
            _DATA: id(found) + 8 * _COEFFICIENT,
            _COEFFICIENT: ctypes.c_int64(coefficient % BASE).value,
        }
        if any(words[place] != word for place, word in wanted.items()):
            return False
        if words[_FLAGS] & _FLAGS_MASK != _OWN_MEMORY | (number < 0):
            return False
        if coefficient >= BASE and words[_COEFFICIENT + 1] != ctypes.c_int64(coefficient // BASE).value:
            return False
    infinity = decimal.Decimal("Infinity")
    infinite = (ctypes.c_int64 * (_SIZE // 8)).from_address(id(infinity))
    return infinite[_FLAGS] & _SPECIAL != 0


IS_KNOWN = _is_known()


def _unsigned(word):
    return int(word) % (1 << 64)


def _signed(word):
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


# --- numbers of two words --------------------------------------------------------------------------
def _long_of(builder, low, high):
    return builder.or_(builder.zext(low, _LONG), builder.shl(builder.zext(high, _LONG), _LONG(64)))


def _halves(builder, long):
    return builder.trunc(long, _WORD), builder.trunc(builder.lshr(long, _LONG(64)), _WORD)


def _pair(context, builder, signature, low, high):
    return context.make_tuple(builder, signature.return_type, [low, high])


def _coefficient_of(context, builder, signature, values):
    # Moller and Granlund, "Improved division by invariant integers": the quotient is estimated by a product with the
    # reciprocal, and corrected twice.
    low, high = values
    base = _WORD(BASE)
    product = builder.mul(builder.zext(high, _LONG), _LONG(_RECIPROCAL))
    rest, quotient = _halves(builder, builder.add(product, _long_of(builder, low, high)))
    quotient = builder.add(quotient, _WORD(1))
    remainder = builder.sub(low, builder.mul(quotient, base))
    is_above = builder.icmp_unsigned(">", remainder, rest)
    quotient = builder.select(is_above, builder.sub(quotient, _WORD(1)), quotient)
    remainder = builder.select(is_above, builder.add(remainder, base), remainder)
    is_above = builder.icmp_unsigned(">=", remainder, base)
    quotient = builder.select(is_above, builder.add(quotient, _WORD(1)), quotient)
    remainder = builder.select(is_above, builder.sub(remainder, base), remainder)
    return _pair(context, builder, signature, remainder, quotient)


@emitted(_coefficient_of, types.UniTuple(types.int64, 2), types.int64, types.int64)
def coefficient_of(low, high):
    """Return the two words of digits of a number of 128 bits; high: below 10**19."""
    quotient, remainder = divmod(_unsigned(high) << 64 | _unsigned(low), BASE)
    return _signed(remainder), _signed(quotient)


def _wide_of(context, builder, signature, values):
    low, high = values
    product = builder.mul(builder.zext(high, _LONG), _LONG(BASE))
    return _pair(context, builder, signature, *_halves(builder, builder.add(product, builder.zext(low, _LONG))))


@emitted(_wide_of, types.UniTuple(types.int64, 2), types.int64, types.int64)
def wide_of(low, high):
    """Return the number of 128 bits, low word first, of two words of digits; it is below 2**128."""
    number = _unsigned(high) * BASE + _unsigned(low)
    return _signed(number % (1 << 64)), _signed(number >> 64)


def _negated(context, builder, signature, values):
    long = builder.sub(_LONG(0), _long_of(builder, *values))
    return _pair(context, builder, signature, *_halves(builder, long))


@emitted(_negated, types.UniTuple(types.int64, 2), types.int64, types.int64)
def negated(low, high):
    """Return the negative of a number of 128 bits, low word first."""
    number = -(_unsigned(high) << 64 | _unsigned(low)) % (1 << 128)
    return _signed(number % (1 << 64)), _signed(number >> 64)


def _unsigned_divided(context, builder, signature, values):
    quotient = builder.udiv(*values)
    remainder = builder.sub(values[0], builder.mul(quotient, values[1]))
    return _pair(context, builder, signature, quotient, remainder)


@emitted(_unsigned_divided, types.UniTuple(types.int64, 2), types.int64, types.int64)
def unsigned_divided(word, by):
    """Return (quotient, remainder) of words without sign."""
    quotient, remainder = divmod(_unsigned(word), _unsigned(by))
    return _signed(quotient), _signed(remainder)


# --- objects ---------------------------------------------------------------------------------------
def _word_place(builder, made, number):
    return builder.bitcast(builder.gep(made, [_WORD(8 * number)]), _WORD.as_pointer())


def _new_decimal(context, builder, signature, values):
    kind, negative, exponent, digits, low, high = values
    make = _function(builder, "PyType_GenericAlloc", _POINTER, _POINTER, _WORD)
    made = builder.call(make, [builder.inttoptr(kind, _POINTER), _WORD(0)])
    with builder.if_then(builder.icmp_unsigned("!=", made, ir.Constant(_POINTER, None)), likely=True):
        is_long = builder.zext(builder.icmp_unsigned("!=", high, _WORD(0)), _WORD)
        coefficient = _word_place(builder, made, _COEFFICIENT)
        for place, word in (
            (_HASH, _WORD(-1)),
            (_FLAGS, builder.or_(negative, _WORD(_OWN_MEMORY))),
            (_EXPONENT, exponent),
            (_DIGITS, digits),
            (_WORDS_USED, builder.add(is_long, _WORD(1))),
            (_WORDS_ALLOCATED, _WORD(_WORDS_HELD)),
            (_DATA, builder.ptrtoint(coefficient, _WORD)),
            (_COEFFICIENT, low),
            (_COEFFICIENT + 1, high),
        ):
            builder.store(word, _word_place(builder, made, place))
    return made


@emitted(_new_decimal, OBJECT, *[types.int64] * 6)
def new_decimal(kind, negative, exponent, digits, low, high):
    """Return a Decimal of two words of digits. kind: address of the class `Decimal`; negative: 1 or 0; digits: the
    number of its digits.
    """
    number = _unsigned(high) * BASE + _unsigned(low)
    assert len(str(number)) == digits
    return Held(_object_at(kind)((int(negative), tuple(map(int, str(number))), int(exponent))))


def _decimal_parts(context, builder, signature, values):
    def word(number):
        return builder.load(_word_place(builder, values[0], number))

    flags, used = word(_FLAGS), word(_WORDS_USED)
    is_special = builder.icmp_unsigned("!=", builder.and_(flags, _WORD(_SPECIAL)), _WORD(0))
    data = builder.inttoptr(word(_DATA), _WORD.as_pointer())
    is_long = builder.icmp_unsigned(">", used, _WORD(1))
    second = builder.select(is_long, _WORD(1), _WORD(0))
    high = builder.select(is_long, builder.load(builder.gep(data, [second])), _WORD(0))
    parts = [
        builder.select(is_special, _WORD(TOO_LONG), used),
        builder.and_(flags, _WORD(_NEGATIVE)),
        word(_EXPONENT),
        builder.load(data),
        high,
    ]
    return context.make_tuple(builder, signature.return_type, parts)


@emitted(_decimal_parts, types.UniTuple(types.int64, 5), OBJECT)
def decimal_parts(held):
    """Return (words, whether it is negative, exponent, low, high) of a Decimal: its digits, if they are in one word or
    two. More words have no meaning here, as those of infinities and NaNs have, of which there are TOO_LONG.
    """
    sign, digits, exponent = held.value.as_tuple()
    if not held.value.is_finite():
        return TOO_LONG, sign, 0, 0, 0
    number = int("".join(map(str, digits)))
    words = -(-len(str(number)) // WORD_DIGITS)
    return words, sign, exponent, _signed(number % BASE), _signed(number // BASE % BASE)
