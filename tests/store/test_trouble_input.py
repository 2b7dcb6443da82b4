"""Bad input: every wrong value, in every form a row can come in, one row at a time and in batches.

Each case must raise exactly its class, name the column (and the row, where the form has rows), and leave no trace: the
store's rows, ROWIDs, epochs, reservations and log are compared before and after, and once more after a crash.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tidemark as tm
from tests.store.support import open_memory
from tests.store.trouble import nothing_happens

pytestmark = pytest.mark.usefixtures("storage")

NAME = "test.everything"
Row = dict[str, Any]

COLUMNS = [
    tm.Column("id", tm.Int32),
    tm.Column("name", tm.VarChar(4)),
    tm.Column("small", tm.Int8),
    tm.Column("positive", tm.UInt16),
    tm.Column("large", tm.UInt64),
    tm.Column("real", tm.Float32),
    tm.Column("code", tm.Char(2)),
    tm.Column("raw", tm.VarBinary(3)),
    tm.Column("fixed", tm.Binary(2)),
    tm.Column("price", tm.Decimal(5, 2)),
    tm.Column("flag", tm.Bool),
    tm.Column("kind", tm.Enum("red", "green")),
    tm.Column("day", tm.Date),
    tm.Column("moment", tm.DateTime),
    tm.Column("stamp", tm.Timestamp),
    tm.Column("clock", tm.Time),
    tm.Column("note", tm.Text, nullable=True),
]
KEY = ("id", "name")


def good(number: int) -> Row:
    """A row every column takes."""
    return {
        "id": number,
        "name": f"n{number}",
        "small": number,
        "positive": number,
        "large": number,
        "real": 0.5,
        "code": "ab",
        "raw": b"xyz",
        "fixed": b"ab",
        "price": decimal.Decimal("1.25"),
        "flag": True,
        "kind": "red",
        "day": datetime.date(2020, 1, 2),
        "moment": datetime.datetime(2020, 1, 2, 3, 4, 5),
        "stamp": datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "clock": datetime.time(3, 4, 5),
        "note": "a note",
    }


class Bad(NamedTuple):
    """One bad value."""

    name: str
    column: str
    value: Any
    error: type[tm.Error]


# Where a key column is bad the same values must be refused as keys.
BAD_VALUES = [
    Bad("text for an integer", "small", "1", tm.TypeMismatch),
    Bad("float for an integer", "small", 1.5, tm.TypeMismatch),
    Bad("integer over its range", "small", 128, tm.ValueOutOfRange),
    Bad("integer under its range", "small", -129, tm.ValueOutOfRange),
    Bad("negative for unsigned", "positive", -1, tm.ValueOutOfRange),
    Bad("unsigned over its range", "positive", 65_536, tm.ValueOutOfRange),
    Bad("negative for 64 bits unsigned", "large", -1, tm.ValueOutOfRange),
    Bad("text for a float", "real", "0.5", tm.TypeMismatch),
    Bad("float over the range of 32 bits", "real", 1e39, tm.ValueOutOfRange),
    Bad("bytes for text", "name", b"ab", tm.TypeMismatch),
    Bad("integer for text", "code", 7, tm.TypeMismatch),
    Bad("text too long for VarChar", "name", "abcde", tm.ValueOutOfRange),
    Bad("text too long for Char", "code", "abc", tm.ValueOutOfRange),
    Bad("text for bytes", "raw", "ab", tm.TypeMismatch),
    Bad("bytes too long for VarBinary", "raw", b"abcd", tm.ValueOutOfRange),
    Bad("bytes too long for Binary", "fixed", b"abc", tm.ValueOutOfRange),
    Bad("text for a decimal", "price", "1.25", tm.TypeMismatch),
    Bad("decimal over its precision", "price", decimal.Decimal("1000.00"), tm.ValueOutOfRange),
    Bad("decimal finer than its scale", "price", decimal.Decimal("1.255"), tm.ValueOutOfRange),
    Bad("integer for a bool", "flag", 1, tm.TypeMismatch),
    Bad("unknown member of an enum", "kind", "blue", tm.ValueOutOfRange),
    Bad("integer for an enum", "kind", 0, tm.TypeMismatch),
    Bad("text for a date", "day", "2020-01-02", tm.TypeMismatch),
    Bad("text for a time", "clock", "03:04:05", tm.TypeMismatch),
    Bad("a zone for a DateTime", "moment", datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC), tm.TypeMismatch),
    Bad("no zone for a Timestamp", "stamp", datetime.datetime(2020, 1, 2), tm.TypeMismatch),
    Bad("integer for unlimited text", "note", 5, tm.TypeMismatch),
    Bad("NULL in a column that is not nullable", "small", None, tm.NotNullViolation),
    Bad("NULL in text that is not nullable", "code", None, tm.NotNullViolation),
    Bad("NULL in a key", "name", None, tm.NotNullViolation),
    Bad("key over its range", "id", 1 << 31, tm.ValueOutOfRange),
    Bad("text for a numeric key", "id", "1", tm.TypeMismatch),
    Bad("half a surrogate pair", "note", "\ud800", tm.ValueOutOfRange),
]


def as_tuples(rows: list[Row], bad: Bad) -> Any:
    return [tuple(row.values()) for row in rows]


def as_dicts(rows: list[Row], bad: Bad) -> Any:
    return rows


def as_columns(rows: list[Row], bad: Bad) -> Any:
    return {name: [row[name] for row in rows] for name in rows[0]}


def as_arrow(rows: list[Row], bad: Bad) -> Any:
    """Arrow has one type per column: a value of another type needs a whole column of it."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if bad.error is tm.TypeMismatch and bad.value in columns[bad.column]:
        columns[bad.column] = [bad.value] * len(rows)
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def as_structured(rows: list[Row], bad: Bad) -> Any:
    dtype = np.dtype([(name, object) for name in rows[0]])
    return np.array([tuple(row.values()) for row in rows], dtype=dtype)


