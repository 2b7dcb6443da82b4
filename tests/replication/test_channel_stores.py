"""Channels between real stores of one process: a change reaches a replica once, in order; circles, chains,
fail-over.
"""

from __future__ import annotations

import pytest

import tidemark as tm
from tests.replication.site import open_site
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

COLUMNS = [tm.Column("id", tm.Int64), tm.Column("v", tm.VarChar(40), nullable=True)]
# Options of a site in a chain or a circle.
PASSES_ON = {"log_replica_updates": True, "log_apply_status": True, "log_orig": True}


def site(server_id, files=None, **options):
    """Open a store with a binlog for the site of this id."""
    return open_site(files or MemoryFiles(), server_id=server_id, **options)


def make_table(db, name="shop.item"):
    db.create_table(name, COLUMNS, primary_key="id")
    db.parts.clockwork.advance_epoch()


def put(db, *ids, v="x", name="shop.item"):
    """Write rows and end their epoch."""
    db[name].write_many([{"id": each, "v": v} for each in ids])
    return db.parts.clockwork.advance_epoch()


def rows(db, name="shop.item"):
    return {row.id: row.v for row in db[name].scan()}


def applied(db):
    """Return applied epochs by server id."""
    return {row.server_id: row.epoch for row in db["mysql.ndb_apply_status"].scan()}


@pytest.fixture
def pair():
    a, b = site(1), site(2)
    yield a, b
    a.close()
    b.close()


# --- one way --------------------------------------------------------------------------------------
def test_what_is_committed_reaches_the_replica_with_its_schema_and_position(pair):
    a, b = pair
    make_table(a)
    put(a, 1, 2)
    with tm.Channel(a, b) as channel:
        count = channel.apply_all()
        assert count and channel.apply_all() == 0
        assert rows(b) == rows(a) == {1: "x", 2: "x"}
        a.create_index("shop.item", "by_v", ["v"])
        a.add_column("shop.item", tm.Column("price", tm.Int32, nullable=True))
        a["shop.item"].delete(1)
        epoch = put(a, 3)
        channel.apply_all()
        assert applied(b) == {1: epoch}
    assert b["shop.item"].get(3)._fields == ("id", "v", "price")
    assert rows(b) == {2: "x", 3: "x"} and [*b["shop.item"].scan(index="by_v", lower=("x",))]


def test_tables_that_changed_names_are_not_renamed_again_when_the_channel_continues(pair):
    """Story: statements left no position, so a channel that continued after them executed them again. A table had been
    renamed, and another table had got its old name: that one was to be renamed onto an existing table, and the applier
    stopped.
    """
    a, b = pair
    make_table(a)
    put(a, 1)
    with tm.Channel(a, b) as channel:
        channel.apply_all()
        a.rename("shop.item", "shop.sold")
        make_table(a)
        channel.apply_all()
    with tm.Channel(a, b) as channel:
        assert channel.apply_all() == 0
        put(a, 2)
        channel.apply_all()
    assert rows(b) == {2: "x"} and rows(b, "shop.sold") == {1: "x"}


@pytest.mark.parametrize(("dropped", "kept"), [("middle", {21, 22}), ("high", {11, 13})])
def test_rows_that_went_with_a_dropped_partition_reach_no_replica(pair, dropped, kept):
    """Story: a transaction committed after the drop, and its records were logged after it. The replica put the row into
    the next range, or stopped with NoPartition where no range takes the row any more.
    """
    a, b = pair
    ranges = tm.RangePartition("id", [("low", 10), ("middle", 20), ("high", 30)])
    a.create_table("shop.item", COLUMNS, "id", ranges)
    put(a, 1, 11, 12, 21, 23)
    with a.transaction() as txn:
        for key in (1, 11, 21):
            txn.update("shop.item", key, {"v": "y"})
        for key in (2, 13, 22):
            txn.insert("shop.item", {"id": key, "v": "y"})
        for key in (12, 23):
            txn.delete("shop.item", key)
        a.drop_partition("shop.item", dropped)
        if dropped == "middle":
            put(a, 11)  # a new row, in the next range
    put(a, 3)
    with tm.Channel(a, b) as channel:
        channel.apply_all()
    others = {3: "x", 11: "x"} if dropped == "middle" else {3: "x"}
    assert rows(b) == rows(a) == {**others, **dict.fromkeys({1, 2, *kept}, "y")}


