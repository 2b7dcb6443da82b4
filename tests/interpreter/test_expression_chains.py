"""Long and deep expressions: chains of & and | are one level, values compared with one column are a set, and
expressions that are too deep are refused. The accepted rows are those of a naive evaluation with NULL in three-valued
logic.
"""

from __future__ import annotations

import datetime
import operator
import random
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest

from tests.interpreter.machine import like, parts_of
from tests.interpreter.test_expressions import NAMES, TABLE, accepted, rows_of
from tests.seeds import fresh_seeds
from tidemark.engine.base.errors import ProgramInvalid, Rejected
from tidemark.engine.programs import expressions as x
from tidemark.engine.programs.compiled import compile_filter
from tidemark.engine.programs.condition_ranges import known_of
from tidemark.engine.programs.expressions import DEPTH_MAX, PARTS_MAX, Expression, col
from tidemark.engine.schema.partition_pruning import Between
from tidemark.replication.calls.values import pack, unpack

DAY = datetime.date(2020, 1, 1)
VALUES: dict[str, list[Any]] = {
    "id": [0, 3, 7, 39, 2**70],
    "a": [-5, 0, 2, 2.0, 2.5, Decimal("3.00"), None, 1e300],
    "b": [0, 1, 7, 2**40, -(2**70), None],
    "x": [0.0, -0.0, 1.5, 3, float("nan"), float("inf"), None],
    "s": ["", "a", "ab", "é", "x" * 300, None],
    "d": [Decimal("1.5"), Decimal("-0.01"), Decimal("0.001"), 2, 10**12, None],
    "day": [DAY, DAY + datetime.timedelta(3), None],
    "u": [0, 1, 2**64 - 1, -1, None],
    "e": ["red", "green", None],
    "ok": [True, False, None],
    "c": ["", "a", "ab", "abc", None],
}


def naive(node: Expression, row: dict[str, Any]) -> bool | None:
    """What a condition is in a row, None for NULL."""
    if isinstance(node, x.Not):
        found = naive(node.inner, row)
        return None if found is None else not found
    if isinstance(node, x.Junction):
        every = [naive(each, row) for each in node.operands]
        if (not node.is_and) in every:
            return not node.is_and
        return None if None in every else node.is_and
    if isinstance(node, x.NullTest):
        return row[node.inner.name] is None  # type: ignore[attr-defined]
    if isinstance(node, x.Member):
        every = [naive(x.Compare("eq", node.inner, each), row) for each in node.values]
        return True if True in every else None if None in every else False
    if isinstance(node, x.Col):
        value: bool | None = row[node.name]
        return value
    if isinstance(node, x.Like):
        text = computed(node.inner, row)
        return None if text is None else like(text.encode(), parts_of(node.pattern), octets=False)
    assert isinstance(node, x.Compare)
    one, other = computed(node.left, row), computed(node.right, row)
    if one is None or other is None:
        return None
    verdict: bool = getattr(operator, node.condition)(one, other)
    return verdict


def computed(node: Expression, row: dict[str, Any]) -> Any:
    """What a value is in a row, None for NULL."""
    if isinstance(node, x.Constant):
        return node.value
    if isinstance(node, x.Col):
        return row[node.name]
    assert isinstance(node, x.Arithmetic)
    one, other = computed(node.left, row), computed(node.right, row)
    if one is None or other is None:
        return None
    return {"+": operator.add, "-": operator.sub, "*": operator.mul}[node.operator](one, other)


def compared(condition: str, column: Expression, value: Any) -> Expression:
    """A comparison, also with NULL: `==` and the like refuse None."""
    return x.Compare(condition, column, x.Constant(value))


def number(r: random.Random, depth: int) -> Expression:
    """Arithmetic that never overflows."""
    if depth == 0 or r.random() < 0.4:
        return col(r.choice(["a", "x", "id"]))
    other = r.choice([2, -1, 3, 0.5]) if r.random() < 0.5 else number(r, depth - 1)
    made: Expression = r.choice([operator.add, operator.sub, operator.mul])(number(r, depth - 1), other)
    return made


