"""One connection after its login: commands and their answers, until the client quits or asks for a dump.

Bytes go in, bytes come out, without a socket. A long answer comes in pieces, each made when the one before was taken.

Invariants: (V1) Each command gets one answer: rows, OK or an error; an error leaves the connection as it was. Only a
dump, what cannot be read, and QUIT end it. (V2) Of what a client says when it registers as a replica, only its server
id is kept: some send their password there. (V3) Memory is bounded by 4 MiB, what the session has set, and the largest
event or twice the largest row: a statement is read where it arrived, and large parts of a message are sent as they are.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from tidemark.engine.base.errors import Error, ValueOutOfRange
from tidemark.replication.binlog.charsets import LATIN1
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.answers import answer
from tidemark.replication.mysql_source.dump import DumpAsked
from tidemark.replication.mysql_source.flavors import MARIADB
from tidemark.replication.mysql_source.gtid_sets import GtidSet
from tidemark.replication.mysql_source.packets import (
    Buffer,
    Fields,
    Message,
    PacketReader,
    Refused,
    end,
    error,
    in_packets,
    length_of,
    ok,
    packet_header,
    packets,
    row,
)
from tidemark.replication.mysql_source.reader import NAME_BYTES_MAX
from tidemark.replication.mysql_source.row_texts import beyond_ascii
from tidemark.replication.mysql_source.served import StoredRows
from tidemark.replication.mysql_source.session import Session, Shown, text_of
from tidemark.replication.mysql_source.variables import variable_value

if TYPE_CHECKING:
    from tidemark.replication.mysql_source.dump import Dump
    from tidemark.replication.mysql_source.session import Value

STATEMENT_BYTES_MAX = 1 << 20
PIECE_BYTES = 64 << 10
HEARTBEAT_NS_MIN = 1_000_000
_FILE_BYTES_MAX = 512
_VARIABLE_BYTES_MAX = 64 << 10  # of a user variable by which a dump is asked for
_MALFORMED = (p.ER_MALFORMED_PACKET, "Malformed communication packet.")
_NO_CHECKSUM: Final = (
    "Slave can not handle replication events with the checksum that master is configured to log; the first event '{}'"
)
_BEYOND_ASCII = re.compile(rb"[^\x00-\x7f]")


class _Packets(tuple[Buffer, ...]):
    """Messages that are packets already, as their parts."""

    __slots__ = ()


class Conversation:
    """What one client says after its login. One thread at a time may call it; `close` it after the last call."""

    def __init__(self, session: Session, dump: Callable[[DumpAsked], Dump]) -> None:
        """dump: makes a dump, which begins with its first message."""
        self.session = session
        self._begin_dump = dump
        self._reader = PacketReader(STATEMENT_BYTES_MAX + 1)  # with the byte of the command
        self._sequence = 0  # of the next packet sent
        self._held: list[Buffer] = []
        self._held_bytes = 0
        self._server_id = 0
        self.dump: Dump | None = None  # set when one was asked for: no command is answered after it
        self.is_over = False

    def close(self) -> None:
        """Release the snapshot and the dump. A second call does nothing."""
        if self.dump is not None:
            self.dump.close()
        self.session.close()

    @property
    def is_in_message(self) -> bool:
        """Whether a part of a message has arrived."""
        return not self._reader.is_empty

    def receive(self, data: bytes) -> Iterator[Buffer]:
        """Take bytes and yield what to send, until `is_over` or a dump begins. What comes with the command for a dump
        is not read.
        """
        self._reader.feed(data)
        del data
        while not self.is_over and self.dump is None:
            try:
                message = self._next()
            except Refused as refused:  # what follows cannot be told apart
                self.is_over, self._sequence = True, 1
                yield packets(error(refused.code, refused.message), 1)
                return
            if message is None:
                return
            yield from self.pieces(self._answered(message))

    def seconds(self, name: str) -> float:
        """Return how long the client may be silent: `wait_timeout` between two commands, `net_read_timeout` in a
        message, `net_write_timeout` while it takes nothing.
        """
        value = variable_value(self.session, name)
        assert isinstance(value, int)
        return float(value)

    def pieces(self, messages: Iterable[Message]) -> Iterator[Buffer]:
        """Yield what to send of messages: small parts joined to pieces of PIECE_BYTES, each larger part as it is."""
        held = self._held
        for message in messages:
            size = sum(map(len, message))
            if size < PIECE_BYTES and not isinstance(message, _Packets):
                held.append(packet_header(size, self._sequence))
                held += message
                self._held_bytes += size
                self._sequence += 1
            else:
                yield from self._large(message, size)
            del message  # it is not kept while the next one is made
            if self._held_bytes >= PIECE_BYTES:
                yield self.rest()
        if held:
            yield self.rest()

    def _large(self, message: Message, size: int) -> Iterator[Buffer]:
        if not isinstance(message, _Packets):
            message = in_packets(message, self._sequence)
            self._sequence += size // p.PACKET_BYTES_MAX + 1
        for part in message:
            if len(part) < PIECE_BYTES:
                self._held.append(part)
                self._held_bytes += len(part)
                continue
            if self._held:
                yield self.rest()
            yield part

    def rest(self) -> bytes:
        """Return the bytes that wait for more."""
        data = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        return data

    # --- a dump -----------------------------------------------------------------------------------
    def end_of_dump(self) -> bytes:
        """Return the last packet of a dump that has come to its end."""
        return packets(end(), self._sequence)

    def refusal(self, refused: Refused) -> bytes:
        """Return the last packet of a dump that was refused or has failed."""
        return packets(error(refused.code, refused.message), self._sequence)

    def heard(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages in what a client sends during a dump. Raises: Refused if it cannot be read."""
        self._reader.feed(data)
        while True:
            self._reader.sequence = 0
            message = self._reader.next()
            if message is None:
                return
            yield message

    # --- packets ----------------------------------------------------------------------------------
    def _next(self) -> bytes | None:
        """Return the next command, None until it is whole. Raises: Refused."""
        self._reader.sequence = 0  # a message within the limit is one packet
        message = self._reader.next()
        if message is not None:
            self._sequence = self._reader.sequence
        return message

    # --- answers ----------------------------------------------------------------------------------
    def _answered(self, message: bytes) -> Iterator[Message]:
        """Yield the messages that answer a command."""
        try:
            yield from self._answer(message)
        except Refused as refused:
            yield (error(refused.code, refused.message),)
        except Error as failed:
            yield (error(p.ER_UNKNOWN_ERROR, failed.message),)

    def _answer(self, message: bytes) -> Iterator[Message]:
        command = message[:1]
        if command == bytes((p.COM_QUERY,)):
            yield from self._statement(memoryview(message)[1:])
            return
        rest = message[1:]
        if command == bytes((p.COM_PING,)):
            yield (ok(),)
        elif command == bytes((p.COM_INIT_DB,)):
            self.session.use(rest[:NAME_BYTES_MAX].decode("utf-8", "replace"))  # no database has a longer name
            yield (ok(),)
        elif command == bytes((p.COM_QUIT,)):
            self.is_over = True
        elif command == bytes((p.COM_REGISTER_SLAVE,)):
            self._server_id = Fields(rest, _MALFORMED).integer(4)
            yield (ok(),)
        elif command in (bytes((p.COM_BINLOG_DUMP,)), bytes((p.COM_BINLOG_DUMP_GTID,))):
            self.is_over = True  # a refusal is the last message
            self.session.close()  # a dump may last for months
            asked = self._asked_by_gtids(rest) if command[0] == p.COM_BINLOG_DUMP_GTID else self._asked(rest)
            self.dump = self._begin_dump(asked)
        elif command and command[0] in p.COM_STATEMENTS:
            raise Refused(p.ER_PREPARED, "This command is not supported in the prepared statement protocol yet")
        else:
            raise Refused(p.ER_UNKNOWN_COMMAND, "Unknown command")

    def _statement(self, statement: memoryview) -> Iterator[Message]:
        self._check_ascii([statement])
        found = answer(self.session, statement)
        if not isinstance(found, Shown):
            yield (ok(found.affected, len(self.session.warnings)),)
            return
        self._check_ascii(map(text_of, found.names))
        yield (length_of(len(found.names)),)
        yield from found.definitions()
        yield (end(),)
        if isinstance(found.rows, StoredRows):
            for piece, sequence in found.rows.packets(self._sequence, self._is_latin1):
                self._sequence = sequence
                yield _Packets(piece)
                del piece
        else:
            for values in found.rows:
                self._check_ascii(values)
                yield row(values)
                del values
        yield (end(),)

    @property
    def _is_latin1(self) -> bool:
        names = ("character_set_client", "character_set_results")
        return any(self.session.variables.get(name) == LATIN1 for name in names)

    def _check_ascii(self, texts: Iterable[Buffer | None]) -> None:
        """Refuse text that a client of latin1 would read, or has written, as other characters. Raises: Refused."""
        if self._is_latin1 and any(each is not None and _BEYOND_ASCII.search(each) for each in texts):
            raise beyond_ascii("The statement or its answer")

    # --- dumps ------------------------------------------------------------------------------------
    def _asked(self, rest: bytes) -> DumpAsked:
        fields = Fields(rest, _MALFORMED)
        position, flags, server_id = fields.integer(4), fields.integer(2), fields.integer(4)
        state = self._user_variable("slave_connect_state")
        is_by_domains = self.session.flavor is MARIADB and isinstance(state, str)
        return self._with_variables(
            _file_name(fields.take(fields.left)), position, flags, server_id, str(state) if is_by_domains else None
        )

    def _asked_by_gtids(self, rest: bytes) -> DumpAsked:
        fields = Fields(rest, _MALFORMED)
        flags, server_id = fields.integer(2), fields.integer(4)
        name = _file_name(fields.take(fields.integer(4)))
        position = fields.integer(8)
        gtids = None
        if flags & p.DUMP_THROUGH_GTID or fields.left:
            try:
                gtids = GtidSet.unpack(fields.take(fields.integer(4)))
            except ValueOutOfRange as malformed:
                raise Refused(p.ER_MALFORMED_PACKET, malformed.message) from None
        return self._with_variables(name, position, flags, server_id, gtids)

    def _with_variables(
        self, name: str, position: int, flags: int, server_id: int, gtids: GtidSet | str | None
    ) -> DumpAsked:
        checksum = self._user_variable("source_binlog_checksum", "master_binlog_checksum")
        kind = str(checksum or "").upper()
        if kind not in ("CRC32", "NONE"):
            # MariaDB's client connects again by itself when its link is cut between two statements of a replica, and
            # what the replica has set is gone. After another error than 1236 the replica begins anew, and sets all.
            is_replica = bool(server_id or self._server_id)
            code = p.ER_UNKNOWN_ERROR if is_replica and checksum is None else p.ER_SOURCE_FATAL
            raise Refused(code, _NO_CHECKSUM.format(f"{name}' at {position}"))
        try:
            known = uuid.UUID(str(self._user_variable("replica_uuid", "slave_uuid")))
        except ValueError:
            known = None
        period = self._user_variable("source_heartbeat_period", "master_heartbeat_period")
        return DumpAsked(
            server_id=server_id or self._server_id,
            uuid=known,
            file=name,
            position=position,
            gtids=gtids,
            is_non_blocking=bool(flags & p.DUMP_NON_BLOCK),
            has_checksum=kind == "CRC32",
            heartbeat_ns=max(period, HEARTBEAT_NS_MIN) if isinstance(period, int) and period > 0 else 0,
            is_semi_sync=self._user_variable("rpl_semi_sync_replica", "rpl_semi_sync_slave") in (1, "1"),
        )

    def _user_variable(self, *names: str) -> Value:
        """Return the value of the first of these user variables that is set. Raises: Refused if it is too long."""
        found = (self.session.variables.get(f"@{name}") for name in names)
        value = next((each for each in found if each is not None), None)
        if not isinstance(value, bytes):
            return value
        if len(value) > _VARIABLE_BYTES_MAX:
            raise Refused(*_MALFORMED)
        return value.decode("utf-8", "replace")


def _file_name(given: bytes) -> str:
    """Return the name of a file; some clients end it with zero bytes. Raises: Refused."""
    if len(given) > _FILE_BYTES_MAX:
        raise Refused(*_MALFORMED)
    return given.rstrip(b"\0").decode("utf-8", "replace")
