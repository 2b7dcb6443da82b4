"""Calls and answers over one link: one call at a time, each a message in one frame or more.

The serving side executes a call in the thread of the link. So the state of that thread, above all a transaction,
belongs to the link and ends with it. Invariants: (C1) A message is bounded, and checked before it is stored. The memory
of all links of a server together is bounded too (`memory.py`). (C2) A call whose answer did not arrive is never sent
again, because it may have been executed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import (
    CallMemoryExhausted,
    Error,
    FrameRejected,
    LimitExceeded,
    PeerError,
    PeerRefused,
    PeerTimeout,
    Rejected,
    SchemaInvalid,
)
from tidemark.replication.calls.memory import CALLS_BYTES_MAX, FREE_BYTES, CallMemory, Share
from tidemark.replication.calls.values import VALUE_BYTES_MAX, Definitions, pack, unpack
from tidemark.replication.wire.arrow_streams import METADATA_BYTES_MAX, METADATA_FACTOR
from tidemark.replication.wire.frame_layout import FRAME_ANSWER, FRAME_BYE, FRAME_CALL
from tidemark.replication.wire.frames import Frame
from tidemark.replication.wire.handshake import is_store_id
from tidemark.replication.wire.pieces import Pieces, frames_of
from tidemark.replication.wire.server import Server
from tidemark.replication.wire.wire import (
    HANDSHAKE_SECONDS,
    OpenLink,
    TlsContext,
    Wake,
    Wire,
    call,
    send_last_frame,
    wait_readable,
)

_log = logging.getLogger("tidemark.calls")

PIECE_BYTES = 256 << 10  # what a link buffers of an incomplete frame
MESSAGE_BYTES_MAX = 256 << 20
WATCH_SECONDS = 2.0  # of silence of the other side, after which a client asks whether it is still in charge
STALL_SECONDS = 30.0  # limit of silence within a message, which holds memory that other links need
UNTAKEN_BYTES = 4 << 10  # of an answer: the buffers of any socket take them at once
ERROR_CHARACTERS_MAX = 1_000
assert MESSAGE_BYTES_MAX + VALUE_BYTES_MAX + METADATA_BYTES_MAX * METADATA_FACTOR <= CALLS_BYTES_MAX
NO_STORE = "0" * 32
LINKS_MAX = 1_000  # each with a thread


@dataclass(frozen=True)
class Client:
    """One side of a link of calls. `store` is the store's UUID in hex at the serving side, zeros at a client."""

    store: str = NO_STORE

    fields: ClassVar[dict[str, type]] = {"store": str}
    caller: ClassVar[str] = "client"
    called: ClassVar[str] = "server of calls"

    def check(self) -> None:
        """Check the UUID. Raises: SchemaInvalid."""
        if not is_store_id(self.store):
            raise SchemaInvalid("a store is named by the 32 digits of its UUID")

    def peer_from(self, content: dict[str, Any]) -> Self:
        """Return the other side, from its part of the handshake. Raises: FrameRejected; PeerRefused if neither side has
        a store, or both have.
        """
        if not is_store_id(content["store"]):
            raise FrameRejected("the client in the handshake is invalid")
        if (content["store"] == NO_STORE) == (self.store == NO_STORE):
            raise PeerRefused("a client calls a store, but both sides are clients or both are stores")
        return type(self)(content["store"])


