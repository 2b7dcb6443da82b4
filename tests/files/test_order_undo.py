"""Rule O9 of the order monitor, broken in each way, and logs that keep it."""

from __future__ import annotations

import pytest

from tests.log.undo_support import STORE, Undo, geometry_of
from tidemark.engine.disk.disk_layout import UNDO_FREE
from tidemark.engine.disk.undo_reader import UndoReader
from tidemark.recovery.crash_harness.disks import FaultFiles, MemoryFiles, OrderMonitor, OrderViolation, Rule


def monitored(*rules: Rule) -> Undo:
    return Undo(geometry_of(1 << 16, 3), 1_400, wrap=lambda files: OrderMonitor(FaultFiles(files, rules)))


def cut(undo: Undo) -> None:
    """A local checkpoint that is complete at once."""
    mark = undo.mark(1, 1)
    undo.log.flush_through(mark.lsn)
    with undo.latch:
        undo.log.set_tail(*undo.log.mark_place(mark.lsn))


def test_right_log_over_several_laps_passes_with_short_writes_too() -> None:
    for rules in ([], [Rule("pwrite", "undo/*", once=False, short=1_000)]):
        undo = monitored(*rules)
        for number in range(90):
            undo.write(UNDO_FREE, *range(number * 37 % 1_100 + 1))
            if number % 2:
                cut(undo)
        assert undo.log.head > 3 * undo.geometry.capacity_bytes


def test_group_before_the_one_before_is_durable_is_caught() -> None:
    undo = monitored()
    undo.write(UNDO_FREE, 1)
    undo.log.files = Forgetful(undo.log.files)
    undo.write(UNDO_FREE, 2)
    with pytest.raises(OrderViolation, match="^O9: .* is unsynced"):
        undo.write(UNDO_FREE, 3)


class Forgetful:
    """Files whose syncs do nothing."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def fdatasync(self, file: object) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_group_over_the_tail_is_caught() -> None:
    undo = monitored()
    undo.log.tail = 1 << 40  # its own guard is off
    with pytest.raises(OrderViolation, match="^O9: .* over the tail at 0"):
        for number in range(60):
            undo.write(UNDO_FREE, number)
    assert undo.log.head == undo.geometry.capacity_bytes


def test_group_before_its_zeroed_files_are_durable_is_caught() -> None:
    files = OrderMonitor(MemoryFiles())
    files.make_directory("undo")
    files.sync_directory("")
    file = files.create("undo/0000.undo", 8_192)
    files.sync_directory("undo")
    with pytest.raises(OrderViolation, match="^O9"):
        files.pwrite(file, 0, bytes(4_096))


def test_restart_that_firms_up_the_end_passes() -> None:
    undo = monitored()
    undo.write(UNDO_FREE, 1)
    image = undo.after_power_loss()
    again = OrderMonitor(image)
    ring = UndoReader(again, undo.geometry, STORE, writable=True)
    assert ring.find_end(1, 0) == 1
    ring.seal_tail()
    log = Undo(undo.geometry, 1_400, image, ring.next_position(), 2, lambda files: again)
    log.write(UNDO_FREE, 2)
    assert again.failure.first is None
