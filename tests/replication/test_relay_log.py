"""Relay logs: they hold received bytes verbatim and whole; cut, rotated, purged, damaged, reset."""

from __future__ import annotations

import errno
import random

import pytest

from tests.replication.channel_rig import Source, content_of, pieces
from tests.replication.stage import rows_of
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import (
    BinlogDamaged,
    EpochGap,
    FileMissing,
    LimitExceeded,
    Rejected,
    StorageFull,
    TooManyFiles,
)
from tidemark.recovery.crash_harness.crash_states import choices, crash_points, image_of
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.trace import TraceFiles
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import BinlogReader
from tidemark.replication.binlog.scan import read_format, walk
from tidemark.replication.channel.relay_log import RelayLog, remove_relay_log
from tidemark.replication.channel.relay_reader import RelayReader
from tidemark.replication.wire.messages import Events

SEED = 4_471_902


def relay_on(files, file_bytes=1_500):
    relay = RelayLog(files, ManualClock(), "main", 2, file_bytes)
    relay.expect(1)
    return relay


def receive(relay, source, size=500, sync_every=3, start=None):
    for number, events in enumerate(pieces(source, size, start)):
        relay.append(events)
        if number % sync_every == 0:
            relay.sync()
    relay.sync()


def read_all(files, relay, start=None):
    reader = RelayReader(files, relay, start)
    found = []
    while (transaction := reader.next()) is not None:
        found.append(transaction)
    reader.close()
    return found


def epochs_of(files, relay, start=None):
    return [transaction.epoch for transaction in read_all(files, relay, start)]


def damage(files, name, at):
    """Return the same disk with one bit of a relay file flipped."""
    disk = files.snapshot()
    data = bytearray(disk[f"relay/{name}"])
    data[at] ^= 4
    disk[f"relay/{name}"] = bytes(data)
    return MemoryFiles.from_snapshot(disk)


@pytest.mark.parametrize("size", [1, 64, 500, 100_000])
def test_what_came_is_read_transaction_by_transaction(size):
    source, files = Source(), MemoryFiles()
    source.write(*range(1, 15))
    relay = relay_on(files)
    receive(relay, source, size)
    assert relay.epoch == 14 and relay.received == 14
    assert relay.durable == Position(*source.writer.end)
    transactions = read_all(files, relay)
    assert [content_of(each) for each in transactions] == [
        (epoch, [row[0] for row in rows_of(epoch)]) for epoch in range(1, 15)
    ]
    assert [each.end for each in transactions] == [end for _, end in source.epochs]
    assert [each.start for each in transactions] == [(row["File"], row["Position"]) for row in source.rows]
    assert {each.source_id for each in transactions} == {1} and all(each.commit_us for each in transactions)
    assert len(relay.runs()) > len(source.writer.index.names), "files are left at a size, and with each of the source"


def test_transactions_are_given_again_and_again():
    source, files = Source(), MemoryFiles()
    source.write(1)
    relay = relay_on(files)
    receive(relay, source)
    (transaction,) = read_all(files, relay)
    assert content_of(transaction) == content_of(transaction)
    assert transaction.finish() == transaction.end


def test_relay_files_are_in_binlog_format_and_say_so():
    source, files = Source(), MemoryFiles()
    source.write(*range(1, 9))
    relay = relay_on(files)
    receive(relay, source)
    flags = []
    for run in relay.runs():
        file = files.open(f"relay/{run.name}")
        flags.append(read_format(files, file, run.name)[0].flags)
        assert list(walk(files, file, run.name))[-1].is_boundary
    last = relay.runs()[-1]
    reader = BinlogReader(files, "relay", "main")
    events = list(reader.events(Position(last.name, files.size(f"relay/{last.name}"))))
    assert sum(read.header.type == b.ANONYMOUS_GTID_EVENT for read in events) == 8
    assert flags[:-1] == [b.FLAG_RELAY_LOG] * (len(flags) - 1)
    assert flags[-1] == b.FLAG_RELAY_LOG | b.FLAG_IN_USE


def test_nothing_is_readable_before_it_is_synced():
    source, files = Source(file_bytes=1 << 20), MemoryFiles()
    source.write(1, 2)
    relay = relay_on(files, 1 << 20)
    (events,) = pieces(source, 1 << 20)
    relay.append(events)
    assert epochs_of(files, relay) == [] and relay.epoch == 0
    assert relay.sync() == 2
    assert epochs_of(files, relay) == [1, 2]


