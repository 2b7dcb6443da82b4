"""Partitions on the command line: what `partitions`, `info`, `scan` and `log` show of them."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

import tidemark as tm
from tests.cli.support import document, json_lines, refused, run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tm.open(tmp_path / "store", background=False, redo_log="2 MiB", data_memory="16 MiB") as db:
        columns = [tm.Column("day", tm.Date), tm.Column("n", tm.Int32)]
        years = [(f"y{year}", datetime.date(year + 1, 1, 1)) for year in (2023, 2024)]
        db.create_table("t", columns, ("day", "n"), tm.RangePartition("day", years))
        db["t"].insert_many([(datetime.date(2024, 5, 1), n) for n in range(7)])
        db.add_partition("t", "rest", tm.MAXVALUE)
        db["t"].insert((datetime.date(2030, 1, 1), 1))
        db.drop_partition("t", "y2023")
        db.create_table("h", columns, "n", tm.KeyPartition(3, linear=True))
    return tmp_path / "store"


def test_partitions_lists_names_bounds_and_rows(store: Path) -> None:
    assert document("partitions", store, "t") == [
        {"name": "y2024", "fragment": 1, "upper": "2025-01-01", "rows": 7},
        {"name": "rest", "fragment": 2, "upper": "MAXVALUE", "rows": 1},
    ]
    text = run("partitions", store, "t").output
    assert "y2024" in text and "2025-01-01" in text and "MAXVALUE" in text
    assert [each["name"] for each in document("partitions", store, "h")] == ["p0", "p1", "p2"]
    assert "NoSuchTable" in refused("partitions", store, "x")


def test_info_says_how_rows_are_spread(store: Path) -> None:
    found = {each["name"]: (each["fragments"], each["partition"]) for each in document("info", store)["tables"]}
    assert found == {"main.t": (2, "range (day): y2024, rest"), "main.h": (3, "linear key")}


def test_scan_of_one_partition_prints_its_rows(store: Path) -> None:
    assert json_lines("scan", store, "t", "--partition", "rest") == [{"day": "2030-01-01", "n": 1}]
    both = json_lines("scan", store, "t", "--partition", "rest", "--partition", "y2024")
    assert len(both) == 8
    assert "NoSuchPartition" in refused("scan", store, "t", "--partition", "y2023")


def test_log_shows_the_whole_new_definition(store: Path) -> None:
    changes = [each["change"] for each in json_lines("log", store, "--redo") if each["kind"] == "schema"]
    altered = [change["alter"] for change in changes if "alter" in change]
    assert [each["version"] for each in altered] == [2, 3]
    assert [part["name"] for part in altered[1]["partition"]["partitions"]] == ["y2024", "rest"]
    assert json.dumps(altered[0]["partition"]["partitions"][2]) == '{"name": "rest", "number": 2, "upper": [null]}'
