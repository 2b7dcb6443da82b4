"""Floats of 32 and 64 bits."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base.column_buffers import primitive
from tidemark.engine.base.errors import ValueOutOfRange
from tidemark.engine.types.arrow import compute, is_any, kinds
from tidemark.engine.types.base import ColumnType, mismatch, plain, register, shown

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, repr=False)
class Floating(ColumnType):
    """Float32, Float64. NaN and infinities are values, except NaN in a key."""

    bits: int
    direct = float
    converts = False
    python = float
    is_canonical = False
    has_arithmetic = True
    is_exact = False
    # pyarrow converts a float that is too large to an infinite Float32; the cast in `conform` notices this.
    collected = ("float64",)

    def __post_init__(self) -> None:
        bits, is_double = self.bits, self.bits == 64
        # Integers up to this magnitude are accepted: all of them are exact.
        integer_max = 1 << (53 if is_double else 24)
        self._answer(
            width=bits // 8,
            code="d" if is_double else "f",
            key_code="d" if is_double else "f4x",
            value_class=f"FLOAT{bits}",
            # Float32 does not hold every float; NaN, which is in no range, takes the longer way.
            direct_range=(-math.inf, math.inf) if is_double else None,
            digest_class=f"float{bits}",
            arrow=(f"float{bits}",),
            numpy=f"f{bits // 8}",
            object_kind="FLOAT" if is_double else "SINGLE",
            object_limits=(-integer_max, integer_max),
        )

    def __repr__(self) -> str:
        return f"Float{self.bits}"

    def stored(self, value: Any) -> float:
        value = plain(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if abs(value) > self.object_limits[1]:
                raise ValueOutOfRange(f"holds integers to {self.object_limits[1]} exactly, got {shown(value)}")
            return float(value)
        if not isinstance(value, float):
            raise mismatch("a float", value)
        if self.bits == 32:
            try:
                struct.pack("<f", value)
            except OverflowError:
                raise ValueOutOfRange(f"holds magnitudes to 3.4e38, got {shown(value)}") from None
        return float(value)

    def stored_key(self, value: Any) -> float:
        number = self.stored(value)
        if number != number:
            raise ValueOutOfRange("is part of the primary key and must not be NaN")
        # Equal values must have equal words: -0.0 + 0.0 is 0.0. Underflow of Float32 can make a -0.0 too.
        return (struct.unpack("<f", struct.pack("<f", number))[0] if self.bits == 32 else number) + 0.0

    def value_of_json(self, value: Any) -> float:
        return float.fromhex(value)

    def widens_to(self, other: object) -> bool:
        return isinstance(other, Floating) and other.bits >= self.bits

    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        return cls(arrow.bit_width) if kinds().is_float32(arrow) or kinds().is_float64(arrow) else None

    def conform(self, array: pa.Array) -> pa.Array | None:
        target = self.arrow_type()
        if array.type == target:
            return array
        if kinds().is_integer(array.type):
            return array.cast(target)
        if not kinds().is_floating(array.type):
            raise self.wrong_arrow(array)
        result = array.cast(target)
        pc = compute()
        if self.bits == 32 and is_any(pc.and_(pc.is_inf(result), pc.invert(pc.is_inf(array)))):
            return None
        return result

    def conform_key(self, array: pa.Array) -> pa.Array | None:
        result = self.conform(array)
        return None if result is None or is_any(compute().is_nan(result)) else result

    def numbers(self, array: pa.Array) -> NDArray[Any]:
        return primitive(array, f"f{self.width}")

    def key_numbers(self, array: pa.Array) -> NDArray[Any]:
        values = self.numbers(array)
        # -0.0 + 0.0 is 0.0: equal keys have equal words.
        bits: NDArray[Any] = (values + values.dtype.type(0)).view(f"u{self.width}")
        return bits.view(np.int64) if self.bits == 64 else bits.astype(np.int64)


Float32 = Floating(32)
Float64 = Floating(64)
register(Float32, Float64)