class CallLink:
    """The client's end of one link. One thread at a time may use it."""

    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        tls: TlsContext | None,
        clock: Clock,
        patience_s: float = HANDSHAKE_SECONDS,
    ) -> None:
        """Connect within `patience_s` seconds. Raises: PeerError and its subclasses."""
        self.opened = call(address, Client(), secret, tls, clock, patience_s)
        try:
            _begin(self.opened)
        except BaseException:  # the other side has died since the handshake
            self.opened.wire.close()
            raise
        self._messages = Pieces(FRAME_ANSWER, MESSAGE_BYTES_MAX)
        self.store: str = self.opened.peer.store
        # Called after each WATCH_SECONDS of silence during a call; it raises PeerError to end the link.
        self.watch: Callable[[], None] = lambda: None
        self.is_broken = False
        self._use = threading.Lock()  # held during a call

    def ask(self, what: Any, silent_s: float | None = None) -> Any:
        """Send a call, and return its result. silent_s: seconds for which the other side may be silent; None: as long
        as its machine is reachable. Raises: the call's own error; PeerError if the link broke, after which the call may
        have been executed and the link is unusable; TypeMismatch, LimitExceeded before any byte is sent.
        """
        message = pack(what)
        if len(message) > MESSAGE_BYTES_MAX:
            raise LimitExceeded(f"a call has {len(message)} bytes, more than {MESSAGE_BYTES_MAX}; split it")
        with self._use:
            is_well, value = self._answer(message, silent_s)
        if is_well:
            return value
        raise value

    def _answer(self, message: bytes, silent_s: float | None) -> tuple[bool, Any]:
        if self.is_broken:
            raise PeerError("the link has ended; connect again")
        wire = self.opened.wire
        try:
            wire.connection.settimeout(silent_s)
            for frame in frames_of(wire.writer, FRAME_CALL, [message], PIECE_BYTES):
                wire.send(frame)
            if silent_s is None:
                wire.connection.settimeout(WATCH_SECONDS)
            answer = None
            while answer is None:
                try:
                    data = wire.receive()
                except PeerTimeout:
                    if silent_s is not None:
                        raise
                    self.watch()
                    continue
                for each in wire.reader.feed(data):
                    answer = self._messages.take(each)
            wire.connection.settimeout(None)
            return parts_of(unpack(answer))
        except BaseException:  # also Ctrl-C: a late answer would be taken for the answer to the next call
            self.is_broken = True
            wire.close()
            raise

    def end(self) -> None:
        """End the link from any thread: a call under way raises PeerError; without one, say goodbye."""
        if self._use.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._use.release()
        else:
            self.opened.wire.cut()

    def close(self) -> None:
        """End the link. A second call does nothing."""
        if not self.is_broken:
            self.is_broken = True
            send_last_frame(self.opened.wire, self.opened.wire.writer.frame(FRAME_BYE, b""))
            self.opened.wire.close()


def _begin(opened: OpenLink) -> None:
    """Set up a link for calls: it may be silent for any time, and its frames are short."""
    opened.wire.wait_long()
    opened.wire.reader.payload_bytes_max = PIECE_BYTES + 1


def parts_of(answer: Any) -> tuple[bool, Any]:
    """Return whether a call succeeded, and its result or error. Raises: FrameRejected for an invalid answer."""
    is_answer = isinstance(answer, list) and len(answer) == 2 and isinstance(answer[0], bool)
    if not is_answer or not (answer[0] or isinstance(answer[1], Error)):
        raise FrameRejected("the message received is not an answer to a call")
    return answer[0], answer[1]


def _send(wire: Wire, answer: bytes, seconds: float | None) -> None:
    """Send an answer. seconds: how long a client that holds locks may take nothing of it; None: any time. Raises:
    PeerTimeout, PeerError.
    """
    is_limited = seconds is not None and len(answer) > UNTAKEN_BYTES
    if is_limited:
        wire.connection.settimeout(seconds)
    for data in frames_of(wire.writer, FRAME_ANSWER, [answer], PIECE_BYTES):
        wire.send(data)
    if is_limited:
        wire.connection.settimeout(None)


def refusal_of(error: Error) -> bytes:
    """Pack an error as an answer; without its evidence if that is too large to send."""
    try:
        answer = pack([False, error])
    except Rejected:
        answer = b""
    if 0 < len(answer) <= FREE_BYTES:
        return answer
    return pack([False, type(error)(error.message[:ERROR_CHARACTERS_MAX])])


class Abandoned(Exception):
    """Raised to end the link without an answer: the client learns the outcome from other nodes."""