def single(r: random.Random) -> Expression:
    """A comparison of numbers, a range, or a pattern."""
    condition = r.choice(["eq", "ne", "lt", "le", "gt", "ge"])
    pattern = "".join(r.choice("ab%_é") for _ in range(r.randint(0, 4)))
    constant = r.choice([0, 1, -2.5, 2.5, 3, 2**70, -(2**70), 1e300])
    made: list[Expression] = [
        x.Compare(condition, number(r, 2), number(r, 2)),
        compared(condition, col(r.choice(["a", "b", "x"])), constant),
        compared(condition, col(r.choice(["s", "c"])), r.choice(["", "a", "ab", "é", "bb%"])),
        col("b").between(r.randint(-4, 4), r.choice([0.5, 2, 3.5])),
        col("s").like(pattern),
    ]
    return r.choice(made)


def drawn(r: random.Random, depth: int) -> Expression:
    """A condition in which chains and runs of equalities are frequent."""
    name = r.choice(NAMES)
    column = col(name)
    dice = r.random()
    if depth and dice < 0.5:
        join = r.choice([lambda one, other: one & other, lambda one, other: one | other])
        chain = [drawn(r, depth - 1) for _ in range(r.randint(1, 4))]
        for _ in range(r.randint(0, 2)):
            at = r.randint(0, len(chain))
            chain[at:at] = run(r)
        made: Expression = reduce(join, chain)
        return ~made if r.random() < 0.4 else made
    if r.random() < 0.3:
        return single(r)
    if dice < 0.6:
        return column.isin(r.sample(VALUES[name], r.randint(0, 2)) * r.randint(1, 2))
    if dice < 0.7:
        return r.choice([column.is_null(), column.is_not_null(), col("ok")])
    if dice < 0.85 and name not in ("e", "ok", "x"):
        value = r.choice(VALUES[name])
        return r.choice([compared("lt", column, value), compared("ge", column, value), compared("lt", column, value)])
    value = r.choice([each for each in VALUES[name] if each == each] or [None])
    same, other = compared("eq", column, value), compared("ne", column, value)
    return r.choice([same, other, ~same, x.Compare("eq", x.Constant(value), column)])


def run(r: random.Random) -> list[Expression]:
    """Comparisons of one column, sometimes of two, next to each other."""
    name = r.choice(NAMES)
    is_equal = r.random() < 0.5
    made: list[Expression] = []
    for _ in range(r.randint(2, 7)):
        value = r.choice([each for each in VALUES[name] if each == each])
        column = col(name)
        made.append(compared("eq" if is_equal else "ne", column, value))
        if r.random() < 0.1:
            name = r.choice(NAMES)
    return made


@pytest.mark.parametrize("seed", fresh_seeds(6))
def test_random_chains_accept_the_rows_of_a_naive_evaluation(seed: int) -> None:
    """What is known of columns holds in each of those rows, and expressions that travelled are the same."""
    print("seed", seed)
    r = random.Random(seed)
    rows = rows_of(r, 40)
    named = [dict(zip(NAMES, row, strict=True)) for row in rows]
    for _ in range(150):
        where = drawn(r, 3)
        wanted = [row["id"] for row in named if naive(where, row)]
        assert accepted(where, rows) == wanted, where
        assert repr(unpack(pack(where))) == repr(where)
        known = known_of(where)
        for row in named:
            if row["id"] in wanted:
                for name, each in known.items():
                    assert isinstance(each, Between) or any(value == row[name] for value in each), (name, where)


def chain(count: int, is_and: bool = False) -> Expression:
    where: Expression = col("a") == 0
    for number in range(1, count):
        where = where & (col("a") != number) if is_and else where | (col("a") == number)
    return where


