"""Rows and keys in every form of other libraries, by every call of many rows: what the same Python rows do, or an error
of this store that says where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tidemark as tm
from tests.store.support import client_of, open_memory

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("name", tm.VarChar(20)),
    tm.Column("token", tm.VarBinary(20)),
    tm.Column("n", tm.Int32),
    tm.Column("note", tm.Text, nullable=True),
]
HELD = [(number, f"name {number}", b"\x00\xff%d" % number, number, "held") for number in (1, 2, 3)]
MIXES = {"new": [4, 5], "existing": [1, 2], "mixed": [5, 2, 4], "repeated": [4, 1, 4, 1, 2], "none": []}
N = tm.col("n")


def given(ids: list[int]) -> list[dict[str, Any]]:
    """Rows of these keys. Of two rows with one key only the first has a note."""
    return [
        {
            "id": number,
            "name": f"name {number}",
            "token": b"\x00\xff%d" % number,
            "n": 10 * number + place,
            "note": None if number in ids[:place] else f"note {place}",
        }
        for place, number in enumerate(ids)
    ]


SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "token": pa.binary(), "n": pa.int32(), "note": pa.string()})


def arrow(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def cast(rows: list[dict[str, Any]], text: pa.DataType, octets: pa.DataType) -> pa.Table:
    kinds = {pa.string(): text, pa.binary(): octets}
    return arrow(rows).cast(pa.schema([(each.name, kinds.get(each.type, each.type)) for each in SCHEMA]))


def encoded(rows: list[dict[str, Any]]) -> pa.Table:
    """Every column as indices into a dictionary, which is another one in each chunk."""
    pieces = [arrow(rows[:1]), arrow(rows[1:])]
    columns = [
        pa.chunked_array([chunk.dictionary_encode() for piece in pieces for chunk in piece.column(name).chunks])
        for name in SCHEMA.names
    ]
    return pa.table(columns, names=SCHEMA.names)


def pandas(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return arrow(rows).to_pandas()


def polars(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.from_arrow(arrow(rows))


FORMS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "an iterator": iter,
    "lists": lambda rows: arrow(rows).to_pydict(),
    "Arrow": arrow,
    "a reader": lambda rows: arrow(rows).to_reader(2),
    "large": lambda rows: cast(rows, pa.large_string(), pa.large_binary()),
    "views": lambda rows: cast(rows, pa.string_view(), pa.binary_view()),
    "columns of views": lambda rows: dict(
        zip(SCHEMA.names, cast(rows, pa.string_view(), pa.binary_view()).columns, strict=True)
    ),
    "dictionaries": encoded,
    "pandas": pandas,
    "pandas nullable": lambda rows: pandas(rows).convert_dtypes(),
    "pandas of Arrow": lambda rows: arrow(rows).to_pandas(types_mapper=pd.ArrowDtype),
    "pandas categories": lambda rows: pandas(rows).astype({"name": "category", "note": "category"}),
    "columns of pandas": lambda rows: dict(pandas(rows).items()),
    "polars": polars,
    "polars categories": lambda rows: polars(rows).with_columns(pl.col("name", "note").cast(pl.Categorical)),
    "LazyFrame": lambda rows: polars(rows).lazy().with_columns(pl.col("n") + 0),
    "columns of polars": lambda rows: polars(rows).to_dict(),
    "DuckDB": lambda rows: relation(arrow(rows)),
}


def relation(rows: pa.Table) -> Any:
    connection = duckdb.connect()
    connection.register("rows", rows)
    return connection.sql("select * from rows")


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "insert_many": lambda table, rows: table.insert_many(rows),
    "write_many": lambda table, rows: table.write_many(rows),
    "upsert_many": lambda table, rows: table.upsert_many(rows),
    "upsert_many by set": lambda table, rows: table.upsert_many(rows, {"n": N + 1}),
    "upsert_many by index": lambda table, rows: table.upsert_many(rows, index="by_name"),
    "update_many": lambda table, rows: table.update_many(rows),
    "update_many by index": lambda table, rows: table.update_many(rows, index="by_name"),
}


class Doors:
    """Two tables that are alike, one for Python rows, and a client."""

    def __init__(self, stack: ExitStack) -> None:
        self.db: Any = stack.enter_context(open_memory(data_memory="32 MiB", redo_log="16 MiB"))
        for name in ("t", "plain"):
            self.db.create_table(name, COLUMNS, "id")
            self.db.create_index(name, "by_name", "name", unique=True)
        self.db.create_table("pair", [tm.Column("a", tm.VarChar(20)), tm.Column("b", tm.Int32)], ["a", "b"])
        self.remote = stack.enter_context(client_of(self.db))

    def begin(self) -> None:
        """Make room in the log."""
        self.db.checkpoint()
        self.db.checkpoint()

    def fill(self, name: str) -> Any:
        """Give a table its rows again."""
        self.db[name].delete_where(tm.col("id") > 0)
        self.db[name].insert_many(HELD)
        return self.db[name]


@pytest.fixture(scope="module")
def doors() -> Iterator[Doors]:
    with ExitStack() as stack:
        yield Doors(stack)


@pytest.fixture(autouse=True)
def room(doors: Doors) -> None:
    doors.begin()


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or its error and the row that it names."""
    try:
        return call()
    except tm.Error as error:
        return type(error).__name__, error.evidence.get("row")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("door", ["table", "remote table"])
