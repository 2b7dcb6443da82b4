"""The disk as the store sees it (`Files`), and the bare disk under it (`RawFiles`).

Everything durable goes through `Files`. Its implementations are `CheckedFiles` over a `RawFiles`: the real disk
(`directory.py`), a disk in memory that can lose power, and wrappers that inject faults, record and watch
(`recovery/crash_harness/disks/`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base.failure import Failure

Words = NDArray[np.int64]
# Any object with a contiguous buffer: bytes, bytearray, memoryview, NumPy arrays of any numeric or structured dtype.
Buffer = Any


def flat(buffer: Buffer) -> memoryview:
    """Return the bytes of a contiguous buffer without a copy; `memoryview.cast` refuses structured formats."""
    return np.frombuffer(buffer, dtype=np.uint8).data if memoryview(buffer).nbytes else memoryview(bytearray())


class File(int):
    """An open file: the descriptor's number, and the state of the file."""

    name: str
    writable: bool
    is_open: bool
    writes: int
    synced: int
    read_errors_latch: bool  # False for data files: a failed read there concerns one page, not the store

    def __new__(cls, number: int, name: str, writable: bool) -> File:
        """Create a handle for descriptor `number`."""
        file = super().__new__(cls, number)
        file.name = name
        file.writable = writable
        file.is_open = True
        # Counted instead of flagged: a sync that a signal interrupts cannot leave a wrong "clean". Each write counts
        # when it begins and when it ends: a sync in between leaves the file unsynced.
        file.writes = 0
        file.synced = 0
        file.read_errors_latch = True
        return file

    def __repr__(self) -> str:
        return f"<File {int(self)} {self.name!r}{'' if self.is_open else ' closed'}>"


