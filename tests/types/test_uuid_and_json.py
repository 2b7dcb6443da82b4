"""UUID and JSON by every door and through every place where rows are kept. The oracle is a dict of Python values."""

from __future__ import annotations

import copy
import json
import math
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tidemark as tm
from tests.store.support import client_of, open_memory
from tidemark.engine.types import json as documents

LOW, MIDDLE, HIGH = uuid.UUID(int=0), uuid.UUID(int=1 << 64), uuid.UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")
DOCUMENTS: list[Any] = [
    {"b": [1, 2.5, None, True, 10**40], "a": {"é": "\U0001f40b"}},
    [],
    "a text",
    0,
    -0.5,
    False,
    {"": {}},
    ["\0", '"', "\\", "\u2028"],
    {"x": [[[]]]},
]


def table_of(db: Any, name: str = "t", storage: str = "memory", **more: Any) -> Any:
    columns = [
        tm.Column("id", tm.UUID),
        tm.Column("n", tm.Int64),
        tm.Column("other", tm.UUID, nullable=True, storage=storage),
        tm.Column("doc", tm.JSON, nullable=True, storage=storage),
    ]
    return db.create_table(name, columns, "id", **more)


def rows(count: int, seed: int = 0) -> list[tuple[Any, ...]]:
    r = random.Random(seed)
    ids = [LOW, MIDDLE, HIGH, *(uuid.UUID(int=r.getrandbits(128)) for _ in range(count - 3))]
    return [
        (
            key,
            number,
            None if number % 4 == 3 else uuid.UUID(bytes=r.randbytes(number % 17).ljust(16, b"\0")),
            None if number % 5 == 4 else r.choice(DOCUMENTS),
        )
        for number, key in enumerate(ids)
    ]


def held(table: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in table.scan()), key=lambda row: row[1])


def opened(**options: Any) -> Any:
    return open_memory(data_memory="64 MiB", redo_log="64 MiB", transaction_memory="16 MiB", **options)


