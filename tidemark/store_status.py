"""What an open store reports about itself: its counters, nested by room, and how full the pages of disk columns are."""

from __future__ import annotations

import os
import sys
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.display import state_of
from tidemark.engine.disk import matrix_layout as m
from tidemark.engine.disk.cache_layout import FILE_SHIFT, PAGE_IN_FILE_MASK, TS_EXTENT_PAGES, TS_PAYLOAD
from tidemark.engine.disk.matrix import extents_of, matrix_of
from tidemark.engine.files.directory import resident_bytes
from tidemark.engine.memory.arena_layout import DISK_CLASSES, F_TABLESPACE, MATRIX_ROWS, PAGE_BYTES
from tidemark.handles import table_counters

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.recovery.local_checkpoint.writer import LocalCheckpoint
    from tidemark.recovery.system_restart.restart import Opened


def process_status() -> dict[str, Any]:
    """Return the version of Tidemark in this process, and the bytes of its memory that are in RAM."""
    version = sys.modules["tidemark"].__version__  # the package imports this module, so it cannot be imported here
    return {"version": version, "resident_bytes": resident_bytes()}


def store_status(opened: Opened, lcp: LocalCheckpoint, open_seconds: float) -> dict[str, Any]:
    """Return the counters of the engine and of local checkpoints as plain values. open_seconds: since the opening."""
    store = opened.store
    return {
        "store": {
            "state": state_of(store.failure.first and store.failure.first[0]),
            "uuid": opened.identity[0].hex(),
            "incarnation": opened.identity[1],
            "pid": os.getpid(),
            "open_seconds": round(open_seconds, 3),
        },
        "process": process_status(),
        "epoch": {"current": store.epochs.current, "newest_closed": store.epochs.newest_closed},
        "log": store.log.counters(),
        "lcp": {
            "completed": lcp.completed,
            "abandoned": lcp.abandoned,
            "next_id": lcp.next_id,
            "run_seconds": lcp.run_seconds.to_dict(),
            "running": None if lcp.progress is None else dict(zip(("rows", "of"), lcp.progress, strict=True)),
        },
        "disk": store.disk.counters(),
        "disk_full": store.resources.shortage.reason,
        "locks": store.locks.counters(),
        "memory": {
            "data_memory_bytes": store.options.data_memory_bytes,
            "used_bytes": store.arena.used_pages() * PAGE_BYTES,
            "operation_bytes": store.arena.operation_words() * 8,
        },
        "snapshots": store.snapshots.counters(),
        "delete_log": None if store.deletes is None else store.deletes.counters(),
        "tables": table_counters(list(store.tables.by_name.values())),
        "tablespaces": store.space.counters(),
        "transactions": {
            "open": len(store.locks.by_slot),
            "holders": store.locks.holders(),
            "commit_seconds": store.resources.commit_seconds.to_dict(),
        },
        "spool": store.spools.counters(),
    }


MAP_EXTENTS_MAX = 512  # of one table; a picture has no room for more


def space_report(store: Store) -> dict[str, Any]:
    """Return, as plain values, the tablespaces, and for each table with disk columns its matrix, pages by fill and map
    of extents.
    """
    holder = object()
    store.users.pin(holder)  # tables dropped in the meantime keep their extents
    try:
        tables = sorted(store.tables.by_name.values(), key=lambda table: table.name)
        on_disk = (table for table in tables if store.arena.word(table.fragments[0], F_TABLESPACE))
        found = {table.name: _table_report(store, table) for table in on_disk}
    finally:
        store.users.unpin(holder)
    return {"tablespaces": store.space.counters(), "tables": found}


def _table_report(store: Store, table: Table) -> dict[str, Any]:
    mem = store.mem
    tablespace = store.arena.word(table.fragments[0], F_TABLESPACE)
    numbers = np.sum([matrix_of(store.space, fragment) for fragment in table.fragments], axis=0)
    extent_words = int(mem[tablespace + TS_PAYLOAD]) * int(mem[tablespace + TS_EXTENT_PAGES])
    counts, free = numbers[: m.MATRIX_LISTS], numbers[m.MX_FREE : m.MX_FREE + m.MATRIX_LISTS]
    shares = np.round(free / np.maximum(counts * extent_words, 1), 4)
    return {
        "extents": int(numbers[m.MX_EXTENTS]),
        "matrix": counts.reshape(MATRIX_ROWS, DISK_CLASSES).tolist(),
        "matrix_free_share": shares.reshape(MATRIX_ROWS, DISK_CLASSES).tolist(),
        "current": int(numbers[m.MX_CURRENT]),
        "current_free_share": round(
            int(numbers[m.MX_CURRENT_FREE]) / max(int(numbers[m.MX_CURRENT]) * extent_words, 1), 4
        ),
        "open_pages": {
            "dirty": int(numbers[m.MX_DIRTY]),
            "reserved": int(numbers[m.MX_RESERVED]),
            "reserved_bytes": int(numbers[m.MX_RESERVED_WORDS]) * 8,
        },
        "pages_by_fill": numbers[m.MX_FILL : m.MX_FILL + m.FILL_STEPS].tolist(),
        "map": _map_of(store, table, tablespace),
    }


def _map_of(store: Store, table: Table, tablespace: int) -> list[dict[str, Any]]:
    """Return the used share of each page in per cent, for the first extents in order of position."""
    payload = int(store.mem[tablespace + TS_PAYLOAD])
    extents = chain.from_iterable(extents_of(store.space, fragment) for fragment in table.fragments)
    found = [(int(row[0]), (row[1:] * 100 // payload).tolist()) for row in islice(extents, MAP_EXTENTS_MAX)]
    return [
        {"file": first >> FILE_SHIFT, "page": first & PAGE_IN_FILE_MASK, "percent_used": used}
        for first, used in sorted(found)
    ]
