"""The calls of a transaction; each names its table.

Each method finds the table and calls the engine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from tidemark.calls import has_calls_of
from tidemark.derived import described, for_table_in_transaction, in_transaction, of_table, passed
from tidemark.engine.access import row_operations
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.base.out_of_memory import types_memory_errors
from tidemark.engine.base.owner import refuse_pickling
from tidemark.engine.memory.arena_layout import MODE_DELETE, MODE_INSERT, MODE_UPDATE, MODE_WRITE
from tidemark.engine.point import few
from tidemark.engine.point.changes import DONE, change, change_if, locked
from tidemark.engine.point.plan import keep_plan
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.queries import conditional_changes, key_columns, unique_calls
from tidemark.engine.queries.missing_rows import DROP, Missing, in_place
from tidemark.engine.table.table import Table
from tidemark.engine.txn.own_view import OwnView
from tidemark.engine.txn.transaction import Transaction as EngineTransaction
from tidemark.engine.types.base import shown
from tidemark.scans import Progress, Scan, ScanAsked, asked_of
from tidemark.table_reads import Bounds, TableReads, Where, WritableTable
from tidemark.typed_rows import TypedWrites

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.rows.row import Row
    from tidemark.engine.schema.definition import TableDefinition

R = TypeVar("R")
S = TypeVar("S")
Lock = Literal["shared", "exclusive"] | None
Isolation = Literal["read committed", "snapshot"]
READ_COMMITTED: Isolation = "read committed"
SNAPSHOT: Isolation = "snapshot"
_LOCKS = (None, "shared", "exclusive")


def is_own_view(isolation: Isolation) -> bool:
    """Whether a transaction of this isolation reads by a view of its own. Raises: SchemaInvalid."""
    if isolation not in (READ_COMMITTED, SNAPSHOT):
        raise SchemaInvalid(f"isolation must be {READ_COMMITTED!r} or {SNAPSHOT!r}, got {shown(isolation)}")
    return isolation == SNAPSHOT


@types_memory_errors()
class TransactionReads(Generic[S]):
    """The calls of a transaction, of this process or of another one, that make a scan of a table."""

    __slots__ = ()

    def _check_lock(self, lock: Lock, skip_locked: bool = False) -> None:
        """Raises: SchemaInvalid for an unknown kind of lock, and for `skip_locked` without a lock."""
        if lock not in _LOCKS:
            raise SchemaInvalid(f"lock must be None, 'shared' or 'exclusive', got {lock!r}")
        if skip_locked and lock is None:
            raise SchemaInvalid("skip_locked leaves out rows whose lock is held; give lock='exclusive' or 'shared' too")

    @abstractmethod
    def _scan(self, table: str, asked: ScanAsked) -> S:
        """Return the scan of a table. Raises: TransactionEnded, WrongThread, StoreFailed; as the scan."""

    @abstractmethod
    def _defined(self, table: str) -> TableDefinition:
        """Return the definition of a table. Raises: NoSuchTable, InvalidName."""

    @overload
    def table(self, name: str) -> TransactionTable: ...

    @overload
    def table(self, name: str, kind: type[R]) -> TypedTransactionTable[R]: ...

    def table(self, name: str, kind: type[R] | None = None) -> TransactionTable | TypedTransactionTable[R]:
        """Return a table as this transaction sees and changes it; with a class, one whose rows are objects of it.

        The calls are those of the transaction, which name no table then.

        Args:
            name: "database.table"; "table" alone is "main.table".
            kind: A dataclass or a `TypedDict`, as for `Database.table`.

        Raises: NoSuchTable, InvalidName; SchemaInvalid if the class does not agree with the table.

        Examples:
            >>> from typing import TypedDict
            >>> Item = TypedDict("Item", {"id": int, "name": str, "stock": int})
            >>> with db.transaction() as txn:
            ...     item = txn.table("item", Item)
            ...     row = item.get(2, lock="exclusive")
            ...     item.write({**row, "stock": row["stock"] + 1})
            >>> db["item"][2].stock
            6
        """
        found = TransactionTable(self, self._defined(name).name)
        return found if kind is None else TypedTransactionTable(found, kind)

    def scan(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        lock: Lock = None,
        partitions: Sequence[str] | None = None,
        where: Where = None,
        *,
        index: str | None = None,
        lower: Any = None,
        upper: Any = None,
        prefix: Any = None,
        reverse: bool = False,
        progress: Progress | None = None,
        skip_locked: bool = False,
    ) -> S:
        """Return a scan of the table: the rows as committed when the scan begins, with the changes of this transaction.

        Iterate over it for rows, or use the other calls of `Scan`. With a lock, each row is checked again once it is
        locked. Changes that this transaction makes while a scan by an index is open are not seen by that scan.

        Args:
            lock: "shared" or "exclusive": lock each row until the transaction ends.
            partitions: Read only these partitions.
            where: An expression or `Program`: read only rows that it accepts; `limit` counts these.
            index: This and the arguments up to `progress` are those of `TableHandle.scan`.
            skip_locked: With a lock: leave out rows whose lock another transaction holds, without a wait. `limit`
                counts the rows that this scan has locked and returned.

        Raises: as `TableHandle.scan`; as `get` with a lock; SchemaInvalid for an unknown `lock`, and for `skip_locked`
        without a lock.

        Examples:
            >>> with db.transaction() as txn:
            ...     for row in txn.scan("item", where=tm.col("stock") > 0, lock="exclusive"):
            ...         changed = txn.update("item", row.id, {"stock": row.stock - 1})
            >>> db["item"].scan().sum("stock")
            13
        """
        if lock is not None or skip_locked:
            self._check_lock(lock, skip_locked)
        given = (columns, where, limit, lock, skip_locked, partitions, progress, index, lower, upper, prefix, reverse)
        return self._scan(table, asked_of(given))

    # calls: python -m tools.make_faces
    explain = of_table(TableReads.explain)
    count = of_table(TableReads.count)
    sum = of_table(TableReads.sum)
    min = of_table(TableReads.min)
    max = of_table(TableReads.max)
    mean = of_table(TableReads.mean)
    aggregate = of_table(TableReads.aggregate)
    sample = of_table(TableReads.sample)
    to_arrow = of_table(TableReads.to_arrow)
    to_pandas = of_table(TableReads.to_pandas)
    to_polars = of_table(TableReads.to_polars)
    to_numpy = of_table(TableReads.to_numpy)


# Calls of one row handle a MemoryError themselves: a wrapper's extra call would take a tenth of their time.
@has_calls_of("transaction")
@types_memory_errors(exclude=("get", "insert", "write", "update", "delete"))
class Transaction(TransactionReads[Scan], EngineTransaction):
    """An open transaction, for the thread that made it. `with` commits at the end and rolls back on an exception. After
    that commit the changes are durable with `durability="commit"`, and if there are none, what was read. It begins at
    its first change or lock, at a savepoint, or when its `txid` is asked for. One that has begun and is dropped before
    its end is rolled back after garbage collection, with a ResourceWarning.

    Rows are mappings, or sequences in column order. A `Rejected` error leaves the transaction open and as it was before
    the call. A `Retryable` error has rolled it back as a whole, and so has TransactionTooLarge, which is Rejected.

    Every call raises TransactionEnded, WrongThread in a thread that did not begin it, StoreFailed, and NoSuchTable for
    the table that it names. A call that reads a disk column raises PageDamaged for a damaged page. A call that changes
    or locks rows also raises Rejected if another transaction of this thread holds the lock, TransactionTooLarge,
    LimitExceeded if too many transactions have begun, and LockTimeout, Deadlock, NotPrimary, RedoOverloaded,
    BinlogOverloaded, CheckpointMemoryExhausted, MemoryExhausted and StorageFull, which are Retryable. With
    `isolation="snapshot"` it raises WriteConflict, and every call that reads may raise SnapshotTooOld; both are
    Retryable.

    Examples:
        >>> with db.transaction() as txn:
        ...     txn.update("item", 1, {"stock": tm.col("stock") - 2})
        ...     txn.insert("item", (4, "ink", 7))
        True
        >>> db["item"][1].stock
        8
    """

    __slots__ = ("owner",)
    __reduce_ex__ = refuse_pickling

    owner: object  # the Database, which stays open while the transaction is

    def _found(self, table: str | Table) -> Table:
        """Return a table by its name. A handle has found its table before."""
        return table if isinstance(table, Table) else self.store.tables.named(table)

    def _defined(self, table: str) -> TableDefinition:
        return self._found(table).definition

    def __repr__(self) -> str:
        number = getattr(self, "_txid", None)
        state = "ended" if self.is_ended else "open" if self.desc else "not begun"
        return f"<tidemark transaction{'' if number is None else f' {number:#x}'}, {state}>"

    def _scan(self, table: str, asked: ScanAsked) -> Scan:
        self.check()
        return Scan(self._found(table), asked, self)

    def insert(self, table: str, row: Mapping[str, Any] | Sequence[Any]) -> int | None:
        """Insert one row.

        Returns:
            The row's number in a table with an autoincrement column; None in others. A number is given if the row has
            None there or leaves the column out, and never again, also if the transaction is rolled back.

        Raises:
            DuplicateKey: A row has this primary key, or this key of a unique index.
            NoPartition: No range or list of the table takes the row.
            NoSuchColumn: The table has no column of that name.
            NotNullViolation: A column without NULL and without default has no value.
            TypeMismatch: A value has the wrong type.
            ValueOutOfRange: A value does not fit its column.
            RowTooLarge: The row exceeds a size limit.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.insert("item", {"id": 4, "name": "ink", "stock": 7})
            ...     txn.get("item", 4)
            Row(id=4, name='ink', stock=7)
        """
        try:
            if change(self, table, MODE_INSERT, row):
                return None
            number = row_operations.insert(self, found := self.store.tables.named(table), row)
            keep_plan(found)
            return number
        except MemoryError as error:
            raise self.out_of_memory(error) from error

    def write(self, table: str, row: Mapping[str, Any] | Sequence[Any]) -> int | None:
        """Insert one row, or replace the row with its key. Return as `insert`.

        Raises: as `insert`; DuplicateKey only for a key of a unique index.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.write("item", (1, "pencil", 12))
            >>> db["item"][1]
            Row(id=1, name='pencil', stock=12)
        """
        try:
            if change(self, table, MODE_WRITE, row):
                return None
            number = row_operations.write(self, found := self.store.tables.named(table), row)
            keep_plan(found)
            return number
        except MemoryError as error:
            raise self.out_of_memory(error) from error

    def get(
        self, table: str, key: Any, lock: Lock = None, *, index: str | None = None, skip_locked: bool = False
    ) -> Row | None:
        """Return the row with this key (a `Row`), or None; the transaction's own changes are seen.

        Args:
            key: A value, or a tuple for a key of several columns.
            lock: "shared" or "exclusive": keep the row as it is until the transaction ends. A key without a row is not
                locked, so another transaction may insert it meanwhile.
            index: The unique index in which the key is looked up; None: the primary key. It means the same in all calls
                that have this argument.
            skip_locked: With a lock: return None, without a wait, if another transaction holds the lock of the row.

        Raises:
            NoSuchIndex: The table has no index of that name.
            Unsupported: The index is not unique.
            TypeMismatch: The key has the wrong type.
            ValueOutOfRange: The key does not fit its column.
            SchemaInvalid: `lock` is unknown, or `skip_locked` is given without it.
            LockTimeout: Another transaction held the row for `lock_timeout_ms`. The transaction was rolled back. The
                error has `table`, `key`, `holder` (the `txid` of that transaction) and `held_ms`, the time since its
                first call that locks rows.
            Deadlock: The lock would close a cycle of waiters. The transaction was rolled back. The error has the same
                fields.
            Rejected: Another transaction of this thread holds the lock (`holder`).

        Examples:
            >>> with db.transaction() as txn:
            ...     row = txn.get("item", 1, lock="exclusive")
            ...     txn.update("item", 1, {"stock": row.stock + 1})
            True
        """
        row: Any
        try:
            store = self.store
            if lock is not None or skip_locked:
                self._check_lock(lock, skip_locked)
                if lock == "exclusive" and not skip_locked:
                    row = locked(self, table, key, index)
                    if row is not ...:
                        return row  # type: ignore[no-any-return]
            elif self.thread == get_ident() and not self.is_ended and store.failure.first is None:
                try:
                    found = store.tables.known.get(table)
                except TypeError:  # an unhashable object, which the general path refuses
                    found = None
                if found is not None and found.plan is not None and not found.is_dropped:
                    plan = found.plan
                    if index is None:
                        row = plan.get_seen(plan.mem, plan.words, self.desc, self.buf, self.shown, key)
                    else:
                        row = plan.unique_seen(self, key, index)
                    if row is not ...:
                        return row  # type: ignore[no-any-return]
            named = store.tables.named(table)
            if index is not None:
                row = unique_calls.get(self, named, key, index, lock, skip_locked)
            elif lock == "shared":
                self.check(locks=True)
                keep_plan(named)
                # Under its lock the row stays as it is: the quick path may read it.
                return self.get(table, key) if row_operations.lock_shared(self, named, key, skip_locked) else None
            else:
                row = row_operations.get(self, named, key, lock, skip_locked)
            keep_plan(named)
        except MemoryError as error:
            raise self.out_of_memory(error) from error
        return row  # type: ignore[no-any-return]

    def update(
        self, table: str, key: Any, changes: Mapping[str, Any], where: Where = None, *, index: str | None = None
    ) -> bool:
        """Change some columns of one row.

        Args:
            key: As for `get`.
            changes: New values by column: plain values, or expressions over the row as it was (`col("n") + 1`).
            where: Change the row only if this condition accepts it, as the transaction sees it under its lock.

        Returns:
            False if `where` does not accept the row. Nothing has changed then, and the row stays locked until the
            transaction ends.

        Raises:
            RowNotFound: There is no row with this key.
            DuplicateKey: Another row has the new key of a unique index.
            NoSuchColumn: The table has no column of that name.
            NotNullViolation: A column without NULL would be NULL.
            TypeMismatch: A value or `where` has the wrong type.
            ValueOutOfRange: A value does not fit its column.
            RowTooLarge: The row would exceed a size limit.
            ProgramInvalid: An expression cannot be compiled, or the program is for another table.
            NoSuchIndex: The table has no index of that name.
            Unsupported: The index is not unique.
            Rejected: A key column is changed (delete the row and insert it), or an expression fails in this row.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.update("item", 1, {"stock": tm.col("stock") - 20}, where=tm.col("stock") >= 20)
            False
        """
        try:
            status = change(self, table, MODE_UPDATE, key, changes, index, where) or change_if(
                self, table, MODE_UPDATE, key, changes, where, index
            )
            if status:
                return status == DONE
            found = self.store.tables.named(table)
            if index is not None:
                is_changed = unique_calls.update(self, found, key, changes, where, index)
            else:
                is_changed = conditional_changes.update(self, found, key, changes, where)
            keep_plan(found)
            return is_changed
        except MemoryError as error:
            raise self.out_of_memory(error) from error

    def delete(self, table: str, key: Any, where: Where = None, *, index: str | None = None) -> bool:
        """Delete one row. With `where`, only if it accepts the row as in `update`; otherwise return False.

        Raises: RowNotFound; for `where` and `index` as `update`.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.delete("item", 3, where=tm.col("stock") == 0)
            True
        """
        try:
            status = change(self, table, MODE_DELETE, key, None, index, where) or change_if(
                self, table, MODE_DELETE, key, None, where, index
            )
            if status:
                return status == DONE
            found = self.store.tables.named(table)
            if index is not None:
                is_deleted = unique_calls.delete(self, found, key, where, index)
            else:
                is_deleted = conditional_changes.delete(self, found, key, where)
            keep_plan(found)
            return is_deleted
        except MemoryError as error:
            raise self.out_of_memory(error) from error

    def upsert(
        self,
        table: str,
        row: Mapping[str, Any] | Sequence[Any],
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
    ) -> bool:
        """Insert a row, or update the row with its primary key or its key of the unique index.

        Two threads that upsert one new key end with one row and both updates.

        Args:
            set: What is updated in an existing row: plain values, or expressions over the row as it was (`{"n":
                col("n") + 1}`). None: all columns given. The primary key stays.
            index: The unique index whose key is looked up; None: the primary key.

        Returns:
            True if the row was inserted.

        Raises:
            DuplicateKey: Another row has a unique key of this one.

        It also raises as `insert` and `update`.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.upsert("item", (2, "cup", 5), {"stock": tm.col("stock") + 5})
            False
            >>> db["item"][2].stock
            10
        """
        return few.upsert(self, self._found(table), row, set, index)

    def update_where(self, table: str, changes: Mapping[str, Any], where: Where = None) -> int:
        """Change some columns of all rows that `where` accepts (None: all rows); return how many.

        `where` is evaluated again on each row under its lock. An error in one row leaves all rows unchanged.

        Raises: as `update`, except RowNotFound; SchemaInvalid for no column to change.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.update_where("item", {"stock": 20}, where=tm.col("stock") < 10)
            2
        """
        return few.update_where(self, self._found(table), changes, where)

    def delete_where(self, table: str, where: Expression | Program) -> int:
        """Delete all rows that `where` accepts, or none on an error; return how many.

        Raises: NoSuchColumn, TypeMismatch and ProgramInvalid for a condition that cannot be compiled; Rejected if it
        fails in a row.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.delete_where("item", tm.col("stock") == 0)
            1
        """
        return few.delete_where(self, self._found(table), where)

    def insert_many(self, table: str, data: Any, progress: Progress | None = None) -> int:
        """Insert all rows of Arrow, pandas, polars, NumPy or Python data, or none; return how many.

        To know the numbers of many rows of a table with an autoincrement column, take them from a sequence
        (`Database.sequence`) and give them.

        Args:
            data: An Arrow table, batch or stream, a pandas or polars DataFrame, a LazyFrame of polars, a structured
                NumPy array, a mapping of columns, or an iterable of rows.
            progress: Called with (rows so far, -1, "rows") after each batch.

        Raises: as `insert`; `error.row` is the position in `data`.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.insert_many("item", [(4, "ink", 7), (5, "box", 2)])
            2
        """
        return few.insert_many(self, self._found(table), data, progress)

    def write_many(self, table: str, data: Any, progress: Progress | None = None) -> int:
        """Insert all rows of `data`, or replace those with their keys, or none on an error; return how many.

        Raises: as `insert_many`; DuplicateKey only for a key of a unique index.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.write_many("item", [(1, "pencil", 12), (4, "ink", 7)])
            2
        """
        return few.write_many(self, self._found(table), data, progress)

    def upsert_many(
        self,
        table: str,
        data: Any,
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Upsert all rows of `data` in their order, or none on an error; return how many were inserted.

        Rows with the same key are applied one after the other. Python rows must all have the same columns. `set` and
        `index` are those of `upsert`.

        Raises: as `upsert`; `error.row` is the position in `data`.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.upsert_many("item", [(1, "pen", 3), (4, "ink", 7)], {"stock": tm.col("stock") + 3})
            1
        """
        return few.upsert_many(self, self._found(table), data, set, index, progress)

    def update_many(self, table: str, data: Any, progress: Progress | None = None, *, index: str | None = None) -> int:
        """Change the given columns of the rows with the keys in `data`, or of none on an error; return how many.

        Args:
            data: As for `insert_many`: the key columns, and the columns to change. Python rows are mappings that have
                the same columns.
            progress: As for `insert_many`.
            index: The unique index whose columns are the key; None: the primary key.

        Raises: as `update`; `error.row` is the position in `data`.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.update_many("item", {"id": [1, 2], "stock": [8, 4]})
            2
        """
        if index is not None:
            return unique_calls.update_many(self, self._found(table), data, index, progress)
        return few.update_many(self, self._found(table), data, progress)

    def delete_many(self, table: str, keys: Any, *, index: str | None = None) -> int:
        """Delete the rows with these keys, or none on an error; return how many. `keys` are those of `get_many`.

        Raises: RowNotFound; NoSuchIndex, Unsupported, TypeMismatch and ValueOutOfRange as `get`; `error.row` is the
        position in `keys`.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.delete_many("item", [1, 3])
            2
        """
        if index is not None:
            return unique_calls.delete_many(self, self._found(table), keys, index)
        return few.delete_many(self, self._found(table), keys)

    def get_many(
        self,
        table: str,
        keys: Any,
        columns: Sequence[str] | None = None,
        *,
        index: str | None = None,
        lock: Lock = None,
        missing: Missing = DROP,
    ) -> pa.RecordBatch:
        """Return the rows with these keys, in the order of the keys, as an Arrow record batch.

        Keys without a row are left out, or with `missing="null"` have a row of NULLs, as `TableHandle.get_many` says.
        Locks are held until the transaction ends.

        Raises: as `get`; NoSuchColumn; SchemaInvalid for a column that is named twice; LimitExceeded for 2 GiB or more
        of one column.

        Examples:
            >>> with db.transaction() as txn:
            ...     txn.get_many("item", [2, 9, 1], ["stock"], lock="shared").to_pylist()
            [{'stock': 5}, {'stock': 10}]
        """
        if lock is not None:
            self._check_lock(lock)
        self.check(locks=lock is not None)
        if missing != DROP:
            return in_place(
                lambda given, wanted: self.get_many(table, given, wanted, index=index, lock=lock),
                self._found(table).newest.definition,
                *(keys, columns, index, missing),
            )
        if index is not None:
            return unique_calls.get_many(self, self._found(table), keys, columns, index, lock)
        return key_columns.get_many(self._found(table), keys, columns, self, lock)


