"""Read a table, or the rows that a condition accepts, as rows, Arrow, pandas, polars, NumPy or aggregates.

Hidden columns are named by the constants ROWID, EPOCH, AUTHOR and FRAGMENT.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from tidemark.calls import has_calls_of
from tidemark.display import ROWS_SHOWN, html_table
from tidemark.engine.access import row_operations
from tidemark.engine.access.batch_operations import decode_entries, scan
from tidemark.engine.access.index_scans import shows_others
from tidemark.engine.access.key_ranges import Bounds, KeyRange
from tidemark.engine.access.scan_batch import AUTHOR, EPOCH, FRAGMENT, HIDDEN, ROWID, ScanBatch
from tidemark.engine.base.errors import Error, SchemaInvalid
from tidemark.engine.base.limits import GROUP_COLUMNS_MAX
from tidemark.engine.base.out_of_memory import memory_error, types_memory_errors
from tidemark.engine.base.owner import refuse_pickling
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.point.changes import locked
from tidemark.engine.point.plan import row_plan
from tidemark.engine.point.selects import FEW_ROWS as SELECTED_MAX
from tidemark.engine.point.selects import Select, select, select_range
from tidemark.engine.programs.expression_programs import argument
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.programs.program_layout import VERDICT_LAST, VERDICT_OK
from tidemark.engine.programs.running import run_one
from tidemark.engine.queries.column_scans import ColumnBatch, scan_by_columns
from tidemark.engine.queries.columns import schema_of
from tidemark.engine.queries.conditions import Condition
from tidemark.engine.queries.index_choice import Choice, Lookup, ranges_in, rows_of, way_of
from tidemark.engine.queries.index_only import answers_alone, count_by_index, scan_index
from tidemark.engine.queries.program_scans import accepted_batches, added_up, aggregate, scan_where
from tidemark.engine.queries.samples import sample
from tidemark.engine.rows.column_output import python_columns, to_numpy, to_pandas, to_polars, wanted_names
from tidemark.engine.rows.row import row_class
from tidemark.engine.rows.row_format import FEW_ROWS
from tidemark.engine.schema.names import as_names
from tidemark.engine.types.base import is_int, shown

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.base.failure import Failure
    from tidemark.engine.base.watch import Watch
    from tidemark.engine.index.stored import StoredIndex
    from tidemark.engine.programs.interpreter import Program
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.engine.types import ColumnType

LOCKED_BATCH_ROWS = 1_000
SPARE_KEYS = 8  # of rows that may be gone when they are locked
LIST_ROWS = 256  # made by one kernel call, in 20 to 50 µs
_ADD_UP: dict[str, Callable[[list[Any]], Any]] = {"count": len, "sum": sum, "min": min, "max": max}
_FROM_PLACES = frozenset([ROWID, FRAGMENT])  # known from an index entry, without reading the row


Progress = Callable[[int, int, str], None]
By = str | Sequence[str] | Mapping[str, str | Expression] | None


class ScanAsked(NamedTuple):
    """What a scan is asked for: the arguments of `scan`, which every face passes on in this form."""

    columns: Sequence[str] | None = None
    where: Expression | Program | None = None
    limit: int | None = None
    lock: str | None = None
    skip_locked: bool = False
    partitions: Sequence[str] | None = None
    progress: Progress | None = None
    index: str | None = None  # type: ignore[assignment]  # in place of the method of tuples
    lower: Any = None
    upper: Any = None
    prefix: Any = None
    reverse: bool = False

    @property
    def is_unbounded(self) -> bool:
        """Whether it gives no bounds of an index."""
        return self.lower is self.upper is self.prefix is None

    def may_be_few(self) -> bool:
        """Whether a scan by an index may well have few rows."""
        if self.limit is not None:
            return self.limit <= SELECTED_MAX
        return self.prefix is not None or (self.lower is not None and self.upper is not None)

    def check(self) -> None:
        """Raises: SchemaInvalid for arguments that exclude each other."""
        if self.index is None and self[-4:] != (None, None, None, False):
            raise SchemaInvalid("lower, upper, prefix and reverse belong to a scan by an index; name one with index=")

    def given(self) -> dict[str, Any]:
        """Return the arguments that are given, without the function `progress`: what is sent to another process."""
        defaults = zip(self._fields, self, ScanAsked(), strict=True)
        return {name: value for name, value, default in defaults if value is not default and name != "progress"}

    def text(self, of: str) -> str:
        """Return how a scan of a table shows itself."""
        said = ", ".join(f"{name}={value!r}" for name, value in self.given().items())
        return f"<tidemark scan of {of}{': ' if said else ''}{said}>"


# Make it of all its values in their order. Its own constructor takes as long as a lookup.
asked_of: Callable[[tuple[Any, ...]], ScanAsked] = partial(tuple.__new__, ScanAsked)


class _Rows(itertools.chain[Any]):
    """Rows of lists, one after the other. Like a generator it can be closed, which ends the scan."""

    _lists: Generator[Iterable[Any], None, None] | None = None  # made on the way

    @classmethod
    def of(cls, lists: Generator[Iterable[Any], None, None]) -> _Rows:
        made = cast("_Rows", cls.from_iterable(lists))
        made._lists = lists
        return made

    def close(self) -> None:
        if self._lists is not None:
            self._lists.close()
        deque(self, maxlen=0)  # the rows of the list it was in


@types_memory_errors("__next__", "__arrow_c_stream__")
class ScanForms(ABC):
    """The rows of a scan, of this process or of another one, in other forms."""

    _rows: Iterator[Any] | None = None

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the Arrow schema of `batches`."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as Arrow record batches."""

    @abstractmethod
    def _defined(self) -> TableDefinition:
        """The definition of the table."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any:
        if self._rows is None:
            self._rows = iter(self)
        return next(self._rows)

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table.

        Examples:
            >>> db["item"].scan(["name"], where=tm.col("id") == 2).to_arrow().to_pylist()
            [{'name': 'cup'}]
        """
        import pyarrow as pa

        return pa.Table.from_batches(list(self.batches()), self.schema())

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame.

        Raises: Unsupported if pandas is not installed.

        Examples:
            >>> int(db["item"].scan(["stock"]).to_pandas().stock.sum())
            15
        """
        return to_pandas(self.to_arrow(), self._defined())

    def to_polars(self) -> Any:
        """Return all rows as a polars DataFrame.

        Raises: Unsupported if polars is not installed.

        Examples:
            >>> db["item"].scan(["stock"]).to_polars()["stock"].sum()
            15
        """
        return to_polars(self.to_arrow())

    def to_numpy(self) -> Any:
        """Return all rows as a structured NumPy array, without hidden columns.

        Examples:
            >>> db["item"].scan(["stock"]).to_numpy()["stock"].mean().item()
            5.0
        """
        return to_numpy(self.to_arrow(), self._defined())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self.schema(), self.batches())
        return reader.__arrow_c_stream__(requested_schema)


@has_calls_of("scan")
@types_memory_errors("_decoded_rows", "_lists", "_locked", exclude=("count",))
class Scan(ScanForms):
    """One scan of one table; no row is read yet. Iterate over it once, convert it, or aggregate its rows.

    A call that reads rows raises NoSuchTable if the table is dropped meanwhile, NoSuchIndex if the named index is, and
    PageDamaged for a damaged page of a disk column. If a condition fails in a row, for example by an overflow, the call
    raises Rejected with table and key. In a transaction it also raises TransactionEnded, WrongThread and StoreFailed,
    and with a lock LockTimeout and Deadlock.

    Examples:
        >>> scan = db["item"].scan(["name", "stock"], where=tm.col("stock") > 4)
        >>> sorted(scan, key=lambda row: row.stock)
        [Row(name='cup', stock=5), Row(name='pen', stock=10)]
    """

    __reduce_ex__ = refuse_pickling
    _is_copied = False  # kernels aggregate the rows in place where possible
    # What many scans leave as it is.
    _index: StoredIndex | None = None
    _index_columns: Sequence[str] = ()
    _select: Select | None = None
    _bounds: KeyRange | None = None
    _compiled: Condition | None = None
    owner: object = None  # the Database, which stays open while the scan is read

    def __init__(
        self,
        table: Table,
        asked: ScanAsked,
        txn: Transaction | None = None,
        failure: Failure | None = None,
        watch: Watch | None = None,
    ) -> None:
        """failure: of the store, which refuses rows after it was closed; None: the transaction or snapshot does so."""
        columns, where, limit, lock, _, partitions, progress, index, lower, upper, prefix, reverse = asked
        names = None
        if partitions is not None:
            names = as_names(partitions, "partitions")
            table.numbers_of(names)  # Raises: NoSuchPartition
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise SchemaInvalid(f"limit must be a number of rows, got {limit!r}")
        self._table = table
        self._asked = asked
        self._txn = txn
        self._columns = list(table.format.names) if columns is None else wanted_names(table.format, columns, HIDDEN)
        self._limit = limit
        self._lock = lock
        self._partitions = names
        self._plain = self._read = self._columns
        if columns is not None:
            self._plain = [name for name in self._columns if name not in HIDDEN]
            self._read = [name for name in self._columns if name not in _FROM_PLACES]
        is_unbounded = lower is upper is prefix is None
        if index is not None:
            self._index = table.index(index)
            read = table.columns_of(self._index)
            self._index_columns = [each.name for each in read] if read else self._index.definition.columns
        elif not is_unbounded or reverse is not False:
            asked.check()
        found = None
        if names is None and lock is None and self._plain == self._columns and not self._is_copied:
            if where is not None and is_unbounded:
                found = select(table, where, self._columns, index)
            elif where is None and index is not None and asked.may_be_few():
                found = select_range(table, self._columns, index, lower, upper, prefix)
            self._select = found
        if found is None or not found.is_sound:  # else nothing is wrong with bounds and condition
            self._key_range()
            if where is not None:
                self._compiled = Condition(table.definition, where)
        self._on_rows = progress
        self._failure = failure
        self._watch = watch if txn is None else txn.store.watch

    def out_of_memory(self, error: MemoryError) -> Error:
        """Return the error that a MemoryError in this scan becomes. The scan's transaction, if any, is rolled back."""
        return memory_error(error) if self._txn is None else self._txn.out_of_memory(error)

    def _key_range(self) -> KeyRange | None:
        """Return the bounds given for the named index, encoded when they are first needed."""
        if self._bounds is None and self._index is not None:
            asked = self._asked
            self._bounds = KeyRange(self._index.tree.shape, asked.lower, asked.upper, asked.prefix)
        return self._bounds

    @property
    def _condition(self) -> Condition | None:
        """The condition, compiled when it is first needed."""
        if self._compiled is None and self._asked.where is not None:
            self._compiled = Condition(self._table.definition, self._asked.where)
        return self._compiled

    def _check_usable(self) -> None:
        if self._failure is not None and self._failure.first is not None:
            self._failure.check()

    def _batches_found(self, found: Iterator[Any] | None = None) -> Iterator[Any]:
        self._check_usable()
        if found is None:
            found = self._found(self._read, self._limit)
        if self._watch is not None:
            found = self._watched(found, self._watch)
        return found if self._on_rows is None else self._with_progress(found, self._on_rows)

    def _watched(self, found: Iterator[ScanBatch], watch: Watch) -> Iterator[ScanBatch]:
        """Measure the time in which rows are found, without the caller's time between batches."""
        rows, seconds = 0, 0.0
        try:
            while True:
                began = watch.now()
                batch = next(found, None)
                seconds += watch.now() - began
                if batch is None:
                    return
                rows += batch.count
                yield batch
        finally:
            watch.note("scan", seconds, table=self._table.name, rows=rows, **self._way())

    def _way(self) -> dict[str, Any]:
        index = {} if self._index is None else {"index": self._asked.index}
        return {"has_condition": self._condition is not None, **index}

    def _with_progress(self, found: Iterator[ScanBatch], progress: Progress) -> Iterator[ScanBatch]:
        is_whole = self._condition is None and self._index is None and self._limit is None
        total = self._table.count() if is_whole and self._partitions is None else -1
        done = 0
        for batch in found:
            yield batch
            done += batch.count
            progress(done, total, "rows")

    def _found(self, columns: Sequence[str], limit: int | None) -> Iterator[ScanBatch]:
        """Yield the rows as the scan finds them, disk parts included if a column is on disk."""
        if self._index is not None:
            return self._found_by_index(columns, limit)
        if self._condition is not None:
            return scan_where(self._table, self._txn, self._condition, limit, columns, self._partitions)
        return scan(self._table, self._txn, limit, columns, self._table.numbers_of(self._partitions))

    def _found_by_index(self, columns: Sequence[str], limit: int | None) -> Iterator[ScanBatch]:
        assert self._index is not None
        table, condition = self._table, self._condition
        names = [*columns, *(condition.names if condition else ())]
        is_only = self._answers_alone(names)
        most = limit if condition is None else None
        how = (names, is_only, self._asked.reverse, most, self._numbers())
        found = scan_index(table, self._txn, self._index, self._read_ranges(), *how)
        return found if condition is None else accepted_batches(table, found, condition, limit)

    def _read_ranges(self) -> Sequence[Bounds]:
        """Return the ranges of the named index to read, in their order: its bounds, and what the condition says."""
        keys = self._key_range()
        assert self._index is not None and keys is not None
        if self._condition is None:
            return [Bounds(keys.low, keys.high)]
        return ranges_in(self._table, self._index, keys, self._condition, self._asked.reverse)

    def _answers_alone(self, names: Sequence[str]) -> bool:
        """Whether the named index answers the scan without reading rows. A Program may read more than the columns."""
        return self._is_known() and self._index is not None and answers_alone(self._table, self._index, names)

    def _is_known(self) -> bool:
        return self._condition is None or self._condition.expression is not None

    def _has_images(self, names: Sequence[str]) -> bool:
        """Whether the rows found for these columns are whole images: no index answers alone, named or chosen."""
        if names == list(self._table.format.names):
            return True
        if any(name in HIDDEN for name in names):
            return False
        judged = () if self._condition is None else self._condition.names
        if self._index is not None:
            return not self._answers_alone([*names, *judged])
        if self._condition is None or not self._is_known():
            return True
        return not any(answers_alone(self._table, each, [*names, *judged]) for each in [*self._table.indexes.values()])

    def _numbers(self) -> list[int]:
        if self._condition is not None:
            return self._condition.numbers(self._table, self._partitions)
        return self._table.numbers_of(self._partitions)

    def _choice(self, columns: Sequence[str]) -> Lookup | Choice | None:
        return None if self._condition is None else way_of(self._table, self._condition, columns, self._partitions)[0]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as Arrow record batches.

        Examples:
            >>> sum(batch.num_rows for batch in db["item"].scan().batches())
            3
        """
        if self._lock is not None:
            yield from self._locked_batches()
            return
        for batch in self._batches_found(self._by_columns()):
            yield batch.columns if isinstance(batch, ColumnBatch) else self._decoded(batch, self._columns)

    def _by_columns(self) -> Iterator[ScanBatch | ColumnBatch] | None:
        """Return the rows as kernels copy them into columns, if they can."""
        if self._is_copied or self._index is not None or self._limit is not None:
            return None
        return scan_by_columns(self._table, self._txn, self._condition, self._columns, self._read, self._partitions)

    def _decoded(self, batch: ScanBatch, wanted: Sequence[str]) -> pa.RecordBatch:
        plain = [name for name in wanted if name not in HIDDEN]
        made = {ROWID: batch.rowids, EPOCH: batch.epochs, AUTHOR: batch.authors, FRAGMENT: batch.fragments}
        extra = {name: made[name]() for name in wanted if name in HIDDEN}
        found = decode_entries(self._table.format, batch.entries, batch.offsets, batch.count, plain, extra)
        return found.select(wanted)

    def _defined(self) -> TableDefinition:
        return self._table.definition

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of `batches`. Hidden columns are int64.

        Examples:
            >>> db["item"].scan(["name", tm.EPOCH]).schema().names
            ['name', '$EPOCH']
        """
        return schema_of(self._table.definition, self._columns)

    # --- aggregates ------------------------------------------------------------------------------
    def aggregate(
        self,
        /,
        *,
        by: By = None,
        order: str | Sequence[str] | None = None,
        reverse: bool | Sequence[bool] = False,
        limit: int | None = None,
        **functions: Any,
    ) -> Any:
        """Compute several aggregates in one pass: `aggregate(total=("sum", "b"), n=("count",))`; with `by`, those of
        each group.

        An aggregate is a function (count, sum, min, max or mean) with the name of a column or an expression; count
        needs neither. NULLs are left out. A count of no value is 0, everything else None. A sum is exact for integers
        and decimals. min and max take every type but Enum; characters and bytes are in binary order, and NaN is above
        every number.

        Args:
            by: Columns whose equal values make a group: a name, several, or a dict of names with columns or
                expressions. They may be of every type. NULL is a value of its own, NaN equals NaN, and -0.0 equals 0.0.
            order: Sort the groups by these results, a name or several, then by the columns of `by`. Without it, by the
                columns of `by`, in the order of an index over them: NULL comes first.
            reverse: Sort in descending order; a list has one bool for each name of `order`, or of `by` without it.
            limit: Return at most this many groups.
            functions: The aggregates by the names of their results. There may be none with `by`: it returns the
                different values.

        Returns:
            A row (`Row`) with the aggregates. With `by` a list of rows, one for each group, which have the columns of
            `by` first; it is empty if the scan has no rows.

        Raises:
            ProgramInvalid: The column has no such aggregate: characters, bytes and Bool have count, min and max, Enum
                has count only, and calendar types have no sum and no mean.
            NoSuchColumn: The table has no column of that name.
            LimitExceeded: The groups take more than 1 GiB of memory while they are added up.
            SchemaInvalid: The arguments are not aggregates, a name is used twice, or the scan locks its rows.

        Examples:
            >>> scan = db["item"].scan(where=tm.col("stock") > 0)
            >>> scan.aggregate(rows=("count",), total=("sum", "stock"), twice=("max", tm.col("stock") * 2))
            Row(rows=2, total=15, twice=20)
            >>> db["item"].scan().aggregate(by={"tens": tm.col("stock") // 10}, n=("count",), last=("max", "name"))
            [Row(tens=0, n=2, last='cup'), Row(tens=1, n=1, last='pen')]
        """
        if by is None:
            if order is not None or reverse is not False or limit is not None:
                raise SchemaInvalid("order, reverse and limit sort groups; say by what they are made with by=")
            return row_class(tuple(functions))._make(self._added_up(functions))
        keys = _keys(by)
        wanted = _functions(functions)
        names = (*keys, *functions)
        if len(set(names)) != len(names):
            raise SchemaInvalid(f"results must have different names, got {', '.join(names)}")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise SchemaInvalid(f"limit must be a number of groups, got {limit!r}")
        sorting = _sorting(list(keys), names, order, reverse)
        given = [argument(each) for each in keys.values()]

        def grouped(*asked: Any) -> Any:
            found, work = added_up(*asked)
            return found.groups(work, sorting, limit)

        columns = self._pass(grouped, wanted, [each for each in given if each is not None])
        return list(map(row_class(names)._make, zip(*columns, strict=True)))

    def _added_up(self, functions: Mapping[str, Any]) -> list[Any]:
        wanted = _functions(functions)
        few = self._added_few(wanted)
        if few is not None:
            return few
        counted = self._counted() if all(each == "count" and what is None for each, what in wanted) else None
        if counted is not None:
            return [counted] * len(wanted)
        found: list[Any] = self._pass(aggregate, wanted)
        return found

    def _added_few(self, wanted: Sequence[tuple[str, Any]]) -> list[Any] | None:
        """Add up the few rows that a select finds; None for the general path."""
        if self._select is None:
            return None
        types = {column.name: column.type for column in self._table.definition.columns}
        for function, what in wanted:
            if what is None and function == "count":
                continue
            if not isinstance(what, str) or what not in self._columns or not _is_added_up(function, types[what]):
                return None
        rows = self._few_rows()
        if rows is None:
            return None
        found: list[Any] = []
        for function, what in wanted:
            if what is None:
                found.append(len(rows))
                continue
            place = self._columns.index(what)
            values = [row[place] for row in rows if row[place] is not None]
            found.append(_ADD_UP[function](values) if values or function == "count" else None)
        return found

    def _few_rows(self) -> list[Any] | None:
        """Return the rows that an aggregate is of, if a select finds them."""
        if self._select is None or self._limit is not None or self._lock is not None:
            return None
        rows = self._selected(self._select, None)
        return None if rows is ... else rows

    def _pass(self, aggregated: Callable[..., Any], *what: Any) -> Any:
        self._check_usable()
        if self._lock is not None:
            raise SchemaInvalid("an aggregate cannot lock its rows; scan without a lock")
        rows = self._found if self._index is not None or self._is_copied else None
        watch = self._watch
        with nullcontext() if watch is None else watch.timed("aggregate", table=self._table.name, **self._way()):
            return aggregated(self._table, self._txn, *what, self._condition, self._limit, self._partitions, rows)

    def _counted(self) -> int | None:
        """Return the number of entries of the named index in the range, if that number answers the scan."""
        keys = self._key_range()
        if self._index is None or keys is None or self._condition is not None:
            return None
        if self._partitions is not None or self._is_copied:
            return None
        count = count_by_index(self._table, self._txn, self._index, keys)
        return count if count is None or self._limit is None else min(count, self._limit)

    def explain(self) -> dict[str, Any]:
        """Return how the scan would find its rows now.

        Returns:
            `access` is "primary key" or "unique index" (rows are looked up by whole keys), "index", "index only" (no
            row is read) or "full scan". `index` is the name of the index or None, `bounds` has the keys or ranges,
            `partitions` those that are read. `rows` estimates how many rows or entries are read before a condition is
            applied. A key has the value of each column, and so has a range of a chosen index, or {"from": least,
            "above": …, "to": …, "below": …, "prefix": …} for the last one; that of a named index has the bounds as
            given, and `rows` also counts with what the condition says of its columns.

        Examples:
            >>> plan = db["item"].scan(where=tm.col("id").isin([1, 3])).explain()
            >>> plan["access"], plan["bounds"], plan["rows"]
            ('primary key', [{'id': 1}, {'id': 3}], 2)
            >>> db.create_index("item", "by_name", "name")
            >>> plan = db["item"].scan(index="by_name", prefix="p").explain()
            >>> plan["access"], plan["bounds"]
            ('index', [{'prefix': 'p'}])
        """
        table, numbers = self._table, self._numbers()
        partition = table.definition.partition
        names = [name for name, number in zip(partition.names, partition.numbers, strict=True) if number in numbers]
        found: dict[str, Any] = {"access": "full scan", "index": None, "bounds": [], "partitions": names}
        judged = [] if self._condition is None else self._condition.names
        if self._index is not None:
            rows = sum(self._index.tree.estimate(*bounds) for bounds in self._read_ranges())
            if self._index.is_dropped:
                raise self._index.gone()
            given = {name: getattr(self._asked, name) for name in ("lower", "upper", "prefix")}
            bounds = [{name: value for name, value in given.items() if value is not None}]
            is_only = not self._is_copied and self._answers_alone([*self._read, *judged])
            access = "index only" if is_only else "index"
            return found | {"access": access, "index": self._index.name, "bounds": bounds, "rows": rows}
        choice = self._choice(self._read)
        if choice is None:
            return {**found, "rows": rows_of(table, numbers)}
        name = None if choice.index is None else choice.index.name
        return found | {"access": choice.access, "index": name, "bounds": choice.bounds, "rows": choice.rows}

    def count(self, column: str | Expression | None = None) -> int:
        """Return the number of rows; with a column, of rows that have no NULL in it.

        Raises: as `aggregate`.

        Examples:
            >>> db["item"].scan(where=tm.col("stock") > 4).count()
            2
        """
        try:
            few = self._few_rows() if column is None else None
            return len(few) if few is not None else int(self._added_up({"value": ("count", column)})[0])
        except MemoryError as error:
            raise self.out_of_memory(error) from error

    def sum(self, column: str | Expression) -> Any:
        """Return the sum of the values that are not NULL, exact for integers and decimals; None if there is none.

        Raises: as `aggregate`.

        Examples:
            >>> db["item"].scan().sum("stock")
            15
        """
        return self._added_up({"value": ("sum", column)})[0]

    def min(self, column: str | Expression) -> Any:
        """Return the least value, None if there is none. NaN is greater than every other value.

        Raises: as `aggregate`.

        Examples:
            >>> db["item"].scan().min("stock")
            0
        """
        return self._added_up({"value": ("min", column)})[0]

    def max(self, column: str | Expression) -> Any:
        """Return the greatest value, None if there is none.

        Raises: as `aggregate`.

        Examples:
            >>> db["item"].scan().max(tm.col("stock") + tm.col("id"))
            11
        """
        return self._added_up({"value": ("max", column)})[0]

    def mean(self, column: str | Expression) -> Any:
        """Return the sum divided by the count as a float, of decimals as a Decimal of 38 digits; None if there is no
        value.

        Raises: as `aggregate`.

        Examples:
            >>> db["item"].scan().mean("stock")
            5.0
        """
        return self._added_up({"value": ("mean", column)})[0]

    # --- rows ------------------------------------------------------------------------------------
    def sample(self, n: int, *, seed: int | None = None) -> pa.Table:
        """Return `n` rows chosen at random as an Arrow table, all of them if there are fewer.

        Each row has the same chance, and none comes twice. The rows are in the order of the scan. It reads each row of
        the scan once, and keeps some multiple of `n` rows in memory.

        Args:
            n: How many rows.
            seed: A number of 0 or more: the same one chooses the same rows again, as long as the table, the scan and
                the versions of Tidemark and NumPy are the same. None: another choice each time.

        Raises:
            SchemaInvalid: `n` or `seed` is no such number, or the scan locks its rows.

        Examples:
            >>> found = db["item"].scan(where=tm.col("stock") > 0).sample(10)
            >>> sorted(found["name"].to_pylist())
            ['cup', 'pen']
        """
        for name, number in (("n", n), ("seed", 0 if seed is None else seed)):
            if not is_int(number) or number < 0:
                raise SchemaInvalid(f"{name} must be a number of 0 or more, got {shown(number)}")
        if self._lock is not None:
            raise SchemaInvalid("a sample cannot lock its rows; scan without a lock")
        return sample(self.batches(), self.schema(), n, seed)

    def __repr__(self) -> str:
        columns = None if self._columns == list(self._table.format.names) else self._columns
        return self._asked._replace(columns=columns, partitions=self._partitions).text(self._table.name)

    def _repr_html_(self) -> str | None:
        if self._lock is not None:
            return None  # showing a scan must not lock rows
        few = self._copy()
        few._limit = ROWS_SHOWN if self._limit is None else min(self._limit, ROWS_SHOWN)
        try:
            return html_table(repr(self), self._columns, few)
        except Error:  # the prompt shows the repr
            return None

    def __iter__(self) -> Iterator[Any]:
        if self._lock is not None:
            return self._locked()
        try:
            rows = self._selected(self._select, self._limit)
            return _Rows.of(self._lists()) if rows is ... else _Rows(rows)
        except MemoryError as error:
            raise self.out_of_memory(error) from error

    def _lists(self) -> Generator[Iterable[Any], None, None]:
        yield from self._lists_of(self._batches_found(), self._columns)

    def _selected(self, found: Select | None, limit: int | None) -> Any:
        """Return a list of the rows if kernels find them by a key; ... for the general path."""
        txn = self._txn
        if found is None or self._is_copied or self._watch is not None or self._on_rows is not None:
            return ...
        self._check_usable()
        if txn is not None:
            txn.check()
            if not shows_others(txn, self._table):
                txn = None
        return found.rows(self._table, self._asked.reverse, limit, txn)

    def _lists_of(self, found: Iterator[ScanBatch], wanted: list[str]) -> Generator[Iterable[Any], None, None]:
        has_images = self._has_images(wanted)
        plan = row_plan(self._table.format, wanted) if has_images else None
        for batch in found:
            if plan is None:
                yield self._decoded_rows(batch, wanted, has_images)
                continue
            for start in range(0, batch.count, LIST_ROWS):
                stop = min(start + LIST_ROWS, batch.count)
                rows = plan.rows(batch.entries, batch.offsets, start, stop)
                if rows is ...:
                    part = batch.chosen(slice(start, stop))
                    rows = self._decoded_rows(part, wanted, has_images)
                yield rows

    def _decoded_rows(self, batch: ScanBatch, wanted: list[str], has_images: bool) -> Iterator[Any]:
        """Yield rows on the general path. has_images: the batch has whole images."""
        row_format = self._table.format
        is_whole = wanted == list(row_format.names)
        make = row_format.Row._make if is_whole else row_class(tuple(wanted))._make
        if has_images and batch.count <= (row_format.few_rows if is_whole else FEW_ROWS):
            view = batch.entries.data.cast("B")
            for offset in batch.offsets.tolist():
                if is_whole:
                    yield row_format.decode_row(view, offset)
                else:
                    yield make(row_format.decode_columns(view, offset, wanted))
        else:
            columns = python_columns(self._decoded(batch, wanted), self._table.definition)
            yield from map(make, zip(*columns, strict=True))

    def _locked(self) -> Iterator[Any]:
        """Lock rows one by one. Each is read again under its lock, and left out if it is gone."""
        if self._txn is None:
            raise SchemaInvalid("a scan with a lock needs a transaction")
        make = row_class(tuple(self._columns))._make
        places = [self._table.format.names.index(name) for name in self._plain]
        if len(places) != len(self._columns):
            raise SchemaInvalid("hidden columns cannot be read by a scan with a lock; scan without one")
        key_names = list(self._table.definition.primary_key)
        is_single = len(key_names) == 1
        left = self._limit
        for keys in self._key_lists(key_names):
            for key in keys:
                if left == 0:
                    return
                row, is_last = self._lock_row(self._txn, key[0] if is_single else key)
                # A row may have moved out of the range of the index before it was locked; it is left out.
                if row is not None and self._is_in_range(row):
                    left = None if left is None else left - 1
                    values = tuple(row)
                    yield make([values[place] for place in places])
                if is_last:
                    return

    def _key_lists(self, key_names: list[str]) -> Iterator[Iterable[Any]]:
        found = None
        asked = self._asked
        if asked.where is not None and self._partitions is None and asked.is_unbounded:
            found = select(self._table, asked.where, key_names, asked.index)
        most = None
        if self._limit is not None and self._limit + SPARE_KEYS <= SELECTED_MAX:
            most = self._limit + SPARE_KEYS
        keys = self._selected(found, most)
        if keys is ...:
            yield from self._lists_of(self._found(key_names, None), key_names)
            return
        yield keys
        if most is None or len(keys) < most:
            return
        # So many were gone when they were locked. The rows beyond them, without what the transaction has changed.
        rest = self._copy()
        rest._txn = None
        seen = set(keys)
        beyond = [key for more in rest._lists_of(rest._found(key_names, None), key_names) for key in more]
        if keys[-1] in beyond:  # rows that have come meanwhile may be before it
            del beyond[: beyond.index(keys[-1])]
        yield [key for key in beyond if key not in seen]

    def _copy(self) -> Self:
        few = object.__new__(type(self))
        vars(few).update(vars(self))
        few._rows = few._on_rows = None
        return few

    def _locked_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield `_locked` as record batches; all rows of a batch are locked when it is yielded."""
        import pyarrow as pa

        schema, rows = self.schema(), self._locked()
        while chunk := list(itertools.islice(rows, LOCKED_BATCH_ROWS)):
            columns = zip(*chunk, strict=True)
            arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _is_in_range(self, row: Any) -> bool:
        keys = self._key_range()
        if keys is None or keys.is_whole:
            return True
        return keys.holds([row[name] for name in self._index_columns])

    def _lock_row(self, txn: Transaction, key: Any) -> tuple[Any, bool]:
        """Return (the row under its lock, None if it is gone or no longer accepted; whether it is the last one)."""
        condition = self._condition
        if self._lock == "exclusive" and not self._asked.skip_locked:
            row: Any = ...
            if condition is None:
                row = locked(txn, self._table.name, key, None, self._table)
            elif condition.program.facts.is_of_image:
                row = locked(txn, self._table.name, key, None, self._table, condition.program.words)
            if row is not ...:
                return row, False
        if condition is None:
            return row_operations.get(txn, self._table, key, self._lock, self._asked.skip_locked), False
        entry = row_operations.get_entry(txn, self._table, key, self._lock, self._asked.skip_locked)
        if entry is None:
            return None, False
        verdict = run_one(condition.program, self._table, entry)[0]
        is_last = verdict == VERDICT_LAST
        is_accepted = is_last or verdict == VERDICT_OK
        return self._table.format.decode_row(entry.data.cast("B"), ENTRY_WORDS) if is_accepted else None, is_last


def grouping(by: By, order: Any, reverse: Any, limit: int | None) -> dict[str, Any]:
    """Return the arguments of `Scan.aggregate` for groups that are given: an older version of another process knows
    none of them.
    """
    given = {"by": by, "order": order, "limit": limit, "reverse": None if reverse is False else reverse}
    return {name: value for name, value in given.items() if value is not None}


def _functions(functions: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return (function, column, expression or None) for each aggregate. Raises: SchemaInvalid."""
    wanted: list[tuple[str, Any]] = []
    for name, given in functions.items():
        if not isinstance(given, tuple) or len(given) not in (1, 2) or not isinstance(given[0], str):
            raise SchemaInvalid(f'{name}: an aggregate is ("sum", column) or ("count",), got {shown(given)}')
        function, what = given if len(given) == 2 else (given[0], None)
        if function != "count" and what is None:
            raise SchemaInvalid(f"{name}: {function} needs a column or an expression")
        wanted.append((function, what))
    return wanted


