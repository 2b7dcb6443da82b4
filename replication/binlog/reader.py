"""Read a binlog from a position or an epoch, file after file, complete or while it grows.

A reader never reads past the given end. In a file that is being written this is the writer's `end`. Every event is
verified. An event is read only if its file has all of it, and if it has at most `EVENT_BYTES_MAX` bytes. Memory is
bounded: one event or the bytes read ahead, the table maps of one statement, and a cache of parsed table maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import FileTruncated, LimitExceeded, Rejected, Unsupported, ValueOutOfRange
from tidemark.engine.files.protocol import File, Files
from tidemark.engine.types.base import counted
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.cursor import Cursor
from tidemark.replication.binlog.index import BinlogIndex
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.row_plan import BodyReader, positions_of
from tidemark.replication.binlog.rows_layout import BODY_BYTES_MAX
from tidemark.replication.binlog.scan import Boundaries, check_end, header_in, read_format, shift_of
from tidemark.replication.binlog.table_map import TableMap, parse_table_map

EVENT_BYTES_MAX = BODY_BYTES_MAX
STATUS_TABLE = "mysql.ndb_apply_status"
_SERVER_COLUMN, _EPOCH_COLUMN = 0, 1
AHEAD_BYTES = 256 << 10
# Table maps cached between statements, so that a repeated one is not parsed again.
_MAPS_MAX = 1_024
STATEMENT_TABLES_MAX = 1 << 16


class ReadEvent(NamedTuple):
    """An event, its bytes, its position, and the position to continue from. `is_boundary`: no transaction is open after
    it.
    """

    at: Position
    next: Position
    header: e.EventHeader
    event: e.Event
    raw: bytes
    is_boundary: bool


class ParsedMaps:
    """Parses events. Maps of the same table have the same body, so each body is parsed once. is_served: whether they
    are a server's; is_mariadb: whether it is MariaDB, whose maps differ a little.
    """

    def __init__(self, is_served: bool = False) -> None:
        self.is_served = is_served
        self.is_mariadb = False
        self._known: dict[bytes, TableMap] = {}

    def parse(self, header: e.EventHeader, raw: bytes, origin: Position, has_checksum: bool = True) -> e.Event:
        """Return the event of these bytes, verified. Raises: BinlogDamaged, Unsupported."""
        if header.type != b.TABLE_MAP_EVENT:
            return e.parse(raw, origin, has_checksum)[1]
        body = bytes(e.verify(raw, origin, has_checksum)[1])
        event = self._known.get(body)
        if event is None:
            event = parse_table_map(Cursor(body, origin), self.is_mariadb, self.is_served)
            if len(self._known) >= _MAPS_MAX:
                self._known.clear()
            self._known[body] = event
        return event


class BinlogReader(Closable):
    """A position in a binlog that moves forward. One thread at a time may call it."""

    def __init__(
        self,
        files: Files,
        folder: str = "binlog",
        base: str = "binlog",
        start: Position | None = None,
    ) -> None:
        """`start` is between transactions; None means the beginning of the oldest file.

        Raises: Rejected for a file the index does not name, BinlogDamaged, FileMissing.
        """
        self._files = files
        self._index = BinlogIndex(files, folder, base)
        if start is None:
            if not self._index.names:
                raise Rejected(f"the binlog {base} has no files yet; write to it first", file=base)
            start = Position(self._index.names[0], b.FIRST_POSITION)
        self._index.place_of(start.file)
        self.position = start
        self._file: File | None = None
        self._has_checksum = True
        self._ahead = b""
        self._ahead_at = 0
        self._boundaries = Boundaries()
        self._maps = ParsedMaps()

    def close(self) -> None:
        """Close the current file; a second call is harmless."""
        if self._file is not None:
            self._files.close(self._file)
            self._file = None
            self._ahead = b""

    def events(self, end: Position) -> Iterator[ReadEvent]:
        """Yield the events from the reader's position to `end`, through all files in between.

        Raises: BinlogDamaged, FileTruncated, FileMissing, LimitExceeded; the reader stays before the event.
        """
        while self.position.file != end.file:
            size = self._files.size(self._opened())
            yield from self._events_to(size)
            if self._has_checksum and self._file is not None:
                check_end(self._files, self._file, self.position.file, self._format)
            following = self._following()
            self.close()
            self._boundaries = Boundaries()
            self.position = Position(following, b.FIRST_POSITION)
        yield from self._events_to(end.position)

    def _following(self) -> str:
        following = self._index.following(self.position.file)
        if following is None:
            # The writer has begun another file since the index was read.
            self._index.refresh()
            following = self._index.following(self.position.file)
        if following is None:
            raise Rejected(f"{self.position.file} is the newest file and is not where reading ends; report this")
        return following

    def _opened(self) -> File:
        if self._file is None:
            name = self.position.file
            file = self._files.open(self._index.path(name))
            try:
                self._format, described, _ = read_format(self._files, file, name)
            except BaseException:
                self._files.close(file)
                raise
            self._has_checksum = described.checksum == b.CHECKSUM_CRC32
            self._relayed, self._shift = shift_of(self._files, file, name)
            self._file = file
        return self._file

    def _events_to(self, end: int) -> Iterator[ReadEvent]:
        file = self._opened()
        name = self.position.file
        if not self.position.position <= end <= self._files.size(file):
            raise FileTruncated(
                f"{name} is read from {self.position.position} to {end} and has {self._files.size(file)} bytes;"
                " restore it from a backup",
                file=name,
                position=self.position.position,
            )
        while self.position.position < end:
            at = self.position
            shift = self._shift if at.position >= self._relayed else 0
            head = self._bytes(file, at.position, min(b.HEADER_BYTES, end - at.position), end)
            header = header_in(head, name, at.position, end, shift)
            if header.event_bytes > EVENT_BYTES_MAX:
                raise at.too_large(header.event_bytes, EVENT_BYTES_MAX)
            raw = self._bytes(file, at.position, header.event_bytes, end)
            event = self._maps.parse(header, raw, at, self._has_checksum)
            following = Position(name, at.position + header.event_bytes)
            is_boundary = self._boundaries.step(header.type, event)
            self.position = following
            yield ReadEvent(at, following, header, event, raw, is_boundary)

    def _bytes(self, file: File, position: int, count: int, end: int) -> bytes:
        """Return bytes of the current file. Reads ahead up to `end`: bytes before it no longer change."""
        start = position - self._ahead_at
        if not 0 <= start <= start + count <= len(self._ahead):
            self._ahead = self._files.pread(file, position, min(max(count, AHEAD_BYTES), end - position))
            self._ahead_at, start = position, 0
        return self._ahead[start : start + count]


class StatementMaps:
    """The table maps of the current statement by table number, and readers of its row events."""

    def __init__(self) -> None:
        self._maps: dict[int, TableMap] = {}
        self._has_ended = False
        self._readers: dict[tuple[object, ...], tuple[TableMap, BodyReader]] = {}

    def observe(self, event: e.Event) -> None:
        """Update the maps by the next event, before the caller uses it. Raises: LimitExceeded for a statement of too
        many tables.
        """
        if isinstance(event, TableMap):
            if self._has_ended:
                self._maps = {}
                self._has_ended = False
            if len(self._maps) >= STATEMENT_TABLES_MAX:
                raise LimitExceeded(
                    f"a statement announces over {STATEMENT_TABLES_MAX} tables; the source is not sound"
                )
            self._maps[event.table_id] = event
        elif isinstance(event, e.Rows) and event.is_statement_end:
            self._has_ended = True

    def of(self, rows: e.Rows, origin: Position) -> TableMap:
        """Return the table map of a row event. Raises: BinlogDamaged if there is none, or if the two differ in the
        number of columns.
        """
        found = self._maps.get(rows.table_id)
        if found is None:
            raise origin.damaged(f"has rows of table {rows.table_id}, which no TABLE_MAP announced")
        if rows.columns != len(found.columns):
            raise origin.damaged(f"has rows of {counted(rows.columns, 'column')}, its table has {len(found.columns)}")
        return found

    def reader(self, rows: e.Rows, origin: Position, wanted: frozenset[int] | None = None) -> BodyReader:
        """Return a reader for the rows of an event. It decodes the wanted columns, all if None, each as the store's
        type for its MySQL type. Raises: BinlogDamaged, Unsupported, LimitExceeded.
        """
        found = self.of(rows, origin)
        key = (rows.table_id, rows.kind, rows.before, rows.after, wanted)
        known = self._readers.get(key)
        if known is not None and (known[0] is found or known[0] == found):
            return known[1]
        reader = BodyReader(found.types, *present(rows), wanted=wanted)
        if len(self._readers) >= _MAPS_MAX:
            self._readers.clear()
        self._readers[key] = (found, reader)
        return reader


@dataclass
class JoinedRows:
    """Consecutive row events of the same form, whose bodies are decoded together. `origin` is the position of the first
    one; `ends` has the end of each event in `body`, `transaction_ids` the id of each, None for an event without one.
    """

    map: TableMap
    first: e.Rows
    server_id: int
    origin: Position
    body: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=list)
    transaction_ids: list[int | None] = field(default_factory=list)

    def takes(self, table: TableMap, rows: e.Rows, server_id: int) -> bool:
        """Whether an event has the form of the first one."""
        first = self.first
        return (
            (rows.kind, rows.before, rows.after, rows.conflict_flags, server_id)
            == (first.kind, first.before, first.after, first.conflict_flags, self.server_id)
        ) and (self.map is table or self.map == table)


def joined_rows(
    events: Iterable[ReadEvent], is_wanted: Callable[[TableMap, e.Rows, int], bool], bytes_max: int
) -> Iterator[JoinedRows]:
    """Yield the row events, joined up to about `bytes_max` bytes; other events are skipped. is_wanted: called with
    table, event and server id. Raises: BinlogDamaged, LimitExceeded.
    """
    maps = StatementMaps()
    run: JoinedRows | None = None
    for read in events:
        rows = read.event
        maps.observe(rows)
        if not isinstance(rows, e.Rows) or not rows.body:
            continue
        table, server_id = maps.of(rows, read.at), read.header.server_id
        if not is_wanted(table, rows, server_id):
            continue
        if run is None or len(run.body) >= bytes_max or not run.takes(table, rows, server_id):
            if run is not None:
                yield run
            run = JoinedRows(table, rows, server_id, read.at)
        run.body += rows.body
        run.ends.append(len(run.body))
        run.transaction_ids.append(rows.transaction_id)
    if run is not None:
        yield run


def present(rows: e.Rows) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the column positions in the before-image and in the after-image of a row event, none for an absent
    image.
    """
    return (
        () if rows.before is None else positions_of(rows.before, rows.columns),
        () if rows.after is None else positions_of(rows.after, rows.columns),
    )


