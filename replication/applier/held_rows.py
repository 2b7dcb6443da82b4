"""Rows that meet a key of a unique index on their way: such keys are judged at the end of an epoch transaction.

The changes of an epoch come one after the other, though the source has made them together: two rows that exchange
their values meet each other in between. What meets a key so is held back, and with it all that follows on the same
rows; in the end the rows are taken out and put back as all of it leaves them. Memory grows with the changes held, up to
a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine import applied_rows
from engine.batch_operations import get_many
from engine.errors import DuplicateKey, TransactionTooLarge
from replication.applier.intake import located
from replication.applier.key_set import KeySet
from replication.applier.marks import tag_applied
from replication.conflict.functions import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from engine.table import Table
    from engine.transaction import Transaction
    from replication.applier.batch import ChangeBatch

    Key = tuple[Any, ...]
    Row = dict[str, Any]

# What a row takes at the end, when those held are put back: dicts of it, its key, its columns as Python values.
ROW_BYTES = 1_200
COLUMN_BYTES = 150


class HeldRows:
    """Of one pass. Only tables without function hold rows back: functions make conflicts of them."""

    def __init__(self, txn: Transaction, source_id: int, memory_limit_bytes: int = 1 << 40) -> None:
        self._txn = txn
        self._source_id = source_id
        self._keys = KeySet(memory_limit_bytes)
        self._left_bytes = memory_limit_bytes
        self._batches: dict[int, list[ChangeBatch]] = {}

    def holds(self, batch: ChangeBatch) -> NDArray[np.bool_]:
        """Which of the rows must wait for others that are held. Shape: (rows,)."""
        return self._keys.holds(batch.table.table_id, batch.keys)

    def hold(self, batch: ChangeBatch) -> None:
        """Hold changes back, behind those of the same rows. Raises: TransactionTooLarge beyond the memory limit."""
        if not batch.rows:
            return
        self._left_bytes -= batch.rows * (ROW_BYTES + COLUMN_BYTES * len(batch.table.definition.columns)) + sum(
            array.nbytes for image in (batch.before, batch.after) for array in (image or {}).values()
        )
        if self._left_bytes < 0:
            raise TransactionTooLarge(
                f"{batch.table.name}: more than {self._keys.count} rows of an epoch transaction wait for keys of unique"
                " indexes that others of it give up, and they pass what they may take of memory; nothing of it was"
                " applied, open the store with a larger transaction_memory",
                table=batch.table.name,
            )
        table_id = batch.table.table_id
        start = 0
        while start < batch.rows:
            start = self._keys.add(table_id, batch.keys, start) + 1
        self._batches.setdefault(table_id, []).append(batch)

    def settle(self) -> None:
        """The end of the epoch transaction. Raises: DuplicateKey if two rows have one key of a unique index then."""
        for batches in self._batches.values():
            self._settle(batches)

    def _settle(self, batches: list[ChangeBatch]) -> None:
        table = batches[0].table
        rows: dict[Key, Row] = {}
        origins: dict[Key, ChangeBatch] = {}
        for batch in batches:
            keys = batch.changes(with_values=False)
            fresh = [tuple(key.values()) not in origins for key in keys.to_pylist()]
            there = get_many(table, keys.filter(_mask(fresh)), None, self._txn, "exclusive")
            rows.update({_key(table, row): row for row in there.to_pylist()})
            origins.update((tuple(key.values()), batch) for key in keys.to_pylist())
            if there.num_rows:
                tag_applied(self._txn, self._source_id, batch.server_id, False)
                applied_rows.apply_deletes(self._txn, table, there)
        for batch in batches:
            _change(rows, batch)
        for batch in batches:
            self._put_back([row for key, row in rows.items() if origins[key] is batch], batch)

    def _put_back(self, rows: list[Row], batch: ChangeBatch) -> None:
        import pyarrow as pa

        if not rows:
            return
        tag_applied(self._txn, self._source_id, batch.server_id, False)
        by_columns: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            by_columns.setdefault(tuple(row), []).append(row)
        for names, alike in by_columns.items():
            kinds = {name: _type_of(batch, name) for name in names}
            arrays = [pa.array([row[name] for row in alike], kinds[name]) for name in names]
            outcomes = applied_rows.apply_inserts(
                self._txn, batch.table, pa.RecordBatch.from_arrays(arrays, list(names))
            )
            failed = np.flatnonzero(outcomes != applied_rows.APPLIED)
            if failed.size:
                key = _key(batch.table, alike[int(failed[0])])
                text = f"{batch.table.name}: the row with key {key} has a key of a unique index that another row has"
                raise located(DuplicateKey(text, table=batch.table.name, key=key), batch.origin)


def _mask(flags: list[bool]) -> Any:
    import pyarrow as pa

    return pa.array(flags, pa.bool_())


def _key(table: Table, row: Row) -> Key:
    return tuple(row[name] for name in table.definition.primary_key)


def _type_of(batch: ChangeBatch, name: str) -> Any:
    """The Arrow type values of a column have in Python rows."""
    import pyarrow as pa

    kind = batch.table.definition.columns[batch.table.definition.position(name)].type.arrow_type()
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _change(rows: dict[Key, Row], batch: ChangeBatch) -> None:
    """What a batch makes of rows: writes replace what they bring, what is missing is no matter."""
    keys = [tuple(key.values()) for key in batch.changes(with_values=False).to_pylist()]
    changes = batch.changes(with_values=True).to_pylist()
    for key, change in zip(keys, changes, strict=True):
        if batch.kind is Kind.DELETE:
            rows.pop(key, None)
        elif batch.kind is Kind.WRITE:
            rows[key] = {**rows.get(key, {}), **change}
        elif batch.kind is Kind.UPDATE and key in rows:
            rows[key].update(change)
