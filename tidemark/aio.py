"""`tm.aio`: the calls of a store for asyncio programs.

Each call runs in a thread and is awaited. A transaction belongs to one thread, so it has a thread of its own from begin
to end. If a task is cancelled, the call that runs for it is completed first, because a commit that is in the log
cannot be undone. Then CancelledError continues, and `async with` rolls an open transaction back. A call that waits for
a lock ends after `lock_timeout_ms` at the latest, cancelled or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import islice
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, NoReturn, ParamSpec, Self, TypeVar, overload

from tidemark import opening
from tidemark.calls import has_calls_of
from tidemark.database import Database as SyncDatabase
from tidemark.derived import described
from tidemark.engine.base.errors import Retryable, SchemaInvalid
from tidemark.engine.queries.missing_rows import DROP, Missing
from tidemark.handles import TableHandle
from tidemark.scans import Scan as SyncScan
from tidemark.sequences import Sequence as SyncSequence
from tidemark.session import READ_COMMITTED, Isolation, Lock
from tidemark.session import Transaction as SyncTransaction
from tidemark.session import TransactionTable as SyncTransactionTable
from tidemark.shared_calls import RETRY_PAUSE_SECONDS
from tidemark.snapshot import Snapshot as SyncSnapshot
from tidemark.table_reads import TableReads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from tidemark.engine.rows.row import Row
    from tidemark.scans import Progress

__all__ = [
    *("Database", "Scan", "Snapshot", "SnapshotTable", "Table", "Transaction", "TransactionTable"),
    *("TypedSnapshotTable", "TypedTable", "TypedTransactionTable", "connect", "open"),
]
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")  # of the rows of a table

THREADS = 8
PIECE_ROWS = 1_000  # rows of a scan that one call fetches


async def completed(executor: Executor, call: Callable[[], R], discard: Callable[[R], object] | None = None) -> R:
    """Run a call in a thread and return its result. If this task is cancelled, the call is completed first; then
    `discard` is called with its result, and CancelledError continues.
    """
    work = partial(contextvars.copy_context().run, call)
    future = asyncio.get_running_loop().run_in_executor(executor, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return future.result()
    if future.exception() is None and discard is not None:
        await completed(executor, partial(discard, future.result()))
    raise cancelled


class Threads:
    """The threads of one store: some for single calls, and one for each open transaction."""

    def __init__(self, count: int) -> None:
        if not isinstance(count, int) or count < 1:
            raise SchemaInvalid(f"threads is {count!r}; give a number of 1 or more")
        self.shared = ThreadPoolExecutor(count, "tidemark-aio")
        self._idle: list[ThreadPoolExecutor] = []

    def lend(self) -> ThreadPoolExecutor:
        return self._idle.pop() if self._idle else ThreadPoolExecutor(1, "tidemark-aio-transaction")

    def take_back(self, thread: ThreadPoolExecutor) -> None:
        """Keep the thread of a transaction that has ended for the next one."""
        self._idle.append(thread)

    def end(self) -> None:
        for each in (self.shared, *self._idle):
            each.shutdown(wait=False)
        self._idle.clear()


class Awaited(Generic[P, R]):
    """A method of a synchronous class, to be awaited. It has the signature and the text of that one; its examples are
    for that one.
    """

    def __init__(self, method: Callable[Concatenate[Any, P], R]) -> None:
        name = method.__name__

        @functools.wraps(method)
        async def call(self: _Calls, /, *arguments: P.args, **named: P.kwargs) -> R:
            result: R = await self._call(name, *arguments, **named)
            return result

        self.__doc__ = call.__doc__ = f"`{method.__qualname__}`, awaited.\n\n{inspect.getdoc(method)}"
        self._call = call

    def __get__(self, owner: _Calls | None, kind: type) -> Callable[P, Coroutine[Any, Any, R]]:
        return self._call if owner is None else MethodType(self._call, owner)  # type: ignore[return-value]


class _Calls:
    """Calls on one object. `find` returns it, in the thread in which the call runs."""

    def __init__(self, executor: Executor, find: Callable[[], Any], what: str = "") -> None:
        """what: how the object shows itself."""
        self._executor = executor
        self._find = find
        self._what = what

    def __repr__(self) -> str:
        return f"<tidemark {self._what}, awaited>"

    async def _call(self, name: str, /, *arguments: Any, **named: Any) -> Any:
        return await completed(self._executor, lambda: getattr(self._find(), name)(*arguments, **named))


@has_calls_of("awaited scan")
class Scan(_Calls):
    """One scan, not begun yet: iterate over it once with `async for`, or await one of its calls.

    The calls are those of `tm.Scan` and raise as there. The first call or iteration also raises errors in the arguments
    of the scan.

    Examples:
        >>> async def main():
        ...     async with tm.aio.open("shop", redo_log="16 MiB") as db:
        ...         await db.create_table("item", [tm.Column("name", tm.VarChar(20))], "name")
        ...         await db["item"].insert(("pen",))
        ...         names = [row.name async for row in db["item"].scan(["name"])]
        ...         rows = [batch.num_rows async for batch in db["item"].scan().batches()]
        ...         return names, rows, await db["item"].scan().aggregate(n=("count",))
        >>> asyncio.run(main())
        (['pen'], [1], Row(n=1))
    """

    # calls: python -m tools.make_faces
    schema = Awaited(SyncScan.schema)
    explain = Awaited(SyncScan.explain)
    count = Awaited(SyncScan.count)
    sum = Awaited(SyncScan.sum)
    min = Awaited(SyncScan.min)
    max = Awaited(SyncScan.max)
    mean = Awaited(SyncScan.mean)
    aggregate = Awaited(SyncScan.aggregate)
    sample = Awaited(SyncScan.sample)
    to_arrow = Awaited(SyncScan.to_arrow)
    to_pandas = Awaited(SyncScan.to_pandas)
    to_polars = Awaited(SyncScan.to_polars)
    to_numpy = Awaited(SyncScan.to_numpy)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._pieces(iter, PIECE_ROWS)

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield the rows as Arrow record batches."""
        return self._pieces(lambda scan: iter(scan.batches()), 1)

    async def _pieces(self, begin: Callable[[Any], Iterator[Any]], count: int) -> AsyncIterator[Any]:
        found = await completed(self._executor, lambda: begin(self._find()))
        try:
            while piece := await completed(self._executor, lambda: list(islice(found, count))):
                for each in piece:
                    yield each
        finally:
            # After the store was closed there are no threads, and nothing that the scan could hold.
            with contextlib.suppress(RuntimeError):
                await completed(self._executor, getattr(found, "close", lambda: None))


