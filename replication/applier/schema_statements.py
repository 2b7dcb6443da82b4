"""Incoming schema changes: statements of a binlog become changes of the store, in their order.

A statement may be executed again, after a crash between its last change and the write of the position after it. So a
create is skipped if an equal object exists, and a drop if the object does not exist; an object that differs stops the
applier. Each change is durable when the next begins; indexes are complete when the call returns.

Objects local to a site stay: tables of the database `mysql` are not touched, tablespaces are not created.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.engine.base.errors import (
    IndexExists,
    NoSuchColumn,
    NoSuchTable,
    NoSuchTablespace,
    SchemaInvalid,
    TableExists,
    Unsupported,
)
from tidemark.engine.schema.check_definition import CheckDefinition
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.index_definition import IndexDefinition
from tidemark.engine.schema.partition import ListPartition, RangePartition
from tidemark.engine.store.column_move import widen_column
from tidemark.engine.store.schema_changes import (
    as_new,
    change_columns,
    with_check,
    with_column,
    with_default,
    with_expiry,
    with_name,
    with_renamed_column,
    without_check,
    without_column,
)
from tidemark.replication.injector.schema_events import SchemaOperation, SchemaStatement, is_local, is_same_default
from tidemark.replication.settings.any_value import NO_LOGGING
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.column_types import value_of
from tidemark.replication.sql.parse import parse, typed_bound
from tidemark.replication.sql.tokens import Literal

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store

_log = logging.getLogger("tidemark.applier")
T = TypeVar("T", CheckDefinition, Column, IndexDefinition)


def apply_statement(store: Store, database: str, text: str, author: int = 0) -> int:
    """Execute a statement of a binlog; return the number of changes it made, 0 if all of them were made before.

    `database` qualifies names without one. `author` is the id of the site that the statement comes from; records of the
    changes have it, so that they are not sent back there. Durable on return: all changes.

    Raises: Unsupported for a statement that is not replicated; TableExists, IndexExists if the store has a different
    object of that name; SchemaInvalid, NoSuchTable, NoSuchColumn, NoSuchTablespace, DuplicateKey, LockTimeout,
    MemoryExhausted, RedoOverloaded, StoreFailed.
    """
    statements = [each for each in parse(text, database) if not isinstance(each, s.NoEffect)]
    _refuse_circle(statements, text)
    with store.schema.authored(author):
        return sum(_execute(store, each) for each in _renamed_already(store, statements))


def schema_entries_of(store: Store, database: str, text: str) -> list[SchemaStatement]:
    """Return the entries of `ndb_schema` for a statement that has been executed here: one for each changed table."""
    found = []
    for each in parse(text, database):
        name = s.table_of(each)
        if not name or is_local(name):
            continue
        now = store.tables.by_name.get(each.to if isinstance(each, s.RenameTable) else name)
        number, version = (0, 0) if now is None else (now.definition.table_id, now.definition.version)
        operation = _OPERATIONS.get(type(each), SchemaOperation.ALTER_TABLE)
        found.append(SchemaStatement(name.partition(".")[0], text, name, operation, number, version))
    return found


_OPERATIONS: dict[type[s.Statement], SchemaOperation] = {
    s.CreateTable: SchemaOperation.CREATE_TABLE,
    s.DropTable: SchemaOperation.DROP_TABLE,
    s.RenameTable: SchemaOperation.RENAME_TABLE,
}


def _refuse_circle(statements: Sequence[s.Statement], text: str) -> None:
    """Refuse a statement in which tables exchange names: executed again, it would exchange them back. Raises:
    Unsupported.
    """
    renames = [each for each in statements if isinstance(each, s.RenameTable)]
    if {each.table for each in renames} & {each.to for each in renames}:
        raise Unsupported(
            "a statement that gives a table the name of a table it has just renamed is not replicated; rename at each"
            " site",
            statement=text[:200],
        )


def _renamed_already(store: Store, statements: list[s.Statement]) -> list[s.Statement]:
    """Return the statements with the current names of tables, if an earlier execution has already renamed them."""
    renamed = {
        each.table: each.to
        for each in statements
        if isinstance(each, s.RenameTable)
        and each.table not in store.tables.by_name
        and each.to in store.tables.by_name
    }
    return [
        replace(each, table=renamed[each.table])
        if isinstance(each, s.TableChange) and not isinstance(each, s.RenameTable) and each.table in renamed
        else each
        for each in statements
    ]


def _execute(store: Store, statement: s.Statement) -> int:
    name = s.table_of(statement)
    if is_local(name):
        _log.info("a schema change of %s is for that site only and is skipped", name)
        return 0
    if isinstance(statement, s.CreateTable):
        return _create(store, statement)
    if isinstance(statement, s.DropTable):
        return _drop(store, statement.table)
    if isinstance(statement, s.RenameTable):
        return _rename(store, statement)
    if isinstance(statement, s.TableChange) and type(statement) in _ALTERATIONS:
        return _ALTERATIONS[type(statement)](store, _definition(store, name), statement)
    raise Unsupported(f"a statement of kind {type(statement).__name__} is not replicated; make it at each site")


def _definition(store: Store, name: str) -> TableDefinition:
    found = store.tables.by_name.get(name)
    if found is None:
        raise NoSuchTable(
            f"table {name} does not exist here, but the source alters it; copy it from the source", table=name
        )
    return found.definition


# --- tables ---------------------------------------------------------------------------------------
def _create(store: Store, statement: s.CreateTable) -> int:
    wanted = as_new(statement.definition)
    found = store.tables.by_name.get(wanted.name)
    changes = 0
    if found is None:
        try:
            store.create_table(wanted)
        except NoSuchTablespace as error:
            raise NoSuchTablespace(
                f"table {wanted.name} is in tablespace {wanted.tablespace}, which this site does not have; make it"
                " here and start the applier again",
                table=wanted.name,
                tablespace=wanted.tablespace,
            ) from error
        changes = 1
    elif statement.may_exist:
        return 0
    elif _definition_bytes(found.definition) != _definition_bytes(wanted):
        raise TableExists(
            f"table {wanted.name} exists here with a different definition than at the source; rename it, or drop it if"
            " its rows are not needed",
            table=wanted.name,
        )
    for index in statement.definition.indexes:
        changes += _create_index(store, _definition(store, wanted.name), s.CreateIndex(wanted.name, index))
    return changes


def _definition_bytes(definition: TableDefinition) -> bytes:
    """Return the parts of a definition that are the same for equal tables. They are compared as bytes: a default may be
    NaN, which does not equal itself.
    """
    return replace(as_new(definition), tablespace=None).to_json()


def _drop(store: Store, name: str) -> int:
    if name not in store.tables.by_name:
        return 0
    store.drop_table(name)
    return 1


def _rename(store: Store, statement: s.RenameTable) -> int:
    if is_local(statement.to):
        raise Unsupported(f"table {statement.table} cannot get the name {statement.to} of a system table")
    if statement.table not in store.tables.by_name and statement.to in store.tables.by_name:
        return 0
    _definition(store, statement.table)
    change_columns(store, statement.table, lambda before: with_name(before, statement.to))
    return 1


# --- columns --------------------------------------------------------------------------------------
def _named(items: Iterable[T], name: str) -> T | None:
    return next((each for each in items if each.name == name), None)


def _must_column(definition: TableDefinition, name: str) -> Column:
    found = _named(definition.columns, name)
    if found is None:
        raise NoSuchColumn(
            f"{definition.name} has no column {name!r} here, but the source alters it",
            table=definition.name,
            column=name,
        )
    return found


def _add_column(store: Store, definition: TableDefinition, statement: s.AddColumn) -> int:
    found, wanted = _named(definition.columns, statement.column.name), statement.column
    if found is not None:
        is_equal = (found.type, found.nullable) == (wanted.type, wanted.nullable) and is_same_default(found, wanted)
        if is_equal:
            return 0
        raise SchemaInvalid(
            f"{definition.name} has a column {wanted.name!r} that differs from the one the source adds: {found!r}",
            table=definition.name,
            column=wanted.name,
        )
    change_columns(store, definition.name, lambda before: with_column(before, wanted))
    return 1


def _drop_column(store: Store, definition: TableDefinition, statement: s.DropColumn) -> int:
    if _named(definition.columns, statement.column) is None:
        return 0
    change_columns(store, definition.name, lambda before: without_column(before, statement.column), statement.column)
    return 1


def _rename_column(store: Store, definition: TableDefinition, statement: s.RenameColumn) -> int:
    old, new = statement.column, statement.to
    if _named(definition.columns, old) is None and _named(definition.columns, new) is not None:
        return 0
    _must_column(definition, old)
    change_columns(store, definition.name, lambda before: with_renamed_column(before, old, new), old)
    return 1


def _change_column(store: Store, definition: TableDefinition, statement: s.ChangeColumn) -> int:
    found, wanted = _must_column(definition, statement.column.name), statement.column
    name = wanted.name
    if found.nullable and not wanted.nullable:
        raise Unsupported(
            f"whether {definition.name}.{name} may be NULL cannot be changed here; make a new table",
            table=definition.name,
            column=name,
        )
    changes = 0
    # A wider column than the source's can store every value that the source sends.
    is_wide = wanted.type.widens_to(found.type)
    if not is_wide or found.nullable < wanted.nullable:
        kind = found.type if is_wide else wanted.type
        widen_column(store, definition.name, name, kind, wanted.nullable, NO_LOGGING)
        changes += 1
    return changes + _set_default(store, definition, s.SetDefault(definition.name, name, wanted.default))


def _set_default(store: Store, definition: TableDefinition, statement: s.SetDefault) -> int:
    found = _must_column(_definition(store, definition.name), statement.column)
    default = statement.default
    if isinstance(default, Literal):
        default = value_of(found.type, default)
    if default is None and not found.nullable:
        default = ABSENT
    if is_same_default(found, replace(found, default=default)):
        return 0
    change_columns(store, definition.name, lambda before: with_default(before, found.name, default), found.name)
    return 1


# --- indexes, checks, expiry and partitions --------------------------------------------------------
def _create_index(store: Store, definition: TableDefinition, statement: s.CreateIndex) -> int:
    found = _named(definition.indexes, statement.index.name)
    if found == statement.index:
        return 0
    if found is not None:
        raise IndexExists(
            f"table {definition.name} has an index {found.name} here that differs from the source's; drop it first",
            table=definition.name,
            index=found.name,
        )
    store.create_index(definition.name, statement.index)
    return 1


def _drop_index(store: Store, definition: TableDefinition, statement: s.DropIndex) -> int:
    if _named(definition.indexes, statement.index) is None:
        return 0
    store.drop_index(definition.name, statement.index)
    return 1


def _add_check(store: Store, definition: TableDefinition, statement: s.AddCheck) -> int:
    """Add a check without reading the rows, about which the source has decided."""
    found = _named(definition.checks, statement.check.name)
    if found == statement.check:
        return 0
    change_columns(store, definition.name, lambda before: with_check(before, statement.check))
    return 1


def _drop_check(store: Store, definition: TableDefinition, statement: s.DropCheck) -> int:
    if _named(definition.checks, statement.check) is None:
        return 0
    change_columns(store, definition.name, lambda before: without_check(before, statement.check))
    return 1


def _set_expiry(store: Store, definition: TableDefinition, statement: s.SetExpiry) -> int:
    if definition.expires == statement.expires:
        return 0
    change_columns(store, definition.name, lambda before: with_expiry(before, statement.expires))
    return 1


def _add_partition(store: Store, definition: TableDefinition, statement: s.AddPartition) -> int:
    bound = typed_bound(definition, statement.bound)
    partition, added = definition.partition, statement.partition
    if added not in partition.names:
        store.add_partition(definition.name, added, bound)
        return 1
    assert isinstance(partition, (RangePartition, ListPartition))
    known = dict(partition.partitions)[added]
    if (set(known) == set(bound)) if isinstance(partition, ListPartition) else (known == bound):
        return 0
    raise SchemaInvalid(
        f"table {definition.name} has a partition {added!r} here that differs from the source's: {known!r}",
        table=definition.name,
    )


def _drop_partition(store: Store, definition: TableDefinition, statement: s.DropPartition) -> int:
    if statement.partition not in definition.partition.names:
        return 0
    store.drop_partition(definition.name, statement.partition)
    return 1


_ALTERATIONS: dict[type[s.TableChange], Callable[[Store, TableDefinition, Any], int]] = {
    s.AddColumn: _add_column,
    s.DropColumn: _drop_column,
    s.RenameColumn: _rename_column,
    s.ChangeColumn: _change_column,
    s.SetDefault: _set_default,
    s.CreateIndex: _create_index,
    s.DropIndex: _drop_index,
    s.AddCheck: _add_check,
    s.DropCheck: _drop_check,
    s.SetExpiry: _set_expiry,
    s.AddPartition: _add_partition,
    s.DropPartition: _drop_partition,
}
