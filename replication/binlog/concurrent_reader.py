"""Read a binlog next to the process that writes it: where epochs end in its files, up to their current end.

This module only reads, takes no lock and asks no other process. Invariants: (B1) Every epoch found ends with a
transaction that is whole in its file. The epoch was durable in the REDO log before it was written here (`attached.py`),
so a crash that takes the end of the file does not take the epoch back: the next opening writes it again, under the same
number. (B2) A gap is never passed silently: an incident is a separate kind of boundary, and a binlog that begins after
the requested epoch raises PositionLost.

If the newest file, which is in use, ends within an event, its writer has not written the rest yet. Out of space, the
writer may roll back a transaction and overwrite its bytes, so apparent damage in that file is read again before it is
reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import BinlogDamaged, FileMissing, LimitExceeded, PositionLost
from tidemark.engine.files.opened import Opened
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.index import BinlogIndex, read_index
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.scan import check_end, read_format
from tidemark.replication.binlog.stream import Boundary, EventStream

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.files.protocol import File, Files

_PIECE_BYTES = 256 << 10
# Reads of a file before its damage is reported: the writer may be replacing a transaction that it rolled back.
_LOOKS = 3
_LOOK_AGAIN_SECONDS = 0.05


def lost(what: str, **evidence: object) -> PositionLost:
    """Return the error for changes that are no longer available."""
    return PositionLost(
        f"{what}; take the rows from a backup or a snapshot, and begin again after its epoch", **evidence
    )


class ConcurrentReader:
    """The files of one binlog. One thread at a time may call it; no file stays open between calls."""

    def __init__(self, files: Files, folder: str, base: str) -> None:
        """Raises: BinlogDamaged, FileMissing, Rejected."""
        self._files = files
        self._folder = folder
        self._base = base
        self.clock: Clock = SystemClock()

    def index(self) -> BinlogIndex:
        """Return the files as they are now. Raises: BinlogDamaged, FileMissing."""
        return read_index(self._files, self._folder, self._base)

    # --- where to begin ---------------------------------------------------------------------------
    def position_after(self, epoch: int) -> Position:
        """Return the position after an epoch, where later changes begin. Raises: PositionLost if they were purged,
        BinlogDamaged.
        """
        index = self.index()
        for name in reversed(index.names):
            first = next((each for each in self._of_file(name, b.FIRST_POSITION) if each.epoch), None)
            if first is None or first.epoch > epoch:
                continue
            end = first.end
            for boundary in self._of_file(name, end):
                if boundary.epoch > epoch:
                    break
                end = boundary.end if boundary.epoch else end
            return Position(name, end)
        if not index.names or index.number_of(index.names[0]) != 1:
            raise lost(f"what follows epoch {epoch} is no longer in the binlog", epoch=epoch)
        return Position(index.names[0], b.FIRST_POSITION)

    def newest_epoch(self) -> int:
        """Return the newest epoch in the binlog now, 0 if it has none. Raises: BinlogDamaged, FileMissing."""
        for name in reversed(self.index().names):
            newest = max((each.epoch for each in self._of_file(name, b.FIRST_POSITION)), default=0)
            if newest:
                return newest
        return 0

    # --- walking ----------------------------------------------------------------------------------
    def boundaries(self, start: Position) -> Iterator[tuple[str, Boundary]]:
        """Yield the boundaries after `start`, which is between transactions, each with its file, file after file, up to
        the current end.

        Raises: PositionLost if the files were purged, BinlogDamaged, LimitExceeded.
        """
        index = self.index()
        while True:
            if start.file not in index.names:
                raise lost(f"{start.file} is no longer in the binlog", file=start.file)
            # All transactions of a file are written before the index names its successor.
            following = index.following(start.file)
            yield from ((start.file, each) for each in self._of_file(start.file, start.position))
            if following is None:
                return
            start = Position(following, b.FIRST_POSITION)

    def _open(self, name: str) -> File:
        try:
            file = self._files.open(f"{self._folder}/{name}")
        except FileMissing:
            if name in self.index().names:
                raise
            raise lost(f"{name} is no longer in the binlog", file=name) from None
        file.read_errors_latch = False
        return file

    def _of_file(self, name: str, start: int) -> Iterator[Boundary]:
        """Raises: BinlogDamaged, LimitExceeded, PositionLost, FileMissing."""
        for look in range(_LOOKS):
            with Opened(self._files, self._open(name)) as file:
                header, described, _ = read_format(self._files, file, name)
                if described.checksum != b.CHECKSUM_CRC32:
                    raise Position(name, b.FIRST_POSITION).damaged("says that the file has no checksums")
                # A full disk or a crash may leave a file without its last event, but then its in-use flag is set.
                is_written = bool(header.flags & b.FLAG_IN_USE)
                check_end(self._files, file, name, header)
                try:
                    for boundary in self._read(file, name, start, is_written):
                        start = boundary.end
                        yield boundary
                    return
                except (BinlogDamaged, LimitExceeded):
                    if look + 1 == _LOOKS or not is_written:
                        raise
            self.clock.sleep(_LOOK_AGAIN_SECONDS)

    def _read(self, file: File, name: str, start: int, is_written: bool) -> Iterator[Boundary]:
        size = self._files.size(file)
        stream = EventStream(name, start)
        while stream.position < size:
            piece = self._files.pread(file, stream.position, min(_PIECE_BYTES, size - stream.position))
            if not piece:
                break  # the writer has truncated a transaction that it rolled back
            yield from stream.feed(piece)
        if stream.is_incomplete and not is_written:
            raise Position(name, stream.whole).damaged(
                "begins a transaction that does not end, though the file was ended"
            )
