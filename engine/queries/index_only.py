"""Rows by an index: read, or built from the entries of an exact index alone. Ranges counted without reading any row.

An entry has the committed key of its row. A transaction's own changes are merged in as for any scan by an index. Row
headers are read only then, to skip the rows the transaction has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.index_scans import IndexScan
from tidemark.engine.access.scan_batch import ScanBatch
from tidemark.engine.index import index_layout as ix
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, OK, ST_CHANGED, ST_DROPPED, ST_MORE, X_CHANGES
from tidemark.engine.queries.index_only_kernels import count_entries, images_of_keys, index_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tidemark.engine.access.key_ranges import Bounds, KeyRange
    from tidemark.engine.index.stored import StoredIndex
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction

CALL_KEYS = 4_096  # per kernel call: about 100 µs
CALL_LEAVES = 512  # about 100 µs


def answers_alone(table: Table, index: StoredIndex, names: Sequence[str]) -> bool:
    """Whether the entries of an index have all of these columns (of the hidden ones: only ROWID and fragment)."""
    shape, columns = index.tree.shape, table.columns_of(index)
    if columns is None or not shape.lies_in_fixed:
        return False
    held = {column.name: first.name for column, first in zip(columns, shape.columns, strict=True)}
    return all(name in held for name in names) and shape.answers([held[name] for name in names])


class IndexOnlyScan(IndexScan):
    """A scan of an index that answers alone. Images have its columns, zeros, and a var part without values if the table
    has var parts; epoch and author are 0.
    """

    def _fill(self, wanted: int) -> tuple[ScanBatch, bool]:
        row_format = self._table.format
        width = self._index.tree.shape.words
        places = np.empty(CALL_KEYS, dtype=np.int64)
        keys = np.empty(wanted * width, dtype=np.int64)
        heads = np.empty(wanted * 2, dtype=np.int64)
        done = 0
        state = np.zeros(1, dtype=np.int64)
        status = ST_MORE
        while status == ST_MORE and done < wanted:
            self._table.check()
            self._view.check()
            tree = self._index.tree
            # The transaction whose changed rows are skipped, and the end of the records of these changes in its buffer.
            own: tuple[int, int] = (0, 0) if self._own is None else (self._view.desc, self._until)
            reader = (tree.mem, tree.handle, self._table.handle, self._view.view, *own)
            place = (self._cursor, self._bound, self._reverse, min(CALL_KEYS, wanted - done), places)
            status = int(index_keys(*reader, *place, keys[done * width :], heads[done * 2 :], state))
            if status == ST_DROPPED:
                raise self._index.gone()
            if self._view.settled(status) == ST_CHANGED:
                if not done:
                    return super()._fill(wanted)
                status = ST_MORE
                break
            done += int(state[0])
        has_var = int(row_format.has_var)
        stride = ENTRY_WORDS + row_format.fixed_words + has_var
        out = np.empty(done * stride, dtype=np.int64)
        key_words = 0 if row_format.key_in_var else row_format.key_words
        shape = (row_format.fixed_words, has_var, key_words)
        images_of_keys(self._index.tree.shape.descriptor, keys, heads, done, *shape, out)
        offsets = np.arange(done, dtype=np.int64) * stride + ENTRY_WORDS
        return self._shown(ScanBatch(out, offsets), offsets)[0], status == OK


def scan_index(
    table: Table,
    txn: Transaction | None,
    index: StoredIndex,
    ranges: Sequence[KeyRange | Bounds],
    names: Sequence[str],
    is_only: bool,
    reverse: bool = False,
    limit: int | None = None,
    numbers: Sequence[int] | None = None,
) -> Iterator[ScanBatch]:
    """Yield the rows of disjoint ranges, one range after the other, each in the order of the index; a `limit` needs a
    single range.

    names: columns that are read; is_only: the index answers alone. numbers: fragments whose rows are requested, all if
    None. All ranges show the changes the transaction had made when the first range began, and no later ones: a row
    that an update moves from one range to the next occurs once. Raises: as `IndexScan.batches`.
    """
    made = IndexOnlyScan if is_only else IndexScan
    table.check()
    with table.view_for(txn) as view:
        scans = [made(view, table, index, keys, reverse, limit, names, numbers) for keys in ranges]
        if len(scans) > 1:
            for each in scans:
                each.gather_own_changes()
        for each in scans:
            yield from each.batches()


def count_by_index(table: Table, txn: Transaction | None, index: StoredIndex, keys: KeyRange | Bounds) -> int | None:
    """Return the number of rows in a range of keys, counted by leaves of the tree. None if the rows must be read: the
    transaction has made changes, others change the table meanwhile, or entries of dropped partitions may still exist.

    Raises: NoSuchTable, NoSuchIndex.
    """
    if txn is not None:
        txn.check()
        if txn.desc and int(txn.mem[txn.desc + X_CHANGES]):
            return None
    partition = table.definition.partition
    if len(partition.numbers) != partition.next_number:
        return None
    cursor = keys.low.copy()
    state = np.zeros(1, dtype=np.int64)
    status = ST_MORE
    table.check()
    with table.view_for(txn) as view:
        while status == ST_MORE:
            table.check()
            tree = index.tree
            place = (tree.mem, tree.handle, table.handle, view.view, cursor, keys.high)
            status = view.settled(int(count_entries(*place, CALL_LEAVES, int(_is_everything(keys)), state)))
    if status == ST_DROPPED:
        raise index.gone()
    return None if status == ST_CHANGED else int(state[0])


def _is_everything(keys: KeyRange | Bounds) -> bool:
    low = keys.low[ix.TG_KEY : ix.TG_KEY + int(keys.low[ix.TG_WORDS])]
    high = keys.high[ix.TG_KEY : ix.TG_KEY + int(keys.high[ix.TG_WORDS])]
    at_ends = int(keys.low[ix.TG_PLACE]) == ix.PLACE_BELOW and int(keys.high[ix.TG_PLACE]) == ix.PLACE_ABOVE
    return at_ends and bool((low == -(1 << 63)).all()) and bool((high == (1 << 63) - 1).all())
