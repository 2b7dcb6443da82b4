"""Every option of the binlog on an open store: what it changes, by default and given, at opening and at run time."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import tidemark as tm
from tests.replication.site import epochs_in, index_rows, open_site, transactions_in
from tests.store.support import ACCOUNT
from tidemark.engine.access import row_operations
from tidemark.engine.base.errors import NoSuchColumn, Rejected, SchemaInvalid
from tidemark.engine.base.options import format_size, parse_size
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.trace import TraceFiles
from tidemark.replication.settings.any_value import REFLECT
from tidemark.replication.settings.options import BY_NAME, OF_BINLOG, OPTIONS, Effect, Scope

NAME = "test.account"
ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("quiet")


def site(files=None, **options):
    db = open_site(files, **options)
    db.create_table(NAME, ACCOUNT, "id")
    db.sync()
    return db, db[NAME]


def applied(db, *rows, server=3, table=NAME, any_value=None):
    """Insert rows as an applier would, with the server that made them as their author."""
    txn = db.parts.store.transactions.begin(server if any_value is None else any_value, server)
    for row in rows:
        row_operations.write(txn, db.parts.store.tables.named(table), row)
    txn.commit(True)


def said(db):
    return [(row.kind, row.before, row.after) for each in epochs_in(db.parts.files) for row in each.rows]


def row(number, **changes):
    return {"id": number, "owner": "a", "balance": 1.0, "note": None} | changes


# --- images ---------------------------------------------------------------------------------------
IMAGES = {
    # (log_updated_only, log_update_as_write, log_update_as_minimal): update, images before and after, delete
    (True, True, False): ("WRITE_ROW", None, {"id", "balance"}, {"id"}),
    (True, True, True): ("WRITE_ROW", None, {"id", "balance"}, {"id"}),
    (False, True, False): ("WRITE_ROW", None, set(row(1)), set(row(1))),
    (False, True, True): ("WRITE_ROW", None, set(row(1)), set(row(1))),
    (True, False, False): ("UPDATE_ROW", {"id", "balance"}, {"id", "balance"}, {"id"}),
    (False, False, False): ("UPDATE_ROW", set(row(1)), set(row(1)), set(row(1))),
    (True, False, True): ("UPDATE_ROW", {"id"}, {"balance"}, {"id"}),
    (False, False, True): ("UPDATE_ROW", {"id"}, set(row(1)), {"id"}),
}


@pytest.mark.parametrize("given", IMAGES)
def test_log_updated_only_as_write_and_minimal_say_what_images_hold(given):
    names = ("log_updated_only", "log_update_as_write", "log_update_as_minimal")
    db, table = site(**dict(zip(names, given, strict=True)))
    table.insert(row(1))
    table.update(1, {"balance": 2.0})
    table.delete(1)
    db.sync()
    insert, update, delete = said(db)
    assert insert == ("WRITE_ROW", None, row(1))
    kind, before, after, gone = IMAGES[given]
    assert update == (
        kind,
        None if before is None else {name: row(1)[name] for name in before},
        {name: row(1, balance=2.0)[name] for name in after},
    )
    assert delete == ("DELETE_ROW", {name: row(1, balance=2.0)[name] for name in gone}, None)
    db.close()


def test_images_given_at_run_time_count_for_tables_made_from_then_on():
    """Story: options were read once at opening, but the document says that they are read when a table is set up."""
    db, table = site()
    db.binlog.set_option("log_update_as_write", False)
    db.create_table("test.other", ACCOUNT, "id").insert(row(1))
    table.insert(row(1))
    for name in (NAME, "test.other"):
        db[name].update(1, {"balance": 2.0})
    db.sync()
    kinds = {each.table: each.kind for epoch in epochs_in(db.parts.files) for each in epoch.rows}
    assert kinds == {NAME: "WRITE_ROW", "test.other": "UPDATE_ROW"}
    db.close()


def test_updates_that_change_nothing_are_logged_with_log_empty_update_only():
    db, table = site()
    table.insert(row(1))
    db.sync()
    table.update(1, {"balance": 1.0})
    db.sync()
    assert len(said(db)) == 1
    db.binlog.set_option("log_empty_update", True)
    table.update(1, {"balance": 1.0})
    db.sync()
    assert said(db)[1:] == [("WRITE_ROW", None, {"id": 1})]
    db.close()


# --- rows and epochs ------------------------------------------------------------------------------
def test_log_rows_off_leaves_schema_statements_alone_and_rows_come_again_with_it():
    db, table = site(log_rows=False)
    table.insert(row(1))
    db.sync()
    db.add_column(NAME, tm.Column("more", tm.Int32, nullable=True))
    applied(db, (7, "a", 1.0, None, None))
    db.sync()
    found = transactions_in(db.parts.files)
    assert [each.statement.split(" `")[0] for each in found if each.statement] == [
        "CREATE DATABASE IF NOT EXISTS",
        "CREATE TABLE",
        "ALTER TABLE",
    ]
    assert said(db) == [] and len(epochs_in(db.parts.files)) == 2
    db.binlog.set_option("log_rows", True)
    db[NAME].insert({**row(2), "more": 5})
    db.sync()
    assert said(db) == [("WRITE_ROW", None, {**row(2), "more": 5})]
    db.close()


def test_epochs_without_rows_are_written_with_log_empty_epochs():
    db, _ = site()
    before = len(epochs_in(db.parts.files))
    db.parts.clockwork.advance_gci()
    assert len(epochs_in(db.parts.files)) == before
    db.binlog.set_option("log_empty_epochs", True)
    for _ in range(3):
        db.parts.clockwork.advance_gci()
    found = epochs_in(db.parts.files)
    assert len(found) == before + 3 and [each.rows for each in found[before:]] == [[]] * 3
    epochs = [each.epoch for each in found]
    assert epochs == sorted(set(epochs))
    db.close()


def test_applied_rows_are_logged_as_their_server_s_with_log_replica_updates_only():
    db, table = site()
    applied(db, row(1))
    table.insert(row(2))
    db.sync()
    assert [each.after["id"] for epoch in epochs_in(db.parts.files) for each in epoch.rows] == [2]
    db.binlog.set_option("log_replica_updates", True)
    applied(db, row(3))
    applied(db, row(4), any_value=REFLECT)
    db.sync()
    found = [
        (each.after["id"], each.server_id, each.flags) for epoch in epochs_in(db.parts.files) for each in epoch.rows
    ]
    assert found == [(2, 1, 0), (3, 3, 0), (4, 1, 1)]
    db.close()


def test_positions_of_a_source_are_logged_with_log_apply_status_as_the_own_server_s():
    db, table = site()
    table.insert(row(1))
    applied(db, (3, 100, "x", 0, 0), table="mysql.ndb_apply_status")
    db.sync()
    assert [each.table for epoch in epochs_in(db.parts.files) for each in epoch.rows] == [NAME]
    # Story: how this table is logged was decided at opening, so the option had no effect at run time.
    db.binlog.set_option("log_apply_status", True)
    db.sync()
    applied(db, row(2))
    applied(db, (3, 200, "x", 0, 0), table="mysql.ndb_apply_status")
    db.sync()
    (found,) = [each for epoch in epochs_in(db.parts.files)[2:] for each in epoch.rows]
    assert (found.kind, found.after["server_id"], found.after["epoch"], found.server_id) == ("WRITE_ROW", 3, 200, 1)
    db.binlog.set_option("log_apply_status", False)
    applied(db, row(4))
    applied(db, (3, 300, "x", 0, 0), table="mysql.ndb_apply_status")
    db.sync()
    assert len(epochs_in(db.parts.files)) == 3
    db.close()


def test_place_that_is_not_ascii_is_logged_as_unknown(caplog):
    """Story: the column became latin1 in the binlog, with one byte of length. A name of more bytes than characters
    would have broken the event.
    """
    db, _ = site(log_apply_status=True)
    caplog.set_level(logging.WARNING)
    applied(db, row(2))
    for server, name in ((3, "ü" * 255), (4, "x" * 255), (5, "日")):
        applied(db, (server, 200, name, 7, 9), table="mysql.ndb_apply_status")
    db.sync()
    found = [each.after for each in epochs_in(db.parts.files)[-1].rows]
    assert [tuple(each.values()) for each in found] == [
        (3, 200, "", 0, 0),
        (4, 200, "x" * 255, 7, 9),
        (5, 200, "", 0, 0),
    ]
    assert "as the name of a binlog; it is logged as an unknown place" in caplog.text
    db.close()


@pytest.mark.parametrize("at_open", [True, False])
def test_origins_have_rows_of_their_own_in_the_index_with_log_orig(at_open):
    db, table = site(log_orig=at_open, log_replica_updates=True)
    if not at_open:
        table.insert(row(9))
        db.sync()
        assert [(each["orig_server_id"], each["orig_epoch"]) for each in index_rows(db)] == [(0, 0)] * 2
        db.binlog.set_option("log_orig", True)
        db.sync()
    applied(db, row(1))
    applied(db, (3, 13, "x", 0, 0), table="mysql.ndb_apply_status")
    table.insert(row(2))
    epoch = db.sync()
    found = [
        (each["orig_server_id"], each["orig_epoch"], each["inserts"])
        for each in index_rows(db)
        if each["epoch"] == epoch
    ]
    assert found == [(1, epoch, 1), (3, 13, 1)]
    assert not [each for each in epochs_in(db.parts.files)[-1].rows if each.table != NAME], "log_apply_status is off"
    db.close()


def test_slices_of_two_sites_are_the_rows_of_both():
    found = []
    for number in range(2):
        db, table = site(row_slice_count=2, row_slice_id=number)
        table.insert_many([row(key) for key in range(40)])
        table.update_many([{"id": key, "balance": 5.0} for key in range(40)])
        db.sync()
        keys = [after["id"] for _, _, after in said(db)]
        assert len(set(keys)) * 2 == len(keys) and 5 < len(set(keys)) < 35
        found += set(keys)
        with pytest.raises(SchemaInvalid):
            db.binlog.set_option("row_slice_id", 2)
        db.close()
    assert sorted(found) == list(range(40))


# --- the form -------------------------------------------------------------------------------------
def marks(db):
    return [(each.transaction_id is not None, each.flags) for epoch in epochs_in(db.parts.files) for each in epoch.rows]


def versions(db):
    from tests.replication.stage import end_of
    from tidemark.replication.binlog import events as e
    from tidemark.replication.binlog.reader import BinlogReader

    reader = BinlogReader(db.parts.files)
    found = [read.event.version for read in reader.events(end_of(db.parts.files)) if isinstance(read.event, e.Rows)]
    reader.close()
    return found


def test_row_events_carry_transaction_ids_with_log_transaction_id_one_for_each_transaction():
    db, table = site()
    table.insert(row(1))
    db.sync()
    db.binlog.set_option("log_transaction_id", True)
    with db.transaction() as txn:
        txn.insert(NAME, row(2))
        txn.insert(NAME, row(3))
        txid = txn.txid
    table.insert(row(4))
    db.sync()
    ids = [each.transaction_id for epoch in epochs_in(db.parts.files) for each in epoch.rows]
    assert ids[:3] == [None, txid, txid] and ids[3] not in (None, txid)
    with pytest.raises(SchemaInvalid, match="version 1"):
        db.binlog.set_option("log_bin_use_v1_row_events", True)
    db.close()


def test_row_events_have_version_1_from_the_next_file_with_the_option():
    db, table = site(log_bin_use_v1_row_events=True)
    table.insert(row(1))
    db.sync()
    assert set(versions(db)) == {1}
    db.binlog.set_option("log_bin_use_v1_row_events", False)
    table.insert(row(2))
    db.sync()
    assert versions(db)[-1] == 2 and db.status()["binlog"]["file"] == "binlog.000002"
    assert [after["id"] for _, _, after in said(db)] == [1, 2]
    with pytest.raises(SchemaInvalid, match="version 1"):
        open_site(log_bin_use_v1_row_events=True, log_transaction_id=True)
    db.close()


def test_epoch_beyond_binlog_cache_size_goes_to_the_file_while_it_is_read():
    """A small epoch is held back, so that its statement names all tables first."""

    def events(**options):
        from tests.replication.stage import end_of
        from tidemark.replication.binlog.reader import BinlogReader

        db, _ = site(**options)
        db.create_table("test.other", ACCOUNT, "id")
        db.sync()
        for number in range(30):
            with db.transaction() as txn:
                txn.insert(NAME, row(number, note="x" * 400))
                txn.insert("test.other", row(number, note="x" * 400))
        db.sync()
        reader = BinlogReader(db.parts.files)
        names = [type(read.event).__name__ for read in reader.events(end_of(db.parts.files))]
        reader.close()
        assert len(said(db)) == 60
        db.close()
        return names[len(names) - names[::-1].index("Gtid") :]

    held, passed_on = events(), events(binlog_cache_size="4 KiB")
    assert held.count("TableMap") == 3 and held[1:4] == ["TableMap"] * 3
    assert passed_on.count("TableMap") > 3 or passed_on[1:4] != ["TableMap"] * 3


# --- files ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("sync_binlog", "syncs"), [(1, 12), (3, 4), (0, 0)])
def test_sync_binlog_says_after_how_many_epochs_the_file_is_synced(sync_binlog, syncs):
    trace = TraceFiles(MemoryFiles())
    db, table = site(trace)
    db.binlog.set_option("sync_binlog", sync_binlog)
    db.binlog.writer.sync()
    begun = len(trace.events)
    for number in range(12):
        table.insert(row(number))
        db.sync()
    calls = [event for event in trace.events[begun:] if event.name.startswith("binlog/") and "sync" in event.operation]
    assert len(calls) == syncs
    db.close()


def test_max_binlog_size_ends_files_and_log_bin_names_them():
    db, table = site(log_bin="site-7", max_binlog_size="4 KiB")
    for number in range(12):
        table.insert(row(number, note="x" * 900))
        db.sync()
    names = db.binlog.writer.index.names
    assert len(names) > 2 and names[0] == "site-7.000001"
    assert sorted(name for name in db.parts.files.list("binlog") if name[-1].isdigit()) == names
    size = max(db.parts.files.size(f"binlog/{name}") for name in names)
    assert 4_096 <= size < 4_096 + 1_500
    db.binlog.set_option("max_binlog_size", "1 MiB")
    table.insert(row(100, note="x" * 6_000))
    db.sync()
    assert db.binlog.writer.index.names == names
    db.close()


def test_extra_logging_names_files_and_epochs(caplog):
    def reported(level):
        caplog.clear()
        db, table = site(extra_logging=level, max_binlog_size="4 KiB")
        caplog.set_level(logging.INFO)
        for number in range(6):
            table.insert(row(number, note="x" * 900))
            db.sync()
        caplog.set_level(logging.CRITICAL)
        db.close()
        return [record.message.split()[0] for record in caplog.records]

    assert reported(0) == []
    assert set(reported(1)) == {"binlog"}
    assert set(reported(2)) == {"binlog", "epoch"}


# --- reads ----------------------------------------------------------------------------------------
def reads(db):
    return [
        (each.table, each.before, each.after)
        for epoch in epochs_in(db.parts.files)
        for each in epoch.rows
        if each.flags
    ]


@pytest.mark.parametrize("whose", ["store", "transaction", "run time"])
def test_exclusive_reads_of_rows_that_are_there_travel_with_log_exclusive_reads(whose):
    db, table = site(log_exclusive_reads=whose == "store")
    table.insert_many([row(number, balance=float(number)) for number in range(10)])
    db.create_index(NAME, "by_owner_and_number", ["owner", "id"], unique=True)
    db.sync()
    if whose == "run time":
        with db.transaction() as txn:
            assert txn.get(NAME, 1, lock="exclusive") is not None
        db.sync()
        assert reads(db) == []
        db.binlog.set_option("log_exclusive_reads", True)
    with db.transaction(**({"log_exclusive_reads": True} if whose == "transaction" else {})) as txn:
        assert txn.get(NAME, 1, lock="exclusive").id == 1
        assert txn.get(NAME, 99, lock="exclusive") is None
        assert txn.get(NAME, 2).id == txn.get(NAME, 2, lock="shared").id == 2
        assert txn.get(NAME, ("a", 3), lock="exclusive", index="by_owner_and_number").id == 3
        found = txn.get_many(NAME, [4, 98, 5], ["balance"], lock="exclusive")
        assert found.to_pydict() == {"balance": [4.0, 5.0]}
        assert txn.get_many(NAME, [97], lock="exclusive").num_rows == 0
        assert [each.id for each in txn.scan(NAME, lock="exclusive", where=tm.col("balance") == 6.0)] == [6]
        assert len(list(txn.scan(NAME, lock="shared"))) == 10
        with pytest.raises(NoSuchColumn):
            txn.get_many(NAME, [1], ["nothing"], lock="exclusive")
        txn.update(NAME, 7, {"balance": 0.0})
    db.sync()
    keys = [{"id": number} for number in (1, 3, 4, 5, 6)]
    assert reads(db) == [(NAME, key, key) for key in keys]
    assert said(db)[-1][2] == {"id": 7, "balance": 0.0}, "what follows a read carries its mark no more"
    if whose == "store":
        with db.transaction(log_exclusive_reads=False) as txn:
            txn.get(NAME, 1, lock="exclusive")
        db.sync()
        assert len(reads(db)) == 5
    db.close()


def test_reads_are_tracked_by_keys_of_every_type_and_without_a_binlog_not_at_all():
    columns = [
        tm.Column("kind", tm.Enum("low", "high")),
        tm.Column("day", tm.Date),
        tm.Column("name", tm.VarChar(20)),
        tm.Column("price", tm.Decimal(9, 2)),
        tm.Column("big", tm.UInt64),
        tm.Column("value", tm.Int32),
    ]
    import datetime
    from decimal import Decimal

    key = ("high", datetime.date(2026, 2, 3), "né", Decimal("12.50"), (1 << 64) - 1)
    db = open_site(log_exclusive_reads=True)
    db.create_table("test.keys", columns, [column.name for column in columns[:5]]).insert((*key, 1))
    with db.transaction() as txn:
        assert txn.get("test.keys", key, lock="exclusive").value == 1
        assert txn.get_many("test.keys", [key], ["value"], lock="exclusive").num_rows == 1
    db.sync()
    plain = {name: value for name, value in said(db)[0][2].items() if name != "value"}
    assert reads(db) == [("test.keys", plain, plain)], "read twice by one transaction, told once"
    db.close()
    db = open_site(db.parts.files.kill(), log_bin=None)
    with db.transaction(log_exclusive_reads=True) as txn:
        before = db.status()["log"]["bytes_written"]
        assert txn.get("test.keys", key, lock="exclusive").value == 1
    db.sync()
    assert db.status()["log"]["bytes_written"] == before
    db.close()


# --- the table ------------------------------------------------------------------------------------
def test_options_of_others_and_of_the_next_opening_are_refused_at_run_time():
    db, _ = site()
    for option in OPTIONS:
        if option.effect is Effect.OPEN or option.name not in OF_BINLOG:
            with pytest.raises(Rejected, match="next opening|not an option of the binlog"):
                db.binlog.set_option(option.name, option.default)
        else:
            db.binlog.set_option(option.name, option.default)
    with pytest.raises(SchemaInvalid, match="did you mean"):
        db.binlog.set_option("log_empty_epoch", True)
    db.close()


def test_table_of_options_in_the_document_is_that_of_the_program():
    text = (ROOT / "docs" / "replication.md").read_text()
    _, _, below = text.partition("| option | default | scope | takes effect | meaning |\n|---|---|---|---|---|\n")
    lines = below.partition("\n\n")[0].splitlines()
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert shown == [
        [f"`{each.name}`", shown_default(each), each.scope.value, each.effect.value, each.meaning] for each in OPTIONS
    ]
    assert {BY_NAME[name].scope for name in OF_BINLOG} <= {Scope.STORE, Scope.TRANSACTION}


def shown_default(option):
    if option.kind is bool:
        return "on" if option.default else "off"
    if option.kind == "size":
        return format_size(parse_size(option.name, option.default))
    return {"None": "none", "()": "none", "Role.NONE": "NONE", "NONE": "NONE"}.get(
        str(option.default), str(option.default)
    )
