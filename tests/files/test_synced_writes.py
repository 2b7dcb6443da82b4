"""`pwrite_synced`: in one call or two, the outcome is the same: all bytes durable, or the error of the step that
failed, latched where a failure of the disk must be.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.seeds import fresh_seeds
from tests.store.interrupts import interrupt_at
from tidemark.engine.base.errors import Error, IoFailed, ReadOnly, Rejected, StorageFull, SyncFailed, ValueOutOfRange
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.files.layer import CheckedFiles
from tidemark.engine.files.protocol import File
from tidemark.engine.files.synced_write_kernels import write_and_sync
from tidemark.recovery.crash_harness.disks import FaultFiles, MemoryFiles, Rule, TraceFiles

WORDS = np.arange(1, 513, dtype=np.int64)
BYTES = WORDS.tobytes()


@contextmanager
def locked(place: Path) -> Iterator[PosixFiles]:
    """A store's directory on the real disk, open for writing."""
    with PosixFiles(place) as files:
        files.lock()
        first = File(os.open(place, os.O_TMPFILE | os.O_RDWR), "a", True)
        files.pwrite_synced(first, 0, WORDS)  # loads the kernel
        assert os.pread(first, 8_192, 0) == BYTES
        os.close(first)
        yield files


class Steps:
    """Stands in for the call of the system's: what it is asked, and what it answers."""

    def __init__(self, files: CheckedFiles, short: int | None = None, write: int = 0, sync: int = 0) -> None:
        """short: bytes that are written. write, sync: error numbers."""
        self.files, self.short, self.write, self.sync = files, short, write, sync
        self.calls = 0
        files.raw.write_and_sync = self

    def __call__(self, kind: type[OSError], file: File, words: Any, count: int, offset: int, written: Any) -> None:
        self.calls += 1
        written[0] = 0
        if self.write:
            raise kind(self.write, os.strerror(self.write))
        done = count if self.short is None else self.short
        written[0] = self.files.raw.pwrite(file, words.tobytes()[:done], offset) if done else 0
        if done == count:
            if self.sync:
                raise kind(self.sync, os.strerror(self.sync))
            self.files.raw.fdatasync(file)


def outcome(files: CheckedFiles, file: File) -> tuple[Any, ...]:
    """The error of a synced write, and what is latched."""
    error: type[Error] | None = None
    try:
        files.pwrite_synced(file, 4_096, WORDS)
    except Error as raised:
        error = type(raised)
    first = files.failure.first
    return error, first and first[:3]


def opened(files: CheckedFiles) -> File:
    """A file of zeros, durable."""
    file = files.create("a", 16_384)
    files.fdatasync(file)
    files.sync_directory("")
    return file


def test_bytes_reach_the_real_disk(tmp_path: Path) -> None:
    rng = random.Random(fresh_seeds(1)[0])
    with locked(tmp_path) as files, PosixFiles(tmp_path) as twin:  # the second is not locked: it makes the two calls
        mine, other = files.create("a", 1 << 17), twin.create("b", 1 << 17)
        for _ in range(40):
            words = np.frombuffer(rng.randbytes(8 * rng.randrange(1, 4_000)), np.int64)
            offset = rng.randrange(1 << 16)
            files.pwrite_synced(mine, offset, words)
            twin.pwrite_synced(other, offset, words)
            assert mine.writes == mine.synced, "nothing is left to sync"
        assert files.raw.write_and_sync is write_and_sync.entry and twin.raw.write_and_sync is None
        assert files.pread(mine, 0, 1 << 18) == twin.pread(other, 0, 1 << 18)


def test_errors_of_real_calls_are_those_of_their_step(tmp_path: Path) -> None:
    """The kernel's own errors, of descriptors whose writes or syncs fail."""
    for device, wanted in (("/dev/full", StorageFull), ("/dev/null", SyncFailed), ("", IoFailed)):
        with locked(tmp_path) as files:
            number = os.open(device, os.O_WRONLY) if device else 1 << 20
            file = File(number, "redo/0000.redo", True)
            with pytest.raises(wanted) as raised:
                files.pwrite_synced(file, 0, WORDS)
            first = files.failure.first
            if wanted is StorageFull:
                assert first is None and "ENOSPC" in str(raised.value)
            else:
                step = {SyncFailed: "fdatasync", IoFailed: "pwrite"}[wanted]
                assert first is not None and first[:3] == (wanted, step, "redo/0000.redo")
            assert file.writes == 2 and file.synced == 0
            if device:
                os.close(number)


