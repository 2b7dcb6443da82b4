"""Expressions whose constants are bound: each bound program is the one that compiling anew gives, word for word."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import pickle
import random
import threading
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.elsewhere import at_once
from tests.interpreter.generate import Batch, definition_of, value_of
from tests.interpreter.test_expressions import TABLE
from tests.interpreter.test_machine import check
from tests.seeds import fresh_seeds
from tests.store.support import open_memory
from tidemark.engine import types as t
from tidemark.engine.programs import compiled, expression_programs, running
from tidemark.engine.programs.expressions import Constant, Expression, Member, col
from tidemark.engine.programs.instruction_set import FLOAT, INTEGER, WIDE
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.programs.lowering import Kind, Lowering, compared, lower_all
from tidemark.engine.programs.lowering import number as lowering_of_number
from tidemark.engine.programs.verifier import Verifier
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.calls.values import pack, unpack

Pick = Callable[[Any], Any]  # a constant for a column's type
NUMBERS = (t.Integer, t.Floating, t.Decimal)


def constant_of(kind: Any, r: random.Random) -> Any:
    """A constant to compare a column of this type with, now and then one that no row has, or that is refused."""
    dice = r.random()
    if dice < 0.04:
        return r.choice([None, "ü", b"\xff", 7, 2.5, Decimal("NaN"), datetime.date(1, 1, 1), "\ud800"])
    if isinstance(kind, NUMBERS) and dice < 0.5:
        return r.choice(
            [0, 1, -1, 2.5, -0.0, 1e300, float("nan"), -float("inf"), 2**63, -(2**70), 10**40, True]
            + [Decimal("0.25"), Decimal("950.0000"), Decimal("1e30"), Decimal("-1e-30"), np.int64(5), np.float32(0.5)]
        )
    if dice < 0.6 and isinstance(kind, (t.Char, t.VarChar, t.LongText)):
        return "ab\0" * r.choice([0, 1, 7, 400])
    return value_of(kind, r)


def number(definition: TableDefinition, shape: random.Random, pick: Pick, depth: int) -> Expression:
    """Arithmetic over columns and constants."""
    columns = [each for each in definition.columns if isinstance(each.type, (*NUMBERS, t.Moment))]
    column = shape.choice(columns or list(definition.columns))
    if depth == 0 or shape.random() < 0.3:
        return col(column.name)
    one = number(definition, shape, pick, depth - 1)
    is_constant = shape.random() < 0.7
    other = Constant(pick(column.type)) if is_constant else number(definition, shape, pick, depth - 1)
    if isinstance(column.type, t.Moment) and shape.random() < 0.5:
        other = Constant(datetime.timedelta(len(repr(pick(t.Int8)))))
    if shape.random() < 0.3:
        one, other = other, one
    return {
        "+": one + other,
        "-": one - other,
        "*": one * other,
        "/": one / other,
        "//": one // other,
        "%": one % other,
    }[shape.choice(["+", "-", "+", "-", "*", "/", "//", "%"])]


def condition(definition: TableDefinition, shape: random.Random, pick: Pick, depth: int) -> Expression:
    """A condition; its constants come from `pick`, everything else from `shape`."""
    column = shape.choice(definition.columns)
    this = col(column.name)
    dice = shape.random()
    if depth and dice < 0.4:
        one, other = (condition(definition, shape, pick, depth - 1) for _ in range(2))
        return shape.choice([lambda: one & other, lambda: one | other, lambda: ~one])()
    if dice < 0.5:
        return this.isin([pick(column.type) for _ in range(shape.randint(0, 5))])
    if dice < 0.55:
        one = number(definition, shape, pick, 1)
        return Member(one, (Constant(pick(column.type)), this, Constant(pick(column.type))))
    if dice < 0.65:
        pattern = pick(t.VarChar(12))
        return this.like(pattern) if isinstance(pattern, str) and "\ud800" not in pattern else this.is_null()
    if dice < 0.7:
        return shape.choice([this.is_null(), this, ~this])
    if dice < 0.85:
        one, second = number(definition, shape, pick, 2), number(definition, shape, pick, 1)
        return shape.choice([one == second, one < second, one >= 3, 7 - one != second])
    value = Constant(pick(column.type))
    return {
        0: lambda: this == value,
        1: lambda: this != value,
        2: lambda: this < value,
        3: lambda: value < this,
        4: lambda: this >= value,
        5: lambda: this.between(value, value),
    }[shape.randint(0, 5)]()


def outcome(call: Callable[..., Any], *given: Any) -> Any:
    """What a call returns, or its error."""
    try:
        return call(*given)
    except tm.Rejected as error:
        return type(error), error.message


def check_same(bound: Any, fresh: Any, definition: TableDefinition, batch: Batch) -> bool:
    """Both are the same refusal, or the same program, which passes the verifier and runs as the naive machine does."""
    if isinstance(fresh, tuple) and not isinstance(fresh, expression_programs.Compiled):
        assert bound == fresh
        return False
    fresh = fresh.program
    assert isinstance(bound, Program), bound
    assert bound.words.tolist() == fresh.words.tolist()
    assert (bound.columns, bound.outputs) == (fresh.columns, fresh.outputs)
    verifier = Verifier(definition, bound.columns, bound.words)
    verifier.verify()
    for name in ("may_fail", "matches", "steps", "cost", "accumulators"):
        assert getattr(bound.facts, name) == getattr(fresh.facts, name), name
    check(bound, batch)
    return True


def made_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the compiler from now on, by name."""
    made: list[str] = []
    for name in ("compile_filter", "compile_aggregates", "compile_update"):
        real = getattr(expression_programs, name)

        def compile_(*given: Any, real: Any = real, name: str = name) -> Any:
            made.append(name)
            return real(*given)

        monkeypatch.setattr(expression_programs, name, compile_)
    return made


