"""A scan that another process executes, read page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import Error
from tidemark.engine.rows.column_output import python_values, to_numpy, to_pandas, to_polars
from tidemark.engine.rows.row import row_class
from tidemark.remote.forwarded import forwarded
from tidemark.scans import ByIndex, Scan

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.schema.definition import TableDefinition

Ask = Callable[..., Any]
Progress = Callable[[int, int, str], None]


def scan_arguments(by: ByIndex, **others: Any) -> dict[str, Any]:
    """Return the arguments of `scan` in the other process. Raises: as `ByIndex.check`."""
    by.check()
    return {**others, "index": by.name, **{name: getattr(by, name) for name in ("lower", "upper", "prefix", "reverse")}}


class RemoteScan:
    """A scan with the calls of `Scan`: iterate over it once, convert it, or aggregate its rows in the other process.

    Its calls raise what those of `Scan` raise, and PeerError if the node of the scan is lost: begin a new scan.

    Examples:
        >>> item = remote["item"]
        >>> sorted(row.name for row in item.scan(where=tm.col("stock") > 0))
        ['cup', 'pen']
        >>> scan = item.scan(["id", "stock"])
        >>> scan.schema().names, scan.to_arrow().num_rows
        (['id', 'stock'], 3)
        >>> sum(batch.num_rows for batch in item.scan().batches())
        3
        >>> len(item.scan().to_pandas()), len(item.scan().to_polars()), len(item.scan().to_numpy())
        (3, 3, 3)
        >>> item.scan().aggregate(rows=("count",), stock=("sum", "stock"))
        Row(rows=3, stock=15)
    """

    def __init__(
        self,
        table: str,
        named: Mapping[str, Any],
        ask: Ask,
        is_of_txn: bool,
        progress: Progress | None,
        definition: Callable[[str], TableDefinition] | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """named: the arguments of `Scan`. ask: makes one call over the link of the scan. close: called when the scan
        has been read to its end or is abandoned.
        """
        self._table = table
        self._named = dict(named)
        self._ask = ask
        self._is_of_txn = is_of_txn
        self._progress = progress
        self._definition = definition
        self._close = close
        self._schema: pa.Schema | None = None
        self._rows: Iterator[Any] | None = None

    def _open(self) -> int:
        """Begin the scan in the other process; return its number."""
        number, empty = self._ask("scan", self._table, self._is_of_txn, self._named)
        self._schema = empty.schema
        return int(number)

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of `batches`."""
        if self._schema is None:
            self._end(self._open(), False)  # the caller need not read the rows
        return self._schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as Arrow record batches."""
        number, done, is_read = self._open(), 0, False
        try:
            while (page := self._ask("next", number)) is not None:
                for batch in page.to_batches():
                    done += batch.num_rows
                    yield batch
                    if self._progress is not None:
                        self._progress(done, -1, "rows")
            is_read = True
        finally:
            self._end(number, is_read)

    def _end(self, number: int, is_read: bool) -> None:
        try:
            if not is_read:
                self._ask("end", number)
        except Error:
            pass  # the other process ends the scan when the link ends
        finally:
            self._close()

    def __repr__(self) -> str:
        said = [f"{name}={value!r}" for name, value in self._named.items() if value is not None and value is not False]
        return f"<tidemark scan of {self._table} of another process{': ' if said else ''}{', '.join(said)}>"

    def __iter__(self) -> Iterator[Any]:
        make = row_class(tuple(self.schema().names))._make
        for batch in self.batches():
            yield from map(make, zip(*[python_values(column) for column in batch.columns], strict=True))

    def __next__(self) -> Any:
        if self._rows is None:
            self._rows = iter(self)
        return next(self._rows)

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_batches(list(self.batches()), self.schema())

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame."""
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """Return all rows as a polars DataFrame."""
        return to_polars(self.to_arrow())

    def to_numpy(self) -> Any:
        """Return all rows as a structured NumPy array, without hidden columns."""
        definition = self._definition or (lambda table: self._ask("definition", table))
        return to_numpy(self.to_arrow(), definition(self._table))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema(), self.batches()).__arrow_c_stream__(requested_schema)

    def _forward(self, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Compute an aggregate, or explain the scan, in the other process."""
        try:
            return self._ask("of_scan", self._table, self._is_of_txn, self._named, method, arguments, named)
        finally:
            self._close()

    aggregate = forwarded(Scan.aggregate)
    count = forwarded(Scan.count)
    sum = forwarded(Scan.sum)
    min = forwarded(Scan.min)
    max = forwarded(Scan.max)
    mean = forwarded(Scan.mean)
    explain = forwarded(Scan.explain)
