"""Reads by a view, of a snapshot or of one call: all rows of a table, rows by key and by ROWID, old rows, row counts.

What a view shows does not change, so rows with disk parts are found first and then read in the order of their pages. A
transaction that reads sees its own changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.disk_reading import SCAN_ROWS_FIRST, SCAN_ROWS_MAX, Gatherer, grown
from tidemark.engine.access.disk_reading import SCAN_WORDS as DISK_SCAN_WORDS
from tidemark.engine.access.scan_batch import ALL_ROWS, SCAN_BATCH_ROWS, SCAN_WORDS, ScanBatch
from tidemark.engine.access.versions_index_kernels import gather_versions
from tidemark.engine.access.versions_reads_kernels import (
    COPIED,
    COUNTED,
    LISTED,
    OLD,
    find_keys,
    pages_of_places,
    read_places,
    scan_rows,
)
from tidemark.engine.base.column_buffers import NO_WORDS
from tidemark.engine.index.unique_keys import keys_of_images
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, F_PAGES, OK, S_VERSION_HEAD, ST_DROPPED, ST_MORE, ST_SPACE
from tidemark.engine.rows.columnar import EncodedKeys
from tidemark.engine.schema.partition_words import fragments_of_keys

if TYPE_CHECKING:
    from tidemark.engine.index.stored import StoredUnique
    from tidemark.engine.index.unique_keys import Lookups
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.views import View

Progress = Callable[[int, int, str], None]
# Per kernel call: 50 to 200 µs.
CALL_ROWS = 500
CALL_SLOTS = 4_096
CALL_VERSIONS = 1_000
GATHER_ROWS_FIRST = 256
GATHER_WORDS_FIRST = 4_096


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


def handles_of(table: Table, numbers: Words) -> Words:
    """Return the handle of each fragment number, 0 for negative ones and dropped partitions. Shapes: (rows,) both."""
    known = np.zeros(max([*table.by_number, int(numbers.max(initial=0))]) + 2, dtype=np.int64)
    for number, fragment in table.by_number.items():
        known[number + 1] = fragment
    return known[numbers + 1]


# --- old rows -------------------------------------------------------------------------------------
def gathered(
    view: View, call: Callable[[Words, Words, Words, Words], int], first: int = 0
) -> tuple[Words, Words, Words]:
    """Call a kernel until it has copied all rows, from `first` on; return (entries, image offsets, places). It gets
    memory for places, entries and offsets, and its state: [rows found, words used, where to continue].
    """
    places = np.empty(GATHER_ROWS_FIRST, dtype=np.int64)
    offsets = np.empty(GATHER_ROWS_FIRST, dtype=np.int64)
    out = np.empty(GATHER_WORDS_FIRST, dtype=np.int64)
    state = np.array([0, 0, first], dtype=np.int64)
    status = ST_MORE
    while status != OK:
        view.check()
        status = view.settled(call(places, out, offsets, state))
        if status == ST_SPACE:
            places, offsets = (np.concatenate([each, np.empty_like(each)]) for each in (places, offsets))
        elif status < ST_SPACE:
            out = grown(out, int(state[1]), ST_SPACE - status)
    count = int(state[0])
    return out[: int(state[1])], offsets[:count], places[:count]


def versions_of(view: View, table: Table, first: int, head: int) -> tuple[Words, Words, Words]:
    """Return (entries, image offsets, places) of the versions of a table that a view shows, from a position of the ring
    on and before `head`. Raises: SnapshotTooOld, SnapshotClosed.
    """

    def call(*given: Words) -> int:
        return int(gather_versions(view.mem, table.table_id, view.view, head, CALL_VERSIONS, *given))

    return gathered(view, call, first)


def released(view: View, table: Table, index: StoredUnique, lookups: Lookups) -> tuple[Words, Words]:
    """Return (entries, image offsets) of the old rows that a view shows, and that have one of the keys of a unique
    index. Raises: as `versions_of`.
    """
    entries, offsets, _ = versions_of(view, table, view.head, int(table.mem[S_VERSION_HEAD]))
    held = keys_of_images(index.tree.shape, entries, offsets, table.format.fixed_words)
    # Most old rows have none of the keys, and differ from them in the first word.
    firsts = lookups.words[:: lookups.stride][lookups.lengths > 0]
    rows = np.flatnonzero(np.isin(held.words[:: held.stride], firsts) & (held.lengths > 0))
    if rows.size:
        wanted = {lookups.bytes_of(row) for row in range(lookups.count)}
        rows = np.array([row for row in rows.tolist() if held.bytes_of(row) in wanted], dtype=np.int64)
    return entries, offsets[rows]


# --- rows by ROWID --------------------------------------------------------------------------------
def read_rows(view: View, table: Table, fragments: Words, rowids: Words, pages: Words | None) -> tuple[Words, Words]:
    """Return (entries, image offset of each row, -1 for a row that does not exist). pages: those of the disk parts;
    None: read no disk parts.

    Shapes: fragments (handles), rowids and pages (rows,). Raises: SnapshotTooOld, SnapshotClosed; with disk parts
    PageDamaged, IoFailed, MemoryExhausted.
    """

    def read(order: Words, start: int, stop: int, out: Words, offsets: Words, state: Words) -> int:
        view.check()
        place = (view.mem, view.view, view.desc, view.buf, int(pages is not None), fragments, rowids)
        return view.settled(read_places(*place, order, start, stop, out, offsets, state))

    words = rowids.size * (ENTRY_WORDS + table.format.fixed_words + 8)
    if pages is not None:
        gatherer = Gatherer(view, table, pages, words)
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


def committed_row(table: Table, fragment: int, rowid: int) -> Words | None:
    """Return the committed image of a slot, without its disk part; None if no row is there. fragment: its handle."""
    place = np.array([fragment], dtype=np.int64), np.array([rowid], dtype=np.int64)
    out, offsets = read_rows(table.views.now(), table, *place, None)
    return out[ENTRY_WORDS:] if offsets[0] >= 0 else None


def read_found(view: View, table: Table, entries: Words, offsets: Words) -> ScanBatch:
    """Read the rows of these entries again, in order, with their disk parts. Raises: as `read_rows`."""
    rowids = entries[offsets - ENTRY_WORDS] | (entries[offsets - ENTRY_WORDS + 2] & OLD)
    fragments = handles_of(table, ScanBatch(entries, offsets).fragments())
    pages = np.empty(rowids.size, dtype=np.int64)
    for start in range(0, rowids.size, CALL_ROWS):
        stop = min(start + CALL_ROWS, rowids.size)
        view.settled(pages_of_places(view.mem, view.view, view.desc, fragments, rowids, start, stop, pages))
    out, places = read_rows(view, table, fragments, rowids, pages)
    return ScanBatch(out, places[places >= 0])  # those of a partition that was dropped meanwhile are gone


# --- rows by key ----------------------------------------------------------------------------------
def read_keys(view: View, table: Table, keys: EncodedKeys, with_disk: bool, first: int = 0) -> tuple[Words, Words, int]:
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
        view.check()
        reader = (view.mem, view.view, view.desc, table.seed, int(with_disk), fragments)
        view.settled(find_keys(*reader, *place, start, stop, rowids, pages))
    out, offsets = read_rows(view, table, fragments, rowids, pages if with_disk else None)
    found = offsets[offsets >= 0]
    return out, found, found.size


def one_key(words: Words) -> EncodedKeys:
    """Return a canonical key as a batch of one."""
    return EncodedKeys(words, words.size, words.size, NO_WORDS, 1)


def get(view: View, table: Table, key: Any) -> Any:
    """Return the row that had this key, or None. Raises: TypeMismatch, and as `read_rows`."""
    view.check()
    out, offsets, found = read_keys(view, table, one_key(table.format.encode_key(key)), table.format.has_disk)
    return table.format.decode_row(out.data.cast("B"), int(offsets[0])) if found else None


# --- all rows -------------------------------------------------------------------------------------
def scan(
    view: View,
    table: Table,
    columns: Sequence[str] | None,
    limit: int | None,
    numbers: Sequence[int],
    first_rowid: int = 0,
    progress: Progress | None = None,
    rows_max: int = ALL_ROWS,
    disk_words: int = DISK_SCAN_WORDS,
) -> Iterator[ScanBatch]:
    """Yield all rows of some fragments, one fragment after the other, in ROWID order, with disk parts if one of the
    columns is on disk. first_rowid: where to begin in the first fragment. rows_max: of a batch. disk_words: of a batch
    with disk parts, if its rows are as long as those before.

    A partition dropped meanwhile yields no more rows. Raises: NoSuchTable if the table is dropped meanwhile, and as
    `read_rows`.
    """
    view.check()
    pages = 0 if progress is None else table.arena.sum_words([table.by_number[each] for each in numbers], F_PAGES)
    meter = Meter(progress, pages, "pages")
    with_disk = table.format.needs_disk(columns)
    left = ALL_ROWS if limit is None else limit
    for number in numbers:
        fragment = table.by_number.get(number)
        if fragment is None:
            continue
        part = fragment_scan(view, table, fragment, with_disk, first_rowid, disk_words)
        first_rowid = 0
        while not part.is_end and number in table.by_number and left > 0:
            found = [part.next(min(left, rows_max, SCAN_BATCH_ROWS))]
            view.advance(number, part.rowid)
            table.check()
            left -= found[0].count
            meter.advance(part.page)
            if found[0].count:
                yield found.pop()  # large rows belong to the caller alone
        meter.done += part.page
        table.check()


class _Fragment:
    """A scan of one fragment; `page` is the first logical page that was not read."""

    def __init__(self, view: View, table: Table, fragment: int, first_rowid: int = 0) -> None:
        self._view = view
        self._table = table
        self._fragment = fragment
        self._state = np.array([0, 0, first_rowid], dtype=np.int64)
        self.is_end = False

    @property
    def rowid(self) -> int:
        return int(self._state[2]) & ~OLD

    @property
    def page(self) -> int:
        return self.rowid >> 16

    def _call(self, way: int, out: Words, offsets: Words) -> int:
        """Call the kernel until it has no more room, or is at the end; return its status then."""
        view = self._view
        status = ST_MORE
        while status == ST_MORE:
            view.check()
            place = (view.mem, self._fragment, view.view, view.desc, view.buf, way, CALL_SLOTS)
            status = view.settled(scan_rows(*place, out, offsets, self._state))
        self.is_end = status in (OK, ST_DROPPED)  # a partition dropped meanwhile has no more rows
        return status


class _Memory(_Fragment):
    """Rows without disk parts."""

    def next(self, most: int) -> ScanBatch:
        row_format, state = self._table.format, self._state
        words = most * (ENTRY_WORDS + row_format.fixed_words) * (4 if row_format.has_var else 1)
        out = np.empty(max(min(SCAN_WORDS, words), 64), dtype=np.int64)
        offsets = np.empty(most, dtype=np.int64)
        state[:2] = 0
        while (status := self._call(COPIED, out, offsets)) <= ST_SPACE and int(state[0]) == 0:
            out = np.empty(ST_SPACE - status + 64, dtype=np.int64)
        return ScanBatch(out, offsets[: int(state[0])])

    def count(self) -> int:
        self._call(COUNTED, NO_WORDS, NO_WORDS)
        return int(self._state[0])


class DiskRows(_Fragment):
    """Rows with disk parts, window by window; inside a window the pages are read in their order."""

    words_max = DISK_SCAN_WORDS
    rows = SCAN_ROWS_FIRST  # rows of the next window

    def next(self, most: int) -> ScanBatch:
        """Return the next rows, at most `most`."""
        rowids = np.empty(min(most, self.rows), dtype=np.int64)
        pages = np.empty(rowids.size, dtype=np.int64)
        self._state[0] = 0
        self._call(LISTED, rowids, pages)
        count = int(self._state[0])
        fragments = np.full(count, self._fragment, dtype=np.int64)
        out, offsets = read_rows(self._view, self._table, fragments, rowids[:count], pages[:count])
        if count:
            used = int(offsets.max())
            self.rows = max(1, min(SCAN_ROWS_MAX, 4 * self.rows, self.words_max * count // max(used, 1)))
        return ScanBatch(out, offsets[offsets >= 0])


def fragment_scan(
    view: View,
    table: Table,
    fragment: int,
    with_disk: bool,
    first_rowid: int = 0,
    disk_words: int = DISK_SCAN_WORDS,
) -> _Memory | DiskRows:
    """Return a scan of one fragment (a handle), with or without disk parts. disk_words: as for `scan`."""
    if not with_disk:
        return _Memory(view, table, fragment, first_rowid)
    made = DiskRows(view, table, fragment, first_rowid)
    made.words_max = disk_words
    made.rows = max(1, SCAN_ROWS_FIRST * disk_words // DISK_SCAN_WORDS)
    return made


def count(view: View, table: Table, numbers: Sequence[int]) -> int:
    """Return the number of rows some fragments had. Raises: SnapshotTooOld, SnapshotClosed."""
    view.check()
    return sum(_Memory(view, table, table.by_number[number]).count() for number in numbers)