def as_pandas(rows: list[Row], bad: Bad) -> Any:
    return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in rows[0]})


FORMS: dict[str, Callable[[list[Row], Bad], Any]] = {
    "tuples": as_tuples,
    "dicts": as_dicts,
    "columns": as_columns,
    "arrow": as_arrow,
    "numpy": as_structured,
    "pandas": as_pandas,
}


@pytest.fixture(scope="module")
def db(storage: str) -> Any:
    """One store for all cases: each proves that it left it as it was."""
    opened = open_memory()
    opened.create_table(NAME, COLUMNS, primary_key=KEY, partition=tm.HashPartition(2))
    opened[NAME].insert_many([good(number) for number in range(4)])
    return opened


@pytest.mark.parametrize("bad", BAD_VALUES, ids=lambda bad: bad.name)
def test_bad_value_in_one_row_is_refused_and_leaves_no_trace(db: Any, bad: Bad) -> None:
    row = {**good(9), bad.column: bad.value}
    for call in (db[NAME].insert, db[NAME].write):
        for form in (row, tuple(row.values()), list(row.values())):
            with nothing_happens(db, bad.error, reopen=False) as caught:
                call(form)
            assert caught[0].column == bad.column
    if bad.column not in KEY:
        with nothing_happens(db, bad.error) as caught:
            db[NAME].update((1, "n1"), {"real": 1.0, bad.column: bad.value})
        assert caught[0].column == bad.column
        return
    key = (row["id"], row["name"])
    for refused in (
        lambda: db[NAME].get(key),
        lambda: db[NAME].delete(key),
        lambda: db[NAME].update(key, {"real": 1.0}),
    ):
        with nothing_happens(db, bad.error, reopen=False):
            refused()
    with nothing_happens(db, bad.error):
        db[NAME].delete_many([(1, "n1"), key])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", BAD_VALUES, ids=lambda bad: bad.name)
