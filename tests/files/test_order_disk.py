"""Rules O10 to O14 of the order monitor can fire: pages, their copies, the UNDO log before them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.log.undo_support import STORE, Undo
from tidemark.engine.disk.disk_layout import DP_LSN, DP_PAGE
from tidemark.engine.disk.double_write import HEADER_WORDS, DoubleWrite, create_double_write
from tidemark.engine.disk.page_writer import PageWriter
from tidemark.engine.files.protocol import File
from tidemark.engine.sealed.sealed_layout import KIND_DISK_PAGE, seal_units, store_halves
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.order import OrderMonitor, OrderViolation

PAGE_WORDS = 512
PAGE = 1 << 32 | 1
ALLOC = 1


class Stage:
    """An UNDO log, a data file and the double-write file below one monitor."""

    def __init__(self) -> None:
        self.plan = Plan()
        self.undo = Undo(wrap=lambda files: OrderMonitor(FaultFiles(files, self.plan)))
        self.files = self.undo.files
        self.files.make_directory("space")
        create_double_write(self.files, PAGE_WORDS * 8)
        self.data: File = self.files.create("space/1.data", 8 * PAGE_WORDS * 8)
        self.sync_files()
        self.double_write = DoubleWrite(self.files, (STORE, 1))
        self.writer = PageWriter(self.files, self, self, self.double_write, (STORE, 1))

    def place(self, page: int) -> tuple[File, int]:
        return self.data, (page & 0xFFFF) * PAGE_WORDS * 8

    def sync_files(self) -> None:
        self.files.fdatasync(self.data)

    def flush_through(self, lsn: int) -> None:
        self.undo.log.flush_through(lsn)

    def batch(self, lsn: int) -> np.ndarray:
        words = np.zeros(HEADER_WORDS + PAGE_WORDS, dtype=np.int64)
        words[HEADER_WORDS + DP_LSN] = lsn
        words[HEADER_WORDS + DP_PAGE] = PAGE
        words[HEADER_WORDS + 1] = KIND_DISK_PAGE | 1 << 16 | PAGE_WORDS << 32
        words[HEADER_WORDS + 2 : HEADER_WORDS + 4].view(np.uint64)[:] = store_halves(STORE)
        seal_units(words, [(HEADER_WORDS, PAGE_WORDS)])
        return words

    def in_place(self, batch: np.ndarray) -> None:
        self.files.pwrite(*self.place(PAGE), batch[HEADER_WORDS:])


@pytest.fixture
def stage() -> Iterator[Stage]:
    yield Stage()


def test_pages_written_in_order_are_not_complained_of(stage: Stage) -> None:
    for _ in range(3):
        lsn = stage.undo.append(ALLOC).lsn
        stage.writer.write(stage.batch(lsn), [PAGE], PAGE_WORDS, lsn)
    stage.writer.settle()


def test_page_before_its_undo_is_durable_is_caught(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    lsn = stage.undo.append(ALLOC).lsn
    monkeypatch.setattr(stage, "flush_through", lambda lsn: None)
    with pytest.raises(OrderViolation, match="O10"):
        stage.writer.write(stage.batch(lsn), [PAGE], PAGE_WORDS, lsn)


def test_page_before_its_copy_is_durable_is_caught(stage: Stage) -> None:
    written = stage.batch(0)
    stage.writer.write(written, [PAGE], PAGE_WORDS, 0)
    stage.writer.settle()
    with pytest.raises(OrderViolation, match="O11"):
        stage.in_place(stage.batch(1))


def test_double_write_file_over_pages_not_durable_is_caught(stage: Stage) -> None:
    stage.writer.write(stage.batch(0), [PAGE], PAGE_WORDS, 0)
    with pytest.raises(OrderViolation, match="O12"):
        stage.double_write.write_batch(stage.batch(1), [PAGE], PAGE_WORDS)


def test_pages_written_during_a_sync_are_not_durable_by_it(stage: Stage) -> None:
    stage.plan.add(Rule("pwrite", "space/1.data", stall=stage.sync_files))
    stage.writer.write(stage.batch(0), [PAGE], PAGE_WORDS, 0)
    with pytest.raises(OrderViolation, match="O12"):
        stage.double_write.write_batch(stage.batch(1), [PAGE], PAGE_WORDS)


def test_control_file_before_the_pages_of_its_mark_is_caught(stage: Stage) -> None:
    stage.writer.write(stage.batch(0), [PAGE], PAGE_WORDS, 0)
    stage.flush_through(stage.undo.mark(7, 1).lsn)
    stage.files.make_directory("lcp")
    file = stage.files.create("lcp/control-7")
    with pytest.raises(OrderViolation, match="O13: control file 7 while pages"):
        stage.files.pwrite(file, 0, b"x")
    stage.writer.settle()
    stage.files.pwrite(file, 0, b"x")


def test_restart_record_before_the_pages_is_caught(stage: Stage) -> None:
    place = stage.undo.mark(7, 1)
    stage.flush_through(place.lsn)
    stage.writer.write(stage.batch(0), [PAGE], PAGE_WORDS, 0)
    with pytest.raises(OrderViolation, match="O14"):
        stage.undo.log.mark_restart(7, place.lsn, *stage.undo.log.mark_place(place.lsn))
