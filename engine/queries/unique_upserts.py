"""Upserts: insert a row, or update the row that has its key (docs/internals/access.md, 6).

The row is looked up and locked. If no row has the key, the new one is inserted; if another transaction inserts the key
first, the search starts again: of two threads with the same new key, one inserts and the other updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access import row_operations
from tidemark.engine.access.batch_operations import (
    Progress,
    by_batches,
    change_columns,
    lock_keys,
    put_changed,
    put_images,
    read_locked,
    retried,
)
from tidemark.engine.access.computed_values import filled, filled_batch
from tidemark.engine.access.unique_reads import find
from tidemark.engine.base.errors import DuplicateKey
from tidemark.engine.index.unique_keys import Lookups, keys_of_images
from tidemark.engine.memory.arena_layout import MODE_INSERT, MODE_LOCK
from tidemark.engine.queries import conditional_changes
from tidemark.engine.queries.unique_calls import locked_key
from tidemark.engine.rows.columnar import encode_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.index.stored import StoredUnique
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.rows.column_input import Batch
    from tidemark.engine.rows.columnar import EncodedKeys, EncodedRows
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction

_FIRST: Words = np.zeros(1, dtype=np.int64)


@retried
def upsert(
    txn: Transaction,
    table: Table,
    row: Mapping[str, Any] | Sequence[Any],
    changes: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> bool:
    """Insert a row, or update the row with its primary key, or with its key of the unique index `name`; True if it was
    inserted. changes: the new values; None: all columns given except the primary key.

    Raises: DuplicateKey for a key other than the one searched by, and errors of validation.
    """
    txn.check(locks=True)
    table.check()
    image = table.format.encode_row(filled(txn, table, row)[0] if table.format.computed else row)
    index = None if name is None else table.unique(name)
    if changes is not None:
        conditional_changes.check_changes(table, changes)
    plan = _given(table, row) if changes is None else changes
    while True:
        key = _locked(txn, table, image, index)
        if key is not None:
            if plan:
                conditional_changes.update(txn, table, key[0], plan)
            return False
        try:
            row_operations.put_image(txn, table, image, MODE_INSERT)
            return True
        except DuplicateKey as error:
            if error.evidence.get("index") != name:
                raise


def _given(table: Table, row: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    names = [column.name for column in table.definition.columns]
    given = row if isinstance(row, Mapping) else dict(zip(names, row, strict=True))
    return {each: value for each, value in given.items() if each not in table.definition.primary_key}


def _locked(txn: Transaction, table: Table, image: Words, index: StoredUnique | None) -> tuple[Any] | None:
    """Lock the row that has an image's key; return its primary key as a tuple of one, or None if no row has it."""
    if index is None:
        key = table.format.decode_key(table.format.image_key(image))
        return (key,) if row_operations.touch(txn, table, key, MODE_LOCK) else None
    found = locked_key(txn, table, index, _keys_of(table, index, image, _FIRST))
    return None if found is None else (found,)


def _keys_of(table: Table, index: StoredUnique, images: Words, offsets: Words) -> Lookups:
    return keys_of_images(index.tree.shape, images, offsets, table.format.fixed_words)


