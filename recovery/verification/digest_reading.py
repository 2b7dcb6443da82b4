"""Reads one table of one side for a comparison: sums of ranges, or the rows of some ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.batch_operations import decode_entries
from tidemark.engine.access.scan_batch import ScanBatch
from tidemark.recovery.verification.digest_ranges import Ranges
from tidemark.recovery.verification.digest_rows import digests, key_places
from tidemark.recovery.verification.sides import ALL_PAGES, page_ranges, rowid_places

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.memory.arena import Words
    from tidemark.recovery.verification.definitions import Comparable
    from tidemark.recovery.verification.sides import Side

BY_ROWID = "rowid"
BY_KEY = "key"


@dataclass
class Collected:
    """Rows of some ranges of one side, with digests of key and row."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    keys: list[Words] = field(default_factory=list)
    lanes: list[Words] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch, table: Comparable) -> None:
        """Add rows with the compared columns."""
        self.batches.append(rows)
        self.lanes.append(digests(rows.columns, rows.num_rows))
        self.keys.append(digests([rows.column(name) for name in table.key], rows.num_rows))


class RangeReader:
    """Reads the ranges of one table of one side in this process."""

    def __init__(
        self, side: Side, table: Comparable, on_rows: Callable[[int], object], fragment: int | None = None
    ) -> None:
        """on_rows: called with the number of rows read. fragment: the only one to read, None for all."""
        self._side = side
        self._table = table
        self._on_rows = on_rows
        self._fragment = fragment

    def sum(self, ranges: Ranges, by: str, is_all: bool) -> None:
        """Add the rows of this side to the sums. is_all: there is no row outside of these ranges."""
        row_format = self._side.row_format(self._table.name)
        for batch, places in self._placed(ranges, by, is_all):
            decoded = decode_entries(row_format, batch.entries, batch.offsets, batch.count, self._table.columns)
            ranges.add(places, digests(decoded.columns, batch.count))

    def collect(self, wanted: Ranges, by: str) -> Collected:
        found = Collected()
        row_format = self._side.row_format(self._table.name)
        for batch, _ in self._placed(wanted, by, False):
            columns = self._table.columns
            found.add(decode_entries(row_format, batch.entries, batch.offsets, batch.count, columns), self._table)
        return found

    def _placed(self, ranges: Ranges, by: str, is_all: bool) -> Iterator[tuple[ScanBatch, Words]]:
        """Yield (batch, places) of the rows in some ranges, with disk parts if those are compared."""
        name = self._table.name
        is_all = is_all or ranges.is_everything
        needs_disk = self._side.row_format(name).needs_disk(self._table.columns)
        pages = None
        if by == BY_ROWID and not is_all:
            pages = page_ranges(ranges.wanted, ranges.shift_before)
        if self._fragment is not None:
            pages = {self._fragment: ALL_PAGES if pages is None else pages.get(self._fragment, [])}
        # If only some rows are needed, read disk parts of those alone.
        for batch in self._side.scan(name, needs_disk and is_all, pages):
            self._on_rows(batch.count)
            places = rowid_places(batch) if by == BY_ROWID else self._key_places(batch)
            if is_all:
                yield batch, places
                continue
            chosen = np.flatnonzero(ranges.places_in(places) >= 0)
            if chosen.size:
                offsets = np.ascontiguousarray(batch.offsets[chosen])
                if needs_disk:
                    batch = self._side.whole(name, batch, offsets)
                else:
                    batch = ScanBatch(batch.entries, offsets)
                yield batch, places[chosen]

    def _key_places(self, batch: ScanBatch) -> Words:
        row_format = self._side.row_format(self._table.name)
        decoded = decode_entries(row_format, batch.entries, batch.offsets, batch.count, self._table.key)
        return key_places(digests(decoded.columns, batch.count))
