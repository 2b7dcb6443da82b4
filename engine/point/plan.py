"""Plans of tables: what kernels need to answer a call of one row without Python code.

`RowPlan` makes rows of some columns of images, `Plan` answers the calls that find a row. A plan belongs to one version
of a table: kernels compare versions, and leave a call to the general path if its plan is of another one.
"""

from __future__ import annotations

import ctypes
import datetime
import decimal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.ids import LAST_EPOCH
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.jit import calendar_kernels, decimals_kernels
from tidemark.engine.jit.objects_kernels import IS_USABLE
from tidemark.engine.memory.arena_layout import S_INDEX_GENERATION
from tidemark.engine.point import plan_layout as u
from tidemark.engine.point.get_kernels import get_row, get_seen
from tidemark.engine.point.kinds import key_words, read_words, value_kind
from tidemark.engine.point.trees import Trees
from tidemark.engine.point.values_kernels import rows_of_images
from tidemark.engine.rows.row import row_class
from tidemark.engine.rows.row_part import var_default
from tidemark.engine.schema.row_shape import KEY, VAR

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.rows.row_format import RowFormat
    from tidemark.engine.schema.row_shape import Place
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.types import ColumnType

PLANS_KEPT = 64  # of columns of one row format
_PARTS = {VAR: u.PART_VAR, KEY: u.PART_KEY}
_NULL_BYTE_SHIFT = 8
assert u.EPOCH_LAST == LAST_EPOCH


def _class_words() -> list[int] | None:
    """Return the words U_DATE to U_DECIMAL, None if this Python has other objects than are known here."""
    if not (IS_USABLE and decimals_kernels.IS_KNOWN and calendar_kernels.IS_KNOWN):
        return None
    get_capsule = ctypes.pythonapi.PyCapsule_Import
    get_capsule.restype = ctypes.c_void_p
    get_capsule.argtypes = [ctypes.c_char_p, ctypes.c_int]
    words = (ctypes.c_int64 * 9).from_address(get_capsule(b"datetime.datetime_CAPI", 0))
    day, moment, time, _, _, zone, new_day, new_moment, new_time = words
    if (day, moment, time, zone) != tuple(map(id, (datetime.date, datetime.datetime, datetime.time, datetime.UTC))):
        return None
    return [day, new_day, time, new_time, moment, new_moment, id(None), zone, id(decimal.Decimal)]


CLASSES = _class_words()


def _leave(*_: Any) -> Any:
    return ...


