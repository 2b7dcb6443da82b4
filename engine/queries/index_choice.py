"""How the rows of a condition are found: by whole keys of the primary key or a unique index, by ranges of an ordered
index, or by a full scan; the cheapest by estimate.

The facts about a column hold for every row the condition accepts, and the whole condition is tested on each row found.
So keys and bounds may be more and wider than the condition, never fewer and narrower.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tidemark.engine.access.key_ranges import Bounds, place_of
from tidemark.engine.base.errors import Rejected
from tidemark.engine.index.stored import StoredIndex, StoredUnique
from tidemark.engine.memory.arena_layout import F_ROWS
from tidemark.engine.programs.condition_ranges import starts_of, valued_columns
from tidemark.engine.queries.index_only import answers_alone
from tidemark.engine.schema.partition_pruning import Between
from tidemark.engine.types.base import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tidemark.engine.access.key_ranges import KeyRange
    from tidemark.engine.index.key_values import KeyShape
    from tidemark.engine.programs.expressions import Expression
    from tidemark.engine.queries.conditions import Condition
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.partition_pruning import Known
    from tidemark.engine.table.table import Table

RANGES_MAX = 64
FEW_KEYS = 20
# Longer lists of keys are no lookups: all their rows are in memory at once.
KEYS_MAX = 10_000
# Nanoseconds, measured on rows of about 100 bytes that are not in the cache; only the ratios matter.
PLACED_ROW_COST = 8  # a row judged in place; each unit of `Facts.cost` is added
COPIED_ROW_COST = 60  # a row copied before it is judged
INDEXED_ROW_COST = 120  # a row found through an entry
ONLY_ROW_COST = 45  # a row built from its entry alone
DISK_ROW_COST = 1_500  # added if the disk part of a row is read
RANGE_COST = 25_000  # bounds built, the tree descended, a batch begun
VERSION_WORD_COST = 1  # a word of the version store passed over
KEY_COST = 1_000  # a key encoded, looked up and its row copied
SCAN_COST = 30_000  # what a full scan costs before its first row, and a lookup does not


@dataclass(frozen=True)
class Lookup:
    """Whole keys: every row that the condition accepts has one of them."""

    index: StoredUnique | None  # None: the primary key
    columns: Sequence[Column]
    keys: list[tuple[Any, ...]]
    judged: Sequence[str]  # columns of the condition
    is_whole: bool  # the keys are all that the condition says: rows need not be judged

    @property
    def access(self) -> str:
        """What is looked up, for `explain`."""
        return "primary key" if self.index is None else "unique index"

    @property
    def bounds(self) -> list[dict[str, Any]]:
        """The keys as plain values."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, key, strict=True)) for key in self.keys]

    @property
    def rows(self) -> int:
        """The number of rows at most."""
        return len(self.keys)


@dataclass(frozen=True)
class Choice:
    """An index, and disjoint ranges of it that contain every row the condition accepts."""

    index: StoredIndex
    ranges: list[Bounds]
    bounds: list[dict[str, Any]]
    rows: int  # estimated entries in the ranges
    is_only: bool
    judged: Sequence[str]  # columns of the condition

    @property
    def access(self) -> str:
        """How the index is read, for `explain`."""
        return "index only" if self.is_only else "index"


@dataclass(frozen=True)
class _Plan:
    """Values of the leading columns, one range for each combination; then a range or a prefix of the next column."""

    columns: Sequence[Column]
    values: list[list[Any]]
    tail: Between | bytes | None

    @property
    def count(self) -> int:
        return math.prod(map(len, self.values))


def rows_of(table: Table, numbers: Sequence[int]) -> int:
    """Return the number of rows of some fragments."""
    by_number = table.by_number
    return table.arena.sum_words([by_number[number] for number in numbers if number in by_number], F_ROWS)


