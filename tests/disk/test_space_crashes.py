"""Power loss and damage around data files and extents files: each is there whole or not at all."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.disk.space_stage import RESERVE, SETTLE, steps
from tests.disk.test_space_store import EXTENT, SIZES, reopened, use_extents
from tests.store.support import SMALL, open_memory
from tidemark.database import Database
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import ForeignFile
from tidemark.engine.base.options import Options
from tidemark.engine.disk import extents_kernels as disk_extents
from tidemark.engine.memory import arena_layout as a
from tidemark.recovery.crash_harness.crash_states import choices, crash_points, image_of
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.trace import TraceFiles
from tidemark.recovery.crash_harness.program import Ledger
from tidemark.recovery.local_checkpoint.extents_file import (
    copy_headers,
    extents_name,
    read_extents,
    restore_extents,
    write_extents,
)
from tidemark.recovery.system_restart.load import DataFileDamaged

PER_POINT = 10
OPTIONS = {**SMALL, "data_memory": "2 MiB", "redo_log": "1 MiB"}


# --- power loss at every write --------------------------------------------------------------------
def work(files: TraceFiles) -> None:
    """Make, extend, add, drop; the ledger's marks record what has been acknowledged."""
    db = Database(files, Options.from_keywords(OPTIONS), ManualClock())

    def done(text: str) -> None:
        files.mark("ledger.acknowledge", text=text)

    db.create_tablespace("a", 2 * EXTENT, **SIZES)
    done("a 2")
    assert use_extents(db, "a", 9) == 2
    db.parts.store.space.extend(1)
    done("a 18")
    db.add_datafile("a", EXTENT)
    done("a 19")
    db.create_tablespace("b", EXTENT, **SIZES)
    done("b 1")
    db.checkpoint()
    done("b -1")  # from here on either way will do
    db.drop_tablespace("b")
    done("b 0")
    db.checkpoint()
    db.checkpoint()
    done("end")


def least(ledger: Ledger) -> dict[str, int]:
    """Extents each tablespace must have."""
    found: dict[str, int] = {}
    for name, _, count in (line.partition(" ") for line in ledger.acknowledged):
        if count:
            found[name] = int(count)
    return found


def judge(disk: MemoryFiles, ledger: Ledger) -> tuple[int, int]:
    """Files that tablespaces have, and files that no tablespace names."""
    db = open_memory(disk, data_memory="2 MiB", redo_log="1 MiB")
    names = set(disk.list("space")) if disk.exists("space") else set()
    state = db.status()["tablespaces"]
    promised = least(ledger)
    for name, extents in promised.items():
        assert extents < 1 or state[name]["extents"] >= extents
    assert "b" not in state or promised.get("b") != 0
    named = set()
    for each in state.values():
        assert each["free_extents"] == each["extents"]
        assert each["extents"] * each["extent_bytes"] == sum(each["files"].values())
        for name, size_bytes in each["files"].items():
            leaf = name.rpartition("/")[2]
            assert leaf not in named, "no file, and so no extent, is counted twice"
            named.add(leaf)
            assert disk.size(name) >= 4_096 + size_bytes
    assert names >= named
    assert names - named <= {"3.data"}, (
        "files that no record names are removed, but for those that a kept checkpoint names"
    )
    assert not names - named or "b" not in state
    # It works, with numbers that were never used.
    db.create_tablespace("c", EXTENT, **SIZES)
    assert db.status()["tablespaces"]["c"]["extents"] == 1
    return len(named), len(names - named)


def test_power_loss_at_every_write_leaves_each_data_file_absent_or_complete() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    trace = TraceFiles(MemoryFiles())
    work(trace)
    seen: set[tuple[str, int]] = set()
    left: Counter[tuple[int, int]] = Counter()
    for files, ledger, _ in crash_points(trace.events):
        for choice in choices(files.pieces(), rng, PER_POINT):
            disk = image_of(files, choice, rng)
            key = (disk.digest(), len(ledger.acknowledged))
            if key not in seen:
                seen.add(key)
                left[judge(disk, ledger)] += 1
    print(f"{len(seen)} states, {dict(left)}")
    assert len(seen) > 100
    # Absent and complete, each file after the one before it.
    assert {named for named, _ in left} == {0, 1, 2, 3}


@pytest.mark.parametrize("nth", range(1, 4))
def test_sync_that_fails_while_a_tablespace_is_made_kills_the_store_and_leaves_no_tablespace(nth: int) -> None:
    disk = MemoryFiles()
    files = FaultFiles(disk, [Rule("sync", "space*", nth=nth, error=5)])
    db = Database(files, Options.from_keywords(OPTIONS), ManualClock())
    try:
        db.create_tablespace("a", EXTENT, **SIZES)
    except tm.SyncFailed:
        again = open_memory(MemoryFiles(disk.disk).crash(random.Random(nth), "drop"), redo_log="1 MiB")
        assert again.tablespaces() == []
        assert not again.parts.files.exists("space") or again.parts.files.list("space") == ()
    else:
        assert nth > 2, "the file and its directory are synced"


