"""The processes of one group: nodes and arbitrator, started, killed, watched and asked."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tidemark as tm
from tests.kills.nodes.node import ARBITRATOR, SECRET, Given, directory_of, live
from tests.ports import free_port
from tidemark.engine.base.clock import SystemClock
from tidemark.recovery.crash_harness.forks import FORKS
from tidemark.recovery.crash_harness.program import Violation
from tidemark.recovery.node_restart.messages import DELETE_LOG, REPLAY_LOG, ROWID_SYNC, VARIANTS

CLOCK = SystemClock()
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.02
MIXED = "mixed"
NONE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Mode:
    """Configuration of a site."""

    nodes: int = 3
    with_arbitrator: bool = False
    variant: str = ROWID_SYNC
    with_binlog: bool = False
    with_changes: bool = True
    defect: str = ""
    is_sharing: bool = False  # commits wait for the memory of all members, and for no disk
    options: dict[str, Any] = field(default_factory=dict)

    def variant_of(self, number: int) -> str:
        """Return the variant by which a node comes back."""
        return sorted(VARIANTS)[number % len(VARIANTS)] if self.variant == MIXED else self.variant

    def options_of(self) -> dict[str, Any]:
        """Return the options of nodes in this mode, added to those common to all modes."""
        found = dict(self.options)
        if self.is_sharing:
            found["durability"] = "epoch"
        if self.variant in (DELETE_LOG, MIXED):
            found["delete_log"] = "256 KiB"
        if self.with_binlog:
            found |= {"server_id": 1, "log_bin": "log", "log_updated_only": False}
        return found


class Process:
    """A node, or the arbitrator (number 0), across restarts of its process."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.number = given.number
        self._process: Any = None
        self._pipe: Connection | None = None
        self._is_killed = True  # by this object, or a point was set at which it dies
        self.state: dict[str, Any] = {"state": "dead"}
        self.complaint = ""  # an error it has logged
        self._answers: dict[int, Any] = {}
        self._numbers = itertools.count(1)

    @property
    def is_alive(self) -> bool:
        """Whether its process runs. Raises: Violation if it died without being killed."""
        if self._process is None:
            return False
        if self._process.is_alive():
            return True
        if not self._is_killed:
            raise Violation(f"node {self.number} died by itself, exit code {self._process.exitcode}")
        self.state = {"state": "dead"}
        return False

    def start(self, point: str = "") -> None:
        """Start it. point: where it is to kill itself."""
        self._forget()
        self.state = {"state": "starting"}
        own, theirs = FORKS.Pipe()
        self._is_killed = bool(point)
        self._process = FORKS.Process(target=live, args=(self.given._replace(point=point), theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe = own
        threading.Thread(target=self._listen, args=(own,), daemon=True).start()

    def _listen(self, pipe: Connection) -> None:
        try:
            while True:
                said = pipe.recv()
                if pipe is not self._pipe:
                    continue  # from a process that is over
                if said[0] == "state":
                    self.state = said[1]
                elif said[0] == "error":
                    self.complaint = self.complaint or said[1]
                else:
                    self._answers[said[1]] = said[2]
        except (EOFError, OSError):
            pass
        finally:
            pipe.close()

    def _send(self, *what: Any) -> None:
        try:
            if self._pipe is not None:
                self._pipe.send(what)
        except OSError:
            pass  # it is dead, which other code notices

    def arm(self, point: str) -> None:
        """Make it die at a point, from now on."""
        self._is_killed = True
        self._send("arm", point)

    def ask(self, epoch: int, since: Any) -> int:
        """Ask for its contents; return the number of the answer."""
        number = next(self._numbers)
        self._send("contents", number, epoch, since)
        return number

    def answer(self, number: int) -> Any:
        """Return the answer, None while there is none."""
        return self._answers.pop(number, None)

    def kill(self) -> None:
        """Send SIGKILL, if it runs."""
        if self._process is not None:
            self._is_killed = True
            self._process.kill()
            self._forget()

    def _forget(self) -> None:
        """Wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            process.join()
            process.close()
        self._pipe = None  # the listening thread closes it
        self.state = {"state": "dead"}

    def pause(self, is_paused: bool) -> None:
        """Stop the process, or continue it."""
        if self._process is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGSTOP if is_paused else signal.SIGCONT)

    def end(self) -> None:
        """End it in order, or kill it after a wait."""
        if self._process is not None and self._process.is_alive():
            self._send("end")
            self._process.join(PATIENCE_SECONDS)
            if self._process.is_alive():
                self._process.kill()
        self._is_killed = True
        self._forget()

    def lose_disk(self) -> None:
        """Remove the directory of a dead process."""
        shutil.rmtree(self.given.directory, ignore_errors=True)


class Site:
    """The processes of one group."""

    def __init__(self, directory: Path, mode: Mode) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.mode = mode
        numbers = range(1, mode.nodes + 1)
        group = [f"{number}=127.0.0.1:{free_port()}" for number in numbers]
        if mode.with_arbitrator:
            group.append(f"arbitrator=127.0.0.1:{free_port()}")
        self.calls = {number: f"127.0.0.1:{free_port()}" for number in numbers}

        def made(number: int) -> Process:
            place = directory_of(directory, number)
            return Process(
                Given(
                    str(place),
                    number,
                    ",".join(group),
                    self.calls.get(number, ""),
                    mode.variant_of(number),
                    mode.options_of(),
                    f"{place}.log",
                    False,
                    mode.defect,
                )
            )

        self.nodes = {number: made(number) for number in numbers}
        self.arbitrator = made(ARBITRATOR) if mode.with_arbitrator else None
        self.kept_dead: frozenset[int] = NONE

    @property
    def processes(self) -> list[Process]:
        """All processes."""
        return [*self.nodes.values(), *([self.arbitrator] if self.arbitrator else [])]

    def connect(self, *numbers: int) -> Any:
        """Connect a client. numbers: nodes it knows of, all if none."""
        return tm.connect([self.calls[number] for number in numbers or self.nodes], SECRET, timeout_ms=60_000)

    def found(self) -> None:
        """Start all for the first time: one of them makes the group."""
        first = self.nodes[1]
        first.given = first.given._replace(is_founder=True)
        for process in self.processes:
            process.start()
        self.wait_whole()
        first.given = first.given._replace(is_founder=False)  # it may lose its disk later

    # --- waiting -----------------------------------------------------------------------------------
    def look(self) -> None:
        """Start dead processes, except those that are kept dead. Raises: Violation if a node has ended by itself."""
        for process in self.processes:
            if process.complaint:
                raise Violation(f"node {process.number} says: {process.complaint}")
            is_alive = process.is_alive
            if process.state["state"] == "ended":
                raise Violation(f"node {process.number} cannot continue: {process.state['error']}")
            if not is_alive and process.number not in self.kept_dead:
                process.start()

    def wait_for(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Return whether a condition became true in time. Raises: Violation as `look`."""
        deadline = CLOCK.monotonic() + seconds
        while not is_so():
            if CLOCK.monotonic() > deadline:
                return False
            self.look()
            CLOCK.sleep(POLL_SECONDS)
        return True

    def wait_whole(self) -> None:
        """Wait until all nodes are members of one open view. Raises: Violation if that takes too long."""
        self.kept_dead = NONE
        if not self.wait_for(lambda: self.is_of(set(self.nodes)), PATIENCE_SECONDS):
            states = [node.state for node in self.nodes.values()]
            raise Violation(f"the group is not whole after {PATIENCE_SECONDS:g} s: {states}")

    def is_of(self, numbers: set[int]) -> bool:
        """Whether these run, and are the members of one open view."""
        states = [self.nodes[number].state for number in numbers]
        if not all(self.nodes[number].is_alive for number in numbers):
            return False
        is_open = all(each["state"] == "open" and set(each["members"]) == numbers for each in states)
        return is_open and len({each["view"] for each in states}) == 1

    def wait_without(self, numbers: set[int], seconds: float) -> bool:
        """Keep these dead until the others continue without them; return whether they do."""
        self.kept_dead = frozenset(numbers)
        return self.wait_for(lambda: self.is_of(set(self.nodes) - numbers), seconds)

    # --- roles -------------------------------------------------------------------------------------
    @property
    def primary(self) -> Process | None:
        """The node that leads according to its own state."""
        for number, node in self.nodes.items():
            if node.is_alive and node.state["state"] == "open" and node.state["primary"] == number:
                return node
        return None

    def roles(self) -> dict[str, list[Process]]:
        """Return the running processes by role."""
        found: dict[str, list[Process]] = {"primary": [], "backup": [], "joiner": [], "arbitrator": []}
        for node in self.nodes.values():
            if node.is_alive:
                found[self.role_of(node)].append(node)
        if self.arbitrator is not None and self.arbitrator.is_alive:
            found["arbitrator"].append(self.arbitrator)
        return found

    def role_of(self, process: Process) -> str:
        """Return the role of a process."""
        if process.number == ARBITRATOR:
            return "arbitrator"
        if process.state["state"] != "open":
            return "joiner"
        return "primary" if process.state["primary"] == process.number else "backup"

    def end(self) -> None:
        """End all processes, in order where possible."""
        for process in self.processes:
            process.pause(False)
        for process in self.processes:
            process.end()


VARIANT_NAMES = (ROWID_SYNC, REPLAY_LOG, DELETE_LOG, MIXED)
