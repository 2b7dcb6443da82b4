"""Progress reports while kernels are compiled: no wait of seconds is silent."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from tidemark.engine.base.clock import Clock, SystemClock

_log = logging.getLogger("tidemark.kernels")

SECONDS_BETWEEN_LINES = 10
# Assumed until measured.
SECONDS_OF_A_KERNEL = 0.8
GUESSED_KERNELS = 5
BAR_CHARACTERS = 20
CLEAR = "\r\x1b[K"


class Compiling:
    """The progress of compilation for this process: a bar on standard error if that is a terminal, else lines in the
    log, the first at once.
    """

    def __init__(self, folder: str, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()
        self._done = 0
        self._seconds = 0.0
        self._began = 0.0
        self._said: float | None = None
        self.is_silent = False

    def begin(self, name: str, left: Callable[[], int], at_most: str = "at most ") -> None:
        """Report what is compiled now. left: returns how many kernels have no compiled code, this one included."""
        self._began = self._clock.monotonic()
        is_due = self._said is None or self._began - self._said >= SECONDS_BETWEEN_LINES
        if self.is_silent or not (_is_screen() or is_due):
            return
        remaining = left()
        seconds = remaining * (GUESSED_KERNELS * SECONDS_OF_A_KERNEL + self._seconds) / (GUESSED_KERNELS + self._done)
        says = f"{at_most}{remaining} left, about {max(1, round(seconds))} s"
        if _is_screen():
            full = round(BAR_CHARACTERS * self._done / max(1, self._done + remaining))
            bar = "#" * full + "." * (BAR_CHARACTERS - full)
            sys.stderr.write(f"{CLEAR}compiling kernels [{bar}] {says}: {name}")
            sys.stderr.flush()
        else:
            self._said = self._began
            _log.warning("compiling kernels: %s, now %s; the code is kept in %s", says, name, self._folder)

    def end(self) -> None:
        """Note that a kernel is compiled, and clear the bar."""
        self._done += 1
        self._seconds += self._clock.monotonic() - self._began
        if not self.is_silent and _is_screen():
            sys.stderr.write(CLEAR)
            sys.stderr.flush()


def _is_screen() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
