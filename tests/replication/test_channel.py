"""Channels: every epoch once and in order, whatever the link, the disks and the processes do between."""

from __future__ import annotations

import random
import threading

import pytest

from engine.clock import ManualClock
from engine.errors import (
    BinlogDamaged,
    EpochGap,
    InvalidName,
    PeerError,
    PeerRefused,
    PositionLost,
    Rejected,
    SchemaInvalid,
)
from engine.file_doubles.memory import MemoryFiles
from engine.file_doubles.trace import TraceFiles
from recovery.crash_harness.crash_states import choices, crash_points, image_of
from replication.channel import ChannelOptions, ReplicaChannel, StatusRow, check_name
from replication.protocol.frames import FrameReader, FrameWriter
from replication.protocol.handshake import Site
from replication.protocol.messages import Events, Heartbeat, Position, Start
from replication.protocol.sessions import ReplicaSession, SourceSession
from replication.receiver import LocalReceiver, Worker, applying
from replication.relay_log import RelayLog
from tests.replication.channel_rig import REPLICA, SOURCE, Replica, Source, run

SEED = 9_210_533


def test_every_epoch_is_applied_once_in_order():
    source, replica = Source(), Replica()
    source.write(*range(1, 10))
    run(source, replica)
    source.write(*range(10, 20))
    run(source, replica)
    assert replica.store.epochs == list(range(1, 20))
    last = source.rows[-1]
    assert replica.store.status[1] == StatusRow(1, 19, last.file, last.position, last.next_position)
    assert replica.channel.lag() == {"epochs": 0, "seconds": 0.0}


def test_receiver_and_applier_run_apart():
    source, replica = Source(), Replica()
    source.write(*range(1, 6))
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    assert replica.store.log == [] and replica.channel.lag()["epochs"] == 5
    assert replica.channel.apply_next().epoch == 1
    assert replica.channel.lag()["epochs"] == 4
    assert replica.channel.apply_all() == 4
    assert replica.channel.apply_next() is None and not receiver.receive_next()


def test_lag_is_that_of_what_was_applied_last():
    source, replica = Source(), Replica()
    source.write(1)
    run(source, replica)
    commit_us = replica.channel.progress.applied_commit_us
    source.write(2)
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    replica.channel.heard(Heartbeat(2, commit_us + 3_500_000, Position(*source.writer.end)))
    assert replica.channel.lag() == {"epochs": 1, "seconds": 3.5}
    replica.channel.apply_all()
    assert replica.channel.lag() == {"epochs": 0, "seconds": 0.0}


def test_restarted_replica_counts_what_its_relay_log_still_has():
    source, replica = Source(), Replica()
    source.write(*range(1, 9))
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    for _ in range(3):
        replica.channel.apply_next()
    replica.restart(replica.files.kill())
    replica.channel.apply_next()
    assert replica.channel.lag()["epochs"] == 4
    assert replica.store.epochs == [1, 2, 3, 4]


def test_replica_without_relay_log_goes_on_behind_what_is_applied():
    source, replica = Source(), Replica()
    source.write(*range(1, 9))
    run(source, replica)
    replica.restart(MemoryFiles())
    source.write(9, 10)
    run(source, replica)
    assert replica.store.epochs == list(range(1, 11))


def test_relay_log_behind_what_is_applied_is_fetched_anew():
    """The store is durable, the relay log lost its end: what is applied lies behind all it has."""
    source, replica = Source(), Replica()
    source.write(*range(1, 4))
    run(source, replica)
    early = replica.files.snapshot()
    source.write(*range(4, 9))
    run(source, replica)
    replica.restart(MemoryFiles.from_snapshot(early))
    assert replica.channel.apply_next() is None
    source.write(9)
    run(source, replica)
    assert replica.store.epochs == list(range(1, 10))


