"""`db.snapshot()`: every table as at the end of one epoch, read beside writers and never waiting for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.engine.access import snapshot as engine_snapshot
from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.batch_operations import ScanBatch, decode_entries
from tidemark.engine.access.program_scans import accepted_batches
from tidemark.engine.access.snapshot_index import SnapshotIndexScan
from tidemark.engine.base.errors import RowNotFound
from tidemark.engine.base.out_of_memory import types_memory_errors
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.rows.columnar import encode_keys
from tidemark.engine.schema.names import is_system_table
from tidemark.scans import NO_INDEX, ByIndex, Scan

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.table.table import Table

Progress = Callable[[int, int, str], None]
Where = Expression | Program | None


@types_memory_errors("__getitem__", "__contains__")
class Snapshot(engine_snapshot.Snapshot):
    """All tables of a store as at the end of an epoch; use it with `with`, by any thread.

    Writers go on and never wait for it. What they change is kept in `snapshot_memory`; past it the oldest snapshot is
    given up, and every reading call of it raises SnapshotTooOld. Nothing else can be read than what was committed, and
    is durable, when it was opened.
    """

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Show nothing any more, and let go of what was kept for it. Closing again does nothing."""
        super().close()  # here, where a MemoryError becomes one of ours

    def __getitem__(self, name: str) -> SnapshotTable:
        return SnapshotTable(self, self.table_of(name))

    def table(self, name: str) -> SnapshotTable:
        """A table, also as `snapshot[name]`; dropped since, it is still there. Raises: NoSuchTable, SnapshotClosed,
        SnapshotTooOld, StoreFailed.
        """
        return self[name]

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def tables(self, system: bool = False) -> list[str]:
        """Names of the tables, "database.table", sorted; those of the system only with `system`."""
        self.check()
        return sorted(name for name in self.by_name if system or not is_system_table(name))

    def __repr__(self) -> str:
        return f"<tidemark snapshot of epoch {self.epoch}>"


class SnapshotScan(Scan):
    """One scan of a table of a snapshot, not yet begun; as `Scan`."""

    _is_copied = True

    def __init__(
        self,
        snapshot: Snapshot,
        table: Table,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        partitions: Sequence[str] | None = None,
        where: Where = None,
        by: ByIndex = NO_INDEX,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(table, None, columns, limit, None, partitions, where, by)
        self._snapshot = snapshot
        self._progress = progress

    def _found(self, columns: Sequence[str], limit: int | None) -> Iterator[ScanBatch]:
        condition = self._condition
        if condition is None:
            return self._rows_of(columns, limit)
        rows = self._rows_of(list(dict.fromkeys([*columns, *condition.names])), None)
        return accepted_batches(self._table, rows, condition, limit)

    def _rows_of(self, columns: Sequence[str], limit: int | None) -> Iterator[ScanBatch]:
        """The rows, whatever the condition says of them."""
        table, condition = self._table, self._condition
        if self._index is not None and self._keys is not None:
            place = (self._snapshot, table, self._index, self._keys, self._by.reverse)
            return SnapshotIndexScan(*place, limit, columns, self._progress).batches()
        numbers = table.numbers_of(self._partitions)
        if condition is not None:
            numbers = condition.numbers(table, self._partitions)
        return snapshot_reads.scan(self._snapshot, table, columns, limit, numbers, self._progress)

    def count(self, column: str | Expression | None = None) -> int:
        """How many rows; of a column: how many have no NULL there."""
        if column is None and self._condition is None and self._index is None and self._limit is None:
            return snapshot_reads.count(self._snapshot, self._table, self._table.numbers_of(self._partitions))
        return super().count(column)


@types_memory_errors("__len__", "__contains__", "__getitem__")
class SnapshotTable:
    """One table of a snapshot, with the reading calls of a `TableHandle`, of the same names and meaning.

    Every call raises SnapshotTooOld once the snapshot was given up, SnapshotClosed once it was closed.
    """

    __slots__ = ("_snapshot", "_table")

    def __init__(self, snapshot: Snapshot, table: Table) -> None:
        self._snapshot = snapshot
        self._table = table

    @property
    def name(self) -> str:
        """Qualified name, "database.table"."""
        return self._table.name

    @property
    def definition(self) -> TableDefinition:
        """The table's definition when the snapshot was opened."""
        return self._table.definition

    def get(self, key: Any) -> Any:
        """The row that had this key, as a named tuple, or None."""
        return snapshot_reads.get(self._snapshot, self._table, key)

    def get_many(self, keys: Any, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows that had these keys, in their order; keys without a row are left out."""
        table = self._table
        self._snapshot.check()
        encoded = encode_keys(table.format, keys)
        found = snapshot_reads.read_keys(self._snapshot, table, encoded, table.format.needs_disk(columns))
        return decode_entries(table.format, *found, columns)

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
    ) -> SnapshotScan:
        """A scan of the table, as `TableHandle.scan`; an index is one that stood when the snapshot was opened.

        progress: called with (done, total, unit) behind each batch, pages of the table, or by an index rows and -1.
        """
        self._snapshot.check()
        by = ByIndex(index, lower, upper, prefix, reverse)
        return SnapshotScan(self._snapshot, self._table, columns, limit, partitions, where, by, progress)

    # --- aggregates ------------------------------------------------------------------------------
    def aggregate(self, where: Where = None, **functions: Any) -> Any:
        """Several aggregates in one pass, as a named tuple; see `Scan.aggregate`."""
        return self.scan(where=where).aggregate(**functions)

    def count(self, column: str | Expression | None = None, where: Where = None) -> int:
        """How many rows; of a column: how many have no NULL there."""
        return self.scan(where=where).count(column)

    def sum(self, column: str | Expression, where: Where = None) -> Any:
        """The sum without NULLs, None if there is nothing to add."""
        return self.scan(where=where).sum(column)

    def min(self, column: str | Expression, where: Where = None) -> Any:
        """The least value, None if there is none."""
        return self.scan(where=where).min(column)

    def max(self, column: str | Expression, where: Where = None) -> Any:
        """The greatest value, None if there is none."""
        return self.scan(where=where).max(column)

    def mean(self, column: str | Expression, where: Where = None) -> Any:
        """The sum divided by the count, None if there is nothing."""
        return self.scan(where=where).mean(column)

    # --- whole tables ----------------------------------------------------------------------------
    def to_arrow(
        self, columns: Sequence[str] | None = None, where: Where = None, progress: Progress | None = None
    ) -> pa.Table:
        """All rows as an Arrow table, or those a condition accepts."""
        return self.scan(columns, where=where, progress=progress).to_arrow()

    def to_pandas(
        self, columns: Sequence[str] | None = None, where: Where = None, progress: Progress | None = None
    ) -> Any:
        """All rows as a pandas DataFrame, or those a condition accepts."""
        return self.scan(columns, where=where, progress=progress).to_pandas()

    def to_numpy(self, where: Where = None, progress: Progress | None = None) -> Any:
        """All rows as a structured NumPy array, or those a condition accepts."""
        return self.scan(where=where, progress=progress).to_numpy()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.scan().__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return self.scan().count()

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: Any) -> Any:
        row = self.get(key)
        if row is None:
            raise RowNotFound(f"{self.name} had no row with key {key!r}", table=self.name, key=key)
        return row

    def __iter__(self) -> Iterator[Any]:
        return iter(self.scan())

    def __repr__(self) -> str:
        return f"<tidemark table {self.name} at epoch {self._snapshot.epoch}>"