def test_transactions_come_one_by_one_in_the_order_of_the_source(pair):
    a, b = pair
    make_table(a)
    epochs = [put(a, each) for each in range(1, 4)]
    with tm.Channel(a, b) as channel:
        met = []
        while (step := channel.apply_next()) is not None:
            met.append(step)
            assert step.outcome == "applied" and step.source_id == 1
    assert [each.epoch for each in met if each.rows] == epochs
    assert [each.rows for each in met if each.rows] == [1, 1, 1]
    assert [each.statement is not None for each in met][:2] == [True, True]


def test_channel_made_again_continues_after_what_is_applied(pair):
    a, b = pair
    make_table(a)
    put(a, 1)
    with tm.Channel(a, b) as channel:
        channel.apply_all()
    epoch = put(a, 2)
    with tm.Channel(a, b) as channel:
        assert [step.epoch for step in iter(channel.apply_next, None)] == [epoch]
    assert rows(b) == {1: "x", 2: "x"}


def test_filters_leave_tables_out_but_the_position_moves(pair):
    a, b = pair
    make_table(a)
    make_table(a, "shop.secret")
    with tm.Channel(a, b, replicate_ignore=["shop.secret"]) as channel:
        epoch = put(a, 1, name="shop.secret")
        channel.apply_all()
    assert "shop.secret" not in b.tables() and applied(b) == {1: epoch}


def test_reset_applies_everything_again_and_rows_stay_equal(pair):
    a, b = pair
    make_table(a)
    put(a, 1)
    with tm.Channel(a, b) as channel:
        first = channel.apply_all()
        channel.reset()
        assert applied(b) == {}
        assert channel.apply_all() == first
    assert rows(b) == {1: "x"}


def test_reset_leaves_positions_of_other_channels(pair):
    a, b = pair
    c = site(3)
    make_table(a)
    make_table(b, "other.t")
    put(a, 1)
    put(b, 1, name="other.t")
    with tm.Channel(a, c, "one") as one, tm.Channel(b, c, "two") as two:
        one.apply_all()
        two.apply_all()
        assert set(applied(c)) == {1, 2}
        one.reset()
        assert set(applied(c)) == {2}
        assert two.apply_all() == 0 < one.apply_all()
    assert rows(c) == rows(c, "other.t") == {1: "x"}
    c.close()


def test_changes_of_the_schema_are_in_ndb_schema_of_the_replica_with_the_site_that_made_them(pair):
    a, b = pair
    make_table(a)
    a.add_column("shop.item", tm.Column("price", tm.Int32, nullable=True))
    make_table(a, "shop.gone")
    a.drop_table("shop.gone")
    a.sync()
    with tm.Channel(a, b) as channel:
        channel.apply_all()
    said = {row.name: row for row in b["mysql.ndb_schema"].scan()}
    assert set(said) == {b"item", b"gone"}
    item, gone = said[b"item"], said[b"gone"]
    assert (item.db, item.node_id, item.type, item.version) == (b"shop", 1, 3, 2) and b"price" in item.query
    assert (gone.type, gone.slock, gone.query) == (0, bytes(32), b"DROP TABLE `shop`.`gone`")


def test_servers_to_ignore_are_skipped_and_another_source_may_have_others():
    a, b, c = site(1), site(2, **PASSES_ON), site(3)
    make_table(a)
    with tm.Channel(a, b) as first, tm.Channel(b, c) as second:
        first.apply_all()
        b.parts.clockwork.advance_epoch()
        second.apply_all()
        second.change_source(b, ignore_server_ids=[1])
        put(a, 1)
        put(b, 2)
        first.apply_all()
        b.parts.clockwork.advance_epoch()
        second.apply_all()
        assert rows(b) == {1: "x", 2: "x"} and rows(c) == {2: "x"}
    for each in (a, b, c):
        each.close()


def test_role_changes_only_while_no_applier_runs_and_through_none(pair):
    a, b = pair
    with tm.Channel(a, b, conflict_role="primary") as channel:
        assert channel.conflict_role.name == b.status()["replication"]["conflict_role"] == "PRIMARY"
        channel.start(receiver=False)
        with pytest.raises(tm.Rejected, match="while the applier is running"):
            channel.conflict_role = "NONE"
        with pytest.raises(tm.Rejected, match="runs"):
            channel.apply_next()
        channel.stop()
        with pytest.raises(tm.Rejected, match="through NONE"):
            channel.conflict_role = "PASS"
        channel.conflict_role = "NONE"
        channel.conflict_role = "PASS"


