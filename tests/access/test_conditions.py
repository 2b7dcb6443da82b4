"""Scans with conditions: where rows lie and over copies, own changes, last rows, errors, partitions, locks, sums."""

from __future__ import annotations

import random
from decimal import Context, Decimal
from typing import Any

import pytest

import tidemark as tm
from tests.access.queries import COLUMNS, KIND, Maker, row_of
from tests.elsewhere import OWN_LOCK
from tests.shares import few
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.condition_ranges import known_of
from tidemark.engine.queries.conditions import Condition
from tidemark.engine.queries.program_scans import scan_where
from tidemark.engine.schema.partition_pruning import partitions_for

pytestmark = pytest.mark.usefixtures("storage")

PLAIN = [
    tm.Column("id", tm.Int64),
    tm.Column("n", tm.Int64, nullable=True),
    tm.Column("x", tm.Float64, nullable=True),
    tm.Column("price", tm.Decimal(38, 2), nullable=True),
    tm.Column("whole", tm.Decimal(18, 0), nullable=True),
    tm.Column("day", tm.Date, nullable=True),
    tm.Column("name", tm.VarChar(20), nullable=True),
]


def plain(db: tm.Database, rows: int, **options: Any) -> tm.TableHandle:
    table = db.create_table("test.t", PLAIN, "id", **{"partition": tm.HashPartition(1), **options})
    table.insert_many([(key, key, key / 2, None, None, None, f"n{key}") for key in range(rows)])
    return table


def ids(scan: Any) -> list[int]:
    return [row[0] for row in scan]


def keys_found(table: tm.TableHandle, txn: Any, condition: Condition, limit: int | None) -> list[int]:
    found = []
    for batch in scan_where(table.table, txn, condition, limit, ["id"]):
        for offset in batch.offsets.tolist():
            found.append(int(batch.entries[offset]))
    return found


@pytest.mark.parametrize("seed", range(few(2, 4)))
def test_scan_in_place_and_over_copies_find_what_the_rows_say_own_changes_included(db: tm.Database, seed: int) -> None:
    print("seed", seed)
    r = random.Random(seed)
    rows = {key: row_of(r, key) for key in range(1_200)}
    table = db.create_table("test.t", COLUMNS, "id", partition=tm.HashPartition(3))
    table.insert_many(list(rows.values()))
    names = [column.name for column in COLUMNS]
    with db.transaction() as txn:
        for key in r.sample(range(1_200), 300):
            if r.random() < 0.3:
                txn.delete("test.t", key)
                del rows[key]
            else:
                rows[key] = row_of(r, key)
                txn.write("test.t", rows[key])
        for key in range(1_200, 1_230):
            rows[key] = row_of(r, key)
            txn.insert("test.t", rows[key])
        maker = Maker(r, list(rows.values()), names)
        for _ in range(60):
            expression, _ = maker.condition()
            condition = Condition(table.definition, expression)
            limit = r.choice([None, None, 0, 1, 5, 100])
            in_place = keys_found(table, txn, condition, limit)
            condition.cost = None
            assert in_place == keys_found(table, txn, condition, limit)
            committed = keys_found(table, None, condition, None)
            alone = Condition(table.definition, expression)
            assert keys_found(table, None, alone, None) == committed
        # The implications of a condition for a column are simple enough to be derived again in Python.
        for _ in range(30):
            name = r.choice(["i64", "f64", "day"])
            value = maker.value(name)
            place = list(KIND).index(name)
            expected = [row[0] for row in txn.scan("test.t") if row[place] is not None and row[place] < value]
            assert ids(txn.scan("test.t", ["id"], where=tm.col(name) < value)) == expected
            assert set(expected) <= rows.keys()
        txn.rollback()


def test_limit_counts_accepted_rows_and_ends_before_a_row_with_an_error(db: tm.Database) -> None:
    table = plain(db, 2_000)
    table.update(1_500, {"n": 2**63 - 1})
    wide = tm.col("n") + 1 > 1_000
    assert ids(table.scan(["id"], limit=400, where=wide)) == list(range(1_000, 1_400))
    assert ids(table.scan(["id"], limit=500, where=wide)) == list(range(1_000, 1_500))
    with pytest.raises(tm.ValueOutOfRange, match=r"test\.t: .* in the row with key 1500") as caught:
        list(table.scan(["id"], limit=501, where=wide))
    assert caught.value.key == 1_500 and caught.value.code == p.PE_OVERFLOW
    with pytest.raises(tm.ValueOutOfRange, match="key 1500"):
        table.scan(where=wide).count()
    with pytest.raises(tm.ValueOutOfRange, match="key 1500"):
        table.scan().sum(tm.col("n") + 1)


