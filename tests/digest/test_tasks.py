"""Comparisons in tasks over files: reports are plain values, add up in any order, and find the same."""

from __future__ import annotations

import json
import os
import random

import pytest

import tidemark as tm
from tests.digest.support import COLUMNS, ON_DISK, ON_FILES, found, naive, row_of, rows_in
from tidemark.recovery.verification.digest_tasks import diff_files, digest_fragment


def scattered(tasks):
    """As a scheduler does it: through bytes, in any order, some twice."""
    rng = random.Random(len(tasks))
    sent = [*tasks, *rng.sample(tasks, 1)]
    rng.shuffle(sent)
    for task in sent:
        plain = {name: value.hex() if isinstance(value, bytes) else value for name, value in task.items()}
        assert json.loads(json.dumps(plain)) == plain
        yield digest_fragment(task)


@pytest.fixture
def copies(tmp_path):
    """A store with a local checkpoint under which rows were copied, and its backups; what they hold."""
    with tm.open(tmp_path / "a", **ON_FILES) as db:
        db.create_table("d.t", COLUMNS, "id", tm.HashPartition(3))
        db["d.t"].insert_many([row_of(key) for key in range(3_000)])
        db.backup(tmp_path / "backups")
        first = rows_in(db)
        db["d.t"].update(5, {"number": -5})
        db["d.t"].delete(7)
        db.backup(tmp_path / "backups", incremental=True)
        db["d.t"].insert(row_of(10_000))
        db.checkpoint()
        third = rows_in(db)
        db["d.t"].insert(row_of(10_001))
    yield tmp_path, first, third


def test_backups_and_checkpoints_are_compared_in_tasks(copies):
    path, first, third = copies
    report = diff_files(path / "backups", str(path / "a"), run=scattered)
    assert found(report) == {(10_000, None, False, True)}
    report = diff_files(str(path / "backups"), str(path / "a"), numbers=(1, None), run=scattered)
    assert found(report) == naive(first, third) and not report["is_equal"]
    assert report["b"]["what"].startswith("local checkpoint")
    same = diff_files(str(path / "backups"), str(path / "backups"))
    assert same["is_equal"] and same["tables"][0]["rows_a"] == 2_999


def test_local_checkpoint_with_rows_copied_during_its_scan_is_whole(tmp_path):
    with tm.open(tmp_path / "a", **ON_FILES) as db:
        db.create_table("d.t", COLUMNS, "id", tm.HashPartition(8))
        db["d.t"].insert_many([row_of(key) for key in range(20_000)])
        was = rows_in(db)

        def change(done, total, unit):
            # In the middle of the scan: old rows go into the copies file.
            for key in (19_990, 19_991, 19_999):
                if key in db["d.t"]:
                    db["d.t"].delete(key) if key % 2 else db["d.t"].update(key, {"number": done % 1_000})

        db.checkpoint(progress=change)
        assert rows_in(db) != was
        sizes = {name: (tmp_path / "a" / "lcp" / name).stat().st_size for name in os.listdir(tmp_path / "a" / "lcp")}
        assert max(size for name, size in sizes.items() if "copies" in name) > 256
    with tm.open(tmp_path / "b", **ON_FILES) as other:
        other.create_table("d.t", COLUMNS, "id", tm.HashPartition(2))
        other["d.t"].insert_many([tuple(row.values()) for row in was.values()])
        other.backup(tmp_path / "backups")
    report = diff_files(tmp_path / "a", tmp_path / "backups")
    assert report["is_equal"], report["differences"]


def test_disk_columns_of_a_checkpoint_are_refused_and_lost_reports_noticed(tmp_path, copies):
    path, _, _ = copies
    with pytest.raises(tm.Damaged, match="gave no report"):
        diff_files(path / "backups", path / "a", run=lambda tasks: map(digest_fragment, tasks[1:]))
    with tm.open(tmp_path / "d", **ON_FILES, page_buffer="2 MiB", undo_log="16 MiB") as db:
        db.create_tablespace("pages", page_size="4 KiB", extent="64 KiB", size="8 MiB")
        db.create_table("d.t", ON_DISK, "id")
        db["d.t"].insert((1, "a", 1, "far"))
        db.checkpoint()
        db.backup(tmp_path / "disk")
    with pytest.raises(tm.Unsupported, match="disk columns"):
        diff_files(tmp_path / "d", tmp_path / "disk")
    assert diff_files(tmp_path / "disk", tmp_path / "disk")["is_equal"]
