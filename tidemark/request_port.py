"""A port that answers the requests of clients: the base of the control socket and of the metrics port.

One thread carries all connections. It limits their number, the length of a request, and the time until a request is
complete or an answer is read. At the maximum, a new connection replaces the one that has waited longest without a
complete request, so idle connections cannot block others. Each request is answered in a daemon thread of its own, and
their number is limited too. A request may turn its connection into a session, which a thread of its own serves until
one side ends it. Nothing here can make the store fail or keep its process alive.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.limited_log import LimitedLog

_log = logging.getLogger("tidemark")

REQUEST_BYTES_MAX = 4_096
CLIENTS_MAX = 64
COMMANDS_MAX = 16
SESSIONS_MAX = 16
SILENCE_SECONDS = 10.0
CLOSE_SECONDS = 1.0
ACCEPT_PAUSE_SECONDS = 1.0


class _Client:
    """One connection: the client sends a request, a thread answers it, the client reads the answer."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.received = bytearray()
        self.answer = memoryview(b"")
        self.is_busy = False  # a thread answers it: no deadline
        self.deadline = deadline

    @property
    def is_waiting(self) -> bool:
        """Whether the client has yet to send a complete request."""
        return not self.is_busy and not self.answer


class RequestPort(ABC):
    """Answers requests until `close`."""

    what: ClassVar[str]  # names it in messages and threads, such as "control"
    unit: ClassVar[str]  # what messages call a request, such as "line"
    answers_max: int | None = None  # at once; None: COMMANDS_MAX

    def __init__(self, listener: socket.socket, listen: Callable[[socket.socket], None], clock: Clock) -> None:
        """listen: binds the socket and begins to listen. Raises: OSError, also for lack of descriptors."""
        self._clock = clock
        self._pid = os.getpid()
        self._is_stopped = False
        self._done: deque[tuple[_Client, bytes | None]] = deque()  # answers to be sent; None: there is none
        self._clients: dict[socket.socket, _Client] = {}
        self._sessions: dict[socket.socket, threading.Thread] = {}  # with the connection that each serves
        self._log = LimitedLog(_log, clock)
        # Not epoll, which a forked child would share.
        self._selector = selectors.PollSelector()
        self._listener = listener
        try:
            listener.setblocking(False)
            # Created now: when it is needed, the process may be out of descriptors.
            self._woken, self._waker = socket.socketpair()
            try:
                self._woken.setblocking(False)
                self._waker.setblocking(False)
                listen(listener)
            except BaseException:
                self._woken.close()
                self._waker.close()
                raise
        except BaseException:
            listener.close()
            raise
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._listens_again = 0.0  # when to accept again; 0: the listener does not pause
        self._thread = threading.Thread(target=self._serve, name=f"tidemark-{self.what}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Requests being answered are finished first; their answers may not arrive."""
        if os.getpid() != self._pid:
            # A forked child: shutting the shared sockets down would silence the parent.
            for each in (self._listener, self._woken, self._waker, *self._clients, *self._sessions):
                each.close()
            return
        self._is_stopped = True
        self._wake()
        self._thread.join()  # after it no session begins
        for connection, thread in list(self._sessions.items()):
            _shut(connection)
            thread.join()
        self._log.close()
        self._closed()

    # --- what a port does itself -----------------------------------------------------------------
    def _closed(self) -> None:
        """Called at the end of `close`, in the process that listened."""
        return

    def _stranger(self, connection: socket.socket) -> str | None:
        """Return why a new connection is refused, None if it may ask."""
        return None

    @abstractmethod
    def _take(self, received: bytearray) -> bytes | None:
        """Remove the first complete request from what a client has sent, and return it; None if it is incomplete."""

    @abstractmethod
    def _answer(self, request: bytes) -> bytes:
        """Return the answer to a request."""

    @abstractmethod
    def _refusal(self, text: str) -> bytes:
        """Return the answer to a request that cannot be answered now."""

    def _session(self, request: bytes) -> Callable[[socket.socket], None] | None:
        """Return what serves the connection after this request, if it asks for a session; None: it is answered. What is
        returned blocks until the other side, or `close`, shuts the connection.
        """
        return None

    def _may_ask_again(self) -> bool:
        """Whether a client that has read its answer may send another request."""
        return True

    # --- the thread that carries all connections -------------------------------------------------
    def _serve(self) -> None:
        try:
            while not self._is_stopped:
                self._step()
            self._disconnect(self._listener)
            self._listens_again = 0.0
            last = self._clock.monotonic() + CLOSE_SECONDS
            for client in list(self._clients.values()):
                client.deadline = last
                if client.is_waiting:
                    self._drop(client)
            while self._clients:  # being answered, and answers being sent
                self._step()
        finally:
            for client in list(self._clients.values()):
                self._drop(client)
            for each in (self._woken, self._waker, self._listener):
                each.close()

    def _step(self) -> None:
        ready = self._selector.select(self._patience())
        has_callers = False
        for key, _ in ready:
            if key.fileobj is self._woken:
                self._clear()
            elif key.fileobj is self._listener:
                has_callers = True
            else:
                self._advance(key.data)
        while self._done:
            client, answer = self._done.popleft()
            client.is_busy = False
            if answer is None:
                self._drop(client)
            else:
                self._begin_answer(client, answer)
        now = self._clock.monotonic()
        for client in [each for each in self._clients.values() if not each.is_busy and each.deadline <= now]:
            self._log.warning(
                f"{self.what} client cut off: it sent no complete {self.unit}, or did not read an answer, in time"
            )
            self._drop(client)
        # Last: a client that has sent its request by now is not replaced by a newer one.
        if has_callers:
            self._accept(now)
        elif self._listens_again and self._listens_again <= now:
            self._listens_again = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _patience(self) -> float | None:
        moments = [client.deadline for client in self._clients.values() if not client.is_busy]
        if self._listens_again:
            moments.append(self._listens_again)
        return max(0.001, min(moments) - self._clock.monotonic()) if moments else None

    def _accept(self, now: float) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of descriptors or memory. The listener stays readable, so back off instead of spinning.
            self._log.warning(f"{self.what} client not accepted: {error}")
            self._selector.unregister(self._listener)
            self._listens_again = now + ACCEPT_PAUSE_SECONDS
            return
        stranger = self._stranger(connection)
        if stranger is not None:
            self._log.warning(f"{self.what} client refused: {stranger}")
            connection.close()
            return
        if len(self._clients) >= CLIENTS_MAX:
            waiting = [each for each in self._clients.values() if each.is_waiting]
            if not waiting:
                connection.close()
                return
            self._log.warning(f"{self.what} client cut off: {CLIENTS_MAX} are connected, and it waited longest")
            self._drop(min(waiting, key=lambda each: each.deadline))
        connection.setblocking(False)
        client = _Client(connection, now + SILENCE_SECONDS)
        self._clients[connection] = client
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _advance(self, client: _Client) -> None:
        """Receive more of the client's request, or send more of the answer."""
        try:
            if client.answer:
                client.answer = client.answer[client.connection.send(client.answer) :]
                if not client.answer:
                    self._next_request(client)
                return
            piece = client.connection.recv(REQUEST_BYTES_MAX + 1 - len(client.received))
        except BlockingIOError:
            return
        except OSError as error:
            _log.debug("%s client gone: %s", self.what, error)
            self._drop(client)
            return
        client.received += piece
        if not piece:
            self._drop(client)
        else:
            self._take_request(client)

    def _next_request(self, client: _Client) -> None:
        if self._is_stopped or not self._may_ask_again():
            self._drop(client)
            return
        client.deadline = self._clock.monotonic() + SILENCE_SECONDS
        self._selector.modify(client.connection, selectors.EVENT_READ, client)
        self._take_request(client)

    def _take_request(self, client: _Client) -> None:
        request = self._take(client.received)
        if request is not None:
            session = self._session(request)
            if session is None:
                self._begin(client, request)
            else:
                self._begin_session(client, session)
        elif len(client.received) > REQUEST_BYTES_MAX:
            self._log.warning(f"{self.what} client cut off: a {self.unit} of more than {REQUEST_BYTES_MAX} bytes")
            self._drop(client)

    def _begin_answer(self, client: _Client, answer: bytes) -> None:
        client.answer = memoryview(answer)
        wait = CLOSE_SECONDS if self._is_stopped else SILENCE_SECONDS
        client.deadline = self._clock.monotonic() + wait
        self._selector.register(client.connection, selectors.EVENT_WRITE, client)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.connection]
        self._disconnect(client.connection)

    def _disconnect(self, connection: socket.socket) -> None:
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        _shut(connection)
        connection.close()

    def _wake(self) -> None:
        try:
            self._waker.send(b"\0")
        except OSError as error:
            _log.debug("thread of the port wakes anyhow: %s", error)

    def _clear(self) -> None:
        try:
            while self._woken.recv(4_096):
                pass
        except BlockingIOError:
            return

    # --- answers ---------------------------------------------------------------------------------
    def _begin(self, client: _Client, request: bytes) -> None:
        self._selector.unregister(client.connection)
        most = COMMANDS_MAX if self.answers_max is None else self.answers_max
        if sum(each.is_busy for each in self._clients.values()) >= most:
            text = f"{most} commands are running; ask again when one of them has ended"
            self._begin_answer(client, self._refusal(text))
            return
        name = f"tidemark-{self.what}-command"
        thread = threading.Thread(target=self._run, args=(client, request), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._begin_answer(client, self._refusal(f"the process can start no thread ({error}); ask again"))
            return
        client.is_busy = True

    def _run(self, client: _Client, request: bytes) -> None:
        answer = None
        try:
            answer = self._answer(request)
        finally:
            self._done.append((client, answer))
            self._wake()

    # --- sessions --------------------------------------------------------------------------------
    def _begin_session(self, client: _Client, serve: Callable[[socket.socket], None]) -> None:
        connection = client.connection
        self._selector.unregister(connection)
        if len(self._sessions) >= SESSIONS_MAX:
            text = f"{SESSIONS_MAX} sessions are served already; ask again when one of them has ended"
            self._begin_answer(client, self._refusal(text))
            return
        thread = threading.Thread(
            target=self._run_session, args=(connection, serve), name=f"tidemark-{self.what}-session", daemon=True
        )
        self._sessions[connection] = thread
        try:
            connection.setblocking(True)
            thread.start()
        except RuntimeError as error:
            del self._sessions[connection]
            connection.setblocking(False)
            self._begin_answer(client, self._refusal(f"the process can start no thread ({error}); ask again"))
            return
        del self._clients[connection]

    def _run_session(self, connection: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        try:
            serve(connection)
        finally:
            _shut(connection)
            self._sessions.pop(connection, None)
            connection.close()


def _shut(connection: socket.socket) -> None:
    """End a connection: the other side sees it even if a forked child has the descriptor too."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        _log.debug("socket was shut down already: %s", error)
