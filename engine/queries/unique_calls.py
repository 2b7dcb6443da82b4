"""Rows by the key of a unique index: get, update and delete, one or many (docs/internals/access.md, 6).

A row to be changed is locked in the kernel call that compares its key. From then on its primary key identifies it, and
the calls by primary key do the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.engine.access import row_operations
from tidemark.engine.access.batch_operations import (
    Progress,
    by_batches,
    change_columns,
    decode_entries,
    touch_many,
)
from tidemark.engine.access.statuses import refuse_released
from tidemark.engine.access.unique_reads import find, read
from tidemark.engine.base.errors import RowNotFound, SnapshotTooOld
from tidemark.engine.base.ids import NO_EPOCH
from tidemark.engine.index.stored import StoredUnique
from tidemark.engine.index.unique_keys import KeyEncoder, Lookups, one_key
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, MODE_DELETE
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.queries import conditional_changes

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.rows.column_input import Batch
    from tidemark.engine.rows.columnar import EncodedKeys
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction


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


def _lock_all(txn: Transaction, table: Table, name: str, keys: Any, first_row: int = 0) -> EncodedKeys:
    """Lock the rows with these keys of an index, given in the form the caller gave them; return their primary keys.
    Raises: RowNotFound.
    """
    columns = None
    while True:
        try:
            index = table.unique(name)
            encoder = KeyEncoder(table.definition, index.definition.columns)
            columns = encoder.columns(keys) if columns is None else columns  # an iterator gives its keys once
            lookups = encoder.encode(columns)
            primary, found = find(txn, table, index, lookups, locks=True)
            break
        except SnapshotTooOld as error:
            table = table.in_force(txn, error)
    if found.size == lookups.count:
        return primary
    row = next((place for place, each in enumerate(found) if place != each), int(found.size))
    plain = [column[row].as_py() for column in columns.values()]
    raise missing(table, index, plain[0] if len(plain) == 1 else tuple(plain), first_row + row)


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
    seen = NO_EPOCH
    if txn is not None:
        seen = txn.seen
        txn.check(locks=lock is not None)
    table.check()
    index = table.unique(name)
    lookups = one_key(index.tree.shape, table.name, key)
    if txn is not None:
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
            if now is None and txn.view is not None:
                refuse_released(txn, table, index, one)
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
    table.check()
    while True:
        try:
            index = table.unique(name)
            primary = locked_key(txn, table, index, one_key(index.tree.shape, table.name, key))
            break
        except SnapshotTooOld as error:
            table = table.in_force(txn, error)
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
    table.check()
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
    table.check()
    with txn.savepoint():
        primary = _lock_all(txn, table, name, keys)
        touch_many(txn, table, primary, MODE_DELETE, 0)
    return primary.count


def update_many(txn: Transaction, table: Table, data: Any, name: str, progress: Progress | None = None) -> int:
    """Change the given columns of the rows with the keys of a unique index in `data`; return how many. All or none.

    Raises: RowNotFound (`row` is the position in `data`), and errors of validation.
    """
    return by_batches(txn, table, data, progress, _update_batch, name)


def _update_batch(txn: Transaction, table: Table, batch: Batch, name: str) -> int:
    columns = batch.columns
    names = [each for each in columns.schema.names if each not in table.unique(name).definition.columns]
    primary = _lock_all(txn, table, name, columns, batch.first_row)
    return change_columns(txn, table, primary, columns.select(names), batch.first_row)
