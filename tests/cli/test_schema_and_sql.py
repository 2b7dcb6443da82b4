"""`schema` and `sql`: what tables are made of, queries of DuckDB over them, and `python -m tidemark`."""

from __future__ import annotations

import builtins
import csv
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.cli.support import ROOT, SMALL, document, json_lines, refused, run


@pytest.fixture
def indexed(store: Path) -> Path:
    with tm.open(store, **SMALL) as db:
        db.create_index("test.account", "by_owner", "owner", unique=True, ordered=True)
        db.create_index("test.account", "by_balance", ["balance", "id"])
        parts = tm.RangePartition("year", [("old", 2025), ("new", tm.MAXVALUE)])
        db.create_table("item", [tm.Column("year", tm.Int16), tm.Column("text", tm.Text)], "year", parts)
        db["item"].insert_many([(2024, "a"), (2026, "b")])
    return store


def test_schema_names_columns_keys_indexes_and_partitions(indexed: Path) -> None:
    assert [each["table"] for each in document("schema", indexed)] == ["main.item", "test.account"]
    assert "mysql.pair" in [each["table"] for each in document("schema", indexed, "--system")]
    found = document("schema", indexed, "test.account")
    columns = {each["name"]: each for each in found["columns"]}
    assert columns["id"] == {"name": "id", "type": "Int64", "nullable": False, "storage": "memory"}
    assert columns["owner"]["type"] == "VarChar(40)" and columns["note"]["nullable"] is True
    assert columns["price"]["default"] == "0.00" and columns["state"]["default"] == "open"
    assert found["primary_key"] == ["id"]
    assert found["indexes"] == [
        {"name": "by_owner", "columns": ["owner"], "unique": True, "ordered": True},
        {"name": "by_balance", "columns": ["balance", "id"], "unique": False, "ordered": True},
    ]
    shown = run("schema", indexed).stdout
    for part in ("test.account\n", "VarChar(40)", "not NULL", "by_balance (balance, id) ordered", "primary key  year"):
        assert part in shown
    assert "did you mean test.account?" in refused("schema", indexed, "test.acount")


def test_python_m_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "tidemark", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "0.1" in done.stdout


def test_query_over_several_tables_in_each_form(indexed: Path) -> None:
    query = "select a.id, i.text from test.account a join item i on a.id + 2023 = i.year order by 1"
    assert json_lines("sql", indexed, query) == [{"id": 1, "text": "a"}, {"id": 3, "text": "b"}]
    assert run("sql", indexed, query).stdout.splitlines() == ["id  text", " 1  a", " 3  b"]
    rows = list(csv.reader(io.StringIO(run("sql", indexed, query, "--csv").stdout)))
    assert rows == [["id", "text"], ["1", "a"], ["3", "b"]]
    counted = "select count(*) as n, sum(balance) as total from test.account where owner like 'owner%'"
    assert json_lines("sql", indexed, counted) == [{"n": 9, "total": sum(n / 2 for n in range(10) if n != 5) + 5.5}]
    assert json_lines("sql", indexed, "select * from mysql.pair") == [{"a": "left", "b": 2}]


def test_query_of_an_open_store_sees_what_is_there_now(indexed: Path) -> None:
    with tm.open(indexed, **SMALL | {"background": True}) as db:
        db["item"].insert((2030, "new"))
        assert json_lines("sql", indexed, "select text from item where year > 2026") == [{"text": "new"}]
        assert json_lines("sql", indexed, "select year from main.item where text = 'new'") == [{"year": 2030}]


def test_wrong_query_and_both_forms_are_one_line(indexed: Path) -> None:
    assert "CatalogException" in refused("sql", indexed, "select * from nothing")
    assert "ParserException" in refused("sql", indexed, "selct 1")
    both = run("sql", indexed, "select 1", "--csv", "--json")
    assert both.exit_code == 2 and len(both.stderr.splitlines()) == 1


def test_without_duckdb_it_says_what_installs_it(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def missing(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "duckdb":
            raise ModuleNotFoundError("No module named 'duckdb'", name=name)
        return found(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    text = refused("sql", store, "select 1")
    assert "Unsupported: sql needs DuckDB" in text and "pip install '.[duckdb]' in a checkout" in text
