"""Arrow streams that came from another process, read within bounds.

Arrow believes what a stream says of itself: buffers may be compressed a thousandfold, and a column may say in a few
bytes that it has a row a million times. Invariants: nothing is decompressed; every offset has been validated; written
out row by row, the columns have at most `EXPANDED_BYTES_MAX` bytes (F108).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import FrameRejected

if TYPE_CHECKING:
    import pyarrow as pa

EXPANDED_BYTES_MAX = 1 << 30
ROWS_AT_ONCE = 1 << 20
ROW_BYTES = 8  # of each row of each column, however little the stream has of it
# Of the flat buffers of Arrow's messages: places of fields in their tables, kinds of message, the version in use.
_VERSION, _KIND, _HEADER = 0, 1, 2
_BATCH_COMPRESSION, _DICTIONARY_BATCH = 3, 1
_KIND_DICTIONARY, _KIND_BATCH = 2, 3
_VERSION_5 = 4


def read_stream(data: bytes) -> pa.Table:
    """The table a stream holds. Raises: FrameRejected for what is no Arrow stream, for compressed buffers, and for a
    table that would be larger than `EXPANDED_BYTES_MAX` bytes.
    """
    import pyarrow as pa

    try:
        _check_messages(data)
        with pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
        table.validate(full=True)  # offsets of what came are not trusted
        size = expanded_bytes(table)
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError, MemoryError) as error:
        raise FrameRejected(f"what came is no Arrow stream: {str(error)[:200]}") from None
    if size > EXPANDED_BYTES_MAX:
        raise FrameRejected(
            f"an Arrow stream of {len(data)} bytes has {size} bytes of rows, more than {EXPANDED_BYTES_MAX}; divide it",
            size=size,
            most=EXPANDED_BYTES_MAX,
        )
    return table


def read_batch(data: bytes) -> pa.RecordBatch:
    """The rows a stream holds as one batch. Raises: FrameRejected, see `read_stream`."""
    import pyarrow as pa

    table = read_stream(data).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _check_messages(data: bytes) -> None:
    """Raises: FrameRejected for a compressed message, or one of an old version, which could hide that it is."""
    import pyarrow as pa

    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(data)):
        meta = message.metadata.to_pybytes()
        root = struct.unpack_from("<I", meta)[0]
        version, kind = _field(meta, root, _VERSION), _field(meta, root, _KIND)
        if not version or struct.unpack_from("<h", meta, version)[0] != _VERSION_5:
            raise FrameRejected("an Arrow stream is of an old version; write it with Arrow 1.0 or newer")
        header = _table(meta, root, _HEADER)
        if kind and meta[kind] == _KIND_DICTIONARY:
            header = _table(meta, header, _DICTIONARY_BATCH)
        elif not kind or meta[kind] != _KIND_BATCH:
            continue
        if _field(meta, header, _BATCH_COMPRESSION):
            raise FrameRejected("an Arrow stream is compressed; send it as it is")


def _field(meta: bytes, table: int, slot: int) -> int:
    """Where a field of a table of a flat buffer stands; 0 if the table has none."""
    offsets = table - int(struct.unpack_from("<i", meta, table)[0])
    at = 4 + 2 * slot
    if offsets < 0 or at + 2 > struct.unpack_from("<H", meta, offsets)[0]:
        return 0
    found = int(struct.unpack_from("<H", meta, offsets + at)[0])
    return table + found if found else 0


def _table(meta: bytes, table: int, slot: int) -> int:
    """Where the table stands that a field refers to. Raises: ValueError if there is none."""
    at = _field(meta, table, slot)
    if not at:
        raise ValueError("a message lacks its header")
    found: int = at + struct.unpack_from("<I", meta, at)[0]
    return found


def expanded_bytes(table: pa.Table) -> int:
    """Bytes of a table's columns if each row had its own value; no less than `ROW_BYTES` for each."""
    total: int = ROW_BYTES * table.num_rows
    for column in table.columns:
        total += sum(max(ROW_BYTES * len(chunk), _expanded(chunk)) for chunk in column.chunks)
    return total


def _expanded(array: Any) -> int:
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        sizes, places = _value_sizes(array.dictionary), array.indices
        parts = (places.slice(first, ROWS_AT_ONCE).drop_null() for first in range(0, len(places), ROWS_AT_ONCE))
        return sum(int(sizes[part.to_numpy(zero_copy_only=False)].sum()) for part in parts)
    if pa.types.is_run_end_encoded(kind):
        return len(array) * int(_value_sizes(array.values).max(initial=0))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return int(_value_sizes(array).sum())
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        raise FrameRejected("an Arrow stream has a column of list views; send it as lists")
    return int(array.nbytes)


def _value_sizes(array: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Bytes of each value; of types of one width, that width."""
    import pyarrow as pa

    kind = array.type
    if not len(array):  # it may lack its buffers
        return np.zeros(0, dtype=np.int64)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], dtype=np.int32).reshape(-1, 4)
        return views[array.offset : array.offset + len(array), 0].astype(np.int64)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.diff(np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]).astype(np.int64)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return np.diff(np.frombuffer(array.buffers()[1], np.int64)[array.offset :][: len(array) + 1])
    return np.full(len(array), max(ROW_BYTES, array.nbytes // len(array)), dtype=np.int64)
