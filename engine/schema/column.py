"""Columns of a table, and what partitions and layouts use of all of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from tidemark.engine.base.errors import Rejected, SchemaInvalid
from tidemark.engine.schema.computed import Computed, computed_named
from tidemark.engine.schema.names import check_name, no_such_column
from tidemark.engine.types import ColumnType, from_json, value_from_json, value_to_json
from tidemark.engine.types.base import name_of, shown

MEMORY = "memory"
DISK = "disk"
STORAGES = (MEMORY, DISK)


class _Absent:
    """The type of ABSENT, the default of a column without one; copies and unpickled values are the same object."""

    def __reduce__(self) -> str:
        return "ABSENT"

    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Final = _Absent()

# What a Python type in place of a column type stands for.
_MEANT = {
    "int": "tm.Int64",
    "float": "tm.Float64",
    "bool": "tm.Bool",
    "str": "tm.Text or tm.VarChar(40)",
    "bytes": "tm.Blob or tm.VarBinary(40)",
    "Decimal": "tm.Decimal(10, 2)",
    "date": "tm.Date",
    "time": "tm.Time",
    "datetime": "tm.DateTime or tm.Timestamp",
    "UUID": "tm.UUID",
    "dict": "tm.JSON",
    "list": "tm.JSON",
}


# Parameters of the types that need them, as an example.
_PARAMETERS = {
    "Decimal": "(10, 2)",
    "Enum": "('new', 'done')",
    "Char": "(2)",
    "VarChar": "(40)",
    "Binary": "(16)",
    "VarBinary": "(40)",
}


def _refused(given: object) -> str:
    """Return what was given in place of a column type, and what to write."""
    if isinstance(given, type) and issubclass(given, ColumnType):
        name = given.__name__
        return f"the class {name}; call it with its parameters, as tm.{name}{_PARAMETERS.get(name, '(...)')}"
    name = given.__name__ if isinstance(given, type) else given if isinstance(given, str) else ""
    meant = _MEANT.get(name) or ((named := name_of(name)) and f"tm.{named}{_PARAMETERS.get(named, '')}")
    return shown(given) + (f"; use {meant}" if meant else "")


@dataclass(frozen=True, eq=False, repr=False)
class Column:
    """A column: name, type, whether NULL is allowed, the default, and where values are stored.

    If a row leaves out a column without a default, its value is NULL if the column is nullable; else NotNullViolation
    is raised. `storage` is "memory", or "disk": on pages of the table's tablespace, read through a cache. Key columns
    are in memory. Columns are equal if their JSON is: a default of NaN equals itself, and a default of 0.0 does not
    equal -0.0.

    A default may be computed for each row that leaves the column out: `tm.now` in UTC (Timestamp, DateTime, Date, Time;
    one moment for all rows of a call), `tm.uuid7` (UUID), and `tm.autoincrement` for one integer column of the primary
    key, which gives the next number also for None. The row that is stored has the value.

    Raises: InvalidName; SchemaInvalid for any other argument.

    Examples:
        >>> columns = [tm.Column("id", tm.Int64), tm.Column("note", tm.Text, nullable=True)]
        >>> task = db.create_table("task", [*columns, tm.Column("hours", tm.Int32, default=0)], "id")
        >>> task.insert({"id": 1})
        >>> task[1]
        Row(id=1, note=None, hours=0)
        >>> key = tm.Column("id", tm.Int64, default=tm.autoincrement)
        >>> visit = db.create_table("visit", [key, tm.Column("at", tm.Timestamp, default=tm.now)], "id")
        >>> visit.insert({}), visit.insert({})
        (1, 2)
    """

    name: str
    type: ColumnType
    nullable: bool = False
    default: Any = field(default=ABSENT)
    storage: str = MEMORY
    # Set by the store: the schema version that added the column to a table with rows (0: a column of the first
    # version), and the value of older rows, which stays when the default changes.
    added: int = field(default=0, kw_only=True)
    before: Any = field(default=ABSENT, kw_only=True)
    # The schema version in which it took the place of a narrower column (0: never).
    shown: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_name(self.name, "column")
        if not isinstance(self.type, ColumnType):  # a caller may pass any object
            raise SchemaInvalid(f"column {self.name!r} needs a column type, got {_refused(self.type)}")
        if not isinstance(self.nullable, bool):
            raise SchemaInvalid(f"column {self.name!r}: nullable must be True or False, got {shown(self.nullable)}")
        if self.storage not in STORAGES:
            raise SchemaInvalid(f"column {self.name!r}: storage must be one of {STORAGES}, got {shown(self.storage)}")
        if self.default is None and not self.nullable:
            raise SchemaInvalid(f"column {self.name!r} is not nullable and cannot have the default None")
        if self.computed is not None:
            self._check_computed(self.computed)
        elif self.has_default and self.default is not None:
            try:
                kept = self.type.loaded(self.type.stored(self.default))
            except Rejected as error:
                raise SchemaInvalid(f"default of column {self.name!r} {error.message}") from error
            object.__setattr__(self, "default", kept)

    def _check_computed(self, default: Computed) -> None:
        if self.type not in default.types:
            known = ", ".join(map(repr, default.types))
            raise SchemaInvalid(f"column {self.name!r} is {self.type!r}; {default} fills {known}")
        if default.is_numbered and self.nullable:
            raise SchemaInvalid(f"column {self.name!r} is numbered by {default} and is never NULL; leave out nullable")

    def __repr__(self) -> str:
        """The call that makes it."""
        nullable = ", nullable=True" if self.nullable else ""
        default = f", default={self.default!r}" if self.has_default else ""
        storage = f", storage={self.storage!r}" if self.is_disk else ""
        return f"Column({self.name!r}, {self.type!r}{nullable}{default}{storage})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Column) and (self is other or self._canonical == other._canonical)

    def __hash__(self) -> int:
        return hash(self._canonical)

    @cached_property
    def _canonical(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True)

    @property
    def has_default(self) -> bool:
        """True if a default was declared (None counts)."""
        return self.default is not ABSENT

    @property
    def computed(self) -> Computed | None:
        """The default if it is computed for each row, else None."""
        return self.default if isinstance(self.default, Computed) else None

    @property
    def is_disk(self) -> bool:
        """True if its values are on pages of a tablespace."""
        return self.storage == DISK

    @property
    def in_var(self) -> bool:
        """True if its values are in a var part: by its type, or because it was added (D1)."""
        return self.added > 0 or self.type.is_var

    @property
    def when_absent(self) -> Any:
        """The value of rows whose var part ends before the column."""
        return self.before if self.added else self.missing

    @property
    def missing(self) -> Any:
        """The value of a column that is left out: its default, which may be a Computed, None if nullable, ABSENT if it
        must be given.
        """
        return None if self.default is ABSENT and self.nullable else self.default

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `column_from_json` turns into an equal column."""
        value = {
            "name": self.name,
            "nullable": self.nullable,
            "storage": self.storage,
            "type": self.type.to_json(),
        }
        if self.computed is not None:
            value["computed"] = self.computed.name
        elif self.has_default:
            value["default"] = None if self.default is None else value_to_json(self.type.stored(self.default))
        if self.added:
            value["added"] = self.added
            value["before"] = None if self.before is None else value_to_json(self.type.stored(self.before))
        if self.shown:
            value["shown"] = self.shown
        return value


