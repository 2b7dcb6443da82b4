"""Values of added columns, which are in the var part whatever their type (D1).

Var types and Char are stored as their bytes; Binary without trailing zeros, as column kernels see it in a fixed part;
every other type as its bytes in a fixed image.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import PageDamaged
from tidemark.engine.schema.types_text import Binary, Char

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tidemark.engine.schema.types_base import ColumnType

    Octets = NDArray[np.uint8]
    Ends = NDArray[np.int64]


@lru_cache(maxsize=64)
def _packer(code: str) -> struct.Struct:
    return struct.Struct("<" + code)


def is_plain(kind: ColumnType) -> bool:
    """Whether values go into a var part unchanged."""
    return kind.is_var or isinstance(kind, Char)


def to_var(kind: ColumnType, stored: Any) -> bytes:
    """Return the bytes in a var part of a stored value that is not None."""
    if is_plain(kind):
        plain: bytes = stored
        return plain
    if isinstance(kind, Binary):
        return bytes(stored).rstrip(b"\0")
    return _packer(kind.code).pack(stored)


def from_var(kind: ColumnType, data: bytes) -> Any:
    """Return the stored value of bytes in a var part. Raises: PageDamaged if the type has no value of that length."""
    if is_plain(kind):
        return data
    if isinstance(kind, Binary):
        return data.ljust(kind.length, b"\0")
    if len(data) != kind.width:
        raise PageDamaged("an added column holds bytes that are not a value; run `tidemark check`")
    return _packer(kind.code).unpack(data)[0]


def pad_rows(data: Octets, ends: Ends, width: int) -> Octets:
    """Pad the values of a Binary column to full length.

    Shapes: `ends` (count + 1,), the result (count, width).
    """
    sizes = np.diff(ends)
    rows = np.zeros((sizes.size, width), np.uint8)
    rows[np.arange(width) < sizes[:, None]] = data[int(ends[0]) : int(ends[-1])]
    return rows


def strip_rows(rows: Octets) -> tuple[Octets, Ends]:
    """Strip trailing zeros; returns the values and their ends (count + 1).

    Shapes: `rows` (count, width).
    """
    count, width = rows.shape
    sizes = np.where(rows != 0, np.arange(1, width + 1), 0).max(axis=1, initial=0)
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return np.ascontiguousarray(rows[np.arange(width) < sizes[:, None]]), ends