def check_case(definition: TableDefinition, batch: Batch, shape: random.Random, pick: Pick) -> int:
    """Compile a filter, an update and an aggregate in both ways; return how many of them compile."""
    where = condition(definition, shape, pick, 2)
    column = shape.choice([each.name for each in definition.columns if each.name not in definition.primary_key])
    changes = {column: number(definition, shape, pick, 2)}
    functions = [("sum", changes[column]), ("count", None), ("max", column)]
    filters = outcome(compiled.compile_filter, definition, where)
    updates = outcome(compiled.compile_update, definition, changes, where)
    sums = outcome(compiled.compile_aggregates, definition, functions, where)
    pairs = [
        (filters, outcome(expression_programs.compile_filter, definition, where)),
        (
            updates[0] if updates[1] == {} else updates,
            outcome(expression_programs.compile_update, definition, changes, where),
        ),
        (getattr(sums, "program", sums), outcome(expression_programs.compile_aggregates, definition, functions, where)),
    ]
    return sum(check_same(bound, fresh, definition, batch) for bound, fresh in pairs)


@pytest.mark.parametrize("seed", [*range(6), *fresh_seeds(2)])
def test_bound_programs_are_those_compiled_anew_and_run_as_the_naive_machine(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print("seed", seed)
    r = random.Random(seed)
    definition = definition_of(r)
    batch = Batch(definition, r, 12)
    made = made_of(monkeypatch)
    cases = good = 0
    for number_ in range(200):
        if number_ % 8 == 0:  # another shape
            seed_of_shape, strange = r.getrandbits(32), r.choice([0.0, 0.3, 1.0])

        # Constants of the column's type, so that most draws have one shape, or of any type.
        def pick(kind: Any, strange: float = strange) -> Any:
            return constant_of(kind, r) if r.random() < strange else value_of(kind, r)

        cases += 3
        good += check_case(definition, batch, random.Random(seed_of_shape), pick)
    compilations = len(made) - cases
    print(cases, "cases,", good, "compile,", cases - compilations, "bound")
    assert good > 30 and compilations < cases


@pytest.mark.parametrize(
    "build",
    [
        lambda x: (col("a") == x % 5) & (col("id") + x > 3),
        lambda x: col("s").starts_with("ab" * (x % 9)) | (col("c") == "x" * x),
        lambda x: (col("d") >= Decimal(x) / 100) & (col("d") - Decimal(x) / 4 < Decimal(x)),
        lambda x: col("u") + x > 2**63 + x,
        lambda x: (col("x") < x + 0.5) | (col("x") / x > 2),
        lambda x: (col("day") + datetime.timedelta(x)) < datetime.date(2020, 1, 1) + datetime.timedelta(x),
        lambda x: col("e").isin(["red", "green"][x % 2 :]) if x % 2 else col("e").isin(["red"]),
        lambda x: col("id").isin([x, x + 1, x + 2]) & ~col("a").isin([x, -x - 1]),
    ],
)
def test_constants_that_vary_are_bound_and_not_compiled(
    build: Callable[[int], Expression], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.compile_filter(TABLE, build(1))
    made = made_of(monkeypatch)
    for x in range(1, 60):
        where = build(x)
        bound = compiled.compile_filter(TABLE, where)
        sent = compiled.compile_filter(TABLE, unpack(pack(where)))  # as a server receives it
        assert bound.words.tolist() == sent.words.tolist()
    assert made == []


def test_a_node_that_occurs_twice_is_two_constants() -> None:
    five = col("a") + 5
    compiled.compile_filter(TABLE, five > five)
    for one, other in ((7, 9), (9, 7), (5, 5)):
        where = (col("a") + one) > (col("a") + other)
        fresh = expression_programs.compile_filter(TABLE, where).program
        assert compiled.compile_filter(TABLE, where).words.tolist() == fresh.words.tolist()


def test_names_that_look_like_operators_are_no_operators() -> None:
    names = ["eq", "+", "Col"]
    table = TableDefinition(1, 1, "t", tuple(tm.Column(name, tm.Int64) for name in ("id", *names)), ("id",))
    programs = [
        compiled.compile_filter(table, where).words.tolist()
        for where in [*(col(name) == 1 for name in names), *(col(name) + 1 == 1 for name in names)]
    ]
    assert len({tuple(each) for each in programs}) == len(programs)


def test_threads_bind_constants_of_one_shape_without_mixing_them() -> None:
    wrong: list[Any] = []
    begun = threading.Barrier(6)

    def bind(thread: int) -> None:
        begun.wait()
        for x in range(thread, 1_200, 6):
            text = f"{x}" * (x % 7)
            words = compiled.compile_filter(TABLE, (col("b") == x) & (col("s") == text) & (col("u") > 2**64 - x))
            octets = words.words.tobytes()
            if text.encode() not in octets or x not in words.words or (2**64 - x) % 2**64 not in words.words.view("u8"):
                wrong.append(x)

    at_once(bind, range(6))
    assert wrong == []


def test_calls_with_constants_of_one_shape_over_versions_of_a_table() -> None:
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32), tm.Column("d", tm.Decimal(9, 2))]
    with open_memory(MemoryFiles()) as db:
        table = db.create_table("t", columns, primary_key="id")
        table.insert_many([(key, key % 10, Decimal(key)) for key in range(100)])
        for step in range(3):
            for k in range(12):
                assert {row.id for row in table.scan(where=col("n") == k)} == {x for x in range(100) if x % 10 == k}
                assert table.scan(where=col("n") == k).sum("id") == (450 + 10 * k if k < 10 else None)
            assert table.update(93, {"d": col("d") - Decimal("1.50")}, where=col("d") >= Decimal("1.5000"))
            assert not table.update(4, {"d": col("d") - Decimal(5)}, where=col("d") >= Decimal(5))
            assert table.update_where({"d": col("d") + step}, where=col("n") == 7) == 10
            assert table.delete_where((col("n") == 7) & (col("id") == 10_000 + step)) == 0
            if step == 0:
                db.add_column("t", tm.Column("later", tm.Int64, nullable=True))
            elif step == 1:
                db.drop_column("t", "later")
        assert (table[93].d, table[4].d, table[7].d) == (Decimal("88.50"), 4, 10)


