"""Arrow streams of a peer: a stream that takes more memory or time than its bytes is refused before Arrow reads it."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from tidemark.engine.base.errors import FrameRejected, TypeMismatch
from tidemark.replication.calls.values import EXTENSIONS, pack, unpack
from tidemark.replication.wire.arrow_streams import METADATA_FACTOR, arrow_table


def stream_of(*batches: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        for batch in batches:
            stream.write(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read(data: bytes) -> pa.Table:
    return unpack(msgpack.packb(msgpack.ExtType(EXTENSIONS.index("arrow table"), data)))


def refused(data: bytes, why: str) -> None:
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    with pytest.raises(FrameRejected, match=why):
        read(data)
    assert pa.default_memory_pool().max_memory() == peak or pa.default_memory_pool().max_memory() < before + (1 << 20)


MIXED = pa.table(
    {
        "n": pa.array([1, None, 3], pa.int16()),
        "s": ["x", "", None],
        "b": [b"x", None, b"yy"],
        "w": pa.array([b"ab", b"cd", None], pa.binary(2)),
        "t": [True, None, False],
        "d": pa.array([1, None, 3], pa.decimal128(20, 2)),
        "day": pa.array([1, 2, None], pa.date32()),
        "at": pa.array([1, 2, None], pa.timestamp("us", "UTC")),
        "e": pa.array(["red", "green", "red"]).dictionary_encode(),
        "z": pa.nulls(3),
    }
)


def test_columns_of_tables_come_back_whole_sliced_and_in_many_batches() -> None:
    for table in (MIXED, MIXED.slice(1, 1), MIXED.slice(0, 0), pa.concat_tables([MIXED] * 5), MIXED.select([])):
        back = unpack(pack(table))
        assert back.equals(table) and back.schema == table.schema
    for batch in (MIXED.to_batches()[0], pa.record_batch({"a": pa.array([], pa.int32())})):
        assert unpack(pack(batch)).equals(batch)
    assert unpack(pack(pa.table({"z": pa.nulls(50_000)}))).num_rows == 50_000


def test_sender_makes_views_and_runs_plain_and_refuses_nested_columns() -> None:
    """Polars sends views; the table's own columns take the plain values."""
    words = pa.array(["a", "b", "b", None])
    sent = pa.table(
        {
            "view": words.cast(pa.string_view()),
            "octets": words.cast(pa.binary()).cast(pa.binary_view()),
            "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1, 3, 4], pa.int32()), pa.array(["a", "b", None])),
            "words": pa.DictionaryArray.from_arrays(
                pa.array([0, 1, 1, None], pa.int8()), pa.array(["a", "b"], pa.string_view())
            ),
            "own": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16] * 4, pa.binary(16))),
        }
    )
    back = unpack(pack(sent))
    assert pa.types.is_dictionary(back["words"].type)
    for name in ("view", "runs", "words"):
        assert back[name].to_pylist() == words.to_pylist()
    assert back["octets"].to_pylist() == [b"a", b"b", b"b", None] and back["own"].to_pylist() == [b"x" * 16] * 4
    for nested in (pa.array([[1]]), pa.array([{"a": 1}]), pa.array([[(1, 2)]], pa.list_(pa.list_(pa.int64())))):
        with pytest.raises(TypeMismatch, match="cannot be sent"):
            pack(pa.table({"x": nested}))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_are_refused_unread(codec: str) -> None:
    """Story: 98 KB of zstd took 3.2 GB in the process that received them."""
    table = pa.table(
        {"a": np.zeros(4_000_000), "e": pa.array(["x" * 1_000_000]).dictionary_encode().take([0] * 4_000_000)}
    )
    refused(stream_of(table.select(["a"]), compression=codec), "compressed")
    words = pa.table({"e": pa.array(["x" * 1_000_000]).dictionary_encode()})
    refused(stream_of(words, compression=codec), "compressed")


VIEWS = pa.array(["x" * 1_000] * 3, pa.string_view())


@pytest.mark.parametrize(
    "array",
    [
        VIEWS,
        pa.array([b"x"], pa.binary_view()),
        pa.RunEndEncodedArray.from_arrays(pa.array([1 << 30], pa.int32()), pa.array([1.0])),
        pa.array([[1, 2]]),
        pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
        pa.array([{"a": 1}]),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([[1, 2]])),
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), VIEWS),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16], pa.binary(16))),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    ],
    ids=lambda array: str(array.type)[:20],
)
def test_types_no_column_has_are_refused(array: Any) -> None:
    """Values of views and runs share bytes: a few bytes of them take gigabytes to validate and to decode."""
    refused(stream_of(pa.record_batch([array], names=["x"])), "types that no column has|message of|rows")


