"""One node, or the arbitrator, as a process of the kill loop: forked from a server that has everything imported.

It reports each change of its state, answers questions, and lives until it is killed or its pipe ends.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import tidemark as tm
from tests.kills.nodes.judged import contents, said_since
from tests.kills.nodes.planted import plant
from tests.kills.nodes.points import arm
from tidemark.nodes.node_group import NodeGroup

SECRET = b"a secret of nodes"
ARBITRATOR = 0
OPTIONS: dict[str, Any] = {
    "data_memory": "64 MiB",
    "redo_log": "8 MiB",
    "undo_log": "4 MiB",
    "page_buffer": "256 KiB",
    "transaction_memory": "256 KiB",
    "checkpoint_interval_ms": 700,
    "gcp_interval_ms": 200,
}
POLL_SECONDS = 0.02


class Given(NamedTuple):
    """Arguments of a process. is_founder: it makes the group, once; defect: planted in all processes; point: where it
    is to die.
    """

    directory: str
    number: int
    group: str
    calls: str
    variant: str
    options: dict[str, Any]
    log: str
    is_founder: bool = False
    defect: str = ""
    point: str = ""


class _Errors(logging.Handler):
    """Reports the errors that a node logs: its rows differ, or it ends."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(logging.ERROR)
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        self._pipe.send("error", record.getMessage())


class Pipe:
    """Pipe to the process that started this one; usable from any thread."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._mutex = threading.Lock()

    def send(self, *what: Any) -> None:
        """Send a report; the other end may be gone already."""
        try:
            with self._mutex:
                self.connection.send(what)
        except OSError:
            pass


def live(given: Given, connection: Connection) -> None:
    """Run the process."""
    log = os.open(given.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.write(2, f"--- start {given.point}\n".encode())
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(threadName)s %(message)s", datefmt="%H:%M:%S"
    )
    pipe = Pipe(connection)
    logging.getLogger("tidemark.node").addHandler(_Errors(pipe))
    if given.defect:
        plant(given.defect)
    if given.point:
        arm(given.point)
    with opened(given) as process:
        before: dict[str, Any] = {}
        while True:
            if connection.poll(POLL_SECONDS):
                try:
                    asked = connection.recv()
                except EOFError:
                    return
                if asked[0] == "end":
                    return
                if asked[0] == "arm":
                    arm(asked[1])
                else:
                    threading.Thread(target=answer, args=(process, pipe, *asked[1:]), daemon=True).start()
            try:
                state = state_of(given, process)
            except tm.Error as error:
                pipe.send("state", {"state": "ended", "error": f"{type(error).__name__}: {error.message}"})
                connection.poll(None)  # until it is killed
                return
            if state != before:
                before = state
                pipe.send("state", state)


@contextmanager
def opened(given: Given) -> Iterator[Any]:
    """Open the node or the arbitrator."""
    if given.number == ARBITRATOR:
        with tm.Arbitrator(given.directory, given.group, SECRET, is_new=True) as arbitrator:
            yield arbitrator
        return
    with NodeGroup(
        given.directory,
        given.number,
        given.group,
        SECRET,
        given.calls,
        found=given.is_founder,
        variant=given.variant,
        **{**OPTIONS, **given.options},
    ) as node:
        yield node


def state_of(given: Given, process: Any) -> dict[str, Any]:
    """Return the state for the loop. Raises: the error that has ended the process."""
    if given.number == ARBITRATOR:
        process.wait(0.0)
        return {"state": "arbitrator", "view": 0, "members": [], "primary": 0}
    status = process.status()
    return {name: status[name] for name in ("state", "view", "members", "primary")}


def answer(node: NodeGroup, pipe: Pipe, number: int, epoch: int, since: Any) -> None:
    """Report the node's rows, its problems, and the epochs of its binlog from a place through an epoch."""
    try:
        with node.reading() as db:
            found: dict[str, Any] = {"rows": contents(db)}
        found["problems"] = db.check()["problems"]
        if db.binlog is not None:
            found["said"], found["place"] = said_since(db, epoch, since)
        pipe.send("answer", number, found)
    except (tm.Retryable, tm.StoreClosed) as error:
        pipe.send("answer", number, {"again": error.message})
    except (tm.Error, AssertionError, LookupError, TypeError, ValueError, OSError) as error:
        pipe.send("answer", number, {"broken": repr(error)})


def directory_of(root: Path, number: int) -> Path:
    """Return the directory of a process."""
    return root / ("arbitrator" if number == ARBITRATOR else f"node-{number}")
