"""Reads of one or many rows with their disk parts: which pages, in which order, and large values chunk by chunk.

A kernel call copies memory parts and disk part of a row at one instant, or reports the missing page. For many rows the
pages are determined first. Each page is then read once, in sorted order, a few at a time, with read-ahead of the next
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.disk_reads_kernels import (
    ENTRY_INCOMPLETE,
    chunk_words_of,
    read_chunks,
    read_disk_row,
)
from tidemark.engine.access.versions_reads_kernels import read_places
from tidemark.engine.memory.arena import NOTHING, Words
from tidemark.engine.memory.arena_layout import (
    ENTRY_WORDS,
    OK,
    ST_DAMAGED,
    ST_DROPPED,
    ST_MISSING,
    ST_MORE,
    ST_PAGE,
    ST_SPACE,
    ST_UNFINISHED,
    VAR_WORDS_MASK,
)
from tidemark.engine.rows.lcp_layout import entry_fragment
from tidemark.engine.rows.row_part import image_words
from tidemark.engine.rows.row_var import unexpected_var_words
from tidemark.engine.schema.row_layout import WORD_BYTES

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
    disk = table.disk
    place = _outs.pop() if _outs else (np.empty(OUT_WORDS, dtype=np.int64), np.zeros(5, dtype=np.int64))
    out, state = place
    state[4] = 0
    held: list[int] = []
    was_loaded = False
    try:
        while True:
            done = read_disk_row(table.mem, table.handle, view.desc, view.buf, key, key.size, out, state)
            if done == ST_UNFINISHED:
                exchange_pins(disk, held, [])  # the commit may need the frame
            done = view.settled(done)
            if done > 0:
                if not state[4] or _complete(table, out, ENTRY_WORDS):
                    return out[:done].copy()
                state[4] = 0
            elif done == ST_PAGE:
                # A loaded page usually stays long enough. If it was evicted before the call, pin it.
                if was_loaded:
                    exchange_pins(disk, held, [int(state[3])])
                else:
                    disk.load(int(state[3]))
                    was_loaded = True
            elif done == ST_DAMAGED:
                raise disk.damaged(int(state[3]), table.name)
            elif done == ST_MISSING:
                return None
            elif done == ST_DROPPED:
                raise table.gone()
            elif done != ST_MORE:
                out = np.empty(ST_SPACE - done, dtype=np.int64)
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
    words = int(out[part]) & VAR_WORDS_MASK
    chunk = int(chunk_words_of(table.mem, fragment))
    if chunk < 0:
        return False
    first_piece = words - (words - 1) // chunk * chunk
    rowid = int(out[image - ENTRY_WORDS])
    state = np.zeros(4, dtype=np.int64)
    disk = table.disk
    held: list[int] = []
    try:
        while True:
            status = read_chunks(table.mem, fragment, rowid, out, part + first_piece, part + words, state)
            if status == OK:
                out[image - 1] &= ~ENTRY_INCOMPLETE
                return True
            if status != ST_PAGE:
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

    def __init__(self, table: Table, pages: Words, words_expected: int) -> None:
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
                if status == OK:
                    return
                if status == ST_PAGE:  # the row has moved to another page since
                    exchange_pins(self._disk, held, [int(self.state[3])])
                elif status == ST_DAMAGED:
                    raise self._disk.damaged(int(self.state[3]), self._table.name)
                elif status == ST_DROPPED:  # dropped after the rows were found: they are gone
                    self.offsets[self._order[position:stop]] = -1
                    return
                elif status != ST_MORE:
                    self._grow(ST_SPACE - status)
        finally:
            self._disk.release(held)

    def _grow(self, words: int) -> None:
        self.out = grown(self.out, int(self.state[1]), words)

    def _complete_all(self, read: Read) -> None:
        for i in np.flatnonzero(self.offsets >= 0):
            image = int(self.offsets[i])
            if int(self.out[image - 1]) & ENTRY_INCOMPLETE and not _complete(self._table, self.out, image):
                entry = _read_alone(self._table, read, int(i), self.offsets.size)
                used = int(self.state[1])
                if used + entry.size > self.out.size:
                    self._grow(entry.size)
                self.out[used : used + entry.size] = entry
                self.offsets[i] = used + ENTRY_WORDS if entry.size else -1
                self.state[1] += entry.size


def _read_alone(table: Table, read: Read, row: int, count: int) -> Words:
    """Read the complete entry of one row of a batch of `count` alone; empty if it is gone. Raises: as `read_entry`."""
    disk = table.disk
    order = np.array([row], dtype=np.int64)
    out = np.empty(OUT_WORDS, dtype=np.int64)
    offsets = np.empty(count, dtype=np.int64)
    while True:
        state = np.zeros(5, dtype=np.int64)
        status = read(order, 0, 1, out, offsets, state)
        if status == OK:
            entry = out[: int(state[1])]
            if not state[4] or _complete(table, entry, ENTRY_WORDS):
                return entry
            if not _fragment_of(table, entry, ENTRY_WORDS):
                return entry[:0]
        elif status == ST_PAGE:
            disk.ensure([int(state[3])])
        elif status == ST_DAMAGED:
            raise disk.damaged(int(state[3]), table.name)
        elif status == ST_DROPPED:
            return out[:0]
        elif status != ST_MORE:
            out = np.empty(ST_SPACE - status, dtype=np.int64)


def read_rowid(table: Table, number: int, rowid: int, view: View) -> Words:
    """Return the complete entry of one row of fragment `number`, empty if it is gone. view: one that is not open.
    Raises: as `read_entry`.
    """
    fragment = table.by_number.get(number)
    if fragment is None:
        return NOTHING
    places = np.array([fragment], dtype=np.int64), np.array([rowid], dtype=np.int64)

    def read(*batch: Any) -> int:
        return view.settled(read_places(view.mem, 0, view.desc, view.buf, 1, *places, *batch))

    return _read_alone(table, read, 0, 1)
