"""Links between nodes: messages come in order or not at all, and no absent or unknown node holds up others."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

from tests.node_group.carriers import CLOCK, HOST, SECRET, STORE, End, Site, free_address
from tests.waiting import wait_until
from tidemark.engine.base.errors import LimitExceeded, PeerError, SchemaInvalid
from tidemark.replication.node_group import carrier, codec, outbox
from tidemark.replication.node_group.carrier import Secrets
from tidemark.replication.node_group.messages import Adopted, Applied, Groups, Opened
from tidemark.replication.node_group.party import CONVERSATION, MESSAGES, NO_STORE, NodeParty
from tidemark.replication.wire import wire
from tidemark.replication.wire.frame_layout import FRAME_NODE_MESSAGE
from tidemark.replication.wire.frames import FrameWriter
from tidemark.replication.wire.wire import call, client_tls, server_tls

ROOT = Path(__file__).resolve().parents[2]
WORDS = np.arange(100_000, dtype=np.int64)  # 800 kB


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


@pytest.fixture
def two(site: Site) -> tuple[End, End]:
    one, other = site.end(1), site.end(2)
    one.wait_for(2)
    other.wait_for(1)
    return one, other


def sent_all(end: End, node: int, messages: list[object]) -> None:
    """Send messages, waiting for room."""
    for each in messages:
        wait_until(lambda each=each: end.carrier.send(node, each))


# --- messages -----------------------------------------------------------------------------------
def test_messages_of_each_kind_come_in_their_order_from_any_thread(two: tuple[End, End]) -> None:
    one, other = two
    groups = [Groups(1, first, (WORDS[: 1 + first * 997 % 90_000],)) for first in range(60)]
    threads = [
        threading.Thread(target=sent_all, args=(one, 2, groups)),
        threading.Thread(target=sent_all, args=(one, 2, [Applied(1, at, at) for at in range(500)])),
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    wait_until(lambda: len(other.came) == 560)
    assert {(node, store) for node, store, _ in other.came} == {(1, bytes.fromhex(STORE))}
    assert [each.sequence for each in other.messages(Applied)] == list(range(500))
    for got, sent in zip(other.messages(Groups), groups, strict=True):
        assert got.first == sent.first and np.array_equal(got.groups[0], sent.groups[0])
    assert other.carrier.send(1, Opened(4))
    wait_until(lambda: one.messages() == [Opened(4)])


def test_what_has_no_room_is_dropped_and_counted_and_small_messages_pass_it(
    two: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that takes nothing costs no more memory than the queue, and its heartbeats pass the queued groups.

    Story of the test: the queue had no room only because its thread had not run yet; the waiting groups moved into the
    buffers of TCP before the heartbeat came. Now a heartbeat counts only if several queued groups were still to begin.
    """
    one, other = two
    monkeypatch.setattr(outbox, "LONG_LANE_BYTES", 4 << 20)
    other.may_take.clear()
    is_kept = [one.carrier.send(2, Groups(1, first, (WORDS,))) for first in range(100)]
    assert one.carrier.status()[2]["waiting_bytes"] <= 4 << 20
    dropped = one.carrier.status()[2]["dropped"]
    assert dropped == is_kept.count(False) > 50

    beats = itertools.count()
    later = 0  # groups that begin after the newest heartbeat

    def is_passing() -> bool:
        nonlocal later
        is_kept.append(one.carrier.send(2, Groups(1, 100, (WORDS,))))
        if is_kept[-1]:
            return False  # the buffers of TCP are not full yet
        assert one.carrier.send(2, Opened(next(beats)))
        later = one.carrier.status()[2]["waiting_bytes"] // WORDS.nbytes - 1  # one may be under way
        return later > 2

    wait_until(is_passing)
    newest = Opened(next(beats) - 1)
    other.may_take.set()
    # Messages that have left the queue may still be in the buffers of TCP.
    wait_until(lambda: len(other.messages(Groups)) == is_kept.count(True) and newest in other.messages())
    after = other.messages()[other.messages().index(newest) + 1 :]
    assert len([each for each in after if isinstance(each, Groups)]) >= later, "groups that waited came before it"
    firsts = [each.first for each in other.messages(Groups)]
    assert firsts == sorted(firsts)


