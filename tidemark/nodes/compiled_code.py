"""Compiled code for a node, which it gets before it takes part."""

from __future__ import annotations

import logging

from tidemark.engine.base.clock import Clock
from tidemark.engine.jit.kernel import declared

_log = logging.getLogger("tidemark.node")

PROGRESS_SECONDS = 10.0


def get_code(node: int, clock: Clock) -> None:
    """Get the code of all kernels declared so far, and log how far it is every PROGRESS_SECONDS.

    Nodes that start together on one machine begin in different halves: each finds in the cache what another one has
    compiled.
    """
    compilers = tuple(declared().values())
    first = 0 if node % 2 else len(compilers) // 2
    logged_at = clock.monotonic()
    for done, compile_once in enumerate((*compilers[first:], *compilers[:first]), 1):
        compile_once()
        if clock.monotonic() - logged_at >= PROGRESS_SECONDS:
            logged_at = clock.monotonic()
            _log.info("node %d has the code of %d of %d kernels", node, done, len(compilers))
