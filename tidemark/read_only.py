"""A store as of its last local checkpoint, while another process may have it open and write.

A `ReadOnlyDatabase` holds one view: a local checkpoint loaded into private memory, or before the first one the log.
`refresh` loads a newer view and, once it is complete, replaces the old one with one assignment. A read keeps the view
it began with; a view is freed when no read uses it.
Nothing here writes a byte or is visible to the writer. Only `open_closed` may keep one away, by a shared lock.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tidemark.calls import has_calls_of
from tidemark.derived import described
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import (
    Error,
    ForkedHandle,
    Locked,
    NoSuchTable,
    ReadOnly,
    SnapshotClosed,
    StoreClosed,
)
from tidemark.engine.base.options import Options
from tidemark.engine.base.out_of_memory import types_memory_errors
from tidemark.engine.base.owner import refuse_pickling
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.memory.arena_layout import PAGE_BYTES
from tidemark.engine.point.changes import CommittedChanges
from tidemark.engine.schema.names import is_system_table, names_one_of
from tidemark.handles import TableHandle, table_counters
from tidemark.recovery.system_restart.attach import Attachment, View
from tidemark.recovery.system_restart.place import check_exists
from tidemark.recovery.system_restart.sysfile import read_sysfile
from tidemark.session import READ_COMMITTED, Isolation, Lock, Transaction, is_own_view
from tidemark.shared_calls import StoreReads
from tidemark.snapshot import Snapshot
from tidemark.store_status import process_status
from tidemark.typed_rows import SnapshotTables

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.failure import Failure
    from tidemark.engine.files.directory import Pin
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.recovery.system_restart.load import Progress

R = TypeVar("R")

# Open views of this process. A forked child shares their descriptors and must refuse to use them (F79, F116).
_open: weakref.WeakSet[ReadOnlyDatabase] = weakref.WeakSet()


def _refuse_in_child() -> None:
    for db in list(_open):
        db._failure.latch(ForkedHandle("the store was opened before a fork; open it again in the child"))
    _open.clear()


os.register_at_fork(after_in_child=_refuse_in_child)


def _read_only(what: str) -> ReadOnly:
    return ReadOnly(
        f"{what}: the store was opened with read_only=True; open it without read_only, which needs that no"
        " other process has it open"
    )


def _refuse_in_transaction(txn: ReadTransaction, *_: Any, **__: Any) -> NoReturn:
    txn.check()
    raise _read_only("nothing was written")


def _refuse_in_store(db: ReadOnlyDatabase | ReadOnlySnapshot, *_: Any, **__: Any) -> NoReturn:
    """Raises: ReadOnly, or StoreFailed if the store is not usable."""
    db._failure.check()
    raise _read_only("nothing was written")


@has_calls_of("read-only transaction", _refuse_in_transaction)
class ReadTransaction(Transaction):
    """Reads of one view, unaffected by `refresh`, for the thread that began the transaction.

    There is nothing to commit or roll back; both calls only end the transaction. Every call that writes raises
    ReadOnly, and so does a lock: the rows of a view cannot change, and a lock here would not hold the writer's rows.
    """

    __slots__ = ()

    @property
    def txid(self) -> int:
        """0: an id belongs to a transaction in the log."""
        return 0

    def _check_lock(self, lock: Lock, skip_locked: bool = False) -> NoReturn:
        self.check()
        raise _read_only("no row was locked")

    def commit(self, wait: bool | None = None) -> None:
        """End the transaction."""
        self._commit_reads(False)

    def _commit_reads(self, wait: bool) -> None:
        self.check()
        self.is_ended = True

    def rollback(self) -> None:
        """End the transaction; ending it twice is allowed."""
        self.is_ended = True

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Return a block of the transaction; there is nothing to undo."""
        self.check()
        yield


@has_calls_of("read-only table")
class ReadOnlyTable(TableHandle):
    """One table of the current view. A handle follows `refresh`; scans under way do not."""

    __slots__ = ("_db", "_name", "_table_id")

    def __init__(self, db: ReadOnlyDatabase | ReadOnlySnapshot, table: Table) -> None:
        # A handle of the store must not refer to a view, or it would keep that view in memory.
        self._db = db
        self._failure = db._failure
        self._owner = self._watch = None
        self._name = table.name
        self._table_id = table.table_id
        self._begin = partial(_refuse_in_store, db)
        self._changes = CommittedChanges(None)

    @property
    def name(self) -> str:
        """The qualified name in the view the handle was created from."""
        return self._name

    @property
    def table(self) -> Table:  # type: ignore[override]
        found = self._db.parts.store.tables.by_id.get(self._table_id)
        if found is None:
            raise NoSuchTable(f"table {self._name} was dropped; see tables()", table=self._name)
        return found


