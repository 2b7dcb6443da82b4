"""`Database.set_conflict_function`: the row, the exceptions table, and what it refuses before anything is written."""

from __future__ import annotations

import logging

import pytest

import tidemark as tm
from tests.replication.test_channel_stores import site
from tests.store.support import client_of, open_memory

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("at", tm.VarChar(9)),
    tm.Column("version", tm.UInt64),
    tm.Column("note", tm.VarChar(20), nullable=True),
]
OPTIONS = {"log_apply_status": True, "log_transaction_id": True}


def stock(db: tm.Database, name: str = "shop.stock") -> tm.TableHandle:
    return db.create_table(name, COLUMNS, ["id", "at"])


def rows(db: tm.Database) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in db["mysql.ndb_replication"].scan())


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("NDB$EPOCH_TRANS", b"NDB$EPOCH_TRANS()"),
        (" NDB$EPOCH ( 8 ) ", b"NDB$EPOCH(8)"),
        ("NDB$MAX(version)", b"NDB$MAX(version)"),
        ("TM$GREATEST( version )", b"TM$GREATEST(version)"),
        (None, None),
    ],
)
def test_row_is_written_once_and_changed(given: str | None, stored: bytes | None) -> None:
    with site(1) as db:
        stock(db)
        db.set_conflict_function("shop.stock", "NDB$OLD(version)", exceptions=True)
        db.set_conflict_function("shop.stock", given)
        assert rows(db) == [(b"shop", b"stock", 1, 7, stored)]
        assert db.check_replication()["problems"] == []
        assert [each["exceptions"] for each in db.check_replication()["tables"]] == ["shop.stock$EX"]


def test_exceptions_table_has_cause_operation_transaction_and_key() -> None:
    with site(1) as db:
        stock(db)
        db.set_conflict_function("shop.stock", "NDB$EPOCH_TRANS", exceptions=True)
        found = db["shop.stock$EX"].definition
        assert [column.name for column in found.columns] == [
            *("NDB$server_id", "NDB$master_server_id", "NDB$master_epoch", "NDB$count"),
            *("NDB$OP_TYPE", "NDB$CFT_CAUSE", "NDB$ORIG_TRANSID", "id", "at"),
        ]
        db.set_conflict_function("shop.stock", "NDB$EPOCH", exceptions=True)  # it is there: nothing to create


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        ("ndb$epoch_tran", tm.SchemaInvalid, "did you mean NDB$EPOCH_TRANS?"),
        ("NDB$EPOCH_TRANSX()", tm.SchemaInvalid, "there is no conflict function 'NDB$EPOCH_TRANSX'"),
        ("NDB$MAX", tm.SchemaInvalid, 'give "NDB$MAX(version)"'),
        ("NDB$MAX()", tm.SchemaInvalid, "missing function argument"),
        ("NDB$MAX(versoin)", tm.NoSuchColumn, "did you mean version?"),
        ("NDB$MAX(id)", tm.SchemaInvalid, "columns that fit are version"),
        ("NDB$EPOCH(99)", tm.SchemaInvalid, "Too many extra Gci bits"),
        (7, tm.SchemaInvalid, "must be text"),
    ],
)
def test_wrong_function_is_refused_and_nothing_is_written(function: str, kind: type[tm.Error], words: str) -> None:
    with site(1) as db:
        stock(db)
        with pytest.raises(kind, match=".*") as refused:
            db.set_conflict_function("shop.stock", function, exceptions=True)
        assert words in refused.value.message
        assert db.tables(system=True).count("shop.stock$EX") == 0 and "mysql.ndb_replication" not in db


def test_table_must_exist_and_fit() -> None:
    with site(1) as db:
        with pytest.raises(tm.NoSuchTable):
            db.set_conflict_function("shop.stock", "NDB$EPOCH")
        db.create_table("shop.note", [tm.Column("id", tm.Int64), tm.Column("text", tm.Text)], "id")
        with pytest.raises(tm.SchemaInvalid, match="Blob column"):
            db.set_conflict_function("shop.note", "NDB$EPOCH")
        stock(db)
        db.set_conflict_function("shop.stock", "NDB$EPOCH", exceptions=True)
        with pytest.raises(tm.SchemaInvalid, match="has no conflict function"):
            db.set_conflict_function("shop.stock$EX", "NDB$EPOCH")


def test_exceptions_table_of_another_form_is_refused_if_one_is_asked_for() -> None:
    with site(1) as db:
        stock(db)
        db.create_table("shop.stock$EX", [tm.Column("id", tm.Int64)], "id")
        with pytest.raises(tm.SchemaInvalid, match="drop the table, it is made again"):
            db.set_conflict_function("shop.stock", "NDB$EPOCH", exceptions=True)


