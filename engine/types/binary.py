"""Bytes: Binary, VarBinary, Blob."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tidemark.engine.base import limits
from tidemark.engine.base.column_buffers import build_fixed, primitive, variable
from tidemark.engine.types.arrow import compute, kinds, longest
from tidemark.engine.types.base import UNKNOWN, ColumnType, Octets, Words, register
from tidemark.engine.types.sized import KEY_LENGTH, Padded, Varying, octets_of, pad_rows, strip_rows

if TYPE_CHECKING:
    import pyarrow as pa


def _is_of_any_size(arrow: pa.DataType) -> bool:
    """Whether an Arrow type is of bytes that are no Binary, as views of bytes are."""
    is_large = kinds().is_fixed_size_binary(arrow) and arrow.byte_width > limits.BINARY_LENGTH_MAX
    is_varying = kinds().is_binary(arrow) or kinds().is_large_binary(arrow) or kinds().is_binary_view(arrow)
    return bool(is_large or is_varying)


def _octets(array: pa.Array, kind: ColumnType, limit: int) -> Any:
    """Return an array of bytes, None if a value is longer than the limit. Raises: TypeMismatch."""
    import pyarrow as pa

    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        raise kind.wrong_arrow(array)
    return array if longest(compute().binary_length(array)) <= limit else None


class _Octets(ColumnType):
    """What types of bytes have in common."""

    python = bytes
    digest_class = "bytes"
    has_patterns = True
    comparison_group = "bytes"

    def compared(self, value: Any) -> int | float | bytes:
        return self.operand(octets_of(value, sys.maxsize))

    def text_of(self, array: pa.Array) -> pa.Array:
        import pyarrow as pa

        return array.cast(pa.large_binary()).cast(pa.large_string())

    def equal_value(self, value: Any) -> Any:
        found = super().equal_value(value)
        if found is not UNKNOWN or not isinstance(value, bytes):
            return found
        octets: Any = self.operand(value)
        return octets if len(octets) <= (self.width or self.bytes_max) else None


class FixedOctets(ColumnType):
    """A type of `width` bytes in the fixed image, zeros at the end not counted."""

    is_padded = True

    def sort_key(self, stored: bytes) -> bytes:
        return stored.rstrip(b"\0")

    # Without zero bytes at the end, as kernels see values in a fixed part.
    def to_var(self, stored: bytes) -> bytes:
        return stored.rstrip(b"\0")

    def from_var(self, data: bytes) -> bytes:
        return data.ljust(self.width, b"\0")

    def column_to_var(self, array: pa.Array) -> tuple[Octets, Words]:
        full = self.numbers(array)
        if full is None:
            return strip_rows(pad_rows(*variable(array.fill_null(b"")), self.width))
        return strip_rows(full.reshape(-1, self.width))

    def column_from_var(self, data: Octets, ends: Words, bitmap: Any, nulls: int) -> pa.Array | None:
        count = ends.size - 1
        if count and int(np.diff(ends).max()) > self.width:
            return None
        return build_fixed(self.arrow_type(), count, pad_rows(data, ends, self.width).reshape(-1), bitmap, nulls)

    def numbers(self, array: pa.Array) -> Octets | None:
        return primitive(array, np.uint8, self.width) if kinds().is_fixed_size_binary(array.type) else None

    key_numbers = numbers

    def values_of(self, array: pa.Array) -> list[Any]:
        values: list[Any] = np.frombuffer(
            array.buffers()[1], f"V{self.width}", len(array), array.offset * self.width
        ).tolist()
        if array.null_count:
            valid = array.is_valid().to_pylist()
            values = [each if is_valid else None for each, is_valid in zip(values, valid, strict=True)]
        return values


@dataclass(frozen=True, repr=False)
class Binary(_Octets, FixedOctets, Padded):
    """`length` bytes in the fixed image; shorter values are padded with zero bytes and stay padded when loaded.

    Raises: SchemaInvalid for a length out of range.

    Examples:
        >>> tm.Column("digest", tm.Binary(4), default=b"ab").default.hex()
        '61620000'
    """

    length: int
    length_max: ClassVar[int] = limits.BINARY_LENGTH_MAX
    unit_bytes = 1
    direct = bytes
    converts = False
    collected = parsed = ("binary",)
    object_kind = "PADDED_BYTES"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._answer(digest_class=f"{self.length} bytes", arrow=("binary", self.length), numpy=f"V{self.length}")

    def stored(self, value: Any) -> bytes:
        return octets_of(value, self.length).ljust(self.length, b"\0")

    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        is_short = kinds().is_fixed_size_binary(arrow) and arrow.byte_width <= limits.BINARY_LENGTH_MAX
        return cls(arrow.byte_width) if is_short else None

    def conform(self, array: pa.Array) -> pa.Array | None:
        return array if array.type == self.arrow_type() else _octets(array, self, self.length)


@dataclass(frozen=True, repr=False)
class VarBinary(_Octets, Varying):
    """Up to `length` bytes.

    Raises: SchemaInvalid for a length out of range.

    Examples:
        >>> tm.Column("token", tm.VarBinary(32)).type
        VarBinary(32)
    """

    length: int
    length_max: ClassVar[int] = limits.VARBINARY_LENGTH_MAX
    unit_bytes = 1
    converts = False
    arrow = ("binary",)
    object_kind = "BYTES"

    def stored(self, value: Any) -> bytes:
        return octets_of(value, self.length)

    def can_become(self, other: object) -> bool:
        return isinstance(other, LongBinary) or (isinstance(other, VarBinary) and other.length >= self.length)

    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        return cls(KEY_LENGTH) if is_key and _is_of_any_size(arrow) else None

    def conform(self, array: pa.Array) -> pa.Array | None:
        return _octets(array, self, self.length)


@dataclass(frozen=True, repr=False)
class LongBinary(_Octets):
    """Up to 1 GiB of bytes."""

    keyable = False
    is_lob = True
    converts = False
    arrow = ("large_binary",)
    object_kind = "BYTES"
    object_limits = limits.LOB_BYTES_MAX, 0

    def __repr__(self) -> str:
        return "Blob"

    def stored(self, value: Any) -> bytes:
        return octets_of(value, limits.LOB_BYTES_MAX)

    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        return cls() if not is_key and _is_of_any_size(arrow) else None

    def conform(self, array: pa.Array) -> pa.Array | None:
        return _octets(array, self, limits.LOB_BYTES_MAX)


Blob = LongBinary()
register(Binary, VarBinary, Blob)
