"""Expressions against Python. Random ones are in `test_expression_chains.py`; SQLite and DuckDB answer them in
`tests/access/test_conformance.py`.
"""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import numpy as np
import pytest

from tests.interpreter.generate import batch_of
from tidemark.engine import types as t
from tidemark.engine.base.errors import ProgramInvalid, TypeMismatch
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.compiled import compile_filter, compile_update
from tidemark.engine.programs.expressions import Expression, col
from tidemark.engine.programs.vm_batch_kernels import run_batch
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition

TABLE = TableDefinition(
    1,
    1,
    "t",
    (
        Column("id", t.Int64),
        Column("a", t.Int32, True),
        Column("b", t.Int64, True),
        Column("x", t.Float64, True),
        Column("s", t.VarChar(20), True),
        Column("d", t.Decimal(9, 2), True),
        Column("day", t.Date, True),
        Column("u", t.UInt64, True),
        Column("e", t.Enum("red", "green"), True),
        Column("ok", t.Bool, True),
        Column("c", t.Char(5), True),
    ),
    ("id",),
)
NAMES = [column.name for column in TABLE.columns]


def rows_of(r: random.Random, count: int) -> list[tuple[Any, ...]]:
    def maybe(value: Any) -> Any:
        return None if r.random() < 0.25 else value

    day = datetime.date(2020, 1, 1)
    return [
        (
            number,
            maybe(r.randint(-5, 5)),
            maybe(r.choice([0, 1, -3, 7, 2**40])),
            maybe(r.choice([0.0, 1.5, -2.5, 3.0])),
            maybe("".join(r.choice("ab%_é") for _ in range(r.randint(0, 4)))),
            maybe(Decimal(r.randint(-500, 500)).scaleb(-2)),
            maybe(day + datetime.timedelta(r.randint(0, 9))),
            maybe(r.choice([0, 1, 2**64 - 1])),
            maybe(r.choice(["red", "green"])),
            maybe(r.random() < 0.5),
            maybe("".join(r.choice("ab") for _ in range(r.randint(0, 3)))),
        )
        for number in range(count)
    ]


def accepted(where: Expression, rows: list[tuple[Any, ...]]) -> list[int]:
    program = compile_filter(TABLE, where)
    entries, offsets = batch_of(TABLE, rows)
    verdicts = np.zeros(2 * len(rows), dtype=np.int64)
    nothing = np.zeros(0, dtype=np.int64)
    planes = np.zeros(p.ROWS_WORDS, dtype=np.int64)
    run_batch(entries, offsets, len(rows), nothing, program.words, planes, program.new_work(), verdicts)
    assert set(verdicts[: len(rows)].tolist()) <= {p.VERDICT_OK, p.VERDICT_REFUSED}
    return [row[0] for row, verdict in zip(rows, verdicts, strict=False) if verdict == p.VERDICT_OK]


def test_constants_of_every_type_are_compared_exactly() -> None:
    rows = rows_of(random.Random(3), 200)
    at = {name: place for place, name in enumerate(NAMES)}
    day = datetime.date(2020, 1, 5)
    cases: list[tuple[Expression, Any]] = [
        (col("d") > Decimal("1.005"), lambda row: row[at["d"]] is not None and row[at["d"]] > Decimal("1.005")),
        (col("d") == Decimal("1.5"), lambda row: row[at["d"]] == Decimal("1.5")),
        (col("d") <= 2, lambda row: row[at["d"]] is not None and row[at["d"]] <= 2),
        (col("d") + col("a") > 3, lambda row: None not in (row[at["d"]], row[at["a"]]) and row[5] + row[1] > 3),
        (col("day") < day, lambda row: row[6] is not None and row[6] < day),
        (col("day") + datetime.timedelta(2) == day, lambda row: row[6] == day - datetime.timedelta(2)),
        (col("u") > 2**63, lambda row: row[7] is not None and row[7] > 2**63),
        (col("u") > -1, lambda row: row[7] is not None),
        (col("u") + 1 > 2**64 - 1, lambda row: row[7] == 2**64 - 1),
        (col("e") == "green", lambda row: row[8] == "green"),
        (col("ok"), lambda row: row[9] is True),
        (~col("ok"), lambda row: row[9] is False),
        (col("s").starts_with("a%"), lambda row: row[4] is not None and row[4].startswith("a%")),
        (col("a") / col("b") > 0.2, lambda row: row[1] is not None and bool(row[2]) and row[1] / row[2] > 0.2),
        (col("a") // 2 == -2, lambda row: row[1] is not None and row[1] // 2 == -2),
        (col("a") % 3 == 2, lambda row: row[1] is not None and row[1] % 3 == 2),
        (col("a") < float("nan"), lambda row: row[1] is not None),
    ]
    for number_, (where, holds) in enumerate(cases):
        assert accepted(where, rows) == [row[0] for row in rows if holds(row)], number_


def test_and_or_of_python_and_plain_operands_are_refused_by_name() -> None:
    with pytest.raises(TypeMismatch, match="no truth value"):
        bool(col("a") > 1)
    with pytest.raises(TypeMismatch, match="parentheses"):
        (col("a") > 1) & 3  # type: ignore[operator]


@pytest.mark.parametrize("given", [5, None, "pen", b"pen", col("a")])
def test_members_are_an_iterable_and_no_text(given: Any) -> None:
    """Story: isin(5) was a plain TypeError of Python, and isin("pen") looked for the letters."""
    with pytest.raises(TypeMismatch, match="isin takes a list, a set or another iterable of values, got "):
        col("a").isin(given)


@pytest.mark.parametrize("compare", [eq, ne, lt, le, gt, ge])
def test_a_comparison_with_none_is_refused(compare: Any) -> None:
    """`col("v") == None` found nothing, without a word: in SQL NULL equals nothing. A user of Python means
    is_null().
    """
    with pytest.raises(TypeMismatch, match=r"use is_null\(\) or is_not_null\(\)"):
        compare(col("v"), None)


def test_too_deep_and_mistyped_expressions_are_refused() -> None:
    deep: Any = col("a")

    def tree(levels: int) -> Any:
        return col("a") if levels == 0 else tree(levels - 1) + tree(levels - 1)

    deep = tree(8)
    compile_filter(TABLE, deep > 0)
    for where in (tree(11) * 1.0 > tree(11), col("s") + 1 > 2, col("e") < "red", col("a") == "x", col("a") + 1):
        with pytest.raises(ProgramInvalid):
            compile_filter(TABLE, where)
    with pytest.raises(ProgramInvalid, match="key column"):
        compile_update(TABLE, {"id": col("a")})
