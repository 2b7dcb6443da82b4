"""Converts Arrow tables to bytes, and a peer's bytes to Arrow tables. Memory is checked against a limit before it is
allocated.

The bytes are an Arrow IPC stream, limited to the types from which columns of tables are written and into which they are
read: plain types, and dictionaries of them. Compressed buffers are refused unread, because 100 KB of them may expand to
gigabytes. Views, runs and nested types are refused because their values may share bytes: a few bytes then cost much to
validate, decode and copy. Before Arrow reads a batch, the sizes of its buffers are checked against the bytes of the
batch. Then everything is validated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import FrameRejected, TypeMismatch

if TYPE_CHECKING:
    import pyarrow as pa

Room = Callable[[int], None]

METADATA_BYTES_MAX = 16 << 20
# Approximate bytes of arrays per byte of metadata: 16 bytes describe a column of NULLs.
METADATA_FACTOR = 32
# Limit of decoded dictionary values, one copy for each row, plus the dictionaries, each counted for every batch that
# uses it.
DECODED_BYTES_MAX = 1 << 30
# A row takes at least one bit, unless all columns are NULLs.
ROWS_PER_BYTE = 8
ROWS_FREE = 1 << 16
# Field numbers in the tables of Arrow's Message.fbs and Schema.fbs.
_HEADER, _DATA, _IS_DELTA, _ROWS, _BUFFERS, _COMPRESSION = 2, 1, 2, 0, 2, 3


# --- out ------------------------------------------------------------------------------------------
def arrow_bytes(schema: pa.Schema, batches: list[pa.RecordBatch]) -> bytes:
    """Return batches as an Arrow stream; views and runs become plain columns. Raises: TypeMismatch for nested types."""
    import pyarrow as pa

    plain = pa.schema([each.with_type(_plain(each.type)) for each in schema], schema.metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain) as stream:
        for batch in batches:
            stream.write_batch(batch if plain.types == schema.types else _made_plain(batch, plain))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column is sent. Raises: TypeMismatch."""
    import pyarrow as pa

    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if types.is_run_end_encoded(kind):
        return _plain(kind.value_type)
    if types.is_dictionary(kind) and types.is_string_view(kind.value_type):
        return pa.dictionary(kind.index_type, pa.large_string(), kind.ordered)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if not is_plain(kind):
        raise TypeMismatch(f"a column of Arrow type {kind} cannot be sent; cast it first")
    return kind


