"""Every disk fault, under the files of a binlog."""

from __future__ import annotations

import errno
import logging
import random

import pytest

from tests.replication.stage import TABLE, batch_of, epochs_in, rows_of, status_of, write_epoch, writer_on
from tests.shares import few
from tidemark.engine.base.errors import Error, IoFailed, StorageFull, SyncFailed
from tidemark.recovery.crash_harness.crash_states import CHANGES, choices, crash_points, image_of
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.trace import Replay, TraceFiles
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.reader import BinlogReader

SEED = 5_310_877


def history(files, acknowledge, sync_binlog=2):
    """Write epochs of growing size with rotations, a rollback and a purge in between."""
    writer = writer_on(files, file_bytes=4_000, sync_binlog=sync_binlog)
    for epoch in range(1, 9):
        if epoch == 4:
            writer.begin([TABLE], status_of(99))
            writer.append(batch_of(TABLE, e.WRITE, new=rows_of(99, 3, 1_000)))
            writer.roll_back()
        write_epoch(writer, epoch, rows_of(epoch, 3, 100 * epoch))
        acknowledge(epoch, writer)
        if epoch == 7:
            assert len(writer.index.names) > 2
            writer.index.purge_to(writer.index.names[-2])
            acknowledge(epoch, writer)
    return writer


@pytest.mark.parametrize("sync_binlog", [0, 1, 3])
def test_every_power_loss_leaves_whole_transactions_through_the_last_synced_one(sync_binlog):
    print("seed", SEED)
    rng = random.Random(SEED)
    trace = TraceFiles(MemoryFiles())
    promised = [(0, 0)]

    def acknowledge(epoch, writer):
        promised.append((len(trace.events), epoch if writer.synced == writer.end else promised[-1][1]))

    history(trace, acknowledge, sync_binlog)
    calls = {id(event): number for number, event in enumerate(trace.events)}
    states = 0
    for disk, _, event in crash_points(trace.events):
        number = len(trace.events) if event is None else calls[id(event)]
        durable = max(epoch for calls_made, epoch in promised if calls_made <= number)
        for choice in choices(disk.pieces(), rng, few(10, 40)):
            left = image_of(disk, choice, rng)
            writer = writer_on(left)
            found = [epoch for epoch, _ in epochs_in(left)]
            assert found == list(range(found[0], found[-1] + 1)) if found else durable == 0
            assert not found or found[-1] >= durable
            write_epoch(writer, 100, rows_of(100))
            assert [epoch for epoch, _ in epochs_in(left)] == [*found, 100]
            states += 1
    assert states > 150


def test_power_loss_in_a_recovery_is_recovered_from():
    rng = random.Random(SEED)
    files = MemoryFiles()
    history(files, lambda *_: None)
    torn = files.snapshot()
    last = max(name for name in torn if name[-1].isdigit())
    torn[last] = torn[last][:-7]
    trace = TraceFiles(MemoryFiles.from_snapshot(torn))
    writer_on(trace)
    wanted = [epoch for epoch, _ in epochs_in(trace)]
    for disk in disks_of(trace, torn):
        for choice in choices(disk.pieces(), rng, 12):
            left = image_of(disk, choice, rng)
            writer_on(left)
            assert [epoch for epoch, _ in epochs_in(left)] == wanted


def disks_of(trace, start):
    """Yield the disk before every change of a trace, and at its end."""
    replay = Replay(MemoryFiles.from_snapshot(start))
    for event in trace.events:
        if event.operation in CHANGES and not event.error:
            yield replay.files
        replay.step(event)
    yield replay.files


@pytest.mark.parametrize("nth", range(1, 60, 2))
def test_short_writes_change_nothing(nth):
    plain, short = MemoryFiles(), MemoryFiles()
    history(plain, lambda *_: None)
    history(FaultFiles(short, [Rule("pwrite", nth=nth, once=False, short=100)]), lambda *_: None)
    assert plain.snapshot() == short.snapshot()


@pytest.mark.parametrize("nth", range(1, 40))
def test_full_disk_costs_a_transaction_at_most(nth, caplog):
    caplog.set_level(logging.CRITICAL)
    disk = MemoryFiles()
    files = FaultFiles(disk, [Rule("space", "binlog/*", nth=nth, error=errno.ENOSPC)])
    try:
        writer = writer_on(files, file_bytes=3_000)
    except StorageFull:
        writer = writer_on(files, file_bytes=3_000)
    done = []
    for epoch in range(1, 9):
        try:
            write_epoch(writer, epoch, rows_of(epoch, 3, 100 * epoch))
            done.append(epoch)
        except StorageFull:
            writer.roll_back()
    assert len(done) >= 7
    assert [epoch for epoch, _ in epochs_in(disk)] == done
    assert [epoch for epoch, _ in epochs_in(writer_on(disk.kill()).files)] == done


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync", "sync_directory", "rename", "truncate"])
@pytest.mark.parametrize("nth", [1, 2, 4, 7, 11])
def test_failed_disk_kills_the_writer_and_the_next_opening_has_what_was_synced(operation, nth):
    disk = MemoryFiles()
    files = FaultFiles(disk, [Rule(operation, nth=nth, error=errno.EIO)])
    synced = [0]
    try:
        history(files, lambda epoch, writer: synced.append(epoch if writer.synced == writer.end else synced[-1]))
    except (IoFailed, SyncFailed):
        with pytest.raises(Error):
            writer_on(files)
        left = disk.crash(random.Random(nth), "sectors")
        writer_on(left)
        found = [epoch for epoch, _ in epochs_in(left)]
        assert (found[-1] if found else 0) >= synced[-1]
    else:
        assert not files.fired


def test_incident_on_a_full_disk_leaves_the_count_of_transactions():
    disk = MemoryFiles()
    writer = writer_on(disk)
    write_epoch(writer, 1, rows_of(1))
    writer.files = FaultFiles(disk, [Rule("pwrite", error=errno.ENOSPC)])
    with pytest.raises(StorageFull):
        writer.incident("lost")
    writer.files = disk
    write_epoch(writer, 2, rows_of(2))
    reads = BinlogReader(disk).events(writer.end)
    assert [read.event.sequence_number for read in reads if isinstance(read.event, e.Gtid)] == [1, 2]
