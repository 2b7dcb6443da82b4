"""The place of an LSN: the endless log mapped onto a ring of equal, zero-filled files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import FileTruncated
from tidemark.engine.files.durable_files import check_room, make_folder
from tidemark.engine.log.group_layout import GROUP_ALIGN_BYTES

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File, Files

FOLDER = "redo"
SUFFIX = ".redo"
FILES_MIN = 3
CAPACITY_BYTES_MAX = 1 << 46  # the largest log that an option can set
FILE_BYTES_PREFERRED = 16 << 20
REACH_STEP_BYTES = 16 << 20
REACH_STEP_SHARE = 8


@dataclass(frozen=True)
class Geometry:
    """Equal files, each a multiple of 4 KiB; by default the files of the REDO log."""

    file_bytes: int
    file_count: int
    folder: str = FOLDER
    suffix: str = SUFFIX

    @cached_property
    def capacity_bytes(self) -> int:
        """The bytes of the ring."""
        return self.file_bytes * self.file_count

    @staticmethod
    def of(log_bytes: int, folder: str = FOLDER, suffix: str = SUFFIX) -> Geometry:
        """Return the geometry for a wanted size: at least three files, preferably of 16 MiB."""
        count = max(FILES_MIN, log_bytes // FILE_BYTES_PREFERRED)
        file_bytes = log_bytes // count // GROUP_ALIGN_BYTES * GROUP_ALIGN_BYTES
        return Geometry(file_bytes, count, folder, suffix)

    def is_possible(self) -> bool:
        """Whether a store can have this geometry: a value read from disk is not trusted (F112)."""
        aligned = self.file_bytes >= GROUP_ALIGN_BYTES and self.file_bytes % GROUP_ALIGN_BYTES == 0
        return aligned and self.file_count >= FILES_MIN and self.capacity_bytes <= CAPACITY_BYTES_MAX

    @property
    def reach_step_bytes(self) -> int:
        """The bytes by which `reach_lsn` in the sysfile is moved past the end of the log (ADR 0007). A restart searches
        for further groups up to there, or in the whole ring if the sysfile may be older than the log.
        """
        share = self.capacity_bytes // REACH_STEP_SHARE // GROUP_ALIGN_BYTES * GROUP_ALIGN_BYTES
        return max(GROUP_ALIGN_BYTES, min(REACH_STEP_BYTES, share))

    def name(self, number: int) -> str:
        """Return the name of a file of the ring."""
        return f"{self.folder}/{number:04d}{self.suffix}"

    def names(self) -> list[str]:
        """Return the names of all files, in order."""
        return [self.name(number) for number in range(self.file_count)]

    def lap(self, lsn: int) -> int:
        """Return how often the log had wrapped round its files before this LSN."""
        return lsn // self.capacity_bytes

    def pieces(self, lsn: int, size: int) -> list[tuple[int, int, int, int]]:
        """Split a range of the log: (file number, offset in the file, offset in the range, bytes)."""
        number, offset = divmod(lsn % self.capacity_bytes, self.file_bytes)
        if offset + size <= self.file_bytes:
            return [(number, offset, 0, size)]
        pieces = []
        done = 0
        while done < size:
            at = (lsn + done) % self.capacity_bytes
            number, offset = divmod(at, self.file_bytes)
            length = min(size - done, self.file_bytes - offset)
            pieces.append((number, offset, done, length))
            done += length
        return pieces


def is_log_name(leaf: str, suffix: str = SUFFIX) -> bool:
    """Whether a file in the log's folder can belong to the ring."""
    number = leaf.removesuffix(suffix)
    return leaf.endswith(suffix) and number.isascii() and number.isdigit() and len(number) >= 4


def create_files(files: Files, geometry: Geometry) -> None:
    """Create the zero-filled files of a new log. Durable on return: content and names. Raises: StorageFull; nothing
    is written if the disk is known to be too small.
    """
    option = f"{geometry.folder}_log"
    check_room(files, geometry.capacity_bytes, option, f"give a smaller {option}")
    make_folder(files, geometry.folder)
    for name in geometry.names():
        file = files.create(name, geometry.file_bytes)
        files.fdatasync(file)
        files.close(file)
    files.sync_directory(geometry.folder)


def open_files(files: Files, geometry: Geometry, writable: bool) -> list[File]:
    """Open all files of the ring, in order; none stays open if it raises. Raises: FileMissing, FileTruncated."""
    handles: list[File] = []
    try:
        # One by one, because an intact sysfile may claim billions of files: the first missing one ends the loop.
        for number in range(geometry.file_count):
            name = geometry.name(number)
            handles.append(files.open(name, writable))
            size = files.size(handles[-1])
            # The files were synced at full size before the store existed: missing bytes may have been acknowledged.
            if size < geometry.file_bytes:
                raise FileTruncated(
                    f"{name} has {size} of {geometry.file_bytes} bytes; restore the store from a backup",
                    file=name,
                    size=size,
                )
    except BaseException:
        for handle in handles:
            files.close(handle)
        raise
    return handles
