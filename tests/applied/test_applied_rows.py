"""Batches of another site's changes: each row has its own outcome, equal to a loop over a dict."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from tests.elsewhere import elsewhere
from tidemark.engine.applied import applied_rows
from tidemark.engine.applied.applied_rows import APPLIED, EXISTS, MISSING, REFUSED, Judge
from tidemark.engine.programs.interpreter import Assembler, Program

pytestmark = pytest.mark.usefixtures("storage")

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("name", tm.VarChar(20)),
    tm.Column("stamp", tm.UInt32),
    tm.Column("b", tm.Float64, nullable=True, default=1.5),
]
Row = dict[str, Any]


@pytest.fixture
def db(tmp_path: Any) -> Any:
    with tm.open(tmp_path / "s", data_memory="32 MiB", redo_log="16 MiB", background=False) as opened:
        opened.create_table("t", COLUMNS, "id", partition=tm.HashPartition(3))
        yield opened


def table_of(db: Any) -> Any:
    return db.parts.store.tables.named("t")


def greater(db: Any) -> Program:
    """Return a program that accepts a row whose stamp is less than its parameter: NDB$MAX."""
    asm = Assembler(table_of(db).definition)
    asm.load_parameter(1, 0)
    asm.read(2, "stamp")
    asm.branch_registers("gt", 1, 2, "ok")
    asm.exit_refuse(9_999)
    asm.label("ok")
    asm.exit_ok()
    return asm.finish()


def batch(rows: list[Row], names: list[str]) -> pa.RecordBatch:
    types = {"id": pa.int64(), "name": pa.string(), "stamp": pa.uint32(), "b": pa.float64()}
    return pa.RecordBatch.from_pydict(
        {name: pa.array([row[name] for row in rows], types[name]) for name in names},
    )


def judged(db: Any, stamps: list[int]) -> Judge:
    return Judge(greater(db), np.array([stamps], dtype=np.int64))


class Model:
    """The same operations on a dict, row by row."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}

    def insert(self, row: Row) -> int:
        if row["id"] in self.rows:
            return EXISTS
        self.rows[row["id"]] = {"b": 1.5, **row}
        return APPLIED

    def update(self, row: Row, stamp: int | None) -> int:
        if row["id"] not in self.rows:
            return MISSING
        if stamp is not None and not stamp > self.rows[row["id"]]["stamp"]:
            return REFUSED
        self.rows[row["id"]] = {**self.rows[row["id"]], **row}
        return APPLIED

    def upsert(self, row: Row, stamp: int | None) -> int:
        return self.insert(row) if row["id"] not in self.rows else self.update(row, stamp)

    def delete(self, row: Row, stamp: int | None) -> int:
        if row["id"] not in self.rows:
            return MISSING
        if stamp is not None and not stamp > self.rows[row["id"]]["stamp"]:
            return REFUSED
        del self.rows[row["id"]]
        return APPLIED


def drawn(draw: random.Random, key: int) -> Row:
    b = None if draw.random() < 0.2 else draw.random()
    return {"id": key, "name": "x" * draw.randrange(20), "stamp": draw.randrange(50), "b": b}


def test_random_batches_equal_a_loop_over_a_dict(db: Any) -> None:
    seed = 20_261_121
    print("seed", seed)
    draw = random.Random(seed)
    model = Model()
    for _ in range(150):
        rows = [drawn(draw, key) for key in draw.sample(range(60), draw.randrange(1, 30))]
        stamps = [draw.randrange(50) for _ in rows]
        judge = judged(db, stamps) if draw.random() < 0.6 else None
        asked = [stamp if judge is not None else None for stamp in stamps]
        names = ["id", *draw.sample(["name", "stamp", "b"], draw.randrange(4))]
        full = draw.choice([["id", "name", "stamp"], ["id", "name", "stamp", "b"]])
        some = [{name: row[name] for name in names} for row in rows]
        whole = [{name: row[name] for name in full} for row in rows]
        kind = draw.randrange(4)
        with db.transaction() as txn:
            table = table_of(db)
            if kind == 0:
                got = applied_rows.apply_inserts(txn, table, batch(rows, full))
                wanted = [model.insert(row) for row in whole]
            elif kind == 1:
                got = applied_rows.apply_updates(txn, table, batch(rows, names), judge)
                wanted = [model.update(row, stamp) for row, stamp in zip(some, asked, strict=True)]
            elif kind == 2:
                got = applied_rows.apply_upserts(txn, table, batch(rows, full), judge)
                wanted = [model.upsert(row, stamp) for row, stamp in zip(whole, asked, strict=True)]
            else:
                got = applied_rows.apply_deletes(txn, table, batch(rows, names), judge)
                wanted = [model.delete(row, stamp) for row, stamp in zip(some, asked, strict=True)]
        assert got.tolist() == wanted
        assert {row.id: row._asdict() for row in db["t"].scan()} == model.rows


def test_rejected_rows_keep_their_epoch_and_applied_ones_get_another(db: Any) -> None:
    db["t"].insert_many([(1, "a", 5, None), (2, "b", 5, None)])
    db.parts.clockwork.advance_epoch()
    before = dict(zip(db["t"].to_arrow(columns=["id", tm.EPOCH]).to_pydict()["id"], _epochs(db), strict=True))
    with db.transaction() as txn:
        rows = batch([{"id": 1, "stamp": 9}, {"id": 2, "stamp": 1}], ["id", "stamp"])
        got = applied_rows.apply_updates(txn, table_of(db), rows, judged(db, [9, 1]))
    after = dict(zip(db["t"].to_arrow(columns=["id"]).to_pydict()["id"], _epochs(db), strict=True))
    assert got.tolist() == [APPLIED, REFUSED]
    assert after[1] > before[1] and after[2] == before[2]


