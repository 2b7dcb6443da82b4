"""Follow the events of one binlog file as its bytes arrive in pieces: verify them, and find where transactions end.

The receiver of a binlog, the opening of a relay log and its reader for the applier use this state machine. It checks
header, position and checksum of every event before it uses the event. Rows are not decoded, except the first row of
`ndb_apply_status`, which names the epoch. Memory is bounded: one statement, or one small event.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import EVENT_BYTES_MAX, StatementMaps, epoch_in
from tidemark.replication.binlog.scan import Boundaries
from tidemark.replication.binlog.table_map import TableMap

STATEMENT_BYTES_MAX = 16 << 20
# Longer events are checked and not kept, unless they are statements. Most of them are rows.
_KEPT_BYTES = 64 << 10
_TABLE_HEAD_BYTES = b.TABLE.itemsize
_STATUS_NAME = b"\x05mysql\0\x10ndb_apply_status\0"
_KEPT_TYPES = (b.QUERY_EVENT, b.FORMAT_DESCRIPTION_EVENT, b.ROTATE_EVENT, b.INCIDENT_EVENT)
_GTIDS = (b.GTID_EVENT, b.ANONYMOUS_GTID_EVENT)
_WRITES = (b.WRITE_ROWS, b.WRITE_ROWS_V1)


class Boundary(NamedTuple):
    """A position where no transaction is open, and the transaction that ended there.

    `start` and `end` are positions in the file. `is_transaction` is False after an event outside transactions: format
    description, ROTATE, STOP. `epoch` is 0 if no row of `ndb_apply_status` names one. `statement` is a schema change,
    None for rows. `incident` is the source's message about missing changes. `commit_us` is the commit time in µs since
    1970, None if it is unknown.
    """

    start: int
    end: int
    is_transaction: bool
    epoch: int = 0
    server_id: int = 0
    commit_us: int | None = None
    statement: e.Query | None = None
    incident: str | None = None


class EventStream:
    """A position in the bytes of a file that moves forward.

    `position` is the end of the bytes fed, `whole` the end of the last whole transaction among them, `newest_epoch` the
    highest epoch of these transactions, 0 for none.
    """

    def __init__(self, file: str, position: int, server_id: int | None = None, shown: Position | None = None) -> None:
        """`position` is between transactions. `server_id` is the server whose epochs count, None for any. `shown` is
        the file and position for messages, if the bytes are read from another file than `file`.
        """
        self.file = file
        self.position = self.whole = position
        self.newest_epoch = 0
        self._server_id = server_id
        self._shown = shown or Position(file, position)
        self._shift = self._shown.position - position
        self._boundaries = Boundaries()
        self._head = bytearray()
        self._kept: bytearray | None = None
        self._tail = bytearray()
        self._begin_event()
        self._begin_transaction()

    @property
    def is_incomplete(self) -> bool:
        """Whether the bytes fed so far end within a transaction or an event."""
        return self.position != self.whole

    def _begin_event(self) -> None:
        self._head.clear()
        self._tail.clear()
        self._left = 0
        self._at = self.position
        self._header: e.EventHeader | None = None

    def _begin_transaction(self) -> None:
        self.epoch = 0  # of the transaction in progress, 0 until it is known
        self._commit_us: int | None = None
        self._maps: StatementMaps | None = None
        self._server = 0
        self._has_begun = False

    def _origin(self) -> Position:
        return Position(self._shown.file, self._at + self._shift)

    def feed(self, data: bytes | memoryview) -> list[Boundary]:
        """Feed the next bytes; return the boundaries they reach. Raises: BinlogDamaged, LimitExceeded; the stream is
        unusable afterwards.
        """
        view = memoryview(data)
        found = []
        while len(view):
            if self._header is None:
                piece = view[: b.HEADER_BYTES - len(self._head)]
                self._head += piece
                self.position += len(piece)
                view = view[len(piece) :]
                if len(self._head) < b.HEADER_BYTES:
                    break
                self._judge_header()
            else:
                piece = view[: self._left]
                self._take(piece)
                view = view[len(piece) :]
            if self._header is not None and self._left == 0:
                boundary = self._end_event(self._header)
                if boundary is not None:
                    found.append(boundary)
        return found

    def _judge_header(self) -> None:
        """Check the header of an event before a byte of its body is kept."""
        at = self._at
        origin = self._origin()
        header = e.parse_header(self._head, origin)
        size = header.event_bytes
        if size < b.HEADER_BYTES + b.CHECKSUM_BYTES:
            raise origin.damaged(f"claims to have {size} bytes")
        if header.end_position != at + size & 0xFFFFFFFF:
            raise origin.damaged(f"claims to end at {header.end_position}")
        if (header.type == b.FORMAT_DESCRIPTION_EVENT) != (at == b.FIRST_POSITION):
            raise origin.damaged(f"of type {header.type} is where no event of its type is allowed")
        limit = STATEMENT_BYTES_MAX if header.type == b.QUERY_EVENT else EVENT_BYTES_MAX
        if header.type in (b.FORMAT_DESCRIPTION_EVENT, b.ROTATE_EVENT, b.INCIDENT_EVENT, *_GTIDS):
            limit = _KEPT_BYTES
        if size > limit:
            raise origin.too_large(size, limit)
        self._header = header
        self._left = size - b.HEADER_BYTES
        self._kept = bytearray(self._head) if self._is_kept(header) else None
        self._checksum = zlib.crc32(self._head)

    def _is_kept(self, header: e.EventHeader) -> bool:
        if header.type in _KEPT_TYPES or header.type in _GTIDS:
            return True
        if self.epoch or header.event_bytes > _KEPT_BYTES:
            return False
        return header.type == b.TABLE_MAP_EVENT or (header.type in _WRITES and self._maps is not None)

    def _take(self, piece: memoryview) -> None:
        self.position += len(piece)
        if self._kept is not None:
            self._kept += piece
        else:
            # The last bytes are the checksum itself.
            body = piece[: max(0, self._left - b.CHECKSUM_BYTES)]
            self._checksum = zlib.crc32(body, self._checksum)
            self._tail += piece[len(body) :]
        self._left -= len(piece)

    def _end_event(self, header: e.EventHeader) -> Boundary | None:
        event: e.Event | None = None
        if self._kept is None:
            if self._checksum != int.from_bytes(self._tail, "little"):
                raise self._origin().damaged("fails its checksum")
        elif header.type == b.TABLE_MAP_EVENT and not self._is_status(self._kept):
            e.verify(self._kept, self._origin())
        else:
            event = e.parse(self._kept, self._origin())[1]
            self._look(event)
        was_open = self._boundaries.is_open
        is_boundary = self._boundaries.step(header.type, event)
        self._kept = None
        self._begin_event()
        statement = event if isinstance(event, e.Query) and is_boundary and event.statement != "COMMIT" else None
        incident = event.message if isinstance(event, e.Incident) else None
        if self._server == 0:
            self._server = header.server_id
        if not is_boundary:
            return None
        change = None if self._has_begun else statement
        boundary = Boundary(
            self.whole,
            self.position,
            was_open or statement is not None or incident is not None,
            self.epoch,
            # The events before a statement are this site's, also if the statement came from another one.
            self._server if change is None else header.server_id,
            self._commit_us,
            change,
            incident,
        )
        self.whole = self.position
        self.newest_epoch = max(self.newest_epoch, self.epoch)
        self._begin_transaction()
        return boundary

    @staticmethod
    def _is_status(raw: bytearray) -> bool:
        return raw.startswith(_STATUS_NAME, b.HEADER_BYTES + _TABLE_HEAD_BYTES)

    def _look(self, event: e.Event) -> None:
        """Take from a kept event the commit time, epoch or BEGIN of its transaction. Raises: BinlogDamaged."""
        if isinstance(event, e.FormatDescription):
            if event.checksum != b.CHECKSUM_CRC32:
                raise self._origin().damaged("says that the file has no checksums, which no source of Tidemark does")
        elif isinstance(event, e.Gtid):
            self._commit_us = event.commit_us
        elif isinstance(event, TableMap):
            self._maps = StatementMaps()
            self._maps.observe(event)
            self._status_id = event.table_id
        elif isinstance(event, e.Query):
            self._has_begun = self._has_begun or event.statement.strip().upper() == "BEGIN"
        elif isinstance(event, e.Rows) and self._maps is not None and event.table_id == self._status_id:
            self.epoch = epoch_in(self._maps, event, self._origin(), self._server_id) or 0
