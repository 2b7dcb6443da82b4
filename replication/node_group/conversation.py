"""A separate link between two nodes for a node restart, on which a sender waits for a slow receiver.

One thread at a time uses it; any thread may call `close`. Unread bytes fill the buffers of TCP, and then `send` waits.
So memory is bounded: one message on each side, and about `EARLY_BYTES_MAX` that arrived while a message was being sent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import LimitExceeded, PeerError
from tidemark.replication.node_group.codec import MESSAGE_BYTES_MAX, RESTART_MESSAGES, decode, encode
from tidemark.replication.node_group.outbox import PIECE_BYTES
from tidemark.replication.node_group.party import NodeParty
from tidemark.replication.wire.frame_layout import FRAME_ERROR, FRAME_NODE_PIECE
from tidemark.replication.wire.handshake import error_payload, refusal_of
from tidemark.replication.wire.pieces import Pieces, frames_of
from tidemark.replication.wire.wire import OpenLink, Wake, send_last_frame, wait_readable

EARLY_BYTES_MAX = 1 << 20  # of messages received while one was being sent; more stays in the buffers of TCP
UNTAKEN_MS = 60_000  # a step of a node restart may take long


class Peer(NamedTuple):
    """The other side: the number of its node; the UUID of its store, zeros if it has none; the newest view that it
    knows, 0 if it knows of no group; whether it is about to found one.
    """

    node: int
    store: bytes
    view: int = 0
    founds: bool = False


class Conversation(Closable):
    """One end of a conversation. After either side has ended it, calls that send or receive raise PeerError."""

    def __init__(self, opened: OpenLink, wake: Wake, clock: Clock, closed: Callable[[Conversation], None]) -> None:
        """closed: called when this end is closed."""
        party: NodeParty = opened.peer
        self.peer = Peer(party.node, bytes.fromhex(party.store), party.view, party.founds)
        self._wire = opened.wire
        self._wake = wake
        self._clock = clock
        self._closed = closed
        self._frames = iter(opened.early)
        self._pieces = Pieces(FRAME_NODE_PIECE, MESSAGE_BYTES_MAX)
        self._early: deque[tuple[Any, int]] = deque()
        self._early_bytes = 0
        self._use = threading.Lock()
        self._is_closed = False
        self._end: PeerError | None = None  # the other side has ended it, after everything received so far
        self._wire.send_at_once()
        self._wire.wait_long(UNTAKEN_MS)

    def send(self, message: Any) -> None:
        """Send a message. On return TCP has it, and the caller may change its words.

        If the other side has ended the conversation, but messages that it sent before are still unread here, this
        message is lost; `receive` returns those, then raises the end. Raises: PeerError, LimitExceeded.
        """
        parts = encode(message)
        if sum(map(len, parts)) > MESSAGE_BYTES_MAX:
            raise LimitExceeded(f"a {type(message).__name__} is longer than {MESSAGE_BYTES_MAX >> 20} MiB")
        with self._use:
            for frame in frames_of(self._wire.writer, FRAME_NODE_PIECE, parts, PIECE_BYTES):
                self._check()
                if self._end is not None:
                    return
                try:
                    self._wire.send_and_take(frame, self._pull, self._wants)
                except PeerError as error:
                    while self._pull():
                        pass
                    self._end = self._end or error
            self._check()

    def receive(self) -> Any:
        """Return the next message; wait for it while the other side is alive. Raises: PeerError, FrameRejected."""
        with self._use:
            while not self._early:
                self._wait(None)
            return self._pop()

    def try_receive(self) -> Any | None:
        """Return the next message, None if none has arrived yet. Raises: PeerError, FrameRejected."""
        with self._use:
            while not self._early and self._pull():
                pass
            self._check()
            return self._pop() if self._early else None

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for a message; return whether one has arrived. May return early, and does so after
        `notify`.

        Raises: PeerError, FrameRejected.
        """
        with self._use:
            if not self._early:
                self._wait(seconds)
            return bool(self._early)

    def notify(self) -> None:
        """Make `wait` return, because there is something to send. Any thread may call it."""
        self._wake()

    def close(self, error: PeerError | None = None) -> None:
        """End the conversation, from any thread. Messages sent before still arrive, and then `error`, which the other
        side's next call raises. If another thread is using this end, the link is cut instead. A second call does
        nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._wake()
        if self._use.acquire(blocking=False):
            if error is not None:
                send_last_frame(self._wire, self._wire.writer.frame(FRAME_ERROR, error_payload(error)))
            self._wire.finish(self._clock)
        else:
            self._wire.cut()
            self._use.acquire()
            self._wire.close()
        self._use.release()
        self._closed(self)

    def _check(self) -> None:
        if self._is_closed:
            raise PeerError("this side has ended the conversation")
        if self._end is not None and not self._early:
            raise self._end

    def _wait(self, seconds: float | None) -> None:
        self._check()
        if not self._take(b"") and wait_readable(self._wire, self._wake, seconds):
            self._pull()
        self._check()

    def _wants(self) -> bool:
        return self._end is None and self._early_bytes < EARLY_BYTES_MAX

    def _pull(self) -> bool:
        """Take everything that has arrived; return whether there was anything. An error is kept in `_end`, because the
        messages before it are still delivered.
        """
        if self._end is not None or self._is_closed:
            return False
        try:
            data = self._wire.receive_ready()
        except PeerError as error:
            self._end = error
            return False
        return self._take(data)

    def _take(self, data: bytes) -> bool:
        found = bool(data)
        if data:
            self._frames = self._wire.reader.feed(data)
        try:
            for frame in self._frames:
                found = True
                if frame.kind == FRAME_ERROR:
                    raise refusal_of(frame.payload)
                message = self._pieces.take(frame)
                if message is not None:
                    self._early.append((decode(message, RESTART_MESSAGES), len(message)))
                    self._early_bytes += len(message)
        except PeerError as error:
            self._end = error
        return found

    def _pop(self) -> Any:
        message, size = self._early.popleft()
        self._early_bytes -= size
        return message