def _keys(by: Any) -> dict[str, Any]:
    """Return the columns or expressions by which rows are grouped, by their names. Raises: SchemaInvalid."""
    if isinstance(by, Mapping):
        keys = dict(by)
    else:
        given = as_names(by, "by")
        keys = {name: name for name in given if isinstance(name, str)}
        if len(keys) != len(given):
            raise SchemaInvalid(
                f"by must be different names of columns, got {shown(given)}; give expressions as a dict with names"
            )
    if not keys:
        raise SchemaInvalid("by is empty; leave it out to aggregate all rows together")
    if len(keys) > GROUP_COLUMNS_MAX:
        raise SchemaInvalid(f"by has {len(keys)} columns; {GROUP_COLUMNS_MAX} are possible")
    for name, what in keys.items():
        if not isinstance(name, str) or not isinstance(what, (str, Expression)):
            raise SchemaInvalid(f"by: {shown(name)} must be the name of a column or an expression, got {shown(what)}")
    return keys


def _is_added_up(function: str, kind: ColumnType) -> bool:
    """Whether Python adds up a few values of a column as kernels do: floats have an order and a sum of their own."""
    if function == "sum":
        return kind.python is int
    if function in ("min", "max"):
        return kind.has_order and kind.is_exact and not kind.is_lob
    return function == "count" and not kind.is_lob


def _sorting(
    keys: list[str], names: Sequence[str], order: Any, reverse: bool | Sequence[bool]
) -> list[tuple[int, bool]]:
    """Return (number of a result, whether its greatest value comes first) pairs, the parts of the key last."""
    sorted_by = keys if order is None else as_names(order, "order")
    for name in sorted_by:
        if name not in names:
            raise SchemaInvalid(f"order: there is no result {shown(name)}; the results are {', '.join(names)}")
    if len(set(sorted_by)) != len(sorted_by):
        raise SchemaInvalid(f"order names a result twice: {shown(sorted_by)}")
    if isinstance(reverse, bool):
        turns = [reverse] * len(sorted_by)
    else:
        turns = list(reverse) if isinstance(reverse, Sequence) else []
        if len(turns) != len(sorted_by) or not all(isinstance(each, bool) for each in turns):
            raise SchemaInvalid(f"reverse must be a bool, or {len(sorted_by)} of them, got {shown(reverse)}")
    found = [(names.index(name), turn) for name, turn in zip(sorted_by, turns, strict=True)]
    return [*found, *((number, False) for number, name in enumerate(keys) if name not in sorted_by)]
