"""Ingest: replicate from a MySQL or MariaDB server into an open store."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.database import Database, check_open
from tidemark.replication.ingest.address import Address
from tidemark.replication.ingest.ingest import Ingest, IngestOptions

# The upper half of all server ids, which is rarely assigned by hand.
_HIGH_HALF = 1 << 31


def default_server_id(db: Database) -> int:
    """Return a server id derived from the store's id, so each start of a store has the same one."""
    return int.from_bytes(bytes.fromhex(db.status()["store"]["uuid"])[:4], "little") | _HIGH_HALF


def ingest(
    db: Database,
    address: Address,
    options: IngestOptions,
    progress: Callable[[int, int, str], None] | None = None,
) -> Ingest:
    """Return the ingest of a server into an open store; call its `run`. Raises: StoreFailed."""
    check_open(db)
    return Ingest(db, db.parts.store, address, options, progress)
