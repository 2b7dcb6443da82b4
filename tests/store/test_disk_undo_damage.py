"""The UNDO log of a store: damaged, torn, full before the first local checkpoint (F21, F56, F57, U7)."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.recovery.support import flipped, powered_off
from tests.store.disk_support import DISK, NAME, DiskStore
from tests.store.support import open_memory, rows_of
from tests.store.test_disk_history import undo_word
from tidemark.engine.disk.cache_layout import U_FREE
from tidemark.engine.disk.disk_layout import UNDO_GROUP, UNDO_GROUP_WORDS
from tidemark.engine.sealed.sealed_layout import header_of
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

UNDO = "undo/0000.undo"
ROWS = 60


@functools.cache
def history() -> tuple[dict[str, bytes], dict[int, Any], list[tuple[int, int]]]:
    """Files of a killed store, its rows, (offset, bytes) of the UNDO groups after the newest local checkpoint's.

    The data file has the changes of all pages of those groups, except of the last group: it was written, and the
    process ended before the first of its pages was.
    """
    store = DiskStore(undo_filter=False)
    store.load(range(ROWS))
    store.db.checkpoint()
    begun = store.db.parts.store.disk.undo.head
    for turn in range(1, 6):
        store.load(range(turn, ROWS, 7), turn)
        store.flush()
    store.load(range(0, ROWS, 7), 6)
    store.db.parts.store.disk.undo.flush_through(store.db.parts.store.disk.undo.durable_lsn + 1)
    contents, end = store.files.kill().snapshot(), store.db.parts.store.disk.undo.head
    groups = []
    while begun < end:
        header = header_of(np.frombuffer(contents[UNDO], np.int64, UNDO_GROUP_WORDS, begun), UNDO_GROUP)
        groups.append((begun, int(header["words"]) * 8))
        begun += groups[-1][1]
    return contents, dict(store.rows), groups


def test_damaged_undo_group_that_changed_pages_need_is_undo_damaged_and_nothing_changes() -> None:
    contents, _, groups = history()
    rng = random.Random(56)
    assert len(groups) >= 6
    for at, size in groups[:-1]:
        spoilt = {**contents, UNDO: flipped(contents[UNDO], at + rng.randrange(size - 4_096 + 200))}
        files = MemoryFiles.from_snapshot(spoilt)
        with pytest.raises(tm.UndoDamaged) as caught:
            open_memory(files, **DISK)
        assert (caught.value.file, caught.value.offset) == (UNDO, at)
        assert files.snapshot() == spoilt


def test_last_undo_group_damaged_or_torn_before_any_page_was_written_is_a_tail_and_the_store_opens_whole() -> None:
    contents, rows, groups = history()
    at, size = groups[-1]
    log = contents[UNDO]
    torn = [log[: at + kept] + bytes(size - kept) + log[at + size :] for kept in range(0, size, 512)]
    for spoilt in (flipped(log, at + 8), flipped(log, at + 500), *torn):
        db = open_memory(MemoryFiles.from_snapshot({**contents, UNDO: spoilt}), **DISK)
        assert rows_of(db, NAME) == rows and db.check()["problems"] == []
        db[NAME].update(1, {"cold": b"after"})
        expected = rows_of(db, NAME)
        db = open_memory(db.parts.files.kill(), **DISK)
        assert rows_of(db, NAME) == expected and db.check()["problems"] == []


@pytest.mark.parametrize("seed", range(4))
def test_last_undo_group_lost_that_written_pages_need_is_never_silent(seed: int) -> None:
    """It looks like a tail; but the pages of its records do not fit the rest of the log."""
    rng = random.Random(seed)
    store = DiskStore(undo_filter=False)
    store.load(range(ROWS))
    store.db.checkpoint()
    begun = 0
    for turn in range(2):
        begun = store.db.parts.store.disk.undo.head
        store.load(rng.sample(range(ROWS), 20), turn, size=rng.choice([100, 900, 1_800]))
        store.delete(rng.sample(sorted(store.rows), 5))
        store.flush()
    contents = store.files.kill().snapshot()
    contents[UNDO] = flipped(contents[UNDO], begun + 100)
    with pytest.raises(tm.PageDamaged, match=r"space/1\.data does not fit the UNDO log"):
        open_memory(MemoryFiles.from_snapshot(contents), **DISK)


@pytest.mark.parametrize("size", [60, 500, 2_900])
def test_undo_log_full_before_any_local_checkpoint_is_void_at_every_restart_and_never_too_full(size: int) -> None:
    """U7: no extent was in use, so all of the log is void. If it were kept, the records that a restart makes would come
    after it. A full log would then be written over its tail, or have no space for a local checkpoint to begin.
    """
    store = DiskStore(undo_log="1 MiB", undo_filter=False)
    with pytest.raises(tm.StorageFull, match="UNDO log"):
        for turn in itertools.count():
            store.load(range(30), turn, size=size)
    store.rows = store.found()
    store.crash()
    undo = store.db.parts.store.disk.undo
    place, free = (undo.head, undo.sequence), undo_word(store, U_FREE)
    for number in range(4):
        store.crash(random.Random(number))
        undo = store.db.parts.store.disk.undo
        assert ((undo.head, undo.sequence), undo_word(store, U_FREE)) == (place, free), f"restart {number}"
    store.db.checkpoint()
    store.db.checkpoint()
    store.load(range(30), 99, size=size)
    store.crash()


def test_restart_before_any_local_checkpoint_interrupted_anywhere_gives_the_rows() -> None:
    """U7: both copies of the sysfile declare the log void before any byte is written in its place."""
    store = DiskStore(undo_filter=False)
    for turn in range(4):
        store.load(range(turn, ROWS, 3), turn, size=400 + 100 * turn)
        store.flush()
    contents, rng, nth = store.files.kill().snapshot(), random.Random(7), 0
    is_over = False
    while not is_over:
        nth += 5
        files = MemoryFiles.from_snapshot(contents)
        is_over = not powered_off(files, nth, lambda faulty: open_memory(faulty, **DISK))
        files = files.crash(rng, "sectors")
        is_second_over = not powered_off(files, nth // 2 + 1, lambda faulty: open_memory(faulty, **DISK))
        db = open_memory(files if is_second_over else files.crash(rng, "torn"), **DISK)
        assert rows_of(db, NAME) == store.rows, f"call {nth}"
        assert db.check()["problems"] == []
    assert nth > 50
