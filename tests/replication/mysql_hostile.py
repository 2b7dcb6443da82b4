"""`python -m tests.replication.mysql_hostile FOLDER --seconds 600 --seed S`: random packets at served MySQL ports.

Clients hold true conversations (mysql_talks.py) of which a part is changed: bytes, words of statements, headers that
lie, packets moved or cut. They leave by closing, by a reset, after garbage, or not at all until they are cut. One store
has three ports: both flavors, and one with TLS. Meanwhile a thread commits.

Checked: no thread ends by an error, no traceback and no secret is in the log, and at the end the ports hold no client,
snapshot, dump, pin, thread and descriptor, memory grew by less than 64 MiB, and every commit is there.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import resource
import socket
import ssl
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import trustme

import tidemark as tm
from tests.fuzz.mutations import octets
from tests.fuzz.readers.mysql import READERS
from tests.replication.mysql_port_rig import HOST, SECRET, USERS, Client, served_end, store
from tests.replication.mysql_talks import OF_TOOLS, TALKS, Talk, login_message, stream_of
from tests.waiting import wait_until
from tidemark.engine.base.clock import SystemClock
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.flavors import FLAVORS
from tidemark.replication.mysql_source.packets import packets

MEMORY_BYTES_MAX = 64 << 20
ENDINGS = ("close", "reset", "garbage", "stop")
CLIENTS = 3
# Before memory is measured: a store takes what it was given as it comes to need it, and the allocator for each thread.
COMMITS_FIRST, CONNECTIONS_FIRST = 5_000, 1_500
PATIENCE_S, ANSWER_S = 2.0, 0.02
PIECES_MAX = 50
ROWS = 300
_CLOCK = SystemClock()
(_READER,) = READERS
_OCTETS = octets()


class Watch(logging.Handler):
    """What must not happen in this process: threads that end by an error, tracebacks and secrets in the log."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            self.faults.append(f"a traceback in the log: {text}: {record.exc_info[1]!r}")
        if SECRET.decode() in text:
            self.faults.append(f"the secret in the log: {text}")

    def _ended(self, thread: Any) -> None:
        self.faults.append(f"{thread.thread.name} ended by {thread.exc_value!r}")

    def __enter__(self) -> Watch:
        self._hook, threading.excepthook = threading.excepthook, self._ended
        self._logger = logging.getLogger("tidemark")
        self._level = self._logger.level
        self._logger.setLevel(logging.DEBUG)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        threading.excepthook = self._hook
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)


# --- what is attacked -------------------------------------------------------------------------------
class Target:
    """A store that is served at three ports."""

    def __init__(self, db: tm.Database, servings: Sequence[Any], tls: ssl.SSLContext) -> None:
        self.db = db
        self.servings = servings
        self.tls = tls

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[Target]:
        authority = trustme.CA()
        certificate = authority.issue_cert(HOST)
        certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
        certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
        tls = tm.server_tls(folder / "cert.pem", folder / "key.pem", version_min="1.2")
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with store(folder, log_gtids=True) as db, ExitStack() as stack:
            db["shop.item"].insert_many([{"id": number, "v": f"value {number}"} for number in range(ROWS)])
            served_end(db)
            given = [("mysql", None), ("mariadb", None), ("mysql", tls)]
            servings = [
                stack.enter_context(tm.serve_mysql(db, f"{HOST}:0", USERS, flavor=flavor, tls=each))
                for flavor, each in given
            ]
            yield cls(db, servings, context)

    def left(self) -> dict[str, int]:
        """Return the counts of what clients hold."""
        found: Counter[str] = Counter()
        for each in self.servings:
            status = each.status()
            found["served"] += status["connections"]["served"]
            found["unproved"] += status["connections"]["unproved"]
            found["dumps"] += len(status["dumps"])
        assert self.db.binlog is not None
        found["pins"] = len(self.db.binlog.pins)
        found["snapshots"] = self.db.status()["snapshots"]["open"]
        found["threads"] = sum(each.name == "tidemark-MySQL client" for each in threading.enumerate())
        return dict(found)

    def wait_left(self) -> None:
        """Wait until nothing is left of any client."""
        wait_until(lambda: not any(self.left().values()))

    def port_of(self, flavor: str) -> tuple[str, int]:
        address: tuple[str, int] = next(each for each in self.servings if each.flavor == flavor).address
        return address


def memory_bytes() -> int:
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) << 10


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- what clients do --------------------------------------------------------------------------------
def exchange(client: socket.socket, data: bytes, waits: bool) -> bytes:
    """Send bytes and take what comes meanwhile. waits: take the answers that come after them too."""
    said = []
    rest = memoryview(data)
    client.settimeout(PATIENCE_S)
    with suppress(OSError):
        while len(rest):
            rest = rest[client.send(rest[: 16 << 10]) :]
            client.setblocking(False)
            with suppress(BlockingIOError, ssl.SSLWantReadError):
                while piece := client.recv(65_536):
                    said.append(piece)
            client.settimeout(PATIENCE_S)
        client.settimeout(ANSWER_S)
        while waits and len(said) < PIECES_MAX and (piece := client.recv(65_536)):
            said.append(piece)
    return b"".join(said)