@has_calls_of("read-only snapshot")
class ReadOnlySnapshot(SnapshotTables[ReadOnlyTable], Closable):
    """The view of a `ReadOnlyDatabase` at the time of the call, unaffected by `refresh`; use it with `with`. It keeps
    that view in memory. Any thread may read it.

    After `close` its reading calls raise SnapshotClosed, after the store was closed StoreFailed.

    Examples:
        >>> with db.snapshot() as before:
        ...     writer["item"].insert((4, "ink", 7))
        ...     report = writer.checkpoint()
        ...     db.refresh() > before.epoch, len(before["item"]), len(db["item"])
        (True, 3, 4)
    """

    __reduce_ex__ = refuse_pickling

    def __init__(self, db: ReadOnlyDatabase) -> None:
        self._db = db
        self._failure = db._failure
        self._view: View | None = db.parts
        self.epoch = db.parts.epoch

    @property
    def parts(self) -> View:
        """The view. Raises: SnapshotClosed, StoreFailed."""
        self._db.check_usable()
        if self._view is None:
            raise SnapshotClosed("the snapshot is closed; open another one with db.snapshot()", epoch=self.epoch)
        return self._view

    def close(self) -> None:
        """Release the view. A second call does nothing.

        Examples:
            >>> snapshot = db.snapshot()
            >>> snapshot.close()
        """
        self._view = None

    def __getitem__(self, name: str) -> ReadOnlyTable:
        return ReadOnlyTable(self, self.parts.store.tables.named(name))

    def __contains__(self, name: object) -> bool:
        return names_one_of(name, self.parts.store.tables.by_name)

    @described(Snapshot.tables)
    def tables(self, system: bool = False) -> list[str]:
        names = self.parts.store.tables.by_name
        return sorted(name for name in names if system or not is_system_table(name))

    def __repr__(self) -> str:
        return f"<tidemark snapshot of epoch {self.epoch}{', closed' if self._view is None else ''}>"


