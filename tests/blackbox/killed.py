"""Histories of clients of a process, or of a node group, that is killed again and again."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tidemark as tm
from tests.blackbox.anomalies import Anomaly
from tests.blackbox.histories import (
    Appender,
    Auditor,
    Client,
    Reader,
    Recorder,
    Registrar,
    SnapshotAppender,
    Stamper,
    Teller,
    Watcher,
    clients,
    ended,
    judged,
    make_tables,
)
from tests.blackbox.nodes import SECRET, group
from tests.ports import free_port
from tidemark.recovery.crash_harness.forks import FORKS

OPTIONS: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "32 MiB", "transaction_memory": "64 KiB"}
KINDS: Counter[type[Client]] = Counter(
    {Appender: 3, SnapshotAppender: 2, Reader: 1, Teller: 1, Stamper: 1, Auditor: 1, Registrar: 3, Watcher: 3}
)
TIMEOUT_MS = 1_000
START_SECONDS = 60


def _serve(path: str, port: int, options: dict[str, Any], pipe: Connection) -> None:
    db = tm.open(path, **options)
    if LISTS_NAME not in db:
        make_tables(db)
    with tm.serve_calls(db, ("127.0.0.1", port), SECRET):
        pipe.send("serves")
        with suppress(EOFError):
            pipe.recv()  # until it is killed


LISTS_NAME = "main.lists"


class Server:
    """A process that serves a store."""

    def __init__(self, path: str, **options: Any) -> None:
        self.path = path
        self.port = free_port()
        self.options = {**OPTIONS, **options}
        self.process: Any = None

    def start(self) -> None:
        self.pipe, theirs = FORKS.Pipe()
        arguments = (self.path, self.port, self.options, theirs)
        self.process = FORKS.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        assert self.pipe.poll(START_SECONDS) and self.pipe.recv() == "serves"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def connect(self) -> Any:
        return tm.connect([("127.0.0.1", self.port)], SECRET, timeout_ms=TIMEOUT_MS)


def of_server(folder: str, seed: int, transactions: int, kills: int, **options: Any) -> tuple[list[Anomaly], Recorder]:
    """Clients of a process that is killed `kills` times, evenly spread over the transactions."""
    recorder, rng = Recorder(seed), random.Random(seed)
    recorder.transactions_max = transactions
    server = Server(f"{folder}/store", **options)
    server.start()
    try:
        threads = clients(recorder, server.connect, KINDS)
        with ended(threads, recorder):
            for kill in range(kills):
                wanted = (kill + 1) * transactions // (kills + 1)
                while not recorder.is_over() and len(recorder.history) < wanted:
                    recorder.stop.wait(0.01)
                recorder.stop.wait(rng.random() * 0.05)
                server.kill()
                recorder.counts["kills"] += 1
                server.start()
            for each in threads:
                each.join()
        with server.connect() as db:
            return judged(recorder, db), recorder
    finally:
        server.kill()


def of_group(folder: str, seed: int, transactions: int, kills: int) -> tuple[list[Anomaly], Recorder]:
    """Clients of a group, of which one process is killed `kills` times, mostly the primary."""
    recorder, rng = Recorder(seed), random.Random(seed)
    recorder.transactions_max = transactions
    with group(Path(folder) / "group") as nodes:
        threads = clients(recorder, nodes.connect, KINDS)
        with ended(threads, recorder):
            for kill in range(kills):
                wanted = (kill + 1) * transactions // (kills + 1)
                while not recorder.is_over() and len(recorder.history) < wanted:
                    recorder.stop.wait(0.01)
                primary = nodes.wait(nodes.numbers)
                number = primary if rng.random() < 0.7 else rng.choice(nodes.numbers)
                nodes.kill(number)
                recorder.counts["kills"] += 1
                nodes.start(number)
                nodes.wait(nodes.numbers)
            for each in threads:
                each.join()
        nodes.wait(nodes.numbers)
        with nodes.connect() as db:
            return judged(recorder, db), recorder
