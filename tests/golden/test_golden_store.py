"""Stores written by each format version: they open with every row, and this program still writes the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.golden import make
from tests.recovery.support import units
from tidemark.engine.disk.disk_layout import DP_ENTRIES, ENTRY_MASK, PIECE_CHUNK
from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION
from tidemark.engine.types.base import families
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tools.format_document import fingerprint

ARCHIVES = sorted(make.FOLDER.glob("store-format-*.tar.xz"))


def manifest_of(archive: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(archive.with_suffix("").with_suffix(".json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_golden_store_opens_with_every_row_and_continues(archive: Path) -> None:
    manifest = manifest_of(archive)
    files = MemoryFiles.from_snapshot(make.unpack(archive))
    db = make.open_golden(files)
    assert make.tables_of(db) == manifest["tables"]
    assert db.restart_report["lcp_id"] == 2 and db.restart_report["fallbacks"] == 0
    assert db.restart_report["groups"] > 1, "nothing was replayed"
    db["golden.lines"].insert(("order 77", 1, 2, "after"))
    db.checkpoint()
    expected = make.tables_of(db)
    again = make.open_golden(files.kill())
    assert make.tables_of(again) == expected


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_golden_store_opens_from_its_older_checkpoint_and_its_log(archive: Path) -> None:
    contents = make.unpack(archive)
    del contents["lcp/control-2"]
    db = make.open_golden(MemoryFiles.from_snapshot(contents))
    assert make.tables_of(db) == manifest_of(archive)["tables"]
    assert db.restart_report["lcp_id"] == 1


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_golden_store_on_a_real_disk_opens_with_every_row(archive: Path, tmp_path: Path) -> None:
    for name, content in make.unpack(archive).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    for _ in range(2):
        with tm.open(tmp_path, **{**make.OPTIONS, "create": False}) as db:
            assert make.tables_of(db) == manifest_of(archive)["tables"]


def test_program_writes_the_golden_bytes_of_its_format() -> None:
    archive = make.archive_name(FORMAT_VERSION)
    held = make.unpack(archive)
    made, manifest = make.build()
    made = {name: content for name, content in made.items() if not name.endswith("/")}
    advice = (
        "the bytes have changed: if a store of the program before still opens and the fingerprint is the same, run"
        " `python -m tests.golden.make`; otherwise raise FORMAT_VERSION first"
    )
    assert sorted(made) == sorted(held), advice
    for name, content in made.items():
        differing = next(
            (at for at, pair in enumerate(zip(content, held[name], strict=False)) if len(set(pair)) > 1), -1
        )
        assert content == held[name], f"{name} differs at {differing}; {advice}"
    assert manifest == manifest_of(archive), advice


def test_golden_store_of_this_format_has_the_fingerprint_of_this_program() -> None:
    assert manifest_of(make.archive_name(FORMAT_VERSION))["fingerprint"] == fingerprint()


def test_golden_store_holds_everything_there_is_to_read() -> None:
    contents = make.unpack(make.archive_name(FORMAT_VERSION))
    assert {name for name in contents if "/control-" in name} == {"lcp/control-1", "lcp/control-2"}
    for lcp_id in (1, 2):
        copies = contents[f"lcp/{lcp_id}-copies.data"]
        assert sum(size for _, size in units(copies)) > 1_000, "no old rows were copied"

        assert f"lcp/{lcp_id}-extents.data" in contents
    pages = np.frombuffer(contents["space/1.data"], dtype=np.int64).reshape(-1, 512)[1:]
    heads = [page[int(word) & ENTRY_MASK] for page in pages for word in page[512 - int(page[DP_ENTRIES]) :]]
    assert sum(bool(head & PIECE_CHUNK) for head in heads) > 2, "no disk part is chained"
    on_disk = {column.name: column.type for column in make.ON_DISK if column.storage == "disk"}
    assert on_disk.keys() == make.TYPES.keys()
    db = make.open_golden(MemoryFiles.from_snapshot(contents))
    phases = {each["name"]: each["rows"] for each in db.restart_report["phases"]}
    assert phases["undo"] > 5, "no page was undone"
    assert db.check()["problems"] == []

    later = {type(kind) for kind in (tm.UUID, tm.JSON)}  # than the archive
    assert {type(kind) for kind in make.TYPES.values()} == set(families()) - later
