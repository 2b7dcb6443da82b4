"""The local socket through which the command line talks to an open store: one JSON object per line, both ways.

Owns `control.sock` in the store's directory. It is created while the store is locked and removed before the lock is
released, so a file found under a new lock is stale: its process was killed or could not remove it.

Commands run with all rights of this process: a backup is written wherever this process may write. So only processes of
the same user or of root are served; they could do the same themselves. The file's mode keeps other users away, and the
system reports the user of each connection (SO_PEERCRED).

A request is `{"command": name}`, with `"arguments": {...}` for commands that take any; the answer is `{"result": ...}`
or `{"error": class, "message": text}`. `request_port.py` limits what clients may do. The command `read` begins a
session of calls that read rows (`remote/owner.py`).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from tidemark.engine.base import errors
from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import Error, PeerError
from tidemark.engine.files.directory import PosixFiles, is_own_user
from tidemark.request_port import RequestPort

_log = logging.getLogger("tidemark")

NAME = "control.sock"
READ = "read"
ANSWER_BYTES_MAX = 64 << 20
ASK_SECONDS = 30.0
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid

Commands = Mapping[str, Callable[..., Any]]
Connection = socket.socket


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_place(value: object) -> bool:
    # A relative path would be resolved in this process, not in the client's directory.
    return isinstance(value, str) and (value.startswith("/") or "://" in value)


# The arguments of each command; others are refused before it is called.
_ARGUMENTS: dict[str, dict[str, Callable[[object], bool]]] = {
    "backup": {"place": _is_place, "incremental": _is_flag, "verify": _is_flag},
    "archive": {"place": _is_place},
    "kill": {"target": lambda value: isinstance(value, (int, str)) and not isinstance(value, bool)},
}


class ControlSocket(RequestPort):
    """Serves the commands of one open store until `close`."""

    what = "control"
    unit = "line"

    def __init__(self, files: PosixFiles, commands: Commands, clock: Clock) -> None:
        """Listen. Raises: OSError if no socket can be created, or another file has the socket's name."""
        self._files = files
        self.commands = commands
        self.read: Callable[[socket.socket], None] | None = None  # serves a session of calls

        def listen(listener: socket.socket) -> None:
            files.remove_socket(NAME)
            files.bind(NAME, listener)
            listener.listen()

        super().__init__(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), listen, clock)

    def _closed(self) -> None:
        self.commands = {}  # breaks a reference cycle: these are methods of the socket's owner
        self.read = None
        if not self._files.remove_socket(NAME):
            _log.info("control socket %s remains; the next opening of the store removes it", NAME)

    def _stranger(self, connection: socket.socket) -> str | None:
        pid, user = _peer_of(connection)
        return None if is_own_user(user) else f"process {pid} belongs to user {user}"

    def _take(self, received: bytearray) -> bytes | None:
        line, end, rest = bytes(received).partition(b"\n")
        if not end:
            return None
        received[:] = rest
        return line

    def _refusal(self, text: str) -> bytes:
        return _line(_refusal(text))

    def _answer(self, request: bytes) -> bytes:
        return _line(self._result(request))

    def _session(self, request: bytes) -> Callable[[socket.socket], None] | None:
        return self.read if _request_of(request).get("command") == READ else None

    def _result(self, line: bytes) -> dict[str, Any]:
        request = _request_of(line)
        name = request.get("command")
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

    The process is asked only if it belongs to this user, to root, or to the owner of the directory. Raises: PeerError
    if no process answers or the answer is invalid; the error that the command raised there; FileMissing.
    """
    connection, answer = converse(directory, command, timeout_seconds, **arguments)
    connection.close()
    return answer


def converse(
    directory: str | os.PathLike[str], command: str, timeout_seconds: float | None = ASK_SECONDS, **arguments: Any
) -> tuple[socket.socket, Any]:
    """As `ask`, and return the connection too, which the caller closes."""
    with PosixFiles(directory) as files:
        connection = None
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(timeout_seconds)
            connection.connect(files.socket_address(NAME))
            _check_server(connection, files)
            connection.sendall(_line({"command": command, "arguments": arguments}))
            return connection, _answer_in(_read_line(connection, ANSWER_BYTES_MAX), files)
        except OSError as error:
            _close(connection)
            text = f"the process that has {files.directory} open does not answer: {error}; open it, or try again"
            raise PeerError(text) from error
        except BaseException:
            _close(connection)
            raise


def _close(connection: socket.socket | None) -> None:
    if connection is not None:
        connection.close()


def _answer_in(line: bytes, files: PosixFiles) -> Any:
    """Return the result in an answer. Raises: the error in it; PeerError if it is invalid."""
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


def _request_of(line: bytes) -> dict[str, Any]:
    """Return the request in a line; without a command if it is none."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return request if isinstance(request, dict) else {}


def _refusal(message: str) -> dict[str, Any]:
    return {"error": "PeerError", "message": message}


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, default=str).encode() + b"\n"


def _peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return (pid, user) of the process at the other end. They were recorded when a server began to listen, or when a
    client connected.
    """
    size = _CREDENTIALS.size
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, user


def _check_server(connection: socket.socket, files: PosixFiles) -> None:
    """Raises: PeerError if another user's process listens. In a directory that every user may write, any user can
    create a socket of this name.
    """
    pid, user = _peer_of(connection)
    if not (is_own_user(user) or user == files.owner):
        raise PeerError(
            f"process {pid}, which listens at {NAME} in {files.directory}, belongs to another user ({user})"
        )


def _read_line(connection: socket.socket, bytes_max: int) -> bytes:
    """Return one line with its line feed; nothing if the stream ends first. Raises: OSError for a line that is too
    long.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = connection.recv(min(65_536, bytes_max + 1 - len(line)))
        if not piece:
            return b""
        line += piece
        if len(line) > bytes_max:
            raise OSError(f"a line of more than {bytes_max} bytes")
    return bytes(line)
