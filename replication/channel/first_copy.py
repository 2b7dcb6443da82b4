"""The copy that begins a replica: every table of a source as at the end of one closed epoch. The channel continues
after that epoch. A later copy replaces the tables of a replica that can no longer follow its source.

`Copied` is sent in this order: all tables, their rows in batches, then their indexes and the epoch.

Order of writes of the replica (`CopyTarget`): in one transaction, the names of the tables as marks in
`mysql.tidemark_first_copy`, without the source's row of `mysql.ndb_apply_status`; durable; the drops of tables that are
replaced; the tables; their rows, one transaction for each batch; the indexes; in one transaction the source's row and
the removal of the marks; durable. Invariants: (P1) While there are marks of the source, the copy is incomplete: a new
copy drops its tables and begins anew, and a channel without a copy is refused. (P2) The source's row exists only after
the rows it stands for. (P3) No row that was written here is dropped with its table, unless a copy of that table was
interrupted. Marks are rows, so they are wherever the tables are: at every node of a group, and in a backup.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.batch_operations import decode_entries, insert_many, scan
from tidemark.engine.access.row_operations import delete, insert
from tidemark.engine.access.snapshot import Snapshot
from tidemark.engine.base.errors import Rejected
from tidemark.engine.schema.names import is_system_table
from tidemark.engine.store.schema_changes import as_new
from tidemark.engine.txn.transaction import DecidedTransaction
from tidemark.replication.applier.applier import retried
from tidemark.replication.applier.apply_status import write_row
from tidemark.replication.applier.filters import Filter
from tidemark.replication.applier.heartbeat import HEARTBEAT
from tidemark.replication.applier.schema_statements import apply_statement
from tidemark.replication.settings.any_value import NO_LOGGING
from tidemark.replication.settings.system_tables import (
    NDB_APPLY_STATUS,
    TIDEMARK_FIRST_COPY,
    made_table,
    one_transaction,
    rows_named,
    rows_of,
)
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.emit import emit

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction

    Progress = Callable[[int, int, str], None]

_log = logging.getLogger("tidemark.replication")
RETRIES = 10


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
    snapshot = store.snapshots.begin(Snapshot)
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
    return [(row["source_id"], row["table_name"]) for row in rows_named(store, TIDEMARK_FIRST_COPY)]


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
        self._follows = False
        self._is_made = False
        self._done = 0
        self.epoch = 0  # the source's epoch, 0 until the copy is complete

    def begin(self, follows: bool) -> None:
        """Drop the tables of an interrupted copy. follows: the replica has followed this source, so tables with the
        names of the source's are its tables.

        Durable on return: the drops. Raises: SchemaInvalid, StoreFailed.
        """
        self._follows = follows
        self._drop(self._left())
        self.store.log.flush()

    def _drop(self, names: Iterable[str]) -> None:
        # With the source as author, or the drop would go back to the source in a circle.
        with self.store.schema.authored(self._source_id):
            for name in names:
                if name in self.store.tables.by_name:
                    self.store.drop_table(name)

    def _left(self) -> list[str]:
        """Return the tables that an interrupted copy from this source may have created."""
        return [name for source_id, name in _marked(self.store) if source_id == self._source_id]

    def take(self, item: Copied) -> None:
        """Take the next item. Durable on return of `CopiedEnd`: everything.

        Raises: Rejected if a table exists already and is not the source's or has rows that were written here, and the
        errors of the store's calls.
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
        there = sorted(name for name in self._tables if name in self.store.tables.by_name)
        self._check_replaced(there)
        table = made_table(self.store, TIDEMARK_FIRST_COPY)
        positions = made_table(self.store, NDB_APPLY_STATUS)

        def mark(txn: Transaction) -> None:
            self._unmark(txn)
            for name in self._tables:
                insert(txn, table, (self._source_id, name))
            if any(row["server_id"] == self._source_id for row in rows_of(positions)):
                delete(txn, positions, self._source_id)

        self._run(NO_LOGGING, 0, mark)
        self.store.log.flush()
        if there:
            _log.warning("the copy of server %d replaces %s", self._source_id, ", ".join(there))
        self._drop(there)
        for each in self._tables.values():
            apply_statement(self.store, "", each.statement, self._source_id)

    def _check_replaced(self, there: list[str]) -> None:
        """Check that these tables may be dropped: they are the source's, and no row of them was written here. Raises:
        Rejected.
        """
        follows, own = self._follows, {}
        for name in there:
            counts = _rows_by_author(self.store.tables.named(name))
            follows = follows or self._source_id in counts
            if counts.get(0) and name != HEARTBEAT:
                own[name] = counts[0]
        if there and not follows:
            raise Rejected(
                f"the replica has {_names(there)} already; a first copy needs a replica without the tables it copies;"
                " leave them out with replicate_ignore, or drop them if their rows are not needed",
                tables=there,
            )
        if own:
            raise Rejected(
                f"{_names(own)} of the replica {'has' if len(own) == 1 else 'have'} rows that were written here"
                f" ({sum(own.values())} in all), and a new copy would drop them; leave the tables out with"
                " replicate_ignore, or drop them if these rows are not needed",
                tables=list(own),
            )

    def _insert(self, item: CopiedRows) -> None:
        table = self.store.tables.named(item.table)
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

        def once() -> None:
            with one_transaction(self.store, any_value, author, kind=DecidedTransaction) as txn:
                work(txn)

        retried(self.store.clock, RETRIES, once)


def _names(tables: Iterable[str]) -> str:
    """Return the first three names, for a message."""
    names = list(tables)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _rows_by_author(table: Table) -> dict[int, int]:
    """Return the number of rows for each site that has changed them last; 0: this one."""
    counts: dict[int, int] = {}
    for batch in scan(table, None, None, table.definition.primary_key):
        for author, count in zip(*np.unique(batch.authors(), return_counts=True), strict=True):
            counts[int(author)] = counts.get(int(author), 0) + int(count)
    return counts


def copy_within(store: Store, wanted: Filter, reach: Callable[[int], None], take: Callable[[Copied], None]) -> None:
    """Copy from a store of the same process. Raises: the errors of `copy_of` and of `take`."""
    with closing(copy_of(store, wanted, reach)) as items:
        for item in items:
            take(item)
