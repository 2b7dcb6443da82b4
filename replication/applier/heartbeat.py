"""The heartbeat row: one row per site, written repeatedly by an ordinary transaction and sent like any other row.

It proves more than the heartbeats of a link: the row that a replica reads has been committed, closed in an epoch,
logged, received and applied. So its age at a replica is the lag of the whole path. If the age grows while the link
works, change the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemark.engine.access.batch_operations import write_many
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.types import Int64, UInt32
from tidemark.replication.settings.system_tables import made, one_transaction, rows_named

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store

HEARTBEAT: Final = "tidemark.heartbeat"
HEARTBEAT_TABLE: Final = TableDefinition(
    0, 1, HEARTBEAT, (Column("server_id", UInt32), Column("wall_us", Int64)), ("server_id",)
)


def beat(store: Store, server_id: int) -> None:
    """Write the row of this site; create the table if it is missing. The row is durable with its epoch.

    Raises: Retryable errors, after which the row is unchanged; StoreFailed.
    """
    table = made(store, HEARTBEAT_TABLE)
    with one_transaction(store) as txn:
        write_many(txn, table, [{"server_id": server_id, "wall_us": store.clock.wall_us()}])


def newest(store: Store, server_id: int) -> int | None:
    """Return the wall time in the row of a site, in microseconds; it differs after each write. None without a row."""
    return next((int(row["wall_us"]) for row in rows_named(store, HEARTBEAT) if row["server_id"] == server_id), None)


def ages(store: Store) -> dict[int, float]:
    """Return, by server id, the seconds since the row of each site was written; empty without the table. The site's
    clock set the time in the row, and this site's clock measures its age.
    """
    now_us = store.clock.wall_us()
    return {row["server_id"]: max(0, now_us - row["wall_us"]) / 1e6 for row in rows_named(store, HEARTBEAT)}
