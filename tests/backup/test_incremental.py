"""Incremental backups one by one: fragments without changes, schema changes, timelines, unfinished backups."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import content, content_of, restored, small_batches, take
from tests.backup.test_damage import PowerOff, off
from tests.store.support import open_memory
from tidemark.backup import restore
from tidemark.recovery.backup.manifest import find_backups, read_manifest
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

ROOM = {"data_memory": "64 MiB", "redo_log": "64 MiB", "undo_log": "64 MiB", "page_buffer": "1 MiB"}


def small(**options: object) -> tm.Database:
    db = open_memory(None, **options)
    db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(20))], "id", tm.HashPartition(2))
    db["test.t"].insert_many([(key, f"n{key}") for key in range(300)])
    return db


def test_unchanged_fragment_gets_no_file() -> None:
    db, place = small(), MemoryFiles()
    take(db, place)
    report = take(db, place, incremental=True)
    assert (report["written_rows"], report["written_bytes"]) == (0, 0)
    assert place.list("2") == ("manifest",)
    db["test.t"].delete(7)
    report = take(db, place, incremental=True)
    assert report["written_rows"] == 0
    assert len(place.list("3")) == 2  # one fragment's level file, with its dead row, and the manifest
    assert content_of(restored(place)) == content(db)
    db.close()


def chains_of(place: MemoryFiles, number: int) -> Any:
    return read_manifest(place, number).levels.values()


def test_schema_changes_between_backups_come_back() -> None:
    db, place = small(), MemoryFiles()
    take(db, place)
    db.add_column("test.t", tm.Column("extra", tm.Int32, default=4))
    db.create_table("test.u", [tm.Column("id", tm.Int64)], "id")
    db["test.u"].insert((1,))
    take(db, place, incremental=True)
    db["test.t"].update(5, {"extra": 9})
    db.rename("test.t", "test.renamed")
    db.drop_table("test.u")
    take(db, place, incremental=True)
    db["test.renamed"].update(6, {"extra": 8})  # its levels are in the folders of two names
    take(db, place, incremental=True)
    assert {"test.renamed", "test.t"} in [{each.table for each in levels} for levels in chains_of(place, 4)]
    want = content(db)
    assert want["test.renamed"][0][-1] in (4, 9)
    assert content_of(restored(place)) == want
    db.close()


def test_column_added_while_a_backup_runs_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch, 20)
    for storage in ("memory", "disk"):
        db, place = open_memory(None, data_memory="64 MiB", redo_log="16 MiB", page_buffer="1 MiB"), MemoryFiles()
        columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64, storage=storage)]
        db.create_table("test.t", columns, "id", tm.HashPartition(1))
        db["test.t"].insert_many([(key, key) for key in range(200)])
        want = content(db)
        calls = [0]

        def between(*_: object, calls: list[int] = calls, db: tm.Database = db) -> None:
            calls[0] += 1
            if calls[0] == 2:
                db.add_column("test.t", tm.Column("extra", tm.VarChar(9), default="new"))
            db["test.t"].update(calls[0] * 13 % 200, {"n": -1})

        take(db, place, progress=between)
        options = {"data_memory": "64 MiB", "page_buffer": "1 MiB"}
        assert content_of(restored(place, **options), **options) == want
        take(db, place, incremental=True)
        assert content_of(restored(place, **options), **options) == content(db)
        db.close()


def test_store_that_went_back_to_an_earlier_epoch_gets_a_full_backup(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", background=False) as db:
        db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
        db["test.t"].insert_many([(key, 0) for key in range(50)])
        earlier = db.sync()
        db["test.t"].write_many([(key, 1) for key in range(50)])
        db.backup(tmp_path / "place")
    with tm.open(tmp_path / "store", through=earlier, background=False) as db:
        db["test.t"].insert((50, 2))
        report = db.backup(tmp_path / "place", incremental=True)
        assert report["kind"] == "full" and report["notes"]
        want = content(db)
    restore(tmp_path / "place", tmp_path / "copy")
    with tm.open(tmp_path / "copy", background=False) as copy:
        assert content(copy) == want


@pytest.mark.parametrize("call", [4, 7, 11])
def test_full_disk_leaves_no_backup_and_the_next_one_uses_what_is_whole(call: int) -> None:
    db = open_memory(None, data_memory="64 MiB", redo_log="16 MiB")
    for name in "abcdef":
        db.create_table(f"test.{name}", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
        db[f"test.{name}"].insert_many([(key, key) for key in range(100)])
    place = MemoryFiles()
    with pytest.raises(tm.StorageFull):
        take(db, FaultFiles(place, [Rule("pwrite", nth=call, error=errno.ENOSPC)]))
    found = find_backups(place)
    assert (found.manifests, found.unfinished, found.damaged) == ([], [1], {})
    with pytest.raises(tm.FileMissing):
        restored(place)
    for name in "abcdef":
        db[f"test.{name}"].write_many([(key, -key) for key in range(50, 120)])
        db[f"test.{name}"].delete_many(list(range(20)))
    report = take(db, place)
    assert report["resumed_files"] > 0
    assert content_of(restored(place, data_memory="64 MiB"), data_memory="64 MiB") == content(db)
    db.close()


@pytest.mark.parametrize("pattern", ["*-test.b/1/*.parquet", "1/2-*.level"])
@pytest.mark.parametrize("fault", ["failed sync", "killed"])
def test_file_of_an_interrupted_backup_is_synced_before_it_is_a_level(fault: str, pattern: str) -> None:
    """Story: the sync of a file failed, or its process was killed before it. The next backup read the whole file back
    from the cache, and its manifest named it. Power was lost, and the backup could not be restored.
    """
    db, place = open_memory(), MemoryFiles()
    for name in "ab":
        db.create_table(f"test.{name}", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
        db[f"test.{name}"].insert_many([(key, key) for key in range(100)])
    how: dict[str, Any] = {"error": errno.EIO} if fault == "failed sync" else {"stall": off}
    with pytest.raises((PowerOff, tm.SyncFailed)):
        take(db, FaultFiles(place, [Rule("fdatasync", pattern, **how)]))
    killed = place.kill()
    assert take(db, killed)["resumed_files"] > 0
    assert content_of(restored(killed.image(lambda piece: False))) == content(db)
    db.close()
