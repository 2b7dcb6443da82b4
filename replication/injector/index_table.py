"""The rows of `mysql.ndb_binlog_index`: written, looked up, deleted with their files.

They are written by ordinary transactions that are not in the binlog and do not wait for the disk: rows lost in a crash
are rebuilt from the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidemark.engine.access import batch_operations
from tidemark.engine.programs.expressions import col
from tidemark.engine.queries import conditional_changes
from tidemark.engine.queries.conditions import Condition
from tidemark.engine.queries.program_scans import aggregate, scan_where
from tidemark.engine.rows.column_output import decode_rows
from tidemark.replication.binlog.position import Position
from tidemark.replication.settings.any_value import NO_LOGGING
from tidemark.replication.settings.system_tables import NDB_BINLOG_INDEX, made_table, one_transaction

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.replication.injector.epoch_counts import IndexRow


def found_rows(store: Store, column: str, value: int) -> list[dict[str, Any]]:
    """Return the rows of `ndb_binlog_index` with this value in a column, as committed."""
    table = made_table(store, NDB_BINLOG_INDEX)
    condition = Condition(table.definition, col(column) == value)
    rows: list[dict[str, Any]] = []
    columns = [each.name for each in table.definition.columns]
    for batch in scan_where(table, None, condition, None, columns):
        rows += decode_rows(table.format, batch.entries, batch.offsets, batch.count, columns).to_pylist()
    return rows


class IndexTable:
    """`ndb_binlog_index` of one store."""

    def __init__(self, store: Store) -> None:
        """Raises: MemoryExhausted, RedoOverloaded, StoreFailed."""
        self._store = store
        self._table = made_table(store, NDB_BINLOG_INDEX)

    def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run `work` in one transaction that the binlog omits. Raises: Retryable errors; nothing has changed then."""
        with one_transaction(self._store, NO_LOGGING) as txn:
            return work(txn, self._table, *arguments)

    def write(self, rows: Iterable[IndexRow]) -> None:
        """Insert rows, or overwrite them. Durable with the epoch that commits them, not on return."""
        listed = list(rows)
        if listed:
            self._run(batch_operations.write_many, listed)

    def newest(self) -> tuple[int, Position] | None:
        """Return the newest epoch that has a row, and the end of this epoch in the files; None without rows."""
        (newest,) = aggregate(self._table, None, [("max", "epoch")], None)
        if newest is None:
            return None
        rows = found_rows(self._store, "epoch", newest)
        return (newest, Position(rows[0]["next_file"], rows[0]["next_position"])) if rows else None

    def files(self) -> set[str]:
        """Return the names of the files in which the listed epochs begin."""
        found: set[str] = set()
        for batch in batch_operations.scan(self._table, None, columns=["File"]):
            names = decode_rows(self._table.format, batch.entries, batch.offsets, batch.count, ["File"])
            found.update(names.column(0).unique().to_pylist())
        return found

    def delete_file(self, name: str) -> None:
        """Delete the rows of a removed file."""
        self._run(conditional_changes.delete_where, col("File") == name)

    def delete_behind(self, end: Position) -> None:
        """Delete the rows of epochs that end in the file of `end`, past its position."""
        self._run(
            conditional_changes.delete_where, (col("next_file") == end.file) & (col("next_position") > end.position)
        )