class _Table(_Calls, Generic[T]):
    """What is the same in tables with and without a class of rows."""

    # calls: python -m tools.make_faces
    explain = Awaited(TableReads.explain)
    count = Awaited(TableReads.count)
    sum = Awaited(TableReads.sum)
    min = Awaited(TableReads.min)
    max = Awaited(TableReads.max)
    mean = Awaited(TableReads.mean)
    aggregate = Awaited(TableReads.aggregate)
    sample = Awaited(TableReads.sample)
    to_arrow = Awaited(TableReads.to_arrow)
    to_pandas = Awaited(TableReads.to_pandas)
    to_polars = Awaited(TableReads.to_polars)
    to_numpy = Awaited(TableReads.to_numpy)

    async def __getitem__(self, key: Any) -> T:
        """Return the row with this key: `await table[key]`. Raises: RowNotFound."""
        return await self._call("__getitem__", key)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> NoReturn:
        raise TypeError("len() of a table cannot be awaited; use `await table.count()`")

    def __contains__(self, key: object) -> NoReturn:
        raise TypeError("`in` a table cannot be awaited; use `await table.get(key) is not None`")


class _Changes(_Table[T]):
    """The changing calls in which no row is given, and those that describe a table."""

    # calls: python -m tools.make_faces
    update = Awaited(TableHandle.update)
    delete = Awaited(TableHandle.delete)
    update_many = Awaited(TableHandle.update_many)
    delete_many = Awaited(TableHandle.delete_many)
    update_where = Awaited(TableHandle.update_where)
    delete_where = Awaited(TableHandle.delete_where)
    indexes = Awaited(TableHandle.indexes)
    partitions = Awaited(TableHandle.partitions)


class _Reads(_Table["Row"]):
    """The reading calls of tables."""

    # calls: python -m tools.make_faces
    get = Awaited(TableReads.get)
    get_many = Awaited(TableReads.get_many)

    def scan(self, *arguments: Any, **named: Any) -> Scan:
        """Return a scan of the table; the arguments are those of `TableHandle.scan`."""
        return Scan(self._executor, lambda: self._find().scan(*arguments, **named), f"scan of {self._what}")

    def __aiter__(self) -> AsyncIterator[Row]:
        return self.scan().__aiter__()


