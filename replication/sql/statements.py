"""Schema changes as values: the content of a statement in a binlog, whatever server wrote it.

`parse` makes them from text, and `emit` turns them into text. The name of a table is `database.table`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidemark.engine.schema.check_definition import CheckDefinition
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.index_definition import IndexDefinition
from tidemark.replication.sql.server_types import ServerType


@dataclass(frozen=True)
class Statement:
    """Any of the statements below."""


@dataclass(frozen=True)
class TableChange(Statement):
    """A change of one table by ALTER TABLE."""

    table: str


@dataclass(frozen=True)
class CreateTable(Statement):
    """A new table. The table id and version of its definition have a meaning only at the site that created it. At the
    server whose statement this is, its columns have the types `served`, and new ones the character set `charset`.
    """

    definition: TableDefinition
    may_exist: bool = False
    served: tuple[ServerType, ...] = field(default=(), compare=False)
    charset: str = field(default="", compare=False)


@dataclass(frozen=True)
class CreateLike(TableChange):
    """A new, empty table with the columns and indexes of another one."""

    like: str
    may_exist: bool = False


@dataclass(frozen=True)
class DropTable(Statement):
    """A table is dropped."""

    table: str
    may_be_missing: bool = False


@dataclass(frozen=True)
class RenameTable(TableChange):
    """A table gets another name."""

    to: str


@dataclass(frozen=True)
class AddColumn(TableChange):
    """One more column, after the others. `served` is its type at the server whose statement this is."""

    column: Column
    served: ServerType | None = field(default=None, compare=False)


@dataclass(frozen=True)
class DropColumn(TableChange):
    """A column is dropped."""

    column: str


@dataclass(frozen=True)
class RenameColumn(TableChange):
    """A column gets another name."""

    column: str
    to: str


@dataclass(frozen=True)
class ChangeColumn(TableChange):
    """A column gets another type, nullability or default. is_numbered: it is AUTO_INCREMENT. served, was: its new and
    its old type at the server whose statement this is, if they are known.
    """

    column: Column
    served: ServerType | None = field(default=None, compare=False)
    is_numbered: bool = field(default=False, compare=False)
    was: ServerType | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SetDefault(TableChange):
    """A column gets another default; ABSENT: it no longer has one. `parse` returns a default as a Literal. was: its
    type at the server whose statement this is, if it is known.
    """

    column: str
    default: Any
    was: ServerType | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SetCharset(TableChange):
    """At a server new columns of a table get another character set, "" if it is not known; with is_conversion the text
    in the table, too, to a character set that has all its characters. Nothing changes here.
    """

    charset: str
    is_conversion: bool


@dataclass(frozen=True)
class DatabaseCharset(Statement):
    """At a server new tables of a database get another character set. Nothing changes here."""

    database: str
    charset: str


@dataclass(frozen=True)
class CreateIndex(TableChange):
    """A new secondary index."""

    index: IndexDefinition


@dataclass(frozen=True)
class DropIndex(TableChange):
    """A secondary index is dropped."""

    index: str


@dataclass(frozen=True)
class RenameIndex(TableChange):
    """A secondary index gets another name."""

    index: str
    to: str


@dataclass(frozen=True)
class AddCheck(TableChange):
    """One more check."""

    check: CheckDefinition


@dataclass(frozen=True)
class DropCheck(TableChange):
    """A check is dropped."""

    check: str


@dataclass(frozen=True)
class SetExpiry(TableChange):
    """Rows expire otherwise; None: never."""

    expires: str | None


@dataclass(frozen=True)
class AddPartition(TableChange):
    """One more range or list partition: a bound, or a list of values. `parse` returns these as Literals."""

    partition: str
    bound: Any


@dataclass(frozen=True)
class DropPartition(TableChange):
    """A range or list partition is dropped with its rows."""

    partition: str


@dataclass(frozen=True)
class Repartition(TableChange):
    """A server distributes the rows of a table in another way, `what`. Where partitions have no names, nothing changes
    here.
    """

    what: str


@dataclass(frozen=True)
class Provided(TableChange):
    """IF EXISTS or IF NOT EXISTS: `changes` are made only if the table has, or lacks, a `kind` of this name before the
    statement; for tables, before this clause. `steps` is the number of the steps that they have become.
    """

    kind: str  # "table", "column", "index" or "partition"
    name: str
    exists: bool
    changes: tuple[Statement, ...] = ()
    steps: int = 0

    def holds(self, definition: TableDefinition | None) -> bool:
        """Whether the condition is true of a definition, None without the table."""
        if self.kind == "table":
            return (definition is not None) == self.exists
        if definition is None:
            return True  # the changes say that the table is missing
        names = {
            "column": {column.name for column in definition.columns},
            "index": {index.name for index in definition.indexes},
            "partition": set(definition.partition.names),
        }
        return (self.name in names[self.kind]) == self.exists


@dataclass(frozen=True)
class NoEffect(Statement):
    """A statement that has no effect here, for instance one about a database, which here is only a part of names."""

    text: str


def table_of(statement: Statement) -> str:
    """Return the table that a statement changes, before the change; "" for `NoEffect`."""
    if isinstance(statement, CreateTable):
        return statement.definition.name
    return statement.table if isinstance(statement, (TableChange, DropTable)) else ""
