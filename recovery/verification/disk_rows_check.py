"""Verification of disk columns: pages and rows of a fragment refer to each other, and to nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.disk.cache_layout import TS_PAGE_WORDS
from tidemark.engine.memory import arena_layout as a
from tidemark.recovery.verification import disk_rows_check_layout as w
from tidemark.recovery.verification.disk_rows_check_kernels import check_disk_page, check_disk_row, rows_not_marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tidemark.engine.memory.arena import Arena, Words

SLOTS_PER_CALL = 4_096
ROWIDS_PER_CALL = 1_024


class PageVerdict(NamedTuple):
    """What the verification of a page found."""

    faults: list[tuple[int, int]]  # a DISK_ fault and the ROWID in the piece; -1 if it is a fault of the page
    chunks: Words  # (reference, ROWID) of each chunk
    chained: list[int]  # ROWIDs of rows with chunks
    lsn: int
    is_busy: bool  # it is dirty or being written: the copy on disk is older


class RowVerdict(NamedTuple):
    """What the verification of a row's disk part found."""

    fault: int  # DISK_ fault; OK: none
    is_busy: bool  # the row was changed meanwhile, or is locked, so it was not judged
    page: int  # of the fault
    chunks: Words  # reference of each chunk


class DiskWalk:
    """Verifies the disk columns of one fragment for one thread. `page` marks the rows that it finds valid."""

    def __init__(self, arena: Arena, fragment: int) -> None:
        self._mem = arena.mem
        self._fragment = fragment
        self.page_words = int(arena.mem[arena.word(fragment, a.F_TABLESPACE) + TS_PAGE_WORDS])
        slots = arena.word(fragment, a.F_PAGES) * arena.word(fragment, a.F_SLOTS)
        self._marks = np.zeros(slots // 32 + 1, dtype=np.int64)
        self._chunks = np.zeros(4 * self.page_words, dtype=np.int64)
        self._chains = np.zeros(2 * self.page_words, dtype=np.int64)

    def page(self, number: int) -> PageVerdict:
        """Verify a page, and each piece on it against its row. The caller holds the page; the verdict on a page that is
        not in the cache is empty.
        """
        state = np.zeros(w.CD_WORDS, dtype=np.int64)
        faults: list[tuple[int, int]] = []
        rest = (number, self._marks, self._chunks, self._chains, state)
        while (status := int(check_disk_page(self._mem, self._fragment, *rest))) > a.OK:
            faults.append((status, int(state[w.CD_WHERE])))
        if status not in (a.OK, a.ST_PAGE, a.ST_DROPPED):
            raise InvariantBroken(f"page {number:#x} cannot be verified (status {status}); report this")
        chunks = self._chunks[: int(state[w.CD_CHUNKS])].reshape(-1, 2).copy()
        chained = self._chains[: int(state[w.CD_CHAINS])].tolist()
        return PageVerdict(faults, chunks, chained, int(state[w.CD_LSN]), bool(state[w.CD_BUSY]))

    def unmarked(self) -> Iterator[list[int]]:
        """Yield, for each kernel call, a list of ROWIDs of committed rows that no page has marked; it may be empty."""
        state = np.zeros(3, dtype=np.int64)
        rowids = np.zeros(ROWIDS_PER_CALL, dtype=np.int64)
        status = a.ST_MORE
        while status in (a.ST_MORE, a.ST_SPACE):
            state[1] = 0
            status = int(rows_not_marked(self._mem, self._fragment, SLOTS_PER_CALL, self._marks, rowids, state))
            yield rowids[: int(state[1])].tolist()

    def row(self, rowid: int, load: Callable[[int], bool]) -> RowVerdict | None:
        """Verify the disk part of a row, starting from the row. None: a page could not be read.

        load: reads a page into the cache; returns False if it is unreadable.
        """
        state = np.zeros(6, dtype=np.int64)
        chunks = np.zeros(8, dtype=np.int64)
        while True:
            status = int(check_disk_row(self._mem, self._fragment, rowid, chunks, state))
            page = int(state[4])
            if status == a.ST_PAGE:
                if not load(page):
                    return None
            elif status == a.ST_SPACE:
                chunks = np.zeros(int(state[5]), dtype=np.int64)
            else:
                return RowVerdict(max(status, a.OK), status == a.ST_MORE, page, chunks[: int(state[3])])