def test_replica_before_a_gap_serves_its_last_epoch_and_takes_writes_of_its_own():
    """F91. Story: a test showed that the applier stops, but none that the store continues without it."""
    files = MemoryFiles()
    a, b = site(1, files), site(2)
    make_table(a)
    put(a, 1, 2)
    with tm.Channel(a, b) as channel:
        channel.apply_all()
    shown, position = rows(b), applied(b)
    a.close()
    without = site(1, files.kill(), log_bin=None)
    put(without, 3)
    files = without.parts.files.kill()
    a = site(1, files)
    put(a, 4)
    with tm.Channel(a, b) as channel:
        for _ in range(2):
            with pytest.raises(tm.EpochGap):
                channel.apply_all()
            assert (rows(b), applied(b)) == (shown, position)
        put(b, 50, v="own")
        assert rows(b) == {**shown, 50: "own"}
    assert b.check()["is_sound"]
    b.close()


# --- pairs of sites -------------------------------------------------------------------------------
def test_sites_that_cannot_be_distinguished_are_refused():
    without_binlog, one, same = site(0, log_bin=None), site(1), open_site(MemoryFiles(), server_id=1, log_bin=None)
    bare = site(4, log_bin=None)
    with pytest.raises(tm.Rejected, match="server_id 0"):
        tm.Channel(one, without_binlog)
    with pytest.raises(tm.PeerRefused, match="same store"):
        tm.Channel(one, one)
    with pytest.raises(tm.PeerRefused):
        tm.Channel(one, same)
    with pytest.raises(tm.Rejected, match="log_bin"):
        tm.Channel(bare, one)
    for each in (without_binlog, one, same, bare):
        assert not each.status()["replication"].get("channels")
        each.close()


def test_two_channels_of_one_name_are_refused(pair):
    a, b = pair
    with tm.Channel(a, b), pytest.raises(tm.SchemaInvalid, match="main"):
        tm.Channel(a, b)
    tm.Channel(a, b).close()


# --- several sources ------------------------------------------------------------------------------
def test_position_that_a_source_passes_on_is_not_that_of_the_channel_of_its_server():
    """Story: a replica followed two sites that follow each other. What one of them had applied of the other became the
    replica's own position there: it skipped epochs that it had never received, and went back to epochs that it had
    applied.
    """
    a, b, c = site(1, log_apply_status=True), site(2, log_apply_status=True), site(3)
    make_table(a)
    with tm.Channel(a, b) as inner, tm.Channel(a, c, "one") as one, tm.Channel(b, c, "two") as two:
        for each in (inner, one):
            each.apply_all()
        put(a, 1)
        inner.apply_all()
        b.parts.clockwork.advance_epoch()
        two.apply_all()  # b is ahead of c
        one.apply_all()
        assert rows(c) == {1: "x"}
        epoch = put(a, 2)
        one.apply_all()
        put(a, 3)
        inner.apply_all()
        b.parts.clockwork.advance_epoch()
        epoch = put(a, 4)
        one.apply_all()
        two.apply_all()  # c is ahead of b
        assert applied(c)[1] == epoch and rows(c) == dict.fromkeys((1, 2, 3, 4), "x")
    for each in (a, b, c):
        each.close()


def test_second_channel_of_one_source_is_refused(pair):
    """Story: two channels took different tables of one source. Both wrote one position, and each skipped what the other
    one had passed.
    """
    a, b = pair
    make_table(a)
    with tm.Channel(a, b, "one", replicate_do="other.%") as one:
        one.apply_all()
        listeners = len(a.endpoint.log().on_written)
        with pytest.raises(tm.SchemaInvalid, match="server 1 is the source of channel 'one'"):
            tm.Channel(a, b, "two", replicate_do="shop.%")
        assert len(a.endpoint.log().on_written) == listeners
    tm.Channel(a, b, "two").close()


# --- circles and chains ---------------------------------------------------------------------------
def circle(*sites):
    """Make a channel from each site to the next, and from the last to the first."""
    return [tm.Channel(one, other) for one, other in zip(sites, sites[1:] + sites[:1], strict=True)]


def turn(sites, channels, rounds=1):
    for _ in range(rounds):
        for channel, source in zip(channels, sites, strict=True):
            source.parts.clockwork.advance_epoch()
            channel.apply_all()


