"""Events read ahead of their use by a thread, in bounded memory: the network works while rows are applied, and whoever
applies sees whether more has come already.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

from tidemark.engine.base.errors import Error, InvariantBroken

WAITING_BYTES_MAX = 16 << 20


class Prefetch:
    """What an iterator gives, in its order. `close` first ends what the iterator waits for, by `interrupt`."""

    def __init__(self, events: Iterator[bytes], interrupt: Callable[[], None]) -> None:
        self._events, self._interrupt = events, interrupt
        self._turn = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._is_over = self._is_closed = False
        self._error: Error | None = None
        self._is_whole = False
        self._thread = threading.Thread(target=self._read, name="tidemark-ingest-reader", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for event in self._events:
                with self._turn:
                    self._turn.wait_for(lambda: self._is_closed or self._bytes < WAITING_BYTES_MAX)
                    if self._is_closed:
                        return
                    self._waiting.append(event)
                    self._bytes += len(event)
                    self._turn.notify_all()
            self._is_whole = True
        except Error as error:
            self._error = error
        finally:
            with self._turn:
                self._is_over = True
                self._turn.notify_all()

    @property
    def is_empty(self) -> bool:
        """Whether the next event has not come yet."""
        return not self._waiting

    @property
    def waiting_bytes(self) -> int:
        """Bytes of events that have come and are not used yet."""
        return self._bytes

    def next(self) -> bytes | None:
        """The next event, waited for; None behind the last one. Raises: what the iterator has raised, behind what came
        before it.
        """
        with self._turn:
            self._turn.wait_for(lambda: self._waiting or self._is_over)
            if self._waiting:
                event = self._waiting.popleft()
                self._bytes -= len(event)
                self._turn.notify_all()
                return event
            if self._error is not None:
                raise self._error
            if not self._is_whole:
                raise InvariantBroken("the thread that reads the source has ended; report this")
            return None

    def close(self) -> None:
        """End the thread; harmless twice."""
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()
        self._interrupt()
        self._thread.join()
