"""Calls and answers over one link: one call at a time, each a message in as many frames as it takes.

The side that serves carries a call out in the thread of the link, so what belongs to a thread there, a transaction
above all, belongs to the link; when the link ends, so does it. Invariants: (C1) a message is bounded, and judged before
it is kept, and what all links of a server hold together is bounded too (`memory.py`); (C2) a call whose answer did not
come is not sent again by anything in here: it may have been carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import (
    CallMemoryExhausted,
    Error,
    FrameRejected,
    LimitExceeded,
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
from tidemark.replication.wire.wire import HANDSHAKE_SECONDS, Met, TlsContext, Wake, Wire, call, tell, wait_readable

_log = logging.getLogger("tidemark.calls")

PIECE_BYTES = 256 << 10  # what a link keeps of a frame that has not come to its end
MESSAGE_BYTES_MAX = 256 << 20
STALL_SECONDS = 30.0  # of silence in the middle of a message, which holds memory that other links need
ERROR_CHARACTERS_MAX = 1_000
assert MESSAGE_BYTES_MAX + VALUE_BYTES_MAX + METADATA_BYTES_MAX * METADATA_FACTOR <= CALLS_BYTES_MAX
NO_STORE = "0" * 32
LINKS_MAX = 1_000  # each with a thread


@dataclass(frozen=True)
class Client:
    """One side of a link of calls: the store's UUID in hex at the side that serves, zeros at a client."""

    store: str = NO_STORE

    fields: ClassVar[dict[str, type]] = {"store": str}
    caller: ClassVar[str] = "client"
    called: ClassVar[str] = "server of calls"

    def check(self) -> None:
        """Raises: SchemaInvalid for what is no UUID."""
        if not is_store_id(self.store):
            raise SchemaInvalid("a store is named by the 32 digits of its UUID")

    def meet(self, content: dict[str, Any]) -> Self:
        """The other side. Raises: FrameRejected; PeerRefused if none of both has a store, or both have."""
        if not is_store_id(content["store"]):
            raise FrameRejected("a client of the handshake cannot be")
        if (content["store"] == NO_STORE) == (self.store == NO_STORE):
            raise PeerRefused("a client calls a store, and nobody else does")
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
        """Connect within so many seconds. Raises: PeerError in all its leaves."""
        self.met = call(address, Client(), secret, tls, clock, patience_s)
        _begin(self.met)
        self._messages = Pieces(FRAME_ANSWER, MESSAGE_BYTES_MAX)
        self.store: str = self.met.peer.store
        self.is_broken = False

    def ask(self, what: Any, silent_s: float | None = None) -> Any:
        """Have a call carried out; its result. silent_s: seconds the other side may be silent, None: as long as its
        machine answers. Raises: what it raised there; PeerError if the link broke: the call was carried out or not, and
        the link is of no more use; TypeMismatch, LimitExceeded if it cannot be sent, and nothing was.
        """
        message = pack(what)
        if len(message) > MESSAGE_BYTES_MAX:
            raise LimitExceeded(f"a call has {len(message)} bytes, more than {MESSAGE_BYTES_MAX}; divide it")
        wire = self.met.wire
        try:
            wire.connection.settimeout(silent_s)
            for frame in frames_of(wire.writer, FRAME_CALL, [message], PIECE_BYTES):
                wire.send(frame)
            answer = None
            while answer is None:
                for each in wire.reader.feed(wire.receive()):
                    answer = self._messages.take(each)
            wire.connection.settimeout(None)
            is_well, value = _parts_of(unpack(answer))
        except BaseException:  # Ctrl-C among others: the answer would be taken for that of the next call
            self.is_broken = True
            wire.close()
            raise
        if is_well:
            return value
        raise value

    def close(self) -> None:
        """Say goodbye."""
        if not self.is_broken:
            self.is_broken = True
            tell(self.met.wire, self.met.wire.writer.frame(FRAME_BYE, b""))
            self.met.wire.close()


def _begin(met: Met) -> None:
    """A link of calls: silent as long as it likes, and its frames are short."""
    met.wire.wait_long()
    met.wire.reader.payload_bytes_max = PIECE_BYTES + 1


