"""Dumps of a store in memory, without sockets: their messages, and what a replica makes of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import StatementMaps
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
        found = list(map(b"".join, dump.messages()))
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


class Replica:
    """A server that follows by position, strictly: it adds up lengths, continues there after each lost connection, and
    applies whole transactions. `tables` have its rows by name and key.
    """

    def __init__(self, flavor: Any = MYSQL) -> None:
        self.flavor = flavor
        self.file, self.position = "", b.FIRST_POSITION
        self.tables: dict[str, dict[Any, dict[str, Any]]] = {}
        self._maps = StatementMaps()
        self._waiting: list[tuple[str, int, Any, Any]] = []
        self._open_rows = 0

    def follow(self, db: Any, most: int | None = None) -> bool:
        """Take at most so many messages of a dump, then lose the connection; return whether the end was reached."""
        with dump_of(db, flavor=self.flavor, file=self.file, position=self.position) as dump:
            for number, message in enumerate(dump.messages()):
                if number == most:
                    return False
                self._take(b"".join(message)[1:])
        return True

    def _take(self, raw: bytes) -> None:
        at = Position(self.file, self.position)
        found, event = e.parse(raw, at)
        if isinstance(event, e.Rotate):
            self.file, self.position = event.name, event.position
            return
        if found.end_position:
            self.position += found.event_bytes
            assert self.position == found.end_position
        self._maps.observe(event)
        if isinstance(event, e.Rows):
            self._open_rows = 0 if event.is_statement_end else self._open_rows + 1
            name, reader = self._maps.of(event, at), self._maps.reader(event, at)
            for chunk in reader.chunks(event.body, at):
                for row in range(chunk.count):
                    images = [_image(name, image, row) for image in (chunk.before, chunk.after)]
                    self._waiting.append((name.name, event.kind, *images))
        elif isinstance(event, e.Query) and event.statement != "BEGIN":
            assert not self._open_rows, "tables are open at the end of a transaction"
            for change in self._waiting:
                self._apply(*change)
            self._waiting.clear()

    def _apply(self, name: str, kind: int, before: Any, after: Any) -> None:
        rows = self.tables.setdefault(name, {})
        if kind == e.WRITE:
            assert after["id"] not in rows, "1062"
        else:
            assert rows.pop(before["id"]) == before, "1032"
        if kind != e.DELETE:
            rows[after["id"]] = after


def _image(table: Any, image: Any, row: int) -> dict[str, Any] | None:
    return {table.columns[place].name: column[row].as_py() for place, column in image.items()} if image else None
