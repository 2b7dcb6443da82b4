"""The double-write file: a power loss at every place of a batch, each copy and the header spoilt."""

from __future__ import annotations

import errno
import random
from typing import Any

import numpy as np
import pytest

from tests.disk.support import PAGE_BYTES, STORE, Places, Stage, new_disk, page, restart, spoil
from tidemark.engine.base.errors import ForeignFile, IoFailed, PageDamaged, VersionTooNew
from tidemark.engine.disk.double_write import FILE_NAME, HEADER_BYTES, rewrite_last_batch
from tidemark.engine.sealed.sealed_layout import seal
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.trace import TraceFiles

COUNT = 10
NUMBERS = [page(1 + number // 2 * 3 + number % 2, 1 + number % 2) for number in range(COUNT)]


def two_rounds() -> TraceFiles:
    """Every page written with one value, then all of them with another."""
    trace = TraceFiles(new_disk())
    stage = Stage(trace, frames=4 * COUNT)
    for value in (0, 100):
        for each, number in enumerate(NUMBERS):
            stage.put(number, value + each)
        stage.cache.flush()
    return trace


def values(stage: Stage) -> list[int]:
    return [stage.get(number) for number in NUMBERS]


def old_or_new(found: list[int], oldest: int) -> bool:
    return all(value in (each + oldest, each + oldest + 100) for each, value in enumerate(found))


@pytest.mark.parametrize("policy", ["drop", "keep", "sectors", "torn", "growth"])
def test_power_loss_at_any_call_leaves_every_page_whole_in_its_old_or_new_state(policy: Any) -> None:
    seed = 5
    print(f"seed {seed}")
    rng = random.Random(seed)
    start = new_disk()
    trace = TraceFiles(start.kill())
    stage = Stage(trace, frames=4 * COUNT)
    for value in (0, 100, 200):
        for each, number in enumerate(NUMBERS):
            stage.put(number, value + each)
        stage.cache.flush()
        trace.mark("round", value=value)
    repaired = 0
    for through in range(1, len(trace.events) + 1):
        rounds = sum(event.operation == "mark" and event.name == "round" for event in trace.events[:through])
        for _ in range(4):
            crashed = trace.replay(through, start).crash(rng, policy)
            again, mended = restart(crashed)
            repaired += mended
            found = values(again)
            if rounds == 0:
                assert all(value in (-2, each) for each, value in enumerate(found))
            else:
                assert old_or_new(found, (rounds - 1) * 100)
            assert rewrite_last_batch(crashed, Places(crashed), STORE) == 0, "a second time there is nothing to do"
    if policy in ("sectors", "torn"):
        assert repaired > 10, "pages were torn, or this test shows nothing"


@pytest.mark.parametrize("torn", range(COUNT))
def test_each_page_torn_in_its_place_is_written_again_from_its_copy(torn: int) -> None:
    """Power is lost when one page has half its sectors and the others all of them."""
    trace = two_rounds()
    last = max(event.number for event in trace.events if event.operation == "pwrite" and event.name == "space/2.data")
    files = trace.replay(last, new_disk())
    name, offset = f"space/{NUMBERS[torn] >> 32}.data", (NUMBERS[torn] & 0xFFFF) * PAGE_BYTES
    lost = range(offset + PAGE_BYTES // 2, offset + PAGE_BYTES)
    image = files.image(lambda piece: not (piece.name == name and piece.offset in lost))
    again, repaired = restart(image)
    assert repaired == 1
    assert values(again) == [100 + each for each in range(COUNT)]
    after = image.image(lambda piece: False)
    again, repaired = restart(after)
    assert (repaired, values(again)[torn]) == (0, 100 + torn), "the repair was durable"


@pytest.mark.parametrize("is_failed", [False, True], ids=["killed", "failed sync"])
def test_pages_of_the_last_batch_are_durable_before_their_copies_go(is_failed: bool) -> None:
    """Story: a process died before the pages of its last batch were synced, or their sync failed. The next process read
    whole pages from the cache of the system, and its first batch overwrote their copies: a power loss left torn pages
    without a copy.
    """
    trace = two_rounds()
    last = max(event.number for event in trace.events if event.operation == "pwrite" and event.name == "space/2.data")
    files = trace.replay(last, new_disk())
    if is_failed:
        for number in (1, 2):
            files.lose_sync(f"space/{number}.data", lambda piece: piece.offset % PAGE_BYTES < 512)
    second, repaired = restart(files.kill())
    assert repaired == 0
    second.writer.places = Unsynced(second.places)  # as of a store: what this process did not write it does not sync
    second.put(page(40), 7)
    second.cache.flush()
    lost = second.files.image(lambda piece: piece.offset % PAGE_BYTES < 512)
    assert values(restart(lost)[0]) == [100 + each for each in range(COUNT)]


class Unsynced:
    """Data files without their syncs."""

    def __init__(self, places: Places) -> None:
        self.place = places.place

    def sync_files(self) -> None:
        """Nothing of what was written before it was opened."""


def copy_at(number: int) -> int:
    return HEADER_BYTES + sorted(NUMBERS).index(NUMBERS[number]) * PAGE_BYTES


def test_spoilt_copy_of_a_whole_page_does_no_harm_and_both_spoilt_are_left_alone() -> None:
    trace = two_rounds()
    files = trace.replay(len(trace.events), new_disk())
    spoil(files, FILE_NAME, copy_at(0) + 100)
    again, repaired = restart(files)
    assert (repaired, values(again)[0]) == (0, 100)
    spoil(files, "space/1.data", (NUMBERS[0] & 0xFFFF) * PAGE_BYTES + 200)
    spoil(files, "space/1.data", (NUMBERS[2] & 0xFFFF) * PAGE_BYTES + 200)
    again, repaired = restart(files)
    assert repaired == 1
    assert again.get(NUMBERS[2]) == 102
    with pytest.raises(PageDamaged):
        again.get(NUMBERS[0])


@pytest.mark.parametrize("offset", [0, 9, 40, 48, 64, 64 + 8 * 255, 64 + 2048, 4095])
def test_spoilt_header_means_that_nothing_was_begun(offset: int) -> None:
    trace = two_rounds()
    files = trace.replay(len(trace.events), new_disk())
    before = {name: content for name, content in files.snapshot().items() if name.endswith(".data")}
    spoil(files, FILE_NAME, offset)
    assert restart(files)[1] == 0
    assert {name: content for name, content in files.snapshot().items() if name.endswith(".data")} == before


def test_intact_copy_of_an_older_batch_is_not_taken_for_this_ones() -> None:
    """A short batch leaves copies of an earlier, longer batch after its own; both may hold a copy of the same page."""
    stage = Stage(frames=4 * COUNT)
    for value in range(3):
        stage.put(page(1 + value), 10 + value)
    stage.cache.flush()  # pages 1, 2, 3 in the file
    stale = stage.files.snapshot()[FILE_NAME][HEADER_BYTES + PAGE_BYTES :][:PAGE_BYTES]
    stage.put(page(2), 50)
    stage.cache.flush()  # page 2 at the first place; after it the first copy of page 2 is still there
    for value in range(3):
        stage.put(page(1 + value), 70 + value)
    stage.cache.flush()
    spoil(stage.files, FILE_NAME, HEADER_BYTES + PAGE_BYTES, stale)  # as if this sector had not been written
    spoil(stage.files, "space/1.data", 2 * PAGE_BYTES + 300)
    again, repaired = restart(stage.files)
    assert repaired == 0
    with pytest.raises(PageDamaged):
        again.get(page(2))


def header_of(files: Any) -> Any:
    return np.frombuffer(files.snapshot()[FILE_NAME][:HEADER_BYTES], dtype=np.int64).copy()


def test_header_of_another_store_or_version_is_refused() -> None:
    trace = two_rounds()
    for word, value, error in ((2, 77, ForeignFile), (1, 0x5744 | 99 << 16 | 512 << 32, VersionTooNew)):
        files = trace.replay(len(trace.events), new_disk())
        words = header_of(files)
        words[word] = value
        seal(words, words.size)
        spoil(files, FILE_NAME, 0, words.tobytes())
        with pytest.raises(error):
            rewrite_last_batch(files, Places(files), STORE)


def test_header_with_impossible_numbers_writes_nothing() -> None:
    trace = two_rounds()
    files = trace.replay(len(trace.events), new_disk())
    for word, value in ((6, 1 << 40), (7, 8), (7, 4_096 * 8), (8, page(1, 9))):
        words = header_of(files)
        words[word] = value
        seal(words, words.size)
        spoil(files, FILE_NAME, 0, words.tobytes())
        assert rewrite_last_batch(files, Places(files), STORE) == 0


def test_file_that_is_missing_short_or_unreadable_repairs_nothing() -> None:
    files = new_disk()
    assert rewrite_last_batch(files, Places(files), STORE) == 0, "never written"
    file = files.open(FILE_NAME, writable=True)
    files.truncate(file, 100)
    assert rewrite_last_batch(files, Places(files), STORE) == 0
    files.unlink(FILE_NAME)
    assert rewrite_last_batch(files, Places(files), STORE) == 0
    trace = two_rounds()
    for nth in range(1, 2 + 2 * COUNT):  # the header, then each page in its place and its copy
        disk = trace.replay(len(trace.events), new_disk())
        faulty = FaultFiles(disk, [Rule("pread", "*", nth=nth, error=errno.EIO)])
        faulty.read_errors_latch = False
        repaired = rewrite_last_batch(faulty, Places(faulty), STORE)
        assert repaired == (1 if nth % 2 == 0 else 0), "a page that cannot be read is written again from its copy"
    faulty = FaultFiles(trace.replay(len(trace.events), new_disk()), [Rule("pread", error=errno.EIO)])
    with pytest.raises(IoFailed):
        rewrite_last_batch(faulty, Places(faulty), STORE)


def test_data_file_too_short_for_its_page_is_lengthened_by_the_repair() -> None:
    trace = two_rounds()
    files = trace.replay(len(trace.events), new_disk())
    last = max(number & 0xFFFF for number in NUMBERS if number >> 32 == 2)
    file = files.open("space/2.data", writable=True)
    files.truncate(file, last * PAGE_BYTES + 8)
    again, repaired = restart(files)
    assert repaired == 1
    assert values(again) == [100 + each for each in range(COUNT)]