class Files(Protocol):
    """One store's directory, as the store sees it. Names are relative, `"redo/0000.redo"`; `""` is the directory.

    Raises: the first failure, from every call but `close`, `close_all`, `unlock` and `mark`.
    """

    failure: Failure
    read_errors_latch: bool  # False while a store is being opened: a failed read is then reported, not latched

    @property
    def raw(self) -> RawFiles:
        """The bare disk under it."""
        ...

    def create(self, name: str, size: int = 0) -> File:
        """Create and open a new file of `size` bytes, written as zeros. Durable: nothing, before `fdatasync` and
        `sync_directory`. Raises: Rejected if the name is taken, StorageFull (no file is left), TooManyFiles, ReadOnly.
        """
        ...

    def open(self, name: str, writable: bool = False) -> File:
        """Open a regular file. Raises: FileMissing, ReadOnly, TooManyFiles, Rejected if it is not a regular file."""
        ...

    def pread(self, file: File, offset: int, count: int) -> bytes:
        """Read `count` bytes, fewer only at the end of the file. Raises: IoFailed."""
        ...

    def pread_into(self, file: File, offset: int, buffer: Buffer) -> int:
        """Fill a writable contiguous buffer; return the number of bytes read, fewer only at the end of the file."""
        ...

    def pwrite(self, file: File, offset: int, buffer: Buffer) -> None:
        """Write all bytes of a contiguous buffer. Durable: nothing yet. Raises: StorageFull (part may be written),
        IoFailed.
        """
        ...

    def pwrite_synced(self, file: File, offset: int, words: Words) -> None:
        """Write all words of a contiguous array, then make content and size of the file durable: `pwrite` and
        `fdatasync`, in one call of the system's where the disk has it. Durable: the file.

        Raises: StorageFull (part may be written), IoFailed, and SyncFailed as `fdatasync`.
        """
        ...

    def truncate(self, file: File, size: int) -> None:
        """Truncate or lengthen to `size` bytes. Durable: nothing yet. Raises: StorageFull, IoFailed."""
        ...

    def fdatasync(self, file: File) -> None:
        """Make content and size durable. One thread at a time may sync a file: the system reports an error once.

        Raises: SyncFailed; never repeated. After a KeyboardInterrupt it may be called again if nothing is latched.
        """
        ...

    def sync_directory(self, path: str) -> None:
        """Make the entries of a directory durable. Raises: SyncFailed."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory. Durable: after `sync_directory` of its parent. Raises: Rejected if the name is taken,
        StorageFull, ReadOnly.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing `target` if it exists. Durable: after `sync_directory` of the target's parent.
        Raises: FileMissing, StorageFull, IoFailed.
        """
        ...

    def unlink(self, name: str) -> None:
        """Remove a file's name. Durable: after `sync_directory` of its parent. Raises: FileMissing, IoFailed."""
        ...

    def link(self, name: str, source_name: str, source: Files) -> bool:
        """Give a file of `source` this name, too. False, with nothing done, if that cannot be: the files are on another
        file system, or of another user. Durable: after `sync_directory` of the name's parent. Raises: FileMissing,
        Rejected if the name is taken, StorageFull.
        """
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything in it, whatever the names are. What another process creates there
        meanwhile may stay. Nothing is durable. Raises: ReadOnly.
        """
        ...

    def is_pinned(self, name: str) -> bool:
        """Whether a reader has pinned the file (`PosixFiles.pin`). Readers that try to pin it during this call fail."""
        ...

    def list(self, path: str = "") -> tuple[str, ...]:
        """Return the sorted names in a directory. Raises: FileMissing."""
        ...

    def size(self, file: File | str) -> int:
        """Return the size in bytes of an open or named file. Raises: FileMissing for a name that is free."""
        ...

    def exists(self, name: str) -> bool:
        """Whether anything has this name."""
        ...

    def identity_of(self, name: str) -> tuple[int, int] | None:
        """Return what tells a file from every copy of it: its number in the file system and its time of birth (ns since
        1970, 0 if the file system has none). None if the disk does not tell. Raises: FileMissing.
        """
        ...

    def free_bytes(self) -> int | None:
        """Return the bytes that are free on the disk for this user, None if that is unknown. Quotas are not counted."""
        ...

    def lock(self) -> None:
        """Lock the store for this handle. Raises: Locked (`pid` of the holder)."""
        ...

    def unlock(self) -> None:
        """Unlock the store; harmless if it is not locked."""
        ...

    def check_place(self) -> None:
        """Check that the directory and its LOCK were not moved, removed or replaced since opening. Raises: IoFailed."""
        ...

    def close(self, file: File) -> None:
        """Close a file, unless it is closed. Raises: IoFailed if the system reports an error and the file had unsynced
        writes.
        """
        ...

    def close_all(self) -> None:
        """Close every file, release the lock and refuse every later call with StoreClosed; may be called again."""
        ...

    def mark(self, kind: str, **values: Any) -> None:
        """Report a decision of the store (`ack`, `cut`); only test doubles listen."""
        ...


class RawFiles(Protocol):
    """The bare disk under `CheckedFiles`: valid names only, short transfers allowed, errors are OSError.

    A disk inherits the calls that have a body here if it has no readers to pin files, no links, no identities of files,
    no lock, no place that can be replaced, no known free space, no open directories or no listener.
    """

    # Write words and sync their file in one call, see `write_and_sync` in `synced_write_kernels.py`. A disk without it
    # gets the two calls, so a double sees each alone.
    write_and_sync: Callable[[type[OSError], File, Words, int, int, Words], object] | None = None

    def create(self, name: str) -> File: ...
    def open(self, name: str, writable: bool) -> File: ...
    def pread_into(self, file: File, view: memoryview, offset: int) -> int: ...
    def pwrite(self, file: File, buffer: Buffer, offset: int) -> int: ...
    def truncate(self, file: File, size: int) -> None: ...
    def fdatasync(self, file: File) -> None: ...
    def sync_directory(self, path: str) -> None: ...
    def make_directory(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def unlink(self, name: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...
    def names(self, path: str) -> tuple[str, ...]: ...
    def size(self, file: File) -> int: ...
    def size_of(self, name: str) -> int: ...
    def exists(self, name: str) -> bool: ...
    def close(self, file: File) -> None: ...

    def is_pinned(self, name: str) -> bool:
        return False

    def link(self, name: str, source_name: str, source: RawFiles) -> bool:
        return False

    def lock(self) -> None:
        return

    def unlock(self) -> None:
        return

    def check_place(self) -> None:
        return

    def identity_of(self, name: str) -> tuple[int, int] | None:
        return None

    def free_bytes(self) -> int | None:
        return None

    def close_directories(self) -> None:
        return

    def mark(self, kind: str, values: dict[str, Any]) -> None:
        return