def test_opened_again_it_continues_at_its_end():
    source, files = Source(), MemoryFiles()
    source.write(*range(1, 6))
    receive(relay_on(files), source)
    source.write(*range(6, 12))
    relay = relay_on(files.kill())
    files = relay.files
    assert relay.epoch == 5 and relay.source_id == 1
    receive(relay, source, start=relay.durable)
    assert epochs_of(files, relay) == list(range(1, 12))


def test_broken_link_leaves_no_part_of_an_epoch():
    source, files = Source(file_bytes=1 << 20), MemoryFiles()
    source.write(1, 2, 3)
    (whole,) = pieces(source, 1 << 20)
    (_, first), (_, second), _ = source.epochs
    relay = relay_on(files, 1 << 20)
    relay.append(Events(whole.at, whole.data[: second.position + 90 - 4]))
    relay.sync()
    assert relay.durable == Position(*second)
    relay.cut()
    relay.append(Events(relay.durable, whole.data[second.position - 4 :]))
    relay.sync()
    assert epochs_of(files, relay) == [1, 2, 3]
    assert first != second


@pytest.mark.parametrize("shift", [-1, 1, 100])
def test_gap_and_repetition_are_refused_with_nothing_kept(shift):
    source, files = Source(file_bytes=1 << 20), MemoryFiles()
    source.write(1, 2)
    (whole,) = pieces(source, 1 << 20)
    relay = relay_on(files, 1 << 20)
    end = source.epochs[0][1]
    relay.append(Events(whole.at, whole.data[: end.position - 4]))
    relay.sync()
    before = files.snapshot()
    with pytest.raises(EpochGap):
        relay.append(Events(Position(end.file, end.position + shift), whole.data[end.position - 4 :]))
    assert files.snapshot() == before


def test_file_left_out_is_refused():
    source, files = Source(), MemoryFiles()
    source.write(*range(1, 20))
    relay = relay_on(files)
    events = [each for each in pieces(source, 1 << 20) if each.at.file != source.writer.index.names[1]]
    relay.append(events[0])
    with pytest.raises(EpochGap):
        relay.append(events[1])


@pytest.mark.parametrize("epochs", [(5, 5), (5, 4)])
def test_epochs_out_of_order_are_refused(epochs):
    source, files = Source(file_bytes=1 << 20), MemoryFiles()
    source.write(*epochs)
    relay = relay_on(files, 1 << 20)
    with pytest.raises(EpochGap, match=f"epoch {epochs[1]} came after epoch 5"):
        receive(relay, source, 1 << 20)
    relay.cut()
    relay.sync()
    assert epochs_of(files, relay) == []


def test_damaged_bytes_are_refused_and_what_was_whole_stays():
    """The source has a damaged binlog, or is malicious: one bit of every byte is flipped."""
    print("seed", SEED)
    rng = random.Random(SEED)
    source = Source(file_bytes=1 << 20)
    source.write(1)
    first = source.epochs[0][1].position
    source.write(2)
    (whole,) = pieces(source, 1 << 20)
    for at in range(first, whole.end, 3):
        data = bytearray(whole.data)
        data[at - 4] ^= 1 << rng.randrange(8)
        files = MemoryFiles()
        relay = relay_on(files, 1 << 20)
        relay.append(Events(whole.at, bytes(data[: first - 4])))
        relay.sync()
        try:
            relay.append(Events(Position(whole.at.file, first), bytes(data[first - 4 :])))
            relay.sync()
        except (BinlogDamaged, LimitExceeded):
            relay.cut()
        assert epochs_of(files, relay) == [1]
        relay.cut()
        relay.append(Events(relay.durable, whole.data[first - 4 :]))
        relay.sync()
        assert epochs_of(files, relay) == [1, 2]


