"""Waits for a condition, never for time to pass."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable

POLLS = 1_200
POLL_SECONDS = 0.05


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return when the condition is true. Raises: AssertionError after a minute, with the place and the condition."""
    for _ in range(POLLS):
        if is_so():
            return
        threading.Event().wait(POLL_SECONDS)
    try:
        source = inspect.getsource(is_so).strip()
    except (OSError, TypeError):
        source = repr(is_so)
    raise AssertionError(f"waited for a minute in vain for {source}")