class _Writes(_Changes["Row"], _Reads):
    """The reading and changing calls of tables."""

    # calls: python -m tools.make_faces
    insert = Awaited(TableHandle.insert)
    write = Awaited(TableHandle.write)
    upsert = Awaited(TableHandle.upsert)
    insert_many = Awaited(TableHandle.insert_many)
    write_many = Awaited(TableHandle.write_many)
    upsert_many = Awaited(TableHandle.upsert_many)


@has_calls_of("awaited table")
class Table(_Writes):
    """The calls of `tm.TableHandle`, awaited; they raise as there.

    Each writing call is a transaction of its own, as durable on return as the call of `tm.TableHandle`.

    Examples:
        >>> async def main():
        ...     async with tm.aio.open("shop", redo_log="16 MiB") as db:
        ...         item = await db.create_table("item", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32)], "id")
        ...         await asyncio.gather(*(item.insert((number, 0)) for number in range(20)))
        ...         await item.update_where({"n": tm.col("id") * 2}, where=tm.col("id") > 17)
        ...         await item.explain(where=tm.col("id") == 3)
        ...         found = [row.id async for row in item.scan(where=tm.col("n") > 0)]
        ...         return await item[19], await item.get(20), await item.sum("n"), len(found)
        >>> asyncio.run(main())
        (Row(id=19, n=38), None, 74, 2)
    """


@has_calls_of("awaited snapshot table")
class SnapshotTable(_Reads):
    """The calls of `tm.SnapshotTable`, awaited; they raise as there.

    Examples:
        >>> async def main():
        ...     async with tm.aio.open("shop", redo_log="16 MiB") as db:
        ...         await db.create_table("item", [tm.Column("id", tm.Int64)], "id")
        ...         async with db.snapshot() as now:
        ...             return await now["item"].aggregate(n=("count",), most=("max", "id"))
        >>> asyncio.run(main())
        Row(n=0, most=None)
    """


@has_calls_of("awaited transaction table")
class TransactionTable(_Writes):
    """The calls of `tm.TransactionTable`, awaited; they raise as there.

    Examples:
        >>> async def main():
        ...     async with tm.aio.open("shop", redo_log="16 MiB") as db:
        ...         await db.create_table("item", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32)], "id")
        ...         async with db.transaction() as txn:
        ...             item = txn.table("item")
        ...             await item.insert((1, 10))
        ...             row = await item.get(1, lock="exclusive")
        ...             return await item.update(1, {"n": row.n - 3}), (await item[1]).n
        >>> asyncio.run(main())
        (True, 7)
    """

    # calls: python -m tools.make_faces
    get = Awaited(SyncTransactionTable.get)
    get_many = Awaited(SyncTransactionTable.get_many)


class _TypedReads(_Table[R]):
    """The reading calls of tables whose rows are objects of a class."""

    def __init__(self, executor: Executor, make: Callable[[], Any], what: str) -> None:
        """make: returns the table; the class is compared with it in the first call."""
        super().__init__(executor, functools.cache(make), what)

    async def get(self, key: Any, *, index: str | None = None) -> R | None:
        """Return the row with this key, or None."""
        return await self._call("get", key, index=index)  # type: ignore[no-any-return]

    @overload
    async def get_many(self, keys: Any, *, index: str | None = None, missing: Literal["drop"] = "drop") -> list[R]: ...
    @overload
    async def get_many(self, keys: Any, *, index: str | None = None, missing: Literal["null"]) -> list[R | None]: ...
    async def get_many(self, keys: Any, *, index: str | None = None, missing: Missing = DROP) -> Any:
        """Return the rows with these keys, in the order of the keys. Keys without a row are left out, or with
        `missing="null"` have None in their place.
        """
        return await self._call("get_many", keys, index=index, missing=missing)

    def scan(self, *arguments: Any, **named: Any) -> AsyncIterator[R]:
        """Iterate over the rows that a condition accepts, with `async for`. The arguments are those of
        `tm.TypedTable.scan`, in a transaction those of `tm.TypedTransactionTable.scan`.
        """
        scan = Scan(self._executor, lambda: self._find().scan(*arguments, **named))
        return scan.__aiter__()

    def __aiter__(self) -> AsyncIterator[R]:
        return self.scan()


