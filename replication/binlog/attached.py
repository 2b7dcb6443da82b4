"""The binlog of an open store: caught up with the log before the store opens, then an epoch behind it.

Order, for each epoch: closed and durable in the REDO log; in the binlog, synced by `sync_binlog`'s rule; its rows of
`ndb_binlog_index` committed. Local checkpoints are published when the binlog has their epoch (`reach`). What a crash
leaves between these steps is found by the next opening: the binlog's own end says which epoch is its last, the log has
those behind it, and rows of the index are made again from the files.

Invariants: (I1) The binlog has every epoch that is to be logged, once, in order, from where it begins: the last one in
its files is where the log is gone on with. (I2) A store that is opened without its binlog, or goes
back to an earlier epoch, leaves the mark `stopped` before anything commits. With the mark what is between is not there
to be had: an incident says so, and an epoch transaction without rows from where on the binlog is whole again. It is
durable before the mark goes. (I3) The file with the last epoch is never purged.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.errors import LimitExceeded, Rejected, Retryable, StorageFull, TooManyFiles
from engine.kernels.before_images import set_capture
from engine.layout import binlog as b
from engine.options import parse_size
from engine.owner import call_owner
from engine.row_format import RowFormat
from replication.binlog.found_epochs import Tail, epochs_between, last_epoch
from replication.binlog.images import BinlogOptions
from replication.binlog.index import Position
from replication.binlog.index_table import IndexTable, made_table
from replication.binlog.injector import Injector, InjectorOptions, WrittenEpoch
from replication.binlog.purge import expired, oversized
from replication.binlog.row_plan import TablePlans
from replication.binlog.table_rules import TableRules, replication_rows
from replication.binlog.writer import BinlogWriter, WriterOptions
from replication.schema_events import SchemaRow, schema_row, write_schema_row
from replication.settings.options import BY_NAME, Effect, settings
from replication.system_tables import NDB_APPLY_STATUS, NDB_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.file_protocol import Files
    from engine.log.follower import EpochChanges, LogFollower
    from engine.schema import TableDefinition
    from engine.store import Store
    from replication.binlog.epoch_counts import IndexRow
    from replication.status_report import ReplicationStatus

_log = logging.getLogger("tidemark.binlog")

FOLDER = "binlog"
STOPPED = "binlog/stopped"
_INDEX_ROWS_AT_ONCE = 1_000


def leave_mark(files: Files) -> None:
    """Note that what the store does, or forgets, now is not in its binlog, if it has one. Durable: on return."""
    if files.exists(FOLDER) and not files.exists(STOPPED):
        files.close(files.create(STOPPED))
        files.sync_directory(FOLDER)


class AttachedBinlog:
    """The binlog of one open store. Every method may be called by any thread."""

    def __init__(
        self,
        store: Store,
        files: Files,
        values: Mapping[str, Any],
        follower: LogFollower,
        lcp_epoch: int = 0,
        is_new: bool = False,
    ) -> None:
        """`values` are those of `options.settings` with a `log_bin`; `lcp_epoch` is that of the newest local
        checkpoint, `is_new` whether the store was made just now. The log and the epochs are those of a store that is
        about to open.

        Durable: the epochs the binlog lacked, on return. Raises: Rejected, BinlogDamaged, FileMissing, StorageFull.
        """
        self._store = store
        self._files = files
        self._values = dict(values)
        self._lcp_epoch = lcp_epoch
        self._turn = threading.RLock()  # who writes epochs
        self.on_written: list[Callable[[], None]] = []
        self.on_epoch: list[Callable[[int], None]] = []
        self.newest_epoch = 0  # that stands in the files
        self._pins: dict[object, Position] = {}
        self._counters = dict.fromkeys(("epochs", "incidents", "statements", "rows"), 0)
        self._written = self._handled = self._latest_rows = 0
        self._pending: list[WrittenEpoch] = []  # epochs without rows in the index
        self._schema_rows: dict[str, SchemaRow] = {}  # of `ndb_schema`, by table, not yet written
        self._index_lags = False  # there are more of them in the files
        is_apart = self._prepare(is_new)
        status = made_table(store, NDB_APPLY_STATUS)
        made_table(store, NDB_SCHEMA)
        self._index = IndexTable(store) if self._values["log_binlog_index"] else None
        self.rules = TableRules(self._values, lambda: replication_rows(store))
        self.writer = BinlogWriter(files, store.clock, FOLDER, values["log_bin"], self._writer_options())
        plans = TablePlans(RowFormat(status.definition))
        self._injector = Injector(self.writer, self._injector_options(), self.rules, plans)
        self._indexed = self.writer.end
        self._epoch_file = self.writer.end.file
        self._catch_up(is_apart)
        self._follower = follower
        store.follows_log = True
        store.capture_of = call_owner(self._capture_of)
        for table in list(store.tables.values()):
            set_capture(store.mem, table.address, self._capture_of(table.definition))
        store.on_publish = call_owner(self.reach)
        self._write_epochs(store.epochs.current - 1, store.log.durable_lsn)
        self._write_index()
        self._write_schema_rows()

    # --- opening ----------------------------------------------------------------------------------
    def _prepare(self, is_new: bool) -> bool:
        """Make the folder; whether the store has changed, or may have, without its binlog. Durable: the mark."""
        files = self._files
        if not files.exists(FOLDER):
            if is_new:
                return False
            files.make_directory(FOLDER)
            files.sync_directory("")
            leave_mark(files)
        own = f"{self._values['log_bin']}.index"
        for name in files.list(FOLDER):
            if name.endswith(".index") and name != own:
                raise Rejected(
                    f"the binlog of this store is {name.removesuffix('.index')!r}; open it with that log_bin, or remove"
                    " the folder binlog",
                    option="log_bin",
                )
        return files.exists(STOPPED)

    def _catch_up(self, is_apart: bool) -> None:
        """Find the end of what is there, and begin anew if the log does not lead on from it."""
        newest = self._store.epochs.current - 1
        tail, lost_epoch = self._find_tail()
        has_gap = tail.epoch < lost_epoch <= self._lcp_epoch
        if is_apart or has_gap:
            if tail.epoch or has_gap:
                what = "epochs were lost" if has_gap else "changes were not logged"
                self.incident(f"{what} behind epoch {tail.epoch}; copy the replica anew")
            written = self._injector.write_empty(newest)
            self.writer.sync()
            self._note(written)
            self._write_index()
            if self._files.exists(STOPPED):
                self._files.unlink(STOPPED)
                self._files.sync_directory(FOLDER)
            self._written = self._handled = newest
            return
        self._written = self._handled = self.newest_epoch = tail.epoch
        self._injector.passed_over = deque(tail.statements)

    def _find_tail(self) -> tuple[Tail, int]:
        """(end of the binlog as found, last epoch of the index table if the files have lost it, else 0). Rows of the
        index that are missing are made.
        """
        recovered = self.writer.recovered
        if recovered is None:
            return Tail(0, None, ()), 0
        own_id, base = self._values["server_id"], self.writer.index.base
        if self._index is None:
            tail = last_epoch(self._files, FOLDER, base, recovered, own_id)
            self._epoch_file = tail.end.file if tail.end is not None else self._epoch_file
            return tail, 0
        known, lost_epoch = self._known_end(self._index, recovered)
        if known is None:
            tail, start = Tail(0, None, ()), Position(self.writer.index.names[0], b.FIRST_POSITION)
        else:
            tail, start = Tail(known[0], known[1], ()), known[1]
        for each in epochs_between(self._files, FOLDER, base, start, recovered, own_id):
            tail = Tail(each.epoch, each.end, ()) if each.epoch else tail._replace(statements=each.statements)
        if tail.end is not None:
            self._epoch_file = tail.end.file
        self._indexed = start
        self._index_lags = tail.end not in (None, start)
        self._write_index()
        self._sweep_index(self._index)
        return tail, lost_epoch

    def _known_end(self, table: IndexTable, recovered: Position) -> tuple[tuple[int, Position] | None, int]:
        """(last epoch of the index that the files have, with its end; last one they have not, else 0). Rows of what a
        crash took from a file that was not synced are deleted: nothing is ever written there again.
        """
        index, lost_epoch = self.writer.index, 0
        while True:
            known = table.newest()
            if known is None:
                return None, lost_epoch
            end = known[1]
            held = 0
            if end.file in index.names:
                held = recovered.position if end.file == recovered.file else self._files.size(index.path(end.file))
            if end.position <= held:
                return known, lost_epoch
            lost_epoch = max(lost_epoch, known[0])
            try:
                table.delete_behind(Position(end.file, held))
            except Retryable as error:
                # A full log, for one: the store must open all the same, and all rows are made again when it has room.
                _log.warning("ndb_binlog_index names places that are gone: %s", error)
                return None, lost_epoch

    def _sweep_index(self, table: IndexTable) -> None:
        """Delete rows of files that were purged."""
        try:
            for name in table.files() - set(self.writer.index.names):
                table.delete_file(name)
        except Retryable as error:
            _log.warning("rows of purged files stay in ndb_binlog_index: %s", error)

    # --- options ----------------------------------------------------------------------------------
    def _writer_options(self) -> WriterOptions:
        values = self._values
        return WriterOptions(
            server_id=values["server_id"],
            sync_binlog=values["sync_binlog"],
            file_bytes=parse_size("max_binlog_size", values["max_binlog_size"]),
            images=BinlogOptions(
                updated_only=values["log_updated_only"],
                update_as_write=values["log_update_as_write"],
                update_minimal=values["log_update_as_minimal"],
                empty_update=values["log_empty_update"],
                transaction_id=values["log_transaction_id"],
                v1_row_events=values["log_bin_use_v1_row_events"],
            ),
        )

    def _injector_options(self) -> InjectorOptions:
        return InjectorOptions.of(self._values, parse_size("binlog_cache_size", self._values["binlog_cache_size"]))

    def set_option(self, name: str, value: object) -> None:
        """Give an option of the binlog another value, which counts from when the table of options says.

        Raises: SchemaInvalid, Rejected for one that counts from the next opening.
        """
        values = settings({**self._values, name: value})
        if BY_NAME[name].effect is Effect.OPEN or name == "log_binlog_index":
            raise Rejected(
                f"option {name} counts from the next opening; close the store and give it there", option=name
            )
        with self._turn:
            is_other_version = values["log_bin_use_v1_row_events"] != self._values["log_bin_use_v1_row_events"]
            if is_other_version:
                self.writer.rotate()
            self._values.update(values)
            self.writer.options = self._writer_options()
            self._injector.options = self._injector_options()

    @property
    def tracks_reads(self) -> bool:
        """Whether transactions that do not say so themselves have their exclusive reads logged."""
        return bool(self._values["log_exclusive_reads"])

    def _capture_of(self, definition: TableDefinition) -> int:
        """A table is made or opened: what its operations leave in the log."""
        return self.rules.set_up(definition).capture

    # --- epochs -----------------------------------------------------------------------------------
    def write_closed_epochs(self) -> int:
        """Write the closed epochs that are not in the binlog yet, and their rows of the index; the newest one it is
        done with. Durable: as `sync_binlog` says. Raises: StorageFull, and the next call goes on where this one had to
        stop; StoreFailed.
        """
        with self._turn:
            self._follow()
            self._write_index()
            self._write_schema_rows()
            return self._handled

    def reach(self, epoch: int) -> None:
        """Return when the binlog holds durably what is to be logged up to an epoch: a local checkpoint of it is about
        to be published. Nothing is written to the store, which may have no room until that is done. Raises:
        StorageFull, StoreFailed.
        """
        if self._handled < epoch:
            with self._turn:
                self._follow()
        self.writer.sync()

    def _follow(self) -> None:
        store = self._store
        with store.latch:
            closed, ticket = store.epochs.newest_closed, store.log.sequence - 1
        if closed > self._handled:
            store.log.wait(ticket)
            self._write_epochs(closed, store.log.durable_lsn)

    def _write_epochs(self, closed: int, durable_lsn: int) -> None:
        newest_file = self.writer.end.file
        for changes in self._follower.epochs(closed, durable_lsn, self._written):
            written = self._write(changes)
            self._written = self._handled = changes.epoch
            if written is not None:
                self._note(written)
        if self._values["log_empty_epochs"] and closed > self._written:
            self._note(self._injector.write_empty(closed))
        self._written = self._handled = max(closed, self._written)
        if self.writer.end.file != newest_file:
            self._expire()
        for call in list(self.on_written):
            call()

    def _write(self, changes: EpochChanges) -> WrittenEpoch | None:
        try:
            return self._injector.write(changes)
        except LimitExceeded as error:
            # It will never fit: who replicates must know, and the others must go on.
            self.incident(f"epoch {changes.epoch} cannot be logged: {error.message}")
            for _ in changes.parts():
                pass  # the follower goes on behind what was read
            return self._injector.write_empty(changes.epoch, changes.wall_us)

    def _note(self, written: WrittenEpoch) -> None:
        rows = sum(map(sum, written.counts.rows.values()))
        self._counters["epochs"] += 1
        self.newest_epoch = written.epoch
        self._counters["rows"] += rows
        self._counters["statements"] += written.counts.statements
        self._epoch_file = written.end.file
        for said in written.schema:
            node_id = said.author or self._values["server_id"]
            self._schema_rows[said.table] = schema_row(said, written.epoch, node_id)
        if len(self._pending) < _INDEX_ROWS_AT_ONCE:
            self._pending.append(written)
        else:
            self._index_lags = True  # they are made from the files
        if rows:
            self._latest_rows = written.epoch
        for call in list(self.on_epoch):
            call(written.epoch)
        if self._values["extra_logging"] > 1:
            _log.info("epoch %d: %d rows, %s to %s", written.epoch, rows, tuple(written.start), tuple(written.end))

    def incident(self, message: str) -> None:
        """Write that something is missing from here on; a replica stops there. Durable: on return.

        Raises: StorageFull.
        """
        with self._turn:
            self.writer.incident(message)
            self.writer.sync()
            self._counters["incidents"] += 1
        _log.warning("incident in the binlog: %s", message)

    @property
    def base(self) -> str:
        """The base name of its files."""
        return self.writer.index.base

    @property
    def handled_epoch(self) -> int:
        """The newest closed epoch whose changes, if any are logged, stand before `writer.end`."""
        return self._handled

    def durable_end(self) -> Position:
        """Where what may be served ends. Durable: all before it, on return."""
        self.writer.sync()
        return self.writer.synced

    # --- the index --------------------------------------------------------------------------------
    def _write_index(self) -> None:
        """Write the rows of epochs that have none. Where the store refuses now, the next call does it."""
        if self._index is None:
            self._pending = []
            return
        own_id, log_orig = self._values["server_id"], self._values["log_orig"]
        try:
            if self._index_lags:
                self._remake_index(own_id, log_orig)
            else:
                rows: list[IndexRow] = []
                for each in self._pending:
                    rows += each.counts.index_rows(each.epoch, each.start, each.end, own_id, log_orig)
                self._index.write(rows)
        except Retryable as error:
            _log.warning("ndb_binlog_index falls behind: %s", error)
            return
        self._pending, self._index_lags = [], False
        self._indexed = self.writer.end

    def _write_schema_rows(self) -> None:
        try:
            while self._schema_rows:
                name, row = next(iter(self._schema_rows.items()))
                write_schema_row(self._store, row)
                del self._schema_rows[name]
        except Retryable as error:
            _log.warning("ndb_schema falls behind: %s", error)

    def _remake_index(self, own_id: int, log_orig: bool) -> None:
        assert self._index is not None
        rows: list[IndexRow] = []
        end = self.writer.end
        for each in epochs_between(self._files, FOLDER, self.writer.index.base, self._indexed, end, own_id):
            if each.epoch:
                rows += each.counts.index_rows(each.epoch, each.start, each.end, own_id, log_orig)
            if len(rows) >= _INDEX_ROWS_AT_ONCE:
                self._index.write(rows)
                self._indexed, rows = each.end, []
        self._index.write(rows)

    # --- files ------------------------------------------------------------------------------------
    def rotate(self) -> None:
        """End the file and begin the next one. Durable: everything so far. Raises: StorageFull."""
        with self._turn:
            self.writer.rotate()
            self._expire()

    def pin(self, holder: object, place: Position) -> None:
        """Keep the file of a place, and those behind it, until `unpin`, or the holder pins another place."""
        self._pins[holder] = place

    def unpin(self, holder: object) -> None:
        """The holder needs no file any more."""
        self._pins.pop(holder, None)

    def _kept(self) -> str:
        """The oldest file that is needed: by a channel, or by the next restart."""
        index = self.writer.index
        needed = [self._epoch_file, *(place.file for place in list(self._pins.values()))]
        return min((name for name in needed if name in index.names), key=index.place_of)

    def purge(self, to: str | None = None, before_s: int | None = None, bytes_max: int | None = None) -> list[str]:
        """Remove old files, and their rows of `ndb_binlog_index`: those before the file `to`, those ended before
        `before_s` (seconds since 1970), or as many as leave no more than `bytes_max`. What a channel or a restart needs
        stays. Returns the names. Durable: on return. Raises: Rejected for a file there is not.
        """
        with self._turn:
            index, keep = self.writer.index, self._kept()
            wanted = [] if to is None else [index.names[min(index.place_of(to), index.place_of(keep))]]
            if before_s is not None:
                wanted.append(expired(self._files, index, before_s, keep))
            if bytes_max is not None:
                wanted.append(oversized(self._files, index, bytes_max, keep))
            if not wanted:
                return []
            gone = index.purge_to(max(wanted, key=index.place_of))
            if gone and self._index is not None:
                self._sweep_index(self._index)
            return gone

    def _expire(self) -> None:
        if self._values["binlog_expire_s"]:
            self.purge(before_s=self._store.clock.wall_us() // 1_000_000 - self._values["binlog_expire_s"])

    # --- life -------------------------------------------------------------------------------------
    def close(self) -> None:
        """Write what is closed and end the file. Durable: everything, or the next opening catches up."""
        with self._turn:
            try:
                self.write_closed_epochs()
            except (StorageFull, TooManyFiles) as error:
                _log.warning("the binlog lacks epochs, the next opening writes them: %s", error)
            self.writer.close()

    def register(self, status: ReplicationStatus) -> None:
        """Let the status variables of the binlog be what they are here."""
        for name in (
            "latest_epoch",
            "latest_trans_epoch",
            "latest_received_binlog_epoch",
            "latest_handled_binlog_epoch",
        ):
            status.gauge(name, functools.partial(self._gauge, name))

    def _gauge(self, name: str) -> int:
        return int(self.counters()[name])

    def counters(self) -> dict[str, Any]:
        """Counters for `status()`."""
        end, latest = self.writer.end, max(self._store.epochs.newest_closed, self._handled)
        return {
            "file": end.file,
            "position": end.position,
            "files": len(self.writer.index.names),
            **self._counters,
            "latest_epoch": latest,
            "latest_trans_epoch": self._latest_rows,
            "latest_received_binlog_epoch": self._written,
            "latest_handled_binlog_epoch": self._handled,
            "index_lags": self._index_lags,
        }
