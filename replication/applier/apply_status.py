"""Rows of `mysql.ndb_apply_status`: the newest applied epoch of each source.

Appliers write them in the transaction of the rows. Channels read them, and change them outside of their appliers'
commits (`Positions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tidemark.engine.access.batch_operations import delete_many
from tidemark.engine.access.row_operations import read_entry, write
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.replication.applier.marks import tag_position
from tidemark.replication.binlog.position import Position
from tidemark.replication.settings.any_value import NO_LOGGING
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS, made_table, one_transaction, rows_of

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.replication.applier.transactions import EpochTransaction


class StatusRow(NamedTuple):
    """A row of `mysql.ndb_apply_status`; `log_name` is empty and positions are 0 if they are unknown."""

    server_id: int
    epoch: int
    log_name: str = ""
    start_pos: int = 0
    end_pos: int = 0

    @property
    def end(self) -> Position | None:
        """The position up to which the source's binlog is applied, None if it is unknown."""
        return Position(self.log_name, self.end_pos) if self.log_name and self.end_pos else None


@dataclass(frozen=True)
class Positions:
    """`mysql.ndb_apply_status` of a store. Changes made through it are not written to the binlog."""

    _store: Store
    _kept: Callable[[], frozenset[int] | None]  # returns the servers whose rows a reset keeps, None for all
    _own_id: Callable[[], int]  # returns the id of this site, 0 while other channels use its row

    def rows(self) -> Iterable[StatusRow]:
        """Return all rows, as committed."""
        return [StatusRow(**row) for row in rows_of(made_table(self._store, NDB_APPLY_STATUS))]

    def note(self, row: StatusRow) -> None:
        """Store the position after a schema change. As durable on return as a commit."""
        table = made_table(self._store, NDB_APPLY_STATUS)
        with one_transaction(self._store, NO_LOGGING, waits_for_disk=self._store.resources.waits_for_disk) as txn:
            write(txn, table, row)

    def clear(self) -> None:
        """Delete all rows except the kept ones. Durable on return."""
        kept = self._kept()
        if kept is not None:
            self._delete([row.server_id for row in self.rows() if row.server_id not in kept])

    def forget(self, server_id: int) -> None:
        """Delete the row of one server, if there is one. Durable on return."""
        self._delete([row.server_id for row in self.rows() if row.server_id == server_id])

    def _delete(self, keys: list[int]) -> None:
        if not keys:
            return
        table = made_table(self._store, NDB_APPLY_STATUS)
        with one_transaction(self._store, NO_LOGGING) as txn:
            delete_many(txn, table, keys)
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


def applied_epochs(store: Store) -> dict[int, int]:
    """Return the epoch by server id, as committed. Raises: NoSuchTable without the table."""
    return {row["server_id"]: row["epoch"] for row in rows_of(store.tables.named(NDB_APPLY_STATUS))}


def applied_epoch(store: Store, server_id: int) -> int:
    """Return the epoch of one server, as committed; 0 without a row. Raises: NoSuchTable without the table."""
    table = store.tables.named(NDB_APPLY_STATUS)
    entry = read_entry(None, table, server_id)
    if entry is None:
        return 0
    place = table.format.layout.places[table.definition.position("epoch")]
    return int(entry[ENTRY_WORDS:].view(np.uint64)[place.offset // 8])


def write_row(txn: Transaction, server_id: int, epoch: int, name: str = "", start: int = 0, end: int = 0) -> None:
    """Write the epoch up to which a server is applied, and its position in the server's log if it is known."""
    write(txn, txn.store.tables.named(NDB_APPLY_STATUS), StatusRow(server_id, epoch, name, start, end))


def write_position(txn: Transaction, server_id: int, epoch: int, logger_id: int) -> None:
    """Write another site's position for a server; it is passed on under the id of its logger."""
    tag_position(txn, logger_id)
    write_row(txn, server_id, epoch)


def write_own_position(txn: Transaction, epoch: int, transaction: EpochTransaction) -> None:
    """Write epoch and log position of the transaction being applied; the row is passed on under this site's id, so that
    it reaches the source.
    """
    tag_position(txn, 0)
    following = transaction.finish()
    start = transaction.start
    write_row(txn, transaction.source_id, epoch, start.file, start.position, following.position)


def committed_in(store: Store, server_id: int) -> int:
    """Return the own epoch in which the row of a server was last written."""
    entry = read_entry(None, store.tables.named(NDB_APPLY_STATUS), server_id)
    return 0 if entry is None else int(entry[1])