def test_rows_of_every_form_do_what_python_rows_do(doors: Doors, form: str, door: str) -> None:
    """Story: `upsert_many` of a frame of polars raised ArrowNotImplementedError if one of its keys was there."""
    wrong = []
    for name, call in CALLS.items():
        for mix, ids in MIXES.items():
            rows = given(ids)
            doors.fill("t")
            plain = doors.fill("plain")
            target = doors.db["t"] if door == "table" else doors.remote["t"]
            right = outcome(partial(call, plain, rows))
            found = outcome(partial(call, target, FORMS[form](rows)))
            left, wanted = (sorted(map(tuple, doors.db[each])) for each in ("t", "plain"))
            if isinstance(found, tuple) and isinstance(right, tuple):
                found, right = found[0], right[0]  # of several rows that are wrong, an error names any
            if found != right or left != wanted:
                wrong.append(f"{name}, {mix}: {found}, {left}; right: {right}, {wanted}")
    assert not wrong, "\n".join(wrong)


# Forms of keys: of one column, given as Arrow.
KEYS: dict[str, Callable[[pa.Array], Any]] = {
    "an iterator": lambda keys: iter(keys.to_pylist()),
    "tuples of one": lambda keys: [(key,) for key in keys.to_pylist()],
    "Arrow": lambda keys: keys,
    "chunks": lambda keys: pa.chunked_array([keys[:1], keys[1:]]),
    "a dictionary": lambda keys: keys.dictionary_encode(),
    "NumPy": lambda keys: np.array(keys.to_pylist()),
    "pandas Series": lambda keys: keys.to_pandas(),
    "pandas Index": lambda keys: pd.Index(keys.to_pandas()),
    "pandas nullable": lambda keys: keys.to_pandas().convert_dtypes(),
    "pandas of Arrow": lambda keys: pd.Series(keys.to_pylist(), dtype=pd.ArrowDtype(keys.type)),
    "polars Series": pl.Series,
    **{
        f"{name}, in columns": lambda keys, make=make: make(pa.table({"key": keys, "more": keys}))  # type: ignore[misc]
        for name, make in {
            "lists": pa.Table.to_pydict,
            "Arrow": lambda table: table,
            "a reader": pa.Table.to_reader,
            "pandas": pa.Table.to_pandas,
            "polars": pl.from_arrow,
            "LazyFrame": lambda table: pl.from_arrow(table).lazy(),
            "DuckDB": relation,
            "structured NumPy": lambda table: table.to_pandas().to_records(index=False),
        }.items()
    },
}


