"""Bytes on the wire are those of version 1 of the protocol: other ones need another version (`wire/handshake.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tidemark.engine.log.spool_files import spool_name
from tidemark.recovery.node_restart import messages as restart
from tidemark.replication.binlog.position import Position
from tidemark.replication.node_group import messages as group
from tidemark.replication.node_group.codec import decode, encode
from tidemark.replication.node_group.view import Ballot, Member, View
from tidemark.replication.wire.codec import values_of
from tidemark.replication.wire.copying import pack_request, unpack_request
from tidemark.replication.wire.handshake import VERSION, VERSION_OLDEST
from tidemark.replication.wire.messages import Acknowledge, Events, Heartbeat, Settings, Start

POSITION = Position("binlog.000002", 900)
SETTING = {"db": "d", "table_name": "%", "server_id": 0, "conflict_fn": "NDB$MAX(x)"}
VIEW = View(4, (Member(1, "a:1"), Member(2, "b:1")), 1, "c:1")
WORDS = np.arange(3, dtype=np.int64)


def words_of(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


PAYLOADS: tuple[tuple[Any, bytes], ...] = (
    (Start(), b'{"epoch": 0, "file": "", "heartbeat_ms": 1000, "origin": 0, "position": 0, "window_bytes": 8388608}'),
    (
        Start(7, 2, "binlog.000001", 120),
        b'{"epoch": 7, "file": "binlog.000001", "heartbeat_ms": 1000, "origin": 2, "position": 120,'
        b' "window_bytes": 8388608}',
    ),
    (Events(POSITION, b"events"), b"\x84\x03\x00\x00\x00\x00\x00\x00\r\x00binlog.000002events"),
    (
        Heartbeat(9, 1_700_000_000_000_000, POSITION),
        b"\t\x00\x00\x00\x00\x00\x00\x00\x00@\x1e\x18$\n\x06\x00\x84\x03\x00\x00\x00\x00\x00\x00\r\x00binlog.000002",
    ),
    (Acknowledge(5, 6, 7), words_of(5, 6, 7)),
    (Acknowledge(5, 6, 7, ((1, 3), (2, 4))), words_of(5, 6, 7, 1, 3, 2, 4)),
    (Settings((SETTING,)), b'[{"db": "d", "table_name": "%", "server_id": 0, "conflict_fn": "NDB$MAX(x)"}]'),
)
# In hex.
MESSAGES: tuple[tuple[Any, str], ...] = (
    (group.Ping(1, 2, True, False, True, True), "0800000097000102c3c2c3c300000000"),
    (group.Prepare(VIEW, Ballot(5, 1), True), "1a00000094039404929201a3613a319202a3623a3101a3633a31920501c30000"),
    (group.Promise(4, Ballot(5, 1), 3, Ballot(2, 2), None, "a:1"), "0f00000097040492050103920202c0a3613a310000000000"),
    (group.Adopted(1, 2, 3, ((1, 20), (2, 30))), "0c00000095080102039292011492021e"),
    (
        group.Groups(3, 9, (WORDS, WORDS[:1])),
        "050000009409030910000000000000001800000000000000"
        "08000000000000000000000000000000010000000000000002000000000000000000000000000000",
    ),
    (group.AskJoin(4, VIEW.members[0], 7, True), "0b000000950d049201a3613a3107c300"),
    (group.Refused("not now", 4), "0b000000930ea76e6f74206e6f770400"),
    (group.EpochIs(1, 2, 3), "05000000940f01020300000000000000"),
    (group.CopyWanted(), "0200000091110000"),
    (
        group.FileWanted(spool_name(9)),
        "1f0000009212bc73706f6f6c2f303030303030303030303030303030392e73706f6f6c0000000000",
    ),
    (
        group.FilePart(spool_name(9), 0, 3, b"abc", True),
        "230000009613bc73706f6f6c2f303030303030303030303030303030392e73706f6f6c000303c3006162630000000000",
    ),
    (restart.Welcome(b"u" * 16, 1, 2), "160000009414c410757575757575757575757575757575750102000000000000"),
    (restart.Ready(1, 2, restart.ROWID_SYNC, "why"), "1300000095150102aa726f7769645f73796e63a377687900"),
    (restart.Plan({(1, 2): 3}), "0300000092161800010000000000000002000000000000000300000000000000"),
    (
        restart.GroupPart(4, 9, WORDS, 0, 3, True),
        "0a00000099190409180003c300000000000000000000000001000000000000000200000000000000",
    ),
    (
        restart.Slice((1, 2), 3, 4, 5, 6, 7, WORDS, 8),
        "0c000000991a92010203040506071808000000000000000001000000000000000200000000000000",
    ),
    (restart.End(1, 2, 3), "05000000941b01020300000000000000"),
)


def test_version_is_the_one_that_these_bytes_are_of() -> None:
    assert (VERSION, VERSION_OLDEST) == (1, 1)


@pytest.mark.parametrize(("payload", "data"), PAYLOADS, ids=[type(payload).__name__ for payload, _ in PAYLOADS])
def test_payload_has_the_same_bytes_and_is_read_from_them(payload: Any, data: bytes) -> None:
    assert payload.pack() == data and type(payload).unpack(data) == payload


def test_request_of_a_copy_has_the_same_bytes_and_is_read_from_them() -> None:
    asked = (("a.%", "b"), ("c.d",))
    assert pack_request(*asked) == b'[["a.%", "b"], ["c.d"]]' and unpack_request(pack_request(*asked)) == asked


@pytest.mark.parametrize(("message", "data"), MESSAGES, ids=[type(message).__name__ for message, _ in MESSAGES])
def test_message_has_the_same_bytes_and_is_read_from_them(message: Any, data: str) -> None:
    assert b"".join(encode(message)).hex() == data
    read = decode(bytes.fromhex(data))
    assert type(read) is type(message) and repr(values_of(read)) == repr(values_of(message))
