"""Values whose few bytes stand for enormous numbers cost no more time than their bytes.

Each case runs in a process of its own with a minute of processor time. If a number were written out, it would need
hours or die.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemark.engine import types as t
from tidemark.engine.base.errors import Rejected
from tidemark.engine.programs.compiled import compile_aggregates, compile_filter, compile_update
from tidemark.engine.programs.expressions import Expression, col
from tidemark.engine.queries.conditions import Condition
from tidemark.engine.rows.column_input import to_columns
from tidemark.engine.rows.column_values import conform, from_python
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.partition import RangePartition, value_from_json
from tidemark.engine.schema.partition_pruning import partitions_for
from tidemark.replication.calls.values import pack, unpack
from tidemark.replication.sql.column_types import value_of
from tidemark.replication.sql.tokens import Literal

CPU_SECONDS = 60
HUGE, TINY, NOTHING = Decimal("1e999999999"), Decimal("1e-999999999"), Decimal("0e-999999999")
LONG = Decimal("1." + "0" * 3_000_000 + "1")
WIDE = 1 << 8_000_000
PRICE = t.Decimal(10, 2)
TABLE = TableDefinition(
    0,
    1,
    "test.bounded",
    (
        Column("id", t.Int64),
        Column("price", PRICE),
        Column("wide", t.Decimal(38, 2)),
        Column("real", t.Float64),
        Column("count", t.UInt64),
    ),
    ("id",),
)


def _refused(call: Callable[[], Any]) -> None:
    with pytest.raises(Rejected):
        call()


def _conditions() -> None:
    for value in (HUGE, HUGE.copy_negate(), TINY, TINY.copy_negate(), NOTHING, LONG, WIDE, -WIDE):
        for name in ("id", "price", "wide", "real", "count"):
            for where in (col(name) > value, col(name) == value, value <= col(name), col(name).isin([value, 1])):
                compile_filter(TABLE, where)
                Condition(TABLE, where & (col(name) < Decimal("0.5")) & (col(name) < 3) & (col(name) < 0.5))


def _calls() -> None:
    where: Expression = unpack(pack(col("price") > HUGE))
    compile_filter(TABLE, where)


def _arithmetic() -> None:
    for value in (HUGE, HUGE.copy_negate(), TINY, LONG, WIDE):
        _refused(lambda value=value: compile_filter(TABLE, col("price") + value > 0))
        _refused(lambda value=value: compile_update(TABLE, {"price": col("price") + value}))
        _refused(lambda value=value: compile_aggregates(TABLE, [("sum", col("real") * value)]))
    product = col("id") * Decimal("1e-300") * Decimal("1e-300")
    _refused(lambda: compile_filter(TABLE, product > 0.5))


def _rows() -> None:
    for column in TABLE.columns[1:3]:
        for value in (HUGE, HUGE.copy_negate(), TINY, LONG, WIDE):
            _refused(lambda column=column, value=value: column.type.stored(value))
            _refused(lambda column=column, value=value: from_python([Decimal(1), value], column, TABLE.name, 0))
        assert column.type.loaded(column.type.stored(NOTHING)) == 0
        assert from_python([NOTHING], column, TABLE.name, 0).to_pylist() == [0]
    row = {"id": 1, "price": TINY, "wide": 0, "real": 0.5, "count": 1}
    for rows in ([row], {name: [value] for name, value in row.items()}):
        _refused(lambda rows=rows: list(to_columns(rows, TABLE)))


def _definitions() -> None:
    for value in (HUGE, TINY, LONG, WIDE):
        _refused(lambda value=value: Column("price", PRICE, default=value))
        by_price = RangePartition("price", [("low", value)])
        _refused(lambda by_price=by_price: TableDefinition(0, 1, "test.ranges", TABLE.columns, ("price",), by_price))
        _refused(lambda value=value: t.Decimal(value))
        _refused(lambda value=value: t.VarChar(value))
        partitions_for(TABLE, {"id": (value,)})
    default = value_of(PRICE, Literal("number", "1e999999999"))
    _refused(lambda: Column("price", PRICE, default=default))
    with pytest.raises(ValueError, match="bytes"):
        value_from_json(t.Decimal(30, 2), "77" * 3_000_000)


def _arrow() -> None:
    for scale in (-(1 << 31), -1_000, 1_000, (1 << 31) - 1):
        for made, size in ((pa.decimal128, 16), (pa.decimal256, 32)):
            octets = pa.py_buffer((7).to_bytes(size, "little"))
            array = pa.Array.from_buffers(made(5, scale), 1, [None, octets])
            for column in TABLE.columns:
                _refused(lambda array=array, column=column: conform(array, column, TABLE.name, 0))


def _text() -> None:
    from tidemark.engine.types.decimals import decimals_of_text

    for text in ("1e999999999", "1e-999999999", "0." + "0" * 3_000_000 + "1", "1" * 3_000_000, "NaN", "x", "0.001"):
        _refused(lambda text=text: decimals_of_text(pa.array(["1.5", text]), PRICE))
    taken = decimals_of_text(pa.array([" 1.5", None, "0e-999999999", "-12E-1"]), PRICE)
    assert taken.to_pylist() == [Decimal("1.50"), None, Decimal("0.00"), Decimal("-1.20")]
    assert decimals_of_text(pa.array(["1.5", "-2"]), PRICE).to_pylist() == [Decimal("1.50"), Decimal("-2.00")]


def _shared_parts() -> None:
    def doubled(start: Expression, join: Callable[[Expression], Expression]) -> None:
        for _ in range(60):
            start = join(start)

    _refused(lambda: doubled(col("id"), lambda each: each + each))
    _refused(lambda: doubled(col("id") > 1, lambda each: each & each))


CASES = {
    "conditions": _conditions,
    "calls": _calls,
    "arithmetic": _arithmetic,
    "rows": _rows,
    "definitions": _definitions,
    "arrow": _arrow,
    "text": _text,
    "shared parts": _shared_parts,
}


@pytest.mark.parametrize("case", CASES)
def test_a_value_costs_no_more_time_than_it_has_bytes(case: str) -> None:
    """Story: `scan(where=col("price") > Decimal("1e999999999"))` wrote a number of a thousand million digits and held
    the GIL for minutes; a call of 74 bytes over the wire did the same. A row with `Decimal("1e-99999999")` ended the
    process inside Arrow.
    """
    made = subprocess.run(
        [sys.executable, "-c", f"from tests.rows.test_bounded_values import run; run({case!r})"],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, f"{case}: {made.returncode}\n{made.stderr[-2_000:]}"


def run(case: str) -> None:
    """One case, in a process of its own."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    CASES[case]()


