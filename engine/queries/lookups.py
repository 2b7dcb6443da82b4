"""Rows by the keys that a condition names (`engine/queries/index_choice.py`), in the order of a full scan.

All rows of a lookup are found at one instant, before the first one is handed on, so a loop that updates what it reads
ends. Their disk parts are read in windows by the same view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.batch_operations import read_keys
from tidemark.engine.access.disk_reading import SCAN_ROWS_FIRST, SCAN_ROWS_MAX
from tidemark.engine.access.scan_batch import ScanBatch, among
from tidemark.engine.access.unique_reads import Unfinished, read, read_by_view
from tidemark.engine.access.versions_reads_kernels import OLD
from tidemark.engine.base.column_buffers import NO_WORDS
from tidemark.engine.base.errors import NoSuchTable
from tidemark.engine.index.ordered import SLACK_WORDS
from tidemark.engine.index.unique_keys import Lookups, keys_of_images
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, F_DROPPED, ROWID_MASK
from tidemark.engine.memory.handles_kernels import descriptor_word
from tidemark.engine.rows.columnar import EncodedKeys, encode_keys

if TYPE_CHECKING:
    from tidemark.engine.access.snapshot import Snapshot
    from tidemark.engine.index.key_values import KeyShape
    from tidemark.engine.index.stored import StoredUnique
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.queries.index_choice import Lookup
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.txn.views import View

ONE_BY_ONE_KEYS = 24  # more keys are encoded faster by column


def look_up(
    table: Table, txn: Transaction | None, lookup: Lookup, names: Sequence[str], numbers: Sequence[int]
) -> Iterator[ScanBatch]:
    """Yield the rows of fragments `numbers` that have the keys, with disk parts if one of the columns is on disk.

    Raises: NoSuchTable, NoSuchIndex, SnapshotTooOld, and errors of reading disk pages.
    """
    table.check()
    if txn is not None:
        txn.check()
    if not table.format.needs_disk(names):
        if lookup.index is None:
            found = read_keys(table, _primary_keys(table, lookup.keys), txn, False)
        else:
            found = read(txn, table, lookup.index, _unique_keys(lookup.index.tree.shape, lookup.keys), False)
        yield from _in_order(table, ScanBatch(*found[:2]), numbers)
        return
    with table.view_for(txn) as view:
        for batch in _in_order(table, _shown(view, table, lookup, True), numbers):
            yield from _with_disk_parts(view, table, batch)


def look_up_in(
    snapshot: Snapshot, table: Table, lookup: Lookup, names: Sequence[str], numbers: Sequence[int]
) -> Iterator[ScanBatch] | None:
    """Do `look_up` for a table of a snapshot. None: a unique index cannot tell, as the table or one of its partitions
    was dropped since, or a large commit is being applied, for which a snapshot does not wait.

    Raises: NoSuchIndex, SnapshotTooOld, SnapshotClosed, and errors of reading disk pages.
    """
    snapshot.check()
    try:
        found = _shown(snapshot, table, lookup, False)
    except (Unfinished, NoSuchTable):
        return None
    if lookup.index is not None and _has_dropped(table):
        return None
    batches = _in_order(table, found, numbers)
    if not table.format.needs_disk(names):
        return batches
    return (each for batch in batches for each in _with_disk_parts(snapshot, table, batch))


def read_keys_in(
    snapshot: Snapshot, table: Table, unique: StoredUnique, lookups: Lookups, with_disk: bool
) -> tuple[Words, Words, int]:
    """Return the entries of the rows of a snapshot that have keys of a unique index, in the order of the keys.

    If the index cannot tell, as for `look_up_in`, all rows are read. Raises: as `look_up_in`.
    """
    if not _has_dropped(table):
        try:
            return read_by_view(snapshot, table, unique, lookups, with_disk, waits=False)
        except (Unfinished, NoSuchTable):
            pass
    wanted = [lookups.bytes_of(number) for number in range(lookups.count)]
    asked = frozenset(wanted)
    found: dict[bytes, Words] = {}
    names = unique.definition.columns
    for batch in snapshot_reads.scan(snapshot, table, names, None, table.numbers_of(None)):
        held = keys_of_images(unique.tree.shape, batch.entries, batch.offsets, table.format.fixed_words)
        for number, at in enumerate(batch.offsets.tolist()):
            if (key := held.bytes_of(number)) in asked:
                found[key] = table.format.image_key(batch.entries[at:])
    keys = [found[key] for key in wanted if key and key in found]  # one with NULL is empty, and in no index
    return snapshot_reads.read_keys(snapshot, table, _joined(keys), with_disk)


def _has_dropped(table: Table) -> bool:
    return any(descriptor_word(table.mem, fragment, F_DROPPED) for fragment in table.by_number.values())


def _shown(view: View, table: Table, lookup: Lookup, waits: bool) -> ScanBatch:
    """Return the rows that a view shows, without disk parts. waits: for a large commit, see `find`."""
    if lookup.index is None:
        return ScanBatch(*snapshot_reads.read_keys(view, table, _primary_keys(table, lookup.keys), False)[:2])
    keys = _unique_keys(lookup.index.tree.shape, lookup.keys)
    return ScanBatch(*read_by_view(view, table, lookup.index, keys, False, waits)[:2])


def _with_disk_parts(view: View, table: Table, found: ScanBatch) -> Iterator[ScanBatch]:
    start, rows = 0, SCAN_ROWS_FIRST
    while start < found.count:
        batch = snapshot_reads.read_found(view, table, found.entries, found.offsets[start : start + rows])
        if batch.count:
            yield batch
        start += rows
        rows = min(4 * rows, SCAN_ROWS_MAX)


# --- keys -----------------------------------------------------------------------------------------
def _primary_keys(table: Table, keys: Sequence[tuple[Any, ...]]) -> EncodedKeys:
    row_format = table.format
    if len(keys) > ONE_BY_ONE_KEYS or row_format.single_int_key:
        return encode_keys(row_format, [key[0] for key in keys] if len(row_format.key_columns) == 1 else list(keys))
    return _joined([row_format.encode_key(key) for key in keys])


def _joined(keys: Sequence[Words]) -> EncodedKeys:
    ends = np.cumsum([0, *(key.size for key in keys)])
    return EncodedKeys(np.concatenate([NO_WORDS, *keys]), 0, 0, ends, len(keys))


def _unique_keys(shape: KeyShape, keys: Sequence[tuple[Any, ...]]) -> Lookups:
    words = [shape.encode(key) for key in keys]
    stride = max(map(len, words), default=0) + SLACK_WORDS
    every = np.zeros(len(words) * stride, dtype=np.int64)
    for row, each in enumerate(words):
        every[row * stride : row * stride + len(each)] = each
    return Lookups(every, np.array([len(each) for each in words], dtype=np.int64), stride)


# --- order ----------------------------------------------------------------------------------------
def _in_order(table: Table, found: ScanBatch, numbers: Sequence[int]) -> Iterator[ScanBatch]:
    """Yield the rows of fragments `numbers`, each once, in the order of a full scan: by fragment, then by ROWID."""
    if len(numbers) < len(table.by_number):
        found = found.chosen(among(found.fragments(), frozenset(numbers)))
    if found.count > 1:
        places = found.fragments() << ROWID_MASK.bit_length() | found.rowids()
        places |= found.entries[found.offsets - ENTRY_WORDS + 2] & OLD
        found = found.chosen(np.unique(places, return_index=True)[1])
    if found.count:
        yield _consecutive(table, found)


def _consecutive(table: Table, found: ScanBatch) -> ScanBatch:
    """Return entries of equal size one after the other, in the order of their offsets: readers count on it."""
    if table.format.has_var or table.format.has_disk:
        return found
    size = ENTRY_WORDS + table.format.fixed_words
    starts = found.offsets - ENTRY_WORDS
    if found.count == 1:
        return ScanBatch(found.entries[int(starts[0]) :], np.array([ENTRY_WORDS], dtype=np.int64))
    entries = found.entries[starts[:, None] + np.arange(size)]
    return ScanBatch(entries.ravel(), np.arange(found.count, dtype=np.int64) * size + ENTRY_WORDS)
