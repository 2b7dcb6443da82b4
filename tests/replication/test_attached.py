"""The binlog of an open store: its content, and the effect of openings, full disks and purges on it."""

from __future__ import annotations

import errno
import random

import pytest

import tidemark as tm
from tests.replication.history import History
from tests.replication.site import (
    DISK,
    WHOLE,
    account_site,
    epochs_in,
    index_rows,
    open_site,
    replayed,
    transactions_in,
)
from tests.store.support import ACCOUNT, open_memory
from tidemark.engine.base.errors import Rejected, SchemaInvalid, StorageFull
from tidemark.engine.files.directory import PosixFiles
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog.position import Position
from tidemark.replication.settings.binlog_type import NO_LOGGING

pytestmark = pytest.mark.usefixtures("quiet")


def again(db, **options):
    """Open the store again after its process died."""
    return open_site(db.parts.files.kill(), **{**WHOLE, **options})


def rows_in(files):
    return [(row.kind, (row.after or row.before)["id"]) for each in epochs_in(files) for row in each.rows]


# --- what it says ---------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [1, 2, 3, 6, 7, 8, 9])
@pytest.mark.parametrize("seed", [11, 12])
def test_binlog_says_what_transactions_did_by_every_type(number, seed):
    print("seed", seed)
    db = open_site(**DISK)
    db.create_replication_table().insert((b"d", b"%", 0, number, None))
    history = History(db, random.Random(seed), with_disk=True)
    history.run(60)
    found = [
        (each.epoch, row.table, row.kind, row.before, row.after)
        for each in epochs_in(db.parts.files)
        for row in each.rows
    ]
    wanted = history.expected(number)
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert number == NO_LOGGING or len(wanted) > 60
    # Changes of one row come in their order.
    for name in history.tables:
        for key in range(12):
            of_row = [each for each in found if each[1] == name and (each[3] or each[4]).get("id", key) == key]
            assert number == 8 or of_row == [e for e in wanted if e[1] == name and (e[3] or e[4])["id"] == key]
    db.close()


def test_binlog_applied_strictly_makes_the_tables_of_the_store_over_many_openings():
    rng = random.Random(5)
    db = open_site(**WHOLE)
    history = History(db, rng)
    for turn in range(6):
        history.run(12)
        if turn % 2:
            db.checkpoint()
        history.commit()  # in an epoch that the crash closes
        if turn == 3:
            db.close()
        history.db = db = again(db)
        assert replayed(db.parts.files) == {name: rows for name, rows in history.tables.items() if rows}
        epochs = [each.epoch for each in epochs_in(db.parts.files)]
        assert epochs == sorted(set(epochs))
        assert [row["epoch"] for row in index_rows(db)] == epochs
    assert len(db.binlog.writer.index.names) == 7
    assert not [each for each in transactions_in(db.parts.files) if each.incident]
    db.close()


def test_transaction_larger_than_memory_is_in_the_binlog_whole():
    db, table = account_site(
        transaction_memory="64 KiB", transaction_limit="4 MiB", redo_log="4 MiB", binlog_cache_size="4 KiB"
    )
    with db.transaction() as txn:
        for number in range(3_000):
            txn.insert("test.account", (number, "owner", 1.0, "x" * 100))
        for number in range(0, 3_000, 2):
            txn.update("test.account", number, {"balance": 2.0})
    db.sync()
    assert db.status()["spool"]["committed"] == 1
    assert replayed(db.parts.files)["test.account"] == {row.id: row._asdict() for row in table.scan()}
    assert index_rows(db)[-1]["inserts"] == 3_000
    db.close()


def test_tables_of_the_system_and_unlogged_transactions_stay_out():
    db, table = account_site()
    db.create_replication_table().insert((b"x", b"y", 0, 7, None))
    txn = db.parts.store.transactions.begin(0x8000_007F)
    from tidemark.engine.access import row_operations

    row_operations.insert(txn, table.table, (1, "a", 1.0, None))
    txn.commit(True)
    db["mysql.ndb_apply_status"].insert((9, 1, "", 0, 0))
    db.sync()
    assert rows_in(db.parts.files) == []
    db.close()


