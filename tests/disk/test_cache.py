"""The page cache over files: holding, threads, cleaning, flushing."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.disk import kernels as k
from tests.disk.support import (
    BLOCK,
    CACHE,
    EXTENT_PAGES,
    FIRST_LSN,
    OWNER,
    PAGE_BYTES,
    PAGE_WORDS,
    Stage,
    new_disk,
    page,
    restart,
    spoil,
)
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import (
    MemoryExhausted,
    NoSuchTable,
    PageDamaged,
)
from tidemark.engine.disk import cache_layout as c
from tidemark.engine.disk.cache import distinct
from tidemark.engine.disk.disk_layout import DP_LSN, DP_OWNER
from tidemark.engine.memory import arena_layout as a
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.trace import TraceFiles

ALL = [page(number, file) for file in (1, 2) for number in range(1, EXTENT_PAGES + 1)]


def test_ten_times_more_pages_than_frames_come_back_from_disk_with_their_values() -> None:
    seed = 11
    print(f"seed {seed}")
    rng = random.Random(seed)
    stage = Stage()
    values: dict[int, int] = {}
    for step in range(3_000):
        number = rng.choice(ALL)
        if rng.random() < 0.5:
            values[number] = step
            stage.put(number, step)
        elif number in values:
            assert stage.get(number) == values[number]
    assert {number: stage.get(number) for number in values} == values
    assert stage.counter("pinned") == 0
    assert stage.counter("resident") <= stage.counter("frames") == 25
    stage.cache.flush()
    again, repaired = restart(stage.files.image(lambda piece: False))
    assert repaired == 0
    assert {number: again.get(number) for number in values} == values


def test_fresh_page_is_formatted_unread_and_takes_owner_of_its_extent_and_lsn_of_the_log() -> None:
    stage = Stage()
    stage.cache.hold([page(3) | c.FRESH_PAGE])
    frame = stage.frame(page(3))
    assert stage.mem[frame + DP_OWNER] == OWNER
    assert stage.mem[frame + DP_LSN] == FIRST_LSN - 8, "not below any record there is (NDB bug #54986)"
    assert stage.cache.reader.pages_read == 0
    stage.cache.release([page(3)])
    stage.cache.hold([page(4)])
    assert stage.cache.reader.pages_read == 1, "without the mark it is read"
    frame = stage.frame(page(4))
    assert (stage.mem[frame + DP_OWNER], stage.mem[frame + DP_LSN]) == (OWNER, 0), "all zero is an empty page"
    stage.cache.release([page(4)])


def test_page_written_between_the_plan_and_the_hold_is_read_not_formatted() -> None:
    stage = Stage()
    stage.put(page(3), 5)
    stage.cache.flush()
    stage.cache.forget_files([1])
    assert stage.frame(page(3)) == 0
    stage.cache.hold([page(3) | c.FRESH_PAGE])
    assert k.value_of(stage.mem, CACHE, page(3)) == 5
    stage.cache.release([page(3)])


def test_fresh_page_of_another_owner_in_memory_is_formatted_again() -> None:
    stage = Stage()
    stage.put(page(3), 5)
    extent = BLOCK + 5 * a.BLOCK_WORDS
    stage.mem[extent + c.EX_TABLE] = 8
    stage.mem[extent + c.EX_PAGES + 2] = PAGE_WORDS - 16
    stage.cache.hold([page(3) | c.FRESH_PAGE])
    assert k.value_of(stage.mem, CACHE, page(3)) == -2
    assert stage.mem[stage.frame(page(3)) + DP_OWNER] == 8 | 2 << 32
    stage.cache.release([page(3)])
    stage.mem[extent + c.EX_TABLE] = stage.mem[extent + c.EX_NUMBER] = 0
    with pytest.raises(NoSuchTable):
        stage.cache.hold([page(9) | c.FRESH_PAGE])
    assert stage.counter("pinned") == 0


def test_adjacent_pages_are_read_and_written_in_one_call_each() -> None:
    stage = Stage()
    for number in (5, 6, 7, 9):
        stage.put(page(number), number)
    trace = TraceFiles(stage.files)
    stage = Stage(trace)
    stage.cache.hold([page(number) for number in (9, 7, 6, 5)])
    reads = [(event.offset, event.length) for event in trace.events if event.operation == "pread"]
    assert reads == [(5 * PAGE_BYTES, 3 * PAGE_BYTES), (9 * PAGE_BYTES, PAGE_BYTES)]
    for number in (9, 5, 6, 7):
        k.put_value(stage.mem, CACHE, page(number), number)
    assert stage.cache.flush() == 4
    writes = [
        (event.offset, event.length)
        for event in trace.events
        if event.operation == "pwrite" and event.name == "space/1.data"
    ]
    assert writes == [(5 * PAGE_BYTES, 3 * PAGE_BYTES), (9 * PAGE_BYTES, PAGE_BYTES)]


def test_order_of_writes_undo_then_double_write_then_places_then_sync_before_the_next_batch() -> None:
    trace = TraceFiles(new_disk())
    stage = Stage(trace, frames=40)  # batches of 10
    lsns = {number: stage.put(page(number), number) for number in range(1, 16)}
    assert stage.cache.flush() == 15
    shown = [
        f"{event.operation} {event.name}" + (f" {event.values['lsn']}" if event.values else "")
        for event in trace.events
        if event.operation in ("mark", "pwrite", "fdatasync")
    ]
    written = ["pwrite double-write", "fdatasync double-write", "pwrite space/1.data"]
    synced = ["fdatasync space/1.data", "fdatasync space/2.data"]
    # The first sync is for pages another process may have left; each sync comes before the copies it replaces are
    # overwritten.
    assert shown == [f"mark undo {lsns[10]}", *synced, *written, f"mark undo {lsns[15]}", *synced, *written, *synced]


def test_no_frame_for_all_pinned_pages_is_an_error_after_waiting_and_none_when_pins_go() -> None:
    stage = Stage(frames=25, clock=SystemClock(), wait_ms=1)
    held = [page(number) for number in range(1, 25)]
    stage.cache.hold(held)
    with pytest.raises(MemoryExhausted, match="page_buffer is pinned by other threads"):
        stage.cache.hold([page(40), page(41)])
    with pytest.raises(MemoryExhausted, match="25 frames, 26 are needed"):
        stage.cache.hold([page(number) for number in range(1, 27)])
    stage.cache.hold([page(40)])
    stage.cache.release([page(40)])
    stage.cache.release(held)
    assert stage.counter("pinned") == 0
    stage.cache.hold([page(number) for number in range(1, 26)])


def test_cleaning_writes_cold_pages_from_the_front_and_hot_ones_only_when_no_cold_is_dirty() -> None:
    stage = Stage(frames=40)
    for number in range(1, 41):
        stage.put(page(number), number)
    cold = [number for number in range(1, 41) if number > int(stage.mem[CACHE + c.C_HOT_MAX])]
    assert stage.cache.clean(3) == 3
    assert stage.counter("dirty") == 37
    assert len(cold) == 4
    assert stage.cache.clean(100) == 1, "the last cold page"
    assert stage.cache.clean(2) == 2
    again, _ = restart(stage.files.image(lambda piece: True))
    assert [number for number in range(1, 41) if again.get(page(number)) == number] == [1, 2, *cold]


def test_evicted_page_is_found_on_its_way_to_the_disk_unread_and_the_newest_copy_of_two() -> None:
    stage = Stage(frames=40)
    for number in range(1, 41):
        stage.put(page(number), number)
    cold = [number for number in range(1, 41) if number > int(stage.mem[CACHE + c.C_HOT_MAX])]
    assert stage.get(page(60)) == -2
    assert (stage.counter("waiting"), stage.counter("pages_written")) == (len(cold), 0)
    reads = stage.counter("pages_read")
    assert stage.frame(cold[0]) == 0
    assert stage.get(page(cold[0])) == cold[0]
    assert stage.counter("pages_read") == reads
    stage.put(page(cold[0]), 77)
    stage.cache.flush()
    assert (stage.counter("waiting"), stage.cache.write_behind.find(page(cold[0]))) == (0, None)
    again, _ = restart(stage.files.image(lambda piece: False))
    assert again.get(page(cold[0])) == 77


def test_flush_keeps_its_rate_and_leaves_pages_that_became_dirty_meanwhile() -> None:
    stage = Stage(frames=40)
    for number in range(1, 31):
        stage.put(page(number), number)
    started = stage.clock.monotonic()
    real, seen = stage.undo.flush_through, []

    def flush_through(lsn: int) -> None:
        if not seen:
            for number in (1, 35):
                stage.cache.hold([page(number) | c.FRESH_PAGE], is_reference=False)
                k.put_value(stage.mem, CACHE, page(number), 100)
                stage.cache.release([page(number)])
        seen.append(lsn)
        real(lsn)

    stage.undo.flush_through = flush_through  # type: ignore[method-assign]
    assert stage.cache.flush(bytes_per_second=10 * PAGE_BYTES) == 30
    assert stage.clock.monotonic() - started == pytest.approx(3.0)
    assert stage.counter("dirty") == 2
    again, _ = restart(stage.files.image(lambda piece: False))
    assert [again.get(page(number)) for number in (1, 2, 30, 35)] == [1, 2, 30, -2]
    assert stage.cache.flush() == 2


@pytest.mark.parametrize("seed", range(2))
def test_eight_threads_on_25_frames_lose_no_value_and_leave_no_pin(seed: int) -> None:
    print(f"seed {seed}")
    stage = Stage(frames=25, clock=SystemClock())
    values: list[dict[int, int]] = [{} for _ in range(8)]

    def work(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        own = ALL[number::8]
        for step in range(150):
            pages = rng.sample(own, rng.randint(1, 5))
            shared = rng.sample(ALL, 2)
            stage.cache.hold([each | c.FRESH_PAGE for each in pages] + shared)
            for each in pages:
                assert k.value_of(stage.mem, CACHE, each) == values[number].get(each, -2)
                values[number][each] = step * 8 + number
                assert k.put_value(stage.mem, CACHE, each, step * 8 + number) > 0
            assert all(k.value_of(stage.mem, CACHE, each) not in (-1, -3) for each in shared)
            stage.cache.release(pages + shared)
            if step % 10 == number:
                stage.cache.clean(8)
                stage.cache.read_ahead(rng.sample(ALL, 6))
            if step % 50 == 10 + number:
                stage.cache.flush()
                stage.cache.ensure(rng.sample(ALL, 30))

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result(timeout=200)
    stage.cache.close()
    assert stage.counter("pinned") == 0
    stage.cache.flush()
    again, repaired = restart(stage.files.image(lambda piece: False))
    assert repaired == 0
    for own in values:
        assert {each: again.get(each) for each in own} == own


def test_reader_of_a_page_being_loaded_waits_for_it_and_reads_it_once() -> None:
    gate, reached = threading.Event(), threading.Event()

    def stall() -> None:
        reached.set()
        assert gate.wait(100)

    stage = Stage(FaultFiles(new_disk(), [Rule("pread", "space/1.data", stall=stall)]), clock=SystemClock())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(stage.get, page(1))
        assert reached.wait(100)
        second = pool.submit(stage.get, page(1))
        while not stage.cache.waiting:
            pass
        gate.set()
        assert (first.result(100), second.result(100)) == (-2, -2)
    assert stage.cache.reader.pages_read == 1


def test_read_ahead_brings_pages_in_unpinned_and_its_errors_are_the_readers() -> None:
    stage = Stage(frames=40)
    for number in range(1, 9):
        stage.put(page(number), number)
    stage.cache.flush()
    spoil(stage.files, "space/1.data", 3 * PAGE_BYTES + 200, b"\xfe")
    again = Stage(stage.files.kill(), frames=40)
    again.cache.read_ahead([page(number) for number in (5, 6, 7)])
    again.cache.ahead.drain()
    assert again.cache.reader.pages_read == 3
    assert [again.get(page(number)) for number in (5, 6, 7)] == [5, 6, 7]
    assert again.cache.reader.pages_read == 3
    again.cache.read_ahead([page(3)])
    again.cache.ahead.drain()
    assert (again.counter("pinned"), again.frame(page(3))) == (0, 0)
    with pytest.raises(PageDamaged):
        again.get(page(3))
    again.cache.read_ahead([page(4)])
    again.cache.ahead.drain()
    assert again.frame(page(4)) > 0, "an error does not end it"
    again.cache.close()
    again.cache.close()
    again.cache.read_ahead([page(8)])
    assert again.frame(page(8)) == 0


def test_references_of_read_ahead_and_commit_make_no_page_hotter() -> None:
    stage = Stage(frames=40)
    scanned = [page(number, 2) for number in range(1, 61)]
    for number in range(1, 37):
        stage.get(page(number))
    hot = int(stage.mem[CACHE + c.C_HOT])
    for number in scanned:
        stage.cache.read_ahead([number])
        stage.cache.ahead.drain()
        stage.get(number)
        stage.cache.hold([number], is_reference=False)
        stage.cache.release([number])
    assert stage.counter("hot") == hot
    assert all(stage.frame(page(number)) for number in range(1, 37))
    stage.cache.close()


def test_forgotten_pages_of_a_file_are_gone_dirty_or_not_and_held_ones_are_refused() -> None:
    stage = Stage(wait_ms=0)
    stage.put(page(1), 1)
    stage.get(page(2))
    stage.put(page(1, 2), 7)
    stage.cache.hold([page(3)])
    with pytest.raises(MemoryExhausted, match="pinned by other threads"):
        stage.cache.forget_files([1])
    assert [bool(stage.frame(each)) for each in (page(1), page(2), page(3), page(1, 2))] == [False, False, True, True]
    stage.cache.release([page(3)])
    stage.cache.forget_files([1])
    assert (stage.frame(page(3)), stage.counter("dirty"), stage.counter("resident")) == (0, 1, 1)
    assert stage.get(page(1, 2)) == 7, "the other file's page is as it was"


def test_pages_of_a_forgotten_file_are_not_read_ahead_any_more() -> None:
    stage = Stage()
    wanted = stage.cache.ahead.wanted
    wanted.extend([page(1), page(1, 2), page(2)])  # asked for, and the thread has not come to it
    stage.cache.forget_files([1])
    assert list(wanted) == [page(1, 2)]


def test_cache_of_a_page_is_that_of_its_tablespace() -> None:
    stage = Stage()
    assert k.cache_at(stage.mem, page(1)) == k.cache_at(stage.mem, page(77, 2)) == CACHE
    for number in (0, -1, page(1, 3), page(1, 600), 1 << 60):
        assert k.cache_at(stage.mem, number) == 0
    stage.mem[a.S_FILE_DIRECTORY] = 0
    assert k.cache_at(stage.mem, page(1)) == 0


def test_distinct_pages_keep_the_mark_of_any_mention() -> None:
    assert distinct([5, 3, 5 | c.FRESH_PAGE, 3]).tolist() == [3, 5 | c.FRESH_PAGE]
    assert distinct([]).size == 0
    with pytest.raises(MemoryExhausted, match="page_buffer has no room"):
        Stage(frames=1)


def test_dirty_hot_pages_are_written_when_every_cold_page_is_pinned() -> None:
    stage = Stage(frames=25, clock=SystemClock())
    hot_max = int(stage.mem[CACHE + c.C_HOT_MAX])
    for number in range(1, 26):
        stage.put(page(number), number)
    cold = [page(number) for number in range(1, 26) if number > hot_max]
    stage.cache.hold(cold, is_reference=False)
    assert stage.get(page(60)) == -2
    assert stage.counter("dirty") < 25
    assert all(stage.frame(number) for number in cold)
    stage.cache.release(cold)
    assert [stage.get(page(number)) for number in range(1, 26)] == list(range(1, 26))


def test_thread_that_needs_a_frame_while_another_cleans_waits_for_it() -> None:
    gate, reached = threading.Event(), threading.Event()

    def stall() -> None:
        reached.set()
        assert gate.wait(100)

    files = FaultFiles(new_disk(), [Rule("fdatasync", "double-write", stall=stall)])
    stage = Stage(files, frames=25, clock=SystemClock())
    for number in range(1, 26):
        stage.put(page(number), number)
    with ThreadPoolExecutor(2) as pool:
        flushed = pool.submit(stage.cache.flush)
        assert reached.wait(100)
        others = pool.submit(stage.get, page(60))
        gate.set()
        assert flushed.result(100) == 25 or stage.counter("dirty") == 0
        assert others.result(100) == -2
    assert stage.counter("pinned") == 0


def test_holder_waits_for_pages_reserved_by_others_and_continues_when_they_are_released() -> None:
    stage = Stage(frames=25, clock=SystemClock())
    first = [page(number) for number in range(1, 21)]
    second = [page(number, 2) for number in range(1, 21)]
    stage.cache.hold(first)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(stage.cache.hold, second)
        assert not held.done()
        assert stage.cache.reserved == 20
        stage.cache.release(first)
        held.result(100)
    assert stage.counter("pinned") == 20
    stage.cache.release(second)
    assert stage.cache.reserved == stage.counter("pinned") == 0
