"""`db["test.account"]`: the calls of a transaction on one table, each a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.engine.access import batch_operations, conditional_changes, row_operations, unique_calls, unique_upserts
from tidemark.engine.base.errors import RowNotFound
from tidemark.engine.base.out_of_memory import no_memory, types_memory_errors
from tidemark.engine.memory.arena_layout import F_ROWS
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.schema.partition import ListPartition, RangePartition
from tidemark.scans import ByIndex, Scan

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction

Progress = Callable[[int, int, str], None]
Where = Expression | Program | None
R = TypeVar("R")


def partitions_of(table: Table) -> list[dict[str, Any]]:
    """See `TableHandle.partitions`. All but the row counts are of one instant."""
    by_number, partition = table.by_number, table.definition.partition
    bounds: list[dict[str, Any]] = [{} for _ in partition.numbers]
    if isinstance(partition, RangePartition):
        bounds = [{"upper": bound if len(bound) > 1 else bound[0]} for _, bound in partition.partitions]
    elif isinstance(partition, ListPartition):
        bounds = [{"values": [row if len(row) > 1 else row[0] for row in rows]} for _, rows in partition.partitions]
    return [
        {"name": name, "fragment": number, **bound, "rows": table.arena.word(by_number[number], F_ROWS)}
        for name, number, bound in zip(partition.names, partition.numbers, bounds, strict=True)
        if number in by_number
    ]


def index_counters(table: Table) -> dict[str, Any]:
    """The part of `status()` about a table's indexes; empty if it has none."""
    counted: dict[str, dict[str, int]] = {}
    for index in table.listed_indexes():
        counters = index.tree.counters()
        if not index.is_dropped:
            counted[index.name] = counters
    return {"indexes": counted} if counted else {}


