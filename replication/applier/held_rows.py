"""Changes that violate a unique index: such indexes are checked at the end of an epoch transaction.

The changes of an epoch are applied one after the other, although the source made them together: two rows that exchange
their values violate the index in between. Such a change is deferred, and so are all later changes of the same rows. At
the end the rows are deleted and inserted in their final state. If a row of this site still has such a key, the source's
row wins and the other one is deleted: otherwise the applier would never reach the later change of the source that
resolves the conflict. Memory grows with the deferred changes, up to a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.applied import applied_rows
from tidemark.engine.base.errors import DuplicateKey, LockTimeout, TransactionTooLarge
from tidemark.engine.queries import unique_calls
from tidemark.engine.queries.key_columns import get_many
from tidemark.engine.schema.column import ABSENT
from tidemark.replication.applier.key_set import KeySet
from tidemark.replication.applier.marks import tag_applied
from tidemark.replication.applier.stops import located
from tidemark.replication.conflict.functions import Kind, Operation, plain

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.replication.applier.batch import ChangeBatch

    Key = tuple[Any, ...]
    Row = dict[str, Any]

# Estimated memory of a held row while it is applied: its dicts and key, and each column as a Python value.
ROW_BYTES = 1_200
COLUMN_BYTES = 150
ROUNDS_MAX = 20  # of removing rows with the same keys, which other transactions may insert again


class HeldRows:
    """The held rows of one pass. Only changes that win by their decision are held; the others are conflicts of their
    function.
    """

    def __init__(
        self,
        txn: Transaction,
        source_id: int,
        memory_limit_bytes: int = 1 << 40,
        take_out: Callable[[ChangeBatch, pa.RecordBatch], None] | None = None,
    ) -> None:
        """`take_out` deletes rows of this site that have unique keys of a batch, and reports them; None: no row may
        have such a key.
        """
        self._txn = txn
        self._source_id = source_id
        self._take_out = take_out
        self._keys = KeySet(txn.store.tables.seed, memory_limit_bytes)
        self._left_bytes = memory_limit_bytes
        self._batches: dict[int, list[tuple[ChangeBatch, Operation]]] = {}

    def holds(self, batch: ChangeBatch) -> NDArray[np.bool_]:
        """Return which of the rows must be held because earlier changes of them are held. Shape: (rows,)."""
        return self._keys.holds(batch.table.table_id, batch.keys)

    def hold(self, batch: ChangeBatch, operation: Operation | None = None) -> None:
        """Hold changes, after earlier ones of the same rows. `operation`: how they are applied, None for the operation
        without a conflict function.

        Raises: TransactionTooLarge past the memory limit.
        """
        if not batch.rows:
            return
        self._left_bytes -= batch.rows * (ROW_BYTES + COLUMN_BYTES * len(batch.table.definition.columns)) + sum(
            array.nbytes for image in (batch.before, batch.after) for array in (image or {}).values()
        )
        if self._left_bytes < 0:
            raise TransactionTooLarge(
                f"{batch.table.name}: more than {self._keys.count} rows of an epoch transaction wait for keys of"
                " unique indexes that other rows of it release, and they exceed the memory they may take; nothing of"
                " it was applied, open the store with a larger transaction_memory",
                table=batch.table.name,
            )
        table_id = batch.table.table_id
        start = 0
        while start < batch.rows:
            start = self._keys.add(table_id, batch.keys, start) + 1
        self._batches.setdefault(table_id, []).append((batch, operation or plain(batch.kind).operation))

    def settle(self) -> None:
        """Apply the held changes at the end of the epoch transaction. Raises: DuplicateKey if two rows of the source
        then have the same unique key, or any two rows without `take_out`; LockTimeout if other transactions insert rows
        with such keys again and again.
        """
        for held in self._batches.values():
            self._settle(held)

    def _settle(self, held: list[tuple[ChangeBatch, Operation]]) -> None:
        import pyarrow as pa

        table = held[0][0].table
        rows: dict[Key, Row] = {}
        origins: dict[Key, ChangeBatch] = {}
        for batch, _ in held:
            keys = batch.changes(with_values=False)
            fresh = [tuple(key.values()) not in origins for key in keys.to_pylist()]
            there = get_many(table, keys.filter(pa.array(fresh, pa.bool_())), None, self._txn, "exclusive")
            rows.update({_key(table, row): row for row in there.to_pylist()})
            origins.update((tuple(key.values()), batch) for key in keys.to_pylist())
            if there.num_rows:
                tag_applied(self._txn, self._source_id, batch.server_id, False)
                applied_rows.apply_deletes(self._txn, table, there)
        for batch, operation in held:
            _change(rows, batch, operation)
        for batch, _ in held:
            self._restore([row for key, row in rows.items() if origins[key] is batch], batch, set(rows))

    def _restore(self, rows: list[Row], batch: ChangeBatch, held: set[Key]) -> None:
        by_columns: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            by_columns.setdefault(tuple(row), []).append(row)
        for names, alike in by_columns.items():
            for _ in range(ROUNDS_MAX):
                tag_applied(self._txn, self._source_id, batch.server_id, False)
                outcomes = applied_rows.apply_upserts(self._txn, batch.table, _as_batch(batch, names, alike))
                alike = [alike[place] for place in np.flatnonzero(outcomes != applied_rows.APPLIED)]
                if not alike:
                    break
                self._clear_way(batch, alike, held)
            else:
                raise LockTimeout(
                    f"{batch.table.name}: other transactions repeatedly insert rows with keys of unique indexes that"
                    " rows of the source have; retry when they have ended"
                )

    def _clear_way(self, batch: ChangeBatch, rows: list[Row], held: set[Key]) -> None:
        """Delete rows of this site that have unique keys of these rows, by `take_out`. Raises: DuplicateKey."""
        table = batch.table
        in_the_way: dict[Key, Row] = {}
        for row in rows:
            for index in table.uniques.values():
                value = tuple(_value(table, row, name) for name in index.definition.columns)
                if None in value or ABSENT in value:
                    continue
                key = value if len(value) > 1 else value[0]
                found = unique_calls.get(self._txn, table, key, index.name, "exclusive")
                if found is None:
                    continue
                other = dict(zip(table.format.names, found, strict=True))
                if self._take_out is None or _key(table, other) in held:
                    shown = _key(table, row)
                    text = f"{table.name}: the row with key {shown} has a key of a unique index that another row has"
                    raise located(DuplicateKey(text, table=table.name, key=shown), batch.origin)
                in_the_way[_key(table, other)] = other
        if in_the_way and self._take_out is not None:
            self._take_out(batch, _as_batch(batch, table.format.names, list(in_the_way.values())))


def _value(table: Table, row: Row, name: str) -> Any:
    """Return the value of a column in a held row; a missing column has its default, ABSENT if that is computed."""
    if name in row:
        return row[name]
    column = table.definition.columns[table.definition.position(name)]
    return column.missing if column.computed is None else ABSENT


def _as_batch(batch: ChangeBatch, names: Sequence[str], rows: list[Row]) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [pa.array([row[name] for row in rows], _type_of(batch, name)) for name in names]
    return pa.RecordBatch.from_arrays(arrays, list(names))


def _key(table: Table, row: Row) -> Key:
    return tuple(row[name] for name in table.definition.primary_key)


def _type_of(batch: ChangeBatch, name: str) -> Any:
    """Return the Arrow type of a column's values in Python rows."""
    import pyarrow as pa

    kind = batch.table.definition.columns[batch.table.definition.position(name)].type.arrow_type()
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _change(rows: dict[Key, Row], batch: ChangeBatch, operation: Operation) -> None:
    """Apply a batch to `rows`, by key. An upsert sets the columns it has; an update or a delete ignores a missing row.
    A tracked read sets no column, but may insert a missing row.
    """
    keys = [tuple(key.values()) for key in batch.changes(with_values=False).to_pylist()]
    changes = batch.changes(with_values=True).to_pylist()
    for key, change in zip(keys, changes, strict=True):
        if operation is Operation.DELETE:
            rows.pop(key, None)
        elif operation is Operation.INSERT or batch.kind is Kind.READ:
            if key not in rows and operation is not Operation.UPDATE:
                rows[key] = change
        elif operation is Operation.UPSERT:
            rows[key] = {**rows.get(key, {}), **change}
        elif key in rows:
            rows[key].update(change)
