"""How full the pages of disk columns are: extent search matrix, pages by fill and a map of extents."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.disk.cache_layout import FILE_SHIFT, PAGE_IN_FILE_MASK, TS_EXTENT_PAGES, TS_PAYLOAD
from tidemark.engine.disk.matrix import extents_of, matrix_of
from tidemark.engine.disk.matrix_layout import (
    FILL_STEPS,
    MATRIX_LISTS,
    MX_CURRENT,
    MX_CURRENT_FREE,
    MX_DIRTY,
    MX_EXTENTS,
    MX_FILL,
    MX_FREE,
    MX_PROMISED,
    MX_PROMISED_WORDS,
)
from tidemark.engine.memory.arena_layout import DISK_CLASSES, F_TABLESPACE, MATRIX_ROWS

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table

MAP_EXTENTS_MAX = 512  # of one table; more do not fit a picture


def space_report(store: Store) -> dict[str, Any]:
    """Return, as plain values, the tablespaces, and for each table with disk columns its matrix, pages by fill and map
    of extents.
    """
    holder = object()
    store.pin(holder)  # tables dropped in the meantime keep their extents
    try:
        tables = sorted(store.tables.values(), key=lambda table: table.name)
        found = {table.name: _table_report(store, table) for table in tables if _is_on_disk(store, table)}
    finally:
        store.unpin(holder)
    return {"tablespaces": store.space.counters(), "tables": found}


def _is_on_disk(store: Store, table: Table) -> bool:
    return bool(store.arena.word(table.fragments[0], F_TABLESPACE))


def _table_report(store: Store, table: Table) -> dict[str, Any]:
    mem = store.mem
    tablespace = store.arena.word(table.fragments[0], F_TABLESPACE)
    numbers = np.sum([matrix_of(store.space, fragment) for fragment in table.fragments], axis=0)
    extent_words = int(mem[tablespace + TS_PAYLOAD]) * int(mem[tablespace + TS_EXTENT_PAGES])
    counts, free = numbers[:MATRIX_LISTS], numbers[MX_FREE : MX_FREE + MATRIX_LISTS]
    shares = np.round(free / np.maximum(counts * extent_words, 1), 4)
    return {
        "extents": int(numbers[MX_EXTENTS]),
        "matrix": counts.reshape(MATRIX_ROWS, DISK_CLASSES).tolist(),
        "matrix_free_share": shares.reshape(MATRIX_ROWS, DISK_CLASSES).tolist(),
        "current": int(numbers[MX_CURRENT]),
        "current_free_share": round(int(numbers[MX_CURRENT_FREE]) / max(int(numbers[MX_CURRENT]) * extent_words, 1), 4),
        "open_pages": {
            "dirty": int(numbers[MX_DIRTY]),
            "promised": int(numbers[MX_PROMISED]),
            "promised_bytes": int(numbers[MX_PROMISED_WORDS]) * 8,
        },
        "pages_by_fill": numbers[MX_FILL : MX_FILL + FILL_STEPS].tolist(),
        "map": _map_of(store, table, tablespace),
    }


def _map_of(store: Store, table: Table, tablespace: int) -> list[dict[str, Any]]:
    """The used share of each page in per cent, for the first extents in order of position."""
    payload = int(store.mem[tablespace + TS_PAYLOAD])
    extents = chain.from_iterable(extents_of(store.space, fragment) for fragment in table.fragments)
    found = [(int(row[0]), (row[1:] * 100 // payload).tolist()) for row in islice(extents, MAP_EXTENTS_MAX)]
    return [
        {"file": first >> FILE_SHIFT, "page": first & PAGE_IN_FILE_MASK, "percent_used": used}
        for first, used in sorted(found)
    ]
