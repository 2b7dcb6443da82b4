"""The reading calls of tables, over one scan and one lookup, and those of a mapping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from tidemark.derived import described, of_scan
from tidemark.display import ROWS_SHOWN, html_table
from tidemark.engine.base.errors import Error, Rejected, RowNotFound
from tidemark.engine.base.out_of_memory import memory_error, types_memory_errors
from tidemark.engine.base.owner import refuse_pickling
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.queries.missing_rows import DROP, Missing
from tidemark.engine.types.base import shown
from tidemark.scans import By, Progress, Scan, ScanAsked, asked_of, grouping

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from tidemark.engine.rows.row import Row
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.pushdown.dataset import TableDataset

Where = Expression | Program | None


class Bounds(TypedDict, total=False):
    """Arguments of `scan` about an index."""

    index: str | None
    lower: Any
    upper: Any
    prefix: Any
    reverse: bool


class ScanOptions(Bounds, total=False):
    """Arguments of `scan` that other calls pass on."""

    limit: int | None
    partitions: Sequence[str] | None


@types_memory_errors(exclude=("scan",))
class TableReads(ABC):
    """The reading calls that tables of a store, of a snapshot and of a store in another process share."""

    __slots__ = ()
    __reduce_ex__ = refuse_pickling

    @property
    def name(self) -> str:
        """The qualified name, "database.table"."""
        return self.definition.name

    @property
    @abstractmethod
    def definition(self) -> TableDefinition:
        """The table's definition; of a snapshot, that when the snapshot was opened. Printed, it is the call of
        `create_table` that makes such a table.
        """

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns: each has `name`, `type`, `nullable`, `default` and `storage`."""
        return self.definition.columns

    @abstractmethod
    def get(self, key: Any, *, index: str | None = None) -> Row | None:
        """Return the row with this key (a `Row`), or None.

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

    @abstractmethod
    def get_many(
        self,
        keys: Any,
        columns: Sequence[str] | None = None,
        *,
        index: str | None = None,
        missing: Missing = DROP,
    ) -> pa.RecordBatch:
        """Return the rows with these keys as an Arrow record batch, in the order of the keys.

        Args:
            keys: A list of keys, an Arrow or NumPy array or a Series, or data that has the key columns: whatever
                `insert_many` takes by column, such as a DataFrame; its other columns are passed over.
            columns: Names of the columns to return; None: all.
            index: The unique index that the keys are of; None: the primary key.
            missing: "drop": keys without a row are left out. "null": such a key has a row in its place that is NULL in
                all columns, the key too; so there is one row for each key.

        Raises:
            NoSuchColumn: The table has no column of that name.
            NoSuchIndex: The table has no index of that name.
            Unsupported: The index is not unique.
            TypeMismatch: A key has the wrong type.
            ValueOutOfRange: A key does not fit its column.
            SchemaInvalid: A column is named twice, or `missing` is unknown.
            LimitExceeded: One column takes 2 GiB or more; ask for fewer rows.

        Examples:
            >>> db["item"].get_many([3, 1, 9], ["id", "name"]).to_pylist()
            [{'id': 3, 'name': 'bag'}, {'id': 1, 'name': 'pen'}]
            >>> db["item"].get_many([3, 9, 1], "name", missing="null").to_pylist()
            [{'name': 'bag'}, {'name': None}, {'name': 'pen'}]
        """

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
        given = (columns, where, limit, None, False, partitions, progress, index, lower, upper, prefix, reverse)
        try:
            return self._scan(asked_of(given))
        except MemoryError as error:
            raise memory_error(error) from error

    @abstractmethod
    def _scan(self, asked: ScanAsked) -> Scan: ...

    @described(Scan.explain, of_scan)
    def explain(self, /, columns: Sequence[str] | None = None, where: Where = None, **options: Any) -> dict[str, Any]:
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

    @described(Scan.count, of_scan)
    def count(self, column: str | Expression | None = None, where: Where = None) -> int:
        return self.scan(where=where).count(column)

    @described(Scan.sum, of_scan)
    def sum(self, column: str | Expression, where: Where = None) -> Any:
        return self.scan(where=where).sum(column)

    @described(Scan.min, of_scan)
    def min(self, column: str | Expression, where: Where = None) -> Any:
        return self.scan(where=where).min(column)

    @described(Scan.max, of_scan)
    def max(self, column: str | Expression, where: Where = None) -> Any:
        return self.scan(where=where).max(column)

    @described(Scan.mean, of_scan)
    def mean(self, column: str | Expression, where: Where = None) -> Any:
        return self.scan(where=where).mean(column)

    @described(Scan.sample, of_scan)
    def sample(
        self,
        n: int,
        columns: Sequence[str] | None = None,
        where: Where = None,
        *,
        seed: int | None = None,
        **options: Unpack[ScanOptions],
    ) -> pa.Table:
        return self.scan(columns, where=where, **options).sample(n, seed=seed)

    @described(Scan.to_arrow, of_scan)
    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        where: Where = None,
        progress: Progress | None = None,
        **options: Unpack[ScanOptions],
    ) -> pa.Table:
        return self.scan(columns, where=where, progress=progress, **options).to_arrow()

    @described(Scan.to_pandas, of_scan)
    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        where: Where = None,
        progress: Progress | None = None,
        **options: Unpack[ScanOptions],
    ) -> Any:
        return self.scan(columns, where=where, progress=progress, **options).to_pandas()

    @described(Scan.to_polars, of_scan)
    def to_polars(
        self,
        columns: Sequence[str] | None = None,
        where: Where = None,
        progress: Progress | None = None,
        **options: Unpack[ScanOptions],
    ) -> Any:
        return self.scan(columns, where=where, progress=progress, **options).to_polars()

    @described(Scan.to_numpy, of_scan)
    def to_numpy(
        self,
        columns: Sequence[str] | None = None,
        where: Where = None,
        progress: Progress | None = None,
        **options: Unpack[ScanOptions],
    ) -> Any:
        return self.scan(columns, where=where, progress=progress, **options).to_numpy()

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

        Raises: as `scan`; Unsupported if polars is not installed.

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

    def __getitem__(self, key: Any) -> Row:
        row = self.get(key)
        if row is None:
            raise RowNotFound(f"{self.name} has no row with key {key!r}", table=self.name, key=key)
        return row

    def __iter__(self) -> Iterator[Row]:
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
    def write(self, row: Mapping[str, Any] | Sequence[Any]) -> int | None:
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
