"""Two sites use one value of a unique index in different rows: the channels continue, and both sites end equal."""

from __future__ import annotations

from typing import Any

import pytest

import tidemark as tm
from tests.replication.test_channel_stores import PASSES_ON, site
from tests.replication.two_sites import EPOCH_FUNCTIONS, Pair


@pytest.fixture
def pair_of() -> Any:
    made: list[Pair] = []

    def one(*given: Any, **options: Any) -> Pair:
        made.append(Pair(*given, **options))
        return made[-1]

    yield one
    for each in made:
        each.close()


@pytest.mark.parametrize("binlog_type", [6, 7])
@pytest.mark.parametrize("function", EPOCH_FUNCTIONS)
def test_one_unique_value_inserted_at_both_sites_is_the_primarys_and_is_reported(
    pair_of: Any, function: str, binlog_type: int
) -> None:
    """Story: each site inserted another row with the value 'a'. At the primary's row the secondary met DuplicateKey
    with every retry, and never got to the refresh that removes its own row.
    """
    pair = pair_of(function, binlog_type, is_unique=True)
    pair.primary["shop.item"].insert((1, "a", "primary"))
    pair.secondary["shop.item"].insert((2, "a", "secondary"))
    pair.turn(3)
    assert pair.rows() == [{1: ("a", "primary")}] * 2
    reported = [(row.id, row[4], row[5]) for row in pair.secondary["shop.item$EX"].scan()]
    assert reported == [(2, "WRITE_ROW", "ROW_ALREADY_EXISTS")]
    assert [row.id for row in pair.primary["shop.item$EX"].scan()][0] == 2


@pytest.mark.parametrize("function", EPOCH_FUNCTIONS)
def test_row_that_conflicted_comes_back_as_the_primary_has_it(pair_of: Any, function: str) -> None:
    """Story: the secondary gave the value to a row that both sites have. The row is removed there, and must come
    back.
    """
    pair = pair_of(function, 7, is_unique=True)
    pair.primary["shop.item"].insert((2, "b", "both"))
    pair.turn(2)
    pair.primary["shop.item"].insert((1, "a", "primary"))
    pair.secondary["shop.item"].update(2, {"u": "a"})
    pair.turn(3)
    assert pair.rows() == [{1: ("a", "primary"), 2: ("b", "both")}] * 2


@pytest.mark.parametrize("function", EPOCH_FUNCTIONS)
def test_row_that_the_primary_has_taken_meanwhile_is_lost_at_both_sites_alike(pair_of: Any, function: str) -> None:
    """Story: when the secondary's row arrives, its value is free again at the primary. By then the secondary has
    removed the row, and reports that, because the primary had no reason to send the row again.
    """
    pair = pair_of(function, 7, is_unique=True)
    pair.primary["shop.item"].insert((1, "a", "primary"))
    pair.secondary["shop.item"].insert((2, "a", "secondary"))
    pair.primary.advance_epoch()
    pair.primary["shop.item"].update(1, {"u": "c"})
    pair.turn(1, first="primary")
    pair.turn(3)
    assert pair.rows()[0] == pair.rows()[1]
    assert pair.rows()[0][1] == ("c", "primary")


@pytest.mark.parametrize("function", EPOCH_FUNCTIONS)
def test_refresh_and_change_of_one_epoch_that_share_a_value_clash_with_nothing(pair_of: Any, function: str) -> None:
    """Story: in one epoch a refresh frees the value, but comes after the change that takes the value."""
    pair = pair_of(function, 7, is_unique=True)
    pair.primary["shop.item"].insert_many([(1, "a", "both"), (2, "b", "both")])
    pair.turn(2)
    pair.primary["shop.item"].update(1, {"note": "primary"})
    pair.secondary["shop.item"].update(1, {"u": "x"})
    pair.secondary["shop.item"].update(2, {"u": "a"})
    pair.turn(3)
    assert pair.rows()[0] == pair.rows()[1]
    assert pair.rows()[0][1] == ("a", "primary") and pair.primary.check()["is_sound"]


def test_conflicting_row_without_function_makes_room_for_the_sources() -> None:
    """Story: a replica had the value in a row of its own, and stopped at the source's row with it, for good."""
    a, b = site(1, **PASSES_ON), site(2, **PASSES_ON)
    columns = [tm.Column("id", tm.Int64), tm.Column("u", tm.VarChar(9), nullable=True)]
    a.create_table("shop.item", columns, primary_key="id")
    a.create_index("shop.item", "by_u", ["u"], unique=True)
    a.advance_epoch()
    with tm.Channel(a, b) as channel:
        channel.apply_all()
        b["shop.item"].insert_many([(8, "x"), (9, "y"), (7, None)])
        with a.transaction() as txn:
            txn.insert("shop.item", (1, "y"))
            txn.insert("shop.item", (2, "x"))
            txn.insert("shop.item", (3, "z"))
        a.advance_epoch()
        channel.apply_all()
        assert {row.id: row.u for row in b["shop.item"].scan()} == {1: "y", 2: "x", 3: "z", 7: None}
        assert b.check()["is_sound"]
    a.close()
    b.close()
