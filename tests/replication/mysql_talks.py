"""True conversations of clients with the MySQL port, as what each client sends; and a port without sockets that takes
them, for tests that change or cut them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

from tests.replication.mysql_port_rig import HOST, ITEM, SECRET, USERS, dump_command
from tests.replication.mysql_statements import CLIENTS
from tests.replication.site import WHOLE, open_site
from tests.replication.test_mysql_login import proof_of, response
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.conversation import Conversation
from tidemark.replication.mysql_source.dump import Dump, DumpAsked, Dumps
from tidemark.replication.mysql_source.flavors import MARIADB, MYSQL, Flavor
from tidemark.replication.mysql_source.login import Login, Port
from tidemark.replication.mysql_source.packets import HEADER_BYTES, Buffer, Message, Refused, packets
from tidemark.replication.mysql_source.served import Served
from tidemark.replication.mysql_source.session import Session
from tidemark.replication.mysql_source.users import MysqlUser, by_name

NONCE = bytes(range(1, p.NONCE_BYTES + 1))
STRANGER = b"the secret of no user"
MESSAGES_MAX = 400  # of a dump that nobody ends


class Talk(NamedTuple):
    """What one client says after its login: the commands, each one message."""

    name: str
    commands: tuple[bytes, ...]
    flavor: Flavor = MYSQL


def query(text: str) -> bytes:
    return bytes((p.COM_QUERY,)) + text.encode()


def _registered(server_id: int = 7) -> bytes:
    fields = b"".join(bytes((len(each),)) + each for each in (b"a.host", b"repl", SECRET))
    return bytes((p.COM_REGISTER_SLAVE,)) + server_id.to_bytes(4, "little") + fields + bytes(10)


def by_gtids(gtids: bytes, flags: int = p.DUMP_THROUGH_GTID | p.DUMP_NON_BLOCK) -> bytes:
    numbers = ((flags, 2), (9, 4), (0, 4), (4, 8), (len(gtids), 4))
    return (
        bytes((p.COM_BINLOG_DUMP_GTID,)) + b"".join(value.to_bytes(size, "little") for value, size in numbers) + gtids
    )


def ack(position: int = 4, file: bytes = b"binlog.000001") -> bytes:
    return bytes((p.SEMI_SYNC,)) + position.to_bytes(8, "little") + file


_CHECKSUM = query("SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'")
_UUID = query("SET @replica_uuid = '7f0b9a52-2f1b-11f0-9a52-7f0b9a522f1b', @source_heartbeat_period = 30000001024")
_SEMI_SYNC = query("SET @rpl_semi_sync_replica = 1, @rpl_semi_sync_slave = 1")
_DUMP = bytes((p.COM_BINLOG_DUMP,)) + dump_command()
_DUMP_AT_ONCE = bytes((p.COM_BINLOG_DUMP,)) + dump_command(flags=p.DUMP_NON_BLOCK)
_QUIT = bytes((p.COM_QUIT,))
_GTIDS = (1).to_bytes(8, "little") + uuid.UUID(int=7).bytes + b"".join(n.to_bytes(8, "little") for n in (1, 1, 3))
# Every state of a conversation after its login.
TALKS = (
    Talk("statements", (query("SELECT @@version_comment LIMIT 1"), query("SHOW VARIABLES LIKE 'sql%'"), _QUIT)),
    Talk("settings", (query("SET NAMES utf8mb4, @a = 'x', wait_timeout = 60"), query("SET autocommit = 0"), _QUIT)),
    Talk("rows", (query("SELECT id, v FROM shop.item"), query("SELECT * FROM shop.item LIMIT 2"), _QUIT)),
    Talk(
        "snapshot",
        (
            *(query("FLUSH TABLES WITH READ LOCK"), query("START TRANSACTION WITH CONSISTENT SNAPSHOT")),
            *(query("SHOW MASTER STATUS"), query("UNLOCK TABLES"), query("SELECT v FROM shop.item"), query("COMMIT")),
        ),
    ),
    Talk("snapshot that stays", (query("START TRANSACTION WITH CONSISTENT SNAPSHOT"), query("SELECT @@gtid_executed"))),
    Talk("commands", (b"\x16SELECT ?", b"\x1f", bytes((p.COM_INIT_DB,)) + b"shop", bytes((p.COM_PING,)), _QUIT)),
    Talk("kill", (query("KILL 4000000000"), query("KILL CONNECTION 3999999999"))),
    Talk("dump by position", (_CHECKSUM, _registered(), _DUMP_AT_ONCE)),
    Talk("dump that waits", (_CHECKSUM, _UUID, _DUMP, _QUIT)),
    Talk("dump by GTID", (_CHECKSUM, _UUID, _registered(9), by_gtids(_GTIDS))),
    Talk("dump by GTID from the start", (_CHECKSUM, _UUID, by_gtids(bytes(8)))),
    Talk("semi-sync", (_CHECKSUM, _SEMI_SYNC, _registered(), _DUMP, ack(), ack(5), _QUIT)),
    Talk(
        "dump by domains",
        (query("SET @mariadb_slave_capability=4, @slave_connect_state=''"), _CHECKSUM, _registered(), _DUMP_AT_ONCE),
        MARIADB,
    ),
)
# What tools send, statement by statement.
OF_TOOLS = tuple(
    Talk(
        f"{client.name}, {flavor.name}",
        tuple(query(each if isinstance(each, str) else each[0]) for each in client.statements),
        flavor,
    )
    for client in CLIENTS
    for flavor in (MYSQL, MARIADB)
    if flavor.name in client.flavors
)


def login_message(flavor: Flavor, nonce: bytes = NONCE, name: str = "reader", secret: bytes = SECRET) -> bytes:
    """Return the first packet of a client that logs in without a switch of plugins."""
    return packets(response(name, proof_of(flavor.plugin, secret, nonce), flavor.plugin), 1)


def stream_of(talk: Talk) -> bytes:
    """Return all bytes of a client whose nonce is NONCE."""
    return login_message(talk.flavor) + b"".join(packets(each, 0) for each in talk.commands)


def packets_in(data: bytes) -> list[tuple[int, int]]:
    """Return (begin, end) of the packets of a stream, by their lengths; the last one may be cut."""
    found, at = [], 0
    while at < len(data):
        end = min(len(data), at + HEADER_BYTES + int.from_bytes(data[at : at + 3], "little"))
        found.append((at, end))
        at = end
    return found


# --- a port without sockets --------------------------------------------------------------------------
class Host:
    """A store with a binlog, rows and GTIDs, for clients without sockets. `close` it."""

    def __init__(self, **options: Any) -> None:
        self.db = open_site(**WHOLE, log_gtids=True, **options)
        self.db.create_table("shop.item", ITEM, "id")
        for number in range(3):
            self.db["shop.item"].insert((number, f"value {number}"))
            self.db.sync()
        self.served = Served.of(self.db.endpoint)
        self.dumps = Dumps.of(self.db.endpoint)

    def left(self) -> dict[str, int]:
        """Return the counts of what clients hold."""
        open_snapshots: int = self.db.status()["snapshots"]["open"]
        return {"snapshots": open_snapshots, "dumps": len(self.dumps.running()), "pins": len(self.db.binlog.pins)}

    def close(self) -> None:
        self.served.close()
        self.db.close()


NOTHING_LEFT = {"snapshots": 0, "dumps": 0, "pins": 0}


class Visit:
    """One client at a host: its login and its conversation, as `port.py` runs them. `close` it.

    talk: the conversation, None before the login is done. is_over: nothing that comes is read any more.
    """

    def __init__(self, host: Host, flavor: Flavor) -> None:
        self._host = host
        self._flavor = flavor
        users = by_name(USERS)
        self.login = Login(Port(flavor, users, STRANGER, False, False), 7, NONCE, HOST, self._admit)
        self.talk: Conversation | None = None
        self.is_over = False

    def _admit(self, user: MysqlUser, database: bytes) -> None:
        session = Session(
            flavor=self._flavor,
            user=user,
            host=HOST,
            connection_id=7,
            served=self._host.served,
            kill=lambda number: number == 7,
        )
        if database:
            session.use(database.decode("utf-8", "replace"))
        self.talk = Conversation(session, self._begin_dump)

    def _begin_dump(self, asked: DumpAsked) -> Dump:
        reader = self._host.db.endpoint.source_binlog(is_limited=True)
        return Dump(self._host.served, reader, asked, self._flavor, self._host.dumps, False, self._wait)

    def take(self, data: bytes) -> bytes:
        """Take bytes; return the answer, empty if there is none."""
        said: list[Buffer] = []
        while data and not self.is_over and not self.login.is_done:
            size = self.login.reader.wanted
            try:
                said.append(self.login.receive(data[:size]))
            except Refused as refused:
                said.append(self.login.refusal(refused))
                self.is_over = True
            data = data[size:]
        talk = self.talk
        if talk is not None and data and not self.is_over:
            said += talk.receive(data)
            self.is_over = talk.is_over
            if talk.dump is not None:
                said += self._dumped(talk, talk.dump)
        return b"".join(said)

    def _dumped(self, talk: Conversation, dump: Dump) -> Iterator[Buffer]:
        try:
            yield from talk.pieces(self._bounded(dump))
            yield talk.end_of_dump()
        except Refused as refused:
            yield talk.rest() + talk.refusal(refused)

    def _bounded(self, dump: Dump) -> Iterator[Message]:
        for number, message in enumerate(dump.messages()):
            yield message
            del message
            if number > MESSAGES_MAX:
                dump.stop()

    def _wait(self, seconds: float | None) -> None:
        """Take what the client says during its dump; then it leaves."""
        assert self.talk is not None and self.talk.dump is not None
        for message in self.talk.heard(b""):
            if message != _QUIT:
                self.talk.dump.acknowledge(message)
        self.talk.dump.stop()

    def close(self) -> None:
        if self.talk is not None:
            self.talk.close()


def said_to(host: Host, flavor: Flavor, data: bytes, piece: int = 0) -> bytes:
    """Return all that a host answers to a client that sends these bytes, in pieces of a size, and leaves."""
    with closing(Visit(host, flavor)) as visit:
        step = piece or max(1, len(data))
        return b"".join(visit.take(data[at : at + step]) for at in range(0, len(data), step))
