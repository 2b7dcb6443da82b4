"""Power loss on the replica's side of a channel, at every write of a real store: nothing is lost or done twice.

The table has NDB$OLD, and every update names the value it started from. So anything applied twice or left out is a
conflict, and conflicts leave rows in the exceptions table.
"""

from __future__ import annotations

import random

import pytest

import tidemark as tm
from tests.replication.site import open_site
from tests.shares import share
from tidemark.recovery.crash_harness.crash_states import choices, crash_points, image_of
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.trace import TraceFiles
from tidemark.recovery.crash_harness.program import PowerOff, power_off
from tidemark.replication.channel.first_copy import is_interrupted

SEED = 8_140_233
SMALL = {"data_memory": "4 MiB", "redo_log": "1 MiB", "transaction_memory": "256 KiB", "transaction_limit": "256 KiB"}
CHANNEL = {"max_relay_log_size": "4 KiB"}
TABLE = [tm.Column("id", tm.Int32), tm.Column("stamp", tm.UInt32), tm.Column("text", tm.VarChar(300))]
EXCEPTIONS = [
    tm.Column("NDB$server_id", tm.UInt32),
    tm.Column("NDB$source_server_id", tm.UInt32),
    tm.Column("NDB$source_epoch", tm.UInt64),
    tm.Column("NDB$count", tm.UInt32),
    tm.Column("id", tm.Int32),
]


pytestmark = pytest.mark.usefixtures("quiet")


def replica(files, **options):
    return open_site(files, server_id=2, **{**SMALL, **options})


def make_source():
    """Return a store with a table; its rows will change epoch by epoch."""
    db = open_site(MemoryFiles(), server_id=1, **SMALL, max_binlog_size="6 KiB")
    db.create_replication_table()
    db["mysql.ndb_replication"].insert((b"d", b"t", 0, 7, b"NDB$OLD(stamp)"))
    db.create_table("d.t", TABLE, primary_key="id")
    return db


def change(db, rng, keys=6):
    """Commit an epoch of changes; every update raises the stamp by one."""
    with db.transaction() as txn:
        for key in rng.sample(range(keys), 3):
            row = txn.get("d.t", key, lock="exclusive")
            text = rng.choice("abc") * rng.randrange(200)
            if row is None:
                txn.insert("d.t", (key, 0, text))
            elif rng.random() < 0.2:
                txn.delete("d.t", key)
            else:
                txn.update("d.t", key, {"stamp": row.stamp + 1, "text": text})
    return db.parts.clockwork.advance_epoch()


def note(source, rng, states):
    """Commit an epoch of changes, and record the state after it."""
    epoch = change(source, rng)
    states[epoch] = rows(source)


def set_up(db):
    """Make the tables that a user of the replica makes before replication."""
    db.create_replication_table()
    db["mysql.ndb_replication"].insert((b"d", b"t", 0, 7, b"NDB$OLD(stamp)"))
    db.create_table("d.t$EX", EXCEPTIONS, primary_key=[each.name for each in EXCEPTIONS[:4]])
    db.sync()


def rows(db, name="d.t"):
    return {row.id: tuple(row) for row in db[name].scan()} if name in db else {}


def position(db):
    return max((row.epoch for row in db["mysql.ndb_apply_status"].scan()), default=0)


def judge(left, source, states, least):
    """Open what is left: the state is that of an applied epoch, `least` or later; then replicate to the end."""
    db = replica(left)
    reached = position(db)
    assert reached >= least, "what was applied and durable is gone"
    assert rows(db) == states[reached]
    with tm.Channel(source, db, **CHANNEL) as channel:
        channel.apply_all()
        assert channel.apply_all() == 0
    assert rows(db) == rows(source) and position(db) == max(states)
    assert not [*db["d.t$EX"].scan()], "something was applied twice, or left out"
    return db