def test_last_row_of_a_program_ends_the_whole_scan(db: tm.Database) -> None:
    table = plain(db, 3_000, partition=tm.HashPartition(4))
    order = ids(table.scan(["id"]))
    last = order[2_000]
    asm = tm.Assembler(table.definition)
    asm.branch_column("eq", "id", last, "last")
    asm.exit_ok()
    asm.label("last")
    asm.exit_last()
    program = asm.finish()
    assert ids(table.scan(["id"], where=program)) == order[:2_001]
    assert ids(table.scan(where=program)) == order[:2_001]
    assert table.scan(where=program).count() == 2_001
    with db.transaction() as txn:
        txn.update("test.t", order[1_999], {"n": -1})
        assert ids(txn.scan("test.t", ["id"], where=program)) == order[:2_001]
        assert ids(txn.scan("test.t", ["id"], lock="exclusive", where=program)) == order[:2_001]


def test_program_with_loop_or_of_another_table_or_that_writes(db: tm.Database) -> None:
    table = plain(db, 20)
    asm = tm.Assembler(table.definition)
    asm.load_const(0, 3)
    asm.load_const(1, 1)
    asm.load_const(2, 0)
    asm.label("again")
    asm.sub(0, 0, 1)
    asm.branch_registers("gt", 0, 2, "again")
    asm.branch_column("lt", "id", 7, "ok")
    asm.exit_refuse()
    asm.label("ok")
    asm.exit_ok()
    program = asm.finish()
    assert program.facts.cost is None
    assert ids(table.scan(["id"], where=program)) == list(range(7))
    other = db.create_table("test.o", PLAIN[:2], "id")
    with pytest.raises(tm.ProgramInvalid, match=r"test\.o: the program was built for another definition"):
        other.scan(where=program)
    writing = tm.Assembler(table.definition, updates=True)
    writing.load_const(0, 1)
    writing.write("n", 0)
    writing.exit_ok()
    with pytest.raises(tm.ProgramInvalid, match="a condition must not write columns"):
        table.scan(where=writing.finish())
    with pytest.raises(tm.TypeMismatch, match="where must be an expression or a Program, got bool True"):
        table.scan(where=True)  # type: ignore[arg-type]
    with pytest.raises(tm.NoSuchColumn):
        table.scan(where=tm.col("nowhere") == 1)


def test_pseudo_columns_say_what_hidden_columns_say(db: tm.Database) -> None:
    table = plain(db, 600, partition=tm.HashPartition(2))
    db.parts.clockwork.advance_gci()
    table.update(5, {"n": 0})
    epochs = {row[0]: row[1] for row in table.scan(["id", tm.EPOCH])}
    fragments = {row[0]: row[1] for row in table.scan(["id", tm.FRAGMENT])}

    def found(pseudo: str, condition: str, number: int) -> list[int]:
        asm = tm.Assembler(table.definition)
        asm.read_pseudo(0, pseudo)
        asm.load_const(1, number)
        asm.branch_registers(condition, 0, 1, "ok")
        asm.exit_refuse()
        asm.label("ok")
        asm.exit_ok()
        return ids(table.scan(["id"], where=asm.finish()))

    assert found("epoch", "ge", epochs[5]) == [5]
    for number in range(2):
        assert found("fragment", "eq", number) == [key for key, each in fragments.items() if each == number]


def test_scan_with_lock_judges_each_row_again_under_its_lock_and_limit_counts_those(db: tm.Database) -> None:
    table = plain(db, 100)
    with db.transaction() as txn:
        scan = txn.scan("test.t", ["id"], lock="exclusive", limit=3, where=tm.col("n") < 10)
        assert next(scan).id == 0
        table.update(1, {"n": 50})
        table.delete(2)
        assert ids(iter(lambda: next(scan, None), None)) == [3, 4]
        with pytest.raises(tm.Rejected, match=OWN_LOCK):
            table.update(3, {"n": 0})


@pytest.mark.parametrize("columns", [None, ["day", "id"]])
def test_scan_with_lock_as_arrow_has_locked_what_it_gives(db: tm.Database, columns: list[str] | None) -> None:
    """Story: only rows taken one by one were locked; `scan(lock="exclusive").to_arrow()` gave them unlocked."""
    table = plain(db, 2_500)
    whole = table.scan(columns).to_arrow()
    with db.transaction() as txn:
        assert txn.scan("test.t", columns, lock="exclusive").to_arrow().sort_by("id") == whole.sort_by("id")
        with pytest.raises(tm.Rejected, match=OWN_LOCK):
            table.update(3, {"n": 0})


