"""A raw disk that forwards every call; faults, trace and order monitor override the calls they need.

Wrappers are between the checks and the disk, so an injected error takes the same path as a real one: the loops, the
translation and the latch of `CheckedFiles` are always above them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tidemark.engine.files.layer import CheckedFiles
from tidemark.engine.files.protocol import Buffer, File, RawFiles

T = TypeVar("T")


class RawWrapper(RawFiles):
    """Every call of `RawFiles`, forwarded to `inner`; most of them through `_call`, which a subclass may override.
    Nothing is pinned: disks in memory have no readers other than the store.
    """

    def __init__(self, inner: RawFiles) -> None:
        self.inner = inner

    def _call(self, operation: str, name: str, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    def create(self, name: str) -> File:
        return self._call("create", name, self.inner.create, name)

    def open(self, name: str, writable: bool) -> File:
        return self._call("open", name, self.inner.open, name, writable)

    def pread_into(self, file: File, view: memoryview, offset: int) -> int:
        return self.inner.pread_into(file, view, offset)

    def pwrite(self, file: File, buffer: Buffer, offset: int) -> int:
        return self.inner.pwrite(file, buffer, offset)

    def truncate(self, file: File, size: int) -> None:
        self._call("truncate", file.name, self.inner.truncate, file, size)

    def fdatasync(self, file: File) -> None:
        self._call("fdatasync", file.name, self.inner.fdatasync, file)

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", path, self.inner.sync_directory, path)

    def make_directory(self, path: str) -> None:
        self._call("make_directory", path, self.inner.make_directory, path)

    def rename(self, source: str, target: str) -> None:
        self._call("rename", source, self.inner.rename, source, target)

    def unlink(self, name: str) -> None:
        self._call("unlink", name, self.inner.unlink, name)

    def link(self, name: str, source_name: str, source: RawFiles) -> bool:
        while isinstance(source, RawWrapper):
            source = source.inner
        return self._call("link", name, self.inner.link, name, source_name, source)

    def remove_tree(self, path: str) -> None:
        self._call("remove_tree", path, self.inner.remove_tree, path)

    def names(self, path: str) -> tuple[str, ...]:
        return self._call("list", path, self.inner.names, path)

    def size(self, file: File) -> int:
        return self._call("size", file.name, self.inner.size, file)

    def size_of(self, name: str) -> int:
        return self._call("size", name, self.inner.size_of, name)

    def exists(self, name: str) -> bool:
        return self._call("exists", name, self.inner.exists, name)

    def identity_of(self, name: str) -> tuple[int, int] | None:
        return self._call("open", name, self.inner.identity_of, name)

    def lock(self) -> None:
        self._call("lock", "LOCK", self.inner.lock)

    def unlock(self) -> None:
        self._call("unlock", "LOCK", self.inner.unlock)

    def close(self, file: File) -> None:
        self._call("close", file.name, self.inner.close, file)

    def check_place(self) -> None:
        self.inner.check_place()

    def free_bytes(self) -> int | None:
        return self.inner.free_bytes()

    def close_directories(self) -> None:
        self.inner.close_directories()

    def mark(self, kind: str, values: dict[str, Any]) -> None:
        self.inner.mark(kind, values)

    def fail_sync(self, target: File | str, error_number: int) -> None:
        """Fail the sync of a file, or of the directory of this path, as the disk below does."""
        below = getattr(self.inner, "fail_sync", None)
        if below is None:
            raise OSError(error_number, "injected")
        below(target, error_number)


class WrappedFiles(CheckedFiles):
    """`Files` over a wrapper; shares the failure latch of the files it wraps."""

    def __init__(self, inner: CheckedFiles, wrapper: RawWrapper) -> None:
        super().__init__(wrapper, inner.failure)
