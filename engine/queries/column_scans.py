"""Scans whose rows become Arrow columns at once, without entries in between.

What the kernel leaves (rows that the transaction has changed, texts in several chunks, the rest of a table that has
changed since the scan began) is read on the general path, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.scan_batch import SCAN_BATCH_ROWS, SCAN_WORDS, ScanBatch
from tidemark.engine.access.snapshot_reads import scan
from tidemark.engine.memory.arena_layout import F_ROWS, OK, ST_CHANGED, ST_DROPPED, ST_MORE, ST_SPACE
from tidemark.engine.programs.program_layout import VECTOR_ROWS
from tidemark.engine.programs.running import rows_memory
from tidemark.engine.queries import program_scan_layout as q
from tidemark.engine.queries.column_scan_kernels import scan_columns
from tidemark.engine.queries.columns import TEXT_BYTES, Columns, is_copied, schema_of
from tidemark.engine.queries.conditions import Condition
from tidemark.engine.queries.filters import filter_of
from tidemark.engine.queries.index_choice import way_of
from tidemark.engine.queries.program_scans import accepted_batches

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.txn.views import View

COLUMN_SLOTS = 8_192  # of a call: about 100 µs
CALL_WORDS = 65_536  # of rows of one call


class ColumnBatch:
    """Some rows of a scan, as a record batch."""

    __slots__ = ("columns", "count")

    def __init__(self, columns: pa.RecordBatch) -> None:
        self.columns = columns
        self.count: int = columns.num_rows


class ColumnScan:
    """A scan of some columns of a table; `is_possible` says whether kernels copy all of them."""

    def __init__(self, table: Table, condition: Condition | None, names: Sequence[str]) -> None:
        """names: of columns, which may be hidden ones."""
        known = dict(zip(table.format.names, table.format.layout.places, strict=True))
        self._table = table
        self._places = [known.get(name, name) for name in names]
        self._schema = schema_of(table.definition, names)
        self._condition = condition
        self._names = names
        self._filter = filter_of(None if condition is None else condition.program)
        self._text_bytes = [TEXT_BYTES] * len(names)  # of a value of each column
        self.is_possible = self._filter is not None and all(map(is_copied, self._places))

    def batches(self, txn: Transaction | None, numbers: Sequence[int]) -> Iterator[ScanBatch | ColumnBatch]:
        """Yield the accepted rows of some fragments. Raises: as `scan_where`."""
        self._table.check()
        with self._table.view_for(txn) as view:
            for number in numbers:
                yield from self.fragment_batches(view, number)

    def fragment_batches(self, view: View, number: int) -> Iterator[ScanBatch | ColumnBatch]:
        """Yield the accepted rows of a fragment, given by its number, as the view shows them. Raises: as `scan_where`;
        for a snapshot also SnapshotTooOld, SnapshotClosed.
        """
        fragment = self._table.by_number.get(number)
        state = np.zeros(q.PS_STATE_WORDS, dtype=np.int64)
        status = ST_MORE
        while fragment is not None and status == ST_MORE:
            batch, status = self._next(view, number, fragment, state)
            if batch is not None:
                yield batch
        if status == ST_CHANGED:
            yield from self._rest(view, number, int(state[q.PS_POSITION]))

    def _next(self, view: View, number: int, fragment: int, state: Words) -> tuple[ColumnBatch | None, int]:
        """Return the next rows of a fragment, None if there are none, and ST_MORE; OK at its end; or ST_CHANGED if the
        general path must read the rest.
        """
        table = self._table
        row_words = max(table.format.fixed_words, 1)
        most = min(SCAN_BATCH_ROWS, max(SCAN_WORDS // row_words, VECTOR_ROWS))
        most = min(most, table.arena.sum_words([fragment], F_ROWS) + VECTOR_ROWS)
        columns = Columns(self._places, most, self._text_bytes)
        state[q.PS_ROWS] = 0
        mem = table.mem
        pages = (mem, mem.view(np.int32), mem.view(np.int16), mem.view(np.uint8))
        slots = min(COLUMN_SLOTS, max(CALL_WORDS // row_words, VECTOR_ROWS))
        status = ST_MORE
        while status == ST_MORE and not state[q.PS_OWN]:
            table.check()
            view.check()
            place = (*pages, fragment, view.view, view.desc, slots, self._filter, columns.plan, rows_memory())
            status = view.settled(int(scan_columns(*place, *columns.elements, state)))
            view.advance(number, int(state[q.PS_POSITION]))
        count = int(state[q.PS_ROWS])
        self._text_bytes = columns.sizes(self._text_bytes, count, max(0, ST_SPACE - status))
        if status == ST_DROPPED:
            table.check()
            status = OK
        elif status == ST_MORE:
            status = ST_CHANGED
        elif status <= ST_SPACE:
            status = ST_MORE
        return (ColumnBatch(columns.batch(self._schema, count)) if count else None), status

    def _rest(self, view: View, number: int, first_rowid: int) -> Iterator[ScanBatch]:
        found = scan(view, self._table, self._names, None, [number], first_rowid)
        return found if self._condition is None else accepted_batches(self._table, found, self._condition, None)


def scan_by_columns(
    table: Table,
    txn: Transaction | None,
    condition: Condition | None,
    columns: Sequence[str],
    read: Sequence[str],
    partitions: Sequence[str] | None,
) -> Iterator[ScanBatch | ColumnBatch] | None:
    """Scan the rows a condition accepts (None: all rows) as columns; None if kernels do not copy these columns, or an
    index is chosen for the condition. columns: may be hidden ones. read: those that an index must have to answer alone.
    Raises: as `scan_where`.
    """
    numbers = table.numbers_of(partitions)
    found = ColumnScan(table, condition, columns)
    if not found.is_possible:
        return None
    if condition is not None:
        choice, numbers = way_of(table, condition, read, partitions)
        if choice is not None:
            return None
    return found.batches(txn, numbers)
