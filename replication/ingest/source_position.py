"""The position of a source: one row for each source in an ordinary table of the store.

The row is written in the same transaction as the rows that it counts, so they commit together. A schema change is not
part of a transaction. Before its n-th step, `step` n is made durable; a process that finds this after a crash checks in
the schema whether the step has happened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from tidemark.engine.access.row_operations import get_committed, write
from tidemark.engine.base.errors import PeerRefused
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.types import Enum, Text, Timestamp, UInt32, UInt64, VarChar
from tidemark.replication.ingest.transactions import Place
from tidemark.replication.settings.system_tables import one_transaction

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.txn.transaction import Transaction

INGEST = "mysql.tidemark_ingest"
COPYING, STREAMING = "copying", "streaming"
# The only definition of the table.
INGEST_TABLE: Final = TableDefinition(
    0,
    1,
    INGEST,
    (
        Column("source", VarChar(255)),
        Column("server_id", UInt32),
        Column("state", Enum(COPYING, STREAMING)),
        Column("file", VarChar(255)),
        Column("position", UInt64),
        # When the file was begun, 0 if unknown: distinguishes it from a later file of the same name.
        Column("file_created_s", UInt32),
        Column("step", UInt32),  # the begun step of the statement at the position; 0: none
        Column("gtid", VarChar(255)),
        Column("transactions", UInt64),
        Column("changed_rows", UInt64),
        Column("committed", Timestamp, nullable=True),  # at the source
        Column("copied", Text, nullable=True),  # tables that an incomplete copy may have created, a line each
    ),
    ("source",),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SourcePosition:
    """The row of a source."""

    source: str
    server_id: int
    file: str
    position: int
    file_created_s: int = 0
    state: str = STREAMING
    step: int = 0
    gtid: str = ""
    transactions: int = 0
    changed_rows: int = 0
    committed: datetime | None = None
    copied: str | None = None

    def after(self, place: Place, transactions: int, rows: int) -> SourcePosition:
        """Return the row at `place`, with `transactions` and `rows` added to the counts."""
        when = _EPOCH + timedelta(seconds=place.timestamp_s) if place.timestamp_s else self.committed
        return replace(
            self,
            file=place.file,
            position=place.position,
            file_created_s=place.created_s or (self.file_created_s if place.file == self.file else 0),
            step=0,
            gtid=place.gtid or self.gtid,
            transactions=self.transactions + transactions,
            changed_rows=self.changed_rows + rows,
            committed=when,
        )

    def write(self, txn: Transaction) -> None:
        row: dict[str, Any] = {column.name: getattr(self, column.name) for column in INGEST_TABLE.columns}
        write(txn, txn.store.tables.named(INGEST), row)

    def save(self, store: Store) -> None:
        """Write the row in a transaction of its own. Durable on return, whatever the store's durability."""
        with one_transaction(store, waits_for_disk=True) as txn:
            self.write(txn)


def read_source_position(store: Store, source: str) -> SourcePosition | None:
    """Return the row of a source, None without one. Raises: PeerRefused if the table has another definition."""
    if INGEST not in store.tables.by_name:
        return None
    table = store.tables.named(INGEST)
    names = [column.name for column in INGEST_TABLE.columns]
    if [(column.name, column.type) for column in table.definition.columns] != [
        (column.name, column.type) for column in INGEST_TABLE.columns
    ]:
        raise PeerRefused(f"{INGEST} is not a table of positions; rename it, and the next start makes a new one")
    row = get_committed(table, source)
    return None if row is None else SourcePosition(**{name: getattr(row, name) for name in names})
