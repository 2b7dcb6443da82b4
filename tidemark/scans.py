"""Reading a whole table: named tuples, Arrow, pandas and NumPy out of one scan.

Hidden columns are named by the constants ROWID, EPOCH, AUTHOR and FRAGMENT.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine import row_operations
from engine.batch_operations import ScanBatch, decode_entries, scan
from engine.column_output import arrow_schema, to_numpy, to_pandas, wanted_names
from engine.errors import SchemaInvalid, Unsupported
from engine.index.scans import IndexScan, KeyRange

if TYPE_CHECKING:
    import pyarrow as pa

    from engine.table import Table
    from engine.transaction import Transaction

ROWID = "$ROWID"
EPOCH = "$EPOCH"
AUTHOR = "$AUTHOR"
FRAGMENT = "$FRAGMENT"
HIDDEN = (ROWID, EPOCH, AUTHOR, FRAGMENT)


@dataclass(frozen=True)
class ByIndex:
    """Which index a scan goes by, between which keys, and in which direction; `name` None: by none."""

    name: str | None = None
    lower: Any = None
    upper: Any = None
    prefix: Any = None
    reverse: bool = False

    def check(self, partitions: Sequence[str] | None) -> None:
        """Raises: SchemaInvalid, Unsupported for what does not go together."""
        if self.name is None:
            if self != ByIndex():
                raise SchemaInvalid(
                    "lower, upper, prefix and reverse belong to a scan by an index; name one with index="
                )
        elif partitions is not None:
            raise Unsupported("a scan by an index goes over all partitions; leave partitions out")


NO_INDEX = ByIndex()


class Scan:
    """One scan of one table, not yet begun; iterate it once or turn it into a table."""

    def __init__(
        self,
        table: Table,
        txn: Transaction | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        lock: str | None = None,
        partitions: Sequence[str] | None = None,
        by: ByIndex = NO_INDEX,
    ) -> None:
        by.check(partitions)
        table.numbers_of(partitions)  # Raises: NoSuchPartition
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise SchemaInvalid(f"limit must be a number of rows, got {limit!r}")
        self._table = table
        self._txn = txn
        self._columns = wanted_names(table.format, columns, HIDDEN)
        self._limit = limit
        self._lock = lock
        self._partitions = None if partitions is None else list(partitions)
        self._plain = [name for name in self._columns if name not in HIDDEN]
        self._by = by
        self._index = None if by.name is None else table.index(by.name)
        self._keys = None if self._index is None else KeyRange(self._index.tree.shape, by.lower, by.upper, by.prefix)

    def _extra(self, batch: ScanBatch) -> dict[str, Any]:
        made: dict[str, Callable[[], Any]] = {
            ROWID: batch.rowids,
            EPOCH: batch.epochs,
            AUTHOR: batch.authors,
            FRAGMENT: batch.fragments,
        }
        return {name: made[name]() for name in self._columns if name in HIDDEN}

    def _source(self, columns: Sequence[str], limit: int | None) -> Iterator[ScanBatch]:
        if self._index is None or self._keys is None:
            return scan(self._table, self._txn, limit, columns, self._partitions)
        return IndexScan(self._table, self._txn, self._index, self._keys, self._by.reverse, limit, columns).batches()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow record batches."""
        for batch in self._source(self._plain, self._limit):
            yield self._decoded(batch)

    def _decoded(self, batch: ScanBatch) -> pa.RecordBatch:
        decoded = decode_entries(
            self._table.format, batch.entries, batch.offsets, batch.count, self._plain, self._extra(batch)
        )
        return decoded.select(self._columns)

    def schema(self) -> pa.Schema:
        """Arrow schema of `batches`."""
        import pyarrow as pa

        plain = arrow_schema(self._table.definition, self._plain)
        return pa.schema(
            [
                pa.field(name, pa.int64(), nullable=False) if name in HIDDEN else plain.field(name)
                for name in self._columns
            ]
        )

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_batches(list(self.batches()), self.schema())

    def to_pandas(self) -> Any:
        """All rows as a pandas DataFrame."""
        return to_pandas(self.to_arrow())

    def to_numpy(self) -> Any:
        """All rows as a structured NumPy array (no hidden columns)."""
        return to_numpy(self.to_arrow(), self._table.definition)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self.schema(), self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[Any]:
        if self._lock is not None:
            yield from self._locked()
            return
        whole = self._columns == list(self._table.format.names)
        # Making a class takes longer than a small scan.
        row_class: Any = None if whole else namedtuple("Row", self._columns, rename=True)
        for batch in self._source(self._plain, self._limit):
            if whole:
                decode = self._table.format.decode_row
                view = batch.entries.data.cast("B")
                for offset in batch.offsets.tolist():
                    yield decode(view, offset)
            else:
                columns = [column.to_pylist() for column in self._decoded(batch).columns]
                yield from map(row_class._make, zip(*columns, strict=True))

    def _locked(self) -> Iterator[Any]:
        """Rows locked one by one; each is read again under its lock, and left out if it has gone meanwhile."""
        if self._txn is None:
            raise SchemaInvalid("a scan with a lock needs a transaction")
        row_class: Any = namedtuple("Row", self._columns, rename=True)  # type: ignore[misc]
        places = [self._table.format.names.index(name) for name in self._plain]
        if len(places) != len(self._columns):
            raise SchemaInvalid("hidden columns cannot be read by a scan with a lock; scan without one")
        row_format, key_names = self._table.format, list(self._table.definition.primary_key)
        left = self._limit
        # By an index, rows may have moved out of the range by the time they are locked: those do not count.
        for batch in self._source(key_names, left if self._keys is None else None):
            keys = decode_entries(row_format, batch.entries, batch.offsets, batch.count, key_names)
            columns = [column.to_pylist() for column in keys.columns]
            for key in columns[0] if len(columns) == 1 else zip(*columns, strict=True):
                if left is not None and left <= 0:
                    return
                row = row_operations.get(self._txn, self._table, key, self._lock)
                if row is not None and self._is_in_range(row):
                    left = None if left is None else left - 1
                    yield row_class._make(row[place] for place in places)

    def _is_in_range(self, row: Any) -> bool:
        if self._index is None or self._keys is None:
            return True
        names = self._table.format.names
        return self._keys.holds([row[names.index(name)] for name in self._index.definition.columns])
