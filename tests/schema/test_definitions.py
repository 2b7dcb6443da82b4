"""Definitions of tables whose columns change: their content, what is refused, and that older ones are still read."""

from __future__ import annotations

import copy
import enum
import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

import tidemark as tm
from tidemark.engine.programs.checks import check_definition
from tidemark.engine.schema.column import ABSENT
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.store.schema_changes import (
    is_change_of_columns,
    with_column,
    with_default,
    with_name,
    with_renamed_column,
    with_wider_column,
    without_column,
)
from tidemark.engine.types import from_json


def plain() -> TableDefinition:
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32, nullable=True), tm.Column("x", tm.Float64)]
    return TableDefinition(3, 1, "t", tuple(columns), ("id",))


def test_definition_after_any_change_comes_back_equal_from_json() -> None:
    definition = without_column(with_column(plain(), tm.Column("a", tm.Decimal(30, 2), default=7)), "n")
    again = TableDefinition.from_json(definition.to_json())
    assert again == definition and again.to_json() == definition.to_json()
    assert json.loads(definition.to_json())["format"] == 3
    assert json.loads(with_column(plain(), tm.Column("a", tm.Int8, default=7)).to_json())["format"] == 2


def test_column_that_an_older_program_dropped_is_refused_with_what_to_do() -> None:
    """A program that wrote format 2 for dropped columns moved the columns beside them: its rows are laid out in two
    ways. They are not read as if nothing had happened; the error names the table and the columns.
    """
    value = json.loads(without_column(plain(), "n").to_json())
    value["format"] = 2
    with pytest.raises(tm.VersionTooOld, match=r"table main\.t .*dropped columns \(n\).*restore a backup") as found:
        TableDefinition.from_json(json.dumps(value).encode())
    assert found.value.evidence == {"table": "main.t", "found": 2, "supported": 3}


def test_defaults_are_equal_if_their_bytes_are() -> None:
    """Story: NaN is not equal to itself, so two nodes with one table received the error that its definitions differ."""
    definition = with_column(plain(), tm.Column("a", tm.Float32, default=float("nan")))
    again = TableDefinition.from_json(definition.to_json())
    assert again == definition and hash(again) == hash(definition) and again.to_json() == definition.to_json()
    zeros = [tm.Column("a", tm.Float64, default=zero) for zero in (0.0, -0.0, 0.0)]
    assert zeros[0] != zeros[1] and zeros[0] == zeros[2] and zeros[0] != "a"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda column: pickle.loads(pickle.dumps(column))])
def test_column_without_a_default_is_copied_without_one(copied: Any) -> None:
    """Story: the default of a copy was an unknown object, which no value of the column may be."""
    column = tm.Column("a", tm.Int64)
    again = copied(column)
    assert again == column and hash(again) == hash(column) and not again.has_default


def test_json_from_before_there_were_changes_is_read_and_stays_as_it_was() -> None:
    definition = plain()
    value = json.loads(definition.to_json())
    assert value["format"] == 1 and "dropped" not in value and "added" not in value["columns"][0]
    assert TableDefinition.from_json(definition.to_json()) == definition
    with pytest.raises(tm.SchemaInvalid):
        TableDefinition.from_json(json.dumps({**value, "format": 7}).encode())
    checked = replace(definition, checks=(check_definition("c", tm.col("n") > 0),))
    value = json.loads(checked.to_json())
    assert value["format"] == 4, "older programs refuse it: they would write rows that break the check"
    assert TableDefinition.from_json(checked.to_json()) == checked != definition
    for wrong in ({"name": "c"}, {"name": "c", "nodes": 7}, {"name": "c", "nodes": [["Col", 0, 7]]}, 7):
        with pytest.raises(tm.SchemaInvalid):
            TableDefinition.from_json(json.dumps({**value, "checks": [wrong]}).encode())
    seen = tm.Column("seen", tm.Timestamp, nullable=True)
    expiring = replace(checked, columns=(*checked.columns, seen), expires="seen+60 min")
    value = json.loads(expiring.to_json())
    assert (value["format"], value["expires"]) == (5, "seen + 1 h"), "programs that know checks would lose it"
    assert TableDefinition.from_json(expiring.to_json()) == expiring != replace(expiring, expires=None)
    assert json.loads(replace(expiring, expires=None).to_json())["format"] == 4
    for text in ("n + 1 h", "none + 1 h", "seen + 1", "", 7, {}):
        with pytest.raises(tm.Rejected):
            TableDefinition.from_json(json.dumps({**value, "expires": text}).encode())