# --- extents file ---------------------------------------------------------------------------------
def filled(count: int = 3) -> tuple[Database, np.ndarray]:
    """A store with extents that a table took and dropped, and the headers of them."""
    db = open_memory()
    db.create_tablespace("a", count * EXTENT, **SIZES)
    use_extents(db, "a", count)
    return db, copy_headers(db.parts.store.space)


IDENTITY = (bytes(range(16)), 3)


@pytest.mark.parametrize("count", [0, 1, 3, 7_000])
def test_extents_written_are_read_back_whatever_their_number(count: int) -> None:
    headers = np.zeros(count * 5, dtype=np.int64)
    headers[::5], headers[1::5], headers[2::5] = 11, np.arange(count), 4
    headers[4::5] = np.arange(count)
    files = MemoryFiles()
    files.make_directory("lcp")
    sizes = write_extents(files, IDENTITY, 6, headers)
    assert sizes[0] == count
    assert sizes[1] == max(1, -(-count * 5 // (32_768 - 16 - (32_768 - 16) % 5)))
    assert sizes[2] == files.size(extents_name(6))
    assert (read_extents(files, IDENTITY[0], 6, sizes) == headers).all()


def damage_bit(files: MemoryFiles, name: str) -> None:
    file = files.open(name, True)
    at = files.size(file) // 2
    files.pwrite(file, at, bytes([files.pread(file, at, 1)[0] ^ 4]))


DAMAGES: dict[str, Any] = {
    "bit": damage_bit,
    "cut": lambda files, name: files.truncate(files.open(name, True), files.size(name) - 8),
    "empty": lambda files, name: files.truncate(files.open(name, True), 0),
    "gone": lambda files, name: files.unlink(name),
}


@pytest.mark.parametrize("way", DAMAGES)
def test_damaged_extents_file_is_reported_as_such(way: str) -> None:
    headers = np.zeros(8_000 * 5, dtype=np.int64)
    headers[2::5] = 4
    files = MemoryFiles()
    files.make_directory("lcp")
    sizes = write_extents(files, IDENTITY, 6, headers)
    DAMAGES[way](files, extents_name(6))
    with pytest.raises(DataFileDamaged) as caught:
        read_extents(files, IDENTITY[0], 6, sizes)
    assert caught.value.place[0] == 6


def test_extents_file_of_another_store_checkpoint_or_count_is_refused() -> None:
    _, headers = filled()
    files = MemoryFiles()
    files.make_directory("lcp")
    sizes = write_extents(files, IDENTITY, 6, headers)
    with pytest.raises(ForeignFile):
        read_extents(files, bytes(16), 6, sizes)
    with pytest.raises(DataFileDamaged):
        read_extents(files, IDENTITY[0], 6, (sizes[0] + 1, *sizes[1:]))
    files.rename(extents_name(6), extents_name(7))
    with pytest.raises(DataFileDamaged, match="another file"):
        read_extents(files, IDENTITY[0], 7, sizes)


def test_copy_counts_reserved_space_as_free_and_is_restored_for_tables_that_are_and_that_were() -> None:
    db = open_memory()
    db.create_tablespace("a", 4 * EXTENT, **SIZES)
    store = db.parts.store
    tablespace = store.space.named("a")
    db.create_table("kept", [tm.Column("id", tm.Int64)], primary_key="id", partition=tm.HashPartition(1))
    kept = store.tables.named("kept")
    assert disk_extents.join_tablespace(store.mem, kept.handle, tablespace.address, 400, 0) == a.OK
    out = np.zeros(1, dtype=np.int64)
    steps(store.mem, np.array([RESERVE, kept.fragments[0], 300, 0], dtype=np.int64), out)
    page = int(out[0])
    steps(store.mem, np.array([SETTLE, page, 300, 195], dtype=np.int64), out)
    steps(store.mem, np.array([RESERVE, kept.fragments[0], 100, 0], dtype=np.int64), out)
    assert out[0] == page
    use_extents(db, "a", 1)  # of a table that the schema does not know
    headers = copy_headers(store.space)
    again, _ = reopened(db, db.parts.files)  # type: ignore[arg-type]
    space = again.parts.store.space
    table = again.parts.store.tables.named("kept")
    address = space.named("a").address
    assert disk_extents.join_tablespace(again.parts.store.mem, table.handle, address, 400, 0) == a.OK
    assert restore_extents(again.parts.store, headers, 6) == 2
    assert (copy_headers(space) == headers).all()
    assert again.status()["tablespaces"]["a"]["free_extents"] == 2
    steps(again.parts.store.mem, np.array([4, page, 0, 0], dtype=np.int64), out)
    assert out[0] == 195, "the promise is forgotten"
    with pytest.raises(tm.TablespaceInUse):
        again.drop_tablespace("a")
    assert space.free_dropped([999]) == 0
    assert space.free_dropped([]) == 1
    assert again.status()["tablespaces"]["a"]["free_extents"] == 3
    with pytest.raises(DataFileDamaged, match="two owners"):
        restore_extents(again.parts.store, headers, 6)


def test_copy_of_a_tablespace_that_grows_meanwhile_makes_room() -> None:
    db, headers = filled(3)
    space = db.parts.store.space
    for each in space.tablespaces()[0].files:
        each.extents = 0  # as if all its extents had come since the copy was measured
    assert (copy_headers(space) == headers).all()
