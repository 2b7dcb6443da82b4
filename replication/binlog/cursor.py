"""Reading MySQL's fields out of bytes nobody vouches for, and writing them.

Nothing is taken on trust: every read is checked against what is left, and a violation is BinlogDamaged with file and
position. Memory taken is that of the bytes given.
"""

from __future__ import annotations

import struct
from typing import Any

from tidemark.replication.binlog.errors import Origin

_U16, _U32, _U64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")
_SMALL = 251  # smaller numbers are one byte
_TWO, _THREE, _EIGHT = 252, 253, 254


def packed_length(number: int) -> bytes:
    """MySQL's length-encoded integer."""
    if number < _SMALL:
        return bytes((number,))
    if number < 1 << 16:
        return bytes((_TWO,)) + _U16.pack(number)
    if number < 1 << 24:
        return bytes((_THREE,)) + number.to_bytes(3, "little")
    return bytes((_EIGHT,)) + _U64.pack(number)


def packed_text(text: bytes) -> bytes:
    """A string behind its length-encoded length."""
    return packed_length(len(text)) + text


class Cursor:
    """A place in the bytes of one event."""

    def __init__(self, data: bytes | memoryview, origin: Origin) -> None:
        self._view = memoryview(data)
        self._at = 0
        self.origin = origin

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._view) - self._at

    def view(self, count: int) -> memoryview:
        """The next `count` bytes, not copied. Raises: BinlogDamaged."""
        start = self._at
        end = start + count
        if not start <= end <= len(self._view):
            raise self.origin.damaged(f"ends {count - self.left} bytes too early")
        self._at = end
        return self._view[start:end]

    def take(self, count: int) -> bytes:
        """The next `count` bytes. Raises: BinlogDamaged."""
        return bytes(self.view(count))

    def rest(self) -> memoryview:
        """All that is left, not copied."""
        return self.view(self.left)

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Fields of a fixed part. Raises: BinlogDamaged."""
        return layout.unpack(self.view(layout.size))

    def byte(self) -> int:
        """One byte. Raises: BinlogDamaged."""
        return self.view(1)[0]

    def length(self) -> int:
        """A length-encoded integer. Raises: BinlogDamaged."""
        first = self.byte()
        if first < _SMALL:
            return first
        if first == _TWO:
            return int(self.unpack(_U16)[0])
        if first == _THREE:
            return int.from_bytes(self.view(3), "little")
        if first == _EIGHT:
            return int(self.unpack(_U64)[0])
        raise self.origin.damaged(f"has {first} in the place of a length")

    def text(self, count: int) -> str:
        """UTF-8 of so many bytes. Raises: BinlogDamaged."""
        try:
            return str(self.view(count), "utf-8")
        except UnicodeDecodeError as error:
            raise self.origin.damaged("has a name that is no UTF-8") from error

    def terminated(self, count: int) -> str:
        """UTF-8 of so many bytes and the zero byte behind them. Raises: BinlogDamaged."""
        text = self.text(count)
        if self.byte():
            raise self.origin.damaged("has a name without its end")
        return text
