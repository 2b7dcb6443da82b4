"""The doors into a store: each carries out the same calls in its own way.

handle: `db[table]`; typed: a handle with a class of rows; txn, run: a transaction of one call; remote, remote txn: the
same by a client over TCP; aio, aio txn: awaited; reader: a store opened with `read_only=True`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import tidemark as tm
from tests.blackbox.kinds import ABSENT
from tests.blackbox.model import Col, Table

SECRET = b"thirty-two bytes of a secret key"
WRITING = ("handle", "txn", "run", "typed", "remote", "remote txn", "aio", "aio txn")
OPTIONS: dict[str, Any] = {
    "data_memory": "32 MiB",
    "redo_log": "8 MiB",
    "undo_log": "8 MiB",
    "page_buffer": "2 MiB",
    "checkpoint_memory": "1 MiB",
    "transaction_memory": "64 KiB",
    "background": False,
}
TABLESPACE: dict[str, Any] = {"size": "256 KiB", "page_size": "4 KiB", "extent": "64 KiB"}
TYPED = frozenset(
    {"insert", "write", "insert_many", "write_many", "update", "delete", "get", "scan", "__setitem__", "__delitem__"}
)


def column_of(column: Col) -> Any:
    """Return a column as the store takes it."""
    default = {} if column.default == ABSENT and isinstance(column.default, str) else {"default": column.default}
    storage = "disk" if column.disk else "memory"
    return tm.Column(column.name, column.kind.build(), nullable=column.nullable, storage=storage, **default)


def partition_of(partition: Any) -> Any:
    """Return a partition as the store takes it."""
    if partition is None:
        return None
    rule, columns, parts = partition
    if rule == "hash":
        return tm.HashPartition(parts, columns)
    if rule == "modulo":
        return tm.HashPartition(parts, modulo=columns)
    if rule == "linear":
        return tm.LinearHash(parts, columns)
    if rule == "key":
        return tm.KeyPartition(parts, columns, linear=parts % 2 == 0)
    if rule == "range":
        return tm.RangePartition(columns, [(name, bound_of(bound)) for name, bound in parts])
    return tm.ListPartition(columns, {name: list(values) for name, values in parts})


def bound_of(bound: Any) -> Any:
    return tm.MAXVALUE if isinstance(bound, str) and bound == "MAXVALUE" else bound


class Doors:
    """An open store in a folder of its own, with everything through which it is called."""

    def __init__(self, folder: str, **options: Any) -> None:
        self.folder = folder
        self.options = {**OPTIONS, **options}
        self.number = 0
        self.path = os.path.join(folder, "store0")
        self.db: Any = tm.open(self.path, **self.options)
        self.serving: Any = None
        self._remote: Any = None
        self._aio: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.snapshots: dict[str, Any] = {}
        self.backups: list[str] = []
        self.backed_up = ""

    # --- lives -----------------------------------------------------------------------------------
    def close(self) -> None:
        """Close everything."""
        for each in self.snapshots.values():
            each.close()
        self.snapshots.clear()
        if self._remote is not None:
            self._remote.close()
            self.serving.close()
            self._remote = self.serving = None
        if self._aio is not None:
            self.awaited(self._aio.close())
            self._aio = None
        self.db.close()
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def reopen(self) -> None:
        self.close()
        self.db = tm.open(self.path, **self.options)

    def kill(self) -> None:
        """Continue with what a SIGKILL now would leave: the files as they are, and none of the process."""
        before = self.path
        self.number += 1
        self.path = os.path.join(self.folder, f"store{self.number}")
        shutil.copytree(before, self.path)
        self.close()
        shutil.rmtree(before)
        self.db = tm.open(self.path, **self.options)

    def awaited(self, what: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(what)

    @property
    def remote(self) -> Any:
        """A client of the store."""
        if self._remote is None:
            self.serving = tm.serve_calls(self.db, "127.0.0.1:0", SECRET)
            self._remote = tm.connect([self.serving.address], SECRET)
        return self._remote

    @property
    def aio(self) -> Any:
        if self._aio is None:
            self._aio = tm.aio.Database(self.db, threads=1)
        return self._aio

    # --- calls -----------------------------------------------------------------------------------
    def on_store(self, door: str, method: str, *arguments: Any, **named: Any) -> Any:
        """Make a call of the store."""
        if door.startswith("remote"):
            return getattr(self.remote, method)(*arguments, **named)
        if door.startswith("aio"):
            return self.awaited(getattr(self.aio, method)(*arguments, **named))
        return getattr(self.db, method)(*arguments, **named)

    def on_table(self, door: str, method: str, table: str, *arguments: Any, **named: Any) -> Any:
        """Make a call of one table, as a transaction of its own."""
        if door == "handle":
            return getattr(self.db[table], method)(*arguments, **named)
        if door == "remote":
            return getattr(self.remote[table], method)(*arguments, **named)
        if door == "aio":
            return self.awaited(getattr(self.aio[table], method)(*arguments, **named))
        if door == "run":
            return self.db.run(lambda txn: getattr(txn, method)(table, *arguments, **named))
        if door == "aio txn":
            return self.awaited(self._in_aio(method, table, arguments, named))
        with self.transaction(door) as txn:
            return getattr(txn, method)(table, *arguments, **named)

    async def _in_aio(self, method: str, table: str, arguments: Any, named: Any) -> Any:
        async with self.aio.transaction() as txn:
            return await getattr(txn, method)(table, *arguments, **named)

    def transaction(self, door: str) -> Any:
        return self.remote.transaction() if door.startswith("remote") else self.db.transaction()

    def typed(self, name: str, table: Table) -> Any:
        """Return the handle with a class of rows, made for the table's columns."""
        return self.db.table(name, class_of(table))

    def source(self, door: str, table: str) -> Any:
        """Return what the tables of a door are read from."""
        if door.startswith("remote"):
            return self.remote[table]
        return self.db[table]

    @contextmanager
    def reader(self) -> Iterator[Any]:
        """Open the last local checkpoint for reading."""
        with tm.open(self.db.locator.directory, read_only=True, data_memory="32 MiB") as view:
            yield view


def class_of(table: Table) -> Any:
    """Return a dataclass with the columns of a table."""
    return _class_of(tuple((each.name, each.kind.python, each.nullable) for each in table.columns))


@lru_cache(1_000)
def _class_of(columns: tuple[tuple[str, Any, bool], ...]) -> Any:
    fields = [(name, python | None if nullable else python) for name, python, nullable in columns]
    return dataclasses.make_dataclass("Row", fields)