@types_memory_errors("__len__", but=("get",))
class TableHandle:
    """One table of an open store. Every call that writes is a transaction, durable on return with
    `durability="commit"`.
    """

    __slots__ = ("_begin", "_failure", "table")

    def __init__(self, store: Store, table: Table) -> None:
        self._failure = store.failure
        self.table = table
        self._begin: Callable[[], Transaction] = store.begin

    def _check_usable(self) -> None:
        if self._failure.first is not None:
            self._failure.check()

    @property
    def name(self) -> str:
        """The qualified name, "database.table"."""
        return self.table.newest.name

    @property
    def definition(self) -> TableDefinition:
        """The table's definition."""
        return self.table.newest.definition

    def _alone(self, call: Callable[..., R], *arguments: Any) -> R:
        """Run one call as a transaction. A `with` would leave it open if a signal came on the way into `__exit__`
        (F117).
        """
        txn = self._begin()
        try:
            result = call(txn, self.table.newest, *arguments)
            txn.commit(txn.store.waits_for_disk)
        except MemoryError as error:
            raise txn.out_of_memory(error) from error
        except BaseException:
            # A signal before the hand-over rolls it back; after it, it is committed: outcome(txid) tells which.
            txn.rollback()
            raise
        return result

    # --- one row ---------------------------------------------------------------------------------
    def insert(self, row: Mapping[str, Any] | Sequence[Any]) -> None:
        """Insert one row. Raises: DuplicateKey, TypeMismatch, ValueOutOfRange, NotNullViolation, NoSuchColumn."""
        self._alone(row_operations.insert, row)

    def write(self, row: Mapping[str, Any] | Sequence[Any]) -> None:
        """Insert one row, or replace the row with its key."""
        self._alone(row_operations.write, row)

    def get(self, key: Any, *, index: str | None = None) -> Any:
        """Return the committed row with this key, of the primary key or of a unique index, as a named tuple, or
        None.
        """
        if self._failure.first is not None:
            self._failure.check()
        try:  # in line: one more call would take a twelfth of the time
            if index is not None:
                return unique_calls.get(None, self.table.newest, key, index)
            table = self.table
            if table.superseded_by is not None:  # in line: a property would take a thirtieth of the time
                table = table.newest
            return row_operations.get_committed(table, key)
        except MemoryError as error:
            raise no_memory(error) from error

    def update(self, key: Any, changes: Mapping[str, Any], where: Where = None, *, index: str | None = None) -> bool:
        """Change some columns of one row; see `Transaction.update`. Raises: RowNotFound."""
        if index is not None:
            return self._alone(unique_calls.update, key, changes, where, index)
        return self._alone(conditional_changes.update, key, changes, where)

    def delete(self, key: Any, where: Where = None, *, index: str | None = None) -> bool:
        """Delete one row; see `Transaction.delete`. Raises: RowNotFound."""
        if index is not None:
            return self._alone(unique_calls.delete, key, where, index)
        return self._alone(conditional_changes.delete, key, where)

    def upsert(
        self,
        row: Mapping[str, Any] | Sequence[Any],
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
    ) -> bool:
        """Insert a row, or update the row with its key; return True if it was inserted. See `Transaction.upsert`."""
        return self._alone(unique_upserts.upsert, row, set, index)

    # --- many rows -------------------------------------------------------------------------------
    def insert_many(self, data: Any, progress: Progress | None = None) -> int:
        """Insert all rows of Arrow, pandas, polars, NumPy or Python data in one transaction; return how many."""
        return self._alone(batch_operations.insert_many, data, progress)

    def write_many(self, data: Any, progress: Progress | None = None) -> int:
        """Insert or replace all rows of `data` in one transaction; return how many."""
        return self._alone(batch_operations.write_many, data, progress)

    def upsert_many(
        self,
        data: Any,
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Upsert all rows of `data` in one transaction; return how many were inserted. See
        `Transaction.upsert_many`.
        """
        return self._alone(unique_upserts.upsert_many, data, set, index, progress)

    def update_many(self, data: Any, progress: Progress | None = None, *, index: str | None = None) -> int:
        """Change the given columns of the rows with the keys in `data`, in one transaction; return how many."""
        if index is not None:
            return self._alone(unique_calls.update_many, data, index, progress)
        return self._alone(batch_operations.update_many, data, progress)

    def delete_many(self, keys: Any, *, index: str | None = None) -> int:
        """Delete the rows with these keys in one transaction; return how many. Raises: RowNotFound."""
        if index is not None:
            return self._alone(unique_calls.delete_many, keys, index)
        return self._alone(batch_operations.delete_many, keys)

    def update_where(self, changes: Mapping[str, Any], where: Where = None) -> int:
        """Change some columns of all rows that `where` accepts, of all rows without it, in one transaction; return how
        many.

        New values are plain values, or expressions over the row as it was.
        """
        return self._alone(conditional_changes.update_where, changes, where)

    def delete_where(self, where: Expression | Program) -> int:
        """Delete all rows that `where` accepts, in one transaction; return how many."""
        return self._alone(conditional_changes.delete_where, where)

    def get_many(self, keys: Any, columns: Sequence[str] | None = None, *, index: str | None = None) -> pa.RecordBatch:
        """Return the committed rows with these keys, of the primary key or of a unique index, in the order of the keys.

        Keys without a row are left out.
        """
        self._check_usable()
        if index is not None:
            return unique_calls.get_many(None, self.table.newest, keys, columns, index)
        return batch_operations.get_many(self.table.newest, keys, columns, None)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
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
        """Return a scan of the table.

        Iterate over it for named tuples; use `batches`, `to_arrow`, `to_pandas` or `to_numpy`; or add up rows with
        `count`, `sum`, `min`, `max`, `mean` or `aggregate`.

        Args:
            columns: Names of the columns to read; None: all.
            limit: Read at most so many rows.
            partitions: Read only these partitions.
            where: An expression over `tidemark.col` or a `Program`: read only rows that it accepts; `limit` counts
                these. An expression may lead the scan to an index (`explain` says which). Rows have an order only with
                `index`.
            index: Read the rows in the order of this index, with `reverse` in descending order.
            lower: The first key of the index to read: values of its leading columns as a tuple, or one value. Fewer
                values than columns stand for every key that begins with them.
            upper: The key to stop before, as the end of a Python range.
            prefix: Read the keys that begin with it. A str or bytes also stands for all values of the first column that
                begin with it.
            progress: Called after each batch with (rows so far, rows in all or -1, "rows").

        Raises: NoSuchPartition, NoSuchColumn, NoSuchIndex, ProgramInvalid, TypeMismatch, SchemaInvalid.
        """
        self._check_usable()
        by = ByIndex(index, lower, upper, prefix, reverse)
        return Scan(self.table.newest, None, columns, limit, None, partitions, where, by, progress)

    def explain(self, columns: Sequence[str] | None = None, where: Where = None, **options: Any) -> dict[str, Any]:
        """Return how a scan with these arguments would find its rows now; see `Scan.explain`. Raises as `scan`."""
        return self.scan(columns, where=where, **options).explain()

    def indexes(self) -> list[dict[str, Any]]:
        """The indexes, each with `name`, `columns`, `unique`, `entries`."""
        self._check_usable()
        return [index.to_dict() for index in self.table.newest.listed_indexes()]

    def partitions(self) -> list[dict[str, Any]]:
        """The partitions, each with `name`, `fragment` (its number) and `rows`; ranges have `upper`, lists have
        `values`.
        """
        self._check_usable()
        return partitions_of(self.table.newest)

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: Where = None, progress: Progress | None = None
    ) -> pa.Table:
        """Return all committed rows, or those that a condition accepts, as an Arrow table. progress: as for `scan`."""
        return self.scan(columns, where=where, progress=progress).to_arrow()

    def to_pandas(
        self, columns: Sequence[str] | None = None, where: Where = None, progress: Progress | None = None
    ) -> Any:
        """Return all committed rows, or those that a condition accepts, as a pandas DataFrame. progress: as for
        `scan`.
        """
        return self.scan(columns, where=where, progress=progress).to_pandas()

    def to_numpy(self, where: Where = None, progress: Progress | None = None) -> Any:
        """Return all committed rows, or those that a condition accepts, as a structured NumPy array. progress: as for
        `scan`.
        """
        return self.scan(where=where, progress=progress).to_numpy()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.scan().__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        self._check_usable()
        return self.table.newest.count()

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: Any) -> Any:
        row = self.get(key)
        if row is None:
            raise RowNotFound(f"{self.name} has no row with key {key!r}", table=self.name, key=key)
        return row

    def __iter__(self) -> Iterator[Any]:
        return iter(self.scan())

    def __repr__(self) -> str:
        return f"<tidemark table {self.name}>"
