"""Transactions whose reads with an exclusive lock are replicated (`log_exclusive_reads`).

A read that found a row is logged as an update that changes nothing. NDB$EPOCH_TRANS and NDB$EPOCH2_TRANS then see
conflicts between reads and changes, and between reads. A read that found no row leaves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemark.derived import described
from tidemark.engine.applied.noted_rows import track_reads
from tidemark.engine.queries.missing_rows import DROP, Missing
from tidemark.engine.rows.column_values import from_python
from tidemark.engine.txn.own_view import OwnView
from tidemark.scans import Scan, ScanAsked
from tidemark.session import Lock, Transaction

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.table.table import Table


class TrackingTransaction(Transaction):
    """A transaction that logs its exclusive reads, at the cost of a record for each row read."""

    __slots__ = ()

    @described(Transaction.get)
    def get(
        self, table: str, key: Any, lock: Lock = None, *, index: str | None = None, skip_locked: bool = False
    ) -> Any:
        row = super().get(table, key, lock, index=index, skip_locked=skip_locked)
        if lock == "exclusive" and row is not None:
            track_row(self, self.store.tables.named(table), row)
        return row

    @described(Transaction.get_many)
    def get_many(
        self,
        table: str,
        keys: Any,
        columns: Sequence[str] | None = None,
        *,
        index: str | None = None,
        lock: Lock = None,
        missing: Missing = DROP,
    ) -> pa.RecordBatch:
        if lock != "exclusive" or missing != DROP:  # then the rows that are found come here again
            return super().get_many(table, keys, columns, index=index, lock=lock, missing=missing)
        key_names = self.store.tables.named(table).definition.primary_key
        wanted = columns if columns is None else list(dict.fromkeys([*columns, *key_names]))
        found = super().get_many(table, keys, wanted, index=index, lock=lock)
        if found.num_rows:
            track_reads(self, self.store.tables.named(table), found.select(list(key_names)))
        return found if columns is None else found.select(list(columns))

    def _scan(self, table: str, asked: ScanAsked) -> Scan:
        if asked.lock != "exclusive":
            return super()._scan(table, asked)
        self.check()
        return _TrackedScan(self._found(table), asked, self)


class TrackingSnapshotTransaction(OwnView, TrackingTransaction):
    """One that also reads the state at its begin."""

    __slots__ = ("view",)


class _TrackedScan(Scan):
    """A scan with exclusive locks."""

    def _lock_row(self, txn: Any, key: Any) -> tuple[Any, bool]:
        row, is_last = super()._lock_row(txn, key)
        if row is not None and self._is_in_range(row):
            track_row(txn, self._table, row)
        return row, is_last


def track_row(txn: Transaction, table: Table, row: Any) -> None:
    """Log the read of one row (a tuple of all its columns)."""
    import pyarrow as pa

    key = {}
    for column in table.definition.columns:
        if column.name in table.definition.primary_key:
            key[column.name] = from_python([row[column.name]], column, table.name, 0, is_key=True)
    track_reads(txn, table, pa.RecordBatch.from_pydict(key))
