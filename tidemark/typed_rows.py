"""Tables whose rows are objects of a dataclass or a `TypedDict` of the caller's: `db.table("t", Account)`."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import types
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NotRequired,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

from tidemark.calls import has_calls_of
from tidemark.derived import passed
from tidemark.engine import types as column_types
from tidemark.engine.base.errors import SchemaInvalid, TypeMismatch
from tidemark.engine.queries.missing_rows import DROP, Missing
from tidemark.engine.rows.column_output import python_columns
from tidemark.engine.rows.row import Row, is_attribute
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.computed import Computed
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import alternatives, with_short_names
from tidemark.engine.types import ColumnType
from tidemark.engine.types.base import shown
from tidemark.scans import Progress
from tidemark.table_reads import Bounds, TableReads, Where

R = TypeVar("R")
Handle = TypeVar("Handle")
# The column type that a Python type has unless an annotation names another.
TYPES: dict[Any, ColumnType] = {
    int: column_types.Int64,
    float: column_types.Float64,
    str: column_types.Text,
    bytes: column_types.Blob,
    bool: column_types.Bool,
    datetime.date: column_types.Date,
    datetime.time: column_types.Time,
    datetime.datetime: column_types.DateTime,
    uuid.UUID: column_types.UUID,
    dict: column_types.JSON,
    list: column_types.JSON,
}


class Field(NamedTuple):
    """A field of a class of rows: its Python type without None, the column type that its annotation names, or None."""

    name: str
    python: Any
    named: ColumnType | None
    nullable: bool
    default: Any


def fields_of(kind: type) -> list[Field]:
    """Return the fields of a dataclass or TypedDict. Raises: SchemaInvalid."""
    defaults: dict[str, Any] = {}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        for each in dataclasses.fields(kind):
            if not each.init:
                raise SchemaInvalid(
                    f"{kind.__name__}.{each.name} is no argument of {kind.__name__}(); leave out init=False"
                )
            defaults[each.name] = each.default
            if each.default is dataclasses.MISSING or each.default is None:
                defaults[each.name] = ABSENT
    elif is_typeddict(kind):
        defaults = dict.fromkeys(kind.__annotations__, ABSENT)
    else:
        raise SchemaInvalid(f"a class of rows is a dataclass or a TypedDict, got {shown(kind)}")
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise SchemaInvalid(f"an annotation of {kind.__name__} has an unknown name: {error}") from error
    # With text annotations, `__optional_keys__` lacks the keys that are NotRequired.
    if getattr(kind, "__optional_keys__", None) or any(get_origin(hint) is NotRequired for hint in hints.values()):
        raise SchemaInvalid(f"every key of {kind.__name__} must be required; a row has all of them")
    return [_field(kind.__name__, name, hints[name], default) for name, default in defaults.items()]


def _field(owner: str, name: str, hint: Any, default: Any) -> Field:
    named: ColumnType | None = None
    nullable = False
    while True:
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            named = next((each for each in extras if isinstance(each, ColumnType)), named)
        elif get_origin(hint) in (Union, types.UnionType) and types.NoneType in get_args(hint):
            others = [each for each in get_args(hint) if each is not types.NoneType]
            if len(others) != 1:
                break
            hint, nullable = others[0], True
        elif hasattr(hint, "__supertype__"):  # of NewType
            hint = hint.__supertype__
        elif get_origin(hint) in TYPES:  # dict[str, int]
            hint = get_origin(hint)
        else:
            break
    is_any = named is not None and named.python is object
    if hint not in (*TYPES, decimal.Decimal) and not is_any:
        known = ", ".join(each.__name__ for each in TYPES)
        raise SchemaInvalid(f"{owner}.{name}: a field is of one of {known}, Decimal, or that | None, got {shown(hint)}")
    if named is not None and named.python is not hint and not is_any:
        raise SchemaInvalid(f"{owner}.{name}: values of {named!r} are {named.python.__name__}, not {hint.__name__}")
    return Field(name, hint, named, nullable, default)


def columns_of(kind: type) -> list[Column]:
    """Return the columns of a table for rows of a class. Raises: SchemaInvalid."""
    made = []
    for field in fields_of(kind):
        column_type = field.named or TYPES.get(field.python)
        if column_type is None:
            raise SchemaInvalid(
                f"{kind.__name__}.{field.name}: a Decimal column needs its digits; write"
                " Annotated[Decimal, tm.Decimal(10, 2)]"
            )
        is_numbered = isinstance(field.default, Computed) and field.default.is_numbered
        made.append(Column(field.name, column_type, field.nullable and not is_numbered, field.default))
    return made


def check_class(kind: type, definition: TableDefinition) -> tuple[str, ...]:
    """Return the names of the fields of a class whose objects can be rows of a table. Raises: SchemaInvalid."""
    table, fields = definition.name, fields_of(kind)
    columns = {column.name: column for column in definition.columns}
    for field in fields:
        column, where = columns.get(field.name), f"{kind.__name__}.{field.name}"
        if column is None:
            raise SchemaInvalid(
                f"{where}: {table} has no such column; {alternatives(field.name, columns)}", table=table
            )
        wanted = column.type.python
        if wanted not in (field.python, object):
            raise SchemaInvalid(
                f"{where} is {field.python.__name__}, and values of {table}.{field.name} are {wanted.__name__}",
                table=table,
            )
        is_numbered = column.computed is not None and column.computed.is_numbered  # None: the store gives a number
        if field.nullable != column.nullable and not is_numbered:
            may = "may be NULL: add | None" if column.nullable else "is never NULL: leave out | None"
            raise SchemaInvalid(f"{where}: {table}.{field.name} {may}", table=table)
    missing = [name for name in columns if name not in {field.name for field in fields}]
    if missing:
        raise SchemaInvalid(f"{kind.__name__} has no field for {', '.join(missing)} of {table}; add it", table=table)
    return tuple(field.name for field in fields)


class TypedReads(Generic[R]):
    """What tables with a class of rows have in common: the calls that read."""

    def __init__(self, handle: Any, kind: type[R]) -> None:
        """Raises: SchemaInvalid if the class does not agree with the table."""
        self.handle = handle
        self._kind = kind
        self._names = check_class(kind, handle.definition)
        self._is_mapping = is_typeddict(kind)
        self._make = _maker(kind, self._names)
        self._pick = _picker(self._names)

    @property
    def name(self) -> str:
        """The qualified name of the table."""
        return str(self.handle.name)

    @property
    def definition(self) -> TableDefinition:
        """The table's definition."""
        found: TableDefinition = self.handle.definition
        return found

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns: each has `name`, `type`, `nullable`, `default` and `storage`."""
        return self.definition.columns

    def get(self, key: Any, *, index: str | None = None) -> R | None:
        """Return the row with this key, or None."""
        row = self.handle.get(key) if index is None else self.handle.get(key, index=index)
        return None if row is None else self._make(self._pick(row))

    def scan(
        self,
        where: Where = None,
        limit: int | None = None,
        partitions: Sequence[str] | None = None,
        *,
        progress: Progress | None = None,
        **bounds: Unpack[Bounds],
    ) -> Iterator[R]:
        """Iterate over the rows that a condition accepts. The arguments are those of `TableHandle.scan`."""
        found = self.handle.scan(list(self._names), limit, partitions, where, progress=progress, **bounds)
        return map(self._make, found)

    @overload
    def get_many(self, keys: Any, *, index: str | None = None, missing: Literal["drop"] = "drop") -> list[R]: ...
    @overload
    def get_many(self, keys: Any, *, index: str | None = None, missing: Literal["null"]) -> list[R | None]: ...
    def get_many(self, keys: Any, *, index: str | None = None, missing: Missing = DROP) -> Any:
        """Return the rows with these keys, in the order of the keys. Keys without a row are left out, or with
        `missing="null"` have None in their place.
        """
        return self._listed(self.handle.get_many(keys, list(self._names), index=index, missing=missing))

    def _listed(self, found: Any) -> Any:
        """Return rows as a list of objects, with None in place of a row without a key."""
        definition = self.definition
        key = found.column(definition.primary_key[0])
        rows = zip(*python_columns(found, definition), strict=True)
        if not key.null_count:
            return [self._make(values) for values in rows]
        is_there = key.is_valid().to_pylist()
        return [self._make(values) if is_row else None for values, is_row in zip(rows, is_there, strict=True)]

    # calls: python -m tools.make_faces
    explain = passed(TableReads.explain, "handle")
    count = passed(TableReads.count, "handle")
    sum = passed(TableReads.sum, "handle")
    min = passed(TableReads.min, "handle")
    max = passed(TableReads.max, "handle")
    mean = passed(TableReads.mean, "handle")
    aggregate = passed(TableReads.aggregate, "handle")
    sample = passed(TableReads.sample, "handle")
    to_arrow = passed(TableReads.to_arrow, "handle")
    to_pandas = passed(TableReads.to_pandas, "handle")
    to_polars = passed(TableReads.to_polars, "handle")
    to_numpy = passed(TableReads.to_numpy, "handle")
    dataset = passed(TableReads.dataset, "handle")
    scan_polars = passed(TableReads.scan_polars, "handle")

    def __getitem__(self, key: Any) -> R:
        return self._make(self._pick(self.handle[key]))

    def __contains__(self, key: Any) -> bool:
        return key in self.handle

    def __iter__(self) -> Iterator[R]:
        return self.scan()

    def __len__(self) -> int:
        return len(self.handle)

    def __repr__(self) -> str:
        return f"{repr(self.handle)[:-1]} as {self._kind.__name__}>"

    def _repr_html_(self) -> str | None:
        shown_as: str | None = self.handle._repr_html_()
        return shown_as


@has_calls_of("typed snapshot table")
class TypedSnapshotTable(TypedReads[R]):
    """A table of a snapshot whose rows are objects of a class: what `snapshot.table(name, kind)` returns. It has the
    reading calls of a `TypedTable`, and raises as that and as a `SnapshotTable`.

    Examples:
        >>> from typing import TypedDict
        >>> Item = TypedDict("Item", {"id": int, "name": str, "stock": int})
        >>> with db.snapshot() as before:
        ...     db["item"].delete(1)
        ...     item = before.table("item", Item)
        ...     item[1]["name"], item.count(), [row["id"] for row in item.scan(tm.col("stock") < 6)]
        True
        ('pen', 3, [2, 3])
    """


class TypedWrites(TypedReads[R]):
    """What they have in common that can be changed: the calls that take rows."""

    def _values(self, row: R) -> Mapping[str, Any]:
        if self._is_mapping and isinstance(row, Mapping):
            return row
        if self._is_mapping or not isinstance(row, self._kind):
            raise TypeMismatch(f"{self.name}: rows of this handle are {self._kind.__name__}, got {shown(row)}")
        return {name: value for name in self._names if not isinstance(value := getattr(row, name), Computed)}

    def insert(self, row: R) -> int | None:
        """Insert one row; return its number in a table with an autoincrement column, else None."""
        number: int | None = self.handle.insert(self._values(row))
        return number

    def write(self, row: R) -> int | None:
        """Insert one row, or replace the row with its key; return as `insert`."""
        number: int | None = self.handle.write(self._values(row))
        return number

    def insert_many(self, rows: Iterable[R], progress: Progress | None = None) -> int:
        """Insert all rows, or none; return how many."""
        return int(self.handle.insert_many(map(self._values, rows), progress))

    def write_many(self, rows: Iterable[R], progress: Progress | None = None) -> int:
        """Insert all rows, or replace those with their keys, or none on an error; return how many."""
        return int(self.handle.write_many(map(self._values, rows), progress))

    def upsert(self, row: R, set: Mapping[str, Any] | None = None, index: str | None = None) -> bool:
        """Insert a row, or update the row with its key; return True if it was inserted."""
        return bool(self.handle.upsert(self._values(row), set, index))

    def upsert_many(
        self,
        rows: Iterable[R],
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Upsert all rows, or none on an error; return how many were inserted."""
        return int(self.handle.upsert_many(map(self._values, rows), set, index, progress))

    def __setitem__(self, key: Any, row: R) -> None:
        self.handle[key] = self._values(row)

    def __delitem__(self, key: Any) -> None:
        del self.handle[key]


