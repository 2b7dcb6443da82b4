"""Links of sites with a replica that is stuck, half-open or forged: its cost for the source is counted in bytes (F97,
F105, F106).

Story: slow replicas were tested only by sessions without sockets, and strangers only by what they receive, not by what
they reach. No test here judges by time; each asks the source what it has read and which caller it let in.
"""

from __future__ import annotations

import random
import socket
import tracemalloc
from contextlib import suppress

import pytest

import tidemark as tm
from tests.replication.doubles import REPLICA, SECRET, SOURCE, MemoryBinlog, MemoryRelay
from tests.replication.test_channel_network import HOST, WAIT_MS, follow, site
from tests.replication.test_channel_network import SECRET as SITES_SECRET
from tests.replication.test_channel_stores import make_table, put, rows
from tests.replication.test_frames import Meeting
from tests.waiting import wait_until
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import FrameRejected, PeerError, PeerTimeout, PeerUnauthenticated, PeerUnproved
from tidemark.replication.binlog.binlog_layout import FIRST_POSITION
from tidemark.replication.binlog.position import Position
from tidemark.replication.wire import wire
from tidemark.replication.wire.frame_layout import (
    FRAME_ACKNOWLEDGE,
    FRAME_CALL,
    FRAME_EVENTS,
    FRAME_HEADER_BYTES,
    FRAME_HEARTBEAT,
    FRAME_START,
    PAYLOAD_BYTES_MAX,
)
from tidemark.replication.wire.frames import Frame, FrameReader, FrameWriter
from tidemark.replication.wire.handshake import CalledHandshake, Site
from tidemark.replication.wire.link import LinkOptions, Listener
from tidemark.replication.wire.messages import Acknowledge, Heartbeat, Start
from tidemark.replication.wire.pieces import Pieces
from tidemark.replication.wire.sessions import ReplicaSession, SourceSession, farewell

CLOCK = SystemClock()
STUCK = Site(3, "ef" * 16, 1)
WINDOW_BYTES, CHUNK_BYTES = 64 << 10, 16 << 10
LONG_MS = 3_600_000


# --- stuck, slow, half-open -----------------------------------------------------------------------
def begun(address: tuple[str, int], secret: bytes, heartbeat_ms: int) -> tuple[wire.Wire, ReplicaSession, MemoryRelay]:
    """Connect a replica that has sent its start position and reads nothing."""
    met = wire.call(address, STUCK, secret, None, CLOCK)
    relay = MemoryRelay()
    start = Start(window_bytes=WINDOW_BYTES, heartbeat_ms=heartbeat_ms)
    session = ReplicaSession(relay, met.wire.writer, start, CLOCK.monotonic())
    met.wire.send(session.begin())
    return met.wire, session, relay


def test_replica_that_takes_nothing_costs_the_source_its_window_and_holds_up_no_commit_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemark.replication.wire.sessions.CHUNK_BYTES", CHUNK_BYTES)
    source, healthy = site(1), site(2)
    make_table(source)
    for number in range(40):
        put(source, number, v="x" * 40)
        source["shop.item"].write_many([{"id": 1_000 + each, "v": f"{number:040}"} for each in range(60)])
    with tm.serve(source, f"{HOST}:0", SITES_SECRET) as serving:
        connection, session, relay = begun(serving.address, SITES_SECRET, LONG_MS)

        def ahead() -> int:
            """Bytes ahead for the replica that has taken nothing."""
            replicas = [each for each in serving.status()["replicas"] if not each["acknowledged_epoch"]]
            return max((each["bytes_ahead"] for each in replicas), default=0)

        wait_until(lambda: ahead() >= WINDOW_BYTES)
        with follow(serving, healthy):
            for number in range(40, 60):
                put(source, number, v="z" * 40)
                source["shop.item"].write_many([{"id": 2_000 + each, "v": f"{number:040}"} for each in range(60)])
                source.wait_applied(source.sync(), WAIT_MS, at=[2])
            assert rows(healthy) == rows(source)
        assert WINDOW_BYTES <= ahead() < WINDOW_BYTES + CHUNK_BYTES, "it was read ahead of"
        # It continues where it was, and receives all of it.
        name = "binlog.000001"
        while not relay.heartbeats or relay.heartbeats[-1].end.position > FIRST_POSITION + len(
            relay.files.get(name, b"")
        ):
            for frame in connection.reader.feed(connection.receive()):
                session.receive(frame, CLOCK.monotonic())
            for data in session.pump(CLOCK.monotonic()).frames:
                connection.send(data)
        assert len(relay.files[name]) > 3 * WINDOW_BYTES
        connection.close()
    healthy.close()
    source.close()


