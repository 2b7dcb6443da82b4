"""A store as its last local checkpoint has it, while another process may have it open and write.

A `ReadOnlyDatabase` holds one view: a local checkpoint loaded into private memory. `refresh` loads a newer view and,
once it is complete, replaces the old one with one assignment. A read keeps the view it began with; a view is freed when
no read uses it.
Nothing here takes a lock, writes a byte, or is visible to the writer.
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

# Open views of this process. A forked child shares their descriptors and must refuse to use them (F79, F116).
_open: weakref.WeakSet[ReadOnlyDatabase] = weakref.WeakSet()


def _refuse_in_child() -> None:
    for db in list(_open):
        db._failure.latch(ForkedHandle("the store was attached to before a fork; open it again in the child"))
    _open.clear()


os.register_at_fork(after_in_child=_refuse_in_child)


def _read_only(what: str) -> ReadOnly:
    return ReadOnly(
        f"{what}: the store was opened with read_only=True; open it without read_only where no other process has it"
        " open"
    )


class ReadTransaction(Transaction):
    """Reads of one view, unaffected by `refresh`, for the thread that began the transaction.

    There is nothing to commit or roll back; both calls only end the transaction. Every call that writes raises
    ReadOnly, and so does a lock: the rows of a view cannot change, and a lock here would not hold the writer's rows.
    """

    __slots__ = ()

    def __init__(self, store: Store) -> None:
        self.store = store
        self.mem = store.mem
        self.desc = 0  # kernels that read take 0 for "no transaction"
        self.buf = store.no_words
        self.thread = threading.get_ident()
        self.txid = 0  # an id belongs to a transaction in the log
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
        """Return the row of the view with this key as a named tuple, or None. Raises: ReadOnly for a lock."""
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
        """Return the rows of the view with these keys; see `Transaction.get_many`. Raises: ReadOnly for a lock."""
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
        """Return a scan of a table of the view; see `Transaction.scan`. Raises: ReadOnly for a lock."""
        if lock is not None:
            self.check()
            raise _read_only("no row was locked")
        return super().scan(table, columns, limit, None, partitions, where, **by)

    def commit(self, wait: bool = False) -> None:
        """End the transaction."""
        self.check()
        self.is_ended = True

    def rollback(self) -> None:
        """End the transaction; ending it twice is allowed."""
        self.is_ended = True

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A block of the transaction; there is nothing to undo."""
        self.check()
        yield


class ReadOnlyTable(TableHandle):
    """One table of the current view. A handle follows `refresh`; scans under way do not."""

    __slots__ = ("_db", "_name", "_table_id")

    def __init__(self, db: ReadOnlyDatabase, table: Table) -> None:
        # A handle must not refer to a view, or it would keep that view in memory.
        self._db = db
        self._failure = db._failure
        self._name = table.name
        self._table_id = table.table_id
        self._begin: Callable[[], NoReturn] = db._refuse

    @property
    def name(self) -> str:
        """The qualified name in the view the handle was created from."""
        return self._name

    @property
    def table(self) -> Table:  # type: ignore[override]
        found = self._db.parts.store.by_id.get(self._table_id)
        if found is None:
            raise NoSuchTable(f"table {self._name} was dropped; see tables()", table=self._name)
        return found


