"""The report of page fill: its numbers are those of the extents, and its picture is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tidemark as tm
from tests.disk.space_stage import RESERVE, SETTLE, steps
from tests.store.support import open_memory
from tidemark.cli.commands import commands
from tidemark.database import Database
from tidemark.engine.disk import cache_layout as d
from tidemark.engine.disk.extents_kernels import join_tablespace
from tidemark.engine.memory import arena_layout as a
from tidemark.report import draw_space

SIZES: dict[str, Any] = {"page_size": "4 KiB", "extent": "16 KiB"}
PAYLOAD = 512 - 16


def half_filled() -> Database:
    """Two extents: each page of the first has 99 words left, the first page of the second 495."""
    db = open_memory()
    db.create_tablespace("main", 5 * (16 << 10), **SIZES)
    db.create_table("t", [tm.Column("id", tm.Int64)], primary_key="id", partition=tm.HashPartition(1))
    db.create_table("memory", [tm.Column("id", tm.Int64)], primary_key="id")
    store = db.parts.store
    table = store.tables.named("t")
    assert join_tablespace(store.mem, table.handle, store.space.named("main").address, 90, 0) == a.OK
    out = np.zeros(1, dtype=np.int64)
    for number in range(5):
        steps(store.mem, np.array([RESERVE, table.fragments[0], PAYLOAD - 1, 0]), out)
        page = int(out[0])
        assert page == 1 << d.FILE_SHIFT | (number + 1)
        steps(store.mem, np.array([SETTLE, page, PAYLOAD - 1, 99 if number < 4 else 495]), out)
    return db


def test_report_counts_extents_by_matrix_and_pages_by_fill() -> None:
    report = half_filled().space_report()
    assert list(report["tables"]) == ["main.t"]
    assert report["tablespaces"]["main"]["free_extents"] == 3
    table = report["tables"]["main.t"]
    assert table["extents"] == 2
    # 396 of 1984 words are free, a fifth is floor(396.8): row 3; 99 words hold any row of 90: column 1.
    assert table["matrix"] == [[0] * 4, [0] * 4, [0] * 4, [0, 1, 0, 0], [0] * 4]
    assert table["matrix_free_share"][3][1] == round(396 / 1984, 4)
    assert table["current"] == 1
    assert table["current_free_share"] == round((3 * PAYLOAD + 495) / 1984, 4)
    assert table["open_pages"] == {"dirty": 5, "reserved": 0, "reserved_bytes": 0}
    assert table["pages_by_fill"] == [4, 0, 0, 0, 0, 0, 0, 0, 4, 0]
    assert table["map"] == [
        {"file": 1, "page": 1, "percent_used": [80] * 4},
        {"file": 1, "page": 5, "percent_used": [0] * 4},
    ]
    assert json.loads(json.dumps(report)) == report


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_picture_of_a_report_is_written_as_its_name_says(tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"fill{suffix}"
    draw_space(half_filled().space_report(), path)
    content = path.read_bytes()
    assert content.startswith(magic)
    assert len(content) > 5_000


def test_picture_of_nothing_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    report = half_filled().space_report()
    with pytest.raises(tm.Rejected, match="svg"):
        draw_space(report, tmp_path / "fill.pdf")
    with pytest.raises(tm.Rejected, match="nothing to draw"):
        draw_space({**report, "tables": {}}, tmp_path / "fill.svg")
    assert list(tmp_path.iterdir()) == []


def test_report_command_answers_for_a_closed_store_and_for_an_open_one(tmp_path: Path) -> None:
    store = tmp_path / "store"
    options: dict[str, Any] = {"data_memory": "16 MiB", "redo_log": "2 MiB"}
    with tm.open(store, **options) as db:
        db.create_tablespace("main", "64 KiB", **SIZES)
        beside = CliRunner().invoke(commands, ["report", str(store), "--json"])
    closed = CliRunner().invoke(commands, ["report", str(store), "--json", "--data-memory", "16 MiB"])
    for result in (beside, closed):
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["tablespaces"]["main"]["extents"] == 4
    text = CliRunner().invoke(commands, ["report", str(store), "--data-memory", "16 MiB"])
    assert "free_extents" in text.stdout
