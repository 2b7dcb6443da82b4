"""Compiled code in the user's cache: written by this user, and trusted by this user alone.

numba keeps compiled code as pickles, and unpickling executes what they contain. So numba gets only data that this user
wrote. The folders must belong to this user, be writable by no other user, and be reached through no link. Each file
begins with a seal, an HMAC over its name and content, with a key in the cache that only this user can read. The folders
keep other users from writing there. The seal detects files they wrote earlier or by another way (a backup, an image, a
mount), and damage by a disk. Not even root is an exception: a key this user does not own proves nothing.

A cache that fails these checks is not used, and code is compiled without being kept. There is no fallback folder: the
user did not ask for it, and no other process would look there. TIDEMARK_CACHE names another cache.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import stat
from collections.abc import Iterator

from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.users import is_own_user

KEY_NAME = "key"
KEY_BYTES = 32
SEAL_BYTES = 32
SUFFIX = ".nbc"
UNNAMED = ".new"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe in place of a file must not wait.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def _cache_folder() -> str:
    base = os.environ.get("TIDEMARK_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tidemark"
    )
    return os.path.join(base, "kernels")


CACHE_FOLDER = _cache_folder()


class KeptCode:
    """The code kept in one place. Processes of the user share it, also concurrently."""

    def __init__(self, place: str) -> None:
        self._place = os.path.abspath(place)
        self._key: bytes | None = None

    def read(self, folder: str, leaf: str) -> memoryview | None:
        """Return the code kept under a name; None if there is none. Raises: ValueError if its seal does not match;
        OSError if the place is not this user's alone, or cannot be read.
        """
        try:
            with self._opened(folder) as (place, found):
                key = self._key_at(place)
                content = None if key is None else _content(leaf, found)
        except FileNotFoundError:
            return None
        if key is None or content is None:
            return None
        code = memoryview(content)[SEAL_BYTES:]
        if not hmac.compare_digest(content[:SEAL_BYTES], _seal(key, folder, leaf, code)):
            raise ValueError(f"{leaf} does not match its seal")
        return code

    def exists(self, folder: str, leaf: str) -> bool:
        """Whether something is kept under a name, in a place that is this user's alone; its seal is not checked."""
        try:
            with self._opened(folder) as (_, found):
                os.stat(leaf, dir_fd=found, follow_symlinks=False)
        except OSError:
            return False
        return True

    def write(self, folder: str, leaf: str, code: bytes) -> None:
        """Keep code under a name, replacing earlier code. Durable: nothing. Raises: OSError."""
        _make_folder(self._place)
        with self._opened("") as (place, _):
            key = self._key_at(place) or self._new_key(place)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700, dir_fd=place)
        with self._opened(folder) as (_, found):
            with _unnamed(leaf, found, _seal(key, folder, leaf, code), code) as name:
                os.replace(name, leaf, src_dir_fd=found, dst_dir_fd=found)

    @contextlib.contextmanager
    def _opened(self, folder: str) -> Iterator[tuple[int, int]]:
        """Open the place and a folder in it, and check both. The descriptors stay those of the checked directories,
        even if their names are replaced later.
        """
        above = os.path.dirname(self._place)
        status = os.stat(above)
        is_shared = status.st_mode & _WRITTEN_BY_OTHERS and not status.st_mode & stat.S_ISVTX
        if is_shared or not is_own_user(status.st_uid):
            raise PermissionError(errno.EPERM, "other users may replace files in it", above)
        place = os.open(self._place, _FOLDER)
        try:
            _check_own(os.fstat(place), self._place)
            if not folder:
                yield place, place
                return
            found = os.open(folder, _FOLDER, dir_fd=place)
            try:
                _check_own(os.fstat(found), f"{self._place}/{folder}")
                yield place, found
            finally:
                os.close(found)
        finally:
            os.close(place)

    def _key_at(self, place: int) -> bytes | None:
        if self._key is None:
            self._key = _usable_key(place)
        return self._key

    def _new_key(self, place: int) -> bytes:
        """Create the key, unless another process does so first; return the valid one."""
        with _unnamed(KEY_NAME, place, SystemClock().random_bytes(KEY_BYTES)) as name:
            try:
                os.link(name, KEY_NAME, src_dir_fd=place, dst_dir_fd=place, follow_symlinks=False)
            except OSError:
                # There is a key. It is unusable if a crash truncated it, or if other users may know it.
                if _usable_key(place) is None:
                    os.replace(name, KEY_NAME, src_dir_fd=place, dst_dir_fd=place)
        self._key = _usable_key(place)
        if self._key is None:
            raise PermissionError(errno.EPERM, "no key can be kept in it", self._place)
        return self._key


def _seal(key: bytes, folder: str, leaf: str, code: bytes | memoryview) -> bytes:
    # Seals the name too: otherwise the code of another kernel, or of other sources, could be put in this file.
    sealing = hmac.new(key, f"{folder}/{leaf}\0".encode(), "sha256")
    sealing.update(code)
    return sealing.digest()


def _check_own(status: os.stat_result, place: str) -> None:
    if status.st_uid != os.geteuid():
        raise PermissionError(
            errno.EPERM, f"it belongs to user {status.st_uid}, not to this one ({os.geteuid()})", place
        )
    if status.st_mode & _WRITTEN_BY_OTHERS:
        raise PermissionError(errno.EPERM, "other users may write to it; run chmod go-w on it", place)


def _usable_key(place: int) -> bytes | None:
    try:
        descriptor = os.open(KEY_NAME, _READ, dir_fd=place)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        is_own = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        key = os.read(descriptor, KEY_BYTES + 1) if is_own and stat.S_ISREG(status.st_mode) else b""
    finally:
        os.close(descriptor)
    return key if len(key) == KEY_BYTES else None


def _content(leaf: str, folder: int) -> bytes:
    with open(os.open(leaf, _READ, dir_fd=folder), "rb", buffering=0) as file:
        return file.readall()


@contextlib.contextmanager
def _unnamed(leaf: str, folder: int, *pieces: bytes) -> Iterator[str]:
    """Write these bytes to a file with a unique name, which is removed after the block unless it was renamed."""
    name = f"{leaf}.{SystemClock().random_bytes(8).hex()}{UNNAMED}"
    descriptor = os.open(name, _MAKE, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.writelines(pieces)
            file.flush()
            if leaf == KEY_NAME:
                os.fsync(descriptor)  # otherwise a power loss could leave a key of zeros, which anyone can guess
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _make_folder(place: str) -> None:
    if not os.path.isdir(place):
        _make_folder(os.path.dirname(place))
        with contextlib.suppress(FileExistsError):
            os.mkdir(place, 0o700)
