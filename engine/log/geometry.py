"""The place of an LSN: the endless log mapped onto a ring of equal, zero-filled files.

A new REDO log has the first files of its ring. The others are made in its first lap, in order and ahead of need
(ADR 0043): the content of a file and its name are durable before the sysfile has the file, and both copies of the
sysfile have it before a group is written there. So what lies under the name of a file that the sysfile lacks was never
part of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import FileTruncated, StorageFull
from tidemark.engine.files.durable_files import check_room, make_folder
from tidemark.engine.files.layer import write_zeros
from tidemark.engine.log.group_layout import GROUP_ALIGN_BYTES

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File, Files

FOLDER = "redo"
SUFFIX = ".redo"
FILES_MIN = 3
CAPACITY_BYTES_MAX = 1 << 46  # the largest log that an option can set
FILE_BYTES_PREFERRED = 16 << 20
START_BYTES = 32 << 20  # a new log has files for this much, or all of its files
LSN_MAX = 1 << 62  # the sysfile takes no LSN from here on
REACH_STEP_BYTES = 16 << 20
REACH_STEP_SHARE = 8


@dataclass(frozen=True)
class Geometry:
    """Equal files, each a multiple of 4 KiB; by default the files of the REDO log."""

    file_bytes: int
    file_count: int
    folder: str = FOLDER
    suffix: str = SUFFIX
    unmade_count: int = 0  # the last files, which the first lap has not come to

    @cached_property
    def capacity_bytes(self) -> int:
        """The bytes of the ring."""
        return self.file_bytes * self.file_count

    @property
    def made_count(self) -> int:
        """The number of files that there are: the first ones."""
        return self.file_count - self.unmade_count

    @cached_property
    def limit_lsn(self) -> int:
        """The LSN where the files end that there are. A ring with all its files has no such end."""
        return self.file_bytes * self.made_count if self.unmade_count else LSN_MAX

    def begun(self) -> Geometry:
        """Return this geometry with the files that a new log has."""
        made_count = min(self.file_count, -(-START_BYTES // self.file_bytes))
        return replace(self, unmade_count=self.file_count - made_count)

    def grown(self) -> Geometry:
        """Return this geometry with one more file made."""
        return replace(self, unmade_count=self.unmade_count - 1)

    @staticmethod
    def of(log_bytes: int, folder: str = FOLDER, suffix: str = SUFFIX) -> Geometry:
        """Return the geometry for a wanted size: at least three files, preferably of 16 MiB."""
        count = max(FILES_MIN, log_bytes // FILE_BYTES_PREFERRED)
        file_bytes = log_bytes // count // GROUP_ALIGN_BYTES * GROUP_ALIGN_BYTES
        return Geometry(file_bytes, count, folder, suffix)

    def is_possible(self) -> bool:
        """Whether a store can have this geometry: a value read from disk is not trusted (F112)."""
        aligned = self.file_bytes >= GROUP_ALIGN_BYTES and self.file_bytes % GROUP_ALIGN_BYTES == 0
        is_sized = self.file_count >= FILES_MIN and self.capacity_bytes <= CAPACITY_BYTES_MAX
        return aligned and is_sized and 0 <= self.unmade_count < self.file_count

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
        """Return the names of the files that there are, in order."""
        return [self.name(number) for number in range(self.made_count)]

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
    """Create the zero-filled files that a new log has. Durable on return: content and names. Raises: StorageFull;
    nothing is written if the disk is known to be too small for the whole ring.
    """
    option = f"{geometry.folder}_log"
    check_room(files, geometry.capacity_bytes, option, f"give a smaller {option}")
    make_folder(files, geometry.folder)
    for name in geometry.names():
        file = files.create(name, geometry.file_bytes)
        files.fdatasync(file)
        files.close(file)
    files.sync_directory(geometry.folder)


def make_next(files: Files, geometry: Geometry) -> File:
    """Make the next file of a ring, and return it. Durable on return: content and name.

    The store must not count this file as made yet. What a crash left under its name is filled again in place, since a
    reader of the log may have opened it. Raises: StorageFull, with its space free again; TooManyFiles, StoreFailed.
    """
    name = geometry.name(geometry.made_count)
    file = files.open(name, True) if files.exists(name) else files.create(name)
    try:
        if files.size(file):
            files.truncate(file, 0)
        check_room(files, geometry.file_bytes, name, "give it more free space")
        write_zeros(files, file, geometry.file_bytes)
    except StorageFull:
        files.truncate(file, 0)
        files.close(file)
        raise
    files.fdatasync(file)
    files.sync_directory(geometry.folder)
    return file


def open_files(files: Files, geometry: Geometry, writable: bool) -> list[File]:
    """Open the files of the ring that there are, in order; none stays open if it raises. Raises: FileMissing,
    FileTruncated.
    """
    handles: list[File] = []
    try:
        # One by one, because an intact sysfile may claim billions of files: the first missing one ends the loop.
        for number in range(geometry.made_count):
            name = geometry.name(number)
            handles.append(files.open(name, writable))
            size = files.size(handles[-1])
            # The file was synced at full size before the sysfile had it: missing bytes may have been acknowledged.
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