def test_replica_that_is_half_there_is_shut_out_by_its_heartbeats_and_its_binlog_released() -> None:
    """Its machine answers, but its process is silent, as with an unplugged cable except that the machine lives."""
    closed = []

    class Watched(MemoryBinlog):
        def close(self) -> None:
            closed.append(self)

    listener = Listener((HOST, 0), LinkOptions(SOURCE, SECRET), lambda: Watched(b"x" * 1_000), CLOCK)
    try:
        connection, _, _ = begun(listener.address, SECRET, 20)
        wait_until(lambda: len(closed) == 1)
        wait_until(lambda: listener.sessions() == [])
        with suppress(ConnectionError), pytest.raises(PeerError):
            while True:
                connection.receive()
        connection.close()
    finally:
        listener.close()


# --- lengths that lie, silence --------------------------------------------------------------------
KEY = bytes(range(32))


class Half:
    """One side of a session; the test plays the other side."""

    def __init__(self, side: str) -> None:
        self.reader, self.writer, self.own = FrameReader(), FrameWriter(), FrameWriter()
        for each in (self.reader, self.writer, self.own):
            each.use_key(KEY)
        self.binlog, self.relay = CountedBinlog(b"x" * 5_000), MemoryRelay()
        start = Start(heartbeat_ms=100)
        self.session: SourceSession | ReplicaSession
        if side == "source":
            self.session = SourceSession(self.binlog, self.own, 100.0)
            self.hear(self.writer.frame(FRAME_START, start.pack()))
        else:
            self.session = ReplicaSession(self.relay, self.own, start, 100.0)
            self.hear(self.writer.frame(FRAME_HEARTBEAT, Heartbeat(1, 0, Position("log.000001", 4)).pack()))

    def hear(self, data: bytes) -> None:
        for frame in self.reader.feed(data):
            self.session.receive(frame, 100.0)

    def pump(self, now: float) -> None:
        if isinstance(self.session, SourceSession):
            self.session.pump(now, 0)
        else:
            self.session.pump(now)


class CountedBinlog(MemoryBinlog):
    """A binlog that counts its calls."""

    asked = 0

    def locate(self, start: Start) -> Position:
        self.asked += 1
        return super().locate(start)

    def read(self, at: Position, bytes_max: int) -> tuple[Position, bytes] | None:
        self.asked += 1
        return super().read(at, bytes_max)

    def newest(self) -> tuple[int, Position]:
        self.asked += 1
        return super().newest()


@pytest.mark.parametrize("side", ["source", "replica"])
def test_length_with_silence_after_it_ends_the_session_and_takes_no_memory(side: str) -> None:
    half = Half(side)
    longest = half.writer.frame(FRAME_EVENTS, bytes(PAYLOAD_BYTES_MAX))
    tracemalloc.start()
    half.hear(longest[: FRAME_HEADER_BYTES + 100])
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 64 << 10
    half.pump(100.49)
    with pytest.raises(PeerTimeout):
        half.pump(100.51)


@pytest.mark.parametrize("side", ["source", "replica"])
@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
def test_length_that_no_frame_has_is_refused_when_its_header_has_come(side: str, size: int) -> None:
    half = Half(side)
    head = bytearray(half.writer.frame(FRAME_EVENTS, b"")[:FRAME_HEADER_BYTES])
    head[8:12] = size.to_bytes(4, "little")
    half.hear(bytes(head[:-1]))
    with pytest.raises(FrameRejected, match="was announced"):
        half.hear(bytes(head[-1:]))


def test_message_in_pieces_without_an_end_is_refused_before_it_is_longer_than_any() -> None:
    pieces, most = Pieces(FRAME_CALL, 1 << 20), 1 << 20
    tracemalloc.start()
    with pytest.raises(FrameRejected, match="longer"):
        for _ in range(1_000):
            assert pieces.take(Frame(FRAME_CALL, b"\x00" + bytes(100_000))) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * most