@pytest.mark.parametrize("at", [-1, 4, "0", None])
def test_dropped_column_at_an_impossible_place_is_refused(at: object) -> None:
    definition = without_column(plain(), "n")
    value = json.loads(definition.to_json())
    value["dropped"][0]["at"] = at
    with pytest.raises(tm.SchemaInvalid):
        TableDefinition.from_json(json.dumps(value).encode())


def test_default_of_rows_that_are_there_stays_when_the_default_is_changed() -> None:
    added = with_column(plain(), tm.Column("a", tm.Int64, default=5))
    changed = with_default(added, "a", 6)
    assert (changed.columns[3].missing, changed.columns[3].when_absent) == (6, 5)
    assert with_default(changed, "a", ABSENT).columns[3].missing is ABSENT


@pytest.mark.parametrize(
    ("narrow", "wide", "expected"),
    [
        (tm.VarChar(3), tm.VarChar(4), True),
        (tm.VarChar(3), tm.Text, True),
        (tm.VarChar(3), tm.VarChar(2), False),
        (tm.VarChar(3), tm.VarBinary(12), False),
        (tm.VarBinary(3), tm.Blob, True),
        (tm.VarBinary(3), tm.VarBinary(9), True),
        (tm.Enum("a"), tm.Enum("a", "b"), True),
        (tm.Enum("a", "b"), tm.Enum("b", "a"), False),
        (tm.Decimal(9, 2), tm.Decimal(18, 2), True),
        (tm.Decimal(9, 2), tm.Decimal(19, 2), False),
        (tm.Decimal(20, 2), tm.Decimal(38, 2), True),
        (tm.Decimal(9, 2), tm.Decimal(10, 3), False),
        (tm.Int32, tm.Int64, False),
        (tm.Text, tm.VarChar(9), False),
    ],
)
def test_only_types_with_the_same_stored_bytes_are_wider(narrow: Any, wide: object, expected: bool) -> None:
    assert narrow.can_become(wide) is expected


def test_renamed_column_is_followed_by_key_partition_and_indexes() -> None:
    columns = (tm.Column("a", tm.Int64), tm.Column("b", tm.VarChar(5)))
    index = TableDefinition(1, 1, "t", columns, ("a",)).indexes
    definition = TableDefinition(
        1, 1, "t", columns, ("a", "b"), tm.RangePartition("a", [("p", 5), ("q", 9)]), None, index
    )
    after = with_renamed_column(definition, "a", "c")
    assert after.primary_key == ("c", "b") and after.partition.columns == ("c",)  # type: ignore[attr-defined]
    assert after.partition.names == ("p", "q") and after.partition.numbers == definition.partition.numbers
    hashed = TableDefinition(1, 1, "t", columns, ("a",), tm.HashPartition(3, modulo="a"))
    assert with_renamed_column(hashed, "a", "z").partition.modulo == "z"  # type: ignore[attr-defined]


@pytest.mark.parametrize("default", [float("nan"), 1.5])
def test_every_change_is_distinguished_from_one_that_rows_would_not_survive(default: float) -> None:
    """A restart accepts only steps that leave rows readable; NaN equals nothing, but its bytes equal themselves."""
    before = with_column(plain(), tm.Column("f", tm.Float64, default=default))
    before = TableDefinition.from_json(before.to_json())
    steps = [
        with_column(before, tm.Column("s", tm.VarChar(3), nullable=True)),
        without_column(before, "f"),
        with_renamed_column(before, "f", "g"),
        with_name(before, "other.t"),
        with_default(before, "f", 3.5),
    ]
    for after in steps:
        assert is_change_of_columns(before, TableDefinition.from_json(after.to_json()))
    wide = with_column(before, tm.Column("s", tm.VarChar(3), nullable=True))
    assert is_change_of_columns(wide, with_wider_column(wide, "s", tm.VarChar(9)))
    other = TableDefinition(3, 3, "t", (*before.columns[:2], tm.Column("x", tm.Int64), before.columns[3]), ("id",))
    assert not is_change_of_columns(before, other)
    assert not is_change_of_columns(without_column(before, "f"), before)


class Colour(str, enum.Enum):  # noqa: UP042
    """Texts as members of an enum."""

    RED = "red"
    BLUE = "blue"


def test_members_of_an_enum_of_texts_are_their_values() -> None:
    """Story: "red" was stored, and "Colour.RED" came back."""
    kind = tm.Enum(*Colour)
    assert kind == tm.Enum("red", "blue") and all(type(each) is str for each in kind.members)
    for each in (kind, from_json(kind.to_json()), pickle.loads(pickle.dumps(kind)), copy.deepcopy(kind)):
        assert each == kind and hash(each) == hash(kind)
        for given in ("blue", Colour.BLUE):
            assert each.loaded(each.stored(given)) == "blue"
