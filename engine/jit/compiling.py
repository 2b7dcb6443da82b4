"""What is said while kernels are compiled: no wait of seconds is silent, and none is announced longer than it is.

Kernels that a program meets together are compiled in one wait (`engine/jit/kernel.py`). Its estimate is in processor
time: the seconds of its kernels in `engine/jit/kernel_sets.py`, at the speed of this machine.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tidemark.engine.base.clock import ManualClock, SystemClock

_log = logging.getLogger("tidemark.kernels")

# A wait of minutes, for all kernels, says once a minute how far it is.
SECONDS_BETWEEN_LINES = 60
BAR_CHARACTERS = 20
CLEAR = "\r\x1b[K"
AHEAD = "`tidemark warmup` compiles all others ahead"
REST = "the next start compiles the rest"


class Compiling:
    """The waits of this process: on standard error a line and a bar that ends full, if that is a terminal; else lines
    in the log, when a wait begins and when it ends.
    """

    def __init__(self, folder: str, clock: SystemClock | ManualClock | None = None) -> None:
        self._folder = folder
        self.clock = clock or SystemClock()
        self.is_waiting = False
        # Processor time on this machine for each second of the table, until kernels of the wait are compiled.
        self.slowness = 1.0
        self._is_silent = False
        self._count = 0
        self._done = 0
        self._whole = 0.0
        self._expected = 0.0
        self._measured = 0.0
        self._said = 0.0

    @contextmanager
    def wait(self, what: str, seconds: Mapping[str, float], by: str = "", why: str = "") -> Iterator[None]:
        """Within the block kernels are compiled, and nothing else is announced.

        what: what they are for; "" for all kernels. seconds: of each by its name, in the table. by: which processes
        compile. why: why compiled code that came with the installation is not used.
        """
        self.is_waiting = True
        self._count, self._done = len(seconds), 0
        self._whole, self._expected, self._measured = sum(seconds.values()), 0.0, 0.0
        self._said = self.clock.monotonic()
        about = f"about {self._left()} s of processor time"
        aim = f" for {what}" if what else ""
        self._line(f"compiling {self._counted()}{aim}{by}, once: {about}{why}")
        try:
            self._bar("")
            yield
        finally:
            self.is_waiting = False
            is_whole = self._done == self._count
            ready = self._counted() if is_whole else f"{self._done} of {self._counted()}"
            text = f"{ready} ready after {self._measured:.1f} s of processor time, kept in {self._folder}"
            self._end(f"{text}; {AHEAD if is_whole else REST}" if what or not is_whole else text)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Within the block nothing is said: another process speaks for this one."""
        self.is_waiting = self._is_silent = True
        try:
            yield
        finally:
            self.is_waiting = self._is_silent = False

    def compiled(self, name: str, expected: float, measured: float) -> None:
        """Note that a kernel is ready. expected: its seconds in the table; measured: its processor time here."""
        self._done += 1
        self._expected += expected
        self._measured += measured
        self._bar(name.rpartition(".")[2])
        now = self.clock.monotonic()
        if now - self._said >= SECONDS_BETWEEN_LINES and not _is_screen():
            self._said = now
            self._line(
                f"compiling kernels: {self._done} of {self._count}, about {self._left()} s of processor time left"
            )

    def _left(self) -> int:
        slowness = self._measured / self._expected if self._expected else self.slowness
        return max(1, round((self._whole - self._expected) * slowness))

    def _counted(self) -> str:
        return f"{self._count} kernel{'s' if self._count != 1 else ''}"

    def _line(self, text: str) -> None:
        if self._is_silent:
            return
        if _is_screen():
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
        else:
            _log.warning("%s", text)

    def _bar(self, name: str) -> None:
        if self._is_silent or not _is_screen():
            return
        full = round(BAR_CHARACTERS * self._expected / self._whole) if self._whole else 0
        left = f"about {self._left()} s left {name}" if self._done < self._count else ""
        sys.stderr.write(f"{CLEAR}[{'#' * full}{'.' * (BAR_CHARACTERS - full)}] {left}")
        sys.stderr.flush()

    def _end(self, text: str) -> None:
        if not self._is_silent and _is_screen():
            sys.stderr.write("\n")
        self._line(text)


def _is_screen() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
