"""The process that gets killed: it waits for a start message, then runs the program on a real directory.

It is forked from a server that has everything loaded (`preloaded.py`), and the next child gets ready while this one
works. Its ledger lines go into a pipe that outlives it.
"""

from __future__ import annotations

import functools
import threading
from multiprocessing.connection import Connection

from tidemark.recovery.crash_harness.program import OPEN_DIRECTORY, Ledger, resolve

BEGIN = "begin "
ACKNOWLEDGE = "acknowledge "
GO = "go"


class _PipeLedger(Ledger):
    """Sends lines to the parent, each in one message."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe
        self._turn = threading.Lock()

    def _send(self, line: str) -> None:
        with self._turn:
            self._pipe.send_bytes(line.encode())

    def begin(self, text: str) -> None:
        self._send(BEGIN + text)

    def acknowledge(self, text: str) -> None:
        self._send(ACKNOWLEDGE + text)


def live(work_name: str, directory: str, seed: int, pipe: Connection) -> None:
    """Wait for the start message, then work."""
    work = resolve(work_name)
    open_directory = resolve(OPEN_DIRECTORY)
    if pipe.recv() == GO:
        work(functools.partial(open_directory, directory), seed, _PipeLedger(pipe))
