"""A process between replicas and the store that stalls and cuts their connections.

Each replica has a port of its own, which stays when the store's ports change. While a port is stalled no byte passes in
either direction, and connections to it are accepted and get no answer. A connection that one side ends is ended at the
other after the bytes on their way have passed: an error that the store has sent arrives.
"""

from __future__ import annotations

import multiprocessing
import select
import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from tidemark.engine.base.clock import SystemClock

HOST = "127.0.0.1"
HELD_BYTES = 256 << 10
_FORK = multiprocessing.get_context("fork")


class Proxy:
    """The process; `stop` it after use. Fork it while this process has no threads."""

    def __init__(self, names: Sequence[str]) -> None:
        listeners = {name: socket.create_server((HOST, 0)) for name in names}
        self.addresses: dict[str, tuple[str, int]] = {name: each.getsockname() for name, each in listeners.items()}
        commands, self._commands = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=forward, args=(listeners, commands), daemon=True)
        self._process.start()
        commands.close()
        for each in listeners.values():
            each.close()

    def target(self, name: str, address: tuple[str, int]) -> None:
        """Forward later connections of a replica to this address."""
        self._commands.send(("target", name, address))

    def stall(self, name: str, seconds: float) -> None:
        """Let no byte of a replica pass for so long."""
        self._commands.send(("stall", name, seconds))

    def cut(self, name: str) -> None:
        """End the connections of a replica, with what is on its way."""
        self._commands.send(("cut", name, None))

    def stop(self) -> None:
        self._commands.send(("stop", "", None))
        self._process.join()


class _Link:
    """A connection of a replica, and that to the store."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.sides = (near, far)
        self.to: dict[socket.socket, bytearray] = {near: bytearray(), far: bytearray()}
        self.has_ended = False
        for each in self.sides:
            each.setblocking(False)

    def events(self, side: socket.socket) -> int:
        """Return what to wait for at a side."""
        other = self.sides[side is self.sides[0]]
        reads = not self.has_ended and len(self.to[other]) < HELD_BYTES
        return (select.POLLIN if reads else 0) | (select.POLLOUT if self.to[side] else 0)

    def move(self, side: socket.socket, event: int) -> None:
        """Pass bytes on. Raises: OSError."""
        other = self.sides[side is self.sides[0]]
        if event & select.POLLOUT:
            del self.to[side][: side.send(self.to[side])]
        if event & (select.POLLIN | select.POLLHUP | select.POLLERR) and not self.has_ended:
            data = side.recv(HELD_BYTES)
            self.to[other] += data
            self.has_ended = not data

    @property
    def is_over(self) -> bool:
        return self.has_ended and not any(self.to.values())

    def close(self) -> None:
        for each in self.sides:
            each.close()


class _Port:
    """The connections of one replica."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.links: list[_Link] = []
        self.target: tuple[str, int] | None = None
        self.stalled_until = 0.0

    def accept(self) -> None:
        near, _ = self.listener.accept()
        try:
            if self.target is None:
                raise ConnectionRefusedError
            self.links.append(_Link(near, socket.create_connection(self.target)))
        except OSError:
            near.close()

    def cut(self) -> None:
        for each in self.links:
            each.close()
        self.links = []

    def move(self, link: _Link, side: socket.socket, event: int) -> None:
        try:
            link.move(side, event)
        except BlockingIOError:
            return
        except OSError:
            link.has_ended = True
            for each in link.to.values():
                each.clear()
        if link.is_over:
            link.close()
            self.links.remove(link)


def forward(listeners: dict[str, socket.socket], commands: Connection) -> None:
    """Forward connections, and obey commands, until one says to stop."""
    ports = {name: _Port(listener) for name, listener in listeners.items()}
    try:
        _forward(ports, commands)
    finally:
        for each in ports.values():
            each.cut()
            each.listener.close()


def _forward(ports: dict[str, _Port], commands: Connection) -> None:
    clock = SystemClock()
    while True:
        now = clock.monotonic()
        poll = select.poll()
        poll.register(commands, select.POLLIN)
        waited: dict[int, tuple[_Port, _Link | None, Any]] = {}
        rest_s = [each.stalled_until - now for each in ports.values() if each.stalled_until > now]
        for port in ports.values():
            if port.stalled_until > now:
                continue
            poll.register(port.listener, select.POLLIN)
            waited[port.listener.fileno()] = (port, None, None)
            for link in port.links:
                for side in link.sides:
                    if events := link.events(side):
                        poll.register(side, events)
                        waited[side.fileno()] = (port, link, side)
        for descriptor, event in poll.poll(1_000 * min(rest_s) + 1 if rest_s else None):
            if descriptor == commands.fileno():
                command = commands.recv()
                if command[0] == "stop":
                    return
                _obey(ports, command, clock.monotonic())
                break  # links may be gone
            which, connected, side = waited[descriptor]
            if connected is None:
                which.accept()
            elif connected in which.links:
                which.move(connected, side, event)


def _obey(ports: dict[str, _Port], command: tuple[str, str, Any], now: float) -> None:
    what, name, value = command
    port = ports[name]
    if what == "target":
        port.target = value
    elif what == "stall":
        port.stalled_until = now + value
    else:
        port.cut()