@pytest.mark.parametrize("seed", range(3))
def test_numbers_made_short_compare_as_they_did(seed: int) -> None:
    """`comparable` changes no answer: values outside a column's range keep their order with those inside."""
    from tidemark.engine.base.decimals import COMPARED_DIGITS, comparable

    rng = np.random.default_rng(seed)
    print("seed", seed)
    floats = [float(each) for each in rng.standard_normal(20) * 10.0 ** rng.integers(-320, 308, 20)]
    stored = [Decimal(each) for each in floats] + [Decimal(int(each)) / 100 for each in rng.integers(-500, 500, 20)]
    exact = max(len(each.as_tuple().digits) for each in stored) + 2_000
    import decimal

    with decimal.localcontext(decimal.Context(prec=exact, Emin=-9_999, Emax=9_999)):
        beside = [
            each * (1 + sign * Decimal(f"1e-{digits}"))
            for each in stored
            for sign in (-1, 0, 1)
            for digits in (5, 1_500)
        ]
        for value in (HUGE, TINY, NOTHING, LONG):
            assert abs(comparable(value).adjusted()) < 2_000
            assert len(comparable(value).as_tuple().digits) <= COMPARED_DIGITS
        for value in [*beside, Decimal("1e350"), Decimal("-1e350"), Decimal("1e-1700"), Decimal(0)]:
            short = comparable(value)
            assert len(short.as_tuple().digits) <= COMPARED_DIGITS
            assert all((short < each, short == each) == (value < each, value == each) for each in stored), value


def test_a_decimal_in_a_csv_file_is_judged_before_it_is_written_out(tmp_path: Any) -> None:
    """Story: `1e-99999999` in a CSV file ended the process that loaded it."""
    from tidemark.sources import open_source

    file = tmp_path / "rows.csv"
    file.write_text("id,price\n1,1.5\n2,\n3,0e-999999999\n")
    columns = (Column("id", t.Int64), Column("price", PRICE, nullable=True))
    definition = TableDefinition(0, 1, "test.csv", columns, ("id",))
    read = pa.Table.from_batches(list(open_source(file, definition).batches))
    assert read.column("price").to_pylist() == [Decimal("1.50"), None, Decimal("0.00")]
    file.write_text("id,price\n1,1.5\n2,1e-99999999\n")
    with pytest.raises(pa.ArrowInvalid, match="column #1: row 3: .*digits after the point"):
        list(open_source(file, definition).batches)