def way_of(
    table: Table,
    condition: Condition,
    names: Sequence[str],
    partitions: Sequence[str] | None,
    version_words: int | None = None,
) -> tuple[Lookup | Choice | None, list[int]]:
    """Return what `choose` does, and the numbers of the fragments to read: some of `partitions`, or of all. Few keys
    are looked up without a comparison: nothing is cheaper.

    Raises: NoSuchPartition.
    """
    lookup = few_keys(table, condition, version_words)
    if lookup is not None:
        return lookup, table.numbers_of(partitions)
    numbers = condition.numbers(table, partitions)
    return choose(table, condition, names, numbers, version_words), numbers


def few_keys(table: Table, condition: Condition, version_words: int | None = None) -> Lookup | None:
    """Return the fewest keys that a condition gives, if they are so few that no other way is cheaper."""
    best, most = None, FEW_KEYS
    for index, columns, given in _known_keys(table, condition) if condition.known else ():
        if index is None or not version_words:
            lookup = _looked_up(index, columns, given, condition, most)
            if lookup is not None:
                best, most = lookup, lookup.rows
    return best


def choose(
    table: Table,
    condition: Condition,
    names: Sequence[str],
    numbers: Sequence[int],
    version_words: int | None = None,
) -> Lookup | Choice | None:
    """Return the cheapest way to read columns `names` of the rows a condition accepts; None: scan fragments `numbers`.
    Disk parts of the columns of `names` are read either way.

    version_words: size of the version store, which a scan of a snapshot reads for each range; None: no snapshot.
    """
    if condition.expression is None:
        return None
    keys = list(_known_keys(table, condition))
    if not keys and not table.indexes:
        return None
    looked_at = [*names, *condition.names]
    on_disk = DISK_ROW_COST if table.format.needs_disk(looked_at) else 0
    is_placed = condition.cost is not None and version_words is None and not table.format.needs_disk(names)
    range_cost = RANGE_COST + VERSION_WORD_COST * (version_words or 0)
    row_cost = PLACED_ROW_COST + (condition.cost or 0) if is_placed else COPIED_ROW_COST + on_disk
    best: Lookup | Choice | None = None
    cost = SCAN_COST + rows_of(table, numbers) * row_cost
    for key_of, columns, given in keys:
        passed = 0 if key_of is None else VERSION_WORD_COST * (version_words or 0)
        lookup = _looked_up(key_of, columns, given, condition, (cost - passed) // (KEY_COST + on_disk))
        if lookup is not None:
            best, cost = lookup, passed + lookup.rows * (KEY_COST + on_disk)
    if not table.indexes:
        return best
    starts = starts_of(condition.expression)
    for index in list(table.indexes.values()):
        known = table.columns_of(index)
        plan = None if known is None else _plan(known, condition.known, starts)
        if plan is None or SCAN_COST + plan.count * range_cost >= cost:
            continue
        is_only = version_words is None and answers_alone(table, index, looked_at)
        found = _found(index, plan, is_only, condition.names)
        if found is None:
            continue
        each = ONLY_ROW_COST if is_only else INDEXED_ROW_COST + on_disk
        this = SCAN_COST + len(found.ranges) * range_cost + found.rows * each
        if this < cost:
            best, cost = found, this
    return best


def ranges_in(table: Table, index: StoredIndex, keys: KeyRange, condition: Condition, reverse: bool) -> list[Bounds]:
    """Return disjoint ranges of an index, in its order or the reverse one, that contain every row in `keys` that the
    condition accepts.
    """
    columns = table.columns_of(index)
    plan = None
    if columns is not None and condition.expression is not None:
        plan = _plan(columns, condition.known, starts_of(condition.expression))
    if plan is None:
        return [Bounds(keys.low, keys.high)]
    found = [keys.common(bounds) for bounds in _ranges(index.tree.shape, plan).values()]
    placed = [(place_of(bounds.low), place_of(bounds.high), bounds) for bounds in found]
    some = [each for each in placed if each[0] < each[1]]
    return [bounds for _, _, bounds in sorted(some, key=itemgetter(0), reverse=reverse)]


def _known_keys(
    table: Table, condition: Condition
) -> Iterator[tuple[StoredUnique | None, Sequence[Column], list[Collection[Any]]]]:
    """Yield the keys that lead to one row, the primary key and those of unique indexes, for whose columns a condition
    gives values: (index, columns, values of each).
    """
    keys: list[tuple[StoredUnique | None, Sequence[Column] | None]] = [(None, table.format.key_columns)]
    keys += [(index, table.columns_of(index)) for index in table.uniques.values()]  # replaced, never changed
    for index, columns in keys:
        known = [condition.known.get(column.name) for column in columns or ()]
        given = [each for each in known if each is not None and not isinstance(each, Between)]
        if columns and len(given) == len(columns):
            yield index, columns, given


def _looked_up(
    index: StoredUnique | None,
    columns: Sequence[Column],
    given: Sequence[Collection[Any]],
    condition: Condition,
    most: int,
) -> Lookup | None:
    """Return the keys that accepted rows may have, if they are known exactly, and fewer than `most`."""
    if math.prod(map(len, given)) >= min(most, KEYS_MAX + 1):
        return None
    values = []
    for column, what in zip(columns, given, strict=True):
        found = _storable(column, what, index is None)
        if found is None or (index is not None and None in found):
            return None  # a row with NULL has no key in a unique index
        values.append(found)
    return Lookup(
        index, columns, list(itertools.product(*values)), condition.names, _are_all_of(columns, condition.expression)
    )


def _are_all_of(columns: Sequence[Column], expression: Expression | None) -> bool:
    """Whether a condition says nothing but the values of these columns, and those of the columns equal its own."""
    names = [] if expression is None else valued_columns(expression)
    return len(names) == len(columns) and all(column.name in names and column.type.is_exact for column in columns)


def _found(index: StoredIndex, plan: _Plan, is_only: bool, judged: Sequence[str]) -> Choice | None:
    ranges = _ranges(index.tree.shape, plan)
    rows = sum(index.tree.estimate(*bounds) for bounds in ranges.values())
    if index.is_dropped:
        return None  # dropped meanwhile: the estimate is void
    bounds = [_shown(plan, values) for values in ranges]
    return Choice(index, list(ranges.values()), bounds, rows, is_only, judged)


def _ranges(shape: KeyShape, plan: _Plan) -> dict[tuple[Any, ...], Bounds]:
    """Return the different ranges of a plan, each by the values of its leading columns."""
    found: dict[bytes, tuple[tuple[Any, ...], Bounds]] = {}
    for values in itertools.product(*plan.values):
        bounds = _bounds(shape, plan, values)
        found.setdefault(bounds.low.tobytes(), (values, bounds))
    return dict(found.values())


def _plan(columns: Sequence[Column], known: dict[str, Known], starts: dict[str, bytes]) -> _Plan | None:
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


def _storable(column: Column, values: Collection[Any], is_key: bool = False) -> list[Any] | None:
    """Return different values that the column can hold and that equal the given ones; None if there may be others.
    A value that equals none of the column is left out.
    """
    found: dict[Any, Any] = {}
    for value in values:
        if value is None:
            if column.nullable:
                found[None] = None
            continue
        equal = column.type.equal_value(value)
        if equal is UNKNOWN:
            return None
        if equal is not None:
            try:
                stored = column.type.stored_key(equal) if is_key else column.type.stored(equal)
            except Rejected:
                return None
            found[stored] = column.type.loaded(stored)
    return list(found.values())


def _bound(column: Column, value: Any, is_included: bool) -> tuple[Any, bool]:
    """Return a bound and whether it is included: one that the column does not store exactly is, or the range may be
    narrower than the condition. One that the column cannot hold is left out, as None.
    """
    if value is None:
        return None, True
    try:
        stored = column.type.stored(value)
    except Rejected:
        return None, True
    return value, is_included or not (column.type.is_exact and bool(column.type.loaded(stored) == value))


def _tail(column: Column, known: Between) -> Between | None:
    """Return a range with bounds the column can hold; any other bound is left out."""
    lower, with_lower = _bound(column, known.lower, known.with_lower)
    upper, with_upper = _bound(column, known.upper, known.with_upper)
    if lower is None and upper is None and not column.nullable:
        return None
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