class Executor(Protocol):
    """Executes the calls of one link."""

    def answer(self, what: Any) -> Any:
        """Execute a call and return its result. Raises: any error of the call; Abandoned."""
        ...

    def close(self) -> None:
        """Roll back the transaction of the link, because the link has ended or one of its calls got no memory."""
        ...

    def attach(self, client: str, wake: Callable[[], None], cut: Callable[[], None]) -> None:
        """Called before the first call. client: its address, "host:port". wake: makes the thread of the link call
        `idle`. cut: ends the link.
        """
        ...

    def detach(self) -> None:
        """Called after the link has ended, after `close`."""
        ...

    def idle_s(self) -> float | None:
        """Return the seconds after which `idle` must be called if no call arrives; None: never."""
        ...

    def idle(self) -> None:
        """Called when no call has arrived for that time, and after `wake`."""
        ...


class CallServer:
    """Serves calls of up to LINKS_MAX clients that know the secret, each with its own executor, until `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        store: str,
        secret: bytes,
        tls: TlsContext | None,
        clock: Clock,
        executor: Callable[[], Executor],
        definitions: Definitions,
    ) -> None:
        """Listen. store: the UUID of the store in hex. definitions: returns the definition of a table by its name.
        Raises: PeerError if the address is in use.
        """
        self._executor = executor
        self._definitions = definitions
        self.memory = CallMemory()
        self._server = Server(address, Client(store), secret, tls, clock, self._serve, LINKS_MAX)
        self.address = self._server.address
        self._server.start()

    def cut(self) -> None:
        """End all links at once. Calls in progress continue, and their outcome is not reported."""
        self._server.cut()

    def connections(self) -> dict[str, int]:
        """See `Server.status`."""
        return self._server.status()

    def close(self) -> None:
        """End all links after their calls in progress."""
        self._server.close()

    def _serve(self, opened: OpenLink, wake: Wake) -> None:
        wire, share = opened.wire, Share(self.memory)
        messages = Pieces(FRAME_CALL, MESSAGE_BYTES_MAX, share.take)
        _begin(opened)
        executor = self._executor()
        frames = iter(opened.early)
        try:
            executor.attach(wire.peer_address(), wake, wire.cut)
            while not self._server.is_closed:
                for frame in frames:
                    if frame.kind == FRAME_BYE:
                        return
                    answer = self._answer_to(frame, messages, executor, share)
                    if answer is not None:
                        _send(wire, answer, executor.idle_s())
                        share.release()
                frames = self._next_frames(wire, wake, messages, executor)
        except Abandoned as reason:
            _log.info("link of a client ended: %s", reason)
        finally:
            share.release()
            executor.close()
            executor.detach()

    def _next_frames(self, wire: Wire, wake: Wake, messages: Pieces, executor: Executor) -> Iterator[Frame]:
        if wait_readable(wire, wake, STALL_SECONDS if messages.is_begun else executor.idle_s()):
            return wire.reader.feed(wire.receive())
        if messages.is_begun and not self._server.is_closed:
            raise PeerTimeout(f"a client sent nothing for {STALL_SECONDS:.0f} s in the middle of a message")
        executor.idle()
        return iter(())

    def _answer_to(self, frame: Frame, messages: Pieces, executor: Executor, share: Share) -> bytes | None:
        """Return the answer to the call that a frame completes; None if it completes none."""
        try:
            message = messages.take(frame)
            return None if message is None else executed(executor, message, self._definitions, share)
        except CallMemoryExhausted as error:
            executor.close()
            return refusal_of(error)


def executed(executor: Executor, message: bytearray, definitions: Definitions, share: Share) -> bytes:
    """Execute a call, and return the message that answers it. Raises: CallMemoryExhausted, Abandoned."""
    try:
        value = unpack(message, definitions, share.take)
        share.free(len(message))
        message.clear()
        answer = pack([True, executor.answer(value)])
        if len(answer) > MESSAGE_BYTES_MAX:
            raise LimitExceeded(f"an answer has {len(answer)} bytes, more than {MESSAGE_BYTES_MAX}; ask for less")
        del value
        # Released first, so that a short answer always fits. A call that changed something has a short answer, so
        # it is never reported as rolled back.
        share.release()
        share.take(len(answer))
        return answer
    except CallMemoryExhausted:
        raise
    except Error as error:
        return refusal_of(error)
