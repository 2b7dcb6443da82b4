"""An open store: its lock, its restart, its threads, and how they end.

Opening a store is recovery: `open` restores every acknowledged transaction, or says why it cannot.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from tidemark.background import Clockwork
from tidemark.binlog import attach
from tidemark.calls import has_calls_of
from tidemark.control_socket import ControlSocket, serve
from tidemark.derived import passed
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import SchemaInvalid, StoreClosed
from tidemark.engine.base.options import Options, warn_of_size
from tidemark.engine.base.out_of_memory import memory_error, types_memory_errors
from tidemark.engine.base.owner import call_owner
from tidemark.engine.files.directory import PosixFiles, machine_bytes
from tidemark.engine.schema.catalog import Catalog
from tidemark.engine.store.expiry import Expirer
from tidemark.engine.store.outcome import find_outcome
from tidemark.engine.store.sequences import SEQUENCES
from tidemark.handles import TableHandle
from tidemark.load_calls import LoadCalls
from tidemark.recovery.local_checkpoint.writer import LocalCheckpoint, Progress
from tidemark.recovery.system_restart.kept_options import keep_options, kept_for_reading, kept_options
from tidemark.recovery.system_restart.place import check_exists, check_place
from tidemark.recovery.system_restart.restart import Restart
from tidemark.recovery.system_restart.sysfile import Sysfile
from tidemark.recovery.system_restart.through import Through
from tidemark.recovery.verification.check import check_closed, check_live
from tidemark.replication.injector.mark import leave_mark
from tidemark.replication.settings import system_tables
from tidemark.replication.settings.options import OpenKeywords, settings, split_keywords
from tidemark.replication.settings.status import ReplicationStatus
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS, TIDEMARK_FIRST_COPY, rows_named
from tidemark.schema_calls import SchemaCalls
from tidemark.sequences import Sequence as NumberSequence
from tidemark.session import READ_COMMITTED, Isolation, SnapshotTransaction, Transaction, is_own_view
from tidemark.shared_calls import RunsTransactions, StoreReads, TableCreation
from tidemark.snapshot import Snapshot
from tidemark.store_status import space_report, store_status

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.recovery.backup.archive import Archiver
    from tidemark.recovery.system_restart.restart import Opened
    from tidemark.replication.channel.endpoint import Endpoint
    from tidemark.replication.injector.attached import AttachedBinlog
    from tidemark.replication.injector.changes import Changes

_log = logging.getLogger("tidemark")


class Parts(NamedTuple):
    """The parts of an open store, for the rooms below the API, the crash harness and tests. Not public: any version may
    change it.
    """

    store: Store
    files: Files
    opened: Opened
    lcp: LocalCheckpoint
    clockwork: Clockwork
    values: Mapping[str, Any]  # of the replication options
    replication: ReplicationStatus
    control: ControlSocket | None
    archiver: Archiver | None


# `transaction` handles a MemoryError itself: a wrapper's extra call would take a tenth of its time.
@has_calls_of("store")
@types_memory_errors("__init__", "__getitem__", exclude=("transaction",))
class Database(StoreReads, TableCreation[TableHandle], RunsTransactions[Transaction]):
    """One open store. Threads may share it; a transaction belongs to one thread. `with` closes it.

    A Database dropped without `close` is closed by its threads after garbage collection, with a ResourceWarning; with
    `background=False` only its lock is released. Tables, scans and transactions in use keep it open.

    Every call but `close` and `status` raises StoreFailed after the store was closed or has failed; in a forked child
    that is ForkedHandle. A call that changes the schema also raises RedoOverloaded or BinlogOverloaded if the log has
    no room, NotPrimary at a node that does not execute transactions, and OutcomeUnknown if the process runs out of
    memory.

    Examples:
        >>> db["item"]
        <tidemark table main.item: 3 rows of id, name, stock>
        >>> "main.item" in db, "item" in db  # without a database, a name is of `main`
        (True, True)
    """

    _made_by_name = system_tables.MADE_BY_NAME

    def __init__(
        self,
        files: Files,
        options: Options,
        clock: Clock,
        directory: str | None = None,
        through: int | None = None,
        progress: Progress | None = None,
        replication: Mapping[str, Any] | None = None,
        restart: Callable[[], Opened] | None = None,
        prepare: Callable[[Database], None] | None = None,
        completed: Callable[[], int] | None = None,
    ) -> None:
        """Lock the files and restart the store.

        restart: recovers the store, in place of a restart from its own files. prepare: called with the open store
        before its threads start. completed: see `attach`.
        """
        self._files = files
        self._options = options
        self._directory = directory
        self._is_closed = False
        self._drop: weakref.finalize[..., Database] | None = None
        self._endpoint: Endpoint | None = None
        self._readers: weakref.WeakSet[Changes] = weakref.WeakSet()
        self._turn = threading.Lock()  # of what is made when it is first used
        files.read_errors_latch = False
        if restart is None:
            check_place(files, options.create)  # before LOCK is made
        files.lock()
        try:
            if through is not None:
                leave_mark(files)  # if a crash follows the cut, the binlog must not have more than the store
            end = None if through is None else Through(through)
            self._opened = (restart or Restart(files, options, clock, end, progress).run)()
            self._store = self._opened.store
            self._resources = self._store.resources
            self._failure = self._store.failure
            self._clock = self._store.clock
            self._opened_at = self._clock.monotonic()
            self._values = settings({}) if replication is None else replication
            self._binlog = attach(files, self._opened, self._values, completed)
            self._server_id: int = self._values["server_id"] or 0
            self._replication = self._replication_status()
            identity = self._opened.identity
            self._schema = SchemaCalls(self._store, files, directory, identity)
            self._store.tables.make_named = call_owner(self._schema.make_named)
            self._schema.open_catalog()
            self._loads = LoadCalls(self._store, files, directory, identity, call_owner(self.transaction))
            place = options.archive
            self._archiver = None if place is None else self._begin_archive(place, False)
            self._assemble()
        except BaseException:
            files.close_all()
            files.unlock()
            raise
        try:
            if prepare is not None:
                prepare(self)
            self._start()
        except BaseException as error:
            self._store.failure.latch(StoreClosed(f"the store was not opened: {error}"))
            self.close()
            raise

    def _assemble(self) -> None:
        """Create the objects that make local checkpoints and run the periodic work."""
        opened, files = self._opened, self._files
        self._lcp = LocalCheckpoint(self._store, files, opened.identity, opened.sysfile.next_lcp_id, opened.unsound)
        self._lcp.last_start_lsn = opened.controls[0].start_lsn if opened.controls else 0
        self._clockwork = Clockwork(opened, files, self._lcp, self._binlog)
        self._archive_turn = threading.Lock()
        self._clockwork.archiver = self._archiver
        self._clockwork.expirer = self._expirer = Expirer(self._store)
        self._clockwork.is_replica = call_owner(self._is_replica)
        self._control: ControlSocket | None = None

    def _start(self) -> None:
        opened, files = self._opened, self._files
        if self._options.background:
            # A new checkpoint spares the next restart this replay, and replaces a damaged one.
            self._clockwork.start(wants_lcp=opened.report.groups > 0 or bool(opened.unsound))
            # Without threads the files release the lock when nothing uses the store any more. A finalizer, not
            # `__del__`, in which Ctrl-C would be lost.
            self._drop = weakref.finalize(self, _have_closed, self._clockwork, vars(self))
            self._drop.atexit = False
            if isinstance(files, PosixFiles):
                commands: dict[str, Callable[..., Any]] = {"status": self._full_status, "report": self.space_report}
                for call in (self.checkpoint, self.check, self.check_binlog, self.backup, self.archive, self.kill):
                    commands[call.__name__] = call
                owned = {name: call_owner(call) for name, call in commands.items()}
                self._control = serve(files, owned, self._store.clock)

    # --- life ------------------------------------------------------------------------------------
    def close(self) -> None:
        """Roll back open transactions, make everything committed durable, and close all files.

        A second call does nothing. Durable on return: every committed transaction.

        Raises:
            StoreFailed: A write or sync failed. The files are closed nevertheless.
            StorageFull: The disk has no room for the binlog. The files are closed nevertheless.

        Examples:
            >>> store = tm.open("shop", redo_log="16 MiB")
            >>> store.close()
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._drop is not None:
            self._drop.detach()
        store = self._store
        try:
            for reader in list(self._readers):
                reader.close()
            if self._endpoint is not None:
                self._endpoint.close()
            if self._control is not None:
                self._control.close()
            self._clockwork.stop()
            store.snapshots.close_all()
            if store.failure.first is None:
                store.transactions.roll_back_all()
                self._clockwork.advance_gci(is_last=True)
                if self._binlog is not None:
                    self._binlog.close()
                    store.log.flush()
                if self._clockwork.archiver is not None:
                    self._clockwork.archiver.step()  # the next opening writes the missing epochs from the log
                self._clockwork.raise_floor()
        finally:
            if self._archiver is not None:
                self._archiver.close()
            try:
                store.disk.close()
                self._files.close_all()
            finally:
                # After Ctrl-C in the middle of closing some parts are still open; no thread may commit any more (F117).
                self._files.unlock()
                store.failure.latch(StoreClosed("the store is closed; open it again"))

    @property
    def parts(self) -> Parts:
        """The parts of this store; see `Parts`."""
        return Parts(
            self._store,
            self._files,
            self._opened,
            self._lcp,
            self._clockwork,
            self._values,
            self._replication,
            self._control,
            self._archiver,
        )

    @property
    def restart_report(self) -> dict[str, Any]:
        """What the opening found and did, phase by phase."""
        return self._opened.report.to_dict()

    def __getitem__(self, name: str) -> TableHandle:
        self.check_usable()
        return TableHandle(self._store, self._store.tables.named(name), self)

    def _create(self, definition: TableDefinition) -> TableHandle:
        return TableHandle(self._store, self._schema.create(definition), self)

    # --- schema ----------------------------------------------------------------------------------
    tablespaces = passed(SchemaCalls.tablespaces, "_schema")

    # calls: python -m tools.make_faces
    drop_table = passed(SchemaCalls.drop_table, "_schema")
    truncate = passed(SchemaCalls.truncate, "_schema")
    add_column = passed(SchemaCalls.add_column, "_schema")
    drop_column = passed(SchemaCalls.drop_column, "_schema")
    rename = passed(SchemaCalls.rename, "_schema")
    rename_column = passed(SchemaCalls.rename_column, "_schema")
    set_default = passed(SchemaCalls.set_default, "_schema")
    widen_column = passed(SchemaCalls.widen_column, "_schema")
    add_partition = passed(SchemaCalls.add_partition, "_schema")
    drop_partition = passed(SchemaCalls.drop_partition, "_schema")
    create_index = passed(SchemaCalls.create_index, "_schema")
    drop_index = passed(SchemaCalls.drop_index, "_schema")
    add_check = passed(SchemaCalls.add_check, "_schema")
    drop_check = passed(SchemaCalls.drop_check, "_schema")
    set_expiry = passed(SchemaCalls.set_expiry, "_schema")
    create_tablespace = passed(SchemaCalls.create_tablespace, "_schema")
    add_datafile = passed(SchemaCalls.add_datafile, "_schema")
    drop_tablespace = passed(SchemaCalls.drop_tablespace, "_schema")
    load = passed(LoadCalls.load, "_loads")
    plan_load = passed(LoadCalls.plan_load, "_loads")
    adopt = passed(LoadCalls.adopt, "_loads")
    loads = passed(LoadCalls.loads, "_loads")
    sweep_loads = passed(LoadCalls.sweep_loads, "_loads")

    def load_sqlite(
        self,
        path: str | os.PathLike[str],
        tables: str | Sequence[str] | None = None,
        *,
        on_error: str = "raise",
        database: str = "main",
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Create the tables of an SQLite database here, with their rows, primary keys and indexes.

        A column gets the type that its declared type names (integers, Float64, texts, bytes, Bool, Date, Time, DateTime
        and Decimal(p, s)), if more than half of its values fit, else the type of its values. A table without a primary
        key gets SQLite's rowid as its key. A key that SQLite numbers is `tm.autoincrement` here. Views, virtual tables,
        partial indexes and defaults that are expressions are left out and reported. SQLite's file is only read, as at
        one time.

        Args:
            path: The file.
            tables: Names of tables; None: all.
            on_error: What to do about a value that does not fit its column: "raise", before any table is made, or
                "report", which leaves its row out and loads the rest.
            database: The part of the new names before the point.
            progress: Called with (rows so far, -1, "rows of TABLE").

        Returns:
            A report: `tables` with `table`, `source`, `rows`, `columns`, `primary_key`, `indexes`, `bad_rows` (rows
            left out) and `notes` for each; `skipped` with the reason for each name; `bad` with `table`, `rowid`,
            `column`, `value` and `why` of the first 1,000 rows left out.

        Durable on return: the tables. After an error those that were loaded before it stay.

        Raises:
            TypeMismatch: A value does not fit, with `table`, `rowid`, `column` and `value`.
            TableExists: A table is here already; nothing was loaded.
            NoSuchTable: SQLite has no such table.
            FileMissing: The file cannot be opened.
            Rejected: The file is no SQLite database.
            SchemaInvalid: `on_error` is unknown, or a table cannot be made.

        It also raises as `load` and `create_index`.

        Examples:
            >>> import sqlite3
            >>> with sqlite3.connect("old.db") as old:
            ...     done = old.execute("create table pen (id integer primary key, price decimal(6, 2))")
            ...     done = old.execute("insert into pen values (1, 1.5)")
            >>> old.close()
            >>> db.load_sqlite("old.db")["tables"][0]["rows"], db["pen"][1]
            (1, Row(id=1, price=Decimal('1.50')))
        """
        self.check_usable()
        from tidemark.sqlite_load import load_sqlite

        return load_sqlite(self, path, tables, on_error, database, progress)

    def create_replication_table(self) -> TableHandle:
        """Create `mysql.ndb_replication`, empty. Its rows say how tables are logged and how conflicts are decided.

        Durable on return: the table.

        Raises: TableExists, MemoryExhausted.

        Examples:
            >>> db.create_replication_table()
            <tidemark table mysql.ndb_replication: 0 rows of ...>
        """
        return self._create(system_tables.NDB_REPLICATION_TABLE)

    def set_conflict_function(self, table: str, function: str | None, exceptions: bool = False) -> None:
        """Set or remove the function by which this site decides about changes of a table from other sites.

        Writes the table's row of `mysql.ndb_replication` for the `server_id` of this store. With any row, changes of
        the table are logged as updates with whole rows from now on (`binlog_type` 7). An applier reads the row at its
        next start. Other nodes of a group use it for logging after they are opened again.

        Args:
            table: The name of the table.
            function: As in `docs/replication.md`, such as "NDB$EPOCH_TRANS" or "NDB$MAX(version)". None: no function,
                as the secondary of NDB$EPOCH needs it; an exceptions table stays.
            exceptions: Whether to create the exceptions table, the table's name with `$EX`, if it is missing. Each row
                that is refused leaves a row there: operation, cause, transaction, and the columns of the primary key.

        Durable on return: row and exceptions table.

        Raises:
            NoSuchTable: There is no such table.
            NoSuchColumn: The table lacks the column of the function.
            SchemaInvalid: The function is unknown, or does not fit the table or this store.
            Rejected: The store has no `server_id`, or the table is not logged at all.
            StoreFailed: The store is closed or has failed.

        Examples:
            >>> with tm.open("shop", server_id=1, log_bin="binlog", redo_log="16 MiB") as store:
            ...     columns = [tm.Column("id", tm.Int64), tm.Column("version", tm.UInt64)]
            ...     stock = store.create_table("shop.stock", columns, "id")
            ...     store.set_conflict_function("shop.stock", "NDB$MAX(version)", exceptions=True)
            ...     [(row["function"], row["exceptions"]) for row in store.check_replication()["tables"]]
            [('NDB$MAX(version)', 'shop.stock$EX')]
        """
        self.check_usable()
        from tidemark.sites.conflict_functions import set_conflict_function

        set_conflict_function(self.endpoint, self._schema.create, table, function, exceptions)

    def sequence(self, name: str) -> NumberSequence:
        """Return the sequence of this name, which begins with its first number. With the options `autoincrement_step`
        and `autoincrement_offset`, sites give different numbers.

        Durable on return: the table of sequences.

        Raises: InvalidName; MemoryExhausted if it is the first sequence and `data_memory` has no room.

        Examples:
            >>> db.sequence("invoice").next()
            1
        """
        self.check_usable()
        made = NumberSequence(name, self._take_numbers)
        self._store.tables.named(SEQUENCES)
        return made

    def _take_numbers(self, name: str, count: int) -> range:
        self.check_usable()
        return self._store.sequences.take_named(self._resources, name, count)

    # --- transactions ----------------------------------------------------------------------------
    def transaction(
        self, log_exclusive_reads: bool | None = None, isolation: Isolation = READ_COMMITTED
    ) -> Transaction:
        """Return a transaction of this thread; use it with `with`. It begins at its first change or lock, at a
        savepoint, or when its `txid` is asked for: one that only reads costs the store nothing.

        Args:
            log_exclusive_reads: Whether rows that this transaction reads with an exclusive lock are replicated as read,
                so that a change of another site to them is a conflict. None: as the store's option says.
            isolation: "read committed": each call sees what is committed when it begins. "snapshot": all calls see what
                was committed when this transaction was made, and its own changes; a change or a lock of a row that
                another transaction has changed since raises WriteConflict, which `run` answers by running it again.
                Rows that others change meanwhile are kept in `snapshot_memory` until it ends. docs/isolation.md tells
                what each may see.

        Raises:
            SchemaInvalid: The isolation is unknown.
            LockTimeout: A large commit is being applied, and did not end in time; with "snapshot".
            StoreFailed: The store is closed or has failed.
            MemoryExhausted: The process has no memory left.
            NotPrimary: Another node of the group executes transactions.

        Examples:
            >>> with db.transaction() as txn:
            ...     stock = txn.get("item", 1, lock="exclusive").stock
            ...     txn.update("item", 1, {"stock": stock - 1})
            True
        """
        store, binlog = self._resources, self._binlog
        try:
            if store.refusal is not None or store.failure.first is not None or store.locks.abandoned:
                self._store.transactions.admit()
            if binlog is not None and (binlog.tracks_reads if log_exclusive_reads is None else log_exclusive_reads):
                from tidemark.read_tracking import TrackingSnapshotTransaction, TrackingTransaction

                txn: Transaction = (TrackingSnapshotTransaction if is_own_view(isolation) else TrackingTransaction)(
                    store
                )
            elif isolation is not READ_COMMITTED and is_own_view(isolation):
                txn = SnapshotTransaction(store)
            else:
                txn = Transaction(store)
        except MemoryError as error:
            raise memory_error(error) from error
        txn.owner = self
        return txn

    def snapshot(self) -> Snapshot:
        """Close the open epoch and show all tables as at its end, while writers continue; use it with `with`.

        Durable on return: all rows that the snapshot shows.

        Raises:
            StoreFailed: The store is closed or has failed.
            LimitExceeded: Too many snapshots are open.

        Examples:
            >>> with db.snapshot() as snapshot:
            ...     db["item"].insert((4, "ink", 7))
            ...     len(snapshot["item"]), len(db["item"])
            (3, 4)
        """
        self.check_usable()
        return self._store.snapshots.begin(Snapshot)

    @property
    def binlog(self) -> AttachedBinlog | None:
        """The binlog, to rotate and purge it; None for a store opened without `log_bin`."""
        return self._binlog

    @property
    def endpoint(self) -> Endpoint:
        """This store as channels and other sites see it, for `tm.Channel` and `tm.serve`. Raises: StoreFailed."""
        with self._turn:
            if self._endpoint is None:
                self.check_usable()
                from tidemark.replication.channel.endpoint import Endpoint, OpenStore

                opened = OpenStore(
                    self._store, self._files, self._opened.identity, self._values, self._binlog, self._replication
                )
                self._endpoint = Endpoint(opened)
            return self._endpoint

    def changes(self, since: int = 0, tables: Sequence[str] | None = None, *, follow: bool = False) -> Changes:
        """Iterate over the row changes of closed epochs after `since`, from the store's binlog.

        Each epoch has `batches()` (Arrow), `rows()` (named tuples with epoch, table, operation, before, after) and
        `to_arrow(table)`. Use the iterator with `with`: while it is open, the epochs it has yet to read are not purged.
        To continue later, pass as `since` the `epoch` of the last one read.

        Every change read is durable. Rows have the types of the store. Tables, changes and images are those of the
        binlog: images before a change only where the table's `binlog_type` logs them (6 to 9; the default 0 follows
        `log_update_as_write` and `log_updated_only`), whole images only with 3 and 7. An operation is "write", "update"
        or "delete". A write is an insert, or an update where updates are logged as writes.

        Args:
            since: An epoch, as `sync` returns it.
            tables: Names of tables; None for all except system tables.
            follow: At the end, wait for new epochs until `close()`.

        Raises:
            PositionLost: The epochs after `since` were purged or not logged.
            EpochGap: `since` is not closed yet.
            ValueOutOfRange: `since` is not an epoch.
            Rejected: The store has no binlog.
            StoreFailed: The store is closed or has failed.

        Examples:
            >>> before = db.sync()
            >>> db["item"].insert((4, "ink", 7))
            >>> epoch = db.sync()
            >>> with db.changes(since=before) as changes:
            ...     [(row.operation, row.after.name) for each in changes for row in each.rows()]
            [('write', 'ink')]
        """
        self.check_usable()
        from tidemark.replication.injector.changes import Changes

        made = Changes(self.endpoint, since, tables, follow)
        self._readers.add(made)
        return made

    def wait_applied(self, epoch: int, timeout_ms: int = 10_000, at: Sequence[int] | None = None) -> None:
        """Wait until an epoch of this store, and everything before it, is applied at its replicas.

        An epoch that has nothing for a site, because it was not logged on the way there, does not have to arrive.

        Args:
            epoch: As `sync` returns it.
            timeout_ms: How long to wait.
            at: Server ids of sites. None: all sites that have reported since the store was opened. These are replicas
                of this store (through a channel in this process or a connection to `serve`) and the sites that they
                pass its changes on to (`log_replica_updates`), through chains and circles: each site reports to the one
                before it. The call waits for a named site even if that site has not reported yet.

        Raises:
            PeerTimeout: A site has not applied the epoch in time. The error names these sites (`servers`) and what is
                known of all (`applied`).
            Rejected: The store has no binlog, no replica has reported, or `at` names this site or no site.
            StoreFailed: The store is closed or has failed.

        Examples:
            >>> try:
            ...     db.wait_applied(db.sync(), timeout_ms=0, at=[2])
            ... except tm.PeerTimeout as error:
            ...     error.servers
            [2]
        """
        self.check_usable()
        self.endpoint.reach.wait(epoch, timeout_ms, at)

    def wait_received(self, epoch: int, timeout_ms: int = 10_000, at: Sequence[int] | None = None) -> None:
        """Wait until replicas of this store have received an epoch, and everything before it.

        They have it in their relay logs and may not show it yet: `wait_applied` waits for that. A replica of MySQL or
        MariaDB counts here if it is semi-synchronous, and never there. What it has received survives a crash of its
        machine only with `sync_relay_log=1` there.

        Args:
            epoch: As `sync` returns it.
            timeout_ms: How long to wait.
            at: Server ids of sites. None: all replicas that have reported since the store was opened. A site that is
                further on, past a replica, can be named; it has received what it has applied.

        Raises:
            PeerTimeout: A site has not received the epoch in time. The error names these sites (`servers`) and what is
                known of all (`received`).
            Rejected: The store has no binlog, no replica has reported, or `at` names this site or no site.
            StoreFailed: The store is closed or has failed.

        Examples:
            >>> try:
            ...     db.wait_received(db.sync(), timeout_ms=0, at=[2])
            ... except tm.PeerTimeout as error:
            ...     error.servers
            [2]
        """
        self.check_usable()
        self.endpoint.reach.wait(epoch, timeout_ms, at, "received")

    def outcome(self, txid: int) -> str:
        """Return the outcome of a transaction: "committed", "aborted", or "unknown" if it is still open or older than
        the kept log.

        At a node that is not primary it is "unknown" instead of "aborted".

        Args:
            txid: `Transaction.txid`, also a field of CommitOnFailedStore and CommitInterrupted.

        Raises: StoreFailed; RedoDamaged if a group of the kept log is not made of transactions.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.insert("item", (4, "ink", 7))
            >>> db.outcome(txn.txid)
            'committed'
        """
        self.check_usable()
        return find_outcome(self._store, self._files, self._opened.identity[0], txid)

    # --- time ------------------------------------------------------------------------------------
    def sync(self) -> int:
        """Make everything committed so far durable and close its epoch; return that epoch.

        Durable on return: everything committed so far, and a floor in the sysfile. A log that ends before the floor is
        reported as RedoDamaged at the next opening.

        Raises: StoreFailed; StorageFull for the binlog with `background=False`.

        Examples:
            >>> epoch = db.sync()
            >>> db["item"].insert((4, "ink", 7))
            >>> db.sync() > epoch
            True
        """
        self.check_usable()
        closed = self._clockwork.advance_epoch()
        self._store.log.flush()
        self._clockwork.raise_floor()
        return closed

    def expire(self) -> int:
        """Delete now the rows that have expired (`set_expiry`); return how many.

        They are deleted in transactions of up to 1,000 rows, as `delete_where` does. Rows that another transaction has
        locked are left to the next run. A crash leaves each transaction whole or absent. An error of one table does not
        keep rows of others.

        Durable on return: the deletions, with `durability="commit"`.

        Raises: StoreFailed, NotPrimary; the first error of a transaction, after all tables.

        Examples:
            >>> from datetime import UTC, datetime
            >>> columns = [tm.Column("token", tm.VarChar(40)), tm.Column("seen", tm.Timestamp)]
            >>> sessions = db.create_table("session", columns, "token", expires="seen + 30 min")
            >>> seen = [datetime(year, 1, 1, tzinfo=UTC) for year in (2020, 2100)]
            >>> sessions.insert_many({"token": ["old", "new"], "seen": seen})
            2
            >>> db.expire(), [row.token for row in sessions]
            (1, ['new'])
        """
        self.check_usable()
        return self._expirer.run()

    def _is_replica(self) -> bool:
        """Return whether deletions of other sites are applied here: by a channel or an ingest, of now or of before."""
        from tidemark.replication.ingest.source_position import INGEST

        if self._endpoint is not None and self._endpoint.channels:
            return True
        rows = {name: rows_named(self._store, name) for name in (NDB_APPLY_STATUS, TIDEMARK_FIRST_COPY, INGEST)}
        if any(row["server_id"] != self._server_id for row in rows[NDB_APPLY_STATUS]):
            return True
        return any(True for _ in rows[TIDEMARK_FIRST_COPY]) or any(True for _ in rows[INGEST])

    def checkpoint(self, progress: Progress | None = None) -> dict[str, Any]:
        """Make one local checkpoint now and return a report.

        Args:
            progress: Called with (rows written, rows in all, "rows").

        Durable on return: the state at the end of the checkpoint's epoch.

        Raises:
            StorageFull: The disk is full; the previous checkpoint stays in force.
            StoreFailed: The store is closed or has failed.

        Examples:
            >>> db.checkpoint()["lcp_id"]
            1
        """
        self.check_usable()
        return asdict(self._clockwork.local_checkpoint(progress))

    def backup(
        self, place: Any, *, incremental: bool = False, verify: bool = True, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Back up all tables as at the end of one epoch, while writers continue.

        Args:
            place: A path, a URI that pyarrow knows, or (pyarrow filesystem, path).
            incremental: Back up only rows that have changed since the newest backup in the place.
            verify: Read back what was written, and prove that the level below each incremental level completes it. If
                it does not, or is damaged, the fragment is written whole, and the `notes` of the report say so.
            progress: Called with (done, total, unit).

        Returns:
            A report with number, epoch, rows and bytes.

        Durable on return: the backup.

        Raises:
            SnapshotTooOld: Writers changed more than `snapshot_memory` holds meanwhile, eight times.
            StorageFull: The place has no room.
            ForeignFile: The place belongs to another store.
            BackupDamaged: A written file cannot be read back.
            Locked: Another process writes to the place.
            Rejected: The URI is unknown.
            StoreFailed: The store is closed or has failed.

        Examples:
            >>> report = db.backup("backups")
            >>> report["number"], report["kind"]
            (1, 'full')
            >>> db.backup("backups", incremental=True)["parent"]
            1
        """
        self.check_usable()
        from tidemark.backup_calls import backup

        return backup(self._opened, place, self._server_id, incremental, verify, progress)

    def archive(self, place: Any = None) -> dict[str, Any]:
        """Close the open epoch and copy the log of all closed epochs to a place of backups, so that any of them can be
        restored.

        The first call names the place. From then on, until the store is closed, the log is not cut before it is
        archived.

        Args:
            place: As for `backup`; None: the place of the first call.

        Returns:
            A report with the last epoch, its LSN, and bytes.

        Durable on return: everything committed before, in the archive.

        Raises:
            Rejected: No place was ever given, or another one is in use.
            StorageFull: The place has no room.
            ForeignFile: The place belongs to another store.
            StoreFailed: The store is closed or has failed.

        Examples:
            >>> report = db.archive("backups")
            >>> db["item"].insert((4, "ink", 7))
            >>> db.archive()["last_epoch"] > report["last_epoch"]
            True
        """
        self.check_usable()
        from tidemark.backup_calls import same_archive

        with self._archive_turn:
            if self._archiver is None:
                with self._clockwork.lcp_turn:
                    self._archiver = self._begin_archive(place, True)
            elif place is not None:
                same_archive(self._archiver, place)
        self._clockwork.advance_epoch()
        return self._archiver.copy()

    def _begin_archive(self, place: Any, is_required: bool) -> Archiver:
        from tidemark.backup_calls import begin_archive

        return begin_archive(self._opened, self._files, place, is_required)

    def check(self, progress: Progress | None = None) -> dict[str, Any]:
        """Verify the open store while others use it: rows with their values and partitions, index entries, disk pages,
        local checkpoints, log, sysfile and catalog.

        Args:
            progress: Called with (rows checked, rows in all, "rows").

        Returns:
            A report. `is_sound` is False if `problems` has anything; each problem is a line that says what is wrong and
            where.

        Raises:
            StoreFailed: The store is closed or has failed.

        Examples:
            >>> report = db.check()
            >>> report["is_sound"], report["problems"]
            (True, [])
        """
        self.check_usable()
        opened = self._opened
        turn = self._clockwork.lcp_turn
        return check_live(self._store, self._files, opened.sysfile, self._schema.catalog, turn, progress).to_dict()

    def check_binlog(self, progress: Progress | None = None) -> dict[str, Any]:
        """Close the open epoch and verify that the binlog's last change of each key agrees with the row.

        Args:
            progress: Called with (changes read, changes in all, "changes").

        Returns:
            A report. `is_sound` is False if `problems` has anything. `is_whole` is False if changes of this store may
            be missing from its binlog (it applies changes of others without logging them, or a table is not logged);
            then only keys that the binlog changed last are judged, and the others are counted as `unjudged`.

        Raises:
            Rejected: The store has no binlog.
            BinlogDamaged: A binlog file is damaged.
            FileMissing: A binlog file is missing.
            SnapshotTooOld: Writers changed more than `snapshot_memory` holds meanwhile.
            StoreFailed: The store is closed or has failed.

        Examples:
            >>> report = db.check_binlog()
            >>> report["is_sound"], report["keys"]
            (True, 3)
        """
        from tidemark.binlog import check_binlog

        self.check_usable()
        return check_binlog(self.endpoint, progress)

    def kill(self, target: int | str) -> bool:
        """Roll back an open transaction, of another thread or of a client, and free its locks; or end the link of a
        client, which does the same.

        The thread or client of the transaction gets TransactionKilled at its next call, or at once in a call that waits
        for a lock. A commit that is under way completes: ask `outcome(txid)`. A client whose link was ended gets
        PrimaryLost, which is Retryable.

        Args:
            target: The id of a transaction: `holder` of a LockTimeout, or `txid` in
                `status()["transactions"]["holders"]`. Or the address of a client, "host:port": `client` in both.

        Returns:
            False if another call of the transaction or client was under way for ten seconds. The transaction is rolled
            back when that call ends or at the next one of its thread; or call `kill` again.

        Raises: Rejected if no such transaction is open or no such client is connected; SchemaInvalid for another type;
            StoreFailed.

        Examples:
            >>> txn = db.transaction()
            >>> txn.insert("item", (4, "ink", 7))
            >>> db.kill(txn.txid)
            True
            >>> txn.commit()
            Traceback (most recent call last):
            ...
            tidemark.errors.TransactionKilled: ...
        """
        self.check_usable()
        if isinstance(target, str):
            return self._store.transactions.kill_client(target)
        if not isinstance(target, int) or isinstance(target, bool):
            raise SchemaInvalid(f"kill takes the id of a transaction or the address of a client, got {target!r:.80}")
        return self._store.transactions.kill(target, "it was killed")

    def status(self) -> dict[str, Any]:
        """Return every counter, nested by room.

        `["transactions"]["holders"]` lists open transactions that hold locks or belong to clients, those with the
        oldest locks first, at most 20: `txid` (for `kill`), `client` (address, None for one of this process), `thread`,
        `held_ms` since its first call that locks rows, `idle_ms` since its client's last call, and `waits`, whether it
        waits for a lock.

        `["log"]["held_by"]` lists what needs the log; the first entry is what keeps it from being cut. Each has `what`
        (a local checkpoint, the binlog, the archive, a node), `lsn` from which it needs the log, `bytes` of the log
        from there, and `since_us`, the wall-clock time at which it reached that LSN.

        Examples:
            >>> status = db.status()
            >>> status["store"]["state"], status["tables"]["main.item"]["rows"]
            ('open', 3)
        """
        return {
            **store_status(self._opened, self._lcp, self._clock.monotonic() - self._opened_at),
            "binlog": None if self._binlog is None else self._binlog.counters(),
            "archive": None if self._archiver is None else self._archiver.status(),
            "expiry": self._expirer.counters(),
            "replication": {
                **self._replication.to_dict(self._store.clock.wall_us()),
                **({} if self._endpoint is None else self._endpoint.status()),
            },
        }

    def _replication_status(self) -> ReplicationStatus:
        """Return the status variables of replication; each module registers the variables that it counts."""
        status, epochs = ReplicationStatus(), self._store.epochs
        status.gauge("epoch", lambda: epochs.current)
        if self._binlog is not None:
            self._binlog.register(status)
        return status

    def space_report(self) -> dict[str, Any]:
        """Return how full the pages of disk columns are: tablespaces, and for each table the extent search matrix, the
        pages by fill and a map of extents.

        Raises: StoreFailed.

        Examples:
            >>> db.create_tablespace("archive", "4 MiB")
            >>> db.space_report()["tablespaces"]["archive"]["free_extents"]
            4
        """
        self.check_usable()
        return space_report(self._store)

    def _full_status(self) -> dict[str, Any]:
        """Return the answer of the control socket: `status`, and how the store was opened."""
        found = {**self.status(), "restart": self.restart_report}
        self._store.resources.secure_counts()
        return found


