"""Arrow buffers as flat NumPy arrays and back; only unaligned buffers and 32-bit offsets are copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

NO_BYTES: NDArray[np.uint8] = np.zeros(0, np.uint8)
NO_WORDS: NDArray[np.int64] = np.zeros(0, np.int64)


def _view(buffer: Any, dtype: Any, first: int, count: int) -> NDArray[Any]:
    if buffer is None or count == 0:
        return np.zeros(0, dtype)
    kind = np.dtype(dtype)
    view = np.frombuffer(buffer, kind, count, first * kind.itemsize)
    # Buffers from files and pipes may be unaligned; kernels are compiled for aligned memory.
    return view if view.flags.aligned else view.copy()


def primitive(array: pa.Array, dtype: Any, units: int = 1) -> NDArray[Any]:
    """Return the values of a fixed-width array as (length × units,) of `dtype`. Values under nulls are undefined;
    without a buffer all values are zero.
    """
    count = len(array) * units
    buffer = array.buffers()[1]
    return np.zeros(count, dtype) if buffer is None else _view(buffer, dtype, array.offset * units, count)


def validity(array: pa.Array) -> tuple[NDArray[np.uint8], int]:
    """Return the validity bitmap and the offset of its first bit; an empty bitmap if there are no nulls."""
    buffer = array.buffers()[0]
    if buffer is None or array.null_count == 0:
        return NO_BYTES, 0
    return _view(buffer, np.uint8, 0, buffer.size), array.offset


def variable(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes and int64 offsets (length + 1) of a (large) string or binary array."""
    import pyarrow as pa

    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return NO_BYTES, np.zeros(len(array) + 1, np.int64)
    ends = _view(offsets, np.int64 if large else np.int32, array.offset, len(array) + 1)
    values = NO_BYTES if data is None else _view(data, np.uint8, 0, data.size)
    return values, ends if large else ends.astype(np.int64)


def build_fixed(kind: pa.DataType, count: int, data: NDArray[Any], bitmap: Any, nulls: int) -> pa.Array:
    """Return an Arrow array over `data`; `bitmap` may be None without nulls."""
    import pyarrow as pa

    return pa.Array.from_buffers(kind, count, [pa.py_buffer(bitmap) if nulls else None, pa.py_buffer(data)], nulls)


def build_variable(
    kind: pa.DataType, count: int, ends: NDArray[np.int64], data: NDArray[np.uint8], bitmap: Any, nulls: int
) -> pa.Array:
    """Return an Arrow string or binary array; large types keep int64 offsets.

    For other types the caller has checked that offsets fit 31 bits.
    """
    import pyarrow as pa

    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    offsets = ends if large else ends.astype(np.int32)
    return pa.Array.from_buffers(
        kind,
        count,
        [pa.py_buffer(bitmap) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(data)],
        nulls,
    )
