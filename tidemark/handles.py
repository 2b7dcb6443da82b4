"""`db["test.account"]`: the calls of a transaction on one table, each its own transaction."""

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
    """See `TableHandle.partitions`; one instant but for the rows."""
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
    """The part of `status()` that tells of a table's indexes; nothing if it has none."""
    counted: dict[str, dict[str, int]] = {}
    for index in table.listed_indexes():
        counters = index.tree.counters()
        if not index.is_dropped:
            counted[index.name] = counters
    return {"indexes": counted} if counted else {}


@types_memory_errors("__len__", but=("get",))
class TableHandle:
    """One table of an open store. Every writing call is a transaction: durable on return with `durability="commit"`."""

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
        """Qualified name, "database.table"."""
        return self.table.newest.name

    @property
    def definition(self) -> TableDefinition:
        """The table's definition."""
        return self.table.newest.definition

    def _alone(self, call: Callable[..., R], *arguments: Any) -> R:
        """One call as a transaction. Not by `with`: a signal on the way into `__exit__` would leave it open (F117)."""
        txn = self._begin()
        try:
            result = call(txn, self.table.newest, *arguments)
            txn.commit(txn.store.waits_for_disk)
        except MemoryError as error:
            raise txn.out_of_memory(error) from error
        except BaseException:
            # Interrupted before the hand-over it is rolled back; behind it, committed: outcome(txid) tells.
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
        """The committed row with this key, of the table or of a unique index, as a named tuple, or None."""
        if self._failure.first is not None:
            self._failure.check()
        try:  # here: another call around it costs a twelfth of the whole
            if index is not None:
                return unique_calls.get(None, self.table.newest, key, index)
            table = self.table
            if table.superseded_by is not None:  # asked here: a property costs a thirtieth of the whole call
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
        """Insert a row, or update the one that has its key; True if inserted. See `Transaction.upsert`."""
        return self._alone(unique_upserts.upsert, row, set, index)

    # --- many rows -------------------------------------------------------------------------------
    def insert_many(self, data: Any, progress: Progress | None = None) -> int:
        """Insert all rows of Arrow, pandas, polars, NumPy or Python data in one transaction; returns how many."""
        return self._alone(batch_operations.insert_many, data, progress)

    def write_many(self, data: Any, progress: Progress | None = None) -> int:
        """Insert or replace all rows of `data` in one transaction; returns how many."""
        return self._alone(batch_operations.write_many, data, progress)

    def upsert_many(
        self,
        data: Any,
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """`upsert` of all rows of `data` in one transaction; returns how many were inserted."""
        return self._alone(unique_upserts.upsert_many, data, set, index, progress)

    def update_many(self, data: Any, progress: Progress | None = None, *, index: str | None = None) -> int:
        """Change the given columns of the rows whose keys stand in `data`, in one transaction; returns how many."""
        if index is not None:
            return self._alone(unique_calls.update_many, data, index, progress)
        return self._alone(batch_operations.update_many, data, progress)

    def delete_many(self, keys: Any, *, index: str | None = None) -> int:
        """Delete the rows with these keys in one transaction; returns how many. Raises: RowNotFound."""
        if index is not None:
            return self._alone(unique_calls.delete_many, keys, index)
        return self._alone(batch_operations.delete_many, keys)

    def update_where(self, changes: Mapping[str, Any], where: Where = None) -> int:
        """Change some columns of all rows that `where` accepts (all rows without), in one transaction; returns how
        many. New values are plain or expressions over the row as it was.
        """
        return self._alone(conditional_changes.update_where, changes, where)

    def delete_where(self, where: Expression | Program) -> int:
        """Delete all rows that `where` accepts, in one transaction; returns how many."""
        return self._alone(conditional_changes.delete_where, where)

    def get_many(self, keys: Any, columns: Sequence[str] | None = None, *, index: str | None = None) -> pa.RecordBatch:
        """The committed rows with these keys, of the table or of a unique index, in their order; keys without a row are
        left out.
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
        """A scan of the table: iterate it for named tuples, use `batches`, `to_arrow`, `to_pandas`, `to_numpy`, or add
        rows up with `count`, `sum`, `min`, `max`, `mean`, `aggregate`.

        partitions: only rows of these. where: only rows for which this expression over `tidemark.col` is true, or that
        this `Program` accepts; `limit` counts those. An expression may choose an index (`explain` says which): rows
        have an order with `index` only. index: rows in the order of this index (`reverse`: descending),
        from `lower` on and before `upper`, as Python's ranges have it; values of the leading columns as a tuple, of one
        column also by itself; fewer than all stand for every key that begins with them. prefix: keys that begin with
        it; of a str or bytes, values of the first column that do. progress: called behind each batch with (rows so far,
        rows in all or -1, "rows"). Raises: NoSuchPartition, NoSuchColumn, NoSuchIndex, ProgramInvalid, TypeMismatch,
        SchemaInvalid.
        """
        self._check_usable()
        by = ByIndex(index, lower, upper, prefix, reverse)
        return Scan(self.table.newest, None, columns, limit, None, partitions, where, by, progress)

    def explain(self, columns: Sequence[str] | None = None, where: Where = None, **options: Any) -> dict[str, Any]:
        """How a scan with these arguments would find its rows now; see `Scan.explain`. Arguments and errors as
        `scan`.
        """
        return self.scan(columns, where=where, **options).explain()

    def indexes(self) -> list[dict[str, Any]]:
        """The indexes: `name`, `columns`, `unique`, `entries`."""
        self._check_usable()
        return [index.to_dict() for index in self.table.newest.listed_indexes()]

    def partitions(self) -> list[dict[str, Any]]:
        """The partitions: `name`, `fragment` (its number), `rows`, and of ranges `upper`, of lists `values`."""
        self._check_usable()
        return partitions_of(self.table.newest)

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: Where = None, progress: Progress | None = None
    ) -> pa.Table:
        """All committed rows as an Arrow table, or those a condition accepts. progress: as in `scan`."""
        return self.scan(columns, where=where, progress=progress).to_arrow()

    def to_pandas(
        self, columns: Sequence[str] | None = None, where: Where = None, progress: Progress | None = None
    ) -> Any:
        """All committed rows as a pandas DataFrame, or those a condition accepts. progress: as in `scan`."""
        return self.scan(columns, where=where, progress=progress).to_pandas()

    def to_numpy(self, where: Where = None, progress: Progress | None = None) -> Any:
        """All committed rows as a structured NumPy array, or those a condition accepts. progress: as in `scan`."""
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
