"""The code all implementations of the disk share: the error classes, the loops and the latch.

`CheckedFiles` is the `Files` that the store uses. It is built on a `RawFiles`, which may transfer less than requested
and raises OSError. Real disk, disk in memory and injected faults all pass through the same few lines here.

Invariants: (C1) the first IoFailed or SyncFailed is latched before anything else can happen (see `failure.py`), and
after it only close and unlock do anything; (C2) a sync is never repeated after it failed; (C3) a transfer is complete
when the call returns; (C4) no OSError leaves this module; (C5) a call that is refused has changed nothing. Full disks,
missing files and lack of descriptors are answers, not failures: they do not latch.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable
from io import BytesIO
from typing import Any, Self, TypeVar

import numpy as np

from tidemark.engine.base.errors import (
    Error,
    FileMissing,
    InvalidName,
    IoFailed,
    ReadOnly,
    Rejected,
    StorageFull,
    StoreClosed,
    SyncFailed,
    TooManyFiles,
    TypeMismatch,
    ValueOutOfRange,
)
from tidemark.engine.base.failure import Failure, describe
from tidemark.engine.files.protocol import Buffer, File, Files, RawFiles, Words, flat

T = TypeVar("T")

_log = logging.getLogger("tidemark.files")

# Zeros are written in pieces of this size: large enough that the call costs little, small enough to keep in memory.
ZERO_PIECE_BYTES = 1 << 20
# Largest buffer `pread` allocates before it asks for the length of the file (a length read from disk is not trusted).
PREAD_UNCHECKED_BYTES = 1 << 20

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
TRANSIENT = frozenset({errno.EINTR, errno.EAGAIN})
DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
WRONG_TYPE = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
ABSENT_OR_PRESENT = frozenset({errno.ENOENT, errno.EEXIST})

# Which errors of a call are answers about its arguments; all others are failures of the disk.
ANSWERS_TO_OPENING = FULL | NO_DESCRIPTOR | DENIED | WRONG_TYPE | ABSENT_OR_PRESENT
ANSWERS_TO_CHANGING = FULL | NO_DESCRIPTOR | WRONG_TYPE | ABSENT_OR_PRESENT
ANSWERS_TO_WRITING = FULL | TRANSIENT
INTERRUPTED = frozenset({errno.EINTR})
ANSWERS_TO_DIRECTORY_SYNC = NO_DESCRIPTOR | WRONG_TYPE | ABSENT_OR_PRESENT

_COMPONENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}", re.ASCII)


def check_name(name: str) -> str:
    """Return the name if it is relative and plain. Raises: InvalidName."""
    if not isinstance(name, str) or not all(_COMPONENT.fullmatch(part) for part in name.split("/")):
        raise InvalidName(f"{name!r} is not a valid file name inside a store; use plain relative names", file=name)
    return name


def check_path(path: str) -> str:
    """Return a directory's path, `""` for the store's own. Raises: InvalidName."""
    return "" if path in ("", ".") else check_name(path)


def parent_of(name: str) -> str:
    """Return the directory of a name, `""` for the store's own."""
    return name.rpartition("/")[0]


def answer(operation: str, name: str, cause: OSError) -> Error:
    """Return the error for an OSError that says something about the call, not about the disk."""
    code = cause.errno
    said = f"{operation} of {name or 'the store directory'}: {describe(cause)}"
    if code in FULL:
        return StorageFull(f"{said}; free space or raise the limit, then try again", file=name)
    if code in NO_DESCRIPTOR:
        return TooManyFiles(f"{said}; close files or raise the limit of open files", file=name)
    if code == errno.ENOENT:
        return FileMissing(f"{said}; check the path, or restore the store from a backup", file=name)
    if code == errno.EEXIST:
        return Rejected(f"{said}; choose another name", file=name)
    if code in WRONG_TYPE:
        return Rejected(f"{said}; this is not the kind of file that is needed, check the path", file=name)
    return ReadOnly(f"{said}; give write permission or open read-only", file=name)


def write_zeros(files: Files, file: File, size: int) -> None:
    """Write `size` zeros from the beginning of a file on. Durable: nothing yet. Raises: StorageFull, IoFailed."""
    zeros = bytes(min(size, ZERO_PIECE_BYTES))
    for offset in range(0, size, ZERO_PIECE_BYTES):
        files.pwrite(file, offset, zeros if size - offset >= len(zeros) else zeros[: size - offset])


