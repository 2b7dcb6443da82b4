"""The events of MySQL's binlog, one class each: to bytes and back.

An event is header, body and CRC32 over both. `frame` builds the bytes of an event, always with checksum; `parse`
decodes them and raises BinlogDamaged for a wrong length, a wrong checksum, or a field that ends past the event. Bodies
are built from lists of buffers and parsed through views, so that a large row is copied once.

The checksum of a format description is computed without its in-use flag, which changes in place.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.cursor import Cursor, packed_length
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.table_map import TableMap, parse_table_map

Buffer: TypeAlias = bytes | bytearray | memoryview

_HEADER = b.packer(b.EVENT_HEADER)
_FORMAT = b.packer(b.FORMAT_DESCRIPTION)
_QUERY = b.packer(b.QUERY)
_GTID = b.packer(b.GTID)
_PREVIOUS = b.packer(b.PREVIOUS_GTIDS)
_TABLE = b.packer(b.TABLE)
_ROTATE = b.packer(b.ROTATE)
_XID = b.packer(b.XID)
_INCIDENT = b.packer(b.INCIDENT)
_EXTRA = b.packer(b.EXTRA_INFO)
_POSITION_MASK = (1 << 32) - 1
# The kind of a row event is the distance of its type from WRITE.
WRITE, UPDATE, DELETE = 0, 1, 2
_V1_FIRST, _V2_FIRST = b.WRITE_ROWS_V1, b.WRITE_ROWS
# The types read here: their post-header lengths in a file must be MySQL's own, or 0.
_READ_TYPES = (
    *(b.QUERY_EVENT, b.ROTATE_EVENT, b.TABLE_MAP_EVENT, b.INCIDENT_EVENT, b.GTID_EVENT, b.ANONYMOUS_GTID_EVENT),
    *(b.WRITE_ROWS_V1, b.UPDATE_ROWS_V1, b.DELETE_ROWS_V1, b.WRITE_ROWS, b.UPDATE_ROWS, b.DELETE_ROWS),
)


class EventHeader(NamedTuple):
    """The 19 bytes before every body; `event_bytes` counts header, body and CRC32."""

    timestamp_s: int
    type: int
    server_id: int
    event_bytes: int
    end_position: int
    flags: int


@dataclass(frozen=True)
class FormatDescription:
    """The first event of a file."""

    type: ClassVar[int] = b.FORMAT_DESCRIPTION_EVENT
    server_version: bytes = b.SERVER_VERSION
    created_s: int = 0
    post_header_bytes: bytes = b.POST_HEADER_BYTES
    checksum: int = b.CHECKSUM_CRC32

    def parts(self) -> list[Buffer]:
        """Return the parts of the body; the checksum algorithm is the last."""
        fixed = _FORMAT.pack(b.VERSION, self.server_version, self.created_s, b.HEADER_BYTES)
        return [fixed, self.post_header_bytes, bytes((self.checksum,))]


@dataclass(frozen=True)
class PreviousGtids:
    """The set of GTIDs of all earlier files; empty where transactions have no numbers."""

    type: ClassVar[int] = b.PREVIOUS_GTIDS_EVENT
    sets: bytes = bytes(8)

    @classmethod
    def through(cls, source: bytes, number: int) -> PreviousGtids:
        """Return the set of the numbers of a source from 1 to this one, 0 for none."""
        return cls(_PREVIOUS.pack(1, source, 1, 1, number + 1)) if number else cls()

    def number_of(self, source: bytes | None = None) -> int | None:
        """Return the number through which the set has all numbers of a source, of any if None; None if it is another
        kind of set.
        """
        if len(self.sets) != _PREVIOUS.size:
            return None
        _, found, _, _, end = _PREVIOUS.unpack(self.sets)
        number = int(end) - 1
        return number if number > 0 and self == PreviousGtids.through(source or found, number) else None

    def parts(self) -> list[Buffer]:
        return [self.sets]


@dataclass(frozen=True)
class Gtid:
    """The event before a transaction; anonymous if `number` is 0. `sequence_number` numbers the transactions of a file;
    `last_committed` is the number of the transaction that this one had to wait for. `commit_us` is the commit time,
    None if it is unknown.
    """

    sequence_number: int
    last_committed: int
    commit_us: int | None = None
    source: bytes = bytes(16)
    number: int = 0
    flags: int = 0

    @property
    def type(self) -> int:
        """The type code, of a GTID or of an anonymous one."""
        return b.GTID_EVENT if self.number else b.ANONYMOUS_GTID_EVENT

    def parts(self) -> list[Buffer]:
        fixed = _GTID.pack(
            self.flags, self.source, self.number, b.GTID_CLOCK, self.last_committed, self.sequence_number
        )
        if self.commit_us is None:
            return [fixed]
        return [fixed, self.commit_us.to_bytes(b.COMMIT_TIME_BYTES, "little")]


@dataclass(frozen=True)
class Query:
    """A statement: BEGIN, COMMIT, or a change of the schema."""

    type: ClassVar[int] = b.QUERY_EVENT
    statement: str
    database: str = ""
    status: bytes = b""
    thread_id: int = 0
    duration_s: int = 0
    error_code: int = 0

    def parts(self) -> list[Buffer]:
        database = self.database.encode()
        fixed = _QUERY.pack(self.thread_id, self.duration_s, len(database), self.error_code, len(self.status))
        return [fixed, self.status, database + b"\0", self.statement.encode("utf-8", "surrogateescape")]


@dataclass(frozen=True)
class Rows:
    """Rows of one table with the same kind of change, and the same columns, transaction id and conflict flags.

    `kind` is WRITE, UPDATE or DELETE; `before` and `after` are the bitmaps of columns present, None for an image that
    the kind does not have; `body` has the rows. `transaction_id` is None if none was written. Version 1 has neither
    `transaction_id` nor `conflict_flags`.
    """

    kind: int
    table_id: int
    columns: int
    before: bytes | None
    after: bytes | None
    body: Buffer
    flags: int = 0
    transaction_id: int | None = None
    conflict_flags: int = 0
    version: int = 2

    @property
    def type(self) -> int:
        """The type code, by version and kind."""
        return (_V1_FIRST if self.version == 1 else _V2_FIRST) + self.kind

    @property
    def is_statement_end(self) -> bool:
        """Whether the statement, and with it its table maps, ends here."""
        return bool(self.flags & b.ROWS_STATEMENT_END)

    def parts(self) -> list[Buffer]:
        head = _TABLE.pack(self.table_id & 0xFFFFFFFF, self.table_id >> 32, self.flags)
        if self.version != 1:
            extra = self._extra()
            head += (b.EXTRA_LENGTH_BYTES + len(extra)).to_bytes(b.EXTRA_LENGTH_BYTES, "little") + extra
        return [head + packed_length(self.columns), self.before or b"", self.after or b"", self.body]

    def _extra(self) -> bytes:
        info = 0
        fields = b""
        if self.transaction_id is not None:
            info |= b.EXTRA_HAS_TRANSACTION_ID
            fields += self.transaction_id.to_bytes(b.TRANSACTION_ID_BYTES, "little")
        if self.conflict_flags:
            info |= b.EXTRA_HAS_CONFLICT_FLAGS
            fields += self.conflict_flags.to_bytes(b.CONFLICT_FLAGS_BYTES, "little")
        if not info:
            return b""
        # The block's length counts everything after the tag.
        size = _EXTRA.size - 1 + len(fields)
        return _EXTRA.pack(b.EXTRA_TAG_NDB, size, b.EXTRA_FORMAT_NDB, info) + fields


@dataclass(frozen=True)
class Xid:
    """The end of a transaction of a transactional engine of MySQL."""

    type: ClassVar[int] = b.XID_EVENT
    xid: int

    def parts(self) -> list[Buffer]:
        return [_XID.pack(self.xid)]


@dataclass(frozen=True)
class Rotate:
    """The last event of a file that has a successor."""

    type: ClassVar[int] = b.ROTATE_EVENT
    name: str
    position: int = b.FIRST_POSITION

    def parts(self) -> list[Buffer]:
        return [_ROTATE.pack(self.position), self.name.encode()]


@dataclass(frozen=True)
class Stop:
    """The last event of a file whose writer was closed."""

    type: ClassVar[int] = b.STOP_EVENT

    def parts(self) -> list[Buffer]:
        return []


@dataclass(frozen=True)
class Incident:
    """Changes are missing from here on."""

    type: ClassVar[int] = b.INCIDENT_EVENT
    message: str
    number: int = b.INCIDENT_LOST_EVENTS

    def parts(self) -> list[Buffer]:
        message = self.message.encode()[:255].decode(errors="ignore").encode()
        return [_INCIDENT.pack(self.number, len(message)), message]


@dataclass(frozen=True)
class Other:
    """An event of a type that is not read here."""

    type: int
    body: Buffer

    def parts(self) -> list[Buffer]:
        return [self.body]


Event: TypeAlias = (
    FormatDescription | PreviousGtids | Gtid | Query | TableMap | Rows | Xid | Rotate | Stop | Incident | Other
)


def frame(event: Event, position: int, *, timestamp_s: int, server_id: int, flags: int = 0) -> bytes:
    """Return the bytes of an event that will be at `position` in its file."""
    parts: Sequence[Buffer] = event.parts()
    size = b.HEADER_BYTES + sum(map(len, parts)) + b.CHECKSUM_BYTES
    end = position + size & _POSITION_MASK
    in_use = flags & b.FLAG_IN_USE if event.type == b.FORMAT_DESCRIPTION_EVENT else 0
    header = _HEADER.pack(timestamp_s, event.type, server_id, size, end, flags & ~in_use)
    checksum = zlib.crc32(header)
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    if in_use:
        header = header[: b.FLAGS_OFFSET] + flags.to_bytes(2, "little")
    return b"".join((header, *parts, checksum.to_bytes(b.CHECKSUM_BYTES, "little")))


# --- reading ----------------------------------------------------------------------------------------
def parse_header(data: Buffer, origin: Position) -> EventHeader:
    """Return the header at the start of `data`. Raises: BinlogDamaged if it is invalid."""
    if len(data) < b.HEADER_BYTES:
        raise origin.damaged("ends within its header")
    header = EventHeader._make(_HEADER.unpack_from(data))
    if header.event_bytes < b.HEADER_BYTES:
        raise origin.damaged(f"claims to have {header.event_bytes} bytes")
    return header


def verify(data: Buffer, origin: Position, has_checksum: bool = True) -> tuple[EventHeader, memoryview]:
    """Return (header, body) of the event whose bytes are exactly `data`. Raises: BinlogDamaged."""
    header = parse_header(data, origin)
    if header.event_bytes != len(data):
        raise origin.damaged(f"claims to have {header.event_bytes} bytes and has {len(data)}")
    view = memoryview(data)
    # A format description always has a checksum.
    if has_checksum or header.type == b.FORMAT_DESCRIPTION_EVENT:
        if len(view) < b.HEADER_BYTES + b.CHECKSUM_BYTES:
            raise origin.damaged("is too short for its checksum")
        view, stored = view[: -b.CHECKSUM_BYTES], bytes(view[-b.CHECKSUM_BYTES :])
        if checksum_of(header, view) != int.from_bytes(stored, "little"):
            raise origin.damaged("fails its checksum")
    return header, view[b.HEADER_BYTES :]


def parse(data: Buffer, origin: Position, has_checksum: bool = True) -> tuple[EventHeader, Event]:
    """Return (header, event) of the event whose bytes are exactly `data`. Raises: BinlogDamaged."""
    header, body = verify(data, origin, has_checksum)
    return header, _parse_body(header.type, Cursor(body, origin))


def checksum_of(header: EventHeader, view: memoryview) -> int:
    """Return the CRC32 of an event; `view` has its bytes without the checksum at the end."""
    if header.type == b.FORMAT_DESCRIPTION_EVENT and header.flags & b.FLAG_IN_USE:
        flags = (header.flags & ~b.FLAG_IN_USE).to_bytes(2, "little")
        return zlib.crc32(view[b.HEADER_BYTES :], zlib.crc32(bytes(view[: b.FLAGS_OFFSET]) + flags))
    return zlib.crc32(view)


def _parse_body(kind: int, cursor: Cursor) -> Event:
    if _V2_FIRST <= kind <= _V2_FIRST + DELETE:
        return _parse_rows(cursor, kind - _V2_FIRST, 2)
    if _V1_FIRST <= kind <= _V1_FIRST + DELETE:
        return _parse_rows(cursor, kind - _V1_FIRST, 1)
    parser = _PARSERS.get(kind)
    return Other(kind, cursor.take(cursor.left)) if parser is None else parser(cursor)


def _parse_format(cursor: Cursor) -> FormatDescription:
    version, server, created_s, header_bytes = cursor.unpack(_FORMAT)
    if version != b.VERSION or header_bytes != b.HEADER_BYTES or not cursor.left:
        raise cursor.origin.damaged("describes another format than version 4")
    lengths = cursor.take(cursor.left - 1)
    checksum = cursor.byte()
    if checksum not in (b.CHECKSUM_NONE, b.CHECKSUM_CRC32):
        raise cursor.origin.damaged(f"names checksum algorithm {checksum}")
    for kind in _READ_TYPES:
        if kind <= len(lengths) and lengths[kind - 1] not in (0, b.POST_HEADER_BYTES[kind - 1]):
            raise cursor.origin.damaged(f"describes events of type {kind} in an unknown way")
    return FormatDescription(server.rstrip(b"\0"), created_s, lengths, checksum)


def _parse_gtid(cursor: Cursor) -> Gtid:
    flags, source, number, clock, last_committed, sequence_number = cursor.unpack(_GTID)
    if clock != b.GTID_CLOCK:
        last_committed = sequence_number = 0
    commit_us = None
    if cursor.left >= b.COMMIT_TIME_BYTES:
        # The rest is not used here: the first commit's time, a length and a version.
        commit_us = int.from_bytes(cursor.view(b.COMMIT_TIME_BYTES), "little") & ~b.COMMIT_TIME_ORIGINAL
    return Gtid(sequence_number, last_committed, commit_us, source, number, flags)


def _parse_query(cursor: Cursor) -> Query:
    thread_id, duration_s, database_bytes, error_code, status_bytes = cursor.unpack(_QUERY)
    status = cursor.take(status_bytes)
    database = cursor.terminated(database_bytes)
    statement = str(cursor.rest(), "utf-8", "surrogateescape")
    return Query(statement, database, status, thread_id, duration_s, error_code)


def _parse_rows(cursor: Cursor, kind: int, version: int) -> Rows:
    low, high, flags = cursor.unpack(_TABLE)
    transaction_id, conflict_flags = None, 0
    if version == 2:
        size = int.from_bytes(cursor.view(b.EXTRA_LENGTH_BYTES), "little") - b.EXTRA_LENGTH_BYTES
        transaction_id, conflict_flags = _parse_extra(Cursor(cursor.view(size), cursor.origin))
    columns = cursor.length()
    bitmap_bytes = (columns + 7) // 8
    before = cursor.take(bitmap_bytes) if kind != WRITE else None
    after = cursor.take(bitmap_bytes) if kind != DELETE else None
    return Rows(
        kind, low | high << 32, columns, before, after, cursor.rest(), flags, transaction_id, conflict_flags, version
    )


def _parse_extra(extra: Cursor) -> tuple[int | None, int]:
    """Return (transaction id, conflict flags) of NDB's extra row info; (None, 0) if the info is not NDB's."""
    if extra.left < _EXTRA.size:
        return None, 0
    tag, block_bytes, form, info = extra.unpack(_EXTRA)
    if tag != b.EXTRA_TAG_NDB or form != b.EXTRA_FORMAT_NDB:
        return None, 0
    transaction_id, conflict_flags = None, 0
    size = block_bytes - (_EXTRA.size - 1)
    fields = Cursor(extra.view(size), extra.origin)
    if info & b.EXTRA_HAS_TRANSACTION_ID:
        transaction_id = int.from_bytes(fields.view(b.TRANSACTION_ID_BYTES), "little")
    if info & b.EXTRA_HAS_CONFLICT_FLAGS:
        conflict_flags = int.from_bytes(fields.view(b.CONFLICT_FLAGS_BYTES), "little")
    return transaction_id, conflict_flags


def _parse_rotate(cursor: Cursor) -> Rotate:
    (position,) = cursor.unpack(_ROTATE)
    return Rotate(cursor.text(cursor.left), position)


def _parse_incident(cursor: Cursor) -> Incident:
    number, message_bytes = cursor.unpack(_INCIDENT)
    return Incident(cursor.text(message_bytes), number)


_PARSERS: dict[int, Callable[[Cursor], Event]] = {
    b.FORMAT_DESCRIPTION_EVENT: _parse_format,
    b.PREVIOUS_GTIDS_EVENT: lambda cursor: PreviousGtids(cursor.take(cursor.left)),
    b.GTID_EVENT: _parse_gtid,
    b.ANONYMOUS_GTID_EVENT: _parse_gtid,
    b.QUERY_EVENT: _parse_query,
    b.TABLE_MAP_EVENT: parse_table_map,
    b.XID_EVENT: lambda cursor: Xid(cursor.unpack(_XID)[0]),
    b.ROTATE_EVENT: _parse_rotate,
    b.STOP_EVENT: lambda cursor: Stop(),
    b.INCIDENT_EVENT: _parse_incident,
}