# --- unknown secrets, replayed sessions --------------------------------------------------------------
def recorded() -> list[bytes]:
    """Return what a replica sends in a whole session with its handshake, for the nonces of `Meeting`."""
    meeting = Meeting()
    said = list(meeting.frames())
    session = ReplicaSession(MemoryRelay(), meeting.replica_writer, Start(), 100.0)
    begun_with = session.begin()
    acknowledged = meeting.replica_writer.frame(FRAME_ACKNOWLEDGE, Acknowledge(0, 0).pack())
    return [said[0], said[2], begun_with, acknowledged, farewell(meeting.replica_writer)]


def served(said: list[bytes], nonce: bytes) -> tuple[CountedBinlog, bool, PeerError | None]:
    """Give these bytes to a source with this nonce; return its binlog, whether it let the caller in, and the error."""
    reader, writer, binlog = FrameReader(), FrameWriter(), CountedBinlog(b"x" * 500)
    handshake = CalledHandshake(SOURCE, SECRET, nonce, reader, writer)
    session = None
    try:
        for data in said:
            for frame in reader.feed(data):
                if session is not None:
                    session.receive(frame, 100.0)
                    continue
                handshake.receive(frame)
                if handshake.is_done:
                    session = SourceSession(binlog, writer, 100.0)
    except PeerError as error:
        return binlog, session is not None, error
    return binlog, session is not None, None


def test_session_that_was_recorded_reaches_no_binlog_of_another_session() -> None:
    said = recorded()
    binlog, is_in, error = served(said, bytes([7] * 32))
    assert is_in and binlog.asked > 0 and error is None, "the nonce it was recorded with"
    for nonce in (bytes([8] * 32), bytes(32)):
        binlog, is_in, error = served(said, nonce)
        assert not is_in and binlog.asked == 0 and isinstance(error, PeerUnauthenticated)
    for left_out in range(len(said) - 1):
        binlog, is_in, error = served(said[:left_out] + said[left_out + 1 :], bytes([7] * 32))
        assert isinstance(error, PeerError) and (binlog.asked == 0 or left_out > 2), left_out


def test_byte_altered_anywhere_in_a_session_ends_it_before_its_frame_is_used() -> None:
    said = recorded()
    places = [(number, at) for number, data in enumerate(said) for at in range(len(data))]
    waiting = 0
    for number, at in places:
        altered = bytearray(said[number])
        altered[at] ^= 0x41
        binlog, is_in, error = served([*said[:number], bytes(altered), *said[number + 1 :]], bytes([7] * 32))
        what = f"frame {number}, byte {at}"
        waiting += error is None  # after a length that grew, more bytes are awaited
        assert error is not None or 8 <= at < 12, what
        assert is_in == (number > 1), what
        assert (binlog.asked > 0) == (number > 2), what
    assert waiting < 12


@pytest.mark.parametrize("stranger", ["another secret", "another's handshake", "frames without a handshake", "rubbish"])
def test_stranger_on_a_link_never_has_a_binlog_opened_for_it(stranger: str) -> None:
    opened = []

    def open_binlog() -> MemoryBinlog:
        opened.append(stranger)
        return MemoryBinlog(b"x" * 500)

    listener = Listener((HOST, 0), LinkOptions(SOURCE, SECRET), open_binlog, CLOCK)
    said = {
        "another's handshake": recorded(),
        "frames without a handshake": [FrameWriter().frame(FRAME_START, Start().pack())],
        "rubbish": [random.Random(5).randbytes(5_000)],
    }
    try:
        if stranger == "another secret":
            with pytest.raises(PeerUnproved):
                wire.call(listener.address, REPLICA, b"another secret of one", None, CLOCK)
        else:
            with socket.create_connection(listener.address, 60) as connection:
                with suppress(ConnectionError):
                    for data in said[stranger]:
                        connection.sendall(data)
                    while connection.recv(4_096):  # until it is shut out
                        pass
        assert opened == []
        connection, _, _ = begun(listener.address, SECRET, LONG_MS)
        wait_until(lambda: len(opened) == 1)
        connection.close()
    finally:
        listener.close()
