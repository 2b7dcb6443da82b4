"""Channels with several sources: the heartbeat row of the origin decides when to change to the next, and where."""

from __future__ import annotations

import random

import pytest

import tidemark as tm
from tests.replication.site import open_site
from tests.replication.test_channel_stores import PASSES_ON, applied, make_table, put, rows, site
from tidemark.engine.base.clock import ManualClock, SystemClock
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.sites.failover import HeartbeatWatch

AFTER_MS = 5_000
WAIT_MS = 60_000


class Net:
    """A replicates to B and to C; D follows B, C or A."""

    def __init__(self, first=("b", "c", "a"), **options):
        self.clock = ManualClock(seed=4)
        self.files = MemoryFiles()
        self.stores = {"a": site(1), "b": site(2, **PASSES_ON), "c": site(3, **PASSES_ON)}
        self.d = open_site(self.files, server_id=4, clock=self.clock)
        make_table(self.stores["a"])
        self.inner = {name: tm.Channel(self.stores["a"], self.stores[name]) for name in "bc"}
        self.order, self.options = first, options
        self.channel = self.make()

    def make(self):
        first, *others = (self.stores[name] for name in self.order)
        wanted = {"other_sources": others, "failover_after_ms": AFTER_MS, "heartbeat_from": 1, **self.options}
        return tm.Channel(first, self.d, **wanted)

    def beat(self, *through):
        """Let A write its heartbeat row, and these sites receive it."""
        self.stores["a"].parts.store.clock.advance(0.5)
        self.stores["a"].endpoint.beat()
        self.stores["a"].parts.clockwork.advance_epoch()
        for name in through:
            self.inner[name].apply_all()
            self.stores[name].parts.clockwork.advance_epoch()
        return self.apply()

    def apply(self):
        steps = list(iter(self.channel.apply_next, None))
        assert not self.channel.check_failover()
        return steps

    def wait(self, seconds):
        self.clock.advance(seconds)
        return self.channel.check_failover()

    @property
    def at(self):
        return self.channel.status()["failover"]["source"]

    def close(self):
        self.d.close()
        for each in self.stores.values():
            each.close()


@pytest.fixture
def net():
    made = Net()
    yield made
    made.close()


def test_source_whose_heartbeat_stops_is_left_for_the_next_at_the_right_position(net, caplog):
    put(net.stores["a"], 1)
    net.beat("b", "c")
    assert rows(net.d) == {1: "x"} and not net.wait(4.9)
    reached = applied(net.d)[1]
    put(net.stores["a"], 2)
    net.beat("c")  # b is cut off; it writes heartbeat rows itself
    net.stores["b"].endpoint.beat()
    net.stores["b"].parts.clockwork.advance_epoch()
    net.apply()
    assert rows(net.d) == {1: "x"} and net.wait(0.2) and net.at == 2
    assert "no newer heartbeat row of server 1 for 5.1 s" in caplog.text and "source 2 of 3" in caplog.text
    steps = net.apply()
    assert rows(net.d) == {1: "x", 2: "x"} and applied(net.d)[1] > reached
    assert {step.source_id for step in steps} == {3} and net.channel.status()["failover"]["moves"] == 1
    assert not net.wait(4.9)


def test_source_is_kept_while_the_row_changes_however_old_it_is(net):
    for number in range(6):
        put(net.stores["a"], number)
        net.beat("b")
        assert not net.wait(4.0)
    assert net.at == 1 and net.channel.status()["failover"]["moves"] == 0


def test_each_source_has_its_time_and_the_origin_itself_is_one(net):
    put(net.stores["a"], 1)
    net.beat("b", "c")
    put(net.stores["a"], 2)
    net.beat()  # no site passes the row on
    assert net.wait(5.0) and net.at == 2
    assert not net.wait(4.9) and net.wait(0.2) and net.at == 3
    steps = net.apply()
    assert [step.outcome for step in steps if step.epoch] == ["applied"] * 2, "what b had brought does not come again"
    assert rows(net.d) == {1: "x", 2: "x"}


def test_source_left_and_taken_again_continues_where_the_others_have_got_to(net):
    """By then its own row of ndb_apply_status is old: everything that the others have brought would come again."""
    put(net.stores["a"], 1)
    net.beat("b", "c")
    for number in range(2, 12):
        put(net.stores["a"], number)
        net.beat("c")
    assert net.wait(5.0) and net.at == 2
    net.apply()
    assert rows(net.d) == dict.fromkeys(range(1, 12), "x")
    put(net.stores["a"], 12, v="y")
    net.beat("b")
    assert net.wait(5.0) and net.at == 3 and net.wait(5.0) and net.at == 1
    steps = [step for step in net.apply() if step.epoch]
    assert rows(net.d) == {**dict.fromkeys(range(1, 12), "x"), 12: "y"}
    assert {step.source_id for step in steps} == {2} and len(steps) < 8


def test_store_opened_again_begins_with_the_first_source_wherever_it_was(net):
    put(net.stores["a"], 1)
    net.beat("b", "c")
    put(net.stores["a"], 2)
    net.beat("c")
    assert net.wait(5.0)
    net.apply()
    net.d.close()
    net.d = open_site(MemoryFiles(net.files.disk), server_id=4, clock=net.clock)
    net.channel = net.make()
    put(net.stores["a"], 3)
    net.beat("b", "c")
    assert rows(net.d) == {1: "x", 2: "x", 3: "x"} and net.at == 1
    assert net.channel.status()["source_server_id"] == 2


