"""Filters: conditions of a few tests, and aggregates of columns, as words for a kernel that needs no machine.

Each test is a range. The value of a column is put at the top of a word, a float in the order of integers, and a range
may go past the greatest word and on from the least one. So all comparisons of all types are the same few instructions:
NaN, which is greater than everything whatever its sign, is between infinity and minus infinity, and `!=` is the range
of all other values. Which tests a program has follows from its shape (`engine/programs/decisions.py`); the bounds
follow from its constants, at each call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.memory.arena_layout import LIVE, ROW_HEADER_WORDS, STATE_SHIFT
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.decisions import NOT_NULL, ColumnTest
from tidemark.engine.programs.expressions import Col
from tidemark.engine.programs.interpreter import Program, bits_float
from tidemark.engine.queries import program_scan_layout as q
from tidemark.engine.rows import columns_layout as c

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words

_WORD_BITS = 64
_ALL = (1 << _WORD_BITS) - 1
_NO_TESTS = [0] * (q.FT_ADDED - q.FT_AGGREGATES - 1)
_OPCODES = {"count": p.OP_COUNT, "sum": p.OP_SUM, "mean": p.OP_SUM, "min": p.OP_MIN, "max": p.OP_MAX}
_FLOATS = (c.CLASS_FLOAT32, c.CLASS_FLOAT64)
_TYPES = {
    **dict.fromkeys((c.CLASS_SIGNED, c.CLASS_UNSIGNED), p.TYPE_INTEGER),
    **dict.fromkeys(_FLOATS, p.TYPE_FLOAT),
    **dict.fromkeys((c.CLASS_WIDE, c.CLASS_WIDE_UNSIGNED), p.TYPE_WIDE),
}
_Range = tuple[int, int]  # first and last value, which may be before the first one


def filter_of(
    condition: Program | None, functions: Sequence[tuple[str, Any]] = (), aggregates: Program | None = None
) -> Words | None:
    """Return the filter for the rows that a condition accepts (None: all rows), with aggregates of them; None if only
    the machine can do it.

    functions: (function, argument) pairs as of `compile_aggregates`, from which `aggregates` was compiled.
    """
    head = [q.FORM_ALL, -1, len(functions), *_NO_TESTS]
    if condition is not None:
        decision = condition.facts.decision
        if decision is None:
            return None
        tests = [_test_words(condition, each) for each in decision.tests]
        head[q.FT_FORM] = _form(tests, decision.accepted)
        head[q.FT_ACCEPTED] = decision.accepted
        for number, words in enumerate(tests):
            at = q.FT_TESTS + number * q.TEST_WORDS
            head[at : at + q.TEST_WORDS] = words
    held: list[int] | None = None  # the column in the register
    for function, what in functions:
        column = None if aggregates is None else _column_of(aggregates, what)
        if what is None and function == "count":
            one = [0] * q.AGGREGATE_WORDS
            one[q.AG_WAY] = q.WAY_ROWS
        elif column is None or column[c.CW_PART] != c.PART_FIXED or column[c.CW_CLASS] == c.CLASS_BYTES:
            return None
        else:
            one = _aggregate(function, column)
            if one[q.AG_WAY] == q.WAY_MACHINE:
                one[q.AG_READ] = int(column is not held)
                held = column
        head += one
    return np.array(head, dtype=np.int64)


def _column_of(program: Program, what: Any) -> list[int] | None:
    name = what.name if isinstance(what, Col) else what
    if isinstance(name, str):
        for position, words in zip(program.columns, program.facts.columns, strict=True):
            if program.definition.columns[position].name == name:
                return words
    return None


def _aggregate(function: str, column: list[int]) -> list[int]:
    found = [*column, *[0] * (q.AGGREGATE_WORDS - c.COLUMN_WORDS)]
    kind = column[c.CW_CLASS]
    found[q.AG_OPCODE], found[q.AG_TYPE] = _OPCODES[function], _TYPES[kind]
    found[q.AG_NULL_WORD], found[q.AG_NULL_BIT] = _null_place(column)
    found[q.AG_WORD] = column[c.CW_AT] // WORD_BYTES
    if function in ("sum", "mean") and column[c.CW_BYTES] == WORD_BYTES and kind in (c.CLASS_SIGNED, c.CLASS_FLOAT64):
        found[q.AG_WAY] = q.WAY_INTEGERS if kind == c.CLASS_SIGNED else q.WAY_FLOATS
    elif function == "count" and not found[q.AG_NULL_BIT]:
        found[q.AG_WAY] = q.WAY_ROWS
    return found


def _null_place(column: Sequence[int]) -> tuple[int, int]:
    """Return (word of the fixed image, bit) of a column's NULL; (0, 0) if it is never NULL."""
    if column[c.CW_NULL_BYTE] < 0:
        return 0, 0
    word, byte = divmod(column[c.CW_NULL_BYTE], WORD_BYTES)
    return word, _signed(column[c.CW_NULL_MASK] << 8 * byte)


