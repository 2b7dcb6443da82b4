"""The local socket through which the command line talks to an open store: one JSON object a line, both ways.

Owns `control.sock` in the store's directory, made while the store is locked and removed before the lock is given up, so
that a file found under a lock just taken is one that a killed owner left. Whoever may write the directory may ask.

A request is `{"command": name}`, with `"arguments": {...}` for commands that take any; the answer is `{"result": ...}`
or `{"error": class, "message": text}`. Each client is served by a thread of its own, a daemon, with a bound on its
silence and on the length of its lines; what it sends or leaves unread costs nobody else anything. Nothing here can make
the store fail or keep its process alive.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from engine import errors
from engine.errors import Error, PeerError
from engine.files import PosixFiles

_log = logging.getLogger("tidemark")

NAME = "control.sock"
REQUEST_BYTES_MAX = 4_096
ANSWER_BYTES_MAX = 64 << 20
CLIENTS_MAX = 16
SILENCE_SECONDS = 10.0
ASK_SECONDS = 30.0
ACCEPT_PAUSE_SECONDS = 1.0
WITH_ARGUMENTS = ("backup", "archive")

Commands = Mapping[str, Callable[..., Any]]


class ControlSocket:
    """Serves the commands of one open store until `close`."""

    def __init__(self, files: PosixFiles, commands: Commands) -> None:
        """Listen. Raises: OSError if the system lends no socket here, or something else has its name."""
        self._files = files
        self.commands = commands
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._stop = threading.Event()
        self._clients: dict[socket.socket, threading.Thread] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            files.remove_socket(NAME)
            self._listener.bind(files.socket_address(NAME))
            self._listener.listen(CLIENTS_MAX)
        except BaseException:
            self._listener.close()
            raise
        self._thread = threading.Thread(target=self._accept, name="tidemark-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the file; a command that runs is finished first, its answer may not arrive."""
        if os.getpid() != self._pid:
            # A forked child: shutting the shared socket down would silence the parent.
            self._listener.close()
            return
        self._stop.set()
        _shut_down(self._listener, socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        with self._mutex:
            clients = list(self._clients.items())
        for connection, _ in clients:
            _shut_down(connection, socket.SHUT_RD)
        for _, thread in clients:
            thread.join()
        self.commands = {}  # methods of the store's owner, which owns this
        if not self._files.remove_socket(NAME):
            _log.info("control socket %s left behind; the next to open the store removes it", NAME)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # Shut down, or out of descriptors: ask again, but not in a busy loop.
                self._stop.wait(ACCEPT_PAUSE_SECONDS)
                continue
            with self._mutex:
                if len(self._clients) >= CLIENTS_MAX:
                    connection.close()
                    continue
                thread = threading.Thread(
                    target=self._serve, args=(connection,), name="tidemark-control-client", daemon=True
                )
                self._clients[connection] = thread
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(SILENCE_SECONDS)
            while not self._stop.is_set() and (line := _read_line(connection, REQUEST_BYTES_MAX)):
                connection.sendall(json.dumps(self._answer(line), default=str).encode() + b"\n")
        except OSError as error:
            _log.debug("control client gone: %s", error)
        finally:
            with self._mutex:
                self._clients.pop(connection, None)
            connection.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        name = request.get("command") if isinstance(request, dict) else None
        command = self.commands.get(name) if isinstance(name, str) else None
        if command is None:
            known = ", ".join(sorted(self.commands))
            return {"error": "PeerError", "message": f'no such command; send {{"command": ...}} with one of {known}'}
        arguments = request.get("arguments", {})
        if not isinstance(arguments, dict) or (arguments and name not in WITH_ARGUMENTS):
            return {"error": "PeerError", "message": f"{name} takes no such arguments"}
        try:
            return {"result": command(**arguments)}
        except Error as error:
            return {"error": type(error).__name__, "message": error.message}
        except TypeError as error:
            return {"error": "PeerError", "message": f"{name} does not take these arguments: {error}"}


def serve(files: PosixFiles, commands: Commands) -> ControlSocket | None:
    """A control socket, or None, with a warning, where there cannot be one: the store is open all the same."""
    try:
        return ControlSocket(files, commands)
    except OSError as error:
        _log.warning("no control socket, status and checkpoint cannot be asked for from outside: %s", error)
        return None


def ask(
    directory: str | os.PathLike[str],
    command: str,
    timeout_seconds: float | None = ASK_SECONDS,
    **arguments: Any,
) -> Any:
    """Ask the process that has a store open; returns the command's result.

    Raises: PeerError if nobody answers or the answer makes no sense; what the command raised there; FileMissing.
    """
    files = PosixFiles(directory)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_seconds)
            connection.connect(files.socket_address(NAME))
            connection.sendall(json.dumps({"command": command, "arguments": arguments}).encode() + b"\n")
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
            f"the process that has {files.directory} open ended or sent nonsense; look at its log"
        ) from error
    raise (kind if isinstance(kind, type) and issubclass(kind, Error) else PeerError)(message)


def _read_line(connection: socket.socket, bytes_max: int) -> bytes:
    """One line without its end; empty at the end of the stream. Raises: OSError for a line that is too long."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = connection.recv(min(65_536, bytes_max + 1 - len(line)))
        if not piece:
            return b""
        line += piece
        if len(line) > bytes_max:
            raise OSError(f"a line of more than {bytes_max} bytes")
    return bytes(line)


def _shut_down(connection: socket.socket, how: int) -> None:
    try:
        connection.shutdown(how)
    except OSError as error:
        _log.debug("socket was shut down already: %s", error)
