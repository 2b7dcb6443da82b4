"""A full disk for the processes of Spark's tasks: out of space at a planned call, or a real limit of file size.

Functions of this module travel to executors by value: executors need not find the tests.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark import TaskContext

from tidemark.recovery.backup import tasks as restore_room
from tidemark.recovery.backup.restore_task import RestoreTask
from tidemark.recovery.backup.tasks import restore_fragment
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.load import directory as load_room
from tidemark.recovery.spark.load import write_task


class Full(NamedTuple):
    """The disk is full at the nth call of a task, or at a size of files, for the first attempts of each task."""

    nth: int = 1
    size_bytes: int = 0
    attempts: int = 99


def without_room(real: Callable[..., Any], nth: int) -> Callable[..., Any]:
    """Wrap a function that opens a directory: from the nth call that takes space on, the disk is full."""

    def opened(*arguments: Any, **options: Any) -> Any:
        rules = [Rule("space", nth=nth, once=False, error=errno.ENOSPC)]
        return FaultFiles(real(*arguments, **options), rules)

    return opened


@contextmanager
def replaced(room: Any, name: str, made: Callable[..., Any]) -> Iterator[None]:
    real = getattr(room, name)
    setattr(room, name, made(real))
    try:
        yield
    finally:
        setattr(room, name, real)


@contextmanager
def limited(size_bytes: int) -> Iterator[None]:
    """Limit the size of files of this process in bytes: the system itself refuses more, with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _on_full_disk(how: Full, room: Any, opener: str, work: Callable[[str], str], text: str) -> str:
    task = TaskContext.get()
    assert task is not None
    if task.attemptNumber() >= how.attempts:
        return work(text)
    with (
        limited(how.size_bytes) if how.size_bytes else replaced(room, opener, lambda real: without_room(real, how.nth))
    ):
        return work(text)


def loaded(how: Full, text: str) -> str:
    """A task of a load on such a disk."""
    return _on_full_disk(how, load_room, "open_place", write_task, text)


def restored(how: Full, text: str) -> str:
    """A task of a restore on such a disk."""

    def work(task: str) -> str:
        return restore_fragment(RestoreTask.from_json(task)).to_json()

    return _on_full_disk(how, restore_room, "PosixFiles", work, text)
