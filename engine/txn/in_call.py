"""Whether a thread is inside a call that uses a transaction, which no other thread may roll back then.

A call has no mark of its own, which would cost each row. The stack of the thread shows it: between two calls it has no
frame of the engine. A call that has none yet checks the transaction first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

C = TypeVar("C", bound=Callable[..., Any])

_ENGINE = os.path.dirname(os.path.dirname(__file__)) + "/"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + "/"
_RUNS_CALLERS: set[CodeType] = set()


def runs_callers_code(function: C) -> C:
    """Mark a call that runs a function of its caller in which a transaction is between two calls, as `Database.run`."""
    _RUNS_CALLERS.add(function.__code__)
    return function


def is_in_call(thread: int) -> bool:
    """Whether a thread is inside a call of the engine. False for a thread that has ended."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_ENGINE):
            return True
        if frame.f_code in _RUNS_CALLERS:
            while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):  # wrappers of that call
                frame = frame.f_back
        else:
            frame = frame.f_back
    return False
