"""The command line on stores with disk columns: info, log, dump, load, check, and views of memory columns."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidemark as tm
from tests.cli.support import document, json_lines, run
from tests.store.support import SMALL

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("name", tm.VarChar(20)),
    tm.Column("number", tm.Int64, nullable=True, storage="disk"),
    tm.Column("text", tm.Text, nullable=True, storage="disk"),
]
ROWS = {key: (key, f"n {key}", None if key % 3 else key, "t" * (key * 131)) for key in range(100)}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    place = tmp_path / "store"
    with tm.open(place, **{**SMALL, "undo_log": "4 MiB"}) as db:
        db.create_tablespace("pages", "256 KiB", page_size="4 KiB", extent="64 KiB", limit="8 MiB")
        table = db.create_table("test.t", COLUMNS, "id", tablespace="pages")
        db.create_table("test.plain", COLUMNS[:2], "id")
        table.insert_many(list(ROWS.values())[:60])
        db.checkpoint()
        db.add_datafile("pages", "64 KiB")
        table.insert_many(list(ROWS.values())[60:])
        table.update(5, {"number": 77})
        table.update(5, {"number": ROWS[5][2]})
    return place


def test_info_shows_tablespaces_their_files_and_their_content(store: Path) -> None:
    found = document("info", store)
    pages = found["tablespaces"]["pages"]
    assert (pages["page_bytes"], pages["extent_bytes"]) == (4_096, 65_536)
    assert pages["autoextend"] is True and pages["limit_bytes"] == 8 << 20
    assert pages["data_files"] == {name: (store / name).stat().st_size for name in ("space/1.data", "space/2.data")}, (
        "a data file made after the local checkpoint is one too"
    )
    tables = {each["name"]: each for each in found["tables"]}
    assert (tables["test.t"]["on_disk"], tables["test.t"]["tablespace"]) == ("number, text", "pages")
    assert (tables["test.plain"]["on_disk"], tables["test.plain"]["tablespace"]) == ("", "")
    assert found["options"]["undo_log"] == "4092 KiB"
    assert "space/2.data" in run("info", store).stdout


def test_info_of_a_store_in_memory_names_no_tablespaces(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", data_memory="16 MiB", redo_log="1 MiB", background=False):
        pass
    found = document("info", tmp_path / "store")
    assert "tablespaces" not in found and "undo_log" not in found["options"]


def test_undo_log_is_listed_from_the_mark_of_the_older_checkpoint(store: Path) -> None:
    with tm.open(store, **SMALL) as db:
        for turn in range(3):
            db["test.t"].update(turn, {"text": "longer" * 300})
            db.checkpoint()
    entries = json_lines("log", store, "--undo")
    groups = [each["sequence"] for each in entries if each["kind"] == "undo group"]
    everything = json_lines("log", store, "--undo", "--from", 0)
    oldest = [each["sequence"] for each in everything if each["kind"] == "undo group"]
    assert oldest[0] == 1 and oldest[-1] == groups[-1]
    assert groups == oldest[-len(groups) :] and 1 < groups[0]
    assert entries[1]["lcp_id"] == min(each["id"] for each in document("info", store)["local_checkpoints"])


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_dump_and_load_bring_disk_columns_back(store: Path, tmp_path: Path, suffix: str) -> None:
    file, other = tmp_path / f"rows.{suffix}", tmp_path / "other"
    document("dump", store, "test.t", file)
    with tm.open(other, **{**SMALL, "undo_log": "8 MiB"}) as db:
        db.create_table("test.t", COLUMNS, "id")
    document("load", other, "test.t", file)
    with tm.open(other, **SMALL) as db:
        assert {row.id: tuple(row) for row in db["test.t"].scan()} == ROWS
        assert db.check()["problems"] == []


def test_view_reads_memory_columns_and_refuses_those_on_disk(store: Path, tmp_path: Path) -> None:
    with tm.open(store, read_only=True) as view:
        table = view["test.t"]
        found = table.to_arrow(["id", "name"]).to_pylist()
        assert {row["id"]: row["name"] for row in found} == {key: ROWS[key][1] for key in range(60)}
        for read in (lambda: table.get(5), lambda: table.to_arrow(), lambda: list(table.scan()), table.to_arrow):
            with pytest.raises(tm.Unsupported, match="name memory columns only"):
                read()
    result = run("dump", store, "test.t", tmp_path / "t.csv", "--checkpoint")
    assert result.exit_code == 1 and "name memory columns only" in result.stderr
    document("dump", store, "test.t", tmp_path / "t.csv", "--checkpoint", "--columns", "id,name")
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 61


def test_check_of_a_closed_store_looks_at_its_pages(store: Path) -> None:
    found = document("check", store)
    assert found["is_sound"] and found["pages"] > 5 and found["rows"] == 100


def test_status_of_an_open_store_shows_what_its_tablespaces_hold(store: Path) -> None:
    with tm.open(store, **{**SMALL, "background": True}):
        found = document("status", store)
    assert found["tablespaces"]["pages"]["files"].keys() == {"space/1.data", "space/2.data"}
    assert found["disk"]["undo"]["capacity_bytes"] > 0
