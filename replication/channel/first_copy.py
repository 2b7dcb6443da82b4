"""The first copy of a replica: every table of a source as at the end of one closed epoch, copied into a store that has
none of them. The channel continues after that epoch.

`Copied` is sent in this order: all tables, their rows in batches, then their indexes and the epoch.

Order of writes of the replica (`CopyTarget`): the names of the tables as marks in `mysql.tidemark_first_copy`, durable;
the tables; their rows, one transaction for each batch; the indexes; in one transaction the source's row of
`mysql.ndb_apply_status` and the removal of the marks; durable. Invariants: (P1) While there are marks of the source,
the copy is incomplete: a new copy drops its tables and begins anew, and a channel without a copy is refused. (P2) The
source's row exists only after the rows it stands for. Marks are rows, so they are wherever the tables are: at every
node of a group, and in a backup.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.batch_operations import decode_entries, insert_many
from tidemark.engine.access.row_operations import delete, insert
from tidemark.engine.access.snapshot import Snapshot
from tidemark.engine.base.errors import Rejected, Retryable
from tidemark.engine.schema.names import is_system_table
from tidemark.replication.applier.apply_status import write_row
from tidemark.replication.applier.filters import Filter
from tidemark.replication.applier.schema_statements import apply_statement, as_new
from tidemark.replication.settings.any_value import NO_LOGGING
from tidemark.replication.settings.system_tables import (
    NDB_APPLY_STATUS,
    TIDEMARK_FIRST_COPY,
    made_table,
    one_transaction,
    rows_of,
)
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.emit import emit

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.store.store import Store
    from tidemark.engine.txn.transaction import Transaction

    Progress = Callable[[int, int, str], None]

RETRIES = 10
RETRY_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class CopiedTable:
    """A table, the statement that creates it, and the number of its rows."""

    name: str
    statement: str
    rows: int


@dataclass(frozen=True)
class CopiedRows:
    """Some rows of a table, all columns."""

    table: str
    rows: pa.RecordBatch


@dataclass(frozen=True)
class CopiedEnd:
    """(table, statement with its indexes) pairs; the source's epoch; (server id, epoch) pairs that the source had
    applied.
    """

    statements: tuple[tuple[str, str], ...]
    epoch: int
    positions: tuple[tuple[int, int], ...]


Copied = CopiedTable | CopiedRows | CopiedEnd


# --- at the source --------------------------------------------------------------------------------
def copy_of(store: Store, wanted: Filter, reach: Callable[[int], None]) -> Generator[Copied]:
    """Yield everything of a first copy. Writers continue; the snapshot ends with the iterator. reach: waits until the
    binlog has an epoch. It is called with the epoch of the copy, after which the channel will continue.

    Raises: SnapshotTooOld if writers have changed more than `snapshot_memory` holds, LimitExceeded, StoreFailed.
    """
    snapshot = store.snapshots.begin(store, Snapshot)
    try:
        names = sorted(name for name in snapshot.by_name if not is_system_table(name) and wanted.takes_table(name))
        tables = [snapshot.table_of(name) for name in names]
        for table in tables:
            numbers = range(len(table.fragments))
            rows = snapshot_reads.count(snapshot, table, numbers)
            yield CopiedTable(table.name, emit(s.CreateTable(as_new(table.definition))), rows)
        for table in tables:
            columns = [each.name for each in table.definition.columns]
            for batch in snapshot_reads.scan(snapshot, table, columns, None, range(len(table.fragments))):
                rows_of_batch = decode_entries(table.format, batch.entries, batch.offsets, batch.count, columns)
                yield CopiedRows(table.name, rows_of_batch)
        whole = [replace(as_new(each.definition), indexes=each.definition.indexes) for each in tables]
        statements = tuple((each.name, emit(s.CreateTable(each))) for each in whole if each.indexes)
        reach(snapshot.epoch)
        yield CopiedEnd(statements, snapshot.epoch, _positions(snapshot))
    finally:
        snapshot.close()


def _positions(snapshot: Snapshot) -> tuple[tuple[int, int], ...]:
    """Return (server id, epoch) pairs that the source had applied when the snapshot was taken."""
    if NDB_APPLY_STATUS not in snapshot.by_name:
        return ()
    table = snapshot.table_of(NDB_APPLY_STATUS)
    found: list[tuple[int, int]] = []
    columns = ["server_id", "epoch"]
    for batch in snapshot_reads.scan(snapshot, table, columns, None, range(len(table.fragments))):
        rows = decode_entries(table.format, batch.entries, batch.offsets, batch.count, columns)
        found += zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True)
    return tuple(found)


# --- at the replica -------------------------------------------------------------------------------
def _marked(store: Store) -> list[tuple[int, str]]:
    """Return (source, table) for every table that a copy is creating, or an interrupted one has left."""
    if TIDEMARK_FIRST_COPY not in store.tables:
        return []
    return [(row["source_id"], row["table_name"]) for row in rows_of(store.table(TIDEMARK_FIRST_COPY))]


def is_interrupted(store: Store) -> bool:
    """Whether a first copy has begun here and was interrupted."""
    return bool(_marked(store))


class CopyTarget:
    """The replica's side of one copy: `begin`, then every item of `Copied` in its order."""

    def __init__(self, store: Store, own_id: int, source_id: int, progress: Progress | None) -> None:
        self.store = store
        self._own_id = own_id
        self._source_id = source_id
        self._progress = progress
        self._tables: dict[str, CopiedTable] = {}
        self._is_made = False
        self._done = 0
        self.epoch = 0  # the source's epoch, 0 until the copy is complete

    def begin(self, is_positioned: bool) -> bool:
        """Drop the tables of an interrupted copy; return whether a copy is needed. None is needed if no copy was
        interrupted and `is_positioned`, that is, `ndb_apply_status` has the source's row.

        Durable on return: the drops. Raises: SchemaInvalid, StoreFailed.
        """
        left = self._left()
        for name in left:
            if name in self.store.tables:
                self.store.drop_table(name)
        self.store.log.flush()
        return bool(left) or not is_positioned

    def _left(self) -> list[str]:
        """Return the tables that an interrupted copy from this source may have created."""
        return [name for source_id, name in _marked(self.store) if source_id == self._source_id]

    def take(self, item: Copied) -> None:
        """Take the next item. Durable on return of `CopiedEnd`: everything.

        Raises: Rejected if a table exists already, and the errors of the store's calls.
        """
        if isinstance(item, CopiedTable):
            self._tables[item.name] = item
            return
        if not self._is_made:
            self._make_tables()
        if isinstance(item, CopiedRows):
            self._insert(item)
        else:
            self.finish(item)

    def _make_tables(self) -> None:
        self._is_made = True
        there = sorted(name for name in self._tables if name in self.store.tables)
        if there:
            raise Rejected(
                f"the replica has {', '.join(there[:3])} already; a first copy needs a replica without the tables it"
                " copies; leave them out with replicate_ignore, or drop them if their rows are not needed",
                tables=there,
            )
        table = made_table(self.store, TIDEMARK_FIRST_COPY)

        def mark(txn: Transaction) -> None:
            self._unmark(txn)
            for name in self._tables:
                insert(txn, table, (self._source_id, name))

        self._run(NO_LOGGING, 0, mark)
        self.store.log.flush()
        for each in self._tables.values():
            apply_statement(self.store, "", each.statement, self._source_id)

    def _insert(self, item: CopiedRows) -> None:
        table = self.store.table(item.table)
        self._run(self._source_id, self._source_id, lambda txn: insert_many(txn, table, item.rows))
        self._done += item.rows.num_rows
        if self._progress is not None:
            self._progress(self._done, sum(each.rows for each in self._tables.values()), "rows")

    def finish(self, end: CopiedEnd) -> None:
        for _, statement in end.statements:
            apply_statement(self.store, "", statement, self._source_id)
        made_table(self.store, NDB_APPLY_STATUS)

        def positions(txn: Transaction) -> None:
            for server_id, epoch in end.positions:
                # Epochs of this site belong to a store that no longer exists.
                if server_id not in (self._own_id, self._source_id):
                    write_row(txn, server_id, epoch)
            write_row(txn, self._source_id, end.epoch)
            self._unmark(txn)

        self._run(0, 0, positions)
        self.store.log.flush()
        self.epoch = end.epoch

    def _unmark(self, txn: Transaction) -> None:
        table = made_table(self.store, TIDEMARK_FIRST_COPY)
        for name in self._left():
            delete(txn, table, (self._source_id, name))

    def _run(self, any_value: int, author: int, work: Callable[[Transaction], Any]) -> None:
        """Run one transaction; retry it after a Retryable has rolled it back."""
        for attempt in range(RETRIES + 1):
            try:
                with one_transaction(self.store, any_value, author) as txn:
                    work(txn)
                return
            except Retryable:
                if attempt == RETRIES:
                    raise
                self.store.clock.sleep(RETRY_PAUSE_SECONDS)


def copy_within(store: Store, wanted: Filter, reach: Callable[[int], None], take: Callable[[Copied], None]) -> None:
    """Copy from a store of the same process. Raises: the errors of `copy_of` and of `take`."""
    with closing(copy_of(store, wanted, reach)) as items:
        for item in items:
            take(item)
