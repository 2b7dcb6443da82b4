"""A slice of a table with disk columns, whose pages are not read under the commit latch (docs/internals/node-group.md).

A snapshot is opened and the memory parts are taken under one hold of the latch. The disk parts are read after the latch
is released, as the snapshot shows them. So no writer waits for pages, and no row is locked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access import snapshot_reads
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, ST_SPACE
from tidemark.engine.store.node_copy import items_of
from tidemark.recovery.backup.entries_layout import B_USED, BACKUP_STATE_WORDS
from tidemark.recovery.node_restart.disk_entries_kernels import append_entries

if TYPE_CHECKING:
    from tidemark.engine.access.snapshot import Snapshot
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.node_copy import Items
    from tidemark.engine.table.table import Table


def with_disk_parts(snapshot: Snapshot, table: Table, items: Items) -> Words:
    """Return the same items, rows with their disk parts. Raises: SnapshotTooOld, PageDamaged, StoreFailed."""
    entries: Words = np.zeros(0, dtype=np.int64)
    starts: Words = np.zeros(1, dtype=np.int64)
    rowids = items.entries[items.images - ENTRY_WORDS]
    if items.images.size:
        batch = snapshot_reads.read_found(snapshot, table, items.entries, items.images)
        entries, starts = _joined(table, batch.entries, batch.offsets[: batch.count])
    if not items.ranges.size:
        return entries
    firsts = items.ranges[0::2]
    places = np.repeat(starts[np.searchsorted(rowids, firsts)], 2)
    marked = items.ranges.copy()
    marked[0::2] = -1 - firsts
    return np.ascontiguousarray(np.insert(entries, places, marked))


def _joined(table: Table, words: Words, offsets: Words) -> tuple[Words, Words]:
    """Return entries with their disk parts, consecutively, and the offset of each, followed by the end of the last."""
    layout = table.format.layout
    state: Words = np.zeros(BACKUP_STATE_WORDS, dtype=np.int64)
    out: Words = np.empty(words.size + offsets.size, dtype=np.int64)
    shape = (layout.fixed_words, int(layout.has_var), offsets.size)
    while (status := int(append_entries(words, offsets, *shape, out, state))) <= ST_SPACE:
        out = np.concatenate([out, np.empty(out.size + ST_SPACE - status, dtype=np.int64)])
    joined = out[: int(state[B_USED])].copy()
    return joined, np.append(items_of(joined, table, True).images - ENTRY_WORDS, joined.size)
