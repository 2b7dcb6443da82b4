"""The binlog of an open store: it catches up with the log before the store opens, then follows it one epoch late.

Order, for each epoch: closed and durable in the REDO log; in the binlog, synced by the rule of `sync_binlog`; its rows
of `ndb_binlog_index` committed. Local checkpoints are published after the binlog has their epoch (`reach`). After a
crash between these steps, the next opening continues: the end of the binlog says which epoch is its last, the log has
the epochs after it, and rows of the index are rebuilt from the files.

Invariants: (I1) From its beginning the binlog has every epoch that is to be logged, once and in order; reading of the
log continues after the last epoch in the binlog files. (I2) A store that is opened without its binlog, or goes back to
an earlier epoch, leaves the mark `stopped` before anything commits. The mark means that the binlog lacks changes: an
incident says so, and an epoch transaction without rows says after which epoch the binlog is whole again. Both are
durable before the mark is removed. (I3) The file with the last epoch is never purged. (I4) At a node of a group the
binlog has nothing that the group has not completed, and the incident and the epoch of (I2) are written with the first
later epoch that the group has completed (ADR 0015).
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import LimitExceeded, NotPrimary, PeerError, Rejected, StorageFull, TooManyFiles
from tidemark.engine.base.ids import gci_of
from tidemark.engine.base.limits import GCI_MAX
from tidemark.engine.base.options import parse_size
from tidemark.engine.base.owner import call_owner
from tidemark.engine.files.durable_files import make_folder
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.names import is_system_table
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.row_plan import TablePlans
from tidemark.replication.binlog.writer import BinlogWriter, SyncedEnd, WriterOptions
from tidemark.replication.injector.found_epochs import Tail, epochs_between, last_epoch
from tidemark.replication.injector.index_table import IndexTable
from tidemark.replication.injector.injector import Injector, InjectorOptions, WrittenEpoch
from tidemark.replication.injector.mark import FOLDER, STOPPED, leave_mark
from tidemark.replication.injector.pending_system_rows import PendingSystemRows
from tidemark.replication.injector.table_rules import TableRules, capture
from tidemark.replication.injector.whole_files import WholeFiles
from tidemark.replication.settings.options import BY_NAME, OF_BINLOG, Effect, check_of_node, settings
from tidemark.replication.settings.system_tables import (
    NDB_APPLY_STATUS,
    NDB_APPLY_STATUS_TABLE,
    NDB_REPLICATION,
    NDB_SCHEMA,
    made_table,
    replication_rows,
    verify,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.follower import EpochChanges, LogFollower
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.replication.settings.status import ReplicationStatus

_log = logging.getLogger("tidemark.binlog")

COMPLETION_POLL_SECONDS = 0.02


class AttachedBinlog:
    """The binlog of one open store. Every method may be called by any thread."""

    def __init__(
        self,
        store: Store,
        files: Files,
        values: Mapping[str, Any],
        follower: LogFollower,
        lcp_epoch: int = 0,
        newest_epoch: int = 0,
        is_new: bool = False,
        completed: Callable[[], int] | None = None,
        seam_epoch: int = 0,
    ) -> None:
        """`values` are those of `options.settings` with a `log_bin`; `lcp_epoch` is the epoch of the newest local
        checkpoint, `newest_epoch` the last epoch in which the store changed, `is_new` whether the store was just
        created. The log and the epochs must be recovered, and the store not open yet. At a node of a group, `completed`
        returns the newest epoch that all its members have, and `seam_epoch` is the epoch through which rows were copied
        without groups of the log, 0 if none were.

        Durable on return: the epochs that the binlog lacked. Raises: Rejected, BinlogDamaged, FileMissing, StorageFull.
        """
        self._store = store
        self._files = files
        self._values = dict(values)
        self._lcp_epoch, self._store_epoch = lcp_epoch, newest_epoch
        self.turn = threading.RLock()  # held by a thread that writes epochs
        self.on_written: list[Callable[[], None]] = []
        self.on_epoch: list[Callable[[int], None]] = []
        self.newest_epoch = 0  # the newest one in the files
        self.pins: dict[object, Position] = {}
        # Holders of pins that `mysql_purge_bytes` limits, and what to call when their file is purged all the same.
        self._limited: dict[object, Callable[[], None]] = {}
        self._counters = dict.fromkeys(("epochs", "incidents", "load_marks", "statements", "rows"), 0)
        self._written = self._handled = self._latest_rows = 0
        self._wanted = 0  # newest epoch passed to `reach`; its local checkpoint waits, or was abandoned
        self._completed = completed
        self._has_gap = False  # to be reported with the next epoch
        self._has_left_group = False
        self._idle = 0  # epochs after the last handled one, up to this one, have no groups in the log
        is_apart = self._prepare(is_new, bool(seam_epoch))
        if completed is None:
            made_table(store, NDB_APPLY_STATUS)
            made_table(store, NDB_SCHEMA)
        settings_table = store.tables.by_name.get(NDB_REPLICATION)
        for fault in [] if settings_table is None else verify(settings_table.definition):
            _log.warning("%s; the defaults are used", fault.text)
        self.has_index = completed is None and self._values["log_binlog_index"]  # rows of `ndb_binlog_index`
        index = IndexTable(store) if self.has_index else None
        self.rules = TableRules(self._values, lambda: replication_rows(store))
        # A function judges what a transaction made of a row; its steps may all have one value of the compared column.
        follower.join_if(lambda definition: self.rules.rule_of(definition).has_function)
        self.writer = BinlogWriter(files, store.clock, FOLDER, values["log_bin"], WriterOptions.of(self._values))
        self.whole = WholeFiles(files, FOLDER, self.writer.index.names)
        self.rules.on_partial = call_owner(self._note_partial)
        self._injector = Injector(
            self.writer, InjectorOptions.of(self._values), self.rules, call_owner(self._status_plans)
        )
        self.rows = PendingSystemRows(store, index, files, self.writer, self._values)
        self._epoch_file = self.writer.end.file
        if completed is None:
            self._catch_up(is_apart)
        else:
            self._find_gap(is_apart, seam_epoch)
        self._follower = follower
        capture(store, self.rules)
        store.room.followers["binlog"] = call_owner(self.reach)
        store.room.follower_holds_log = call_owner(self._holds_log)
        # The primary of a node group may still be in the epoch of the last group in this node's log.
        self._write_epochs(store.epochs.current - 1 if completed is None else newest_epoch, store.log.durable_lsn)
        self.rows.begin(completed is not None)

    # --- opening ----------------------------------------------------------------------------------
    def _status_plans(self) -> TablePlans:
        """Return the plans of `ndb_apply_status`, which the primary of a group creates when it begins to lead."""
        table = self._store.tables.by_name.get(NDB_APPLY_STATUS)
        return self.rules.plans(RowFormat(NDB_APPLY_STATUS_TABLE) if table is None else table.format)

    def _prepare(self, is_new: bool, is_copied: bool) -> bool:
        """Make the folder; return whether the store may have changed without a binlog. Durable on return: the mark."""
        files = self._files
        if is_copied:
            leave_mark(files)  # `seam_epoch` is 0 at openings after the local checkpoint of the copy
        base = self._values["log_bin"]
        names = files.list(FOLDER) if files.exists(FOLDER) else None
        for name in names or ():
            if name.endswith(".index") and name != f"{base}.index":
                raise Rejected(
                    f"the binlog of this store is {name.removesuffix('.index')!r}; open it with that log_bin",
                    option="log_bin",
                )
        # A folder whose files were removed is like none. A node makes the folder before the store.
        is_empty = self._completed is None and not any(name.startswith(f"{base}.") for name in names or ())
        if names is None or is_empty:
            if is_new and not is_copied:
                return False
            make_folder(files, FOLDER)
            leave_mark(files)
        return files.exists(STOPPED)

    def _catch_up(self, is_apart: bool) -> None:
        """Find the end of the binlog, and begin anew if the log does not continue from it."""
        epochs = self._store.epochs
        tail, lost_epoch = self._find_tail()
        has_gap = tail.epoch < lost_epoch <= self._lcp_epoch
        # Every epoch of the binlog was durable in the log first, so the store has gone back if it lacks one.
        is_ahead = tail.epoch >= epochs.current or tail.changed_epoch > self._store_epoch
        if not (is_apart or has_gap or is_ahead):
            self._written = self._handled = self.newest_epoch = tail.epoch
            self._injector.already_written_statements = deque(tail.statements)
            return
        if tail.end is not None and int(gci_of(tail.epoch)) >= GCI_MAX:
            raise tail.end.damaged(f"ends epoch {tail.epoch}, which no store has")
        if tail.epoch >= epochs.current:
            # Numbers in the binlog are never reused: a replica would take them for epochs that it has applied.
            with self._store.latch:
                epochs.continue_after(tail.epoch)
        newest = epochs.current - 1
        if is_ahead:
            self.incident(f"the store went back to an earlier state after epoch {tail.epoch}; copy the replica anew")
        elif has_gap:
            self.incident(f"epochs were lost after epoch {tail.epoch}; copy the replica anew")
        elif tail.epoch:
            self.incident(f"changes were not logged after epoch {tail.epoch}; copy the replica anew")
        elif self._store_epoch and not all(map(is_system_table, list(self._store.tables.by_name))):
            # A store with system tables only has lost nothing: a crash ended the opening that created them.
            self.incident(f"changes up to epoch {newest} were made before the store had a binlog")
        self._begin_timeline()  # after the incident, which is of the earlier one
        self._begin_after(newest)
        self.rows.write()
        self._remove_mark()
        self._written = self._handled = newest

    def _find_gap(self, is_apart: bool, seam_epoch: int) -> None:
        """Find the end of the binlog of a node of a group. Missing changes are reported with the next epoch that all
        members have, because the newest one here may be rolled back and its number reused. The mark stays until then.
        """
        tail = self._find_tail()[0]
        newest = seam_epoch or self._store_epoch
        if tail.epoch > (seam_epoch or self._store.epochs.current - 1):
            # The group lacks the history in the files so far: they are purged.
            self._begin_timeline()
            self.writer.index.purge_to(self.writer.end.file)
            self._epoch_file = self.writer.end.file
            leave_mark(self._files)
            is_apart, tail = True, Tail(0, None, ())
        self._has_gap = is_apart and newest > 0
        if self._has_gap:
            self._written = self._handled = newest
            return
        self._remove_mark()
        self._written = self._handled = self.newest_epoch = tail.epoch
        self._injector.already_written_statements = deque(tail.statements)

    def close_gap(self) -> None:
        """Write an incident for the gap, and the epoch after which the binlog is whole; both are durable before the
        mark is removed.
        """
        epoch = self._written
        self.incident(f"the binlog of this node lacks changes up to epoch {epoch}; continue with another node's")
        self._begin_timeline()
        self._begin_after(epoch)
        self._remove_mark()
        self._has_gap = False

    def _begin_timeline(self) -> None:
        """Begin another timeline: positions so far are those of another future, or changes are missing after them."""
        self.writer.begin_history(self._values["log_gtids"], is_other_future=True)

    def _begin_after(self, epoch: int) -> None:
        """Write the epoch after which the binlog is whole. Durable on return."""
        written = self._injector.write_empty(epoch)
        self.writer.sync()
        self._note(written)

    def _remove_mark(self) -> None:
        if self._files.exists(STOPPED):
            self._files.unlink(STOPPED)
            self._files.sync_directory(FOLDER)

    def check_servable(self) -> None:
        """Check that the binlog may be served. Raises: PeerError while a gap at its end is not yet reported in it."""
        if self._has_gap:
            raise PeerError(
                "the binlog of this node begins again with the next epoch; try again, or use another node's"
            )

    def _find_tail(self) -> tuple[Tail, int]:
        """Return (end of the binlog as found, last epoch of the index table if the files have lost it, else 0). Writes
        missing rows of the index.
        """
        recovered = self.writer.recovered
        if recovered is None:
            return Tail(0, None, ()), 0
        own_id, base = self._values["server_id"], self.writer.index.base
        if self.rows.index is None:
            tail, lost_epoch = last_epoch(self._files, FOLDER, base, recovered, own_id), 0
        else:
            known, lost_epoch = self.rows.known_end(recovered)
            if known is None:
                tail, start = Tail(0, None, ()), Position(self.writer.index.names[0], b.FIRST_POSITION)
            else:
                tail, start = Tail(known[0], known[1], ()), known[1]
            for each in epochs_between(self._files, FOLDER, base, start, recovered, own_id):
                tail = tail.after(each)
            self.rows.found(start, tail.end)
        if tail.end is not None:
            self._epoch_file = tail.end.file
        return tail, lost_epoch

    # --- options ----------------------------------------------------------------------------------
    def set_option(self, name: str, value: object) -> None:
        """Set an option of the binlog to another value, which takes effect when the table of options says.

        Raises: SchemaInvalid, Rejected for an option that takes effect at the next opening or is not of the binlog.
        """
        values = settings({**self._values, name: value})
        if BY_NAME[name].effect is Effect.OPEN:
            raise Rejected(
                f"option {name} takes effect at the next opening; close the store and open it with the option",
                option=name,
            )
        if name not in OF_BINLOG:
            raise Rejected(f"option {name} is not an option of the binlog; give it to a channel", option=name)
        with self.turn:
            if values["log_bin_use_v1_row_events"] != self._values["log_bin_use_v1_row_events"]:
                self.writer.rotate()
            if values["log_gtids"] != self._values["log_gtids"]:
                if self._completed is not None:
                    check_of_node(values)
                self.writer.begin_history(values["log_gtids"])
            self._values.update(values)
            self.writer.options = WriterOptions.of(self._values)
            self._injector.options = InjectorOptions.of(self._values)
            status = self._store.tables.by_name.get(NDB_APPLY_STATUS)
            if name in ("log_apply_status", "log_orig") and status is not None:
                # These options decide how this one table is logged, from the next epoch on.
                capture(self._store, self.rules, [status])

    def option(self, name: str) -> Any:
        """Return the present value of an option of the store."""
        return self._values[name]

    def check_logged(self, definition: TableDefinition) -> None:
        """Check that a table is logged, so that `set_up` may change the way it is logged. Raises: Rejected."""
        with self.turn:
            if self.rules.rule_of(definition).rule is None:
                # The log has no before-images of its changes so far.
                raise Rejected(
                    f"{definition.name} is not logged (binlog_type 1); delete its row of mysql.ndb_replication, open"
                    " the store again, and repeat the call",
                    table=definition.name,
                )

    def check_whole(self) -> None:
        """Check that peers of MySQL can be served: updates are logged as updates, with whole rows. Raises: Rejected,
        with the first other table by name.
        """
        with self.turn:
            partial = [
                name
                for name, table in sorted(self._store.tables.by_name.items())
                if not is_system_table(name) and not self.rules.rule_of(table.definition).is_whole
            ]
        if partial:
            options = ("log_update_as_write", "log_updated_only", "log_update_as_minimal")
            wanted = ", ".join(f"{name}=False" for name in options if self._values[name])
            advice = f"open the store with {wanted}, or " if wanted else ""
            raise Rejected(
                f"table {partial[0]} logs updates as writes or in part, which peers of MySQL take for other changes;"
                f" {advice}give the table binlog_type 7 in mysql.ndb_replication and open the store again",
                table=partial[0],
            )

    def _note_partial(self, table: str) -> None:
        self.whole.spoil(self.writer.end.file, table)

    def may_be_updates(self, file: str, table: str) -> bool:
        """Whether writes to a table in a file may be updates."""
        return self.whole.may_be_updates(file, table)

    def set_up(self, definition: TableDefinition) -> None:
        """Log a table by its row of `mysql.ndb_replication` from now on, as after an opening."""
        table = self._store.tables.by_name.get(definition.name)
        if table is not None:
            with self.turn:
                capture(self._store, self.rules, [table])

    @property
    def tracks_reads(self) -> bool:
        """Whether transactions log their exclusive reads by default."""
        return bool(self._values["log_exclusive_reads"])

    # --- epochs -----------------------------------------------------------------------------------
    def write_closed_epochs(self) -> int:
        """Write the closed epochs that are not in the binlog yet, and their rows of the index; return the newest epoch
        handled. Durable on return: as `sync_binlog` says. Raises: StorageFull, after which the next call continues
        where this one stopped; StoreFailed.
        """
        with self.turn:
            self._follow()
        # Without `turn`, against a deadlock: if the log is out of space, these rows wait for a local checkpoint, which
        # waits for `turn`.
        self.rows.write()
        return self._handled

    def reach(self, epoch: int) -> None:
        """Wait until the binlog durably holds everything to be logged up to an epoch, for instance before a local
        checkpoint of that epoch is published. Writes nothing to the store, which may be out of space until that
        checkpoint. Raises: StorageFull, StoreFailed.
        """
        self._wanted = max(self._wanted, epoch)
        while not self.has_through(epoch):
            with self.turn:
                self._follow()
            if self._completed is None:
                break
            if not self.has_through(epoch):
                self._await_completion()
        self.writer.sync()

    def _await_completion(self) -> None:
        store = self._store
        store.failure.check()
        if self._has_left_group:
            raise NotPrimary("the node has left its group before all members had an epoch; try again later")
        store.clock.sleep(COMPLETION_POLL_SECONDS)

    def leave_group(self) -> None:
        """Note that the node has left its group: threads that wait until all members have an epoch get NotPrimary."""
        self._has_left_group = True

    def has_through(self, epoch: int) -> bool:
        """Whether the binlog has handled all changes up to an epoch."""
        return epoch <= max(self._handled, self._idle)

    def _holds_log(self) -> bool:
        """Whether the log must not be truncated because the binlog lacks epochs that are in it."""
        return not self.has_through(self._wanted)

    def _follow(self) -> None:
        store = self._store
        with store.latch:
            closed, ticket = store.epochs.newest_closed, store.log.sequence - 1
        if closed > self._handled:
            store.log.make_durable(ticket)
            self._write_epochs(closed, store.log.durable_lsn)

    def _write_epochs(self, closed: int, durable_lsn: int) -> None:
        newest_file, newest_closed = self.writer.end.file, closed
        if self._completed is not None:
            closed = min(closed, self._completed())
            if self._has_gap and closed > self._written:
                self.close_gap()
        for changes in self._follower.epochs(closed, durable_lsn, self._written):
            written = self.write_epoch(changes)
            # Before `_handled`: `Reach` relies on `newest_epoch` to cover every handled epoch.
            self.newest_epoch = self.newest_epoch if written is None else written.epoch
            self._written = self._handled = changes.epoch
            if written is not None:
                self._note(written)
        if self._values["log_empty_epochs"] and closed > self._written:
            self._note(self._injector.write_empty(closed))
        self._written = self._handled = max(closed, self._written)
        following = None if self._completed is None else self._follower.next_epoch(durable_lsn)
        self._idle = newest_closed if following is None or following > newest_closed else following - 1
        if self.writer.end.file != newest_file:
            if self._values["extra_logging"]:
                _log.info("binlog file %s was begun", self.writer.end.file)
            self._expire()
        for call in list(self.on_written):
            call()

    def write_epoch(self, changes: EpochChanges) -> WrittenEpoch | None:
        self.whole.begin(self.writer.end.file, self.rules.are_whole)
        try:
            return self._injector.write(changes)
        except LimitExceeded as error:
            # The epoch will never fit. Replicas must learn this, and later epochs must still be written.
            self.incident(f"epoch {changes.epoch} cannot be logged: {error.message}")
            for _ in changes.parts():
                pass  # read to the end, so that the follower continues after this epoch
            return self._injector.write_empty(changes.epoch, changes.wall_us)

    def _note(self, written: WrittenEpoch) -> None:
        rows = sum(map(sum, written.counts.rows.values()))
        self._counters["epochs"] += 1
        self.newest_epoch = written.epoch
        self._counters["rows"] += rows
        self._counters["statements"] += written.counts.statements
        self._counters["load_marks"] += written.loads
        self._epoch_file = written.end.file
        self.rows.note(written)
        if rows:
            self._latest_rows = written.epoch
        for call in list(self.on_epoch):
            call(written.epoch)
        if self._values["extra_logging"] > 1:
            _log.info("epoch %d: %d rows, %s to %s", written.epoch, rows, tuple(written.start), tuple(written.end))

    def incident(self, message: str) -> None:
        """Write an incident: changes are missing from here on, and a replica stops there. Durable on return.

        Raises: StorageFull.
        """
        with self.turn:
            self.writer.incident(message)
            self.writer.sync()
            self._counters["incidents"] += 1
        _log.warning("incident in the binlog: %s", message)

    @property
    def base(self) -> str:
        return self.writer.index.base

    @property
    def handled_epoch(self) -> int:
        """The newest closed epoch whose changes, if any are logged, are before `writer.end`."""
        return self._handled

    def write_through(self, epoch: int) -> SyncedEnd | None:
        """Write the closed epochs up to one that closed while the caller held `turn`; return its end. None at a node of
        a group whose other members do not have the epoch yet. Durable on return. Raises: as `write_closed_epochs`.
        """
        with self.turn:
            self._write_epochs(epoch, self._store.log.durable_lsn)
            return self.writer.served() if self._handled >= epoch else None

    def durable_end(self) -> Position:
        """Return the position up to which the binlog may be served. Durable on return: everything before it."""
        return self.writer.served().end

    # --- files ------------------------------------------------------------------------------------
    def rotate(self) -> None:
        """End the file and begin the next one. Durable on return: everything so far. Raises: StorageFull."""
        with self.turn:
            self.writer.rotate()
            self._expire()
        self.rows.write()

    def pin(self, holder: object, place: Position, on_lost: Callable[[], None] | None = None) -> None:
        """Keep the file of a position, and later files, until `unpin`, or until the holder pins another position. With
        `on_lost`, files are kept up to `mysql_purge_bytes` only; it is called when the file is purged all the same.
        """
        if on_lost is not None:
            self._limited[holder] = on_lost
        self.pins[holder] = place

    def unpin(self, holder: object) -> None:
        self.pins.pop(holder, None)
        self._limited.pop(holder, None)

    def _kept(self) -> str:
        """Return the oldest file that is needed: by a channel, by the next restart, by a peer of the MySQL protocol
        that is not too late, or by a reader in another process, which has pinned its file and may continue with
        later ones.
        """
        index = self.writer.index
        needed = [self._epoch_file]
        limited = {holder for holder in list(self._limited) if not self._is_within_limit(holder)}
        needed += [place.file for holder, place in list(self.pins.items()) if holder not in limited]
        needed += [name for name in index.names if self._files.is_pinned(index.path(name))][:1]
        return min((name for name in needed if name in index.names), key=index.place_of)

    def _is_within_limit(self, holder: object) -> bool:
        """Whether the file that a holder has pinned, and those after it, have at most `mysql_purge_bytes`."""
        index, place = self.writer.index, self.pins.get(holder)
        if place is None or place.file not in index.names:
            return False
        kept = sum(self._files.size(index.path(name)) for name in index.names[index.place_of(place.file) :])
        return kept <= parse_size("mysql_purge_bytes", self._values["mysql_purge_bytes"])

    def purge(self, to: str | None = None, before_s: int | None = None, bytes_max: int | None = None) -> list[str]:
        """Remove old files, and their rows of `ndb_binlog_index`: files before the file `to`, files that ended before
        `before_s` (seconds since 1970), or as many as leave at most `bytes_max`. Files that a channel or a restart
        needs stay. Returns the names. Durable on return. Raises: Rejected for a file that does not exist.
        """
        with self.turn:
            index, keep = self.writer.index, self._kept()
            wanted = [] if to is None else [index.names[min(index.place_of(to), index.place_of(keep))]]
            if before_s is not None:
                wanted.append(index.expired(before_s, keep))
            if bytes_max is not None:
                wanted.append(index.oversized(bytes_max, keep))
            if not wanted:
                return []
            gone = self._purged(wanted)
        self.rows.write()
        return gone

    def _purged(self, names: list[str]) -> list[str]:
        """Remove the files before the last one of these; return their names."""
        gone = self.writer.index.purge_to(max(names, key=self.writer.index.place_of))
        self.rows.files_have_gone |= bool(gone)
        self.whole.purged(gone)
        for holder, on_lost in list(self._limited.items()):
            place = self.pins.get(holder)
            if place is not None and place.file in gone:
                self.unpin(holder)
                on_lost()
        return gone

    def _expire(self) -> None:
        if self._values["binlog_expire_s"]:
            before_s = self._store.clock.wall_us() // 1_000_000 - self._values["binlog_expire_s"]
            self._purged([self.writer.index.expired(before_s, self._kept())])

    # --- life -------------------------------------------------------------------------------------
    def close(self) -> None:
        """Write the closed epochs and end the file. Durable on return: everything, or the next opening catches up."""
        with self.turn:
            try:
                if self._has_left_group:
                    self._follow()  # without the rows of the index: only the primary writes to tables
                else:
                    self.write_closed_epochs()
            except (StorageFull, TooManyFiles) as error:
                _log.warning("the binlog lacks epochs, the next opening writes them: %s", error)
            self.writer.close()

    def register(self, status: ReplicationStatus) -> None:
        """Register the status variables of the binlog."""
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
        """Return counters for `status()`."""
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
            "index_lags": self.rows.lags,
            "holds_log": self._holds_log(),
            "has_gap": self._has_gap,
        }
