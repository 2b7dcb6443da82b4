"""What a peer of MySQL sees of the events of a binlog: each as it is, or an IGNORABLE event in its place (S1).

Not shown are rows of the database `mysql`, which no stock server takes (unless asked for), and rows that this site only
sends again or has only read. Rows that a peer would take for another change are refused: updates logged as writes, and
images that lack columns.

The last row event of a statement is marked, which makes a server close its tables. If it is one that is not shown, the
mark goes to the last one shown. So a shown row event waits until the event after it is known.

Memory: an event of LARGE_BYTES at most waits; of a larger one, and of events that are not shown, the positions do, and
the caller reads them again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import STATUS_TABLE, ParsedMaps, StatementMaps, epoch_in
from tidemark.replication.binlog.scan import Boundaries
from tidemark.replication.binlog.table_map import TableMap
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.packets import Message, Refused
from tidemark.replication.mysql_source.served_events import ROW_FLAGS, marked_as_end, replaced
from tidemark.replication.settings.any_value import FLAG_READ, FLAG_REFRESH

_HIDDEN_DATABASE: Final = "mysql"
_ROWS: Final = frozenset(
    (b.WRITE_ROWS, b.UPDATE_ROWS, b.DELETE_ROWS, b.WRITE_ROWS_V1, b.UPDATE_ROWS_V1, b.DELETE_ROWS_V1)
)
_PARSED: Final = _ROWS | {b.QUERY_EVENT, b.TABLE_MAP_EVENT}
_STATEMENT_BYTES: Final = 1 << 10  # of the statements that begin and end transactions, and more
LARGE_BYTES: Final = 512 << 10


def fatal(text: str) -> Refused:
    """Return the error that ends a dump and stops a replica."""
    return Refused(p.ER_SOURCE_FATAL, text)


class Shown(NamedTuple):
    """An event for the peer, or several that are not shown. raw: the event as it is in the file; None: the caller reads
    what is between the two positions. ends_transaction: a transaction ends with it; its epoch, 0 if it is unknown.
    """

    raw: bytes | None
    at: Position
    end: Position
    ends_transaction: bool = False
    epoch: int = 0
    is_hidden: bool = False
    is_marked: bool = False  # as the last row event of its statement

    def event(self, raw: bytes) -> Message:
        """Return what the peer gets for an event."""
        if self.is_hidden:
            return replaced(raw)
        return marked_as_end(raw) if self.is_marked else (raw,)


class Screen:
    """Takes the events of a binlog in order, from a position between transactions."""

    def __init__(
        self, shows_system_rows: bool, may_be_updates: Callable[[str, str], bool], server_id: int | None = None
    ) -> None:
        """may_be_updates: whether writes to a table in a file may be updates (file, table). server_id: whose epochs are
        wanted, None for none.
        """
        self._shows_system_rows = shows_system_rows
        self._may_be_updates = may_be_updates
        self._server_id = server_id
        self._parser = ParsedMaps()
        self._boundaries = Boundaries()
        self._status = StatementMaps()  # of the rows that name epochs
        self._held: Shown | None = None  # the last row event shown
        self._hidden_to: Position | None = None  # the end of what came after it in its statement and is not shown
        self._begin()

    def _begin(self) -> None:
        self._tables: dict[int, TableMap] = {}
        self._epoch = 0
        # What events of rows that are shown as they are have before their rows, by type and number of the table.
        self._heads: dict[bytes, bytes] = {}

    @property
    def is_between_transactions(self) -> bool:
        return not self._boundaries.is_open

    def skip(self, at: Position, raw: bytes) -> None:
        """Take an event that the peer does not get. Raises: BinlogDamaged, LimitExceeded."""
        if self._boundaries.step(raw[4], self._parsed(at, raw)):
            self._begin()

    def repeats(self, raw: bytes) -> bool:
        """Whether an event is whole, and says the same as one that was shown as it is, but of other rows."""
        head = self._heads.get(_key(raw))
        if head is None or not raw.startswith(head, b.HEADER_BYTES):
            return False
        checksum = raw[-b.CHECKSUM_BYTES :]
        return zlib.crc32(memoryview(raw)[: -b.CHECKSUM_BYTES]) == int.from_bytes(checksum, "little")

    def take_repeated(self, raw: bytes, end: Position) -> list[Shown]:
        """Take the last of some events that `repeats` says yes to, up to a position; return the events to send before
        them.
        """
        return self._released(Shown(raw, Position(end.file, end.position - len(raw)), end))

    def forget_large(self) -> None:
        """Drop the bytes of a large event that waits: another one will be read."""
        held = self._held
        if held is not None and held.raw is not None and len(held.raw) > LARGE_BYTES:
            self._held = held._replace(raw=None)

    def _released(self, held: Shown | None = None) -> list[Shown]:
        """Return what waits, and let another event wait."""
        ready = [] if self._held is None else [self._held]
        if self._hidden_to is not None:
            ready.append(Shown(None, ready[0].end, self._hidden_to, is_hidden=True))
        self._held, self._hidden_to = held, None
        return ready

    def _parsed(self, at: Position, raw: bytes) -> e.Event | None:
        """Return the event, checked; None if nothing in it matters here."""
        if raw[b.TYPE_OFFSET] == b.QUERY_EVENT and len(raw) > _STATEMENT_BYTES:
            e.verify(raw, at)
            return e.Query("")  # a change of the schema
        if raw[b.TYPE_OFFSET] in _PARSED:
            return self._parser.parse(e.parse_header(raw, at), raw, at)
        e.verify(raw, at)
        return None

    def take(self, at: Position, raw: bytes) -> list[Shown]:
        """Take the event at a position; return the events to send now.

        Raises: BinlogDamaged, LimitExceeded; Refused for rows that a peer would take for another change.
        """
        event = self._parsed(at, raw)
        was_open = self._boundaries.is_open
        is_boundary = self._boundaries.step(raw[b.TYPE_OFFSET], event)
        is_hidden = False
        if isinstance(event, TableMap):
            self._tables[event.table_id] = event
            self._heads.clear()
            is_hidden = self._hides(event)
        elif isinstance(event, e.Rows):
            is_hidden = self._hides_rows(event, at)
        ends = is_boundary and (was_open or isinstance(event, e.Query))
        end = Position(at.file, at.position + len(raw))
        shown = Shown(raw, at, end, ends, self._epoch if ends else 0, is_hidden)
        if is_boundary:
            self._begin()
        if isinstance(event, e.Rows) and not is_hidden:
            if self._tables[event.table_id].database != _HIDDEN_DATABASE:
                self._heads[_key(raw)] = raw[b.HEADER_BYTES : len(raw) - b.CHECKSUM_BYTES - len(event.body)]
            return self._released(shown)
        if is_hidden and self._held is not None:
            if isinstance(event, e.Rows) and event.is_statement_end:
                self._held = self._held._replace(is_marked=True)
            self._hidden_to = end
            return []
        return [*self._released(), shown]

    def forget_held(self) -> None:
        """Drop what waits: the peer has it already."""
        self._released()

    def _hides(self, table: TableMap) -> bool:
        return table.database == _HIDDEN_DATABASE and not self._shows_system_rows

    def _hides_rows(self, rows: e.Rows, at: Position) -> bool:
        table = self._tables.get(rows.table_id)
        if table is None:
            raise at.damaged(f"has rows of table {rows.table_id}, which no TABLE_MAP announced")
        if table.database == _HIDDEN_DATABASE:
            if self._server_id is not None and not self._epoch and table.name == STATUS_TABLE:
                self._status.observe(table)
                self._epoch = epoch_in(self._status, rows, at, self._server_id) or 0
            return not self._shows_system_rows
        if rows.conflict_flags & (FLAG_REFRESH | FLAG_READ):
            return True
        full = _full_bitmap(rows.columns)
        is_whole = rows.before in (None, full) and rows.after in (None, full)
        if not is_whole or (rows.kind == e.WRITE and self._may_be_updates(at.file, table.name)):
            raise fatal(
                f"table {table.name} logs updates as writes or in part at {at.file}:{at.position}; turn"
                " log_update_as_write, log_updated_only and log_update_as_minimal off (or give the table binlog_type"
                " 7), and log_bin_use_v1_row_events if the table has a conflict function, copy its rows, and begin at a"
                " later position"
            )
        return False


def _key(raw: bytes) -> bytes:
    """Return the type of a row event and the number of its table."""
    return raw[b.TYPE_OFFSET : b.TYPE_OFFSET + 1] + raw[b.HEADER_BYTES : ROW_FLAGS.start]


def _full_bitmap(columns: int) -> bytes:
    return ((1 << columns) - 1).to_bytes((columns + 7) // 8, "little")
