"""`db.load_sqlite` and `load --sqlite`: types inferred, keys, indexes, and rows that do not fit."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.cli.support import SMALL, document, refused, run
from tidemark import sqlite_load

SHOP = """
create table customer (
    id integer primary key, name varchar(40) not null, email text unique, born date, seen datetime, wakes time,
    is_member boolean not null default 1, credit decimal(10, 2) default '0.50', photo blob, weight real, note text
);
create index customer_name on customer (name, born desc);
create index customer_low on customer (lower(name));
create index customer_some on customer (email) where email is not null;
create table line (order_id int, position int, amount numeric(8, 3), primary key (order_id, position)) without rowid;
create table log (line text);
create table mixed (id integer primary key, anything, whole int);
create view names as select name from customer;
insert into customer values
    (1, 'ann', 'a@x', '2001-02-03', '2026-11-21 22:05:00', '07:30:00', 1, 12.5, x'00ff', 1.5, null),
    (2, 'ünal', 'b@x', null, '2026-11-21T22:05:00.250', '07:30:00.5', 0, 3, null, 2, 'long'),
    (3, 'cy', null, '1999-12-31', null, null, 1, 0.07, x'', null, '');
insert into line values (1, 1, 2.125), (1, 2, 7), (2, 1, -0.5);
insert into log values ('first'), ('second');
insert into mixed values (1, 1, 1), (2, 2, 2), (3, 2.5, 3);
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return made(tmp_path / "shop.db", SHOP)


def made(path: Path, script: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "store", **SMALL) as opened:
        yield opened


def types(db: tm.Database, table: str) -> dict[str, str]:
    return {each.name: repr(each.type) for each in db[table].definition.columns}


def test_types_keys_indexes_and_values_are_those_of_sqlite(db: tm.Database, shop: Path) -> None:
    report = db.load_sqlite(shop)
    assert db.tables() == ["main.customer", "main.line", "main.log", "main.mixed"]
    assert types(db, "customer") == {
        "id": "Int64", "name": "VarChar(40)", "email": "VarChar(255)", "born": "Date", "seen": "DateTime",
        "wakes": "Time", "is_member": "Bool", "credit": "Decimal(10, 2)", "photo": "Blob", "weight": "Float64",
        "note": "Text",
    }  # fmt: skip
    customer = db["customer"]
    assert tuple(customer[1]) == (
        1, "ann", "a@x", datetime.date(2001, 2, 3), datetime.datetime(2026, 11, 21, 22, 5), datetime.time(7, 30), True,
        Decimal("12.50"), b"\x00\xff", 1.5, None,
    )  # fmt: skip
    assert customer[2].seen == datetime.datetime(2026, 11, 21, 22, 5, 0, 250_000) and customer[2].weight == 2.0
    assert (customer[3].credit, customer[3].photo, customer[3].note) == (Decimal("0.07"), b"", "")
    columns = {each.name: each for each in customer.definition.columns}
    assert not columns["name"].nullable and columns["email"].nullable and columns["is_member"].default is True
    assert columns["credit"].default == Decimal("0.50")
    assert {(each["name"], each["unique"]) for each in customer.indexes()} == {
        ("unique_email", True),
        ("customer_name", False),
    }
    with pytest.raises(tm.DuplicateKey):
        customer.insert({"id": 9, "name": "x", "email": "a@x"})
    assert db["line"].definition.primary_key == ("order_id", "position")
    assert db["line"].get((1, 1)).amount == Decimal("2.125")
    assert types(db, "log") == {"rowid": "Int64", "line": "Text"} and db["log"][2].line == "second"
    assert types(db, "mixed") == {"id": "Int64", "anything": "Float64", "whole": "Int64"}
    told = {each["source"]: each for each in report["tables"]}
    assert {name: each["rows"] for name, each in told.items()} == {"customer": 3, "line": 3, "log": 2, "mixed": 3}
    notes = " ".join(told["customer"]["notes"])
    assert "customer_low is over an expression" in notes and "customer_some is partial" in notes
    assert "no primary key" in told["log"]["notes"][0]
    assert report["skipped"] == {"names": "it is a view"} and report["bad"] == []
    assert db.check()["problems"] == []


BAD = """
create table pen (id integer primary key, stock int, made date, price decimal(6, 2), name varchar(5));
insert into pen values (1, 5, '2026-01-01', 1.25, 'a'), (2, 'many', '2026-01-02', 1, 'b'), (3, 7, '2026-02-31', 1, 'c'),
    (4, 8, '2026-01-04', 1.255, 'd'), (5, 9, '2026-01-05', 99999999, 'longer than five'), (6, 1, '2026-01-06', 6, 'f');
create table ok (id integer primary key);
insert into ok values (1);
"""
MISFITS = [
    {"table": "pen", "rowid": 2, "column": "stock", "value": "many", "why": "is no Int64"},
    {"table": "pen", "rowid": 3, "column": "made", "value": "2026-02-31", "why": "is no Date"},
    {"table": "pen", "rowid": 4, "column": "price", "value": 1.255, "why": "is no Decimal(6, 2)"},
    {"table": "pen", "rowid": 5, "column": "price", "value": 99999999, "why": "is no Decimal(6, 2)"},
]


