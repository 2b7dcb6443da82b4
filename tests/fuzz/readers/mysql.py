"""What clients of the MySQL port send: logins, statements, commands, requests for dumps, acks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from tests.fuzz.harness import Reader
from tests.fuzz.mutations import Mutation, octets, words
from tests.replication.mysql_statements import REFUSED
from tests.replication.mysql_talks import (
    NOTHING_LEFT,
    OF_TOOLS,
    TALKS,
    Host,
    Talk,
    packets_in,
    query,
    said_to,
    stream_of,
)
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.flavors import FLAVORS, MYSQL
from tidemark.replication.mysql_source.packets import HEADER_BYTES, Refused, packets

_FLAVORS = tuple(FLAVORS.values())
_WORDS = (
    "SELECT SHOW SET KILL USE FLUSH START COMMIT FROM WHERE LIKE IN OR AND NOT IS NULL LIMIT ORDER BY AS @ @@ , ( ) '"
    ' " '
    " ` * = . ; -- # /* */ /*!50003 % _ \\ shop item v id information_schema columns tables statistics"
    " key_column_usage schemata NAMES latin1 utf8mb4 GLOBAL SESSION VARIABLES STATUS MASTER BINARY LOGS CREATE TABLE"
    " COLUMNS INDEX WARNINGS COLLATION GRANTS DUAL NOW() VERSION() CONCAT(@a,@a) GTID_SUBTRACT GTID_SUBSET"
    " binlog_gtid_pos('binlog.000001',4) UUID() TIMEDIFF(NOW(),UTC_TIMESTAMP()) wait_timeout net_write_timeout sql_mode"
    " time_zone '+02:00' '' 'x' 0 -1 1e309 18446744073709551616 0xff b'101' 'ansi_quotes' master_heartbeat_period"
    " @slave_connect_state @source_binlog_checksum @rpl_semi_sync_replica '0-1-1' 'NONE' 'CRC32'"
).split()


@cache
def _host() -> Host:
    return Host()


def _marked(number: int, data: bytes) -> bytes:
    """Return a stream after a byte that says its flavor."""
    return bytes((number,)) + data


@cache
def _members() -> tuple[bytes, ...]:
    talks = (*TALKS, *OF_TOOLS, Talk("refused", tuple(map(query, REFUSED))))
    ping = packets(bytes((p.COM_PING,)), 0)  # the last answer is OK, whatever the one before
    return tuple(
        _marked(_FLAVORS.index(each.flavor), stream_of(each) + ping * (each.commands[-1][0] == p.COM_QUERY))
        for each in talks
    )


def _read(data: bytes) -> None:
    """Have a port answer a stream. Raises: Refused, if the last answer is an error that ended the connection."""
    host = _host()
    said = said_to(host, _FLAVORS[data[0] % len(_FLAVORS)] if data else MYSQL, data[1:])
    left = host.left()
    if left != NOTHING_LEFT:
        raise AssertionError(f"left behind: {left}")
    begin, end = packets_in(said)[-1] if said else (0, 0)
    last = said[begin + HEADER_BYTES : end]
    if last[:1] == bytes((p.ERROR,)):
        raise Refused((int.from_bytes(last[1:3], "little"), ""), last[9:].decode())


def _fields(data: bytes) -> list[tuple[int, int]]:
    """The lengths and numbers of packets, and their first bytes."""
    places = [1 + begin for begin, end in packets_in(data[1:]) if end - begin > HEADER_BYTES]
    return [each for at in places for each in ((at, 2), (at + 2, 1), (at + 3, 1), (at + 4, 1), (at + 5, 4))]


def _within(mutation: Mutation, least: int) -> Mutation:
    """A mutation of the content of one packet, whose length is right again; the first `least` packets stay."""

    def mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
        places = packets_in(data[1:])[least:]
        if not places:
            return data
        begin, end = (1 + each for each in rng.choice(places))
        inner = data[begin + HEADER_BYTES : end]
        changed = inner[:1] + mutation(inner[1:], rng, others)
        return data[:begin] + packets(changed, data[begin + 3] if end - begin > 3 else 0) + data[end:]

    return mutate


def _packets_moved(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Whole packets after the login left out, doubled, swapped, or taken from another stream."""
    pieces = [data[1 + begin : 1 + end] for begin, end in packets_in(data[1:])]
    head, rest = pieces[:1], pieces[1:]
    other = rng.choice(others) if others else data
    theirs = [other[1 + begin : 1 + end] for begin, end in packets_in(other[1:])][1:]
    for _ in range(rng.randrange(1, 4)):
        choice = rng.randrange(4)
        at = rng.randrange(len(rest) + 1)
        if choice == 0 and rest:
            del rest[at - 1]
        elif choice == 1 and rest:
            rest.insert(at, rng.choice(rest))
        elif choice == 2:
            rng.shuffle(rest)
        elif theirs:
            rest[at:at] = rng.sample(theirs, rng.randrange(1, min(4, len(theirs) + 1)))
    return data[:1] + b"".join(head + rest)


_TEXT = words(_WORDS, r"'(?:[^']|'')*'|`[^`]*`|[A-Za-z_]\w*|\d+|\s+|.")
READERS = (
    Reader(
        "clients of the MySQL port",
        lambda: list(_members()),
        _read,
        (Refused,),
        (
            octets(_fields),
            _within(octets(), 0),
            *(_within(_TEXT, 1),) * 4,
            _within(octets(), 1),
            *(_packets_moved,) * 2,
        ),
        (
            "accepted",
            "out of order",
            "Bad handshake",
            "Access denied for user",
            "bigger than",
            "This version of MySQL",
            "the checksum that master is configured to log",
            "a peer that follows a dump sends nothing but semi-sync replies",
        ),
        cost=5,
    ),
)