def _parts_of(answer: Any) -> tuple[bool, Any]:
    """Whether a call went well, and what came of it. Raises: FrameRejected for what is no answer."""
    is_answer = isinstance(answer, list) and len(answer) == 2 and isinstance(answer[0], bool)
    if not is_answer or not (answer[0] or isinstance(answer[1], Error)):
        raise FrameRejected("what came is no answer to a call")
    return answer[0], answer[1]


def _refusal(error: Error) -> bytes:
    """An error as an answer; only its message if its evidence is too much to send."""
    try:
        answer = pack([False, error])
    except Rejected:
        answer = b""
    if 0 < len(answer) <= FREE_BYTES:
        return answer
    return pack([False, type(error)(error.message[:ERROR_CHARACTERS_MAX])])


class Abandoned(Exception):
    """The link is to end without an answer: whoever asked finds out from others what became of it."""


class Executor(Protocol):
    """Who carries out the calls of one link."""

    def answer(self, what: Any) -> Any:
        """What comes of a call. Raises: what it meets; Abandoned."""
        ...

    def close(self) -> None:
        """The link has ended, or a call of it found no room: so does its transaction."""
        ...


class CallServer:
    """Takes calls from any number of clients that know the secret, each with an executor of its own, until `close`."""

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
        """Listen. store: its UUID in hex. definitions: of a table by its name. Raises: PeerError if the address is
        taken.
        """
        self._executor = executor
        self._definitions = definitions
        self.memory = CallMemory()
        self._server = Server(address, Client(store), secret, tls, clock, self._serve, LINKS_MAX)
        self.address = self._server.address
        self._server.start()

    def cut(self) -> None:
        """End all links at once: calls under way go on, and nobody hears what came of them."""
        self._server.cut()

    def connections(self) -> dict[str, int]:
        """See `Server.status`."""
        return self._server.status()

    def close(self) -> None:
        """End all links, calls under way being carried out first."""
        self._server.close()

    def _serve(self, met: Met, wake: Wake) -> None:
        wire, share = met.wire, Share(self.memory)
        messages = Pieces(FRAME_CALL, MESSAGE_BYTES_MAX, share.take)
        _begin(met)
        executor = self._executor()
        frames = iter(met.early)
        try:
            while not self._server.is_closed:
                for frame in frames:
                    if frame.kind == FRAME_BYE:
                        return
                    answer = self._answer_to(frame, messages, executor, share)
                    if answer is not None:
                        for data in frames_of(wire.writer, FRAME_ANSWER, [answer], PIECE_BYTES):
                            wire.send(data)
                        share.release()
                frames = self._next_frames(wire, wake, messages)
        except Abandoned as reason:
            _log.info("link of a client ended: %s", reason)
        finally:
            share.release()
            executor.close()

    def _next_frames(self, wire: Wire, wake: Wake, messages: Pieces) -> Iterator[Frame]:
        if wait_readable(wire, wake, STALL_SECONDS if messages.is_begun else None):
            return wire.reader.feed(wire.receive())
        if messages.is_begun and not self._server.is_closed:
            raise PeerTimeout(f"a client sent nothing for {STALL_SECONDS:.0f} s in the middle of a message")
        return iter(())

    def _answer_to(self, frame: Frame, messages: Pieces, executor: Executor, share: Share) -> bytes | None:
        """The answer to the call a frame ends, if it does."""
        try:
            message = messages.take(frame)
            return None if message is None else self._answered(executor, message, share)
        except CallMemoryExhausted as error:
            executor.close()
            return _refusal(error)

    def _answered(self, executor: Executor, message: bytearray, share: Share) -> bytes:
        try:
            value = unpack(message, self._definitions, share.take)
            share.give(len(message))
            message.clear()
            answer = pack([True, executor.answer(value)])
            if len(answer) > MESSAGE_BYTES_MAX:
                raise LimitExceeded(f"an answer has {len(answer)} bytes, more than {MESSAGE_BYTES_MAX}; ask for less")
            del value
            # A call that changed something has a short answer, and now room for it: it is never called undone.
            share.release()
            share.take(len(answer))
            return answer
        except CallMemoryExhausted:
            raise
        except Error as error:
            return _refusal(error)
