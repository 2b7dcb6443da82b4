"""Two sites use one value of a unique index in different rows: the channels continue, and both sites end equal."""

from __future__ import annotations

from typing import Any

import pytest

import tidemark as tm
from tests.replication.test_channel_stores import PASSES_ON, circle, site, turn
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
    pair.primary.parts.clockwork.advance_epoch()
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


VALUE_FUNCTIONS = ("NDB$OLD(stamp)", "NDB$MAX(stamp)", "NDB$MAX_INS(stamp)", "TM$GREATEST(stamp)")


@pytest.mark.parametrize("function", [None, *VALUE_FUNCTIONS])
def test_value_that_changes_hands_within_an_epoch_goes_down_a_chain(function: str | None) -> None:
    """Story: row 1 gave up a value, row 2 took it, row 1 changed again. The second site logged row 1, as the epoch left
    it, after row 2; the third one judged row 2 before, and refused it for good. (Simulation, seed 51300026.)
    """
    sites = [site(number, **PASSES_ON) for number in (1, 2, 3, 4)]
    columns = [
        tm.Column("id", tm.Int64),
        tm.Column("stamp", tm.UInt64),
        tm.Column("u", tm.VarChar(20), nullable=True),
    ]
    if function:
        for each in sites:
            each.create_replication_table().insert((b"shop", b"item", 0, 7, function.encode()))
    sites[0].create_table("shop.item", columns, primary_key="id")
    sites[0].create_index("shop.item", "by_u", ["u"], unique=True)
    channels = [tm.Channel(one, other) for one, other in zip(sites[:-1], sites[1:], strict=True)]
    source = sites[0]["shop.item"]

    def pass_on() -> None:
        for each, channel in zip(sites, channels, strict=False):
            each.parts.clockwork.advance_epoch()
            channel.apply_all()

    source.insert_many([(1, 1, "a"), (2, 1, "b"), (3, 1, "c")])
    pass_on()
    source.update(1, {"stamp": 2, "u": None})
    source.update(2, {"stamp": 2, "u": "a"})
    source.update(1, {"stamp": 3, "u": "b"})
    pass_on()
    with sites[0].transaction() as txn:
        txn.update("shop.item", 3, {"stamp": 4, "u": None})
        txn.update("shop.item", 2, {"stamp": 4, "u": "c"})
        txn.update("shop.item", 1, {"stamp": 4, "u": "a"})
        txn.update("shop.item", 3, {"stamp": 4, "u": "b"})
    pass_on()
    rows = [{row.id: (row.stamp, row.u) for row in each["shop.item"].scan()} for each in sites]
    assert rows == [{1: (4, "a"), 2: (4, "c"), 3: (4, "b")}] * 4
    assert all(each.check()["is_sound"] for each in sites)
    for each in sites:
        each.close()


@pytest.mark.parametrize("function", EPOCH_FUNCTIONS)
def test_rows_that_exchange_their_values_in_one_transaction_are_no_conflict(pair_of: Any, function: str) -> None:
    """Story: the primary refused a transaction of the secondary in which two rows exchanged their values."""
    pair = pair_of(function, 7, is_unique=True)
    pair.primary["shop.item"].insert_many([(1, "a", "both"), (2, "b", "both")])
    pair.turn(2)
    with pair.secondary.transaction() as txn:
        txn.update("shop.item", 1, {"u": None})
        txn.update("shop.item", 2, {"u": "a"})
        txn.update("shop.item", 1, {"u": "b"})
    pair.turn(3)
    assert pair.rows() == [{1: ("b", "both"), 2: ("a", "both")}] * 2
    assert pair.conflicts() == [0, 0]


@pytest.mark.parametrize("function", EPOCH_FUNCTIONS)
def test_rows_that_exchange_values_with_one_that_is_in_conflict_come_back_too(pair_of: Any, function: str) -> None:
    """Two rows exchange their values at the secondary while the primary changes one of them: both must come back."""
    pair = pair_of(function, 7, is_unique=True)
    pair.primary["shop.item"].insert_many([(1, "a", "both"), (2, "b", "both"), (3, "c", "both")])
    pair.turn(2)
    pair.primary["shop.item"].update(1, {"note": "primary"})
    with pair.secondary.transaction() as txn:
        txn.update("shop.item", 1, {"u": None})
        txn.update("shop.item", 2, {"u": "a"})
        txn.update("shop.item", 1, {"u": "b"})
    pair.secondary["shop.item"].update(2, {"note": "again"})
    pair.secondary["shop.item"].update(3, {"note": "later"})
    pair.turn(4)
    assert pair.rows() == [{1: ("a", "primary"), 2: ("b", "both"), 3: ("c", "later")}] * 2
    assert all(pair.conflicts())


def test_conflicting_row_without_function_makes_room_for_the_sources() -> None:
    """Story: a replica had the value in a row of its own, and stopped at the source's row with it, for good."""
    a, b = site(1, **PASSES_ON), site(2, **PASSES_ON)
    columns = [tm.Column("id", tm.Int64), tm.Column("u", tm.VarChar(9), nullable=True)]
    a.create_table("shop.item", columns, primary_key="id")
    a.create_index("shop.item", "by_u", ["u"], unique=True)
    a.parts.clockwork.advance_epoch()
    with tm.Channel(a, b) as channel:
        channel.apply_all()
        b["shop.item"].insert_many([(8, "x"), (9, "y"), (7, None)])
        with a.transaction() as txn:
            txn.insert("shop.item", (1, "y"))
            txn.insert("shop.item", (2, "x"))
            txn.insert("shop.item", (3, "z"))
        a.parts.clockwork.advance_epoch()
        channel.apply_all()
        assert {row.id: row.u for row in b["shop.item"].scan()} == {1: "y", 2: "x", 3: "z", 7: None}
        assert b.check()["is_sound"]
    a.close()
    b.close()


def test_row_that_two_servers_changed_in_one_epoch_goes_on_as_the_last_ones() -> None:
    """Story: site 3 exchanged two values, and site 1 changed the rows again in the epoch in which it applied that. At
    site 2 the rows waited for their keys, and went on as changes of site 3, the first of both servers. It skips its own
    changes, and never got those of site 1.
    """
    sites = [site(number, **PASSES_ON) for number in (1, 2, 3)]
    one, _, three = sites
    columns = [tm.Column("id", tm.Int64), tm.Column("u", tm.VarChar(9)), tm.Column("note", tm.VarChar(9))]
    one.create_table("shop.item", columns, primary_key="id")
    one.create_index("shop.item", "by_u", ["u"], unique=True)
    channels = circle(*sites)
    one["shop.item"].insert_many([(1, "a", ""), (2, "b", "")])
    turn(sites, channels, 3)
    with three.transaction() as txn:
        txn.update("shop.item", 1, {"u": "between"})
        txn.update("shop.item", 2, {"u": "a"})
        txn.update("shop.item", 1, {"u": "b"})
    three.parts.clockwork.advance_epoch()
    channels[2].apply_all()
    one["shop.item"].update_many([{"id": each, "note": "one"} for each in (1, 2)])
    turn(sites, channels, 3)
    for each in sites:
        assert sorted(tuple(row) for row in each["shop.item"].scan()) == [(1, "b", "one"), (2, "a", "one")]
        each.close()
