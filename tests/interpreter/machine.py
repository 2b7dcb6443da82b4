"""The program machine in plain Python, over stored values instead of images: one row at a time, numbers without limits.

`Row` is what one row is to a program: stored values by column position, pseudo-columns, parameters.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any

from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.interpreter import Program, bits_float
from tidemark.engine.rows import columns_layout as c
from tidemark.engine.types import Binary, Char, Uuid

ORDERS = {0: (0,), 1: (-1, 1), 2: (-1,), 3: (-1, 0), 4: (1,), 5: (0, 1)}


@dataclass
class Row:
    """One row as a program sees it."""

    values: list[Any]
    epoch: int = 0
    author: int = 0
    rowid: int = 0
    fragment: int = 0
    parameters: tuple[int, ...] = ()


class Failed(Exception):
    """A run-time error of a row."""


@dataclass
class Result:
    """What became of one row: verdict, code, and outputs by number (None: NULL)."""

    verdict: int
    code: int = 0
    outputs: dict[int, Any] = field(default_factory=dict)


def wrap(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def exact(number: int, bits: int = 64) -> int:
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise Failed(p.PE_OVERFLOW)
    return number


def accumulator(work: Any, number: int) -> tuple[int, int, int]:
    """(number of values, low word, high word): the low word is a sum, minimum or maximum, of floats its bits; the high
    word is the upper half of a wide result, or the bits of the compensation of a float sum.
    """
    at = p.W_ACCUMULATORS + number * p.ACCUMULATOR_WORDS
    return int(work[at]), int(work[at + p.ACC_LOW]), int(work[at + p.ACC_HIGH])


def order(one: Any, other: Any) -> int:
    if isinstance(one, float):
        one, other = ((1, 0.0) if x != x else (0, x) for x in (one, other))
    return (one > other) - (one < other)


def same_key(value: Any) -> Any:
    """A value that is equal for values of one group."""
    if not isinstance(value, float):
        return value
    return "NaN" if value != value else value + 0.0


def parts_of(pattern: bytes) -> list[int]:
    """Return the bytes of a pattern, with the tokens of its wildcards."""
    parts = []
    octets = iter(pattern)
    for octet in octets:
        if octet == ord("\\"):
            parts.append(next(octets, octet))
        else:
            parts.append({ord("%"): p.TOKEN_MANY, ord("_"): p.TOKEN_ANY}.get(octet, octet))
    return parts


def like(text: bytes, pattern: list[int], octets: bool) -> bool:
    """By table: row i of it says which starts of the text the first i parts of the pattern can end at."""
    starts = {0}
    for letter in pattern:
        if letter == p.TOKEN_MANY:
            least = min(starts, default=len(text) + 1)
            starts = {
                x for x in range(least, len(text) + 1) if octets or x in (least, len(text)) or text[x] & 0xC0 != 0x80
            }
        elif letter == p.TOKEN_ANY:
            ends = set()
            for x in starts:
                if x < len(text):
                    x += 1
                    while not octets and x < len(text) and text[x] & 0xC0 == 0x80:
                        x += 1
                    ends.add(x)
            starts = ends
        else:
            starts = {x + 1 for x in starts if x < len(text) and text[x] == letter}
    return len(text) in starts


class Machine:
    """Runs one program; accumulators live as long as it does."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.code = program.instructions
        self.constants = program.constants.tobytes()
        self.values = self._accumulators()
        # Values of each group by its key, as (type, value) pairs, in the order in which the keys came.
        self.groups: dict[tuple[Any, ...], list[list[Any]]] = {}

    def _accumulators(self) -> list[list[Any]]:
        return [[] for _ in range(int(self.program.words[p.H_ACCUMULATORS]))]

    def run(self, rows: list[Row]) -> list[Result]:
        """Every row in order, until one fails or is the last."""
        results: list[Result] = []
        ended = False
        for row in rows:
            if ended:
                results.append(Result(p.VERDICT_NONE))
                continue
            self.outputs: dict[int, Any] = {}
            try:
                result = self._row(row)
            except Failed as error:
                result = Result(p.VERDICT_ERROR, error.args[0])
            result.outputs = self.outputs
            ended = result.verdict in (p.VERDICT_ERROR, p.VERDICT_LAST)
            results.append(result)
        return results

    def _row(self, row: Row) -> Result:
        registers: dict[int, Any] = {}
        stack: list[int] = []
        key: list[Any] = []
        values = self.values
        at = 0
        for _ in range(p.PROGRAM_STEPS_MAX):
            each = self.code[at]
            at += 1
            opcode = each.opcode
            if opcode == p.OP_EXIT_OK:
                return Result(p.VERDICT_OK)
            if opcode == p.OP_EXIT_OK_LAST:
                return Result(p.VERDICT_LAST)
            if opcode == p.OP_EXIT_REFUSE:
                return Result(p.VERDICT_REFUSED, each.place)
            if opcode == p.OP_CALL:
                if len(stack) == p.CALLS_MAX:
                    raise Failed(p.PE_CALLS)
                stack.append(at)
                at = each.target
            elif opcode == p.OP_RETURN:
                at = stack.pop()
            elif opcode == p.OP_WRITE_ATTR:
                self._write(each, registers[each.a])
            elif opcode in (p.OP_COUNT, p.OP_SUM, p.OP_MIN, p.OP_MAX):
                if registers[each.a] is not None:
                    values[each.place].append((opcode, registers[each.a]))
            elif opcode == p.OP_KEY:
                key.append(same_key(registers[each.a]))
            elif opcode == p.OP_KEY_BYTES:
                key.append(self._column(each.place, row, True))
            elif opcode == p.OP_GROUP:
                values = self.groups.setdefault(tuple(key), self._accumulators())
            elif opcode in (p.OP_MIN_BYTES, p.OP_MAX_BYTES):
                found = self._column(each.place, row, True)
                if found is not None:
                    values[each.target].append((opcode, found))
            elif self._is_branch(each):
                if self._branches(each, registers, row):
                    at = each.target
            else:
                registers[each.a] = self._value(each, registers, row)
        raise Failed(p.PE_STEPS)

    @staticmethod
    def _is_branch(each: Any) -> bool:
        return (
            p.OP_BRANCH <= each.opcode <= p.OP_BRANCH_GE
            or p.OP_BRANCH_ATTR_OP_ARG <= each.opcode <= p.OP_BRANCH_ATTR_OP_ATTR
        )

    def _kind(self, number: int) -> int:
        return int(self.program.words[p.PROGRAM_HEADER_WORDS + number * c.COLUMN_WORDS + c.CW_CLASS])

    def _column(self, number: int, row: Row, is_padded: bool = False) -> Any:
        """Return a value; is_padded: bytes of a Binary column have its width."""
        position = self.program.columns[number]
        value = row.values[position]
        if value is None:
            return None
        kind = self._kind(number)
        if kind == c.CLASS_WIDE:
            return int.from_bytes(value, "little", signed=True)
        if kind == c.CLASS_BYTES:
            declared = self.program.definition.columns[position].type
            value = value.rstrip(b"\0") if declared.width else value
            return value.ljust(declared.width, b"\0") if is_padded and isinstance(declared, (Binary, Uuid)) else value
        return float(value) if kind in (c.CLASS_FLOAT32, c.CLASS_FLOAT64) else int(value)

    def _constant(self, at: int, kind: int) -> Any:
        if kind == c.CLASS_BYTES:
            (length,) = struct.unpack_from("<q", self.constants, at * 8)
            return self.constants[at * 8 + 8 : at * 8 + 8 + length]
        if kind in (c.CLASS_WIDE, c.CLASS_WIDE_UNSIGNED):
            return int.from_bytes(self.constants[at * 8 : at * 8 + 16], "little", signed=True)
        return bits_float(at) if kind in (c.CLASS_FLOAT32, c.CLASS_FLOAT64) else at

    def _pattern(self, at: int) -> list[int]:
        (count,) = struct.unpack_from("<q", self.constants, at * 8)
        return list(struct.unpack_from(f"<{count}H", self.constants, at * 8 + 8))

    def _write(self, each: Any, value: Any) -> None:
        column = self.program.definition.columns[self.program.columns[each.place]]
        if value is None:
            if not column.nullable:
                raise Failed(p.PE_NOT_NULL)
        else:
            limits = column.type.stored_range
            if limits is not None and not limits[0] <= value <= limits[1]:
                raise Failed(p.PE_RANGE)
            if limits is None and column.type.width == 4 and math.isfinite(value):
                try:
                    struct.pack("<f", value)
                except OverflowError:
                    raise Failed(p.PE_RANGE) from None
        self.outputs[each.value] = value

    def _branches(self, each: Any, registers: dict[int, Any], row: Row) -> bool:
        opcode = each.opcode
        if opcode == p.OP_BRANCH:
            return True
        if opcode in (p.OP_BRANCH_REG_EQ_NULL, p.OP_BRANCH_REG_NE_NULL):
            return (registers[each.a] is None) == (opcode == p.OP_BRANCH_REG_EQ_NULL)
        if p.OP_BRANCH_EQ <= opcode <= p.OP_BRANCH_GE:
            one, other = registers[each.a], registers[each.b]
            if one is None or other is None:
                raise Failed(p.PE_NULL)
            return order(one, other) in ORDERS[opcode - p.OP_BRANCH_EQ]
        is_pair = opcode == p.OP_BRANCH_ATTR_OP_ATTR
        is_padded = each.condition in (p.COND_LIKE, p.COND_NOT_LIKE)
        if is_pair:  # bytes padded for characters are compared as those are
            columns = [self.program.definition.columns[self.program.columns[n]].type for n in (each.place, each.value)]
            is_padded = not any(isinstance(kind, Char) for kind in columns)
        value = self._column(each.place, row, is_padded)
        if opcode in (p.OP_BRANCH_ATTR_EQ_NULL, p.OP_BRANCH_ATTR_NE_NULL):
            return (value is None) == (opcode == p.OP_BRANCH_ATTR_EQ_NULL)
        kind = self._kind(each.place)
        if is_pair:
            other = self._column(each.value, row, is_padded)
        elif opcode == p.OP_BRANCH_ATTR_OP_PARAM:
            other = row.parameters[each.value]
            other = bits_float(other) if kind in (c.CLASS_FLOAT32, c.CLASS_FLOAT64) else other
        else:
            other = self._constant(each.value, kind)
            if each.condition in (p.COND_LIKE, p.COND_NOT_LIKE):
                other = self._pattern(each.value)
        return self._holds(each, value, other)

    @staticmethod
    def _holds(each: Any, value: Any, other: Any) -> bool:
        condition = each.condition
        if value is None or other is None:
            if each.flags & p.FL_SQL or condition in (p.COND_LIKE, p.COND_NOT_LIKE):
                return False
            if condition >= p.COND_AND_EQ_MASK:
                return condition in (p.COND_AND_NE_MASK, p.COND_AND_NE_ZERO)
            return (value is not None) - (other is not None) in ORDERS[condition]
        if condition in (p.COND_LIKE, p.COND_NOT_LIKE):
            return like(value, other, bool(each.flags & p.FL_OCTETS)) == (condition == p.COND_LIKE)
        if condition >= p.COND_AND_EQ_MASK:
            wanted = other if condition in (p.COND_AND_EQ_MASK, p.COND_AND_NE_MASK) else 0
            return (value & other == wanted) == (condition in (p.COND_AND_EQ_MASK, p.COND_AND_EQ_ZERO))
        return order(value, other) in ORDERS[condition]

    def _value(self, each: Any, registers: dict[int, Any], row: Row) -> Any:
        opcode = each.opcode
        if opcode == p.OP_READ_ATTR:
            pseudo = {
                p.PSEUDO_EPOCH: row.epoch,
                p.PSEUDO_GCI: row.epoch >> 32,
                p.PSEUDO_AUTHOR: row.author,
                p.PSEUDO_ROWID: row.rowid,
                p.PSEUDO_FRAGMENT: row.fragment,
            }
            return pseudo[each.place] if each.place in pseudo else self._column(each.place, row)
        if opcode == p.OP_LOAD_NULL:
            return None
        if opcode in (p.OP_LOAD_CONST16, p.OP_LOAD_CONST32, p.OP_LOAD_CONST64):
            return each.value
        if opcode == p.OP_LOAD_FLOAT:
            return bits_float(each.value)
        if opcode == p.OP_LOAD_WIDE:
            return self._constant(each.value, c.CLASS_WIDE)
        if opcode == p.OP_LOAD_PARAM:
            word = row.parameters[each.place]
            return bits_float(word) if each.flags & p.TYPE_MASK == p.TYPE_FLOAT else word
        if opcode == p.OP_MOVE:
            return registers[each.b]
        one, other = registers[each.b], registers[each.c] if each.opcode not in ONE_OPERAND else 0
        if one is None or other is None:
            raise Failed(p.PE_NULL)
        if opcode in DIVISIONS and other == 0:
            if each.flags & p.FL_ZERO_NULL:
                return None
            raise Failed(p.PE_DIVISION)
        return ARITHMETIC[opcode](one, other)


