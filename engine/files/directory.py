"""The only door to the disk: one store's directory on a real file system, and its lock.

Owns every descriptor of the store. The directory is held by a descriptor and names are resolved from there, one
component at a time and never through a symbolic link, so that a renamed or replaced directory cannot redirect writes
(F80). Data files are read and written, never mapped: access to a mapped file that was truncated kills the process.

The lock is a flock on the directory itself, which no script removes while the store is in it, and one on `LOCK`, whose
content names the holder. If `LOCK` is removed or replaced, the holder puts it back. Where the file system has no flock
of directories, `LOCK` alone is the lock, and each sync checks first that it is still there. Record locks would vanish
as soon as any descriptor of the file is closed in the process. A flock lives as long as any process has its descriptor,
so a forked child closes it at once. Because the child shares files with its parent, every call on the child's handle
raises ForkedHandle (F79, F116). A reader in another process *pins* a file with a shared flock on the file itself. A
process that removes the file takes the flock exclusively first, so the file stays as long as a pin does. Translation of
errors, completion of short transfers and the failure latch are in `layer.py`.

Files and directories created here have the modes 0600 and 0700, whatever the umask is. Only the mode of the store's
directory widens this: if it gives no rights to others, the rights it gives to its group apply to everything created in
it (0750 makes files 0640). Unlike an option of a call, the mode also reaches other processes and later ones.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import os
import re
import shutil
import stat
import struct
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import FileMissing, ForeignFile, ForkedHandle, Locked, Rejected, Unsupported
from tidemark.engine.base.failure import Failure
from tidemark.engine.base.users import is_own_user
from tidemark.engine.files.layer import ANSWERS_TO_OPENING, CheckedFiles, answer, check_name, parent_of
from tidemark.engine.files.protocol import File, Files, RawFiles, Words

__all__ = ["File", "Files", "Pin", "PosixFiles", "RawFiles", "is_own_user"]

_log = logging.getLogger("tidemark.files")

LOCK_NAME = "LOCK"
SYNC_TRIED_BYTES = 4_096
# The holder's line has a fixed length: rewriting it needs no space, so a store on a full disk can be opened.
LOCK_LINE_BYTES = 64
LOCK_SHOWN_BYTES = 12
_LOCK_LINE = re.compile(rb"[0-9]+ (unknown|[0-9a-f\-]+) *\n")
# The LOCK file may be removed and created anew between our open and our flock; each time costs one more attempt.
LOCK_ATTEMPTS = 8
REMOVE_ATTEMPTS = 8

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO in place of a file must not wait for its other end (F74).
_REGULAR = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# Opens a file of any kind, without the right to read it.
_ANY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

_RIGHTS = 0o777
_RIGHTS_OF_OTHERS = 0o007
_NO_MODES = frozenset({errno.EPERM, errno.ENOTSUP})
# Another file system, one without links, or a rule of the system's (protected_hardlinks).
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})
# What a removal meets while another process creates or removes files there.
_RACED = frozenset({errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST})


# Of `struct statx`, the same at every machine.
_EMPTY_PATH = 0x1000
_BORN = 0x800
_STATX_BYTES = 256
_STATX_MASK = struct.Struct("=I")
_STATX_BORN = struct.Struct("=qI")
_STATX_BORN_OFFSET = 80


class _Hold:
    """A lock held by this process: descriptors of `LOCK` and of the directory, None without flocks of directories."""

    def __init__(self, descriptor: int, directory: int | None, failure: Failure) -> None:
        self.descriptor: int | None = descriptor
        self.directory = directory
        self.failure = failure

    def close(self) -> None:
        """Close both descriptors. A second call does nothing."""
        found = (self.descriptor, self.directory)
        self.descriptor = self.directory = None
        for each in found:
            if each is not None:
                os.close(each)


# Stores this process has locked, by device and inode of their directory: the same through any path or link (F78).
_held: dict[tuple[int, int], _Hold] = {}
_held_mutex = threading.Lock()


# Directories of `scratch_program`; removed when the interpreter ends.
_scratch: list[tempfile.TemporaryDirectory[str]] = []
_pins: set[Pin] = set()


def _born_ns(descriptor: int) -> int:
    """Return when an open file was created, in ns since 1970, 0 if the system or the file system does not tell. Only
    `statx` knows it, which `os` lacks; no call can set it.
    """
    import ctypes

    statx = getattr(ctypes.CDLL(None), "statx", None)
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if statx is None or statx(descriptor, b"", _EMPTY_PATH, _BORN, found):
        return 0
    if not _STATX_MASK.unpack_from(found)[0] & _BORN:
        return 0
    seconds, nanoseconds = _STATX_BORN.unpack_from(found, _STATX_BORN_OFFSET)
    return int(seconds * 1_000_000_000 + nanoseconds)


def _close_locks_in_child() -> None:
    global _held_mutex
    _held_mutex = threading.Lock()
    while _pins:
        _pins.pop().forget()
    for hold in _held.values():
        hold.close()
        if hold.failure.first is None:
            hold.failure.first = (ForkedHandle, "fork", "the store", None)
    _held.clear()


os.register_at_fork(after_in_child=_close_locks_in_child)


class Pin:
    """A file kept from removal (`PosixFiles.pin`). It does not outlive its process; a forked child does not have it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _pins.add(self)

    def release(self) -> None:
        """Release the pin; a second call does nothing."""
        _pins.discard(self)
        if self._descriptor is not None:
            # A child may have been forked before the pin was recorded: closing alone would leave the flock to its copy.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Close this process's descriptor; the flock stays with the process that forked this one."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _path(directory: object, what: str) -> str:
    """Return a path as a str. Raises: Rejected."""
    path = os.fspath(directory) if isinstance(directory, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise Rejected(f"the directory of the {what} is given as a str or a path, got {type(directory).__name__}")
    if not path:
        raise Rejected(f"the path is empty; give the directory of the {what}")
    try:
        if "\0" in path or not path.encode():
            raise ValueError
    except ValueError:  # a byte that is no UTF-8: LMDB takes no such path
        raise Rejected(f"the path {path!a} has a zero byte or is not valid Unicode; choose another directory") from None
    return path


class PosixFiles(CheckedFiles):
    """`Files` on a directory of a real file system. The directory stays open until `close_all`."""

    def __init__(self, directory: str | os.PathLike[str], create: bool = False, what: str = "store") -> None:
        """Open the directory, created (durably) first if `create`.

        what: what the caller expects in it, for the message if it does not exist.

        Raises: FileMissing, ReadOnly, TooManyFiles, StorageFull, Rejected if it is not a directory.
        """
        failure = Failure()
        place = os.path.abspath(_path(directory, what))
        try:
            if create and not os.path.isdir(place):
                _make_store_directory(place)
            raw = _PosixRaw(place, failure)
        except FileNotFoundError as cause:
            raise FileMissing(_missing(place, create, what), file=place) from cause
        except NotADirectoryError as cause:
            while not os.path.exists(place):
                place = os.path.dirname(place)
            raise Rejected(
                f"{place} is a file, not a directory; give the directory of the {what}", file=place
            ) from cause
        except OSError as cause:
            if cause.errno not in ANSWERS_TO_OPENING:
                raise FileMissing(f"{place} cannot be opened: {cause}; check the path", file=place) from cause
            raise answer("open", place, cause) from cause
        super().__init__(raw, failure)
        self.directory = place
        self._posix = raw
        self._drop: weakref.finalize[..., PosixFiles] | None = None

    def lock(self) -> None:
        """See `Files.lock`. If the object is dropped while it holds the lock, the lock is released."""
        super().lock()
        if self._drop is None:
            self._drop = weakref.finalize(self, _give_back, self._posix, self._open)
            self._drop.atexit = False

    def unlock(self) -> None:
        super().unlock()
        if self._drop is not None:
            self._drop.detach()
            self._drop = None

    @property
    def owner(self) -> int:
        """The number of the user who owns the directory."""
        return self._posix.status.st_uid

    def bind(self, name: str, listener: Any) -> None:
        """Bind a Unix socket to `name` in the directory; this user alone may connect. Raises: OSError."""
        self._posix.bind(check_name(name), listener)

    def socket_address(self, name: str) -> str:
        """Return the address of a Unix socket `name` in the directory, for `connect` of this process.

        It leads through our descriptor of the directory: a path is limited to 107 bytes and follows renames (F80).
        """
        return self._posix.address(check_name(name))

    def remove_socket(self, name: str) -> bool:
        """Remove the file of a Unix socket; False if it is still there. It has no data, so no error latches (C1)."""
        return self._posix.remove_socket(check_name(name))

    def pin(self, name: str) -> Pin | None:
        """Keep a file from being removed by any process until the pin is released or this process ends. None if the
        file is gone. Raises: Unsupported where the file system has no locks.
        """
        return self._posix.pin(check_name(name))

    def share(self) -> Pin | None:
        """Keep other processes from locking the store until the pin is released; readers share it. No byte is written.
        None where the file system has no locks of directories. Raises: Locked if a process has locked the store.
        """
        return self._posix.share()

    def holder(self) -> int | None:
        """Return the pid of the process that has the store locked, as the system reports it, without taking the lock; 0
        if it is in another pid namespace, None if no process has it or the system does not report it.
        """
        return self._posix.holder()


def _give_back(raw: _PosixRaw, opened: dict[int, File]) -> None:
    """Close the files of a store that was dropped without close(), the lock last. It takes no mutex: the garbage
    collector may run while this thread holds any of them.
    """
    while opened:
        with contextlib.suppress(OSError):
            raw.close(opened.popitem()[1])
    raw.drop()


def _missing(place: str, create: bool, what: str) -> str:
    if create:
        above = os.path.dirname(place)
        return f"{place} cannot be made: there is no directory {above}; check the path, or make that directory first"
    return f"there is no {what} in {place}: the directory does not exist; check the path"


def _make_store_directory(place: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(place, 0o700)
        _set_mode(place, None, 0o700, place)
    parent = os.open(os.path.dirname(place), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


class _PosixRaw:
    """System calls relative to one directory; see `RawFiles`."""

    pwrite = staticmethod(os.pwrite)
    fdatasync: Callable[[File], None] = staticmethod(os.fdatasync)
    write_and_sync: Callable[[type[OSError], File, Words, int, int, Words], object] | None = None

    def __init__(self, place: str, failure: Failure) -> None:
        self._place = place
        self._failure = failure
        self._hold: _Hold | None = None
        # The store's own directory may be reached through a link; anything inside it may not.
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._directories = {"": directory}
        self.status = os.fstat(directory)
        # 0755 and 0777 come from a umask, so they do not mean that the group may read the rows.
        is_deliberate = self.status.st_mode & _RIGHTS_OF_OTHERS == 0
        self._folder_mode = 0o700 | (self.status.st_mode & 0o070 if is_deliberate else 0)
        self._file_mode = self._folder_mode & 0o660

    def _directory(self, path: str) -> int:
        # Kept open: a directory sync must not fail for lack of a descriptor in the middle of a checkpoint.
        found = self._directories.get(path)
        if found is None:
            above, _, leaf = path.rpartition("/")
            opened = os.open(leaf, _DIRECTORY, dir_fd=self._directory(above))
            found = self._directories.setdefault(path, opened)
            if found != opened:
                os.close(opened)
        return found

    def _open(self, name: str, flags: int) -> int:
        folder = self._directory(parent_of(name))
        descriptor = os.open(name.rpartition("/")[2], flags | _REGULAR, self._file_mode, dir_fd=folder)
        try:
            status = os.fstat(descriptor)
            _check_regular(status)
            if flags & os.O_CREAT:
                _apply_mode(descriptor, status, self._file_mode, self._place)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def create(self, name: str) -> File:
        return File(self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL), name, True)

    def open(self, name: str, writable: bool) -> File:
        return File(self._open(name, os.O_RDWR if writable else os.O_RDONLY), name, writable)

    def pread_into(self, file: File, view: memoryview, offset: int) -> int:
        return os.preadv(file, [view], offset)

    def truncate(self, file: File, size: int) -> None:
        os.ftruncate(file, size)

    def sync_directory(self, path: str) -> None:
        os.fsync(self._directory(path))

    def make_directory(self, path: str) -> None:
        leaf, above = path.rpartition("/")[2], self._directory(parent_of(path))
        os.mkdir(leaf, self._folder_mode, dir_fd=above)
        _set_mode(leaf, above, self._folder_mode, self._place)

    def rename(self, source: str, target: str) -> None:
        os.rename(
            source.rpartition("/")[2],
            target.rpartition("/")[2],
            src_dir_fd=self._directory(parent_of(source)),
            dst_dir_fd=self._directory(parent_of(target)),
        )

    def unlink(self, name: str) -> None:
        os.unlink(name.rpartition("/")[2], dir_fd=self._directory(parent_of(name)))

    def link(self, name: str, source_name: str, source: RawFiles) -> bool:
        # The owner of a file can write to it at any time.
        if not isinstance(source, _PosixRaw) or source._status(source_name).st_uid != os.geteuid():
            return False
        leaf, folder = name.rpartition("/")[2], self._directory(parent_of(name))
        try:
            os.link(
                source_name.rpartition("/")[2],
                leaf,
                src_dir_fd=source._directory(parent_of(source_name)),
                dst_dir_fd=folder,
                follow_symlinks=False,
            )
        except OSError as cause:
            if cause.errno in _NO_LINK:
                return False
            raise
        _set_mode(leaf, folder, self._file_mode, self._place)
        return True

    def remove_tree(self, path: str) -> None:
        for each in [known for known in self._directories if f"{known}/".startswith(f"{path}/")]:
            os.close(self._directories.pop(each))
        for _ in range(REMOVE_ATTEMPTS):
            try:
                shutil.rmtree(path.rpartition("/")[2], dir_fd=self._directory(parent_of(path)))
            except OSError as cause:
                if cause.errno not in _RACED:
                    raise
            if not self.exists(path):
                return

    def names(self, path: str) -> tuple[str, ...]:
        # A separate descriptor: listing moves the position that all users of one descriptor share.
        descriptor = os.open(".", _DIRECTORY, dir_fd=self._directory(path))
        try:
            return tuple(os.listdir(descriptor))
        finally:
            os.close(descriptor)

    def size(self, file: File) -> int:
        return os.fstat(file).st_size

    def _status(self, name: str) -> os.stat_result:
        return os.stat(name.rpartition("/")[2], dir_fd=self._directory(parent_of(name)), follow_symlinks=False)

    def size_of(self, name: str) -> int:
        status = self._status(name)
        _check_regular(status)
        return status.st_size

    def exists(self, name: str) -> bool:
        try:
            self._status(name)
        except FileNotFoundError:
            return False
        return True

    def identity_of(self, name: str) -> tuple[int, int]:
        descriptor = self._open(name, os.O_RDONLY)
        try:
            return os.fstat(descriptor).st_ino, _born_ns(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int | None:
        found = os.fstatvfs(self._directories[""])
        return found.f_bavail * found.f_frsize if found.f_blocks else None

    def close(self, file: File) -> None:
        os.close(file)

    def close_directories(self) -> None:
        while self._directories:
            os.close(self._directories.popitem()[1])

    def mark(self, kind: str, values: dict[str, Any]) -> None:
        pass

    def lock(self) -> None:
        if self._hold is not None:
            return
        directory = os.fstat(self._directories[""])
        identity = (directory.st_dev, directory.st_ino)
        with _held_mutex:
            if identity in _held:
                raise Locked(f"this process (pid {os.getpid()}) has {self._place} open; close it", pid=os.getpid())
            taken: list[int] = []
            try:
                locked = self._flocked_directory(taken)
                taken.append(self._flocked())
                _check_lock(taken[-1], self._place)
                _write_holder(taken[-1])
                if directory.st_mode & stat.S_IWOTH:
                    _log.warning("any user may replace files in %s; run chmod o-w on it", self._place)
                if locked is None:
                    self.fdatasync = self._checked_fdatasync
                else:
                    self.write_and_sync = self._load_write_and_sync
                self._hold = _held[identity] = _Hold(taken[-1], locked, self._failure)
            except BaseException:  # also on MemoryError: the lock would be held until the process ends
                for each in taken:
                    os.close(each)
                raise

    def _load_write_and_sync(self, *_: object) -> None:
        """Load the kernel for the next calls, and write nothing: this one is completed by the calls of a short write. A
        process that writes no log needs no kernels.
        """
        with contextlib.suppress(OSError):
            from tidemark.engine.files.synced_write_kernels import write_and_sync

            self.write_and_sync = write_and_sync.entry

    def _flocked_directory(self, taken: list[int]) -> int | None:
        """Return a descriptor of the directory with a flock, None if its file system has no such locks. It is in
        `taken`, for the caller to close. Raises: Locked.
        """
        taken.append(os.open(".", _DIRECTORY, dir_fd=self._directories[""]))
        try:
            fcntl.flock(taken[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            return taken[-1]
        except BlockingIOError as cause:
            raise self._locked(self._named_holder()) from cause
        except OSError as cause:
            _log.info(
                "%s has no lock of its own (%s): %s alone keeps other processes away", self._place, cause, LOCK_NAME
            )
            os.close(taken.pop())
            return None

    def _named_holder(self) -> int | None:
        """Return the pid in LOCK, None if there is none."""
        with contextlib.suppress(OSError):
            descriptor = self._open(LOCK_NAME, os.O_RDONLY)
            try:
                return _read_holder(descriptor)
            finally:
                os.close(descriptor)
        return None

    def _locked(self, holder: int | None) -> Locked:
        text = f"process {holder}" if holder else "another process"
        return Locked(f"{text} has {self._place} open; close it there", pid=holder)

    def _checked_fdatasync(self, file: File) -> None:
        """Sync, unless another process may have taken the store: LOCK is the only lock here."""
        self.check_place()
        os.fdatasync(file)

    def _flocked(self) -> int:
        for _ in range(LOCK_ATTEMPTS):
            try:
                descriptor = self._opened_lock()
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_lock(descriptor):
                    return descriptor
            except BlockingIOError as cause:
                holder = _read_holder(descriptor)
                os.close(descriptor)
                raise self._locked(holder) from cause
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        raise Locked(
            f"{LOCK_NAME} in {self._place} is replaced again and again; find the process that does it", pid=None
        )

    def _opened_lock(self) -> int:
        try:
            return self._open(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return self._open(LOCK_NAME, os.O_RDWR)  # its mode is not ours to set

    def _is_lock(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._status(LOCK_NAME))
        except FileNotFoundError:
            return False

    def pin(self, name: str) -> Pin | None:
        try:
            descriptor = self._open(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            # Waits while another thread or process looks for pins, or removes the file; both are short.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            # A flock taken after the removal of the name pins nothing.
            if os.path.samestat(os.fstat(descriptor), self._status(name)):
                return Pin(descriptor)
        except FileNotFoundError:
            pass
        except OSError as cause:
            os.close(descriptor)
            text = f"{name} cannot be kept from removal: {cause}; read from a backup instead"
            raise Unsupported(text, file=name) from cause
        os.close(descriptor)
        return None

    def share(self) -> Pin | None:
        descriptor = os.open(".", _DIRECTORY, dir_fd=self._directories[""])
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            os.close(descriptor)
            raise self._locked(self._named_holder()) from cause
        except OSError:
            os.close(descriptor)
            return None
        return Pin(descriptor)

    def is_pinned(self, name: str) -> bool:
        descriptor = self._open(name, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass  # no locks here, so no reader has one
        finally:
            os.close(descriptor)
        return False

    def bind(self, name: str, listener: Any) -> None:
        # The file is created with the mode of the socket: other users cannot connect even for a moment.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(self.address(name))
        _set_mode(name, self._directories[""], 0o600, self._place)

    def address(self, name: str) -> str:
        return f"/proc/self/fd/{self._directories['']}/{name}"

    def remove_socket(self, name: str) -> bool:
        try:
            if not stat.S_ISSOCK(self._status(name).st_mode):
                return False
            self.unlink(name)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def holder(self) -> int | None:
        try:
            inode = self._status(LOCK_NAME).st_ino
            with open("/proc/locks", encoding="ascii") as source:
                lines = [line.split() for line in source]
        except OSError:
            return None
        # "1: FLOCK ADVISORY WRITE pid major:minor:inode start end"; the device differs on layered file systems.
        held = [fields for fields in lines if fields[1] == "FLOCK" and fields[-3].endswith(f":{inode}")]
        return max((int(fields[4]) for fields in held), default=None)

    def unlock(self) -> None:
        with _held_mutex:
            hold = self._hold
            if hold is None or hold.descriptor is None:
                self._hold = None
                return
            for identity in [key for key, value in _held.items() if value is hold]:
                del _held[identity]
            for each in (hold.descriptor, hold.directory):
                if each is not None:
                    fcntl.flock(each, fcntl.LOCK_UN)  # as in `Pin.release`
            hold.close()
            self._hold = None  # only now: after a MemoryError in the lines above `unlock` is called again

    def drop(self) -> None:
        """Release the lock without the mutex, and with a warning."""
        with contextlib.suppress(OSError):
            self.close_directories()
        hold, self._hold = self._hold, None
        if hold is None or hold.descriptor is None:  # in a forked child
            return
        for identity in [key for key, value in list(_held.items()) if value is hold]:
            _held.pop(identity, None)
        hold.close()
        warnings.warn(f"the store in {self._place} was dropped without close()", ResourceWarning, stacklevel=2)

    def check_place(self) -> None:
        if not os.path.samestat(os.fstat(self._directories[""]), os.stat(self._place)):
            raise OSError(errno.ESTALE, "another directory is in its place")
        hold = self._hold
        if hold is None or hold.descriptor is None or self._is_lock(hold.descriptor):
            return
        if hold.directory is None:
            raise OSError(errno.ESTALE, f"its {LOCK_NAME} was removed or replaced")
        self._restore_lock(hold)

    def _restore_lock(self, hold: _Hold) -> None:
        """Put LOCK back, which names the holder; the lock of the directory has kept other processes away. Raises:
        OSError if another process has locked the file in its place.
        """
        try:
            descriptor = self._flocked()
        except Locked as cause:
            raise OSError(errno.ESTALE, f"its {LOCK_NAME} was replaced: {cause.message}") from cause
        with _held_mutex:
            if self._hold is not hold or hold.descriptor is None:  # unlocked meanwhile
                os.close(descriptor)
                return
            before, hold.descriptor = hold.descriptor, descriptor
        os.close(before)
        os.ftruncate(descriptor, 0)
        _write_holder(descriptor)
        _log.warning("%s in %s was removed or replaced, and is there again", LOCK_NAME, self._place)


def sync_seconds(place: str, clock: Clock) -> float:
    """Return the seconds that one fdatasync of 4 KiB takes in a directory. The file has no name: a crash leaves none.

    Raises: OSError, also of a file system that has no unnamed files.
    """
    descriptor = os.open(place, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, bytes(SYNC_TRIED_BYTES), 0)
        os.fdatasync(descriptor)  # with the blocks and the size of the file, which later ones do not write
        os.pwrite(descriptor, bytes(SYNC_TRIED_BYTES), 0)
        began = clock.monotonic()
        os.fdatasync(descriptor)
        return clock.monotonic() - began
    finally:
        os.close(descriptor)


def machine_bytes() -> int:
    """Return the bytes of memory that the machine has; 0 if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0


def real_path(path: str) -> str:
    """Return an absolute path without symbolic links."""
    return os.path.realpath(path)


def find_program(name: str) -> str | None:
    """Return the path of an executable program, found by name as the shell does; None if there is none."""
    return shutil.which(name)


def scratch_program(name: str, text: str) -> str:
    """Write a script to `bin/<name>` of a new directory; return that directory.

    It stays until this process ends, for this user alone. Nothing is durable.
    """
    folder = tempfile.TemporaryDirectory(prefix="tidemark-")
    _scratch.append(folder)
    os.mkdir(os.path.join(folder.name, "bin"), 0o700)
    place = os.path.join(folder.name, "bin", name)
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    return folder.name


@contextlib.contextmanager
def standard_error_in(place: str) -> Iterator[None]:
    """Send standard error to a new file while the block runs; processes that the block starts keep writing there.
    Nothing is durable.
    """
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    before = os.dup(2)
    try:
        os.dup2(descriptor, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(descriptor)


def _set_mode(leaf: str, above: int | None, mode: int, place: str) -> None:
    """Set the mode of a directory or socket that was just created."""
    descriptor = os.open(leaf, _ANY, dir_fd=above)
    try:
        _apply_mode(descriptor, os.fstat(descriptor), mode, place)
    finally:
        os.close(descriptor)


def _apply_mode(descriptor: int, status: os.stat_result, mode: int, place: str) -> None:
    """Set the requested mode; the umask may have removed bits of it."""
    if status.st_mode & _RIGHTS == mode:
        return
    try:
        # Not fchmod: it refuses an O_PATH descriptor, the only kind for a directory this process cannot read.
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(status.st_mode) & ~_RIGHTS | mode)
    except OSError as cause:
        if cause.errno not in _NO_MODES:
            raise
        _warn_no_modes(place)


@functools.cache
def _warn_no_modes(place: str) -> None:
    _log.warning(
        "the file system of %s stores no modes of files; its mount options decide which users may read them", place
    )


def _check_regular(status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a symbolic link")
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, "a directory")
    raise OSError(errno.ENXIO, "not a regular file")


def _check_lock(descriptor: int, place: str) -> None:
    """Check that LOCK is a lock file before its line is overwritten. A crash leaves it empty, zeroed, or with its line.

    Raises: ForeignFile.
    """
    size, content = os.fstat(descriptor).st_size, os.pread(descriptor, LOCK_LINE_BYTES, 0)
    is_lock = not content.strip(b"\0") or _LOCK_LINE.fullmatch(content) is not None
    if size not in (0, LOCK_LINE_BYTES) or not is_lock:
        start = content[:LOCK_SHOWN_BYTES].decode("ascii", "replace")
        raise ForeignFile(
            f"{LOCK_NAME} in {place} is no lock of Tidemark ({size} bytes, {start!r} …); give another directory",
            file=LOCK_NAME,
        )


def _write_holder(descriptor: int) -> None:
    line = f"{os.getpid()} {_boot_id()}"
    os.pwrite(descriptor, line.ljust(LOCK_LINE_BYTES - 1).encode() + b"\n", 0)


def _read_holder(descriptor: int) -> int | None:
    try:
        fields = os.pread(descriptor, LOCK_LINE_BYTES, 0).split()
    except OSError:
        return None
    # A line of an earlier boot was left by a killed owner; the new owner has not written its own yet.
    if len(fields) == 2 and fields[0].isdigit() and fields[1] == _boot_id().encode():
        return int(fields[0])
    return None


def resident_bytes() -> int | None:
    """Return the memory of this process that is in RAM; None where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as source:
            return int(source.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as source:
            return source.read().strip()
    except OSError:
        return "unknown"
