"""Each world outside the store has a row for each class of column types, or refuses it with a message.

Values in calls of clients have no column; they are packed by Python class, and none may be lacking there either.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

import tidemark as tm
from tidemark.engine.base.errors import Error
from tidemark.engine.types.base import ColumnType, families
from tidemark.pushdown.necessary import LIKENESSES
from tidemark.recovery.spark.types import SPARK_TYPES, arrow_type
from tidemark.replication.binlog.types import OUTGOING, outgoing
from tidemark.replication.calls.values import pack, unpack
from tidemark.replication.ingest.source_types import SOURCE_TYPES
from tidemark.replication.settings.exceptions_table import MEASURES, is_same_or_larger
from tidemark.replication.sql.column_types import SQL_TYPES, to_sql
from tidemark.typed_rows import TYPES, columns_of

# A type of each class, and a value of it.
EXAMPLES: dict[ColumnType, Any] = {
    tm.Bool: True,
    tm.Int32: -7,
    tm.Float64: 0.5,
    tm.Decimal(5, 2): Decimal("1.50"),
    tm.Enum("a", "b"): "b",
    tm.Char(3): "é",
    tm.VarChar(3): "é",
    tm.Text: "é",
    tm.Binary(3): b"\0a\0",
    tm.VarBinary(3): b"\0a",
    tm.Blob: b"\0a",
    tm.UUID: uuid.UUID(int=1 << 64),
    tm.JSON: {"a": [1, 2.5, None, True, 10**30]},
    tm.Date: date(2026, 11, 30),
    tm.Time: time(7, 21),
    tm.DateTime: datetime(2026, 11, 30, 7, 21),
    tm.Timestamp: datetime(2026, 11, 30, 7, 21, tzinfo=UTC),
}


class Planted(ColumnType):
    """A class without rows."""

    python = complex

    def stored(self, value: Any) -> Any:
        return value


@dataclasses.dataclass(frozen=True)
class Outer:
    """A world outside the store: its table; `asked`, a call that looks a type up; and `refused`, what the call says of
    the classes that have no row on purpose.
    """

    name: str
    table: Mapping[type[ColumnType], Any]
    asked: Callable[[ColumnType], Any]
    refused: Mapping[type[ColumnType], str] = dataclasses.field(default_factory=dict)


def _columns(kind: ColumnType) -> Any:
    return columns_of(dataclasses.make_dataclass("Row", [("value", type(EXAMPLES[kind]))]))


OUTER = (
    Outer("binlog", OUTGOING, outgoing),
    Outer("SQL", SQL_TYPES, to_sql),
    Outer("ingest", SOURCE_TYPES, lambda kind: SOURCE_TYPES[type(kind)]),
    Outer("exceptions tables", MEASURES, lambda kind: is_same_or_larger(kind, kind)),
    Outer("Spark", SPARK_TYPES, arrow_type),
    Outer("pushdown", LIKENESSES, lambda kind: LIKENESSES[type(kind)]),
    Outer(
        "typed rows",  # by Python class
        {type(kind): TYPES[type(value)] for kind, value in EXAMPLES.items() if type(value) in TYPES},
        _columns,
        {tm.Decimal: "Row.value: a Decimal column needs its digits; write Annotated[Decimal, tm.Decimal(10, 2)]"},
    ),
)


def faults(world: Outer, classes: Sequence[type[ColumnType]]) -> list[str]:
    """Return what is wrong with the rows of a world, a line each."""
    lacking = [each for each in classes if each not in world.table and each not in world.refused]
    unknown = [each for each in (*world.table, *world.refused) if each not in classes]
    both = [each for each in world.table if each in world.refused]
    return [
        *(f"{world.name} has neither a row nor a refusal for {each.__name__}" for each in lacking),
        *(f"{world.name} has a row or a refusal for {each.__name__}, which is no column type" for each in unknown),
        *(f"{world.name} has both a row and a refusal for {each.__name__}" for each in both),
    ]


@pytest.mark.parametrize("world", OUTER, ids=lambda world: world.name)
def test_each_class_of_types_has_a_row_or_is_refused_with_its_message(world: Outer) -> None:
    assert faults(world, families()) == []
    assert {type(kind) for kind in EXAMPLES} == set(families())
    for kind in EXAMPLES:
        if type(kind) not in world.refused:
            assert world.asked(kind)
            continue
        with pytest.raises(Error) as error:
            world.asked(kind)
        assert error.value.message == world.refused[type(kind)]


@pytest.mark.parametrize("world", OUTER, ids=lambda world: world.name)
def test_a_class_of_types_without_rows_is_found(world: Outer) -> None:
    assert faults(world, [*families(), Planted]) == [f"{world.name} has neither a row nor a refusal for Planted"]


@pytest.mark.parametrize("kind", EXAMPLES, ids=repr)
def test_a_value_of_each_class_is_sent_to_another_process(kind: ColumnType) -> None:
    value = EXAMPLES[kind]
    found = unpack(pack(value))
    assert type(value) is type(found)
    assert kind.python in (type(value), object)
    assert found == value == kind.loaded(kind.stored(value))


def test_a_row_of_no_class_and_a_row_beside_a_refusal_are_found() -> None:
    wrong = Outer("wrong", dict.fromkeys([*families(), Planted]), repr, {tm.Decimal: "refused"})
    assert faults(wrong, families()) == [
        "wrong has a row or a refusal for Planted, which is no column type",
        "wrong has both a row and a refusal for Decimal",
    ]
