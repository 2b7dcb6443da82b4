"""A raw disk that passes everything on; faults, trace and order monitor override the calls they need.

Wrappers are between the checks and the disk, so an injected error takes the same path as a real one: the loops, the
translation and the latch of `CheckedFiles` are always above them.
"""

from __future__ import annotations

from typing import Any

from tidemark.engine.files.layer import CheckedFiles
from tidemark.engine.files.protocol import Buffer, File, RawFiles


class RawWrapper:
    """Every call of `RawFiles`, passed on to `inner`."""

    def __init__(self, inner: RawFiles) -> None:
        self.inner = inner

    def create(self, name: str) -> File:
        return self.inner.create(name)

    def open(self, name: str, writable: bool) -> File:
        return self.inner.open(name, writable)

    def pread_into(self, file: File, view: memoryview, offset: int) -> int:
        return self.inner.pread_into(file, view, offset)

    def pwrite(self, file: File, buffer: Buffer, offset: int) -> int:
        return self.inner.pwrite(file, buffer, offset)

    def truncate(self, file: File, size: int) -> None:
        self.inner.truncate(file, size)

    def fdatasync(self, file: File) -> None:
        self.inner.fdatasync(file)

    def sync_directory(self, path: str) -> None:
        self.inner.sync_directory(path)

    def make_directory(self, path: str) -> None:
        self.inner.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.inner.rename(source, target)

    def unlink(self, name: str) -> None:
        self.inner.unlink(name)

    def unlink_unpinned(self, name: str) -> bool:
        self.unlink(name)  # through the wrapper: disks in memory have no readers other than the store
        return True

    def is_pinned(self, name: str) -> bool:
        return False

    def names(self, path: str) -> tuple[str, ...]:
        return self.inner.names(path)

    def size(self, file: File) -> int:
        return self.inner.size(file)

    def size_of(self, name: str) -> int:
        return self.inner.size_of(name)

    def exists(self, name: str) -> bool:
        return self.inner.exists(name)

    def lock(self) -> None:
        self.inner.lock()

    def unlock(self) -> None:
        self.inner.unlock()

    def check_place(self) -> None:
        self.inner.check_place()

    def free_bytes(self) -> int | None:
        return self.inner.free_bytes()

    def close(self, file: File) -> None:
        self.inner.close(file)

    def close_directories(self) -> None:
        self.inner.close_directories()

    def mark(self, kind: str, values: dict[str, Any]) -> None:
        self.inner.mark(kind, values)

    def fail_sync(self, target: File | str, error_number: int) -> None:
        """Fail the sync of a file, or of the directory of this path, in the way of the disk below."""
        below = getattr(self.inner, "fail_sync", None)
        if below is None:
            raise OSError(error_number, "injected")
        below(target, error_number)


class WrappedFiles(CheckedFiles):
    """`Files` over a wrapper; shares the failure latch of the files it wraps."""

    def __init__(self, inner: CheckedFiles, wrapper: RawWrapper) -> None:
        super().__init__(wrapper, inner.failure)
