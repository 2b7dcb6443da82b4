"""What one served store tells: its identity, the files of its binlog as far as they may be served, its tables and rows.

Nothing here changes the store.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.batch_operations import decode_entries
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.schema.names import is_system_table
from tidemark.replication.binlog.index import read_index
from tidemark.replication.injector.mark import FOLDER
from tidemark.replication.mysql_source.gtids import Gtids, executed_of
from tidemark.replication.mysql_source.row_texts import check_ascii, row_packets, texts_of
from tidemark.replication.mysql_source.snapshot import ServedSnapshot, ServedSnapshots
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.views import View
    from tidemark.replication.binlog.position import Position
    from tidemark.replication.channel.endpoint import Endpoint
    from tidemark.replication.injector.attached import AttachedBinlog
    from tidemark.replication.mysql_source.gtid_sets import GtidSet
    from tidemark.replication.mysql_source.packets import Message

PIECE_BYTES = 256 << 10


class Served:
    """One store as a server of MySQL's protocol tells of it. Any thread may call it; `close` it after the last call."""

    def __init__(self, store: Store, binlog: AttachedBinlog, server_id: int, store_uuid: uuid.UUID) -> None:
        self._store = store
        self._binlog = binlog
        self._store_uuid = store_uuid
        self.server_id = server_id
        self.clock = store.clock
        self.snapshots = ServedSnapshots(store, binlog)
        self._gtids = Gtids(binlog.writer)

    @classmethod
    def of(cls, endpoint: Endpoint) -> Served:
        """Return what an open store tells. Raises: Rejected without a binlog or a server id."""
        identity = uuid.UUID(bytes=endpoint.opened.identity[0])
        return cls(endpoint.store, endpoint.log(), endpoint.site.server_id, identity)

    def close(self) -> None:
        """Close the snapshots of all clients."""
        self.snapshots.close()

    @property
    def version(self) -> str:
        """The version of Tidemark."""
        return str(sys.modules["tidemark"].__version__)  # the package imports modules of replication

    @property
    def gtids(self) -> Gtids | None:
        """The numbers of transactions, None without `log_gtids`."""
        return None if self._binlog.writer.history is None else self._gtids

    @property
    def server_uuid(self) -> uuid.UUID:
        """The UUID of the history; without numbers, that of the store."""
        return self._store_uuid if self.gtids is None else self.gtids.uuid

    def option(self, name: str) -> Any:
        """Return the present value of an option of the store."""
        return self._binlog.option(name)

    # --- the binlog -------------------------------------------------------------------------------
    def end(self) -> Position:
        """Return the file and the position up to which the binlog may be served now. Raises: PeerError, StoreFailed."""
        return self.end_and_executed()[0]

    def end_and_executed(self) -> tuple[Position, GtidSet | None]:
        """Return the end and the GTIDs of all transactions before it, None without `log_gtids`. Raises: as `end`."""
        self._binlog.check_servable()
        end, number, history = self._binlog.writer.served()
        return end, None if history is None else executed_of(number, history)

    def files(self) -> list[tuple[str, int]]:
        """Return the files, oldest first, each with the number of bytes that may be served. Raises: as `end`."""
        last, size = self.end()
        files = self._binlog.writer.files
        index = read_index(files, FOLDER, self._binlog.base)
        names = index.names[: index.place_of(last)]
        return [*((name, files.size(index.path(name))) for name in names), (last, size)]

    def row_image_is_full(self) -> bool:
        """Whether updates of all tables that are logged come as updates, with all columns before and after."""
        rules = self._binlog.rules
        return all(rules.rule_of(definition).is_whole for definition in self.definitions().values())

    # --- tables and rows --------------------------------------------------------------------------
    def definitions(
        self, snapshot: ServedSnapshot | None = None, with_status: bool = False
    ) -> dict[str, TableDefinition]:
        """Return the definitions of the tables by qualified name, in the order of names; no system tables.
        with_status: but that of the status rows.
        """
        tables = self._store.tables.by_name if snapshot is None else snapshot.rows.by_name
        status = NDB_APPLY_STATUS if with_status else None
        return {
            name: table.definition
            for name, table in sorted(tables.items())
            if name == status or not is_system_table(name)
        }

    def row_count(self, name: str) -> int:
        """Return the number of committed rows of a table, 0 without it."""
        table = self._store.tables.by_name.get(name)
        return 0 if table is None else table.count()

    def rows(
        self, name: str, columns: Sequence[str], snapshot: ServedSnapshot | None, limit: int | None = None
    ) -> StoredRows:
        """Return the rows of a table as texts of the protocol: as in the snapshot; without one, as committed when the
        first row is asked for.
        """
        return StoredRows(self._store, name, columns, snapshot, limit)


class StoredRows:
    """Rows of a table, read while they are taken: by `packets`, or one by one. Both raise NoSuchTable, SnapshotTooOld,
    Refused for a snapshot that is over, and others as scans.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        columns: Sequence[str],
        snapshot: ServedSnapshot | None,
        limit: int | None,
    ) -> None:
        self._store = store
        self._name = name
        self._columns = columns
        self._snapshot = snapshot
        self._limit = limit

    def packets(self, sequence: int, only_ascii: bool = False) -> Iterator[tuple[Message, int]]:
        """Yield the packets of some rows, of about PIECE_BYTES or one row, as parts, and the sequence number after
        them. only_ascii: refuse other text.
        """
        for texts in self._texts(only_ascii):
            found = [row_packets(texts, sequence)]
            sequence = found[0][1]
            del texts
            yield found.pop()  # a large row belongs to the caller alone

    def __iter__(self) -> Iterator[tuple[bytes | None, ...]]:
        for texts in self._texts():
            yield from zip(*(each.to_pylist() for each in texts), strict=True)

    def _texts(self, only_ascii: bool = False) -> Iterator[list[pa.Array]]:
        if self._snapshot is None:
            table = self._store.tables.named(self._name)
            table.check()
            with table.view_for(None) as view:
                yield from self._read(view, table, only_ascii)
        else:
            self._snapshot.check()
            yield from self._read(self._snapshot.rows, self._snapshot.rows.table_of(self._name), only_ascii)

    def _read(self, view: View, table: Table, only_ascii: bool) -> Iterator[list[pa.Array]]:
        columns = list(dict.fromkeys(self._columns))
        rows_max = max(1, PIECE_BYTES // WORD_BYTES // (ENTRY_WORDS + table.format.fixed_words))
        numbers, words = table.numbers_of(None), PIECE_BYTES // WORD_BYTES
        batches = snapshot_reads.scan(view, table, columns, self._limit, numbers, rows_max=rows_max, disk_words=words)
        for batch in batches:
            if self._snapshot is not None:
                self._snapshot.check()
            decoded = decode_entries(table.format, batch.entries, batch.offsets, batch.count, columns)
            del batch
            found = [texts_of(table.definition, decoded, self._columns)]
            del decoded
            if only_ascii:
                check_ascii(table.definition, self._columns, found[0])
            yield found.pop()
