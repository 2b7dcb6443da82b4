"""The page cache when something goes wrong: damage, failed reads and writes, full disks, signals."""

from __future__ import annotations

import errno
import random
import threading
from typing import Any

import numpy as np
import pytest

from tests.disk.support import (
    CACHE,
    PAGE_BYTES,
    PAGE_WORDS,
    STORE,
    Stage,
    new_disk,
    page,
    restart,
    spoil,
)
from tests.store.interrupts import interrupt_at
from tidemark.engine.base.errors import (
    FileMissing,
    FileTruncated,
    InvariantBroken,
    IoFailed,
    MemoryExhausted,
    PageDamaged,
    StorageFull,
    SyncFailed,
    VersionTooNew,
)
from tidemark.engine.disk.double_write import is_page
from tidemark.engine.disk.frames_kernels import claim_pages, loaded_intact_page, loaded_page
from tidemark.engine.memory.arena_layout import OK, ST_INVARIANT
from tidemark.engine.sealed.checksums_kernels import xxh3_lanes_of_page
from tidemark.engine.sealed.sealed_layout import seal
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.trace import TraceFiles


def test_undo_log_that_cannot_be_flushed_keeps_pages_dirty_and_unwritten() -> None:
    trace = TraceFiles(new_disk())
    stage = Stage(trace)
    stage.put(page(1), 1)
    stage.undo.error = StorageFull("no room for UNDO; free space")
    with pytest.raises(StorageFull):
        stage.cache.flush()
    assert not [event for event in trace.events if event.operation == "pwrite"]
    assert stage.counter("waiting") == 1
    stage.undo.error = None
    stage.cache.flush()
    assert (stage.counter("waiting"), stage.counter("pages_written"), stage.get(page(1))) == (0, 1, 1)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_full_disk_in_the_middle_of_a_batch_is_finished_before_anything_else(nth: int) -> None:
    """A page may lie half written; its copy must not be overwritten before it is whole."""
    inner = new_disk()
    files = FaultFiles(inner, [Rule("pwrite", "space/*", nth=nth, error=errno.ENOSPC)])
    stage = Stage(files)
    for number in (1, 3, 5):
        stage.put(page(number), number)
    with pytest.raises(StorageFull):
        stage.cache.flush()
    assert files.failure.first is None
    assert stage.counter("waiting") == 3
    stage.put(page(1), 11)
    again, _ = restart(inner.kill())
    assert again.get(page(3)) in (3, -2), "whole, as it was or as it was written"
    assert stage.cache.flush() == 1
    again, repaired = restart(inner.image(lambda piece: False))
    assert (repaired, [again.get(page(number)) for number in (1, 3, 5)]) == (0, [11, 3, 5])


@pytest.mark.parametrize(
    ("operation", "name", "error"),
    [
        ("pwrite", "double-write", IoFailed),
        ("fdatasync", "double-write", SyncFailed),
        ("pwrite", "space/1.data", IoFailed),
        ("fdatasync", "space/1.data", SyncFailed),
    ],
)
def test_failed_write_or_sync_kills_the_store_and_leaves_pages_waiting(operation: str, name: str, error: Any) -> None:
    # The first sync of the places is for what another process may have left, the second one for this page.
    nth = 2 if (operation, name) == ("fdatasync", "space/1.data") else 1
    files = FaultFiles(new_disk(), [Rule(operation, name, nth=nth, error=errno.EIO)])
    stage = Stage(files)
    stage.put(page(1), 1)
    with pytest.raises(error):
        stage.cache.flush()
    assert files.failure.first is not None
    # Once its copy is durable the page counts as written; only the sync of its place failed.
    assert stage.counter("waiting") == (0 if (operation, name) == ("fdatasync", "space/1.data") else 1)
    with pytest.raises(error):
        stage.cache.hold([page(2)])
    assert stage.counter("pinned") == 0


def test_damaged_page_is_an_error_for_its_reader_and_for_no_other() -> None:
    stage = Stage()
    for number in range(1, 9):
        stage.put(page(number), number)
    stage.cache.flush()
    spoil(stage.files, "space/1.data", 8 * PAGE_BYTES + 300, b"\xff")
    again, repaired = restart(stage.files.kill())
    assert repaired == 1, "the double-write file has the last batch, of six pages at most"
    spoil(again.files, "space/1.data", 4 * PAGE_BYTES + 300, b"\xff")
    again, repaired = restart(again.files.kill())
    assert repaired == 0
    for wanted in ([page(4)], [page(number) for number in range(1, 9)]):
        with pytest.raises(PageDamaged) as caught:
            again.cache.hold(wanted)
        assert (caught.value.file, caught.value.page) == ("space/1.data", page(4))
        assert (again.counter("pinned"), again.frame(page(4))) == (0, 0)
    assert [again.get(page(number)) for number in (1, 2, 3, 5, 6, 7, 8)] == [1, 2, 3, 5, 6, 7, 8]
    assert again.files.failure.first is None
    assert again.counter("resident") == 7, "the frame of the damaged page is free"


