"""Integers of 8 to 64 bits, and what exact numbers have in common: an expression computes with them, and compares them
with numbers of any kind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal as PythonDecimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tidemark.engine.base.column_buffers import primitive
from tidemark.engine.base.decimals import comparable
from tidemark.engine.base.errors import ValueOutOfRange
from tidemark.engine.types.arrow import kinds
from tidemark.engine.types.base import UNKNOWN, ColumnType, mismatch, plain, register, shown

if TYPE_CHECKING:
    import pyarrow as pa


class Exact(ColumnType):
    """A type of whole numbers, or of decimals."""

    has_arithmetic = True

    def equal_value(self, value: Any) -> Any:
        value = plain(value)
        if not isinstance(value, (int, float, PythonDecimal)):
            return super().equal_value(value)
        if isinstance(value, bool) or not math.isfinite(value):
            return UNKNOWN
        number = Fraction(comparable(value)) * 10**self.scale
        low, high = self.stored_range or (0, -1)
        return self.of_operand(int(number)) if number.denominator == 1 and low <= number <= high else None


@dataclass(frozen=True, repr=False)
class Integer(Exact):
    """Int8 … Int64, UInt8 … UInt64."""

    bits: int
    signed: bool
    direct = int
    converts = False
    python = int
    digest_class = "integer"
    minimum: int = field(init=False, compare=False)
    maximum: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        bits, signed, letter = self.bits, self.signed, {8: "b", 16: "h", 32: "i", 64: "q"}[self.bits]
        is_wide = bits == 64 and not signed
        limits = -(1 << (bits - 1)) if signed else 0, (1 << (bits - signed)) - 1
        self._answer(
            width=bits // 8,
            code=letter if signed else letter.upper(),
            key_code="Q" if is_wide else "q",
            value_class="SIGNED" if signed else "WIDE_UNSIGNED" if is_wide else "UNSIGNED",
            stored_range=limits,
            minimum=limits[0],
            maximum=limits[1],
            arrow=(repr(self).lower(),),
            numpy=f"{'i' if signed else 'u'}{bits // 8}",
            object_kind="UNSIGNED" if is_wide else "INT",
            object_limits=limits,
        )

    def __repr__(self) -> str:
        return f"{'Int' if self.signed else 'UInt'}{self.bits}"

    def stored(self, value: Any) -> int:
        value = plain(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise mismatch("an int", value)
        if not self.minimum <= value <= self.maximum:
            raise ValueOutOfRange(f"holds {self.minimum} to {self.maximum}, got {shown(value)}")
        return int(value)

    def equal_value(self, value: Any) -> Any:
        if type(value) is int:
            return value if self.minimum <= value <= self.maximum else None
        return super().equal_value(value)

    def widens_to(self, other: object) -> bool:
        return isinstance(other, Integer) and other.minimum <= self.minimum and self.maximum <= other.maximum

    def key_becomes(self, other: ColumnType) -> bool:
        return self.widens_to(other)  # keys have whole words

    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        return cls(arrow.bit_width, kinds().is_signed_integer(arrow)) if kinds().is_integer(arrow) else None

    def conform(self, array: pa.Array) -> pa.Array:
        # Decimals of scale 0 too: systems without unsigned 64-bit numbers, such as Spark, use these instead.
        if not kinds().is_integer(array.type) and not (kinds().is_decimal(array.type) and array.type.scale == 0):
            raise self.wrong_arrow(array)
        target = self.arrow_type()
        return array if array.type == target else array.cast(target)

    def numbers(self, array: pa.Array) -> NDArray[Any]:
        return primitive(array, self.numpy)


Int8 = Integer(8, True)
Int16 = Integer(16, True)
Int32 = Integer(32, True)
Int64 = Integer(64, True)
UInt8 = Integer(8, False)
UInt16 = Integer(16, False)
UInt32 = Integer(32, False)
UInt64 = Integer(64, False)
register(Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64)
