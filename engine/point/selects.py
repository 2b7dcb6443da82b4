"""Selects: conditions that compare columns with constants, and ranges of an index, answered by one kernel call.

Which key or index answers depends on the columns and comparisons alone, so it is decided once for a version of a table.
A select that finds more than a few rows, and any other condition, is left to the general path.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.engine.point import plan_layout as u
from tidemark.engine.point.kinds import key_words
from tidemark.engine.point.plan import Plan, RowPlan, key_plan, plan_of, row_plan
from tidemark.engine.point.select_kernels import select_keys, select_rows
from tidemark.engine.point.trees import NO_TREES, TREES_MAX, condition_tree
from tidemark.engine.point.trees_kernels import known_tree
from tidemark.engine.programs.expressions import Col, Compare, Constant, Junction, Member
from tidemark.engine.rows.row import row_class

if TYPE_CHECKING:
    from tidemark.engine.index.stored import StoredIndex
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.types import ColumnType

FEW_ROWS = 100  # more are left to the general path, which reads them in batches
WAYS_KEPT = 256
Compared = tuple[tuple[str, str], ...]  # column and condition of each comparison
_new = tuple.__new__  # the constructor of a named tuple takes twice as long
_LOWER = {"ge": 0, "gt": u.LOW_ABOVE}
_UPPER = {"le": 0, "lt": u.HIGH_BELOW}


class Select(NamedTuple):
    """How a condition is answered, and its constants.

    `is_sound`: its columns can have all of the constants, so that the general path refuses none of them.
    """

    plan: Plan
    way: _ByKey | _ByKeys | _ByIndex
    values: Sequence[Any]
    is_sound: bool

    @property
    def key(self) -> tuple[Any, str | None] | None:
        """The key that the condition gives, and the name of its unique index, None for the primary key; None: none."""
        return self.way.key(self.values)

    def rows(self, table: Table, is_reverse: bool, limit: int | None, txn: Transaction | None = None) -> Any:
        """Return a list of the rows that the condition accepts; ... for the general path. txn: the transaction that
        sees them, if it has changed the table; None: committed rows.
        """
        return ... if table.is_dropped else self.way.rows(self.plan, self.values, is_reverse, limit, txn)


def select(table: Table, where: Any, wanted: list[str], index: str | None) -> Select | None:
    """Return how kernels find the rows that a condition accepts; None for the general path.

    wanted: columns of the rows. index: the name of the index whose order they have; None: any order.
    """
    kind = type(where)
    if kind is Member:
        return _select_members(table, where, wanted) if index is None else None
    plan: Plan | None = table.plan
    columns = (index, *wanted)
    known = None if plan is None or not plan.is_of(table) else plan.known.get(columns)
    if plan is not None and known is not None:
        number = known_tree.entry(known.words, where)
        if number >= 0:
            constants = [where.right.value] if kind is Compare else [each.right.value for each in where.operands]
            return _new(Select, (plan, known.ways[number], constants, True))
    compared: list[tuple[str, str]] = []
    values: list[Any] = []
    if kind is not Compare and (kind is not Junction or not where.is_and):
        return None
    for each in (where,) if kind is Compare else where.operands:
        if type(each) is not Compare or type(each.left) is not Col or type(each.right) is not Constant:
            return None
        compared.append((each.left.name, each.condition))
        values.append(each.right.value)
    key = (*compared, *columns)
    found = _select(table, key, values, lambda plan: _way(table, plan, tuple(compared), wanted, index))
    if found is not None and found.is_sound:
        _learn(found, columns, where)
    return found


def _learn(found: Select, columns: tuple[Any, ...], where: Any) -> None:
    """Keep how a condition is answered for others of its tree."""
    plan = found.plan
    known = plan.known.get(columns)
    if known is None:
        if len(plan.known) >= WAYS_KEPT:
            plan.known.clear()
        known = _Known(NO_TREES, ())
    if found.way in known.ways or len(known.ways) >= TREES_MAX:
        return  # a tree that kernels do not compare, or constants that they do not read
    words = condition_tree(known.words, plan.kept, where, [each.words for each in found.way.constants])
    if words is not None:
        plan.known[columns] = _Known(words, (*known.ways, found.way))


class _Known(NamedTuple):
    """Conditions whose trees kernels know, and how each is answered."""

    words: Words
    ways: tuple[_ByKey | _ByKeys | _ByIndex, ...]


def _select_members(table: Table, where: Member, wanted: list[str]) -> Select | None:
    if type(where.inner) is not Col or len(where.values) > FEW_ROWS:
        return None
    values = []
    for each in where.values:
        if type(each) is not Constant:
            return None
        values.append(each.value)
    name = where.inner.name
    return _select(table, ("isin", name, *wanted), values, lambda plan: _by_keys(table, name, wanted))


def select_range(table: Table, wanted: list[str], index: str, lower: Any, upper: Any, prefix: Any) -> Select | None:
    """Return how kernels find the rows of a range of an index, given as for `KeyRange`; None for the general path."""
    if prefix is not None:
        if lower is not None or upper is not None or isinstance(prefix, (str, bytes)):
            return None
        lower = prefix
    elif isinstance(upper, (tuple, list)) and not upper:
        return None  # every key begins with no value, so the range stops before the first one
    values = [*_values(lower), *_values(upper)]
    low = len(_values(lower))
    key = (index, low, len(values), prefix is not None, *wanted)

    def way(plan: Plan) -> _ByIndex | None:
        first = list(range(low))
        high = first if prefix is not None else list(range(low, len(values)))
        bounds = _Bounds(first, high, 0 if prefix is not None or not high else u.HIGH_BELOW)
        stored = table.indexes.get(index)
        return None if stored is None else _by_index(table, stored, bounds, wanted)

    return _select(table, key, values, way)


def _values(given: Any) -> Sequence[Any]:
    if given is None:
        return ()
    return given if isinstance(given, (tuple, list)) else (given,)


def _select(
    table: Table, key: tuple[Any, ...], values: list[Any], make: Callable[[Plan], _ByKey | _ByKeys | _ByIndex | None]
) -> Select | None:
    plan: Plan | None = table.plan
    if plan is None or not plan.is_of(table):
        plan = plan_of(table)
        if not plan.is_of(table):
            return None  # the table has another version meanwhile
    try:
        way = plan.selects[key]
    except KeyError:
        if len(plan.selects) >= WAYS_KEPT:
            plan.selects.clear()
        way = plan.selects[key] = None if plan.rows is None else make(plan)
    return None if way is None else Select(plan, way, values, _are_sound(way, values))


def _are_sound(way: _ByKey | _ByKeys | _ByIndex, values: Sequence[Any]) -> bool:
    constants = way.constants * len(values) if type(way) is _ByKeys else way.constants
    return all(read.holds(value) for value, read in zip(values, constants, strict=True))


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
    for name, stored in table.indexes.items():
        columns = table.columns_of(stored) if index is None or name == index else None
        bounds = None if columns is None else _bounds([column.name for column in columns], compared)
        if columns is None or bounds is None:
            continue
        if bounds.low != bounds.high:
            last = columns[bounds.columns - 1]
            # NULLs are below every value. What a range of texts holds is not known here, and members of an Enum are
            # only compared by `==`.
            found = _constant(last.type)
            if last.nullable or found is None or found.kind in (str, bytes):
                continue
        return _by_index(table, stored, bounds, wanted)
    return None


def _by_index(table: Table, stored: StoredIndex, bounds: _Bounds, wanted: list[str]) -> _ByIndex | None:
    columns, partition = table.columns_of(stored), table.definition.partition
    if columns is None or len(columns) < bounds.columns or len(partition.numbers) != partition.next_number:
        return None  # entries of a dropped partition may still exist
    read = [_constant(column.type) for column in columns[: bounds.columns]]
    rows = row_plan(table.format, wanted)
    constants = {number: found for ends in (bounds.low, bounds.high) for number, found in zip(ends, read, strict=False)}
    if rows is None or None in read:
        return None
    words = key_plan([found.words for found in read if found is not None], stored.tree.handle)
    return _ByIndex([found for _, found in sorted(constants.items()) if found is not None], rows, words, bounds)


class _Constant(NamedTuple):
    """How kernels read the constant that a column is compared with."""

    kind: type  # its Python type
    words: list[int]  # of the plan of a key

    def holds(self, value: Any) -> bool:
        """Whether the column can have a constant. False if that is not known at once."""
        kind = type(value)
        if kind is not self.kind or self.words[u.KC_KIND] == u.KEY_ENUM:
            return False
        if kind is int:
            return bool(self.words[u.KC_LEAST] <= value <= self.words[u.KC_GREATEST])
        if kind is str:
            return value.isascii() and len(value) <= self.words[u.KC_LEAST]
        if kind is bytes:
            return len(value) <= self.words[u.KC_LEAST]
        return kind in _READ_ALWAYS


_READ_ALWAYS = (bool, datetime.date, uuid.UUID)  # kernels read all values of these


def _constant(kind: ColumnType | None) -> _Constant | None:
    """Return how kernels read a constant; None if they do not. NaN is greater than every other value in an index, and
    equals none in a condition.
    """
    if kind is None or not kind.object_kind or not kind.keyable or not kind.is_exact:
        return None
    return _Constant(kind.python, key_words(kind))


class _Bounds(NamedTuple):
    """The bounds of a range of an index: which of the constants are the values of its leading columns."""

    low: list[int]
    high: list[int]
    flags: int

    @property
    def columns(self) -> int:
        return max(len(self.low), len(self.high))


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
    first = [equal[name] for name in columns[:count]]
    low, high = ([*first, ends[is_lower]] if is_lower in ends else first for is_lower in (True, False))
    return _Bounds(low, high, flags)


class _ByIndex:
    """Reads a range of an ordered index."""

    __slots__ = ("_flags", "_high", "_low", "_rows", "_words", "constants")

    def __init__(self, constants: list[_Constant], rows: RowPlan, words: Words, bounds: _Bounds) -> None:
        self.constants = constants
        self._rows = rows
        self._words = words
        self._flags = bounds.flags
        self._low = _taking(bounds.low, len(constants))
        self._high = None if bounds.high == bounds.low else _taking(bounds.high, len(constants))

    def key(self, values: Sequence[Any]) -> None:
        """Return None: it gives no whole key."""

    def rows(
        self, plan: Plan, values: Sequence[Any], is_reverse: bool, limit: int | None, txn: Transaction | None
    ) -> Any:
        most = -FEW_ROWS if limit is None else limit
        if most == 0 or most > FEW_ROWS or txn is not None:
            return ...
        low = self._low(values)
        high = low if self._high is None else self._high(values)
        flags = self._flags | u.REVERSE if is_reverse else self._flags
        return select_rows.entry(plan.mem, plan.words, self._rows.words, self._words, most, flags, low, high)


def _taking(places: list[int], count: int) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if places == list(range(count)):
        return tuple
    return lambda values: tuple([values[place] for place in places])


def _by_keys(table: Table, name: str, wanted: list[str]) -> _ByKeys | None:
    if table.definition.primary_key != (name,):
        return None
    kinds = {column.name: column.type for column in table.definition.columns}
    constant, rows = _constant(kinds[name]), row_plan(table.format, wanted)
    return None if constant is None or rows is None else _ByKeys([constant], rows)


class _ByKeys:
    """Looks up rows by several primary keys of one column."""

    __slots__ = ("_rows", "constants")

    def __init__(self, constants: list[_Constant], rows: RowPlan) -> None:
        """constants: one, for every key."""
        self.constants = constants
        self._rows = rows

    def key(self, values: Sequence[Any]) -> None:
        """Return None: it gives several keys."""

    def rows(
        self, plan: Plan, values: Sequence[Any], is_reverse: bool, limit: int | None, txn: Transaction | None
    ) -> Any:
        if txn is not None:
            return ...
        rows = select_keys.entry(plan.mem, plan.words, self._rows.words, tuple(values))
        return rows if rows is ... or limit is None else rows[:limit]


def _by_key(
    table: Table, plan: Plan, compared: Compared, wanted: list[str], constants: list[_Constant]
) -> _ByKey | None:
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

    __slots__ = ("_make", "_pick", "_places", "_unique", "constants")

    def __init__(
        self, constants: list[_Constant], unique: str | None, order: list[int], plan: Plan, wanted: list[str]
    ) -> None:
        """order: where the values of the key are among the constants."""
        self.constants = constants
        self._unique = unique
        self._pick: Callable[[Sequence[Any]], Any] = itemgetter(*order)
        self._make: Callable[[list[Any]], Any] | None = None
        self._places: list[int] = []
        if wanted != list(plan.format.names):
            self._places = [plan.format.names.index(name) for name in wanted]
            self._make = row_class(tuple(wanted))._make

    def key(self, values: Sequence[Any]) -> tuple[Any, str | None]:
        return self._pick(values), self._unique

    def rows(
        self, plan: Plan, values: Sequence[Any], is_reverse: bool, limit: int | None, txn: Transaction | None
    ) -> Any:
        key = self._pick(values)
        if self._unique is not None:
            row = plan.unique(key, self._unique) if txn is None else plan.unique_seen(txn, key, self._unique)
        elif txn is None:
            row = plan.get(plan.mem, plan.words, key)
        else:
            row = plan.get_seen(plan.mem, plan.words, txn.desc, txn.buf, txn.shown, key)
        if row is ...:
            return ...
        if row is None or limit == 0:
            return []
        return [row if self._make is None else self._make([row[place] for place in self._places])]
