"""Data that is small when sent and large when read (F108): refused before it is read, in links and in files.

Story: rows of first copies and tables in calls are Arrow streams. Arrow decompresses streams that declare a
compression, and believes lengths without bytes: 3 kB became 80 MB, and 256 MiB, the limit of a call, would have become
terabytes.
"""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from tidemark.engine.base.errors import FrameRejected
from tidemark.replication.calls.values import EXTENSIONS, unpack
from tidemark.replication.channel.first_copy import CopiedRows
from tidemark.replication.wire.arrow_streams import arrow_table, no_limit
from tidemark.replication.wire.copying import CopySession, pieces_of
from tidemark.replication.wire.frame_layout import FRAME_COPIED
from tidemark.replication.wire.frames import Frame, FrameWriter

MIB = 1 << 20


def stream_of(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def as_call(data: bytes) -> bytes:
    """Return a value of a call that holds a stream."""
    packed: bytes = msgpack.packb(msgpack.ExtType(EXTENSIONS.index("arrow table"), data))
    return packed


def refused(data: bytes, match: str) -> None:
    """Check that each reader of such streams refuses it, without memory for its claimed size."""
    name = b"d.t"
    copied = struct.pack("<BBH", 2, 1, len(name)) + name + data
    for read in (
        lambda: arrow_table(data, no_limit),
        lambda: unpack(as_call(data)),
        lambda: CopySession(FrameWriter(), b"", print, 0.0).receive(Frame(FRAME_COPIED, copied), 0.0),
    ):
        arrow_bytes = pa.total_allocated_bytes()
        tracemalloc.start()
        with pytest.raises(FrameRejected, match=match):
            read()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 8 * MIB + 5 * len(data), f"{peak} bytes for {len(data)}"
        assert pa.total_allocated_bytes() - arrow_bytes < MIB


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("what", ["rows", "dictionary"])
def test_compressed_stream_is_refused_before_it_is_decompressed(codec: str, what: str) -> None:
    column = pa.array([0] * MIB)
    if what == "dictionary":
        column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([0] * MIB))
    data = stream_of(pa.table({"id": column}), compression=codec)
    assert len(data) < MIB // 10
    refused(data, "compressed")


def test_dictionary_that_alone_is_compressed_is_refused() -> None:
    """Story: a mutant that checked only batches of rows showed that this test was missing."""
    table = pa.table({"id": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([0] * MIB))})
    plain, squeezed = stream_of(table), stream_of(table, compression="zstd")
    parts = [list(pa.ipc.MessageReader.open_stream(pa.BufferReader(data))) for data in (plain, squeezed)]
    chosen = (parts[0][0], parts[1][1], parts[0][2])
    assert [message.type for message in chosen] == ["schema", "dictionary", "record batch"]
    data = b"".join(message.serialize().to_pybytes() for message in chosen) + b"\xff\xff\xff\xff" + bytes(4)
    with pa.ipc.open_stream(data) as stream:
        assert stream.read_all().equals(table), "Arrow itself reads it"
    refused(data, "compressed")


def test_stream_of_a_version_that_could_hide_its_compression_is_refused() -> None:
    data = stream_of(pa.table({"id": [1, 2]}), metadata_version=pa.ipc.MetadataVersion.V4)
    refused(data, "can hide that it is compressed")


def long_dictionary() -> pa.Array:
    places = pa.array(np.zeros(MIB, dtype=np.int8))
    return pa.DictionaryArray.from_arrays(places, pa.array(["x" * 2_000]))


BOMBS = {
    "a dictionary's long value in every row": long_dictionary,
    "runs": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([1 << 30], pa.int64()), pa.array([7], pa.int64())),
    "views of one long value": lambda: views(MIB, 2_000),
    "no bytes at all": lambda: pa.Array.from_buffers(pa.null(), 1 << 30, [None]),
    "structs without fields": lambda: pa.Array.from_buffers(pa.struct([]), 1 << 30, [None]),
}


def views(rows: int, size: int) -> pa.Array:
    """Return a string column; each row is a view of the same bytes."""
    entry = np.frombuffer(struct.pack("<i4sii", size, b"xxxx", 0, 0), dtype=np.int32)
    buffers = [None, pa.py_buffer(np.tile(entry, rows).tobytes()), pa.py_buffer(b"x" * size)]
    return pa.Array.from_buffers(pa.string_view(), rows, buffers)


@pytest.mark.parametrize("what", BOMBS)
def test_column_that_says_it_is_larger_than_any_may_be_is_refused(what: str) -> None:
    data = stream_of(pa.table({"n": BOMBS[what]()}))
    assert len(data) < 17 * MIB
    refused(data, "stand for more|has types that no column has|says it has")


def test_rows_of_a_copy_come_as_they_are() -> None:
    table = pa.table({"id": pa.array(range(1_000)), "flag": pa.array([True, None] * 500), "text": ["x"] * 1_000})
    (piece,) = pieces_of(each for each in [CopiedRows("d.t", table.to_batches()[0])])
    taken: list[Any] = []
    CopySession(FrameWriter(), b"", taken.append, 0.0).receive(Frame(FRAME_COPIED, piece), 0.0)
    assert taken[0].rows.equals(table.to_batches()[0])


def test_bytes_of_a_stream_changed_anywhere_are_refused_or_read() -> None:
    table = pa.table({"id": pa.array(range(20)), "kind": pa.array(["a", "bb"] * 10).dictionary_encode()})
    data = stream_of(table)
    refusals = 0
    for at in range(len(data)):
        for value in (data[at] ^ 0x80, 0xFF):
            changed = bytearray(data)
            changed[at] = value
            try:
                arrow_table(bytes(changed), no_limit)
            except FrameRejected:
                refusals += 1
    assert refusals > len(data) // 4
