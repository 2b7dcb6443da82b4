"""`python -m tests.replication.strangers DIR --seconds 600 --strangers 10000`: strangers at every port of a process.

One child process has a node with clients and replicas, and its arbitrator: four ports. Another child is the strangers:
idle ones, ones that drip a byte a second, and malicious ones (a hello with a wrong proof, rubbish, false lengths). A
stranger that is shut out comes again some seconds later. In this process a client commits one row at a time, before the
strangers come and while they are there. In between the strangers visit another process with similar ports: the time of
a commit then shows what they take of this machine by themselves, apart from the cost of their visit.

Checked: every commit is acknowledged, peers that connect anew get in at each port, memory of the process grows by less
than 64 MiB, its descriptors stay within the quota, and every port still works at the end. Reported: commit times.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import tidemark as tm
from tests.node_group.site import OPTIONS, PATIENCE_MS, SECRET
from tests.ports import free_ports
from tests.waiting import wait_until
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import PeerError
from tidemark.recovery.crash_harness.forks import FORKS
from tidemark.replication.calls.conversation import Client
from tidemark.replication.node_group.party import MESSAGES, NodeParty
from tidemark.replication.wire.admission import UNPROVED_MAX
from tidemark.replication.wire.frames import FrameReader, FrameWriter
from tidemark.replication.wire.handshake import CallerHandshake, Party, Site
from tidemark.replication.wire.server import Server
from tidemark.replication.wire.wire import call

HOST = "127.0.0.1"
CLOCK = SystemClock()
MEMORY_BYTES_MAX = 64 << 20
_NODE = NodeParty("0" * 32, 2, 1, MESSAGES, others=frozenset((0, 1)))  # of another group: refused after its proof
PORTS: dict[str, Party] = {
    "calls": Client(),
    "replicas": Site(2, "cd" * 16, 1),
    "node": _NODE,
    "arbitrator": _NODE,
}
# Besides strangers, a port has the peers of this run and their wake-ups.
PEERS_MAX = 64
# A peer that was evicted for strangers calls again, as channels, nodes and clients do.
ATTEMPTS_MAX = 10
PAUSE_SECONDS = (5.0, 10.0)
ADDRESSES = [HOST, *(f"127.0.1.{number}" for number in range(1, 200))]
KINDS = ("idle", "dripping", "wrong proof", "rubbish", "long")


# --- the process that is visited ------------------------------------------------------------------
def _visited(folder: str, ports: dict[str, int], reported: Connection) -> None:
    group = f"1={HOST}:{ports['node']},arbitrator={HOST}:{ports['arbitrator']}"
    calls, replicas = (f"{HOST}:{ports[name]}" for name in ("calls", "replicas"))
    options = {**OPTIONS, "found": True, "replicas": replicas, "server_id": 1, "log_bin": "log"}
    with (
        tm.Arbitrator(Path(folder, "arbitrator"), group, SECRET, is_new=True),
        tm.NodeGroup(Path(folder, "node"), 1, group, SECRET, calls, **options) as node,
    ):
        node.wait_member(PATIENCE_MS)
        reported.send(os.getpid())
        reported.recv()


def _visited_elsewhere(count: int, reported: Connection) -> None:
    servers = [Server((HOST, 0), _NODE, SECRET, None, CLOCK, lambda met, wake: None) for _ in range(count)]
    for each in servers:
        each.start()
    reported.send([each.address[1] for each in servers])
    reported.recv()
    for each in servers:
        each.close()


# --- the strangers -----------------------------------------------------------------------------------
class Crowd:
    """Strangers in one thread, each with a port and a kind, from addresses of this machine."""

    def __init__(self, ports: list[int], count: int, seed: int) -> None:
        self._draw = random.Random(seed)
        self._poll = select.epoll()
        self._sockets: dict[int, tuple[socket.socket, int]] = {}
        self._due: list[tuple[float, int, int]] = []  # time, stranger, number of its connection
        self._lives = [0] * count
        self._targets = [
            (ports[number % len(ports)], KINDS[number // len(ports) % len(KINDS)]) for number in range(count)
        ]
        self.counts = dict.fromkeys(("connected", "shut_out", "refused"), 0)
        now = CLOCK.monotonic()
        for number in range(count):
            heapq.heappush(self._due, (now + self._draw.uniform(0, PAUSE_SECONDS[1]), number, 0))
        self._open: dict[int, int] = {}  # descriptors by stranger

    def run(self, is_over: Callable[[], bool]) -> None:
        """Visit the ports until the end."""
        while not is_over():
            now = CLOCK.monotonic()
            while self._due and self._due[0][0] <= now:
                _, number, life = heapq.heappop(self._due)
                if life == self._lives[number]:
                    self._act(number, now)
            for descriptor, _ in self._poll.poll(0.05, 512):
                self._hear(descriptor)

    def _act(self, number: int, now: float) -> None:
        port, kind = self._targets[number]
        if number not in self._open:
            self._connect(number, port, now)
        connection = self._sockets[self._open[number]][0] if number in self._open else None
        if connection is None:
            return
        with suppress(OSError):
            if kind == "dripping":
                connection.send(b"T")
                heapq.heappush(self._due, (now + 1.0, number, self._lives[number]))
            elif kind == "wrong proof":
                connection.send(_hello())
            elif kind == "rubbish":
                connection.send(self._draw.randbytes(200))
            elif kind == "long":
                connection.send(b"TMK1\x01\x00\x00\x00\xff\xff\xff\xff" + bytes(28))

    def _connect(self, number: int, port: int, now: float) -> None:
        connection = socket.socket()
        try:
            connection.setblocking(False)
            connection.bind((self._draw.choice(ADDRESSES), 0))
            with suppress(BlockingIOError):
                connection.connect((HOST, port))
        except OSError:
            connection.close()
            self.counts["refused"] += 1
            self._again(number, now)
            return
        descriptor = connection.fileno()
        self._sockets[descriptor] = connection, number
        self._open[number] = descriptor
        self._poll.register(descriptor, select.EPOLLIN | select.EPOLLHUP)
        self.counts["connected"] += 1

    def _hear(self, descriptor: int) -> None:
        connection, number = self._sockets[descriptor]
        try:
            data = connection.recv(4_096)
            if data:
                connection.send(_wrong_proof())
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.counts["shut_out"] += 1
        self._poll.unregister(descriptor)
        del self._sockets[descriptor], self._open[number]
        connection.close()
        self._again(number, CLOCK.monotonic())

    def _again(self, number: int, now: float) -> None:
        self._lives[number] += 1
        heapq.heappush(self._due, (now + self._draw.uniform(*PAUSE_SECONDS), number, self._lives[number]))


def _hello() -> bytes:
    return CallerHandshake(Site(2, "cd" * 16, 1), bytes(32), bytes(32), FrameReader(), FrameWriter()).begin()


def _wrong_proof() -> bytes:
    writer = FrameWriter()
    writer.frame(1, b"")
    return writer.frame(3, bytes(32))


def _strangers(ports: list[int], count: int, seed: int, reported: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    crowd = Crowd(ports, count, seed)
    crowd.run(reported.poll)
    reported.send(crowd.counts)


@contextmanager
def _crowd(ports: list[int], count: int, seed: int) -> Iterator[dict[str, int]]:
    """Let the strangers come; after the block they are gone, and the dict has their counts."""
    counts: dict[str, int] = {}
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=_strangers, args=(ports, count, seed, theirs), daemon=True)
    process.start()
    theirs.close()
    yield counts
    ours.send(None)
    counts.update(ours.recv())
    process.join()


@contextmanager
def _elsewhere(count: int) -> Iterator[list[int]]:
    """Yield the ports of another process."""
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=_visited_elsewhere, args=(count, theirs), daemon=True)
    process.start()
    theirs.close()
    yield ours.recv()
    ours.send(None)
    process.join()


# --- the judge -------------------------------------------------------------------------------------
def _memory_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) << 10


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _commits(db: Any, seconds: float, look: Callable[[], None]) -> np.ndarray:
    """Return the seconds that each commit took: one row each, one after the other."""
    took = []
    end = CLOCK.monotonic() + seconds
    table = db["t"]
    while (begin := CLOCK.monotonic()) < end:
        table.insert((int.from_bytes(CLOCK.random_bytes(7), "little"), 0))
        took.append(CLOCK.monotonic() - begin)
        if len(took) % 500 == 0:
            look()
    return np.array(took)


def let_in(port: int, own: Party) -> int:
    """Return how many calls a peer that knows the secret needs at a port until it has proved it; a peer of another
    group is refused only after that. Raises: PeerError if it is kept out each time.
    """
    for attempt in range(1, ATTEMPTS_MAX):
        try:
            call((HOST, port), own, SECRET, None, CLOCK).wire.close()
            return attempt
        except PeerError as error:
            if "the other side says" in error.message:
                return attempt
    call((HOST, port), own, SECRET, None, CLOCK).wire.close()
    return ATTEMPTS_MAX


def visit(folder: Path, seconds: float, count: int, seed: int) -> dict[str, Any]:
    """Run it and return the figures. Raises: AssertionError if a check fails."""
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    ours, theirs = FORKS.Pipe()
    visited = FORKS.Process(target=_visited, args=(str(folder), ports, theirs), daemon=True)
    visited.start()
    theirs.close()
    pid = ours.recv()
    shown: dict[str, Any] = {"strangers": count, "seconds": seconds}
    with tm.connect([f"{HOST}:{ports['calls']}"], SECRET, timeout_ms=60_000) as db:
        db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("v", tm.Int64)], "id")
        before = _commits(db, max(1.0, seconds / 10), lambda: None)
        with _elsewhere(len(PORTS)) as others, _crowd(others, count, seed):
            elsewhere = _commits(db, max(1.0, seconds / 10), lambda: None)
        memory, descriptors = _memory_bytes(pid), _descriptors(pid)
        seen = {"memory_bytes": 0, "descriptors": 0, "peers": 0, "calls": 0}

        def look() -> None:
            seen["memory_bytes"] = max(seen["memory_bytes"], _memory_bytes(pid))
            seen["descriptors"] = max(seen["descriptors"], _descriptors(pid))
            for name, port in ports.items():
                seen["calls"] += let_in(port, PORTS[name])
                seen["peers"] += 1

        with _crowd(list(ports.values()), count, seed) as counts:
            wait_until(lambda: _descriptors(pid) > descriptors + min(count, UNPROVED_MAX) // 4)
            beside = _commits(db, seconds, look)
            look()
        shown.update(counts)
        look()
        after = _commits(db, max(1.0, seconds / 10), lambda: None)
        assert seen["memory_bytes"] - memory <= MEMORY_BYTES_MAX, (memory, seen)
        assert seen["descriptors"] - descriptors <= len(PORTS) * UNPROVED_MAX + PEERS_MAX, (descriptors, seen)
        assert len(db["t"]) == len(before) + len(elsewhere) + len(beside) + len(after)
    phases = {"before": before, "elsewhere": elsewhere, "beside": beside, "after": after}
    for name, took in phases.items():
        shown[f"commits_{name}"] = len(took)
        for quantile in (50, 95, 99):
            shown[f"p{quantile}_ms_{name}"] = round(1_000 * float(np.percentile(took, quantile)), 3)
    shown.update(
        memory_mib_before=memory >> 20,
        memory_mib_most=seen["memory_bytes"] >> 20,
        descriptors_before=descriptors,
        descriptors_most=seen["descriptors"],
        peers_let_in=seen["peers"],
        calls_of_peers=seen["calls"],
    )
    ours.send(None)
    visited.join(60)
    assert visited.exitcode == 0
    return shown


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--strangers", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=20_261_124)
    given = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    json.dump(visit(given.folder, given.seconds, given.strangers, given.seed), sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
