"""Events as a replica of MariaDB that follows by GTIDs gets them: its own description of the format, its own GTIDs.

MariaDB's GTID also begins the transaction, so it stands for the store's GTID and BEGIN. The domain is always 0, and the
server id is that of the event.

Lengths differ from those in the file, positions do not: a replica that follows by GTIDs takes its position from each
GTID. From the description it would add up the length, which is longer than in the file, and then stop at a heartbeat
with a lower position. So the description has no position: such an event is not counted.
"""

from __future__ import annotations

from typing import Final

from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.mysql_source.packets import Message

DOMAIN: Final = 0
GTID_LIST_EVENT: Final = 163
# Length of the fixed part of each type of event, from type 1 on, as in MariaDB 10.11.
_LENGTHS = {
    1: 56,
    2: 13,
    4: 8,
    6: 18,
    8: 4,
    9: 4,
    10: 4,
    11: 4,
    12: 18,
    15: 228,
    17: 4,
    18: 26,
    19: 8,
    23: 8,
    24: 8,
    25: 8,
    26: 2,
    30: 10,
    31: 10,
    32: 10,
    39: 10,
    40: 10,
    41: 10,
    161: 4,
    162: 19,
    163: 4,
    165: 13,
    166: 8,
    167: 8,
    168: 8,
    169: 10,
    170: 10,
    171: 10,
}
_POST_HEADER_BYTES = bytes(_LENGTHS.get(kind, 0) for kind in range(1, max(_LENGTHS) + 1))
_GTID = b.packer(b.MARIADB_GTID)
_GTID_PADDING = bytes(6)
_TRANSACTIONAL = 4
_BEGIN_BYTES_MAX = 1 << 10  # of an event whose statement is BEGIN, and more
_PLACE = Position("the served binlog", 0)


class MariadbEvents:
    """Translates the events of one dump, in order, each with its checksum. It begins between two transactions."""

    def __init__(self, version: str) -> None:
        """version: the version of the server that the description names."""
        self._version = version.encode()
        self._held: tuple[e.EventHeader, e.Gtid] | None = None

    def translate(self, sent: Message) -> list[Message]:
        """Return what is sent for an event: itself, other ones, or nothing before the next event. Raises: BinlogDamaged
        for an event that is not sound.
        """
        kind = sent[0][b.TYPE_OFFSET]
        if kind == b.GTID_EVENT:
            header, gtid = e.parse(b"".join(sent), _PLACE)
            assert isinstance(gtid, e.Gtid)
            self._held = header, gtid
            return []
        if self._held is not None:
            (header, gtid), self._held = self._held, None
            if kind == b.QUERY_EVENT and (end_position := _begins_to(sent)):
                return [[_gtid(header, gtid, _TRANSACTIONAL, end_position)]]
            return [[_gtid(header, gtid, b.MARIADB_STANDALONE, header.end_position)], sent]
        if kind == b.FORMAT_DESCRIPTION_EVENT:
            header, event = e.parse(b"".join(sent), _PLACE)
            assert isinstance(event, e.FormatDescription)
            own = e.FormatDescription(self._version, event.created_s, _POST_HEADER_BYTES)
            return [[_framed(own, header, 0)]]
        if kind == b.PREVIOUS_GTIDS_EVENT:
            return [[_state(b"".join(sent), has_position=True)]]
        return [sent]

    def state_before(self, raw: bytes) -> bytes:
        """Return the list for a file's PREVIOUS_GTIDS at the head of a dump from further on in the file. A mysqlbinlog
        that begins at a GTID takes the first list that it sees for the state before all that follows. It has no
        position, so that a replica does not go back to it.
        """
        return _state(raw, has_position=False)


def _begins_to(sent: Message) -> int:
    """Return where an event ends that begins a transaction, 0 for another statement. The statement of the event is not
    decoded before its length says that it can be one.
    """
    raw = b"".join(sent) if sum(map(len, sent)) < _BEGIN_BYTES_MAX else b""
    if not raw:
        return 0
    header, event = e.parse(raw, _PLACE)
    return header.end_position if isinstance(event, e.Query) and event.statement == "BEGIN" else 0


def _state(raw: bytes, has_position: bool) -> bytes:
    header, event = e.parse(raw, _PLACE)
    assert isinstance(event, e.PreviousGtids)
    found = _list(header.server_id, event.number_of() or 0)
    return _framed(found, header, header.end_position if has_position else 0)


def _framed(event: e.Event, header: e.EventHeader, position: int) -> bytes:
    """Return an event with the header of another one, which ends at this position in the file."""
    size = b.HEADER_BYTES + sum(map(len, event.parts())) + b.CHECKSUM_BYTES
    stamp = {"timestamp_s": header.timestamp_s, "server_id": header.server_id}
    return e.frame(event, position - size, flags=header.flags & ~b.FLAG_IGNORABLE, **stamp)


def _gtid(header: e.EventHeader, gtid: e.Gtid, flags: int, position: int) -> bytes:
    body = _GTID.pack(gtid.number, DOMAIN, flags) + _GTID_PADDING
    return _framed(e.Other(b.MARIADB_GTID_EVENT, body), header, position)


def _list(server_id: int, number: int) -> e.Other:
    """Return the event that names the last GTID before a file, none for number 0."""
    gtid = DOMAIN.to_bytes(4, "little") + server_id.to_bytes(4, "little") + number.to_bytes(8, "little")
    return e.Other(GTID_LIST_EVENT, (1).to_bytes(4, "little") + gtid if number else bytes(4))