# --- doors ----------------------------------------------------------------------------------------
def columns_of(given: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return dict(zip(("id", "n", "other", "doc"), map(list, zip(*given, strict=True)), strict=True))


def as_text(given: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """UUIDs and documents as text, UUIDs in the forms that a UUID has."""
    forms: list[Callable[[uuid.UUID], str]] = [str, lambda each: each.hex, lambda each: str(each).upper()]
    found = columns_of(given)
    for name in ("id", "other"):
        found[name] = [each and forms[place % 3](each) for place, each in enumerate(found[name])]
    found["doc"] = [None if each is None else json.dumps(each, indent=1) for each in found["doc"]]
    return found


def as_bytes(given: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    found = as_text(given)
    return {**found, **{name: [each and each.bytes for each in columns_of(given)[name]] for name in ("id", "other")}}


def arrow(found: dict[str, list[Any]], kind: pa.DataType, doc: pa.DataType) -> pa.Table:
    types = {"id": kind, "n": pa.int64(), "other": kind, "doc": doc}
    return pa.table({name: pa.array(values, types[name]) for name, values in found.items()})


def as_extensions(given: list[tuple[Any, ...]]) -> pa.Table:
    plain = arrow(as_bytes(given), pa.binary(16), pa.string())
    made = {"id": pa.uuid(), "other": pa.uuid(), "doc": pa.json_(pa.string())}
    arrays = [
        made[name].wrap_array(column.combine_chunks()) if name in made else column
        for name, column in zip(plain.schema.names, plain.columns, strict=True)
    ]
    return pa.table(arrays, plain.schema.names)


def objects(values: list[Any]) -> Any:
    """An array of Python objects, whatever they are."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def in_dictionaries(table: pa.Table) -> pa.Table:
    names = table.schema.names
    return pa.table({name: table[name] if name == "n" else table[name].dictionary_encode() for name in names})


DOORS: dict[str, Callable[[list[tuple[Any, ...]]], Any]] = {
    "tuples": lambda given: given,
    "dicts": lambda given: [dict(zip(("id", "n", "other", "doc"), row, strict=True)) for row in given],
    "columns": columns_of,
    "object arrays": lambda given: {name: objects(values) for name, values in columns_of(given).items()},
    "arrow text": lambda given: arrow(as_text(given), pa.string(), pa.string()),
    "arrow views": lambda given: arrow(as_text(given), pa.string_view(), pa.string_view()),
    "arrow bytes": lambda given: arrow(as_bytes(given), pa.large_binary(), pa.large_string()),
    "arrow fixed bytes": lambda given: arrow(as_bytes(given), pa.binary(16), pa.string()),
    "arrow dictionaries": lambda given: in_dictionaries(arrow(as_text(given), pa.string(), pa.string())),
    "arrow extensions": as_extensions,
    "pandas objects": lambda given: pd.DataFrame({name: objects(each) for name, each in columns_of(given).items()}),
    "pandas strings": lambda given: pd.DataFrame(as_text(given)).astype(
        {"id": "string", "other": "string", "doc": "string"}
    ),
    "polars": lambda given: pl.DataFrame(as_text(given)),
    "polars bytes": lambda given: pl.DataFrame(as_bytes(given)),
}


@pytest.mark.parametrize("door", DOORS)
def test_rows_of_every_door_come_back_by_every_other(door: str, tmp_path: Path) -> None:
    given = rows(40)
    with opened() as db:
        table = table_of(db)
        assert table.insert_many(DOORS[door](copy.deepcopy(given))) == 40
        assert held(table) == given
        for key, number, other, doc in given:
            found = table.get(key)
            assert tuple(found) == (key, number, other, doc)
            assert type(found.id) is uuid.UUID
            assert table.get(str(key)) == table.get(key.bytes) == found
        with db.snapshot() as snapshot:
            assert held(snapshot["t"]) == given
        whole = table.to_arrow()
        assert [str(kind) for kind in whole.schema.types] == [
            *("fixed_size_binary[16]", "int64", "fixed_size_binary[16]", "large_string")
        ]
        # Story: a document came back from pandas 2 as a text in a column of objects, and went in again as that text.
        for made in (whole, table.to_polars(), table.to_pandas()):
            again = table_of(db, f"t{type(made).__module__[:5]}")
            again.insert_many(made)
            assert held(again) == given
        by_number = sorted(table.to_numpy().tolist(), key=lambda row: row[1])
        assert by_number == given
        with client_of(db) as remote:
            assert held(remote["t"]) == given
            assert remote["t"].to_pandas().sort_values("n").equals(table.to_pandas().sort_values("n"))
            assert [tuple(remote["t"].get(row[0])) for row in given[:5]] == given[:5]
            remote["t"].update(given[0][0], {"doc": {"by": [given[1][0].hex]}, "other": HIGH})
            assert tuple(table.get(given[0][0])) == (given[0][0], 0, HIGH, {"by": [given[1][0].hex]})


def test_text_files_bring_and_take_both(tmp_path: Path) -> None:
    from tidemark.cli.user_files import write_rows

    given = rows(30)
    with opened() as db:
        table = table_of(db)
        table.insert_many(given)
        for place, name in enumerate(("out.csv", "out.parquet", "out.arrow")):
            write_rows(tmp_path / name, table.definition, table.scan(), lambda count: None)
            again = table_of(db, f"again{place}")
            assert db.load(f"again{place}", tmp_path / name) == 30
            assert held(again) == given
        text = (tmp_path / "out.csv").read_text()
        assert str(HIGH) in text
        assert '"{""x"":[[[]]]}"' in text


# --- what is refused ------------------------------------------------------------------------------
class Odd:
    def __repr__(self) -> str:
        return "Odd()"


def nested(levels: int) -> Any:
    document: Any = 1
    for _ in range(levels):
        document = [document]
    return document


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
BAD_IDS: list[tuple[Any, type[tm.Error], str]] = [
    (b"x" * 17, tm.ValueOutOfRange, "holds 16 bytes, got 17: bytes b'xxxxxxxxxxxxxxxxx'"),
    (b"", tm.ValueOutOfRange, "holds 16 bytes, got 0: bytes b''"),
    ("6f9619ff", tm.ValueOutOfRange, "32 hexadecimal digits with or without hyphens, got str '6f9619ff'"),
    ("g" * 32, tm.ValueOutOfRange, "got str 'ggggg"),
    ("6f9619ff8b-86-d011-b42d-00c04fc964ff", tm.ValueOutOfRange, "got str '6f9619ff8b-86"),
    ("6f9619ff-8b86-d011-b42d-00c04fc964ff\n", tm.ValueOutOfRange, "32 hexadecimal digits"),
    ("٦" * 32, tm.ValueOutOfRange, "32 hexadecimal digits"),
    (7, tm.TypeMismatch, "needs a UUID, got int 7"),
]
BAD_DOCUMENTS: list[tuple[Any, type[tm.Error], str]] = [
    ({"a": math.nan}, tm.ValueOutOfRange, "holds finite numbers, got float nan in dict {'a': nan}"),
    ([math.inf], tm.ValueOutOfRange, "holds finite numbers, got float inf"),
    ({"a": (1, 2)}, tm.TypeMismatch, "needs a dict, list, str, int, float, bool or None, got tuple (1, 2)"),
    ({1: 2}, tm.TypeMismatch, "needs names that are str in a dict, got int 1 in dict {1: 2}"),
    ({None: 2, "None": 3}, tm.TypeMismatch, "needs names that are str"),
    ([Odd()], tm.TypeMismatch, "got Odd()"),
    (b"x", tm.TypeMismatch, "got bytes b'x'"),
    (["\ud800"], tm.ValueOutOfRange, "holds valid Unicode, got a lone surrogate in str '\\ud800'"),
    ({"\udfff": 1}, tm.ValueOutOfRange, "lone surrogate"),
    (nested(101), tm.ValueOutOfRange, "holds JSON of at most 100 levels, got list [[["),
    (nested(100_000), tm.ValueOutOfRange, "holds JSON of at most 100 levels"),
    (CIRCLE, tm.ValueOutOfRange, "holds JSON of at most 100 levels, got list [[...]]"),
    (10**5_000, tm.ValueOutOfRange, "got int of 16610 bits"),
]
BAD_TEXTS: list[tuple[str, str]] = [
    ('{"a":1,"b":2,"a":3}', 'holds JSON text, got str \'{"a":1,"b":2,"a":3}\': the name str \'a\' stands twice'),
    ("[NaN]", "NaN is no number of JSON"),
    ("-Infinity", "-Infinity is no number of JSON"),
    ("[1,]", "holds JSON text, got str '[1,]'"),
    ("", "holds JSON text, got str ''"),
    ("{'a': 1}", "Expecting property name"),
    ("1 2", "Extra data"),
    ('"\\ud800"', "holds valid Unicode, got a lone surrogate"),
    ("[" * 101 + "]" * 101, "holds JSON of at most 100 levels"),
    ("[" * 1_000_000, "holds JSON of at most 100 levels"),
    ("[1e400]", "holds numbers that are doubles, got str '1e400'"),
    ("[1e-400]", "holds numbers that are doubles, got str '1e-400'"),
    ("3.14159265358979323846", "holds numbers that are doubles, got str '3.14159265358979323846'"),
    ("[1" + "0" * 5_000 + "]", "holds JSON text"),
]


def refused(error: type[tm.Error], text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error) as found:
        call()
    assert type(found.value) is error
    assert text in found.value.message


@pytest.mark.parametrize(("bad", "error", "text"), BAD_IDS, ids=range(len(BAD_IDS)))
def test_a_wrong_uuid_is_refused_by_its_value(bad: Any, error: type[tm.Error], text: str) -> None:
    with opened() as db:
        table = table_of(db)
        table.insert((HIGH, 1, None, None))
        refused(error, text, lambda: table.insert((bad, 2, None, None)))
        refused(error, text, lambda: table.insert((LOW, 2, bad, None)))
        refused(error, text, lambda: table.insert_many([(LOW, 2, None, None), (MIDDLE, 2, bad, None)]))
        refused(error, text, lambda: table.get(bad))
        refused(error, text, lambda: table.update(HIGH, {"other": bad}))
        refused(error, text, lambda: table.scan(where=tm.col("other") == bad).count())
        if not isinstance(bad, int):
            column = pa.array([None, bad], pa.string() if isinstance(bad, str) else pa.binary())
            data = {"id": [LOW, MIDDLE], "n": [1, 2], "other": column}
            refused(error, f"main.t.other in row 1 {text}" if text[0] == "h" else text, lambda: table.insert_many(data))
        assert held(table) == [(HIGH, 1, None, None)]


@pytest.mark.parametrize(("bad", "error", "text"), BAD_DOCUMENTS, ids=range(len(BAD_DOCUMENTS)))
def test_a_wrong_document_is_refused_by_its_value(bad: Any, error: type[tm.Error], text: str) -> None:
    with opened() as db:
        table = table_of(db)
        table.insert((HIGH, 1, None, {"a": 1}))
        refused(error, text, lambda: table.insert((LOW, 2, None, bad)))
        refused(error, text, lambda: table.insert_many([(LOW, 2, None, None), (MIDDLE, 2, None, bad)]))
        refused(error, text, lambda: table.insert_many({"id": [LOW], "n": [1], "doc": objects([bad])}))
        refused(error, text, lambda: table.write((HIGH, 1, None, bad)))
        refused(error, text, lambda: table.update(HIGH, {"doc": bad}))
        refused(error, text, lambda: table.update_where({"doc": bad}))
        refused(error, text, lambda: table.scan(where=tm.col("doc") == bad).count())
        assert held(table) == [(HIGH, 1, None, {"a": 1})]


@pytest.mark.parametrize(("bad", "text"), BAD_TEXTS, ids=range(len(BAD_TEXTS)))
def test_a_wrong_text_is_refused_by_its_row(bad: str, text: str, tmp_path: Path) -> None:
    with opened() as db:
        table = table_of(db)
        data = {"id": [LOW, MIDDLE, HIGH], "n": [1, 2, 3], "doc": pa.array(["{}", None, bad])}
        refused(tm.ValueOutOfRange, text, lambda: table.insert_many(data))
        with pytest.raises(tm.ValueOutOfRange, match=r"main\.t\.doc in row 2 "):
            table.insert_many(data)
        assert len(table) == 0


def test_documents_at_the_limits_are_kept() -> None:
    with opened() as db:
        table = table_of(db)
        kept = [
            *(nested(100), {"a": nested(99)}, "[" * 500, 2**64, -(2**63) - 1, 10**4_000, -0.0, 5e-324),
            *(1.7976931348623157e308, {"z": 1, "a": 2}, [None], "", {"": ""}, "\U0010ffff", 1.0, 1),
        ]
        for number, document in enumerate(kept):
            table.insert((uuid.UUID(int=number), number, None, document))
        found = [row[3] for row in held(table)]
        assert found == kept
        assert [type(each) for each in found] == [type(each) for each in kept]
        # The exact digits of a double, more than 17, are that double.
        table.insert_many(
            {"id": [HIGH], "n": [99], "doc": pa.array(["0.1000000000000000055511151231257827021181583404541015625"])}
        )
        assert table.get(HIGH).doc == 0.1
        # The document null is a document.
        table.insert_many({"id": [MIDDLE], "n": [100], "doc": pa.array(["null"])})
        assert table.get(MIDDLE).doc is None
        assert table.scan(where=tm.col("doc").is_null()).count() == 0


def test_names_have_an_order_and_equal_documents_equal_bytes() -> None:
    with opened() as db:
        table = table_of(db)
        table.insert((LOW, 0, None, {"b": 1, "a": [1.0, {"d": None, "c": "é"}]}))
        table.insert_many(
            {"id": [HIGH], "n": [1], "doc": pa.array([' {"a": [1.0, {"c": "\\u00e9", "d": null}], "b": 1}'])}
        )
        assert set(table.to_arrow()["doc"].to_pylist()) == {'{"a":[1.0,{"c":"é","d":null}],"b":1}'}
        same = tm.col("doc") == {"a": [1.0, {"c": "é", "d": None}], "b": 1}
        assert table.scan(where=same).count() == 2
        assert table.scan(where=tm.col("doc") == {"a": [1, {"c": "é", "d": None}], "b": 1}).count() == 0
        assert table.scan(where=~same).count() == 0


def test_a_document_of_the_caller_may_change_later() -> None:
    document = {"a": [1]}
    with opened() as db:
        columns = [tm.Column("id", tm.Int64), tm.Column("doc", tm.JSON, default=document)]
        table = db.create_table("t", columns, "id")
        with db.transaction() as txn:
            txn.insert("t", {"id": 1, "doc": document})
            document["a"].append(2)
            assert txn.get("t", 1).doc == {"a": [1]}
        table.insert({"id": 2})
        table.get(2).doc["a"].append(3)
        assert [row.doc for row in table.scan()] == [{"a": [1]}, {"a": [1]}]


def test_rows_from_before_a_column_have_documents_of_their_own() -> None:
    """Story: each `get` of a row from before the column was added gave one dict, the default in the plan. A program
    that changed it saw its change in every other such row.
    """
    with opened() as db:
        table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
        table.insert_many([(number, number) for number in range(9)])
        for name, document in (("doc", {"a": [1]}), ("text", "a text"), ("none", None)):
            db.add_column("t", tm.Column(name, tm.JSON, nullable=document is None, default=document))
        db.create_index("t", "by_n", ["n"])
        right = ({"a": [1]}, "a text", None)
        with db.transaction() as txn, db.snapshot() as snapshot:
            ways: list[Callable[[], Any]] = [
                *(lambda: table.get(3), lambda: txn.get("t", 3), lambda: txn.get("t", 4, "exclusive")),
                *(lambda: next(iter(table.scan())), lambda: next(iter(table.scan(where=tm.col("n") == 5)))),
                *(lambda: next(iter(table.scan(index="by_n", limit=1))), lambda: snapshot["t"].get(3)),
                lambda: table.to_numpy()[0].item(),
            ]
            for _ in range(2):
                for way in ways:
                    found = tuple(way())
                    assert found[2:] == right
                    found[2]["a"].append(7)


# --- conditions, indexes, groups ------------------------------------------------------------------
@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_conditions_are_those_of_python(storage: str) -> None:
    given = rows(300, 5)
    with opened() as db:
        db.create_tablespace("main", size="4 MiB")
        table = table_of(db, storage=storage)
        table.insert_many(given)
        if storage == "memory":
            db.create_index("t", "by_other", ["other", "n"])
        others = [row for row in given if row[2] is not None]
        for _, _, bound, _ in others[::7]:
            for where, right in (
                (tm.col("other") == bound, [row for row in others if row[2] == bound]),
                (tm.col("other") == str(bound), [row for row in others if row[2] == bound]),
                (tm.col("other") < bound, [row for row in others if row[2] < bound]),
                (tm.col("other") >= bound.bytes, [row for row in others if row[2] >= bound]),
                (tm.col("other").isin([bound, LOW]), [row for row in others if row[2] in (bound, LOW)]),
                (tm.col("other") == tm.col("id"), [row for row in others if row[2] == row[0]]),
            ):
                assert held_of(table, where) == right
        for document in DOCUMENTS:
            texts = [row for row in given if row[3] is not None]
            right = [row for row in texts if json.dumps(row[3]) == json.dumps(document)]
            assert held_of(table, tm.col("doc") == document) == right
            assert held_of(table, tm.col("doc") != document) == [row for row in texts if row not in right]
            assert held_of(table, tm.col("doc").isin([document])) == right
        assert held_of(table, tm.col("doc").is_null()) == [row for row in given if row[3] is None]
        known = [row[2] for row in others]
        assert (table.min("other"), table.max("other")) == (min(known), max(known))
        groups = table.aggregate(by="other", n=("count",))
        assert {row.other: row.n for row in groups if row.other} == {each: known.count(each) for each in known}
        by_document = table.aggregate(by="doc", n=("count",))
        assert sum(row.n for row in by_document) == 300
        assert len(by_document) == len(DOCUMENTS) + 1


def held_of(table: Any, where: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in table.scan(where=where)), key=lambda row: row[1])


def test_indexes_and_keys_of_uuids_are_in_their_order() -> None:
    given = rows(200, 6)
    with opened() as db:
        table = table_of(db)
        table.insert_many(given)
        db.create_index("t", "in_order", ["id"])
        db.create_index("t", "one", ["n", "id"], unique=True)
        ids = sorted(row[0] for row in given)
        assert [row.id for row in table.scan(index="in_order")] == ids
        assert [row.id for row in table.scan(index="in_order", lower=ids[50], upper=ids[60])] == ids[50:60]
        assert [row.id for row in table.scan(index="in_order", lower=str(ids[50]), reverse=True)] == ids[:49:-1]
        assert table.get((7, given[7][0]), index="one").n == 7
        with pytest.raises(tm.DuplicateKey):
            table.insert((given[3][0], 500, None, None))
        assert table.delete(given[3][0]) is not False
        assert table.get(given[3][0]) is None


def test_json_is_in_no_key_and_has_no_order() -> None:
    with opened() as db:
        table = table_of(db)
        with pytest.raises(tm.SchemaInvalid, match="JSON"):
            db.create_table("u", [tm.Column("doc", tm.JSON)], "doc")
        for unique in (False, True):
            with pytest.raises(tm.SchemaInvalid, match="JSON"):
                db.create_index("t", "by_doc", ["doc"], unique=unique)
        with pytest.raises(tm.ProgramInvalid, match="order"):
            table.scan(where=tm.col("doc") < {"a": 1}).count()
        with pytest.raises(tm.Rejected):
            table.max("doc")
        with pytest.raises(tm.ProgramInvalid, match=r"a column of its own"):
            tm.col("doc")["a"]["b"] == 3  # noqa: B015
        with pytest.raises(tm.Rejected):
            table.scan(where=tm.col("doc").like("%a%")).count()


# --- where rows are kept --------------------------------------------------------------------------
@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_both_survive_whatever_keeps_rows(storage: str, tmp_path: Path) -> None:
    given = rows(120, 7)
    options = {"data_memory": "64 MiB", "redo_log": "64 MiB", "log_bin": "binlog", "server_id": 1}
    with tm.open(tmp_path / "store", **options) as db:
        db.create_tablespace("main", size="4 MiB")
        table = table_of(db, storage=storage, partition=tm.HashPartition(3))
        table.insert_many(given[:60])
        db.checkpoint()
        for row in given[60:]:
            table.insert(row)
        db.add_column("t", tm.Column("more", tm.JSON, default={"since": [1, None]}))
        db.add_column("t", tm.Column("whose", tm.UUID, default=MIDDLE))
        right = [(*row, {"since": [1, None]}, MIDDLE) for row in given]
        assert held(table) == right
        changed = [each for epoch in db.changes(since=0, follow=False) for each in epoch if each.table == "main.t"]
        assert sorted((tuple(each.after) for each in changed), key=lambda row: row[1]) == given
        db.sync()
        db.backup(tmp_path / "place")
    with tm.open(tmp_path / "store", **options) as db:
        assert held(db["t"]) == right
        assert db.check()["problems"] == []
    tm.restore(tmp_path / "place", tmp_path / "again")
    with tm.open(tmp_path / "again", data_memory="64 MiB", redo_log="64 MiB") as db:
        assert held(db["t"]) == right


def test_both_are_what_other_engines_see(tmp_path: Path) -> None:
    given = rows(50, 8)
    with opened() as db:
        table = table_of(db)
        table.insert_many(given)
        item = table.dataset()
        duckdb.register("item", item)
        found = duckdb.sql("select id, n, doc from item where n < 10 order by n").fetchall()
        assert found == [(row[0].bytes, row[1], text_of(row[3])) for row in given[:10]]
        found = duckdb.sql(f"select n from item where doc = '{text_of({'': {}})}' order by n").fetchall()
        assert found == [(row[1],) for row in given if row[3] == {"": {}}]
        parts = duckdb.sql("select json_extract(doc, '$.b[0]') from item where doc like '{%b%' order by n").fetchall()
        assert {part for (part,) in parts} <= {"1", None}
        frame = table.to_polars()
        assert frame["doc"].dtype == pl.String
        assert frame["id"].dtype == pl.Binary


def text_of(document: Any) -> Any:
    if document is None:
        return None
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


@dataclass
class Meeting:
    id: uuid.UUID
    about: dict[str, Any]
    people: list[str]
    other: uuid.UUID | None


def test_rows_are_objects_of_a_class() -> None:
    with opened() as db:
        db.create_table("meeting", Meeting, primary_key="id")
        assert [repr(column.type) for column in db["meeting"].definition.columns] == ["UUID", "JSON", "JSON", "UUID"]
        typed = db.table("meeting", Meeting)
        for made in (Meeting(HIGH, {"a": [1]}, ["ann"], None), Meeting(LOW, {}, [], MIDDLE)):
            typed.insert(made)
            assert typed[made.id] == made
            assert typed.get_many([made.id]) == [made]


def test_the_reader_of_documents_has_its_limits_as_they_are_said() -> None:
    assert documents.LEVELS_MAX == 100
    assert all(float(f"{value:.17g}") == value for value in (0.1, 5e-324, 1.7976931348623157e308))
