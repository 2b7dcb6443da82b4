"""Calls on each face, for mypy, which reads them as strict: each has the types of that it is made from. None runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import tidemark as tm

N = tm.col("n")


@dataclass
class Item:
    """A row of the table."""

    id: int
    name: str
    n: int | None
    note: str | None


def of_a_store(db: tm.Database) -> None:
    """A table, a typed one, a transaction and a snapshot."""
    table = db["t"]
    assert_type(table.upsert({"id": 1}, {"n": N + 1}, index="by_name"), bool)
    assert_type(table.insert_many([], progress=None), int)
    assert_type(table.count(where=N > 1), int)
    table.upsert()  # type: ignore[call-arg]
    table.upsert(1)  # type: ignore[arg-type]
    table.delete_many([1], indx="by_name")  # type: ignore[call-arg]
    table.upsert("t", {"id": 1}, index=1)  # type: ignore[arg-type]
    typed = db.table("t", Item)
    assert_type(typed.get_many([1]), list[Item])
    assert_type(typed.get_many([1], missing="null"), list[Item | None])
    assert_type(typed.upsert(Item(1, "pen", 2, None)), bool)
    assert_type(typed.update_where({"n": 1}, N > 1), int)
    typed.upsert({"id": 1})  # type: ignore[arg-type]
    with db.transaction() as txn:
        assert_type(txn.count("t", "n", where=N > 1), int)
        txn.count()  # type: ignore[call-arg]
        txn.sum("t")  # type: ignore[call-arg]
    with db.snapshot() as snapshot:
        assert_type(snapshot["t"].count(), int)


def of_a_client(remote: tm.RemoteDatabase) -> None:
    """A table, a transaction and a snapshot of another process."""
    assert_type(remote["t"].delete_many([1], index="by_name"), int)
    assert_type(remote["t"].count(), int)
    assert_type(remote.tables(), list[str])
    remote["t"].delete_many()  # type: ignore[call-arg]
    with remote.transaction() as txn:
        assert_type(txn.insert_many("t", []), int)
        assert_type(txn.update("t", 1, {"n": 2}, N > 1), bool)
        assert_type(txn.count("t"), int)
        txn.insert_many([])  # type: ignore[arg-type, call-arg]
    with remote.snapshot() as snapshot:
        assert_type(snapshot["t"].count(), int)


async def of_asyncio(db: tm.aio.Database) -> None:
    """The same, awaited."""
    assert_type(await db["t"].upsert({"id": 1}), bool)
    assert_type(await db["t"].count("n"), int)
    assert_type(await db.kill(1), bool)
    await db["t"].upsert()  # type: ignore[call-arg]
    async with db.transaction() as txn:
        assert_type(await txn.update("t", 1, {"n": 2}), bool)
        assert_type(await txn.count("t"), int)
    async with db.snapshot() as snapshot:
        assert_type(await snapshot["t"].count(), int)