def test_decimals_are_fitted_to_the_column_and_share_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled.compile_update(TABLE, {"d": col("d") - Decimal("1.25")})
    made = made_of(monkeypatch)
    for given in ("950.0000", "1", "1.5", "0.25", "-3", "1E+3", "0"):
        compiled.compile_update(TABLE, {"d": col("d") - Decimal(given)})
    assert made == []
    with pytest.raises(tm.ProgramInvalid, match="at most 2 digits after the point, got 3"):
        compiled.compile_update(TABLE, {"d": col("d") - Decimal("0.001")})
    with pytest.raises(tm.ProgramInvalid, match="compute with Decimal values of at most 2 digits"):
        compiled.compile_update(TABLE, {"d": col("d") * 1.5})
    with pytest.raises(tm.ProgramInvalid, match="compute with whole numbers"):
        compiled.compile_update(TABLE, {"a": col("a") / 2})


def test_one_row_is_judged_without_memory_for_a_vector() -> None:
    with open_memory(MemoryFiles()) as db:
        table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], primary_key="id")
        table.insert((1, 5))
        entry = np.array([0, 0, 0, 1, 5], dtype=np.int64)
        program = compiled.compile_filter(table.definition, col("n") == 5)
        running.is_accepted(program, table.table, entry)
        tracemalloc.start()
        try:
            for _ in range(3):
                assert running.is_accepted(program, table.table, entry)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 4_096


