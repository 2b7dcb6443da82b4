"""Rows found by the keys of a unique index, and read or locked; see `engine/queries/unique_calls.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.disk_reading import grown
from tidemark.engine.access.snapshot_reads import released
from tidemark.engine.access.statuses import is_locked, refuse_released, settle
from tidemark.engine.access.unique_reads_kernels import ENTRIES, KEYS, LOCKED, find_by_unique
from tidemark.engine.base.column_buffers import NO_WORDS
from tidemark.engine.index.unique_keys import Lookups, keys_of_images
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, OK, ST_BUSY, ST_DROPPED, ST_SPACE, ST_UNFINISHED
from tidemark.engine.rows.columnar import EncodedKeys

if TYPE_CHECKING:
    from tidemark.engine.index.stored import StoredUnique
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.txn.views import View

FIND_SLICE_ROWS = 500


class Unfinished(Exception):
    """Control flow: a large commit that is being applied may have one of the keys."""


def find(
    txn: Transaction | None,
    table: Table,
    index: StoredUnique,
    lookups: Lookups,
    locks: bool,
    skip_locked: bool = False,
    waits: bool = True,
) -> tuple[EncodedKeys, Words]:
    """Return (primary keys of the rows found, in the order of `lookups`; positions of their keys in `lookups`).

    locks: lock them exclusively, to the end of the transaction. skip_locked: for one key; find no row if another
    transaction has locked it. waits: for the end of a large commit that may have a key. Raises: NoSuchTable,
    NoSuchIndex if one was dropped; Unfinished unless it waits; with `locks`, as `settle`.
    """
    count = lookups.count
    out = np.empty(max(64, count * max(table.format.key_words, 8)), dtype=np.int64)
    offsets = np.zeros(count + 1, dtype=np.int64)
    state = np.zeros(3, dtype=np.int64)
    desc, buf = (0, NOTHING) if txn is None else (txn.desc, txn.buf)
    deadline: float | None = None
    tree = index.tree
    while int(state[2]) < count:
        table.check()
        stop = min(int(state[2]) + FIND_SLICE_ROWS, count)
        place = (tree.mem, tree.handle, desc, buf, lookups.words, lookups.lengths, lookups.stride, stop)
        status = int(find_by_unique(*place, LOCKED if locks else KEYS, out, offsets, state))
        if status == OK:
            deadline = None
        elif status <= ST_SPACE:
            out = grown(out, int(state[1]), ST_SPACE - status)
        elif status == ST_UNFINISHED:
            if not waits:
                raise Unfinished
            table.views.wait()
        elif status == ST_DROPPED or txn is None:
            raise index.gone()
        elif status == ST_BUSY and skip_locked:
            if is_locked(txn):
                break
        else:
            deadline = settle(txn, table, status, 0, deadline)
    found = np.flatnonzero(np.diff(offsets))
    if txn is not None and txn.view is not None and locks and not skip_locked and found.size < count:
        refuse_released(txn, table, index, lookups)
    if table.format.key_in_var:
        ends = np.append(offsets[:-1][found], offsets[-1])
        return EncodedKeys(out[: int(offsets[-1])], 0, 0, ends, found.size), found
    words = table.format.key_words
    return EncodedKeys(out[: int(offsets[-1])], words, words, NO_WORDS, found.size), found


def read(
    txn: Transaction | None, table: Table, index: StoredUnique, lookups: Lookups, with_disk: bool
) -> tuple[Words, Words, int]:
    """Return entries of the rows found, in the order of the keys, all at one instant: (words, image offsets, rows).
    Raises: NoSuchTable, NoSuchIndex; with_disk: also PageDamaged, IoFailed, MemoryExhausted.
    """
    table.check()
    is_one_call = not with_disk and lookups.count <= FIND_SLICE_ROWS
    with table.view_for(txn, is_one_call) as view:
        read_rows = read_by_view if view.view or not is_one_call else _read_in_place
        found = read_rows(view, table, index, lookups, with_disk)
        if not view.view:
            table.refuse_moved()
        return found


def _read_in_place(
    view: View, table: Table, index: StoredUnique, lookups: Lookups, with_disk: bool
) -> tuple[Words, Words, int]:
    """Do `read` by one kernel call that reads all rows."""
    count = lookups.count
    out = np.empty(max(count * (ENTRY_WORDS + table.format.fixed_words + 8), 256), dtype=np.int64)
    offsets = np.zeros(count + 1, dtype=np.int64)
    tree = index.tree
    while True:
        table.check()
        state = np.zeros(3, dtype=np.int64)
        place = (tree.mem, tree.handle, view.desc, view.buf, lookups.words, lookups.lengths, lookups.stride, count)
        status = view.settled(find_by_unique(*place, ENTRIES, out, offsets, state))
        if status == ST_DROPPED:
            raise index.gone()
        if status <= ST_SPACE:
            out = grown(out, 0, ST_SPACE - status)
        elif status == OK:
            found = offsets[:-1][np.diff(offsets) > 0] + ENTRY_WORDS
            return out, found, found.size


def read_by_view(
    view: View, table: Table, index: StoredUnique, lookups: Lookups, with_disk: bool, waits: bool = True
) -> tuple[Words, Words, int]:
    """Do `read` in several steps: find the rows that have the keys now, and those that had them when the view was
    opened; read all of them by the view, and keep those that have the keys there. waits: as for `find`.
    """
    keys, _ = find(view.txn, table, index, lookups, locks=False, waits=waits)
    pieces = [keys.keys]
    lengths = [np.diff(keys.key_offsets) if keys.key_offsets.size else np.full(keys.count, keys.key_words)]
    shape, fixed_words = index.tree.shape, table.format.fixed_words
    if view.view:
        entries, offsets = released(view, table, index, lookups)
        older = [table.format.image_key(entries[at:]) for at in offsets.tolist()]
        pieces += older
        lengths.append(np.array([each.size for each in older], dtype=np.int64))
    ends = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    every = EncodedKeys(np.concatenate(pieces), 0, 0, ends, ends.size - 1)
    entries, offsets, count = snapshot_reads.read_keys(view, table, every, with_disk)
    held = keys_of_images(shape, entries, offsets, fixed_words)
    places = {held.bytes_of(row): int(offsets[row]) for row in range(count)}
    wanted = (places.get(lookups.bytes_of(row)) for row in range(lookups.count) if lookups.lengths[row])
    found = np.array([each for each in wanted if each is not None], dtype=np.int64)
    return entries, found, found.size
