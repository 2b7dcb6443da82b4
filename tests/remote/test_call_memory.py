"""Memory of calls: the total over all links of a server is bounded, and each message by itself, at both ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgpack
import pyarrow as pa
import pytest

import tidemark as tm
from tests.elsewhere import at_once
from tests.remote.test_arrow_streams import stream_of
from tests.remote.test_values import wrapped
from tests.seeds import fresh_seeds
from tests.store.support import ACCOUNT, client_of
from tests.waiting import wait_until
from tidemark.engine.base.clock import ManualClock, SystemClock
from tidemark.engine.base.errors import CallMemoryExhausted, FrameRejected, LimitExceeded, PeerError, Rejected
from tidemark.remote.database import RemoteDatabase
from tidemark.remote.links import Links
from tidemark.replication.calls import conversation
from tidemark.replication.calls.conversation import PIECE_BYTES, CallLink, CallServer, Client
from tidemark.replication.calls.memory import FREE_BYTES, CallMemory, Share
from tidemark.replication.calls.values import EXTENSIONS, pack, unpack
from tidemark.replication.wire.frame_layout import FRAME_ANSWER, FRAME_CALL
from tidemark.replication.wire.frames import Frame
from tidemark.replication.wire.pieces import Pieces, frames_of
from tidemark.replication.wire.server import Server
from tidemark.replication.wire.wire import OpenLink, Wake

SECRET = b"a secret of clients"
STORE = "ab" * 16
MIB = 1 << 20


class Echo:
    """An executor that answers with its argument, or `answers` of it, and counts how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0
        self.answers: Callable[[Any], Any] = lambda what: what

    def answer(self, what: Any) -> Any:
        """Return the answer."""
        return self.answers(what)

    def close(self) -> None:
        """End its transaction."""
        self.closed += 1

    def attach(self, client: str, wake: Callable[[], None], cut: Callable[[], None]) -> None:
        """It has no transaction."""

    def detach(self) -> None:
        """It has no transaction."""

    def idle_s(self) -> None:
        """It is never idle for too long."""

    def idle(self) -> None:
        """It has no transaction."""


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def server(echo: Echo) -> Iterator[CallServer]:
    def none(name: str) -> Any:
        raise Rejected("no tables here")

    made = CallServer(("127.0.0.1", 0), STORE, SECRET, None, SystemClock(), lambda: echo, none)
    yield made
    made.close()


@pytest.fixture
def link(server: CallServer) -> Iterator[CallLink]:
    made = CallLink(server.address, SECRET, None, SystemClock())
    yield made
    made.close()


def other(server: CallServer) -> CallLink:
    return CallLink(server.address, SECRET, None, SystemClock())


def send(link: CallLink, data: bytes, pieces: int | None = None) -> None:
    """Send the first pieces of a message, all if None."""
    wire = link.opened.wire
    for frame in islice(frames_of(wire.writer, FRAME_CALL, [data], PIECE_BYTES), pieces):
        wire.send(frame)


def answer_of(link: CallLink) -> Any:
    """Return the answer to what was sent."""
    wire, answer = link.opened.wire, bytearray()
    while True:
        for frame in wire.reader.feed(wire.receive()):
            answer += frame.payload[1:]
            if frame.payload[:1] == b"\x01":
                is_well, value = unpack(answer)
                if is_well:
                    return value
                raise value


def test_half_sent_messages_of_many_links_hold_no_more_than_all_may(
    server: CallServer, link: CallLink, echo: Echo
) -> None:
    """Story: each link could hold 256 MiB of an unfinished message, and a server accepts a thousand links."""
    server.memory.most_bytes = 2 * MIB
    holders = [other(server) for _ in range(4)]
    for holder in holders:
        send(holder, bytes(MIB), 2)
    wait_until(lambda: server.memory.held_bytes == 4 * (2 * PIECE_BYTES - FREE_BYTES))
    with pytest.raises(CallMemoryExhausted, match="run it again later") as caught:
        link.ask(bytes(MIB))
    assert caught.value.retryable and caught.value.bytes > FREE_BYTES
    assert echo.closed == 1 and not link.is_broken
    assert link.ask("commit") == "commit"
    for holder in holders:
        holder.close()
    wait_until(lambda: server.memory.held_bytes == 0)
    assert link.ask(bytes(MIB)) == bytes(MIB)
    wait_until(lambda: server.memory.held_bytes == 0)


