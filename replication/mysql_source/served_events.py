"""Events as a peer of MySQL gets them: the file's own bytes, except where they would say something wrong there.

Invariant: (S1) An event of a file is never left out. What a peer must not see is replaced by an IGNORABLE event of the
same length, because a replica by position adds up lengths, and asks for the sum when it connects again.
"""

from __future__ import annotations

import zlib
from typing import Final

from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.mysql_source.flavors import MYSQL
from tidemark.replication.mysql_source.packets import Buffer, Message

IGNORABLE_EVENT: Final = 28
ROW_FLAGS: Final = slice(b.HEADER_BYTES + 6, b.HEADER_BYTES + b.TABLE.itemsize)
_HEADER = b.packer(b.EVENT_HEADER)
_ROTATE = b.packer(b.ROTATE)
_VERSION_BYTES: Final = 50
_ZEROS: Final = bytes(64 << 10)
_CREATED_OFFSET: Final = b.HEADER_BYTES + 2 + _VERSION_BYTES  # after the version of the format and of the server


def _sealed(head: tuple[int, ...], body: bytes) -> bytes:
    """Return an event with its checksum; its length is put into the header."""
    timestamp_s, kind, server_id, _, position, flags = head
    size = b.HEADER_BYTES + len(body) + b.CHECKSUM_BYTES
    data = _HEADER.pack(timestamp_s, kind, server_id, size, position, flags) + body
    return data + zlib.crc32(data).to_bytes(b.CHECKSUM_BYTES, "little")


def _parts(raw: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the fields of the header of an event with a checksum, and its body."""
    return _HEADER.unpack_from(raw), raw[b.HEADER_BYTES : -b.CHECKSUM_BYTES]


def replaced(raw: bytes) -> Message:
    """Return the event that stands for one that a peer must not see: as long, at the same position, without a word of
    it.
    """
    timestamp_s, _, server_id, size, position, _ = _HEADER.unpack_from(raw)
    whole, rest = divmod(len(raw) - b.HEADER_BYTES - b.CHECKSUM_BYTES, len(_ZEROS))
    head = _HEADER.pack(timestamp_s, IGNORABLE_EVENT, server_id, size, position, b.FLAG_IGNORABLE)
    return sealed([head, *[_ZEROS] * whole, _ZEROS[:rest]])


def marked_as_end(raw: bytes) -> Message:
    """Return a row event as the last one of its statement."""
    flags = int.from_bytes(raw[ROW_FLAGS], "little") | b.ROWS_STATEMENT_END
    head = raw[: ROW_FLAGS.start] + flags.to_bytes(2, "little")
    return sealed([head, memoryview(raw)[ROW_FLAGS.stop : -b.CHECKSUM_BYTES]])


def sealed(parts: list[Buffer]) -> Message:
    """Return the parts of an event with its checksum."""
    checksum = 0
    for each in parts:
        checksum = zlib.crc32(each, checksum)
    return [*parts, checksum.to_bytes(b.CHECKSUM_BYTES, "little")]


def description(
    raw: bytes, is_from_start: bool, version: str = MYSQL.version, has_position: bool | None = None
) -> bytes:
    """Return a file's FORMAT_DESCRIPTION for a dump from the start of the file, or from further on. Then it has no time
    of creation, at which a replica would drop its temporary tables. It is as long as the file's. version: of the server
    that it names. has_position: whether it has its own position; None: from the start.
    """
    (timestamp_s, kind, server_id, size, position, flags), body = _parts(raw)
    body = body[:2] + version.encode().ljust(_VERSION_BYTES, b"\0") + body[2 + _VERSION_BYTES :]
    if not is_from_start:
        place = _CREATED_OFFSET - b.HEADER_BYTES
        body = body[:place] + bytes(4) + body[place + 4 :]
    if not (is_from_start if has_position is None else has_position):
        position = 0
    return _sealed((timestamp_s, kind, server_id, size, position, flags & ~b.FLAG_IN_USE), body)


def rotation(name: str, position: int, server_id: int) -> bytes:
    """Return the event that names the file and the position of what follows; it is in no file."""
    head = (0, b.ROTATE_EVENT, server_id, 0, 0, b.FLAG_ARTIFICIAL)
    return _sealed(head, _ROTATE.pack(position) + name.encode())


def heartbeat(name: str, position: int, server_id: int) -> bytes:
    """Return the event that says how far a dump is, after a silence and after skipped transactions."""
    return _sealed((0, b.HEARTBEAT_EVENT, server_id, 0, position, 0), name.encode())


def without_checksum(event: Message) -> Message:
    """Return an event, whose last part has all of its checksum, for a peer that has asked for none. FORMAT_DESCRIPTION
    says so, and keeps its own: readers find what it says from its end.
    """
    timestamp_s, kind, server_id, size, position, flags = _HEADER.unpack_from(event[0])
    if kind == b.FORMAT_DESCRIPTION_EVENT:
        fields, body = _parts(b"".join(event))
        return [_sealed(fields, body[:-1] + bytes((b.CHECKSUM_NONE,)))]
    head = _HEADER.pack(timestamp_s, kind, server_id, size - b.CHECKSUM_BYTES, position, flags)
    first, *others = event
    # A slice of few bytes is made faster than a view.
    inner: Buffer = first if len(first) < len(_ZEROS) else memoryview(first)
    if not others:
        return [head, inner[b.HEADER_BYTES : -b.CHECKSUM_BYTES]]
    return [head, inner[b.HEADER_BYTES :], *others[:-1], memoryview(others[-1])[: -b.CHECKSUM_BYTES]]
