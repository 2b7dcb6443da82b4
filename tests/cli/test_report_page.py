"""`report -o`: the page is well-formed, needs nothing from elsewhere, and has each section, at rest and under load."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import tidemark as tm
from tests.cli.support import SMALL, held_open, run
from tidemark.cli.report_page import page
from tidemark.engine.files.directory import PosixFiles
from tidemark.replication.node_group.view import Member, Record, View
from tidemark.replication.node_group.view_file import ViewFile


def sections(text: str) -> dict[str, str]:
    """The words of each section of a page, which must be well-formed and self-contained."""
    doctype, _, rest = text.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    assert not re.search(r"https?:|//|url\(|@import|<script|<link| src=", rest)
    root = ElementTree.fromstring(rest)
    assert "prefers-color-scheme: dark" in rest and "viewport" in rest
    found = {each.attrib["id"]: " ".join(" ".join(each.itertext()).split()) for each in root.iter("section")}
    assert tuple(found) == ("activity", "restart", "memory", "disk", "log", "flight", "conflicts", "group")
    for each in root.iter("rect"):  # no bar leaves its picture
        assert all(float(each.attrib[name]) >= 0 for name in ("x", "y", "width", "height"))
    return found


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A store with disk columns, an index, refused rows and a node's view; its last opening replays the log."""
    place = tmp_path / "shop & co"
    with tm.open(place, **SMALL, undo_log="16 MiB", page_buffer="4 MiB") as db:
        columns = [tm.Column("id", tm.Int64), tm.Column("note", tm.VarChar(90), storage="disk")]
        table = db.create_table("test.note", columns, "id")
        table.insert_many([(key, "x" * 80) for key in range(3_000)])
        db.create_index("test.note", "by_id", ["id"])
        db.checkpoint()
        table.delete_many(list(range(0, 2_000, 2)))
        key = [tm.Column(name, kind) for name, kind in (("site", tm.UInt32), ("source", tm.UInt32))]
        key += [tm.Column("epoch", tm.UInt64), tm.Column("count", tm.UInt32)]
        refused = db.create_table("test.note$EX", [*key, tm.Column("id", tm.Int64)], [each.name for each in key])
        refused.insert_many([(1, 2, gci << 32 | 5, gci, gci) for gci in (10, 11, 11 + 200)])
        store = bytes.fromhex(db.status()["store"]["uuid"])
    (place / "node").mkdir()
    files = PosixFiles(place / "node")
    view = ViewFile(files, store)
    view.write(Record(store, 2, View(14, (Member(1, "10.0.0.1:7400"), Member(2, "10.0.0.2:7400")), 1)))
    view.close()
    files.close_all()
    return place


def test_page_of_a_closed_store(shop: Path, tmp_path: Path) -> None:
    result = run("report", shop, "-o", tmp_path / "page.html", "--data-memory", "64 MiB")
    assert (result.exit_code, result.output) == (0, f"written: {tmp_path / 'page.html'}\n")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = sections(text)
    assert "Tidemark: shop &amp; co" in text
    for phase in ("load", "read log", "redo", "build indexes"):
        assert re.search(rf"{phase} [\d,.]+ ms", found["restart"]), phase
    assert "local checkpoint UNDO REDO indexes other" in found["restart"]
    assert "pages of data memory" in found["memory"] and re.search(
        r"test\.note 2,000, [\d,.]+ [KM]iB, index by_id", found["memory"]
    )
    assert "Search matrix" in found["disk"] and "≥ 80 %" in found["disk"] and "Map: one line" in found["disk"]
    assert "(the tail)" in found["log"] and "UNDO log" in found["log"] and "local checkpoint" in found["log"]
    assert "3 rows in exceptions tables, by the GCI of their source; a bar is 4 GCIs" in found["conflicts"]
    assert "view 14" in found["group"] and "10.0.0.2:7400" in found["group"]
    assert "No site follows" in found["flight"]


def test_page_has_its_time_the_rate_of_commits_and_how_long_they_took(tmp_path: Path) -> None:
    """Story: the page said neither when it was made nor how busy the store was."""
    with tm.open(tmp_path / "busy", **SMALL, durability="commit") as db:
        table = db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
        for key in range(3):
            table.insert((key,))
        status: dict[str, Any] = {**db.status(), "restart": db.restart_report}
        space = db.space_report()
    status["store"]["open_seconds"] = 8.0
    status["log"] |= {"transactions_written": 4, "bytes_written": 20 * 4_096}
    buckets = [[0.001, 0], [0.01, 2], [0.1, 3]]
    status["transactions"]["commit_seconds"] = {"count": 4, "sum_seconds": 0.18, "buckets": buckets}
    text = page("busy", status, space, 1_000_000)
    assert f"Made 1970-01-01T00:00:01+00:00 by Tidemark {tm.__version__}: store" in text
    found = sections(text)["activity"]
    assert "4 commits with changes in the 8 s since the opening, 0.5 a second; 80.0 KiB of log" in found
    assert "commit that waits for the disk 4 45 ms 10 ms more than 100 ms" in found
    status["log"]["transactions_written"] = 0
    assert "No commit with changes in the 8 s" in sections(page("idle", status, space, 0))["activity"]


def test_page_of_a_store_that_another_process_has_open(store: Path, tmp_path: Path) -> None:
    with held_open(store):
        assert run("report", store, "-o", tmp_path / "page.html").exit_code == 0
    found = sections((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "when no other process has the store open" in found["conflicts"]
    assert "not a node of a group" in found["group"] and "no tablespace" in found["disk"]


def test_page_of_a_new_store_and_of_one_with_sites_and_hostile_names(tmp_path: Path) -> None:
    with tm.open(tmp_path / "new", **SMALL) as db:
        status: dict[str, Any] = {**db.status(), "restart": db.restart_report}
        space = db.space_report()
    assert "nothing to restart" in sections(page("new", status, space, 0))["restart"]
    stations = {
        name: {"epochs_on_the_way": count} for name, count in (("received", 4), ("applied", 0), ("confirmed", 6))
    }
    status["replication"] = {
        "variables": {"Ndb_conflict_fn_max": 7, "Ndb_conflict_fn_old": 0, "Ndb_conflict_last_conflict_epoch": 9},
        "lag": {"to server 2": {"lag_epochs": 10, "lag_seconds": 2.5, "stations": stations}},
        "channels": {"<b>&": {"source": "a:1", "lag": {"epochs": 0, "seconds": None}}},
    }
    status["tables"] = {'<i>"x"&': {"id": 1, "rows": 0, "memory_bytes": 0}}
    found = sections(page("<script>", status, space, 0, conflicts=[1 << 32], group=None))
    assert "10, the oldest 2.5 s old" in found["flight"] and "channel <b>& from a:1" in found["flight"]
    assert "Ndb_conflict_fn_max 7" in found["conflicts"] and "fn_old" not in found["conflicts"]
