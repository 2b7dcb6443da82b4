"""A store read from its last local checkpoint, while another process may have it open and write.

A `ReadOnlyDatabase` holds one view, a local checkpoint in private memory, and swaps it for a newer one in `refresh`:
one assignment, after the new one is whole. Whatever is being read keeps the view it began with; views nobody reads any
more are freed. Nothing here takes a lock, writes a byte, or is seen by the writer.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from tidemark.engine.base.errors import ForkedHandle, NoSuchTable, ReadOnly, StoreClosed, Unsupported
from tidemark.engine.base.out_of_memory import types_memory_errors
from tidemark.engine.memory.arena_layout import PAGE_BYTES
from tidemark.engine.schema.names import is_system_table
from tidemark.handles import TableHandle, index_counters
from tidemark.locator import Locator
from tidemark.recovery.system_restart.attach import Attachment, View
from tidemark.scans import Scan
from tidemark.session import Transaction

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.failure import Failure
    from tidemark.engine.base.options import Options
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.recovery.system_restart.load import Progress
    from tidemark.replication.settings.check import Peer
    from tidemark.replication.settings.match import ReplicationRow

R = TypeVar("R")

# Open views of this process: a forked child shares their descriptors, and must refuse to work (F79, F116).
_open: weakref.WeakSet[ReadOnlyDatabase] = weakref.WeakSet()


def _refuse_in_child() -> None:
    for db in list(_open):
        db._failure.latch(ForkedHandle("the store was attached to before a fork; open it again in the child"))
    _open.clear()


os.register_at_fork(after_in_child=_refuse_in_child)


def _read_only(what: str) -> ReadOnly:
    return ReadOnly(f"{what}: the store was opened with read_only=True; open it without, where nobody else has it open")


class ReadTransaction(Transaction):
    """Reads of one view, whatever `refresh` does meanwhile; belongs to the thread that began it.

    There is nothing to commit or roll back: both only end it. Every writing call raises ReadOnly, and so does a lock:
    the rows of a view cannot change, and those of the writer are not held by locks here.
    """

    __slots__ = ()

    def __init__(self, store: Store) -> None:
        self.store = store
        self.mem = store.mem
        self.desc = 0  # kernels that read take it for "no transaction"
        self.buf = store.no_words
        self.thread = threading.get_ident()
        self.txid = 0  # what has an id is in the log
        self.is_ended = False

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        self.check()
        raise _read_only("nothing was written")

    insert = write = update = delete = _refuse
    insert_many = write_many = update_many = delete_many = update_where = delete_where = _refuse
    upsert = upsert_many = _refuse

    def get(
        self,
        table: str,
        key: Any,
        lock: Literal["shared", "exclusive"] | None = None,
        *,
        index: str | None = None,
    ) -> Any:
        """The row of the view with this key as a named tuple, or None. Raises: ReadOnly for a lock."""
        if lock is not None:
            self.check()
            raise _read_only("no row was locked")
        return super().get(table, key, index=index)

    def get_many(
        self,
        table: str,
        keys: Any,
        columns: Any = None,
        *,
        index: str | None = None,
        lock: Literal["shared", "exclusive"] | None = None,
    ) -> pa.RecordBatch:
        """The rows of the view with these keys, see `Transaction.get_many`. Raises: ReadOnly for a lock."""
        if lock is not None:
            self.check()
            raise _read_only("no row was locked")
        return super().get_many(table, keys, columns, index=index)

    def scan(
        self,
        table: str,
        columns: Any = None,
        limit: int | None = None,
        lock: Literal["shared", "exclusive"] | None = None,
        partitions: Any = None,
        where: Any = None,
        **by: Any,
    ) -> Scan:
        """The rows of a table of the view, see `Transaction.scan`. Raises: ReadOnly for a lock."""
        if lock is not None:
            self.check()
            raise _read_only("no row was locked")
        return super().scan(table, columns, limit, None, partitions, where, **by)

    def commit(self, wait: bool = False) -> None:
        """End the transaction."""
        self.check()
        self.is_ended = True

    def rollback(self) -> None:
        """End the transaction; ending an ended one is allowed."""
        self.is_ended = True

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A block of the transaction; there is nothing to undo."""
        self.check()
        yield


class ReadOnlyTable(TableHandle):
    """One table of the current view: a handle follows `refresh`; scans under way do not."""

    __slots__ = ("_db", "_name", "_table_id")

    def __init__(self, db: ReadOnlyDatabase, table: Table) -> None:
        # Nothing of a view is held here, or its memory would live as long as the handle.
        self._db = db
        self._failure = db._failure
        self._name = table.name
        self._table_id = table.table_id
        self._begin: Callable[[], NoReturn] = db._refuse

    @property
    def name(self) -> str:
        """Qualified name in the view the handle was made from."""
        return self._name

    @property
    def table(self) -> Table:  # type: ignore[override]
        found = self._db.parts.store.by_id.get(self._table_id)
        if found is None:
            raise NoSuchTable(f"table {self._name} was dropped; see tables()", table=self._name)
        return found


