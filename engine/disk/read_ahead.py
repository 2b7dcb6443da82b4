"""Asynchronous read-ahead: one thread that loads pages before a scan needs them.

Invariant: it changes no result, it only saves time. An error is left to the reader that will reach the page; requests
past the limit are dropped, the newest first, because the reader reaches the oldest first.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import Error, StoreFailed
from tidemark.engine.disk.cache_layout import FILE_SHIFT

if TYPE_CHECKING:
    from collections.abc import Callable, Container

PAGES_MAX = 512
# An idle thread ends after this time: while it waits, it keeps in memory a store that its owner forgot to close.
IDLE_SECONDS = 0.2

_log = logging.getLogger("tidemark.disk")


class ReadAhead:
    """Owner of the read-ahead thread, which starts with a request and ends when it has been idle for a while."""

    def __init__(self, load: Callable[[list[int]], None]) -> None:
        self._load = load
        self.wanted: deque[int] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._is_loading = False
        self._loads = 0

    def ask(self, pages: list[int]) -> None:
        """Request that these pages be loaded soon."""
        with self._changed:
            if self._is_closed:
                return
            self.wanted.extend(pages[: PAGES_MAX - len(self.wanted)])
            if self._thread is None and self.wanted:
                self._thread = threading.Thread(target=self._run, name="tidemark-read-ahead", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until no page is requested or being loaded."""
        with self._changed:
            while not self._is_closed and (self.wanted or self._is_loading):
                self._changed.wait()

    def forget(self, file_ids: Container[int]) -> None:
        """Drop requests for pages of these data files, and wait until the load now under way has ended."""
        with self._changed:
            kept = [page for page in self.wanted if page >> FILE_SHIFT not in file_ids]
            self.wanted.clear()
            self.wanted.extend(kept)
            loads = self._loads
            while not self._is_closed and self._is_loading and self._loads == loads:
                self._changed.wait(IDLE_SECONDS)

    def close(self) -> None:
        """Stop and join the thread; requests it has not begun are dropped. May be called again."""
        with self._changed:
            self._is_closed = True
            self.wanted.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_loading = False
                self._changed.notify_all()
                if not self.wanted and not self._is_closed:
                    self._changed.wait(IDLE_SECONDS)
                if self._is_closed or not self.wanted:
                    self._thread = None
                    return
                pages = list(self.wanted)
                self.wanted.clear()
                self._is_loading = True
                self._loads += 1
            try:
                self._load(pages)
            except StoreFailed:
                return self._stop()
            except (Error, MemoryError) as error:
                _log.info("read-ahead left pages to their reader: %s", error or type(error).__name__)
            except BaseException:
                self._stop()  # or `drain` and `forget` would wait for this thread
                raise

    def _stop(self) -> None:
        with self._changed:
            self._is_closed = True
            self.wanted.clear()
            self._changed.notify_all()
