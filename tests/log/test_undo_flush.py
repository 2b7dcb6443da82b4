"""Flushing: what `flush_through` has answered is durable, whichever thread flushes, is interrupted or fails."""

from __future__ import annotations

import errno
import random
import threading
from typing import Any

import numpy as np
import pytest

from tests.elsewhere import at_once
from tests.log.undo_support import Undo, geometry_of, read
from tests.store.interrupts import interrupt_at
from tidemark.engine.base.errors import InvariantBroken, StoreFailed
from tidemark.engine.disk.disk_layout import UNDO_ALLOC, UNDO_FREE, UNDO_LCP
from tidemark.engine.disk.undo_kernels import append_undo, undo_region_words
from tidemark.engine.disk.undo_ring import (
    buffer_words_of,
    create_undo_files,
    group_bytes_max,
    undo_geometry,
)
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles, Personality


def on_disk(undo: Undo) -> list[int]:
    """The marker words of the records a power loss would leave, oldest first."""
    return [made.values[3] for made in read(undo.after_power_loss(), undo.geometry)[1]]


def test_many_threads_find_what_they_flushed_in_a_power_loss_image() -> None:
    undo = Undo(geometry_of(1 << 20), 2_000)
    missing: list[int] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        for step in range(20):
            value = number * 1_000 + step
            made = append(undo, value, rng.randrange(300))
            undo.log.flush_through(made)
            if step % 5 == number % 5 and value not in on_disk(undo):
                missing.append(value)

    at_once(work, range(12))
    assert not missing
    everything = on_disk(undo)
    assert sorted(everything) == sorted(n * 1_000 + step for n in range(12) for step in range(20))
    assert undo.log.counters()["groups_written"] <= 240


def test_records_that_are_not_written_yet_count_as_used() -> None:
    """Story: a restore judged the free space by what was written. On a busy machine that came late: the log was full in
    the middle of an epoch, the local checkpoint that freed space closed the epoch, and rows got a later one.
    """
    undo = Undo(geometry_of(1 << 20), 2_000)
    made = append(undo, 1, 100)
    used = undo.log.bytes_used
    assert used == undo.log.counters()["bytes_made"] > 100 * 8 and undo.log.bytes_written == 0
    undo.log.flush_through(made)
    assert undo.log.bytes_used == undo.log.bytes_written > used


def append(undo: Undo, value: int, words: int) -> int:
    """As a commit does: make space before taking the latch, check again under it. Return the LSN."""
    source = np.full(1 + words, value, dtype=np.int64)
    while True:
        undo.log.make_room(6 + words)
        with undo.latch:
            lsn = int(append_undo(undo.mem, UNDO_FREE, 1, 2, 3, source, 0, 1 + words))
        if lsn > 0:
            return lsn


def test_records_made_while_the_flusher_is_at_the_disk_go_with_the_next_group_together() -> None:
    at_disk, resume = threading.Event(), threading.Event()

    def stall() -> None:
        at_disk.set()
        resume.wait()

    undo = Undo(wrap=lambda files: FaultFiles(files, [Rule("fdatasync", "undo/*", stall=stall)]))
    first = undo.append(UNDO_FREE, 1)
    threads = [threading.Thread(target=undo.log.flush_through, args=(first.lsn,))]
    threads[0].start()
    at_disk.wait()
    later = [undo.append(UNDO_FREE, number) for number in range(2, 10)]
    threads += [threading.Thread(target=undo.log.flush_through, args=(made.lsn,)) for made in later]
    for thread in threads[1:]:
        thread.start()
    resume.set()
    for thread in threads:
        thread.join()
    assert undo.log.counters()["groups_written"] == 2
    assert on_disk(undo) == list(range(1, 10))


def test_flush_through_an_lsn_that_does_not_exist_returns() -> None:
    undo = Undo()
    undo.log.flush_through(1 << 50)
    made = undo.append(UNDO_ALLOC)
    undo.log.flush_through(made.lsn + (1 << 50))
    assert undo.log.durable_lsn == made.lsn + 40
    undo.log.flush_through(0)
    assert undo.log.counters()["flushes"] == 1


