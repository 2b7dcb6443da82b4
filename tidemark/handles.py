"""`db["test.account"]`: the calls of a transaction on one table, each a transaction of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.display import ROWS_SHOWN, html_table, short
from tidemark.engine.access import row_operations
from tidemark.engine.base.errors import Error, Rejected, RowNotFound
from tidemark.engine.base.out_of_memory import memory_error, types_memory_errors
from tidemark.engine.base.owner import refuse_pickling
from tidemark.engine.index.stored import counters_of, describe
from tidemark.engine.memory.arena_layout import F_ROWS, MODE_DELETE, MODE_INSERT, MODE_UPDATE, MODE_WRITE
from tidemark.engine.point import few
from tidemark.engine.point.changes import DONE, CommittedChanges
from tidemark.engine.point.plan import keep_plan
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.queries import conditional_changes, key_columns, unique_calls
from tidemark.engine.queries.program_scans import count_rows
from tidemark.engine.schema.partition import ListPartition, RangePartition
from tidemark.engine.schema.types_base import counted, shown
from tidemark.scans import By, ByIndex, Scan, by_index, grouping

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from tidemark.engine.base.watch import Watch
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.pushdown.dataset import TableDataset

Progress = Callable[[int, int, str], None]
Where = Expression | Program | None
R = TypeVar("R")


def partitions_of(table: Table) -> list[dict[str, Any]]:
    """See `TableHandle.partitions`. Row counts are read later than the rest, which is of one instant."""
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
    """Return the part of `status()` about a table's indexes; empty if it has none."""
    found = counters_of(table.listed_indexes())
    return {"indexes": found} if found else {}


