"""Syncing what only the page cache has. A process that was killed between a write and its sync, or whose sync failed,
leaves data in the page cache that the disk lacks (F39). Nothing may depend on this data before it is on the disk.

A visible name needs only a sync of its directory. Bytes must be written again: after a failed sync the system counts
the pages as clean, and a second sync does not write them.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import StorageFull
from tidemark.engine.base.options import format_size

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Buffer, File, Files

PIECE_BYTES = 256 << 10
COPIED_BYTES = 1 << 20
MIB = 1 << 20


def make_folder(files: Files, path: str) -> None:
    """Create a directory if it is missing. Durable on return: its name, even if another process created it and was
    killed before syncing it. Raises: StorageFull, TooManyFiles, SyncFailed.
    """
    if not files.exists(path):
        files.make_directory(path)
    files.sync_directory(path.rpartition("/")[0])


def write_whole(files: Files, unnamed: str, name: str, content: Buffer) -> None:
    """Create a file whole or not at all: write it as `unnamed`, which must be free, and rename it to `name` once its
    content is durable. Durable on return: content and name. Raises: StorageFull, Rejected, IoFailed, SyncFailed.
    """
    file = files.create(unnamed)
    try:
        files.pwrite(file, 0, content)
        files.fdatasync(file)
    finally:
        files.close(file)
    files.rename(unnamed, name)
    files.sync_directory(name.rpartition("/")[0])


def check_room(files: Files, size_bytes: int, what: str, advice: str) -> None:
    """Check that the disk has `size_bytes` free before they are written. An unknown amount of free space passes.

    what: the option or file that needs the space. Raises: StorageFull.
    """
    free_bytes = files.free_bytes()
    if free_bytes is not None and free_bytes < size_bytes:
        unit = MIB if free_bytes >= MIB else 1
        text = f"{what} is {format_size(size_bytes)}, but the disk has {format_size(free_bytes // unit * unit)} free"
        raise StorageFull(f"{text}; {advice}, or a larger disk", size_bytes=size_bytes, free_bytes=free_bytes)


def copy_file(source: Files, source_name: str, target: Files, name: str, size_bytes: int) -> int:
    """Copy the first `size_bytes` of a file into the new file `name`; return the number of bytes copied, fewer if the
    file is shorter. Durable on return: the content; the name needs a sync of the directory. Raises: FileMissing,
    Rejected, StorageFull, IoFailed, SyncFailed.
    """
    buffer = memoryview(bytearray(min(size_bytes, COPIED_BYTES)))
    done = got = 0
    with ExitStack() as ends:
        read = source.open(source_name)
        ends.callback(source.close, read)
        written = target.create(name)
        ends.callback(target.close, written)
        while done < size_bytes and (got := source.pread_into(read, done, buffer[: size_bytes - done])):
            target.pwrite(written, done, buffer[:got])
            done += got
        target.fdatasync(written)
    return done


def write_again(files: Files, file: File, end: int | None = None) -> None:
    """Read the bytes of a file up to `end` (None: all) and write them again in place. Durable on return: these bytes.
    Raises: StorageFull, IoFailed, SyncFailed.
    """
    stop = files.size(file) if end is None else end
    for start in range(0, stop, PIECE_BYTES):
        files.pwrite(file, start, files.pread(file, start, min(PIECE_BYTES, stop - start)))
    files.fdatasync(file)
