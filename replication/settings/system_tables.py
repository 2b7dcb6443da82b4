"""The tables of replication in the database `mysql`: their definitions, the check of a table against its definition,
how they are created, and how their rows are read and written.

Five belong to every store; two of them exist only in Tidemark: one names the tables that a first copy is creating, the
other has the numbers of sequences (`engine/store/sequences.py`).
Each is created when a call or a channel first names it. So a store that does not replicate writes nothing for them, and
the numbers of its tables are not affected. They cannot be dropped or altered.

Each has a schema record of its own, like any table: after a crash some of them may exist, and the others are created
when they are first named.

Where releases of the server differ: `ndb_binlog_index` has its newest columns (`next_position`, `next_file`; the four
counts are INT as since 6.3), `ndb_schema` those of 5.1 (`slock` instead of a separate participant bitmap),
`ndb_replication` the five columns that the manual shows; the row slice columns of newer releases are accepted.
`binlog_type` and `conflict_fn` are nullable, because the manual's examples insert NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tidemark.engine.access.batch_operations import decode_entries, scan
from tidemark.engine.base.errors import SchemaInvalid, TableExists
from tidemark.engine.base.limits import NAME_CHARACTERS_MAX
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.partition import HashPartition, KeyPartition, Partition
from tidemark.engine.store.sequences import SEQUENCES_TABLE
from tidemark.engine.txn.transaction import Transaction
from tidemark.engine.types import Binary, Blob, ColumnType, UInt32, UInt64, VarBinary, VarChar
from tidemark.replication.settings.finding import ER_REPLICATION_SCHEMA, Finding

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table

NDB_REPLICATION = "mysql.ndb_replication"
NDB_APPLY_STATUS = "mysql.ndb_apply_status"
NDB_BINLOG_INDEX = "mysql.ndb_binlog_index"
NDB_SCHEMA = "mysql.ndb_schema"
TIDEMARK_FIRST_COPY = "mysql.tidemark_first_copy"

# Columns of names of files, ASCII alone, that the manual makes latin1: a server refuses their rows as utf8mb4 (1677).
LATIN1_COLUMNS: Final = frozenset({(NDB_APPLY_STATUS, "log_name")})

NAME_BYTES = 63
_NAME = VarBinary(NAME_BYTES)
_FILE = VarChar(255)
# One fragment is enough for one row per server, epoch or table; a local checkpoint writes a file per fragment.
_ONE = HashPartition(1)


def _table(name: str, key: Iterable[str], *columns: Column, partition: Partition = _ONE) -> TableDefinition:
    return TableDefinition(0, 1, name, columns, tuple(key), partition)


def _columns(kind: ColumnType, *names: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind) for name in names)


NDB_REPLICATION_TABLE: Final = _table(
    NDB_REPLICATION,
    ("db", "table_name", "server_id"),
    *_columns(_NAME, "db", "table_name"),
    Column("server_id", UInt32),
    Column("binlog_type", UInt32, nullable=True),
    Column("conflict_fn", VarBinary(128), nullable=True),
    partition=KeyPartition(1, ("db", "table_name")),
)
NDB_APPLY_STATUS_TABLE: Final = _table(
    NDB_APPLY_STATUS,
    ("server_id",),
    Column("server_id", UInt32),
    Column("epoch", UInt64),
    Column("log_name", _FILE),
    *_columns(UInt64, "start_pos", "end_pos"),
)
NDB_BINLOG_INDEX_TABLE: Final = _table(
    NDB_BINLOG_INDEX,
    ("epoch", "orig_server_id", "orig_epoch"),
    Column("Position", UInt64),
    Column("File", _FILE),
    Column("epoch", UInt64),
    *_columns(UInt32, "inserts", "updates", "deletes", "schemaops", "orig_server_id"),
    Column("orig_epoch", UInt64),
    Column("gci", UInt32),
    Column("next_position", UInt64),
    Column("next_file", _FILE),
)
NDB_SCHEMA_TABLE: Final = _table(
    NDB_SCHEMA,
    ("db", "name"),
    *_columns(_NAME, "db", "name"),
    Column("slock", Binary(32)),
    Column("query", Blob),
    Column("node_id", UInt32),
    Column("epoch", UInt64),
    *_columns(UInt32, "id", "version", "type"),
)
FIRST_COPY_TABLE: Final = _table(
    TIDEMARK_FIRST_COPY,
    ("source_id", "table_name"),
    Column("source_id", UInt32),
    Column("table_name", VarChar(2 * NAME_CHARACTERS_MAX + 1)),
)
# Created when first named; `ndb_replication` is created by the user.
MADE_WITH_STORE: Final = (
    NDB_APPLY_STATUS_TABLE,
    NDB_BINLOG_INDEX_TABLE,
    NDB_SCHEMA_TABLE,
    FIRST_COPY_TABLE,
    SEQUENCES_TABLE,
)
MADE_BY_NAME: Final = {table.name: table for table in MADE_WITH_STORE}
SYSTEM_TABLES: Final = {table.name: table for table in (NDB_REPLICATION_TABLE, *MADE_WITH_STORE)}

# Columns that a table may have in addition to the required ones, and columns that it may lack.
OPTIONAL: Final[dict[str, dict[str, ColumnType]]] = {
    NDB_REPLICATION: {"binlog_row_slice_count": UInt32, "binlog_row_slice_id": UInt32}
}
MAY_LACK: Final = {NDB_REPLICATION: frozenset({"conflict_fn"})}


def verify(definition: TableDefinition) -> list[Finding]:
    """Return the faults of a system table's definition, in the server's words; empty if there are none. Unknown columns
    must be nullable or have a default, so that rows can be written without them.

    Raises: KeyError for any other table.
    """
    expected = SYSTEM_TABLES[definition.name]
    parts = len(expected.primary_key)

    def fault(rule: str, column: str | None = None) -> Finding:
        text = f"Bad schema for {definition.name} table. Message: {rule}"
        return Finding(rule, text, column, ER_REPLICATION_SCHEMA)

    faults = []
    if len(definition.primary_key) != parts:
        faults.append(fault(f"Wrong number of primary key parts, expected {parts}"))
    elif definition.primary_key != expected.primary_key:
        faults.append(fault(f"Wrong primary key, expected {', '.join(expected.primary_key)}"))
    found = {column.name: column for column in definition.columns}
    for column in expected.columns:
        there = found.pop(column.name, None)
        if there is None and column.name in MAY_LACK.get(definition.name, ()):
            continue
        if there is None or not _holds(there.type, column.type) or (column.nullable and not there.nullable):
            faults.append(fault(f"Missing or wrong type for column '{column.name}'", column.name))
    optional = OPTIONAL.get(definition.name, {})
    for column in found.values():
        if column.name in optional:
            if column.type != optional[column.name]:
                faults.append(fault(f"Missing or wrong type for column '{column.name}'", column.name))
        elif not column.nullable and not column.has_default:
            faults.append(fault(f"Extra column '{column.name}' is not nullable and has no default", column.name))
    return faults


def _holds(kind: ColumnType, wanted: ColumnType) -> bool:
    """Whether a type is the wanted one, or a longer one of names, functions and files, or UInt64 instead of UInt32."""
    if type(kind) is type(wanted) and 0 < wanted.bytes_max <= kind.bytes_max:
        return True
    return kind == wanted or (kind == UInt64 and wanted == UInt32)


# --- creation and rows ----------------------------------------------------------------------------
def make(store: Store, name: str) -> Table | None:
    """Return the table of this name if it belongs to every store, created if it is missing; None for any other name.

    Durable on return. Raises: MemoryExhausted, RedoOverloaded, StoreFailed.
    """
    return made_table(store, name) if name in MADE_BY_NAME else None


def made_table(store: Store, name: str) -> Table:
    """Return a table that belongs to every store, created if it is missing. Durable on return: the table. Raises: as
    `make`.
    """
    return made(store, MADE_BY_NAME[name])


def made(store: Store, definition: TableDefinition) -> Table:
    """Return the table of this name, created with the definition if it is missing. Durable on return: the table.
    Raises: as `make`.
    """
    found = store.tables.by_name.get(definition.name)
    if found is None:
        try:
            return store.create_table(definition)
        except TableExists:  # another thread has just created it
            found = store.tables.by_name[definition.name]
    return found


def rows_of(table: Table, txn: Transaction | None = None) -> Iterator[dict[str, Any]]:
    """Yield all rows of a small table by column name, as committed or as a transaction sees them."""
    for batch in scan(table, txn):
        yield from decode_entries(table.format, batch.entries, batch.offsets, batch.count, None).to_pylist()


def rows_named(store: Store, name: str) -> Iterable[dict[str, Any]]:
    """Return the rows of a small table as committed, none without the table."""
    table = store.tables.by_name.get(name)
    return () if table is None else rows_of(table)


def replication_rows(store: Store) -> list[dict[str, Any]]:
    """Return the rows of `mysql.ndb_replication`, none if there is no such table or its definition is wrong."""
    table = store.tables.by_name.get(NDB_REPLICATION)
    return [] if table is None or verify(table.definition) else list(rows_of(table))


@contextmanager
def one_transaction(
    store: Store,
    any_value: int = 0,
    author: int = 0,
    waits_for_disk: bool = False,
    kind: type[Transaction] = Transaction,
) -> Iterator[Transaction]:
    """Commit the changes of the `with` block as one transaction; roll it back after an error. Raises: as a commit."""
    txn = store.transactions.begin(any_value, author, kind)
    try:
        yield txn
        txn.commit(waits_for_disk)
    except BaseException:
        txn.rollback()
        raise


def refuse_change(name: object) -> None:
    """Refuse to drop or alter a table that belongs to every store. Raises: SchemaInvalid for the name of one."""
    if isinstance(name, str) and name in MADE_BY_NAME:
        raise SchemaInvalid(
            f"table {name} belongs to every store and cannot be dropped or altered; change its rows instead", table=name
        )


def refuse_wrong(definition: TableDefinition) -> None:
    """Refuse a system table with a wrong definition. Raises: SchemaInvalid, with the server's text."""
    if definition.name in SYSTEM_TABLES:
        for fault in verify(definition):
            raise SchemaInvalid(fault.text, table=definition.name, column=fault.column, errno=fault.errno)
