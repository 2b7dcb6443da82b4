"""Two processes for measurements between sites: each executes requests from a pipe; a proxy delays their links.

The processes are forked to inherit compiled code: create them before this process starts a thread.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

FORK = multiprocessing.get_context("fork")
HOST = "127.0.0.1"
SECRET = b"secret of the benchmark"
READ_BYTES = 1 << 18


class Remote:
    """An object in a process of its own; `ask` calls its methods."""

    def __init__(self, make: Callable[..., Any], *given: Any) -> None:
        self._pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_serve, args=(make, given, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, name: str, *given: Any) -> None:
        """Send a request without waiting for the answer."""
        self._pipe.send((name, given))

    def answer(self) -> Any:
        """Return the answer to the oldest request. Raises: RuntimeError with the error of the other process."""
        is_well, value = self._pipe.recv()
        if not is_well:
            raise RuntimeError(value)
        return value

    def ask(self, name: str, *given: Any) -> Any:
        """Send a request and return its answer."""
        self.send(name, *given)
        return self.answer()

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.join()


def _serve(make: Callable[..., Any], given: tuple[Any, ...], pipe: Any) -> None:
    made = make(*given)
    while True:
        name, arguments = pipe.recv()
        try:
            pipe.send((True, getattr(made, name)(*arguments)))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {error}"))
            raise


class DelayProxy:
    """Forwards connections to a target, and delays the bytes in both directions by a number of seconds."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._listener = socket.create_server((HOST, 0))

    def address(self) -> tuple[str, int]:
        """Return the address at which the proxy listens."""
        return self._listener.getsockname()[:2]

    def to(self, target: tuple[str, int]) -> None:
        """Begin to forward connections to the target."""
        threading.Thread(target=self._accept, args=(target,), daemon=True).start()

    def _accept(self, target: tuple[str, int]) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(target)
            threading.Thread(target=self._pass, args=(near, far), daemon=True).start()

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        waiting: deque[tuple[float, socket.socket, bytes]] = deque()  # one delay for all: the oldest is due first
        selector = selectors.DefaultSelector()
        selector.register(near, selectors.EVENT_READ, far)
        selector.register(far, selectors.EVENT_READ, near)
        try:
            while True:
                wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
                for key, _ in selector.select(wait_s):
                    data = key.fileobj.recv(READ_BYTES)
                    if not data:
                        return
                    waiting.append((time.monotonic() + self._delay_s, key.data, data))
                while waiting and waiting[0][0] <= time.monotonic():
                    _, to, data = waiting.popleft()
                    to.sendall(data)
        except OSError:
            return
        finally:
            near.close()
            far.close()
