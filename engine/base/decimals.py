"""Bounds on the size of numbers from callers: `Decimal("1e999999999")` has eleven characters and must never be
expanded.

Every Decimal and every int of a caller passes through this module before it is converted to another kind of number.
"""

from __future__ import annotations

import decimal
from decimal import Decimal as PythonDecimal
from functools import lru_cache
from typing import Any

from tidemark.engine.base import limits

# More digits than any stored number has: a Float64 has at most 767, and is 0 or from 4.9e-324 to 1.8e308.
COMPARED_DIGITS = 1_200
_EXPONENT_MAX = 400
_INT_BITS_MAX = 4_096
# With ROUND_05UP a shortened number never ends in 0 or 5: it equals no shorter number and keeps its place between two
# of them.
_COMPARED = decimal.Context(
    prec=COMPARED_DIGITS, rounding=decimal.ROUND_05UP, Emin=-_EXPONENT_MAX, Emax=_EXPONENT_MAX, traps=[]
)
_WIDE = decimal.Context(prec=2 * limits.DECIMAL_PRECISION_MAX)
_scaleb = _WIDE.scaleb
_EXPONENTS = {scale: PythonDecimal(-scale) for scale in range(limits.DECIMAL_PRECISION_MAX + 1)}


@lru_cache(maxsize=1_024)
def _form(precision: int, scale: int) -> tuple[decimal.Context, PythonDecimal]:
    context = decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation])
    return context, PythonDecimal((0, (1,), -scale))


def rescaled(value: PythonDecimal, precision: int, scale: int) -> PythonDecimal:
    """Return the same finite number with exactly `scale` digits after the point.

    Raises: decimal.InvalidOperation if the result has more than `precision` digits or the number is infinite;
    decimal.Inexact if digits were lost.
    """
    context, unit = _form(precision, scale)
    return context.quantize(value, unit)


def unscaled(value: PythonDecimal, scale: int) -> int:
    """Return a result of `rescaled` as an integer, without its decimal point."""
    return int(_WIDE.scaleb(value, scale))


def scaled(number: int, scale: int) -> PythonDecimal:
    """Invert `unscaled` for a stored number."""
    return _scaleb(number, _EXPONENTS.get(scale, -scale))


def comparable(value: Any) -> Any:
    """Return a short number that compares with every number a column can hold as `value` does. A value that is neither
    a Decimal nor an int is returned unchanged.
    """
    if isinstance(value, PythonDecimal):
        return _COMPARED.plus(value) if value.is_finite() else value
    if isinstance(value, int) and value.bit_length() > _INT_BITS_MAX:
        return (1 << _INT_BITS_MAX) * (1 if value > 0 else -1)
    return value


def digits_of(value: PythonDecimal) -> tuple[int, int] | None:
    """Return a finite Decimal as (unscaled integer, digits after the point); None if it has too many digits for any
    register.
    """
    short = comparable(value)
    if short != value:
        return None
    sign, digits, exponent = short.as_tuple()
    if len(digits) + max(0, exponent) > 2 * limits.DECIMAL_PRECISION_MAX:
        return None
    number = int("".join(map(str, digits))) * 10 ** max(0, exponent)
    return -number if sign else number, max(0, -exponent)
