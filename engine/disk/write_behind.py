"""Pages on their way to disk: copied out of their frames, which are free for other pages at once, and written later.

A write of pages costs three syncs, whatever their number (`page_writer.py`), so dirty pages are collected: a batch is
filled while another thread may still be writing the previous one. Until a page is in its place, a reader that needs it
takes it from its copy here.

Invariants: (B1) `find` finds the copy of a page before the page's frame may be evicted, and until the page is in its
place; (B2) of two copies of a page the newer one is found, and written last; (B3) the copies of a batch do not change
while `find` can return them. A reader that uses a copy after its batch was written finds the right page there, or
another one, which it recognizes by the page number. A thread that fills a batch holds the cache's turn, a thread that
writes holds that of `PageWriter`; both are taken in this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.disk.cache_layout import FILE_SHIFT
from tidemark.engine.disk.double_write import HEADER_WORDS
from tidemark.engine.disk.frames_kernels import COPIED_WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from tidemark.engine.disk.page_writer import PageWriter
    from tidemark.engine.sealed.sealed_layout import Words


class Batch:
    """`count` copies of pages: their words in `pages`, and the rows of `copy_dirty_pages` in `copied`."""

    __slots__ = ("copied", "count", "pages", "slots")

    def __init__(self, page_words: int, capacity: int) -> None:
        self.pages: Words = np.empty(capacity * page_words, dtype=np.int64)
        self.copied: Words = np.zeros(capacity * COPIED_WORDS, dtype=np.int64)
        self.count = 0
        self.slots: dict[int, int] = {}  # by page: number of its newest copy

    def clear(self) -> None:
        """Remove all copies."""
        self.slots = {}
        self.count = 0
        self.copied[:] = 0


class WriteBehind:
    """The batches of one cache: one being filled, and perhaps a full one being written."""

    def __init__(self, writer: PageWriter, page_words: int, capacity: int, wake: Callable[[], bool]) -> None:
        """wake: called when a batch is full; returns False if no other thread will write it."""
        self.capacity = capacity
        self._wake = wake
        self.pages_written = 0
        self._writer = writer
        self._page_words = page_words
        self._batches: tuple[Batch, ...] = (Batch(page_words, capacity),)  # the one being filled first
        self._spare: Batch | None = None

    # --- looking ---------------------------------------------------------------------------------
    def find(self, page: int) -> tuple[Words, int] | None:
        """Return the array with a copy of the page and the copy's first word; None if the page is in its place.

        By the time the caller reads the words, they may belong to another page: then it must call again.
        """
        for batch in self._batches:
            slot = batch.slots.get(page)
            if slot is not None:
                return batch.pages, slot * self._page_words
        return None

    @property
    def waiting(self) -> int:
        """The number of pages on their way to disk."""
        return sum(len(batch.slots) for batch in self._batches)

    # --- filling; the caller holds the cache's turn ------------------------------------------------
    def filling(self) -> Batch:
        """Return a batch with room. Raises: as `PageWriter.write`, if another one must be written first."""
        if self._batches[0].count == self.capacity:
            self.hand_over()
            if not self._wake():
                self.write_full()
        return self._batches[0]

    def added(self, batch: Batch, count: int) -> None:
        """Note that the batch has `count` copies; from now on `find` finds them."""
        first = batch.count
        numbers = batch.copied[first * COPIED_WORDS : count * COPIED_WORDS : COPIED_WORDS].tolist()
        batch.count = count  # first: a signal may leave a copy that is never found, but never a place used twice
        batch.slots.update(zip(numbers, range(first, count), strict=True))

    def hand_over(self) -> None:
        """Make the batch being filled the full one, after writing any full one before it. Raises: as `filling`."""
        self.write_full()
        fresh = self._spare or Batch(self._page_words, self.capacity)
        self._spare = None
        self._batches = (fresh, self._batches[0])

    # --- writing ---------------------------------------------------------------------------------
    def write_full(self) -> int:
        """Write the full batch, if there is one, or wait until another thread has; returns the number of pages.

        Durable on return, and raises: as `PageWriter.write`; the batch stays if it raises.
        """
        if len(self._batches) < 2:
            return 0
        with self._writer.turn:
            batches = self._batches
            if len(batches) < 2:
                return 0
            written = self._write(batches[1])
            self._batches = batches[:1]
            batches[1].clear()
            self._spare = batches[1]
            return written

    def write_all(self) -> None:
        """Write all waiting copies. The caller holds the cache's turn. Durable on return; raises: as `write_full`."""
        if self._batches[0].count:
            self.hand_over()
        self.write_full()

    def _write(self, batch: Batch) -> int:
        order = sorted(batch.slots.items())
        if not order:
            return 0
        words = np.empty(HEADER_WORDS + len(order) * self._page_words, dtype=np.int64)
        numbers, slots = [page for page, _ in order], [slot for _, slot in order]
        pages = batch.pages.reshape(-1, self._page_words)
        np.take(pages, slots, axis=0, out=words[HEADER_WORDS:].reshape(-1, self._page_words), mode="clip")
        self._writer.write(words, numbers, self._page_words, int(batch.copied[1::COPIED_WORDS].max()))
        self.pages_written += len(order)
        return len(order)

    def forget(self, file_ids: Container[int]) -> None:
        """Drop copies of pages of data files that are being removed. The caller holds both turns."""
        for batch in self._batches:
            batch.slots = {page: slot for page, slot in batch.slots.items() if page >> FILE_SHIFT not in file_ids}
