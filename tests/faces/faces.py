"""The faces of one table, each called in the same way, over one store with the table in each storage."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pyarrow as pa

import tidemark as tm
from tidemark.calls import FACES

SECRET = b"a secret of clients"
OPTIONS: dict[str, Any] = {
    "data_memory": "16 MiB",
    "redo_log": "32 MiB",
    "undo_log": "2 MiB",
    "page_buffer": "1 MiB",
    "background": False,
}
NAMES = ["id", "name", "n", "note"]
ROWS: list[tuple[Any, ...]] = [(1, "pen", 10, "a"), (2, "cup", 5, None), (3, "bag", None, "c")]
TABLE = "test.t"
STORAGES = ("memory", "disk", "partitions")
# Of each face of a table or a transaction: how it is reached.
# A remote typed table and the like have the classes of local ones.
WRITING = (
    *("table", "typed table", "transaction", "transaction table", "typed transaction table"),
    *("remote table", "remote typed table", "remote transaction", "remote transaction table"),
    *("remote typed transaction table", "awaited table", "awaited typed table", "awaited transaction"),
    *("awaited transaction table", "awaited typed transaction table"),
)
READING = (
    *WRITING,
    *("read-only table", "read-only typed table", "read-only transaction", "read-only transaction table"),
    *("read-only typed transaction table", "read-only snapshot table", "read-only typed snapshot table"),
    *("snapshot table", "typed snapshot table", "remote snapshot table", "remote typed snapshot table"),
    *("awaited snapshot table", "awaited typed snapshot table"),
)


def listed_as(face: str) -> str:
    """The name of a face in the list of faces: its class is that of others."""
    if face.startswith("read-only") and face.endswith("snapshot table"):
        return "read-only table" if "typed" not in face else "typed snapshot table"
    return face if face in FACES else face.partition(" ")[2]


@dataclasses.dataclass
class Item:
    """A row of the table."""

    id: int
    name: Annotated[str, tm.VarChar(20)]
    n: Annotated[int, tm.Int32] | None
    note: str | None


def create(db: tm.Database, storage: str) -> None:
    """Create the table, with an ordered index `by_n` and a unique one `by_name`, which is ordered too in partitions."""
    columns = [
        tm.Column("id", tm.Int64),
        tm.Column("name", tm.VarChar(20)),
        tm.Column("n", tm.Int32, nullable=True),
        tm.Column("note", tm.Text, nullable=True, storage="disk" if storage == "disk" else "memory"),
    ]
    parts = tm.RangePartition("id", [("low", 3), ("high", 9)]) if storage == "partitions" else None  # none takes key 9
    db.create_table(TABLE, columns, "id", parts)
    db.create_index(TABLE, "by_n", "n")
    db.create_index(TABLE, "by_name", "name", unique=True, ordered=storage == "partitions")
    db[TABLE].insert_many(ROWS)


class Faces:
    """An open store, and every other way to call it."""

    def __init__(self, directory: Path, storage: str, at_end: ExitStack) -> None:
        self.storage = storage
        self.db = at_end.enter_context(tm.open(directory, **OPTIONS))
        self._loop = asyncio.new_event_loop()
        at_end.callback(self._loop.close)
        self.aio = tm.aio.Database(self.db, threads=2)
        at_end.callback(lambda: self.awaited(self.aio.close()))
        create(self.db, storage)
        self.db.checkpoint()
        self.view = at_end.enter_context(tm.open(directory, read_only=True, data_memory="16 MiB"))
        self._serving = at_end.enter_context(tm.serve_calls(self.db, "127.0.0.1:0", SECRET))
        self.remote = at_end.enter_context(self.connected())

    def connected(self) -> tm.RemoteDatabase:
        """Return a connection of its own to the store."""
        return tm.connect([self._serving.address], SECRET, timeout_ms=60_000)

    def awaited(self, what: Any) -> Any:
        """Return the result of a coroutine."""
        return self._loop.run_until_complete(what)

    def restore(self) -> None:
        """Give the table its rows again."""
        self.db[TABLE].delete_where(tm.col("id") >= -(2**63))
        self.db[TABLE].insert_many(ROWS)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of the table, sorted. Its indexes lead to the same."""
        table = self.db[TABLE]
        rows = sorted(tuple(row) for row in table)
        for index in ("by_n", "by_name") if self.storage == "partitions" else ("by_n",):
            assert sorted(tuple(row) for row in table.scan(index=index)) == rows, index
        assert [tuple(table.get(row[1], index="by_name")) for row in rows] == rows
        return rows

    @contextmanager
    def face(self, name: str) -> Iterator[Any]:
        """An object of a face. What is done in a transaction is committed at the end, if nothing was raised."""
        stores = {"awaited": self.aio, "remote": self.remote, "read-only": self.view}
        kind = name.rpartition(" ")[2]
        store = stores.get(name.split()[0], self.db)
        rows = (Item,) if "typed" in name else ()
        if name.endswith("snapshot table"):
            with self.entered(store.snapshot()) as snapshot:
                yield snapshot.table(TABLE, *rows)
        elif name.endswith("transaction table"):
            with self.entered(store.transaction()) as txn:
                yield txn.table(TABLE, *rows)
        elif kind == "transaction":
            with self.entered(store.transaction()) as txn:
                yield txn
        elif kind == "snapshot":
            with self.entered(store.snapshot()) as snapshot:
                yield snapshot
        elif kind == "scan":
            yield store[TABLE].scan()
        elif kind == "sequence":
            yield store.sequence("s")
        else:
            yield store if kind == "store" else store.table(TABLE, *rows)

    @contextmanager
    def entered(self, manager: Any) -> Iterator[Any]:
        """A context, awaited if it must be."""
        if not hasattr(manager, "__aenter__"):
            with manager as entered:
                yield entered
            return
        entered = self.awaited(manager.__aenter__())
        try:
            yield entered
        except BaseException as error:
            self.awaited(manager.__aexit__(type(error), error, None))
            raise
        self.awaited(manager.__aexit__(None, None, None))

    def call(self, face: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Make a call of a table, and return its result in plain form."""
        with self.face(face) as made:
            table = (TABLE,) if face.endswith("transaction") else ()
            given = typed(name, arguments) if "typed" in face else arguments
            found = getattr(made, name)
            if callable(found):
                found = found(*table, *given, **named)
            if asyncio.iscoroutine(found):
                found = self.awaited(found)
            if name == "scan" and face.startswith("awaited"):
                found = self.awaited(listed(found))
            return plain(name, found)


class Calls:
    """The calls of an object, awaited if they must be."""

    def __init__(self, faces: Faces, made: Any) -> None:
        self._faces = faces
        self._made = made

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            found = getattr(self._made, name)(*arguments, **named)
            return self._faces.awaited(found) if hasattr(found, "__await__") else found

        return call


async def listed(made: Any) -> list[Any]:
    """Return what is awaited one after the other."""
    return [each async for each in made]


def typed(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a call with objects in place of rows."""
    if name in ("insert", "write", "upsert") and isinstance(arguments[0], tuple):
        return (Item(*arguments[0]), *arguments[1:])
    if name in ("insert_many", "write_many", "upsert_many"):
        return ([Item(*row) for row in arguments[0]], *arguments[1:])
    return arguments


def plain(name: str, found: Any) -> Any:
    """Return a result as Python values: rows as tuples, tables as lists of tuples."""
    if isinstance(found, Item):
        return dataclasses.astuple(found)
    if isinstance(found, (pa.Table, pa.RecordBatch)):
        return [tuple(row.values()) for row in found.to_pylist()]
    if name == "to_pandas":
        return [
            tuple(None if pd.isna(value) else value for value in row) for row in found.astype(object).values.tolist()
        ]
    if name == "to_polars":
        return found.rows()
    if name == "to_numpy":
        return [tuple(row) for row in found.tolist()]
    if name == "dataset":
        return plain("", found.to_table())
    if name == "scan_polars":
        return found.collect().rows()
    if name == "scan":
        return [plain("", row) for row in found]
    if isinstance(found, tuple):
        return tuple(found)
    if isinstance(found, list):
        return [plain("", each) for each in found]
    return found