def test_nodes_are_immutable_and_copy_and_pickle() -> None:
    where = ((col("a") + 1 > 3) & ~col("b").isin([1, None])) | col("s").like("a%") | col("d").is_null()
    for each in (pickle.loads(pickle.dumps(where)), copy.copy(where), copy.deepcopy(where)):
        assert repr(each) == repr(where)
        assert (each.parts, each.depth) == (where.parts, where.depth)
    for node, name in ((col("a"), "name"), (where, "operands"), (col("a") + 1, "left"), (col("a") == 1, "other")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(node, name, 1)


@pytest.mark.parametrize("seed", fresh_seeds(3))
def test_plain_numbers_are_lowered_as_all_others(seed: int) -> None:
    """Most constants are lowered without the function of their lowering, which is the twin here."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    kinds = [
        tm.Int8,
        tm.UInt8,
        tm.Int64,
        tm.UInt64,
        tm.Decimal(9, 2),
        tm.Decimal(18, 0),
        tm.Decimal(38, 10),
        tm.Float64,
    ]
    besides = [None, *(Kind(each, scale) for each in (INTEGER, WIDE) for scale in (0, 2, 10)), Kind(FLOAT)]
    ends = [0, 1, 2**7, 2**8, 2**63, 2**64, 2**127, 10**9, 10**18, 10**38, rng.randrange(10**40), rng.randrange(10**12)]
    for _ in range(4_000):
        whole = rng.choice([1, -1]) * (rng.choice(ends) + rng.randrange(-2, 3))
        exponent = rng.choice([0, -1, -2, -2, -3, -10, 1, 30])
        number = Decimal((whole < 0, tuple(map(int, str(abs(whole)))), exponent))
        value = rng.choice([whole, number, number, float(whole), whole % 2 == 0, Decimal("NaN"), "1", None])
        if rng.random() < 0.5:
            column = tm.Column("c", rng.choice(kinds))
            lowering = Lowering(compared, ("t", column, rng.choice(["eq", "lt", "ge"])), (0,), False)
        else:
            lowering = Lowering(lowering_of_number, ("t", rng.choice(besides)), (0,), False)
        found, wanted = (_outcome(call, lowering, value) for call in (lower_all, _one_by_one))
        assert found == wanted, (lowering.arguments, value)


def _one_by_one(lowerings: Any, values: Any) -> Any:
    lowered = [each.of(values) for each in lowerings]
    return tuple(structure for structure, _ in lowered), [form for _, forms in lowered for form in forms]


def _outcome(call: Any, lowering: Any, value: Any) -> Any:
    try:
        return repr(call([lowering], [value]))
    except tm.Error as error:
        return type(error), str(error)
