"""The first copy of a replica: every table of a source as at the end of one closed epoch, brought into a store that has
none of them; the channel goes on behind that epoch.

`Copied` is what travels, in this order: all tables, their rows in batches, then their indexes and the epoch.

Order of writes of the replica (`CopyTarget`): the mark `relay/copying`, with the names of the tables, durable; the
tables; their rows, in transactions of a batch each; the indexes; the source's row of `mysql.ndb_apply_status`, durable;
the mark goes. Invariants: (P1) with the mark there, and the row not, the copy is not whole: it begins anew, and what it
had made is dropped first; a channel without a copy is refused. (P2) The row is there only behind what it stands for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine import snapshot_reads
from engine.batch_operations import decode_entries, insert_many
from engine.errors import Rejected, Retryable
from engine.schema import is_system_table
from engine.snapshot import Snapshot
from replication.applier.positions import write_at
from replication.binlog.index_table import made_table
from replication.filters import Filter
from replication.schema_statements import apply_statement, as_new
from replication.sql import statements as s
from replication.sql.emit import emit
from replication.system_tables import NDB_APPLY_STATUS

if TYPE_CHECKING:
    import pyarrow as pa

    from engine.file_protocol import Files
    from engine.store import Store
    from engine.transaction import Transaction

    Progress = Callable[[int, int, str], None]

MARK = "relay/copying"
RETRIES = 10
RETRY_PAUSE_SECONDS = 0.05
_FOLDER = "relay"


@dataclass(frozen=True)
class CopiedTable:
    """A table to be made, by the statement that makes it; `rows` are those it has, of all tables about as many."""

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
    """Statements that make the indexes; the source's epoch; how far it had applied others, by server id."""

    statements: tuple[tuple[str, str], ...]
    epoch: int
    positions: tuple[tuple[int, int], ...]


Copied = CopiedTable | CopiedRows | CopiedEnd


# --- at the source --------------------------------------------------------------------------------
def copy_of(store: Store, wanted: Filter, reach: Callable[[int], None]) -> Generator[Copied]:
    """Everything a first copy consists of. Writers go on meanwhile; the snapshot ends with the iterator. reach: returns
    when the binlog has an epoch, before which the copy is not whole.

    Raises: SnapshotTooOld where writers have changed more than `snapshot_memory` holds, LimitExceeded, StoreFailed.
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
    """How far the source had applied others when the snapshot was taken."""
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
def is_broken_off(files: Files) -> bool:
    """Whether a first copy has begun here and did not come to its end."""
    return files.exists(MARK)


class CopyTarget:
    """The replica's side of one copy: `begin`, then everything of `Copied` in its order."""

    def __init__(self, store: Store, files: Files, own_id: int, source_id: int, progress: Progress | None) -> None:
        self._store = store
        self._files = files
        self._own_id = own_id
        self._source_id = source_id
        self._progress = progress
        self._tables: dict[str, CopiedTable] = {}
        self._is_made = False
        self._done = 0
        self.epoch = 0  # of the source, when it is whole

    def begin(self, is_positioned: bool) -> bool:
        """Make room for a copy; False if there is one, which `is_positioned` says: the source's row is there.

        Durable: that what an earlier copy left is gone. Raises: SchemaInvalid, StoreFailed.
        """
        if is_broken_off(self._files):
            if is_positioned:
                self._remove_mark()
                return False
            for name in self._names():
                if name in self._store.tables:
                    self._store.drop_table(name)
            self._store.log.flush()
        return not is_positioned

    def _names(self) -> list[str]:
        file = self._files.open(MARK)
        try:
            text = self._files.pread(file, 0, self._files.size(file))
        finally:
            self._files.close(file)
        try:
            found = json.loads(text)
        except ValueError:
            found = []  # torn: the tables come behind it
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def take(self, item: Copied) -> None:
        """The next of what travels. Durable: with `CopiedEnd` everything, on return.

        Raises: Rejected if a table is there already, and what the store's calls raise.
        """
        if isinstance(item, CopiedTable):
            self._tables[item.name] = item
            return
        if not self._is_made:
            self._make_tables()
        if isinstance(item, CopiedRows):
            self._insert(item)
        else:
            self._finish(item)

    def _make_tables(self) -> None:
        self._is_made = True
        there = sorted(name for name in self._tables if name in self._store.tables)
        if there:
            raise Rejected(
                f"the replica has {', '.join(there[:3])} already; a first copy begins without the tables it brings,"
                " drop them or leave them out with replicate_ignore",
                tables=there,
            )
        files = self._files
        if not files.exists(_FOLDER):
            files.make_directory(_FOLDER)
            files.sync_directory("")
        if files.exists(MARK):
            files.unlink(MARK)
        file = files.create(MARK)
        try:
            files.pwrite(file, 0, json.dumps(list(self._tables)).encode())
            files.fdatasync(file)
        finally:
            files.close(file)
        files.sync_directory(_FOLDER)
        for each in self._tables.values():
            apply_statement(self._store, "", each.statement, self._source_id)

    def _insert(self, item: CopiedRows) -> None:
        table = self._store.table(item.table)
        self._run(self._source_id, self._source_id, lambda txn: insert_many(txn, table, item.rows))
        self._done += item.rows.num_rows
        if self._progress is not None:
            self._progress(self._done, sum(each.rows for each in self._tables.values()), "rows")

    def _finish(self, end: CopiedEnd) -> None:
        for _, statement in end.statements:
            apply_statement(self._store, "", statement, self._source_id)
        made_table(self._store, NDB_APPLY_STATUS)

        def positions(txn: Transaction) -> None:
            for server_id, epoch in end.positions:
                # Epochs of this site are of a store that is no more.
                if server_id not in (self._own_id, self._source_id):
                    write_at(txn, server_id, epoch)
            write_at(txn, self._source_id, end.epoch)

        self._run(0, 0, positions)
        self._store.log.flush()
        if is_broken_off(self._files):
            self._remove_mark()
        self.epoch = end.epoch

    def _remove_mark(self) -> None:
        self._files.unlink(MARK)
        self._files.sync_directory(_FOLDER)

    def _run(self, any_value: int, author: int, work: Callable[[Transaction], Any]) -> None:
        """One transaction; again where it was rolled back by a Retryable."""
        for attempt in range(RETRIES + 1):
            try:
                self._try(any_value, author, work)
                return
            except Retryable:
                if attempt == RETRIES:
                    raise
                self._store.clock.sleep(RETRY_PAUSE_SECONDS)

    def _try(self, any_value: int, author: int, work: Callable[[Transaction], Any]) -> None:
        txn: Transaction = self._store.begin(any_value, author)
        try:
            work(txn)
            txn.commit(False)
        except BaseException:
            txn.rollback()
            raise


def copy_within(store: Store, wanted: Filter, reach: Callable[[int], None], take: Callable[[Copied], None]) -> None:
    """A copy from a store of the same process. Raises: as both sides do."""
    items = copy_of(store, wanted, reach)
    try:
        for item in items:
            take(item)
    finally:
        items.close()


def wanted_of(do: Sequence[str], ignore: Sequence[str]) -> Filter:
    """What a channel's patterns let pass. Raises: SchemaInvalid."""
    return Filter.of((), do, ignore)
