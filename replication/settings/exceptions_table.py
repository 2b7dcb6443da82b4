"""Exceptions tables: which definitions are accepted, and where the values of each column come from.

There are two forms. A plain table has four columns that are the whole primary key, then copies of the main table's key
columns in order, then others. A table is extended if a column has the prefix `NDB$`, or if the copies are incomplete or
not in order. Its key columns are found by name, any subset in any order, and other columns of the main table by the
names `c`, `c$OLD` and `c$NEW`.

Columns are checked from the last to the first, so that the first fault returned is the one that the server reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.engine import types as t
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import EXCEPTIONS_SUFFIX
from tidemark.replication.settings.finding import Finding

if TYPE_CHECKING:
    from tidemark.engine.types import ColumnType

PREFIX = "NDB$"
OLD_SUFFIX = "$OLD"
NEW_SUFFIX = "$NEW"
OP_TYPE = "NDB$OP_TYPE"
CFT_CAUSE = "NDB$CFT_CAUSE"
ORIG_TRANSID = "NDB$ORIG_TRANSID"
MANDATORY = 4


class OperationType(IntEnum):
    """NDB$OP_TYPE: the operation in conflict."""

    WRITE_ROW = 1
    UPDATE_ROW = 2
    DELETE_ROW = 3
    REFRESH_ROW = 4
    READ_ROW = 5


class Cause(IntEnum):
    """NDB$CFT_CAUSE. NDB up to 8.0 swaps the first two; here they are right."""

    ROW_DOES_NOT_EXIST = 1
    ROW_ALREADY_EXISTS = 2
    DATA_IN_CONFLICT = 3
    TRANS_IN_CONFLICT = 4


class Source(Enum):
    """The source of a column's value in an exceptions row."""

    SERVER_ID = "server id of the site that applies"
    SOURCE_SERVER_ID = "server id the change came from"
    SOURCE_EPOCH = "epoch of the source"
    COUNT = "running number"
    OP_TYPE = "operation"
    CAUSE = "cause"
    TRANSACTION = "transaction id at the source"
    KEY = "key column of the change"
    IMAGE = "after-image, of a delete the before-image"
    OLD = "before-image"
    NEW = "after-image"
    DEFAULT = "nothing: default or NULL"


_FIRST = (Source.SERVER_ID, Source.SOURCE_SERVER_ID, Source.SOURCE_EPOCH, Source.COUNT)
# The manual shows tables with SMALLINT server ids and with BIGINT counts; both are accepted.
_FIRST_TYPES = ((t.UInt16, t.UInt32, t.UInt64), (t.UInt16, t.UInt32, t.UInt64), (t.UInt64,), (t.UInt32, t.UInt64))


@dataclass(frozen=True)
class PlannedColumn:
    """The source of one column; `position` is that of the column in the main table, for sources that read one."""

    source: Source
    position: int | None = None


@dataclass(frozen=True)
class ExceptionsPlan:
    """How a row of an exceptions table is built; `columns` are in the order of that table."""

    exceptions: TableDefinition
    columns: tuple[PlannedColumn, ...]
    is_extended: bool


class Measure(NamedTuple):
    """How column types of a class compare: a type holds the values of another one of equal `group` and no greater
    `size`. With `is_fixed`, this is so in key columns only; elsewhere sizes are equal.
    """

    group: Callable[[Any], object]
    size: Callable[[Any], int] = lambda kind: 0
    is_fixed: bool = False


_EQUAL = Measure(lambda kind: kind)
_BY_LENGTH = Measure(lambda kind: None, lambda kind: kind.length)
MEASURES: dict[type[ColumnType], Measure] = {
    t.Integer: Measure(lambda kind: kind.signed, lambda kind: kind.bits, is_fixed=True),
    t.Boolean: _EQUAL,
    t.Floating: Measure(lambda kind: None, lambda kind: kind.bits),
    t.Decimal: Measure(lambda kind: kind.scale, lambda kind: kind.precision),
    t.Enum: _EQUAL,
    t.Char: _BY_LENGTH,
    t.VarChar: _BY_LENGTH,
    t.LongText: _EQUAL,
    t.Binary: _BY_LENGTH,
    t.VarBinary: _BY_LENGTH,
    t.LongBinary: _EQUAL,
    t.Uuid: _EQUAL,
    t.Document: _EQUAL,
    t.CalendarDate: _EQUAL,
    t.TimeOfDay: _EQUAL,
    t.LocalDateTime: _EQUAL,
    t.Instant: _EQUAL,
}


def is_same_or_larger(kind: ColumnType, other: ColumnType, is_key: bool = True) -> bool:
    """Return whether a column of type `other`, for a key column unless is_key is False, can hold every value of `kind`
    unchanged.
    """
    if type(kind) is not type(other):
        return False
    measure = MEASURES[type(kind)]
    size, there = measure.size(kind), measure.size(other)
    fits = size == there if measure.is_fixed and not is_key else size <= there
    return fits and measure.group(kind) == measure.group(other)


