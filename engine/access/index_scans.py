"""Rows of a table by a view and one of its ordered indexes: entries of rows that have not changed since, merged with
old rows of the others, and with the rows that the reading transaction has changed.

Keys and places are compared in the direction of the scan: for a descending one both are inverted, so that every
comparison here is ascending. The rows of each tree call are merged with the versions appended before it
(docs/internals/access.md, section 11). Changes that its transaction had made when the scan began are merged in order;
changes it makes while the scan is open are not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.index_reads_kernels import may_have_changed, own_rows
from tidemark.engine.access.scan_batch import ALL_ROWS, ScanBatch, among
from tidemark.engine.access.snapshot_reads import Meter, Progress, gathered, read_found, versions_of
from tidemark.engine.access.versions_index_kernels import index_entries
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.key_words_kernels import LOWEST, encode_images
from tidemark.engine.log.redo_layout import GROUP_WORDS, TRANSACTION_WORDS
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, OK, ST_DROPPED, ST_SPACE, X_CHANGES, X_USED

if TYPE_CHECKING:
    from tidemark.engine.access.key_ranges import Bounds, KeyRange
    from tidemark.engine.index.key_values import KeyShape
    from tidemark.engine.index.stored import StoredIndex
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.txn.views import View

BATCH_ROWS_FIRST = 256
BATCH_ROWS_MAX = 16_384
CALL_ENTRIES = 512  # per kernel call: about 200 µs
CALL_OWN_ROWS = 1_000
LOOKED_AT_MAX = 100  # operations: about a microsecond
ENCODE_ROWS = 1_024
DUE_FIRST = 1_024  # versions of a run that are compared with the cursor in one step
FIRST_RECORD_WORD = GROUP_WORDS + TRANSACTION_WORDS  # of a transaction's buffer


# --- keys -----------------------------------------------------------------------------------------
def _key_matrix(shape: KeyShape, images: Words, offsets: Words, fixed_words: int, reverse: bool) -> Words:
    """Return key words of row images, for comparisons: padded with the lowest word, inverted if `reverse`. Shapes:
    (images, words of the longest key).
    """
    limit = shape.key_words
    parts: list[Words] = []
    for start in range(0, offsets.size, ENCODE_ROWS):
        some = np.ascontiguousarray(offsets[start : start + ENCODE_ROWS])
        out = np.zeros(some.size * (limit + 2) + limit + 2, dtype=np.int64)
        lengths = np.zeros(some.size, dtype=np.int64)
        encode_images(shape.descriptor, images, some, fixed_words, some.size, limit, out, lengths)
        width = int(lengths.max())
        words = out[: some.size * (limit + 2)].reshape(some.size, limit + 2)[:, :width].copy()
        words[np.arange(width) >= lengths[:, None]] = LOWEST
        parts.append(words)
    width = max((part.shape[1] for part in parts), default=shape.words)
    keys = np.concatenate([_widened(part, width, LOWEST) for part in parts or [np.zeros((0, width), dtype=np.int64)]])
    return ~keys if reverse else keys


def _widened(keys: Words, width: int, filling: int) -> Words:
    more = width - keys.shape[1]
    return keys if more <= 0 else np.pad(keys, ((0, 0), (0, more)), constant_values=filling)


def _compared(keys: Words, key: Words, filling: int) -> Words:
    """Return -1, 0 or 1 for each row of `keys`: how it compares with `key`."""
    keys = _widened(keys, key.size, filling)
    result = np.zeros(len(keys), dtype=np.int64)
    for i in range(key.size):
        column = keys[:, i]
        result = np.where(result == 0, np.where(column < key[i], -1, np.where(column > key[i], 1, 0)), result)
    return result


@dataclass(slots=True, eq=False)
class _Sorted:
    """Rows in the direction of a scan: keys and places as they are compared, and entries with the start and size of
    each.
    """

    keys: Words
    places: Words
    entries: Words
    starts: Words
    sizes: Words

    def __len__(self) -> int:
        return len(self.places)

    def chosen(self, which: Any) -> _Sorted:
        """Return some of the rows, by number, mask or slice; entries stay as they are."""
        return _Sorted(self.keys[which], self.places[which], self.entries, self.starts[which], self.sizes[which])

    def order(self) -> Words:
        return np.lexsort((self.places, *self.keys.T[::-1]))

    def in_order(self) -> _Sorted:
        """Return the same rows, sorted, with only their entries, stored consecutively."""
        rows = self.chosen(self.order())
        starts = np.cumsum(rows.sizes) - rows.sizes
        moved = np.repeat(rows.starts - starts, rows.sizes) + np.arange(int(rows.sizes.sum()))
        return _Sorted(rows.keys, rows.places, rows.entries[moved], starts, rows.sizes)

    def merged_with(self, others: Sequence[_Sorted], filling: int) -> _Sorted:
        all_rows = [self, *others]
        width = max(rows.keys.shape[1] for rows in all_rows)
        begins = np.cumsum([0, *(rows.entries.size for rows in all_rows)])
        return _Sorted(
            np.concatenate([_widened(rows.keys, width, filling) for rows in all_rows]),
            np.concatenate([rows.places for rows in all_rows]),
            np.concatenate([rows.entries for rows in all_rows]),
            np.concatenate([rows.starts + begin for rows, begin in zip(all_rows, begins, strict=False)]),
            np.concatenate([rows.sizes for rows in all_rows]),
        )

    def batch(self) -> ScanBatch:
        return ScanBatch(self.entries, self.starts + ENTRY_WORDS)


# --- own changes ----------------------------------------------------------------------------------
def has_changed(txn: Transaction, table: Table) -> bool:
    """Whether a transaction may have changed or deleted rows of a table: a long one has, for all that is known here."""
    if not txn.desc or not int(txn.mem[txn.desc + X_CHANGES]):
        return False
    return bool(may_have_changed(txn.mem, table.table_id, txn.desc, LOOKED_AT_MAX))


def shows_others(txn: Transaction, table: Table) -> bool:
    """Whether a transaction may see other rows of a table than those that are committed now."""
    return txn.view is not None or has_changed(txn, table)


class IndexScan:
    """One scan; call `batches` once. Rows are in the order of the index."""

    def __init__(
        self,
        view: View,
        table: Table,
        index: StoredIndex,
        keys: KeyRange | Bounds,
        reverse: bool = False,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        numbers: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Prepare the scan. numbers: fragments whose rows are requested; None: all."""
        self._view = view
        self._table = table
        self._index = index
        self._reverse = reverse
        self._left = ALL_ROWS if limit is None else limit
        wanted = table.by_number if numbers is None else [each for each in numbers if each in table.by_number]
        self._numbers = frozenset(wanted)
        # All partitions that the table ever had, so that no entry is of another one.
        self._is_whole = len(wanted) == table.definition.partition.next_number
        self._with_disk = table.format.needs_disk(columns)
        self._cursor = (keys.high if reverse else keys.low).copy()  # key and place of the last entry examined
        self._bound = keys.low if reverse else keys.high
        self._filling = ~LOWEST if reverse else LOWEST
        self._gathered = view.head  # the ring was read up to this position
        # Versions past the cursor, in sorted runs: each is more than twice as long as the next one.
        self._runs: list[_Sorted] = []
        # The transaction's changes, made before this word of its buffer, that are past the cursor.
        self._own: _Sorted | None = None
        self._until = 0
        self._meter = Meter(progress, -1, "rows")

    def batches(self) -> Iterator[ScanBatch]:
        """Yield the rows. Raises: NoSuchTable, NoSuchIndex if it is dropped meanwhile, SnapshotTooOld, SnapshotClosed,
        and errors of reading disk pages.
        """
        rows = BATCH_ROWS_FIRST
        is_end = False
        while not is_end and self._left > 0:
            self.gather_own_changes()
            self._table.check()
            batch, is_end = self._fill(min(rows, self._left))
            if self._own is not None:
                batch = self._with_own(batch, self._own, is_end)
            batch = batch.chosen(slice(self._left))
            self._left -= batch.count
            self._meter.done += batch.count
            self._meter.advance(0)
            if batch.count:
                yield batch
            rows = min(4 * rows, BATCH_ROWS_MAX)

    def gather_own_changes(self) -> None:
        """Gather the transaction's changes: at the first batch, and again after a savepoint has undone some of them."""
        txn = self._view.txn
        if txn is None:
            return
        txn.check()
        if not txn.desc:  # it has no changes
            self._until = FIRST_RECORD_WORD
            return
        used = int(txn.mem[txn.desc + X_USED])
        if self._until and used >= self._until:
            return
        self._until = used
        self._own = self._own_rows(self._table.views.now(txn)) if has_changed(txn, self._table) else None

    def _own_rows(self, view: View) -> _Sorted:
        """Return the rows that the transaction has changed, as it sees them, between cursor and bound."""
        table = self._table

        def call(_: Words, out: Words, offsets: Words, state: Words) -> int:
            return int(own_rows(table.mem, table.table_id, view.desc, view.buf, CALL_OWN_ROWS, out, offsets, state))

        entries, offsets, _ = gathered(view, call)
        rows = self._inside(ScanBatch(entries, offsets), np.zeros(offsets.size, dtype=np.int64), self._cursor)
        if not self._with_disk or not len(rows):
            return rows
        found = read_found(view, table, rows.entries, rows.batch().offsets)
        return self._inside(found, np.zeros(found.count, dtype=np.int64), self._cursor)

    def _with_own(self, batch: ScanBatch, own: _Sorted, is_end: bool) -> ScanBatch:
        """Return a batch merged with the transaction's own rows that sort before its end."""
        if not len(own) or (not batch.count and not is_end):
            return batch
        found = self._sortable(batch, batch.offsets)
        taken = len(own)
        if not is_end:
            taken = int((_compared(own.keys, found.keys[-1], self._filling) <= 0).sum())
        if not taken:
            return batch
        self._own = own.chosen(slice(taken, None))
        rows = found.merged_with([own.chosen(slice(taken)).in_order()], self._filling)
        rows.places = np.arange(len(rows))  # equal keys: the transaction's own rows are last
        if self._table.format.has_var or self._table.format.has_disk:
            return ScanBatch(rows.entries, (rows.starts + ENTRY_WORDS)[rows.order()])
        return rows.in_order().batch()

    def _fill(self, wanted: int) -> tuple[ScanBatch, bool]:
        """Return (about `wanted` next rows, without the transaction's changes; whether these were the last)."""
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
            return ScanBatch(NOTHING, NOTHING)
        batch = pieces[0]
        if len(pieces) > 1:
            starts = np.cumsum([0, *(piece.entries.size for piece in pieces)])
            offsets = np.concatenate([piece.offsets + start for piece, start in zip(pieces, starts, strict=False)])
            batch = ScanBatch(np.concatenate([piece.entries for piece in pieces]), offsets)
        if not self._with_disk:
            return batch
        # Rows that the transaction has changed since the scan began are those that were committed.
        offsets = batch.offsets[: self._left]
        return read_found(self._view.committed(), self._table, batch.entries, offsets)

    # --- one call --------------------------------------------------------------------------------
    def _next(self, limit: int) -> tuple[ScanBatch, bool]:
        """Return rows of the next entries, few or none if most or all have changed since, and whether it is the end."""
        before = self._cursor.copy()
        batch, places, head, is_end = self._unchanged(limit)
        self._gather(before, head)
        due = self._due(is_end)
        if not due:
            return batch, is_end
        return self._sortable(batch, places).merged_with(due, self._filling).in_order().batch(), is_end

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
            self._view.check()
            tree = self._index.tree
            reader = (self._view.view, self._view.desc, 0 if self._own is None else self._until)
            place = (self._cursor, self._bound, self._reverse, limit)
            status = int(index_entries(tree.mem, tree.handle, *reader, *place, places, out, offsets, state))
            if status == ST_DROPPED:
                self._table.check()
                raise self._index.gone()
            self._view.settled(status)
            if status <= ST_SPACE:
                words = ST_SPACE - status + 64
                continue
            count = int(state[0])
            batch, places = self._shown(ScanBatch(out[: int(state[1])], offsets[:count]), places[:count])
            return batch, places, int(state[2]), status == OK

    def _shown(self, batch: ScanBatch, places: Words) -> tuple[ScanBatch, Words]:
        """Remove rows of partitions that are not requested, and of those dropped before the snapshot, whose entries may
        still exist for other readers.
        """
        if self._is_whole:
            return batch, places
        shown = among(batch.fragments(), self._numbers)
        return (batch, places) if shown.all() else (batch.chosen(shown), places[shown])

    # --- versions --------------------------------------------------------------------------------
    def _gather(self, before: Words, head: int) -> None:
        """Add the versions appended since the last call that are between the previous cursor and the bound."""
        if head <= self._gathered:
            return
        entries, offsets, places = versions_of(self._view, self._table, self._gathered, head)
        self._gathered = head
        found = self._inside(ScanBatch(entries, offsets), places, before)
        if not len(found):
            return
        self._runs.append(found)
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            last = self._runs.pop()
            self._runs[-1] = self._runs[-1].merged_with([last], self._filling).in_order()

    def _due(self, is_end: bool) -> list[_Sorted]:
        """Take from the runs the versions before or at the cursor, or all of them at the end."""
        if is_end:
            due, self._runs = self._runs, []
            return due
        due = []
        for number, run in enumerate(self._runs):
            most = DUE_FIRST
            while most < len(run) and self._against(run.chosen(slice(most - 1, most)), self._cursor) <= 0:
                most *= 4
            count = int((self._against(run.chosen(slice(most)), self._cursor) <= 0).sum())
            if count:
                due.append(run.chosen(slice(count)).in_order())
                self._runs[number] = run.chosen(slice(count, None))
        self._runs = [run for run in self._runs if len(run)]
        return due

    # --- order -----------------------------------------------------------------------------------
    def _sortable(self, batch: ScanBatch, places: Words) -> _Sorted:
        """Return rows with their keys and places as they are compared. What is after an entry, up to the next one, may
        be counted as part of it.
        """
        starts = batch.offsets - ENTRY_WORDS
        order = np.argsort(starts)
        sizes = np.empty(starts.size, dtype=np.int64)
        sizes[order] = np.diff(np.append(starts[order], batch.entries.size))
        shape, fixed_words = self._index.tree.shape, self._table.format.fixed_words
        keys = _key_matrix(shape, batch.entries, batch.offsets, fixed_words, self._reverse)
        return _Sorted(keys, ~places if self._reverse else places, batch.entries, starts, sizes)

    def _inside(self, batch: ScanBatch, places: Words, start: Words) -> _Sorted:
        """Return the requested ones of some rows that are past `start` and before the bound, in order."""
        rows = self._sortable(batch, places)
        if not self._is_whole:
            rows = rows.chosen(among(batch.fragments(), self._numbers))
        inside = (self._against(rows, start) > 0) & (self._against(rows, self._bound) < 0)
        return rows.chosen(inside).in_order()

    def _against(self, rows: _Sorted, target: Words) -> Words:
        """Return -1, 0 or 1 for each: whether it is before, at or past a target in the direction of the scan."""
        words = target[ix.TG_KEY : ix.TG_KEY + int(target[ix.TG_WORDS])]
        place = int(target[ix.TG_PLACE])
        result = _compared(rows.keys, ~words if self._reverse else words, self._filling)
        return np.where(result == 0, np.sign(rows.places - (~place if self._reverse else place)), result)