WRITE_ERRORS = [errno.EIO, errno.EROFS, errno.EACCES, errno.EBADF, *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
SYNC_ERRORS = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EAGAIN]


@pytest.mark.parametrize("number", WRITE_ERRORS, ids=errno.errorcode.get)
def test_failed_write_ends_as_that_of_two_calls(number: int) -> None:
    files = MemoryFiles()
    file = opened(files)
    steps = Steps(files, write=number)
    twin = FaultFiles(MemoryFiles(), [Rule("pwrite", nth=2, error=number)])
    assert outcome(files, file) == outcome(twin, opened(twin))
    assert steps.calls == 1 and file.writes != file.synced


@pytest.mark.parametrize("number", SYNC_ERRORS, ids=errno.errorcode.get)
def test_failed_sync_ends_as_that_of_two_calls_and_is_never_repeated(number: int) -> None:
    files = TraceFiles(MemoryFiles())
    file = opened(files)
    steps = Steps(files, sync=number)
    twin = FaultFiles(MemoryFiles(), [Rule("fdatasync", nth=2, error=number)])
    seen = outcome(files, file)
    assert seen == outcome(twin, opened(twin)) == (SyncFailed, (SyncFailed, "fdatasync", "a"))
    events = len(files.events)
    for _ in range(2):
        with pytest.raises(SyncFailed):
            files.pwrite_synced(file, 0, WORDS)
        with pytest.raises(SyncFailed):
            files.fdatasync(file)
    assert steps.calls == 1 and len(files.events) == events
    assert file.writes != file.synced


@pytest.mark.parametrize("short", [0, 1, 7, 512, 4_095])
def test_short_write_is_completed_and_synced(short: int) -> None:
    files = MemoryFiles()
    file = opened(files)
    Steps(files, short=short)
    files.pwrite_synced(file, 4_096, WORDS)
    after = files.image(lambda piece: False)  # only what is synced
    assert after.snapshot()["a"][4_096:8_192] == BYTES
    assert file.writes == file.synced


@pytest.mark.parametrize("step", ["write", "sync"])
def test_call_that_a_signal_interrupts_is_repeated(step: str) -> None:
    files = MemoryFiles()
    file = opened(files)
    Steps(files, **{step: errno.EINTR})
    files.pwrite_synced(file, 4_096, WORDS)
    assert files.image(lambda piece: False).snapshot()["a"][4_096:8_192] == BYTES
    assert files.failure.first is None and file.writes == file.synced


def test_signal_around_a_failed_sync_does_not_lose_it(tmp_path: Path) -> None:
    """At any point (F33)."""
    nth, points = -1, 2
    while nth <= points:
        with locked(tmp_path) as files:
            number = os.open("/dev/null", os.O_WRONLY)
            file = File(number, "redo/0000.redo", True)

            def work(files: PosixFiles = files, file: File = file) -> None:
                with contextlib.suppress(SyncFailed):
                    files.pwrite_synced(file, 0, WORDS)

            point = interrupt_at(nth, work)
            first = files.failure.first
            is_latched = first is not None and first[:2] == (SyncFailed, "fdatasync")
            assert is_latched or not file.writes, f"the signal at {point.where} lost the failed sync"
            os.close(number)
        if nth < 0:
            nth, points = 0, point.count
            assert points >= 2
        nth += 1


def test_doubles_see_the_write_and_the_sync_alone() -> None:
    files = TraceFiles(MemoryFiles())
    file = opened(files)
    files.pwrite_synced(file, 0, WORDS)
    assert [event.operation for event in files.events[-2:]] == ["pwrite", "fdatasync"]


def test_refusals_are_those_of_a_write(tmp_path: Path) -> None:
    with locked(tmp_path) as files:
        file = files.create("a", 4_096)
        with pytest.raises(ValueOutOfRange, match="no offset -1"):
            files.pwrite_synced(file, -1, WORDS)
        files.fdatasync(file)
        files.close(file)
        with pytest.raises(Rejected, match="closed"):
            files.pwrite_synced(file, 0, WORDS)
        with pytest.raises(ReadOnly):
            files.pwrite_synced(files.open("a"), 0, WORDS)
        assert files.failure.first is None


def test_kernel_trusts_no_length(tmp_path: Path) -> None:
    with locked(tmp_path) as files:
        file = files.create("a", 4_096)
        written = np.full(1, 7, dtype=np.int64)
        for count in (-1, 4_097):
            write_and_sync(OSError, int(file), WORDS, count, 0, written)
            assert written[0] == 0 and files.pread(file, 0, 8) == bytes(8)
