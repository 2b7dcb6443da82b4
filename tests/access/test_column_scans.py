"""Rows copied into Arrow columns by kernels equal those decoded from entries: all types, conditions, own changes, texts
of any size, beside writers.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.access.test_filters import KINDS as FILTERED
from tests.access.test_filters import condition_of, recorded
from tests.interpreter.generate import value_of
from tests.shares import few
from tidemark import scans
from tidemark.engine.applied.noted_rows import tag
from tidemark.engine.base.errors import Rejected
from tidemark.engine.queries import column_scans, key_columns
from tidemark.engine.queries.conditions import Condition

KINDS: dict[str, Any] = {
    **FILTERED,
    "wide": tm.Decimal(38, 10),
    "ch": tm.Char(7),
    "raw": tm.Binary(13),
    "raw8": tm.Binary(8),
    "name": tm.VarChar(200),
    "octets": tm.VarBinary(20),
    "text": tm.Text,
    "blob": tm.Blob,
}
HIDDEN = [tm.ROWID, tm.EPOCH, tm.AUTHOR, tm.FRAGMENT]
COLUMNS = [
    *[tm.Column(name, kind) for name, kind in KINDS.items()],
    *[tm.Column(f"{name}_n", kind, nullable=True) for name, kind in KINDS.items()],
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The statuses of the kernel's calls."""
    return recorded(monkeypatch, column_scans, "scan_columns")


def same(monkeypatch: pytest.MonkeyPatch, ask: Any) -> pa.Table:
    """Return what a call returns, which is the same on the general path."""
    found = ask()
    found.validate(full=True)
    with monkeypatch.context() as patched:
        patched.setattr(scans, "scan_by_columns", lambda *_: None)
        other = ask()
    assert found.schema == other.schema
    assert repr(found.to_pylist()) == repr(other.to_pylist())
    return found


def row_of(r: random.Random, key: int, columns: list[tm.Column]) -> tuple[Any, ...]:
    values: list[Any] = [key]
    for column in columns:
        value = value_of(column.type, r)
        if column.name.startswith("text") and r.random() < 0.02:
            value = "ж" * r.choice([300, 5_000, 40_000])
        values.append(None if column.nullable and r.random() < 0.25 else value)
    return tuple(values)


@pytest.mark.parametrize("seed", range(few(4, 40)))
def test_columns_copied_by_kernels_are_those_of_the_entries(
    db: tm.Database, monkeypatch: pytest.MonkeyPatch, calls: list[int], seed: int
) -> None:
    print("seed", seed)
    r = random.Random(seed)
    monkeypatch.setattr(column_scans, "COLUMN_SLOTS", r.choice([1, 70, 8_192]))
    monkeypatch.setattr(column_scans, "SCAN_BATCH_ROWS", r.choice([40, 333, 65_536]))
    columns = r.sample(COLUMNS, r.randint(1, 14))
    named = [tm.Column("id", r.choice([tm.Int64, tm.Int16, tm.UInt32])), *columns]
    plain = [each for each in columns if not each.nullable and not each.type.is_var and each.name not in ("f32", "f64")]
    may_be_key = [each.name for each in plain if each.type.keyable]
    key_names = ["id", *may_be_key[: r.choice([0, 0, 2])]]
    table = db.create_table("test.t", named, key_names, partition=tm.HashPartition(r.choice([1, 3])))
    kept = {key: row_of(r, key, columns) for key in range(900)}
    table.insert_many(list(kept.values()))
    for key in r.sample(range(900), 250):
        table.delete_where(tm.col("id") == key)
        del kept[key]
    with db.transaction() as other_site:
        tag(other_site, 0, 65_000)  # past 15 bits
        other_site.write_many("test.t", [kept[key] for key in r.sample(sorted(kept), 30)])
    assert set(table.to_arrow([tm.AUTHOR])[tm.AUTHOR].to_pylist()) == {0, 65_000}
    rows = list(kept.values())
    assert sorted(same(monkeypatch, table.to_arrow)["id"].to_pylist()) == sorted(kept)
    txn = db.transaction()
    for key in r.sample(sorted(kept), 12):
        if r.random() < 0.3:
            txn.delete_where("test.t", tm.col("id") == key)
        else:
            txn.write("test.t", row_of(r, key, columns))
    for _ in range(25):
        wanted = r.sample([column.name for column in named], r.randint(0, len(named)))
        wanted += r.sample(HIDDEN, r.choice([0, 1, 3]) if wanted else 2)
        r.shuffle(wanted)
        where = None
        if r.random() < 0.7:
            fixed = [each for each in named if each.name == "id" or each.name.removesuffix("_n") in FILTERED]
            where = condition_of(r, rows, named, fixed)
            try:
                Condition(table.definition, where)
            except Rejected:
                continue
        for scan in (table.scan, partial(txn.scan, "test.t")):
            same(monkeypatch, scan(wanted, where=where).to_arrow)
    txn.rollback()
    assert len(calls) > 40


