"""Updates and deletes with conditions and expressions, one row and many, against a model in Python."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import OWN_LOCK
from tests.store.support import open_memory
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

pytestmark = pytest.mark.usefixtures("storage")

col = tm.col
COLUMNS = [
    tm.Column("id", tm.VarChar(8)),
    tm.Column("n", tm.Int64, nullable=True),
    tm.Column("small", tm.Int8),
    tm.Column("large", tm.UInt64),
    tm.Column("x", tm.Float64, nullable=True),
    tm.Column("single", tm.Float32),
    tm.Column("price", tm.Decimal(9, 2), nullable=True),
    tm.Column("wide", tm.Decimal(38, 4)),
    tm.Column("day", tm.Date, nullable=True),
    tm.Column("name", tm.VarChar(20)),
]
DAY = datetime.date(2026, 11, 21)


def row_of(number: int) -> tuple[Any, ...]:
    price = None if number % 5 == 0 else Decimal(number)
    return (f"k{number}", number, number % 100, 2**63 + number, number / 2, 1.5, price, Decimal(number), DAY, "a")


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def db(storage: str, files: MemoryFiles) -> Iterator[tm.Database]:
    found = open_memory(files, page_buffer="1 MiB")
    yield found
    found.close()


def make(db: tm.Database, rows: int) -> tuple[tm.TableHandle, dict[str, tuple[Any, ...]]]:
    table = db.create_table("test.t", COLUMNS, "id")
    model = {row[0]: row for row in map(row_of, range(rows))}
    table.insert_many(list(model.values()))
    return table, model


def rows_of(table: tm.TableHandle) -> dict[str, tuple[Any, ...]]:
    return {row[0]: tuple(row) for row in table.scan()}


def changed(row: tuple[Any, ...], **values: Any) -> tuple[Any, ...]:
    names = [column.name for column in COLUMNS]
    return tuple(values.get(name, value) for name, value in zip(names, row, strict=True))


# Expression sets, each with the same in Python.
SETS: list[tuple[dict[str, Any], Any]] = [
    ({"n": col("n") + 1}, lambda row: {"n": row[1] + 1}),
    ({"n": col("n") * 2, "x": col("n") / 4}, lambda row: {"n": row[1] * 2, "x": row[1] / 4}),
    ({"large": col("large") + 3}, lambda row: {"large": row[3] + 3}),
    ({"single": col("single") * 2.0, "name": "b"}, lambda row: {"single": row[5] * 2, "name": "b"}),
    (
        {"price": col("price") + Decimal("0.25")},
        lambda row: {"price": None if row[6] is None else row[6] + Decimal("0.25")},
    ),
    ({"wide": col("wide") - col("wide")}, lambda row: {"wide": Decimal(0)}),
    ({"day": col("day") + datetime.timedelta(3), "n": 7}, lambda row: {"day": row[8] + datetime.timedelta(3), "n": 7}),
    ({"x": None, "small": 5}, lambda row: {"x": None, "small": 5}),
    ({"n": col("small")}, lambda row: {"n": row[2]}),
]
CONDITIONS: list[tuple[Any, Any]] = [
    (col("small") < 40, lambda row: row[2] < 40),
    (col("name") == "a", lambda row: row[9] == "a"),
    ((col("n") >= 100) & col("price").is_null(), lambda row: row[1] >= 100 and row[6] is None),
    (col("large") > 2**63 + 900, lambda row: row[3] > 2**63 + 900),
    (col("id").like("k1%"), lambda row: row[0].startswith("k1")),
]


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_leave_what_the_model_says_before_and_after_a_restart(
    db: tm.Database, files: MemoryFiles, seed: int
) -> None:
    print("seed", seed)
    r = random.Random(seed)
    table, model = make(db, 1_300)
    for _ in range(25):
        expressions, values = r.choice(SETS)
        where, holds = r.choice(CONDITIONS)
        shape = r.randint(0, 5)
        if shape == 0:
            wanted = [key for key, row in model.items() if holds(row)]
            assert table.update_where(expressions, where) == len(wanted)
            for key in wanted:
                model[key] = changed(model[key], **values(model[key]))
        elif shape == 1 and len(model) > 800:
            narrow = where & (col("n") % 7 == 3)
            gone = [key for key, row in model.items() if holds(row) and row[1] % 7 == 3]
            assert table.delete_where(narrow) == len(gone)
            for key in gone:
                del model[key]
        elif shape == 2:
            key = r.choice(list(model))
            assert table.delete(key, where) == holds(model[key])
            if holds(model[key]):
                del model[key]
        else:
            with db.transaction() as txn:
                for key in r.sample(list(model), 5):
                    assert txn.update("test.t", key, expressions, where) == holds(model[key])
                    if holds(model[key]):
                        model[key] = changed(model[key], **values(model[key]))
                    assert tuple(txn.get("test.t", key)) == model[key]
    assert rows_of(table) == model
    assert db.check()["is_sound"]
    db.close()
    again = open_memory(MemoryFiles(files.disk), page_buffer="1 MiB")
    assert rows_of(again["test.t"]) == model
    again.close()


def test_errors_leave_no_trace_and_the_transaction_open(db: tm.Database) -> None:
    table, model = make(db, 700)
    table.update("k650", {"n": 2**63 - 1, "small": 127})
    before = rows_of(table)
    with db.transaction() as txn:
        with pytest.raises(tm.ValueOutOfRange, match=r"test\.t: .* in the row with key 'k650'"):
            txn.update_where("test.t", {"n": col("n") + 1, "name": "lost"})
        with pytest.raises(tm.ValueOutOfRange, match="does not fit its column"):
            txn.update("test.t", "k650", {"small": col("small") + 1})
        with pytest.raises(tm.NotNullViolation):
            txn.update("test.t", "k650", {"small": col("small") // 0})
        with pytest.raises(tm.Rejected, match="part of the primary key"):
            txn.update_where("test.t", {"id": "other"})
        with pytest.raises(tm.Rejected, match="part of the primary key"):
            txn.update("test.t", "k1", {"id": col("n")})
        with pytest.raises(tm.RowNotFound):
            txn.update("test.t", "nobody", {"n": col("n") + 1})
        with pytest.raises(tm.RowNotFound):
            txn.delete("test.t", "nobody", where=col("n") == 1)
        with pytest.raises(tm.ProgramInvalid):
            txn.update("test.t", "k1", {"name": col("n") + 1})
        with pytest.raises(tm.SchemaInvalid):
            txn.update_where("test.t", {})
        with pytest.raises(tm.ValueOutOfRange):
            txn.delete_where("test.t", col("n") + 1 > 0)
        txn.insert("test.t", row_of(900))
    assert rows_of(table) == {**before, "k900": row_of(900)}
    assert len(model) == 700


def test_program_as_condition_of_changes_ends_after_its_last_row(db: tm.Database) -> None:
    table, _ = make(db, 50)
    order = [row.id for row in table.scan(["id"])]
    asm = tm.Assembler(table.definition)
    asm.branch_column("eq", "id", order[20], "last")
    asm.exit_ok()
    asm.label("last")
    asm.exit_last()
    program = asm.finish()
    assert table.update_where({"n": col("n") + 1_000}, program) == 21
    assert [row.id for row in table.scan(["id"], where=col("n") >= 1_000)] == order[:21]
    assert table.update(order[0], {"n": 1}, where=program) is True
    assert table.delete_where(program) == 21
    assert [row.id for row in table.scan(["id"])] == order[21:]


def test_refused_row_stays_locked_so_that_the_answer_stays_true(db: tm.Database) -> None:
    table, _ = make(db, 5)
    with db.transaction() as txn:
        assert not txn.update("test.t", "k1", {"n": 5}, where=col("n") == 9)
        with pytest.raises(tm.Rejected, match=OWN_LOCK):
            table.update("k1", {"n": 9})
    table.update("k1", {"n": 9})
    assert table.update("k1", {"n": 5}, where=col("n") == 9)
