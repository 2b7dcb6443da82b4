"""Calls on each face, for mypy, which reads them as strict: each has the types of that it is made from. None runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

import pyarrow as pa

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
    assert_type(table.get(1), tm.Row | None)
    assert_type(table[1], tm.Row)
    assert_type(table.get(1).n, Any)  # type: ignore[union-attr]  # the key may have no row
    table.to_arrow(["id"], N > 1, limit=5, index="by_n", lower=1)
    assert_type(table.sample(3, ["id"], N > 1, seed=7, index="by_n", lower=1), pa.Table)
    table.to_pandas(lmit=5)  # type: ignore[call-arg]
    table.upsert()  # type: ignore[call-arg]
    table.upsert(1)  # type: ignore[arg-type]
    table.delete_many([1], indx="by_name")  # type: ignore[call-arg]
    table.upsert("t", {"id": 1}, index=1)  # type: ignore[arg-type]
    typed = db.table("t", Item)
    assert_type(typed.get_many([1]), list[Item])
    assert_type(typed.get_many([1], missing="null"), list[Item | None])
    assert_type(typed.upsert(Item(1, "pen", 2, None)), bool)
    assert_type(typed.update_where({"n": 1}, N > 1), int)
    assert_type(typed.sample(3), pa.Table)
    typed.upsert({"id": 1})  # type: ignore[arg-type]
    assert_type(db.create_table("t", [tm.Column("id", tm.Int64)], "id", exist_ok=True), tm.TableHandle)
    assert_type(db.create_table("t", Item, "id", exist_ok=True), tm.TypedTable[Item])
    db.create_table("t", pa.schema({"id": pa.int64()}), "id")
    db.drop_table("t", missing_ok=True)
    db.create_index("t", "by_n", "n", exist_ok=True)
    db.drop_index("t", "by_n", missing_ok=True)
    db.truncate("t")
    with db.transaction() as txn:
        assert_type(txn.count("t", "n", where=N > 1), int)
        txn.count()  # type: ignore[call-arg]
        txn.sum("t")  # type: ignore[call-arg]
        assert_type(txn.get("t", 1), tm.Row | None)
        assert_type(txn.table("t").get(1, "shared"), tm.Row | None)
        assert_type(txn.table("t").insert_many([]), int)
        assert_type(txn.table("t", Item).get(1, lock="exclusive"), Item | None)
        assert_type(txn.table("t", Item)[1], Item)
        txn.table("t").get("t", 1)  # type: ignore[arg-type]
        txn.table("t", Item).insert((1,))  # type: ignore[arg-type]
    with db.snapshot() as snapshot:
        assert_type(snapshot["t"].count(), int)
        assert_type(snapshot.table("t", Item), tm.TypedSnapshotTable[Item])
        assert_type(snapshot.table("t", Item).get_many([1]), list[Item])


def of_a_view(db: tm.ReadOnlyDatabase) -> None:
    """A snapshot of a store that is open for reading."""
    with db.snapshot() as snapshot:
        assert_type(snapshot["t"].get(1), tm.Row | None)
        assert_type(snapshot.table("t", Item)[1], Item)


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
        assert_type(txn.table("t", Item).upsert(Item(1, "pen", 2, None)), bool)
    with remote.snapshot() as snapshot:
        assert_type(snapshot["t"].count(), int)
        assert_type(snapshot.table("t", Item).get(1), Item | None)


async def of_asyncio(db: tm.aio.Database) -> None:
    """The same, awaited."""
    assert_type(await db["t"].upsert({"id": 1}), bool)
    assert_type(await db["t"].count("n"), int)
    assert_type(await db.kill(1), bool)
    await db["t"].upsert()  # type: ignore[call-arg]
    assert_type(await db["t"].get(1), tm.Row | None)
    assert_type(await db["t"][1], tm.Row)
    assert_type(await db.table("t", Item)[1], Item)
    assert_type(await db.table("t", Item).get_many([1]), list[Item])
    assert_type([row async for row in db.table("t", Item)], list[Item])
    assert_type(await db.table("t", Item).sum("n"), Any)
    await db.table("t", Item).insert((1,))  # type: ignore[arg-type]
    assert_type(await db.create_table("t", Item, "id"), tm.aio.TypedTable[Item])
    async with db.transaction() as txn:
        assert_type(await txn.update("t", 1, {"n": 2}), bool)
        assert_type(await txn.count("t"), int)
        assert_type(await txn.table("t").update(1, {"n": 2}), bool)
        assert_type(await txn.table("t", Item).get(1, lock="shared"), Item | None)
    async with db.snapshot() as snapshot:
        assert_type(await snapshot["t"].count(), int)
        assert_type(await snapshot.table("t", Item).get(1), Item | None)
