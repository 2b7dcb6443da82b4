"""Rows of a snapshot by an ordered index: rows that have not changed since, versions of the others merged in.

Keys and places are compared in the direction of the scan: for a descending one both are turned, so that every
comparison here is ascending. Each call of the tree is merged with the versions appended before it (docs/access.md,
section 11).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.batch_operations import ScanBatch
from engine.index.own_changes import compared, key_matrix, widened
from engine.index.scans import BATCH_ROWS_FIRST, BATCH_ROWS_MAX, CALL_ENTRIES, KeyRange
from engine.kernels.key_words import LOWEST
from engine.kernels.versions_index import gather_versions, snapshot_entries
from engine.layout import index_arena as ix
from engine.layout.arena import ENTRY_WORDS, OK, ST_MISSING, ST_MORE, ST_SPACE
from engine.snapshot_reads import Meter, Progress, read_found

if TYPE_CHECKING:
    from engine.index.stored import StoredIndex
    from engine.memory.arena import Words
    from engine.snapshot import Snapshot
    from engine.table import Table

CALL_VERSIONS = 1_000
GATHER_ROWS_FIRST = 256
GATHER_WORDS_FIRST = 4_096


class _Sorted:
    """Rows in the direction of a scan: keys and places as they are compared, entries and where their images begin."""

    __slots__ = ("entries", "keys", "offsets", "places")

    def __init__(self, keys: Words, places: Words, entries: Words, offsets: Words) -> None:
        self.keys = keys
        self.places = places
        self.entries = entries
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.places)

    def chosen(self, which: Any) -> _Sorted:
        """Some of them, by number or mask; entries stay as they are."""
        return _Sorted(self.keys[which], self.places[which], self.entries, self.offsets[which])

    def joined(self, other: _Sorted, filling: int) -> _Sorted:
        """Both together, in order."""
        width = max(self.keys.shape[1], other.keys.shape[1])
        keys = np.concatenate([widened(self.keys, width, filling), widened(other.keys, width, filling)])
        places = np.concatenate([self.places, other.places])
        offsets = np.concatenate([self.offsets, other.offsets + self.entries.size])
        both = _Sorted(keys, places, np.concatenate([self.entries, other.entries]), offsets)
        return both.chosen(np.lexsort((places, *keys.T[::-1])))


class SnapshotIndexScan:
    """One scan; `batches` once."""

    def __init__(
        self,
        snapshot: Snapshot,
        table: Table,
        index: StoredIndex,
        keys: KeyRange,
        reverse: bool,
        limit: int | None,
        columns: Sequence[str],
        progress: Progress | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._table = table
        self._index = index
        self._reverse = reverse
        self._left = limit
        self._with_disk = table.format.needs_disk(columns)
        self._cursor = (keys.high if reverse else keys.low).copy()
        self._bound = keys.low if reverse else keys.high
        self._filling = ~LOWEST if reverse else LOWEST
        self._gathered = 0  # the ring was looked at up to this position
        self._versions: _Sorted | None = None  # those behind the cursor
        self._meter = Meter(progress, -1, "rows")

    def batches(self) -> Iterator[ScanBatch]:
        """The rows, in the order of the index. Raises: NoSuchIndex if it is dropped meanwhile, SnapshotTooOld,
        SnapshotClosed, and what reading disk pages does.
        """
        wanted = BATCH_ROWS_FIRST
        is_end = False
        while not is_end and (self._left is None or self._left > 0):
            wanted = wanted if self._left is None else min(wanted, self._left)
            pieces: list[ScanBatch] = []
            count = 0
            while not is_end and count < wanted:
                piece, is_end = self._next(min(CALL_ENTRIES, wanted - count))
                if piece.count:
                    pieces.append(piece)
                    count += piece.count
            batch = self._finished(pieces)
            if self._left is not None:
                self._left -= batch.count
            self._meter.done += batch.count
            self._meter.tell(0)
            if batch.count:
                yield batch
            wanted = min(4 * wanted, BATCH_ROWS_MAX)

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
        return read_found(self._snapshot, self._table, batch.entries, batch.offsets) if self._with_disk else batch

    # --- one call --------------------------------------------------------------------------------
    def _next(self, limit: int) -> tuple[ScanBatch, bool]:
        """Rows of the next entries, none or few if they have all changed since; whether these are the last."""
        before = self._cursor.copy()
        batch, places, head, is_end = self._unchanged(limit)
        self._gather(before, head)
        versions = self._versions
        if versions is None:
            return batch, is_end
        due = np.ones(len(versions), dtype=bool)
        if not is_end:
            due = self._against(versions.keys, versions.places, self._cursor) <= 0
        self._versions = None if due.all() else versions.chosen(~due)
        if not due.any():
            return batch, is_end
        with self._index.reading() as tree:
            keys = key_matrix(tree, batch.entries, batch.offsets, self._table.format.fixed_words, self._reverse)
        found = _Sorted(keys, ~places if self._reverse else places, batch.entries, batch.offsets)
        merged = found.joined(versions.chosen(due), self._filling)
        return _laid_out(self._table, merged), is_end

    def _unchanged(self, limit: int) -> tuple[ScanBatch, Words, int, bool]:
        """(rows of the next entries that have not changed, their places, head of the ring, whether it is the end)."""
        row_format = self._table.format
        words = limit * (ENTRY_WORDS + row_format.fixed_words + (16 if row_format.has_var else 0)) + 64
        places = np.empty(limit, dtype=np.int64)
        offsets = np.empty(limit, dtype=np.int64)
        state = np.zeros(3, dtype=np.int64)
        while True:
            out = np.empty(words, dtype=np.int64)
            self._snapshot.check()
            with self._index.reading() as tree:
                place = (tree.mem, tree.address, self._snapshot.epoch, self._cursor, self._bound, self._reverse)
                status = self._snapshot.settled(snapshot_entries(*place, limit, places, out, offsets, state))
            if status == ST_MISSING:
                raise self._index.gone()
            if status <= ST_SPACE:
                words = ST_SPACE - status + 64
                continue
            count = int(state[0])
            batch = ScanBatch(out[: int(state[1])], offsets[:count], count)
            return batch, places[:count], int(state[2]), status == OK

    # --- versions --------------------------------------------------------------------------------
    def _gather(self, before: Words, head: int) -> None:
        """Add the versions appended since the last call, between where the cursor stood and the bound."""
        if head <= self._gathered:
            return
        entries, offsets, places = self._copied(head)
        self._gathered = head
        if not offsets.size:
            return
        with self._index.reading() as tree:
            keys = key_matrix(tree, entries, offsets, self._table.format.fixed_words, self._reverse)
        if self._reverse:
            places = ~places
        inside = self._against(keys, places, before) > 0
        inside &= self._against(keys, places, self._bound) < 0
        if not inside.any():
            return
        found = _Sorted(keys, places, entries, offsets).chosen(inside)
        rest = self._versions
        self._versions = (found.chosen(np.zeros(0, dtype=np.int64)) if rest is None else rest).joined(
            found, self._filling
        )

    def _copied(self, head: int) -> tuple[Words, Words, Words]:
        """(entries, image offsets, places) of the versions up to a position of the ring."""
        snapshot, table = self._snapshot, self._table
        places = np.empty(GATHER_ROWS_FIRST, dtype=np.int64)
        offsets = np.empty(GATHER_ROWS_FIRST, dtype=np.int64)
        out = np.empty(GATHER_WORDS_FIRST, dtype=np.int64)
        state = np.array([0, 0, self._gathered], dtype=np.int64)
        status = ST_MORE
        while status != OK:
            snapshot.check()
            place = (snapshot.mem, table.table_id, snapshot.epoch, head, CALL_VERSIONS)
            status = snapshot.settled(gather_versions(*place, places, out, offsets, state))
            if status == ST_SPACE:
                places = np.concatenate([places, np.empty(3 * places.size, dtype=np.int64)])
                offsets = np.concatenate([offsets, np.empty(3 * offsets.size, dtype=np.int64)])
            elif status < ST_SPACE:
                out = np.concatenate([out, np.empty(3 * out.size + ST_SPACE - status, dtype=np.int64)])
        count = int(state[0])
        return out[: int(state[1])], offsets[:count], places[:count]

    def _against(self, keys: Words, places: Words, target: Words) -> Words:
        """-1, 0 or 1 for each: whether it comes before or behind a target in the direction of the scan."""
        words = target[ix.TG_KEY : ix.TG_KEY + int(target[ix.TG_WORDS])]
        place = int(target[ix.TG_PLACE])
        result = compared(keys, ~words if self._reverse else words, self._filling)
        return np.where(result == 0, np.sign(places - (~place if self._reverse else place)), result)


def _laid_out(table: Table, rows: _Sorted) -> ScanBatch:
    """The rows one behind the other in their order."""
    if not table.format.has_var:
        size = ENTRY_WORDS + table.format.fixed_words
        starts = rows.offsets - ENTRY_WORDS
        entries = rows.entries[(starts[:, None] + np.arange(size)).ravel()]
        return ScanBatch(entries, np.arange(len(rows), dtype=np.int64) * size + ENTRY_WORDS, len(rows))
    return ScanBatch(rows.entries, rows.offsets, len(rows))