def test_changes_go_around_a_circle_of_three_once_and_the_max_replicated_epoch_comes_back():
    sites = [site(each, **PASSES_ON) for each in (1, 2, 3)]
    make_table(sites[0])
    channels = circle(*sites)
    turn(sites, channels)
    epochs = [put(each, number) for number, each in enumerate(sites, 1)]
    turn(sites, channels, 3)
    for each in sites:
        assert rows(each) == {1: "x", 2: "x", 3: "x"}
    for each, epoch in zip(sites, epochs, strict=True):
        shown = each.status()["replication"]["variables"]
        assert shown["Ndb_replica_max_replicated_epoch"] >= epoch
    before = [each.status()["binlog"]["rows"] for each in sites]
    turn(sites, channels, 2)
    assert [each.status()["binlog"]["rows"] for each in sites][0] - before[0] < 10, "positions only, no row goes round"
    assert all(each.is_sound for each in ()) and all(each.check()["is_sound"] for each in sites)
    for each in sites:
        each.close()


def test_chain_becomes_a_shorter_one_at_the_right_position():
    a, b, c = site(1), site(2, **PASSES_ON), site(3)
    make_table(a)
    put(a, 1)
    first, second = tm.Channel(a, b), tm.Channel(b, c)
    first.apply_all()
    b.parts.clockwork.advance_epoch()
    second.apply_all()
    assert rows(c) == {1: "x"}
    reached = applied(c)[1]
    put(a, 2)
    first.apply_all()  # b has the row, c does not
    put(a, 3)
    b.close()
    second.change_source(a)
    steps = list(iter(second.apply_next, None))
    assert [each.outcome for each in steps if each.epoch > reached] == ["applied", "applied"]
    assert all(each.epoch > reached or not each.epoch for each in steps)
    assert rows(c) == {1: "x", 2: "x", 3: "x"} and second.status()["source_server_id"] == 1
    first.close()
    a.close()
    c.close()


def test_closing_a_store_closes_its_channels(pair):
    a, b = pair
    channel = tm.Channel(a, b, skip_start=False)
    b.close()
    with pytest.raises(tm.Rejected, match="closed"):
        channel.start()
    assert not channel.is_applying and not channel.is_receiving


# --- first copy -----------------------------------------------------------------------------------
def test_first_copy_brings_all_tables_as_at_one_epoch_and_the_channel_continues_after_it(pair):
    a, b = pair
    make_table(a)
    put(a, *range(500))
    a.add_column("shop.item", tm.Column("price", tm.Int32, nullable=True))
    a.drop_column("shop.item", "v")
    a.create_index("shop.item", "by_price", ["price"])
    a.create_table(
        "shop.part",
        [tm.Column("id", tm.Int64), tm.Column("k", tm.VarChar(9)), tm.Column("note", tm.Text, nullable=True)],
        primary_key="id",
        partition=tm.HashPartition(3),
    )
    a.create_index("shop.part", "by_k", ["k"], unique=True)
    a["shop.part"].insert_many([{"id": each, "k": str(each), "note": "n" * each} for each in range(300)])
    a.sync()
    a.binlog.rotate()
    a.binlog.purge(to=a.status()["binlog"]["file"])  # what the copy has cannot be fetched any more
    seen = []
    with tm.Channel(a, b, copy=True, progress=lambda *step: seen.append(step)) as channel:
        assert seen[-1] == (800, 800, "rows")
        for name in ("shop.item", "shop.part"):
            assert b[name].to_arrow().sort_by("id") == a[name].to_arrow().sort_by("id")
        position = applied(b)[1]
        a["shop.part"].insert({"id": 1_000, "k": "k", "note": None})
        epoch = a.sync()
        steps = list(iter(channel.apply_next, None))
        assert [step.epoch for step in steps] == [epoch] and epoch > position
        with pytest.raises(tm.DuplicateKey):
            b["shop.part"].insert({"id": 1_001, "k": "k", "note": None})
        assert len(b["shop.part"]) == 301
    with tm.Channel(a, b, copy=True, progress=lambda *step: seen.append("again")):
        assert "again" not in seen


def test_first_copy_into_tables_that_are_there_is_refused_and_changes_nothing(pair):
    a, b = pair
    make_table(a)
    make_table(b)
    put(a, 1)
    put(b, 2)
    with pytest.raises(tm.Rejected, match=r"shop\.item"):
        tm.Channel(a, b, copy=True)
    assert rows(b) == {2: "x"} and applied(b) == {}
    tm.Channel(a, b).close()
    with tm.Channel(a, b, copy=True, replicate_ignore="shop.item"):
        assert set(applied(b)) == {1}


