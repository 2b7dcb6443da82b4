"""Usual mistakes of callers, one of each: which class of error, and what its message says to do.

A raw TypeError, KeyError or AttributeError from inside the store is none of the answers, and no mistake is without one.
"""

from __future__ import annotations

import datetime
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tidemark as tm
from tidemark import col

OPTIONS: dict[str, Any] = {"data_memory": "16 MiB", "redo_log": "2 MiB", "undo_log": "2 MiB", "background": False}
NOTHING: Any = None
NOON = datetime.datetime(2026, 1, 2, 12)
NOON_UTC = NOON.replace(tzinfo=datetime.UTC)
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("name", tm.VarChar(20)),
    tm.Column("stock", tm.Int32, default=0),
    tm.Column("at", tm.DateTime, nullable=True),
    tm.Column("stamp", tm.Timestamp, nullable=True),
    tm.Column("price", tm.Decimal(10, 2), nullable=True),
]
VECTORS = [tm.Column("id", tm.Int64), tm.Column("vector", tm.Binary(12))]
Mistake = tuple[Callable[[Any], object], type[tm.Error], str]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "store", **OPTIONS) as db:
        db.create_table("item", COLUMNS, "id").insert({"id": 1, "name": "pen", "stock": 10})
        db.create_table("by_size", tm.Column("size", tm.Float64), "size")
        db.create_index("item", "by_name", "name")
        db.create_table("picture", VECTORS, "id")
        yield db


