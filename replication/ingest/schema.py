"""Statements of a source as changes of the store's schema, in steps that can be repeated after a crash.

A statement becomes steps, each a change of one table. The row of the source names the step that was begun. Before that
step is repeated, the schema shows whether it has happened: the result of a step always differs from the state before.

TINYINT(1) holds −128 to 127 at a server, so it is Int8 here and not Bool. NOT NULL that is added later to a nullable
column changes nothing here. A statement is Unsupported if a server fills existing rows with values unknown here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal as PythonDecimal
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.engine.access.conditional_changes import delete_where
from tidemark.engine.base.errors import Rejected, Unsupported
from tidemark.engine.programs.expressions import col
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.index_definition import IndexDefinition
from tidemark.engine.schema.partition import Partition
from tidemark.engine.schema.types import Boolean, Decimal, Enum, Floating, Int8, Integer, Timestamp
from tidemark.engine.schema.types_base import ColumnType
from tidemark.engine.schema.types_text import Binary, Char, LongBinary, LongText, VarBinary, VarChar
from tidemark.replication.applier.schema_statements import as_new
from tidemark.replication.binlog.position import Position
from tidemark.replication.ingest.address import Filter
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.column_types import value_of
from tidemark.replication.sql.parse import parse, typed_bound
from tidemark.replication.sql.tokens import OURS, Literal

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.txn.transaction import Transaction

_NAME = r"(?:`((?:[^`]|``)+)`|([A-Za-z0-9_$]+))"
_DROP_DATABASE = re.compile(rf"DROP\s+(?:DATABASE|SCHEMA)\s+(?:IF\s+EXISTS\s+)?{_NAME}\s*\Z", re.IGNORECASE)
_TRUNCATE = re.compile(
    rf"TRUNCATE\s+(?:TABLE\s+)?{_NAME}(?:\.{_NAME})?\s*(?:(?:NO)?WAIT(?:\s+\d+)?)?\s*\Z", re.IGNORECASE
)
# A statement about one table, or one sequence, which a server stores as a table.
_TABLE_NAMED = re.compile(
    r"(?:CREATE|ALTER|DROP)\s+(?:OR\s+REPLACE\s+)?(?:TABLE|SEQUENCE)\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
    rf"{_NAME}(?:\.{_NAME})?(?![\s]*[,.])",
    re.IGNORECASE,
)
# Statements that change no table with rows, or only a table that no other session sees.
_HARMLESS = re.compile(
    r"(?:GRANT|REVOKE|FLUSH|ANALYZE|OPTIMIZE|REPAIR|INSTALL|UNINSTALL|SET\s+PASSWORD|SET\s+DEFAULT)\b"
    r"|(?:CREATE|ALTER|DROP)\s+(?:OR\s+REPLACE\s+)?(?:AGGREGATE\s+)?(?:ALGORITHM\s*=\s*\w+\s+)?"
    r"(?:DEFINER\s*=\s*\S+\s+)?(?:SQL\s+SECURITY\s+\w+\s+)?"
    r"(?:PROCEDURE|FUNCTION|EVENT|TRIGGER|VIEW|USER|ROLE|SERVER|PACKAGE|(?:/\*!\d+\s*)?TEMPORARY)\b"
    r"|RENAME\s+USER\b"
    # Clauses of ALTER TABLE that change no row.
    r"|ALTER\s+TABLE\s+\S+\s+(?:ENGINE|AUTO_INCREMENT|COMMENT|ROW_FORMAT|FORCE|KEY_BLOCK_SIZE|STATS_\w+)\b[^,]*\Z",
    re.IGNORECASE,
)
_NOW = re.compile(r"\b(?:CURRENT_TIMESTAMP|NOW|LOCALTIME|LOCALTIMESTAMP|SYSDATE|UUID|RAND)\b", re.IGNORECASE)
_SHOWN_CHARACTERS = 160


class Schema(Protocol):
    """The schema calls of an open store (`tidemark.Database`)."""

    # fmt: off
    def create_table(self, name: str, columns: Iterable[Column], primary_key: str | Sequence[str],
                     partition: Partition | None = None) -> Any: ...
    def drop_table(self, name: str) -> None: ...
    def add_column(self, table: str, column: Column) -> None: ...
    def drop_column(self, table: str, name: str) -> None: ...
    def rename(self, table: str, to: str) -> None: ...
    def rename_column(self, table: str, old: str, new: str) -> None: ...
    def set_default(self, table: str, column: str, default: Any = ABSENT) -> None: ...
    def widen_column(self, table: str, column: str, type: ColumnType) -> None: ...
    def add_partition(self, table: str, name: str, bound: Any) -> None: ...
    def drop_partition(self, table: str, name: str) -> None: ...
    def create_index(self, table: str, name: str, columns: str | Sequence[str], unique: bool = False) -> None: ...
    def drop_index(self, table: str, name: str) -> None: ...
    # fmt: on


@dataclass(frozen=True)
class Truncate(s.TableChange):
    """Delete all rows of a table. This is the only step that is a transaction."""


@dataclass(frozen=True)
class DropDatabase(s.Statement):
    """Drop all wanted tables of a database; when it is repeated, those that are left."""

    database: str
    wanted: Filter


def steps_of(
    text: str, database: str, wanted: Filter, origin: Position, store: Store | None = None
) -> list[s.Statement]:
    """Return the changes of a statement to wanted tables as steps. store: has the table that CREATE TABLE … LIKE names;
    a repetition gives the same steps, because no other change comes in between.

    Raises: Unsupported, naming file, position and statement.
    """
    if _HARMLESS.match(text):
        return []
    try:
        return [each for step in _steps(text, database, wanted) for each in (_like(step, store) if store else [step])]
    except Rejected as error:
        if not _may_concern(text, database, wanted):
            return []
        raise refused(error, text, origin) from error


def _like(step: s.Statement, store: Store) -> list[s.Statement]:
    """Return CREATE TABLE … LIKE as the steps that create a table with the definition of the other table."""
    if not isinstance(step, s.CreateLike):
        return [step]
    there = store.table(step.like).definition
    made = replace(as_new(replace(there, name=step.table)), indexes=there.indexes)
    return _split(s.CreateTable(made, step.may_exist), "")


def refused(error: Rejected, text: str, origin: Position) -> Unsupported:
    """Return the error for a statement that the store cannot execute, with its position and the way to continue."""
    return Unsupported(
        f"{origin.text}: {error.message} (the statement is {text[:_SHOWN_CHARACTERS]!r}); make it here by hand and"
        f" continue with --skip {origin.file}:{origin.position}",
        file=origin.file,
        position=origin.position,
        statement=text,
    )


def _steps(text: str, database: str, wanted: Filter) -> list[s.Statement]:
    if found := _DROP_DATABASE.match(text):
        return [DropDatabase(_unquoted(found[1], found[2]), wanted)]
    if found := _TRUNCATE.match(text):
        names = [_unquoted(found[at], found[at + 1]) for at in (1, 3) if found[at] or found[at + 1]]
        table = ".".join(names if len(names) > 1 else [database, *names])
        return [Truncate(table)] if wanted.wants(table) else []
    parsed = parse(text, database)
    is_ours = OURS in text
    made: list[s.Statement] = []
    for statement in parsed:
        if _is_wanted(statement, wanted):
            made += _split(statement if is_ours else _as_served(statement), text)
    return made


def _unquoted(quoted: str | None, plain: str | None) -> str:
    return quoted.replace("``", "`") if quoted else plain or ""


def _may_concern(text: str, database: str, wanted: Filter) -> bool:
    """Whether an unknown statement may change a wanted table, judged by its words."""
    if (named := _TABLE_NAMED.match(text)) and not re.search(r"\b(?:RENAME|LIKE|EXCHANGE)\b", text, re.IGNORECASE):
        names = [_unquoted(named[at], named[at + 1]) for at in (1, 3) if named[at] or named[at + 1]]
        return wanted.wants(".".join(names if len(names) > 1 else [database, *names]))
    if wanted.may_want_from(database):
        return True
    words = re.findall(r"[^\s`.,;()'\"]+", text)
    return not wanted.tables or any(wanted.may_want_from(word) for word in words if word != database)


def _is_wanted(statement: s.Statement, wanted: Filter) -> bool:
    if isinstance(statement, s.NoEffect):
        return False
    name = s.table_of(statement)
    if isinstance(statement, s.RenameTable) and wanted.wants(name) != wanted.wants(statement.to):
        raise Unsupported(f"{name} is renamed to {statement.to}, and a filter wants only one of them")
    return wanted.wants(name)


def _served(column: Column) -> Column:
    """Return a column as a server means it: TINYINT(1) is a number."""
    if not isinstance(column.type, Boolean):
        return column
    default = column.default if column.default in (ABSENT, None) else int(column.default)
    return replace(column, type=Int8, default=default)


def _as_served(statement: s.Statement) -> s.Statement:
    if isinstance(statement, s.CreateTable):
        columns = tuple(_served(column) for column in statement.definition.columns)
        return replace(statement, definition=replace(statement.definition, columns=columns))
    if isinstance(statement, (s.AddColumn, s.ChangeColumn)):
        return replace(statement, column=_served(statement.column))
    return statement


def _split(statement: s.Statement, text: str) -> list[s.Statement]:
    """Return a statement as steps that the store executes with one call each."""
    if isinstance(statement, s.CreateTable):
        definition = statement.definition
        return [
            replace(statement, definition=replace(definition, indexes=())),
            *(s.CreateIndex(definition.name, index) for index in definition.indexes),
        ]
    if isinstance(statement, s.AddColumn):
        return _added(statement, text)
    return [statement]


def _added(statement: s.AddColumn, text: str) -> list[s.Statement]:
    """Return ADD COLUMN as steps. Existing rows get the value that the server gives them, if it can be known."""
    column = statement.column
    if column.has_default:
        return [statement]
    if _NOW.search(text) or column.type == Timestamp:
        raise Unsupported(f"what the server has put into {statement.table}.{column.name} of its rows is not known here")
    if column.nullable:
        return [statement]
    filled = replace(column, default=_implicit(column))
    return [s.AddColumn(statement.table, filled), s.SetDefault(statement.table, column.name, ABSENT)]


def _implicit(column: Column) -> Any:
    """Return the value that a server gives a new NOT NULL column in existing rows."""
    kind = column.type
    if isinstance(kind, (Integer, Boolean)):
        return 0 if isinstance(kind, Integer) else False
    if isinstance(kind, Floating):
        return 0.0
    if isinstance(kind, Decimal):
        return PythonDecimal(0)
    if isinstance(kind, Enum):
        return kind.members[0]
    if isinstance(kind, (Char, VarChar, LongText)):
        return ""
    if isinstance(kind, (Binary, VarBinary, LongBinary)):
        return b""
    raise Unsupported(f"the server fills {column.name} of its rows with a date of zeros, which is not a date")


# --- steps ----------------------------------------------------------------------------------------
def has_happened(step: s.Statement, store: Store) -> bool:
    """Whether a begun step has happened; False for steps that change nothing when they are repeated."""
    if isinstance(step, s.CreateTable):
        return _is_made(step.definition, store)
    if isinstance(step, s.DropTable):
        return step.table not in store.tables
    if isinstance(step, s.RenameTable):
        return step.table not in store.tables
    if not isinstance(step, s.TableChange) or step.table not in store.tables:
        return False
    table = store.table(step.table)
    columns = {column.name for column in table.definition.columns}
    if isinstance(step, s.AddColumn):
        return step.column.name in columns
    if isinstance(step, (s.DropColumn, s.RenameColumn)):
        return step.column not in columns
    if isinstance(step, (s.CreateIndex, s.DropIndex)):
        name = step.index.name if isinstance(step, s.CreateIndex) else step.index
        return any(index.name == name for index in table.definition.indexes) == isinstance(step, s.CreateIndex)
    if isinstance(step, (s.AddPartition, s.DropPartition)):
        return (step.partition in table.definition.partition.names) == isinstance(step, s.AddPartition)
    return False


def _is_made(definition: TableDefinition, store: Store) -> bool:
    if definition.name not in store.tables:
        return False
    there = store.table(definition.name).definition
    return (there.columns, there.primary_key) == (definition.columns, definition.primary_key)


def make(step: s.Statement, db: Schema, store: Store) -> None:
    """Execute a step. Durable on return. Raises: Rejected for changes that the store does not support, and its
    subclasses such as NoSuchTable.
    """
    if isinstance(step, s.CreateTable):
        _create(step, db, store)
    elif isinstance(step, DropDatabase):
        for name in sorted(store.tables):
            if name.startswith(step.database + ".") and step.wanted.wants(name):
                db.drop_table(name)
    elif isinstance(step, s.DropTable):
        if not (step.may_be_missing and step.table not in store.tables):
            db.drop_table(step.table)
    elif isinstance(step, s.RenameTable):
        db.rename(step.table, step.to)
    elif isinstance(step, s.AddColumn):
        db.add_column(step.table, step.column)
    elif isinstance(step, s.DropColumn):
        db.drop_column(step.table, step.column)
    elif isinstance(step, s.RenameColumn):
        db.rename_column(step.table, step.column, step.to)
    elif isinstance(step, s.ChangeColumn):
        _change(step, db, store)
    elif isinstance(step, s.SetDefault):
        column = _column(store, step.table, step.column)
        value = value_of(column.type, step.default) if isinstance(step.default, Literal) else step.default
        db.set_default(step.table, step.column, value)
    elif isinstance(step, s.CreateIndex):
        db.create_index(step.table, step.index.name, step.index.columns, step.index.is_unique)
    elif isinstance(step, s.DropIndex):
        # An index over prefixes of values was never created here.
        if any(index.name == step.index for index in store.table(step.table).definition.indexes):
            db.drop_index(step.table, step.index)
    elif isinstance(step, s.AddPartition):
        db.add_partition(step.table, step.partition, typed_bound(store.table(step.table).definition, step.bound))
    elif isinstance(step, s.DropPartition):
        db.drop_partition(step.table, step.partition)


def truncate(step: Truncate, txn: Transaction) -> int:
    """Delete all rows of a table; return their number."""
    table = txn.store.table(step.table)
    return delete_where(txn, table, ~col(table.definition.primary_key[0]).is_null())


def _create(step: s.CreateTable, db: Schema, store: Store) -> None:
    definition = step.definition
    if step.may_exist and definition.name in store.tables:
        return
    db.create_table(definition.name, definition.columns, definition.primary_key, definition.partition)


def _column(store: Store, table: str, name: str) -> Column:
    definition = store.table(table).definition
    for column in definition.columns:
        if column.name == name:
            return column
    raise Unsupported(f"{table} has no column {name!r} here")


def _change(step: s.ChangeColumn, db: Schema, store: Store) -> None:
    wanted = step.column
    there = _column(store, step.table, wanted.name)
    if wanted.nullable and not there.nullable:
        raise Unsupported(f"{step.table}.{wanted.name} cannot be made to take NULL")
    if wanted.type != there.type:
        db.widen_column(step.table, wanted.name, wanted.type)
    # A column that accepts NULL here, as it did at the source before, must lose its default.
    if wanted.default != there.default:
        db.set_default(step.table, wanted.name, wanted.default)


def table_of_text(text: str, database: str) -> tuple[TableDefinition, tuple[IndexDefinition, ...]]:
    """Return (definition without indexes, its indexes) from the text of SHOW CREATE TABLE. Raises: Unsupported."""
    (statement,) = parse(text, database)
    if not isinstance(statement, s.CreateTable):
        raise Unsupported(f"{text[:_SHOWN_CHARACTERS]!r} does not create a table")
    served = _as_served(statement) if OURS not in text else statement
    assert isinstance(served, s.CreateTable)
    return replace(served.definition, indexes=()), served.definition.indexes