def test_copy_that_nothing_follows_has_caught_up(pair):
    """Story: `replicate --copy --once` waited for ever: an empty relay log was taken for one that has not begun."""
    a, b = pair
    make_table(a)
    put(a, 1)
    with tm.Channel(a, b, copy=True) as channel:
        assert not channel.has_caught_up
        assert channel.apply_all() == 0
        assert channel.has_caught_up and channel.status()["lag"] == {"epochs": 0, "seconds": 0.0}
        put(a, 2)
        assert channel.receive_next() and not channel.has_caught_up
        channel.apply_all()
        assert channel.has_caught_up and rows(b) == {1: "x", 2: "x"}


def test_copied_positions_let_a_replica_of_a_replica_fail_over():
    a, b, c = site(1), site(2, **PASSES_ON), site(3)
    make_table(a)
    put(a, 1)
    with tm.Channel(a, b) as first:
        first.apply_all()
    b.parts.clockwork.advance_epoch()
    with tm.Channel(b, c, copy=True) as channel:
        assert applied(c)[1] == applied(b)[1] and set(applied(c)) == {1, 2}
        epoch = put(a, 2)
        channel.change_source(a)
        assert [step.epoch for step in iter(channel.apply_next, None)] == [epoch]
    assert rows(c) == {1: "x", 2: "x"}
    for each in (a, b, c):
        each.close()


# --- numbers and computed defaults ----------------------------------------------------------------
NUMBERED = [
    tm.Column("id", tm.Int64, default=tm.autoincrement),
    tm.Column("at", tm.Timestamp, default=tm.now),
    tm.Column("token", tm.UUID, default=tm.uuid7),
]


def test_two_sites_with_step_and_offset_give_different_numbers():
    a, b = (site(each, autoincrement_step=2, autoincrement_offset=each) for each in (1, 2))
    a.create_table("shop.visit", NUMBERED, "id")
    a.parts.clockwork.advance_epoch()
    with tm.Channel(a, b) as there, tm.Channel(b, a) as back:
        there.apply_all()
        assert b["shop.visit"].definition.columns == a["shop.visit"].definition.columns
        for _ in range(3):
            for db in (a, b):
                db["shop.visit"].insert({})
                db["shop.visit"].insert_many([{}, {}])
                db.parts.clockwork.advance_epoch()
            there.apply_all()
            back.apply_all()
        assert sorted(a["shop.visit"]) == sorted(b["shop.visit"]) and len(a["shop.visit"]) == 18
        assert len({row.token for row in a["shop.visit"]}) == 18
    a.close()
    b.close()


def test_a_site_that_takes_over_goes_on_after_the_numbers_that_came(pair):
    a, b = pair
    a.create_table("shop.visit", NUMBERED, "id")
    with tm.Channel(a, b) as there, tm.Channel(b, a) as back:
        assert [a["shop.visit"].insert({}) for _ in range(3)] == [1, 2, 3]
        a.parts.clockwork.advance_epoch()
        there.apply_all()
        assert b["shop.visit"].insert({}) == 4
        b["shop.visit"].insert_many([{}] * 300)
        b.parts.clockwork.advance_epoch()
        back.apply_all()
        assert a["shop.visit"].insert({}) == 305
        a.parts.clockwork.advance_epoch()
        there.apply_all()
        assert b["shop.visit"].insert({}) == 306


def test_defaults_that_are_computed_reach_the_replica(pair):
    a, b = pair
    make_table(a)
    with tm.Channel(a, b) as channel:
        a.add_column("shop.item", tm.Column("at", tm.Timestamp, nullable=True))
        a.set_default("shop.item", "at", tm.now)
        a.set_default("shop.item", "id", tm.autoincrement)
        a["shop.item"].insert({})
        a.parts.clockwork.advance_epoch()
        channel.apply_all()
        assert b["shop.item"].definition.columns[0].default is tm.autoincrement
        assert b["shop.item"].definition.columns[2].default is tm.now
        assert [*b["shop.item"]] == [*a["shop.item"]]
        a.set_default("shop.item", "at", None)
        a.set_default("shop.item", "id")
        a.parts.clockwork.advance_epoch()
        channel.apply_all()
        assert b["shop.item"].definition.columns[2].default is None
        assert not b["shop.item"].definition.columns[0].has_default
    assert "mysql.tidemark_sequence" not in b.parts.store.tables.by_name
