"""Changes after a backup in another log than the archive: the interface between a restore and that log's reader.

A binlog is read two floors above, so the caller passes its reader in. The reader plans first, and rejects every change
that it cannot apply before anything is written. Then it applies the changes by ordinary transactions of the restored
store, which is fully open but still has the mark `restoring`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.engine.access.batch_operations import decode_entries
from tidemark.engine.rows.row_format import RowFormat
from tidemark.recovery.backup.chain import Chain

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.recovery.backup.manifest import Manifest
    from tidemark.recovery.backup.segments import Until


@dataclass(frozen=True)
class RestoredState:
    """The state restored from backup and archive, at the end of `epoch`. `is_schema_known`: no archived log is applied,
    so the tables are those of the backup.
    """

    manifest: Manifest
    place: Files
    epoch: int
    is_schema_known: bool

    def rows(self, name: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns of a table without disk columns as it was backed up; nothing if there is no such table.

        Raises: BackupDamaged and the like.
        """
        for table in self.manifest.tables:
            if table.name == name:
                yield from self._rows(table, columns)

    def _rows(self, table: TableDefinition, columns: list[str]) -> Iterator[pa.RecordBatch]:
        row_format = RowFormat(table)
        for (table_id, _), levels in self.manifest.levels.items():
            if table_id == table.table_id:
                for batch in Chain(self.place, self.manifest.store, table, levels).batches():
                    yield decode_entries(row_format, batch.entries, batch.offsets, batch.count, columns)


@dataclass(frozen=True)
class LaterPlan:
    """The changes to apply.

    `epochs` is their number of epochs, from `first_epoch` to `epoch`; all three are 0 if there are none. `reach`: the
    last epoch that could be applied. `wall_us`: when the first and the last epoch were closed. `files`: each name, with
    the bytes to read. `where`: a position that only the reader interprets.
    """

    reach: int
    epochs: int = 0
    first_epoch: int = 0
    epoch: int = 0
    wall_us: tuple[int, int] = (0, 0)
    files: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    where: Any = None

    @property
    def size_bytes(self) -> int:
        return sum(size_bytes for _, size_bytes in self.files)

    def to_dict(self) -> dict[str, Any]:
        return {
            "first_epoch": self.first_epoch,
            "first_wall_us": self.wall_us[0],
            "last_epoch": self.epoch,
            "last_wall_us": self.wall_us[1],
            "epochs": self.epochs,
            "files": [{"file": name, "bytes": size_bytes} for name, size_bytes in self.files],
        }


@dataclass
class LaterReport:
    """The changes that were applied."""

    epochs: int = 0
    rows: int = 0
    statements: int = 0


@dataclass(frozen=True)
class ApplyContext:
    """The store as restored so far, and callbacks for the reader that applies changes. It calls `make_room` between
    transactions, with True if a log was full, and `advance` with the number of epochs done.
    """

    store: Store
    make_room: Callable[[bool], None]
    advance: Callable[[int], None] = field(default=lambda epochs: None)


class LaterChanges(Protocol):
    """A log of changes that continues after a backup."""

    def plan(self, restored_state: RestoredState, until: Until) -> LaterPlan:
        """Return the changes after `restored_state`, up to `until`.

        Raises: an error for any change that cannot be applied; nothing has been written.
        """
        ...

    def apply(self, plan: LaterPlan, context: ApplyContext) -> LaterReport:
        """Apply the plan, epoch by epoch. Each keeps its epoch number if the store is not past it yet. Raises: an error
        if changes do not fit the store, and the errors of its transactions; the restore is then abandoned.
        """
        ...
