"""System tables compared with the statements of the manuals, and the options of replication."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.conformance.case_types import column_of
from tests.elsewhere import at_once
from tests.store.support import open_memory
from tidemark.engine import types as t
from tidemark.engine.base.errors import NoSuchTable, SchemaInvalid, TableExists
from tidemark.engine.base.options import Options
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import is_system_table
from tidemark.engine.types import VarChar
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.settings.conflict_function import Role
from tidemark.replication.settings.options import OPTIONS, parse_text, settings, validate
from tidemark.replication.settings.system_tables import (
    MADE_WITH_STORE,
    NDB_REPLICATION_TABLE,
    SYSTEM_TABLES,
    make,
    verify,
)

STATEMENTS = {
    "mysql.ndb_replication": (
        "db VARBINARY(63), table_name VARBINARY(63), server_id INT UNSIGNED, binlog_type INT UNSIGNED?,"
        " conflict_fn VARBINARY(128)?",
        "db, table_name, server_id",
    ),
    "mysql.ndb_apply_status": (
        "server_id INT UNSIGNED, epoch BIGINT UNSIGNED, log_name VARCHAR(255), start_pos BIGINT UNSIGNED,"
        " end_pos BIGINT UNSIGNED",
        "server_id",
    ),
    "mysql.ndb_binlog_index": (
        "Position bigint unsigned, File varchar(255), epoch bigint unsigned, inserts int unsigned,"
        " updates int unsigned,"
        " deletes int unsigned, schemaops int unsigned, orig_server_id int unsigned, orig_epoch bigint unsigned,"
        " gci int unsigned, next_position bigint unsigned, next_file varchar(255)",
        "epoch, orig_server_id, orig_epoch",
    ),
    "mysql.ndb_schema": (
        "db VARBINARY(63), name VARBINARY(63), slock BINARY(32), query BLOB, node_id INT UNSIGNED,"
        " epoch BIGINT UNSIGNED, id INT UNSIGNED, version INT UNSIGNED, type INT UNSIGNED",
        "db, name",
    ),
}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_definition_is_the_printed_one_and_verifies(name: str) -> None:
    columns, key = STATEMENTS[name]
    expected = []
    for piece in columns.split(","):
        column, _, kind = piece.strip().partition(" ")
        expected.append(column_of(column, kind.rstrip("?"), kind.endswith("?")))
    table = SYSTEM_TABLES[name]
    assert table.columns == tuple(expected)
    assert table.primary_key == tuple(each.strip() for each in key.split(","))
    assert is_system_table(name) and verify(table) == []


def test_three_are_made_with_the_store() -> None:
    assert sorted({*SYSTEM_TABLES} - {table.name for table in MADE_WITH_STORE}) == ["mysql.ndb_replication"]


def changed(table: TableDefinition, **columns: Column | None) -> TableDefinition:
    kept = [columns.pop(column.name, column) for column in table.columns]
    return replace(table, columns=tuple(column for column in [*kept, *columns.values()] if column is not None))


def test_wrong_definitions_are_reported_in_the_servers_words() -> None:
    table = NDB_REPLICATION_TABLE
    texts = [fault.text for fault in verify(replace(table, primary_key=("db", "table_name")))]
    assert texts == [
        "Bad schema for mysql.ndb_replication table. Message: Wrong number of primary key parts, expected 3"
    ]
    assert verify(replace(table, primary_key=("db", "server_id", "table_name")))[0].errno == 1625
    for wrong in (None, Column("binlog_type", t.Int32, nullable=True)):
        faults = verify(changed(table, binlog_type=wrong))
        assert [fault.rule for fault in faults] == ["Missing or wrong type for column 'binlog_type'"]
    assert verify(changed(table, binlog_type=Column("binlog_type", t.UInt32)))[0].column == "binlog_type"
    assert verify(changed(table, extra=Column("extra", t.Int32)))[0].column == "extra"


def test_what_releases_differ_in_is_accepted() -> None:
    table = NDB_REPLICATION_TABLE
    assert verify(changed(table, conflict_fn=None)) == []
    assert verify(changed(table, conflict_fn=Column("conflict_fn", t.VarBinary(255), nullable=True))) == []
    assert verify(changed(table, binlog_row_slice_count=Column("binlog_row_slice_count", t.UInt32, True))) == []
    assert verify(changed(table, binlog_row_slice_id=Column("binlog_row_slice_id", t.Int32, True))) != []
    index = SYSTEM_TABLES["mysql.ndb_binlog_index"]
    assert verify(changed(index, inserts=Column("inserts", t.UInt64))) == [], "BIGINT before 6.3"
    assert verify(changed(table, db=Column("db", t.VarBinary(30)))) != []


def test_every_option_has_a_valid_default_and_a_name_of_its_own() -> None:
    names = [option.name for option in OPTIONS]
    assert len(set(names)) == len(names)
    values = settings({})
    assert list(values) == names
    assert values["log_update_as_write"] is True and values["log_bin"] is None
    assert Options().epoch_interval_ms == 100, "what the sizing of extra bits assumes"


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("binlog_cache_size", 1 << 20, "1 MiB"),
        ("ignore_server_ids", [3, 2, 3], (2, 3)),
        ("ignore_server_ids", 9, (9,)),
        ("conflict_role", "primary", Role.PRIMARY),
        ("conflict_role", 3, Role.PASS),
        ("log_bin", "mysql-bin", "mysql-bin"),
        ("sync_binlog", 0, 0),
    ],
)
def test_values_are_kept_in_one_form(name: str, value: object, kept: object) -> None:
    assert validate(name, value) == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_rows", 1),
        ("sync_binlog", True),
        ("sync_binlog", -1),
        ("server_id", 70_000),
        ("binlog_cache_size", "1 kB"),
        ("binlog_cache_size", 10),
        ("ignore_server_ids", [0]),
        ("ignore_server_ids", "2"),
        ("conflict_role", "BOTH"),
        ("conflict_role", True),
        ("log_bin", "a/b"),
        ("log_bin", ""),
        ("log_rows", None),
    ],
)
def test_bad_value_is_refused_naming_the_option(name: str, value: object) -> None:
    with pytest.raises(SchemaInvalid) as caught:
        validate(name, value)
    assert name in caught.value.message and caught.value.evidence["option"] == name


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(SchemaInvalid, match="did you mean sync_binlog"):
        validate("sync_binlogs", 1)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("log_rows", "off", False),
        ("log_rows", "1", True),
        ("binlog_cache_size", "4 MiB", "4 MiB"),
        ("binlog_cache_size", "8192", "8 KiB"),
        ("ignore_server_ids", "3, 2", (2, 3)),
        ("ignore_server_ids", "", ()),
        ("log_bin", "none", None),
        ("conflict_role", "1", Role.SECONDARY),
        ("row_slice_count", "4", 4),
    ],
)
def test_text_of_a_command_line_becomes_the_value(name: str, text: str, value: object) -> None:
    assert parse_text(name, text) == value


@pytest.mark.parametrize(("name", "text"), [("log_rows", "yes"), ("sync_binlog", "-1"), ("ignore_server_ids", "a")])
def test_text_that_is_no_value_is_refused(name: str, text: str) -> None:
    with pytest.raises(SchemaInvalid):
        parse_text(name, text)


def test_start_of_a_channel_is_no_option_of_the_table() -> None:
    """Story: `tidemark replicate -o skip_start=on` took the name from the table of options and ended with TypeError,
    because the command itself says whether the channel is started.
    """
    with pytest.raises(SchemaInvalid, match="there is no option 'skip_start'"):
        parse_text("skip_start", "on")


def test_options_that_exclude_each_other_are_refused_together() -> None:
    with pytest.raises(SchemaInvalid, match="version 1"):
        settings({"log_transaction_id": True, "log_bin_use_v1_row_events": True})
    with pytest.raises(SchemaInvalid, match="row_slice_id"):
        settings({"row_slice_count": 2, "row_slice_id": 2})


# --- made with the store ----------------------------------------------------------------------------
NAMES = [table.name for table in MADE_WITH_STORE]


def test_store_that_does_not_replicate_pays_nothing_and_its_tables_have_the_numbers_they_had() -> None:
    with open_memory() as db:
        assert db.tables() == [] and db.tables(system=True) == sorted(NAMES)
        assert all(name in db for name in NAMES) and "mysql.ndb_replication" not in db
        assert db.status()["tables"] == {}
        db.create_table("t", [Column("id", t.Int64)], "id")
        assert db["t"].definition.table_id == 1


@pytest.mark.parametrize("name", NAMES)
def test_table_of_the_system_is_there_when_it_is_named_and_ever_after(name: str) -> None:
    files = MemoryFiles()
    with open_memory(files) as db:
        assert len(db[name]) == 0
        assert verify(db[name].definition) == []
        assert list(db.status()["tables"]) == [name] and db.tables() == []
    with open_memory(MemoryFiles(files.disk)) as db:
        assert list(db.status()["tables"]) == [name]
        db.checkpoint()
    with open_memory(MemoryFiles(files.disk)) as db:
        assert list(db.status()["tables"]) == [name] and db.check()["is_sound"]


def test_rows_are_written_and_read_by_the_same_calls_also_in_a_transaction_that_names_the_table_first() -> None:
    with open_memory() as db:
        users = db.create_table("t", [Column("id", t.Int64)], "id")
        with db.transaction() as txn:
            txn.insert("t", (1,))
            txn.insert("mysql.ndb_apply_status", (7, 55, "binlog.000001", 4, 120))
            assert txn.get("mysql.ndb_apply_status", 7).epoch == 55
        db["mysql.ndb_apply_status"].update(7, {"epoch": 56})
        assert db["mysql.ndb_apply_status"][7] == (7, 56, "binlog.000001", 4, 120)
        assert len(users) == 1 and db["mysql.ndb_schema"].definition.table_id > 1


def test_threads_that_name_a_table_at_once_get_the_same_one() -> None:
    with open_memory() as db:
        start = threading.Barrier(4)

        def name_it(number: int) -> None:
            start.wait()
            db["mysql.ndb_apply_status"].insert((number, 1, "f", 1, 1))

        at_once(name_it, range(4))
        assert len(db["mysql.ndb_apply_status"]) == 4


CHANGES = {
    "drop": lambda db, name: db.drop_table(name),
    "rename": lambda db, name: db.rename(name, "main.mine"),
    "rename to": lambda db, name: db.rename("t", name),
    "add column": lambda db, name: db.add_column(name, Column("x", t.Int8, nullable=True)),
    "drop column": lambda db, name: db.drop_column(name, "epoch"),
    "rename column": lambda db, name: db.rename_column(name, "epoch", "x"),
    "default": lambda db, name: db.set_default(name, "epoch", 3),
    "widen": lambda db, name: db.widen_column(name, "File", VarChar(300)),
    "index": lambda db, name: db.create_index(name, "x", "epoch"),
    "drop index": lambda db, name: db.drop_index(name, "x"),
    "add partition": lambda db, name: db.add_partition(name, "p", 3),
    "drop partition": lambda db, name: db.drop_partition(name, "p"),
}


@pytest.mark.parametrize("is_made", [True, False], ids=["made", "not made"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_tables_that_belong_to_the_store_are_not_changed(change: Callable[[Any, str], None], is_made: bool) -> None:
    with open_memory() as db:
        db.create_table("t", [Column("id", t.Int64)], "id")
        if is_made:
            made = [make(db.parts.store, name) for name in NAMES]
            assert [make(db.parts.store, name) for name in NAMES] == made
        for name in NAMES:
            with pytest.raises(SchemaInvalid, match="belongs to every store"):
                change(db, name)
        assert db.tables() == ["main.t"]
        assert (list(db.status()["tables"]) == ["main.t", *NAMES]) is is_made


def test_restore_makes_a_table_of_the_system_itself_but_with_its_definition_only() -> None:
    with open_memory() as db:
        table = SYSTEM_TABLES["mysql.ndb_schema"]
        wrong = [replace(column, type=t.Int8) if column.name == "epoch" else column for column in table.columns]
        with pytest.raises(SchemaInvalid, match="Missing or wrong type for column 'epoch'"):
            db.create_table(table.name, wrong, table.primary_key)
        db.create_table(table.name, table.columns, table.primary_key)
        with pytest.raises(TableExists):
            db.create_table(table.name, table.columns, table.primary_key)
        assert len(db[table.name]) == 0


def test_replication_table_is_made_by_one_call_and_is_the_users_own() -> None:
    with open_memory() as db:
        table = db.create_replication_table()
        assert verify(table.definition) == [] and table.definition.name == "mysql.ndb_replication"
        table.insert((b"d?", b"t%", 0, 7, b"NDB$MAX(x)"))
        assert db["mysql.ndb_replication"].get((b"d?", b"t%", 0)).conflict_fn == b"NDB$MAX(x)"
        with pytest.raises(TableExists):
            db.create_replication_table()
        db.add_column("mysql.ndb_replication", Column("binlog_row_slice_count", t.UInt32, nullable=True))
        db.drop_table("mysql.ndb_replication")
        with pytest.raises(NoSuchTable):
            db["mysql.ndb_replication"]


def test_changes_of_tables_that_belong_to_the_store_are_in_no_view_that_cannot_make_them(tmp_path: Path) -> None:
    with tm.open(tmp_path / "s", data_memory="64 MiB", redo_log="4 MiB", background=False) as db:
        db.checkpoint()
        with tm.open(tmp_path / "s", read_only=True, data_memory="64 MiB") as view:
            assert view.tables(system=True) == []
            with pytest.raises(NoSuchTable):
                view["mysql.ndb_schema"]
            len(db["mysql.ndb_schema"])
            db.checkpoint()
            view.refresh()
            assert view.tables(system=True) == ["mysql.ndb_schema"] and len(view["mysql.ndb_schema"]) == 0
    assert tm.database.check_store(tmp_path / "s", data_memory="64 MiB")["is_sound"]