def _can_be_empty(column: Column) -> bool:
    return column.missing is not ABSENT and column.computed is None


class _Reader:
    """One check of an exceptions table; `faults` and `notes` are in the order found."""

    def __init__(self, main: TableDefinition, exceptions: TableDefinition) -> None:
        self.main = main
        self.table = exceptions
        self.name = exceptions.name.partition(".")[2]
        self.main_name = main.name.partition(".")[2]
        self.places = {column.name.lower(): place for place, column in enumerate(main.columns)}
        self.key = tuple(sorted(main.key_positions))  # in the order of columns, as the server goes through them
        self.faults: list[Finding] = []
        self.notes: list[Finding] = []
        self.plan: list[PlannedColumn | None] = [None] * len(exceptions.columns)
        self.referenced: set[int] = set()
        self.has_copies = self._has_copies()
        self.is_extended = not self.has_copies

    def _has_copies(self) -> bool:
        """Whether all key columns are copied, in order, after the first four columns. The names of the copies do not
        matter.
        """
        copies = self.table.columns[MANDATORY : MANDATORY + len(self.key)]
        originals = [self.main.columns[place] for place in self.key]
        return len(copies) == len(originals) and all(
            is_same_or_larger(original.type, copy.type) and not copy.nullable
            for original, copy in zip(originals, copies, strict=True)
        )

    def fault(self, place: int, rule: str, details: str) -> None:
        text = f"exceptions table {self.name} has wrong definition (column {place}): {details}"
        self.faults.append(Finding(rule, text, self.table.columns[place].name))

    def check_first(self) -> bool:
        """Check the first four columns, which alone are the primary key; return whether they are right."""
        columns = self.table.columns[:MANDATORY]
        is_fine = (
            len(columns) == MANDATORY
            and set(self.table.primary_key) == {column.name for column in columns}
            and all(column.type in kinds for column, kinds in zip(columns, _FIRST_TYPES, strict=True))
        )
        if not is_fine:
            text = f"exceptions table {self.name} has wrong definition (initial {MANDATORY} columns)"
            self.faults.append(Finding(f"wrong definition (initial {MANDATORY} columns)", text))
            return False
        for place, source in enumerate(_FIRST):
            self.plan[place] = PlannedColumn(source)
            if source in _FIRST[:2] and columns[place].type == t.UInt16:
                text = f"column {columns[place].name} of exceptions table {self.name} holds server ids to 65535 only"
                self.notes.append(Finding("narrow server id", text, columns[place].name))
        return True

    def check_rest(self) -> None:
        """Check the columns from the last to the first; after that the form is known."""
        for place in range(len(self.table.columns) - 1, -1, -1):
            column = self.table.columns[place]
            upper = column.name.upper()
            self.is_extended = self.is_extended or upper.startswith(PREFIX)
            if place < MANDATORY:
                continue
            if upper in (OP_TYPE, CFT_CAUSE, ORIG_TRANSID):
                self._special(place, column, upper)
            else:
                self._reference(place, column)

    def check_prefixes(self) -> None:
        """Check that in an extended table all of the first four columns have the prefix."""
        for column in reversed(self.table.columns[:MANDATORY]):
            if self.is_extended and not column.name.upper().startswith(PREFIX):
                text = (
                    f"Exceptions table {self.name} is extended, but mandatory column {column.name}  doesn't have"
                    f" the '{PREFIX}' prefix"
                )
                self.faults.append(Finding("mandatory column without prefix", text, column.name))

    def _special(self, place: int, column: Column, name: str) -> None:
        if name == ORIG_TRANSID:
            is_fine = column.type == t.UInt64
            source = Source.TRANSACTION
        else:
            members = len(OperationType) if name == OP_TYPE else len(Cause)
            is_fine = column.type == t.UInt32 or len(column.type.members) >= members
            source = Source.OP_TYPE if name == OP_TYPE else Source.CAUSE
        if not is_fine:
            self.fault(place, f"incorrect type for {name}", f"Table {self.name} has incorrect type for {name}")
        self.plan[place] = PlannedColumn(source)

    def _reference(self, place: int, column: Column) -> None:
        lower = column.name.lower()
        source, target = Source.IMAGE, self.places.get(lower)
        for suffix, meant in ((OLD_SUFFIX, Source.OLD), (NEW_SUFFIX, Source.NEW)):
            if lower.endswith(suffix.lower()) and lower[: -len(suffix)] in self.places:
                source, target = meant, self.places[lower[: -len(suffix)]]
        if target is None:
            self._extra(place, column)
            return
        original = self.main.columns[target]
        is_key = target in self.key
        is_reference = source is not Source.IMAGE
        if is_reference and not _can_be_empty(column):
            details = (
                f"Old or new column reference {column.name} in table {self.name} is not nullable and doesn't have a"
                " default value"
            )
            self.fault(place, "old or new column reference is not nullable and has no default", details)
        elif not is_same_or_larger(original.type, column.type, is_key):
            details = (
                f"Column {column.name} has matching name to column {original.name} for table {self.main_name}, but"
                f" wrong type, {column.type!r} versus {original.type!r}"
            )
            self.fault(place, "matching name but wrong type", details)
        elif is_key:
            self._key_column(place, column, target, is_reference)
        elif not _can_be_empty(column):
            details = f"Data column {column.name} in table {self.name} is not nullable and doesn't have a default value"
            self.fault(place, "data column is not nullable and has no default", details)
        else:
            self.plan[place] = PlannedColumn(source, target)

    def _key_column(self, place: int, column: Column, target: int, is_reference: bool) -> None:
        if is_reference:
            details = (
                "Old or new values of primary key columns cannot be referenced since primary keys cannot be updated,"
                f" column {column.name} in table {self.name}"
            )
            self.fault(place, "old or new values of primary key columns cannot be referenced", details)
        elif column.nullable:
            details = f"Pk column {column.name} not declared not null in both tables"
            self.fault(place, "key column is nullable", details)
        elif target in self.referenced:
            details = f"Multiple references to the same key column {column.name} in table {self.name}"
            self.fault(place, "multiple references to the same key column", details)
        else:
            self.referenced.add(target)
            self.plan[place] = PlannedColumn(Source.KEY, target)
            if place != MANDATORY + self.key.index(target):
                self.is_extended = True

    def _extra(self, place: int, column: Column) -> None:
        if self.has_copies and MANDATORY <= place < MANDATORY + len(self.key):
            return  # a copy under another name: `finished` decides, when the form is known
        if not _can_be_empty(column):
            self._cannot_be_empty(place, column)
            return
        details = f"Column {column.name} in extension table {self.name} not found in {self.main_name}"
        text = f"exceptions table {self.name} has suspicious definition ((column {place}): {details}"
        self.notes.append(Finding("suspicious definition", text, column.name))

    def _cannot_be_empty(self, place: int, column: Column) -> None:
        details = f"Extra column {column.name} in table {self.name} is not nullable and doesn't have a default value"
        self.fault(place, "extra column is not nullable and has no default", details)

    def finished(self) -> tuple[PlannedColumn, ...]:
        """Return the source of each column, now that the form is known. In a plain table, only the key columns of the
        main table have values.
        """
        for number, target in reversed(list(enumerate(self.key))):
            place = MANDATORY + number
            if not self.has_copies or self.plan[place] is not None:
                continue
            if not self.is_extended:
                self.plan[place] = PlannedColumn(Source.KEY, target)
            else:
                column = self.table.columns[place]
                if not _can_be_empty(column) and all(fault.column != column.name for fault in self.faults):
                    self._cannot_be_empty(place, column)
        nothing = PlannedColumn(Source.DEFAULT)
        return tuple(
            nothing
            if each is None or (not self.is_extended and each.source in (Source.IMAGE, Source.OLD, Source.NEW))
            else each
            for each in self.plan
        )


