"""Rows: tuples whose values have the names of their columns. No name is changed, and rows pickle."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random

import numpy as np
import pytest

from tidemark.engine.base.errors import NoSuchColumn
from tidemark.engine.rows.row import Row, row_class

NAMES = ("id", "class", "two words", "count", "index", "_own", "naïve", "$ROWID", "_0", "0", "_fields")
VALUES = (7, "first", None, 3, 4.5, b"own", True, 1, "zero", "0", "fields")


def a_row() -> Row:
    row: Row = row_class(NAMES)(*VALUES)
    return row


def test_every_column_is_found_by_its_name() -> None:
    """A second column `class` became the attribute `_1`, and `row["name"]` was a TypeError."""
    row = a_row()
    assert [row[name] for name in NAMES] == list(VALUES)
    assert row[np.str_("class")] == "first"
    assert (row.id, row.count, row.index, row.naïve) == (7, 3, 4.5, True)
    assert row._fields == NAMES and row._asdict() == dict(zip(NAMES, VALUES, strict=True))


def test_columns_that_are_no_attributes_are_found_in_brackets_alone() -> None:
    row = a_row()
    for name in ("class", "two words", "_own", "$ROWID", "_0"):
        with pytest.raises(AttributeError, match="is no attribute of a row; use row") as refused:
            getattr(row, name)
        assert f'use row["{name}"]' in str(refused.value)
    with pytest.raises(AttributeError, match="the row has no column 'Id'; its columns are id, class"):
        _ = row.Id
    with pytest.raises(AttributeError, match="^a row has no attribute '__array_interface__'$"):
        _ = row.__array_interface__
    assert not hasattr(row, "_1")


def test_an_unknown_name_in_brackets_is_answered_with_the_nearest() -> None:
    with pytest.raises(NoSuchColumn, match="^the row has no column 'clas'; did you mean class"):
        _ = a_row()["clas"]
    with pytest.raises(NoSuchColumn, match="did you mean count"):
        a_row()._replace(counts=1)


def test_a_row_is_the_tuple_of_its_values() -> None:
    row = a_row()
    assert row == VALUES and hash(row) == hash(VALUES) and isinstance(row, tuple) and len(row) == len(VALUES)
    assert [*row] == [*VALUES] and tuple(reversed(row)) == VALUES[::-1] and VALUES[2] in row
    for seed in range(200):
        draw = random.Random(seed)
        size = len(VALUES)
        place = draw.randrange(-size, size)
        assert row[place] == VALUES[place] and row[np.int64(place)] == VALUES[place], seed
        start, stop = draw.randrange(-20, 20), draw.randrange(-20, 20)
        assert row[start:stop] == VALUES[start:stop] and row[stop :: draw.choice([1, 2, -1])] is not None, seed
    for place in (len(VALUES), -len(VALUES) - 1, 10**30):
        with pytest.raises(IndexError):
            _ = row[place]
    for key in (None, 1.5, [1], (1,)):
        with pytest.raises(TypeError):
            _ = row[key]


def test_a_row_without_such_columns_has_the_methods_of_a_tuple() -> None:
    row = row_class(("a", "b"))(5, 5)
    assert row.count(5) == 2 and row.index(5) == 0


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_rows_pickle_and_come_back_as_the_same_class(protocol: int) -> None:
    """No row pickled, since its class was in no module."""
    row = a_row()
    back = pickle.loads(pickle.dumps(row, protocol))
    assert back == row and type(back) is type(row) and back["class"] == "first"


def test_rows_are_copied_and_replaced() -> None:
    row = row_class(("id", "class"))(1, [2])
    deep = copy.deepcopy(row)
    assert deep == row and deep["class"] is not row["class"] and type(deep) is type(copy.copy(row)) is type(row)
    changed = row._replace(id=9, **{"class": 3})
    assert changed == (9, 3) and type(changed) is type(row) and row == (1, [2])


def test_what_rebuilds_named_tuples_rebuilds_rows() -> None:
    """`dataclasses.asdict` makes a named tuple again of its values, as other libraries do."""

    @dataclasses.dataclass
    class Order:
        item: Row

    rebuilt = dataclasses.asdict(Order(a_row()))["item"]
    assert rebuilt == a_row() and type(rebuilt) is type(a_row())


def test_a_row_has_one_value_for_each_name() -> None:
    with pytest.raises(TypeError, match=r"^a row takes one value for each of its columns \(2\), got 1$"):
        row_class(("a", "b"))(1)


def test_repr_shows_every_column() -> None:
    assert repr(row_class(("id", "name"))(1, "pen")) == "Row(id=1, name='pen')"
    assert repr(row_class(("id", "class", "_x"))(1, 3, None)) == "Row(id=1, **{'class': 3, '_x': None})"
    assert repr(row_class(("class",))(3)) == "Row(**{'class': 3})"


def test_classes_of_rows_are_kept() -> None:
    assert row_class(NAMES) is row_class(tuple(NAMES)) and row_class(NAMES).__mro__[1] is Row
