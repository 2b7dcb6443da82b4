"""Calls shared by an open store, a store opened with `read_only=True`, and a store of another process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Protocol, TypeVar, overload

from tidemark.display import TABLES_SHOWN, html_table, short, state_of
from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import NoSuchTable, Retryable, SchemaInvalid, StoreFailed, TableExists, Unsupported
from tidemark.engine.base.out_of_memory import types_memory_errors
from tidemark.engine.schema.column_inference import columns_like, has_arrow_schema
from tidemark.engine.schema.names import as_names, is_system_table, names_one_of
from tidemark.engine.store.schema_changes import differences, new_table
from tidemark.engine.txn.in_call import runs_callers_code
from tidemark.handles import TableHandle, TypedTable
from tidemark.session import READ_COMMITTED, Isolation
from tidemark.typed_rows import NamedTables, columns_of

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.failure import Failure
    from tidemark.engine.programs.expressions import Expression
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.schema.partition import Partition
    from tidemark.engine.store.store import Store
    from tidemark.replication.settings.check import Peer
    from tidemark.replication.settings.match import ReplicationRow

R = TypeVar("R")
T = TypeVar("T")
Handle = TypeVar("Handle")
RETRY_PAUSE_SECONDS = 0.001


class ArrowSchema(Protocol):
    """An Arrow schema."""

    def __arrow_c_schema__(self) -> object: ...


class ArrowStream(Protocol):
    """A table, batch or reader of Arrow, a frame of pandas or polars, a relation of DuckDB."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> object: ...


class LazyFrame(Protocol):
    """A LazyFrame of polars."""

    def collect_schema(self) -> Any: ...


Like = ArrowSchema | ArrowStream | LazyFrame


@dataclass(frozen=True)
class Locator:
    """The directory of a store. It can be pickled, and `tm.open(locator)` opens the store if no other process has it
    open.

    `tm.open` raises what it raises for a path; creating a Locator checks nothing.

    Args:
        read_only: `tm.open(locator)` attaches to the last local checkpoint, even while another process has the store
            open.

    Examples:
        >>> with tm.open("shop", redo_log="16 MiB") as store:
        ...     locator = store.locator
        >>> with tm.open(locator) as store:
        ...     store.tables()
        []
    """

    directory: str
    read_only: bool = False

    def __fspath__(self) -> str:
        return self.directory


class RunsTransactions(ABC, Generic[T]):
    """A store that runs functions in transactions, and retries after Retryable errors."""

    _clock: Clock

    @abstractmethod
    def transaction(self, *, isolation: Isolation = READ_COMMITTED) -> Any:
        """Begin a transaction."""

    @runs_callers_code
    def run(self, work: Callable[[T], R], retries: int = 5, *, isolation: Isolation = READ_COMMITTED) -> R:
        """Run work(txn) in a transaction and commit it.

        Args:
            work: Called with a transaction. It may be called again, so it should have no effect outside the
                transaction.
            retries: How often to run it again after a Retryable error has rolled the transaction back. The loss of the
                process that executes the transaction is such an error.
            isolation: As for `transaction`.

        Returns:
            The result of the last call of `work`.

        Durable on return: the transaction, with `durability="commit"`; in a group of nodes, at every live node.

        Raises: SchemaInvalid for negative `retries`; what `work`, `transaction` and the commit raise, a Retryable error
        only after the last attempt.

        Examples:
            >>> db.run(lambda txn: txn.update("item", 1, {"stock": tm.col("stock") - 1}))
            True
        """
        if not isinstance(retries, int) or retries < 0:
            raise SchemaInvalid(f"retries must be a whole number from 0, got {retries!r}")
        for attempt in range(retries + 1):
            try:
                with self.transaction(isolation=isolation) as txn:
                    return work(txn)
            except Retryable:
                if attempt == retries:
                    raise
                self._clock.sleep(RETRY_PAUSE_SECONDS * (1 << attempt))
        raise StoreFailed("unreachable: the last attempt returns or raises")