def exceptions_definition(main: TableDefinition) -> TableDefinition:
    """Return the definition of an exceptions table: what was refused, why, and the key of the row."""
    first = (
        Column("NDB$server_id", t.UInt32),
        Column("NDB$master_server_id", t.UInt32),
        Column("NDB$master_epoch", t.UInt64),
        Column("NDB$count", t.UInt32),
    )
    columns = (
        *first,
        Column(OP_TYPE, t.Enum(*(each.name for each in OperationType))),
        Column(CFT_CAUSE, t.Enum(*(each.name for each in Cause))),
        Column(ORIG_TRANSID, t.UInt64, nullable=True),
        *(Column(main.columns[place].name, main.columns[place].type) for place in sorted(main.key_positions)),
    )
    return TableDefinition(0, 1, main.name + EXCEPTIONS_SUFFIX, columns, tuple(each.name for each in first))


def plan_exceptions(
    main: TableDefinition, exceptions: TableDefinition
) -> tuple[ExceptionsPlan | None, list[Finding], list[Finding]]:
    """Return (plan, faults, notes). With a fault there is no plan: conflicts are not recorded, but the conflict
    function stays active.
    """
    reader = _Reader(main, exceptions)
    if not reader.check_first():
        return None, reader.faults, reader.notes
    reader.check_rest()
    columns = reader.finished()
    reader.check_prefixes()
    if reader.faults:
        return None, reader.faults, reader.notes
    return ExceptionsPlan(exceptions, columns, reader.is_extended), [], reader.notes
