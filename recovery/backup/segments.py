"""Segments of the archive: groups of the REDO log of closed epochs, as they were sealed there.

`archive/<timeline>-<lsn>.redo` is a sealed header and the groups. Groups of large transactions refer to spool files:
these are copied to the same place under their names in the store (`spool/<txid>.spool`). A segment is written once,
sequentially.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import BackupDamaged, ForeignFile, IoFailed
from tidemark.engine.files.opened import Opened
from tidemark.engine.files.sequential import SequentialFile
from tidemark.engine.log.group_layout import GROUP, GROUP_ALIGN_WORDS
from tidemark.engine.log.reader import GroupRead, described
from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.engine.rows.backup_layout import ARCHIVE_SEGMENT, ARCHIVE_WORDS
from tidemark.engine.sealed.sealed_layout import (
    KIND_ARCHIVE,
    KIND_GROUP,
    SEAL,
    header_of,
    is_sealed,
    seal,
    store_of,
    write_seal,
)
from tidemark.engine.sealed.version import check_version
from tidemark.recovery.places.storage import make_file_durable

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File, Files
    from tidemark.engine.memory.arena import Words

FOLDER = "archive"
_FIELDS = (ARCHIVE_SEGMENT.names or ())[len(SEAL.names or ()) : -1]  # of a `Segment`, after the store
_NAME = re.compile(r"(\d{1,15})-([0-9a-f]{16})\.redo", re.ASCII)


@dataclass(frozen=True)
class Until:
    """Where a restore ends: at the end of `epoch`, or of the last epoch sealed by `wall_us`; both None: as late as
    possible.
    """

    epoch: int | None = None
    wall_us: int | None = None

    def includes(self, epoch: int, wall_us: int) -> bool:
        """Whether the restore takes a group of this epoch, sealed at this time."""
        if self.epoch is not None:
            return epoch <= self.epoch
        return self.wall_us is None or wall_us <= self.wall_us


@dataclass(frozen=True)
class Segment:
    """The header of a segment."""

    store: bytes
    timeline: int
    start_lsn: int
    end_lsn: int
    start_sequence: int
    groups: int
    first_epoch: int
    last_epoch: int
    first_wall_us: int
    last_wall_us: int

    @property
    def name(self) -> str:
        return f"{FOLDER}/{self.timeline}-{self.start_lsn:016x}.redo"

    @property
    def next(self) -> tuple[int, int]:
        """LSN and sequence of the next group after this segment."""
        return self.end_lsn, self.start_sequence + self.groups

    @property
    def size_bytes(self) -> int:
        return ARCHIVE_WORDS * 8 + self.end_lsn - self.start_lsn


def write_segment(files: Files, identity: tuple[bytes, int], timeline: int, groups: list[GroupRead]) -> Segment:
    """Archive some consecutive groups. Durable on return: content and name. Raises: StorageFull."""
    first, last = groups[0], groups[-1]
    segment = Segment(
        identity[0],
        timeline,
        first.lsn,
        last.end_lsn,
        first.sequence,
        len(groups),
        first.epoch,
        last.epoch,
        first.wall_us,
        last.wall_us,
    )
    words = np.zeros(ARCHIVE_WORDS, dtype=np.int64)
    header = header_of(words, ARCHIVE_SEGMENT)
    write_seal(header, KIND_ARCHIVE, ARCHIVE_WORDS, *identity)
    for name in _FIELDS:
        header[name] = getattr(segment, name)
    seal(words, ARCHIVE_WORDS)
    if files.exists(segment.name):
        files.unlink(segment.name)  # a crash left it half written; its groups are written again here
    out = SequentialFile(files, segment.name)
    try:
        out.write(words.data.cast("B"))
        for group in groups:
            out.write(group.words[: (group.end_lsn - group.lsn) // 8].data.cast("B"))
        out.close()
    finally:
        out.leave()
    files.sync_directory(FOLDER)
    return segment


def _damaged(name: str, offset: int, what: str) -> BackupDamaged:
    return BackupDamaged(f"{name} {what} at {offset}; use another copy", file=name, offset=offset)


def segment_names(files: Files) -> list[str]:
    """Return the names of all segments, by timeline and LSN."""
    if not files.exists(FOLDER):
        return []
    found = [(match, leaf) for leaf in files.list(FOLDER) if (match := _NAME.fullmatch(leaf))]
    ordered = sorted(found, key=lambda each: (int(each[0][1]), int(each[0][2], 16)))
    return [f"{FOLDER}/{leaf}" for _, leaf in ordered]


def read_segment(files: Files, name: str) -> Segment:
    """Return the header of a segment whose file has its full size. Raises: BackupDamaged, FileMissing, VersionTooNew,
    VersionTooOld.
    """
    with Opened(files, files.open(name)) as file:
        words = np.zeros(ARCHIVE_WORDS, dtype=np.int64)
        _read(files, file, name, 0, words)
        if not is_sealed(words, KIND_ARCHIVE, ARCHIVE_WORDS):
            raise _damaged(name, 0, "fails its checksum")
        check_version(words, name)
        header = header_of(words, ARCHIVE_SEGMENT)
        segment = Segment(store_of(words), *(int(header[field]) for field in _FIELDS))
        if segment.name != name or files.size(file) != segment.size_bytes:
            raise _damaged(name, 0, "is incomplete, or another segment")
        return segment


def _read(files: Files, file: File, name: str, offset: int, words: Words) -> None:
    try:
        got = files.pread_into(file, offset, words.data.cast("B"))
    except IoFailed as error:
        if files.failure.first is not None:
            raise
        raise _damaged(name, offset, "cannot be read") from error
    if got != words.nbytes:
        raise _damaged(name, offset, "ends in the middle of a group")


def make_durable(files: Files, segment: Segment) -> GroupRead:
    """Verify a whole segment, and write its bytes again: after a crash it may have its size without its content, and
    after a failed sync the page cache may have bytes that the disk lacks (F39). Return its last group. Durable on
    return: the segment. Where files are written only whole and once (not on a local disk), it is durable already.

    Raises: BackupDamaged, ForeignFile, StorageFull, SyncFailed.
    """
    last = deque(groups_of(files, segment), 1)
    if not last:
        raise _damaged(segment.name, 0, "has no group")
    make_file_durable(files, segment.name)
    return last[0]


def groups_of(files: Files, segment: Segment) -> Iterator[GroupRead]:
    """Yield the groups of a segment, each verified, as many as its header says. Raises: BackupDamaged, ForeignFile."""
    name = segment.name
    with Opened(files, files.open(name)) as file:
        lsn, epoch = segment.start_lsn, 0
        for sequence in range(segment.start_sequence, segment.start_sequence + segment.groups):
            offset = ARCHIVE_WORDS * 8 + lsn - segment.start_lsn
            words = np.zeros(GROUP_ALIGN_WORDS, dtype=np.int64)
            _read(files, file, name, offset, words)
            size = int(header_of(words, SEAL)["words"])
            if size < GROUP_ALIGN_WORDS or size % GROUP_ALIGN_WORDS or lsn + size * 8 > segment.end_lsn:
                raise _damaged(name, offset, "has no group")
            if size > GROUP_ALIGN_WORDS:
                words = np.zeros(size, dtype=np.int64)
                _read(files, file, name, offset, words)
            group = _group(words, size, name, offset, segment.store)
            if (group.lsn, group.sequence) != (lsn, sequence) or not epoch <= group.epoch <= segment.last_epoch:
                raise _damaged(name, offset, "holds another group")
            yield group
            lsn, epoch = group.end_lsn, group.epoch
        if lsn != segment.end_lsn:
            raise _damaged(name, segment.size_bytes, f"ends at LSN {lsn}, not {segment.end_lsn},")


def _group(words: Words, size: int, name: str, offset: int, store: bytes) -> GroupRead:
    records = int(header_of(words, GROUP)["records_words"])
    if not is_sealed(words, KIND_GROUP, size) or records > size - GROUP_WORDS:
        raise _damaged(name, offset, "fails its checksum")
    if store_of(words) != store:
        raise ForeignFile(f"{name} has a group of another store; put the right one back", file=name)
    check_version(words, name)
    return described(words)
