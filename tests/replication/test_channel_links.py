"""Channels over links that lose, double and cut, with crashes of both sides at every write, and in threads."""

from __future__ import annotations

import random
import threading

import pytest

from tests.replication.channel_rig import SOURCE, Replica, Source, run
from tidemark.engine.base.errors import PeerError, Rejected
from tidemark.recovery.crash_harness.crash_states import choices, crash_points, image_of
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.trace import TraceFiles
from tidemark.replication.channel.receiver import Worker, applying
from tidemark.replication.wire.frames import FrameReader, FrameWriter
from tidemark.replication.wire.messages import Start
from tidemark.replication.wire.sessions import ReplicaSession, SourceSession

SEED = 9_210_533


# --- links, crashes -------------------------------------------------------------------------------
class Talk:
    """Two sessions with frames carried by hand: lost, doubled, reordered or cut, as a seed decides."""

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
        self.to_source([self.replica.begin()])

    def to_source(self, frames: list[bytes]) -> None:
        for data in frames:
            for frame in self.readers[0].feed(data):
                self.source.receive(frame, self.now)

    def turn(self) -> bool:
        """Carry some frames over a bad link, and the answer back."""
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
            self.to_replica(frames)
            raise PeerError("the link broke")
        self.to_replica(frames)
        self.to_source(self.replica.pump(self.now).frames)
        return sent

    def to_replica(self, frames: list[bytes]) -> None:
        for data in frames:
            for frame in self.readers[1].feed(data):
                self.replica.receive(frame, self.now)


@pytest.mark.parametrize("seed", range(25))
def test_bad_links_and_crashes_of_both_sides_lose_and_double_nothing(seed, monkeypatch):
    print("seed", SEED + seed)
    monkeypatch.setattr("tidemark.replication.wire.sessions.CHUNK_BYTES", 300)
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
    """Power is lost at every write of a history of receiving, applying and purging. The store has what it committed, as
    its own log would restore it, and the relay log has whatever the disk kept.
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
        patch.setattr("tidemark.replication.channel.receiver.CHUNK_BYTES", 400)
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
    monkeypatch.setattr("tidemark.replication.wire.sessions.CHUNK_BYTES", 16 << 10)
    source, replica = Source(file_bytes=1 << 20), Replica()
    source.write(*range(1, 40), size=2_000)
    talk = Talk(source, replica, random.Random(1))
    held = [frame for _ in range(100) for frame in talk.source.pump(talk.now, 0).frames]
    assert sum(map(len, held)) <= (64 << 10) + 2 * (16 << 10) and talk.source.is_full
    source.write(40)  # commits continue
    talk.to_replica(held)
    talk.to_source(talk.replica.pump(talk.now).frames)
    assert not talk.source.is_full and talk.source.pump(talk.now, 0).frames


# --- threads --------------------------------------------------------------------------------------
def test_threads_receive_and_apply_until_they_are_stopped():
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
    assert reached.wait(100)
    assert receiver.is_running and applier.is_running
    receiver.stop()
    applier.stop()
    assert not receiver.is_running and not applier.is_running
    assert replica.store.epochs == list(range(1, 31))
    assert receiver.status() == applier.status() == {"state": "stopped", "error": None}


def test_thread_that_ends_reports_its_error_and_starts_again():
    source, replica = Source(), Replica()
    source.write(1)
    replica.store.fails_with = Rejected("no such table")
    applier = Worker("applier", applying(replica.channel))
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    applier.start()
    applier.thread.join(100)
    assert applier.status() == {"state": "failed", "error": "Rejected: no such table"}
    replica.store.fails_with = None
    applier.start()
    while not replica.store.log:
        threading.Event().wait(0.001)
    applier.stop()
    assert replica.store.epochs == [1] and applier.status()["state"] == "stopped"
