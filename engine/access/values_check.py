"""Verification of the values of a fragment's rows, disk parts included: rows are copied as a scan copies them, and
verified outside the GIL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tidemark.engine.access.snapshot_reads import committed_row, scan
from tidemark.engine.base.errors import PageDamaged, SnapshotTooOld
from tidemark.engine.index.index_layout import PLACE_SHIFT, PLACE_SLOT_MASK
from tidemark.engine.memory.arena_layout import BLOCK_WORDS, F_NUMBER, OK, PAGE_SHIFT, PG_FRAGMENT, PG_LOGICAL
from tidemark.engine.programs.checks import Checks
from tidemark.engine.rows import values_layout as v
from tidemark.engine.rows.values_check_kernels import check_values
from tidemark.engine.rows.values_plan import ValuesPlan
from tidemark.engine.schema.partition_words import KEY_ROOM_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tidemark.engine.access.scan_batch import ScanBatch
    from tidemark.engine.schema.column import Column
    from tidemark.engine.table.table import Table


CHECK_BROKEN = -1  # beside those that kernels find


class ValueFault(NamedTuple):
    """A finding: one of VALUE_ or CHECK_BROKEN, the row, and the column if the fault is of one. `key` is None if it
    cannot be read.
    """

    fault: int
    rowid: int
    key: object
    column: Column | None
    is_dropped: bool
    check: str | None = None  # name of a check that the row breaks, with CHECK_BROKEN


class ValuesCheck:
    """Verifies the values of one fragment of one version of a table."""

    def __init__(self, table: Table, number: int) -> None:
        self._table = table
        self._number = number
        self._plan = ValuesPlan(table.format.layout, table.format.needs_disk(None))
        self._scratch = np.zeros(KEY_ROOM_WORDS, dtype=np.int64)
        definition = table.definition
        # Not those of the table, which has one that is being added too.
        self._checks = Checks(definition, definition.checks) if definition.checks else None
        self.is_whole = True  # False: ended early, because the table was altered and rows may have a newer form

    def faults(self) -> Iterator[ValueFault]:
        """Yield the faults. Raises: NoSuchTable if the table is dropped meanwhile, and errors of reading disk pages."""
        for batch in committed_batches(self._table, self._number):
            found = list(self._in_batch(batch))
            if found and self._table.newest is not self._table:
                self.is_whole = False
                return
            yield from found

    def _in_batch(self, batch: ScanBatch) -> Iterator[ValueFault]:
        offsets = np.ascontiguousarray(batch.offsets[: batch.count])
        state = np.zeros(v.VS_WORDS, dtype=np.int64)
        is_sound = True
        # Read for each batch: partitions may come and go, and rows of one that is gone are not read any more.
        place = (self._table.hash_header, self._number, self._scratch, state)
        while (fault := int(check_values(batch.entries, offsets, self._plan.words, *place))) != OK:
            row = int(state[v.VS_ROW]) - 1
            column = int(state[v.VS_COLUMN])
            held = self._plan.places[column] if column >= 0 and fault != v.VALUE_PARTITION else None
            yield ValueFault(
                fault,
                int(batch.rowids()[row]),
                self._key(batch, int(offsets[row])),
                None if held is None else held.column,
                held is not None and held.is_dropped,
            )
            is_sound = False
        if self._checks is not None and is_sound:  # programs read sound rows
            for place in self._checks.broken(self._table, batch.entries, offsets).tolist():
                check, _ = self._checks.reason(self._table, batch.entries, int(offsets[place]))
                key = self._key(batch, int(offsets[place]))
                yield ValueFault(CHECK_BROKEN, int(batch.rowids()[place]), key, None, False, check.name)

    def _key(self, batch: ScanBatch, offset: int) -> object:
        row_format = self._table.format
        try:
            return row_format.decode_key(row_format.image_key(batch.entries[offset:]))
        except (PageDamaged, ValueError, IndexError, ArithmeticError):
            return None


def committed_batches(table: Table, number: int, columns: Sequence[str] | None = None) -> Iterator[ScanBatch]:
    """Yield all rows of a fragment, each of the instant at which the scan began, or began again. columns: whose values
    are wanted; None: of all. Raises: NoSuchTable if the table is dropped meanwhile.
    """
    rowid = 0
    is_end = False
    while not is_end:
        table.check()
        with table.views.open(table.handle) as view:
            try:
                for batch in scan(view, table, columns, None, [number], rowid):
                    rowid = int(batch.rowids()[-1]) + 1
                    yield batch
                is_end = True
            except SnapshotTooOld:  # the rows changed meanwhile do not fit into memory: continue with a new view
                pass


def key_of_place(table: Table, place: int) -> tuple[int, object]:
    """Return (ROWID, key) of the committed row at a place of an index entry; (place, None) if there is none."""
    mem = table.mem
    page = place >> PLACE_SHIFT
    if not 0 < page < mem.size >> PAGE_SHIFT:
        return place, None
    fragment, logical = int(mem[(page << PAGE_SHIFT) + PG_FRAGMENT]), int(mem[(page << PAGE_SHIFT) + PG_LOGICAL])
    number = int(mem[fragment + F_NUMBER]) if 0 < fragment < mem.size - BLOCK_WORDS else -1
    rowid = logical << 16 | place & PLACE_SLOT_MASK
    image = committed_row(table, table.by_number[number], rowid) if number in table.by_number else None
    return rowid, None if image is None else table.format.decode_key(table.format.image_key(image))