def page_bytes(stage: Stage, number: int) -> Any:
    file, offset = stage.places.place(number)
    return np.frombuffer(stage.files.pread(file, offset, PAGE_BYTES), dtype=np.int64).copy()


@pytest.mark.parametrize(
    ("word", "value", "error"),
    [
        (2, 99, PageDamaged),  # another store
        (6, page(9), PageDamaged),  # a good page in the wrong place
        (8, 5, PageDamaged),  # invalid number of free words
        (1, 0x5044 | 99 << 16 | PAGE_WORDS << 32, VersionTooNew),
        (1, 0x5044 | 1 << 16 | (PAGE_WORDS - 8) << 32, PageDamaged),
    ],
)
def test_intact_page_that_is_not_the_one_asked_for_is_refused(word: int, value: int, error: Any) -> None:
    stage = Stage()
    stage.put(page(4), 4)
    stage.cache.flush()
    words = page_bytes(stage, page(4))
    words[word] = value
    seal(words, int(words[1] >> 32))
    spoil(stage.files, "space/1.data", 4 * PAGE_BYTES, words.tobytes())
    again = Stage(stage.files.kill())
    for ask in (again.cache.hold, again.cache.ensure, lambda pages: again.cache.load(pages[0])):
        with pytest.raises(error):
            ask([page(4)])
        assert (again.counter("pinned"), again.counter("resident")) == (0, 0)


def test_page_read_alone_is_intact_or_not_as_the_careful_way_says() -> None:
    seed = 3
    print(f"seed {seed}")
    rng = random.Random(seed)
    stage = Stage()
    stage.put(page(4), 4)
    stage.cache.flush()
    words, lanes = page_bytes(stage, page(4)), np.zeros(8, np.int64)
    verdicts = set()
    for number in range(300):
        again = Stage(stage.files)
        changed = words.copy()
        if number % 3:
            changed[rng.randrange(12 if number % 5 else PAGE_WORDS)] ^= 1 << rng.randrange(60)
        if number % 4 == 0:
            seal(changed, PAGE_WORDS)
        out = np.zeros(1, np.int64)
        assert claim_pages(again.mem, CACHE, np.array([page(4)]), 0, 1, 0, out) == 1
        xxh3_lanes_of_page(changed, 1, PAGE_WORDS - 1, lanes)
        is_intact = is_page(changed, page(4), PAGE_WORDS, STORE) and int(changed[1]) == int(words[1])
        status = loaded_intact_page(again.mem, CACHE, page(4), changed, 0, lanes, again.cache.reader.seal, 0)
        if is_intact:  # then the directory decides, as for `loaded_page`
            other = Stage(stage.files)
            assert claim_pages(other.mem, CACHE, np.array([page(4)]), 0, 1, 0, out) == 1
            assert status == loaded_page(other.mem, CACHE, page(4), changed, 0, 0)
        else:
            assert status == ST_INVARIANT
        assert (again.frame(page(4)) != 0) == (status == OK)
        verdicts.add((is_intact, status))
    assert verdicts == {(True, OK), (True, ST_INVARIANT), (False, ST_INVARIANT)}


def test_read_error_and_short_or_missing_file_leave_no_pin() -> None:
    files = FaultFiles(new_disk(), [Rule("pread", "space/1.data", error=errno.EIO)])
    stage = Stage(files)
    stage.places.handles[1].read_errors_latch = False  # as data files are opened
    with pytest.raises(PageDamaged):
        stage.cache.hold([page(1), page(1, 2)])
    assert (stage.counter("pinned"), stage.counter("resident")) == (0, 0)
    assert stage.get(page(1)) == -2, "the next read is a new one"
    files.truncate(stage.places.handles[2], 50 * PAGE_BYTES)
    with pytest.raises(FileTruncated):
        stage.cache.hold([page(48, 2), page(49, 2), page(50, 2)])
    with pytest.raises(FileMissing):
        stage.cache.hold([page(1, 3)])
    assert stage.counter("pinned") == 0
    assert files.failure.first is None


