"""The process that gets killed: it waits until it is told to go, then runs the program on a real directory.

`python -m recovery.crash_harness.kill_child WORK DIRECTORY SEED`. Imports and compiled code are ready before it says
so, and the next one gets ready while this one works. Ledger lines go to the standard output the process was given, each
in one write; what the program itself prints goes to standard error.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

from engine.kernels import warm
from recovery.crash_harness.program import OPEN_DIRECTORY, Ledger, resolve

READY = "ready"
BEGIN = "begin "
ACKNOWLEDGE = "acknowledge "


class _PipeLedger(Ledger):
    """Lines to the parent: what has been written outlives the process."""

    def __init__(self, pipe: Any) -> None:
        super().__init__()
        self._pipe = pipe
        self._turn = threading.Lock()

    def _send(self, line: str) -> None:
        with self._turn:
            self._pipe.write(line.encode() + b"\n")
            self._pipe.flush()

    def begin(self, text: str) -> None:
        self._send(BEGIN + text)

    def acknowledge(self, text: str) -> None:
        self._send(ACKNOWLEDGE + text)

    def ready(self) -> None:
        """The parent may start the clock."""
        self._send(READY)


def main(work_name: str, directory: str, seed: int) -> None:
    """Get ready, wait for a line, work."""
    ledger = _PipeLedger(sys.stdout.buffer)
    sys.stdout = sys.stderr
    work = resolve(work_name)
    open_directory = resolve(OPEN_DIRECTORY)
    warm()
    ledger.ready()
    if sys.stdin.readline():
        work(functools.partial(open_directory, directory), seed, ledger)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