def _made_plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    arrays = []
    for column, kind in zip(batch.columns, schema.types, strict=True):
        array = column.storage if isinstance(column, pa.ExtensionArray) else column
        if pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        if pa.types.is_dictionary(array.type) and array.type != kind:
            array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(kind.value_type))
        arrays.append(array if array.type == kind else array.cast(kind))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def is_plain(kind: pa.DataType) -> bool:
    """Whether a column of the type may be sent: its values share no bytes, or it is a dictionary of such values."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    numbers = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    times = (types.is_date, types.is_time, types.is_timestamp, types.is_duration)
    return any(test(kind) for test in (*numbers, *times, *texts, types.is_fixed_size_binary))


# --- in -------------------------------------------------------------------------------------------
def arrow_table(payload: bytes, room: Room) -> pa.Table:
    """Return the table of a stream, fully validated; it shares memory with the payload. room: called with the bytes of
    additional memory, before they are allocated. Raises: FrameRejected; errors of `room`.
    """
    import pyarrow as pa

    try:
        _judge(payload, room)
        with pa.ipc.open_stream(payload) as stream:
            if not all(map(is_plain, stream.schema.types)):
                raise FrameRejected(f"an Arrow stream has types that no column has: {stream.schema.types}"[:200])
            table = stream.read_all()
        table.validate()  # checks lengths; before that, `nbytes` and the like are unsafe
        _judge_dictionaries(table)
        table.validate(full=True)  # offsets from a peer are not trusted
        return table
    except (pa.ArrowException, OSError, struct.error, ValueError, LookupError, NotImplementedError) as error:
        raise FrameRejected(f"the data received is not an Arrow stream: {error}") from None


def arrow_batch(payload: bytes, room: Room) -> pa.RecordBatch:
    """Return the rows of a stream as one batch; see `arrow_table`."""
    import pyarrow as pa

    table = arrow_table(payload, room)
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def no_limit(count: int) -> None:
    """Accept any number of bytes: a `room` that adds no limit to those of one stream or one value."""


def _judge(payload: bytes, room: Room) -> None:
    """Check the metadata of each message of a stream.

    Raises: FrameRejected; struct.error and others, which `arrow_table` turns into FrameRejected.
    """
    import pyarrow as pa

    rows = described = 0
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(payload)):
        if message.metadata_version != pa.ipc.MetadataVersion.V5:
            raise FrameRejected(
                "an Arrow stream is of a version that can hide that it is compressed; use Arrow 1.0 or newer"
            )
        metadata = message.metadata.to_pybytes()
        described += len(metadata)
        if described > METADATA_BYTES_MAX:
            raise FrameRejected(
                f"an Arrow stream has more than {METADATA_BYTES_MAX >> 20} MiB that describe its batches"
            )
        room(METADATA_FACTOR * len(metadata))
        is_first = number == 0
        if (message.type == "schema") != is_first or message.type not in ("schema", "record batch", "dictionary"):
            raise FrameRejected(f"an Arrow stream has a message of {message.type} where none is allowed")
        if not is_first:
            rows += _judge_batch(metadata, message.type == "dictionary", message.body.size)
    if rows > max(ROWS_FREE, ROWS_PER_BYTE * len(payload)):
        raise FrameRejected(f"an Arrow stream of {len(payload)} bytes says it has {rows} rows")


def _judge_batch(metadata: bytes, is_dictionary: bool, body_bytes: int) -> int:
    """Return the number of rows of a batch. Raises: FrameRejected if its buffers are compressed or exceed its body."""
    batch = _table_of(metadata, struct.unpack_from("<I", metadata)[0], _HEADER)
    if is_dictionary:
        delta = _field(metadata, batch, _IS_DELTA)
        if delta is not None and metadata[delta]:
            raise FrameRejected("an Arrow stream has a dictionary in parts")
        batch = _table_of(metadata, batch, _DATA)
    if _field(metadata, batch, _COMPRESSION) is not None:
        raise FrameRejected("an Arrow stream has compressed buffers; write them without compression")
    at = _field(metadata, batch, _ROWS)
    rows = 0 if at is None else int(struct.unpack_from("<q", metadata, at)[0])
    at = _field(metadata, batch, _BUFFERS)
    if at is not None:
        at += struct.unpack_from("<I", metadata, at)[0]
        count = struct.unpack_from("<I", metadata, at)[0]
        sizes = np.frombuffer(metadata, dtype="<i8", count=2 * count, offset=at + 4)[1::2]
        if count and (sizes.min() < 0 or sizes.max() > body_bytes or sizes.sum() > body_bytes):
            raise FrameRejected(f"an Arrow batch of {body_bytes} bytes has buffers of more")
    if rows < 0:
        raise FrameRejected(f"an Arrow batch says it has {rows} rows")
    return rows


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return the offset of a field of a FlatBuffers table; None if it has its default."""
    descriptor = table - struct.unpack_from("<i", data, table)[0]
    place = 4 + 2 * number
    if descriptor < 0 or place >= struct.unpack_from("<H", data, descriptor)[0]:
        return None
    offset = struct.unpack_from("<H", data, descriptor + place)[0]
    return table + offset if offset else None


def _table_of(data: bytes, table: int, number: int) -> int:
    """Return the offset of the table that a field refers to. Raises: FrameRejected if there is none."""
    at = _field(data, table, number)
    if at is None:
        raise FrameRejected("an Arrow message is empty")
    return at + int(struct.unpack_from("<I", data, at)[0])


def _judge_dictionaries(table: pa.Table) -> None:
    """Raises: FrameRejected if decoding dictionaries, or validating them for each batch, would take too much."""
    import pyarrow as pa

    total = 0
    for column in table.columns:
        for chunk in column.chunks if pa.types.is_dictionary(column.type) else ():
            words = chunk.dictionary
            total += words.nbytes
            if total <= DECODED_BYTES_MAX:
                words.validate(full=True)
                total += _decoded_bytes(words, chunk.indices)
            if total > DECODED_BYTES_MAX:
                raise FrameRejected(f"dictionaries of an Arrow table stand for more than {DECODED_BYTES_MAX >> 20} MiB")


def _decoded_bytes(words: pa.Array, places: pa.Array) -> int:
    """Return the bytes that the values of all rows take when decoded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, words.type
    if any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)):
        return int(pc.sum(pc.binary_length(words).take(places)).as_py() or 0)
    return 0 if types.is_null(kind) else len(places) * (kind.bit_width + 7) // 8
