"""Where the UNDO log ends, and whether that end is a tail or damage (F21, F41, F55, F56, F57)."""

from __future__ import annotations

import errno

import numpy as np
import pytest

import tidemark as tm
from tests.log.support import BLOCK, DAMAGE, patched
from tests.log.undo_support import STORE, Made, Undo, geometry_of, read, reader
from tidemark.engine.base.errors import UndoDamaged
from tidemark.engine.disk.disk_layout import UNDO_ALLOC, UNDO_FREE, UNDO_GROUP
from tidemark.engine.disk.undo_reader import UndoReader
from tidemark.engine.disk.undo_ring import UndoPosition, group_bytes_max
from tidemark.engine.log.geometry import Geometry
from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION, seal
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles


def of_groups(count: int, geometry: Geometry | None = None) -> tuple[Undo, list[Made], list[tuple[int, int]]]:
    """A log of groups of one record; the records; position and bytes of each group."""
    undo = Undo(geometry or geometry_of(1 << 17), 2_000)
    made, places = [], []
    for number in range(count):
        begun = undo.log.head
        made.append(undo.write(UNDO_FREE, *range(1 + number * 131 % 1_100)))
        places.append((begun, undo.log.head - begun))
    return undo, made, places


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_group_is_a_tail_at_the_end_and_undo_damaged_before(damage: str) -> None:
    undo, made, places = of_groups(12, geometry_of(1 << 15, 6))
    whole = undo.after_power_loss().snapshot()
    for number, (position, size) in enumerate(places):
        file, offset, _, length = undo.geometry.pieces(position, size)[0]
        name = undo.geometry.name(file)
        content = DAMAGE[damage](whole[name], offset, length)
        if content == whole[name]:
            continue
        files = MemoryFiles.from_snapshot({**whole, name: content})
        if number == len(places) - 1:
            assert read(files, undo.geometry)[1] == made[:-1]
            with pytest.raises(UndoDamaged, match="damaged or missing"):
                read(files, undo.geometry, needed=len(places))
        else:
            with pytest.raises(UndoDamaged) as caught:
                read(files, undo.geometry)
            assert (caught.value.file, caught.value.offset, caught.value.sequence) == (name, offset, number + 1)
        assert files.snapshot() == {**whole, name: content}, "nothing was changed"


def test_two_neighbours_damaged_name_the_first() -> None:
    undo, _, places = of_groups(9)
    content = undo.after_power_loss().snapshot()
    name = "undo/0000.undo"
    content[name] = patched(patched(content[name], places[3][0], bytes(BLOCK)), places[4][0], bytes(BLOCK))
    with pytest.raises(UndoDamaged) as caught:
        read(MemoryFiles.from_snapshot(content), undo.geometry)
    assert caught.value.sequence == 4


def test_successor_of_the_largest_group_is_found() -> None:
    geometry = geometry_of(1 << 17, 3)
    largest = group_bytes_max(geometry) // 8 - 24
    undo = Undo(geometry, largest)
    undo.write(UNDO_FREE, *range(largest - 200))
    assert undo.log.head == group_bytes_max(geometry)
    undo.write(UNDO_ALLOC)
    content = undo.after_power_loss().snapshot()
    content["undo/0000.undo"] = patched(content["undo/0000.undo"], 0, bytes(BLOCK))
    with pytest.raises(UndoDamaged, match="group 2 after it is intact"):
        read(MemoryFiles.from_snapshot(content), geometry)


@pytest.mark.parametrize("kept", [0, 512, BLOCK, 2 * BLOCK, 2 * BLOCK + 1_024])
def test_torn_last_group_is_a_tail_and_is_written_over_for_good(kept: int) -> None:
    undo, made, _ = of_groups(4)
    end = undo.log.head
    before = undo.after_power_loss().snapshot()
    torn = undo.write(UNDO_FREE, *range(1_200))
    after = undo.after_power_loss().snapshot()
    name = "undo/0000.undo"
    content = {**before, name: before[name][:end] + after[name][end : end + kept] + before[name][end + kept :]}
    files = MemoryFiles.from_snapshot(content)
    found, records = read(files, undo.geometry)
    assert records == made and torn not in records
    found.seal_tail()
    position = found.next_position()
    found.close()
    assert (position.sequence, position.position) == (5, end)
    again = Undo(undo.geometry, memory=files, position=position, incarnation=2)
    new = again.write(UNDO_ALLOC)  # smaller than the torn group: the rest of that group lies after it
    assert read(again.after_power_loss(), undo.geometry)[1] == [*made, new]


