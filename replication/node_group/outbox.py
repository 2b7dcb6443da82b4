"""What waits to be sent to one node: bounded, and small messages first.

Three lanes, each in its order: small messages; groups of the log; parts of files. A heartbeat so waits for no more than
the piece that is under way. Groups and files take turns. What does not fit is dropped: all that the view machines say
is said again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from engine.layout.frame import FRAME_NODE_MESSAGE, FRAME_NODE_PIECE
from replication.protocol.frames import Buffer, FrameWriter
from replication.protocol.pieces import frames_of

PIECE_BYTES = 256 << 10
SMALL_BYTES_MAX = 64 << 10  # of one small message, and what of them goes out at once
SMALL_LANE_BYTES = 256 << 10
LONG_LANE_BYTES = 16 << 20
SMALL, GROUPS, FILES = 0, 1, 2

Message = list[Buffer]


class _Long(NamedTuple):
    """A message that goes out in pieces."""

    frames: Iterator[bytes]
    lane: int
    size: int


class Outbox:
    """Messages to one node. Filled by any thread, emptied by one."""

    def __init__(self) -> None:
        self.dropped = 0
        self._mutex = threading.Condition()  # notified when there is room, or no link
        self._is_open = False
        self._lanes: tuple[deque[Message], ...] = (deque(), deque(), deque())
        self._bytes = [0, 0, 0]
        self._long: _Long | None = None
        self._turn = GROUPS

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that wait."""
        return sum(self._bytes)

    def put(self, lane: int, message: Message, seconds: float = 0.0) -> bool:
        """Let a message wait, unless there is no link or, for so long, no room. One alone always has room."""
        size = sum(map(len, message))
        most = SMALL_LANE_BYTES if lane == SMALL else LONG_LANE_BYTES

        def has_room() -> bool:
            return not self._is_open or not self._bytes[lane] or self._bytes[lane] + size <= most

        with self._mutex:
            if not (has_room() or (seconds and self._mutex.wait_for(has_room, seconds))) or not self._is_open:
                self.dropped += 1
                return False
            self._lanes[lane].append(message)
            self._bytes[lane] += size
            return True

    def open(self) -> None:
        """There is a link."""
        with self._mutex:
            self._is_open = True

    def shut(self) -> None:
        """There is none: what waits is dropped."""
        with self._mutex:
            self._is_open = False
            self.dropped += sum(map(len, self._lanes)) + (self._long is not None)
            for lane in self._lanes:
                lane.clear()
            self._bytes = [0, 0, 0]
            self._long = None
            self._mutex.notify_all()

    def next(self, writer: FrameWriter) -> bytes:
        """The bytes that go out next, nothing if nothing waits."""
        while True:
            with self._mutex:
                small = self._take_small()
                if not small and self._long is None:
                    self._begin_long(writer)
                long = self._long
            if small:
                return b"".join(writer.frame(FRAME_NODE_MESSAGE, *each) for each in small)
            if long is None:
                return b""
            frame = next(long.frames, b"")
            if frame:
                return frame
            with self._mutex:
                self._bytes[long.lane] -= long.size
                self._long = None
                self._mutex.notify_all()

    def _take_small(self) -> list[Message]:
        found: list[Message] = []
        size = 0
        lane = self._lanes[SMALL]
        while lane and size < SMALL_BYTES_MAX:
            found.append(lane.popleft())
            size += sum(map(len, found[-1]))
        self._bytes[SMALL] -= size
        return found

    def _begin_long(self, writer: FrameWriter) -> None:
        """Groups and files in turns: neither waits for the other's end."""
        for lane in (self._turn, GROUPS + FILES - self._turn):
            if self._lanes[lane]:
                message = self._lanes[lane].popleft()
                self._turn = GROUPS + FILES - lane
                frames = frames_of(writer, FRAME_NODE_PIECE, message, PIECE_BYTES)
                self._long = _Long(frames, lane, sum(map(len, message)))
                return