@types_memory_errors()
class TableLookup(NamedTables[Handle]):
    """A store that returns the handles of its tables."""

    @overload
    def table(self, name: str) -> Handle: ...

    @overload
    def table(self, name: str, kind: type[R]) -> TypedTable[R]: ...

    def table(self, name: str, kind: type[R] | None = None) -> Handle | TypedTable[R]:
        """Return a table, also as `db[name]`; with a class, a handle whose rows are objects of it.

        Args:
            name: "database.table"; "table" alone is "main.table".
            kind: A dataclass or a `TypedDict` with the columns of the table, each with the Python type of its values,
                and with `| None` if the column is nullable.

        Raises: NoSuchTable, InvalidName; SchemaInvalid if the class does not agree with the table.

        Examples:
            >>> from typing import TypedDict
            >>> Item = TypedDict("Item", {"id": int, "name": str, "stock": int})
            >>> db.table("item", Item)[2]["name"]
            'cup'
        """
        return self[name] if kind is None else TypedTable(self[name], kind)

    def partitions(self, table: str) -> list[dict[str, Any]]:
        """Return the partitions of a table, as `TableHandle.partitions`.

        Raises: NoSuchTable.

        Examples:
            >>> sum(partition["rows"] for partition in db.partitions("item"))
            3
        """
        handle: Any = self[table]
        return handle.partitions()  # type: ignore[no-any-return]

    def indexes(self, table: str) -> list[dict[str, Any]]:
        """Return the indexes of a table, as `TableHandle.indexes`.

        Raises: NoSuchTable.

        Examples:
            >>> db.indexes("item")
            []
        """
        handle: Any = self[table]
        return handle.indexes()  # type: ignore[no-any-return]


@types_memory_errors(read_only=())
class TableCreation(TableLookup[Handle]):
    """A store in which tables can be created."""

    @abstractmethod
    def _create(self, definition: TableDefinition) -> Handle: ...

    @overload
    def create_table(
        self,
        name: str,
        columns: Column | Iterable[Column] | Like,
        primary_key: str | Sequence[str],
        partition: Partition | None = None,
        tablespace: str | None = None,
        *,
        checks: Mapping[str, Expression] | None = None,
        expires: str | None = None,
        exist_ok: bool = False,
    ) -> Handle: ...

    @overload
    def create_table(
        self,
        name: str,
        columns: type[R],
        primary_key: str | Sequence[str],
        partition: Partition | None = None,
        tablespace: str | None = None,
        *,
        checks: Mapping[str, Expression] | None = None,
        expires: str | None = None,
        exist_ok: bool = False,
    ) -> TypedTable[R]: ...

    def create_table(
        self,
        name: str,
        columns: Column | Iterable[Column] | Like | type[R],
        primary_key: str | Sequence[str],
        partition: Partition | None = None,
        tablespace: str | None = None,
        *,
        checks: Mapping[str, Expression] | None = None,
        expires: str | None = None,
        exist_ok: bool = False,
    ) -> Handle | TypedTable[R]:
        """Create a table.

        Args:
            name: "database.table"; "table" alone is "main.table".
            columns: Definitions of the columns, or of the only one; or a dataclass or `TypedDict`, whose fields become
                columns: `int` Int64, `float` Float64, `str` Text, `bytes` Blob, `bool`, `date`, `time`, `datetime`
                (DateTime), with `| None` nullable. `Annotated[str, tm.VarChar(40)]` names another type; a Decimal field
                must name one. Defaults of fields become those of columns. Or an Arrow schema, or data with one (Arrow,
                pandas, polars, DuckDB): its columns, typed as `tidemark load --create` does; no row is inserted.
            primary_key: The name of a column, or several.
            partition: How rows are divided among fragments; None: by hash.
            tablespace: Where columns with storage="disk" are stored; None: "main". Only for tables with such columns.
            checks: Conditions by name, as `add_check` adds them.
            expires: When rows expire, such as "seen + 30 min", as `set_expiry` says; None: never.
            exist_ok: Return the table if it exists with this definition; indexes do not count.

        Returns:
            The handle of the table; for a class, a handle whose rows are objects of that class.

        Durable on return: the table.

        Raises:
            TableExists: A table of this name exists, with `exist_ok` one of another definition; the message says where
                they differ.
            SchemaInvalid: The definition is invalid, or a type of Arrow is that of no column.
            NoSuchColumn: The data has no column of that name for the key.
            InvalidName: A name is not allowed.
            ProgramInvalid: A check is not a condition over the columns.
            NoSuchColumn: A check or `expires` names a column that the table does not have.
            LimitExceeded: A limit of `engine/base/limits.py` is exceeded.
            NoSuchTablespace: The tablespace does not exist.
            MemoryExhausted: `data_memory` has no room.
            StorageFull: The disk has no room for the tablespace "main".

        Examples:
            >>> columns = [tm.Column("year", tm.Int16), tm.Column("number", tm.Int32), tm.Column("note", tm.Text)]
            >>> db.create_table("sales.order", columns, ["year", "number"])
            <tidemark table sales.order: 0 rows of year, number, note>
            >>> from typing import Annotated, TypedDict
            >>> Guest = TypedDict("Guest", {"id": int, "name": Annotated[str, tm.VarChar(40)]})
            >>> db.create_table("guest", Guest, "id")
            <tidemark table main.guest: 0 rows of id, name as Guest>
            >>> import pandas as pd
            >>> frame = pd.DataFrame({"id": [7, 8], "score": [0.5, 0.75]})
            >>> db.create_table("score", frame, "id", exist_ok=True).write_many(frame)
            2
        """
        made: Any = columns
        if isinstance(columns, type):
            made = columns_of(columns)
        elif has_arrow_schema(columns):
            made = columns_like(columns, as_names(primary_key, "primary_key"))
        handle = self._created(new_table(name, made, primary_key, partition, tablespace, checks, expires), exist_ok)
        return TypedTable(handle, columns) if isinstance(columns, type) else handle

    def _created(self, definition: TableDefinition, exist_ok: bool) -> Handle:
        while True:
            try:
                return self._create(definition)
            except TableExists:
                if not exist_ok:
                    raise
            try:
                found: Any = self[definition.name]
                said = differences(found.definition, definition)
            except NoSuchTable:  # dropped in the meantime
                continue
            if said:
                raise TableExists(
                    f"table {definition.name} exists with another definition: {'; '.join(said)}; alter or drop it, or"
                    " give the definition that it has",
                    table=definition.name,
                )
            return found  # type: ignore[no-any-return]