def test_group_of_an_older_opening_after_a_newer_one_is_no_successor() -> None:
    """A disk that lost data it had reported durable: two openings wrote groups of the same sequence and place."""
    undo, made, _ = of_groups(3)
    before = undo.after_power_loss().snapshot()
    position = reader_position(MemoryFiles.from_snapshot(before), undo.geometry)
    undo.write(UNDO_FREE, 1)
    undo.write(UNDO_FREE, 2)
    old = undo.after_power_loss().snapshot()
    again = Undo(undo.geometry, memory=MemoryFiles.from_snapshot(before), position=position, incarnation=2)
    new = again.write(UNDO_FREE, 3)
    name = "undo/0000.undo"
    mixed = again.after_power_loss().snapshot()
    at = again.log.head
    mixed[name] = mixed[name][:at] + old[name][at:]
    found = reader(MemoryFiles.from_snapshot(mixed), undo.geometry)
    assert [group.sequence for group in found.forward(1, 0)] == [1, 2, 3, 4]
    with pytest.raises(UndoDamaged, match="group 5"):
        found.find_end(1, 0)
    assert new.lsn > made[-1].lsn


def reader_position(files: MemoryFiles, geometry: Geometry) -> UndoPosition:
    found = reader(files, geometry)
    found.find_end(1, 0)
    return found.next_position()


@pytest.mark.parametrize("field", ["incarnation", "previous_position", "first_lsn", "lap"])
def test_sealed_group_that_does_not_follow_the_one_before_is_not_taken_for_it(field: str) -> None:
    undo, _, places = of_groups(3, geometry_of(1 << 17))
    content = undo.after_power_loss().snapshot()
    name = "undo/0000.undo"
    position, size = places[2]
    words = np.frombuffer(content[name][position : position + size], dtype=np.int64).copy()
    words[:24].view(UNDO_GROUP)[0][field] = 0 if field == "incarnation" else 1 if field == "lap" else 24
    seal(words, words.size)
    content[name] = patched(content[name], position, words.tobytes())
    found = reader(MemoryFiles.from_snapshot(content), undo.geometry)
    assert [group.sequence for group in found.forward(1, 0)] == [1, 2]


def test_end_is_durable_after_sealing_it_whatever_the_page_cache_showed() -> None:
    """F39: after a failed sync the last group is read, but is not on the disk."""
    undo, made, _ = of_groups(2)
    name, end = "undo/0000.undo", undo.log.head
    files = undo.after_power_loss()
    torn = files.open(name, True)
    files.pwrite(torn, end, b"\x77" * BLOCK)
    last = undo.write(UNDO_FREE, 5)
    shown = undo.memory.kill().snapshot()[name][end : end + BLOCK]
    files.pwrite(torn, end, shown)
    files.pwrite(torn, end + BLOCK, b"\x77" * BLOCK)
    failing = FaultFiles(files, [Rule("fdatasync", name, error=errno.EIO)])
    with pytest.raises(tm.SyncFailed):
        failing.fdatasync(failing.open(name, True))
    files = MemoryFiles(files.disk)
    found, records = read(files, undo.geometry)
    assert records == [*made, last]
    assert len(read(files.image(lambda piece: False), undo.geometry)[1]) == 2
    found.seal_tail()
    firm = files.image(lambda piece: False)
    assert read(firm, undo.geometry)[1] == [*made, last]
    assert firm.snapshot()[name][end + BLOCK : end + 2 * BLOCK] == bytes(BLOCK)


@pytest.mark.parametrize("count", [0, 1])
def test_log_of_no_group_or_one_is_read_and_continued(count: int) -> None:
    undo, made, _ = of_groups(count)
    found, records = read(undo.after_power_loss(), undo.geometry)
    assert records == made and found.end == undo.log.head
    position = found.next_position()
    if not count:
        assert (position.sequence, position.position, position.last_position) == (1, 0, None)
    again = Undo(undo.geometry, memory=undo.after_power_loss(), position=position, incarnation=2)
    new = again.write(UNDO_ALLOC)
    assert read(again.after_power_loss(), undo.geometry)[1] == [*made, new]
    with pytest.raises(UndoDamaged):
        read(undo.after_power_loss(), undo.geometry, needed=count + 1)


