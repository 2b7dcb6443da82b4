"""Tablespaces dropped while their pages are in memory, on their way to the disk, or in the double-write file."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import open_memory
from tidemark.database import Database
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles

SIZES: dict[str, Any] = {"page_size": "4 KiB", "extent": "16 KiB"}
WITH_DISK = [tm.Column("id", tm.Int64), tm.Column("v", tm.VarChar(900), storage="disk")]


def fill(db: Database, table: str, tablespace: str, rows: int) -> None:
    """A table with `rows` rows on dirty pages in memory."""
    db.create_table(table, WITH_DISK, "id", tablespace=tablespace)
    db[table].insert_many([(key, table * 200) for key in range(rows)])


def assert_sound(db: Database, **expected: int) -> None:
    assert {name.removeprefix("main."): len(db[name]) for name in db.tables()} == expected
    for name in expected:
        assert [row.v for row in db[name].scan()] == [name * 200] * expected[name]
    assert db.check()["problems"] == []


def test_tablespace_dropped_with_dirty_pages_in_memory_leaves_the_store_usable() -> None:
    # Story: its dirty pages stayed in the cache. The next thread to clean it, a commit in another table, found no data
    # file for them and failed the store.
    files = MemoryFiles()
    db = open_memory(files)
    db.create_tablespace("a", 1, **SIZES)
    db.create_tablespace("b", 1, **SIZES)
    fill(db, "y", "b", 0)
    fill(db, "x", "a", 50)
    db.drop_table("x")
    db.drop_tablespace("a")
    db["y"].insert_many([(key, "y" * 200) for key in range(1_000)])
    db.checkpoint()
    assert_sound(db, y=1_000)
    db.close()
    assert_sound(open_memory(files.kill()), y=1_000)


def test_store_opens_when_the_double_write_file_ends_with_pages_of_a_dropped_tablespace() -> None:
    # Story: opening checks each page of the last batch. A page of a tablespace dropped since is in no data file, and
    # that was PageDamaged: the store could not be opened any more.
    files = MemoryFiles()
    db = open_memory(files)
    db.create_tablespace("a", 1, **SIZES)
    db.create_tablespace("b", 1, **SIZES)
    fill(db, "y", "b", 10)
    fill(db, "x", "a", 10)
    db.checkpoint()
    db.drop_table("x")
    db.drop_tablespace("a")
    for image in (files.kill(), files.image(lambda piece: False), files.image(lambda piece: True)):
        assert_sound(open_memory(image), y=10)
    db.checkpoint()
    db.checkpoint()
    assert files.list("space") == ("2.data",)
    assert_sound(open_memory(files.kill()), y=10)


def test_batch_interrupted_by_a_full_disk_is_finished_before_its_tablespace_is_dropped() -> None:
    # Story: the page writer keeps such a batch to write it again before the next one, here into a file that would be
    # gone.
    plan = Plan([Rule("pwrite", "space/*", once=False, error=errno.ENOSPC)])
    plan.is_over = True
    disk = MemoryFiles()
    files: Any = FaultFiles(disk, plan)
    db = open_memory(files)
    db.create_tablespace("a", 1, **SIZES)
    db.create_tablespace("b", 1, **SIZES)
    fill(db, "x", "a", 10)
    fill(db, "y", "b", 10)
    plan.is_over = False
    with pytest.raises(tm.StorageFull):
        db.checkpoint()
    db.drop_table("x")
    with pytest.raises(tm.StorageFull):
        db.drop_tablespace("a")
    assert db.tablespaces() == ["a", "b"]
    plan.is_over = True
    db.drop_tablespace("a")
    db.checkpoint()
    assert_sound(db, y=10)
    assert_sound(open_memory(disk.kill()), y=10)


def test_tablespace_in_use_by_a_running_checkpoint_is_not_dropped() -> None:
    # The checkpoint has the table, so it has to write its dirty pages: they may not be forgotten before.
    files = MemoryFiles()
    db = open_memory(files, undo_filter=False)
    db.create_tablespace("a", 1, **SIZES)
    fill(db, "x", "a", 50)
    caught: list[str] = []

    def drop(done: int, total: int, unit: str) -> None:
        if caught:
            return
        db.drop_table("x")
        with pytest.raises(tm.TablespaceInUse):
            db.drop_tablespace("a")
        caught.append(unit)

    epoch = db.checkpoint(drop)["epoch"]
    assert caught
    db.drop_tablespace("a")
    db.close()
    with_x = MemoryFiles.from_snapshot(files.snapshot())
    assert open_memory(files.kill()).tablespaces() == []
    assert_sound(open_memory(with_x, epoch), x=50)


@pytest.mark.parametrize("seed", range(4))
def test_tablespace_dropped_and_made_again_by_the_same_name_survives_checkpoints_and_crashes(seed: int) -> None:
    rng = random.Random(seed)
    files = MemoryFiles()
    db = open_memory(files, page_buffer="100 KiB")
    db.create_tablespace("kept", 1, **SIZES)
    fill(db, "kept", "kept", 100)
    for turn in range(12):
        size = rng.choice(["4 KiB", "8 KiB"])
        db.create_tablespace("a", 1, page_size=size, extent="64 KiB")
        fill(db, "x", "a", rows := rng.choice([0, 3, 100, 300]))
        if rng.random() < 0.5:
            db.checkpoint()
            db["x"].update_many({"id": list(range(rows)), "v": ["x" * 200] * rows})
        if rng.random() < 0.4:
            sum(1 for _ in db["x"].scan())
        db.drop_table("x")
        if rng.random() < 0.3:
            db.checkpoint()
        db.drop_tablespace("a")
        if rng.random() < 0.3:
            db.checkpoint()
        db["kept"].update_many({"id": list(range(100)), "v": ["kept" * 200] * 100})
        assert_sound(db, kept=100)
        if rng.random() < 0.5:
            files = files.crash(rng, rng.choice(CRASH_POLICIES))
            db.close()
            db = open_memory(files, page_buffer="100 KiB")
            assert db.tablespaces() == ["kept"], f"seed {seed}, turn {turn}"
            assert_sound(db, kept=100)