@pytest.mark.parametrize("is_relay_gone", [False, True])
def test_move_that_a_crash_interrupted_is_made_again_from_where_the_origin_is_applied(net, is_relay_gone):
    """First the old row of the source goes, then the relay log, and only then does the new one begin."""
    put(net.stores["a"], 1)
    net.beat("b", "c")
    put(net.stores["a"], 2)
    net.beat("c")
    assert net.wait(5.0)
    net.apply()
    assert set(applied(net.d)) == {1, 2, 3}
    net.d.endpoint.positions("main").forget(2)
    if is_relay_gone:
        net.channel.replica.discard_relay()
    net.files = net.files.crash(random.Random(1))
    net.d.close()
    net.d = open_site(net.files, server_id=4, clock=net.clock)
    assert set(applied(net.d)) == {1, 3}
    net.channel = net.make()
    put(net.stores["a"], 3)
    steps = [step for step in net.beat("b", "c") if step.epoch]
    assert rows(net.d) == {1: "x", 2: "x", 3: "x"} and {step.source_id for step in steps} == {2}
    assert len(steps) < 6, "all of the source's binlog came again"


def test_source_that_passes_no_positions_on_is_not_left_for_one_with_an_unknown_position(net):
    """Otherwise its whole binlog would come, over newer rows."""
    net.channel.close()
    quiet = site(5, log_replica_updates=True)
    net.stores["e"] = quiet
    net.order = ("e", "a")
    with tm.Channel(net.stores["a"], quiet) as inner:
        net.inner["e"] = inner
        net.channel = net.make()
        put(net.stores["a"], 1)
        net.beat("e")
        assert set(applied(net.d)) == {5} and net.wait(5.0) and net.at == 2
        with pytest.raises(tm.PeerRefused, match="no row of server 1"):
            net.channel.apply_next()
        assert net.wait(5.0) and net.at == 1
        put(net.stores["a"], 2)
        assert [step.outcome for step in net.beat("e") if step.epoch] == ["applied"]
    assert rows(net.d) == {1: "x", 2: "x"}


def test_patience_doubles_each_round_in_vain_and_comes_back_with_a_beat():
    watch = HeartbeatWatch(1.0, 2, 0.0)
    now, moves = 0.0, []
    while now < 200:
        now += 0.25
        if watch.is_due(now):
            moves.append(now)
            watch.note_moved(now)
    gaps = [later - before for before, later in zip([0.0, *moves], moves, strict=False)]
    assert gaps[:10] == [1, 1, 2, 2, 4, 4, 8, 8, 16, 16] and set(gaps[10:]) == {32}
    watch.observe_row(7, now)
    watch.observe_row(7, now + 0.9)
    assert not watch.is_due(now + 0.9) and watch.is_due(now + 1.0)
    watch.observe_row(None, now + 1.0)
    assert watch.is_due(now + 1.0), "a row that is gone is no beat"


def test_time_in_which_much_waits_to_be_applied_moves_nothing(net):
    put(net.stores["a"], 1)
    net.beat("b", "c")
    for number in range(2, 5):
        put(net.stores["a"], number)
    net.inner["b"].apply_all()
    net.stores["b"].parts.clockwork.advance_epoch()
    while net.channel.receive_next():
        pass
    assert net.channel.status()["lag"]["epochs"] > 0 and not net.wait(60.0)
    net.channel.apply_all()
    assert net.channel.check_failover(), "no beat was among it"


def test_threads_move_by_themselves_and_status_counts_it():
    stores = [open_site(server_id=each, clock=SystemClock(), **PASSES_ON) for each in (1, 2, 4)]
    a, b, d = stores
    make_table(a)
    epoch = put(a, 1)
    with tm.Channel(a, b) as inner:
        inner.apply_all()
        channel = tm.Channel(
            b, d, other_sources=[a], failover_after_ms=40, heartbeat_from=1, skip_start=False, heartbeat_ms=100
        )
        b.wait_applied(b.sync(), WAIT_MS, at=[4])
        a.wait_applied(put(a, 2), WAIT_MS, at=[4])  # b does not pass this on
    assert epoch and rows(d) == {1: "x", 2: "x"}
    shown = channel.status()["failover"]
    assert shown["moves"] >= 1 and shown["heartbeat_from"] == 1 and len(shown["sources"]) == 2
    channel.stop()
    moves = channel.status()["failover"]["moves"]
    assert not channel.is_receiving and not channel.is_applying
    for each in stores:
        each.close()
    assert channel.status()["failover"]["moves"] == moves


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"heartbeat_from": 0}, "all three"),
        ({"failover_after_ms": 0}, "all three"),
        ({"other_sources": ()}, "all three"),
        ({"failover_after_ms": -1}, "give 1 to"),
        ({"heartbeat_from": 4}, "another site"),
        ({"replicate_do": "shop"}, "let them pass"),
        ({"ignore_server_ids": (1,)}, "let them pass"),
    ],
)
def test_options_that_do_not_go_together_are_refused_and_leave_no_channel(net, changed, text):
    net.channel.close()
    net.options = changed
    with pytest.raises(tm.SchemaInvalid, match=text):
        net.make()
    assert net.d.status()["replication"]["channels"] == {}


def test_source_of_such_a_channel_is_not_changed_by_hand(net):
    with pytest.raises(tm.Rejected, match="several sources"):
        net.channel.change_source(net.stores["c"])