@types_memory_errors("__init__", but=("run",))
class ReadOnlyDatabase:
    """A store as its last local checkpoint has it. Threads may share it; `with` closes it.

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
        """The parts of the view, for the rooms below the API and for tests. Not public."""
        return self._view

    # --- life ------------------------------------------------------------------------------------
    def close(self) -> None:
        """Close all files, after a refresh that may be running. Handles and transactions raise an error from then on.

        A second call does nothing.

        Examples:
            >>> db.close()
        """
        _open.discard(self)
        if self._failure.first is None:
            # Wait for a running refresh: a closed descriptor that it reads from could be reused for another file. In a
            # forked child no refresh runs.
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
        """The place of the store, to be sent to another process, which attaches to it read-only as well.

        Raises: Unsupported for a store without a directory.
        """
        if self._directory is None:
            raise Unsupported("this store is not in a directory that another process could open")
        return Locator(self._directory, read_only=True)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        raise Unsupported("an open store cannot be pickled; send db.locator and open that")

    def check_usable(self) -> None:
        """Raise StoreFailed if the store is closed, was inherited through a fork, or its directory is unreadable.

        Examples:
            >>> db.check_usable()
        """
        if self._failure.first is not None:
            self._failure.check()

    def refresh(self) -> int:
        """Move to the newest intact local checkpoint; return its epoch, the same as before if there is no newer one.

        The new view is loaded next to the old one, so rows take twice their memory for that time. After a restart
        through an older epoch the newest checkpoint may be older than the current view.

        Raises: FileMissing, LcpDamaged, SysfileDamaged, ForeignFile, Incompatible, MemoryExhausted, SnapshotTooOld,
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
            self._view = self._attachment.newest(self._view)
            return self._view.epoch

    @property
    def epoch(self) -> int:
        """The epoch at whose end the view shows the store."""
        return self._view.epoch

    # --- reading ---------------------------------------------------------------------------------
    def tables(self, system: bool = False) -> list[str]:
        """Return the names of the tables, "database.table", sorted; with `system`, system tables too.

        Examples:
            >>> db.tables()
            ['main.item']
        """
        self.check_usable()
        return sorted(name for name in self._view.store.tables if system or not is_system_table(name))

    def __getitem__(self, name: str) -> ReadOnlyTable:
        self.check_usable()
        return ReadOnlyTable(self, self._view.store.table(name))

    def __contains__(self, name: str) -> bool:
        return name in self._view.store.tables

    def partitions(self, table: str) -> list[dict[str, Any]]:
        """Return the partitions of a table, as `TableHandle.partitions`.

        Raises: NoSuchTable.

        Examples:
            >>> sum(partition["rows"] for partition in db.partitions("item"))
            3
        """
        return self[table].partitions()

    def indexes(self, table: str) -> list[dict[str, Any]]:
        """Return the indexes of a table, as `TableHandle.indexes`.

        Raises: NoSuchTable.

        Examples:
            >>> db.indexes("item")
            []
        """
        return self[table].indexes()

    def transaction(self) -> ReadTransaction:
        """Begin a transaction of this thread that reads the view as it is now; use it with `with`.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.get("item", 1).stock + txn.get("item", 2).stock
            15
        """
        self.check_usable()
        return ReadTransaction(self._view.store)

    def run(self, work: Callable[[ReadTransaction], R]) -> R:
        """Run work(txn) in a transaction, once: nothing is ever rolled back here.

        Raises: what `work` raises.

        Examples:
            >>> db.run(lambda txn: txn.scan("item").sum("stock"))
            15
        """
        with self.transaction() as txn:
            return work(txn)

    def replication_rows(self) -> list[ReplicationRow]:
        """Return the rows of `mysql.ndb_replication`; none if the table is missing or has another definition.

        Examples:
            >>> db.replication_rows()
            []
        """
        self.check_usable()
        from tidemark.replication_check import definitions_of, replication_rows

        return replication_rows(definitions_of(self._view.store), lambda name: self[name].scan())

    def check_replication(
        self, channels: Sequence[str] = (), peer: Peer | None = None, **options: object
    ) -> dict[str, Any]:
        """Check the view as `Database.check_replication` does.

        Raises: SchemaInvalid for an option that is unknown or out of range.

        Examples:
            >>> db.check_replication()["is_sound"]
            True
        """
        self.check_usable()
        from tidemark.replication_check import check_replication

        return check_replication(self._view.store, lambda name: self[name].scan(), options, channels, peer)

    def status(self) -> dict[str, Any]:
        """Return the view and the memory it takes, nested like the status of a `Database` where a view has the same.

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
        """Raises: ReadOnly, or StoreFailed if the store is not usable."""
        self.check_usable()
        raise _read_only("nothing was written")

    create_table = create_replication_table = drop_table = add_partition = drop_partition = create_index = (
        drop_index
    ) = _refuse
    add_column = drop_column = rename = rename_column = set_default = widen_column = _refuse
    create_tablespace = add_datafile = drop_tablespace = _refuse
    sync = advance_epoch = advance_gci = checkpoint = _refuse