def test_one_message_larger_than_the_queue_still_goes(two: tuple[End, End], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two
    monkeypatch.setattr(outbox, "LONG_LANE_BYTES", 1_000)
    assert one.carrier.send(2, Groups(1, 1, (WORDS, WORDS)))
    wait_until(lambda: len(other.came) == 1)
    assert np.array_equal(other.messages()[0].groups[1], WORDS)


def test_message_that_no_node_would_take_is_refused_where_it_is_sent(two: tuple[End, End]) -> None:
    one, other = two
    with pytest.raises(LimitExceeded):
        one.carrier.send(2, Adopted(1, 1, 1, ((1, 1),) * 40_000))
    assert not one.carrier.send(3, Opened(1)), "no node has this number"
    assert one.carrier.send(2, Opened(1))
    wait_until(lambda: other.messages() == [Opened(1)])


def test_small_messages_that_wait_are_sent_before_a_carrier_closes(two: tuple[End, End]) -> None:
    one, other = two
    for number in range(200):
        one.carrier.send(2, Opened(number))
    one.carrier.close()
    wait_until(lambda: len(other.came) == 200)


def test_descriptors_above_those_that_select_knows_are_waited_for() -> None:
    """An open store may have more than 1,023 files and sockets; `select` refuses higher descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4_096), hard))
    opened = [os.dup(0) for _ in range(1_100)]
    site = Site()
    try:
        one, other = site.end(1), site.end(2)
        one.wait_for(2)
        assert one.carrier.send(2, Opened(1))
        wait_until(lambda: other.messages() == [Opened(1)])
        with one.carrier.converse(2) as link:
            assert not link.wait(0.01)
            other.may_end.set()
            with pytest.raises(PeerError):
                link.receive()
    finally:
        site.close()
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- links that break ---------------------------------------------------------------------------
def test_node_that_ends_is_reported_once_and_connected_again_when_it_is_back(
    site: Site, two: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    tries: list[Any] = []
    monkeypatch.setattr(carrier, "call", lambda *given: tries.append(given) or call(*given))
    other.carrier.close()
    wait_until(lambda: one.gone == [2])
    wait_until(lambda: len(tries) > 4)
    assert not one.is_connected(2) and not one.carrier.send(2, Opened(1))
    again = site.end(2, incarnation=2)
    one.wait_for(2)
    again.wait_for(1)
    assert one.carrier.send(2, Opened(2))
    wait_until(lambda: again.messages() == [Opened(2)])
    assert one.gone == [2], "once for each break"
    again.carrier.close()
    wait_until(lambda: one.gone == [2, 2])
    assert other.messages() == []


def test_node_that_was_never_there_is_not_gone(site: Site) -> None:
    one = site.end(1)
    wait_until(lambda: bool(one.carrier.senders[2].reported_error))
    other = site.end(2)
    one.wait_for(2)
    assert one.gone == []
    other.carrier.close()


class Process:
    """A node in a process of its own that prints the messages it receives."""

    def __init__(self, site: Site, number: int) -> None:
        peers = ",".join(f"{each}={port}" for each, (_, port) in site.peers.items())
        command = [sys.executable, "-m", "tests.node_group.carrier_process", str(number), peers]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        """Return the next line it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        """Kill it, whatever it does."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, End, Process]]:
    # TCP breaks a connection that takes nothing. That must not be what ends the waits of these tests.
    monkeypatch.setattr(wire.Wire, "wait_long", lambda self, untaken_ms=0: self.connection.settimeout(None))
    site = Site((1, 2, 3))
    one = site.end(1)
    made = Process(site, 2)
    try:
        one.wait_for(2)
        yield site, one, made
    finally:
        made.end()
        site.close()


def test_process_that_is_killed_is_gone_and_no_other_is_held_up(process: tuple[Site, End, Process]) -> None:
    site, one, killed = process
    third = site.end(3)
    one.wait_for(2, 3)
    assert one.carrier.send(2, Opened(4)) and killed.line() == "1 Opened(view=4, epoch=0, sequence=0)"
    killed.process.send_signal(signal.SIGKILL)
    wait_until(lambda: 2 in one.gone)
    assert one.carrier.send(3, Opened(5))
    wait_until(lambda: third.messages() == [Opened(5)])


def test_process_that_is_stopped_delays_no_other_and_continues_where_it_was(process: tuple[Site, End, Process]) -> None:
    site, one, stopped = process
    third = site.end(3)
    one.wait_for(2, 3)
    stopped.process.send_signal(signal.SIGSTOP)
    for first in range(60):
        one.carrier.send(2, Groups(1, first, (WORDS,)))
        assert one.carrier.send(3, Opened(first))
    wait_until(lambda: len(third.came) == 60)
    assert one.carrier.status()[2]["waiting_bytes"] <= outbox.LONG_LANE_BYTES and one.carrier.status()[2]["dropped"]
    assert one.gone == [], "its machine has not said that it is dead"
    stopped.process.send_signal(signal.SIGCONT)
    seen: list[str] = []
    wait_until(lambda: one.carrier.send(2, Opened(77)))
    while "1 Opened(view=77, epoch=0, sequence=0)" not in seen:
        seen.append(stopped.line())
        assert seen[-1], "it has ended"
    stopped.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: not one.carrier.send(2, Groups(1, 1, (WORDS,))))
    one.carrier.close()
    assert not one.carrier.senders[2].thread.is_alive()


# --- strangers ----------------------------------------------------------------------------------
def test_node_with_another_secret_is_refused_by_both_sides(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    one = site.end(1)
    liar = site.end(2, secrets=Secrets(b"another secret of theirs"))
    wait_until(lambda: caplog.text.count("secret") >= 2)
    assert not one.is_connected(2) and not liar.is_connected(1)
    assert one.came == liar.came == []
    with pytest.raises(SchemaInvalid):
        site.end(2, secrets=Secrets(b"short"))


def test_node_that_is_not_configured_and_one_at_another_ones_address_are_refused(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    one = site.end(1)
    stranger = site.end(7, listen=free_address(), peers={1: site.peers[1], 7: (HOST, 1)})
    wait_until(lambda: "node 7 is not one this node talks to" in caplog.text)
    swapped = site.end(3, listen=site.peers[2], peers={1: (HOST, 1), 3: site.peers[2]})
    wait_until(lambda: "node 3 is not one this node talks to" in caplog.text)
    assert not one.is_connected(2) and not stranger.is_connected(1)
    assert one.came == swapped.came == []


def test_node_of_another_store_and_one_without_are_carried_with_their_stores(site: Site) -> None:
    """Carriers report the store of each message; the view machines decide whether it is another store."""
    one, other = site.end(1), site.end(2, store="cd" * 16)
    other.wait_for(1)
    assert other.carrier.send(1, Opened(3))
    wait_until(lambda: one.came == [(2, bytes.fromhex("cd" * 16), Opened(3))])
    other.carrier.close()
    empty = site.end(2, store=NO_STORE)
    empty.wait_for(1)
    assert empty.carrier.send(1, Opened(4))
    wait_until(lambda: one.came[1:] == [(2, bytes(16), Opened(4))])
    empty.carrier.become(STORE, 8)
    wait_until(lambda: empty.carrier.send(1, Opened(5)) and len(one.came) > 2 and one.came[-1][1] != bytes(16))
    assert one.came[-1] == (2, bytes.fromhex(STORE), Opened(5))


def test_node_that_gets_its_store_while_it_connects_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its link would say for ever that it has none, and the machines would refuse every message."""
    one = site.end(1)
    ends: list[End] = []

    def late(*given: Any) -> Any:
        met = call(*given)
        if given[1].store == NO_STORE:
            wait_until(lambda: bool(ends))
            ends[0].carrier.become(STORE, 2)
        return met

    monkeypatch.setattr(carrier, "call", late)
    ends.append(site.end(2, store=NO_STORE))
    ends[0].wait_for(1)
    assert ends[0].carrier.send(1, Opened(5))
    wait_until(lambda: one.came == [(2, bytes.fromhex(STORE), Opened(5))])


def test_of_two_processes_with_one_number_only_one_is_heard(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A copied directory, started next to the original, must not have its votes counted as those of the original."""
    one = site.end(1)
    first = site.end(2, incarnation=5)
    first.wait_for(1)
    one.wait_for(2)
    alive = threading.Event()
    beats = threading.Thread(
        target=lambda: [first.carrier.send(1, Opened(2)) for _ in iter(lambda: alive.wait(0.05), True)]
    )
    beats.start()
    try:
        older = site.end(2, incarnation=5, listen=free_address())
        wait_until(lambda: "two processes claim to be node 2" in caplog.text)
        wait_until(lambda: len(one.messages()) > 5)
        assert not older.carrier.send(1, Opened(9)) or one.messages().count(Opened(9)) == 0
        newer = site.end(2, incarnation=6, listen=free_address())
        wait_until(lambda: newer.carrier.send(1, Opened(6)) and Opened(6) in one.messages())
        assert "node 2 is another process now (incarnation 6, before 5)" in caplog.text
        before = one.messages().count(Opened(2))
        wait_until(lambda: newer.carrier.send(1, Opened(7)) and one.messages().count(Opened(7)) > 5)
        assert one.messages().count(Opened(2)) == before, "the older one is heard no more"
    finally:
        alive.set()
        beats.join()
    assert Opened(9) not in one.messages()


def raw_link(site: Site, end: End, purpose: str = MESSAGES) -> tuple[socket.socket, FrameWriter]:
    """Open a link of node 2 on which the test writes the bytes."""
    party = NodeParty(STORE, 2, 1, purpose, "ab" * 8, others=frozenset({1}))
    met = call(end.carrier.address, party, SECRET, None, CLOCK)
    return met.wire.connection, met.wire.writer


def test_rubbish_shuts_the_link_and_nothing_else(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    one = site.end(1)
    third = Site((1, 3))
    third.peers[1] = site.peers[1]
    for rubbish in (
        lambda writer: b"rubbish" * 50,
        lambda writer: writer.frame(FRAME_NODE_MESSAGE, b"rubbish" * 50),
        lambda writer: writer.frame(99, b""),
        lambda writer: writer.frame(FRAME_NODE_MESSAGE, b"".join(codec.encode(codec.restart.Taken(1)))),
    ):
        connection, writer = raw_link(site, one)
        connection.settimeout(30)
        connection.sendall(rubbish(writer))
        while connection.recv(1_000):
            pass  # it receives the reason, then the end
        connection.close()
    for hello in (b"GET / HTTP/1.1\r\n\r\n" * 9, b""):
        with socket.create_connection(one.carrier.address) as stranger:
            stranger.sendall(hello)
    assert one.came == []
    other = site.end(2)
    other.wait_for(1)
    assert other.carrier.send(1, Opened(1))
    wait_until(lambda: one.messages() == [Opened(1)])


def test_newer_link_of_one_process_takes_the_place_of_the_older(site: Site) -> None:
    """A link whose end was not noticed must not deliver its messages after those of the next link."""
    one = site.end(1)
    one.may_take.clear()
    older, writer = raw_link(site, one)
    said = [writer.frame(FRAME_NODE_MESSAGE, *codec.encode(Opened(at))) for at in range(3)]
    older.sendall(b"".join(said))
    wait_until(lambda: one.is_taking)
    newer, writer = raw_link(site, one)
    newer.sendall(writer.frame(FRAME_NODE_MESSAGE, *codec.encode(Opened(9))))
    older.settimeout(60)
    assert not older.recv(1), "it is cut"
    one.may_take.set()
    wait_until(lambda: Opened(9) in one.messages())
    assert one.messages() == [Opened(0), Opened(9)]
    older.close()
    newer.close()


# --- TLS ----------------------------------------------------------------------------------------
@pytest.fixture
def tls(tmp_path: Path) -> Secrets:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    pair = authority.issue_cert(HOST)
    pair.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "node.pem"))
    node, vouching = str(tmp_path / "node.pem"), str(tmp_path / "authority.pem")
    return Secrets(SECRET, server_tls(node, node, vouching), client_tls(vouching, node, node))


def test_links_with_tls_carry_the_same_and_plain_ones_are_refused(tls: Secrets) -> None:
    site = Site((1, 2, 3), tls)
    one, other = site.end(1), site.end(2)
    one.wait_for(2)
    other.wait_for(1)
    groups = [Groups(1, first, (WORDS,)) for first in range(30)]
    sent_all(one, 2, [*groups, Opened(1)])
    wait_until(lambda: len(other.came) == 31)
    assert all(np.array_equal(each.groups[0], WORDS) for each in other.messages(Groups))
    plain = site.end(3, secrets=Secrets(SECRET))
    wait_until(lambda: bool(plain.carrier.senders[1].reported_error))
    assert not plain.is_connected(1)
    other.carrier.close()
    wait_until(lambda: one.gone == [2])
    site.close()


def test_purposes_that_do_not_fit_are_refused(site: Site) -> None:
    one = site.end(1)
    with pytest.raises(PeerError):
        raw_link(site, one, "")
    connection, _ = raw_link(site, one, CONVERSATION)
    assert one.is_serving.wait(60)
    one.may_end.set()
    connection.close()
