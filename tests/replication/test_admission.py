"""Unauthenticated connections take no place of a peer, keep no other connection waiting, and end no port (F105).

Each story happened on a server that gave every connection a thread, three descriptors and a place of the peers.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import trustme

from tests.replication.doubles import REPLICA, SECRET, SOURCE
from tests.replication.strangers import PORTS, visit
from tests.seeds import fresh_seeds
from tests.waiting import wait_until
from tidemark.engine.base.clock import Clock, ManualClock, SystemClock
from tidemark.engine.base.errors import PeerError, PeerRefused, PeerTimeout, PeerUnproved, PositionLost
from tidemark.engine.base.limited_log import EVERY_SECONDS, LimitedLog
from tidemark.recovery.crash_harness.forks import FORKS
from tidemark.replication.wire.admission import UNPROVED_MAX, UNPROVED_OF_ADDRESS_MAX
from tidemark.replication.wire.frame_layout import FRAME_HELLO
from tidemark.replication.wire.frames import Frame, FrameReader, FrameWriter
from tidemark.replication.wire.handshake import CalledHandshake, CallerHandshake, Site
from tidemark.replication.wire.server import Server
from tidemark.replication.wire.wire import OpenLink, TlsContext, Wake, Wire, call, client_tls, server_tls, wait_readable

HOST = "127.0.0.1"
CLOCK = SystemClock()
PATIENCE_SECONDS = 60.0


@pytest.fixture(autouse=True)
def patient_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let strangers stay until a test is over: on a busy machine the tests took longer than the handshake timeout."""
    monkeypatch.setattr("tidemark.replication.wire.admission.HANDSHAKE_SECONDS", 1e6)


def wait_counted(server: Server, **counts: int) -> None:
    """Wait until the numbers of connections are these at one moment: one is evicted before another gets its place."""
    wait_until(lambda: server.status().items() >= counts.items())


@contextmanager
def served(tls: TlsContext | None = None, callers_max: int = 64, clock: Clock = CLOCK) -> Iterator[Server]:
    """Run a server with callers that stay until they leave."""

    def serve(one: OpenLink, wake: Wake) -> None:
        while not server.is_closed:
            if wait_readable(one.wire, wake):
                one.wire.receive()

    server = Server((HOST, 0), SOURCE, SECRET, tls, clock, serve, callers_max)
    server.start()
    try:
        yield server
    finally:
        server.close()


def stranger(address: tuple[str, int], source: str = HOST) -> socket.socket:
    """Open a silent connection from an address of this machine."""
    return socket.create_connection(address, PATIENCE_SECONDS, (source, 0))


def peer(address: tuple[str, int], tls: TlsContext | None = None, site: Site = REPLICA) -> Wire:
    """Connect as a replica that knows the secret."""
    return call(address, site, SECRET, tls, CLOCK, PATIENCE_SECONDS).wire


def is_shut(connection: socket.socket) -> bool:
    """Whether the other side has shut it by now."""
    connection.setblocking(False)
    try:
        return not connection.recv(4_096)
    except BlockingIOError:
        return False
    except OSError:
        return True


def hello() -> bytes:
    """Return the first frame of a replica."""
    return CallerHandshake(REPLICA, SECRET, bytes(32), FrameReader(), FrameWriter()).begin()


# --- places ---------------------------------------------------------------------------------------
def test_idle_strangers_take_no_place_of_replicas() -> None:
    """Story: 80 idle connections held all places of replicas: 85 of 88 replicas were refused for ten seconds."""
    with served() as server, ExitStack() as stack:
        for _ in range(80):
            stack.enter_context(stranger(server.address))
        wait_until(lambda: server.status()["unproved"] == 80)
        for _ in range(64):
            stack.enter_context(closing(peer(server.address)))
        assert server.status()["served"] == 64


def test_strangers_above_their_quota_make_room_the_oldest_first() -> None:
    with served() as server, ExitStack() as stack:
        strangers = [stack.enter_context(stranger(server.address)) for _ in range(UNPROVED_OF_ADDRESS_MAX + 40)]
        wait_counted(server, evicted=40, unproved=UNPROVED_OF_ADDRESS_MAX)
        wait_until(lambda: all(map(is_shut, strangers[:40])))
        assert not any(map(is_shut, strangers[40:]))
        stack.enter_context(closing(peer(server.address)))


def test_stranger_that_says_nothing_makes_room_before_one_that_has_said_hello() -> None:
    """Story: strangers that came later shut out a peer on a slow machine in the middle of its handshake."""
    with served() as server, ExitStack() as stack:
        slow = stack.enter_context(stranger(server.address))
        slow.sendall(hello())
        assert slow.recv(4_096)
        silent = [stack.enter_context(stranger(server.address)) for _ in range(2 * UNPROVED_OF_ADDRESS_MAX)]
        wait_until(lambda: server.status()["evicted"] == UNPROVED_OF_ADDRESS_MAX + 1)
        assert not is_shut(slow) and is_shut(silent[0])


