"""Read MySQL's fields from untrusted bytes, and write them.

Every read is checked against the bytes left; a read past them raises BinlogDamaged with file and position. Memory is
bounded by the given bytes.
"""

from __future__ import annotations

import struct
from typing import Any

from tidemark.engine.types.base import counted
from tidemark.replication.binlog.position import Position

_U16, _U64 = struct.Struct("<H"), struct.Struct("<Q")
_SMALL = 251  # smaller numbers are one byte
_TWO, _THREE, _EIGHT = 252, 253, 254


def packed_length(number: int) -> bytes:
    """Return a number as MySQL's length-encoded integer."""
    if number < _SMALL:
        return bytes((number,))
    if number < 1 << 16:
        return bytes((_TWO,)) + _U16.pack(number)
    if number < 1 << 24:
        return bytes((_THREE,)) + number.to_bytes(3, "little")
    return bytes((_EIGHT,)) + _U64.pack(number)


def packed_text(text: bytes) -> bytes:
    """Return a string preceded by its length, a length-encoded integer."""
    return packed_length(len(text)) + text


class Cursor:
    """A position in the bytes of one event."""

    def __init__(self, data: bytes | memoryview, origin: Position) -> None:
        self._view = memoryview(data)
        self._at = 0
        self.origin = origin

    @property
    def left(self) -> int:
        """The number of bytes not read yet."""
        return len(self._view) - self._at

    def view(self, count: int) -> memoryview:
        """Return the next `count` bytes, not copied. Raises: BinlogDamaged."""
        start = self._at
        end = start + count
        if not start <= end <= len(self._view):
            raise self.origin.damaged(f"ends {counted(count - self.left, 'byte')} too early")
        self._at = end
        return self._view[start:end]

    def take(self, count: int) -> bytes:
        """Return a copy of the next `count` bytes. Raises: BinlogDamaged."""
        return bytes(self.view(count))

    def rest(self) -> memoryview:
        """Return all bytes left, not copied."""
        return self.view(self.left)

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read the fields of a fixed part. Raises: BinlogDamaged."""
        return layout.unpack(self.view(layout.size))

    def byte(self) -> int:
        """Read one byte. Raises: BinlogDamaged."""
        return self.view(1)[0]

    def length(self) -> int:
        """Read a length-encoded integer. Raises: BinlogDamaged."""
        first = self.byte()
        if first < _SMALL:
            return first
        if first == _TWO:
            return int(self.unpack(_U16)[0])
        if first == _THREE:
            return int.from_bytes(self.view(3), "little")
        if first == _EIGHT:
            return int(self.unpack(_U64)[0])
        raise self.origin.damaged(f"has {first} instead of a length")

    def text(self, count: int) -> str:
        """Read UTF-8 text of `count` bytes. Raises: BinlogDamaged."""
        try:
            return str(self.view(count), "utf-8")
        except UnicodeDecodeError as error:
            raise self.origin.damaged("has a name that is not UTF-8") from error

    def terminated(self, count: int) -> str:
        """Read UTF-8 text of `count` bytes and the zero byte after it. Raises: BinlogDamaged."""
        text = self.text(count)
        if self.byte():
            raise self.origin.damaged("has a name without its end")
        return text
