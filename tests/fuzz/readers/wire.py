"""What comes over a link: frames, handshakes, payloads, values of calls, messages of node groups."""

from __future__ import annotations

import datetime
import decimal
import functools
import hashlib
import hmac
import struct
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tidemark as tm
from tests.fuzz.harness import Reader
from tests.fuzz.mutations import Mutation, fields_of, inside, json_tree, octets, packed_tree, then
from tidemark.engine.base.errors import FrameRejected, PeerError, Rejected
from tidemark.engine.disk.tablespaces import TablespaceDefinition
from tidemark.engine.log.spool_files import spool_name
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.node_restart import messages as restart
from tidemark.replication.binlog.position import Position
from tidemark.replication.calls.values import pack, unpack
from tidemark.replication.channel.first_copy import Copied, CopiedEnd, CopiedRows, CopiedTable
from tidemark.replication.node_group import messages as group
from tidemark.replication.node_group.codec import decode, encode
from tidemark.replication.node_group.party import CONVERSATION, NodeParty
from tidemark.replication.node_group.view import Ballot, Member, View
from tidemark.replication.wire import frame_layout as f
from tidemark.replication.wire.copying import CopySession, pack_request, pieces_of, unpack_request
from tidemark.replication.wire.frames import Frame, FrameReader, FrameWriter
from tidemark.replication.wire.handshake import CalledHandshake, CallerHandshake, Party, Site, error_payload, refusal_of
from tidemark.replication.wire.messages import Acknowledge, Events, Heartbeat, Settings, Start
from tidemark.replication.wire.pieces import Pieces, frames_of

KEY = b"k" * 32
SECRET = b"a secret of both sides"
# How deep values of calls lie within each other in inputs: deeper than the reader lets them (`NESTING_MAX`).
VALUES_DEPTH = 40
_SIZE = f.FRAME_HEADER_BYTES


def _frames(data: bytes) -> list[int]:
    """Where the frames of a stream begin, by their lengths."""
    found, at = [], 0
    while at + _SIZE <= len(data):
        found.append(at)
        at += _SIZE + int.from_bytes(data[at + 8 : at + 12], "little")
    return found


def _frame_fields(data: bytes) -> list[tuple[int, int]]:
    return [each for at in _frames(data) for each in fields_of(f.FRAME_HEADER, at)[:6]]


def _frames_sealed(data: bytes) -> bytes:
    """The seals right again, of all frames that are there."""
    changed = bytearray(data)
    for at in _frames(data):
        size = int.from_bytes(data[at + 8 : at + 12], "little")
        mac = hmac.new(
            KEY, bytes(changed[at : at + 24]) + bytes(changed[at + _SIZE : at + _SIZE + size]), hashlib.sha256
        )
        changed[at + 24 : at + _SIZE] = mac.digest()[: f.FRAME_SEAL_BYTES]
    return bytes(changed)


# --- frames -------------------------------------------------------------------------------------------
def _frame_members() -> list[bytes]:
    writer = FrameWriter()
    writer.use_key(KEY)
    kinds = (f.FRAME_EVENTS, f.FRAME_HEARTBEAT, f.FRAME_CALL, f.FRAME_BYE)
    session = b"".join(writer.frame(kind, bytes(range(kind))) for kind in kinds)
    greeting = FrameWriter().frame(f.FRAME_HELLO, b"{}")
    message = FrameWriter()
    message.use_key(KEY)
    pieces = b"".join(frames_of(message, f.FRAME_NODE_PIECE, [b"x" * 300, b"y" * 20], 128))
    return [session, greeting, pieces]


def _read_frames(data: bytes) -> object:
    reader = FrameReader()
    if data[4:6] != b"\1\0":
        reader.use_key(KEY)
    pieces = Pieces(f.FRAME_NODE_PIECE, 400)
    found = []
    for at in range(0, len(data), 61):
        for frame in reader.feed(data[at : at + 61]):
            found.append(pieces.take(frame) if frame.kind == f.FRAME_NODE_PIECE else frame)
    return found


