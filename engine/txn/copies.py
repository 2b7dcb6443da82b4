"""Old rows that commits copy for a running local checkpoint, on their way to its copies file.

Commits write into the current buffer under the commit latch; the checkpoint's thread takes the full buffers.
`checkpoint_memory` bounds the copies in flight: an operation reserves its copies before it is accepted.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words

BUFFER_WORDS = 1 << 17
SPARE_BUFFERS = 2


class CopySink:
    """Where commits copy old rows. Word 0 of a buffer counts the words used."""

    def __init__(self, latch: threading.Lock) -> None:
        self._latch = latch
        self._nothing: Words = np.zeros(0, dtype=np.int64)
        self.current: Words = self._nothing  # empty while no local checkpoint runs
        self._full: list[Words] = []
        self._spare: list[Words] = []

    def start(self) -> None:
        """Begin to copy for a local checkpoint. The caller holds the latch."""
        self.current = self._fresh(BUFFER_WORDS)

    def stop(self) -> None:
        """End copying: the local checkpoint has ended or was abandoned. The caller holds the latch."""
        self.current = self._nothing
        self._full.clear()
        self._spare.clear()

    def _fresh(self, words: int) -> Words:
        # Commits wait here: a spare buffer avoids a system call and page faults.
        buffer = self._spare.pop() if self._spare and words <= BUFFER_WORDS else np.empty(words, dtype=np.int64)
        buffer[0] = 1
        return buffer

    def room(self, words: int) -> Words:
        """Return a buffer with room for `words` more words, empty if no checkpoint runs. The caller holds the latch."""
        current = self.current
        if current.size and int(current[0]) + words > current.size:
            self._full.append(current)
            current = self.current = self._fresh(max(BUFFER_WORDS, words + 1))
        return current

    def waiting_words(self) -> int:
        """Return the number of words of the full buffers that `take_full` would return."""
        return sum(buffer.size for buffer in list(self._full))

    def take_full(self) -> list[Words]:
        """Take the full buffers. Takes the latch only if there are any; return them with `reuse`."""
        if not self._full:
            return []
        with self._latch:
            taken, self._full = self._full, []
            return taken

    def take(self) -> list[Words]:
        """Take everything copied so far. Takes the latch."""
        with self._latch:
            taken = self._full
            self._full = []
            if self.current.size and int(self.current[0]) > 1:
                taken.append(self.current)
                self.current = self._fresh(BUFFER_WORDS)
            return taken

    def reuse(self, buffer: Words) -> None:
        """Take back a buffer that is no longer needed, as a spare. Takes the latch."""
        if buffer.size == BUFFER_WORDS and len(self._spare) < SPARE_BUFFERS:
            with self._latch:
                self._spare.append(buffer)
