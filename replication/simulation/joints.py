"""A simulated store where it meets the rooms of replication: its positions, its applier, its binlog for a replica."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from replication.applier.applier import Applied, Applier, ApplierOptions
from replication.applier.setups import rows_of
from replication.channel import StatusRow
from replication.schema_statements import apply_statement
from replication.source import BinlogEnd, IndexRow, SourceBinlog
from replication.status import Counters
from replication.system_tables import NDB_APPLY_STATUS, NDB_BINLOG_INDEX

if TYPE_CHECKING:
    from engine.store import Store
    from replication.binlog.index import Position as Place
    from replication.protocol.messages import Position, Start
    from replication.relay_reader import RelayTransaction
    from replication.settings.setup import SiteSettings


class StorePositions:
    """`mysql.ndb_apply_status` of a store, as `channel.ApplyStatus`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def rows(self) -> list[StatusRow]:
        """All of them, as committed."""
        return [StatusRow(**row) for row in rows_of(self._store.table(NDB_APPLY_STATUS))]

    def clear(self) -> None:
        """Nobody resets a channel in the simulation."""
        raise NotImplementedError

    def make_durable(self) -> None:
        """Everything applied so far is durable on return."""
        self._store.log.flush()


class StoreApplier:
    """What brings transactions into a store, as `channel.Applier`; each that was applied is told."""

    def __init__(
        self,
        store: Store,
        settings: SiteSettings,
        options: ApplierOptions,
        told: Callable[[StoreApplier, RelayTransaction, Applied], None],
    ) -> None:
        self._store = store
        self._told = told
        self.counters = Counters()
        self.applier = Applier(store, settings, options, self.counters)

    def start(self) -> None:
        """Read settings anew."""
        self.applier.start()

    def apply(self, transaction: RelayTransaction) -> None:
        """One epoch transaction. Raises: see `Applier.apply`."""
        # Either kind of transaction has what is asked of it: its events, its place, who wrote it.
        self._told(self, transaction, self.applier.apply(transaction))  # type: ignore[arg-type]

    def statement(self, text: str, database: str, server_id: int) -> None:
        """One change of the schema. Raises: see `apply_statement`."""
        apply_statement(self._store, database, text, server_id)


class _IndexRows:
    def __init__(self, store: Store) -> None:
        self._store = store

    def _rows(self) -> Iterable[IndexRow]:
        for row in rows_of(self._store.table(NDB_BINLOG_INDEX)):
            yield IndexRow(
                *(row[name] for name in ("epoch", "File", "Position", "next_file", "next_position")),
                *(row[name] for name in ("orig_server_id", "orig_epoch")),
            )

    def of_epoch(self, epoch: int) -> Iterable[IndexRow]:
        return [row for row in self._rows() if row.epoch == epoch]

    def of_origin(self, server_id: int, epoch: int) -> Iterable[IndexRow]:
        return [row for row in self._rows() if row.orig_server_id == server_id and row.orig_epoch >= epoch]


class ChunkedBinlog:
    """The binlog of a store for one replica, given out in small pieces, so that links cut it anywhere."""

    def __init__(self, db: Any, server_id: int, chunk_bytes: int) -> None:
        binlog, store = db.binlog, db._store
        holder = object()

        def end() -> BinlogEnd:
            epoch = binlog.counters()["latest_handled_binlog_epoch"]
            return BinlogEnd(epoch, binlog.durable_end())

        def keep(place: Place | None) -> None:
            if place is None:
                binlog.unpin(holder)
            else:
                binlog.pin(holder, place)

        self._chunk_bytes = chunk_bytes
        self._inner = SourceBinlog(
            db._files,
            server_id,
            end,
            index_rows=_IndexRows(store),
            closed_epoch=lambda: int(store.epochs.newest_closed),
            keep=keep,
        )

    def locate(self, start: Start) -> Position:
        """See `SourceBinlog.locate`."""
        return self._inner.locate(start)

    def read(self, at: Position, bytes_max: int) -> tuple[Position, bytes] | None:
        """See `SourceBinlog.read`."""
        return self._inner.read(at, min(bytes_max, self._chunk_bytes))

    def newest(self) -> tuple[int, Position]:
        """See `SourceBinlog.newest`."""
        return self._inner.newest()

    def close(self) -> None:
        """See `SourceBinlog.close`."""
        self._inner.close()
