"""List the events of a binlog or relay log as SHOW BINLOG EVENTS does, with the number of rows in each row event.

It only reads and takes no lock, so it works while another process writes these files. If the newest file, which is in
use, ends within an event, its writer has not written the rest yet, or a crash has torn it. Such an end in any other
file is damage.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from tidemark.engine.base.errors import BinlogDamaged, FileMissing, Rejected, Unsupported
from tidemark.engine.files.opened import Opened
from tidemark.engine.files.protocol import Files
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.index import BinlogIndex
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import StatementMaps
from tidemark.replication.binlog.scan import PIECE_BYTES, read_format
from tidemark.replication.binlog.table_map import TableMap

Entry = dict[str, Any]
_INDEX = ".index"
_SIZE = slice(9, 13)  # of the event, in its header
_NAMES: Final = {
    b.QUERY_EVENT: "Query",
    b.STOP_EVENT: "Stop",
    b.ROTATE_EVENT: "Rotate",
    b.FORMAT_DESCRIPTION_EVENT: "Format_desc",
    b.XID_EVENT: "Xid",
    b.TABLE_MAP_EVENT: "Table_map",
    b.WRITE_ROWS_V1: "Write_rows_v1",
    b.UPDATE_ROWS_V1: "Update_rows_v1",
    b.DELETE_ROWS_V1: "Delete_rows_v1",
    b.INCIDENT_EVENT: "Incident",
    b.WRITE_ROWS: "Write_rows",
    b.UPDATE_ROWS: "Update_rows",
    b.DELETE_ROWS: "Delete_rows",
    b.GTID_EVENT: "Gtid",
    b.ANONYMOUS_GTID_EVENT: "Anonymous_Gtid",
    b.PREVIOUS_GTIDS_EVENT: "Previous_gtids",
}


def bases(files: Files, folder: str) -> list[str]:
    """Return the base names of the binlogs that have an index in a folder; none if the folder does not exist."""
    try:
        names = files.list(folder)
    except FileMissing:
        return []
    return sorted(name.removesuffix(_INDEX) for name in names if name.endswith(_INDEX))


class BinlogListing:
    """A listing of one binlog."""

    def __init__(self, files: Files, folder: str, base: str) -> None:
        """Raises: BinlogDamaged, FileMissing, Rejected."""
        self._files = files
        self.index = BinlogIndex(files, folder, base)
        self._maps = StatementMaps()

    def entries(self, start: Position | None = None, only: str | None = None) -> Iterator[Entry]:
        """Yield an entry for each event from `start` on (None: the oldest), in file `only` or to the end of the binlog.
        If an event cannot be read, the last entry says why: its kind is `torn end` or `damage`.

        Raises: Rejected for a file the index does not name.
        """
        if not self.index.names:
            return
        first = start or Position(only or self.index.names[0], b.FIRST_POSITION)
        names = self.index.names[self.index.place_of(first.file) :]
        if only is not None:
            if only not in names[:1]:
                raise Rejected(f"{first.file} is not {only}; name one of them", file=first.file)
            names = [only]
        for name in names:
            at = first if name == first.file else Position(name, b.FIRST_POSITION)
            try:
                yield from self._file(at)
            except BinlogDamaged as error:
                yield self._ended(name, error)
                return

    def _file(self, start: Position) -> Iterator[Entry]:
        """Yield the entries of one file. The positions in event headers are not checked: in a relay log they are those
        of the source's file. Raises: BinlogDamaged.
        """
        name, position = start
        self._maps = StatementMaps()
        with Opened(self._files, self._files.open(self.index.path(name))) as file:
            size = self._files.size(file)
            if position > size:
                raise Rejected(f"{name} has {size} bytes, there is nothing at {position}", file=name)
            has_checksum = read_format(self._files, file, name)[1].checksum == b.CHECKSUM_CRC32
            while position < size:
                origin = Position(name, position)
                header = e.parse_header(self._files.pread(file, position, min(b.HEADER_BYTES, size - position)), origin)
                if header.event_bytes > size - position:
                    raise origin.damaged(f"claims {header.event_bytes} bytes, of which {size - position} are there")
                event = e.parse(self._files.pread(file, position, header.event_bytes), origin, has_checksum)[1]
                self._maps.observe(event)
                yield self._entry(origin, header, event)
                position += header.event_bytes

    def _ended(self, name: str, error: BinlogDamaged) -> Entry:
        evidence = error.evidence.get("position")
        position = evidence if isinstance(evidence, int) else 0
        place = {"file": name, "position": position}
        if name == self.index.names[-1] and self._is_torn(name, position):
            text = "the file ends here within an event: it is being written, or a crash left it so"
            return {"kind": "torn end", **place, "info": text}
        return {"kind": "damage", **place, "info": error.message}

    def _is_torn(self, name: str, position: int) -> bool:
        """Whether a file is in use, and at most zeros follow the event at `position`."""
        with Opened(self._files, self._files.open(self.index.path(name))) as file, suppress(BinlogDamaged):
            if not read_format(self._files, file, name)[0].flags & b.FLAG_IN_USE:
                return False
            end = position + int.from_bytes(self._files.pread(file, position, b.HEADER_BYTES)[_SIZE], "little")
            pieces = range(end, self._files.size(file), PIECE_BYTES)
            return not any(any(self._files.pread(file, at, PIECE_BYTES)) for at in pieces)
        return False

    # --- one event -------------------------------------------------------------------------------
    def _entry(self, origin: Position, header: e.EventHeader, event: e.Event) -> Entry:
        entry: Entry = {
            "kind": "event",
            "file": origin.file,
            "position": origin.position,
            "event": _NAMES.get(header.type, f"Type_{header.type}"),
            "server_id": header.server_id,
            "end_position": header.end_position,
            "info": _info(event),
        }
        if isinstance(event, e.Rows):
            entry["rows"] = self._rows(event, origin)
        return entry

    def _rows(self, rows: e.Rows, origin: Position) -> int | None:
        """Return the number of rows of an event; None if its TABLE_MAP is before the start of the listing, or has a
        type whose values cannot be measured.
        """
        try:
            reader = self._maps.reader(rows, origin, frozenset())
        except (BinlogDamaged, Unsupported):
            return None
        return sum(chunk.count for chunk in reader.chunks(rows.body, origin))


def _info(event: e.Event) -> str:
    """Return the Info column of SHOW BINLOG EVENTS; for row events with conflict flags and transaction id added."""
    match event:
        case e.FormatDescription():
            return f"Server ver: {event.server_version.decode(errors='replace')}, Binlog ver: {b.VERSION}"
        case e.Gtid() if event.number:
            return f"SET @@SESSION.GTID_NEXT= '{uuid.UUID(bytes=event.source)}:{event.number}'"
        case e.Gtid():
            return "SET @@SESSION.GTID_NEXT= 'ANONYMOUS'"
        case e.Query() if event.database:
            return f"use `{event.database}`; {event.statement}"
        case e.Query():
            return event.statement
        case TableMap():
            return f"table_id: {event.table_id} ({event.name})"
        case e.Rows():
            words = [f"table_id: {event.table_id}"]
            words += ["flags: STMT_END_F"] if event.is_statement_end else []
            words += [f"conflict_flags: {event.conflict_flags}"] if event.conflict_flags else []
            words += [f"transaction_id: {event.transaction_id}"] if event.transaction_id is not None else []
            return " ".join(words)
        case e.Rotate():
            return f"{event.name};pos={event.position}"
        case e.Xid():
            return f"COMMIT /* xid={event.xid} */"
        case e.Incident():
            return f"#{event.number} (LOST_EVENTS): {event.message}"
    return ""
