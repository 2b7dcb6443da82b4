"""Apply epoch transactions of a store's own binlog to that store as it was before: the last step of a restore.

No conflict function decides: each change is repeated strictly. An update or a delete of a missing row means that binlog
and store do not belong together, or that changes between them were not logged. Each epoch is applied in the store's
epoch of the same number, if that is not closed yet; rows get the author that the binlog names.

An epoch becomes several transactions of the store: one for each run of changes by one author, since a transaction has
one author besides the site itself, and more where a run does not fit in memory. They are not made durable one by one,
because an interrupted restore begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.applied import applied_rows
from tidemark.engine.applied.noted_rows import tag
from tidemark.engine.base.errors import BinlogDamaged, MemoryExhausted, Rejected, Retryable, TransactionTooLarge
from tidemark.engine.log.redo_layout import AUTHOR_MASK
from tidemark.engine.txn.transaction import DecidedTransaction
from tidemark.replication.applier.apply_status import write_row
from tidemark.replication.applier.held_rows import HeldRows
from tidemark.replication.applier.intake import Intake, IntakeOptions, StatusRows
from tidemark.replication.applier.schema_statements import apply_statement, schema_entries_of
from tidemark.replication.applier.stops import located
from tidemark.replication.conflict.functions import Kind
from tidemark.replication.injector.schema_events import SchemaOperation, schema_row, write_schema_row
from tidemark.replication.settings.any_value import FLAG_READ, RESERVED
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS, NDB_SCHEMA, made_table, rows_named

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.replication.applier.batch import ChangeBatch
    from tidemark.replication.applier.key_set import Words
    from tidemark.replication.applier.transactions import EpochTransaction, Statement

    Item = ChangeBatch | StatusRows

# Row limit of a transaction, by the number of successive attempts that found no room. After the first one, a local
# checkpoint alone should make room.
ROWS_MAX = (1 << 40, 1 << 40, 512, 32)
NO_SERVER = -1  # an id that no server has, so that events of all servers are taken
MEMORY_BYTES_MIN = 1 << 20
ROW_BYTES = 64  # memory that a change takes in addition to its values


class EpochReplay:
    """Applies epoch transactions to a store with no other user. One thread may call it. `rows`: rows changed so far."""

    def __init__(self, store: Store, make_room: Callable[[bool], None]) -> None:
        """`make_room` is called between transactions; its argument is True after one found no room in a log."""
        self._store = store
        self._make_room = make_room
        self._intake = Intake(
            store.tables.named, _key_of, IntakeOptions(NO_SERVER, store.tables.seed, with_places=True)
        )
        self._run: AuthoredTransaction | None = None
        self._done = 0  # rows of the current epoch whose transactions have committed
        self.rows = 0

    def apply(self, transaction: EpochTransaction, statements: Sequence[Statement] = ()) -> int:
        """Apply an epoch, and the statements before it; return its number. It is visible on return, but not durable.

        Raises: BinlogDamaged for changes of missing rows, PeerError, NoSuchTable and the errors of values with `file`
        and `position`, MemoryExhausted, StorageFull.
        """
        source_id = transaction.source_id
        epoch, items = self._read(transaction)
        self._make_room(False)
        self._open(epoch)
        for each in statements:
            self._execute(each, epoch, source_id)
        authors = _Authors(source_id, self._store)
        self._done = 0
        failures = 0
        while True:
            done = self._done
            try:
                self._apply(items, authors, ROWS_MAX[failures])
                break
            except (Retryable, TransactionTooLarge) as error:
                if isinstance(error, MemoryExhausted):
                    raise MemoryExhausted(
                        "the rows of the backup and the binlog do not fit into data_memory; restore with a larger"
                        " data_memory"
                    ) from error
                failures = failures + 1 if self._done == done else 1
                if failures == len(ROWS_MAX):
                    raise
                self._make_room(True)
                _, items = self._read(transaction)
        transaction.finish()
        return epoch

    def _read(self, transaction: EpochTransaction) -> tuple[int, Iterator[Item]]:
        """Return (the epoch, the items after the row that names it). Raises: PeerError."""
        epoch, first, items = self._intake.begun(transaction)
        rest = replace(first, rows=first.rows[1:], places=first.places[1:])
        return epoch, chain([rest], items)

    def _open(self, epoch: int) -> None:
        """Open the epoch of this number, or stay in a later one if local checkpoints have closed it."""
        epochs = self._store.epochs
        with self._store.latch:
            if epochs.has_commits:
                epochs.close()
            if epoch > epochs.current:
                epochs.resume(epoch)

    def _execute(self, statement: Statement, epoch: int, source_id: int) -> None:
        """Execute a schema change, and write its row of `ndb_schema` if the store keeps them."""
        store, author = self._store, statement.source_id
        # Read these before the statement drops the tables and their numbers.
        dropped = schema_entries_of(store, statement.database, statement.text)
        try:
            changes = apply_statement(store, statement.database, statement.text, 0 if author == source_id else author)
        except Rejected as error:
            raise located(error, statement.start) from error
        if changes and NDB_SCHEMA in store.tables.by_name:
            for before, entry in zip(
                dropped, schema_entries_of(store, statement.database, statement.text), strict=True
            ):
                is_drop = entry.operation is SchemaOperation.DROP_TABLE
                write_schema_row(store, schema_row(before if is_drop else entry, epoch, author))

    # --- rows --------------------------------------------------------------------------------------
    def _apply(self, items: Iterator[Item], authors: _Authors, rows_max: int) -> None:
        at, done, taken = 0, self._done, self._done
        try:
            for item in items:
                rows = len(item.rows) if isinstance(item, StatusRows) else item.rows
                start, at = max(0, done - at), at + rows
                if isinstance(item, StatusRows):
                    if start < rows:
                        (self._run or self._begin(taken, authors, 0)).positions(item)
                        taken += rows
                    continue
                for first in range(start, rows, rows_max):
                    author, run = authors.of(item), self._run
                    if run is None or not run.takes(author) or run.is_large(rows_max):
                        run = self._begin(taken, authors, author)
                    some = item.slice(first, min(first + rows_max, rows))
                    run.change(some)
                    taken += some.rows
            self._commit(taken)
        except BaseException:
            if self._run is not None:
                self._run.txn.rollback()
                self._run = None
            raise

    def _begin(self, taken: int, authors: _Authors, author: int) -> AuthoredTransaction:
        self._commit(taken)
        self._run = AuthoredTransaction(self._store, authors, author)
        return self._run

    def _commit(self, taken: int) -> None:
        run = self._run
        if run is not None:
            run.held.settle()
            run.txn.commit(False)
            self.rows += run.rows
            self._run = None
        self._done = taken


class _Authors:
    """The authors of rows, as far as the binlog has them: it has the id of the server that first made a change."""

    def __init__(self, own_id: int, store: Store) -> None:
        self._own_id = own_id
        self._store = store

    def of(self, batch: ChangeBatch) -> int:
        """Return the author of a batch's rows, 0 for the site itself."""
        if batch.is_refresh or batch.flags & FLAG_READ:
            return 0
        if batch.is_reflected:
            return self._other
        return 0 if batch.server_id == self._own_id else min(batch.server_id, AUTHOR_MASK)

    @cached_property
    def _other(self) -> int:
        """The author of reflected changes, which have the primary's own id: the other site, if the primary has applied
        only one; else the largest author.
        """
        known = (row["server_id"] for row in rows_named(self._store, NDB_APPLY_STATUS))
        others = [server_id for server_id in known if server_id != self._own_id]
        return min(others[0], AUTHOR_MASK) if len(others) == 1 else AUTHOR_MASK


