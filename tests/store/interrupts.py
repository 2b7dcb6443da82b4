"""Ctrl-C, or another exception, at a chosen point of a program.

CPython looks for signals when it enters a Python function and when a called C function has returned (and at backward
jumps). A profile function is called at exactly these points and may raise there like a signal handler, so the nth point
of a run can be given a KeyboardInterrupt reproducibly.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tidemark.engine.base.errors import Error

ROOT = str(Path(__file__).resolve().parents[2])
# All of the product but replication.
PACKAGES = tuple(str(each) for each in Path(ROOT, "tidemark").iterdir() if each.name != "replication")


class Point:
    """Where the exception was raised, and the error that came out of the call."""

    def __init__(self) -> None:
        self.count = 0
        self.where = ""
        self.is_entry = False  # on the way into the first function of the packages: no work has begun
        self.files: list[str] = []  # the code that was running, the innermost frame first
        self.error: BaseException | None = None


# These frames turn one error into another; an exception on the way into them is raised in the caller.
_OUTSIDE = ("/crash_harness/disks/", "engine/base/out_of_memory.py")


def fail_at(
    nth: int, work: Callable[[], Any], kind: type[BaseException], packages: tuple[str, ...] = PACKAGES
) -> Point:
    """Run `work` with an exception of this kind raised at the nth point inside the packages."""
    point = Point()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(packages):
            return
        if any(each in frame.f_code.co_filename for each in _OUTSIDE):
            return  # a disk in memory is no code of the store's
        if event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR:
            return  # it may close an abandoned generator, where Python swallows what is raised
        point.count += 1
        if point.count == nth:
            what = f" after {argument.__name__}" if event == "c_return" else ""
            under_way: FrameType | None = frame
            while under_way is not None:
                point.files.append(under_way.f_code.co_filename)
                under_way = under_way.f_back
            name = frame.f_code.co_filename.removeprefix(ROOT + "/")
            above = frame.f_back
            point.is_entry = event == "call" and above is not None and not above.f_code.co_filename.startswith(packages)
            point.where = f"{name}:{frame.f_lineno} in {frame.f_code.co_name}{what}"
            raise kind

    sys.setprofile(profile)
    try:
        work()
    except (Error, kind) as error:
        sys.setprofile(None)
        point.error = error
        if not point.where:
            raise
    finally:
        sys.setprofile(None)
    return point


def interrupt_at(nth: int, work: Callable[[], Any]) -> Point:
    """Run `work` with a KeyboardInterrupt at the nth point; it must come out of `work` unchanged."""
    point = fail_at(nth, work, KeyboardInterrupt)
    if point.error is not None and not isinstance(point.error, KeyboardInterrupt):
        raise point.error
    assert bool(point.error) == bool(point.where), f"the interrupt at {point.where} was swallowed"
    return point
