"""Constants of expressions, lowered: what decides the code, and what only stands in it.

A *lowering* takes the value of one constant and returns its *structure* and its stored forms. Everything that the
compiler decides because of a value is in the structure: whether a comparison is always true, which comparison is exact,
the scale of a decimal, which values of a list are new. The stored forms are words, integers of 128 bits, or bytes. An
expression of the same shape with constants of the same structure needs no compiler (`engine/programs/compiled.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal as PythonDecimal
from decimal import DecimalException
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.engine.base.decimals import comparable, digits_of, rescaled, unscaled
from tidemark.engine.base.errors import ProgramInvalid, TypeMismatch, ValueOutOfRange
from tidemark.engine.base.limits import DECIMAL_PRECISION_MAX
from tidemark.engine.programs.instruction_set import FLOAT, INTEGER, WIDE
from tidemark.engine.programs.interpreter import float_bits
from tidemark.engine.programs.patterns import may_be_slow, tokens_of
from tidemark.engine.rows.row_format import located
from tidemark.engine.types.base import is_int, plain, shown

if TYPE_CHECKING:
    from tidemark.engine.schema.column import Column
    from tidemark.engine.types import ColumnType

_WORD_END = 1 << 63
_WIDE_END = 1 << 127
Lowered = tuple[Any, Sequence[Any]]


class Kind(NamedTuple):
    """The contents of a register: its type; digits after the point of decimals; its calendar type, if any."""

    type: str
    scale: int = 0
    calendar: ColumnType | None = None


_WORD_KIND = Kind(INTEGER)


def refused(table: str, what: str) -> ProgramInvalid:
    """Return the error that refuses an expression over a table."""
    return ProgramInvalid(f"{table}: {what}", table=table)


# --- compared with a column -------------------------------------------------------------------------
def compared(table: str, column: Column, condition: str, given: Any) -> Lowered:
    """Lower the constant of `column condition constant`. The structure is the comparison that is exact for the stored
    form, or the result for all values but NULL. Raises: ProgramInvalid, TypeMismatch, ValueOutOfRange.
    """
    kind = column.type
    value = plain(given)
    if kind.has_arithmetic:
        return _exact(table, column, condition, value)
    if not kind.has_order and condition not in ("eq", "ne"):
        raise refused(table, f"{type(kind).__name__} column {column.name!r} has no order; use == and !=")
    try:
        return condition, (kind.compared(value),)
    except (TypeMismatch, ValueOutOfRange) as error:
        raise located(error, table, column.name, None) from error


def member(table: str, column: Column, given: Sequence[Any]) -> Lowered:
    """Lower the constants that a column is looked for in. The structure says of each whether it is tested: values that
    no row can have and values that came before are not. None is not a value.
    """
    tested, stored = [], []
    seen: set[Any] = set()
    for each in given:
        found, form = (False, ()) if each is None else compared(table, column, "eq", each)
        is_new = found == "eq" and form[0] not in seen
        tested.append(is_new)
        if is_new:
            seen.add(form[0])
            stored.append(form[0])
    return tuple(tested), stored


def pattern(given: bytes) -> Lowered:
    """Lower a pattern to its tokens. The structure: whether it may take too many steps in a row."""
    tokens = tokens_of(given)
    return may_be_slow(tokens), (tokens,)


def _exact(table: str, column: Column, condition: str, value: Any) -> Lowered:
    kind = column.type
    limits = kind.stored_range
    if type(value) is int and limits is not None and not kind.scale and limits[0] <= value <= limits[1]:
        return condition, (value,)
    if not is_int(value) and not isinstance(value, (float, PythonDecimal)):
        raise refused(table, f"{kind!r} column {column.name!r} is compared with numbers, got {shown(value)}")
    if isinstance(value, PythonDecimal):
        if not value.is_finite():
            raise refused(
                table, f"{kind!r} column {column.name!r} is compared with finite decimals, got {shown(value)}"
            )
        if kind.python is PythonDecimal:
            try:
                return condition, (kind.compared(value),)
            except (ValueOutOfRange, DecimalException):
                pass  # not a value of the column: it is between two of them, or outside
    if limits is None and isinstance(value, float):
        return condition, (float_bits(value),)
    if isinstance(value, float) and not math.isfinite(value):
        # NaN is above everything, like infinity.
        is_below = value < 0
        return condition == "ne" or condition in (("gt", "ge") if is_below else ("lt", "le")), ()
    number = Fraction(comparable(value))
    if limits is None:  # floats
        try:
            near = float(number)
        except OverflowError:
            near = math.inf if number > 0 else -math.inf
        if math.isfinite(near) and Fraction(near) == number:
            return condition, (float_bits(near),)
        return _between(condition, float_bits(near), math.isinf(near) and near > 0 or near > number)
    low, high = limits
    number *= 10**kind.scale
    if number < low or number > high:
        return condition == "ne" or condition in (("gt", "ge") if number < low else ("lt", "le")), ()
    if number.denominator == 1:
        return condition, (int(number),)
    return _between(condition, math.floor(number), False)


def _between(condition: str, near: int, is_above: bool) -> Lowered:
    """Lower a number between two adjacent storable numbers; `near` is one of the two."""
    if condition in ("eq", "ne"):
        return condition == "ne", ()
    if condition in ("lt", "le"):
        return ("lt" if is_above else "le"), (near,)
    return ("ge" if is_above else "gt"), (near,)


# --- loaded into a register -------------------------------------------------------------------------
def number(table: str, beside: Kind | None, given: Any) -> Lowered:
    """Lower a constant of arithmetic. The structure is its kind, None for NULL.

    beside: the kind of the other operand, if both must have one scale. The constant then has that scale at least, and
    128 bits if the other operand has, so that its digits do not decide the code where its value allows that.
    """
    value = plain(given)
    if value is None:
        return None, ()
    if type(value) is int and beside == _WORD_KIND and -_WORD_END <= value < _WORD_END:
        return _WORD_KIND, (value,)
    if isinstance(value, float):
        return Kind(FLOAT), (float_bits(value),)
    whole, scale = _whole(table, beside, value)
    if beside is not None and beside.type != FLOAT:
        is_wide = beside.type == WIDE
        wanted = max(scale, beside.scale)
        scaled = whole * 10 ** (wanted - scale)
        end = _WIDE_END if is_wide else _WORD_END
        if -end <= scaled < end:
            return Kind(WIDE if is_wide else INTEGER, wanted), (scaled,)
    while scale and whole % 10 == 0:
        whole, scale = whole // 10, scale - 1
    if -_WORD_END <= whole < _WORD_END:
        return Kind(INTEGER, scale), (whole,)
    if not -_WIDE_END <= whole < _WIDE_END:
        raise refused(table, f"{shown(whole)} is not an integer of 128 bits")
    return Kind(WIDE, scale), (whole,)


def _whole(table: str, beside: Kind | None, value: Any) -> tuple[int, int]:
    """Return a number as (integer, digits after the point), without zeros at its end that `beside` has not."""
    if is_int(value):
        return int(value), 0
    if not isinstance(value, PythonDecimal) or not value.is_finite():
        raise refused(table, f"{shown(value)} is not a number")
    if beside is not None and beside.type != FLOAT:
        try:
            return unscaled(rescaled(value, DECIMAL_PRECISION_MAX, beside.scale), beside.scale), beside.scale
        except DecimalException:
            pass  # more digits
    found = digits_of(value)
    if found is None:
        raise refused(table, f"{shown(value)} has more digits than 128 bits hold")
    whole, scale = found
    while scale and whole % 10 == 0:
        whole, scale = whole // 10, scale - 1
    return whole, scale


def moment(calendar: ColumnType, given: Any) -> Lowered:
    """Lower a constant that is compared with a calendar value in a register."""
    return None, (int(calendar.stored(given)),)


def span(table: str, calendar: ColumnType, gap: timedelta) -> Lowered:
    """Lower a timedelta that is added to a calendar value."""
    if getattr(gap, "nanoseconds", 0):
        raise refused(table, f"a timedelta has whole microseconds, got {shown(gap)}")
    amount = (gap.days * 86_400 + gap.seconds) * 1_000_000 + gap.microseconds
    if amount % calendar.step_us:
        raise refused(table, f"a {calendar!r} moves by whole days, got {gap}")
    return None, (amount // calendar.step_us,)


# --- all constants of an expression -----------------------------------------------------------------
@dataclass(slots=True)
class Lowering:
    """How one constant, or the constants of one list, are lowered: a function of this module, its first arguments, and
    the numbers of the constants in the expression. Equal ones lower the same constants in the same way.
    """

    function: Callable[..., Lowered]
    arguments: tuple[Any, ...]
    constants: tuple[int, ...]
    is_list: bool
    plain: _Plain | None = field(init=False)

    def __post_init__(self) -> None:
        self.plain = _plain_of(self.function, self.arguments)

    def of(self, values: Sequence[Any]) -> Lowered:
        """Lower the values of an expression's constants. Raises: as the function."""
        if self.is_list:
            return self.function(*self.arguments, [values[each] for each in self.constants])
        return self.function(*self.arguments, values[self.constants[0]])