class CheckedFiles:
    """`Files`, which describes the calls, over a raw disk: names checked, transfers completed, errors translated, the
    first failure latched.
    """

    def __init__(self, raw: RawFiles, failure: Failure | None = None) -> None:
        self.raw = raw
        self.failure = failure if failure is not None else Failure()
        # While a store is being opened it has acknowledged nothing: a file that cannot be read counts as damaged, and
        # there may be another copy (F41). From the store's first write on, a failed read kills it (D12).
        self.read_errors_latch = True
        # By identity: a closed file's number may be that of the next one.
        self._open: dict[int, File] = {}
        # Bound once: the commit path calls these.
        self.raw_pwrite = raw.pwrite
        self._raw_pread_into = raw.pread_into
        self._raw_fdatasync = raw.fdatasync

    def create(self, name: str, size: int = 0) -> File:
        if size < 0:
            raise ValueOutOfRange(f"a file cannot have {size} bytes", file=name)
        file = self._call("create", check_name(name), ANSWERS_TO_OPENING, self.raw.create, name)
        self._open[id(file)] = file
        try:
            write_zeros(self, file, size)
        except StorageFull:
            # The file is removed: an error when closing it does not matter.
            file.synced = file.writes
            self.close(file)
            self.unlink(name)
            raise
        return file

    def open(self, name: str, writable: bool = False) -> File:
        file = self._call("open", check_name(name), ANSWERS_TO_OPENING, self.raw.open, name, writable)
        self._open[id(file)] = file
        return file

    def pread(self, file: File, offset: int, count: int) -> bytes:
        if count < 0:
            raise ValueOutOfRange(f"cannot read {count} bytes", file=file.name)
        if count > PREAD_UNCHECKED_BYTES:
            count = max(0, min(count, self.size(file) - offset))
        filled = BytesIO(bytes(count))  # unlike a bytearray, it gives its bytes without a copy
        with filled.getbuffer() as buffer:
            got = self.pread_into(file, offset, buffer)
        return filled.getvalue() if got == count else filled.getvalue()[:got]

    def pread_into(self, file: File, offset: int, buffer: Buffer) -> int:
        if self.failure.first is not None or not file.is_open or offset < 0:
            self._refuse(file, offset)
        view = _view(file, buffer)
        if view.readonly:
            raise TypeMismatch(f"read of {file.name} into a read-only buffer", file=file.name)
        got = self._pread_some(file, offset, view)
        if got != view.nbytes:
            got = self._pread_rest(file, offset, flat(view), got)
        return got

    def pwrite(self, file: File, offset: int, buffer: Buffer) -> None:
        if self.failure.first is not None or not file.writable or offset < 0:
            self._refuse(file, offset, writing=True)
        view = _view(file, buffer)
        file.writes += 1
        try:
            done = self._pwrite_some(file, offset, view)
            if done != view.nbytes:
                self._pwrite_rest(file, offset, flat(view), done)
        finally:
            file.writes += 1  # again: a sync that another thread began meanwhile does not cover it

    def pwrite_synced(self, file: File, offset: int, words: Words) -> None:
        write_and_sync = self.raw.write_and_sync
        if write_and_sync is None:
            self.pwrite(file, offset, words)
            self.fdatasync(file)
            return
        failure = self.failure
        if failure.first is not None or not file.writable or offset < 0:
            self._refuse(file, offset, writing=True)
        count = words.nbytes
        written = np.empty(1, dtype=np.int64)
        written[0] = 0
        file.writes += 1
        writes = file.writes
        is_synced = True
        try:
            write_and_sync(OSError, file, words, count, offset, written)
        except OSError as cause:
            # As in fdatasync: no call between the error and the assignment.
            is_synced = False
            is_sync = written[0] == count
            if cause.errno not in (INTERRUPTED if is_sync else ANSWERS_TO_WRITING):
                if failure.first is None:
                    kind, step = (SyncFailed, "fdatasync") if is_sync else (IoFailed, "pwrite")
                    failure.first = (kind, step, file.name, cause)
                raise failure.again() from cause
            if cause.errno in FULL:
                raise answer("pwrite", file.name, cause) from cause
        finally:
            file.writes += 1  # as in pwrite
        done = int(written[0])
        if is_synced and done == count:
            file.synced = writes + 1
            if failure.first is not None:  # as in fdatasync
                failure.check()
            return
        if done < count:
            self._pwrite_rest(file, offset, flat(words), done)
        self.fdatasync(file)

    def truncate(self, file: File, size: int) -> None:
        if not file.writable or size < 0:
            self._refuse(file, size, writing=True)
        file.writes += 1
        try:
            self._call("truncate", file.name, FULL, self.raw.truncate, file, size)
        finally:
            file.writes += 1

    def fdatasync(self, file: File) -> None:
        failure = self.failure
        if failure.first is not None or not file.is_open:
            self._refuse(file, 0)
        writes = file.writes
        try:
            self._raw_fdatasync(file)
        except OSError as cause:
            # No call may precede this assignment: a KeyboardInterrupt comes only at calls and backward jumps. Here it
            # would lose the failed sync, and a second sync would then report success for lost pages (F33).
            if failure.first is None:
                failure.first = (SyncFailed, "fdatasync", file.name, cause)
            raise failure.again() from cause
        file.synced = writes
        if failure.first is not None:
            # The system reports an error once: a sync of another thread may have received the error of our writes.
            failure.check()

    def sync_directory(self, path: str) -> None:
        failure = self.failure
        failure.check()
        path = check_path(path)
        try:
            self.raw.sync_directory(path)
        except OSError as cause:
            # As in fdatasync: no call between the error and the assignment (F36).
            if cause.errno not in ANSWERS_TO_DIRECTORY_SYNC:
                if failure.first is None:
                    failure.first = (SyncFailed, "sync_directory", path, cause)
                raise failure.again() from cause
            raise answer("sync_directory", path, cause) from cause

    def make_directory(self, path: str) -> None:
        self._call("make_directory", check_name(path), ANSWERS_TO_OPENING, self.raw.make_directory, path)

    def rename(self, source: str, target: str) -> None:
        check_name(target)
        self._call("rename", check_name(source), ANSWERS_TO_CHANGING, self.raw.rename, source, target)

    def unlink(self, name: str) -> None:
        self._call("unlink", check_name(name), ANSWERS_TO_CHANGING, self.raw.unlink, name)

    def link(self, name: str, source_name: str, source: Files) -> bool:
        check_name(source_name)
        return self._call("link", check_name(name), ANSWERS_TO_OPENING, self.raw.link, name, source_name, source.raw)

    def remove_tree(self, path: str) -> None:
        self._call("remove_tree", check_name(path), ANSWERS_TO_OPENING, self.raw.remove_tree, path)

    def is_pinned(self, name: str) -> bool:
        return self._call("open", check_name(name), ANSWERS_TO_OPENING, self.raw.is_pinned, name)

    def list(self, path: str = "") -> tuple[str, ...]:
        path = check_path(path)
        return tuple(sorted(self._call("list", path, ANSWERS_TO_OPENING, self.raw.names, path)))

    def size(self, file: File | str) -> int:
        if isinstance(file, str):
            return self._call("size", check_name(file), ANSWERS_TO_OPENING, self.raw.size_of, file)
        if not file.is_open:
            self._refuse(file, 0)
        return self._call("size", file.name, frozenset(), self.raw.size, file)

    def exists(self, name: str) -> bool:
        return self._call("exists", check_name(name), ANSWERS_TO_OPENING, self.raw.exists, name)

    def identity_of(self, name: str) -> tuple[int, int] | None:
        return self._call("open", check_name(name), ANSWERS_TO_OPENING, self.raw.identity_of, name)

    def free_bytes(self) -> int | None:
        return self._call("free_bytes", "", frozenset(), self.raw.free_bytes)

    def lock(self) -> None:
        self._call("lock", "LOCK", ANSWERS_TO_OPENING, self.raw.lock)
        self._raw_fdatasync = self.raw.fdatasync  # that of a store whose lock can be removed checks it

    def unlock(self) -> None:
        try:
            self.raw.unlock()
        except OSError as cause:
            _log.warning("unlock of the store failed: %s", describe(cause))

    def check_place(self) -> None:
        self._call("check_place", "", frozenset(), self.raw.check_place)

    def close(self, file: File) -> None:
        if self._open.pop(id(file), None) is None:  # of two threads that close a file, one does
            return
        is_unsynced = file.writes != file.synced
        # Before the call: the descriptor's number may be reused from then on, even if the system reports an error.
        file.is_open = file.writable = False
        failure = self.failure
        try:
            self.raw.close(file)
        except OSError as cause:
            if is_unsynced and failure.first is None:
                failure.first = (IoFailed, "close", file.name, cause)
                raise failure.again() from cause
            _log.warning("close of %s failed: %s", file.name, describe(cause))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close_all()

    def close_all(self) -> None:
        refused: IoFailed | None = None
        while self._open:
            for file in tuple(self._open.values()):
                try:
                    self.close(file)
                except IoFailed as error:
                    refused = error
        self.unlock()
        try:
            self.raw.close_directories()
        except OSError as cause:
            _log.warning("close of the store directory failed: %s", describe(cause))
        self.failure.latch(StoreClosed("the store is closed; open it again"))
        if refused is not None:
            raise refused

    def mark(self, kind: str, **values: Any) -> None:
        self.raw.mark(kind, values)

    def _call(
        self, operation: str, name: str, answers: frozenset[int], function: Callable[..., T], *arguments: object
    ) -> T:
        failure = self.failure
        failure.check()
        interrupted = 0
        while True:
            try:
                return function(*arguments)
            except OSError as cause:
                # As in fdatasync: no call between error and assignment; `errno` and `in` do not call into Python.
                if cause.errno not in answers and (cause.errno not in TRANSIENT or interrupted):
                    if failure.first is None:
                        failure.first = (IoFailed, operation, name, cause)
                    raise failure.again() from cause
                if cause.errno not in TRANSIENT:
                    raise answer(operation, name, cause) from cause
                interrupted += 1

    def _pread_some(self, file: File, offset: int, view: memoryview) -> int:
        failure = self.failure
        try:
            return self._raw_pread_into(file, view, offset)
        except OSError as cause:
            if cause.errno not in TRANSIENT:
                if self.read_errors_latch and file.read_errors_latch:
                    if failure.first is None:
                        failure.first = (IoFailed, "pread", file.name, cause)
                    raise failure.again() from cause
                text = (
                    f"pread of {file.name} failed: {describe(cause)}; check the disk, or restore the store from a"
                    " backup"
                )
                raise IoFailed(text, file=file.name) from cause
            return 0

    def _pread_rest(self, file: File, offset: int, view: memoryview, got: int) -> int:
        idle = int(got == 0)
        while got < view.nbytes:
            if idle and offset + got >= self.size(file):
                return got
            if idle == 2:
                raise self._stuck("pread", file)
            more = self._pread_some(file, offset + got, view[got:])
            got += more
            idle = 0 if more else idle + 1
        return got

    def _pwrite_some(self, file: File, offset: int, view: memoryview) -> int:
        failure = self.failure
        try:
            return self.raw_pwrite(file, view, offset)
        except OSError as cause:
            if cause.errno not in FULL and cause.errno not in TRANSIENT:
                if failure.first is None:
                    failure.first = (IoFailed, "pwrite", file.name, cause)
                raise failure.again() from cause
            if cause.errno in FULL:
                raise answer("pwrite", file.name, cause) from cause
            return 0

    def _pwrite_rest(self, file: File, offset: int, view: memoryview, done: int) -> None:
        idle = int(done == 0)
        while done < view.nbytes:
            if idle == 2:
                raise self._stuck("pwrite", file)
            more = self._pwrite_some(file, offset + done, view[done:])
            done += more
            idle = 0 if more else idle + 1

    def _stuck(self, operation: str, file: File) -> Error:
        failure = self.failure
        if failure.first is None:
            failure.first = (IoFailed, operation, file.name, OSError(errno.EIO, "no progress in two calls"))
        return failure.again()

    def _refuse(self, file: File, offset: int, writing: bool = False) -> None:
        self.failure.check()
        if not file.is_open:
            raise Rejected(f"{file.name} is closed; open it again", file=file.name)
        if writing and not file.writable:
            raise ReadOnly(f"{file.name} was opened for reading; open it writable", file=file.name)
        raise ValueOutOfRange(f"{file.name} has no offset {offset}; give one from 0", file=file.name)


def _view(file: File, buffer: Buffer) -> memoryview:
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError, BufferError) as cause:
        raise TypeMismatch(f"{file.name} takes bytes or a contiguous array: {cause}", file=file.name) from cause
    if not view.c_contiguous:
        raise TypeMismatch(f"{file.name} takes contiguous buffers; copy the array first", file=file.name)
    return view
