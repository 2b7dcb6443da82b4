"""Rows of the stress program: which table, which columns, and what a row with given stamps must hold.

A row has two stamps, one for each half of its columns; everything else in it follows from its key and them. So a row
alone shows whether it is whole, and a ledger line needs two numbers for a changed row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from tidemark.engine.schema.column import Column
from tidemark.engine.types import Float64, Int32, Int64, Text, VarChar

MAIN = "stress.item"
PROGRESS = "stress.progress"
SCRATCH = "stress.scratch"
THREADS = 4
WIDTH = 120  # keys of one range
STAMPS_EACH = 2_000_000  # of one transaction, however often it is begun again
STAMPS_ATTEMPT = 1_000
LONG_NAME = "a name that begins as many others do, "

Stamps = tuple[int, int]
Held = dict[int, Stamps]

# Columns of ordered indexes and of unique ones, by name; the changer builds and drops them.
INDEX_KEYS: dict[str, tuple[str, ...]] = {
    "by_name": ("name",),
    "by_grade": ("grade", "price"),
    "by_price": ("price",),
    "by_token": ("token", "id"),
}
UNIQUE_KEYS: dict[str, tuple[str, ...]] = {
    "once_token": ("token",),
    "once_grade": ("grade", "first", "id"),  # no entry in the hash where the grade is NULL
}
ORDERED = ("once_grade",)  # unique ones that are ordered too
EXTRA = "extra"  # columns that come and go begin with it; every row has the default in them
FIRST_HALF = ("first", "name", "grade")
SECOND_HALF = ("second", "price", "token", "note", "weight")
BASE = ("id", *FIRST_HALF, *SECOND_HALF)


def columns_of(storage: Literal["memory", "disk"]) -> list[Column]:
    """Columns of the main table; note and weight are in memory or on disk pages."""
    return [
        Column("id", Int64),
        Column("first", Int64),
        Column("name", VarChar(60)),
        Column("grade", Int32, nullable=True),
        Column("second", Int64),
        Column("price", Float64),
        Column("token", Int64),
        Column("note", Text, nullable=True, storage=storage),
        Column("weight", Int64, storage=storage),
    ]


def _drawn(key: int, stamp: int) -> int:
    return (key * 7_919 + stamp + 1) * 2_654_435_761 >> 7 & 0xFFFFFF


def first_half(key: int, stamp: int) -> dict[str, Any]:
    """Values derived from the first stamp: some names share their first words, some grades are NULL."""
    drawn = _drawn(key, stamp)
    name = f"{LONG_NAME if drawn % 3 == 0 else ''}{drawn % 97}"
    return {"first": stamp, "name": name, "grade": None if drawn % 7 == 0 else drawn % 11 - 5}


def second_half(key: int, stamp: int) -> dict[str, Any]:
    """What the second stamp decides: a price, a token no other row has, a note that is NULL, short or long."""
    drawn = _drawn(key, stamp)
    note = None if drawn % 4 == 0 else "n" * (drawn % 3_000 if drawn % 29 == 0 else drawn % 40)
    return {
        "second": stamp,
        "price": drawn % 1_000 / 8 - 50,
        "token": (key << 40) + stamp,
        "note": note,
        "weight": -stamp,
    }


def row_of(key: int, stamps: Stamps) -> dict[str, Any]:
    """The whole row."""
    return {"id": key, **first_half(key, stamps[0]), **second_half(key, stamps[1])}


def stamps_of(row: Any) -> Stamps:
    """The two stamps of a row read."""
    return int(row.first), int(row.second)


def order_of(values: Sequence[Any]) -> tuple[tuple[bool, Any], ...]:
    """Key values as they sort in an index: NULLs first."""
    return tuple((value is not None, 0 if value is None else value) for value in values)


def is_whole(row: Any) -> bool:
    """Whether its columns match its stamps."""
    expected = row_of(row.id, stamps_of(row))
    return all(getattr(row, name) == expected[name] for name in BASE)
