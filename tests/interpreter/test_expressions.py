"""Expressions against SQLite, which has the same three-valued logic, and against Python."""

from __future__ import annotations

import datetime
import random
import sqlite3
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import numpy as np
import pytest

from tidemark.engine.base.errors import ProgramInvalid, TypeMismatch
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.compiled import compile_aggregates, compile_filter, compile_update
from tidemark.engine.programs.expressions import Expression, col
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.programs.vm_batch_kernels import run_batch
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema import types as t
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


def run(program: Program, rows: list[tuple[Any, ...]]) -> tuple[list[int], np.ndarray, np.ndarray]:
    """(verdicts, out, work)."""
    row_format = RowFormat(TABLE)
    offsets, pieces, at = [], [], 0
    for row in rows:
        image = row_format.encode_row(row)
        pieces += [np.zeros(3, dtype=np.int64), image]
        offsets.append(at + 3)
        at += 3 + len(image)
    work = program.new_work()
    out = np.zeros((2 + 3 * len(program.outputs)) * len(rows), dtype=np.int64)
    nothing = np.zeros(0, dtype=np.int64)
    planes = np.zeros(p.ROWS_WORDS, dtype=np.int64)
    starts = np.array(offsets, dtype=np.int64)
    run_batch(np.concatenate(pieces), starts, len(rows), nothing, program.words, planes, work, out)
    return out[: len(rows)].tolist(), out, work


def accepted(where: Expression, rows: list[tuple[Any, ...]]) -> list[int]:
    verdicts, _, _ = run(compile_filter(TABLE, where), rows)
    assert set(verdicts) <= {p.VERDICT_OK, p.VERDICT_REFUSED}
    return [row[0] for row, verdict in zip(rows, verdicts, strict=True) if verdict == p.VERDICT_OK]


def number(r: random.Random, depth: int) -> tuple[Expression, str]:
    """A numeric expression and the same in SQL; integers small enough never to overflow."""
    if depth == 0 or r.random() < 0.4:
        name = r.choice(["a", "x", "id"])
        return col(name), name
    one, text = number(r, depth - 1)
    sign = r.choice("+-*")
    if r.random() < 0.5:
        constant = r.choice([2, -1, 3, 0.5])
        return {"+": one + constant, "-": one - constant, "*": one * constant}[sign], f"({text} {sign} {constant})"
    other, more = number(r, depth - 1)
    return {"+": one + other, "-": one - other, "*": one * other}[sign], f"({text} {sign} {more})"


def condition(r: random.Random, depth: int) -> tuple[Expression, str]:
    """A condition and the same in SQL."""
    if depth and r.random() < 0.6:
        one, text = condition(r, depth - 1)
        if r.random() < 0.3:
            return ~one, f"(not {text})"
        other, more = condition(r, depth - 1)
        return (one & other, f"({text} and {more})") if r.random() < 0.5 else (one | other, f"({text} or {more})")
    dice = r.random()
    if dice < 0.15:
        name = r.choice(NAMES)
        return (
            (col(name).is_null(), f"({name} is null)")
            if r.random() < 0.5
            else (
                col(name).is_not_null(),
                f"({name} is not null)",
            )
        )
    if dice < 0.3:
        pattern = "".join(r.choice("ab%_é") for _ in range(r.randint(0, 4)))
        return col("s").like(pattern), f"(s like '{pattern}')"
    if dice < 0.4:
        values = r.sample([-2, 0, 1, 3, 2.5, None], r.randint(1, 4))
        shown = ", ".join("null" if value is None else str(value) for value in values)
        return col("a").isin(values), f"(a in ({shown}))"
    if dice < 0.5:
        low, high = r.randint(-4, 4), r.choice([0.5, 2, 3.5])
        return col("b").between(low, high), f"(b between {low} and {high})"
    sign = r.choice(["==", "!=", "<", "<=", ">", ">="])
    if dice < 0.65:
        text = r.choice(["", "a", "ab", "é", "bb%"])
        name = r.choice(["s", "c"])
        return compared(col(name), sign, text), f"({name} {sign} '{text}')"
    if dice < 0.8:
        constant = r.choice([0, 1, -2.5, 2.5, 3, 2**70, -(2**70), 1e300])
        name = r.choice(["a", "b", "x"])
        return compared(col(name), sign, constant), f"({name} {sign} {constant!r})"
    one, first = number(r, 2)
    other, second = number(r, 2)
    return compared(one, sign, other), f"({first} {sign} {second})"


def compared(one: Expression, sign: str, other: Any) -> Expression:
    return {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}[sign](one, other)


@pytest.mark.parametrize("seed", range(12))
def test_generated_conditions_accept_the_rows_sqlite_accepts(seed: int) -> None:
    print("seed", seed)
    r = random.Random(seed)
    rows = rows_of(r, 40)
    base = sqlite3.connect(":memory:")
    base.execute("pragma case_sensitive_like = on")
    kinds = "id integer, a integer, b integer, x real, s text, d text, day text, u text, e text, ok integer, c text"
    base.execute(f"create table t ({kinds})")
    plain = [
        tuple(
            each if isinstance(each, (int, float, str, type(None))) and n != 7 else each and str(each)
            for n, each in enumerate(row)
        )
        for row in rows
    ]
    base.executemany(f"insert into t values ({','.join('?' * len(NAMES))})", plain)
    for _ in range(100):
        where, text = condition(r, 3)
        expected = [row[0] for row in base.execute(f"select id from t where {text} order by id")]
        assert accepted(where, rows) == expected, text


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


def test_update_program_gives_new_values_and_null_for_null() -> None:
    rows = rows_of(random.Random(4), 50)
    program, rest = compile_update(TABLE, {"a": col("a") + 1, "x": col("b") * 2, "s": "new"}, col("id") < 30)
    verdicts, out, _ = run(program, rows)
    assert rest == {"s": "new"}
    assert verdicts == [p.VERDICT_OK] * 30 + [p.VERDICT_REFUSED] * 20
    lows, nulls = out[2 * 50 : 3 * 50], out[4 * 50 : 5 * 50]
    for row in rows[:30]:
        assert (None if nulls[row[0]] else int(lows[row[0]])) == (None if row[1] is None else row[1] + 1)


def test_aggregates_of_columns_and_expressions_equal_python() -> None:
    rows = rows_of(random.Random(5), 1_500)
    wanted = [("count", None), ("count", "a"), ("sum", "b"), ("sum", "x"), ("min", "d"), ("max", "day"), ("sum", "u")]
    aggregates = compile_aggregates(TABLE, [*wanted, ("sum", col("a") * 2)], col("id") >= 100)
    _, _, work = run(aggregates.program, rows)
    kept = rows[100:]

    def values(place: int) -> list[Any]:
        return [row[place] for row in kept if row[place] is not None]

    assert aggregates.results(work) == [
        len(kept),
        len(values(1)),
        sum(values(2)),
        sum(values(3)),
        min(values(5)),
        max(values(6)),
        sum(values(7)),
        2 * sum(values(1)),
    ]


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
