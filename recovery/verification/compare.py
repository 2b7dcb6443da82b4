"""Compares two sides table by table: first sums of ever smaller ranges, then the rows (docs/verify.md, section 4).

Invariant: rows reported as different were found different row by row; sums only show where to look. Memory: the sums of
one level, and the rows of one group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import InvariantBroken, Rejected
from tidemark.engine.memory.arena import NOTHING
from tidemark.recovery.verification.digest_ranges import Ranges, differing, first_by_key, first_by_rowid, narrowed
from tidemark.recovery.verification.digest_reading import BY_KEY, BY_ROWID, Collected, RangeReader
from tidemark.recovery.verification.digest_rows import digests
from tidemark.recovery.verification.sides import numbers_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.memory.arena import Words
    from tidemark.recovery.verification.definitions import Comparable
    from tidemark.recovery.verification.sides import Side

Progress = Callable[[int, int, str], None]
COLLECTED_ROWS = 50_000
SMALL_RANGE_ROWS = 32
ROWIDS_DIFFER = 64  # ranges; if more differ, and over a quarter of those in use, compare by key


@dataclass
class TableReport:
    """Result of the comparison of one table. `by`: the kind of ranges that was used in the end."""

    name: str
    rows_a: int = 0
    rows_b: int = 0
    only_a: int = 0
    only_b: int = 0
    changed: int = 0
    by: str = BY_KEY
    passes: int = 0
    rows_read: int = 0
    is_complete: bool = True

    @property
    def differing(self) -> int:
        """The number of rows that differ, or that only one side has."""
        return self.only_a + self.only_b + self.changed

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "differing": self.differing}


@dataclass(frozen=True)
class Group:
    """Rows that differ, as record batches of the compared columns; `changed_a` and `changed_b` have the same keys in
    order.
    """

    only_a: pa.RecordBatch
    only_b: pa.RecordBatch
    changed_a: pa.RecordBatch
    changed_b: pa.RecordBatch

    @property
    def rows(self) -> int:
        return int(self.only_a.num_rows + self.only_b.num_rows + self.changed_a.num_rows)


class TableComparison:
    """Compares the rows of one table."""

    def __init__(
        self,
        a: Side,
        b: Side,
        table: Comparable,
        by: str | None = None,
        progress: Progress | None = None,
        readers: Sequence[Callable[..., RangeReader]] = (RangeReader, RangeReader),
    ) -> None:
        """by: the kind of ranges; None: the suitable one. readers: create the readers of the sides.

        Raises: Rejected for ROWIDs that are not comparable.
        """
        self._sides = (a, b)
        self._table = table
        self._progress = progress
        self._extents = [side.extent(table.name) for side in self._sides]
        self._total = sum(extent.rows for extent in self._extents)
        self._is_forced = by is not None
        numbers = numbers_of(self._sides, table.name)
        if by == BY_ROWID and numbers is None:
            raise Rejected(
                f"{table.name} has different fragments on the two sides; compare it by key", table=table.name
            )
        self._numbers = numbers or ()
        can_rowid = numbers is not None and a.store == b.store
        self.report = TableReport(table.name, by=by or (BY_ROWID if can_rowid else BY_KEY))
        pairs = zip(readers, self._sides, strict=True)
        self._readers = [make(side, table, self._advance) for make, side in pairs]

    def groups(self) -> Iterator[Group]:
        """Yield the differences, some rows at a time. Raises: the errors of reading a side, InvariantBroken."""
        report = self.report
        if report.by == BY_ROWID:
            found = self._narrow_rowids()
            if found is not None:
                yield from self._groups(*found)
                return
            report.by = BY_KEY
        first = first_by_key(max(each.rows for each in self._extents))
        yield from self._groups(*self._narrow(*differing(*self._sum(first)), first.shift))

    # --- which ranges differ ---------------------------------------------------------------------
    def _narrow_rowids(self) -> tuple[Words, Words, int] | None:
        """Return the ranges by ROWID that differ; None if the sides have to be compared by key."""
        rows, pages = max(each.rows for each in self._extents), max(each.pages for each in self._extents)
        first = first_by_rowid(self._numbers, pages, rows)
        summed = self._sum(first)
        if any(each.has_overflown for each in summed):
            return None
        numbers, _ = differing(*summed)
        in_use = int(np.count_nonzero(summed[0].rows() | summed[1].rows()))
        if not self._is_forced and numbers.size > max(ROWIDS_DIFFER, in_use // 4):
            return None
        found = self._narrow(*differing(*summed), first.shift)
        # A row with another ROWID on the other side is distinguished from a missing row only if all rows are matched at
        # once.
        return None if int(found[1].sum()) > COLLECTED_ROWS else found

    def _narrow(self, numbers: Words, rows: Words, shift: int) -> tuple[Words, Words, int]:
        """Narrow ranges that differ until their rows are few enough to read; return (numbers, rows in each on the side
        that has more, shift).
        """
        while numbers.size and int(rows.sum()) > max(COLLECTED_ROWS, SMALL_RANGE_ROWS * numbers.size):
            ranges = narrowed(numbers, shift)
            if ranges is None:
                break
            numbers, rows = differing(*self._sum(ranges))
            shift = ranges.shift
        return numbers, rows, shift

    def _sum(self, ranges: Ranges) -> tuple[Ranges, Ranges]:
        summed = (ranges, ranges.same_shape())
        is_first = not self.report.passes
        for reader, into in zip(self._readers, summed, strict=True):
            reader.sum(into, self.report.by, is_first)
        self.report.passes += 1
        if is_first:
            self.report.rows_a, self.report.rows_b = (each.total()[0] for each in summed)
        return summed

    def _advance(self, rows: int) -> None:
        self.report.rows_read += rows
        if self._progress is not None:
            self._progress(self.report.rows_read, max(self._total, self.report.rows_read), "rows")

    # --- the rows themselves ---------------------------------------------------------------------
    def _groups(self, numbers: Words, rows: Words, shift: int) -> Iterator[Group]:
        start = 0
        ends = np.cumsum(rows)
        while start < numbers.size:
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + COLLECTED_ROWS, side="right")))
            wanted = Ranges(numbers[start:stop], shift, shift, 0)
            start = stop
            group = self._compared(*(reader.collect(wanted, self.report.by) for reader in self._readers))
            if self.report.by == BY_KEY and not group.rows:
                raise InvariantBroken(
                    f"{self._table.name}: sums of a range differ and no row does; report this", table=self._table.name
                )
            self.report.only_a += group.only_a.num_rows
            self.report.only_b += group.only_b.num_rows
            self.report.changed += group.changed_a.num_rows
            if group.rows:
                yield group

    def _compared(self, a: Collected, b: Collected) -> Group:
        """Match rows by the digest of their key; return those that differ, or exist on one side only."""
        keys, lanes = (np.concatenate([*one, *two, NOTHING]) for one, two in ((a.keys, b.keys), (a.lanes, b.lanes)))
        rows_a = sum(each.size for each in a.keys) // 2
        order = np.lexsort((keys[1::2], keys[0::2]))
        first, second = order[:-1], order[1:]
        is_pair = (keys[0::2][first] == keys[0::2][second]) & (keys[1::2][first] == keys[1::2][second])
        left, right = np.minimum(first, second)[is_pair], np.maximum(first, second)[is_pair]
        if not ((left < rows_a) & (right >= rows_a)).all():
            raise InvariantBroken(
                f"{self._table.name}: one side has two rows of one key; run `tidemark check`", table=self._table.name
            )
        is_alone = np.ones(keys.size // 2, dtype=bool)
        is_alone[left] = is_alone[right] = False
        differs = (lanes[0::2][left] != lanes[0::2][right]) | (lanes[1::2][left] != lanes[1::2][right])
        alone = np.flatnonzero(is_alone)
        both = np.argsort(left[differs], kind="stable")
        return Group(
            self._whole(0, a).take(alone[alone < rows_a]),
            self._whole(1, b).take(alone[alone >= rows_a] - rows_a),
            self._whole(0, a).take(left[differs][both]),
            self._whole(1, b).take(right[differs][both] - rows_a),
        )

    def _whole(self, place: int, collected: Collected) -> pa.RecordBatch:
        import pyarrow as pa

        from tidemark.engine.rows.column_output import arrow_schema

        side = self._sides[place]
        schema = arrow_schema(side.row_format(self._table.name).definition, self._table.columns)
        table = pa.Table.from_batches(collected.batches, schema).combine_chunks()
        found = table.to_batches()
        return found[0] if found else pa.RecordBatch.from_pylist([], schema=schema)


def differing_columns(a: pa.RecordBatch, b: pa.RecordBatch, names: Sequence[str]) -> dict[str, Any]:
    """Return the columns that differ between rows matched one by one: a mask for each name. Shapes: (rows,)."""
    found = {}
    for name in names:
        left, right = (digests([batch.column(name)], batch.num_rows) for batch in (a, b))
        found[name] = (left[0::2] != right[0::2]) | (left[1::2] != right[1::2])
    return found
