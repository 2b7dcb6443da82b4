"""What a program that aggregates has found: values from its accumulators, of all rows or of each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context
from decimal import Decimal as PythonDecimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidemark.engine.base.errors import PageDamaged
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.group_memory import places
from tidemark.engine.programs.instruction_set import FLOAT, INTEGER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tidemark.engine.programs.interpreter import Program
    from tidemark.engine.programs.lowering import Kind
    from tidemark.engine.types import ColumnType

    Words = NDArray[np.int64]
    _Values = list[Any] | NDArray[Any]
    _Column = tuple[_Values, NDArray[np.bool_]]  # values, and where they are NULL

BYTES = "bytes"  # the type of a Kind that is in no register
KEY = "key"
# A sum of 192 bits has at most 58 digits.
_EXACT = Context(prec=64)
_DIVISION = Context(prec=38)
_WORD = 1 << 64
_GREATEST = np.int64((1 << 63) - 1)
_FIRST = np.zeros(1, dtype=np.intp)


class Output(NamedTuple):
    """One result: its function (KEY: a part of the key), what it is of, and its accumulator.

    `declared` is the type of a plain column. Of a part of the key, `part` is its number and `at` its word in the key.
    """

    function: str
    kind: Kind
    declared: ColumnType | None
    is_decimal: bool
    at: int
    part: int = 0

    def loader(self) -> Callable[[Any], Any] | None:
        """Return what makes a caller's value of a stored one; None: it is one."""
        if self.function in ("count", "mean"):
            return None
        if self.is_decimal:
            return self._decimal
        kind = self.declared or self.kind.calendar
        return None if kind is None or kind.python in (int, float) else kind.of_operand

    def _decimal(self, stored: int) -> PythonDecimal:
        return _EXACT.scaleb(PythonDecimal(stored), -self.kind.scale)

    def mean(self, total: Any, count: int) -> Any:
        """Return a sum divided by the number of its values."""
        return _DIVISION.divide(self._decimal(total), count) if self.is_decimal else total / count


class Aggregates:
    """A program that aggregates rows, and how to read what it has found; one `work` may serve for many batches."""

    def __init__(self, program: Program, outputs: Sequence[Output]) -> None:
        self.program = program
        self._outputs = outputs
        self._key_at = int(program.words[p.H_ACCUMULATORS]) * p.ACCUMULATOR_WORDS

    def results(self, work: Words) -> list[Any]:
        """Return one value for each aggregate: None for sum, min, max and mean of no values. Sums of integers are
        exact. The program has no key.
        """
        if self.program.words[p.H_KEY_WORDS]:
            at = places(work) + p.GROUP_HEADER_WORDS
            if not at.size:
                return [0 if each.function == "count" else None for each in self._outputs]
        else:
            at = np.array([p.W_ACCUMULATORS], dtype=np.int64)
        return [_loaded(each, self._stored(each, work, at), _FIRST)[0] for each in self._outputs]

    def groups(self, work: Words, order: Sequence[tuple[int, bool]], limit: int | None) -> list[list[Any]]:
        """Return the groups as columns: parts of the key, then aggregates.

        order: (number of a column, whether its greatest value comes first) pairs. NULL is below all values, and NaN
        above all.
        """
        at = places(work) + p.GROUP_HEADER_WORDS
        stored = [self._stored(each, work, at) for each in self._outputs]
        positions = np.arange(at.size)
        for number, is_reversed in reversed(order):
            positions = positions[_order(_taken(stored[number], positions), is_reversed)]
        positions = positions[:limit]
        return [_loaded(each, column, positions) for each, column in zip(self._outputs, stored, strict=True)]

    def _stored(self, output: Output, work: Words, at: Words) -> _Column:
        """Return the values of one column, as they are stored. at: the accumulators of each group."""
        if output.function == KEY:
            key = at + self._key_at
            is_null = work[key] >> output.part & 1 != 0
            if output.kind.type == BYTES:
                return _octets(work, work[key + output.at], work[key + output.at + 1]), is_null
            is_wide = output.kind.type not in (FLOAT, INTEGER)
            return _numbers(output.kind.type, work[key + output.at], work[key + output.at + is_wide]), is_null
        first = at + output.at * p.ACCUMULATOR_WORDS
        count = work[first]
        if output.function == "count":
            return count, np.zeros(count.size, dtype=bool)
        low, high, top = (work[first + word] for word in (p.ACC_LOW, p.ACC_HIGH, p.ACC_TOP))
        values: _Values
        if output.kind.type == BYTES:
            values = _octets(work, high, low)
        elif output.function not in ("sum", "mean"):
            values = _numbers(output.kind.type, low, high)
        elif output.kind.type == FLOAT:
            values = _float_sums(low, high)
        else:
            values = _integer_sums(low, high, top)
        if output.function == "mean":
            pairs = zip(_listed(values), count.tolist(), strict=True)
            values = [output.mean(total, number) if number else None for total, number in pairs]
        return values, count == 0


