"""A channel is reset where a function compares epochs: no change that was judged once is applied a second time."""

from __future__ import annotations

from typing import Any

import pytest

import tidemark as tm
from tests.replication.site import WHOLE
from tests.replication.test_channel_stores import applied, site
from tests.replication.test_unique_clashes import pair_of  # noqa: F401  # a fixture
from tests.replication.two_sites import EPOCH_FUNCTIONS, HEAD, NAMES, Pair
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles


def lived(pair: Pair) -> None:
    """Let both sites change, delete and insert rows that the other site had changed, and exchange these changes."""
    pair.primary["shop.item"].insert_many([(each, f"u{each}", "first") for each in range(6)])
    pair.secondary["shop.item"].insert((10, "u10", "first"))
    pair.turn(2)
    pair.secondary["shop.item"].update_many([{"id": each, "note": "second"} for each in (0, 1, 2, 10)])
    pair.turn(2)
    pair.primary["shop.item"].update_many([{"id": each, "note": "third"} for each in (1, 3)])
    pair.primary["shop.item"].delete_many([2, 4, 10])
    pair.turn(2)
    pair.secondary["shop.item"].update(3, {"note": "fourth"})
    pair.secondary["shop.item"].delete(5)
    pair.turn(2)


@pytest.mark.parametrize("which", ["primary", "secondary"])
@pytest.mark.parametrize("function", EPOCH_FUNCTIONS)
def test_reset_lets_no_change_through_a_second_time(pair_of: Any, function: str, which: str) -> None:  # noqa: F811
    """Story: the reset cleared the positions but not the max replicated epoch. Old changes of the secondary came again,
    were taken for changes after what it had confirmed, and replaced the primary's newer rows in silence.
    """
    pair = pair_of(function, 7)
    lived(pair)
    wanted = pair.rows()
    assert wanted[0] == wanted[1]
    channel, db = (pair.to_primary, pair.primary) if which == "primary" else (pair.to_secondary, pair.secondary)
    before = applied(db)
    confirmed = db.status()["replication"]["variables"]["Ndb_replica_max_replicated_epoch"]
    channel.reset()
    assert applied(db) == before
    assert db.status()["replication"]["variables"]["Ndb_replica_max_replicated_epoch"] == confirmed
    db["shop.item"].update(0, {"note": "after the reset"})
    pair.turn(3)
    assert pair.rows()[0] == pair.rows()[1] == {**wanted[0], 0: ("u0", "after the reset")}


@pytest.mark.parametrize("function", EPOCH_FUNCTIONS)
def test_reset_of_a_channel_that_has_not_heard_of_its_source_forgets_nothing(
    pair_of: Any,  # noqa: F811
    function: str,
) -> None:
    """Story: only the source itself reports whether it has a function that compares epochs."""
    pair = pair_of(function, 7)
    lived(pair)
    wanted = pair.rows()[0]
    pair.to_secondary.close()
    pair.secondary.endpoint.has_epoch_peer = False
    with pair.secondary.transaction() as txn:
        txn.delete("mysql.ndb_apply_status", 2)
    with tm.Channel(pair.primary, pair.secondary) as channel:
        pair.secondary.endpoint.has_epoch_peer = False
        channel.reset()
        assert set(applied(pair.secondary)) == {1}
    pair.to_secondary = tm.Channel(pair.primary, pair.secondary)
    pair.turn(2)
    assert pair.rows() == [wanted] * 2


@pytest.mark.parametrize("function", EPOCH_FUNCTIONS)
def test_max_replicated_epoch_goes_with_the_rows_it_is_read_from(pair_of: Any, function: str) -> None:  # noqa: F811
    """Story: after rows were deleted by hand the whole binlog came again, while the secondary still counted as having
    confirmed an epoch: changes from before the primary's were taken for later ones.
    """
    pair = pair_of(function, 7)
    pair.secondary["shop.item"].insert((1, "u1", "secondary"))
    pair.turn(2)
    pair.secondary["shop.item"].update(1, {"note": "second"})
    pair.turn(2)
    pair.primary["shop.item"].update(1, {"note": "primary"})
    pair.turn(2)
    pair.primary["mysql.ndb_apply_status"].delete_many(
        [row.server_id for row in pair.primary["mysql.ndb_apply_status"]]
    )
    pair.to_primary.reset()
    assert pair.primary.status()["replication"]["variables"]["Ndb_replica_max_replicated_epoch"] == 0
    pair.turn(3)
    assert pair.rows() == [{1: ("u1", "primary")}] * 2
    assert pair.conflicts()[0] > 0


def test_conflicts_of_epochs_that_come_again_in_a_later_life_are_recorded_again() -> None:
    """Story: exceptions rows of an epoch are numbered from 1 in each life of a store. After a reset in a later life the
    epoch came again, its row had the key of the one before, and the applier stopped for good.
    """
    files = MemoryFiles()
    a, b = site(1, **WHOLE), site(2, files)
    b.create_replication_table().insert((b"shop", b"item", 0, 7, b"NDB$OLD(stamp)"))
    b.create_table("shop.item$EX", HEAD, NAMES)
    for each in (a, b):
        each.create_table("shop.item", [tm.Column("id", tm.Int64), tm.Column("stamp", tm.UInt32)], "id")
        each.parts.clockwork.advance_epoch()
    b["shop.item"].insert_many([(1, 9), (2, 9)])
    with tm.Channel(a, b) as channel:
        a["shop.item"].insert_many([(1, 1), (2, 1)])
        epoch = a.parts.clockwork.advance_epoch()
        channel.apply_all()
    b.close()
    b = site(2, files.kill())
    with tm.Channel(a, b) as channel:
        channel.apply_all()
        channel.reset()
        channel.apply_all()
    assert sorted(tuple(row)[2:4] for row in b["shop.item$EX"].scan()) == [(epoch, number) for number in (1, 2, 3, 4)]
    assert applied(b) == {1: epoch} and b.check()["is_sound"]
    a.close()
    b.close()
