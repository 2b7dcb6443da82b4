"""Reads by a view, of a snapshot or of one call: all rows of a table, rows by key and by ROWID, row counts.

What a view shows does not change, so rows with disk parts are found first and then read in the order of their pages. A
transaction that reads sees its own changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.disk_reading import SCAN_ROWS_FIRST, SCAN_ROWS_MAX, Gatherer, grown
from tidemark.engine.access.disk_reading import SCAN_WORDS as DISK_SCAN_WORDS
from tidemark.engine.access.scan_batch import SCAN_BATCH_ROWS, SCAN_WORDS, ScanBatch
from tidemark.engine.access.versions_reads_kernels import (
    OLD,
    find_keys,
    pages_of_places,
    read_places,
    scan_places,
    scan_rows,
)
from tidemark.engine.memory.arena_layout import (
    ENTRY_WORDS,
    F_PAGES,
    OK,
    ST_DROPPED,
    ST_MORE,
    ST_SPACE,
)
from tidemark.engine.rows.column_buffers import NO_WORDS
from tidemark.engine.rows.columnar import EncodedKeys
from tidemark.engine.schema.partition_words import fragments_of_keys

if TYPE_CHECKING:
    from tidemark.engine.access.snapshot import Snapshot
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.views import View

    Shown = Snapshot | View

Progress = Callable[[int, int, str], None]
# Per kernel call: 50 to 200 µs.
CALL_ROWS = 500
CALL_SLOTS = 4_096


class Meter:
    """Reports the progress of a scan to a callback."""

    def __init__(self, progress: Progress | None, total: int, unit: str) -> None:
        self._progress = progress
        self._total = total
        self._unit = unit
        self.done = 0  # units finished before

    def advance(self, more: int) -> None:
        """Report `done + more` units as finished."""
        if self._progress is not None:
            self._progress(self.done + more, self._total, self._unit)


def fragments_of(table: Table, numbers: Sequence[int]) -> list[int]:
    """Return the handles of fragments by number."""
    return [table.by_number[number] for number in numbers]


def handles_of(table: Table, numbers: Words) -> Words:
    """Return the handle of each fragment number, 0 for negative ones and dropped partitions. Shapes: (rows,) both."""
    known = np.zeros(max([*table.by_number, int(numbers.max(initial=0))]) + 2, dtype=np.int64)
    for number, fragment in table.by_number.items():
        known[number + 1] = fragment
    return known[numbers + 1]


# --- rows by ROWID --------------------------------------------------------------------------------
def read_rows(
    snapshot: Shown,
    table: Table,
    fragments: Words,
    rowids: Words,
    pages: Words | None,
) -> tuple[Words, Words]:
    """Return (entries, image offset of each row, -1 for a row that does not exist). pages: those of the disk parts;
    None: read no disk parts.

    Shapes: fragments (handles), rowids and pages (rows,). Raises: SnapshotTooOld, SnapshotClosed; with disk parts
    PageDamaged, IoFailed, MemoryExhausted.
    """

    def read(order: Words, start: int, stop: int, out: Words, offsets: Words, state: Words) -> int:
        snapshot.check()
        place = (snapshot.mem, snapshot.view, snapshot.desc, snapshot.buf, int(pages is not None), fragments, rowids)
        return snapshot.settled(read_places(*place, order, start, stop, out, offsets, state))

    words = rowids.size * (ENTRY_WORDS + table.format.fixed_words + 8)
    if pages is not None:
        gatherer = Gatherer(table, pages, words)
        gatherer.run(read)
        return gatherer.out[: int(gatherer.state[1])], gatherer.offsets
    order = np.arange(rowids.size, dtype=np.int64)
    out = np.empty(max(words, 64), dtype=np.int64)
    offsets = np.empty(rowids.size, dtype=np.int64)
    state = np.zeros(5, dtype=np.int64)
    while int(state[2]) < rowids.size:
        status = read(order, int(state[2]), min(int(state[2]) + CALL_ROWS, rowids.size), out, offsets, state)
        if status not in (OK, ST_MORE):
            out = grown(out, int(state[1]), ST_SPACE - status)
    return out[: int(state[1])], offsets


def read_found(snapshot: Shown, table: Table, entries: Words, offsets: Words) -> ScanBatch:
    """Read the rows of these entries again, in order, with their disk parts. Raises: as `read_rows`."""
    rowids = entries[offsets - ENTRY_WORDS] | (entries[offsets - ENTRY_WORDS + 2] & OLD)
    fragments = handles_of(table, ScanBatch(entries, offsets, offsets.size).fragments())
    pages = np.empty(rowids.size, dtype=np.int64)
    for start in range(0, rowids.size, CALL_ROWS):
        stop = min(start + CALL_ROWS, rowids.size)
        place = (snapshot.mem, snapshot.view, snapshot.desc, fragments, rowids)
        snapshot.settled(pages_of_places(*place, start, stop, pages))
    out, places = read_rows(snapshot, table, fragments, rowids, pages)
    places = places[places >= 0]  # those of a partition that was dropped meanwhile are gone
    return ScanBatch(out, places, places.size)


# --- rows by key ----------------------------------------------------------------------------------
def read_keys(
    snapshot: Shown,
    table: Table,
    keys: EncodedKeys,
    with_disk: bool,
    first: int = 0,
) -> tuple[Words, Words, int]:
    """Return entries of the rows found, in key order, from key `first` on: (words, image offsets, rows). Raises: as
    `read_rows`.
    """
    numbers = fragments_of_keys(table.hash_header, keys.keys, keys.key_offsets, keys.key_stride, keys.count)
    fragments = handles_of(table, numbers)
    rowids = np.full(keys.count, -1, dtype=np.int64)
    pages = np.zeros(keys.count, dtype=np.int64)
    place = (keys.keys, keys.key_offsets, keys.key_stride)
    for start in range(first, keys.count, CALL_ROWS):
        stop = min(start + CALL_ROWS, keys.count)
        snapshot.check()
        reader = (snapshot.mem, snapshot.view, snapshot.desc, table.seed, int(with_disk), fragments)
        snapshot.settled(find_keys(*reader, *place, start, stop, rowids, pages))
    out, offsets = read_rows(snapshot, table, fragments, rowids, pages if with_disk else None)
    found = offsets[offsets >= 0]
    return out, found, found.size


def get(snapshot: Shown, table: Table, key: Any) -> Any:
    """Return the row that had this key, or None. Raises: TypeMismatch, and as `read_rows`."""
    snapshot.check()
    words = table.format.encode_key(key)
    one = EncodedKeys(words, words.size, words.size, NO_WORDS, 1)
    out, offsets, found = read_keys(snapshot, table, one, table.format.has_disk)
    return table.format.decode_row(out.data.cast("B"), int(offsets[0])) if found else None


# --- all rows -------------------------------------------------------------------------------------
def scan(
    snapshot: Shown,
    table: Table,
    columns: Sequence[str] | None,
    limit: int | None,
    numbers: Sequence[int],
    progress: Progress | None = None,
) -> Iterator[ScanBatch]:
    """Yield all rows of some fragments, one fragment after the other, in ROWID order, with disk parts if one of the
    columns is on disk. Raises: as `read_rows`.
    """
    snapshot.check()
    fragments = fragments_of(table, numbers)
    meter = Meter(progress, table.arena.sum_words(fragments, F_PAGES), "pages")
    with_disk = table.format.needs_disk(columns)
    left = limit
    for fragment in fragments:
        part = fragment_scan(snapshot, table, fragment, with_disk)
        while not part.is_end and (left is None or left > 0):
            batch = part.next(SCAN_BATCH_ROWS if left is None else min(left, SCAN_BATCH_ROWS))
            left = None if left is None else left - batch.count
            meter.advance(part.page)
            if batch.count:
                yield batch
        meter.done += part.page


class _Fragment:
    """A scan of one fragment; `page` is the first logical page that was not read."""

    def __init__(self, snapshot: Shown, table: Table, fragment: int) -> None:
        self._snapshot = snapshot
        self._table = table
        self._fragment = fragment
        self._state = np.zeros(3, dtype=np.int64)
        self.is_end = False

    @property
    def rowid(self) -> int:
        """The next ROWID."""
        return int(self._state[2]) & ~OLD

    @property
    def page(self) -> int:
        return self.rowid >> 16

    def begin_at(self, page: int) -> None:
        """Start at this logical page."""
        self.continue_at(page << 16)

    def continue_at(self, rowid: int) -> None:
        """Start at this ROWID."""
        self._state[2] = rowid

    def _call(self, is_copied: int, out: Words, offsets: Words) -> int:
        snapshot = self._snapshot
        snapshot.check()
        place = (snapshot.mem, self._fragment, snapshot.view, snapshot.desc, snapshot.buf, is_copied, CALL_SLOTS)
        status = snapshot.settled(scan_rows(*place, out, offsets, self._state))
        return OK if status == ST_DROPPED else status  # a partition dropped meanwhile has no more rows


class _Memory(_Fragment):
    """Rows without disk parts."""

    def next(self, most: int) -> ScanBatch:
        """Return the next rows, at most `most`."""
        row_format, state = self._table.format, self._state
        words = most * (ENTRY_WORDS + row_format.fixed_words) * (4 if row_format.has_var else 1)
        out = np.empty(max(min(SCAN_WORDS, words), 64), dtype=np.int64)
        offsets = np.empty(most, dtype=np.int64)
        state[:2] = 0
        status = ST_MORE
        while status == ST_MORE:
            status = self._call(1, out, offsets)
            if status <= ST_SPACE and int(state[0]) == 0:
                out = np.empty(ST_SPACE - status + 64, dtype=np.int64)
                status = ST_MORE
        self.is_end = status == OK
        count = int(state[0])
        return ScanBatch(out, offsets[:count], count)

    def count(self) -> int:
        """Return the number of rows from here on."""
        status = ST_MORE
        while status == ST_MORE:
            status = self._call(0, NO_WORDS, NO_WORDS)
        return int(self._state[0])


class DiskRows(_Fragment):
    """Rows with disk parts, window by window; inside a window the pages are read in their order."""

    rows = SCAN_ROWS_FIRST  # rows of the next window

    def next(self, most: int) -> ScanBatch:
        """Return the next rows, at most `most`."""
        snapshot, state = self._snapshot, self._state
        rowids = np.empty(min(most, self.rows), dtype=np.int64)
        pages = np.empty(rowids.size, dtype=np.int64)
        state[0] = 0
        status = ST_MORE
        while status == ST_MORE:
            snapshot.check()
            place = (snapshot.mem, self._fragment, snapshot.view, snapshot.desc, CALL_SLOTS)
            status = snapshot.settled(scan_places(*place, rowids, pages, state))
        self.is_end = status in (OK, ST_DROPPED)
        count = int(state[0])
        fragments = np.full(count, self._fragment, dtype=np.int64)
        out, offsets = read_rows(snapshot, self._table, fragments, rowids[:count], pages[:count])
        if count:
            used = int(offsets.max())
            self.rows = max(1, min(SCAN_ROWS_MAX, 4 * self.rows, DISK_SCAN_WORDS * count // max(used, 1)))
        found = offsets[offsets >= 0]
        return ScanBatch(out, found, found.size)


def fragment_scan(snapshot: Shown, table: Table, fragment: int, with_disk: bool) -> _Memory | DiskRows:
    """Return a scan of one fragment (a handle), with or without disk parts."""
    made = DiskRows if with_disk else _Memory
    return made(snapshot, table, fragment)


def count(snapshot: Shown, table: Table, numbers: Sequence[int]) -> int:
    """Return the number of rows some fragments had. Raises: SnapshotTooOld, SnapshotClosed."""
    snapshot.check()
    return sum(_Memory(snapshot, table, fragment).count() for fragment in fragments_of(table, numbers))