def _listed(values: _Values) -> list[Any]:
    return values if isinstance(values, list) else values.tolist()


def _taken(column: _Column, positions: NDArray[np.intp]) -> _Column:
    values, is_null = column
    some = [values[place] for place in positions.tolist()] if isinstance(values, list) else values[positions]
    return some, is_null[positions]


def _loaded(output: Output, column: _Column, positions: NDArray[np.intp]) -> list[Any]:
    """Return a column's values at some positions as callers see them. Raises: PageDamaged."""
    some, is_null = _taken(column, positions)
    values = _listed(some)
    for place in is_null.nonzero()[0].tolist():
        values[place] = None
    load = output.loader()
    if load is None:
        return values
    try:
        return [None if each is None else load(each) for each in values]
    except UnicodeDecodeError as error:
        raise PageDamaged("a row holds bytes that are not a value of its column; run `tidemark check`") from error


def _octets(work: Words, first: Words, length: Words) -> list[Any]:
    """Return bytes of the heap. first: their places; length: of each in bytes."""
    octets = work.data.cast("B")
    start = (first + work[p.W_GROUPS + p.GS_HEAP_AT]) * 8
    return [bytes(octets[at : at + size]) for at, size in zip(start.tolist(), length.tolist(), strict=True)]


def _numbers(kind: str, low: Words, high: Words) -> _Values:
    if kind == FLOAT:
        return low.view(np.float64)
    if kind == INTEGER or bool((high == low >> 63).all()):
        return low
    return [(over << 64) + under % _WORD for under, over in zip(low.tolist(), high.tolist(), strict=True)]


def _float_sums(low: Words, high: Words) -> _Values:
    total, rest = low.view(np.float64), high.view(np.float64)
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(total), total + rest, total)


def _integer_sums(low: Words, high: Words, top: Words) -> _Values:
    sign = low >> 63
    if bool(((high == sign) & (top == sign)).all()):
        return low
    words = zip(low.tolist(), high.tolist(), top.tolist(), strict=True)
    return [(above << 128) + (over % _WORD << 64) + under % _WORD for under, over, above in words]


def _order(column: _Column, is_reversed: bool) -> NDArray[np.intp]:
    """Return the places of a column's values in their order; those of equal values keep theirs."""
    values, is_null = column
    if isinstance(values, list):
        # The word of NULL is not compared. NaN, in means, equals itself and is above the other floats.
        keys = [(each != each, each) if isinstance(each, float) else each for each in values]
        found = is_null.nonzero()[0].tolist()
        filled = (~is_null).nonzero()[0].tolist()
        filled.sort(key=keys.__getitem__, reverse=is_reversed)
        return np.array(filled + found if is_reversed else found + filled, dtype=np.intp)
    words = values
    if values.dtype == np.float64:
        bits = (values + 0.0).view(np.int64)
        words = np.where(np.isnan(values), _GREATEST, bits ^ (bits >> 63 & _GREATEST))
    order = np.argsort(~words if is_reversed else words, kind="stable")
    return order[np.argsort(is_null[order] if is_reversed else ~is_null[order], kind="stable")]
