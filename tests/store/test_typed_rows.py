"""Tables with a class of rows: the class is compared with the table once, and rows are its objects."""

from __future__ import annotations

import dataclasses
import datetime
from decimal import Decimal
from typing import Annotated, Any, NewType, NotRequired, TypedDict

import pytest

import tidemark as tm
from tests.store.support import client_of, open_memory
from tests.store.typed_accounts import Account, work

Number = NewType("Number", int)


@pytest.fixture
def db() -> tm.Database:
    return open_memory()


def made(kind: Any, **defaults: Any) -> Any:
    """A dataclass `T` with one field `v` besides its key."""
    fields: list[Any] = [("id", int), ("v", kind, *(dataclasses.field(default=each) for each in defaults.values()))]
    return dataclasses.make_dataclass("T", fields)


def test_rows_are_objects_of_the_class(db: tm.Database) -> None:
    assert [(each.id, each.owner, each.is_open) for each in work(db)] == [
        (1, "ann", True),
        (2, "bob", False),
        (3, "dan", True),
        (5, "cid", True),
    ]
    columns = {column.name: column for column in db["account"].definition.columns}
    assert columns["owner"].type == tm.VarChar(40) and columns["balance"].type == tm.Decimal(10, 2)
    assert columns["seen"].nullable and columns["is_open"].default is True and not columns["owner"].nullable
    assert repr(db.table("account", Account)).endswith("4 rows of id, owner, balance, seen, is_open as Account>")


def test_rows_of_a_remote_store_are_objects_of_the_class(db: tm.Database) -> None:
    with client_of(db) as remote:
        assert len(work(remote)) == 4


@pytest.mark.parametrize(
    ("kind", "column_type"),
    [
        (int, tm.Int64),
        (float, tm.Float64),
        (str, tm.Text),
        (bytes, tm.Blob),
        (bool, tm.Bool),
        (datetime.date, tm.Date),
        (datetime.time, tm.Time),
        (datetime.datetime, tm.DateTime),
        (Annotated[datetime.datetime, tm.Timestamp], tm.Timestamp),
        (Annotated[int, "a remark", tm.UInt8], tm.UInt8),
        (Annotated[str, tm.Enum("a", "b")], tm.Enum("a", "b")),
        (Number, tm.Int64),
    ],
)
def test_a_field_becomes_a_column(db: tm.Database, kind: Any, column_type: Any) -> None:
    for nullable in (False, True):
        name = f"t{nullable}"
        table = db.create_table(name, made(kind | None if nullable else kind), "id")
        column = table.handle.definition.columns[1]
        assert (column.type, column.nullable, column.has_default) == (column_type, nullable, False)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Decimal, r"T\.v: a Decimal column needs its digits; write Annotated\[Decimal, tm\.Decimal\(10, 2\)\]"),
        (
            set[int],
            r"T\.v: a field is of one of int, float, str, bytes, bool, date, time, datetime, UUID, dict, list, ",
        ),
        (int | str, r"T\.v: a field is of one of int"),
        (int | str | None, r"T\.v: a field is of one of int"),
        (Annotated[int, tm.VarChar(3)], r"T\.v: values of VarChar\(3\) are str, not int"),
        ("Nothing", r"an annotation of T has an unknown name: name 'Nothing' is not defined"),
    ],
)
def test_a_field_that_is_no_column_is_refused(db: tm.Database, kind: Any, message: str) -> None:
    with pytest.raises(tm.SchemaInvalid, match=message):
        db.create_table("t", made(kind), "id")
    assert db.tables() == []


class Partial(TypedDict):
    id: int
    v: NotRequired[int]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (made(str), r"T\.v is str, and values of main\.t\.v are int"),
        (made(int), r"T\.v: main\.t\.v may be NULL: add \| None"),
        (dataclasses.make_dataclass("T", [("id", int)]), "T has no field for v of main.t; add it"),
        (
            dataclasses.make_dataclass("T", [("id", int), ("w", int)]),
            r"T\.w: main\.t has no such column; known: id, v",
        ),
        (dataclasses.make_dataclass("T", [("id", int | None)]), r"T\.id: main\.t\.id is never NULL: leave out \| None"),
        (
            dataclasses.make_dataclass("T", [("id", int), ("v", int, dataclasses.field(init=False))]),
            r"T\.v is no argument of T\(\); leave out init=False",
        ),
        (Partial, "every key of Partial must be required; a row has all of them"),
        (dict, "a class of rows is a dataclass or a TypedDict, got type <class 'dict'>"),
        (Account(1, "ann", Decimal(1), None), "a class of rows is a dataclass or a TypedDict, got Account"),
        ("T", "a class of rows is a dataclass or a TypedDict, got str 'T'"),
    ],
)
def test_a_class_that_does_not_agree_with_the_table_is_refused(db: tm.Database, kind: Any, message: str) -> None:
    db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("v", tm.Int32, nullable=True)], "id")
    with pytest.raises(tm.SchemaInvalid, match=message):
        db.table("t", kind)


def test_fields_may_have_another_order_than_columns_and_be_keywords_alone(db: tm.Database) -> None:
    db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("v", tm.Text)], "id").insert((1, "one"))
    other = dataclasses.make_dataclass("T", [("v", str), ("id", int)], kw_only=True)
    table = db.table("t", other)
    assert table[1] == other(id=1, v="one") == next(iter(table))
    table[2] = other(v="two", id=2)
    assert db["t"][2] == (2, "two")


def test_rows_of_other_classes_are_refused(db: tm.Database) -> None:
    table: Any = db.create_table("account", Account, "id")
    for wrong in ({"id": 1}, (1, "ann"), None):
        with pytest.raises(tm.TypeMismatch, match="^main.account: rows of this handle are Account, got"):
            table.insert(wrong)
        with pytest.raises(tm.TypeMismatch):
            table.insert_many([wrong])
    with pytest.raises(tm.RowNotFound, match="main.account has no row with key 9"):
        _ = table[9]
    assert len(table) == 0


def test_a_column_that_is_dropped_later_is_named(db: tm.Database) -> None:
    table = db.create_table("account", Account, "id")
    table.insert(Account(1, "ann", Decimal(1), None))
    db.drop_column("account", "seen")
    with pytest.raises(tm.NoSuchColumn, match="no column 'seen'"):
        table.get(1)
    with pytest.raises(tm.NoSuchColumn, match="no column 'seen'"):
        list(table)
