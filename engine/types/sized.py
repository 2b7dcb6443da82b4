"""What types of characters and bytes have in common."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tidemark.engine.base.errors import SchemaInvalid, ValueOutOfRange
from tidemark.engine.base.words_layout import WORD_BYTES, words_for
from tidemark.engine.types.base import ColumnType, Octets, Words, is_int, mismatch, plain, shown

KEY_LENGTH = 255  # characters or bytes of a key column made for an Arrow type, which has no maximum


class Sized(ColumnType):
    """A type with a declared length."""

    length: int
    length_max: ClassVar[int]
    unit_bytes: ClassVar[int]  # the most of a character

    def _characters(self, value: Any) -> bytes:
        value, octets = utf8(value)
        if len(value) > self.length:
            raise too_long(self.length, "characters", value)
        return octets

    def __post_init__(self) -> None:
        if not is_int(self.length) or not 1 <= self.length <= self.length_max:
            raise SchemaInvalid(
                f"{type(self).__name__} length must be 1 to {self.length_max}, got {shown(self.length)}"
            )
        self._answer(object_limits=(self.length, 0), characters_max=self.length if self.is_text else -1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.length})"

    def to_json(self) -> dict[str, Any]:
        return {"type": type(self).__name__, "length": self.length}

    @classmethod
    def of_json(cls, given: dict[str, Any]) -> ColumnType:
        made: type[Any] = cls
        kind: ColumnType = made(given.get("length", 0))
        return kind


def utf8(value: Any) -> tuple[str, bytes]:
    value = plain(value)
    if not isinstance(value, str):
        raise mismatch("a str", value)
    try:
        return value, value.encode()
    except UnicodeEncodeError:
        raise ValueOutOfRange(f"holds valid Unicode, got a lone surrogate in {shown(value)}") from None


def octets_of(value: Any, limit: int) -> bytes:
    octets = plain(value)
    if isinstance(octets, (bytearray, memoryview)):
        octets = bytes(octets)
    if not isinstance(octets, bytes):
        raise mismatch("bytes", octets)
    if len(octets) > limit:
        raise too_long(limit, "bytes", octets)
    return octets


def too_long(limit: int, unit: str, value: Any) -> ValueOutOfRange:
    return ValueOutOfRange(f"holds {limit} {unit}, got {len(value)}: {shown(value)}")


class Padded(Sized):
    """Values of `width` bytes in the fixed image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        width = self.unit_bytes * self.length
        self._answer(width=width, code=f"{width}s", key_code=f"{width}s{-width % WORD_BYTES}x")

    def sort_key(self, stored: bytes) -> bytes:
        return stored.rstrip(b"\0")


class Varying(Sized):
    """Values of up to `bytes_max` bytes in the var part."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._answer(bytes_max=self.unit_bytes * self.length)

    @property
    def key_bytes_max(self) -> int:
        return WORD_BYTES + words_for(self.bytes_max) * WORD_BYTES


def pad_rows(data: Octets, ends: Words, width: int) -> Octets:
    """Pad values with zero bytes to full length.

    Shapes: `ends` (count + 1,), the result (count, width).
    """
    sizes = np.diff(ends)
    rows = np.zeros((sizes.size, width), np.uint8)
    rows[np.arange(width) < sizes[:, None]] = data[int(ends[0]) : int(ends[-1])]
    return rows


def strip_rows(rows: Octets) -> tuple[Octets, Words]:
    """Strip trailing zeros; returns the values and their ends (count + 1).

    Shapes: `rows` (count, width).
    """
    count, width = rows.shape
    sizes = np.where(rows != 0, np.arange(1, width + 1), 0).max(axis=1, initial=0)
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return np.ascontiguousarray(rows[np.arange(width) < sizes[:, None]]), ends