class RowPlan:
    """Makes rows of some columns of a row format. Raises nothing: `rows` returns ... for the general path."""

    def __init__(self, row_format: RowFormat, columns: Sequence[str]) -> None:
        """columns: names of columns in memory, each once."""
        layout = row_format.layout
        self.Row = row_format.Row if tuple(columns) == row_format.names else row_class(tuple(columns))
        places = [layout.places[row_format.definition.position(name)] for name in columns]
        self._kept: list[Any] = []  # what kernels know by address only
        words = np.zeros(u.U_ROWS + len(places) * u.COLUMN_WORDS, dtype=np.int64)
        words[u.U_COLUMNS] = len(places)
        words[u.U_CLASS] = id(self.Row)
        words[u.U_FIXED_WORDS] = row_format.fixed_words
        words[u.U_HAS_VAR] = row_format.has_var
        words[u.U_DATE : u.U_DECIMAL + 1] = CLASSES or 0
        pieces: list[int] = []
        for number, place in enumerate(places):
            at = u.U_ROWS + number * u.COLUMN_WORDS
            words[at : at + u.COLUMN_WORDS] = self._column(place)
        words[u.U_PIECES] = words.size
        if row_format.key_in_var:
            for place in layout.key_places:
                kind = place.column.type
                pieces.append(-1 if kind.is_var else kind.key_bytes_max // WORD_BYTES)
        self.words: Words = np.concatenate([words, np.array(pieces, dtype=np.int64)])

    def _column(self, place: Place) -> list[int]:
        kind = place.column.type
        made, width = value_kind(kind, place.is_key)
        part = _PARTS.get(place.part, u.PART_FIXED)
        where = place.offset if part == u.PART_FIXED else place.ordinal
        null = place.null_offset << _NULL_BYTE_SHIFT | place.null_mask if place.null_mask else 0
        detail: Any = kind.object_parts or kind.members or kind.scale  # the last two of an Enum, of a Decimal
        missing = 0
        if part == u.PART_VAR:
            missing = self._keep(self._missing(place, kind))
        if not isinstance(detail, int):
            detail = self._keep(detail)
        return [made << u.KIND_SHIFT | part << u.PART_SHIFT | width << u.SIZE_SHIFT | where, null, missing, detail]

    def _missing(self, place: Place, kind: ColumnType) -> Any:
        data = var_default(place)
        if data is None:
            return None
        stored = kind.from_var(data)
        return kind.input_value(stored) if kind.object_kind == "JSON" else kind.loaded(stored)

    def _keep(self, value: Any) -> int:
        self._kept.append(value)
        return id(value)

    def rows(self, images: Words, offsets: Words, start: int, stop: int) -> Any:
        """Return a list of the rows whose images begin at images[offsets[start:stop]]; ... for the general path."""
        # The entry point of a kernel takes any array for one without gaps.
        given = np.ascontiguousarray(images), np.ascontiguousarray(offsets)
        return rows_of_images.entry(self.words, *given, start, stop)


def row_plan(row_format: RowFormat, columns: Sequence[str]) -> RowPlan | None:
    """Return the plan of some columns of a row format; None if the general path makes their rows."""
    key = tuple(columns)
    try:
        return row_format.plans[key]  # type: ignore[no-any-return]
    except KeyError:
        pass
    is_left = CLASSES is None or row_format.needs_disk(columns) or len(set(columns)) != len(columns)
    types = {column.name: column.type for column in row_format.definition.columns}
    is_left = is_left or not all(types[name].object_kind for name in columns)
    if len(row_format.plans) >= PLANS_KEPT:
        row_format.plans.clear()
    made = row_format.plans[key] = None if is_left else RowPlan(row_format, key)
    return made


class Plan:
    """The calls of one row on one version of a table. Each returns ... for a call that the general path must answer.

    `get(mem, words, key)` and `get_seen(mem, words, desc, buf, shown, key)` are kernels: an attribute less to look up.
    The words say what the key is of: the table, or one of its unique indexes.
    """

    __slots__ = (
        "definition",
        "format",
        "get",
        "generation",
        "get_seen",
        "in_place",
        "kept",
        "known",
        "mem",
        "rows",
        "selects",
        "trees",
        "uniques",
        "version",
        "words",
    )

    def __init__(self, table: Table) -> None:
        # Not the table: a table must not be part of a cycle.
        self.mem = table.mem
        self.format = table.format
        self.definition = definition = table.definition
        self.version = definition.version
        self.in_place: frozenset[str] = frozenset()  # columns that an update changes in place
        # Before the indexes are read: the plan of one that is announced meanwhile is an old plan.
        self.generation = int(self.mem[S_INDEX_GENERATION])
        self.uniques: dict[str, Words] = {}  # the words for keys of each unique index
        self.selects: dict[Any, Any] = {}  # of `engine/point/selects.py`
        self.known: dict[Any, Any] = {}  # and what kernels know of them
        self.get: Callable[..., Any] = _leave
        self.get_seen: Callable[..., Any] = _leave
        row_format = table.format
        self.rows = None if row_format.has_disk else row_plan(row_format, row_format.names)
        self.kept: list[str] = []  # names that kernels know by address only
        if self.rows is None:
            self.words: Words = np.zeros(u.U_ROWS, dtype=np.int64)
            self.words[u.U_GENERATION] = -1
            self.trees = Trees(definition, self.words, ())
            return
        key = key_plan([key_words(place.column.type) for place in row_format.layout.key_places], 0)
        self.words = self.rows.words.copy()
        self.words[u.U_HANDLE] = table.handle
        self.words[u.U_VERSION] = definition.version
        self._read_values(table)
        common = self.words
        self.words = _with_key(common, key)
        self.trees = Trees(definition, self.words, self.kept)
        self.get = get_row.entry
        self.get_seen = get_seen.entry
        for name, index in table.uniques.items():
            columns = table.columns_of(index)
            if columns is not None:
                key = key_plan([key_words(each.type) for each in columns], index.tree.handle)
                self.uniques[name] = _with_key(common, key)

    def is_of(self, table: Table) -> bool:
        """Whether it is of this version of its table."""
        return self.version == table.definition.version and self.format is table.format

    def _read_values(self, table: Table) -> None:
        layout, start = table.format.layout, self.words.size
        values: list[int] = []
        in_place: set[str] = set()
        is_put = not layout.dropped and table.format.fixed_words < u.IMAGE_WORDS
        is_put = is_put and table.format.numbered is None  # sequences must see the numbers of all rows
        for place in layout.places:
            column = place.column
            part = u.PART_KEY if place.is_key else _PARTS.get(place.part, u.PART_FIXED)
            where, null = place.offset, place.null_offset << _NULL_BYTE_SHIFT | place.null_mask
            if part == u.PART_VAR:
                where, null = place.ordinal, int(column.nullable)
            self.kept.append(sys.intern(column.name))
            change = u.CHANGE_IN_PLACE if part == u.PART_FIXED else u.CHANGE_BY_IMAGE
            if place.is_key:
                change = u.CHANGE_NEVER
            elif column.name in table.unique_columns:  # an update of them passes the whole image, see there
                change = u.CHANGE_BY_IMAGE
            if change == u.CHANGE_IN_PLACE:
                in_place.add(column.name)
            values += [id(self.kept[-1]), where, part, null if null > 0 and not place.is_key else 0, change]
            values += read_words(column.type)
        self.in_place = frozenset(in_place)
        keys = [place.position for place in layout.key_places]
        var = [place.position for place in layout.var_places]
        self.words = np.concatenate([self.words, np.array([*values, *keys, *var], dtype=np.int64)])
        self.words[u.U_STAMP] = table.stamp
        self.words[u.U_GENERATION] = self.generation
        self.words[u.U_VALUES] = start
        self.words[u.U_KEY_COLUMNS] = start + len(values)
        self.words[u.U_KEY_IN_VAR] = table.format.key_in_var
        self.words[u.U_VAR_COLUMNS] = len(var)
        self.words[u.U_VAR_LIST] = start + len(values) + len(keys)
        self.words[u.U_IS_PUT] = is_put
        if table.checks is not None:
            self.words[u.U_GENERATION] = -1  # the general path asks them about each image

    def unique(self, key: Any, index: Any) -> Any:
        """Return the committed row with a key of the unique index of this name."""
        try:
            words = self.uniques[index]
        except (KeyError, TypeError):  # TypeError: an unhashable object, which the general path refuses
            return ...
        return self.get(self.mem, words, key)

    def unique_seen(self, txn: Transaction, key: Any, index: Any) -> Any:
        """Return the row with a key of the unique index of this name, as a transaction sees it."""
        try:
            words = self.uniques[index]
        except (KeyError, TypeError):
            return ...
        return self.get_seen(self.mem, words, txn.desc, txn.buf, txn.shown, key)

    def words_for(self, index: Any) -> Words | None:
        """Return the words for keys of the unique index of this name, None if kernels do not know it."""
        try:
            return self.uniques.get(index)
        except TypeError:
            return None


def _with_key(words: Words, key: Words) -> Words:
    found = np.concatenate([words, key])
    found[u.U_KEY] = words.size
    return found


def key_plan(columns: Sequence[list[int]], handle: int) -> Words:
    """Return the plan of a key, from the words of its columns. handle: of the index, 0 for a primary key."""
    return np.array([len(columns), handle, *(word for each in columns for word in each)], dtype=np.int64)


def keep_plan(table: Table) -> None:
    """Do `plan_of` for later calls. A call that has done its work must not fail because there is no memory for it."""
    try:
        plan_of(table)
    except MemoryError:
        pass


def plan_of(table: Table) -> Plan:
    """Return the plan of the version of a table that is in force, and keep it for callers that have this one."""
    newest = table.newest
    found: Plan | None = newest.plan
    if found is None or not found.is_of(newest) or found.generation != int(found.mem[S_INDEX_GENERATION]):
        found = Plan(newest)
        newest.plan = found
    table.plan = found
    return found