def test_rest_of_a_message_without_room_is_not_kept() -> None:
    memory = CallMemory(MIB)
    share = Share(memory)
    pieces = Pieces(FRAME_CALL, 8 * MIB, share.take)
    one, last = Frame(FRAME_CALL, b"\x00" + bytes(300_000)), Frame(FRAME_CALL, b"\x01")
    held = []
    for _ in range(10):
        assert pieces.take(one) is None and pieces.is_begun
        held.append(share.held_bytes)
    assert held == [300_000, 600_000, 900_000, *[0] * 7] and memory.held_bytes == 0
    with pytest.raises(CallMemoryExhausted):
        pieces.take(last)
    assert not pieces.is_begun
    assert pieces.take(one) is None and pieces.take(last) == bytearray(300_000)
    for _ in range(26):
        assert pieces.take(one) is None
    with pytest.raises(FrameRejected, match="longer than 8 MiB"):  # the discarded part is bounded too
        for _ in range(10):
            pieces.take(one)


def test_what_is_built_of_a_message_counts(server: CallServer, link: CallLink, echo: Echo) -> None:
    server.memory.most_bytes = MIB
    with pytest.raises(CallMemoryExhausted):
        link.ask([[]] * 50_000)
    held: list[int] = []
    echo.answers = lambda what: held.append(server.memory.held_bytes)
    link.ask([[]] * 5_000)
    assert 5_000 * 56 < held[0] < MIB
    wait_until(lambda: server.memory.held_bytes == 0)


