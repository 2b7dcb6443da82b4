"""`db.snapshot()`: every table as at the end of one epoch. A snapshot never waits for writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark.calls import has_calls_of
from tidemark.derived import described
from tidemark.display import TABLES_SHOWN, html_table, short
from tidemark.engine.access import snapshot as engine_snapshot
from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.batch_operations import decode_entries
from tidemark.engine.access.index_scans import IndexScan
from tidemark.engine.access.scan_batch import ScanBatch
from tidemark.engine.base.out_of_memory import types_memory_errors
from tidemark.engine.base.owner import refuse_pickling
from tidemark.engine.index.unique_keys import one_key
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.queries.index_choice import Choice, Lookup, way_of
from tidemark.engine.queries.lookups import look_up_in, read_keys_in
from tidemark.engine.queries.missing_rows import DROP, Missing, in_place
from tidemark.engine.queries.program_scans import accepted_batches, is_decided, limited, unless_dropped
from tidemark.engine.queries.unique_calls import encode_keys as encode_unique_keys
from tidemark.engine.rows.columnar import encode_keys
from tidemark.engine.schema.names import is_system_table, names_one_of
from tidemark.scans import Progress, Scan, ScanAsked
from tidemark.table_reads import TableReads
from tidemark.typed_rows import SnapshotTables

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.access.key_ranges import Bounds
    from tidemark.engine.index.stored import StoredIndex
    from tidemark.engine.rows.row import Row
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.table.table import Table


@has_calls_of("snapshot")
@types_memory_errors("__getitem__", "__contains__")
class Snapshot(SnapshotTables["SnapshotTable"], engine_snapshot.Snapshot):
    """All tables of a store as at the end of one epoch; use it with `with`. Any thread may read it.

    Writers continue and never wait for it. Old versions of rows that they change are kept in `snapshot_memory`. Past
    that limit the oldest snapshot is dropped, and each of its reading calls raises SnapshotTooOld. A snapshot shows
    only data that was committed and durable when it was opened.

    After `close` its reading calls raise SnapshotClosed, after the store was closed or has failed StoreFailed.

    Examples:
        >>> with db.snapshot() as before:
        ...     deleted = db["item"].delete(1)
        ...     before["item"][1].name, 1 in db["item"]
        ('pen', False)
    """

    __reduce_ex__ = refuse_pickling

    def close(self) -> None:
        """Release the versions kept for this snapshot. A second call does nothing.

        Examples:
            >>> snapshot = db.snapshot()
            >>> snapshot.close()
            >>> db.status()["snapshots"]["open"]
            0
        """
        super().close()  # in this method, where a MemoryError becomes a typed error

    def __getitem__(self, name: str) -> SnapshotTable:
        return SnapshotTable(self, self.table_of(name))

    def __contains__(self, name: object) -> bool:
        self.check()
        return names_one_of(name, self.by_name)

    def tables(self, system: bool = False) -> list[str]:
        """Return the names of the tables, "database.table", sorted; with `system`, system tables too.

        Raises: SnapshotClosed, SnapshotTooOld, StoreFailed.

        Examples:
            >>> with db.snapshot() as snapshot:
            ...     snapshot.tables()
            ['main.item']
        """
        self.check()
        return sorted(name for name in self.by_name if system or not is_system_table(name))

    def __repr__(self) -> str:
        return f"<tidemark snapshot of epoch {self.epoch}{', closed' if self.is_closed else ''}>"

    def _repr_html_(self) -> str:
        names = [name for name in sorted(self.by_name) if not is_system_table(name)][:TABLES_SHOWN]
        rows = [(name, short(self.by_name[name].format.names)) for name in names]
        return html_table(repr(self), ("table", "columns"), rows)


class SnapshotScan(Scan):
    """One scan of a table of a snapshot; no row is read yet. See `Scan`."""

    _is_copied = True

    def __init__(self, snapshot: Snapshot, table: Table, asked: ScanAsked) -> None:
        super().__init__(table, asked, watch=snapshot.store.watch)
        self._snapshot = snapshot
        # Reported where pages are read, not after each batch.
        self._progress, self._on_rows = self._on_rows, None

    def _found(self, columns: Sequence[str], limit: int | None) -> Iterator[ScanBatch]:
        table, condition = self._table, self._condition
        if condition is None:
            return self._rows_of(columns, limit)
        names = list(dict.fromkeys([*columns, *condition.names]))
        choice = None if self._index is not None else self._choice(names)

        def without() -> Iterator[ScanBatch]:
            return accepted_batches(table, self._rows_of(names, None), condition, limit)

        if choice is None:
            return without()

        def with_choice() -> Iterator[ScanBatch]:
            found = self._chosen(choice, names)
            if found is None:
                yield from without()
            elif is_decided(table, choice, columns):
                yield from limited(found, limit)
            else:
                yield from accepted_batches(table, found, condition, limit)

        return unless_dropped(with_choice(), without)

    def _choice(self, columns: Sequence[str]) -> Lookup | Choice | None:
        if self._condition is None:
            return None
        return way_of(self._table, self._condition, columns, self._partitions, self._snapshot.version_words)[0]

    def _chosen(self, choice: Lookup | Choice, columns: Sequence[str]) -> Iterator[ScanBatch] | None:
        """Yield the rows of the keys or ranges of a choice, before the condition is tested; None: use a full scan."""
        if isinstance(choice, Choice):
            return self._by_index(choice.index, choice.ranges, None, columns)
        numbers = self._table.numbers_of(self._partitions)
        found = look_up_in(self._snapshot, self._table, choice, columns, numbers)
        return found if found is None or self._progress is None else self._noted(found, self._progress)

    def _noted(self, found: Iterator[ScanBatch], progress: Progress) -> Iterator[ScanBatch]:
        meter = snapshot_reads.Meter(progress, -1, "rows")
        for batch in found:
            yield batch
            meter.done += batch.count
            meter.advance(0)

    def _by_index(
        self, index: StoredIndex, ranges: Sequence[Bounds], limit: int | None, columns: Sequence[str]
    ) -> Iterator[ScanBatch]:
        """Yield the rows of disjoint ranges; a `limit` needs a single range."""
        for bounds in ranges:
            place = (self._snapshot, self._table, index, bounds, self._asked.reverse)
            yield from IndexScan(*place, limit, columns, self._numbers(), self._progress).batches()

    def _rows_of(self, columns: Sequence[str], limit: int | None) -> Iterator[ScanBatch]:
        """Yield the rows before the condition is applied."""
        if self._index is not None:
            return self._by_index(self._index, self._read_ranges(), limit, columns)
        place = (self._snapshot, self._table, columns, limit, self._numbers())
        return snapshot_reads.scan(*place, progress=self._progress)

    def count(self, column: str | Expression | None = None) -> int:
        """Return the number of rows; with a column, of rows that have no NULL in it."""
        if column is None and self._condition is None and self._index is None and self._limit is None:
            return snapshot_reads.count(self._snapshot, self._table, self._table.numbers_of(self._partitions))
        return super().count(column)


@has_calls_of("snapshot table")
@types_memory_errors("__len__")
class SnapshotTable(TableReads):
    """One table of a snapshot, with the reading calls of a `TableHandle`. An index is one that existed when the
    snapshot was opened.

    Every call raises SnapshotTooOld after the snapshot was dropped, SnapshotClosed after it was closed, and StoreFailed
    after the store was closed or has failed. A call that reads a disk column raises PageDamaged for a damaged page. A
    call with `where` also raises as `TableHandle.scan`, an aggregate as `Scan.aggregate`.

    `progress` of a scan is called with (pages read, pages in all, "pages"), for a scan by an index with (rows read, -1,
    "rows").

    Examples:
        >>> with db.snapshot() as snapshot:
        ...     item = snapshot["item"]
        ...     len(item), item[2].name, [row.id for row in item.scan(where=tm.col("stock") > 5)]
        ...     item.count(where=tm.col("stock") > 4), item.sum("stock"), item.min("stock"), item.max("stock")
        ...     item.mean("stock"), item.aggregate(rows=("count",), total=("sum", "stock"))
        ...     item.to_arrow(["name"], where=tm.col("id") == 1).to_pylist()
        ...     item.to_pandas().shape, item.to_numpy()["stock"].max().item()
        (3, 'cup', [1])
        (2, 15, 0, 10)
        (5.0, Row(rows=3, total=15))
        [{'name': 'pen'}]
        ((3, 3), 10)
    """

    __slots__ = ("_snapshot", "_table")

    def __init__(self, snapshot: Snapshot, table: Table) -> None:
        self._snapshot = snapshot
        self._table = table

    @property
    def definition(self) -> TableDefinition:
        return self._table.definition

    @described(TableReads.get)
    def get(self, key: Any, *, index: str | None = None) -> Row | None:
        row: Row | None = None
        if index is None:
            row = snapshot_reads.get(self._snapshot, self._table, key)
            return row
        self._snapshot.check()
        table, unique = self._table, self._table.unique(index)
        lookups = one_key(unique.tree.shape, self.name, key)
        entries, offsets, count = read_keys_in(self._snapshot, table, unique, lookups, table.format.has_disk)
        if count:
            row = table.format.decode_row(entries.data.cast("B"), int(offsets[0]))
        return row

    @described(TableReads.get_many)
    def get_many(
        self,
        keys: Any,
        columns: Sequence[str] | None = None,
        *,
        index: str | None = None,
        missing: Missing = DROP,
    ) -> pa.RecordBatch:
        table = self._table
        self._snapshot.check()
        if missing != DROP:
            get = partial(self.get_many, index=index)
            return in_place(get, table.definition, keys, columns, index, missing)
        if index is not None:
            unique = table.unique(index)
            lookups = encode_unique_keys(table, unique, keys)
            found = read_keys_in(self._snapshot, table, unique, lookups, table.format.needs_disk(columns))
        else:
            encoded = encode_keys(table.format, keys)
            found = snapshot_reads.read_keys(self._snapshot, table, encoded, table.format.needs_disk(columns))
        return decode_entries(table.format, *found, columns)

    def _scan(self, asked: ScanAsked) -> SnapshotScan:
        self._snapshot.check()
        return SnapshotScan(self._snapshot, self._table, asked)

    def __len__(self) -> int:
        return self.scan().count()

    def __repr__(self) -> str:
        return f"<tidemark table {self.name} at epoch {self._snapshot.epoch}>"
