"""Calls in another thread: a transaction belongs to the thread that began it, and waits for locks of others alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")
# The refusal of a call that would wait for a lock of its own thread.
OWN_LOCK = "this thread holds the lock in transaction 0x"


def elsewhere(call: Callable[[], R]) -> R:
    """Call in a new thread; return what it returns, raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