def test_value_that_does_not_fit_raises_before_anything_is_made(db: tm.Database, tmp_path: Path) -> None:
    path = made(tmp_path / "bad.db", BAD)
    with pytest.raises(tm.TypeMismatch, match="pen, rowid 2, column stock: str 'many' is no Int64; change") as raised:
        db.load_sqlite(path)
    assert {name: raised.value.evidence[name] for name in ("table", "rowid", "column", "value")} == {
        name: MISFITS[0][name] for name in ("table", "rowid", "column", "value")
    }
    assert db.tables() == []


def test_rows_that_do_not_fit_are_reported_and_the_rest_is_loaded(db: tm.Database, tmp_path: Path) -> None:
    report = db.load_sqlite(made(tmp_path / "bad.db", BAD), on_error="report")
    assert report["bad"] == MISFITS
    assert sorted(row.id for row in db["pen"]) == [1, 6] and len(db["ok"]) == 1
    (pen,) = [each for each in report["tables"] if each["source"] == "pen"]
    assert (pen["rows"], pen["bad_rows"]) == (2, 4)
    assert types(db, "pen")["name"] == "VarChar(16)"
    assert any("name is declared varchar(5), and its longest text has 16" in note for note in pen["notes"])


def test_text_that_is_no_utf8_is_a_misfit_of_its_row(db: tm.Database, tmp_path: Path) -> None:
    path = made(
        tmp_path / "octets.db",
        "create table t (id integer primary key, name text);"
        "insert into t values (1, 'a'), (2, cast(x'ff41' as text)), (3, 'c');",
    )
    with pytest.raises(tm.TypeMismatch, match="t, rowid 2, column name"):
        db.load_sqlite(path)
    assert db.tables() == []
    report = db.load_sqlite(path, on_error="report")
    assert sorted(row.id for row in db["t"]) == [1, 3] and [each["rowid"] for each in report["bad"]] == [2]


def test_null_in_a_key_is_a_misfit(db: tm.Database, tmp_path: Path) -> None:
    path = made(
        tmp_path / "null.db", "create table t (k text primary key); insert into t values ('a'), (null), (null);"
    )
    with pytest.raises(tm.TypeMismatch, match="t, rowid 2, column k: NoneType None is in the primary key"):
        db.load_sqlite(path)
    assert db.load_sqlite(path, on_error="report")["tables"][0]["bad_rows"] == 2
    assert [row.k for row in db["t"]] == ["a"]


def test_numbers_and_moments_go_on_as_sqlite_gave_them(db: tm.Database, tmp_path: Path) -> None:
    """Story: AUTOINCREMENT was dropped in silence, CURRENT_TIMESTAMP with a note: the program's next insert failed.
    Later, it failed for the keys that SQLite numbers without this word, INTEGER PRIMARY KEY and the rowid.
    """
    path = made(
        tmp_path / "bills.db",
        """
        create table bill (
            id integer primary key autoincrement, made datetime not null default current_timestamp,
            day date default (current_date), cents int
        );
        create table plain (id integer primary key, cents int default 7);
        create table keyless (cents int);
        create table text (id int primary key, cents int);
        create table descending (id integer primary key desc, cents int);
        create table rowless (id integer primary key, cents int) without rowid;
        insert into bill (cents) values (1), (2), (3);
        delete from bill where id = 3;
        insert into plain values (-9, 0), (1, 1), (7, 1);
        insert into keyless values (1), (2);
        """,
    )
    report = db.load_sqlite(path)
    notes = {each["source"]: each["notes"] for each in report["tables"]}
    assert [name for name, said in notes.items() if said] == ["keyless"]
    assert [each.default for each in db["bill"].columns[:3]] == [tm.autoincrement, tm.now, tm.now]
    assert db["bill"].insert({"cents": 4}) == 4, "3 was given, and its row deleted"
    assert isinstance(db["bill"][4].made, datetime.datetime) and isinstance(db["bill"][4].day, datetime.date)
    assert [db["plain"].insert({"cents": 1}), db["plain"].insert({"id": None})] == [8, 9]
    assert db["plain"][-9].cents == 0 and db["plain"][9].cents == 7
    assert db["keyless"].insert({"cents": 3}) == 3
    old = sqlite3.connect(path)
    numbers = [old.execute(f"insert into {name} (cents) values (5)").lastrowid for name in ("bill", "plain", "keyless")]
    assert numbers == [4, 8, 3], "SQLite gives the same"
    old.close()
    for table in ("text", "descending", "rowless"):
        with pytest.raises(tm.NotNullViolation):
            db[table].insert({"cents": 1})