def test_long_chains_are_one_level_however_they_are_joined() -> None:
    """Story: `scan(where=)` with 215 equalities joined by | in a loop was a tree of 215 levels: the server that
    unpacked it ended by SIGSEGV, and in process some 300 were `RecursionError`.
    """
    right: Expression = col("a") == 0
    for number in range(1, 2_000):
        right = (col("a") == number) | right
    halves = chain(1_000) | chain(1_000)
    for where in (chain(2_000), right, halves, chain(2_000, is_and=True) | (col("a") > 1)):
        assert where.depth <= 4
        assert repr(unpack(pack(where))) == repr(where)
        compile_filter(TABLE, where)
    assert isinstance(right, x.Junction) and len(right.operands) == 2_000
    assert [each.right.value for each in right.operands[:2]] == [1_999, 1_998]  # type: ignore[attr-defined]
    assert known_of(chain(5_000))["a"] == list(range(5_000))


def test_values_looked_for_take_one_instruction_each_and_none_twice() -> None:
    short = compile_filter(TABLE, col("a").isin([1, 2, 3]))
    for where in (
        (col("a") == 1) | (col("a") == 2) | (3 == col("a")),
        col("a").isin([1, 2, 3, 1, 2.0, Decimal("3.0"), 2**70, 2.5, None]),
        ~((col("a") != 1) & (col("a") != 2) & (col("a") != 3)),
    ):
        program = compile_filter(TABLE, where)
        assert program.words.tolist() == short.words.tolist(), where
    assert len(compile_filter(TABLE, chain(7_000)).instructions) < 7_010
    with pytest.raises(ProgramInvalid, match="instructions"):
        compile_filter(TABLE, chain(8_100))


def test_order_of_what_may_fail_is_kept() -> None:
    """A row that an earlier part accepts is not judged by a later one that would fail in it."""
    rows = rows_of(random.Random(1), 30)
    fails = col("id") * 2**62 * 2**62 > 0
    assert accepted((col("id") >= 0) | fails | (col("id") == 1), rows) == [row[0] for row in rows]
    for where in ((col("id") == 1) | fails | (col("id") == 2), fails | (col("id") == 1) | (col("id") == 2)):
        with pytest.raises(AssertionError):  # a row of `accepted` has the verdict of an error
            accepted(where, rows)


def deepened(step: Any, start: Expression, times: int) -> Expression:
    for _ in range(times):
        start = step(start)
    return start


STEPS = {
    "not": (lambda each: ~each, col("ok")),
    "alternating": (lambda each: (each | (col("a") == 1)) & (col("b") == 2), col("ok")),
    "sums": (lambda each: each + 1, col("a")),
    "right sums": (lambda each: 1 - each, col("a")),
    "comparisons": (lambda each: each == 1, col("a")),
    "members": (lambda each: each.isin([1]), col("a")),
    "null": (lambda each: each.is_null(), col("a")),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_nests_too_deep_is_refused_and_the_deepest_is_not_too_much(name: str) -> None:
    """Story: an expression of some hundred levels was `RecursionError`, wherever it was walked first."""
    step, start = STEPS[name]
    with pytest.raises(ProgramInvalid, match=f"at most {DEPTH_MAX} deep"):
        deepened(step, start, 3_000)
    deepest = start
    while step(deepest).depth <= DEPTH_MAX - 3:
        deepest = step(deepest)
    where = deepest if name in ("not", "alternating", "null") else deepest > 0
    assert DEPTH_MAX - 6 < where.depth <= DEPTH_MAX
    assert repr(unpack(pack(where))) == repr(where)
    try:
        compile_filter(TABLE, where)
    except Rejected as error:
        assert name in ("comparisons", "members", "null", "right sums"), error
    known_of(where)


def test_parts_are_counted_and_a_loop_without_end_ends() -> None:
    with pytest.raises(ProgramInvalid, match=f"at most {PARTS_MAX} parts"):
        chain(100_000)
    where = chain(100)
    assert where.parts == 1 + 3 * 100
    assert unpack(pack(where)).parts == where.parts
    for wrong in (lambda: x.Junction(True, ()), lambda: x.Compare("like", col("a"), col("b"))):
        with pytest.raises(ProgramInvalid):
            wrong()
