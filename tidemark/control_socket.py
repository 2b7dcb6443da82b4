"""The local socket through which the command line talks to an open store: one JSON object per line, both ways.

Owns `control.sock` in the store's directory. It is created while the store is locked and removed before the lock is
released, so a stale file found under a new lock was left by a process that was killed.

Commands run with all rights of this process: a backup is written wherever this process may write. So only processes of
the same user or of root are served; they could do the same themselves. The file's mode keeps other users away, and the
system reports the user of each connection (SO_PEERCRED).

A request is `{"command": name}`, with `"arguments": {...}` for commands that take any; the answer is `{"result": ...}`
or `{"error": class, "message": text}`. One thread carries all connections. It limits their number, the length of a
line, and the time until a line is complete or an answer is read. At the maximum, a new connection replaces the one that
has waited longest without a complete line, so idle connections cannot block others. Each command runs in a daemon
thread of its own. Nothing here can make the store fail or keep its process alive.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tidemark.engine.base import errors
from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import Error, PeerError
from tidemark.engine.base.limited_log import LimitedLog
from tidemark.engine.files.directory import PosixFiles, is_own_user

_log = logging.getLogger("tidemark")

NAME = "control.sock"
REQUEST_BYTES_MAX = 4_096
ANSWER_BYTES_MAX = 64 << 20
CLIENTS_MAX = 64
COMMANDS_MAX = 16
SILENCE_SECONDS = 10.0
CLOSE_SECONDS = 1.0
ASK_SECONDS = 30.0
ACCEPT_PAUSE_SECONDS = 1.0
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid

Commands = Mapping[str, Callable[..., Any]]


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_place(value: object) -> bool:
    # A relative path would be resolved in this process, not in the client's directory.
    return isinstance(value, str) and (value.startswith("/") or "://" in value)


# The arguments of each command; others are refused before it is called.
_ARGUMENTS: dict[str, dict[str, Callable[[object], bool]]] = {
    "backup": {"place": _is_place, "incremental": _is_flag, "verify": _is_flag},
    "archive": {"place": _is_place},
}


class _Client:
    """One connection: the client sends a line, its command runs, the client reads the answer, then may send a line."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.said = bytearray()
        self.answer = memoryview(b"")
        self.is_busy = False  # its command runs: no deadline
        self.deadline = deadline

    @property
    def is_waiting(self) -> bool:
        """Whether the client has yet to send a complete line."""
        return not self.is_busy and not self.answer


class _Done(NamedTuple):
    """The outcome of a command: the line to send, or None if the client gets no answer."""

    client: _Client
    answer: bytes | None


