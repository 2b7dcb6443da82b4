"""Tablespaces of a store: made, grown, dropped, found again, and refused."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.disk.space_stage import RESERVE, steps
from tests.store.support import SMALL, open_memory
from tidemark.database import Database
from tidemark.database import check_store as tm_check
from tidemark.engine.base.clock import ManualClock, SystemClock
from tidemark.engine.base.options import Options
from tidemark.engine.disk import cache_layout as d
from tidemark.engine.disk.data_file import file_name
from tidemark.engine.disk.extents_kernels import join_tablespace
from tidemark.engine.disk.tablespaces import TablespaceDefinition
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.table.fragments import fragments_of
from tidemark.engine.table.setup_kernels import make_table
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.verification.log_listing import StoreListing

SIZES: dict[str, Any] = {"page_size": "4 KiB", "extent": "16 KiB"}
EXTENT = 16 << 10


def state_of(db: Database) -> dict[str, Any]:
    return {name: dict(each) for name, each in db.status()["tablespaces"].items()}


def reopened(db: Database, files: MemoryFiles) -> tuple[Database, MemoryFiles]:
    """The store closed and opened by another process."""
    db.close()
    files = MemoryFiles(files.disk)
    return open_memory(files), files


def use_extents(db: Database, name: str, count: int) -> int:
    """Give extents to a table that is not in the schema; how many there were. They are free again after a restart."""
    store = db.parts.store
    tablespace = store.space.named(name)
    table = make_table(store.mem, np.array([999, 1, 4, 0, 1, 0, 1, 1], dtype=np.int64))
    assert join_tablespace(store.mem, table, tablespace.address, 400, 0) == a.OK
    fragment = fragments_of(store.mem, table)[0]
    payload = int(store.mem[tablespace.address + d.TS_PAYLOAD])
    found = np.zeros(1, dtype=np.int64)
    for number in range(count * tablespace.definition.extent_pages):
        steps(store.mem, np.array([RESERVE, fragment, payload - 1, 0], dtype=np.int64), found)
        if found[0] == a.ST_EXTENT:
            return number // tablespace.definition.extent_pages
        assert found[0] > 0
    return count


def test_tablespaces_made_with_files_are_the_same_after_a_restart_and_after_a_checkpoint() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    db.create_tablespace("fast", "50 KiB", **SIZES, autoextend=False)
    db.create_tablespace("main", limit="1 MiB", size="64 KiB", page_size="8 KiB", extent="64 KiB")
    db.add_datafile("fast", 1)
    assert db.tablespaces() == ["fast", "main"]
    before = state_of(db)
    assert before["fast"] == {
        "id": 1,
        "page_bytes": 4_096,
        "extent_bytes": EXTENT,
        "files": {"space/1.data": 4 * EXTENT, "space/3.data": EXTENT},
        "extents": 5,
        "free_extents": 5,
        "is_autoextending": False,
        "limit_bytes": None,
    }
    assert before["main"]["limit_bytes"] == 1 << 20
    db, files = reopened(db, files)
    assert state_of(db) == before
    db.checkpoint()
    db.add_datafile("main", "64 KiB")
    db.checkpoint()
    db.checkpoint()
    after = state_of(db)
    db, files = reopened(db, files)
    assert state_of(db) == after
    db.create_tablespace("third", **SIZES, size=1)
    assert state_of(db)["third"]["id"] == 3
    assert list(state_of(db)["third"]["files"]) == ["space/5.data"]


def test_store_without_tablespaces_writes_control_files_without_a_word_of_them() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    db.checkpoint()
    name = max(name for name in files.list("lcp") if name.startswith("control-"))
    with_none = files.pread(files.open(f"lcp/{name}"), 0, 1 << 16)
    assert b"tablespace" not in with_none
    assert not files.exists("space")


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (tm.TablespaceExists, lambda db: db.create_tablespace("main", 1, **SIZES)),
        (tm.NoSuchTablespace, lambda db: db.add_datafile("none", 1)),
        (tm.NoSuchTablespace, lambda db: db.drop_tablespace("none")),
        (tm.InvalidName, lambda db: db.create_tablespace("a/b")),
        (tm.InvalidName, lambda db: db.create_tablespace("")),
        (tm.SchemaInvalid, lambda db: db.create_tablespace("a", page_size="5 KiB")),
        (tm.SchemaInvalid, lambda db: db.create_tablespace("a", page_size=64 << 10)),
        (tm.SchemaInvalid, lambda db: db.create_tablespace("a", extent=(1 << 20) + 1)),
        (tm.SchemaInvalid, lambda db: db.create_tablespace("a", extent="8 KiB")),
        (tm.SchemaInvalid, lambda db: db.create_tablespace("a", extent="1 GiB")),
        (tm.SchemaInvalid, lambda db: db.create_tablespace("a", limit="1 KiB")),
        (tm.SchemaInvalid, lambda db: db.create_tablespace("a", "3 MiB", limit="2 MiB")),
        (tm.SchemaInvalid, lambda db: db.create_tablespace("a", 0)),
        (tm.SchemaInvalid, lambda db: db.create_tablespace("a", -1)),
        (tm.SchemaInvalid, lambda db: db.create_tablespace("a", "much")),
        (tm.SchemaInvalid, lambda db: db.create_tablespace("a", "1 TiB", extent="16 KiB", page_size="4 KiB")),
        (tm.SchemaInvalid, lambda db: db.create_tablespace("a", autoextend=1)),
        (tm.SchemaInvalid, lambda db: db.add_datafile("main", 0)),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_no_trace(kind: type[Exception], call: Any) -> None:
    files = MemoryFiles()
    db = open_memory(files)
    db.create_tablespace("main", 1, **SIZES)
    before, names = state_of(db), files.list("space")
    with pytest.raises(kind):
        call(db)
    assert state_of(db) == before
    assert files.list("space") == names
    db.create_tablespace("next", 1, **SIZES)
    assert state_of(db)["next"]["id"] == 2


def test_definition_reads_back_what_it_writes_and_nothing_else() -> None:
    made = TablespaceDefinition(3, "möbel", 4_096, EXTENT, False, 1 << 30, (4, 9))
    assert TablespaceDefinition.from_json(made.to_json()) == made
    for damage in (
        b"{}",
        b"[]",
        b"",
        made.to_json().replace(b"[4,9]", b"[9,4]"),
        made.to_json().replace(b"4096", b"1"),
    ):
        with pytest.raises(tm.SchemaInvalid):
            TablespaceDefinition.from_json(damage)


# --- growing ------------------------------------------------------------------------------------
def test_extension_grows_by_sixteen_extents_or_an_eighth_up_to_the_limit() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    db.create_tablespace("main", 160 * EXTENT, **SIZES, limit=190 * EXTENT)
    space = db.parts.store.space
    space.extend(1)
    assert state_of(db)["main"]["extents"] == 160, "there are free ones"
    for expected in (180, 190):
        assert use_extents(db, "main", 1_000) > 0
        space.extend(1)
        assert state_of(db)["main"]["extents"] == expected
        assert files.size("space/1.data") == 4_096 + expected * EXTENT
    assert use_extents(db, "main", 1_000) == 10
    with pytest.raises(tm.StorageFull, match="main is full .* its limit") as caught:
        space.extend(1)
    assert caught.value.tablespace == "main"
    db, files = reopened(db, files)
    assert state_of(db)["main"]["free_extents"] == 190, "no record was needed"


def test_tablespace_that_does_not_extend_itself_says_what_to_do() -> None:
    db = open_memory()
    db.create_tablespace("main", EXTENT, **SIZES, autoextend=False)
    assert use_extents(db, "main", 9) == 1
    with pytest.raises(tm.StorageFull, match="add_datafile"):
        db.parts.store.space.extend(1)
    db.add_datafile("main", EXTENT)
    assert use_extents(db, "main", 9) == 1


def faulty(*rules: Rule) -> tuple[MemoryFiles, FaultFiles]:
    disk = MemoryFiles()
    return MemoryFiles(disk.disk), FaultFiles(disk, Plan(rules))


def open_faulty(files: FaultFiles) -> Database:
    return Database(files, Options.from_keywords(SMALL), ManualClock())


@pytest.mark.parametrize("fits", [0, 1, 5])
def test_disk_full_while_extending_keeps_whole_extents_and_nothing_else(fits: int) -> None:
    pieces = 1  # a piece of zeros is an extent here
    rule = Rule("pwrite", "space/*", nth=3 + fits * pieces, once=False, error=errno.ENOSPC)
    disk, files = faulty(rule)
    db = open_faulty(files)
    db.create_tablespace("main", EXTENT, **SIZES)
    assert use_extents(db, "main", 9) == 1
    if fits == 0:
        with pytest.raises(tm.StorageFull, match="main is full and the disk has no room"):
            db.parts.store.space.extend(1)
    else:
        db.parts.store.space.extend(1)
    assert state_of(db)["main"]["extents"] == 1 + fits
    assert disk.size("space/1.data") == 4_096 + (1 + fits) * EXTENT
    assert use_extents(db, "main", 9) == fits
    assert db.status()["store"]["state"] == "open"
    files.faults.is_over = True  # there is space again
    db.parts.store.space.extend(1)
    assert state_of(db)["main"]["extents"] == 1 + fits + 16
    db.close()
    assert state_of(open_memory(MemoryFiles(disk.disk)))["main"]["extents"] == 1 + fits + 16


def test_extension_asked_for_by_several_threads_is_done_once() -> None:
    db = open_memory()
    db.create_tablespace("main", EXTENT, **SIZES)
    assert use_extents(db, "main", 9) == 1
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(db.parts.store.space.extend, 1) for _ in range(8)]:
            done.result()
    assert state_of(db)["main"]["extents"] == 17
    assert state_of(db)["main"]["free_extents"] == 16


@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("operation", ["create", "pwrite", "make_directory"])
def test_disk_full_while_making_a_tablespace_leaves_nothing_and_it_can_be_made_later(operation: str, nth: int) -> None:
    rule = Rule(operation, "space*", nth=nth, error=errno.ENOSPC)
    disk, files = faulty(rule)
    db = open_faulty(files)
    try:
        db.create_tablespace("main", 3 * EXTENT, **SIZES)
    except tm.StorageFull:
        assert db.tablespaces() == []
        assert not disk.exists("space") or disk.list("space") == ()
        db.create_tablespace("main", 3 * EXTENT, **SIZES)
    assert state_of(db)["main"]["free_extents"] == 3
    assert disk.list("space") == ("1.data",)


def test_memory_exhausted_while_making_a_tablespace_leaves_nothing() -> None:
    db = open_memory(data_memory="1 MiB")
    pool = db.parts.store.mem[a.S_POOL : a.S_POOL + a.POOL_WORDS]
    saved = pool.copy()
    pool[a.P_FREE_PAGES] = pool[a.P_FREE_BLOCKS] = 0
    pool[a.P_HIGH] = pool[a.P_LIMIT]
    with pytest.raises(tm.MemoryExhausted):
        db.create_tablespace("main", 1, **SIZES)
    pool[:] = saved
    assert db.tablespaces() == []
    db.create_tablespace("main", 1, **SIZES)


# --- dropping -----------------------------------------------------------------------------------
def test_dropped_tablespace_keeps_its_files_until_no_kept_checkpoint_names_it() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    db.create_tablespace("a", 1, **SIZES)
    db.create_tablespace("b", 1, **SIZES)
    db.checkpoint()
    assert use_extents(db, "b", 1) == 1
    with pytest.raises(tm.TablespaceInUse):
        db.drop_tablespace("b")
    db.drop_tablespace("a")
    assert db.tablespaces() == ["b"]
    assert [each.name for each in StoreListing(MemoryFiles(files.disk)).tablespaces()] == ["b"], "the log says so"
    db, files = reopened(db, files)
    assert db.tablespaces() == ["b"]
    assert files.list("space") == ("1.data", "2.data")
    db.checkpoint()
    assert files.list("space") == ("1.data", "2.data"), "the checkpoint before still names it"
    db.checkpoint()
    assert files.list("space") == ("2.data",)
    db.create_tablespace("a", 1, **SIZES)
    assert list(state_of(db)["a"]["files"]) == ["space/3.data"], "numbers are never given again"


def test_tablespace_made_and_dropped_after_the_checkpoint_is_gone_with_its_files() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    db.create_tablespace("a", 1, **SIZES)
    db.add_datafile("a", 1)
    db.drop_tablespace("a")
    db, files = reopened(db, files)
    assert db.tablespaces() == []
    assert files.list("space") == ()
    db.create_tablespace("a", 1, **SIZES)
    assert state_of(db)["a"]["id"] == 2
    assert list(state_of(db)["a"]["files"]) == ["space/3.data"]


# --- opening ------------------------------------------------------------------------------------
def spoiled(spoil: Any) -> MemoryFiles:
    files = MemoryFiles()
    db = open_memory(files)
    db.create_tablespace("main", 3 * EXTENT, **SIZES)
    db.create_tablespace("other", 3 * EXTENT, **SIZES)
    db.close()
    files = MemoryFiles(files.disk)
    spoil(files)
    files.close_all()
    return MemoryFiles(files.disk)


def flip(files: MemoryFiles) -> None:
    file = files.open("space/1.data", True)
    files.pwrite(file, 50, bytes([files.pread(file, 50, 1)[0] ^ 1]))


def swap(files: MemoryFiles) -> None:
    files.rename("space/2.data", "space/1.data")


def foreign(files: MemoryFiles) -> None:
    other = MemoryFiles()
    db = Database(other, Options.from_keywords(SMALL), SystemClock())
    db.create_tablespace("main", 3 * EXTENT, **SIZES)
    header = other.pread(other.open("space/1.data"), 0, 4_096)
    files.pwrite(files.open("space/1.data", True), 0, header)


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda files: files.unlink("space/1.data"), tm.FileMissing),
        (flip, tm.PageDamaged),
        (lambda files: files.truncate(files.open("space/1.data", True), 100), tm.FileTruncated),
        (swap, tm.ForeignFile),
        (foreign, tm.ForeignFile),
    ],
    ids=["missing", "bit", "cut", "swapped", "foreign"],
)
def test_data_file_that_is_not_the_right_one_is_named_and_nothing_changes(spoil: Any, kind: type[Exception]) -> None:
    files = spoiled(spoil)
    before = files.digest()
    with pytest.raises(kind, match="space/1.data"):
        open_memory(files)
    assert MemoryFiles(files.disk).digest() == before


def test_file_that_grew_in_part_has_the_extents_that_fit_and_foreign_files_stay() -> None:
    def grow(files: MemoryFiles) -> None:
        file = files.open("space/1.data", True)
        files.pwrite(file, files.size(file), bytes(2 * EXTENT + 5_000))
        for name in ("space/7.data", "space/notes.txt", "space/07.data"):
            files.create(name)

    files = spoiled(grow)
    db = open_memory(files)
    assert state_of(db)["main"]["extents"] == 5
    assert files.list("space") == ("07.data", "1.data", "2.data", "notes.txt")
    page = 1 << d.FILE_SHIFT | 3
    assert db.parts.store.space.place(page) == (db.parts.store.space.open_files[1][0], 3 * 4_096)
    with pytest.raises(tm.PageDamaged):
        db.parts.store.space.place(9 << d.FILE_SHIFT | 1)
    assert file_name(9) == "space/9.data"


def test_store_with_tablespaces_is_listed_checked_and_read_by_processes_that_do_not_open_it(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", data_memory="16 MiB", redo_log="2 MiB", background=False) as db:
        db.create_table("t", [tm.Column("id", tm.Int64)], primary_key="id")
        db.checkpoint()
        db.create_tablespace("main", 3 * EXTENT, **SIZES)
        db.add_datafile("main", 1)
        db.create_tablespace("gone", 1, **SIZES)
        db.drop_tablespace("gone")
        files = PosixFiles(tmp_path / "store")
        listing = StoreListing(files)
        assert [each.name for each in listing.tables()] == ["main.t"]
        assert listing.sizes_bytes()["data files"] == 2 * 4_096 + 4 * EXTENT + 4_096 + EXTENT
        files.close_all()
        with tm.open(tmp_path / "store", read_only=True, data_memory="16 MiB") as beside:
            assert beside.tables() == ["main.t"]
        assert db.check()["is_sound"]
    assert tm_check(tmp_path / "store", data_memory="16 MiB")["is_sound"]
