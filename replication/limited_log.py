"""Warnings that strangers cause: at most one line in ten seconds, however many they are."""

from __future__ import annotations

import logging
import threading

from engine.clock import Clock

LINE_SECONDS = 10.0


class LimitedLog:
    """The log of one listener for what it is told by connections that have proved nothing. Any thread may use it."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._mutex = threading.Lock()
        self._next_at: float | None = None
        self._left_out = 0

    def warning(self, text: str) -> None:
        """Log a line, or count it: the next line says how many were left out."""
        with self._mutex:
            now = self._clock.monotonic()
            if self._next_at is not None and now < self._next_at:
                self._left_out += 1
                return
            self._next_at = now + LINE_SECONDS
            left_out, self._left_out = self._left_out, 0
        if left_out:
            text = f"{text} (and {left_out} more such lines since the last one)"
        self._log.warning("%s", text)