def test_a_table_is_logged_as_its_row_said_when_it_was_made():
    db = open_site(**WHOLE)
    rows = db.create_replication_table()
    rows.insert((b"test", b"quiet", 0, 1, None))
    for name in ("test.quiet", "test.loud"):
        db.create_table(name, ACCOUNT, "id")
    rows.write((b"test", b"loud", 0, 1, None))
    rows.delete((b"test", b"quiet", 0))
    for name in ("test.quiet", "test.loud"):
        db[name].insert((1, name, 1.0, None))
    db.sync()
    assert [row.table for each in epochs_in(db.parts.files) for row in each.rows] == ["test.loud"]
    db = again(db)
    for name in ("test.quiet", "test.loud"):
        db[name].insert((2, name, 1.0, None))
    db.sync()
    assert [row.table for each in epochs_in(db.parts.files) for row in each.rows] == ["test.loud", "test.quiet"]
    db.close()


def test_schema_changes_are_statements_in_epochs_of_their_own_and_rows_of_ndb_schema():
    db, table = account_site()
    table.insert((1, "ann", 1.0, None))
    db.add_column("test.account", tm.Column("more", tm.Int32, nullable=True))
    db["test.account"].insert((2, "bob", 2.0, None, 7))
    db.drop_table("test.account")
    db.sync()
    said = [
        each.statement or [row.after or row.before for row in each.rows] for each in transactions_in(db.parts.files)
    ]
    kinds = [each.split(" `")[0] if isinstance(each, str) else len(each) for each in said]
    assert kinds == ["CREATE DATABASE IF NOT EXISTS", "CREATE TABLE", 0, 1, "ALTER TABLE", 0, 1, "DROP TABLE", 0]
    assert said[6] == [{"id": 2, "owner": "bob", "balance": 2.0, "note": None, "more": 7}]
    (row,) = db["mysql.ndb_schema"].scan()
    assert (row.db, row.name, row.query.split(b" `")[0]) == (b"test", b"account", b"DROP TABLE")
    assert [each["schemaops"] for each in index_rows(db)] == [2, 0, 1, 0, 1]
    db.close()


# --- openings -------------------------------------------------------------------------------------
def test_store_opened_without_its_binlog_has_a_gap_that_an_incident_reports():
    db, table = account_site()
    table.insert((1, "a", 1.0, None))
    db.sync()
    db = again(db, log_bin=None)
    db["test.account"].insert((2, "b", 2.0, None))
    db = again(db)
    db["test.account"].insert((3, "c", 3.0, None))
    db = again(db)
    said = transactions_in(db.parts.files)
    assert [each.incident is not None for each in said] == [False] * 4 + [True, False, False]
    assert rows_in(db.parts.files) == [("WRITE_ROW", 1), ("WRITE_ROW", 3)]
    assert said[5].rows == [] and said[5].epoch > said[3].epoch
    assert not db.parts.files.exists("binlog/stopped")
    db.close()


def test_binlog_whose_files_were_removed_begins_anew_with_an_incident():
    """Story: the folder was there, so the binlog was taken for whole from its beginning. A replica that had an older
    epoch continued with the first file, and missed what the removed ones had.
    """
    db, table = account_site()
    table.insert((1, "a", 1.0, None))
    db.sync()
    db.checkpoint()
    db.close()
    left = {name: each for name, each in db.parts.files.kill().snapshot().items() if "binlog" not in name}
    files = MemoryFiles.from_snapshot(left)
    files.make_directory("binlog")
    db = open_site(files)
    said = transactions_in(db.parts.files)
    assert "were made before the store had a binlog" in said[0].incident and said[1].rows == []
    db.close()


def test_binlog_of_a_store_that_was_there_before_begins_with_an_incident():
    """Story: nothing said that the first binlog of a store lacked its rows, so a replica missed them silently."""
    plain = open_memory()
    plain.create_table("test.account", ACCOUNT, "id").insert((1, "a", 1.0, None))
    db = again(plain)
    db["test.account"].update(1, {"balance": 2.0})
    db.sync()
    said = transactions_in(db.parts.files)
    assert [(each.incident is None, len(each.rows)) for each in said] == [(False, 0), (True, 0), (True, 1)]
    assert "were made before the store had a binlog" in said[0].incident
    assert said[2].rows[0].before["balance"] == 1.0
    db.close()


def test_first_binlog_of_a_store_that_has_never_changed_has_no_incident():
    db = again(open_memory())
    db.create_table("test.account", ACCOUNT, "id").insert((1, "a", 1.0, None))
    db.sync()
    assert [each.incident for each in transactions_in(db.parts.files) if each.incident] == []
    db.close()


