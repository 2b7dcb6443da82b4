"""Making firm what is only shown: a process that was killed between a write and its sync, or whose sync failed, leaves
in the cache of the system what the disk lacks (F39). Nothing may rest on it before it is on the disk.

Of a name that is shown and not on the disk a sync of its directory is enough. Bytes are written again: the system does
not write once more what a failed sync has let go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File, Files

PIECE_BYTES = 256 << 10


def make_folder(files: Files, path: str) -> None:
    """Make a directory, if it is missing. Durable on return: its name, also if another process made it and was killed
    before its sync. Raises: StorageFull, TooManyFiles, SyncFailed.
    """
    if not files.exists(path):
        files.make_directory(path)
    files.sync_directory(path.rpartition("/")[0])


def write_again(files: Files, file: File, end: int | None = None) -> None:
    """Write the bytes of a file again as they are read, up to `end`, or all. Durable on return: they. Raises:
    StorageFull, IoFailed, SyncFailed.
    """
    stop = files.size(file) if end is None else end
    for start in range(0, stop, PIECE_BYTES):
        files.pwrite(file, start, files.pread(file, start, min(PIECE_BYTES, stop - start)))
    files.fdatasync(file)
