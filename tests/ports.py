"""Ports for servers that tests start. They lie below those that the system gives to outgoing connections: such a
connection once took a port after it was found free and before its server began.
"""

from __future__ import annotations

import itertools
import os
import random
import socket

FIRST, COUNT, LANES = 20_000, 12_000, 16
# Processes of one test run have lanes of their own.
_LANE = int(os.environ.get("PYTEST_XDIST_WORKER", f"gw{os.getpid()}")[2:]) % LANES
_numbers = itertools.count(random.SystemRandom().randrange(COUNT // LANES))


def free_ports(count: int) -> list[int]:
    """Ports without a listener. This process has given out none of them before, until it has given out all."""
    found: list[int] = []
    while len(found) < count:
        port = FIRST + next(_numbers) * LANES % COUNT + _LANE
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
    return found


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
