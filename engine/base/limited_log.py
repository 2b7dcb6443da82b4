"""Warnings that unauthenticated peers can cause, limited to one line in ten seconds, with a count of lines left out."""

from __future__ import annotations

import logging
import threading

from tidemark.engine.base.clock import Clock

EVERY_SECONDS = 10.0


class LimitedLog:
    """The warnings of one listener. Threads may share an instance."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._mutex = threading.Lock()
        self._next = -EVERY_SECONDS  # when a line may be written again
        self._left_out = 0

    def warning(self, text: str, error: BaseException | None = None) -> None:
        """Write a line, and the traceback of `error`. If a line was written in the last ten seconds, only count it: the
        next line says how many were left out.
        """
        now = self._clock.monotonic()
        with self._mutex:
            if now < self._next:
                self._left_out += 1
                return
            left_out, self._left_out = self._left_out, 0
            self._next = now + EVERY_SECONDS
        left_out_text = f" (similar lines left out before: {left_out})" if left_out else ""
        self._log.warning("%s%s", text, left_out_text, exc_info=error)

    def close(self) -> None:
        """Log how many lines were left out since the last one written."""
        with self._mutex:
            left_out, self._left_out = self._left_out, 0
        if left_out:
            self._log.warning("lines about bad clients that were left out: %s", left_out)