def test_store_behind_its_relay_log_fetches_anew():
    """The other way round: a store that went back needs what its relay log has purged."""
    source, replica = Source(), Replica()
    source.write(*range(1, 30))
    receiver = replica.receiver(source)
    receiver.receive_next()
    replica.channel.apply_next()
    back, log = dict(replica.store.status), list(replica.store.log)
    run(source, replica)
    assert len(replica.channel.relay.runs()) < 3
    replica.restart(replica.files.kill())
    replica.store.status, replica.store.log = back, log
    with pytest.raises(EpochGap, match="start the receiver"):
        replica.channel.apply_next()
    run(source, replica)
    assert replica.store.epochs == list(range(1, 30))


def test_epoch_that_was_received_again_is_passed_over():
    source, replica = Source(), Replica()
    source.write(*range(1, 6))
    run(source, replica)
    status = replica.store.status[1]
    replica.store.status[1] = status._replace(log_name="", end_pos=0)
    replica.channel.discard_relay()
    relay = RelayLog(replica.files, ManualClock(), "main", 2)
    relay.expect(1)
    binlog = source.binlog()
    at, data = binlog.read(Position("binlog.000001", 4), 1 << 20)
    relay.append(Events(at, data))
    relay.sync()
    relay.close()
    run(source, replica)
    assert replica.store.epochs == list(range(1, 6))
    assert replica.channel.progress.passed_over == 5


def test_epoch_that_failed_comes_again():
    source, replica = Source(), Replica()
    source.write(1, 2)
    replica.store.fails_with = Rejected("no such table")
    with pytest.raises(Rejected):
        run(source, replica)
    with pytest.raises(Rejected):
        replica.channel.apply_next()
    replica.store.fails_with = None
    assert replica.channel.apply_next().epoch == 1
    run(source, replica)
    assert replica.store.epochs == [1, 2]


def test_source_that_says_something_is_missing_stops_the_applier():
    source, replica = Source(), Replica()
    source.write(1)
    source.writer.incident("the log was full")
    source.write(2)
    with pytest.raises(EpochGap, match="the log was full"):
        run(source, replica)
    with pytest.raises(EpochGap):
        replica.channel.apply_next()
    assert replica.store.epochs == [1]


def test_schema_changes_come_in_their_place():
    source, replica = Source(), Replica()
    source.write(1)
    source.writer.statement("CREATE TABLE d.u (id INT PRIMARY KEY)", "d")
    source.write(2)
    run(source, replica)
    assert replica.store.statements == ["CREATE TABLE d.u (id INT PRIMARY KEY)"]
    assert [each for each, _ in replica.store.log] == [1, 2]


def test_schema_changes_of_skipped_servers_and_filtered_tables_are_left_out():
    source, replica = Source(), Replica(replicate_ignore=("d.secret%", "other"))
    for text in (
        "CREATE TABLE d.secret_1 (id INT PRIMARY KEY)",
        "CREATE TABLE other.t (id INT PRIMARY KEY)",
        "CREATE TABLE d.open (id INT PRIMARY KEY)",
        "OPTIMIZE TABLE d.x",
    ):
        source.writer.statement(text, "d")
    run(source, replica)
    assert replica.store.statements == ["CREATE TABLE d.open (id INT PRIMARY KEY)", "OPTIMIZE TABLE d.x"]
    assert replica.channel.progress.filtered == 2
    ignoring = Replica(ignore_server_ids=(1,))
    run(source, ignoring)
    assert ignoring.store.statements == []


def test_filtered_rows_move_the_position_and_are_not_seen():
    source, replica = Source(), Replica(replicate_do=("shop",))
    source.write(1, 2)
    run(source, replica)
    assert replica.store.log == [(1, []), (2, [])]
    taken = Replica(replicate_do=("d.t",))
    run(source, taken)
    assert [len(ids) for _, ids in taken.store.log] == [3, 3]


@pytest.mark.parametrize("pattern", ["", "a.b.c", 5])
def test_patterns_that_cannot_be_are_refused(pattern):
    with pytest.raises(SchemaInvalid, match="replicate_do"):
        Replica(replicate_do=(pattern,))


# --- who may replicate ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "peer", [Site(2, "ef" * 16, 1), Site(0, "ef" * 16, 1), Site(9, REPLICA.store, 1)], ids=["same id", "zero", "itself"]
)
def test_source_that_is_none_is_refused(peer):
    source, replica = Source(), Replica()
    with pytest.raises(PeerRefused):
        LocalReceiver(replica.channel, peer, source.binlog(), source.clock).receive_next()


