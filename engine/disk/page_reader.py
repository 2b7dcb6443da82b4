"""Loading of pages from disk into frames: read, verified, and only then visible.

`load` reads many pages, adjacent ones in one read; `load_one` reads a single page by the shortest path, for a reader of
one row. A page that is on its way to disk is taken from its copy (`write_behind.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import FileTruncated, InvariantBroken, IoFailed, PageDamaged
from tidemark.engine.disk import cache_layout as c
from tidemark.engine.disk.double_write import is_page
from tidemark.engine.disk.frames_kernels import loaded_intact_page, loaded_page
from tidemark.engine.disk.page_writer import follows_directly
from tidemark.engine.memory.arena_layout import OK
from tidemark.engine.sealed.checksums_kernels import STRIPE_WORDS, xxh3_lanes_of_page
from tidemark.engine.sealed.sealed_layout import KIND_DISK_PAGE, disk_page_word, is_sealed, store_halves
from tidemark.engine.sealed.version import check_version

if TYPE_CHECKING:
    from tidemark.engine.disk.double_write import Places
    from tidemark.engine.disk.write_behind import WriteBehind
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.sealed.sealed_layout import Words

READ_BYTES_MAX = 512 << 10
COPY_ATTEMPTS = 100  # one is enough unless a batch is written and filled again in the same moment


class Scratch:
    """The arrays for loading one page, reused for later ones."""

    __slots__ = ("lanes", "out", "wanted", "words")

    def __init__(self, page_words: int) -> None:
        self.words: Words = np.zeros(page_words, dtype=np.int64)
        self.lanes: Words = np.zeros(STRIPE_WORDS, dtype=np.int64)
        self.wanted: Words = np.zeros(1, dtype=np.int64)
        self.out: Words = np.zeros(1, dtype=np.int64)


class PageReader:
    """Fills frames of one cache that were claimed with CLAIM_LOAD."""

    def __init__(
        self,
        mem: Words,
        address: int,
        page_words: int,
        files: Files,
        places: Places,
        write_behind: WriteBehind,
        store: bytes,
    ) -> None:
        """address: of the cache. store: its UUID."""
        self.pages_read = 0
        self._mem = mem
        self._address = address
        self._page_words = page_words
        self._files = files
        self._places = places
        self._write_behind = write_behind
        self._store = store
        self.seal = np.array([disk_page_word(page_words), 0, 0], dtype=np.int64)
        self.seal[1:].view(np.uint64)[:] = store_halves(store)

    def load_one(self, page: int, scratch: Scratch) -> bool:
        """Read one page claimed with CLAIM_LOAD; False if it is unreadable, invalid, or on its way to disk."""
        if self._write_behind.find(page) is not None:
            return False
        words, lanes = scratch.words, scratch.lanes
        try:
            got = self._files.pread_into(*self._places.place(page), words)
        except IoFailed:
            self._files.failure.check()
            return False
        if got < words.nbytes:
            return False
        if not self._is_filled(page, words, 0, lanes, 0):
            return False
        scratch.out[0] = c.CLAIM_HIT
        self.pages_read += 1
        return True

    def load(self, wanted: Words, missing: list[int], out: Words, how: int) -> None:
        """Read pages claimed with CLAIM_LOAD, adjacent ones in one read; copy those that are on their way to disk."""
        placed = [
            (at, *self._places.place(int(wanted[at]) & ~c.FRESH_PAGE))
            for at in missing
            if not self._load_waiting(wanted, at, out, how)
        ]
        placed.sort(key=lambda each: (int(each[1]), each[2]))
        page_bytes = self._page_words * 8
        first = 0
        for number in range(1, len(placed) + 1):
            is_full = (number - first + 1) * page_bytes > READ_BYTES_MAX
            if (
                number < len(placed)
                and not is_full
                and follows_directly(placed[number - 1][1:], placed[number][1:], page_bytes)
            ):
                continue
            self._load_run(wanted, placed[first:number], out, how)
            first = number

    def _load_waiting(self, wanted: Words, at: int, out: Words, how: int) -> bool:
        """Take a page from its copy if it is on its way to disk; False if it must be read from its place. Raises:
        InvariantBroken if the copy is not a page.
        """
        page = int(wanted[at]) & ~c.FRESH_PAGE
        is_pinned = 1 if how & c.CLAIM_PIN else 0
        for _ in range(COPY_ATTEMPTS):
            found = self._write_behind.find(page)
            if found is None:
                return False
            # Any other status: the batch was written meanwhile and its memory reused (B3), so look again.
            if loaded_page(self._mem, self._address, page, *found, is_pinned) == OK:
                out[at] = c.CLAIM_HIT
                return True
        raise InvariantBroken(
            f"the copy of page {page:#x}, which waits to be written, is not a page; open the store again"
        )

    def _load_run(self, wanted: Words, run: list[tuple[int, Any, int]], out: Words, how: int) -> None:
        _, file, offset = run[0]
        words = np.empty(len(run) * self._page_words, dtype=np.int64)
        lanes = np.zeros(STRIPE_WORDS, dtype=np.int64)
        try:
            got = self._files.pread_into(file, offset, words)
        except IoFailed as error:
            self._files.failure.check()
            if len(run) > 1:  # read one by one, so that only the unreadable page fails and is named
                for each in run:
                    self._load_run(wanted, [each], out, how)
                return
            page = int(wanted[run[0][0]]) & ~c.FRESH_PAGE
            raise self._damaged(page, file.name, offset, "cannot be read") from error
        self.pages_read += len(run)
        for number, (at, _, offset) in enumerate(run):
            page = int(wanted[at]) & ~c.FRESH_PAGE
            start = number * self._page_words
            if got < (start + self._page_words) * 8:
                text = f"{file.name} ends before page {page}; restore the store from a backup"
                raise FileTruncated(text, file=file.name, offset=offset, page=page)
            is_pinned = 1 if how & c.CLAIM_PIN else 0
            if not self._is_filled(page, words, start, lanes, is_pinned):
                self._verify(words[start : start + self._page_words], page, file.name, offset)
                if loaded_page(self._mem, self._address, page, words, start, is_pinned) != OK:
                    raise self._damaged(page, file.name, offset, "has an impossible slot directory")
            out[at] = c.CLAIM_HIT

    def _is_filled(self, page: int, words: Words, start: int, lanes: Words, is_pinned: int) -> bool:
        """Fill the page's frame from words[start:] and return True if they are an intact page with its number."""
        xxh3_lanes_of_page(words, start + 1, self._page_words - 1, lanes)
        status = loaded_intact_page(self._mem, self._address, page, words, start, lanes, self.seal, is_pinned)
        return bool(status == OK)

    def _verify(self, words: Words, page: int, name: str, offset: int) -> None:
        if is_page(words, page, self._page_words, self._store):
            check_version(words, name)
        elif words.any():
            is_intact = is_sealed(words, KIND_DISK_PAGE, self._page_words)
            what = "belongs to another place or store" if is_intact else "fails its checksum"
            raise self._damaged(page, name, offset, what)

    def _damaged(self, page: int, name: str, offset: int, what: str) -> PageDamaged:
        return PageDamaged(
            f"page at offset {offset} of {name} {what}; restore the store from a backup",
            file=name,
            page=page,
            offset=offset,
        )
