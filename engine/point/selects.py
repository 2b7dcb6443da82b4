"""Selects: conditions that compare columns with constants, answered by the primary key or by one index.

Which of them answers depends on the columns and comparisons alone, so it is decided once for a version of a table. A
select that finds more than a few rows, and any other condition, is left to the general path.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.engine.base.errors import Rejected
from tidemark.engine.point import plan_layout as u
from tidemark.engine.point.kinds import key_words
from tidemark.engine.point.plan import Plan, RowPlan, key_plan, plan_of, row_plan
from tidemark.engine.point.select_kernels import select_rows
from tidemark.engine.programs.expressions import Col, Compare, Constant, Junction
from tidemark.engine.rows.row import row_class
from tidemark.engine.schema.row_layout import WORD_BYTES
from tidemark.engine.schema.types import Decimal, Floating
from tidemark.engine.schema.types_calendar import Calendar

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.types_base import ColumnType
    from tidemark.engine.table.table import Table

FEW_ROWS = 100  # more are left to the general path, which reads them in batches
WAYS_KEPT = 256
Compared = tuple[tuple[str, str], ...]  # column and condition of each comparison
_READ = {
    u.KEY_INT: int,
    u.KEY_BOOL: bool,
    u.KEY_TEXT: str,
    u.KEY_PADDED_TEXT: str,
    u.KEY_BYTES: bytes,
    u.KEY_PADDED_BYTES: bytes,
}
_CALENDAR = {
    "Date": datetime.date,
    "Time": datetime.time,
    "DateTime": datetime.datetime,
    "Timestamp": datetime.datetime,
}
_STORED_WORDS = [u.KEY_INT, WORD_BYTES, -(1 << 63), (1 << 63) - 1]
_ALWAYS_SOUND = frozenset([int, bool, bytes, datetime.date])
_LOWER = {"ge": 0, "gt": u.LOW_ABOVE}
_UPPER = {"le": 0, "lt": u.HIGH_BELOW}


class Select(NamedTuple):
    """How a condition is answered, and its constants."""

    plan: Plan
    way: _ByKey | _ByIndex
    values: list[Any]

    @property
    def is_sound(self) -> bool:
        """Whether the condition compiles: its constants have the types of their columns."""
        for value, read in zip(self.values, self.way.constants, strict=True):
            kind = type(value)
            if kind is not read.kind or not (kind in _ALWAYS_SOUND or (kind is str and value.isascii())):
                return False
        return True

    def rows(self, table: Table, is_reverse: bool, limit: int | None) -> Any:
        """Return a list of the committed rows that the condition accepts; ... for the general path."""
        return ... if table.is_dropped else self.way.rows(self.plan, self.values, is_reverse, limit)


def select(table: Table, where: Any, wanted: list[str], index: str | None) -> Select | None:
    """Return how kernels find the rows that a condition accepts; None for the general path.

    wanted: columns of the rows. index: the name of the index whose order they have; None: any order.
    """
    compared: list[tuple[str, str]] = []
    values: list[Any] = []
    kind = type(where)
    if kind is not Compare and (kind is not Junction or not where.is_and):
        return None
    for each in (where,) if kind is Compare else where.operands:
        if type(each) is not Compare or type(each.left) is not Col or type(each.right) is not Constant:
            return None
        compared.append((each.left.name, each.condition))
        values.append(each.right.value)
    plan: Plan | None = table.plan
    if plan is None or not plan.is_of(table):
        plan = plan_of(table)
        if not plan.is_of(table):
            return None  # the table has another version meanwhile
    key = (*compared, index, *wanted)
    try:
        way = plan.selects[key]
    except KeyError:
        if len(plan.selects) >= WAYS_KEPT:
            plan.selects.clear()
        way = plan.selects[key] = None if plan.rows is None else _way(table, plan, tuple(compared), wanted, index)
    return None if way is None else Select(plan, way, values)


def _way(
    table: Table, plan: Plan, compared: Compared, wanted: list[str], index: str | None
) -> _ByKey | _ByIndex | None:
    types = {column.name: column.type for column in table.definition.columns}
    constants = [found for found in (_constant(types.get(name)) for name, _ in compared) if found is not None]
    if len(constants) < len(compared):
        return None
    if index is None:
        by_key = _by_key(table, plan, compared, wanted, constants)
        if by_key is not None:
            return by_key
    partition = table.definition.partition
    if len(partition.numbers) != partition.next_number:
        return None  # entries of a dropped partition may still exist
    for name, stored in table.indexes.items():
        columns = table.columns_of(stored) if index is None or name == index else None
        bounds = None if columns is None else _bounds([column.name for column in columns], compared)
        if columns is None or bounds is None:
            continue
        used = columns[: bounds.columns]
        read = [found.words for found in (_constant(column.type) for column in used) if found is not None]
        # NULLs are below every value. What a range of texts holds is not known here.
        if bounds.is_range and (used[-1].nullable or read[-1][0] not in (u.KEY_INT, u.KEY_BOOL)):
            continue
        words = key_plan(read, stored.tree.handle)
        rows = row_plan(table.format, wanted)
        return None if words is None or rows is None else _ByIndex(constants, rows, words, bounds)
    return None


class _Constant(NamedTuple):
    """How kernels read the constant that a column is compared with."""

    kind: type  # its Python type
    words: list[int]  # of the plan of a key
    stored: Callable[[Any], Any] | None  # what makes it an integer first; raises Rejected


def _constant(kind: ColumnType | None) -> _Constant | None:
    """Return how kernels read a constant; None if they do not. NaN is greater than every other value in an index, and
    equals none in a condition.
    """
    if isinstance(kind, Calendar):
        return _Constant(_CALENDAR[kind.name], _STORED_WORDS, kind.stored)
    if isinstance(kind, Decimal) and kind.width == WORD_BYTES:
        return _Constant(decimal.Decimal, _STORED_WORDS, kind.stored)
    words = None if kind is None or isinstance(kind, Floating) else key_words(kind)
    return None if words is None else _Constant(_READ[words[0]], words, None)


class _Bounds(NamedTuple):
    """The bounds that comparisons are of an index. Comparisons are given by their numbers."""

    equal: list[int]  # of the leading columns
    low: int | None  # of the column after them
    high: int | None
    flags: int

    @property
    def is_range(self) -> bool:
        return self.low is not None or self.high is not None

    @property
    def columns(self) -> int:
        """How many columns of the index they are about."""
        return len(self.equal) + self.is_range


def _bounds(columns: list[str], compared: Compared) -> _Bounds | None:
    """Return the bounds that comparisons give an index over these columns; None if they say more, or something else."""
    equal = {name: number for number, (name, condition) in enumerate(compared) if condition == "eq"}
    count = len(equal)
    if set(columns[:count]) != equal.keys():
        return None
    ends: dict[bool, int] = {}
    flags = 0
    for number, (name, condition) in enumerate(compared):
        if condition == "eq":
            continue
        is_lower = condition in _LOWER
        if columns[count : count + 1] != [name] or is_lower in ends or not (is_lower or condition in _UPPER):
            return None
        ends[is_lower] = number
        flags |= _LOWER[condition] if is_lower else _UPPER[condition]
    if count + len(ends) != len(compared):
        return None  # a column is compared twice
    return _Bounds([equal[name] for name in columns[:count]], ends.get(True), ends.get(False), flags)


class _ByIndex:
    """Reads a range of an ordered index."""

    __slots__ = ("_bounds", "_rows", "_stored", "_words", "constants")

    def __init__(self, constants: list[_Constant], rows: RowPlan, words: Words, bounds: _Bounds) -> None:
        self.constants = constants
        self._stored = [(at, each.kind, each.stored) for at, each in enumerate(constants) if each.stored is not None]
        self._rows = rows
        self._words = words
        self._bounds = bounds

    def rows(self, plan: Plan, values: list[Any], is_reverse: bool, limit: int | None) -> Any:
        """Return the rows for these constants, or ..."""
        most = -FEW_ROWS if limit is None else limit
        if most == 0 or most > FEW_ROWS:
            return ...
        if self._stored:
            values = values.copy()
        for at, kind, stored in self._stored:
            try:
                values[at] = stored(values[at]) if type(values[at]) is kind else ...
            except Rejected:
                return ...
        equal, at_low, at_high, flags = self._bounds
        low = high = tuple([values[number] for number in equal])
        if at_low is not None:
            low = (*low, values[at_low])
        if at_high is not None:
            high = (*high, values[at_high])
        if is_reverse:
            flags |= u.REVERSE
        rows = self._rows
        found = select_rows.entry(plan.mem, plan.words, rows.words, self._words, most, flags, low, high)
        return rows.converted(found) if rows.converts else found


def _by_key(
    table: Table, plan: Plan, compared: Compared, wanted: list[str], constants: list[_Constant]
) -> _ByKey | None:
    """Return what looks up one row by the primary key or a unique index over exactly these columns."""
    names = [name for name, _ in compared]
    if any(condition != "eq" for _, condition in compared) or len(set(names)) != len(names):
        return None
    primary = table.definition.primary_key
    if set(names) == set(primary):
        return _ByKey(constants, None, [names.index(name) for name in primary], plan, wanted)
    for unique, stored in table.uniques.items():
        columns = table.columns_of(stored)
        if columns is not None and unique in plan.uniques and {column.name for column in columns} == set(names):
            return _ByKey(constants, unique, [names.index(column.name) for column in columns], plan, wanted)
    return None


class _ByKey:
    """Looks up one row by the primary key, or by a unique index."""

    __slots__ = ("_key", "_make", "_places", "_unique", "constants")

    def __init__(
        self, constants: list[_Constant], unique: str | None, order: list[int], plan: Plan, wanted: list[str]
    ) -> None:
        """order: where the values of the key are among the constants."""
        self.constants = constants
        self._unique = unique
        self._key: Callable[[Sequence[Any]], Any] = itemgetter(*order)
        self._make: Callable[[list[Any]], Any] | None = None
        self._places: list[int] = []
        if wanted != list(plan.format.names):
            self._places = [plan.format.names.index(name) for name in wanted]
            self._make = row_class(tuple(wanted))._make

    def rows(self, plan: Plan, values: list[Any], is_reverse: bool, limit: int | None) -> Any:
        """Return the row for these constants in a list, or ..."""
        key = self._key(values)
        row = plan.get(plan.mem, plan.words, key) if self._unique is None else plan.unique(key, self._unique)
        if row is ...:
            return ...
        if row is None or limit == 0:
            return []
        return [row if self._make is None else self._make([row[place] for place in self._places])]
