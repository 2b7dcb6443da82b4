"""Programs that kernels bind are those that the compiler binds: for every tree beside every other one."""

from __future__ import annotations

import datetime
import decimal
import operator
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.point.support import edge, value
from tests.store.support import open_memory
from tidemark.engine.memory.arena_layout import MODE_DELETE, MODE_UPDATE
from tidemark.engine.point import plan_layout as u
from tidemark.engine.point.changes import program_of
from tidemark.engine.point.plan import Plan, plan_of
from tidemark.engine.point.selects import select
from tidemark.engine.point.trees import FULL_CALLS, NO_TREES, TREES_MAX, Trees
from tidemark.engine.point.trees_kernels import NOT_MATCHED, bound_words, known_tree
from tidemark.engine.programs.expressions import Compare, Constant, Junction

D = decimal.Decimal
col = tm.col
COLUMNS: dict[str, Any] = {
    "i": tm.Int64,
    "j": tm.Int64,
    "small": tm.Int8,
    "u": tm.UInt64,
    "d": tm.Decimal(12, 2),
    "w": tm.Decimal(30, 4),
    "f": tm.Float64,
    "g": tm.Float32,
    "b": tm.Bool,
    "s": tm.VarChar(20),
    "c": tm.Char(5),
    "o": tm.VarBinary(9),
    "e": tm.Enum("new", "old"),
    "day": tm.Date,
    "at": tm.DateTime,
    "seen": tm.Timestamp,
    "time": tm.Time,
}
NOON = datetime.datetime(2020, 1, 1, 12)
JOINED = "".join(["sma", "ll"])  # a name that is another object than the column's
UPDATES: list[tuple[dict[str, Any], Any]] = [
    ({"i": col("i") + 1}, None),
    ({"i": col("i") - 1}, None),
    ({"i": col("j") + 1}, None),
    ({"j": col("i") + 1}, None),
    ({"i": 1 + col("i")}, None),
    ({"small": col(JOINED) + 1}, None),
    ({"i": col("i") + 1, "j": 5}, None),
    ({"j": 5, "i": col("i") + 1}, None),
    ({"i": col("i") + 1, "j": col("j")}, None),
    ({"i": col("i") + 1, "j": col("j"), "s": "x"}, None),
    ({"i": col("i") + 2**40}, None),
    ({"i": (col("i") + 1) * 2 - col("j") // 3}, None),
    ({"i": -col("i")}, None),
    ({"u": col("u") + 7}, None),
    ({"small": col("small") * 3 % 5}, None),
    ({"d": col("d") + D("0.25")}, None),
    ({"d": col("d") + 3}, None),
    ({"d": col("d") - D("0.25")}, col("d") >= D("0.25")),
    ({"w": col("w") + D("0.0001")}, None),
    ({"w": col("w") + D("10000000000000000000.5")}, None),
    ({"f": col("f") * 1.5}, None),
    ({"f": col("f") * 2}, None),
    ({"i": 7}, col("i") > 3),
    ({"i": 7}, col("i") >= 3),
    ({"i": 7}, ~(col("i") > 3)),
    ({"i": 7}, (col("i") > 3) & (col("j") < 2)),
    ({"i": 7}, (col("i") > 3) | (col("j") < 2)),
    ({"i": 7}, (col("i") > 3) & (col("j") < 2) & (col("s") == "abc")),
    ({"i": 7}, col("i") > col("j")),
    ({"i": 7}, col("i").is_null()),
    ({"i": 7}, ~col("i").is_null()),
]
CONDITIONS = [
    col("s") == "abc",
    col("s") != "a",
    (col("s") == "abc") | (col("c") < "ä"),
    col("o") >= b"ab",
    col("e") == "old",
    col("b") == True,  # noqa: E712
    col("f") < 2.5,
    col("f") < 2,
    col("g") == 0.5,
    col("u") <= 9,
    col("small") == 4,
    col("d") == D("1.50"),
    col("d") == 1,
    col("w") > D("5.0001"),
    col("day") < datetime.date(2020, 2, 2),
    col("at") < NOON,
    col("seen") < NOON.replace(tzinfo=datetime.UTC),
    col("time") > datetime.time(1, 2, 3),
    col("i") + col("j") > 4,
    col("d") + D("1.00") > D("4.00"),
]
# The general path computes it.
FLOAT_32: tuple[int, Any, Any] = (MODE_UPDATE, {"g": col("g") / 2.5}, None)
CALLS: list[tuple[int, Any, Any]] = [(MODE_UPDATE, changes, where) for changes, where in UPDATES]
CALLS += [(MODE_DELETE, None, where) for where in CONDITIONS]
CALLS.append(FLOAT_32)


@pytest.fixture(scope="module")
def plan() -> Iterator[Plan]:
    db = open_memory()
    columns = [tm.Column("id", tm.Int64), *(tm.Column(name, kind, nullable=True) for name, kind in COLUMNS.items())]
    table = db.create_table("t", columns, "id").table
    db.create_index("t", "by_i", ["i", "j"])
    yield plan_of(table)
    db.close()


def by_compiler(plan: Plan, mode: int, changes: Any, where: Any) -> Any:
    found = program_of(plan, mode, changes, where)
    return None if found is None else found[0].tolist()


def by_kernel(plan: Plan, words: Any, mode: int, changes: Any, where: Any) -> Any:
    bound = np.full(u.PROGRAM_WORDS, -1, dtype=np.int64)
    size = bound_words(plan.words, words, mode, changes, where, bound)
    return bound[:size].tolist() if size else None


def learned(plan: Plan, mode: int, changes: Any, where: Any) -> Any:
    """The words of the one tree of a call."""
    plan.trees = Trees(plan.definition, plan.words, plan.kept)
    by_compiler(plan, mode, changes, where)
    return plan.trees.words


def test_each_tree_is_bound_as_the_compiler_does_and_no_other_one(plan: Plan) -> None:
    wanted = [by_compiler(plan, *call) for call in CALLS]
    assert [call for call, each in zip(CALLS, wanted, strict=True) if each is None] == [FLOAT_32]
    for number, call in enumerate(CALLS):
        words = learned(plan, *call)
        assert words[u.T_COUNT] == int(call is not FLOAT_32), call
        for other, expected in zip(CALLS, wanted, strict=True):
            assert by_kernel(plan, words, *other) in (None, expected), (call, other)
        assert by_kernel(plan, words, *call) == wanted[number], call


def test_all_trees_together(plan: Plan) -> None:
    plan.trees = Trees(plan.definition, plan.words, plan.kept)
    for call in CALLS[:TREES_MAX]:
        by_compiler(plan, *call)
    words = plan.trees.words
    assert words[u.T_COUNT] > TREES_MAX // 2
    for call in CALLS[:TREES_MAX]:
        assert by_kernel(plan, words, *call) == by_compiler(plan, *call), call


ODD: list[Any] = [
    *(0, 1, -1, 2**63 - 1, -(2**63), 2**63, 2**64, 2**200, True, 1.5, -0.0, float("nan"), D("NaN")),
    *(D("1"), D("1.5"), D("-0.00"), D("1E+3"), D("0.001"), D(10) ** 17, D(10) ** 30),
    *("", "a" * 30, "\ud800", b"", b"\0"),
]


def with_constants(rng: random.Random, kind: Any, given: Any) -> list[Any]:
    return [given, *(value(rng, kind) for _ in range(20)), *(edge(rng, kind) for _ in range(20)), *ODD]


@pytest.mark.parametrize("seed", range(3))
def test_other_constants_are_bound_as_the_compiler_does(plan: Plan, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    bound = 0
    for name, kind in COLUMNS.items():
        for given in [value(rng, kind) for _ in range(4)]:
            made = [
                lambda c, n=name: (MODE_DELETE, None, col(n) == c),
                lambda c, n=name: (MODE_UPDATE, {n: col(n) + c}, None),
            ]
            made.append(lambda c, n=name: (MODE_UPDATE, {"j": 1}, (col(n) >= c) & (col("s") == "x")))
            for make in made:
                words = learned(plan, *make(given))
                if not words[u.T_COUNT]:
                    continue
                for constant in with_constants(rng, kind, given):
                    try:
                        call = make(constant)
                    except tm.Error:
                        continue
                    found = by_kernel(plan, words, *call)
                    assert found is None or found == by_compiler(plan, *call), (given, constant)
                    bound += found is not None
    assert bound > 500


def test_what_is_no_tree_matches_none(plan: Plan) -> None:
    """Objects of the classes of expressions, in states that no program makes."""
    words = learned(plan, MODE_UPDATE, {"i": 7}, (col("i") > 3) & (col("j") < 2))
    unset = object.__new__(Compare)
    half = Junction(True, ((col("i") > 3), (col("j") < 2)))
    object.__setattr__(half, "operands", (unset, unset))
    listed = Junction(True, ((col("i") > 3), (col("j") < 2)))
    object.__setattr__(listed, "operands", [col("i") > 3, col("j") < 2])
    for where in (unset, half, listed, 5, "x", object(), (), Junction(True, (col("i") > 3,))):
        assert by_kernel(plan, words, MODE_UPDATE, {"i": 7}, where) is None
    fits = (col("i") > 3) & (col("j") < 2)
    for changes in ({}, {"i": 7, "j": 1}, {"no": 1}, {5: 1}, {"id": 1}, {"i": "x"}, [], None, 7):
        assert by_kernel(plan, words, MODE_UPDATE, changes, fits) is None
    assert by_kernel(plan, words, MODE_UPDATE, {"i": 8}, fits)


def test_a_list_of_trees_that_is_full_begins_anew_after_many_calls(plan: Plan) -> None:
    plan.trees = trees = Trees(plan.definition, plan.words, plan.kept)
    for number in range(TREES_MAX + 3):
        by_compiler(plan, MODE_UPDATE, {"i": sum([col("j")] * number, col("i") + 1)}, None)
    count = int(trees.words[u.T_COUNT])
    assert 0 < count <= TREES_MAX
    where = col("f") < 2.5
    for _ in range(FULL_CALLS - 10):
        by_compiler(plan, MODE_DELETE, None, where)
    assert by_kernel(plan, trees.words, MODE_DELETE, None, where) is None
    for _ in range(20):
        by_compiler(plan, MODE_DELETE, None, where)
    assert trees.words[u.T_COUNT] == 1 and by_kernel(plan, trees.words, MODE_DELETE, None, where)


def test_selects_are_known_by_their_trees() -> None:
    """Only what has the tree, and constants that the columns can have."""
    db = open_memory()
    columns = [tm.Column(name, kind) for name, kind in COLUMNS.items()]
    table = db.create_table("t", columns, ["i", "s"]).table
    for name in COLUMNS:
        db.create_index("t", f"by_{name}", name)
    rng = random.Random(1)
    names = list(table.format.names)
    for name, kind in COLUMNS.items():
        given = value(rng, kind)
        calls = [make(col(name), given) for make in (operator.eq, operator.ge, operator.lt)]
        for number, where in enumerate(calls):
            plan = plan_of(table)
            plan.known.clear()
            select(table, where, names, None)
            words = plan.known[None, *names].words if plan.known else NO_TREES
            assert [known_tree(words, each) for each in calls] in (
                [NOT_MATCHED] * 3,
                [0 if other == number else NOT_MATCHED for other in range(3)],
            )
            for constant in with_constants(rng, kind, given):
                same = Compare(where.condition, col(name), Constant(constant))
                if known_tree(words, same) != NOT_MATCHED:
                    kind.stored(constant)  # raises for what the column cannot have
                    found = select(table, same, names, None)
                    assert found is not None and found.is_sound and found.values == [constant]
    db.close()