@pytest.mark.parametrize("log_bin", [None, "binlog"], ids=["alone", "with its own binlog"])
def test_power_loss_at_every_write_of_the_replica_applies_every_epoch_once(log_bin):
    print("seed", SEED)
    rng = random.Random(SEED)
    source = make_source()
    states = {0: {}, source.parts.clockwork.advance_epoch(): {}}
    trace = TraceFiles(MemoryFiles())
    db = replica(trace, log_bin=log_bin, log_replica_updates=True)
    set_up(db)
    begin = len(trace.events)
    promised = [(begin, 0)]
    with tm.Channel(source, db, **CHANNEL) as channel:
        for turn in range(7):
            for _ in range(2):
                note(source, rng, states)
            while (step := channel.apply_next()) is not None:
                if step.epoch:
                    assert rows(db) == states.setdefault(step.epoch, {})
                    promised.append((len(trace.events), step.epoch))
            if turn == 3:
                db.checkpoint()
    assert len({name for event in trace.events if (name := event.name).startswith("relay/main.0")}) > 2
    calls = {id(event): number for number, event in enumerate(trace.events)}
    found = 0
    for disk, _, event in crash_points(trace.events):
        number = len(trace.events) if event is None else calls[id(event)]
        if number < begin or (event is not None and not event.name.startswith("relay") and rng.random() < 0.6):
            continue
        if rng.random() >= share(0.3):
            continue
        least = max(epoch for at, epoch in promised if at <= number)
        for choice in choices(disk.pieces(), rng, 2):
            judge(image_of(disk, choice, rng), source, states, least)
            found += 1
    print("states", found)
    assert found > 30
    source.close()


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_power_that_goes_again_and_again_while_it_catches_up_loses_and_doubles_nothing(seed):
    print("seed", seed)
    rng = random.Random(seed)
    source = make_source()
    states = {0: {}, source.parts.clockwork.advance_epoch(): {}}
    files = MemoryFiles()
    set_up(replica(files))
    left, least = files.crash(rng, "keep"), 0
    for _ in range(12):
        for _ in range(3):
            note(source, rng, states)
        off = FaultFiles(left, [Rule("*", nth=rng.randrange(40, 400), once=False, stall=power_off)])
        try:
            db = replica(off)
            assert position(db) >= least
            with tm.Channel(source, db, **CHANNEL) as channel:
                while (step := channel.apply_next()) is not None:
                    least = max(least, step.epoch)
                    assert not step.epoch or rows(db) == states.setdefault(step.epoch, {})
        except PowerOff:
            pass
        left = left.crash(rng, rng.choice(["drop", "sectors", "torn", "keep"]))
    judge(left, source, states, least).close()
    source.close()


def test_rig_sees_what_is_applied_twice():
    rng = random.Random(SEED)
    source, db = make_source(), replica(MemoryFiles())
    set_up(db)
    change(source, rng)
    with tm.Channel(source, db, **CHANNEL) as channel:
        channel.apply_all()
        assert not [*db["d.t$EX"].scan()]
        channel.reset()  # this also clears the positions
        channel.apply_all()
    assert [*db["d.t$EX"].scan()]
    source.close()
    db.close()


def test_power_loss_at_every_write_of_a_first_copy_leaves_nothing_half():
    print("seed", SEED)
    rng = random.Random(SEED)
    source = make_source()
    source.create_table("d.u", TABLE, primary_key="id")
    source["d.u"].insert_many([(each, each, "u" * each) for each in range(300)])
    source.create_index("d.u", "by_stamp", ["stamp"], unique=True)
    for _ in range(4):
        change(source, rng)
    trace = TraceFiles(MemoryFiles())
    db = replica(trace, log_bin=None)
    db.sync()
    begin = len(trace.events)
    tm.Channel(source, db, copy=True, **CHANNEL).close()
    calls = {id(event): number for number, event in enumerate(trace.events)}
    found, halves = 0, 0
    for disk, _, event in crash_points(trace.events):
        if event is not None and calls[id(event)] < begin:
            continue
        for choice in choices(disk.pieces(), rng, 3):
            again = replica(image_of(disk, choice, rng), log_bin=None)
            whole = rows(again) == rows(source) and rows(again, "d.u") == rows(source, "d.u")
            assert whole or not position(again), "its position is there, and the copy is not"
            assert not (is_interrupted(again.parts.store) and position(again)), "they change in one transaction"
            if is_interrupted(again.parts.store):
                halves += 1
                with pytest.raises(tm.Rejected, match="copy=True"):
                    tm.Channel(source, again)
            with tm.Channel(source, again, copy=True, **CHANNEL) as channel:
                channel.apply_all()
            assert not is_interrupted(again.parts.store)
            assert rows(again) == rows(source) and rows(again, "d.u") == rows(source, "d.u")
            assert all(again["d.u"].get(each, index="by_stamp").id == each for each in (0, 150, 299))
            found += 1
    print("states", found, halves)
    assert found > 20 and halves > 10
    source.close()
