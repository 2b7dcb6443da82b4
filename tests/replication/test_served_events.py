"""Events as a peer gets them, read by real mysqlbinlogs and fed to real servers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tests.replication.mysql_rig import SERVERS
from tests.replication.site import WHOLE, open_site
from tidemark.engine import types as t
from tidemark.engine.schema.column import Column
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import STATUS_TABLE
from tidemark.replication.mysql_source import served_events as s

_HEADER = struct.Struct("<IBIIIH")


def raw_events(content: bytes) -> list[bytes]:
    found, place = [], len(b.MAGIC)
    while place < len(content):
        size = _HEADER.unpack_from(content, place)[3]
        found.append(content[place : place + size])
        place += size
    return found


def without_status_rows(content: bytes) -> list[bytes]:
    """Replace what is of the database `mysql`, as a dump will."""
    served: list[bytes] = []
    hidden: set[int] = set()
    for raw in raw_events(content):
        _, event = e.parse(raw, Position("f", 0))
        if getattr(event, "name", None) == STATUS_TABLE:
            hidden.add(event.table_id)  # type: ignore[union-attr]
        is_hidden = getattr(event, "table_id", None) in hidden
        served.append(b"".join(s.replaced(raw)) if is_hidden else raw)
    return served


@pytest.fixture(scope="module")
def content() -> bytes:
    db = open_site(**WHOLE)
    table = db.create_table("d.t", [Column("id", t.Int64)], "id")
    for number in range(3):
        table.insert({"id": number})
        db.sync()
    (name,) = db.binlog.writer.index.names
    found = bytes(db.parts.files.snapshot()[f"binlog/{name}"])
    db.close()
    return found


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Any:
    with SERVERS[request.param]() as running:
        yield running


def test_server_takes_all_rows_strictly_without_the_table_of_positions(
    server: Any, content: bytes, tmp_path: Path
) -> None:
    """Story: each epoch begins with a row of `mysql.ndb_apply_status`, which stopped every stock server."""
    served = without_status_rows(content)
    assert [len(each) for each in served] == [len(each) for each in raw_events(content)]
    assert sum(each[4] == s.IGNORABLE_EVENT for each in served) >= 6
    path = tmp_path / "served"
    path.write_bytes(b.MAGIC + b"".join(served))
    server.sql("CREATE DATABASE d")
    server.feed([path])
    assert server.sql("SELECT * FROM d.t ORDER BY id").split() == ["0", "1", "2"]


def test_mysqlbinlog_reads_a_dump_from_the_middle(server: Any, content: bytes, tmp_path: Path) -> None:
    first, *others = raw_events(content)
    begins = [place for place, raw in enumerate(others) if raw[4] == b.ANONYMOUS_GTID_EVENT]
    for has_checksum in (True, False):
        served = [s.description(first, False), *others[begins[-2] :]]
        path = tmp_path / str(has_checksum)
        sent = served if has_checksum else [b"".join(s.without_checksum((raw,))) for raw in served]
        path.write_bytes(b.MAGIC + b"".join(sent))
        said = server.mysqlbinlog("--verify-binlog-checksum", "--base64-output=DECODE-ROWS", "-v", path)
        assert said.count("### INSERT INTO `d`.`t`") == 2


def test_own_parser_reads_what_is_made(content: bytes) -> None:
    first, *others = raw_events(content)
    for is_from_start in (True, False):
        header, event = e.parse(s.description(first, is_from_start), Position("f", 0))
        assert isinstance(event, e.FormatDescription) and not header.flags & b.FLAG_IN_USE
        assert (header.end_position > 0, event.created_s > 0) == (is_from_start, is_from_start)
    header, event = e.parse(s.rotation("f.000002", 4, 9), Position("f", 0))
    assert event == e.Rotate("f.000002", 4)
    assert (header.timestamp_s, header.server_id, header.end_position, header.flags) == (0, 9, 0, b.FLAG_ARTIFICIAL)
    raw = s.heartbeat("f.000002", 99, 9)
    header, _ = e.parse(raw, Position("f", 0))
    assert (header.type, header.end_position, raw[b.HEADER_BYTES : -b.CHECKSUM_BYTES]) == (27, 99, b"f.000002")
    for raw in others:
        hidden = b"".join(s.replaced(raw))
        header, _ = e.parse(hidden, Position("f", 0))
        assert (header.type, header.event_bytes) == (s.IGNORABLE_EVENT, len(raw))
        assert not hidden[b.HEADER_BYTES : -b.CHECKSUM_BYTES].strip(b"\0")
