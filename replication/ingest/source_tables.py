"""What the store knows of the source's tables beyond its own definitions: the types and character sets at the source.

One row for each table in `mysql.tidemark_ingest_tables`, and one for each database with its default character set. Rows
are written in the transaction of the position after the statement, or with the end of a copy. A table without a row, or
whose row belongs to an earlier table of that name, is one of unknown types: then statements stop more often. So it is
never wrong to delete a row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tidemark.engine.access.row_operations import delete, get_committed, write
from tidemark.engine.programs.expressions import col
from tidemark.engine.queries.conditional_changes import delete_where
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.types import Text, UInt64, VarChar
from tidemark.replication.ingest.schema import Schema, make_missing
from tidemark.replication.settings.system_tables import one_transaction
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.server_types import ServerType

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.txn.transaction import Transaction

INGEST_TABLES = "mysql.tidemark_ingest_tables"
# The only definition of the table.
INGEST_TABLES_TABLE: Final = TableDefinition(
    0,
    1,
    INGEST_TABLES,
    (
        Column("name", VarChar(255)),  # database.table, or a database
        Column("table_id", UInt64),  # the store's; 0: a database
        Column("charset", VarChar(64)),  # the default of new columns, or tables; "" if unknown
        Column("types", Text),  # of the columns at the source, JSON
    ),
    ("name",),
)


@dataclass(frozen=True)
class SourceTable:
    """A table at the source: its default character set, "" if it is not known, and the known types of its columns."""

    charset: str = ""
    types: dict[str, ServerType] = field(default_factory=dict)


UNKNOWN = SourceTable()
# Types that stay what they are in another character set; others may become longer ones.
_KEPT = ("CHAR", "VARCHAR", "ENUM", "SET")
_CHARACTERS_KEPT = 16_000


class SourceTables:
    """The rows of a store, and what a statement makes of them. One thread at a time may call it."""

    def __init__(self, store: Store, db: Schema) -> None:
        self._store, self._db = store, db

    def of(self, name: str) -> SourceTable:
        """Return what is known of a table or database; `UNKNOWN` for a table that is another than the row's."""
        if INGEST_TABLES not in self._store.tables.by_name:
            return UNKNOWN
        row = get_committed(self._store.tables.named(INGEST_TABLES), name)
        if row is None or row.table_id != self._id_of(name):
            return UNKNOWN
        types = {
            column: ServerType(word, tuple(numbers), tuple(members), is_unsigned, charset)
            for column, word, numbers, members, is_unsigned, charset in json.loads(row.types)
        }
        return SourceTable(row.charset, types)

    def read(self, steps: Sequence[s.Statement]) -> tuple[list[s.Statement], dict[str, SourceTable | None]]:
        """Return the steps of a statement with the types of the columns they change, and what is known after them, by
        name; None where nothing is known any more. A step made before a crash may lose what is known, no more.
        """
        typed: list[s.Statement] = []
        changed: dict[str, SourceTable | None] = {}

        def now(name: str) -> SourceTable:
            return (changed[name] if name in changed else self.of(name)) or UNKNOWN

        for step in steps:
            typed.append(_typed(step, now(step.table)) if isinstance(step, s.TableChange) else step)
            if isinstance(step, (s.CreateTable, s.CreateLike)):
                name = step.definition.name if isinstance(step, s.CreateTable) else step.table
                if name in self._store.tables.by_name and changed.get(name, UNKNOWN) is not None:
                    continue  # IF NOT EXISTS
                of_database = now(name.partition(".")[0]).charset
                changed[name] = now(step.like) if isinstance(step, s.CreateLike) else _made(step, of_database)
            elif isinstance(step, s.DropTable):
                changed[step.table] = None
            elif isinstance(step, s.RenameTable):
                changed[step.to], changed[step.table] = now(step.table), None
            elif isinstance(step, s.DatabaseCharset):
                changed[step.database] = SourceTable(step.charset)
            elif isinstance(step, s.TableChange):
                changed[step.table] = _changed(step, now(step.table))
        return typed, changed

    def write(self, txn: Transaction, changed: dict[str, SourceTable | None]) -> None:
        """Write rows in a transaction. Their tables exist; the table of the rows does, after `make_room`."""
        if not changed:
            return
        table = self._store.tables.named(INGEST_TABLES)
        for name, known in changed.items():
            number = self._id_of(name)
            if known is None or number is None:
                if get_committed(table, name) is not None:
                    delete(txn, table, name)
                continue
            types = [
                (column, each.word, each.numbers, each.members, each.is_unsigned, each.charset)
                for column, each in known.types.items()
            ]
            write(txn, table, {"name": name, "table_id": number, "charset": known.charset, "types": json.dumps(types)})

    def make_room(self) -> None:
        """Create the table of the rows if it is missing. Durable on return."""
        make_missing(INGEST_TABLES_TABLE, self._db, self._store)

    def save(self, changed: dict[str, SourceTable | None]) -> None:
        """Write rows in a transaction of their own. Durable on return."""
        self.make_room()
        with one_transaction(self._store, waits_for_disk=True) as txn:
            self.write(txn, changed)

    def forget(self) -> None:
        """Delete all rows: a statement was skipped, and what it did at the source is not known. Durable on return."""
        if INGEST_TABLES in self._store.tables.by_name:
            table = self._store.tables.named(INGEST_TABLES)
            with one_transaction(self._store, waits_for_disk=True) as txn:
                delete_where(txn, table, ~col("name").is_null())

    def _id_of(self, name: str) -> int | None:
        """Return the number that the row of a table has; None without a table."""
        if "." not in name:
            return 0
        table = self._store.tables.by_name.get(name)
        return None if table is None else table.definition.table_id


def _made(step: s.CreateTable, of_database: str) -> SourceTable | None:
    if not step.served:
        return None
    charset = step.charset or of_database
    names = [column.name for column in step.definition.columns]
    return SourceTable(charset, {name: _in(each, charset) for name, each in zip(names, step.served, strict=True)})


def _in(served: ServerType, charset: str) -> ServerType:
    """Return a type in the character set of its table, if it has none of its own."""
    has_text = served.is_text or served.word in ("ENUM", "SET")
    return replace(served, charset=charset) if has_text and not served.charset else served


def _typed(step: s.TableChange, known: SourceTable) -> s.TableChange:
    """Return a step with the type of the column before it, and in its table's character set."""
    if isinstance(step, s.ChangeColumn) and step.served is not None:
        return replace(step, served=_in(step.served, known.charset), was=known.types.get(step.column.name))
    return replace(step, was=known.types.get(step.column)) if isinstance(step, s.SetDefault) else step


def _changed(step: s.TableChange, known: SourceTable) -> SourceTable:
    types = dict(known.types)
    if isinstance(step, (s.AddColumn, s.ChangeColumn)):
        types.pop(step.column.name, None)
        if step.served is not None:
            types[step.column.name] = _in(step.served, known.charset)
    elif isinstance(step, s.DropColumn):
        types.pop(step.column, None)
    elif isinstance(step, s.RenameColumn):
        if step.column in types:
            types[step.to] = types.pop(step.column)
    elif isinstance(step, s.SetCharset):
        if step.is_conversion:
            types = {name: replace(each, charset=step.charset) if each.charset else each for name, each in types.items()
                     if not each.charset or (each.word in _KEPT and each.numbers < (_CHARACTERS_KEPT,))}  # fmt: skip
        return SourceTable(step.charset, types)
    return replace(known, types=types)
