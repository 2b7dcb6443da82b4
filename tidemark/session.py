"""What a user does inside a transaction; every call names its table.

A thin face: each method finds the table and hands over to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tidemark.engine.access import batch_operations, conditional_changes, row_operations, unique_calls, unique_upserts
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.base.out_of_memory import types_memory_errors
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.txn.transaction import Transaction as EngineTransaction
from tidemark.scans import ByIndex, Scan

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.table.table import Table

Lock = Literal["shared", "exclusive"] | None
Progress = Callable[[int, int, str], None]
Where = Expression | Program | None
_LOCKS = (None, "shared", "exclusive")


def check_lock(lock: Lock) -> None:
    """Raises: SchemaInvalid for what is no lock."""
    if lock not in _LOCKS:
        raise SchemaInvalid(f"lock must be None, 'shared' or 'exclusive', got {lock!r}")


@types_memory_errors()
class Transaction(EngineTransaction):
    """An open transaction, used by the thread that began it; `with` commits at the end and rolls back on an exception.

    Rows are mappings or sequences in column order. `Rejected` errors leave the transaction open and as it was before
    the call; `Retryable` ones have rolled it back whole.
    """

    __slots__ = ()

    def _table(self, name: str) -> Table:
        return self.store.table(name)

    def _scan_class(self, lock: Lock) -> type[Scan]:
        """What reads for `scan`: transactions that do more with rows they lock have a class of their own."""
        return Scan

    def insert(self, table: str, row: Mapping[str, Any] | Sequence[Any]) -> None:
        """Insert one row. Raises: DuplicateKey, TypeMismatch, ValueOutOfRange, NotNullViolation, NoSuchColumn."""
        row_operations.insert(self, self._table(table), row)

    def write(self, table: str, row: Mapping[str, Any] | Sequence[Any]) -> None:
        """Insert one row, or replace the row with its key. Raises as `insert`, DuplicateKey excepted."""
        row_operations.write(self, self._table(table), row)

    def get(self, table: str, key: Any, lock: Lock = None, *, index: str | None = None) -> Any:
        """The row with this key as a named tuple, or None; own changes included. A lock is held to the end;
        a key without a row is not locked, so another transaction may insert it meanwhile.

        index: the key is that of this unique index (a tuple for several columns), here and in every call that has it.
        Raises: NoSuchIndex, Unsupported if the index is not unique.
        """
        check_lock(lock)
        if index is not None:
            return unique_calls.get(self, self._table(table), key, index, lock)
        return row_operations.get(self, self._table(table), key, lock)

    def update(
        self, table: str, key: Any, changes: Mapping[str, Any], where: Where = None, *, index: str | None = None
    ) -> bool:
        """Change some columns of one row, to plain values or to expressions over the row as it was (`col("n") + 1`).

        where: only if the row, as this transaction sees it under its lock, is accepted; False if it is not: nothing
        has changed, and the row stays locked to the end. Raises: RowNotFound; Rejected for key columns (delete and
        insert), and for what an expression meets in the row.
        """
        if index is not None:
            return unique_calls.update(self, self._table(table), key, changes, where, index)
        return conditional_changes.update(self, self._table(table), key, changes, where)

    def delete(self, table: str, key: Any, where: Where = None, *, index: str | None = None) -> bool:
        """Delete one row; with `where` only if it accepts the row as `update` does, else False. Raises: RowNotFound."""
        if index is not None:
            return unique_calls.delete(self, self._table(table), key, where, index)
        return conditional_changes.delete(self, self._table(table), key, where)

    def upsert(
        self,
        table: str,
        row: Mapping[str, Any] | Sequence[Any],
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
    ) -> bool:
        """Insert a row, or update the one that has its primary key, or its key of the unique index; True if inserted.

        set: what is updated then, to plain values or expressions over the row as it was (`{"n": col("n") + 1}`); None:
        all columns given. The primary key stays. Two threads with one new key end with one row and both updates.
        Raises: DuplicateKey if the row has another unique key that exists, and as `insert` and `update`.
        """
        return unique_upserts.upsert(self, self._table(table), row, set, index)

    def update_where(self, table: str, changes: Mapping[str, Any], where: Where = None) -> int:
        """Change some columns of all rows that `where` accepts, of all rows without; returns how many. All or none:
        an error in one row leaves no trace. Rows are judged again under their locks.
        """
        return conditional_changes.update_where(self, self._table(table), changes, where)

    def delete_where(self, table: str, where: Expression | Program) -> int:
        """Delete all rows that `where` accepts; returns how many. All or none."""
        return conditional_changes.delete_where(self, self._table(table), where)

    def insert_many(self, table: str, data: Any, progress: Progress | None = None) -> int:
        """Insert all rows of Arrow, pandas, polars, NumPy or Python data, or none; returns how many.

        Raises: as `insert`; `error.row` is the position in `data`.
        """
        return batch_operations.insert_many(self, self._table(table), data, progress)

    def write_many(self, table: str, data: Any, progress: Progress | None = None) -> int:
        """Insert or replace all rows of `data`, or none; returns how many."""
        return batch_operations.write_many(self, self._table(table), data, progress)

    def upsert_many(
        self,
        table: str,
        data: Any,
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """`upsert` of all rows of `data` in their order, or of none; returns how many were inserted. Rows with one key
        follow each other. Python rows must all give the same columns.
        """
        return unique_upserts.upsert_many(self, self._table(table), data, set, index, progress)

    def update_many(self, table: str, data: Any, progress: Progress | None = None, *, index: str | None = None) -> int:
        """Change the given columns of the rows whose keys stand in `data`, all or none. Raises: RowNotFound."""
        if index is not None:
            return unique_calls.update_many(self, self._table(table), data, index, progress)
        return batch_operations.update_many(self, self._table(table), data, progress)

    def delete_many(self, table: str, keys: Any, *, index: str | None = None) -> int:
        """Delete the rows with these keys, all or none; returns how many. Raises: RowNotFound."""
        if index is not None:
            return unique_calls.delete_many(self, self._table(table), keys, index)
        return batch_operations.delete_many(self, self._table(table), keys)

    def get_many(
        self,
        table: str,
        keys: Any,
        columns: Sequence[str] | None = None,
        *,
        index: str | None = None,
        lock: Lock = None,
    ) -> pa.RecordBatch:
        """The rows with these keys, in their order, as an Arrow record batch; keys without a row are left out. Locks
        are held to the end.
        """
        check_lock(lock)
        self.check()
        if index is not None:
            return unique_calls.get_many(self, self._table(table), keys, columns, index, lock)
        return batch_operations.get_many(self._table(table), keys, columns, self, lock)

    def scan(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        lock: Lock = None,
        partitions: Sequence[str] | None = None,
        where: Where = None,
        *,
        index: str | None = None,
        lower: Any = None,
        upper: Any = None,
        prefix: Any = None,
        reverse: bool = False,
        progress: Progress | None = None,
    ) -> Scan:
        """The rows of a table, each as committed when reached or as this transaction has changed it: iterate it for
        named tuples, or use what else a `Scan` has.

        partitions: only rows of these. where: only rows this expression or program accepts; `limit` counts those. With
        a lock each row is judged again once it is held. index and what follows: as `TableHandle.scan`; what the
        transaction changes while a scan by an index is open is seen as it was. Raises: NoSuchPartition, NoSuchColumn,
        NoSuchIndex, ProgramInvalid, TypeMismatch, SchemaInvalid.
        """
        check_lock(lock)
        self.check()
        by = ByIndex(index, lower, upper, prefix, reverse)
        kind = self._scan_class(lock)
        return kind(self._table(table), self, columns, limit, lock, partitions, where, by, progress)