def test_answers_count_and_those_of_calls_that_changed_something_always_fit(
    server: CallServer, link: CallLink, echo: Echo
) -> None:
    """A call that was carried out must not be reported as rolled back for lack of memory."""
    server.memory.most_bytes = 2 * MIB
    share = Share(server.memory)

    def fill(what: Any) -> Any:
        share.take(FREE_BYTES + server.memory.most_bytes - server.memory.held_bytes)
        return what[0] if what[0] < 10 else bytes(MIB)

    echo.answers = fill
    assert link.ask([3, bytes(MIB // 4)]) == 3
    share.release()
    with pytest.raises(CallMemoryExhausted):
        link.ask([10])
    assert echo.closed == 1
    share.release()
    wait_until(lambda: server.memory.held_bytes == 0)


def test_link_that_stops_in_the_middle_of_a_message_is_ended(
    server: CallServer, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other links need the memory it holds; a link that is silent between calls may be so for ever."""
    monkeypatch.setattr(conversation, "STALL_SECONDS", 0.05)
    stopped, silent = other(server), other(server)
    assert silent.ask(1) == 1
    send(stopped, bytes(MIB), 2)
    wait_until(lambda: echo.closed == 1)
    wait_until(lambda: server.memory.held_bytes == 0)
    with pytest.raises(PeerError):
        while True:
            stopped.opened.wire.receive()
    assert silent.ask(2) == 2
    silent.close()
    stopped.close()


def test_frames_of_calls_are_short(server: CallServer, link: CallLink, echo: Echo) -> None:
    """The memory of an incomplete frame is not counted."""
    wire = link.opened.wire
    wire.send(wire.writer.frame(FRAME_CALL, b"\x01", bytes(PIECE_BYTES + 1)))
    wait_until(lambda: echo.closed == 1)


@pytest.mark.parametrize("seed", fresh_seeds(2))
def test_shares_add_up(seed: int) -> None:
    print("seed", seed)
    memory = CallMemory(10 * FREE_BYTES)

    def work(number: int) -> None:
        rng, share = random.Random(seed + number), Share(memory)
        for _ in range(2_000):
            try:
                if rng.random() < 0.6:
                    share.take(rng.randrange(4 * FREE_BYTES))
                else:
                    share.free(rng.randrange(4 * FREE_BYTES))
            except CallMemoryExhausted:
                assert share.held_bytes == 0
            assert 0 <= memory.held_bytes <= memory.most_bytes
        share.release()

    at_once(work, range(4))
    assert memory.held_bytes == 0


# --- hostile messages, both ways --------------------------------------------------------------------
COMPRESSED = stream_of(pa.table({"x": [0] * 1_000_000}), compression="zstd")
HOSTILE = [
    *(wrapped(250, EXTENSIONS.index("tuple")), b"\xdd\x01\x00\x00\x00" + b"\x90" * (1 << 24), b"\xc1", b"\x81\x01\x01"),
    msgpack.packb(msgpack.ExtType(EXTENSIONS.index("arrow table"), COMPRESSED)),
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_call_is_refused_and_the_link_continues(server: CallServer, link: CallLink, data: bytes) -> None:
    send(link, data)
    with pytest.raises(FrameRejected):
        answer_of(link)
    assert link.ask([1]) == [1]


@pytest.mark.parametrize(
    "data",
    [*HOSTILE, *(pack(each) for each in (None, [], [True], [True, 1, 2], [1, 1], [False, "no"], {"a": 1}))],
)
def test_hostile_answer_is_refused_and_the_link_is_ended(data: bytes) -> None:
    """A client is as safe from a server as a server is from clients."""

    def serve(met: OpenLink, wake: Wake) -> None:
        met.wire.wait_long()
        met.wire.receive()
        for frame in frames_of(met.wire.writer, FRAME_ANSWER, [data], PIECE_BYTES):
            met.wire.send(frame)

    liar = Server(("127.0.0.1", 0), Client(STORE), SECRET, None, SystemClock(), serve)
    liar.start()
    try:
        link = CallLink(liar.address, SECRET, None, SystemClock())
        with pytest.raises(FrameRejected):
            link.ask(["where"])
        assert link.is_broken
    finally:
        liar.close()


@pytest.mark.parametrize(
    "answer",
    [
        *(5, [], {}, {"view": "x", "primary": None, "members": []}, {"view": 1, "primary": 5, "members": []}),
        *(
            {"view": 1, "primary": ("h", "p"), "members": []},
            {"view": 1, "primary": None, "members": [("h", 1)] * 1_000},
        ),
        {"view": 1, "primary": None, "members": "host"},
    ],
    ids=range(8),
)
def test_answer_that_names_no_nodes_is_refused(server: CallServer, echo: Echo, answer: Any) -> None:
    """Story: the client had a tenth of a second, in which a busy machine answered nothing. Pauses of a manual clock
    take no time: each attempt has seconds, and the test does not wait.
    """
    echo.answers = lambda what: answer
    with pytest.raises(PeerError, match="which nodes"):
        with RemoteDatabase(Links([server.address], SECRET, None, ManualClock(), 10_000)) as remote:
            len(remote["test.account"])


def test_error_that_is_too_much_to_send_comes_without_its_evidence(link: CallLink, echo: Echo) -> None:
    """Story: an error that could not be sent raised another one, which ended the thread of the link."""
    deep: list[Any] = []
    for _ in range(31):
        deep = [deep]

    for error in (LimitExceeded("m" * MIB), LimitExceeded("m", row=bytes(MIB)), LimitExceeded("m", row=deep)):

        def fail(what: Any, error: LimitExceeded = error) -> Any:
            raise error

        echo.answers = fail
        with pytest.raises(LimitExceeded, match="m") as caught:
            link.ask(1)
        assert len(caught.value.message) <= 1_000 and not isinstance(caught.value.evidence.get("row"), bytes)
    assert not link.is_broken


def test_condition_of_many_equalities_is_asked_from_outside(tmp_path: Any) -> None:
    """Story: this harmless scan ended the store's process by SIGSEGV."""
    with tm.open(tmp_path / "store", data_memory="16 MiB", redo_log="8 MiB") as db:
        db.create_table("test.account", ACCOUNT, "id")
        db["test.account"].insert_many([(number, "ann", 1.0, None) for number in range(3_000)])
        where = tm.col("id") == 0
        for number in range(1, 2_500):
            where = where | (tm.col("id") == number)
        with client_of(db) as remote:
            assert remote["test.account"].scan(where=where).count() == 2_500
            assert remote["test.account"].scan(where=~where & (tm.col("owner") == "ann")).count() == 500
            assert db["test.account"].scan(where=where).count() == 2_500
