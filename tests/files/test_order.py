"""Each rule of the order monitor is broken once, and a right run passes."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemark.engine.base.errors import SyncFailed
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.files.layer import CheckedFiles
from tidemark.engine.files.protocol import File
from tidemark.recovery.crash_harness.disks import FaultFiles, MemoryFiles, OrderMonitor, OrderViolation, Rule, order

FILE_BYTES = 4 * 4096
FILES = 2
CAPACITY = FILES * FILE_BYTES
NOT_DURABLE = [{"sync": False}, {"entry": False}]


class Run:
    """A small store on a monitored disk, written in the right order unless told otherwise."""

    def __init__(self, inner: CheckedFiles) -> None:
        self.inner = inner
        self.files = OrderMonitor(inner)
        for path in ("redo", "lcp"):
            self.files.make_directory(path)
        self.files.sync_directory("")
        self.redo = [self.files.create(f"redo/{number:04}.redo", FILE_BYTES) for number in range(FILES)]
        for file in self.redo:
            self.files.fdatasync(file)
        self.files.sync_directory("redo")
        self.lsn = 0

    def open_again(self) -> Run:
        """The same store under a monitor that has seen nothing."""
        again = Run.__new__(Run)
        again.inner = self.inner
        again.files = OrderMonitor(self.inner)
        again.redo = [again.files.open(f"redo/{number:04}.redo", True) for number in range(FILES)]
        again.lsn = self.lsn
        return again

    def write_group(self, count: int = 4096, sync: bool = True) -> None:
        """Append a group; at the end of a file it continues in the next one."""
        done = 0
        touched = []
        while done < count:
            number, offset = divmod((self.lsn + done) % CAPACITY, FILE_BYTES)
            part = min(count - done, FILE_BYTES - offset)
            self.files.pwrite(self.redo[number], offset, bytes([1 + self.lsn // CAPACITY]) * part)
            touched.append(self.redo[number])
            done += part
        self.lsn += count
        if sync:
            for file in touched:
                self.files.fdatasync(file)

    def write_data(self, lcp: int, sync: bool = True, entry: bool = True) -> File:
        """One data file of a local checkpoint."""
        file = self.files.create(f"lcp/{lcp}-3-0.data")
        self.files.pwrite(file, 0, b"rows")
        if sync:
            self.files.fdatasync(file)
        if entry:
            self.files.sync_directory("lcp")
        return file

    def write_control(self, lcp: int, sync: bool = True, entry: bool = True) -> None:
        """The control file of a local checkpoint."""
        file = self.files.create(f"lcp/control-{lcp}")
        self.files.pwrite(file, 0, b"control")
        if sync:
            self.files.fdatasync(file)
        if entry:
            self.files.sync_directory("lcp")

    def checkpoint(self, lcp: int) -> None:
        """A whole local checkpoint."""
        self.write_data(lcp)
        self.write_control(lcp)


@pytest.fixture(params=["memory", "posix"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """A fresh store."""
    return Run(MemoryFiles() if request.param == "memory" else PosixFiles(tmp_path))


def violation(rule: str, action: Callable[[], object]) -> None:
    """`action` breaks exactly this rule."""
    with pytest.raises(OrderViolation, match=f"^{rule}:"):
        action()


def test_right_run_over_several_laps_passes(run: Run) -> None:
    run.files.lock()
    for lcp in range(1, 12):
        for _ in range(3):
            run.write_group()
            run.files.mark("ack", txid=lcp)
        run.write_group(2 * 4096)
        start = run.lsn
        run.checkpoint(lcp)
        if lcp > 2:
            run.files.unlink(f"lcp/control-{lcp - 2}")
            run.files.sync_directory("lcp")
            run.files.unlink(f"lcp/{lcp - 2}-3-0.data")
        run.files.mark("cut", lsn=start)
    assert run.lsn > 5 * CAPACITY
    run.files.close_all()


@pytest.mark.parametrize("durable", NOT_DURABLE, ids=str)
def test_control_before_data_content_or_entry_is_durable_is_caught(run: Run, durable: dict[str, bool]) -> None:
    run.write_data(1, **durable)
    violation("O1", lambda: run.write_control(1))


def test_control_renamed_into_place_before_data_is_durable_is_caught(run: Run) -> None:
    file = run.files.create("lcp/new")
    run.files.pwrite(file, 0, b"control")
    run.files.fdatasync(file)
    run.files.sync_directory("lcp")
    run.write_data(1, sync=False)
    violation("O1", lambda: run.files.rename("lcp/new", "lcp/control-1"))


def test_control_with_unsynced_data_of_another_checkpoint_passes(run: Run) -> None:
    run.write_data(1)
    run.write_data(2, sync=False)
    run.write_control(1)


def test_data_in_directory_without_durable_entry_is_caught() -> None:
    files = OrderMonitor(MemoryFiles())
    files.make_directory("lcp")
    file = files.create("lcp/1-0-0.data")
    files.fdatasync(file)
    files.sync_directory("lcp")
    control = files.create("lcp/control-1")
    violation("O1", lambda: files.pwrite(control, 0, b"control"))


@pytest.mark.parametrize("durable", [None, *NOT_DURABLE], ids=str)
@pytest.mark.parametrize("name", ["lcp/control-1", "lcp/1-3-0.data"])
def test_old_checkpoint_removed_before_new_control_is_there_and_durable_is_caught(
    run: Run, durable: dict[str, bool] | None, name: str
) -> None:
    run.checkpoint(1)
    run.write_data(2)
    if durable is not None:
        run.write_control(2, **durable)
    violation("O2", lambda: run.files.unlink(name))


def test_files_of_an_abandoned_checkpoint_may_be_removed(run: Run) -> None:
    run.checkpoint(1)
    run.write_data(2, sync=False)
    run.files.unlink("lcp/2-3-0.data")


def test_newer_checkpoint_removed_while_an_older_stands_in_passes(run: Run) -> None:
    run.checkpoint(1)
    run.checkpoint(2)
    run.files.unlink("lcp/control-2")


def test_cut_before_control_is_durable_is_caught(run: Run) -> None:
    run.write_group()
    run.write_data(1)
    run.write_control(1, entry=False)
    violation("O2", lambda: run.files.mark("cut", lsn=4096))


def test_redo_lap_over_uncut_log_is_caught(run: Run) -> None:
    for _ in range(CAPACITY // 4096):
        run.write_group()
    violation("O3", run.write_group)


def test_redo_lap_beyond_the_cut_is_caught_in_a_later_lap(run: Run) -> None:
    for _ in range(30):
        run.write_group()
        run.files.mark("cut", lsn=run.lsn)
    for _ in range(CAPACITY // 4096):
        run.write_group()
    violation("O3", run.write_group)


def test_redo_lap_in_store_opened_again_is_judged_from_the_cut_at_open(run: Run) -> None:
    for _ in range(14):
        run.write_group()
        run.files.mark("cut", lsn=run.lsn - 4096)
    again = run.open_again()
    # The tail is one lap minus one group back: exactly one more group fits.
    again.files.mark("cut", lsn=run.lsn - CAPACITY + 4096)
    again.write_group()
    violation("O3", again.write_group)


def test_redo_lap_in_store_opened_again_is_judged_from_the_first_cut(run: Run) -> None:
    for _ in range(21):
        run.write_group()
        run.files.mark("cut", lsn=run.lsn)
    again = run.open_again()
    for _ in range(3):
        again.write_group()
    again.files.mark("cut", lsn=again.lsn - 4096)
    for _ in range(CAPACITY // 4096 - 1):
        again.write_group()
    violation("O3", again.write_group)


def test_redo_group_before_the_one_ahead_is_durable_is_caught(run: Run) -> None:
    run.write_group(sync=False)
    violation("O4", run.write_group)


def test_redo_group_before_zero_fill_is_durable_is_caught() -> None:
    files = OrderMonitor(MemoryFiles())
    files.make_directory("redo")
    files.sync_directory("")
    file = files.create("redo/0000.redo", 8192)
    files.sync_directory("redo")
    violation("O4", lambda: files.pwrite(file, 0, bytes(4096)))


def test_redo_write_repeated_after_a_signal_passes(run: Run) -> None:
    run.write_group(sync=False)
    run.lsn -= 4096
    run.write_group()
    run.files.mark("ack", txid=1)


def test_redo_group_across_files_and_in_short_writes_passes() -> None:
    run = Run(FaultFiles(MemoryFiles(), [Rule("pwrite", "redo/*", nth=FILES + 1, once=False, short=1000)]))
    for _ in range(8):
        run.write_group(3 * 4096)
        run.files.mark("ack", txid=1)
        run.files.mark("cut", lsn=run.lsn)


def test_ack_while_redo_is_unsynced_is_caught(run: Run) -> None:
    run.write_group()
    run.files.mark("ack", txid=1)
    run.write_group(sync=False)
    violation("O5", lambda: run.files.mark("ack", txid=2))


def test_ack_while_redo_entry_is_unsynced_is_caught() -> None:
    files = OrderMonitor(MemoryFiles())
    files.make_directory("redo")
    files.sync_directory("")
    file = files.create("redo/0000.redo", 8192)
    files.fdatasync(file)
    violation("O5", lambda: files.mark("ack", txid=1))


@pytest.mark.parametrize("target", ["fdatasync", "sync_directory"])
@pytest.mark.parametrize("is_outside", [False, True])
def test_any_call_after_a_failed_sync_is_caught(target: str, is_outside: bool) -> None:
    plan = [Rule(target, nth=4, error=errno.EIO)]
    # The monitor is above or below the fault.
    inner = MemoryFiles()
    monitored = OrderMonitor(FaultFiles(inner, plan)) if is_outside else OrderMonitor(inner)
    files: CheckedFiles = monitored if is_outside else FaultFiles(monitored, plan)
    file = files.create("a", 10)
    for _ in range(3):
        files.fdatasync(file)
        files.sync_directory("")
    with pytest.raises(SyncFailed):
        files.fdatasync(file)
        files.sync_directory("")
    # The latch holds all calls back: the disk sees none.
    with pytest.raises(SyncFailed):
        files.pread(file, 0, 1)
    raw = monitored.raw
    for call in (
        lambda: raw.fdatasync(file),
        lambda: raw.pwrite(file, b"x", 0),
        lambda: raw.pread_into(file, memoryview(bytearray(1)), 0),
        lambda: raw.sync_directory(""),
        lambda: raw.create("b"),
        lambda: raw.unlink("a"),
        lambda: raw.rename("a", "b"),
        lambda: files.mark("ack", txid=1),
    ):
        violation("O6", call)
    files.close_all()


def test_renamed_file_used_before_directory_sync_is_caught(run: Run) -> None:
    file = run.files.create("sysfile.new", 512)
    run.files.fdatasync(file)
    run.files.sync_directory("")
    run.files.rename("sysfile.new", "sysfile.0")
    for use in (
        lambda: run.files.open("sysfile.0"),
        lambda: run.files.pread(file, 0, 1),
        lambda: run.files.pwrite(file, 0, b"x"),
        lambda: run.files.unlink("sysfile.0"),
        lambda: run.files.rename("sysfile.0", "sysfile.1"),
    ):
        violation("O7", use)
    run.files.sync_directory("")
    run.files.pwrite(file, 0, b"x")
    run.files.open("sysfile.0")


def test_file_moved_between_directories_needs_both_syncs(run: Run) -> None:
    run.files.create("lcp/x")
    run.files.sync_directory("lcp")
    run.files.rename("lcp/x", "redo/x")
    run.files.sync_directory("redo")
    violation("O7", lambda: run.files.open("redo/x"))
    run.files.sync_directory("lcp")
    run.files.open("redo/x")


def test_file_made_by_another_thread_during_a_sync_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: writers and a local checkpoint shared one disk. The monitor walked its files for a synced log while the
    local checkpoint made another file, and a commit ended with "dictionary changed size during iteration".
    """
    run = Run(MemoryFiles())
    run.write_group(sync=False)
    makers: list[threading.Thread] = []
    is_redo_name = order.is_redo_name

    def beside(name: str) -> bool:
        if not makers:
            makers.append(threading.Thread(target=run.files.create, args=("lcp/1-1-0.data",)))
            makers[0].start()
            makers[0].join(0.05)
        return is_redo_name(name)

    monkeypatch.setattr(order, "is_redo_name", beside)
    run.files.fdatasync(run.redo[0])
    makers[0].join()
    assert "1-1-0.data" in run.files.list("lcp")
