"""Conditions of reads: to text and back; they accept the same rows as a scan."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.spark.support import SMALL, rows_in
from tidemark.engine.programs.expressions import Expression
from tidemark.recovery.spark.conditions import NESTING_MAX, from_text, to_text
from tidemark.recovery.spark.plan import make_plan

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("u", tm.UInt64, nullable=True),
    tm.Column("d", tm.Decimal(10, 2), nullable=True),
    tm.Column("s", tm.VarChar(10), nullable=True),
    tm.Column("e", tm.Enum("b", "a"), nullable=True),
    tm.Column("f", tm.Float64, nullable=True),
    tm.Column("day", tm.Date, nullable=True),
    tm.Column("at", tm.Timestamp, nullable=True),
    tm.Column("clock", tm.Time, nullable=True),
    tm.Column("raw", tm.VarBinary(5), nullable=True),
    tm.Column("yes", tm.Bool, nullable=True),
]
VALUES: dict[str, list[Any]] = {
    "id": [0, 5, 77],
    "u": [0, 7, 2**64 - 1],
    "d": [Decimal("1.50"), Decimal("-3")],
    "s": ["", "a", "ab", "ä"],
    "e": ["a", "b"],
    "f": [0.0, 0.1, float("nan")],
    "day": [date(2020, 1, 1), date(1999, 12, 31)],
    "at": [datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    "clock": [time(1, 2, 3, 4), time(0)],
    "raw": [b"", b"\x00\xff"],
    "yes": [True, False],
}


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tm.Database]:
    rng = random.Random(4)
    root = tmp_path_factory.mktemp("conditions")
    with tm.open(root / "store", **SMALL) as opened:
        opened.create_table("t", COLUMNS, "id", partition=tm.HashPartition(4))
        opened["t"].insert_many(
            [
                {"id": key, **{name: rng.choice([*values, None]) for name, values in VALUES.items() if name != "id"}}
                for key in range(300)
            ]
        )
        opened.backup(root / "place")
        opened.checkpoint()
        yield opened


def random_condition(rng: random.Random, depth: int) -> Expression:
    name = rng.choice(list(VALUES))
    column, value = tm.col(name), rng.choice(VALUES[name])
    if depth and rng.random() < 0.6:
        one, other = random_condition(rng, depth - 1), random_condition(rng, depth - 1)
        return rng.choice([one & other, one | other, ~one])
    made: list[Any] = [column == value, column != value, column.is_null(), column.isin(VALUES[name])]
    if name not in ("e", "yes"):
        made += [column < value, column >= value, column.between(value, value)]
    if name in ("id", "u", "d"):
        made += [column + 1 > value, column * 2 - 3 != value]
    if name == "s":
        made += [column.starts_with("a"), column.like("%b")]
    chosen: Expression = rng.choice(made)
    return chosen


def test_random_conditions_take_the_rows_a_scan_takes(db: tm.Database, tmp_path: Path) -> None:
    seed = 2026
    print(f"seed {seed}")
    rng = random.Random(seed)
    directory = Path(db.locator.directory)
    taken = set()
    for turn in range(120):
        where = random_condition(rng, rng.randrange(3))
        text = to_text(where)
        assert to_text(from_text(text)) == text
        try:
            want = sorted(row.id for row in db["t"].scan(columns=["id"], where=where))
        except tm.Rejected as error:
            with pytest.raises(type(error)):
                rows_in(directory, columns="id", where=text)
            continue
        place = directory if turn % 2 else directory.parent / "place"
        assert [row[0] for row in rows_in(place, columns="id", where=text)] == want, text
        taken.add(len(want))
    assert len(taken) > 20


def test_condition_on_the_key_reads_one_fragment_alone(db: tm.Database) -> None:
    place = Path(db.locator.directory).parent / "place"
    (task,) = make_plan({"path": str(place), "where": to_text(tm.col("id") == 77), "tasks": "4"}).split_into_tasks()
    assert len(task.parts) == 1


def test_condition_that_fails_on_a_row_names_its_key(db: tm.Database) -> None:
    place = Path(db.locator.directory).parent / "place"
    with pytest.raises(tm.ValueOutOfRange, match=r"does not fit its 64 or 128 bits in the row with key"):
        rows_in(place, where=to_text(tm.col("id") * 2**62 * 2**62 * 2**62 > 0))


@pytest.mark.parametrize(
    "text",
    [
        *("", "7", "[]", "null", '"id"', '{"Col": ["id"], "Not": []}', '{"Nothing": []}', '{"Col": []}'),
        *('{"Decimal": "x"}', '{"Constant": [{"bytes": "0"}]}', '{"Compare": 7}', "[" * 5_000),
        json.dumps({"Not": [None]}).replace("null", '{"Not": [' * (NESTING_MAX + 1) + "1" + "]}" * (NESTING_MAX + 1)),
    ],
)
def test_text_that_is_no_condition_is_refused(db: tm.Database, text: str) -> None:
    with pytest.raises(tm.SchemaInvalid, match="option where"):
        from_text(text)


def test_condition_of_other_columns_or_types_is_refused(db: tm.Database) -> None:
    place = Path(db.locator.directory).parent / "place"
    with pytest.raises(tm.NoSuchColumn):
        rows_in(place, where=to_text(tm.col("nothing") == 1))
    with pytest.raises(tm.ProgramInvalid, match="compared with numbers"):
        rows_in(place, where=to_text(tm.col("id") == "text"))
    with pytest.raises(tm.TypeMismatch, match="not a value of a column"):
        to_text(tm.col("id") == object())
