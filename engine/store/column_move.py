"""Columns that get a wider type while transactions run, in bytes of their own (ADR 0045).

Order: a hidden column is added after the others; its values are made of those of the old one, by ordinary transactions
of many rows; indexes over it are begun; then writers are kept away, the rows of older transactions follow, and one
record of the log gives the name and the place of the old column to the new one. A crash or an error before that leaves
the old column; the hidden one is used again by the next attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.batch_operations import decode_entries, lock_keys, put_changed, read_keys
from tidemark.engine.access.values_check import committed_batches
from tidemark.engine.base.errors import LockTimeout, NoSuchTable
from tidemark.engine.memory.arena_layout import S_INDEX_GENERATION
from tidemark.engine.rows.columnar import encode_keys
from tidemark.engine.store.index_build import POLL_SECONDS, wait_for_older
from tidemark.engine.store.index_renewal import IndexRenewals, change_and_renew
from tidemark.engine.store.schema_changes import (
    is_in_place,
    publish_columns,
    refuse_used,
    with_hidden_column,
    with_moved_column,
    with_shown_column,
    with_wider_column,
)
from tidemark.engine.table.table import TableAltered

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from tidemark.engine.access.scan_batch import ScanBatch
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.types import ColumnType


def widen_column(
    store: Store, name: str, column: str, kind: ColumnType, nullable: bool = False, any_value: int = 0
) -> None:
    """Give a column a type that holds all its values, and with `nullable` let it take NULL. Durable on return; after an
    error it is what it was. any_value: of the transactions that rewrite rows, which change no value.

    Raises: NoSuchTable, NoSuchColumn, SchemaInvalid, Unsupported, LockTimeout, MemoryExhausted, RedoOverloaded,
    StoreFailed.
    """
    table = store.tables.named(name)
    if not is_in_place(table.definition, column, kind, nullable):
        return _Move(store, name, column, kind, nullable, any_value).run()

    def widened(table: Table, renewals: IndexRenewals) -> TableDefinition:
        after = with_wider_column(table.definition, column, kind, nullable)
        refuse_used(table.definition, column, (*renewals.others(table), *table.announced), "changed")
        return after

    change_and_renew(store, table, widened)


class _Move:
    """A column on its way to other bytes."""

    def __init__(self, store: Store, name: str, column: str, kind: ColumnType, nullable: bool, any_value: int) -> None:
        table = store.tables.named(name)
        self._store, self._name, self._id, self._column = store, table.name, table.table_id, column
        self._kind, self._nullable, self._any_value = kind, nullable, any_value
        self._held: Table | None = None  # the version whose writers wait
        self._renewals = IndexRenewals(store, table, self._after, is_held=True)

    def run(self) -> None:
        users = self._store.users
        try:
            users.pin(self)  # fragments dropped meanwhile keep their rows
            self._begin()
            table = self._newest()
            self._fill(table)  # nearly all rows, while others write
            self._renewals.begin()  # and nearly all entries
            while not self._publish(table):
                table = self._newest()
                birth = self._hold(table)
                what = f"column {self._column} is widened"
                wait_for_older(self._store.resources, self._alive, table, birth, what, column=self._column)
                if self._fill(table):
                    self._renewals.walk(table)
                    self._await_views(table)
        finally:
            self._release()
            self._renewals.end()
            users.unpin(self)

    def _newest(self) -> Table:
        found = self._store.tables.by_id.get(self._id)
        if found is None:
            raise NoSuchTable(
                f"table {self._name} was dropped while {self._column} was being widened; see tables()",
                table=self._name,
            )
        return found

    def _alive(self) -> None:
        self._store.failure.check()
        self._newest()

    def _begin(self) -> None:
        """Add the hidden column. Durable on return."""
        store = self._store
        with store.schema.changing():
            table = self._newest()
            self._check(table)
            after = with_hidden_column(table.definition, self._column, self._kind, self._nullable)
            if after is not table.definition:
                publish_columns(store, table, table.altered(after))

    def _check(self, table: Table) -> None:
        """Raises: as `with_wider_column`; SchemaInvalid if an index over the column is being built."""
        with_wider_column(table.definition, self._column, self._kind, self._nullable)
        refuse_used(table.definition, self._column, self._renewals.others(table), "widened")

    def _after(self, table: Table, renewals: IndexRenewals) -> TableDefinition:
        """Return the definition in which the column has moved. Raises: as `_check`."""
        self._check(table)
        return with_moved_column(table.definition, self._column, self._kind, self._nullable)

    # --- values -----------------------------------------------------------------------------------
    def _fill(self, table: Table) -> bool:
        """Give the hidden column the values of the old one in all committed rows; False if the table has another
        version now.
        """
        definition, hidden = with_shown_column(table.definition, self._column, self._kind, self._nullable)
        view = table.altered(definition)
        view.checks = None  # no value that a check reads is changed
        if self._held is table:
            view.stamp = table.held_stamp
        names = [*definition.primary_key, self._column, hidden]
        try:
            for number in sorted(table.by_number):
                for batch in committed_batches(view, number, names):
                    self._alive()
                    self._fill_batch(view, batch, names)
        except TableAltered:
            return False
        return True

    def _fill_batch(self, view: Table, batch: ScanBatch, names: list[str]) -> None:
        hidden = names[-1]
        found = decode_entries(view.format, batch.entries, np.ascontiguousarray(batch.offsets), batch.count, names)
        if not self._stale(found, hidden).any():
            return
        keys = encode_keys(view.format, found.select(list(view.definition.primary_key)))
        txn: Transaction = self._store.transactions.begin(self._any_value)
        try:
            lock_keys(txn, view, keys)
            entries, offsets, count = read_keys(view, keys, txn, False)
            found = decode_entries(view.format, entries, offsets, count, [self._column, hidden])
            places = np.flatnonzero(self._stale(found, hidden))
            if places.size:
                values = _cast(found.column(self._column), found.column(hidden)).take(places)
                put_changed(txn, view, _named(values, hidden), entries, np.ascontiguousarray(offsets[places]))
            txn.commit(self._store.resources.waits_for_disk)
        except BaseException:
            txn.rollback()
            raise

    def _stale(self, found: pa.RecordBatch, hidden: str) -> NDArray[np.bool_]:
        """Return which rows have another value in the hidden column than in the old one."""
        new = found.column(hidden)
        return ~_same(_cast(found.column(self._column), new), _plain(new))

    # --- the end ----------------------------------------------------------------------------------
    def _hold(self, table: Table) -> int:
        """Make writers of the table wait; return the generation of transactions that do."""
        store = self._store
        with store.schema.latch:
            self._alive()
            self._held = table
            table.hold(int(store.mem[S_INDEX_GENERATION]) + 1)
            return store.resources.raise_generation()

    def _await_views(self, table: Table) -> None:
        """Wait for transactions with a view of their own that is older than the values. Raises: LockTimeout."""
        store = self._store
        older = store.resources.views.kept_now()
        deadline = store.locks.deadline()
        while any(view.words[0] for view in older):
            self._alive()
            if store.clock.monotonic() >= deadline:
                raise LockTimeout(
                    f"a transaction with isolation='snapshot' begun before {table.name}.{self._column} was widened did"
                    " not end within the lock timeout; end it and try again",
                    table=table.name,
                    column=self._column,
                )
            store.clock.sleep(POLL_SECONDS)

    def _publish(self, table: Table) -> bool:
        """Log the new place and show it, in one step; False unless writers of this version of the table wait."""
        store = self._store
        with store.schema.changing():
            self._alive()
            if self._held is not table or self._newest() is not table:
                return False
            return self._renewals.publish(table)

    def _release(self) -> None:
        """Open the gate for writers. A KeyboardInterrupt is ignored: every step can be repeated."""
        while self._held is not None:
            try:
                with self._store.schema.latch:
                    self._held.let_go()
                    self._store.resources.raise_generation()
                    self._held = None
            except KeyboardInterrupt:
                continue


def _plain(array: pa.Array) -> pa.Array:
    """Return an array of a type that can be cast and compared."""
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        return array.storage
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _cast(old: pa.Array, new: pa.Array) -> pa.Array:
    old, kind = _plain(old), _plain(new).type
    return old if old.type == kind else old.cast(kind)


def _same(one: pa.Array, other: pa.Array) -> NDArray[np.bool_]:
    """Return which values are the same, bit by bit for floats; NULL is the same as NULL."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(one.type):
        words = pa.int32() if one.type == pa.float32() else pa.int64()
        one, other = one.view(words), other.view(words)
    equal = pc.fill_null(pc.equal(one, other), False)
    found: NDArray[np.bool_] = pc.or_(equal, pc.and_(one.is_null(), other.is_null())).to_numpy(zero_copy_only=False)
    return found


def _named(values: pa.Array, name: str) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([values], names=[name])
