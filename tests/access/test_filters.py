"""Filters, the kernels for conditions of a few tests: they find and add up what the machine does, for all types, joints
and constants, with own changes and beside writers.
"""

from __future__ import annotations

import math
import operator
import random
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.interpreter.generate import value_of
from tests.shares import few
from tidemark.engine.base.errors import Rejected
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.compiled import compile_aggregates
from tidemark.engine.programs.decisions import TESTS_MAX
from tidemark.engine.queries import filters, program_scans
from tidemark.engine.queries.conditions import Condition
from tidemark.engine.types import Boolean, Enum, Floating, Integer
from tidemark.engine.types import Decimal as DecimalType

KINDS: dict[str, Any] = {
    **{f"i{bits}": getattr(tm, f"Int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(tm, f"UInt{bits}") for bits in (8, 16, 32, 64)},
    "f32": tm.Float32,
    "f64": tm.Float64,
    "flag": tm.Bool,
    "kind": tm.Enum("a", "b", "ü"),
    "small": tm.Decimal(9, 2),
    "word": tm.Decimal(18, 0),
    "day": tm.Date,
    "time": tm.Time,
    "moment": tm.DateTime,
    "stamp": tm.Timestamp,
}
# Each type once never NULL and once with NULLs, and columns that no test reads.
COLUMNS = [
    tm.Column("id", tm.Int64),
    *[tm.Column(name, kind) for name, kind in KINDS.items()],
    *[tm.Column(f"{name}_n", kind, nullable=True) for name, kind in KINDS.items()],
    tm.Column("wide", tm.Decimal(38, 10), nullable=True),
    tm.Column("name", tm.VarChar(20), nullable=True),
]
COMPARISONS: list[Any] = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
ADDED = [*[name for name in KINDS if name not in ("flag", "kind")], "wide"]
SUMMED = [name for name in ADDED if isinstance(KINDS.get(name, tm.Int8), (Integer, Floating, DecimalType))]
PAST_SINGLES = math.nextafter(float(np.finfo(np.float32).max), math.inf)  # rounded to the greatest single
ODD = [0, 1, -1, 2.5, -0.0, math.nan, math.inf, -math.inf, 2**63, -(2**63) - 1, 2**64, 1e-320, 1e39, -1e39, 0.1]
ODD += [PAST_SINGLES, -PAST_SINGLES]


def row_of(r: random.Random, key: int) -> tuple[Any, ...]:
    values: list[Any] = [key]
    for column in COLUMNS[1:]:
        few_values = isinstance(column.type, (Integer, Floating)) and r.random() < 0.5
        value = column.type.loaded(column.type.stored(r.randint(0, 4))) if few_values else value_of(column.type, r)
        values.append(None if column.nullable and r.random() < 0.25 else value)
    return tuple(values)


def leaf_of(
    r: random.Random, rows: list[tuple[Any, ...]], columns: list[tm.Column], tested: list[tm.Column]
) -> tm.Expression:
    """One test, often at the border of what is there."""
    column = r.choice(tested)
    kind = column.type
    if r.random() < 0.15:
        return tm.col(column.name).is_null() if r.random() < 0.5 else tm.col(column.name).is_not_null()
    if isinstance(kind, Boolean) and r.random() < 0.5:
        return tm.col(column.name)
    place = [each.name for each in columns].index(column.name)
    value = r.choice(rows)[place] if r.random() < 0.7 else value_of(kind, r)
    value = value_of(kind, r) if value is None else value
    if isinstance(kind, (Integer, Floating)) and r.random() < 0.25:
        value = r.choice(ODD)
    if isinstance(kind, DecimalType) and r.random() < 0.25:
        value = r.choice([Decimal("0.005"), Decimal("1e20"), Decimal("-1e20"), 1, 0.5])
    if r.random() < 0.1:
        other = r.choice(ODD) if isinstance(kind, (Integer, Floating)) else value
        return tm.col(column.name).isin([value, other] if r.random() < 0.5 else [other])
    compare = r.choice(COMPARISONS[:2] if isinstance(kind, (Boolean, Enum)) else COMPARISONS)
    found: tm.Expression = compare(tm.col(column.name), value)
    return found


def condition_of(
    r: random.Random,
    rows: list[tuple[Any, ...]],
    columns: list[tm.Column] = COLUMNS,
    tested: list[tm.Column] = COLUMNS[:-2],
) -> tm.Expression:
    """One to three tests, joined in any way. columns: of the rows; tested: those that a test may read."""
    leaves = [leaf_of(r, rows, columns, tested) for _ in range(r.randint(1, TESTS_MAX))]
    while len(leaves) > 1:
        one, other = leaves.pop(), leaves.pop()
        joined = one & other if r.random() < 0.5 else one | other
        leaves.insert(r.randint(0, len(leaves)), ~joined if r.random() < 0.2 else joined)
    return ~leaves[0] if r.random() < 0.2 else leaves[0]


def aggregates_of(r: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": ("count",)}
    for number in range(r.randint(0, 4)):
        function = r.choice(["count", "sum", "min", "max", "mean"])
        name = r.choice(SUMMED if function in ("sum", "mean") else ADDED)
        name = name if name == "wide" or r.random() < 0.5 else f"{name}_n"
        found[f"a{number}"] = (function, name if r.random() < 0.5 else tm.col(name))
    return found


def recorded(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[int]:
    """What calls of a kernel by a module return from now on."""
    real: Any = getattr(module, name)
    found: list[int] = []

    def call(*given: Any) -> int:
        found.append(int(real(*given)))
        return found[-1]

    monkeypatch.setattr(module, name, call)
    return found


class Twins:
    """Asks each question twice: of filters where there is one, and of the machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.asked = 0
        self._by_filter = recorded(monkeypatch, program_scans, "scan_filter")

    def check(self, ask: Any, *given: Any, **options: Any) -> Any:
        """Return the answer, which is the same both times, to the last bit."""
        before = len(self._by_filter)
        found = repr(ask(*given, **options))
        self.asked += len(self._by_filter) > before
        with self._monkeypatch.context() as patched:
            patched.setattr(program_scans, "filter_of", lambda *_: None)
            assert repr(ask(*given, **options)) == found
        return found


def ids(scan: Any, **given: Any) -> list[int]:
    return [row.id for row in scan(**given)]


def added_up(scan: Any, functions: dict[str, Any], **given: Any) -> Any:
    return scan(**given).aggregate(**functions)


def changed(db: tm.Database, where: tm.Expression) -> Any:
    """What changes with the condition do, which are then taken back."""
    with db.transaction() as txn:
        count = txn.update_where("test.t", {"i64": 77, "i32_n": None}, where)
        more = txn.delete_where("test.t", where)
        left = [tuple(row) for row in txn.scan("test.t", ["id", "i64", "i32_n"])]
        txn.rollback()
    return count, more, left


@pytest.mark.parametrize("seed", range(few(3, 30)))
def test_filters_find_and_add_up_what_the_machine_does(
    db: tm.Database, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print("seed", seed)
    r = random.Random(seed)
    monkeypatch.setattr(program_scans, "FILTER_SLOTS", r.choice([1, 600, 32_768]))
    kept = {key: row_of(r, key) for key in range(1_500)}
    table = db.create_table("test.t", COLUMNS, "id", partition=tm.HashPartition(r.choice([1, 3])))
    table.insert_many(list(kept.values()))
    for key in r.sample(range(1_500), 300):
        table.delete(key)
        del kept[key]
    rows = list(kept.values())
    twins = Twins(monkeypatch)
    txn = db.transaction()
    for key in r.sample(sorted(kept), 40):
        txn.delete("test.t", key) if r.random() < 0.3 else txn.write("test.t", row_of(r, key))
    for key in range(2_000, 2_020):
        txn.insert("test.t", row_of(r, key))
    txn.get("test.t", next(iter(kept)), lock="exclusive")
    for _ in range(60):
        where, limit = condition_of(r, rows), r.choice([None, None, 0, 1, 7])
        functions = aggregates_of(r)
        try:
            Condition(table.definition, where)
        except Rejected:
            continue
        for scan in (table.scan, partial(txn.scan, "test.t")):
            twins.check(ids, scan, where=where, limit=limit)
            twins.check(added_up, scan, functions, where=where)
            twins.check(added_up, scan, functions)
    txn.rollback()
    assert twins.asked > 150, "nearly all of these conditions are filters"


def test_changes_by_a_filter_meet_the_rows_that_the_machine_meets(
    db: tm.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = random.Random(7)
    rows = [row_of(r, key) for key in range(700)]
    table = db.create_table("test.t", COLUMNS, "id")
    table.insert_many(rows)
    twins = Twins(monkeypatch)
    for _ in range(25):
        where = condition_of(r, rows)
        try:
            Condition(table.definition, where)
        except Rejected:
            continue

        twins.check(changed, db, where)
    assert twins.asked > 15


ORDER = [-math.inf, -1e300, -1.5, -5e-324, -0.0, 0.0, 5e-324, 1e-320, 0.1, 1.5, 3.4e38, 1e300, math.inf, math.nan]
SINGLES = [float(np.float32(each)) for each in (-math.inf, -3.4e38, -1.5, -1e-45, -0.0, 0.0, 1e-45, 0.1, 3.4028235e38)]


@pytest.mark.parametrize("bits", [32, 64])
def test_ranges_of_floats_hold_for_the_floats_that_compare_so(bits: int) -> None:
    """NaNs of either sign equal each other and are above infinity; zeros are equal."""

    def order(one: float, other: float) -> int:
        first, second = ((1, 0.0) if x != x else (0, x) for x in (one, other))
        return (first > second) - (first < second)

    values = (ORDER if bits == 64 else [*SINGLES, math.inf, math.nan]) + [math.copysign(math.nan, -1)]
    holds = {p.COND_EQ: (0,), p.COND_NE: (-1, 1), p.COND_LT: (-1,), p.COND_LE: (-1, 0), p.COND_GT: (1,)}
    holds[p.COND_GE] = (0, 1)
    for condition, orders in holds.items():
        for constant in [*ORDER, *SINGLES, 3.41e38, -3.41e38, PAST_SINGLES, -PAST_SINGLES, 0.5]:
            found = filters.float_range(bits, condition, constant)
            for value in values:
                place = filters.float_place(bits, value)
                span = 1 << bits
                held = found is not None and (place - found[0]) % span <= (found[1] - found[0]) % span
                assert held == (order(value, constant) in orders), (condition, constant, value)


def test_a_condition_of_four_tests_or_of_text_is_for_the_machine(db: tm.Database) -> None:
    table = db.create_table("test.t", COLUMNS, "id")

    def is_filter(where: Any) -> bool:
        return filters.filter_of(Condition(table.definition, where).program) is not None

    def adds_up(*functions: tuple[str, Any]) -> bool:
        program = compile_aggregates(table.definition, functions).program
        return filters.filter_of(None, functions, program) is not None

    i, f, name = tm.col("i64"), tm.col("f64_n"), tm.col("name")
    assert is_filter(i.between(1, 5) & ~(f < 0.5)) and is_filter(i.isin([1, 2, 3]))
    assert is_filter((i == 1) | (f != 2)) and is_filter(tm.col("flag")) and is_filter(i == 2.5)
    assert not is_filter(i.isin([1, 2, 3, 4])) and not is_filter(name == "x") and not is_filter(i + 1 > 5)
    assert not is_filter(tm.col("wide") > 5) and not is_filter(i > tm.col("i32"))
    assert adds_up(("sum", "wide"), ("count", None), ("max", f)) and adds_up(("count", "kind_n"))
    assert not adds_up(("count", "name")) and not adds_up(("sum", i + 1)) and not adds_up(("min", "id"), ("max", i * 2))
    asm = tm.Assembler(table.definition)
    asm.branch_column("eq", "i64", 3, "last", sql=False)
    asm.exit_ok()
    asm.label("last")
    asm.exit_refuse()
    program = asm.finish()
    assert program.facts.decision is None, "NULL equals NULL in it"


def test_values_that_no_row_can_have_are_found_in_none(db: tm.Database) -> None:
    """Story: a condition without any test, of values between those of the column, accepted all rows."""
    columns = [tm.Column("id", tm.Int64), tm.Column("d", tm.Decimal(9, 2)), tm.Column("n", tm.Int64, nullable=True)]
    table = db.create_table("test.t", columns, "id")
    table.insert_many([(key, key, None) for key in range(100)])
    between = [Decimal("0.001"), Decimal("7.005")]
    assert (
        list(table.scan(where=tm.col("d").isin(between)))
        == []
        == table.to_arrow(where=tm.col("d").isin([])).to_pylist()
    )
    assert table.scan(where=tm.col("d").isin(between)).aggregate(n=("count",), d=("sum", "d")) == (0, None)
    assert table.scan(where=~tm.col("d").isin(between)).count() == 100
    assert table.scan(where=~tm.col("n").isin([2.5])).count() == 0
    assert table.scan(where=(tm.col("n") == 2.5) | (tm.col("n") != 2.5)).count() == 0


def test_sums_by_a_filter_are_exact_past_64_bits_and_keep_what_floats_lose(db: tm.Database) -> None:
    """Rows are so small that a page has several vectors of them."""
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("x", tm.Float64)]
    table = db.create_table("test.t", columns, "id", partition=tm.HashPartition(1))
    floats = [1.0, 1e100, 1.0, -1e100]
    table.insert_many([(key, 2**63 - 1 if key % 2 else -(2**63), floats[key % 4]) for key in range(6_000)])
    assert table.scan(where=tm.col("n") > 0).sum("n") == 3_000 * (2**63 - 1)
    assert table.scan(where=tm.col("n") < 0).sum("n") == -3_000 * 2**63
    assert table.scan(where=tm.col("id") >= 0).sum("x") == 3_000.0
    assert len(list(table.scan(where=tm.col("n") < 0))) == 3_000


def test_a_constant_just_past_the_greatest_single_is_no_warning(db: tm.Database) -> None:
    """A condition over a Float32 column with a constant between the greatest single and infinity printed numpy's
    "overflow encountered in nextafter", and raised it where warnings are errors.
    """
    table = db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Float32)], "id")
    table.insert_many([(1, 1.5), (2, -math.inf), (3, math.inf)])
    n = tm.col("n")
    assert not list(table.scan(where=n == PAST_SINGLES)) and not list(table.scan(where=n == -PAST_SINGLES))
    assert [row.id for row in table.scan(where=n > PAST_SINGLES)] == [3]
    assert [row.id for row in table.scan(where=n < -PAST_SINGLES)] == [2]