def leave(client: Client, ending: str, rng: random.Random) -> bool:
    """End a connection on the client's side; return whether it is kept open."""
    if ending == "stop":
        return True
    with suppress(OSError):
        if ending == "reset":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif ending == "garbage":
            client.send(rng.randbytes(rng.randrange(1, 200)))
            client.socket.shutdown(socket.SHUT_WR)
            client.socket.settimeout(60)
            assert client.is_shut(), "the server goes on after garbage"
    client.close()
    return False


def secure(client: Client, target: Target) -> None:
    """Ask for TLS and begin it, as a client that has read the greeting."""
    offered = p.PROTOCOL_41 | p.SECURE_CONNECTION | p.PLUGIN_AUTH | p.PLUGIN_AUTH_LENGTHS | p.SSL
    client.send(packets(offered.to_bytes(4, "little") + (1 << 24).to_bytes(4, "little") + b"\x2d" + bytes(23), 1))
    client.socket = target.tls.wrap_socket(client.socket, server_hostname=HOST)


def _changed(talk: Talk, rng: random.Random) -> bytes:
    """Return what a client says after its login, with some of it changed."""
    data = b"\0" + stream_of(talk)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        data = rng.choice(_READER.mutations)(data, rng, _READER.members())
    said = data[1:]
    first = 4 + int.from_bytes(said[:3], "little")
    return said[first:]


def visit(target: Target, rng: random.Random, counts: Counter[str], kept: list[Client]) -> None:
    """Be one client."""
    talk = rng.choice(TALKS) if rng.random() < 0.7 else rng.choice(OF_TOOLS)
    serving = rng.choice(target.servings)
    flavor = FLAVORS[serving.flavor]
    name = rng.choice(["reader", "reader", "repl", "stranger"])
    with suppress(OSError):  # of a server that has ended the connection
        client = Client(serving.address, name)
        counts["connections"] += 1
        choice = rng.random()
        if serving.status()["tls"] and choice < 0.5:
            secure(client, target)
            client.send(packets(login_message(flavor, client.nonce, name)[4:], 2))
            counts["tls"] += 1
        elif choice < 0.7:
            if client.log_in()[0] == p.OK:
                counts["logged_in"] += 1
        else:
            login = login_message(flavor, client.nonce, name)
            client.send(_OCTETS(login, rng, [login]) if rng.random() < 0.9 else rng.randbytes(rng.randrange(5_000)))
        data = _changed(talk, rng)
        if rng.random() < 0.2:
            data = data[: rng.randrange(len(data) + 1)]
        counts["answered_bytes"] += len(exchange(client.socket, data, rng.random() < 0.8))
        ending = rng.choices(ENDINGS, (4, 3, 3, 1))[0]
        counts[ending] += 1
        if leave(client, ending, rng):
            kept.append(client)
            if len(kept) > 8:
                kept.pop(0).close()


def _clients(target: Target, seed: str, is_over: Callable[[], bool], counts: Counter[str]) -> None:
    rng = random.Random(seed)
    kept: list[Client] = []
    while not is_over():
        visit(target, rng, counts, kept)
    for each in kept:
        each.close()


def attack(folder: Path, seed: int, seconds: float = 0.0, connections: int = 0) -> dict[str, Any]:
    """Attack for so many seconds, or until twice so many connections were made; return the counts. Raises:
    AssertionError if a check fails.
    """
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8_192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    counts: Counter[str] = Counter()
    with Watch() as watch, Target.opened(folder) as target:

        def run(is_over: Callable[[], bool], part: str) -> None:
            names = [f"seed {seed}, {part} {number}" for number in range(CLIENTS)]
            threads = [
                threading.Thread(target=_clients, name=name, args=(target, name, is_over, counts)) for name in names
            ]
            for each in threads:
                each.start()
            commit(lambda: any(each.is_alive() for each in threads))
            for each in threads:
                each.join()
            target.wait_left()

        def commit(goes_on: Callable[[], bool], pause_s: float = 0.005) -> None:
            while goes_on():
                target.db["shop.item"].insert({"id": ROWS + counts["commits"], "v": f"{seed}"})
                counts["commits"] += 1
                threading.Event().wait(pause_s)

        commit(lambda: counts["commits"] < COMMITS_FIRST, 0.0)
        run(lambda: counts["connections"] >= min(CONNECTIONS_FIRST, connections or CONNECTIONS_FIRST), "first")
        before = {"memory": memory_bytes(), "descriptors": descriptors()}
        until = _CLOCK.monotonic() + seconds
        run(lambda: counts["connections"] >= 2 * connections and _CLOCK.monotonic() >= until, "then")
        counts["memory_kib_more"] = (memory_bytes() - before["memory"]) >> 10
        assert not watch.faults, "\n".join(dict.fromkeys(watch.faults))
        assert descriptors() <= before["descriptors"] + 2, (descriptors(), before)
        assert counts["memory_kib_more"] << 10 <= MEMORY_BYTES_MAX, counts
        assert len(target.db["shop.item"]) == ROWS + counts["commits"]
        served_end(target.db)
    return dict(counts)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=51_016)
    given = parser.parse_args()
    json.dump({"seed": given.seed, **attack(given.folder, given.seed, given.seconds)}, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