def test_server_id_0_does_not_replicate():
    replica = Replica()
    with pytest.raises(Rejected, match="server_id 0"):
        ReplicaChannel(replica.files, ManualClock(), Site(0, "cd" * 16, 1), replica.store, replica.store)


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", "x" * 65, "a.b", "é", "a\n", None])
def test_names_of_channels_never_become_paths(name):
    with pytest.raises(InvalidName):
        check_name(name)


def test_another_source_needs_an_empty_relay_log():
    source, replica = Source(), Replica()
    source.write(1)
    run(source, replica)
    stranger = LocalReceiver(replica.channel, Site(7, "77" * 16, 1), source.binlog(), source.clock)
    with pytest.raises(PeerRefused, match="server 1"):
        stranger.receive_next()


def test_channels_of_one_store_have_relay_logs_of_their_own():
    source, replica = Source(), Replica()
    source.write(1, 2)
    other = ReplicaChannel(replica.files, ManualClock(), REPLICA, Store2(), Store2(), ChannelOptions("other"))
    run(source, replica)
    receiver = LocalReceiver(other, SOURCE, source.binlog(), source.clock)
    while receiver.receive_next():
        pass
    replica.channel.reset()
    assert other.apply_all() == 2


class Store2:
    """Takes everything and remembers nothing."""

    def start(self):
        pass

    def apply(self, transaction):
        pass

    def rows(self):
        return []


# --- where to go on -------------------------------------------------------------------------------
def test_failed_middle_of_a_chain_is_left_out():
    """A→B→C becomes A→C: C knows from B what of A it has, and A's binlog where that ends."""
    source, replica = Source(), Replica()
    source.write(*range(1, 8))
    replica.store.status = {3: StatusRow(3, 900, "b.000001", 4, 900), 1: StatusRow(1, 5)}
    assert replica.channel.begin(SOURCE) == Start(epoch=5)
    run(source, replica)
    assert replica.store.epochs == [6, 7]


def test_failed_source_of_the_new_one_tells_where_to_go_on():
    """C came from B (server 3), which failed; A (server 1) has B's changes too, and says so in its binlog index."""
    source, replica = Source(), Replica(failed_source=3)
    source.write(*range(1, 8))
    for row in list(source.rows):
        source.rows.append(row._replace(orig_server_id=3, orig_epoch=row.epoch * 10))
    replica.store.status = {3: StatusRow(3, 40, "b.000001", 4, 900)}
    assert replica.channel.begin(SOURCE) == Start(epoch=40, origin=3)
    run(source, replica)
    assert replica.store.epochs == [4, 5, 6, 7], "what came with epoch 40 comes again, for others stand in it"


def test_failed_source_nobody_heard_of_is_refused():
    replica = Replica(failed_source=3)
    with pytest.raises(PeerRefused, match="server 3"):
        replica.channel.begin(SOURCE)


def test_source_that_purged_what_is_needed_is_told_apart():
    source, replica = Source(), Replica()
    source.write(*range(1, 9))
    run(source, replica)
    source.write(*range(9, 30))
    source.writer.index.purge_to(source.writer.index.names[-1])
    with pytest.raises(PositionLost):
        run(source, replica)
    assert replica.store.epochs == list(range(1, 9))


def test_source_that_went_back_is_a_gap_and_nothing_of_it_is_applied():
    """F88: the source is restored from an older copy and goes on with other epochs under the same numbers."""
    source, replica = Source(file_bytes=1 << 20), Replica()
    source.write(1, 2)
    older = source.files.snapshot()
    source.write(3, 4)
    run(source, replica)
    for names in ((), (5,), (5, 6, 7, 8, 9)):
        again = Source(MemoryFiles.from_snapshot(older), file_bytes=1 << 20)
        again.epochs, again.rows = list(source.epochs[:2]), list(source.rows[:2])
        again.write(*names)
        with pytest.raises(EpochGap):
            run(again, replica)
    assert replica.store.epochs == [1, 2, 3, 4]


