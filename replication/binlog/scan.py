"""One file of a binlog: its first events, its end, and a walk over its events, whole and verified, in bounded memory.

An event that is not whole ends the walk with BinlogDamaged; the caller decides whether that is a torn tail or damage.
Large events are verified in pieces of at most `PIECE_BYTES`.

The last event of a file is a ROTATE or a STOP. After everything else is durable, the in-use flag of the format
description is cleared in place. So a file without the flag ends with one of the two events, and a file that lost its
tail later is detected even if it ends with a whole transaction.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from tidemark.engine.base.errors import BinlogDamaged, FileTruncated
from tidemark.engine.files.protocol import File, Files
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position

PIECE_BYTES = 1 << 20
# Longer events, mostly rows, are not parsed during a walk, unless they are statements.
_PARSED_BYTES = 64 << 10


class Walked(NamedTuple):
    """An event passed; `event` is None for a long one. `is_boundary`: no transaction is open after it."""

    position: int
    end: int
    header: e.EventHeader
    event: e.Event | None
    is_boundary: bool


class Boundaries:
    """Tracks whether a transaction is open while events pass."""

    def __init__(self) -> None:
        self.is_open = False
        self._has_begun = False

    def step(self, kind: int, event: e.Event | None) -> bool:
        """Take the next event; return whether no transaction is open after it."""
        if kind in (b.GTID_EVENT, b.ANONYMOUS_GTID_EVENT):
            self.is_open, self._has_begun = True, False
        elif isinstance(event, e.Query):
            word = event.statement.strip().upper()
            if word == "BEGIN":
                self.is_open = self._has_begun = True
            elif word in ("COMMIT", "ROLLBACK") or not self._has_begun:
                # A statement without BEGIN is a transaction by itself.
                self.is_open = self._has_begun = False
        elif kind == b.XID_EVENT:
            self.is_open = self._has_begun = False
        return not self.is_open


def read_format(files: Files, file: File, name: str) -> tuple[e.EventHeader, e.FormatDescription, int]:
    """Return (header, format description, position after it) of a file. Raises: BinlogDamaged."""
    if files.pread(file, 0, b.FIRST_POSITION) != b.MAGIC:
        raise BinlogDamaged(
            f"{name} does not begin as a binlog does; take it from another site or a backup", file=name, position=0
        )
    origin = Position(name, b.FIRST_POSITION)
    size = files.size(file)
    header = e.parse_header(files.pread(file, b.FIRST_POSITION, b.HEADER_BYTES), origin)
    if header.type != b.FORMAT_DESCRIPTION_EVENT or header.event_bytes > min(_PARSED_BYTES, size - origin.position):
        raise origin.damaged("is not a format description")
    header, event = e.parse(files.pread(file, origin.position, header.event_bytes), origin)
    assert isinstance(event, e.FormatDescription)
    return header, event, origin.position + header.event_bytes


def read_relay_head(files: Files, file: File, name: str, after: int) -> tuple[int, Position, int]:
    """Read the ROTATE at position `after`, after the format description of a relay file. It says where the events that
    follow come from: return (server id of the source, their position there, their position in the relay file). Raises:
    BinlogDamaged.
    """
    origin = Position(name, after)
    header = header_at(files, file, name, after, files.size(file))
    event = None
    if header.type == b.ROTATE_EVENT and header.event_bytes <= _PARSED_BYTES:
        event = e.parse(files.pread(file, after, header.event_bytes), origin)[1]
    if not isinstance(event, e.Rotate) or not header.flags & b.FLAG_ARTIFICIAL:
        raise origin.damaged("does not say which file of the source it continues")
    return header.server_id, Position(event.name, event.position), after + header.event_bytes


def shift_of(files: Files, file: File, name: str) -> tuple[int, int]:
    """Return (position in a relay file from which the source's events begin, their position in the source's file minus
    this position); (0, 0) for a binlog. Raises: BinlogDamaged.
    """
    header, _, after = read_format(files, file, name)
    if not header.flags & b.FLAG_RELAY_LOG:
        return 0, 0
    _, (_, position), begin = read_relay_head(files, file, name, after)
    return begin, position - begin


def header_at(files: Files, file: File, name: str, position: int, end: int, shift: int = 0) -> e.EventHeader:
    """Return the header of the event at `position`. The event must end at or before `end`; the end position in its
    header is `shift` bytes larger than that in this file.

    Raises: BinlogDamaged.
    """
    data = files.pread(file, position, min(b.HEADER_BYTES, end - position))
    return header_in(data, name, position, end, shift)


def header_in(data: bytes, name: str, position: int, end: int, shift: int = 0) -> e.EventHeader:
    """Return what `header_at` does, from bytes already read. Raises: BinlogDamaged."""
    origin = Position(name, position)
    header = e.parse_header(data, origin)
    if header.event_bytes > end - position:
        raise origin.damaged(f"claims {header.event_bytes} bytes, of which {end - position} are there")
    if header.end_position != position + shift + header.event_bytes & 0xFFFFFFFF:
        raise origin.damaged(f"claims to end at {header.end_position}")
    return header


def walk(
    files: Files, file: File, name: str, start: int = b.FIRST_POSITION, end: int | None = None
) -> Iterator[Walked]:
    """Yield the events between two positions of a file, `end` None for its size; `start` is between transactions.

    Raises: BinlogDamaged at the first event that is not whole.
    """
    header, described, after = read_format(files, file, name)
    size = files.size(file)
    end = size if end is None else end
    if not b.FIRST_POSITION <= start <= end <= size:
        raise FileTruncated(f"{name} has {size} bytes and is read from {start} to {end}", file=name, position=start)
    boundaries = Boundaries()
    position = start
    if position == b.FIRST_POSITION:
        yield Walked(position, after, header, described, True)
        position = after
    has_checksum = described.checksum == b.CHECKSUM_CRC32
    relayed, shift = shift_of(files, file, name)
    while position < end:
        header = header_at(files, file, name, position, end, shift if position >= relayed else 0)
        origin = Position(name, position)
        event = None
        if header.event_bytes <= _PARSED_BYTES or header.type == b.QUERY_EVENT:
            event = e.parse(files.pread(file, position, header.event_bytes), origin, has_checksum)[1]
        elif has_checksum:
            _verify(files, file, header, origin)
        is_boundary = boundaries.step(header.type, event)
        position += header.event_bytes
        yield Walked(origin.position, position, header, event, is_boundary)


def _verify(files: Files, file: File, header: e.EventHeader, origin: Position) -> None:
    """Check the checksum of a long event piece by piece."""
    position, left = origin.position, header.event_bytes - b.CHECKSUM_BYTES
    checksum = 0
    while left > 0:
        piece = files.pread(file, position, min(left, PIECE_BYTES))
        if not piece:
            raise origin.damaged("ends within its body")
        checksum = zlib.crc32(piece, checksum)
        position += len(piece)
        left -= len(piece)
    stored = files.pread(file, position, b.CHECKSUM_BYTES)
    if checksum != int.from_bytes(stored, "little") or len(stored) < b.CHECKSUM_BYTES:
        raise origin.damaged("fails its checksum")


_FLAGS = struct.Struct("<H")
_STOP_BYTES = b.HEADER_BYTES + b.CHECKSUM_BYTES
# A ROTATE has a position and the name of the next file, which is as long as this file's name, or longer by a digit, by
# the first timeline in a name (`-5f3a9c1e`), or by both.
_ROTATE_BYTES = _STOP_BYTES + 8
_LONGER = (0, 1, 9, 10)


def end_use(files: Files, file: File) -> None:
    """Clear the in-use flag of a file whose content is durable. Durable on return: the cleared flag."""
    place = b.FIRST_POSITION + b.FLAGS_OFFSET
    (flags,) = _FLAGS.unpack(files.pread(file, place, _FLAGS.size))
    if flags & b.FLAG_IN_USE:
        files.pwrite(file, place, _FLAGS.pack(flags & ~b.FLAG_IN_USE))
        files.fdatasync(file)


def has_end(files: Files, file: File, name: str) -> bool:
    """Whether the last event of a file is a ROTATE or a STOP."""
    end = files.size(file)
    for size in (_STOP_BYTES, *(_ROTATE_BYTES + len(name) + longer for longer in _LONGER)):
        begin = end - size
        if begin < b.FIRST_POSITION:
            return False  # the sizes grow
        try:
            header, _ = e.parse(files.pread(file, begin, size), Position(name, begin))
        except BinlogDamaged:
            continue
        if header.type in (b.STOP_EVENT, b.ROTATE_EVENT) and header.end_position == end & 0xFFFFFFFF:
            return True
    return False


def check_end(files: Files, file: File, name: str, header: e.EventHeader) -> None:
    """Check that an ended file has its last event, before a reader continues with the next file. `header` is that of
    its format description.

    Raises: BinlogDamaged if the event is missing.
    """
    if header.flags & (b.FLAG_IN_USE | b.FLAG_RELAY_LOG) or has_end(files, file, name):
        return
    raise Position(name, files.size(file)).damaged("is missing: the file was ended, and its last event is not there")
