"""What `check --replication` reports: wrong system tables, inactive functions, rows that match nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.cli.support import SMALL, document, held_open, run
from tests.store.support import open_memory
from tidemark.engine import types as t
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.types import VarChar
from tidemark.replication.settings.check import Peer, ReplicationReport, check
from tidemark.replication.settings.match import ReplicationRow
from tidemark.replication.settings.setup import SiteSettings
from tidemark.replication.settings.system_tables import NDB_REPLICATION_TABLE, SYSTEM_TABLES

MAIN = TableDefinition(
    1, 1, "d.t", (Column("id", t.Int64), Column("stamp", t.UInt64), Column("name", VarChar(9))), ("id",)
)
EXCEPTIONS = TableDefinition(
    2,
    1,
    "d.t$EX",
    (
        *(Column("server_id", t.UInt32), Column("source_server_id", t.UInt32), Column("source_epoch", t.UInt64)),
        *(Column("count", t.UInt32), Column("id", t.Int64)),
    ),
    ("server_id", "source_server_id", "source_epoch", "count"),
)
SITE = SiteSettings(1)
EVERYTHING = (*SYSTEM_TABLES.values(), MAIN, EXCEPTIONS)


def report(
    *rows: ReplicationRow, tables: Iterable[TableDefinition] = EVERYTHING, site: SiteSettings = SITE, **more: Any
) -> ReplicationReport:
    return check({each.name: each for each in tables}, rows, site, **more)


def row(function: str | None, table: str = "t", database: str = "d", server_id: int = 0, binlog_type: int = 7) -> Any:
    return ReplicationRow(database, table, server_id, binlog_type, function)


def test_sound_site_has_nothing_to_report() -> None:
    found = report(row("NDB$MAX(stamp)"))
    assert (found.problems, found.notes) == ([], [])
    assert found.tables == [
        {
            "table": "d.t",
            "row": "d.t:0",
            "logged": "updates as updates, full images",
            "function": "NDB$MAX(stamp)",
            "exceptions": "d.t$EX",
        }
    ]
    assert found.to_dict()["is_sound"] is True


def test_tables_of_the_system_are_compared_with_their_definitions() -> None:
    wrong = replace(NDB_REPLICATION_TABLE, primary_key=("db", "table_name"), partition=tm.HashPartition())
    found = report(tables=[wrong, MAIN])
    assert len(found.problems) == 1 and "Wrong number of primary key parts, expected 3" in found.problems[0]
    assert sum("made when it is first used" in note for note in found.notes) == 5
    assert any("create_replication_table()" in note for note in report(tables=[MAIN]).notes)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row("NDB$MAX(nothing)")], "d.t: Could not find resolve column nothing."),
        ([row("NDB$MAX(id)")], "Column 'id' has wrong datatype"),
        ([row("NDB$SOMETHING(x)")], "Error in parsing conflict function"),
        ([row("NDB$EPOCH2()", binlog_type=2)], "configured to log updates as writes"),
        ([row("NDB$EPOCH_TRANS()")], "version 1"),
        ([row(None, server_id=70_000)], "server id 70000, which is invalid"),
    ],
)
def test_function_that_is_not_active_is_a_problem(rows: list[ReplicationRow], words: str) -> None:
    found = report(*rows, site=replace(SITE, use_v1_row_events=True))
    assert any(words in problem for problem in found.problems), found


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row("NDB$EPOCH(2)")], "expect false conflicts"),
        ([row("NDB$EPOCH(0)")], "low epoch resolution"),
        ([row("NDB$EPOCH2()")], "conflict role is NONE"),
        ([row("NDB$MAX(stamp)", binlog_type=8)], "leaves columns out"),
        ([row("NDB$MAX(stamp)", binlog_type=2)], "updates are logged as writes, which NDB$MAX at another site refuses"),
        ([row("NDB$OLD(stamp)", binlog_type=3)], "updates are logged as writes, which NDB$OLD at another site refuses"),
        ([row("NDB$MAX_DELETE_WIN(stamp)", binlog_type=0)], "updates are logged as writes"),
        ([row("NDB$MAX(stamp)", binlog_type=6)], "deletes are logged with their keys alone"),
        ([row("NDB$MAX_INS(stamp)", binlog_type=2)], "deletes are logged with their keys alone"),
        ([row(None, binlog_type=5)], "binlog_type 5 is not used"),
        ([row(None, table="nobody")], "row d.nobody:0 of mysql.ndb_replication matches no table"),
        ([row("NDB$MAX(stamp)", table="t%"), row(None, table="%t")], "Ambiguous"),
    ],
)
def test_what_works_otherwise_than_one_may_think_is_a_note(rows: list[ReplicationRow], words: str) -> None:
    found = report(*rows)
    assert found.problems == [] and any(words in note for note in found.notes), found


@pytest.mark.parametrize(
    ("function", "binlog_type"),
    [("NDB$MAX_INS", 3), ("NDB$MAX_DEL_WIN_INS", 2), ("NDB$MAX_DELETE_WIN", 6), ("NDB$OLD", 7), ("NDB$MAX", 7)],
)
def test_way_of_logging_that_suffices_is_no_note(function: str, binlog_type: int) -> None:
    assert report(row(f"{function}(stamp)", binlog_type=binlog_type)).notes == []


def test_site_without_an_id_learns_how_to_give_it() -> None:
    assert any("check --replication -o server_id=N" in note for note in report(site=SiteSettings(0)).notes)


def test_row_for_another_server_is_about_a_table_there_is() -> None:
    assert report(row(None, server_id=9)).notes == []


def test_exceptions_table_is_reported_once_and_by_its_name() -> None:
    narrow = replace(EXCEPTIONS, columns=(*EXCEPTIONS.columns[:3], Column("count", t.Int8), EXCEPTIONS.columns[4]))
    found = report(row("NDB$MAX(stamp)"), tables=[*SYSTEM_TABLES.values(), MAIN, narrow])
    assert found.problems == ["d.t$EX: exceptions table t$EX has wrong definition (initial 4 columns)"]
    assert found.notes == []
    assert found.tables[0]["exceptions"] is None
    alone = report(tables=[*SYSTEM_TABLES.values(), EXCEPTIONS])
    assert alone.notes == ["exceptions table d.t$EX has no table to record conflicts of"]


def test_sites_and_channels_are_held_against_each_other() -> None:
    rows = [row("NDB$EPOCH(6)")]
    assert "server_id is 0" in report(site=SiteSettings(0)).notes[0]
    assert "both sites have server_id 1" in report(peer=Peer(1)).problems[0]
    both = report(*rows, peer=Peer(2, rows)).problems
    assert len(both) == 1 and "row d.t:0 here" in both[0] and "at server 2" in both[0]
    assert report(*rows, peer=Peer(2)).problems == []
    several = report(*rows, channels=["east", "west"]).problems
    assert len(several) == 1 and "east, west" in several[0]


def fill(db: tm.Database) -> None:
    db.create_table(MAIN.name, MAIN.columns, MAIN.primary_key)
    db.create_table(EXCEPTIONS.name, EXCEPTIONS.columns, EXCEPTIONS.primary_key)
    db.create_replication_table().insert((b"d", b"t", 0, 7, b"NDB$EPOCH(6)"))


def test_open_store_is_looked_at_with_its_own_rows_and_given_options() -> None:
    with open_memory() as db:
        fill(db)
        found = db.check_replication(server_id=4)
        assert found["server_id"] == 4 and found["is_sound"]
        assert found["tables"][0]["function"] == "NDB$EPOCH(6)"
        assert list(db.status()["tables"]) == ["d.t", "d.t$EX", "mysql.ndb_replication"], "looking makes no table"
        with pytest.raises(tm.SchemaInvalid, match="did you mean server_id"):
            db.check_replication(server_di=4)


def test_open_store_is_looked_at_with_its_own_options(tmp_path: Path) -> None:
    """Story: a store opened with server_id=1 was reported to have server_id 0."""
    with tm.open(tmp_path / "a", server_id=1, data_memory="16 MiB") as db:
        fill(db)
        found = db.check_replication()
        assert found["server_id"] == 1 and found["is_sound"] and not any("server_id" in each for each in found["notes"])
        assert db.check_replication(server_id=2)["server_id"] == 2


def test_exceptions_table_says_when_it_is_made_what_is_wrong_with_it_and_from_when_it_counts(caplog: Any) -> None:
    with open_memory() as db:
        db.create_table(EXCEPTIONS.name, EXCEPTIONS.columns, EXCEPTIONS.primary_key)
        assert caplog.messages == []
        db.create_table("d.u", MAIN.columns, MAIN.primary_key)
        db.create_table("d.u$EX", EXCEPTIONS.columns[:4], EXCEPTIONS.primary_key)
        assert "mandatory column count  doesn't have the 'NDB$' prefix" in caplog.messages[0]
        assert "takes effect at the next set-up of d.u" in caplog.messages[-1]


def test_command_line_looks_at_a_closed_store_at_an_open_one_and_at_its_peer(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with tm.open(tmp_path / name, **SMALL) as db:
            fill(db)
            db.checkpoint()
    store, peer = tmp_path / "a", tmp_path / "b"
    found = document("check", store, "--replication", "-o", "server_id=3")
    assert found["is_sound"] and found["server_id"] == 3
    with held_open(store):
        assert document("check", store, "--replication", "-o", "server_id=3")["tables"] == found["tables"]
    result = run("check", store, "--replication", "-o", "server_id=3", "--peer", peer, 5)
    assert result.exit_code == 1 and result.stdout.startswith("problem: NDB$EPOCH of row d.t:0 here")
    assert result.stdout.splitlines()[-1] == "1 problem"
    assert run("check", store, "-o", "server_id=3").exit_code == 2
    assert run("check", store, "--replication", "-o", "server_id").exit_code == 2
    assert "did you mean" in run("check", store, "--replication", "-o", "server_if=3").stderr
