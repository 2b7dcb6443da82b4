"""Rows of a table by one of its ordered indexes: bounds, batches, and a transaction's own changes merged in.

A scan keeps no place in the tree between two batches. Changes that its transaction had made when the scan began are
merged in order among the committed rows; changes it makes while the scan is open are not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidemark.engine.access.batch_operations import ScanBatch
from tidemark.engine.access.disk_reading import exchange_pins, is_complete, read_rowid
from tidemark.engine.access.index_reads_kernels import index_pages, index_rows
from tidemark.engine.access.own_changes import OwnChanges, key_matrix, sorted_order, widened
from tidemark.engine.access.row_operations import check_table
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.key_words_kernels import LOWEST
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import (
    ENTRY_WORDS,
    OK,
    ST_DAMAGED,
    ST_DROPPED,
    ST_MORE,
    ST_SPACE,
    X_CHANGES,
    X_USED,
)
from tidemark.engine.rows.lcp_layout import entry_fragment

if TYPE_CHECKING:
    from tidemark.engine.index.key_values import KeyShape
    from tidemark.engine.index.stored import StoredIndex
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction

CALL_ENTRIES = 512  # per kernel call: about 200 µs
BATCH_ROWS_FIRST = 256
BATCH_ROWS_MAX = 16_384
PAGES_HELD = 64


class Bounds(NamedTuple):
    """Both ends of a range of keys, as targets of the tree; keys between them are in it."""

    low: Words
    high: Words


class KeyRange:
    """Keys from `lower` on and before `upper`, or keys that begin with `prefix`; both ends as targets of the tree.

    A bound is one value or a tuple of values of leading columns; fewer than all columns stand for every key that begins
    with them. `lower` is in the range, `upper` is not. A `prefix` that is a str or bytes is a prefix of the first
    column's values; a tuple is equal values of the leading columns.
    """

    def __init__(self, shape: KeyShape, lower: Any = None, upper: Any = None, prefix: Any = None) -> None:
        """Encode both ends. Raises: SchemaInvalid, TypeMismatch, ValueOutOfRange."""
        self._shape = shape
        if prefix is not None:
            if lower is not None or upper is not None:
                raise SchemaInvalid("an index scan has a prefix, or lower and upper; give one or the other")
            if isinstance(prefix, (str, bytes)):
                self.low, self.high = shape.starting((), prefix)
            else:
                self.low, self.high = shape.below(_values(prefix)), shape.above(_values(prefix))
            return
        self.low = shape.below(() if lower is None else _values(lower))
        self.high = shape.above() if upper is None else shape.below(_values(upper))

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether a whole key, given by its values, is in the range."""
        key = self._shape.encode(values)
        return _follows(key, self.low) and not _follows(key, self.high)


def _follows(key: list[int], bound: Words) -> bool:
    """Whether a key is past a bound; if its words are equal, the bound's place decides."""
    words: list[int] = bound[ix.TG_KEY : ix.TG_KEY + int(bound[ix.TG_WORDS])].tolist()
    key = key + [LOWEST] * (len(words) - len(key))
    if key[: len(words)] == words:
        return int(bound[ix.TG_PLACE]) == ix.PLACE_BELOW
    return key[: len(words)] > words


def _values(given: Any) -> Sequence[Any]:
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)