@types_memory_errors("__init__", but=("run",))
class ReadOnlyDatabase:
    """A store as its last local checkpoint has it. Share it between threads; `with` closes it."""

    def __init__(
        self,
        files: Files,
        options: Options,
        clock: Clock,
        directory: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._files = files
        self._options = options
        self._directory = directory
        self._attachment = Attachment(files, options, clock, progress)
        self._refreshing = threading.Lock()
        self._failure: Failure = files.failure
        try:
            self._view: View = self._attachment.newest()
        except BaseException:
            files.close_all()
            raise
        _open.add(self)

    @property
    def parts(self) -> View:
        """What is shown, as the rooms below the API have it: for them and for tests, not promised to users."""
        return self._view

    # --- life ------------------------------------------------------------------------------------
    def close(self) -> None:
        """Close all files, after a refresh that may be running; handles and transactions refuse to work from here on.

        Closing again does nothing.
        """
        _open.discard(self)
        if self._failure.first is None:
            # Descriptors a refresh reads from must not be given to other files; in a forked child nobody refreshes.
            with self._refreshing:
                self._files.close_all()
        else:
            self._files.close_all()
        self._failure.latch(StoreClosed("the store is closed; open it again"))

    def __enter__(self) -> ReadOnlyDatabase:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def locator(self) -> Locator:
        """Where the store is, to be sent to another process, which attaches to it read-only as well.

        Raises: Unsupported for a store without a directory.
        """
        if self._directory is None:
            raise Unsupported("this store lies in no directory that another process could open")
        return Locator(self._directory, read_only=True)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        raise Unsupported("an open store does not pickle; send db.locator and open that")

    def check_usable(self) -> None:
        """Raise StoreFailed if the store is closed or was forked, or its directory cannot be read."""
        if self._failure.first is not None:
            self._failure.check()

    def refresh(self) -> int:
        """Move to the newest intact local checkpoint; returns its epoch, the same as before if there is no newer one.

        The new view is loaded aside, beside the old one: twice the memory of the rows for that time. After a restart
        through an older epoch the newest may be older than what was shown. Raises: FileMissing, LcpDamaged,
        SysfileDamaged, ForeignFile, Incompatible, MemoryExhausted, SnapshotTooOld, which leave the view as it is;
        IoFailed, if the directory was moved or cannot be read: open the store again.
        """
        self.check_usable()  # before the latch: in a forked child nobody may be left to free it
        with self._refreshing:
            self._files.check_place()
            self._view = self._attachment.newest(self._view)
            return self._view.epoch

    @property
    def epoch(self) -> int:
        """What is shown is the store at the end of this epoch."""
        return self._view.epoch

    # --- reading ---------------------------------------------------------------------------------
    def tables(self, system: bool = False) -> list[str]:
        """Names of the tables, "database.table", sorted; those of the system only with `system`."""
        self.check_usable()
        return sorted(name for name in self._view.store.tables if system or not is_system_table(name))

    def __getitem__(self, name: str) -> ReadOnlyTable:
        self.check_usable()
        return ReadOnlyTable(self, self._view.store.table(name))

    def __contains__(self, name: str) -> bool:
        return name in self._view.store.tables

    def partitions(self, table: str) -> list[dict[str, Any]]:
        """The partitions of a table, as `TableHandle.partitions`. Raises: NoSuchTable."""
        return self[table].partitions()

    def indexes(self, table: str) -> list[dict[str, Any]]:
        """The indexes of a table, as `TableHandle.indexes`. Raises: NoSuchTable."""
        return self[table].indexes()

    def transaction(self) -> ReadTransaction:
        """Begin a transaction of this thread that reads the view as it is now; use it with `with`."""
        self.check_usable()
        return ReadTransaction(self._view.store)

    def run(self, work: Callable[[ReadTransaction], R]) -> R:
        """Run work(txn) in a transaction; nothing is ever rolled back here, so it runs once."""
        with self.transaction() as txn:
            return work(txn)

    def replication_rows(self) -> list[ReplicationRow]:
        """The rows of `mysql.ndb_replication`; none if it is not there, or not as it must be. Raises: StoreFailed."""
        self.check_usable()
        from tidemark.replication_check import definitions_of, replication_rows

        return replication_rows(definitions_of(self._view.store), lambda name: self[name].scan())

    def check_replication(
        self, channels: Sequence[str] = (), peer: Peer | None = None, **options: object
    ) -> dict[str, Any]:
        """What `Database.check_replication` finds in the view."""
        self.check_usable()
        from tidemark.replication_check import check_replication

        return check_replication(self._view.store, lambda name: self[name].scan(), options, channels, peer)

    def status(self) -> dict[str, Any]:
        """What is shown and what it takes, nested as that of a `Database` as far as a view has it."""
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
            "tables": {
                table.name: {"id": table.table_id, "rows": table.count(), **index_counters(table)}
                for table in store.tables.values()
            },
        }

    # --- what only a Database does ---------------------------------------------------------------
    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: ReadOnly; StoreFailed if the store cannot be read either."""
        self.check_usable()
        raise _read_only("nothing was written")

    create_table = create_replication_table = drop_table = add_partition = drop_partition = create_index = (
        drop_index
    ) = _refuse
    add_column = drop_column = rename = rename_column = set_default = widen_column = _refuse
    create_tablespace = add_datafile = drop_tablespace = _refuse
    sync = advance_epoch = advance_gci = checkpoint = _refuse
