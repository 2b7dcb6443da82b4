"""A unique index that is ordered is one index: its two parts are made, kept, found, checked and dropped together."""

from __future__ import annotations

import inspect
import random
import sys
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import tidemark as tm
from tests.backup.support import archived, restored, take
from tests.engine.arena_check import check_arena
from tests.store.interrupts import interrupt_at
from tests.store.support import open_memory
from tidemark.engine.base import limits
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.index_definition import IndexDefinition, index_from_json
from tidemark.engine.table.table import Table
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.o"
OPTIONS: dict[str, Any] = {"data_memory": "32 MiB", "redo_log": "8 MiB"}
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("name", tm.VarChar(30), nullable=True),
    tm.Column("n", tm.Int32),
]
ROWS = [(1, "delta", 1), (2, "alpha", 2), (3, None, 3), (4, "beta", 4), (5, "alps", 5), (6, None, 6)]
IN_ORDER = [3, 6, 2, 5, 4, 1]  # rows with NULL first, in any order


def made(files: MemoryFiles | None = None, partition: Any = None, **options: Any) -> Any:
    db: Any = open_memory(files, **{**OPTIONS, **options})
    db.create_table(NAME, COLUMNS, "id", partition or tm.HashPartition(2))
    return db


def indexed(rows: Any = (), **options: Any) -> Any:
    db = made(**options)
    db[NAME].insert_many([*rows])
    db.create_index(NAME, "by", "name", unique=True, ordered=True)
    return db


def listed(entries: int) -> list[dict[str, Any]]:
    return [{"name": "by", "columns": ["name"], "unique": True, "ordered": True, "entries": entries}]


def verify(db: Any, name: str = NAME) -> None:
    """Both parts lead to the rows of a full scan, and to no others."""
    table = db[name]
    rows = sorted(map(tuple, table.scan()))
    place = table.definition.position("name")
    found = [tuple(row) for row in table.scan(index="by")]
    assert sorted(found) == sorted(map(tuple, table.scan(index="by", reverse=True))) == rows
    keys = [(row[place] is not None, (row[place] or "").encode()) for row in found]
    assert keys == sorted(keys)
    for row in rows:
        if row[place] is not None:
            assert tuple(table.get(row[place], index="by")) == row
            assert [tuple(each) for each in table.scan(index="by", prefix=(row[place],))] == [row]
    assert table.get("no such", index="by") is None
    assert table.indexes() == [*listed(len(rows)), *table.indexes()[1:]]
    assert db.check()["problems"] == []


# --- making it ------------------------------------------------------------------------------------
def test_rows_that_are_there_are_found_by_their_keys_and_in_order() -> None:
    seen: list[tuple[int, int]] = []
    db = made()
    table = db[NAME]
    table.insert_many(ROWS)
    db.create_index(NAME, "by", "name", True, lambda done, total, unit: seen.append((done, total)), ordered=True)
    assert db.indexes(NAME) == table.indexes() == listed(6)
    assert seen[-1] == (12, 12) and seen == sorted(seen), "each part takes each row"
    ids = [row.id for row in table.scan(index="by")]
    assert sorted(ids[:2]) == [3, 6] and ids[2:] == IN_ORDER[2:]
    assert [row.id for row in table.scan(index="by", reverse=True)][:4] == IN_ORDER[:1:-1]
    assert [row.id for row in table.scan(index="by", prefix="al")] == [2, 5]
    assert [row.id for row in table.scan(index="by", lower="alps", upper="d", limit=9)] == [5, 4]
    assert [row.id for row in table.scan(index="by", lower="alps", reverse=True, limit=2)] == [1, 4]
    assert table.get("beta", index="by").id == 4
    assert table.get_many(["beta", "alpha"], ["id"], index="by").column("id").to_pylist() == [4, 2]
    with pytest.raises(tm.DuplicateKey) as caught:
        table.insert((7, "beta", 0))
    assert (caught.value.index, caught.value.key) == ("by", "beta")
    table.insert((7, None, 0))
    verify(db)
    check_arena(db)


def test_rows_with_one_key_refuse_the_index_and_leave_nothing() -> None:
    db = made()
    db[NAME].insert_many([*ROWS, (9, "beta", 9)])
    for _ in range(3):
        with pytest.raises(tm.DuplicateKey, match="two rows have key 'beta', unique index by cannot be built"):
            db.create_index(NAME, "by", "name", unique=True, ordered=True)
        table = db.parts.store.tables.named(NAME)
        assert db.indexes(NAME) == [] and not table.building and not table.unique_columns
        check_arena(db)
    db[NAME].insert((10, "beta", 10))  # nothing refuses it
    db[NAME].delete_many([9, 10])
    db.create_index(NAME, "by", "name", unique=True, ordered=True)
    verify(db)


