"""Row events of the store's own binlog as Arrow batches in the types of the store.

Columns have the names of the table at that time. If the table has, or once had, a column of that name whose values the
binlog writes in the same form, the type is that column's. Otherwise it is the store's type for MySQL's type (Int8 for
TINYINT, DateTime for DATETIME).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tidemark.engine.schema.names import is_system_table
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.reader import JoinedRows, StatementMaps, epoch_in, joined_rows, present
from tidemark.replication.binlog.row_plan import BodyReader
from tidemark.replication.settings.any_value import FLAG_READ, FLAG_REFRESH

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.types import ColumnType
    from tidemark.replication.applier.transactions import EpochTransaction
    from tidemark.replication.binlog.reader import ReadEvent
    from tidemark.replication.binlog.table_map import TableMap

OPERATIONS: Final = {e.WRITE: "write", e.UPDATE: "update", e.DELETE: "delete"}
BODY_BYTES = 1 << 20
HELD_BYTES = 1 << 20  # of events: an epoch with more is read from its file each time


@dataclass(frozen=True)
class ChangedRows:
    """Rows of one table with the same kind of change.

    `operation`: "write" (the row is now `after`: inserted, or updated where `binlog_type` logs updates as writes),
    "update", "delete". `before` and `after` have the columns that were logged, None if the binlog has no such image;
    `columns` are all columns of the table at that time, `types` the types of those that were logged. `server_id` is the
    site that first made the change.
    """

    table: str
    operation: str
    columns: tuple[str, ...]
    before: pa.RecordBatch | None
    after: pa.RecordBatch | None
    server_id: int
    primary_key: tuple[str, ...]
    types: Mapping[str, ColumnType]

    @property
    def rows(self) -> int:
        image = self.before if self.after is None else self.after
        return 0 if image is None else int(image.num_rows)

    def to_arrow(self, epoch: int) -> pa.Table:
        """Return `epoch`, `operation`, `before` and `after`, as `EpochChanges.to_arrow` does."""
        import pyarrow as pa

        columns = {
            "epoch": pa.array(np.full(self.rows, epoch, dtype=np.int64)),
            "operation": pa.array([self.operation] * self.rows, pa.string()),
        }
        for name, image in (("before", self.before), ("after", self.after)):
            if image is not None:
                # NULL where `to_arrow` concatenates these rows with rows that lack the column.
                fields = [field.with_nullable(True) for field in image.schema]
                columns[name] = pa.StructArray.from_arrays(image.columns, fields=fields)
            else:
                columns[name] = pa.nulls(self.rows)
        return pa.table(columns)


@dataclass(frozen=True)
class RowReader:
    """Builds batches from epoch transactions. One thread at a time may call it."""

    # Returns the definition of a table, with its types, by its qualified name, None if there is none.
    _definition_of: Callable[[str], TableDefinition | None]
    _tables: frozenset[str] | None  # qualified names; None for all except system tables
    _server_id: int | None  # the server whose epochs count, None for any

    def look(self, events: Iterator[ReadEvent]) -> tuple[int, bool]:
        """Return (epoch of a transaction, whether it has wanted rows), without decoding the rows."""
        maps = StatementMaps()
        epoch: int | None = None
        has_rows = False
        try:
            for read in events:
                maps.observe(read.event)
                if not isinstance(read.event, e.Rows):
                    continue
                if epoch is None:
                    epoch = epoch_in(maps, read.event, read.at, self._server_id)
                has_rows |= self._is_wanted(maps.of(read.event, read.at), read.event, read.header.server_id)
                if has_rows and epoch is not None:
                    break
        finally:
            close_iterator(events)
        return epoch or 0, has_rows

    def read(self, events: Iterator[ReadEvent]) -> Iterator[ChangedRows]:
        """Yield the wanted rows of one transaction.

        Raises: BinlogDamaged, ValueOutOfRange, Unsupported, and the errors of reading.
        """
        try:
            for run in joined_rows(events, self._is_wanted, BODY_BYTES):
                yield from self._batches(run)
        finally:
            close_iterator(events)

    def _is_wanted(self, table: TableMap, rows: e.Rows, server_id: int) -> bool:
        """Whether rows are changes of a requested table: tracked reads and refreshed rows are no changes."""
        if not rows.body or rows.conflict_flags & (FLAG_READ | FLAG_REFRESH):
            return False
        return not is_system_table(table.name) if self._tables is None else table.name in self._tables

    def _types(self, table: TableMap) -> tuple[tuple[str, ...], dict[int, ColumnType]]:
        """Return (names of all columns, types of the store by position, where known)."""
        definition = self._definition_of(table.name)
        known: dict[str, ColumnType] = {}
        if definition is not None:
            known = {column.name: column.type for _, column in definition.physical}
            known.update({column.name: column.type for column in definition.columns})
        names = tuple(column.name or f"_{place}" for place, column in enumerate(table.columns))
        return names, {place: known[name] for place, name in enumerate(names) if name in known}

    def _batches(self, run: JoinedRows) -> Iterator[ChangedRows]:
        import pyarrow as pa

        names, targets = self._types(run.map)
        reader = BodyReader(run.map.types, *present(run.first), targets)
        nullable = [column.nullable for column in run.map.columns]
        types = {names[place]: kind for place, kind in reader.kinds.items()}

        def image_of(is_there: bool, columns: dict[int, pa.Array]) -> pa.RecordBatch | None:
            if not is_there:
                return None
            arrays = [as_stored(array, reader.kinds[place]) for place, array in columns.items()]
            fields = [
                pa.field(names[place], array.type, nullable[place])
                for place, array in zip(columns, arrays, strict=True)
            ]
            return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

        for chunk in reader.chunks(run.body, run.origin):
            yield ChangedRows(
                run.map.name,
                OPERATIONS[run.first.kind],
                names,
                image_of(run.first.before is not None, chunk.before),
                image_of(run.first.after is not None, chunk.after),
                run.server_id,
                tuple(names[place] for place in run.map.primary_key),
                types,
            )


def definitions_in(store: Store) -> Callable[[str], TableDefinition | None]:
    """Return a function that gives the current definition of a table of an open store by name."""

    def definition_of(name: str) -> TableDefinition | None:
        found = store.tables.by_name.get(name)
        return None if found is None else found.definition

    return definition_of


def events_of(transaction: EpochTransaction) -> Callable[[], Iterator[ReadEvent]]:
    """Return a function that yields the events of a transaction from the start at each call: from memory if they have
    at most `HELD_BYTES`, else from the file. The position of the reader does not change.
    """
    held: list[ReadEvent] = []
    size_bytes = 0
    for read in transaction.events():
        held.append(read)
        size_bytes += len(read.raw)
        if size_bytes > HELD_BYTES:
            return transaction.events
    return lambda: iter(held)


def close_iterator(iterator: Any) -> None:
    """Close an iterator, if it can be closed."""
    if hasattr(iterator, "close"):
        iterator.close()


def as_stored(array: pa.Array, kind: ColumnType) -> pa.Array:
    """Return a column of a binlog in the Arrow type that the store returns to callers."""
    wanted = kind.arrow_type()
    return array if array.type == wanted else array.cast(wanted)
