"""A thread that reads events ahead, in bounded memory. Events arrive while rows are applied, and the applier sees
whether more events are waiting.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

from tidemark.engine.base.errors import Error, InvariantBroken

WAITING_BYTES_MAX = 16 << 20


class Prefetch:
    """The items of an iterator, read ahead in order. `interrupt` ends a wait of the iterator, so that `close` can join
    the thread.
    """

    def __init__(self, events: Iterator[bytes], interrupt: Callable[[], None]) -> None:
        self._events, self._interrupt = events, interrupt
        self._turn = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self.waiting_bytes = 0  # of events that have arrived and are not taken yet
        self._is_over = self._is_closed = False
        self._error: Error | None = None
        self._is_whole = False
        self._thread = threading.Thread(target=self._read, name="tidemark-ingest-reader", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for event in self._events:
                with self._turn:
                    self._turn.wait_for(lambda: self._is_closed or self.waiting_bytes < WAITING_BYTES_MAX)
                    if self._is_closed:
                        return
                    self._waiting.append(event)
                    self.waiting_bytes += len(event)
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
        """Whether the next event has not arrived yet."""
        return not self._waiting

    def next(self) -> bytes | None:
        """Wait for the next event and return it, None after the last one. Raises: the iterator's error, after all
        events before it.
        """
        with self._turn:
            self._turn.wait_for(lambda: self._waiting or self._is_over)
            if self._waiting:
                event = self._waiting.popleft()
                self.waiting_bytes -= len(event)
                self._turn.notify_all()
                return event
            if self._error is not None:
                raise self._error
            if not self._is_whole:
                raise InvariantBroken("the thread that reads the source has ended; report this")
            return None

    def close(self) -> None:
        """End the thread and wait for its end. A second call does nothing."""
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()
        self._interrupt()
        self._thread.join()
