"""A channel continues with another server where a function compares epochs: epochs that the old peer confirmed do not
count as confirmed by the new one.
"""

from __future__ import annotations

from typing import Any

import pytest

import tidemark as tm
from tests.replication.test_channel_stores import applied, site
from tests.replication.test_failover import Net, net, put  # noqa: F401  # net is a fixture
from tests.replication.test_unique_clashes import pair_of  # noqa: F401  # a fixture
from tests.replication.two_sites import COLUMNS, EPOCH_FUNCTIONS, HEAD, NAMES, Pair
from tests.waiting import wait_until
from tidemark.replication.settings.conflict_function import Role

SECRET = b"a secret of some length"
CONFIRMED = "Ndb_replica_max_replicated_epoch"


def confirmed(db: Any) -> int:
    return int(db.status()["replication"]["variables"][CONFIRMED])


def third_site(function: str) -> Any:
    """Make a second secondary of the primary of a pair."""
    role = Role.SECONDARY if "EPOCH2" in function else Role.NONE
    db = site(3, log_apply_status=True, log_transaction_id=True, conflict_role=role)
    spec = function.encode() if role is Role.SECONDARY else None
    db.create_replication_table().insert((b"shop", b"item", 0, 7, spec))
    db.create_table("shop.item$EX", HEAD, NAMES)
    db.create_table("shop.item", COLUMNS, "id")
    db.parts.clockwork.advance_gci()
    return db


def after(pair: Pair, third: Any) -> tm.Channel:
    """Let the third site change row 1 when it has the first note; the secondary has confirmed the second note."""
    to_third = tm.Channel(pair.primary, third)
    pair.primary["shop.item"].insert((1, "u1", "first"))
    pair.turn(2)
    to_third.apply_all()
    pair.primary["shop.item"].update(1, {"note": "second"})
    pair.turn(2)
    third["shop.item"].update(1, {"note": "third"})
    third.parts.clockwork.advance_epoch()
    return to_third


def meet(pair: Pair, third: Any, to_third: tm.Channel) -> list[dict[int, tuple[Any, ...]]]:
    for _ in range(3):
        third.parts.clockwork.advance_epoch()
        pair.to_primary.apply_all()
        pair.primary.parts.clockwork.advance_epoch()
        to_third.apply_all()
        pair.to_secondary.apply_all()
    return [*pair.rows(), {row[0]: tuple(row[1:]) for row in third["shop.item"].scan()}]


@pytest.mark.parametrize("function", EPOCH_FUNCTIONS)
def test_another_source_has_not_confirmed_what_the_old_one_has(pair_of: Any, function: str) -> None:  # noqa: F811
    """Story: the primary continued with another secondary, which had changed a row before it received the primary's
    newer change. The old peer had confirmed that change, so the other was taken for a later one: the primary's row was
    overwritten in silence, and the sites differed from then on.
    """
    pair = pair_of(function, 7)
    third = third_site(function)
    to_third = after(pair, third)
    assert confirmed(pair.primary) > 0
    pair.to_primary.change_source(third)
    assert confirmed(pair.primary) == 0 and applied(pair.primary)[1] == 0
    assert meet(pair, third, to_third) == [{1: ("u1", "second")}] * 3
    assert pair.conflicts()[0] == 1 and confirmed(pair.primary) > 0
    # It has confirmed everything by now, so its changes are no conflict.
    third["shop.item"].update(1, {"note": "fourth"})
    assert meet(pair, third, to_third)[::2] == [{1: ("u1", "fourth")}] * 2
    assert pair.conflicts()[0] == 1
    to_third.close()
    third.close()


@pytest.mark.parametrize("function", EPOCH_FUNCTIONS)
def test_same_server_met_again_has_confirmed_what_it_had(pair_of: Any, function: str) -> None:  # noqa: F811
    pair = pair_of(function, 7)
    pair.primary["shop.item"].insert((1, "u1", "first"))
    pair.turn(2)
    pair.secondary["shop.item"].update(1, {"note": "second"})
    before = confirmed(pair.primary)
    pair.to_primary.change_source(pair.secondary)
    assert confirmed(pair.primary) == before > 0
    pair.turn(2)
    assert pair.rows() == [{1: ("u1", "second")}] * 2 and pair.conflicts() == [0, 0]


def test_server_at_an_address_is_known_when_it_is_met(pair_of: Any) -> None:  # noqa: F811
    """Story: the channel meets another server at an address, or the same one."""
    for is_other in (False, True):
        pair = pair_of(EPOCH_FUNCTIONS[0], 7)
        third = third_site(EPOCH_FUNCTIONS[0])
        to_third = after(pair, third)
        before = confirmed(pair.primary)
        with tm.serve(third if is_other else pair.secondary, "127.0.0.1:0", SECRET) as served:
            pair.to_primary.change_source(served.address, secret=SECRET)
            assert confirmed(pair.primary) == before
            pair.to_primary.start(applier=False)
            wait_until(lambda: pair.to_primary.status()["source_server_id"] != 0)  # noqa: B023
            pair.to_primary.stop()
        assert applied(pair.primary)[1] == (0 if is_other else before)
        to_third.close()
        third.close()


def test_source_of_a_fail_over_has_not_confirmed_what_the_one_before_has(net: Net) -> None:  # noqa: F811
    """Story: as above, for a channel that fails over by itself."""
    put(net.stores["a"], 1)
    net.beat("b", "c")
    net.d["mysql.ndb_apply_status"].insert((4, 77, "", 0, 0))  # as reported by b
    put(net.stores["a"], 2)
    net.beat("c")
    assert net.wait(5.0) and net.at == 2
    assert applied(net.d)[4] == 77
    net.apply()
    assert applied(net.d)[4] == 0
