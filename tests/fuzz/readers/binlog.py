"""Binlogs: events, bytes as they come, files of a store, the relay log, indexes, what a server sends."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from itertools import accumulate

from tests.fuzz.harness import Reader
from tests.fuzz.mutations import fields_of, octets, then, words
from tests.ingest.recorded import Stream
from tests.replication.stage import batch_of, rows_of, write_epoch, writer_on
from tests.replication.support import every_type, extreme_rows
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import (
    BinlogDamaged,
    FileMissing,
    FileTruncated,
    LimitExceeded,
    PositionLost,
    Rejected,
    Unsupported,
    ValueOutOfRange,
)
from tidemark.engine.rows.row_format import RowFormat
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.index import BinlogIndex
from tidemark.replication.binlog.listing import BinlogListing
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import BinlogReader, StatementMaps, find_epoch
from tidemark.replication.binlog.row_plan import TablePlans
from tidemark.replication.binlog.stream import EventStream
from tidemark.replication.binlog.table_map import MapColumn, TableMap, table_map
from tidemark.replication.binlog.types import MySqlType
from tidemark.replication.channel.relay_log import RelayLog
from tidemark.replication.channel.relay_reader import RelayReader
from tidemark.replication.ingest.transactions import Change, TransactionReader
from tidemark.replication.wire.messages import Events

FILE = "binlog.000001"
ORIGIN = Position(FILE, b.FIRST_POSITION)
# For files whose event types are not known: the number of bytes after an event's header that hold its numbers.
_FIXED_BYTES = 14
# What servers send besides what the store writes; code and metadata.
_STRANGE_TYPES = (
    *(MySqlType(16, b"\3\2"), MySqlType(13), MySqlType(b.TYPE_STRING, b"\xf8\2", collation=45, members=("a", "b"))),
    *(MySqlType(255, b"\4", collation=63), MySqlType(252, b"\1", collation=63), MySqlType(15, b"\xff\0", collation=8)),
)
DAMAGED = (BinlogDamaged, LimitExceeded, FileTruncated)


def _events(data: bytes, start: int = 0) -> list[tuple[int, int]]:
    """Where the events begin and end, by their lengths; bytes without a valid length are one event to the end."""
    found, at = [], start
    while at + b.HEADER_BYTES + b.CHECKSUM_BYTES <= len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if size < b.HEADER_BYTES + b.CHECKSUM_BYTES or at + size > len(data):
            size = len(data) - at
        found.append((at, at + size))
        at += size
    return found


def _start_of(data: bytes) -> int:
    return b.FIRST_POSITION if data.startswith(b.MAGIC) else 0


def _fields(data: bytes) -> list[tuple[int, int]]:
    found = []
    for at, end in _events(data, _start_of(data)):
        found += fields_of(b.EVENT_HEADER, at)
        found += [(at + b.HEADER_BYTES + place, 1) for place in range(min(_FIXED_BYTES, end - at - b.HEADER_BYTES))]
    return found


def mended(shift: int = 0, is_relay: bool = False) -> Callable[[bytes], bytes]:
    """Lengths, ends and checksums of events right again; the ends of those from the third on `shift` further, as relay
    files have them.
    """

    def mend(data: bytes) -> bytes:
        changed = bytearray(data)
        for number, (at, end) in enumerate(_events(data, _start_of(data))):
            further = shift if is_relay and number > 1 else 0
            changed[at + 9 : at + 13] = (end - at).to_bytes(4, "little")
            changed[at + 13 : at + 17] = ((end + further) & 0xFFFFFFFF).to_bytes(4, "little")
            raw = bytearray(changed[at : end - b.CHECKSUM_BYTES])
            if raw[4] == b.FORMAT_DESCRIPTION_EVENT:
                raw[b.FLAGS_OFFSET] &= 0xFF ^ b.FLAG_IN_USE
            changed[end - b.CHECKSUM_BYTES : end] = zlib.crc32(raw).to_bytes(4, "little")
        return bytes(changed)

    return mend


# --- events alone ---------------------------------------------------------------------------------------
def _framed(*events: e.Event) -> bytes:
    found = b""
    for event in events:
        found += e.frame(event, len(found), timestamp_s=1_700_000_000, server_id=7)
    return found


@cache
def _event_members() -> tuple[bytes, ...]:
    plans = TablePlans(RowFormat(every_type()))
    rows = [tuple(cell[:40] if isinstance(cell, (str, bytes)) else cell for cell in row) for row in extreme_rows()]
    files = MemoryFiles()
    writer = writer_on(files, has_gtids=True)
    writer.begin([plans], batch_of(plans, e.WRITE, new=rows[:1]))
    writer.append(batch_of(plans, e.UPDATE, old=rows[:3], new=rows[3:6]))
    writer.append(batch_of(plans, e.DELETE, old=rows[:2]))
    writer.commit()
    rows_written = files.snapshot()[f"binlog/{FILE}"][b.FIRST_POSITION :]
    columns = tuple(MapColumn(each, True, f"c{each.code}") for each in _STRANGE_TYPES)
    strange = TableMap(5, "d", "strange", columns, ())
    body = b"\0" + b"\1\2\3" + b"\x79" + b"\3\0" + (b"\5\0\0\0" + b"abcde") + b"\4wxyz" + b"\2hi"
    written = e.Rows(e.WRITE, 5, len(columns), None, b"\x3f", body, b.ROWS_STATEMENT_END, version=1)
    wide = TableMap(9, "d", "wide", tuple(MapColumn(MySqlType(15, b"\x20\0", collation=45), True) for _ in range(300)))
    small = table_map(every_type(), 2**40)
    return (
        _framed(e.FormatDescription(created_s=5)),
        _framed(e.PreviousGtids(), e.PreviousGtids.through(b"u" * 16, 1 << 40)),
        _framed(e.Gtid(3, 2, 1_700_000_000_000_000), e.Gtid(3, 2, source=b"u" * 16, number=9)),
        _framed(e.Query("BEGIN"), e.Query("CREATE TABLE t (id INT PRIMARY KEY)", "d", b"\0\1\2\3"), e.Query("COMMIT")),
        _framed(e.Xid(9), e.Stop(), e.Rotate("binlog.000002"), e.Incident("the log was full"), e.Other(27, b"hello")),
        _framed(strange, written),
        _framed(wide),
        _framed(small),
        rows_written,
    )


def _read_events(data: bytes) -> object:
    maps, found = StatementMaps(), 0
    for at, end in _events(data):
        event = e.parse(data[at:end], ORIGIN)[1]
        if isinstance(event, e.Other) and event.type == b.TABLE_MAP_EVENT:
            raise AssertionError("a table map is no other event")
        maps.observe(event)
        if isinstance(event, e.Rows):
            for chunk in maps.reader(event, ORIGIN).chunks(event.body, ORIGIN):
                found += chunk.count
                for array in (*chunk.before.values(), *chunk.after.values()):
                    array.validate(full=True)
    return found


# --- bytes of a file ------------------------------------------------------------------------------------
@cache
def _file_members() -> tuple[bytes, ...]:
    files = MemoryFiles()
    writer = writer_on(files)
    for epoch in (3, 5, 9):
        write_epoch(writer, epoch, rows_of(epoch))
    writer.statement("CREATE TABLE d.u (id INT PRIMARY KEY)", "d")
    writer.incident("the log was full")
    short = MemoryFiles()
    write_epoch(writer_on(short), 4, rows_of(4, 1))
    return files.snapshot()[f"binlog/{FILE}"], short.snapshot()[f"binlog/{FILE}"]


def _stream(data: bytes) -> object:
    stream = EventStream(FILE, b.FIRST_POSITION)
    body = data[b.FIRST_POSITION :]
    return [boundary for at in range(0, len(body), 700) for boundary in stream.feed(body[at : at + 700])]


def _read_file(data: bytes) -> object:
    """By everything that reads the files of a binlog."""
    files = MemoryFiles.from_snapshot({f"binlog/{FILE}": data, "binlog/binlog.index": f"./{FILE}\n".encode()})
    end = Position(FILE, len(data))
    listed = list(BinlogListing(files, "binlog", "binlog").entries())
    reader, maps = BinlogReader(files), StatementMaps()
    try:
        for read in reader.events(end):
            maps.observe(read.event)
    finally:
        reader.close()
    return listed, find_epoch(files, 5, end)


# --- the relay log ----------------------------------------------------------------------------------------
@cache
def _relay_members() -> tuple[bytes, ...]:
    data = _file_members()[0]
    files = MemoryFiles()
    relay = RelayLog(files, ManualClock(), "main", 2)
    relay.expect(1)
    relay.append(Events(Position(FILE, b.FIRST_POSITION), data[b.FIRST_POSITION :]))
    relay.sync()
    return (files.snapshot()["relay/main.000001"],)


def _relay_shift() -> int:
    """How much smaller the source's positions are than the offsets of its events."""
    data = _relay_members()[0]
    return (
        b.FIRST_POSITION
        - list(accumulate(end - at for at, end in _events(data, b.FIRST_POSITION)))[1]
        - b.FIRST_POSITION
    )