def test_every_power_loss_leaves_whole_transactions_through_the_last_synced_one():
    print("seed", SEED)
    rng = random.Random(SEED)
    source = Source()
    source.write(*range(1, 12))
    trace = TraceFiles(MemoryFiles())
    relay = relay_on(trace, 3_000)
    promised = [(0, 0, 0)]
    purged = 0
    for number, events in enumerate(pieces(source, 700)):
        relay.append(events)
        if number % 3 == 0:
            relay.sync()
        if number == 14:
            applied = next(end for epoch, end in source.epochs if epoch == 4)
            assert relay.purge(Position(*applied))
            purged = 4
        promised.append((len(trace.events), relay.epoch, purged))
    relay.sync()
    promised.append((len(trace.events), relay.epoch, purged))
    calls = {id(event): number for number, event in enumerate(trace.events)}
    states = 0
    for disk, _, event in crash_points(trace.events):
        number = len(trace.events) if event is None else calls[id(event)]
        durable = max((epoch for made, epoch, _ in promised if made <= number), default=0)
        applied = max((epoch for made, _, epoch in promised if made <= number), default=0)
        for choice in choices(disk.pieces(), rng, 12):
            left = image_of(disk, choice, rng)
            relay = relay_on(left, 3_000)
            found = epochs_of(left, relay)
            assert found == list(range(found[0], found[-1] + 1)) if found else durable == 0
            assert not found or found[-1] >= durable
            assert not found or found[0] <= max(applied, 4) + 1
            receive(relay, source, 600, start=relay.durable)
            assert epochs_of(left, relay)[-1] == 11
            states += 1
    assert states > 300


FULL = [
    *(("space", errno.ENOSPC, nth) for nth in range(1, 50, 3)),
    *(("create", errno.EMFILE, nth) for nth in range(1, 11)),
]


@pytest.mark.parametrize(("operation", "error", "nth"), FULL)
def test_full_disk_pauses_receiving(operation, error, nth):
    """Story: a process ran out of descriptors while the relay log changed files. The file it had created stayed, the
    next attempt found its name taken, and the channel stopped for good.
    """
    source, disk = Source(), MemoryFiles()
    source.write(*range(1, 12))
    files = FaultFiles(disk, [Rule(operation, "relay/*", nth=nth, error=error)])
    relay, refused = None, 0
    for _ in range(3):
        try:
            relay = relay or RelayLog(files, ManualClock(), "main", 2, 3_000)
            relay.expect(1)
            relay.cut()
            receive(relay, source, 600, start=relay.durable)
            break
        except (StorageFull, TooManyFiles):
            refused += 1
    assert refused == 1 or (operation == "space" and nth > 20)
    assert epochs_of(files, relay) == list(range(1, 12))
    assert epochs_of(disk, relay_on(disk.kill())) == list(range(1, 12))


def test_damage_in_the_newest_file_is_cut_and_fetched_again():
    source, files = Source(file_bytes=1 << 20), MemoryFiles()
    source.write(*range(1, 6))
    relay = relay_on(files, 1 << 20)
    receive(relay, source)
    run = relay.runs()[0]
    third = source.epochs[2][1]
    files = damage(files, run.name, run.offset_of(third.position) + 60)
    relay = relay_on(files, 1 << 20)
    assert relay.durable == Position(*third) and relay.epoch == 3
    assert epochs_of(files, relay) == [1, 2, 3]
    receive(relay, source, start=relay.durable)
    assert epochs_of(files, relay) == [1, 2, 3, 4, 5]


def test_damage_in_an_older_file_is_named_and_nothing_after_it_is_read():
    source, files = Source(), MemoryFiles()
    source.write(*range(1, 15))
    receive(relay_on(files), source)
    run = relay_on(files.kill()).runs()[1]
    files = damage(files, run.name, run.begin + 300)
    relay = relay_on(files)
    reader = RelayReader(files, relay, None)
    found = []
    with pytest.raises(BinlogDamaged) as raised:
        while (transaction := reader.next()) is not None:
            found.append(transaction.epoch)
    assert raised.value.evidence["file"] == run.name
    assert raised.value.evidence["position"] >= run.begin
    assert found == [epoch for epoch, end in source.epochs if end <= run.source]


def test_file_cut_short_is_damage():
    source, files = Source(), MemoryFiles()
    source.write(*range(1, 15))
    receive(relay_on(files), source)
    disk = files.snapshot()
    disk["relay/main.000001"] = disk["relay/main.000001"][:-40]
    files = MemoryFiles.from_snapshot(disk)
    with pytest.raises(BinlogDamaged, match=r"main\.000001"):
        epochs_of(files, relay_on(files))