def test_read_error_in_a_run_of_pages_names_the_page_and_leaves_the_others() -> None:
    """Adjacent pages are read in one call; the failure of one must not be reported for the first."""
    bad = 3 * PAGE_BYTES

    class BadSector(MemoryFiles):
        def pread_into(self, file: Any, offset: int, buffer: Any) -> int:
            if file.name == "space/1.data" and offset <= bad < offset + memoryview(buffer).nbytes:
                raise IoFailed("pread failed: EIO")
            return super().pread_into(file, offset, buffer)

    stage = Stage(BadSector(new_disk().disk))
    with pytest.raises(PageDamaged) as caught:
        stage.cache.hold([page(number) for number in range(1, 6)])
    assert (caught.value.page, caught.value.offset) == (page(3), bad)
    assert (stage.counter("pinned"), stage.cache.reserved) == (0, 0)
    assert [stage.get(page(number)) for number in (1, 2, 4, 5)] == [-2] * 4


@pytest.mark.parametrize("call", ["hold", "release"])
def test_signal_at_any_point_of_hold_or_release_leaves_no_pin_and_no_reservation(call: str) -> None:
    """Story: a signal between reserving frames and the following `try` lost the reservation. Every later holder had
    fewer frames, until none was left. Nor may a signal during a release leave half of the pages pinned for ever.
    """
    pages = [page(number) for number in (1, 2, 3, 40)]
    nth = 0
    while True:
        nth += 1
        stage = Stage(new_disk())
        if call == "release":
            stage.cache.hold(pages)
            point = interrupt_at(nth, lambda stage=stage: stage.cache.release(pages))
            # On the way into the call nothing has been done; its caller calls again.
            if point.where.endswith("in release"):
                stage.cache.release(pages)
        else:
            point = interrupt_at(nth, lambda stage=stage: stage.cache.hold(pages))
        if not point.where:
            break
        assert (stage.counter("pinned"), stage.cache.reserved) == (0, 0), point.where
        stage.cache.hold(pages)
        assert stage.counter("pinned") == 4
    assert nth > 4


def test_signal_at_any_point_of_copying_out_and_writing_loses_no_page() -> None:
    """Story: a signal after pages had been copied, and before they were marked as evictable, left them neither dirty
    nor clean: no local checkpoint would have written them again.
    """
    nth = 0
    while True:
        nth += 1
        files = new_disk()
        stage = Stage(files, frames=25)
        for number in range(1, 26):
            stage.put(page(number), number)
        point = interrupt_at(nth, lambda stage=stage: stage.cache.clean(9))
        if not point.where:
            break
        for number in (1, 24, 25):
            stage.put(page(number), 100 + number)
        assert stage.get(page(60)) == -2, point.where
        stage.cache.flush()
        assert (stage.counter("dirty"), stage.counter("waiting")) == (0, 0), point.where
        again, _ = restart(files.image(lambda piece: False))
        found = [again.get(page(number)) for number in range(1, 26)]
        assert found == [101, *range(2, 24), 124, 125], point.where
    assert nth > 40


def test_restart_that_may_not_write_says_so_when_changed_pages_fill_the_cache() -> None:
    trace = TraceFiles(new_disk())
    stage = Stage(trace, can_write=False)
    for number in range(1, 25):
        stage.put(page(number), number)
    assert stage.get(page(30)) == -2
    assert stage.get(page(31)) == -2, "one clean frame serves all that are only read"
    stage.put(page(31), 31)
    with pytest.raises(MemoryExhausted, match="this restart may not write"):
        stage.cache.hold([page(32)])
    assert stage.cache.clean(100) == 0
    with pytest.raises(MemoryExhausted):
        stage.cache.flush()
    assert not [event for event in trace.events if event.operation == "pwrite"]
    stage.cache.can_write = True
    assert stage.cache.flush() == 25
    assert stage.get(page(32)) == -2


def test_read_ahead_thread_ends_when_the_store_is_dead() -> None:
    stage = Stage(FaultFiles(new_disk(), [Rule("pread", error=errno.EIO)]))
    stage.cache.read_ahead([page(1)])
    stage.cache.ahead.drain()
    assert stage.files.failure.first is not None
    stage.cache.close()
    assert stage.counter("pinned") == 0