def find_epoch(
    files: Files, epoch: int, end: Position, folder: str = "binlog", base: str = "binlog", server_id: int | None = None
) -> Position | None:
    """Return the position to continue from after `epoch`, or None if the binlog begins later.

    This is the end of the last transaction whose own epoch is at most `epoch`. A transaction's own epoch is in its row
    of `ndb_apply_status` for `server_id` (None: for any server). Searches file by file from the newest. Raises:
    BinlogDamaged, FileMissing.
    """
    index = BinlogIndex(files, folder, base)
    for name in reversed(index.names[: index.place_of(end.file) + 1]):
        stop = end if name == end.file else Position(name, files.size(index.path(name)))
        with BinlogReader(files, folder, base, Position(name, b.FIRST_POSITION)) as reader:
            found = _last_through(reader, epoch, stop, server_id)
        if found is not None:
            return found
    return None


def _last_through(reader: BinlogReader, epoch: int, stop: Position, server_id: int | None) -> Position | None:
    found = None
    maps = StatementMaps()
    own: int | None = None
    for read in reader.events(stop):
        maps.observe(read.event)
        if isinstance(read.event, e.Rows) and own is None:
            own = epoch_in(maps, read.event, read.at, server_id)
            if own is not None and own > epoch:
                return found
        if read.is_boundary:
            if own is not None:
                found = read.next
            own = None
    return found


def epoch_in(maps: StatementMaps, rows: e.Rows, origin: Position, server_id: int | None) -> int | None:
    """Return the epoch in an event's first row of `ndb_apply_status` for the server (None: for any), None if there is
    none.

    Raises: BinlogDamaged.
    """
    if rows.kind != e.WRITE or maps.of(rows, origin).name != STATUS_TABLE:
        return None
    try:
        for chunk in maps.reader(rows, origin).chunks(rows.body, origin):
            if not {_SERVER_COLUMN, _EPOCH_COLUMN} <= set(chunk.after):
                continue
            servers, epochs = (chunk.after[column].to_pylist() for column in (_SERVER_COLUMN, _EPOCH_COLUMN))
            for server, epoch in zip(servers, epochs, strict=True):
                if isinstance(epoch, int) and server_id in (None, server):
                    return epoch
    except (Unsupported, ValueOutOfRange) as error:  # this table has the same columns at every server
        raise origin.damaged(f"has rows of {STATUS_TABLE} that are invalid ({error.message})") from error
    return None
