"""Waiting for what must come to be, never for time to pass."""

from __future__ import annotations

import threading
from collections.abc import Callable

POLLS = 1_200
POLL_SECONDS = 0.05


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return when it is so. Raises: AssertionError behind a minute."""
    for _ in range(POLLS):
        if is_so():
            return
        threading.Event().wait(POLL_SECONDS)
    raise AssertionError("it has not come to be within a minute")
