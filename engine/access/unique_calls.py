"""Rows by the key of a unique index: get, update and delete, one or many (docs/internals/access.md, 6).

A row to be changed is locked in the kernel call that compares its key. From then on its primary key identifies it, and
the calls by primary key do the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access import conditional_changes, row_operations, snapshot_reads
from tidemark.engine.access.batch_operations import (
    Progress,
    by_batches,
    change_columns,
    decode_entries,
    touch_many,
)
from tidemark.engine.access.disk_reading import grown
from tidemark.engine.access.row_operations import check_table, is_locked, settle
from tidemark.engine.access.snapshot_index import versions_of
from tidemark.engine.access.snapshot_reads import place_of
from tidemark.engine.access.unique_reads_kernels import find_by_unique, read_by_unique
from tidemark.engine.base.errors import RowNotFound
from tidemark.engine.base.ids import NO_EPOCH
from tidemark.engine.index.stored import StoredUnique
from tidemark.engine.index.unique_keys import KeyEncoder, Lookups, keys_of_images, one_key
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import (
    ENTRY_WORDS,
    MODE_DELETE,
    OK,
    S_VERSION_HEAD,
    ST_BUSY,
    ST_DROPPED,
    ST_SPACE,
    ST_UNFINISHED,
)
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.rows.column_buffers import NO_WORDS
from tidemark.engine.rows.columnar import EncodedKeys

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.memory.arena import Words
    from tidemark.engine.rows.column_input import Batch
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.txn.views import View

FIND_SLICE_ROWS = 500


# --- finding --------------------------------------------------------------------------------------
def find(
    txn: Transaction | None,
    table: Table,
    index: StoredUnique,
    lookups: Lookups,
    locks: bool,
    skip_locked: bool = False,
) -> tuple[EncodedKeys, Words]:
    """Return (primary keys of the rows found, in the order of `lookups`; positions of their keys in `lookups`).

    locks: lock them exclusively, to the end of the transaction. skip_locked: for one key; find no row if another
    transaction has locked it. Raises: NoSuchTable, NoSuchIndex if one was dropped; with `locks`, as `settle`.
    """
    count = lookups.count
    out = np.empty(max(64, count * max(table.format.key_words, 8)), dtype=np.int64)
    offsets = np.zeros(count + 1, dtype=np.int64)
    state = np.zeros(3, dtype=np.int64)
    desc, buf = (0, NOTHING) if txn is None else (txn.desc, txn.buf)
    deadline: float | None = None
    tree = index.tree
    while int(state[2]) < count:
        check_table(table)
        stop = min(int(state[2]) + FIND_SLICE_ROWS, count)
        place = (tree.mem, tree.handle, desc, buf, lookups.words, lookups.lengths, lookups.stride, stop)
        status = int(find_by_unique(*place, int(locks), out, offsets, state))
        if status == OK:
            deadline = None
        elif status <= ST_SPACE:
            out = grown(out, int(state[1]), ST_SPACE - status)
        elif status == ST_UNFINISHED:
            table.views.wait()
        elif status == ST_DROPPED or txn is None:
            raise index.gone()
        elif status == ST_BUSY and skip_locked:
            if is_locked(txn):
                break
        else:
            deadline = settle(txn, table, status, 0, deadline)
    found = np.flatnonzero(np.diff(offsets))
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
    check_table(table)
    if not with_disk and lookups.count <= FIND_SLICE_ROWS:
        return _read_in_place(txn, table, index, lookups)
    with table.views.open(table.handle) as view:
        return _read_by_view(txn, table, index, lookups, view, with_disk)


def _read_in_place(
    txn: Transaction | None, table: Table, index: StoredUnique, lookups: Lookups
) -> tuple[Words, Words, int]:
    """Do `read` by one kernel call that reads all rows."""
    count = lookups.count
    out = np.empty(max(count * (ENTRY_WORDS + table.format.fixed_words + 8), 256), dtype=np.int64)
    offsets = np.empty(count + 1, dtype=np.int64)
    tree = index.tree
    while True:
        check_table(table)
        state = np.zeros(3, dtype=np.int64)
        place = (tree.mem, tree.handle, *place_of(txn), lookups.words, lookups.lengths, lookups.stride, count)
        status = int(read_by_unique(*place, out, offsets, state))
        if status == ST_DROPPED:
            raise index.gone()
        if status == ST_UNFINISHED:
            table.views.wait()
        elif status <= ST_SPACE:
            out = grown(out, 0, ST_SPACE - status)
        else:
            found = int(state[0])
            return out, offsets[:found], found


def _read_by_view(
    txn: Transaction | None, table: Table, index: StoredUnique, lookups: Lookups, view: View, with_disk: bool
) -> tuple[Words, Words, int]:
    """Do `read` in several steps: find the rows that have the keys now, and those that had them when the view was
    opened; read all of them by the view, and keep those that have the keys there.
    """
    keys, _ = find(txn, table, index, lookups, locks=False)
    pieces = [keys.keys]
    lengths = [np.diff(keys.key_offsets) if keys.key_offsets.size else np.full(keys.count, keys.key_words)]
    if view.view:
        entries, offsets, _ = versions_of(view, table, view.head, int(table.mem[S_VERSION_HEAD]))
        older = [table.format.image_key(entries[at:]) for at in offsets.tolist()]
        pieces += older
        lengths.append(np.array([each.size for each in older], dtype=np.int64))
    ends = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    every = EncodedKeys(np.concatenate(pieces), 0, 0, ends, ends.size - 1)
    entries, offsets, count = snapshot_reads.read_keys(view, table, every, with_disk, txn)
    held = keys_of_images(index.tree.shape, entries, offsets, table.format.fixed_words)
    places = {_key_bytes(held, row): int(offsets[row]) for row in range(count)}
    wanted = (places.get(_key_bytes(lookups, row)) for row in range(lookups.count) if lookups.lengths[row])
    found = np.array([each for each in wanted if each is not None], dtype=np.int64)
    return entries, found, found.size


def _key_bytes(keys: Lookups, row: int) -> bytes:
    start = row * keys.stride
    return bytes(keys.words[start : start + int(keys.lengths[row])].tobytes())


def encode_keys(table: Table, index: StoredUnique, keys: Any) -> Lookups:
    """Encode a batch of keys in the form callers give them. Raises: errors of validation."""
    return KeyEncoder(table.definition, index.definition.columns).encode(keys)


def missing(table: Table, index: StoredUnique, key: Any, row: int | None = None) -> RowNotFound:
    """Return the error for a key no row has."""
    where = "" if row is None else f" of row {row}; nothing was changed"
    return RowNotFound(
        f"index {index.name} of {table.name} has no row with key {table.format_key(key)}{where}",
        table=table.name,
        index=index.name,
        key=key,
        row=row,
    )


def _first_missing(table: Table, index: StoredUnique, keys: Any, found: Words, first_row: int) -> RowNotFound:
    """Return the error for the first key without a row; `keys` in the form the caller gave them."""
    row = next((place for place, each in enumerate(found) if place != each), int(found.size))
    columns = KeyEncoder(table.definition, index.definition.columns).columns(keys)
    values = [list(column)[row] for column in columns.values()]
    plain = [value.as_py() if hasattr(value, "as_py") else value for value in values]
    return missing(table, index, plain[0] if len(plain) == 1 else tuple(plain), first_row + row)


# --- one row --------------------------------------------------------------------------------------
def locked_key(txn: Transaction, table: Table, index: StoredUnique, lookups: Lookups) -> Any:
    """Return the primary key of the row with a key, locked to the end of the transaction; None if there is none."""
    keys, found = find(txn, table, index, lookups, locks=True)
    return table.format.decode_key(keys.keys) if found.size else None


def get(
    txn: Transaction | None, table: Table, key: Any, name: str, lock: str | None = None, skip_locked: bool = False
) -> Any:
    """Return the row with this key of a unique index, or None. `lock`, `skip_locked`: as for
    `row_operations.get`.
    """
    check_table(table)
    index = table.unique(name)
    lookups = one_key(index.tree.shape, table.name, key)
    seen = NO_EPOCH
    if txn is not None:
        seen = txn.seen
        txn.check(locks=lock is not None)
        is_found = True
        if lock == "exclusive":
            is_found = find(txn, table, index, lookups, True, skip_locked)[1].size > 0
        elif lock == "shared":
            is_found = _share(txn, table, index, lookups, skip_locked)
        if skip_locked and not is_found:
            return None
    entries, offsets, count = read(txn, table, index, lookups, table.format.has_disk)
    if not count:
        return None
    at = int(offsets[0])
    if txn is not None:
        txn.seen = max(seen, int(entries[at - ENTRY_WORDS + 1]))
    return table.format.decode_row(entries.data.cast("B"), at)


def _share(txn: Transaction, table: Table, index: StoredUnique, lookups: Lookups, skip_locked: bool = False) -> bool:
    """Take a shared lock on each row that still has its key once it is locked. Return False, with `skip_locked`, at a
    row that another transaction has locked or deleted.
    """
    for number in range(lookups.count):
        one = lookups.part(number, number + 1)
        before: bytes | None = None
        while True:
            keys, found = find(txn, table, index, one, locks=False)
            now = keys.keys.tobytes() if found.size else None
            if now is None or now == before:
                break
            is_shared = row_operations.lock_shared(txn, table, table.format.decode_key(keys.keys), skip_locked)
            if skip_locked and not is_shared:
                return False
            before = now
    return True


def update(
    txn: Transaction,
    table: Table,
    key: Any,
    changes: Mapping[str, Any],
    where: Expression | Program | None,
    name: str,
) -> bool:
    """Change some columns of the row with this key; False if `where` refuses it. Raises: RowNotFound."""
    primary = _lock_row(txn, table, key, name)
    return conditional_changes.update(txn, table, primary, changes, where)


def delete(txn: Transaction, table: Table, key: Any, where: Expression | Program | None, name: str) -> bool:
    """Delete the row with this key of a unique index; False if `where` refuses it. Raises: RowNotFound."""
    primary = _lock_row(txn, table, key, name)
    return conditional_changes.delete(txn, table, primary, where)


def _lock_row(txn: Transaction, table: Table, key: Any, name: str) -> Any:
    txn.check(locks=True)
    check_table(table)
    index = table.unique(name)
    primary = locked_key(txn, table, index, one_key(index.tree.shape, table.name, key))
    if primary is None:
        raise missing(table, index, key)
    return primary


# --- many rows ------------------------------------------------------------------------------------
def get_many(
    txn: Transaction | None,
    table: Table,
    keys: Any,
    columns: Sequence[str] | None,
    name: str,
    lock: str | None = None,
) -> pa.RecordBatch:
    """Return the rows with these keys of a unique index as an Arrow record batch, in the order of the keys; keys
    without a row are left out.
    """
    check_table(table)
    index = table.unique(name)
    lookups = encode_keys(table, index, keys)
    if txn is not None and lock == "exclusive":
        find(txn, table, index, lookups, locks=True)
    elif txn is not None and lock == "shared":
        _share(txn, table, index, lookups)
    entries, offsets, count = read(txn, table, index, lookups, table.format.needs_disk(columns))
    return decode_entries(table.format, entries, offsets, count, columns)


def delete_many(txn: Transaction, table: Table, keys: Any, name: str) -> int:
    """Delete the rows with these keys of a unique index; return how many. All or none. Raises: RowNotFound."""
    txn.check(locks=True)
    check_table(table)
    index = table.unique(name)
    lookups = encode_keys(table, index, keys)
    with txn.savepoint():
        primary, found = find(txn, table, index, lookups, locks=True)
        if found.size != lookups.count:
            raise _first_missing(table, index, keys, found, 0)
        touch_many(txn, table, primary, MODE_DELETE, 0)
    return lookups.count


def update_many(txn: Transaction, table: Table, data: Any, name: str, progress: Progress | None = None) -> int:
    """Change the given columns of the rows with the keys of a unique index in `data`; return how many. All or none.

    Raises: RowNotFound (`row` is the position in `data`), and errors of validation.
    """
    return by_batches(txn, table, data, progress, _update_batch, name)


def _update_batch(txn: Transaction, table: Table, batch: Batch, name: str) -> int:
    index, columns = table.unique(name), batch.columns
    names = [each for each in columns.schema.names if each not in index.definition.columns]
    lookups = encode_keys(table, index, columns)
    primary, found = find(txn, table, index, lookups, locks=True)
    if found.size != lookups.count:
        raise _first_missing(table, index, columns, found, batch.first_row)
    return change_columns(txn, table, primary, columns.select(names), batch.first_row)