MISTAKES: dict[str, Mistake] = {
    # --- wrong types
    "a row that is a number": (
        lambda t: t.insert(5),
        tm.TypeMismatch,
        "a row is a mapping or a sequence of values, got",
    ),
    "one row for many": (
        lambda t: t.insert_many((1, "pen", 2)),
        tm.TypeMismatch,
        "a row is a mapping or a sequence, got",
    ),
    "an array of two dimensions": (
        lambda t: t.write_many({"id": np.arange(2), "stock": np.zeros((2, 3))}),
        tm.TypeMismatch,
        r"item.stock needs an array of one dimension, got shape \(2, 3\); give one value for each row",
    ),
    "a row that is too short": (lambda t: t.insert((1, "pen")), tm.TypeMismatch, "give a dict to use defaults"),
    "text for a number": (
        lambda t: t.insert((2, "cup", "5", None, None, None)),
        tm.TypeMismatch,
        "item.stock needs an int",
    ),
    "a float for a Decimal": (lambda t: t.update(1, {"price": 1.5}), tm.TypeMismatch, "item.price needs a Decimal"),
    "a key of another type": (lambda t: t.get("1"), tm.TypeMismatch, "item.id needs an int, got str '1'"),
    "several keys for one": (lambda t: t.get([1, 2]), tm.TypeMismatch, "item.id needs an int, got list"),
    "one key for several": (lambda t: t.delete_many(1), tm.TypeMismatch, "item.id needs a sequence of keys, got int 1"),
    "a slice": (lambda t: t[1:2], tm.TypeMismatch, "item.id needs an int, got slice"),
    "changes that are a number": (lambda t: t.update(1, 5), tm.TypeMismatch, "changes are given by column, as"),
    "changes that are pairs": (
        lambda t: t.update(1, [("stock", 1)]),
        tm.TypeMismatch,
        "changes are given by column, as",
    ),
    "changes of an upsert": (
        lambda t: t.upsert({"id": 9, "name": "x"}, 5),
        tm.TypeMismatch,
        "changes are given by column, as",
    ),
    "changes of many": (lambda t: t.update_where(None), tm.SchemaInvalid, "no column to change was given"),
    "a function for an expression": (
        lambda t: t.update(1, {"stock": lambda row: 1}),
        tm.TypeMismatch,
        "needs an int, got",
    ),
    "a number of another size": (lambda t: t.update(1, {"stock": 2**31}), tm.ValueOutOfRange, "holds -2147483648 to"),
    "a number of thousands of digits": (lambda t: t.get(10**5_000), tm.ValueOutOfRange, "got int of 16610 bits"),
    # --- NULL, NaN, text, time
    "NULL for a key": (lambda t: t.get(None), tm.NotNullViolation, "item.id is not nullable, got None"),
    "NULL": (lambda t: t.update(1, {"name": None}), tm.NotNullViolation, "item.name is not nullable, got None"),
    "a comparison with None": (lambda t: t.scan(where=col("at") == NOTHING), tm.TypeMismatch, r"use is_null\(\)"),
    "a Decimal without a number": (
        lambda t: t.update(1, {"price": Decimal("NaN")}),
        tm.ValueOutOfRange,
        "holds finite",
    ),
    "half a surrogate pair": (lambda t: t.update(1, {"name": "\ud800"}), tm.ValueOutOfRange, "got a lone surrogate"),
    "a time with a zone": (
        lambda t: t.update(1, {"at": NOON_UTC}),
        tm.TypeMismatch,
        "use Timestamp for points in time",
    ),
    "a time without a zone": (
        lambda t: t.update(1, {"stamp": NOON}),
        tm.TypeMismatch,
        "use DateTime for wall-clock times",
    ),
    # Story: the message did not name the column.
    "a time without a zone in a condition": (
        lambda t: t.scan(where=col("stamp") > NOON),
        tm.TypeMismatch,
        "item.stamp needs a datetime with zone, got .*; use DateTime",
    ),
    # Story: the index was left out without a word, and the key had no value.
    "a frame with the key in its index": (
        lambda t: t.insert_many(pd.DataFrame({"id": [2], "name": ["cup"]}).set_index("id")),
        tm.TypeMismatch,
        r"'id' is in the index of the frame, which is no column; call reset_index\(\)",
    ),
    "keys in the index of a frame": (
        lambda t: t.get_many(pd.DataFrame({"name": ["cup"]}, pd.Index([2], name="id"))),
        tm.TypeMismatch,
        r"'id' is in the index of the frame, which is no column; call reset_index\(\)",
    ),
    "a number as text in a condition": (
        lambda t: t.scan(where=col("id") == "1"),
        tm.ProgramInvalid,
        "Int64 column 'id' is compared with numbers, got str '1'",
    ),
    "a member that an Enum has not": (
        lambda t: tm.Column("side", tm.Enum("buy", "sell"), default="hold"),
        tm.SchemaInvalid,
        "holds one of 'buy', 'sell', got str 'hold'",
    ),
    "a date for a time": (
        lambda t: t.scan(where=col("at") > NOON.date()),
        tm.TypeMismatch,
        "needs a datetime, got date",
    ),
    # --- names
    "a column that does not exist": (lambda t: t.insert({"id": 2, "nmae": "x"}), tm.NoSuchColumn, "did you mean name?"),
    "an attribute of a row": (lambda t: t[1]["nmae"], tm.NoSuchColumn, "did you mean name?"),
    "a column of a condition": (lambda t: t.scan(where=col("stok") > 1), tm.NoSuchColumn, "did you mean stock?"),
    "an index that does not exist": (lambda t: t.scan(index="by_nmae"), tm.NoSuchIndex, "did you mean by_name?"),
    "an index that is a list": (lambda t: t.scan(index=["by_name"]), tm.NoSuchIndex, "known: by_name"),
    "a column that is changed but a key": (lambda t: t.update(1, {"id": 2}), tm.Rejected, "delete and insert the row"),
    "a key that is not there": (lambda t: t.update(9, {"stock": 1}), tm.RowNotFound, "has no row with key 9"),
    # --- conditions
    "and": (lambda t: t.scan(where=(col("id") > 1) and (col("id") < 3)), tm.TypeMismatch, "use &, | and ~ instead"),
    "a chain of comparisons": (lambda t: t.scan(where=1 < col("id") < 3), tm.TypeMismatch, "use &, | and ~ instead"),
    "in": (lambda t: t.scan(where=col("id") in [1, 2]), tm.TypeMismatch, "use &, | and ~ instead"),
    "no parentheses": (lambda t: t.scan(where=col("id") == 1 | col("id") == 2), tm.TypeMismatch, "into parentheses"),
    "a condition of SQL": (
        lambda t: t.scan(where="stock > 1"),
        tm.TypeMismatch,
        "where must be an expression or a Program",
    ),
    "a function": (
        lambda t: t.delete_where(lambda row: True),
        tm.TypeMismatch,
        "where must be an expression or a Program",
    ),
    "a column alone": (
        lambda t: t.scan(where=col("id")),
        tm.ProgramInvalid,
        "a condition is needed, such as a comparison",
    ),
    "text compared with a number": (
        lambda t: list(t.scan(where=col("name") == 5)),
        tm.TypeMismatch,
        "needs a str, got int",
    ),
    "a str for the values of isin": (lambda t: col("name").isin("pen"), tm.TypeMismatch, "isin takes a list, a set"),
    "a number for the values of isin": (
        lambda t: col("id").isin(1),
        tm.TypeMismatch,
        "isin takes a list, a set or another iterable of values, got int",
    ),
    # --- scans
    "a limit that is text": (lambda t: t.scan(limit="5"), tm.SchemaInvalid, "limit must be a number of rows, got '5'"),
    "a limit that is a bool": (
        lambda t: t.scan(limit=True),
        tm.SchemaInvalid,
        "limit must be a number of rows, got True",
    ),
    "bounds without an index": (lambda t: t.scan(lower=1), tm.SchemaInvalid, "name one with index="),
    "columns that are a number": (lambda t: t.scan(5), tm.SchemaInvalid, "columns must be a name or a list of names"),
    "a sum of text": (lambda t: t.scan().sum("name"), tm.ProgramInvalid, "column 'name' is not a number"),
    "an aggregate that is none": (
        lambda t: t.scan().aggregate(a="sum"),
        tm.SchemaInvalid,
        'an aggregate is \\("sum", column',
    ),
    "a table that is pickled": (pickle.dumps, tm.Unsupported, "a TableHandle of an open store cannot be pickled; send"),
    "a scan that is pickled": (
        lambda t: pickle.dumps(t.scan()),
        tm.Unsupported,
        "a Scan of an open store cannot be pickled",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_with_a_table_is_answered(db: tm.Database, mistake: str) -> None:
    call, kind, message = MISTAKES[mistake]
    with pytest.raises(tm.Error, match=message) as answer:
        call(db["item"])
    assert type(answer.value) is kind
    assert [tuple(row) for row in db["item"]] == [(1, "pen", 10, None, None, None)], "nothing was changed"


OF_STORES: dict[str, Mistake] = {
    "a table that does not exist": (lambda db: db["itme"], tm.NoSuchTable, "did you mean main.item?"),
    "a table that is a list": (lambda db: db[["item"]], tm.InvalidName, "table name must be a str, got list"),
    "calls of no store": (
        lambda db: tm.serve_calls(NOTHING, "127.0.0.1:0", bytes(32)),
        tm.SchemaInvalid,
        "a store must be a Database, as tidemark.open returns it, got NoneType",
    ),
    "metrics of a path": (
        lambda db: tm.serve_metrics("shop", "127.0.0.1:0"),  # type: ignore[arg-type]
        tm.SchemaInvalid,
        "a store must be a Database, as tidemark.open returns it, got str",
    ),
    "a channel into no store": (
        lambda db: tm.Channel("127.0.0.1:9", NOTHING, secret=bytes(32)),
        tm.SchemaInvalid,
        "a store must be a Database, as tidemark.open returns it, got NoneType",
    ),
    "a handle for a name": (
        lambda db: db.transaction().get(db["item"], 1),
        tm.InvalidName,
        "table name must be a str, got",
    ),
    "a table that exists": (lambda db: db.create_table("item", COLUMNS, "id"), tm.TableExists, "drop that table first"),
    # Story: the message said to call `int` with its parameters.
    "a type of Python": (
        lambda db: tm.Column("a", int),
        tm.SchemaInvalid,
        "column 'a' needs a column type, got type <class 'int'>; use tm.Int64",
    ),
    "a key in the index of a frame": (
        lambda db: db.create_table("t", pd.DataFrame({"n": [1]}, pd.Index([1], name="id")), "id"),
        tm.NoSuchColumn,
        r"the key 'id' is in the index of the frame, which is no column; call reset_index\(\)",
    ),
    "a key that a schema has not": (
        lambda db: db.create_table("t", pa.schema({"n": pa.int64()}), "id"),
        tm.NoSuchColumn,
        "there is no column 'id' for the primary key; the columns are n",
    ),
    "a schema that is a type": (
        lambda db: db.create_table("t", pa.int64(), "id"),
        tm.SchemaInvalid,
        "no columns of a table follow from .*; give Column objects",
    ),
    "a table that exists otherwise": (
        lambda db: db.create_table("by_size", tm.Column("size", tm.Int64), "size", exist_ok=True),
        tm.TableExists,
        r"exists with another definition: it has Column\('size', Float64\), not Column\('size', Int64\); alter or",
    ),
    "an index that exists otherwise": (
        lambda db: db.create_index("item", "by_name", "stock", exist_ok=True),
        tm.IndexExists,
        "item has another index by_name, over name and not over stock; choose another name, or drop that index first",
    ),
    "vectors for bytes, as an array": (
        lambda db: db["picture"].write_many({"id": np.arange(2), "vector": np.zeros((2, 3), "f4")}),
        tm.TypeMismatch,
        r"picture.vector needs .*; to store the bytes of each row, give array.view\('V12'\).ravel\(\)",
    ),
    "vectors for bytes, as lists of Arrow": (
        lambda db: db["picture"].write_many(
            pa.table({"id": [1], "vector": pa.array([[1.0]], pa.list_(pa.float32(), 1))})
        ),
        tm.TypeMismatch,
        r"picture.vector in row 0 is Binary\(12\) and takes no Arrow .* \(give the bytes of each list\)",
    ),
    "a type without its length": (
        lambda db: tm.Column("a", tm.VarChar),
        tm.SchemaInvalid,
        r"needs a column type, got the class VarChar; call it with its parameters, as tm.VarChar\(40\)",
    ),
    "a type by its name": (
        lambda db: tm.Column("a", "int64"),
        tm.SchemaInvalid,
        "needs a column type, got str 'int64'; use tm.Int64",
    ),
    "a type with parameters by its name": (
        lambda db: tm.Column("a", "VARCHAR"),
        tm.SchemaInvalid,
        r"got str 'VARCHAR'; use tm.VarChar\(40\)",
    ),
    "members of an Enum in a list": (
        lambda db: tm.Enum(["buy", "sell"]),
        tm.SchemaInvalid,
        r"got list \['buy', 'sell'\]; give each as an argument, as in Enum\('new', 'done'\)",
    ),
    "columns that are pairs": (
        lambda db: db.create_table("t", [("id", tm.Int64)], "id"),
        tm.SchemaInvalid,
        "columns must be Column objects",
    ),
    "a key of no column": (
        lambda db: db.create_table("t", COLUMNS, None),
        tm.SchemaInvalid,
        "primary_key must be a name or",
    ),
    "NaN as a key": (lambda db: db["by_size"].insert((math.nan,)), tm.ValueOutOfRange, "must not be NaN"),
    "a lock that is misspelt": (
        lambda db: db.transaction().get("item", 1, lock="exclusiv"),
        tm.SchemaInvalid,
        "lock must be None, 'shared' or 'exclusive', got 'exclusiv'",
    ),
    "a transaction id that is text": (
        lambda db: db.outcome("7"),
        tm.ValueOutOfRange,
        "txid must be the id of a transaction",
    ),
    "a transaction id below zero": (
        lambda db: db.outcome(-1),
        tm.ValueOutOfRange,
        "txid must be the id of a transaction",
    ),
    "retries that are text": (
        lambda db: db.run(len, retries="2"),
        tm.SchemaInvalid,
        "retries must be a whole number from 0",
    ),
    "a place that is None": (
        lambda db: db.backup(None),
        tm.Rejected,
        "a place is given as a str or a path, got None",
    ),
    "changes without a binlog": (lambda db: db.changes(), tm.Rejected, "open the store with log_bin"),
    "a transaction that is pickled": (
        lambda db: pickle.dumps(db.transaction()),
        tm.Unsupported,
        "a Transaction of an open",
    ),
    "a snapshot that is pickled": (
        lambda db: pickle.dumps(db.snapshot()),
        tm.Unsupported,
        "a Snapshot of an open store",
    ),
    "a store that is pickled": (pickle.dumps, tm.Unsupported, "send db.locator and open that"),
    "no address": (lambda db: tm.connect(None, b"x" * 16), tm.SchemaInvalid, "nodes are addresses, got None"),
    "an address that is a number": (
        lambda db: tm.serve_calls(db, 5, b"x" * 16),  # type: ignore[arg-type]
        tm.SchemaInvalid,
        "an address must be host:port, got 5",
    ),
}


def test_a_result_of_an_aggregate_has_any_name(db: tm.Database) -> None:
    """`aggregate(self=...)` and `row._replace(self=...)` were a TypeError."""
    assert db["item"].scan().aggregate(self=("count",), functions=("max", "stock")) == (1, 10)
    with db.snapshot() as snapshot:
        (row,) = (snapshot["item"].aggregate(self=("count",)),)
    assert row["self"] == 1 and row._replace(self=2) == (2,)


def test_state_tells_a_closed_store_from_one_that_has_failed(db: tm.Database) -> None:
    """`status()` of a closed store said "failed"."""
    assert db.status()["store"]["state"] == "open"
    db.close()
    assert db.status()["store"]["state"] == "closed"


@pytest.mark.parametrize("mistake", OF_STORES)
def test_a_mistake_with_a_store_is_answered(db: tm.Database, mistake: str) -> None:
    call, kind, message = OF_STORES[mistake]
    with pytest.raises(tm.Error, match=message) as answer:
        call(db)
    assert type(answer.value) is kind
    assert db.tables() == ["main.by_size", "main.item", "main.picture"] and len(db["by_size"]) == 0


# --- opening -------------------------------------------------------------------------------------
OPENINGS: dict[str, tuple[Any, dict[str, Any], type[tm.Error], str]] = {
    "None": (None, {}, tm.Rejected, "the directory of the store is given as a str or a path, got NoneType"),
    "a number": (5, {}, tm.Rejected, "the directory of the store is given as a str or a path, got int"),
    "bytes": (b"store", {}, tm.Rejected, "the directory of the store is given as a str or a path, got bytes"),
    "nothing": ("", {}, tm.Rejected, "the path is empty; give the directory of the store"),
    "a zero byte": ("a\0b", {}, tm.Rejected, "has a zero byte or is not valid Unicode; choose another directory"),
    "no text": ("a\udc80", {}, tm.Rejected, "has a zero byte or is not valid Unicode; choose another directory"),
    "a file": ("file", {}, tm.Rejected, "is a file, not a directory"),
    "a directory of others": (
        "others",
        {},
        tm.ForeignFile,
        "has no store: it has a.txt; give a new or empty directory",
    ),
    "no parent": ("no/such/store", {}, tm.FileMissing, "check the path, or make that directory first"),
    "no store": ("no", {"create": False}, tm.FileMissing, "there is no store in"),
    "no store to read": ("no", {"read_only": True}, tm.FileMissing, "there is no store in"),
    "an option that is misspelt": ("new", {"redo_lgo": 1}, tm.SchemaInvalid, "did you mean redo_log?"),
    "a size that is misspelt": ("new", {"redo_log": "2 MB"}, tm.SchemaInvalid, 'such as "64 MiB"'),
    "a bool that is text": ("new", {"background": "no"}, tm.SchemaInvalid, "give True or False"),
    "a choice that is misspelt": ("new", {"durability": "comit"}, tm.SchemaInvalid, 'give "commit" or "epoch"'),
}


@pytest.mark.parametrize("mistake", OPENINGS)
def test_a_mistake_of_opening_is_answered_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    """A path of bytes made a store, and then failed for its catalog; None and a number were a TypeError."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    Path("others").mkdir()
    Path("others", "a.txt").write_text("mine")
    before = sorted(map(str, Path(".").rglob("*")))
    path, options, kind, message = OPENINGS[mistake]
    with pytest.raises(tm.Error, match=message) as answer:
        tm.open(path, **options)
    assert type(answer.value) is kind
    assert sorted(map(str, Path(".").rglob("*"))) == before


# --- life ----------------------------------------------------------------------------------------
LEFT_OPEN = """
import tidemark as tm, sys
db = tm.open(sys.argv[1], redo_log="16 MiB", undo_log="4 MiB")
columns = [tm.Column("id", tm.Int64), tm.Column("s", tm.VarChar(9))]
for name, storage in (("memory", "memory"), ("disk", "disk")):
    table = db.create_table(name, [*columns, tm.Column("d", tm.Int64, storage=storage)], "id")
    table.insert_many([(key, "x", key) for key in range(500)])
    db.create_index(name, "by_s", "s")
snapshot = db.snapshot()
txn = db.transaction()
open_ = []
for name in ("memory", "disk"):
    txn.update(name, 3, {"d": 1})
    for source in (db[name], snapshot[name]):
        for how in ({}, {"where": tm.col("d") > 7}, {"index": "by_s"}, {"where": tm.col("s") == "x"}):
            for scan in (iter(source.scan(**how)), source.scan(**how).batches()):
                next(scan)
                open_.append(scan)
    scan = iter(txn.scan(name, lock="exclusive"))
    next(scan)
    open_.append(scan)
print("end")
"""


def test_scans_that_are_open_when_the_process_ends_say_nothing(tmp_path: Path) -> None:
    """Story: a script that had taken the first row of a scan, and did not close its store, ended with the traceback of
    a kernel that could not be loaded any more, 20 lines for each scan.
    """
    command = [sys.executable, "-c", LEFT_OPEN, str(tmp_path / "store")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "end\n" and "Traceback" not in ended.stderr and "ignored" not in ended.stderr, ended.stderr


# --- what callers raise --------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_what_a_generator_of_rows_raises_is_passed_on_and_changes_nothing(
    db: tm.Database, kind: type[BaseException]
) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for number in range(10, 20_000):
            yield {"id": number, "name": "x"}
        raise kind("mine")

    with pytest.raises(kind, match="mine"):
        db["item"].insert_many(rows())
    assert len(db["item"]) == 1
    with db.transaction() as txn:
        with pytest.raises(kind, match="mine"):
            txn.insert_many("item", rows())
        txn.insert("item", {"id": 2, "name": "cup"})
    assert sorted(row.id for row in db["item"]) == [1, 2]
