"""Commands of `tidemark` as processes of their own, forked from a server that has everything loaded."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tidemark.cli import main
from tidemark.recovery.crash_harness.forks import FORKS


class Done(NamedTuple):
    """What a command printed, and its exit code."""

    output: str
    errors: str
    code: int


def _run(arguments: list[str], folder: str, output: Connection, errors: str) -> None:
    os.chdir(folder)
    os.dup2(output.fileno(), 1)
    output.close()
    with open(errors, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 2)
    sys.argv = ["tidemark", *arguments]
    main()


class Command:
    """`tidemark ARGUMENTS` in a folder. Standard error goes to a file next to the folder."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self._errors = folder.parent / f"{folder.name}.{arguments[0]}.err"
        output, theirs = FORKS.Pipe(duplex=False)
        given = [str(each) for each in arguments], str(folder), theirs, str(self._errors)
        self.process = FORKS.Process(target=_run, args=given, daemon=True)
        self.process.start()
        theirs.close()
        self._output = os.fdopen(os.dup(output.fileno()))
        output.close()

    def readline(self) -> str:
        """Return the next line it prints; empty if it has ended."""
        return self._output.readline()

    def done(self) -> Done:
        """Wait for its end."""
        return self._ended(self._output.read())

    def leave(self) -> Done:
        """Close its output unread, and wait for its end."""
        self._output.close()
        return self._ended("")

    def _ended(self, output: str) -> Done:
        self._output.close()
        self.process.join()
        assert self.process.exitcode is not None
        return Done(output, self._errors.read_text(encoding="utf-8"), self.process.exitcode)

    def stop(self) -> Done:
        """End it with SIGTERM."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGTERM)
        return self.done()

    def kill(self) -> None:
        """End it with SIGKILL, unless it has ended."""
        self.process.kill()
        self.process.join()
        self._output.close()
