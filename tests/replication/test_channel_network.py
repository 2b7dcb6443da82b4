"""Stores served and followed over TCP and TLS: threads, restarts of either side, strangers, refused peers."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest
import trustme

import tidemark as tm
from tests.replication.site import open_site
from tests.replication.test_channel_stores import PASSES_ON, applied, make_table, put, rows
from tests.waiting import wait_until
from tidemark.engine.base.clock import SystemClock
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.wire.frames import FrameWriter
from tidemark.replication.wire.wire import client_tls, server_tls

HOST = "127.0.0.1"
SECRET = b"what both sites know"
WAIT_MS = 60_000


def site(server_id, files=None, **options):
    """Open a store with a real clock."""
    return open_site(files or MemoryFiles(), server_id=server_id, clock=SystemClock(), **options)


@pytest.fixture
def pair():
    a, b = site(1), site(2)
    yield a, b
    b.close()
    a.close()


def follow(serving, replica, **options):
    return tm.Channel(serving.address, replica, secret=SECRET, **{"skip_start": False, **options})


def ended(worker):
    """Return the error that has ended a thread."""
    worker.thread.join(60)
    assert not worker.is_running
    return worker.error


# --- the way of a change --------------------------------------------------------------------------
@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
def test_commits_reach_the_replica_and_waiters_for_them_return(pair, with_tls, tmp_path: Path):
    a, b = pair
    contexts = (None, None)
    if with_tls:
        authority = trustme.CA()
        pem = str(tmp_path / "source.pem")
        authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(pem)
        authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
        contexts = server_tls(pem, pem), client_tls(str(tmp_path / "authority.pem"))
    make_table(a)
    put(a, 1)
    with (
        tm.serve(a, f"{HOST}:0", SECRET, contexts[0]) as serving,
        tm.Channel(serving.address, b, secret=SECRET, tls=contexts[1], skip_start=False) as channel,
    ):
        a.wait_applied(a.sync(), WAIT_MS, at=[2])
        assert rows(b) == {1: "x"}
        for number in range(2, 20):
            put(a, number)
        a.wait_applied(a.sync(), WAIT_MS)
        assert rows(b) == dict.fromkeys(range(1, 20), "x")
        assert serving.status()["tls"] is with_tls
        (replica,) = serving.status()["replicas"]
        assert replica["applied_epoch"] == applied(b)[1] == channel.status()["applied_epoch"]
        lag = a.status()["replication"]["lag"]["to server 2"]
        assert lag["lag_epochs"] == 0 and lag["stations"]["applied"]["passed_epoch"] == applied(b)[1]


def test_circle_of_two_over_the_network_ends_equal_and_confirms_epochs():
    a, b = site(1, **PASSES_ON), site(2, **PASSES_ON)
    make_table(a)
    with tm.serve(a, f"{HOST}:0", SECRET) as one, tm.serve(b, f"{HOST}:0", SECRET) as two:
        with follow(one, b), follow(two, a):
            a.wait_applied(a.sync(), WAIT_MS, at=[2])
            epoch = put(a, 1)
            put(b, 2)
            b.wait_applied(b.sync(), WAIT_MS, at=[1])
            a.wait_applied(a.sync(), WAIT_MS, at=[2])
            # b applies changes in an epoch of its own, and closes it; by that epoch a learns of its own one.
            while a.status()["replication"]["variables"]["Ndb_replica_max_replicated_epoch"] < epoch:
                b.wait_applied(b.sync(), WAIT_MS, at=[1])
        assert rows(a) == rows(b) == {1: "x", 2: "x"}
    a.close()
    b.close()


def test_no_site_to_wait_for_and_time_that_passes_are_distinguished(pair):
    a, b = pair
    with pytest.raises(tm.Rejected, match="no replica"):
        a.wait_applied(a.sync())
    make_table(a)
    epoch = put(a, 1)
    with pytest.raises(tm.PeerTimeout, match="server 2"):
        a.wait_applied(epoch, 10, at=[2])
    with tm.Channel(a, b) as channel:
        channel.apply_all()
        a.wait_applied(epoch, 10)
        with pytest.raises(tm.PeerTimeout, match="not closed"):
            a.wait_applied(epoch + (1 << 40), 10)
    with pytest.raises(tm.Rejected, match="log_bin"):
        bare = site(3, log_bin=None)
        try:
            bare.wait_applied(1, 10)
        finally:
            bare.close()


# --- restarts -------------------------------------------------------------------------------------
def test_source_that_comes_back_is_followed_again(pair, monkeypatch):
    monkeypatch.setattr("tidemark.replication.channel.receiver.RECONNECT_SECONDS", 0.01)
    a, b = pair
    make_table(a)
    put(a, 1)
    serving = tm.serve(a, f"{HOST}:0", SECRET)
    with follow(serving, b) as channel:
        a.wait_applied(a.sync(), WAIT_MS, at=[2])
        serving.close()
        put(a, 2)
        with tm.serve(a, serving.address, SECRET):
            a.wait_applied(a.sync(), WAIT_MS, at=[2])
            assert rows(b) == {1: "x", 2: "x"}
            assert channel.is_receiving and channel.is_applying


def test_both_sides_killed_over_and_over_lose_and_double_nothing(monkeypatch):
    seed = 5_117
    print("seed", seed)
    draw = random.Random(seed)
    monkeypatch.setattr("tidemark.replication.channel.receiver.RECONNECT_SECONDS", 0.01)
    disks = {1: MemoryFiles(), 2: MemoryFiles()}
    total = 0
    for turn in range(4):
        a, b = site(1, disks[1]), site(2, disks[2])
        if not turn:
            make_table(a)
            a.create_table("shop.count", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], primary_key="id")
        with tm.serve(a, f"{HOST}:0", SECRET) as serving, follow(serving, b):
            for _ in range(10):
                put(a, total, v=str(total))
                total += 1
            a.sync()
            if draw.random() < 0.5:
                a.wait_applied(a.sync(), WAIT_MS, at=[2])
        disks = {1: a.parts.files.crash(draw), 2: b.parts.files.crash(draw)}
    a, b = site(1, disks[1]), site(2, disks[2])
    with tm.serve(a, f"{HOST}:0", SECRET) as serving, follow(serving, b):
        a.wait_applied(put(a, total), WAIT_MS, at=[2])
    assert rows(a) == rows(b) and len(rows(a)) >= total
    for each in (a, b):
        each.close()


# --- refused peers --------------------------------------------------------------------------------
def test_wrong_secret_equal_ids_and_missing_tls_end_the_receiver_with_their_error(pair):
    a, b = pair
    same = site(1)
    with tm.serve(a, f"{HOST}:0", SECRET) as serving:
        with tm.Channel(serving.address, b, secret=b"x" * 16, skip_start=False) as channel:
            # Any host on the path can forge such a refusal, so the receiver keeps trying and reports the reason.
            wait_until(lambda: "does not know the secret" in str(channel.status()["receiver"]["error"]))
            assert channel.status()["receiver"]["state"] == "running"
            channel.check_running()
        with follow(serving, same) as channel:
            assert isinstance(ended(channel.receiving), tm.PeerRefused)
            assert channel.status()["receiver"]["state"] == "failed"
    with pytest.raises(tm.SchemaInvalid, match="secret"):
        tm.Channel(f"{HOST}:1", b)
    with pytest.raises(tm.SchemaInvalid, match="16 bytes"):
        tm.serve(a, f"{HOST}:0", b"short")
    with pytest.raises(tm.SchemaInvalid, match="host:port"):
        tm.Channel("nowhere", b, secret=SECRET)
    same.close()


def with_function(db, function, pattern=b"item"):
    if "mysql.ndb_replication" not in db.tables(system=True):
        db.create_replication_table()
    db["mysql.ndb_replication"].insert((b"shop", pattern, 0, 7, function))
    db.parts.clockwork.advance_epoch()


def test_epoch_functions_on_both_sides_of_a_pair_are_refused_naming_both_rows(pair):
    a, b = pair
    make_table(a)
    make_table(b)
    with_function(a, b"NDB$EPOCH()")
    with_function(b, b"NDB$EPOCH()", b"it%")
    with pytest.raises(tm.SchemaInvalid, match=r"shop\.item:0.*shop\.it%:0|shop\.it%:0.*shop\.item:0"):
        tm.Channel(a, b)
    with tm.serve(a, f"{HOST}:0", SECRET) as serving, follow(serving, b) as channel:
        error = ended(channel.receiving)
        assert isinstance(error, tm.PeerRefused) and "shop.item:0" in error.message and "shop.it%:0" in error.message
    b["mysql.ndb_replication"].delete((b"shop", b"it%", 0))
    tm.Channel(a, b).close()


def test_epoch_functions_are_on_at_most_one_channel(pair):
    a, b = pair
    c = site(3)
    make_table(b)
    with_function(b, b"NDB$EPOCH()")
    with tm.Channel(a, b, "one"):
        with pytest.raises(tm.SchemaInvalid, match="one.*two|two.*one"):
            tm.Channel(c, b, "two")
        assert list(b.status()["replication"]["channels"]) == ["one"]
    tm.Channel(c, b, "two").close()
    c.close()


def test_position_passed_on_before_a_source_is_known_skips_nothing_of_it():
    """Story: both channels of a new replica were made, and one of them came first. What it said of the other one's
    source became the place where that one began.
    """
    a, b, c = site(1, log_apply_status=True), site(2, log_apply_status=True), site(3)
    make_table(a)
    put(a, 1)
    with tm.Channel(a, b) as inner, tm.serve(a, f"{HOST}:0", SECRET) as serving:
        inner.apply_all()
        b.parts.clockwork.advance_epoch()
        with follow(serving, c, name="one", skip_start=True) as one, tm.Channel(b, c, "two") as two:
            two.apply_all()
            assert set(applied(c)) == {2}
            one.start()
            a.wait_applied(a.sync(), WAIT_MS, at=[3])
            assert rows(c) == {1: "x"}
    for each in (c, b, a):
        each.close()


def test_second_channel_of_one_served_source_is_refused(pair):
    """Story: as for sources of the same process, where the second one is refused when it is made."""
    a, b = pair
    make_table(a)
    put(a, 1)
    with tm.serve(a, f"{HOST}:0", SECRET) as serving, follow(serving, b, name="one"):
        a.wait_applied(a.sync(), WAIT_MS, at=[2])
        with pytest.raises(tm.PeerRefused, match="server 1 is the source of channel 'one'"):
            follow(serving, b, name="two", copy=True)
        with follow(serving, b, name="two") as two:
            assert isinstance(ended(two.receiving), tm.PeerRefused)
        put(a, 2)
        a.wait_applied(a.sync(), WAIT_MS, at=[2])
        assert rows(b) == {1: "x", 2: "x"}


# --- strangers ------------------------------------------------------------------------------------
def frames(seed):
    """Yield what a stranger may send: no frame at all, frames in the wrong place, invalid lengths."""
    draw = random.Random(seed)
    yield b"GET / HTTP/1.1\r\n\r\n"
    yield b"\xff" * 200
    for kind in (1, 2, 3, 16, 17, 18, 20, 23):
        yield FrameWriter().frame(kind, b"{}")
    whole = FrameWriter().frame(1, b'{"server_id": 2}')
    yield whole[:20]
    yield whole[:8] + (1 << 31).to_bytes(4, "little") + whole[12:]
    for _ in range(10):
        torn = bytearray(whole)
        torn[draw.randrange(len(torn))] ^= 1 << draw.randrange(8)
        yield bytes(torn)


def test_strangers_neither_stop_the_source_nor_learn_anything(pair):
    a, b = pair
    make_table(a)
    with tm.serve(a, f"{HOST}:0", SECRET) as serving:
        for said in frames(7):
            with socket.create_connection(serving.address) as stranger:
                stranger.settimeout(60)
                heard = b""
                try:
                    stranger.sendall(said)
                    stranger.shutdown(socket.SHUT_WR)
                    while piece := stranger.recv(4_096):
                        heard += piece
                except ConnectionError:
                    pass
                assert b"shop" not in heard and len(heard) < 4_096
        put(a, 1)
        with follow(serving, b):
            a.wait_applied(a.sync(), WAIT_MS, at=[2])
        assert rows(b) == {1: "x"}
        assert a.status()["store"]["state"] == "open"


# --- first copy -----------------------------------------------------------------------------------
def test_first_copy_over_the_network_and_a_source_that_goes_in_its_middle(pair, monkeypatch):
    a, b = pair
    make_table(a)
    a.create_table(
        "shop.part",
        [tm.Column("id", tm.Int64), tm.Column("k", tm.VarChar(9)), tm.Column("note", tm.Text, nullable=True)],
        primary_key="id",
        partition=tm.HashPartition(3),
    )
    a.create_index("shop.part", "by_k", ["k"], unique=True)
    a["shop.part"].insert_many([{"id": each, "k": str(each), "note": "n" * each} for each in range(3_000)])
    put(a, 1)
    monkeypatch.setattr("tidemark.replication.wire.copying.PIECE_BYTES", 10_000)
    with tm.serve(a, f"{HOST}:0", SECRET) as serving:
        seen = 0

        def pull(done, total, unit):
            nonlocal seen
            seen += 1
            raise tm.PeerError("the plug was pulled")

        with pytest.raises(tm.PeerError, match="plug"):
            follow(serving, b, copy=True, progress=pull)
        assert seen == 1 and applied(b) == {}
        with pytest.raises(tm.Rejected, match="copy=True"):
            follow(serving, b)
        with follow(serving, b, copy=True, replicate_do=["shop.%"]):
            for name in ("shop.item", "shop.part"):
                assert b[name].to_arrow().sort_by("id") == a[name].to_arrow().sort_by("id")
            put(a, 2)
            a.wait_applied(a.sync(), WAIT_MS, at=[2])
            assert rows(b) == {1: "x", 2: "x"}
        assert not a.snapshot().close() and a.status()["snapshots"]["open"] == 0
    with tm.Channel(serving.address, b, secret=SECRET, copy=True):  # it has its copy and asks no source
        assert rows(b) == {1: "x", 2: "x"}


def test_pieces_of_a_copy_that_cannot_be_are_refused():
    import pyarrow as pa

    from tidemark.replication.channel.first_copy import CopiedEnd, CopiedRows, CopiedTable
    from tidemark.replication.wire.copying import CopySession, pieces_of, unpack_request
    from tidemark.replication.wire.frames import Frame

    items = [
        CopiedTable("d.t", "CREATE TABLE", 3),
        CopiedRows("d.t", pa.record_batch({"a": [1, 2], "b": ["x", None]})),
        CopiedEnd((("d.t", "CREATE"),), 5, ((1, 2),)),
    ]
    whole = list(pieces_of(each for each in items))
    taken = []
    session = CopySession(FrameWriter(), b"", taken.append, 0.0)
    for each in whole:
        session.receive(Frame(25, each), 0.0)
    assert taken == items and session.is_whole
    draw = random.Random(11)
    refused = 0
    for _ in range(500):
        torn = bytearray(draw.choice(whole))
        if draw.random() < 0.3:
            del torn[draw.randrange(len(torn)) :]
        else:
            torn[draw.randrange(len(torn))] ^= 1 << draw.randrange(8)
        try:
            CopySession(FrameWriter(), b"", taken.append, 0.0).receive(Frame(25, bytes(torn)), 0.0)
        except tm.FrameRejected:
            refused += 1
    assert refused > 100
    for payload in (b"", b"{}", b"[1, 2]", b'[["a"], [1]]', b"[[]]", b"[" * 10_000):
        with pytest.raises(tm.FrameRejected):
            unpack_request(payload)


# --- heartbeat row --------------------------------------------------------------------------------
def test_heartbeat_row_travels_and_shows_the_lag_of_the_whole_way(pair):
    a, b = pair
    make_table(a)
    with tm.serve(a, f"{HOST}:0", SECRET, heartbeat_row_ms=10) as serving, follow(serving, b):
        while "tidemark.heartbeat" not in b.tables() or not len(b["tidemark.heartbeat"]):
            a.wait_applied(a.sync(), WAIT_MS, at=[2])
        first = b["tidemark.heartbeat"][1].wall_us
        while b["tidemark.heartbeat"][1].wall_us == first:
            a.wait_applied(a.sync(), WAIT_MS)
        ages = b.status()["replication"]["heartbeat_seconds"]
        assert list(ages) == [1] and 0 <= ages[1] < 60
    with pytest.raises(tm.SchemaInvalid):
        tm.serve(a, f"{HOST}:0", SECRET, heartbeat_row_ms=-1)


class ClockAhead(SystemClock):
    """The system's clock plus an offset that a test sets."""

    def __init__(self):
        self.ahead_s = 0.0

    def monotonic(self):
        return super().monotonic() + self.ahead_s


