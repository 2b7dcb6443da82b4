"""Computed defaults of rows that a transaction inserts: numbers of the store's sequences, moments of its clock.

A Retryable error of the transaction that reserves numbers rolls back the one that inserts too, as its callers expect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import Retryable
from tidemark.engine.rows.computed_columns import filled_columns, filled_row

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction


class TableNumbers:
    """The `Numbers` of a table, as a transaction takes them."""

    __slots__ = ("_table", "_txn")

    def __init__(self, txn: Transaction, table: Table) -> None:
        self._txn = txn
        self._table = table

    def take(self, count: int) -> range:
        store = self._txn.store
        try:
            found: range = store.sequences.take(store, self._table, self._table.format.numbered, count)
        except Retryable:
            self._txn.rollback()
            raise
        return found

    def saw(self, number: int) -> None:
        store = self._txn.store
        try:
            store.sequences.saw(store, self._table, number)
        except Retryable:
            self._txn.rollback()
            raise


def filled(txn: Transaction, table: Table, row: Any) -> tuple[Any, int | None]:
    """Do `filled_row` for a transaction that has begun."""
    return filled_row(table.format, row, txn.store.clock, TableNumbers(txn, table))


def filled_batch(txn: Transaction, table: Table, columns: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
    """Do `filled_columns` for a transaction that has begun."""
    if not table.format.computed:
        return columns
    return filled_columns(table.format, columns, txn.store.clock, TableNumbers(txn, table), first_row)
