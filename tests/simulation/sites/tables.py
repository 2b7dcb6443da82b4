"""The tables of simulated sites: one that sites change, a journal to which every transaction adds a row, and exceptions
tables with the conflicts that their appliers found.

The journal shows doubles and losses: each transaction inserts a unique row, and the table's function makes a second
insert a conflict, which is counted and has its exceptions row.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.sites.plan import Plan
from tidemark.engine.access.batch_operations import scan
from tidemark.engine.schema.column import Column
from tidemark.engine.types import Enum, Int32, UInt32, UInt64, VarChar

Rows = dict[int, tuple[Any, ...]]  # by key
MAIN = "sim.main"
JOURNAL = "sim.journal"
JOURNAL_FUNCTION = b"NDB$MAX_DELETE_WIN(stamp)"
SUFFIX = "$EX"
OWNED, OWNER_SPAN, SHARED_FROM, COMMON_FROM = 0, 10_000, 1_000, 1_000_000

MAIN_COLUMNS = (
    Column("id", Int32),
    Column("tag", UInt64),
    Column("stamp", UInt64),
    Column("note", VarChar(20), nullable=True),
    Column("code", VarChar(8), nullable=True),  # has a unique index in some plans
)
JOURNAL_COLUMNS = (Column("id", UInt64), Column("stamp", UInt64))
_HEAD = (
    Column("NDB$server_id", UInt32),
    Column("NDB$source_server_id", UInt32),
    Column("NDB$source_epoch", UInt64),
    Column("NDB$count", UInt32),
    Column("NDB$OP_TYPE", Enum("WRITE_ROW", "UPDATE_ROW", "DELETE_ROW", "REFRESH_ROW", "READ_ROW")),
    Column(
        "NDB$CFT_CAUSE",
        Enum("ROW_DOES_NOT_EXIST", "ROW_ALREADY_EXISTS", "DATA_IN_CONFLICT", "TRANS_IN_CONFLICT"),
    ),
    Column("NDB$ORIG_TRANSID", UInt64, nullable=True),
)


def owner_of(key: int) -> int | None:
    """Return the site that alone changes a row, None if several sites may."""
    return key // OWNER_SPAN if key < COMMON_FROM and key % OWNER_SPAN < SHARED_FROM else None


def make_tables(db: Any, plan: Plan, number: int) -> None:
    """Make the settings first, because they are read when tables are made; then the tables."""
    site = plan.sites[number]
    db.create_replication_table()
    spec = plan.case.spec if site.has_function else None
    function = None if spec is None else spec.format(bits=plan.bits).encode()
    db["mysql.ndb_replication"].write((b"sim", b"main", 0, site.binlog_type, function))
    db["mysql.ndb_replication"].write((b"sim", b"journal", 0, 7, JOURNAL_FUNCTION))
    key = [column.name for column in _HEAD[:4]]
    for name, columns in ((MAIN, MAIN_COLUMNS), (JOURNAL, JOURNAL_COLUMNS)):
        if name + SUFFIX not in db:
            db.create_table(name + SUFFIX, (*_HEAD, columns[0]), key)
    for name, columns in ((MAIN, MAIN_COLUMNS), (JOURNAL, JOURNAL_COLUMNS)):
        if name not in db:
            db.create_table(name, columns, "id")
    if plan.has_unique:
        db.create_index(MAIN, "by_code", ["code"], unique=True)


def rows_of(db: Any, name: str) -> list[tuple[Any, ...]]:
    """Return all committed rows, by key."""
    return sorted(tuple(row) for row in db[name].scan())


def own_rows(db: Any, name: str) -> Rows:
    """Return the rows whose last change was made here."""
    table = db.parts.store.tables.named(name)
    found = [
        tuple(table.format.decode_row(batch.entries.data.cast("B"), int(offset)))
        for batch in scan(table, None)
        for offset in batch.offsets[batch.authors() == 0]
    ]
    return {row[0]: row for row in found}


def exceptions_of(db: Any, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table's exceptions table."""
    names = [*(column.name for column in _HEAD), "id"]
    return [dict(zip(names, row, strict=True)) for row in db[name + SUFFIX].scan()]
