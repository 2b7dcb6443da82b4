"""Which sites have received or applied an epoch: reported back along the way it went, through chains and circles."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import tidemark as tm
from tests.replication.test_channel_stores import PASSES_ON, circle, make_table, put, site, turn
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.wire.messages import FORWARDED_MAX, Acknowledge

SECRET = b"a secret of sixteen"


@pytest.fixture
def sites() -> Any:
    made: list[Any] = []

    def some(count: int, **options: Any) -> list[Any]:
        made.extend(site(number + 1, **{**PASSES_ON, **options}) for number in range(count))
        return made

    yield some
    for db in made:
        db.close()


def lacking(db: Any, epoch: int, at: list[int] | None = None) -> tuple[list[int], dict[int, int]]:
    """Return (servers that lack it, known applied epochs) of a wait with timeout 0."""
    with pytest.raises(tm.PeerTimeout) as reported:
        db.wait_applied(epoch, 0, at)
    return reported.value.evidence["servers"], reported.value.evidence["applied"]


def test_epoch_of_a_circle_of_three_is_waited_for_at_every_site(sites: Any) -> None:
    """Story: the wait ended when the next site had the epoch, and one for the third site never ended."""
    ring = sites(3)
    a, _, _ = ring
    channels = circle(*ring)
    make_table(a)
    turn(ring, channels, 2)
    a.wait_applied(a.sync(), 0)
    epoch = put(a, 1)
    channels[0].apply_all()
    assert lacking(a, epoch)[0] == [3]
    assert lacking(a, epoch, [3])[0] == [3]
    a.wait_applied(epoch, 0, [2])
    ring[1].parts.clockwork.advance_epoch()
    channels[1].apply_all()
    a.wait_applied(epoch, 0)
    a.wait_applied(epoch, 0, [3])
    a.wait_applied(epoch, 0, [2, 3])


@pytest.mark.parametrize("count", [3, 5])
def test_epoch_of_a_chain_is_waited_for_at_its_end(sites: Any, count: int) -> None:
    """Story: nothing comes back from the end of a chain, so no message informed the first site."""
    chain = sites(count)
    channels = [tm.Channel(one, other) for one, other in zip(chain, chain[1:], strict=False)]
    make_table(chain[0])
    for source, channel in zip(chain, channels, strict=False):
        source.parts.clockwork.advance_epoch()
        channel.apply_all()
    epoch = put(chain[0], 1)
    for number, channel in enumerate(channels):
        others = list(range(2, count + 1))
        assert lacking(chain[0], epoch)[0] == others[number:]
        chain[number].parts.clockwork.advance_epoch()
        channel.apply_all()
    chain[0].wait_applied(epoch, 0)
    chain[0].wait_applied(epoch, 0, [count])


def test_sites_after_one_that_passes_nothing_on_are_not_waited_for(sites: Any) -> None:
    """Story: if a site had applied the replica's own changes, it counted as having all that the replica had
    received.
    """
    a, b, c = sites(3, log_replica_updates=False)
    first, second = tm.Channel(a, b), tm.Channel(b, c)
    make_table(a)
    make_table(b, "shop.other")
    first.apply_all()
    second.apply_all()
    epoch = put(a, 1)
    first.apply_all()
    put(b, 1, name="shop.other")
    second.apply_all()
    a.wait_applied(epoch, 0)
    assert lacking(a, epoch, [3]) == ([3], {2: epoch})


def test_epoch_that_a_site_on_the_way_does_not_log_needs_not_arrive_past_it(sites: Any) -> None:
    a, b, c = sites(3)
    first = tm.Channel(a, b, replicate_ignore=["shop.secret"])
    second = tm.Channel(b, c)
    make_table(a)
    make_table(a, "shop.secret")
    first.apply_all()
    b.parts.clockwork.advance_epoch()
    second.apply_all()
    epoch = put(a, 1, name="shop.secret")
    first.apply_all()
    b.parts.clockwork.advance_epoch()
    second.apply_all()
    a.wait_applied(epoch, 0)


def test_unknown_site_is_named_when_the_time_is_over(sites: Any) -> None:
    """Story: a wait with `at=[3]` never ended with an error that gave the reason."""
    a, b = sites(2)
    make_table(a)
    with pytest.raises(tm.Rejected, match="no replica has connected"):
        a.wait_applied(a.sync(), 0)
    with tm.Channel(a, b) as channel:
        channel.apply_all()
        epoch = put(a, 1)
        channel.apply_all()
        with pytest.raises(tm.PeerTimeout, match="server 9 has not connected") as reported:
            a.wait_applied(epoch, 0, [2, 9])
        assert reported.value.evidence["servers"] == [9] and reported.value.evidence["applied"] == {2: epoch}
        for wrong in ([], [1], [2, 1]):
            with pytest.raises(tm.Rejected, match="other sites than this one"):
                a.wait_applied(epoch, 0, wrong)


def test_what_was_applied_before_the_sites_were_opened_is_reported_again(sites: Any) -> None:
    """Story: after a restart the middle site knew nothing of the epochs it had passed on."""
    files = MemoryFiles()
    a, c = sites(1)[0], site(3, **PASSES_ON)
    b = site(2, files, **PASSES_ON)
    first, second = tm.Channel(a, b), tm.Channel(b, c)
    make_table(a)
    epoch = put(a, 1)
    first.apply_all()
    b.parts.clockwork.advance_epoch()
    second.apply_all()
    second.close()
    b.close()
    b = site(2, files.kill(), **PASSES_ON)
    try:
        with tm.Channel(a, b) as first, tm.Channel(b, c) as second:
            a.endpoint.reach.heard.clear()
            first.apply_all()
            second.apply_all()
            more = put(a, 2)
            assert lacking(a, more)[0] == [2, 3]
            a.wait_applied(epoch, 0, [2, 3])
            first.apply_all()
            b.parts.clockwork.advance_epoch()
            second.apply_all()
            a.wait_applied(more, 0)
    finally:
        b.close()
        c.close()


def test_wait_over_the_network_ends_when_the_last_site_of_the_chain_has_it(tmp_path: Any) -> None:
    """Story: over a link a replica reported only its own epoch."""
    options = {"log_bin": "binlog", **PASSES_ON}
    a, b, c = (tm.open(tmp_path / str(each), server_id=each, **options) for each in (1, 2, 3))
    with a, b, c:
        served = [tm.serve(db, "127.0.0.1:0", SECRET) for db in (a, b)]
        links = [
            tm.Channel(each.address, db, secret=SECRET, skip_start=False, heartbeat_ms=200)
            for each, db in zip(served, (b, c), strict=True)
        ]
        make_table(a)
        a["shop.item"].insert({"id": 1, "v": "x"})
        epoch = a.sync()
        a.wait_applied(epoch, 60_000, [2, 3])
        assert c["shop.item"].get(1).v == "x"
        a.wait_applied(epoch, 60_000)
        a["shop.item"].insert({"id": 2, "v": "y"})
        epoch = a.sync()
        a.wait_applied(epoch, 60_000)
        assert c["shop.item"].get(2).v == "y"
        for each in (*links, *served):
            each.close()


def test_waiter_is_woken_by_the_report_of_a_remote_site(sites: Any) -> None:
    ring = sites(3)
    channels = circle(*ring)
    make_table(ring[0])
    turn(ring, channels, 2)
    epoch = put(ring[0], 1)
    channels[0].apply_all()
    ended = threading.Event()

    def wait() -> None:
        ring[0].endpoint.reach.wait(epoch, 1 << 40, [3])
        ended.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert not ended.is_set()
    ring[1].parts.clockwork.advance_epoch()
    channels[1].apply_all()
    thread.join(60)
    assert ended.is_set()


def test_acknowledgements_name_forwarded_sites_and_false_ones_are_refused() -> None:
    reported = Acknowledge(7, 6, 5, ((2, 4), (3, 0)))
    assert Acknowledge.unpack(reported.pack()) == reported
    assert Acknowledge.unpack(Acknowledge(7, 6, 5).pack()).forwarded_epochs == ()
    wrong = [
        reported.pack()[:-1],
        reported.pack() + b"x",
        Acknowledge(7, 6, 5, ((0, 4),)).pack(),
        Acknowledge(7, 6, 5, ((1 << 40, 4),)).pack(),
        Acknowledge(7, 6, 5, ((2, (1 << 64) - 1),)).pack(),
        Acknowledge(7, 6, 5, ((2, 4),) * (FORWARDED_MAX + 1)).pack(),
    ]
    for each in wrong:
        with pytest.raises(tm.FrameRejected):
            Acknowledge.unpack(each)


def not_received(db: Any, epoch: int, at: list[int] | None = None) -> tuple[list[int], dict[int, int]]:
    """Return (servers that lack it, known received epochs) of a wait with timeout 0."""
    with pytest.raises(tm.PeerTimeout, match="was not received within 0 ms") as reported:
        db.wait_received(epoch, 0, at)
    return reported.value.evidence["servers"], reported.value.evidence["received"]


def test_epoch_is_received_before_it_is_applied(sites: Any) -> None:
    a, b, c = sites(3)
    first, second = tm.Channel(a, b), tm.Channel(b, c)
    make_table(a)
    first.apply_all()
    b.parts.clockwork.advance_epoch()
    second.apply_all()
    before = put(a, 1)
    first.apply_all()
    b.parts.clockwork.advance_epoch()
    epoch = put(a, 2)
    assert not_received(a, epoch) == ([2], {2: before, 3: not_received(a, epoch)[1][3]})
    while first.receive_next():
        pass
    a.wait_received(epoch, 0)
    a.wait_received(epoch, 0, [2])
    assert lacking(a, epoch, [2])[0] == [2]
    assert not_received(a, epoch, [3])[0] == [3], "a site further on has received what it has applied"
    first.apply_all()
    b.parts.clockwork.advance_epoch()
    second.apply_all()
    a.wait_received(epoch, 0, [2, 3])


def test_replica_that_only_receives_is_waited_for_by_its_own_call_alone(sites: Any) -> None:
    """Story: what a replica of MySQL acknowledges is in its relay log, and counted as applied it would promise more."""
    a, b = sites(2)
    make_table(a)
    epoch = put(a, 1)
    for wrong in ([], [1]):
        with pytest.raises(tm.Rejected, match="other sites than this one"):
            a.wait_received(epoch, 0, wrong)
    with pytest.raises(tm.Rejected, match="no replica has connected"):
        a.wait_received(epoch, 0)
    assert not_received(a, epoch, [77]) == ([77], {})
    a.endpoint.reach.note_received(77, epoch)
    a.wait_received(epoch, 0)
    a.wait_received(epoch, 0, [77])
    with pytest.raises(tm.Rejected, match="no replica has connected"):
        a.wait_applied(epoch, 0)
    assert lacking(a, epoch, [77]) == ([77], {})
    shown = a.status()["replication"]["lag"]["to server 77"]
    assert shown["stations"] == {"received": {"passed_epoch": epoch, "epochs_on_the_way": 0}}
    assert shown["lag_epochs"] == 0
    more = put(a, 2)
    assert a.status()["replication"]["lag"]["to server 77"]["lag_epochs"] == 1
    assert not_received(a, more) == ([77], {77: epoch})
    with tm.Channel(a, b) as channel:
        channel.apply_all()
        a.wait_applied(more, 0)
        assert not_received(a, more)[0] == [77]
        a.endpoint.reach.note_returned(2, more)
    a.endpoint.reach.note_received(1, more)
    for server_id in range(1_000, 4_000):
        a.endpoint.reach.note_received(server_id, more)
    assert len(a.status()["replication"]["lag"]) < 2_000


def test_waiter_is_woken_by_an_ack(sites: Any) -> None:
    (a,) = sites(1)
    make_table(a)
    epoch = put(a, 1)
    ended = threading.Event()

    def wait() -> None:
        a.endpoint.reach.wait(epoch, 1 << 40, [77], "received")
        ended.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert not ended.is_set()
    a.endpoint.reach.note_received(77, epoch)
    thread.join(60)
    assert ended.is_set()


def test_closed_store_says_so_though_replicas_were_connected(sites: Any) -> None:
    """Story: only a store that no channel had used checked whether it was closed. Others waited, and ended with
    PeerTimeout or Rejected.
    """
    a, b = sites(2)
    epoch = a.sync()
    tm.Channel(a, b).close()
    a.close()
    for at in (None, [2]):
        with pytest.raises(tm.StoreClosed):
            a.wait_applied(epoch, 0, at)
        with pytest.raises(tm.StoreClosed):
            a.wait_received(epoch, 0, at)
