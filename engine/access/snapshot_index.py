"""Rows by a view and an ordered index: rows that have not changed since, merged with versions of the others.

Keys and places are compared in the direction of the scan: for a descending one both are inverted, so that every
comparison here is ascending. The rows of each tree call are merged with the versions appended before it
(docs/internals/access.md, section 11).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.own_changes import compared, key_matrix, widened
from tidemark.engine.access.scan_batch import ScanBatch, among
from tidemark.engine.access.snapshot_reads import Meter, Progress, read_found
from tidemark.engine.access.versions_index_kernels import gather_versions, index_entries
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.key_words_kernels import LOWEST
from tidemark.engine.index.unique_keys import keys_of_images
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, OK, S_VERSION_HEAD, ST_DROPPED, ST_MORE, ST_SPACE

if TYPE_CHECKING:
    from tidemark.engine.access.key_ranges import Bounds, KeyRange
    from tidemark.engine.access.snapshot_reads import Shown
    from tidemark.engine.index.stored import StoredIndex, StoredUnique
    from tidemark.engine.index.unique_keys import Lookups
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table

BATCH_ROWS_FIRST = 256
BATCH_ROWS_MAX = 16_384
CALL_ENTRIES = 512  # per kernel call: about 200 µs
CALL_VERSIONS = 1_000
GATHER_ROWS_FIRST = 256
GATHER_WORDS_FIRST = 4_096
DUE_FIRST = 1_024  # versions of a run that are compared with the cursor in one step


class _Sorted:
    """Rows in the direction of a scan: keys and places as they are compared, and entries with the start and size of
    each.
    """

    __slots__ = ("entries", "keys", "places", "sizes", "starts")

    def __init__(self, keys: Words, places: Words, entries: Words, starts: Words, sizes: Words) -> None:
        self.keys = keys
        self.places = places
        self.entries = entries
        self.starts = starts
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.places)

    def chosen(self, which: Any) -> _Sorted:
        """Return some of the rows, by number, mask or slice; entries stay as they are."""
        return _Sorted(self.keys[which], self.places[which], self.entries, self.starts[which], self.sizes[which])

    def in_order(self) -> _Sorted:
        """Return the same rows, sorted, with only their entries, stored consecutively."""
        rows = self.chosen(np.lexsort((self.places, *self.keys.T[::-1])))
        starts = np.cumsum(rows.sizes) - rows.sizes
        moved = np.repeat(rows.starts - starts, rows.sizes) + np.arange(int(rows.sizes.sum()))
        return _Sorted(rows.keys, rows.places, rows.entries[moved], starts, rows.sizes)

    def merged_with(self, others: Sequence[_Sorted], filling: int) -> _Sorted:
        """Return these rows and others as one, unordered."""
        all_rows = [self, *others]
        width = max(rows.keys.shape[1] for rows in all_rows)
        begins = np.cumsum([0, *(rows.entries.size for rows in all_rows)])
        return _Sorted(
            np.concatenate([widened(rows.keys, width, filling) for rows in all_rows]),
            np.concatenate([rows.places for rows in all_rows]),
            np.concatenate([rows.entries for rows in all_rows]),
            np.concatenate([rows.starts + begin for rows, begin in zip(all_rows, begins, strict=False)]),
            np.concatenate([rows.sizes for rows in all_rows]),
        )


def _consecutive(keys: Words, places: Words, entries: Words, offsets: Words) -> _Sorted:
    """Return rows as a kernel copied them, consecutively."""
    starts = offsets - ENTRY_WORDS
    return _Sorted(keys, places, entries, starts, np.diff(np.append(starts, entries.size)))


def versions_of(snapshot: Shown, table: Table, first: int, head: int) -> tuple[Words, Words, Words]:
    """Return (entries, image offsets, places) of the versions of a table that a view shows, from a position of the ring
    on and before `head`. Raises: SnapshotTooOld, SnapshotClosed.
    """
    places = np.empty(GATHER_ROWS_FIRST, dtype=np.int64)
    offsets = np.empty(GATHER_ROWS_FIRST, dtype=np.int64)
    out = np.empty(GATHER_WORDS_FIRST, dtype=np.int64)
    state = np.array([0, 0, first], dtype=np.int64)
    status = ST_MORE
    while status != OK:
        snapshot.check()
        place = (snapshot.mem, table.table_id, snapshot.view, head, CALL_VERSIONS)
        status = snapshot.settled(gather_versions(*place, places, out, offsets, state))
        if status == ST_SPACE:
            places = np.concatenate([places, np.empty(3 * places.size, dtype=np.int64)])
            offsets = np.concatenate([offsets, np.empty(3 * offsets.size, dtype=np.int64)])
        elif status < ST_SPACE:
            out = np.concatenate([out, np.empty(3 * out.size + ST_SPACE - status, dtype=np.int64)])
    count = int(state[0])
    return out[: int(state[1])], offsets[:count], places[:count]


def released(snapshot: Shown, table: Table, index: StoredUnique, lookups: Lookups) -> tuple[Words, Words]:
    """Return (entries, image offsets) of the old rows that a view shows, and that have one of the keys of a unique
    index. Raises: as `versions_of`.
    """
    entries, offsets, _ = versions_of(snapshot, table, snapshot.head, int(table.mem[S_VERSION_HEAD]))
    held = keys_of_images(index.tree.shape, entries, offsets, table.format.fixed_words)
    # Most old rows have none of the keys, and differ from them in the first word.
    firsts = lookups.words[:: lookups.stride][lookups.lengths > 0]
    rows = np.flatnonzero(np.isin(held.words[:: held.stride], firsts) & (held.lengths > 0))
    if rows.size:
        wanted = {lookups.bytes_of(row) for row in range(lookups.count)}
        rows = np.array([row for row in rows.tolist() if held.bytes_of(row) in wanted], dtype=np.int64)
    return entries, offsets[rows]


class SnapshotIndexScan:
    """One scan; call `batches` once, or `fill` for each batch."""

    def __init__(
        self,
        snapshot: Shown,
        table: Table,
        index: StoredIndex,
        keys: KeyRange | Bounds,
        reverse: bool,
        limit: int | None,
        columns: Sequence[str] | None,
        progress: Progress | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """numbers: fragments whose rows are requested; None: all. Rows that the transaction has changed are
        left out: those that it had changed before word `until` of its buffer.
        """
        self._snapshot = snapshot
        self.until = 0  # rows that the transaction had changed before this word of its buffer are left out
        self._table = table
        self._index = index
        self._reverse = reverse
        self._left = limit
        wanted = table.by_number if numbers is None else [each for each in numbers if each in table.by_number]
        self._numbers = frozenset(wanted)
        # All partitions that the table ever had, so that no entry is of another one.
        self._is_whole = len(wanted) == table.definition.partition.next_number
        self._with_disk = table.format.needs_disk(columns)
        self.cursor = (keys.high if reverse else keys.low).copy()  # key and place of the last entry examined
        self.bound = keys.low if reverse else keys.high
        self._filling = ~LOWEST if reverse else LOWEST
        self._gathered = snapshot.head  # the ring was read up to this position
        # Versions past the cursor, in sorted runs: each is more than twice as long as the next one.
        self._runs: list[_Sorted] = []
        self._meter = Meter(progress, -1, "rows")

    def batches(self) -> Iterator[ScanBatch]:
        """Yield the rows, in the order of the index. Raises: NoSuchIndex if it is dropped meanwhile, SnapshotTooOld,
        SnapshotClosed, and errors of reading disk pages.
        """
        wanted = BATCH_ROWS_FIRST
        is_end = False
        while not is_end and (self._left is None or self._left > 0):
            batch, is_end = self.fill(wanted if self._left is None else min(wanted, self._left))
            if self._left is not None:
                self._left -= batch.count
            self._meter.done += batch.count
            self._meter.advance(0)
            if batch.count:
                yield batch
            wanted = min(4 * wanted, BATCH_ROWS_MAX)

    def fill(self, wanted: int) -> tuple[ScanBatch, bool]:
        """Return (about `wanted` next rows, whether these were the last). Raises: as `batches`."""
        pieces: list[ScanBatch] = []
        count = 0
        is_end = False
        while not is_end and count < wanted:
            piece, is_end = self._next(min(CALL_ENTRIES, wanted - count))
            if piece.count:
                pieces.append(piece)
                count += piece.count
        return self._finished(pieces), is_end

    def _finished(self, pieces: list[ScanBatch]) -> ScanBatch:
        if not pieces:
            return ScanBatch(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0)
        batch = pieces[0]
        if len(pieces) > 1:
            starts = np.cumsum([0, *(piece.entries.size for piece in pieces)])
            offsets = np.concatenate([piece.offsets + start for piece, start in zip(pieces, starts, strict=False)])
            batch = ScanBatch(np.concatenate([piece.entries for piece in pieces]), offsets, offsets.size)
        if self._left is not None and batch.count > self._left:
            batch = ScanBatch(batch.entries, batch.offsets[: self._left], self._left)
        if not self._with_disk:
            return batch
        return read_found(self._snapshot.committed(), self._table, batch.entries, batch.offsets)

    # --- one call --------------------------------------------------------------------------------
    def _next(self, limit: int) -> tuple[ScanBatch, bool]:
        """Return rows of the next entries, few or none if most or all have changed since, and whether it is the end."""
        before = self.cursor.copy()
        batch, places, head, is_end = self._unchanged(limit)
        self._gather(before, head)
        due = self._due(is_end)
        if not due:
            return batch, is_end
        keys = key_matrix(
            self._index.tree.shape, batch.entries, batch.offsets, self._table.format.fixed_words, self._reverse
        )
        found = _consecutive(keys, ~places if self._reverse else places, batch.entries, batch.offsets)
        rows = found.merged_with(due, self._filling).in_order()
        return ScanBatch(rows.entries, rows.starts + ENTRY_WORDS, len(rows)), is_end

    def _due(self, is_end: bool) -> list[_Sorted]:
        """Take from the runs the versions before or at the cursor, or all of them at the end."""
        if is_end:
            due, self._runs = self._runs, []
            return due
        due = []
        for number, run in enumerate(self._runs):
            most = DUE_FIRST
            while most < len(run) and self._against(run.keys[most - 1 : most], run.places[most - 1 : most]) <= 0:
                most *= 4
            count = int((self._against(run.keys[:most], run.places[:most]) <= 0).sum())
            if count:
                due.append(run.chosen(slice(None, count)).in_order())
                self._runs[number] = run.chosen(slice(count, None))
        self._runs = [run for run in self._runs if len(run)]
        return due

    def _unchanged(self, limit: int) -> tuple[ScanBatch, Words, int, bool]:
        """Return (rows of the next entries that have not changed, their places, head of the ring, whether it is the
        end).
        """
        row_format = self._table.format
        words = limit * (ENTRY_WORDS + row_format.fixed_words + (16 if row_format.has_var else 0)) + 64
        places = np.empty(limit, dtype=np.int64)
        offsets = np.empty(limit, dtype=np.int64)
        state = np.zeros(3, dtype=np.int64)
        while True:
            out = np.empty(words, dtype=np.int64)
            self._snapshot.check()
            tree = self._index.tree
            reader = (self._snapshot.view, self._snapshot.desc, self.until)
            place = (self.cursor, self.bound, self._reverse, limit)
            status = int(index_entries(tree.mem, tree.handle, *reader, *place, places, out, offsets, state))
            if status == ST_DROPPED:
                self._table.check()
                raise self._index.gone()
            self._snapshot.settled(status)
            if status <= ST_SPACE:
                words = ST_SPACE - status + 64
                continue
            count = int(state[0])
            batch, places = self._shown(ScanBatch(out[: int(state[1])], offsets[:count], count), places[:count])
            return batch, places, int(state[2]), status == OK

    def _shown(self, batch: ScanBatch, places: Words) -> tuple[ScanBatch, Words]:
        """Remove rows of partitions that are not requested, and of those dropped before the snapshot, whose entries may
        still exist for other readers.
        """
        if self._is_whole:
            return batch, places
        shown = among(batch.fragments(), self._numbers)
        if shown.all():
            return batch, places
        offsets = batch.offsets[shown]
        return ScanBatch(batch.entries, offsets, offsets.size), places[shown]

    # --- versions --------------------------------------------------------------------------------
    def _gather(self, before: Words, head: int) -> None:
        """Add the versions appended since the last call that are between the previous cursor and the bound."""
        if head <= self._gathered:
            return
        entries, offsets, places = versions_of(self._snapshot, self._table, self._gathered, head)
        self._gathered = head
        batch, places = self._shown(ScanBatch(entries, offsets, offsets.size), places)
        offsets = batch.offsets
        if not offsets.size:
            return
        keys = key_matrix(self._index.tree.shape, entries, offsets, self._table.format.fixed_words, self._reverse)
        if self._reverse:
            places = ~places
        inside = self._against(keys, places, before) > 0
        inside &= self._against(keys, places, self.bound) < 0
        if not inside.any():
            return
        found = _consecutive(keys, places, entries, offsets)
        self._runs.append(found.chosen(inside).in_order())
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            last = self._runs.pop()
            self._runs[-1] = self._runs[-1].merged_with([last], self._filling).in_order()

    def _against(self, keys: Words, places: Words, target: Words | None = None) -> Words:
        """Return -1, 0 or 1 for each: whether it is before, at or past a target (None: the cursor) in the direction of
        the scan.
        """
        target = self.cursor if target is None else target
        words = target[ix.TG_KEY : ix.TG_KEY + int(target[ix.TG_WORDS])]
        place = int(target[ix.TG_PLACE])
        result = compared(keys, ~words if self._reverse else words, self._filling)
        return np.where(result == 0, np.sign(places - (~place if self._reverse else place)), result)
