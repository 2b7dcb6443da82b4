"""Circles of three stores: the third site applies the changes of two sites in one transaction, and passes each on."""

from __future__ import annotations

import pytest

import tidemark as tm
from tests.replication.site import transactions_in
from tests.replication.test_channel_stores import PASSES_ON, circle, site, turn

COLUMNS = [tm.Column("id", tm.Int64), tm.Column("stamp", tm.UInt64), tm.Column("note", tm.VarChar(20), nullable=True)]
FUNCTIONS = (None, "NDB$OLD(stamp)", "NDB$MAX(stamp)", "NDB$MAX_INS(stamp)", "NDB$MAX_DEL_WIN_INS(stamp)")


class Circle:
    """A, B and C: each follows the one before it, and A follows C."""

    def __init__(self, function):
        self.sites = [site(each, **PASSES_ON) for each in (1, 2, 3)]
        self.channels = circle(*self.sites)
        if function:
            for each in self.sites:
                each.create_replication_table().insert((b"shop", b"item", 0, 7, function.encode()))
        self.sites[0].create_table("shop.item", COLUMNS, primary_key="id")
        turn(self.sites, self.channels)

    def go(self, source):
        """Send the epoch of a site to the next one."""
        self.sites[source].parts.clockwork.advance_epoch()
        self.channels[source].apply_all()

    def rows(self):
        return [{row.id: (row.stamp, row.note) for row in each["shop.item"].scan()} for each in self.sites]

    def close(self):
        for each in self.sites:
            each.close()


@pytest.fixture
def make():
    made = []

    def one(function=None):
        made.append(Circle(function))
        return made[-1]

    yield one
    for each in made:
        each.close()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_row_that_one_site_inserts_and_the_next_deletes_in_one_epoch_is_gone_everywhere(make, function):
    """Story: the third site applied both in one transaction, whose net effect was nothing, and passed nothing on: the
    site that had inserted the row kept it, without a conflict anywhere. (Simulation, seed 11459.)
    """
    ring = make(function)
    a, b, c = ring.sites
    b["shop.item"].insert((1, 10, "b"))
    ring.go(1)
    c["shop.item"].delete(1)  # in the epoch in which the insert was applied
    ring.go(2)
    ring.go(0)
    reported = [row for epoch in transactions_in(a.parts.files) for row in epoch.rows if row.table == "shop.item"]
    assert [(row.kind, row.server_id) for row in reported] == [("WRITE_ROW", 2), ("DELETE_ROW", 3)]
    turn(ring.sites, ring.channels, 3)
    assert ring.rows() == [{}, {}, {}]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_row_that_one_site_deletes_and_the_next_inserts_again_in_one_epoch_is_there_everywhere(make, function):
    """Story: both were passed on as one update with the id of the last site, and the deleting site had no such row."""
    ring = make(function)
    a, b, c = ring.sites
    b["shop.item"].insert((1, 10, "b"))
    turn(ring.sites, ring.channels, 3)
    b["shop.item"].delete(1)
    ring.go(1)
    c["shop.item"].insert((1, 20, "c"))
    ring.go(2)
    a["shop.item"].update(1, {"stamp": 30, "note": "a"})
    ring.go(0)
    turn(ring.sites, ring.channels, 3)
    assert ring.rows() == [{1: (30, "a")}] * 3
    b["shop.item"].delete(1)
    b["shop.item"].insert((1, 40, "b again"))
    ring.go(1)
    c["shop.item"].update(1, {"stamp": 50, "note": None})
    ring.go(2)
    ring.go(0)
    turn(ring.sites, ring.channels, 3)
    assert ring.rows() == [{1: (50, None)}] * 3
    reported = ring.sites[1].status()["replication"]["variables"]
    assert not any(count for name, count in reported.items() if "conflict_fn" in name)