class SnapshotTransaction(OwnView, Transaction):
    """A transaction that reads the state at its begin."""

    __slots__ = ("view",)


@has_calls_of("transaction table")
class TransactionTable(WritableTable):
    """One table of a transaction, with the transaction's calls, which name no table here and raise as there.

    Examples:
        >>> with db.transaction() as txn:
        ...     item = txn.table("item")
        ...     item[4] = {"id": 4, "name": "ink", "stock": 7}
        ...     item.update(1, {"stock": 9}), len(item), item.sum("stock"), item.get(2, lock="shared").name
        ...     [row.id for row in item.scan(where=tm.col("stock") > 7)]
        (True, 4, 21, 'cup')
        [1]
    """

    __slots__ = ("_name", "_txn")

    def __init__(self, txn: Any, name: str) -> None:
        """txn: of this process or of another one."""
        self._txn = txn
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def definition(self) -> TableDefinition:
        """The table's definition. Raises: NoSuchTable."""
        found: TableDefinition = self._txn._defined(self._name)
        return found

    # calls: python -m tools.make_faces
    insert = in_transaction(Transaction.insert)
    write = in_transaction(Transaction.write)
    update = in_transaction(Transaction.update)
    delete = in_transaction(Transaction.delete)
    upsert = in_transaction(Transaction.upsert)
    insert_many = in_transaction(Transaction.insert_many)
    write_many = in_transaction(Transaction.write_many)
    upsert_many = in_transaction(Transaction.upsert_many)
    update_many = in_transaction(Transaction.update_many)
    delete_many = in_transaction(Transaction.delete_many)
    update_where = in_transaction(Transaction.update_where)
    delete_where = in_transaction(Transaction.delete_where)
    get_many = in_transaction(Transaction.get_many)

    @described(Transaction.get, for_table_in_transaction)
    def get(self, key: Any, lock: Lock = None, *, index: str | None = None, skip_locked: bool = False) -> Row | None:
        row: Row | None = self._txn.get(self._name, key, lock, index=index, skip_locked=skip_locked)
        return row

    def scan(
        self,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        partitions: Sequence[str] | None = None,
        where: Where = None,
        *,
        progress: Progress | None = None,
        lock: Lock = None,
        skip_locked: bool = False,
        **bounds: Unpack[Bounds],
    ) -> Any:
        """Return a scan of the table. The arguments are those of `Transaction.scan`, in the order of tables.

        Raises: as `Transaction.scan`.

        Examples:
            >>> with db.transaction() as txn:
            ...     [row.name for row in txn.table("item").scan(where=tm.col("stock") > 5, lock="shared")]
            ['pen']
        """
        return self._txn.scan(
            self._name, columns, limit, lock, partitions, where, progress=progress, skip_locked=skip_locked, **bounds
        )

    def _scan(self, asked: ScanAsked) -> Any:
        return self._txn._scan(self._name, asked)

    def __len__(self) -> int:
        return self.count()

    def __repr__(self) -> str:
        return f"<tidemark table {self._name} in a transaction>"


