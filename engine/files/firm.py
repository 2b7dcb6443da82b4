"""Syncing what only the page cache has. A process that was killed between a write and its sync, or whose sync failed,
leaves data in the page cache that the disk lacks (F39). Nothing may depend on it before it is on the disk.

For a name that is visible and not on the disk, a sync of its directory is enough. Bytes are written again: the system
does not write pages a second time that a failed sync has dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File, Files

PIECE_BYTES = 256 << 10


def make_folder(files: Files, path: str) -> None:
    """Create a directory if it is missing. Durable on return: its name, also if another process created it and was
    killed before its sync. Raises: StorageFull, TooManyFiles, SyncFailed.
    """
    if not files.exists(path):
        files.make_directory(path)
    files.sync_directory(path.rpartition("/")[0])


def write_again(files: Files, file: File, end: int | None = None) -> None:
    """Write the bytes of a file again as they are read, up to `end`, or all. Durable on return: these bytes. Raises:
    StorageFull, IoFailed, SyncFailed.
    """
    stop = files.size(file) if end is None else end
    for start in range(0, stop, PIECE_BYTES):
        files.pwrite(file, start, files.pread(file, start, min(PIECE_BYTES, stop - start)))
    files.fdatasync(file)
