"""SIGKILL at a random moment of a program on a real directory, restart, verification; repeated on the same store.

The child is forked from a server that has everything loaded (`forks.py`), and the next one gets ready while this one
works. The program's acknowledgements before its death are in a pipe that outlives it. One kill in four comes in the
first moments of a life, so that restarts are killed, too. The others come at a random time after a randomly chosen
acknowledgement.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tidemark.engine.base.clock import SystemClock
from tidemark.recovery.crash_harness.forks import FORKS
from tidemark.recovery.crash_harness.program import OPEN_DIRECTORY, Ledger, Verify, Violation, judge, resolve

LIFE_MS_MAX = 400
EARLY_SHARE = 0.25
EARLY_MS_MAX = 25
# Messages: to the child, and from it with a line of its ledger.
GO = "go"
ACKNOWLEDGE = "acknowledge "
BEGIN = "begin "


@dataclass
class KillReport:
    """Result of a loop."""

    seed: int
    kills: int = 0
    ended: int = 0
    awaited: int = 0  # lines that had to be acknowledged before the time to a kill began
    acknowledged: int = 0
    silent_lives: int = 0
    seconds: float = 0.0


# --- the child ------------------------------------------------------------------------------------
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
    """Run the program in a child that gets killed, on a real directory, after the start message."""
    work = resolve(work_name)
    open_directory = resolve(OPEN_DIRECTORY)
    if pipe.recv() == GO:
        work(functools.partial(open_directory, directory), seed, _PipeLedger(pipe))


# --- the parent -----------------------------------------------------------------------------------
class _Life:
    """One child: its process, and the thread that reads its messages."""

    def __init__(self, work: str, directory: str, seed: int, ledger: Ledger) -> None:
        self._pipe, theirs = FORKS.Pipe()
        self._process = FORKS.Process(target=live, args=(work, directory, seed, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.lines = 0
        self._heard = threading.Condition()
        self._has_ended = False
        self._ledger = ledger
        self._listener = threading.Thread(target=self._listen, name="kill-loop-ledger")
        self._listener.start()

    def _listen(self) -> None:
        # A message that the kill cut short ends the stream as well.
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                line = self._pipe.recv_bytes().decode()
                if line.startswith(ACKNOWLEDGE):
                    self._ledger.acknowledge(line.removeprefix(ACKNOWLEDGE))
                    with self._heard:
                        self.lines += 1
                        self._heard.notify_all()
                else:
                    self._ledger.begin(line.removeprefix(BEGIN))
        with self._heard:
            self._has_ended = True
            self._heard.notify_all()

    def hear(self, lines: int) -> None:
        """Wait until the child has acknowledged `lines` lines, or has ended."""
        with self._heard:
            self._heard.wait_for(lambda: self.lines >= lines or self._has_ended)

    def go(self) -> None:
        self._pipe.send(GO)

    def end(self) -> int | None:
        """Kill the child and read its last messages; return its exit code if it had already ended by itself."""
        code = self._process.exitcode
        self._process.kill()
        self._process.join()
        self._listener.join()
        self._pipe.close()
        return code


def kill_loop(
    work: str,
    verify: str | Verify,
    directory: str,
    kills: int,
    seed: int,
    life_ms_max: int = LIFE_MS_MAX,
    print_line: Callable[[str], None] | None = None,
    lines_max: int = 1,
) -> KillReport:
    """Run `work` ("module:function") in child processes on the store in `directory`, kill each, and verify.

    A life lasts up to `life_ms_max` milliseconds from its n-th acknowledgement, with n drawn up to `lines_max`. So a
    life does some work even on a slow machine; the program must make that many acknowledgements. If a program returns
    before its kill, its store is verified as well, but the life is not counted as killed. Raises: Violation, with the
    seed and the number of the kill; the directory stays as it is, for analysis.
    """
    check: Verify = resolve(verify) if isinstance(verify, str) else verify
    resolve(work)
    open_store = functools.partial(resolve(OPEN_DIRECTORY), directory, background=False, data_memory="64 MiB")
    clock = SystemClock()
    began = clock.monotonic()
    rng = random.Random(seed)
    report = KillReport(seed)
    ledger = Ledger()
    life = _Life(work, directory, seed, ledger)
    try:
        while report.kills < kills:
            life.go()
            # The next child gets ready while this one works.
            following = _Life(work, directory, seed + report.kills + report.ended + 1, ledger)
            if rng.random() < EARLY_SHARE:
                clock.sleep(rng.uniform(0, EARLY_MS_MAX) / 1_000)
            else:
                wanted = rng.randint(1, lines_max) if lines_max > 1 else 1
                report.awaited += wanted
                life.hear(wanted)
                clock.sleep(rng.uniform(0, life_ms_max) / 1_000)
            code = life.end()
            lines, life = life.lines, following
            if code:
                raise Violation(f"kill loop, seed {seed}, life {report.kills + 1}: the program ended with code {code}")
            report.kills += code is None
            report.ended += code is not None
            report.silent_lives += lines == 0
            where = f"kill loop, seed {seed}, kill {report.kills} of the store in {directory}"
            judge(open_store, check, ledger, where, closes=True)
            if print_line is not None:
                print_line(f"kill {report.kills}: {lines} acknowledged in this life, all there")
    finally:
        life.end()
    report.acknowledged = len(ledger.acknowledged)
    report.seconds = clock.monotonic() - began
    return report