def fresh(column: Any) -> Any:
    """Return a column without the fields that another table set, and any other object as it is, for a later check."""
    return replace(column, added=0, before=ABSENT, shown=0) if isinstance(column, Column) else column


def column_from_json(value: Any) -> Column:
    """Return the column that `Column.to_json` described. Raises: SchemaInvalid if the value is not a column."""
    try:
        kind = from_json(value["type"])
        default = value_from_json(kind, value["default"]) if "default" in value else ABSENT
        if "computed" in value:
            default = computed_named(value["computed"])
        added = value.get("added", 0)
        before = value_from_json(kind, value["before"]) if added else ABSENT
        since = {"added": added, "before": before, "shown": value.get("shown", 0)}
        return Column(value["name"], kind, value["nullable"], default, value["storage"], **since)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise SchemaInvalid(f"not a column: {shown(value)}") from error


class Columns:
    """The columns of a table, as partitions and layouts use them; `TableDefinition` has the rest."""

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    dropped: tuple[tuple[int, Column], ...]

    @property
    def physical(self) -> tuple[tuple[int, Column], ...]:
        """All columns for which rows have bytes, in order of creation, each with its position in `columns`; dropped
        columns have positions past the last. A column that took the place of a narrower one is among later ones.
        """
        if not self.dropped:
            return tuple(enumerate(self.columns))
        gone = {at: (len(self.columns) + number, column) for number, (at, column) in enumerate(self.dropped)}
        live = iter(sorted(enumerate(self.columns), key=lambda each: each[1].added))
        return tuple(gone[at] if at in gone else next(live) for at in range(len(self.columns) + len(self.dropped)))

    @property
    def format_version(self) -> int:
        """The version in which the columns of images last changed: the newest added, or in the place of another."""
        return max((max(column.added, column.shown) for _, column in self.physical), default=0)

    @property
    def has_disk(self) -> bool:
        """True if a column is or was on disk: rows keep their disk part after the column is dropped."""
        return any(column.is_disk for _, column in self.physical)

    @property
    def key_positions(self) -> tuple[int, ...]:
        """Positions of the key columns in `columns`, in key order."""
        return tuple(self.position(name) for name in self.primary_key)

    def found(self, name: object) -> tuple[int, Column]:
        """Return the position of a column in `columns`, and the column. Raises: NoSuchColumn."""
        for position, column in enumerate(self.columns):
            if column.name == name:
                return position, column
        raise no_such_column(self.name, name, (column.name for column in self.columns))

    def position(self, name: str) -> int:
        """Return the position of a column in `columns`. Raises: ValueError if there is none."""
        return [column.name for column in self.columns].index(name)
