"""Sessions over real sockets, plain and with TLS; strangers and broken links."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.replication.doubles import REPLICA, SECRET, SOURCE, MemoryBinlog, MemoryRelay
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import PeerError, PeerUnproved
from tidemark.replication.wire.link import Caller, LinkOptions, Listener
from tidemark.replication.wire.messages import FIRST_POSITION, Events, Start
from tidemark.replication.wire.wire import client_tls, server_tls

HOST = "127.0.0.1"
CLOCK = SystemClock()


class WaitingRelay(MemoryRelay):
    """A relay log that signals when this many bytes have come."""

    def __init__(self, wanted_bytes: int) -> None:
        super().__init__()
        self.wanted_bytes = wanted_bytes
        self.is_there = threading.Event()

    def append(self, events: Events) -> None:
        super().append(events)
        if sum(map(len, self.files.values())) >= self.wanted_bytes:
            self.is_there.set()


@pytest.fixture(params=["plain", "tls"])
def both_options(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LinkOptions, LinkOptions]:
    if request.param == "plain":
        return LinkOptions(SOURCE, SECRET), LinkOptions(REPLICA, SECRET)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    for name, site in (("source", HOST), ("replica", "replica.test")):
        pair = authority.issue_cert(site)
        pair.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    files = {name: str(tmp_path / f"{name}.pem") for name in ("authority", "source", "replica")}
    return (
        LinkOptions(SOURCE, SECRET, server_tls(files["source"], files["source"], files["authority"])),
        LinkOptions(REPLICA, SECRET, client_tls(files["authority"], files["replica"], files["replica"])),
    )


@pytest.fixture
def binlog() -> MemoryBinlog:
    draw = random.Random(3)
    return MemoryBinlog(draw.randbytes(3_000_000), draw.randbytes(1_000))


@pytest.fixture
def listener(both_options: tuple[LinkOptions, LinkOptions], binlog: MemoryBinlog) -> Iterator[Listener]:
    made = Listener((HOST, 0), both_options[0], lambda: binlog, CLOCK)
    yield made
    made.close()


class Running:
    """A caller in a thread, and the error that ended it."""

    def __init__(self, caller: Caller, relay: MemoryRelay, start: Start) -> None:
        self.caller = caller
        self.error: PeerError | None = None
        self.thread = threading.Thread(target=self._run, args=(relay, start))
        self.thread.start()

    def _run(self, relay: MemoryRelay, start: Start) -> None:
        try:
            self.caller.run(relay, lambda _: start)
        except PeerError as error:
            self.error = error

    def end(self) -> PeerError | None:
        self.thread.join()
        self.caller.close()
        return self.error


def test_binlog_reaches_a_replica_and_what_is_written_later_follows(
    listener: Listener, both_options: tuple[LinkOptions, LinkOptions], binlog: MemoryBinlog
) -> None:
    relay = WaitingRelay(3_001_000)
    running = Running(Caller(listener.address, both_options[1], CLOCK), relay, Start(window_bytes=1 << 20))
    assert relay.is_there.wait(100)
    relay.is_there.clear()
    relay.wanted_bytes += 500
    binlog.files["log.000003"] = b"later" * 100
    listener.notify()
    assert relay.is_there.wait(100)
    running.caller.stop()
    assert running.end() is None
    assert relay.files == binlog.files
    assert running.caller.peer == SOURCE


def test_source_that_closes_says_goodbye(both_options: tuple[LinkOptions, LinkOptions], binlog: MemoryBinlog) -> None:
    listener = Listener((HOST, 0), both_options[0], lambda: binlog, CLOCK)
    relay = WaitingRelay(3_001_000)
    running = Running(Caller(listener.address, both_options[1], CLOCK), relay, Start())
    assert relay.is_there.wait(100)
    listener.close()
    assert running.end() is None


def test_replica_that_comes_back_continues_where_its_relay_ends(
    listener: Listener, both_options: tuple[LinkOptions, LinkOptions], binlog: MemoryBinlog
) -> None:
    relay = WaitingRelay(500_000)
    running = Running(Caller(listener.address, both_options[1], CLOCK), relay, Start(window_bytes=1 << 18))
    assert relay.is_there.wait(100)
    running.caller.stop()
    assert running.end() is None
    relay.is_there.clear()
    relay.wanted_bytes = 3_001_000
    file = max(relay.files)
    start = Start(file=file, position=FIRST_POSITION + len(relay.files[file]))
    running = Running(Caller(listener.address, both_options[1], CLOCK), relay, start)
    assert relay.is_there.wait(100)
    running.caller.stop()
    assert running.end() is None
    assert relay.files == binlog.files


def test_wrong_secret_is_refused_over_the_wire(
    listener: Listener, both_options: tuple[LinkOptions, LinkOptions]
) -> None:
    options = LinkOptions(REPLICA, b"not the secret of both", both_options[1].tls)
    caller = Caller(listener.address, options, CLOCK)
    with pytest.raises(PeerUnproved, match="does not know the secret"):
        caller.run(MemoryRelay(), lambda _: Start())
    caller.close()
    assert listener.sessions() == []


def test_purged_position_reaches_the_replica_with_its_class(
    listener: Listener, both_options: tuple[LinkOptions, LinkOptions]
) -> None:
    caller = Caller(listener.address, both_options[1], CLOCK)
    with pytest.raises(PeerError, match="log.000009 was purged"):
        caller.run(MemoryRelay(), lambda _: Start(file="log.000009", position=4))
    caller.close()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.0\r\n\r\n" + b"x" * 100, bytes(4_000), b"\x16\x03\x01" * 50])
def test_strangers_are_shut_out_and_the_source_serves_on(
    said: bytes, listener: Listener, both_options: tuple[LinkOptions, LinkOptions]
) -> None:
    with socket.create_connection(listener.address) as stranger:
        stranger.settimeout(30)
        try:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4_096):
                pass
        except OSError as error:  # shut out before it has sent everything, or while it receives
            assert not isinstance(error, TimeoutError)
    relay = WaitingRelay(1)
    running = Running(Caller(listener.address, both_options[1], CLOCK), relay, Start())
    assert relay.is_there.wait(100)
    running.caller.stop()
    assert running.end() is None


def test_silent_stranger_is_shut_out_by_the_deadline_of_the_handshake(
    both_options: tuple[LinkOptions, LinkOptions], binlog: MemoryBinlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.replication.wire.admission.HANDSHAKE_SECONDS", 0.2)
    listener = Listener((HOST, 0), both_options[0], lambda: binlog, CLOCK)
    with socket.create_connection(listener.address) as stranger:
        stranger.settimeout(30)
        try:
            while stranger.recv(4_096):
                pass
        except ConnectionResetError:
            pass
    listener.close()


def test_source_with_an_untrusted_certificate_is_refused(binlog: MemoryBinlog, tmp_path: Path) -> None:
    one, other = trustme.CA(), trustme.CA()
    one.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "source.pem"))
    other.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    pem = str(tmp_path / "source.pem")
    listener = Listener((HOST, 0), LinkOptions(SOURCE, SECRET, server_tls(pem, pem)), lambda: binlog, CLOCK)
    caller = Caller(listener.address, LinkOptions(REPLICA, SECRET, client_tls(str(tmp_path / "other.pem"))), CLOCK)
    with pytest.raises(PeerError, match="no TLS with"):
        caller.run(MemoryRelay(), lambda _: Start())
    caller.close()
    listener.close()


def test_address_in_use_is_a_peer_error_with_the_address() -> None:
    with socket.create_server((HOST, 0)) as taken:
        address = taken.getsockname()[:2]
        with pytest.raises(PeerError, match=str(address[1])):
            Listener(address, LinkOptions(SOURCE, SECRET), MemoryBinlog, CLOCK)