@has_calls_of("typed transaction table")
class TypedTransactionTable(TypedWrites[R]):
    """A table of a transaction whose rows are objects of a class: what `txn.table(name, kind)` returns. It has the
    calls of a `TypedTable`, as those of the transaction, and raises as both; `get`, `get_many` and `scan` take locks.

    Examples:
        >>> from typing import TypedDict
        >>> Item = TypedDict("Item", {"id": int, "name": str, "stock": int})
        >>> with db.transaction() as txn:
        ...     item = txn.table("item", Item)
        ...     for row in item.scan(tm.col("stock") > 0, lock="exclusive"):
        ...         item.write({**row, "stock": row["stock"] - 1})
        ...     item.get(1, lock="shared"), item.get_many([2], lock="shared")[0]["stock"]
        ({'id': 1, 'name': 'pen', 'stock': 9}, 4)
    """

    # calls: python -m tools.make_faces
    update = passed(TransactionTable.update, "handle")
    delete = passed(TransactionTable.delete, "handle")
    update_many = passed(TransactionTable.update_many, "handle")
    delete_many = passed(TransactionTable.delete_many, "handle")
    update_where = passed(TransactionTable.update_where, "handle")
    delete_where = passed(TransactionTable.delete_where, "handle")

    def get(self, key: Any, lock: Lock = None, *, index: str | None = None, skip_locked: bool = False) -> R | None:
        """Return the row with this key, or None. The arguments are those of `Transaction.get`."""
        row = self.handle.get(key, lock, index=index, skip_locked=skip_locked)
        return None if row is None else self._make(self._pick(row))

    def scan(
        self,
        where: Where = None,
        limit: int | None = None,
        partitions: Sequence[str] | None = None,
        *,
        progress: Progress | None = None,
        lock: Lock = None,
        skip_locked: bool = False,
        **bounds: Unpack[Bounds],
    ) -> Iterator[R]:
        """Iterate over the rows that a condition accepts. The arguments are those of `TransactionTable.scan`."""
        options: Any = {**bounds, "lock": lock, "skip_locked": skip_locked}
        return super().scan(where, limit, partitions, progress=progress, **options)

    @overload
    def get_many(
        self, keys: Any, *, index: str | None = None, lock: Lock = None, missing: Literal["drop"] = "drop"
    ) -> list[R]: ...
    @overload
    def get_many(
        self, keys: Any, *, index: str | None = None, lock: Lock = None, missing: Literal["null"]
    ) -> list[R | None]: ...
    def get_many(self, keys: Any, *, index: str | None = None, lock: Lock = None, missing: Missing = DROP) -> Any:
        """Return the rows with these keys as `TypedTable.get_many`. lock: as for `Transaction.get_many`."""
        names = list(self._names)
        return self._listed(self.handle.get_many(keys, names, index=index, lock=lock, missing=missing))
