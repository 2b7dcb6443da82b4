"""Dumps of a store in memory, without sockets: their messages, and what a replica makes of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.mysql_source.dump import Dump, DumpAsked, Dumps
from tidemark.replication.mysql_source.flavors import MYSQL

REPLICA_ID = 77


class Store(NamedTuple):
    """What a dump asks of the store."""

    server_id: int = 1
    gtids: Any = None


def dump_of(db: Any, dumps: Dumps | None = None, flavor: Any = MYSQL, served_gtids: Any = None, **given: Any) -> Dump:
    """Return a dump; it ends at the end of the binlog unless `is_non_blocking` is False."""
    own = {name: given.pop(name) for name in ("status_rows", "wait", "woken") if name in given}
    asked = DumpAsked(**{"server_id": REPLICA_ID, "is_non_blocking": True, **given})
    served = Store(db.endpoint.site.server_id, served_gtids)
    reader = db.endpoint.source_binlog(is_limited=True)
    return Dump(served, reader, asked, flavor, dumps or Dumps.of(db.endpoint), **own)


def messages_of(db: Any, **given: Any) -> list[bytes]:
    """Return all messages of a dump up to the end, without their first byte."""
    with dump_of(db, **given) as dump:
        found = list(dump.messages())
    assert all(each[:1] == b"\0" for each in found)
    return [each[1:] for each in found]


def header(raw: bytes) -> e.EventHeader:
    return e.parse_header(raw, Position("served", 0))


def added_up(messages: list[bytes]) -> tuple[str, int]:
    """Return the position that a MySQL replica by position reaches: it adds up the lengths of all events that have a
    position.
    """
    file, position = "", 0
    for raw in messages:
        found = header(raw)
        if found.type == b.ROTATE_EVENT:
            _, event = e.parse(raw, Position("served", 0))
            assert isinstance(event, e.Rotate)
            file, position = event.name, event.position
        elif found.end_position and found.type != b.HEARTBEAT_EVENT:
            position += found.event_bytes
            assert position == found.end_position
    return file, position