def test_bad_value_in_a_batch_is_refused_whole_and_leaves_no_trace(db: Any, bad: Bad, form: str) -> None:
    rows = [good(number) for number in (10, 11, 12, 13)]
    rows[2] = {**rows[2], bad.column: bad.value}
    try:
        data = FORMS[form](rows, bad)
    except UnicodeEncodeError:
        pytest.skip("this form cannot hold the value")
    for call in (db[NAME].insert_many, db[NAME].write_many):
        with nothing_happens(db, bad.error, reopen=False) as caught:
            call(data)
        assert caught[0].column == bad.column
        if form in ("tuples", "dicts"):
            assert caught[0].row == 2
    existing = [{**row, "id": place, "name": f"n{place}"} for place, row in enumerate(rows)]
    if bad.column in KEY:
        existing[2][bad.column] = bad.value
    with nothing_happens(db, bad.error) as caught:
        db[NAME].update_many(FORMS[form](existing, bad))
    assert caught[0].column == bad.column


BAD_SHAPES: list[tuple[str, Callable[[], Any], type[tm.Error]]] = [
    ("no rows at all", lambda: 17, tm.TypeMismatch),
    ("text", lambda: "abc", tm.TypeMismatch),
    ("a row that is no row", lambda: [good(5), 17], tm.TypeMismatch),
    ("a row that is text", lambda: [tuple(good(5).values()), "abc"], tm.TypeMismatch),
    ("a short tuple", lambda: [tuple(good(5).values())[:-1]], tm.TypeMismatch),
    ("a long tuple", lambda: [(*good(5).values(), 1)], tm.TypeMismatch),
    ("an unknown column in a dict", lambda: [{**good(5), "colour": 1}], tm.NoSuchColumn),
    ("an unknown column in columns", lambda: as_columns([{**good(5), "colour": 1}], BAD_VALUES[0]), tm.NoSuchColumn),
    ("an unknown column in Arrow", lambda: as_arrow([{**good(5), "colour": 1}], BAD_VALUES[0]), tm.NoSuchColumn),
    ("an unknown column in pandas", lambda: as_pandas([{**good(5), "colour": 1}], BAD_VALUES[0]), tm.NoSuchColumn),
    ("an unknown column in NumPy", lambda: as_structured([{**good(5), "colour": 1}], BAD_VALUES[0]), tm.NoSuchColumn),
    ("a column left out", lambda: [{"id": 5, "name": "n5"}], tm.NotNullViolation),
    ("a column left out of Arrow", lambda: pa.table({"id": [5], "name": ["n5"]}), tm.NotNullViolation),
    ("columns of different length", lambda: {**as_columns([good(5)], BAD_VALUES[0]), "id": [5, 6]}, tm.TypeMismatch),
    ("a column twice in Arrow", lambda: pa.table([pa.array([1]), pa.array([1])], names=["id", "id"]), tm.TypeMismatch),
    ("a plain array", lambda: np.zeros(3), tm.TypeMismatch),
    ("a structured array of two dimensions", lambda: np.zeros((2, 2), [("id", int)]), tm.TypeMismatch),
]


@pytest.mark.parametrize(("make", "error"), [case[1:] for case in BAD_SHAPES], ids=[case[0] for case in BAD_SHAPES])
def test_bad_shape_is_refused_and_leaves_no_trace(db: Any, make: Callable[[], Any], error: type[tm.Error]) -> None:
    for call in (db[NAME].insert_many, db[NAME].write_many):
        with nothing_happens(db, error, reopen=False):
            call(make())