class IndexScan:
    """One scan; call `batches` once. Rows are in the order of the index, each as committed when the scan reaches it."""

    def __init__(
        self,
        table: Table,
        txn: Transaction | None,
        index: StoredIndex,
        keys: KeyRange | Bounds,
        reverse: bool = False,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        wanted: Words = NOTHING,
    ) -> None:
        """Prepare the scan. wanted: by fragment number, whether its rows are requested; empty: all are."""
        self._table = table
        self._txn = txn
        self._index = index
        self._reverse = reverse
        self._left = limit
        self._with_disk = table.format.needs_disk(columns)
        self._wanted = wanted
        self._cursor = (keys.high if reverse else keys.low).copy()
        self._bound = keys.low if reverse else keys.high
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
            batch, is_end = self._fill_disk(wanted) if self._with_disk else self._fill(wanted)
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
        if txn is None or txn.desc == 0:  # 0: of a read-only view, which has no changes
            return
        txn.check()
        used = int(txn.mem[txn.desc + X_USED])
        if self._until and used >= self._until:
            return
        self._until = used
        self._own = None
        if int(txn.mem[txn.desc + X_CHANGES]) == 0:
            return
        low, high = (self._bound, self._cursor) if self._reverse else (self._cursor, self._bound)
        self._own = OwnChanges(
            self._table, self._index.tree.shape, txn, low, high, self._reverse, self._with_disk, self._wanted
        )

    def _call(self, kernel: Any, limit: int, *more: Any) -> int:
        """Call a kernel on the next entries. Raises: NoSuchTable, NoSuchIndex."""
        check_table(self._table)
        if self._txn is not None:
            self._txn.check()
        tree = self._index.tree
        # The transaction whose changed rows are skipped, and the end of the records of these changes in its buffer.
        place = (0, 0) if self._txn is None or self._own is None else (self._txn.desc, self._until)
        of_cursor = (self._cursor, self._bound, self._reverse)
        status = int(kernel(tree.mem, tree.handle, *place, self._wanted, *of_cursor, limit, *more))
        if status == ST_DROPPED:
            raise self._index.gone()
        return status

    # --- memory ----------------------------------------------------------------------------------
    def _fill(self, wanted: int) -> tuple[ScanBatch, bool]:
        row_format = self._table.format
        out = np.empty(
            wanted * (ENTRY_WORDS + row_format.fixed_words + (16 if row_format.has_var else 0)) + 64, dtype=np.int64
        )
        offsets = np.empty(wanted, dtype=np.int64)
        places = np.empty(CALL_ENTRIES, dtype=np.int64)
        state = np.zeros(5, dtype=np.int64)
        status = ST_MORE
        while status == ST_MORE and int(state[0]) < wanted:
            # Any number of skipped entries may come before the next row.
            limit = CALL_ENTRIES if self._wanted.size else min(CALL_ENTRIES, wanted - int(state[0]))
            status = self._call(index_rows, limit, False, places, out, offsets, state)
            if status <= ST_SPACE:
                if int(state[0]):
                    break
                out = np.empty(ST_SPACE - status + 64, dtype=np.int64)
                status = ST_MORE
        count = int(state[0])
        return ScanBatch(out[: int(state[1])], offsets[:count], count), status == OK

    # --- disk ------------------------------------------------------------------------------------
    def _fill_disk(self, wanted: int) -> tuple[ScanBatch, bool]:
        """Pin the pages of the next entries, then read their rows in the order of the index."""
        disk = self._table.disk
        out = np.empty(wanted * (ENTRY_WORDS + self._table.format.fixed_words + 32) + 64, dtype=np.int64)
        offsets = np.empty(wanted, dtype=np.int64)
        places = np.empty(CALL_ENTRIES, dtype=np.int64)
        pages = np.empty(CALL_ENTRIES, dtype=np.int64)
        state = np.zeros(5, dtype=np.int64)
        status = ST_MORE
        held: list[int] = []
        try:
            while status == ST_MORE and int(state[0]) < wanted:
                limit = self._call(index_pages, min(CALL_ENTRIES, wanted - int(state[0])), places, pages)
                needed = _first_pages(pages[:limit].tolist(), disk.pages_per_hold(PAGES_HELD))
                exchange_pins(disk, held, sorted(set(needed) - {0}))
                status = self._call(index_rows, max(1, len(needed)), True, places, out, offsets, state)
                if status == ST_DAMAGED:
                    raise disk.damaged(int(state[3]), self._table.name)
                if status <= ST_SPACE:
                    if int(state[0]):
                        break
                    out = np.empty(ST_SPACE - status + 64, dtype=np.int64)
                if status != OK:
                    status = ST_MORE  # a row has moved to a page that is not pinned: retry
        finally:
            disk.release(held)
        return self._completed(ScanBatch(out, offsets[: int(state[0])], int(state[0])), bool(state[4])), status == OK

    def _completed(self, batch: ScanBatch, is_incomplete: bool) -> ScanBatch:
        """Fetch the chunks of large disk parts. A row that changes meanwhile is read again, and left out if its key has
        changed.
        """
        if not is_incomplete:
            return batch
        table = self._table
        kept: list[int] = []
        for offset in batch.offsets.tolist():
            if is_complete(table, batch.entries, offset):
                kept.append(offset)
                continue
            number, rowid = entry_fragment(int(batch.entries[offset - 1])), int(batch.entries[offset - ENTRY_WORDS])
            entry = read_rowid(table, number, rowid, None)
            if entry.size and self._has_key_of(entry, batch.entries, offset):
                kept.append(batch.entries.size + ENTRY_WORDS)
                batch.entries = np.concatenate([batch.entries, entry])
        return ScanBatch(batch.entries, np.array(kept, dtype=np.int64), len(kept))

    def _has_key_of(self, entry: Words, entries: Words, offset: int) -> bool:
        fixed = self._table.format.fixed_words
        shape = self._index.tree.shape
        one = key_matrix(shape, entry, np.array([ENTRY_WORDS]), fixed, False)
        other = key_matrix(shape, entries, np.array([offset]), fixed, False)
        return bool(np.array_equal(one, other))

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


def _first_pages(pages: list[int], most: int) -> list[int]:
    """Return the longest prefix of the list that has at most `most` different pages; 0 is no page."""
    seen: set[int] = set()
    for number, page in enumerate(pages):
        if page and page not in seen:
            if len(seen) == most:
                return pages[:number]
            seen.add(page)
    return pages
