"""A full disk for the processes of Spark's tasks: out of space at a planned call, or a real limit of file size.

Functions of this module travel to executors by value: executors need not find the tests.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from tidemark.recovery.backup import tasks as restore_room
from tidemark.recovery.backup.restore_task import RestoreTask
from tidemark.recovery.backup.tasks import restore_fragment
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.load import directory as load_room
from tidemark.recovery.spark.load import LoadMessage, LoadWriter, make_writer
from tidemark.recovery.spark.source import TidemarkSource


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


class FullDiskWriter(LoadWriter):
    """Writes loads on a disk that is full at the nth call, or at a file size, for the first attempts of each task."""

    def __init__(self, job: Any, nth: int, size_bytes: int, attempts: int) -> None:
        super().__init__(job)
        self._how = (nth, size_bytes, attempts)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LoadMessage:
        nth, size_bytes, attempts = self._how
        task = TaskContext.get()
        assert task is not None
        if task.attemptNumber() >= attempts:
            return super().write(iterator)
        if size_bytes:
            with limited(size_bytes):
                return super().write(iterator)
        with replaced(load_room, "open_place", lambda real: without_room(real, nth)):
            return super().write(iterator)


class FullDiskSource(TidemarkSource):
    """`format("full disk")`, with options `nth`, `bytes`, `attempts`."""

    @classmethod
    def name(cls) -> str:
        return "full disk"

    def writer(self, schema: Any, overwrite: bool) -> FullDiskWriter:
        how = [int(self.options.get(name, default)) for name, default in (("nth", 1), ("bytes", 0), ("attempts", 99))]
        writer = make_writer({"job": self.options["job"]}, schema, overwrite)
        return FullDiskWriter(writer.job, *how)


def restored_without_room(how: tuple[int, int], text: str) -> str:
    """A task of a restore on such a disk; how: the n-th call, bytes of a file or 0."""
    nth, size_bytes = how
    if size_bytes:
        with limited(size_bytes):
            return restore_fragment(RestoreTask.from_json(text)).to_json()
    with replaced(restore_room, "PosixFiles", lambda real: without_room(real, nth)):
        return restore_fragment(RestoreTask.from_json(text)).to_json()