def test_sums_of_nothing_of_nulls_and_of_the_largest_decimals(db: tm.Database) -> None:
    table = db.create_table("test.t", PLAIN, "id", partition=tm.HashPartition(1))
    assert tuple(table.scan().aggregate(s=("sum", "n"), n=("count",), m=("mean", "x"))) == (None, 0, None)
    greatest = Decimal(10**38 - 1).scaleb(-2, Context(60))
    table.insert_many([(key, None, None, greatest, key, None, None) for key in range(1_000)])
    assert table.scan().sum("n") is None
    assert table.scan().count("n") == 0
    assert table.scan().sum("price") == Decimal(1_000 * (10**38 - 1)).scaleb(-2, Context(60))
    whole = table.scan().sum("whole")
    assert whole == 499_500 and isinstance(whole, Decimal)
    assert table.scan().mean("whole") == Decimal("499.5")
    assert table.scan(limit=10).sum("whole") == 45
    assert table.scan(where=tm.col("whole") > 997).aggregate(total=("sum", "whole"), n=("count",)) == (1_997, 2)
    assert table.scan().max("day") is None
    assert table.scan().min("name") is None
    for function in ("sum", "mean"):
        with pytest.raises(tm.ProgramInvalid):
            table.scan().aggregate(bad=(function, "name"))
    with pytest.raises(tm.SchemaInvalid):
        table.scan().aggregate(bad=("sum",))
    with pytest.raises(tm.ProgramInvalid, match="median"):
        table.scan().aggregate(bad=("median", "n"))


PARTITIONS = [
    tm.HashPartition(5),
    tm.KeyPartition(4, ["b"]),
    tm.RangePartition(["a"], [("p0", -5), ("p1", 0), ("p2", 7), ("p3", tm.MAXVALUE)]),
    tm.RangePartition(["a", "b"], [("p0", (-5, "m")), ("p1", (0, "b")), ("p3", (tm.MAXVALUE, tm.MAXVALUE))]),
    tm.ListPartition(["b"], {"p0": ["a", "b"], "p1": ["x", "y"], "p2": ["", "zz"]}),
]


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda each: type(each).__name__)
def test_partitions_left_out_have_no_row_a_condition_accepts(db: tm.Database, partition: Any) -> None:
    r = random.Random(9)
    columns = [tm.Column("a", tm.Int32), tm.Column("b", tm.VarChar(4)), tm.Column("c", tm.Int64)]
    table = db.create_table("test.t", columns, ("a", "b"), partition=partition)
    letters = ["a", "b", "x", "y", "", "zz"]
    table.insert_many([(a, b, a * 2) for a in range(-12, 13) for b in letters])
    numbers: list[Any] = [-12, -5, 0, 3, 6.5, 7, 12, None, 2**40]

    def leaf() -> Any:
        name = r.choice("aabbc")
        value = r.choice(numbers if name != "b" else [*letters, "m", None, "longer than it"])
        column = tm.col(name)
        compared: list[Any] = [
            lambda: column == value,
            lambda: column < value,
            lambda: column >= value,
            lambda: value > column,  # type: ignore[operator]
            lambda: column != value,
        ]
        others: list[Any] = [
            lambda: column.is_null(),
            lambda: column.isin([value, r.choice(letters if name == "b" else numbers)]),
            lambda: column.between(value, r.choice(["n", "zz"] if name == "b" else [0, 5, 9])),
            lambda: tm.col("c") > tm.col("a"),
        ]
        return r.choice(others if value is None else compared + others)()

    def tree(depth: int) -> Any:
        if depth == 0 or r.random() < 0.2:
            return leaf()
        node = tree(depth - 1) & tree(depth - 1) if r.random() < 0.65 else tree(depth - 1) | tree(depth - 1)
        return ~node if r.random() < 0.15 else node

    left_out = 0
    for _ in range(250):
        where = tree(3)
        condition = Condition(table.definition, where)
        pruned = keys_of(table, condition)
        kept = condition.numbers(table.table, None)
        assert set(kept) >= set(partitions_for(table.definition, known_of(where)))
        condition.known = {}
        assert pruned == keys_of(table, condition)
        left_out += len(table.partitions()) - len(kept)
    assert left_out > 30


def keys_of(table: tm.TableHandle, condition: Condition) -> list[Any]:
    found = []
    for batch in scan_where(table.table, None, condition, None, ["a", "b"]):
        found += zip(batch.fragments().tolist(), batch.rowids().tolist(), strict=True)
    return found
