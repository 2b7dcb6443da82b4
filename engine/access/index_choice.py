"""The choice of an index for a condition, if any: equal values of leading columns, then one range.

The facts about a column hold for every row the condition accepts, and the whole condition is tested on each row found.
So bounds may be wider than the condition, never narrower. A full scan is used unless the estimated number of entries
between the bounds makes an index cheaper.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.engine.access.index_only import answers_alone
from tidemark.engine.access.key_ranges import Bounds
from tidemark.engine.base.errors import Rejected
from tidemark.engine.index.stored import StoredIndex
from tidemark.engine.memory.arena_layout import F_ROWS
from tidemark.engine.programs.condition_ranges import starts_of
from tidemark.engine.schema.partition_pruning import Between
from tidemark.engine.schema.types import Floating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.engine.access.conditions import Condition
    from tidemark.engine.index.key_values import KeyShape
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.partition_pruning import Known
    from tidemark.engine.table.table import Table

RANGES_MAX = 64
# Nanoseconds, measured on rows of about 100 bytes that are not in the cache; only the ratios matter.
PLACED_ROW_COST = 8  # a row judged in place; each unit of `Facts.cost` is added
COPIED_ROW_COST = 60  # a row copied before it is judged
INDEXED_ROW_COST = 120  # a row found through an entry
ONLY_ROW_COST = 45  # a row built from its entry alone
DISK_ROW_COST = 1_500  # added if the disk part of a row is read
RANGE_COST = 25_000  # bounds built, the tree descended, a batch begun
VERSION_WORD_COST = 1  # a word of the version store passed over


@dataclass(frozen=True)
class Choice:
    """An index, and disjoint ranges of it that contain every row the condition accepts."""

    index: StoredIndex
    ranges: list[Bounds]
    bounds: list[dict[str, Any]]
    rows: int  # estimated entries in the ranges
    is_only: bool
    judged: Sequence[str]  # columns of the condition


@dataclass(frozen=True)
class _Plan:
    """Values of the leading columns, one range for each combination; then a range or a prefix of the next column."""

    columns: Sequence[Column]
    values: list[list[Any]]
    tail: Between | bytes | None

    @property
    def count(self) -> int:
        """The number of ranges."""
        return math.prod(map(len, self.values))


def rows_of(table: Table, numbers: Sequence[int]) -> int:
    """Return the number of rows of some fragments."""
    by_number = table.by_number
    return table.arena.sum_words([by_number[number] for number in numbers if number in by_number], F_ROWS)


def choose(
    table: Table,
    condition: Condition,
    names: Sequence[str],
    numbers: Sequence[int],
    version_words: int | None = None,
) -> Choice | None:
    """Return the cheapest index for reading columns `names` of the rows a condition accepts; None: scan fragments
    `numbers`. Disk parts of the columns of `names` are read either way.

    version_words: size of the version store, which a scan of a snapshot reads for each range; None: no snapshot.
    """
    if condition.expression is None or not table.indexes:
        return None
    looked_at = [*names, *condition.names]
    on_disk = DISK_ROW_COST if table.format.needs_disk(looked_at) else 0
    is_placed = condition.cost is not None and version_words is None and not table.format.needs_disk(names)
    range_cost = RANGE_COST + VERSION_WORD_COST * (version_words or 0)
    row_cost = PLACED_ROW_COST + (condition.cost or 0) if is_placed else COPIED_ROW_COST + on_disk
    best, cost = None, rows_of(table, numbers) * row_cost
    starts = starts_of(condition.expression)
    for index in list(table.indexes.values()):
        plan = _plan(index, condition.known, starts)
        if plan is None or plan.count * range_cost >= cost:
            continue
        is_only = version_words is None and answers_alone(index, looked_at)
        found = _found(index, plan, is_only, condition.names)
        if found is None:
            continue
        each = ONLY_ROW_COST if is_only else INDEXED_ROW_COST + on_disk
        this = len(found.ranges) * range_cost + found.rows * each
        if this < cost:
            best, cost = found, this
    return best


def _found(index: StoredIndex, plan: _Plan, is_only: bool, judged: Sequence[str]) -> Choice | None:
    ranges, bounds, rows = [], [], 0
    seen = set()
    for values in itertools.product(*plan.values):
        both = _bounds(index.tree.shape, plan, values)
        key = both.low.tobytes()
        if key in seen:
            continue
        seen.add(key)
        rows += index.tree.estimate(*both)
        ranges.append(both)
        bounds.append(_shown(plan, values))
    if index.is_dropped:
        return None  # dropped meanwhile: the estimate is void
    return Choice(index, ranges, bounds, rows, is_only, judged)


def _plan(index: StoredIndex, known: dict[str, Known], starts: dict[str, bytes]) -> _Plan | None:
    columns = index.tree.shape.columns
    values: list[list[Any]] = []
    tail: Between | bytes | None = None
    for column in columns:
        what = known.get(column.name)
        few = None if what is None or isinstance(what, Between) else _storable(column, what)
        if few is not None and math.prod(map(len, values)) * len(few) <= RANGES_MAX:
            values.append(few)
            continue
        if isinstance(what, Between):
            tail = _tail(column, what)
        elif column.name in starts:
            tail = starts[column.name]
        break
    return _Plan(columns, values, tail) if values or tail is not None else None


def _storable(column: Column, values: Any) -> list[Any] | None:
    """Return the values if the column can hold all of them, else None: a value it cannot hold may still compare as
    equal to the value of a row.
    """
    found = []
    for value in values:
        if not _is_storable(column, value):
            return None
        found.append(value)
    return found


def _is_storable(column: Column, value: Any) -> bool:
    if value is None:
        return column.nullable
    try:
        column.type.stored(value)
    except Rejected:
        return False
    return True


def _is_exact(column: Column, value: Any) -> bool:
    """Whether the column stores this value exactly: otherwise a bound that excludes it may be narrower than the
    condition.
    """
    return not isinstance(column.type, Floating) and bool(column.type.loaded(column.type.stored(value)) == value)


def _tail(column: Column, known: Between) -> Between | None:
    """Return a range with bounds the column can hold; any other bound is left out."""
    lower = known.lower if known.lower is not None and _is_storable(column, known.lower) else None
    upper = known.upper if known.upper is not None and _is_storable(column, known.upper) else None
    if lower is None and upper is None and not column.nullable:
        return None
    with_lower = known.with_lower or lower is None or not _is_exact(column, lower)
    with_upper = known.with_upper or upper is None or not _is_exact(column, upper)
    return Between(lower, upper, with_lower, with_upper)


def _bounds(shape: KeyShape, plan: _Plan, values: tuple[Any, ...]) -> Bounds:
    tail = plan.tail
    if isinstance(tail, bytes):
        return Bounds(*shape.starting(values, tail))
    if tail is None:
        return Bounds(*shape.around(values))
    if tail.lower is None:
        nullable = plan.columns[len(values)].nullable
        low = shape.above((*values, None)) if nullable else shape.below(values)
    else:
        low = (shape.below if tail.with_lower else shape.above)((*values, tail.lower))
    if tail.upper is None:
        return Bounds(low, shape.above(values))
    return Bounds(low, (shape.above if tail.with_upper else shape.below)((*values, tail.upper)))


def _shown(plan: _Plan, values: tuple[Any, ...]) -> dict[str, Any]:
    """Return one range as plain values: a column's value, or its bounds."""
    shown: dict[str, Any] = {column.name: value for column, value in zip(plan.columns, values, strict=False)}
    tail = plan.tail
    if tail is None:
        return shown
    name = plan.columns[len(values)].name
    if isinstance(tail, bytes):
        shown[name] = {"prefix": tail}
        return shown
    ends: dict[str, Any] = {}
    if tail.lower is not None:
        ends["from" if tail.with_lower else "above"] = tail.lower
    if tail.upper is not None:
        ends["to" if tail.with_upper else "below"] = tail.upper
    shown[name] = ends or {"above": None}
    return shown