def test_bad_shape_of_one_row_or_its_changes_is_refused(db: Any) -> None:
    calls: list[tuple[type[tm.Error], Callable[[], Any]]] = [
        (tm.TypeMismatch, lambda: db[NAME].insert(5)),
        (tm.TypeMismatch, lambda: db[NAME].insert("abc")),
        (tm.TypeMismatch, lambda: db[NAME].insert((1, 2))),
        (tm.NoSuchColumn, lambda: db[NAME].insert({**good(5), "colour": 1})),
        (tm.NotNullViolation, lambda: db[NAME].insert({"id": 5, "name": "n5"})),
        (tm.NoSuchColumn, lambda: db[NAME].update((1, "n1"), {"colour": 1})),
        (tm.RowNotFound, lambda: db[NAME].update((1, "none"), {"small": 1})),
        (tm.RowNotFound, lambda: db[NAME].update((1, "none"), {"note": "text"})),
        (tm.RowNotFound, lambda: db[NAME].delete((77, "n1"))),
        (tm.RowNotFound, lambda: db[NAME][77, "n1"]),
        (tm.DuplicateKey, lambda: db[NAME].insert(good(1))),
        (tm.TypeMismatch, lambda: db[NAME].get(1)),
        (tm.TypeMismatch, lambda: db[NAME].get((1, "n1", 2))),
        (tm.NoSuchTable, lambda: db["test.nothing"]),
        (tm.NoSuchColumn, lambda: db[NAME].scan(["colour"])),
        (tm.NoSuchColumn, lambda: db[NAME].get_many([(1, "n1")], ["colour"])),
        (tm.SchemaInvalid, lambda: db[NAME].scan(limit=-1)),
        (tm.TableExists, lambda: db.create_table(NAME, COLUMNS, primary_key=KEY)),
        (tm.NoSuchTable, lambda: db.drop_table("test.nothing")),
        (tm.Rejected, lambda: db[NAME].update((1, "n1"), {"id": 2})),
    ]
    for error, call in calls:
        with nothing_happens(db, error, reopen=False):
            call()


@pytest.mark.parametrize("form", FORMS)
def test_duplicate_in_a_batch_names_the_row_whether_it_stands_in_table_or_batch(db: Any, form: str) -> None:
    bad = BAD_VALUES[0]
    for rows, row in (
        ([good(20), good(21), good(20)], 2),
        ([good(20), good(2), good(21)], 1),
        ([good(3), good(3)], 0),
    ):
        with nothing_happens(db, tm.DuplicateKey) as caught:
            db[NAME].insert_many(FORMS[form](rows, bad))
        assert caught[0].row == row
        assert caught[0].key == (rows[row]["id"], rows[row]["name"])


def test_missing_row_in_a_batch_names_the_row(db: Any) -> None:
    with nothing_happens(db, tm.RowNotFound) as caught:
        db[NAME].delete_many([(0, "n0"), (1, "n1"), (50, "n50"), (2, "n2")])
    assert caught[0].row == 2
    with nothing_happens(db, tm.RowNotFound) as caught:
        db[NAME].delete_many([(0, "n0"), (1, "n1"), (0, "n0")])
    assert caught[0].row == 2
    for column, value in (("small", 1), ("note", "longer than before")):
        rows = [{"id": number, "name": f"n{number}", column: value} for number in (0, 1, 50)]
        with nothing_happens(db, tm.RowNotFound) as caught:
            db[NAME].update_many(pa.Table.from_pylist(rows))
        assert caught[0].row == 2


def test_not_a_number_is_a_value_but_no_key() -> None:
    db = open_memory()
    db.create_table("test.real", [tm.Column("id", tm.Float64), tm.Column("value", tm.Float64)], primary_key="id")
    db["test.real"].insert((-0.0, math.nan))
    assert math.isnan(db["test.real"][0.0].value)
    rows = [(1.0, 1.0), (math.nan, 2.0)]
    with nothing_happens_but_nan(db):
        db["test.real"].insert(rows[1])
    with nothing_happens_but_nan(db):
        db["test.real"].insert_many(rows)
    with nothing_happens_but_nan(db):
        db["test.real"].insert_many(pa.table({"id": [1.0, math.nan], "value": [1.0, 2.0]}))


def nothing_happens_but_nan(db: Any) -> Any:
    """As the store holds a NaN, which equals nothing, its rows are compared without it."""
    db["test.real"].write((0.0, 1.0))
    return nothing_happens(db, tm.ValueOutOfRange)