def renamed(made: Any, name: str) -> Any:
    """Return data with the name of the key in place of "key"."""
    if isinstance(made, dict):
        return {name if each == "key" else each: values for each, values in made.items()}
    if isinstance(made, np.ndarray) and made.dtype.names:
        made = np.array(made)
        made.dtype.names = (name, "more")
        return made
    if isinstance(made, pa.RecordBatchReader):
        return made.read_all().rename_columns([name, "more"]).to_reader()
    if isinstance(made, pa.Table):
        return made.rename_columns([name, "more"])
    if isinstance(made, pd.DataFrame):
        return made.rename(columns={"key": name})
    if isinstance(made, (pl.DataFrame, pl.LazyFrame)):
        return made.rename({"key": name})
    return made.project(f"key as {name}, more") if hasattr(made, "project") else made


@pytest.mark.parametrize("form", KEYS)
@pytest.mark.parametrize("door", ["table", "remote table", "snapshot"])
def test_keys_of_every_form_find_what_a_list_finds(doors: Doors, form: str, door: str) -> None:
    """Story: of a frame of keys, the names of its columns were taken for the keys."""
    wrong = []
    asked = {
        "primary": (None, "id", pa.array([3, 9, 1, 3])),
        "text": ("by_name", "name", pa.array(["name 2", "x", "name 1"])),
        "views": ("by_name", "name", pa.array(["name 2", "x"], pa.string_view())),
    }
    for what, (index, name, keys) in asked.items():
        if what == "views" and form in ("a dictionary", "pandas of Arrow", "pandas Series", "pandas Index", "NumPy"):
            continue  # they have no views
        doors.fill("t")
        with doors.db.snapshot() as snapshot:
            table = {"table": doors.db, "remote table": doors.remote, "snapshot": snapshot}[door]["t"]
            made = lambda: renamed(KEYS[form](keys), name)  # noqa: E731, B023
            for missing in ("drop", "null"):
                right = doors.db["t"].get_many(keys.to_pylist(), index=index, missing=missing).to_pylist()
                found = outcome(lambda: table.get_many(made(), index=index, missing=missing).to_pylist())  # noqa: B023
                if found != right:
                    wrong.append(f"get_many, {what}, {missing}: {found}; right: {right}")
            if door == "snapshot":
                continue
            found = outcome(lambda: table.delete_many(made(), index=index))  # noqa: B023
            if found != ("RowNotFound", 1):
                wrong.append(f"delete_many, {what}, one absent: {found}")
            some = keys[:1]
            found = outcome(lambda: table.delete_many(renamed(KEYS[form](some), name), index=index))  # noqa: B023
            if found != 1:
                wrong.append(f"delete_many, {what}: {found}")
    assert not wrong, "\n".join(wrong)


def test_keys_of_two_columns_come_in_frames_and_rows(doors: Doors) -> None:
    rows = [("a", 1), ("b", 2), ("c", 3)]
    keys = pa.table({"b": pa.array([2, 7, 1], pa.int32()), "a": ["b", "b", "a"], "more": [1, 2, 3]})
    for form in (
        keys,
        keys.to_pandas(),
        pl.from_arrow(keys),
        pl.from_arrow(keys).lazy(),
        [("b", 2), ("b", 7), ("a", 1)],
    ):
        doors.db["pair"].delete_where(tm.col("b") > 0)
        doors.db["pair"].insert_many(rows)
        for table in (doors.db["pair"], doors.remote["pair"]):
            assert [tuple(row.values()) for row in table.get_many(form).to_pylist()] == [("b", 2), ("a", 1)]
            assert table.get_many(form, missing="null").to_pylist()[1] == {"a": None, "b": None}
            assert table.get_many(form, "b", missing="null").to_pydict() == {"b": [2, None, 1]}
    index = pd.MultiIndex.from_tuples([("a", 1), ("c", 3)], names=["a", "b"])
    assert doors.db["pair"].delete_many(index) == 2


