"""Checks: what is refused, by every way a row is written, and what is said."""

from __future__ import annotations

import datetime
import decimal
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import tidemark as tm
from tests.checks.oracle import COLUMNS, NAMES, Row, broken, row_of, rule
from tests.load.support import batch, new_store, own_place, rows
from tests.seeds import fresh_seeds
from tests.store.support import client_of, open_memory, rows_of
from tidemark.engine.access.batch_operations import insert_many
from tidemark.engine.programs.expression_nodes import InvalidNodes, from_text, to_text
from tidemark.engine.rows.column_input import to_columns
from tidemark.engine.store import check_build
from tidemark.engine.txn.transaction import DecidedTransaction
from tidemark.recovery import load

NAME = "test.t"
Door = Callable[[Any, list[Row]], Any]


def _each(call: str) -> Door:
    def put(db: Any, rows: list[Row]) -> None:
        with db.transaction() as txn:
            for row in rows:
                getattr(txn, call)(NAME, row)

    return put


def _many(call: str, made: Callable[[list[Row]], Any]) -> Door:
    return lambda db, rows: getattr(db[NAME], call)(made(rows))


_SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.int64()), ("s", pa.string()), ("f", pa.float64())])


def _arrow(rows: list[Row]) -> Any:
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _text(rows: list[Row]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in NAMES}


def _numpy(rows: list[Row]) -> Any:
    return {
        name: np.ma.array([row[name] or 0 for row in rows], mask=[row[name] is None for row in rows])
        if name in "abf"
        else [row[name] for row in rows]
        for name in NAMES
    }


def _polars(rows: list[Row]) -> Any:
    return pl.DataFrame(rows, schema={"id": pl.Int64, "a": pl.Int32, "b": pl.Int64, "s": pl.Utf8, "f": pl.Float64})


def _updated(values: Callable[[Row], dict[str, Any]]) -> Door:
    """Rows that break nothing are there; then they get their values."""

    def put(db: Any, rows: list[Row]) -> None:
        with db.transaction() as txn:
            for row in rows:
                txn.insert(NAME, {"id": row["id"]})
                txn.update(NAME, row["id"], values(row))

    return put


def _where(db: Any, rows: list[Row]) -> None:
    with db.transaction() as txn:
        txn.insert_many(NAME, [{"id": row["id"]} for row in rows])
        for row in rows:
            txn.update_where(NAME, _others(row), where=(tm.col("id") == row["id"]) & tm.col("a").is_null())


def _others(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "id"}


def _update_many(db: Any, rows: list[Row]) -> None:
    with db.transaction() as txn:
        txn.insert_many(NAME, [{"id": row["id"]} for row in rows])
        txn.update_many(NAME, _arrow(rows))


def _upserted(db: Any, rows: list[Row]) -> None:
    """Half of the rows are there."""
    with db.transaction() as txn:
        txn.insert_many(NAME, [{"id": row["id"]} for row in rows[::2]])
        txn.upsert_many(NAME, _arrow(rows))


def _upsert_by_expression(db: Any, rows: list[Row]) -> None:
    with db.transaction() as txn:
        for row in rows:
            txn.insert(NAME, {"id": row["id"], "s": row["s"], "f": row["f"]})
            txn.upsert(NAME, row, {"a": row["a"], "b": row["b"]})


def _in_savepoint(db: Any, rows: list[Row]) -> None:
    with db.transaction() as txn, txn.savepoint():
        txn.insert_many(NAME, rows)


def _by_client(db: Any, rows: list[Row]) -> None:
    with client_of(db) as remote:
        remote[NAME].insert_many(rows)


def _loaded(db: Any, rows: list[Row]) -> None:
    """By load files, as tasks write them anywhere; `load` inserts few rows as `insert_many` does."""
    job, place = db.plan_load(NAME), own_place(db)
    batches = [each.columns for each in to_columns(_arrow(rows), db[NAME].definition, fill_in=True)]
    try:
        load.publish(job, load.write_parts(job, 0, batches, 0, place), place)
        db.adopt(job)
    except tm.LoadRefused:
        load.abort(job, place=place)
        raise