def test_flood_of_one_address_makes_room_for_another_address() -> None:
    with served() as server, ExitStack() as stack:
        few = [stack.enter_context(stranger(server.address, "127.0.0.2")) for _ in range(3)]
        wait_until(lambda: server.status()["unproved"] == 3)
        for source in ("127.0.0.3", "127.0.0.4", "127.0.0.5"):
            for _ in range(UNPROVED_OF_ADDRESS_MAX):
                stack.enter_context(stranger(server.address, source))
        wait_counted(server, evicted=3 * UNPROVED_OF_ADDRESS_MAX + 3 - UNPROVED_MAX, unproved=UNPROVED_MAX)
        assert not any(map(is_shut, few))


def test_peer_above_the_limit_is_refused_after_its_proof() -> None:
    with served(callers_max=1) as server, closing(peer(server.address)):
        with pytest.raises(PeerError, match="1 replicas are served already") as reported:
            peer(server.address)
        assert type(reported.value) is PeerError  # retryable: a place becomes free


def test_stranger_that_stops_in_the_middle_of_tls_keeps_no_other_waiting(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "source.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    pem = str(tmp_path / "source.pem")
    with served(server_tls(pem, pem)) as server, ExitStack() as stack:
        silent, half = (stack.enter_context(stranger(server.address)) for _ in range(2))
        half.sendall(b"\x16\x03\x01\x02\x00\x01")
        wait_until(lambda: server.status()["unproved"] == 2)
        stack.enter_context(closing(peer(server.address, client_tls(str(tmp_path / "authority.pem")))))
        assert server.status() == {"served": 1, "unproved": 2, "failed": 0, "evicted": 0}
        silent.sendall(b"GET / HTTP/1.0\r\n\r\n")
        wait_until(lambda: server.status()["failed"] == 1)


def test_frames_that_come_with_the_proof_reach_the_session() -> None:
    met: list[OpenLink] = []
    heard = threading.Event()

    def serve(one: OpenLink, _: Wake) -> None:
        met.append(one)
        heard.set()

    server = Server((HOST, 0), SOURCE, SECRET, None, CLOCK, serve)
    server.start()
    reader, writer = FrameReader(), FrameWriter()
    handshake = CallerHandshake(REPLICA, SECRET, bytes(32), reader, writer)
    with stranger(server.address) as connection:
        connection.sendall(handshake.begin())
        (challenge,) = reader.feed(connection.recv(4_096))
        connection.sendall(handshake.receive(challenge) + writer.frame(22, b"") + writer.frame(22, b"x"))
        assert heard.wait(PATIENCE_SECONDS)
    server.close()
    assert met[0].early == [Frame(22, b""), Frame(22, b"x")] and met[0].peer == REPLICA


@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_strangers_at_every_port_of_a_node_keep_no_client_and_no_peer_out(seed: int, tmp_path: Path) -> None:
    """Strangers of each kind at the ports of clients, replicas, nodes and arbitrator; the soak has 10,000."""
    shown = visit(tmp_path, 2.0, 800, seed)
    assert shown["peers_let_in"] >= 2 * len(PORTS) and shown["connected"] >= 64


# --- the system gives nothing more -----------------------------------------------------------------
def _without_descriptors(address: Connection, spare: int) -> None:
    """Run a server in a process that may open few files; it ends with its end of the pipe."""
    with served() as server:
        here = len(os.listdir("/proc/self/fd")) - 1  # without that of the listing itself
        resource.setrlimit(resource.RLIMIT_NOFILE, (here + spare, here + spare))
        address.send(server.address)
        while address.recv():
            address.send(server.status())


@pytest.mark.parametrize("spare", [1, 2, 12])
def test_port_lives_when_the_process_is_out_of_descriptors(spare: int) -> None:
    """Story: four hundred idle connections under `ulimit -n 1024`. The wake-up pair for the next one could not be made,
    and the thread that accepts connections ended for good.
    """
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=_without_descriptors, args=(theirs, spare), daemon=True)
    process.start()
    theirs.close()
    address = ours.recv()
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(stranger(address))
        # The link and its wake-up take a descriptor each; the oldest strangers make room for the first of the two.
        if spare > 1:
            with closing(peer(address)):
                ours.send(True)
                assert ours.recv()["served"] == 1
        else:
            with pytest.raises(PeerError, match="out of descriptors"):
                peer(address)
    ours.send(True)
    assert ours.recv()["evicted"] > 0
    ours.send(False)
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == 0


class _Broken(SystemClock):
    """A clock that, while `is_broken`, fails in the admission thread, where a new connection needs a nonce."""

    def __init__(self) -> None:
        self.is_broken = threading.Event()

    def random_bytes(self, count: int) -> bytes:  # type: ignore[override]  # a static method there
        if self.is_broken.is_set() and threading.current_thread().name == f"tidemark-{SOURCE.called}":
            self.is_broken.clear()
            raise ValueError("a defect of ours")
        return CLOCK.random_bytes(count)


