"""Groups that only the system's cache holds after a failed sync or a kill are all synced before any group follows
(F39).
"""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.log.support import Log, read, reader, records
from tests.log.test_batches import queue
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.base.errors import CommitOnFailedStore, StoreFailed
from tidemark.engine.log.group import Position
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.program import PowerOff, power_off

COUNT = 5


def second_session(killed: MemoryFiles, log: Log) -> list[list[int]]:
    """A process opens the log, one more group is acknowledged, power is lost; what the third one reads."""
    found = reader(killed, log.geometry, is_writing=True)
    shown = [records(group) for group in found.groups(0, 1)]
    found.seal_tail()
    position = Position(found.next_sequence, found.end_lsn)
    Log(file_bytes=log.geometry.file_bytes, memory=killed, position=position).write(77)
    after = read(killed.image(lambda piece: False), log.geometry)
    assert [records(group) for group in after] == [*shown, [77]]
    return shown


def test_batch_whose_sync_failed_is_firmed_up_whole() -> None:
    """Story: a restart rewrote only the last group. The groups of its batch before it were in the cache, and not on the
    disk: the next power loss took them from under a commit that had been acknowledged after them.
    """
    log = Log(lambda files: FaultFiles(files, [Rule("fdatasync", "redo/*", nth=2, error=errno.EIO)]), 1 << 15)
    log.write(1)
    with pytest.raises(CommitOnFailedStore):
        log.redo.wait(queue(log, *range(2, 2 + COUNT)))
    assert len(second_session(log.memory.kill(), log)) == 1 + COUNT


@pytest.mark.parametrize("before", [2, 3, 4])
def test_batch_in_two_files_killed_before_its_sync_is_firmed_up_whole(before: int) -> None:
    """Story: as above, with a process that was killed. A sync of the last group's file did not write the part of the
    batch in the file before.
    """
    syncs = [0]

    def at_sync() -> None:
        syncs[0] += 1
        if syncs[0] > before:
            power_off()

    faulty = [Rule("fdatasync", "redo/*", once=False, stall=at_sync)]
    log = Log(lambda files: FaultFiles(files, faulty), file_bytes=(before + 2) * 4_096)
    for value in range(1, 1 + before):
        log.write(value)
    with pytest.raises(PowerOff):
        log.redo.wait(queue(log, *range(10, 10 + COUNT)))
    killed = log.memory.kill()
    assert {piece.name for piece in killed.pieces()} == {"redo/0000.redo", "redo/0001.redo"}
    assert len(second_session(killed, log)) == before + COUNT


@pytest.mark.parametrize("is_killed", [False, True], ids=["failed sync", "killed"])
def test_commits_acknowledged_after_a_torn_batch_can_be_reached(is_killed: bool) -> None:
    """Story: the third opening of such a store ended in RedoDamaged, with acknowledged commits after the damage."""
    memory = MemoryFiles()
    fault: dict[str, Any] = {"stall": power_off} if is_killed else {"error": errno.EIO}
    faulty = FaultFiles(memory, [Rule("fdatasync", "redo/*", nth=6, **fault)])
    db = open_memory(faulty, durability="epoch")
    db.create_table("test.account", ACCOUNT, primary_key="id")
    db.sync()
    for key in range(COUNT):
        db["test.account"].insert((key, "a", 1.0, "n" * 3_000))
        with db.parts.store.latch:
            db.parts.store.log.divide()
    with pytest.raises((PowerOff, StoreFailed)):
        db.sync()
    again = open_memory(memory.kill())
    shown = sorted(rows_of(again))
    assert shown == list(range(COUNT))
    again["test.account"].insert((100, "b", 1.0, None))
    for place in range(3):
        disk = again.parts.files.disk  # type: ignore[attr-defined]
        lost = MemoryFiles(disk).image(lambda piece, place=place: piece.sector % 3 < place)
        third = open_memory(lost)
        assert sorted(rows_of(third)) == [*shown, 100]
        third.close()


def lost_at_each_sync(killed: MemoryFiles, through: int | None = None) -> int:
    """Power is lost at each sync of an opening that follows a kill; every store opens again with the first row."""
    for nth in range(1, 100):
        disk = killed.kill()
        try:
            open_memory(FaultFiles(disk, [Rule("fdatasync", nth=nth, stall=power_off)]), through).close()
        except PowerOff:
            for keeps in (
                lambda piece: False,
                lambda piece: piece.sector % 2 == 0,
                lambda piece: piece.sector % 2 == 1,
            ):
                third = open_memory(disk.image(keeps), through)
                assert 1 in rows_of(third), nth
                third.close()
        else:
            return nth - 1
    raise AssertionError("the opening has no end")


@pytest.mark.parametrize("is_cut", [False, True])
def test_power_lost_in_an_opening_leaves_no_floor_that_the_log_does_not_reach(is_cut: bool) -> None:
    """Story: a restart through an epoch wrote the end of the cut log into the sysfile as its floor, and only then
    synced the last group. Power lost between the two left a store that refused to open.
    """
    memory = MemoryFiles()
    files = FaultFiles(memory, [Rule("fdatasync", "redo/*", nth=7, stall=power_off)])
    db = open_memory(files)
    db.create_table("test.account", ACCOUNT, primary_key="id")
    db["test.account"].insert((1, "a", 1.0, None))
    db.sync()
    with pytest.raises(PowerOff):
        for key in range(2, 20):
            db["test.account"].insert((key, "a", 1.0, None))
    through = db.parts.store.epochs.current if is_cut else None
    assert lost_at_each_sync(memory.kill(), through) >= 3
