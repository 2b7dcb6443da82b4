"""Changes of a table's columns and names while it is in use (docs/internals/access.md, section 12).

Each change creates a definition of the next version, logs it completely, and makes it visible: first to kernels, in one
call, then by name. No row is rewritten. An invalid change is refused before anything has changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import SchemaInvalid, TableExists, Unsupported
from tidemark.engine.index.key_values import KeyShape
from tidemark.engine.programs.checks import check_definitions
from tidemark.engine.schema.column import ABSENT, Column, fresh
from tidemark.engine.schema.definition import DEFAULT_TABLESPACE, TableDefinition
from tidemark.engine.schema.expiry_definition import expiry_of
from tidemark.engine.schema.index_definition import IndexDefinition
from tidemark.engine.schema.names import alternatives, as_names, qualified_name
from tidemark.engine.schema.partition import (
    HashPartition,
    ListPartition,
    Partition,
    RangePartition,
    partition_from_json,
)
from tidemark.engine.schema.partition_words import partition_columns
from tidemark.engine.schema.row_shape import compute_layout
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    from tidemark.engine.programs.expressions import Expression
    from tidemark.engine.schema.check_definition import CheckDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.types import ColumnType


# --- definitions ----------------------------------------------------------------------------------
def _next(definition: TableDefinition, **fields: Any) -> TableDefinition:
    return replace(definition, version=definition.version + 1, **fields)


def _with(definition: TableDefinition, position: int, column: Column) -> TableDefinition:
    columns = definition.columns
    return _next(definition, columns=(*columns[:position], column, *columns[position + 1 :]))


def new_table(
    name: str,
    columns: Column | Iterable[Column],
    primary_key: str | Iterable[str],
    partition: Partition | None,
    tablespace: str | None,
    checks: Mapping[str, Expression] | None = None,
    expires: str | None = None,
) -> TableDefinition:
    """Return the definition of a new table. Raises: SchemaInvalid, InvalidName, LimitExceeded, TypeMismatch."""
    given = [columns] if isinstance(columns, Column) else columns
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise SchemaInvalid(f"columns of a table must be Column objects, got {shown(columns)}")
    key = as_names(primary_key, "primary_key")
    made = tuple(fresh(column) for column in given)
    parts = HashPartition() if partition is None else partition
    return TableDefinition(
        0, 1, name, made, tuple(key), parts, tablespace, checks=check_definitions(checks), expires=expires
    )


def as_new(definition: TableDefinition) -> TableDefinition:
    """Return the definition of a new table with the same columns, without indexes and the history of this one."""
    partition = definition.partition
    if isinstance(partition, (RangePartition, ListPartition)):
        partition = type(partition)(partition.columns, partition.partitions)
    columns = tuple(fresh(column) for column in definition.columns)
    # Every store creates the default tablespace with the first table that needs it.
    has_own = any(column.is_disk for column in columns) and definition.tablespace != DEFAULT_TABLESPACE
    return replace(
        definition,
        table_id=0,
        version=1,
        columns=columns,
        partition=partition,
        tablespace=definition.tablespace if has_own else None,
        indexes=(),
        dropped=(),
    )


def differences(found: TableDefinition, given: TableDefinition) -> list[str]:
    """Say where the definition of a table differs from one for a new table; [] if nowhere. Indexes do not count."""
    there, wanted = as_new(found), as_new(given)
    if there.to_json() == wanted.to_json():  # a default may be NaN, which does not equal itself
        return []
    said = []
    for what, theirs, ours in (("column", there.columns, wanted.columns), ("check", there.checks, wanted.checks)):
        has = {each.name: each for each in theirs}
        needs = {each.name: each for each in ours}
        for name in {**needs, **has}:
            if name not in has:
                said.append(f"it has no {what} {name!r}")
            elif name not in needs:
                said.append(f"it has a {what} {name!r}")
            elif needs[name] != has[name]:
                said.append(f"it has {has[name]!r}, not {needs[name]!r}")
    for part in fields(TableDefinition):
        left, right = getattr(there, part.name), getattr(wanted, part.name)
        if part.name not in ("columns", "checks") and left != right:
            said.append(f"its {part.name} is {left!r}, not {right!r}")
    return said or [f"the order of its columns is {', '.join(column.name for column in there.columns)}"]


def with_column(definition: TableDefinition, column: Column) -> TableDefinition:
    """Return the definition with a column added after the others. Raises: SchemaInvalid, Unsupported."""
    where = f"{definition.name}.{column.name}" if isinstance(column, Column) else definition.name
    if not isinstance(column, Column):
        raise SchemaInvalid(f"{where}: the column to add must be a Column, got {shown(column)}")
    if any(each.name == column.name for each in definition.columns):
        raise SchemaInvalid(
            f"{definition.name} has a column {column.name!r}; choose another name",
            table=definition.name,
            column=column.name,
        )
    if column.is_disk:
        raise Unsupported(
            f"{where}: a column added to a table is in memory; leave storage='disk' out, or create a new table"
        )
    if column.computed is not None:
        raise Unsupported(
            f"{where}: the rows that are there have no values of {column.default}; add the column nullable or with a"
            f" constant, then call set_default with {column.default}"
        )
    if column.missing is ABSENT:
        raise SchemaInvalid(f"{where} needs a default or nullable=True, for the rows that are there")
    added = replace(fresh(column), added=definition.version + 1, before=column.missing)
    return _next(definition, columns=(*definition.columns, added))


def without_column(definition: TableDefinition, name: str) -> TableDefinition:
    """Return the definition without a column, whose bytes stay in the rows. Raises: NoSuchColumn, SchemaInvalid."""
    position, column = definition.found(name)
    if name in definition.primary_key:
        raise SchemaInvalid(
            f"{definition.name}.{name} is part of the primary key and cannot be dropped; make a new table without it"
        )
    refuse_used(definition, name, (*definition.indexes, *definition.checks), "dropped")
    if definition.expiry is not None and definition.expiry.column == name:
        raise SchemaInvalid(
            f"rows of {definition.name} expire by column {name}, which cannot be dropped; call"
            f" set_expiry({definition.name!r}, None) first",
            table=definition.name,
            column=name,
        )
    places = [at for at, _ in definition.physical]
    dropped = sorted([*definition.dropped, (places.index(position), column)], key=lambda each: each[0])
    columns = definition.columns
    return _next(definition, columns=(*columns[:position], *columns[position + 1 :]), dropped=tuple(dropped))


def refuse_used(
    definition: TableDefinition, name: str, users: Iterable[IndexDefinition | CheckDefinition], what: str
) -> None:
    """Refuse to change a column of an index, or one that a check reads. Raises: SchemaInvalid."""
    for each in users:
        if name in each.columns:
            kind, use = ("index", "part of") if isinstance(each, IndexDefinition) else ("check", "read by")
            raise SchemaInvalid(
                f"{definition.name}.{name} is {use} {kind} {each.name} and cannot be {what}; drop the {kind} first",
                table=definition.name,
                column=name,
                **{kind: each.name},
            )


def with_check(definition: TableDefinition, check: CheckDefinition) -> TableDefinition:
    """Return the definition with one more check. Raises: SchemaInvalid, NoSuchColumn."""
    if any(each.name == check.name for each in definition.checks):
        raise SchemaInvalid(
            f"table {definition.name} has a check {check.name}; choose another name, or drop that check first",
            table=definition.name,
            check=check.name,
        )
    return _next(definition, checks=(*definition.checks, check))


def without_check(definition: TableDefinition, name: str) -> TableDefinition:
    """Return the definition without a check. Raises: SchemaInvalid if it has none of that name."""
    kept = tuple(each for each in definition.checks if each.name != name)
    if len(kept) == len(definition.checks):
        known = alternatives(name, (each.name for each in definition.checks))
        raise SchemaInvalid(
            f"table {definition.name} has no check {shown(name)}; {known}", table=definition.name, check=name
        )
    return _next(definition, checks=kept)


def with_expiry(definition: TableDefinition, expires: str | None) -> TableDefinition:
    """Return the definition with another expiry of its rows; None: never. Raises: SchemaInvalid, NoSuchColumn."""
    return _next(definition, expires=expires)


def _renamed_expiry(expires: str | None, old: str, new: str) -> str | None:
    found = None if expires is None else expiry_of(expires)
    return expires if found is None or found.column != old else str(replace(found, column=new))


def _renamed_partition(definition: TableDefinition, columns: tuple[Column, ...], old: str, new: str) -> Partition:
    value = definition.partition.to_json({column.name: column.type for column in definition.columns})
    if value.get("columns") is not None:
        value["columns"] = [new if each == old else each for each in value["columns"]]
    if value.get("modulo") == old:
        value["modulo"] = new
    return partition_from_json(value, {column.name: column.type for column in columns})


def with_renamed_column(definition: TableDefinition, old: str, new: str) -> TableDefinition:
    """Return the definition with a column renamed everywhere. Raises: NoSuchColumn, InvalidName, SchemaInvalid."""
    position, column = definition.found(old)
    renamed = replace(column, name=new)
    if any(each.name == new for each in definition.columns):
        raise SchemaInvalid(f"{definition.name} has a column {new!r}; choose another name", table=definition.name)
    columns = (*definition.columns[:position], renamed, *definition.columns[position + 1 :])
    return _next(
        definition,
        columns=columns,
        primary_key=tuple(new if each == old else each for each in definition.primary_key),
        partition=_renamed_partition(definition, columns, old, new),
        indexes=tuple(
            replace(index, columns=tuple(new if each == old else each for each in index.columns))
            for index in definition.indexes
        ),
        checks=tuple(check.renamed(old, new) for check in definition.checks),
        expires=_renamed_expiry(definition.expires, old, new),
    )


def with_name(definition: TableDefinition, name: str) -> TableDefinition:
    """Return the definition with another name, possibly in another database. Raises: InvalidName."""
    return _next(definition, name=qualified_name(name))


def with_default(definition: TableDefinition, name: str, default: Any) -> TableDefinition:
    """Return the definition with another default of a column for new rows, ABSENT for none. Raises: NoSuchColumn,
    SchemaInvalid.
    """
    position, column = definition.found(name)
    return _with(definition, position, replace(column, default=default))


def is_in_place(definition: TableDefinition, name: str, kind: ColumnType, nullable: bool) -> bool:
    """Whether a column gets a wider type without other bytes in its rows. Raises: NoSuchColumn."""
    _, column = definition.found(name)
    is_same = name in definition.primary_key or column.type == kind or column.type.can_become(kind)
    return is_same and column.nullable >= nullable


def with_wider_column(
    definition: TableDefinition, name: str, kind: ColumnType, nullable: bool = False
) -> TableDefinition:
    """Return the definition with a column of a type that takes more values, and NULL if `nullable`. Raises:
    NoSuchColumn, SchemaInvalid, Unsupported.
    """
    position, column = definition.found(name)
    if not column.type.widens_to(kind):
        raise SchemaInvalid(
            f"{definition.name}.{name} is {column.type!r}, and {shown(kind)} does not hold all its values; an integer"
            " takes a longer integer, a Float32 a Float64, a Decimal one with no fewer digits before and after the"
            " point, a Char a longer Char, VarChar or Text, a VarChar a longer VarChar or Text, a VarBinary likewise,"
            " an Enum more members after its own",
            table=definition.name,
            column=name,
        )
    if name in definition.primary_key:
        _check_wider_key(definition, column, kind, nullable)
    elif column.is_disk:
        raise Unsupported(
            f"{definition.name}.{name} is a disk column and cannot be widened; copy the rows into a new table with the"
            " wider column",
            table=definition.name,
            column=name,
        )
    if is_in_place(definition, name, kind, nullable):
        after = _with(definition, position, replace(column, type=kind))
    else:
        after = with_moved_column(with_hidden_column(definition, name, kind, nullable), name, kind, nullable)
    for index in renewed_indexes(definition, after):
        KeyShape(after, compute_layout(after), index.columns)  # raises if the key may be too long
    return after


def renewed_indexes(before: TableDefinition, after: TableDefinition) -> tuple[IndexDefinition, ...]:
    """Return the indexes that read other bytes in the next version of a definition, where a column has got wider."""
    known = {index.name: _read_by(before, index) for index in before.indexes}
    return tuple(each for each in after.indexes if each.name in known and known[each.name] != _read_by(after, each))


def _read_by(definition: TableDefinition, index: IndexDefinition) -> tuple[object, ...]:
    """Return what an index reads of each of its columns: where it is, its type, and whether it may be NULL."""
    live = len(definition.columns)
    places = {column.name: at for at, (position, column) in enumerate(definition.physical) if position < live}
    known = {column.name: column for column in definition.columns}
    return tuple((places[name], known[name].type, known[name].nullable) for name in index.columns)


def _check_wider_key(definition: TableDefinition, column: Column, kind: ColumnType, nullable: bool) -> None:
    """Check that keys of the wider type have the same bytes, and the same partitions. Raises: SchemaInvalid,
    Unsupported.
    """
    where, partition = f"{definition.name}.{column.name}", definition.partition
    if nullable:
        raise SchemaInvalid(f"{where} is part of the primary key and is never NULL", table=definition.name)
    if not column.type.key_becomes(kind):
        raise Unsupported(
            f"{where} is part of the primary key, and keys of {kind!r} have other bytes than those of {column.type!r};"
            " make a new table"
        )
    is_plain = type(partition) is HashPartition and partition.modulo is None and partition.columns is None
    if not is_plain and column.name in partition_columns(definition):
        raise Unsupported(f"{where} decides about the partition of a row and cannot be widened; make a new table")


def _hidden(column: Column, kind: ColumnType, nullable: bool) -> Column:
    """Return the column that takes the values of a column while it gets wider; rows without it have NULL."""
    is_nullable = nullable or column.nullable
    return replace(column, type=kind, nullable=is_nullable, default=ABSENT, added=1, before=None, shown=0)


def _hidden_place(definition: TableDefinition, name: str, kind: ColumnType, nullable: bool) -> int | None:
    wanted = _hidden(definition.found(name)[1], kind, nullable)
    found = (at for at, each in definition.dropped if each.added and replace(each, added=1) == wanted)
    return next(found, None)


def with_hidden_column(definition: TableDefinition, name: str, kind: ColumnType, nullable: bool) -> TableDefinition:
    """Return the definition with a place after all others for the values of a column that gets wider, among the dropped
    columns; the same definition if there is such a place. Raises: NoSuchColumn, SchemaInvalid.
    """
    if _hidden_place(definition, name, kind, nullable) is not None:
        return definition
    made = replace(_hidden(definition.found(name)[1], kind, nullable), added=definition.version + 1)
    return _next(definition, dropped=(*definition.dropped, (len(definition.physical), made)))


def with_shown_column(
    definition: TableDefinition, name: str, kind: ColumnType, nullable: bool
) -> tuple[TableDefinition, str]:
    """Return the same version with the hidden column among the others, and its name there. Raises: SchemaInvalid."""
    at, hidden = _found_hidden(definition, name, kind, nullable)
    names = {column.name for column in definition.columns}
    own = next(each for number in range(len(names) + 1) if (each := f"wider {number}") not in names)
    # Before those that were added since: without dropped columns, the order is that of the places.
    older = sum(column.added <= hidden.added for column in definition.columns)
    made = replace(hidden, name=own, nullable=True)
    columns = (*definition.columns[:older], made, *definition.columns[older:])
    return replace(definition, columns=columns, dropped=_without(definition.dropped, at)), own


def with_moved_column(definition: TableDefinition, name: str, kind: ColumnType, nullable: bool) -> TableDefinition:
    """Return the definition in which the hidden column has the name and the position of a column, whose place is among
    those of dropped ones. Raises: SchemaInvalid.
    """
    position, column = definition.found(name)
    at, hidden = _found_hidden(definition, name, kind, nullable)
    moved = replace(hidden, default=column.default, shown=definition.version + 1)
    place = [each for each, _ in definition.physical].index(position)
    dropped = sorted([*_without(definition.dropped, at), (place, column)], key=lambda each: each[0])
    columns = (*definition.columns[:position], moved, *definition.columns[position + 1 :])
    return _next(definition, columns=columns, dropped=tuple(dropped))


def _found_hidden(definition: TableDefinition, name: str, kind: ColumnType, nullable: bool) -> tuple[int, Column]:
    place = _hidden_place(definition, name, kind, nullable)
    if place is None:
        raise SchemaInvalid(
            f"{definition.name}.{name} was changed while it was being widened; try again",
            table=definition.name,
            column=name,
        )
    return place, dict(definition.dropped)[place]


def _without(dropped: tuple[tuple[int, Column], ...], place: int) -> tuple[tuple[int, Column], ...]:
    return tuple(each for each in dropped if each[0] != place)


def is_change_of_columns(before: TableDefinition, after: TableDefinition) -> bool:
    """Whether changes of this module can turn one definition into another: rows of the old one fit the new one."""
    if (before.table_id, before.tablespace) != (after.table_id, after.tablespace):
        return False
    if before.partition.numbers != after.partition.numbers or len(before.indexes) != len(after.indexes):
        return False
    olds, news = [column for _, column in before.physical], [column for _, column in after.physical]
    grown = len(news) - len(olds)
    shown = {at for at, column in enumerate(news) if column.shown == after.version}
    if not {at for at, _ in before.dropped} <= {at for at, _ in after.dropped} | shown:
        return False
    if not 0 <= grown <= 1 or any(column.added != after.version for column in news[len(olds) :]):
        return False
    return all(
        (old.nullable, old.storage, old.added, old.to_json().get("before"))
        == (new.nullable, new.storage, new.added, new.to_json().get("before"))
        and (
            old.type == new.type
            or old.type.can_become(new.type)
            or (old.name in before.primary_key and old.type.key_becomes(new.type))
        )
        for old, new in zip(olds, news, strict=False)
    )


# --- in the store ---------------------------------------------------------------------------------
def change_columns(
    store: Store, name: str, change: Callable[[TableDefinition], TableDefinition], column: str | None = None
) -> None:
    """Change the columns or the name of a table. Durable on return. Raises: NoSuchTable, and errors of `change`.

    column: a column that must not be in an index being built, nor be read by a check being added.
    """
    with store.schema.changing():
        table = store.tables.named(name)
        after = change(table.definition)
        if column is not None:
            building = [each.definition for each in table.building]
            refuse_used(table.definition, column, (*building, *table.announced), "changed")
        if after.name != table.name and after.name in store.tables.by_name:
            raise TableExists(
                f"table {after.name} exists; choose another name, or drop that table first", table=after.name
            )
        view = table.altered(after)
        if view.format.numbered is not None:
            store.sequences.look_again(table.table_id)  # until now rows brought numbers that no call saw
        publish_columns(store, table, view)


def publish_columns(store: Store, table: Table, view: Table) -> None:
    """Log a version of a table that differs in columns, and show it. Durable on return. Raises: as `SchemaLog.log`."""
    change = {"alter": json.loads(view.definition.to_json())}
    store.schema.log(change, lambda: store.tables.replace(table, view))
