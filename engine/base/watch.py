"""Operations that a caller may want to see one by one: slow ones as lines of the log `tidemark.slow`, all of them as
spans of a tracer. A store without either has no `Watch`, and its operations pay one comparison with None.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.limited_log import LimitedLog

_log = logging.getLogger("tidemark")
_slow = logging.getLogger("tidemark.slow")


class Tracer(Protocol):
    """What `Options(tracer=...)` takes: a function that is called once for each operation, when it has ended, in the
    thread that executed it.
    """

    def __call__(self, name: str, start_us: int, end_us: int, attributes: dict[str, Any], /) -> None:
        """name: such as "tidemark.commit". start_us and end_us: µs since 1970. attributes: text, numbers and bools;
        `error` is the class of the error with which the operation ended.
        """
        ...


class Watch:
    """Notes operations of one store. Threads may share it."""

    def __init__(self, clock: Clock, slow_ms: int, tracer: Tracer | None) -> None:
        """slow_ms: operations that take as long or longer are logged; 0: none."""
        self._clock = clock
        self._slow_seconds = slow_ms / 1_000 if slow_ms else float("inf")
        self._tracer = tracer
        self._limited = LimitedLog(_log, clock)
        self.now = clock.monotonic

    def note(self, operation: str, seconds: float, **attributes: Any) -> None:
        """Note an operation that has just ended and took `seconds`. Errors of the tracer, or of a handler or filter of
        the log, are logged.
        """
        try:
            if seconds >= self._slow_seconds:
                milliseconds = round(seconds * 1_000, 3)
                details = "".join(f", {name} {value}" for name, value in attributes.items())
                fields = {"operation": operation, "duration_ms": milliseconds, **attributes}
                _slow.warning("%s took %s ms%s", operation, milliseconds, details, extra=fields)
            if self._tracer is not None:
                end_us = self._clock.wall_us()
                name = "tidemark." + operation.replace(" ", "_")
                self._tracer(name, end_us - int(seconds * 1e6), end_us, attributes)
        except Exception as error:
            # The operation has ended: an error here would look like one of the operation.
            self._limited.warning(f"the log of slow operations or the tracer failed: {error!r}")

    @contextmanager
    def timed(self, operation: str, **attributes: Any) -> Iterator[None]:
        """Note the `with` block as one operation, with the class of the error that ended it, if any."""
        began = self.now()
        try:
            yield
        except BaseException as error:
            self.note(operation, self.now() - began, **attributes, error=type(error).__name__)
            raise
        self.note(operation, self.now() - began, **attributes)


def watch_of(clock: Clock, slow_ms: int, tracer: Tracer | None) -> Watch | None:
    """Return a `Watch`, None if there is nothing to note."""
    return Watch(clock, slow_ms, tracer) if slow_ms or tracer is not None else None
