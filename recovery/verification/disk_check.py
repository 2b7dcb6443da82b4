"""Verifies disk columns: rows and pages refer to each other, extents count their pages correctly, files are whole.

Pages are read through the cache, a few pinned at a time; this does not count as use. Each is judged at one instant
together with the rows of its pieces. A clean page must be the same on disk as in memory. A row whose part was found on
no page is checked by itself, since a transaction may have moved it meanwhile. Nothing is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import Damaged, FileTruncated, IoFailed, NoSuchTable
from tidemark.engine.disk import matrix_layout as m
from tidemark.engine.disk.cache_layout import FILE_SHIFT, PAGE_IN_FILE_MASK, SLOT_BITS
from tidemark.engine.disk.columns import COMMIT_PAGES
from tidemark.engine.disk.data_file import file_name
from tidemark.engine.disk.disk_layout import DP_LSN
from tidemark.engine.disk.double_write import is_page
from tidemark.engine.disk.matrix import SpaceFinding, check_space, extents_of
from tidemark.engine.memory.arena_layout import F_DISK_EXTENT_COUNT
from tidemark.engine.types.base import counted
from tidemark.recovery.verification import disk_rows_check_layout as w
from tidemark.recovery.verification.disk_rows_check import DiskWalk

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store
    from tidemark.recovery.verification.disk_rows_check import PageVerdict
    from tidemark.recovery.verification.findings import CheckReport

ATTEMPTS = 100
FAULT_ATTEMPTS = 5  # a fault is real if every attempt sees it
SETTLE_ATTEMPTS = 100
PAUSE_SECONDS = 0.005

FAULTS = {
    w.DISK_PLACE: "another page is there",
    w.DISK_OWNER: "it belongs to another table or fragment than its extent",
    w.DISK_DIRECTORY: "header and slot directory disagree",
    w.DISK_FREE: "its extent counts other free words than its header",
    w.DISK_ROW: "a piece belongs to a row that does not refer to it",
    w.DISK_LENGTH: "a piece is not as long as its disk part",
    w.DISK_LOST: "it does not hold the row's piece",
    w.DISK_CHAIN: "it does not hold the next chunk of the row's disk part",
}
SPACE_FAULTS = {
    m.SPACE_CLASSES: "its extent counts its pages by class wrong",
    m.SPACE_FREE: "its extent adds up its free words wrong",
    m.SPACE_POSITION: "its extent is in the wrong list of the search matrix",
    m.SPACE_LINKS: "the list of its extent in the search matrix is broken",
    m.SPACE_OPEN: "it is open in the wrong list, or for nothing",
    m.SPACE_OPEN_LINKS: "its list of open pages is broken",
    m.SPACE_WORDS: "it has more or fewer free words than a page can have",
    m.SPACE_EXTENT: "its extent is elsewhere, or belongs to another fragment",
}


class FragmentCheck:
    """Verifies the disk columns of one fragment. identity: UUID of the store. where: its name in the report."""

    def __init__(
        self,
        store: Store,
        files: Files,
        identity: bytes,
        fragment: int,
        where: str,
        report: CheckReport,
        is_live: bool,
    ) -> None:
        self._store = store
        self._files = files
        self._identity = identity
        self._fragment = fragment
        self._where = where
        self._report = report
        self._is_live = is_live
        self._walk = DiskWalk(store.arena, fragment)
        self._chunks: list[Words] = []  # (reference, ROWID) of chunks, by page
        self._chained: list[int] = []  # ROWIDs of rows with chunks
        self._unreadable: set[int] = set()

    def run(self) -> None:
        """Verify the disk columns of the fragment. Raises: MemoryExhausted if changed pages fill the page buffer of a
        restart that only rehearses; StoreFailed.
        """
        self._space()
        for line in extents_of(self._store.space, self._fragment):
            self._pages((int(line[0]) + np.flatnonzero(line[1:])).tolist())
        self._rows()
        self._chains()

    # --- extents ---------------------------------------------------------------------------------
    def _space(self) -> None:
        found = check_space(self._store.space, self._fragment, self._store.failure.check)
        in_descriptor = self._store.arena.word(self._fragment, F_DISK_EXTENT_COUNT)
        if isinstance(found, SpaceFinding):
            self._page_problem(found.page, SPACE_FAULTS[found.fault])
        elif not self._is_live and found != in_descriptor:
            self._report.add(f"{self._where}: {counted(found, 'extent')} found, the fragment counts {in_descriptor}")

    # --- pages -----------------------------------------------------------------------------------
    def _pages(self, pages: list[int]) -> None:
        step = self._store.disk.pages_per_hold(COMMIT_PAGES)
        for first in range(0, len(pages), step):
            self._store.failure.check()
            part = pages[first : first + step]
            try:
                with self._store.disk.held(part):
                    self._judge(part)
            except (Damaged, IoFailed):
                for page in part:
                    self._load(page, is_judged=True)

    def _judge(self, pages: list[int]) -> None:
        for page in pages:
            self._report.pages += 1
            found = self._walk.page(page)
            for fault, rowid in found.faults:
                if fault == w.DISK_ROW and self._is_live and self._is_transient(page, rowid):
                    continue
                self._page_problem(page, FAULTS[fault], f", row {rowid}" if rowid >= 0 else "")
            if found.chunks.size:
                self._chunks.append(found.chunks)
            self._chained += found.chained
            self._on_disk(page, found)

    def _is_transient(self, page: int, rowid: int) -> bool:
        """Whether a piece without a row disappears by itself: a commit in slices frees the chunks of a deleted row
        gradually.
        """
        for _ in range(FAULT_ATTEMPTS):
            if not self._has_settled():
                return True
            if (w.DISK_ROW, rowid) not in self._walk.page(page).faults:
                return True
        return False

    def _has_settled(self) -> bool:
        """Wait until the transactions that are open now have ended: one of them may be committing in slices, and free
        old chunks after its row is done. Return False if one stays open: the piece cannot be judged then.
        """
        open_now = self._open_now()
        for _ in range(SETTLE_ATTEMPTS):
            if open_now.isdisjoint(self._open_now()):
                return True
            self._store.failure.check()
            self._store.clock.sleep(PAUSE_SECONDS)
        return False

    def _open_now(self) -> set[int]:
        return {place.txid for place in self._store.locks.open_now()}

    def _on_disk(self, page: int, found: PageVerdict) -> None:
        """Check that a clean page is the same on disk as in memory. A page that changes meanwhile is not judged."""
        if found.is_busy or self._store.disk.is_waiting(page):
            return
        file, offset = self._store.space.place(page)
        words = np.zeros(self._walk.page_words, dtype=np.int64)
        got = self._files.pread_into(file, offset, words)
        if got < words.nbytes:
            raise FileTruncated(f"{file.name} ends before page {page}; restore the store from a backup", file=file.name)
        if is_page(words, page, words.size, self._identity) and int(words[DP_LSN]) == found.lsn:
            return
        again = self._walk.page(page)
        if not again.is_busy and again.lsn == found.lsn:
            self._page_problem(page, "the page on disk differs from the page that was read or written")

    # --- rows ------------------------------------------------------------------------------------
    def _rows(self) -> None:
        for rowids in self._walk.unmarked():
            self._store.failure.check()
            for rowid in rowids:
                self._row(rowid)

    def _row(self, rowid: int) -> set[int] | None:
        """Check one row, starting from the row; return the references of its chunks, None if it could not be judged."""
        for _ in range(ATTEMPTS):
            found = self._walk.row(rowid, self._load)
            if found is None:
                return None
            if not found.is_busy and not found.fault:
                return set(found.chunks.tolist())
            if found.fault and self._is_fault_again(rowid, found.fault):
                self._page_problem(found.page, FAULTS[found.fault], f", row {rowid}")
                return None
            self._store.clock.sleep(PAUSE_SECONDS)
        return None  # locked all the time, so it cannot be judged

    def _is_fault_again(self, rowid: int, fault: int) -> bool:
        """Whether a fault persists: with concurrent writers, a row may have got another disk part between two calls."""
        for _ in range(FAULT_ATTEMPTS if self._is_live and fault == w.DISK_CHAIN else 0):
            again = self._walk.row(rowid, self._load)
            if again is None or again.fault != fault:
                return False
            self._store.clock.sleep(PAUSE_SECONDS)
        return True

    def _load(self, page: int, is_judged: bool = False) -> bool:
        """Read one page into memory, and judge it; return False if it is unreadable, which is reported once."""
        if page in self._unreadable:
            return False
        try:
            with self._store.disk.held([page]):
                if is_judged:
                    self._judge([page])
                return True
        except NoSuchTable:
            return False
        except (Damaged, IoFailed) as error:
            self._store.failure.check()
            self._unreadable.add(page)
            self._report.add(f"{self._where}: {error.message}")
            return False

    # --- chunks ----------------------------------------------------------------------------------
    def _chains(self) -> None:
        """Check that each chunk on a page belongs to its row, and that each row has its chunks."""
        walked: set[int] = set()
        for rowid in self._chained:
            walked |= self._row(rowid) or set()
        for pairs in self._chunks:
            for reference, rowid in pairs.tolist():
                if reference not in walked and not self._is_chunk_freed_or_referenced(reference, rowid):
                    text = "a chunk belongs to no disk part"
                    self._page_problem(reference >> SLOT_BITS, text, f", row {rowid}")

    def _is_chunk_freed_or_referenced(self, reference: int, rowid: int) -> bool:
        for _ in range(FAULT_ATTEMPTS if self._is_live else 1):
            if self._is_live and not self._has_settled():
                return True
            led_to = self._row(rowid)
            if led_to is None or reference in led_to:
                return True
            if not self._load(reference >> SLOT_BITS):
                return True
            there = self._walk.page(reference >> SLOT_BITS).chunks.tolist()
            if [reference, rowid] not in there:  # the place may belong to another row by now
                return True
            led_to = self._row(rowid)  # the row may have got a chunk in that very place meanwhile
            if led_to is None or reference in led_to:
                return True
        return False

    def _page_problem(self, page: int, what: str, row: str = "") -> None:
        place = f"{file_name(page >> FILE_SHIFT)}, page {page & PAGE_IN_FILE_MASK}"
        self._report.add(f"{place} ({self._where}{row}): {what}")
