"""Defaults that are computed for each row: `tm.now` and `tm.uuid7`."""

from __future__ import annotations

import dataclasses
import pickle
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import tidemark as tm
from tests.store.support import client_of, open_memory
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.schema.column import column_from_json
from tidemark.engine.schema.computed import KINDS
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

START = datetime(2026, 3, 4, 23, 59, 58, 123_456, tzinfo=UTC)
START_US = (START - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("at", tm.Timestamp, default=tm.now),
    tm.Column("token", tm.UUID, default=tm.uuid7),
    tm.Column("note", tm.VarChar(20), nullable=True),
]


def opened(files: MemoryFiles | None = None, **options: Any) -> tuple[tm.Database, ManualClock]:
    clock = ManualClock(start_us=START_US)
    return open_memory(files, clock=clock, **options), clock


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (tm.Timestamp, START),
        (tm.DateTime, START.replace(tzinfo=None)),
        (tm.Date, START.date()),
        (tm.Time, START.time()),
    ],
)
def test_now_is_the_moment_in_utc(kind: Any, value: Any) -> None:
    db, _ = opened()
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("at", kind, default=tm.now)], "id")
    table.insert({"id": 1})
    table.insert_many({"id": [2, 3]})
    assert [row.at for row in table] == [value] * 3


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_a_missing_field_takes_the_value_and_a_given_one_stays(storage: str) -> None:
    db, clock = opened()
    columns = [COLUMNS[0], *(dataclasses.replace(each, storage=storage) for each in COLUMNS[1:])]
    table = db.create_table("t", columns, "id")
    own = uuid.UUID(int=5)
    table.insert({"id": 1})
    clock.advance(1)
    table.insert({"id": 2, "token": own})
    table.insert((3, START, own, "x"))
    table.write({"id": 4, "note": "w"})
    later = START + timedelta(seconds=1)
    assert [row.at for row in sorted(table)] == [START, later, START, later]
    assert [row.token == own for row in sorted(table)] == [False, True, True, False]
    with pytest.raises(tm.NotNullViolation):
        table.insert({"id": 5, "at": None})
    with pytest.raises(tm.NotNullViolation):
        table.insert_many([{"id": 5, "at": None}])


def test_nullable_columns_take_none_as_null() -> None:
    db, _ = opened()
    table = db.create_table("t", [COLUMNS[0], tm.Column("at", tm.Timestamp, True, default=tm.now)], "id")
    table.insert({"id": 1})
    table.insert({"id": 2, "at": None})
    table.insert_many([{"id": 3}, {"id": 4, "at": None}, {"id": 5}])
    assert [row.at is None for row in sorted(table)] == [False, True, False, True, False]


@pytest.mark.parametrize("call", ["insert_many", "write_many", "load"])
@pytest.mark.parametrize("form", ["rows", "columns", "arrow", "polars", "numpy"])
def test_batches_of_every_form_may_lack_the_columns(call: str, form: str) -> None:
    db, _ = opened()
    table = db.create_table("t", COLUMNS, "id")
    columns: dict[str, Any] = {"id": [1, 2, 3], "note": ["a", "b", "c"]}
    given = {
        "rows": [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}, {"id": 3, "note": "c"}],
        "columns": columns,
        "arrow": pa.table(columns),
        "polars": pl.DataFrame(columns),
        "numpy": np.array([(1, "a"), (2, "b"), (3, "c")], dtype=[("id", "i8"), ("note", "U1")]),
    }[form]
    assert (db.load("t", given) if call == "load" else getattr(table, call)(given)) == 3
    rows = sorted(table)
    assert [row.at for row in rows] == [START] * 3
    assert [row.token for row in rows] == sorted({row.token for row in rows})


def test_rows_of_a_batch_may_lack_different_columns() -> None:
    db, _ = opened()
    table = db.create_table("t", COLUMNS, "id")
    own = uuid.UUID(int=5)
    rows = [
        {"id": 1},
        {"id": 2, "token": own},
        {"id": 3, "token": own, "at": START},
        {"id": 4, "token": own},
        (5, START, own, None),
        {"id": 6},
    ]
    assert table.insert_many(iter(rows)) == 6
    assert [row.token == own for row in sorted(table)] == [False, True, True, True, True, False]
    with pytest.raises(tm.DuplicateKey) as caught:
        table.insert_many([{"id": 7}, {"id": 8, "token": own}, {"id": 6}])
    assert caught.value.row == 2 and len(table) == 6


