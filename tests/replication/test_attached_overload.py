"""A binlog that cannot keep up: the log fills, transactions wait and are refused, nothing is lost, writes continue."""

from __future__ import annotations

import errno
import random
import threading

import pytest

import tidemark as tm
from tests.replication.site import epochs_in, index_rows, open_site, replayed
from tests.store.support import ACCOUNT
from tidemark.engine.base.errors import BinlogOverloaded, RedoOverloaded, Retryable, StorageFull
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

TIGHT = {
    "redo_log": "1 MiB",
    "transaction_memory": "128 KiB",
    "log_updated_only": False,
    "log_update_as_write": False,
}
NAME = "test.account"


pytestmark = pytest.mark.usefixtures("quiet")


def rows_of(db):
    return {row.id: row._asdict() for row in db[NAME].scan()}


def full_disk_under_the_binlog(**options):
    """Return (disk, plan, store): while the plan is not over, the store's binlog folder has no space."""
    disk = MemoryFiles()
    plan = Plan([Rule("pwrite", "binlog/binlog.0*", once=False, error=errno.ENOSPC)])
    plan.is_over = True
    db = open_site(FaultFiles(disk, plan), **{**TIGHT, **options})
    db.create_table(NAME, ACCOUNT, "id")
    db.sync()
    plan.is_over = False
    return disk, plan, db


def fill(db):
    """Commit until the log is full; return the error of the refusal."""
    number = len(db[NAME])
    while True:
        try:
            db[NAME].insert((number, "a", 1.0, "x" * 500))
            db[NAME].update(number, {"balance": 2.0})
        except Retryable as error:
            return error
        number += 1


def test_commits_continue_without_room_for_the_binlog_until_the_log_is_full_and_nothing_is_lost():
    """Story: the error named a full log, which blames local checkpoints, and users only made the log larger."""
    disk, plan, db = full_disk_under_the_binlog()
    assert isinstance(fill(db), RedoOverloaded), (
        "no local checkpoint was tried: it is not the binlog that is waited for"
    )
    with pytest.raises(StorageFull):
        db.checkpoint()
    before = rows_of(db)
    assert len(before) > 100 and db.status()["binlog"]["holds_log"]
    for call in (
        lambda: db[NAME].insert((-1, "a", 1.0, "y" * 60_000)),
        lambda: db[NAME].update(0, {"note": "y" * 60_000}),
        lambda: db[NAME].insert_many([(-number, "a", 1.0, "y" * 2_000) for number in range(1, 50)]),
        lambda: [db.create_table(f"test.t{number}", ACCOUNT, "id") for number in range(100)],
    ):
        with pytest.raises(BinlogOverloaded, match="not in the binlog yet"):
            call()
    with pytest.raises(StorageFull):
        db.checkpoint()
    assert replayed(disk) == {}
    handled = db.status()["binlog"]["latest_handled_binlog_epoch"]
    plan.is_over = True
    db.checkpoint()
    assert not db.status()["binlog"]["holds_log"]
    db.checkpoint()  # the log is cut up to the older one of two
    after = rows_of(db)
    assert after.items() >= before.items()
    assert replayed(disk)[NAME] == after
    db[NAME].insert((-5, "a", 1.0, None))
    db.sync()
    epochs = [each.epoch for each in epochs_in(disk)]
    assert epochs == sorted(set(epochs)) and [each for each in epochs if each > handled]
    assert replayed(disk)[NAME] == rows_of(db)
    assert [row["epoch"] for row in index_rows(db)] == epochs
    db.close()


def test_store_whose_log_is_full_of_what_the_binlog_lacks_opens_when_there_is_room_and_loses_nothing():
    disk, _, db = full_disk_under_the_binlog()
    fill(db)
    with pytest.raises(StorageFull):
        db.sync()
    before = rows_of(db)
    db = open_site(disk.kill(), **TIGHT)
    assert rows_of(db) == before and replayed(db.parts.files)[NAME] == before
    db.checkpoint()
    db.checkpoint()
    db[NAME].insert((-5, "a", 1.0, None))
    db.sync()
    assert replayed(db.parts.files)[NAME] == rows_of(db)
    assert [row["epoch"] for row in index_rows(db)] == [each.epoch for each in epochs_in(db.parts.files)]
    db.close()