def test_flusher_interrupted_anywhere_leaves_a_log_that_others_flush() -> None:
    first = Undo()
    first.append(UNDO_FREE, 1)
    first.mark(1, 1)
    points = interrupt_at(-1, lambda: first.log.flush_through(1 << 40)).count
    assert points > 40
    for nth in range(1, points + 1):
        undo = Undo()
        undo.append(UNDO_FREE, 1)
        mark = undo.mark(1, 1)
        undo.append(UNDO_FREE, 2)
        point = interrupt_at(nth, lambda undo=undo: undo.log.flush_through(1 << 40))
        undo.append(UNDO_FREE, 3)
        other = threading.Thread(target=undo.log.flush_through, args=(1 << 40,))
        other.start()
        other.join(60)
        assert not other.is_alive(), point.where
        _, records = read(undo.after_power_loss(), undo.geometry)
        assert records == undo.made, point.where
        assert undo.log.mark_place(mark.lsn) == (2, 4_096), point.where
        assert not undo.latch.locked() and undo.log.flusher is None, point.where


@pytest.mark.parametrize("personality", ["clean", "reverted", "late"])
@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_failed_write_or_sync_stops_the_store_and_no_commit_is_reported_durable(
    operation: str, personality: Personality
) -> None:
    numbers = [errno.EIO] if operation == "fdatasync" else [errno.EIO, errno.ENOSPC]
    for number in numbers:
        rules = [Rule(operation, "undo/*", nth=2, error=number)]
        memory = MemoryFiles(personality=personality)
        create_undo_files(memory, geometry_of())
        undo = Undo(memory=memory, wrap=lambda files, rules=rules: FaultFiles(files, rules))
        first = undo.write(UNDO_FREE, 1)
        second = undo.append(UNDO_FREE, 2)
        if operation == "fdatasync" and personality == "late":
            undo.log.flush_through(second.lsn)  # this disk reports the error of a sync at the next one
            second = undo.append(UNDO_FREE, 3)
        with pytest.raises(StoreFailed):
            undo.log.flush_through(second.lsn)
        assert first.lsn < undo.log.durable_lsn <= second.lsn
        assert undo.files.failure.first is not None
        third = undo.append(UNDO_FREE, 3)
        for made in (second, third):
            with pytest.raises(StoreFailed):
                undo.log.flush_through(made.lsn)
        undo.log.flush_through(first.lsn)  # durable data stays durable
        assert on_disk(undo)[0] == 1 and 3 not in on_disk(undo)


def test_waiters_of_a_flusher_that_fails_fail_too() -> None:
    at_disk, resume = threading.Event(), threading.Event()

    def stall() -> None:
        at_disk.set()
        resume.wait()

    rules = [Rule("fdatasync", "undo/*", stall=stall, error=errno.EIO)]
    undo = Undo(wrap=lambda files: FaultFiles(files, rules))
    lsns = [undo.append(UNDO_FREE, number).lsn for number in range(4)]
    outcomes: list[str] = []

    def wait(lsn: int) -> None:
        try:
            undo.log.flush_through(lsn)
            outcomes.append("durable")
        except StoreFailed:
            outcomes.append("failed")

    threads = [threading.Thread(target=wait, args=(lsn,)) for lsn in lsns]
    threads[0].start()
    at_disk.wait()
    for thread in threads[1:]:
        thread.start()
    resume.set()
    for thread in threads:
        thread.join(60)
    assert outcomes == ["failed"] * 4


def test_flush_over_the_tail_is_refused_before_a_byte_is_written() -> None:
    """Without reservations, when everything is written: the last guard."""
    undo = Undo(geometry_of(1 << 15, 3), 1_400)
    blocks = undo.geometry.capacity_bytes // 4_096
    for number in range(blocks - 1):
        undo.write(UNDO_FREE, number)
    before = undo.after_power_loss().snapshot()
    undo.append(UNDO_FREE, 99)
    with pytest.raises(InvariantBroken, match="overwrite its tail"):
        undo.log.flush_through(1 << 40)
    assert undo.memory.kill().snapshot() == before
    assert on_disk(undo) == list(range(blocks - 1))


def test_group_is_written_with_one_write_and_one_sync_and_two_where_the_file_ends() -> None:
    for operation in ("pwrite", "fdatasync"):
        calls: list[None] = []
        rule = Rule(operation, "undo/*", once=False, stall=lambda calls=calls: calls.append(None))
        undo = Undo(geometry_of(1 << 15, 3), 1_400, wrap=lambda files, rule=rule: FaultFiles(files, [rule]))
        for number in range(3):
            calls.clear()
            undo.write(UNDO_FREE, *range(1_000))  # 3 blocks of 8: the third crosses
            assert len(calls) == (2 if number == 2 else 1)


def test_group_written_again_after_a_signal_is_the_same_though_more_could_be_filtered() -> None:
    def stall() -> None:
        raise KeyboardInterrupt

    undo = Undo(wrap=lambda files: FaultFiles(files, [Rule("fdatasync", "undo/*", stall=stall)]))
    undo.append(2, 1, epoch=5)
    undo.append(UNDO_FREE, 2, 3, epoch=5)
    with pytest.raises(KeyboardInterrupt):
        undo.log.flush_through(1 << 40)
    written = undo.memory.kill().snapshot()
    undo.restorable = 9
    undo.log.flush_through(1 << 40)
    assert undo.after_power_loss().snapshot() == written
    assert on_disk(undo) == [1, 2]


