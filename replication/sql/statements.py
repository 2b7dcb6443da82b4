"""Schema changes as values: what a statement of the binlog says, whoever wrote it.

`parse` makes them of text, `emit` text of them; a name of a table is `database.table`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.index_definition import IndexDefinition


@dataclass(frozen=True)
class Statement:
    """Any of those below."""


@dataclass(frozen=True)
class TableChange(Statement):
    """What ALTER TABLE says of one table."""

    table: str


@dataclass(frozen=True)
class CreateTable(Statement):
    """A new table; its table id and version are those of the site that made it, and mean nothing elsewhere."""

    definition: TableDefinition
    may_exist: bool = False


@dataclass(frozen=True)
class CreateLike(TableChange):
    """A new table, empty, with the columns and indexes of another one."""

    like: str
    may_exist: bool = False


@dataclass(frozen=True)
class DropTable(Statement):
    """A table goes."""

    table: str
    may_be_missing: bool = False


@dataclass(frozen=True)
class RenameTable(TableChange):
    """A table has another name."""

    to: str


@dataclass(frozen=True)
class AddColumn(TableChange):
    """One more column, behind the others."""

    column: Column


@dataclass(frozen=True)
class DropColumn(TableChange):
    """One column less."""

    column: str


@dataclass(frozen=True)
class RenameColumn(TableChange):
    """A column has another name."""

    column: str
    to: str


@dataclass(frozen=True)
class ChangeColumn(TableChange):
    """A column has another type, nullability or default."""

    column: Column


@dataclass(frozen=True)
class SetDefault(TableChange):
    """A column has another default; ABSENT: none any more. Out of a text it is a Literal."""

    column: str
    default: Any


@dataclass(frozen=True)
class CreateIndex(TableChange):
    """A new secondary index."""

    index: IndexDefinition


@dataclass(frozen=True)
class DropIndex(TableChange):
    """A secondary index goes."""

    index: str


@dataclass(frozen=True)
class AddPartition(TableChange):
    """One more range or list: a bound, or a list of values. Out of a text they are Literals."""

    partition: str
    bound: Any


@dataclass(frozen=True)
class DropPartition(TableChange):
    """A range or list goes, rows and all."""

    partition: str


@dataclass(frozen=True)
class Nothing(Statement):
    """What has no meaning here: databases are only parts of names."""

    text: str