def test_store_that_went_back_is_reported_by_an_incident():
    db, table = account_site()
    table.insert((1, "a", 1.0, None))
    db.sync()
    kept = db.parts.store.epochs.newest_closed
    table.insert((2, "b", 2.0, None))
    db.sync()
    db = open_site(db.parts.files.kill(), through=kept, **WHOLE)
    db["test.account"].insert((3, "c", 3.0, None))
    db.sync()
    said = transactions_in(db.parts.files)
    assert said[-3].incident is not None and said[-2].rows == []
    assert rows_in(db.parts.files) == [("WRITE_ROW", 1), ("WRITE_ROW", 2), ("WRITE_ROW", 3)]
    epochs = [each.epoch for each in said if each.epoch]
    assert epochs == sorted(set(epochs))
    db.close()


def test_other_base_name_is_refused():
    db, _ = account_site()
    with pytest.raises(Rejected, match="'binlog'"):
        again(db, log_bin="other")


def test_index_rows_a_crash_took_are_made_from_the_files():
    db, table = account_site()
    for number in range(5):
        table.insert((number, "a", 1.0, None))
        db.sync()
    whole = index_rows(db)
    # The transactions of the last rows are not synced.
    left = open_site(db.parts.files.crash(random.Random(1), "drop"), **WHOLE)
    assert index_rows(left) == whole
    txn = left.transaction()
    txn.delete_where("mysql.ndb_binlog_index", tm.col("epoch") > 0)
    txn.commit(True)
    left = again(left)
    assert index_rows(left) == whole
    left.close()


def test_no_index_rows_are_written_without_the_option():
    db, table = account_site(log_binlog_index=False)
    table.insert((1, "a", 1.0, None))
    db.sync()
    db = again(db, log_binlog_index=False)
    assert index_rows(db) == [] and rows_in(db.parts.files) == [("WRITE_ROW", 1)]
    db["test.account"].insert((2, "a", 1.0, None))
    db.sync()
    db = again(db)
    assert [row["inserts"] for row in index_rows(db)] == [0, 1, 1]
    db.close()


# --- full disks -----------------------------------------------------------------------------------
def test_epochs_wait_for_a_full_disk_and_no_local_checkpoint_passes_them():
    disk = MemoryFiles()
    plan = Plan([Rule("pwrite", "binlog/binlog.0*", once=False, error=errno.ENOSPC)])
    plan.is_over = True
    db, table = account_site(FaultFiles(disk, plan))
    table.insert((1, "a", 1.0, None))
    db.sync()
    plan.is_over = False
    table.insert((2, "b", 1.0, None))
    with pytest.raises(StorageFull):
        db.sync()
    with pytest.raises(StorageFull):
        db.checkpoint()
    table.insert((3, "c", 1.0, None))
    assert db.status()["lcp"]["completed"] == 0 and len(table) == 3
    assert rows_in(disk) == [("WRITE_ROW", 1)]
    plan.is_over = True
    db.checkpoint()
    assert rows_in(disk) == [("WRITE_ROW", 1), ("WRITE_ROW", 2), ("WRITE_ROW", 3)]
    db.sync()
    assert [row["inserts"] for row in index_rows(db)] == [0, 1, 1, 1]
    db.close()


def test_epoch_with_a_row_that_no_event_takes_becomes_an_incident_and_the_others_continue(monkeypatch):
    db, table = account_site()
    table.insert((1, "a", 1.0, None))
    db.sync()
    monkeypatch.setattr("tidemark.replication.binlog.rows_layout.BODY_BYTES_MAX", 128 << 10)
    table.insert((2, "a", 1.0, "small"))
    table.insert((3, "a", 1.0, "x" * 700_000))
    lost = db.sync()
    table.insert((4, "a", 1.0, None))
    db.sync()
    said = transactions_in(db.parts.files)
    assert lost in [each.epoch for each in said] and sum(each.incident is not None for each in said) == 1
    place = next(number for number, each in enumerate(said) if each.incident)
    assert str(lost) in said[place].incident and (said[place + 1].epoch, said[place + 1].rows) == (lost, [])
    assert rows_in(db.parts.files) == [("WRITE_ROW", 1), ("WRITE_ROW", 4)]
    assert db.status()["binlog"]["incidents"] == 1
    again(db).close()
    db.close()


# --- files ----------------------------------------------------------------------------------------
def filled(**options):
    db, table = account_site(max_binlog_size="4 KiB", **options)
    for number in range(12):
        table.insert((number, "a", 1.0, "x" * 900))
        db.sync()
    assert len(db.binlog.writer.index.names) > 3
    return db, table