def test_tables_altered_with_rows_in_them_show_defaults_nulls_and_no_dropped_column(
    db: tm.Database, monkeypatch: pytest.MonkeyPatch, calls: list[int]
) -> None:
    table = db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32)], "id")
    table.insert_many([(key, key) for key in range(200)])
    db.add_column("test.t", tm.Column("name", tm.VarChar(9), nullable=True))
    db["test.t"].insert_many([(key, key, f"n{key}") for key in range(200, 300)])
    found = same(monkeypatch, db["test.t"].to_arrow)
    assert calls and found["name"].null_count == 200 and found.num_rows == 300
    db.add_column("test.t", tm.Column("more", tm.VarChar(9), default="?"))
    assert same(monkeypatch, partial(db["test.t"].to_arrow, ["more", "name"]))["more"].to_pylist() == ["?"] * 300
    db.add_column("test.t", tm.Column("count", tm.Int16, nullable=True))
    db["test.t"].update_where({"count": 7}, tm.col("id") < 3)
    assert same(monkeypatch, db["test.t"].to_arrow)["more"].to_pylist() == ["?"] * 300
    db.drop_column("test.t", "n")
    assert same(monkeypatch, partial(db["test.t"].to_arrow, ["name", "id"])).num_rows == 300
    calls.clear()
    assert db["test.t"].to_arrow(["count"]).num_rows == 300 and not calls, "the general path reads it"


@pytest.mark.parametrize("seed", range(few(4, 40)))
def test_rows_by_key_copied_by_kernels_are_those_of_the_entries(
    db: tm.Database, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print("seed", seed)
    r = random.Random(seed)
    statuses = recorded(monkeypatch, key_columns, "read_columns")
    monkeypatch.setattr(key_columns, "SLICE_KEYS", r.choice([50, 700, 2_000]))
    columns = r.sample(COLUMNS, r.randint(1, 14))
    kinds: list[Any] = r.choice([[tm.Int64], [tm.Int16], [tm.Int16, tm.Char(3)], [tm.VarChar(9)]])
    keys = [tm.Column(f"k{number}", kind) for number, kind in enumerate(kinds)]
    table = db.create_table("test.t", [*keys, *columns], [each.name for each in keys], partition=tm.HashPartition(3))

    def key_of(number: int) -> Any:
        if len(kinds) == 2:
            return number, f"a{number % 9}"
        return number if len(kinds) == 1 and kinds != [tm.VarChar(9)] else f"key{number}"

    def row(number: int) -> tuple[Any, ...]:
        key = key_of(number)
        return (*(key if isinstance(key, tuple) else (key,)), *row_of(r, number, columns)[1:])

    table.insert_many([row(number) for number in range(900)])
    for number in r.sample(range(900), 100):
        table.delete(key_of(number))
    txn = db.transaction()
    other = db.transaction()
    wanted = [column.name for column in columns] if kinds == [tm.VarChar(9)] else None
    for step in range(6):
        asked = [key_of(r.randint(0, 1_000)) for _ in range(r.choice([0, 1, 10, 63, 65, 200, 3_000]))]
        for get_many in (table.get_many, partial(txn.get_many, "test.t")):
            found = get_many(asked, wanted)
            found.validate(full=True)
            with monkeypatch.context() as patched:
                patched.setattr(key_columns, "read_columns_by_key", lambda *_: None)
                expected = get_many(asked, wanted)
            assert found.schema == expected.schema and repr(found.to_pylist()) == repr(expected.to_pylist())
        number = r.randint(0, 900)
        (txn if step % 2 else other).write("test.t", row(number + 1_000 * (1 + step % 2)))
    txn.rollback()
    other.rollback()
    assert statuses


def test_keys_in_a_list_are_refused_or_found_as_those_in_a_tuple(db: tm.Database) -> None:
    for name, kind in (("a", tm.Int64), ("b", tm.Int16), ("c", tm.UInt32), ("d", tm.UInt64), ("e", tm.Date)):
        table = db.create_table(f"test.{name}", [tm.Column("id", kind), tm.Column("s", tm.VarChar(300))], "id")
        if kind != tm.Date:
            table.insert_many([(key, "s" * 30 * key) for key in range(9)])
        for keys in (
            [],
            [3, 1, 3, 77],
            [8, -1],
            [1, 2**15],
            [1, 2**31],
            [1, 2**32],
            [2**63],
            [-(2**63)],
            [-(2**63) - 1],
            [1, True],
            [1, 2.0],
            [1, None],
            ["1"],
            [(1,), (2,)],
        ):
            outcomes = []
            for given in (keys, tuple(keys)):
                try:
                    outcomes.append(table.get_many(given).to_pylist())
                except tm.Error as error:
                    outcomes.append((type(error), str(error)))
            assert outcomes[0] == outcomes[1], (kind, keys)


def test_few_rows_of_many_keep_little_memory(db: tm.Database) -> None:
    table = db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("s", tm.VarChar(90))], "id")
    table.insert_many([(key, "x" * 80) for key in range(30_000)])
    found = table.scan(where=tm.col("id") < 10).to_arrow()
    assert found.num_rows == 10 and found.get_total_buffer_size() < 5_000
    held = sum(buffer.size for chunk in found["id"].chunks for buffer in chunk.buffers() if buffer)
    assert held < 1_000


def test_numpy_has_the_bytes_of_binary_columns(db: tm.Database) -> None:
    table = db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("b", tm.Binary(5))], "id")
    assert table.to_numpy().size == 0
    table.insert_many([(key, b"%05d" % key) for key in range(3_000)])
    found = table.to_numpy()
    assert sorted(bytes(each) for each in found["b"]) == [b"%05d" % key for key in range(3_000)]