def _float_to_integer(x: float, _: int) -> int:
    if not -(2.0**63) <= x < 2.0**63:
        raise Failed(p.PE_OVERFLOW)
    return math.trunc(x)


ONE_OPERAND = (p.OP_NOT, *range(p.OP_INTEGER_TO_FLOAT, p.OP_FLOAT_TO_INTEGER + 1))
DIVISIONS = (p.OP_FLOORDIV, p.OP_MOD, p.OP_FLOAT_DIV, p.OP_FLOAT_FLOORDIV, p.OP_FLOAT_MOD)
ARITHMETIC = {
    p.OP_ADD: lambda x, y: wrap(x + y),
    p.OP_SUB: lambda x, y: wrap(x - y),
    p.OP_MUL: lambda x, y: wrap(x * y),
    p.OP_ADD_EXACT: lambda x, y: exact(x + y),
    p.OP_SUB_EXACT: lambda x, y: exact(x - y),
    p.OP_MUL_EXACT: lambda x, y: exact(x * y),
    p.OP_FLOORDIV: lambda x, y: exact(x // y),
    p.OP_MOD: lambda x, y: x % y,
    p.OP_FLOAT_ADD: lambda x, y: x + y,
    p.OP_FLOAT_SUB: lambda x, y: x - y,
    p.OP_FLOAT_MUL: lambda x, y: x * y,
    p.OP_FLOAT_DIV: lambda x, y: x / y,
    p.OP_FLOAT_FLOORDIV: lambda x, y: x // y,
    p.OP_FLOAT_MOD: lambda x, y: x % y,
    p.OP_AND: lambda x, y: x & y,
    p.OP_OR: lambda x, y: x | y,
    p.OP_XOR: lambda x, y: x ^ y,
    p.OP_NOT: lambda x, _: ~x,
    p.OP_SHIFT_LEFT: lambda x, y: wrap(x << (y & 63)),
    p.OP_SHIFT_RIGHT: lambda x, y: x >> (y & 63),
    p.OP_SHIFT_RIGHT_ZEROS: lambda x, y: wrap((x % 2**64) >> (y & 63)),
    p.OP_INTEGER_TO_FLOAT: lambda x, _: float(x),
    p.OP_INTEGER_TO_WIDE: lambda x, _: x,
    p.OP_WIDE_TO_FLOAT: lambda x, _: float(x),
    p.OP_WIDE_TO_INTEGER: lambda x, _: exact(x),
    p.OP_FLOAT_TO_INTEGER: _float_to_integer,
    p.OP_WIDE_ADD_EXACT: lambda x, y: exact(x + y, 128),
    p.OP_WIDE_SUB_EXACT: lambda x, y: exact(x - y, 128),
}


def float_sum(values: list[float]) -> tuple[float, float]:
    """Neumaier's sum: (sum, compensation)."""
    total, rest = 0.0, 0.0
    for value in values:
        whole = total + value
        lost = (total - whole) + value if abs(total) >= abs(value) else (value - whole) + total
        rest += lost if lost == lost else 0.0
        total = whole
    return total, rest


__all__ = ["Machine", "Result", "Row", "float_sum"]
