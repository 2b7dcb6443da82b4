"""`mysql.ndb_apply_status` of an open store, as its channels read and change it outside of their appliers' commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tidemark.engine.access import row_operations
from tidemark.engine.access.batch_operations import delete_many
from tidemark.replication.applier.apply_protocol import StatusRow
from tidemark.replication.applier.setups import rows_of
from tidemark.replication.injector.index_table import made_table
from tidemark.replication.settings.any_value import NO_LOGGING
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.txn.transaction import Transaction


class Positions:
    """`mysql.ndb_apply_status` of a store, as an `ApplyStatus`."""

    def __init__(
        self,
        store: Store,
        kept: Callable[[], frozenset[int] | None] = frozenset,
        own_id: Callable[[], int] = lambda: 0,
    ) -> None:
        """`kept` returns the servers whose rows a reset keeps, None for all. `own_id` returns the id of this site, 0
        while other channels use its row.
        """
        self._store = store
        self._kept = kept
        self._own_id = own_id

    def rows(self) -> Iterable[StatusRow]:
        """Return all rows, as committed."""
        return [StatusRow(**row) for row in rows_of(made_table(self._store, NDB_APPLY_STATUS))]

    def note(self, row: StatusRow) -> None:
        """Store the position after a schema change; the binlog does not get it. As durable on return as a commit."""
        table = made_table(self._store, NDB_APPLY_STATUS)
        txn: Transaction = self._store.begin(NO_LOGGING)
        try:
            row_operations.write(txn, table, row)
            txn.commit(self._store.waits_for_disk)
        except BaseException:
            txn.rollback()
            raise

    def clear(self) -> None:
        """Delete all rows except the kept ones; the binlog does not get this. Durable on return."""
        kept = self._kept()
        if kept is not None:
            self._delete([row.server_id for row in self.rows() if row.server_id not in kept])

    def forget(self, server_id: int) -> None:
        """Delete the row of one server, if there is one; the binlog does not get this. Durable on return."""
        self._delete([row.server_id for row in self.rows() if row.server_id == server_id])

    def _delete(self, keys: list[int]) -> None:
        if not keys:
            return
        table = made_table(self._store, NDB_APPLY_STATUS)
        txn: Transaction = self._store.begin(NO_LOGGING)
        try:
            delete_many(txn, table, keys)
            txn.commit(False)
        except BaseException:
            txn.rollback()
            raise
        self.make_durable()

    def unconfirm(self) -> None:
        """Set the site's own row to epoch 0. The row stays: it tells a reset that epochs of this site have come back.
        Durable on return.
        """
        own_id = self._own_id()
        if any(row.server_id == own_id and row.epoch for row in self.rows()):
            self.note(StatusRow(own_id, 0))
            self.make_durable()

    def make_durable(self) -> None:
        """Flush the log. Durable on return: everything applied so far."""
        self._store.log.flush()