def test_mistakes_are_refused_with_the_way_out() -> None:
    db = indexed(ROWS)
    with pytest.raises(tm.SchemaInvalid, match="index 'x': ordered must be True or False, got int 1"):
        db.create_index(NAME, "x", "n", unique=True, ordered=1)
    for unique, ordered in ((False, False), (True, False), (True, True)):
        with pytest.raises(tm.IndexExists):
            db.create_index(NAME, "by", "n", unique=unique, ordered=ordered)
    db.create_index(NAME, "hash", "n", unique=True)
    with pytest.raises(tm.Unsupported, match="finds whole keys only; use get.* or make the index with ordered=True"):
        list(db[NAME].scan(index="hash"))
    db.create_index(NAME, "plain", "n", ordered=True)  # is ordered in any case
    with pytest.raises(tm.Unsupported, match="index plain of test.o is not unique"):
        db[NAME].get(1, index="plain")
    kinds = [(each["name"], each["unique"], each["ordered"]) for each in db.indexes(NAME)]
    assert kinds == [("by", True, True), ("hash", True, False), ("plain", False, True)]


def test_definition_has_the_same_bytes_as_before_unless_it_is_both() -> None:
    columns = tm.Column("a", tm.Int64), tm.Column("n", tm.Int32)
    assert b"indexes" not in TableDefinition(1, 1, "test.t", columns, ("a",)).to_json()
    definition = TableDefinition(1, 2, "test.t", columns, ("a",), indexes=(IndexDefinition("by_n", ("n", "a")),))
    assert TableDefinition.from_json(definition.to_json()) == definition
    old = {"columns": ["a"], "name": "i", "unique": True}
    assert IndexDefinition("i", ("a",), True).to_json() == old
    assert IndexDefinition("i", ("a",), False, True).to_json() == {**old, "unique": False}
    assert IndexDefinition("i", ("a",)) == IndexDefinition("i", ("a",), False, True)
    assert index_from_json(old) == IndexDefinition("i", ("a",), True) != IndexDefinition("i", ("a",), True, True)
    both = IndexDefinition("i", ("a",), True, True)
    assert index_from_json(both.to_json()) == both and both.to_json() == {**old, "ordered": True}
    with pytest.raises(tm.SchemaInvalid):
        index_from_json({**old, "ordered": "yes"})


def test_a_table_takes_as_many_of_them_as_of_other_indexes() -> None:
    db = open_memory(**OPTIONS)
    columns = [tm.Column(f"c{number}", tm.Int32) for number in range(limits.INDEXES_MAX + 1)]
    db.create_table("t", [tm.Column("id", tm.Int64), *columns], "id")
    for number in range(limits.INDEXES_MAX):
        db.create_index("t", f"i{number}", f"c{number}", unique=True, ordered=True)
    with pytest.raises(tm.SchemaInvalid, match="at most 32 indexes"):
        db.create_index("t", "more", f"c{limits.INDEXES_MAX}", unique=True, ordered=True)
    for number in range(5):
        db["t"].insert((number, *[number * 7] * (limits.INDEXES_MAX + 1)))
    with pytest.raises(tm.DuplicateKey):
        db["t"].insert((9, *range(1_000, 1_000 + limits.INDEXES_MAX - 1), 7, 7))
    db["t"].update(2, {"c31": 5})
    assert [row.id for row in db["t"].scan(index="i31")] == [0, 2, 1, 3, 4]
    assert db["t"].get(5, index="i31").id == 2
    assert db.check()["problems"] == []
    check_arena(db)


