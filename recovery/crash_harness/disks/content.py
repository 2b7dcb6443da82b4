"""Content of a file in memory, in blocks that copies share: thousands of disks differ in a few blocks.

Invariants: blocks are never changed, only replaced; a block of zeros is the one object ZEROS; bytes past the size in
the last block are zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

BLOCK_BYTES = 4_096
ZEROS = bytes(BLOCK_BYTES)


class Content:
    """Bytes that can be read, written and truncated like a bytearray; copies are cheap, since they share blocks."""

    __slots__ = ("_blocks", "_size")

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self._blocks: list[bytes] = []
        self._size = 0
        self.extend(data)

    def copy(self) -> Content:
        """Return an independent copy."""
        other = Content()
        other._blocks = self._blocks[:]
        other._size = self._size
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Content:
        return self.copy()

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return bytes(self[: self._size])

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and bytes of every block that is not all zeros."""
        return ((number, block) for number, block in enumerate(self._blocks) if block is not ZEROS)

    def grow(self, size: int) -> None:
        """Grow to at least `size` bytes, with zeros at the end."""
        self._size = max(self._size, size)
        self._blocks += [ZEROS] * (-(-self._size // BLOCK_BYTES) - len(self._blocks))

    def extend(self, data: bytes | bytearray) -> None:
        start = self._size
        self.grow(start + len(data))
        self._put(start, bytes(data))

    def __iadd__(self, data: bytes) -> Content:
        self.extend(data)
        return self

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, slice):
            return self._blocks[key // BLOCK_BYTES][key % BLOCK_BYTES]
        start, stop, _ = key.indices(self._size)
        if stop <= start:
            return b""
        first, offset = divmod(start, BLOCK_BYTES)
        whole = b"".join(self._blocks[first : (stop - 1) // BLOCK_BYTES + 1])
        return whole[offset : offset + stop - start]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set one byte, or a slice by as many bytes; past the end it grows the content."""
        if not isinstance(key, slice):
            self._put(key, bytes([value]))
            return
        start, data = key.start or 0, bytes(value)
        self.grow(start + len(data))
        self._put(start, data)

    def _put(self, start: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            number, offset = divmod(start + at, BLOCK_BYTES)
            part = data[at : at + BLOCK_BYTES - offset]
            old = self._blocks[number]
            new = part if len(part) == BLOCK_BYTES else old[:offset] + part + old[offset + len(part) :]
            self._blocks[number] = ZEROS if new == ZEROS else new
            at += len(part)

    def __delitem__(self, key: slice) -> None:
        """Truncate to the start of the slice."""
        size = min(key.start, self._size)
        del self._blocks[-(-size // BLOCK_BYTES) :]
        if size % BLOCK_BYTES:
            last = self._blocks[-1][: size % BLOCK_BYTES]
            new = last + bytes(BLOCK_BYTES - len(last))
            self._blocks[-1] = ZEROS if new == ZEROS else new
        self._size = size