def test_reset_forgets_what_was_applied_and_may_keep_it():
    source, replica = Source(), Replica()
    source.write(1, 2)
    run(source, replica)
    replica.channel.reset()
    assert replica.store.status == {} and replica.channel.status()["applied"] == 0
    run(source, replica)
    assert replica.store.epochs == [1, 2, 1, 2]
    keeping = Replica(clear_apply_status=False)
    run(source, keeping)
    keeping.channel.reset()
    assert keeping.store.status[1].epoch == 2


def test_damaged_relay_log_names_its_place_and_reset_of_it_mends():
    source, replica = Source(), Replica(relay_file_bytes=1_500)
    source.write(*range(1, 12))
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    for _ in range(2):
        replica.channel.apply_next()
    disk = replica.files.snapshot()
    name = replica.channel.relay.runs()[1].name
    data = bytearray(disk[f"relay/{name}"])
    data[-30] ^= 1
    disk[f"relay/{name}"] = bytes(data)
    replica.restart(MemoryFiles.from_snapshot(disk))
    with pytest.raises(BinlogDamaged) as raised:
        replica.channel.apply_all()
    assert raised.value.evidence["file"] == name and raised.value.evidence["position"] > 100
    replica.channel.discard_relay()
    run(source, replica)
    assert replica.store.epochs == list(range(1, 12))


# --- links, crashes -------------------------------------------------------------------------------
class Talk:
    """Two sessions with frames carried by hand: lost, doubled, exchanged, cut, as a seed says."""

    def __init__(self, source: Source, replica: Replica, rng: random.Random, window_bytes: int = 64 << 10) -> None:
        self.now = 50.0
        self.rng = rng
        self.channel = replica.channel
        self.readers = FrameReader(), FrameReader()
        writers = FrameWriter(), FrameWriter()
        key = rng.randbytes(32)
        for each in (*writers, *self.readers):
            each.use_key(key)
        start = self.channel.begin(SOURCE)
        start = Start(start.epoch, start.origin, start.file, start.position, window_bytes)
        self.replica = ReplicaSession(self.channel, writers[0], start, self.now)
        self.source = SourceSession(source.binlog(), writers[1], self.now)
        self._to_source([self.replica.begin()])

    def _to_source(self, frames: list[bytes]) -> None:
        for data in frames:
            for frame in self.readers[0].feed(data):
                self.source.receive(frame, self.now)

    def turn(self) -> bool:
        """Some frames over, through a bad link, and the answer back."""
        frames = [data for _ in range(3) for data in self.source.pump(self.now, 0).frames]
        draw = self.rng.random()
        sent = bool(frames)
        if frames and draw < 0.08:
            frames.pop(self.rng.randrange(len(frames)))
        elif frames and draw < 0.16:
            frames.insert(0, frames[-1])
        elif len(frames) > 1 and draw < 0.24:
            frames.reverse()
        elif frames and draw < 0.30:
            frames[-1] = frames[-1][: self.rng.randrange(len(frames[-1]))]
            self._to_replica(frames)
            raise PeerError("the link broke")
        self._to_replica(frames)
        self._to_source(self.replica.pump(self.now).frames)
        return sent

    def _to_replica(self, frames: list[bytes]) -> None:
        for data in frames:
            for frame in self.readers[1].feed(data):
                self.replica.receive(frame, self.now)


@pytest.mark.parametrize("seed", range(25))
def test_bad_links_and_crashes_of_both_sides_lose_and_double_nothing(seed, monkeypatch):
    print("seed", SEED + seed)
    monkeypatch.setattr("replication.protocol.sessions.CHUNK_BYTES", 300)
    rng = random.Random(SEED + seed)
    source, replica = Source(file_bytes=5_000), Replica(relay_file_bytes=1_500)
    epoch, broken = 0, 0
    while epoch < 60 or replica.store.epochs[-1:] != [epoch]:
        if epoch < 60:
            for _ in range(rng.randrange(3)):
                epoch += 1
                source.write(epoch, rows=rng.randrange(4), size=rng.randrange(200))
        draw = rng.random()
        if draw < 0.1:
            source.crash(rng)
        elif draw < 0.2:
            replica.crash(rng)
        try:
            talk = Talk(source, replica, rng)
            for _ in range(rng.randrange(1, 12)):
                talk.turn()
                for _ in range(rng.randrange(3)):
                    replica.channel.apply_next()
        except PeerError:
            broken += 1
    assert replica.store.epochs == list(range(1, epoch + 1))
    assert broken > 0


