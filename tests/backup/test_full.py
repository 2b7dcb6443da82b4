"""A full backup taken while others write is the snapshot of its epoch; a restore is the store, down to ROWIDs and
authors.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import content, content_of, restored, small_batches, take
from tests.snapshot.watched import Watched
from tests.store.support import open_memory
from tidemark.backup import backups, restore
from tidemark.engine.applied.noted_rows import tag
from tidemark.recovery.backup.manifest import read_manifest
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

ROOM = {"data_memory": "64 MiB", "redo_log": "64 MiB", "undo_log": "64 MiB", "page_buffer": "1 MiB"}
SHAPES = {
    "memory": (False, tm.HashPartition(2)),
    "disk": (True, tm.HashPartition(2)),
    "ranges": (False, tm.RangePartition("id", [("low", 70), ("middle", 140), ("rest", tm.MAXVALUE)])),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 8))])
def test_backup_during_random_writes_restores_to_the_snapshot_of_its_epoch(
    shape: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    small_batches(monkeypatch, 13)
    store = Watched(seed, *SHAPES[shape])
    store.index("by_owner", "by_text")
    for _ in range(25):
        store.transaction()
    place = MemoryFiles()

    def between(*_: Any) -> None:
        store.transaction()

    # The writer's first change comes after the backup's epoch: a restore must return the rows from before it.
    want = content(store.db)
    report = take(store.db, place, progress=between)
    assert store.db.parts.store.epochs.current > report["epoch"]
    files = restored(place, **ROOM)
    assert content_of(files, **ROOM) == want
    assert content(store.db) != want
    db = open_memory(files, **ROOM)
    assert [each["name"] for each in db.indexes(store.db.tables()[0])] == ["by_owner", "by_text"]
    table = db[store.db.tables()[0]]
    by_index = [row.owner for row in table.scan(index="by_owner")]
    assert len(by_index) == len(table) and by_index == sorted(by_index, key=lambda each: (each is not None, each))
    db.close()
    store.db.close()


def test_authors_and_epochs_of_applied_rows_come_back_and_continue() -> None:
    db = open_memory()
    db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    table = db["test.t"]
    for key in range(5):
        table.insert((key, key))
        db.sync()
    with db.transaction() as txn:
        tag(txn, 0, 7)
        txn.update("test.t", 3, {"n": 9})
    want = content(db)
    assert {row[2] for row in want["test.t"]} == {0, 7}
    place = MemoryFiles()
    report = take(db, place, server_id=41)
    assert read_manifest(place, 1).server_id == 41
    files = restored(place)
    assert content_of(files) == want
    copy = open_memory(files)
    copy["test.t"].insert((100, 1))
    copy.sync()
    (epoch,) = [row[1] for row in content(copy)["test.t"] if row[4] == 100]
    assert epoch > report["epoch"]
    copy.close()


def test_snapshot_dropped_in_the_middle_continues_from_the_next_one() -> None:
    db = open_memory(None, snapshot_memory="64 KiB", data_memory="64 MiB", redo_log="16 MiB")
    columns = [tm.Column("id", tm.Int64), tm.Column("pad", tm.Binary(200))]
    for name in ("a", "b", "c"):
        db.create_table(f"test.{name}", columns, "id")
        db[f"test.{name}"].insert_many([(key, b"x" * 200) for key in range(2_000)])
    rng = random.Random(3)
    calls = [0]

    def between(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == 4:  # more than the version store holds
            for name in ("a", "b", "c"):
                db[f"test.{name}"].write_many([(rng.randrange(2_500), b"y" * 200) for _ in range(900)])
                db[f"test.{name}"].delete_many([key for key in range(2_000, 2_100) if db[f"test.{name}"].get(key)])

    place = MemoryFiles()
    report = take(db, place, progress=between)
    assert report["attempts"] == 2
    depths = {len(levels) for levels in read_manifest(place, 1).levels.values()}
    assert depths == {1, 2}
    want = content(db)
    assert content_of(restored(place, data_memory="64 MiB"), data_memory="64 MiB") == want
    db.close()


def test_restored_store_is_another_store_with_the_numbers_of_the_first(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", background=False) as db:
        for name in ("a", "b"):
            db.create_table(f"test.{name}", [tm.Column("id", tm.Int64)], "id")
        db.drop_table("test.a")
        identity = db.status()["store"]["uuid"]
        db.backup(f"file://{tmp_path}/place")
        number = db.status()["tables"]["test.b"]["id"]
    restore(f"file://{tmp_path}/place", tmp_path / "copy")
    with tm.open(tmp_path / "copy", background=False) as copy:
        assert copy.status()["store"]["uuid"] != identity
        assert copy.status()["tables"]["test.b"]["id"] == number
        copy.create_table("test.c", [tm.Column("id", tm.Int64)], "id")
        assert copy.status()["tables"]["test.c"]["id"] > number
        with pytest.raises(tm.ForeignFile):
            copy.backup(tmp_path / "place")


def test_restore_over_anything_is_refused(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", background=False) as db:
        db.backup(tmp_path / "place")
        with pytest.raises(tm.Locked):
            restore(tmp_path / "place", tmp_path / "store")
    before = {each: each.read_bytes() for each in (tmp_path / "store").rglob("*") if each.is_file()}
    with pytest.raises(tm.Rejected, match="not empty"):
        restore(tmp_path / "place", tmp_path / "store")
    after = {each: each.read_bytes() for each in (tmp_path / "store").rglob("*") if each.is_file()}
    assert {each: text for each, text in after.items() if each.name != "LOCK"} == {
        each: text for each, text in before.items() if each.name != "LOCK"
    }


def test_two_writers_to_one_place_are_kept_apart(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", background=False) as db:
        db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
        db["test.t"].insert((1,))

        def again(*_: Any) -> None:
            with pytest.raises(tm.Locked):
                db.backup(tmp_path / "place")

        db.backup(tmp_path / "place", progress=again)
    assert len(backups(tmp_path / "place")["backups"]) == 1
