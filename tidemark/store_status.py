"""The counters of an open store, nested by room, for `Database.status`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tidemark.handles import index_counters

if TYPE_CHECKING:
    from tidemark.recovery.local_checkpoint.writer import LocalCheckpoint
    from tidemark.recovery.system_restart.restart import Opened

PAGE_BYTES = 32_768


def store_status(opened: Opened, lcp: LocalCheckpoint) -> dict[str, Any]:
    """Return the counters of the engine and of local checkpoints as plain values."""
    store = opened.store
    return {
        "store": {
            "state": "open" if store.failure.first is None else "failed",
            "uuid": opened.identity[0].hex(),
            "incarnation": opened.identity[1],
            "pid": os.getpid(),
        },
        "epoch": {"current": store.epochs.current, "newest_closed": store.epochs.newest_closed},
        "log": store.log.counters(),
        "lcp": {"completed": lcp.completed, "abandoned": lcp.abandoned, "next_id": lcp.next_id},
        "disk": store.disk.counters(),
        "locks": store.locks.counters(),
        "memory": {
            "data_memory_bytes": store.options.data_memory_bytes,
            "used_bytes": store.arena.used_pages() * PAGE_BYTES,
            "operation_bytes": store.arena.operation_words() * 8,
        },
        "snapshots": store.snapshots.counters(),
        "delete_log": None if store.deletes is None else store.deletes.counters(),
        "tables": {
            table.name: {"id": table.table_id, "rows": table.count(), **index_counters(table)}
            for table in list(store.tables.values())
        },
        "tablespaces": store.space.counters(),
        "transactions": {"open": len(store.locks.by_slot)},
        "spool": store.spools.counters(),
    }