@pytest.mark.parametrize("groups_left", [0, 1])
@pytest.mark.parametrize("file", [1, 2, 3])
def test_head_at_a_file_end_continues_in_the_next_file_or_the_first(file: int, groups_left: int) -> None:
    geometry = geometry_of(1 << 15, 3)  # 8 blocks a file
    undo = Undo(geometry, 1_400)
    places = []
    while undo.log.head < file * geometry.file_bytes - groups_left * BLOCK:
        mark = undo.mark(1, 1)
        undo.log.flush_through(mark.lsn)
        places.append(undo.log.mark_place(mark.lsn))
        with undo.latch:
            undo.log.set_tail(*places[-8:][0])
            undo.log.set_mark(places[-1][1])
    tail = places[-8:][0]
    kept = undo.made[-8:]
    found, records = read(undo.after_power_loss(), geometry, *tail, places[-1][0])
    assert records == kept and found.end == undo.log.head
    position = found.next_position(places[-1][0])
    found.seal_tail()
    image = undo.after_power_loss()
    again = Undo(geometry, 1_400, image, position, incarnation=2)
    new = [again.write(UNDO_FREE, *range(600)), again.write(UNDO_ALLOC)]  # two blocks: over the end if one is left
    assert read(again.after_power_loss(), geometry, *tail)[1] == [*kept, *new]


def test_log_of_another_store_is_foreign_and_a_missing_or_short_file_is_named() -> None:
    undo, _, _ = of_groups(3)
    files = undo.after_power_loss()
    with pytest.raises(tm.ForeignFile, match="undo/0000"):
        other = reader(files, undo.geometry, bytes(reversed(STORE)))
        other.find_end(1, 0)
    for number in range(3):
        name = undo.geometry.name(number)
        content = files.snapshot()
        with pytest.raises(tm.FileMissing, match=name):
            reader(MemoryFiles.from_snapshot({n: c for n, c in content.items() if n != name}), undo.geometry)
        with pytest.raises(tm.FileTruncated, match=name):
            reader(MemoryFiles.from_snapshot({**content, name: content[name][:BLOCK]}), undo.geometry)


def test_group_of_a_newer_format_is_refused_as_too_new() -> None:
    undo, _, places = of_groups(2)
    content = undo.after_power_loss().snapshot()
    name = "undo/0000.undo"
    words = np.frombuffer(content[name][: places[0][1]], dtype=np.int64).copy()
    words[1] += 1 << 16
    assert int(words[1]) >> 16 & 0xFFFF == FORMAT_VERSION + 1
    seal(words, words.size)
    content[name] = patched(content[name], 0, words.tobytes())
    with pytest.raises(tm.VersionTooNew):
        read(MemoryFiles.from_snapshot(content), undo.geometry)


def test_every_read_failing_once_is_undo_damaged_and_nothing_is_changed() -> None:
    undo, _, _ = of_groups(4)
    image = undo.after_power_loss()
    before = image.snapshot()
    nth = 0
    while True:
        nth += 1
        files = FaultFiles(image, [Rule("pread", "undo/*", nth=nth, error=errno.EIO)])
        files.read_errors_latch = False
        found = UndoReader(files, undo.geometry, STORE)
        try:
            found.find_end(1, 0)
            list(found.backward())
        except UndoDamaged as error:
            assert error.file == "undo/0000.undo"
            continue
        break
    assert nth > 10
    assert image.snapshot() == before


def test_group_damaged_between_the_two_readings_is_undo_damaged() -> None:
    undo, made, places = of_groups(3)
    files = undo.after_power_loss()
    found = reader(files, undo.geometry)
    assert found.find_end(1, 0) == 3
    file = files.open("undo/0000.undo", True)
    files.pwrite(file, places[1][0] + 300, b"\xff" * 8)
    seen = found.backward()
    assert next(seen)[0].sequence == 3
    with pytest.raises(UndoDamaged, match="group 2"):
        next(seen)
    assert len(made) == 3


def test_restart_record_that_points_nowhere_is_undo_damaged() -> None:
    for sequence, position in [(0, 0), (2, 0), (1, BLOCK), (1, 0), (99, 0)]:
        undo = Undo()
        undo.write(UNDO_ALLOC)
        undo.write(UNDO_ALLOC)
        undo.log.mark_restart(1, 8, sequence, position)
        with pytest.raises(UndoDamaged, match="refers to a group|local checkpoint's mark"):
            read(undo.after_power_loss(), undo.geometry)
