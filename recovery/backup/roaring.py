"""Positions of rows as a 64-bit roaring bitmap, serialized as the deletion vectors of Delta tables are.

A magic number and the number of 32-bit bitmaps; for each its key (the high halves of its positions) and the portable
form of roaring bitmaps without runs: keys and sizes of its containers, their offsets, the containers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words

MAGIC = 1_681_511_377
COOKIE = 12_346  # no container has runs
ARRAY_MAX = 4_096  # a container with more positions is a bitmap
BITMAP_BYTES = 8_192
_START = struct.Struct("<iq")
_BITMAP = struct.Struct("<III")  # key, cookie, containers


def pack(positions: Words) -> bytes:
    """Return positions, which ascend, as a bitmap. Shapes: (rows,)."""
    highs, starts = np.unique(positions >> 32, return_index=True)
    pieces = [_START.pack(MAGIC, highs.size)]
    for high, part in zip(highs.tolist(), np.split(positions, starts[1:]), strict=False):
        keys, firsts = np.unique((part >> 16) & 0xFFFF, return_index=True)
        containers = [_container(each & 0xFFFF) for each in np.split(part, firsts[1:])]
        about = np.empty((keys.size, 2), dtype="<u2")
        about[:, 0] = keys
        about[:, 1] = np.diff(np.append(firsts, part.size)) - 1
        offsets = np.cumsum([8 + 8 * keys.size, *map(len, containers[:-1])])
        pieces += [_BITMAP.pack(high, COOKIE, keys.size), about.tobytes(), offsets.astype("<u4").tobytes(), *containers]
    return b"".join(pieces)


def _container(lows: Words) -> bytes:
    if lows.size <= ARRAY_MAX:
        return lows.astype("<u2").tobytes()
    bits = np.zeros(1 << 16, dtype=np.uint8)
    bits[lows] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def unpack(data: bytes) -> Words:
    """Return the positions of a bitmap that `pack` made. Raises: ValueError for any other bytes."""
    pieces: list[Any] = [np.zeros(0, dtype=np.int64)]
    try:
        _, count = _START.unpack_from(data)
        at = _START.size
        for _ in range(count):
            high, _, containers = _BITMAP.unpack_from(data, at)
            at += _BITMAP.size
            about = np.frombuffer(data, "<u2", 2 * containers, at).astype(np.int64)
            at += 8 * containers  # the offsets follow from the sizes
            for key, less in about.reshape(-1, 2).tolist():
                if less < ARRAY_MAX:
                    lows = np.frombuffer(data, "<u2", less + 1, at).astype(np.int64)
                    at += 2 * (less + 1)
                else:
                    octets = np.frombuffer(data, np.uint8, BITMAP_BYTES, at)
                    lows = np.flatnonzero(np.unpackbits(octets, bitorder="little"))
                    at += BITMAP_BYTES
                pieces.append(lows + (high << 32 | key << 16))
    except struct.error as error:
        raise ValueError(f"a roaring bitmap ends too early: {error}") from error
    found: Words = np.concatenate(pieces)
    if pack(found) != data:
        raise ValueError("no roaring bitmap as it is written")
    return found