class AuthoredTransaction:
    """One transaction of the store, whose changes have one author, or some of them the site itself."""

    def __init__(self, store: Store, authors: _Authors, author: int) -> None:
        self._authors = authors
        self._author = author
        self.rows = 0
        self._store = store
        self.txn: Transaction = store.transactions.begin(kind=DecidedTransaction)
        memory_bytes = max(store.options.transaction_memory_bytes, MEMORY_BYTES_MIN)
        self.held = HeldRows(self.txn, authors.of, memory_bytes // 4)
        self._left_bytes = memory_bytes // 4
        self._has_held = False

    def takes(self, author: int) -> bool:
        """Whether changes of an author may follow here. While rows are held, those of the site itself may: an applier
        takes out and refreshes rows in the transaction of its source's changes, and held rows may wait for their keys.
        """
        return author == self._author or (self._has_held and 0 in (author, self._author))

    def is_large(self, rows_max: int) -> bool:
        """Whether the next changes should go into another transaction; never while rows are held until later changes
        free their keys.
        """
        return (self._left_bytes < 0 or self.rows >= rows_max) and not self._has_held

    def positions(self, rows: StatusRows) -> None:
        """Write the epochs up to which the site had applied other sites."""
        made_table(self._store, NDB_APPLY_STATUS)
        tag(self.txn, 0, 0)
        places = rows.places or ((("", 0, 0),) * len(rows.rows))
        for (server_id, epoch), place in zip(rows.rows, places, strict=True):
            write_row(self.txn, server_id, epoch, *place)

    def change(self, batch: ChangeBatch) -> None:
        """Repeat the changes of a batch. Raises: BinlogDamaged, and the errors of the changes."""
        author = self._authors.of(batch)
        self._author = self._author or author
        self.rows += batch.rows
        self._left_bytes -= batch.rows * ROW_BYTES + sum(array.nbytes for array in (batch.after or {}).values())
        free = batch
        if batch.table.uniques:
            waiting = self.held.holds(batch)
            if waiting.any():
                self._hold(batch.take(np.flatnonzero(waiting)))
                free = batch.take(np.flatnonzero(~waiting))
        if not free.rows:
            return
        tag(self.txn, batch.server_id & ~RESERVED, author)
        try:
            outcomes = _change(self.txn, free)
        except Rejected as error:
            raise located(error, batch.origin) from error
        if not (batch.is_refresh and batch.event is Kind.DELETE) and (outcomes == applied_rows.MISSING).any():
            row = int(np.argmax(outcomes == applied_rows.MISSING))
            raise _missing(free.slice(row, row + 1))
        taken = np.flatnonzero(outcomes == applied_rows.TAKEN)
        if taken.size:  # rows with a unique key that another change of the epoch frees
            self._hold(free.take(taken))

    def _hold(self, batch: ChangeBatch) -> None:
        self._has_held = True
        self.held.hold(batch)


def _change(txn: Transaction, batch: ChangeBatch) -> Words:
    """Make the changes of a batch; return outcomes as in `applied_rows`. Shape: (rows,)."""
    rows = batch.changes(with_values=batch.event is not Kind.DELETE and batch.kind is not Kind.READ)
    if batch.event is Kind.DELETE:
        return applied_rows.apply_deletes(txn, batch.table, rows, keys=batch.keys)
    # A write without all columns is an update that was logged as a write.
    is_whole = len(rows.schema.names) == len(batch.table.definition.columns)
    if batch.event is Kind.WRITE and is_whole and not batch.is_refresh:
        return applied_rows.apply_upserts(txn, batch.table, rows, keys=batch.keys)
    return applied_rows.apply_updates(txn, batch.table, rows, keys=batch.keys)


def _missing(row: ChangeBatch) -> BinlogDamaged:
    (key,) = row.changes(with_values=False).to_pylist()
    shown = next(iter(key.values())) if len(key) == 1 else tuple(key.values())
    return BinlogDamaged(
        f"{row.origin.text}: a {row.event.value} of {row.table.name}, key {shown!r}, finds no row: the binlog is not"
        " this store's, or changes before it were not logged; restore to an earlier epoch, or from the archive",
        **row.origin._asdict(),
        table=row.table.name,
    )


def _key_of(table: Table) -> frozenset[str]:
    """Return the columns of the primary key: no others of before-images are used."""
    return frozenset(table.definition.primary_key)
