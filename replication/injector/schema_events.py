"""Outgoing schema changes: from a record of the log to the statement of the binlog and the row of `ndb_schema`.

A record of the log is one change of one table. The difference between the definitions before and after it says which
change it is. Tables of the database `mysql`, tablespaces and their files are local to a site and are not sent.

Order: the statement is a separate transaction of the binlog, between epoch transactions; the row of `ndb_schema` is
written after it, by an ordinary transaction that is not logged. A crash between the two leaves the row out. An opening
that writes the statement again writes the row again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from tidemark.engine.access import row_operations
from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.schema.column import ABSENT, Column, fresh
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import SYSTEM_DATABASE
from tidemark.engine.schema.partition import ListPartition, RangePartition
from tidemark.replication.settings.any_value import NO_LOGGING
from tidemark.replication.settings.system_tables import NAME_BYTES, NDB_SCHEMA, one_transaction
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.emit import emit, name

if TYPE_CHECKING:
    from tidemark.engine.log.row_changes import SchemaChange
    from tidemark.engine.store.store import Store

SLOCK_BYTES: Final = 32


class SchemaOperation(IntEnum):
    """NDB's numbers in the column `type` of `ndb_schema`, those that occur here."""

    DROP_TABLE = 0
    CREATE_TABLE = 1
    ALTER_TABLE = 3
    RENAME_TABLE = 10


@dataclass(frozen=True)
class SchemaStatement:
    """The statement of a change in the binlog: SQL, and its default database.

    `preparation` is written before it, as a statement without default database, because servers need the database
    before the table. `author` is the site that the change came from, 0 if it was made here. `table` is the name of the
    table before the change.
    """

    database: str
    text: str
    table: str
    operation: SchemaOperation
    table_id: int
    version: int
    preparation: str | None = None
    author: int = 0


@dataclass(frozen=True)
class SchemaRow:
    """A row of `mysql.ndb_schema`. A bit of `slock` stands for a participant that has not acknowledged the change. All
    bits are zero, because the row is written after the store, or every member of a group, has the change.
    """

    db: bytes
    name: bytes
    slock: bytes
    query: bytes
    node_id: int
    epoch: int
    id: int
    version: int
    type: int


# --- statements -----------------------------------------------------------------------------------
def statement_of(logged: SchemaChange) -> SchemaStatement | None:
    """Return the SQL statement that repeats a change at another site, None if the change is not sent.

    Raises: InvariantBroken for a record without a known statement.
    """
    before, after = logged.before, logged.after
    if not {"create", "alter", "drop"} & set(logged.change):
        return None  # tablespaces and data files are local to a site
    # For other sites, a table renamed into the database `mysql` is dropped, and a table renamed out of it is new.
    before = None if before is None or is_local(before.name) else before
    after = None if after is None or is_local(after.name) else after
    some = after or before
    if some is None or (before is not None and after is not None and is_same(before, after)):
        return None
    table = (before or some).name
    old, new = table.partition(".")[0], some.name.partition(".")[0]
    makes_database = before is None or old != new
    if after is None:
        text, operation = emit(s.DropTable(table)), SchemaOperation.DROP_TABLE
        makes_database = False
    elif before is None:
        text, operation = emit(s.CreateTable(after)), SchemaOperation.CREATE_TABLE
    else:
        change = alteration(before, after)
        text = emit(change, before, after)
        is_rename = isinstance(change, s.RenameTable)
        operation = SchemaOperation.RENAME_TABLE if is_rename else SchemaOperation.ALTER_TABLE
    preparation = f"CREATE DATABASE IF NOT EXISTS {name(new)}" if makes_database else None
    author = int(logged.change.get("author", 0))
    return SchemaStatement(old, text, table, operation, some.table_id, some.version, preparation, author)


