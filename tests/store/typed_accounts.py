"""A program with typed rows, for the test of `db.table(name, Account)` and for mypy, which reads it as strict."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated, Any, TypedDict, assert_type

import tidemark as tm


@dataclass(frozen=True)
class Account:
    """A row of `account`."""

    id: int
    owner: Annotated[str, tm.VarChar(40)]
    balance: Annotated[Decimal, tm.Decimal(10, 2)]
    seen: datetime.datetime | None
    is_open: bool = True


class Hit(TypedDict):
    """A row of `hits`."""

    page: Annotated[str, tm.VarChar(80)]
    n: int


def work(db: tm.Database | tm.RemoteDatabase) -> list[Account]:
    """Create both tables and use every call; return the accounts."""
    accounts = db.create_table("account", Account, primary_key="id")
    assert_type(accounts, tm.TypedTable[Account])
    ann = Account(1, "ann", Decimal("10.50"), None)
    accounts.insert(ann)
    accounts[2] = replace(ann, id=2, owner="bob", is_open=False)
    assert accounts.insert_many(replace(ann, id=number) for number in range(3, 6)) == 3
    assert accounts.write_many([replace(ann, id=5, owner="cid")]) == 1
    accounts.write(replace(ann, id=6, seen=datetime.datetime(2026, 1, 2)))
    assert accounts.update(3, {"owner": "dan"}) and accounts.delete(4)
    del accounts[6]
    found = accounts.get(1)
    assert_type(found, Account | None)
    assert_type(accounts[1], Account)
    assert_type(iter(accounts), Iterator[Account])
    assert found == ann and accounts[2].owner == "bob" and 4 not in accounts and len(accounts) == 4
    assert [each.id for each in accounts.scan(tm.col("is_open") == False)] == [2]  # noqa: E712
    assert (db.table("main.account", Account)[5].owner, accounts.name) == ("cid", "main.account")

    hits = db.create_table("hits", Hit, "page")
    hits.insert({"page": "/", "n": 1})
    assert_type(hits["/"], Hit)
    assert hits["/"] == {"page": "/", "n": 1} and hits["/"]["n"] == 1
    assert_type(db.table("hits", Hit).get("/"), Hit | None)
    untyped: Any = db.table("hits")["/"]
    assert untyped.n == 1
    return sorted(accounts, key=lambda each: each.id)
