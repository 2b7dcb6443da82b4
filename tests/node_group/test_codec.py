"""Messages of a node group as bytes: what goes out comes back; invalid bytes and messages are refused."""

from __future__ import annotations

import struct
from typing import Any, get_args

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidemark as tm
from tidemark.engine.base.errors import FrameRejected
from tidemark.engine.disk.tablespaces import TablespaceDefinition
from tidemark.engine.log.load_files import LoadFile
from tidemark.engine.log.spool_files import spool_name
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.sealed.checksums_kernels import xxh3_signed
from tidemark.recovery.node_restart.messages import (
    ROWID_SYNC,
    Begin,
    Deletes,
    End,
    FromJoiner,
    FromLive,
    GroupPart,
    Plan,
    Ready,
    Slice,
    TablespaceShape,
    Taken,
    Welcome,
)
from tidemark.replication.node_group.codec import (
    BALLOT,
    FILE_PART_BYTES_MAX,
    GROUP_MESSAGES,
    MEMBER,
    MESSAGES,
    RESTART_MESSAGES,
    VIEW,
    decode,
    encode,
)
from tidemark.replication.node_group.messages import (
    Accept,
    Accepted,
    Adopted,
    Applied,
    AskJoin,
    Completed,
    CopyWanted,
    EpochIs,
    EpochWanted,
    FilePart,
    FileWanted,
    Groups,
    Message,
    Opened,
    Outbid,
    Ping,
    Pong,
    Prepare,
    Promise,
    Refused,
    ViewIs,
)
from tidemark.replication.node_group.view import MEMBERS_MAX, NODE_NUMBER_MAX, Ballot, Member, View, first_view
from tidemark.replication.wire.codec import NUMBER_MAX, Out, finished, values_of

LOAD_NAME = LoadFile(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12).name
COLUMNS = (tm.Column("id", tm.Int64), tm.Column("far", tm.VarChar(300), nullable=True, storage="disk"))
TABLE = TableDefinition(7, 2, "test.wide", COLUMNS, ("id",), tm.HashPartition(2), "main")
SHAPES = (
    TablespaceShape(TablespaceDefinition(1, "main", file_ids=(1, 2)), (16, 3)),
    TablespaceShape(TablespaceDefinition(2, "other"), ()),
)

numbers = st.integers(0, NUMBER_MAX)
flags = st.booleans()
ballots = st.builds(Ballot, numbers, st.integers(0, NODE_NUMBER_MAX))
addresses = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=64)
members = st.builds(Member, st.integers(1, NODE_NUMBER_MAX), addresses)
texts = st.text(max_size=50).filter(str.isprintable)
words = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=40).map(lambda each: np.array(each, dtype=np.int64))
places = st.tuples(numbers, numbers)


@st.composite
def views(draw: st.DrawFn) -> View:
    listed = draw(st.lists(members, max_size=MEMBERS_MAX, unique_by=lambda each: each.number))
    primary = draw(st.sampled_from([each.number for each in listed])) if listed else 0
    return View(draw(numbers), tuple(listed), primary, draw(st.just("") | addresses))


@st.composite
def file_parts(draw: st.DrawFn) -> FilePart:
    offset, data, rest = draw(st.integers(0, 1 << 40)), draw(st.binary(max_size=100)), draw(st.integers(0, 1 << 40))
    name = draw(st.sampled_from([spool_name(3), LOAD_NAME]))
    return FilePart(name, offset, offset + len(data) + rest, data, rest == 0)


messages = st.one_of(
    st.builds(Ping, numbers, numbers, flags, flags, flags),
    st.builds(Pong, numbers, numbers, flags, numbers),
    st.builds(ViewIs, views()),
    st.builds(Prepare, views(), ballots, flags),
    st.builds(Promise, numbers, ballots, numbers, ballots, st.none() | views(), st.just("") | addresses),
    st.builds(Outbid, numbers, ballots),
    st.builds(Accept, views(), ballots, views()),
    st.builds(Accepted, numbers, ballots),
    st.builds(Adopted, numbers, numbers, numbers, st.lists(places, max_size=4).map(tuple)),
    st.builds(Groups, numbers, numbers, st.lists(words.filter(len), max_size=5).map(tuple)),
    st.builds(Applied, numbers, numbers, numbers),
    st.builds(Opened, numbers, numbers, numbers),
    st.builds(Completed, numbers, numbers, numbers),
    st.builds(AskJoin, numbers, members, numbers, flags),
    st.builds(Refused, texts, numbers),
    file_parts(),
    st.builds(FileWanted, st.just(LOAD_NAME)),
    st.builds(EpochIs, numbers, numbers, numbers),
    st.builds(EpochWanted, numbers),
    st.builds(CopyWanted),
    st.builds(Welcome, st.binary(min_size=16, max_size=16), numbers, numbers),
    st.builds(Ready, numbers, numbers, st.just(ROWID_SYNC), texts),
    st.builds(Plan, st.dictionaries(places, numbers, max_size=9)),
    st.builds(Taken, numbers),
    st.builds(
        Begin, texts, texts, numbers, st.sampled_from([(), (TABLE,)]), st.sampled_from([(), SHAPES]), numbers, numbers
    ),
    st.builds(
        lambda number, each, is_last: GroupPart(number, number, each, 0, each.size, is_last, SHAPES),
        numbers,
        words,
        flags,
    ),
    st.builds(Deletes, numbers, numbers, words),
    st.builds(Slice, places, numbers, numbers, numbers, numbers, numbers, words, numbers),
    st.builds(End, numbers, numbers, numbers),
)


