"""A store that is older than its binlog: cut with `through=`, or an old copy of its files next to a newer binlog."""

from __future__ import annotations

import random

import pytest

from tests.replication.site import epochs_in, index_rows, open_site, transactions_in
from tests.replication.stage import rows_of as stage_rows
from tests.replication.stage import write_epoch, writer_on
from tests.store.support import ACCOUNT
from tidemark.engine.base.errors import BinlogDamaged
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.program import PowerOff, power_off

WHOLE = {"log_updated_only": False, "log_update_as_write": False}
NAME = "test.account"


pytestmark = pytest.mark.usefixtures("quiet")


def older_store_newer_binlog(gcis=0, checkpoints=0, later=2, **options):
    """Return old files of a store next to its binlog from some epochs and GCIs later, and the last epoch in it."""
    db = open_site(**WHOLE, **options)
    db.create_table(NAME, ACCOUNT, "id").insert((1, "a", 1.0, None))
    db.sync()
    old = {name: content for name, content in db.parts.files.snapshot().items() if not name.startswith("binlog")}
    for _ in range(checkpoints):
        db.checkpoint()
    for number in range(later):
        for _ in range(gcis):
            db.parts.clockwork.advance_gci()
        db[NAME].insert((10 + number, "b", 2.0, None))
        db.sync()
    new = {name: content for name, content in db.parts.files.snapshot().items() if name.startswith("binlog")}
    last = epochs_in(db.parts.files)[-1].epoch
    return MemoryFiles.from_snapshot({**old, **new}), last


def judged(db, last, incidents=1, has_index=True):
    """After the old binlog: an incident, an epoch that marks where it is whole again, and new epoch numbers."""
    said = transactions_in(db.parts.files)
    epochs = [each.epoch for each in said if each.epoch]
    assert epochs == sorted(set(epochs))
    assert sum(each.incident is not None for each in said) == incidents
    place = max(number for number, each in enumerate(said) if each.incident)
    assert max((each.epoch for each in said[:place] if each.epoch), default=0) >= last
    assert said[place + 1].epoch > last and said[place + 1].rows == []
    after = [row.after["id"] for each in said[place + 1 :] for row in each.rows]
    assert after == sorted(row.id for row in db[NAME].scan() if row.id >= 100)
    assert not db.parts.files.exists("binlog/stopped")
    if has_index:
        assert {row["epoch"] for row in index_rows(db)} == set(epochs)


def opened(files, **options):
    return open_site(files, **WHOLE, **options)


@pytest.mark.parametrize("log_binlog_index", [True, False])
@pytest.mark.parametrize(("gcis", "checkpoints"), [(0, 0), (0, 2), (1, 0), (5, 1)])
def test_old_copy_with_a_newer_binlog_begins_anew_after_an_incident(gcis, checkpoints, log_binlog_index):
    """Story: epochs of such a store had numbers that its binlog had already, so they were skipped, lost to all
    replicas.
    """
    options = {"log_binlog_index": log_binlog_index}
    files, last = older_store_newer_binlog(gcis, checkpoints, **options)
    db = opened(files, **options)
    assert [row.id for row in db[NAME].scan()] == [1]
    assert db.parts.store.epochs.current > last
    for number in (100, 101):
        db[NAME].insert((number, "c", 3.0, None))
        db.sync()
    judged(db, last, has_index=log_binlog_index)
    db = opened(db.parts.files.kill(), **options)
    db[NAME].insert((102, "c", 3.0, None))
    db.sync()
    judged(db, last, has_index=log_binlog_index)
    db.close()


def test_copy_with_its_own_binlog_is_no_older_than_it():
    db = open_site(**WHOLE)
    db.create_table(NAME, ACCOUNT, "id").insert((1, "a", 1.0, None))
    db.sync()
    copy = MemoryFiles.from_snapshot(db.parts.files.snapshot())
    for _ in range(3):
        db = open_site(copy, **WHOLE)
        assert [each.incident for each in transactions_in(copy) if each.incident] == []
        copy = copy.kill()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("gcis", [0, 3])
def test_power_lost_while_such_a_store_is_opened_leaves_another_incident_at_most(gcis, seed):
    print("seed", seed)
    rng = random.Random(seed * 10 + gcis)
    left, last = older_store_newer_binlog(gcis)
    broken = 0
    for _ in range(4):
        off = FaultFiles(left, [Rule("*", nth=rng.randrange(1, 120), once=False, stall=power_off)])
        try:
            open_site(off, **WHOLE)
        except PowerOff:
            broken += 1
        left = left.crash(rng, rng.choice(["drop", "sectors", "torn", "keep"]))
    assert broken
    db = opened(left)
    db[NAME].insert((100, "c", 3.0, None))
    db.sync()
    incidents = sum(each.incident is not None for each in transactions_in(db.parts.files))
    assert 1 <= incidents <= 5
    judged(db, last, incidents)
    db.close()


@pytest.mark.parametrize("seed", range(6))
def test_power_lost_while_a_store_is_cut_back_never_continues_without_an_incident(seed):
    print("seed", seed)
    rng = random.Random(seed)
    db = open_site(**WHOLE)
    table = db.create_table(NAME, ACCOUNT, "id")
    table.insert((1, "a", 1.0, None))
    kept = db.sync()
    table.insert((10, "b", 1.0, None))
    last = db.sync()
    left = db.parts.files.kill()
    off = FaultFiles(left, [Rule("*", nth=rng.randrange(1, 90), once=False, stall=power_off)])
    try:
        open_site(off, through=kept, **WHOLE)
    except PowerOff:
        pass
    left = left.crash(rng, rng.choice(["drop", "sectors", "torn", "keep"]))
    db = opened(left)
    went_back = 10 not in db[NAME]
    db[NAME].insert((100, "c", 3.0, None))
    db.sync()
    incidents = sum(each.incident is not None for each in transactions_in(db.parts.files))
    assert incidents >= went_back
    if incidents:
        judged(db, last, incidents)
    else:
        assert [row.after["id"] for each in epochs_in(db.parts.files) for row in each.rows] == [1, 10, 100]
    db.close()


@pytest.mark.parametrize("epoch", [(1 << 63) - 5, (1 << 64) - 1])
def test_binlog_with_an_epoch_that_cannot_be_is_refused_and_the_store_stays(epoch):
    """F112: intact events with impossible content. The store would have taken the highest possible GCI, for good."""
    files = MemoryFiles()
    db = open_site(files, **WHOLE)
    db.create_table(NAME, ACCOUNT, "id").insert((1, "a", 1.0, None))
    db.close()
    left = files.kill()
    writer = writer_on(left)
    write_epoch(writer, epoch, stage_rows(3))
    writer.close()
    with pytest.raises(BinlogDamaged, match="000002"):
        open_site(left.kill(), **WHOLE)
    db = open_site(left.kill(), log_bin=None)
    assert [row.id for row in db[NAME].scan()] == [1]