def test_port_outlives_a_defect_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """Story: a turn of the thread survived errors of the system; any other error ended the thread and with it the port.

    Story of the test: asking for the time was the defect. The thread, slow on a busy machine, asked for the time again
    for the connection before, and the connection that was to meet the defect was served.
    """
    clock = _Broken()
    with served(clock=clock) as server, closing(peer(server.address)), stranger(server.address):
        wait_until(lambda: server.status()["unproved"] == 1)
        clock.is_broken.set()
        with pytest.raises(PeerError):
            peer(server.address)
        with closing(peer(server.address)):
            assert server.status()["served"] == 2 and not clock.is_broken.is_set()
    (reported,) = (each for each in caplog.records if each.exc_info)
    assert "a defect of ours" in reported.getMessage()


# --- what a stranger may say ------------------------------------------------------------------------
@contextmanager
def lying(answer: Callable[[Wire], None]) -> Iterator[tuple[str, int]]:
    """Listen as an attacker on the path, which answers one caller in place of the source."""
    with socket.create_server((HOST, 0)) as listener:

        def run() -> None:
            with closing(Wire(listener.accept()[0])) as wire, suppress(PeerError):
                answer(wire)
                while True:
                    wire.receive()

        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()[:2]
        thread.join()


def refuse(handshake: CalledHandshake, wire: Wire, error: PeerError) -> None:
    wire.send(handshake.refusal(error))


@pytest.mark.parametrize("after_proof", [False, True], ids=["at once", "after the proof"])
@pytest.mark.parametrize("error", [PositionLost("gone"), PeerRefused("no"), PeerError("later")], ids=repr)
def test_unsealed_refusal_ends_no_channel(error: PeerError, after_proof: bool) -> None:
    """Story: an unsealed PositionLost was believed before any proof, and ended a channel for good."""

    def answer(wire: Wire) -> None:
        handshake = CalledHandshake(SOURCE, b"another secret than theirs", bytes(32), wire.reader, wire.writer)
        if after_proof:
            (frame,) = wire.reader.feed(wire.receive())
            wire.send(handshake.receive(frame))
            wire.receive()
        wire.send(handshake.refusal(error))

    with lying(answer) as address, pytest.raises(PeerUnproved, match=error.message):
        peer(address)


def test_site_that_is_only_claimed_is_not_judged() -> None:
    """Story: a challenge with the caller's own store was believed: PeerRefused, and the channel ended."""

    def answer(wire: Wire) -> None:
        mirror = CalledHandshake(REPLICA, b"another secret than theirs", bytes(32), wire.reader, wire.writer)
        (frame,) = wire.reader.feed(wire.receive())
        wire.send(mirror.receive(frame))

    with lying(answer) as address, pytest.raises((PeerUnproved, PeerTimeout)):
        call(address, REPLICA, SECRET, None, CLOCK, 0.5)


def test_peer_with_the_secret_is_refused_in_a_sealed_frame() -> None:
    with served() as server:
        for same in (Site(1, "cd" * 16, 5), Site(2, SOURCE.store, 5)):
            with pytest.raises(PeerRefused, match="the other side says"):
                # The caller presents another identity and refuses none, so that only the source refuses.
                call(server.address, _Lenient(same.server_id, same.store, 5), SECRET, None, CLOCK, PATIENCE_SECONDS)
        assert server.status()["served"] == 0


class _Lenient(Site):
    """A site that refuses no peer."""

    def peer_from(self, content: dict[str, object]) -> Site:  # type: ignore[override]
        return self


# --- lines in the log --------------------------------------------------------------------------------
def test_strangers_write_one_line_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """Story: each stranger wrote a line, and a port scan filled the log."""
    clock = ManualClock()
    limited = LimitedLog(logging.getLogger("tidemark.test"), clock)
    for number in range(1_000):
        limited.warning(f"stranger {number}")
    assert [each.getMessage() for each in caplog.records] == ["stranger 0"]
    clock.advance(EVERY_SECONDS)
    limited.warning("the next")
    limited.warning("another")
    assert caplog.records[1].getMessage() == "the next (similar lines left out before: 999)"
    assert len(caplog.records) == 2


# --- waking ------------------------------------------------------------------------------------------
def test_wake_that_is_closed_touches_no_other_file(tmp_path: Path) -> None:
    """The descriptor of a closed wake-up may be that of a data file a moment later."""
    wake = Wake()
    number = wake.descriptor
    wake()
    wake.wait(PATIENCE_SECONDS)
    wake.close()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.dup2(file, number)
    wake()
    wake.close()
    assert os.fstat(number).st_size == 0  # it is open, and nothing was written
    for each in {file, number}:
        os.close(each)


def test_first_frame_is_a_hello() -> None:
    assert next(FrameReader().feed(hello())).kind == FRAME_HELLO