def test_an_upsert_leaves_what_it_does_not_give() -> None:
    db, clock = opened()
    table = db.create_table("t", COLUMNS, "id")
    assert table.upsert({"id": 1, "note": "a"}) is True
    token = table[1].token
    clock.advance(5)
    assert table.upsert({"id": 1, "note": "b"}) is False
    assert table.upsert_many([{"id": 1, "note": "c"}, {"id": 2, "note": "d"}]) == 1
    assert (table[1].at, table[1].token, table[1].note) == (START, token, "c")
    assert table[2].at == START + timedelta(seconds=5)


@pytest.mark.parametrize("key", [tm.uuid7, tm.autoincrement])
def test_rows_may_leave_out_everything(key: Any) -> None:
    db, _ = opened(lock_timeout_ms=60_000)
    table = db.create_table("t", [tm.Column("id", key.types[-1], default=key), COLUMNS[1]], "id")
    table.insert({})
    assert table.insert_many([{}, {}]) == 2 and table.write_many(iter([{}] * 9_000)) == 9_000
    assert table.upsert_many([{}, {}]) == 2 and db.load("t", [{}]) == 1
    with client_of(db) as remote:
        assert remote["t"].insert_many([{}, {}]) == 2
    assert len(table) == 9_008 and {row.at for row in table} == {START}


def test_uuids_are_of_version_7_and_ascend() -> None:
    db, clock = opened()
    table = db.create_table("t", [tm.Column("id", tm.UUID, default=tm.uuid7), COLUMNS[3]], "id")
    for _ in range(3):
        table.insert_many({"note": ["x"] * 100})
        table.insert({})
        clock.advance(0.001)
    found = [row.id for row in table]
    assert len({*found}) == 303 and {each.version for each in found} == {7}
    assert {each.variant for each in found} == {uuid.RFC_4122}
    assert {each.int >> 80 for each in found} == {START_US // 1_000 + step for step in range(3)}


def test_a_value_is_decided_once() -> None:
    files = MemoryFiles()
    db, clock = opened(files)
    db.create_table("t", COLUMNS, "id").insert({"id": 1})
    before = db["t"][1]
    clock.advance(100)
    db = open_memory(files.kill())
    assert db["t"][1] == before
    db.checkpoint()
    assert open_memory(files.kill())["t"][1] == before


def test_defaults_can_be_set_and_columns_cannot_be_added_with_them() -> None:
    db, _ = opened()
    table = db.create_table("t", [COLUMNS[0]], "id")
    table.insert((1,))
    with pytest.raises(tm.Unsupported, match=r"main\.t\.at: the rows that are there have no values of tm\.now; add"):
        db.add_column("t", COLUMNS[1])
    db.add_column("t", tm.Column("at", tm.Timestamp, nullable=True))
    db.set_default("t", "at", tm.now)
    table.insert({"id": 2})
    table.insert_many({"id": [3]})
    assert [row.at for row in sorted(table)] == [None, START, START]
    db.set_default("t", "at")
    table.insert({"id": 4})
    assert table[4].at is None


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_kind_is_itself_after_every_way(name: str) -> None:
    default = KINDS[name]
    column = tm.Column("c", default.types[0], default=default)
    assert getattr(tm, name) is default and (repr(default), str(default)) == (name, f"tm.{name}")
    assert pickle.loads(pickle.dumps(default)) is default
    assert column_from_json(column.to_json()) == column != tm.Column("c", default.types[0])
    definition = TableDefinition(0, 1, "t", (column,), ("c",))
    assert TableDefinition.from_json(definition.to_json()) == definition
    assert b'"format":4' in definition.to_json()
    with pytest.raises(tm.SchemaInvalid, match=f"is Bool; tm.{name} fills"):
        tm.Column("c", tm.Bool, default=default)


def test_clients_and_typed_rows_may_lack_the_columns() -> None:
    @dataclasses.dataclass
    class Visit:
        id: int
        at: datetime = tm.now
        token: uuid.UUID = tm.uuid7

    db, _ = opened(lock_timeout_ms=60_000)
    table = db.create_table("t", Visit, "id")
    table.insert(Visit(1))
    table.insert_many([Visit(2), Visit(3, START.replace(tzinfo=None))])
    with client_of(db) as remote:
        remote["t"].insert({"id": 4})
        assert remote["t"].insert_many([{"id": 5}, {"id": 6, "token": uuid.UUID(int=5)}]) == 2
        remote.set_default("t", "at", tm.now)
    assert [row.at for row in sorted(db["t"])] == [START.replace(tzinfo=None)] * 6
