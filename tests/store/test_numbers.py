"""Numbers that a store gives: `tm.autoincrement` and `db.sequence()`."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tidemark as tm
from tests.crash.programs import numbers_history
from tests.shares import share
from tests.store.support import client_of, open_memory
from tidemark.recovery.crash_harness.crash_states import crash_states
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

KEY = tm.Column("id", tm.Int64, default=tm.autoincrement)
COLUMNS = [KEY, tm.Column("note", tm.VarChar(20), nullable=True)]
SEQUENCES = "mysql.tidemark_sequence"


def made(db: tm.Database, *more: Any, kind: Any = tm.Int64, **options: Any) -> Any:
    key = dataclasses.replace(KEY, type=kind)
    return db.create_table("test.t", [key, COLUMNS[1]], "id", *more, **options)


def ids(table: Any) -> list[int]:
    return sorted(row[0] for row in table)


def reserved(db: tm.Database) -> dict[Any, int]:
    return {row[:2]: row[2] for row in db[SEQUENCES]}


# --- rows and calls -------------------------------------------------------------------------------
@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize(
    "parts", [None, tm.HashPartition(3), tm.RangePartition("id", [("low", 4), ("high", tm.MAXVALUE)])]
)
def test_a_row_without_a_number_gets_the_next_one(storage: str, parts: Any) -> None:
    with open_memory() as db:
        note = dataclasses.replace(COLUMNS[1], storage=storage)
        table = db.create_table("test.t", [KEY, note], "id", parts)
        assert table.insert({"note": "a"}) == 1
        assert table.insert({"id": None, "note": "b"}) == 2
        assert table.insert((None, "c")) == 3
        assert table.write({"note": "d"}) == 4
        assert table.write({"id": 2, "note": "B"}) == 2
        assert table.upsert({"id": None, "note": "e"}) is True
        assert table.upsert({"id": 1, "note": "A"}) is False
        assert table.insert_many([{"note": "f"}, (None, "g")]) == 2
        assert [tuple(row) for row in sorted(table)] == [*enumerate("ABcdefg", 1)]
        with db.transaction() as txn:
            assert txn.insert("test.t", {}) == 8
            assert txn.get("test.t", 8).note is None
        assert table.update(8, {"note": "h"}) and table.insert({}) == 9


def test_tables_without_numbers_return_none() -> None:
    with open_memory() as db:
        table = db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
        assert table.insert((1,)) is None and table.write((1,)) is None and table.insert((2,)) is None
        assert SEQUENCES not in db.parts.store.tables.by_name


FORMS = (*("rows", "tuples", "many rows", "columns", "arrow", "small integers", "batch", "pandas", "polars", "masked"),)


def batches(numbers: list[int | None]) -> dict[str, Any]:
    """The same rows in every form that `insert_many` takes."""
    notes = [f"n{number}" for number in numbers]
    arrow = pa.table({"id": pa.array(numbers, pa.int64()), "note": notes})
    return {
        "rows": [{"id": number, "note": note} for number, note in zip(numbers, notes, strict=True)],
        "tuples": list(zip(numbers, notes, strict=True)),
        "many rows": iter([{"id": number, "note": note} for number, note in zip(numbers, notes, strict=True)]),
        "columns": {"id": numbers, "note": notes},
        "arrow": arrow,
        "small integers": arrow.set_column(0, "id", arrow["id"].cast(pa.int16())),
        "batch": arrow.to_batches()[0],
        "pandas": pd.DataFrame({"id": pd.array(numbers, dtype="Int64"), "note": notes}),
        "polars": pl.DataFrame({"id": numbers, "note": notes}),
        "masked": {
            "id": np.ma.masked_array([number or 0 for number in numbers], [number is None for number in numbers]),
            "note": notes,
        },
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", ["insert_many", "write_many", "upsert_many", "load"])
def test_batches_of_every_form_get_numbers_and_bring_them(form: str, call: str) -> None:
    with open_memory() as db:
        table = made(db)

        def put(data: Any) -> Any:
            return db.load("test.t", data) if call == "load" else getattr(table, call)(data)

        assert put(batches([None, None, None])[form]) == 3
        assert ids(table) == [1, 2, 3]
        assert put(batches([None, 500, None])[form]) == 3
        assert ids(table) == [1, 2, 3, 500, 501, 502]
        assert table.insert({}) == 503


@pytest.mark.parametrize("form", ["rows", "columns", "arrow", "pandas", "polars", "numpy"])
def test_batches_may_lack_the_column(form: str) -> None:
    with open_memory() as db:
        table = made(db)
        notes = {"note": ["a", "b"]}
        given = {
            "rows": [{"note": "a"}, {"note": "b"}],
            "columns": notes,
            "arrow": pa.table(notes),
            "pandas": pd.DataFrame(notes),
            "polars": pl.DataFrame(notes),
            "numpy": np.array([(b"a",), (b"b",)], dtype=[("note", "U1")]),
        }[form]
        assert table.insert_many(given) == 2 and table.upsert_many(given) == 2
        assert [tuple(row) for row in sorted(table)] == [(1, "a"), (2, "b"), (3, "a"), (4, "b")]


def test_a_bulk_load_gives_numbers_and_counts_those_it_brings(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", redo_log="32 MiB", background=False) as db:
        table = made(db)
        assert db.load("test.t", {"note": ["x"] * 60_000}) == 60_000
        assert (table.min("id"), table.max("id"), table.count()) == (1, 60_000, 60_000)
        assert db.load("test.t", {"id": range(100_000, 160_000), "note": ["y"] * 60_000}) == 60_000
        assert table.insert({}) == 160_000
        job = db.plan_load("test.t", tmp_path / "jobs")
        from tidemark.recovery import load

        with pytest.raises(tm.NotNullViolation, match=r"test\.t\.id is numbered where the store is"):
            load.write_parts(job, 0, [pa.RecordBatch.from_pydict({"note": ["z"]})], 0)
        rows = pa.RecordBatch.from_pydict({"id": [170_000], "note": ["z"]})
        db.adopt(load.publish(job, load.write_parts(job, 1, [rows], 0)).job)
        assert table.insert({}) == 170_001


# --- bounds and refusals --------------------------------------------------------------------------
def test_the_end_of_the_type_is_an_error_that_says_so() -> None:
    with open_memory() as db:
        table = made(db, kind=tm.Int8)
        table.insert((125, None))
        assert [table.insert({}), table.insert({})] == [126, 127]
        text = r"test\.t\.id has no numbers left: 128 would be next, and the last one is 127"
        with pytest.raises(tm.ValueOutOfRange, match=text):
            table.insert({})
        with pytest.raises(tm.ValueOutOfRange, match=text):
            table.insert_many({"note": ["a"]})
        table.delete(127)
        with pytest.raises(tm.ValueOutOfRange, match=text):  # not 127 again
            table.insert({})
        assert table.insert((-128, None)) == -128 and table.insert((7, None)) == 7


@pytest.mark.parametrize("kind", [tm.Int64, tm.UInt64])
def test_the_last_number_of_all_is_2_to_the_63_less_1(kind: Any) -> None:
    files = MemoryFiles()
    db = open_memory(files)
    table = made(db, kind=kind)
    table.insert((2**63 - 2, None))
    assert table.insert({}) == 2**63 - 1
    for _ in range(2):
        with pytest.raises(tm.ValueOutOfRange, match="has no numbers left"):
            table.insert({})
        db = open_memory(files.kill())
        table = db["test.t"]
    if kind == tm.UInt64:
        assert table.insert((2**64 - 1, None)) == 2**64 - 1


@pytest.mark.parametrize(
    ("columns", "key", "words"),
    [
        ([tm.Column("id", tm.Int64), tm.Column("n", tm.Int64, default=tm.autoincrement)], "id", "not part of the pri"),
        ([KEY, tm.Column("n", tm.Int64, default=tm.autoincrement)], ["id", "n"], "one column is numbered"),
    ],
)
def test_definitions_that_cannot_be_numbered_are_refused(columns: Any, key: Any, words: str) -> None:
    with open_memory() as db, pytest.raises(tm.SchemaInvalid, match=words):
        db.create_table("test.t", columns, key)


def test_columns_that_cannot_be_numbered_are_refused() -> None:
    with pytest.raises(tm.SchemaInvalid, match=r"is Text; tm\.autoincrement fills Int8"):
        tm.Column("id", tm.Text, default=tm.autoincrement)
    with pytest.raises(tm.SchemaInvalid, match="leave out nullable"):
        tm.Column("id", tm.Int64, True, default=tm.autoincrement)


@pytest.mark.parametrize("row", [("x", None), (1.5, None), (2**70, None), (1,), {"other": 3}])
def test_rows_that_are_wrong_are_refused_as_in_other_tables(row: Any) -> None:
    with open_memory() as db:
        table = made(db)
        plain = db.create_table("test.u", [tm.Column("id", tm.Int64), COLUMNS[1]], "id")
        texts = []
        for each in (table, plain):
            with pytest.raises(tm.Rejected) as caught:
                each.insert(row)
            texts.append((type(caught.value), caught.value.message.replace("test.u", "test.t")))
        assert texts[0] == texts[1]
        assert table.insert({}) == 1


# --- transactions ---------------------------------------------------------------------------------
def test_a_rollback_and_a_savepoint_leave_gaps() -> None:
    with open_memory() as db:
        table = made(db)
        txn = db.transaction()
        assert txn.insert("test.t", {}) == 1
        txn.rollback()
        with db.transaction() as txn:
            with pytest.raises(KeyError), txn.savepoint():
                assert txn.insert("test.t", {}) == 2
                raise KeyError
            assert txn.insert("test.t", {}) == 3
        assert ids(table) == [3]


def test_a_transaction_with_a_view_of_its_own_takes_numbers() -> None:
    with open_memory() as db:
        table = made(db)
        with db.transaction(isolation="snapshot") as txn:
            assert table.insert({}) == 1
            assert txn.insert("test.t", {}) == 2
            assert txn.get("test.t", 1) is None
        assert ids(table) == [1, 2]


def test_a_reservation_that_waits_in_vain_rolls_the_caller_back() -> None:
    with open_memory() as db:
        table = made(db)
        table.insert({})
        holding = db.transaction()
        holding.update(SEQUENCES, (db["test.t"].table.table_id, ""), {"next": 5_000})
        failed: list[Any] = []

        def insert() -> None:
            txn = db.transaction()
            try:
                txn.insert_many("test.t", {"note": ["x"] * 200})
            except tm.LockTimeout as error:
                failed.append((error.table, txn.is_ended))

        thread = threading.Thread(target=insert)
        thread.start()
        thread.join()
        assert failed == [(SEQUENCES, True)]
        holding.commit()
        assert table.insert_many({"note": ["x"] * 200}) == 200
        assert ids(table) == [1, *range(5_000, 5_200)]


def test_threads_get_different_numbers() -> None:
    with open_memory(lock_timeout_ms=60_000, redo_log="32 MiB") as db:
        table, sequence = made(db), db.sequence("s")
        got: list[list[Any]] = [[] for _ in range(8)]

        def insert(mine: list[Any]) -> None:
            for each in range(60):
                mine.append((table.insert({"note": str(each)}), sequence.next()))

        threads = [threading.Thread(target=insert, args=(mine,)) for mine in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for place in (0, 1):
            assert all([pair[place] for pair in mine] == sorted(pair[place] for pair in mine) for mine in got)
            assert sorted(pair[place] for mine in got for pair in mine) == [*range(1, 481)]
        assert ids(table) == [*range(1, 481)]


# --- crashes and openings -------------------------------------------------------------------------
def test_crash_states_give_no_number_twice() -> None:
    report = crash_states(numbers_history.work, numbers_history.verify, seed=5, per_point=2, share=share(0.1))
    assert report.points > 50 and report.distinct > 10


def test_an_opening_leaves_the_rest_of_the_block() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    assert made(db).insert({}) == 1
    db.close()
    db = open_memory(files.kill())
    assert db["test.t"].insert({}) == 101 and [*reserved(db).values()] == [201]


def test_the_number_of_a_row_that_is_gone_is_not_given_again() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    table = made(db)
    table.insert((5_000, None))
    table.delete(5_000)
    db = open_memory(files.kill())
    assert db["test.t"].insert({}) > 5_000


def test_a_lost_row_of_the_system_table_is_made_up_for_by_the_column() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    made(db).insert_many({"note": ["x"] * 300})
    with db.transaction() as txn:
        txn.delete_where(SEQUENCES, ~tm.col("next").is_null())
    db.close()
    assert open_memory(files.kill())["test.t"].insert({}) == 301


def test_with_epochs_a_crash_takes_rows_and_their_numbers_together() -> None:
    files = MemoryFiles()
    db = open_memory(files, durability="epoch")
    table = made(db)
    table.insert({})
    db.sync()
    for _ in range(250):
        table.insert({})
    db = open_memory(files.kill(), durability="epoch")
    last = max(ids(db["test.t"]))
    assert db["test.t"].insert({}) > last


# --- steps and sites ------------------------------------------------------------------------------
def test_step_and_offset_divide_the_numbers() -> None:
    files = MemoryFiles()
    db = open_memory(files, autoincrement_step=10, autoincrement_offset=3)
    table = made(db)
    assert [table.insert({}) for _ in range(3)] == [3, 13, 23]
    table.insert((41, None))
    assert table.insert({}) == 43 and db.sequence("s").take(3) == range(3, 33, 10)
    assert table.insert_many({"note": ["x"] * 150}) == 150
    db.close()
    db = open_memory(files.kill(), autoincrement_step=10, autoincrement_offset=4)
    assert db["test.t"].insert({}) % 10 == 4
    assert len(ids(db["test.t"])) == 3 + 2 + 150 + 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"autoincrement_step": 0}, "autoincrement_step is 0; give an integer 1 to 65,535"),
        ({"autoincrement_offset": 2}, "autoincrement_offset is 2; give an integer 1 to 1"),
    ],
)
def test_steps_that_make_no_sense_are_refused(options: Any, words: str) -> None:
    with pytest.raises(tm.SchemaInvalid, match=words):
        tm.Options(**options)


# --- the table and its sequence -------------------------------------------------------------------
def test_the_sequence_moves_with_the_table_and_goes_with_it() -> None:
    with open_memory() as db:
        table = made(db)
        table.insert({})
        db.rename("test.t", "test.u")
        db.rename_column("test.u", "id", "number")
        assert db["test.u"].insert({}) == 2 and len(reserved(db)) == 1
        db.drop_table("test.u")
        assert reserved(db) == {}
        assert made(db).insert({}) == 1


def test_the_default_can_be_set_and_taken_away() -> None:
    with open_memory() as db:
        table = db.create_table("test.t", [tm.Column("id", tm.Int64), COLUMNS[1]], "id")
        table.insert((70, None))
        db.set_default("test.t", "id", tm.autoincrement)
        assert table.insert({}) == 71
        db.set_default("test.t", "id")
        with pytest.raises(tm.NotNullViolation):
            table.insert({})
        table.insert((90, None))
        db.set_default("test.t", "id", tm.autoincrement)
        assert table.insert({}) == 91


def test_the_system_table_belongs_to_the_store() -> None:
    with open_memory() as db:
        assert SEQUENCES in db and db.tables() == []
        with pytest.raises(tm.SchemaInvalid, match="belongs to every store"):
            db.drop_table(SEQUENCES)


def test_composite_keys_share_one_sequence() -> None:
    with open_memory() as db:
        columns = [tm.Column("tenant", tm.Int32), tm.Column("id", tm.UInt32, default=tm.autoincrement)]
        table = db.create_table("test.t", columns, ["tenant", "id"])
        assert [table.insert({"tenant": tenant}) for tenant in (1, 2, 1)] == [1, 2, 3]
        assert sorted(map(tuple, table)) == [(1, 1), (1, 3), (2, 2)]


def test_an_upsert_by_a_unique_index_changes_no_number() -> None:
    with open_memory() as db:
        table = made(db)
        db.create_index("test.t", "by_note", "note", unique=True)
        assert table.upsert({"note": "a"}, index="by_note") is True
        assert table.upsert({"note": "a"}, index="by_note") is False
        assert table.upsert_many([{"note": "a"}, {"note": "b"}], index="by_note") == 1
        assert table.get("a", index="by_note").id == 1 and len(table) == 2


# --- faces ----------------------------------------------------------------------------------------
def test_clients_get_numbers_from_the_owner() -> None:
    with open_memory(lock_timeout_ms=60_000) as db:
        with client_of(db) as remote:
            table = remote.create_table("test.t", COLUMNS, "id")
            assert table.insert({"note": "a"}) == 1 and db["test.t"].insert({}) == 2
            assert table.insert_many([{"note": "b"}, {"id": None, "note": "c"}]) == 2
            assert table.write_many(pl.DataFrame({"note": ["d"]})) == 1
            with remote.transaction() as txn:
                assert txn.insert("test.t", {}) == 6
            assert ids(table) == [1, 2, 3, 4, 5, 6]
            assert remote.sequence("s").take(2) == range(1, 3)
            assert db.sequence("s").next() == 3 and remote.sequence("s").next() == 4
            remote.set_default("test.t", "id")
            remote.set_default("test.t", "id", tm.autoincrement)
            assert table.definition.columns[0].default is tm.autoincrement


def test_typed_rows_may_lack_the_number() -> None:
    @dataclasses.dataclass
    class Visit:
        id: int | None = tm.autoincrement
        note: str | None = None

    @dataclasses.dataclass
    class Plain:
        id: int
        note: str | None

    with open_memory() as db:
        table = db.create_table("test.t", Visit, "id")
        assert table.insert(Visit()) == 1 and table.insert(Visit(None, "b")) == 2 and table.write(Visit(7)) == 7
        assert table.insert_many([Visit(note="x"), Visit(None, "y")]) == 2
        assert list(map(tuple, sorted(db["test.t"]))) == [(1, None), (2, "b"), (7, None), (8, "x"), (9, "y")]
        assert db.table("test.t", Plain)[2] == Plain(2, "b")


# --- named sequences ------------------------------------------------------------------------------
def test_named_sequences_count_on_their_own() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    one, other = db.sequence("one"), db.sequence("other")
    assert (one.name, one.next(), one.next(), other.next()) == ("one", 1, 2, 1)
    assert one.take(500) == range(3, 503) and one.next() == 503
    db = open_memory(files.kill())
    assert db.sequence("one").next() > 503 and db.sequence("other").next() > 1


@pytest.mark.parametrize("count", [0, -1, 1.5, True, 1 << 40])
def test_counts_that_make_no_sense_are_refused(count: Any) -> None:
    with open_memory() as db, pytest.raises(tm.ValueOutOfRange, match="a sequence gives 1 to"):
        db.sequence("s").take(count)


@pytest.mark.parametrize("name", ["", 7, "x" * 65, "a/b"])
def test_names_that_are_none_are_refused(name: Any) -> None:
    with open_memory() as db, pytest.raises(tm.InvalidName):
        db.sequence(name)


def test_a_closed_store_gives_none() -> None:
    db = open_memory()
    sequence = db.sequence("s")
    db.close()
    with pytest.raises(tm.StoreFailed):
        sequence.next()