def test_disk_that_is_full_for_store_and_binlog_alike_refuses_and_continues_with_room():
    disk = MemoryFiles()
    plan = Plan([Rule("pwrite", each, once=False, error=errno.ENOSPC) for each in ("binlog*", "lcp*", "spool*")])
    plan.is_over = True
    db = open_site(FaultFiles(disk, plan), **{**TIGHT, "max_binlog_size": "64 KiB"})
    db.create_table(NAME, ACCOUNT, "id")
    db.checkpoint()
    plan.is_over = False
    refused = [fill(db)]
    for call in (db.sync, db.checkpoint, db.binlog.rotate):
        with pytest.raises(StorageFull) as caught:
            call()
        refused.append(caught.value)
    assert all(error.retryable for error in refused)
    before = rows_of(db)
    plan.is_over = True
    db.sync()
    db.checkpoint()
    assert replayed(disk)[NAME] == rows_of(db) == before
    db.close()
    again = open_site(disk.kill(), **TIGHT)
    assert rows_of(again) == before and replayed(again.parts.files)[NAME] == before
    again.close()


def test_rows_of_the_index_wait_for_room_in_the_log_without_holding_up_epochs(monkeypatch):
    """Story: they waited for a local checkpoint while they held the turn it needs for its epoch: both timed out."""
    db = open_site(**TIGHT)
    db.create_table(NAME, ACCOUNT, "id").insert((1, "a", 1.0, None))
    index, free = db.binlog.rows.index, []
    write = index.write

    def waits(rows):
        def reach():
            free.append(db.binlog.turn.acquire(timeout=0))
            if free[-1]:
                db.binlog.turn.release()

        checkpoint = threading.Thread(target=reach)
        checkpoint.start()
        checkpoint.join()
        raise RedoOverloaded("the log is full")

    monkeypatch.setattr(index, "write", waits)
    db.sync()
    db[NAME].insert((2, "a", 1.0, None))
    db.sync()
    assert free == [True, True]
    monkeypatch.setattr(index, "write", write)
    db.sync()
    assert [row["inserts"] for row in index_rows(db)] == [0, 1, 1]
    db.close()


@pytest.mark.parametrize("call", ["pwrite", "create", "fdatasync"])
def test_full_disk_at_any_call_of_the_binlog_folder_leaves_out_and_doubles_nothing(call):
    """Each call that can run out of space fails, and all calls after it, until there is space again."""
    places = 0
    for nth in range(1, 100):
        disk = MemoryFiles()
        plan = Plan([Rule(call, "binlog*", nth=nth, once=False, error=errno.ENOSPC)])
        plan.is_over = True
        db = open_site(FaultFiles(disk, plan), **{**TIGHT, "max_binlog_size": "4 KiB"})
        db.create_table(NAME, ACCOUNT, "id")
        db.sync()
        plan.is_over = False
        for number in range(10):
            try:
                db[NAME].insert((number, "a", 1.0, "x" * 900))
                db.sync()
            except (StorageFull, tm.StoreFailed):
                pass
        plan.is_over = True
        if db.parts.store.failure.first is None:
            db.sync()
            assert replayed(disk)[NAME] == rows_of(db) and len(db[NAME]) == 10
        db = open_site(disk.kill(), **TIGHT)
        assert replayed(db.parts.files)[NAME] == rows_of(db)
        epochs = [each.epoch for each in epochs_in(db.parts.files)]
        assert epochs == sorted(set(epochs)) == [row["epoch"] for row in index_rows(db)]
        db.close()
        if not plan.fired:
            break
        places += 1
    print("places", places)
    assert 1 <= places < 99


def test_threads_wait_for_a_slow_binlog_and_it_is_reported_and_all_that_was_acknowledged_is_logged(tmp_path):
    """The binlog is held while four threads write: they are refused with BinlogOverloaded, and continue when it is
    released.
    """
    options = {**TIGHT, "data_memory": "32 MiB", "lock_timeout_ms": 300, "server_id": 1, "log_bin": "binlog"}
    with tm.open(tmp_path / "s", durability="epoch", **options) as db:
        table = db.create_table(NAME, ACCOUNT, "id")
        db.sync()
        refusals, written = [], {}
        stop = threading.Event()

        def work(first):
            rng, number = random.Random(first), first
            while not stop.is_set():
                try:
                    table.insert((number, "a", 1.0, "x" * rng.randrange(800)))
                    written[number] = True
                    number += 4
                except BinlogOverloaded as error:
                    refusals.append(error)
                except RedoOverloaded:
                    pass  # before the first local checkpoint had reached the binlog

        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        with db.binlog.turn:
            for thread in threads:
                thread.start()
            while len(refusals) < 8:
                stop.wait(0.01)
            held = len(written)
        while len(written) < 2 * held:
            stop.wait(0.01)
        stop.set()
        for thread in threads:
            thread.join()
        assert rows_of(db).keys() == written.keys()
        db.close()
    from tidemark.engine.files.directory import PosixFiles

    files = PosixFiles(tmp_path / "s")
    try:
        assert replayed(files)[NAME].keys() == written.keys()
    finally:
        files.close_all()
