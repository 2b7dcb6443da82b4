"""Numbers of callers in bounded size: `Decimal("1e999999999")` is eleven characters and must never be written out.

Every Decimal and every int of a caller comes through here before it is made a number of another kind.
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
# By ROUND_05UP no number that is cut ends in 0 or 5: it equals no shorter one, and lies between the same two of them.
_COMPARED = decimal.Context(
    prec=COMPARED_DIGITS, rounding=decimal.ROUND_05UP, Emin=-_EXPONENT_MAX, Emax=_EXPONENT_MAX, traps=[]
)
_WIDE = decimal.Context(prec=2 * limits.DECIMAL_PRECISION_MAX)


@lru_cache(maxsize=1_024)
def _form(precision: int, scale: int) -> tuple[decimal.Context, PythonDecimal]:
    context = decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation])
    return context, PythonDecimal((0, (1,), -scale))


def brought_to(value: PythonDecimal, precision: int, scale: int) -> PythonDecimal:
    """The same finite number with exactly `scale` digits after the point.

    Raises: decimal.InvalidOperation if it has more than `precision` digits then, or is infinite; decimal.Inexact if
    digits were lost.
    """
    context, unit = _form(precision, scale)
    return context.quantize(value, unit)


def unscaled(value: PythonDecimal, scale: int) -> int:
    """The digits of what `brought_to` gave, as an integer."""
    return int(_WIDE.scaleb(value, scale))


def scaled(number: int, scale: int) -> PythonDecimal:
    """The inverse of `unscaled`, for a stored number."""
    return _WIDE.scaleb(PythonDecimal(number), -scale)


def comparable(value: Any) -> Any:
    """A number of few digits that compares with every number a column can hold as `value` does; what is no Decimal and
    no int comes back as it is.
    """
    if isinstance(value, PythonDecimal):
        return _COMPARED.plus(value) if value.is_finite() else value
    if isinstance(value, int) and value.bit_length() > _INT_BITS_MAX:
        return (1 << _INT_BITS_MAX) * (1 if value > 0 else -1)
    return value


def digits_of(value: PythonDecimal) -> tuple[int, int] | None:
    """A finite number as (number, digits of it behind the point); None if it has too many digits for any register."""
    short = comparable(value)
    if short != value:
        return None
    sign, digits, exponent = short.as_tuple()
    if len(digits) + max(0, exponent) > 2 * limits.DECIMAL_PRECISION_MAX:
        return None
    number = int("".join(map(str, digits))) * 10 ** max(0, exponent)
    return -number if sign else number, max(0, -exponent)
