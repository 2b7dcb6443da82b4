"""Messages longer than a frame: split into frames, the last of which is marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tidemark.engine.base.errors import Error, FrameRejected
from tidemark.replication.wire.frames import Buffer, Frame, FrameWriter

_MORE, _LAST = b"\x00", b"\x01"


class Pieces:
    """Assembles messages from the frames of one kind, as they arrive."""

    def __init__(self, kind: int, most_bytes: int, room: Callable[[int], None] = lambda count: None) -> None:
        """most_bytes: limit of a message; a longer one is refused before more of it is stored. room: called with the
        number of bytes by which a message grows; if it raises an error, the message is dropped, and the error is raised
        at the end of the message.
        """
        self._kind = kind
        self._most_bytes = most_bytes
        self._room = room
        self._held = bytearray()
        self._received_bytes = 0
        self._refusal: Error | None = None

    @property
    def is_begun(self) -> bool:
        """Whether a message has begun to arrive, and its end has not."""
        return self._received_bytes > 0

    def take(self, frame: Frame) -> bytearray | None:
        """Return the message that this frame completes, or None; the caller owns the buffer. Raises: FrameRejected;
        errors of `room`.
        """
        mark = frame.payload[:1]
        if frame.kind != self._kind or mark not in (_MORE, _LAST):
            raise FrameRejected(f"a frame of kind {frame.kind} is not allowed here", kind=frame.kind)
        self._received_bytes += len(frame.payload) - 1
        if self._received_bytes > self._most_bytes:
            raise FrameRejected(f"a message is longer than {self._most_bytes >> 20} MiB; split it")
        self._keep(frame.payload)
        if mark == _MORE:
            return None
        message, refusal = self._held, self._refusal
        self._held, self._refusal, self._received_bytes = bytearray(), None, 0
        if refusal is not None:
            raise refusal
        return message

    def _keep(self, piece: bytes) -> None:
        if self._refusal is not None:
            return
        try:
            self._room(len(piece) - 1)
        except Error as error:
            self._refusal, self._held = error, bytearray()
            return
        with memoryview(piece) as payload:
            self._held += payload[1:]


def frames_of(writer: FrameWriter, kind: int, message: Sequence[Buffer], piece_bytes: int) -> Iterator[bytes]:
    """Yield the frames of a message given in parts. Each is built on demand, so other frames may be sent in between."""
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
