"""Processes of a node group for measurements: `tidemark node` and `tidemark arbitrator`, as an operator runs them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tidemark as tm
from tidemark.engine.base.clock import SystemClock

CLOCK = SystemClock()
HOST = "127.0.0.1"
SECRET = b"secret of the benchmark"
COMMAND = (sys.executable, "-c", "from tidemark.cli import main; main()")
MEMORY = "256 MiB"
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.01
TIMEOUT_MS = 60_000


def free_ports(count: int) -> list[int]:
    """Return ports that no process listens at."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Raises: TimeoutError."""
    deadline = CLOCK.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if CLOCK.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {PATIENCE_SECONDS:g} s")
        CLOCK.sleep(POLL_SECONDS)


class NodeProcess:
    """A node, or the arbitrator, through restarts; `state` is the last state that it printed."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = [*COMMAND, *command]
        self._process: subprocess.Popen[str] | None = None
        self.state: dict[str, Any] = {}

    def start(self) -> None:
        """Start the process, which finds the others by itself."""
        self.state = {}
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self._process = process
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                if process is self._process:
                    self.state = json.loads(line)

    def kill(self) -> float:
        """Send SIGKILL; return the time by `time.perf_counter`."""
        assert self._process is not None
        at = time.perf_counter()
        self._process.kill()
        self._process.wait()
        return at

    def end(self) -> None:
        """Stop the process cleanly, or kill it if that takes too long."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()


class Group:
    """Nodes 1, 2, … of one group, each with a directory of its own. `own`: nodes that are not started here."""

    def __init__(
        self,
        folder: Path,
        nodes: int,
        has_arbitrator: bool = False,
        own: Sequence[int] = (),
        options: Sequence[str] = (),
    ) -> None:
        """options: of the stores, NAME=VALUE."""
        ports = free_ports(2 * nodes + 1)
        numbers = range(1, nodes + 1)
        places = [f"{number}={HOST}:{ports[number]}" for number in numbers]
        if has_arbitrator:
            places.append(f"arbitrator={HOST}:{ports[0]}")
        self.text = ",".join(places)
        self.folder = folder
        folder.mkdir(parents=True)
        secret = folder / "secret"
        secret.touch(0o600)
        secret.write_bytes(SECRET)
        shared = ["--group", self.text, "--secret-file", str(secret), "--json"]
        self.calls = {number: f"{HOST}:{ports[nodes + number]}" for number in numbers}
        self.nodes: dict[int, NodeProcess] = {}
        for number in set(numbers) - set(own):
            command = ["node", str(folder / str(number)), "--node", str(number), "--calls", self.calls[number], *shared]
            command += ["--data-memory", MEMORY, *(["--found"] if number == 1 else [])]
            command += [part for option in options for part in ("-o", option)]
            self.nodes[number] = NodeProcess(command)
        self._others: list[NodeProcess] = []
        if has_arbitrator:
            self._others.append(NodeProcess(["arbitrator", str(folder / "arbitrator"), *shared, "--new-group"]))

    def start(self) -> None:
        """Start all."""
        for process in (*self._others, *self.nodes.values()):
            process.start()

    def wait_whole(self) -> None:
        """Wait until every process is a member of one open view of all."""

        def is_whole() -> bool:
            states = [each.state for each in self.nodes.values()]
            return all(each.get("state") == "open" and len(each["members"]) == len(self.calls) for each in states)

        wait_until(is_whole, "the group is whole")

    def connect(self, *numbers: int) -> Any:
        """Return a client that knows these nodes, or all if none is named."""
        return tm.connect([self.calls[number] for number in numbers or self.calls], SECRET, timeout_ms=TIMEOUT_MS)

    def primary(self) -> int:
        """Return the number of the primary, as the group reports it."""
        with self.connect() as db:
            wait_until(lambda: db.where()["primary"] is not None, "a node leads")
            host, port = db.where()["primary"]
        return next(number for number, address in self.calls.items() if address == f"{host}:{port}")

    def end(self) -> None:
        """End all. The first node ends last, so that fewer takeovers happen."""
        for process in (*reversed(self.nodes.values()), *self._others):
            process.end()


@contextmanager
def running(group: Group) -> Iterator[Group]:
    """Start the group, and end it after the block."""
    try:
        group.start()
        yield group
    finally:
        group.end()