def check_open(db: Database) -> None:
    """Check an argument that must be an open store. Raises: SchemaInvalid for anything else; StoreFailed if it is
    closed or has failed.
    """
    if not isinstance(db, Database):
        raise SchemaInvalid(f"a store must be a Database, as tidemark.open returns it, got {type(db).__name__}")
    db.check_usable()


def _have_closed(clockwork: Clockwork, parts: dict[str, Any]) -> None:
    """Have a thread of a store close it after its Database, which had these attributes, was dropped. It is not closed
    here: the garbage collector may run under a latch that closing takes.
    """
    if clockwork.dropped is None and parts["_failure"].first is None:
        left = object.__new__(Database)
        left.__dict__ = parts
        clockwork.dropped = left.close
        warnings.warn(
            f"the store in {parts['_directory']} was dropped without close() and is closed; use `with`",
            ResourceWarning,
            stacklevel=2,
        )


def open_database(
    path: str | os.PathLike[str],
    through: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[OpenKeywords],
) -> Database:
    """Open the store in a directory (a path or a `Locator`), creating it if it is missing, and restart it.

    Raises: Locked (another process has it open), Damaged, Incompatible, SchemaInvalid for options, FileMissing with
    create=False.
    """
    files = PosixFiles(path, create=split_keywords(options)[0].create)
    try:
        parsed, replication = split_keywords({**kept_options(files), **options})
        warn_of_size(parsed, machine_bytes(), 4)
        db = Database(files, parsed, SystemClock(), files.directory, through, progress, replication)
    except BaseException:
        files.close_all()  # the lock may belong to another process; a second close does nothing
        raise
    try:
        keep_options(files, parsed, options)
    except BaseException:
        db.close()
        raise
    return db


def check_store(
    path: str | os.PathLike[str], progress: Progress | None = None, **options: Unpack[OpenKeywords]
) -> dict[str, Any]:
    """Verify the store in a directory that no process has open; return a report as `Database.check` does.

    Every file is read, and the store is recovered in memory. Apart from the lock, no byte is written. Raises: Locked,
    FileMissing if there is no store.
    """
    split_keywords(options)
    with PosixFiles(path) as files:
        check_exists(files)
        parsed = split_keywords({**kept_for_reading(files), **options})[0]

        def catalog_of(sysfile: Sysfile) -> Catalog:
            return Catalog(files, files.directory, sysfile.store, sysfile.incarnation)

        files.lock()
        try:
            return check_closed(files, parsed, SystemClock(), catalog_of, progress).to_dict()
        finally:
            files.unlock()