def test_padding_is_zero_whatever_was_written_before() -> None:
    undo = Undo()
    undo.write(UNDO_FREE, *[-1] * 900)
    begun = undo.log.head
    undo.write(UNDO_FREE, -1)
    block = undo.after_power_loss().snapshot()["undo/0000.undo"][begun : undo.log.head]
    assert len(block) == 4_096 and not any(block[(24 + 6) * 8 :])


def test_mark_is_first_of_its_group_and_known_by_its_place_when_durable() -> None:
    undo = Undo()
    undo.append(UNDO_FREE, 1)
    first = undo.mark(1, 5)
    undo.append(UNDO_FREE, 2)
    second = undo.mark(2, 6)
    third = undo.mark(3, 7)
    with pytest.raises(InvariantBroken):
        Undo().log.mark_place(first.lsn)
    undo.log.flush_through(third.lsn)
    places = [undo.log.mark_place(made.lsn) for made in (first, second, third)]
    assert places == [(2, 4_096), (3, 8_192), (4, 12_288)]
    found, records = read(undo.after_power_loss(), undo.geometry)
    assert records == undo.made
    for group, offsets in found.backward():
        if group.sequence > 1:
            assert int(group.words[offsets[-1]]) & 0xFF == UNDO_LCP


def test_make_room_flushes_only_when_it_must_and_refuses_what_no_buffer_takes() -> None:
    undo = Undo(buffer_words=600)
    assert not undo.log.wants_flush()
    undo.append(UNDO_FREE, *range(300))
    assert undo.log.wants_flush()
    undo.log.make_room(600 - 64 - 305)
    assert undo.log.counters()["flushes"] == 0
    undo.log.make_room(600 - 64 - 304)
    assert undo.log.counters()["flushes"] == 1 and undo.log.has_room(600 - 64)
    with pytest.raises(InvariantBroken):
        undo.log.make_room(600 - 63)


def test_buffers_too_large_for_the_ring_are_refused() -> None:
    geometry = geometry_of(1 << 15, 3)
    most = group_bytes_max(geometry) // 8 - 24
    Undo(geometry, most)
    with pytest.raises(InvariantBroken, match="too large"):
        Undo(geometry, most + 1)
    for size in (1 << 20, 1 << 26, 1 << 33):
        ring = undo_geometry(size)
        assert ring.is_possible() and size * 0.98 < ring.capacity_bytes <= size
        assert ring.names()[0] == "undo/0000.undo"
        assert (buffer_words_of(ring) + 24) * 8 <= group_bytes_max(ring)
        assert buffer_words_of(ring) >= 7_900 and undo_region_words(buffer_words_of(ring)) <= 1 << 20


def test_files_left_by_a_crash_while_they_were_made_are_made_anew() -> None:
    geometry = geometry_of(1 << 15, 3)
    calls: list[Any] = []
    create_undo_files(FaultFiles(MemoryFiles(), [Rule("*", once=False, stall=lambda: calls.append(0))]), geometry)
    for nth in range(1, len(calls) + 1):
        memory = MemoryFiles()

        def stop() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            create_undo_files(FaultFiles(memory, [Rule("*", nth=nth, stall=stop)]), geometry)
        left = memory.crash(random.Random(nth))
        create_undo_files(left, geometry)
        made = left.image(lambda piece: False).snapshot()
        assert made == {"undo/": b"", **dict.fromkeys(geometry.names(), bytes(geometry.file_bytes))}


def test_counters_say_what_was_made_and_written() -> None:
    undo = Undo()
    undo.restorable = 1
    undo.append(UNDO_FREE, 1, epoch=1)
    undo.append(2, 1, 2, 3, epoch=1)
    undo.write(UNDO_ALLOC)
    counters = undo.log.counters()
    assert (counters["records_made"], counters["bytes_made"]) == (3, (6 + 8 + 5) * 8)
    assert (counters["records_filtered"], counters["bytes_filtered"]) == (1, 64)
    assert (counters["groups_written"], counters["bytes_written"], counters["flushes"]) == (1, 4_096, 1)
    assert (counters["head"], counters["tail"], counters["durable_lsn"]) == (4_096, 0, 8 + 19 * 8)
    assert counters["capacity_bytes"] == undo.geometry.capacity_bytes
