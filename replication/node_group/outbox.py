"""The queue of messages to one node: bounded, and small messages first.

There are two lanes, each in order: small messages, and groups of the log, which are sent in pieces. So a heartbeat
waits for one piece at most. A message for which there is no room is dropped; the view machines repeat all messages.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from tidemark.replication.wire.frame_layout import FRAME_NODE_MESSAGE, FRAME_NODE_PIECE
from tidemark.replication.wire.frames import Buffer, FrameWriter
from tidemark.replication.wire.pieces import frames_of

PIECE_BYTES = 256 << 10
SMALL_BYTES_MAX = 64 << 10  # of one small message, and of all that are sent at once
SMALL_LANE_BYTES = 256 << 10
LONG_LANE_BYTES = 16 << 20
SMALL, GROUPS = 0, 1

Message = list[Buffer]


class _Long(NamedTuple):
    """A message that is sent in pieces."""

    frames: Iterator[bytes]
    size: int


class Outbox:
    """Messages to one node. Any thread fills it, one thread empties it."""

    def __init__(self) -> None:
        self.dropped = 0
        self._mutex = threading.Lock()
        self._is_open = False
        self._lanes: tuple[deque[Message], ...] = (deque(), deque())
        self._bytes = [0, 0]
        self._long: _Long | None = None

    @property
    def waiting_bytes(self) -> int:
        return sum(self._bytes)

    def put(self, lane: int, message: Message) -> bool:
        """Queue a message; return False if there is no link or no room. An empty lane has room for any message. Never
        blocks.
        """
        size = sum(map(len, message))
        most = SMALL_LANE_BYTES if lane == SMALL else LONG_LANE_BYTES
        with self._mutex:
            if not self._is_open or (self._bytes[lane] and self._bytes[lane] + size > most):
                self.dropped += 1
                return False
            self._lanes[lane].append(message)
            self._bytes[lane] += size
            return True

    def open(self) -> None:
        """Accept messages from now on: there is a link."""
        with self._mutex:
            self._is_open = True

    def shut(self) -> None:
        """Drop waiting messages and accept none: there is no link."""
        with self._mutex:
            self._is_open = False
            self.dropped += sum(map(len, self._lanes)) + (self._long is not None)
            for lane in self._lanes:
                lane.clear()
            self._bytes = [0, 0]
            self._long = None

    def next(self, writer: FrameWriter) -> bytes:
        """Return the next bytes to send; empty if no message waits."""
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
                self._bytes[GROUPS] -= long.size
                self._long = None

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
        lane = self._lanes[GROUPS]
        if lane:
            message = lane.popleft()
            self._long = _Long(frames_of(writer, FRAME_NODE_PIECE, message, PIECE_BYTES), sum(map(len, message)))
