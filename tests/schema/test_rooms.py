"""Columns that are added during other work: snapshots, unique indexes, transactions that spool, batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.store.support import open_memory
from tidemark.engine.access import batch_operations
from tidemark.engine.applied import applied_rows
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

FIXED = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)]
DISK = [*FIXED, tm.Column("cold", tm.VarBinary(200), storage="disk")]
VAR = [*FIXED, tm.Column("text", tm.VarChar(60), nullable=True)]


def value(column: tm.Column, key: int) -> Any:
    if column.name == "cold":
        return bytes([key % 256]) * (key % 190)
    return "t" * (key % 50) if column.name == "text" else key * 3


def rows_of(columns: list[tm.Column], keys: Any) -> list[tuple[Any, ...]]:
    return [(key, *[value(each, key) for each in columns[1:]]) for key in keys]


def opened(columns: list[tm.Column], files: MemoryFiles | None = None, **options: Any) -> Any:
    db = open_memory(files, **{"redo_log": "16 MiB", "undo_log": "16 MiB", **options})
    if columns is DISK:
        db.create_tablespace("main", "1 MiB", page_size="4 KiB", extent="64 KiB")
    db.create_table("t", columns, "id", tm.HashPartition(3))
    db["t"].insert_many(rows_of(columns, range(300)))
    return db


class Interposed:
    """Lets something happen once, right before the next call of a function of a module."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, happens: Callable[[], object]) -> None:
        self.happens = happens
        self.is_due = True
        self._call = getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, *arguments: Any) -> Any:
        if self.is_due:
            self.is_due = False
            self.happens()
        return self._call(*arguments)


@pytest.mark.parametrize("columns", [FIXED, DISK, VAR], ids=["fixed", "disk", "var"])
def test_snapshot_shows_rows_without_a_column_added_since(columns: list[tm.Column]) -> None:
    """Rows kept from before the table had var parts have none; rows changed since then have one."""
    db = opened(columns)
    before = rows_of(columns, range(300))
    with db.snapshot() as snapshot:
        shown = snapshot["t"]
        db["t"].update(5, {"n": -5})
        db["t"].delete(6)
        db.add_column("t", tm.Column("extra", tm.VarChar(40), nullable=True, default="old"))
        db["t"].update_many([{"id": key, "extra": "x" * (key % 30), "n": -key} for key in range(5, 200, 5)])
        db["t"].delete_many(list(range(100, 120)))
        db["t"].insert_many([(*row, "new") for row in rows_of(columns, range(300, 340))])
        assert sorted(shown.scan()) == before
        assert sorted(shown.get_many(range(340)).to_pylist(), key=lambda row: row["id"]) == [
            dict(zip([each.name for each in columns], row, strict=True)) for row in before
        ]
        assert [shown.get(key) for key in (5, 6, 110, 299)] == [before[key] for key in (5, 6, 110, 299)]
        assert shown.get(300) is None
        with db.snapshot() as later:
            db["t"].update_where({"extra": "again"})
            names = [*[each.name for each in columns], "extra"]
            found = {row.id: row.extra for row in later["t"].scan()}
            assert list(later["t"].to_arrow().schema.names) == names
            assert found[5] == "x" * 5 and found[7] == "old" and found[330] == "new"


@pytest.mark.parametrize("columns", [FIXED, DISK, VAR], ids=["fixed", "disk", "var"])
def test_unique_index_over_an_added_column_holds_through_changes_and_a_restart(columns: list[tm.Column]) -> None:
    seed = 20_261_121
    print("seed", seed)
    draw = random.Random(seed)
    files = MemoryFiles()
    db = opened(columns, files)
    db.add_column("t", tm.Column("code", tm.Int32, nullable=True))
    db.create_index("t", "by_code", "code", unique=True)
    model: dict[int, int | None] = dict.fromkeys(range(300))
    for step in range(400):
        key, code = draw.randrange(300), draw.choice([None, draw.randrange(400)])
        holder = next((each for each, held in model.items() if held == code and code is not None), None)
        with db.transaction() as txn:
            try:
                if draw.random() < 0.3:
                    with txn.savepoint():
                        txn.update("t", key, {"code": code})
                        if draw.random() < 0.5:
                            raise LookupError
                elif draw.random() < 0.3:
                    txn.delete("t", key)
                    txn.insert("t", {"id": key, **{e.name: value(e, key) for e in columns[1:]}, "code": code})
                else:
                    txn.update("t", key, {"code": code, "n": step})
            except LookupError:
                continue
            except tm.DuplicateKey:
                assert holder not in (None, key)
                txn.rollback()
                continue
            assert holder in (None, key)
        model[key] = code
    for store in (db, open_memory(files.kill(), redo_log="16 MiB", undo_log="16 MiB")):
        assert {row.id: row.code for row in store["t"].scan()} == model
        codes = list(range(400))
        found = store["t"].get_many(codes, columns=["id", "code"], index="by_code").to_pylist()
        assert {row["code"]: row["id"] for row in found} == {c: key for key, c in model.items() if c is not None}
        assert store.check()["problems"] == []