@has_calls_of("read-only store", _refuse_in_store)
@types_memory_errors("__init__", exclude=("run",))
class ReadOnlyDatabase(StoreReads):
    """A store as of its last local checkpoint; before the first one, as its log has it. Threads may share it; `with`
    closes it.

    Every call but `close` and `status` raises StoreFailed after the store was closed (StoreClosed), in a forked child
    (ForkedHandle), and after its directory was moved or became unreadable. A call that writes raises ReadOnly, and so
    does a lock.

    Examples:
        `writer` is the same store, open for writing.

        >>> report = writer.checkpoint()
        >>> with tm.open("shop", read_only=True) as db:
        ...     db["item"][1].name, len(db["item"])
        ('pen', 3)
    """

    _is_read_only = True
    _values: Mapping[str, Any] = {}

    def __init__(
        self,
        files: Files,
        options: Options,
        clock: Clock,
        directory: str | None = None,
        progress: Progress | None = None,
        pin: Pin | None = None,
        is_present: bool = False,
    ) -> None:
        """pin: released by `close`. is_present: whether to show all that the files hold; the caller knows that no
        process changes them.
        """
        self._files = files
        self._options = options
        self._directory = directory
        self._pin = pin
        attachment = Attachment(files, options, clock, progress)
        self._look = attachment.present if is_present else attachment.newest
        self._refreshing = threading.Lock()
        self._failure: Failure = files.failure
        try:
            self._view: View = self._look()
        except BaseException:
            files.close_all()
            raise
        _open.add(self)

    @property
    def parts(self) -> View:
        """The parts of the view, for the rooms below the API and for tests. Not public."""
        return self._view

    @property
    def _store(self) -> Store:  # type: ignore[override]
        return self._view.store

    # --- life ------------------------------------------------------------------------------------
    def close(self) -> None:
        """Close all files, after any running refresh. Handles and transactions raise an error from then on.

        A second call does nothing.

        Examples:
            >>> db.close()
        """
        _open.discard(self)
        if self._failure.first is None:
            # Wait for a running refresh: a closed descriptor that it reads from could be reused for another file. In a
            # forked child no refresh runs.
            with self._refreshing:
                self._close_files()
        else:
            self._close_files()
        self._failure.latch(StoreClosed("the store is closed; open it again"))

    def _close_files(self) -> None:
        self._view.store.disk.close()
        self._files.close_all()
        if self._pin is not None:
            self._pin.release()

    def refresh(self) -> int:
        """Move to the newest intact local checkpoint; return its epoch, the same as before if there is no newer one.

        The new view is loaded next to the old one, so rows take twice their memory for that time. After a restart
        through an older epoch the newest checkpoint may be older than the current view.

        Raises: FileMissing, LcpDamaged, SysfileDamaged, ForeignFile, Incompatible, LimitExceeded, SnapshotTooOld,
        which leave the view as it is; IoFailed if the directory was moved or is unreadable: open the store again.

        Examples:
            >>> writer["item"].insert((4, "ink", 7))
            >>> report = writer.checkpoint()
            >>> 4 in db["item"], db.refresh() == report["epoch"], 4 in db["item"]
            (False, True, True)
        """
        self.check_usable()  # before the latch: in a forked child the thread that would release it may not exist
        with self._refreshing:
            self._files.check_place()
            self._view = self._look(self._view)
            return self._view.epoch

    @property
    def epoch(self) -> int:
        """The epoch at whose end the view shows the store."""
        return self._view.epoch

    # --- reading ---------------------------------------------------------------------------------
    def __getitem__(self, name: str) -> ReadOnlyTable:
        self.check_usable()
        return ReadOnlyTable(self, self._view.store.tables.named(name))

    def transaction(self, *, isolation: Isolation = READ_COMMITTED) -> ReadTransaction:
        """Begin a transaction of this thread that reads the view as it is now; use it with `with`. isolation: as for
        `Database.transaction`; both show the view.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.get("item", 1).stock + txn.get("item", 2).stock
            15
        """
        is_own_view(isolation)
        self.check_usable()
        return ReadTransaction(self._view.store.resources)

    def snapshot(self) -> ReadOnlySnapshot:
        """Return the view as it is now, whatever `refresh` does; use it with `with`.

        Raises: StoreFailed.

        Examples:
            >>> with db.snapshot() as snapshot:
            ...     snapshot["item"].sum("stock")
            15
        """
        self.check_usable()
        return ReadOnlySnapshot(self)

    def run(self, work: Callable[[ReadTransaction], R]) -> R:
        """Run work(txn) in a transaction, once: nothing is ever rolled back here.

        Raises: what `work` raises.

        Examples:
            >>> db.run(lambda txn: txn.scan("item").sum("stock"))
            15
        """
        with self.transaction() as txn:
            return work(txn)

    def status(self) -> dict[str, Any]:
        """Return the counters of the view and its memory, nested as in `Database.status` where that has the same.

        Examples:
            >>> db.status()["lcp"]["rows"]
            3
        """
        view = self._view
        store = view.store
        return {
            "store": {
                "state": "open" if self._failure.first is None else "failed",
                "read_only": True,
                "uuid": view.sysfile.store.hex(),
                "incarnation": view.sysfile.incarnation,
                "pid": os.getpid(),
            },
            "process": process_status(),
            "epoch": {"shown": view.epoch},
            "lcp": {
                "id": view.lcp_id,
                "rows": view.rows,
                "size_bytes": view.size_bytes,
                "fallbacks": view.fallbacks,
                "load_ms": view.seconds * 1_000,
            },
            "memory": {
                "data_memory_bytes": self._options.data_memory_bytes,
                "used_bytes": store.arena.used_pages() * PAGE_BYTES,
            },
            "tables": table_counters(store.tables.by_name.values()),
        }


def open_closed(path: str | os.PathLike[str], options: Options, progress: Progress | None = None) -> ReadOnlyDatabase:
    """Return a view of all that a store holds which no process has open, the log included. No byte is written, and a
    process may open the store meanwhile, unless it has disk columns: these are read as they are asked for.

    Raises: Locked if a process has the store open; FileMissing if there is none; as `tidemark.open`.
    """
    files = PosixFiles(path)
    pin = None
    try:
        check_exists(files)
        _check_closed(files)
        before = read_sysfile(files)
        if before is not None and before.undo_geometry is not None:
            pin = files.share()
        try:
            db = ReadOnlyDatabase(files, options, SystemClock(), files.directory, progress, pin, is_present=True)
        except Error:
            with PosixFiles(path) as again:
                _check_closed(again)  # a writer that came meanwhile explains everything
            raise
        after = read_sysfile(files)
        if before is None or after is None or before.incarnation != after.incarnation:
            raise Locked(f"another process has opened {files.directory} meanwhile; ask again", pid=None)
        _check_closed(files)
        return db
    except BaseException:
        files.close_all()
        if pin is not None:
            pin.release()
        raise


def _check_closed(files: PosixFiles) -> None:
    """Raises: Locked if a process has the store open, as the system reports it."""
    pid = files.holder()
    if pid is not None:
        holder = f"process {pid}" if pid else "another process"
        raise Locked(f"{holder} has {files.directory} open; close it there", pid=pid or None)