# --- handshakes ---------------------------------------------------------------------------------------
def _site(number: int) -> Site:
    return Site(number, f"{number}" * 32, 3, "binlog")


def _node(number: int, purpose: str) -> NodeParty:
    return NodeParty(f"{number}" * 32, number, 4, purpose, "0" * 16, {"x": 1}, frozenset({1, 2}))


_PARTIES: tuple[tuple[Party, Party], ...] = (
    (_site(1), _site(2)),
    (_node(1, CONVERSATION), _node(2, "")),
)


def _caller(own: Party) -> CallerHandshake:
    return CallerHandshake(own, SECRET, b"n" * 32, FrameReader(), FrameWriter())


def _called(own: Party) -> CalledHandshake:
    return CalledHandshake(own, SECRET, b"m" * 32, FrameReader(), FrameWriter())


def _said(data: bytes) -> list[Frame]:
    return list(FrameReader().feed(data))


def _greetings() -> list[bytes]:
    """A byte that says which parties and which side, then a payload."""
    found = []
    for number, (one, other) in enumerate(_PARTIES):
        caller, called = _caller(one), _called(other)
        hello = _said(caller.begin())[0]
        challenge = _said(called.receive(hello))[0]
        found += [bytes((2 * number,)) + hello.payload, bytes((2 * number + 1,)) + challenge.payload]
    return [*found, b"\4" + error_payload(PeerError("it goes"))]


