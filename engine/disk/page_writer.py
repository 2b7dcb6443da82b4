"""Writing of pages to disk, from any cache.

Order of writes of a batch: pages sealed; UNDO log durable through their newest LSN; data files durable with the
previous batch; double-write file written and synced; pages written in place. The data files are synced lazily, by the
next batch or by `settle`.

Invariants: (W1) one batch at a time, from the copying of its pages on (`turn`), so that no older copy overtakes a newer
one; (W2) the double-write file keeps a batch until all its pages are whole and durable in their places: a batch
interrupted in the middle (disk full, a signal) is written again before anything else.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.disk.double_write import HEADER_WORDS
from tidemark.engine.sealed.sealed_layout import disk_page_word, seal_units, store_halves

if TYPE_CHECKING:
    from tidemark.engine.disk.double_write import DoubleWrite, Places
    from tidemark.engine.disk.undo import UndoLog
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.sealed.sealed_layout import Words


class PageWriter:
    """Writes batches of pages. Hold `turn` from before the pages are copied until `write` returns."""

    def __init__(
        self,
        files: Files,
        places: Places,
        write_ahead: UndoLog,
        double_write: DoubleWrite,
        identity: tuple[bytes, int],
    ) -> None:
        self.turn = threading.Lock()
        self._files = files
        self.places = places
        self.write_ahead = write_ahead
        self._double_write = double_write
        self._identity = identity
        # A killed process may have left pages unsynced, and the next batch overwrites their copies.
        self._is_unsynced = True
        self._begun: tuple[Words, list[int], int] | None = None
        self.batches = 0
        self.pages_written = 0

    def write(self, batch: Words, numbers: list[int], page_words: int, lsn: int) -> None:
        """Write pages, in ascending order of number; they are in `batch` after HEADER_WORDS words for a header.

        lsn: the newest LSN of the pages. Durable on return: the UNDO log through `lsn`; the pages, by their copies in
        the double-write file. If a write in place fails, it keeps `batch` to write it again first (W2). Raises:
        StorageFull, IoFailed, SyncFailed.
        """
        self._seal(batch, len(numbers), page_words)
        self.write_ahead.flush_through(lsn)
        self.settle()
        self._double_write.write_batch(batch, numbers, page_words)
        self._is_unsynced = True
        self._begun = (batch, numbers, page_words)
        self._finish()
        self.batches += 1
        self.pages_written += len(numbers)

    def settle(self) -> None:
        """Make everything written so far durable in its place. Raises: StorageFull, IoFailed, SyncFailed."""
        self._finish()
        if self._is_unsynced:
            self.places.sync_files()
            self._is_unsynced = False

    def _finish(self) -> None:
        if self._begun is not None:
            batch, numbers, page_words = self._begun
            self._write_in_place(batch, numbers, page_words)
            self._begun = None

    def _seal(self, batch: Words, count: int, page_words: int) -> None:
        store, incarnation = self._identity
        pages = batch[HEADER_WORDS : HEADER_WORDS + count * page_words].reshape(count, page_words)
        pages[:, 1] = disk_page_word(page_words)
        pages[:, 2:4].view(np.uint64)[:] = store_halves(store)
        pages[:, 4] = incarnation
        seal_units(batch, [(HEADER_WORDS + number * page_words, page_words) for number in range(count)])

    def _write_in_place(self, batch: Words, numbers: list[int], page_words: int) -> None:
        places = [self.places.place(page) for page in numbers]
        first = 0
        for number in range(1, len(numbers) + 1):
            if number < len(numbers) and follows_directly(places[number - 1], places[number], page_words * 8):
                continue
            start = HEADER_WORDS + first * page_words
            self._files.pwrite(*places[first], batch[start : HEADER_WORDS + number * page_words])
            first = number


def follows_directly(before: tuple[object, int], after: tuple[object, int], page_bytes: int) -> bool:
    """Whether a page directly follows another one in the same file."""
    return before[0] == after[0] and before[1] + page_bytes == after[1]
