"""Groups written by one sync: a crash may leave any of them, and only those before the first gap count (ADR 0016)."""

from __future__ import annotations

import itertools
import random

import pytest

import tidemark as tm
from tests.log.support import Log, read, reader, records
from tests.recovery.support import flipped
from tests.seeds import fresh_seeds
from tidemark.engine.log.group import Position
from tidemark.engine.log.redo import BATCH_BYTES
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

COUNT = 5


def queue(log: Log, *values: int, words: int = 0) -> int:
    """Groups of one record each, queued and not written."""
    for value in values:
        log.put(value, words=words)
        with log.latch:
            last = log.redo.divide()
    return last


def states(log: Log, first_lsn: int) -> list[tuple[set[int], MemoryFiles]]:
    """What a loss of power may leave of the last `COUNT` groups, each whole or not there: (which there are, disk)."""
    whole = log.after_power_loss().snapshot()
    found = []
    for kept in itertools.product((False, True), repeat=COUNT):
        contents = {name: bytearray(content) for name, content in whole.items()}
        for number, is_kept in enumerate(kept):
            name, offset = log.place(first_lsn + number * 4_096)
            if not is_kept:
                contents[name][offset : offset + 4_096] = bytes(4_096)
        there = {number for number, is_kept in enumerate(kept) if is_kept}
        found.append((there, MemoryFiles.from_snapshot({name: bytes(each) for name, each in contents.items()})))
    return found


def test_queued_groups_are_written_by_one_sync_up_to_a_size() -> None:
    syncs: list[None] = []
    log = Log(
        lambda files: FaultFiles(files, [Rule("fdatasync", "redo/*", once=False, stall=lambda: syncs.append(None))])
    )
    log.redo.wait(queue(log, *range(1, 12)))
    assert len(syncs) == 1
    assert [group.unsynced for group in read(log.after_power_loss(), log.geometry)] == list(range(11))
    syncs.clear()
    log.redo.wait(queue(log, *range(12, 16), words=BATCH_BYTES // 8 // 3))
    assert [group.unsynced for group in read(log.after_power_loss(), log.geometry)][11:] == [0, 1, 0, 1]
    assert len(syncs) >= 2


def test_whatever_a_crash_leaves_of_a_batch_its_beginning_is_read_and_the_rest_never_comes_back() -> None:
    log = Log(file_bytes=1 << 15)
    log.write(1)
    first_lsn = log.redo.head_lsn
    log.redo.wait(queue(log, *range(2, 2 + COUNT)))
    for there, files in states(log, first_lsn):
        kept = next(number for number in range(COUNT + 1) if number not in there)
        found = reader(files, log.geometry, is_writing=True)
        assert [records(group) for group in found.groups(0, 1)] == [[value] for value in range(1, 2 + kept)], there
        found.seal_tail()
        # Write one group fewer than were lost: a group that stood after them would now be taken for their continuation.
        position = Position(found.next_sequence, found.end_lsn)
        Log(file_bytes=1 << 15, memory=files, position=position).write(77)
        after = [[value] for value in range(1, 2 + kept)] + [[77]]
        assert [records(group) for group in read(files, log.geometry)] == after, there


@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_damage_of_a_batch_before_another_one_is_reported(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    log = Log(file_bytes=1 << 15)
    log.write(1)
    first_lsn = log.redo.head_lsn
    log.redo.wait(queue(log, *range(2, 2 + COUNT)))
    log.redo.wait(queue(log, 100, 101))
    whole = log.after_power_loss().snapshot()
    for number in range(COUNT):
        name, offset = log.place(first_lsn + number * 4_096)
        content = flipped(whole[name], offset + rng.randrange(4_096), rng.randrange(8))
        with pytest.raises(tm.RedoDamaged, match=f"group {COUNT + 2} after it|group {number + 3} after it") as caught:
            read(MemoryFiles.from_snapshot({**whole, name: content}), log.geometry)
        assert caught.value.offset == offset
