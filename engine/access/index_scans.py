"""Rows of a table by one of its ordered indexes: bounds, batches, and a transaction's own changes merged in.

Changes that its transaction had made when the scan began are merged in order among the committed rows; changes it makes
while the scan is open are not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.own_changes import OwnChanges, has_changed, key_matrix, sorted_order, widened
from tidemark.engine.access.scan_batch import ScanBatch
from tidemark.engine.access.snapshot_index import BATCH_ROWS_FIRST, BATCH_ROWS_MAX, SnapshotIndexScan
from tidemark.engine.log.redo_layout import GROUP_WORDS, TRANSACTION_WORDS
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, X_USED

if TYPE_CHECKING:
    from tidemark.engine.access.key_ranges import Bounds, KeyRange
    from tidemark.engine.index.stored import StoredIndex
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.views import View


FIRST_RECORD_WORD = GROUP_WORDS + TRANSACTION_WORDS  # of a transaction's buffer


class IndexScan:
    """One scan; call `batches` once. Rows are in the order of the index, as committed when the view was opened."""

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
    ) -> None:
        """Prepare the scan. numbers: fragments whose rows are requested; None: all."""
        self._table = table
        self._txn = view.txn
        self._view = view
        self._index = index
        self._reverse = reverse
        self._left = limit
        self._with_disk = table.format.needs_disk(columns)
        self._wanted = wanted_fragments(table, numbers)
        self._stream = SnapshotIndexScan(view, table, index, keys, reverse, None, columns, None, numbers)
        self._own: OwnChanges | None = None
        self._until = 0

    def batches(self) -> Iterator[ScanBatch]:
        """Yield the rows. Raises: NoSuchTable, NoSuchIndex if it is dropped meanwhile, and errors of reading disk
        pages.
        """
        rows = BATCH_ROWS_FIRST
        is_end = False
        while not is_end and (self._left is None or self._left > 0):
            wanted = rows if self._left is None else min(rows, self._left)
            self.gather_own_changes()
            batch, is_end = self._fill(wanted)
            if self._own is not None:
                batch = self._merged(batch, self._own, is_end)
            if self._left is not None:
                if batch.count > self._left:
                    batch = ScanBatch(batch.entries, batch.offsets[: self._left], self._left)
                self._left -= batch.count
            if batch.count:
                yield batch
            rows = min(4 * rows, BATCH_ROWS_MAX)

    def gather_own_changes(self) -> None:
        """Gather the transaction's changes: at the first batch, and again after a savepoint has undone some of them."""
        txn = self._txn
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
        self._own = None
        if not has_changed(txn, self._table):
            return
        bound, cursor = self._stream.bound, self._stream.cursor
        low, high = (bound, cursor) if self._reverse else (cursor, bound)
        self._own = OwnChanges(
            self._table, self._index.tree.shape, txn, low, high, self._reverse, self._with_disk, self._wanted
        )

    def _fill(self, wanted: int) -> tuple[ScanBatch, bool]:
        """Return (about `wanted` next rows of the stream, whether these were the last)."""
        self._table.check()
        self._stream.until = 0 if self._own is None else self._until
        return self._stream.fill(wanted)

    # --- own changes -----------------------------------------------------------------------------
    def _merged(self, batch: ScanBatch, own: OwnChanges, is_end: bool) -> ScanBatch:
        """Return a batch merged with the transaction's own rows that sort before its end."""
        if not own.left or (not batch.count and not is_end):
            return batch
        fixed = self._table.format.fixed_words
        keys = key_matrix(self._index.tree.shape, batch.entries, batch.offsets, fixed, self._reverse)
        taken = own.up_to(None if is_end else keys[-1])
        if not taken:
            return batch
        own_keys, own_entries, own_offsets = own.take(taken)
        width = max(keys.shape[1], own_keys.shape[1])
        both = np.concatenate([widened(keys, width, own.filling), widened(own_keys, width, own.filling)])
        order = sorted_order(both)
        entries = np.concatenate([batch.entries, own_entries])
        offsets = np.concatenate([batch.offsets, own_offsets + batch.entries.size])[order]
        size = ENTRY_WORDS + fixed
        if not self._table.format.has_var and not self._table.format.has_disk and entries.size == size * len(order):
            # Rows of equal size are stored consecutively, in order.
            entries = entries.reshape(-1, size)[order].ravel()
            offsets = np.arange(len(order), dtype=np.int64) * size + ENTRY_WORDS
        return ScanBatch(entries, offsets, len(order))


def wanted_fragments(table: Table, numbers: Sequence[int] | None) -> Words:
    """Return, by fragment number, whether its rows are requested; empty: all are."""
    if numbers is None or set(numbers).issuperset(table.definition.partition.numbers):
        return NOTHING
    wanted = np.zeros(max(numbers, default=0) + 1, dtype=np.int64)
    wanted[list(numbers)] = 1
    return wanted