@types_memory_errors(exclude=("scan",))
class TableReads(ABC):
    """The reading calls that tables of a store, of a snapshot and of a store in another process share."""

    __slots__ = ()
    __reduce_ex__ = refuse_pickling

    @property
    @abstractmethod
    def name(self) -> str:
        """The qualified name, "database.table"."""

    @property
    @abstractmethod
    def definition(self) -> TableDefinition:
        """The table's definition; of a snapshot, that when the snapshot was opened."""

    @abstractmethod
    def get(self, key: Any) -> Any:
        """Return the row with this key (a `Row`), or None."""

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

        Iterate over it for rows; use `batches`, `to_arrow`, `to_pandas` or `to_numpy`; or add up rows with
        `count`, `sum`, `min`, `max`, `mean` or `aggregate`.

        Args:
            columns: Names of the columns to read, or the name of one; None: all. Every call takes columns in this form.
            limit: Read at most this many rows.
            partitions: Read only these partitions, or this one.
            where: An expression over `tidemark.col` or a `Program`: read only rows that it accepts; `limit` counts
                these. If it gives values for all columns of the primary key or of a unique index, the rows are looked
                up; otherwise the scan may use an index to find them (`explain` says which). Rows have an order only
                with `index`.
            index: Read the rows in the order of this index, with `reverse` in descending order.
            lower: The first key of the index to read: values of its leading columns as a tuple, or one value. Fewer
                values than columns stand for every key that begins with them.
            upper: The key to stop before, as the end of a Python range.
            prefix: Read the keys that begin with it. A str or bytes also stands for all values of the first column that
                begin with it.
            progress: Called after each batch with (rows so far, rows in all or -1, "rows").

        Raises:
            NoSuchColumn: The table has no column of that name.
            NoSuchPartition: The table has no partition of that name.
            NoSuchIndex: The table has no index of that name.
            Unsupported: The index is unique; it finds whole keys only.
            ProgramInvalid: The condition cannot be compiled, or the program is for another table.
            TypeMismatch: `where` is no condition, or a bound has the wrong type.
            ValueOutOfRange: A bound does not fit its column.
            SchemaInvalid: `limit` is no number of rows, a column is named twice, or arguments exclude each other.

        Examples:
            >>> db.create_index("item", "by_stock", "stock")
            >>> [row.name for row in db["item"].scan(index="by_stock", lower=5)]
            ['cup', 'pen']
            >>> db["item"].scan(where=tm.col("name").isin(["pen", "bag"])).sum("stock")
            10
        """
        by = by_index(index, lower, upper, prefix, reverse)
        try:
            return self._scan(columns, limit, partitions, where, by, progress)
        except MemoryError as error:
            raise memory_error(error) from error

    @abstractmethod
    def _scan(self, columns: Any, limit: Any, partitions: Any, where: Where, by: ByIndex, progress: Any) -> Scan: ...

    def explain(self, columns: Sequence[str] | None = None, where: Where = None, **options: Any) -> dict[str, Any]:
        """Return how a scan with these arguments would find its rows now; see `Scan.explain`.

        Raises: as `scan`.

        Examples:
            >>> db["item"].explain(where=tm.col("stock") > 3)["access"]
            'full scan'
        """
        return self.scan(columns, where=where, **options).explain()

    def aggregate(
        self,
        /,
        where: Where = None,
        *,
        by: By = None,
        order: str | Sequence[str] | None = None,
        reverse: bool | Sequence[bool] = False,
        limit: int | None = None,
        **functions: Any,
    ) -> Any:
        """Compute several aggregates in one pass over the rows, or those that a condition accepts; with `by`, those of
        each group.

        The arguments are those of `Scan.aggregate`, which says what they return. All rows are of one instant.

        Raises: as `scan` and `Scan.aggregate`.

        Examples:
            >>> db["item"].aggregate(where=tm.col("stock") > 0, rows=("count",), total=("sum", "stock"))
            Row(rows=2, total=15)
            >>> db["item"].aggregate(by="name", total=("sum", "stock"), order="total", reverse=True, limit=2)
            [Row(name='pen', total=10), Row(name='cup', total=5)]
        """
        scan = self.scan(where=where)
        return scan.aggregate(**grouping(by, order, reverse, limit), **functions)

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: Where = None, progress: Progress | None = None
    ) -> pa.Table:
        """Return all committed rows, or those that a condition accepts, as an Arrow table. The arguments are those of
        `scan`.

        Raises: as `scan`.

        Examples:
            >>> db["item"].to_arrow(["name"], where=tm.col("stock") > 5).to_pylist()
            [{'name': 'pen'}]
        """
        return self.scan(columns, where=where, progress=progress).to_arrow()

    def to_pandas(
        self, columns: Sequence[str] | None = None, where: Where = None, progress: Progress | None = None
    ) -> Any:
        """Return all committed rows, or those that a condition accepts, as a pandas DataFrame. The arguments are those
        of `scan`.

        Raises: as `scan`.

        Examples:
            >>> db["item"].to_pandas(["id", "stock"]).shape
            (3, 2)
        """
        return self.scan(columns, where=where, progress=progress).to_pandas()

    def to_polars(
        self, columns: Sequence[str] | None = None, where: Where = None, progress: Progress | None = None
    ) -> Any:
        """Return all committed rows, or those that a condition accepts, as a polars DataFrame. The arguments are those
        of `scan`.

        Raises: as `scan`; ImportError if polars is not installed.

        Examples:
            >>> db["item"].to_polars("name", where=tm.col("stock") > 5).to_dicts()
            [{'name': 'pen'}]
        """
        return self.scan(columns, where=where, progress=progress).to_polars()

    def to_numpy(self, where: Where = None, progress: Progress | None = None) -> Any:
        """Return all committed rows, or those that a condition accepts, as a structured NumPy array. The arguments are
        those of `scan`.

        Raises: as `scan`.

        Examples:
            >>> db["item"].to_numpy(where=tm.col("stock") > 5)["stock"].tolist()
            [10]
        """
        return self.scan(where=where, progress=progress).to_numpy()

    def dataset(self) -> TableDataset:
        """Return the table as a `pyarrow.dataset.Dataset`, into which DuckDB pushes columns and filters.

        DuckDB finds it under its Python name. Each scan of a query shows the table as at one epoch, in a snapshot that
        ends with the scan; `snapshot[name].dataset()` shows all scans the same rows. A filter may lead the scan to an
        index. What cannot be translated is judged by pyarrow, on the rows that are found: results are those of the same
        query over `to_arrow()`. The columns are those that the table has now.

        Raises: as `scan`.

        Examples:
            >>> import duckdb
            >>> item = db["item"].dataset()
            >>> duckdb.sql("select name from item where stock > 5").fetchall()
            [('pen',)]
        """
        from tidemark.pushdown.dataset import Source, TableDataset

        return TableDataset(Source(self, self._at_one_epoch))

    def scan_polars(self) -> pl.LazyFrame:
        """Return the table as a polars LazyFrame, which pushes columns, filters and `limit` into its scan.

        The table is read when the frame is collected, each time as `dataset` says. polars judges the rows that are
        found again: results are those of the same query over `to_polars().lazy()`.

        Raises: as `scan`; ImportError if polars is not installed.

        Examples:
            >>> import polars as pl
            >>> frame = db["item"].scan_polars()
            >>> frame.filter(pl.col("stock") > 5).select("name").collect().to_dicts()
            [{'name': 'pen'}]
        """
        from tidemark.pushdown import polars_source
        from tidemark.pushdown.dataset import Source

        return polars_source.scan(Source(self, self._at_one_epoch))

    @contextmanager
    def _at_one_epoch(self) -> Iterator[TableReads]:
        """The table as at one epoch, if its rows change while they are read."""
        yield self

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.scan().__arrow_c_stream__(requested_schema)

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: Any) -> Any:
        row = self.get(key)
        if row is None:
            raise RowNotFound(f"{self.name} has no row with key {key!r}", table=self.name, key=key)
        return row

    def __iter__(self) -> Iterator[Any]:
        return iter(self.scan())

    def _repr_html_(self) -> str | None:
        try:
            scan = self.scan(limit=ROWS_SHOWN)
            return html_table(repr(self), scan.schema().names, scan)
        except Error:  # the prompt shows the repr
            return None


class WritableTable(TableReads):
    """A table with the calls of a mapping that write."""

    __slots__ = ()

    @abstractmethod
    def write(self, row: Mapping[str, Any] | Sequence[Any]) -> None:
        """Insert one row, or replace the row with its key."""

    @abstractmethod
    def delete(self, key: Any, where: Where = None, *, index: str | None = None) -> bool:
        """Delete one row."""

    def __setitem__(self, key: Any, row: Any) -> None:
        definition = self.definition
        found = _key_in(definition, row)
        wanted = tuple(key) if isinstance(key, (tuple, list)) else (key,)
        if found is not None and found != wanted:
            inner = found if len(found) > 1 else found[0]
            raise Rejected(
                f"{self.name}: the row with key {shown(inner)} cannot replace that with key {shown(key)}; the keys must"
                " be equal",
                table=self.name,
                key=key,
            )
        self.write(row)

    def __delitem__(self, key: Any) -> None:
        self.delete(key)


def _key_in(definition: TableDefinition, row: Any) -> tuple[Any, ...] | None:
    """Return the key of a row to write, None if the row lacks it; the call that writes then refuses the row."""
    try:
        if isinstance(row, Mapping):
            return tuple(row[name] for name in definition.primary_key)
        if isinstance(row, Sequence) and not isinstance(row, (str, bytes)):
            return tuple(row[definition.position(name)] for name in definition.primary_key)
    except LookupError:
        pass
    return None


# Calls of one row handle a MemoryError themselves: one more call would take a twentieth of their time.
@types_memory_errors("__len__", exclude=("get", "insert", "write", "update", "delete"))
class TableHandle(WritableTable):
    """One table of an open store. Every call that writes is a transaction of its own, durable on return with
    `durability="commit"`. A call that reads waits for no disk and may show a commit that is not durable yet; a
    `Transaction` that has committed has read none.

    Rows are mappings, or sequences in column order. A call that raises has changed nothing, except for an
    OutcomeUnknown error of the commit.

    Every call raises StoreFailed after the store was closed or has failed. A call that reads or writes rows raises
    NoSuchTable after the table was dropped. A call that reads a disk column raises PageDamaged for a damaged page. A
    call that writes also raises what `Transaction` and `Transaction.commit` list.

    Examples:
        >>> item = db["item"]
        >>> item[1]
        Row(id=1, name='pen', stock=10)
        >>> 7 in item, len(item)
        (False, 3)
        >>> item[4] = {"id": 4, "name": "ink", "stock": 7}  # write: the row must have this key
        >>> del item[4]
        >>> sorted(row.name for row in item)
        ['bag', 'cup', 'pen']
    """

    __slots__ = ("_begin", "_changes", "_failure", "_owner", "_watch", "table")

    def __init__(self, store: Store, table: Table, owner: Any = None) -> None:
        """owner: the Database, which stays open while the handle is used."""
        self._owner = owner
        self._failure = store.failure
        self.table = table
        self._begin: Callable[[], Transaction] = store.begin
        # The general path changes tables with disk parts.
        self._changes = CommittedChanges(None if table.format.has_disk else store)
        self._watch: Watch | None = store.watch

    def _check_usable(self) -> None:
        if self._failure.first is not None:
            self._failure.check()

    @property
    def name(self) -> str:
        return self.table.newest.name

    @property
    def definition(self) -> TableDefinition:
        return self.table.newest.definition

    @contextmanager
    def _at_one_epoch(self) -> Iterator[TableReads]:
        if self._owner is None:
            yield self
            return
        with self._owner.snapshot() as snapshot:
            self.table.check()  # another table may have its name since
            yield snapshot.table(self.name)

    def _in_own_transaction(self, call: Callable[..., R], *arguments: Any) -> R:
        """Run one call as a transaction. A `with` would leave the transaction open if a signal arrived just before
        `__exit__` (F117).
        """
        try:
            txn = self._begin()
        except MemoryError as error:
            raise memory_error(error) from error
        try:
            result = call(txn, self.table.newest, *arguments)
            keep_plan(self.table)
            txn.commit()
        except MemoryError as error:
            raise txn.out_of_memory(error) from error
        except BaseException:
            # A signal before the hand-over rolls the transaction back; after it, the transaction is committed.
            # outcome(txid) tells which.
            txn.rollback()
            raise
        return result

    # --- one row ---------------------------------------------------------------------------------
    def insert(self, row: Mapping[str, Any] | Sequence[Any]) -> None:
        """Insert one row.

        Raises: as `Transaction.insert`.

        Examples:
            >>> db["item"].insert((4, "ink", 7))
            >>> db["item"].insert({"id": 5, "name": "box", "stock": 2})
            >>> db["item"][5].name
            'box'
        """
        if not self._changes.make(self.table, MODE_INSERT, row):
            self._in_own_transaction(row_operations.insert, row)

    def write(self, row: Mapping[str, Any] | Sequence[Any]) -> None:
        """Insert one row, or replace the row with its key.

        Raises: as `insert`; DuplicateKey only for a key of a unique index.

        Examples:
            >>> db["item"].write((1, "pencil", 12))
            >>> db["item"][1]
            Row(id=1, name='pencil', stock=12)
        """
        if not self._changes.make(self.table, MODE_WRITE, row):
            self._in_own_transaction(row_operations.write, row)

    def get(self, key: Any, *, index: str | None = None) -> Any:
        """Return the committed row with this key (a `Row`), or None.

        Args:
            key: A value, or a tuple for a key of several columns.
            index: The unique index that the key is of; None: the primary key.

        Raises:
            NoSuchIndex: The table has no index of that name.
            Unsupported: The index is not unique.
            TypeMismatch: The key has the wrong type.
            ValueOutOfRange: The key does not fit its column.

        Examples:
            >>> db["item"].get(2)
            Row(id=2, name='cup', stock=5)
            >>> db["item"].get(9) is None
            True
        """
        if self._failure.first is not None:
            self._failure.check()
        table = self.table
        plan = table.plan
        if plan is not None and not table.is_dropped:
            row = plan.get(plan.mem, plan.words, key) if index is None else plan.unique(key, index)
            if row is not ...:
                return row
        try:
            if index is not None:
                row = unique_calls.get(None, table.newest, key, index)
            else:
                row = row_operations.get_committed(table.newest, key)
            keep_plan(table)
        except MemoryError as error:
            raise memory_error(error) from error
        return row

    def update(self, key: Any, changes: Mapping[str, Any], where: Where = None, *, index: str | None = None) -> bool:
        """Change some columns of one row; see `Transaction.update`.

        Raises: RowNotFound, and as `Transaction.update`.

        Examples:
            >>> db["item"].update(1, {"stock": tm.col("stock") - 3}, where=tm.col("stock") >= 3)
            True
            >>> db["item"][1].stock
            7
        """
        calls = self._changes
        status = calls.make(self.table, MODE_UPDATE, key, changes, index, where) or calls.make_if(
            self.table, MODE_UPDATE, key, changes, where, index
        )
        if status:
            return status == DONE
        if index is not None:
            return self._in_own_transaction(unique_calls.update, key, changes, where, index)
        return self._in_own_transaction(conditional_changes.update, key, changes, where)

    def delete(self, key: Any, where: Where = None, *, index: str | None = None) -> bool:
        """Delete one row; see `Transaction.delete`.

        Raises: RowNotFound, and as `Transaction.delete`.

        Examples:
            >>> db["item"].delete(3)
            True
            >>> db["item"].delete(1, where=tm.col("stock") == 0)
            False
        """
        calls = self._changes
        status = calls.make(self.table, MODE_DELETE, key, None, index, where) or calls.make_if(
            self.table, MODE_DELETE, key, None, where, index
        )
        if status:
            return status == DONE
        if index is not None:
            return self._in_own_transaction(unique_calls.delete, key, where, index)
        return self._in_own_transaction(conditional_changes.delete, key, where)

    def upsert(
        self,
        row: Mapping[str, Any] | Sequence[Any],
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
    ) -> bool:
        """Insert a row, or update the row with its key; return True if it was inserted. See `Transaction.upsert`.

        Raises: as `Transaction.upsert`.

        Examples:
            >>> db["item"].upsert((2, "cup", 5), {"stock": tm.col("stock") + 5})
            False
            >>> db["item"][2].stock
            10
        """
        return self._in_own_transaction(few.upsert, row, set, index)

    # --- many rows -------------------------------------------------------------------------------
    def insert_many(self, data: Any, progress: Progress | None = None) -> int:
        """Insert all rows of Arrow, pandas, polars, NumPy or Python data, or none; return how many.

        Args:
            data: An Arrow table, batch or stream, a pandas or polars DataFrame, a structured NumPy array, a mapping of
                columns, or an iterable of rows.
            progress: Called with (rows so far, -1, "rows") after each batch.

        Raises: as `insert`; `row` of the error is the position in `data`.

        Examples:
            >>> db["item"].insert_many([(4, "ink", 7), (5, "box", 2)])
            2
            >>> db["item"].insert_many({"id": [6, 7], "name": ["jar", "lid"], "stock": [1, 1]})
            2
        """
        return self._in_own_transaction(few.insert_many, data, progress)

    def write_many(self, data: Any, progress: Progress | None = None) -> int:
        """Insert all rows of `data`, or replace those with their keys, or none on an error; return how many.

        Raises: as `insert_many`; DuplicateKey only for a key of a unique index.

        Examples:
            >>> db["item"].write_many([(1, "pencil", 12), (4, "ink", 7)])
            2
        """
        return self._in_own_transaction(few.write_many, data, progress)

    def upsert_many(
        self,
        data: Any,
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Upsert all rows of `data`, or none on an error; return how many were inserted. See `Transaction.upsert_many`.

        Raises: as `Transaction.upsert_many`.

        Examples:
            >>> db["item"].upsert_many([(1, "pen", 3), (4, "ink", 7)], {"stock": tm.col("stock") + 3})
            1
            >>> db["item"][1].stock
            13
        """
        return self._in_own_transaction(few.upsert_many, data, set, index, progress)

    def update_many(self, data: Any, progress: Progress | None = None, *, index: str | None = None) -> int:
        """Change the given columns of the rows with the keys in `data`, or of none on an error; return how many.

        Args:
            data: As for `insert_many`: the key columns, and the columns to change. Python rows are mappings that have
                the same columns.
            progress: As for `insert_many`.
            index: The unique index whose columns are the key; None: the primary key.

        Raises: RowNotFound, and as `Transaction.update_many`.

        Examples:
            >>> db["item"].update_many([{"id": 1, "stock": 8}, {"id": 2, "stock": 4}])
            2
        """
        if index is not None:
            return self._in_own_transaction(unique_calls.update_many, data, index, progress)
        return self._in_own_transaction(few.update_many, data, progress)

    def delete_many(self, keys: Any, *, index: str | None = None) -> int:
        """Delete the rows with these keys, or none on an error; return how many.

        Raises: RowNotFound, and as `Transaction.delete_many`.

        Examples:
            >>> db["item"].delete_many([1, 3])
            2
        """
        if index is not None:
            return self._in_own_transaction(unique_calls.delete_many, keys, index)
        return self._in_own_transaction(few.delete_many, keys)

    def update_where(self, changes: Mapping[str, Any], where: Where = None) -> int:
        """Change some columns of all rows that `where` accepts, or of all rows without `where`; return how many.

        Raises: as `Transaction.update_where`.

        Examples:
            >>> db["item"].update_where({"stock": tm.col("stock") + 20}, where=tm.col("stock") < 10)
            2
        """
        count = few.change_where_committed(self._changes, self.table, MODE_UPDATE, changes, where)
        return self._in_own_transaction(few.update_where, changes, where) if count is None else count

    def delete_where(self, where: Expression | Program) -> int:
        """Delete all rows that `where` accepts; return how many.

        Raises: as `Transaction.delete_where`.

        Examples:
            >>> db["item"].delete_where(tm.col("stock") == 0)
            1
        """
        count = few.change_where_committed(self._changes, self.table, MODE_DELETE, None, where)
        return self._in_own_transaction(few.delete_where, where) if count is None else count

    def get_many(self, keys: Any, columns: Sequence[str] | None = None, *, index: str | None = None) -> pa.RecordBatch:
        """Return the committed rows with these keys as an Arrow record batch, in the order of the keys.

        Keys without a row are left out.

        Args:
            keys: A list of keys, an Arrow or NumPy array, or a mapping of key columns.
            columns: Names of the columns to return; None: all.
            index: The unique index that the keys are of; None: the primary key.

        Raises:
            NoSuchColumn: The table has no column of that name.
            NoSuchIndex: The table has no index of that name.
            Unsupported: The index is not unique.
            TypeMismatch: A key has the wrong type.
            ValueOutOfRange: A key does not fit its column.
            SchemaInvalid: A column is named twice.
            LimitExceeded: One column takes 2 GiB or more; ask for fewer rows.

        Examples:
            >>> db["item"].get_many([3, 1, 9], ["id", "name"]).to_pylist()
            [{'id': 3, 'name': 'bag'}, {'id': 1, 'name': 'pen'}]
        """
        self._check_usable()
        if index is not None:
            return unique_calls.get_many(None, self.table.newest, keys, columns, index)
        return key_columns.get_many(self.table.newest, keys, columns, None)

    def _scan(self, columns: Any, limit: Any, partitions: Any, where: Where, by: ByIndex, progress: Any) -> Scan:
        self._check_usable()
        table, watch = self.table.newest, self._watch
        # By place: names and defaults cost as much as a lookup.
        scan = Scan(table, None, columns, limit, None, partitions, where, by, progress, False, self._failure, watch)
        scan.owner = self._owner
        return scan

    def indexes(self) -> list[dict[str, Any]]:
        """Return the indexes, each with `name`, `columns`, `unique`, `ordered`, `entries`. A row with NULL in the
        columns has an entry only if the index is ordered.

        Examples:
            >>> db.create_index("item", "by_name", "name", unique=True)
            >>> db["item"].indexes()
            [{'name': 'by_name', 'columns': ['name'], 'unique': True, 'ordered': False, 'entries': 3}]
        """
        self._check_usable()
        table = self.table.newest
        counters = counters_of(table.listed_indexes())
        found = [(each, counters[each.name]) for each in table.definition.indexes if each.name in counters]
        return [describe(definition, max(0, counted["entries"])) for definition, counted in found]

    def partitions(self) -> list[dict[str, Any]]:
        """Return the partitions, each with `name`, `fragment` (its number) and `rows`; ranges have `upper`, lists have
        `values`.

        Examples:
            >>> sum(partition["rows"] for partition in db["item"].partitions())
            3
        """
        self._check_usable()
        return partitions_of(self.table.newest)

    def __len__(self) -> int:
        self._check_usable()
        return count_rows(self.table.newest)

    def __repr__(self) -> str:
        name = self.name
        try:
            if self.table.newest.is_dropped:
                return f"<tidemark table {name}, dropped>"
            return f"<tidemark table {name}: {counted(len(self), 'row')} of {short(self.table.newest.format.names)}>"
        except Error:
            return f"<tidemark table {name}>"
