"""Statements of a source as changes of the store's schema, in steps that can be repeated after a crash.

A statement becomes steps, each a change of one table. The row of the source names the step that was begun. Before that
step is repeated, the schema shows whether it has happened: the result of a step always differs from the state before.

NOT NULL that is added later to a nullable column without NULLs changes nothing here. A statement is Unsupported if a
server gives existing rows values that are not known here. `check` tries all steps of a statement before the first one
is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.engine.base.errors import Rejected, TableExists, Unsupported
from tidemark.engine.queries.conditional_changes import delete_all, delete_partitions
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.partition import ListPartition, Partition, RangePartition
from tidemark.engine.store.schema_changes import (
    as_new,
    with_column,
    with_default,
    with_name,
    with_renamed_column,
    with_wider_column,
    without_column,
)
from tidemark.engine.types import ColumnType, Int32, Int64, UInt32
from tidemark.replication.binlog.position import Position
from tidemark.replication.ingest.address import Filter
from tidemark.replication.ingest.kept_values import check_kept
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.column_reader import ColumnReader
from tidemark.replication.sql.parse import literal_value, parse, typed_bound
from tidemark.replication.sql.server_types import ServerType
from tidemark.replication.sql.server_values import implicit_value, served_value
from tidemark.replication.sql.session import Session
from tidemark.replication.sql.tokens import OURS, PLAIN, Literal

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.txn.transaction import Transaction

_NAME = r"(?:`((?:[^`]|``)+)`|([A-Za-z0-9_$]+))"
# A statement about one table.
_TABLE_NAMED = re.compile(
    r"(?:CREATE|ALTER|DROP)\s+(?:OR\s+REPLACE\s+)?TABLE\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
    rf"{_NAME}(?:\.{_NAME})?(?![\s]*[,.])",
    re.IGNORECASE,
)
_SEQUENCE = re.compile(r"(?:CREATE|ALTER|DROP)\s+(?:OR\s+REPLACE\s+)?SEQUENCE\b", re.IGNORECASE)
# Statements that change no table with rows, or only a table that no other session sees.
_HARMLESS = re.compile(
    r"(?:GRANT|REVOKE|FLUSH|ANALYZE|OPTIMIZE|REPAIR|INSTALL|UNINSTALL|SET\s+PASSWORD|SET\s+DEFAULT)\b"
    r"|(?:CREATE|ALTER|DROP)\s+(?:OR\s+REPLACE\s+)?(?:AGGREGATE\s+)?(?:ALGORITHM\s*=\s*\w+\s+)?"
    r"(?:DEFINER\s*=\s*\S+\s+)?(?:SQL\s+SECURITY\s+\w+\s+)?"
    r"(?:PROCEDURE|FUNCTION|EVENT|TRIGGER|VIEW|USER|ROLE|SERVER|PACKAGE|(?:/\*!\d+\s*)?TEMPORARY)\b"
    r"|RENAME\s+USER\b"
    # Clauses of ALTER TABLE that change no row.
    r"|ALTER\s+TABLE\s+\S+\s+(?![^,]*\b(?:CHARSET|CHARACTER|COLLATE|CONVERT)\b)"
    r"(?:ENGINE|AUTO_INCREMENT|COMMENT|ROW_FORMAT|FORCE|KEY_BLOCK_SIZE|STATS_\w+)\b[^,]*\Z",
    re.IGNORECASE,
)
_SHOWN_CHARACTERS = 160
# In the row of a source: bits of the number of a begun step; the bits above are decisions of `decided`.
STEP_BITS = 12
_CONDITIONS_MAX = 32 - STEP_BITS


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
    def widen_column(self, table: str, column: str, type: ColumnType, *, nullable: bool = False) -> None: ...
    def add_partition(self, table: str, name: str, bound: Any) -> None: ...
    def drop_partition(self, table: str, name: str) -> None: ...
    def create_index(
        self, table: str, name: str, columns: str | Sequence[str], unique: bool = False, *, ordered: bool = False
    ) -> None: ...
    def drop_index(self, table: str, name: str) -> None: ...
    # fmt: on


def make_missing(definition: TableDefinition, db: Schema, store: Store) -> None:
    """Create a table of the ingest if it is missing. Durable on return."""
    if definition.name not in store.tables.by_name:
        try:
            db.create_table(definition.name, definition.columns, definition.primary_key)
        except TableExists:
            pass  # another source of this store has created it in the meantime


@dataclass(frozen=True)
class Truncate(s.TableChange):
    """Delete all rows of a table, or of some partitions. This is the only step that is a transaction."""

    partitions: tuple[str, ...] = ()


@dataclass(frozen=True)
class DropDatabase(s.Statement):
    """Drop all wanted tables of a database; when it is repeated, those that are left."""

    database: str
    wanted: Filter


def steps_of(
    text: str,
    database: str,
    wanted: Filter,
    origin: Position,
    store: Store | None = None,
    session: Session = PLAIN,
    is_readable: bool = True,
) -> list[s.Statement]:
    """Return the changes of a statement to wanted tables as steps. store: has the table that CREATE TABLE … LIKE names;
    a repetition gives the same steps, because no other change comes in between. is_readable: whether the text was read
    in the session's character set.

    Raises: Unsupported, naming file, position and statement.
    """
    if _HARMLESS.match(text) or is_of_sequence(text):
        return []
    try:
        if not is_readable:
            raise Unsupported(f"a statement in the session's character set {session.charset}, which is not read here")
        made = _steps(text, database, wanted, session)
        return [each for step in made for each in (_like(step, store) if store else [step])]
    except Rejected as error:
        if not _may_concern(text, database, wanted):
            return []
        raise refused(error, text, origin) from error


def is_of_sequence(text: str) -> bool:
    """Whether a statement makes, changes or drops sequences, which the store does not have: the rows of tables bring
    the numbers that they gave.
    """
    return _SEQUENCE.match(text) is not None


def _like(step: s.Statement, store: Store) -> list[s.Statement]:
    """Return CREATE TABLE … LIKE as the steps that create a table with the definition of the other table."""
    if not isinstance(step, s.CreateLike):
        return [step]
    there = store.tables.named(step.like).definition
    made = replace(as_new(replace(there, name=step.table)), indexes=there.indexes)
    return [*_split(s.CreateTable(made, step.may_exist)), step]


def refused(error: Rejected, text: str, origin: Position) -> Unsupported:
    """Return the error for a statement that the store cannot execute, with its position and the way to continue."""
    return origin.unsupported(
        f"{error.message} (the statement is {text[:_SHOWN_CHARACTERS]!r}); make it here by hand and continue with"
        f" --skip {origin.file}:{origin.position}",
        statement=text,
    )


def _steps(text: str, database: str, wanted: Filter, session: Session) -> list[s.Statement]:
    reader = ColumnReader(text, database, session)
    if reader.has("DROP", "DATABASE") or reader.has("DROP", "SCHEMA"):
        reader.has("IF", "EXISTS")
        name = reader.name()
        reader.must_end()
        return [DropDatabase(name, wanted)]
    is_new = reader.has("CREATE", "DATABASE") or reader.has("CREATE", "SCHEMA")
    if is_new or reader.has("ALTER", "DATABASE") or reader.has("ALTER", "SCHEMA"):
        found = reader.database_charset(is_new)
        return [found] if wanted.may_want_from(found.database) else []
    if reader.has("TRUNCATE"):
        reader.has("TABLE")
        table = reader.table()
        if reader.has("WAIT"):
            reader.take()
        reader.has("NOWAIT")
        reader.must_end()
        return [Truncate(table)] if wanted.wants(table) else []
    if reader.has("ALTER", "TABLE"):
        reader.existence()
        table = reader.table()
        if reader.has("TRUNCATE", "PARTITION"):
            partitions = () if reader.has("ALL") else tuple(reader.listed(reader.name))
            reader.must_end()
            return [Truncate(table, partitions)] if wanted.wants(table) else []
    parsed = parse(text, database, None if OURS in text else session)
    return [each for statement in parsed for each in _split(statement) if _is_wanted(each, wanted)]


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


def _split(statement: s.Statement) -> list[s.Statement]:
    """Return a statement as steps that the store executes with one call each."""
    if isinstance(statement, s.Provided):
        steps = [each for change in statement.changes for each in _split(change) if not isinstance(each, s.NoEffect)]
        return [replace(statement, changes=(), steps=len(steps)), *steps]
    if isinstance(statement, s.CreateTable):
        definition = statement.definition
        return [
            replace(statement, definition=replace(definition, indexes=())),
            *(s.CreateIndex(definition.name, index) for index in definition.indexes),
        ]
    if isinstance(statement, s.AddColumn) and statement.served is not None:
        return _added(statement, statement.served)
    return [statement]


def _added(statement: s.AddColumn, served: ServerType) -> list[s.Statement]:
    """Return ADD COLUMN as steps. Existing rows get the value that the server gives them, if it can be known."""
    column = statement.column
    if column.has_default:
        return [statement]
    try:
        filled = replace(column, default=implicit_value(served))
    except KeyError:
        raise Unsupported(
            f"what the server has put into {statement.table}.{column.name} of its rows is not known here"
        ) from None
    return [
        replace(statement, column=filled),
        s.SetDefault(statement.table, column.name, ABSENT),
    ]


# --- steps ----------------------------------------------------------------------------------------
def has_happened(step: s.Statement, store: Store) -> bool:
    """Whether a begun step has happened; False for steps that change nothing when they are repeated."""
    if isinstance(step, s.CreateTable):
        return _is_made(step.definition, store)
    if isinstance(step, (s.DropTable, s.RenameTable)):
        return step.table not in store.tables.by_name
    if not isinstance(step, s.TableChange) or step.table not in store.tables.by_name:
        return False
    table = store.tables.named(step.table)
    columns = {column.name for column in table.definition.columns}
    if isinstance(step, s.AddColumn):
        return step.column.name in columns
    if isinstance(step, (s.DropColumn, s.RenameColumn)):
        return step.column not in columns
    if isinstance(step, (s.CreateIndex, s.DropIndex, s.RenameIndex)):
        name = step.index.name if isinstance(step, s.CreateIndex) else step.index
        return any(index.name == name for index in table.definition.indexes) == isinstance(step, s.CreateIndex)
    if isinstance(step, (s.AddPartition, s.DropPartition)):
        return (step.partition in table.definition.partition.names) == isinstance(step, s.AddPartition)
    return False


def _is_made(definition: TableDefinition, store: Store) -> bool:
    if definition.name not in store.tables.by_name:
        return False
    there = store.tables.named(definition.name).definition
    return (there.columns, there.primary_key) == (definition.columns, definition.primary_key)


def check(steps: Sequence[s.Statement], store: Store, session: Session) -> None:
    """Check that a statement can be executed, so that it stops before its first step. Raises: Rejected."""
    known: dict[str, TableDefinition] = {}
    left_out = 0
    for number, step in enumerate(steps, 1):
        if number <= left_out or not isinstance(step, s.TableChange) or isinstance(step, s.CreateLike):
            continue
        before = known.get(step.table)
        if before is None and step.table in store.tables.by_name:
            before = store.tables.named(step.table).definition
        if isinstance(step, s.Provided):
            left_out = max(left_out, 0 if step.holds(before) else number + step.steps)
        elif before is not None:  # otherwise made by this statement, or missing: then the step says so
            known[step.to if isinstance(step, s.RenameTable) else step.table] = _checked(step, before, store, session)


def holds(step: s.Provided, store: Store) -> bool:
    """Whether a condition is true now."""
    table = store.tables.by_name.get(step.table)
    return step.holds(None if table is None else table.definition)


def decided(steps: Sequence[s.Statement], store: Store, begun: int) -> tuple[list[s.Statement], int]:
    """Return the steps without those whose condition is false, with the same numbers, and the decisions as bits above
    the number of a step in the row of the source. A server asks about columns, indexes and partitions before the first
    clause; so a restart takes the decisions from `begun`, that number. Raises: Unsupported for too many conditions.
    """
    asked = [each for each in steps if isinstance(each, s.Provided) and each.kind != "table"]
    if not asked:
        return list(steps), 0
    if len(asked) > _CONDITIONS_MAX or len(steps) >= 1 << STEP_BITS:
        raise Unsupported(f"a statement with {len(asked)} IF [NOT] EXISTS; {_CONDITIONS_MAX} are the most")
    bits = begun >> STEP_BITS if begun else sum(holds(each, store) << at for at, each in enumerate(asked))
    made: list[s.Statement] = []
    left_out = at = 0
    for number, step in enumerate(steps, 1):
        is_condition = isinstance(step, s.Provided) and step.kind != "table"
        if isinstance(step, s.Provided) and is_condition:
            if not bits >> at & 1:
                left_out = max(left_out, number + step.steps)
            at += 1
        made.append(s.NoEffect("") if is_condition or number <= left_out else step)
    return made, bits << STEP_BITS


def _checked(step: s.TableChange, before: TableDefinition, store: Store, session: Session) -> TableDefinition:
    """Return the definition after a step. Raises: Rejected."""
    if isinstance(step, s.RenameTable):
        return with_name(before, step.to)
    if isinstance(step, s.AddColumn):
        return with_column(before, step.column)
    if isinstance(step, s.DropColumn):
        return without_column(before, step.column)
    if isinstance(step, s.RenameColumn):
        return with_renamed_column(before, step.column, step.to)
    if isinstance(step, s.ChangeColumn):
        return _with_change(step, before, store, session)
    if isinstance(step, s.SetDefault):
        return with_default(before, step.column, _default(step, before, session))
    if isinstance(step, s.CreateIndex):
        return replace(before, indexes=(*before.indexes, step.index))
    if isinstance(step, s.DropIndex):
        return replace(before, indexes=tuple(each for each in before.indexes if each.name != step.index))
    if isinstance(step, s.RenameIndex):
        if any(each.name == step.to for each in before.indexes):
            raise Unsupported(
                f"{before.name} has an index {step.to}, which the statement renames later; rename it first"
            )
        renamed = [replace(each, name=step.to) if each.name == step.index else each for each in before.indexes]
        return replace(before, indexes=tuple(renamed))
    if isinstance(step, s.AddPartition):
        made = before.partition.with_partition(step.partition, typed_bound(before, step.bound, session))
        return replace(before, partition=made)
    if isinstance(step, (s.DropPartition, Truncate)):
        names = step.partitions if isinstance(step, Truncate) else (step.partition,)
        if names:
            _check_partition(before, names, "dropped" if isinstance(step, s.DropPartition) else "truncated")
    if isinstance(step, s.DropPartition):
        return replace(before, partition=before.partition.without_partition(step.partition))
    if isinstance(step, s.Repartition) and isinstance(before.partition, (RangePartition, ListPartition)):
        raise Unsupported(
            f"{step.what} of {before.name}, which is partitioned by {before.partition.describe()} here, moves rows"
            " between partitions; copy the table anew",
            table=before.name,
        )
    return before


def _check_partition(definition: TableDefinition, names: Sequence[str], what: str) -> None:
    """Check that the server has the same rows in partitions with names: it compares text by collation. Raises:
    Unsupported, NoSuchPartition.
    """
    partition = definition.partition
    if not isinstance(partition, (RangePartition, ListPartition)):
        raise Unsupported(
            f"a partition of {definition.name} is {what}, which is partitioned by {partition.describe()} here; delete"
            " the same rows here",
            table=definition.name,
        )
    for name in names:
        partition.number_of(name)
    columns = partition.columns
    for column in definition.columns:
        if column.name in columns and column.type.is_text:
            raise Unsupported(
                f"a partition of {definition.name} is {what}, and which rows are in it depends on the collation of"
                f" {column.name} at the source; delete the same rows here",
                table=definition.name,
                column=column.name,
            )


def _with_change(step: s.ChangeColumn, before: TableDefinition, store: Store, session: Session) -> TableDefinition:
    wanted = step.column
    there = _column(before, wanted.name)
    after = before
    nullable, kind = _takes_null(wanted, there, before), _type_after(step, there)
    if nullable or kind != there.type:
        after = with_wider_column(after, wanted.name, kind, nullable)
    if step.served is not None:
        # By its names before the renames of the statement, and at its place before the drops.
        now = store.tables.by_id[before.table_id]
        place = [at for at, _ in before.physical].index(before.position(wanted.name))
        if place < len(now.definition.physical):
            check_kept(now, now.definition.physical[place][1], step, session)
    default = _default_of(wanted, there, nullable)
    # A column that accepts NULL here, as it did at the source before, must lose its default.
    return after if default == there.default else with_default(after, wanted.name, default)


def _type_after(step: s.ChangeColumn, there: Column) -> ColumnType:
    """Return the type of a column here after a change at the source: that of the statement, unless it is wider here."""
    wanted, was = step.column.type, step.was
    if was is None or step.served is None:
        return wanted
    if (was.word, was.is_unsigned, wanted) == ("MEDIUMINT", True, Int32) and there.type in (UInt32, Int64):
        return Int64  # that of INT does not hold all values of the column here
    if was.stored() == wanted and wanted.widens_to(there.type):
        return there.type
    return wanted


def _takes_null(wanted: Column, there: Column, definition: TableDefinition) -> bool:
    """Whether a column begins to take NULL; those of a primary key never do, whatever a statement says."""
    return wanted.nullable and not there.nullable and wanted.name not in definition.primary_key


def _default_of(wanted: Column, there: Column, nullable: bool) -> Any:
    return ABSENT if wanted.default is None and not (there.nullable or nullable) else wanted.default


def _default(step: s.SetDefault, definition: TableDefinition, session: Session) -> Any:
    column = _column(definition, step.column)
    if not isinstance(step.default, Literal):
        return step.default
    try:
        if step.was is not None:
            return served_value(step.was, step.default, session)
        return literal_value(column.type, session, step.default)
    except Unsupported as error:
        raise Unsupported(f"{definition.name}.{column.name}: {error.message}") from error


def make(step: s.Statement, db: Schema, store: Store, session: Session = PLAIN) -> None:
    """Execute a step that was checked. Durable on return. Raises: Rejected for changes that the store does not support,
    and its subclasses such as NoSuchTable.
    """
    if isinstance(step, s.CreateTable):
        made = step.definition
        if not (step.may_exist and made.name in store.tables.by_name):
            db.create_table(made.name, made.columns, made.primary_key, made.partition)
    elif isinstance(step, DropDatabase):
        for name in sorted(store.tables.by_name):
            if name.startswith(step.database + ".") and step.wanted.wants(name):
                db.drop_table(name)
    elif isinstance(step, s.DropTable):
        if not (step.may_be_missing and step.table not in store.tables.by_name):
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
        db.set_default(step.table, step.column, _default(step, store.tables.named(step.table).definition, session))
    elif isinstance(step, s.CreateIndex):
        index = step.index
        db.create_index(step.table, index.name, index.columns, index.is_unique, ordered=index.is_ordered)
    elif isinstance(step, s.DropIndex):
        # An index over prefixes of values was never created here.
        if any(index.name == step.index for index in store.tables.named(step.table).definition.indexes):
            db.drop_index(step.table, step.index)
    elif isinstance(step, s.RenameIndex):
        _rename_index(step, db, store)
    elif isinstance(step, s.AddPartition):
        definition = store.tables.named(step.table).definition
        db.add_partition(step.table, step.partition, typed_bound(definition, step.bound, session))
    elif isinstance(step, s.DropPartition):
        db.drop_partition(step.table, step.partition)


def truncate(step: Truncate, txn: Transaction) -> int:
    """Delete the rows of a step; return their number."""
    table = txn.store.tables.named(step.table)
    return delete_partitions(txn, table, step.partitions) if step.partitions else delete_all(txn, table)


def _column(definition: TableDefinition, name: str) -> Column:
    for column in definition.columns:
        if column.name == name:
            return column
    raise Unsupported(f"{definition.name} has no column {name!r} here")


def _rename_index(step: s.RenameIndex, db: Schema, store: Store) -> None:
    """Build the index under its new name, then drop the old one: a unique one is in force all the time."""
    indexes = {each.name: each for each in store.tables.named(step.table).definition.indexes}
    index = indexes.get(step.index)
    if index is None:
        return  # an index over prefixes of values, which was never created here
    if step.to not in indexes:
        db.create_index(step.table, step.to, index.columns, index.is_unique, ordered=index.is_ordered)
    db.drop_index(step.table, step.index)


def _change(step: s.ChangeColumn, db: Schema, store: Store) -> None:
    wanted = step.column
    definition = store.tables.named(step.table).definition
    there = _column(definition, wanted.name)
    nullable, kind = _takes_null(wanted, there, definition), _type_after(step, there)
    if nullable or kind != there.type:
        db.widen_column(step.table, wanted.name, kind, nullable=nullable)
    default = _default_of(wanted, there, nullable)
    if default != there.default:
        db.set_default(step.table, wanted.name, default)


def table_of_text(text: str, database: str, is_mariadb: bool) -> s.CreateTable:
    """Return the table that the text of SHOW CREATE TABLE describes, shown to a session in UTC. Raises: Unsupported."""
    shown = Session(time_zone="+00:00", is_mariadb=is_mariadb)
    (statement,) = parse(text, database, None if OURS in text else shown)
    if not isinstance(statement, s.CreateTable):
        raise Unsupported(f"{text[:_SHOWN_CHARACTERS]!r} does not create a table")
    return statement