def test_rows_and_partitions_that_come_and_go_while_it_is_built_are_in_both_parts() -> None:
    rng = random.Random(46)
    db = made(partition=tm.RangePartition("id", [("low", 1_000), ("high", 2_000)]))
    table = db[NAME]
    table.insert_many([(number, f"name {number}", 0) for number in range(0, 2_000, 2)])
    calls = 0

    def beside(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            db.add_partition(NAME, "top", 9_000)
            table.insert_many([(number, f"name {number}", 1) for number in range(2_000, 2_100)])
        if calls == 9:
            db.drop_partition(NAME, "low")
        for _ in range(4):
            key = rng.randrange(1_000, 2_100 if calls > 2 else 2_000)
            row = table.get(key)
            if row is None:
                table.write((key, f"name {rng.choice([key, 9_999 - key])}", calls))
            elif rng.random() < 0.5:
                table.delete(key)
            else:
                table.update(key, {"name": rng.choice([None, f"other {key}"])})

    db.create_index(NAME, "by", "name", True, beside, ordered=True)
    assert calls > 12
    verify(db)
    check_arena(db)


def test_a_key_that_two_rows_have_for_a_while_as_it_is_built_is_no_obstacle_unless_it_stays() -> None:
    for stays in (False, True):
        db = made()
        table = db[NAME]
        table.insert_many([(number, f"name {number}", 0) for number in range(400)])
        calls = 0

        def beside(*_: Any, table: Any = table, stays: bool = stays) -> None:
            nonlocal calls
            calls += 1
            if calls % 5 == 0:
                table.upsert((500, "name 7", calls))
                if not stays:
                    table.delete(500)

        if stays:
            with pytest.raises(tm.DuplicateKey):
                db.create_index(NAME, "by", "name", True, beside, ordered=True)
            assert db.indexes(NAME) == [] and len(table) == 401
        else:
            db.create_index(NAME, "by", "name", True, beside, ordered=True)
            verify(db)
        check_arena(db)


# --- conditions -----------------------------------------------------------------------------------
def test_equality_is_a_lookup_and_a_range_reads_the_order() -> None:
    db = made()
    table = db[NAME]
    table.insert_many([(number, f"name {number:05}", number % 7) for number in range(5_000)])
    db.create_index(NAME, "by", "name", unique=True, ordered=True)
    name = tm.col("name")
    said = table.explain(where=name == "name 00017")
    assert (said["access"], said["index"], said["rows"]) == ("unique index", "by", 1)
    for where in ((name >= "name 00100") & (name < "name 00110"), name.like("name 0010%")):
        said = table.explain(where=where)
        assert (said["access"], said["index"]) == ("index", "by")
        assert sorted(row.id for row in table.scan(where=where)) == list(range(100, 110))
        assert table.scan(where=where).sum("n") == sum(number % 7 for number in range(100, 110))
    db.create_index(NAME, "keys", "id", unique=True, ordered=True)
    assert table.scan(["id"], where=tm.col("id") > 4_990).explain()["access"] == "index only"
    assert table.explain(where=tm.col("id") == 4_990)["access"] == "primary key"
    db.drop_index(NAME, "keys")
    assert [row.id for row in table.scan(where=name.isin(["name 00003", "x", "name 00001"]))] in ([3, 1], [1, 3])
    assert table.update_where({"n": 100}, where=(name > "name 04000") & (name <= "name 04005")) == 5
    assert table.delete_where(name == "name 04001") == 1
    arrow = table.dataset().to_table(filter=pa.compute.field("name") == "name 00009")
    assert arrow.column("id").to_pylist() == [9]
    found = pl.scan_pyarrow_dataset(table.dataset()).filter(pl.col("name") < "name 00002").collect()
    assert sorted(found["id"]) == [0, 1]
    verify(db)


# --- life -----------------------------------------------------------------------------------------
def test_it_follows_its_column_and_goes_as_one() -> None:
    db = indexed(ROWS)
    with pytest.raises(tm.SchemaInvalid, match="is part of index by"):
        db.drop_column(NAME, "name")
    db.widen_column(NAME, "name", tm.VarChar(60))
    db.rename_column(NAME, "name", "title")
    db.rename(NAME, "test.p")
    table = db["test.p"]
    assert db.indexes("test.p") == [{**listed(6)[0], "columns": ["title"]}]
    assert table.get("beta", index="by").id == 4
    assert [row.title for row in table.scan(index="by", prefix="al")] == ["alpha", "alps"]
    assert table.explain(where=tm.col("title") == "beta")["access"] == "unique index"
    scan = iter(table.scan(index="by"))
    reading = table.scan(index="by").batches()
    db.drop_index("test.p", "by")
    for call in (
        lambda: list(scan),
        lambda: list(reading),
        lambda: table.get("beta", index="by"),
        lambda: list(table.scan(index="by")),
        lambda: db.drop_index("test.p", "by"),
    ):
        with pytest.raises(tm.NoSuchIndex):
            call()
    assert db.indexes("test.p") == []
    table.insert((7, "beta", 0))
    db.drop_column("test.p", "title")
    check_arena(db)
    db.create_index("test.p", "by", "n", ordered=True)
    db.drop_table("test.p")
    check_arena(db)


def test_while_it_comes_and_goes_it_is_there_or_not() -> None:
    """Its parts are published one after the other: a scan that began between the two was told to make the index with
    ordered=True.
    """
    db = made()
    seen = set()

    def look(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename == inspect.getfile(Table):
            try:
                db[NAME].scan(index="by")
                seen.add("there")
            except tm.NoSuchIndex:
                seen.add("not there")
        return look

    sys.settrace(look)
    try:
        db.create_index(NAME, "by", "name", unique=True, ordered=True)
        db.drop_index(NAME, "by")
    finally:
        sys.settrace(None)
    assert seen == {"there", "not there"}
    db.close()


def test_a_unique_index_and_an_ordered_one_stay_two_indexes() -> None:
    db = made()
    db[NAME].insert_many(ROWS)
    db.create_index(NAME, "one", "name", unique=True)
    db.create_index(NAME, "order", "name")
    db.create_index(NAME, "by", "name", unique=True, ordered=True)
    db.drop_index(NAME, "one")
    db.drop_index(NAME, "order")
    with pytest.raises(tm.DuplicateKey, match="index by"):
        db[NAME].insert((9, "beta", 0))
    verify(db)
    check_arena(db)


def test_ctrl_c_at_any_point_leaves_the_whole_index_or_none_and_an_upsert_done_or_not() -> None:
    db = made()
    db[NAME].insert_many([(number, f"e{number}", 0) for number in range(300)])
    rng = random.Random(46)
    print("seed", 46)
    built = dropped = points = 0
    nth = 1
    while points < 80 or not (built and dropped):
        has = bool(db.indexes(NAME))
        before = db[NAME].get(1).n

        def call(has: bool = has) -> None:
            if has:
                db[NAME].upsert((77_000, "e1", 0), {"n": tm.col("n") + 1}, "by")
                db.drop_index(NAME, "by")
            else:
                db.create_index(NAME, "by", "name", unique=True, ordered=True)

        point = interrupt_at(nth, call)
        points += 1
        nth = rng.randint(1, 30) if not point.where else nth + rng.randint(1, 25)
        table = db.parts.store.tables.named(NAME)
        assert not table.building, point.where
        assert set(table.indexes) == set(table.uniques) == {each["name"] for each in db.indexes(NAME)}, point.where
        built += bool(db.indexes(NAME)) and not has
        dropped += has and not db.indexes(NAME)
        assert len(db[NAME]) == 300 and db[NAME].get(1).n in (before, before + 1), point.where
        assert db.check()["problems"] == [], point.where
        if db.indexes(NAME):
            verify(db)
        if points % 10 == 0:
            check_arena(db)
    check_arena(db)


# --- check ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("part", ["tree", "hash"])
def test_an_entry_that_is_missing_in_either_part_is_found(part: str) -> None:
    db = indexed(ROWS)
    table = db.parts.store.tables.named(NAME)
    tree, hash_ = table.indexes["by"], table.uniques["by"]
    fragment = table.fragments[0]
    held = {"tree": tree, "hash": hash_}[part]
    held.forget(fragment)  # planted: as if the part had lost the entries of one fragment
    problems = db.check()["problems"]
    assert len(problems) == 1 and "test.o, index by: a row has no entry" in problems[0], problems


def test_a_part_that_is_not_there_is_found() -> None:
    db = indexed(ROWS)
    store = db.parts.store
    table = store.tables.named(NAME)
    table.indexes = {}
    assert any("are defined" in problem for problem in db.check()["problems"])


# --- elsewhere ------------------------------------------------------------------------------------
def test_a_restored_backup_has_both_parts() -> None:
    db, place = indexed(ROWS), MemoryFiles()
    archive = archived(db, place)
    take(db, place)
    db[NAME].insert((30, "late", 0))
    db[NAME].update("beta", {"name": "gamma"}, index="by")
    epoch = db.sync()
    archive.copy()
    again = open_memory(restored(place, until=epoch, **OPTIONS), **OPTIONS)
    assert again.indexes(NAME) == listed(7) and again[NAME].get("gamma", index="by").id == 4
    verify(again)
    with pytest.raises(tm.DuplicateKey):
        again[NAME].insert((31, "late", 0))