class _Plain(NamedTuple):
    """Numbers whose stored form is exact and has one structure: integers from `least` to `greatest`, after Decimals
    with the exponent of `unit` are multiplied by 10 ** scale.
    """

    structure: Any
    least: int
    greatest: int
    scale: int
    unit: PythonDecimal


def _plain_of(function: Callable[..., Lowered], arguments: tuple[Any, ...]) -> _Plain | None:
    """Return which numbers a lowering takes as they are."""
    if function is compared:
        _, column, condition = arguments
        limits = column.type.stored_range if column.type.has_arithmetic else None
        if limits is not None:
            least, greatest = limits
            scale = column.type.scale
            return _Plain(condition, least, greatest, scale, PythonDecimal((0, (1,), -scale)))
    if function is number:
        _, beside = arguments
        if beside is not None and beside.calendar is None and beside.type != FLOAT:
            end = 10**DECIMAL_PRECISION_MAX if beside.type == WIDE else _WORD_END
            made = Kind(beside.type, beside.scale)
            return _Plain(made, 1 - end, end - 1, beside.scale, PythonDecimal((0, (1,), -beside.scale)))
    return None


def lower_all(lowerings: Sequence[Lowering], values: Sequence[Any]) -> tuple[tuple[Any, ...], list[Any]]:
    """Return (structures, stored forms) of an expression's constants, in the order of the code."""
    structures: list[Any] = []
    stored: list[Any] = []
    for each in lowerings:
        plain = each.plain
        if plain is not None:
            structure, least, greatest, scale, unit = plain
            value: Any = values[each.constants[0]]
            kind = type(value)
            form = None
            if kind is int:
                form = None if scale else value
            elif kind is PythonDecimal and value.same_quantum(unit):
                form = unscaled(value, scale)  # what it rounds is beyond all limits
            if form is not None and least <= form <= greatest:
                structures.append(structure)
                stored.append(form)
                continue
        structure, forms = each.of(values)
        structures.append(structure)
        stored += forms
    return tuple(structures), stored
