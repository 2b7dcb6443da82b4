"""Rows of `mysql.ndb_apply_status`: the newest applied epoch of each source, written in the transaction of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.row_operations import read_entry, write
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.replication.applier.marks import tag_position
from tidemark.replication.applier.setups import rows_of
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.replication.applier.transactions import EpochTransaction


def applied_epochs(store: Store) -> dict[int, int]:
    """Return the epoch by server id, as committed. Raises: NoSuchTable without the table."""
    return {row["server_id"]: row["epoch"] for row in rows_of(store.table(NDB_APPLY_STATUS))}


def applied_epoch(store: Store, server_id: int) -> int:
    """Return the epoch of one server, as committed; 0 without a row. Raises: NoSuchTable without the table."""
    table = store.table(NDB_APPLY_STATUS)
    entry = read_entry(None, table, server_id)
    if entry is None:
        return 0
    place = table.format.layout.places[table.definition.position("epoch")]
    return int(entry[ENTRY_WORDS:].view(np.uint64)[place.offset // 8])


def write_row(txn: Transaction, server_id: int, epoch: int, name: str, start: int, end: int) -> None:
    """Write a row as given."""
    row = {"server_id": server_id, "epoch": epoch, "log_name": name, "start_pos": start, "end_pos": end}
    write(txn, txn.store.table(NDB_APPLY_STATUS), row)


def write_at(txn: Transaction, server_id: int, epoch: int) -> None:
    """Write that a server's epochs are applied up to this one, without a position in a log."""
    write_row(txn, server_id, epoch, "", 0, 0)


def write_position(txn: Transaction, server_id: int, epoch: int, logger_id: int) -> None:
    """Write another site's position for a server; it is passed on under the id of its logger."""
    tag_position(txn, logger_id)
    write_row(txn, server_id, epoch, "", 0, 0)


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
    entry = read_entry(None, store.table(NDB_APPLY_STATUS), server_id)
    return 0 if entry is None else int(entry[1])