def packed(message: Any) -> bytes:
    return b"".join(encode(message))


def plain(message: Any) -> Any:
    """Return a message with its words as lists, for comparison."""
    values = message if isinstance(message, tuple) else vars(message).values()

    def listed(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.tolist()
        return [listed(each) for each in value] if isinstance(value, tuple) else value

    return type(message), [listed(each) for each in values]


@given(messages)
def test_message_comes_back_as_it_was(message: Any) -> None:
    assert plain(decode(packed(message))) == plain(message)


def test_every_message_there_is_has_a_form() -> None:
    assert GROUP_MESSAGES == {*get_args(Message), EpochIs, EpochWanted}
    assert RESTART_MESSAGES == {Welcome, *get_args(FromLive), *get_args(FromJoiner), CopyWanted, FileWanted, FilePart}


def test_words_are_copied_neither_out_nor_in_and_are_such_as_kernels_take() -> None:
    """Kernels are compiled for arrays that are aligned and writable, and take no others."""
    group = np.arange(1_000, dtype=np.int64)
    group.flags.writeable = False
    parts = encode(Groups(1, 2, (group, group[:40])))
    assert any(np.shares_memory(np.frombuffer(part, dtype=np.uint8), group) for part in parts)
    data = bytearray(b"".join(parts))
    whole = np.frombuffer(data, dtype=np.uint8)
    assert all(np.shares_memory(each, whole) for each in decode(data).groups)
    for came in (data, bytes(data), memoryview(bytearray(b"x" + data))[1:], memoryview(b"x" + data)[1:]):
        for each, sent in zip(decode(came).groups, (group, group[:40]), strict=True):
            assert each.tolist() == sent.tolist() and each.flags.behaved
            assert xxh3_signed(each, 1, each.size - 1) == xxh3_signed(sent.copy(), 1, sent.size - 1)


def test_part_of_a_group_takes_its_own_words_along_and_no_others() -> None:
    sent = GroupPart(4, 9, np.arange(100, dtype=np.int64), 16, 20, True)
    back = decode(packed(sent))
    assert (back.words.tolist(), back.start, back.stop) == ([16, 17, 18, 19], 0, 4)
    assert len(packed(sent)) < 100


def test_texts_come_as_one_line_that_may_be_logged() -> None:
    assert decode(packed(Refused("a\nb\x1b[2J" + "x" * 5_000))).reason == ("a b [2J" + "x" * 5_000)[:2_000]


@pytest.mark.parametrize(
    "name",
    ["spool/../view.0", "/etc/passwd", "spool/1.spool", "load/x.load", "view.0", "", spool_name(1) + "/x", "a" * 9_000],
)
def test_names_that_no_group_refers_to_are_refused_on_both_sides(name: str) -> None:
    with pytest.raises(FrameRejected):
        encode(FileWanted(name))
    good = packed(FileWanted(spool_name(1)))
    head = msgpack.packb([msgpack.unpackb(good[4 : 4 + struct.unpack_from("<I", good)[0]])[0], name])
    with pytest.raises(FrameRejected):
        decode(struct.pack("<I", len(head)) + head + bytes(-(4 + len(head)) % 8))


@pytest.mark.parametrize(
    "part",
    [
        FilePart(LOAD_NAME, 10, 5, b"", True),
        FilePart(LOAD_NAME, 0, 10, b"x" * 10, False),
        FilePart(LOAD_NAME, 0, 10, b"x", True),
        FilePart(LOAD_NAME, 0, 1 << 30, b"x" * (FILE_PART_BYTES_MAX + 1), False),
    ],
)
def test_part_of_a_file_that_cannot_be_is_refused(part: FilePart) -> None:
    with pytest.raises(FrameRejected):
        encode(part)


A, B = Member(1, "a:1"), Member(2, "b:1")


@pytest.mark.parametrize(
    "message",
    [
        ViewIs(View(1, (A, A), 1)),
        ViewIs(View(1, (A, B), 3)),
        ViewIs(View(1, tuple(Member(number, "a:1") for number in range(1, 6)), 1)),
        ViewIs(View(1, (Member(256, "a:1"),), 256)),
        ViewIs(View(1, (Member(1, "ä:1"),), 1)),
        ViewIs(View(1, (Member(1, "a" * 65),), 1)),
        ViewIs(first_view("a" * 65)),
        ViewIs(View(0, (), 1)),
        ViewIs(View(-1, (), 0)),
        Opened(True),
        Opened("1"),
        Opened(1.0),
        Applied(1, 1 << 63, 1),
        Outbid(1, Ballot(1, 256)),
        Ping(1, 1, 1, False, False),
        Refused(b"x"),
        Welcome(b"short", 1, 1),
        Ready(1, 1, "guesswork", ""),
        Groups(1, 1, (np.zeros(0, dtype=np.int64),)),
    ],
    ids=repr,
)
def test_message_that_a_view_file_or_a_machine_could_not_hold_is_refused(message: Any) -> None:
    with pytest.raises((FrameRejected, TypeError, ValueError)):
        decode(forced(message))


def forced(message: Any) -> bytes:
    """Return the bytes of a malicious sender, which checks nothing."""
    out = Out([MESSAGES.numbers[type(message)]])
    plain = {View: VIEW.plain, Ballot: BALLOT.plain, Member: MEMBER.plain}
    for value in values_of(message):
        match value:
            case View() | Ballot() | Member():
                out.head.append(plain[type(value)](value))
            case _ if isinstance(message, Groups) and isinstance(value, tuple):
                out.blobs([b"" for _ in value])
            case _:
                out.head.append(value)
    return b"".join(finished(out))


def test_message_of_the_other_protocol_has_no_place() -> None:
    with pytest.raises(FrameRejected, match="is not allowed here"):
        decode(packed(Opened(1)), RESTART_MESSAGES)
    with pytest.raises(FrameRejected, match="is not allowed here"):
        decode(packed(End(1, 1, 1)), GROUP_MESSAGES)


GOOD = [
    packed(Groups(3, 9, (np.arange(20, dtype=np.int64), np.arange(5, dtype=np.int64)))),
    packed(Accept(View(4, (A, B), 1, "c:1"), Ballot(5, 1), View(5, (A,), 1, "c:1"))),
    packed(Begin(ROWID_SYNC, "why", 8, (TABLE,), SHAPES, 3, 4, 5)),
    packed(Slice((1, 2), 3, 4, 5, 6, 7, np.arange(9, dtype=np.int64), 8)),
    packed(Deletes(8, 9, np.arange(6, dtype=np.int64))),
    packed(Plan({(1, 2): 3, (4, 5): 6})),
    packed(FilePart(spool_name(9), 0, 3, b"abc", True)),
]


@pytest.mark.parametrize("more", [b"x", bytes(8), bytes(16), b"x" * 8])
def test_bytes_after_a_message_are_refused(more: bytes) -> None:
    for good in GOOD:
        with pytest.raises(FrameRejected):
            decode(good + more)


def bomb(head: bytes) -> bytes:
    return struct.pack("<I", len(head)) + head + bytes(-(4 + len(head)) % 8)


@pytest.mark.parametrize(
    "data",
    [
        bomb(b"\xdd\xff\xff\xff\xff"),  # a list of 2^32 items
        bomb(b"\x91" * 60_000),  # lists in lists
        bomb(b"\xdc\xe0\x00" * 20_000),  # lists of 57,344 items in each other
        bomb(b"\x9f" + (b"\xdc\x01\x00" + (b"\xdc\x01\x00" + b"\x90" * 256) * 256) * 15),  # a million empty ones
        bomb(b"\x92\x00\xdb\xff\xff\xff\xff"),  # a text of 2^32 bytes
        bomb(b"\xdf\xff\xff\xff\xff"),  # a map
        bomb(b"\xc9\xff\xff\xff\xff\x00"),  # an extension type
        struct.pack("<I", 0xFFFFFFFF) + bytes(60),
        bomb(msgpack.packb([9, 1, 1, 1 << 62])),  # words that are not there
        bomb(msgpack.packb([9, 1, 1, 8])) + struct.pack("<q", 1 << 62),  # a group that is not there
        bomb(msgpack.packb([9, 1, 1, 8])) + struct.pack("<q", -8),
    ],
    ids=range(11),
)
def test_false_lengths_allocate_nothing(data: bytes) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        with pytest.raises(FrameRejected):
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