def _greet(data: bytes) -> object:
    which, payload = data[:1], data[1:]
    if which in (b"\0", b"\2"):
        called = _called(_PARTIES[which[0] // 2][1])
        challenge = _said(called.receive(Frame(f.FRAME_HELLO, payload)))[0].payload
        return called.receive(Frame(f.FRAME_PROOF, _proof(called, payload + challenge)))
    if which in (b"\1", b"\3"):
        caller = _caller(_PARTIES[which[0] // 2][0])
        caller.begin()
        caller.receive(Frame(f.FRAME_CHALLENGE, payload))
        return caller.receive(Frame(f.FRAME_WELCOME, b""))
    return refusal_of(payload)


def _proof(called: CalledHandshake, said: bytes) -> bytes:
    """What a caller that knows the secret answers: identities are judged after it."""
    purpose = f"proof of the {called.own.caller}".encode()
    return hmac.new(SECRET, purpose + hashlib.sha256(said).digest(), hashlib.sha256).digest()


# --- payloads of a session ------------------------------------------------------------------------------
_SETTING = {"db": "d", "table_name": "%", "server_id": 0, "conflict_fn": "NDB$MAX(x)"}
_PAYLOADS: tuple[tuple[Callable[[bytes], object], Sequence[bytes]], ...] = (
    (Start.unpack, [Start().pack(), Start(7, 2, "binlog.000001", 120).pack()]),
    (Events.unpack, [Events(Position("binlog.000001", 4), b"x" * 40).pack()]),
    (Heartbeat.unpack, [Heartbeat(9, 1_700_000_000_000_000, Position("binlog.000002", 900)).pack()]),
    (Acknowledge.unpack, [Acknowledge(5, 6, 7).pack(), Acknowledge(5, 6, 7, ((1, 3), (2, 4))).pack()]),
    (Settings.unpack, [Settings((_SETTING, _SETTING)).pack(), Settings(()).pack()]),
    (unpack_request, [pack_request(("a.%", "b"), ("c.d",))]),
)


def _after_first(mutation: Mutation) -> Mutation:
    """For inputs whose first byte is the kind of the rest: apply the mutation to the rest."""
    return inside(mutation, lambda data: data[1:], lambda data, rest: data[:1] + rest)


def _read_payload(data: bytes) -> object:
    return _PAYLOADS[data[0] % len(_PAYLOADS)][0](data[1:]) if data else None


# --- first copies -------------------------------------------------------------------------------------
def _copy_members() -> list[bytes]:
    import pyarrow as pa

    def items() -> Any:
        yield CopiedTable("d.t", "CREATE TABLE d.t (id INT PRIMARY KEY)", 3)
        yield CopiedRows("d.t", pa.record_batch({"id": pa.array([1, 2, None]), "x": pa.array(["a", "", "ü"])}))
        yield CopiedRows(
            "d.t", pa.record_batch({"id": pa.array([1.5, 2]), "x": pa.array([b"a", None]).dictionary_encode()})
        )
        yield CopiedEnd((("CREATE INDEX i ON t (x)", "d"),), 9, ((1, 5), (2, 7)))

    return list(pieces_of(items()))


def _copy(data: bytes) -> object:
    taken: list[Copied] = []
    session = CopySession(FrameWriter(), b"", taken.append, 0.0)
    session.receive(Frame(f.FRAME_COPIED, data[: len(data) // 2] + b""), 0.0) if data[1:2] == b"\0" else None
    session.receive(Frame(f.FRAME_COPIED, data), 0.0)
    return [each.rows.to_pylist() for each in taken if isinstance(each, CopiedRows)]


# --- values of calls ------------------------------------------------------------------------------------
Row = namedtuple("Row", ["id", "owner"])


@functools.cache
def _definition() -> TableDefinition:
    columns = (tm.Column("id", tm.Int64), tm.Column("x", tm.VarChar(20), nullable=True), tm.Column("f", tm.Float64))
    return TableDefinition(7, 2, "test.wide", columns, ("id",), tm.HashPartition(2))


def _value_members() -> list[bytes]:
    import pyarrow as pa

    assembler = tm.Assembler(_definition())
    assembler.branch_column("eq", "id", 3, "yes")
    assembler.exit_refuse()
    assembler.label("yes")
    assembler.exit_ok()
    x = tm.col("x")
    values: list[Any] = [
        ["scan", "test.wide", {"where": (tm.col("id") + 1 > 2) & x.isin(["a", "b"]) | ~x.like("x%") & x.is_null()}],
        [Row(1, "ann"), (1, (2.5, b"\0")), decimal.Decimal("-1.20"), 1 << 100, None, True],
        [datetime.date(2026, 1, 2), datetime.time(1, 2, 3, 4), datetime.timedelta(days=-1, microseconds=5)],
        [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), tm.Column("x", tm.VarChar(10), default="q")],
        tm.DuplicateKey("a row has this key; choose another", key=(1, "x"), row=3),
        _definition(),
        tm.Decimal(10, 2),
        assembler.finish(),
        pa.table({"a": [1, None], "b": ["x", "yy"]}),
        pa.record_batch({"a": pa.array([], pa.int32())}),
        {"rows": [1, 2], "3": {"a": [1, {"b": None}]}},
    ]
    return [pack(value) for value in values]


def _definitions(name: str) -> TableDefinition:
    if name != "test.wide":
        raise Rejected(f"no table {name!r}")
    return _definition()


# --- messages of node groups ------------------------------------------------------------------------------
_MEMBERS = (Member(1, "a:1"), Member(2, "b:1"))


def _message_members() -> list[bytes]:
    view = View(4, _MEMBERS, 1, "c:1")
    shapes = (
        restart.TablespaceShape(TablespaceDefinition(1, "main", file_ids=(1, 2)), (16, 3)),
        restart.TablespaceShape(TablespaceDefinition(2, "other"), ()),
    )
    words = np.arange(20, dtype=np.int64)
    messages: list[Any] = [
        group.Ping(1, 2, True, False, True),
        group.Prepare(view, Ballot(5, 1), True),
        group.Promise(4, Ballot(5, 1), 3, Ballot(2, 2), View(5, _MEMBERS[:1], 1), "a:1"),
        group.Accept(view, Ballot(5, 1), View(5, _MEMBERS[:1], 1, "c:1")),
        group.Adopted(1, 2, 3, ((1, 20), (2, 30))),
        group.Groups(3, 9, (words, words[:5])),
        group.AskJoin(4, _MEMBERS[0], 7, True),
        group.Refused("not now"),
        group.EpochIs(1, 2, 3),
        group.FileWanted(spool_name(9)),
        group.FilePart(spool_name(9), 0, 3, b"abc", True),
        restart.Welcome(b"u" * 16, 1, 2),
        restart.Ready(1, 2, restart.ROWID_SYNC, "why"),
        restart.Plan({(1, 2): 3, (4, 5): 6}),
        restart.Begin(restart.ROWID_SYNC, "why", 8, (_definition(),), shapes, 3, 4, 5),
        restart.GroupPart(4, 9, words, 0, words.size, True, shapes),
        restart.Slice((1, 2), 3, 4, 5, 6, 7, words, 8),
        restart.Deletes(8, 9, words[:6]),
        restart.End(1, 2, 3),
    ]
    return [b"".join(encode(each)) for each in messages]


def _head_size(data: bytes) -> int:
    return int.from_bytes(data[:4], "little")


def _with_head(data: bytes, head: bytes) -> bytes:
    """A message with another head, and the rest of the message after it."""
    rest = data[4 + _head_size(data) :]
    rest = rest[-(4 + _head_size(data)) % 8 :]
    return struct.pack("<I", len(head)) + head + bytes(-(4 + len(head)) % 8) + rest


def _message_fields(data: bytes) -> list[tuple[int, int]]:
    begin = 4 + _head_size(data)
    begin += -begin % 8
    return [(0, 4), *((at, 8) for at in range(begin, min(begin + 64, len(data)), 8))]


_HEADS = inside(packed_tree(0), lambda data: data[4 : 4 + _head_size(data)], _with_head)


def _decode(data: bytes) -> object:
    return encode(decode(bytearray(data)))  # what is accepted can be sent on


READERS = (
    Reader(
        "frames",
        _frame_members,
        _read_frames,
        (FrameRejected,),
        (octets(_frame_fields), then(octets(_frame_fields), _frames_sealed), then(octets(), _frames_sealed)),
        (
            "accepted",
            "was altered on its way",
            "not a frame of this protocol",
            "is not allowed here",
            "was announced",
            "came instead of",
        ),
    ),
    Reader(
        "handshakes",
        _greetings,
        _greet,
        (PeerError,),
        (_after_first(json_tree), _after_first(json_tree), octets()),
        (
            "accepted",
            "lacks required fields",
            "of the handshake is invalid: server_id: a field is not of type int",
            "PeerVersion",
            "a nonce",
            "fields of a site",
            "the node in the",
            "PeerRefused",
        ),
    ),
    Reader(
        "payloads",
        lambda: [bytes((kind,)) + each for kind, (_, members) in enumerate(_PAYLOADS) for each in members],
        _read_payload,
        (FrameRejected,),
        (_after_first(json_tree), _after_first(octets())),
        (
            "accepted",
            "a replica's start is invalid: it lacks",
            "a replica's start is invalid: epoch: a number",
            "is not a name",
            "start is invalid: window_bytes",
            "a frame of events",
            "a heartbeat",
            "an acknowl",
        ),
    ),
    Reader(
        "first copies",
        _copy_members,
        _copy,
        (FrameRejected,),
        (octets(), inside(json_tree, lambda data: data[2:], lambda data, rest: data[:2] + rest)),
        ("accepted", "an item of a copy", "not an Arrow stream", "copy is invalid: it is not JSON"),
        cost=8,
    ),
    Reader(
        "values of calls",
        _value_members,
        lambda data: unpack(data, _definitions),
        (FrameRejected, Rejected),
        (packed_tree(VALUES_DEPTH), octets()),
        (
            "accepted",
            "contradicts itself",
            "nests deeper",
            "an expression",
            "a program",
            "not an Arrow stream",
            "an error",
        ),
        cost=2,
    ),
    Reader(
        "node messages",
        _message_members,
        _decode,
        (FrameRejected,),
        (octets(_message_fields), _HEADS, _HEADS),
        (
            "accepted",
            "a number",
            "its head is",
            "shorter than its fields",
            "not of type",
            "more than its fields",
            "a plan is invalid",
            "a file has a name",
        ),
    ),
)