def _read_relay(data: bytes) -> object:
    files = MemoryFiles.from_snapshot({"relay/main.000001": data, "relay/main.index": b"./main.000001\n"})
    relay = RelayLog(files, ManualClock(), "main", 2)
    reader = RelayReader(files, relay, None)
    found = 0
    while (transaction := reader.next()) is not None:
        found += sum(1 for _ in transaction.events())
    reader.close()
    return found


# --- indexes, and what a server sends -----------------------------------------------------------------------
def _read_index(data: bytes) -> object:
    files = MemoryFiles.from_snapshot({f"binlog/{FILE}": b"", "binlog/binlog.000002": b"", "binlog/binlog.index": data})
    return BinlogIndex(files, "binlog", "binlog").names


@cache
def _server_members() -> tuple[bytes, ...]:
    rows = ((1, "a", 1), (2, "bb", 2))
    mysql = Stream().begin().insert(*rows).commit().statement("CREATE TABLE x (id INT PRIMARY KEY)")
    mysql.begin().insert((3, "c", 3)).add(e.Query("ROLLBACK", "d"), e.Rotate("master.000002"))
    mariadb = Stream().mariadb().insert(*rows).commit().mariadb(b.MARIADB_STANDALONE)
    return b"".join(mysql.raw), b"".join(mariadb.raw)


