"""The reach of the log (ADR 0007): never exceeded, enough to distinguish damage from a tail, doubted when the sysfile
is.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

import tidemark as tm
from tests.recovery.support import flipped, refused
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.files.protocol import File
from tidemark.engine.log.geometry import Geometry
from tidemark.engine.log.group_layout import GROUP_ALIGN_BYTES
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.system_restart.sysfile import NAMES, read_sysfile

OPTIONS: dict[str, Any] = {"redo_log": "1 MiB"}  # a step is an eighth of it


def fill(db: Any, commits: int, seed: int) -> list[tuple[int, int]]:
    """Commit updates, some groups large; (LSN, bytes) of every group."""
    rng = random.Random(seed)
    log = db.parts.store.log
    groups = []
    for number in range(commits):
        begun = log.head_lsn
        with db.transaction() as txn:
            for key in rng.sample(range(50), rng.choice((1, 1, 1, 40))):
                txn.update("test.account", key, {"note": "n" * rng.randrange(1, 250), "balance": float(number)})
        groups.append((begun, log.head_lsn - begun))
    return groups


def opened(files: MemoryFiles | None = None) -> Any:
    return open_memory(files, **OPTIONS)


def new_store() -> Any:
    db = opened(MemoryFiles())
    db.create_table("test.account", ACCOUNT, primary_key="id").insert_many(
        [(number, "a", 1.0, "n" * 200) for number in range(50)]
    )
    return db


def durable(db: Any) -> MemoryFiles:
    """The disk with only its synced data."""
    image: MemoryFiles = db.parts.files.image(lambda piece: False)
    return image


def test_log_never_ends_past_the_durable_reach_over_laps_restarts_and_checkpoints() -> None:
    seed = 31
    rng = random.Random(seed)
    db = new_store()
    laps = 3
    while db.parts.store.log.head_lsn < laps * db.parts.store.log.geometry.capacity_bytes:
        fill(db, 3, rng.randrange(1 << 30))
        sysfile = read_sysfile(durable(db))
        assert sysfile is not None
        head, step = db.parts.store.log.head_lsn, sysfile.geometry.reach_step_bytes
        assert head <= sysfile.reach_lsn, f"seed {seed}"
        if db.parts.store.log.used_bytes() > (1 << 18):
            db.checkpoint()
        if rng.randrange(8) == 0:
            expected = rows_of(db)
            db = opened(db.parts.files.kill())
            assert rows_of(db) == expected
            after = read_sysfile(durable(db))
            assert after is not None and after.reach_lsn == db.parts.store.log.head_lsn + step


def test_any_run_of_damaged_groups_before_an_intact_one_is_damage() -> None:
    db = new_store()
    for turn in range(3):
        db.checkpoint()
        db.checkpoint()
        groups = fill(db, 24, turn)
        contents = db.parts.files.kill().snapshot()
        geometry = db.parts.store.log.geometry
        for first, last in ((0, 0), (0, 22), (5, 22), (11, 12), (22, 22)):
            damaged = zero_headers(contents, geometry, groups[first : last + 1])
            error = refused(damaged, tm.RedoDamaged)
            assert error.lsn == groups[first][0], f"turn {turn}, groups {first} to {last}"
        expected = rows_of(db)
        db = opened(db.parts.files.kill())
        assert rows_of(db) == expected


def zero_headers(contents: dict[str, bytes], geometry: Geometry, groups: list[tuple[int, int]]) -> dict[str, bytes]:
    changed = {name: bytearray(content) for name, content in contents.items()}
    for lsn, size in groups:
        for at in range(lsn, lsn + size, GROUP_ALIGN_BYTES):
            number, offset, _, _ = geometry.pieces(at, 8)[0]
            changed[geometry.name(number)][offset : offset + GROUP_ALIGN_BYTES] = bytes(GROUP_ALIGN_BYTES)
    return {name: bytes(content) for name, content in changed.items()}


class CountingFiles(MemoryFiles):
    """Counts the bytes read of the log."""

    redo_bytes = 0

    def pread_into(self, file: File, offset: int, buffer: Any) -> int:
        got = super().pread_into(file, offset, buffer)
        if file.name.startswith("redo/"):
            self.redo_bytes += got
        return got


def bytes_read_at_opening(contents: dict[str, bytes]) -> int:
    files = CountingFiles.from_snapshot(contents)
    opened(files)
    return files.redo_bytes


def test_opening_reads_a_step_past_the_end_and_the_whole_ring_when_a_sysfile_copy_is_doubtful() -> None:
    db = new_store()
    db.checkpoint()
    db.checkpoint()
    fill(db, 4, 5)
    contents = db.parts.files.kill().snapshot()
    log = db.parts.store.log
    capacity, step = log.geometry.capacity_bytes, log.geometry.reach_step_bytes
    needed = log.head_lsn - log.tail_lsn
    assert bytes_read_at_opening(contents) < step + 3 * needed + GROUP_ALIGN_BYTES < capacity
    for name in NAMES:
        doubtful = {**contents, name: flipped(contents[name], 300)}
        assert bytes_read_at_opening(doubtful) >= capacity, name
    found = read_sysfile(MemoryFiles.from_snapshot({**contents, NAMES[0]: flipped(contents[NAMES[0]], 300)}))
    assert found is not None and found.reach_lsn == 0


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_seen_beyond_the_older_reach_when_the_newer_sysfile_copy_is_lost(name: str) -> None:
    db = new_store()
    db.checkpoint()
    db.checkpoint()
    groups = fill(db, 60, 8)
    contents = db.parts.files.kill().snapshot()
    damaged = zero_headers(contents, db.parts.store.log.geometry, groups[1:-1])
    damaged[name] = bytes(len(contents[name]))
    assert refused(damaged, tm.RedoDamaged).lsn == groups[1][0]
