"""Power loss at every write of a store with a binlog: after the next opening the binlog matches the store's history."""

from __future__ import annotations

import errno
import random

import pytest

import tidemark as tm
from tests.replication.history import History
from tests.replication.mysql_dump_rig import messages_of
from tests.replication.site import epochs_in, index_rows, numbers_in, open_site, replayed, starts_in, transactions_in
from tests.shares import share
from tidemark.engine.base.errors import StoreFailed
from tidemark.recovery.crash_harness.crash_states import choices, crash_points, image_of
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.trace import TraceFiles
from tidemark.recovery.crash_harness.program import PowerOff, power_off

SEED = 6_021_948
SMALL = {
    "data_memory": "4 MiB",
    "redo_log": "1 MiB",
    "transaction_memory": "256 KiB",
    "transaction_limit": "256 KiB",
    "log_updated_only": False,
    "log_update_as_write": False,
    "max_binlog_size": "6 KiB",
    "log_gtids": True,
}


pytestmark = pytest.mark.usefixtures("quiet")


def play(files, seed, acknowledge=lambda tables: None, sync_binlog=1):
    """Run a short history with epochs, local checkpoints, a schema change and a second opening."""
    db = open_site(files, **SMALL, sync_binlog=sync_binlog)
    history = History(db, random.Random(seed))
    acknowledge(history.tables)
    for turn in range(3):
        for _ in range(3):
            history.commit()
            acknowledge(history.tables)
            if history.rng.random() < 0.6:
                db.sync()
        if turn == 1:
            db.create_index("d.memory", "by_number", "number")
        if turn:
            db.checkpoint()
    db.close()


def judged(left):
    """Open what is left and compare the binlog with the store; return the rows and the epochs."""
    db = open_site(left, **SMALL)
    shown = {}
    if "d.memory" in db:
        shown = {row.id: row._asdict() for row in db["d.memory"].scan()}
    found = replayed(db.parts.files).get("d.memory", {})
    assert found == shown
    numbers = numbers_in(db.parts.files)
    assert len({server for server, _ in numbers}) < 2, "a crash ends no history"
    assert len(numbers) == len(starts_in(db.parts.files))
    said = transactions_in(db.parts.files)
    assert not [each.incident for each in said if each.incident], "a crash leaves nothing to be told of"
    epochs = [each.epoch for each in said if each.epoch]
    assert epochs == sorted(set(epochs))
    assert [row["epoch"] for row in index_rows(db)] == epochs
    statements = [each.statement for each in said if each.statement]
    assert len(statements) == len(set(statements)), "a statement stands there twice"
    assert "d.memory" not in db or any("CREATE TABLE" in each for each in statements)
    assert messages_of(db), "peers of MySQL are served all files of whole rows"
    return shown, epochs, db


def numbers_of_epochs(files):
    """Return the place of each epoch among the transactions of a binlog: what its number follows from."""
    said = (each for each in transactions_in(files) if each.incident is None)
    return {each.epoch: place for place, each in enumerate(said, 1) if each.epoch}


@pytest.mark.parametrize("sync_binlog", [1, 0])
def test_power_loss_at_every_write_leaves_a_binlog_that_is_what_the_store_did(sync_binlog):
    print("seed", SEED)
    rng = random.Random(SEED)
    memory = MemoryFiles()
    trace = TraceFiles(memory)
    promised = [(0, {})]
    play(trace, SEED, lambda tables: promised.append((len(trace.events), dict(tables["d.memory"]))), sync_binlog)
    numbers = numbers_of_epochs(memory.kill())
    calls = {id(event): number for number, event in enumerate(trace.events)}
    known = [rows for _, rows in promised]
    states, seen = 0, set()
    for number, (disk, _, event) in enumerate(crash_points(trace.events)):
        if event is not None and not event.name.startswith("binlog") and number % 2:
            continue  # tests of the store enumerate its own writes
        if rng.random() >= share(0.35):
            continue
        place = len(trace.events) if event is None else calls[id(event)]
        durable = sum(at <= place for at, _ in promised) - 1
        for choice in choices(disk.pieces(), rng, 6):
            left = image_of(disk, choice, rng)
            if left.digest() in seen:
                continue
            seen.add(left.digest())
            shown, epochs, db = judged(left)
            again = numbers_of_epochs(db.parts.files)
            assert all(numbers.get(epoch, number) == number for epoch, number in again.items())
            assert shown in known[durable:], f"before {event}: what was acknowledged is gone"
            states += 1
            if states % 7 == 0:
                # What this opening wrote stays, and the next opening adds nothing.
                after = judged(db.parts.files.crash(rng, "drop"))
                assert (after[0], after[1]) == (shown, epochs)
    print("states", states)
    assert states > 50


@pytest.mark.parametrize("seed", range(SEED, SEED + 6))
def test_interrupted_openings_lose_and_double_nothing(seed):
    """The power fails while a store with missing epochs in its binlog is opened, again and again."""
    rng = random.Random(seed)
    files = MemoryFiles()
    db = open_site(files, **SMALL)
    history = History(db, random.Random(seed))
    history.run(6)
    for _ in range(4):
        history.commit()
        db.parts.clockwork.binlog = None  # the log continues, the binlog does not
        db.sync()
        db.parts.clockwork.binlog = db.binlog
    left = db.parts.files.crash(rng, "drop")
    for _ in range(3):
        off = FaultFiles(left, [Rule("*", nth=rng.randrange(1, 200), once=False, stall=power_off)])
        try:
            open_site(off, **SMALL)
        except PowerOff:
            pass
        left = left.crash(rng, rng.choice(["drop", "sectors", "torn", "keep"]))
    shown, _, db = judged(left)
    assert shown == history.tables["d.memory"]
    db.close()


def test_epoch_whose_sync_failed_survives_a_kill_and_a_power_loss():
    """Story: a sync of the binlog failed, which fails the store. The next process saw the epoch, took it for written
    and synced again; that writes nothing, because the system holds the pages for clean. A power loss then removed the
    epoch from the middle of the binlog, for good, and replicas never received it (simulation, seed 11007).
    """
    disk = MemoryFiles()
    files = FaultFiles(disk)
    db = open_site(files, **SMALL)
    db.create_table("d.t", [tm.Column("id", tm.Int64)], "id")
    db.sync()
    db["d.t"].insert((1,))
    files.faults.add(Rule("fdatasync", "binlog/*", error=errno.EIO))
    with pytest.raises(StoreFailed):
        db.sync()
    after_kill = disk.kill()
    db = open_site(after_kill, **SMALL)
    db["d.t"].insert((2,))
    db.sync()
    after_loss = after_kill.crash(random.Random(SEED), "drop")
    db = open_site(after_loss, **SMALL)
    assert sorted(row.id for row in db["d.t"].scan()) == sorted(replayed(after_loss)["d.t"]) == [1, 2]
    assert [row["epoch"] for row in index_rows(db)] == [each.epoch for each in epochs_in(after_loss)]
    db.close()
