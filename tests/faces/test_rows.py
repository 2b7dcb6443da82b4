"""Calls of one table do the same on every face and in every storage, with every kind of argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tidemark as tm
from tests.faces.faces import READING, ROWS, STORAGES, TABLE, WRITING, Calls, Faces, Item, listed_as, plain
from tidemark.calls import READ_ONLY, Kind, calls_of

INK, BOX = (4, "ink", 7, None), (5, "box", 2, "e")
PENCIL = (1, "pencil", 12, None)
N = tm.col("n")


class Case(NamedTuple):
    """A call with its arguments: what it returns or raises, and the rows after it; None: they are as before."""

    name: str
    arguments: Callable[[], tuple[Any, ...]]
    named: dict[str, Any]
    result: Any
    rows: list[tuple[Any, ...]] | None = None
    is_typed: bool = True  # whether a typed table takes such arguments


def call(name: str, *arguments: Any, **named: Any) -> Case:
    return Case(name, lambda: arguments, named, None)


def gives(result: Any, case: Case, *rows: tuple[Any, ...], without: tuple[int, ...] = ()) -> Case:
    """rows: what is new or replaced in the table after the call. without: the keys that are gone."""
    if not rows and not without:
        return case._replace(result=result)
    after = {row[0]: row for row in ROWS} | {row[0]: row for row in rows}
    return case._replace(result=result, rows=[after[key] for key in sorted(after) if key not in without])


def untyped(case: Case) -> Case:
    return case._replace(is_typed=False)


FORMS: dict[str, Callable[[], Any]] = {
    "dicts": lambda: [dict(zip(("id", "name", "n", "note"), row, strict=True)) for row in (INK, BOX)],
    "an iterator": lambda: iter([INK, BOX]),
    "columns": lambda: {"id": [4, 5], "name": ["ink", "box"], "n": [7, 2], "note": [None, "e"]},
    "Arrow": lambda: pa.table({"id": [4, 5], "name": ["ink", "box"], "n": [7, 2], "note": [None, "e"]}),
    "a batch": lambda: pa.record_batch({"id": [4, 5], "name": ["ink", "box"], "n": [7, 2], "note": [None, "e"]}),
    "pandas": lambda: pd.DataFrame({"id": [4, 5], "name": ["ink", "box"], "n": [7, 2], "note": [None, "e"]}),
    "polars": lambda: pl.DataFrame({"id": [4, 5], "name": ["ink", "box"], "n": [7, 2], "note": [None, "e"]}),
}
KEYS: dict[str, Callable[[], Any]] = {
    "a tuple": lambda: (1, 3),
    "Arrow": lambda: pa.array([1, 3]),
    "NumPy": lambda: np.array([1, 3]),
    "columns": lambda: {"id": [1, 3]},
    "an Arrow table": lambda: pa.table({"id": [1, 3]}),
    "pandas": lambda: pd.DataFrame({"id": [1, 3]}),
    "a Series": lambda: pl.Series([1, 3]),
    "a LazyFrame": lambda: pl.LazyFrame({"id": [1, 3]}),
}

CHANGES: dict[str, Case] = {
    "insert a tuple": gives(None, call("insert", INK), INK),
    "insert a dict": untyped(gives(None, call("insert", {"id": 4, "name": "ink", "n": 7}), INK)),
    "insert a key that is there": gives(tm.DuplicateKey, call("insert", (1, "x", 0, None))),
    "insert a unique key that is there": gives(tm.DuplicateKey, call("insert", (4, "pen", 0, None))),
    "insert no row": gives(tm.TypeMismatch, call("insert", 5)),
    "insert an unknown column": untyped(gives(tm.NoSuchColumn, call("insert", {"id": 4, "nmae": "x"}))),
    "insert too many arguments": gives(TypeError, call("insert", INK, 1, 2)),
    "write a new row": gives(None, call("write", INK), INK),
    "write over a row": gives(None, call("write", PENCIL), PENCIL),
    "write a unique key of another row": gives(tm.DuplicateKey, call("write", (1, "cup", 0, None))),
    "update by a value": gives(True, call("update", 1, {"n": 12}), (1, "pen", 12, "a")),
    "update by no change": gives(True, call("update", 1, {})),
    "update the column on disk": gives(True, call("update", 1, {"note": "new"}), (1, "pen", 10, "new")),
    "update by an expression": gives(True, call("update", 1, {"n": N + 1}), (1, "pen", 11, "a")),
    "update where it holds": gives(True, call("update", 1, {"n": 0}, N > 5), (1, "pen", 0, "a")),
    "update where it does not": gives(False, call("update", 1, {"n": 0}, where=N > 50)),
    "update by a unique index": gives(True, call("update", "pen", {"n": 0}, index="by_name"), (1, "pen", 0, "a")),
    "update an absent key": gives(tm.RowNotFound, call("update", 9, {"n": 0})),
    "update an unknown column": gives(tm.NoSuchColumn, call("update", 1, {"m": 0})),
    "update by an unknown index": gives(tm.NoSuchIndex, call("update", 1, {"n": 0}, index="by")),
    "update by an index that is not unique": gives(tm.Unsupported, call("update", 10, {"n": 0}, index="by_n")),
    "update the key": gives(tm.Rejected, call("update", 1, {"id": 8})),
    "delete": gives(True, call("delete", 3), without=(3,)),
    "delete where it holds": gives(True, call("delete", 1, N > 5), without=(1,)),
    "delete where it does not": gives(False, call("delete", 1, where=N > 50)),
    "delete by a unique index": gives(True, call("delete", "cup", index="by_name"), without=(2,)),
    "delete an absent key": gives(tm.RowNotFound, call("delete", 9)),
    "upsert a new row": gives(True, call("upsert", INK), INK),
    "upsert a row": gives(False, call("upsert", PENCIL), PENCIL),
    "upsert by set": gives(False, call("upsert", (1, "pen", 3, "a"), {"n": N + 3}), (1, "pen", 13, "a")),
    "upsert by a unique index": gives(
        False, call("upsert", (9, "pen", 3, None), {"n": 3}, index="by_name"), (1, "pen", 3, "a")
    ),
    "upsert no row": gives(tm.TypeMismatch, call("upsert", 5)),
    "insert many tuples": gives(2, call("insert_many", [INK, BOX]), INK, BOX),
    "insert none": gives(0, call("insert_many", [])),
    "insert none as a dict": untyped(gives(0, call("insert_many", {}))),
    "insert none as columns": untyped(gives(0, call("insert_many", {"id": [], "name": []}))),
    "insert none of an iterator": gives(0, Case("insert_many", lambda: (iter(()),), {}, None)),
    "insert many, one twice": gives(tm.DuplicateKey, call("insert_many", [INK, (5, "pen", 0, None)])),
    **{
        f"insert many as {form}": untyped(
            gives(2, Case("insert_many", lambda make=make: (make(),), {}, None), INK, BOX)  # type: ignore[misc]
        )
        for form, make in FORMS.items()
    },
    "write many": gives(2, call("write_many", [PENCIL, INK]), PENCIL, INK),
    "write many, one wrong": gives(tm.NotNullViolation, call("write_many", [PENCIL, (4, None, 0, None)])),
    "upsert many": gives(1, call("upsert_many", [PENCIL, INK]), PENCIL, INK),
    "upsert many by set": gives(
        1, call("upsert_many", [(1, "pen", 3, "a"), INK], {"n": N + 3}), (1, "pen", 13, "a"), INK
    ),
    "upsert many by a unique index": gives(
        0, call("upsert_many", [(9, "pen", 3, None)], {"n": 3}, index="by_name"), (1, "pen", 3, "a")
    ),
    "update many dicts": gives(
        2, call("update_many", [{"id": 1, "n": 8}, {"id": 3, "n": 4}]), (1, "pen", 8, "a"), (3, "bag", 4, "c")
    ),
    "update many by a unique index": gives(
        1, call("update_many", {"name": ["cup"], "n": [6]}, index="by_name"), (2, "cup", 6, None)
    ),
    "update many, one absent": gives(tm.RowNotFound, call("update_many", {"id": [1, 9], "n": [8, 8]})),
    "delete many": gives(2, call("delete_many", [1, 3]), without=(1, 3)),
    **{
        f"delete many as {form}": gives(
            2,
            Case("delete_many", lambda make=make: (make(),), {}, None),  # type: ignore[misc]
            without=(1, 3),
        )
        for form, make in KEYS.items()
    },
    "delete many by a unique index": gives(2, call("delete_many", ["pen", "bag"], index="by_name"), without=(1, 3)),
    "delete none": gives(0, call("delete_many", [])),
    "delete many, one absent": gives(tm.RowNotFound, call("delete_many", [1, 9])),
    "update where": gives(1, call("update_where", {"n": N * 2}, N > 5), (1, "pen", 20, "a")),
    "update where a key is given": gives(1, call("update_where", {"n": 0}, tm.col("id") == 2), (2, "cup", 0, None)),
    "update all": gives(3, call("update_where", {"note": None}), *[(*row[:3], None) for row in ROWS]),
    "update nothing": gives(tm.SchemaInvalid, call("update_where", {})),
    "delete where NULL": gives(1, call("delete_where", N.is_null()), without=(3,)),
    "delete where a key is given": gives(1, call("delete_where", where=tm.col("id") == 2), without=(2,)),
    "delete where no condition": gives(tm.TypeMismatch, call("delete_where", "n > 5")),
}

READS: dict[str, Case] = {
    "get": gives(ROWS[0], call("get", 1)),
    "get by name": gives(ROWS[0], call("get", key=1)),
    "get an absent key": gives(None, call("get", 9)),
    "get by a unique index": gives(ROWS[1], call("get", "cup", index="by_name")),
    "get an absent unique key": gives(None, call("get", "mug", index="by_name")),
    "get by an unknown index": gives(tm.NoSuchIndex, call("get", 1, index="by")),
    "get by an index that is not unique": gives(tm.Unsupported, call("get", 10, index="by_n")),
    "get a key of another type": gives(tm.TypeMismatch, call("get", "1")),
    "get a unique key of another type": gives(tm.TypeMismatch, call("get", 1, index="by_name")),
    "get too many arguments": gives(TypeError, call("get", 1, 2, 3, 4, 5, 6)),
    "get many": gives([ROWS[2], ROWS[0]], call("get_many", [3, 9, 1])),
    "get many of one column": untyped(gives([("bag",), ("pen",)], call("get_many", [3, 1], "name"))),
    "get many of columns": untyped(gives([("c", 3)], call("get_many", [3], ["note", "id"]))),
    "get many of columns that are a number": untyped(gives(tm.Rejected, call("get_many", [1], 5))),
    "get many by a unique index": gives([ROWS[1], ROWS[0]], call("get_many", ["cup", "mug", "pen"], index="by_name")),
    "get one column by a unique index": untyped(gives([("a",)], call("get_many", ["pen"], "note", index="by_name"))),
    "get many keys of another type": gives(tm.TypeMismatch, call("get_many", ["x"])),
    "get many unique keys of another type": gives(tm.TypeMismatch, call("get_many", [1], index="by_name")),
    "get none": gives([], call("get_many", [])),
    "get many, NULL where there is no row": untyped(
        gives([ROWS[2], (None,) * 4, ROWS[0]], call("get_many", [3, 9, 1], missing="null"))
    ),
    "get many of one column, NULL where there is no row": untyped(
        gives(
            [("pen",), (None,), ("pen",)],
            call("get_many", ["pen", "mug", "pen"], "name", index="by_name", missing="null"),
        )
    ),
    "get many, missing in an unknown way": gives(tm.SchemaInvalid, call("get_many", [1], missing="none")),
    **{
        f"get many as {form}": gives(
            [ROWS[0], ROWS[2]],
            Case("get_many", lambda make=make: (make(),), {}, None),  # type: ignore[misc]
        )
        for form, make in KEYS.items()
    },
    "scan": gives(ROWS, call("scan")),
    "scan where": gives([ROWS[0]], call("scan", where=N > 5)),
    "scan where a key is given": gives([ROWS[1]], call("scan", where=tm.col("id") == 2)),
    "scan where a unique key is given": gives([ROWS[0]], call("scan", where=tm.col("name") == "pen")),
    "scan where no key is given": gives([], call("scan", where=tm.col("id").isin([]))),
    # Story: `scan("id")` raised "main.t has no column str 'i'".
    "scan one column": untyped(gives([("pen",), ("cup",), ("bag",)], call("scan", "name"))),
    "scan columns by place": untyped(gives([(10, "pen"), (5, "cup"), (None, "bag")], call("scan", ["n", "name"]))),
    "scan columns that are a number": untyped(gives(tm.Rejected, call("scan", 5))),
    "scan an unknown column": untyped(gives(tm.NoSuchColumn, call("scan", ["x"]))),
    "scan by an index": gives([ROWS[1], ROWS[0]], call("scan", index="by_n", lower=0)),
    "scan by an index in descending order": gives([ROWS[0]], call("scan", index="by_n", reverse=True, limit=1)),
    "scan up to a key": gives([ROWS[1]], call("scan", index="by_n", lower=0, upper=10)),
    "scan one key of an index": gives([ROWS[0]], call("scan", index="by_n", prefix=10)),
    "scan by an unknown index": gives(tm.NoSuchIndex, call("scan", index="by")),
    "scan a wrong number of rows": gives(tm.SchemaInvalid, call("scan", limit=-1)),
    "count": gives(3, call("count")),
    "count a column": gives(2, call("count", "n")),
    "count where": gives(1, call("count", where=N > 5)),
    "sum": gives(15, call("sum", "n")),
    "sum of an expression": gives(25, call("sum", N + 5)),
    "sum where": gives(10, call("sum", "n", N > 5)),
    "min": gives(5, call("min", "n")),
    "min of text": gives("bag", call("min", "name")),
    "max": gives(10, call("max", "n", where=tm.col("id") < 3)),
    "max of none": gives(None, call("max", "n", where=tm.col("id") > 3)),
    "mean": gives(7.5, call("mean", "n")),
    "sum of text": gives(tm.ProgramInvalid, call("sum", "name")),
    "aggregate": gives((3, 15), call("aggregate", rows=("count",), total=("sum", "n"))),
    "aggregate where": gives((1,), call("aggregate", N > 5, rows=("count",))),
    "aggregate by": gives(
        [(10, 1), (5, 1), (None, 1)],
        call("aggregate", by="n", rows=("count",), order="n", reverse=True),
    ),
    "aggregate by, limited": gives([(None, 1)], call("aggregate", by="n", rows=("count",), limit=1)),
    "sample of more rows than there are": gives(ROWS, call("sample", 5)),
    "sample of a column where": gives([("pen",)], call("sample", 1, ["name"], N > 5, seed=7)),
    "sample of few rows of an index": gives([ROWS[0]], call("sample", 3, index="by_n", reverse=True, limit=1)),
    "sample of no rows": gives([], call("sample", 0)),
    "sample of a wrong number of rows": gives(tm.SchemaInvalid, call("sample", -1)),
    "sample with a wrong seed": gives(tm.SchemaInvalid, call("sample", 1, seed=-1)),
    "to_arrow": gives(ROWS, call("to_arrow")),
    "to_arrow of a column": untyped(gives([("pen",), ("cup",), ("bag",)], call("to_arrow", "name"))),
    "to_arrow of a number": untyped(gives(tm.Rejected, call("to_arrow", 1.5))),
    "to_arrow of columns where": gives([("pen",)], call("to_arrow", ["name"], N > 5)),
    # Story: `to_arrow(limit=1)` of a table was a TypeError; only that of a scan could be limited.
    **{
        f"{name} by an index": gives([ROWS[1], ROWS[0]], call(name, index="by_n", lower=0))
        for name in ("to_arrow", "to_pandas", "to_polars")
    },
    "to_arrow of few rows of an index": gives([ROWS[0]], call("to_arrow", index="by_n", reverse=True, limit=1)),
    "to_pandas of few rows": gives([ROWS[0]], call("to_pandas", where=N > 5, limit=1)),
    "to_polars of no rows": gives([], call("to_polars", limit=0)),
    "to_numpy of few rows of an index": gives(
        [(1, "pen")], call("to_numpy", ["id", "name"], index="by_n", prefix=10, limit=1)
    ),
    "to_arrow with an unknown argument": gives(TypeError, call("to_arrow", lmit=1)),
    "to_pandas": gives(ROWS, call("to_pandas")),
    "to_pandas of a column": gives([("pen",)], call("to_pandas", "name", where=N > 5)),
    "to_polars": gives(ROWS, call("to_polars")),
    "to_polars of a column": gives([("pen",)], call("to_polars", "name", where=N > 5)),
    "to_numpy of columns": gives([(1, "pen"), (2, "cup")], call("to_numpy", ["id", "name"], where=tm.col("id") < 3)),
    "to_numpy of an unknown column": gives(tm.NoSuchColumn, call("to_numpy", ["x"])),
    "dataset": gives(ROWS, call("dataset")),
    "scan_polars": gives(ROWS, call("scan_polars")),
}


# Of transactions alone.
LOCKS: dict[str, Case] = {
    "get with a shared lock": gives(ROWS[0], call("get", 1, "shared")),
    "get with an exclusive lock": gives(ROWS[0], call("get", 1, lock="exclusive", skip_locked=True)),
    "get by a unique index with a lock": gives(ROWS[1], call("get", "cup", "exclusive", index="by_name")),
    "get an absent key with a lock": gives(None, call("get", 9, lock="exclusive")),
    "get with an unknown lock": gives(tm.SchemaInvalid, call("get", 1, "write")),
    "get without a lock that is skipped": gives(tm.SchemaInvalid, call("get", 1, skip_locked=True)),
    "get many with a lock": gives([ROWS[2], ROWS[0]], call("get_many", [3, 9, 1], lock="shared")),
    "get many with a lock, NULL where there is no row": gives(
        [(3,), (None,)], call("get_many", [3, 9], "id", lock="exclusive", missing="null")
    ),
    "get many of one column with a lock": gives([("cup",)], call("get_many", [2], "name", lock="shared")),
    "get many by a unique index with a lock": gives(
        [("cup",)], call("get_many", ["cup"], ["name"], index="by_name", lock="exclusive")
    ),
    "scan with a lock": gives([ROWS[0]], call("scan", lock="exclusive", where=N > 5)),
    "scan one column with a lock": gives([(2,)], call("scan", "id", 1, "exclusive", where=tm.col("id") == 2)),
    "scan columns with a lock": gives([("cup",)], call("scan", ["name"], 1, "shared", where=tm.col("id") == 2)),
    "scan with a lock, skipped": gives(
        [ROWS[1]], call("scan", None, 1, "exclusive", index="by_n", lower=0, skip_locked=True)
    ),
    "scan hidden columns with a lock": gives(tm.SchemaInvalid, call("scan", [tm.ROWID], lock="shared")),
    # Story: a mutant whose scans took any text for "no lock" was seen by no test.
    "scan with an unknown lock": gives(tm.SchemaInvalid, call("scan", lock="write")),
    "scan without a lock that is skipped": gives(tm.SchemaInvalid, call("scan", skip_locked=True)),
}


@pytest.fixture(scope="module", params=STORAGES)
def faces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faces]:
    with ExitStack() as at_end:
        yield Faces(tmp_path_factory.mktemp("faces") / "store", request.param, at_end)


def outcome(faces: Faces, face: str, case: Case) -> Any:
    """What a call returns, or the class of its error."""
    try:
        return faces.call(face, case.name, case.arguments(), case.named)
    except (tm.Error, TypeError) as error:
        return type(error)


def has(face: str, name: str) -> bool:
    return any(each.name == name and reason is None for each, reason in calls_of(listed_as(face)))


def agrees(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, type):
        return isinstance(found, type) and issubclass(found, wanted)
    return bool(found == wanted)


@pytest.mark.parametrize("face", WRITING)
def test_changes_do_the_same_on_every_face(faces: Faces, face: str) -> None:
    wrong = []
    for name, case in CHANGES.items():
        if "typed" in face and not case.is_typed:
            continue
        found = outcome(faces, face, case)
        rows = faces.rows()
        if not agrees(found, case.result) or rows != (ROWS if case.rows is None else case.rows):
            wrong.append(f"{name}: {found!r}, right: {case.result!r}; the rows are {rows}, right: {case.rows or ROWS}")
        if rows != ROWS:
            faces.restore()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("face", READING)
def test_reads_return_the_same_on_every_face(faces: Faces, face: str) -> None:
    assert faces.rows() == ROWS
    wrong = []
    for name, case in READS.items():
        if not has(face, case.name) or ("typed" in face and not case.is_typed):
            continue
        found = outcome(faces, face, case)
        if found is tm.Unsupported and face.startswith("read-only") and faces.storage == "disk":
            continue  # a view has what a local checkpoint has of memory
        right = case.result
        is_in_order = "index" in name or case.name in ("get", "get_many", "aggregate")
        if isinstance(found, list) and isinstance(right, list) and not is_in_order:
            found, right = sorted(found, key=repr), sorted(right, key=repr)
        if not agrees(found, right):
            wrong.append(f"{name}: {found!r}, right: {right!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("face", [face for face in READING if face.endswith("transaction")])
def test_locks_do_the_same_in_every_transaction(faces: Faces, face: str) -> None:
    for name, case in LOCKS.items():
        wanted = tm.ReadOnly if face == "read-only transaction" else case.result
        found = outcome(faces, face, case)
        assert agrees(found, wanted), f"{name}: {found!r}, right: {wanted!r}"
    assert faces.db.status()["transactions"]["holders"] == []


@pytest.mark.parametrize("face", READING)
def test_how_rows_are_found_and_what_a_table_has_is_the_same_on_every_face(faces: Faces, face: str) -> None:
    def ask(name: str, *arguments: Any, **named: Any) -> Any:
        return faces.call(face, name, arguments, named)

    plan = ask("explain", where=tm.col("id") == 1)
    assert (plan["access"], plan["bounds"], plan["rows"]) == ("primary key", [{"id": 1}], 1)
    assert ask("explain", where=tm.col("name") == "pen")["index"] == "by_name"
    assert ask("explain", ["n"], index="by_n")["access"] in ("index", "index only")
    assert ask("explain", "id")["access"] == "full scan"
    if faces.storage == "partitions":
        assert [row[0] for row in ask("scan", index="by_name", lower="c")] == [2, 1]
    if has(face, "indexes"):
        assert [(each["name"], each["unique"]) for each in ask("indexes")] == [("by_n", False), ("by_name", True)]
        assert sum(each["rows"] for each in ask("partitions")) == 3
    if has(face, "definition"):
        assert ask("name") == TABLE and list(ask("definition").primary_key) == ["id"]
        said = [(each.name, repr(each.type), each.nullable, each.has_default) for each in ask("columns")]
        assert said[1:3] == [("name", "VarChar(20)", False, False), ("n", "Int32", True, False)]


@pytest.mark.parametrize(
    "face", [face for face in READING if not face.startswith("awaited") and not face.endswith("transaction")]
)
def test_tables_are_mappings_and_arrow_streams(faces: Faces, face: str) -> None:
    if face.startswith("read-only") and faces.storage == "disk":
        return  # a view has what a local checkpoint has of memory
    with faces.face(face) as table:
        assert len(table) == 3 and 1 in table and 9 not in table and sorted(row.id for row in table) == [1, 2, 3]
        assert table[2].name == "cup"
        with pytest.raises(tm.RowNotFound):
            table[9]
        if "typed" not in face:
            assert pa.table(table).num_rows == 3
            assert "<th>note</th>" in table._repr_html_()


@pytest.mark.parametrize("face", ["table", "typed table", "remote table", "remote typed table"])
def test_items_are_written_and_deleted(faces: Faces, face: str) -> None:
    def made(*values: Any) -> Any:
        return Item(*values) if "typed" in face else values

    with faces.face(face) as table:
        table[1] = made(*PENCIL)
        table[4] = made(*INK)
        del table[2]
        assert faces.rows() == [PENCIL, ROWS[2], INK]
        with pytest.raises(tm.RowNotFound):
            del table[2]
        for row in (made(3, "x", 3, None), table[3]):
            with pytest.raises(tm.Rejected, match="the row with key int 3 cannot replace that with key int 1; "):
                table[1] = row
        if "typed" not in face:
            table[5] = {"id": 5, "name": "box"}
            table[5] = table[5]._replace(n=4)
            for row, kind in (({"name": "x"}, tm.NotNullViolation), ((), tm.Rejected), (7, tm.TypeMismatch)):
                with pytest.raises(kind):
                    table[1] = row
            assert tuple(table[5]) == (5, "box", 4, None) and tuple(table[1]) == PENCIL
    faces.restore()


TRANSACTIONS = [face for face in WRITING if face.endswith("transaction")]


@pytest.mark.parametrize("face", TRANSACTIONS)
def test_a_transaction_shows_its_changes_to_itself_and_is_done_whole(faces: Faces, face: str) -> None:
    with faces.face(face) as made:
        txn = Calls(faces, made)
        txn.insert(TABLE, INK)
        assert faces.rows() == ROWS and plain("", txn.get(TABLE, 4)) == INK and txn.count(TABLE) == 4
        with pytest.raises(tm.DuplicateKey):
            txn.insert(TABLE, INK)
        with pytest.raises(ZeroDivisionError), faces.entered(made.savepoint()):
            txn.update(TABLE, 1, {"n": 0})
            txn.delete(TABLE, 2)
            raise ZeroDivisionError
        with faces.entered(made.savepoint()):
            txn.insert(TABLE, BOX)
        assert txn.sum(TABLE, "n", N > 5) == 17
    assert faces.rows() == [*ROWS, INK, BOX] and faces.db.outcome(made.txid) == "committed"
    # Story: `commit()` was a TypeError: it had an argument without a default.
    for call in (lambda: txn.get(TABLE, 1), lambda: txn.commit()):
        with pytest.raises(tm.TransactionEnded, match="begin another one"):
            call()
    with pytest.raises(ZeroDivisionError), faces.face(face) as made:
        Calls(faces, made).delete(TABLE, 1)
        raise ZeroDivisionError
    assert faces.rows() == [*ROWS, INK, BOX] and faces.db.outcome(made.txid) == "aborted"
    faces.restore()


@pytest.mark.parametrize("face", [face for face in READING if face.endswith("transaction table")])
def test_a_table_of_a_transaction_takes_locks(faces: Faces, face: str) -> None:
    """Story: rows of a class could be read in no transaction, and so under no lock."""
    for name, arguments, wanted in (("get", (1, "shared"), ROWS[0]), ("get_many", ([3],), [ROWS[2]])):
        named = {} if name == "get" else {"lock": "exclusive"}
        if face.startswith("read-only"):
            with pytest.raises(tm.ReadOnly):
                faces.call(face, name, arguments, named)
        else:
            assert faces.call(face, name, arguments, named) == wanted
    if not face.startswith("read-only"):
        with faces.db.transaction() as holder:
            assert holder.get(TABLE, 1, lock="exclusive")
            found = faces.call(face, "scan", (), {"lock": "exclusive", "skip_locked": True})
            assert sorted(row[0] for row in found) == [2, 3]
            assert faces.call(face, "get", (1,), {"lock": "shared", "skip_locked": True}) is None


def test_a_table_of_a_transaction_sees_its_changes(faces: Faces) -> None:
    with pytest.raises(ZeroDivisionError), faces.db.transaction() as txn:
        table, typed = txn.table(TABLE), txn.table(TABLE, Item)
        table.insert(INK)
        typed[5] = Item(*BOX)
        del typed[1]
        assert (len(table), table.name, 1 in typed, typed[4].name) == (4, TABLE, False, "ink")
        assert repr(typed) == f"<tidemark table {TABLE} in a transaction as Item>"
        assert faces.rows() == ROWS
        with pytest.raises(tm.NoSuchTable):
            txn.table("none")
        raise ZeroDivisionError
    with pytest.raises(tm.TransactionEnded):
        table.get(1)
    assert faces.rows() == ROWS


@pytest.mark.parametrize("face", [face for face in READING if face.startswith("awaited") and face.endswith("table")])
def test_an_awaited_table_is_a_mapping_as_far_as_python_allows(faces: Faces, face: str) -> None:
    async def read(table: Any) -> Any:
        with pytest.raises(tm.RowNotFound):
            await table[9]
        return await table[2], [row.id async for row in table]

    with faces.face(face) as table:
        row, ids = faces.awaited(read(table))
        assert table and row.name == "cup" and sorted(ids) == [1, 2, 3]
        with pytest.raises(TypeError, match=r"len\(\) of a table cannot be awaited; use `await table.count\(\)`"):
            len(table)
        with pytest.raises(TypeError, match="`in` a table cannot be awaited; use `await table.get"):
            _ = 1 in table
        assert repr(table).startswith(f"<tidemark table {TABLE}") and repr(table).endswith(", awaited>")


@pytest.mark.parametrize("face", TRANSACTIONS)
def test_locked_rows_are_skipped_in_every_transaction(faces: Faces, face: str) -> None:
    how: dict[str, Any] = {"lock": "exclusive", "skip_locked": True}
    with faces.db.transaction() as holder, faces.face(face) as made:
        assert holder.get(TABLE, 1, lock="exclusive")
        assert Calls(faces, made).get(TABLE, 1, **how) is None and Calls(faces, made).get(TABLE, 2, **how).id == 2
        assert sorted(plain("", Calls(faces, made.scan(TABLE, ["id"], **how)).to_arrow())) == [(2,), (3,)]
        if face != "awaited transaction":
            with pytest.raises(tm.SchemaInvalid, match="give lock="):
                made.scan(TABLE, skip_locked=True)


@pytest.mark.parametrize("face", WRITING)
@pytest.mark.parametrize("name", ["insert_many", "write_many", "upsert_many", "update_many"])
def test_progress_of_many_rows_is_reported_on_every_face(faces: Faces, face: str, name: str) -> None:
    seen: list[tuple[int, int, str]] = []
    data = {"id": [1, 2], "n": [1, 2]} if name == "update_many" else [INK, BOX]
    faces.call(face, name, (data,), {"progress": lambda *said: seen.append(said)})
    faces.restore()
    assert seen[-1] == (2, -1, "rows")


@pytest.mark.parametrize(
    "face", [face for face in READING if face.startswith("read-only") and face != "read-only typed snapshot table"]
)
def test_changes_of_a_store_opened_for_reading_are_refused(faces: Faces, face: str) -> None:
    for name, case in CHANGES.items():
        is_wrong_row = "typed" in face and (not case.is_typed or case.result is tm.TypeMismatch)
        if case.result is not TypeError and not is_wrong_row:
            assert outcome(faces, face, case) is tm.ReadOnly, name
    assert faces.rows() == ROWS


def test_every_call_of_rows_has_a_case() -> None:
    asked = {case.name for case in (*CHANGES.values(), *READS.values())} | {"explain", "indexes", "partitions"}
    kinds = (Kind.CHANGE, Kind.BULK, Kind.LOOKUP, Kind.SCAN, Kind.QUERY, Kind.PUSHED, Kind.PARTS)
    assert asked == {call.name for call, reason in calls_of("table", *kinds) if reason != READ_ONLY}