def upsert_many(
    txn: Transaction,
    table: Table,
    data: Any,
    changes: Mapping[str, Any] | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Upsert many rows, in their order; return how many were inserted. All or none. Python rows must all give the same
    columns. Rows with the same key are applied one after the other: the first may insert, the others update.

    Raises: DuplicateKey for a key other than the one searched by, and errors of validation.
    """
    return by_batches(txn, table, data, progress, _upsert_batch, changes, name)


def _upsert_batch(
    txn: Transaction, table: Table, batch: Batch, changes: Mapping[str, Any] | None, name: str | None
) -> int:
    upserts = _Upserts(txn, table, changes, name, batch.columns.schema.names)
    upserts.take(filled_batch(txn, table, batch.columns, batch.first_row), batch.first_row)
    return upserts.inserted


class _Upserts:
    """The upserts of one batch."""

    def __init__(
        self, txn: Transaction, table: Table, changes: Mapping[str, Any] | None, name: str | None, given: Sequence[str]
    ) -> None:
        """given: the columns of the data, which an update changes; batches may have more, for the rows inserted."""
        self.txn = txn
        self.table = table
        self.name = name
        self.given = [each for each in given if each not in table.definition.primary_key]
        self.index = None if name is None else table.unique(name)
        self.change = None if changes is None else conditional_changes.Change(table, changes, None)
        self.inserted = 0

    def take(self, columns: pa.RecordBatch, first_row: int) -> None:
        """Upsert one batch. first_row: position of its first row in the data."""
        encoded = encode_rows(self.table.format, columns, first_row)
        turns, earlier = _turns(self._keys(encoded))
        if not self.table.unique_columns:  # only rows with the same key depend on each other
            for turn in range(int(turns.max(initial=-1)) + 1):
                self._turn(columns, np.flatnonzero(turns == turn), first_row)
            return
        starts = _stretches(earlier)
        for start, stop in zip(starts, [*starts[1:], encoded.count], strict=True):
            self._stretch(columns.slice(start, stop - start), first_row + start)

    def _stretch(self, columns: pa.RecordBatch, first_row: int) -> None:
        """Upsert rows with different keys, as if one by one: a row may take a unique key that an earlier row releases,
        and no key that a later row releases.

        Updates are last, in their order, so a key is never taken before its time; but it may be refused before its
        time. Then the rows are tried in halves.
        """
        inserted, count = self.inserted, columns.num_rows
        try:
            with self.txn.savepoint():
                self._turn(columns, np.arange(count), first_row)
            return
        except DuplicateKey:
            if count == 1:
                raise
        self.inserted = inserted
        self._stretch(columns.slice(0, count // 2), first_row)
        self._stretch(columns.slice(count // 2), first_row + count // 2)

    def _keys(self, encoded: EncodedRows) -> Lookups:
        """Return the keys by which rows are looked up, as words of equal stride."""
        if self.index is not None:
            return _keys_of(self.table, self.index, encoded.images, encoded.starts())
        keys = encoded.keys.dense()
        if not keys.key_offsets.size:
            return Lookups(keys.keys, np.full(keys.count, keys.key_words, dtype=np.int64), keys.key_words)
        lengths = np.diff(keys.key_offsets)
        stride = int(lengths.max(initial=1))
        padded = np.zeros((keys.count, stride), dtype=np.int64)
        padded[np.arange(stride) < lengths[:, None]] = keys.keys
        return Lookups(padded.ravel(), lengths, stride)

    def _turn(self, columns: pa.RecordBatch, rows: Words, first_row: int) -> None:
        """Insert the new ones of these rows, then update the others."""
        while not self._is_upserted(columns, rows, first_row):
            pass

    def _is_upserted(self, columns: pa.RecordBatch, rows: Words, first_row: int) -> bool:
        """Do `_turn`; return False, with nothing changed, if another transaction inserted one of the keys meanwhile."""
        part = columns if rows.size == columns.num_rows else columns.take(_indices(rows))
        encoded = encode_rows(self.table.format, part)
        keys, found = self._lock(encoded)
        others = np.setdiff1d(np.arange(rows.size), found, assume_unique=True)
        if others.size and found.size:
            encoded = encode_rows(self.table.format, part.take(_indices(others)))
        if others.size:
            try:
                with self.txn.savepoint():
                    put_images(self.txn, self.table, encoded, MODE_INSERT, 0)
            except DuplicateKey as error:
                if error.evidence.get("index") == self.name:
                    return False
                raise self._placed(error, first_row + int(rows[others[int(str(error.row))]])) from None
            self.inserted += int(others.size)
        if found.size:
            try:
                self._update(part, keys, found)
            except DuplicateKey as error:
                raise self._placed(error, first_row + int(rows[found[int(str(error.row))]])) from None
        return True

    def _placed(self, error: DuplicateKey, row: int) -> DuplicateKey:
        which = error.evidence.get("index")
        where = "as its primary key" if which is None else f"in index {which}"
        key = self.table.format_key(error.key)
        text = f"{self.table.name}: row {row} has key {key} {where}, which another row has; nothing was changed"
        return DuplicateKey(text, **{**error.evidence, "row": row})

    def _lock(self, encoded: EncodedRows) -> tuple[EncodedKeys, Words]:
        """Return (primary keys of the existing rows, locked; positions of the rows that have them)."""
        txn, table = self.txn, self.table
        if self.index is not None:
            return find(txn, table, self.index, _keys_of(table, self.index, encoded.images, encoded.starts()), True)
        keys = encoded.keys.dense()
        found = np.flatnonzero(lock_keys(txn, table, keys))
        return keys.take(found), found

    def _update(self, part: pa.RecordBatch, keys: EncodedKeys, found: Words) -> None:
        txn, table = self.txn, self.table
        if self.change is None:
            if self.given:
                given = part.select(self.given)
                change_columns(txn, table, keys, given.take(_indices(found)), 0)
            return
        changed = [*self.change.plain, *(each.name for each in self.change.columns)]
        entries, offsets = read_locked(txn, table, keys, 0, table.format.touches_disk([*changed, *self.change.names]))
        places, planes, _ = self.change.judge(table, entries, offsets)
        put_changed(txn, table, self.change.batch(table.definition, planes), entries, offsets[places])


def _indices(rows: Words) -> pa.Array:
    import pyarrow as pa

    return pa.array(rows)


def _stretches(earlier: Words) -> list[int]:
    """Return the starts of stretches of rows in which no key comes twice. earlier: the last row before each row that
    has its key, or -1.
    """
    starts = [0]
    for row in np.flatnonzero(earlier >= 0).tolist():
        if earlier[row] >= starts[-1]:
            starts.append(row)
    return starts


def _turns(keys: Lookups) -> tuple[Words, Words]:
    """Return, for each row, how many earlier rows have its key, and the last of these, or -1; a key with a NULL equals
    no other.
    """
    count = keys.count
    same = np.unique(keys.comparable(keys.stride), return_inverse=True)[1].ravel()
    order = np.argsort(same, kind="stable")
    is_first = np.concatenate([[True], np.diff(same[order]) != 0])[:count]
    starts = np.flatnonzero(is_first)
    turns = np.empty(count, dtype=np.int64)
    turns[order] = np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))
    earlier = np.full(count, -1, dtype=np.int64)
    earlier[order[1:]] = np.where(is_first[1:], -1, order[:-1])
    for each, nothing in ((turns, 0), (earlier, -1)):
        each[keys.lengths == 0] = nothing
    return turns, earlier