DOORS: dict[str, Door] = {
    "insert": _each("insert"),
    "write": _each("write"),
    "upsert": _each("upsert"),
    "insert_many of rows": lambda db, rows: db[NAME].insert_many(rows),
    "insert_many of Arrow": _many("insert_many", _arrow),
    "insert_many of columns": _many("insert_many", _text),
    "insert_many of NumPy": _many("insert_many", _numpy),
    "write_many of polars": _many("write_many", _polars),
    "write_many of Arrow": _many("write_many", _arrow),
    "upsert_many": _upserted,
    "update": _updated(_others),
    "upsert by an expression": _upsert_by_expression,
    "update_where": _where,
    "update_many": _update_many,
    "in a savepoint": _in_savepoint,
    "a client": _by_client,
    "load": _loaded,
}


@contextmanager
def store(rules: dict[str, Any] | None = None) -> Iterator[Any]:
    with open_memory(data_memory="32 MiB", redo_log="8 MiB") as db:
        checks = {name: each.condition for name, each in (rules or {}).items()}
        db.create_table(NAME, COLUMNS, "id", tm.HashPartition(2), checks=checks)
        yield db


@pytest.mark.parametrize("seed", fresh_seeds(2))
@pytest.mark.parametrize("door", DOORS)
def test_rows_are_refused_as_plain_python_refuses_them(door: str, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        rules = {f"check {number}": rule(rng) for number in range(rng.randrange(1, 4))}
        empty = dict.fromkeys(NAMES) | {"id": 0}
        if broken(rules, empty):
            continue  # updates begin with such rows
        with store(rules) as db:
            key = 0
            for size in (1, 1, 3, 9):
                rows = [row_of(rng, key + number) for number in range(size)]
                if door == "update_where":
                    rows = [{**row, "a": row["a"] or 1} for row in rows]
                if door == "upsert by an expression":
                    half = [row | {"a": None, "b": None} for row in rows]
                    rows = [row for row, before in zip(rows, half, strict=True) if not broken(rules, before)]
                    if not rows:
                        continue
                key += size
                before = rows_of(db, NAME)
                wrong = {row["id"]: found for row in rows if (found := broken(rules, row))}
                if not wrong:
                    DOORS[door](db, rows)
                    assert rows_of(db, NAME) == before | {row["id"]: tuple(row.values()) for row in rows}
                    continue
                with pytest.raises((tm.CheckFailed, tm.LoadRefused)) as caught:
                    DOORS[door](db, rows)
                assert rows_of(db, NAME) == before, (door, rows)
                if caught.type is tm.CheckFailed:
                    error: Any = caught.value
                    assert error.check == wrong[error.key][0] and error.table == NAME and not error.retryable
                    row = next(each for each in rows if each["id"] == error.key)
                    assert error.values == {name: row[name] for name in error.values}
                else:
                    assert caught.value.evidence["refused"] == len(wrong)
            assert db.check()["is_sound"]


@pytest.mark.parametrize("seed", fresh_seeds(4))
def test_calls_of_one_row_refuse_the_same(seed: int) -> None:
    """Without a check the second call of a kind is made by a kernel, in place of the general path."""
    rng = random.Random(seed)
    rules = {"one": rule(rng), "other": rule(rng)}
    with store(rules) as db:
        table, model = db[NAME], {}
        for _ in range(150):
            row = row_of(rng, rng.randrange(6))
            call = rng.choice(["insert", "write", "update", "expression", "update in a transaction", "write in one"])
            key, held = row["id"], model.get(row["id"])
            if held is None and call not in ("insert", "write", "write in one"):
                continue
            if call == "insert" and held is not None:
                continue
            after = dict(row)
            if call == "expression":
                after = {**held, "b": None if held["a"] is None else held["a"] + 1}
            elif call.startswith("update"):
                after = {**held, "a": row["a"], "s": row["s"]}
            do: dict[str, Callable[[Any], Any]] = {
                "insert": lambda at, row=row: at.insert(row),
                "write": lambda at, row=row: at.write(tuple(row.values())),
                "update": lambda at, row=row, key=key: at.update(key, {"a": row["a"], "s": row["s"]}),
                "expression": lambda at, key=key: at.update(key, {"b": tm.col("a") + 1}),
            }
            if call == "update in a transaction":
                make = lambda row=row, key=key: db.run(  # noqa: E731
                    lambda txn: txn.update(NAME, key, {"a": row["a"], "s": row["s"]})
                )
            elif call == "write in one":
                make = lambda row=row: db.run(lambda txn: txn.write(NAME, tuple(row.values())))  # noqa: E731
            else:
                make = lambda call=call, do=do: do[call](table)  # noqa: E731
            wrong = broken(rules, after)
            if wrong:
                with pytest.raises(tm.CheckFailed) as caught:
                    make()
                assert caught.value.evidence["check"] == wrong[0]
            else:
                make()
                model[key] = after
            assert rows_of(db, NAME) == {key: tuple(row.values()) for key, row in model.items()}


def test_a_refusal_names_table_check_key_and_values() -> None:
    with store() as db:
        db.add_check(NAME, "small", (tm.col("a") < 3) | (tm.col("s") == "big"))
        with pytest.raises(tm.CheckFailed) as caught:
            db[NAME].insert_many([(1, 1, None, None, None), (7, 5, None, "x" * 8, None)])
        assert str(caught.value) == (
            "test.t: check small is false for row 1, the row with key 7, where a is 5, s is 'xxxxxxxx';"
            " nothing was changed, give other values"
        )
        assert caught.value.evidence["values"] == {"a": 5, "s": "xxxxxxxx"} and caught.value.evidence["row"] == 1
        assert isinstance(caught.value, tm.Rejected)


def test_a_check_that_cannot_be_evaluated_refuses_the_row() -> None:
    with store() as db:
        db.add_check(NAME, "product", tm.col("b") * tm.col("b") >= 0)
        db[NAME].insert({"id": 1, "b": 7})
        for call in (lambda: db[NAME].insert({"id": 2, "b": 1 << 62}), lambda: db[NAME].update(1, {"b": 1 << 62})):
            with pytest.raises(tm.CheckFailed, match="check product cannot be evaluated .a number does not fit"):
                call()
        assert len(db[NAME]) == 1


def test_typed_rows_and_files_are_checked(tmp_path: Path) -> None:
    @dataclass
    class Item:
        id: int
        cents: int

    with tm.open(tmp_path / "store", data_memory="16 MiB", redo_log="16 MiB", background=False) as db:
        item = db.create_table("item", Item, "id", checks={"positive": tm.col("cents") >= 0})
        item.insert(Item(1, 5))
        with pytest.raises(tm.CheckFailed):
            item.insert(Item(2, -5))
        with pytest.raises(tm.CheckFailed):
            item.upsert(Item(1, -5))
        good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
        good.write_text("id,cents\n3,7\n")
        bad.write_text("id,cents\n4,7\n5,-7\n6,-8\n")
        db.load("item", good)
        with pytest.raises(tm.CheckFailed) as caught:
            db.load("item", bad)
        assert caught.value.evidence["key"] == 5 and caught.value.evidence["row"] == 1
        assert sorted(row.id for row in item) == [1, 3]
    with tm.open(tmp_path / "store", data_memory="16 MiB", redo_log="16 MiB", background=False) as db:
        with pytest.raises(tm.CheckFailed):
            db["item"].update(1, {"cents": tm.col("cents") - 100})
        assert [check.name for check in db["item"].definition.checks] == ["positive"]
        assert db.check()["is_sound"]


def test_a_check_is_added_if_no_row_breaks_it() -> None:
    with store() as db:
        db[NAME].insert_many([(number, number, None, None, None) for number in range(3_000)])
        with pytest.raises(tm.CheckFailed, match="check low cannot be added: it is false for the row") as caught:
            db.add_check(NAME, "low", tm.col("a") < 2_999)
        assert caught.value.evidence["key"] == 2_999 and caught.value.evidence["values"] == {"a": 2_999}
        assert not db[NAME].definition.checks
        db[NAME].insert({"id": 5_000, "a": 5_000})  # nothing is left of it
        db.add_check(NAME, "low", tm.col("a") <= 5_000)
        with pytest.raises(tm.CheckFailed):
            db[NAME].insert({"id": 5_001, "a": 5_001})
        db.drop_check(NAME, "low")
        db[NAME].insert({"id": 5_001, "a": 5_001})
        with pytest.raises(tm.SchemaInvalid, match="test.t has no check str 'low'; known: none"):
            db.drop_check(NAME, "low")


def test_an_open_transaction_keeps_a_check_from_being_added() -> None:
    """A transaction that was open before may have a row that breaks the check."""
    with store() as db:
        txn = db.transaction()
        txn.insert(NAME, {"id": 1, "a": -1})
        with pytest.raises(tm.LockTimeout, match="1 transaction begun before check positive"):
            db.add_check(NAME, "positive", tm.col("a") >= 0)
        txn.commit()
        with pytest.raises(tm.CheckFailed):
            db.add_check(NAME, "positive", tm.col("a") >= 0)
        db[NAME].delete(1)
        before = db.transaction()  # it has not begun
        db.add_check(NAME, "positive", tm.col("a") >= 0)
        with pytest.raises(tm.CheckFailed):
            before.insert(NAME, {"id": 1, "a": -1})
        before.rollback()


def test_plans_made_before_a_check_are_not_used() -> None:
    """Kernels know a table by a plan, which is made by the first calls."""
    with store() as db:
        table = db[NAME]
        table.insert({"id": 0, "a": 0})
        for number in range(1, 4):
            table.insert((number, 1, None, None, None))
            table.update(number, {"a": 2})
        db.add_check(NAME, "positive", tm.col("a") >= 0)
        for _ in range(3):
            with pytest.raises(tm.CheckFailed):
                table.update(1, {"a": -1})
            with pytest.raises(tm.CheckFailed):
                table.insert((9, -1, None, None, None))
            table.update(1, {"a": 3})
        txn = db.transaction()
        txn.update(NAME, 1, {"a": 4})
        with pytest.raises(tm.CheckFailed):
            txn.update(NAME, 1, {"a": -1})
        assert txn.get(NAME, 1).a == 4
        txn.commit()
        db.drop_check(NAME, "positive")
        table.update(1, {"a": -1})


def test_rows_are_checked_while_a_check_is_being_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a row that came after the reader had passed its place would have been in the table with the check."""
    with store() as db:
        table = db[NAME]
        for number in range(3):
            table.insert((number, 1, None, None, None))
            table.update(number, {"a": 2})
        read, refused = check_build.committed_batches, []

        def batches(*given: Any) -> Any:
            for call in (lambda: table.insert((9, -1, None, None, None)), lambda: table.update(1, {"a": -1})):
                with pytest.raises(tm.CheckFailed) as caught:
                    call()
                refused.append(caught.value.evidence["key"])
            with pytest.raises(tm.SchemaInvalid, match="check positive and cannot be changed"):
                db.rename_column(NAME, "a", "amount")
            with pytest.raises(tm.SchemaInvalid, match="a check positive is being added"):
                db.add_check(NAME, "positive", tm.col("b") >= 0)
            db.rename_column(NAME, "s", "text")
            monkeypatch.setattr(check_build, "committed_batches", read)
            yield from read(*given)

        monkeypatch.setattr(check_build, "committed_batches", batches)
        db.add_check(NAME, "positive", tm.col("a") >= 0)
        assert refused == [9, 1] and [check.name for check in table.definition.checks] == ["positive"]
        assert table.definition.columns[3].name == "text"


def test_columns_of_a_check() -> None:
    with store() as db:
        db.add_check(NAME, "positive", (tm.col("a") >= 0) & (tm.col("s") != "a"))
        with pytest.raises(tm.SchemaInvalid, match="test.t.a is read by check positive and cannot be dropped"):
            db.drop_column(NAME, "a")
        db.rename_column(NAME, "a", "amount")
        db.widen_column(NAME, "s", tm.VarChar(30))
        db.add_column(NAME, tm.Column("c", tm.Int32, default=1))
        db.rename(NAME, "test.u")
        with pytest.raises(tm.CheckFailed) as caught:
            db["test.u"].insert({"id": 1, "amount": -1})
        assert caught.value.evidence["values"] == {"amount": -1, "s": None}
        db.add_check("test.u", "c", tm.col("c") > 0)
        db["test.u"].insert({"id": 1, "amount": 1})
        for _ in range(2):
            with pytest.raises(tm.CheckFailed):
                db["test.u"].update(1, {"c": 0})
        db.drop_check("test.u", "positive")
        db.drop_column("test.u", "amount")
        db["test.u"].insert({"id": 2, "s": "a"})
        assert db.check()["is_sound"]


def test_a_definition_that_cannot_be_is_refused() -> None:
    with store() as db:
        columns = [tm.Column("id", tm.Int64), tm.Column("cold", tm.Int64, storage="disk")]
        wrong: list[tuple[Any, type[tm.Error], str]] = [
            ({"c": tm.col("x") > 0}, tm.NoSuchColumn, "has no column 'x'"),
            ({"c": tm.col("id") + 1}, tm.ProgramInvalid, "check c: .*a condition is needed"),
            ({"c": tm.col("cold") > 0}, tm.SchemaInvalid, "check c: main.d.cold is a disk column"),
            ({"c": True}, tm.SchemaInvalid, "check str 'c' must be an expression"),
            ({" ": tm.col("id") > 0}, tm.InvalidName, "check name"),
            ([tm.col("id") > 0], tm.SchemaInvalid, "checks are given by name"),
            ({"c": tm.col("id") == object()}, tm.TypeMismatch, "a check cannot keep"),
        ]
        for checks, kind, text in wrong:
            with pytest.raises(kind, match=text):
                db.create_table("d", columns, "id", checks=checks)
            assert "d" not in db
        with pytest.raises(tm.ProgramInvalid):
            db.add_check(NAME, "c", tm.col("a") + 1)
        db.add_check(NAME, "c", tm.col("a") > 0)
        with pytest.raises(tm.SchemaInvalid, match="test.t has a check c; choose another name"):
            db.add_check(NAME, "c", tm.col("a") > 1)
        with pytest.raises(tm.SchemaInvalid):
            db.add_check("mysql.ndb_apply_status", "c", tm.col("server_id") > 1)


def test_a_load_planned_before_a_check_is_refused() -> None:
    with new_store() as db:
        job = db.plan_load("test.t")
        reports = load.write_parts(job, 0, [batch(rows(0, 50))], 0, own_place(db))
        load.publish(job, reports, own_place(db))
        db.add_check("test.t", "few", tm.col("n") < 40)
        with pytest.raises(tm.LoadRefused, match="columns, checks or partitions of test.t were changed"):
            db.adopt(job)
        assert len(db["test.t"]) == 0


def test_the_check_of_a_store_reports_rows_that_break_a_check() -> None:
    """Rows of another site are put as they are."""
    with store() as db:
        db.add_check(NAME, "positive", tm.col("a") >= 0)
        inner = db.parts.store
        txn = inner.transactions.begin(kind=DecidedTransaction)
        insert_many(txn, inner.tables.named(NAME), [(1, 1, None, None, None), (2, -2, None, None, None)])
        txn.commit()
        report = db.check()
        assert not report["is_sound"]
        assert [each for each in report["problems"] if "with key 2 breaks check positive" in each] and len(
            report["problems"]
        ) == 1
        with pytest.raises(tm.CheckFailed):
            db[NAME].update(2, {"b": 1})
        db[NAME].update(2, {"a": 2})
        assert db.check()["is_sound"]


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            True,
            0,
            -(1 << 70),
            1.5,
            float("inf"),
            "ä\\'",
            b"\0a",
            decimal.Decimal("1.50"),
            datetime.date(2026, 1, 2),
        ),
        *(datetime.datetime(2026, 1, 2, 3, 4, 5, 6), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)),
        *(datetime.time(1, 2, 3), datetime.timedelta(days=-1, microseconds=5), uuid.UUID(int=7)),
    ],
)
def test_constants_of_a_check_are_kept(value: Any) -> None:
    kept = from_text(to_text(tm.col("x").isin([value]) | tm.col("y").like("a%")))
    found: Any = kept
    constant = found.operands[0].values[0].value
    assert constant == value and type(constant) is type(value)
    assert to_text(kept) == to_text(tm.col("x").isin([value]) | tm.col("y").like("a%"))


@pytest.mark.parametrize("text", ["", "[]", "7", '[["Col",0]]', '[["Nothing",0,1]]', '[["Col",0,{"float":"x"}]]'])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(InvalidNodes):
        from_text(text)
