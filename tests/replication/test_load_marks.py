"""`log_load_rows` off: a mark stands for the rows of a bulk load, and no reader can overlook it."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

import tidemark as tm
from tests.replication.mariadb_rig import mysqlbinlog
from tests.replication.offline_reader import events_of
from tests.replication.site import WHOLE, open_site, transactions_in
from tidemark.engine.access import row_operations
from tidemark.engine.log.load_files import FOLDER
from tidemark.recovery import load
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.load.directory import Directory
from tidemark.replication.injector.mark import LoadMark, load_mark

COLUMNS = [tm.Column("id", tm.Int64), tm.Column("v", tm.VarChar(40), nullable=True)]
NAME = "shop.item"


pytestmark = pytest.mark.usefixtures("quiet")


def site(server_id=1, files=None, **options):
    db = open_site(files or MemoryFiles(), server_id=server_id, **{**WHOLE, "log_load_rows": False, **options})
    if server_id == 1 and NAME not in db:
        db.create_table(NAME, COLUMNS, "id", tm.HashPartition(2))
        db[NAME].insert_many([(key, "before") for key in range(5)])
        db.sync()
    return db


def adopted(db, keys, v="loaded"):
    """Adopt a load of some rows; return its report."""
    job = db.plan_load(NAME)
    place = Directory(db.parts.files, FOLDER)
    batch = pa.record_batch({"id": pa.array(list(keys), pa.int64()), "v": [v] * len(keys)})
    load.publish(job, load.write_parts(job, 0, [batch], 0, place), place)
    return db.adopt(job)


def rows(db):
    return {row.id: row.v for row in db[NAME].scan()}


def reported(db):
    """Return the rows in the binlog: epochs with the keys of their events, and incidents."""
    db.sync()
    db.binlog.write_closed_epochs()
    return [
        each.incident or (each.epoch, [(row.after or row.before)["id"] for row in each.rows])
        for each in transactions_in(db.parts.files)
        if not each.statement
    ]


def test_text_of_a_mark_is_read_back_and_other_incidents_are_none():
    mark = LoadMark(0x1234_5678_9ABC_DEF0, 10**12, 2**62, "d.t: odd\nname")
    assert load_mark(mark.text) == mark
    assert load_mark("epochs were lost after epoch 7; copy the replica anew") is None


def test_mark_stands_before_everything_else_of_its_epoch():
    """Changes of a key before the load are in an epoch of their own; changes of loaded rows come after the mark."""
    db = site()
    db[NAME].delete(3)
    report = adopted(db, [3, *range(10, 26)])
    db[NAME].update(12, {"v": "later"})
    mark, epoch = reported(db)[-2:]
    assert load_mark(mark) == LoadMark(report.job, 17, epoch[0], NAME) and epoch[1] == [12]
    assert reported(db)[-3][1] == [3]
    assert db.status()["binlog"]["load_marks"] == 1 and db.status()["binlog"]["incidents"] == 0
    # A load without a mark is logged as the option says at its epoch.
    db.binlog.set_option("log_load_rows", True)
    adopted(db, range(50, 60))
    assert sorted(reported(db)[-1][1]) == list(range(50, 60))
    db.close()


def test_replica_stops_at_a_mark_until_the_rows_are_there_and_it_is_skipped():
    a, b = site(1), site(2)
    a[NAME].delete(4)
    report = adopted(a, range(4, 30))
    a[NAME].update(8, {"v": "after the load"})
    a.sync()
    with tm.Channel(a, b) as channel:
        with pytest.raises(tm.EpochGap, match="load the same rows here and skip") as caught:
            channel.apply_all()
        assert caught.value.evidence["rows"] == 26 and caught.value.evidence["table"] == NAME
        assert caught.value.evidence["load"] == f"{report.job:016x}"
        with pytest.raises(tm.EpochGap):
            channel.apply_next()
        assert rows(b) == dict.fromkeys(range(4), "before")
        adopted(b, range(4, 30))
        assert load_mark(channel.skip_incident()).job == report.job
        with pytest.raises(tm.Rejected, match="is not stopped at an incident"):
            channel.skip_incident()
        channel.apply_all()
        assert rows(b) == rows(a) and rows(b)[8] == "after the load"
    a.close()
    b.close()


def test_incident_that_was_skipped_is_not_met_again_after_a_crash():
    a, b = site(1), site(2)
    adopted(a, range(10, 30))
    a.sync()
    with tm.Channel(a, b) as channel:
        with pytest.raises(tm.EpochGap):
            channel.apply_all()
        adopted(b, range(10, 30))
        channel.skip_incident()
        left = b.parts.files.kill()
    b = site(2, left)
    with tm.Channel(a, b) as channel:
        channel.apply_all()
        assert rows(b) == rows(a)
        a[NAME].delete(10)
        a.sync()
        channel.apply_all()
        assert rows(b) == rows(a)
    a.close()
    b.close()


def test_changes_say_what_they_lack_and_continue_after_it():
    db = site()
    since = db.sync()
    db[NAME].insert((7, "seven"))
    db.sync()
    report = adopted(db, range(10, 30))
    after = db.sync()
    db[NAME].insert((99, "behind"))
    db.sync()
    with db.changes(since) as changes:
        assert [row.after.id for row in next(changes)] == [7]
        with pytest.raises(tm.PositionLost, match="a load of 20 rows into shop.item") as caught:
            next(changes)
    assert caught.value.evidence["load"] == f"{report.job:016x}" and caught.value.evidence["load_epoch"] <= after
    with db.changes(caught.value.evidence["load_epoch"]) as changes:
        assert [row.after.id for epoch in changes for row in epoch] == [99]
    db.close()


def test_check_of_the_binlog_judges_all_but_the_rows_of_the_load():
    db = site()
    db.create_table("shop.other", COLUMNS, "id")
    db["shop.other"].insert((1, "one"))
    adopted(db, range(10, 30))
    db[NAME].update(11, {"v": "later"})
    db.sync()
    assert db.check_binlog()["problems"] == []
    for name, key in ((NAME, 11), ("shop.other", 1)):
        txn = db.parts.store.transactions.begin(0x8000_007F)  # an author that no binlog logs
        row_operations.update(txn, db[name].table, key, {"v": "unlogged"})
        txn.commit(True)
    found = db.check_binlog()["problems"]
    assert len(found) == 2 and any("shop.other" in each for each in found) and any("key 11" in each for each in found)
    db.close()


def test_load_that_no_binlog_had_when_the_store_died_is_marked_by_the_next_opening():
    db = site()
    before = reported(db)
    report = adopted(db, range(10, 30))
    db = site(files=db.parts.files.kill())
    found = reported(db)
    assert found[: len(before)] == before
    marks = [load_mark(each) for each in found if isinstance(each, str)]
    assert [(mark.job, mark.rows) for mark in marks] == [(report.job, 20)]
    assert len(rows(db)) == 25
    db.close()


def test_epoch_that_finds_no_room_after_its_mark_has_one_mark_when_there_is_some():
    inner = MemoryFiles()
    site(files=inner).close()
    for nth in range(1, 8):
        files = FaultFiles(MemoryFiles.from_snapshot(inner.snapshot()))
        db = site(files=files)
        report = adopted(db, range(10, 30))
        end = files.faults.add(Rule("pwrite", "binlog/binlog.[0-9]*", nth=nth, error=errno.ENOSPC))
        try:
            db.parts.clockwork.advance_epoch()
        except tm.StorageFull:
            pass
        end()
        marks = [load_mark(each) for each in reported(db) if isinstance(each, str)]
        assert [mark.job for mark in marks] == [report.job], nth
        db.close()


def test_load_after_rows_of_its_epoch_is_logged_by_its_rows():
    """As in the log of a store without followers: a mark before these rows would claim that they came later."""
    db = site()
    db.parts.store.resources.follows_log = False
    db[NAME].delete(3)
    adopted(db, [3, 40])
    db.parts.store.resources.follows_log = True
    found = reported(db)[-1]
    assert sorted(found[1]) == [3, 3, 40]
    db.close()


def test_table_that_is_not_logged_has_no_mark():
    db = site()
    db.create_replication_table().insert((b"shop", b"quiet", 0, 1, None))
    db.create_table("shop.quiet", COLUMNS, "id")
    job = db.plan_load("shop.quiet")
    place = Directory(db.parts.files, FOLDER)
    batch = pa.record_batch({"id": pa.array([1, 2], pa.int64()), "v": ["x", "y"]})
    load.publish(job, load.write_parts(job, 0, [batch], 0, place), place)
    db.adopt(job)
    assert not [each for each in reported(db) if isinstance(each, str)]
    db.close()


def test_other_readers_of_binlogs_see_an_incident(tmp_path):
    db = site()
    report = adopted(db, range(10, 30))
    reported(db)
    (name,) = db.binlog.writer.index.names
    content = db.parts.files.snapshot()[f"binlog/{name}"]
    assert len(list(events_of(content))) > 3  # mysql-replication of PyPI reads all of it
    path = tmp_path / name
    path.write_bytes(content)
    text = mysqlbinlog("--verify-binlog-checksum", path)
    assert "LOST_EVENTS" in text and "RELOAD DATABASE" in text and report.rows == 20
    db.close()