def _epochs(db: Any) -> list[int]:
    found: list[int] = db["t"].to_arrow(columns=[tm.EPOCH]).column(0).to_pylist()
    return found


def test_touched_rows_are_the_same_but_for_their_epoch(db: Any) -> None:
    db["t"].insert_many([(1, "a", 5, None), (2, "b", 5, 2.5)])
    db.parts.clockwork.advance_epoch()
    epochs = _epochs(db)
    rows = sorted(db["t"].scan())
    with db.transaction() as txn:
        got = applied_rows.touch_rows_again(txn, table_of(db), batch([{"id": 2}, {"id": 7}, {"id": 1}], ["id"]))
    assert got.tolist() == [APPLIED, MISSING, APPLIED]
    assert sorted(db["t"].scan()) == rows
    assert all(new > old for new, old in zip(_epochs(db), epochs, strict=True))


def test_row_that_another_inserts_meanwhile_exists_and_the_others_are_inserted(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = applied_rows.lock_keys

    def slow(txn: Any, table: Any, keys: Any) -> Any:
        found = lock(txn, table, keys)
        db["t"].insert({"id": 3, "name": "theirs", "stamp": 0})
        return found

    monkeypatch.setattr(applied_rows, "lock_keys", slow)
    with db.transaction() as txn:
        rows = batch([{"id": key, "name": "ours", "stamp": 1} for key in range(6)], ["id", "name", "stamp"])
        got = applied_rows.apply_inserts(txn, table_of(db), rows)
    assert got.tolist() == [EXISTS if key == 3 else APPLIED for key in range(6)]
    assert {row.id: row.name for row in db["t"].scan()} == {**dict.fromkeys(range(6), "ours"), 3: "theirs"}


def test_row_locked_by_another_is_waited_for_and_rolls_the_batch_back_in_the_end(tmp_path: Any) -> None:
    with tm.open(tmp_path / "s", data_memory="32 MiB", background=False, lock_timeout_ms=50) as db:
        db.create_table("t", COLUMNS, "id")
        db["t"].insert_many([(key, "a", 5, None) for key in range(4)])
        holder = db.transaction()
        holder.update("t", 2, {"name": "held"})
        keys = batch([{"id": key} for key in range(4)], ["id"])
        with pytest.raises(tm.LockTimeout):
            elsewhere(lambda: applied_rows.apply_deletes(db.transaction(), table_of(db), keys))
        holder.rollback()
        assert len(db["t"]) == 4


def test_program_that_fails_in_a_row_names_it_and_changes_nothing(db: Any) -> None:
    db["t"].insert_many([(1, "a", 5, None), (2, "b", 5, 2.5)])
    asm = Assembler(table_of(db).definition)
    asm.load_null(1)
    asm.read(2, "stamp")
    asm.add(3, 1, 2)
    asm.exit_ok()
    with pytest.raises(tm.ProgramFailed, match="key 1"):
        with db.transaction() as txn:
            applied_rows.apply_deletes(txn, table_of(db), batch([{"id": 1}, {"id": 2}], ["id"]), Judge(asm.finish()))
    assert len(db["t"]) == 2


@pytest.mark.parametrize("is_judged", [False, True])
def test_row_that_others_make_between_the_look_and_the_insert_is_updated(
    db: Any, monkeypatch: pytest.MonkeyPatch, is_judged: bool
) -> None:
    """Story: the applier of a site with local writers stopped. The row of a write event did not exist when its key was
    looked up, a client inserted it, and the outcome was that the row exists, with which no write event can fail. (Kill
    loop, seed 31.)
    """
    real, made = applied_rows.encode_rows, []

    def quicker(*arguments: Any) -> Any:
        if not made:
            made.append(db["t"].insert((2, "client", 50, None)))
        return real(*arguments)

    monkeypatch.setattr(applied_rows, "encode_rows", quicker)
    rows = [{"id": key, "name": "site", "stamp": 10 * key, "b": 0.5} for key in (1, 2, 3)]
    judge = judged(db, [10, 20, 30]) if is_judged else None
    with db.transaction() as txn:
        outcomes = applied_rows.apply_upserts(txn, table_of(db), batch(rows, ["id", "name", "stamp", "b"]), judge)
    assert outcomes.tolist() == [APPLIED, REFUSED if is_judged else APPLIED, APPLIED]
    assert {row.id: row.name for row in db["t"]} == {1: "site", 2: "client" if is_judged else "site", 3: "site"}


def test_insert_of_a_row_that_others_make_meanwhile_says_that_it_exists(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = applied_rows.encode_rows, []

    def quicker(*arguments: Any) -> Any:
        if not made:
            made.append(db["t"].insert((2, "client", 50, None)))
        return real(*arguments)

    monkeypatch.setattr(applied_rows, "encode_rows", quicker)
    rows = [{"id": key, "name": "site", "stamp": 1, "b": 0.5} for key in (1, 2)]
    with db.transaction() as txn:
        outcomes = applied_rows.apply_inserts(txn, table_of(db), batch(rows, ["id", "name", "stamp", "b"]))
    assert outcomes.tolist() == [APPLIED, EXISTS] and db["t"][2].name == "client"
