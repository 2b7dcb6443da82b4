"""Changes after a backup in another log than the archive: the interface between a restore and that log's reader.

A binlog is read two floors above, so its reader is passed in. It plans first, and refuses then whatever it has to
refuse. It applies the changes by ordinary transactions of the store as restored so far, which is open whole but still
has the mark `restoring`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.engine.access.batch_operations import decode_entries
from tidemark.engine.rows.row_format import RowFormat
from tidemark.recovery.verification.digest_files import BackupFragment

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.recovery.backup.manifest import Manifest
    from tidemark.recovery.backup.segments import Until


@dataclass(frozen=True)
class Standing:
    """The end of backup and archive: the end of `epoch`. `is_schema_known`: the tables are those of the backup."""

    manifest: Manifest
    place: Files
    epoch: int
    is_schema_known: bool

    def rows(self, name: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns of a table of memory columns as it was backed up; nothing if there is no such table.

        Raises: BackupDamaged and the like.
        """
        for table in self.manifest.tables:
            if table.name == name:
                yield from self._rows(table, columns)

    def _rows(self, table: TableDefinition, columns: list[str]) -> Iterator[pa.RecordBatch]:
        row_format = RowFormat(table)
        for (table_id, _), levels in self.manifest.levels.items():
            if table_id == table.table_id:
                for batch in BackupFragment(self.place, self.manifest.store, table, levels).batches():
                    yield decode_entries(row_format, batch.entries, batch.offsets, batch.count, columns)


@dataclass(frozen=True)
class LaterPlan:
    """The changes to apply: the number of `epochs`, from `first_epoch` to `epoch`, all 0 if there are none; `reach` is
    the last epoch that could be applied. `wall_us`: when those two were closed; `files`: names, and bytes to read of
    each; `where`: the reader's own position.
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
        """The number of bytes to read."""
        return sum(size_bytes for _, size_bytes in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values."""
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
class Applying:
    """The store as restored so far, and the callbacks of a reader that applies changes: `make_room`, between
    transactions, with True if there was no room, and `advance`, with the number of epochs done.
    """

    store: Store
    make_room: Callable[[bool], None]
    advance: Callable[[int], None] = field(default=lambda epochs: None)


class LaterChanges(Protocol):
    """A log of changes that continues after a backup."""

    def plan(self, standing: Standing, until: Until) -> LaterPlan:
        """Return the changes after `standing`, up to `until`.

        Raises: an error for any change that cannot be applied; nothing has been written.
        """
        ...

    def apply(self, plan: LaterPlan, applying: Applying) -> LaterReport:
        """Apply the plan, epoch after epoch, each in an epoch of its own number if that is not over yet. Raises: an
        error if changes do not fit the store, and the errors of its transactions; the restore is then abandoned.
        """
        ...
