"""Places for backups: a local directory, or any filesystem that pyarrow opens for a URI.

Both are `Files`, so reads, writes and failures are handled alike. A file that is not on a local disk is written once,
sequentially, and becomes valid when it is closed; locks and syncs do not exist there.
"""

from __future__ import annotations

import errno
import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import FileMissing, IoFailed, ReadOnly, StorageFull
from tidemark.engine.base.failure import Failure
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.files.durable_files import write_again
from tidemark.engine.files.layer import CheckedFiles
from tidemark.engine.files.opened import Opened
from tidemark.engine.files.protocol import File, RawFiles
from tidemark.recovery.places.names import answered, canonical_place, filesystem_of, shown_place

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Buffer, Files


def open_place(place: Any, create: bool = False, what: str = "backup") -> Files:
    """Return the files of a backup place: a path, a URI, or `(pyarrow filesystem, path)` (`places.py`).

    what: what the caller expects there, for the message if the place does not exist.

    Raises: FileMissing, Rejected, ReadOnly, IoFailed.
    """
    place = canonical_place(place)
    if isinstance(place, str) and place.startswith("/"):
        return PosixFiles(place, create, what)
    system, path = filesystem_of(place)
    if answered(place, lambda: system.get_file_info(path).type.name) == "NotFound":
        if not create:
            name = shown_place(place)
            raise FileMissing(f"there is no {what} in {name}; check the path", place=name)
        answered(place, lambda: system.create_dir(path, recursive=True))
    failure = Failure()
    return CheckedFiles(ArrowRaw(place, system, path.rstrip("/"), failure), failure)


@contextmanager
def at_place(place: Any, create: bool = False, is_locked: bool = False, what: str = "backup") -> Iterator[Files]:
    """Open the files of a place of backups for the block. is_locked: no other process may write there meanwhile.

    Raises: FileMissing, Rejected, Locked.
    """
    files = open_place(place, create, what)
    with ExitStack() as ends:
        ends.callback(files.unlock)  # `close_all` does this too, but may have no memory for it
        ends.callback(files.close_all)
        if is_locked:
            files.lock()
        files.read_errors_latch = False
        yield files


@contextmanager
def full_disk_named(place: str) -> Iterator[None]:
    """Within the block, name the place in the error of a full disk, which may be read on another machine."""
    try:
        yield
    except StorageFull as error:
        if "place" in error.evidence:
            raise
        name = shown_place(place)
        raise StorageFull(f"{name} is full: {error.message}", **{**error.evidence, "place": name}) from error


def make_file_durable(files: Files, name: str) -> None:
    """Write a file's bytes again: after a failed sync, or a kill before it, the page cache may have bytes that the disk
    lacks (F39). Durable on return: content and name. Where files are written only whole and once (not on a local disk),
    it is durable already.

    Raises: FileMissing, StorageFull, SyncFailed.
    """
    try:
        file = files.open(name, writable=True)
    except ReadOnly:
        return
    with Opened(files, file):
        write_again(files, file)
    files.sync_directory(name.rpartition("/")[0])


class ArrowRaw(RawFiles):
    """A pyarrow filesystem as `RawFiles`. It has no lock: the caller must ensure that there is one writer at a time.

    Every call ends within the limits of `answered`. After one that did not reach the place, it is not used again.
    """

    def __init__(self, place: Any, system: Any, root: str, failure: Failure) -> None:
        self._place = place
        self._system = system
        self._root = root
        self._failure = failure
        self.streams: dict[int, Any] = {}  # open ones, by file
        self._numbers = itertools.count(1)  # several threads may open files

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _ask(self, function: Callable[..., Any], *arguments: Any, size_bytes: int = 0) -> Any:
        try:
            return answered(self._place, lambda: function(*arguments), size_bytes)
        except IoFailed as error:
            self._failure.latch(error)
            raise

    def _info(self, name: str) -> Any:
        return self._ask(self._system.get_file_info, self._path(name))

    def _kind(self, name: str) -> str:
        return str(self._info(name).type.name)

    def _opened(self, function: Callable[[str], Any], name: str, writable: bool) -> File:
        stream = self._ask(function, self._path(name))
        number = next(self._numbers)
        self.streams[number] = stream
        return File(number, name, writable)

    def _check_kind(self, name: str, wanted: str) -> None:
        found = self._kind(name)
        if found == wanted:
            return
        if wanted == "NotFound":
            raise FileExistsError(errno.EEXIST, "file exists")
        if found == "NotFound":
            raise FileNotFoundError(errno.ENOENT, "no such file")
        raise IsADirectoryError(errno.EISDIR, "not a regular file")

    def create(self, name: str) -> File:
        self._check_kind(name, "NotFound")
        return self._opened(self._system.open_output_stream, name, True)

    def open(self, name: str, writable: bool) -> File:
        self._check_kind(name, "File")
        if writable:
            raise OSError(errno.EROFS, "files of a backup are written once")
        return self._opened(self._system.open_input_file, name, False)

    def pread_into(self, file: File, view: memoryview, offset: int) -> int:
        # Not `seek` and `readinto`: several threads may read one file.
        found = self._ask(self.streams[int(file)].read_at, view.nbytes, offset, size_bytes=view.nbytes)
        view.cast("B")[: len(found)] = found
        return len(found)

    def pwrite(self, file: File, buffer: Buffer, offset: int) -> int:
        stream = self.streams[int(file)]
        if offset != stream.tell():
            raise io.UnsupportedOperation(errno.ESPIPE, "files of a backup are written front to back")
        view = memoryview(buffer).cast("B")
        self._ask(stream.write, view, size_bytes=len(view))
        return len(view)

    def truncate(self, file: File, size: int) -> None:
        raise OSError(errno.EROFS, "files of a backup are written once")

    def fdatasync(self, file: File) -> None:
        """Flush the stream; the file becomes valid when it is closed."""
        stream = self.streams[int(file)]
        self._ask(stream.flush, size_bytes=stream.tell())

    def sync_directory(self, path: str) -> None:
        """Do nothing: there are no directories to sync."""

    def make_directory(self, path: str) -> None:
        self._check_kind(path, "NotFound")
        self._ask(self._system.create_dir, self._path(path))

    def rename(self, source: str, target: str) -> None:
        self._check_kind(source, "File")
        self._ask(self._system.move, self._path(source), self._path(target))

    def unlink(self, name: str) -> None:
        self._check_kind(name, "File")
        self._ask(self._system.delete_file, self._path(name))

    def remove_tree(self, path: str) -> None:
        self._ask(self._system.delete_dir, self._path(path))

    def names(self, path: str) -> tuple[str, ...]:
        from pyarrow import fs as arrow_fs

        selector = arrow_fs.FileSelector(self._path(path), allow_not_found=not path)
        return tuple(each.base_name for each in self._ask(self._system.get_file_info, selector))

    def size(self, file: File) -> int:
        stream = self.streams[int(file)]
        return int(self._ask(stream.size) if stream.readable() else stream.tell())

    def size_of(self, name: str) -> int:
        info = self._info(name)
        if info.type.name != "File":
            raise FileNotFoundError(errno.ENOENT, "no such file")
        return int(info.size)

    def exists(self, name: str) -> bool:
        return self._kind(name) != "NotFound"

    def close(self, file: File) -> None:
        stream = self.streams.pop(int(file))
        self._ask(stream.close, size_bytes=0 if stream.readable() else stream.tell())