@has_calls_of("awaited typed table")
class TypedTable(_Changes[R], _TypedReads[R]):
    """The calls of `tm.TypedTable`, awaited; they raise as there. The first call also raises SchemaInvalid if the class
    does not agree with the table.

    Examples:
        >>> import dataclasses
        >>> @dataclasses.dataclass
        ... class Item:
        ...     id: int
        ...     n: int
        >>> async def main():
        ...     async with tm.aio.open("shop", redo_log="16 MiB") as db:
        ...         item = await db.create_table("item", Item, "id")
        ...         await item.insert(Item(1, 10))
        ...         await item.insert_many([Item(2, 20), Item(3, 30)])
        ...         await item.write(Item(3, 31))
        ...         await item.write_many([Item(2, 25)])
        ...         was_new = await item.upsert(Item(4, 40)), await item.upsert_many([Item(4, 50)])
        ...         async with db.snapshot() as before:
        ...             await item.update(1, {"n": 0})
        ...             was = await before.table("item", Item)[1]
        ...         many = [row async for row in item.scan(tm.col("n") > 40)], await item.get_many([2])
        ...         return await item[1], await item.get(9), was, was_new, many
        >>> asyncio.run(main())
        (Item(id=1, n=0), None, Item(id=1, n=10), (True, 0), ([Item(id=4, n=50)], [Item(id=2, n=25)]))
    """

    async def insert(self, row: R) -> int | None:
        """Insert one row; return its number in a table with an autoincrement column, else None."""
        return await self._call("insert", row)  # type: ignore[no-any-return]

    async def write(self, row: R) -> int | None:
        """Insert one row, or replace the row with its key; return as `insert`."""
        return await self._call("write", row)  # type: ignore[no-any-return]

    async def insert_many(self, rows: Iterable[R], progress: Progress | None = None) -> int:
        """Insert all rows, or none; return how many."""
        return int(await self._call("insert_many", rows, progress))

    async def write_many(self, rows: Iterable[R], progress: Progress | None = None) -> int:
        """Insert all rows, or replace those with their keys, or none on an error; return how many."""
        return int(await self._call("write_many", rows, progress))

    async def upsert(self, row: R, set: Mapping[str, Any] | None = None, index: str | None = None) -> bool:
        """Insert a row, or update the row with its key; return True if it was inserted."""
        return bool(await self._call("upsert", row, set, index))

    async def upsert_many(
        self,
        rows: Iterable[R],
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Upsert all rows, or none on an error; return how many were inserted."""
        return int(await self._call("upsert_many", rows, set, index, progress))


@has_calls_of("awaited typed snapshot table")
class TypedSnapshotTable(_TypedReads[R]):
    """The calls of `tm.TypedSnapshotTable`, awaited; they raise as there, and as `TypedTable`, which has an example."""


@has_calls_of("awaited typed transaction table")
class TypedTransactionTable(TypedTable[R]):
    """The calls of `tm.TypedTransactionTable`, awaited; they raise as there, and as `TypedTable`, which has more
    examples.

    Examples:
        >>> import dataclasses
        >>> @dataclasses.dataclass
        ... class Item:
        ...     id: int
        ...     n: int
        >>> async def main():
        ...     async with tm.aio.open("shop", redo_log="16 MiB") as db:
        ...         await db.create_table("item", Item, "id")
        ...         async with db.transaction() as txn:
        ...             item = txn.table("item", Item)
        ...             await item.write(Item(1, 10))
        ...             row = await item.get(1, lock="exclusive")
        ...             return row, await item.get_many([1, 2], lock="shared")
        >>> asyncio.run(main())
        (Item(id=1, n=10), [Item(id=1, n=10)])
    """

    async def get(
        self, key: Any, lock: Lock = None, *, index: str | None = None, skip_locked: bool = False
    ) -> R | None:
        """Return the row with this key, or None. The arguments are those of `tm.Transaction.get`."""
        return await self._call("get", key, lock, index=index, skip_locked=skip_locked)  # type: ignore[no-any-return]

    @overload
    async def get_many(
        self, keys: Any, *, index: str | None = None, lock: Lock = None, missing: Literal["drop"] = "drop"
    ) -> list[R]: ...
    @overload
    async def get_many(
        self, keys: Any, *, index: str | None = None, lock: Lock = None, missing: Literal["null"]
    ) -> list[R | None]: ...
    async def get_many(self, keys: Any, *, index: str | None = None, lock: Lock = None, missing: Missing = DROP) -> Any:
        """Return the rows with these keys as `TypedTable.get_many`. lock: as for `tm.Transaction.get_many`."""
        return await self._call("get_many", keys, index=index, lock=lock, missing=missing)


@has_calls_of("awaited snapshot")
class Snapshot(_Calls):
    """Every table as at the end of one epoch, with `async with`.

    The calls are those of `tm.Snapshot`, awaited; they raise as there.

    Examples:
        >>> async def main():
        ...     async with tm.aio.open("shop", redo_log="16 MiB") as db:
        ...         item = await db.create_table("item", [tm.Column("id", tm.Int64)], "id")
        ...         async with db.snapshot() as before:
        ...             await item.insert((1,))
        ...             rows = await before.table("item").aggregate(n=("count",))
        ...             return rows.n, await item.scan().count()
        >>> asyncio.run(main())
        (0, 1)
    """

    # calls: python -m tools.make_faces
    tables = Awaited(SyncSnapshot.tables)

    def __init__(self, threads: Threads, open_snapshot: Callable[[], SyncSnapshot]) -> None:
        super().__init__(threads.shared, lambda: self._snapshot, "snapshot, not open")
        self._open_snapshot = open_snapshot
        self._snapshot: SyncSnapshot

    async def __aenter__(self) -> Self:
        self._snapshot = await completed(self._executor, self._open_snapshot, lambda opened: opened.close())
        self._what = f"snapshot of epoch {self._snapshot.epoch}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await completed(self._executor, self._snapshot.close)

    @property
    def epoch(self) -> int:
        """The epoch whose end the snapshot shows."""
        return self._snapshot.epoch

    def __getitem__(self, name: str) -> SnapshotTable:
        return SnapshotTable(self._executor, lambda: self._snapshot[name], f"table {name} of a {self._what}")

    @overload
    def table(self, name: str) -> SnapshotTable: ...

    @overload
    def table(self, name: str, kind: type[R]) -> TypedSnapshotTable[R]: ...

    def table(self, name: str, kind: type[R] | None = None) -> SnapshotTable | TypedSnapshotTable[R]:
        """Return a table, also as `snapshot[name]`; with a class, one whose rows are objects of it. Its calls raise
        NoSuchTable if there is none.
        """
        if kind is None:
            return self[name]
        what = f"table {name} as {kind.__name__} of a {self._what}"
        return TypedSnapshotTable(self._executor, lambda: self._snapshot.table(name, kind), what)


@has_calls_of("awaited sequence")
class Sequence(_Calls):
    """The calls of `tm.Sequence`, awaited; they raise as there.

    Examples:
        >>> async def main():
        ...     async with tm.aio.open("shop", redo_log="16 MiB") as db:
        ...         invoice = db.sequence("invoice")
        ...         return invoice.name, await invoice.next(), await invoice.take(2)
        >>> asyncio.run(main())
        ('invoice', 1, range(2, 4))
    """

    # calls: python -m tools.make_faces
    next = Awaited(SyncSequence.next)
    take = Awaited(SyncSequence.take)

    def __init__(self, executor: Executor, find: Callable[[], Any], name: str) -> None:
        super().__init__(executor, find)
        self.name = name


@has_calls_of("awaited transaction")
class Transaction(_Calls):
    """A transaction, with `async with`, which commits at the end and rolls back on an exception or a cancellation.

    The calls are those of `tm.Transaction`, awaited; they raise as there. Tasks that share a transaction take turns. If
    the task is cancelled while the transaction commits, it is committed all the same, and CancelledError follows.

    Examples:
        >>> async def main():
        ...     async with tm.aio.open("shop", redo_log="16 MiB") as db:
        ...         await db.create_table("item", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32)], "id")
        ...         async with db.transaction() as txn:
        ...             await txn.insert("item", (1, 10))
        ...             row = await txn.get("item", 1, lock="exclusive")
        ...             async with txn.savepoint():
        ...                 await txn.update("item", 1, {"n": row.n - 3})
        ...             return [row.n async for row in txn.scan("item")], await txn.table("item").sum("n")
        >>> asyncio.run(main())
        ([7], 7)
    """

    # calls: python -m tools.make_faces
    insert = Awaited(SyncTransaction.insert)
    write = Awaited(SyncTransaction.write)
    update = Awaited(SyncTransaction.update)
    delete = Awaited(SyncTransaction.delete)
    upsert = Awaited(SyncTransaction.upsert)
    insert_many = Awaited(SyncTransaction.insert_many)
    write_many = Awaited(SyncTransaction.write_many)
    upsert_many = Awaited(SyncTransaction.upsert_many)
    update_many = Awaited(SyncTransaction.update_many)
    delete_many = Awaited(SyncTransaction.delete_many)
    update_where = Awaited(SyncTransaction.update_where)
    delete_where = Awaited(SyncTransaction.delete_where)
    get = Awaited(SyncTransaction.get)
    get_many = Awaited(SyncTransaction.get_many)
    explain = Awaited(SyncTransaction.explain)
    count = Awaited(SyncTransaction.count)
    sum = Awaited(SyncTransaction.sum)
    min = Awaited(SyncTransaction.min)
    max = Awaited(SyncTransaction.max)
    mean = Awaited(SyncTransaction.mean)
    aggregate = Awaited(SyncTransaction.aggregate)
    sample = Awaited(SyncTransaction.sample)
    to_arrow = Awaited(SyncTransaction.to_arrow)
    to_pandas = Awaited(SyncTransaction.to_pandas)
    to_polars = Awaited(SyncTransaction.to_polars)
    to_numpy = Awaited(SyncTransaction.to_numpy)
    commit = Awaited(SyncTransaction.commit)
    rollback = Awaited(SyncTransaction.rollback)

    def __init__(self, threads: Threads, begin: Callable[[], SyncTransaction]) -> None:
        self._threads = threads
        self._begin = begin
        self._txn: SyncTransaction
        self._what = "transaction, not begun"

    def _begun(self) -> SyncTransaction:
        txn = self._begin()
        txn.begin()  # so that it has an id, which no other thread may ask for
        return txn

    async def __aenter__(self) -> Self:
        thread = self._threads.lend()
        try:
            self._txn = await completed(thread, self._begun, SyncTransaction.rollback)
        except BaseException:
            self._threads.take_back(thread)
            raise
        self._thread = thread
        super().__init__(thread, lambda: self._txn)
        return self

    def __repr__(self) -> str:
        return f"{repr(self._txn)[:-1]}, awaited>" if hasattr(self, "_txn") else super().__repr__()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            await completed(self._thread, lambda: self._txn.__exit__(kind, error, trace))
        finally:
            self._threads.take_back(self._thread)

    @property
    def txid(self) -> int:
        """The id of the transaction, for `Database.outcome`."""
        return self._txn.txid

    @contextlib.asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Undo the operations of the block, and release the locks that it has taken, if it raises; the transaction
        continues.
        """
        point = self._txn.savepoint()
        await completed(self._thread, point.__enter__)
        try:
            yield
        except BaseException as error:
            ended = error
            await completed(self._thread, lambda: point.__exit__(type(ended), ended, ended.__traceback__))
            raise
        await completed(self._thread, lambda: point.__exit__(None, None, None))

    def scan(self, *arguments: Any, **named: Any) -> Scan:
        """Return a scan of a table; the arguments are those of `tm.Transaction.scan`."""
        return Scan(self._thread, lambda: self._txn.scan(*arguments, **named), "scan in a transaction")

    @overload
    def table(self, name: str) -> TransactionTable: ...

    @overload
    def table(self, name: str, kind: type[R]) -> TypedTransactionTable[R]: ...

    def table(self, name: str, kind: type[R] | None = None) -> TransactionTable | TypedTransactionTable[R]:
        """Return a table as this transaction sees and changes it; with a class, one whose rows are objects of it. Its
        calls raise NoSuchTable if there is none.
        """
        if kind is None:
            return TransactionTable(self._thread, lambda: self._txn.table(name), f"table {name} in a transaction")
        what = f"table {name} as {kind.__name__} in a transaction"
        return TypedTransactionTable(self._thread, lambda: self._txn.table(name, kind), what)