def test_rows_of_missing_keys_are_null_in_every_type() -> None:
    kinds: dict[str, tuple[Any, Any]] = {
        "u": (tm.UInt64, 2**64 - 1),
        "f": (tm.Float64, -0.0),
        "d": (tm.Decimal(38, 2), 1),
        "c": (tm.Char(3), "é"),
        "b": (tm.Binary(4), b"ab"),
        "e": (tm.Enum("x", "y"), "y"),
        "j": (tm.JSON, {"a": [1]}),
        "blob": (tm.Blob, b"\xff"),
        "flag": (tm.Bool, True),
    }
    db: Any = open_memory()
    table = db.create_table("t", [tm.Column("k", tm.Float64), *(tm.Column(n, k) for n, (k, _) in kinds.items())], "k")
    row = {"k": 0.0, **{name: value for name, (_, value) in kinds.items()}}
    table.insert(row)
    for keys in ([-0.0, 1.0, 0.0], np.array([-0.0, 1.0, 0.0])):
        found = table.get_many(keys, missing="null")
        assert found.take(pa.array([0, 2])).cast(table.get_many([0.0]).schema) == table.get_many([0.0, 0.0])
        assert found.slice(1, 1).to_pylist() == [dict.fromkeys(row)]
        assert all(field.nullable for field in found.schema)
    assert table.get_many([], missing="null").num_rows == 0
    assert table.get_many([5.0], missing="null").num_rows == 1


@pytest.mark.parametrize("door", ["table", "remote table", "snapshot"])
@pytest.mark.parametrize("form", ["to_arrow", "to_pandas", "to_polars", "to_numpy"])
def test_documents_come_back_from_every_form_as_they_are(doors: Doors, door: str, form: str) -> None:
    """Story: pandas had JSON text among objects, where a str is a document that is a str. What `to_pandas` returned
    turned dicts and lists into texts when it was inserted again.
    """
    documents = [{"b": [1, 2.5, None], "a": "ü"}, [], "text", "1", '{"a":1}', 3, True, None, "null"]
    columns = [tm.Column("id", tm.Int64), tm.Column("document", tm.JSON, nullable=True)]
    rows = [(number, document) for number, document in enumerate(documents)]
    doors.db.create_table("documents", columns, "id").insert_many(rows)
    copy = doors.db.create_table("copy", columns, "id")
    with doors.db.snapshot() as snapshot:
        faces = {"table": doors.db, "remote table": doors.remote, "snapshot": snapshot}
        made = getattr(faces[door]["documents"], form)()
    for call in ("insert_many", "write_many", "upsert_many", "update_many"):
        getattr(copy, call)(made)
        assert sorted((tuple(row) for row in copy), key=lambda row: row[0]) == rows, call
    for name in ("documents", "copy"):
        doors.db.drop_table(name)


def test_locks_and_own_changes_count_in_get_many_with_rows_of_null(doors: Doors) -> None:
    doors.fill("t")
    for isolation in ("read committed", "snapshot"):
        with doors.db.transaction(isolation=isolation) as txn:
            txn.insert("t", given([7])[0])
            txn.delete("t", 1)
            found = txn.get_many("t", [7, 1, 2], "id", lock="exclusive", missing="null")
            assert found.to_pydict() == {"id": [7, None, 2]}
            txn.rollback()