def test_replica_of_a_site_that_falls_silent_continues_with_the_origin_by_itself():
    # Story of the test: a source had 300 ms. A busy machine needs longer to connect, and the replica left the source
    # before it had brought anything.
    clock = ClockAhead()
    a, b, d = site(1), site(2, **PASSES_ON), open_site(MemoryFiles(), server_id=4, clock=clock)
    make_table(a)
    with tm.serve(a, f"{HOST}:0", SECRET, heartbeat_row_ms=20) as origin, tm.serve(b, f"{HOST}:0", SECRET) as middle:
        with follow(origin, b):
            a.wait_applied(put(a, 1), WAIT_MS, at=[2])
            patience = {"failover_after_ms": 3_600_000, "heartbeat_from": 1, "heartbeat_ms": 100}
            channel = follow(middle, d, other_sources=[origin.address], **patience)
        b.wait_applied(b.sync(), WAIT_MS, at=[4])
        epoch = put(a, 2)  # b follows no source now, and is well
        assert not channel.check_failover(), "the newest heartbeat row counts from here"
        clock.ahead_s += 3_600.0
        wait_until(lambda: channel.status()["failover"]["moves"])
        a.wait_applied(epoch, WAIT_MS, at=[4])
        assert rows(d) == {1: "x", 2: "x"} and rows(b) == {1: "x"}
        assert channel.status()["failover"]["sources"] == [middle.name, origin.name]
        assert channel.status()["failover"]["moves"] == 1
        channel.check_running()
        channel.close()
    for each in (a, b, d):
        each.close()
