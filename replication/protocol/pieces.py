"""Messages longer than a frame: in as many frames as it takes, the last one marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.errors import FrameRejected
from replication.protocol.frames import Buffer, Frame, FrameWriter

_MORE, _LAST = b"\x00", b"\x01"


class Pieces:
    """Messages out of the frames of one kind, as they come."""

    def __init__(self, kind: int, most_bytes: int) -> None:
        """most_bytes: of a message; a longer one is refused before more of it is kept."""
        self._kind = kind
        self._most_bytes = most_bytes
        self._held = bytearray()

    def take(self, frame: Frame) -> bytearray | None:
        """The message this frame ends, if it does: a buffer of the caller's own. Raises: FrameRejected."""
        mark = frame.payload[:1]
        if frame.kind != self._kind or mark not in (_MORE, _LAST):
            raise FrameRejected(f"a frame of kind {frame.kind} has no place here", kind=frame.kind)
        if len(self._held) + len(frame.payload) - 1 > self._most_bytes:
            raise FrameRejected(f"a message is longer than {self._most_bytes >> 20} MiB; divide it")
        with memoryview(frame.payload) as payload:
            self._held += payload[1:]
        if mark == _MORE:
            return None
        message, self._held = self._held, bytearray()
        return message


def frames_of(writer: FrameWriter, kind: int, message: Sequence[Buffer], piece_bytes: int) -> Iterator[bytes]:
    """The frames of a message in parts; each is made when it is asked for, and other frames may go in between."""
    rest_bytes = sum(map(len, message))
    parts = iter(message)
    part = memoryview(b"")
    while True:
        piece: list[Buffer] = []
        room = min(piece_bytes, rest_bytes)
        rest_bytes -= room
        while room:
            while not len(part):
                part = memoryview(next(parts))
            piece.append(part[:room])
            part = part[len(piece[-1]) :]
            room -= len(piece[-1])
        yield writer.frame(kind, _MORE if rest_bytes else _LAST, *piece)
        if not rest_bytes:
            return