@pytest.mark.parametrize("error", [MemoryError, ValueError])
def test_read_ahead_that_fails_in_any_way_keeps_no_thread_waiting(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: only typed errors were caught. A MemoryError ended the thread while it counted as loading, and dropping a
    tablespace waited for it without end.
    """

    def fail() -> None:
        raise error

    ends: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", ends.append)
    stage = Stage(FaultFiles(new_disk(), [Rule("pread", stall=fail)]))
    stage.cache.read_ahead([page(1)])
    stage.cache.ahead.drain()
    stage.cache.forget_files([2])
    assert stage.frame(page(1)) == 0 and stage.get(page(1)) == -2, "the reader loads it"
    stage.cache.read_ahead([page(2)])
    stage.cache.ahead.drain()
    is_defect = error is ValueError
    assert (stage.frame(page(2)) > 0, len(ends)) == (not is_defect, is_defect)
    stage.cache.close()


def test_signal_in_the_middle_of_a_load_leaves_no_pin_and_no_page_for_ever_loading() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    stage = Stage(FaultFiles(new_disk(), [Rule("pread", "space/2.data", stall=interrupt)]))
    with pytest.raises(KeyboardInterrupt):
        stage.cache.hold([page(1), page(2), page(1, 2), page(5, 2)])
    assert stage.counter("pinned") == 0
    assert stage.get(page(1, 2)) == stage.get(page(5, 2)) == -2
    assert stage.cache.reserved == 0


def test_page_loaded_alone_is_refused_like_any_other_and_a_signal_leaves_nothing() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    rules = [Rule("pread", "space/2.data", nth=1, stall=interrupt), Rule("pread", "space/2.data", nth=2, error=5)]
    inner = new_disk()
    stage = Stage(inner)
    for number in (1, 2, 3):
        stage.put(page(number, 2), number)
    stage.cache.flush()
    spoil(inner, "space/2.data", 2 * PAGE_BYTES + 300)
    again = Stage(FaultFiles(inner, rules))
    again.places.handles[2].read_errors_latch = False
    with pytest.raises(KeyboardInterrupt):
        again.cache.load(page(1, 2))
    assert (again.counter("pinned"), again.counter("resident")) == (0, 0)
    again.cache.load(page(1, 2))  # the failed read is made again
    assert (again.counter("pinned"), again.counter("misses"), again.get(page(1, 2))) == (0, 2, 1)
    with pytest.raises(PageDamaged):
        again.cache.load(page(2, 2))
    with pytest.raises(FileMissing):
        again.cache.load(page(1, 9))
    again.cache.load(page(50, 2))  # never written: all zero
    assert (again.counter("pinned"), again.get(page(50, 2)), again.get(page(3, 2))) == (0, -2, 3)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_signal_in_the_middle_of_a_batch_keeps_pages_waiting_and_the_batch_to_be_finished(nth: int) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    inner = new_disk()
    stage = Stage(FaultFiles(inner, [Rule("pwrite", "space/*", nth=nth, stall=interrupt)]))
    for number in (1, 3, 5):
        stage.put(page(number), number)
    with pytest.raises(KeyboardInterrupt):
        stage.cache.flush()
    assert stage.counter("waiting") == 3
    stage.put(page(1), 11)
    assert stage.cache.flush() == 1
    assert stage.counter("waiting") == 0
    again, repaired = restart(inner.image(lambda piece: False))
    assert (repaired, [again.get(page(number)) for number in (1, 3, 5)]) == (0, [11, 3, 5])


def test_page_half_written_on_a_full_disk_is_made_whole_before_its_copy_is_overwritten() -> None:
    inner = new_disk()
    rules = [
        Rule("pwrite", "space/1.data", nth=1, short=700),
        Rule("pwrite", "space/1.data", nth=2, error=errno.ENOSPC),
    ]
    stage = Stage(FaultFiles(inner, rules))
    stage.get(page(2))  # its entry is the first one
    stage.put(page(1), 1)
    with pytest.raises(StorageFull):
        stage.cache.flush()
    stage.put(page(2), 2)
    assert stage.cache.clean(1) == 2
    again, _ = restart(inner.image(lambda piece: False))
    assert (again.get(page(1)), again.get(page(2))) == (1, -2), "page 2 is on its way; page 1 is whole"
    again, _ = restart(inner.kill())
    assert (again.get(page(1)), again.get(page(2))) == (1, 2)


def test_copy_that_is_no_page_ends_the_read() -> None:
    """Story: a reader took a page from its copy that waited to be written. The copy was no page, through a stray write
    into memory, and the reader looked at it again without end.
    """
    stage = Stage(frames=40)
    for number in range(1, 41):
        stage.put(page(number), number)
    stage.get(page(60))  # evicts
    waiting = next(number for number in range(1, 41) if stage.cache.write_behind.find(page(number)) is not None)
    found = stage.cache.write_behind.find(page(waiting))
    assert found is not None and stage.frame(page(waiting)) == 0
    words, start = found
    words[start + 6] = page(59)  # the number of the page
    with pytest.raises(InvariantBroken, match="is not a page"):
        stage.get(page(waiting))
    words[start + 6] = page(waiting)
    assert stage.get(page(waiting)) == waiting
