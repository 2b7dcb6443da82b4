"""Reads of a store that another process of this machine has open, through `control.sock` in the store's directory.

The client sends the command `read` (`control_socket.py`); the answer is the UUID of the store. From then on both sides
send messages: 8 bytes with the length, the least first, and a value of `replication/calls/values.py`. The calls are
those of `executor.py` that change nothing, one at a time; their state, above all a snapshot, ends with the connection.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.control_socket import READ, Connection, converse
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import (
    CallMemoryExhausted,
    FrameRejected,
    PeerError,
    ReadOnly,
    StoreClosed,
)
from tidemark.remote.database import RemoteDatabase
from tidemark.remote.executor import OF_ROWS, OF_TABLE, READING, Executor
from tidemark.remote.links import Address, Links
from tidemark.remote.serving import Alone
from tidemark.replication.calls.conversation import (
    MESSAGE_BYTES_MAX,
    CallLink,
    executed,
    parts_of,
    refusal_of,
)
from tidemark.replication.calls.memory import CallMemory, Share
from tidemark.replication.calls.values import unpack
from tidemark.replication.wire.handshake import is_store_id

if TYPE_CHECKING:
    from tidemark.database import Database
    from tidemark.engine.schema.definition import TableDefinition

_log = logging.getLogger("tidemark.remote")

T = TypeVar("T")
LENGTH_BYTES = 8
_memory = CallMemory()  # of the calls of all sessions of this process
HERE: Address = ("", 0)  # the only node
TIMEOUT_MS = 10_000
_WHOLE = frozenset(
    ("where", "definition", "length", "scan", "next", "end", "of_scan", "snapshot", "of_snapshot", "end_snapshot")
)
# Verbs that only read with some methods: where a call has the method, and which.
_IN_PART = {"table": (2, READING | OF_TABLE), "store": (1, OF_ROWS)}


def _send(connection: Connection, message: bytes) -> None:
    connection.sendall(len(message).to_bytes(LENGTH_BYTES, "little") + message)


def _receive(connection: Connection) -> bytearray | None:
    """Return one message, None if the other side has ended. Raises: FrameRejected for one that is too long, OSError."""
    head = _received(connection, LENGTH_BYTES)
    size = int.from_bytes(head, "little")
    if size > MESSAGE_BYTES_MAX:
        raise FrameRejected(f"a message has {size} bytes, more than {MESSAGE_BYTES_MAX}")
    message = _received(connection, size)
    return message if len(head) == LENGTH_BYTES and len(message) == size else None


def _received(connection: Connection, size: int) -> bytearray:
    """Return this many bytes, fewer if the other side ends first."""
    found = bytearray()
    while len(found) < size and (piece := connection.recv(min(size - len(found), 1 << 20))):
        found += piece
    return found


# --- the process that has the store open ----------------------------------------------------------
class Reader(Executor):
    """Executes the calls of one client that change nothing."""

    def answer(self, what: Any) -> Any:
        if not _is_read(what):
            raise ReadOnly("the control socket serves reads alone; change rows in the process that has the store open")
        return super().answer(what)


def _is_read(what: Any) -> bool:
    if not isinstance(what, list) or not all(isinstance(each, str) for each in what[:1]):
        return True  # `Executor` refuses it
    if what[:1] and what[0] in _IN_PART:
        place, methods = _IN_PART[what[0]]
        return len(what) > place and isinstance(what[place], str) and what[place] in methods
    return not what or what[0] in _WHOLE


class _Reading(Alone):
    """As `Alone`, without keeping the store open."""

    def __init__(self, database: Callable[[], Database]) -> None:
        self._database = database
        self.address = HERE

    def database(self) -> Database:
        return self._database()

    def shown(self, token: int, epoch: int) -> None:
        self._database().parts.store.resources.secure_reads(epoch)


def serve(connection: Connection, store: weakref.ref[Database]) -> None:
    """Serve one session of a control socket until it ends. store: stays closable meanwhile."""

    def database() -> Database:
        found = store()
        if found is None:
            raise StoreClosed("the store is closed; open it again")
        return found

    def definition(table: str) -> TableDefinition:
        return database()[table].definition

    executor, share = Reader(_Reading(database)), Share(_memory)
    try:
        connection.sendall(b'{"result": "%s"}\n' % database().status()["store"]["uuid"].encode())
        while (message := _receive(connection)) is not None:
            try:
                answer = executed(executor, message, definition, share)
            except CallMemoryExhausted as error:
                executor.close()
                answer = refusal_of(error)
            _send(connection, answer)
            share.release()
    except (OSError, PeerError, StoreClosed) as error:
        _log.debug("session of a reader ended: %s", error)
    finally:
        share.release()
        executor.close()


# --- the client -----------------------------------------------------------------------------------
class OwnerLink(CallLink):
    """One session with the process that has a store open. One thread at a time may use it."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Raises: PeerError if no process answers."""
        self._connection, store = converse(directory, READ)
        if not is_store_id(store):
            self._connection.close()
            raise PeerError(f"the process that has {os.fspath(directory)} open sent an invalid answer; see its log")
        self.store = str(store)
        self.watch = lambda: None
        self.is_broken = False
        self._use = threading.Lock()

    def _answer(self, message: bytes, silent_s: float | None) -> tuple[bool, Any]:
        if self.is_broken:
            raise PeerError("the session has ended; connect again")
        try:
            self._connection.settimeout(silent_s)
            _send(self._connection, message)
            answer = _receive(self._connection)
            if answer is None:
                raise ConnectionResetError
            return parts_of(unpack(answer))
        except BaseException as error:  # also Ctrl-C: a late answer would be taken for the answer to the next call
            self.close()
            if isinstance(error, ConnectionError):
                text = "the process that had the store open has closed it, or ended; run the command again"
                raise PeerError(text) from error
            if isinstance(error, OSError):
                raise PeerError(f"the process that has the store open does not answer: {error}") from error
            raise

    def end(self) -> None:
        self.close()

    def close(self) -> None:
        self.is_broken = True
        self._connection.close()


class OwnerLinks(Links):
    """Links to the one process that has a store open."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__([HERE], b"", None, SystemClock(), TIMEOUT_MS)
        self._directory = directory

    def _connected(self, address: Address) -> CallLink:
        return OwnerLink(self._directory)

    def until(self, work: Callable[[], T]) -> T:
        """Return the result of `work`: no other process could answer later."""
        return work()


def connect_owner(directory: str | os.PathLike[str]) -> RemoteDatabase:
    """Connect to the process of this machine that has a store open. The result reads; calls that change anything raise
    ReadOnly. Raises: PeerError if no process answers, or one of an older version.
    """
    return RemoteDatabase(OwnerLinks(directory))
