"""The durable record of views and votes: both copies hold it after each write, damage is reported, others are
refused.
"""

from __future__ import annotations

import errno
import random

import pytest

from tidemark.engine.base.errors import ForeignFile, SyncFailed, ViewDamaged
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.node_group.view import Ballot, Member, Record, View, first_view
from tidemark.replication.node_group.view_file import NAMES, ViewFile, read_record
from tidemark.replication.node_group.view_layout import VIEW_BYTES

STORE = bytes(range(16))
VIEW = View(7, (Member(1, "a:1"), Member(3, "b" * 64)), 3, "arbitrator:9")
RECORD = Record(
    STORE, 3, VIEW, True, Ballot(5, 1), Ballot(4, 3), View(8, (Member(3, "b" * 64),), 3, "arbitrator:9"), 77, 0
)


def kept(record: Record = RECORD) -> MemoryFiles:
    files = MemoryFiles()
    file = ViewFile(files, STORE)
    assert file.record is None
    file.write(record)
    file.close()
    return files


@pytest.mark.parametrize("record", [RECORD, Record(STORE, 0, first_view()), Record(STORE, 4, VIEW, False, joins=8)])
def test_record_is_read_as_it_was_written(record):
    assert read_record(kept(record)) == record
    assert ViewFile(kept(record), STORE).record == record


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", ["flip", "missing", "zeros"])
def test_damage_of_one_copy_forgets_no_vote_and_is_repaired(name, damage):
    content = kept().snapshot()
    rng = random.Random(f"{name} {damage}")
    if damage == "flip":
        bad = bytearray(content[name])
        bad[rng.randrange(VIEW_BYTES)] ^= 1 << rng.randrange(8)
        content[name] = bytes(bad)
    elif damage == "zeros":
        content[name] = bytes(VIEW_BYTES)
    else:
        del content[name]
    files = MemoryFiles.from_snapshot(content)
    assert ViewFile(files, STORE).record == RECORD
    mended = files.snapshot()
    assert mended[NAMES[0]] == mended[NAMES[1]]


def test_damage_of_both_copies_is_reported_and_changes_nothing():
    content = {name: b"\xa5" + each[1:] for name, each in kept().snapshot().items()}
    files = MemoryFiles.from_snapshot(content)
    with pytest.raises(ViewDamaged, match="neither view.0 nor view.1"):
        ViewFile(files, STORE)
    assert files.snapshot() == content


def test_crash_before_the_first_write_leaves_no_record():
    files = MemoryFiles()
    ViewFile(files, STORE).close()
    assert read_record(files) is None


def test_record_of_another_store_is_refused():
    with pytest.raises(ForeignFile, match="another store"):
        ViewFile(kept(), bytes(16))
    content = kept().snapshot()
    other = MemoryFiles()
    ViewFile(other, bytes(16)).write(Record(bytes(16), 1, VIEW))
    content[NAMES[1]] = other.snapshot()[NAMES[1]]
    with pytest.raises(ForeignFile, match="different stores"):
        read_record(MemoryFiles.from_snapshot(content))


def test_power_loss_leaves_the_record_before_or_this_one_and_after_the_write_only_this():
    newer = Record(STORE, 3, VIEW, True, Ballot(6, 3))
    for seed in range(60):
        files = kept()
        rng = random.Random(seed)
        if seed % 2:
            ViewFile(files, STORE).write(newer)
            assert read_record(files.image(lambda piece, rng=rng: rng.random() < 0.5)) == newer, seed
            continue
        faulty = FaultFiles(files, [Rule("fdatasync", nth=rng.choice((3, 4)), error=errno.EIO)])  # opening has two
        broken = ViewFile(faulty, STORE)
        with pytest.raises(SyncFailed):
            broken.write(newer)
        assert read_record(files.image(lambda piece, rng=rng: rng.random() < 0.5)) in (RECORD, newer), seed
