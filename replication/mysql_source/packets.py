"""Packets: four bytes of length and sequence, then the payload; and the fields in a payload.

A message of 16 MiB or more comes in several packets. The reader counts what a message may still take before it takes
it, so memory is bounded by `limit_bytes` whatever the lengths in headers say. A message to send is a sequence of
buffers, so that a large value or event is never copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tidemark.engine.base.errors import PeerError
from tidemark.replication.mysql_source import protocol_layout as p

HEADER_BYTES = 4
Buffer: TypeAlias = bytes | memoryview
Message: TypeAlias = Sequence[Buffer]  # the parts of one message, one after the other


class Refused(PeerError):
    """What a client did is answered with an error of the protocol, which ends the connection."""

    def __init__(self, code: tuple[int, str], text: str) -> None:
        super().__init__(text, errno=code[0])
        self.code = code


def printable(text: str) -> str:
    """Return text of a client for a message or a log: one line."""
    return "".join(each if each.isprintable() else "?" for each in text)


# --- reading --------------------------------------------------------------------------------------
class PacketReader:
    """Joins bytes into messages. A command begins a new count of packets; answers to the server's packets continue
    it.
    """

    def __init__(self, limit_bytes: int) -> None:
        """limit_bytes: of one message; its owner may change it between messages."""
        self.limit_bytes = limit_bytes
        self.sequence = 0  # of the next packet, of either side
        self._bytes = bytearray()
        self._message = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether nothing has arrived that is not part of a message that was returned."""
        return not self._bytes and not self._message

    @property
    def wanted(self) -> int:
        """How many bytes to read next: no byte past the message, which may be of TLS and not of packets."""
        if len(self._bytes) < HEADER_BYTES:
            return HEADER_BYTES - len(self._bytes)
        return HEADER_BYTES + int.from_bytes(self._bytes[:3], "little") - len(self._bytes)

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def next(self) -> bytes | None:
        """Return the next message, None until it is whole. Raises: Refused."""
        while len(self._bytes) >= HEADER_BYTES:
            length = int.from_bytes(self._bytes[:3], "little")
            if self._bytes[3] != self.sequence:
                raise Refused(p.ER_PACKETS_OUT_OF_ORDER, "Got packets out of order")
            if len(self._message) + length > self.limit_bytes:
                raise Refused(p.ER_PACKET_TOO_LARGE, "Got a packet bigger than 'max_allowed_packet' bytes")
            if len(self._bytes) < HEADER_BYTES + length:
                return None
            with memoryview(self._bytes) as arrived:
                payload = bytes(arrived[HEADER_BYTES : HEADER_BYTES + length])
            del self._bytes[: HEADER_BYTES + length]
            self.sequence = self.sequence + 1 & 0xFF
            if length < p.PACKET_BYTES_MAX and not self._message:
                return payload
            self._message += payload
            if length < p.PACKET_BYTES_MAX:
                message = bytes(self._message)
                self._message.clear()
                return message
        return None


class Fields:
    """Reads the fields of a message in order. Every method raises Refused past the end."""

    def __init__(
        self, message: bytes, malformed: tuple[tuple[int, str], str] = (p.ER_HANDSHAKE, "Bad handshake")
    ) -> None:
        """malformed: the error, number and text, of a message that is too short."""
        self._message = message
        self._malformed = malformed
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._message) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise Refused(*self._malformed)
        self._at += count
        return self._message[self._at - count : self._at]

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def terminated(self) -> bytes:
        """Return the bytes before the next zero byte, and pass it."""
        end = self._message.find(b"\0", self._at)
        if end < 0:
            raise Refused(*self._malformed)
        found = self._message[self._at : end]
        self._at = end + 1
        return found

    def counted(self) -> bytes:
        """Return bytes with their length before them."""
        first = self.integer(1)
        sizes = {0xFC: 2, 0xFD: 3, 0xFE: 8}
        if first in (p.NULL, 0xFF):
            raise Refused(*self._malformed)
        return self.take(self.integer(sizes[first]) if first in sizes else first)


# --- writing --------------------------------------------------------------------------------------
def in_packets(message: Message, sequence: int) -> list[Buffer]:
    """Return a message as parts of packets; the first packet has this sequence number. Nothing is copied."""
    left = sum(map(len, message))
    if left < p.PACKET_BYTES_MAX:
        return [packet_header(left, sequence), *message]
    found: list[Buffer] = []
    room = p.PACKET_BYTES_MAX
    found.append(packet_header(room, sequence))
    for part in message:
        rest = memoryview(part)
        while len(rest) >= room:  # the packet is full, and another one follows, if only to say that it is the last
            found.append(rest[:room])
            rest, left, sequence = rest[room:], left - p.PACKET_BYTES_MAX, sequence + 1
            room = p.PACKET_BYTES_MAX
            found.append(packet_header(min(left, room), sequence))
        if len(rest):
            found.append(rest)
            room -= len(rest)
    return found


def packet_header(size: int, sequence: int) -> bytes:
    """Return the bytes before a packet of a size."""
    return (size | (sequence & 0xFF) << 24).to_bytes(HEADER_BYTES, "little")


def packets(message: bytes, sequence: int) -> bytes:
    """Return a message as packets; the first has this sequence number."""
    return b"".join(in_packets((message,), sequence))


def length_of(value: int) -> bytes:
    """Return an integer of variable length."""
    if value < p.NULL:
        return bytes((value,))
    for first, size in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        if value < 1 << 8 * size:
            return bytes((first,)) + value.to_bytes(size, "little")
    raise OverflowError(value)


def end() -> bytes:
    """Return the message after the columns and after the rows of an answer, and after the last event of a dump."""
    return bytes((p.END,)) + bytes(2) + p.STATUS_AUTOCOMMIT.to_bytes(2, "little")


def row(values: Sequence[bytes | None]) -> Message:
    """Return a row of an answer, from the texts of its values."""
    parts: list[Buffer] = []
    for each in values:
        parts += (b"\xfb",) if each is None else (length_of(len(each)), each)
    return parts


def ok(affected: int = 0, warnings: int = 0) -> bytes:
    status = p.STATUS_AUTOCOMMIT.to_bytes(2, "little")
    return bytes((p.OK,)) + length_of(affected) + b"\0" + status + min(warnings, 0xFFFF).to_bytes(2, "little")


def error(code: tuple[int, str], text: str) -> bytes:
    number, state = code
    return bytes((p.ERROR,)) + number.to_bytes(2, "little") + b"#" + state.encode() + text.encode()
