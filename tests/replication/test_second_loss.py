"""What one process wrote and did not sync, the next process reads from the page cache. Relay log, index and mark are
synced before anything depends on them, so that a power loss in or after the second life loses nothing (F39).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from tests.replication.channel_rig import Source
from tests.replication.site import account_site, open_site, transactions_in
from tests.replication.test_relay_log import epochs_of, receive, relay_on
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import SyncFailed
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.program import PowerOff, power_off
from tidemark.replication.binlog.index import BinlogIndex
from tidemark.replication.binlog.writer import BinlogWriter
from tidemark.replication.channel.relay_log import FILE_BYTES, FOLDER, RelayLog, remove_relay_log

EPOCHS = [*range(1, 13)]


def nothing(piece: Any) -> bool:
    return False


def received_twice(faulty: Rule) -> list[int]:
    """A first process ends by a fault, a second one receives the rest, power is lost: return what the third one
    reads.
    """
    source, files = Source(file_bytes=1 << 20), MemoryFiles()
    source.write(*EPOCHS[:6])
    source.writer.rotate()  # this rotates the relay log too
    source.write(*EPOCHS[6:])
    with pytest.raises((PowerOff, SyncFailed)):
        receive(relay_on(FaultFiles(files, [faulty]), FILE_BYTES), source)
    killed = files.kill()
    second = relay_on(killed, FILE_BYTES)
    receive(second, source, start=second.durable)
    assert second.epoch == EPOCHS[-1]
    lost = killed.image(nothing)
    return epochs_of(lost, relay_on(lost, FILE_BYTES))


def test_relay_log_whose_sync_failed_is_written_again_before_more_is_received() -> None:
    """Story: opening it synced what the page cache showed, which the system does not write again. Later epochs were
    acknowledged after a hole, and were lost with it in the next power loss."""
    assert received_twice(Rule("fdatasync", f"{FOLDER}/main.0*", nth=3, error=errno.EIO)) == EPOCHS


def test_relay_log_opens_on_a_full_disk_and_what_is_in_it_can_be_applied() -> None:
    source, files = Source(file_bytes=1 << 20), MemoryFiles()
    source.write(*EPOCHS)
    receive(relay_on(files, FILE_BYTES), source)
    full = FaultFiles(files.kill(), [Rule("pwrite", f"{FOLDER}/*", once=False, error=errno.ENOSPC)])
    assert epochs_of(full, relay_on(full, FILE_BYTES)) == EPOCHS


@pytest.mark.parametrize("nth", range(1, 8))
def test_file_of_the_relay_log_whose_name_is_not_on_the_disk_yet_is_not_lost_with_what_follows(nth: int) -> None:
    """Story: a process was killed after it renamed the index and before it synced the folder. The next one appended to
    a file that only the page cache named; after a power loss the next opening removed the file as unknown.
    """
    assert received_twice(Rule("sync_directory", FOLDER, nth=nth, stall=power_off)) == EPOCHS


# --- removed files ------------------------------------------------------------------------------------
def relay_index(files: Any) -> BinlogIndex:
    return RelayLog(files, ManualClock(), "main", 2, 900).index


def binlog_index(files: Any) -> BinlogIndex:
    return BinlogWriter(files, ManualClock(), FOLDER, "main").index


def made(opened: Callable[[Any], BinlogIndex]) -> MemoryFiles:
    """Make four durable files."""
    files = MemoryFiles()
    if opened is relay_index:
        source = Source(file_bytes=1 << 20)
        source.write(*EPOCHS)
        receive(relay_on(files, 900), source)
    else:
        for _ in range(4):
            binlog_index(files)
    return files


def purged(index: BinlogIndex, files: Any) -> None:
    index.purge_to(index.names[2])


def begun_to_remove(index: BinlogIndex, files: Any) -> None:
    remove_relay_log(files, "main")


@pytest.mark.parametrize(
    ("opened", "step", "nth"),
    [(relay_index, purged, 2), (relay_index, begun_to_remove, 1), (binlog_index, purged, 2)],
    ids=["relay log, purge", "relay log, removal", "binlog, purge"],
)
def test_files_go_only_when_the_index_on_the_disk_does_not_name_them(
    opened: Callable[[Any], BinlogIndex], step: Callable[[BinlogIndex, Any], None], nth: int
) -> None:
    """Story: a purge was killed before the new index was durable. The next opening removed files that were unnamed only
    in the page cache. Power was lost, the old index named files that were gone, and the store refused to open."""
    files = made(opened)
    index = opened(files)
    index.files = faulty = FaultFiles(files, [Rule("sync_directory", FOLDER, nth=nth, stall=power_off)])
    with pytest.raises(PowerOff):
        step(index, faulty)
    for call in range(1, 100):
        disk = files.kill()
        try:
            opened(FaultFiles(disk, [Rule("sync_directory", FOLDER, nth=call, stall=power_off)]))
        except PowerOff:
            opened(disk.image(lambda piece: piece.kind == "unlink" and "index" not in piece.name))
        else:
            assert call > 2
            return


@pytest.mark.parametrize("nth", range(1, 5))
def test_first_index_of_a_binlog_is_written_again_before_it_has_its_name(nth: int) -> None:
    """Story: a kill left the first index under its temporary name, unsynced. The next opening renamed it, power was
    lost, and the index had its size but no bytes: BinlogDamaged.
    """
    files = MemoryFiles()
    faulty = FaultFiles(files, [Rule("fdatasync", "*index_new", stall=power_off)])
    with pytest.raises(PowerOff):
        BinlogWriter(faulty, ManualClock())
    disk = files.kill()
    with pytest.raises(PowerOff):
        BinlogWriter(FaultFiles(disk, [Rule("sync_directory", "binlog", nth=nth, stall=power_off)]), ManualClock())
    left = disk.image(lambda piece: piece.kind != "write")
    assert BinlogWriter(left, ManualClock()).index.names


# --- the mark -----------------------------------------------------------------------------------------
def test_mark_of_a_store_without_its_binlog_is_durable_before_it_commits() -> None:
    """Story: an opening without the binlog was killed after it wrote the mark and before it synced it. The next one saw
    the mark and committed. Power was lost, the mark too, and the binlog continued as if it lacked nothing."""
    files = MemoryFiles()
    db, table = account_site(files)
    table.insert((1, "a", 1.0, None))
    db.close()
    files = MemoryFiles(files.disk)
    with pytest.raises(PowerOff):
        open_site(FaultFiles(files, [Rule("sync_directory", "binlog", stall=power_off)]), log_bin=None)
    killed = files.kill()
    without = open_site(killed, log_bin=None)
    without["test.account"].insert((2, "b", 1.0, None))
    without.sync()
    db, _ = account_site(killed.image(nothing))
    assert 2 in {row.id for row in db["test.account"].scan()}
    reported = [each.incident for each in transactions_in(db.parts.files) if each.incident]
    assert len(reported) == 1 and "not logged" in reported[0]
    db.close()
