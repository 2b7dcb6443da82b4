"""A pickle as payload is plain bytes to every reader (F107): refused or kept, never executed.

Story: the only check was the rule that no module imports pickle. It does not cover libraries that unpickle for their
callers, as Arrow once did for a type named in a stream.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from tests.recovery.support import make_history, with_body
from tests.replication.doubles import REPLICA, SECRET, SOURCE
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.base.errors import Error, FrameRejected
from tidemark.engine.programs.interpreter import Program
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.load.job import LoadJob
from tidemark.replication.calls.values import EXTENSIONS, unpack
from tidemark.replication.node_group.codec import decode
from tidemark.replication.wire.arrow_streams import arrow_table, no_limit
from tidemark.replication.wire.copying import CopySession, unpack_request
from tidemark.replication.wire.frame_layout import FRAME_COPIED
from tidemark.replication.wire.frames import Frame, FrameReader, FrameWriter
from tidemark.replication.wire.handshake import CalledHandshake, CallerHandshake
from tidemark.replication.wire.messages import Acknowledge, Events, Heartbeat, Settings, Start

EXECUTED: list[str] = []


def carry_out(what: str) -> str:
    """Record a call from a pickle."""
    EXECUTED.append(what)
    return what


class Payload:
    """Unpickling it calls `carry_out`."""

    def __reduce__(self) -> tuple[Callable[[str], str], tuple[str]]:
        return carry_out, ("a pickle was carried out",)


PICKLES = [pickle.dumps(Payload(), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]


@pytest.fixture(autouse=True)
def _nothing_is_carried_out() -> Any:
    pickle.loads(PICKLES[0])
    assert EXECUTED, "the payload does nothing"
    EXECUTED.clear()
    yield
    assert EXECUTED == []


def of_session(data: bytes) -> list[Callable[[], object]]:
    """Return every function that reads the payload of a frame."""
    reader, writer = FrameReader(), FrameWriter()
    called = CalledHandshake(SOURCE, SECRET, bytes(32), reader, writer)
    caller = CallerHandshake(REPLICA, SECRET, bytes(32), reader, writer)
    return [
        lambda: list(FrameReader().feed(data + bytes(64))),
        *(
            lambda side=side, kind=kind: side.receive(Frame(kind, data))
            for side in (called, caller)
            for kind in range(1, 8)
        ),
        lambda: Start.unpack(data),
        lambda: Events.unpack(data),
        lambda: Heartbeat.unpack(data),
        lambda: Acknowledge.unpack(data),
        lambda: Settings.unpack(data),
        lambda: unpack_request(data),
        lambda: arrow_table(data, no_limit),
        lambda: CopySession(writer, b"", print, 0.0).receive(Frame(FRAME_COPIED, b"\x01\x01" + data), 0.0),
        lambda: CopySession(writer, b"", print, 0.0).receive(Frame(FRAME_COPIED, b"\x02\x01\x01\x00t" + data), 0.0),
    ]


@pytest.mark.parametrize("data", PICKLES, ids=lambda data: f"{len(data)} bytes")
def test_pickle_as_the_payload_of_a_frame_is_refused(data: bytes) -> None:
    for read in of_session(data):
        with pytest.raises(FrameRejected):
            read()


@pytest.mark.parametrize("data", PICKLES, ids=lambda data: f"{len(data)} bytes")
def test_pickle_as_a_value_of_a_call_is_refused_or_stays_bytes(data: bytes) -> None:
    assert unpack(msgpack.packb(data)) == data
    kept = 0
    for number in (*range(len(EXTENSIONS)), 77, -1):
        for payload in (data, msgpack.packb(data), msgpack.packb([data.hex(), data, {}, data])):
            try:
                found = unpack(msgpack.packb(msgpack.ExtType(number, payload) if number >= 0 else [payload]))
            except Error:
                continue
            kept += 1
            assert not isinstance(found, Payload)
    assert kept < len(EXTENSIONS)


@pytest.mark.parametrize("data", PICKLES, ids=lambda data: f"{len(data)} bytes")
def test_pickle_as_a_message_of_nodes_is_refused(data: bytes) -> None:
    for message in (data, *(bytes([kind]) + data for kind in range(256)), msgpack.packb([1, data])):
        with pytest.raises(FrameRejected):
            decode(message)


@pytest.mark.parametrize("name", ["arrow.py_extension_type", "arrow.opaque", "pandas.extension"])
def test_type_of_an_arrow_stream_that_holds_a_pickle_is_not_made(name: str) -> None:
    """A stream claims that its column has an extension type made by a pickle."""
    for data in PICKLES:
        field = pa.field("a", pa.int64(), metadata={"ARROW:extension:name": name, "ARROW:extension:metadata": data})
        schema = pa.schema([field], metadata={b"pandas": data, b"pickle": base64.b64encode(data)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.record_batch([pa.array([1, 2])], schema=schema))
        with suppress(FrameRejected):
            table = arrow_table(sink.getvalue().to_pybytes(), no_limit)
            with suppress(ValueError):  # because of the metadata
                table.to_pandas()
            assert table.column("a").to_pylist() == [1, 2]


def test_pickle_in_files_of_a_store_is_damage_and_in_its_rows_it_is_text_and_bytes() -> None:
    history = make_history()
    for data in PICKLES:
        name = f"lcp/control-{history.lcp_ids[1]}"
        changed = {**history.contents, name: with_body(history.contents[name], data)}
        assert rows_of(open_memory(MemoryFiles.from_snapshot(changed))) == history.rows
        with pytest.raises(tm.Error):
            LoadJob.from_json(data.decode("latin-1"))
        with pytest.raises(tm.Error):
            LoadJob.from_json(json.dumps({"job": data.hex()}))
        db = open_memory()
        db.create_table("test.account", [*ACCOUNT[:3], tm.Column("note", tm.Blob)], "id")
        db["test.account"].insert((1, data.hex()[:40], 1.0, data))
        assert db["test.account"].get(1).note == data
        words = np.frombuffer(data.ljust(-(-len(data) // 8) * 8, b"\0"), dtype=np.int64)
        with pytest.raises(tm.ProgramInvalid):
            Program(db["test.account"].definition, [0], words)
