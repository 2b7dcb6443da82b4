"""What one served store tells: its identity, the files of its binlog as far as they may be served, its tables and rows.

Nothing here changes the store.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.engine.access import batch_operations, snapshot_reads
from tidemark.engine.schema.names import is_system_table
from tidemark.replication.binlog.events import UPDATE
from tidemark.replication.binlog.images import Present
from tidemark.replication.binlog.index import read_index
from tidemark.replication.injector.mark import FOLDER
from tidemark.replication.mysql_source.row_texts import texts_of

if TYPE_CHECKING:
    from tidemark.engine.access.snapshot import Snapshot
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.replication.binlog.position import Position
    from tidemark.replication.channel.endpoint import Endpoint
    from tidemark.replication.injector.attached import AttachedBinlog
    from tidemark.replication.mysql_source.gtid_sets import GtidSet


class GtidsShown(Protocol):
    """The numbers of transactions of a store with `log_gtids`."""

    @property
    def server_uuid(self) -> uuid.UUID:
        """The UUID of the history."""
        ...

    def executed(self) -> GtidSet:
        """Return the GTIDs of all transactions that may be served, and of those that were purged."""
        ...

    def purged(self) -> GtidSet:
        """Return the GTIDs of the transactions that are no longer in the files."""
        ...

    def domain_position(self, place: tuple[str, int] | None = None) -> str:
        """Return MariaDB's GTID of the last transaction before a place, None: before the end; "" without one."""
        ...


class SnapshotShown(Protocol):
    """All tables as at the end of an epoch, and where the binlog has that end."""

    @property
    def tables(self) -> Snapshot: ...

    @property
    def place(self) -> tuple[str, int]: ...

    @property
    def executed(self) -> GtidSet | None:
        """The GTIDs of all transactions before the place; None without `log_gtids`."""
        ...

    @property
    def domain_position(self) -> str: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Served:
    """One store as a server of MySQL's protocol tells of it. Any thread may call it."""

    store: Store
    binlog: AttachedBinlog
    log_files: Files
    options: Mapping[str, Any]
    server_id: int
    store_uuid: uuid.UUID
    gtids: GtidsShown | None = None
    take_snapshot: Callable[[], SnapshotShown] | None = None

    @classmethod
    def of(
        cls,
        endpoint: Endpoint,
        gtids: GtidsShown | None = None,
        take_snapshot: Callable[[], SnapshotShown] | None = None,
    ) -> Served:
        """Return what an open store tells. Raises: Rejected without a binlog or a server id."""
        return cls(
            endpoint.store,
            endpoint.log(),
            endpoint.files,
            endpoint.opened.values,
            endpoint.site.server_id,
            uuid.UUID(bytes=endpoint.opened.identity[0]),
            gtids,
            take_snapshot,
        )

    @property
    def version(self) -> str:
        """The version of Tidemark."""
        return str(sys.modules["tidemark"].__version__)  # the package imports modules of replication

    @property
    def server_uuid(self) -> uuid.UUID:
        return self.store_uuid if self.gtids is None else self.gtids.server_uuid

    @property
    def clock(self) -> Clock:
        return self.store.clock

    # --- the binlog -------------------------------------------------------------------------------
    def end(self) -> tuple[str, int]:
        """Return the file and the position up to which the binlog may be served now. Raises: PeerError, StoreFailed."""
        self.binlog.check_servable()
        found: Position = self.binlog.durable_end()
        return found.file, found.position

    def files(self) -> list[tuple[str, int]]:
        """Return the files, oldest first, each with the number of bytes that may be served. Raises: as `end`."""
        last, size = self.end()
        index = read_index(self.log_files, FOLDER, self.binlog.base)
        names = [name for name in index.names if (index.number_of(name) or 0) < (index.number_of(last) or 0)]
        return [*((name, self.log_files.size(index.path(name))) for name in names), (last, size)]

    def row_image_is_full(self) -> bool:
        """Whether updates of all tables that are logged come as updates, with all columns before and after."""
        rules = [self.binlog.rules.rule_of(definition).rule for definition in self.definitions().values()]
        wanted = (UPDATE, Present.FULL, Present.FULL)
        return all((rule.update_kind, rule.update_before, rule.update_after) == wanted for rule in rules if rule)

    # --- tables and rows --------------------------------------------------------------------------
    def definitions(self, snapshot: SnapshotShown | None = None) -> dict[str, TableDefinition]:
        """Return the definitions of the tables by qualified name, in the order of names; no system tables."""
        tables = self.store.tables.by_name if snapshot is None else snapshot.tables.by_name
        return {name: table.definition for name, table in sorted(tables.items()) if not is_system_table(name)}

    def row_count(self, name: str) -> int:
        """Return the number of committed rows of a table, 0 without it."""
        table = self.store.tables.by_name.get(name)
        return 0 if table is None else table.count()

    def rows(
        self, name: str, columns: Sequence[str], snapshot: SnapshotShown | None, limit: int | None = None
    ) -> Iterator[Sequence[bytes | None]]:
        """Yield the rows of a table as texts of the protocol: as in the snapshot; without one, as committed when the
        first row is asked for. Raises: NoSuchTable, SnapshotTooOld, and others as scans.
        """
        if snapshot is None:
            table = self.store.tables.named(name)
            batches = batch_operations.scan(table, None, limit, columns)
        else:
            table = snapshot.tables.table_of(name)
            batches = snapshot_reads.scan(snapshot.tables, table, columns, limit, table.numbers_of(None))
        for batch in batches:
            found = batch_operations.decode_entries(
                table.format, batch.entries, batch.offsets, batch.count, list(dict.fromkeys(columns))
            )
            yield from texts_of(table.definition, found, columns)