def test_store_without_a_server_id_is_refused() -> None:
    with open_memory() as db:
        stock(db)
        with pytest.raises(tm.Rejected, match="open it with server_id=N"):
            db.set_conflict_function("shop.stock", "NDB$EPOCH")


def test_row_in_another_case_is_changed_and_two_are_refused() -> None:
    with site(1) as db:
        stock(db)
        table = db.create_replication_table()
        table.insert((b"SHOP", b"Stock", 1, 2, None))
        db.set_conflict_function("shop.stock", "NDB$EPOCH")
        assert rows(db) == [(b"SHOP", b"Stock", 1, 7, b"NDB$EPOCH()")]
        table.insert((b"shop", b"STOCK", 1, 2, None))
        with pytest.raises(tm.SchemaInvalid, match="name one table; delete all but one"):
            db.set_conflict_function("shop.stock", None)


def test_row_that_matches_another_table_too_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with site(1) as db:
        stock(db, "shop.in_stock")
        stock(db, "shop.in2stock")
        with caplog.at_level(logging.WARNING, "tidemark"):
            db.set_conflict_function("shop.in_stock", "NDB$EPOCH", exceptions=True)
        assert "shop.in_stock also matches shop.in2stock" in caplog.text


def test_table_that_is_not_logged_is_refused() -> None:
    """The log has no before-images of its earlier changes, so a new way of logging could not write them."""
    with site(1) as db:
        db.create_replication_table().insert((b"shop", b"%", 0, 1, None))
        stock(db)
        with pytest.raises(tm.Rejected, match="binlog_type 1"):
            db.set_conflict_function("shop.stock", "NDB$EPOCH")
        assert len(rows(db)) == 1


def test_way_of_logging_changes_at_once() -> None:
    """An update is logged as a write by default; NDB$MAX at the other site would refuse each one as an insert."""
    with site(1, **OPTIONS) as a, site(2, **OPTIONS) as b, tm.Channel(a, b) as channel:
        stock(a).insert((1, "here", 1, None))
        a.parts.clockwork.advance_epoch()
        channel.apply_all()
        for db in (a, b):
            db.set_conflict_function("shop.stock", "NDB$MAX(version)", exceptions=True)
        a["shop.stock"].update((1, "here"), {"version": 2})
        a.parts.clockwork.advance_epoch()
        channel.stop()
        channel.apply_all()
        assert b["shop.stock"][1, "here"].version == 2
        assert len(b["shop.stock$EX"]) == 0


def test_open_transaction_meets_the_new_way_of_logging() -> None:
    with site(1, **OPTIONS) as a, site(2, **OPTIONS) as b, tm.Channel(a, b) as channel:
        stock(a).insert((1, "here", 1, None))
        with a.transaction() as txn:
            txn.update("shop.stock", (1, "here"), {"version": 2})
            a.set_conflict_function("shop.stock", "NDB$EPOCH", exceptions=True)
            txn.update("shop.stock", (1, "here"), {"note": "twice"})
        a.parts.clockwork.advance_epoch()
        channel.apply_all()
        assert tuple(b["shop.stock"][1, "here"]) == (1, "here", 2, "twice")
        assert a.check_binlog()["is_sound"]


def test_rows_of_exceptions_tables_stay_at_their_site() -> None:
    """What an application deleted in an exceptions table was deleted at the other sites too: user changes of it were
    logged like those of any table, and only rows of an applier were not.
    """
    with site(1) as a, site(2) as b, tm.Channel(a, b) as channel:
        stock(a)
        a.set_conflict_function("shop.stock", "NDB$EPOCH", exceptions=True)
        a.parts.clockwork.advance_epoch()
        channel.apply_all()
        row = {"NDB$server_id": 1, "NDB$master_server_id": 2, "NDB$master_epoch": 3, "NDB$count": 1, "id": 1, "at": "x"}
        row |= {"NDB$OP_TYPE": "WRITE_ROW", "NDB$CFT_CAUSE": "DATA_IN_CONFLICT"}
        for db in (a, b):
            db["shop.stock$EX"].insert(row)
        a["shop.stock$EX"].delete((1, 2, 3, 1))
        a["shop.stock$EX"].insert({**row, "NDB$count": 2})
        stock_row = (5, "here", 1, None)
        a["shop.stock"].insert(stock_row)
        a.parts.clockwork.advance_epoch()
        channel.apply_all()
        assert tuple(b["shop.stock"][5, "here"]) == stock_row
        assert [each[3] for each in b["shop.stock$EX"].scan()] == [1]
        assert a.check_binlog()["is_whole"]


def test_other_process_sets_it_too() -> None:
    with site(1) as db, client_of(db) as remote:
        stock(db)
        remote.set_conflict_function("shop.stock", "NDB$EPOCH", exceptions=True)
        assert rows(db) == [(b"shop", b"stock", 1, 7, b"NDB$EPOCH()")]