def test_declared_type_wins_if_half_of_the_values_fit(db: tm.Database, tmp_path: Path) -> None:
    script = "create table t (id integer primary key, n int); insert into t values (1, 5), (2, 'five');"
    path = made(tmp_path / "half.db", script)
    report = db.load_sqlite(path, on_error="report")
    assert types(db, "t")["n"] == "Int64" and [each["value"] for each in report["bad"]] == ["five"]


def test_many_rows_come_in_batches(db: tm.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_load, "BATCH_ROWS", 500)
    path = tmp_path / "many.db"
    connection = sqlite3.connect(path)
    connection.execute("create table t (id integer primary key, v text)")
    connection.executemany("insert into t values (?, ?)", [(n, f"v {n}") for n in range(60_000)])
    connection.commit()
    connection.close()
    seen: list[tuple[int, str]] = []
    report = db.load_sqlite(path, "t", progress=lambda done, total, unit: seen.append((done, unit)))
    assert report["tables"][0]["rows"] == len(db["t"]) == 60_000
    assert seen[-1] == (60_000, "rows of t") and db["t"][59_999].v == "v 59999"


def test_odd_names_and_empty_tables(db: tm.Database, tmp_path: Path) -> None:
    path = made(
        tmp_path / "odd.db",
        """create table "a b" ("select" int primary key, "x""y{c}" text, rowid int); create table empty (id int, t);
        insert into "a b" values (1, 'v', 2); create table "no.way" (id integer primary key);""",
    )
    report = db.load_sqlite(path, database="old")
    assert tuple(db["old.a b"][1]) == (1, "v", 2)
    assert types(db, "old.empty") == {"rowid": "Int64", "id": "Int64", "t": "Text"}
    assert list(report["skipped"]) == ["no.way"]
    with pytest.raises(tm.InvalidName):
        db.load_sqlite(path, "no.way", database="other")


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda db, shop: db.load_sqlite(shop, "custmer"), tm.NoSuchTable, "did you mean customer?"),
        (lambda db, shop: db.load_sqlite(shop, "names"), tm.NoSuchTable, "it is a view"),
        (lambda db, shop: db.load_sqlite(shop, on_error="skip"), tm.SchemaInvalid, "'raise' or 'report'"),
        (lambda db, shop: db.load_sqlite(shop.parent / "none.db"), tm.FileMissing, "check the path"),
        (lambda db, shop: db.load_sqlite(__file__), tm.Rejected, "SQLite says file is not a database"),
    ],
)
def test_what_cannot_be_loaded_is_named(db: tm.Database, shop: Path, call: Any, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        call(db, shop)
    db.load_sqlite(shop, "log")
    with pytest.raises(tm.TableExists, match=r"main\.log exists"):
        db.load_sqlite(shop)
    assert db.tables() == ["main.log"]


# --- the command line -----------------------------------------------------------------------------
def test_command_makes_the_store_and_prints_what_it_inferred(shop: Path, tmp_path: Path) -> None:
    result = run("load", tmp_path / "new", "--sqlite", shop)
    assert result.exit_code == 0, result.output
    for part in ("main.customer: 3 rows loaded", "decimal(10, 2)", "Decimal(10, 2)", "unique_email (email) unique",
                 "note: index customer_low", "left out: names: it is a view"):  # fmt: skip
        assert part in result.stdout, result.stdout
    assert "TableExists" in refused("load", tmp_path / "new", "--sqlite", shop, "--table", "log")


def test_command_lists_rows_that_do_not_fit(tmp_path: Path) -> None:
    path = made(tmp_path / "bad.db", BAD)
    assert "TypeMismatch: pen, rowid 2, column stock" in refused("load", tmp_path / "new", "--sqlite", path)
    result = run("load", tmp_path / "new", "--sqlite", path, "--on-error", "report")
    assert "main.pen: 2 rows loaded, 4 rows left out" in result.stdout
    assert "left out: pen, rowid 2, column stock: many is no Int64" in result.stdout
    found = document("load", tmp_path / "other", "--sqlite", path, "--on-error", "report", "--table", "pen")
    assert len(found["bad"]) == 4 and [each["table"] for each in found["tables"]] == ["main.pen"]


def test_options_of_files_and_of_sqlite_exclude_each_other(shop: Path, tmp_path: Path) -> None:
    for line in (("t", "--sqlite", shop), ("--sqlite", shop, "--bulk"), ("--table", "t"), ("--on-error", "report")):
        result = run("load", tmp_path / "new", *line)
        assert result.exit_code == 2 and "--sqlite" in result.stderr and not (tmp_path / "new").exists()
