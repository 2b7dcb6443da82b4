"""Turn a server's events into steps (rows, ends of transactions, statements), without I/O.

Invariant: a step has a position only where no transaction is open, so a stream that continues there has whole
transactions. An event whose changes would be lost (statements instead of rows, compressed or partial rows, distributed
transactions) is Unsupported, with file, position and the setting to change at the server.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidemark.engine.base.errors import PositionLost, Unsupported
from tidemark.engine.types import UUID
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import ParsedMaps, StatementMaps
from tidemark.replication.binlog.table_map import TableMap
from tidemark.replication.sql.session import Session, session_of
from tidemark.replication.sql.tokens import PLAIN

_MARIADB_GTID = b.packer(b.MARIADB_GTID)
_POSITION_BITS = 32
_SHOWN_CHARACTERS = 120
_DATA_CHANGE = re.compile(r"(?:INSERT|UPDATE|DELETE|REPLACE|LOAD|CALL|WITH|SELECT|EXECUTE|DO)\b", re.IGNORECASE)
_SAVEPOINT = re.compile(r"(?:SAVEPOINT|RELEASE\s+SAVEPOINT)\b", re.IGNORECASE)
_ROLLBACK_TO = re.compile(r"ROLLBACK\s+(?:WORK\s+)?TO\b", re.IGNORECASE)
_XA = re.compile(r"XA\s", re.IGNORECASE)
_COMMENTS = re.compile(r"\s*(?:/\*(?!M?!)(?:[^*]|\*(?!/))*\*/\s*|--[ \t][^\n]*\n\s*|#[^\n]*\n\s*)*")
# Events of unsupported settings of a server: event type, description, remedy.
_REFUSED = {
    b.XA_PREPARE_EVENT: ("a distributed transaction (XA)", "commit it without XA at the source"),
    b.PARTIAL_UPDATE_ROWS: ("an update of parts of JSON", "set binlog_row_value_options='' at the source"),
    b.TRANSACTION_PAYLOAD_EVENT: ("a compressed transaction", "set binlog_transaction_compression=OFF at the source"),
    **dict.fromkeys(b.MARIADB_COMPRESSED, ("a compressed event", "set log_bin_compress=OFF at the source")),
    **dict.fromkeys(b.LOAD_DATA_EVENTS, ("LOAD DATA as a statement", "set binlog_format=ROW at the source")),
}


# Events between transactions, some of them after the last one: they move the position to the end of the binlog.
_MARKS = (b.PREVIOUS_GTIDS_EVENT, 161, 163)


class Place(NamedTuple):
    """A position between transactions, and the GTID of the transaction that ends there ("" if it has none).
    `timestamp_s` is when that transaction was committed, `created_s` when the file was begun: seconds since 1970, 0 if
    unknown.
    """

    file: str
    position: int
    gtid: str = ""
    timestamp_s: int = 0
    created_s: int = 0


@dataclass(frozen=True)
class Change:
    """Rows of one table; `database.table` is `map.name`."""

    map: TableMap
    rows: e.Rows
    origin: Position


@dataclass(frozen=True)
class _At:
    place: Place


class Commit(_At):
    """The rows since the end of the last transaction are a transaction."""


class Rollback(_At):
    """The rows since the end of the last transaction were rolled back at the source."""


class Moved(_At):
    """The position moved without a change."""


@dataclass(frozen=True)
class StatementText:
    """A statement other than a change of rows. `place` is the position after it, None within a transaction whose rows
    follow. `is_readable`: whether `text` is what the server read; otherwise only its ASCII is.
    """

    text: str
    database: str
    origin: Position
    place: Place | None
    session: Session = PLAIN
    is_readable: bool = True


Step: TypeAlias = Change | Commit | Rollback | StatementText | Moved


class TransactionReader:
    """Reads the events of a stream that begins between two transactions."""

    def __init__(self, file: str, position: int, created_s: int = 0) -> None:
        """created_s: when the file was begun, seconds since 1970, if an earlier stream found it; 0 if unknown."""
        self.file, self.position = file, position
        self.created_s = created_s
        self._is_first_format = True
        self._has_checksum = False
        self.timestamp_s = 0  # that of the newest event that has one
        self._is_open = False
        self._gtid = ""
        self._maps = StatementMaps()
        self._parsed = ParsedMaps(is_served=True)

    def step(self, raw: bytes) -> Step | None:
        """Return the step for the next event, None if there is none. Raises: BinlogDamaged, Unsupported, LimitExceeded,
        PositionLost.
        """
        origin = Position(self.file, self.position)
        header = e.parse_header(raw, origin)
        if header.type in (b.ROTATE_EVENT, b.HEARTBEAT_EVENT, b.HEARTBEAT_V2_EVENT):
            return self._rotate(raw, header, origin) if header.type == b.ROTATE_EVENT else None
        refused = _REFUSED.get(header.type)
        if refused is not None:
            raise _refused(origin, *refused)
        event = self._parsed.parse(header, raw, origin, self._has_checksum)
        if isinstance(event, e.FormatDescription):
            self._take_format(event, header, origin)
        self._advance(header)
        self.timestamp_s = header.timestamp_s or self.timestamp_s
        self._maps.observe(event)
        if isinstance(event, e.Rows):
            if not self._is_open:
                raise origin.damaged("has rows outside a transaction")
            return Change(self._maps.of(event, origin), event, origin)
        if isinstance(event, e.Query):
            return self._query(event, header, origin)
        if isinstance(event, e.Xid):
            return Commit(self._end_transaction(header))
        if isinstance(event, e.Incident):
            raise _refused(origin, f"an incident ({event.message})", "copy the tables anew")
        if isinstance(event, e.Other) and not header.flags & b.FLAG_IGNORABLE:
            if event.type not in b.IGNORED_EVENTS and event.type != b.MARIADB_GTID_EVENT:
                raise _refused(origin, f"an event of type {event.type}", "copy the tables anew at a position after it")
        if header.type in _MARKS and not self._is_open:
            return Moved(Place(self.file, self.position, "", header.timestamp_s, self.created_s))
        self._begin(event, origin)
        return None

    def _take_format(self, event: e.FormatDescription, header: e.EventHeader, origin: Position) -> None:
        """Take the format description of a file. A server sends it first, even if the stream begins later in the file.
        Raises: PositionLost if this is not the file of the earlier stream.
        """
        self._has_checksum = event.checksum == b.CHECKSUM_CRC32
        self._parsed.is_mariadb = b"MariaDB" in event.server_version
        is_first, self._is_first_format = self._is_first_format, False
        if is_first and self.created_s and header.timestamp_s != self.created_s:
            raise PositionLost(
                f"{self.file} at the source is not the file it was: its binlog was reset (RESET MASTER) or it is"
                " another server; copy anew, under another name or into another store",
                file=self.file,
                position=origin.position,
            )
        self.created_s = header.timestamp_s

    def _advance(self, header: e.EventHeader) -> None:
        """Move past an event, unless the server made it for this stream: then it has no position in the file."""
        if header.flags & b.FLAG_ARTIFICIAL or not header.end_position:
            return
        position = self.position >> _POSITION_BITS << _POSITION_BITS | header.end_position
        # The header counts modulo 2³².
        self.position = position if position >= self.position else position + (1 << _POSITION_BITS)

    def _rotate(self, raw: bytes, header: e.EventHeader, origin: Position) -> Step:
        # The first ROTATE comes before the format description that says whether events have checksums.
        stored = int.from_bytes(raw[-b.CHECKSUM_BYTES :], "little")
        event = e.parse(raw, origin, zlib.crc32(raw[: -b.CHECKSUM_BYTES]) == stored)[1]
        assert isinstance(event, e.Rotate)
        was_open, self._is_open = self._is_open, False
        if event.name != self.file:
            self.created_s = 0  # until the new file's description says it
        self.file, self.position = event.name, event.position
        self._maps = StatementMaps()
        # A server that crashed within a transaction leaves its beginning at the end of a file, and rolled it back.
        place = Place(event.name, event.position, "", header.timestamp_s, self.created_s)
        return Rollback(place) if was_open else Moved(place)

    def _begin(self, event: e.Event, origin: Position) -> None:
        """Note a GTID, which precedes the transaction that it names. MariaDB's GTID also begins the transaction."""
        if isinstance(event, e.Gtid):
            self._gtid = f"{UUID.loaded(event.source)}:{event.number}" if event.number else ""
        elif isinstance(event, e.Other) and event.type == b.MARIADB_GTID_EVENT:
            if len(event.body) < _MARIADB_GTID.size:
                raise origin.damaged("is too short for a GTID")
            number, domain, flags = _MARIADB_GTID.unpack_from(event.body)
            if flags & b.MARIADB_XA:
                raise _refused(origin, *_REFUSED[b.XA_PREPARE_EVENT])
            self._gtid = f"{domain}-%d-{number}"
            self._is_open = not flags & b.MARIADB_STANDALONE

    def _end_transaction(self, header: e.EventHeader) -> Place:
        self._is_open = False
        gtid = self._gtid.replace("%d", str(header.server_id))
        self._gtid = ""
        return Place(self.file, self.position, gtid, header.timestamp_s, self.created_s)

    def _query(self, query: e.Query, header: e.EventHeader, origin: Position) -> Step | None:
        session = session_of(query.status, origin, self._parsed.is_mariadb)
        octets = query.statement.encode("utf-8", "surrogateescape")
        read = session.text(octets)
        whole = octets.decode("ascii", "surrogateescape") if read is None else read
        text = _COMMENTS.sub("", whole, count=1).rstrip("; \n")
        word = text.upper()
        if word == "BEGIN":
            self._is_open = True
            return None
        if word in ("COMMIT", "ROLLBACK"):
            return (Commit if word == "COMMIT" else Rollback)(self._end_transaction(header))
        if _SAVEPOINT.match(text):
            return None
        if _ROLLBACK_TO.match(text):
            raise _refused(origin, f"{text!r}", "use tables of a transactional engine only")
        if _XA.match(text):
            raise _refused(origin, *_REFUSED[b.XA_PREPARE_EVENT])
        if _DATA_CHANGE.match(text):
            shown = text[:_SHOWN_CHARACTERS]
            raise _refused(origin, f"the statement {shown!r} instead of rows", "set binlog_format=ROW at the source")
        place = None if self._is_open else self._end_transaction(header)
        return StatementText(text, query.database, origin, place, session, read is not None)


def _refused(origin: Position, what: str, hint: str) -> Unsupported:
    return origin.unsupported(f"the source writes {what}, which is not ingested; {hint}")