class ControlSocket:
    """Serves the commands of one open store until `close`."""

    def __init__(self, files: PosixFiles, commands: Commands, clock: Clock) -> None:
        """Listen. Raises: OSError if no socket can be created, or another file has the socket's name."""
        self._files = files
        self.commands = commands
        self._clock = clock
        self._pid = os.getpid()
        self._is_stopped = False
        self._done: deque[_Done] = deque()
        self._clients: dict[socket.socket, _Client] = {}
        self._log = LimitedLog(_log, clock)
        # Not epoll, which a forked child would share.
        self._selector = selectors.PollSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            # Created now: when it is needed most, the process may be out of descriptors.
            self._woken, self._waker = socket.socketpair()
            try:
                self._woken.setblocking(False)
                self._waker.setblocking(False)
                files.remove_socket(NAME)
                files.bind(NAME, self._listener)
                self._listener.listen()
            except BaseException:
                self._woken.close()
                self._waker.close()
                raise
        except BaseException:
            self._listener.close()
            raise
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._listens_again = 0.0  # when to accept again; 0: the listener does not pause
        self._thread = threading.Thread(target=self._serve, name="tidemark-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the file. A running command is finished first; its answer may not arrive."""
        if os.getpid() != self._pid:
            # A forked child: shutting the shared sockets down would silence the parent.
            for each in (self._listener, self._woken, self._waker, *self._clients):
                each.close()
            return
        self._is_stopped = True
        self._wake()
        self._thread.join()
        self.commands = {}  # breaks a reference cycle: these are methods of the socket's owner
        self._log.close()
        if not self._files.remove_socket(NAME):
            _log.info("control socket %s remains; the next opening of the store removes it", NAME)

    # --- the thread that carries all connections -------------------------------------------------
    def _serve(self) -> None:
        try:
            while not self._is_stopped:
                self._step()
            self._shut(self._listener)
            self._listens_again = 0.0
            last = self._clock.monotonic() + CLOSE_SECONDS
            for client in list(self._clients.values()):
                client.deadline = last
                if client.is_waiting:
                    self._drop(client)
            while self._clients:  # running commands, and answers being sent
                self._step()
        finally:
            for client in list(self._clients.values()):
                self._drop(client)
            for each in (self._woken, self._waker, self._listener):
                each.close()

    def _step(self) -> None:
        """Wait for the next events and handle them."""
        ready = self._selector.select(self._patience())
        has_callers = False
        for key, _ in ready:
            if key.fileobj is self._woken:
                self._clear()
            elif key.fileobj is self._listener:
                has_callers = True
            else:
                self._go_on(key.data)
        while self._done:
            client, answer = self._done.popleft()
            client.is_busy = False
            if answer is None:
                self._drop(client)
            else:
                self._begin_answer(client, answer)
        now = self._clock.monotonic()
        for client in [each for each in self._clients.values() if not each.is_busy and each.deadline <= now]:
            self._log.warning("control client cut off: it sent no complete line, or did not read an answer, in time")
            self._drop(client)
        # Last: a client that has sent its line by now is not replaced by a newer one.
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
            self._log.warning(f"control client not accepted: {error}")
            self._selector.unregister(self._listener)
            self._listens_again = now + ACCEPT_PAUSE_SECONDS
            return
        pid, user = _peer_of(connection)
        if not is_own_user(user):
            self._log.warning(f"control client refused: process {pid} belongs to user {user}")
            connection.close()
            return
        if len(self._clients) >= CLIENTS_MAX:
            waiting = [each for each in self._clients.values() if each.is_waiting]
            if not waiting:
                connection.close()
                return
            self._log.warning(f"control client cut off: {CLIENTS_MAX} are connected, and it waited longest")
            self._drop(min(waiting, key=lambda each: each.deadline))
        connection.setblocking(False)
        client = _Client(connection, now + SILENCE_SECONDS)
        self._clients[connection] = client
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _go_on(self, client: _Client) -> None:
        """Receive more of the client's line, or send more of the answer."""
        try:
            if client.answer:
                client.answer = client.answer[client.connection.send(client.answer) :]
                if not client.answer:
                    self._next_line(client)
                return
            piece = client.connection.recv(REQUEST_BYTES_MAX + 1 - len(client.said))
        except BlockingIOError:
            return
        except OSError as error:
            _log.debug("control client gone: %s", error)
            self._drop(client)
            return
        client.said += piece
        if not piece:
            self._drop(client)
        else:
            self._take_line(client)

    def _next_line(self, client: _Client) -> None:
        if self._is_stopped:
            self._drop(client)
            return
        client.deadline = self._clock.monotonic() + SILENCE_SECONDS
        self._selector.modify(client.connection, selectors.EVENT_READ, client)
        self._take_line(client)

    def _take_line(self, client: _Client) -> None:
        line, end, rest = bytes(client.said).partition(b"\n")
        if end:
            client.said[:] = rest
            self._begin_command(client, line)
        elif len(client.said) > REQUEST_BYTES_MAX:
            self._log.warning(f"control client cut off: a line of more than {REQUEST_BYTES_MAX} bytes")
            self._drop(client)

    def _begin_answer(self, client: _Client, answer: bytes) -> None:
        client.answer = memoryview(answer)
        wait = CLOSE_SECONDS if self._is_stopped else SILENCE_SECONDS
        client.deadline = self._clock.monotonic() + wait
        self._selector.register(client.connection, selectors.EVENT_WRITE, client)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.connection]
        self._shut(client.connection)

    def _shut(self, connection: socket.socket) -> None:
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        try:
            # The other side sees the end even if a forked child has the descriptor too.
            connection.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("socket was shut down already: %s", error)
        connection.close()

    def _wake(self) -> None:
        try:
            self._waker.send(b"\0")
        except OSError as error:
            _log.debug("thread of the control socket wakes anyhow: %s", error)

    def _clear(self) -> None:
        try:
            while self._woken.recv(4_096):
                pass
        except BlockingIOError:
            return

    # --- commands ---------------------------------------------------------------------------------
    def _begin_command(self, client: _Client, line: bytes) -> None:
        """Run the command of a line in a thread of its own."""
        self._selector.unregister(client.connection)
        if sum(each.is_busy for each in self._clients.values()) >= COMMANDS_MAX:
            text = f"{COMMANDS_MAX} commands are running; ask again when one of them has ended"
            self._begin_answer(client, _line(_refusal(text)))
            return
        thread = threading.Thread(target=self._run, args=(client, line), name="tidemark-control-command", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._begin_answer(client, _line(_refusal(f"the process can start no thread ({error}); ask again")))
            return
        client.is_busy = True

    def _run(self, client: _Client, line: bytes) -> None:
        answer = None
        try:
            answer = _line(self._answer(line))
        finally:
            self._done.append(_Done(client, answer))
            self._wake()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        name = request.get("command") if isinstance(request, dict) else None
        command = self.commands.get(name) if isinstance(name, str) else None
        if name is None or command is None:
            names = ", ".join(sorted(self.commands))
            return _refusal(f'no such command; send {{"command": ...}} with one of {names}')
        arguments = request.get("arguments", {})
        known = _ARGUMENTS.get(name, {})
        if not isinstance(arguments, dict) or not all(
            key in known and known[key](each) for key, each in arguments.items()
        ):
            takes = ", ".join(known) or "none"
            return _refusal(
                f"{name} does not take these arguments; it takes {takes}; give a place as an absolute path or a URI"
            )
        try:
            return {"result": command(**arguments)}
        except Error as error:
            return {"error": type(error).__name__, "message": error.message}


def serve(files: PosixFiles, commands: Commands, clock: Clock) -> ControlSocket | None:
    """Return a control socket, or log a warning and return None if it cannot be created; the store opens anyway."""
    try:
        return ControlSocket(files, commands, clock)
    except OSError as error:
        _log.warning("no control socket, so other processes cannot ask for status or checkpoint: %s", error)
        return None


def ask(
    directory: str | os.PathLike[str],
    command: str,
    timeout_seconds: float | None = ASK_SECONDS,
    **arguments: Any,
) -> Any:
    """Ask the process that has a store open, and return the command's result.

    The process is asked only if it is of this user, of root, or of the user that owns the directory. Raises: PeerError
    if no process answers or the answer is invalid; the error the command raised there; FileMissing.
    """
    files = PosixFiles(directory)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_seconds)
            connection.connect(files.socket_address(NAME))
            _check_server(connection, files)
            connection.sendall(_line({"command": command, "arguments": arguments}))
            line = _read_line(connection, ANSWER_BYTES_MAX)
    except OSError as error:
        raise PeerError(f"the process that has {files.directory} open does not answer: {error}") from error
    finally:
        files.close_all()
    try:
        answer = json.loads(line)
        if "error" not in answer:
            return answer["result"]
        kind = getattr(errors, str(answer["error"]), None)
        message = str(answer["message"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PeerError(
            f"the process that has {files.directory} open ended, or sent an invalid answer; see its log"
        ) from error
    raise (kind if isinstance(kind, type) and issubclass(kind, Error) else PeerError)(message)


def _refusal(message: str) -> dict[str, Any]:
    return {"error": "PeerError", "message": message}


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, default=str).encode() + b"\n"


def _peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return (pid, user) of the process at the other end: of a server when it began to listen, of a client when it
    connected.
    """
    size = _CREDENTIALS.size
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, user


def _check_server(connection: socket.socket, files: PosixFiles) -> None:
    """Raises: PeerError if another user's process listens. In a directory that all may write, any user can create a
    socket of this name.
    """
    pid, user = _peer_of(connection)
    if not (is_own_user(user) or user == files.owner):
        raise PeerError(
            f"process {pid}, which listens at {NAME} in {files.directory}, belongs to another user ({user})"
        )


def _read_line(connection: socket.socket, bytes_max: int) -> bytes:
    """Return one line without its end; empty at the end of the stream. Raises: OSError for a line that is too long."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = connection.recv(min(65_536, bytes_max + 1 - len(line)))
        if not piece:
            return b""
        line += piece
        if len(line) > bytes_max:
            raise OSError(f"a line of more than {bytes_max} bytes")
    return bytes(line)
