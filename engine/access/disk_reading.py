"""Reads of one or many rows with their disk parts: which pages, in which order, and large values chunk by chunk.

A kernel call copies memory parts and disk part of a row at one instant, or reports the missing page. For many rows the
pages are determined first. Each page is then read once, in sorted order, a few at a time, with read-ahead of the next
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.disk_reads_kernels import (
    ENTRY_INCOMPLETE,
    chunk_words_of,
    read_chunks,
    read_disk_row,
)
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import NOTHING, Words
from tidemark.engine.rows.lcp_layout import entry_fragment
from tidemark.engine.rows.row_part import image_words
from tidemark.engine.rows.row_var import unexpected_var_words

if TYPE_CHECKING:
    from tidemark.engine.disk.columns import DiskColumns
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.views import View

OUT_WORDS = 2_048
GROUP_PAGES = 64  # pages pinned for one kernel call: about 200 µs of copying
SCAN_ROWS_FIRST = 1_024
SCAN_ROWS_MAX = 65_536
SCAN_WORDS = 4 << 20  # target size of a batch of a scan

# The kernel call for the rows order[start:stop] of a batch: order, start, stop, out, offsets, state.
Read = Callable[[Words, int, int, Words, Words, Words], int]

# Private buffers for reading rows, with the state of the call; pop and append are atomic.
_outs: list[tuple[Words, Words]] = []


def grown(out: Words, used: int, needed: int) -> Words:
    """Return a larger array with the words used so far, and room for as many as a kernel needs."""
    larger = np.empty(2 * out.size + needed, dtype=np.int64)
    larger[:used] = out[:used]
    return larger


def read_entry(table: Table, key: Words, view: View) -> Words | None:
    """Return a copy of the whole entry of the row with a canonical key, None if there is no such row. view: one that is
    not open.

    Raises: NoSuchTable if the table was dropped, PageDamaged, IoFailed, MemoryExhausted if no frame of the page buffer
    is free.
    """

    def read(out: Words, state: Words) -> int:
        return int(read_disk_row(table.mem, table.handle, view.desc, view.buf, key, key.size, out, state))

    return _read_alone(table, read, view)


def _read_alone(table: Table, read: Callable[[Words, Words], int], view: View) -> Words | None:
    """Return a copy of one whole entry, None if there is no row. read: a call of a kernel, as `read_disk_row`."""
    disk = table.disk
    place = _outs.pop() if _outs else (np.empty(OUT_WORDS, dtype=np.int64), np.zeros(5, dtype=np.int64))
    out, state = place
    held: list[int] = []
    was_loaded = False
    try:
        while True:
            state[:] = 0
            done = read(out, state)
            if done == a.ST_UNFINISHED:
                exchange_pins(disk, held, [])  # the commit may need the frame
            done = view.settled(done)
            if done > 0:
                if not state[4] or _complete(table, out, a.ENTRY_WORDS):
                    return out[:done].copy()
            elif done == a.ST_PAGE:
                # A loaded page usually stays long enough. If it was evicted before the call, pin it.
                if was_loaded:
                    exchange_pins(disk, held, [int(state[3])])
                else:
                    disk.load(int(state[3]))
                    was_loaded = True
            elif done == a.ST_DAMAGED:
                raise disk.damaged(int(state[3]), table.name)
            elif done == a.ST_MISSING:
                return None
            elif done == a.ST_DROPPED:
                raise table.gone()
            elif done != a.ST_MORE:
                out = np.empty(a.ST_SPACE - done, dtype=np.int64)
    finally:
        _outs.append(place)
        disk.release(held)


def exchange_pins(disk: DiskColumns, held: list[int], wanted: list[int]) -> None:
    """Pin other pages in place of those in `held`. No call is made while `held` changes, so a signal never leaves it
    wrong.
    """
    released = held[:]
    held[:] = ()
    disk.release(released)
    disk.hold(wanted)
    held[:] = wanted


def _fragment_of(table: Table, out: Words, image: int) -> int:
    """Return the fragment of the incomplete entry with its image at `image`; 0 if its partition was dropped."""
    return table.by_number.get(entry_fragment(int(out[image - 1]) & ~ENTRY_INCOMPLETE), 0)


def _complete(table: Table, out: Words, image: int) -> bool:
    """Fetch the chunks of an incomplete entry with its image at `image`; False if the row changed meanwhile."""
    fragment = _fragment_of(table, out, image)
    if not fragment:
        return False
    view = out.data.cast("B")
    part = image_words(table.format.layout, view, image * WORD_BYTES, has_var=True, has_disk=False) + image
    if not table.format.has_var:
        part += unexpected_var_words(view, part * WORD_BYTES)
    words = int(out[part]) & a.VAR_WORDS_MASK
    chunk = int(chunk_words_of(table.mem, fragment))
    if chunk < 0:
        return False
    first_piece = words - (words - 1) // chunk * chunk
    rowid = int(out[image - a.ENTRY_WORDS])
    state = np.zeros(4, dtype=np.int64)
    disk = table.disk
    held: list[int] = []
    try:
        while True:
            status = read_chunks(table.mem, fragment, rowid, out, part + first_piece, part + words, state)
            if status == a.OK:
                out[image - 1] &= ~ENTRY_INCOMPLETE
                return True
            if status != a.ST_PAGE:
                return False
            exchange_pins(disk, held, [int(state[3])])
            if not _fragment_of(table, out, image):
                return False  # its partition was dropped during the wait for the page
    finally:
        disk.release(held)


class Gatherer:
    """Reads many rows in the order of their pages; offsets[i] is the start of row i's image, -1 if the row is gone.

    pages: the page of each row, 0 if it has none. words_expected: initial size of the buffer, which grows.
    """

    def __init__(self, view: View, table: Table, pages: Words, words_expected: int) -> None:
        self._view = view
        self._disk = table.disk
        self._table = table
        self._order = np.argsort(pages, kind="stable")
        self._sorted = pages[self._order]
        self.out = np.empty(max(words_expected, OUT_WORDS), dtype=np.int64)
        self.offsets = np.empty(pages.size, dtype=np.int64)
        self.state = np.zeros(5, dtype=np.int64)

    def run(self, read: Read) -> None:
        """Read all rows; one that changes while its chunks are fetched is read again, alone."""
        groups = list(self._groups())
        for number, (start, stop, pages) in enumerate(groups):
            if number + 1 < len(groups):
                self._disk.read_ahead(groups[number + 1][2])
            self._read_group(read, start, stop, pages)
        if self.state[4]:
            self._complete_all(read)

    def _groups(self) -> Iterator[tuple[int, int, list[int]]]:
        """Yield (start, stop, pages) of runs of at most GROUP_PAGES pages."""
        distinct, firsts = np.unique(self._sorted, return_index=True)
        limit = self._disk.pages_per_hold(GROUP_PAGES)
        for at in range(0, distinct.size, limit):
            end = at + limit
            stop = int(firsts[end]) if end < distinct.size else self._sorted.size
            yield int(firsts[at]), stop, [int(page) for page in distinct[at:end] if page]

    def _read_group(self, read: Read, start: int, stop: int, pages: list[int]) -> None:
        """Read rows [start:stop], which were on these pages. No thread waits for a frame while it holds others: scans
        of rows that moved would wait for each other (H2). Unpinned pages usually stay in memory.
        """
        position = start
        held: list[int] = []
        try:
            exchange_pins(self._disk, held, pages)
            while position < stop:
                status = read(self._order, position, stop, self.out, self.offsets, self.state)
                position = int(self.state[2])
                if status == a.OK:
                    return
                if status == a.ST_PAGE:  # the row has moved to another page since
                    exchange_pins(self._disk, held, [int(self.state[3])])
                elif status == a.ST_DAMAGED:
                    raise self._disk.damaged(int(self.state[3]), self._table.name)
                elif status == a.ST_DROPPED:  # dropped after the rows were found: they are gone
                    self.offsets[self._order[position:stop]] = -1
                    return
                elif status != a.ST_MORE:
                    self._grow(a.ST_SPACE - status)
        finally:
            self._disk.release(held)

    def _grow(self, words: int) -> None:
        self.out = grown(self.out, int(self.state[1]), words)

    def _complete_all(self, read: Read) -> None:
        for i in np.flatnonzero(self.offsets >= 0):
            image = int(self.offsets[i])
            if int(self.out[image - 1]) & ENTRY_INCOMPLETE and not _complete(self._table, self.out, image):
                entry = self._again(read, int(i))
                used = int(self.state[1])
                if used + entry.size > self.out.size:
                    self._grow(entry.size)
                self.out[used : used + entry.size] = entry
                self.offsets[i] = used + a.ENTRY_WORDS if entry.size else -1
                self.state[1] += entry.size

    def _again(self, read: Read, row: int) -> Words:
        """Return the whole entry of one row, read alone; empty if it is gone."""
        order = np.array([row], dtype=np.int64)
        offsets = np.empty_like(self.offsets)

        def alone(out: Words, state: Words) -> int:
            status = read(order, 0, 1, out, offsets, state)
            return (int(state[1]) or a.ST_MISSING) if status == a.OK else status

        entry = _read_alone(self._table, alone, self._view)
        return NOTHING if entry is None else entry