def test_replica_that_dies_at_any_write_applies_every_epoch_once():
    """Every power loss of a history of receiving, applying and purging; the store has what it committed, as its own
    log would bring it back, and the relay log whatever the disk kept.
    """
    print("seed", SEED)
    rng = random.Random(SEED)
    source = Source(file_bytes=3_000)
    source.write(*range(1, 10))
    trace = TraceFiles(MemoryFiles())
    replica = Replica(trace, relay_file_bytes=1_200)
    receiver = replica.receiver(source)
    stores = [(0, {}, [])]
    monotone = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replication.receiver.CHUNK_BYTES", 400)
        while monotone:
            monotone = receiver.receive_next()
            replica.channel.apply_next()
            stores.append((len(trace.events), dict(replica.store.status), list(replica.store.log)))
    calls = {id(event): number for number, event in enumerate(trace.events)}
    states = 0
    for disk, _, event in crash_points(trace.events):
        number = len(trace.events) if event is None else calls[id(event)]
        _, status, log = max((each for each in stores if each[0] <= number), key=lambda each: each[0])
        for choice in choices(disk.pieces(), rng, 4):
            again = Replica(image_of(disk, choice, rng), relay_file_bytes=1_200)
            again.store.status, again.store.log = dict(status), list(log)
            run(source, again)
            assert again.store.epochs == list(range(1, 10))
            states += 1
    assert states > 200


def test_slow_replica_costs_the_source_its_window_and_no_more(monkeypatch):
    monkeypatch.setattr("replication.protocol.sessions.CHUNK_BYTES", 16 << 10)
    source, replica = Source(file_bytes=1 << 20), Replica()
    source.write(*range(1, 40), size=2_000)
    talk = Talk(source, replica, random.Random(1))
    held = [frame for _ in range(100) for frame in talk.source.pump(talk.now, 0).frames]
    assert sum(map(len, held)) <= (64 << 10) + 2 * (16 << 10) and talk.source.is_full
    source.write(40)  # commits go on
    talk._to_replica(held)
    talk._to_source(talk.replica.pump(talk.now).frames)
    assert not talk.source.is_full and talk.source.pump(talk.now, 0).frames


# --- threads --------------------------------------------------------------------------------------
def test_threads_receive_and_apply_until_they_are_told_to_stop():
    source, replica = Source(), Replica()
    reached = threading.Event()
    apply = replica.store.apply

    def watched(transaction):
        apply(transaction)
        if transaction.epoch == 30:
            reached.set()

    replica.store.apply = watched
    receiver = Worker("receiver", replica.receiver(source).run)
    applier = Worker("applier", applying(replica.channel))
    source.write(*range(1, 20))
    receiver.start()
    applier.start()
    for epoch in range(20, 31):
        source.write(epoch)
    assert reached.wait(30)
    assert receiver.is_running and applier.is_running
    receiver.stop()
    applier.stop()
    assert not receiver.is_running and not applier.is_running
    assert replica.store.epochs == list(range(1, 31))
    assert receiver.status() == applier.status() == {"state": "stopped", "error": None}


def test_thread_that_ends_tells_its_error_and_starts_again():
    source, replica = Source(), Replica()
    source.write(1)
    replica.store.fails_with = Rejected("no such table")
    applier = Worker("applier", applying(replica.channel))
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    applier.start()
    applier._thread.join(30)
    assert applier.status() == {"state": "failed", "error": "Rejected: no such table"}
    replica.store.fails_with = None
    applier.start()
    while not replica.store.log:
        threading.Event().wait(0.001)
    applier.stop()
    assert replica.store.epochs == [1] and applier.status()["state"] == "stopped"