class NamedTables(ABC, Generic[Handle]):
    """What returns its tables by their names."""

    @abstractmethod
    def __getitem__(self, name: str) -> Handle: ...

    @abstractmethod
    def tables(self, system: bool = False) -> list[str]:
        """Return the names of the tables."""

    def _ipython_key_completions_(self) -> list[str]:
        return with_short_names(self.tables())


class SnapshotTables(NamedTables[Handle]):
    """A snapshot, which returns its tables."""

    @overload
    def table(self, name: str) -> Handle: ...

    @overload
    def table(self, name: str, kind: type[R]) -> TypedSnapshotTable[R]: ...

    def table(self, name: str, kind: type[R] | None = None) -> Handle | TypedSnapshotTable[R]:
        """Return a table, also as `snapshot[name]`, even if it was dropped since; with a class, one whose rows are
        objects of it.

        Args:
            name: "database.table"; "table" alone is "main.table".
            kind: A dataclass or a `TypedDict`, as for `Database.table`.

        Raises: NoSuchTable, SnapshotClosed, SnapshotTooOld, StoreFailed; SchemaInvalid if the class does not agree with
        the table.

        Examples:
            >>> with db.snapshot() as snapshot:
            ...     db.drop_table("item")
            ...     snapshot.table("item").sum("stock")
            15
        """
        return self[name] if kind is None else TypedSnapshotTable(self[name], kind)


def _picker(names: tuple[str, ...]) -> Callable[[Any], Iterable[Any]]:
    """Return a function that returns the values of these columns of a row. Raises: NoSuchColumn."""

    def by_name(row: Any) -> list[Any]:
        return [row[name] for name in names]

    # A name that every row has as an attribute would not be missed when its column is dropped.
    if len(names) < 2 or not all(is_attribute(name) and not hasattr(Row, name) for name in names):
        return by_name
    attributes = attrgetter(*names)

    def by_attribute(row: Any) -> Iterable[Any]:
        try:
            found: tuple[Any, ...] = attributes(row)
        except AttributeError:
            return by_name(row)
        return found

    return by_attribute


def _maker(kind: type[R], names: tuple[str, ...]) -> Callable[[Iterable[Any]], R]:
    if is_typeddict(kind):
        return lambda values: dict(zip(names, values, strict=True))  # type: ignore[return-value]
    if any(each.kw_only for each in dataclasses.fields(kind)):  # type: ignore[arg-type]
        return lambda values: kind(**dict(zip(names, values, strict=True)))
    return lambda values: kind(*values)
