"""Filters of Spark as conditions of the store: no row that Spark would take is ever left out."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from recovery.spark.filters import condition_of, fragments_of
from recovery.spark.plan import make_plan
from recovery.spark.rows import read_task
from tests.spark.support import SMALL

spark = pytest.importorskip("pyspark.sql.datasource", reason="Spark is not installed; pip install 'tidemark[spark]'")

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("u", tm.UInt64, nullable=True),
    tm.Column("d", tm.Decimal(10, 2), nullable=True),
    tm.Column("s", tm.VarChar(10), nullable=True),
    tm.Column("c", tm.Char(5), nullable=True),
    tm.Column("e", tm.Enum("b", "a"), nullable=True),
    tm.Column("f", tm.Float64, nullable=True),
    tm.Column("day", tm.Date, nullable=True),
    tm.Column("at", tm.Timestamp, nullable=True),
    tm.Column("yes", tm.Bool, nullable=True),
]
VALUES: dict[str, list[Any]] = {
    "id": [0, 5, 77, 10**12],
    "u": [Decimal(0), Decimal(7), Decimal(2**64 - 1), Decimal(2**65)],
    "d": [Decimal("1.50"), Decimal("-3"), Decimal("99999999.99"), Decimal("1.505")],
    "s": ["", "a", "ab", "b", "ä"],
    "c": ["", "a", "ab", "b", "toolongtext"],
    "e": ["a", "b", "c"],
    "f": [0.0, float("nan"), 2.5],
    "day": [date(2020, 1, 1), date(1999, 12, 31)],
    "at": [datetime(2020, 1, 1, tzinfo=UTC)],
    "yes": [True, False],
}
ORDER = ["EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    rng = random.Random(4)
    root = tmp_path_factory.mktemp("filters")
    rows = []
    for key in range(300):
        row: dict[str, Any] = {"id": key}
        for name, values in VALUES.items():
            fitting = {"u": 3, "d": 3, "c": 4, "e": 2}.get(name, len(values))
            row.setdefault(name, rng.choice([*values[:fitting], None]))
        rows.append(row)
    with tm.open(root / "store", **SMALL) as db:
        db.create_table("t", COLUMNS, "id", partition=tm.HashPartition(4))
        db["t"].insert_many([{**row, "u": None if row["u"] is None else int(row["u"])} for row in rows])
        db.backup(root / "place")
    return root / "place", rows


def taken(row: dict[str, Any], each: Any) -> bool | None:
    """Whether Spark takes a row: NULL compared is NULL, NaN equals itself and is greater than all numbers."""
    kind = type(each).__name__
    if kind == "Not":
        inner = taken(row, each.child)
        return None if inner is None else not inner
    value = row[each.attribute[0]]
    if kind in ("IsNull", "IsNotNull"):
        return (value is None) == (kind == "IsNull")
    if value is None:
        return None
    if kind == "In":
        return any(order(value) == order(one) for one in each.value)
    if kind.startswith("String"):
        name = {"StringStartsWith": "startswith", "StringEndsWith": "endswith", "StringContains": "__contains__"}[kind]
        return bool(getattr(value, name)(each.value))
    one, other = order(value), order(each.value)
    names = {"EqualTo": "__eq__", "GreaterThan": "__gt__", "GreaterThanOrEqual": "__ge__"}
    return bool(getattr(one, {**names, "LessThan": "__lt__", "LessThanOrEqual": "__le__"}[kind])(other))


def order(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return (value != value, 0.0 if value != value else value) if isinstance(value, float) else value


def random_filter(rng: random.Random) -> Any:
    name = rng.choice(list(VALUES))
    attribute = (name,)
    choice = rng.randrange(10)
    if choice == 0:
        return spark.IsNull(attribute)
    if choice == 1:
        return spark.IsNotNull(attribute)
    if choice == 2:
        return spark.In(attribute, tuple(rng.sample(VALUES[name], rng.randrange(1, len(VALUES[name]) + 1))))
    if choice == 3 and name in ("s", "c"):
        kind = rng.choice(["StringStartsWith", "StringEndsWith", "StringContains"])
        return getattr(spark, kind)(attribute, rng.choice(["", "a", "%", "_", "ä"]))
    if choice == 4:
        return spark.Not(spark.EqualTo(attribute, rng.choice(VALUES[name])))
    return getattr(spark, rng.choice(ORDER))(attribute, rng.choice(VALUES[name]))


def test_random_filters_leave_out_no_row_spark_would_take(place: tuple[Path, list[dict[str, Any]]]) -> None:
    seed = 2026
    print(f"seed {seed}")
    rng = random.Random(seed)
    plan = make_plan({"path": str(place[0]), "columns": "id"})
    definition = plan.origin.definition
    pushed = exact = 0
    for _ in range(400):
        filters = [random_filter(rng) for _ in range(rng.randrange(1, 4))]
        want = {row["id"] for row in place[1] if all(taken(row, each) for each in filters)}
        where = condition_of(definition, filters)
        tasks = plan.divided(where, None if where is None else fragments_of(definition, where))
        got = {key for task in tasks for batch in read_task(task) for key in batch.column(0).to_pylist()}
        assert want <= got, filters
        pushed += where is not None
        exact += where is not None and want == got
    assert pushed > 300 and exact > 200, (pushed, exact)


def test_condition_on_the_key_reads_one_fragment_alone(place: tuple[Path, list[dict[str, Any]]]) -> None:
    plan = make_plan({"path": str(place[0])})
    where = condition_of(plan.origin.definition, [spark.EqualTo(("id",), 77)])
    assert where is not None
    fragments = fragments_of(plan.origin.definition, where)
    assert fragments is not None and len(fragments) == 1
    (task,) = plan.divided(where, fragments)
    assert len(task.parts) == 1
    assert [row["id"] for batch in read_task(task) for row in batch.to_pylist()] == [77]


@pytest.mark.parametrize(
    "each",
    [
        spark.EqualTo(("f",), 1.0),
        spark.GreaterThan(("e",), "a"),
        spark.EqualTo(("id", "inner"), 1),
        spark.EqualTo(("nothing",), 1),
        spark.Not(spark.GreaterThan(("id",), 1)),
        spark.StringContains(("s",), "a"),
    ],
)
def test_filter_the_store_could_judge_otherwise_is_left_to_spark(
    place: tuple[Path, list[dict[str, Any]]], each: Any
) -> None:
    assert condition_of(make_plan({"path": str(place[0])}).origin.definition, [each]) is None
