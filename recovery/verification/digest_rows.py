"""Digests of rows in Arrow arrays: 128 bits that depend on the values, not on the arrays' layout (docs/verify.md, 2).

An array of lanes has two words for each row. `digest_ranges.py` decides which rows go into which range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base.column_buffers import NO_BYTES, primitive, validity, variable
from tidemark.engine.base.errors import InvariantBroken, Unsupported
from tidemark.recovery.verification.digests_kernels import begin_digests, finish_digests, fold_bytes, fold_words

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.memory.arena import Words

PLACE_BITS = 63


def fold(lanes: Words, array: pa.Array, count: int) -> None:
    """Fold a column into the lanes of `count` rows. Raises: Unsupported for a type that no column has."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    bitmap, first_bit = validity(array)
    is_variable = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_variable or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        _fold_bytes(lanes, *variable(array), bitmap, first_bit, count)
    elif pa.types.is_fixed_size_binary(kind):
        size = kind.byte_width
        data = primitive(array, np.uint8, size)
        _fold_bytes(lanes, data, np.arange(count + 1, dtype=np.int64) * size, bitmap, first_bit, count)
    else:
        words, units = _words_of(array)
        _check_status(fold_words(lanes, words, units, bitmap, first_bit, count))


def _fold_bytes(
    lanes: Words, data: NDArray[np.uint8], ends: Words, bitmap: NDArray[np.uint8], first_bit: int, count: int
) -> None:
    """Fold bytes; they are copied into words, which kernels read eight bytes at a time."""
    first, last = (int(ends[0]), int(ends[count])) if count else (0, 0)
    words = np.zeros(-(-(last - first) // 8) + 1, dtype=np.int64)
    words.view(np.uint8)[: last - first] = data[first:last]
    _check_status(fold_bytes(lanes, words, ends - first if first else ends, bitmap, first_bit, count))


def _words_of(array: pa.Array) -> tuple[Words, int]:
    """Return (words, words per row) of a column of fixed size."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_decimal128(kind):
        return primitive(array, np.int64, 2), 2
    if pa.types.is_boolean(kind):
        buffer = array.buffers()[1]
        octets = NO_BYTES if buffer is None else np.frombuffer(buffer, np.uint8)
        bits = np.unpackbits(octets, bitorder="little")
        values: NDArray[Any] = bits[array.offset : array.offset + len(array)]
        return values.astype(np.int64), 1
    is_number = pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)
    # Only one unit of time is accepted: in another unit the same time would be another word.
    is_time = kind in (pa.date32(), pa.time64("us")) or (pa.types.is_timestamp(kind) and kind.unit == "us")
    if not (is_number or is_time):
        raise Unsupported(f"a column of Arrow type {kind} has no digest; cast it to a type of the store")
    width = kind.bit_width
    values = primitive(array, np.dtype(f"{'u' if pa.types.is_unsigned_integer(kind) else 'i'}{width // 8}"))
    return (values.view(np.int64) if width == 64 else values.astype(np.int64)), 1


def _check_status(status: int) -> None:
    if status < 0:
        raise InvariantBroken("a column's buffers are shorter than its rows; report this")


def digests(columns: Sequence[pa.Array], count: int) -> Words:
    """Return the digests of rows over these columns, in this order. Shape: (2 * count,), pairs of lanes."""
    lanes = np.empty(2 * count, dtype=np.int64)
    _check_status(begin_digests(lanes, count))
    for column in columns:
        fold(lanes, column, count)
    _check_status(finish_digests(lanes, count))
    return lanes


def key_places(keys: Words) -> Words:
    """Return the place of each row by key: 63 bits of the digest of its primary key. Shapes: (2 * rows,) in, (rows,)
    out, not negative.
    """
    return (keys[0::2] >> 1) & ((1 << PLACE_BITS) - 1)