def test_pandas_column_of_mixed_objects_is_refused_like_rows(db: Any) -> None:
    """Story: pyarrow had to make a column of a frame's Python objects. It raised errors of its own for text among
    integers, but accepted text among bytes, and times with a zone among those without, which single rows refuse.
    """
    bad = next(each for each in BAD_VALUES if each.name == "text for bytes")
    rows = [good(30), {**good(31), "raw": "ab"}]
    with nothing_happens(db, tm.TypeMismatch) as caught:
        db[NAME].insert_many(as_pandas(rows, bad))
    assert (caught[0].column, caught[0].row) == ("raw", 1)


def test_refused_call_inside_a_transaction_leaves_what_it_did_before(db: Any) -> None:
    """A Rejected error undoes only its own call; the transaction continues and commits the rest."""
    opened = open_memory()
    opened.create_table(NAME, COLUMNS, primary_key=KEY)
    with opened.transaction() as txn:
        txn.insert(NAME, good(1))
        with pytest.raises(tm.DuplicateKey):
            txn.insert_many(NAME, [good(2), good(3), good(1)])
        with pytest.raises(tm.ValueOutOfRange):
            txn.write_many(NAME, [good(4), {**good(5), "small": 1_000}])
        with pytest.raises(tm.RowNotFound):
            txn.delete_many(NAME, [(1, "n1"), (9, "n9")])
        txn.insert(NAME, good(6))
    assert sorted(row.id for row in opened[NAME].scan()) == [1, 6]


def test_batch_update_with_rows_of_some_columns_leaves_the_others_alone() -> None:
    # Story: this silently set every column that the rows did not give to its default.
    db = open_memory()
    columns = [
        tm.Column("id", tm.Int64),
        tm.Column("a", tm.Int64),
        tm.Column("b", tm.Int64, default=5),
        tm.Column("c", tm.VarChar(9), nullable=True),
    ]
    table = db.create_table("test.some", columns, "id")
    table.insert_many([(1, 2, 9, "x"), (2, 3, 8, "y")])
    assert table.update_many([{"id": 1, "b": 1}, {"b": 2, "id": 2}]) == 2
    assert [tuple(table[key]) for key in (1, 2)] == [(1, 2, 1, "x"), (2, 3, 2, "y")]
    assert table.update_many([(1, 7, 7, None)]) == 1
    assert tuple(table[1]) == (1, 7, 7, None)
    for rows, error, message in (
        (
            [{"id": 1, "a": 0}, {"id": 2, "b": 0}],
            tm.TypeMismatch,
            "row 1 does not name exactly the columns id, a, as",
        ),
        (
            [{"id": 1, "a": 0}, (2, 0, 0, "z")],
            tm.TypeMismatch,
            "row 1 does not name exactly the columns id, a, as",
        ),
        ([(2, 0, 0, "z"), {"id": 1, "a": 0}], tm.TypeMismatch, "row 0 does not name exactly"),
        ([{"id": 1, "nothing": 0}], tm.NoSuchColumn, "nothing"),
        ([{"a": 1}], tm.NotNullViolation, "id"),
    ):
        with pytest.raises(error, match=message):
            table.update_many(rows)
    assert [tuple(table[key]) for key in (1, 2)] == [(1, 7, 7, None), (2, 3, 2, "y")]


@pytest.mark.parametrize("columns", [["id", "id"], ["price", "id", "price"], [tm.ROWID, "id", tm.ROWID]])
def test_column_asked_for_twice_is_refused_by_every_way_to_read(db: Any, columns: list[str]) -> None:
    # Story: a scan of ["id", "id"] was a bare KeyError from Arrow, or gave rows with a field "_1".
    table = db[NAME]
    calls = [table.scan, table.to_arrow, table.to_pandas]
    if tm.ROWID not in columns:
        calls.append(lambda columns: table.get_many([(1, "a")], columns))
    for call in calls:
        with pytest.raises(tm.SchemaInvalid, match="twice") as caught:
            call(columns)
        assert caught.value.column == columns[-1]
    with db.transaction() as txn, pytest.raises(tm.SchemaInvalid, match="twice"):
        txn.scan(NAME, columns)
    assert table.to_arrow(list(dict.fromkeys(columns))).num_columns == len(set(columns))