@pytest.mark.parametrize("what", ["head", "index", "gone"])
def test_relay_log_that_does_not_open_is_removed_and_begun_anew(what):
    source, files = Source(), MemoryFiles()
    source.write(*range(1, 15))
    receive(relay_on(files), source)
    other = RelayLog(files, ManualClock(), "other", 2)
    other.expect(1)
    receive(other, source)
    disk = files.snapshot()
    if what == "gone":
        del disk["relay/main.000002"]
    elif what == "index":
        disk["relay/main.index"] = b"./main.000001\n./main.000007\n"
    else:
        disk["relay/main.000002"] = disk["relay/main.000002"][:50]
    files = MemoryFiles.from_snapshot(disk)
    with pytest.raises((BinlogDamaged, FileMissing)):
        relay_on(files)
    remove_relay_log(files, "main")
    relay = relay_on(files)
    assert relay.durable is None and relay.runs() == []
    receive(relay, source)
    assert epochs_of(files, relay) == list(range(1, 15))
    assert epochs_of(files, RelayLog(files, ManualClock(), "other", 2)) == list(range(1, 15))


def test_reset_leaves_an_empty_relay_log():
    source, files = Source(), MemoryFiles()
    source.write(*range(1, 15))
    relay = relay_on(files)
    receive(relay, source)
    relay.reset()
    assert (relay.durable, relay.epoch, relay.source_id, relay.generation) == (None, 0, 0, 1)
    assert [name for name in files.list("relay") if name != "main.index"] == []
    relay.expect(7)


def test_another_servers_binlog_is_not_mixed_in():
    source, files = Source(), MemoryFiles()
    source.write(1)
    relay = relay_on(files)
    receive(relay, source)
    with pytest.raises(Rejected, match="server 1"):
        relay.expect(7)


def test_files_go_when_what_they_hold_is_applied():
    source, files = Source(), MemoryFiles()
    source.write(*range(1, 15))
    relay = relay_on(files)
    receive(relay, source)
    runs = relay.runs()
    assert relay.purge(Position(runs[2].source.file, runs[2].source.position - 1)) in ([], [runs[0].name])
    relay.purge(runs[2].source)
    assert [run.name for run in relay.runs()] == [run.name for run in runs[2:]]
    assert relay.covers(runs[2].source) and not relay.covers(Position(runs[0].source.file, 4))
    assert epochs_of(files, relay, runs[2].source)[-1] == 14
    with pytest.raises(Rejected):
        RelayReader(files, relay, runs[0].source)


def test_reader_begins_wherever_a_transaction_ends():
    source, files = Source(), MemoryFiles()
    source.write(*range(1, 15))
    relay = relay_on(files)
    receive(relay, source)
    for epoch, end in source.epochs:
        assert epochs_of(files, relay, end) == list(range(epoch + 1, 15))


def test_file_that_is_purged_under_its_reader_is_followed_by_the_next():
    """Story: a reader was at the end of a file of which everything was applied. The file was purged, and the reader,
    which looked up the next file by its own, did not find its own any more and waited for ever.
    """
    source, files = Source(), MemoryFiles()
    source.write(*range(1, 15))
    relay = relay_on(files)
    receive(relay, source)
    reader, found = RelayReader(files, relay, None), []
    while (transaction := reader.next()) is not None:
        found.append(transaction.epoch)
        relay.purge(Position(*transaction.end))
    assert found == list(range(1, 15)) and len(relay.runs()) == 1


def test_reader_follows_what_comes_later():
    source, files = Source(), MemoryFiles()
    source.write(1)
    relay = relay_on(files)
    reader = RelayReader(files, relay, None)
    assert reader.next() is None
    receive(relay, source)
    found = [reader.next().epoch]
    assert reader.next() is None
    for epoch in range(2, 12):
        source.write(epoch)
        receive(relay, source, start=relay.durable)
        found.append(reader.next().epoch)
        assert reader.next() is None
    assert found == list(range(1, 12))


def test_epoch_larger_than_every_buffer_passes_in_pieces():
    source, files = Source(file_bytes=64 << 20), MemoryFiles()
    source.write(1, rows=3_000, size=2_000)
    relay = relay_on(files)
    receive(relay, source, 256 << 10)
    (transaction,) = read_all(files, relay)
    assert transaction.end.position - transaction.start.position > 5 << 20
    assert content_of(transaction)[1] == [row[0] for row in rows_of(1, 3_000)]