@pytest.mark.parametrize("columns", [FIXED, DISK], ids=["fixed", "disk"])
def test_column_added_in_the_middle_of_a_transaction_that_spools(columns: list[tm.Column]) -> None:
    """Its records from before the change have no var part, later ones do; commit, replay and rollback
    tell them apart.
    """
    files = MemoryFiles()
    options: dict[str, Any] = {"transaction_memory": "64 KiB", "transaction_limit": "64 MiB"}
    db = opened(columns, files, **options)
    kept = db.transaction()
    undone = db.transaction()
    kept.update_many("t", [{"id": key, "n": 1} for key in range(100)])
    kept.insert_many("t", rows_of(columns, range(1_000, 4_000)))
    undone.insert_many("t", rows_of(columns, range(10_000, 13_000)))
    undone.delete_many("t", list(range(200, 210)))
    db.add_column("t", tm.Column("extra", tm.Text, nullable=True, default="old"))
    kept.update_many("t", [{"id": key, "extra": "e" * key} for key in range(50, 150)])
    kept.insert_many(
        "t", [(key, key, *[value(each, key) for each in columns[2:]], "new") for key in range(5_000, 7_000)]
    )
    undone.update_many("t", [{"id": key, "extra": "gone"} for key in range(11_000, 12_000)])
    assert kept.spool is not None and undone.spool is not None
    undone.rollback()
    kept.commit(True)
    wanted = dict.fromkeys([*range(300), *range(1000, 4000)], "old")
    wanted |= {key: "e" * key for key in range(50, 150)} | dict.fromkeys(range(5_000, 7_000), "new")
    again = open_memory(files.kill(), redo_log="16 MiB", undo_log="16 MiB")
    for store in (db, again):
        assert {row.id: row.extra for row in store["t"].scan()} == wanted
        assert {row.n for row in store["t"].scan(where=tm.col("id") < 50)} == {1}
        assert store.check()["problems"] == []


def test_upserts_and_batches_of_another_site_continue_across_an_added_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column is added between the encoding of a batch and its first kernel call: it is encoded again."""
    db, added = opened(VAR), iter("ab")

    def add() -> None:
        db.add_column("t", tm.Column(next(added), tm.VarChar(9), nullable=True, default="was"))

    late = Interposed(monkeypatch, batch_operations, "put_rows", add)
    batch = pa.record_batch({"id": list(range(290, 310)), "n": [7] * 20, "text": ["up"] * 20})
    assert db["t"].upsert_many(batch) == 10
    late.is_due = True
    with db.transaction() as txn:
        rows = pa.record_batch({"id": pa.array([1, 900]), "n": pa.array([-1, -2]), "text": pa.array(["x", "y"])})
        outcomes = applied_rows.apply_upserts(txn, db.parts.store.tables.named("t"), rows)
    assert outcomes.tolist() == [applied_rows.APPLIED] * 2 and not late.is_due
    found = {row.id: row for row in db["t"].scan()}
    assert len(found) == 311 and found[900][:3] == (900, -2, "y") and found[1].a == "was" and found[305].b == "was"
    assert db.check()["problems"] == []


def test_rows_that_do_not_name_a_column_dropped_meanwhile_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: batches of dicts were filled up with the defaults of all columns that existed when the call began. If one
    of these columns was dropped before the rows were put, and another one added, the call failed with NoSuchColumn,
    although the caller had not named the column.
    """
    db = opened(VAR)
    db.add_column("t", tm.Column("a", tm.VarChar(9), nullable=True, default="was"))

    def replace() -> None:
        db.drop_column("t", "a")
        db.add_column("t", tm.Column("b", tm.VarChar(9), nullable=True, default="is"))

    late = Interposed(monkeypatch, batch_operations, "put_rows", replace)
    assert db["t"].write_many([{"id": key, "n": 1} for key in range(295, 305)]) == 10
    assert not late.is_due and [db["t"][key].b for key in (1, 304)] == ["is", "is"]


def test_row_given_as_a_tuple_is_read_in_the_column_order_at_the_start_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db, added = opened(VAR), tm.Column("b", tm.VarChar(9), default="is")
    late = Interposed(monkeypatch, batch_operations, "put_rows", lambda: db.add_column("t", added))
    db["t"].table.plan = None  # a kernel leaves no time between the two
    db["t"].insert((900, 1, "x"))
    assert not late.is_due and db["t"][900] == (900, 1, "x", "is")


def test_rows_of_a_partition_dropped_between_lock_and_reading_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: `update_many` locked its rows, a partition was dropped with some of them, and the fewer rows it then read
    were taken for rows with broken lengths: PageDamaged on a sound store.
    """
    db = open_memory(redo_log="16 MiB")
    ranges = tm.RangePartition("id", [("low", 100), ("high", tm.MAXVALUE)])
    db.create_table("t", VAR, "id", ranges)
    db["t"].insert_many(rows_of(VAR, range(200)))
    late = Interposed(monkeypatch, batch_operations, "read_keys", lambda: db.drop_partition("t", "low"))
    with pytest.raises(tm.RowNotFound, match="no row has key 90"):
        db["t"].update_many(pa.record_batch({"id": list(range(90, 110)), "n": [0] * 20}))
    assert not late.is_due and len(db["t"]) == 100 and db["t"][105].n == 315


def test_batch_of_another_site_misses_rows_whose_partition_is_dropped_while_it_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db = open_memory(redo_log="16 MiB")
    db.create_table("t", VAR, "id", tm.RangePartition("id", [("low", 100), ("high", tm.MAXVALUE)]))
    db["t"].insert_many(rows_of(VAR, range(200)))
    Interposed(monkeypatch, applied_rows, "read_keys", lambda: db.drop_partition("t", "low"))
    with db.transaction() as txn:
        rows = pa.record_batch({"id": pa.array(range(90, 110)), "n": pa.array([0] * 20)})
        outcomes = applied_rows.apply_updates(txn, db.parts.store.tables.named("t"), rows)
    assert outcomes.tolist() == [applied_rows.MISSING] * 10 + [applied_rows.APPLIED] * 10
    assert len(db["t"]) == 100 and db["t"][105].n == 0
