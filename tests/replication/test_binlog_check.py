"""`db.check_binlog` finds a change that the binlog lacks or has otherwise, and reports nothing else."""

from __future__ import annotations

import random

import pytest

import tidemark as tm
from tests.replication.history import History
from tests.replication.site import open_site
from tests.seeds import fresh_seeds
from tests.shares import few
from tests.store.support import ACCOUNT, open_memory
from tidemark.engine.access import row_operations
from tidemark.recovery.verification import binlog_check as room

WHOLE = {"log_updated_only": False, "log_update_as_write": False}
DISK = {"page_buffer": "512 KiB", "undo_log": "8 MiB", "redo_log": "8 MiB"}
UNLOGGED = 0x8000_007F


pytestmark = pytest.mark.usefixtures("quiet")


def site(files=None, **options):
    db = open_site(files, **{**WHOLE, **options})
    if "test.account" not in db:
        db.create_table("test.account", ACCOUNT, "id")
        db["test.account"].insert_many([(key, "ann", float(key), None) for key in range(50)])
        db.sync()
    return db


def unlogged(db, work):
    """Make a change that no binlog logs."""
    txn = db.parts.store.transactions.begin(UNLOGGED)
    work(txn, db["test.account"].table)
    txn.commit(True)


@pytest.mark.parametrize("number", [2, 3, 6, 7, 8, 9])
@pytest.mark.parametrize("seed", [6, *fresh_seeds(few(0, 1))])
def test_binlog_of_any_history_is_sound_by_every_type(number, seed, monkeypatch):
    print("seed", seed)
    monkeypatch.setattr(room, "KEYS_MAX", 5)  # in several parts
    db = open_site(**DISK)
    db.create_replication_table().insert((b"d", b"%", 0, number, None))
    history = History(db, random.Random(seed), with_disk=True)
    for turn in range(4):
        history.run(15)
        if turn == 1:
            db.checkpoint()
            history.db = db = open_site(db.parts.files.kill(), **DISK)
        if turn == 2:
            db.binlog.rotate()
            db.binlog.purge(to=db.binlog.writer.end.file)
        report = db.check_binlog()
        assert report["problems"] == [] and report["is_whole"]
        assert report["unjudged"] == 0 or turn > 1
    assert report["changes"] >= report["keys"] > 5
    db.close()


def test_change_that_is_not_in_the_binlog_is_found_whatever_it_was():
    db = site()
    assert db.check_binlog()["problems"] == []
    unlogged(db, lambda txn, table: row_operations.update(txn, table, 7, {"balance": -1.0}))
    unlogged(db, lambda txn, table: row_operations.delete(txn, table, 8))
    unlogged(db, lambda txn, table: row_operations.insert(txn, table, (99, "bob", 1.0, None)))
    report = db.check_binlog()
    assert sorted(report["problems"]) == [
        "test.account, key 7 differs from the binlog in balance",
        "test.account, key 8 is missing, and the binlog does not say so",
        "test.account, key 99 was changed, and the binlog does not have the change",
    ]
    assert not report["is_sound"]
    db.close()


def test_other_values_and_rows_that_should_be_gone_are_found_with_their_columns():
    db = site()
    # In one epoch: the binlog's last change of the row is not the last change in the store.
    db["test.account"].update(5, {"balance": 55.0})
    unlogged(db, lambda txn, table: row_operations.update(txn, table, 5, {"balance": 56.0, "note": "x"}))
    db["test.account"].delete(6)
    unlogged(db, lambda txn, table: row_operations.insert(txn, table, (6, "ann", 6.0, None)))
    report = db.check_binlog()
    assert sorted(report["problems"]) == [
        "test.account, key 5 differs from the binlog in balance, note",
        "test.account, key 6 is there, and the binlog says it was deleted",
    ]
    db.close()


def test_changes_of_the_schema_between_are_no_damage():
    db = site()
    table = db["test.account"]
    db.add_column("test.account", tm.Column("late", tm.Int32, default=5))
    table = db["test.account"]
    table.update(1, {"late": 6})
    db.drop_column("test.account", "balance")
    db.add_column("test.account", tm.Column("balance", tm.VarChar(9), default="new"))
    db["test.account"].update(2, {"balance": "mine"})
    db.sync()
    assert db.check_binlog()["problems"] == []
    db.rename("test.account", "test.customer")
    db["test.customer"].update(3, {"owner": "eve"})
    db.create_table("test.account", ACCOUNT, "id")
    db["test.account"].insert((3, "new", 1.0, None))
    db.drop_table("test.customer")
    assert db.check_binlog()["problems"] == []
    unlogged(db, lambda txn, held: row_operations.insert(txn, held, (4, "bob", 1.0, None)))
    assert len(db.check_binlog()["problems"]) == 1
    db.close()


def test_epochs_without_binlog_are_not_asked_for_and_what_follows_is():
    db = site()
    db.close()
    db = open_memory(db.parts.files.kill())
    db["test.account"].update(1, {"balance": -1.0})
    db["test.account"].delete(2)
    db.close()
    db = site(db.parts.files.kill())
    db["test.account"].update(3, {"balance": 33.0})
    report = db.check_binlog()
    assert report["problems"] == [] and report["keys"] == 1
    unlogged(db, lambda txn, table: row_operations.update(txn, table, 3, {"balance": 1.0}))
    unlogged(db, lambda txn, table: row_operations.update(txn, table, 4, {"balance": 1.0}))
    report = db.check_binlog()
    # For the other row it is unknown whether it changed, or was updated without a change.
    assert report["problems"] == ["test.account, key 3 differs from the binlog in balance"]
    assert report["unjudged"] == 1
    db.close()


def test_update_that_changes_nothing_is_no_damage():
    db = site()
    db["test.account"].update(5, {"balance": 5.0})
    assert db.check_binlog()["problems"] == []
    db.close()


def test_replica_that_does_not_log_what_it_applies_judges_only_what_it_logged():
    a, b = open_site(server_id=1, **WHOLE), open_site(server_id=2, **WHOLE)
    a.create_table("test.account", ACCOUNT, "id")
    with tm.Channel(a, b) as channel:
        a["test.account"].insert_many([(key, "ann", 1.0, None) for key in range(10)])
        a.sync()
        channel.apply_all()
        b["test.account"].update(1, {"balance": 2.0})
        b["test.account"].update(2, {"balance": 2.0})
        a["test.account"].update(1, {"balance": 3.0})
        b.sync()
        a.sync()
        channel.apply_all()
    report = b.check_binlog()
    assert report["problems"] == [] and not report["is_whole"]
    assert (report["keys"], report["unjudged"]) == (2, 1)
    assert a.check_binlog()["is_whole"] and a.check_binlog()["keys"] == 10
    a.close()
    b.close()


def test_store_without_binlog_is_refused():
    db = open_memory()
    with pytest.raises(tm.Rejected, match="binlog"):
        db.check_binlog()
    db.close()
