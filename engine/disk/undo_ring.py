"""The ring of the UNDO log: its files and their sizes, and the position where a writer continues.

A position is a byte offset in the endless log of groups; an LSN is one in the endless log of all records, including
those filtered later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.engine.disk.disk_layout import UNDO_GROUP_ALIGN_BYTES
from tidemark.engine.log.geometry import Geometry, create_files, is_log_name

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files

FOLDER = "undo"
SUFFIX = ".undo"
GROUP_SHARE_OF_RING = 8  # no group is larger than this share of the ring
BUFFER_BYTES_PREFERRED = 2 << 20
# Not available to transactions: a local checkpoint must be able to begin in a full log, or the log would stay full.
PRIVATE_SHARE_OF_RING = 16
PRIVATE_BYTES_MIN = 64 << 10
LSN_FIRST = 8  # a page without any record has LSN 0
LSN_HOLE_BYTES = 1 << 35
LSN_STEP_BYTES = 1 << 36


def undo_ring(file_bytes: int, file_count: int) -> Geometry:
    """Return the geometry of an existing ring."""
    return Geometry(file_bytes, file_count, FOLDER, SUFFIX)


def undo_geometry(undo_log_bytes: int) -> Geometry:
    """Return the geometry of a ring of this size."""
    return Geometry.of(undo_log_bytes, FOLDER, SUFFIX)


def group_bytes_max(geometry: Geometry) -> int:
    """Return the largest size of a group, for any size of buffers: a reader looks no further for the next one."""
    share = geometry.capacity_bytes // GROUP_SHARE_OF_RING // UNDO_GROUP_ALIGN_BYTES * UNDO_GROUP_ALIGN_BYTES
    return max(2 * UNDO_GROUP_ALIGN_BYTES, share)


def buffer_words_of(geometry: Geometry) -> int:
    """Return the words of each of the two buffers: half the largest group, at most 2 MiB."""
    return min(BUFFER_BYTES_PREFERRED, group_bytes_max(geometry) // 2) // 8


def private_words_of(geometry: Geometry) -> int:
    """Return the words of the ring that are not available to transactions."""
    return max(PRIVATE_BYTES_MIN, geometry.capacity_bytes // PRIVATE_SHARE_OF_RING) // 8


def create_undo_files(files: Files, geometry: Geometry) -> None:
    """Create the zero-filled files of the ring after removing any that a crash left. Durable on return."""
    if files.exists(geometry.folder):
        for leaf in files.list(geometry.folder):
            if is_log_name(leaf, geometry.suffix):
                files.unlink(f"{geometry.folder}/{leaf}")
    create_files(files, geometry)


@dataclass(frozen=True)
class UndoVoid:
    """Groups that no longer belong to the log, because their records have been undone for good. The default is none."""

    sequence: int = 0  # from this one on ...
    lsn: int = 0  # ... groups that end at this LSN or before; groups written since then end past it

    def covers(self, sequence: int, next_lsn: int) -> bool:
        """Whether a group of this sequence that ends at this LSN is void."""
        return 0 < self.sequence <= sequence and next_lsn <= self.lsn


@dataclass(frozen=True)
class UndoPosition:
    """Where the log continues, and from where it is still needed. The default is a log never written."""

    sequence: int = 1  # of the next group
    position: int = 0  # of the next group
    lsn: int = LSN_FIRST  # of the next record
    tail_sequence: int = 1
    tail_position: int = 0
    mark_position: int = 0  # group of the UNDO_LCP record of the newest complete local checkpoint
    last_position: int | None = None  # of the last group
    last_lsn: int = LSN_FIRST  # end of the last group's records