# Data that a library cannot give, or that contradicts itself: the error, and what it says.
LIST = pa.array([["a"]], pa.list_(pa.string()))
BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "a query without its column": (lambda: polars(given([1])).lazy().select("nmae"), "LazyFrame"),
    "a query that fails": (
        lambda: polars(given([1])).lazy().with_columns(n=pl.col("name").str.to_integer(strict=True)),
        "LazyFrame",
    ),
    "a relation that fails": (lambda: duckdb.connect().sql("select error('no rows') as id"), "no rows"),
    "lists": (lambda: arrow(given([1])).set_column(1, "name", LIST), "t.name"),
    "list views": (
        lambda: arrow(given([1])).set_column(1, "name", pa.array([["a"]], pa.list_view(pa.string()))),
        "t.name",
    ),
    "lists in a dict": (lambda: {**arrow(given([1])).to_pydict(), "name": LIST}, "t.name"),
    "structs": (lambda: arrow(given([1])).set_column(1, "name", pa.array([{"a": 1}])), "t.name"),
    "indices past their dictionary": (
        lambda: arrow(given([1])).set_column(
            1, "name", pa.DictionaryArray.from_arrays(pa.array([5], pa.int8()), ["a"], safe=False)
        ),
        "t.name",
    ),
    "views that are not UTF-8": (
        lambda: arrow(given([1])).set_column(1, "name", pa.array([b"\xff"], pa.binary_view())),
        "t.name",
    ),
    "a Series": (lambda: pl.Series([1, 2]), "Arrow"),
    "polars objects": (lambda: polars(given([1])).with_columns(name=pl.Series([object()], dtype=pl.Object)), "t.name"),
    "pandas intervals": (lambda: pandas(given([1])).assign(name=pd.interval_range(0, 1)), "t.name"),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("door", ["table", "remote table"])
def test_errors_of_other_libraries_come_as_errors_of_the_store(doors: Doors, what: str, door: str) -> None:
    doors.fill("t")
    if what == "indices past their dictionary" and door == "remote table":
        pytest.skip("the bytes of a message are what they are: it is refused with its link")
    made, says = BROKEN[what]
    table = doors.db["t"] if door == "table" else doors.remote["t"]
    for name, call in CALLS.items():
        with pytest.raises(tm.Rejected, match=says) as refused:
            call(table, made())
        assert "name" not in says or refused.value.evidence.get("column") == "name", name
    with pytest.raises(tm.Rejected):
        doors.db.load("t", made())
    assert sorted(map(tuple, doors.db["t"])) == HELD


KEYS_REFUSED: dict[str, Callable[[], Any]] = {
    "no key column": lambda: pl.DataFrame({"ID": [1]}),
    "a query that fails": lambda: pl.LazyFrame({"id": [1]}).select("x"),
    "a relation that fails": lambda: duckdb.connect().sql("select error('no rows') as id"),
    "lists": lambda: pl.Series([[1]]),
    "structs": lambda: pl.Series([{"id": 1}]),
    "a column twice": lambda: pa.table([pa.array([1]), pa.array([2])], names=["id", "id"]),
    "a column twice in pandas": lambda: pd.DataFrame([[1, 2]], columns=["id", "id"]),
    # Story: what the mask hides was taken for a key.
    "masked": lambda: np.ma.array([1, 2], mask=[False, True]),
    "NULL": lambda: pd.Series([1, None], dtype="Int64"),
    "fractions": lambda: pd.Series([1.5]),
    "text": lambda: pl.Series(["1"]),
    "columns of other lengths": lambda: {"id": [1], "more": 5, 5: []} | {"id": "1"},
}


@pytest.mark.parametrize("what", KEYS_REFUSED)
@pytest.mark.parametrize("door", ["table", "remote table"])
def test_keys_that_cannot_be_read_are_refused(doors: Doors, what: str, door: str) -> None:
    doors.fill("t")
    table = doors.db["t"] if door == "table" else doors.remote["t"]
    for call in (table.get_many, table.delete_many):
        with pytest.raises(tm.Rejected):
            call(KEYS_REFUSED[what]())
    assert sorted(map(tuple, doors.db["t"])) == HELD


def test_what_to_do_with_missing_keys_is_named(doors: Doors) -> None:
    with pytest.raises(tm.SchemaInvalid, match="missing must be 'drop' or 'null', got str 'none'"):
        doors.db["t"].get_many([1], missing="none")
    with pytest.raises(tm.NoSuchIndex):
        doors.db["t"].get_many([1], index="by", missing="null")
