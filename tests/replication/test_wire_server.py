"""`Server` from outside: a recorded handshake cannot be used again, and strangers take neither time nor places."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from tests.replication.doubles import REPLICA, SECRET, SOURCE
from tests.waiting import wait_until
from tidemark.engine.base.clock import ManualClock, SystemClock
from tidemark.engine.base.errors import PeerError
from tidemark.replication.wire import server as called
from tidemark.replication.wire import wire
from tidemark.replication.wire.frames import FrameReader, FrameWriter
from tidemark.replication.wire.handshake import CallerHandshake

HOST = "127.0.0.1"
PATIENCE_SECONDS = 60.0


@pytest.fixture
def met() -> list[wire.OpenLink]:
    """Return the list of callers that were let in."""
    return []


@pytest.fixture
def server(met: list[wire.OpenLink]) -> Iterator[called.Server]:
    """Run a server for two callers at a time, each until it leaves."""

    def serve(one: wire.OpenLink, wake: wire.Wake) -> None:
        met.append(one)
        while not made.is_closed:
            if wire.wait_readable(one.wire, wake):
                one.wire.receive()

    made = called.Server((HOST, 0), SOURCE, SECRET, None, SystemClock(), serve, callers_max=2)
    made.start()
    yield made
    made.close()


def said_in_a_handshake(address: tuple[str, int]) -> list[bytes]:
    """Return what a caller that knows the secret sends to be let in."""
    reader, writer = FrameReader(), FrameWriter()
    handshake = CallerHandshake(REPLICA, SECRET, bytes(32), reader, writer)
    with socket.create_connection(address, PATIENCE_SECONDS) as connection:
        said = [handshake.begin()]
        connection.sendall(said[0])
        while not handshake.is_done:
            for frame in reader.feed(connection.recv(4_096)):
                said.append(handshake.receive(frame))
                connection.sendall(said[-1])
    return said


def shut_out(connection: socket.socket) -> None:
    """Return when the other side has shut the link."""
    with suppress(ConnectionResetError):
        while connection.recv(4_096):
            pass


def test_handshake_that_was_recorded_is_refused(server: called.Server, met: list[wire.OpenLink]) -> None:
    said = said_in_a_handshake(server.address)
    wait_until(lambda: len(met) == 1)
    with socket.create_connection(server.address, PATIENCE_SECONDS) as connection:
        with suppress(ConnectionResetError, BrokenPipeError):
            for each in said:
                connection.sendall(each)
        shut_out(connection)
    assert len(met) == 1


class AskedClock(ManualClock):
    """A clock that signals when it is asked for the time."""

    def __init__(self) -> None:
        super().__init__()
        self.was_asked = threading.Event()

    def monotonic(self) -> float:
        now = super().monotonic()
        self.was_asked.set()
        return now


def test_stranger_that_drips_bytes_is_shut_out_by_the_deadline_of_the_whole_handshake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = AskedClock()
    server = called.Server((HOST, 0), SOURCE, SECRET, None, clock, lambda one, wake: None)
    server.start()
    hello = CallerHandshake(REPLICA, SECRET, bytes(32), FrameReader(), FrameWriter()).begin()
    with socket.create_connection(server.address, PATIENCE_SECONDS) as connection:
        connection.sendall(hello[:1])
        assert clock.was_asked.wait(PATIENCE_SECONDS)
        clock.advance(wire.HANDSHAKE_SECONDS)
        connection.sendall(hello[1:2])
        shut_out(connection)
    server.close()
    assert "the handshake took more than" in caplog.text


def test_callers_above_the_limit_are_shut_out_until_one_leaves(server: called.Server, met: list[wire.OpenLink]) -> None:
    clock = SystemClock()

    def is_let_in() -> bool:
        with suppress(PeerError):
            links.append(stack.enter_context(closing(wire.call(server.address, REPLICA, SECRET, None, clock).wire)))
            return True
        return False

    links: list[wire.Wire] = []
    with ExitStack() as stack:
        assert is_let_in() and is_let_in()
        assert not is_let_in()
        assert len(links) == 2
        links[0].close()
        wait_until(is_let_in)
        wait_until(lambda: len(met) == 3)


def test_link_that_the_other_side_has_shut_takes_nothing_more() -> None:
    """What was sent into the link must not count as sent."""
    one, other = socket.socketpair()
    with closing(wire.Wire(one)) as link:
        other.close()
        with pytest.raises(PeerError, match="the link broke"):
            link.send(b"a frame")
        with pytest.raises(PeerError, match="the link broke"):
            link.send_and_take(b"a frame", lambda: False, lambda: False)