def _form(tests: Sequence[Sequence[int]], accepted: int) -> int:
    if not tests:
        return q.FORM_ALL if accepted else q.FORM_ANY
    if len(tests) > 2 or any(each[q.TW_NULL_BIT] for each in tests):
        return q.FORM_ANY
    has_floats = any(each[q.TW_FOLD] for each in tests)
    if len(tests) == 1:
        return q.FORM_NUMBER if has_floats else q.FORM_INTEGER
    return q.FORM_NUMBERS if has_floats else q.FORM_INTEGERS


def _test_words(program: Program, test: ColumnTest) -> list[int]:
    column = program.facts.columns[test.column]
    null_word, null_bit = _null_place(column)
    null_word += ROW_HEADER_WORDS
    found: _Range | None = (0, -1)
    word, left, bits, fold = 0, 0, _WORD_BITS, 0
    if test.condition != NOT_NULL:
        word, byte = divmod(column[c.CW_AT], WORD_BYTES)
        bits = 8 * column[c.CW_BYTES]
        word, left = ROW_HEADER_WORDS + word, _WORD_BITS - 8 * byte - bits
        at = p.PROGRAM_HEADER_WORDS + len(program.columns) * c.COLUMN_WORDS + test.instruction * p.INSTRUCTION_WORDS
        constant = int(program.words[at + p.I_VALUE])
        if column[c.CW_CLASS] in _FLOATS:
            fold = (1 << bits - 1) - 1
            found = float_range(bits, test.condition, bits_float(constant))
        else:
            if column[c.CW_CLASS] == c.CLASS_WIDE_UNSIGNED:
                low, high = program.constants[constant : constant + 2].tolist()
                constant = (high << _WORD_BITS) + low % (1 << _WORD_BITS)
            found = _integer_range(bits, column[c.CW_CLASS] == c.CLASS_SIGNED, test.condition, constant)
    if found is None:
        # No value is in the range. A live row has this bit in its header, so the test holds for none.
        null_word, null_bit, found = 0, LIVE << STATE_SHIFT, (0, 0)
    up = _WORD_BITS - bits
    span = (found[1] - found[0]) % (1 << bits)
    words = (word, left, (1 << bits) - 1 << up, fold << up, found[0] << up, span << up, null_word, null_bit)
    return [_signed(each) for each in words]


def _signed(word: int) -> int:
    """Return the low 64 bits of a number as a word of two's complement."""
    word &= _ALL
    return word - (word >> _WORD_BITS - 1 << _WORD_BITS)


def _integer_range(bits: int, is_signed: bool, condition: int, constant: int) -> _Range | None:
    """Return the range of the integers for which a comparison holds; None if there are none."""
    least = -(1 << bits - 1) if is_signed else 0
    greatest = least + (1 << bits) - 1
    if condition == p.COND_NE:
        return (constant + 1, constant - 1) if least <= constant <= greatest else (least, greatest)
    first = least if condition in (p.COND_LT, p.COND_LE) else constant + (condition == p.COND_GT)
    last = greatest if condition in (p.COND_GT, p.COND_GE) else constant - (condition == p.COND_LT)
    first, last = max(first, least), min(last, greatest)
    return (first, last) if first <= last else None


def float_range(bits: int, condition: int, constant: float) -> _Range | None:
    """Return the range of the floats of this width for which a comparison holds, as integers in the order of floats;
    None if there are none.
    """
    top, bottom = float_place(bits, math.inf), float_place(bits, -math.inf)
    if math.isnan(constant):
        nans = {p.COND_EQ: (top + 1, bottom - 1), p.COND_GE: (top + 1, bottom - 1), p.COND_LE: (0, -1), p.COND_GT: None}
        return nans.get(condition, (bottom, top))
    above, below = _around(bits, constant)
    if condition in (p.COND_EQ, p.COND_NE):
        is_storable = above <= below
        if condition == p.COND_EQ:
            return (above, below) if is_storable else None
        return (below + 1, above - 1) if is_storable else (0, -1)
    if condition == p.COND_LT:
        return (bottom, above - 1) if above > bottom else None
    if condition == p.COND_LE:
        return bottom, below
    return (below + 1 if condition == p.COND_GT else above), bottom - 1


def _around(bits: int, constant: float) -> _Range:
    """Return the places of the least float that is not below a constant, and of the greatest one that is not above it.
    Zero has two places.
    """
    if bits == _WORD_BITS:
        above = below = constant
    else:
        with np.errstate(over="ignore"):  # past the greatest float of this width is infinity
            near = np.float32(constant)
            above = float(near) if float(near) >= constant else float(np.nextafter(near, np.float32(math.inf)))
            below = float(near) if float(near) <= constant else float(np.nextafter(near, np.float32(-math.inf)))
    first, last = float_place(bits, above), float_place(bits, below)
    return (-1 if above == 0 else first), (0 if below == 0 else last)


def float_place(bits: int, value: float) -> int:
    """Return the bits of a float of this width as a signed integer in the order of floats."""
    word = int(np.float64(value).view(np.int64)) if bits == _WORD_BITS else int(np.float32(value).view(np.int32))
    return word ^ ((1 << bits - 1) - 1) if word < 0 else word