def test_purge_removes_files_and_their_index_rows_but_none_that_is_needed():
    db, _ = filled()
    names = list(db.binlog.writer.index.names)
    reader = object()
    db.binlog.pin(reader, Position(names[1], 4))
    assert db.binlog.purge(to=names[-1]) == names[:1]
    db.binlog.unpin(reader)
    gone = db.binlog.purge(bytes_max=1)
    kept = db.binlog.writer.index.names
    assert [*names[:1], *gone, *kept] == names
    assert {row["File"] for row in index_rows(db)} <= set(kept)
    with pytest.raises(Rejected):
        db.binlog.purge(to=names[0])
    last = epochs_in_order(db)[-1]
    db = again(db)
    assert epochs_in_order(db)[-1] == last, "the last epoch is found and not written again"
    db.close()


def epochs_in_order(db):
    epochs = [each.epoch for each in epochs_in(db.parts.files)]
    assert epochs == sorted(set(epochs))
    return epochs


def test_old_files_expire_when_a_file_is_begun():
    db, table = filled(binlog_expire_s=3_600)
    names = list(db.binlog.writer.index.names)
    db.parts.store.clock.sleep(7_200)
    table.insert((100, "a", 1.0, "x"))
    db.sync()
    db.binlog.rotate()
    assert not set(names[:-1]) & set(db.binlog.writer.index.names)
    db.close()


def test_options_change_while_the_store_is_open():
    db, table = account_site()
    table.insert((1, "a", 1.0, None))
    db.sync()
    db.binlog.set_option("log_empty_update", True)
    table.update(1, {"balance": 1.0})
    db.sync()
    db.binlog.set_option("log_bin_use_v1_row_events", True)
    table.update(1, {"balance": 3.0})
    db.sync()
    assert rows_in(db.parts.files) == [("WRITE_ROW", 1), ("UPDATE_ROW", 1), ("UPDATE_ROW", 1)]
    assert db.status()["binlog"]["file"] == "binlog.000002"
    with pytest.raises(Rejected):
        db.binlog.set_option("server_id", 2)
    with pytest.raises(SchemaInvalid):
        db.binlog.set_option("sync_binlog", -1)
    db.close()


# --- the face -------------------------------------------------------------------------------------
def test_binlog_follows_by_itself_with_threads_and_is_whole_when_the_store_is_closed(tmp_path):
    options = {"server_id": 3, "log_bin": "site", "data_memory": "16 MiB", "redo_log": "8 MiB", **WHOLE}
    with tm.open(tmp_path / "s", **options) as db:
        table = db.create_table("test.account", ACCOUNT, "id")
        for number in range(200):
            table.insert((number, "a", 1.0, None))
        db.checkpoint()
        table.update(7, {"balance": 8.0})
        assert db.status()["binlog"]["epochs"] > 0
    files = PosixFiles(tmp_path / "s")
    from tidemark.replication.binlog.reader import BinlogReader

    end = [name for name in files.list("binlog") if name[-1].isdigit()][-1]
    reader = BinlogReader(files, base="site")
    events = list(reader.events(Position(end, files.size(f"binlog/{end}"))))
    assert {read.header.server_id for read in events} == {3}
    files.close_all()
    with tm.open(tmp_path / "s", background=False, **options) as db:
        assert db["test.account"][7].balance == 8.0 and db.binlog.writer.index.names[-1] == "site.000002"


def test_options_of_replication_are_checked_when_a_store_is_opened(tmp_path):
    with pytest.raises(SchemaInvalid, match="server_id"):
        tm.open(tmp_path / "s", log_bin="binlog")
    with pytest.raises(SchemaInvalid, match="did you mean log_apply_status"):
        tm.open(tmp_path / "s", log_aply_status=True)
    with pytest.raises(SchemaInvalid, match="no meaning with read_only"):
        tm.open(tmp_path / "s", read_only=True, server_id=1)
    with pytest.raises(SchemaInvalid, match="there is no option 'skip_start'"):
        tm.open(tmp_path / "s", skip_start=True)
    assert not (tmp_path / "s").exists()


def test_status_shows_how_far_the_binlog_is():
    db, table = account_site()
    table.insert((1, "a", 1.0, None))
    epoch = db.sync()
    found = db.status()
    assert found["binlog"]["latest_handled_binlog_epoch"] >= epoch and found["binlog"]["rows"] == 1
    shown = found["replication"]["variables"]
    assert shown["Ndb_latest_trans_epoch"] == epoch
    assert shown["Ndb_latest_handled_binlog_epoch"] == found["binlog"]["latest_handled_binlog_epoch"]
    db.close()
