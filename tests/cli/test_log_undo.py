"""log --undo: groups and records of the UNDO log, as text and JSON, whole and with a group missing."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cli.support import document, flip, json_lines, refused, run
from tidemark.engine.disk.disk_layout import UNDO_ALLOC, UNDO_CREATE, UNDO_FREE, UNDO_UPDATE
from tidemark.engine.disk.undo import UndoLog
from tidemark.engine.disk.undo_kernels import append_undo, setup_undo, undo_region_words
from tidemark.engine.disk.undo_ring import UndoPosition, create_undo_files, undo_geometry
from tidemark.engine.files.directory import PosixFiles
from tidemark.recovery.system_restart.sysfile import open_copies, read_sysfile, write_sysfile

REFERENCE = 3 << 48 | 5 << 16 | 2


@pytest.fixture
def undone(store: Path) -> Path:
    """Make a store in which table 1 has an UNDO log of three groups."""
    geometry = undo_geometry(1 << 20)
    files = PosixFiles(store)
    create_undo_files(files, geometry)
    sysfile = read_sysfile(files)
    assert sysfile is not None
    write_sysfile(open_copies(files), replace(sysfile, undo_geometry=geometry, filtered_epoch=9))
    mem = np.zeros(256 + undo_region_words(2_000), dtype=np.int64)
    setup_undo(mem, 256, 2_000)
    log = UndoLog(files, geometry, mem, threading.Lock(), (sysfile.store, 1), UndoPosition(), lambda: 4)
    piece = np.array([7 << 16 | 1, 11, 12], dtype=np.int64)
    for kind, words, epoch in ((UNDO_ALLOC, 0, 4), (UNDO_UPDATE, 3, 4), (UNDO_UPDATE, 3, 5), (UNDO_FREE, 2, 5)):
        append_undo(mem, kind, REFERENCE, 1 | 2 << 32, epoch, piece, 0, words)
    log.flush_through(1 << 40)
    lsn = log.mark_lcp(6, 1 << 32)
    log.flush_through(lsn)
    log.record_table(UNDO_CREATE, 99)
    log.mark_restart(6, lsn, *log.mark_place(lsn))
    log.close()
    files.close_all()
    return store


def test_undo_lists_groups_and_records_with_their_places(undone: Path) -> None:
    entries = json_lines("log", undone, "--undo")
    assert [entry["kind"].removeprefix("undo ") for entry in entries] == (
        ["group", "alloc", "update", "free", "group", "lcp", "group", "create", "restart"]
    )
    group, alloc, update, free = entries[:4]
    assert (group["records"], group["filtered"], group["bytes"], group["position"]) == (3, 1, 4_096, 0)
    for entry in (alloc, update, free):
        assert (entry["table"], entry["fragment"]) == ("test.account", 2)
        assert (entry["data_file"], entry["page"], entry["slot"]) == (3, 5, 2)
    assert "rowid" not in alloc and (update["rowid"], update["words"]) == (7 << 16 | 1, 3)
    assert entries[5]["lcp_id"] == 6 and entries[7]["table"] == "#99"
    restart = entries[8]
    assert (restart["lcp_lsn"], restart["sequence"], restart["position"]) == (entries[5]["lsn"], 2, 4_096)


def test_undo_from_an_lsn_and_limited(undone: Path) -> None:
    entries = json_lines("log", undone, "--undo")
    assert json_lines("log", undone, "--undo", "--from", entries[5]["lsn"]) == entries[4:]
    assert json_lines("log", undone, "--undo", "--from", entries[4]["next_lsn"]) == entries[6:]
    assert json_lines("log", undone, "--undo", "--limit", 2) == entries[:2]


def test_undo_for_people_shows_epochs_and_rowids_in_parts(undone: Path) -> None:
    text = run("log", undone, "--undo").stdout
    assert "undo lcp" in text and "  epoch 1/0" in text and "  rowid 7:1" in text
    assert text.startswith("undo group  position 0  sequence 1")


def test_undo_with_a_group_gone_says_where(undone: Path) -> None:
    flip(undone / "undo" / "0000.undo", 4_096 + 200)
    entries = json_lines("log", undone, "--undo")
    assert [entry["sequence"] for entry in entries if entry["kind"] == "undo group"] == [1, 3]
    (gone,) = [entry for entry in entries if entry["kind"] == "retired"]
    assert gone["text"] == "groups 2 to 2 are overwritten or damaged"


def test_store_without_an_undo_log_lists_nothing(store: Path) -> None:
    assert json_lines("log", store, "--undo") == []
    assert document("info", store)["sizes_bytes"]["undo"] == 0


def test_missing_undo_file_is_named(undone: Path) -> None:
    (undone / "undo" / "0001.undo").unlink()
    assert "undo/0001.undo" in refused("log", undone, "--undo")
