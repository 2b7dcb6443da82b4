"""Where a simulated store meets replication: the applier of its channel, and its binlog as a replica reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.sites.tables import Rows
    from tidemark.replication.applier.applier import Applied
    from tidemark.replication.binlog.position import Position
    from tidemark.replication.channel.endpoint import StoreApplier
    from tidemark.replication.channel.relay_reader import RelayTransaction
    from tidemark.replication.channel.source import SourceBinlog
    from tidemark.replication.wire.messages import Settings, Start


class ObservedApplier:
    """The applier of a channel, with a call before and after each transaction; `told` gets what `before` returned."""

    def __init__(
        self,
        inner: StoreApplier,
        before: Callable[[], Rows],
        on_applied: Callable[[ObservedApplier, RelayTransaction, Applied, Rows], None],
    ) -> None:
        self._before = before
        self._on_applied = on_applied
        self.inner = inner

    def start(self) -> None:
        """Read the settings again."""
        self.inner.start()

    def apply(self, transaction: RelayTransaction) -> None:
        """Apply one epoch transaction. Raises: see `Applier.apply`."""
        rows = self._before()
        self._on_applied(self, transaction, self.inner.apply(transaction), rows)

    def statement(self, text: str, database: str, server_id: int) -> None:
        """Apply one schema change. Raises: see `apply_statement`."""
        self.inner.statement(text, database, server_id)


class ChunkedBinlog:
    """The binlog of a store for one replica, read in small pieces, so that links may be cut anywhere."""

    def __init__(self, inner: SourceBinlog, chunk_bytes: int) -> None:
        self._inner = inner
        self._chunk_bytes = chunk_bytes

    def locate(self, start: Start) -> Position:
        """See `SourceBinlog.locate`."""
        return self._inner.locate(start)

    def read(self, at: Position, bytes_max: int) -> tuple[Position, bytes] | None:
        """See `SourceBinlog.read`."""
        return self._inner.read(at, min(bytes_max, self._chunk_bytes))

    def newest(self) -> tuple[int, Position]:
        """See `SourceBinlog.newest`."""
        return self._inner.newest()

    def settings(self) -> Settings:
        """See `SourceBinlog.settings`."""
        return self._inner.settings()

    def copy(self, request: bytes) -> Iterator[bytes]:
        """See `SourceBinlog.copy`."""
        return self._inner.copy(request)

    def close(self) -> None:
        """See `SourceBinlog.close`."""
        self._inner.close()
