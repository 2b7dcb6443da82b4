"""Naive twins of `recovery/verification/digests_kernels.py`: digests of Python values, and entries
chosen one by one.
"""

from __future__ import annotations

import struct
from typing import Any

MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & MASK


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * P2 & MASK
    value = (value ^ value >> 29) * P3 & MASK
    return value ^ value >> 32


def words_of(value: Any, kind: str) -> list[int] | None:
    """The words a value folds in; None for NULL. kind: "integer", "single", "double", "decimal", "bytes"."""
    if value is None:
        return None
    if kind == "integer":
        return [int(value) & MASK]
    if kind == "single":
        return [struct.unpack("<i", struct.pack("<f", value))[0] & MASK]
    if kind == "double":
        return [struct.unpack("<Q", struct.pack("<d", value))[0]]
    if kind == "decimal":
        return [value & MASK, value >> 64 & MASK]
    data = value.encode() if isinstance(value, str) else value
    padded = data + bytes(-len(data) % 8)
    return [len(data), *struct.unpack(f"<{len(padded) // 8}Q", padded)]


def digest(values: list[Any], kinds: list[str]) -> tuple[int, int]:
    """The digest of a row."""
    a, b = P4, P5
    for value, kind in zip(values, kinds, strict=True):
        words = words_of(value, kind)
        if words is None:
            a = _rotate(a ^ P5, 17) * P3 & MASK
            b = _rotate((b + P1) & MASK, 43) * P5 & MASK
            continue
        for word in words:
            a = _rotate((a + word * P2) & MASK, 31) * P1 & MASK
            b = _rotate((b ^ word) * P4 & MASK, 29) * P2 & MASK
    return _mixed(a), _mixed(b)


def summed(rows: list[tuple[int, int]]) -> tuple[int, int, int]:
    """The sum of digests."""
    return len(rows), sum(row[0] for row in rows) & MASK, sum(row[1] for row in rows) & MASK
