"""A scan that another process executes, read page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tidemark.calls import has_calls_of
from tidemark.derived import described, forwarded
from tidemark.engine.base.errors import Error
from tidemark.engine.rows.column_output import python_columns
from tidemark.engine.rows.row import row_class
from tidemark.scans import Scan, ScanAsked, ScanForms

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.schema.definition import TableDefinition

Ask = Callable[..., Any]


@has_calls_of("remote scan")
class RemoteScan(ScanForms):
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
        asked: ScanAsked,
        ask: Ask,
        of: bool | str,
        definition: Callable[[str], TableDefinition] | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """ask: makes one call over the link of the scan. of: whether it is of the transaction of the link;
        `OF_SNAPSHOT`: of its snapshot. close: called when the scan has been read to its end or is abandoned. Raises: as
        `ScanAsked.check`.
        """
        asked.check()
        self._table = table
        self._asked = asked
        self._ask = ask
        self._of = of
        self._definition = definition
        self._close = close
        self._schema: pa.Schema | None = None

    def _open(self) -> int:
        number, empty = self._ask("scan", self._table, self._of, self._asked.given())
        self._schema = empty.schema
        return int(number)

    @described(Scan.schema)
    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._end(self._open(), False)  # the caller need not read the rows
        return self._schema

    @described(Scan.batches)
    def batches(self) -> Iterator[pa.RecordBatch]:
        number, done, is_read = self._open(), 0, False
        try:
            while (page := self._ask("next", number)) is not None:
                for batch in page.to_batches():
                    done += batch.num_rows
                    yield batch
                    if self._asked.progress is not None:
                        self._asked.progress(done, -1, "rows")
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
        return self._asked.text(f"{self._table} of another process")

    def __iter__(self) -> Iterator[Any]:
        definition, make = self._defined(), row_class(tuple(self.schema().names))._make
        for batch in self.batches():
            yield from map(make, zip(*python_columns(batch, definition), strict=True))

    def _defined(self) -> TableDefinition:
        return (self._definition or (lambda table: self._ask("definition", table)))(self._table)

    def _forward(self, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Compute an aggregate, or explain the scan, in the other process."""
        try:
            return self._ask("of_scan", self._table, self._of, self._asked.given(), method, arguments, named)
        finally:
            self._close()

    # calls: python -m tools.make_faces
    explain = forwarded(Scan.explain)
    count = forwarded(Scan.count)
    sum = forwarded(Scan.sum)
    min = forwarded(Scan.min)
    max = forwarded(Scan.max)
    mean = forwarded(Scan.mean)
    aggregate = forwarded(Scan.aggregate)
    sample = forwarded(Scan.sample)