def statements_of(logged: SchemaChange, log_replica_updates: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the statements that the binlog has for a change, in order, each as (database, SQL), the database empty for
    a statement about databases. There are none if the change is not sent, or came from another site and replica updates
    are not logged. Raises: as `statement_of`.
    """
    found = statement_of(logged)
    if found is None or (found.author and not log_replica_updates):
        return ()
    statement = (found.database, found.text)
    return (statement,) if found.preparation is None else (("", found.preparation), statement)


def is_same(before: TableDefinition, after: TableDefinition) -> bool:
    """Whether a new version equals the previous one, for instance after a default was set to its old value."""
    one, other = (json.loads(each.to_json()) for each in (before, after))
    # A column that is added hidden, to take the values of one that gets wider, is like a dropped one.
    unseen = ("version", "format", "dropped")
    return all(one.get(name) == other.get(name) for name in {*one, *other} if name not in unseen)


def is_local(table: str) -> bool:
    """Whether neither rows nor changes of a table leave the site."""
    return table.startswith(SYSTEM_DATABASE + ".")


def alteration(before: TableDefinition, after: TableDefinition) -> s.TableChange:
    """Return the one change that turns a definition into its next version."""
    table = before.name
    if before.name != after.name:
        return s.RenameTable(table, after.name)
    found = (
        _change_of_columns(before, after)
        or _change_of_indexes(before, after)
        or _change_of_checks(before, after)
        or _change_of_expiry(before, after)
        or _of_partitions(before, after)
    )
    if found is None:
        raise InvariantBroken(
            f"version {after.version} of table {table} differs from the one before in a way that no statement"
            " expresses; report this",
            table=table,
        )
    return found


def _change_of_columns(before: TableDefinition, after: TableDefinition) -> s.TableChange | None:
    olds, news = before.columns, after.columns
    if len(news) > len(olds):
        return s.AddColumn(before.name, fresh(news[-1]))
    if len(news) < len(olds):
        kept = {column.name for column in news}
        gone = next(column for column in olds if column.name not in kept)
        return s.DropColumn(before.name, gone.name)
    for old, new in zip(olds, news, strict=True):
        if old.name != new.name:
            return s.RenameColumn(before.name, old.name, new.name)
        if (old.type, old.nullable) != (new.type, new.nullable):
            return s.ChangeColumn(before.name, fresh(new))
        if not is_same_default(old, new):
            return s.SetDefault(before.name, new.name, new.default)
    return None


def is_same_default(one: Column, other: Column) -> bool:
    """Whether two columns have the same default, or none. Compares the stored form, because NaN does not equal NaN."""
    if ABSENT in (one.default, other.default) or None in (one.default, other.default):
        return one.default is other.default
    both = one.to_json(), other.to_json()
    return all(both[0].get(name) == both[1].get(name) for name in ("default", "computed"))


def _change_of_indexes(before: TableDefinition, after: TableDefinition) -> s.TableChange | None:
    olds, news = {each.name: each for each in before.indexes}, {each.name: each for each in after.indexes}
    for index, made in news.items():
        if index not in olds:
            return s.CreateIndex(before.name, made)
    gone = next((index for index in olds if index not in news), None)
    return None if gone is None else s.DropIndex(before.name, gone)


def _change_of_checks(before: TableDefinition, after: TableDefinition) -> s.TableChange | None:
    made = next((each for each in after.checks if each not in before.checks), None)
    if made is not None:
        return s.AddCheck(before.name, made)
    gone = next((each for each in before.checks if each not in after.checks), None)
    return None if gone is None else s.DropCheck(before.name, gone.name)


def _change_of_expiry(before: TableDefinition, after: TableDefinition) -> s.TableChange | None:
    return None if before.expires == after.expires else s.SetExpiry(before.name, after.expires)


def _of_partitions(before: TableDefinition, after: TableDefinition) -> s.TableChange | None:
    old, new = before.partition, after.partition
    gone = next((each for each in old.names if each not in new.names), None)
    if gone is not None:
        return s.DropPartition(before.name, gone)
    made = next((each for each in new.names if each not in old.names), None)
    if made is None or not isinstance(new, (RangePartition, ListPartition)):
        return None
    bound = dict(new.partitions)[made]
    return s.AddPartition(before.name, made, list(bound) if isinstance(new, ListPartition) else bound)


# --- rows -----------------------------------------------------------------------------------------
def schema_row(statement: SchemaStatement, epoch: int, node_id: int) -> SchemaRow:
    """Return the row of `ndb_schema` for a change; `node_id` is the id of the site that made it."""
    database, _, table = statement.table.partition(".")
    return SchemaRow(
        database.encode(),
        table.encode(),
        bytes(SLOCK_BYTES),
        statement.text.encode(),
        node_id,
        epoch,
        statement.table_id,
        statement.version,
        int(statement.operation),
    )


def write_schema_row(store: Store, row: SchemaRow) -> None:
    """Write the newest change of a table to `mysql.ndb_schema`, which no binlog contains; not if a name is longer
    than its columns. Durable on return: as for a commit. Raises: as a commit.
    """
    if max(len(row.db), len(row.name)) > NAME_BYTES:
        return
    table = store.tables.named(NDB_SCHEMA)
    with one_transaction(store, NO_LOGGING, waits_for_disk=store.resources.waits_for_disk) as txn:
        row_operations.write(txn, table, vars(row))