def test_dictionaries_stand_for_a_bounded_number_of_bytes() -> None:
    """Story: a column of indices into a dictionary of one long value was decoded to one copy for each row."""
    rows = 4_000
    for value in ("x" * (1 << 20), b"x" * (1 << 20)):
        words = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), pa.array([value, type(value)()]))
        refused(stream_of(pa.record_batch([words], names=["x"])), "stand for more than")
        few = pa.DictionaryArray.from_arrays(pa.array([0] + [1] * rows, pa.int8()), pa.array([value, type(value)()]))
        assert read(stream_of(pa.record_batch([few], names=["x"]))).num_rows == rows + 1
    wide = pa.array([b"x" * (1 << 20)], pa.binary(1 << 20)).dictionary_encode().take(pa.array([0] * rows))
    refused(stream_of(pa.record_batch([wide], names=["x"])), "stand for more than")
    long = pa.DictionaryArray.from_arrays(pa.array([1]), pa.array(["x" * (1 << 20), ""]))
    shared = pa.record_batch([long], names=["x"])
    refused(stream_of(*[shared] * 1_100), "stand for more than")  # each batch would validate it once more


def test_dictionary_in_parts_is_refused() -> None:
    """Each part would be joined with all parts before it, again for every batch."""
    one = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["a"]))
    two = pa.DictionaryArray.from_arrays(pa.array([1]), pa.array(["a", "b"]))
    batches = [pa.record_batch([each], names=["x"]) for each in (one, two)]
    assert read(stream_of(*batches)).column("x").to_pylist() == ["a", "b"]
    refused(stream_of(*batches, emit_dictionary_deltas=True), "dictionary in parts")


def changed(data: bytes, find: bytes, put: bytes) -> bytes:
    assert data.count(find) == 1, data.count(find)
    return data.replace(find, put)


def test_batch_whose_buffers_are_more_than_its_bytes_is_refused() -> None:
    """Columns may refer to the same bytes: a thousand columns a thousand times."""
    data = stream_of(pa.table({"a": np.arange(100), "b": np.ones(100, np.int32), "c": np.ones(100, np.int16)}))
    assert read(data).num_rows == 100
    for size in (408, 1_400, 1 << 40, -8):
        refused(changed(data, struct.pack("<q", 400), struct.pack("<q", size)), "has buffers of more")
    refused(changed(data, struct.pack("<q", 400), struct.pack("<q", 100)), "not an Arrow stream")


def test_rows_that_take_no_bytes_are_bounded() -> None:
    """A column of NULLs has no buffers, whatever number of rows it claims."""
    refused(stream_of(pa.record_batch([pa.nulls(1 << 28)], names=["x"])), "rows")
    refused(stream_of(*[pa.record_batch([pa.nulls(60_000)], names=["x"])] * 30), "rows")
    data = stream_of(pa.table({"x": np.arange(4_321)}))
    for rows in (-1, 1 << 60, -(1 << 63)):
        refused(data.replace(struct.pack("<q", 4_321), struct.pack("<q", rows)), "says it has .* rows")


def test_room_is_asked_for_what_describes_the_batches() -> None:
    batch = pa.record_batch([pa.array([1], pa.int8())] * 200, names=[f"c{number}" for number in range(200)])
    data = stream_of(*[batch] * 20)
    asked: list[int] = []
    arrow_table(data, asked.append)
    assert len(asked) == 21 and sum(asked) > METADATA_FACTOR * 20 * 200 * 48

    class NoRoom(Exception):
        pass

    def none(count: int) -> None:
        raise NoRoom

    with pytest.raises(NoRoom):
        arrow_table(data, none)


def test_streams_of_other_things_are_refused() -> None:
    good = stream_of(MIXED)
    schema = MIXED.schema.serialize().to_pybytes()
    for data in (b"", b"none", good[: len(good) // 2], good[8:], schema + schema, good[len(schema) :], b"\xff" * 100):
        refused(data, "Arrow")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, MIXED.schema) as file:
        file.write_table(MIXED)
    refused(sink.getvalue().to_pybytes(), "Arrow")


def test_texts_that_begin_outside_their_bytes_are_refused() -> None:
    offsets = pa.py_buffer(np.array([0, 1 << 20, 2], dtype=np.int32))
    outside = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"xy"))
    with pytest.raises(FrameRejected, match="not an Arrow stream"):
        unpack(pack(pa.table({"a": outside})))