def _read_server(data: bytes) -> object:
    reader, maps = TransactionReader("master.000001", b.FIRST_POSITION), StatementMaps()
    found = 0
    for at, end in _events(data):
        step = reader.step(data[at:end])
        if isinstance(step, Change):
            maps.observe(step.map)
            origin = step.origin
            for chunk in maps.reader(step.rows, origin).chunks(step.rows.body, origin):
                found += chunk.count
    return found


_PLAIN = octets(_fields)
READERS = (
    Reader(
        "binlog events",
        _event_members,
        _read_events,
        (*DAMAGED, Unsupported, ValueOutOfRange),
        (_PLAIN, *[then(_PLAIN, mended())] * 4),
        (
            *(
                "accepted",
                "fails its checksum",
                "too early",
                "a column of type",
                "impossible metadata",
                "TABLE_MAP",
            ),
            *("is incomplete", "is not UTF-N", "does not hold", "a name without its end", "instead of a length"),
        ),
        cost=5,
    ),
    Reader(
        "binlog streams",
        _file_members,
        _stream,
        DAMAGED,
        (_PLAIN, *[then(_PLAIN, mended())] * 3),
        (
            "accepted",
            "fails its checksum",
            "where no event of its type is allowed",
            "is larger than",
            "claims to",
            "too early",
        ),
        cost=6,
    ),
    Reader(
        "binlog files",
        _file_members,
        _read_file,
        (*DAMAGED, Unsupported, ValueOutOfRange, Rejected),
        (_PLAIN, *[then(_PLAIN, mended())] * 3),
        (
            "accepted",
            "fails its checksum",
            "claims",
            "is not a format description",
            "not begin as a binlog",
            "another format",
        ),
        cost=16,
    ),
    Reader(
        "relay logs",
        _relay_members,
        _read_relay,
        (BinlogDamaged, LimitExceeded),
        (_PLAIN, *[then(_PLAIN, mended(_relay_shift(), True))] * 3),
        ("accepted", "does not say which file", "does not describe a relay log", "is not a format description"),
        cost=24,
    ),
    Reader(
        "binlog indexes",
        lambda: [b"./binlog.000001\n./binlog.000002\n", b"binlog.000001\n"],
        _read_index,
        (BinlogDamaged, FileMissing),
        (octets(), words(("./binlog.000001\n", "binlog", "000003", "\n", "./"))),
        ("accepted", "does not list consecutive files", "is missing, though"),
        cost=2,
    ),
    Reader(
        "events of servers",
        _server_members,
        _read_server,
        (*DAMAGED, Unsupported, ValueOutOfRange, PositionLost),
        (_PLAIN, *[then(_PLAIN, mended())] * 3),
        (
            "accepted",
            "fails its checksum",
            "rows outside a transaction",
            "which is not ingested",
            "TABLE_MAP announced",
        ),
        cost=5,
    ),
)
