"""Tables as mappings, names of tables and columns as they are given, and what a prompt shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import client_of, open_memory

COLUMNS = [tm.Column("id", tm.Int64), tm.Column("name", tm.VarChar(20)), tm.Column("stock", tm.Int32, default=0)]


@pytest.fixture
def here() -> tm.Database:
    db = open_memory()
    db.create_table("item", COLUMNS, "id").insert_many([(1, "pen", 10), (2, "cup", 5)])
    return db


@pytest.fixture(params=["here", "remote"])
def db(request: pytest.FixtureRequest, here: tm.Database) -> Iterator[Any]:
    """The store, and the same one as another process sees it."""
    if request.param == "here":
        yield here
        return
    with client_of(here) as remote:
        yield remote


# --- tables as mappings --------------------------------------------------------------------------
def test_keys_of_several_columns(db: Any) -> None:
    columns = [tm.Column("year", tm.Int16), tm.Column("number", tm.Int32), tm.Column("note", tm.Text)]
    order = db.create_table("order", columns, ["year", "number"])
    order[2026, 1] = (2026, 1, "first")
    order[[2026, 2]] = {"number": 2, "year": 2026, "note": "second"}
    with pytest.raises(tm.Rejected, match=r"the row with key tuple \(2026, 3\) cannot replace that with key tuple"):
        order[2026, 4] = (2026, 3, "third")
    del order[2026, 1]
    assert [tuple(row) for row in order] == [(2026, 2, "second")]


# --- names of columns ----------------------------------------------------------------------------
def test_one_str_is_one_partition(here: tm.Database) -> None:
    by_year = tm.RangePartition("year", [("old", 2025), ("now", 2026)])
    sale = here.create_table("sale", tm.Column("year", tm.Int16), "year", by_year)
    sale.insert_many([(2024,), (2025,)])
    assert list(sale.scan(partitions="now")) == [(2025,)]
    with pytest.raises(tm.NoSuchPartition, match="did you mean now"):
        sale.scan(partitions="nov")


def test_a_table_of_one_column(db: Any) -> None:
    seen = db.create_table("seen", tm.Column("id", tm.Int64), "id")
    seen[5] = (5,)
    assert list(seen) == [(5,)]
    for wrong in ("id", 7, None, [7]):
        with pytest.raises(tm.SchemaInvalid, match="columns"):
            db.create_table("other", wrong, "id")
    with pytest.raises(tm.SchemaInvalid, match="primary_key must be a name or a list of names, got int 5"):
        db.create_table("other", COLUMNS, 5)


# --- names of tables -----------------------------------------------------------------------------
def test_one_rule_of_names(here: tm.Database, db: Any) -> None:
    """`"item" in db` was False while `db["item"]` worked; a remote store raised InvalidName for `"a/b" in db`."""
    stores: list[Any] = [db]
    with here.snapshot() as snapshot:
        if db is here:
            stores.append(snapshot)
        for store in stores:
            assert "item" in store and "main.item" in store
            assert store["item"].name == store["main.item"].name == store.table("item").name == "main.item"
            for name in ("items", "test.item", "a/b", "", ".", "x" * 65, "main.a.b", 5, None, ("item",), ["item"]):
                assert name not in store
                with pytest.raises((tm.NoSuchTable, tm.InvalidName)):
                    _ = store[name]
        assert ("mysql.ndb_apply_status" in db) and ("mysql.nothing" not in db)


# --- what a prompt shows -------------------------------------------------------------------------
def test_reprs(here: tm.Database, tmp_path: Path) -> None:
    item = here["item"]
    assert repr(item) == "<tidemark table main.item: 2 rows of id, name, stock>"
    assert repr(item.scan()) == "<tidemark scan of main.item>"
    scan = item.scan(["id"], 3, where=tm.col("id") > 1)
    assert repr(scan) == f"<tidemark scan of main.item: columns=['id'], where={tm.col('id') > 1!r}, limit=3>"
    assert repr(here) == "<tidemark store in memory, open>"
    with here.snapshot() as snapshot:
        assert repr(snapshot) == f"<tidemark snapshot of epoch {snapshot.epoch}>"
    assert repr(snapshot) == f"<tidemark snapshot of epoch {snapshot.epoch}, closed>"
    wide = here.create_table("wide", [tm.Column(f"c{number}", tm.Int8) for number in range(11)], "c0")
    assert repr(wide) == "<tidemark table main.wide: 0 rows of c0, c1, c2, c3, c4, c5, c6, c7 and 3 more>"
    here.drop_table("wide")
    assert repr(wide) == "<tidemark table main.wide, dropped>"
    here.close()
    assert (repr(here), repr(item)) == ("<tidemark store in memory, closed>", "<tidemark table main.item>")
    with tm.open(tmp_path / "s", redo_log="16 MiB", background=False) as stored:
        stored.checkpoint()
        assert repr(stored) == f"<tidemark store '{tmp_path / 's'}', open>"
        with tm.open(tmp_path / "s", read_only=True) as view:
            assert repr(view) == f"<tidemark store '{tmp_path / 's'}', read-only, open>"


def test_reprs_of_a_remote_store(here: tm.Database) -> None:
    with client_of(here) as remote:
        assert repr(remote) == "<tidemark store of another process, open>"
        shown = repr(remote["item"].scan("id", where=tm.col("id") == 1))
        assert shown == f"<tidemark scan of main.item of another process: columns='id', where={tm.col('id') == 1!r}>"
        assert remote["item"]._repr_html_().count("<tr>") == 3
    assert repr(remote) == "<tidemark store of another process, closed>"


def test_html_has_the_first_ten_rows_and_reads_no_more(here: tm.Database) -> None:
    item = here["item"]
    item.insert_many([{"id": number, "name": f"<b>{number}</b>"} for number in range(3, 100)])
    read: list[int] = []
    scan = item.scan(["name"], where=tm.col("id") > 2, progress=lambda done, total, unit: read.append(done))
    html = scan._repr_html_()
    assert html is not None and html.count("<td>") == 10 and html.count("<td>&lt;b&gt;") == 10 and "<b>" not in html
    assert read == [] and len(list(scan)) == 97, "the scan has not begun"
    shown = item._repr_html_()
    assert shown is not None and shown.count("<tr>") == 11 and "<th>stock</th>" in shown and "99 rows" in shown
    few = item.scan(limit=2)._repr_html_()
    assert few is not None and few.count("<tr>") == 3
    with here.transaction() as txn:
        assert txn.scan("item", lock="exclusive")._repr_html_() is None, "to look locks nothing"
    store = here._repr_html_()
    assert store is not None and "<td>main.item</td><td>99</td><td>id, name, stock</td>" in store
    with here.snapshot() as snapshot:
        assert "<td>main.item</td><td>id, name, stock</td>" in snapshot._repr_html_()
        shown = snapshot["item"]._repr_html_()
        assert shown is not None and shown.count("<tr>") == 11
    here.close()
    assert here._repr_html_() is None and item._repr_html_() is None and scan._repr_html_() is None


def test_html_cuts_long_values(here: tm.Database) -> None:
    columns = [
        tm.Column("id", tm.Int64),
        tm.Column("t", tm.Text),
        tm.Column("b", tm.Blob),
        tm.Column("n", tm.Int8, True),
    ]
    here.create_table("big", columns, "id").insert((1, "x" * 100_000, b"\0" * 100_000, None))
    html = here["big"]._repr_html_()
    assert html is not None and len(html) < 1_000 and "…" in html and "<td>NULL</td>" in html