@has_calls_of("awaited store")
class Database(_Calls):
    """The calls of an open store of this process (`tm.Database`) or of another one (`tm.RemoteDatabase`), awaited.

    They raise as there. The object belongs to one event loop. Most programs get it from `open`. `db["item"]` is a
    `Table`.

    Args:
        store: The store; closing this object closes it.
        threads: How many calls run at the same time, besides those of transactions, which have a thread each.

    Raises: SchemaInvalid for `threads` less than 1.

    Examples:
        >>> async def main():
        ...     db = tm.aio.Database(tm.open("shop", redo_log="16 MiB"), threads=2)
        ...     item = await db.create_table("item", [tm.Column("id", tm.Int64)], "id")
        ...     async with db.snapshot() as before, db.transaction() as txn:
        ...         await txn.insert("item", (1,))
        ...     await db.run(lambda txn: txn.insert("item", (2,)))
        ...     rows = await db.table("item").count()
        ...     rules = await db.create_replication_table()
        ...     found = rows, await rules.count(), await db.tables()
        ...     await db.close()
        ...     return found
        >>> asyncio.run(main())
        (2, 0, ['main.item'])
    """

    # calls: python -m tools.make_faces
    drop_table = Awaited(SyncDatabase.drop_table)
    truncate = Awaited(SyncDatabase.truncate)
    add_column = Awaited(SyncDatabase.add_column)
    drop_column = Awaited(SyncDatabase.drop_column)
    rename = Awaited(SyncDatabase.rename)
    rename_column = Awaited(SyncDatabase.rename_column)
    set_default = Awaited(SyncDatabase.set_default)
    widen_column = Awaited(SyncDatabase.widen_column)
    add_partition = Awaited(SyncDatabase.add_partition)
    drop_partition = Awaited(SyncDatabase.drop_partition)
    create_index = Awaited(SyncDatabase.create_index)
    drop_index = Awaited(SyncDatabase.drop_index)
    add_check = Awaited(SyncDatabase.add_check)
    drop_check = Awaited(SyncDatabase.drop_check)
    set_expiry = Awaited(SyncDatabase.set_expiry)
    create_tablespace = Awaited(SyncDatabase.create_tablespace)
    add_datafile = Awaited(SyncDatabase.add_datafile)
    drop_tablespace = Awaited(SyncDatabase.drop_tablespace)
    set_conflict_function = Awaited(SyncDatabase.set_conflict_function)
    tables = Awaited(SyncDatabase.tables)
    tablespaces = Awaited(SyncDatabase.tablespaces)
    indexes = Awaited(SyncDatabase.indexes)
    partitions = Awaited(SyncDatabase.partitions)
    outcome = Awaited(SyncDatabase.outcome)
    sync = Awaited(SyncDatabase.sync)
    expire = Awaited(SyncDatabase.expire)
    status = Awaited(SyncDatabase.status)
    check = Awaited(SyncDatabase.check)
    checkpoint = Awaited(SyncDatabase.checkpoint)
    kill = Awaited(SyncDatabase.kill)
    backup = Awaited(SyncDatabase.backup)
    archive = Awaited(SyncDatabase.archive)
    load = Awaited(SyncDatabase.load)
    load_sqlite = Awaited(SyncDatabase.load_sqlite)
    plan_load = Awaited(SyncDatabase.plan_load)
    adopt = Awaited(SyncDatabase.adopt)
    loads = Awaited(SyncDatabase.loads)
    sweep_loads = Awaited(SyncDatabase.sweep_loads)
    wait_applied = Awaited(SyncDatabase.wait_applied)
    wait_received = Awaited(SyncDatabase.wait_received)
    check_binlog = Awaited(SyncDatabase.check_binlog)
    check_replication = Awaited(SyncDatabase.check_replication)
    replication_rows = Awaited(SyncDatabase.replication_rows)
    check_usable = Awaited(SyncDatabase.check_usable)
    space_report = Awaited(SyncDatabase.space_report)

    def __init__(self, store: Any, threads: int = THREADS) -> None:
        self._threads = Threads(threads)
        super().__init__(self._threads.shared, lambda: store)
        self._store = store

    def __repr__(self) -> str:
        return f"{repr(self._store)[:-1]}, awaited>"

    def _ipython_key_completions_(self) -> list[str]:
        found: list[str] = self._store._ipython_key_completions_()
        return found

    async def close(self) -> None:
        """Close the store, as `tm.Database.close`, and end the threads. Transactions must have ended."""
        try:
            await completed(self._executor, self._store.close)
        finally:
            self._threads.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __getitem__(self, name: str) -> Table:
        return Table(self._executor, lambda: self._store[name], f"table {name}")

    @overload
    def table(self, name: str) -> Table: ...

    @overload
    def table(self, name: str, kind: type[R]) -> TypedTable[R]: ...

    def table(self, name: str, kind: type[R] | None = None) -> Table | TypedTable[R]:
        """Return a table, also as `db[name]`; with a class, one whose rows are objects of it. Its calls raise
        NoSuchTable if there is none.
        """
        if kind is None:
            return self[name]
        what = f"table {name} as {kind.__name__}"
        return TypedTable(self._executor, lambda: self._store.table(name, kind), what)

    @overload
    async def create_table(self, name: str, columns: type[R], *arguments: Any, **named: Any) -> TypedTable[R]: ...

    @overload
    async def create_table(self, name: str, *arguments: Any, **named: Any) -> Table: ...

    async def create_table(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Create a table and return it; the arguments are those of `tm.Database.create_table`. Durable on return."""
        await self._call("create_table", name, *arguments, **named)
        kind = named["columns"] if "columns" in named else arguments[0]
        return self.table(name, kind) if isinstance(kind, type) else self[name]

    async def create_replication_table(self) -> Table:
        """`Database.create_replication_table`, awaited."""
        await self._call("create_replication_table")
        return self["mysql.ndb_replication"]

    def sequence(self, name: str) -> Sequence:
        """Return a sequence; see `tm.Database.sequence`, whose errors its calls raise.

        Examples:
            >>> async def main():
            ...     async with tm.aio.open("shop", redo_log="16 MiB") as db:
            ...         return await db.sequence("invoice").next()
            >>> asyncio.run(main())
            1
        """
        return Sequence(self._executor, lambda: self._store.sequence(name), name)

    def transaction(self, *, isolation: Isolation = READ_COMMITTED) -> Transaction:
        """Return a transaction for `async with`. isolation: as for `tm.Database.transaction`."""
        return Transaction(self._threads, lambda: self._store.transaction(isolation=isolation))

    def snapshot(self) -> Snapshot:
        """Return a snapshot for `async with`."""
        return Snapshot(self._threads, self._store.snapshot)

    @described(SyncDatabase.run, lambda text: f"`Database.run`, awaited. `work` is an async function.\n\n{text}")
    async def run(
        self,
        work: Callable[[Transaction], Awaitable[R]],
        retries: int = 5,
        *,
        isolation: Isolation = READ_COMMITTED,
    ) -> R:
        if retries < 0:
            raise SchemaInvalid(f"retries must be 0 or more, got {retries}")
        for attempt in range(retries):
            with contextlib.suppress(Retryable):
                async with self.transaction(isolation=isolation) as txn:
                    return await work(txn)
            await asyncio.sleep(RETRY_PAUSE_SECONDS * (1 << attempt))
        async with self.transaction(isolation=isolation) as txn:
            return await work(txn)


class _Opening:
    """A store that is being opened: await it, or use it with `async with`."""

    def __init__(self, open_store: Callable[[], Any], threads: int) -> None:
        self._open_store = open_store
        self._threads = threads

    async def _opened(self) -> Database:
        with ThreadPoolExecutor(1, "tidemark-aio-open") as thread:
            store = await completed(thread, self._open_store, lambda opened: opened.close())
        return Database(store, self._threads)

    def __await__(self) -> Generator[Any, None, Database]:
        return self._opened().__await__()

    async def __aenter__(self) -> Database:
        self._database = await self._opened()
        return self._database

    async def __aexit__(self, *error: object) -> None:
        await self._database.close()


def open(path: Any, *, threads: int = THREADS, **options: Any) -> _Opening:
    """Open a store: `async with tm.aio.open("shop") as db`, or `db = await tm.aio.open("shop")`.

    Args:
        path: As for `tm.open`.
        threads: How many calls run at the same time, besides those of transactions, which have a thread each.
        options: As for `tm.open`.

    Raises: as `tm.open`.

    Examples:
        >>> async def main():
        ...     db = await tm.aio.open("shop", redo_log="16 MiB")
        ...     await db.close()
        >>> asyncio.run(main())
    """
    return _Opening(lambda: opening.open(path, **options), threads)


def connect(*arguments: Any, threads: int = THREADS, **named: Any) -> _Opening:
    """Connect to a store of another process; the arguments are those of `tm.connect`.

    Args:
        threads: How many calls run at the same time, besides those of transactions, which have a thread each.

    Raises: as `tm.connect`.

    Examples:
        >>> async def main():
        ...     with tm.serve_calls(db, "127.0.0.1:0", secret) as serving:
        ...         async with tm.aio.connect([serving.address], secret) as remote:
        ...             return await remote["item"].get(1)
        >>> asyncio.run(main())
        Row(id=1, name='pen', stock=10)
    """
    from tidemark.remote.database import connect as connect_now

    return _Opening(lambda: connect_now(*arguments, **named), threads)


def __dir__() -> list[str]:
    return __all__
