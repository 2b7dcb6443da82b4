"""Write a binlog: epoch transactions of any size through a buffer of bounded size, and files that follow one another.

Order of writes of a transaction: its events, in order, in pieces as the buffer fills; after its COMMIT the rest of the
buffer; a sync after every `sync_binlog` transactions. Until the COMMIT is written whole, the file ends in a torn
transaction, which the next opening truncates; `end` and `synced` only ever name ends of transactions.

Order of writes of a rotation: sync; new file, sync, its directory; index; ROTATE into the old file, sync; its in-use
flag cleared, sync. A crash in between leaves two files marked as in use, the older one whole except for ROTATE.

Row events of one statement share the table maps before them. The last row event is marked (ROWS_STATEMENT_END), so one
event is always held back. A statement ends when a table appears that it did not announce, and when it grows long,
because tools keep a whole statement in memory.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import InvariantBroken, StorageFull
from tidemark.engine.base.options import parse_size
from tidemark.engine.files.protocol import File, Files
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog import history
from tidemark.replication.binlog.history import History
from tidemark.replication.binlog.images import BinlogOptions, RowBatch, Run, runs
from tidemark.replication.binlog.index import BinlogIndex
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.recovery import Recovered, recover
from tidemark.replication.binlog.row_plan import NO_PLAN, BodyWriter, TablePlans
from tidemark.replication.binlog.scan import end_use
from tidemark.replication.binlog.table_map import TableMap, table_map

_log = logging.getLogger("tidemark.binlog")

# Bytes of rows in one event; a larger row has an event to itself.
EVENT_ROWS_BYTES = 8 << 10
STATEMENT_BYTES = 1 << 20
FILE_BYTES = 1 << 30
_BUFFER_BYTES = 1 << 20
_UTF8MB4 = 45  # utf8mb4_general_ci, for the text of statements
STATEMENT_STATUS = struct.pack("<BHHH", b.STATUS_CHARSET, _UTF8MB4, _UTF8MB4, _UTF8MB4)


@dataclass(frozen=True)
class WriterOptions:
    """How files are written. `sync_binlog`: transactions between syncs, 0 to sync only at rotations. `has_gtids`:
    whether transactions get numbers.
    """

    server_id: int = 1
    sync_binlog: int = 1
    file_bytes: int = FILE_BYTES
    images: BinlogOptions = BinlogOptions()
    has_gtids: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> WriterOptions:
        """Return the options for the values of `options.settings`."""
        return cls(
            server_id=values["server_id"],
            sync_binlog=values["sync_binlog"],
            file_bytes=parse_size("max_binlog_size", values["max_binlog_size"]),
            images=BinlogOptions(
                empty_update=values["log_empty_update"],
                transaction_id=values["log_transaction_id"],
                v1_row_events=values["log_bin_use_v1_row_events"],
            ),
            has_gtids=values["log_gtids"],
        )


class Written(NamedTuple):
    """The place of a transaction: its first byte, and the byte after its last."""

    start: Position
    end: Position


class SyncedEnd(NamedTuple):
    """A synced end of transactions, the number of the last one before it (0 for none), and its history."""

    end: Position
    number: int
    history: History | None


class BinlogWriter:
    """The open end of a binlog. One thread at a time may call it; any thread may call `sync`."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        folder: str = "binlog",
        base: str = "binlog",
        options: WriterOptions | None = None,
        durable: Position | None = None,
    ) -> None:
        """Recover the existing files and begin a new one. `durable` is a position in the binlog that the store knows to
        be durable.

        Durable on return: the truncation of a torn transaction, and the new file.
        Raises: BinlogDamaged, FileMissing, Rejected, StorageFull.
        """
        self.files = files
        self._clock = clock
        self.options = options or WriterOptions()
        self.index = BinlogIndex(files, folder, base)
        found = recover(files, self.index, durable)
        self.recovered: Position | None = None if found is None else found.end
        self._bodies = BodyWriter()
        self._maps: dict[int, TableMap] = {}
        self._file: File
        self._name: str
        self.buffer = bytearray()
        self._unsynced = 0
        self._start: int | None = None  # of the open transaction
        self._is_numbered = False  # the open transaction
        self.history: History | None = None
        self.number = 0  # of the last transaction of the history, or before its first one
        self._continue(found)
        # For another thread that calls `sync`, the current file and `end` change in one step.
        self._turn = threading.RLock()
        self._begin_file(created_s=self._now_s())
        self.end = self.synced = Position(self._name, self._written)

    # --- files ------------------------------------------------------------------------------------
    def _now_s(self) -> int:
        return self._clock.wall_us() // 1_000_000

    def _continue(self, found: Recovered | None) -> None:
        """Find the timeline and the history of the recovered files, or begin others. Durable on return."""
        has_gtids = self.options.has_gtids
        if found is None:
            is_first = not history.is_there(self.files, self.index.folder)
            self._begin_history(has_gtids, None if is_first else 0, "" if is_first else None)
            return
        kept = history.read(self.files, self.index.folder)
        if kept is None or bool(kept.first) != has_gtids or (has_gtids and found.has_unnumbered):
            self._begin_history(has_gtids, found.number, None if kept is None else kept.timeline)
        else:
            self._take_history(kept, found.number_in(kept.source))

    def _begin_history(self, has_gtids: bool, above: int | None, timeline: str | None) -> None:
        """above: the highest number known from an earlier history, None for the first one of a store."""
        first = 0 if not has_gtids else 1 if above is None else history.first_after(above, self._clock)
        self._take_history(history.begin(self.files, self.index.folder, self._clock, first, timeline))

    def _take_history(self, kept: History, number: int | None = None) -> None:
        """Continue a history after a number. None: without one in the newest file, nothing was written since it was
        begun.
        """
        self.index.timeline = kept.timeline
        self.history = kept if kept.first else None
        self.number = 0 if not kept.first else kept.first - 1 if number is None else number

    def begin_history(self, has_gtids: bool, is_other_future: bool = False) -> None:
        """Begin another history with the next file, which is begun. has_gtids: off: one without numbers.
        is_other_future: begin another timeline too, because changes are missing before it.

        Durable on return: everything so far, and that no number of the earlier history follows, and with
        `is_other_future` no file of the earlier timeline. Raises: StorageFull, after which transactions continue as
        before in this file; the next opening begins another history.
        """
        self._need_no_transaction("begin a history")
        with self._turn:
            before = self.history, self.number, self.index.timeline
            try:
                self._begin_history(has_gtids, self.number, None if is_other_future else self.index.timeline)
                self.rotate()
            except StorageFull:
                self.history, self.number, self.index.timeline = before
                raise

    def served(self) -> SyncedEnd:
        """Sync the file, and return where its transactions end, as one thing. Durable on return: all of them."""
        with self._turn:
            self.sync()
            return SyncedEnd(self.synced, self.number, self.history)

    def _begin_file(self, created_s: int) -> None:
        """Create the next file and continue in it. Durable on return: the file and its name in the index.

        Raises: StorageFull; nothing has changed then.
        """
        name = self.index.next_name
        head = bytearray(b.MAGIC)
        stamp = {"timestamp_s": self._now_s(), "server_id": self.options.server_id}
        head += e.frame(e.FormatDescription(created_s=created_s), len(head), flags=b.FLAG_IN_USE, **stamp)
        previous = e.PreviousGtids()
        if self.history is not None:
            previous = e.PreviousGtids.through(self.history.source, self.number)
        head += e.frame(previous, len(head), flags=b.FLAG_IGNORABLE, **stamp)
        self._file, self._name = self.index.begin(head), name
        self._written, self._sequence, self._unsynced = len(head), 0, 0

    def _end_file(self, last: e.Event) -> None:
        """End the file with event `last`, if there is space for it. Durable on return: all transactions; with `last`,
        also the cleared in-use flag.
        """
        end = self._written
        try:
            self._append(last)
            self._flush()
            is_ended = True
        except StorageFull:
            # The file still ends with a whole transaction; the next opening ends it.
            self.buffer = bytearray()
            self.files.truncate(self._file, end)
            is_ended = False
        self.files.fdatasync(self._file)
        if is_ended:
            end_use(self.files, self._file)
        self.files.close(self._file)

    def rotate(self) -> None:
        """End the file and begin the next. Durable on return: everything.

        Raises: StorageFull; writing continues in the old file then.
        """
        self._need_no_transaction("rotate")
        with self._turn:
            self.sync()
            old, written = self._file, self._written
            self._begin_file(created_s=0)
            # Only now, after the index names the new file. A crash before this leaves an old file without ROTATE, which
            # the next opening ends.
            new, begun = self._file, self._written
            self._file, self._written = old, written
            self._end_file(e.Rotate(self._name))
            self._file, self._written = new, begun
            # Last, because a reader up to this position expects the ROTATE in the old file.
            self.end = self.synced = Position(self._name, begun)

    def close(self) -> None:
        """End the file with STOP. Durable on return: everything."""
        self._need_no_transaction("close")
        self._end_file(e.Stop())
        self.synced = self.end

    def sync(self) -> None:
        """Sync the file. Durable on return: all transactions so far."""
        with self._turn:
            if self.synced != self.end:
                self.files.fdatasync(self._file)
                self._unsynced = 0
                self.synced = self.end

    # --- bytes ------------------------------------------------------------------------------------
    @property
    def _position(self) -> int:
        return self._written + len(self.buffer)

    def _append(self, event: e.Event, server_id: int = 0) -> int:
        """Frame an event and buffer it; return its size in bytes."""
        timestamp_s = self._now_s() if self._start is None else self._timestamp_s
        server_id = server_id or self.options.server_id
        raw = e.frame(event, self._position, timestamp_s=timestamp_s, server_id=server_id)
        self.buffer += raw
        if len(self.buffer) >= _BUFFER_BYTES:
            self._flush()
        return len(raw)

    def _flush(self) -> None:
        if self.buffer:
            self.files.pwrite(self._file, self._written, self.buffer)
            self._written += len(self.buffer)
            self.buffer = bytearray()

    # --- transactions -----------------------------------------------------------------------------
    def _need_no_transaction(self, what: str) -> None:
        if self._start is not None:
            raise InvariantBroken(f"the binlog cannot {what} within a transaction; report this")

    def _open(self, commit_us: int = 0) -> None:
        self._need_no_transaction("begin a transaction")
        commit_us = commit_us or self._clock.wall_us()
        self._timestamp_s = commit_us // 1_000_000
        self._start = self._position
        self._sequence_before = self._sequence
        self._held: tuple[e.Rows, int] | None = None
        self._announced: set[int] = set()
        self._statement_bytes = 0
        self._sequence += 1
        self._is_numbered = self.history is not None
        source, number = (bytes(16), 0) if self.history is None else (self.history.source, self.number + 1)
        self._append(e.Gtid(self._sequence, self._sequence - 1, commit_us, source, number))

    def begin(self, tables: Iterable[TablePlans] = (), status: RowBatch | None = None, commit_us: int = 0) -> None:
        """Begin an epoch transaction. `tables` are the tables of its rows, as many as are already known; `status` is
        the row of `ndb_apply_status`, written first; `commit_us` is the commit time, 0 for now. Durable on return:
        nothing.
        """
        self._open(commit_us)
        self._append(e.Query("BEGIN"))
        self._tables = {id(each): each for each in tables}
        if status is not None:
            self._tables[id(status.plans)] = status.plans
            self.append(status)

    def append(self, batch: RowBatch) -> int:
        """Write the rows of a batch; return the number of rows logged. Memory: one buffer, and the largest row.

        Durable on return: nothing. Raises: StorageFull (call `roll_back`), PageDamaged, LimitExceeded, IoFailed.
        """
        if self._start is None:
            raise InvariantBroken("rows were given to a binlog without an open transaction; report this")
        logged = 0
        for run in runs(batch, self.options.images):
            self._write_run(batch, run)
            logged += run.rows
        return logged

    def _write_run(self, batch: RowBatch, run: Run) -> None:
        definition = batch.plans.definition
        before, after = run.before or NO_PLAN, run.after or NO_PLAN
        for octets, ends in self._bodies.bodies(definition.name, batch.rows, before, after, run.first, run.rows):
            begin = first = 0
            while first < len(ends):
                # As many rows as fit, at least one.
                last = max(first + 1, int(ends.searchsorted(begin + EVENT_ROWS_BYTES, "right")))
                end = int(ends[last - 1])
                self._write_rows(batch.plans, run, bytes(octets[begin:end]))
                begin, first = end, last

    def _write_rows(self, plans: TablePlans, run: Run, body: bytes) -> None:
        if self._statement_bytes >= STATEMENT_BYTES or id(plans) not in self._announced:
            self._announce(plans)
        images = self.options.images
        event = e.Rows(
            run.kind,
            map_id(plans),
            len(plans.rows),
            None if run.before is None else run.before.bitmap,
            None if run.after is None else run.after.bitmap,
            body,
            transaction_id=run.transaction_id if images.transaction_id and run.transaction_id else None,
            conflict_flags=run.conflict_flags,
            version=1 if images.v1_row_events else 2,
        )
        self._write_held(is_statement_end=False)
        self._held = (event, run.server_id)

    def _announce(self, plans: TablePlans) -> None:
        """End the statement, and begin the next with the maps of all known tables."""
        self._write_held(is_statement_end=True)
        self._tables.setdefault(id(plans), plans)
        for each in self._tables.values():
            self._append(self._map_of(each))
        self._announced = set(self._tables)
        self._statement_bytes = 0

    def _map_of(self, plans: TablePlans) -> TableMap:
        number = map_id(plans)
        made = self._maps.get(number)
        if made is None:
            if len(self._maps) >= 4_096:
                self._maps.clear()
            made = self._maps[number] = table_map(plans.definition, number)
        return made

    def _write_held(self, is_statement_end: bool) -> None:
        """Write the row event that is held back. is_statement_end: mark it as the last of its statement."""
        if self._held is None:
            return
        event, server_id = self._held
        self._held = None
        if is_statement_end:
            event = replace(event, flags=event.flags | b.ROWS_STATEMENT_END)
        self._statement_bytes += self._append(event, server_id)

    def commit(self) -> Written:
        """End the transaction; return its place. Durable on return: as `sync_binlog` says; all of it after `sync`.

        Raises: StorageFull (call `roll_back`), IoFailed, SyncFailed.
        """
        if self._start is None:
            raise InvariantBroken("a binlog without an open transaction cannot commit; report this")
        self._write_held(is_statement_end=True)
        self._append(e.Query("COMMIT"))
        return self._finish()

    def _finish(self) -> Written:
        assert self._start is not None
        start = Position(self._name, self._start)
        self._flush()
        self._start = None
        with self._turn:
            self.end = Position(self._name, self._written)
            self.number += self._is_numbered
            self._is_numbered = False
            self._unsynced += 1
        written = Written(start, self.end)
        if self.options.sync_binlog and self._unsynced >= self.options.sync_binlog:
            self.sync()
        if self._written >= self.options.file_bytes:
            try:
                self.rotate()
            except StorageFull as error:
                # The transaction is kept; the next one retries.
                _log.warning("the binlog cannot begin its next file: %s", error)
        return written

    def roll_back(self) -> None:
        """Roll back the open transaction. Durable on return: nothing; a crash leaves the torn transaction or none of
        it.
        """
        if self._start is None:
            return
        self.buffer = bytearray()
        self._held = None
        if self.files.size(self._file) > self._start:
            self.files.truncate(self._file, self._start)
        self._written = self._start
        self._sequence = self._sequence_before
        self._is_numbered = False
        self._start = None

    def statement(self, text: str, database: str = "", commit_us: int = 0, server_id: int = 0) -> Written:
        """Write a schema change as a separate transaction, with the id of another server if it came from there.

        Durable on return: as for `commit`. Raises: StorageFull, after which nothing of it is in the binlog; IoFailed,
        SyncFailed.
        """
        self._open(commit_us)
        return self._guarded(e.Query(text, database, STATEMENT_STATUS), server_id)

    def incident(self, message: str) -> Written:
        """Write an incident: changes are missing from here on, and a replica stops there. Durable on return and
        raised: as for `statement`.
        """
        self._need_no_transaction("write an incident")
        self._start = self._position
        self._sequence_before = self._sequence
        self._timestamp_s = self._now_s()
        return self._guarded(e.Incident(message))

    def _guarded(self, event: e.Event, server_id: int = 0) -> Written:
        try:
            self._append(event, server_id)
            return self._finish()
        except StorageFull:
            self.roll_back()
            raise


def map_id(plans: TablePlans) -> int:
    """Return the number of a version of a table in table maps: 31 bits of table id above 16 bits of version."""
    return plans.definition.table_id << 16 | plans.definition.version & 0xFFFF