@types_memory_errors("__contains__")
class StoreReads(TableLookup[TableHandle], Closable):
    """The calls of a store of this process that change nothing."""

    _store: Store
    _failure: Failure
    _directory: str | None
    _values: Mapping[str, Any]  # of the replication options
    _is_read_only: ClassVar[bool] = False
    _made_by_name: ClassVar[Collection[str]] = ()  # tables that are created when they are first named

    @property
    def locator(self) -> Locator:
        """The place of the store, to be sent to another process. The locator of a read-only store opens it read-only
        there as well. Raises: Unsupported for a store without a directory.
        """
        if self._directory is None:
            raise Unsupported("this store is not in a directory that another process could open")
        return Locator(self._directory, read_only=self._is_read_only)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise Unsupported("an open store cannot be pickled; send db.locator and open that")

    def check_usable(self) -> None:
        """Raise StoreFailed if the store has failed, is closed, or was inherited through a fork, or if the directory of
        a store that is open for reading is unreadable.

        Examples:
            >>> db.check_usable()
        """
        if self._failure.first is not None:
            self._failure.check()

    def tables(self, system: bool = False) -> list[str]:
        """Return the names of the tables, "database.table", sorted; with `system`, system tables too.

        Examples:
            >>> db.tables()
            ['main.item']
        """
        self.check_usable()
        names = list(self._store.tables.by_name)
        if not system:
            return sorted(name for name in names if not is_system_table(name))
        return sorted({*names, *self._made_by_name})

    def __contains__(self, name: object) -> bool:
        self.check_usable()
        return names_one_of(name, self._store.tables.by_name) or names_one_of(name, self._made_by_name)

    def __repr__(self) -> str:
        place = "in memory" if self._directory is None else repr(self._directory)
        view = ", read-only" if self._is_read_only else ""
        return f"<tidemark store {place}{view}, {state_of(self._failure.first and self._failure.first[0])}>"

    def _repr_html_(self) -> str | None:
        if self._failure.first is not None:
            return None
        held = self._store.tables.by_name
        shown = [held[name] for name in self.tables() if name in held][:TABLES_SHOWN]
        rows = [(each.name, f"{each.count():,}", short(each.format.names)) for each in shown]
        return html_table(repr(self), ("table", "rows", "columns"), rows)

    def replication_rows(self) -> list[ReplicationRow]:
        """Return the rows of `mysql.ndb_replication`; none if the table is missing or has another definition.

        Raises: StoreFailed.

        Examples:
            >>> db.replication_rows()
            []
        """
        self.check_usable()
        from tidemark.replication.settings.match import row_of
        from tidemark.replication.settings.system_tables import replication_rows

        return [row_of(row) for row in replication_rows(self._store)]

    def check_replication(
        self, /, channels: Sequence[str] = (), peer: Peer | None = None, **options: object
    ) -> dict[str, Any]:
        """Check system tables, exceptions tables and the rows of `mysql.ndb_replication` before replication starts.

        Nothing is changed.

        Args:
            channels: Names of the channels that apply here.
            peer: The other side of a pair.
            options: Those that docs/replication.md lists, in place of the options of this store.

        Returns:
            A report. `is_sound` is False if `problems` has anything.

        Raises:
            SchemaInvalid: An option is unknown or out of range.
            StoreFailed: The store is closed or has failed.

        Examples:
            >>> db.check_replication()["is_sound"]
            True
        """
        self.check_usable()
        from tidemark.replication.settings.check import check_replication

        return check_replication(self._store, {**self._values, **options}, channels, peer)
