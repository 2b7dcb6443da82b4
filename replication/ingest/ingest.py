"""Ingest of a source: connect, check, copy if requested, follow, and connect again after a lost connection.

Every start continues from the row of the source in the store (`source_position.py`), never from memory. So it makes no
difference whether a connection was lost, or the process ended or crashed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import (
    MemoryExhausted,
    PeerRefused,
    PeerTimeout,
    Retryable,
    SchemaInvalid,
    StorageFull,
)
from tidemark.replication.ingest import copy, source_position
from tidemark.replication.ingest.address import COPY, CURRENT, Address, Filter
from tidemark.replication.ingest.applier import Applier
from tidemark.replication.ingest.checks import check_keys, check_server_id, check_settings
from tidemark.replication.ingest.client import BinlogStream, Client, TableChanged
from tidemark.replication.ingest.prefetch import Prefetch
from tidemark.replication.ingest.schema import Schema, make_missing
from tidemark.replication.ingest.source_position import INGEST_TABLE, SourcePosition, read_source_position
from tidemark.replication.ingest.transactions import TransactionReader

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store

_log = logging.getLogger("tidemark.ingest")

PAUSE_FIRST_S = 0.1
PAUSE_LONGEST_S = 30.0


@dataclass(frozen=True)
class IngestOptions:
    """How a source is replicated.

    server_id: this side's, 1 to 2³² − 1, different from that of any replica of the source. source: the name of the row
    that keeps the position; the address if "". start: where to begin the first time, COPY, CURRENT or (file, position);
    None requires an existing row. once: end at the end of the binlog instead of waiting for more. tolerates: accept
    missing and existing rows. skipped: (file, position) of statements to skip.
    """

    server_id: int
    source: str = ""
    start: str | tuple[str, int] | None = None
    wanted: Filter = field(default_factory=Filter)
    once: bool = False
    tolerates: bool = False
    skipped: frozenset[tuple[str, int]] = frozenset()

    def __post_init__(self) -> None:
        check_server_id(self.server_id)
        if isinstance(self.start, str) and self.start not in (CURRENT, COPY):
            raise SchemaInvalid(f"start must be {CURRENT!r}, {COPY!r} or (file, position), got {self.start!r}")


class Ingest:
    """One source and one store. One thread calls `run`; any thread may call `stop` and `status`."""

    def __init__(
        self,
        db: Schema,
        store: Store,
        address: Address,
        options: IngestOptions,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        """progress: called after each group of transactions and each batch of a copy with (rows since this object was
        created, -1, "rows").
        """
        self._db, self._store = db, store
        self._address, self._options = address, options
        self.source = options.source or address.shown
        self._progress = progress
        self._stop = threading.Event()
        self._stream: BinlogStream | None = None
        self._prefetch: Prefetch | None = None
        self._state = "stopped"
        self._source_position: SourcePosition | None = None
        self._rows = 0
        self._seen_s = 0
        self._reconnects = 0
        self._last_error = ""

    def run(self) -> None:
        """Replicate from the source until `stop`, or with `once` to the end of its binlog. Durable on return:
        everything, as the store's durability says.

        Once it has connected, it retries after a lost connection or a Retryable error, without limit. A full store is
        not retried, because it needs an operator. Raises: MemoryExhausted, StorageFull, PeerRefused,
        PeerUnauthenticated, PositionLost, Unsupported, BinlogDamaged, DuplicateKey, RowNotFound, ValueOutOfRange,
        TableExists, StoreFailed; PeerTimeout if the server is unreachable at the first attempt.
        """
        attempt = 0
        is_known = False
        try:
            while not self._stop.is_set():
                before = self._source_position
                try:
                    self._state = "connecting"
                    with Client(self._address) as client:
                        is_known = True
                        self._prepare(client)
                    self._follow()
                    return
                except (PeerTimeout, Retryable, TableChanged) as error:
                    if not is_known or isinstance(error, (MemoryExhausted, StorageFull)):
                        raise
                    if self._stop.is_set():
                        return
                    self._last_error = error.message
                    self._reconnects += 1
                    attempt = 1 if self._source_position != before else attempt + 1
                    pause_s = min(PAUSE_LONGEST_S, PAUSE_FIRST_S * (1 << min(attempt - 1, 16)))
                    _log.warning("%s: %s; trying again in %.1f s", self.source, error.message, pause_s)
                    self._stop.wait(pause_s)
        finally:
            self._state = "stopped"

    def stop(self) -> None:
        """Make `run` return soon; any thread may call it. The next `run` fetches uncommitted changes again. A second
        call does nothing.
        """
        self._stop.set()
        stream = self._stream
        if stream is not None:
            stream.close()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def status(self) -> dict[str, Any]:
        """Return state, file, position, GTID, counts, and the lag in seconds."""
        at = self._source_position
        prefetch = self._prefetch
        waiting = 0 if prefetch is None else prefetch.waiting_bytes
        is_behind = waiting > 0 and self._seen_s
        return {
            "source": self.source,
            "state": self._state,
            "file": "" if at is None else at.file,
            "position": 0 if at is None else at.position,
            "gtid": "" if at is None else at.gtid,
            "transactions": 0 if at is None else at.transactions,
            "changed_rows": 0 if at is None else at.changed_rows,
            "seconds_behind": max(0.0, self._store.clock.wall_us() / 1e6 - self._seen_s) if is_behind else 0.0,
            "waiting_bytes": waiting,
            "reconnects": self._reconnects,
            "last_error": self._last_error,
        }

    # --- before the stream -----------------------------------------------------------------------
    def _prepare(self, client: Client) -> None:
        """Check the server, and read or create the row of the source. Raises: PeerRefused, Unsupported,
        SchemaInvalid.
        """
        server_id = check_settings(self._address.shown, client.variables(), self._options.server_id)
        make_missing(INGEST_TABLE, self._db, self._store)
        found = read_source_position(self._store, self.source)
        if found is not None and found.server_id != server_id:
            raise PeerRefused(
                f"{self._address.shown} has server id {server_id}, and {self.source!r} was {found.server_id}: positions"
                " of one server mean nothing at another; give this one a name of its own",
                server_id=server_id,
            )
        self._source_position = found
        if found is None or found.state == source_position.COPYING:
            self._begin(client, server_id, found)

    def _begin(self, client: Client, server_id: int, found: SourcePosition | None) -> None:
        """Create the row of a new source, or repeat an incomplete copy."""
        options = self._options
        start = COPY if found is not None else options.start
        check_keys(copy.tables_of(client, options.wanted))
        if start is None:
            raise SchemaInvalid(
                f"the store knows no source {self.source!r}; say where to begin: with a copy, where the binlog ends"
                " now, or at a position",
                source=self.source,
            )
        if start == COPY:
            self._state = "copying"
            work = copy.Copy(client, self._db, self._store, options.wanted, self._count)
            self._source_position = work.run(
                found or SourcePosition(self.source, server_id, "", 0, state=source_position.COPYING)
            )
            return
        if isinstance(start, tuple):
            file, position = start
        else:
            file, position = copy.current_position(client)
        made = SourcePosition(self.source, server_id, file, position)
        made.save(self._store)
        self._source_position = made

    def _count(self, rows: int) -> None:
        self._rows += rows
        if self._progress is not None:
            self._progress(self._rows, -1, "rows")

    # --- the stream ------------------------------------------------------------------------------
    def _follow(self) -> None:
        """Apply events from the position in the row of the source."""
        options, at = self._options, self._source_position
        assert at is not None
        stream = BinlogStream(self._address, options.server_id, at.file, at.position, options.once)
        self._stream = stream
        prefetch = self._prefetch = Prefetch(stream.events(), stream.close)
        applier = Applier(self._store, self._db, at, options.wanted, options.tolerates, options.skipped)
        try:
            if self._stop.is_set():
                return
            self._state = "streaming"
            self._apply(prefetch, TransactionReader(at.file, at.position, at.file_created_s), applier)
        finally:
            prefetch.close()
            applier.roll_back()
            self._prefetch = self._stream = None

    def _apply(self, prefetch: Prefetch, reader: TransactionReader, applier: Applier) -> None:
        while not self._stop.is_set():
            raw = prefetch.next()
            if raw is None:
                break
            step = reader.step(raw)
            if not applier.source_position.file_created_s and applier.is_idle:
                applier.begin_in(reader.file, reader.created_s)
            if step is not None:
                applier.step(step)
            self._seen_s = reader.timestamp_s
            if prefetch.is_empty:
                applier.flush()
            self._note(applier)
        applier.flush()
        self._note(applier)

    def _note(self, applier: Applier) -> None:
        before, self._source_position = self._source_position, applier.source_position
        if before is not None and applier.source_position.changed_rows != before.changed_rows:
            self._count(applier.source_position.changed_rows - before.changed_rows)
